"""Relative changes with their intervals, and which of several are beyond chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

CHANGES = ("ser_change", "auc_change", "loss_auc_change")  # of a cell of Table 1, against SGD


@dataclass(frozen=True)
class Change:
    """Mean relative change over seeds, in percent, with the half-width of its 95 % interval (Student's t)."""

    mean: float
    half_width: float
    seeds: int = 3

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float]) -> Change:
        """Change between two or more values on either side, paired by seed."""
        changes = [100 * (new / old - 1) for old, new in zip(before, after, strict=True)]
        reach = stdtrit(len(changes) - 1, 0.975) / math.sqrt(len(changes))
        return cls(float(np.mean(changes)), float(reach * np.std(changes, ddof=1)), len(changes))

    @classmethod
    def read(cls, cell: Mapping[str, Any], name: str) -> Change:
        """One of `CHANGES` of a cell of data/results/table1.json that has several seeds."""
        mean, high = cell[name]["mean"], cell[name]["high"]
        return cls(mean, high - mean, cell["seeds"])

    @property
    def falls(self) -> bool:
        """Whether all of the interval lies below 0; if several changes are tested, see `beyond_chance`."""
        return self.mean < -self.half_width

    @property
    def p(self) -> float:
        """Two-sided p-value of no change."""
        t = abs(self.mean) / max(self.half_width, 1e-12) * stdtrit(self.seeds - 1, 0.975)
        return float(2 * stdtr(self.seeds - 1, -t))


def beyond_chance(changes: Sequence[Change]) -> list[bool]:
    """Which changes are significant if the chance that any of these is a false alarm is to be 5 % (Holm 1979)."""
    significant = [False] * len(changes)
    for rank, place in enumerate(sorted(range(len(changes)), key=lambda k: changes[k].p)):
        if changes[place].p * (len(changes) - rank) > 0.05:
            break
        significant[place] = True
    return significant
