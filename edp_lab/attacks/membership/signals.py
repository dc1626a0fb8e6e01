"""What a model gives away about an utterance whose annotation the attacker knows: its loss, logits and sorted scores.

    p = model's probability of the true intent, or of the true tag sequence as a whole
    logit p = log p - log(1 - p)

LiRA wants logits because they are close to normal over models, which losses and probabilities are not (Carlini et al.
2022). They are taken in float64, from the other classes' probabilities rather than from 1 - p, which
rounds to 0 for a model that is sure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import Batch
from edp_lab.errors import UsageError
from edp_lab.models.crf import forward_backward, path_score
from edp_lab.models.intent_slot import IntentSlotModel, to_padded

Floats = NDArray[np.float64]
LEAST_NLL = 1e-12  # of a tag sequence: differences of float64 sums over a sentence carry no more
MOST = 500.0  # size of a logit; only a model with a single intent, or one that diverged, comes near


@dataclass(frozen=True)
class Signals:
    """Of n utterances, in their order, or of K models on the same n: arrays (n) or (K, n), float64, finite.

    Attributes:
        loss: cross entropy of the intent plus the CRF's negative log-likelihood, as in training but without dropout.
        intent_logit: of the true intent, within +-`MOST`.
        tags_logit: of the true tag sequence, at least -`MOST` and at most 27.6, the logit of exp(-`LEAST_NLL`); None
            for a model without slots.
    """

    loss: Floats
    intent_logit: Floats
    tags_logit: Floats | None

    @property
    def logits(self) -> Floats:
        """Both logits side by side: (..., n, 2), or (..., n, 1) without slots."""
        both = (self.intent_logit,) if self.tags_logit is None else (self.intent_logit, self.tags_logit)
        return np.stack(both, axis=-1)


def signals(model: IntentSlotModel, utterances: Sequence[Utterance], batch_size: int = 256) -> Signals:
    """Loss and logits of each utterance.

    Raises:
        UsageError: no utterances, one with labels that the model does not know, or a model whose scores are not finite.
    """
    intents = np.empty(len(utterances))
    tags = np.empty(len(utterances)) if model.labels.tags else None

    def note(batch: Batch, log_intent: Tensor, emissions: Tensor | None, mask: Tensor) -> None:
        rows = batch.examples.numpy()
        intents[rows] = _numpy(_log_odds(log_intent.double(), batch.intents))
        if tags is not None:
            assert emissions is not None
            tags[rows] = _numpy(_tags_nll(model, batch, emissions, mask))

    _each_batch(model, utterances, batch_size, note)
    return Signals(
        loss=np.logaddexp(0, -intents) + (0 if tags is None else tags),
        intent_logit=np.clip(intents, -MOST, MOST),
        tags_logit=None if tags is None else np.clip(_logit(tags), -MOST, MOST),
    )


def sorted_scores(
    model: IntentSlotModel, utterances: Sequence[Utterance], intent_width: int, slot_width: int, batch_size: int = 256
) -> Floats:
    """The paper's features (section 4.3: "sorted IC and NER output scores"): (n, intent_width + slot_width).

    First p(intent), largest first. Then the same for slots: at each token the CRF's marginals p(tag), largest first,
    and over the tokens of the utterance their mean. So no number depends on what labels mean, on how many there are
    (those beyond the width are cut, those that do not exist are 0, as their probability is) or on how long the
    utterance is. The true labels are not used. Without slots, the slot features are 0.

    Raises:
        UsageError: as `signals`, or a width below 1.
    """
    if min(intent_width, slot_width) < 1:
        raise UsageError(f"{intent_width} intent and {slot_width} slot scores: use at least 1 of each")
    found = np.zeros((len(utterances), intent_width + slot_width))

    def note(batch: Batch, log_intent: Tensor, emissions: Tensor | None, mask: Tensor) -> None:
        rows = batch.examples.numpy()
        _fill(found[:, :intent_width], rows, _descending(log_intent.double().exp()))
        if emissions is not None:
            marginals = _descending(model.crf.marginals(emissions, mask).double())  # (B, T, K)
            _fill(found[:, intent_width:], rows, marginals.sum(1) / batch.lengths[:, None])

    _each_batch(model, utterances, batch_size, note)
    return found


def _each_batch(
    model: IntentSlotModel,
    utterances: Sequence[Utterance],
    batch_size: int,
    note: Callable[[Batch, Tensor, Tensor | None, Tensor], None],
) -> None:
    model.eval()
    with torch.no_grad():
        for batch in model.inference_batches(model.dataset(utterances), batch_size):
            log_intent, emissions, mask = model.scores(batch)
            if not (log_intent.isfinite().all() and (emissions is None or emissions.isfinite().all())):
                raise UsageError("the model has diverged, its scores are not finite: train it again with a lower --lr")
            note(batch, log_intent, emissions, mask)


def _log_odds(log_p: Tensor, chosen: Tensor) -> Tensor:
    """log p - log(1 - p) of one class in each row: (B, I), (B) -> (B)."""
    of_chosen = log_p.gather(1, chosen[:, None])[:, 0]
    others = log_p.scatter(1, chosen[:, None], -torch.inf)
    return of_chosen - others.logsumexp(1)


def _tags_nll(model: IntentSlotModel, batch: Batch, emissions: Tensor, mask: Tensor) -> Tensor:
    """-log p(true tags), (B), float64."""
    assert batch.tags is not None
    scores = model.crf.start, model.crf.transitions, model.crf.end
    tags = to_padded(batch.tags, batch.lengths)[0]
    return forward_backward(emissions, mask, *scores).log_partition - path_score(emissions, tags, mask, *scores)


def _logit(nll: Floats) -> Floats:
    """Of p = exp(-nll)."""
    nll = np.maximum(nll, LEAST_NLL)
    return np.asarray(-nll - np.log(-np.expm1(-nll)))


def _descending(scores: Tensor) -> Tensor:
    return scores.sort(-1, descending=True).values


def _fill(out: Floats, rows: NDArray[np.int64], scores: Tensor) -> None:
    """Put the first scores of each row, as many as fit, into those rows of `out`."""
    first = _numpy(scores)[:, : out.shape[1]]
    out[rows, : first.shape[1]] = first


def _numpy(values: Tensor) -> Floats:
    return np.asarray(values.cpu().numpy(), dtype=np.float64)
