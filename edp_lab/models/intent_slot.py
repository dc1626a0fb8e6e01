"""Joint intent and slot model, the base class of CLC and BERT: one intent per utterance, one BIO tag per word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import Batch, Dataset, Features, Labels
from edp_lab.models.crf import CRF
from edp_lab.models.ghost_clipping.ops import PLAIN, PlainOps
from edp_lab.privacy.csprng import uniform_hash


@dataclass(frozen=True)
class Prediction:
    """Prediction for one utterance: intent, its probability, tags, and p(tag) of each predicted tag."""

    intent: str
    intent_probability: float
    tags: tuple[str, ...]
    tag_probabilities: tuple[float, ...]


class IntentSlotModel(nn.Module):
    """Encoder with an intent head and a CRF slot head. A subclass provides `features`, `encode` and `config`.

    The loss of an utterance is the cross entropy of its intent (times `intent_weight`) plus the CRF's negative
    log-likelihood (paper, section 4.2). Without slot annotation, it is only the cross entropy. The loss of an utterance
    does not depend on the rest of the batch.
    """

    features: Features
    intent_weight = 1.0  # weight of the intent in the loss, set by a training run
    reads_once = False  # whether to keep an encoded data set, because encoding takes long

    def __init__(self, labels: Labels, pooled_size: int, token_size: int) -> None:
        super().__init__()
        self.labels = labels
        self.intent = nn.Linear(pooled_size, len(labels.intents))
        if labels.tags:
            self.slots = nn.Linear(token_size, len(labels.tags))
            self.crf = CRF(labels.tags)

    def encode(self, batch: Batch, ops: PlainOps, dropout_key: int | None) -> tuple[Tensor, Tensor]:
        """Return pooled (B, P) and per-token (R, D) representations, without dropout if `dropout_key` is None."""
        raise NotImplementedError

    def emissions(self, tokens: Tensor, intents: Tensor, batch: Batch, ops: PlainOps) -> Tensor:
        """Tag scores of each word: (R, D) -> (R, K). `intents` (B, I): the intent head's logits, used by subclasses."""
        return ops.linear(tokens, self.slots.weight, self.slots.bias, batch.lengths)

    def config(self) -> dict[str, object]:
        """JSON-serialisable arguments from which `edp_lab.models.load_model` rebuilds the architecture."""
        raise NotImplementedError

    def dataset(self, utterances: Sequence[Utterance]) -> Dataset:
        """Encode the utterances as inputs of this model."""
        return Dataset(utterances, self.labels, self.features)

    def losses(self, batch: Batch, ops: PlainOps = PLAIN, dropout_key: int | None = None) -> Tensor:
        """Loss of each utterance: (B)."""
        pooled, tokens = self.encode(batch, ops, dropout_key)
        logits = ops.linear(pooled, self.intent.weight, self.intent.bias)
        loss = F.cross_entropy(logits, batch.intents, reduction="none")
        if batch.tags is None:
            return loss
        loss = self.intent_weight * loss
        padded, mask = to_padded(self.emissions(tokens, logits.detach(), batch, ops), batch.lengths)
        return loss + ops.crf(padded, to_padded(batch.tags, batch.lengths)[0], mask, self.crf).to(loss.dtype)

    @torch.no_grad()
    def scores(self, batch: Batch) -> tuple[Tensor, Tensor | None, Tensor]:
        """log p(intent) (B, I), emissions (B, T, K) or None, and the token mask (B, T); no dropout."""
        pooled, tokens = self.encode(batch, PLAIN, None)
        emissions, logits = None, self.intent(pooled)
        if self.labels.tags:
            emissions, mask = to_padded(self.emissions(tokens, logits, batch, PLAIN), batch.lengths)
        else:
            mask = torch.arange(int(batch.lengths.max()), device=pooled.device) < batch.lengths[:, None]
        return logits.log_softmax(-1), emissions, mask

    def predict(self, data: Dataset, batch_size: int = 128, probabilities: bool = True) -> list[Prediction]:
        """Predict all utterances of a data set, in order; `probabilities`: whether to compute p(tag)."""
        predictions: dict[int, Prediction] = {}
        for batch in self.inference_batches(data, batch_size):
            log_intent, emissions, mask = self.scores(batch)
            intents = log_intent.argmax(-1).tolist()
            tags: list[list[int]] = [[]] * len(intents)
            chosen: list[list[float]] = [[]] * len(intents)
            if emissions is not None:
                tags = self.crf.decode(emissions, mask)
                if probabilities:
                    marginals = self.crf.marginals(emissions, mask)
                    chosen = [marginals[k, range(len(path)), path].tolist() for k, path in enumerate(tags)]
            for k, example in enumerate(batch.examples.tolist()):
                predictions[example] = Prediction(
                    self.labels.intents[intents[k]],
                    float(log_intent[k, intents[k]].exp()),
                    tuple(self.labels.tags[t] for t in tags[k]),
                    tuple(chosen[k]),
                )
        return [predictions[k] for k in range(len(data))]

    def inference_batches(self, data: Dataset, batch_size: int) -> Iterator[Batch]:
        """Yield all examples in batches of similar length, for speed. Use this only for inference."""
        device = next(self.parameters()).device
        order = np.argsort(data.lengths, kind="stable")
        for start in range(0, len(order), batch_size):
            yield data.batch(order[start : start + batch_size]).to(device)


def to_padded(flat: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Pad flat token rows (R, ...) with zeros to (B, T, ...); also return the mask (B, T)."""
    mask = torch.arange(int(lengths.max()), device=flat.device) < lengths[:, None]
    padded = flat.new_zeros(*mask.shape, *flat.shape[1:]).index_put(mask.nonzero(as_tuple=True), flat)
    return padded, mask


def mean(rows: Tensor, lengths: Tensor) -> Tensor:
    """Mean over each utterance's words: (R, D) -> (B, D)."""
    return to_padded(rows, lengths)[0].sum(1) / lengths[:, None]


def max_pool(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Maximum over each utterance's words: (R, D) -> (B, D)."""
    padded, mask = to_padded(tokens, lengths)
    return padded.masked_fill(~mask[..., None], -torch.inf).amax(1)


def dropout(x: Tensor, batch: Batch, rate: float, key: int | None, place: int) -> Tensor:
    """Variational dropout: one mask per utterance, shared by its tokens, drawn from (key, place, example).

    Masks are keyed by example, not drawn in order, so one process that simulates N devices matches N real ranks.
    x is (R, D) with one row per token, or (B, D) with one row per utterance.
    """
    if key is None or rate == 0:
        return x
    uniform = uniform_hash(key, place, batch.examples.numpy(), x.shape[-1])
    mask = (torch.from_numpy(uniform).to(x.device) >= rate).to(x.dtype) / (1 - rate)
    return x * (mask if len(mask) == len(x) else mask.repeat_interleave(batch.lengths, 0))
