"""The three panels of ``05_data_and_models.ipynb``: a corpus to browse, a CRF to bend, a score to break."""

from __future__ import annotations

from functools import partial

from edp_lab.course.kit.controls import choice, number
from edp_lab.course.kit.old_panel import FigurePanel, Picture
from edp_lab.course.nb05_models import compute as models_tour
from edp_lab.course.nb05_models import crf_tour as models_tour_crf
from edp_lab.course.nb05_models import figures as models_tour_figures
from edp_lab.course.nb05_models import words as models_tour_words
from edp_lab.course.nb05_models.crf_tour import TAGS, WORDS

SCORES = [k / 5 for k in range(-30, 31)]


def corpus_panel(corpus: str, seed: int) -> FigurePanel:
    """Look into the corpora that are there; `result` is a `models_tour.Browsed`."""
    there = [name for name, found in models_tour.available(corpus).items() if found]
    controls = {
        "corpus": choice("corpus", corpus, {_short(name): name for name in there}),
        "utterance": number("utterance", 0, range(301), unit="its number"),
        "labels": choice("labels", "intents", {"intents": "intents", "slots": "slots"}),
        "seed": number("seed of the split", seed, range(max(21, seed + 1)), unit="another split"),
    }
    pictures = (
        Picture(models_tour_figures.labels_figure, models_tour_figures.update_labels),
        Picture(models_tour_figures.ranks_figure, models_tour_figures.update_ranks),
    )
    return FigurePanel(
        "<h3>Look into a corpus</h3>What am I looking at? One annotated utterance in the text, and in the pictures how "
        "often its labels occur beside all others.",
        controls,
        models_tour.browse,
        models_tour_words.browsed_in_words,
        lambda result, **values: models_tour_words.call(models_tour.browse, **values),
        pictures,
    )


def crf_panel() -> FigurePanel:
    """Move one transition and one emission; `result` is a `models_tour_crf.CrfView`."""
    controls = {
        "before": _tags("transition from", "B-date"),
        "after": _tags("to", "I-name"),
        "transition": number("transition set to", -4.0, SCORES, unit="score"),
        "word": choice("emission of", "april", {word: word for word in WORDS}),
        "tag": _tags("as", "B-date"),
        "emission": number("emission raised by", 0.0, SCORES, unit="score"),
    }
    figures = models_tour_figures
    pictures = (
        Picture(figures.emissions_figure, figures.update_emissions),
        Picture(figures.marginals_figure, figures.update_marginals),
        Picture(figures.transitions_figure, figures.update_transitions),
    )
    return FigurePanel(
        "<h3>A CRF, word by word</h3>What am I looking at? First, what each word says of its own tag, with the best "
        "path; then, how likely each tag is over all paths; last, what the CRF thinks of neighbours.",
        controls,
        models_tour_crf.crf_view,
        models_tour_words.crf_in_words,
        lambda result, **values: models_tour_words.call(models_tour_crf.crf_view, **values),
        pictures,
    )


def ser_panel() -> FigurePanel:
    """Break a prediction; `result` is a `models_tour.Scored`."""
    controls = {
        "intent": choice("intent", "right", {name: name for name in ("right", "wrong")}),
        "name": choice("the name", "cut short", {name: name for name in models_tour.NAME_ERRORS}),
        "time": choice("the time", "right", {name: name for name in models_tour.TIME_ERRORS}),
        "extra": choice("besides", "none", {name: name for name in models_tour.EXTRAS}),
        "others": number("others, all right", 0, range(21), unit="utterances"),
    }
    pictures = (
        Picture(models_tour_figures.errors_figure, models_tour_figures.update_errors),
        Picture(models_tour_figures.scores_figure, models_tour_figures.update_scores),
    )
    return FigurePanel(
        "<h3>Break a prediction</h3>What am I looking at? One prediction that you spoil: first, what SER "
        "counts, then four scores of it.",
        controls,
        models_tour.score_errors,
        models_tour_words.scored_in_words,
        lambda result, **values: models_tour_words.call(models_tour.score_errors, **values),
        pictures,
    )


_tags = partial(choice, options={tag: tag for tag in TAGS})


def _short(name: str) -> str:
    return name if len(name) <= 26 else f"…{name[-24:]}"
