"""Panel of ``09_many_gpus.ipynb``: training on real processes.

    run = little_run(config)                                  # trains; starts `config.processes` real processes

Invalid values raise `UsageError`.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.course.kit import text
from edp_lab.course.kit.controls import Array, choice, number, variant
from edp_lab.course.kit.figure import Figure, axis, figure, line
from edp_lab.course.kit.panel import panel
from edp_lab.course.kit.runs import RunPanel
from edp_lab.course.kit.text import Tile, Words, count, duration, short, train_command
from edp_lab.course.kit.theme import INK, OTHER, PLAIN
from edp_lab.models.factory import load_model
from edp_lab.training.config import TrainConfig
from edp_lab.training.run_files import MODEL, Event, StepDone
from edp_lab.training.session import train

words = Words(__file__, guarantee_of=text.guarantee_of)
LITTLE = 600  # utterances in the corpus: five steps per epoch


# ---- Runs on real processes ----------------------------------------------------------------------------------------


class LittleRun(NamedTuple):
    """One training run on a small corpus."""

    config: TrainConfig
    record: dict[str, Any]  # "devices" states how many processes were real and how many devices were simulated
    losses: list[float]  # mean loss of each step's batch (not private)
    parameters: Array  # (P,) parameters of the trained model
    seconds: float  # including process start-up, scoring and saving


def little_run(
    config: TrainConfig, listener: Callable[[Event], None] = lambda event: None, stop: threading.Event | None = None
) -> LittleRun:
    """Train on 600 generated commands with `config.processes` processes; `config.corpus` is ignored."""
    losses: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, StepDone):
            losses.append(event.loss)
        listener(event)

    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="edp-lab-") as name:
        corpus, out = Path(name) / "little.jsonl", Path(name) / "run"
        write_jsonl(generate(LITTLE, 0), corpus)
        record = train(replace(config, corpus=str(corpus)), out, listen, stop)
        model = load_model(out / MODEL)
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()]).double().numpy()
    return LittleRun(config, record, losses, parameters, time.perf_counter() - start)


def difference(first: LittleRun, second: LittleRun) -> float:
    """Largest absolute difference between the parameters of two runs."""
    return float(np.abs(first.parameters - second.parameters).max())


@panel("09")
class Processes(RunPanel):
    """Panel that trains with devices on one or several processes when Run is pressed."""

    def __init__(self, start: TrainConfig) -> None:
        self._start = start
        self.runs: list[LittleRun] = []  # all runs made, oldest first
        super().__init__(
            "Run on real processes",
            "Run trains with N devices on one process or several. The figure shows the loss of each step.",
            [draw_losses([])],
            processes=number("processes", start.processes),
            num_devices=number("GPUs N", start.num_devices),
            as_printed=variant(start.as_printed),
            noise=choice("noise", start.noise, {"per device": "per-device", "one draw": "aggregate"}),
            epochs=number("epochs", start.epochs),
        )
        self.run_button.description = "Run on real processes"
        self.run_button.layout.width = "13rem"

    def prepare(self) -> TrainConfig:
        return replace(self._start, **self.values)

    def work(self, config: TrainConfig) -> None:
        losses: list[float] = []
        name = f"running: {count(config.processes, 'process', 'processes')}"

        def listen(event: Event) -> None:
            if isinstance(event, StepDone):
                losses.append(event.loss)
                self.progress(len(losses), event.epochs * event.steps, f"step {len(losses)}")
                self._draw((name, losses))

        self.words.value = ""
        self.progress(0, 1, "starting processes" if config.processes > 1 else "training")
        run = little_run(config, listen, self.stop_event)
        others = [r for r in self.runs if r.record["status"] == "finished" and r.config.processes != config.processes]
        others = [r for r in others if replace(r.config, processes=config.processes) == config]
        self.runs.append(run)
        self._draw()
        self.tiles.show(*tell_run(run, others[-1] if others and run.record["status"] == "finished" else None))
        self.words.value = words.run(run)
        self.command.value = run_command(config)

    def _draw(self, *running: tuple[str, Sequence[float]]) -> None:
        of = ((run.config.num_devices, count(run.config.processes, "process", "processes"), run) for run in self.runs)
        runs = [*((f"N = {devices}: {processes}", run.losses) for devices, processes, run in of), *running]
        self.figures[0].show(draw_losses(runs))


def tell_run(run: LittleRun, other: LittleRun | None) -> tuple[Tile, Tile, str]:
    """Tiles with the time of a run, and its difference from a run with another number of processes, if any."""
    final, processes = run.record["final"], count(run.config.processes, "process", "processes")
    took = Tile("training took", duration(final["seconds"]), f"on {processes}")
    if run.record["status"] == "interrupted":
        return took, Tile("other run", "none"), f"Stopped after {count(len(run.losses), 'step')}."
    if other is None:
        advice = "Run again with another number of processes to compare the models."
        return took, Tile("other run", "none", "that differs only in processes"), advice
    apart = difference(run, other)
    same = "The models are the same, except for rounding." if apart < 1e-6 else "The models differ."
    return took, Tile("largest difference", short(apart), f"of {run.parameters.size:,} parameters"), same


LOOKS: list[dict[str, Any]] = [
    {"color": PLAIN, "symbol": "circle", "size": 11, "width": 5},
    {"color": OTHER, "dash": "dash", "symbol": "x", "size": 8},
    {"color": INK, "dash": "dot", "symbol": "diamond-open", "size": 10},
]


def draw_losses(runs: Sequence[tuple[str, Sequence[float]]]) -> Figure:
    """Plot the loss by step of the last three runs, each given as its name and its losses so far."""
    lines = []
    for look, (name, losses) in zip(LOOKS, runs[-len(LOOKS) :], strict=False):
        steps: dict[str, Any] = {"x": list(range(1, len(losses) + 1)), "y": list(losses)}
        lines.append(line(name, hover="step %{x}: %{y:.6f}", **look, **steps))
    last = max([5, *(len(curve["y"]) for curve in lines)]) + 1 if lines else 20
    steps, loss = axis("step", [0, last], tickformat="d"), axis("loss per utterance (nats)", rangemode="tozero")
    return figure("Do the runs match step by step?", *lines, height=380, xaxis=steps, yaxis=loss)


def run_command(config: TrainConfig) -> str:
    """Commands that create the small corpus and start the run, in a folder named after devices and processes."""
    out = f"runs/n{config.num_devices}-p{config.processes}"
    make = f"edp-lab data make smart-home --utterances {LITTLE} --out little.jsonl"
    return f"{make}\n{train_command(replace(config, corpus='little.jsonl'), out)}"
