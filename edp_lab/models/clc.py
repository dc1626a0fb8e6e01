"""CLC: character CNN + word vectors -> two-layer bidirectional LSTM -> intent head and CRF slot head.

The paper's LSTM model (section 4.2, after Ma and Hovy 2016): hidden size 384 in each of two layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edp_lab.corpora.encoding import Batch, Labels, WordFeatures
from edp_lab.errors import UsageError
from edp_lab.models.frozen_encoder import ContextFeatures
from edp_lab.models.ghost_clipping.ops import PlainOps
from edp_lab.models.intent_slot import IntentSlotModel, dropout, to_padded
from edp_lab.models.lstm import BiLSTM, Packing

BYTES = 257  # 256 byte values and padding


@dataclass(frozen=True)
class CLCSize:
    """The paper's sizes where it gives them (hidden, layers); the rest are ours."""

    hidden: int = 384
    layers: int = 2
    word: int = 100
    character: int = 25
    filters: int = 50
    dropout: float = 0.5


class CLC(IntentSlotModel):
    """Args: `features` number the words, `vectors` (V, D) are frozen vectors for its vocabulary, else learnt; or they
    bring the words' vectors from a frozen encoder. What an encoder says the heads read themselves too, beside the LSTM:
    it knows the sentence already, and under noise the short way is learnt first."""

    features: WordFeatures | ContextFeatures
    keeps_books = True

    def __init__(
        self,
        labels: Labels,
        features: WordFeatures | ContextFeatures,
        size: CLCSize | None = None,
        vectors: Tensor | None = None,
    ) -> None:
        size = size or CLCSize()
        read = features.width if isinstance(features, ContextFeatures) else 0
        super().__init__(labels, pooled_size=2 * size.hidden + read, token_size=2 * size.hidden + read)
        self.features, self.size = features, size
        if isinstance(features, ContextFeatures):
            self.encoder, word_size = features.bert, read
        else:
            self.words = _embedding(features, size.word, vectors)
            word_size = self.words.embedding_dim
        self.characters = nn.Embedding(BYTES, size.character)
        self.convolution = nn.Linear(3 * size.character, size.filters)
        inputs = [word_size + size.filters, *[2 * size.hidden] * (size.layers - 1)]
        self.lstm = nn.ModuleList(BiLSTM(n, size.hidden) for n in inputs)

    def encode(self, batch: Batch, ops: PlainOps, dropout_key: int | None) -> tuple[Tensor, Tensor]:
        words, encoded = batch.inputs["words"], isinstance(self.features, ContextFeatures)
        if encoded:
            words = words.to(self.convolution.weight.dtype)
        else:
            words = ops.embedding(words, self.words.weight, batch.lengths)
        spelling = self._spelling(batch.inputs["characters"], batch.lengths, ops)
        x = torch.cat([words, spelling], dim=1)  # (R, word + filters)
        packing = Packing.of(batch.lengths)
        for place, layer in enumerate(self.lstm):
            assert isinstance(layer, BiLSTM)
            x = dropout(x, batch, self.size.dropout, dropout_key, place)
            x = ops.lstm(x, packing, layer.w_ih, layer.w_hh, layer.bias)
        tokens = dropout(x, batch, self.size.dropout, dropout_key, len(self.lstm))
        padded, mask = to_padded(tokens, batch.lengths)
        pooled = padded.masked_fill(~mask[..., None], -torch.inf).amax(1)
        if not encoded:
            return pooled, tokens
        mean = to_padded(words, batch.lengths)[0].sum(1) / batch.lengths[:, None]
        return torch.cat([pooled, mean], dim=1), torch.cat([tokens, words], dim=1)

    def _spelling(self, characters: Tensor, lengths: Tensor, ops: PlainOps) -> Tensor:
        """Width-3 convolution over a word's bytes, then the maximum over its positions: (R, L) -> (R, filters)."""
        characters = characters[:, : int((characters > 0).sum(1).max())]
        inside = characters > 0
        at = inside.nonzero(as_tuple=True)
        x = ops.embedding(characters, self.characters.weight, lengths) * inside[..., None]  # (R, L, character)
        x = nn.functional.pad(x, (0, 0, 1, 1))
        windows = torch.cat([x[:, :-2], x[:, 1:-1], x[:, 2:]], dim=2)
        kept = windows[at]  # only windows centred on a byte of the word
        word = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
        rows = lengths.new_zeros(len(lengths)).index_add_(0, word, inside.sum(1))
        filtered = ops.linear(kept, self.convolution.weight, self.convolution.bias, rows)
        padded = filtered.new_full((*characters.shape, filtered.shape[1]), -torch.inf)
        return torch.tanh(padded.index_put(at, filtered).amax(1))

    def config(self) -> dict[str, object]:
        if isinstance(self.features, ContextFeatures):
            return {**self.features.config(), "size": vars(self.size)}
        return {
            "words": list(self.features.words),
            "buckets": self.features.buckets,
            "size": vars(self.size),
            "vector_size": None if self.words.weight.requires_grad else self.words.weight.shape[1],
        }


def _embedding(features: WordFeatures, width: int, vectors: Tensor | None) -> nn.Embedding:
    if vectors is None:
        words = nn.Embedding(len(features.words) + features.buckets, width)
        nn.init.normal_(words.weight, std=0.5)
        return words
    if len(vectors) != len(features.words):
        raise UsageError(f"{len(vectors)} word vectors for {len(features.words)} words: give one vector per word")
    unknown = torch.zeros(features.buckets, vectors.shape[1])
    return nn.Embedding.from_pretrained(torch.cat([vectors, unknown]), freeze=True)
