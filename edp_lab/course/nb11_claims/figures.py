"""The figures of ``11_claims.ipynb``; each is drawn once from a result, then patched in place by its `update_...`."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from edp_lab.course.kit.theme import BLUE, GREEN, ORANGE, SKY, VERMILLION
from edp_lab.course.nb11_claims.compute import Turned, View
from edp_lab.reproduce.evidence import Verdict

COLORS = {Verdict.HOLDS: GREEN, Verdict.CONDITIONAL: SKY, Verdict.FAILS: VERMILLION, Verdict.UNTESTABLE: "#999999"}
PATTERNS = {Verdict.HOLDS: "", Verdict.CONDITIONAL: "/", Verdict.FAILS: "x", Verdict.UNTESTABLE: "."}
SYMBOLS = {
    Verdict.HOLDS: "circle",
    Verdict.CONDITIONAL: "diamond",
    Verdict.FAILS: "x",
    Verdict.UNTESTABLE: "circle-open",
}


# ---- Rows by verdict -------------------------------------------------------------------------------------------------


def counts_figure(result: View) -> go.Figure:
    """How many claims of each document have which verdict."""
    figure = go.Figure(
        [
            go.Bar(
                name=str(verdict),
                orientation="h",
                marker={"color": COLORS[verdict], "pattern": _pattern(verdict)},
                textfont={"color": "black", "size": 14},
                textposition="inside",
                insidetextanchor="middle",
                hovertemplate="%{y}: %{x}<extra>" + str(verdict) + "</extra>",
            )
            for verdict in Verdict
        ]
    )
    figure.update_layout(barmode="stack", height=330, title="Claims by verdict")
    figure.update_layout(legend={"orientation": "h", "traceorder": "normal"})
    figure.update_xaxes(title="number of claims", tickformat="d")
    figure.update_yaxes(title="document", showgrid=False, autorange="reversed")
    update_counts(figure, result)
    return figure


def _pattern(verdict: Verdict) -> dict[str, Any]:
    """Light strokes on the verdict's colour; without a background of its own a patterned bar would be white."""
    return {"shape": PATTERNS[verdict], "bgcolor": COLORS[verdict], "fgcolor": "white", "solidity": 0.2, "size": 10}


def update_counts(figure: Any, result: View) -> None:
    documents = list(result.counts)
    with figure.batch_update():
        for bar, verdict in zip(figure.data, Verdict, strict=True):
            values = [result.counts[document][verdict] for document in documents]
            bar.x, bar.y, bar.text = values, documents, [str(value) if value else "" for value in values]
        figure.layout.title.subtitle.text = (
            f"{len(result.entries)} of {len(result.ledger.entries)} claims pass the filter;<br>"
            f"evidence of {result.ledger.date}"
        )


# ---- Claimed and found -----------------------------------------------------------------------------------------------


def spans_figure(result: View) -> go.Figure:
    """What is claimed or allowed, and what was found, of every claim about one number; log scale."""
    claimed = {"color": ORANGE, "symbol": "square-open", "size": 10, "line": {"width": 2}}
    found = {"color": BLUE, "symbol": "circle", "size": 9}
    figure = go.Figure(
        [
            go.Scatter(mode="lines", line={"color": "#bbb", "width": 2}, hoverinfo="skip", showlegend=False),
            go.Scatter(mode="markers", name="claimed or allowed", marker=claimed, hovertemplate="%{y}: %{x:.3g}"),
            go.Scatter(mode="markers", name="found", marker=found, hovertemplate="%{y}: %{x:.3g}"),
            go.Scatter(
                mode="markers", name="selected", hoverinfo="skip", showlegend=False,
                marker={"symbol": "circle-open", "size": 22, "color": "#000", "line": {"width": 2}},
            ),
        ]
    )  # fmt: skip
    figure.update_layout(height=680, title="What is claimed, and what was found", margin={"b": 90, "r": 36})
    figure.update_xaxes(type="log", title="value, in the claim's own unit", exponentformat="power", dtick=1)
    figure.update_yaxes(title="claim, and what its number is", autorange="reversed", tickfont_size=11, ticks="")
    update_spans(figure, result)
    return figure


def update_spans(figure: Any, result: View) -> None:
    names = [f"{span.entry.id}  {span.what}" for span in result.spans]
    claimed, found = ([getattr(span, side) for span in result.spans] for side in ("claimed", "found"))
    with figure.batch_update():
        lines, left, right, ring = figure.data
        lines.x = [x for one, other in zip(claimed, found, strict=True) for x in (one, other, None)]
        lines.y = [y for name in names for y in (name, name, None)]
        left.x, left.y, right.x, right.y = claimed, names, found, names
        chosen = [k for k, span in enumerate(result.spans) if result.selected and span.entry.id == result.selected.id]
        ring.x, ring.y = [found[k] for k in chosen], [names[k] for k in chosen]
        figure.layout.xaxis.range = _decades([*claimed, *found])
        figure.layout.title.subtitle.text = (
            "each row has its own unit; each ε has the accountant and δ<br>that its claim names; ring: the selected row"
        )


# ---- Change the evidence ---------------------------------------------------------------------------------------------


def beyond_figure(result: Turned) -> go.Figure:
    """How many times as much as claimed was found, by claim, marked with the verdict; log scale."""
    figure = go.Figure(
        [
            go.Scatter(mode="lines", line={"color": "#bbb", "width": 3}, hoverinfo="skip", showlegend=False),
            *(
                go.Scatter(
                    mode="markers",
                    name=str(verdict),
                    marker={"size": 14, "symbol": SYMBOLS[verdict], "color": COLORS[verdict], "line": {"width": 2}},
                    hovertemplate="%{y}: %{x:.3g} times<extra></extra>",
                )
                for verdict in Verdict
                if verdict is not Verdict.UNTESTABLE
            ),
        ]
    )
    figure.update_layout(height=400, title="How far the truth is from the claim", margin={"b": 60, "r": 36})
    figure.update_xaxes(type="log", title="found over claimed or allowed (times)", exponentformat="power", dtick=1)
    figure.update_yaxes(title="claim", autorange="reversed", categoryorder="array", categoryarray=list(NAMES.values()))
    figure.add_vline(x=1, line={"color": "#444", "dash": "dot", "width": 2})
    update_beyond(figure, result)
    return figure


NAMES = {"P2": "P2  noise", "P5": "P5  sensitivity", "P10": "P10  n δ over 0.1", "P22": "P22  number of GPUs"}


def update_beyond(figure: Any, result: Turned) -> None:
    with figure.batch_update():
        lines, *marks = figure.data
        lines.x = [x for factor in result.beyond.values() for x in (1.0, factor, None)]
        lines.y = [y for name in result.beyond for y in (NAMES[name], NAMES[name], None)]
        for mark in marks:
            own = [name for name, one in result.evidence.items() if str(one.verdict) == mark.name]
            mark.x, mark.y = [result.beyond[name] for name in own], [NAMES[name] for name in own]
        figure.layout.xaxis.range = _decades([1.0, *result.beyond.values()])
        figure.layout.title.subtitle.text = (
            f"ε of one epoch: {result.epsilon:.3g} (Gaussian DP, were α public),<br>"
            f"claimed {result.claimed:.3g} (zCDP); δ = {result.delta:.2g}, seed 0"
        )


def _decades(values: list[float]) -> list[float]:
    """Exponents of the powers of ten around positive values."""
    logs = [math.log10(value) for value in values if value > 0] or [0.0]
    return [math.floor(min(logs) - 0.1), math.ceil(max(logs) + 0.1)]
