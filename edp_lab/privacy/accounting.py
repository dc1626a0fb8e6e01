"""How private a run is: the Gaussian-DP closed form, and the paper's zCDP claim beside it.

With disjoint batches every utterance takes part in one Gaussian release per epoch, so T epochs with effective
noise multipliers z_0 ... z_{T-1} are exactly mu-GDP with mu^2 = sum_t 1/z_t^2 (Dong, Roth and Su 2022,
corollary 3.3), whatever the decay. Epsilons reach 1e24 for the paper's settings, so everything is computed in
logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral

from scipy.special import erfcx, ndtr, ndtri

from edp_lab.errors import UsageError
from edp_lab.privacy.mechanism import Adjacency, Alpha, Mechanism, NoGuarantee

ROUNDING = 2.0**-52  # relative spacing of floats
SMALLEST_NOISE = 2.0**-20  # of the clip norm: below, adding the noise to a float32 gradient may change nothing
SMALLEST_STD = 1e-30  # below, float32 noise underflows

SCOPE = (
    "accountant: Gaussian-DP, closed form; unit: one utterance (k utterances of one person cost k times mu); "
    "neighbours: zero-out (the utterance's slot stays, its gradient is 0); batches: disjoint, one shuffled pass per "
    "epoch; the adversary sees every aggregate and model but not the devices' messages; public by assumption: the "
    "number of utterances, the split, the label sets, the vocabulary, pretrained weights and vectors, the text behind "
    "a public alpha, the hyper-parameters; not covered: losses, gradient norms, validation scores, checksums and any "
    "choice made by looking at them; noise: float32, from a generator that is not cryptographic"
)


@dataclass(frozen=True)
class Guarantee:
    """What a run guarantees, and where that ends.

    Attributes:
        status: "holds", "none", or "void: seed published".
        scope: unit, adjacency, adversary and what is not covered.
        reason: why the status is what it is.
        epochs: how many were billed, a broken one as a whole.
        epsilon: the true epsilon at `delta`; None where there is no guarantee.
        epsilon_claimed: what the paper's accounting says for the same z_t.
        epsilon_if_alpha_public: the epsilon the run would have if alpha had come from public text.
    """

    status: str
    scope: str
    reason: str
    delta: float
    epochs: int
    epsilon: float | None
    epsilon_claimed: float | None
    epsilon_if_alpha_public: float | None


def judge(mechanism: Mechanism | None, epochs: int, delta: float, seed_published: bool = True) -> Guarantee:
    """Judge `epochs` epochs of training. `mechanism` None is training without noise.

    Raises:
        UsageError: delta outside (0, 1), or epochs that are no whole number from 0.
    """
    _check_delta(delta)
    _check_epochs(epochs)

    def verdict(status: str, reason: str, *epsilons: float | None) -> Guarantee:
        return Guarantee(status, SCOPE, reason, delta, epochs, *epsilons)

    if mechanism is None:
        return verdict("none", "trained without clipping and noise", None, None, None)
    if mechanism.z0 == 0:
        return verdict("none", "z0 is 0: no noise was added", None, None, None)
    claimed = _finite(claimed_epsilon(mechanism, epochs, delta))
    public = _finite(true_epsilon(mechanism, epochs, delta))
    if mechanism.alpha is Alpha.PRIVATE:
        reason = "alpha comes from private gradients and is released without account: no useful guarantee"
        return verdict("none", reason, None, claimed, public)
    if public is None:
        return verdict("none", "epsilon exceeds the largest float", None, claimed, None)
    last = max(epochs - 1, 0)
    if mechanism.noise_multiplier(last) < SMALLEST_NOISE or mechanism.noise_std(last) < SMALLEST_STD:
        return verdict("none", "float32 arithmetic swallows noise this small", None, claimed, None)
    if seed_published:
        reason = "epsilon assumes secret randomness, and this run's noise can be redrawn from its published seed"
        return verdict("void: seed published", reason, public, claimed, public)
    return verdict("holds", "secret randomness, and noise as described", public, claimed, public)


def true_epsilon(mechanism: Mechanism, epochs: int, delta: float, adjacency: Adjacency = Adjacency.ZERO_OUT) -> float:
    """The exact epsilon at `delta` after `epochs` epochs, taking alpha to be public; inf without noise.

    Raises:
        NoGuarantee: add/remove adjacency (see `Mechanism.sensitivity`).
        UsageError: as `judge`.
    """
    _check_epochs(epochs)
    return gdp_epsilon(gdp_mu(mechanism.noise_multiplier(t, adjacency) for t in range(epochs)), delta)


def claimed_epsilon(mechanism: Mechanism, epochs: int, delta: float) -> float:
    """What the paper states: zCDP under random reshuffling (Yu et al. 2019), z_t taken at face value.

    Raises:
        UsageError: as `judge`.
    """
    _check_epochs(epochs)
    return zcdp_epsilon(zcdp_rho(mechanism.noise_multiplier_setting(t) for t in range(epochs)), delta)


def gdp_mu(multipliers: Iterable[float]) -> float:
    """mu of a composition of Gaussian releases: sqrt(sum 1/z^2); inf if any z is 0 (or 1/z overflows)."""
    return math.hypot(*(1 / z if z > 1e-300 else math.inf for z in multipliers))


def gdp_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a mu-GDP mechanism: Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), rounded up.

    Raises:
        UsageError: mu or epsilon negative or NaN.
    """
    _check_loss("mu", mu)
    _check_loss("epsilon", epsilon)
    if mu == 0 or math.isinf(epsilon / mu):
        return 0.0
    if math.isinf(mu):
        return 1.0
    t = epsilon / mu - mu / 2
    return min(1.0, _delta_at(mu, t - ROUNDING * (epsilon / mu + mu / 2)))


def gdp_epsilon(mu: float, delta: float) -> float:
    """epsilon(delta) of a mu-GDP mechanism, rounded up; 0 where delta alone covers it, inf for mu = inf.

    Reference values (delta 1e-5): mu 1 -> 4.38, 2 -> 10.00, 4 -> 24.38.

    Raises:
        UsageError: mu negative or NaN, delta outside (0, 1).
    """
    _check_loss("mu", mu)
    _check_delta(delta)
    if math.isinf(mu):
        return math.inf
    if mu == 0 or _delta_at(mu, -mu / 2) <= delta:
        return 0.0
    # In t = eps/mu - mu/2 both terms share the factor exp(-t^2/2), so nothing overflows.
    low, high = -mu / 2, max(-float(ndtri(delta)), 0.0) + 1e-9
    while high - low > 1e-13 * max(1.0, abs(high)):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _delta_at(mu, middle) > delta else (low, middle)
    return mu * (high + mu / 2) * (1 + 1e-12)


def _delta_at(mu: float, t: float) -> float:
    """delta at eps = mu (t + mu/2): Phi(-t) - exp(-t^2/2) erfcx((t + mu)/sqrt 2) / 2, rounded up.

    For small mu the two terms cancel, so the bound on their rounding is added: never less than the truth.
    """
    root2 = math.sqrt(2)
    bell, beyond = math.exp(-t * t / 2), float(erfcx((t + mu) / root2))
    slack = (16 + min(t * t, 1500.0)) * ROUNDING * float(ndtr(-t))
    if t > 0:
        return bell * (float(erfcx(t / root2)) - beyond) / 2 + slack
    return float(ndtr(-t)) - bell * beyond / 2 + slack


def zcdp_rho(multipliers: Iterable[float]) -> float:
    """rho of one Gaussian release per epoch: sum 1/(2 z^2)."""
    mu = gdp_mu(multipliers)
    return mu * mu / 2


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The conversion the paper uses (Bun and Steinke 2016): eps = rho + 2 sqrt(rho ln(1/delta)).

    Raises:
        UsageError: rho negative or NaN, delta outside (0, 1).
    """
    _check_loss("rho", rho)
    _check_delta(delta)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise UsageError(f"delta is {delta}: it must lie between 0 and 1 (well below 1/n, such as n^-1.1)")


def _check_epochs(epochs: int) -> None:
    if not isinstance(epochs, Integral) or epochs < 0:
        raise UsageError(f"the number of epochs is {epochs}: it must be a whole number, 0 or more")


def _check_loss(name: str, value: float) -> None:
    if not value >= 0:
        raise UsageError(f"{name} is {value}: a privacy loss must be 0 or more")


__all__ = [
    "SCOPE",
    "Guarantee",
    "NoGuarantee",
    "claimed_epsilon",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "judge",
]
