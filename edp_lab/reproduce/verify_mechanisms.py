"""Each mechanism beyond disjoint batches and plain Poisson sampling, between a peer's bounds at random settings.

Low: dp_accounting's privacy loss distribution rounded optimistically, or a cited bound by an attack; no sound epsilon
lies below. High: the same distribution rounded pessimistically, or a cited theorem; an account that lies above gives
privacy away. Both are made of what a step adds and what one example moves, by hand: not of the `Schedule` or the bill
that is judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import toeplitz
from scipy.stats import binom

from edp_lab.privacy import Adjacency, GaussianDP, PrivacyLossDistribution, Schedule, judge
from edp_lab.privacy.allocation import RandomAllocation, allocation_at_least
from edp_lab.privacy.check import Sampler, Setting, at_least, bound
from edp_lab.privacy.correlated import in_cyclic_order, in_cyclic_samples, square_root
from edp_lab.training.config import TrainConfig

EPSILONS = (0.05, 12.0)
FINENESS = 50  # bins for each release, of epsilon in all
ROUNDING = 1e-6


class Between(NamedTuple):
    """Epsilons of one setting at one delta: `low` <= `ours` <= `high`, unless something is wrong."""

    low: float
    ours: float
    high: float


class Release(NamedTuple):
    """So many Gaussian releases: noise of deviation `std`, which one example moves by `shift` with chance `rate`."""

    std: float
    shift: float
    times: int
    rate: float = 1.0


def verify_mechanism(name: str, seed: int, number: int) -> Between:
    """The random setting of this number, the same for the same seed."""
    rng, trial = np.random.default_rng((seed, number, *name.encode())), TRIALS[name]
    while True:
        found = trial(rng, number, 10 ** rng.uniform(-8, -3))
        if found is not None:
            return found


def verified(rows: list[Between]) -> dict[str, Any]:
    """How often an epsilon lies outside, and medians of how far apart the bounds are and where ours lies."""
    low, ours, high = np.array(rows).T
    return {
        "settings": len(rows),
        "too_small": int((ours < low * (1 - ROUNDING)).sum()),
        "too_large": int((ours > high * (1 + ROUNDING)).sum()),
        "high_over_low": float(np.median(high / low)),
        "ours_over_low": float(np.median(ours / low)),
        "least_ours_over_low": float((ours / low).min()),
    }


def peer(releases: list[Release], delta: float, epsilon: float, pessimistic: bool, replace_one: bool = False) -> float:
    """dp_accounting's epsilon, losses rounded to a grid that is fine for an epsilon of about this size."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    width = epsilon / (FINENESS * max(5, sum(one.times for one in releases)))
    total: Any = pld.identity(width, pessimistic_estimate=pessimistic)
    for one in releases:
        distribution = pld.from_gaussian_mechanism(
            one.std,
            sensitivity=one.shift,
            value_discretization_interval=width,
            sampling_prob=one.rate,
            pessimistic_estimate=pessimistic,
            use_connect_dots=False,  # which has no optimistic form
            neighboring_relation=NeighboringRelation.REPLACE_ONE
            if replace_one
            else NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
        total = total.compose(distribution.self_compose(one.times))
    return float(total.get_epsilon_for_delta(delta))


def _bracketed(releases: list[Release], delta: float, ours: float) -> Between | None:
    """By the peer on both sides; None if epsilon is beyond those that are compared."""
    if not EPSILONS[0] <= ours <= EPSILONS[1]:
        return None
    low, high = (peer(releases, delta, ours, pessimistic) for pessimistic in (False, True))
    return Between(low, ours, high)


# ---- What `edp-lab train` does ---------------------------------------------------------------------------------------


def _trained(rng: np.random.Generator, delta: float, **options: Any) -> Between | None:
    """A run of `TrainConfig` as its steps release it: the noise that is added beside the gradient that moves."""
    n, rate = int(10 ** rng.uniform(2, 5.5)), 10 ** rng.uniform(-2.3, -0.3)
    batch, devices = max(16, round(n * rate)), int(rng.integers(1, 4))
    config = TrainConfig(
        "smart-home",
        batch_size=batch,
        num_devices=devices,
        epochs=int(rng.integers(1, 4)),
        z0=10 ** rng.uniform(-0.3, 1.2),
        clip_norm=10 ** rng.uniform(-2, 2),
        decay=str(rng.choice(["none", "linear", "exponential"])),
        tau=rng.uniform(0, 0.5),
        **options,
    )
    mechanism = config.mechanism(n)
    assert mechanism is not None
    shift = config.clip_norm * (1 if config.largest_micro_batch == 1 else 2)  # a clipped mean turns round
    steps, chance = (math.ceil(n / batch), batch / n) if config.poisson else (1, 1.0)
    releases = [Release(mechanism.noise_std(epoch), shift, steps, chance) for epoch in range(config.epochs)]
    if config.alpha == "noised":  # layers' norms, whose vector moves no further than the gradient
        releases.append(Release(mechanism.scales_noise_std(), shift, 1, chance))
    epsilon = judge(mechanism, config.epochs, delta, seed_published=False).epsilon
    return _bracketed(releases, delta, math.inf if epsilon is None else epsilon)


def speakers(rng: np.random.Generator, number: int, delta: float) -> Between | None:
    """Whole speakers, sampled by Poisson; every other time several share a clip."""
    method = {"method": "dp-sgd"} if number % 2 else {"method": "edp-sgd", "micro_batch_size": None}
    return _trained(rng, delta, unit="speaker", **method)


def sampled_edp_sgd(rng: np.random.Generator, number: int, delta: float) -> Between | None:
    """eDP-SGD under Poisson sampling, at every rung of the ladder."""
    return _trained(rng, delta, sampling="poisson", micro_batch_size=(None, 1, 2, 4)[number % 4])


def noised_alpha(rng: np.random.Generator, number: int, delta: float) -> Between | None:
    """Layer scales with noise: one more release, with disjoint batches and under Poisson sampling."""
    return _trained(rng, delta, alpha="noised", sampling=("shuffle", "poisson")[number % 2])


# ---- What panels show ------------------------------------------------------------------------------------------------


def random_allocation(rng: np.random.Generator, number: int, delta: float) -> Between | None:
    """Low: attacks; high: the same passes without allocation (joint convexity), by the peer."""
    z, batches, passes = 10 ** rng.uniform(-0.45, 1.1), int(rng.integers(2, 200)), int(rng.integers(1, 40))
    ours = RandomAllocation(Schedule(np.array([z]), np.array([passes])), batches).epsilon(delta)
    if not EPSILONS[0] <= ours <= EPSILONS[1]:
        return None
    high = peer([Release(z / math.sqrt(passes), 1.0, 1)], delta, ours, pessimistic=True)
    return Between(allocation_at_least(z, batches, passes, delta), ours, high)


def correlated_noise(rng: np.random.Generator, number: int, delta: float) -> Between | None:
    """Banded square roots, their columns taken from the matrix itself; every other time with secret samples."""
    bands, sigma = int(rng.integers(1, 9)), 10 ** rng.uniform(0, 1.5)
    batches, passes = int(rng.integers(bands, 40)), int(rng.integers(1, 10))
    steps, sampled = batches * passes, number % 2 == 1
    column = np.zeros(steps)
    column[: min(bands, steps)] = square_root(bands)[:steps]
    root = np.tril(toeplitz(column))
    if sampled:
        schedule = in_cyclic_samples(sigma, bands, steps, 1 / batches)
        longest = float(np.linalg.norm(root, axis=0).max())
        releases = [Release(sigma, longest, len(range(0, steps, bands)), bands / batches)]
    else:
        schedule = in_cyclic_order(sigma, bands, batches, passes)
        releases = [Release(sigma, float(np.linalg.norm(root[:, ::batches].sum(axis=1))), 1)]
    return _bracketed(releases, delta, (PrivacyLossDistribution if sampled else GaussianDP)(schedule).epsilon(delta))


# ---- What `edp-lab check` says ---------------------------------------------------------------------------------------


def other_libraries(rng: np.random.Generator, number: int, delta: float) -> Between | None:
    """Every sampler in turn, for the neighbours of which there is a bound in turn; each example clipped alone."""
    sampler, neighbours, cut = CHECKED[number % len(CHECKED)]
    n, epochs = int(10 ** rng.uniform(2, 5)), int(rng.integers(1, 10))
    batch, z = max(1, int(n * 10 ** rng.uniform(-2.3, -0.3))), 10 ** rng.uniform(-0.3, 1.3)
    steps, truncated = epochs * math.ceil(n / batch), math.ceil(batch * rng.uniform(1, 1.3)) if cut else None
    setting = Setting(sampler, n, batch, steps, epochs, z, delta, adjacency=neighbours, truncated=truncated)
    ours = bound(setting, neighbours).epsilon or math.inf
    if not EPSILONS[0] <= ours <= EPSILONS[1]:
        return None
    replaced, anew = neighbours is Adjacency.REPLACE_ONE, sampler in (Sampler.POISSON, Sampler.FIXED_SIZE)
    times = steps if anew else epochs
    known = [Release(z / math.sqrt(times), 2.0 if replaced else 1.0, 1)]  # of one whose places are no secret
    high = peer(known, delta, ours, pessimistic=True)
    if sampler is Sampler.FIXED_ORDER:
        return Between(peer(known, delta, ours, pessimistic=False), ours, high)
    if not anew:
        low = at_least(setting)
        if sampler is Sampler.BALLS_IN_BINS:  # all passes are as one
            low = allocation_at_least(z / math.sqrt(epochs), steps // epochs, 1, delta)
        if sampler is Sampler.RANDOM_ALLOCATION:
            low = allocation_at_least(z, steps // epochs, epochs, delta)
        return Between(low, ours, high)
    chance = _kept(n, batch / n, truncated) if truncated else batch / n
    sampled = [Release(z, 1.0, steps, chance)]  # as if all other gradients were 0
    if sampler is Sampler.POISSON and not replaced and not cut:
        high = peer(sampled, delta, ours, pessimistic=True)
    return Between(peer(sampled, delta, ours, False, replaced), ours, high)


def _kept(n: int, rate: float, truncated: int) -> float:
    """The chance to be in a Poisson batch after it was cut to this size at random."""
    others = np.arange(n)
    return float(rate * np.sum(binom.pmf(others, n - 1, rate) * np.minimum(1.0, truncated / (others + 1))))


CHECKED = (
    (Sampler.POISSON, Adjacency.ADD_OR_REMOVE_ONE, False),
    (Sampler.SHUFFLE, Adjacency.ZERO_OUT, False),
    (Sampler.FIXED_ORDER, Adjacency.ZERO_OUT, False),
    (Sampler.POISSON, Adjacency.REPLACE_ONE, False),
    (Sampler.FIXED_SIZE, Adjacency.REPLACE_ONE, False),
    (Sampler.POISSON, Adjacency.ZERO_OUT, True),
    (Sampler.BALLS_IN_BINS, Adjacency.ADD_OR_REMOVE_ONE, False),
    (Sampler.RANDOM_ALLOCATION, Adjacency.ZERO_OUT, False),
    (Sampler.SHUFFLE, Adjacency.REPLACE_ONE, False),
    (Sampler.FIXED_ORDER, Adjacency.REPLACE_ONE, False),
)
TRIALS: dict[str, Callable[[np.random.Generator, int, float], Between | None]] = {
    "speakers": speakers,
    "eDP-SGD under Poisson sampling": sampled_edp_sgd,
    "noised layer scales": noised_alpha,
    "random allocation": random_allocation,
    "correlated noise": correlated_noise,
    "edp-lab check": other_libraries,
}
