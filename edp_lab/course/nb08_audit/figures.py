"""The figures of ``08_audit_it.ipynb``: those of a panel are drawn once, then patched in place.

What a result holds is in `edp_lab.course.nb08_audit.compute`; nothing is computed here but axis ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from scipy.stats import norm

from edp_lab.attacks.audit.one_run import OneRunAudit
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb08_audit.compute import Guesses, StepAudit, needed
from edp_lab.course.nb08_audit.words import SURE, claim_source, one_run_settings, step_settings

HEIGHT = 500
LEGEND = {"orientation": "h"}
HATCH = {"fillmode": "overlay", "fgcolor": "white", "size": 6}
LINE = {"color": "#444", "dash": "dashdot", "width": 1.5}


# ---- One step ------------------------------------------------------------------------------------------------------


def draws_figure(result: StepAudit) -> go.Figure:
    """Both histograms of what a step releases along the canary's direction, and the threshold between them."""
    figure = go.Figure()
    looks = (("without the canary", BLUE, ""), ("with it", ORANGE, "/"))
    for name, color, shape in looks:
        marker = {"color": color, "opacity": 0.6, "pattern": {**HATCH, "shape": shape}, "line": {"width": 0}}
        figure.add_bar(name=name, marker=marker, hovertemplate=f"%{{x:.3g}}: %{{y:.2f}} % of the draws {name}")
    for _, color, shape in looks:
        line = {"color": color, "width": 2, "dash": "dash" if shape else "solid"}
        figure.add_scatter(mode="lines", line=line, showlegend=False, hoverinfo="skip")
    figure.add_vline(x=0, line=LINE)
    for text, anchor in (("guess: absent", "right"), ("guess: present", "left")):
        place = {
            "x": 0,
            "yref": "paper",
            "y": 1,
            "yanchor": "top",
            "xanchor": anchor,
            "xshift": 6 - 12 * (anchor == "right"),
        }
        figure.add_annotation(text=text, showarrow=False, **place)
    figure.update_layout(height=HEIGHT, title="What one step gives away", barmode="overlay", bargap=0, legend=LEGEND)
    figure.update_xaxes(title="released along the canary (gradient norm)")
    figure.update_yaxes(title="share of the draws (%)")
    update_draws(figure, result)
    return figure


def update_draws(figure: go.Figure, result: StepAudit) -> None:
    middles, width = (result.edges[1:] + result.edges[:-1]) / 2, result.edges[1] - result.edges[0]
    means = (-result.distance / 2, result.distance / 2)
    heights = [100 * width * norm.pdf(result.edges, mean, result.std) for mean in means]
    with figure.batch_update():
        for bars, line, shares, height in zip(figure.data[:2], figure.data[2:], result.shares, heights, strict=True):
            bars.x, bars.y, bars.width = middles, 100 * shares, width
            line.x, line.y = result.edges, height
        figure.layout.xaxis.range = result.edges[[0, -1]]
        top = 100 * max(float(shares.max()) for shares in result.shares)
        figure.layout.yaxis.range = [0, 1.15 * max(top, float(heights[0].max()))]
        figure.layout.title.subtitle.text = (
            f"{step_settings(result)},<br>{result.draws:,} draws a side, seed {result.seed}"
        )


# ---- Epsilons side by side -----------------------------------------------------------------------------------------

CLAIMED, TRUE, GAUSSIAN, FREE, MOST = (
    "claimed",
    "true",
    "proven:<br>Gaussian",
    "proven: any<br>mechanism",
    "at most<br>provable",
)
POINTS = {CLAIMED: (ORANGE, "square"), TRUE: (GREEN, "circle"), MOST: (BLACK, "line-ns-open")}
RANGES = {GAUSSIAN: (BLUE, "solid"), FREE: (PURPLE, "dot")}
ROWS = (CLAIMED, TRUE, GAUSSIAN, FREE, MOST)
FLOOR = 0.05  # a lower bound of 0 has no place on a log axis


def scale_figure(result: StepAudit) -> go.Figure:
    """The epsilon that is claimed, the one that holds, and those that the draws leave possible."""
    figure = go.Figure()
    for name, (color, dash) in RANGES.items():
        ends = {"symbol": ["line-ns-open", "triangle-right"], "size": 15, "line": {"width": 3, "color": color}}
        figure.add_scatter(
            y=[name] * 2, mode="lines+markers+text", line={"color": color, "width": 7, "dash": dash}, name=name,
            marker={**ends, "color": color}, hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    for name, (color, symbol) in POINTS.items():
        figure.add_scatter(
            y=[name], mode="markers+text", name=name, hovertemplate="%{text}<extra></extra>",
            textposition="middle right" if name == CLAIMED else "top center",  # beside the line of the claim
            marker={"symbol": symbol, "size": 14, "color": color, "line": {"width": 3, "color": color}},
        )  # fmt: skip
    figure.add_vline(x=1, line={"color": ORANGE, "dash": "dash", "width": 1.5}, layer="below")
    figure.update_layout(height=HEIGHT, title="Which ε can it be?", showlegend=False, margin_t=90)
    figure.update_xaxes(type="log", exponentformat="power", dtick=1)
    figure.update_yaxes(title="epsilon", categoryorder="array", categoryarray=ROWS[::-1], range=[-0.6, 4.8])
    update_scale(figure, result)
    return figure


def update_scale(figure: go.Figure, result: StepAudit) -> None:
    bounds = (result.bounds.gaussian, result.bounds.distribution_free)
    points = (result.claimed, result.holds, result.ceiling)
    last = max(2.0, math.ceil(math.log10(max(*bounds, *points)) + 0.4))
    with figure.batch_update():
        for trace, bound in zip(figure.data[:2], bounds, strict=True):
            trace.x, trace.text = [max(bound, FLOOR), 0.9 * 10**last], [f"≥ {d(bound)}", ""]
            trace.textposition = "top left" if bound > 10 ** (last - 1) else "top right"
        for trace, value in zip(figure.data[2:], points, strict=True):
            trace.x, trace.text = [max(value, FLOOR)], [d(value)]
        figure.layout.shapes[0].update(x0=result.claimed, x1=result.claimed)
        figure.layout.xaxis.range = [math.log10(FLOOR) - 0.1, last]
        figure.layout.xaxis.title.text = f"ε of one step (at δ = {result.delta:.2g})"
        figure.layout.title.subtitle.text = (
            f"δ = {result.delta:.2g}, zero-out, disjoint batches; true: Gaussian DP;<br>"
            f"claimed: {claim_source(result.mechanism.variant)}; proven at {SURE}, seed {result.seed}"
        )


# ---- Guesses -------------------------------------------------------------------------------------------------------


def luck_figure(result: Guesses) -> go.Figure:
    """How many guesses are right under the tested epsilon, and how many were."""
    figure = go.Figure()
    for name, color, shape in (("fewer", SKY, ""), ("as many, or more", VERMILLION, "/")):
        marker = {"color": color, "pattern": {**HATCH, "shape": shape}, "line": {"width": 0}}
        figure.add_bar(name=name, marker=marker, hovertemplate="%{x} right: %{y:.3g} %")
    figure.add_vline(x=0, line=LINE)
    figure.add_annotation(yref="paper", y=1, yanchor="top", showarrow=False)
    figure.update_layout(height=HEIGHT, title="Could it have been luck?", barmode="overlay", bargap=0, legend=LEGEND)
    figure.update_xaxes(title="right guesses")
    figure.update_yaxes(title="chance at the tested ε (%)", rangemode="tozero")
    update_luck(figure, result)
    return figure


def update_luck(figure: go.Figure, result: Guesses) -> None:
    beyond = result.counts >= result.right
    low, high = int(result.counts[0]), int(result.counts[-1])
    with figure.batch_update():
        for trace, these in zip(figure.data, (~beyond, beyond), strict=True):
            trace.x, trace.y = result.counts[these], 100 * result.chances[these]
        figure.layout.shapes[0].update(x0=result.right, x1=result.right)
        left = result.right > (low + high) / 2
        figure.layout.annotations[0].update(
            x=result.right, text=f"you: {result.right:,}", xanchor="right" if left else "left", xshift=-6 if left else 6
        )
        figure.layout.xaxis.range = [low - 1, high + 1]
        figure.layout.yaxis.range = [0, 118 * float(result.chances.max())]
        figure.layout.title.subtitle.text = (
            f"{result.made:,} guesses, each right with chance {result.chance:.1%} at most<br>"
            f"if ε = {d(result.tested)} (δ = 0; one canary added, removed or zeroed out)"
        )


def ceiling_figure(result: Guesses) -> go.Figure:
    """What r guesses prove if all are right, or as many as were; the ring is what these guesses prove."""
    looks: dict[str, dict[str, Any]] = {
        "best, Gaussian": {"line": {"color": BLUE}, "marker": {"symbol": "diamond"}},
        "best, any": {"line": {"color": PURPLE, "dash": "dash"}, "marker": {"symbol": "square"}},
        "your share, any": {"line": {"color": ORANGE, "dash": "dot"}, "marker": {"symbol": "circle"}},
    }
    figure = go.Figure([go.Scatter(name=name, mode="lines+markers", **look) for name, look in looks.items()])
    for name, symbol in (("you, Gaussian", "diamond-open"), ("you, any", "square-open")):
        marker = {"symbol": symbol, "size": 15, "color": BLACK, "line": {"width": 2.5}}
        figure.add_scatter(name=name, mode="markers", marker=marker)
    figure.add_hline(y=0, line={"color": VERMILLION, "dash": "dashdot", "width": 1.5})
    figure.add_annotation(xref="paper", x=1, xanchor="right", yanchor="bottom", showarrow=False)
    figure.update_layout(height=HEIGHT, title="What guesses can prove", legend=LEGEND, margin_t=146)
    figure.update_traces(hovertemplate="%{x:,} guesses: ε at least %{y:.3g}")
    figure.update_xaxes(title="guesses r", type="log", dtick=1, range=[0.9, 4.1])
    update_ceiling(figure, result)
    return figure


def update_ceiling(figure: go.Figure, result: Guesses) -> None:
    sizes, best = list(result.ceiling), list(result.ceiling.values())
    with figure.batch_update():
        gaussian, free, share, here_gaussian, here_free = figure.data
        gaussian.x = free.x = sizes
        gaussian.y = [bounds.gaussian for bounds in best]
        free.y = [bounds.distribution_free for bounds in best]
        share.x, share.y = zip(*result.same_share, strict=True)
        here_gaussian.x = here_free.x = [result.made]
        here_gaussian.y, here_free.y = [result.bounds.gaussian], [result.bounds.distribution_free]
        figure.layout.shapes[0].update(y0=result.tested, y1=result.tested)
        figure.layout.annotations[0].update(y=result.tested, text="the tested ε")
        figure.layout.xaxis.range = [min(0.9, math.log10(result.made) - 0.1), 4.1]
        figure.layout.yaxis.range = [-0.4, 1.06 * max(result.tested, best[-1].gaussian or 0)]
        figure.layout.yaxis.title.text = f"ε is at least (δ = {result.delta:.2g})"
        figure.layout.title.subtitle.text = (
            f"δ = {result.delta:.2g}, confidence {SURE}, m = {result.canaries:,} canaries;<br>"
            "Steinke et al. (any mechanism), Mahloujifar et al. (Gaussian)"
        )


# ---- One run -------------------------------------------------------------------------------------------------------


def tallies_figure() -> go.Figure:
    """Of one run: the share of right guesses, and the share that would refute the claim; empty."""
    figure = go.Figure()
    inside = {"textposition": "inside", "insidetextanchor": "start", "textfont": {"color": BLACK}}
    figure.add_bar(name="right", marker={"color": SKY}, width=0.55, **inside)
    marker = {"symbol": "line-ew-open", "size": 60, "color": VERMILLION, "line": {"width": 4}}
    figure.add_scatter(name="needed to refute the claim", mode="markers", marker=marker)
    figure.add_hline(y=50, line=LINE, annotation={"text": "coin", "xanchor": "right", "x": 1})
    figure.update_layout(height=HEIGHT, title="Guesses about the last run", legend=LEGEND)
    figure.update_xaxes(title="guesses made: the surest ones first", type="category", range=[-0.5, 2.5])
    figure.update_yaxes(title="right guesses (%)", range=[0, 104])
    return figure


def update_tallies(figure: go.Figure, audit: OneRunAudit, seed: int) -> None:
    names = [f"{tally.guesses:,} of {audit.canaries:,}" for tally in audit.tallies]
    asked = [(tally.guesses, needed(audit, tally.guesses)) for tally in audit.tallies]
    with figure.batch_update():
        right, wanted = figure.data
        right.x = wanted.x = names
        right.y = [100 * tally.correct / tally.guesses for tally in audit.tallies]
        right.text = [f"{tally.correct:,} right" for tally in audit.tallies]
        wanted.y = [None if least is None else 100 * least / guesses for guesses, least in asked]
        right.hovertemplate, wanted.hovertemplate = "%{y:.1f} % right", "%{y:.1f} % would refute the claim"
        figure.layout.xaxis.range = [-0.5, len(names) - 0.5]
        figure.layout.title.subtitle.text = (
            f"{one_run_settings(audit)},<br>seed {seed}; claimed ε = {d(audit.epsilon_claimed)}"
        )


def runs_figure() -> go.Figure:
    """What each audit proves, beside the epsilon that is claimed and the one that holds; empty."""
    figure = go.Figure()
    looks = (("proven, Gaussian", BLUE, "triangle-up"), ("proven, any mechanism", PURPLE, "triangle-up-open"))
    for name, color, symbol in looks:
        figure.add_scatter(name=name, mode="markers", marker={"symbol": symbol, "size": 11, "color": color})
    for name, color, dash in (("claimed", ORANGE, "dash"), ("true", GREEN, "solid")):
        figure.add_scatter(name=name, mode="lines", line={"color": color, "dash": dash, "width": 2.5})
    figure.update_layout(height=HEIGHT, title="What each audit proves", legend=LEGEND)
    figure.update_traces(hovertemplate="audit %{x}: ε %{y:.3g}")
    figure.update_xaxes(title="audit, a training run each", tickformat="d")
    figure.update_yaxes(title="ε of the run", rangemode="tozero")
    return figure


def update_runs(figure: go.Figure, audits: Mapping[int, OneRunAudit]) -> None:
    """`audits`: by seed, of one setting."""
    rows: Sequence[OneRunAudit] = list(audits.values())
    first, ends = rows[0], [0.5, len(rows) + 0.5]
    with figure.batch_update():
        gaussian, free, claimed, true = figure.data
        gaussian.x = free.x = np.arange(1, len(rows) + 1)
        gaussian.y = [audit.epsilon_lower_bound for audit in rows]
        free.y = [audit.bounds.distribution_free for audit in rows]
        claimed.x = true.x = ends
        claimed.y, true.y = [first.epsilon_claimed] * 2, [first.epsilon_holds] * 2
        figure.layout.xaxis.range = ends
        figure.layout.title.subtitle.text = (
            f"{one_run_settings(first)}; δ = {first.delta:.2g},<br>"
            f"zero-out, disjoint batches; proven at {SURE}; true: Gaussian DP"
        )
