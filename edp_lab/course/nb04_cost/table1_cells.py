"""Table 1 of the paper for ``04_what_does_it_cost.ipynb``: what may lie behind one printed epsilon. No widgets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import brentq

from edp_lab.course.nb04_cost.compute import Array, check_whole
from edp_lab.errors import UsageError
from edp_lab.privacy import Decay, Mechanism, claimed_accountant, zcdp_epsilon
from edp_lab.reproduce.paper.printed import NUM_GPUS, TABLE_1, TAUS, Z0_RANGE, Table1Row
from edp_lab.reproduce.paper.table1_epsilon import (
    HALF_DIGIT,
    MAX_EPOCHS,
    ExplainedEpsilon,
    Setting,
    Table1Epsilon,
    explain_table1,
)


@dataclass(frozen=True, eq=False)
class Behind:
    """What may lie behind one printed epsilon of Table 1.

    Attributes:
        cell: the printed value, and what holds.
        epochs: T.
        taus: of the paper's grid; (0,) without decay.
        z0: (taus, 120), the z0 that gives the printed value exactly, for T = 1 ... 120.
        low, high: (taus), the z0 that give it within rounding at T, cut to the paper's [1e-6, 1]; NaN where none do.
        table: the search over all cells.
    """

    cell: ExplainedEpsilon
    epochs: int
    taus: tuple[float, ...]
    z0: Array
    low: Array
    high: Array
    table: Table1Epsilon

    @property
    def setting(self) -> Setting:
        """The first that gives the printed value with T epochs; with another T where none does."""
        fits = np.flatnonzero(~np.isnan(self.low))
        if not fits.size:
            return self.cell.closest
        first = int(fits[0])
        z0 = float(np.clip(self.z0[first, self.epochs - 1], self.low[first], self.high[first]))
        tau = None if self.cell.decay is Decay.NONE else self.taus[first]
        bounds = float(self.low[first]), float(self.high[first])
        return Setting(tau, self.epochs, z0, bounds, self.cell.log10_epsilon)

    @property
    def reachable(self) -> int:
        """How many of the 36 printed values T explains."""
        return self.table.epochs[self.epochs - 1].reachable


@cache
def table1() -> Table1Epsilon:
    """The search behind Table 1, made once."""
    return explain_table1()


def behind(model: str, corpus: str, decay: str, epochs: int) -> Behind:
    """The settings that a cell of Table 1 may stand for with T = `epochs`.

    Raises:
        UsageError: no such cell, epochs no whole number from 1 to 120.
    """
    check_whole("number of epochs T", epochs, 1, MAX_EPOCHS)
    cells = [c for c in table1().rows if (c.model, c.corpus, c.decay) == (model, corpus, decay)]
    if not cells:
        raise UsageError(f"Table 1 has no cell for {model}, {corpus} and {decay} decay")
    [cell] = cells
    rho = _rho_by_epochs(cell.decay)
    most, exact, least = (
        np.sqrt(rho / _rho_of(10 ** (cell.log10_epsilon + shift), cell.delta)) for shift in (-HALF_DIGIT, 0, HALF_DIGIT)
    )
    low, high = np.maximum(least[:, epochs - 1], Z0_RANGE[0]), np.minimum(most[:, epochs - 1], Z0_RANGE[1])
    fits = low <= high
    low, high = np.where(fits, low, np.nan), np.where(fits, high, np.nan)
    return Behind(cell, epochs, TAUS.get(cell.decay, (0.0,)), exact, low, high, table1())


@cache
def _rho_by_epochs(decay: Decay) -> Array:
    """(taus, 120), the paper's rho of 1 ... 120 epochs at z0 = 1; it falls as 1 / z0^2."""

    def rho(tau: float, epochs: int) -> float:
        mechanism = Mechanism.as_printed(1.0, 1.0, NUM_GPUS, 2, decay, tau)
        return claimed_accountant(mechanism, mechanism.bill(epochs)).rho

    return np.array([[rho(tau, t) for t in range(1, MAX_EPOCHS + 1)] for tau in TAUS.get(decay, (0.0,))])


def _rho_of(epsilon: float, delta: float) -> float:
    """The rho that the paper's conversion turns into epsilon."""

    def excess(log_rho: float) -> float:
        return math.log(zcdp_epsilon(math.exp(log_rho), delta) / epsilon)

    return math.exp(brentq(excess, -50.0, math.log(epsilon), xtol=1e-14))


def fallen_by_decay(table: tuple[Table1Row, ...] = TABLE_1) -> list[tuple[Table1Row, Decay]]:
    """The cells whose printed epsilon is below that of the same row without decay."""
    decays = (Decay.LINEAR, Decay.EXPONENTIAL)
    return [(r, d) for r in table for d in decays if r.changes[d].log10_epsilon < r.none.log10_epsilon]
