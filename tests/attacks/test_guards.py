"""Sanity guards: they catch a split that words give away, spare a random one, and say what to mend."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from edp_lab.attacks.membership import guards as guards_module
from edp_lab.attacks.membership.guards import CONFIDENCE, LEAST_MEMBERS, Guards, check_split
from edp_lab.corpora import Corpus, Utterance, load_corpus, split
from edp_lab.corpora.smart_home import generate
from edp_lab.errors import UsageError

UTTERANCES = generate(600, seed=1).utterances
Sides = tuple[tuple[Utterance, ...], tuple[Utterance, ...]]


def utterance(text: str) -> Utterance:
    return Utterance(tuple(text.split()), None, "i")


def sides(corpus: Corpus, seed: int) -> Sides:
    parts = split(corpus, seed)
    size = min(len(parts.train), len(parts.test))
    return parts.train[:size], parts.test[:size]


def test_random_splits_pass_and_the_interval_is_as_wide_as_chance():
    """Out-of-fold scores depend on each other: with DeLong's interval as it is, about 7 of these 120 would fail."""
    found = [check_split(*sides(generate(120, seed), seed)) for seed in range(120)]
    assert sum(guards.leaks for guards in found) <= 3
    widths = [guards.text_auc_interval[1] - guards.text_auc_interval[0] for guards in found]
    assert np.mean(widths) / (2 * 2.576) == pytest.approx(np.std([guards.text_auc for guards in found]), rel=0.2)
    assert abs(np.mean([guards.text_auc for guards in found]) - 0.5) < 0.03


def test_fine_split_is_called_fine():
    guards = check_split(UTTERANCES[:300], UTTERANCES[300:])
    assert (guards.leaks, guards.duplicates, guards.balanced) == (False, 0, True)
    assert (guards.members, guards.non_members) == (300, 300)
    assert guards.said.startswith("Fine: words alone do not tell the 300 members from as many non-members (AUC 0.")


def test_members_of_one_domain_are_caught():
    guards = check_split(generate(150, 2, "health").utterances, UTTERANCES[:150])
    assert guards.leaks
    assert guards.text_auc > 0.7
    assert guards.text_auc_interval[0] > 0.6
    assert guards.said.startswith("The split leaks")
    assert guards.said.endswith("pool and split at random.")


def test_a_habit_of_every_fourth_member_is_caught():
    polite = [replace(u, tokens=("please", *u.tokens)) if i % 4 == 0 else u for i, u in enumerate(UTTERANCES[:300])]
    assert check_split(polite, UTTERANCES[300:]).leaks


def test_word_order_is_seen():
    """Bigrams: the same words on both sides, in another order."""
    names = [f"n{i}" for i in range(60)]
    guards = check_split([utterance(f"call {n} now") for n in names], [utterance(f"now call {n}") for n in names])
    assert guards.leaks


def test_likenesses_dealt_to_opposite_sides_are_caught():
    """Whoever knows one of the two knows where the other went: an AUC far below 0.5 is no random split either."""
    pairs = [(f"play song s{i} by a{i} in r{i}", f"play song s{i} by a{i} on d{i}") for i in range(100)]
    dealt = [pair[:: 1 if i % 2 else -1] for i, pair in enumerate(pairs)]
    guards = check_split(*([utterance(text) for text in side] for side in zip(*dealt, strict=True)))
    assert guards.leaks
    assert guards.text_auc < 0.3


def test_texts_on_both_sides_are_counted_and_are_no_hint_to_the_classifier():
    guards = check_split(UTTERANCES[:100], UTTERANCES[:100])
    assert (guards.duplicates, guards.text_auc, guards.leaks) == (100, 0.5, False)
    assert guards.said == "100 texts are on both sides: keep duplicates together when splitting."


def test_copies_within_a_side_are_no_further_evidence():
    once, thrice = (check_split(UTTERANCES[:60] * k, UTTERANCES[60:120] * k) for k in (1, 3))
    assert (thrice.text_auc, thrice.text_auc_interval) == (once.text_auc, once.text_auc_interval)
    assert thrice.members == 180


def test_result_depends_on_the_seed_but_not_on_the_order():
    members, non_members = UTTERANCES[:100], UTTERANCES[100:200]
    found = check_split(members, non_members, seed=3)
    assert check_split(members[::-1], non_members[::-1], seed=3) == found
    assert check_split(members, non_members, seed=4).text_auc != found.text_auc


def test_everything_wrong_is_said_in_one_sentence():
    members = (*generate(100, 3, "video").utterances, UTTERANCES[0])
    guards = check_split(members, UTTERANCES[:120])
    assert guards.leaks
    assert not guards.balanced
    assert "The split leaks" in guards.said
    assert "; 1 text is on both sides: keep" in guards.said
    assert guards.said.endswith("; 101 members face 120 non-members: draw equally many.")
    assert guards.said.count(".") - guards.said.count("0.") == 1


def test_guards_as_json():
    guards = check_split(UTTERANCES[:60], UTTERANCES[60:120])
    content = guards.to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert set(content) == set(Guards.__dataclass_fields__)
    assert content["confidence"] == CONFIDENCE
    assert type(content["leaks"]) is bool


@pytest.mark.parametrize(("shared", "own"), [(0, 5), (1, 4), (4, 20), (5, 0)])
def test_few_distinct_texts_are_enough(shared, own):
    inside, outside = few_texts(shared, own)
    guards = check_split(*([utterance(text) for text in side] * LEAST_MEMBERS for side in (inside, outside)))
    assert guards.duplicates == shared


@pytest.mark.parametrize(("shared", "own"), [(0, 5), (1, 4), (2, 3), (4, 20), (5, 0)])
def test_every_fold_leaves_texts_of_both_sides_to_learn_from(shared, own):
    inside, outside = ([tuple(text.split()) for text in side] for side in few_texts(shared, own))
    for seed in range(2000):
        fold = guards_module._folds(inside, outside, seed)
        assert all(len({fold[text] for text in side}) > 1 for side in (inside, outside))


def few_texts(shared: int, own: int) -> tuple[list[str], list[str]]:
    common = [f"on both sides {i}" for i in range(shared)]
    return common + [f"member {i}" for i in range(own)], common + [f"other {i}" for i in range(5 - shared)]


@pytest.mark.parametrize(
    ("members", "non_members", "culprit"),
    [
        (UTTERANCES[:49], UTTERANCES[49:200], "there are 49 members: an attack needs at least 50"),
        (UTTERANCES[:50], UTTERANCES[50:52], "there are 2 non-members"),
        ((), UTTERANCES, "there are 0 members"),
        (UTTERANCES[:60], UTTERANCES[60:64] * 20, "the non-members hold only 4 distinct texts"),
    ],
)
def test_too_few_utterances_are_refused(members, non_members, culprit):
    with pytest.raises(UsageError, match=culprit):
        check_split(members, non_members)


def test_official_split_of_atis_leaks(real_data, monkeypatch):
    monkeypatch.setenv("EDP_LAB_DATA", str(real_data))
    atis = load_corpus("atis").utterances
    guards = check_split(atis[:893], atis[-893:])
    assert guards.leaks
    assert guards.text_auc > 0.8
    assert guards.duplicates == 4
