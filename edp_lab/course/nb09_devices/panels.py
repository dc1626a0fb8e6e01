"""The panels of ``09_many_gpus.ipynb``: noise of N devices, real processes, a benchmark, what N devices would give.

What a result holds is in `compute`; nothing is computed here but axes and histograms.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import (
    AS_PRINTED,
    SOUND,
    choice,
    decades,
    delta_of,
    devices,
    number,
    number_box,
    seed_of,
)
from edp_lab.course.kit.figure import ABOVE, BELOW, Figure, Trace, figure, line, points, positive
from edp_lab.course.kit.panel import Panel, RunPanel, StoppedError, panel
from edp_lab.course.kit.text import Words, account_command, count, html_table, short, train_command
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, VERMILLION
from edp_lab.course.nb09_devices import compute
from edp_lab.course.nb09_devices.compute import COUNTS, LITTLE, DeviceNoise, LittleRun, Row, Scaling, printed
from edp_lab.privacy import Alpha, Variant
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
RING = {"width": 2, "color": BLACK}


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
    printed=printed,
    who=who,
)


# ---- The noise of N devices ----------------------------------------------------------------------------------------

BINS = 60


@panel("09")
def noise(C: float, z0: float, num_devices: int, epochs: int, delta: float, seed: int) -> Panel:
    """What N devices add and send: `result` is a `DeviceNoise`."""
    return Panel(
        "N devices, one noise",
        "First, the noise on the mean gradient, drawn by one or N; then, how it depends on N, and what the run costs.",
        {
            "variant": choice("variant", AS_PRINTED, {name: name for name in (AS_PRINTED, SOUND)}),
            "num_devices": devices(num_devices),
            "clip_norm": number("clip norm C", C, decades(-2, 2), unit="gradient norm"),
            "z0": number("noise multiplier z0", z0, decades(-3, 1), unit="no unit"),
            "epochs": number("length of the run", epochs, range(1, 41), unit="epochs"),
            "parameters": choice("model", SMALL, MODELS),
            "delta": delta_of(delta),
            "seed": seed_of(seed),
        },
        compute.device_noise,
        [draw_drawn, draw_devices],
        words.noise,
        noise_command,
    )


def draw_drawn(result: DeviceNoise) -> Figure:
    """Histograms of the noise on the mean, drawn in three ways."""
    draws = result.aggregate, result.per_device, result.same
    reach = 3.5 * max(float(draw.std()) for draw in draws) or 1.0
    edges = np.linspace(-reach, reach, BINS + 1)
    middle, hover = (edges[1:] + edges[:-1]) / 2, "%{x:.3g}: %{y} coordinates"
    on: dict[str, Any] = {"x": middle, "line": {"shape": "hvh"}, "hovertemplate": hover}
    once, own, same = (np.histogram(draw, edges)[0] for draw in draws)
    return figure(
        [
            line("one draw for the sum", BLUE, y=once, **on),
            line("N draws, averaged", GREEN, "dash", y=own, **{**on, "line": {"shape": "hvh", "width": 3}}),
            line("N times the same draw", VERMILLION, "dot", y=same, **on),
        ],
        "Noise on the mean",
        f"{_settings(result)}, seed {result.seed}<br>1 process, {result.devices - 1} devices simulated",
        margin={"t": 140},
        xaxis={"title": "noise on one coordinate (gradient)", "range": [-reach, reach]},
        yaxis={"title": f"of {result.aggregate.size:,} coordinates", "rangemode": "tozero"},
    )


def draw_devices(result: DeviceNoise) -> Figure:
    """Above: the deviation of the noise on the mean by N. Below: epsilon, claimed and true. Log scales."""
    void = result.guarantee.epsilon is None
    name, dash, symbol = ("ε if α were public", "dot", "circle-open") if void else ("ε that holds", "solid", "circle")
    here = {"x": [result.devices], "marker": {"line": RING}, "showlegend": False, "hoverinfo": "skip"}
    hover = {"hovertemplate": "N = %{x}: %{y:.3g}"}
    on: dict[str, Any] = {"x": result.counts, **hover}
    claim: dict[str, Any] = {"symbol": "square-open", "size": 9, **on}
    wanted, added, claimed, true = map(positive, (result.wanted, result.on_mean, result.claimed, result.true))
    traces = [
        line("z0 × what one utterance moves", ORANGE, "dash", y=wanted, **claim, **ABOVE),
        line("is added", GREEN, symbol="circle", y=added, **on, **ABOVE),
        points("", BLACK, "circle-open", 13, y=[added[result.here]], **here, **hover, **ABOVE),
        line("ε claimed", ORANGE, "dash", y=claimed, **claim, **BELOW),
        line(name, GREEN, dash, symbol=symbol, y=true, **on, **BELOW),
        points("", BLACK, "circle-open", 13, y=[true[result.here]], **here, **hover, **BELOW),
    ]
    last = math.log10(max(32, *result.counts))
    count_axis = {"title": "devices N", "type": "log", "dtick": math.log10(2), "range": [-0.08, last + 0.08]}
    axes = {
        "xaxis": count_axis,
        "yaxis": fig.decade_axis("noise on the mean", [*wanted, *added], 4),
        "xaxis2": count_axis,
        "yaxis2": fig.decade_axis("ε (nats)", [*claimed, *true], 4),
    }
    account = f"{result.guarantee.epochs} epochs, δ = {d(result.guarantee.delta)}; zCDP, Gaussian DP; zero-out"
    layout = fig.merged(fig.two_rows(0.4, vertical_spacing=0.27), axes)
    return figure(traces, "By number of devices", f"{_settings(result)}<br>{account}", **layout)


def _settings(result: DeviceNoise) -> str:
    m = result.mechanism
    return f"{m.variant}, N = {m.num_devices}, C = {d(m.clip_norm)}, z0 = {d(m.z0)}"


def noise_command(result: DeviceNoise, **_: Any) -> str:
    """The call of `edp-lab account` that gives the same noise and epsilon."""
    m = result.mechanism
    options = {
        "clip": m.clip_norm, "z0": m.z0, "gpus": m.num_devices, "micro-batch-size": m.micro_batch_size,
        "epochs": result.guarantee.epochs, "delta": result.guarantee.delta,
        "alpha-source": None if m.alpha is Alpha.NONE else m.alpha,
    }  # fmt: skip
    return account_command(options, *(["--as-printed"] if m.variant is Variant.AS_PRINTED else []), precision=12)


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
        self.epochs, self.processes = number_box("epochs", start.epochs), number_box("processes", start.processes)
        self.noise = choice("noise", start.noise, {"per device": "per-device", "one draw": "aggregate"})
        super().__init__(
            "Run on real processes",
            "The loss of every step of a real training run, whose N devices live on one process or on several; the "
            "rest is simulated.",
            [self.processes, self.epochs, self.noise.row],
            [draw_losses([], "press Run")],
            rows=4,
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
        finished = run.record["status"] == "finished"
        others = [other for other in self.runs if finished and compute.alike(config, other.config)]
        others = [other for other in others if other.config.processes != config.processes]
        self.runs.append(run)
        self._draw(config)
        self.words.value = words.run(run, others[-1] if others else None)
        self.command.value = run_command(config)

    def _draw(self, config: TrainConfig, *running: tuple[str, Sequence[float]]) -> None:
        variant = "as printed" if config.as_printed else "sound"
        settings = f"N = {config.num_devices}, C = {config.clip_norm:g}, z0 = {short(config.z0)}, seed {config.seed}"
        caption = f"last run: {variant}, {settings}; void ε: seed published"
        self.figures[0].show(draw_losses([*((r.record["devices"], r.losses) for r in self.runs), *running], caption))


LOOKS: list[dict[str, Any]] = [
    {"color": BLUE, "symbol": "circle", "size": 11, "line": {"width": 5}},
    {"color": ORANGE, "dash": "dash", "symbol": "x", "size": 8},
    {"color": GREEN, "dash": "dot", "symbol": "diamond-open", "size": 10},
]


def draw_losses(runs: Sequence[tuple[str, Sequence[float]]], caption: str) -> Figure:
    """The loss of each step of the last three runs; of each, its name (devices, processes) and its losses so far."""
    shown = runs[-len(LOOKS) :]
    lines = []
    for k, look in enumerate(LOOKS):
        name, losses = shown[k] if k < len(shown) else ("", [])
        steps: dict[str, Any] = {"x": list(range(1, len(losses) + 1)), "y": list(losses), "visible": k < len(shown)}
        lines.append(line(name, hovertemplate=f"step %{{x}}: %{{y:.6f}}<extra>{name}</extra>", **look, **steps))
    last = max([5, *(len(losses) for _, losses in shown)]) + 1 if shown else 20
    return figure(
        lines,
        "The same run, step by step?",
        caption,
        380,
        margin={"t": 110},
        xaxis={"title": "step", "tickformat": "d", "range": [0, last]},
        yaxis={"title": "loss per utterance (nats)", "rangemode": "tozero"},
    )


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


def table2_figure(tables: Mapping[str, Sequence[Row]]) -> go.Figure:
    """Steps as a ratio to SGD's: ours with quartiles, and the paper's on eight GPUs."""
    layout = fig.plots(1, len(tables), shared_yaxes=True, horizontal_spacing=0.04)
    heading = {"x": 0.98, "y": 1, "xanchor": "right", "yanchor": "top", "showarrow": False}
    traces, headings = [], []
    for plot, (model, rows) in enumerate(tables.items(), 1):
        at, paper = fig.at(plot), printed(model)
        first = {"showlegend": plot == 1}
        square = {"marker": {"line": {"width": 3}}, "y": [_row("edp-sgd", 8), _row("dp-sgd-naive", 1)]}
        factors = [paper.edp_sgd_factor, paper.dp_sgd_factor]
        traces += [
            _ratios("ours, median and quartiles", BLUE, "circle", rows, **first, **at),
            points("the paper, 8 GPUs", ORANGE, "square-open", 12, x=factors, **square, **first, **at),
        ]
        refs = {"xref": f"{at['xaxis']} domain", "yref": f"{at['yaxis']} domain"}
        headings.append({"text": f"<b>{model.upper()}, ATIS</b>", **heading, **refs})
        ticks = {"type": "log", "range": [-0.1, 1.4], "tickvals": [1, 2, 5, 10, 20], "showgrid": True}
        layout[f"xaxis{at['xaxis'][1:]}"] |= {"title": "time of a step (× SGD's)", **ticks}
        order = [_row("edp-sgd", n) for n in (1, 2, 4, 8)] + [_row(m, 1) for m in ("dp-sgd", "dp-sgd-naive", "opacus")]
        layout[f"yaxis{at['yaxis'][1:]}"] |= {"categoryorder": "array", "categoryarray": order[::-1]}
    layout["yaxis"] |= {"title": "method (DP-SGD, unless named)"}
    layout |= {"annotations": headings, "margin": {"t": 120}}
    where = compute.where(next(iter(tables.values()))[0])
    caption = f"ours: {where}, batches of 64;<br>processes: 1, further devices simulated; no ε"
    return go.Figure(figure(traces, "Table 2: how much slower than SGD?", caption, 430, **layout))


def _ratios(name: str, color: str, symbol: str, rows: Sequence[Row], **more: Any) -> Trace:
    """Of all rows but SGD's, with quartiles."""
    others = [row for row in rows if row["method"] != "sgd"]
    ratios, spreads = [row["ratio_to_sgd"] for row in others], [row["ratio_spread"] for row in others]
    error = {
        "type": "data", "symmetric": False, "thickness": 1.5,
        "array": [high - ratio for ratio, (_, high) in zip(ratios, spreads, strict=True)],
        "arrayminus": [ratio - low for ratio, (low, _) in zip(ratios, spreads, strict=True)],
    }  # fmt: skip
    told = {"error_x": error, "marker": {"line": {"width": 0}}, "hovertemplate": "%{y}: × %{x:.2f}"}
    y = [_row(row["method"], row["gpus"]) for row in others]
    return points(name, color, symbol, 11, x=ratios, y=y, **told, **more)


def _row(method: str, gpus: int) -> str:
    return f"eDP-SGD, N = {gpus}" if method == "edp-sgd" else SHORT[method]


def table2_table(rows: Sequence[Row]) -> str:
    """Ours beside the paper's factors, one method a row, as HTML."""
    model, paper = rows[0]["model"], printed(rows[0]["model"])
    factors = {("edp-sgd", 8): paper.edp_sgd_factor, ("dp-sgd-naive", 1): paper.dp_sgd_factor}
    table = [["", "s a step", "s an epoch", "× SGD", "quartiles", "paper ×"]]
    for row in rows:
        (low, high), factor = row["ratio_spread"], factors.get((row["method"], row["gpus"]))
        seconds = f"{row['seconds']:.3f}", f"{row['seconds'] * row['steps_per_epoch']:.1f}"
        spread = f"{low:.2f} to {high:.2f}" if row["method"] != "sgd" else ""
        table.append([who(row), *seconds, f"{row['ratio_to_sgd']:.2f}", spread, f"{factor:g}" if factor else ""])
    what = f"<b>{model.upper()} on ATIS</b>, batches of {rows[0]['batch_size']} ({compute.where(rows[0])})"
    return f"<p>{what}</p>{html_table(table)}<p>With <code>{rows[0]['command']}</code></p>"


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
        self.rounds = number_box("rounds", 5)
        super().__init__(
            "Time it here",
            "Steps of several methods, in turn on the same batches of this machine, as a ratio to SGD; beside them "
            "what was committed.",
            [self.size.row, self.rounds],
            [draw_measured([], "press Run")],
            rows=2,
        )

    def prepare(self) -> Task:
        methods = ("sgd", "edp-sgd", "dp-sgd", "dp-sgd-naive")
        return Task(self._corpus, methods=methods, rounds=self.rounds.value, threads=1, size=self.size.value)

    def work(self, task: Task) -> None:
        self.rows, self.words.value = [], ""
        self.command.value = measure_command(task)
        steps = 0

        def told(name: str) -> None:
            nonlocal steps
            self.heed_stop()
            steps += 1
            self.progress(min(steps, 6 * task.rounds), 6 * task.rounds, name)

        self.progress(0, 1, "starting a process")
        try:
            self.rows = bench_steps(task, told)
        except StoppedError:
            return
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
    return figure(
        traces,
        "A few cells, measured here",
        caption,
        400,
        margin={"t": 120},
        xaxis={"title": "time of a step (× SGD's)", "type": "log", "range": [-0.1, 1.1], "tickvals": [1, 2, 5, 10]},
        yaxis={"title": "method (DP-SGD, unless named)", "autorange": "reversed"},
    )


def measure_command(task: Task) -> str:
    """The benchmark on the command line."""
    words = [
        "edp-lab", "bench", "step", "--corpus", task.corpus, "--model", task.model, "--size", task.size, "--methods",
        ",".join(task.methods), "--gpus", ",".join(map(str, task.gpus)), "--batch-size", str(task.batch_size),
        "--rounds", str(task.rounds), "--threads", str(task.threads),
    ]  # fmt: skip
    return shlex.join(words)


# ---- What N devices would give -------------------------------------------------------------------------------------

PARTS = {"forward, backward, Adam": (BLUE, ""), "clip and noise": (ORANGE, "x"), "all-reduce": (VERMILLION, "/")}


@panel("09")
def scaling(num_devices: int) -> Panel:
    """What N devices would give: `result` is a `Scaling`."""
    return Panel(
        "What would N GPUs give?",
        "First, the parts of one step of eDP-SGD; then, how much faster N devices are than one, and how much slower "
        "than SGD. Only one core was measured.",
        {
            "model": choice("model", "clc", {"CLC": "clc", "BERT": "bert"}),
            "devices": devices(num_devices, [*COUNTS, 64]),
            "batch": number("batch", 64, [16, 32, 64, 128, 256, 512, 1024], unit="utterances"),
            "bandwidth": number("bandwidth", 10.0, decades(-1, 3), unit="GB/s"),
            "latency": number("latency", 10.0, [0.0, *decades(0, 4)], unit="µs a message"),
            "speed": number("speed of a device", 1.0, decades(0, 3), unit="× one core"),
        },
        compute.scaling,
        [draw_step, draw_speed],
        words.scaling,
        scaling_command,
    )


def draw_step(result: Scaling) -> Figure:
    """The parts of eDP-SGD's step by N, stacked."""
    x = [f"<b>{n}</b>" if n == result.devices else str(n) for n in result.counts]
    seconds = result.sgd, result.extra, result.message
    bars: list[Trace] = []
    for (name, (color, shape)), part in zip(PARTS.items(), seconds, strict=True):
        # In plotly's default a white pattern replaces the colour, and the bar cannot be seen.
        look = {"color": color, "pattern": {"shape": shape, "fillmode": "overlay", "fgcolor": "white"}}
        on = {"x": x, "y": 1000 * part, "hovertemplate": "N = %{x}: %{y:.3g} ms"}
        bars.append({"type": "bar", "name": name, "marker": look, **on})
    return figure(
        bars,
        "One step",
        _scaling_caption(result),
        barmode="stack",
        margin={"t": 140},
        xaxis={"title": "devices N (bold: chosen)", "type": "category"},
        yaxis={"title": "time of a step (ms)"},
    )


def draw_speed(result: Scaling) -> Figure:
    """Above: how many times as fast as on one device. Below: eDP-SGD's step to SGD's."""
    shares, n = result.shares, result.counts
    pair = compute.two_processes()["edp-sgd"] if (shares.model, result.batch) == ("bert", 256) else None
    measured: dict[str, Any] = {"x": [], "y": [], "marker": {"line": {"width": 0}}}
    if pair:
        measured |= {"x": [2], "y": [pair[0]["seconds"] / pair[1]["seconds"]]}
    hollow = ["circle" if exact and k == 1 else "circle-open" for k, exact in zip(n, result.measured, strict=True)]
    drawn: dict[str, Any] = {"x": n, "symbol": hollow, "size": 9}
    hover = {"hovertemplate": "N = %{x}: %{y:.3g}"}
    paper = {"x": [8], "y": [printed(shares.model).edp_sgd_factor], "marker": {"line": {"width": 3}}}
    traces = [
        line("ideal", BLACK, "dot", line={"width": 1.5}, x=n, y=n, **hover, **ABOVE),
        line("extrapolated", BLUE, "dash", y=result.speed_up, **drawn, **hover, **ABOVE),
        points("measured, 2 processes", GREEN, "diamond", 13, **measured, **hover, **ABOVE),
        line("extrapolated", BLUE, "dash", y=result.ratio, showlegend=False, **drawn, **hover, **BELOW),
        points("the paper, 8 GPUs", ORANGE, "square-open", 13, **paper, **hover, **BELOW),
    ]
    edge, octave = math.log10(max(8, *n)) + 0.08, math.log10(2)
    lowest = min(-0.35, math.log10(result.speed_up.min()) - 0.1)
    count_axis = {"title": "devices N", "type": "log", "dtick": octave, "range": [-0.08, edge]}
    axes = {
        "xaxis": count_axis,
        "yaxis": {"title": "times as fast as one", "type": "log", "dtick": octave, "range": [lowest, edge]},
        "xaxis2": count_axis,
        "yaxis2": {"title": "step (× SGD's)", "rangemode": "tozero", "range": [0, max(2.0, 1.15 * result.ratio.max())]},
    }
    layout = fig.merged(fig.two_rows(0.4, vertical_spacing=0.27), axes)
    return figure(traces, "Speed", _scaling_caption(result), **layout)


def _scaling_caption(result: Scaling) -> str:
    return (
        f"{result.shares.model.upper()}, batch {result.batch}, {d(result.bandwidth)} GB/s, {d(result.latency)} µs<br>"
        f"one core measured, speed × {d(result.speed)}; N > 1 extrapolated; no ε"
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
