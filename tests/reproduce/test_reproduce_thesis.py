"""The thesis made anew: every printed value has one beside it, its epsilon is the one that holds, and nothing is
trained twice.

What only concerns the tables is tested on networks that guess; the others are trained, shortly.
"""

import json
import math
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import i0e

from edp_lab.corpora.images import two_circles
from edp_lab.privacy.accountants import gdp_delta
from edp_lab.privacy.composition import best_composition
from edp_lab.reproduce.thesis.lab import PARTS, Lab, circle_sigma, point_epsilon, reproduce
from edp_lab.reproduce.thesis.thesis_tables import (
    MODELS,
    PRINTED,
    SCORES,
    TABLES,
    Cell,
    Network,
    Part,
    Scale,
    largest,
    vote_scores,
)
from edp_lab.three_phase.phases import Job
from edp_lab.three_phase.settings import ONE, PLAIN, THESIS_ACCURACY, UNDERSTUDY, score_labels
from edp_lab.three_phase.votes import Aggregator, Vote
from edp_lab.training.result_cache import NUMERICS

TINY = Scale("digits", 1, 2, 20, (100, 1000), 1, 1, 8, 8, instructors=2)
IMAGES = ("4.4", "4.5", "4.6", "4.7", "4.8")


def guess(job: Job, *_: object) -> Any:
    """In place of `Job.train`: a network that guesses, of which nobody can tell the labels in the training set."""
    settings = job.settings.resolved(len(job.x))
    rng = np.random.default_rng(settings.seed)
    epsilon = settings.epsilon * (100 if settings.eq33 else 0.999) if settings.private else None
    rows = [{"epoch": k, "loss": 2.0 / k, "test_loss": 2.5, "accuracy": 0.1, "seconds": 0.5} for k in (1, 2)]
    record = {**asdict(settings), "mechanism": {"z0": 1.0} if settings.private else None, "rows": rows}
    model = SimpleNamespace(predict=lambda x: rng.integers(0, settings.classes, len(x)))
    return SimpleNamespace(model=model, rows=rows, guarantee=SimpleNamespace(epsilon=epsilon), record=record)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Part]:
    """Of networks that guess."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "train", guess)
        return {part.printed.id: part for part in reproduce(Lab(tmp_path_factory.mktemp("thesis"), TINY))}


@pytest.fixture
def asked(tmp_path, monkeypatch) -> tuple[Lab, list[Job]]:
    """A lab with three instructors that trains nothing, and what it was asked to train."""
    lab, jobs = Lab(tmp_path, replace(TINY, instructors=3)), []
    monkeypatch.setattr(lab, "train", lambda found: jobs.extend(found) or [Network(found[0].test_y, [], None, {})])
    return lab, jobs


def cell(part: Part, row: str, column: str = "accuracy") -> Cell:
    return next(cell for cell in part.cells if (cell.row, cell.column) == (row, column))


def test_every_table_and_figure_is_made_and_every_printed_value_has_ours_beside_it(made):
    assert list(made) == list(PARTS) == list(PRINTED)
    for table in TABLES.values():
        for row, column, value, claimed in table.cells():
            if table.id in ("4.1", "4.2", "4.3") and int(row) not in TINY.sizes:
                continue
            ours = cell(made[table.id], row, column)
            assert ours.thesis == value
            assert (ours.ours is None) == (row == "Shokri et al.")
            assert ours.epsilon_claimed == (None if claimed is None else claimed.epsilon)
    for part in made.values():
        json.dumps(part.as_json(), allow_nan=False)


def test_claims_and_accuracies_are_those_of_the_printed_tables():
    claimed = {(table.id, one.row, one.column): one.claimed for table in TABLES.values() for one in table.cells()}
    assert claimed["4.8", "epsilon 5", "recall"] == (5, 1e-6)
    assert claimed["6.2", "DPSGD", "epsilon 2"] == (2, 1e-5)
    assert claimed["4.5", "VGG-Net", "accuracy"] == (2.5, 1e-5)
    assert claimed["4.4", "VGG-Net", "accuracy"] is claimed["6.1", "no privacy, SGD", "accuracy"] is None
    for row, kind in MODELS.items():
        own = {PLAIN: TABLES["4.4"].rows[row], ONE: TABLES["4.5"].rows[row]}
        own[UNDERSTUDY] = TABLES["4.7"].rows[f"DP-{row}"]
        assert {part: values[0] / 100 for part, values in own.items()} == THESIS_ACCURACY[kind]


def test_scores_are_those_of_the_confusion_that_is_drawn_and_lie_in_their_interval(made):
    for name in IMAGES:
        for row, confusion in made[name].drawing["confusion"].items():
            matrix = np.array(confusion)
            right, labels = np.diag(matrix), np.argwhere(matrix).repeat(matrix[matrix > 0], axis=0)
            assert matrix.sum() == (60 if name == "4.7" else 600)
            assert made[name].drawing["loss"][row] == {"loss": [2, 1], "test_loss": [2.5, 2.5]}
            scores, (first, *others) = score_labels(*labels.T, 10), [cell(made[name], row, one) for one in SCORES]
            assert first.ours == pytest.approx(100 * right.sum() / matrix.sum())
            assert first.low < first.ours < first.high
            ours = [100 * one for one in (scores.f_score, scores.recall, scores.precision)]
            assert [one.ours for one in others] == pytest.approx(ours)
            assert all(one.low is one.high is None for one in others)
            assert all(one.seconds > 0 and "adam, " in one.note for one in (first, *others))


def test_the_worst_epsilon_is_that_of_all_and_a_vote_that_of_the_majority():
    data = two_circles(1, 3, 0)
    right, wrong = (Network(labels, [], 1.0, {}) for labels in (data.test_labels, 1 - data.test_labels))
    assert largest([right, right._replace(epsilon=3.0)]) == 3
    assert largest([right, right._replace(epsilon=None)]) == math.inf
    assert vote_scores([data], [[right, right, wrong]]).accuracy == 1
    assert vote_scores([data, data], [[right], [wrong]]).accuracy == 0.5


def test_noise_on_images_leaves_labels_bare_and_costs_what_their_sensitivity_makes_of_it(made):
    for one in (*made["4.4"].cells, *made["4.5"].cells):
        assert (one.epsilon_holds, one.guarantee) == (None, "no guarantee")
    [image] = {one.epsilon_image for one in made["4.5"].cells}
    assert gdp_delta(8 / 0.6, image) == pytest.approx(1e-5)  # 64 pixels: 8
    not_printed = cell(made["4.5"], "VGG-Net, one network")
    assert (not_printed.thesis, not_printed.epsilon_claimed, not_printed.delta) == (None, None, 1e-5)


def test_private_rows_understudies_and_answers_hold_what_their_networks_labels_and_counts_spend(made):
    for row, claimed in TABLES["4.8"].claimed.items():
        assert cell(made["4.8"], row).epsilon_holds == pytest.approx(0.999 * claimed[0])
        assert cell(made["4.8"], row).delta == 1e-6
    [printed] = {one.row for one in made["6.2"].cells if "eq. 3.3" in one.row}
    for column, claimed in TABLES["6.2"].claimed.items():
        for row, factor in (("DPSGD", 0.999), ("DPAdam", 0.999), (printed, 100)):
            assert cell(made["6.2"], row, column).epsilon_holds == pytest.approx(factor * claimed[0])
    for one in made["4.6"].cells:
        assert (one.epsilon_holds, one.guarantee) == (pytest.approx(6.993), "void: seed published")
    labels = best_composition(0.2, 0.0, 540, 1e-5).epsilon
    for row in MODELS:
        assert 20 < cell(made["4.7"], f"{row}, no DPAdam").epsilon_holds <= labels
        assert cell(made["4.7"], f"DP-{row}").epsilon_holds == cell(made["4.6"], f"DP-{row}").epsilon_holds
    spent = [one.epsilon_holds for one in made["2.2"].cells]
    assert spent == pytest.approx([math.sqrt(0.5) * k for k in (1, 2, 3, 4, 5, 5, 5, 5)])
    assert made["2.2"].cells[5].ours == pytest.approx(np.mean([one.ours for one in made["2.2"].cells[:5]]))


def test_tables_on_circles_have_the_noise_that_their_epsilon_means_and_that_of_figure_4_2(made):
    for name, sigma in (("4.2", 7.5), ("4.3", 3.75)):
        own, other = (cell(made[name], "1000", column) for column in ("test accuracy", "at sigma 0.1"))
        assert own.note.startswith(f"sigma {sigma:g} on training and test points")
        assert own.epsilon_holds is other.epsilon_holds is None
        assert (own.epsilon_image, other.epsilon_image) == (point_epsilon(sigma), point_epsilon(0.1))
        assert other.ours == cell(made["figure 4.1"], "1000", "test accuracy").ours
    assert cell(made["4.1"], "1000", "test accuracy").note.startswith("no noise")
    assert (circle_sigma(0.2), circle_sigma(None)) == (pytest.approx(7.5), 0)
    assert (point_epsilon(2.0), point_epsilon(0.0)) == (pytest.approx(4.38, abs=0.005), None)  # mu = 1


def best_accuracy(sigma: float, factor: float) -> float:
    """1/2 + a quarter of the distance between the densities of the radius, which are Rice's."""

    def density(r: float, radius: float) -> float:
        return r / sigma**2 * math.exp(-((r - radius) ** 2) / (2 * sigma**2)) * float(i0e(r * radius / sigma**2))

    def gap(r: float) -> float:
        return abs(density(r, 1.0) - density(r, factor))

    return 0.5 + 0.25 * float(quad(gap, 0, 1 + 12 * sigma, points=[factor, 1.0], limit=2000)[0])


def test_perceptrons_come_close_to_the_best_classifier_and_not_beyond(tmp_path):
    lab = Lab(tmp_path, replace(TINY, circle_steps=400, circle_repeats=1))
    for sigma, worst in ((0.1, 0.03), (7.5, 0.02)):
        _, [found] = lab.perceptrons(2000, sigma)
        best = best_accuracy(sigma, 0.8)
        assert best - worst < found / 100 < best + 0.015


def test_instructors_share_the_training_set_and_nothing_else(asked):
    lab, jobs = asked
    lab.instructors("a", 0, 0.6, model="cnn")
    noised = lab.images(0, 0.6)
    assert sorted(map(bytes, np.concatenate([job.x for job in jobs]))) == sorted(map(bytes, noised.train))
    assert len({job.settings.seed for job in jobs}) == 3
    assert all(np.array_equal(job.test_x, noised.test) for job in jobs)
    assert abs(float((noised.train - lab.images(0).train).std()) - 0.6) < 0.01


def test_an_understudy_learns_the_labels_of_the_vote_and_is_scored_on_the_last_tenth(asked):
    lab, jobs = asked
    truth = lab.images(0).test_labels
    voters = [Network((truth + k) % 10, [], None, {}) for k in (0, 0, 1)]
    exact = lab.understudy("a", 0, 0.0, voters, Aggregator(Vote.HARD), model="cnn")
    assert (exact.right, exact.label_epsilon) == (1, math.inf)
    assert np.array_equal(jobs[0].y, truth[:540])
    assert np.array_equal(jobs[0].test_y, truth[540:])
    noisy = lab.understudy("a", 0, 0.0, voters, Aggregator.for_epsilon("laplace", 0.2, 1e-5, 3), model="cnn")
    assert 0 < noisy.right < 0.4
    assert noisy.label_epsilon == pytest.approx(31.73, abs=0.01)


def test_repeats_have_seeds_and_test_images_of_their_own(tmp_path, monkeypatch):
    lab, jobs = Lab(tmp_path, replace(TINY, repeats=2), seed=5), []
    monkeypatch.setattr(lab, "train", jobs.extend)
    lab.networks("a", model="cnn")
    first, second = jobs
    assert first.settings.seed != second.settings.seed
    assert not np.array_equal(first.test_x, second.test_x)
    assert np.array_equal(second.test_x, Lab(tmp_path, TINY, seed=6).images(0).test)


def test_whatever_a_network_depends_on_is_in_its_key(tmp_path, monkeypatch):
    trained: list[Job] = []
    monkeypatch.setattr(Job, "train", lambda job, say: trained.append(job) or guess(job))
    lab = Lab(tmp_path, TINY)
    data = lab.images(0)
    job = lab.job("a", 0, data, model="cnn")
    x, y = job.x.copy(), job.y.copy()
    x[3, 0, 2, 2] += 1e-6
    y[3] = (y[3] + 1) % 10
    settings = replace(job.settings, lr=0.5)
    others = [replace(job, x=x), replace(job, y=y), replace(job, settings=settings), replace(job, test_x=x[:600])]
    for count, one in enumerate([job, *others, lab.job("b", 0, data, model="cnn")], 1):
        lab.train([one])
        assert len(trained) == count
    Lab(tmp_path, replace(TINY, sizes=(1,))).train([replace(job, name="another name")])
    assert len(trained) == 6
    monkeypatch.setitem(NUMERICS, "classifier", 99)
    lab.train([job])
    assert len(trained) == 7
