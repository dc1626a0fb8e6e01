"""The runs that notebook 06 shows, measured anew in minutes; a file that is there is gone on with.

    python -m edp_lab.course.nb06_tradeoff.measure runs/tradeoff.json

A run with a constant learning rate that is stopped after k epochs *is* the run of k epochs, so that one run gives a
point for each of `MARKS`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from edp_lab.corpora import Corpus, Split, load_corpus, split
from edp_lab.course.nb06_tradeoff.compute import BASE, METHODS, SCORES, Grid, configured, load_grid, method_of, work
from edp_lab.files import read_json
from edp_lab.reproduce.results_io import changed_settings, write_kept
from edp_lab.training import StepDone, TrainConfig
from edp_lab.training.inference import evaluate_model
from edp_lab.training.trainer import Event, Trainer

MARKS = (1, 2, 4, 8)  # epochs after which a measured run is scored on the test set
COMMAND = "python -m edp_lab.course.nb06_tradeoff.measure PATH"


def plan() -> list[TrainConfig]:
    """The runs of the grid that ships with the course, the ones most worth having first."""
    grid: list[tuple[str, int, str, tuple[float, ...]]] = [
        ("sgd", 1, "none", (0.0,)),
        ("sound", 8, "none", (0.003, 0.01, 0.03, 0.1, 0.3)),
        ("sound", 1, "none", (0.01, 0.03, 0.1, 0.3, 1.0)),
        ("printed", 8, "none", (0.001, 0.003, 0.01, 0.03, 0.1)),
        ("sound", 2, "none", (0.01, 0.03, 0.1)),
        ("sound", 4, "none", (0.01, 0.03, 0.1)),
        ("poisson", 1, "none", (0.1, 0.3, 1.0)),
        ("sound", 1, "exponential", (0.03, 0.1, 0.3)),
        ("sound", 8, "exponential", (0.01, 0.03, 0.1)),
        ("printed", 8, "exponential", (0.01, 0.03)),
        ("sound", 1, "linear", (0.03, 0.1, 0.3)),
    ]
    runs = [configured(BASE, method, m, z0, decay, BASE.epochs) for method, m, decay, z0s in grid for z0 in z0s]
    repeated = [("sgd", 1, 0.0), ("printed", 8, 0.01), ("sound", 1, 0.1)]
    first = [configured(BASE, method, m, z0, "none", BASE.epochs) for method, m, z0 in repeated]
    slow = replace(first[-1], method="dp-sgd-naive", epochs=1)
    return [*runs, *(replace(run, seed=seed) for seed in (1, 2) for run in first), slow]


def measure(
    path: Path, runs: Sequence[TrainConfig] | None = None, say: Callable[[str], None] = lambda text: None
) -> Grid:
    """Train what `path` lacks of `runs` (default: `plan()`), writing it after each one; return all that it holds."""
    wanted = plan() if runs is None else list(runs)
    told = read_json(path) if path.exists() else {"seconds_per_epoch": {}, "runs": []}
    pace, done = told["seconds_per_epoch"], told["runs"]
    write = partial(write_kept, path, COMMAND, seconds_per_epoch=pace, runs=done)
    torch.set_num_threads(1)
    for number, config in enumerate(wanted, 1):
        if changed_settings(config) not in [run["config"] for run in done]:
            say(f"run {number} of {len(wanted)}: {METHODS[method_of(config)]}")
            done.append(_train(config))
            write()
    if missing := {work(config): config for config in wanted if work(config) not in pace}:
        say("timing")
        pace |= _paces(list(missing.values()))
        write()
    return load_grid(path)


def _train(config: TrainConfig) -> dict[str, Any]:
    """One run with its scores after each of `MARKS`."""
    corpus, data = _split(config.corpus, config.seed)
    run, rows = Trainer(config, corpus, data), []
    for epoch in range(1, config.epochs + 1):
        run.epoch()
        if epoch in MARKS or epoch == config.epochs:
            found = evaluate_model(run.model, data.test)
            scores = {name: getattr(found, name) for name in SCORES}
            scores["validation_ser"] = run.record["epochs"][-1]["ser"]
            rounded = {name: None if score is None else round(score, 4) for name, score in scores.items()}
            rows.append({"epoch": epoch, **rounded})
    return {"config": changed_settings(config), "utterances": len(data.train), "scores": rows}


def _paces(runs: Sequence[TrainConfig]) -> dict[str, float]:
    """CPU seconds of an epoch, by `work`: in turn, so that whatever else the machine does falls on all; the median."""
    turns = {work(config): Trainer(replace(config, epochs=3), *_split(config.corpus, config.seed)) for config in runs}
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(3):
        for name, run in turns.items():
            if number == 0 or run.config.method != "dp-sgd-naive":  # it takes ten times as long
                seconds[name].append(_cpu_seconds(run))
    return {name: round(statistics.median(times), 3) for name, times in seconds.items()}


def _cpu_seconds(run: Trainer) -> float:
    """Of this process for an epoch, up to its last step, after which it is scored: other work hardly counts."""
    start = last = time.process_time()

    def tick(event: Event) -> None:
        nonlocal last
        if isinstance(event, StepDone):
            last = time.process_time()

    run.epoch(tick)
    return last - start


@cache
def _split(name: str, seed: int) -> tuple[Corpus, Split]:
    corpus = load_corpus(name)
    return corpus, split(corpus, seed)


if __name__ == "__main__":
    measure(Path(sys.argv[1]), say=lambda text: print(text, flush=True))
