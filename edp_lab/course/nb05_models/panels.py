"""The panels of ``05_data_and_models.ipynb``: a corpus to browse, a CRF to bend, a score to break."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from edp_lab.corpora import Utterance
from edp_lab.corpora.metrics import spans
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import choice, number
from edp_lab.course.kit.figure import Figure, Trace, bar, line
from edp_lab.course.kit.inputs import Array
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Html, Words
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb05_models import compute
from edp_lab.course.nb05_models.compute import TAGS, WORDS, Browsed, CrfView, Scored
from edp_lab.models import Prediction

figure = partial(fig.figure, top=116)
words = Words(__file__, PAPER_DELTA=compute.PAPER_DELTA)
corpora_table, scores_table = words.corpora_table, words.scores_table  # of `CorpusLook`s, of scores by name
network_drawing = words.network  # an `Architecture` from input to output, with bars for what each layer learns
ROWS = {"autorange": "reversed", "ticks": "", "showgrid": False}  # of an axis with names, from top to bottom
WIDE = {**ROWS, "ticklabelstandoff": 4}


def call(function: Callable[..., Any]) -> Callable[..., str]:
    """The Python that computes what a panel shows."""
    module = function.__module__.rpartition(".")[0]

    def command(result: Any, **values: Any) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in values.items())
        return f"from {module} import compute\ncompute.{function.__name__}({given})"

    return command


# ---- Corpora -------------------------------------------------------------------------------------------------------


@panel("05")
def browse(corpus: str = "smart-home", seed: int = 0) -> Panel:
    """Look into the corpora that are there; `result` is a `Browsed`."""
    there = [name for name, found in compute.available(corpus).items() if found]
    return Panel(
        "Look into a corpus",
        "One annotated utterance in the text, and in the pictures how often its labels occur beside all others.",
        compute.browse,
        [draw_labels, draw_ranks],
        words.browse,
        call(compute.browse),
        corpus=choice("corpus", corpus, {name if len(name) <= 26 else f"…{name[-24:]}": name for name in there}),
        utterance=number("utterance", 0, range(301), unit="its number"),
        labels=choice("labels", "intents", ("intents", "slots")),
        seed=number("seed of the split", seed, range(max(21, seed + 1)), unit="another split"),
    )


SHOWN = 12  # labels with a bar of their own


def draw_labels(result: Browsed) -> Figure:
    """The most frequent labels, those of the utterance marked."""
    total = sum(result.counts.values()) or 1
    top = list(dict.fromkeys([*list(result.counts)[:SHOWN], *result.own]))
    rest = total - sum(result.counts[label] for label in top)

    def shares(labels: Sequence[str]) -> dict[str, Any]:
        return {"y": [_short(label) for label in labels], "x": [100 * result.counts[label] / total for label in labels]}

    mine = [label for label in top if label in result.own]
    return figure(
        f"{result.kind.capitalize()} by frequency",
        f"{_short(result.look.corpus.name)}: {len(top)} of {len(result.counts)} {result.kind};\n"
        f"those not shown together: {rest / total:.0%}",
        bar("other labels", BLUE, orientation="h", **shares(top)),
        bar("of this utterance", ORANGE, "/", orientation="h", **shares(mine)),
        height=460,
        hover="%{y}: %{x:.2f} %" + fig.ALONE,
        barmode="overlay",
        bargap=0.25,
        xaxis=fig.axis(f"share of all {'slots' if result.kind == 'slots' else 'utterances'} (%)"),
        yaxis=fig.axis(result.kind.removesuffix("s"), **WIDE, tickfont={"size": 12}),
    )


def draw_ranks(result: Browsed) -> Figure:
    """How often each label occurs, by rank, on log axes; and where ten training examples are."""
    counts, labels = list(result.counts.values()), list(result.counts)
    ten = 10 * len(result.look.lengths) / result.look.parts["train"]
    mine = {"x": [labels.index(label) + 1 for label in result.own], "y": [result.counts[label] for label in result.own]}
    edge = {"line": {"color": BLACK}}
    log = {"type": "log", "dtick": 1, "tickformat": ","}
    ends = [math.floor(math.log10(min([ten, *counts]))), math.ceil(math.log10(max([ten, *counts])))]
    return figure(
        "How many examples a label has",
        f"{result.rare} of {len(counts)} {result.kind} are below the dotted line:\n"
        "fewer than ten examples in the training set, expected",
        line("labels", BLUE, symbol="circle", size=6, x=list(range(1, len(counts) + 1)), y=counts),
        fig.points("of this utterance", ORANGE, "diamond", 12, edge=1, marker=edge, **mine),
        fig.hline(ten, line=fig.DOTTED),
        height=460,
        hover="rank %{x}: %{y} times" + fig.ALONE,
        xaxis=fig.axis("rank of the label (1 is the most frequent)", **log),
        yaxis=fig.axis("occurrences in the corpus", ends, **log),
    )


def _short(name: str) -> str:
    return name if len(name) <= 26 else f"{name[:12]}…{name[-12:]}"


def missing_corpora(available: Mapping[str, bool]) -> str:
    """Which corpora are not there, and how to get them."""
    commands = [f"edp-lab data fetch {name}" for name, there in available.items() if not there]
    return "not here: " + "; ".join(commands) if commands else "all of them are here"


# ---- Networks ------------------------------------------------------------------------------------------------------


def predicted(utterances: Sequence[Utterance], predictions: Sequence[Prediction]) -> Html:
    """Utterances as a network reads them; what it gets wrong stands out."""
    pairs = []
    for utterance, said in zip(utterances, predictions, strict=True):
        tags = list(zip(said.tags, utterance.tags or (), strict=True))
        told = [mine if mine == true else f"{mine} ({true})" for mine, true in tags]
        pairs.append((utterance, said, told, [mine != true for mine, true in tags]))
    return words.predicted(pairs)


def leak_figure(leak: compute.Leak, told: str) -> fig.Still:
    """The loss of one utterance by the length of its longest neighbour, for three ways to pool; `told`: the caption."""
    looks = (
        ("masked maximum (the library's)", GREEN, "solid", {"width": 3, "symbol": "circle", "size": 7}),
        ("max, padding as 0", VERMILLION, "dash", {"symbol": "diamond-open", "size": 9}),
        ("mean, padding as 0", PURPLE, "dot", {"symbol": "x", "size": 8}),
    )
    curves = [
        line(name, color, dash, x=leak.neighbours, y=losses, **look)
        for (name, color, dash, look), losses in zip(looks, leak.losses.values(), strict=True)
    ]
    title, hover = "Loss of one utterance, whose words never change", "%{x} words: loss %{y:.4f}"
    x, y = fig.axis("words in the longest utterance of its batch"), fig.axis("its intent loss (nats)")
    return fig.still(title, told, *curves, height=400, top=126, hover=hover, xaxis=x, yaxis=y)


# ---- The CRF -------------------------------------------------------------------------------------------------------


@panel("05")
def crf() -> Panel:
    """Move one transition and one emission; `result` is a `CrfView`."""
    scores = [k / 5 for k in range(-30, 31)]
    return Panel(
        "A CRF, word by word",
        "First, what each word says of its own tag, with the best path; then, how likely each tag is over all paths; "
        "last, what the CRF thinks of neighbours.",
        compute.crf_view,
        [draw_emissions, draw_marginals, draw_transitions],
        crf_in_words,
        call(compute.crf_view),
        before=choice("transition from", "B-date", TAGS),
        after=choice("to", "I-name", TAGS),
        transition=number("transition set to", -4.0, scores, unit="score"),
        word=choice("emission of", "april", WORDS),
        tag=choice("as", "B-date", TAGS),
        emission=number("emission raised by", 0.0, scores, unit="score"),
    )


def crf_in_words(result: CrfView) -> Html:
    """The read-out: the best path, what its neighbours change, and the likeliest paths."""
    steps = zip(("O", *result.path), result.path, strict=False)
    inside = ((before, after) for before, after in steps if after.startswith("I-"))
    return words.crf(
        result,
        len(TAGS) ** len(WORDS),
        compute.TRUE_TAGS,
        forbidden=[f"{before} {after}" for before, after in inside if before not in (after, f"B-{after[2:]}")],
        changed=[word for word, mine, best in zip(WORDS, result.alone, result.path, strict=True) if mine != best],
        slots=[f"{label} = {' '.join(WORDS[start:end])}" for start, end, label in spans(result.path)],
    )


def _heat(x: Sequence[str], y: Sequence[str], z: Any, low: float, high: float, hover: str, **more: Any) -> Trace:
    look = {"type": "heatmap", "colorscale": [[0.0, "#ffffff"], [1.0, SKY]], "showscale": False, "xgap": 2, "ygap": 2}
    return fig.trace("", look, x=x, y=y, z=z, zmin=low, zmax=high, hover=hover + fig.ALONE, **more)


def _lattice(
    result: CrfView, values: Array, form: str, low: float, high: float, hover: str, title: str, caption: str
) -> Figure:
    """A number for each tag of each word (T, K), the best path through them, and the best tag of each word alone."""
    sheer = "rgba(213, 94, 0, 0.45)"  # numbers stay readable through it
    silent: dict[str, Any] = {"x": WORDS, "hoverinfo": "skip"}
    text = [form.format(value) for value in values.T.ravel()]
    places = {"x": [word for _ in TAGS for word in WORDS], "y": [tag for tag in TAGS for _ in WORDS]}
    numbers = {"mode": "text", "text": text, "textfont": {"color": BLACK}, "showlegend": False, "hoverinfo": "skip"}
    traces = [
        _heat(WORDS, TAGS, values.T.tolist(), low, high, f"%{{x}} as %{{y}}: {hover}"),
        line("Viterbi path", sheer, width=12, y=result.path, **silent),
        fig.points("each word by itself", BLACK, "square-open", 34, y=result.alone, **silent),
        fig.trace("", numbers, **places),
    ]
    axes = {"xaxis": fig.axis("word", showgrid=False, ticks=""), "yaxis": fig.axis("tag", **ROWS)}
    return figure(title, caption, *traces, height=400, **axes)


def draw_emissions(result: CrfView) -> Figure:
    """What each word says of itself, the best tag of each alone, and the best path."""
    told = "numbers: score of each tag for each word by itself;\ncolour: the same"
    hover = "score of the word alone: %{z:.1f}"
    return _lattice(result, result.emissions, "{:.1f}", -4, 4, hover, "Emissions and the best path", told)


def draw_marginals(result: CrfView) -> Figure:
    """p(tag) of each word over all paths, and the best path."""
    paths = f"{len(TAGS) ** len(WORDS):,} paths"
    told = f"p(tag of a word), forward-backward over {paths};\neach column sums to 1"
    return _lattice(result, result.marginals, "{:.2f}", 0, 1, "p = %{z:.3f}", "Marginals: all paths together", told)


def draw_transitions(result: CrfView) -> Figure:
    """Scores from tag to tag."""
    scores = result.transitions.tolist()
    text = [[f"{score:.1f}" for score in row] for row in scores]
    heat = _heat(TAGS, TAGS, scores, -4, 2, "%{y}, then %{x}: %{z:.1f}", text=text, texttemplate="%{text}")
    told = "score from row to column; -4 is where BIO forbids it,\nunless you move it"
    columns, rows = fig.axis("tag of the next word", showgrid=False, ticks=""), fig.axis("tag of a word", **ROWS)
    return figure("Transitions", told, heat, height=400, xaxis=columns, yaxis=rows)


# ---- SER -----------------------------------------------------------------------------------------------------------


@panel("05")
def ser() -> Panel:
    """Break a prediction; `result` is a `Scored`."""
    return Panel(
        "Break a prediction",
        "One prediction that you spoil: first, what SER counts, then four scores of it.",
        compute.score_errors,
        [draw_errors, draw_scores],
        scored_in_words,
        call(compute.score_errors),
        intent=choice("intent", "right", list(compute.INTENTS)),
        name=choice("the name", "cut short", list(compute.NAME_ERRORS)),
        time=choice("the time", "right", list(compute.TIME_ERRORS)),
        extra=choice("besides", "none", list(compute.EXTRAS)),
        others=number("others, all right", 0, range(21), unit="utterances"),
    )


def scored_in_words(result: Scored) -> Html:
    """The read-out: the utterance in truth and as predicted, and its scores."""
    wrong = [mine != tag for mine, tag in zip(result.predicted, compute.REFERENCE.tags or (), strict=True)]
    return words.ser(result, compute.REFERENCE, compute.SLOTS, wrong)


def draw_errors(result: Scored) -> Figure:
    """What SER counts: errors, by kind, above what there was to get right."""
    utterances = 1 + result.others
    intents, slots = [result.intent_wrong, utterances], [result.slot_errors, utterances * compute.SLOTS]
    inside = {"texttemplate": "%{x}", "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    on: dict[str, Any] = {"orientation": "h", "y": ["errors", "to get right"], **inside}
    return figure(
        "What SER divides by what",
        f"errors: {result.errors}, to get right: {result.items}; SER {result.scores.ser:.3f}",
        bar("intents", BLUE, x=intents, hover="intents: %{x}" + fig.ALONE, **on),
        bar("slots", ORANGE, "/", x=slots, hover="slots: %{x}" + fig.ALONE, **on),
        height=340,
        barmode="stack",
        bargap=0.35,
        legend={"traceorder": "normal"},
        xaxis=fig.axis("number"),
        yaxis=fig.axis("count of", **WIDE),
    )


def draw_scores(result: Scored) -> Figure:
    """The four scores."""
    scores = result.scores
    shown = [scores.ser, scores.intent_accuracy, scores.slot_f1 or 0.0, scores.exact_match]
    on: Trace = {"x": shown, "y": ["SER", "intent accuracy", "slot F1", "exactly right"], "showlegend": False}
    marker = {"color": [VERMILLION, BLUE, BLUE, BLUE], "pattern": {"shape": ["/", "", "", ""]}}
    text = {"mode": "text", "textposition": "middle right", "texttemplate": " %{x:.2f}", "hoverinfo": "skip"}
    hover = "%{y}: %{x:.3f}" + fig.ALONE
    return figure(
        "Four scores",
        f"utterances: {1 + result.others}; hatched: lower is better",
        bar("", BLUE, "/", orientation="h", marker=marker, hover=hover, **on),
        fig.trace("", text, **on),
        height=340,
        bargap=0.35,
        xaxis=fig.axis("score (as a fraction)", [0, 1.12 * max(1.0, *shown)]),
        yaxis=fig.axis("score", **WIDE),
    )
