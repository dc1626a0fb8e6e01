"""The thesis' claims on networks, from small ones: attacks that are made, and how they learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edp_lab.attacks import extraction as api
from edp_lab.corpora.images import load_images
from edp_lab.reproduce.claims import FAILS, Evidence, compute, read_table, registry
from edp_lab.reproduce.thesis import claims_networks as claims
from edp_lab.reproduce.thesis.claims_networks import VICTIMS, said, t24_api_attacks
from edp_lab.reproduce.thesis.lab import Lab
from edp_lab.reproduce.thesis.thesis_tables import Network, Scale

# ---- Attacks by the API


@pytest.fixture(scope="module")
def found() -> tuple[list[api.ExtractionRow], list[api.InversionRow]]:
    """Victims trained for a few epochs on digits, three instructors with little noise on their votes; brief attacks."""
    shares = api.share_out(load_images("digits"))
    settings = replace(api.SETTINGS, instructors=3, vote_epsilon=4.0, epochs=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "STUDENT_STEPS", 150)
        patch.setattr(api, "WHITE_BOX_STEPS", 2)
        victims = api.train_victims(shares, VICTIMS, settings)
        return api.extract(victims, shares, [150]), api.invert(victims, shares, [400])


@pytest.fixture(scope="module")
def evidence(found) -> Evidence:
    return t24_api_attacks(*found)


def test_attacks_on_small_networks_succeed_and_strangers_decide_nothing(evidence):
    assert evidence.verdict == FAILS
    nothing = {"strangers_agreement_low": 0.0, "strangers_judged_low": 0.0}
    assert replace(evidence, measured={**evidence.measured, **nothing}).verdict == FAILS


def test_the_verdict_looks_at_the_most_queries(evidence, found):
    assert (evidence.measured["extraction_queries"], evidence.measured["inversion_queries"]) == (150, 400)
    fewer = [[replace(row, queries=9) for row in rows if row.queries] for rows in found]
    more = [[replace(row, queries=9000) for row in rows if row.queries] for rows in found]
    extraction, inversion = ([*more, *rows, *fewer] for more, rows, fewer in zip(more, found, fewer, strict=True))
    measured = t24_api_attacks(extraction, inversion).measured
    assert measured["extraction_queries"] == measured["inversion_queries"] == 9000


def test_a_model_of_epsilon_0_gives_as_much_as_one_without_privacy(evidence):
    m = evidence.measured
    assert m["strangers_epsilon"] == 0
    assert m["strangers_agreement"] > m["plain_agreement"] - 0.1
    assert m["strangers_judged"] > m["plain_judged"] - 0.2
    assert "plain_epsilon" not in m


def test_it_is_said_what_privacy_bounds_and_of_strangers_only_what_was_measured(found):
    extraction, inversion = found
    last = [row for row in extraction if row.victim == "strangers"][-1]
    assert f"at 150 queries, is copied to an agreement of {last.agreement:.1%}." in said("extraction", extraction)
    assert "at 400 queries, gives images of which a judge takes" in said("inversion", inversion)
    for attack, rows in (("extraction", extraction), ("inversion", inversion)):
        without = said(attack, [row for row in rows if row.victim != "strangers"])
        assert "membership inference; it does not" in without
        assert "strangers" not in without


def test_the_row_attacks_all_its_victims_at_full_size(monkeypatch, found):
    asked = {}
    monkeypatch.setattr(claims, "train_victims", lambda shares, names, *_: asked.update(names=names) or names)
    monkeypatch.setattr(claims, "extract", lambda v, s, q, **_: asked.update(extract=q) or found[0])
    monkeypatch.setattr(claims, "invert", lambda v, s, q, **_: asked.update(invert=q) or found[1])
    assert compute(registry()["T24"]).verdict == FAILS
    assert asked == {"names": VICTIMS, "extract": [400], "invert": [1000]}


# ---- Training

SMALL = Scale("digits", 1, 1, 50, (100,), epochs=20, part_epochs=20, private_epochs=4, private_part_epochs=4)
RATES = {"dp-adam": (1e-4, 5e-2), "dp-sgd": (1e-3, 8.0)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Evidence]:
    lab = Lab(tmp_path_factory.mktemp("trained"), SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "TUNED", RATES)
        convergence = claims.t25_convergence(lab, epsilon=8.0, repeats=2)
    return {evidence.id: evidence for evidence in (convergence, claims.t28_understudy(lab))}


def test_small_networks_measure_what_is_committed(trained, evidence):
    committed = {entry.id: entry for entry in read_table().entries}
    for one in (*trained.values(), evidence):
        assert list(one.measured) == list(committed[one.id].measured)
        assert "nan" not in one.said


@pytest.mark.parametrize(("saved", "gain"), [(-3.0, 3.0), (0.5, 0.5)])
def test_neither_what_is_slower_nor_what_is_within_chance_converges_faster(saved, gain, trained):
    changed = {"saved": saved, "saved_half_width": 1.0, "gain": gain, "gain_half_width": 1.0}
    assert replace(trained["T25"], measured={**trained["T25"].measured, **changed}).verdict == FAILS


def test_noise_takes_labels_and_with_them_accuracy(trained):
    assert trained["T28"].verdict == FAILS
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
    claims._best_rate(lab, model="cnn", method="dp-adam", epsilon=3.0)
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
