"""Scores of predicted intents and slots in plain Python: SER, intent accuracy, slot F1 and exact match.

A frame is a tuple (intent, tokens, tags) of an utterance, annotated or predicted. In a corpus without tags, they are
None and only intents are scored. References and predictions are compared in pairs. Raises UsageError if they differ in
number, tokens or the presence of tags, if the numbers of tags and tokens differ, or if there is nothing to score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from edp_lab.errors import UsageError

Frame = tuple[str, Sequence[str], Sequence[str] | None]
Span = tuple[int, int, str]


@dataclass(frozen=True)
class Scores:
    """The four scores as fractions."""

    # Semantic error rate (paper, section 4.2): number of wrong intents and of substituted, deleted and inserted slots,
    # divided by the number of intents and slots in the references. The sequences of (label, value) of the slots are
    # aligned by edit distance. The rate exceeds 1 if many slots are inserted.
    ser: float
    intent_accuracy: float  # share of utterances with the right intent
    # F1 over all slots of all utterances. A slot is right if its start, end and label are right (as in conlleval). None
    # if neither side has a slot, for example in a corpus without tags.
    slot_f1: float | None
    exact_match: float  # share of utterances with the right intent and exactly the right slots


@dataclass(frozen=True)
class Tally:
    """Counts from which the scores are computed; tallies of parts add up to the tally of the whole."""

    utterances: int = 0
    intents_right: int = 0
    exact: int = 0
    slot_errors: int = 0
    slots: int = 0
    predicted_slots: int = 0
    slots_right: int = 0

    @classmethod
    def of(cls, references: Sequence[Frame], predictions: Sequence[Frame]) -> Tally:
        if len(references) != len(predictions):
            raise UsageError(f"cannot score {len(predictions)} predictions against {len(references)} references")
        pairs = enumerate(zip(references, predictions, strict=True))
        counts = [_counts(i, reference, prediction) for i, (reference, prediction) in pairs]
        return cls(*map(sum, zip(*counts, strict=True)))

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def scores(self) -> Scores:
        n, slots = self.utterances, self.slots
        if not n:
            raise UsageError("cannot score 0 predictions against 0 references")
        return Scores(
            ser=(n - self.intents_right + self.slot_errors) / (n + slots),
            intent_accuracy=self.intents_right / n,
            slot_f1=2 * self.slots_right / both if (both := slots + self.predicted_slots) else None,
            exact_match=self.exact / n,
        )


def evaluate(references: Sequence[Frame], predictions: Sequence[Frame]) -> Scores:
    """Compute all four scores in one pass."""
    return Tally.of(references, predictions).scores()


def _counts(i: int, reference: Frame, prediction: Frame) -> tuple[int, ...]:
    """Counts of one utterance, in the order of the fields of `Tally`."""
    (intent, tokens, tags), (guess, same_tokens, guessed) = reference, prediction
    if list(tokens) != list(same_tokens):
        raise UsageError(f"prediction {i} and its reference have different tokens")
    if (tags is None) != (guessed is None):
        raise UsageError(f"prediction {i} and its reference must both have tags, or neither")
    for name, sequence in (("prediction", guessed), ("reference", tags)):
        if sequence is not None and len(sequence) != len(tokens):
            raise UsageError(f"{name} {i} has {len(sequence)} tags for {len(tokens)} tokens")
    wanted, got = spans(tags or ()), spans(guessed or ())
    right, errors = len(wanted), 0
    if wanted != got:
        right = len(set(wanted) & set(got))
        slots = (
            [(label, " ".join(tokens[start:end])) for start, end, label in slot_spans] for slot_spans in (wanted, got)
        )
        errors = edit_distance(*slots)
    exact = intent == guess and wanted == got
    return 1, intent == guess, exact, errors, len(wanted), len(got), right


def spans(tags: Sequence[str]) -> list[Span]:
    """Extract the slots from BIO tags as (start, end, label) with an exclusive end, as defined by conlleval.

    A ``B-`` always begins a slot. An ``I-`` begins a slot after ``O``, after another label or at the beginning.
    """
    slots: list[Span] = []
    start, label = 0, ""
    for i, tag in enumerate(tags):
        if tag[:1] == "I" and tag[2:] == label:
            continue
        if label:
            slots.append((start, i, label))
        start, label = i, tag[2:]
    if label:
        slots.append((start, len(tags), label))
    return slots


def edit_distance(a: Sequence[object], b: Sequence[object]) -> int:
    """Smallest number of substitutions, deletions and insertions that turn `a` into `b` (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        above_left, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            above_left, row[j] = row[j], min(above_left + (x != y), row[j] + 1, row[j - 1] + 1)
    return row[-1]
