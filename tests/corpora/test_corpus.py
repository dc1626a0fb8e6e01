"""Random splits: they lose nothing, have the right sizes, keep duplicates on one side, and depend only on seeds."""

import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from gensim.similarities.fastss import editdist
from hypothesis import assume, given
from hypothesis import strategies as st

from edp_lab.corpora.corpus import Corpus, Split, Utterance, split
from edp_lab.corpora.encoding import HASH_BUCKETS, WORD_BYTES, Dataset, Labels, Ragged, WordFeatures
from edp_lab.corpora.metrics import Frame, edit_distance, evaluate, spans
from edp_lab.errors import UsageError

# Few distinct texts, to produce many duplicates and groups of up to most of the corpus.
TEXTS = st.lists(st.integers(0, 60).map(lambda i: f"text {i}"), min_size=1, max_size=200)
SEEDS = st.integers(0, 2**64)
MANY = [f"t{i}" for i in range(1000)]


def corpus(texts: list[str]) -> Corpus:
    """A corpus with one utterance per text; the intents number the utterances to distinguish them."""
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


@pytest.mark.parametrize(
    "forms",
    [
        ("turn it on", "Turn it on", "TURN IT ON"),
        ("straße", "STRASSE", "Straße"),
        ("caf\xe9", "cafe\u0301", "CAFE\u0301"),
        ("ｐｌａｙ １", "play 1", "play\u200b 1"),
        ("ﬁnd it", "find\xad it", "FIND it\ufe0f"),
    ],
)
def test_near_copies_stay_on_one_side_and_move_nothing_else(forms):
    for seed in range(8):
        together = split(corpus([*forms, *MANY[:57]]), seed)
        sides = [{u.text for u in part} & set(forms) for part in parts_of(together)]
        assert sorted(map(len, sides)) == [0, 0, 3]
        apart = split(corpus([*forms, *MANY[:57]]), seed, keep_duplicates_together=False)
        (train, _, test), found = parts_of(apart), {u.text for u in apart.duplicates}
        assert found == {u.text for u in test if u.text in forms and {v.text for v in train} & set(forms)}
        exact, plain = (split(corpus(MANY[:60]), seed, keep_duplicates_together=k) for k in (True, False))
        assert parts_of(exact) == parts_of(plain)  # as before if no two texts are alike


# ---- From utterances to tensors: rows follow their examples, unseen words never raise, bad input is refused ----------


LABELS = Labels(("book", "play"), ("O", "B-artist", "I-artist"))
FIRST = Utterance(("play", "Björk"), ("O", "B-artist"), "play")
SECOND = Utterance(("book",), ("O",), "book")
THIRD = Utterance(("play", "the", "Who", "now"), ("O", "B-artist", "I-artist", "O"), "play")


def dataset(*utterances: Utterance) -> Dataset:
    return Dataset(utterances or (FIRST, SECOND, THIRD), LABELS, WordFeatures(("play", "the"), buckets=5))


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
    """One tag too few in one utterance and one too many in another would silently shift all tags in between."""
    with pytest.raises(UsageError, match=re.escape(repr(bad.text))):
        dataset(FIRST, bad, SECOND)


def test_an_empty_split_and_a_negative_seed_are_refused():
    with pytest.raises(UsageError, match="empty"):
        Dataset([], LABELS, WordFeatures())
    with pytest.raises(UsageError, match="seed -1 is negative"):
        split(corpus(["a", "b"]), -1)


def test_words_have_the_vocabularys_numbers_or_a_hash_that_is_the_same_in_all_processes():
    words = WordFeatures(("play", "the"), buckets=5).rows([("PLAY", "The", "zebra", "ZEBRA")])["words"].values
    assert words[:2].tolist() == [0, 1]
    assert 2 <= words[2] == words[3] < 7
    words = WordFeatures().rows([tuple(f"word{k}" for k in range(20_000))])["words"].values
    counts = np.bincount(words, minlength=HASH_BUCKETS)
    assert len(counts) == HASH_BUCKETS
    assert counts.max() < 25  # 4.9 expected: no bucket receives too many words
    assert (counts == 0).mean() < 0.02  # e^-4.9 = 0.0075 expected
    # Python's own hash() is salted: a reloaded model would see different words.
    tokens = ("zebra", "música", "日本語")
    code = (
        "import numpy as np;from edp_lab.corpora.encoding import WordFeatures;"
        f"print(WordFeatures().rows([{tokens!r}])['words'].gather(np.arange(1))[0].tolist())"
    )
    salted = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONIOENCODING": "utf-8"}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=salted)
    assert other.stdout.strip() == str(WordFeatures().rows([tokens])["words"].values.tolist())


@given(st.lists(st.text(st.characters(exclude_categories=()), min_size=1, max_size=30), min_size=1, max_size=5))
def test_no_word_or_character_ever_raises(tokens):
    """The texts include unpaired surrogates, which JSON can contain."""
    features = WordFeatures(("a",), buckets=3)
    rows = features.rows([tokens])
    assert len(rows["words"].values) == len(rows["characters"].values) == len(tokens)
    assert rows["words"].values.min() >= 0
    assert rows["words"].values.max() < 4
    characters = rows["characters"].values
    assert characters.min() >= 0
    assert characters.max() <= 256
    spelled = characters > 0
    assert (spelled[:, :-1] >= spelled[:, 1:]).all(), "bytes first, then padding"
    assert spelled[:, 0].all()


def test_bytes_are_cut_at_the_limit_whatever_else_is_encoded_and_training_words_occur_twice():
    characters = WordFeatures().rows([("é" * 20, "\x00", "ab")])["characters"].values
    assert characters.shape == (3, WORD_BYTES)
    assert (characters[0] > 0).all()
    assert characters[1].tolist() == [1, *[0] * (WORD_BYTES - 1)]
    assert characters[2, :3].tolist() == [ord("a") + 1, ord("b") + 1, 0]
    features = WordFeatures(("play",), buckets=7)
    alone = features.rows([("zebra",)])
    together = features.rows([("play", "aardvark"), ("zebra",), ("zzz",)])
    for name in alone:
        assert (alone[name].values[0] == together[name].values[2]).all()
    twice = [Utterance(("Play", "it"), None, "play"), Utterance(("play", "that"), None, "play")]
    assert WordFeatures.from_training_words(twice).words == ("play",)


def test_labels_begin_with_o_and_pair_b_with_i():
    corpus = Corpus("toy", (FIRST, SECOND), ("book", "play"), ("artist", "city"))
    assert Labels.of(corpus) == Labels(("book", "play"), ("O", "B-artist", "I-artist", "B-city", "I-city"))
    untagged = Corpus("toy", (Utterance(("x",), None, "play"),), ("play",), ())
    assert Labels.of(untagged) == Labels(("play",), ())


# ---- Metrics against hand-computed values, an independent conlleval, and each other ----------------------------------


def frame(intent: str, text: str, tags: str | None) -> Frame:
    return intent, text.split(), None if tags is None else tags.split()


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("B-x I-x O B-y", [(0, 2, "x"), (3, 4, "y")]),
        ("B-x B-x", [(0, 1, "x"), (1, 2, "x")]),
        ("I-x I-x", [(0, 2, "x")]),
        ("O I-x I-y", [(1, 2, "x"), (2, 3, "y")]),
        ("B-x I-y I-y O I-y", [(0, 1, "x"), (1, 3, "y"), (4, 5, "y")]),
    ],
)
def test_spans_have_conllevals_meaning(tags, expected):
    assert spans(tags.split()) == expected


# Four utterances with 1 + 2, 1 + 1, 1 + 0 and 1 + 2 = 9 possible errors before insertions, counted by hand:
REFERENCES = [
    frame("fly", "fly from new york to rome", "O O B-from I-from O B-to"),
    frame("play", "play some jazz", "O O B-genre"),
    frame("stop", "stop", "O"),
    frame("fly", "rome to oslo", "B-from O B-to"),
]
PREDICTIONS = [
    frame("fly", "fly from new york to rome", "O O B-from O O B-to"),  # "new york" is cut: one substitution
    frame("stop", "play some jazz", "O O O"),  # wrong intent, one deletion
    frame("stop", "stop", "B-genre"),  # one insertion
    frame("fly", "rome to oslo", "B-from O B-to"),  # correct
]


def test_scores_computed_by_hand():
    scores = evaluate(REFERENCES, PREDICTIONS)
    assert scores.ser == pytest.approx(4 / 9)
    assert scores.intent_accuracy == pytest.approx(3 / 4)
    assert scores.slot_f1 == pytest.approx(2 * 3 / (5 + 5))  # correct: to rome, from rome, to oslo
    assert scores.exact_match == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("references", "predictions", "ser", "accuracy", "f1", "exact"),
    [
        ([("x", "a b", "O O")], [("y", "a b", "B-p B-q")], 3.0, 0, 0, 0),  # inserted slots raise the error rate above 1
        # The same (label, value) at another position is a wrong span, but no semantic error.
        ([("x", "rome rome", "B-to O")], [("x", "rome rome", "O B-to")], 0, 1, 0, 0),
        ([("x", "a b", "O O")], [("x", "a b", "O O")], 0, 1, None, 1),  # no true slot and no predicted slot
        ([("x", "a", None), ("y", "b", None)], [("x", "a", None), ("x", "b", None)], 0.5, 0.5, None, 0.5),
    ],
)
def test_what_each_score_counts(references, predictions, ser, accuracy, f1, exact):
    scores = evaluate([frame(*one) for one in references], [frame(*one) for one in predictions])
    assert (scores.ser, scores.intent_accuracy, scores.slot_f1, scores.exact_match) == (ser, accuracy, f1, exact)


@pytest.mark.parametrize(
    ("references", "predictions", "message"),
    [
        ([], [], "cannot score 0 predictions against 0 references"),
        (REFERENCES, PREDICTIONS[:3], "cannot score 3 predictions against 4 references"),
        ([frame("x", "a", "O")], [frame("x", "b", "O")], "prediction 0 and its reference have different tokens"),
        ([frame("x", "a", "O")], [frame("x", "a", None)], "must both have tags, or neither"),
        ([frame("x", "a", "O")], [frame("x", "a", "O O")], "prediction 0 has 2 tags for 1 tokens"),
    ],
)
def test_what_cannot_be_scored_is_refused(references, predictions, message):
    with pytest.raises(UsageError, match=message):
        evaluate(references, predictions)


def conlleval_counts(references: list[list[str]], predictions: list[list[str]]) -> tuple[int, int, int]:
    """Correct, guessed and true chunks according to conlleval.pl, which compares chunk starts and ends tag by tag."""

    def ends(before: str, now: str) -> bool:
        return before != "O" and (now[0] in "BO" or before[2:] != now[2:])

    def starts(before: str, now: str) -> bool:
        return now[0] == "B" or (now[0] == "I" and (before == "O" or before[2:] != now[2:]))

    correct = guessed = true = 0
    for wanted, got in zip(references, predictions, strict=True):
        in_correct, last_w, last_g = False, "O", "O"
        for w, g in zip([*wanted, "O"], [*got, "O"], strict=True):
            if in_correct:
                end_w, end_g = ends(last_w, w), ends(last_g, g)
                correct += end_w and end_g
                in_correct = not (end_w or end_g)
            start_w, start_g = starts(last_w, w), starts(last_g, g)
            in_correct |= start_w and start_g and w[2:] == g[2:]
            true += start_w
            guessed += start_g
            last_w, last_g = w, g
    return correct, guessed, true


TAG = st.sampled_from(["O", "B-x", "I-x", "B-y", "I-y"])
PAIRS = st.lists(st.lists(st.tuples(TAG, TAG), min_size=1, max_size=12), min_size=1, max_size=6)


@given(PAIRS)
def test_slot_f1_equals_conlleval(pairs):
    wanted = [[w for w, _ in pair] for pair in pairs]
    got = [[g for _, g in pair] for pair in pairs]
    correct, guessed, true = conlleval_counts(wanted, got)
    expected = 2 * correct / (guessed + true) if guessed + true else None
    frames = ([("i", [str(i) for i in range(len(tags))], tags) for tags in side] for side in (wanted, got))
    assert evaluate(*frames).slot_f1 == (expected and pytest.approx(expected))


@given(st.text("abc", max_size=9), st.text("abc", max_size=9))
def test_edit_distance_is_gensims(a, b):
    assert edit_distance(a, b) == editdist(a, b)
