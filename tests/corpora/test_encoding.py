"""From utterances to tensors: rows follow their examples, unseen words never raise, bad input is refused."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edp_lab.corpora.corpus import Corpus, Utterance
from edp_lab.corpora.encoding import HASH_BUCKETS, WORD_BYTES, Dataset, Labels, Ragged, WordFeatures
from edp_lab.errors import UsageError

LABELS = Labels(("book", "play"), ("O", "B-artist", "I-artist"))
FIRST = Utterance(("play", "Björk"), ("O", "B-artist"), "play")
SECOND = Utterance(("book",), ("O",), "book")
THIRD = Utterance(("play", "the", "Who", "now"), ("O", "B-artist", "I-artist", "O"), "play")


def dataset(*utterances: Utterance) -> Dataset:
    return Dataset(utterances or (FIRST, SECOND, THIRD), LABELS, WordFeatures(("play", "the"), buckets=5))


def values(ragged: Ragged) -> np.ndarray:
    """All rows end to end."""
    return ragged.gather(np.arange(len(ragged)))[0]


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=6), st.data())
def test_take_returns_the_rows_in_the_order_asked_also_twice_or_none(rows, data):
    ragged = Ragged.of([np.array(r, dtype=np.int64) for r in rows])
    examples = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    values, lengths = ragged.take(np.array(examples, dtype=np.int64))
    assert values.tolist() == [v for e in examples for v in rows[e]]
    assert lengths.tolist() == [len(rows[e]) for e in examples]
    assert values.dtype == lengths.dtype == torch.int64


def test_take_keeps_the_shape_of_a_row_and_integers_also_of_nothing():
    rows = np.arange(30).reshape(5, 2, 3)
    values, lengths = Ragged(rows, np.array([0, 2, 2, 5])).take(np.array([2, 1, 0]))
    assert values.tolist() == [*rows[2:].tolist(), *rows[:2].tolist()]
    assert lengths.tolist() == [3, 0, 2]
    values, lengths = Ragged.of([]).take(np.zeros(0, dtype=np.int64))
    assert (len(values), len(lengths), lengths.dtype) == (0, 0, torch.int64)


@given(st.lists(st.integers(0, 2), max_size=6))
def test_batches_carry_each_examples_own_numbers(examples):
    data = dataset()
    batch, alone = data.batch(examples), [data.batch(np.array([k], dtype=np.int32)) for k in examples]
    assert batch.examples.tolist() == examples
    assert batch.lengths.tolist() == [len(data.utterances[k].tokens) for k in examples]
    for name, value in batch.inputs.items():
        assert value.tolist() == [row for one in alone for row in one.inputs[name].tolist()]
    assert batch.tags.tolist() == [LABELS.tags.index(t) for k in examples for t in data.utterances[k].tags]
    assert batch.intents.tolist() == [LABELS.intents.index(data.utterances[k].intent) for k in examples]


def test_a_batch_moves_with_everything_that_a_model_reads():
    moved = dataset().batch([0, 2]).to(torch.device("meta"))
    assert {t.device.type for t in (moved.lengths, moved.intents, moved.tags, *moved.inputs.values())} == {"meta"}
    assert moved.examples.device.type == "cpu"  # dropout masks are drawn on the CPU
    untagged = Dataset([FIRST], Labels(LABELS.intents, ()), WordFeatures()).batch([0])
    assert untagged.tags is None
    assert untagged.to(torch.device("meta")).tags is None


@pytest.mark.parametrize(
    "bad",
    [
        Utterance(("fly",), ("O",), "fly"),
        Utterance(("fly",), ("B-city",), "play"),
        Utterance(("play", "it"), ("O",), "play"),
        Utterance(("play",), ("O", "O"), "play"),
        Utterance(("play",), None, "play"),
        Utterance((), (), "play"),
    ],
)
def test_an_utterance_that_does_not_fit_is_refused_by_its_text(bad):
    """One tag too few here and one too many there would shift the tags of everything between, silently."""
    with pytest.raises(UsageError, match=re.escape(repr(bad.text))):
        dataset(FIRST, bad, SECOND)


def test_an_empty_split_is_refused_in_words():
    with pytest.raises(UsageError, match="empty"):
        Dataset([], LABELS, WordFeatures())


def test_words_have_the_vocabularys_numbers_or_a_hash_that_is_the_same_in_all_processes():
    words = values(WordFeatures(("play", "the"), buckets=5).rows([("PLAY", "The", "zebra", "ZEBRA")])["words"])
    assert words[:2].tolist() == [0, 1]
    assert 2 <= words[2] == words[3] < 7
    words = values(WordFeatures().rows([tuple(f"word{k}" for k in range(20_000))])["words"])
    counts = np.bincount(words, minlength=HASH_BUCKETS)
    assert len(counts) == HASH_BUCKETS
    assert counts.max() < 25  # 4.9 expected: no bucket draws a crowd
    assert (counts == 0).mean() < 0.02  # e^-4.9 = 0.0075
    # Python's own hash() is salted; a model read back elsewhere would see other words.
    tokens = ("zebra", "música", "日本語")
    code = (
        "import numpy as np;from edp_lab.corpora.encoding import WordFeatures;"
        f"print(WordFeatures().rows([{tokens!r}])['words'].gather(np.arange(1))[0].tolist())"
    )
    salted = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONIOENCODING": "utf-8"}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=salted)
    assert other.stdout.strip() == str(values(WordFeatures().rows([tokens])["words"]).tolist())


@given(st.lists(st.text(st.characters(exclude_categories=()), min_size=1, max_size=30), min_size=1, max_size=5))
def test_no_word_or_character_ever_raises(tokens):
    """Also unpaired surrogates, which JSON can hold."""
    features = WordFeatures(("a",), buckets=3)
    rows = features.rows([tokens])
    assert len(values(rows["words"])) == len(values(rows["characters"])) == len(tokens)
    assert values(rows["words"]).min() >= 0
    assert values(rows["words"]).max() < 4
    characters = values(rows["characters"])
    assert characters.min() >= 0
    assert characters.max() <= 256
    spelled = characters > 0
    assert (spelled[:, :-1] >= spelled[:, 1:]).all(), "bytes first, then padding"
    assert spelled[:, 0].all()


def test_bytes_are_cut_at_the_limit_whatever_else_is_encoded_and_training_words_occur_twice():
    characters = values(WordFeatures().rows([("é" * 20, "\x00", "ab")])["characters"])
    assert characters.shape == (3, WORD_BYTES)
    assert (characters[0] > 0).all()
    assert characters[1].tolist() == [1, *[0] * (WORD_BYTES - 1)]
    assert characters[2, :3].tolist() == [ord("a") + 1, ord("b") + 1, 0]
    features = WordFeatures(("play",), buckets=7)
    alone = features.rows([("zebra",)])
    together = features.rows([("play", "aardvark"), ("zebra",), ("zzz",)])
    for name in alone:
        assert (values(alone[name])[0] == values(together[name])[2]).all()
    twice = [Utterance(("Play", "it"), None, "play"), Utterance(("play", "that"), None, "play")]
    assert WordFeatures.from_training_words(twice).words == ("play",)


def test_labels_begin_with_o_pair_b_with_i_and_cover_what_they_name():
    corpus = Corpus("toy", (FIRST, SECOND), ("book", "play"), ("artist", "city"))
    assert Labels.of(corpus) == Labels(("book", "play"), ("O", "B-artist", "I-artist", "B-city", "I-city"))
    assert all(Labels.of(corpus).covers(u) for u in corpus.utterances)
    untagged = Corpus("toy", (Utterance(("x",), None, "play"),), ("play",), ())
    assert Labels.of(untagged) == Labels(("play",), ())
    none, unknown = Utterance(("x",), None, "play"), Utterance(("x",), ("B-city",), "play")
    assert [LABELS.covers(u) for u in (FIRST, none, Utterance(("x",), ("O",), "fly"), unknown)] == [True, *[False] * 3]
    assert all(Labels(("play",), ()).covers(u) for u in (FIRST, none, unknown))  # a model without slots reads no tags
