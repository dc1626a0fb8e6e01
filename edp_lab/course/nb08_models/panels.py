"""Panels of ``08_data_and_models.ipynb``, on a CRF and the error rate, and its tables of corpora and networks.

    look = look_at("smart-home", seed=0)                     # sizes, label frequencies, repeated texts, majority
    score = score_errors("right", "missed", "right", "none", others=0)

Invalid values raise `UsageError`.
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

PAPER_DELTA = 5e-4  # from the paper's table 1, for public corpora
PUBLISHED = ("atis", "snips", "nlu-eval")
ROWS = {"autorange": "reversed", "ticks": "", "showgrid": False}  # axis with names from top to bottom
WIDE = {**ROWS, "ticklabelstandoff": 4}


# ---- Corpora -------------------------------------------------------------------------------------------------------


class CorpusLook(NamedTuple):
    """Statistics of a corpus; its 45:5:50 split keeps utterances with the same text together."""

    corpus: Corpus
    intents: Mapping[str, int]  # numbers of occurrences, the most frequent first
    slots: Mapping[str, int]
    lengths: NDArray[np.int64]  # (n) number of words of each utterance
    repeated: int  # utterances whose text occurs more than once
    parts: Mapping[str, int]  # utterances in "train", "validation" and "test"
    delta: float  # the library's default: n^-1.1 for n training utterances
    leaked: int  # test utterances whose text is in the training set if utterances are shuffled one by one
    patterns: float  # share of test utterances whose pattern (without slot values) occurs in the training set
    majority: Scores  # test scores of predicting the training set's most frequent intent and no slots


def available(corpus: str) -> dict[str, bool]:
    """Return for each embedded or published corpus, and for `corpus`, a name or path, whether it is available."""
    present = {info.name: info.where is not None for info in list_corpora()}
    return {name: present.get(name, True) for name in ("smart-home", *PUBLISHED, corpus)}


def look_at(name: str, seed: int) -> CorpusLook:
    """Compute statistics of a corpus, given its name in the catalogue or its path."""
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
    """Words with each slot's value replaced by its label: ("call", "<contact>", "at", "<place>")."""
    words, done = [], 0
    for start, end, label in spans(utterance.tags or ()):
        words += [*utterance.tokens[done:start], f"<{label}>"]
        done = end
    return (*words, *utterance.tokens[done:])


def frames(utterances: Sequence[Utterance]) -> list[Frame]:
    """Convert utterances to the format of `edp_lab.corpora.metrics`."""
    return [(u.intent, u.tokens, u.tags) for u in utterances]


def majority_scores(train: Sequence[Utterance], test: Sequence[Utterance]) -> Scores:
    """Scores of the baseline that always predicts the training set's most frequent intent and no slots."""
    intent = Counter(u.intent for u in train).most_common(1)[0][0]
    guesses = [(intent, u.tokens, None if u.tags is None else ("O",) * len(u.tokens)) for u in test]
    return evaluate(frames(test), guesses)


# ---- Networks ------------------------------------------------------------------------------------------------------


WORD_PIECES = 30_522  # vocabulary size of the paper's pretrained BERT
PART = re.compile(r"bert\.encoder\.layer\.\d+|bert\.embeddings\.\w+|lstm\.\d+|\w+")  # first part of a parameter's name


def layers(kind: str, corpus: Corpus) -> dict[str, int]:
    """Count the parameters of each part of the paper's "clc" or "bert", from input to output, for a corpus.

    As in sound runs, the word vectors of the CLC use hash buckets instead of a vocabulary from private text.
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
    """Train a network for a few epochs without privacy; return it with the split of its corpus."""
    corpus = load_corpus(config.corpus)
    data = split(corpus, config.seed)
    run = Trainer(config, corpus, data)
    for _ in range(epochs):
        run.epoch()
    return run.model.eval(), data


# ---- Padding that leaks --------------------------------------------------------------------------------------------


def leaky_pool(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Max pooling with a deliberate bug: it includes padded positions. (R, D), (B) -> (B, D)."""
    padded, _ = to_padded(tokens, lengths)
    return padded.amax(1)


class Leak(NamedTuple):
    """The intent loss of one utterance, by the length of the longest utterance in its batch."""

    utterance: Utterance
    neighbours: tuple[int, ...]
    losses: Mapping[str, Sequence[float]]  # by pooling method: the library's masked maximum, and two that read padding


@torch.no_grad()
def padding_leak(model: IntentSlotModel, utterances: Sequence[Utterance]) -> Leak:
    """Compute the loss of the shortest utterance, batched with one longer utterance of each available length.

    UsageError: all utterances have the same length.
    """
    by_length = {len(u.tokens): u for u in utterances}
    shortest, *others = sorted(by_length)
    require(others, "all utterances have the same length, so nothing is padded: use a larger corpus")
    pairs = [[by_length[shortest]], *([by_length[shortest], by_length[length]] for length in others)]
    losses: dict[str, list[float]] = {"masked maximum": [], "max, padding as 0": [], "mean, padding as 0": []}
    for pair in pairs:
        batch = model.dataset(pair).batch(range(len(pair)))
        masked, tokens = model.encode(batch, OPS, None)
        leaky_mean = to_padded(tokens, batch.lengths)[0].mean(1)  # also a deliberate bug
        for name, x in zip(losses, (masked, leaky_pool(tokens, batch.lengths), leaky_mean), strict=True):
            losses[name].append(float(F.cross_entropy(model.intent(x[:1]), batch.intents[:1])))
    return Leak(by_length[shortest], (shortest, *others), losses)


# ---- The CRF: five words, five tags, and every path through them ---------------------------------------------------

WORDS = ("call", "april", "smith", "on", "sunday")
TAGS = ("O", "B-name", "I-name", "B-date", "I-date")
EMISSIONS = (  # scores of an imaginary tagger that reads one word at a time; one row per word, in the order of TAGS
    (4.0, -1.0, -2.0, -1.0, -2.0),
    (-2.0, 1.5, 0.0, 2.3, -1.0),
    (-1.0, 1.0, 2.0, -2.0, -1.5),
    (4.0, -2.0, -2.0, 0.0, 0.0),
    (-1.0, 0.0, 0.5, 3.0, 1.0),
)
LEARNT = {("B-name", "I-name"): 1.0, ("B-date", "I-date"): 0.5}  # added to the CRF's initial transitions


class CrfView(NamedTuple):
    """Output of a CRF of five tags for five words, with one transition and one emission changed."""

    word: str  # word with the changed emission
    emissions: Array  # (T, K) scores of each tag for each word
    transitions: Array  # (K, K) from row to column
    path: tuple[str, ...]  # the best path (Viterbi)
    alone: tuple[str, ...]  # the best tag of each word without its neighbours
    marginals: Array  # (T, K) p(tag at t), by forward-backward


def toy_crf() -> CRF:
    """The CRF of the panel, with BIO's forbidden transitions and two raised transition scores."""
    crf = CRF(TAGS)
    with torch.no_grad():
        for (before, after), score in LEARNT.items():
            crf.transitions[TAGS.index(before), TAGS.index(after)] += score
    return crf


@torch.no_grad()
def crf_view(before: str, after: str, transition: float, word: str, tag: str, emission: float) -> CrfView:
    """Evaluate the CRF with one transition set to `transition`, and `emission` added to one emission.

    UsageError: an unknown tag or word.
    """
    for name in (before, after, tag):
        check_option("tag", name, TAGS)
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
    """Panel to change one transition and one emission; `result` is a `CrfView`."""
    scores = [k / 5 for k in range(-30, 31)]

    def one_of(label: str, value: str, names: Sequence[str]) -> Control:
        return Control("list", label, value, options=[(name, name) for name in names])

    return Panel(
        "A CRF, word by word",
        "The score and the probability of each tag for each of five words, and the best path through the tags.",
        crf_view,
        [draw_emissions, draw_marginals],
        words.crf,
        tiles=tell_crf,
        before=one_of("transition from", "B-date", TAGS),
        word=one_of("word", "april", WORDS),
        after=one_of("transition to", "I-name", TAGS),
        tag=one_of("tag of the word", "B-date", TAGS),
        transition=number("transition score", -4.0, scores, unit="score", within=(-100, 100)),
        emission=number("added to the tag's score", 0.0, scores, unit="score", within=(-100, 100)),
    )


def tell_crf(result: CrfView) -> tuple[Tile, Tile, str]:
    """Tiles with a word's tag without and with its neighbours, and a sentence on the changed tags."""
    place = WORDS.index(result.word)
    alone, best = result.alone[place], result.path[place]
    score, p = result.emissions[place, TAGS.index(alone)], result.marginals[place, TAGS.index(best)]
    steps = zip(("O", *result.path), result.path, strict=False)
    inside = ((before, after) for before, after in steps if after.startswith("I-"))
    forbidden = [f"{after} after {before}" for before, after in inside if before not in (after, f"B-{after[2:]}")]
    moves = zip(WORDS, result.alone, result.path, strict=True)
    changed = [f"the tag of {word} from {mine} to {path}" for word, mine, path in moves if mine != path]
    sentence = "The neighbours change no tag: each word has the tag that is best for the word alone."
    if forbidden:
        sentence = f"The best path contains {' and '.join(forbidden)}, which BIO forbids."
    elif changed:
        sentence = f"The neighbours change {' and '.join(changed)}."
    tiles = Tile(f"{result.word}, alone", alone, f"score {score:.1f}"), Tile("in the sentence", best, f"p = {short(p)}")
    return *tiles, sentence


def _lattice(result: CrfView, values: Array, form: str, span: tuple[float, float], title: str, hover: str) -> Figure:
    """Heat map of one number per word and tag, (T, K), with the best path and each word's best tag alone."""
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
    """Plot each word's scores, its best tag alone, and the best path."""
    return _lattice(result, result.emissions, "{:.1f}", (-4, 4), "Score of each tag for each word alone", "%{z:.1f}")


def draw_marginals(result: CrfView) -> Figure:
    """Plot the probability of each word's tags over all paths, and the best path."""
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
    """One predicted utterance, with counts that include further utterances without errors."""

    intent: str
    predicted: tuple[str, ...]  # tags
    tally: Tally  # counts over all utterances; the further utterances are copies of the reference


def score_errors(intent: str, name: str, time: str, extra: str, others: int) -> Scored:
    """Score a prediction with the given errors, together with correct predictions.

    Args:
        intent: a key of `INTENTS`.
        name, time, extra: keys of `NAME_ERRORS`, `TIME_ERRORS` and `EXTRAS`.
        others: number of further utterances without errors.

    UsageError: an unknown error.
    """
    check_option("intent", intent, INTENTS)
    check_option("name", name, NAME_ERRORS)
    check_option("time", time, TIME_ERRORS)
    check_option("extra", extra, EXTRAS)
    tags = (EXTRAS[extra], *NAME_ERRORS[name], *(REFERENCE.tags or ())[3:7], TIME_ERRORS[time])
    [right] = frames([REFERENCE])
    prediction: Frame = (INTENTS[intent], REFERENCE.tokens, tags)
    return Scored(prediction[0], tags, Tally.of([right] * (1 + others), [prediction, *[right] * others]))


@panel("08")
def ser() -> Panel:
    """Panel to break a prediction; `result` is a `Scored`."""
    return Panel(
        "Break a prediction",
        "Add errors to a prediction, and watch its four scores.",
        score_errors,
        [draw_scores],
        words.ser,
        tiles=tell_scored,
        intent=choice("intent", "right", list(INTENTS)),
        name=choice("the name", "cut short", list(NAME_ERRORS)),
        time=choice("the time", "right", list(TIME_ERRORS)),
        extra=choice("extra slot", "none", list(EXTRAS)),
        others=number("correct utterances added", 0, range(21), unit="utterances", within=(0, 1000)),
    )


def tell_scored(result: Scored) -> tuple[Tile, Tile, str]:
    """Tiles with the SER and the intent accuracy, and a sentence that explains the SER."""
    tally, scores = result.tally, result.tally.scores()
    wrong = tally.utterances - tally.intents_right
    errors = f"{count(wrong + tally.slot_errors, 'error')} of {tally.utterances + tally.slots}"
    rate = Tile("SER", d(scores.ser), errors, "printed")
    intents = Tile("intent accuracy", d(scores.intent_accuracy), f"of {count(tally.utterances, 'utterance')}")
    edits = f"{count(wrong, 'wrong intent')} and {count(tally.slot_errors, 'slot edit')}"
    there = f"{count(tally.utterances, 'intent')} and {count(tally.slots, 'slot')}"
    return rate, intents, f"The SER counts {edits}, divided by {there}."


def draw_scores(result: Scored) -> Figure:
    """Plot the four scores."""
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
corpora_table, scores_table = words.corpora_table, words.scores_table  # tables of `CorpusLook`s, and of scores by name
predicted = words.predicted  # pairs of utterances and predictions, with errors highlighted
network_table = words.network  # table of a network's parts, with a bar for the parameters of each part
