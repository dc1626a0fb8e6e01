"""The figures of ``04_what_does_it_cost.ipynb``: drawn once, then patched in place.

What a result holds is in `compute` and `table1_cells`; nothing is computed here but axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from edp_lab.course.kit.text import at_most
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb04_cost.compute import Account, Loss, RunBill, Sampled
from edp_lab.course.nb04_cost.table1_cells import Behind
from edp_lab.course.nb04_cost.words import DECAYS, settings
from edp_lab.privacy import Decay
from edp_lab.reproduce.paper.printed import Z0_RANGE

HEIGHT = 560
LEGEND = {"orientation": "h"}
BELOW = {**LEGEND, "y": 0.4, "yanchor": "bottom", "x": 0, "xanchor": "left"}  # of the lower of two plots
HERE = {"line": {"color": "#666", "dash": "dot", "width": 1.5}}
GUESS = {"color": BLACK, "dash": "dot", "width": 1.5}
RING = {"color": BLACK, "symbol": "circle-open", "size": 12, "line": {"width": 2}}
CLAIM = {"line": {"color": ORANGE, "dash": "dash"}, "marker": {"symbol": "square-open", "size": 8}}
HOLDS = {"line": {"color": GREEN}, "marker": {"symbol": "circle", "size": 7}}


# ---- The bill of a run ---------------------------------------------------------------------------------------------


def bill_figure(result: RunBill) -> go.Figure:
    """Epsilon by epochs trained, claimed and true; log scale."""
    figure = go.Figure(
        [
            go.Scatter(name="claimed (zCDP, z0 at face value)", **CLAIM),
            go.Scatter(name="zCDP, true noise", line={"color": PURPLE, "dash": "dashdot"}),
            go.Scatter(**HOLDS),
            go.Scatter(name="target", mode="lines", line=GUESS, hoverinfo="skip"),
        ]
    )
    figure.update_layout(height=HEIGHT, title="Privacy spent, by epoch", legend=LEGEND, margin_t=164)
    figure.update_xaxes(title="epochs trained")
    figure.update_yaxes(title="ε (nats)", type="log", exponentformat="power")
    figure.update_traces(hovertemplate="after %{x} epochs: ε = %{y:.3g}", selector=lambda trace: trace.name != "target")
    update_bill(figure, result)
    return figure


def update_bill(figure: go.Figure, result: RunBill) -> None:
    void = result.guarantee.epsilon is None
    with figure.batch_update():
        claimed, zcdp, exact, target = figure.data
        for trace, values in ((claimed, result.claimed), (zcdp, result.zcdp), (exact, result.exact)):
            trace.x, trace.y = result.after, _positive(values)
        exact.name = "exact, if α were public" if void else "exact: what holds"
        exact.line.dash, exact.marker.symbol = ("dot", "circle-open") if void else ("solid", "circle")
        claimed.mode = exact.mode = "lines+markers"
        zcdp.mode = "lines" if result.after.size > 1 else "markers"
        target.x, target.y = [0, result.epochs + 1], [result.target] * 2
        figure.layout.xaxis.range = [0.5, result.epochs + 0.5]
        figure.layout.yaxis.range = span = _decades([*result.claimed, *result.exact, result.target])
        figure.layout.yaxis.dtick = math.ceil((span[1] - span[0]) / 6)
        figure.layout.title.subtitle.text = _bill_caption(result)


def spend_figure(result: RunBill) -> go.Figure:
    """Above: the noise multiplier by epoch, as set and over true sensitivity. Below: each epoch's share of the bill."""
    figure, above, below = _two_rows()
    figure.add_scatter(name="z as set", **CLAIM, **above)
    figure.add_scatter(name="noise over true sensitivity", **HOLDS, **above)
    figure.add_bar(marker={"color": SKY}, showlegend=False, **below)
    figure.update_layout(title="Noise, and who pays")
    figure.update_xaxes(title="epoch t (the first is 0)")
    figure.update_yaxes(title="noise multiplier", type="log", exponentformat="power", row=1, col=1)
    figure.update_yaxes(title="share of Σ 1/z² (%)", rangemode="tozero", row=2, col=1)
    figure.update_traces(hovertemplate="t = %{x}: %{y:.3g}")
    update_spend(figure, result)
    return figure


def update_spend(figure: go.Figure, result: RunBill) -> None:
    t = np.arange(result.epochs)
    with figure.batch_update():
        as_set, true, share = figure.data
        as_set.x = true.x = share.x = t
        as_set.y, true.y, share.y = _positive(result.z_set), _positive(result.z_true), 100 * result.share
        as_set.mode = true.mode = "lines+markers" if result.epochs <= 40 else "lines"
        figure.layout.xaxis.range = figure.layout.xaxis2.range = [-0.6, result.epochs - 0.4]
        figure.layout.yaxis.range = span = _decades([*result.z_set, *result.z_true])
        figure.layout.yaxis.dtick = math.ceil((span[1] - span[0]) / 4)
        figure.layout.title.subtitle.text = _bill_caption(result)


def _bill_caption(result: RunBill) -> str:
    person = f", {result.utterances} a person" if result.utterances > 1 else ", one utterance"
    return f"{settings(result.mechanism)}<br>δ = {d(result.delta)}{person}, zero-out, disjoint batches"


# ---- Privacy losses ------------------------------------------------------------------------------------------------


def loss_figure(result: Loss) -> go.Figure:
    """Above: the privacy loss with and without the utterance, and delta. Below: delta for every epsilon."""
    figure, above, below = _two_rows()
    figure.add_scatter(name="δ", **_area(VERMILLION, 0.7), **above)
    figure.add_scatter(name="with", line={"color": BLUE}, **above)
    figure.add_scatter(name="without", line={"color": ORANGE, "dash": "dash"}, **above)
    figure.add_scatter(name="Gaussian DP, exact", line={"color": GREEN}, **below)
    figure.add_scatter(name="zCDP", line={"color": PURPLE, "dash": "dashdot"}, **below)
    figure.add_scatter(marker=RING, showlegend=False, **below)
    figure.update_layout(title="Privacy loss")
    figure.update_xaxes(title="privacy loss (nats); dotted: ε", row=1, col=1)
    figure.update_yaxes(title="density (per nat)", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title="ε (nats)", row=2, col=1)
    figure.update_yaxes(title="δ", type="log", exponentformat="power", row=2, col=1)
    figure.update_traces(mode="lines", hovertemplate="%{x:.3g}: %{y:.3g}")
    figure.data[5].mode = "markers"
    figure.add_vline(x=0, **HERE, row=1, col=1)
    update_loss(figure, result)
    return figure


def update_loss(figure: go.Figure, result: Loss) -> None:
    beyond = result.loss >= result.epsilon
    with figure.batch_update():
        area, with_it, without, exact, zcdp, here = figure.data
        area.x, area.y = _outline(result.loss[beyond], result.excess[beyond])
        with_it.x = without.x = result.loss
        with_it.y, without.y = result.with_it, result.without
        exact.x = zcdp.x = result.epsilons
        exact.y, zcdp.y = _positive(result.deltas), _positive(result.zcdp_deltas)
        here.x, here.y = [result.epsilon, result.zcdp], [result.delta] * 2
        figure.layout.xaxis.range = result.loss[[0, -1]]
        figure.layout.yaxis2.range = [lowest := math.floor(math.log10(result.delta)) - 1, 0.1]
        figure.layout.yaxis2.dtick = math.ceil(-lowest / 5)
        figure.layout.shapes[0].update(x0=result.epsilon, x1=result.epsilon)
        figure.layout.title.subtitle.text = f"{_releases(result)}<br>Gaussian DP, exact; one utterance, zero-out"


def tradeoff_figure(result: Loss) -> go.Figure:
    """False negatives against false positives: what privacy allows, and what an attack reaches."""
    figure = go.Figure(
        [
            go.Scatter(name="all epochs: least possible", line={"color": GREEN, "width": 3}),
            go.Scatter(name="one epoch", line={"color": SKY, "dash": "dashdot"}),
            go.Scatter(name="(ε, δ) alone promises", line={"color": PURPLE, "dash": "dash"}),
            go.Scatter(name="simulated attack", line={"color": VERMILLION, "dash": "longdash", "shape": "hv"}),
            go.Scatter(name="guessing", x=[0, 100], y=[100, 0], line=GUESS, hoverinfo="skip"),
        ]
    )
    figure.update_layout(height=HEIGHT, title="What attackers can do", margin_t=90)
    figure.layout.legend = {"x": 1, "xanchor": "right", "y": 1, "yanchor": "top"}  # above guessing there is nothing
    figure.update_xaxes(title="false positives (% of non-members)", range=[-1, 101])
    figure.update_yaxes(title="false negatives (% of members)", range=[-1, 101])
    figure.update_traces(mode="lines", hovertemplate="%{x:.3g} % against %{y:.3g} %")
    update_tradeoff(figure, result)
    return figure


def update_tradeoff(figure: go.Figure, result: Loss) -> None:
    with figure.batch_update():
        every, one, pair, attack, _ = figure.data
        every.x = one.x = pair.x = 100 * result.fpr
        every.y, one.y, pair.y = 100 * result.fnr, 100 * result.fnr_each, 100 * result.fnr_pair
        shown = np.unique(np.linspace(0, result.attack.fpr.size - 1, 400).round().astype(int))
        attack.x, attack.y = 100 * result.attack.fpr[shown], 100 * (1 - result.attack.tpr[shown])
        figure.layout.title.subtitle.text = (
            f"{_releases(result)}, Gaussian DP<br>"
            f"one utterance, zero-out; {result.draws:,} runs a side, seed {result.seed}"
        )


def _releases(result: Loss) -> str:
    return f"{result.releases} epochs: μ = {d(result.mu)}; ε = {at_most(result.epsilon)} at δ = {d(result.delta)}"


# ---- Sampling ------------------------------------------------------------------------------------------------------


def sampled_figure(result: Sampled) -> go.Figure:
    """Epsilon by steps under three ways to make batches; log scales."""
    figure = go.Figure(
        [
            go.Scatter(name="all in every step", line={"color": VERMILLION}),
            go.Scatter(name="shuffled, disjoint", line={"color": BLUE, "dash": "dash", "shape": "hv"}),
            go.Scatter(name="shuffled: at least", line={"color": BLACK, "dash": "dot"}),
            go.Scatter(name="Poisson (Rényi DP)", line={"color": GREEN, "dash": "dashdot", "width": 3}),
        ]
    )
    figure.update_layout(height=HEIGHT, title="Three ways to batch", legend=LEGEND, margin_t=152)
    figure.update_xaxes(title="steps", type="log", dtick=1, exponentformat="power")
    figure.update_yaxes(title="ε (nats)", type="log", exponentformat="power")
    figure.update_traces(hovertemplate="%{x:,} steps: ε = %{y:.3g}")
    update_sampled(figure, result)
    return figure


def update_sampled(figure: go.Figure, result: Sampled) -> None:
    with figure.batch_update():
        every, shuffled, at_least, sampled = figure.data
        every.x = shuffled.x = sampled.x = result.after
        every.y, shuffled.y, sampled.y = map(_positive, (result.everyone, result.shuffled, result.sampled))
        whole = [round(1 / result.rate), 2 * result.steps] if result.at_least else []
        at_least.x, at_least.y = whole, [result.at_least] * len(whole)
        for trace in figure.data:
            trace.mode = "lines" if result.after.size > 1 else "lines+markers"
        figure.layout.xaxis.range = [-0.03, max(0.5, math.log10(result.steps) + 0.03)]
        figure.layout.yaxis.range = span = _decades([*result.everyone, *result.shuffled, *result.sampled])
        figure.layout.yaxis.dtick = math.ceil((span[1] - span[0]) / 6)
        figure.layout.title.subtitle.text = _sampled_caption(result)


def output_figure(result: Sampled) -> go.Figure:
    """One step's noisy sum without the utterance, with it, and with it in the batch by chance."""
    figure = go.Figure(
        [
            go.Scatter(name="without", line={"color": ORANGE, "dash": "dash"}),
            go.Scatter(name="with, in the batch for sure", line={"color": VERMILLION}),
            go.Scatter(name="with, in the batch with chance q", line={"color": GREEN, "dash": "dashdot"}),
        ]
    )
    figure.update_layout(height=HEIGHT, title="One step", legend=LEGEND, margin_t=140)
    figure.update_xaxes(title="noisy sum along its gradient (in C)")
    figure.update_yaxes(title="density (per C)", rangemode="tozero")
    figure.update_traces(mode="lines", hovertemplate="%{x:.3g}: %{y:.3g}")
    update_output(figure, result)
    return figure


def update_output(figure: go.Figure, result: Sampled) -> None:
    with figure.batch_update():
        densities = result.without, result.with_it, result.sampled_with
        for trace, density in zip(figure.data, densities, strict=True):
            trace.x, trace.y = result.output, density
        figure.layout.title.subtitle.text = _sampled_caption(result)


def _sampled_caption(result: Sampled) -> str:
    return (
        f"z = {d(result.noise_multiplier)}, q = {d(result.rate)}, δ = {d(result.delta)}, one utterance, zero-out<br>"
        "Gaussian DP; with Poisson sampling Rényi DP"
    )


def accounts_figure() -> go.Figure:
    """Epsilon of one run by several accounts; empty."""
    colors, symbols = [VERMILLION, BLUE, GREEN, GREEN], ["circle", "square", "diamond", "diamond-open"]
    marks = {"color": colors, "symbol": symbols, "size": 15, "line": {"width": 2, "color": colors}}
    figure = go.Figure(go.Scatter(mode="markers+text", textposition="top center", marker=marks, cliponaxis=False))
    figure.update_layout(height=330, title="The same run, by four accounts", margin_t=90)
    figure.layout.title.subtitle.text = "press Run"
    figure.update_xaxes(title="ε (nats)", type="log", exponentformat="power", range=[-1, 3])
    figure.update_yaxes(title="account", autorange="reversed")
    figure.update_traces(hovertemplate="%{y}: ε = %{x:.4g}")
    return figure


def update_accounts(figure: go.Figure, accounts: Sequence[Account], result: Sampled) -> None:
    with figure.batch_update():
        marks = figure.data[0]
        marks.x, marks.y = _positive(a.epsilon for a in accounts), [a.name.replace(", ", ",<br>") for a in accounts]
        marks.text = [f"{at_most(a.epsilon)} in {d(1000 * a.seconds)} ms" for a in accounts]
        low, high = _decades(a.epsilon for a in accounts)
        figure.layout.xaxis.range = [low - 0.2, high + 0.4]
        figure.layout.xaxis.dtick = math.ceil((high - low) / 6)
        figure.layout.title.subtitle.text = f"{result.steps:,} steps; " + _sampled_caption(result).partition("<br>")[0]


# ---- Table 1 -------------------------------------------------------------------------------------------------------


def reach_figure(result: Behind) -> go.Figure:
    """How many of the printed epsilons some z0 and tau of the paper's grid give, by the number of epochs."""
    figure = go.Figure(go.Scatter(mode="lines+markers", line={"color": BLUE, "shape": "hvh"}, marker={"size": 4}))
    figure.add_scatter(mode="markers", marker=RING, hoverinfo="skip")
    figure.update_layout(height=420, title="Cells that T explains", showlegend=False, margin_t=90)
    figure.update_xaxes(title="number of epochs T", range=[0, 121])
    figure.update_yaxes(title="printed ε that are reachable (cells)", range=[27.5, 37])
    figure.data[0].update(
        x=[reach.epochs for reach in result.table.epochs],
        y=[reach.reachable for reach in result.table.epochs],
        hovertemplate="T = %{x}: %{y} of 36",
    )
    update_reach(figure, result)
    return figure


def update_reach(figure: go.Figure, result: Behind) -> None:
    with figure.batch_update():
        figure.data[1].x, figure.data[1].y = [result.epochs], [result.reachable]
        figure.layout.title.subtitle.text = (
            f"T = {result.epochs}: {result.reachable} of 36 printed ε (zCDP, z0 at face value)<br>"
            f"δ = 5e-4 (public corpora) or 5e-5; z0 from {d(Z0_RANGE[0])} to {d(Z0_RANGE[1])}"
        )


def settings_figure(result: Behind) -> go.Figure:
    """The z0 that gives the cell's printed epsilon, by T, a line for each tau of the paper's grid."""
    dashes, colors = ["solid", "dash", "dot", "dashdot"], [BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK, "#777"]
    figure = go.Figure(
        [go.Scatter(mode="lines", line={"color": colors[k], "dash": dashes[k % 4]}) for k in range(len(colors))]
    )
    figure.add_hrect(y0=Z0_RANGE[0], y1=Z0_RANGE[1], fillcolor=SKY, opacity=0.15, line_width=0)
    figure.add_vline(x=0, **HERE)
    figure.update_layout(height=420, title="Which z0 fits?", legend=LEGEND, margin_t=140)
    figure.update_xaxes(title="number of epochs T", range=[0, 121])
    figure.update_yaxes(title="z0 (band: the paper's)", type="log", exponentformat="power", range=[-7, 1], dtick=1)
    update_settings(figure, result)
    return figure


def update_settings(figure: go.Figure, result: Behind) -> None:
    cell, z0 = result.cell, np.where((result.z0 > 1e-9) & (result.z0 < 1e3), result.z0, np.nan)
    with figure.batch_update():
        for k, trace in enumerate(figure.data):
            trace.visible = shown = k < len(result.taus)
            if shown:
                trace.x, trace.y = np.arange(1, z0.shape[1] + 1), _positive(z0[k])
                trace.name = name = "no decay" if cell.decay is Decay.NONE else f"τ {result.taus[k]:g}"
                trace.hovertemplate = f"{name}, T = %{{x}}: z0 = %{{y:.3g}}<extra></extra>"
        figure.layout.shapes[1].update(x0=result.epochs, x1=result.epochs)
        figure.layout.title.subtitle.text = (
            f"{cell.model}, {cell.corpus}, {DECAYS[cell.decay]}: log₁₀ ε = {cell.log10_epsilon}<br>"
            f"claimed by zCDP, z0 at face value, δ = {d(cell.delta)}"
        )


def cells_figure(result: Behind) -> go.Figure:
    """All cells of Table 1: printed, and what holds with a public alpha."""
    figure = make_subplots(
        rows=1, cols=3, shared_yaxes=True, horizontal_spacing=0.03, subplot_titles=[*DECAYS.values()]
    )
    for col, decay in enumerate(DECAYS, 1):
        rows = [cell for cell in result.table.rows if cell.decay is decay]
        names = [f"{cell.model}, {cell.corpus}" for cell in rows]
        printed, true = [cell.log10_epsilon for cell in rows], [cell.true_log10_epsilon for cell in rows]
        gap_x = [x for pair in zip(printed, true, strict=True) for x in (*pair, None)]
        gap_y = [y for name in names for y in (name, name, None)]
        at = {"row": 1, "col": col}
        figure.add_scatter(x=gap_x, y=gap_y, mode="lines", line={"color": "#bbb"}, showlegend=False, **at)
        look = {"symbol": "square-open", "size": 9, "color": ORANGE, "line": {"width": 2}}
        figure.add_scatter(x=printed, y=names, name="printed", mode="markers", marker=look, showlegend=col == 1, **at)
        look, name = {"symbol": "circle", "size": 9, "color": GREEN}, "with a public α (as printed: no guarantee)"
        figure.add_scatter(x=true, y=names, name=name, mode="markers", marker=look, showlegend=col == 1, **at)
        figure.add_scatter(mode="markers", marker={**RING, "size": 17}, showlegend=False, hoverinfo="skip", **at)
    figure.update_layout(height=500, title="What the cells of Table 1 really are", margin_t=150)
    figure.layout.legend.update(**LEGEND, y=1.09)
    figure.update_xaxes(title="log₁₀ ε", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", title="model, corpus", col=1)
    update_cells(figure, result)
    return figure


def update_cells(figure: go.Figure, result: Behind) -> None:
    cell, name = result.cell, f"{result.cell.model}, {result.cell.corpus}"
    with figure.batch_update():
        for ring, decay in zip(figure.data[3::4], DECAYS, strict=True):
            here = [cell.log10_epsilon, cell.true_log10_epsilon] if decay is cell.decay else []
            ring.x, ring.y = here, [name] * len(here)
        figure.layout.title.subtitle.text = (
            f"ring: {name}, {DECAYS[cell.decay]}; printed: zCDP; circles: Gaussian DP, N = {result.table.num_gpus}"
            "<br>δ = 5e-4 (public corpora) or 5e-5; one utterance, zero-out, disjoint batches"
        )


# ---- Small parts ---------------------------------------------------------------------------------------------------


def _two_rows() -> tuple[go.Figure, dict[str, Any], dict[str, Any]]:
    """An empty figure with two plots, each under its own legend, and where a trace of either goes."""
    figure = make_subplots(rows=2, cols=1, vertical_spacing=0.27)
    figure.update_layout(height=HEIGHT, legend=LEGEND, legend2=BELOW)
    return figure, {"row": 1, "col": 1}, {"row": 2, "col": 1, "legend": "legend2"}


def _area(color: str, opacity: float) -> dict[str, object]:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return {"fill": "toself", "fillcolor": f"rgba({red},{green},{blue},{opacity})", "line": {"width": 0}}


def _outline(x: NDArray, top: NDArray) -> tuple[NDArray, NDArray]:
    """The outline of what lies between 0 and `top`, for "toself"."""
    return np.concatenate([x, x[::-1]]), np.concatenate([np.zeros_like(top), top[::-1]])


def _positive(values: Iterable[float]) -> list[float | None]:
    """Numbers that a log axis can show, else None."""
    return [float(v) if v > 0 and math.isfinite(v) else None for v in values]


def _decades(values: Iterable[float]) -> list[float]:
    """Exponents of the powers of ten around the values: an axis that stands still while a slider moves a little."""
    logs = [math.log10(v) for v in _positive(values) if v is not None] or [0.0]
    return [math.floor(min(logs) - 0.05), math.ceil(max(logs) + 0.05)]
