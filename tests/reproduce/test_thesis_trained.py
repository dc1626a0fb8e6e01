"""Claims on which trained networks have a say: each verdict follows from what was measured and turns with it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from edp_lab.reproduce.evidence import Evidence, Verdict
from edp_lab.reproduce.thesis import thesis_trained as claims
from edp_lab.reproduce.thesis.lab import Lab
from edp_lab.reproduce.thesis.thesis_tables import Network, Scale

HOLDS, CONDITIONAL, FAILS, UNTESTABLE = Verdict

SMALL = Scale("digits", 1, 1, 50, (100,), epochs=20, part_epochs=20, private_epochs=4, private_part_epochs=4)
RATES = {"dp-adam": (1e-4, 5e-2), "dp-sgd": (1e-3, 8.0)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Evidence]:
    lab = Lab(tmp_path_factory.mktemp("trained"), SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "TUNED", RATES)
        convergence = claims.t25_convergence(lab, epsilon=8.0, repeats=2)
    return {evidence.id: evidence for evidence in (convergence, claims.t28_understudy(lab))}


NOTHING_LOST = {"lost": 0.5}
WITHIN_CHANCE = {"lost": 5.0, "half_width": 6.0}
FASTER = {"saved": 3.0, "saved_half_width": 1.0, "gain": 0.0, "gain_half_width": 1.0}
FASTER_BUT_WORSE = {**FASTER, "gain": -5.0}
BETTER_ONLY = {"saved": 0.0, "saved_half_width": 1.0, "gain": 3.0, "gain_half_width": 1.0}
BETTER_BUT_SLOWER = {**BETTER_ONLY, "saved": -3.0}
NO_DIFFERENCE = {"saved": 0.5, "saved_half_width": 1.0, "gain": 0.5, "gain_half_width": 1.0}


@pytest.mark.parametrize(
    ("row", "counter_evidence", "verdict"),
    [
        ("T28", {}, FAILS),
        ("T28", NOTHING_LOST, HOLDS),
        ("T28", WITHIN_CHANCE, CONDITIONAL),
        ("T25", FASTER, HOLDS),
        ("T25", FASTER_BUT_WORSE, CONDITIONAL),
        ("T25", BETTER_ONLY, CONDITIONAL),
        ("T25", BETTER_BUT_SLOWER, FAILS),
        ("T25", NO_DIFFERENCE, FAILS),
    ],
)
def test_the_verdict_follows_from_the_networks_and_turns_with_them(row, counter_evidence, verdict, trained):
    evidence = trained[row]
    assert set(counter_evidence) <= set(evidence.measured)
    assert replace(evidence, measured={**evidence.measured, **counter_evidence}).verdict == verdict


def test_evidence_reads_as_sentences_and_travels_as_json(trained):
    for evidence in trained.values():
        record = json.loads(json.dumps(evidence.record()))
        for sentence in (record["said"], record["claim"]):
            assert sentence.endswith(".")
            assert "{" not in sentence
            assert "nan" not in sentence


def test_noise_takes_labels_and_with_them_accuracy(trained):
    m = trained["T28"].measured
    assert m["labels"] == 540
    assert m["right"] > 0.6
    assert m["right_noised"] < 0.4
    assert m["lost"] > m["half_width"] > 0


def test_each_method_is_tuned_for_itself_before_it_is_compared(trained):
    """Of the two rates given, one hardly moves the weights."""
    m = trained["T25"].measured
    assert (m["adam_rate"], m["sgd_rate"]) == (5e-2, 8.0)
    assert m["adam_accuracy"] > 40


def test_rates_are_compared_on_images_that_are_not_tested_on(tmp_path, monkeypatch):
    lab, jobs = Lab(tmp_path, SMALL), []
    monkeypatch.setattr(
        lab, "train", lambda found: jobs.extend(found) or [Network(job.test_y, [], None, {}) for job in found]
    )
    claims._best_rate(lab, "dp-adam", 3.0)
    test, held = (set(map(bytes, images)) for images in (lab.images(0).test, jobs[0].test_x))
    trained_on = set(map(bytes, jobs[0].x))
    assert len(held) > 200
    assert not held & test
    assert not held & trained_on


def test_who_is_first_is_measured_at_nine_tenths_of_the_lower_end():
    slow, fast = [0.1, 0.4, 0.7, 0.8], [0.1, 0.75, 0.9, 0.9]
    assert claims._epochs_to(slow, fast) == (4, 2)
    assert claims._epochs_to(fast, slow) == (2, 4)
    assert claims._epochs_to([0.5], [0.5]) == (1, 1)


def test_what_is_lost_is_counted_image_by_image():
    truth = np.array([0, 1, 2, 3])
    right, wrong = (Network(np.array(labels), [], None, {}) for labels in ([0, 1, 2, 3], [0, 1, 2, 0]))
    assert claims._lost(truth, [right], [right]) == (0, 0)
    lost, half = claims._lost(truth, [right], [wrong])
    assert lost == 25
    assert half == pytest.approx(1.96 * 100 * np.std([0, 0, 0, 1]) / 2)
