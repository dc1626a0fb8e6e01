"""What students get wrong in notebook 05; `test_exercises` shows that each of these is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from edp_lab.corpora.metrics import edit_distance
from edp_lab.course.kit.exercises import exercises, mark
from edp_lab.models.intent_slot import to_padded

Meanings = Sequence[tuple[str, list[tuple[str, str]]]]


def average(references: Meanings, predictions: Meanings) -> float:
    rates = [
        ((intent != said) + edit_distance(slots, found)) / (1 + len(slots))
        for (intent, slots), (said, found) in zip(references, predictions, strict=True)
    ]
    return sum(rates) / len(rates)


def counted(items: Callable[[Any, Any], int], intents: int = 1) -> Callable[[Meanings, Meanings], float]:
    """SER with another denominator, or without the intents in the numerator."""

    def ser(references: Meanings, predictions: Meanings) -> float:
        pairs = list(zip(references, predictions, strict=True))
        errors = sum(intents * (a != b) + edit_distance(slots, found) for (a, slots), (b, found) in pairs)
        return errors / max(1, sum(items(slots, found) for (_, slots), (_, found) in pairs))

    return ser


def by_place(references: Meanings, predictions: Meanings) -> float:
    errors = items = 0
    for (intent, slots), (said, found) in zip(references, predictions, strict=True):
        errors += (intent != said) + sum(a != b for a, b in zip(slots, found, strict=False))
        items += 1 + len(slots)
    return errors / items


def at_most_one(references: Meanings, predictions: Meanings) -> float:
    return min(1.0, counted(lambda slots, found: 1 + len(slots))(references, predictions))


def as_bags(references: Meanings, predictions: Meanings) -> float:
    errors = items = 0
    for (intent, slots), (said, found) in zip(references, predictions, strict=True):
        a, b = Counter(slots), Counter(found)
        errors += (intent != said) + max((a - b).total(), (b - a).total())
        items += 1 + len(slots)
    return errors / items


def multiplied(tokens: Tensor, lengths: Tensor) -> Tensor:
    padded, mask = to_padded(tokens, lengths)
    return (padded * mask[..., None]).amax(1)


def masked(value: float) -> Callable[[Tensor, Tensor], Tensor]:
    def pool(tokens: Tensor, lengths: Tensor) -> Tensor:
        padded, mask = to_padded(tokens, lengths)
        return padded.masked_fill(~mask[..., None], value).amax(1)

    return pool


def upside_down(tokens: Tensor, lengths: Tensor) -> Tensor:
    padded, mask = to_padded(tokens, lengths)
    return padded.masked_fill(mask[..., None], -torch.inf).amax(1)


def mean(tokens: Tensor, lengths: Tensor) -> Tensor:
    return to_padded(tokens, lengths)[0].sum(1) / lengths[:, None]


def words_first(tokens: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([part.amax(1) for part in tokens.split(lengths.tolist())])


WRONG: dict[str, dict[str, Any]] = {
    "majority": {
        "one in ten intents right, one in ten wrong": "below 0.3",
        "half of what there is are intents": "0.3 to 0.7",
        "a number instead of a range": 0.93,
    },
    "ser": {
        "averages the rates of utterances": average,
        "forgets the intents in the denominator": counted(lambda slots, found: len(slots)),
        "divides by the slots that were found": counted(lambda slots, found: 1 + len(found)),
        "does not count wrong intents": counted(lambda slots, found: 1 + len(slots), intents=0),
        "compares slots place by place": by_place,
        "takes a rate to end at 1": at_most_one,
        "ignores the order of slots": as_bags,
    },
    "pool": {
        "a small number instead of the smallest": masked(-1.0),
        "a large number": masked(10.0),
        "multiplies by the mask": multiplied,
        "fills the padding with what it has": masked(0.0),
        "masks the words instead of the padding": upside_down,
        "the mean instead of the maximum": mean,
        "the maximum over features (crash)": words_first,
    },
}


def test_a_maximum_that_still_reads_padding_is_open_and_says_so(stub: Callable[[str, str], Any]) -> None:
    verdict = mark(exercises("05")["pool"], stub("05", "pool"), 0)
    assert verdict.message == "still to do (the maximum still reads the zeros of the padding)"


def test_a_mask_that_makes_padding_zero_is_wrong_and_told_why() -> None:
    message = mark(exercises("05")["pool"], multiplied, 0).message
    assert "multiplying by the mask makes padding 0" in message


def test_limits_of_an_error_rate_are_found_whatever_the_seed() -> None:
    for seed in range(60):
        for wrong in (at_most_one, as_bags):
            assert mark(exercises("05")["ser"], wrong, seed).status == "wrong", seed


def test_a_wrong_error_rate_is_told_with_the_case() -> None:
    message = mark(exercises("05")["ser"], average, 1).message
    assert "SER of" in message
    assert "it should be" in message
