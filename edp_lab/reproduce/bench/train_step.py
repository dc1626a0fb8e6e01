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
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from edp_lab.corpora import load_corpus, split
from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.errors import UsageError
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.reproduce.paper.printed import NUM_GPUS, TABLE_2
from edp_lab.reproduce.paper.table1 import CORPORA, check_names
from edp_lab.training import TrainConfig
from edp_lab.training.inference import AT_ONCE, evaluate_model
from edp_lab.training.noise import BLOCK, NoiseSource, Share, Span
from edp_lab.training.result_cache import ResultCache, Say, content_key, run_apart
from edp_lab.training.run_folder import versions
from edp_lab.training.run_session import start_accelerator
from edp_lab.training.trainer import Trainer

METHODS = ("sgd", "edp-sgd", "dp-sgd-naive", "dp-sgd", "opacus")
DEVICES = 8
NETWORKS = {"8 devices like this in one machine, 100 GB/s": 100e9, "8 machines like this, 10 Gbit/s": 1.25e9}
SLOW, FEW = 10.0, 3  # a method whose steps take so many times as long as SGD's gets only a few rounds
# Else glibc gives large tensors back to the system in each step: no cost to our methods, half of the time to Opacus.
KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
VOCABULARY = 30_522  # pieces of the BERT that the paper fine-tunes: 14.25 million parameters


class Contestant(NamedTuple):
    """A method on so many devices, simulated by so many processes."""

    method: str
    gpus: int
    processes: int


@dataclass(frozen=True)
class Task:
    """What is timed."""

    corpus: str
    model: str = "clc"
    methods: tuple[str, ...] = METHODS
    gpus: tuple[int, ...] = (1, 8)
    processes: tuple[int, ...] = (1,)
    batch_size: int = 64
    rounds: int = 30  # steps of each method; a slow one gets only three
    threads: int | None = None  # of each process; None: its share of the cores
    size: str = "paper"
    device: str | None = None  # "cpu" or "cuda"; None: cuda where there is one

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

    `seconds_per_epoch` is the mean step times the steps of an epoch, beside the paper's seconds and ratio. Of private
    methods, `noise_ratio`. UsageError for an unknown corpus, or where Opacus is asked for but not installed.
    """
    rows = []
    load_corpus(task.corpus)  # refused before processes begin
    with tempfile.TemporaryDirectory() as folder:
        pretrained = _encoder(task, Path(folder)) if task.model == "bert" else None

        def turns(contestants: list[Contestant], memory: bool = False) -> list[dict[str, Any]]:
            """What the first of the processes says of each turn; `memory`: only its peak after two steps."""
            told: list[dict[str, Any]] = []

            def said(turn: dict[str, Any]) -> None:
                progress(contestants[turn["number"]].method + ("" if memory else f", round {turn['round'] + 1}"))
                told.append(turn)

            job, environment = (task, contestants, pretrained, memory), None if memory else KEEP_PAGES
            run_apart(_turns, job, said, task.threads, environment, contestants[0].processes)
            return told

        for processes in task.processes:
            contestants = task.contestants(processes)
            told = turns(contestants)
            for number, contestant in enumerate(contestants):
                [last] = turns([contestant], memory=True)
                rows.append(_row(task, contestant, number, told, last["memory_mb"]))
    noise = noise_ratio()
    return [{**row, "noise_ratio": None if row["method"] in ("sgd", "opacus") else noise} for row in rows]


def noise_ratio(rounds: int = 40) -> float:
    """What exact noise takes over float noise: draw, add, round and finish a block, over draw and add.

    Of processor time on one thread, the median ratio of neighbours.
    """
    key, numbers, ratios = key_from_seed(0), torch.zeros(BLOCK), []
    exact, floats = NoiseSource(key, BLOCK, None), NoiseSource(key, BLOCK, Share())

    def seconds(source: NoiseSource, step: int) -> float:
        span, start = Span(slice(0, BLOCK), numbers.fill_(0.1), 0.5), time.thread_time()
        source.of(step).add_to([span], [0.7])
        return time.thread_time() - start

    for step in range(rounds + 1):
        ratios.append(seconds(exact, step) / seconds(floats, step))
    return statistics.median(ratios[1:])  # the first allocates memory


def _row(
    task: Task, contestant: Contestant, number: int, told: Sequence[dict[str, Any]], memory_mb: float
) -> dict[str, Any]:
    """Of the contestant that has this number in what was told of all turns; SGD has a step beside every other's."""
    own = [turn for turn in told if number in (0, turn["number"])]
    seconds = [turn["seconds" if number else "sgd"] for turn in own]
    ratios = [taken / turn["sgd"] for taken, turn in zip(seconds, own, strict=True)]
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
        "threads": told[0]["threads"],
        "batch_size": task.batch_size,
        "rounds": len(seconds),
        "steps_per_epoch": told[0]["steps"],
        "seconds_per_epoch": statistics.mean(seconds) * told[0]["steps"],
    }


def table2(
    out: Path, models: Sequence[str], corpora: Sequence[str], size: str, rounds: int, tell: Callable[[str, bool], None]
) -> Iterator[list[dict[str, Any]]]:
    """The rows of one model on one corpus after the other; what was measured on this machine before is kept.

    Each with the paper's seconds of an SGD epoch and its factor; ours stand on simulated devices, theirs on 8 GPUs.
    UsageError for an unknown model or corpus, one that is not at hand, or a folder that cannot be written.
    """
    check_names(models, corpora)
    cache = ResultCache(out / "cells")
    machine = [platform.node(), platform.machine(), torch.get_num_threads(), torch.cuda.is_available()]
    for model, corpus in product(models, corpora):
        what = f"{model.upper()} on {corpus}"
        task = Task(corpus, model, METHODS[:-1], (1, NUM_GPUS), rounds=rounds, size=size)
        key = content_key(["timing"], task, load_corpus(corpus).sha256, machine)
        found, told = cache.read(key), "was measured before"
        if found is None:
            printed = next(one for one in TABLE_2 if (one.model, one.corpus) == (model.upper(), CORPORA[corpus]))
            edp, loop = printed.edp_sgd_factor, printed.dp_sgd_factor
            factors = {("sgd", 1): 1.0, ("edp-sgd", NUM_GPUS): edp, ("dp-sgd-naive", 1): loop}
            beside = {"stands_for": printed.corpus, "paper_sgd_seconds": printed.sgd_seconds, "versions": versions()}
            rows = bench_steps(task, lambda line, what=what: tell(f"{what}: {line}", False))  # type: ignore[misc]
            rows = [{**row, **beside, "paper_ratio": factors.get((row["method"], row["gpus"]))} for row in rows]
            found, told = cache.write(key, {"rows": rows}), "measured"
        tell(f"{what}: {told}", True)
        yield found["rows"]


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


# ---- In the processes that take the steps ----------------------------------------------------------------------------


def _turns(job: tuple[Task, list[Contestant], str | None, bool], say: Say) -> None:
    """One rank of the benchmark; if it is the first, it says what each turn took."""
    task, contestants, pretrained, memory = job
    accelerator = start_accelerator(contestants[0].processes, task.device)
    corpus = load_corpus(task.corpus)
    data = split(corpus, 0)
    runs = [Trainer(task.config(one, pretrained), corpus, data, accelerator) for one in contestants]
    take = [_taker(run, one.method) for run, one in zip(runs, contestants, strict=True)]
    firsts = [one(0) for one in take]  # allocates memory; not counted

    def tell(turn: dict[str, Any]) -> None:
        if accelerator.is_main_process:
            say(turn)

    if memory:
        take[0](1)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
        if accelerator.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated()
        tell({"number": 0, "memory_mb": peak / 2**20})
        return
    about = {"steps": runs[0].batches.steps_per_epoch, "threads": torch.get_num_threads()}
    for place in range(task.rounds):
        draw = random.Random(place)  # the same on all ranks
        # In no fixed order: whoever always followed a heavy method would find a cold cache.
        for number in draw.sample(range(1, len(runs)), len(runs) - 1) or [0]:
            if place < FEW or firsts[number] < SLOW * firsts[0]:
                pair = draw.sample([0, number], 2) if number else [0]
                seconds = {one: take[one](place) for one in pair}
                tell({"number": number, "round": place, "seconds": seconds[number], "sgd": seconds[0], **about})


def _taker(run: Trainer, method: str) -> Callable[[int], float]:
    """Takes the step of that method on that batch of the epoch, and tells its seconds."""
    peer = None
    if method == "opacus":
        from edp_lab.reproduce.bench.opacus_peer import text_peer

        peer = text_peer(run)

    def wait() -> None:
        if run.accelerator.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(number: int) -> float:
        place = run.progress.step_in_epoch = number % max(1, run.batches.steps_per_epoch - 1)  # the last is shorter
        wait()
        start = time.perf_counter()
        if peer is None:
            run.step()
        else:
            peer.step(np.concatenate([part for own in run.batches.devices(0, place, 0) for part in own]))
        wait()
        return time.perf_counter() - start

    return seconds


# ---- What a corpus' size costs ---------------------------------------------------------------------------------------


def bench_scale(
    sizes: Sequence[int],
    steps: int = 40,
    size: str = "paper",
    threads: int | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Iterator[dict[str, Any]]:
    """A row for each number of utterances.

    Args:
        steps: eDP-SGD steps (sound, 8 simulated devices, batches of 64) whose median counts.
        size: of the CLC.
    """
    if steps < 2 or not sizes or min(sizes) < 1000:
        raise UsageError("give at least 2 steps and corpora of at least 1000 utterances")
    TrainConfig("", size=size)
    with tempfile.TemporaryDirectory() as folder:
        for utterances in sizes:
            corpus = Path(folder) / f"{utterances}.jsonl"
            progress(f"generating {utterances:,}")
            start = time.perf_counter()
            write_jsonl(generate(utterances, 0), corpus)
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

    def median(run: Trainer) -> float:
        """Seconds of a step; the first is not counted."""
        take = _taker(run, config.method)
        return statistics.median([take(number) for number in range(steps + 1)][1:])

    seconds = median(run)
    alone = replace(config, batch_size=config.batch_size // DEVICES, num_devices=1)
    share_seconds = median(Trainer(alone, corpus, data, run.accelerator))
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
