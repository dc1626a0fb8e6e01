"""The figures of ``07_membership_inference.ipynb``: those of a panel are drawn once, then patched in place.

What a result holds is in `edp_lab.course.nb07_membership.compute`; nothing is computed here but axis ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from edp_lab.attacks.memorisation import AROUND, DIGITS, Memorisation, Traced
from edp_lab.attacks.statistics import roc
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb07_membership.compute import Array, Remembered, Shown
from edp_lab.course.nb07_membership.measured import Defended, Found
from edp_lab.course.nb07_membership.words import ATTACKS, METHOD_NAMES, bound_names, canary_caption, roc_caption

HEIGHT = 520
LEGEND = {"orientation": "h"}
CORNER = {"x": 0.99, "xanchor": "right", "y": 0.01, "yanchor": "bottom"}  # no attack is worse than guessing for long
CHANCE = {"color": "#666", "dash": "dot", "width": 1.5}
MARK = {"color": "#444", "dash": "dashdot", "width": 1.5}
LOG = {"type": "log", "dtick": 1, "tickformat": "~g"}
HATCH = {"fillmode": "overlay", "fgcolor": "white", "size": 6}
SMALLEST = 3e-4  # rate that a log axis shows
WHITE_TO_BLUE = [[0, "#ffffff"], [0.35, "#cfe5f3"], [0.7, SKY], [1, BLUE]]


# ---- The curve and the scores --------------------------------------------------------------------------------------


def roc_figure(result: Shown) -> go.Figure:
    """The attack's ROC curve on log axes with its band, the threshold's point, and what two epsilons allow."""
    figure = go.Figure()
    band = {"fill": "toself", "fillcolor": "rgba(86,180,233,0.35)", "line": {"width": 0}, "mode": "lines"}
    figure.add_scatter(name="95 % band", hoverinfo="skip", **band)
    figure.add_scatter(name="attack", mode="lines", line={"color": BLUE, "width": 2.5})
    figure.add_scatter(mode="lines", line={"color": ORANGE, "dash": "dash", "width": 2.5})
    figure.add_scatter(mode="lines", line={"color": GREEN, "dash": "longdashdot", "width": 2.5})
    figure.add_scatter(name="guessing", mode="lines", x=[SMALLEST, 1], y=[SMALLEST, 1], line=CHANCE, hoverinfo="skip")
    ring = {"color": BLACK, "symbol": "circle-open", "size": 13, "line": {"width": 3}}
    figure.add_scatter(name="threshold", mode="markers", marker=ring, error_x=_bars(), error_y=_bars())
    figure.update_layout(height=HEIGHT, title="Members found, non-members accused", legend=CORNER, margin_t=90)
    figure.update_traces(hovertemplate="FPR %{x:.3g}: TPR %{y:.3g}")
    figure.update_xaxes(**LOG, title="false-positive rate (share of non-members)")
    figure.update_yaxes(**LOG, title="true-positive rate (share of members)")
    update_roc(figure, result)
    return figure


def update_roc(figure: go.Figure, result: Shown) -> None:
    floor = max(SMALLEST, 0.5 / result.people)
    fpr, tpr = np.maximum(result.fpr, floor), np.maximum(result.tpr, floor)
    grid = np.geomspace(SMALLEST, 1, 80)
    with figure.batch_update():
        band, curve, claimed, true, _, point = figure.data
        band.x, band.y = _steps(fpr, np.maximum(result.low, floor), np.maximum(result.high, floor))
        curve.x, curve.y, curve.line.shape = fpr, tpr, "hv"
        claimed.x = true.x = grid
        claimed.y, true.y = result.claimed.tpr(grid), result.true.tpr(grid)
        curve.name, (claimed.name, true.name) = ATTACKS[result.attack], bound_names(result)
        point.x, point.y = [max(result.alarms.value, floor)], [max(result.hits.value, floor)]
        for bars, rate in ((point.error_x, result.alarms), (point.error_y, result.hits)):
            shown = max(rate.value, floor)
            bars.update(array=[rate.interval[1] - shown], arrayminus=[max(0.0, shown - max(rate.interval[0], floor))])
        figure.layout.xaxis.range = figure.layout.yaxis.range = [math.log10(SMALLEST), 0.03]
        figure.layout.title.subtitle.text = roc_caption(result)


def scores_figure(result: Shown) -> go.Figure:
    """Histograms of the attack's scores, of members and of non-members; the line is the threshold."""
    figure = go.Figure()
    for name, color, shape in (("members", ORANGE, "/"), ("non-members", BLUE, "")):
        marker = {"color": color, "opacity": 0.6, "pattern": {**HATCH, "shape": shape}, "line": {"width": 0}}
        figure.add_bar(name=name, marker=marker, hovertemplate=f"%{{x:.3g}}: %{{y:.2f}} % of {name}")
    figure.add_vline(x=0, line=MARK)
    figure.add_annotation(yref="paper", y=1, yanchor="top", showarrow=False, text="called members →")
    layout = {"barmode": "overlay", "bargap": 0, "legend": LEGEND, "margin_t": 116}
    figure.update_layout(height=HEIGHT, title="What the attack sees", **layout)
    figure.update_yaxes(title="share of that side (%)", rangemode="tozero")
    update_scores(figure, result)
    return figure


SCORES = {
    "loss": "minus log<sub>10</sub> of the loss (nats)",
    "shadow": "probability of 'member', by the forest",
    "lira-online": "log-likelihood ratio (nats; cut at ±10)",
}


def update_scores(figure: go.Figure, result: Shown) -> None:
    middles, width = (result.edges[1:] + result.edges[:-1]) / 2, result.edges[1] - result.edges[0]
    left = result.mark < (result.edges[0] + result.edges[-1]) / 2
    with figure.batch_update():
        for bars, shares in zip(figure.data, result.shares, strict=True):
            bars.x, bars.y, bars.width = middles, 100 * shares, width
        figure.layout.shapes[0].update(x0=result.mark, x1=result.mark)
        text = "called members →" if left else "← others"
        figure.layout.annotations[0].update(
            x=result.mark, text=text, xanchor="left" if left else "right", xshift=6 if left else -6
        )
        figure.layout.xaxis.title.text = SCORES[result.attack]
        figure.layout.xaxis.range = result.edges[[0, -1]]
        figure.layout.yaxis.range = [0, 115 * max(float(shares.max()) for shares in result.shares)]
        figure.layout.title.subtitle.text = (
            f"{ATTACKS[result.attack]}, {result.people:,} a side, right: looks like a member;<br>"
            f"the top {result.called:g} % are called members"
        )


# ---- Canaries ------------------------------------------------------------------------------------------------------

CANARY_LOOKS = {
    "sgd": (BLACK, "dot", "x"),
    "edp-sgd-as-printed": (ORANGE, "dash", "square"),
    "edp-sgd": (GREEN, "solid", "circle"),
}


def exposure_figure(result: Remembered) -> go.Figure:
    """Mean exposure by repetitions, for each method; the ring is the one looked at."""
    figure = go.Figure()
    for method, (color, dash, symbol) in CANARY_LOOKS.items():
        figure.add_scatter(
            name=METHOD_NAMES[method], mode="lines+markers", line={"color": color, "dash": dash},
            marker={"symbol": symbol, "size": 9}, error_y={**_bars(), "color": color, "thickness": 1.2},
        )  # fmt: skip
    ring = {"color": VERMILLION, "symbol": "circle-open", "size": 18, "line": {"width": 3}}
    figure.add_scatter(mode="markers", marker=ring, showlegend=False, hoverinfo="skip")
    figure.add_hline(y=math.log2(math.e), line=CHANCE, annotation=_note("nothing remembered", "bottom"))
    figure.add_hline(
        y=0, line=MARK, annotation={**_note("the most we can measure", "bottom"), "x": 0, "xanchor": "left"}
    )
    figure.update_traces(hovertemplate="%{x} times: %{y:.1f} bits", selector={"mode": "lines+markers"})
    figure.update_layout(height=HEIGHT, title="How well it remembers", legend=LEGEND)
    figure.update_xaxes(title="times that a canary is in the training set", type="category")
    figure.update_yaxes(title="exposure (bits)", range=[-0.3, 15])
    update_exposure(figure, result)
    return figure


def update_exposure(figure: go.Figure, result: Remembered) -> None:
    with figure.batch_update():
        for trace, rows in zip(figure.data, result.others.values(), strict=False):
            trace.x, trace.y = [str(row.repetitions) for row in rows], [row.exposure for row in rows]
            trace.error_y.array = [row.interval[1] - row.exposure for row in rows]
            trace.error_y.arrayminus = [row.exposure - row.interval[0] for row in rows]
        figure.data[-1].x, figure.data[-1].y = [str(result.chosen.repetitions)], [result.chosen.exposure]
        figure.layout.shapes[1].update(y0=result.chosen.cap, y1=result.chosen.cap)
        figure.layout.annotations[1].y = result.chosen.cap
        figure.layout.title.subtitle.text = canary_caption(result)


def tokens_figure(result: Remembered) -> go.Figure:
    """Token by token: how many times likelier a canary's labels are than the same labels after other numbers."""
    figure = go.Figure()
    figure.add_heatmap(
        colorscale=WHITE_TO_BLUE, zmin=0, zmax=2, xgap=2, ygap=2, texttemplate="%{text}", textfont={"size": 14},
        hovertemplate="%{customdata}<extra></extra>",
        colorbar={"title": {"text": "times likelier", "side": "right"}, "thickness": 12, "tickvals": [0, 1, 2],
                  "ticktext": ["1", "10", "100"]},
    )  # fmt: skip
    figure.add_hrect(y0=0, y1=1, line={"color": VERMILLION, "width": 3}, fillcolor="rgba(0,0,0,0)")
    figure.update_layout(height=HEIGHT, title="What is remembered, token by token", margin_t=100)
    columns = ["intent", *AROUND, *(f"digit {k}" for k in range(1, 8))]
    figure.update_xaxes(
        title="token of the canary", tickvals=list(range(len(columns))), ticktext=columns, tickangle=-40
    )
    figure.update_yaxes(
        title="copies in the training set", type="category", ticks="", ticklabelstandoff=4, showgrid=False
    )
    update_tokens(figure, result)
    return figure


def update_tokens(figure: go.Figure, result: Remembered) -> None:
    rows, place = result.rows, result.rows.index(result.chosen)
    with figure.batch_update():
        heat = figure.data[0]
        heat.y = [str(row.repetitions) for row in rows]
        heat.z = [[_times(token) for token in row.trace] for row in rows]
        heat.text = [_cells(row) for row in rows]
        heat.customdata = [[_hover(token) for token in row.trace] for row in rows]
        figure.layout.shapes[0].update(y0=place - 0.5, y1=place + 0.5)
        figure.layout.title.subtitle.text = canary_caption(result)


def _times(token: Traced) -> float:
    """Decades by which its label is likelier than after other numbers; nothing where it is less likely."""
    return max(0.0, math.log10(max(token.probability, 1e-9) / max(token.elsewhere, 1e-9)))


def _cells(row: Memorisation) -> list[str]:
    """The digits of the canary; all else is the same for every one of them."""
    return [str(DIGITS.index(token.token)) if token.token in DIGITS else "" for token in row.trace]


def _hover(token: Traced) -> str:
    word = token.token if len(token.token) < 20 else "the whole utterance"
    return f"{word}: {token.label}<br>probability {d(token.probability)}, after other numbers {d(token.elsewhere)}"


# ---- Runs with noise -----------------------------------------------------------------------------------------------

RUN_LOOKS = {
    ("loss", True): "square",
    ("loss", False): "square-open",
    ("lira-online", True): "circle",
    ("lira-online", False): "circle-open",
}
RUN_COLORS = {"loss": PURPLE, "lira-online": BLUE}
Runs = Sequence[Defended]


def epsilon_figure(runs: Runs) -> go.Figure:
    """AUC of both attacks against the epsilon that holds, and without noise."""
    figure = _runs_figure("Does less ε mean less leakage?")
    for attack, color in RUN_COLORS.items():
        figure.add_hline(
            y=0.5, line={"color": color, "dash": "dash", "width": 1.5}, annotation={"text": attack, "x": 0}
        )
    figure.add_hline(y=0.5, line=CHANCE, annotation=_note("guessing", "bottom"))
    figure.update_xaxes(
        title="true ε, were α public (at δ = n<sup>-1.1</sup>)", type="log", exponentformat="power", dtick=1
    )
    figure.update_yaxes(title="AUC of the attack")
    update_epsilon(figure, runs, [])
    return figure


def update_epsilon(figure: go.Figure, runs: Runs, yours: Runs) -> None:
    plain = next((run for run in runs if run.epsilon is None), None)
    with figure.batch_update():
        _fill(figure, runs, yours, lambda run, found: (run.epsilon, found.auc, found.auc_interval))
        for k, attack in enumerate(RUN_COLORS):
            there = plain is not None and attack in plain.found
            level = plain.found[attack].auc if plain is not None and there else 0.5
            figure.layout.shapes[k].update(y0=level, y1=level, visible=there)
            figure.layout.annotations[k].update(
                y=level,
                text=f"SGD, {ATTACKS[attack]}" if there else "",
                xanchor="left",
                yanchor="bottom",
                showarrow=False,
            )
        epsilons = [math.log10(run.epsilon) for run in (*runs, *yours) if run.epsilon]
        figure.layout.xaxis.range = [math.floor(min(epsilons, default=0)), math.ceil(max(epsilons, default=6))]
        figure.layout.yaxis.range = [0.45, 1]
        figure.layout.title.subtitle.text = (
            "Gaussian DP, replace-one, disjoint batches; void: seeds are<br>"
            "published, α private as printed. Each ε allows an AUC of 1"
        )


def price_figure(runs: Runs) -> go.Figure:
    """TPR at 1 % FPR against the error that the model makes."""
    figure = _runs_figure("What does it cost?")
    figure.add_hline(y=1, line=CHANCE, annotation=_note("guessing", "top"))
    figure.update_xaxes(title="SER on the validation set", range=[0, 1.1])
    figure.update_yaxes(title="members found at 1 % FPR (%)", rangemode="tozero")
    update_price(figure, runs, [])
    return figure


def update_price(figure: go.Figure, runs: Runs, yours: Runs) -> None:
    def place(run: Defended, found: Found) -> tuple[float, float, tuple[float, float]]:
        low, high = found.tpr_interval
        return run.ser, 100 * found.tpr, (100 * low, 100 * high)

    with figure.batch_update():
        _fill(figure, runs, yours, place)
        epochs, corpus = runs[0].config.epochs, runs[0].config.corpus
        figure.layout.title.subtitle.text = (
            f"{corpus}, {epochs} epochs, seed {runs[0].config.seed}; left: useful, low: leaks little;<br>"
            "a cross: without noise, no guarantee; rings: your runs"
        )


def _runs_figure(title: str) -> go.Figure:
    """With a trace for every attack and variant, one for runs without noise, and one for the reader's own."""
    figure = go.Figure()
    for (attack, printed), symbol in RUN_LOOKS.items():
        marker = {"symbol": symbol, "size": 10, "color": RUN_COLORS[attack], "line": {"width": 2}}
        name = f"{ATTACKS[attack]}, {'as printed' if printed else 'sound'}"
        figure.add_scatter(name=name, mode="markers", marker=marker, error_y={**_bars(), "color": RUN_COLORS[attack]})
    for attack, color in RUN_COLORS.items():
        cross = {"symbol": "x", "size": 11, "color": color, "line": {"width": 1, "color": BLACK}}
        figure.add_scatter(
            name=f"{ATTACKS[attack]}, SGD", mode="markers", marker=cross, error_y=_bars(), showlegend=False
        )
    ring = {"symbol": "circle-open", "size": 20, "color": VERMILLION, "line": {"width": 3}}
    figure.add_scatter(name="your runs", mode="markers", marker=ring, showlegend=False, hoverinfo="skip")
    figure.update_layout(height=HEIGHT, title=title, legend=LEGEND, margin_t=146)
    return figure


def _fill(figure: go.Figure, runs: Runs, yours: Runs, place: Any) -> None:
    keys: list[tuple[str, bool | None]] = [*RUN_LOOKS, *((attack, None) for attack in RUN_COLORS)]
    for trace, (attack, printed) in zip(figure.data, keys, strict=False):
        kind = [run for run in (*runs, *yours) if attack in run.found and _variant(run) == printed]
        points = [place(run, run.found[attack]) for run in kind]
        trace.x, trace.y = [x for x, _, _ in points], [y for _, y, _ in points]
        trace.error_y.array = [interval[1] - y for _, y, interval in points]
        trace.error_y.arrayminus = [y - interval[0] for _, y, interval in points]
        trace.text = [f"z0 = {run.config.z0:g}, SER {run.ser:.2f}" for run in kind]
        trace.hovertemplate = "%{text}: %{y:.3g}"
    rings = [place(run, found) for run in yours for found in run.found.values()]
    figure.data[-1].x, figure.data[-1].y = [x for x, _, _ in rings], [y for _, y, _ in rings]


def _variant(run: Defended) -> bool | None:
    return None if run.config.method == "sgd" else run.config.as_printed


# ---- Drawn once ----------------------------------------------------------------------------------------------------


def two_attacks(attacks: Mapping[str, tuple[Array, Array]]) -> go.Figure:
    """ROC curves of two attacks on linear axes and, to the right, on log axes."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.14)
    for (name, sides), (color, dash) in zip(attacks.items(), ((BLUE, "solid"), (VERMILLION, "dash")), strict=True):
        curve = roc(*sides)
        for col in (1, 2):
            line = {"color": color, "dash": dash}
            figure.add_scatter(
                x=curve.fpr, y=curve.tpr, name=name, mode="lines", line=line, showlegend=col == 1, row=1, col=col
            )
    for col in (1, 2):
        figure.add_scatter(x=[1e-3, 1], y=[1e-3, 1], mode="lines", line=CHANCE, showlegend=False, row=1, col=col)
    figure.update_layout(height=400, title="One comparison, two pictures", legend=LEGEND)
    figure.layout.title.subtitle.text = "made-up scores, no model: no guarantee; dotted: guessing"
    figure.update_xaxes(title="false-positive rate")
    figure.update_yaxes(title="true-positive rate")
    figure.update_xaxes(**LOG, range=[-3, 0.03], row=1, col=2)
    figure.update_yaxes(**LOG, range=[-3, 0.03], row=1, col=2)
    return figure


# ---- Small parts ---------------------------------------------------------------------------------------------------


def _bars() -> dict[str, Any]:
    return {"type": "data", "symmetric": False, "width": 4, "color": "#444"}


def _note(text: str, side: str) -> dict[str, Any]:
    return {"text": text, "x": 1, "xanchor": "right", "yanchor": side, "showarrow": False}


def _steps(x: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The outline of a band whose edges are steps like those of the curve, for "toself"."""
    corners = np.repeat(x, 2)[1:]
    upper, lower = np.repeat(high, 2)[:-1], np.repeat(low, 2)[:-1]
    return np.concatenate([corners, corners[::-1]]), np.concatenate([upper, lower[::-1]])
