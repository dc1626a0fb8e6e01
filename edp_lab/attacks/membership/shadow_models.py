"""Shadow models: trained as the target was, on training sets that the attacker knows; each is kept once it is trained.

    CACHE/<key>/                 a shadow model (`train_shadow`)
    CACHE/<key>.safetensors      the signals of one (`shadow_signals`), about 25 bytes an utterance

The key is a digest of everything that the entry is a function of: settings, labels, training set, seed, pretrained
weights, package versions and the code of the layers below. Entries may be deleted at any time.

Shadow models are small, and a step of theirs is mostly overhead: on two cores two processes of one thread train about
twice as fast as one process. They are new Pythons, never forks, and
end with their parent, however it dies (see `edp_lab.training.processes`).
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save

from edp_lab.attacks.membership.signals import Floats, Signals, signals
from edp_lab.corpora import Corpus, Split, Utterance, load_corpus
from edp_lab.errors import UsageError
from edp_lab.models import load_model, save_model
from edp_lab.models.files import parse_tensors, read_bytes, write_whole
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.training.config import TrainConfig
from edp_lab.training.processes import Ranks, run_rank, usable_cores
from edp_lab.training.run_folder import code_of, digest, versions
from edp_lab.training.trainer import Trainer

CODE = ("corpora", "privacy", "models", "training", "attacks/membership")
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
    entry = _made(cache) / _key(own, corpus, train)
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
    folder = _made(cache)
    drawn = np.random.default_rng([seed, 1]).integers(2**40, 2**48, shadows)
    work = _Work(_settled(config, 0), replace(corpus, utterances=tuple(pool)), folder)
    todo = [_Shadow(int(own), np.flatnonzero(row).tolist()) for own, row in zip(drawn, inside, strict=True)]
    entries = [work.entry(shadow) for shadow in todo]
    found = [_read(entry, len(pool), corpus.has_tags) for entry in entries]
    missing = [shadow for shadow, has in zip(todo, found, strict=True) if has is None]
    progress(shadows - len(missing), shadows)
    if missing:
        _train_side_by_side(work, missing, workers, lambda done: progress(shadows - len(missing) + done, shadows))
        found = [_read(entry, len(pool), corpus.has_tags) for entry in entries]
    complete = [one for one in found if one is not None]
    if len(complete) < shadows:
        raise UsageError(f"shadow models have vanished from {folder}, or were damaged there: run the attack again")
    return ShadowSignals(_stacked(complete), inside)


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
    number: dict[tuple[str, ...], int] = {}
    group = [number.setdefault(u.tokens, len(number)) for u in pool]
    if len(number) < 2:
        raise UsageError("the pool has fewer than two texts: give more utterances to tell apart")
    order = np.random.default_rng([seed, 0]).random((shadows, len(number))).argsort(axis=0)
    return order[:, group] < shadows // 2


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


def _made(cache: Path | None) -> Path:
    """The cache's folder.

    Raises:
        UsageError: it cannot be written, which should show before hours of training.
    """
    folder = default_cache() if cache is None else cache
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"the cache {folder} cannot be written ({error.strerror}): choose another --cache") from error
    return folder


def _key(config: TrainConfig, corpus: Corpus, utterances: Sequence[Utterance]) -> str:
    """Digest of all that shadow models trained on some of these utterances have in common, and of their order."""
    alpha = load_corpus(config.alpha_corpus).sha256 if config.alpha_corpus else config.alpha
    settings = {**asdict(config), "corpus": None, "alpha": alpha}
    content = [[u.tokens, u.tags, u.intent] for u in utterances]
    told = [settings, corpus.intents, corpus.tags, content, versions()]
    return digest({}, json.dumps(told, sort_keys=True).encode(), *code_of(CODE), *_files(config.pretrained))


def _files(pretrained: str | None) -> list[bytes]:
    """Checksums of pretrained weights; a name on a hub stands for itself, in the settings."""
    path = Path(pretrained or "").expanduser()
    files = [] if pretrained is None else sorted(f for f in (path, *path.rglob("*")) if f.is_file())
    return [digest({}, file.read_bytes()).encode() for file in files]


def _read(entry: Path, pool: int, tagged: bool) -> Signals | None:
    """Signals on a pool of this size, or None if they are not there, damaged or others."""
    try:
        tensors = parse_tensors(read_bytes(entry), entry)
        with safe_open(entry, framework="pt") as file:
            told = file.metadata() or {}
    except UsageError:
        return None
    names = {"loss", "intent_logit", *(["tags_logit"] if tagged else [])}
    if told.get("sha256") != digest(tensors, entry.name.encode()) or set(tensors) != names:
        return None
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    if any(array.shape != (pool,) for array in arrays.values()):
        return None
    return Signals(arrays["loss"], arrays["intent_logit"], arrays.get("tags_logit"))


def _write(entry: Path, found: Signals) -> None:
    """Atomically, also where two processes write the same entry."""
    tensors = {name: torch.from_numpy(array) for name, array in vars(found).items() if array is not None}
    own = entry.with_name(f"{entry.name}.{os.getpid()}")
    try:
        write_whole(own, save(tensors, {"sha256": digest(tensors, entry.name.encode())}))
        os.replace(own, entry)
    except OSError as error:
        raise UsageError(f"{entry} cannot be written ({error.strerror}): make room there") from error


def _stacked(found: Sequence[Signals]) -> Signals:
    def stack(name: str) -> Floats:
        return np.stack([getattr(one, name) for one in found])

    return Signals(stack("loss"), stack("intent_logit"), None if found[0].tags_logit is None else stack("tags_logit"))


# ---- Workers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shadow:
    """A shadow model's seed, and its training set as places in the pool."""

    seed: int
    train: list[int]


class _Work:
    """What all shadow models of an attack share; the corpus holds the pool, and nothing else."""

    def __init__(self, config: TrainConfig, corpus: Corpus, folder: Path) -> None:
        self.config, self.corpus, self.folder = config, corpus, folder
        self.key = _key(config, corpus, corpus.utterances)

    def entry(self, shadow: _Shadow) -> Path:
        return self.folder / f"{digest({}, self.key.encode(), json.dumps(asdict(shadow)).encode())}.safetensors"

    def job(self, shadows: Sequence[_Shadow]) -> str:
        """For one worker, as JSON."""
        todo = [{**asdict(shadow), "entry": str(self.entry(shadow).absolute())} for shadow in shadows]
        return json.dumps({"config": asdict(self.config), "corpus": asdict(self.corpus), "shadows": todo})


def _train_side_by_side(
    work: _Work, shadows: Sequence[_Shadow], workers: int | None, told: Callable[[int], None]
) -> None:
    """Train shadow models in processes of their own; `told`, here, how many are done."""
    count = min(workers or _default_workers(), len(shadows))
    kept = f"finished shadow models are kept in {work.folder}, so that the same attack goes on from there"
    said: queue.SimpleQueue[str | Exception | None] = queue.SimpleQueue()
    with ExitStack() as stack:
        jobs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for k in range(count):
            job = jobs / f"{k}.json"
            job.write_text(work.job(shadows[k::count]))
            worker = stack.enter_context(Ranks(1, ["edp_lab.attacks.membership.shadow_models", str(job)], threads=1))
            threading.Thread(target=_relay, args=(worker, kept, said), daemon=True).start()
        done = 0
        try:
            while count:
                match said.get():
                    case None:
                        count -= 1
                    case str():
                        done += 1
                        told(done)
                    case Exception() as error:
                        raise error
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; {kept}") from None


def _relay(worker: Ranks, kept: str, said: queue.SimpleQueue[str | Exception | None]) -> None:
    try:
        for line in worker.lines(kept):
            said.put(line)
        said.put(None)
    except UsageError as error:
        said.put(UsageError(str(error).replace("rank 0 of 1", "a process that trains shadow models")))
    except Exception as error:  # also when everything was closed, and nobody listens
        said.put(error)


def _default_workers() -> int:
    cores = usable_cores()
    return min(cores, MOST_ON_GPU) if torch.cuda.is_available() else cores


def main(job: str) -> None:
    """One worker: train what the file `job` lists, and print a line for each shadow model that is finished."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)  # a shadow model is trained by one process alone, not by one of many
    told = json.loads(read_bytes(Path(job)))
    Path(job).unlink()  # it holds the corpus, which must not stay where the parent was killed
    corpus = _corpus(told["corpus"])
    config = TrainConfig(**told["config"])
    for shadow in told["shadows"]:
        train = [corpus.utterances[k] for k in shadow["train"]]
        model = _train(replace(config, seed=shadow["seed"]), corpus, train)
        _write(Path(shadow["entry"]), signals(model, corpus.utterances))
        sys.stdout.write("done\n")
        sys.stdout.flush()


def _corpus(told: Mapping[str, Any]) -> Corpus:
    """As `asdict` told it, with JSON's lists for tuples."""
    rows = [
        (tuple(u["tokens"]), None if u["tags"] is None else tuple(u["tags"]), u["intent"]) for u in told["utterances"]
    ]
    names = {name: tuple(told[name]) for name in ("intents", "slots", "warnings")}
    return Corpus(**{**told, **names, "utterances": tuple(Utterance(*row) for row in rows)})


if __name__ == "__main__":
    run_rank(lambda job, _: main(job))
