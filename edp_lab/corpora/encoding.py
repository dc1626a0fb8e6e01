"""From utterances to tensors: label numbers, features, and batches whose rows never touch a neighbour's.

Everything is kept flat, one row per token, example after example, so that nothing is padded until a model
asks for it; an utterance's numbers are the same whatever it is batched with.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from edp_lab.corpora.corpus import Corpus, Ragged, Utterance, Words, numbered
from edp_lab.errors import UsageError

WORD_BYTES = 16  # bytes of a word that the character CNN sees
HASH_BUCKETS = 4096  # shared rows for words outside the vocabulary


@dataclass(frozen=True)
class Labels:
    """The label sets of a model: intents, and tags ("O" first; none without slot annotation)."""

    intents: tuple[str, ...]
    tags: tuple[str, ...]

    @classmethod
    def of(cls, corpus: Corpus) -> Labels:
        return cls(corpus.intents, corpus.tags)

    def covers(self, utterance: Utterance) -> bool:
        """True if its intent and, for a model with slots, all its tags are known."""
        if utterance.intent not in self.intents:
            return False
        return not self.tags or (utterance.tags is not None and set(utterance.tags) <= set(self.tags))


class Features(Protocol):
    """Encoder of words as the numbers that a model reads."""

    def rows(self, sentences: Sequence[Sequence[str]] | Words) -> dict[str, Ragged]:
        """Named arrays; "words" has one row per token."""
        ...


@dataclass(frozen=True)
class WordFeatures:
    """Word numbers and UTF-8 bytes, for the CLC."""

    words: tuple[str, ...] = ()  # numbered from 0. A private run takes them from public text, or none
    buckets: int = HASH_BUCKETS  # rows that all others share, chosen by a stable hash of the lower-cased word

    @classmethod
    def from_training_words(cls, utterances: Sequence[Utterance]) -> WordFeatures:
        """Words that occur at least twice; the others train the shared rows. Not private."""
        counts = Counter(token.lower() for u in utterances for token in u.tokens)
        return cls(tuple(sorted(w for w, k in counts.items() if k > 1)), buckets=64)

    def rows(self, sentences: Sequence[Sequence[str]] | Words) -> dict[str, Ragged]:
        indexed = sentences if isinstance(sentences, Words) else Words.of(sentences)
        number = {word: k for k, word in enumerate(self.words)}
        words = np.zeros(len(indexed.types), dtype=np.int64)
        characters = np.zeros((len(indexed.types), WORD_BYTES), dtype=np.int64)
        for k, word in enumerate(indexed.types):
            words[k] = number.get(word.lower(), len(self.words) + hashed(word, self.buckets))
            spelled = word.encode(errors="surrogatepass")[:WORD_BYTES]
            characters[k, : len(spelled)] = np.frombuffer(spelled, dtype=np.uint8) + 1
        return {"words": indexed.numbers.through(words), "characters": indexed.numbers.through(characters)}


def hashed(word: str, buckets: int) -> int:
    """Bucket of a word, whatever its case: the same on all machines."""
    return zlib.crc32(word.lower().encode(errors="surrogatepass")) % buckets


class Batch(NamedTuple):
    """Some examples of a data set."""

    examples: Tensor  # (B) their numbers in the data set, which key their dropout masks
    lengths: Tensor  # (B) tokens of each
    inputs: dict[str, Tensor]  # flat features by name, and "<name>_rows" (B) where their number differs from `lengths`
    intents: Tensor  # (B) label numbers
    tags: Tensor | None  # (R) label numbers, or None without slot annotation

    def to(self, device: torch.device) -> Batch:
        tags = None if self.tags is None else self.tags.to(device)
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        return Batch(self.examples, self.lengths.to(device), inputs, self.intents.to(device), tags)


class Dataset:
    """Encoded utterances, from which batches are cut.

    UsageError: no utterances, or one without words, with labels the model does not know, or with more or fewer tags
    than words (which would shift the tags of every utterance behind it).
    """

    def __init__(self, utterances: Sequence[Utterance], labels: Labels, features: Features) -> None:
        if not len(utterances):
            raise UsageError("the split is empty: use a larger corpus")
        self.utterances = tuple(utterances)
        words = Words.of([u.tokens for u in self.utterances])
        intents = numbered([[u.intent] for u in self.utterances], labels.intents).codes
        self.lengths = words.numbers.lengths
        fits = (intents >= 0) & (self.lengths > 0)
        self._tags = None
        if labels.tags:
            self._tags = numbered([u.tags or () for u in self.utterances], labels.tags)
            fits &= self._tags.lengths == self.lengths
            fits[np.repeat(np.arange(len(fits)), self._tags.lengths)[self._tags.codes < 0]] = False
        if not fits.all():
            u = self.utterances[int(np.argmin(fits))]
            raise UsageError(
                f"utterance {u.text!r} (intent {u.intent!r}) does not fit the model: it needs a word, "
                "labels that the model knows, and one tag per word"
            )
        self.features = features.rows(words)
        self._intents = torch.from_numpy(intents)

    def __len__(self) -> int:
        return len(self.utterances)

    def batch(self, examples: Sequence[int] | np.ndarray) -> Batch:
        numbers = np.asarray(examples, dtype=np.int64)
        inputs: dict[str, Tensor] = {}
        for name, ragged in self.features.items():
            inputs[name], inputs[f"{name}_rows"] = ragged.take(numbers)
        tags = None if self._tags is None else self._tags.take(numbers)[0]
        index = torch.from_numpy(numbers)
        return Batch(index, inputs["words_rows"], inputs, self._intents[index], tags)
