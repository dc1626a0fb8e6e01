"""Metrics against hand-computed values, an independent conlleval, and each other."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edp_lab.corpora.metrics import Frame, edit_distance, evaluate, spans
from edp_lab.errors import UsageError


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


# By hand, four utterances with 1 + 2, 1 + 1, 1 + 0, 1 + 2 = 9 errors possible before insertions:
REFERENCES = [
    frame("fly", "fly from new york to rome", "O O B-from I-from O B-to"),
    frame("play", "play some jazz", "O O B-genre"),
    frame("stop", "stop", "O"),
    frame("fly", "rome to oslo", "B-from O B-to"),
]
PREDICTIONS = [
    frame("fly", "fly from new york to rome", "O O B-from O O B-to"),  # "new york" cut: one substitution
    frame("stop", "play some jazz", "O O O"),  # wrong intent, one deletion
    frame("stop", "stop", "B-genre"),  # one insertion
    frame("fly", "rome to oslo", "B-from O B-to"),  # right
]


def test_scores_computed_by_hand():
    scores = evaluate(REFERENCES, PREDICTIONS)
    assert scores.ser == pytest.approx(4 / 9)
    assert scores.intent_accuracy == pytest.approx(3 / 4)
    assert scores.slot_f1 == pytest.approx(2 * 3 / (5 + 5))  # right: to rome, from rome, to oslo
    assert scores.exact_match == pytest.approx(1 / 4)


def test_ser_may_exceed_one():
    assert evaluate([frame("x", "a b", "O O")], [frame("y", "a b", "B-p B-q")]).ser == 3.0


def test_ser_compares_values_not_positions():
    """The same (label, value) at another place is no semantic error, though it is a wrong span."""
    references, predictions = [frame("x", "rome rome", "B-to O")], [frame("x", "rome rome", "O B-to")]
    scores = evaluate(references, predictions)
    assert (scores.ser, scores.slot_f1, scores.exact_match) == (0.0, 0.0, 0.0)


def test_without_tags_only_intents_are_scored():
    scores = evaluate([frame("x", "a", None), frame("y", "b", None)], [frame("x", "a", None), frame("x", "b", None)])
    assert (scores.ser, scores.intent_accuracy, scores.slot_f1, scores.exact_match) == (0.5, 0.5, None, 0.5)


@pytest.mark.parametrize(
    ("references", "predictions", "message"),
    [
        ([], [], "cannot score 0 predictions against 0 references"),
        (REFERENCES, PREDICTIONS[:3], "cannot score 3 predictions against 4 references"),
        ([frame("x", "a", "O")], [frame("x", "b", "O")], "prediction 0 has other tokens"),
        ([frame("x", "a", "O")], [frame("x", "a", None)], "must both have tags, or neither"),
        ([frame("x", "a", "O")], [frame("x", "a", "O O")], "prediction 0 has 2 tags for 1 tokens"),
    ],
)
def test_what_cannot_be_scored_is_refused(references, predictions, message):
    with pytest.raises(UsageError, match=message):
        evaluate(references, predictions)


# --- independent references ---


def conlleval_counts(references: list[list[str]], predictions: list[list[str]]) -> tuple[int, int, int]:
    """Correct, guessed and true chunks, by conlleval.pl's scan: compare chunk starts and ends tag by tag."""

    def split(tag: str) -> tuple[str, str]:
        return (tag, "") if tag == "O" else (tag[0], tag[2:])

    def ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
        if before[0] == "O":
            return False
        return now[0] in "BO" or before[1] != now[1]

    def starts(before: tuple[str, str], now: tuple[str, str]) -> bool:
        return now[0] == "B" or (now[0] == "I" and (before[0] == "O" or before[1] != now[1]))

    correct = guessed = true = 0
    for wanted, got in zip(references, predictions, strict=True):
        in_correct = False
        last_w = last_g = ("O", "")
        for w, g in zip([*map(split, wanted), ("O", "")], [*map(split, got), ("O", "")], strict=True):
            if in_correct:
                end_w, end_g = ends(last_w, w), ends(last_g, g)
                if end_w and end_g:
                    correct += 1
                    in_correct = False
                elif end_w != end_g:
                    in_correct = False
            start_w, start_g = starts(last_w, w), starts(last_g, g)
            if start_w and start_g and w[1] == g[1]:
                in_correct = True
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
    expected = 2 * correct / (guessed + true) if correct else 0.0
    words = [[str(i) for i in range(len(tags))] for tags in wanted]
    result = evaluate(
        [("i", w, tags) for w, tags in zip(words, wanted, strict=True)],
        [("i", w, tags) for w, tags in zip(words, got, strict=True)],
    ).slot_f1
    assert result == pytest.approx(expected)


def slow_edit_distance(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    return min(
        slow_edit_distance(a[1:], b[1:]) + (a[0] != b[0]),
        slow_edit_distance(a[1:], b) + 1,
        slow_edit_distance(a, b[1:]) + 1,
    )


@given(st.text("abc", max_size=5), st.text("abc", max_size=5))
def test_edit_distance_equals_its_definition(a, b):
    assert edit_distance(a, b) == slow_edit_distance(a, b)


FRAMES = st.lists(
    st.tuples(st.sampled_from("pq"), st.lists(st.tuples(st.sampled_from("uv"), TAG), min_size=1, max_size=6)),
    min_size=1,
    max_size=5,
).map(lambda items: [(intent, [w for w, _ in ws], [t for _, t in ws]) for intent, ws in items])


@given(FRAMES)
def test_a_perfect_prediction_has_no_error(frames):
    scores = evaluate(frames, frames)
    assert (scores.ser, scores.intent_accuracy, scores.exact_match) == (0.0, 1.0, 1.0)
    assert scores.slot_f1 == (1.0 if any(spans(tags) for _, _, tags in frames) else 0.0)


def test_twelve_thousand_utterances_are_scored_quickly():
    words = [str(i) for i in range(10)]
    wanted = [("i", words, ["O", "B-a", "I-a", "O", "B-b", "O", "O", "B-c", "I-c", "I-c"])] * 12_000
    got = [("i", words, ["O", "B-a", "I-a", "O", "B-b", "O", "O", "B-c", "I-c", "O"])] * 12_000
    start = time.perf_counter()
    evaluate(wanted, got)
    assert time.perf_counter() - start < 2
