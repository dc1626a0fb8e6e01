"""Random splits: nothing is lost, sizes follow the ratio, duplicates stay on one side, seeds decide."""

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edp_lab.corpora import Corpus, Split, Utterance, load_corpus, split
from edp_lab.errors import UsageError

# Few distinct texts give many duplicates, up to a group that is most of the corpus.
TEXTS = st.lists(st.integers(0, 60).map(lambda i: f"text {i}"), min_size=1, max_size=200)
SEEDS = st.integers(0, 2**64)
MANY = [f"t{i}" for i in range(1000)]


def corpus(texts: list[str]) -> Corpus:
    """One utterance per text; the intent numbers them, so that each is told apart."""
    utterances = tuple(Utterance(tuple(text.split()), None, str(i)) for i, text in enumerate(texts))
    return Corpus("c", utterances, tuple(sorted(u.intent for u in utterances)), ())


def parts_of(found: Split) -> list[list[Utterance]]:
    return [list(part) for part in (found.train, found.validation, found.test)]


@given(TEXTS, SEEDS, st.booleans())
def test_split_is_a_partition_of_the_right_sizes_with_duplicates_on_one_side_or_counted(texts, seed, together):
    try:
        found = split(corpus(texts), seed, keep_duplicates_together=together)
    except UsageError:
        assume(False)
    parts = parts_of(found)
    assert sorted(u.intent for part in parts for u in part) == sorted(map(str, range(len(texts))))
    group = max(Counter(texts).values()) if together else 1
    for part, ratio in zip(parts, (45, 5, 50), strict=True):
        assert abs(len(part) - len(texts) * ratio / 100) < group + 1
    assert found == split(corpus(texts), seed, keep_duplicates_together=together)
    sides = [{u.text for u in part} for part in parts]
    if together:
        assert sum(map(len, sides)) == len(set.union(*sides))
    assert list(found.duplicates) == [u for u in found.test if u.text in sides[0]]
    assert found.counts == dict(
        zip(("train", "validation", "test", "duplicates"), map(len, (*parts, found.duplicates)), strict=True)
    )


def test_seeds_give_different_splits_and_each_utterance_a_fair_chance():
    one, other = split(corpus(MANY), 1), split(corpus(MANY), 2)
    assert one.counts == {"train": 450, "validation": 50, "test": 500, "duplicates": 0}
    assert 150 < len(set(one.train) & set(other.train)) < 255  # 202.5 expected, standard deviation 7.9
    assert [u.intent for u in one.train] != sorted((u.intent for u in one.train), key=int)
    c = corpus(["twice", "twice", *MANY[:98]])
    members = Counter(u.intent for seed in range(400) for u in split(c, seed).train)
    assert all(abs(members[str(i)] / 400 - 0.45) < 0.125 for i in range(100))  # 5 standard deviations


def test_a_negative_seed_is_refused():
    with pytest.raises(UsageError, match="seed -1 is negative"):
        split(corpus(["a", "b"]), -1)


@pytest.mark.usefixtures("real_data")
def test_atis_split():
    atis = load_corpus("atis")
    apart, together = split(atis, 0, keep_duplicates_together=False), split(atis, 0)
    assert (apart.counts["train"], apart.counts["duplicates"] > 100) == (2_641, True)  # 45 % of 5,871
    assert abs(together.counts["train"] - 2_641) < 10
    assert together.counts["duplicates"] == 0
