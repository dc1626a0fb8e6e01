"""What a corpus' size costs: generating it, a training step, memory; and what eight devices would make of it.

Each size is measured in a process of its own, whose peak memory is reported. The extrapolation is arithmetic on
measured parts: a device is taken to be as fast as this machine, whatever it is; the bandwidths are assumptions.
"""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edp_lab.corpora import load_corpus, split
from edp_lab.corpora.smart_home import pack
from edp_lab.errors import UsageError
from edp_lab.reproduce.bench.train_step import KEEP_PAGES
from edp_lab.training import TrainConfig
from edp_lab.training.inference import AT_ONCE, evaluate_model
from edp_lab.training.processes import Ranks, run_rank
from edp_lab.training.run_session import start_accelerator
from edp_lab.training.trainer import Trainer

SIZES = (10_000, 100_000, 1_000_000)
DEVICES = 8
NETWORKS = {"8 devices like this in one machine, 100 GB/s": 100e9, "8 machines like this, 10 Gbit/s": 1.25e9}


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
            job = json.dumps({"corpus": str(corpus), "steps": steps, "size": size})
            with Ranks(1, ["edp_lab.reproduce.bench.scale", job], threads, KEEP_PAGES) as ranks:
                [line] = list(ranks.lines())
            row = {"utterances": utterances, "generate_seconds": generated, **json.loads(line)}
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


def main(job: str) -> None:
    """In a process of its own: one size; prints a line of JSON."""
    told = json.loads(job)
    start = time.perf_counter()
    corpus = load_corpus(told["corpus"])
    data = split(corpus, 0)
    config = TrainConfig(told["corpus"], z0=1.0, num_devices=DEVICES, size=told["size"])
    run = Trainer(config, corpus, data, start_accelerator(1))
    prepared = time.perf_counter() - start
    seconds = _steps(run, told["steps"])
    share = Trainer(
        replace(config, batch_size=config.batch_size // DEVICES, num_devices=1), corpus, data, run.accelerator
    )
    share_seconds = _steps(share, told["steps"])
    start = time.perf_counter()
    scored = data.test[:AT_ONCE]
    evaluate_model(run.model, scored)
    row = {
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
    print(json.dumps(row), flush=True)


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


if __name__ == "__main__":
    run_rank(lambda job, _: main(job))
