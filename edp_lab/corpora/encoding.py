"""Encode utterances as tensors: label indices, features, and batches in which examples stay independent.

All arrays are flat, with one row per token, example after example. Nothing is padded until a model needs it, and the
encoding of an utterance does not depend on the rest of its batch.

BERT reads word pieces, but slots are tagged by word. A word is represented by its first piece (Devlin et al. 2019,
arXiv 1810.04805, section 5.3); the other pieces are encoded but have no tag.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

from edp_lab.corpora.corpus import Corpus, Ragged, Utterance, Words, numbered
from edp_lab.errors import UsageError

WORD_BYTES = 16  # number of bytes of a word that the character CNN reads
HASH_BUCKETS = 4096  # number of rows shared by the words outside the vocabulary


@dataclass(frozen=True)
class Labels:
    """The label sets of a model: intents, and tags ("O" first; none without slot annotation)."""

    intents: tuple[str, ...]
    tags: tuple[str, ...]

    @classmethod
    def of(cls, corpus: Corpus) -> Labels:
        return cls(corpus.intents, corpus.tags)


class Features(Protocol):
    """Encoder that turns words into integer inputs of a model."""

    def rows(self, sentences: Sequence[Sequence[str]] | Words) -> dict[str, Ragged]:
        """Return arrays by name; "words" has one row per token."""
        ...


@dataclass(frozen=True)
class WordFeatures:
    """Word indices and UTF-8 bytes, for the CLC."""

    words: tuple[str, ...] = ()  # vocabulary, indexed from 0; private runs take it from public text or leave it empty
    buckets: int = HASH_BUCKETS  # rows shared by all other words, chosen by a stable hash of the lower-cased word

    @classmethod
    def from_training_words(cls, utterances: Sequence[Utterance]) -> WordFeatures:
        """Make a vocabulary of the words that occur at least twice; other words train the shared rows. Not private."""
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
    """Bucket of a word, ignoring case; identical on all machines."""
    return zlib.crc32(word.lower().encode(errors="surrogatepass")) % buckets


class Batch(NamedTuple):
    """A batch of examples of a data set."""

    examples: Tensor  # (B) indices in the data set, which key the dropout masks
    lengths: Tensor  # (B) tokens per example
    inputs: dict[str, Tensor]  # flat features by name, and "<name>_rows" (B) if their number differs from `lengths`
    intents: Tensor  # (B) label indices
    tags: Tensor | None  # (R) label indices, or None without slot annotation

    def to(self, device: torch.device) -> Batch:
        tags = None if self.tags is None else self.tags.to(device)
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        return Batch(self.examples, self.lengths.to(device), inputs, self.intents.to(device), tags)


class Dataset:
    """Encoded utterances, from which batches are selected.

    Raises UsageError if there are no utterances, or if an utterance has no words, labels that the model does not know,
    or more or fewer tags than words (which would shift the tags of all later utterances).
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
                f"utterance {u.text!r} (intent {u.intent!r}) does not fit the model: it needs at least one word, "
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


# ---- Word pieces -----------------------------------------------------------------------------------------------------

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class PieceFeatures:
    """Word pieces of each utterance, including [CLS] and [SEP], and the position of each word's first piece.

    If an utterance has more pieces than `positions`, we keep the first k pieces of every word, with the largest k
    that fits. So no word or tag is ever lost. The result depends only on the utterance.

    Attributes:
        tokenizer: a BERT tokenizer, see `edp_lab.models.bert.load_tokenizer`.
        positions: maximum number of pieces that the model can read.
    """

    tokenizer: Tokenizer
    positions: int = 512

    def rows(self, sentences: Sequence[Sequence[str]] | Words) -> dict[str, Ragged]:
        """Return each utterance's piece indices ("pieces"), and the position of each word's first piece ("words").

        Raises:
            UsageError: an utterance has too many words for the model.
        """
        numbers = self.tokenizer.get_vocab()
        unknown, start, stop = (numbers[piece] for piece in ("[UNK]", "[CLS]", "[SEP]"))
        indexed = sentences if isinstance(sentences, Words) else Words.of(sentences)
        encoded = self.tokenizer.encode_batch(list(indexed.types), add_special_tokens=False)
        pieces_of = [e.ids or [unknown] for e in encoded]
        pieces, words, room = [], [], self.positions - 2
        for k in range(len(indexed.numbers)):
            codes = indexed.numbers.gather(np.array([k]))[0].tolist()
            if len(codes) > room:
                start_of_it = " ".join(indexed.types[w] for w in codes[:5])
                raise UsageError(
                    f"the utterance '{start_of_it} ...' has {len(codes)} words, but this BERT model reads at most "
                    f"{room}: leave it out or split it"
                )
            split = [pieces_of[w] for w in codes]
            longest = max(map(len, split))
            while sum(min(len(word), longest) for word in split) > room:
                longest -= 1
            split = [word[:longest] for word in split]
            pieces.append(np.array([start, *chain(*split), stop], dtype=np.int64))
            words.append(1 + np.cumsum([0, *map(len, split[:-1])], dtype=np.int64))
        return {"pieces": Ragged.of(pieces), "words": Ragged.of(words)}


def wordpiece_tokenizer(vocabulary: Sequence[str], lower_case: bool = True) -> Tokenizer:
    """BERT's tokenizer for a vocabulary in index order, which must contain the five special pieces.

    Raises:
        UsageError: a special piece is missing.
    """
    numbers = {piece: k for k, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    check_special(tokenizer)
    ends = [(piece, numbers[piece]) for piece in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


def parse_tokenizer(text: str) -> Tokenizer:
    """Parse a tokenizer from JSON, and turn off truncation and padding, which would misplace words."""
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    check_special(tokenizer)
    return tokenizer


def check_special(tokenizer: Tokenizer) -> None:
    """Raise UsageError if a special piece is missing from the tokenizer's vocabulary."""
    for piece in SPECIAL:
        if tokenizer.token_to_id(piece) is None:
            raise UsageError(f"the tokenizer has no {piece} piece: use a tokenizer made for BERT")


def train_wordpieces(sentences: Sequence[Sequence[str]], size: int = 8000) -> Tokenizer:
    """Train a lower-casing tokenizer with a vocabulary of at most about `size` pieces on the sentences.

    The same sentences yield the same vocabulary. (The trainer numbers the pieces "##c" of single characters in the
    order of a hash map, and breaks ties by number. Listing these pieces beforehand makes the result deterministic.)
    Not private: the vocabulary reveals words of the text.
    """
    lower = normalizers.BertNormalizer(lowercase=True)
    text = [" ".join(sentence) for sentence in sentences]
    characters = sorted(set(lower.normalize_str("".join(text))) - {" "})
    alphabet = [*characters, *(f"##{c}" for c in characters)]
    learner = wordpiece_tokenizer(SPECIAL)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, special_tokens=[*SPECIAL, *alphabet], show_progress=False
    )
    learner.train_from_iterator(text, trainer)
    numbers = learner.get_vocab()
    return wordpiece_tokenizer(sorted(numbers, key=numbers.__getitem__))
