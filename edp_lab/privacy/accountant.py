"""One interface for all accountants: from a schedule of releases to epsilon, delta and what an attacker can reach.

A mechanism describes, an accountant judges. `GaussianDP` is exact where everyone takes part in every release, `RenyiDP`
bounds Poisson sampling at slider speed, `PrivacyLossDistribution` does so tightly, and the zCDP accountants reproduce
the paper.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from edp_lab.errors import UsageError
from edp_lab.privacy.noise_schedule import Schedule


class Accountant(ABC):
    """What a schedule of Gaussian releases guarantees against an adversary who sees all of them.

    Formal guarantee: for neighbours under the adjacency by whose sensitivity the schedule's noise was divided, and
    secret fresh noise, the composed releases are (epsilon(delta), delta)-DP for every delta, and (epsilon,
    delta(epsilon))-DP for every epsilon. Both are upper bounds; how tight they are depends on the accountant.
    """

    method: ClassVar[str]

    def __init__(self, schedule: Schedule) -> None:
        """Raises UsageError where this accountant cannot judge such a schedule."""
        self.schedule = schedule

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """The smallest epsilon it can vouch for at `delta`; 0 for an empty schedule, inf where there is no bound.

        Raises:
            UsageError: delta outside (0, 1).
        """

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """The smallest delta it can vouch for at `epsilon`; in [0, 1].

        Raises:
            UsageError: epsilon negative or NaN.
        """

    def best_tpr(self, fpr: np.ndarray) -> np.ndarray:
        """The most true positives any membership attack reaches at these false-positive rates: (F) -> (F).

        1 minus the trade-off curve f(fpr) of Dong, Roth and Su 2022, from (epsilon, delta) pairs (proposition 2.5):
        f(x) >= max(0, 1 - delta - e^epsilon x, e^-epsilon (1 - delta - x)) for each of them.
        """
        fpr = check_rates(fpr)
        best = np.ones_like(fpr)
        for epsilon, delta in self._curve():
            best = np.minimum(
                best, np.minimum(delta + math.exp(epsilon) * fpr, 1 - math.exp(-epsilon) * (1 - delta - fpr))
            )
        return np.clip(best, 0.0, 1.0)

    def best_auc(self) -> float:
        """The largest area under the ROC curve that any membership attack reaches; 0.5 is guessing.

        An upper sum over a grid, so never less than the area.
        """
        fpr = np.unique(np.concatenate([[0.0], np.logspace(-12, 0, 3000), np.linspace(0, 1, 3000)]))
        return min(1.0, float(np.sum(np.diff(fpr) * self.best_tpr(fpr)[1:])))

    def _curve(self) -> list[tuple[float, float]]:
        """Pairs (epsilon, delta) along the curve, from epsilon 0 to where delta is negligible."""
        last = min(self.epsilon(1e-12), 700.0)
        return [(float(e), self.delta(float(e))) for e in np.linspace(0.0, last, 300)]


def check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise UsageError(f"delta is {delta}: it must lie between 0 and 1 (well below 1/n, such as n^-1.1)")


def check_loss(name: str, value: float) -> None:
    if not value >= 0:
        raise UsageError(f"{name} is {value}: a privacy loss must be 0 or more")


def check_rates(rates: np.ndarray) -> np.ndarray:
    rates = np.asarray(rates, float)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise UsageError("a false-positive rate must lie between 0 and 1")
    return rates


def check_everyone(schedule: Schedule, accountant: str) -> None:
    if schedule.sampling_rate != 1:
        raise UsageError(f"{accountant} has no Poisson sampling: take Renyi DP or privacy loss distributions")
