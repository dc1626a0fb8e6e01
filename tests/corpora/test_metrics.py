"""Metrics against hand-computed values, an independent conlleval, and each other."""

import pytest
from gensim.similarities.fastss import editdist
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


@pytest.mark.parametrize(
    ("references", "predictions", "ser", "accuracy", "f1", "exact"),
    [
        ([("x", "a b", "O O")], [("y", "a b", "B-p B-q")], 3.0, 0, 0, 0),  # inserted slots exceed one
        # the same (label, value) at another place is no semantic error, though it is a wrong span
        ([("x", "rome rome", "B-to O")], [("x", "rome rome", "O B-to")], 0, 1, 0, 0),
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
        ([frame("x", "a", "O")], [frame("x", "b", "O")], "prediction 0 has other tokens"),
        ([frame("x", "a", "O")], [frame("x", "a", None)], "must both have tags, or neither"),
        ([frame("x", "a", "O")], [frame("x", "a", "O O")], "prediction 0 has 2 tags for 1 tokens"),
    ],
)
def test_what_cannot_be_scored_is_refused(references, predictions, message):
    with pytest.raises(UsageError, match=message):
        evaluate(references, predictions)


def conlleval_counts(references: list[list[str]], predictions: list[list[str]]) -> tuple[int, int, int]:
    """Correct, guessed and true chunks, by conlleval.pl's scan: compare chunk starts and ends tag by tag."""

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
    expected = 2 * correct / (guessed + true) if correct else 0.0
    frames = ([("i", [str(i) for i in range(len(tags))], tags) for tags in side] for side in (wanted, got))
    assert evaluate(*frames).slot_f1 == pytest.approx(expected)


@given(st.text("abc", max_size=9), st.text("abc", max_size=9))
def test_edit_distance_is_gensims(a, b):
    assert edit_distance(a, b) == editdist(a, b)
