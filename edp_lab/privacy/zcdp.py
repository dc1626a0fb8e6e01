"""Zero-concentrated differential privacy (zCDP): the epsilon that the paper *claims*, for comparison only.

It bounds the privacy loss of one utterance as Yu, Liu, Pu, Gursoy and Truex (2019, arXiv 1904.02200) do for random
reshuffling, with a run's noise multipliers z_t taken at face value. The bound is valid if z is the noise divided by
the *true* sensitivity, but the z printed in the paper is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edp_lab.errors import UsageError
from edp_lab.privacy.gdp import check_delta, check_everyone, check_loss
from edp_lab.privacy.mechanism import Mechanism
from edp_lab.privacy.schedule import Schedule, epochs_and_counts, releases_by_epoch


@dataclass(frozen=True)
class Claim:
    """Claimed epsilon and rho; both are None if there is no claim, and `reason` says why."""

    epsilon: float | None
    rho: float | None
    method: str
    reason: str


class ReshufflingZCDP:
    """zCDP accountant for one Gaussian release per epoch: rho = sum 1/(2 z^2), eps = rho + 2 sqrt(rho ln(1/delta)).

    This is a valid upper bound (Bun and Steinke 2016, propositions 1.3 and 1.6) if z is the noise divided by the *true*
    sensitivity. The paper's claim fails because it uses the printed z. Poisson sampling raises UsageError.
    """

    method = "zCDP, random reshuffling (Yu et al. 2019)"

    def __init__(self, schedule: Schedule) -> None:
        check_everyone(schedule, "zCDP under random reshuffling")
        self.schedule = schedule
        self.rho = schedule.mu * schedule.mu / 2  # inf if it overflows

    def epsilon(self, delta: float) -> float:
        return zcdp_epsilon(self.rho, delta)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Convert rho to epsilon as the paper does (Bun and Steinke 2016): eps = rho + 2 sqrt(rho ln(1/delta))."""
    check_loss("rho", rho)
    check_delta(delta)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def claimed_accountant(mechanism: Mechanism, releases: Mapping[int, int]) -> ReshufflingZCDP:
    """Return the paper's accountant, with z_t taken at face value.

    Raises:
        UsageError: Poisson sampling, which the paper does not use, or no noise.
    """
    if mechanism.sampling_rate is not None:
        raise UsageError("the paper's accounting is for disjoint shuffled batches, not for Poisson sampling")
    epochs, counts = epochs_and_counts(releases)
    return ReshufflingZCDP(Schedule(mechanism.z0 * mechanism.decay.factors(epochs, mechanism.tau), counts))


def claim(mechanism: Mechanism, releases: Mapping[int, int], delta: float) -> Claim:
    """Return the epsilon claimed by the paper's accounting, or the reason why there is none."""
    check_delta(delta)
    try:
        accountant = claimed_accountant(mechanism, releases)
    except UsageError as refused:
        return Claim(None, None, ReshufflingZCDP.method, str(refused))
    epsilon = accountant.epsilon(delta)
    if not math.isfinite(epsilon):
        return Claim(None, None, accountant.method, "epsilon exceeds the largest float")
    return Claim(epsilon, accountant.rho, accountant.method, "z_t taken at face value")


def claimed_epsilon(mechanism: Mechanism, epochs: int, delta: float) -> float:
    """Return the epsilon that the paper's accounting claims after `epochs` epochs (see `claimed_accountant`)."""
    return claimed_accountant(mechanism, releases_by_epoch(mechanism, epochs)).epsilon(delta)
