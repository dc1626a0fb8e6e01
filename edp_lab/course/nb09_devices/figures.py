"""The figures of ``09_many_gpus.ipynb``: drawn once, then patched in place.

What a result holds is in `edp_lab.course.nb09_devices.compute`; nothing is computed here but axes and histograms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, VERMILLION
from edp_lab.course.nb09_devices.compute import DeviceNoise, Scaling, Timed, printed, two_processes
from edp_lab.course.nb09_devices.words import settings, told
from edp_lab.training import TrainConfig

HEIGHT = 560
LEGEND = {"orientation": "h"}
BELOW = {**LEGEND, "y": 0.4, "yanchor": "bottom", "x": 0, "xanchor": "left"}  # of the lower of two plots
RING = {"color": BLACK, "symbol": "circle-open", "size": 13, "line": {"width": 2}}
CLAIM = {"line": {"color": ORANGE, "dash": "dash"}, "marker": {"symbol": "square-open", "size": 9}}
HOLDS = {"line": {"color": GREEN}, "marker": {"symbol": "circle", "size": 8}}


# ---- The noise of N devices ----------------------------------------------------------------------------------------

BINS = 60


def drawn_figure(result: DeviceNoise) -> go.Figure:
    """Histograms of the noise on the mean, drawn in three ways."""
    figure = go.Figure(
        [
            go.Scatter(name="one draw for the sum", line={"color": BLUE, "shape": "hvh"}),
            go.Scatter(name="N draws, averaged", line={"color": GREEN, "dash": "dash", "shape": "hvh", "width": 3}),
            go.Scatter(name="N times the same draw", line={"color": VERMILLION, "dash": "dot", "shape": "hvh"}),
        ]
    )
    figure.update_layout(height=HEIGHT, title="Noise on the mean", legend=LEGEND, margin_t=140)
    figure.update_xaxes(title="noise on one coordinate (gradient)")
    figure.update_yaxes(title=f"of {result.aggregate.size:,} coordinates", rangemode="tozero")
    figure.update_traces(mode="lines", hovertemplate="%{x:.3g}: %{y} coordinates")
    update_drawn(figure, result)
    return figure


def update_drawn(figure: go.Figure, result: DeviceNoise) -> None:
    draws = result.aggregate, result.per_device, result.same
    reach = 3.5 * max(float(draw.std()) for draw in draws) or 1.0
    edges = np.linspace(-reach, reach, BINS + 1)
    with figure.batch_update():
        for trace, draw in zip(figure.data, draws, strict=True):
            trace.x, trace.y = (edges[1:] + edges[:-1]) / 2, np.histogram(draw, edges)[0]
        figure.layout.xaxis.range = [-reach, reach]
        figure.layout.title.subtitle.text = (
            f"{settings(result.mechanism)}, seed {result.seed}<br>1 process, {result.devices - 1} devices simulated"
        )


def devices_figure(result: DeviceNoise) -> go.Figure:
    """Above: the deviation of the noise on the mean by N. Below: epsilon, claimed and true. Log scales."""
    figure, above, below = _two_rows()
    figure.add_scatter(name="z0 × what one utterance moves", **CLAIM, **above)
    figure.add_scatter(name="is added", **HOLDS, **above)
    figure.add_scatter(marker=RING, showlegend=False, hoverinfo="skip", **above)
    figure.add_scatter(name="ε claimed", **CLAIM, **below)
    figure.add_scatter(**HOLDS, **below)
    figure.add_scatter(marker=RING, showlegend=False, hoverinfo="skip", **below)
    figure.update_layout(title="By number of devices")
    figure.update_xaxes(title="devices N", type="log", dtick=math.log10(2), range=[-0.08, 1.6])
    figure.update_yaxes(type="log", exponentformat="power")
    figure.update_yaxes(title="noise on the mean", row=1, col=1)
    figure.update_yaxes(title="ε (nats)", row=2, col=1)
    figure.update_traces(mode="lines+markers", hovertemplate="N = %{x}: %{y:.3g}")
    for ring in (figure.data[2], figure.data[5]):
        ring.mode = "markers"
    update_devices(figure, result)
    return figure


def update_devices(figure: go.Figure, result: DeviceNoise) -> None:
    here, void = result.here, result.guarantee.epsilon is None
    with figure.batch_update():
        wanted, added, ring, claimed, true, ring_below = figure.data
        for trace, values in (
            (wanted, result.wanted), (added, result.on_mean), (claimed, result.claimed), (true, result.true)
        ):  # fmt: skip
            trace.x, trace.y = result.counts, _positive(values)
        ring.x, ring.y = [result.devices], _positive([result.on_mean[here]])
        ring_below.x, ring_below.y = [result.devices], _positive([result.true[here]])
        true.name = "ε if α were public" if void else "ε that holds"
        true.line.dash, true.marker.symbol = ("dot", "circle-open") if void else ("solid", "circle")
        figure.layout.xaxis.range = figure.layout.xaxis2.range = [-0.08, math.log10(max(32, *result.counts)) + 0.08]
        for axis, pair in (
            (figure.layout.yaxis, (result.wanted, result.on_mean)),
            (figure.layout.yaxis2, (result.claimed, result.true)),
        ):
            axis.range = span = _decades(np.concatenate(pair))
            axis.dtick = math.ceil((span[1] - span[0]) / 4)
        account = f"{result.epochs} epochs, δ = {d(result.delta)}; zCDP, Gaussian DP; zero-out"
        figure.layout.title.subtitle.text = f"{settings(result.mechanism)}<br>{account}"


# ---- Runs on real processes ----------------------------------------------------------------------------------------

LOOKS: list[dict[str, Any]] = [
    {"line": {"color": BLUE, "width": 5}, "marker": {"symbol": "circle", "size": 11}},
    {"line": {"color": ORANGE, "dash": "dash"}, "marker": {"symbol": "x", "size": 8}},
    {"line": {"color": GREEN, "dash": "dot"}, "marker": {"symbol": "diamond-open", "size": 10}},
]


def losses_figure() -> go.Figure:
    """The loss of each step of the last three runs; empty."""
    figure = go.Figure([go.Scatter(mode="lines+markers", x=[], y=[], visible=False, **look) for look in LOOKS])
    figure.update_layout(height=380, title="The same run, step by step?", margin_t=110, legend=LEGEND)
    figure.layout.title.subtitle.text = "press Run"
    figure.update_xaxes(title="step", tickformat="d", range=[0, 20])
    figure.update_yaxes(title="loss per utterance (nats)", rangemode="tozero")
    return figure


def update_losses(figure: go.Figure, runs: Sequence[tuple[str, Sequence[float]]], config: TrainConfig) -> None:
    """`runs`: what to call each (devices, processes, simulated), and its losses so far."""
    shown = runs[-len(LOOKS) :]
    with figure.batch_update():
        for k, trace in enumerate(figure.data):
            trace.visible = k < len(shown)
            if k < len(shown):
                name, losses = shown[k]
                trace.name, trace.x, trace.y = name, list(range(1, len(losses) + 1)), list(losses)
                trace.hovertemplate = f"step %{{x}}: %{{y:.6f}}<extra>{name}</extra>"
        figure.layout.xaxis.range = [0, max(5, *(len(losses) for _, losses in shown)) + 1]
        figure.layout.title.subtitle.text = f"last run: {told(config)}; void ε: seed published"


# ---- Table 2 -------------------------------------------------------------------------------------------------------


def table2_figure(tables: Mapping[str, Sequence[Timed]]) -> go.Figure:
    """Steps as a ratio to SGD's: ours with quartiles, and the paper's on eight GPUs."""
    figure = make_subplots(rows=1, cols=len(tables), shared_yaxes=True, horizontal_spacing=0.04)
    for col, (model, rows) in enumerate(tables.items(), 1):
        others = [row for row in rows if row.method != "sgd"]
        at = {"row": 1, "col": col}
        figure.add_scatter(
            name="ours, median and quartiles", showlegend=col == 1, **_timed(others, BLUE, "circle"), **at
        )
        paper = printed(model)
        figure.add_scatter(
            x=[paper.edp_sgd_factor, paper.dp_sgd_factor], y=[_row("edp-sgd", 8), _row("dp-sgd-naive", 1)],
            name="the paper, 8 GPUs", mode="markers", showlegend=col == 1,
            marker={"symbol": "square-open", "size": 12, "color": ORANGE, "line": {"width": 3}}, **at,
        )  # fmt: skip
        figure.add_annotation(
            text=f"<b>{model.upper()}, ATIS</b>", x=0.98, y=1, xref="x domain", yref="y domain", xanchor="right",
            yanchor="top", showarrow=False, **at,
        )  # fmt: skip
    figure.update_layout(height=430, title="Table 2: how much slower than SGD?", margin_t=120, legend=LEGEND)
    where = next(iter(tables.values()))[0].where
    figure.layout.title.subtitle.text = (
        f"ours: {where}, batches of 64;<br>processes: 1, further devices simulated; no ε"
    )
    figure.update_xaxes(
        title="time of a step (× SGD's)", type="log", range=[-0.1, 1.4], tickvals=[1, 2, 5, 10, 20], showgrid=True
    )
    order = [_row("edp-sgd", n) for n in (1, 2, 4, 8)] + [_row(m, 1) for m in ("dp-sgd", "dp-sgd-naive", "opacus")]
    figure.update_yaxes(categoryorder="array", categoryarray=order[::-1])
    figure.update_yaxes(title="method (DP-SGD, unless named)", col=1)
    return figure


SHORT = {"sgd": "SGD", "dp-sgd": "book-keeping", "dp-sgd-naive": "one by one", "opacus": "Opacus"}  # of DP-SGD


def _timed(rows: Sequence[Timed], color: str, symbol: str) -> dict[str, Any]:
    error = {
        "type": "data", "symmetric": False, "array": [row.spread[1] - row.ratio for row in rows],
        "arrayminus": [row.ratio - row.spread[0] for row in rows], "thickness": 1.5,
    }  # fmt: skip
    return {
        "x": [row.ratio for row in rows], "y": [_row(row.method, row.gpus) for row in rows], "error_x": error,
        "mode": "markers", "marker": {"color": color, "symbol": symbol, "size": 11},
        "hovertemplate": "%{y}: × %{x:.2f}",
    }  # fmt: skip


def _row(method: str, gpus: int) -> str:
    return f"eDP-SGD, N = {gpus}" if method == "edp-sgd" else SHORT[method]


def measured_figure(rows: Sequence[Timed], committed: Sequence[Timed]) -> go.Figure:
    """What Run measured, beside what was committed."""
    figure = go.Figure()
    figure.add_scatter(name="here, a moment ago", **_timed([], VERMILLION, "diamond"))
    figure.add_scatter(name="committed, two cores, paper's size", **_timed([], BLUE, "circle"))
    figure.update_layout(height=400, title="A few cells, measured here", margin_t=120, legend=LEGEND)
    figure.update_traces(showlegend=True)
    figure.update_xaxes(title="time of a step (× SGD's)", type="log", range=[-0.1, 1.1], tickvals=[1, 2, 5, 10])
    figure.update_yaxes(title="method (DP-SGD, unless named)", autorange="reversed")
    update_measured(figure, rows, committed, "press Run")
    return figure


def update_measured(figure: go.Figure, rows: Sequence[Timed], committed: Sequence[Timed], caption: str) -> None:
    known = [(row.method, row.gpus) for row in rows]
    beside = [row for row in committed if row.method != "sgd" and ((row.method, row.gpus) in known or not rows)]
    with figure.batch_update():
        for trace, shown in zip(figure.data, ([row for row in rows if row.method != "sgd"], beside), strict=True):
            look = _timed(shown, "", "")
            trace.x, trace.y, trace.error_x = look["x"], look["y"], look["error_x"]
        figure.layout.title.subtitle.text = caption


# ---- What N devices would give -------------------------------------------------------------------------------------

PARTS = {"forward, backward, Adam": (BLUE, ""), "clip and noise": (ORANGE, "x"), "all-reduce": (VERMILLION, "/")}


def step_figure(result: Scaling) -> go.Figure:
    """The parts of eDP-SGD's step by N, stacked."""
    figure = go.Figure(
        [
            go.Bar(
                name=name,
                marker={"color": color, "pattern": {"shape": shape, "fillmode": "overlay", "fgcolor": "white"}},
            )
            for name, (color, shape) in PARTS.items()
        ]
    )
    figure.update_layout(height=HEIGHT, title="One step", barmode="stack", legend=LEGEND, margin_t=140)
    figure.update_xaxes(title="devices N (bold: chosen)", type="category")
    figure.update_yaxes(title="time of a step (ms)")
    figure.update_traces(hovertemplate="N = %{x}: %{y:.3g} ms")
    update_step(figure, result)
    return figure


def update_step(figure: go.Figure, result: Scaling) -> None:
    names = [f"<b>{n}</b>" if n == result.devices else str(n) for n in result.counts]
    with figure.batch_update():
        for bar, seconds in zip(figure.data, (result.sgd, result.extra, result.message), strict=True):
            bar.x, bar.y = names, 1000 * seconds
        figure.layout.title.subtitle.text = _scaling_caption(result)


def speed_figure(result: Scaling) -> go.Figure:
    """Above: how many times as fast as on one device. Below: eDP-SGD's step to SGD's."""
    figure, above, below = _two_rows()
    ideal = {"color": BLACK, "dash": "dot", "width": 1.5}
    figure.add_scatter(name="ideal", mode="lines", line=ideal, **above)
    figure.add_scatter(name="extrapolated", line={"color": BLUE, "dash": "dash"}, **above)
    figure.add_scatter(name="measured, 2 processes", mode="markers", **above)
    figure.data[2].marker = {"color": GREEN, "symbol": "diamond", "size": 13}
    figure.add_scatter(name="extrapolated", showlegend=False, line={"color": BLUE, "dash": "dash"}, **below)
    figure.add_scatter(name="the paper, 8 GPUs", mode="markers", **below)
    figure.data[4].marker = {"color": ORANGE, "symbol": "square-open", "size": 13, "line": {"width": 3}}
    figure.update_layout(title="Speed")
    figure.update_xaxes(title="devices N", type="log", dtick=math.log10(2))
    figure.update_yaxes(title="times as fast as one", type="log", dtick=math.log10(2), row=1, col=1)
    figure.update_yaxes(title="step (× SGD's)", rangemode="tozero", row=2, col=1)
    figure.update_traces(hovertemplate="N = %{x}: %{y:.3g}")
    update_speed(figure, result)
    return figure


def update_speed(figure: go.Figure, result: Scaling) -> None:
    symbols = [
        "circle" if exact and n == 1 else "circle-open" for n, exact in zip(result.counts, result.measured, strict=True)
    ]
    real = two_processes()["edp-sgd"] if (result.shares.model, result.batch) == ("bert", 256) else None
    with figure.batch_update():
        ideal, faster, measured, ratio, paper = figure.data
        ideal.x = ideal.y = result.counts
        faster.x = ratio.x = result.counts
        faster.y, ratio.y = result.speed_up, result.ratio
        for trace in (faster, ratio):
            trace.mode, trace.marker = "lines+markers", {"color": BLUE, "symbol": symbols, "size": 9}
        measured.x, measured.y = ([2], [real[0].seconds / real[1].seconds]) if real else ([], [])
        paper.x, paper.y = [8], [printed(result.shares.model).edp_sgd_factor]
        edge = math.log10(max(8, *result.counts)) + 0.08
        figure.layout.xaxis.range = figure.layout.xaxis2.range = [-0.08, edge]
        figure.layout.yaxis.range = [min(-0.35, math.log10(result.speed_up.min()) - 0.1), edge]
        figure.layout.yaxis2.range = [0, max(2.0, 1.15 * float(result.ratio.max()))]
        figure.layout.title.subtitle.text = _scaling_caption(result)


def _scaling_caption(result: Scaling) -> str:
    return (
        f"{result.shares.model.upper()}, batch {result.batch}, {d(result.bandwidth)} GB/s, {d(result.latency)} µs<br>"
        f"one core measured, speed × {d(result.speed)}; N > 1 extrapolated; no ε"
    )


# ---- Small parts ---------------------------------------------------------------------------------------------------


def _two_rows() -> tuple[go.Figure, dict[str, Any], dict[str, Any]]:
    """An empty figure with two plots, each under its own legend, and where a trace of either goes."""
    figure = make_subplots(rows=2, cols=1, vertical_spacing=0.27)
    figure.update_layout(height=HEIGHT, legend=LEGEND, legend2=BELOW)
    return figure, {"row": 1, "col": 1}, {"row": 2, "col": 1, "legend": "legend2"}


def _positive(values: Iterable[float]) -> list[float | None]:
    """Numbers that a log axis can show, else None."""
    return [float(v) if v > 0 and math.isfinite(v) else None for v in values]


def _decades(values: Iterable[float]) -> list[float]:
    """Exponents of the powers of ten around the values: an axis that stands still while a slider moves a little."""
    logs = [math.log10(v) for v in _positive(values) if v is not None] or [0.0]
    return [math.floor(min(logs) - 0.05), math.ceil(max(logs) + 0.05)]
