"""Shadow models: trained as the target was, on training sets that the attacker knows; each is kept once it is trained.

    CACHE/<key>/         a shadow model (`train_shadow`)
    CACHE/<key>.json     the signals of one (`shadow_signals`), about 60 bytes an utterance

The key is a digest of everything that the entry is a function of: settings, labels, training set, seed and pretrained
weights (see `edp_lab.training.result_cache`). Entries may be deleted at any time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edp_lab.attacks.membership.signals import Floats, Signals, signals
from edp_lab.corpora import Corpus, Split, Utterance, load_corpus
from edp_lab.corpora.corpus import group_ids
from edp_lab.errors import UsageError
from edp_lab.models import load_model, save_model
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.training.config import TrainConfig
from edp_lab.training.processes import usable_cores
from edp_lab.training.result_cache import ResultCache, Say, content_key, content_of
from edp_lab.training.trainer import Trainer

MOST_ON_GPU = 4  # workers that share a GPU: each brings its own half gigabyte of CUDA


@dataclass(frozen=True)
class ShadowSignals:
    """Of K shadow models on a pool of n utterances.

    Attributes:
        signals: arrays (K, n).
        inside: (K, n), whether the utterance was in that model's training set.
    """

    signals: Signals
    inside: NDArray[np.bool_]


def train_shadow(
    config: TrainConfig, corpus: Corpus, train: Sequence[Utterance], seed: int, cache: Path | None = None
) -> IntentSlotModel:
    """The model that `edp_lab.training.train` would make of these utterances, by the same method but without a folder.

    Args:
        config: its seed is replaced by `seed`; several processes are simulated in this one; the noise is repeatable.
        corpus: brings the label sets.
        train: the training set, in the order that the seed shuffles.
        cache: where trained shadow models are kept; None is `default_cache`.

    Raises:
        UsageError: an empty training set, one that `config` cannot train on, or a cache that cannot be written.
    """
    own = _settled(config, seed)
    entry = _cache(cache).folder / _key(own, corpus, train)
    with suppress(UsageError):  # not there, or damaged
        return load_model(entry).eval()
    model = _train(own, corpus, train)
    with tempfile.TemporaryDirectory(dir=entry.parent) as scratch:  # another process may be at the same entry
        save_model(model, Path(scratch) / "model")
        shutil.rmtree(entry, ignore_errors=True)
        with suppress(OSError):
            os.replace(Path(scratch) / "model", entry)
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
            `default_cache`.
        progress: told, in this thread, how many of the K are done. What it raises ends the work.
        workers: processes of one thread each; None is one per core that this process may use.

    Raises:
        UsageError: an odd or small K, an empty pool or one that `config` cannot train on, a cache that cannot be
            written, or a worker that died.
        KeyboardInterrupt: with a sentence on what is kept. As after any error, no worker is left.
    """
    inside = half_samples(pool, shadows, seed)
    kept = _cache(cache)
    drawn = np.random.default_rng([seed, 1]).integers(2**40, 2**48, shadows).tolist()
    settled, own = _settled(config, 0), replace(corpus, utterances=tuple(pool))
    shared = _key(settled, own, pool)
    jobs = [
        _Shadow(replace(settled, seed=draw), own, np.flatnonzero(row).tolist())
        for draw, row in zip(drawn, inside, strict=True)
    ]
    keys = [content_key(["membership"], shared, job.config.seed, job.train) for job in jobs]
    cure = f"finished shadow models are kept in {kept.folder}, so that the same attack goes on from there"

    def said(done: int, what: Any) -> None:
        progress(done, shadows)

    try:
        found = kept.results(
            keys, jobs, _signals, workers or _default_workers(), said, cure, "a process that trains shadow models"
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {cure}") from None
    return ShadowSignals(_stacked(found), inside)


def half_samples(pool: Sequence[Utterance], shadows: int, seed: int) -> NDArray[np.bool_]:
    """Which utterance is in which training set: (K, n), each utterance in exactly K / 2 of them, drawn at random.

    Utterances with the same tokens are in the same ones, or the model of a training set without one of them would have
    seen it all the same. A training set holds about half of the pool: its size is random.

    Raises:
        UsageError: K is odd or below 4, the seed is negative, or the pool has fewer than two texts.
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


def default_cache() -> Path:
    """``edp_lab/shadows`` in the user's cache folder ($XDG_CACHE_HOME, else ``~/.cache``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edp_lab" / "shadows"


# ---- Training --------------------------------------------------------------------------------------------------------


def _settled(config: TrainConfig, seed: int) -> TrainConfig:
    """The same model in distribution, by the fastest way."""
    method = "dp-sgd" if config.method == "dp-sgd-naive" else config.method
    return replace(config, seed=seed, method=method, processes=1, private_seed=False, noise="aggregate")


def _train(config: TrainConfig, corpus: Corpus, train: Sequence[Utterance]) -> IntentSlotModel:
    if not train:
        raise UsageError("a shadow model has no training set: give it utterances")
    run = Trainer(config, corpus, Split(tuple(train), validation=tuple(train[:1]), test=()))
    for _ in range(config.epochs):
        run.epoch()
    return run.model.cpu().eval()


# ---- The cache -------------------------------------------------------------------------------------------------------


def _cache(folder: Path | None) -> ResultCache:
    return ResultCache(default_cache() if folder is None else folder, "choose another --cache")


def _key(config: TrainConfig, corpus: Corpus, utterances: Sequence[Utterance]) -> str:
    """Digest of all that shadow models trained on some of these utterances have in common, and of their order."""
    alpha = load_corpus(config.alpha_corpus).sha256 if config.alpha_corpus else config.alpha
    settings = replace(config, corpus="", alpha=None, pretrained=None)
    weights = None if config.pretrained is None else content_of(config.pretrained)
    content = [[u.tokens, u.tags, u.intent] for u in utterances]
    return content_key(["training", "membership"], settings, alpha, weights, corpus.intents, corpus.tags, content)


class _Shadow(NamedTuple):
    """A shadow model to be: its settings and seed, the pool as a corpus, and its training set as places there."""

    config: TrainConfig
    corpus: Corpus
    train: list[int]


def _signals(shadow: _Shadow, say: Say) -> dict[str, Any]:
    """In a worker: as lists, by name."""
    pool = shadow.corpus.utterances
    model = _train(shadow.config, shadow.corpus, [pool[k] for k in shadow.train])
    return {name: None if array is None else array.tolist() for name, array in vars(signals(model, pool)).items()}


def _stacked(found: Sequence[dict[str, Any]]) -> Signals:
    def stack(name: str) -> Floats:
        return np.array([one[name] for one in found])

    tags = None if found[0]["tags_logit"] is None else stack("tags_logit")
    return Signals(stack("loss"), stack("intent_logit"), tags)


def _default_workers() -> int:
    cores = usable_cores()
    return min(cores, MOST_ON_GPU) if torch.cuda.is_available() else cores
