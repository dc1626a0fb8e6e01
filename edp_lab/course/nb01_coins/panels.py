"""The panels of ``01_coins_to_composition.ipynb``: a coin, one question again and again, delta, many releases.

What a result holds is in `compute`; nothing is computed here but outlines and axis ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import Array, decades, number, seed_of
from edp_lab.course.kit.figure import ABOVE, BELOW, Figure, area, figure, line, points, positive, two_plots
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Words, account_command, python
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb01_coins import compute
from edp_lab.course.nb01_coins.compute import ADVANCED, COUNTABLE, GAUSSIAN, HALF, SUM, TRUE_COUNT, ZCDP, belief
from edp_lab.reproduce.claims import Evidence
from edp_lab.reproduce.thesis.thesis_foundations import LinkageTable, LocalAndGlobal


def counted(releases: int) -> str:
    """A number of releases, as far as it is counted."""
    return f"{releases:,}" if releases < COUNTABLE else "a billion or more"


words = Words(__file__, belief=belief, counted=counted, half=HALF, truth=TRUE_COUNT)
HEIGHT, EPSILON = 540, "nats"
TRUTH = {"width": 1.5}  # a thin dotted line where the truth is
RING = points("", BLACK, "circle-open", 10, marker={"line": {"width": 2}}, showlegend=False)
HATCH = {"fillmode": "overlay", "fgcolor": "white"}


# ---- A coin for everyone -------------------------------------------------------------------------------------------


@panel("01")
def coin(epsilon: float, people: int, share: float, seed: int) -> Panel:
    """Randomised response: `result` is a `Poll`."""
    crowds = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000]
    return Panel(
        "A coin for everyone",
        "First, what people say once a coin has decided whether they tell the truth; then, what this gives away about "
        "all of them, and about one.",
        {
            "epsilon": number("ε of one answer", epsilon, decades(-2, 1), unit=EPSILON),
            "people": number("number of people", people, crowds, unit="people"),
            "share": number("share of yes", share, [k / 100 for k in range(101)], unit="of 1"),
            "seed": seed_of(seed),
        },
        compute.poll,
        [draw_people, draw_poll],
        words.coin,
        lambda result, **values: python(compute.poll, **values),
    )


SHOWN = 100  # people in the picture of a poll
SAID = {
    ("yes, true", VERMILLION, "circle"): (1, True),
    ("yes, a lie", VERMILLION, "x-open"): (1, False),
    ("no, true", BLUE, "square"): (0, True),
    ("no, a lie", BLUE, "diamond-open"): (0, False),
}


def draw_people(result: compute.Poll) -> Figure:
    """The first hundred, ten in a row: what each said, and whether it was true."""
    truth, said = result.truth[:SHOWN], result.responses[:SHOWN]
    thick: dict[str, Any] = {"marker": {"line": {"width": 2.5}}, "hovertemplate": "person %{y}%{x}"}
    marks = []
    for look, (answer, honest) in SAID.items():
        who = np.flatnonzero((said == answer) & ((said == truth) == honest))
        marks.append(points(*look, 11, x=who % 10, y=who // 10, **thick))
    ticks = {"showgrid": False, "tickvals": list(range(0, 10, 3))}
    return figure(
        marks,
        f"What the first {SHOWN} say",
        f"{_poll_caption(result)}<br>the collector cannot see who lies",
        HEIGHT,
        xaxis={"title": "person: last digit of the number", "range": [-0.6, 9.6], **ticks},
        yaxis={"title": "person: tens of the number", "range": [9.6, -0.6], **ticks},
    )


def draw_poll(result: compute.Poll) -> Figure:
    """Above: the estimate as more are asked. Below: what one response does to a belief about that person."""
    asked, half, share = result.asked, 100 * HALF * result.standard_error, 100 * result.share
    before = np.linspace(0, 1, 101)
    after = {loss: 100 * belief(before, loss) for loss in (result.epsilon, -result.epsilon)}
    here = {"x": [round(share)] * 2, "y": np.array([y[round(share)] for y in after.values()])}
    above: dict[str, Any] = {**ABOVE, "hovertemplate": "%{x:.3g}: %{y:.3g} %"}
    below: dict[str, Any] = {**above, **BELOW}
    same = {"x": [0, 100], "y": [0, 100], "hoverinfo": "skip", "showlegend": False}
    lines = [
        _band(asked, 100 * result.estimate, half, **above),
        line("estimate", BLUE, x=asked, y=100 * result.estimate, **above),
        line("as heard", ORANGE, "dash", x=asked, y=100 * result.yes, **above),
        line("truth", BLACK, "dot", x=asked[[0, -1]], y=[share] * 2, line=TRUTH, **above),
        line("after a yes", VERMILLION, x=100 * before, y=after[result.epsilon], **below),
        line("after a no", BLUE, "dash", x=100 * before, y=after[-result.epsilon], **below),
        line("", BLACK, "dot", line=TRUTH, **same, **below),
        {**RING, **here, **below},
    ]
    return two_plots(
        lines,
        "All of them, and one",
        f"{_poll_caption(result)}<br>band: 90 % interval of the estimate",
        HEIGHT,
        xaxis={"title": "people asked so far", "type": "log", "dtick": 1, "range": np.log10(asked[[0, -1]])},
        yaxis={"title": "share of yes (%)", "range": [-20, 120]},
        xaxis2={"title": "belief before the response (%)", "range": [0, 100]},
        yaxis2={"title": "and after it (%)", "range": [-3, 103]},
    )


def _poll_caption(result: compute.Poll) -> str:
    return f"ε = {d(result.epsilon)} per answer (pure, local, replace-one), seed {result.seed}"


# ---- One question, asked again and again ---------------------------------------------------------------------------


@panel("01")
def averaging(epsilon: float, sensitivity: int, queries: int, budget: float, seed: int) -> Panel:
    """The averaging attack on Laplace noise: `result` is an `Averaging`."""
    return Panel(
        "One question, again and again",
        "First, noisy answers to one question and their average; then, what they cost, and how alike one answer is "
        "with and without a person.",
        {
            "epsilon": number("ε of one answer", epsilon, decades(-2, 1), unit=EPSILON),
            "sensitivity": number("sensitivity Δ", sensitivity, range(1, 21), unit="records/person"),
            "queries": number("number of queries", queries, [1, 2, 5, 10, 20, 50, 100, 200, 500], unit="answers"),
            "budget": number("budget", budget, decades(-1, 3), unit=EPSILON),
            "seed": seed_of(seed),
        },
        compute.averaging,
        [draw_answers, draw_price],
        words.averaging,
        lambda result, **values: python(compute.averaging, **values),
    )


def draw_answers(result: compute.Averaging) -> Figure:
    """Every answer, and what averaging makes of them; the line is where a budget stops it."""
    queries, average = result.answers.size, result.average
    asked, room, stops = np.arange(1, queries + 1), 6 * result.scale, result.allowed < queries
    hover: dict[str, Any] = {"hovertemplate": "answer %{x}: %{y:.3g}"}
    one = {"mode": "markers", "marker": {"color": ORANGE, "symbol": "circle-open", "size": 7}}
    lines = [
        _band(asked, average.estimate, average.half_width, **hover),
        line("average", BLUE, x=asked, y=average.estimate, mode="lines" if queries > 1 else "lines+markers", **hover),
        {"type": "scatter", "name": "one answer", "x": asked, "y": result.answers, **one, **hover},
        line("from a cache", PURPLE, "dash", x=asked[: result.cached.size], y=result.cached, **hover),
        line("true count", BLACK, "dot", x=[0, queries + 1], y=[TRUE_COUNT] * 2, line=TRUTH, **hover),
    ]
    spent = {
        "x": result.allowed + 0.5, "xref": "x", "y": 1, "yref": "y domain", "yanchor": "top", "showarrow": False,
        "xanchor": "left" if result.allowed < queries / 2 else "right", "text": "the budget is spent" if stops else "",
    }  # fmt: skip
    return figure(
        lines,
        "Averaging the noise away",
        f"{_averaging_caption(result)}; band: 90 %",
        HEIGHT,
        xaxis={"title": "answers so far", "range": [0, queries + 1]},
        yaxis={"title": "count of bad ratings (people)", "range": [TRUE_COUNT - room, TRUE_COUNT + room]},
        shapes=[fig.vline(result.allowed + 0.5, visible=stops)],
        annotations=[spent],
    )


def draw_price(result: compute.Averaging) -> Figure:
    """Above: epsilon spent, without and with a cache. Below: one answer's density without a person and with them."""
    queries, with_person = result.answers.size, TRUE_COUNT + result.sensitivity
    ends = TRUE_COUNT - 5 * result.scale, with_person + 5 * result.scale
    output = np.union1d(np.linspace(*ends, 201), [TRUE_COUNT, with_person])
    once = ([0, 1, queries], [0, result.epsilon, result.epsilon]) if result.cached.size else ([], [])
    above, below = ({**place, "hovertemplate": "%{x:.3g}: %{y:.3g}"} for place in (ABOVE, BELOW))
    lines = [
        line("no limit", VERMILLION, x=[0, queries], y=[0, queries * result.epsilon], **above),
        line("with a cache", PURPLE, "dash", x=once[0], y=once[1], **above),
        line("budget", BLACK, "dashdot", x=[0, queries + 1], y=[result.budget] * 2, line=TRUTH, **above),
        line("without the person", BLUE, x=output, y=result.density(output, 0), **below),
        line("with the person", ORANGE, "dash", x=output, y=result.density(output, result.sensitivity), **below),
    ]
    return two_plots(
        lines,
        "The price, and one answer",
        _averaging_caption(result),
        HEIGHT,
        xaxis={"title": "answers so far", "range": [0, queries + 1]},
        yaxis={"title": "total ε (pure)", "rangemode": "tozero"},
        xaxis2={"title": "noisy count (people)"},
        yaxis2={"title": "density (per person)", "rangemode": "tozero"},
    )


def _averaging_caption(result: compute.Averaging) -> str:
    return (
        f"Laplace, ε = {d(result.epsilon)} per answer (pure, add or remove)<br>"
        f"Δ = {result.sensitivity}, budget ε = {d(result.budget)}, seed {result.seed}"
    )


# ---- Delta as an area ----------------------------------------------------------------------------------------------


@panel("01")
def delta(epsilon: float, sigma: float, sensitivity: float) -> Panel:
    """The Gaussian mechanism: `result` is a `GaussianCount`."""

    def command(result: compute.GaussianCount, **values: Any) -> str:
        return python(compute.gaussian_count, **values) + _account(1 / result.mu, 1, result.delta)

    return Panel(
        "δ, drawn",
        "First, the two densities that an attacker weighs against each other; then, how much an answer betrays, and "
        "how large δ must be for each ε.",
        {
            "epsilon": number("ε of one answer", epsilon, [0.0, *decades(-2, 1)], unit=EPSILON),
            "sigma": number("noise σ", sigma, decades(-1, 2), unit="people"),
            "sensitivity": number("sensitivity Δ", sensitivity, [float(k) for k in range(1, 21)], unit="people"),
        },
        compute.gaussian_count,
        [draw_delta, draw_loss],
        words.delta,
        command,
    )


def _account(noise_multiplier: float, releases: int, delta: float) -> str:
    """A further line, where the command line can say the same of Gaussian noise; "what holds" is their epsilon."""
    options = {"z0": noise_multiplier, "epochs": releases, "delta": delta}
    return f"\n{account_command(options)}" if 0 < delta < 1 else ""


def draw_delta(result: compute.GaussianCount) -> Figure:
    """The density without the person, above e^epsilon times the one with them: the area between is delta."""
    output, raised, top = result.output, result.raised, 1.2 * float(result.density.max())
    inside = _between(output, np.minimum(raised, result.density), result.density)
    hover: dict[str, Any] = {"hovertemplate": "%{x:.4g}: %{y:.3g}"}
    lines = [
        area("δ", VERMILLION, 0.7, **inside, **hover),
        line("without", BLUE, x=output, y=result.density, **hover),
        line("with", ORANGE, "dash", x=output, y=result.density_neighbour, **hover),
        line("with, × e<sup>ε</sup>", GREEN, "dot", x=output, y=np.minimum(raised, 100 * top), **hover),
    ]
    return figure(
        lines,
        "δ as an area",
        _gaussian_caption(result),
        HEIGHT,
        xaxis={"title": "noisy count (people)", "range": output[[0, -1]]},
        yaxis={"title": "density (per person)", "range": [0, top]},
    )


def draw_loss(result: compute.GaussianCount) -> Figure:
    """Above: the privacy loss, its tail and the part of it that is delta. Below: delta for every epsilon."""
    beyond = result.loss >= result.epsilon
    loss, zero = result.loss[beyond], np.zeros(int(beyond.sum()))
    above, below = ({**place, "hovertemplate": "%{x:.3g}: %{y:.3g}"} for place in (ABOVE, BELOW))
    lines = [
        area("P[loss > ε]", SKY, 0.6, **_between(loss, zero, result.loss_density[beyond]), **above),
        area("δ", VERMILLION, 0.7, **_between(loss, zero, result.loss_excess[beyond]), **above),
        line("density", BLUE, x=result.loss, y=result.loss_density, **above),
        line("P[loss > ε]", BLUE, "dash", x=result.epsilons, y=positive(result.tails), **below),
        line("the smallest δ", VERMILLION, x=result.epsilons, y=positive(result.deltas), **below),
        {**RING, "x": [result.epsilon] * 2, "y": positive([result.tail, result.delta]), **below},
    ]
    low, high = float(result.loss[0]), float(result.loss[-1])
    powers = [min(-2, max(-12, _decade(result.deltas.min()))), 0.1]
    return two_plots(
        lines,
        "The privacy loss",
        _gaussian_caption(result),
        HEIGHT,
        xaxis={"title": "privacy loss of an outcome (nats)", "range": [low, max(high, 1.1 * result.epsilon)]},
        yaxis={"title": "density (per nat)", "rangemode": "tozero"},
        xaxis2={"title": "ε (nats)"},
        yaxis2={**fig.LOG, "title": "probability", "range": powers, "dtick": math.ceil((powers[1] - powers[0]) / 6)},
        shapes=[fig.vline(result.epsilon)],
    )


def _gaussian_caption(result: compute.GaussianCount) -> str:
    return (
        f"ε = {d(result.epsilon)} at δ = {d(result.delta)} (Gaussian DP, exact)<br>"
        f"one release with or without a person; σ = {d(result.sigma)}, Δ = {d(result.sensitivity)}"
    )


# ---- Many releases -------------------------------------------------------------------------------------------------


@panel("01")
def composition(epsilon: float, releases: int, delta: float, budget: float) -> Panel:
    """Composition: `result` is a `Composed`."""

    def command(result: compute.Composed, **values: Any) -> str:
        noise = 2**0.5 / result.epsilon
        return python(compute.composed, **values) + _account(noise, int(result.releases[-1]), result.delta)

    whole = [int(stop) for stop in decades(0, 6) if stop.is_integer()]
    return Panel(
        "Many releases",
        "First, what releases cost together, by four accounts; then, how many of them the same total pays for.",
        {
            "epsilon": number("ε of one release", epsilon, decades(-3, 1), unit=EPSILON),
            "releases": number("number of releases", releases, whole, unit="releases"),
            "delta": number("δ of the total", delta, decades(-12, -1), unit="probability"),
            "budget": number("total ε allowed", budget, decades(-1, 3), unit=EPSILON),
        },
        compute.composed,
        [draw_total, draw_allowed],
        words.composition,
        command,
    )


LOOKS = {
    SUM: (VERMILLION, "solid", "circle"),
    ADVANCED: (ORANGE, "dash", "square"),
    ZCDP: (BLUE, "dashdot", "diamond"),
    GAUSSIAN: (GREEN, "dot", "cross"),
}


def draw_total(result: compute.Composed) -> Figure:
    """Total epsilon against the number of releases, by four accounts; log scales."""
    hover: dict[str, Any] = {"hovertemplate": "%{x:,} releases: ε = %{y:.3g}"}
    mode, most = "lines" if result.releases.size > 1 else "markers", int(result.releases[-1])
    lines = [
        line(name, color, dash, x=result.releases, y=positive(result.total[name]), mode=mode, **hover)
        for name, (color, dash, _) in LOOKS.items()
    ]
    allowed = {"mode": "lines+text", "text": ["allowed"], "textposition": "top right", "cliponaxis": False}
    over = {"x": [1, 10 * most], "y": [result.budget] * 2, "showlegend": False}
    lines.append(line("", BLACK, "dot", line=TRUTH, **allowed, **over, **hover))
    far = max(1.0, math.log10(most) + 0.05)
    top = max(result.budget, *(total for name, total in result.last.items() if name != ADVANCED))
    return figure(
        lines,
        "The cost of many releases",
        f"ε = {d(result.epsilon)} per release (pure);<br>the total at δ = {d(result.delta)}, the plain sum at 0",
        HEIGHT,
        xaxis={**fig.LOG, "title": "releases about the same data", "range": [-0.03, far]},
        yaxis={**fig.LOG, "title": "total ε (nats)", "range": [_decade(result.epsilon) - 0.05, _decade(top) + 1]},
    )


def draw_allowed(result: compute.Composed) -> Figure:
    """How many releases a total epsilon pays for, by the four accounts."""
    allowed = [result.allowed[name] for name in LOOKS]
    colors, _, symbols = zip(*LOOKS.values(), strict=True)
    marks = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [max(count, 0.5) for count in allowed],  # none has no place on a log axis
        "y": list(LOOKS),
        "text": list(map(counted, allowed)),
        "textposition": "top center",
        "showlegend": False,
        "cliponaxis": False,
        "marker": {"color": list(colors), "symbol": list(symbols), "size": 15},
        "hovertemplate": "%{y}: %{text} releases",
    }
    most = _decade(max(allowed))
    order = {"categoryorder": "array", "categoryarray": list(LOOKS)[::-1], "range": [-0.6, 3.6]}
    broken = {"tickvals": list(LOOKS), "ticktext": [name.replace(" ", "<br>", 1) for name in LOOKS]}
    span = {"range": [-0.5, max(2.0, most + 1.3)], "dtick": math.ceil(most / 5) or 1}
    return figure(
        [marks],
        "What a total ε pays for",
        f"total ε = {d(result.budget)} at δ = {d(result.delta)} (the plain sum at 0);<br>"
        f"ε = {d(result.epsilon)} per release (pure)",
        HEIGHT,
        margin={"t": 90},
        xaxis={**fig.LOG, "title": "releases that are allowed", **span},
        yaxis={"title": "account", **order, **broken},
    )


# ---- Drawn once ----------------------------------------------------------------------------------------------------


def choices_figure(result: compute.Choices) -> go.Figure:
    """Bars: chances by the exponential mechanism. Marks: how often noisy max chose the label."""
    labels = [f"{label}<br>{votes} votes" for label, votes in result.votes.items()]
    bars, marks = [], []
    for row, epsilon in enumerate(result.epsilons):
        color, shape = (SKY, ORANGE, GREEN)[row % 3], ("", "/", "x")[row % 3]
        bars.append(_bar(f"ε = {d(epsilon)} per choice", color, shape, labels, 100 * result.exponential[row]))
        marks.append(
            points(
                "noisy max, Laplace", BLACK, "diamond-open", 10, x=labels, y=100 * result.noisy_max[row],
                marker={"line": {"width": 2}}, showlegend=row == 0, cliponaxis=False,
            )
        )  # fmt: skip
    grouped = [{**trace, "offsetgroup": row} for traces in (bars, marks) for row, trace in enumerate(traces)]
    return go.Figure(
        figure(
            grouped,
            "Who wins a vote with noise?",
            "ε pure, one vote replaced; bars: exponential mechanism, exact;<br>"
            f"marks: noisy max, share of {result.draws:,} draws, seed {result.seed}",
            420,
            scattermode="group",
            xaxis={"title": "label, and how many of the voters chose it"},
            yaxis={"title": "chance of winning (%)", "range": [0, 104]},
        )
    )


def linkage_figure(table: LinkageTable, seed: int) -> go.Figure:
    """Shares of the patients that are singled out or betrayed, by k."""
    shares = {
        ("singled out by the voter list", BLUE, ""): [row.identified for row in table.rows],
        ("secret betrayed by the voter list", ORANGE, "/"): [row.disclosed for row in table.rows],
        ("singled out, month of visit known", VERMILLION, "x"): [row.identified_with_month for row in table.rows],
    }
    ks = ["as it is" if row.k == 1 else f"k = {row.k}" for row in table.rows]
    bars = [
        _bar(*look, ks, [100 * v for v in values], text=[f"{100 * v:.0f}" for v in values], textposition="outside")
        for look, values in shares.items()
    ]
    return go.Figure(
        figure(
            bars,
            "Who is found in a table without names?",
            f"k-anonymity has no ε: no guarantee; synthetic people, seed {seed}",
            420,
            xaxis={"title": "released table"},
            yaxis={"title": "share of the patients (%)", "range": [0, 109]},
        )
    )


def local_figure(result: LocalAndGlobal) -> go.Figure:
    """Standard error of a count by the number of people: local DP against global DP."""
    looks, lines = ((SKY, "circle"), (ORANGE, "square"), (GREEN, "diamond")), []
    for column, epsilon in enumerate(result.epsilon):
        color, symbol = looks[column % 3]
        told, ends = f"ε = {d(float(epsilon))}", result.people[[0, -1]]
        lines += [
            line(f"local, {told}", color, symbol=symbol, x=result.people, y=result.local[:, column]),
            line(f"global, {told}", color, "dash", symbol=f"{symbol}-open", x=ends, y=[result.central[column]] * 2),
        ]
    return go.Figure(
        figure(
            [{**one, "hovertemplate": "%{x:,} people: ±%{y:.3g}"} for one in lines],
            "A count of people, local or global",
            "ε of one answer, pure, one answer replaced; randomised response, Laplace",
            460,
            xaxis={**fig.LOG, "title": "people asked"},
            yaxis={**fig.LOG, "title": "standard error of the count (people)"},
        )
    )


def side_by_side(table: LinkageTable, rows: int = 5) -> str:
    """The first rows of the patients' table, as it is and anonymised, in plain text."""
    pairs = zip(table.shown[:rows], table.shown_k[:rows], strict=True)
    lines = [f"{'  '.join(before):<16}{'  '.join(after)}" for before, after in pairs]
    return "\n".join([f"{'as it is':<16}{table.rows[-1].k}-anonymous", *lines])


def verdicts(evidence: Iterable[Evidence]) -> str:
    """Claims and what became of them, as a table in Markdown."""
    rows = [f"| {e.id} | {e.about.says} ({e.about.source}) | **{e.verdict}** | {e.said} |" for e in evidence]
    return "\n".join(["| | The thesis says | Verdict | Measured |", "|---|---|---|---|", *rows])


# ---- Small parts ---------------------------------------------------------------------------------------------------


def _bar(name: str, color: str, shape: str, x: list[str], y: Any, **more: Any) -> fig.Trace:
    """Bars of one colour and hatch."""
    look = {"color": color, "pattern": {**HATCH, "shape": shape}}
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": look, **more}


def _band(x: NDArray, middle: Array, half: Array, **more: Any) -> fig.Trace:
    """middle +- half."""
    return area("", SKY, 0.45, **_between(x, middle - half, middle + half), hoverinfo="skip", showlegend=False, **more)


def _between(x: NDArray, low: Array, high: Array) -> dict[str, NDArray]:
    """The outline of what lies between two lines, for `area`."""
    return {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([low, high[::-1]])}


def _decade(value: float) -> int:
    """The exponent of the power of ten below a value: an axis that stands still while a slider moves a little."""
    return math.floor(math.log10(value)) if value > 0 and math.isfinite(value) else -12
