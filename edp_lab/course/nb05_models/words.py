"""What ``05_data_and_models.ipynb`` says in words: tables and read-outs (HTML), and the Python behind each panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from types import ModuleType
from typing import Any

from edp_lab.corpora import Utterance
from edp_lab.corpora.metrics import Scores, spans
from edp_lab.course.kit.text import digits
from edp_lab.course.kit.theme import BLUE, VERMILLION
from edp_lab.course.nb05_models import compute as models_tour
from edp_lab.course.nb05_models import crf_tour as models_tour_crf
from edp_lab.course.nb05_models.compute import PAPER_DELTA, REFERENCE, SLOTS, Browsed, CorpusLook, Scored
from edp_lab.course.nb05_models.crf_tour import TAGS, TRUE_TAGS, WORDS, CrfView
from edp_lab.course.nb10_phases.words import html_table
from edp_lab.models import Prediction

# ---- Utterances ----------------------------------------------------------------------------------------------------


def tagged(tokens: Sequence[str], tags: Sequence[str] | None, wrong: Sequence[bool] | None = None) -> str:
    """Words with their BIO tags beneath, as HTML; tags that are `wrong` stand out in colour and underlined."""
    tags, wrong = tags or ["no tags"] * len(tokens), wrong or [False] * len(tokens)
    words = "".join(
        f'<span style="display:inline-block; text-align:center; margin:0 .45em .3em 0; line-height:1.25">'
        f"{escape(token)}<br>{_tag(tag, bad)}</span>"
        for token, tag, bad in zip(tokens, tags, wrong, strict=True)
    )
    return f"<div>{words}</div>"


def _tag(tag: str, wrong: bool) -> str:
    color = VERMILLION if wrong else "#666" if tag == "O" else BLUE
    style = f"color:{color}; font-size:85%" + ("; text-decoration:underline wavy" if wrong else "")
    return f'<span style="{style}">{escape(tag)}</span>'


def predicted(utterances: Sequence[Utterance], predictions: Sequence[Prediction]) -> str:
    """Utterances as a network reads them; what it gets wrong stands out, and what is right is in brackets."""
    return "".join(map(_predicted, utterances, predictions))


def _predicted(utterance: Utterance, prediction: Prediction) -> str:
    right, said = escape(utterance.intent), escape(prediction.intent)
    intent = f"<b>{said}</b>" if said == right else f'<b style="color:{VERMILLION}">{said}</b> (in truth {right})'
    missed = [mine != true for mine, true in zip(prediction.tags, utterance.tags or (), strict=True)]
    told = [
        f"{tag} ({true})" if bad else tag
        for tag, true, bad in zip(prediction.tags, utterance.tags or (), missed, strict=True)
    ]
    return f"<p>{intent}</p>{tagged(utterance.tokens, told, missed)}"


def scores_table(rows: dict[str, Scores]) -> str:
    """Scores by name."""
    told = [[name, f"{s.ser:.3f}", f"{s.intent_accuracy:.3f}", _or_none(s.slot_f1), f"{s.exact_match:.3f}"]
            for name, s in rows.items()]  # fmt: skip
    return html_table([["", "SER", "intent accuracy", "slot F1", "exactly right"], *told])


def _or_none(score: float | None) -> str:
    return "no slots" if score is None else f"{score:.3f}"


# ---- Corpora -------------------------------------------------------------------------------------------------------


def corpora_table(looks: Sequence[CorpusLook]) -> str:
    """Properties of corpora, one column each."""
    rows: list[tuple[str, Callable[[CorpusLook], str]]] = [
        ("utterances", lambda c: f"{len(c.lengths):,}"),
        ("intents, slots", lambda c: f"{len(c.corpus.intents)}, {len(c.corpus.slots)}"),
        ("words in an utterance, mean", lambda c: f"{c.lengths.mean():.1f}"),
        ("slots in an utterance, mean", lambda c: f"{sum(k for _, k in c.slots) / len(c.lengths):.1f}"),
        ("the most frequent intent", lambda c: f"{c.intents[0][0]}, {c.intents[0][1] / len(c.lengths):.0%}"),
        ("n, training utterances", lambda c: f"{c.train:,}"),
        ("δ = n<sup>-1.1</sup>", lambda c: digits(c.delta)),
        (f"n times {PAPER_DELTA:g}, the paper's δ", lambda c: digits(c.train * PAPER_DELTA)),
        ("utterances whose text occurs again", lambda c: f"{c.repeated:,}"),
        ("test texts also in training, if shuffled one by one", lambda c: f"{c.leaked:,}"),
        ("test patterns also in training", lambda c: f"{c.patterns:.0%}"),
        ("majority baseline: intents right, SER", lambda c: _majority(c.majority)),
    ]
    return html_table([["", *(c.corpus.name for c in looks)], *([name, *map(show, looks)] for name, show in rows)])


def _majority(scores: Scores) -> str:
    return f"{scores.intent_accuracy:.0%}, {scores.ser:.2f}"


def missing_corpora(available: dict[str, bool]) -> str:
    """Which corpora are not there, and how to get them."""
    commands = [f"edp-lab data fetch {name}" for name, there in available.items() if not there]
    return "not here: " + "; ".join(commands) if commands else "all of them are here"


def browsed_in_words(result: Browsed) -> str:
    """The read-out beside the sliders, as HTML."""
    look, said, n = result.look, result.utterance, len(result.look.lengths)
    counts = dict(result.counts)
    own = ", ".join(f"{escape(label)} ({counts[label]:,} times)" for label in result.own) or "none"
    texts = (
        f"{look.repeated:,} of {n:,} utterances have a text that occurs again. Shuffled one by one, {look.leaked:,} of "
        "the test would also be in training, members and non-members at once; the course keeps equal texts together."
        if look.repeated
        else f"No two of its {n:,} utterances have the same text."
    )
    return _paragraphs(
        f"Utterance {result.number:,} of <b>{escape(look.corpus.name)}</b>, intent <b>{escape(said.intent)}</b>:",
        tagged(said.tokens, said.tags),
        f"Its {result.kind}: {own}. {result.rare} of {len(result.counts)} {result.kind} have fewer than ten examples "
        "in the training set.",
        f"Split 45:5:50: <b>n = {look.train:,}</b> training utterances, {look.parts['validation']:,} for validation, "
        f"{look.parts['test']:,} for the test; <b>δ = n<sup>-1.1</sup> = {digits(look.delta)}</b>. {texts}",
        f"{look.patterns:.0%} of the test utterances have a pattern (their words, slots struck out) that training has.",
        f"Always the most frequent intent, never a slot: {look.majority.intent_accuracy:.0%} of the intents right, "
        f"<b>SER {look.majority.ser:.2f}</b>.",
    )


# ---- The CRF -------------------------------------------------------------------------------------------------------


def crf_in_words(result: CrfView) -> str:
    """The read-out beside the sliders, as HTML."""
    forbidden = [f"{a} {b}" for a, b in zip(("O", *result.path), result.path, strict=False) if not _legal(a, b)]
    slots = [f"{label} = {' '.join(WORDS[start:end])}" for start, end, label in spans(result.path)]
    changed = [word for word, mine, crf in zip(WORDS, result.alone, result.path, strict=True) if mine != crf]
    path = (
        f"Neighbours change {', '.join(changed)}."
        if changed
        else "Each word by itself would say the same: the neighbours change nothing."
    )
    warning = f" <b>BIO forbids {', '.join(forbidden)}.</b>" if forbidden else ""
    table = [["likeliest paths&emsp;", "p"], *([" ".join(names) + "&emsp;", f"{p:.3f}"] for names, p in result.best)]
    return _paragraphs(
        f"<b>Viterbi: {' '.join(result.path)}</b> (slots: {', '.join(slots) or 'none'}). {path}{warning}",
        f"Its probability is {result.best[0][1]:.3f}, one of {len(TAGS) ** len(WORDS):,} paths, which sum to 1: their "
        f"exp(score) sum to exp({result.log_partition:.2f}).",
        f"If {' '.join(TRUE_TAGS)} is right, the loss is <b>-ln p = {result.loss:.2f}</b> nats.",
        html_table(table),
    )


def _legal(before: str, after: str) -> bool:
    return not after.startswith("I-") or before in (after, f"B-{after[2:]}")


# ---- SER -----------------------------------------------------------------------------------------------------------


def scored_in_words(result: Scored) -> str:
    """The read-out beside the sliders, as HTML."""
    scores, true = result.scores, REFERENCE.tags or ()
    wrong = [mine != tag for mine, tag in zip(result.predicted, true, strict=True)]
    mark = f'<b style="color:{VERMILLION}">' if result.intent_wrong else "<b>"
    others = f" and {result.others} others without an error" if result.others else ""
    return _paragraphs(
        f"In truth: <b>{REFERENCE.intent}</b>",
        tagged(REFERENCE.tokens, true),
        f"Predicted: {mark}{result.intent}</b>",
        tagged(REFERENCE.tokens, result.predicted, wrong),
        f"<b>SER</b> = ({result.intent_wrong} wrong intents + {result.slot_errors} slot edits) / "
        f"({1 + result.others} intents + {(1 + result.others) * SLOTS} slots) = {result.errors} / {result.items} = "
        f"<b>{scores.ser:.3f}</b> for this utterance{others}.",
        f"Intent accuracy {scores.intent_accuracy:.3f}, slot F1 {scores.slot_f1:.3f}, exactly right "
        f"{scores.exact_match:.3f}.",
    )


# ---- Small parts ---------------------------------------------------------------------------------------------------


def call(function: Callable[..., Any], **values: Any) -> str:
    """The Python that computes what a panel shows."""
    module: ModuleType = models_tour_crf if hasattr(models_tour_crf, function.__name__) else models_tour
    name, given = module.__name__.rpartition(".")[2], ", ".join(f"{key}={value!r}" for key, value in values.items())
    return f"from edp_lab.course import {name}\n{name}.{function.__name__}({given})"


def _paragraphs(*texts: str) -> str:
    return "".join(text if text.startswith(("<div", "<table")) else f"<p>{text}</p>" for text in texts)
