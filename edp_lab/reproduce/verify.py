"""A long look at what privacy rests on: the accountants, the keys of the noise, and the audit of the real step.

Random settings by the thousand are judged beside dp_accounting, and no epsilon may be too small. Each mechanism of its
own kind, beyond disjoint batches and plain Poisson sampling, lies between bounds. Audits by the thousand are held
against a step whose claim is exactly true, and few may refute it.

Floor: losses rounded down to a grid, a few lines that share nothing with the accountants. dp_accounting's privacy loss
distribution rounded *optimistically* is a floor, too: no sound account lies below either at any grid width. Peer: its
pessimistic distribution and its RDP are upper bounds.

Bounds of a mechanism: the same two distributions, or a cited bound by an attack and a cited theorem; an account
above the upper one gives privacy away. Both are made of what a step adds and what one example moves, by hand: not
of the `Schedule` or the bill that is judged.

    CACHE/<key>.json    what a block of settings came to, so that whoever kills the work and starts it again goes on

The key is of the code, too: another accountant is checked anew.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial, reduce
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.fft import irfft, next_fast_len, rfft
from scipy.linalg import toeplitz
from scipy.special import ndtr
from scipy.stats import binom, binomtest

from edp_lab.attacks.audit.bounds import Finding
from edp_lab.attacks.audit.step_audit import audit_mechanism
from edp_lab.privacy import (
    Adjacency,
    GaussianDP,
    Mechanism,
    PrivacyLossDistribution,
    RenyiDP,
    Schedule,
    accountants,
    judge,
    loss_distribution,
)
from edp_lab.privacy.accountants import ORDERS
from edp_lab.privacy.allocation import RandomAllocation, allocation_at_least
from edp_lab.privacy.check import Sampler, Setting, at_least, bound
from edp_lab.privacy.correlated import in_cyclic_order, in_cyclic_samples, square_root
from edp_lab.privacy.csprng import Purpose, SecretStream, key_from_seed
from edp_lab.training.config import TrainConfig
from edp_lab.training.processes import usable_cores
from edp_lab.training.result_cache import ResultCache, Say, content_key, content_of

EPSILONS, OF_MECHANISMS = (0.05, 30.0), (0.05, 12.0)  # of schedules, and of mechanisms of their own kind
ROUNDING = 1e-6  # by which a mechanism's epsilon may lie outside its bounds
COMPARED, RENYI = 50, 500  # every so many sampled settings is compared with dp_accounting's distributions, and its RDP
FINENESS, LONGEST = 60, 2**17  # bins of the floor's grid for each release, of epsilon in all; most of them in all
PEERS_FINENESS = 50  # the same of the peer's, beside mechanisms
AHEAD = 8.0  # nats
KEYS = 30_000  # streams that one worker looks at a time
BLOCK = 250  # settings that one worker checks at a time
AUDITS = 100  # that one worker makes at a time
DRAWS, CONFIDENCE = 50, 0.95  # of each audit
WHOLE = ORDERS % 1 == 0
PRIVACY = [str(module.__file__) for module in (accountants, loss_distribution)]


class Drawn(NamedTuple):
    """A random schedule, delta, and the epsilon of ours."""

    schedule: Schedule
    delta: float
    epsilon: float


def verify(
    settings: int, mechanisms: int, keys: int, audits: int, seed: int, cache: Path, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Check so many random schedules, with Poisson sampling and as many without, so many settings of each mechanism,
    keys and audits; the same for the same seed.

    `progress` is told how many settings are done, of `settings` and those of each mechanism together.
    """
    start, processes = time.perf_counter(), usable_cores()
    blocks, code = _blocks(settings, BLOCK), [content_of(file) for file in (*PRIVACY, __file__)]
    found = ResultCache(cache, "choose another $XDG_CACHE_HOME").results(
        [content_key([], "verify", code, seed, one.start, one.stop) for one in blocks],
        [(seed, one) for one in blocks],
        checked,
        processes,
        lambda done, _: progress(min(settings, done * BLOCK)),
    )
    rows = {name: [row for block in found for row in block[name]] for name in ("sampled", "everyone")}
    between: dict[str, list[Between]] = {name: [] for name in TRIALS}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        names, numbers = [name for name in TRIALS for _ in range(mechanisms)], [*range(mechanisms)] * len(TRIALS)
        trials = pool.map(partial(verify_mechanism, seed), names, numbers)
        for done, (name, one) in enumerate(zip(names, trials, strict=True), 1):
            between[name].append(one)
            progress(settings + done)
        refuted = sum(pool.map(_refutations, _blocks(audits, AUDITS)))
        firsts = np.concatenate(list(pool.map(first_draws, _blocks(keys, KEYS))))
    return {
        **summary(rows["sampled"], rows["everyone"]),
        "seed": seed,
        "mechanisms": {name: verified(found) for name, found in between.items() if found},
        "keys": len(firsts),  # streams of noise: other keys, steps and devices, a third each
        "repeated_first_draws": len(firsts) - len(np.unique(firsts)),  # 64-bit numbers that occurred before
        "audits": audits,  # of a sound step, each with a key of its own and 50 draws of the real step a side
        "refuted": refuted,  # how many refuted the claim, which is true; at a confidence of 95 %, at most 5 % may
        "seconds": time.perf_counter() - start,
        "processes": processes,
    }


def summary(sampled: list[dict[str, Any]], everyone: list[dict[str, Any]]) -> dict[str, Any]:
    """How many epsilons are too small; relative distances, the largest ones and medians."""

    def most(name: str, rows: list[dict[str, Any]]) -> float:
        return max((row[name] for row in rows if name in row), default=0.0)

    return {
        "sampled": len(sampled),
        "everyone": len(everyone),
        "too_small": sum(row["too_small"] for row in sampled + everyone),  # an epsilon below a floor
        "over_floor": float(np.median([row["over_floor"] for row in sampled])) if sampled else 0.0,
        "compared": sum("distribution_excess" in row for row in sampled),
        # By how much ours lies above dp_accounting's pessimistic distribution; distances of the closed form from that,
        # and of RDP from dp_accounting's at whole orders.
        "distribution_excess": most("distribution_excess", sampled),
        "closed_form_error": most("closed_form_error", everyone),
        "renyi_error": most("renyi_error", sampled),
    }


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


def passed(found: Mapping[str, Any]) -> bool:
    """Nothing too small or repeated, peers that agree, and audits that are no more often wrong than they say.

    That is, there is no evidence to the contrary at the level 1e-3.
    """
    wrong = binomtest(found["refuted"], found["audits"], 1 - CONFIDENCE, alternative="greater").pvalue <= 1e-3
    agree = found["closed_form_error"] <= 1e-3 and found["renyi_error"] <= 1e-4 and found["distribution_excess"] <= 1e-3
    outside = sum(one["too_small"] + one["too_large"] for one in found["mechanisms"].values())
    return bool(agree and found["too_small"] == found["repeated_first_draws"] == outside == 0 and not wrong)


def _blocks(total: int, size: int) -> list[range]:
    return [range(first, min(first + size, total)) for first in range(0, total, size)]


# ---- The peer --------------------------------------------------------------------------------------------------------


class Release(NamedTuple):
    """So many Gaussian releases: noise of deviation `std`, which one example moves by `shift` with chance `rate`."""

    std: float
    shift: float
    times: int
    rate: float = 1.0


def released(schedule: Schedule) -> list[Release]:
    counted = zip(schedule.noise_multipliers.tolist(), schedule.counts.tolist(), strict=True)
    return [Release(z, 1.0, count, schedule.sampling_rate) for z, count in counted]


def peer(
    releases: list[Release],
    delta: float,
    epsilon: float,
    pessimistic: bool,
    bins: int | None = None,
    sharp: bool = False,
    replace_one: bool = False,
) -> float:
    """dp_accounting's epsilon, losses rounded to a grid that is fine for an epsilon of about this size.

    Args:
        bins: of the grid, to that epsilon; None is `PEERS_FINENESS` for each release.
        sharp: round up by the sharper method, which has no optimistic form.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    width = epsilon / (bins or PEERS_FINENESS * max(5, sum(one.times for one in releases)))
    neighbours = NeighboringRelation.REPLACE_ONE if replace_one else NeighboringRelation.ADD_OR_REMOVE_ONE
    distributions = [
        pld.from_gaussian_mechanism(
            one.std,
            sensitivity=one.shift,
            value_discretization_interval=width,
            sampling_prob=one.rate,
            pessimistic_estimate=pessimistic,
            use_connect_dots=sharp and pessimistic,
            neighboring_relation=neighbours,
        ).self_compose(one.times)
        for one in releases
    ]
    return float(reduce(lambda total, one: total.compose(one), distributions).get_epsilon_for_delta(delta))


# ---- Accountants -----------------------------------------------------------------------------------------------------


def checked(job: tuple[int, range], say: Say) -> dict[str, Any]:
    """Rows of the settings of these numbers; the rare rows that say more cost most of the time."""
    seed, numbers = job
    sampled = [check_sampled(random_setting(seed, n, True), n % COMPARED == 0, n % RENYI == 0) for n in numbers]
    return {"sampled": sampled, "everyone": [check_everyone(random_setting(seed, n, False)) for n in numbers]}


def random_setting(seed: int, number: int, sampled: bool) -> Drawn:
    """Up to 8 distinct z, delta from 1e-9 to 1e-3, epsilon within `EPSILONS`."""
    rng = np.random.default_rng((seed, number))
    while True:
        distinct = rng.integers(1, 9)
        q = 10 ** rng.uniform(-3.5, -0.3) if sampled else 1.0
        z = 10 ** (rng.uniform(-1.3 if sampled else -0.3, 1.2) + rng.uniform(-0.15, 0.15, distinct))
        schedule = Schedule(z, rng.integers(1, 7 if sampled else 40, distinct), q)
        delta = 10 ** rng.uniform(-9, -3)
        epsilon = (PrivacyLossDistribution if sampled else GaussianDP)(schedule).epsilon(delta)
        if EPSILONS[0] <= epsilon <= EPSILONS[1]:
            return Drawn(schedule, delta, epsilon)


def check_sampled(setting: Drawn, compared: bool, renyi: bool) -> dict[str, Any]:
    """Beside the floor; on demand beside dp_accounting's distributions on both sides, and ours beside its RDP."""
    schedule, delta, epsilon = setting
    low = floor(schedule, delta, epsilon)
    row: dict[str, Any] = {"over_floor": epsilon / max(low, 1e-12) - 1}
    if compared:
        bins = max(200, 10 * int(schedule.counts.sum()))  # rounding costs each release up to one of them
        lower, upper = (peer(released(schedule), delta, epsilon, side, bins, sharp=True) for side in (False, True))
        low = max(low, lower)
        row["distribution_excess"] = epsilon / upper - 1
    if renyi:
        row["renyi_error"] = _renyi_error(schedule)
    return {**row, "too_small": bool(epsilon < low * (1 - 1e-9))}


def check_everyone(setting: Drawn) -> dict[str, Any]:
    """Beside dp_accounting's distributions of one Gaussian, which composed Gaussians are."""
    schedule, delta, epsilon = setting
    merged = [Release(1 / schedule.mu, 1.0, 1)]
    lower, upper = (peer(merged, delta, epsilon, pessimistic, 100, sharp=True) for pessimistic in (False, True))
    return {"closed_form_error": abs(epsilon / upper - 1), "too_small": bool(epsilon < lower * (1 - 1e-9))}


def floor(schedule: Schedule, delta: float, about: float) -> float:
    """An epsilon below the true one, which should be `about` so large: of an utterance removed, losses rounded down.

    A loss is rounded to a multiple of a width, and to what is `AHEAD` of epsilon; sums beyond wrap around to smaller
    ones. None is below K ln(1 - q). 1e-12 is taken off delta for rounding errors of normal probabilities and transform.
    """
    z, counts, q = schedule.noise_multipliers[:, None], schedule.counts.tolist(), schedule.sampling_rate
    top = 1.6 * about + AHEAD
    width = max(about / (FINENESS * sum(counts)), top / LONGEST)
    farthest = min(top, float(np.log1p(q * np.expm1((9 + 1 / z) / z - 1 / (2 * z * z))).max()))
    lowest = math.floor(math.log1p(-q) / width)
    edges = width * np.arange(lowest, math.floor(farthest / width) + 1)
    x = z * np.log(np.maximum(1 + np.expm1(edges) / q, 1e-300)) + 1 / (2 * z)  # in deviations, where losses are those
    beyond = (1 - q) * ndtr(-x) + q * ndtr(1 / z - x)
    masses = beyond - np.concatenate([beyond[:, 1:], np.zeros((len(z), 1))], axis=1)
    bottom = lowest * sum(counts)
    size = next_fast_len(int(top / width) - bottom, real=True)
    total = np.ones(size // 2 + 1, dtype=complex)
    for transform, count in zip((rfft(row, size) for row in masses), counts, strict=True):
        for _ in range(count):
            total *= transform
    chances, losses = irfft(total, size)[-bottom:], width * np.arange(size + bottom)
    above, scaled = (np.cumsum(mass[::-1])[::-1] for mass in (chances, chances * np.exp(-losses)))
    more = np.flatnonzero(above - np.exp(losses) * scaled > delta + 1e-12)
    place = min(int(more[-1]) + 1, len(losses) - 1) if len(more) else 0
    return max(0.0, math.log((above[place] - delta - 1e-12) / scaled[place])) if place else 0.0


def _renyi_error(schedule: Schedule) -> float:
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant(orders=ORDERS[WHOLE].tolist())
    theirs.compose(schedule.events())
    ours = RenyiDP(schedule).rdp[WHOLE]
    return float(np.max(np.abs(ours / np.maximum(theirs._rdp, 1e-9) - 1)[theirs._rdp > 1e-9]))


# ---- Mechanisms ------------------------------------------------------------------------------------------------------


class Between(NamedTuple):
    """Epsilons of one setting at one delta: `low` <= `ours` <= `high`, unless something is wrong."""

    low: float
    ours: float
    high: float


def verify_mechanism(seed: int, name: str, number: int) -> Between:
    """The random setting of this number, the same for the same seed."""
    rng, trial = np.random.default_rng((seed, number, *name.encode())), TRIALS[name]
    while True:
        found = trial(rng, number, 10 ** rng.uniform(-8, -3))
        if found is not None:
            return found


def _bracketed(releases: list[Release], delta: float, ours: float) -> Between | None:
    """By the peer on both sides; None if epsilon is beyond those that are compared."""
    if not OF_MECHANISMS[0] <= ours <= OF_MECHANISMS[1]:
        return None
    low, high = (peer(releases, delta, ours, pessimistic) for pessimistic in (False, True))
    return Between(low, ours, high)


# ---- What `edp-lab train` does ---------------------------------------------------------------------------------------


TRAINED: dict[str, Callable[[int], dict[str, Any]]] = {  # by name, settings of the run of this number
    # Whole speakers, sampled by Poisson; every other time several share a clip.
    "speakers": lambda n: {"unit": "speaker", **({"method": "dp-sgd"} if n % 2 else {"micro_batch_size": None})},
    # At every rung of the ladder.
    "eDP-SGD under Poisson sampling": lambda n: {"sampling": "poisson", "micro_batch_size": (None, 1, 2, 4)[n % 4]},
    # One more release, with disjoint batches and under Poisson sampling.
    "noised layer scales": lambda n: {"alpha": "noised", "sampling": ("shuffle", "poisson")[n % 2]},
}


def trained(name: str, rng: np.random.Generator, number: int, delta: float) -> Between | None:
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
        **TRAINED[name](number),
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


# ---- What panels show ------------------------------------------------------------------------------------------------


def random_allocation(rng: np.random.Generator, number: int, delta: float) -> Between | None:
    """Low: attacks; high: the same passes without allocation (joint convexity), by the peer."""
    z, batches, passes = 10 ** rng.uniform(-0.45, 1.1), int(rng.integers(2, 200)), int(rng.integers(1, 40))
    ours = RandomAllocation(Schedule(np.array([z]), np.array([passes])), batches).epsilon(delta)
    if not OF_MECHANISMS[0] <= ours <= OF_MECHANISMS[1]:
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
    if not OF_MECHANISMS[0] <= ours <= OF_MECHANISMS[1]:
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
    return Between(peer(sampled, delta, ours, pessimistic=False, replace_one=replaced), ours, high)


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
    **{name: partial(trained, name) for name in TRAINED},
    "random allocation": random_allocation,
    "correlated noise": correlated_noise,
    "edp-lab check": other_libraries,
}


# ---- Keys of the noise, and audits -----------------------------------------------------------------------------------


def first_draws(numbers: range) -> np.ndarray:
    """The first 64 bits of these noise streams, a function of their numbers alone."""
    draws = np.empty((len(numbers), 1), dtype=np.uint64)
    for draw, number in zip(draws, numbers, strict=True):
        part, place = number % 3, number // 3
        key = key_from_seed(place if part == 0 else -1)
        SecretStream(key, Purpose.NOISE, *((0, 0), (place, 0), (0, place + 1))[part]).fill(draw)
    return draws[:, 0]


def _refutations(numbers: range) -> int:
    """How many audits, each with the key of its number, refute a claim that is exactly true."""
    torch.set_num_threads(1)  # the processes share the cores
    true = Mechanism.sound(clip_norm=1.0, z0=1.0, num_devices=8, micro_batch_size=8)
    verdicts = [audit_mechanism(true, 1e-5, key, DRAWS, CONFIDENCE).verdict for key in map(key_from_seed, numbers)]
    return verdicts.count(Finding.REFUTED)
