"""LiRA, the likelihood-ratio attack (Carlini et al. 2022, "Membership Inference Attacks From First Principles").

How sure a model is of an utterance depends mostly on the utterance. So an attacker trains shadow models with it and
without it, and asks which of the two the target looks like. A logit is about normal over models; here there are two, of
the intent and of the tag sequence, taken as independent. Measured on ATIS with 16 shadow models: their correlation
within an utterance is 0.07, a full covariance gains nothing, both logits together beat either alone, and one variance
for all utterances beats each utterance's own.

Too few models and an impossible design are refused by `UsageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edp_lab.attacks.loss import Attacked, Floats, Signals, judged, load_target, signals
from edp_lab.attacks.shadow import settled, shadow_cache, shadow_model, training_key
from edp_lab.corpora import Corpus, Utterance
from edp_lab.corpora.corpus import group_ids
from edp_lab.errors import UsageError
from edp_lab.jobs import content_key, kept_results, usable_cores
from edp_lab.training.config import TrainConfig

MOST_ON_GPU = 4  # workers that share a GPU: each brings its own half gigabyte of CUDA
MANY = 64  # shadow models, from which on an utterance's own variance is known well enough (Carlini et al., ablation)
LEAST_VARIANCE = 1e-6  # where all models agree


class ShadowSignals(NamedTuple):
    """Of K shadow models on a pool of n utterances: signals (K, n), and which were in each one's training set."""

    signals: Signals
    inside: NDArray[np.bool_]  # (K, n)


def attack_lira(
    run: str | Path,
    shadows: int = 16,
    size: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Attacked:
    """LiRA, see `lira_scores`; `size` and `epochs` of the shadow models, None: the target's."""
    target = load_target(run)
    chosen = {name: value for name, value in (("size", size), ("epochs", epochs)) if value is not None}
    lr = target.config.lr if size in (None, target.config.size) else None
    config = replace(target.config, processes=1, private_seed=False, lr=lr, **chosen)  # type: ignore[arg-type]

    def report(done: int, total: int) -> None:
        progress(f"shadow model {done} of {total}")

    shadowed = shadow_signals(config, target.corpus, target.pool, shadows, seed, cache, report)
    # Shadow models of another size or length are then as sure as the target.
    target_signals = aligned(signals(target.model, target.pool), shadowed)
    about = {"shadows": shadows, "shadow_size": config.size, "shadow_epochs": config.epochs, "seed": seed}
    return judged(target, "lira-online", lira_scores(target_signals, shadowed), about)


def lira_scores(target: Signals, shadows: ShadowSignals) -> Floats:
    """Evidence that each utterance was in the target's training set: (n), larger is more.

    The log-likelihood ratio of the target's logits, log N(x; mu_in, v_in) - log N(x; mu_out, v_out), summed over the
    logits (their algorithm 1, online).

    With fewer than `MANY` models there is one v_in and one v_out for all utterances, the mean of their variances over
    models, in place of each utterance's own.
    """
    x, models, inside = target.logits, shadows.signals.logits, shadows.inside
    if models.shape != (len(inside), *x.shape) or inside.shape != models.shape[:2]:
        raise UsageError(
            f"the target's logits are {x.shape}, the shadow models' {models.shape}: use the same utterances and heads"
        )
    if min(inside.sum(0).min(), (~inside).sum(0).min()) < 2:
        raise UsageError("an utterance has fewer than two shadow models with, or without, it: train more of them")

    def log_density(mean: Floats, variance: Floats) -> Floats:
        """Of independent normals, up to a constant."""
        return -((x - mean) ** 2) / (2 * variance) - np.log(variance) / 2

    return np.asarray((log_density(*_moments(models, inside)) - log_density(*_moments(models, ~inside))).sum(-1))


def aligned(target: Signals, shadows: ShadowSignals) -> Signals:
    """The target with its logits shifted, each head's by one number, to the shadow models' mean over the pool.

    For shadow models that were trained otherwise than the target: one that was trained for longer is surer of
    everything, and `lira_scores` would take that for a sign of non-members, whose logits spread more widely. Measured
    on ATIS, a target of 20 epochs and shadow models of 8: the AUC is 0.549 as it is, 0.663 aligned (loss threshold
    0.574); for a target of 8 epochs it is 0.647 either way. Assumes that about half of the pool are members, as in the
    shadow models' training sets. The loss stays as it is.
    """

    def shift(logits: Floats | None, models: Floats | None) -> Any:
        return None if logits is None or models is None else logits - logits.mean() + models.mean()

    return Signals(target.loss, *map(shift, target[1:], shadows.signals[1:]))


def _moments(models: Floats, used: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Mean and unbiased variance over the models that are used for an utterance: (K, n, d), (K, n) -> (n, d) each."""
    weight = used[..., None].astype(np.float64)
    count = weight.sum(0)
    mean = (models * weight).sum(0) / count
    squares = ((models - mean) ** 2 * weight).sum(0)
    variance = squares.sum(0) / (count - 1).sum(0) if len(models) < MANY else squares / (count - 1)
    return mean, np.maximum(np.broadcast_to(variance, mean.shape), LEAST_VARIANCE)


# ---- Shadow models, with and without each utterance ------------------------------------------------------------------


def shadow_signals(
    config: TrainConfig,
    corpus: Corpus,
    pool: Sequence[Utterance],
    shadows: int = 16,
    seed: int = 0,
    cache: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    workers: int | None = None,
) -> ShadowSignals:
    """Signals on the whole pool of K models, each trained on one half of it (see `half_samples`).

    Args:
        shadows: K, even and at least 4.
        seed: of the halves and the models. Their weights and noise come from other seeds than 0, 1, 2, ..., so that
            no shadow model has the target's.
        cache: where finished ones are kept, so that work that was broken off goes on from there; None is
            `user_cache`.
        progress: told, in this thread, how many of the K are done. What it raises ends the work.
        workers: processes of one thread each; None is one per core that this process may use.

    Whatever ends the work, no worker is left, and a sentence says what is kept.
    """
    inside = half_samples(pool, shadows, seed)
    kept = shadow_cache(cache)
    drawn = np.random.default_rng([seed, 1]).integers(2**40, 2**48, shadows).tolist()
    base, pool_corpus = settled(config, 0), replace(corpus, utterances=tuple(pool))
    shared, trained_on = training_key(base, pool_corpus, pool), [np.flatnonzero(row).tolist() for row in inside]
    keys = [content_key(["membership"], shared, draw, train) for draw, train in zip(drawn, trained_on, strict=True)]
    jobs = [(replace(base, seed=draw), pool_corpus, train) for draw, train in zip(drawn, trained_on, strict=True)]
    cores = usable_cores()
    workers = workers or (min(cores, MOST_ON_GPU) if torch.cuda.is_available() else cores)
    cure = f"finished shadow models are kept in {kept}, so that the same attack goes on from there"

    def done(count: int) -> None:
        progress(count, shadows)

    try:
        results = kept_results(kept, keys, jobs, _signals, workers, done, cure)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {cure}") from None
    loss, intents = (np.array([result[name] for result in results]) for name in ("loss", "intent_logit"))
    tags = None if results[0]["tags_logit"] is None else np.array([result["tags_logit"] for result in results])
    return ShadowSignals(Signals(loss, intents, tags), inside)


def _signals(shadow: tuple[TrainConfig, Corpus, list[int]]) -> dict[str, Any]:
    """In a worker: train one, by its settings, on those of the pool; its signals as lists, by name."""
    config, corpus, train = shadow
    model = shadow_model(config, corpus, [corpus.utterances[k] for k in train])
    by_name = signals(model, corpus.utterances)._asdict()
    return {name: None if array is None else array.tolist() for name, array in by_name.items()}


def half_samples(pool: Sequence[Utterance], shadows: int, seed: int) -> NDArray[np.bool_]:
    """Which utterance is in which training set: (K, n), each utterance in exactly K / 2 of them, drawn at random.

    Utterances with the same tokens are in the same ones, or the model of a training set without one of them would have
    seen it all the same. A training set holds about half of the pool: its size is random.
    """
    if shadows < 4 or shadows % 2:
        raise UsageError(f"{shadows} shadow models: use an even number, at least 4, so that each half has two")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative: use 0 or more")
    texts = group_ids(pool)
    count = len(np.unique(texts))
    if count < 2:
        raise UsageError("the pool has fewer than two texts: give more utterances to tell apart")
    order = np.random.default_rng([seed, 0]).random((shadows, count)).argsort(axis=0)
    return order[:, texts] < shadows // 2
