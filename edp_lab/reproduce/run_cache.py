"""Training runs and attacks behind a table: each done once, kept by content, shared out over processes.

    OUT/cells/<key>.json    what one run, and the attack on it, came to (see `edp_lab.training.result_cache`)
    OUT/runs/<key>/         the run itself: its record, its model, and while it is going on its state
    OUT/shadows, public     shadow models of the attacks; what the networks start from

Whoever kills the work and starts it again repeats no finished run, and goes on within the one that was cut off. The
runs behind the tables that come with a checkout, in data/results/cells, count as finished, too, but not in a folder
that was begun as `fresh`. Their index says from which corpora and encoders they were made, so that they are found
where these are not at hand; where another corpus bears the name, they are not.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from edp_lab.attacks.membership.attacks import GENERATED, attack_loss, attack_shadow, default_shadow
from edp_lab.corpora import Corpus, load_corpus, split
from edp_lab.corpora.catalog import list_corpora
from edp_lab.errors import UsageError
from edp_lab.models.files import read_json
from edp_lab.privacy import judge
from edp_lab.reproduce.pretrained import content, encoder_at_hand, encoder_content, made
from edp_lab.reproduce.results_io import RESULTS, machine
from edp_lab.training import TrainConfig, resume, train
from edp_lab.training.result_cache import ResultCache, Say, content_key, read_result
from edp_lab.training.run_folder import RECORD

COMMITTED = RESULTS / "cells"
INDEX = "index.json"  # there: {"corpora": {name: {"sha256", "utterances", "train": {seed: count}}}, "encoders": {...}}
CURE = "the same command goes on from here"


@dataclass(frozen=True)
class Job:
    """One run, and whether the paper's attack is made on it."""

    config: TrainConfig
    attack: bool = False


class Inputs:
    """Corpora and encoders by their content: as they are at hand, else as an index has them.

    Args:
        index: of finished runs; without it, of what is at hand only.

    Raises:
        UsageError: from every method, for what is neither.
    """

    def __init__(self, index: Mapping[str, Any] | None = None) -> None:
        self.encoders: Mapping[str, str] = (index or {}).get("encoders", {})
        self.corpora: Mapping[str, Any] = (index or {}).get("corpora", {})
        self._loaded: Callable[[str], Corpus] = cache(load_corpus)
        self._at_hand: Callable[[str], bool] = cache(corpus_at_hand)

    def has(self, corpus: str) -> bool:
        return self._at_hand(corpus) or Path(corpus).name in self.corpora

    def corpus(self, name: str) -> str:
        """Its checksum."""
        indexed = self._indexed(name)
        return str(indexed["sha256"]) if indexed else self._loaded(name).sha256

    def utterances(self, corpus: str) -> int:
        indexed = self._indexed(corpus)
        return int(indexed["utterances"]) if indexed else len(self._loaded(corpus).utterances)

    def examples(self, corpus: str, seed: int) -> int:
        """Of the training set."""
        indexed = (self._indexed(corpus) or {"train": {}})["train"].get(str(seed))
        return int(indexed) if indexed else len(split(self._loaded(corpus), seed).train)

    def encoder(self, name: str) -> str:
        indexed = None if encoder_at_hand(name) else self.encoders.get(name)
        return indexed or encoder_content(name)

    def shadow(self, corpus: str) -> list[str]:
        """Of the paper's attack: the corpus of its shadow model, and the content of that."""
        name = default_shadow(corpus, self.has)
        return [name, "" if name == GENERATED else self.corpus(name)]

    def _indexed(self, corpus: str) -> Mapping[str, Any] | None:
        return None if self._at_hand(corpus) else self.corpora.get(Path(corpus).name)


def corpus_at_hand(name: str) -> bool:
    known = {info.name: info.where is not None for info in list_corpora()}
    return known[name] if name in known else Path(name).expanduser().exists()


class TableRuns:
    """Does jobs, each once.

    Args:
        out: see above; created.
        workers: processes that work at the same time, one thread each.
        tell: called with a line, and whether it is worth keeping.
        fresh: forget what is finished, for good in this folder.

    Raises:
        UsageError: a folder that cannot be written.
    """

    def __init__(
        self, out: Path, workers: int = 1, tell: Callable[[str, bool], None] | None = None, fresh: bool = False
    ) -> None:
        self.out, self.workers, self.tell = out, workers, tell or (lambda line, kept: None)
        if fresh:
            for folder in ("cells", "runs", "shadows", "public"):
                shutil.rmtree(out / folder, ignore_errors=True)
        self.cells = ResultCache(out / "cells", named=out)
        if fresh:
            (out / "fresh").touch()
        index = COMMITTED / INDEX
        self._committed = index.is_file() and not (out / "fresh").exists()
        self.at_hand, self.inputs = Inputs(), Inputs(read_json(index) if self._committed else None)
        self._joined: set[str] = set()

    def key(self, job: Job, inputs: Inputs) -> str:
        """Of what the job comes to, if it is made from these."""
        config, areas = job.config, ["training", *(["membership"] if job.attack else [])]
        told: list[Any] = [
            replace(config, corpus=Path(config.corpus).name, pretrained=None),
            inputs.corpus(config.corpus),
            inputs.corpus(config.alpha_corpus) if config.alpha_corpus else None,
            content(config.pretrained, config.corpus, inputs),
            inputs.shadow(config.corpus) if job.attack else None,
        ]
        return content_key(areas, *told)[:24]

    def committed(self, key: str) -> dict[str, Any] | None:
        """What came with the checkout under that key, of `inputs`."""
        return read_result(COMMITTED, key) if self._committed else None

    def known(self, job: Job) -> dict[str, Any] | None:
        """What the job came to, if it has been done."""
        return self.committed(self.key(job, self.inputs)) or self.cells.read(self.key(job, self.at_hand))

    def results(self, jobs: Sequence[Job], what: str) -> list[dict[str, Any]]:
        """What each job comes to, in order; those that are missing are done now.

        Raises:
            UsageError: as `train` and `attack_shadow`, a process that was killed, or a corpus or an encoder that is not
                at hand, while some job must be done.
        """
        unique = list(dict.fromkeys(jobs))
        found = {job: one for job in unique if (one := self.committed(self.key(job, self.inputs))) is not None}
        self._joined |= {job.config.corpus for job in found}
        came = f", {len(found)} of them came with the checkout" if found else ""
        keys = {job: self.key(job, self.at_hand) for job in unique if job not in found}
        found |= {job: one for job, key in keys.items() if (one := self.cells.read(key)) is not None}
        todo = {job: self._work(job) for job in unique if job not in found}
        if todo or came:
            self.tell(f"{what}: {len(found)} of {len(unique)} runs are done{came}", True)
        start, already, before = time.perf_counter(), len(found), 0

        def said(done: int, line: str | None) -> None:
            nonlocal before
            if line is not None:
                gone = time.perf_counter() - start
                left = f", about {_minutes(gone / done * (len(todo) - done))} left" if done else ""
                count = f"{already + done} of {len(unique)} runs"
                self.tell(f"{what}: {count} after {_minutes(gone)}{left}; {line}", done > before)
                before = done

        made_of = [keys[job] for job in todo], list(todo.values())
        done = self.cells.results(*made_of, do, self.workers, said, CURE, "a process that does runs")
        if todo:
            self.tell(f"{what}: all {len(unique)} runs are done, after {_minutes(time.perf_counter() - start)}", True)
        found |= dict(zip(todo, done, strict=True))
        return [found[job] for job in jobs]

    def prepare(self, jobs: Sequence[Job]) -> None:
        """What those of these jobs start from that must be done: a corpus or an encoder that is not at hand should show
        before hours of work on others.

        Raises:
            UsageError: as `results`.
        """
        for job in jobs:
            if self.known(job) is None:
                self.start_of(job.config)

    def start_of(self, config: TrainConfig) -> str | None:
        """What the run starts from, as `TrainConfig.pretrained` has it: made now, if it must be."""
        return made(config.pretrained, config.corpus, self.out / "public", self.at_hand)

    def _work(self, job: Job) -> Work:
        """
        Raises:
            UsageError: see `results`; or what is at hand is not what joined runs on the same corpus were made from.
        """
        config = job.config
        if config.corpus in self._joined and self.key(job, self.at_hand) != self.key(job, self.inputs):
            raise UsageError(
                f"the finished runs on {config.corpus} that came with the checkout were made from corpora or an "
                "encoder that are not at hand here, and others must be run beside them: bring those, or give --fresh"
            )
        config = replace(config, pretrained=self.start_of(config))
        key = self.key(Job(job.config), self.at_hand)
        return Work(config, job.attack, key, self.out / "runs" / key, self.out / "shadows")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


# ---- In a process that does a share of the jobs --------------------------------------------------------------------


class Work(NamedTuple):
    """A job, the key of its run without the attack, and where that and the shadow models go."""

    config: TrainConfig
    attack: bool
    run: str
    folder: Path
    shadows: Path


def do(work: Work, say: Say) -> dict[str, Any]:
    """What a job comes to; a run that was cut off goes on.

    Raises:
        UsageError: as `train` and `attack_shadow`.
    """
    config, folder = work.config, work.folder
    name = f"{config.corpus}, {config.method}, seed {config.seed}"

    def listen(event: Any) -> None:
        if hasattr(event, "row"):
            say(f"{name}: epoch {event.epoch + 1} of {event.epochs}")

    if (folder / RECORD).is_file():
        record = resume(folder, listen)
    else:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed before it began
        record = train(config, folder, listen)
    if record["status"] != "finished":  # Ctrl-C, where the run is this process's
        raise KeyboardInterrupt
    found = {**summary(config, record), "run": work.run}
    if work.attack:
        say(f"{name}: membership inference")
        found |= attacks(folder, config.seed, work.shadows)
    return found


def attacks(folder: Path, seed: int, cache: Path) -> dict[str, Any]:
    """The paper's attack, its shadow model trained by SGD with a seed of the target's, and one by the loss alone."""
    start = time.perf_counter()
    by_shadow = attack_shadow(folder, seed=seed, cache=cache, plain=True).to_json()
    by_loss = attack_loss(folder).to_json()
    names = ("auc", "auc_interval", "tpr_at_fpr", "guards", "members", "shadow_corpora", "classifier")
    return {
        **{name: by_shadow[name] for name in names},
        **{f"loss_{name}": by_loss[name] for name in names[:3]},
        "attack_seconds": time.perf_counter() - start,
    }


def summary(config: TrainConfig, record: dict[str, Any]) -> dict[str, Any]:
    """What a table needs of a finished run's record."""
    last, final = record["epochs"][-1], record["final"]
    return {
        "config": {**record["config"], "corpus": Path(config.corpus).name},  # wherever a user keeps it
        "validation_ser": last["ser"],
        "ser": final["ser"],
        "intent_accuracy": final["intent_accuracy"],
        "slot_f1": final["slot_f1"],
        **{name: final[name] for name in ("epsilon_claimed", "epsilon", "epsilon_if_alpha_public")},
        "delta": record["config"]["delta"],
        "examples": record["corpus"]["splits"]["train"],
        "seconds": final["seconds"],
        "device": record["device"],
        "threads": record["threads"],
        "machine": machine(record["device"]),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": record["versions"],
    }


def measured_on(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where these runs were made: all devices and machines, threads and versions of the first."""
    every = {name: ", ".join(sorted({one[name] for one in results})) for name in ("device", "machine")}
    return {**every, "threads": results[0]["threads"], "versions": results[0]["versions"]}


def claimed_log10(config: TrainConfig, examples: int, delta: float) -> float | None:
    """log10 of the epsilon that the paper's accounting gives this run at that delta; None without noise."""
    mechanism = config.mechanism(examples)
    if mechanism is None:
        return None
    claimed = judge(mechanism, config.epochs, delta).epsilon_claimed
    return None if claimed is None or claimed <= 0 else math.log10(claimed)
