"""The figures of ``10_three_phases.ipynb``: each is drawn once from a result, then patched in place by `update_...`.

What a result holds is in `edp_lab.course.nb10_phases.compute`; nothing is computed here but places and axis ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb10_phases.compute import (
    DRAWS,
    LABEL_COUNTS,
    MNIST_QUERIES,
    PANELS_OF_VOTERS,
    SIGMAS,
    VOTE_EPSILONS,
    Ballot,
    LabelBill,
    NoisedImages,
    Partition,
    RunPoint,
    Score,
)
from edp_lab.course.nb10_phases.words import spelt
from edp_lab.three_phase.pate import Vote
from edp_lab.three_phase.perturbation import CLAIMED_EPSILON, CLAIMED_SIGMA
from edp_lab.three_phase.phases import ThreePhaseSettings

CLAIMED = {"line": {"color": ORANGE, "dash": "dash"}}
HERE = {"color": "#666", "dash": "dot", "width": 1}  # where the sliders stand
GREY = [[0, "black"], [1, "white"]]


# ---- The whole in one picture, and the ledger ----------------------------------------------------------------------


BOX = (
    '<rect x="{x}" y="{y}" width="164" height="50" rx="6" fill="white" stroke="{color}" stroke-width="2"/>'
    '<text x="{mid}" y="{first}" font-weight="600">{one}</text><text x="{mid}" y="{second}">{two}</text>'
)
# No <style>: it would reach every other drawing of the page.
DRAWING = """<div style="overflow-x:auto"><svg viewBox="0 0 760 350" role="img" aria-label="{title}"
 style="width:100%; min-width:620px; max-width:900px"
 font-family="system-ui, sans-serif" font-size="12.5" fill="#222" text-anchor="middle">
<defs><marker id="edp-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L8 4L0 8z" fill="#444"/></marker></defs><rect width="760" height="350" fill="white"/>
<rect width="760" height="104" rx="8" fill="#fdf0e8"/><rect y="138" width="760" height="104" rx="8" fill="#e8f2fa"/>
<g font-weight="600"><text x="90" y="20">private</text><text x="90" y="158">public</text>
<text x="282" y="20">Phase I</text><text x="572" y="20">Phase II</text><text x="626" y="158">Phase III</text></g>
<g stroke="#444" stroke-width="1.6" fill="none" marker-end="url(#edp-tip)">
<path d="M173 57H198"/><path d="M365 57H390"/><path d="M557 57H582"/><path d="M173 197H198"/><path d="M365 197H582"/>
<path d="M476 197V86"/><path d="M690 83V170"/></g>
<text x="500" y="126">asked</text><text x="715" y="126">labels</text>{boxes}
<g text-anchor="start">{notes}</g></svg></div>"""


def architecture(noised: NoisedImages, bill: LabelBill) -> str:
    """The three phases, who sees what and what each guarantees, as a drawing (SVG) that shrinks with its place."""
    settings, image, account = bill.settings, noised.guarantee, bill.account
    pixel = f"ε = {image.epsilon:.4g} (exact Gaussian)" if settings.sigma else "no guarantee"
    noise = f"σ = {settings.sigma:g} on every pixel"
    places = (
        (8, 32, "images and labels", "of private people", VERMILLION),
        (200, 32, "noise", noise, VERMILLION),
        (392, 32, f"instructors: {settings.instructors}", "each on its own part", VERMILLION),
        (584, 32, "vote", f"noise: ε = {settings.vote_epsilon:g} per label", VERMILLION),
        (8, 172, "images", "without labels", BLUE),
        (200, 172, "noise", noise, BLUE),
        (584, 172, "understudy", "is released", BLUE),
    )
    boxes = (
        BOX.format(x=x, y=y, mid=x + 82, first=y + 21, second=y + 39, one=one, two=two, color=color)
        for x, y, one, two, color in places
    )
    notes = {
        8: f"Phase I: who trains sees noised pixels|and every true label.|Image: {pixel},|at δ = "
        f"{settings.delta:.2g}. Label: no guarantee.",
        290: "Phase II: who counts sees all votes.|Counted without noise:|no guarantee.",
        545: f"Phase III: everybody sees the|understudy. {bill.spent} labels: ε = {account.epsilon:.3g}|"
        f"({spelt(bill.accountant)}, δ = {settings.delta:.2g}), for images|and labels. Nothing else protects.",
    }
    texts = (
        f'<text x="{x}" y="{268 + 19 * i}">{line}</text>'
        for x, lines in notes.items()
        for i, line in enumerate(lines.split("|"))
    )
    return DRAWING.format(title="the three phases", boxes="".join(boxes), notes="".join(texts))


# ---- Phase I: images and their epsilon --------------------------------------------------------------------

ROWS = ("as it is", "noised", "resized first,<br>noised,<br>averaged")


def images_figure(result: NoisedImages) -> go.Figure:
    """Images as they are, noised, and with what a resize before the noise leaves."""
    figure = go.Figure()
    figure.add_heatmap(colorscale=GREY, zmin=0, zmax=1, showscale=False, hovertemplate="pixel %{z:.2f}<extra></extra>")
    shown, side = result.shown.shape[1], result.shown.shape[2]
    places = [(side + 1) * i + (side - 1) / 2 for i in range(shown)]
    figure.update_layout(height=310, title="What noise leaves", margin_t=100)
    bare = {"showgrid": False, "ticks": "", "ticklabelstandoff": 4, "showline": False, "constrain": "domain"}
    labels = [str(label) for label in result.labels]
    figure.update_xaxes(**bare, title="label, passed on without noise", tickvals=places, ticktext=labels)
    figure.update_yaxes(
        **bare,
        autorange="reversed",
        scaleanchor="x",
        constraintoward="top",
        tickvals=places[: len(ROWS)],
        ticktext=ROWS,
    )
    update_images(figure, result)
    return figure


def update_images(figure: go.Figure, result: NoisedImages) -> None:
    with figure.batch_update():
        figure.data[0].z = _tiles(result.shown)
        figure.layout.title.subtitle.text = (
            f"σ = {result.settings.sigma:g}, seed {result.settings.seed}; 0 is black, 1 white;<br>"
            f"the resize makes {result.copies:,} copies of each pixel"
        )


def _tiles(images: NDArray[np.float64]) -> list[list[float | None]]:
    """(rows, columns, height, width) -> one picture, with a gap of one pixel between images."""
    rows, columns, height, width = images.shape
    field = np.full((rows, height + 1, columns, width + 1), np.nan)
    field[:, :height, :, :width] = images.transpose(0, 2, 1, 3)
    whole = field.reshape(rows * (height + 1), columns * (width + 1))[:-1, :-1]
    return [[None if math.isnan(v) else v for v in row] for row in whole.tolist()]


def epsilon_figure(result: NoisedImages) -> go.Figure:
    """Epsilon of one image by sigma: for three sizes exactly, by the thesis' formula, and its claim."""
    looks: dict[str, dict[str, Any]] = {
        "3 x 256 x 256, resized first": {"color": PURPLE, "dash": "dashdot"},
        "28 x 28 pixels, MNIST": {"color": SKY, "dash": "longdash"},
        "8 x 8 pixels, these digits": {"color": GREEN, "width": 3},
        "eq 3.1": {"color": ORANGE, "dash": "dash"},
    }
    figure = go.Figure()
    for name, line in looks.items():
        label = "eq 3.1 of the thesis, sensitivity 1" if name == "eq 3.1" else name
        hover = "σ %{x:.2g}: ε %{y:.3g}"
        figure.add_scatter(x=SIGMAS, name=label, mode="lines", line=line, hovertemplate=hover)
    star = {"symbol": "star", "size": 15, "color": ORANGE, "line": {"width": 1, "color": BLACK}}
    claim = "the thesis: σ = 0.6, ε = 2.5"
    figure.add_scatter(x=[CLAIMED_SIGMA], y=[CLAIMED_EPSILON], name=claim, mode="markers", marker=star)
    dot = {"symbol": "circle", "size": 12, "color": GREEN, "line": {"width": 1, "color": BLACK}}
    figure.add_scatter(name="the slider's σ", mode="markers", marker=dot, hovertemplate="σ %{x:g}: ε %{y:.4g}")
    figure.update_layout(height=560, title="ε of one image", margin_t=196)
    figure.update_xaxes(title="σ of the noise on a pixel (0 to 1)", type="log", tickformat="~g", dtick=1)
    figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    update_epsilon(figure, result)
    return figure


def update_epsilon(figure: go.Figure, result: NoisedImages) -> None:
    sigma, delta, noised = result.settings.sigma, result.settings.delta, result.settings.sigma > 0
    with figure.batch_update():
        for trace, values in zip(figure.data, result.curves.values(), strict=False):
            trace.y = values
        figure.data[-1].x, figure.data[-1].y = ([sigma], [result.guarantee.epsilon]) if noised else ([], [])
        figure.layout.yaxis.title.text = f"ε of one image (at δ = {delta:.2g})"
        figure.layout.title.subtitle.text = (
            f"one image replaced, δ = {delta:.2g}, exact Gaussian<br>accountant; its label: no guarantee at any σ"
        )


# ---- Phase II: one vote, and all -----------------------------------------------------------------------------------


def ballot_figure(result: Ballot) -> go.Figure:
    """One public image, the votes on it, with noise, and the chance of each label to come out."""
    figure = make_subplots(rows=3, cols=1, row_heights=[0.2, 0.48, 0.32], vertical_spacing=0.13)
    look: dict[str, Any] = {"colorscale": GREY, "zmin": 0, "zmax": 1, "showscale": False, "hoverinfo": "skip"}
    figure.add_heatmap(**look, row=1, col=1)
    digits = [str(k) for k in range(len(result.counts))]
    figure.add_bar(x=digits, name="votes", marker={"color": BLUE}, hovertemplate="%{y} say %{x}", row=2, col=1)
    noisy = {"color": VERMILLION, "symbol": "diamond-open", "size": 11, "line": {"width": 2}}
    hover, name = "with noise %{y:.1f}", "with noise, one draw"
    figure.add_scatter(x=digits, name=name, mode="markers", marker=noisy, hovertemplate=hover, row=2, col=1)
    chances, hover = {"color": GREEN, "pattern": {"shape": "/"}}, "%{x}: %{y:.1%}"
    figure.add_bar(x=digits, name="chance to come out", marker=chances, hovertemplate=hover, row=3, col=1)
    figure.update_layout(height=580, title="One vote", margin_t=100, bargap=0.3, showlegend=False)
    bare = {"showticklabels": False, "ticks": "", "showline": False, "constrain": "domain"}
    figure.update_xaxes(**bare, title="as voters see it", title_font_size=12, row=1)
    figure.update_yaxes(**bare, autorange="reversed", scaleanchor="x", row=1)
    figure.update_xaxes(title="label", type="category", row=2)
    figure.update_xaxes(title="label", type="category", row=3)
    figure.update_yaxes(title="votes, and with noise", row=2)
    figure.update_yaxes(title="chance to win", range=[0, 1], tickformat=".0%", row=3)
    update_ballot(figure, result)
    return figure


def update_ballot(figure: go.Figure, result: Ballot) -> None:
    settings = result.settings
    with figure.batch_update():
        picture, votes, noisy, chances = figure.data
        picture.z = result.picture.tolist()
        votes.y, noisy.y, chances.y = result.counts, result.noisy, result.chances
        figure.layout.title.text = f"One vote: on a {result.truth}"
        figure.layout.title.subtitle.text = (
            "bars: votes; diamonds: with one draw of noise;<br>"
            f"{settings.vote}, ε = {result.query_epsilon:.3g} for one label ({_delta(settings)}, one<br>"
            f"example replaced), N = {settings.instructors}, σ = {settings.sigma:g}, image {result.image},<br>"
            f"seed {settings.seed}, draw {result.draw}"
        )


def survival_figure(result: Ballot) -> go.Figure:
    """Above: the chance that a unanimous label survives, by vote epsilon. Below: how far voters agree."""
    figure = make_subplots(rows=2, cols=1, row_heights=[0.58, 0.42], vertical_spacing=0.24)
    for dash, color in (("dot", SKY), ("dash", BLUE), ("dashdot", PURPLE)):
        line = {"color": color, "dash": dash}
        hover = "ε %{x:.2g}: %{y:.0%}"
        figure.add_scatter(x=VOTE_EPSILONS, mode="lines", line=line, hovertemplate=hover, row=1, col=1)
    own = {"color": VERMILLION, "width": 3}
    figure.add_scatter(x=VOTE_EPSILONS, mode="lines", line=own, hovertemplate="ε %{x:.2g}: %{y:.0%}", row=1, col=1)
    square = {"symbol": "square", "size": 12, "color": GREEN, "line": {"width": 1, "color": BLACK}}
    name = "these votes: share that it wins"
    figure.add_scatter(name=name, mode="markers", marker=square, hovertemplate="ε %{x:g}: %{y:.1%}", row=1, col=1)
    hover = "%{x} votes for the winner: %{y} images"
    figure.add_bar(marker={"color": BLUE}, showlegend=False, hovertemplate=hover, row=2, col=1)
    figure.update_layout(height=540, title="All votes", margin_t=178, bargap=0.1)
    log = {"type": "log", "dtick": 1, "tickformat": "~g"}
    figure.update_xaxes(title="ε of one label", range=[-2, 2], **log, row=1)
    figure.update_yaxes(title="chance", range=[0, 1.03], tickformat=".0%", row=1)
    figure.update_xaxes(title="votes for the winner", tickformat="d", row=2)
    figure.update_yaxes(title="public images", row=2)
    figure.add_vline(x=1, line=HERE, row=1, col=1)
    update_survival(figure, result)
    return figure


def update_survival(figure: go.Figure, result: Ballot) -> None:
    settings, voters = result.settings, result.settings.instructors
    with figure.batch_update():
        *others, own, point, bars = figure.data
        for trace, number in zip(others, PANELS_OF_VOTERS, strict=True):
            trace.y, trace.name = result.curves[number], f"{number} who all agree"
            trace.visible = number != voters
        own.y, own.name = result.curves[voters], f"{voters} who all agree"
        point.x, point.y = [settings.vote_epsilon], [result.majority]
        bars.x, bars.y = list(range(voters + 1)), result.winners
        figure.layout.xaxis2.range = [-0.7, voters + 0.7]
        figure.layout.shapes[0].update(x0=settings.vote_epsilon, x1=settings.vote_epsilon)
        figure.layout.title.subtitle.text = (
            f"{settings.vote} noise, {_delta(settings)}, one example replaced;<br>"
            f"{result.answered} of {result.queries} labels come out in draw {result.draw},<br>"
            f"σ = {settings.sigma:g}, seed {settings.seed}"
        )


# ---- Phase II: parts and epsilon -----------------------------------------------------------------------------------


def partition_figure(result: Partition) -> go.Figure:
    """Epsilon by number of instructors: of one on all data, of N on parts, and the thesis' claim."""
    figure = go.Figure()
    hover = "%{x} instructors: ε %{y:.3g}"
    looks: dict[str, dict[str, Any]] = {
        "one model on all images": {"line": {"color": BLUE, "dash": "dot"}, "mode": "lines"},
        "N on parts: the maximum": {
            "line": {"color": GREEN, "width": 3},
            "marker": {"symbol": "circle", "size": 8},
            "mode": "lines+markers",
        },
        "the thesis: one model's ε over N": {
            **CLAIMED,
            "marker": {"symbol": "square-open", "size": 9},
            "mode": "lines+markers",
        },
    }
    for name, look in looks.items():
        figure.add_scatter(name=name, hovertemplate=hover, **look)
    figure.update_layout(height=420, title="ε, split into N parts", margin_t=156)
    figure.update_xaxes(title="instructors N, on 60,000 images", type="log", tickformat="~g", tickangle=0)
    figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    figure.add_vline(x=1, line=HERE)
    update_partition(figure, result)
    return figure


def update_partition(figure: go.Figure, result: Partition) -> None:
    numbers, costs = list(result.costs), list(result.costs.values())
    values = [[cost.one for cost in costs], [cost.together for cost in costs], [cost.claimed for cost in costs]]
    with figure.batch_update():
        for trace, y in zip(figure.data, values, strict=True):
            trace.x, trace.y = numbers, y
        figure.layout.xaxis.tickvals = numbers
        figure.layout.yaxis.range = _decades([value for line in values for value in line])
        figure.layout.yaxis.title.text = f"ε (at δ = {result.delta:.2g})"
        figure.layout.shapes[0].update(x0=result.instructors, x1=result.instructors)
        figure.layout.title.subtitle.text = (
            f"DP-Adam, batches of {result.batch_size}, {result.epochs} epochs, z = {result.noise_multiplier:g};<br>"
            f"Rényi DP, δ = {result.delta:.2g}, Poisson sampling,<br>one example added or removed"
        )


# ---- Phase III: what labels cost, and teach ------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "plain sum": {"color": PURPLE, "dash": "dashdot"},
    "advanced composition": {"color": SKY, "dash": "longdash"},
    "zCDP": {"color": BLUE, "dash": "dot"},
    "Renyi DP": {"color": GREEN, "width": 3},
    "Gaussian DP": {"color": GREEN, "width": 3},
}


def bill_figure(result: LabelBill) -> go.Figure:
    """Epsilon of all labels by their number: by each accountant, for these very votes, and the thesis' claim."""
    figure = go.Figure()
    for way, line in WAYS.items():
        hover = "%{x:,} labels: ε %{y:.3g}"
        figure.add_scatter(x=LABEL_COUNTS, name=spelt(way), mode="lines", line=line, hovertemplate=hover)
    figure.add_scatter(x=[1, MNIST_QUERIES], name="the thesis: as for one label", mode="lines", **CLAIMED)
    cross = {"symbol": "x-open", "size": 11, "color": BLACK, "line": {"width": 2}}
    name, hover = "these very votes: not releasable", "ε %{y:.4g} for these votes"
    figure.add_scatter(name=name, mode="markers", marker=cross, hovertemplate=hover)
    figure.update_layout(height=540, title="What labels cost", margin_t=212)
    figure.update_xaxes(title="labels spent (thesis: 9,000)", type="log", range=[0, 4.05], tickformat=",", dtick=1)
    figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    figure.add_vline(x=1, line=HERE)
    update_bill(figure, result)
    return figure


def update_bill(figure: go.Figure, result: LabelBill) -> None:
    settings, account = result.settings, result.account
    with figure.batch_update():
        *ways, claimed, own = figure.data
        for trace, way in zip(ways, WAYS, strict=True):
            trace.y, trace.visible = result.composed.get(way, []), way in result.composed
        claimed.y = [settings.vote_epsilon] * 2
        own.x, own.y = [result.spent], [account.data_dependent_epsilon]
        figure.layout.yaxis.range = _decades(
            [settings.vote_epsilon, account.data_dependent_epsilon, *(e for es in result.composed.values() for e in es)]
        )
        figure.layout.yaxis.title.text = f"ε of all labels (at δ = {settings.delta:.2g})"
        figure.layout.shapes[0].update(x0=result.spent, x1=result.spent)
        figure.layout.title.subtitle.text = (
            f"{settings.vote} vote, ε = {settings.vote_epsilon:g} per label, δ = {settings.delta:.2g},<br>"
            f"one example replaced; least by {spelt(result.accountant)}, seed {settings.seed}"
        )


def learnt_figure(result: LabelBill) -> go.Figure:
    """Accuracy of the understudy by labels spent, beside the same votes without noise, and how many labels are true."""
    figure = go.Figure()
    bounds = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    figure.add_scatter(**bounds)
    figure.add_scatter(**bounds, fill="tonexty", fillcolor="rgba(0,158,115,0.18)")
    looks: dict[str, dict[str, Any]] = {
        "understudy, noisy labels; 95 %": {
            "line": {"color": GREEN, "width": 3},
            "marker": {"symbol": "circle", "size": 9},
        },
        "understudy, votes without noise": {
            "line": {"color": BLUE, "dash": "dot"},
            "marker": {"symbol": "triangle-up-open", "size": 9},
        },
        "noisy labels that are true": {
            "line": {"color": VERMILLION, "dash": "dash"},
            "marker": {"symbol": "diamond-open", "size": 9},
        },
    }
    for name, look in looks.items():
        hover = "%{x} labels: %{y:.0%}"
        figure.add_scatter(name=name, mode="lines+markers", hovertemplate=hover, **look)
    figure.update_layout(height=540, title="What they teach", margin_t=142, legend_traceorder="normal")
    figure.update_xaxes(title="labels spent", type="log", tickformat="~g", tickangle=0)
    figure.update_yaxes(title="accuracy, and share of labels", range=[0, 1.02], tickformat=".0%")
    figure.add_vline(x=1, line=HERE)
    update_learnt(figure, result)
    return figure


def update_learnt(figure: go.Figure, result: LabelBill) -> None:
    values = (result.low, result.high, result.accuracy, result.silent, result.right)
    with figure.batch_update():
        for trace, y in zip(figure.data, values, strict=True):
            trace.x, trace.y = result.sizes, y
        figure.layout.xaxis.tickvals = [10, 20, 40, 80, 160, 320, max(result.sizes)]
        figure.layout.shapes[0].update(x0=result.spent, x1=result.spent)
        figure.layout.title.subtitle.text = (
            f"linear understudy, tested on {result.tested} images,<br>"
            f"mean of {DRAWS} draws of the noise, seed {result.settings.seed}"
        )


# ---- The live run --------------------------------------------------------------------------------------------------

NAMES = {"one instructor": "one on all images", "instructors": "each of N"}  # of parts, as a reader meets them
NETWORKS = ("plain model", *NAMES.values(), "hard vote", "soft vote", "understudy")


def run_figure() -> go.Figure:
    """Accuracy of every part of a run, one under the other, beside the thesis'; empty."""
    figure = go.Figure()
    look = {"mode": "markers", "marker": {"color": BLUE, "symbol": "circle", "size": 11}}
    figure.add_scatter(name="this run (bar: 95 %)", **look, hovertemplate="%{y}: %{x:.1%}")
    diamond = {"color": ORANGE, "symbol": "diamond-open", "size": 12, "line": {"width": 2}}
    figure.add_scatter(name="the thesis, on MNIST", mode="markers", marker=diamond, hovertemplate="%{y}: %{x:.0%}")
    figure.update_layout(height=400, title="Part by part", margin_t=130)
    figure.update_xaxes(title="accuracy on 60 images", range=[0, 1.03], tickformat=".0%")
    figure.update_yaxes(categoryorder="array", categoryarray=NETWORKS[::-1], range=[-0.5, len(NETWORKS) - 0.5])
    return figure


def update_run(figure: go.Figure, scores: Sequence[Score], thesis: Mapping[str, float], caption: str) -> None:
    """`scores` so far; instructors share a row, and have no bars."""
    many = [score.name.startswith("instructor") for score in scores]
    bars = [s._replace(low=s.accuracy, high=s.accuracy) if m else s for s, m in zip(scores, many, strict=True)]
    with figure.batch_update():
        here, there = figure.data
        here.x, here.error_x = [score.accuracy for score in scores], _bars(bars, BLUE)
        names = ["instructors" if m else score.name for score, m in zip(scores, many, strict=True)]
        here.y = [NAMES.get(name, name) for name in names]
        there.x, there.y = list(thesis.values()), [NAMES.get(name, name) for name in thesis]
        figure.layout.title.subtitle.text = caption


def _bars(scores: Sequence[Score], color: str) -> dict[str, Any]:
    up, down = [s.high - s.accuracy for s in scores], [s.accuracy - s.low for s in scores]
    return {"type": "data", "array": up, "arrayminus": down, "color": color, "thickness": 1.5}


def runs_figure() -> go.Figure:
    """Accuracy of the understudy against the epsilon of its labels, a point for each run; empty."""
    figure = go.Figure()
    marker = {"color": GREEN, "symbol": "circle", "size": 12, "line": {"width": 1, "color": BLACK}}
    figure.add_scatter(
        mode="markers+text", marker=marker, textposition="middle right", hoverinfo="text", showlegend=False
    )
    figure.update_layout(height=400, title="Your runs", margin_t=84)
    figure.update_xaxes(title="ε of the labels, composed", type="log", range=[-1, 4], exponentformat="power", dtick=1)
    figure.update_yaxes(title="accuracy of the understudy", range=[0, 1.08], tickformat=".0%")
    return figure


def update_runs(figure: go.Figure, runs: Sequence[RunPoint], delta: float) -> None:
    with figure.batch_update():
        [points] = figure.data
        points.x, points.y = [run.epsilon for run in runs], [run.score.accuracy for run in runs]
        points.text = [str(number) for number in range(1, len(runs) + 1)]
        points.hovertext = [run.told for run in runs]
        points.error_y = _bars([run.score for run in runs], GREEN)
        figure.layout.xaxis.range = _decades([0.5, 2000.0, *(run.epsilon for run in runs)])
        figure.layout.title.subtitle.text = (
            f"ε by the least of the accountants, δ = {delta:.2g},<br>one training example replaced; bars: 95 %"
        )


def _delta(settings: ThreePhaseSettings) -> str:
    """At which delta the epsilon of one label holds."""
    return "δ = 0" if settings.vote == Vote.LAPLACE else f"δ = {settings.delta:.2g}"


def _decades(values: Sequence[float]) -> list[float]:
    """Exponents of the powers of ten around what a log axis can show: it stands still while a slider moves a little."""
    logs = [math.log10(v) for v in values if v > 0 and math.isfinite(v)] or [0.0]
    return [math.floor(min(logs) - 0.05), math.ceil(max(logs) + 0.05)]
