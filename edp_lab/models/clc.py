"""CLC: character CNN + word vectors -> two-layer bidirectional LSTM -> intent head and CRF slot head.

This is the paper's LSTM model (section 4.2, after Ma and Hovy 2016), with hidden size 384 in each of two layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edp_lab.corpora.encoding import Batch, Labels, WordFeatures
from edp_lab.errors import UsageError
from edp_lab.models.ghost_clipping.ops import PlainOps
from edp_lab.models.intent_slot import IntentSlotModel, dropout, max_pool
from edp_lab.models.lstm import BiLSTM, Packing, bilstm

BYTES = 257  # 256 byte values and padding


@dataclass(frozen=True)
class CLCSize:
    """Layer sizes. The paper states `hidden` and `layers`; the other sizes are our choice."""

    hidden: int = 384
    layers: int = 2
    word: int = 100
    character: int = 25
    filters: int = 50
    dropout: float = 0.5


class CLC(IntentSlotModel):
    """The paper's LSTM network.

    Args:
        features: encoder that maps words to indices.
        vectors: (V, D) frozen vectors of the vocabulary; None for trainable vectors.
        more_pooled, more_token: numbers of additional inputs to the intent head and the slot head, for subclasses.
    """

    features: WordFeatures

    def __init__(
        self,
        labels: Labels,
        features: WordFeatures,
        size: CLCSize | None = None,
        vectors: Tensor | None = None,
        *,
        more_pooled: int = 0,
        more_token: int = 0,
    ) -> None:
        size = size or CLCSize()
        super().__init__(labels, 2 * size.hidden + more_pooled, 2 * size.hidden + more_token)
        self.features, self.size = features, size
        word_size = self._build_words(vectors)
        self.characters = nn.Embedding(BYTES, size.character)
        self.convolution = nn.Linear(3 * size.character, size.filters)
        inputs = [word_size + size.filters, *[2 * size.hidden] * (size.layers - 1)]
        self.lstm = nn.ModuleList(BiLSTM(n, size.hidden) for n in inputs)

    def _build_words(self, vectors: Tensor | None) -> int:
        """Create the table of word vectors, and return their width."""
        count, unknown = len(self.features.words), self.features.buckets
        if vectors is None:
            self.words = nn.Embedding(count + unknown, self.size.word)
            nn.init.normal_(self.words.weight, std=0.5)
        elif len(vectors) == count:
            rows = torch.cat([vectors, torch.zeros(unknown, vectors.shape[1])])
            self.words = nn.Embedding.from_pretrained(rows, freeze=True)
        else:
            raise UsageError(f"{len(vectors)} word vectors for {count} words: give one vector per word")
        return self.words.embedding_dim

    def _word_vectors(self, batch: Batch, ops: PlainOps) -> Tensor:
        """Vector of each word: (R, D)."""
        return ops.embedding(batch.inputs["words"], self.words.weight, batch.lengths)

    def encode(self, batch: Batch, ops: PlainOps, dropout_key: int | None) -> tuple[Tensor, Tensor]:
        tokens = self._tokens(self._word_vectors(batch, ops), batch, ops, dropout_key)
        return max_pool(tokens, batch.lengths), tokens

    def _tokens(self, words: Tensor, batch: Batch, ops: PlainOps, dropout_key: int | None) -> Tensor:
        """LSTM states of each word: (R, D) -> (R, 2H)."""
        x = torch.cat([words, self._spelling(batch.inputs["characters"], batch.lengths, ops)], dim=1)
        packing = Packing.of(batch.lengths)
        for place, layer in enumerate(self.lstm):
            assert isinstance(layer, BiLSTM)
            x = dropout(x, batch, self.size.dropout, dropout_key, place)
            x = bilstm(x, packing, layer.w_ih, layer.w_hh, layer.bias, ops)
        return dropout(x, batch, self.size.dropout, dropout_key, len(self.lstm))

    def _spelling(self, characters: Tensor, lengths: Tensor, ops: PlainOps) -> Tensor:
        """Width-3 convolution over a word's bytes, then the maximum over its positions: (R, L) -> (R, filters)."""
        inside = characters > 0
        at, counts = inside.nonzero(as_tuple=True), inside.sum(1)  # counts: bytes per word
        word = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
        rows = lengths.new_zeros(len(lengths)).index_add_(0, word, counts)
        x = ops.embedding(characters[at], self.characters.weight, rows)  # all bytes, in order: (K, character)
        # Whether a byte begins or ends a word.
        first, last = torch.zeros(2, len(x), 1, dtype=torch.bool, device=x.device)
        ends, filled = counts.cumsum(0), counts > 0
        first[(ends - counts)[filled]], last[ends[filled] - 1] = True, True
        # Filled rather than multiplied by 0, because NaN must not spread from one word to the next.
        before, after = x.roll(1, 0).masked_fill(first, 0), x.roll(-1, 0).masked_fill(last, 0)
        windows = torch.cat([before, x, after], dim=1)
        filtered = ops.linear(windows, self.convolution.weight, self.convolution.bias, rows)
        padded = filtered.new_full((len(counts), int(counts.max()), filtered.shape[1]), -torch.inf)
        return torch.tanh(padded.index_put(at, filtered).amax(1))

    def config(self) -> dict[str, object]:
        return {
            "words": list(self.features.words),
            "buckets": self.features.buckets,
            "size": vars(self.size),
            "vector_size": None if self.words.weight.requires_grad else self.words.weight.shape[1],
        }
