"""The figures of ``05_data_and_models.ipynb``: those of a panel are drawn once, then patched in place by `update_...`.

What a result holds is in `compute` and `crf`; nothing is computed here but places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb05_models.compute import SLOTS, Architecture, Browsed, Layer, Leak, Scored
from edp_lab.course.nb05_models.crf_tour import TAGS, WORDS, CrfView

SHOWN = 12  # labels with a bar of their own
HATCH = {"shape": "/", "fillmode": "overlay", "fgcolor": "white"}
SCALE = [[0.0, "#ffffff"], [1.0, SKY]]
PATH = {"color": "rgba(213, 94, 0, 0.45)", "width": 12}  # numbers stay readable through it


# ---- Corpora -------------------------------------------------------------------------------------------------------


def labels_figure(result: Browsed) -> go.Figure:
    """The most frequent labels, those of the utterance marked."""
    figure = go.Figure()
    hover = "%{y}: %{x:.2f} %<extra></extra>"
    figure.add_bar(orientation="h", name="other labels", marker={"color": BLUE}, hovertemplate=hover)
    own = {"color": ORANGE, "pattern": HATCH}
    figure.add_bar(orientation="h", name="of this utterance", marker=own, hovertemplate=hover)
    figure.update_layout(height=460, barmode="overlay", bargap=0.25, margin_t=116, legend={"orientation": "h"})
    figure.update_yaxes(autorange="reversed", ticks="", ticklabelstandoff=4, showgrid=False, tickfont_size=12)
    update_labels(figure, result)
    return figure


def update_labels(figure: go.Figure, result: Browsed) -> None:
    total = sum(count for _, count in result.counts) or 1
    top = list(result.counts[:SHOWN])
    top += [(label, dict(result.counts)[label]) for label in result.own if label not in dict(top)]
    rest = total - sum(count for _, count in top)
    with figure.batch_update():
        others, own = figure.data
        others.y, others.x = [_short(label) for label, _ in top], [100 * count / total for _, count in top]
        mine = [(_short(label), 100 * count / total) for label, count in top if label in result.own]
        own.y, own.x = [label for label, _ in mine], [share for _, share in mine]
        figure.layout.xaxis.title.text = f"share of all {'slots' if result.kind == 'slots' else 'utterances'} (%)"
        figure.layout.yaxis.title.text = result.kind.removesuffix("s")
        figure.layout.title.text = f"{result.kind.capitalize()} by frequency"
        figure.layout.title.subtitle.text = (
            f"{_short(result.look.corpus.name)}: {len(top)} of {len(result.counts)} {result.kind};<br>"
            f"those not shown together: {rest / total:.0%}"
        )


def ranks_figure(result: Browsed) -> go.Figure:
    """How often each label occurs, by rank, on log axes; and where ten training examples are."""
    figure = go.Figure()
    hover = "rank %{x}: %{y} times<extra></extra>"
    marker = {"color": BLUE, "size": 6}
    figure.add_scatter(mode="lines+markers", name="labels", line={"color": BLUE}, marker=marker, hovertemplate=hover)
    own = {"color": ORANGE, "symbol": "diamond", "size": 12, "line": {"color": BLACK, "width": 1}}
    figure.add_scatter(mode="markers", name="of this utterance", marker=own, hovertemplate=hover)
    figure.update_layout(height=460, title="How many examples a label has", margin_t=116, legend={"orientation": "h"})
    log = {"type": "log", "dtick": 1, "tickformat": ","}
    figure.update_xaxes(title="rank of the label (1 is the most frequent)", **log)
    figure.update_yaxes(title="occurrences in the corpus", **log)
    figure.add_hline(y=1, line={"color": "#666", "dash": "dot", "width": 1.5})
    update_ranks(figure, result)
    return figure


def update_ranks(figure: go.Figure, result: Browsed) -> None:
    counts = [count for _, count in result.counts]
    place = {label: rank for rank, (label, _) in enumerate(result.counts, 1)}
    ten = 10 * len(result.look.lengths) / result.look.train
    with figure.batch_update():
        line, own = figure.data
        line.x, line.y = list(range(1, len(counts) + 1)), counts
        own.x, own.y = [place[label] for label in result.own], [counts[place[label] - 1] for label in result.own]
        figure.layout.shapes[0].update(y0=ten, y1=ten)
        lowest, highest = min([ten, *counts]), max([ten, *counts])
        figure.layout.yaxis.range = [math.floor(math.log10(lowest)), math.ceil(math.log10(highest))]
        figure.layout.title.subtitle.text = (
            f"{result.rare} of {len(counts)} {result.kind} are below the dotted line:<br>"
            "fewer than ten examples in the training set, expected"
        )


def _short(name: str) -> str:
    return escape(name if len(name) <= 26 else f"{name[:12]}…{name[-12:]}")


# ---- Networks ------------------------------------------------------------------------------------------------------

ROW, TOP, WIDTH = 50, 34, 760
DRAWING = """<div style="overflow-x:auto"><svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}"
 style="width:100%; min-width:600px; max-width:820px" font-family="system-ui, sans-serif" font-size="12.5" fill="#222">
<defs><marker id="edp-{mark}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L8 4L0 8z" fill="#444"/></marker></defs><rect width="{width}" height="{height}" fill="white"/>
<text x="8" y="18" font-weight="600" font-size="15">{title}</text>
<text x="470" y="18" fill="#555">numbers that are learnt</text>{rows}
<g stroke="#444" stroke-width="1.6" fill="none" marker-end="url(#edp-{mark})">{arrows}</g></svg></div>"""
LINE = """<rect x="{x}" y="{y}" width="{w}" height="38" rx="6" fill="white" stroke="{color}" stroke-width="2"/>
<text x="{text}" y="{one}" font-weight="600">{name}</text><text x="{text}" y="{two}" font-size="11.5">{what}</text>
<text x="326" y="{middle}" fill="#555" font-size="11.5">{out}</text>
<rect x="470" y="{bar}" width="{long:.1f}" height="14" fill="{color}"/>
<text x="{after:.1f}" y="{middle}">{count}</text>"""


def network_drawing(network: Architecture) -> str:
    """A network from input to output, with a bar for what each layer learns, as SVG that shrinks with its place."""
    layers = [*network.encoder, *network.heads]
    largest = max(layer.parameters for layer in layers)
    encoder = len(network.encoder)
    rows = [_row(layer, place, largest, place >= encoder) for place, layer in enumerate(layers)]
    last = encoder - 1
    arrows = [_down(150, place) for place in range(last)]
    arrows += [_branch(last, place) for place in range(encoder, min(encoder + 2, len(layers)))]
    arrows += [_down(190, encoder + 1)] if len(network.heads) > 2 else []
    return DRAWING.format(
        width=WIDTH,
        height=TOP + ROW * len(layers),
        title=f"{network.name}: {network.parameters / 1e6:.2f} million",
        mark=network.name[:4].strip().lower(),
        rows="".join(rows),
        arrows="".join(arrows),
    )


def _row(layer: Layer, place: int, largest: int, head: bool) -> str:
    y, x = TOP + ROW * place, 64 if head else 8
    long = 190 * layer.parameters / largest
    return LINE.format(
        x=x, y=y, w=312 - x, color=VERMILLION if head else BLUE, text=x + 10, one=y + 16, two=y + 31, name=layer.name,
        what=layer.what, middle=y + 24, out=layer.out, bar=y + 13, long=max(long, 1), after=478 + long,
        count=f"{layer.parameters:,}",
    )  # fmt: skip


def _down(x: int, place: int) -> str:
    return f'<path d="M{x} {TOP + ROW * place + 39}V{TOP + ROW * (place + 1) - 2}"/>'


def _branch(last: int, place: int) -> str:
    return f'<path d="M34 {TOP + ROW * last + 39}V{TOP + ROW * place + 19}H61"/>'


# ---- The CRF -------------------------------------------------------------------------------------------------------


def emissions_figure(result: CrfView) -> go.Figure:
    """What each word says of itself, the best tag of each alone, and the best path."""
    figure = _lattice("Emissions and the best path", "score of the word alone: %{z:.1f}", -4, 4)
    update_emissions(figure, result)
    return figure


def update_emissions(figure: go.Figure, result: CrfView) -> None:
    with figure.batch_update():
        _fill(figure, result.emissions, "{:.1f}", result)
        figure.layout.title.subtitle.text = "numbers: score of each tag for each word by itself;<br>colour: the same"


def marginals_figure(result: CrfView) -> go.Figure:
    """p(tag) of each word over all paths, and the best path."""
    figure = _lattice("Marginals: all paths together", "p = %{z:.3f}", 0, 1)
    update_marginals(figure, result)
    return figure


def update_marginals(figure: go.Figure, result: CrfView) -> None:
    with figure.batch_update():
        _fill(figure, result.marginals, "{:.2f}", result)
        figure.layout.title.subtitle.text = (
            f"p(tag of a word), forward-backward over {len(TAGS) ** len(WORDS):,} paths;<br>each column sums to 1"
        )


def transitions_figure(result: CrfView) -> go.Figure:
    """Scores from tag to tag."""
    figure = go.Figure()
    hover = "%{y}, then %{x}: %{z:.1f}<extra></extra>"
    figure.add_heatmap(
        x=TAGS, y=TAGS, colorscale=SCALE, zmin=-4, zmax=2, showscale=False, xgap=2, ygap=2, hovertemplate=hover
    )
    figure.data[0].texttemplate = "%{text}"
    figure.update_layout(height=400, title="Transitions", margin_t=116)
    figure.update_xaxes(title="tag of the next word", showgrid=False, ticks="")
    figure.update_yaxes(title="tag of a word", autorange="reversed", showgrid=False, ticks="")
    update_transitions(figure, result)
    return figure


def update_transitions(figure: go.Figure, result: CrfView) -> None:
    with figure.batch_update():
        figure.data[0].z = result.transitions.tolist()
        figure.data[0].text = [[f"{score:.1f}" for score in row] for row in result.transitions.tolist()]
        figure.layout.title.subtitle.text = (
            "score from row to column; -4 is where BIO forbids it,<br>unless you move it"
        )


def _lattice(title: str, hover: str, low: float, high: float) -> go.Figure:
    figure = go.Figure()
    figure.add_heatmap(
        x=WORDS, y=TAGS, colorscale=SCALE, zmin=low, zmax=high, showscale=False, xgap=2, ygap=2,
        hovertemplate=f"%{{x}} as %{{y}}: {hover}<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(x=WORDS, name="Viterbi path", mode="lines", line=PATH, hoverinfo="skip")
    alone = {"symbol": "square-open", "size": 34, "color": BLACK, "line": {"width": 1.5}}
    figure.add_scatter(x=WORDS, name="each word by itself", mode="markers", marker=alone, hoverinfo="skip")
    places = {"x": [word for _ in TAGS for word in WORDS], "y": [tag for tag in TAGS for _ in WORDS]}
    figure.add_scatter(**places, mode="text", textfont={"color": BLACK}, showlegend=False, hoverinfo="skip")
    figure.update_layout(height=400, title=title, margin_t=116, legend={"orientation": "h"})
    figure.update_xaxes(title="word", showgrid=False, ticks="")
    figure.update_yaxes(title="tag", autorange="reversed", showgrid=False, ticks="")
    return figure


def _fill(figure: go.Figure, values: NDArray[np.float64], form: str, result: CrfView) -> None:
    """`values` (T, K) of the heat map, with a row for each tag."""
    cells, path, alone, numbers = figure.data
    cells.z = values.T.tolist()
    numbers.text = [form.format(value) for value in values.T.ravel()]
    alone.y, path.y = result.alone, result.path


# ---- Padding -------------------------------------------------------------------------------------------------------


def leak_figure(leak: Leak, told: str) -> go.Figure:
    """The loss of one utterance by the length of its longest neighbour, for three ways to pool; `told`: the caption."""
    looks: dict[str, dict[str, Any]] = {
        "the library's": {"line": {"color": GREEN, "width": 3}, "marker": {"symbol": "circle", "size": 7}},
        "max, padding as 0": {
            "line": {"color": VERMILLION, "dash": "dash"},
            "marker": {"symbol": "diamond-open", "size": 9},
        },
        "mean, padding as 0": {"line": {"color": PURPLE, "dash": "dot"}, "marker": {"symbol": "x", "size": 8}},
    }
    figure = go.Figure()
    for name, look in looks.items():
        values, hover = leak.losses[name], "%{x} words: loss %{y:.4f}"
        figure.add_scatter(x=leak.neighbours, y=values, name=name, mode="lines+markers", hovertemplate=hover, **look)
    title = "Loss of one utterance, whose words never change"
    figure.update_layout(height=400, title=title, margin_t=126, legend={"orientation": "h"})
    figure.data[0].name = "masked maximum (the library's)"
    figure.update_xaxes(title="words in the longest utterance of its batch")
    figure.update_yaxes(title="its intent loss (nats)")
    figure.layout.title.subtitle.text = told
    return figure


# ---- SER -----------------------------------------------------------------------------------------------------------


def errors_figure(result: Scored) -> go.Figure:
    """What SER counts: errors, by kind, above what there was to get right."""
    figure = go.Figure()
    looks: Mapping[str, dict[str, Any]] = {
        "intents": {"color": BLUE},
        "slots": {"color": ORANGE, "pattern": HATCH},
    }
    for name, marker in looks.items():
        hover = f"{name}: %{{x}}<extra></extra>"
        figure.add_bar(
            y=["errors", "to get right"], name=name, orientation="h", marker=marker, hovertemplate=hover,
            texttemplate="%{x}", textposition="inside", insidetextanchor="middle", textangle=0,
        )  # fmt: skip
    figure.update_layout(height=340, barmode="stack", bargap=0.35, margin_t=116)
    figure.update_layout(legend={"orientation": "h", "traceorder": "normal"})
    figure.update_layout(title="What SER divides by what")
    figure.update_xaxes(title="number")
    figure.update_yaxes(title="", autorange="reversed", ticks="", ticklabelstandoff=4, showgrid=False)
    figure.layout.yaxis.title.text = "count of"
    update_errors(figure, result)
    return figure


def update_errors(figure: go.Figure, result: Scored) -> None:
    utterances = 1 + result.others
    with figure.batch_update():
        intents, slots = figure.data
        intents.x, slots.x = [result.intent_wrong, utterances], [result.slot_errors, utterances * SLOTS]
        figure.layout.title.subtitle.text = (
            f"errors: {result.errors}, to get right: {result.items}; SER {result.scores.ser:.3f}"
        )


def scores_figure(result: Scored) -> go.Figure:
    """The four scores."""
    figure = go.Figure()
    names = ["SER", "intent accuracy", "slot F1", "exactly right"]
    pattern = {"shape": ["/", "", "", ""], "fillmode": "overlay", "fgcolor": "white"}
    marker = {"color": [VERMILLION, BLUE, BLUE, BLUE], "pattern": pattern}
    hover = "%{y}: %{x:.3f}<extra></extra>"
    figure.add_bar(y=names, orientation="h", marker=marker, showlegend=False, hovertemplate=hover)
    look = {"mode": "text", "textposition": "middle right", "texttemplate": " %{x:.2f}", "hoverinfo": "skip"}
    figure.add_scatter(y=names, showlegend=False, **look)
    figure.update_layout(height=340, title="Four scores", margin_t=116, bargap=0.35)
    figure.update_xaxes(title="score (as a fraction)")
    figure.update_yaxes(title="score", autorange="reversed", ticks="", ticklabelstandoff=4, showgrid=False)
    update_scores(figure, result)
    return figure


def update_scores(figure: go.Figure, result: Scored) -> None:
    scores = result.scores
    shown: Sequence[float] = (scores.ser, scores.intent_accuracy, scores.slot_f1 or 0.0, scores.exact_match)
    with figure.batch_update():
        for trace in figure.data:
            trace.x = shown
        figure.layout.xaxis.range = [0, 1.12 * max(1.0, *shown)]
        figure.layout.title.subtitle.text = f"utterances: {1 + result.others}; hatched: lower is better"
