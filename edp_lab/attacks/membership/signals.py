"""What a model gives away about an utterance whose annotation the attacker knows, and shadow models to compare it with.

    p = model's probability of the true intent, or of the true tag sequence as a whole
    logit p = log p - log(1 - p)

LiRA wants logits because they are close to normal over models, which losses and probabilities are not (Carlini et al.
2022). They are taken in float64, from the other classes' probabilities rather than from 1 - p, which rounds to 0 for a
model that is sure.

Shadow models are trained as the target was, on training sets that the attacker knows; each is kept once it is trained.

    CACHE/<key>/         a shadow model (`train_shadow`)
    CACHE/<key>.json     the signals of one (`shadow_signals`), about 60 bytes an utterance

The key is a digest of everything that the entry is a function of: settings, labels, training set, seed and pretrained
weights (see `edp_lab.training.result_cache`). Entries may be deleted at any time.

Utterances that do not fit the model, a model that has diverged, an impossible design and a cache that cannot be written
are refused by `UsageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edp_lab.corpora import Corpus, Split, Utterance, load_corpus
from edp_lab.corpora.corpus import group_ids
from edp_lab.corpora.encoding import Batch
from edp_lab.errors import UsageError
from edp_lab.files import user_cache
from edp_lab.models import load_model, save_model
from edp_lab.models.crf import forward_backward, path_score
from edp_lab.models.intent_slot import IntentSlotModel, to_padded
from edp_lab.training.config import TrainConfig
from edp_lab.training.processes import usable_cores
from edp_lab.training.result_cache import ResultCache, Say, content_key, content_of
from edp_lab.training.trainer import Trainer

Floats = NDArray[np.float64]
BATCH = 256
LEAST_NLL = 1e-12  # of a tag sequence: differences of float64 sums over a sentence carry no more
MOST = 500.0  # size of a logit; only a model with a single intent, or one that diverged, comes near
INTENT_WIDTH, SLOT_WIDTH = 8, 16  # sorted scores used: more are zero, or as good as zero, in most utterances
MOST_ON_GPU = 4  # workers that share a GPU: each brings its own half gigabyte of CUDA


# ---- What one model gives away ---------------------------------------------------------------------------------------


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


@torch.no_grad()
def sorted_scores(
    model: IntentSlotModel,
    utterances: Sequence[Utterance],
    intent_width: int = INTENT_WIDTH,
    slot_width: int = SLOT_WIDTH,
) -> Floats:
    """The paper's features (section 4.2: "sorted IC and NER output scores"): (n, intent_width + slot_width).

    First p(intent), largest first. Then the same for slots: at each token the CRF's marginals p(tag), largest first,
    and over the tokens of the utterance their mean. So no number depends on what labels mean, on how many there are
    (those beyond the width are cut, those that do not exist are 0, as their probability is) or on how long the
    utterance is. The true labels are not used. Without slots, the slot features are 0.
    """
    found = np.zeros((len(utterances), intent_width + slot_width))
    for batch, log_intent, emissions, mask in scored_batches(model, utterances, BATCH):
        rows = batch.examples.numpy()
        best = log_intent.double().exp().sort(-1, descending=True).values[:, :intent_width]
        found[rows, : best.shape[1]] = best.cpu()
        if emissions is not None:
            marginals = model.crf.marginals(emissions, mask).double().sort(-1, descending=True).values  # (B, T, K)
            best = (marginals.sum(1) / batch.lengths[:, None])[:, :slot_width]
            found[rows, intent_width : intent_width + best.shape[1]] = best.cpu()
    return found


# ---- Shadow models ---------------------------------------------------------------------------------------------------


class ShadowSignals(NamedTuple):
    """Of K shadow models on a pool of n utterances: signals (K, n), and which were in each one's training set."""

    signals: Signals
    inside: NDArray[np.bool_]  # (K, n)


def train_shadow(
    config: TrainConfig, corpus: Corpus, train: Sequence[Utterance], seed: int, cache: Path | None = None
) -> IntentSlotModel:
    """The model that `edp_lab.training.train` would make of these utterances, by the same method but without a folder.

    Args:
        config: its seed is replaced by `seed`; several processes are simulated in this one; the noise is repeatable.
        corpus: brings the label sets.
        train: the training set, in the order that the seed shuffles.
        cache: where trained shadow models are kept; None is `user_cache`.
    """
    own = _settled(config, seed)
    entry = _cache(cache).folder / _key(own, corpus, train)
    with suppress(UsageError):  # not there, or damaged
        return load_model(entry).eval()
    model = _train(own, corpus, train)
    save_model(model, entry)  # each file is whole, also where another process writes the same entry
    return model


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
    kept = _cache(cache)
    drawn = np.random.default_rng([seed, 1]).integers(2**40, 2**48, shadows).tolist()
    settled, own = _settled(config, 0), replace(corpus, utterances=tuple(pool))
    shared, trained_on = _key(settled, own, pool), [np.flatnonzero(row).tolist() for row in inside]
    keys = [content_key(["membership"], shared, *one) for one in zip(drawn, trained_on, strict=True)]
    jobs = [(replace(settled, seed=draw), own, train) for draw, train in zip(drawn, trained_on, strict=True)]
    cores = usable_cores()
    workers = workers or (min(cores, MOST_ON_GPU) if torch.cuda.is_available() else cores)
    cure = f"finished shadow models are kept in {kept.folder}, so that the same attack goes on from there"

    def said(done: int, what: Any) -> None:
        progress(done, shadows)

    try:
        found = kept.results(keys, jobs, _signals, workers, said, cure, "a process that trains shadow models")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {cure}") from None
    loss, intents = (np.array([one[name] for one in found]) for name in ("loss", "intent_logit"))
    tags = None if found[0]["tags_logit"] is None else np.array([one["tags_logit"] for one in found])
    return ShadowSignals(Signals(loss, intents, tags), inside)


def _signals(shadow: tuple[TrainConfig, Corpus, list[int]], say: Say) -> dict[str, Any]:
    """In a worker: train one, by its settings, on those of the pool; its signals as lists, by name."""
    config, corpus, train = shadow
    model = _train(config, corpus, [corpus.utterances[k] for k in train])
    found = signals(model, corpus.utterances)._asdict()
    return {name: None if array is None else array.tolist() for name, array in found.items()}


def check_shadows(shadows: int) -> None:
    """UsageError where so many shadow models cannot be halved."""
    if shadows < 4 or shadows % 2:
        raise UsageError(f"{shadows} shadow models: use an even number, at least 4, so that each half has two")


def half_samples(pool: Sequence[Utterance], shadows: int, seed: int) -> NDArray[np.bool_]:
    """Which utterance is in which training set: (K, n), each utterance in exactly K / 2 of them, drawn at random.

    Utterances with the same tokens are in the same ones, or the model of a training set without one of them would have
    seen it all the same. A training set holds about half of the pool: its size is random.
    """
    check_shadows(shadows)
    if seed < 0:
        raise UsageError(f"seed {seed} is negative: use 0 or more")
    texts = group_ids(pool)
    count = len(np.unique(texts))
    if count < 2:
        raise UsageError("the pool has fewer than two texts: give more utterances to tell apart")
    order = np.random.default_rng([seed, 0]).random((shadows, count)).argsort(axis=0)
    return order[:, texts] < shadows // 2


def _cache(folder: Path | None) -> ResultCache:
    return ResultCache(user_cache() / "shadows" if folder is None else folder, "choose another --cache")


def _settled(config: TrainConfig, seed: int) -> TrainConfig:
    """The same model in distribution, by the fastest way."""
    method = "dp-sgd" if config.method == "dp-sgd-naive" else config.method
    return replace(config, seed=seed, method=method, processes=1, private_seed=False, noise="aggregate")


def _key(config: TrainConfig, corpus: Corpus, utterances: Sequence[Utterance]) -> str:
    """Digest of all that shadow models trained on some of these utterances have in common, and of their order."""
    alpha = load_corpus(config.alpha_corpus).sha256 if config.alpha_corpus else config.alpha
    settings = replace(config, corpus="", alpha=None, pretrained=None)
    weights = None if config.pretrained is None else content_of(config.pretrained)
    content = [[u.tokens, u.tags, u.intent, *([] if u.speaker is None else [u.speaker])] for u in utterances]
    return content_key(["training", "membership"], settings, alpha, weights, corpus.intents, corpus.tags, content)


def _train(config: TrainConfig, corpus: Corpus, train: Sequence[Utterance]) -> IntentSlotModel:
    if not train:
        raise UsageError("a shadow model has no training set: give it utterances")
    run = Trainer(config, corpus, Split(tuple(train), validation=tuple(train[:1]), test=()))
    for _ in range(config.epochs):
        run.epoch()
    return run.model.cpu().eval()
