"""The panels of ``01_coins_to_composition.ipynb``: a coin, one question again and again, delta, many releases."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import decades, number, seed_of
from edp_lab.course.kit.figure import ABOVE, BELOW, Figure, area, axis, between, line, logs, points, positive
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Html, Words, account_command, html_table, python
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb01_coins import compute
from edp_lab.course.nb01_coins.compute import ADVANCED, COUNTABLE, GAUSSIAN, HALF, SUM, TRUE_COUNT, ZCDP, belief
from edp_lab.privacy.foundations import truth_probability
from edp_lab.reproduce.thesis.thesis_foundations import LinkageTable, LocalAndGlobal

if TYPE_CHECKING:  # torch takes seconds, and this notebook has no use for it
    from edp_lab.reproduce.claims import Evidence


def counted(releases: int) -> str:
    """A number of releases, as far as it is counted."""
    return f"{releases:,}" if releases < COUNTABLE else "a billion or more"


names = {"belief": belief, "counted": counted, "exp": compute.exp, "truth_probability": truth_probability}
words = Words(__file__, half=HALF, truth=TRUE_COUNT, **names)
figure, two_plots = partial(fig.figure, height=540), partial(fig.two_plots, height=540)
EPSILON = "nats"
BAND: dict[str, Any] = {"color": SKY, "opacity": 0.45, "hoverinfo": "skip", "showlegend": False}


# ---- A coin for everyone -------------------------------------------------------------------------------------------


@panel("01")
def coin(epsilon: float, people: int, share: float, seed: int) -> Panel:
    """Randomised response: `result` is a `Poll`."""
    crowds = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000]
    return Panel(
        "A coin for everyone",
        "First, what people say once a coin has decided whether they tell the truth; then, what this gives away about "
        "all of them, and about one.",
        compute.poll,
        [draw_people, draw_poll],
        words.coin,
        epsilon=number("ε of one answer", epsilon, decades(-2, 1), unit=EPSILON),
        people=number("number of people", people, crowds, unit="people"),
        share=number("share of yes", share, [k / 100 for k in range(101)], unit="of 1"),
        seed=seed_of(seed),
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
    marks = []
    for look, (answer, honest) in SAID.items():
        who = np.flatnonzero((said == answer) & ((said == truth) == honest))
        marks.append(points(*look, 11, edge=2.5, x=who % 10, y=who // 10))
    ticks: dict[str, Any] = {"showgrid": False, "tickvals": list(range(0, 10, 3))}
    return figure(
        f"What the first {SHOWN} say",
        words.poll_caption(result) + "the collector cannot see who lies",
        *marks,
        hover="person %{y}%{x}",
        xaxis=axis("person: last digit of the number", [-0.6, 9.6], **ticks),
        yaxis=axis("person: tens of the number", [9.6, -0.6], **ticks),
    )


def draw_poll(result: compute.Poll) -> Figure:
    """Above: the estimate as more are asked. Below: what one response does to a belief about that person."""
    asked, estimate, share = result.asked, 100 * result.estimate, 100 * result.share
    half = 100 * HALF * result.standard_error
    before, here = np.linspace(0, 1, 101), round(share)
    yes, no = (100 * belief(before, loss) for loss in (result.epsilon, -result.epsilon))
    same: dict[str, Any] = {"x": [0, 100], "y": [0, 100], "hoverinfo": "skip", "showlegend": False}
    below: dict[str, Any] = {"x": 100 * before, **BELOW}
    return two_plots(
        "All of them, and one",
        words.poll_caption(result) + "band: 90 % interval of the estimate",
        area("", **BAND, **between(asked, estimate - half, estimate + half), **ABOVE),
        line("estimate", BLUE, x=asked, y=estimate, **ABOVE),
        line("as heard", ORANGE, "dash", x=asked, y=100 * result.yes, **ABOVE),
        line("truth", BLACK, "dot", width=1.5, x=asked[[0, -1]], y=[share] * 2, **ABOVE),
        line("after a yes", VERMILLION, y=yes, **below),
        line("after a no", BLUE, "dash", y=no, **below),
        line("", BLACK, "dot", width=1.5, **same, **BELOW),
        fig.ring(10, x=[here] * 2, y=np.array([yes[here], no[here]]), **BELOW),
        hover="%{x:.3g}: %{y:.3g} %",
        axes=(
            (
                axis("people asked so far", np.log10(asked[[0, -1]]), type="log", dtick=1),
                axis("share of yes (%)", [-20, 120]),
            ),
            (axis("belief before the response (%)", [0, 100]), axis("and after it (%)", [-3, 103])),
        ),
    )


# ---- One question, asked again and again ---------------------------------------------------------------------------


@panel("01")
def averaging(epsilon: float, sensitivity: int, queries: int, budget: float, seed: int) -> Panel:
    """The averaging attack on Laplace noise: `result` is an `Averaging`."""
    return Panel(
        "One question, again and again",
        "First, noisy answers to one question and their average; then, what they cost, and how alike one answer is "
        "with and without a person.",
        compute.averaging,
        [draw_answers, draw_price],
        words.averaging,
        epsilon=number("ε of one answer", epsilon, decades(-2, 1), unit=EPSILON),
        sensitivity=number("sensitivity Δ", sensitivity, range(1, 21), unit="records/person"),
        queries=number("number of queries", queries, [1, 2, 5, 10, 20, 50, 100, 200, 500], unit="answers"),
        budget=number("budget", budget, decades(-1, 3), unit=EPSILON),
        seed=seed_of(seed),
    )


def draw_answers(result: compute.Averaging) -> Figure:
    """Every answer, and what averaging makes of them; the line is where a budget stops it."""
    queries, stop, room = result.answers.size, result.allowed + 0.5, 6 * result.scale
    asked, (mean, half), stops = np.arange(1, queries + 1), result.average, result.allowed < queries
    side = "left" if result.allowed < queries / 2 else "right"
    over: dict[str, Any] = {"x": stop, "xref": "x", "xanchor": side, "y": 1, "yref": "y domain", "yanchor": "top"}
    return figure(
        "Averaging the noise away",
        words.averaging_caption(result) + "; band: 90 %",
        area("", **BAND, **between(asked, mean - half, mean + half)),
        line("average", BLUE, x=asked, y=mean, mode="lines" if queries > 1 else "lines+markers"),
        points("one answer", ORANGE, "circle-open", 7, edge=None, x=asked, y=result.answers),
        line("from a cache", PURPLE, "dash", x=asked[: result.cached.size], y=result.cached),
        line("true count", BLACK, "dot", width=1.5, x=[0, queries + 1], y=[TRUE_COUNT] * 2),
        fig.vline(stop, visible=stops),
        fig.note("the budget is spent" if stops else "", **over),
        hover="answer %{x}: %{y:.3g}",
        xaxis=axis("answers so far", [0, queries + 1]),
        yaxis=axis("count of bad ratings (people)", [TRUE_COUNT - room, TRUE_COUNT + room]),
    )


def draw_price(result: compute.Averaging) -> Figure:
    """Above: epsilon spent, without and with a cache. Below: one answer's density without a person and with them."""
    queries, with_person = result.answers.size, TRUE_COUNT + result.sensitivity
    ends = TRUE_COUNT - 5 * result.scale, with_person + 5 * result.scale
    output = np.union1d(np.linspace(*ends, 201), [TRUE_COUNT, with_person])
    once = ([0, 1, queries], [0, result.epsilon, result.epsilon]) if result.cached.size else ([], [])
    return two_plots(
        "The price, and one answer",
        words.averaging_caption(result),
        line("no limit", VERMILLION, x=[0, queries], y=[0, queries * result.epsilon], **ABOVE),
        line("with a cache", PURPLE, "dash", x=once[0], y=once[1], **ABOVE),
        line("budget", BLACK, "dashdot", width=1.5, x=[0, queries + 1], y=[result.budget] * 2, **ABOVE),
        line("without the person", BLUE, x=output, y=result.density(output, 0), **BELOW),
        line("with the person", ORANGE, "dash", x=output, y=result.density(output, result.sensitivity), **BELOW),
        hover="%{x:.3g}: %{y:.3g}",
        axes=(
            (axis("answers so far", [0, queries + 1]), axis("total ε (pure)", rangemode="tozero")),
            (axis("noisy count (people)"), axis("density (per person)", rangemode="tozero")),
        ),
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
        compute.gaussian_count,
        [draw_delta, draw_loss],
        words.delta,
        command,
        epsilon=number("ε of one answer", epsilon, [0.0, *decades(-2, 1)], unit=EPSILON),
        sigma=number("noise σ", sigma, decades(-1, 2), unit="people"),
        sensitivity=number("sensitivity Δ", sensitivity, [float(k) for k in range(1, 21)], unit="people"),
    )


def _account(noise_multiplier: float, releases: int, delta: float) -> str:
    """A further line, where the command line can say the same of Gaussian noise; "what holds" is their epsilon."""
    options = {"z0": noise_multiplier, "epochs": releases, "delta": delta}
    return f"\n{account_command(options)}" if 0 < delta < 1 else ""


def draw_delta(result: compute.GaussianCount) -> Figure:
    """The density without the person, above e^epsilon times the one with them: the area between is delta."""
    output, raised, top = result.output, result.raised, 1.2 * float(result.density.max())
    return figure(
        "δ as an area",
        words.gaussian_caption(result),
        area("δ", VERMILLION, 0.7, **between(output, np.minimum(raised, result.density), result.density)),
        line("without", BLUE, x=output, y=result.density),
        line("with", ORANGE, "dash", x=output, y=result.density_neighbour),
        line(Html("with, × e<sup>ε</sup>"), GREEN, "dot", x=output, y=np.minimum(raised, 100 * top)),
        hover="%{x:.4g}: %{y:.3g}",
        xaxis=axis("noisy count (people)", output[[0, -1]]),
        yaxis=axis("density (per person)", [0, top]),
    )


def draw_loss(result: compute.GaussianCount) -> Figure:
    """Above: the privacy loss, its tail and the part of it that is delta. Below: delta for every epsilon."""
    beyond = result.loss >= result.epsilon
    loss, zero = result.loss[beyond], np.zeros(int(beyond.sum()))
    span = [float(result.loss[0]), max(float(result.loss[-1]), 1.1 * result.epsilon)]
    powers = [min(-2, max(-12, _decade(result.deltas.min()))), 0.1]
    return two_plots(
        "The privacy loss",
        words.gaussian_caption(result),
        area("P[loss > ε]", SKY, 0.6, **between(loss, zero, result.loss_density[beyond]), **ABOVE),
        area("δ", VERMILLION, 0.7, **between(loss, zero, result.loss_excess[beyond]), **ABOVE),
        line("density", BLUE, x=result.loss, y=result.loss_density, **ABOVE),
        line("P[loss > ε]", BLUE, "dash", x=result.epsilons, y=positive(result.tails), **BELOW),
        line("the smallest δ", VERMILLION, x=result.epsilons, y=positive(result.deltas), **BELOW),
        fig.ring(10, x=[result.epsilon] * 2, y=positive([result.tail, result.delta]), **BELOW),
        fig.vline(result.epsilon),
        hover="%{x:.3g}: %{y:.3g}",
        axes=(
            (axis("privacy loss of an outcome (nats)", span), axis("density (per nat)", rangemode="tozero")),
            (axis("ε (nats)"), logs("probability", powers, dtick=math.ceil((powers[1] - powers[0]) / 6))),
        ),
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
        compute.composed,
        [draw_total, draw_allowed],
        words.composition,
        command,
        epsilon=number("ε of one release", epsilon, decades(-3, 1), unit=EPSILON),
        releases=number("number of releases", releases, whole, unit="releases"),
        delta=number("δ of the total", delta, decades(-12, -1), unit="probability"),
        budget=number("total ε allowed", budget, decades(-1, 3), unit=EPSILON),
    )


LOOKS = {
    SUM: (VERMILLION, "solid", "circle"),
    ADVANCED: (ORANGE, "dash", "square"),
    ZCDP: (BLUE, "dashdot", "diamond"),
    GAUSSIAN: (GREEN, "dot", "cross"),
}


def draw_total(result: compute.Composed) -> Figure:
    """Total epsilon against the number of releases, by four accounts; log scales."""
    mode, most = "lines" if result.releases.size > 1 else "markers", int(result.releases[-1])
    allowed = {"mode": "lines+text", "text": ["allowed"], "textposition": "top right", "cliponaxis": False}
    over = {"x": [1, 10 * most], "y": [result.budget] * 2, "showlegend": False}
    top = max(result.budget, *(total for name, total in result.last.items() if name != ADVANCED))
    return figure(
        "The cost of many releases",
        f"ε = {d(result.epsilon)} per release (pure);\nthe total at δ = {d(result.delta)}, the plain sum at 0",
        *(
            line(name, color, dash, x=result.releases, y=positive(result.total[name]), mode=mode)
            for name, (color, dash, _) in LOOKS.items()
        ),
        line("", BLACK, "dot", width=1.5, **allowed, **over),
        hover="%{x:,} releases: ε = %{y:.3g}",
        xaxis=logs("releases about the same data", [-0.03, max(1.0, math.log10(most) + 0.05)]),
        yaxis=logs("total ε (nats)", [_decade(result.epsilon) - 0.05, _decade(top) + 1]),
    )


def draw_allowed(result: compute.Composed) -> Figure:
    """How many releases a total epsilon pays for, by the four accounts."""
    allowed = [result.allowed[name] for name in LOOKS]
    colors, _, symbols = zip(*LOOKS.values(), strict=True)
    look = {"marker": {"color": list(colors), "symbol": list(symbols), "size": 15}, "mode": "markers+text"}
    marks = {
        "type": "scatter", **look, "x": [max(count, 0.5) for count in allowed],  # none has no place on a log axis
        "y": list(LOOKS), "text": list(map(counted, allowed)), "textposition": "top center", "showlegend": False,
        "cliponaxis": False,
    }  # fmt: skip
    most = _decade(max(allowed))
    order = {"categoryorder": "array", "categoryarray": list(LOOKS)[::-1]}
    broken = {"tickvals": list(LOOKS), "ticktext": [name.replace(" ", "\n", 1) for name in LOOKS]}
    return figure(
        "What a total ε pays for",
        f"total ε = {d(result.budget)} at δ = {d(result.delta)} (the plain sum at 0);\n"
        f"ε = {d(result.epsilon)} per release (pure)",
        marks,
        top=90,
        hover="%{y}: %{text} releases",
        xaxis=logs("releases that are allowed", [-0.5, max(2.0, most + 1.3)], dtick=math.ceil(most / 5) or 1),
        yaxis=axis("account", [-0.6, 3.6], **order, **broken),
    )


# ---- Drawn once ----------------------------------------------------------------------------------------------------


def choices_figure(result: compute.Choices) -> fig.Still:
    """Bars: chances by the exponential mechanism. Marks: how often noisy max chose the label."""
    labels = [f"{label}\n{votes} votes" for label, votes in result.votes.items()]
    bars, marks = [], []
    for row, epsilon in enumerate(result.epsilons):
        color, hatch = (SKY, ORANGE, GREEN)[row % 3], ("", "/", "x")[row % 3]
        told, on = f"ε = {d(epsilon)} per choice", {"x": labels, "offsetgroup": row}
        bars.append(fig.bar(told, color, hatch, y=100 * result.exponential[row], **on))
        look: dict[str, Any] = {"edge": 2, "showlegend": row == 0, "cliponaxis": False, **on}
        marks.append(points("noisy max, Laplace", BLACK, "diamond-open", 10, y=100 * result.noisy_max[row], **look))
    return fig.still(
        "Who wins a vote with noise?",
        "ε pure, one vote replaced; bars: exponential mechanism, exact;\n"
        f"marks: noisy max, share of {result.draws:,} draws, seed {result.seed}",
        *bars,
        *marks,
        height=420,
        scattermode="group",
        xaxis=axis("label, and how many of the voters chose it"),
        yaxis=axis("chance of winning (%)", [0, 104]),
    )


def linkage_figure(table: LinkageTable, seed: int) -> fig.Still:
    """Shares of the patients that are singled out or betrayed, by k."""
    shares = {
        ("singled out by the voter list", BLUE, ""): [100 * row.identified for row in table.rows],
        ("secret betrayed by the voter list", ORANGE, "/"): [100 * row.disclosed for row in table.rows],
        ("singled out, month of visit known", VERMILLION, "x"): [100 * row.identified_with_month for row in table.rows],
    }
    ks = ["as it is" if row.k == 1 else f"k = {row.k}" for row in table.rows]
    return fig.still(
        "Who is found in a table without names?",
        f"k-anonymity has no ε: no guarantee; synthetic people, seed {seed}",
        *[
            fig.bar(*look, x=ks, y=y, text=[f"{v:.0f}" for v in y], textposition="outside")
            for look, y in shares.items()
        ],
        height=420,
        xaxis=axis("released table"),
        yaxis=axis("share of the patients (%)", [0, 109]),
    )


def local_figure(result: LocalAndGlobal) -> fig.Still:
    """Standard error of a count by the number of people: local DP against global DP."""
    looks, lines = ((SKY, "circle"), (ORANGE, "square"), (GREEN, "diamond")), []
    for column, epsilon in enumerate(result.epsilon):
        color, symbol = looks[column % 3]
        told, ends = f"ε = {d(float(epsilon))}", result.people[[0, -1]]
        lines += [
            line(f"local, {told}", color, symbol=symbol, x=result.people, y=result.local[:, column]),
            line(f"global, {told}", color, "dash", symbol=f"{symbol}-open", x=ends, y=[result.central[column]] * 2),
        ]
    return fig.still(
        "A count of people, local or global",
        "ε of one answer, pure, one answer replaced; randomised response, Laplace",
        *lines,
        height=460,
        hover="%{x:,} people: ±%{y:.3g}",
        xaxis=logs("people asked"),
        yaxis=logs("standard error of the count (people)"),
    )


def side_by_side(table: LinkageTable, rows: int = 5) -> str:
    """The first rows of the patients' table, as it is and anonymised, in plain text."""
    pairs = zip(table.shown[:rows], table.shown_k[:rows], strict=True)
    lines = [f"{'  '.join(before):<16}{'  '.join(after)}" for before, after in pairs]
    return "\n".join([f"{'as it is':<16}{table.rows[-1].k}-anonymous", *lines])


def verdicts(evidence: Iterable[Evidence]) -> Html:
    """Claims and what became of them."""
    rows = [(e.id, f"{e.about.says} ({e.about.source})", fig.bold(e.verdict), e.said) for e in evidence]
    return html_table([("", "The thesis says", "Verdict", "Measured"), *rows])


def _decade(value: float) -> int:
    """The exponent of the power of ten below a value: an axis that stands still while a slider moves a little."""
    return math.floor(math.log10(value)) if value > 0 and math.isfinite(value) else -12
