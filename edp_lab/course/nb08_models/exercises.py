"""Exercises of ``08_data_and_models.ipynb``: SER, the majority baseline, a maximum that ignores padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from edp_lab.corpora.metrics import Frame, evaluate
from edp_lab.course.kit.exercises import Differences, close, exercises_of, first_wrong
from edp_lab.course.nb08_models.panels import leaky_pool, look_at

LABELS, VALUES = ("name", "date", "place"), ("anna", "sunday", "rome", "noon")
MAJORITY = ("below 0.3", "0.3 to 0.7", "above 0.7")

Slots = list[tuple[str, str]]
Meaning = tuple[str, Slots]


# Cases that are rarely drawn at random: an SER above 1, and correct slots in the wrong order.
MUST_DIFFER: tuple[tuple[list[Meaning], list[Meaning]], ...] = (
    ([("play", [])], [("play", [("name", "bob"), ("place", "rome")])]),
    ([("call", [("name", "anna"), ("date", "noon")])], [("call", [("date", "noon"), ("name", "anna")])]),
)


def _majority(answer: Any, cases: np.random.Generator) -> Differences:
    ser = look_at("smart-home", int(cases.integers(1000))).majority.ser
    right = MAJORITY[int(np.searchsorted((0.3, 0.7), ser))]
    if answer not in MAJORITY:
        yield f"{answer!r} is not one of {', '.join(map(repr, MAJORITY))}."
    if answer != right:
        yield f"you said {answer}, but that is wrong."


def _pool(answer: Any, cases: np.random.Generator) -> Differences:
    leaks, verdicts = True, []
    for sizes in ((2, 5), (1, 4, 2), (3, 3)):
        rows = [torch.from_numpy(cases.normal(-1.0, 1.0, (size, 4))) for size in sizes]
        tokens, lengths = torch.cat(rows), torch.tensor(sizes)
        got = answer(tokens, lengths)
        leaky = leaky_pool(tokens, lengths)
        leaks &= got is not None and got.shape == leaky.shape and bool(torch.equal(got, leaky))
        wanted = torch.stack([row.amax(0) for row in rows])
        verdicts.append(close(got, wanted, f"pooled utterances of {', '.join(map(str, sizes))} words"))
    # Multiplication by the mask returns the same as the notebook's code, but counts as an answer.
    bytecode = getattr(getattr(answer, "__code__", None), "co_code", None)
    untouched = leaks and bytecode == leaky_pool.__code__.co_code
    if leaks and not untouched:
        yield "multiplying by the mask sets padding to 0, which is still larger than negative values."
    yield first_wrong(verdicts, untouched, "the maximum still includes the zeros of the padding")


def _ser(answer: Any, cases: np.random.Generator) -> Differences:
    drawn = [[_meaning(cases) for _ in range(size)] for size in (1, 1, 2, 5)]
    spoiled = [(meanings, [_spoiled(meaning, cases) for meaning in meanings]) for meanings in drawn]
    for references, predictions in (*spoiled, *MUST_DIFFER):
        pairs = [_frames(*pair) for pair in zip(references, predictions, strict=True)]
        wanted = evaluate([true for true, _ in pairs], [prediction for _, prediction in pairs]).ser
        size = len(references)
        pair = f"references {references} and predictions {predictions}"
        what = f"SER of {pair}" if size < 3 else f"SER of {size} utterances"
        yield close(answer(references, predictions), wanted, what)


def _meaning(cases: np.random.Generator) -> Meaning:
    """Random intent with up to four random slots (label, value)."""
    slots = [(str(cases.choice(LABELS)), str(cases.choice(VALUES))) for _ in range(cases.integers(5))]
    return str(cases.choice(("call", "play"))), slots


def _spoiled(meaning: Meaning, cases: np.random.Generator) -> Meaning:
    """Copy of a meaning with random errors of every kind."""
    intent, slots = meaning
    if cases.random() < 0.5:
        intent = "stop"
    kept = [slot for slot in slots if cases.random() < 0.7]
    changed = [(label, "wrong" if cases.random() < 0.3 else value) for label, value in kept]
    return intent, [*changed, *[("name", "bob")] * int(cases.integers(3))]


def _frames(reference: Meaning, prediction: Meaning) -> tuple[Frame, Frame]:
    """Convert slots to tagged words: both frames have all words, and each tags only its slots."""
    (intent, slots), (predicted_intent, predicted_slots) = reference, prediction
    words = ["say", *(value for _, value in (*slots, *predicted_slots))]
    true = ["O", *(f"B-{label}" for label, _ in slots), *["O"] * len(predicted_slots)]
    mine = ["O", *["O"] * len(slots), *(f"B-{label}" for label, _ in predicted_slots)]
    return (intent, words, true), (predicted_intent, words, mine)


EXERCISES = exercises_of(__file__, ser=_ser, majority=_majority, pool=_pool)
