"""The printed tables agree with what other modules know of them, and what is beside them is what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from edp_lab.reproduce.thesis.thesis_foundations import summarise_counts
from edp_lab.reproduce.thesis.thesis_tables import (
    MODELS,
    SCORES,
    TABLES,
    Cell,
    Network,
    Part,
    Privacy,
    Rows,
    largest,
    vote_scores,
)
from edp_lab.three_phase.phases import ONE, PLAIN, THESIS_ACCURACY, UNDERSTUDY, score_labels

RECORD = {
    "method": "adam", "activation": "relu", "lr": 0.1, "batch_size": 4, "epochs": 2, "clip_norm": None,
    "weight_decay": 0.0, "mechanism": None,
}  # fmt: skip


def network(*predicted: int, epsilon: float | None = None) -> Network:
    rows = [{"epoch": k, "loss": 2.0 / k, "test_loss": 3.0, "accuracy": 0.5, "seconds": 1.5} for k in (1, 2)]
    return Network(np.array(predicted), rows, epsilon, RECORD)


def cell(part: Part | Rows, row: str, column: str) -> Cell:
    return next(cell for cell in part.cells if (cell.row, cell.column) == (row, column))


# The print


def test_accuracies_are_those_that_a_run_of_the_three_phases_shows():
    for row, kind in MODELS.items():
        own = {PLAIN: TABLES["4.4"].rows[row], ONE: TABLES["4.5"].rows[row]}
        own[UNDERSTUDY] = TABLES["4.7"].rows[f"DP-{row}"]
        assert {part: values[0] / 100 for part, values in own.items()} == THESIS_ACCURACY[kind]


def test_the_average_of_table_2_2_is_that_of_its_answers():
    rows = TABLES["2.2"].rows
    counts = summarise_counts([rows[str(k)][0] for k in range(1, 6)])
    assert counts.average == pytest.approx(rows["average"][0], abs=0.005)


def test_a_claim_is_that_of_the_row_of_the_column_or_of_the_table():
    assert TABLES["4.8"].privacy("epsilon 5", "recall") == Privacy(5, 1e-6)
    assert TABLES["6.2"].privacy("DPSGD", "epsilon 2") == Privacy(2, 1e-5)
    assert TABLES["4.5"].privacy("VGG-Net", "accuracy") == Privacy(2.5, 1e-5)
    assert TABLES["4.4"].privacy("VGG-Net", "accuracy") is None
    assert TABLES["6.1"].privacy("no privacy, SGD", "accuracy") is None


# Beside it


def test_scores_stand_under_the_thesis_headings_beside_its_values():
    truth, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    scores = score_labels(truth, predicted, 2)
    rows = Rows("4.4", seed=3)
    rows.add("VGG-Net", scores, [network(*predicted), network(*predicted)], "here")
    part = rows.part()
    ours = {name: cell(part, "VGG-Net", name).ours for name in SCORES}
    assert ours["accuracy"] == 75
    assert ours["recall"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert ours["precision"] == pytest.approx(100 * (1 + 1 / 2) / 2)
    assert ours["F-score"] == pytest.approx(100 * (4 / 5 + 2 / 3) / 2)
    assert [cell(part, "VGG-Net", name).thesis for name in SCORES] == [99, 99, 99, 99]
    first = cell(part, "VGG-Net", "accuracy")
    assert (first.low, first.high) == pytest.approx(tuple(100 * end for end in scores.interval))
    assert first.seconds == 6
    assert first.seed == 3
    assert first.note.startswith("here; adam, relu")
    assert part.drawing["confusion"]["VGG-Net"] == [[2, 1], [0, 1]]
    assert part.drawing["loss"]["VGG-Net"] == {"loss": [2, 1], "test_loss": [3, 3]}


def test_a_row_that_the_thesis_does_not_have_has_no_value_of_its():
    rows = Rows("4.5", seed=0)
    rows.add("VGG-Net, one network", score_labels(np.array([0]), np.array([0]), 2), [network(0)], "", image=145.0)
    first = cell(rows, "VGG-Net, one network", "accuracy")
    assert first.thesis is first.epsilon_claimed is first.epsilon_holds is None
    assert first.guarantee == "no guarantee"
    assert (first.epsilon_image, first.delta) == (145, 1e-5)


def test_an_epsilon_is_void_where_the_seed_is_published():
    rows = Rows("4.6", seed=0)
    rows.add("DP-VGG-Net", score_labels(np.array([0]), np.array([0]), 2), [network(0)], "", 6.9, 6.9)
    assert cell(rows, "DP-VGG-Net", "recall").as_json()["guarantee"] == "void: seed published"
    assert cell(rows, "DP-VGG-Net", "recall").epsilon_claimed == 7


def test_the_worst_epsilon_is_that_of_all_and_none_is_infinite():
    assert largest([network(0, epsilon=1.0), network(0, epsilon=3.0)]) == 3
    assert largest([network(0, epsilon=1.0), network(0)]) == float("inf")


def test_a_vote_is_that_of_the_majority():
    from edp_lab.corpora.images import two_circles

    data = two_circles(1, 3, 0)
    right, wrong = data.test_labels, 1 - data.test_labels
    assert vote_scores([data], [[network(*right), network(*right), network(*wrong)]]).accuracy == 1
    assert vote_scores([data, data], [[network(*right)], [network(*wrong)]]).accuracy == 0.5
