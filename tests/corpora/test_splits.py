"""Splits: nothing is lost, sizes follow the ratio, duplicates stay on one side, seeds decide."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edp_lab.corpora import Corpus, Utterance, load_corpus, split
from edp_lab.errors import UsageError


def corpus(texts: list[str]) -> Corpus:
    """One utterance per text; the intent numbers them, so that each is told apart."""
    utterances = tuple(Utterance(tuple(text.split()), None, str(i)) for i, text in enumerate(texts))
    return Corpus("c", utterances, tuple(sorted(u.intent for u in utterances)), ())


# Few distinct texts give many duplicates, up to a group that is most of the corpus.
TEXTS = st.lists(st.integers(0, 60).map(lambda i: f"text {i}"), min_size=1, max_size=200)
RATIOS = st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
SEEDS = st.integers(0, 2**64)


def try_split(*args):
    try:
        return split(*args)
    except UsageError:
        return None


@given(TEXTS, SEEDS, RATIOS, st.booleans())
def test_split_is_a_partition_of_the_right_sizes(texts, seed, ratios, together):
    parts = try_split(corpus(texts), seed, ratios, together)
    assume(parts is not None)
    intents = [u.intent for part in (parts.train, parts.validation, parts.test) for u in part]
    assert sorted(intents) == sorted(map(str, range(len(texts))))
    group = max(Counter(texts).values()) if together else 1
    for part, ratio in zip((parts.train, parts.validation, parts.test), ratios, strict=True):
        assert abs(len(part) - len(texts) * ratio / sum(ratios)) < group + 1
    assert parts == split(corpus(texts), seed, ratios, together)


@given(TEXTS, SEEDS)
def test_duplicates_are_kept_on_one_side(texts, seed):
    parts = try_split(corpus(texts), seed)
    assume(parts is not None)
    sides = [{u.text for u in part} for part in (parts.train, parts.validation, parts.test)]
    assert sum(map(len, sides)) == len(set.union(*sides))
    assert parts.duplicates == ()


@given(TEXTS, SEEDS)
def test_duplicates_are_counted_where_they_are_not_kept_together(texts, seed):
    parts = try_split(corpus(texts), seed, (45, 5, 50), False)
    assume(parts is not None)
    members = [u.text for u in parts.train]
    expected = [u for u in parts.test if u.text in members]
    assert list(parts.duplicates) == expected
    assert parts.counts["duplicates"] == len(expected)
    assert sum(parts.counts.values()) == len(texts) + len(expected)


def test_sizes_are_exact_without_duplicates():
    parts = split(corpus([f"t{i}" for i in range(1000)]), 0)
    assert parts.counts == {"train": 450, "validation": 50, "test": 500, "duplicates": 0}


def test_seeds_give_different_splits_and_a_shuffled_order():
    c = corpus([f"t{i}" for i in range(1000)])
    one, other = split(c, 1), split(c, 2)
    overlap = len(set(one.train) & set(other.train))
    assert 150 < overlap < 255  # 202.5 expected, standard deviation 7.9
    assert [u.intent for u in one.train] != sorted((u.intent for u in one.train), key=int)


def test_each_utterance_is_a_member_with_the_probability_of_its_share():
    c = corpus(["twice", "twice", *(f"t{i}" for i in range(98))])
    members = Counter(u.intent for seed in range(400) for u in split(c, seed).train)
    for i in range(100):
        assert abs(members[str(i)] / 400 - 0.45) < 0.125  # 5 standard deviations


@pytest.mark.parametrize(
    ("texts", "seed", "ratios", "message"),
    [
        (["a", "b"], 0, (45, 5, 50), r"splitting c \(2 utterances\) 45:5:50 leaves (train|validation) empty"),
        (["a"] * 50, 0, (45, 5, 50), "leaves train empty"),
        (["a", "b"], -1, (45, 5, 50), "seed -1 is negative"),
        (["a", "b"], 0, (45, 0, 50), "ratios 45:0:50 must all be positive"),
    ],
)
def test_bad_splits_are_refused(texts, seed, ratios, message):
    with pytest.raises(UsageError, match=message):
        split(corpus(texts), seed, ratios)


def test_atis_split(real_data, monkeypatch):
    monkeypatch.setenv("EDP_LAB_DATA", str(real_data))
    atis = load_corpus("atis")
    apart = split(atis, 0, keep_duplicates_together=False)
    assert apart.counts["train"] == 2_641  # 45 % of 5,871
    assert apart.counts["duplicates"] > 100
    together = split(atis, 0)
    assert abs(together.counts["train"] - 2_641) < 10
    assert together.counts["duplicates"] == 0
