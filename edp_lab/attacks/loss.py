"""The floor of membership attacks: call those members whose loss is low (Yeom et al. 2018).

Also what a model gives away about an utterance whose annotation the attacker knows:

    p = model's probability of the true intent, or of the true tag sequence as a whole
    logit p = log p - log(1 - p)

LiRA wants logits because they are close to normal over models, which losses and probabilities are not (Carlini et al.
2022). They are taken in float64, from the other classes' probabilities rather than from 1 - p, which rounds to 0 for a
model that is sure.

Utterances that do not fit the model, and a model that has diverged, are refused by `UsageError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edp_lab.attacks.target import Attacked, judged, load_checked
from edp_lab.corpora import Utterance
from edp_lab.corpora.encoding import Batch
from edp_lab.errors import UsageError
from edp_lab.models.crf import forward_backward, path_score
from edp_lab.models.intent_slot import IntentSlotModel, to_padded

Floats = NDArray[np.float64]
BATCH = 256
LEAST_NLL = 1e-12  # of a tag sequence: differences of float64 sums over a sentence carry no more
MOST = 500.0  # size of a logit; only a model with a single intent, or one that diverged, comes near


class Signals(NamedTuple):
    """Of n utterances, in their order, or of K models on the same n: arrays (n) or (K, n), float64, finite."""

    loss: Floats  # cross entropy of the intent plus the CRF's negative log-likelihood, as in training, without dropout
    intent_logit: Floats  # of the true intent, within +-`MOST`
    # Of the true tag sequence, at least -`MOST` and at most 27.6, the logit of exp(-`LEAST_NLL`); None without slots.
    tags_logit: Floats | None

    @property
    def logits(self) -> Floats:
        """Both logits side by side: (..., n, 2), or (..., n, 1) without slots."""
        return np.stack([logit for logit in self[1:] if logit is not None], axis=-1)


def scored_batches(
    model: IntentSlotModel, utterances: Sequence[Utterance], batch_size: int
) -> Iterator[tuple[Batch, Tensor, Tensor | None, Tensor]]:
    """Batches of the utterances, in another order, each with the model's scores of them, without dropout."""
    model.eval()
    for batch in model.inference_batches(model.dataset(utterances), batch_size):
        log_intent, emissions, mask = model.scores(batch)
        if not (log_intent.isfinite().all() and (emissions is None or emissions.isfinite().all())):
            raise UsageError("the model has diverged, its scores are not finite: train it again with a lower --lr")
        yield batch, log_intent, emissions, mask


@torch.no_grad()
def signals(model: IntentSlotModel, utterances: Sequence[Utterance]) -> Signals:
    """Loss and logits of each utterance."""
    intents, nll = np.empty(len(utterances)), np.empty(len(utterances))
    for batch, log_intent, emissions, mask in scored_batches(model, utterances, BATCH):
        rows, log_p, own = batch.examples.numpy(), log_intent.double(), batch.intents[:, None]
        others = log_p.scatter(1, own, -torch.inf)
        intents[rows] = (log_p.gather(1, own)[:, 0] - others.logsumexp(1)).cpu()
        if emissions is not None:
            assert batch.tags is not None
            tags, crf = to_padded(batch.tags, batch.lengths)[0], (model.crf.start, model.crf.transitions, model.crf.end)
            of_all = forward_backward(emissions, mask, *crf).log_partition
            nll[rows] = (of_all - path_score(emissions, tags, mask, *crf)).cpu()
    loss, intent_logit = np.logaddexp(0, -intents), np.clip(intents, -MOST, MOST)
    if not model.labels.tags:
        return Signals(loss, intent_logit, None)
    least = np.maximum(nll, LEAST_NLL)
    return Signals(loss + nll, intent_logit, np.clip(-least - np.log(-np.expm1(-least)), -MOST, MOST))


def attack_loss(run: str | Path) -> Attacked:
    """Call those members whose loss is low."""
    target = load_checked(run)
    return judged(target, "loss", -signals(target.model, target.pool).loss, {})
