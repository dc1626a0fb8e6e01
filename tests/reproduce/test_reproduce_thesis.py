"""Retrained tables of the thesis: each printed row is shown with our row, each epsilon is guaranteed, and nothing is
trained twice.

Tests of the tables alone use networks that guess; other tests train networks briefly.
"""

import json
import math
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from edp_lab.jobs import NUMERICS
from edp_lab.privacy.gdp import gdp_delta
from edp_lab.reproduce.thesis import (
    MODELS,
    SCORES,
    TABLES,
    Lab,
    Network,
    Row,
    Scale,
    circle_sigma,
    largest,
    point_epsilon,
    reproduce,
)
from edp_lab.three_phase.classifier import score_labels
from edp_lab.three_phase.phases import Job
from edp_lab.three_phase.settings import ONE, PLAIN, THESIS_ACCURACY, UNDERSTUDY
from edp_lab.three_phase.votes import Aggregator, Vote

TINY = Scale("digits", 1, 2, 20, (100, 1000), 1, 1, 8, 8, instructors=2)
Rows = dict[tuple[str, str], Row]


def guess(job: Job, *_: object) -> Any:
    """Replacement for `Job.train`: a network that guesses."""
    settings = job.settings.resolved(len(job.x))
    rng = np.random.default_rng(settings.seed)
    epsilon = settings.epsilon * 0.999 if settings.private else None
    rows = [{"epoch": k, "loss": 2.0 / k, "test_loss": 2.5, "accuracy": 0.1, "seconds": 0.5} for k in (1, 2)]
    record = {**asdict(settings), "mechanism": {"z0": 1.0} if settings.private else None, "rows": rows}
    model = SimpleNamespace(predict=lambda x: rng.integers(0, settings.classes, len(x)))
    return SimpleNamespace(
        model=model, rows=rows, guarantee=SimpleNamespace(conditional_epsilon=epsilon), record=record
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Rows:
    """All rows, for networks that guess."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "train", guess)
        return {(row.table, row.name): row for row in reproduce(Lab(tmp_path_factory.mktemp("thesis"), TINY))}


@pytest.fixture
def asked(tmp_path, monkeypatch) -> tuple[Lab, list[Job]]:
    """A lab with three instructors that trains nothing, and a list of the requested jobs."""
    lab, jobs = Lab(tmp_path, replace(TINY, instructors=3)), []
    monkeypatch.setattr(lab, "train", lambda found: jobs.extend(found) or [Network(found[0].test_y, [], None, {})])
    return lab, jobs


def test_every_printed_row_has_ours_beside_it(made):
    for id_, table in TABLES.items():
        for name, values in table.rows.items():
            if name.endswith("points") and int(name.split()[0]) not in TINY.sizes:
                continue
            row = made[id_, name]
            assert tuple(row.ours) == table.columns
            assert row.printed == {column: v for column, v in zip(table.columns, values, strict=True) if v is not None}
            assert row.claimed_epsilon == table.claim(name)
    json.dumps([asdict(row) for row in made.values()], allow_nan=False)


def test_claims_and_accuracies_are_those_of_the_printed_tables():
    assert (TABLES["4.8"].claim("epsilon 5"), TABLES["6.2"].claim("DPSGD, epsilon 2")) == (5, 2)
    assert (TABLES["4.5"].claim("VGG-Net"), TABLES["4.4"].claim("VGG-Net")) == (2.5, None)
    assert TABLES["6.1"].claim("no privacy, SGD") is None
    for row, kind in MODELS.items():
        own = {PLAIN: TABLES["4.4"].rows[row], ONE: TABLES["4.5"].rows[row]}
        own[UNDERSTUDY] = TABLES["4.7"].rows[f"DP-{row}"]
        assert {part: values[0] / 100 for part, values in own.items()} == THESIS_ACCURACY[kind]


def test_scores_are_those_of_the_confusion_and_lie_in_their_interval(made):
    for (table, _), row in made.items():
        if row.confusion:
            matrix = np.array(row.confusion)
            labels = np.argwhere(matrix).repeat(matrix[matrix > 0], axis=0)
            assert matrix.sum() == (60 if table == "4.7" else 600)
            assert (row.loss, row.test_loss) == ([2, 1], [2.5, 2.5])
            scores = score_labels(*labels.T, 10)
            ours = [100 * one for one in (scores.accuracy, scores.f_score, scores.recall, scores.precision)]
            assert [*row.ours.values()] == pytest.approx(ours[: len(row.ours)])
            assert row.interval[0] < row.ours[SCORES[0]] < row.interval[1]
            assert row.seconds > 0


def test_the_worst_epsilon_is_that_of_all_and_a_vote_that_of_the_majority(asked):
    lab, _ = asked
    truth = lab.images(0).test_labels
    right, wrong = (Network(labels, [], 1.0, {}) for labels in (truth, (truth + 1) % 10))
    assert largest([right, right._replace(epsilon=3.0)]) == 3
    assert largest([right, right._replace(epsilon=None)]) == math.inf
    assert lab.scores([[right, right, wrong]]).accuracy == 1


def test_noise_on_images_leaves_labels_bare_and_costs_what_their_sensitivity_makes_of_it(made):
    noised = [row for (table, _), row in made.items() if table == "4.5"]
    assert {row.epsilon_if_seed_secret for row in noised} == {None}
    [image] = {row.epsilon_image for row in noised}
    assert gdp_delta(8 / 0.6, image) == pytest.approx(1e-5)  # 64 pixels: mu is multiplied by 8
    assert (made["4.4", "VGG-Net"].epsilon_if_seed_secret, made["4.4", "VGG-Net"].epsilon_image) == (None, None)
    assert {row.delta for row in noised} == {1e-5}


def test_private_rows_and_understudies_have_the_epsilon_of_their_networks_or_labels(made):
    for table in ("4.8", "6.1", "6.2"):
        for name, (claimed, delta) in TABLES[table].claimed.items():
            assert made[table, name].epsilon_if_seed_secret == pytest.approx(0.999 * claimed)
            assert made[table, name].delta == delta
    for name in MODELS:
        assert (
            made["4.7", f"DP-{name}"].epsilon_if_seed_secret
            == made["4.6", f"DP-{name}"].epsilon_if_seed_secret
            == pytest.approx(6.993)
        )


def test_tables_on_circles_have_the_noise_that_their_epsilon_means(made):
    for table, sigma in (("4.2", 7.5), ("4.3", 3.75)):
        row = made[table, "1000 points"]
        assert row.note.startswith(f"sigma {sigma:g} on training and test points")
        assert (row.epsilon_if_seed_secret, row.epsilon_image) == (None, point_epsilon(sigma))
    assert made["4.1", "1000 points"].note.startswith("no noise")
    assert (circle_sigma(0.2), circle_sigma(None)) == (pytest.approx(7.5), 0)
    assert (point_epsilon(2.0), point_epsilon(0.0)) == (pytest.approx(4.38, abs=0.005), None)  # for mu = 1


def best_accuracy(sigma: float, inner: float) -> float:
    """The best accuracy for two circles of radius 1 and `inner` with this noise, based on distances from the centre."""
    r = np.linspace(0, 2 + 8 * sigma, 20_001)
    one, two = (stats.rice(radius / sigma, scale=sigma).pdf(r) for radius in (1, inner))
    return float(np.trapezoid(np.maximum(one, two), r)) / 2


def test_perceptrons_come_close_to_the_best_classifier_and_not_beyond(tmp_path):
    lab = Lab(tmp_path, replace(TINY, circle_steps=400, circle_repeats=1))
    for sigma, worst in ((0.1, 0.03), (7.5, 0.02)):
        _, [found] = lab.perceptrons(2000, sigma)
        best = best_accuracy(sigma, 0.8)
        assert best - worst < found / 100 < best + 0.015


def test_instructors_share_the_training_set_and_nothing_else(asked):
    lab, jobs = asked
    lab.instructors("a", 0, model="cnn")
    noised = lab.images(0, 0.6)
    assert sorted(map(bytes, np.concatenate([job.x for job in jobs]))) == sorted(map(bytes, noised.train))
    assert len({job.settings.seed for job in jobs}) == 3
    assert all(np.array_equal(job.test_x, noised.test) for job in jobs)
    assert abs(float((noised.train - lab.images(0).train).std()) - 0.6) < 0.01


def test_an_understudy_learns_the_labels_of_the_vote_and_is_scored_on_the_last_tenth(asked):
    lab, jobs = asked
    truth = lab.images(0).test_labels
    voters = [Network((truth + k) % 10, [], None, {}) for k in (0, 0, 1)]
    assert lab.understudy("a", 0, voters, Aggregator(Vote.HARD), model="cnn")[1] == 1
    assert np.array_equal(jobs[0].y, truth[:540])
    assert np.array_equal(jobs[0].test_y, truth[540:])
    assert 0 < lab.understudy("a", 0, voters, Aggregator.for_epsilon("laplace", 0.2, 1e-5), model="cnn")[1] < 0.4


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
    monkeypatch.setattr(Job, "train", lambda job: trained.append(job) or guess(job))
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
