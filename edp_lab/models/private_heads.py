"""The models of the recipe: a CLC whose heads read whitened features, and heads alone on what it has read once.

The noise on a head's gradient is isotropic, so the features that the head learns from should be, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from edp_lab.corpora.corpus import Ragged, Utterance
from edp_lab.corpora.encoding import Batch, Dataset, Labels, WordFeatures
from edp_lab.models.clc import CLC, CLCSize
from edp_lab.models.ghost_clipping.ops import PLAIN, PlainOps
from edp_lab.models.intent_slot import dropout, max_pool, mean
from edp_lab.models.label_names import LabelNameFeatures

HEADS = ("intent", "slots", "slot_words", "slot_intents", "crf")
AT_ONCE = 256  # utterances that are read together


class Whitening(nn.Module):
    """x (n, D) -> (x - mean) @ map (D, D). Without a `fit` x stays as it is.

    After it public text, so read, varies around zero, about equally in all directions, and the mean distance from the
    mean is what it was. A direction in which it hardly varies is not stretched in full: a `FLOOR` is added to its
    variance. `favour` then stretches what tells public labels apart: other labels will differ there, too.
    """

    mean: Tensor
    map: Tensor
    FLOOR = 0.03  # of the mean variance
    EVEN = 3.0  # times the mean variance of heads, added in each direction

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("map", torch.eye(size))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) @ self.map

    def fit(self, x: Tensor) -> None:
        """Set it from public rows (n, D), n >= 2."""
        self.mean.copy_(x.mean(0))
        variances, axes = torch.linalg.eigh(torch.cov(x.T).double())
        scales = (variances.clamp_min(0) + self.FLOOR * variances.mean()).rsqrt()
        matrix = (axes * scales @ axes.T).to(x.dtype)
        centred = x - self.mean
        self.map.copy_(matrix * (centred.norm(dim=1).mean() / (centred @ matrix).norm(dim=1).mean()))

    def favour(self, heads: Tensor) -> None:
        """Stretch the directions in which these heads of public labels differ (K, D), and shrink the others: those of
        the starts that come with edp_lab by 0.9 to 5.5. With fewer than two different heads nothing changes.

        Under noise, to learn from x @ map is to expect of new heads the covariance map @ map.T: here a quarter that of
        known heads, three quarters alike in all directions.
        """
        if len(heads) < 2:
            return
        variances, axes = torch.linalg.eigh(torch.cov(heads.T).double())
        variances = variances.clamp_min(torch.finfo(variances.dtype).tiny)
        scales = (variances / variances.mean() + self.EVEN).sqrt()
        self.map.copy_(self.map.double() @ (axes * (scales / scales.square().mean().sqrt()) @ axes.T))


class WhitenedCLC(CLC):
    """A CLC whose heads also read the word vectors, and pools by mean beside maximum; all of it whitened."""

    def __init__(
        self, labels: Labels, features: WordFeatures, size: CLCSize, vectors: Tensor, *, more_pooled: int = 0
    ) -> None:
        beside, token = 2 * size.hidden + size.word, size.word
        super().__init__(labels, features, size, vectors, more_pooled=beside + more_pooled, more_token=token)
        self.pooled_view, self.token_view = Whitening(2 * size.hidden + beside), Whitening(2 * size.hidden + token)

    def encode(self, batch: Batch, ops: PlainOps, dropout_key: int | None) -> tuple[Tensor, Tensor]:
        words = self._word_vectors(batch, ops)
        tokens = self._tokens(words, batch, ops, dropout_key)
        both = torch.cat([tokens, words], dim=1)
        pooled = torch.cat([max_pool(tokens, batch.lengths), mean(both, batch.lengths)], dim=1)
        return self.pooled_view(pooled), self.token_view(both)

    def config(self) -> dict[str, object]:
        return {**super().config(), "whitened": True}


class PrivateHeads(WhitenedCLC):
    """An intent head, a slot head and a CRF on a frozen `WhitenedCLC`; nothing else learns.

    Heads also read which words there are and which labels they name (`LabelNameFeatures`), and the slot head reads the
    intent head's answer ("slot-gated", Goo et al. 2018). A data set is read once: 7 kB an utterance, 1.5 kB a word.
    """

    reads_once = True

    def __init__(self, labels: Labels, features: WordFeatures, size: CLCSize, vectors: Tensor) -> None:
        names = LabelNameFeatures(features, labels.intents)
        super().__init__(labels, features, size, vectors, more_pooled=names.size)
        self.label_names = names
        if labels.tags:
            self.slot_words = nn.Embedding(names.rows, len(labels.tags))
            self.slot_intents = nn.Linear(len(labels.intents), len(labels.tags), bias=False)
            nn.init.zeros_(self.slot_words.weight)
            nn.init.zeros_(self.slot_intents.weight)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.partition(".")[0] in HEADS)

    @torch.no_grad()
    def dataset(self, utterances: Sequence[Utterance]) -> Dataset:
        """The utterances as the heads read them: inputs "sentence" (P), "words" (R, D) and "near" (R, 3)."""
        data = super().dataset(utterances)
        ends = np.cumsum(data.lengths)
        words = np.zeros((ends[-1], len(self.token_view.mean)), np.float32)
        sentences = np.zeros((len(data), self.intent.in_features), np.float32)
        near = np.zeros((ends[-1], 3), np.int64)
        for batch in self.inference_batches(data, AT_ONCE):
            pooled, tokens = super().encode(batch, PLAIN, None)
            numbers, examples = batch.inputs["words"], batch.examples.numpy()
            named = self.label_names(numbers, batch.lengths, self.words.weight)
            sentences[examples] = torch.cat([pooled, named], dim=1).float().cpu().numpy()
            spans = zip(ends[examples].tolist(), batch.lengths.tolist(), strict=True)
            rows = np.concatenate([np.arange(end - length, end) for end, length in spans])
            words[rows] = tokens.float().cpu().numpy()
            near[rows] = self.label_names.near(numbers, batch.lengths).cpu()
        of_words = np.append(0, ends)
        data.features = {
            "words": Ragged(words, of_words),
            "near": Ragged(near, of_words),
            "sentence": Ragged(sentences, np.arange(len(data) + 1)),
        }
        return data

    def encode(self, batch: Batch, ops: PlainOps, dropout_key: int | None) -> tuple[Tensor, Tensor]:
        both = (batch.inputs[name].to(self.intent.weight.dtype) for name in ("sentence", "words"))
        sentence, tokens = (dropout(x, batch, self.size.dropout, dropout_key, k) for k, x in enumerate(both))
        return sentence, tokens

    def emissions(self, tokens: Tensor, intents: Tensor, batch: Batch, ops: PlainOps) -> Tensor:
        emissions = super().emissions(tokens, intents, batch, ops)
        names = self.label_names
        looked_up = ops.embedding(batch.inputs["near"], self.slot_words.weight, batch.lengths)  # (R, 3, K)
        emissions = emissions + (looked_up * looked_up.new_tensor(names.WORD_WEIGHTS)[:, None]).sum(1)
        meant = ops.linear(names.INTENT_WEIGHT * intents.softmax(-1), self.slot_intents.weight, None)  # (B, K)
        return emissions + meant.repeat_interleave(batch.lengths, 0)

    def config(self) -> dict[str, object]:
        return {**super().config(), "label_names": LabelNameFeatures.FORM}
