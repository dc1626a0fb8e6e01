"""The panels of ``01_coins_to_composition.ipynb``: a coin, delta, many releases."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import decades, number, seed_of
from edp_lab.course.kit.figure import Figure, area, axis, between, line, logs, points, positive
from edp_lab.course.kit.panel import Panel, Tile, claimed, holds, panel
from edp_lab.course.kit.text import Html, Words, account_command, at_most, count, percent, short
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.course.nb01_coins import compute
from edp_lab.course.nb01_coins.chapter2 import LinkageTable, LocalAndGlobal
from edp_lab.course.nb01_coins.compute import ADVANCED, COUNTABLE, GAUSSIAN, HALF, SUM, ZCDP, belief
from edp_lab.privacy.foundations import truth_probability


def counted(releases: int) -> str:
    """A number of releases, as far as it is counted."""
    return f"{releases:,}" if releases < COUNTABLE else "a billion or more"


TINY = "below 10⁻³⁰⁷"  # where a float is 0, and the number is not
names = {"belief": belief, "counted": counted, "exp": compute.exp, "truth_probability": truth_probability}
words = Words(__file__, tiny=TINY, **names)
figure = partial(fig.figure, height=380)
EPSILON = "nats"
BAND: dict[str, Any] = {"color": OTHER, "opacity": 0.45, "hoverinfo": "skip", "showlegend": False}


# ---- A coin for everyone -------------------------------------------------------------------------------------------


@panel("01")
def coin(epsilon: float = 1.1, people: int = 300, share: float = 0.3, seed: int = 0) -> Panel:
    """Randomised response: `result` is a `Poll`."""
    crowds = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000]
    return Panel(
        "A coin for everyone",
        "What people say after a secret coin, and the share of yes that the collector works out from it.",
        compute.poll,
        [draw_people, draw_poll],
        words.coin,
        tiles=tell_coin,
        epsilon=number("ε of one answer", epsilon, decades(-2, 1), unit=EPSILON),
        people=number("number of people", people, crowds, unit="people"),
        share=number("share of yes", share, [k / 100 for k in range(101)], unit="of 1"),
        seed=seed_of(seed),
    )


def tell_coin(result: compute.Poll) -> tuple[Tile, Tile, str]:
    """What a yes says about one person, and what all answers say about all."""
    share, (estimate, error) = 100 * result.share, (100 * result.estimate[-1], 100 * result.standard_error[-1])
    after = f"{d(share)} % → {percent(float(belief(result.share, result.epsilon)))}"
    one = Tile("one who says yes", after, "belief before and after")
    spread, at = (f" ± {short(HALF * error)}", ", at 90 % confidence") if error else ("", "")  # 0: all said the same
    everyone = holds(f"{d(estimate)} %{spread}", f"estimated yes{at}; {d(share)} % is true", "all of them")
    first = min(SHOWN, result.truth.size)
    lies = int((result.truth != result.responses)[:first].sum())
    told = f"Of the first {first} people {lies} {'lies' if lies == 1 else 'lie'}, and nobody can see who."
    return one, everyone, f"{told} The estimate is off by {short(abs(estimate - share))} percentage points."


SHOWN = 100  # people in the picture of a poll
SAID = {
    ("yes, true", PLAIN, "circle"): (1, True),
    ("no, true", PLAIN, "circle-open"): (0, True),
    ("yes, a lie", NOISE, "diamond"): (1, False),
    ("no, a lie", NOISE, "diamond-open"): (0, False),
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
        *marks,
        hover="person %{y}%{x}",
        xaxis=axis("person: last digit", [-0.6, 9.6], **ticks),
        yaxis=axis("person: tens", [9.6, -0.6], **ticks),
    )


def draw_poll(result: compute.Poll) -> Figure:
    """The estimate as more are asked, in its 90 % interval."""
    asked, estimate = result.asked, 100 * result.estimate
    half = 100 * HALF * result.standard_error
    return figure(
        "What the collector works out",
        area("", **BAND, **between(asked, estimate - half, estimate + half)),
        line("estimate", INK, x=asked, y=estimate),
        line("as heard", CLAIMED, "dash", x=asked, y=100 * result.yes),
        line("truth", HOLDS, "dot", x=asked[[0, -1]], y=[100 * result.share] * 2),
        hover="%{x:,} people: %{y:.3g} %",
        xaxis=axis("people asked so far", np.log10(asked[[0, -1]]), type="log", dtick=1),
        yaxis=axis("share of yes (%)", [-20, 120]),
    )


# ---- Delta as an area ----------------------------------------------------------------------------------------------


@panel("01")
def delta(epsilon: float = 1.1, sigma: float = 1.41, sensitivity: float = 1.0) -> Panel:
    """The Gaussian mechanism: `result` is a `GaussianCount`."""

    return Panel(
        "δ, drawn",
        "How likely each noisy count is with a person and without, and the δ that goes with every ε.",
        compute.gaussian_count,
        [draw_delta, draw_deltas],
        words.delta,
        account=lambda result: _account(1 / result.mu, 1, result.delta),
        tiles=tell_delta,
        epsilon=number("ε of one answer", epsilon, [0.0, *decades(-2, 1)], unit=EPSILON),
        sigma=number("noise σ", sigma, decades(-1, 2), unit="people"),
        sensitivity=number("sensitivity Δ", sensitivity, [float(k) for k in range(1, 21)], unit="people"),
    )


def tell_delta(result: compute.GaussianCount) -> tuple[Tile, Tile, str]:
    """How often an outcome betrays more than epsilon, which the thesis takes for delta, and delta."""
    at = f"at ε = {d(result.epsilon)}"
    tail, least = d(result.tail) if result.tail else TINY, at_most(result.delta) if result.delta else TINY
    both = claimed(tail, at, "chance of a loss beyond ε"), holds(least, at, "smallest δ")
    if result.delta == 0:
        return *both, "Beyond this ε so little is left that no float can hold δ."
    times = short(result.tail / result.delta)
    told = "The coloured area is δ" if result.delta > 1e-3 else "The area δ is too small to be seen"
    return *both, f"{told}; the chance of a loss beyond ε is {times} times as large."


def _account(noise_multiplier: float, releases: int, delta: float) -> str:
    """Where the command line can say the same of Gaussian noise: "what holds" is their epsilon."""
    options = {"z0": noise_multiplier, "epochs": releases, "delta": delta}
    return account_command(options) if 0 < delta < 1 else ""


def draw_delta(result: compute.GaussianCount) -> Figure:
    """The density without the person, above e^epsilon times the one with them: the area between is delta."""
    output, raised, top = result.output, result.raised, 1.2 * float(result.density.max())
    return figure(
        "δ as an area",
        area("δ", PRINTED, 0.7, **between(output, np.minimum(raised, result.density), result.density)),
        line("without", PLAIN, x=output, y=result.density),
        line("with", NOISE, "dash", x=output, y=result.density_neighbour),
        line(Html("e<sup>ε</sup> × with"), HOLDS, "dot", x=output, y=np.minimum(raised, 100 * top)),
        hover="%{x:.4g}: %{y:.3g}",
        xaxis=axis("noisy count (people)", output[[0, -1]]),
        yaxis=axis("density (per person)", [0, top]),
    )


def draw_deltas(result: compute.GaussianCount) -> Figure:
    """For every epsilon, delta and the chance of a larger loss."""
    low = min(-2, max(-12, _decade(result.deltas.min())))
    return figure(
        "δ for every ε",
        line("loss beyond ε", CLAIMED, "dash", x=result.epsilons, y=positive(result.tails)),
        line("smallest δ", HOLDS, x=result.epsilons, y=positive(result.deltas)),
        fig.ring(10, x=[result.epsilon] * 2, y=positive([result.tail, result.delta])),
        fig.vline(result.epsilon),
        hover="ε ≈ %{x:.3g}: %{y:.3g}",
        xaxis=axis("ε (nats)"),
        yaxis=logs("probability", [low, 0.1], dtick=math.ceil((0.1 - low) / 6)),
    )


# ---- Many releases -------------------------------------------------------------------------------------------------


@panel("01")
def composition(epsilon: float = 0.1, releases: int = 1000, delta: float = 1e-5, budget: float = 5.0) -> Panel:
    """Composition: `result` is a `Composed`."""

    whole = [int(stop) for stop in decades(0, 6) if stop.is_integer()]
    return Panel(
        "Many releases",
        "What many releases cost together by four accounts, and how many of them one total pays for.",
        compute.composed,
        [draw_total, draw_allowed],
        words.composition,
        account=lambda result: _account(2**0.5 / result.epsilon, int(result.releases[-1]), result.delta),
        tiles=tell_composition,
        epsilon=number("ε of one release", epsilon, decades(-3, 1), unit=EPSILON),
        releases=number("number of releases", releases, whole, unit="releases"),
        delta=number("δ of the total", delta, decades(-12, -1), unit="probability"),
        budget=number("total ε allowed", budget, decades(-1, 3), unit=EPSILON),
    )


LOOKS = {
    SUM: (PLAIN, "solid", "circle"),
    ADVANCED: (OTHER, "dash", "square"),
    ZCDP: (HOLDS, "dashdot", "diamond"),
    GAUSSIAN: (NOISE, "dot", "cross"),
}


def tell_composition(result: compute.Composed) -> tuple[Tile, Tile, str]:
    """The plain sum, and the least of the totals that hold for the same releases."""
    best = min((SUM, ADVANCED, ZCDP), key=result.last.__getitem__)
    plain = Tile(SUM, f"ε = {at_most(result.last[SUM])}", "δ = 0")
    at = f"{best}, δ = {0 if best == SUM else short(result.delta)}"
    least = holds(f"ε = {at_most(result.last[best])}", at, "least of three")
    many = count(int(result.releases[-1]), "release")
    if best == SUM:
        return plain, least, f"For {many} neither advanced composition nor zCDP is below the plain sum."
    times = short(result.last[SUM] / result.last[best])
    return plain, least, f"The plain sum of {many} is {times} times the total by {best}."


def draw_total(result: compute.Composed) -> Figure:
    """Total epsilon against the number of releases, by four accounts; log scales."""
    mode, most = "lines" if result.releases.size > 1 else "markers", int(result.releases[-1])
    right = max(1.0, math.log10(most) + 0.05)
    allowed = {"mode": "lines+text", "text": ["", "allowed"], "textposition": "bottom left", "cliponaxis": False}
    over = {"x": [1, 10**right], "y": [result.budget] * 2, "showlegend": False}
    top = max(result.budget, *(total for name, total in result.last.items() if name != ADVANCED))
    return figure(
        "The cost of many releases",
        *(
            line(name, color, dash, x=result.releases, y=positive(result.total[name]), mode=mode)
            for name, (color, dash, _) in LOOKS.items()
        ),
        line("", INK, "dot", width=1.5, **allowed, **over),
        hover="%{x:,} releases: ε ≈ %{y:.3g}",
        xaxis=logs("releases about the same data", [-0.03, right]),
        yaxis=logs("total ε (nats)", [_decade(result.epsilon) - 0.05, _decade(top) + 1]),
    )


def draw_allowed(result: compute.Composed) -> Figure:
    """How many releases a total epsilon pays for, by the four accounts."""
    allowed = [result.allowed[name] for name in LOOKS]
    colors, _, symbols = zip(*LOOKS.values(), strict=True)
    look = {"marker": {"color": list(colors), "symbol": list(symbols), "size": 15}, "mode": "markers+text"}
    marks = {
        "type": "scatter", **look, "x": [max(releases, 0.5) for releases in allowed],  # none has no place on a log axis
        "y": list(LOOKS), "text": list(map(counted, allowed)), "textposition": "top center", "showlegend": False,
        "cliponaxis": False,
    }  # fmt: skip
    most = _decade(max(allowed))
    order = {"categoryorder": "array", "categoryarray": list(LOOKS)[::-1]}
    broken = {"tickvals": list(LOOKS), "ticktext": [name.replace(" ", "\n", 1) for name in LOOKS]}
    return figure(
        f"What a total of ε = {d(result.budget)} pays for",
        marks,
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
        color, hatch = (OTHER, PLAIN, "#444")[row % 3], ("", "/", "x")[row % 3]
        told, on = f"ε = {d(epsilon)} per choice", {"x": labels, "offsetgroup": row}
        bars.append(fig.bar(told, color, hatch, y=100 * result.exponential[row], **on))
        look: dict[str, Any] = {"edge": 2, "showlegend": row == 0, "cliponaxis": False, **on}
        marks.append(points("noisy max, Laplace", NOISE, "diamond-open", 10, y=100 * result.noisy_max[row], **look))
    return fig.still(
        "Who wins a vote with noise?",
        *bars,
        *marks,
        caption="ε pure, one vote replaced; bars: exponential mechanism, exact;\n"
        f"marks: noisy max, share of {result.draws:,} draws, seed {result.seed}",
        height=420,
        scattermode="group",
        xaxis=axis("label, and how many of the voters chose it"),
        yaxis=axis("chance of winning (%)", [0, 104]),
    )


def linkage_figure(table: LinkageTable, seed: int) -> fig.Still:
    """Shares of the patients that are singled out or betrayed, by k."""
    shares = {
        ("singled out by the voter list", PLAIN, ""): [100 * row.identified for row in table.rows],
        ("secret betrayed by the voter list", OTHER, "/"): [100 * row.disclosed for row in table.rows],
        ("singled out, month of visit known", PRINTED, "x"): [100 * row.identified_with_month for row in table.rows],
    }
    ks = ["as it is" if row.k == 1 else f"k = {row.k}" for row in table.rows]
    return fig.still(
        "Who is found in a table without names?",
        *[
            fig.bar(*look, x=ks, y=y, text=[f"{v:.0f}" for v in y], textposition="outside")
            for look, y in shares.items()
        ],
        caption=f"k-anonymity has no ε: no guarantee; synthetic people, seed {seed}",
        height=420,
        xaxis=axis("released table"),
        yaxis=axis("share of the patients (%)", [0, 109]),
    )


def local_figure(result: LocalAndGlobal) -> fig.Still:
    """Standard error of a count by the number of people: local DP against global DP."""
    looks, lines = ((OTHER, "circle"), (PLAIN, "square"), ("#444", "diamond")), []
    for column, epsilon in enumerate(result.epsilon):
        color, symbol = looks[column % 3]
        told, ends = f"ε = {d(float(epsilon))}", result.people[[0, -1]]
        lines += [
            line(f"local, {told}", color, symbol=symbol, x=result.people, y=result.local[:, column]),
            line(f"global, {told}", color, "dash", symbol=f"{symbol}-open", x=ends, y=[result.central[column]] * 2),
        ]
    return fig.still(
        "A count of people, local or global",
        *lines,
        caption="ε of one answer, pure, one answer replaced; randomised response, Laplace",
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


def _decade(value: float) -> int:
    """The exponent of the power of ten below a value: an axis that stands still while a slider moves a little."""
    return math.floor(math.log10(value)) if value > 0 and math.isfinite(value) else -12
