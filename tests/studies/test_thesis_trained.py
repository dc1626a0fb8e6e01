"""Claims on which trained networks have a say: each verdict follows from what was measured and turns with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edp_lab.studies import thesis_trained as claims
from edp_lab.studies.evidence import Evidence, Verdict
from edp_lab.studies.reproduce_thesis import Lab
from edp_lab.studies.thesis_tables import Cell, Network, Part, Scale

HOLDS, CONDITIONAL, FAILS, UNTESTABLE = Verdict

SMALL = Scale("digits", 1, 1, 50, (100,), epochs=20, part_epochs=20, private_epochs=4, private_part_epochs=4)
RATES = {"dp-adam": (1e-4, 5e-2), "dp-sgd": (1e-3, 8.0)}


def part(name: str, cells: Sequence[tuple[str, str, float]], half: float = 3.0, **more: Any) -> Part:
    made = tuple(Cell(name, row, column, None, ours, ours - half, ours + half, **more) for row, column, ours in cells)
    return Part(name, "", "", "%", made)


def by_epsilon(name: str, rows: dict[str, Sequence[float]], *epsilons: int) -> list[tuple[str, str, float]]:
    return [
        (row, f"epsilon {epsilon}", ours)
        for row, values in rows.items()
        for epsilon, ours in zip(epsilons, values, strict=True)
    ]


def circles(at_claim: float, at_01: float) -> Part:
    cells = (Cell("4.2", "100", "test accuracy", 84.953, at_claim), Cell("4.2", "100", "at sigma 0.1", None, at_01))
    return Part("4.2", "", "", "%", cells)


PRINTED = "DPAdam, noise of eq. 3.3, C 4"
# As measured with `edp-lab reproduce thesis --quick`, rounded.
MEASURED = {
    "figure 3.5": part("figure 3.5", [(f"sigma {s}", "accuracy", a) for s, a in (("0", 97), ("0.2", 90), ("0.6", 41))]),
    "4.2": circles(50.3, 84.2),
    "4.8": part("4.8", [(f"epsilon {e}", "accuracy", a) for e, a in ((1, 58), (2, 70), (5, 82.7), (10, 81.5))]),
    "6.1": part("6.1", [("DPAdam", "accuracy", 84)]),
    "6.2": part(
        "6.2",
        by_epsilon("6.2", {"DPSGD": (86, 87, 84), "DPAdam": (86, 82, 72), PRINTED: (95, 94, 95)}, 7, 5, 2),
        epsilon_holds=704.0,
    ),
}

ONE_POINT_LOST = {"figure 3.5": part("figure 3.5", [(f"sigma {s}", "accuracy", 97 - s) for s in (0, 0.2, 0.6)])}
LITTLE_LOST_AT_02 = {
    "figure 3.5": part("figure 3.5", [(f"sigma {s}", "accuracy", a) for s, a in (("0", 97), ("0.2", 96), ("0.6", 80))])
}
SEPARABLE_CIRCLES = {"4.2": circles(85.0, 85.0)}
GROWING = {
    "4.8": part("4.8", [(f"epsilon {e}", "accuracy", 80 + e) for e in (1, 2, 5, 10)]),
    "6.1": part("6.1", [("DPAdam", "accuracy", 98)]),
    "6.2": part("6.2", by_epsilon("6.2", {"DPAdam": (97, 95, 92)}, 7, 5, 2)),
}
A_FALL_BEYOND_CHANCE = {"4.8": part("4.8", [(f"epsilon {e}", "accuracy", 90 - 3 * e) for e in (1, 2, 5, 10)])}
GAINS_EVERYWHERE = {"6.2": part("6.2", by_epsilon("6.2", {"DPSGD": (80, 70, 60), "DPAdam": (97, 95, 92)}, 7, 5, 2))}
ONE_GAIN = {"6.2": part("6.2", by_epsilon("6.2", {"DPSGD": (97, 95, 60), "DPAdam": (97, 95, 92)}, 7, 5, 2))}
ENOUGH_NOISE = {
    "6.2": part("6.2", by_epsilon("6.2", {"DPAdam": (86,), PRINTED: (86,)}, 7), epsilon_holds=6.9),
}

DRAWN = [
    (claims.t3_accuracy, FAILS, ONE_POINT_LOST, HOLDS),
    (claims.t3_accuracy, FAILS, LITTLE_LOST_AT_02, CONDITIONAL),
    (claims.t16_measured, FAILS, SEPARABLE_CIRCLES, HOLDS),
    (claims.t17_measured, CONDITIONAL, GROWING, HOLDS),
    (claims.t17_measured, CONDITIONAL, A_FALL_BEYOND_CHANCE, FAILS),
    (claims.t18_measured, FAILS, GAINS_EVERYWHERE, HOLDS),
    (claims.t18_measured, FAILS, ONE_GAIN, CONDITIONAL),
    (claims.t19_measured, FAILS, ENOUGH_NOISE, HOLDS),
]


@pytest.mark.parametrize(("claim", "verdict", "counter_evidence", "other"), DRAWN)
def test_the_verdict_follows_from_the_tables_and_turns_with_them(claim, verdict, counter_evidence, other):
    assert claim(MEASURED).verdict == verdict
    assert claim({**MEASURED, **counter_evidence}).verdict == other


def test_circles_under_more_noise_are_never_the_ones_that_are_judged():
    assert claims.t16_measured({"4.2": circles(50.0, 85.0)}).verdict == FAILS


def test_the_steps_of_two_networks_are_not_mixed():
    m = claims.t17_measured(MEASURED).measured
    assert m["pairs"] == 6
    assert (m["vgg"], m["cnn"]) == ("58.0, 70.0, 82.7, 81.5", "72.0, 82.0, 86.0, 84.0")


# From networks of their own


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Evidence]:
    lab = Lab(tmp_path_factory.mktemp("trained"), SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "TUNED", RATES)
        convergence = claims.t25_convergence(lab, epsilon=8.0, repeats=2)
    found = (claims.t13_understudy(lab), claims.t15_private_understudy(lab), convergence, claims.t27_built())
    return {evidence.id: evidence for evidence in found}


NOTHING_LOST = {"lost": 0.5}
WITHIN_CHANCE = {"lost": 5.0, "half_width": 6.0}
MUCH_LOST = {"lost": 40.0, "half_width": 10.0}
LESS_SPENT = {"lost": 0.0, "epsilon_with": 1.0}
FASTER = {"saved": 3.0, "saved_half_width": 1.0, "gain": 0.0, "gain_half_width": 1.0}
FASTER_BUT_WORSE = {**FASTER, "gain": -5.0}
BETTER_ONLY = {"saved": 0.0, "saved_half_width": 1.0, "gain": 3.0, "gain_half_width": 1.0}
BETTER_BUT_SLOWER = {**BETTER_ONLY, "saved": -3.0}
NO_DIFFERENCE = {"saved": 0.5, "saved_half_width": 1.0, "gain": 0.5, "gain_half_width": 1.0}
ALL_FIT = {"statements_that_fit": 6}
NO_STATEMENT_FITS = {"statements_that_fit": 2, "networks_without_one": 1}


@pytest.mark.parametrize(
    ("row", "counter_evidence", "verdict"),
    [
        ("T13", {}, FAILS),
        ("T13", NOTHING_LOST, HOLDS),
        ("T13", WITHIN_CHANCE, CONDITIONAL),
        ("T15", NOTHING_LOST, CONDITIONAL),
        ("T15", LESS_SPENT, HOLDS),
        ("T15", WITHIN_CHANCE, CONDITIONAL),
        ("T15", MUCH_LOST, FAILS),
        ("T25", FASTER, HOLDS),
        ("T25", FASTER_BUT_WORSE, CONDITIONAL),
        ("T25", BETTER_ONLY, CONDITIONAL),
        ("T25", BETTER_BUT_SLOWER, FAILS),
        ("T25", NO_DIFFERENCE, FAILS),
        ("T27", {}, CONDITIONAL),
        ("T27", ALL_FIT, HOLDS),
        ("T27", NO_STATEMENT_FITS, FAILS),
    ],
)
def test_the_verdict_follows_from_the_networks_and_turns_with_them(row, counter_evidence, verdict, trained):
    evidence = trained[row]
    assert set(counter_evidence) <= set(evidence.measured)
    assert replace(evidence, measured={**evidence.measured, **counter_evidence}).verdict == verdict


def test_evidence_reads_as_sentences_and_travels_as_json(trained):
    drawn = [row[0](MEASURED) for row in DRAWN]
    for evidence in (*trained.values(), *drawn):
        record = json.loads(json.dumps(evidence.record()))
        for sentence in (record["said"], record["claim"]):
            assert sentence.endswith(".")
            assert "{" not in sentence
            assert "nan" not in sentence


def test_noise_takes_labels_and_with_them_accuracy(trained):
    m = trained["T13"].measured
    assert m["labels"] == 540
    assert m["right"] > 0.6
    assert m["right_noised"] < 0.4
    assert m["lost"] > m["half_width"] > 0


def test_private_training_of_the_understudy_leaves_the_epsilon_of_its_labels(trained):
    m = trained["T15"].measured
    assert m["epsilon"] == m["epsilon_with"] == pytest.approx(31.73, abs=0.01)


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
