"""Another library's run on trial: what its setting guarantees for the sampler that was used, beside what it claims.

The commonest fault is to bill shuffled batches as Poisson sampling. Where no bound is known, there is no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from edp_lab.errors import UsageError, check_whole
from edp_lab.privacy.accountants import (
    GaussianDP,
    GroupRenyiDP,
    RenyiDP,
    check_delta,
    gdp_epsilon,
    zcdp_epsilon,
)
from edp_lab.privacy.allocation import MOST_BATCHES, RandomAllocation, allocation_at_least, shuffled_at_least
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.guarantee import upward
from edp_lab.privacy.loss_distribution import PrivacyLossDistribution
from edp_lab.privacy.mechanism import LARGEST, SMALLEST_RATE, Adjacency, Mechanism, NoGuarantee, Schedule

MOST_STEPS = 10**8
LOOSE = 30.0  # epsilon from which nobody waits for the lower bound
SAME = 0.015  # relative difference up to which a claim, rounded and by other orders, is recognised
ROUNDING = 1e-9  # relative difference between two ways to compute the same thing
MEND = 1e-3  # relative precision of the noise that would mend a claim


class Sampler(StrEnum):
    """How batches were formed; one example's places never depend on what is in it."""

    POISSON = "poisson"  # each example in each step with chance q, independently
    SHUFFLE = "shuffle"  # a fresh order each epoch, cut into batches
    FIXED_ORDER = "fixed-order"  # the same batches each epoch
    FIXED_SIZE = "fixed-size"  # each step its own random batch, without replacement
    WITH_REPLACEMENT = "with-replacement"  # the same, but an example may be drawn twice
    BALLS_IN_BINS = "balls-in-bins"  # each example, by itself, in one random step, the same in each epoch
    RANDOM_ALLOCATION = (
        "random-allocation"  # each, by itself, in a step of each epoch, drawn anew, or in as many of all
    )


POISSON_THERE = (
    "Opacus: poisson_sampling=True; jax_privacy: CyclicPoissonSampling, in Keras poisson_sampling_in_fit=True"
)
NATURAL = {Sampler.POISSON: Adjacency.ADD_OR_REMOVE_ONE, Sampler.FIXED_SIZE: Adjacency.REPLACE_ONE}
ALLOTTED = (Sampler.BALLS_IN_BINS, Sampler.RANDOM_ALLOCATION)
SAMPLED = (Sampler.POISSON, Sampler.FIXED_SIZE, Sampler.WITH_REPLACEMENT)  # anew in each step, not once an epoch


@dataclass(frozen=True)
class Setting:
    """A run of DP-SGD: each step releases the sum of clipped gradients plus N(0, (noise_multiplier C)^2 I).

    Attributes:
        n: examples in the training set.
        batch_size: B, the expected one under Poisson sampling; q = B / n.
        steps: noised updates in all.
        epochs: in how many steps an example takes part at most, where each epoch has it once.
        noise_multiplier: standard deviation of the noise over the clip norm C, whatever the neighbours.
        epsilon: what is claimed at `delta`; None: nothing.
        adjacency: for which neighbours it is claimed; None: those that suit the sampler best.
        micro_batch_size: examples whose *mean* gradient is clipped, instead of each one's.
        truncated: of larger Poisson batches, a random part of this size is taken.
        clip_norm: C, which cancels.
    """

    sampler: Sampler
    n: int
    batch_size: float
    steps: int
    epochs: int
    noise_multiplier: float
    delta: float
    epsilon: float | None = None
    adjacency: Adjacency | None = None
    micro_batch_size: int = 1
    truncated: int | None = None
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_delta(self.delta)
        for name in ("n", "steps", "epochs", "micro_batch_size", "truncated"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value, 1, MOST_STEPS)
                object.__setattr__(self, name, int(value))  # also of numpy's
        for name, value in (("noise multiplier", self.noise_multiplier), ("clip norm", self.clip_norm)):
            if not 0 < value <= LARGEST:
                raise UsageError(f"the {name} is {value}: it must be greater than 0, at most {LARGEST:g}")
        if not 0 < self.batch_size <= self.n:
            raise UsageError(f"the batch size is {self.batch_size:g}: it must lie above 0, up to n = {self.n:,}")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise UsageError(f"the claimed epsilon is {self.epsilon}: it must be greater than 0")
        if self.micro_batch_size > self.batch_size:
            raise UsageError(f"micro-batches of {self.micro_batch_size} do not fit batches of {self.batch_size:g}")
        if self.truncated is not None and self.sampler is not Sampler.POISSON:
            raise UsageError(
                f"a truncated batch size belongs to Poisson sampling: drop it, or the {self.sampler} sampler"
            )
        if self.epochs > self.steps:
            raise UsageError(f"{self.epochs} epochs do not fit {self.steps} steps: an epoch has at least one")

    @property
    def rate(self) -> float:
        return min(1.0, self.batch_size / self.n)

    @property
    def neighbours(self) -> Adjacency:
        natural = NATURAL.get(self.sampler, Adjacency.ZERO_OUT)
        return self.adjacency or (natural if self.truncated is None else Adjacency.ZERO_OUT)


class Bound(NamedTuple):
    """What holds at the setting's delta for some neighbours: an epsilon and by whom, or None and why there is none."""

    epsilon: float | None
    method: str


# ---- What holds ------------------------------------------------------------------------------------------------------


def bound(setting: Setting, neighbours: Adjacency) -> Bound:
    """The smallest epsilon that any bound here vouches for; all of them are chosen without looking at data.

    Guarantee: (epsilon, delta)-DP of all updates together for the sampler as its name says, fresh secret noise, a fixed
    divisor and no release besides. Where batches depend on chance and not on what is in the examples, the divergence is
    at most that under the worst outcome of the chance (joint convexity): an example's releases then compose as Gaussian
    ones. Poisson sampling: privacy loss distributions; fixed size: Wang, Balle and Kasiviswanathan 2019, theorem 27;
    balls in bins: `edp_lab.privacy.allocation`.
    """
    try:
        found = [Bound(epsilon, method) for method, epsilon in _bounds(setting, neighbours) if math.isfinite(epsilon)]
    except NoGuarantee as none:
        return Bound(None, str(none))
    return min(found, default=Bound(None, "epsilon exceeds the largest float"))


def _bounds(s: Setting, neighbours: Adjacency) -> Iterator[tuple[str, float]]:
    added, alone = neighbours is Adjacency.ADD_OR_REMOVE_ONE, s.micro_batch_size == 1
    if s.sampler is Sampler.WITH_REPLACEMENT:
        raise NoGuarantee("an example may stand in a batch more than once, for which no accountant here has a bound")
    if added:
        _refuse_added(s)
    # One example's own places known: 1 x C (2 x C) in as many releases.
    within = Adjacency.ZERO_OUT if added else neighbours
    # A mean that is clipped moves by 2C, and the mechanism's z0 is noise over sensitivity.
    over = s.noise_multiplier / (1 if alone else 2)
    mechanism = Mechanism.sound(s.clip_norm, over, 1, s.micro_batch_size)
    known = mechanism.schedule({0: s.steps if s.sampler in SAMPLED else s.epochs}, within)
    yield f"{GaussianDP.method}, no amplification", GaussianDP(known).epsilon(s.delta)
    if s.sampler is Sampler.FIXED_SIZE:
        yield "Renyi DP of sampling without replacement (Wang et al. 2019)", _fixed_size(s)
    if s.sampler in ALLOTTED and alone and neighbours is not Adjacency.REPLACE_ONE:
        yield RandomAllocation.method, _allocated(s)
    if s.sampler is Sampler.POISSON and alone:
        if s.truncated is not None:
            if neighbours is Adjacency.ZERO_OUT:
                yield "privacy loss distributions of truncated batches (Ganesh et al. 2025)", _truncated(s)
        elif neighbours is Adjacency.REPLACE_ONE:
            yield "one removed and one added, by group privacy", GroupRenyiDP(_sampled(s), 2).epsilon(s.delta)
        else:
            yield "privacy loss distributions of Poisson sampling", tight(s)


def _refuse_added(s: Setting) -> None:
    if s.micro_batch_size > 1:
        raise NoGuarantee("one example more moves the others to other micro-batches, whose clipped means all change")
    if s.truncated is not None:
        raise NoGuarantee("one example more may push another out of a truncated batch: n must stay")
    if s.sampler is Sampler.FIXED_SIZE:
        raise NoGuarantee("with batches of fixed size one example more changes everyone's chance: n must stay")
    if s.sampler in (Sampler.SHUFFLE, Sampler.FIXED_ORDER):
        raise NoGuarantee("one example more shifts every later batch of the pass: n must stay")


def _sampled(s: Setting) -> Schedule:
    """As Poisson sampling of examples that are clipped alone."""
    return Schedule(np.array([s.noise_multiplier]), np.array([s.steps]), max(s.rate, SMALLEST_RATE))


def tight(s: Setting) -> float:
    """Poisson sampling by privacy loss distributions."""
    return _tight(s.noise_multiplier, s.steps, s.rate, s.delta)


@lru_cache(64)
def _tight(z: float, steps: int, rate: float, delta: float) -> float:
    schedule = Schedule(np.array([z]), np.array([steps]), max(rate, SMALLEST_RATE))
    return PrivacyLossDistribution(schedule).epsilon(delta)


def poisson_noise(rate: float, steps: int, epsilon: float, delta: float) -> float:
    """The noise multiplier that Poisson sampling needs for an epsilon, as libraries choose it for a target."""
    mechanism = Mechanism.sound(1.0, 1.0, 1, 1, sampling_rate=rate)
    return calibrate_z0(mechanism, mechanism.bill(steps=steps), Budget(epsilon, delta))


def _fixed_size(s: Setting) -> float:
    """The theorem's release is one whose neighbours differ in one member of the batch, which moves it by 2C."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    size = min(s.n, math.ceil(s.batch_size))
    one = dp.dp_event.SampledWithoutReplacementDpEvent(s.n, size, dp.GaussianDpEvent(s.noise_multiplier / 2))
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(one, s.steps).get_epsilon(s.delta))


def _allocated(s: Setting) -> float:
    z, batches, passes = _allotment(s)
    return RandomAllocation(Schedule(np.array([z]), np.array([passes])), batches).epsilon(s.delta)


def _allotment(s: Setting) -> tuple[float, int, int]:
    """Noise, bins and passes; where steps are no multiple of epochs, with fewer bins than there are, which hide less.

    Drawn once, a bin is as one pass whose steps are the sums over all epochs: noise sqrt(epochs) z on a shift of epochs
    (Choquette-Choo et al. 2024, arXiv 2410.06266). k steps of all t are one of each k-th part, for parts drawn at
    random (Feldman and Shenfeld 2025).
    """
    batches = min(s.steps // s.epochs, MOST_BATCHES)
    if s.sampler is Sampler.BALLS_IN_BINS:
        return s.noise_multiplier / math.sqrt(s.epochs), batches, 1
    return s.noise_multiplier, batches, s.epochs


def _truncated(s: Setting) -> float:
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    one = dp.dp_event.TruncatedSubsampledGaussianDpEvent(s.n, s.rate, s.truncated, s.noise_multiplier)
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, 1e-3)
    return float(accountant.compose(one, s.steps).get_epsilon(s.delta))


def at_least(s: Setting) -> float:
    """An epsilon below which no accountant can truthfully go at this delta, zero-out; 0 where none is known here.

    In the same order each epoch the Gaussian account is exact. Shuffled: `shuffled_at_least`. Poisson: privacy losses
    rounded down. Allocation: one adds up all steps; a bin that is drawn once: `allocation_at_least`.
    """
    batches = math.ceil(s.n / s.batch_size)
    epochs, z = s.steps // batches, s.noise_multiplier  # whole ones
    if s.micro_batch_size > 1 or not epochs:
        return 0.0
    if s.sampler is Sampler.RANDOM_ALLOCATION:
        return gdp_epsilon(s.epochs / math.sqrt(s.steps) / z, s.delta) * (1 - 1e-9)
    if s.sampler is Sampler.BALLS_IN_BINS:
        once, bins, passes = _allotment(s)
        return allocation_at_least(once, bins, passes, s.delta) if bins * s.epochs == s.steps else 0.0
    if s.neighbours is Adjacency.ADD_OR_REMOVE_ONE and s.sampler is not Sampler.POISSON:
        return 0.0
    if s.sampler is Sampler.FIXED_ORDER:
        return gdp_epsilon(math.sqrt(epochs) / z, s.delta) * (1 - 1e-9)
    if s.sampler is Sampler.POISSON and s.truncated is None:
        return _sampled_at_least(s)
    if s.sampler is not Sampler.SHUFFLE:
        return 0.0
    return shuffled_at_least(z, batches, epochs, s.delta)


def _sampled_at_least(s: Setting) -> float:
    from dp_accounting.pld import privacy_loss_distribution as pld

    quick = RenyiDP(_sampled(s)).epsilon(s.delta)
    if quick > LOOSE:
        return 0.0
    how = {"sampling_prob": s.rate, "pessimistic_estimate": False, "use_connect_dots": False}
    width = max(2e-5, quick / (5 * s.steps))  # which each step may lose
    one = pld.from_gaussian_mechanism(s.noise_multiplier, value_discretization_interval=width, **how)
    return max(0.0, float(one.self_compose(s.steps).get_epsilon_for_delta(s.delta)))


# ---- What is claimed -------------------------------------------------------------------------------------------------


def accountings(s: Setting) -> dict[str, Callable[[], float]]:
    """Ways in which people come to an epsilon, the noise multiplier taken at face value; some hold for no sampler."""
    once = math.sqrt(s.epochs) / s.noise_multiplier
    return {
        "Poisson sampling, by privacy loss distributions": lambda: tight(s),
        "Poisson sampling, by Renyi DP": lambda: RenyiDP(_sampled(s)).epsilon(s.delta),
        "Poisson sampling, by a central limit (Bu et al. 2020), which may fall below the truth": lambda: gdp_epsilon(
            s.rate * math.sqrt(s.steps * math.expm1(min(s.noise_multiplier**-2, 700.0))), s.delta
        ),
        "Poisson sampling with one step for each epoch": lambda: tight(replace(s, steps=s.epochs)),
        "one Gaussian release for each epoch, each example clipped alone": lambda: gdp_epsilon(once, s.delta),
        "one release for each epoch, by zCDP": lambda: zcdp_epsilon(once * once / 2, s.delta),
        "one Gaussian release for each step, without amplification": lambda: gdp_epsilon(
            math.sqrt(s.steps) / s.noise_multiplier, s.delta
        ),
        "batches of fixed size, as if one example replaced moved the sum by C and not by 2C": lambda: _fixed_size(
            replace(s, noise_multiplier=2 * s.noise_multiplier)
        ),
    }


def recognise(s: Setting) -> str | None:
    """By which of the `accountings` the claim comes about, the nearest one; None if by none of them."""
    if s.epsilon is None:
        return None
    gaps = {name: abs(epsilon() / s.epsilon - 1) for name, epsilon in accountings(s).items()}
    nearest = min(gaps, key=lambda name: gaps[name])
    return nearest if gaps[nearest] <= SAME else None


# ---- The verdict -----------------------------------------------------------------------------------------------------


class Status(StrEnum):
    HOLDS = "holds"
    TOO_SMALL = "too small"  # the truth is larger
    NOT_SHOWN = "not shown"  # no bound here goes so far down, nor is it known to be false
    NO_BOUND = "no bound"  # for these neighbours
    NO_CLAIM = "no claim"


class Checked(NamedTuple):
    """What was found about a setting."""

    setting: Setting
    status: Status
    holds: dict[Adjacency, Bound]
    at_least: float | None  # epsilon of zero-out neighbours, whatever the accountant; None where it does not matter
    recognised: str | None
    mend: str  # the one change; empty where there is nothing to mend
    notes: list[str]


def check(setting: Setting) -> Checked:
    """What holds for the sampler that was used, how the claim comes about, and the one change that would mend it."""
    holds = {neighbours: bound(setting, neighbours) for neighbours in Adjacency}
    own, least, claimed = holds[setting.neighbours].epsilon, None, setting.epsilon
    status = Status.NO_BOUND if own is None else Status.NO_CLAIM
    if claimed is not None and own is not None:
        status = Status.HOLDS if own <= claimed * (1 + ROUNDING) else Status.NOT_SHOWN
    if claimed is not None and (own is None or own > claimed):
        least = at_least(setting) or None
        status = Status.TOO_SMALL if least is not None and claimed < least else status
    return Checked(setting, status, holds, least, recognise(setting), _mend(setting, status, holds), _notes(setting))


def _mend(s: Setting, status: Status, holds: dict[Adjacency, Bound]) -> str:
    if status in (Status.HOLDS, Status.NO_CLAIM):
        return ""
    target = s.epsilon or math.inf
    changes = [
        ("clip each example alone, not the mean of a micro-batch", replace(s, micro_batch_size=1)),
        (
            f"draw the batches by Poisson sampling ({POISSON_THERE})",
            replace(s, sampler=Sampler.POISSON, adjacency=None),
        ),
    ]
    for words, changed in changes:
        found = bound(changed, changed.neighbours).epsilon if changed != s else None
        if found is not None and found <= target * (1 + SAME):  # a claim may have been rounded
            return f"{words}: epsilon {upward(found)} then holds ({_name(changed.neighbours)})"
    own = holds[s.neighbours].epsilon
    if own is None:
        other = {one: found.epsilon for one, found in holds.items() if found.epsilon is not None}
        if not other:
            return "draw the batches by Poisson sampling, and clip each example alone"
        best = min(other, key=lambda one: other[one] or 0.0)
        return f"claim it for other neighbours: epsilon {upward(other[best] or 0.0)} holds for {_name(best)}"
    z = _enough_noise(s) if s.epsilon else None
    more = "" if z is None else f", or raise the noise multiplier to {upward(z)}"
    return f"claim epsilon {upward(own)} ({_name(s.neighbours)}){more}"


def _enough_noise(s: Setting) -> float | None:
    """The noise multiplier with which the claim holds; None if it is beyond use."""

    def excess(log_z: float) -> float:
        found = bound(replace(s, noise_multiplier=math.exp(log_z)), s.neighbours).epsilon
        return 1.0 if found is None else math.log(max(found, 1e-300) / (s.epsilon or 1.0))

    low = math.log(s.noise_multiplier)
    high = low + 1.0
    while excess(high) > 0:
        low, high = high, high + 1.0
        if high > math.log(1e6):
            return None
    found = brentq(excess, low, high, xtol=MEND) if excess(low) > 0 else low
    while excess(found) > 0:
        found += MEND
    return math.exp(found)


def _notes(s: Setting) -> list[str]:
    batches, found = s.n / s.batch_size, []
    if abs(s.delta * batches - 1) < 0.02 and batches < s.n:
        found.append(f"delta {s.delta:.3g} is one over the number of batches, not of examples")
    if s.delta * s.n >= 1:
        found.append(f"delta should be well below 1/n = {1 / s.n:.2g}, such as n^-1.1 = {s.n**-1.1:.2g}")
    found.append("epsilons here are for real numbers: a library's float noise can be told apart by its last bits")
    if s.micro_batch_size > 1:
        found.append("a clipped mean of several examples moves by 2C, so the noise counts half")
    return found


def _name(neighbours: Adjacency) -> str:
    return {Adjacency.ZERO_OUT: "zero-out", Adjacency.REPLACE_ONE: "replace-one"}.get(neighbours, "add or remove one")
