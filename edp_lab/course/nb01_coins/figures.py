"""The figures of ``01_coins_to_composition.ipynb``: those of a panel are drawn once, then patched in place.

What a result holds is in `edp_lab.course.nb01_coins.compute`; nothing is computed here but axis ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb01_coins.compute import (
    ADVANCED,
    GAUSSIAN,
    HALF,
    SUM,
    ZCDP,
    Averaging,
    Choices,
    Composed,
    GaussianCount,
    Poll,
)
from edp_lab.course.nb01_coins.words import digits as d
from edp_lab.course.nb01_coins.words import releases
from edp_lab.reproduce.thesis.thesis_foundations import LinkageTable, LocalAndGlobal

HEIGHT = 540
LEGEND = {"orientation": "h"}
BELOW = {**LEGEND, "y": 0.38, "yanchor": "bottom", "x": 0, "xanchor": "left"}  # of the lower of two plots
RING = {"color": BLACK, "symbol": "circle-open", "size": 10, "line": {"width": 2}}
HATCH = {"fillmode": "overlay", "fgcolor": "white"}
SHOWN = 100  # people in the picture of a poll
TRUTH = {"color": BLACK, "dash": "dot", "width": 1.5}


# ---- A coin for everyone -------------------------------------------------------------------------------------------


def people_figure(result: Poll) -> go.Figure:
    """The first hundred, ten in a row: what each said, and whether it was true."""
    figure = go.Figure(
        [
            _people("yes, true", VERMILLION, "circle"),
            _people("yes, a lie", VERMILLION, "x-open"),
            _people("no, true", BLUE, "square"),
            _people("no, a lie", BLUE, "diamond-open"),
        ]
    )
    figure.update_layout(height=HEIGHT, title=f"What the first {SHOWN} say", legend=LEGEND)
    ticks = {"showgrid": False, "tickvals": list(range(0, 10, 3))}
    figure.update_xaxes(title="person: last digit of the number", range=[-0.6, 9.6], **ticks)
    figure.update_yaxes(title="person: tens of the number", range=[9.6, -0.6], **ticks)
    update_people(figure, result)
    return figure


def update_people(figure: go.Figure, result: Poll) -> None:
    truth, said = result.truth[:SHOWN], result.responses[:SHOWN]
    groups = ((1, True), (1, False), (0, True), (0, False))
    with figure.batch_update():
        for trace, (answer, honest) in zip(figure.data, groups, strict=True):
            who = np.flatnonzero((said == answer) & ((said == truth) == honest))
            trace.x, trace.y = who % 10, who // 10
        figure.layout.title.subtitle.text = f"{_poll_caption(result)}<br>the collector cannot see who lies"


def _people(name: str, color: str, symbol: str) -> go.Scatter:
    marker = {"color": color, "symbol": symbol, "size": 11, "line": {"width": 2.5, "color": color}}
    return go.Scatter(mode="markers", name=name, marker=marker, hovertemplate="person %{y}%{x}")


def poll_figure(result: Poll) -> go.Figure:
    """Above: the estimate as more are asked. Below: what one response does to a belief about that person."""
    figure, above, below = _two_rows()
    figure.add_scatter(**_band(SKY), **above)
    figure.add_scatter(name="estimate", mode="lines", line={"color": BLUE}, **above)
    figure.add_scatter(name="as heard", mode="lines", line={"color": ORANGE, "dash": "dash"}, **above)
    figure.add_scatter(name="truth", mode="lines", line=TRUTH, **above)
    figure.add_scatter(name="after a yes", mode="lines", line={"color": VERMILLION}, **below)
    figure.add_scatter(name="after a no", mode="lines", line={"color": BLUE, "dash": "dash"}, **below)
    figure.add_scatter(x=[0, 100], y=[0, 100], mode="lines", line=TRUTH, hoverinfo="skip", showlegend=False, **below)
    figure.add_scatter(mode="markers", marker=RING, showlegend=False, **below)
    figure.update_layout(title="All of them, and one")
    figure.update_xaxes(title="people asked so far", type="log", dtick=1, row=1, col=1)
    figure.update_yaxes(title="share of yes (%)", range=[-20, 120], row=1, col=1)
    figure.update_xaxes(title="belief before the response (%)", range=[0, 100], row=2, col=1)
    figure.update_yaxes(title="and after it (%)", range=[-3, 103], row=2, col=1)
    figure.update_traces(hovertemplate="%{x:.3g}: %{y:.3g} %")
    update_poll(figure, result)
    return figure


def update_poll(figure: go.Figure, result: Poll) -> None:
    with figure.batch_update():
        band, estimate, yes, truth, after_yes, after_no, _, here = figure.data
        half = 100 * HALF * result.standard_error
        band.x, band.y = _around(result.asked, 100 * result.estimate, half)
        estimate.x = yes.x = result.asked
        estimate.y, yes.y = 100 * result.estimate, 100 * result.yes
        truth.x, truth.y = result.asked[[0, -1]], [100 * result.share] * 2
        after_yes.x = after_no.x = 100 * result.before
        after_yes.y, after_no.y = 100 * result.after_yes, 100 * result.after_no
        place = round(100 * result.share)
        here.x, here.y = [place] * 2, 100 * np.array([result.after_yes[place], result.after_no[place]])
        figure.layout.xaxis.range = np.log10(result.asked[[0, -1]])
        figure.layout.title.subtitle.text = f"{_poll_caption(result)}<br>band: 90 % interval of the estimate"


def _poll_caption(result: Poll) -> str:
    return f"ε = {d(result.epsilon)} per answer (pure, local, replace-one), seed {result.seed}"


# ---- One question, asked again and again ---------------------------------------------------------------------------


def answers_figure(result: Averaging) -> go.Figure:
    """Every answer, and what averaging makes of them; the dotted line is where a budget stops it."""
    figure = go.Figure(
        [
            go.Scatter(**_band(SKY)),
            go.Scatter(name="average", line={"color": BLUE}),
            go.Scatter(name="one answer", mode="markers", marker={"color": ORANGE, "symbol": "circle-open", "size": 7}),
            go.Scatter(name="from a cache", mode="lines", line={"color": PURPLE, "dash": "dash"}),
            go.Scatter(name="true count", mode="lines", line=TRUTH),
        ]
    )
    figure.update_layout(height=HEIGHT, title="Averaging the noise away", legend=LEGEND)
    figure.update_xaxes(title="answers so far")
    figure.update_yaxes(title="count of bad ratings (people)")
    figure.update_traces(hovertemplate="answer %{x}: %{y:.3g}")
    figure.add_vline(x=0, line={"color": "#444", "dash": "dashdot", "width": 1.5}, annotation={"text": ""})
    update_answers(figure, result)
    return figure


def update_answers(figure: go.Figure, result: Averaging) -> None:
    asked, queries = np.arange(1, result.answers.size + 1), result.answers.size
    with figure.batch_update():
        band, average, one, cached, truth = figure.data
        band.x, band.y = _around(asked, result.average.estimate, result.average.half_width)
        average.x = one.x = asked
        average.y, one.y = result.average.estimate, result.answers
        cached.x, cached.y = asked[: result.cached.size], result.cached
        truth.x, truth.y = [0, queries + 1], [result.true_count] * 2
        average.mode = "lines" if queries > 1 else "lines+markers"
        stops = result.allowed < queries
        figure.layout.shapes[0].update(x0=result.allowed + 0.5, x1=result.allowed + 0.5, visible=stops)
        figure.layout.annotations[0].update(
            x=result.allowed + 0.5, text="the budget is spent" if stops else "", yanchor="top",
            xanchor="left" if result.allowed < queries / 2 else "right",
        )  # fmt: skip
        figure.layout.xaxis.range = [0, queries + 1]
        figure.layout.yaxis.range = [result.true_count + 6 * result.scale * sign for sign in (-1, 1)]
        figure.layout.title.subtitle.text = f"{_averaging_caption(result)}; band: 90 %"


def price_figure(result: Averaging) -> go.Figure:
    """Above: epsilon spent, without and with a cache. Below: one answer's density without a person and with them."""
    figure, above, below = _two_rows()
    figure.add_scatter(name="no limit", mode="lines", line={"color": VERMILLION}, **above)
    figure.add_scatter(name="with a cache", mode="lines", line={"color": PURPLE, "dash": "dash"}, **above)
    figure.add_scatter(name="budget", mode="lines", line={**TRUTH, "dash": "dashdot"}, **above)
    figure.add_scatter(name="without the person", mode="lines", line={"color": BLUE}, **below)
    figure.add_scatter(name="with the person", mode="lines", line={"color": ORANGE, "dash": "dash"}, **below)
    figure.update_layout(title="The price, and one answer")
    figure.update_xaxes(title="answers so far", row=1, col=1)
    figure.update_yaxes(title="total ε (pure)", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title="noisy count (people)", row=2, col=1)
    figure.update_yaxes(title="density (per person)", rangemode="tozero", row=2, col=1)
    figure.update_traces(hovertemplate="%{x:.3g}: %{y:.3g}")
    update_price(figure, result)
    return figure


def update_price(figure: go.Figure, result: Averaging) -> None:
    queries = result.answers.size
    low, high = result.true_count - 5 * result.scale, result.true_count + result.sensitivity + 5 * result.scale
    output = np.union1d(np.linspace(low, high, 201), [result.true_count, result.true_count + result.sensitivity])
    with figure.batch_update():
        spent, cached, budget, without, with_person = figure.data
        spent.x, spent.y = [0, queries], [0, queries * result.epsilon]
        cached.x, cached.y = ([0, 1, queries], [0, result.epsilon, result.epsilon]) if result.cached.size else ([], [])
        budget.x, budget.y = [0, queries + 1], [result.budget] * 2
        without.x = with_person.x = output
        without.y = result.density(output, 0)
        with_person.y = result.density(output, result.sensitivity)
        figure.layout.xaxis.range = [0, queries + 1]
        figure.layout.title.subtitle.text = _averaging_caption(result)


def _averaging_caption(result: Averaging) -> str:
    return (
        f"Laplace, ε = {d(result.epsilon)} per answer (pure, add or remove)<br>"
        f"Δ = {result.sensitivity}, budget ε = {d(result.budget)}, seed {result.seed}"
    )


# ---- Delta as an area ----------------------------------------------------------------------------------------------


def delta_figure(result: GaussianCount) -> go.Figure:
    """The density without the person, above e^epsilon times the one with them: the area between is delta."""
    figure = go.Figure(
        [
            go.Scatter(name="δ", **_area(VERMILLION, 0.7)),
            go.Scatter(name="without", line={"color": BLUE}),
            go.Scatter(name="with", line={"color": ORANGE, "dash": "dash"}),
            go.Scatter(name="with, × e<sup>ε</sup>", line={"color": GREEN, "dash": "dot"}),
        ]
    )
    figure.update_layout(height=HEIGHT, title="δ as an area", legend=LEGEND)
    figure.update_xaxes(title="noisy count (people)")
    figure.update_yaxes(title="density (per person)")
    figure.update_traces(mode="lines", hovertemplate="%{x:.4g}: %{y:.3g}")
    update_delta(figure, result)
    return figure


def update_delta(figure: go.Figure, result: GaussianCount) -> None:
    top = 1.2 * float(result.density.max())
    with figure.batch_update():
        area, without, with_person, raised = figure.data
        for trace in (without, with_person, raised):
            trace.x = result.output
        without.y, with_person.y = result.density, result.density_neighbour
        raised.y = np.minimum(result.raised, 100 * top)
        area.x, area.y = _between(result.output, np.minimum(result.raised, result.density), result.density)
        figure.layout.xaxis.range = result.output[[0, -1]]
        figure.layout.yaxis.range = [0, top]
        figure.layout.title.subtitle.text = _gaussian_caption(result)


def loss_figure(result: GaussianCount) -> go.Figure:
    """Above: the privacy loss, its tail and the part of it that is delta. Below: delta for every epsilon."""
    figure, above, below = _two_rows()
    figure.add_scatter(name="P[loss > ε]", **_area(SKY, 0.6), **above)
    figure.add_scatter(name="δ", **_area(VERMILLION, 0.7), **above)
    figure.add_scatter(name="density", mode="lines", line={"color": BLUE}, **above)
    figure.add_scatter(name="P[loss > ε]", mode="lines", line={"color": BLUE, "dash": "dash"}, **below)
    figure.add_scatter(name="the smallest δ", mode="lines", line={"color": VERMILLION}, **below)
    figure.add_scatter(mode="markers", marker=RING, showlegend=False, **below)
    figure.update_layout(title="The privacy loss")
    figure.update_xaxes(title="privacy loss of an outcome (nats)", row=1, col=1)
    figure.update_yaxes(title="density (per nat)", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title="ε (nats)", row=2, col=1)
    figure.update_yaxes(title="probability", type="log", exponentformat="power", row=2, col=1)
    figure.update_traces(hovertemplate="%{x:.3g}: %{y:.3g}")
    figure.add_vline(x=0, line={"color": "#444", "dash": "dashdot", "width": 1.5}, row=1, col=1)
    update_loss(figure, result)
    return figure


def update_loss(figure: go.Figure, result: GaussianCount) -> None:
    zero, beyond = np.zeros_like(result.loss), result.loss >= result.epsilon
    with figure.batch_update():
        tail, excess, density, tails, deltas, here = figure.data
        tail.x, tail.y = _between(result.loss[beyond], zero[beyond], result.loss_density[beyond])
        excess.x, excess.y = _between(result.loss[beyond], zero[beyond], result.loss_excess[beyond])
        density.x, density.y = result.loss, result.loss_density
        tails.x = deltas.x = result.epsilons
        tails.y, deltas.y = _positive(result.tails), _positive(result.deltas)
        here.x, here.y = [result.epsilon] * 2, _positive([result.tail, result.delta])
        low, high = float(result.loss[0]), float(result.loss[-1])
        figure.layout.xaxis.range = [low, max(high, 1.1 * result.epsilon)]
        figure.layout.yaxis2.range = decades = [min(-2, max(-12, _decade(result.deltas.min()))), 0.1]
        figure.layout.yaxis2.dtick = math.ceil((decades[1] - decades[0]) / 6)
        figure.layout.shapes[0].update(x0=result.epsilon, x1=result.epsilon)
        figure.layout.title.subtitle.text = _gaussian_caption(result)


def _gaussian_caption(result: GaussianCount) -> str:
    return (
        f"ε = {d(result.epsilon)} at δ = {d(result.delta)} (Gaussian DP, exact)<br>"
        f"one release with or without a person; σ = {d(result.sigma)}, Δ = {d(result.sensitivity)}"
    )


# ---- Many releases -------------------------------------------------------------------------------------------------

LOOKS = {
    SUM: (VERMILLION, "solid", "circle"),
    ADVANCED: (ORANGE, "dash", "square"),
    ZCDP: (BLUE, "dashdot", "diamond"),
    GAUSSIAN: (GREEN, "dot", "cross"),
}


def total_figure(result: Composed) -> go.Figure:
    """Total epsilon against the number of releases, by four accounts; log scales."""
    figure = go.Figure(
        [go.Scatter(name=name, line={"color": color, "dash": dash}) for name, (color, dash, _) in LOOKS.items()]
    )
    figure.add_scatter(
        mode="lines+text", line=TRUTH, text=["allowed"], textposition="top right", showlegend=False, cliponaxis=False
    )
    figure.update_layout(height=HEIGHT, title="The cost of many releases", legend=LEGEND)
    figure.update_xaxes(title="releases about the same data", type="log", dtick=1, exponentformat="power")
    figure.update_yaxes(title="total ε (nats)", type="log", dtick=1, exponentformat="power")
    figure.update_traces(hovertemplate="%{x:,} releases: ε = %{y:.3g}")
    update_total(figure, result)
    return figure


def update_total(figure: go.Figure, result: Composed) -> None:
    with figure.batch_update():
        *lines, budget = figure.data
        for line, total in zip(lines, result.total.values(), strict=True):
            line.x, line.y = result.releases, _positive(total)
            line.mode = "lines" if result.releases.size > 1 else "markers"
        budget.x, budget.y = [1, 10 * int(result.releases[-1])], [result.budget] * 2
        figure.layout.xaxis.range = [-0.03, max(1.0, math.log10(result.releases[-1]) + 0.05)]
        top = max(float(total[-1]) for name, total in result.total.items() if name != ADVANCED)
        figure.layout.yaxis.range = [_decade(result.epsilon) - 0.05, _decade(max(top, result.budget)) + 1]
        figure.layout.title.subtitle.text = _composed_caption(result)


def allowed_figure(result: Composed) -> go.Figure:
    """How many releases a total epsilon pays for, by the four accounts."""
    colors = [color for color, _, _ in LOOKS.values()]
    symbols = [symbol for _, _, symbol in LOOKS.values()]
    figure = go.Figure(
        go.Scatter(
            mode="markers+text",
            y=list(LOOKS),
            textposition="top center",
            showlegend=False,
            cliponaxis=False,
            marker={"color": colors, "symbol": symbols, "size": 15},
            hovertemplate="%{y}: %{text} releases",
        )
    )
    figure.update_layout(height=HEIGHT, title="What a total ε pays for", margin_t=90)
    figure.update_xaxes(title="releases that are allowed", type="log", dtick=1, exponentformat="power")
    figure.update_yaxes(title="account", categoryorder="array", categoryarray=list(LOOKS)[::-1], range=[-0.6, 3.6])
    figure.update_yaxes(ticktext=[name.replace(" ", "<br>", 1) for name in LOOKS], tickvals=list(LOOKS))
    update_allowed(figure, result)
    return figure


def update_allowed(figure: go.Figure, result: Composed) -> None:
    counts = list(result.allowed.values())
    with figure.batch_update():
        marks = figure.data[0]
        marks.x = [max(count, 0.5) for count in counts]  # none has no place on a log axis
        marks.text = [releases(count) for count in counts]
        figure.layout.xaxis.range = [-0.5, max(2.0, _decade(max(counts)) + 1.3)]
        figure.layout.xaxis.dtick = math.ceil(_decade(max(counts)) / 5) or 1
        figure.layout.title.subtitle.text = (
            f"total ε = {d(result.budget)} at δ = {d(result.delta)} (the plain sum at 0);<br>"
            f"ε = {d(result.epsilon)} per release (pure)"
        )


def _composed_caption(result: Composed) -> str:
    return f"ε = {d(result.epsilon)} per release (pure);<br>the total at δ = {d(result.delta)}, the plain sum at 0"


# ---- Drawn once ----------------------------------------------------------------------------------------------------


def choices_figure(result: Choices) -> go.Figure:
    """Bars: chances by the exponential mechanism. Marks: how often noisy max chose the label."""
    figure = go.Figure()
    labels = [f"{label}<br>{votes} votes" for label, votes in result.votes.items()]
    for row, epsilon in enumerate(result.epsilons):
        color, shape = (SKY, ORANGE, GREEN)[row % 3], ("", "/", "x")[row % 3]
        name, look = f"ε = {d(epsilon)} per choice", {"color": color, "pattern": {**HATCH, "shape": shape}}
        figure.add_bar(x=labels, y=100 * result.exponential[row], name=name, marker=look, offsetgroup=row)
    for row, shares in enumerate(result.noisy_max):
        figure.add_scatter(
            x=labels, y=100 * shares, name="noisy max, Laplace", showlegend=row == 0, mode="markers", offsetgroup=row,
            cliponaxis=False, marker={**RING, "symbol": "diamond-open"},
        )  # fmt: skip
    figure.update_layout(height=420, scattermode="group", title="Who wins a vote with noise?", legend=LEGEND)
    figure.layout.title.subtitle.text = (
        f"ε pure, one vote replaced; bars: exponential mechanism, exact;<br>"
        f"marks: noisy max, share of {result.draws:,} draws, seed {result.seed}"
    )
    figure.update_xaxes(title="label, and how many of the voters chose it")
    figure.update_yaxes(title="chance of winning (%)", range=[0, 104])
    return figure


def linkage_figure(table: LinkageTable, seed: int) -> go.Figure:
    """Shares of the patients that are singled out or betrayed, by k."""
    figure = go.Figure()
    shares = {
        "singled out by the voter list": ([row.identified for row in table.rows], BLUE, ""),
        "secret betrayed by the voter list": ([row.disclosed for row in table.rows], ORANGE, "/"),
        "singled out, month of visit known": ([row.identified_with_month for row in table.rows], VERMILLION, "x"),
    }
    for name, (values, color, shape) in shares.items():
        look = {"color": color, "pattern": {**HATCH, "shape": shape}}
        text = [f"{100 * value:.0f}" for value in values]
        ks = ["as it is" if row.k == 1 else f"k = {row.k}" for row in table.rows]
        figure.add_bar(x=ks, y=[100 * v for v in values], name=name, marker=look, text=text, textposition="outside")
    figure.update_layout(height=420, title="Who is found in a table without names?", legend=LEGEND)
    figure.layout.title.subtitle.text = f"k-anonymity has no ε: no guarantee; synthetic people, seed {seed}"
    figure.update_xaxes(title="released table")
    figure.update_yaxes(title="share of the patients (%)", range=[0, 109])
    return figure


def local_figure(result: LocalAndGlobal) -> go.Figure:
    """Standard error of a count by the number of people: local DP against global DP."""
    figure = go.Figure()
    looks = ((SKY, "circle"), (ORANGE, "square"), (GREEN, "diamond"))
    for column, epsilon in enumerate(result.epsilon):
        (color, symbol), ends = looks[column % 3], result.people[[0, -1]]
        marker = {"symbol": symbol, "size": 8}
        figure.add_scatter(
            x=result.people, y=result.local[:, column], mode="lines+markers", line={"color": color}, marker=marker,
            name=f"local, ε = {d(float(epsilon))}",
        )  # fmt: skip
        figure.add_scatter(
            x=ends, y=[result.central[column]] * 2, mode="lines+markers", line={"color": color, "dash": "dash"},
            marker={**marker, "symbol": f"{symbol}-open"}, name=f"global, ε = {d(float(epsilon))}",
        )  # fmt: skip
    figure.update_layout(height=460, title="A count of people, local or global", legend=LEGEND)
    figure.layout.title.subtitle.text = "ε of one answer, pure, one answer replaced; randomised response, Laplace"
    figure.update_traces(hovertemplate="%{x:,} people: ±%{y:.3g}")
    figure.update_xaxes(title="people asked", type="log", dtick=1, exponentformat="power")
    figure.update_yaxes(title="standard error of the count (people)", type="log", dtick=1, exponentformat="power")
    return figure


# ---- Small parts ---------------------------------------------------------------------------------------------------


def _two_rows() -> tuple[go.Figure, dict[str, Any], dict[str, Any]]:
    """An empty figure with two plots, each under its own legend, and where a trace of either goes."""
    figure = make_subplots(rows=2, cols=1, vertical_spacing=0.3)
    figure.update_layout(height=HEIGHT, legend=LEGEND, legend2=BELOW)
    return figure, {"row": 1, "col": 1}, {"row": 2, "col": 1, "legend": "legend2"}


def _band(color: str) -> dict[str, object]:
    return {**_area(color, 0.45), "mode": "lines", "hoverinfo": "skip", "showlegend": False}


def _area(color: str, opacity: float) -> dict[str, object]:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return {"fill": "toself", "fillcolor": f"rgba({red},{green},{blue},{opacity})", "line": {"width": 0}}


def _around(x: NDArray, middle: NDArray, half: NDArray) -> tuple[NDArray, NDArray]:
    """The outline of middle +- half, for "toself"."""
    return _between(x, middle - half, middle + half)


def _between(x: NDArray, low: NDArray, high: NDArray) -> tuple[NDArray, NDArray]:
    return np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]])


def _positive(values: Iterable[float]) -> list[float | None]:
    """Numbers that a log axis can show, else None."""
    return [float(v) if v > 0 and math.isfinite(v) else None for v in values]


def _decade(value: float) -> int:
    """The exponent of the power of ten below a value: an axis that stands still while a slider moves a little."""
    return math.floor(math.log10(value)) if value > 0 and math.isfinite(value) else -12
