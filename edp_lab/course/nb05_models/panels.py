"""The panels of ``05_data_and_models.ipynb``: a corpus to browse, a CRF to bend, a score to break.

What a result holds is in `compute`; nothing is computed here but places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from edp_lab.corpora import Utterance
from edp_lab.corpora.metrics import Scores, spans
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import choice, number
from edp_lab.course.kit.figure import Figure, Trace, figure, line
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Words
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb05_models import compute
from edp_lab.course.nb05_models.compute import (
    REFERENCE,
    SLOTS,
    TAGS,
    TRUE_TAGS,
    WORDS,
    Architecture,
    Browsed,
    CorpusLook,
    CrfView,
    Leak,
    Scored,
)
from edp_lab.models import Prediction

words = Words(__file__)
HATCH = {"shape": "/", "fillmode": "overlay", "fgcolor": "white"}
ROWS = {"autorange": "reversed", "ticks": "", "showgrid": False}  # of an axis with names, from top to bottom


def call(function: Callable[..., Any]) -> Callable[..., str]:
    """The Python that computes what a panel shows."""
    module = function.__module__.rpartition(".")[0]

    def command(result: Any, **values: Any) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in values.items())
        return f"from {module} import compute\ncompute.{function.__name__}({given})"

    return command


def _bars(name: str, marker: dict[str, Any], hover: str, **more: Any) -> Trace:
    look = {"type": "bar", "orientation": "h", "name": name, "marker": marker}
    return {**look, "hovertemplate": f"{hover}<extra></extra>", **more}


# ---- Corpora -------------------------------------------------------------------------------------------------------


@panel("05")
def browse(corpus: str = "smart-home", seed: int = 0) -> Panel:
    """Look into the corpora that are there; `result` is a `Browsed`."""
    there = [name for name, found in compute.available(corpus).items() if found]
    return Panel(
        "Look into a corpus",
        "One annotated utterance in the text, and in the pictures how often its labels occur beside all others.",
        {
            "corpus": choice("corpus", corpus, {name if len(name) <= 26 else f"…{name[-24:]}": name for name in there}),
            "utterance": number("utterance", 0, range(301), unit="its number"),
            "labels": choice("labels", "intents", {"intents": "intents", "slots": "slots"}),
            "seed": number("seed of the split", seed, range(max(21, seed + 1)), unit="another split"),
        },
        compute.browse,
        [draw_labels, draw_ranks],
        words.browse,
        call(compute.browse),
    )


SHOWN = 12  # labels with a bar of their own


def draw_labels(result: Browsed) -> Figure:
    """The most frequent labels, those of the utterance marked."""
    total = sum(count for _, count in result.counts) or 1
    top = list(result.counts[:SHOWN])
    top += [(label, result.count(label)) for label in result.own if label not in dict(top)]
    mine = [(label, count) for label, count in top if label in result.own]
    rest = total - sum(count for _, count in top)

    def shares(rows: Sequence[tuple[str, int]]) -> dict[str, Any]:
        return {"y": [_short(label) for label, _ in rows], "x": [100 * count / total for _, count in rows]}

    hover = "%{y}: %{x:.2f} %"
    return figure(
        [
            _bars("other labels", {"color": BLUE}, hover, **shares(top)),
            _bars("of this utterance", {"color": ORANGE, "pattern": HATCH}, hover, **shares(mine)),
        ],
        f"{result.kind.capitalize()} by frequency",
        f"{_short(result.look.corpus.name)}: {len(top)} of {len(result.counts)} {result.kind};<br>"
        f"those not shown together: {rest / total:.0%}",
        460,
        barmode="overlay",
        bargap=0.25,
        margin={"t": 116},
        xaxis={"title": f"share of all {'slots' if result.kind == 'slots' else 'utterances'} (%)"},
        yaxis={"title": result.kind.removesuffix("s"), **ROWS, "ticklabelstandoff": 4, "tickfont": {"size": 12}},
    )


def draw_ranks(result: Browsed) -> Figure:
    """How often each label occurs, by rank, on log axes; and where ten training examples are."""
    counts = [count for _, count in result.counts]
    place = {label: rank for rank, (label, _) in enumerate(result.counts, 1)}
    ten = 10 * len(result.look.lengths) / result.look.train
    hover = {"hovertemplate": "rank %{x}: %{y} times<extra></extra>"}
    own = {"color": ORANGE, "symbol": "diamond", "size": 12, "line": {"color": BLACK, "width": 1}}
    ranks, chosen = list(range(1, len(counts) + 1)), [place[label] for label in result.own]
    log = {"type": "log", "dtick": 1, "tickformat": ","}
    ends = math.floor(math.log10(min([ten, *counts]))), math.ceil(math.log10(max([ten, *counts])))
    return figure(
        [
            {
                **line("labels", BLUE, x=ranks, y=counts, **hover),
                "mode": "lines+markers",
                "marker": {"color": BLUE, "size": 6},
            },
            {
                **fig.points("of this utterance", ORANGE, "diamond", 12, **hover),
                "marker": own,
                "x": chosen,
                "y": [counts[rank - 1] for rank in chosen],
            },
        ],
        "How many examples a label has",
        f"{result.rare} of {len(counts)} {result.kind} are below the dotted line:<br>"
        "fewer than ten examples in the training set, expected",
        460,
        margin={"t": 116},
        shapes=[fig.hline(ten, line={"color": "#666", "dash": "dot", "width": 1.5})],
        xaxis={"title": "rank of the label (1 is the most frequent)", **log},
        yaxis={"title": "occurrences in the corpus", **log, "range": list(ends)},
    )


def _short(name: str) -> str:
    return escape(name if len(name) <= 26 else f"{name[:12]}…{name[-12:]}")


def corpora_table(looks: Sequence[CorpusLook]) -> str:
    """Properties of corpora, one column each: HTML."""
    return words.corpora_table(looks, compute.PAPER_DELTA)


def missing_corpora(available: dict[str, bool]) -> str:
    """Which corpora are not there, and how to get them."""
    commands = [f"edp-lab data fetch {name}" for name, there in available.items() if not there]
    return "not here: " + "; ".join(commands) if commands else "all of them are here"


# ---- Networks ------------------------------------------------------------------------------------------------------


def network_drawing(network: Architecture) -> str:
    """A network from input to output, with a bar for what each layer learns: SVG."""
    return words.network(network)


def predicted(utterances: Sequence[Utterance], predictions: Sequence[Prediction]) -> str:
    """Utterances as a network reads them; what it gets wrong stands out: HTML."""
    pairs = []
    for utterance, said in zip(utterances, predictions, strict=True):
        true = utterance.tags or ()
        missed = [mine != tag for mine, tag in zip(said.tags, true, strict=True)]
        told = [f"{mine} ({tag})" if mine != tag else mine for mine, tag in zip(said.tags, true, strict=True)]
        pairs.append((utterance, said, told, missed))
    return words.predicted(pairs)


def scores_table(rows: dict[str, Scores]) -> str:
    """Scores by name: HTML."""
    return words.scores_table(rows)


def leak_figure(leak: Leak, told: str) -> go.Figure:
    """The loss of one utterance by the length of its longest neighbour, for three ways to pool; `told`: the caption."""
    on: dict[str, Any] = {"x": leak.neighbours, "hovertemplate": "%{x} words: loss %{y:.4f}"}
    own, largest, mean = leak.losses.values()
    curves = [
        line("masked maximum (the library's)", GREEN, y=own, line={"width": 3}, symbol="circle", size=7, **on),
        line("max, padding as 0", VERMILLION, "dash", y=largest, symbol="diamond-open", size=9, **on),
        line("mean, padding as 0", PURPLE, "dot", y=mean, symbol="x", size=8, **on),
    ]
    title = "Loss of one utterance, whose words never change"
    axes = {"xaxis": {"title": "words in the longest utterance of its batch"}, "yaxis": {"title": INTENT_LOSS}}
    return go.Figure(figure(curves, title, told, 400, margin={"t": 126}, **axes))


INTENT_LOSS = "its intent loss (nats)"

# ---- The CRF -------------------------------------------------------------------------------------------------------


@panel("05")
def crf() -> Panel:
    """Move one transition and one emission; `result` is a `CrfView`."""
    tags = partial(choice, options={tag: tag for tag in TAGS})
    scores = [k / 5 for k in range(-30, 31)]
    return Panel(
        "A CRF, word by word",
        "First, what each word says of its own tag, with the best path; then, how likely each tag is over all paths; "
        "last, what the CRF thinks of neighbours.",
        {
            "before": tags("transition from", "B-date"),
            "after": tags("to", "I-name"),
            "transition": number("transition set to", -4.0, scores, unit="score"),
            "word": choice("emission of", "april", {word: word for word in WORDS}),
            "tag": tags("as", "B-date"),
            "emission": number("emission raised by", 0.0, scores, unit="score"),
        },
        compute.crf_view,
        [draw_emissions, draw_marginals, draw_transitions],
        crf_in_words,
        call(compute.crf_view),
    )


def crf_in_words(result: CrfView) -> str:
    """The read-out: the best path, what its neighbours change, and the likeliest paths: HTML."""

    def legal(before: str, after: str) -> bool:
        return not after.startswith("I-") or before in (after, f"B-{after[2:]}")

    steps = zip(("O", *result.path), result.path, strict=False)
    return words.crf(
        result,
        len(TAGS) ** len(WORDS),
        TRUE_TAGS,
        forbidden=[f"{before} {after}" for before, after in steps if not legal(before, after)],
        changed=[word for word, mine, best in zip(WORDS, result.alone, result.path, strict=True) if mine != best],
        slots=[f"{label} = {' '.join(WORDS[start:end])}" for start, end, label in spans(result.path)],
    )


def _heat(x: Sequence[str], y: Sequence[str], z: Any, low: float, high: float, hover: str, **more: Any) -> Trace:
    look = {"type": "heatmap", "colorscale": [[0.0, "#ffffff"], [1.0, SKY]], "showscale": False, "xgap": 2, "ygap": 2}
    return {
        **look,
        "x": x,
        "y": y,
        "z": z,
        "zmin": low,
        "zmax": high,
        "hovertemplate": f"{hover}<extra></extra>",
        **more,
    }


def _lattice(
    result: CrfView, values: np.ndarray, form: str, low: float, high: float, hover: str, title: str, caption: str
) -> Figure:
    """A number for each tag of each word (T, K), the best path through them, and the best tag of each word alone."""
    silent: dict[str, Any] = {"hoverinfo": "skip"}
    square = {"symbol": "square-open", "size": 34, "color": BLACK, "line": {"width": 1.5}}
    traces = [
        _heat(WORDS, TAGS, values.T.tolist(), low, high, f"%{{x}} as %{{y}}: {hover}"),
        # Numbers stay readable through the path.
        {
            **line("Viterbi path", "", x=WORDS, y=result.path, **silent),
            "line": {"color": "rgba(213, 94, 0, 0.45)", "width": 12},
        },
        {**fig.points("each word by itself", BLACK, "", 0, x=WORDS, y=result.alone, **silent), "marker": square},
        {
            "type": "scatter",
            "mode": "text",
            "x": [word for _ in TAGS for word in WORDS],
            "y": [tag for tag in TAGS for _ in WORDS],
            "text": [form.format(value) for value in values.T.ravel()],
            "textfont": {"color": BLACK},
            "showlegend": False,
            **silent,
        },
    ]
    axes = {"xaxis": {"title": "word", "showgrid": False, "ticks": ""}, "yaxis": {"title": "tag", **ROWS}}
    return figure(traces, title, caption, 400, margin={"t": 116}, **axes)


def draw_emissions(result: CrfView) -> Figure:
    """What each word says of itself, the best tag of each alone, and the best path."""
    told = "numbers: score of each tag for each word by itself;<br>colour: the same"
    hover = "score of the word alone: %{z:.1f}"
    return _lattice(result, result.emissions, "{:.1f}", -4, 4, hover, "Emissions and the best path", told)


def draw_marginals(result: CrfView) -> Figure:
    """p(tag) of each word over all paths, and the best path."""
    paths = f"{len(TAGS) ** len(WORDS):,} paths"
    told = f"p(tag of a word), forward-backward over {paths};<br>each column sums to 1"
    return _lattice(result, result.marginals, "{:.2f}", 0, 1, "p = %{z:.3f}", "Marginals: all paths together", told)


def draw_transitions(result: CrfView) -> Figure:
    """Scores from tag to tag."""
    scores = result.transitions.tolist()
    text = [[f"{score:.1f}" for score in row] for row in scores]
    heat = _heat(TAGS, TAGS, scores, -4, 2, "%{y}, then %{x}: %{z:.1f}", text=text, texttemplate="%{text}")
    told = "score from row to column; -4 is where BIO forbids it,<br>unless you move it"
    columns = {"title": "tag of the next word", "showgrid": False, "ticks": ""}
    axes = {"xaxis": columns, "yaxis": {"title": "tag of a word", **ROWS}}
    return figure([heat], "Transitions", told, 400, margin={"t": 116}, **axes)


# ---- SER -----------------------------------------------------------------------------------------------------------


@panel("05")
def ser() -> Panel:
    """Break a prediction; `result` is a `Scored`."""

    def options(names: Any) -> dict[str, str]:
        return {name: name for name in names}

    return Panel(
        "Break a prediction",
        "One prediction that you spoil: first, what SER counts, then four scores of it.",
        {
            "intent": choice("intent", "right", options(("right", "wrong"))),
            "name": choice("the name", "cut short", options(compute.NAME_ERRORS)),
            "time": choice("the time", "right", options(compute.TIME_ERRORS)),
            "extra": choice("besides", "none", options(compute.EXTRAS)),
            "others": number("others, all right", 0, range(21), unit="utterances"),
        },
        compute.score_errors,
        [draw_errors, draw_scores],
        scored_in_words,
        call(compute.score_errors),
    )


def scored_in_words(result: Scored) -> str:
    """The read-out: the utterance in truth and as predicted, and its scores: HTML."""
    wrong = [mine != tag for mine, tag in zip(result.predicted, REFERENCE.tags or (), strict=True)]
    return words.ser(result, REFERENCE, SLOTS, wrong)


def draw_errors(result: Scored) -> Figure:
    """What SER counts: errors, by kind, above what there was to get right."""
    utterances = 1 + result.others
    told = {"texttemplate": "%{x}", "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    bars = [
        _bars(name, marker, f"{name}: %{{x}}", y=["errors", "to get right"], x=counts, **told)
        for name, marker, counts in (
            ("intents", {"color": BLUE}, [result.intent_wrong, utterances]),
            ("slots", {"color": ORANGE, "pattern": HATCH}, [result.slot_errors, utterances * SLOTS]),
        )
    ]
    return figure(
        bars,
        "What SER divides by what",
        f"errors: {result.errors}, to get right: {result.items}; SER {result.scores.ser:.3f}",
        340,
        barmode="stack",
        bargap=0.35,
        margin={"t": 116},
        legend={"traceorder": "normal"},
        xaxis={"title": "number"},
        yaxis={"title": "count of", **ROWS, "ticklabelstandoff": 4},
    )


def draw_scores(result: Scored) -> Figure:
    """The four scores."""
    scores, names = result.scores, ["SER", "intent accuracy", "slot F1", "exactly right"]
    shown = [scores.ser, scores.intent_accuracy, scores.slot_f1 or 0.0, scores.exact_match]
    marker = {"color": [VERMILLION, BLUE, BLUE, BLUE], "pattern": {**HATCH, "shape": ["/", "", "", ""]}}
    text = {"mode": "text", "textposition": "middle right", "texttemplate": " %{x:.2f}", "hoverinfo": "skip"}
    bars = {**_bars("", marker, "%{y}: %{x:.3f}", x=shown, y=names), "name": None, "showlegend": False}
    return figure(
        [bars, {"type": "scatter", "x": shown, "y": names, "showlegend": False, **text}],
        "Four scores",
        f"utterances: {1 + result.others}; hatched: lower is better",
        340,
        bargap=0.35,
        margin={"t": 116},
        xaxis={"title": "score (as a fraction)", "range": [0, 1.12 * max(1.0, *shown)]},
        yaxis={"title": "score", **ROWS, "ticklabelstandoff": 4},
    )
