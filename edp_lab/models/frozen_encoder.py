"""Words as a frozen encoder reads them: for the CLC, in place of word vectors.

A published encoder knows what a word means in its sentence. Frozen, it is no parameter: nothing of it is clipped or
noised, and an utterance is encoded once for a whole run. What is left to be trained privately is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from edp_lab.corpora.corpus import Ragged, Words
from edp_lab.corpora.encoding import WordFeatures

if TYPE_CHECKING:  # slow to import
    from transformers import BertModel

    from edp_lab.models.wordpiece import PieceFeatures

AT_ONCE = 256  # utterances that are encoded together
KEPT = 20_000  # different utterances that are remembered: a validation split is read after every epoch


class ContextFeatures:
    """A vector (D) for each word in its sentence, and the word's UTF-8 bytes, for the CLC.

    The vector is the mean over the word's pieces and over the encoder's layers, its embeddings among them. It depends
    on the utterance alone and on the encoder, which is assumed public.
    """

    def __init__(self, bert: BertModel, pieces: PieceFeatures) -> None:
        self.bert, self.pieces = bert.requires_grad_(False), pieces
        self._spelling = WordFeatures((), 1)
        self._known: dict[tuple[str, ...], np.ndarray] = {}

    @property
    def width(self) -> int:
        return int(self.bert.config.hidden_size)

    def config(self) -> dict[str, object]:
        """JSON-able, see `IntentSlotModel.config`."""
        from edp_lab.models.bert import described

        return described(self.bert, self.pieces.tokenizer)

    def rows(self, sentences: Sequence[Sequence[str]] | Words) -> dict[str, Ragged]:
        """Vectors ("words"), (R, D) in float32, and bytes ("characters") of R words.

        Raises:
            UsageError: see `PieceFeatures.rows`.
        """
        found = sentences if isinstance(sentences, Words) else Words.of(sentences)
        numbers = (found.numbers.gather(np.array([k]))[0] for k in range(len(found.numbers)))
        read = [tuple(found.types[w] for w in own.tolist()) for own in numbers]
        missing = sorted(set(read) - self._known.keys(), key=lambda words: (len(words), words))
        if len(self._known) + len(missing) > KEPT:
            self._known, missing = {}, sorted(set(read), key=lambda words: (len(words), words))
        for start in range(0, len(missing), AT_ONCE):
            some = missing[start : start + AT_ONCE]
            self._known |= zip(some, self._encoded(some), strict=True)
        vectors = Ragged.of([self._known[words] for words in read])
        return {"words": vectors, "characters": self._spelling.rows(found)["characters"]}

    @torch.no_grad()
    def _encoded(self, sentences: Sequence[tuple[str, ...]]) -> list[np.ndarray]:
        from edp_lab.models.bert import encode_layers

        found, every, device = self.pieces.rows(sentences), np.arange(len(sentences)), self.bert.device
        pieces, rows = (part.to(device) for part in found["pieces"].take(every))
        words, lengths = (part.to(device) for part in found["words"].take(every))
        layers = list(encode_layers(self.bert, pieces, rows))
        mixed = word_means(torch.stack(layers).mean(0), rows, words, lengths)
        return [part.float().cpu().numpy() for part in mixed.split(lengths.tolist())]


def word_means(hidden: Tensor, rows: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
    """Means over the pieces of each word, (P, D) -> (R, D); see `PieceFeatures.rows` for `words`.

    Args:
        hidden: of all pieces, each utterance's [CLS] first and [SEP] last.
        rows: (B) pieces of each utterance; `lengths`: (B) its words.
        words: (R) places of first pieces within their utterance.
    """
    stop = rows.cumsum(0)  # behind each utterance's [SEP]
    start = (stop - rows).repeat_interleave(lengths) + words
    ends = torch.cat([start[1:], start.new_zeros(1)])
    ends[lengths.cumsum(0) - 1] = stop - 1
    counts = ends - start
    word = torch.arange(len(words), device=hidden.device).repeat_interleave(counts)
    inner = torch.arange(len(word), device=hidden.device) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    sums = hidden.new_zeros(len(words), hidden.shape[1]).index_add_(0, word, hidden[start[word] + inner])
    return sums / counts[:, None]
