"""The numbers the paper prints (arXiv 2107.14586): Tables 1 and 2, and the grids of section 4.2 behind them."""

from __future__ import annotations

from dataclasses import dataclass

from edp_lab.privacy import Decay

NUM_GPUS = 8
Z0_RANGE = (1e-6, 1.0)
TAUS: dict[Decay, tuple[float, ...]] = {
    Decay.LINEAR: (0.02, 0.05, 0.07, 0.1, 0.3, 0.5, 0.7, 0.9),
    Decay.EXPONENTIAL: (0.01, 0.02, 0.05, 0.08, 0.1, 0.2, 0.35, 0.5),
}
PUBLIC_CORPORA = ("ATIS", "SNIPS", "NLU-eval")


@dataclass(frozen=True)
class Change:
    """eDP-SGD against SGD under one decay: relative changes in percent, negative is better."""

    ser: float  # of the semantic error rate
    mia_auc: float  # of the membership attack's area under the ROC curve
    log10_epsilon: float  # by the paper's own accounting, at the row's delta


@dataclass(frozen=True)
class Table1Row:
    """One corpus and model. `sgd_ser` and `sgd_mia_auc` are percentages; None where the paper prints "-"."""

    model: str
    corpus: str
    sgd_ser: float | None
    sgd_mia_auc: float | None
    none: Change
    linear: Change
    exponential: Change

    @property
    def delta(self) -> float:
        """5e-4 for the public corpora, 5e-5 for the internal ones (caption)."""
        return 5e-4 if self.corpus in PUBLIC_CORPORA else 5e-5

    @property
    def changes(self) -> dict[Decay, Change]:
        return {Decay.NONE: self.none, Decay.LINEAR: self.linear, Decay.EXPONENTIAL: self.exponential}


@dataclass(frozen=True)
class Table2Row:
    """Training time: seconds per epoch of SGD, and how many times as long the other two take."""

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
