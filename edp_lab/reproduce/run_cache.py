"""Training runs and attacks behind a table: each done once, kept by content, shared out over processes.

    OUT/cells/<key>.json    what one run, and the attack on it, came to
    OUT/runs/<key>/         the run itself: its record, its model, and while it is going on its state
    OUT/shadows, public     shadow models of the attacks; what the networks start from, and the times of their steps

The key is a digest of everything that a run is a function of: settings, corpus, pretrained weights, versions and code.
Whoever kills the work and starts it again repeats no finished run, and goes on within the one that was cut off. The
runs behind the tables that come with a checkout, in data/results/cells, count as finished, too, but not in a folder
that was begun as `fresh`. Where one of these says `measured_as`, it was measured under that key, by earlier code;
data/README.md says how far both were seen to do the same.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from edp_lab.corpora import load_corpus, split
from edp_lab.errors import UsageError
from edp_lab.models.files import write_whole
from edp_lab.privacy import judge
from edp_lab.reproduce.machine import machine
from edp_lab.reproduce.results_io import RESULTS
from edp_lab.training import TrainConfig, resume, train
from edp_lab.training.processes import Ranks, run_rank
from edp_lab.training.run_folder import RECORD, code_of, digest, versions

TRAINING = ("corpora", "privacy", "models", "training")  # the code that a run depends on
ATTACK = (*TRAINING, "attacks")
KEPT = RESULTS / "cells"
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")  # a worker's runs are no ranks of one another


@dataclass(frozen=True)
class Job:
    """One run, and whether the paper's attack is made on it."""

    config: TrainConfig
    attack: bool = False


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
        try:
            for folder in ("cells", "runs", "shadows", "public"):
                if fresh:
                    shutil.rmtree(out / folder, ignore_errors=True)
                (out / folder).mkdir(parents=True, exist_ok=True)
            if fresh:
                (out / "fresh").touch()
        except OSError as error:
            raise UsageError(f"{out} cannot be written ({error.strerror}): choose another --out") from error
        self._cells = [out / "cells"] if (out / "fresh").exists() else [out / "cells", KEPT]
        self._content = cache(lambda corpus: load_corpus(corpus).sha256)
        self._code = {attack: digest({}, *code_of(ATTACK if attack else TRAINING)) for attack in (False, True)}

    def key(self, job: Job) -> str:
        config = {**asdict(job.config), "corpus": Path(job.config.corpus).name}
        if job.config.pretrained:
            config["pretrained"] = content_of(job.config.pretrained)
        told = [config, self._content(job.config.corpus), versions(), self._code[job.attack]]
        if job.attack:
            told.append(self._shadow(job.config.corpus))
        return digest({}, json.dumps(told, sort_keys=True).encode())[:24]

    def _shadow(self, corpus: str) -> list[str]:
        """What else `attacks` is a function of: its shadow's corpus, the package of its classifier, its choices."""
        from edp_lab.attacks.membership.attacks import GENERATED, default_shadow

        name = default_shadow(corpus)
        content = "" if name == GENERATED else self._content(name)
        return [name, content, version("scikit-learn"), "shadow: by SGD, seed of the target; loss"]

    def known(self, job: Job) -> dict[str, Any] | None:
        """What the job came to, if it has been done."""
        return self._cell(self.key(job))

    def _cell(self, key: str) -> dict[str, Any] | None:
        return next((found for folder in self._cells if (found := _read(folder / f"{key}.json")) is not None), None)

    def results(self, jobs: Sequence[Job], what: str) -> list[dict[str, Any]]:
        """What each job comes to, in order; those that are missing are done now.

        Raises:
            UsageError: as `train` and `attack_shadow`, or a process that was killed.
        """
        missing = [job for job in dict.fromkeys(jobs) if self.known(job) is None]
        given = sum(_read(self.out / "cells" / f"{self.key(job)}.json") is None for job in set(jobs)) - len(missing)
        if missing or given:
            came = f", {given} of them came with the checkout" if given else ""
            self.tell(f"{what}: {len(set(jobs)) - len(missing)} of {len(set(jobs))} runs are done{came}", True)
        if missing:
            self._do(missing, what, len(set(jobs)))
        found = [self.known(job) for job in jobs]
        if None in found:
            raise UsageError(f"a result in {self.out} has gone while the table was made: run the same command again")
        return found  # type: ignore[return-value]

    def _do(self, jobs: Sequence[Job], what: str, of: int) -> None:
        """Those of `of` jobs that are missing."""
        workers, start = min(self.workers, len(jobs)), time.perf_counter()
        share, done, keys = self.out / "jobs.json", 0, [self.key(job) for job in jobs]
        told = [[key, self.run_key(job), asdict(job)] for key, job in zip(keys, jobs, strict=True)]
        write_whole(share, json.dumps(told).encode())
        with Ranks(workers, ["edp_lab.reproduce.run_cache", str(share)], threads=1) as ranks:
            for line in ranks.lines("the same command goes on from here"):
                now = sum(self._cell(key) is not None for key in keys)
                gone = time.perf_counter() - start
                left = f", about {_minutes(gone / now * (len(jobs) - now))} left" if now else ""
                count = f"{of - len(jobs) + now} of {of} runs"
                self.tell(f"{what}: {count} after {_minutes(gone)}{left}; {line}", now > done)
                done = now
        self.tell(f"{what}: all {of} runs are done, after {_minutes(time.perf_counter() - start)}", True)

    def run_key(self, job: Job) -> str:
        """Of the run without its attack."""
        return self.key(Job(job.config))


def _read(cell: Path) -> dict[str, Any] | None:
    """None where it is missing or damaged."""
    try:
        found = json.loads(cell.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def content_of(pretrained: str) -> str:
    """A digest of pretrained weights, the same for whoever keeps them elsewhere; of a name on a hub, the name's.

    Raises:
        UsageError: the folder holds no files.
    """
    path = Path(pretrained).expanduser()
    if not path.exists():
        return pretrained
    files = sorted(file for file in (path, *path.rglob("*")) if file.is_file())
    if not files:
        raise UsageError(f"the folder of pretrained weights {path} is empty: remove it, and it is made anew")
    told = [[str(file.relative_to(path)), _sha256(file.resolve(), file.stat().st_mtime_ns)] for file in files]
    return digest({}, json.dumps(told).encode())


@cache
def _sha256(file: Path, changed: int) -> str:
    return digest({}, file.read_bytes())


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


# ---- In a process that does a share of the jobs --------------------------------------------------------------------


def do(out: Path, key: str, run_key: str, job: Job, say: Callable[[str], None], stop: threading.Event) -> None:
    """Do one job and keep what it came to; another process may have done it meanwhile.

    Raises:
        UsageError: as `train` and `attack_shadow`.
    """
    cell, folder = out / "cells" / f"{key}.json", out / "runs" / run_key
    if _read(cell) is not None:
        return
    name = f"{job.config.corpus}, {job.config.method}, seed {job.config.seed}"

    def listen(event: Any) -> None:
        if hasattr(event, "row"):
            say(f"{name}: epoch {event.epoch + 1} of {event.epochs}")

    if (folder / RECORD).is_file():
        record = resume(folder, listen, stop)
    else:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed before it began
        record = train(job.config, folder, listen, stop)
    if record["status"] != "finished":
        raise UsageError(f"the run {folder} was stopped: the same command goes on from here")
    found = {**summary(job.config, record), "run": run_key}
    if job.attack:
        say(f"{name}: membership inference")
        found |= attacks(folder, job.config.seed, out / "shadows")
    write_whole(cell, json.dumps(found, indent=1, allow_nan=False).encode())


def attacks(folder: Path, seed: int, cache: Path) -> dict[str, Any]:
    """The paper's attack, its shadow model trained by SGD with a seed of the target's, and one by the loss alone."""
    from edp_lab.attacks.membership.attacks import attack_loss, attack_shadow

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


def claimed_log10(config: TrainConfig, delta: float) -> float | None:
    """log10 of the epsilon that the paper's accounting gives this run at that delta; None without noise."""
    mechanism = config.mechanism(len(split(load_corpus(config.corpus), config.seed).train))
    if mechanism is None:
        return None
    claimed = judge(mechanism, config.epochs, delta).epsilon_claimed
    return None if claimed is None or claimed <= 0 else math.log10(claimed)


def _work(path: str, stop: threading.Event) -> None:
    share, rank = Path(path), int(os.environ["RANK"])
    workers = int(os.environ["WORLD_SIZE"])
    for name in LAUNCHER:
        del os.environ[name]
    torch.set_num_threads(1)

    def say(line: str) -> None:
        print(line, flush=True)

    for number, (key, run_key, told) in enumerate(json.loads(share.read_text())):
        if number % workers == rank:
            job = Job(TrainConfig(**told["config"]), told["attack"])
            do(share.parent, key, run_key, job, say, stop)


if __name__ == "__main__":
    run_rank(_work)
