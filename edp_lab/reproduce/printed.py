"""The numbers printed in the paper (arXiv 2107.14586), and settings that explain the epsilons of its Table 1.

The paper prints log10 epsilon, but not z0 and the number of epochs T, and only a grid for tau. Its accounting (zCDP
under random reshuffling) is rho = S_T / (2 z0^2) with S_T = sum over t < T of 1/d(t)^2, and eps = rho + 2 sqrt(rho L)
with L = ln(1/delta). Epsilon decreases with z0, so for given tau and T an interval of z0 explains a printed value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edp_lab.privacy import Alpha, Decay, Mechanism, claimed_epsilon, guaranteed_epsilon, judge

# ---- Tables 1 and 2, and the grids of section 4.2 behind them --------------------------------------------------------

NUM_GPUS = 8
Z0_RANGE = (1e-6, 1.0)
TAUS: dict[Decay, tuple[float, ...]] = {
    Decay.LINEAR: (0.02, 0.05, 0.07, 0.1, 0.3, 0.5, 0.7, 0.9),
    Decay.EXPONENTIAL: (0.01, 0.02, 0.05, 0.08, 0.1, 0.2, 0.35, 0.5),
}
PUBLIC_CORPORA = ("ATIS", "SNIPS", "NLU-eval")


@dataclass(frozen=True)
class Change:
    """Relative changes from SGD to eDP-SGD under one decay, in percent; negative changes are better."""

    ser: float  # change of the semantic error rate
    mia_auc: float  # change of the membership attack's area under the ROC curve
    log10_epsilon: float  # computed by the paper's own accounting, at the row's delta


@dataclass(frozen=True)
class Table1Row:
    """Row for one corpus and model. `sgd_ser` and `sgd_mia_auc` are percentages; None if the paper prints "-"."""

    model: str
    corpus: str
    sgd_ser: float | None
    sgd_mia_auc: float | None
    none: Change
    linear: Change
    exponential: Change

    @property
    def delta(self) -> float:
        """Delta of the row: 5e-4 for the public corpora, 5e-5 for the internal corpora (table caption)."""
        return 5e-4 if self.corpus in PUBLIC_CORPORA else 5e-5

    @property
    def changes(self) -> dict[Decay, Change]:
        return {Decay.NONE: self.none, Decay.LINEAR: self.linear, Decay.EXPONENTIAL: self.exponential}


@dataclass(frozen=True)
class Table2Row:
    """Training times: seconds per epoch of SGD, and the times of the other two methods as multiples of SGD's."""

    model: str
    corpus: str
    sgd_seconds: float
    dp_sgd_factor: float
    edp_sgd_factor: float


TABLE_1 = (
    Table1Row(
        "CLC", "ATIS", 6.3, 67.5, Change(-12.9, -8.26, 4.4), Change(-10.6, -11.6, 5.8), Change(-11.9, -11.3, 24.4)
    ),
    Table1Row("CLC", "SNIPS", 13.0, 70.6, Change(-1.8, -2.5, 3.1), Change(-10.3, 1.8, 6.5), Change(-6.7, 4.4, 17.4)),
    Table1Row("CLC", "NLU-eval", 26.7, 65.3, Change(-0.7, -1.4, 2.0), Change(3.6, -7.6, 2.7), Change(1.4, -4.6, 22.1)),
    Table1Row("CLC", "Health", None, None, Change(-1.2, -3.1, 3.6), Change(-2.5, -2.3, 4.0), Change(-2.7, -1.5, 4.3)),
    Table1Row("CLC", "Comm.", None, None, Change(0.3, -3.2, 6.2), Change(0.3, -5.7, 7.5), Change(0.5, -5.4, 19.1)),
    Table1Row("CLC", "Video", None, None, Change(4.0, -2.4, 4.8), Change(4.4, -3.7, 5.9), Change(3.1, -6.0, 19.5)),
    Table1Row("BERT", "ATIS", 5.4, 56.1, Change(1.3, -2.5, 5.9), Change(-9.7, -5.2, 6.3), Change(-4.1, -5.8, 11.1)),
    Table1Row("BERT", "SNIPS", 12.7, 65.3, Change(-21.5, -8.3, 2.7), Change(-20.3, -9.2, 2.3), Change(-7.1, -8.3, 2.7)),
    Table1Row("BERT", "NLU-eval", 24.1, 63.6, Change(-2.4, -7.6, 2.2), Change(4.6, -11.6, 1.7), Change(0.3, -9.5, 2.3)),
    Table1Row("BERT", "Health", None, None, Change(3.2, -4.1, 1.9), Change(0.8, -2.9, 2.8), Change(1.2, -4.3, 2.9)),
    Table1Row("BERT", "Comm.", None, None, Change(0.3, -4.4, 2.1), Change(0.2, -3.4, 2.8), Change(0.7, -4.4, 3.7)),
    Table1Row("BERT", "Video", None, None, Change(4.7, -10.1, 1.9), Change(4.6, -10.9, 1.8), Change(3.3, -8.2, 2.3)),
)

TABLE_2 = (
    Table2Row("CLC", "ATIS", 9.5, 2.1, 1.04),
    Table2Row("CLC", "SNIPS", 9.8, 5.1, 1.01),
    Table2Row("CLC", "NLU-eval", 9.9, 7.3, 1.03),
    Table2Row("CLC", "Health", 21.8, 153.9, 1.14),
    Table2Row("CLC", "Comm.", 109.8, 143.5, 1.15),
    Table2Row("CLC", "Video", 83.7, 152.4, 1.2),
    Table2Row("BERT", "ATIS", 2.5, 13.0, 1.29),
    Table2Row("BERT", "SNIPS", 2.8, 22.8, 1.52),
    Table2Row("BERT", "NLU-eval", 3.5, 29.2, 1.62),
    Table2Row("BERT", "Health", 56.5, 82.0, 2.06),
    Table2Row("BERT", "Comm.", 398.8, 73.8, 2.05),
    Table2Row("BERT", "Video", 276.0, 80.3, 2.17),
)

# ---- Settings behind the epsilons of Table 1 -------------------------------------------------------------------------

MAX_EPOCHS = 120
HALF_DIGIT = 0.05  # a printed x means log10 epsilon in [x - 0.05, x + 0.05]
ROUND = np.log10([1.0, 2.0, 5.0, 10.0])
NOTE = "The settings fit the table, which proves nothing: the paper prints neither z0 nor the number of epochs T."


@dataclass(frozen=True)
class Setting:
    """A tau from the paper's grid and a number of epochs, with the z0 in [1e-6, 1] that fits the printed value best."""

    tau: float | None  # None without decay
    epochs: int
    z0: float  # yields the printed value exactly, or is the end of [1e-6, 1] that comes closest
    z0_range: tuple[float, float] | None  # interval in [1e-6, 1] that yields the value up to rounding; None if empty
    log10_epsilon: float  # claimed by the paper's accounting at `z0`


@dataclass(frozen=True)
class ExplainedEpsilon:
    """One printed value of log10 epsilon, and settings that may explain it."""

    corpus: str
    model: str
    decay: Decay
    log10_epsilon: float
    delta: float
    settings: tuple[Setting, ...]  # settings that explain the value, at the T that explain most values of the table
    # The setting with `z0` nearest, in ratio, to 1, 2 or 5 times a power of ten, because such values are common in
    # tuning. If no setting explains the value, this is the one at the same T with the closest `log10_epsilon`.
    closest: Setting
    # Guaranteed epsilon at `closest` and the same delta, if alpha were public with largest value 1. In Algorithm 1 as
    # printed, noise over sensitivity is z_t / (2 sqrt N), so mu = 2 sqrt(N) sqrt(2 rho). We assume zero-out or
    # replace-one neighbours, at least two utterances per device, and exact real numbers. With private alpha, as in the
    # paper, no epsilon is guaranteed.
    log10_guaranteed_if_alpha_public: float
    # Whether float32 can represent the noise of `closest` until the last epoch; otherwise that epsilon is theoretical.
    survives_float32: bool
    epochs_range: tuple[int, int] | None  # smallest and largest T up to 120 that explain the value; None if none does


@dataclass(frozen=True)
class Table1Epsilon:
    """Explanations of all values in the table."""

    rows: tuple[ExplainedEpsilon, ...]
    common_epochs: tuple[int, ...]  # values of T that explain all printed values together; may be empty
    note: str = NOTE


def explain_table1(table: Sequence[Table1Row] = TABLE_1) -> Table1Epsilon:
    """Find settings that explain each printed epsilon, for T in 1..120 with first epoch t = 0 (paper, sections 3, 4.2).

    The claimed epsilons take z at face value and guarantee nothing; `ExplainedEpsilon` says what the others assume.
    """
    cells = [(row, decay, search(row, decay)) for row in table for decay in row.changes]
    reachable = np.sum([(low <= high).any(axis=0) for _, _, (low, _, high) in cells], axis=0)  # (T)
    chosen = np.flatnonzero(reachable == reachable.max()) + 1
    return Table1Epsilon(
        tuple(_explain(row, decay, log_z0, chosen) for row, decay, log_z0 in cells),
        tuple(int(epochs) for epochs in chosen if reachable[epochs - 1] == len(cells)),
    )


def search(row: Table1Row, decay: Decay) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lowest, exact and highest log10 z0 for a printed value, each (taus, T).

    The interval, within [1e-6, 1], explains the value up to rounding; the exact z0 may be outside [1e-6, 1].
    """
    printed, (least, most) = row.changes[decay].log10_epsilon, np.log10(Z0_RANGE)
    factors = np.array([decay.factors(np.arange(MAX_EPOCHS), tau) for tau in TAUS.get(decay, (0.0,))])
    log_sums = np.logaddexp.accumulate(-2 * np.log(factors), axis=1)  # ln S_T; S_T reaches e^120
    low, exact, high = (
        (log_sums - math.log(2) - log_rho(value, row.delta)) / (2 * math.log(10))
        for value in (printed + HALF_DIGIT, printed, printed - HALF_DIGIT)
    )
    return np.maximum(low, least), exact, np.minimum(high, most)


def log_rho(log10_epsilon: float, delta: float) -> float:
    """ln rho from eps = rho + 2 sqrt(rho L): sqrt(rho) = sqrt(L + eps) - sqrt(L) = eps / (sqrt(L + eps) + sqrt(L))."""
    log_epsilon, log_l = log10_epsilon * math.log(10), math.log(math.log(1 / delta))
    return float(2 * (log_epsilon - np.logaddexp(np.logaddexp(log_l, log_epsilon) / 2, log_l / 2)))


def _explain(
    row: Table1Row, decay: Decay, log_z0: tuple[np.ndarray, np.ndarray, np.ndarray], epochs: np.ndarray
) -> ExplainedEpsilon:
    printed, tried = row.changes[decay].log10_epsilon, []
    for count in map(int, epochs):
        for k, tau in enumerate(TAUS.get(decay, (None,))):
            low, exact, high = (10.0 ** float(log[k, count - 1]) for log in log_z0)
            z0 = min(max(exact, Z0_RANGE[0]), Z0_RANGE[1])
            claimed = math.log10(claimed_epsilon(_mechanism(decay, tau, z0), count, row.delta))
            tried.append(Setting(tau, count, z0, (low, high) if low <= high else None, claimed))
    settings = [setting for setting in tried if setting.z0_range]
    if settings:  # the setting nearest to 1, 2 or 5 times a power of ten, by |log10 of the ratio|
        closest = min(settings, key=lambda setting: float(np.min(np.abs(ROUND - math.log10(setting.z0) % 1))))
    else:
        closest = min(tried, key=lambda setting: abs(setting.log10_epsilon - printed))
    mechanism = _mechanism(decay, closest.tau, closest.z0)
    fits = np.flatnonzero((log_z0[0] <= log_z0[2]).any(axis=0)) + 1
    return ExplainedEpsilon(
        row.corpus,
        row.model,
        decay,
        printed,
        row.delta,
        tuple(settings),
        closest,
        math.log10(guaranteed_epsilon(mechanism, closest.epochs, row.delta)),
        judge(mechanism, closest.epochs, row.delta).conditional_epsilon is not None,
        (int(fits[0]), int(fits[-1])) if len(fits) else None,
    )


def _mechanism(decay: Decay, tau: float | None, z0: float) -> Mechanism:
    """Algorithm 1 on the paper's machine. Epsilon depends neither on the clip norm nor on the device's batch size."""
    return Mechanism.as_printed(1.0, z0, NUM_GPUS, 2, decay, tau or 0.0, Alpha.PUBLIC)
