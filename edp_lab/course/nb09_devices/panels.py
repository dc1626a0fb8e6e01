"""The panels of ``09_many_gpus.ipynb``: real processes, Table 2, what N devices would give.

    run = little_run(config)                                  # trains; starts `config.processes` real processes
    scaled = extrapolate("clc", 8, 64, 100.0, 10.0, 1.0)      # measured steps, and what they would be on 8 devices

Rows of the benchmark stay as ``edp-lab reproduce table2 --json`` writes them. Values that make no sense are refused by
`UsageError`.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import text
from edp_lab.course.kit.controls import DEVICES, Array, check_whole, choice, decades, devices, number, require, variant
from edp_lab.course.kit.figure import Figure, axis, figure, line, points
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.runs import RunPanel
from edp_lab.course.kit.text import Html, Words, count, duration, percent, short, train_command
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import HOLDS, INK, NOISE, OTHER, PLAIN
from edp_lab.course.kit.tiles import Tile
from edp_lab.models import load_model
from edp_lab.reproduce.printed import TABLE_2, Table2Row
from edp_lab.reproduce.results_io import RESULTS, rows
from edp_lab.training import Event, StepDone
from edp_lab.training.config import TrainConfig
from edp_lab.training.run_files import MODEL
from edp_lab.training.session import train

Row = dict[str, Any]  # of the benchmark of steps

FLOAT32 = 4  # bytes
LITTLE = 600  # utterances of the corpus for real processes: five steps an epoch


# ---- Runs on real processes ----------------------------------------------------------------------------------------


class LittleRun(NamedTuple):
    """One training run on a little corpus."""

    config: TrainConfig
    record: dict[str, Any]  # "devices" says how many processes were real and how many devices simulated
    losses: list[float]  # mean over the batch, of each step (not private)
    parameters: Array  # (P,), of the trained model
    seconds: float  # with starting the processes, scoring and saving


def little_run(
    config: TrainConfig, listener: Callable[[Event], None] = lambda event: None, stop: threading.Event | None = None
) -> LittleRun:
    """Train on 600 generated commands, on as many processes as `config` says; its corpus counts for nothing."""
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
    """The largest difference of any parameter."""
    return float(np.abs(first.parameters - second.parameters).max())


@panel("09")
class Processes(RunPanel):
    """A real run, its devices on one process or on several; only Run starts any work."""

    def __init__(self, start: TrainConfig) -> None:
        self._start = start
        self.runs: list[LittleRun] = []  # all that were made, oldest first
        super().__init__(
            "Run on real processes",
            "The loss of every step of a real training run whose N devices live on one process or on several.",
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
        others = [r for r in self.runs if config != r.config == replace(config, processes=r.config.processes)]
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
    """How long a run took and how far it is from another, which differs in the number of processes only, if any."""
    final, processes = run.record["final"], count(run.config.processes, "process", "processes")
    took = Tile("training took", duration(final["seconds"]), f"on {processes}")
    if run.record["status"] == "interrupted":
        return took, Tile("other run", "none"), f"Stopped after {count(len(run.losses), 'step')}."
    if other is None:
        advice = "Run it again with another number of processes, and compare."
        return took, Tile("other run", "none", "that differs in processes only"), advice
    apart = difference(run, other)
    same = "It is the same model, up to the order of sums." if apart < 1e-6 else "It is another model."
    return took, Tile("largest difference", short(apart), f"of {run.parameters.size:,} parameters"), same


LOOKS: list[dict[str, Any]] = [
    {"color": PLAIN, "symbol": "circle", "size": 11, "width": 5},
    {"color": OTHER, "dash": "dash", "symbol": "x", "size": 8},
    {"color": INK, "dash": "dot", "symbol": "diamond-open", "size": 10},
]


def draw_losses(runs: Sequence[tuple[str, Sequence[float]]]) -> Figure:
    """The loss of each step of the last three runs; of each, its name (devices, processes) and its losses so far."""
    lines = []
    for look, (name, losses) in zip(LOOKS, runs[-len(LOOKS) :], strict=False):
        steps: dict[str, Any] = {"x": list(range(1, len(losses) + 1)), "y": list(losses)}
        lines.append(line(name, hover="step %{x}: %{y:.6f}", **look, **steps))
    last = max([5, *(len(curve["y"]) for curve in lines)]) + 1 if lines else 20
    steps, loss = axis("step", [0, last], tickformat="d"), axis("loss per utterance (nats)", rangemode="tozero")
    return figure("The same run, step by step?", *lines, height=380, xaxis=steps, yaxis=loss)


def run_command(config: TrainConfig) -> str:
    """Make the little corpus, then the run, into a folder that is named after its devices and processes."""
    out = f"runs/n{config.num_devices}-p{config.processes}"
    make = f"edp-lab data make smart-home --utterances {LITTLE} --out little.jsonl"
    return f"{make}\n{train_command(replace(config, corpus='little.jsonl'), out)}"


# ---- Table 2 -------------------------------------------------------------------------------------------------------


def where(row: Row) -> str:
    """Machine, device, versions and date of a committed row, in words."""
    kind = "" if row["device"] == "cpu" else f", {row['device']}"
    return f"{row['machine']}{kind}, {row['date']}, torch {row['versions']['torch']}"


@cache
def committed() -> list[Row]:
    """``data/results/bench_step.json``: steps of all methods on ATIS."""
    return rows(RESULTS / "bench_step.json", "edp-lab reproduce table2 --json")


def table2(model: str) -> list[Row]:
    """The committed rows on one process, batches of 64."""
    return [row for row in committed() if (row["model"], row["processes"], row["batch_size"]) == (model, 1, 64)]


def two_processes() -> dict[str, tuple[Row, Row]]:
    """The committed rows of the same work on one process and on two, by method."""
    of = {(row["method"], row["processes"]): row for row in committed() if row["batch_size"] == 256}
    return {method: (of[method, 1], of[method, 2]) for method in ("sgd", "edp-sgd")}


def printed(model: str) -> Table2Row:
    """The paper's row, ATIS."""
    return next(row for row in TABLE_2 if (row.model.lower(), row.corpus) == (model, "ATIS"))


def table2_table(rows: Sequence[Row]) -> Html:
    """Ours beside the paper's factors, one method a row."""
    paper = printed(rows[0]["model"])
    return words.table2(rows, {("edp-sgd", 8): paper.edp_sgd_factor, ("dp-sgd-naive", 1): paper.dp_sgd_factor})


# ---- What N devices would give -------------------------------------------------------------------------------------


def ring_bytes(parameters: int, devices: int | NDArray[np.int64]) -> Any:
    """What each device sends in one ring all-reduce of a float32 gradient, 2 (N - 1) / N of it; for one N or many."""
    return 2 * (devices - 1) / devices * FLOAT32 * parameters


class Shares(NamedTuple):
    """Seconds of a step by batch size, one process on one core: `data/results/bench_shares.json`."""

    model: str
    batches: tuple[int, ...]  # rising
    sgd: tuple[float, ...]  # seconds of such a step
    edp_sgd: tuple[float, ...]
    parameters: int  # of the private model, P
    where: str
    command: str

    def seconds(self, method: str, batch: float) -> float:
        """Measured, or on the straight line between or beyond what was."""
        x, y = self.batches, self.sgd if method == "sgd" else self.edp_sgd
        k = min(max(int(np.searchsorted(x, batch)), 1), len(x) - 1)
        return y[k - 1] + (y[k] - y[k - 1]) * (batch - x[k - 1]) / (x[k] - x[k - 1])


@cache
def shares(model: str) -> Shares:
    """What was measured for a model of the paper's size."""
    measured = rows(RESULTS / "bench_shares.json", "edp-lab reproduce table2 --json")
    of = {(row["method"], row["batch_size"]): row for row in measured if row["model"] == model}
    require(of, f"no steps of {model!r} were measured: choose clc or bert")
    batches = sorted({batch for _, batch in of})
    sgd, edp_sgd = (tuple(of[method, batch]["seconds"] for batch in batches) for method in ("sgd", "edp-sgd"))
    last = of["edp-sgd", batches[-1]]
    return Shares(model, tuple(batches), sgd, edp_sgd, last["parameters"], where(last), last["command"])


class Scaling(NamedTuple):
    """Seconds of a step on N devices, a share of the batch each, then one ring all-reduce of the gradient."""

    shares: Shares  # what was measured, on one core
    batch: int  # utterances of a step, over all devices
    counts: NDArray[np.int64]  # (K,), numbers of devices, at least two utterances each
    devices: int  # N
    here: int  # where N is among them
    sgd: Array  # (K,), seconds of a step: SGD's share
    extra: Array  # (K,), what eDP-SGD adds by clipping and noise
    message: Array  # (K,), the all-reduce

    @property
    def step(self) -> Array:
        """(K,), all three."""
        return self.sgd + self.extra + self.message

    @property
    def speed_up(self) -> Array:
        """(K,), over eDP-SGD on one device."""
        return self.step[0] / self.step

    @property
    def ratio(self) -> Array:
        """(K,), of eDP-SGD's step to SGD's on as many devices."""
        return self.step / (self.sgd + self.message)


def extrapolate(model: str, devices: int, batch: int, bandwidth: float, latency: float, speed: float) -> Scaling:
    """Steps on 1, 2, 4, ... devices, from measured shares and assumed links (GB/s; microseconds for each of the ring's
    2 (N - 1) messages) and devices (times as fast as the measured core). Nothing of it was run on GPUs.
    """
    check_whole("batch", batch, 4, 4096)
    check_whole("number of devices", devices, 1, batch // 2)
    for name, value in (("bandwidth", bandwidth), ("speed of a device", speed)):
        require(0 < value < math.inf, f"the {name} is {value}: it must be greater than 0")
    require(0 <= latency < math.inf, f"the latency is {latency}: it must be 0 or more")
    known, counts = shares(model), np.unique([*(n for n in (*DEVICES, 64) if 2 * n <= batch), devices])
    sgd, edp_sgd = (np.array([known.seconds(m, batch / n) for n in counts]) / speed for m in ("sgd", "edp-sgd"))
    message = ring_bytes(known.parameters, counts) / (1e9 * bandwidth) + 2 * (counts - 1) * 1e-6 * latency
    here = counts.tolist().index(devices)
    return Scaling(known, batch, counts, devices, here, sgd, edp_sgd - sgd, message)


@panel("09")
def scaling(num_devices: int = 8) -> Panel:
    """What N devices would give: `result` is a `Scaling`."""
    return Panel(
        "What would N GPUs give?",
        "The parts of one step of eDP-SGD, and how much faster N devices are than one. Only one core was measured.",
        extrapolate,
        [draw_step, draw_speed],
        words.scaling,
        scaling_command,
        tiles=tell_scaling,
        model=choice("model", "clc", {"CLC": "clc", "BERT": "bert"}),
        devices=devices(num_devices, [*DEVICES, 64]),
        batch=number("batch", 64, [16, 32, 64, 128, 256, 512, 1024], unit="utterances"),
        bandwidth=number("bandwidth", 10.0, decades(-1, 3), unit="GB/s"),
        speed=number("speed of a device", 1.0, decades(0, 3), unit="× one core"),
        latency=number("latency", 10.0, [0.0, *decades(0, 4)], unit="µs a message", rare=True),
    )


def tell_scaling(result: Scaling) -> tuple[Tile, Tile, str]:
    """How fast N devices would be, and where the time of their step goes."""
    at, many = result.here, count(result.devices, "device")
    parts = {"forward, backward and Adam": result.sgd, "clipping and noise": result.extra, "messages": result.message}
    share, largest = max((seconds[at] / result.step[at], name) for name, seconds in parts.items())
    step = Tile("one step", duration(result.step[at]), f"on {many}; {duration(result.step[0])} on one")
    fast = Tile("speed-up over one device", f"{d(result.speed_up[at])} ×", f"{d(result.ratio[at])} × SGD's step")
    return step, fast, f"On {many} {largest} take {percent(share)} of a step."


def draw_step(result: Scaling) -> Figure:
    """The parts of eDP-SGD's step by N, stacked."""
    x = [Html("<b>{}</b>").format(n) if n == result.devices else str(n) for n in result.counts]
    return figure(
        "One step",
        fig.bar("forward, backward, Adam", PLAIN, "", x=x, y=1000 * result.sgd),
        fig.bar("clip, noise", NOISE, "x", x=x, y=1000 * result.extra),
        fig.bar("messages", OTHER, "/", x=x, y=1000 * result.message),
        hover="N = %{x}: %{y:.3g} ms",
        barmode="stack",
        xaxis=axis("devices N (bold: chosen)", type="category"),
        yaxis=axis("time of a step (ms)"),
    )


def draw_speed(result: Scaling) -> Figure:
    """How many times as fast as on one device a step of eDP-SGD is."""
    shares, n = result.shares, result.counts
    measured: dict[str, Any] = {"x": [], "y": []}
    if (shares.model, result.batch) == ("bert", 256):
        on_one, on_two = two_processes()["edp-sgd"]
        measured = {"x": [2], "y": [on_one["seconds"] / on_two["seconds"]]}
    edge = math.log10(max(8, *n)) + 0.08
    lowest = min(-0.35, math.log10(result.speed_up.min()) - 0.1)
    return figure(
        "How much faster than one device?",
        line("ideal", INK, "dot", width=1.5, x=n, y=n),
        line("extrapolated", PLAIN, "dash", x=n, y=result.speed_up, symbol="circle-open", size=9),
        points("2 processes, measured", HOLDS, "diamond", 13, edge=0, **measured),
        fig.ring(16, x=[result.devices], y=[result.speed_up[result.here]], hoverinfo="skip"),
        hover="N = %{x}: %{y:.3g}",
        xaxis=axis("devices N", [-0.08, edge], **OCTAVES),
        yaxis=axis("times as fast as one device", [lowest, edge], **OCTAVES),
    )


def scaling_command(result: Scaling, **values: Any) -> str:
    """How the steps were measured (once for each batch size), and the call that extrapolates."""
    return f"{result.shares.command}\n{text.python(extrapolate, **values)}"


# ---- The room's methods and templates -----------------------------------------------------------------------

METHODS = {
    "sgd": "SGD",
    "edp-sgd": "eDP-SGD",
    "dp-sgd": "DP-SGD, by book-keeping",
    "dp-sgd-naive": "DP-SGD, one by one",
    "opacus": "DP-SGD, by Opacus",
}
OCTAVES = {"type": "log", "dtick": math.log10(2)}


def who(row: Row) -> str:
    """A method and its devices, in words."""
    if row["method"] != "edp-sgd":
        return METHODS[row["method"]]
    real = row["processes"]
    real_ones = count(real, "process", "processes")
    return f"{METHODS['edp-sgd']}, {count(row['gpus'], 'device')}: {real_ones}, {row['gpus'] - real} simulated"


words = Words(
    __file__,
    megabytes=lambda number: f"{d(number / 1e6)} MB",
    ring_bytes=ring_bytes,
    guarantee_of=text.guarantee_of,
    printed=printed,
    where=where,
    who=who,
)
