"""The panels of ``09_many_gpus.ipynb``: noise of N devices, real processes, a benchmark, what N devices would give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import choice, decades, delta_of, devices, number, seed_of
from edp_lab.course.kit.figure import ABOVE, BELOW, Figure, Trace, axis, figure, line, log_axis, points, positive
from edp_lab.course.kit.inputs import AS_PRINTED, SOUND
from edp_lab.course.kit.panel import Panel, RunPanel, panel
from edp_lab.course.kit.text import Html, Words, account_of, command, count, guarantee_of, train_command
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, VERMILLION
from edp_lab.course.nb09_devices import compute
from edp_lab.course.nb09_devices.compute import COUNTS, LITTLE, DeviceNoise, LittleRun, Row, Scaling, printed
from edp_lab.reproduce.bench.train_step import Task, bench_steps
from edp_lab.training import StepDone, TrainConfig
from edp_lab.training.trainer import Event

SMALL = 298_131  # parameters of the small CLC on smart-home
MODELS = {"small CLC": SMALL, **{f"paper's {m.upper()}": compute.shares(m).parameters for m in ("clc", "bert")}}
METHODS = {
    "sgd": "SGD",
    "edp-sgd": "eDP-SGD",
    "dp-sgd": "DP-SGD, by book-keeping",
    "dp-sgd-naive": "DP-SGD, utterance by utterance",
    "opacus": "DP-SGD, by Opacus",
}
OCTAVES = {"type": "log", "dtick": math.log10(2)}


def who(row: Row) -> str:
    """A method and its devices, in words."""
    if row["method"] != "edp-sgd":
        return METHODS[row["method"]]
    real = row["processes"]
    return f"{METHODS['edp-sgd']}, {count(row['gpus'], 'device')}: {real} real, {row['gpus'] - real} sim."


words = Words(
    __file__,
    COVERED="one utterance, zero-out, disjoint batches",
    megabytes=lambda number: f"{d(number / 1e6)} MB",
    ring_bytes=compute.ring_bytes,
    difference=compute.difference,
    guarantee_of=guarantee_of,
    isclose=math.isclose,
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
        "First, the noise on the mean gradient, drawn by one or N; then, how it depends on N, and what the run costs.",
        compute.device_noise,
        [draw_drawn, draw_devices],
        words.noise,
        lambda result, **_: account_of(result.mechanism, epochs=result.guarantee.epochs, delta=result.guarantee.delta),
        variant=choice("variant", AS_PRINTED, (AS_PRINTED, SOUND)),
        num_devices=devices(num_devices),
        clip_norm=number("clip norm C", C, decades(-2, 2), unit="gradient norm"),
        z0=number("noise multiplier z0", z0, decades(-3, 1)),
        epochs=number("length of the run", epochs, range(1, 41), unit="epochs"),
        parameters=choice("model", SMALL, MODELS),
        delta=delta_of(delta),
        seed=seed_of(seed),
    )


def draw_drawn(result: DeviceNoise) -> Figure:
    """Histograms of the noise on the mean, drawn in three ways."""
    draws = result.aggregate, result.per_device, result.same
    reach = 3.5 * max(float(draw.std()) for draw in draws) or 1.0
    edges = np.linspace(-reach, reach, 61)
    stairs: dict[str, Any] = {"x": (edges[1:] + edges[:-1]) / 2, "line": {"shape": "hvh"}}
    once, own, same = (np.histogram(draw, edges)[0] for draw in draws)
    return figure(
        "Noise on the mean",
        words.drawn_caption(result),
        line("one draw for the sum", BLUE, y=once, **stairs),
        line("N draws, averaged", GREEN, "dash", width=3, y=own, **stairs),
        line("N times the same draw", VERMILLION, "dot", y=same, **stairs),
        top=140,
        hover="%{x:.3g}: %{y} coordinates",
        xaxis=axis("noise on one coordinate (gradient)", [-reach, reach]),
        yaxis=axis(f"of {result.aggregate.size:,} coordinates", rangemode="tozero"),
    )


def draw_devices(result: DeviceNoise) -> Figure:
    """Above: the deviation of the noise on the mean by N. Below: epsilon, claimed and true. Log scales."""
    name, dash, symbol, here = "ε that holds", "solid", "circle", result.here
    if result.guarantee.epsilon is None:
        name, dash, symbol = "ε if α were public", "dot", "circle-open"
    wanted, added, claimed, true = map(positive, (result.wanted, result.on_mean, result.claimed, result.true))
    on: dict[str, Any] = {"x": result.counts, "hover": "N = %{x}: %{y:.3g}"}
    chosen: dict[str, Any] = {**on, "x": result.counts[[here]], "hoverinfo": "skip"}
    by_count = axis("devices N", [-0.08, math.log10(max(32, *result.counts)) + 0.08], **OCTAVES)
    noise, cost = (
        log_axis(title, values, margin=0.05, labels=4)
        for title, values in (("noise on the mean", [*wanted, *added]), ("ε (nats)", [*claimed, *true]))
    )
    return fig.two_plots(
        "By number of devices",
        words.devices_caption(result),
        line("z0 × what one utterance moves", ORANGE, "dash", symbol="square-open", size=9, y=wanted, **on, **ABOVE),
        line("is added", GREEN, symbol="circle", y=added, **on, **ABOVE),
        fig.ring(13, y=[added[here]], **chosen, **ABOVE),
        line("ε claimed", ORANGE, "dash", symbol="square-open", size=9, y=claimed, **on, **BELOW),
        line(name, GREEN, dash, symbol=symbol, y=true, **on, **BELOW),
        fig.ring(13, y=[true[here]], **chosen, **BELOW),
        axes=[(by_count, noise), (by_count, cost)],
        legend_at=0.4,
        spacing=0.27,
    )


# ---- Runs on real processes ----------------------------------------------------------------------------------------


@panel("09")
class Processes(RunPanel):
    """A real run with the noise panel's values, its devices on one process or on several; only Run starts any work.

    Attributes:
        runs: all that were made, oldest first.
    """

    def __init__(self, settings: Panel, start: TrainConfig) -> None:
        self._settings, self._start = settings, start
        self.runs: list[LittleRun] = []
        self.epochs, self.processes = number("epochs", start.epochs), number("processes", start.processes)
        self.noise = choice("noise", start.noise, {"per device": "per-device", "one draw": "aggregate"})
        super().__init__(
            "Run on real processes",
            "The loss of every step of a real training run, whose N devices live on one process or on several; the "
            "rest is simulated.",
            [self.processes, self.epochs, self.noise],
            [draw_losses([], "press Run")],
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
        name = f"running: {config.processes} of {config.num_devices} devices real"

        def listen(event: Event) -> None:
            if isinstance(event, StepDone):
                losses.append(event.loss)
                self.progress(len(losses), event.epochs * event.steps, f"step {len(losses)}")
                self._draw(config, (name, losses))

        self.words.value = ""
        self.progress(0, 1, "starting processes" if config.processes > 1 else "training")
        run = compute.little_run(config, listen, self.stop_event)
        others = [other for other in self.runs if compute.alike(config, other.config)]
        others = [other for other in others if other.config.processes != config.processes]
        self.runs.append(run)
        self._draw(config)
        self.words.value = words.run(run, others[-1] if others and run.record["status"] == "finished" else None)
        self.command.value = run_command(config)

    def _draw(self, config: TrainConfig, *running: tuple[str, Sequence[float]]) -> None:
        runs = [*((r.record["devices"], r.losses) for r in self.runs), *running]
        self.figures[0].show(draw_losses(runs, words.losses_caption(config)))


LOOKS: list[dict[str, Any]] = [
    {"color": BLUE, "symbol": "circle", "size": 11, "width": 5},
    {"color": ORANGE, "dash": "dash", "symbol": "x", "size": 8},
    {"color": GREEN, "dash": "dot", "symbol": "diamond-open", "size": 10},
]


def draw_losses(runs: Sequence[tuple[str, Sequence[float]]], caption: str) -> Figure:
    """The loss of each step of the last three runs; of each, its name (devices, processes) and its losses so far."""
    shown = [(name, list(losses), True) for name, losses in runs[-len(LOOKS) :]]
    lines = []
    for look, (name, losses, there) in zip(LOOKS, [*shown, *[("", [], False)] * len(LOOKS)], strict=False):
        steps: dict[str, Any] = {"x": list(range(1, len(losses) + 1)), "y": losses, "visible": there}
        lines.append(line(name, hover="step %{x}: %{y:.6f}", **look, **steps))
    last = max([5, *(len(losses) for _, losses, _ in shown)]) + 1 if shown else 20
    steps, loss = axis("step", [0, last], tickformat="d"), axis("loss per utterance (nats)", rangemode="tozero")
    return figure("The same run, step by step?", caption, *lines, height=380, top=110, xaxis=steps, yaxis=loss)


def run_command(config: TrainConfig) -> str:
    """Make the little corpus, then the run, into a folder that is named after its settings."""
    variant = "as-printed" if config.as_printed else "sound"
    out = (
        f"runs/{variant}-{config.noise}-n{config.num_devices}-p{config.processes}-c{config.clip_norm:g}"
        f"-z{config.z0:g}-e{config.epochs}-d{config.delta:g}-s{config.seed}"
    )
    make = f"edp-lab data make smart-home --utterances {LITTLE} --out little.jsonl"
    return f"{make}\n{train_command(replace(config, corpus='little.jsonl'), out)}"


# ---- Table 2 -------------------------------------------------------------------------------------------------------

SHORT = {"dp-sgd": "book-keeping", "dp-sgd-naive": "one by one", "opacus": "Opacus"}  # of DP-SGD
TIME = {"title": "time of a step (× SGD's)", "type": "log", "tickvals": [1, 2, 5, 10]}
BY_METHOD = "method (DP-SGD, unless named)"


def table2_figure(tables: Mapping[str, Sequence[Row]]) -> fig.Still:
    """Steps as a ratio to SGD's: ours with quartiles, and the paper's on eight GPUs."""
    order = [_row("edp-sgd", n) for n in (1, 2, 4, 8)] + [_row(m, 1) for m in ("dp-sgd", "dp-sgd-naive", "opacus")]
    axes = (
        {**TIME, "range": [-0.1, 1.4], "tickvals": [1, 2, 5, 10, 20], "showgrid": True},
        {"categoryorder": "array", "categoryarray": order[::-1]},
    )
    layout = fig.plots(1, len(tables), axes=[axes] * len(tables), shared_yaxes=True, horizontal_spacing=0.04)
    marks = []
    for plot, (model, rows) in enumerate(tables.items(), 1):
        at, paper = fig.at(plot), printed(model)
        factors = {"x": [paper.edp_sgd_factor, paper.dp_sgd_factor], "y": [_row("edp-sgd", 8), _row("dp-sgd-naive", 1)]}
        place = {"xref": f"{at['xaxis']} domain", "yref": f"{at['yaxis']} domain", "x": 0.98, "y": 1}
        marks += [
            _ratios("ours, median and quartiles", BLUE, "circle", rows, showlegend=plot == 1, **at),
            points("the paper, 8 GPUs", ORANGE, "square-open", 12, edge=3, showlegend=plot == 1, **factors, **at),
            fig.note(fig.bold(f"{model.upper()}, ATIS"), **place, xanchor="right", yanchor="top"),
        ]
    layout = fig.merged(layout, {"yaxis": {"title": BY_METHOD}})
    where = compute.where(next(iter(tables.values()))[0])
    caption = f"ours: {where}, batches of 64;\nprocesses: 1, further devices simulated; no ε"
    return fig.still("Table 2: how much slower than SGD?", caption, *marks, height=430, top=120, **layout)


def _ratios(name: str, color: str, symbol: str, rows: Sequence[Row], **more: Any) -> Trace:
    """Of all rows but SGD's, with quartiles."""
    others = [row for row in rows if row["method"] != "sgd"]
    ratios = [row["ratio_to_sgd"] for row in others]
    error = fig.error_bars(ratios, [row["ratio_spread"] for row in others], thickness=1.5)
    y = [_row(row["method"], row["gpus"]) for row in others]
    return points(name, color, symbol, 11, edge=0, x=ratios, y=y, error_x=error, hover="%{y}: × %{x:.2f}", **more)


def _row(method: str, gpus: int) -> str:
    return f"eDP-SGD, N = {gpus}" if method == "edp-sgd" else SHORT[method]


def table2_table(rows: Sequence[Row]) -> Html:
    """Ours beside the paper's factors, one method a row."""
    paper = printed(rows[0]["model"])
    return words.table2(rows, {("edp-sgd", 8): paper.edp_sgd_factor, ("dp-sgd-naive", 1): paper.dp_sgd_factor})


def two_processes_text() -> str:
    """What was measured on one process and on two."""
    measured = {name: (one["seconds"], two["seconds"]) for name, (one, two) in compute.two_processes().items()}
    return "\n".join(
        f"{METHODS[name]:<8} 1 process {one:.2f} s, 2 processes {two:.2f} s a step: {one / two:.2f} times as fast"
        for name, (one, two) in measured.items()
    )


@panel("09")
class Measure(RunPanel):
    """Some cells of Table 2, timed on this machine; only Run starts any work.

    Attributes:
        rows: of the last run.
    """

    def __init__(self, corpus: str) -> None:
        self._corpus = corpus
        self.rows: list[Row] = []
        self.size = choice("size", "small", {"small": "small", "medium": "medium", "paper's": "paper"})
        self.rounds = number("rounds", 5)
        super().__init__(
            "Time it here",
            "Steps of several methods, in turn on the same batches of this machine, as a ratio to SGD; beside them "
            "what was committed.",
            [self.size, self.rounds],
            [draw_measured([], "press Run")],
        )

    def prepare(self) -> Task:
        methods = ("sgd", "edp-sgd", "dp-sgd", "dp-sgd-naive")
        return Task(self._corpus, methods=methods, rounds=self.rounds.value, threads=1, size=self.size.value)

    def work(self, task: Task) -> None:
        self.rows, self.words.value, self.command.value = [], "", measure_command(task)
        steps, most = 0, 6 * task.rounds

        def told(name: str) -> None:
            nonlocal steps
            self.heed_stop()
            steps = min(steps + 1, most)
            self.progress(steps, most, name)

        self.progress(0, 1, "starting a process")
        self.rows = bench_steps(task, told)
        caption = f"here: CLC ({task.size}) on {task.corpus}, one thread, {task.rounds} rounds; no ε"
        self.figures[0].show(draw_measured(self.rows, caption))
        self.words.value = words.measured(self.rows)


def draw_measured(rows: Sequence[Row], caption: str) -> Figure:
    """What Run measured, beside what was committed of the same (at first, of all)."""
    known = [(row["method"], row["gpus"]) for row in rows]
    beside = [row for row in compute.table2("clc") if not rows or (row["method"], row["gpus"]) in known]
    traces = [
        _ratios("here, a moment ago", VERMILLION, "diamond", rows, showlegend=True),
        _ratios("committed, two cores, paper's size", BLUE, "circle", beside, showlegend=True),
    ]
    time, methods = {**TIME, "range": [-0.1, 1.1]}, axis(BY_METHOD, autorange="reversed")
    return figure("A few cells, measured here", caption, *traces, height=400, top=120, xaxis=time, yaxis=methods)


def measure_command(task: Task) -> str:
    """The benchmark on the command line."""
    lists = {name: ",".join(map(str, getattr(task, name))) for name in ("methods", "gpus")}
    options = {"corpus": task.corpus, "model": task.model, "size": task.size, **lists, "batch-size": task.batch_size}
    return command("bench step", {**options, "rounds": task.rounds, "threads": task.threads})


# ---- What N devices would give -------------------------------------------------------------------------------------


@panel("09")
def scaling(num_devices: int) -> Panel:
    """What N devices would give: `result` is a `Scaling`."""
    return Panel(
        "What would N GPUs give?",
        "First, the parts of one step of eDP-SGD; then, how much faster N devices are than one, and how much slower "
        "than SGD. Only one core was measured.",
        compute.scaling,
        [draw_step, draw_speed],
        words.scaling,
        scaling_command,
        model=choice("model", "clc", {"CLC": "clc", "BERT": "bert"}),
        devices=devices(num_devices, [*COUNTS, 64]),
        batch=number("batch", 64, [16, 32, 64, 128, 256, 512, 1024], unit="utterances"),
        bandwidth=number("bandwidth", 10.0, decades(-1, 3), unit="GB/s"),
        latency=number("latency", 10.0, [0.0, *decades(0, 4)], unit="µs a message"),
        speed=number("speed of a device", 1.0, decades(0, 3), unit="× one core"),
    )


def draw_step(result: Scaling) -> Figure:
    """The parts of eDP-SGD's step by N, stacked."""
    x = [fig.bold(n) if n == result.devices else str(n) for n in result.counts]
    return figure(
        "One step",
        words.scaling_caption(result),
        fig.bar("forward, backward, Adam", BLUE, "", x=x, y=1000 * result.sgd),
        fig.bar("clip and noise", ORANGE, "x", x=x, y=1000 * result.extra),
        fig.bar("all-reduce", VERMILLION, "/", x=x, y=1000 * result.message),
        top=140,
        hover="N = %{x}: %{y:.3g} ms",
        barmode="stack",
        xaxis=axis("devices N (bold: chosen)", type="category"),
        yaxis=axis("time of a step (ms)"),
    )


def draw_speed(result: Scaling) -> Figure:
    """Above: how many times as fast as on one device. Below: eDP-SGD's step to SGD's."""
    shares, n = result.shares, result.counts
    measured: dict[str, Any] = {"x": [], "y": []}
    if (shares.model, result.batch) == ("bert", 256):
        one, two = compute.two_processes()["edp-sgd"]
        measured = {"x": [2], "y": [one["seconds"] / two["seconds"]]}
    hollow = ["circle" if exact and k == 1 else "circle-open" for k, exact in zip(n, result.measured, strict=True)]
    drawn: dict[str, Any] = {"x": n, "symbol": hollow, "size": 9}
    paper = {"x": [8], "y": [printed(shares.model).edp_sgd_factor]}
    edge = math.log10(max(8, *n)) + 0.08
    lowest = min(-0.35, math.log10(result.speed_up.min()) - 0.1)
    by_count, faster = (
        axis("devices N", [-0.08, edge], **OCTAVES),
        axis("times as fast as one", [lowest, edge], **OCTAVES),
    )
    slower = axis("step (× SGD's)", [0, max(2.0, 1.15 * result.ratio.max())], rangemode="tozero")
    return fig.two_plots(
        "Speed",
        words.scaling_caption(result),
        line("ideal", BLACK, "dot", width=1.5, x=n, y=n, **ABOVE),
        line("extrapolated", BLUE, "dash", y=result.speed_up, **drawn, **ABOVE),
        points("measured, 2 processes", GREEN, "diamond", 13, edge=0, **measured, **ABOVE),
        line("extrapolated", BLUE, "dash", y=result.ratio, showlegend=False, **drawn, **BELOW),
        points("the paper, 8 GPUs", ORANGE, "square-open", 13, edge=3, **paper, **BELOW),
        hover="N = %{x}: %{y:.3g}",
        axes=[(by_count, faster), (by_count, slower)],
        legend_at=0.4,
        spacing=0.27,
    )


def scaling_command(result: Scaling, **values: Any) -> str:
    """How the steps were measured (once for each batch size), and the call that extrapolates and prints."""
    given = ", ".join(map(repr, values.values()))
    told = (
        "print(f'{1000 * s.step[s.here]:.4g} ms a step, {s.speed_up[s.here]:.3g} times as fast as on one device, "
        "{s.ratio[s.here]:.3g} times the step of SGD')"
    )
    call = f"from {compute.__name__} import scaling; s = scaling({given}); {told}"
    return f'{result.shares.command}\npython -c "{call}"'
