"""The paper's tables as typed in: a few cells, and the sum of every column."""

from __future__ import annotations

import pytest

from edp_lab.privacy import Decay
from edp_lab.reproduce.paper.printed import TABLE_1, TABLE_2, TAUS

CORPORA = ["ATIS", "SNIPS", "NLU-eval", "Health", "Comm.", "Video"]


def cell(table, model, corpus):
    (row,) = [row for row in table if (row.model, row.corpus) == (model, corpus)]
    return row


@pytest.mark.parametrize("table", [TABLE_1, TABLE_2])
def test_rows_stand_in_the_papers_order(table):
    assert [(row.model, row.corpus) for row in table] == [(m, c) for m in ("CLC", "BERT") for c in CORPORA]


def test_cells_of_table_1():
    assert cell(TABLE_1, "CLC", "ATIS").none.mia_auc == -8.26
    assert cell(TABLE_1, "CLC", "ATIS").exponential.log10_epsilon == 24.4
    assert cell(TABLE_1, "CLC", "SNIPS").exponential.mia_auc == 4.4
    assert cell(TABLE_1, "BERT", "SNIPS").none.ser == -21.5
    assert cell(TABLE_1, "BERT", "NLU-eval").linear.log10_epsilon == 1.7
    assert cell(TABLE_1, "BERT", "Video").linear.mia_auc == -10.9
    assert cell(TABLE_1, "BERT", "ATIS").sgd_mia_auc == 56.1
    assert cell(TABLE_1, "CLC", "Health").sgd_ser is None


def test_delta_follows_the_caption():
    assert {row.corpus: row.delta for row in TABLE_1} == dict.fromkeys(CORPORA[:3], 5e-4) | dict.fromkeys(
        CORPORA[3:], 5e-5
    )


@pytest.mark.parametrize(
    ("decay", "ser", "mia_auc", "log10_epsilon"),
    [
        ("none", -26.7, -57.86, 40.8),
        ("linear", -34.9, -72.3, 50.1),
        ("exponential", -22.0, -64.9, 131.8),
    ],
)
def test_column_sums_of_table_1(decay, ser, mia_auc, log10_epsilon):
    changes = [row.changes[Decay(decay)] for row in TABLE_1]
    assert sum(change.ser for change in changes) == pytest.approx(ser)
    assert sum(change.mia_auc for change in changes) == pytest.approx(mia_auc)
    assert sum(change.log10_epsilon for change in changes) == pytest.approx(log10_epsilon)


def test_sums_of_the_sgd_columns():
    assert sum(row.sgd_ser for row in TABLE_1 if row.sgd_ser is not None) == pytest.approx(88.2)
    assert sum(row.sgd_mia_auc for row in TABLE_1 if row.sgd_mia_auc is not None) == pytest.approx(388.4)
    assert [row.corpus for row in TABLE_1 if row.sgd_ser is None] == CORPORA[3:] * 2


def test_column_sums_and_a_cell_of_table_2():
    assert sum(row.sgd_seconds for row in TABLE_2) == pytest.approx(984.6)
    assert sum(row.dp_sgd_factor for row in TABLE_2) == pytest.approx(765.4)
    assert sum(row.edp_sgd_factor for row in TABLE_2) == pytest.approx(17.28)
    assert cell(TABLE_2, "BERT", "Video").edp_sgd_factor == max(row.edp_sgd_factor for row in TABLE_2) == 2.17


def test_grids_of_tau():
    assert {decay: (len(taus), round(sum(taus), 6)) for decay, taus in TAUS.items()} == {
        Decay.LINEAR: (8, 2.64),
        Decay.EXPONENTIAL: (8, 1.31),
    }
