"""The panels of ``08_data_and_models.ipynb`` (a CRF and the error rate), and the corpora and networks of its cells.

    look = look_at("smart-home", seed=0)                     # sizes, label frequencies, repeated texts, majority
    score = score_errors("right", "missed", "right", "none", others=0)

Values that make no sense are refused by `UsageError`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from edp_lab.corpora.catalog import list_corpora, load_corpus
from edp_lab.corpora.corpus import Corpus, Split, Utterance, split
from edp_lab.corpora.encoding import Labels, WordFeatures
from edp_lab.corpora.metrics import Frame, Scores, Tally, evaluate, spans
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import Array, Control, check_option, choice, number, require
from edp_lab.course.kit.figure import Figure, Trace, bar, figure, line
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Tile, Words, count, short
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import HOLDS, INK, PLAIN, PRINTED
from edp_lab.models.clc import CLC
from edp_lab.models.crf import CRF, forward_backward
from edp_lab.models.factory import SkipInit
from edp_lab.models.ghost_clipping.ops import PLAIN as OPS
from edp_lab.models.intent_slot import IntentSlotModel, to_padded
from edp_lab.training.config import TrainConfig
from edp_lab.training.trainer import Trainer

PAPER_DELTA = 5e-4  # table 1, public corpora
PUBLISHED = ("atis", "snips", "nlu-eval")
ROWS = {"autorange": "reversed", "ticks": "", "showgrid": False}  # of an axis with names, from top to bottom
WIDE = {**ROWS, "ticklabelstandoff": 4}


# ---- Corpora -------------------------------------------------------------------------------------------------------


class CorpusLook(NamedTuple):
    """Statistics of a corpus; its 45:5:50 split keeps utterances with the same text together."""

    corpus: Corpus
    intents: Mapping[str, int]  # numbers of occurrences, the most frequent first
    slots: Mapping[str, int]
    lengths: NDArray[np.int64]  # (n) words in each utterance
    repeated: int  # utterances whose text occurs more than once
    parts: Mapping[str, int]  # utterances in "train", "validation" and "test"
    delta: float  # the library's default: n^-1.1 for n training utterances
    leaked: int  # test utterances whose text is in the training set if utterances are shuffled one by one
    patterns: float  # share of test utterances whose pattern (without slot values) occurs in the training set
    majority: Scores  # test scores of always predicting the training set's most frequent intent and no slots


def available(corpus: str) -> dict[str, bool]:
    """Corpora to choose from, and whether each is available: embedded and published ones, and `corpus`, or its path."""
    present = {info.name: info.where is not None for info in list_corpora()}
    return {name: present.get(name, True) for name in ("smart-home", *PUBLISHED, corpus)}


def look_at(name: str, seed: int) -> CorpusLook:
    """Statistics of a corpus, given its name in the catalogue or a path."""
    corpus = load_corpus(name)
    texts = Counter(u.tokens for u in corpus.utterances)
    together, one_by_one = split(corpus, seed), split(corpus, seed, keep_duplicates_together=False)
    seen = {pattern(u) for u in together.train}
    return CorpusLook(
        corpus,
        intents=dict(Counter(u.intent for u in corpus.utterances).most_common()),
        slots=dict(Counter(label for u in corpus.utterances for _, _, label in spans(u.tags or ())).most_common()),
        lengths=np.array([len(u.tokens) for u in corpus.utterances]),
        repeated=sum(count for count in texts.values() if count > 1),
        parts={part: together.counts[part] for part in ("train", "validation", "test")},
        delta=float(len(together.train) ** -1.1),
        leaked=len(one_by_one.duplicates),
        patterns=float(np.mean([pattern(u) in seen for u in together.test])),
        majority=majority_scores(together.train, together.test),
    )


def pattern(utterance: Utterance) -> tuple[str, ...]:
    """The words, with each slot's value replaced by its label: ("call", "<contact>", "at", "<place>")."""
    words, done = [], 0
    for start, end, label in spans(utterance.tags or ()):
        words += [*utterance.tokens[done:start], f"<{label}>"]
        done = end
    return (*words, *utterance.tokens[done:])


def frames(utterances: Sequence[Utterance]) -> list[Frame]:
    """The utterances in the form that `edp_lab.corpora.metrics` compares."""
    return [(u.intent, u.tokens, u.tags) for u in utterances]


def majority_scores(train: Sequence[Utterance], test: Sequence[Utterance]) -> Scores:
    """Scores of always predicting the training set's most frequent intent and no slot, the baseline for any model."""
    intent = Counter(u.intent for u in train).most_common(1)[0][0]
    guesses = [(intent, u.tokens, None if u.tags is None else ("O",) * len(u.tokens)) for u in test]
    return evaluate(frames(test), guesses)


# ---- Networks ------------------------------------------------------------------------------------------------------


WORD_PIECES = 30_522  # vocabulary of the BERT that the paper starts from
PART = re.compile(r"bert\.encoder\.layer\.\d+|bert\.embeddings\.\w+|lstm\.\d+|\w+")  # of a parameter's name


def layers(kind: str, corpus: Corpus) -> dict[str, int]:
    """Parameters of each part of the paper's "clc" or "bert", from input to output, for the labels of a corpus.

    Word vectors of the CLC are those of a sound run: hash buckets instead of a vocabulary from private text.
    UsageError: unknown kind.
    """
    check_option("model", kind, ("clc", "bert"))
    labels = Labels.of(corpus)
    with torch.device("meta"), SkipInit():  # shapes only
        model: IntentSlotModel = CLC(labels, WordFeatures()) if kind == "clc" else _bert(labels)
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counts[PART.match(name)[0]] += parameter.numel()  # type: ignore[index]
    return dict(counts)


def _bert(labels: Labels) -> IntentSlotModel:
    from edp_lab.corpora.encoding import SPECIAL, PieceFeatures, wordpiece_tokenizer
    from edp_lab.models.bert import BertIntentSlot, BertSize, new_bert  # transformers is slow to import

    features = PieceFeatures(wordpiece_tokenizer(list(SPECIAL)))
    return BertIntentSlot(labels, features, new_bert(BertSize().architecture(WORD_PIECES)))


def train_small(config: TrainConfig, epochs: int) -> tuple[IntentSlotModel, Split]:
    """A network after a few epochs of training without privacy, and the split that it was trained on."""
    corpus = load_corpus(config.corpus)
    data = split(corpus, config.seed)
    run = Trainer(config, corpus, data)
    for _ in range(epochs):
        run.epoch()
    return run.model.eval(), data


# ---- Padding that leaks --------------------------------------------------------------------------------------------


def leaky_pool(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Wrong on purpose: the maximum includes padded positions. (R, D), (B) -> (B, D)."""
    padded, _ = to_padded(tokens, lengths)
    return padded.amax(1)


class Leak(NamedTuple):
    """The intent loss of one utterance, by the length of its longest neighbour in the batch."""

    utterance: Utterance
    neighbours: tuple[int, ...]
    losses: Mapping[str, Sequence[float]]  # by pooling method: the library's masked maximum, and two that read padding


@torch.no_grad()
def padding_leak(model: IntentSlotModel, utterances: Sequence[Utterance]) -> Leak:
    """Loss of the shortest utterance, batched with a longer utterance of every available length in turn.

    UsageError: all utterances have the same length.
    """
    by_length = {len(u.tokens): u for u in utterances}
    shortest, *others = sorted(by_length)
    require(others, "all utterances have the same length, so nothing is padded: take a larger corpus")
    pairs = [[by_length[shortest]], *([by_length[shortest], by_length[length]] for length in others)]
    losses: dict[str, list[float]] = {"masked maximum": [], "max, padding as 0": [], "mean, padding as 0": []}
    for pair in pairs:
        batch = model.dataset(pair).batch(range(len(pair)))
        masked, tokens = model.encode(batch, OPS, None)
        leaky_mean = to_padded(tokens, batch.lengths)[0].mean(1)  # wrong on purpose, too
        for name, x in zip(losses, (masked, leaky_pool(tokens, batch.lengths), leaky_mean), strict=True):
            losses[name].append(float(F.cross_entropy(model.intent(x[:1]), batch.intents[:1])))
    return Leak(by_length[shortest], (shortest, *others), losses)


# ---- The CRF: five words, five tags, and every path through them ---------------------------------------------------

WORDS = ("call", "april", "smith", "on", "sunday")
TAGS = ("O", "B-name", "I-name", "B-date", "I-date")
EMISSIONS = (  # possible scores of a tagger that sees one word at a time; one row per word, in the order of TAGS
    (4.0, -1.0, -2.0, -1.0, -2.0),
    (-2.0, 1.5, 0.0, 2.3, -1.0),
    (-1.0, 1.0, 2.0, -2.0, -1.5),
    (4.0, -2.0, -2.0, 0.0, 0.0),
    (-1.0, 0.0, 0.5, 3.0, 1.0),
)
LEARNT = {("B-name", "I-name"): 1.0, ("B-date", "I-date"): 0.5}  # added to the CRF's initial transitions


class CrfView(NamedTuple):
    """Five words under a CRF of five tags, one transition and one emission of which may be changed."""

    word: str  # whose emission may be changed
    emissions: Array  # (T, K) scores of each tag for each word
    transitions: Array  # (K, K) from row to column
    path: tuple[str, ...]  # the best one (Viterbi)
    alone: tuple[str, ...]  # the best tag of each word by itself
    marginals: Array  # (T, K) p(tag at t), by forward-backward


def toy_crf() -> CRF:
    """The CRF of the panel: BIO's forbidden transitions, and two that it has learnt."""
    crf = CRF(TAGS)
    with torch.no_grad():
        for (before, after), score in LEARNT.items():
            crf.transitions[TAGS.index(before), TAGS.index(after)] += score
    return crf


@torch.no_grad()
def crf_view(before: str, after: str, transition: float, word: str, tag: str, emission: float) -> CrfView:
    """The CRF with one transition *set* to a score, and something *added* to one emission.

    UsageError: an unknown tag or word; scores beyond +-100.
    """
    for name in (before, after, tag):
        check_option("tag", name, TAGS)
    for score in (transition, emission):
        require(-100 <= score <= 100, f"a score of {score}: take one from -100 to 100")
    check_option("word", word, WORDS)
    crf, emissions = toy_crf(), torch.tensor([EMISSIONS], dtype=torch.float64)
    emissions[0, WORDS.index(word), TAGS.index(tag)] += emission
    crf.transitions[TAGS.index(before), TAGS.index(after)] = transition

    mask = torch.ones(1, len(WORDS), dtype=torch.bool)
    recursion = forward_backward(emissions, mask, crf.start, crf.transitions, crf.end)
    return CrfView(
        word,
        emissions[0].numpy(),
        crf.transitions.double().numpy(),
        path=tuple(TAGS[k] for k in crf.decode(emissions, mask)[0]),
        alone=tuple(TAGS[k] for k in emissions[0].argmax(1).tolist()),
        marginals=recursion.marginals[0].numpy(),
    )


@panel("08")
def crf() -> Panel:
    """Move one transition and one emission; `result` is a `CrfView`."""
    scores = [k / 5 for k in range(-30, 31)]

    def one_of(label: str, value: str, names: Sequence[str]) -> Control:
        return Control("list", label, value, options=[(name, name) for name in names])

    return Panel(
        "A CRF, word by word",
        "Five words, the score of each tag for each word alone, and the best path through the tags.",
        crf_view,
        [draw_emissions, draw_marginals],
        words.crf,
        tiles=tell_crf,
        before=one_of("transition from", "B-date", TAGS),
        word=one_of("word", "april", WORDS),
        after=one_of("transition to", "I-name", TAGS),
        tag=one_of("tag of the word", "B-date", TAGS),
        transition=number("transition score", -4.0, scores, unit="score"),
        emission=number("raise the tag's score by", 0.0, scores, unit="score"),
    )


def tell_crf(result: CrfView) -> tuple[Tile, Tile, str]:
    """A word's tag without and with neighbours, and the changes they cause."""
    place = WORDS.index(result.word)
    alone, best = result.alone[place], result.path[place]
    score, p = result.emissions[place, TAGS.index(alone)], result.marginals[place, TAGS.index(best)]
    steps = zip(("O", *result.path), result.path, strict=False)
    inside = ((before, after) for before, after in steps if after.startswith("I-"))
    forbidden = [f"{after} after {before}" for before, after in inside if before not in (after, f"B-{after[2:]}")]
    moves = zip(WORDS, result.alone, result.path, strict=True)
    changed = [f"{word} from {mine} to {path}" for word, mine, path in moves if mine != path]
    sentence = "The neighbours change nothing: each word has the tag that is best for it alone."
    if forbidden:
        sentence = f"The best path has {' and '.join(forbidden)}, which BIO forbids."
    elif changed:
        sentence = f"The neighbours change {' and '.join(changed)}."
    tiles = Tile(f"{result.word}, alone", alone, f"score {score:.1f}"), Tile("in the sentence", best, f"p = {short(p)}")
    return *tiles, sentence


def _lattice(result: CrfView, values: Array, form: str, span: tuple[float, float], title: str, hover: str) -> Figure:
    """Heat map of a number per word and tag (T, K), with the best path and the best tag of each word alone."""
    sheer: dict[str, Any] = {"opacity": 0.35, "hoverinfo": "skip", "x": WORDS}  # keeps numbers readable
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
    """Each word's scores, its best tag by itself, and the best path."""
    return _lattice(result, result.emissions, "{:.1f}", (-4, 4), "Score of each tag for each word alone", "%{z:.1f}")


def draw_marginals(result: CrfView) -> Figure:
    """p(tag) of each word over all paths, and the best path."""
    title = "Probability of each tag in the sentence"
    return _lattice(result, result.marginals, "{:.2f}", (0, 1), title, "p = %{z:.3f}")


# ---- SER -----------------------------------------------------------------------------------------------------------

REFERENCE = Utterance(
    ("text", "anna", "smith", "that", "i", "am", "late", "tonight"),
    ("O", "B-name", "I-name", "O", "B-message", "I-message", "I-message", "B-time"),
    "send_message",
)
INTENTS = {"right": REFERENCE.intent, "wrong": "make_call"}
NAME_ERRORS: dict[str, tuple[str, str]] = {
    "right": ("B-name", "I-name"),
    "wrong label": ("B-place", "I-place"),
    "cut short": ("B-name", "O"),
    "split in two": ("B-name", "B-name"),
    "missed": ("O", "O"),
}
TIME_ERRORS = {"right": "B-time", "wrong label": "B-date", "missed": "O"}
EXTRAS = {"none": "O", "one slot invented": "B-app"}


class Scored(NamedTuple):
    """One predicted utterance, and its counts together with others that are all correct."""

    intent: str
    predicted: tuple[str, ...]  # tags
    tally: Tally  # counts over all utterances; the others are copies of the reference without errors


def score_errors(intent: str, name: str, time: str, extra: str, others: int) -> Scored:
    """Effect of one prediction's errors on the four scores.

    Args:
        intent: a key of `INTENTS`.
        name, time, extra: keys of `NAME_ERRORS`, `TIME_ERRORS` and `EXTRAS`.
        others: number of further utterances without errors, 0 to 1000.

    UsageError: an unknown error, or a number of others outside this range.
    """
    check_option("intent", intent, INTENTS)
    check_option("name", name, NAME_ERRORS)
    check_option("time", time, TIME_ERRORS)
    require(0 <= others <= 1000, f"{others} further utterances: take 0 to 1000")
    check_option("extra", extra, EXTRAS)
    tags = (EXTRAS[extra], *NAME_ERRORS[name], *(REFERENCE.tags or ())[3:7], TIME_ERRORS[time])
    [right] = frames([REFERENCE])
    prediction: Frame = (INTENTS[intent], REFERENCE.tokens, tags)
    return Scored(prediction[0], tags, Tally.of([right] * (1 + others), [prediction, *[right] * others]))


@panel("08")
def ser() -> Panel:
    """Break a prediction; `result` is a `Scored`."""
    return Panel(
        "Break a prediction",
        "One prediction that you spoil, and its four scores.",
        score_errors,
        [draw_scores],
        words.ser,
        tiles=tell_scored,
        intent=choice("intent", "right", list(INTENTS)),
        name=choice("the name", "cut short", list(NAME_ERRORS)),
        time=choice("the time", "right", list(TIME_ERRORS)),
        extra=choice("besides", "none", list(EXTRAS)),
        others=number("others, all right", 0, range(21), unit="utterances"),
    )


def tell_scored(result: Scored) -> tuple[Tile, Tile, str]:
    """The SER, and the score that it is often confused with."""
    tally, scores = result.tally, result.tally.scores()
    wrong = tally.utterances - tally.intents_right
    errors = f"{count(wrong + tally.slot_errors, 'error')} of {tally.utterances + tally.slots}"
    rate = Tile("SER", d(scores.ser), errors, "printed")
    intents = Tile("intent accuracy", d(scores.intent_accuracy), f"of {count(tally.utterances, 'utterance')}")
    edits = f"{count(wrong, 'wrong intent')} and {count(tally.slot_errors, 'slot edit')}"
    there = f"{count(tally.utterances, 'intent')} and {count(tally.slots, 'slot')}"
    return rate, intents, f"SER divides {edits} by {there}."


def draw_scores(result: Scored) -> Figure:
    """The four scores."""
    scores = result.tally.scores()
    shown = [scores.ser, scores.intent_accuracy, scores.slot_f1, scores.exact_match]
    on: Trace = {"x": shown, "y": ["SER", "intent accuracy", "slot F1", "exactly right"], "showlegend": False}
    marker = {"color": [PRINTED, PLAIN, PLAIN, PLAIN], "pattern": {"shape": ["/", "", "", ""]}}
    text = {"mode": "text", "textposition": "middle right", "texttemplate": " %{x:.2f}", "hoverinfo": "skip"}
    return figure(
        "Four scores (hatched: lower is better)",
        bar("", PLAIN, "/", orientation="h", marker=marker, hover="%{y}: %{x:.3f}" + fig.ALONE, **on),
        fig.trace("", text, cliponaxis=False, **on),
        height=300,
        bargap=0.35,
        xaxis=fig.axis("score (as a fraction)", [0, 1.15 * max(1.0, scores.ser)]),
        yaxis=fig.axis("score", **WIDE),
    )


# ---- The room's templates ------------------------------------------------------------------------------------------

words = Words(__file__, PAPER_DELTA=PAPER_DELTA, REFERENCE=REFERENCE, TAGS=TAGS)
corpora_table, scores_table = words.corpora_table, words.scores_table  # of `CorpusLook`s, of scores by name
predicted = words.predicted  # of pairs of utterances and predictions; errors are highlighted
network_table = words.network  # name and parts of a network from input to output, with a bar for each part's parameters
