"""A CLC that reads words by a frozen encoder, such as a published BERT, in place of word vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertModel

from edp_lab.corpora.corpus import Ragged, Words
from edp_lab.corpora.encoding import Batch, Labels, WordFeatures
from edp_lab.models.bert import described, encode_layers
from edp_lab.models.clc import CLC, CLCSize
from edp_lab.models.ghost_clipping.ops import PlainOps
from edp_lab.models.intent_slot import max_pool, mean
from edp_lab.models.wordpiece import PieceFeatures

AT_ONCE = 256  # utterances that are encoded together
KEPT = 20_000  # different utterances that are remembered: a validation split is read after every epoch


class ContextFeatures:
    """A vector (D) for each word in its sentence, and the word's UTF-8 bytes: for the CLC, in place of word vectors.

    A published encoder knows what a word means in its sentence. Frozen, it is no parameter: nothing of it is clipped or
    noised, and an utterance is encoded once for a whole run. What is left to be trained privately is small.
    The vector is the mean over the word's pieces and over the encoder's layers, its embeddings among them. It depends
    on the utterance alone and on the encoder, which is assumed public.
    """

    def __init__(self, bert: BertModel, tokenizer: Tokenizer) -> None:
        self.bert = bert.requires_grad_(False)
        self.pieces = PieceFeatures(tokenizer, bert.config.max_position_embeddings)
        self._spelling = WordFeatures((), 1)
        self._known: dict[tuple[str, ...], np.ndarray] = {}

    @property
    def width(self) -> int:
        return int(self.bert.config.hidden_size)

    def rows(self, sentences: Sequence[Sequence[str]] | Words) -> dict[str, Ragged]:
        """Vectors ("words"), (R, D) in float32, and bytes ("characters") of R words.

        Raises:
            UsageError: see `PieceFeatures.rows`.
        """
        indexed = sentences if isinstance(sentences, Words) else Words.of(sentences)
        numbers = (indexed.numbers.gather(np.array([k]))[0] for k in range(len(indexed.numbers)))
        read = [tuple(indexed.types[w] for w in utterance.tolist()) for utterance in numbers]
        if len(self._known.keys() | set(read)) > KEPT:
            self._known = {}
        missing = sorted(set(read) - self._known.keys(), key=lambda words: (len(words), words))
        for start in range(0, len(missing), AT_ONCE):
            some = missing[start : start + AT_ONCE]
            self._known |= zip(some, self._encoded(some), strict=True)
        vectors = Ragged.of([self._known[words] for words in read])
        return {"words": vectors, "characters": self._spelling.rows(indexed)["characters"]}

    @torch.no_grad()
    def _encoded(self, sentences: Sequence[tuple[str, ...]]) -> list[np.ndarray]:
        encoded, every, device = self.pieces.rows(sentences), np.arange(len(sentences)), self.bert.device
        pieces, rows = (part.to(device) for part in encoded["pieces"].take(every))
        words, lengths = (part.to(device) for part in encoded["words"].take(every))
        hidden = torch.stack(list(encode_layers(self.bert, pieces, rows))).mean(0)  # (P, D)
        stop = rows.cumsum(0)  # behind each utterance's [SEP]
        start = stop - rows  # its [CLS]
        first = start.repeat_interleave(lengths) + words  # piece of each word
        inside = torch.ones_like(pieces, dtype=torch.bool)
        inside[start] = inside[stop - 1] = False
        word = torch.zeros_like(pieces).index_fill_(0, first, 1).cumsum(0)[inside] - 1
        sums = hidden.new_zeros(len(words), hidden.shape[1]).index_add_(0, word, hidden[inside])
        means = sums / word.bincount(minlength=len(words))[:, None]
        return [part.float().cpu().numpy() for part in means.split(lengths.tolist())]


class FrozenEncoderCLC(CLC):
    """A CLC on `ContextFeatures`. Its heads also read the encoder's vectors: under noise that path trains faster."""

    features: ContextFeatures  # type: ignore[assignment]

    def __init__(self, labels: Labels, features: ContextFeatures, size: CLCSize | None = None) -> None:
        width = features.width
        super().__init__(labels, features, size, more_pooled=width, more_token=width)  # type: ignore[arg-type]

    def _build_words(self, vectors: Tensor | None) -> int:
        self.encoder = self.features.bert
        return self.features.width

    def _word_vectors(self, batch: Batch, ops: PlainOps) -> Tensor:
        return batch.inputs["words"].to(self.convolution.weight.dtype)

    def encode(self, batch: Batch, ops: PlainOps, dropout_key: int | None) -> tuple[Tensor, Tensor]:
        words = self._word_vectors(batch, ops)
        tokens = self._tokens(words, batch, ops, dropout_key)
        pooled = torch.cat([max_pool(tokens, batch.lengths), mean(words, batch.lengths)], dim=1)
        return pooled, torch.cat([tokens, words], dim=1)

    def config(self) -> dict[str, object]:
        return {**described(self.features.bert, self.features.pieces.tokenizer), "size": vars(self.size)}
