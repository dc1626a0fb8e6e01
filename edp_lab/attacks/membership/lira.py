"""LiRA, the likelihood-ratio attack (Carlini et al. 2022, "Membership Inference Attacks From First Principles").

How sure a model is of an utterance depends mostly on the utterance. So an attacker trains shadow models with it and
without it, and asks which of the two the target looks like. A logit is about normal over models; here there are two,
of the intent and of the tag sequence, taken as independent. Measured on ATIS with 16 shadow models, their correlation
within an utterance is 0.07, a full covariance gains nothing, both logits together beat either alone, and one variance
for all utterances beats each utterance's own.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edp_lab.attacks.membership.shadow_models import ShadowSignals
from edp_lab.attacks.membership.signals import Floats, Signals
from edp_lab.errors import UsageError

MANY = 64  # shadow models, from which on an utterance's own variance is known well enough (Carlini et al., ablation)
LEAST_VARIANCE = 1e-6  # where all models agree


def loss_threshold(target: Signals) -> Floats:
    """The floor: minus the loss (Yeom et al. 2018), (n)."""
    return -target.loss


def lira_scores(
    target: Signals, shadows: ShadowSignals, online: bool = True, fixed_variance: bool | None = None
) -> Floats:
    """Evidence that each utterance was in the target's training set: (n), larger is more.

    Online: the log-likelihood ratio of the target's logits, log N(x; mu_in, v_in) - log N(x; mu_out, v_out), summed
    over the logits (their algorithm 1). Offline, from models without the utterance only: how far the logits lie above
    those of the models, z = (x - mu_out) / sqrt(v_out), summed and divided by the root of their number. That is about
    standard normal for a non-member, so its upper tail is the p-value of their one-sided test.

    Args:
        target: arrays (n).
        shadows: arrays (K, n), with at least two models with and two without each utterance.
        fixed_variance: one v_in and one v_out for all utterances, the mean of their variances over models, in place
            of each utterance's own; None: if there are fewer than 64 models.

    Raises:
        UsageError: signals of other utterances or of a model with other heads, or too few models.
    """
    x, models, inside = target.logits, shadows.signals.logits, shadows.inside
    if models.shape != (len(inside), *x.shape) or inside.shape != models.shape[:2]:
        raise UsageError(
            f"the target's logits are {x.shape}, the shadow models' {models.shape}: use the same utterances and heads"
        )
    if min(inside.sum(0).min(), (~inside).sum(0).min()) < 2:
        raise UsageError("an utterance has fewer than two shadow models with, or without, it: train more of them")
    fixed = len(inside) < MANY if fixed_variance is None else fixed_variance
    mu_out, v_out = _moments(models, ~inside, fixed)
    if not online:
        return np.asarray(((x - mu_out) / np.sqrt(v_out)).sum(-1) / math.sqrt(x.shape[-1]))
    mu_in, v_in = _moments(models, inside, fixed)
    return np.asarray((_log_density(x, mu_in, v_in) - _log_density(x, mu_out, v_out)).sum(-1))


def aligned(target: Signals, shadows: ShadowSignals) -> Signals:
    """The target with its logits shifted, each head's by one number, to the shadow models' mean over the pool.

    For shadow models that were trained otherwise than the target: one that was trained for longer is surer of
    everything, and `lira_scores` would take that for a sign of non-members, whose logits spread more widely. Measured
    on ATIS, a target of 20 epochs and shadow models of 8: the AUC is 0.549 as it is, 0.663 aligned (loss threshold
    0.574); for a target of 8 epochs it is 0.647 either way. Assumes that about half of the pool are members, as in the
    shadow models' training sets. The loss stays as it is.
    """
    models = shadows.signals
    tags = None
    if target.tags_logit is not None and models.tags_logit is not None:
        tags = target.tags_logit - target.tags_logit.mean() + models.tags_logit.mean()
    intents = target.intent_logit - target.intent_logit.mean() + models.intent_logit.mean()
    return replace(target, intent_logit=intents, tags_logit=tags)


def _moments(models: Floats, used: NDArray[np.bool_], fixed: bool) -> tuple[Floats, Floats]:
    """Mean and unbiased variance over the models that are used for an utterance: (K, n, d), (K, n) -> (n, d) each."""
    weight = used[..., None].astype(np.float64)
    count = weight.sum(0)
    mean = (models * weight).sum(0) / count
    squares = ((models - mean) ** 2 * weight).sum(0)
    variance = squares.sum(0) / (count - 1).sum(0) if fixed else squares / (count - 1)
    return mean, np.maximum(np.broadcast_to(variance, mean.shape), LEAST_VARIANCE)


def _log_density(x: Floats, mean: Floats, variance: Floats) -> Floats:
    """Of independent normals, up to a constant."""
    return -((x - mean) ** 2) / (2 * variance) - np.log(variance) / 2
