"""Row T24: its verdict follows from attacks that were made, and turns with other figures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from edp_lab.attacks import extraction as api
from edp_lab.corpora.images import load_images
from edp_lab.reproduce.evidence import Evidence, Verdict
from edp_lab.reproduce.thesis import thesis_attacks
from edp_lab.reproduce.thesis.thesis_attacks import VICTIMS, said, t24_evidence

# What would have to be measured for another verdict, by name.
COPIES_OF_THE_PROTECTED_NO_BETTER_THAN_GUESSES = {"understudy_agreement_low": 0.1, "dp_adam_agreement_low": 0.1}
DRAWINGS_OF_THE_PROTECTED_NO_BETTER_THAN_GUESSES = {"understudy_judged_low": 0.1, "dp_adam_judged_low": 0.1}
ALL_PREVENTED = COPIES_OF_THE_PROTECTED_NO_BETTER_THAN_GUESSES | DRAWINGS_OF_THE_PROTECTED_NO_BETTER_THAN_GUESSES
ALL_BUT_COPIES_OF_DP_ADAM_PREVENTED = {name: low for name, low in ALL_PREVENTED.items() if "dp_adam_agr" not in name}
AN_UNDERSTUDY_THAT_TELLS_NOTHING = {"understudy_agreement_low": 0.1, "understudy_judged_low": 0.1}
STRANGERS_THAT_TELL_NOTHING = {"strangers_agreement_low": 0.0, "strangers_judged_low": 0.0}
GUESSES_AS_GOOD = {"guess_agreement_high": 1.0, "guess_judged_high": 1.0}


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
    return t24_evidence(*found)


@pytest.mark.parametrize(
    ("counter_evidence", "verdict"),
    [
        ({}, Verdict.FAILS),
        (COPIES_OF_THE_PROTECTED_NO_BETTER_THAN_GUESSES, Verdict.CONDITIONAL),
        (DRAWINGS_OF_THE_PROTECTED_NO_BETTER_THAN_GUESSES, Verdict.CONDITIONAL),
        (AN_UNDERSTUDY_THAT_TELLS_NOTHING, Verdict.CONDITIONAL),
        (ALL_BUT_COPIES_OF_DP_ADAM_PREVENTED, Verdict.CONDITIONAL),
        (ALL_PREVENTED, Verdict.HOLDS),
        (GUESSES_AS_GOOD, Verdict.HOLDS),
        (STRANGERS_THAT_TELL_NOTHING, Verdict.FAILS),
    ],
)
def test_the_verdict_follows_from_what_was_measured_and_turns_with_it(evidence, counter_evidence, verdict):
    assert set(counter_evidence) <= set(evidence.measured)
    assert replace(evidence, measured={**evidence.measured, **counter_evidence}).verdict == verdict


def test_the_verdict_looks_at_the_most_queries(evidence, found):
    assert (evidence.measured["extraction_queries"], evidence.measured["inversion_queries"]) == (150, 400)
    fewer = [[replace(row, queries=9) for row in rows if row.queries] for rows in found]
    more = [[replace(row, queries=9000) for row in rows if row.queries] for rows in found]
    extraction, inversion = ([*more, *rows, *fewer] for more, rows, fewer in zip(more, found, fewer, strict=True))
    assert t24_evidence(extraction, inversion).measured["extraction_queries"] == 9000
    assert t24_evidence(extraction, inversion).measured["inversion_queries"] == 9000


def test_a_model_of_epsilon_0_gives_as_much_as_one_without_privacy(evidence):
    m = evidence.measured
    assert m["strangers_epsilon"] == 0
    assert m["strangers_agreement"] > m["plain_agreement"] - 0.1
    assert m["strangers_judged"] > m["plain_judged"] - 0.2
    assert "plain_epsilon" not in m


def test_evidence_reads_as_sentences_and_travels_as_json(evidence):
    record = json.loads(json.dumps(evidence.record(), allow_nan=False))
    assert record["verdict"] == "does not hold"
    for sentence in (record["said"], record["claim"]):
        assert sentence.endswith(".")
        assert "{" not in sentence
    assert "Differential privacy bounds neither" in record["said"]


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
    monkeypatch.setattr(thesis_attacks, "train_victims", lambda shares, names, *_: asked.update(names=names) or names)
    monkeypatch.setattr(thesis_attacks, "extract", lambda v, s, q, **_: asked.update(extract=q) or found[0])
    monkeypatch.setattr(thesis_attacks, "invert", lambda v, s, q, **_: asked.update(invert=q) or found[1])
    assert thesis_attacks.t24_api_attacks().id == "T24"
    assert asked == {"names": VICTIMS, "extract": [400], "invert": [1000]}
