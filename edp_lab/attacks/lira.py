"""LiRA, the likelihood-ratio attack (Carlini et al. 2022, "Membership Inference Attacks From First Principles").

A model's confidence depends mostly on the utterance. So an attacker trains shadow models with and without the utterance
and tests which of these two groups the target model resembles. Across models, a logit is approximately normal. We use
one logit for the intent and one for the tag sequence, and treat them as independent. On ATIS with 16 shadow models,
their correlation within an utterance is 0.07, and a full covariance matrix does not help. Using both logits is better
than using only one of them, and one variance for all utterances is better than separate variances.

Raises UsageError if there are too few models, or if an utterance is in too many or too few training sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edp_lab.attacks.loss import Attacked, Floats, Target, judged, load_target, signals
from edp_lab.attacks.shadow import settled, shadow_cache, shadow_model, training_key
from edp_lab.corpora.corpus import Corpus, Utterance, group_ids
from edp_lab.errors import UsageError
from edp_lab.jobs import content_key, kept_results, usable_cores
from edp_lab.training.config import TrainConfig

MOST_ON_GPU = 4  # workers sharing a GPU; each needs half a gigabyte for its CUDA context
MANY = 64  # with this many shadow models, per-utterance variances are accurate enough (Carlini et al., ablation)
LEAST_VARIANCE = 1e-6  # lower limit of a variance, reached if all models agree


class ShadowLogits(NamedTuple):
    """Logits of K shadow models on a pool of n utterances, and which utterances each model was trained on."""

    logits: Floats  # (K, n, d), see `edp_lab.attacks.loss.Signals`
    inside: NDArray[np.bool_]  # (K, n)


def attack_lira(
    run: str | Path | Target,
    shadows: int = 16,
    size: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Attacked:
    """Run LiRA (see `lira_scores`). `size` and `epochs` of the shadow models default to those of the target."""
    target = load_target(run)
    chosen = {name: value for name, value in (("size", size), ("epochs", epochs)) if value is not None}
    lr = target.config.lr if size in (None, target.config.size) else None
    config = replace(target.config, lr=lr, **chosen)  # type: ignore[arg-type]
    models = shadow_logits(config, target.corpus, target.pool, shadows, seed, cache, progress)
    # Match the mean confidence of shadow models, which may have another size or training length.
    logits = aligned(signals(target.model, target.pool).logits, models)
    about = {"shadows": shadows, "shadow_size": config.size, "shadow_epochs": config.epochs, "seed": seed}
    return judged(target, "lira-online", lira_scores(logits, models), about)


def lira_scores(logits: Floats, shadows: ShadowLogits) -> Floats:
    """Evidence that each utterance was in the target's training set: (n), larger for members.

    This is the log-likelihood ratio of the target's logits (n, d), log N(x; mu_in, v_in) - log N(x; mu_out, v_out),
    summed over the logits (algorithm 1 of Carlini et al., online). With fewer than `MANY` models, all utterances share
    one v_in and one v_out, each the mean of the per-utterance variances.
    """
    models, inside = shadows
    if models.shape != (len(inside), *logits.shape) or inside.shape != models.shape[:2]:
        raise UsageError(
            f"the target's logits have shape {logits.shape}, but those of the shadow models {models.shape}: use the "
            "same utterances and heads"
        )
    if min(inside.sum(0).min(), (~inside).sum(0).min()) < 2:
        raise UsageError("an utterance has fewer than two shadow models trained with it or without it: use more")

    def log_density(used: NDArray[np.bool_]) -> Floats:
        """Log density under the models used for each utterance, up to a constant: (K, n) -> (n, d)."""
        weight = used[..., None].astype(np.float64)
        count = weight.sum(0)
        mean = (models * weight).sum(0) / count
        squares = ((models - mean) ** 2 * weight).sum(0)
        variance = squares.sum(0) / (count - 1).sum(0) if len(models) < MANY else squares / (count - 1)
        variance = np.maximum(np.broadcast_to(variance, mean.shape), LEAST_VARIANCE)
        return np.asarray(-((logits - mean) ** 2) / (2 * variance) - np.log(variance) / 2)

    return np.asarray((log_density(inside) - log_density(~inside)).sum(-1))


def aligned(logits: Floats, shadows: ShadowLogits) -> Floats:
    """Shift the target's logits (n, d), by one constant per head, to the mean of the shadow models' logits.

    Align if the shadow models were trained differently from the target. A model trained for longer is more confident
    on all utterances. `lira_scores` would take that as evidence for non-membership, because non-members' logits vary
    more. On ATIS, with 20 epochs for the target and 8 for the shadow models, the AUC is 0.549 without alignment and
    0.663 with it (loss threshold: 0.574). With 8 epochs for both, it is 0.647 with or without alignment. We assume that
    about half of the pool are members, as in the shadow models' training sets.
    """
    if logits.shape[-1] != shadows.logits.shape[-1]:
        return logits  # `lira_scores` will raise an error
    heads = range(logits.shape[-1])
    shifted = [logits[:, k] - logits[:, k].mean() + shadows.logits[..., k].mean() for k in heads]
    return np.stack(shifted, axis=-1)


# ---- Shadow models, with and without each utterance ------------------------------------------------------------------


def shadow_logits(
    config: TrainConfig,
    corpus: Corpus,
    pool: Sequence[Utterance],
    shadows: int = 16,
    seed: int = 0,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda what: None,
    workers: int | None = None,
) -> ShadowLogits:
    """Logits of K shadow models on the whole pool, each trained on about half of it (see `half_samples`).

    Args:
        shadows: K, even and at least 4.
        seed: seed of the halves and the models. The models' seeds are large, because with a small seed, a shadow model
            might have the target's initial weights and noise.
        cache: folder for results of finished models, which lets an interrupted attack resume; None for `user_cache`.
        progress: called in this thread with the number of finished models; if it raises an exception, the work ends.
        workers: number of single-threaded processes; None for one per core available to this process.

    No worker is left running after an error or interruption, and the message names the folder of finished models.
    """
    inside = half_samples(pool, shadows, seed)
    folder = shadow_cache(cache)
    drawn = np.random.default_rng([seed, 1]).integers(2**40, 2**48, shadows).tolist()
    base, pool_corpus = settled(config, 0), replace(corpus, utterances=tuple(pool))
    shared, trained_on = training_key(base, pool_corpus, pool), [np.flatnonzero(row).tolist() for row in inside]
    designs = list(zip(drawn, trained_on, strict=True))
    keys = [content_key(["membership"], "logits", shared, *design) for design in designs]
    jobs = [(replace(base, seed=draw), pool_corpus, train) for draw, train in designs]
    cores = usable_cores()
    workers = workers or (min(cores, MOST_ON_GPU) if torch.cuda.is_available() else cores)
    hint = f"finished shadow models are kept in {folder}: run the same attack again to resume"

    def done(count: int) -> None:
        progress(f"shadow model {count} of {shadows}")

    try:
        results = kept_results(folder, keys, jobs, _logits, workers, done, hint)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {hint}") from None
    return ShadowLogits(np.array([result["logits"] for result in results]), inside)


def _logits(shadow: tuple[TrainConfig, Corpus, list[int]]) -> dict[str, Any]:
    """In a worker, train a shadow model on some of the corpus' utterances; return its logits on all of them."""
    config, corpus, train = shadow
    model = shadow_model(config, corpus, [corpus.utterances[k] for k in train])
    return {"logits": signals(model, corpus.utterances).logits.tolist()}


def half_samples(pool: Sequence[Utterance], shadows: int, seed: int) -> NDArray[np.bool_]:
    """Draw K training sets from the pool: (K, n), each utterance in exactly K / 2 of them.

    Utterances with the same text are in the same training sets; otherwise a model trained without an utterance could
    still have seen its text. Each training set contains about half of the pool; its size is random.
    """
    if shadows < 4 or shadows % 2:
        raise UsageError(f"the number of shadow models is {shadows}: it must be even and at least 4")
    texts = group_ids(pool)
    order = np.random.default_rng([seed, 0]).random((shadows, len(np.unique(texts)))).argsort(axis=0)
    return order[:, texts] < shadows // 2
