"""The panels of ``05_data_and_models.ipynb``: a CRF to bend and a score to break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edp_lab.corpora import Utterance
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import Control, choice, number
from edp_lab.course.kit.figure import Figure, Trace, bar, figure, line
from edp_lab.course.kit.inputs import Array
from edp_lab.course.kit.panel import Panel, Tile, panel
from edp_lab.course.kit.text import Html, Words, count, short
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import HOLDS, INK, OTHER, PLAIN, PRINTED
from edp_lab.course.nb05_models import compute
from edp_lab.course.nb05_models.compute import TAGS, WORDS, CrfView, Scored
from edp_lab.models import Prediction

GIVEN = ("PAPER_DELTA", "REFERENCE", "TAGS", "TRUE_TAGS", "WORDS")
words = Words(__file__, **{name: getattr(compute, name) for name in GIVEN})
corpora_table, scores_table = words.corpora_table, words.scores_table  # of `CorpusLook`s, of scores by name
network_table = words.network  # name and parts of a network from input to output, with a bar for the parameters of each
ROWS = {"autorange": "reversed", "ticks": "", "showgrid": False}  # of an axis with names, from top to bottom
WIDE = {**ROWS, "ticklabelstandoff": 4}


def call(function: Callable[..., Any]) -> Callable[..., str]:
    """The Python that computes what a panel shows."""
    module = function.__module__.rpartition(".")[0]

    def command(result: Any, **values: Any) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in values.items())
        return f"from {module} import compute\ncompute.{function.__name__}({given})"

    return command


# ---- Corpora and networks --------------------------------------------------------------------------------------------


def missing_corpora(available: Mapping[str, bool]) -> str:
    """Which corpora are not there, and how to get them."""
    commands = [f"edp-lab data fetch {name}" for name, there in available.items() if not there]
    return "not here: " + "; ".join(commands) if commands else "all of them are here"


def predicted(utterances: Sequence[Utterance], predictions: Sequence[Prediction]) -> Html:
    """Utterances as a network reads them; what it gets wrong stands out."""
    return words.predicted(list(zip(utterances, predictions, strict=True)))


def leak_figure(leak: compute.Leak, told: str) -> fig.Still:
    """The loss of one utterance by the length of its longest neighbour, for three ways to pool; `told`: the caption."""
    looks = (
        ("masked maximum (the library's)", HOLDS, "solid", {"width": 3, "symbol": "circle", "size": 7}),
        ("max, padding as 0", PRINTED, "dash", {"symbol": "diamond-open", "size": 9}),
        ("mean, padding as 0", OTHER, "dot", {"symbol": "x", "size": 8}),
    )
    curves = [
        line(name, color, dash, x=leak.neighbours, y=losses, **look)
        for (name, color, dash, look), losses in zip(looks, leak.losses.values(), strict=True)
    ]
    title, hover = "Loss of one utterance, whose words never change", "%{x} words: loss %{y:.4f}"
    x, y = fig.axis("words in the longest utterance of its batch"), fig.axis("its intent loss (nats)")
    return fig.still(title, *curves, caption=told, height=400, hover=hover, xaxis=x, yaxis=y)


# ---- The CRF -------------------------------------------------------------------------------------------------------


@panel("05")
def crf() -> Panel:
    """Move one transition and one emission; `result` is a `CrfView`."""
    scores = [k / 5 for k in range(-30, 31)]

    def one_of(label: str, value: str, names: Sequence[str]) -> Control:
        return Control("list", label, value, options=[(name, name) for name in names])

    return Panel(
        "A CRF, word by word",
        "Five words, the score of each tag for each word alone, and the best path through the tags.",
        compute.crf_view,
        [draw_emissions, draw_marginals],
        words.crf,
        call(compute.crf_view),
        tiles=tell_crf,
        before=one_of("transition from", "B-date", TAGS),
        word=one_of("word", "april", WORDS),
        after=one_of("transition to", "I-name", TAGS),
        tag=one_of("tag of the word", "B-date", TAGS),
        transition=number("transition score", -4.0, scores, unit="score"),
        emission=number("raise the tag's score by", 0.0, scores, unit="score"),
    )


def tell_crf(result: CrfView) -> tuple[Tile, Tile, str]:
    """A word's tag without and with neighbours, and what those change."""
    place = WORDS.index(result.word)
    alone, best = result.alone[place], result.path[place]
    score, p = result.emissions[place, TAGS.index(alone)], result.marginals[place, TAGS.index(best)]
    steps = zip(("O", *result.path), result.path, strict=False)
    inside = ((before, after) for before, after in steps if after.startswith("I-"))
    forbidden = [f"{after} after {before}" for before, after in inside if before not in (after, f"B-{after[2:]}")]
    moves = zip(WORDS, result.alone, result.path, strict=True)
    changed = [f"{word} from {mine} to {path}" for word, mine, path in moves if mine != path]
    told = "The neighbours change nothing: each word has the tag that is best for it alone."
    if forbidden:
        told = f"The best path has {' and '.join(forbidden)}, which BIO forbids."
    elif changed:
        told = f"The neighbours change {' and '.join(changed)}."
    tiles = Tile(f"{result.word}, alone", alone, f"score {score:.1f}"), Tile("in the sentence", best, f"p = {short(p)}")
    return *tiles, told


def _lattice(result: CrfView, values: Array, form: str, span: tuple[float, float], title: str, hover: str) -> Figure:
    """A number for each tag of each word (T, K), the best path through them, and the best tag of each word alone."""
    sheer: dict[str, Any] = {"opacity": 0.35, "hoverinfo": "skip", "x": WORDS}  # numbers stay readable through it
    blue = {"colorscale": [[0.0, "rgba(86, 180, 233, 0)"], [1.0, "rgba(86, 180, 233, 0.6)"]], "showscale": False}
    places = {"x": [word for _ in TAGS for word in WORDS], "y": [tag for tag in TAGS for _ in WORDS]}
    text = [form.format(value) for value in values.T.ravel()]
    numbers = {"mode": "text", "text": text, "textfont": {"color": INK}, "showlegend": False, "hoverinfo": "skip"}
    heat: dict[str, Any] = {"type": "heatmap", **blue, "xgap": 2, "ygap": 2, "zmin": span[0], "zmax": span[1]}
    return figure(
        title,
        fig.trace("", heat, x=WORDS, y=TAGS, z=values.T.tolist(), hover=f"%{{x}} as %{{y}}: {hover}" + fig.ALONE),
        line("best path", HOLDS, width=12, y=result.path, **sheer),
        fig.points("each word alone", INK, "square-open", 34, x=WORDS, y=result.alone, hoverinfo="skip"),
        fig.trace("", numbers, **places),
        height=350,
        xaxis=fig.axis("word", showgrid=False, ticks=""),
        yaxis=fig.axis("tag", **ROWS),
    )


def draw_emissions(result: CrfView) -> Figure:
    """What each word says of itself, the best tag of each alone, and the best path."""
    return _lattice(result, result.emissions, "{:.1f}", (-4, 4), "Score of each tag for each word alone", "%{z:.1f}")


def draw_marginals(result: CrfView) -> Figure:
    """p(tag) of each word over all paths, and the best path."""
    title = "Probability of each tag in the sentence"
    return _lattice(result, result.marginals, "{:.2f}", (0, 1), title, "p = %{z:.3f}")


# ---- SER -----------------------------------------------------------------------------------------------------------


@panel("05")
def ser() -> Panel:
    """Break a prediction; `result` is a `Scored`."""
    return Panel(
        "Break a prediction",
        "One prediction that you spoil, and what its errors are divided by. Second figure: four scores of it.",
        compute.score_errors,
        [draw_errors, draw_scores],
        words.ser,
        call(compute.score_errors),
        tiles=tell_scored,
        intent=choice("intent", "right", list(compute.INTENTS)),
        name=choice("the name", "cut short", list(compute.NAME_ERRORS)),
        time=choice("the time", "right", list(compute.TIME_ERRORS)),
        extra=choice("besides", "none", list(compute.EXTRAS)),
        others=number("others, all right", 0, range(21), unit="utterances"),
    )


def tell_scored(result: Scored) -> tuple[Tile, Tile, str]:
    """SER beside the score that it is mistaken for."""
    tally, scores = result.tally, result.tally.scores()
    wrong = tally.utterances - tally.intents_right
    errors = f"{count(wrong + tally.slot_errors, 'error')} of {tally.utterances + tally.slots}"
    rate = Tile("SER", d(scores.ser), errors, "printed")
    intents = Tile("intent accuracy", d(scores.intent_accuracy), f"of {count(tally.utterances, 'utterance')}")
    edits = f"{count(wrong, 'wrong intent')} and {count(tally.slot_errors, 'slot edit')}"
    there = f"{count(tally.utterances, 'intent')} and {count(tally.slots, 'slot')}"
    return rate, intents, f"SER divides {edits} by {there}."


def draw_errors(result: Scored) -> Figure:
    """What SER counts: errors, by kind, above what there was to get right."""
    tally = result.tally
    intents = [tally.utterances - tally.intents_right, tally.utterances]
    slots = [tally.slot_errors, tally.slots]
    on: dict[str, Any] = {"orientation": "h", "y": ["errors", "to get right"]}
    return figure(
        "What SER divides, and by what",
        bar("intents", PLAIN, x=intents, hover="intents: %{x}" + fig.ALONE, **on),
        # A stack's legend is reversed.
        bar("slots", OTHER, "/", x=slots, hover="slots: %{x}" + fig.ALONE, legendrank=1, **on),
        height=300,
        barmode="stack",
        bargap=0.35,
        xaxis=fig.axis("number"),
        yaxis=fig.axis("counted", **WIDE),
    )


def draw_scores(result: Scored) -> Figure:
    """The four scores."""
    scores = result.tally.scores()
    shown = [scores.ser, scores.intent_accuracy, scores.slot_f1 or 0.0, scores.exact_match]
    on: Trace = {"x": shown, "y": ["SER", "intent accuracy", "slot F1", "exactly right"], "showlegend": False}
    marker = {"color": [PRINTED, PLAIN, PLAIN, PLAIN], "pattern": {"shape": ["/", "", "", ""]}}
    text = {"mode": "text", "textposition": "middle right", "texttemplate": " %{x:.2f}", "hoverinfo": "skip"}
    return figure(
        "Four scores (hatched: lower is better)",
        bar("", PLAIN, "/", orientation="h", marker=marker, hover="%{y}: %{x:.3f}" + fig.ALONE, **on),
        fig.trace("", text, **on),
        height=300,
        bargap=0.35,
        xaxis=fig.axis("score (as a fraction)", [0, 1.15 * max(1.0, *shown)]),
        yaxis=fig.axis("score", **WIDE),
    )
