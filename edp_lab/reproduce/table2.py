"""Re-measure Table 2: the time of a training step of each method relative to SGD, compared with the paper.

Every method starts from the same weights and reads the same batches, in one process. In each round, every method takes
one step, with a step of SGD just before or after it. Ratios compare these pairs, because other load on the machine
slows down both steps. Peak memory is measured in a separate process for each method. Several processes are started as
ranks by torchrun, as in training.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.errors import UsageError
from edp_lab.jobs import usable_cores
from edp_lab.reproduce.printed import TABLE_2
from edp_lab.training.config import TrainConfig
from edp_lab.training.launch import end_rank
from edp_lab.training.session import start_accelerator
from edp_lab.training.trainer import Trainer

METHODS = ("sgd", "edp-sgd", "dp-sgd-naive", "dp-sgd")
SLOW, FEW = 10.0, 3  # a method whose steps take at least 10 times as long as SGD's gets only 3 rounds
# Otherwise glibc returns memory to the system after each step, and allocating it again hides the differences.
KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
VOCABULARY = 30_522  # number of word pieces of the BERT that the paper fine-tunes, with 14.25 million parameters


class Contestant(NamedTuple):
    """A method with its number of devices, which the given number of processes simulate."""

    method: str
    gpus: int
    processes: int


@dataclass(frozen=True)
class Task:
    """Settings of one benchmark, validated."""

    corpus: str
    model: str = "clc"
    methods: tuple[str, ...] = METHODS
    gpus: tuple[int, ...] = (1, 8)
    processes: tuple[int, ...] = (1,)
    batch_size: int = 64
    rounds: int = 30  # number of steps of each method; slow methods take only three
    threads: int | None = None  # threads per process; None for an equal share of the cores
    size: str = "paper"
    device: str | None = None  # "cpu" or "cuda"; None for cuda if available

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in METHODS:
                raise UsageError(f"unknown method {method!r}: choose from {', '.join(METHODS)}")
        if self.device not in (None, "cpu", "cuda"):
            raise UsageError(f"unknown device {self.device!r}: choose cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("no CUDA device is usable here: omit --device, or choose cpu")
        if "sgd" not in self.methods:
            raise UsageError("ratios are relative to SGD: add sgd to --methods")
        for processes in self.processes:
            for contestant in self.contestants(processes):
                self.config(contestant)

    def contestants(self, processes: int) -> list[Contestant]:
        """Contestants, SGD first. Per-example methods have no devices; dp-sgd-naive runs in one process only."""
        contestants = []
        for method in sorted(self.methods, key=METHODS.index):
            if method == "edp-sgd":
                contestants += [Contestant(method, gpus, processes) for gpus in self.gpus if gpus >= processes]
            elif processes == 1 or method in ("sgd", "dp-sgd"):
                contestants.append(Contestant(method, processes, processes))
        return contestants

    def config(self, contestant: Contestant, pretrained: str | None = None) -> TrainConfig:
        per_example = contestant.method in ("dp-sgd", "dp-sgd-naive")
        return TrainConfig(
            corpus=self.corpus,
            model=self.model,
            method=contestant.method,
            num_devices=contestant.gpus,
            processes=contestant.processes,
            batch_size=self.batch_size,
            sampling="shuffle" if per_example else None,  # the same batches for all methods
            z0=1.0,
            epochs=1000,
            size=self.size,
            pretrained=pretrained,
        )


def table2(task: Task, progress: Callable[[str], None] = lambda name: None) -> list[dict[str, Any]]:
    """For each contestant: seconds per step (median), ratio to paired SGD steps (median and quartiles), peak memory.

    `seconds_per_epoch` is the mean step time times the steps per epoch; the paper's ratio is included. Raises
    UsageError if the corpus is unknown or a process died.
    """
    rows = []
    load_corpus(task.corpus)  # fail before starting processes
    with tempfile.TemporaryDirectory() as folder:
        pretrained = _encoder(task, Path(folder)) if task.model == "bert" else None
        for processes in task.processes:
            contestants = task.contestants(processes)
            turns = []
            for turn in _measured(task, contestants, pretrained):
                progress(f"{contestants[turn['number']].method}, round {turn['round'] + 1}")
                turns.append(turn)
            for number, contestant in enumerate(contestants):
                progress(f"memory of {contestant.method}")
                [last] = _measured(task, [contestant], pretrained, memory=True)
                rows.append(_row(task, contestant, number, turns, last["memory_mb"]))
    return rows


def _row(
    task: Task, contestant: Contestant, number: int, turns: Sequence[dict[str, Any]], memory_mb: float
) -> dict[str, Any]:
    """Result of the contestant with this index in `turns`. Each step of another method is paired with a step of SGD."""
    matching = [turn for turn in turns if number in (0, turn["number"])]
    seconds = [turn["seconds" if number else "sgd"] for turn in matching]
    ratios = [taken / turn["sgd"] for taken, turn in zip(seconds, matching, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    paper = [r for r in TABLE_2 if r.model.lower() == task.model and r.corpus.lower() == task.corpus.lower()]
    factors = {"sgd": 1.0, "edp-sgd": paper[0].edp_sgd_factor, "dp-sgd-naive": paper[0].dp_sgd_factor} if paper else {}
    return {
        "model": task.model,
        "corpus": task.corpus,
        **contestant._asdict(),
        "seconds": statistics.median(seconds),
        "ratio_to_sgd": statistics.median(ratios),
        "ratio_spread": [low, high],
        "peak_memory_mb": memory_mb,
        "paper_ratio": factors.get(contestant.method),
        "device": task.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        "threads": turns[0]["threads"],
        "batch_size": task.batch_size,
        "rounds": len(seconds),
        "steps_per_epoch": turns[0]["steps"],
        "seconds_per_epoch": statistics.mean(seconds) * turns[0]["steps"],
    }


def _encoder(task: Task, folder: Path) -> str:
    """Save a BERT of the paper's shape with random weights and the corpus' word pieces, only for timing."""
    from edp_lab.corpora.encoding import train_wordpieces
    from edp_lab.models.bert import BertSize, new_bert, quiet
    from edp_lab.models.factory import seeded
    from edp_lab.training.config import SIZES

    tokenizer = train_wordpieces([u.tokens for u in load_corpus(task.corpus).utterances])
    with seeded(0), quiet():
        bert = new_bert(BertSize(**SIZES[task.size]["bert"]).architecture(VOCABULARY))
        bert.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


# ---- Processes that take the steps -----------------------------------------------------------------------------------


def _measured(
    task: Task, contestants: Sequence[Contestant], pretrained: str | None, memory: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield reports of the first process as they arrive: each turn, or only its peak memory after two steps."""
    processes = contestants[0].processes
    job = json.dumps([asdict(task), contestants, pretrained, memory])
    ranks = ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"] if processes > 1 else []
    threads = task.threads or max(1, usable_cores() // processes)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **({} if memory else KEEP_PAGES)}
    command = [sys.executable, "-m", *ranks, __name__, job]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        try:
            yield from map(json.loads, child.stdout)
        except BaseException:  # the caller stops
            child.terminate()
            raise
    if child.returncode:
        raise UsageError(f"the measuring process died with status {child.returncode}: see the messages above")


def main(job: str) -> None:
    """Run one rank of the benchmark. Rank 0 prints a line of JSON after each turn."""
    task, contestants, pretrained, memory = json.loads(job)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for turn in turns(Task(**task), [Contestant(*each) for each in contestants], pretrained, memory):
        if int(os.environ.get("RANK", 0)) == 0:
            print(json.dumps(turn), flush=True)


def turns(
    task: Task, contestants: Sequence[Contestant], pretrained: str | None, memory: bool
) -> Iterator[dict[str, Any]]:
    """Take the steps in this process, and report each one."""
    accelerator = start_accelerator(contestants[0].processes, task.device)
    corpus = load_corpus(task.corpus)
    data = split(corpus, 0)
    runs = [Trainer(task.config(contestant, pretrained), corpus, data, accelerator) for contestant in contestants]
    firsts = [_timed_step(run, 0) for run in runs]  # allocate memory; not counted
    if memory:
        _timed_step(runs[0], 1)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
        if accelerator.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated()
        yield {"memory_mb": peak / 2**20}
        return
    about = {"steps": runs[0].batches.steps_per_epoch, "threads": torch.get_num_threads()}
    for place in range(task.rounds):
        draw = random.Random(place)  # the same on all ranks
        # The order is random, because a method that always followed a heavy method would always find a cold cache.
        for number in draw.sample(range(1, len(runs)), len(runs) - 1) or [0]:
            if place < FEW or firsts[number] < SLOW * firsts[0]:
                pair = draw.sample([0, number], 2) if number else [0]
                seconds = {index: _timed_step(runs[index], place) for index in pair}
                yield {"number": number, "round": place, "seconds": seconds[number], "sgd": seconds[0], **about}


def _timed_step(run: Trainer, number: int) -> float:
    """Take a step on the epoch's batch with this index; return the time in seconds."""
    wait = torch.cuda.synchronize if run.accelerator.device.type == "cuda" else lambda: None
    run.progress.step_in_epoch = number % max(1, run.batches.steps_per_epoch - 1)  # the last batch is shorter
    wait()
    start = time.perf_counter()
    run.step()
    wait()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1])
    end_rank(0)
