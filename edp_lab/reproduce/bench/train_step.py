"""Table 2 again: how long a training step takes under each method, interleaved in one process, beside the paper's.

Every method starts from the same weights and sees the same batches. A round gives one step to each method in turn, and
just before or after it one to SGD: ratios are those of such neighbours, on whom all else that the machine does falls
alike. Peak memory is that of a process of its own for each method. Several processes are ranks, as in training.

And what a corpus' size costs: generating it, a step, memory, each size in a process of its own; and what eight devices
would make of it. That is arithmetic on measured parts: a device is taken to be as fast as this machine, whatever it is;
the bandwidths are assumptions.
"""

from __future__ import annotations

import platform
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from edp_lab.corpora import load_corpus, split
from edp_lab.corpora.smart_home import pack
from edp_lab.errors import UsageError
from edp_lab.reproduce.paper.printed import NUM_GPUS, TABLE_2
from edp_lab.reproduce.paper.table1 import CORPORA, check_names
from edp_lab.training import TrainConfig
from edp_lab.training.inference import AT_ONCE, evaluate_model
from edp_lab.training.result_cache import ResultCache, Say, content_key, run_apart
from edp_lab.training.run_folder import versions
from edp_lab.training.run_session import start_accelerator
from edp_lab.training.trainer import Trainer

METHODS = ("sgd", "edp-sgd", "dp-sgd-naive", "dp-sgd", "opacus")
SIZES = (10_000, 100_000, 1_000_000)
DEVICES = 8
NETWORKS = {"8 devices like this in one machine, 100 GB/s": 100e9, "8 machines like this, 10 Gbit/s": 1.25e9}
TABLE_METHODS = METHODS[:-1]
SLOW, FEW = 10.0, 3  # a method whose steps take so many times as long as SGD's gets only a few rounds
# Else glibc gives large tensors back to the system in each step: no cost to our methods, half of the time to Opacus.
KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
VOCABULARY = 30_522  # pieces of the BERT that the paper fine-tunes: 14.25 million parameters


@dataclass(frozen=True)
class Contestant:
    """A method on so many devices, simulated by so many processes."""

    method: str
    gpus: int
    processes: int


@dataclass(frozen=True)
class Task:
    """What is timed.

    Attributes:
        rounds: steps of each method; a slow one gets only three.
        threads: of each process; None: its share of the cores.
        device: "cpu" or "cuda"; None: cuda where there is one.
    """

    corpus: str
    model: str = "clc"
    methods: tuple[str, ...] = METHODS
    gpus: tuple[int, ...] = (1, 8)
    processes: tuple[int, ...] = (1,)
    batch_size: int = 64
    rounds: int = 30
    threads: int | None = None
    size: str = "paper"
    device: str | None = None

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in METHODS:
                raise UsageError(f"unknown method {method!r}: choose from {', '.join(METHODS)}")
        if self.device not in (None, "cpu", "cuda"):
            raise UsageError(f"unknown device {self.device!r}: choose cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("no CUDA device is usable here: drop --device, or choose cpu")
        if "sgd" not in self.methods:
            raise UsageError("ratios are to SGD: add sgd to --methods")
        counts = {"--gpus": self.gpus, "--processes": self.processes, "--rounds": (self.rounds,)}
        for name, numbers in counts.items():
            if not numbers or min(numbers) < 1:
                raise UsageError(f"{name} must be whole numbers, at least 1")
        for processes in self.processes:
            for contestant in self.contestants(processes):
                self.config(contestant)

    def contestants(self, processes: int) -> list[Contestant]:
        """SGD first. Per-example methods do not know of devices; the slow ones run on one process only."""
        found = []
        for method in sorted(self.methods, key=METHODS.index):
            if method == "edp-sgd":
                found += [Contestant(method, gpus, processes) for gpus in self.gpus if gpus >= processes]
            elif processes == 1 or method in ("sgd", "dp-sgd"):
                found.append(Contestant(method, processes, processes))
        return found

    def config(self, contestant: Contestant, pretrained: str | None = None) -> TrainConfig:
        per_example = contestant.method in ("dp-sgd", "dp-sgd-naive", "opacus")
        return TrainConfig(
            corpus=self.corpus,
            model=self.model,
            method="dp-sgd" if contestant.method == "opacus" else contestant.method,
            num_devices=contestant.gpus,
            processes=contestant.processes,
            batch_size=self.batch_size,
            sampling="shuffle" if per_example else None,  # the same batches for all
            z0=1.0,
            epochs=1000,
            size=self.size,
            pretrained=pretrained,
        )


def bench_steps(task: Task, progress: Callable[[str], None] = lambda name: None) -> list[dict[str, Any]]:
    """Per contestant: seconds of a step (median), ratio to SGD's step beside it (median and quartiles), peak memory.

    `seconds_per_epoch` is the mean step times the steps of an epoch, beside the paper's seconds and ratio.

    Raises:
        UsageError: as `Task`; an unknown corpus; Opacus is asked for but not installed.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        pretrained = _encoder(task, Path(folder)) if task.model == "bert" else None
        for processes in task.processes:
            contestants = task.contestants(processes)
            told = _timed(task, contestants, pretrained, progress)
            for number, contestant in enumerate(contestants):
                [last] = _timed(task, [contestant], pretrained, progress, memory=True)
                own = [t for t in told if number in (0, t["number"])]
                seconds = [t["seconds" if number else "sgd"] for t in own]
                rows.append(_row(task, contestant, seconds, [t["sgd"] for t in own], told[0], last["memory_mb"]))
    return rows


def table2(
    out: Path,
    models: Sequence[str],
    corpora: Sequence[str],
    size: str = "paper",
    rounds: int = 11,
    tell: Callable[[str, bool], None] = lambda line, kept: None,
) -> Iterator[list[dict[str, Any]]]:
    """The rows of one model on one corpus after the other; what was measured on this machine before is kept.

    Raises:
        UsageError: an unknown model or corpus, one that is not at hand, or a folder that cannot be written.
    """
    check_names(models, corpora)
    cache = ResultCache(out / "cells", named=out)
    machine = [platform.node(), platform.machine(), torch.get_num_threads(), torch.cuda.is_available()]
    for task in (Task(c, m, TABLE_METHODS, (1, NUM_GPUS), rounds=rounds, size=size) for m in models for c in corpora):
        told = partial(_told, tell, f"{task.model.upper()} on {task.corpus}")
        key = content_key(["timing"], task, load_corpus(task.corpus).sha256, machine)
        found = cache.read(key)
        if found is not None:
            told("was measured before", True)
        else:
            found = cache.write(key, {"rows": [_beside_paper(row) for row in bench_steps(task, told)]})
            told("measured", True)
        yield found["rows"]


def _told(tell: Callable[[str, bool], None], task: str, what: str, kept: bool = False) -> None:
    tell(f"{task}: {what}", kept)


def _beside_paper(row: dict[str, Any]) -> dict[str, Any]:
    """With the paper's seconds of an SGD epoch and its factor; ours stand on simulated devices, theirs on 8 GPUs."""
    names = row["model"].upper(), CORPORA[row["corpus"]]
    printed = next(one for one in TABLE_2 if (one.model, one.corpus) == names)
    factors = {"sgd": 1.0, "dp-sgd-naive": printed.dp_sgd_factor}
    factor = printed.edp_sgd_factor if (row["method"], row["gpus"]) == ("edp-sgd", NUM_GPUS) else None
    told = {"stands_for": printed.corpus, "paper_sgd_seconds": printed.sgd_seconds, "versions": versions()}
    return {**row, **told, "paper_ratio": factors.get(row["method"], factor)}


def _row(
    task: Task, contestant: Contestant, seconds: list[float], sgd: list[float], first: dict[str, Any], memory_mb: float
) -> dict[str, Any]:
    ratios = [own / other for own, other in zip(seconds, sgd, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    paper = [r for r in TABLE_2 if r.model.lower() == task.model and r.corpus.lower() == task.corpus.lower()]
    factors = {"sgd": 1.0, "edp-sgd": paper[0].edp_sgd_factor, "dp-sgd-naive": paper[0].dp_sgd_factor} if paper else {}
    return {
        "model": task.model,
        "corpus": task.corpus,
        **asdict(contestant),
        "seconds": statistics.median(seconds),
        "ratio_to_sgd": statistics.median(ratios),
        "ratio_spread": [low, high],
        "peak_memory_mb": memory_mb,
        "paper_ratio": factors.get(contestant.method),
        "device": task.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        "threads": first["threads"],
        "batch_size": task.batch_size,
        "rounds": len(seconds),
        "steps_per_epoch": first["steps"],
        "seconds_per_epoch": statistics.mean(seconds) * first["steps"],
    }


def _timed(
    task: Task,
    contestants: list[Contestant],
    pretrained: str | None,
    progress: Callable[[str], None],
    memory: bool = False,
) -> list[dict[str, Any]]:
    """What the first of the processes says of each turn; `memory`: only its peak after two steps."""
    rows: list[dict[str, Any]] = []

    def said(row: dict[str, Any]) -> None:
        progress(contestants[row["number"]].method + ("" if memory else f", round {row['round'] + 1}"))
        rows.append(row)

    job, environment = (task, contestants, pretrained, memory), None if memory else KEEP_PAGES
    run_apart(_turns, job, said, task.threads, environment, contestants[0].processes)
    return rows


def _encoder(task: Task, folder: Path) -> str:
    """A BERT with random weights, of the paper's shape, whose pieces come from the corpus: for timing alone."""
    from edp_lab.models.bert import BertSize, new_bert, quiet
    from edp_lab.models.factory import seeded
    from edp_lab.models.wordpiece import train_wordpieces
    from edp_lab.training.config import SIZES

    tokenizer = train_wordpieces([u.tokens for u in load_corpus(task.corpus).utterances])
    with seeded(0), quiet():
        bert = new_bert(BertSize(**SIZES[task.size]["bert"]).architecture(VOCABULARY))
        bert.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


class _Runner:
    """Takes steps of one contestant."""

    def __init__(self, run: Trainer, contestant: Contestant) -> None:
        self.run, self.peer = run, None
        if contestant.method == "opacus":
            from edp_lab.reproduce.bench.opacus_peer import text_peer

            self.peer = text_peer(run)

    def seconds(self, number: int) -> float:
        """Of the step on that batch of the epoch."""
        run, steps = self.run, self.run.batches.steps_per_epoch
        run.progress.step_in_epoch = number % max(1, steps - 1)  # the last batch is shorter
        self._wait()
        start = time.perf_counter()
        if self.peer is None:
            run.step()
        else:
            devices = run.batches.devices(0, run.progress.step_in_epoch, 0)
            self.peer.step(torch.cat([torch.from_numpy(part) for own in devices for part in own]).numpy())
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.run.accelerator.device.type == "cuda":
            torch.cuda.synchronize()


def _peak_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _turns(job: tuple[Task, list[Contestant], str | None, bool], say: Say) -> None:
    """One rank of the benchmark, which says what each turn took, if it is the first."""
    task, contestants, pretrained, memory = job
    accelerator = start_accelerator(contestants[0].processes, task.device)
    corpus = load_corpus(task.corpus)
    data = split(corpus, 0)
    configs = [task.config(contestant, pretrained) for contestant in contestants]
    runners = [_Runner(Trainer(c, corpus, data, accelerator), one) for c, one in zip(configs, contestants, strict=True)]
    firsts = [runner.seconds(0) for runner in runners]  # allocates memory; not counted

    def report(**row: Any) -> None:
        if accelerator.is_main_process:
            say(row)

    if memory:
        runners[0].seconds(1)
        report(number=0, memory_mb=_peak_mb(accelerator.device))
        return
    for round_number in range(task.rounds):
        draw = random.Random(round_number)  # the same on all ranks
        # In no fixed order: whoever always followed a heavy method would find a cold cache.
        for number in draw.sample(range(1, len(runners)), len(runners) - 1) or [0]:
            if round_number < FEW or firsts[number] < SLOW * firsts[0]:
                pair = draw.sample([0, number], 2) if number else [0]
                seconds = {one: runners[one].seconds(round_number) for one in pair}
                steps, threads = runners[0].run.batches.steps_per_epoch, torch.get_num_threads()
                report(
                    number=number,
                    round=round_number,
                    seconds=seconds[number],
                    sgd=seconds[0],
                    steps=steps,
                    threads=threads,
                )


# ---- What a corpus' size costs ---------------------------------------------------------------------------------------


def bench_scale(
    sizes: Sequence[int] = SIZES,
    steps: int = 40,
    size: str = "paper",
    threads: int | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Iterator[dict[str, Any]]:
    """A row for each number of utterances.

    Args:
        steps: eDP-SGD steps (sound, 8 simulated devices, batches of 64) whose median counts.
        size: of the CLC.

    Raises:
        UsageError: numbers that are not positive.
    """
    if steps < 2 or not sizes or min(sizes) < 1000:
        raise UsageError("give at least 2 steps and corpora of at least 1000 utterances")
    with tempfile.TemporaryDirectory() as folder:
        for utterances in sizes:
            corpus = Path(folder) / f"{utterances}"
            progress(f"generating {utterances:,}")
            start = time.perf_counter()
            pack(utterances, 0, corpus)
            generated = time.perf_counter() - start
            progress(f"training on {utterances:,}")
            measured = run_apart(_of_size, (str(corpus), size, steps), threads=threads, environment=KEEP_PAGES)
            row = {"utterances": utterances, "generate_seconds": generated, **measured}
            yield {**row, "extrapolation": extrapolated(row)}


def extrapolated(row: dict[str, Any]) -> list[dict[str, Any]]:
    """An epoch on eight devices as fast as this machine: each takes an eighth of the batch, then they sum the gradient.

    A ring all-reduce moves 2 (N - 1) / N times the gradient through each link.
    """
    moved = 2 * (DEVICES - 1) / DEVICES * row["allreduce_bytes"]
    return [
        {
            "network": name,
            "bytes_per_second": bandwidth,
            "step_seconds": row["share_seconds"] + moved / bandwidth,
            "epoch_seconds": row["steps_per_epoch"] * (row["share_seconds"] + moved / bandwidth),
            "measured": False,
        }
        for name, bandwidth in NETWORKS.items()
    ]


def _of_size(job: tuple[str, str, int], say: Say) -> dict[str, Any]:
    """In a process of its own: one corpus."""
    (name, size, steps), start = job, time.perf_counter()
    corpus = load_corpus(name)
    data = split(corpus, 0)
    config = TrainConfig(name, z0=1.0, num_devices=DEVICES, size=size)
    run = Trainer(config, corpus, data, start_accelerator(1))
    prepared = time.perf_counter() - start
    seconds = _steps(run, steps)
    share = Trainer(
        replace(config, batch_size=config.batch_size // DEVICES, num_devices=1), corpus, data, run.accelerator
    )
    share_seconds = _steps(share, steps)
    start = time.perf_counter()
    scored = data.test[:AT_ONCE]
    evaluate_model(run.model, scored)
    return {
        "train_utterances": len(data.train),
        "prepare_seconds": prepared,
        "step_seconds": seconds,
        "microseconds_per_utterance": 1e6 * seconds / config.batch_size,
        "steps_per_epoch": run.batches.steps_per_epoch,
        "share_seconds": share_seconds,
        "scoring_microseconds_per_utterance": 1e6 * (time.perf_counter() - start) / len(scored),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "parameters": run.layout.size,
        "allreduce_bytes": run.layout.size * 4,
    }


def _steps(run: Trainer, steps: int) -> float:
    """Median seconds of a step; the first is not counted."""
    run.step()
    seconds = []
    for _ in range(steps):
        run.progress.step_in_epoch = (run.progress.step_in_epoch + 1) % max(1, run.batches.steps_per_epoch - 1)
        start = time.perf_counter()
        run.step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
