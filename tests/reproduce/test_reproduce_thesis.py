"""The thesis made anew: every printed value has one beside it, its epsilon is the one that holds, and nothing is
trained twice, whatever happens in between.

What only concerns the tables is tested on networks that guess; the others are trained, shortly.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edp_lab.errors import UsageError
from edp_lab.privacy import Mechanism, judge
from edp_lab.privacy.accountants import gdp_delta
from edp_lab.privacy.composition import best_composition
from edp_lab.reproduce.thesis.claims_noise import _best_accuracy
from edp_lab.reproduce.thesis.lab import PARTS, Lab, circle_sigma, point_epsilon, reproduce
from edp_lab.reproduce.thesis.thesis_tables import FIGURES, SCORES, TABLES, Cell, Network, Part, Scale
from edp_lab.three_phase.classifier import eq33_sigma
from edp_lab.three_phase.pate import Aggregator, Vote
from edp_lab.three_phase.phases import Job
from edp_lab.training.result_cache import NUMERICS

TINY = Scale("digits", 1, 2, 20, (100, 1000), 1, 1, 8, 8, instructors=2)
INTERRUPTED = """
import sys
from pathlib import Path
from edp_lab.reproduce.thesis.lab import Lab, reproduce
from edp_lab.reproduce.thesis.thesis_tables import Scale
tell = lambda line, kept: print("done", flush=True) if kept else None
list(reproduce(Lab(Path(sys.argv[1]), Scale(*eval(sys.argv[2])), 0, tell), ["4.5"]))
"""


def guess(job: Job, *_: object) -> Any:
    """In place of `Job.train`: a network that guesses, of which nobody can tell the labels in the training set."""
    settings = job.settings.resolved(len(job.x))
    private = settings.private
    rng = np.random.default_rng(settings.seed)
    epsilon = settings.epsilon * (100 if settings.eq33 else 0.999) if private else None
    rows = [{"epoch": 1, "loss": 2.0, "test_loss": 2.5, "accuracy": 0.1, "seconds": 0.5}]
    record = {**asdict(settings), "mechanism": {"z0": 1.0} if private else None, "rows": rows}
    model = SimpleNamespace(predict=lambda x: rng.integers(0, settings.classes, len(x)))
    return SimpleNamespace(model=model, rows=rows, guarantee=SimpleNamespace(epsilon=epsilon), record=record)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("thesis")


@pytest.fixture(scope="module")
def made(folder) -> dict[str, Part]:
    """Of networks that guess."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "train", guess)
        return {part.id: part for part in reproduce(Lab(folder, TINY))}


def cells(part: Part, row: str, column: str = "accuracy") -> Cell:
    return next(cell for cell in part.cells if (cell.row, cell.column) == (row, column))


def no_training(*_: object) -> None:
    raise AssertionError("a network is trained")


# The tables


def test_every_table_and_figure_is_made_and_every_printed_value_has_ours_beside_it(made):
    assert list(made) == list(PARTS) == [*TABLES, *(f"figure {number}" for number in FIGURES)]
    for table in TABLES.values():
        for row, column, value, claimed in table.cells():
            if table.id in ("4.1", "4.2", "4.3") and int(row) not in TINY.sizes:
                continue
            cell = cells(made[table.id], row, column)
            assert cell.thesis == value
            assert (cell.ours is None) == (row == "Shokri et al.")
            assert cell.epsilon_claimed == (None if claimed is None else claimed.epsilon)


def test_all_of_it_is_json(made):
    for part in made.values():
        json.dumps([part.drawing, [cell.as_json() for cell in part.cells]], allow_nan=False)


def test_an_accuracy_lies_in_its_interval_and_every_network_took_time(made):
    for cell in (cell for name in ("4.4", "4.5", "4.6", "4.7", "4.8") for cell in made[name].cells):
        assert cell.seconds > 0
        if cell.column == "accuracy":
            assert cell.low < cell.ours < cell.high
        else:
            assert cell.low is cell.high is None


def test_scores_are_those_of_the_confusion_that_is_drawn(made):
    for name in ("4.4", "4.5", "4.6", "4.7", "4.8"):
        for row, confusion in made[name].drawing["confusion"].items():
            matrix = np.array(confusion)
            assert cells(made[name], row).ours == pytest.approx(100 * np.trace(matrix) / matrix.sum())
            assert matrix.sum() == (60 if name == "4.7" else 600)
            assert cells(made[name], row, SCORES[2]).ours == pytest.approx(
                100 * np.mean(np.diag(matrix) / np.maximum(matrix.sum(axis=1), 1))
            )


# The epsilons


def test_noise_on_images_leaves_labels_bare_and_costs_what_their_sensitivity_makes_of_it(made):
    for name in ("4.4", "4.5"):
        assert all(cell.epsilon_holds is None for cell in made[name].cells)
    images = {cell.epsilon_image for cell in made["4.5"].cells}
    assert len(images) == 1
    assert gdp_delta(8 / 0.6, images.pop()) == pytest.approx(1e-5)  # 64 pixels: 8
    assert cells(made["4.5"], "VGG-Net").epsilon_claimed == 2.5


def test_private_rows_hold_what_their_networks_do_at_the_delta_of_their_table(made):
    for row, claimed in TABLES["4.8"].claimed.items():
        assert cells(made["4.8"], row).epsilon_holds == pytest.approx(0.999 * claimed[0])
        assert cells(made["4.8"], row).delta == 1e-6
    [printed] = {cell.row for cell in made["6.2"].cells if "eq. 3.3" in cell.row}
    for column, claimed in TABLES["6.2"].claimed.items():
        for row, factor in (("DPSGD", 0.999), ("DPAdam", 0.999), (printed, 100)):
            assert cells(made["6.2"], row, column).epsilon_holds == pytest.approx(factor * claimed[0])
    assert all(cell.epsilon_holds == pytest.approx(6.993) for cell in made["4.6"].cells)


def test_a_private_network_holds_what_is_asked_and_the_noise_of_equation_3_3_something_else(tmp_path):
    lab = Lab(tmp_path, TINY)
    [sound] = lab.private("cnn", "dp-adam", 2.0)
    [printed] = lab.private("cnn", "dp-adam", 2.0, eq33=True, clip_norm=4.0)
    assert 1.96 < sound.epsilon <= 2
    mechanism = Mechanism.sound(4.0, eq33_sigma(2, 1e-5) / 4, 1, 1, sampling_rate=299 / 1197)
    assert printed.epsilon == pytest.approx(judge(mechanism, 8, 1e-5, tight=True).epsilon)
    assert printed.epsilon > 20


def test_an_understudy_costs_its_labels_or_its_instructors_whichever_is_less(made):
    labels = best_composition(0.2, 0.0, 540, 1e-5).epsilon
    for row in ("Simple CNN", "Alex-Net", "VGG-Net"):
        bare = cells(made["4.7"], f"{row}, no DPAdam").epsilon_holds
        assert 7 < 20 < bare <= labels
        assert cells(made["4.7"], f"DP-{row}").epsilon_holds == cells(made["4.6"], f"DP-{row}").epsilon_holds
        assert cells(made["4.7"], f"DP-{row}").epsilon_claimed == 0.2


def test_each_answer_about_bad_ratings_adds_to_what_is_spent(made):
    spent = [cell.epsilon_holds for cell in made["2.2"].cells]
    assert spent == pytest.approx([math.sqrt(0.5) * k for k in (1, 2, 3, 4, 5, 5, 5, 5)])
    answers = [cell.ours for cell in made["2.2"].cells[:5]]
    assert made["2.2"].cells[5].ours == pytest.approx(np.mean(answers))


# Circles


def test_the_pair_of_the_thesis_makes_75_of_epsilon_02_and_a_point_of_the_disc_has_sensitivity_2():
    assert circle_sigma(0.2) == pytest.approx(7.5)
    assert circle_sigma(None) == 0
    assert point_epsilon(2.0) == pytest.approx(4.38, abs=0.005)  # mu = 1
    assert point_epsilon(0.0) is None


def test_tables_on_circles_have_the_noise_that_their_epsilon_means_and_that_of_figure_4_2(made):
    for name, sigma in (("4.2", 7.5), ("4.3", 3.75)):
        own, other = (cells(made[name], "1000", column) for column in ("test accuracy", "at sigma 0.1"))
        assert own.note.startswith(f"sigma {sigma:g} on training and test points")
        assert own.epsilon_image == point_epsilon(sigma)
        assert own.epsilon_holds is other.epsilon_holds is None
        assert other.epsilon_image == point_epsilon(0.1)
        assert other.ours == cells(made["figure 4.1"], "1000", "test accuracy").ours
    assert cells(made["4.1"], "1000", "test accuracy").note.startswith("no noise")


def test_perceptrons_come_close_to_the_best_classifier_and_not_beyond(tmp_path):
    lab = Lab(tmp_path, replace(TINY, circle_steps=400, circle_repeats=1))
    for sigma, worst in ((0.1, 0.03), (7.5, 0.02)):
        [found] = lab.perceptrons(2000, sigma).accuracies
        best = _best_accuracy(sigma, 0.8)
        assert best - worst < found / 100 < best + 0.015


# Phases


def test_instructors_share_the_training_set_and_nothing_else(tmp_path, monkeypatch):
    seen = []
    lab = Lab(tmp_path, replace(TINY, instructors=3))
    monkeypatch.setattr(lab, "train", lambda jobs: seen.extend(jobs))
    lab.instructors("a", 0, 0.6, model="cnn")
    noised = lab.images(0, 0.6)
    rows = np.concatenate([job.x.reshape(len(job.x), -1) for job in seen])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, noised.train.reshape(len(rows), -1).tolist()))
    assert len({job.settings.seed for job in seen}) == 3
    assert all(np.array_equal(job.test_x, noised.test) for job in seen)
    assert abs(float((noised.train - lab.images(0).train).std()) - 0.6) < 0.01


def test_an_understudy_learns_the_labels_of_the_vote_and_is_scored_on_the_last_tenth(tmp_path, monkeypatch):
    lab, jobs = Lab(tmp_path, TINY), []
    truth = lab.images(0).test_labels
    voters = [Network((truth + k) % 10, [], None, {}) for k in (0, 0, 1)]
    monkeypatch.setattr(lab, "train", lambda found: jobs.extend(found) or [voters[0]])
    exact = lab.understudy("a", 0, 0.0, voters, Aggregator(Vote.HARD), model="cnn")
    assert (exact.right, exact.label_epsilon) == (1, math.inf)
    assert np.array_equal(jobs[0].y, truth[:540])
    assert np.array_equal(jobs[0].test_y, truth[540:])
    noisy = lab.understudy("a", 0, 0.0, voters, Aggregator.for_epsilon("laplace", 0.2, 1e-5, 3), model="cnn")
    assert 0 < noisy.right < 0.4
    assert noisy.label_epsilon == pytest.approx(31.73, abs=0.01)


def test_repeats_have_seeds_and_test_images_of_their_own(tmp_path, monkeypatch):
    lab, jobs = Lab(tmp_path, replace(TINY, repeats=2), seed=5), []
    monkeypatch.setattr(lab, "train", lambda found: jobs.extend(found))
    lab.networks("a", model="cnn")
    first, second = jobs
    assert first.settings.seed != second.settings.seed
    assert not np.array_equal(first.test_x, second.test_x)
    assert np.array_equal(second.test_x, Lab(tmp_path, TINY, seed=6).images(0).test)


# Once


def test_what_is_finished_is_not_trained_again(made, folder, monkeypatch):
    monkeypatch.setattr(Job, "train", no_training)
    for part in reproduce(Lab(folder, TINY)):
        assert part == made[part.id]
    with pytest.raises(AssertionError, match="is trained"):
        list(reproduce(Lab(folder, TINY, seed=1), ["4.4"]))


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


def test_a_run_that_was_killed_goes_on_where_it_stopped_and_makes_the_same_table(tmp_path, monkeypatch):
    settings = repr(tuple(vars(TINY).values()))
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "killed"), settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(3):
            assert process.stdout.readline() == "done\n"
        process.send_signal(signal.SIGKILL)
    kept = {entry.name: entry.stat().st_mtime_ns for entry in (tmp_path / "killed" / "cells").glob("*.json")}
    assert 2 <= len(kept) < 9
    trained, train = [], Job.train
    monkeypatch.setattr(Job, "train", lambda job, say: trained.append(job) or train(job, say))
    [resumed] = reproduce(Lab(tmp_path / "killed", TINY), ["4.5"])
    assert len(trained) == 9 - len(kept)
    assert all((tmp_path / "killed" / "cells" / name).stat().st_mtime_ns == time for name, time in kept.items())
    [whole] = reproduce(Lab(tmp_path / "whole", TINY), ["4.5"])
    assert resumed.drawing == whole.drawing
    assert [replace(cell, seconds=0.0) for cell in resumed.cells] == [
        replace(cell, seconds=0.0) for cell in whole.cells
    ]


# What is refused


def test_unknown_names_are_refused_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(Job, "train", no_training)
    with pytest.raises(UsageError, match=r"unknown table or figure '9\.9': choose 2\.2, .*figure 4\.2"):
        reproduce(Lab(tmp_path, TINY), ["4.4", "9.9"])


@pytest.mark.parametrize(
    ("changes", "seed", "said"),
    [
        ({}, -1, "seed is -1"),
        ({"data": "circles"}, 0, "unknown image data 'circles': choose digits or mnist"),
        ({"repeats": 0}, 0, "the number of repeats is 0"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, changes, seed, said):
    with pytest.raises(UsageError, match=said):
        Lab(tmp_path, replace(TINY, **changes), seed)


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another --out"):
        Lab(tmp_path / "file", TINY)
