"""The panels of ``09_many_gpus.ipynb``: noise of N devices, real processes, what N devices would give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import text
from edp_lab.course.kit.controls import choice, decades, delta_of, devices, number, seed_of
from edp_lab.course.kit.figure import Figure, axis, figure, line, log_axis, points, positive
from edp_lab.course.kit.inputs import AS_PRINTED, DEVICES, SOUND
from edp_lab.course.kit.panel import Panel, RunPanel, Tile, epsilons, panel
from edp_lab.course.kit.text import Html, Words, account_of, count, duration, percent, short, train_command
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.course.nb09_devices import compute
from edp_lab.course.nb09_devices.compute import LITTLE, DeviceNoise, LittleRun, Row, Scaling, printed
from edp_lab.training import StepDone, TrainConfig
from edp_lab.training.trainer import Event

SMALL = 298_131  # parameters of the small CLC on smart-home
MODELS = {"small CLC": SMALL, **{m.upper(): compute.shares(m).parameters for m in ("clc", "bert")}}
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
    ring_bytes=compute.ring_bytes,
    guarantee_of=text.guarantee_of,
    printed=printed,
    where=compute.where,
    who=who,
)


# ---- The noise of N devices ----------------------------------------------------------------------------------------


@panel("09")
def noise(C: float, z0: float, num_devices: int, epochs: int, delta: float, seed: int) -> Panel:
    """What N devices add and send: `result` is a `DeviceNoise`."""
    return Panel(
        "N devices, one noise",
        "The noise on the mean gradient when one device draws it or N do, and how it depends on N.",
        compute.device_noise,
        [draw_drawn, draw_devices],
        words.noise,
        lambda result, **_: account_of(result.mechanism, epochs=result.guarantee.epochs, delta=result.guarantee.delta),
        tiles=tell_noise,
        variant=choice("variant", AS_PRINTED, (AS_PRINTED, SOUND)),
        num_devices=devices(num_devices),
        clip_norm=number("clip norm C", C, decades(-2, 2), unit="gradient norm"),
        z0=number("noise multiplier z0", z0, decades(-3, 1)),
        parameters=choice("model", SMALL, MODELS),
        epochs=number("length of the run", epochs, range(1, 41), unit="epochs", rare=True),
        delta=delta_of(delta),
        seed=seed_of(seed),
    )


def tell_noise(result: DeviceNoise) -> tuple[Tile, Tile, str]:
    """Both epsilons, and what is left of the noise that each device adds."""
    m = result.mechanism
    each, mean = d(m.device_noise_std(0)), d(m.noise_std(0) / m.num_devices)
    told = f"Each device adds noise of deviation {each}; averaged over {m.num_devices}, {mean} is left."
    if m.num_devices == 1:
        told = f"The only device adds noise of deviation {each}, and all of it stays."
    return *epsilons(result.guarantee), told


def draw_drawn(result: DeviceNoise) -> Figure:
    """Histograms of the noise on the mean, drawn in three ways."""
    draws = result.aggregate, result.per_device, result.same
    reach = 3.5 * max(float(draw.std()) for draw in draws) or 1.0
    edges = np.linspace(-reach, reach, 61)
    stairs: dict[str, Any] = {"x": (edges[1:] + edges[:-1]) / 2, "line": {"shape": "hvh"}}
    once, own, same = (np.histogram(draw, edges)[0] for draw in draws)
    return figure(
        "Noise on the mean",
        line("one draw for the sum", PLAIN, y=once, **stairs),
        line("each device draws", HOLDS, "dash", width=3, y=own, **stairs),
        line("all draw the same", PRINTED, "dot", y=same, **stairs),
        hover="%{x:.3g}: %{y} coordinates",
        xaxis=axis("noise on one coordinate", [-reach, reach]),
        yaxis=axis(f"coordinates (of {result.aggregate.size:,})", rangemode="tozero"),
    )


def draw_devices(result: DeviceNoise) -> Figure:
    """The deviation of the noise on the mean by N, as z0 promises it and as it is added. Log scales."""
    wanted, added = map(positive, (result.wanted, result.on_mean))
    on: dict[str, Any] = {"x": result.counts, "hover": "N = %{x}: %{y:.3g}"}
    chosen: dict[str, Any] = {"x": result.counts[[result.here]], "y": [added[result.here]], "hoverinfo": "skip"}
    return figure(
        "Promised and added, by N",
        line("as z0 promises", CLAIMED, "dash", symbol="square-open", size=9, y=wanted, **on),
        line("added", HOLDS, symbol="circle", y=added, **on),
        fig.ring(13, **chosen),
        xaxis=axis("devices N", [-0.08, math.log10(max(32, *result.counts)) + 0.08], **OCTAVES),
        yaxis=log_axis("deviation of the noise", [*wanted, *added], margin=0.05),
    )


# ---- Runs on real processes ----------------------------------------------------------------------------------------


@panel("09")
class Processes(RunPanel):
    """A real run with the noise panel's values, its devices on one process or on several; only Run starts any work."""

    def __init__(self, settings: Panel, start: TrainConfig) -> None:
        self._settings, self._start = settings, start
        self.runs: list[LittleRun] = []  # all that were made, oldest first
        self.epochs, self.processes = number("epochs", start.epochs), number("processes", start.processes)
        self.noise = choice("noise", start.noise, {"per device": "per-device", "one draw": "aggregate"})
        super().__init__(
            "Run on real processes",
            "The loss of every step of a real training run whose N devices live on one process or on several.",
            [self.processes, self.epochs, self.noise],
            [draw_losses([])],
        )
        self.run_button.description = "Run on real processes"
        self.run_button.layout.width = "13rem"

    def prepare(self) -> TrainConfig:
        above = self._settings.values
        shared = {name: above[name] for name in ("clip_norm", "z0", "num_devices", "seed", "delta")}
        own = {"epochs": self.epochs.value, "processes": self.processes.value, "noise": self.noise.value}
        return replace(self._start, as_printed=above["variant"] == AS_PRINTED, **shared, **own)

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
        run = compute.little_run(config, listen, self.stop_event)
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
        told = "Run it again with another number of processes, and compare."
        return took, Tile("other run", "none", "that differs in processes only"), told
    apart = compute.difference(run, other)
    same = "It is the same model, up to the order of sums." if apart < 1e-6 else "It is another model."
    return took, Tile("largest difference", short(apart), f"of {run.parameters.size:,} parameters"), same


LOOKS: list[dict[str, Any]] = [
    {"color": PLAIN, "symbol": "circle", "size": 11, "width": 5},
    {"color": OTHER, "dash": "dash", "symbol": "x", "size": 8},
    {"color": INK, "dash": "dot", "symbol": "diamond-open", "size": 10},
]


def draw_losses(runs: Sequence[tuple[str, Sequence[float]]]) -> Figure:
    """The loss of each step of the last three runs; of each, its name (devices, processes) and its losses so far."""
    shown = [(name, list(losses), True) for name, losses in runs[-len(LOOKS) :]]
    lines = []
    for look, (name, losses, there) in zip(LOOKS, [*shown, *[("", [], False)] * len(LOOKS)], strict=False):
        steps: dict[str, Any] = {"x": list(range(1, len(losses) + 1)), "y": losses, "visible": there}
        lines.append(line(name, hover="step %{x}: %{y:.6f}", **look, **steps))
    last = max([5, *(len(losses) for _, losses, _ in shown)]) + 1 if shown else 20
    steps, loss = axis("step", [0, last], tickformat="d"), axis("loss per utterance (nats)", rangemode="tozero")
    return figure("The same run, step by step?", *lines, height=380, xaxis=steps, yaxis=loss)


def run_command(config: TrainConfig) -> str:
    """Make the little corpus, then the run, into a folder that is named after its settings."""
    c, variant = config, "as-printed" if config.as_printed else "sound"
    out = f"runs/{variant}-{c.noise}-n{c.num_devices}-p{c.processes}-c{c.clip_norm:g}"
    out += f"-z{c.z0:g}-e{c.epochs}-d{c.delta:g}-s{c.seed}"
    make = f"edp-lab data make smart-home --utterances {LITTLE} --out little.jsonl"
    return f"{make}\n{train_command(replace(config, corpus='little.jsonl'), out)}"


# ---- Table 2 -------------------------------------------------------------------------------------------------------


def table2_table(rows: Sequence[Row]) -> Html:
    """Ours beside the paper's factors, one method a row."""
    paper = printed(rows[0]["model"])
    return words.table2(rows, {("edp-sgd", 8): paper.edp_sgd_factor, ("dp-sgd-naive", 1): paper.dp_sgd_factor})


def two_processes_text() -> str:
    """What was measured on one process and on two."""
    measured = {name: (one["seconds"], two["seconds"]) for name, (one, two) in compute.two_processes().items()}
    return "\n".join(
        f"{METHODS[name]:<8} 1 process {one:.3f} s, 2 processes {two:.3f} s a step: {one / two:.2f} times as fast"
        for name, (one, two) in measured.items()
    )


# ---- What N devices would give -------------------------------------------------------------------------------------


@panel("09")
def scaling(num_devices: int = 8) -> Panel:
    """What N devices would give: `result` is a `Scaling`."""
    return Panel(
        "What would N GPUs give?",
        "The parts of one step of eDP-SGD, and how much faster N devices are than one. Only one core was measured.",
        compute.scaling,
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
    x = [fig.bold(n) if n == result.devices else str(n) for n in result.counts]
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
        one, two = compute.two_processes()["edp-sgd"]
        measured = {"x": [2], "y": [one["seconds"] / two["seconds"]]}
    hollow = ["circle" if exact and k == 1 else "circle-open" for k, exact in zip(n, result.measured, strict=True)]
    edge = math.log10(max(8, *n)) + 0.08
    lowest = min(-0.35, math.log10(result.speed_up.min()) - 0.1)
    return figure(
        "How much faster than one device?",
        line("ideal", INK, "dot", width=1.5, x=n, y=n),
        line("extrapolated", PLAIN, "dash", x=n, y=result.speed_up, symbol=hollow, size=9),
        points("2 processes, measured", HOLDS, "diamond", 13, edge=0, **measured),
        fig.ring(16, x=[result.devices], y=[result.speed_up[result.here]], hoverinfo="skip"),
        hover="N = %{x}: %{y:.3g}",
        xaxis=axis("devices N", [-0.08, edge], **OCTAVES),
        yaxis=axis("times as fast as one device", [lowest, edge], **OCTAVES),
    )


def scaling_command(result: Scaling, **values: Any) -> str:
    """How the steps were measured (once for each batch size), and the call that extrapolates and prints."""
    told = (
        "s = {}; "
        "print(f'{1000 * s.step[s.here]:.4g} ms a step, {s.speed_up[s.here]:.3g} times as fast as on one device, "
        "{s.ratio[s.here]:.3g} times the step of SGD')"
    )
    return f"{result.shares.command}\n{text.python(compute.scaling, do=told, **values)}"
