"""zero-Concentrated differential privacy: the epsilon that the paper *claims*, for comparison and never as a guarantee.

It bounds the privacy loss of one utterance when a run's noise multipliers z_t are taken at face value, as Yu, Liu, Pu,
Gursoy and Truex (2019, arXiv 1904.02200) do: for random reshuffling a valid bound if z is noise over the *true*
sensitivity, which the printed z is not; for random sampling a heuristic by its authors' words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edp_lab.errors import UsageError
from edp_lab.privacy.gdp import check_delta, check_everyone, check_loss
from edp_lab.privacy.mechanism import Mechanism
from edp_lab.privacy.schedule import Schedule, epochs_and_counts, releases_by_epoch


@dataclass(frozen=True)
class Claim:
    """The claimed epsilon and rho; None without one, and `reason` says why."""

    epsilon: float | None
    rho: float | None
    method: str
    reason: str


class ReshufflingZCDP:
    """One Gaussian release per epoch: rho = sum 1/(2 z^2), eps = rho + 2 sqrt(rho ln(1/delta)).

    A valid upper bound (Bun and Steinke 2016, propositions 1.3 and 1.6) if z is noise over *true* sensitivity. The
    paper puts the printed z in, which is where its claim fails. UsageError: Poisson sampling.
    """

    method = "zCDP, random reshuffling (Yu et al. 2019)"

    def __init__(self, schedule: Schedule) -> None:
        check_everyone(schedule, "zCDP under random reshuffling")
        self.schedule = schedule
        self.rho = schedule.mu * schedule.mu / 2  # inf if it overflows

    def epsilon(self, delta: float) -> float:
        return zcdp_epsilon(self.rho, delta)


class SamplingZCDP:
    """Yu's bound for random sampling at rate q: rho = sum q^2 / z^2. A heuristic by its authors' own words.

    Valid, if at all, for orders up to u = z^2 ln(1/(q z)) + 1 (the least over the releases), and only if z >= 1 and
    q < 1/(16 z): otherwise it raises UsageError. No formal guarantee: never shown as a guaranteed epsilon.
    """

    method = "zCDP, random sampling (Yu et al. 2019), heuristic"

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        z, q = schedule.noise_multipliers, schedule.sampling_rate
        beyond = z[(z < 1) | (q >= 1 / (16 * z))]
        if len(beyond):
            worst = float(beyond[0])
            raise UsageError(
                f"Yu's random-sampling bound asks for z >= 1 and q < 1/(16 z), here z is {worst:.4g} and q {q:.4g}: "
                "no claim can be made"
            )
        self.rho = float(np.sum(schedule.counts * (q / z) ** 2))
        self.order = float(np.min(z**2 * np.log(1 / (q * z)) + 1)) if len(z) else math.inf

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        if self.rho == 0:
            return 0.0
        if math.log(delta) < -self.rho * (self.order - 1) ** 2:
            return self.rho * self.order - math.log(delta) / (self.order - 1)
        return zcdp_epsilon(self.rho, delta)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The conversion the paper uses (Bun and Steinke 2016): eps = rho + 2 sqrt(rho ln(1/delta))."""
    check_loss("rho", rho)
    check_delta(delta)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def claimed_accountant(mechanism: Mechanism, releases: Mapping[int, int]) -> ReshufflingZCDP | SamplingZCDP:
    """The paper's own accounting, z_t taken at face value; reshuffling for disjoint batches, else random sampling.

    Raises:
        UsageError: random sampling outside the range of Yu's bound, or no noise.
    """
    epochs, counts = epochs_and_counts(releases)
    z = mechanism.z0 * mechanism.decay.factors(epochs, mechanism.tau)
    if mechanism.sampling_rate is None:
        return ReshufflingZCDP(Schedule(z, counts))
    return SamplingZCDP(Schedule(z, counts, mechanism.sampling_rate))


def claim(mechanism: Mechanism, releases: Mapping[int, int], delta: float) -> Claim:
    """The claim of `claimed_accountant`, or why there is none."""
    method = (ReshufflingZCDP if mechanism.sampling_rate is None else SamplingZCDP).method
    check_delta(delta)
    try:
        accountant = claimed_accountant(mechanism, releases)
    except UsageError as refused:
        return Claim(None, None, method, str(refused))
    epsilon = accountant.epsilon(delta)
    if not math.isfinite(epsilon):
        return Claim(None, None, method, "epsilon exceeds the largest float")
    return Claim(epsilon, accountant.rho, method, "z_t taken at face value")


def claimed_epsilon(mechanism: Mechanism, epochs: int, delta: float) -> float:
    """The epsilon that the paper's accounting claims after `epochs` epochs; UsageError as `claimed_accountant`."""
    return claimed_accountant(mechanism, releases_by_epoch(mechanism, epochs)).epsilon(delta)
