"""What ``05_data_and_models.ipynb`` computes: corpora, networks, padding that leaks, SER. No widgets.

    look = look_at("smart-home", seed=0)                     # sizes, label frequencies, repeated texts, majority
    score = score_errors("right", "missed", "right", "none", others=0)

Corpora, metrics, networks, decoding and recursions of the CRF are the library's. What it refuses
(UsageError) is refused here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from edp_lab.corpora import Corpus, Split, Utterance, list_corpora, load_corpus, split
from edp_lab.corpora.encoding import Labels, WordFeatures
from edp_lab.corpora.metrics import Frame, Scores, Tally, evaluate, spans
from edp_lab.course.kit.inputs import Array, check_option, require
from edp_lab.models.clc import CLC
from edp_lab.models.crf import CRF, forward_backward, path_score
from edp_lab.models.factory import Undrawn
from edp_lab.models.ghost_clipping.ops import PLAIN
from edp_lab.models.intent_slot import IntentSlotModel, to_padded
from edp_lab.training import TrainConfig
from edp_lab.training.trainer import Trainer

PAPER_DELTA = 5e-4  # table 1, public corpora
PUBLISHED = ("atis", "snips", "nlu-eval")


# ---- Corpora -------------------------------------------------------------------------------------------------------


class CorpusLook(NamedTuple):
    """What there is to see of a corpus; its 45:5:50 split keeps utterances of the same text together."""

    corpus: Corpus
    intents: Mapping[str, int]  # numbers of occurrences, the most frequent first
    slots: Mapping[str, int]
    lengths: NDArray[np.int64]  # (n) words in each utterance
    repeated: int  # utterances whose text occurs more than once
    parts: Mapping[str, int]  # utterances in "train", "validation" and "test"
    delta: float  # what the library takes where none is given: n^-1.1 for n training utterances
    leaked: int  # test utterances whose text is in the training set if utterances are shuffled one by one
    patterns: float  # share of test utterances whose pattern (slot values struck out) occurs in the training set
    majority: Scores  # on the test set, of always the training set's most frequent intent and no slots


def available(corpus: str) -> dict[str, bool]:
    """Corpora to look at, and whether each is there: the embedded, the published, and `corpus`, which may be a path."""
    found = {info.name: info.where is not None for info in list_corpora()}
    return {name: found.get(name, True) for name in ("smart-home", *PUBLISHED, corpus)}


def look_at(name: str, seed: int) -> CorpusLook:
    """Statistics of a corpus of the catalogue, or of a path to one."""
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
    """The words, with each slot's value struck out: ("call", "<contact>", "at", "<place>")."""
    words, done = [], 0
    for start, end, label in spans(utterance.tags or ()):
        words += [*utterance.tokens[done:start], f"<{label}>"]
        done = end
    return (*words, *utterance.tokens[done:])


def frames(utterances: Sequence[Utterance]) -> list[Frame]:
    """What `edp_lab.corpora.metrics` compares."""
    return [(u.intent, u.tokens, u.tags) for u in utterances]


def majority_scores(train: Sequence[Utterance], test: Sequence[Utterance]) -> Scores:
    """Always the training set's most frequent intent, never a slot: the least that a model must beat."""
    intent = Counter(u.intent for u in train).most_common(1)[0][0]
    guesses = [(intent, u.tokens, None if u.tags is None else ("O",) * len(u.tokens)) for u in test]
    return evaluate(frames(test), guesses)


# ---- Networks ------------------------------------------------------------------------------------------------------


WORD_PIECES = 30_522  # vocabulary of the BERT that the paper starts from
POSITIONS = ("bert.embeddings.position", "bert.embeddings.token_type", "bert.embeddings.LayerNorm")
Parts = dict[str, tuple[str, ...]]  # by name, how the names of its parameters begin
ENCODERS: dict[str, Parts] = {
    "clc": {
        "word vectors": ("words.",),
        "character CNN": ("characters.", "convolution."),
        "bi-LSTM 1": ("lstm.0.",),
        "bi-LSTM 2": ("lstm.1.",),
    },
    "bert": {
        "word pieces": ("bert.embeddings.word",),
        "positions": POSITIONS,
        **{f"layer {k + 1}": (f"bert.encoder.layer.{k}.",) for k in range(4)},
    },
}
HEADS: Parts = {"intent head": ("intent.",), "slot head": ("slots.",), "CRF": ("crf.",)}


def layers(kind: str, corpus: Corpus) -> dict[str, int]:
    """Parameters of each part of the paper's "clc" or "bert", from input to output, for the labels of a corpus.

    Word vectors of the CLC are those of a sound run: hash buckets instead of a vocabulary read off private text.
    UsageError: another kind.
    """
    check_option("model", kind, ENCODERS)
    labels = Labels.of(corpus)
    with torch.device("meta"), Undrawn():  # shapes only
        model: IntentSlotModel = CLC(labels, WordFeatures()) if kind == "clc" else _bert(labels)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    parts = (ENCODERS[kind] | HEADS).items()
    counts = {name: sum(n for of, n in sizes.items() if of.startswith(begins)) for name, begins in parts}
    return {name: n for name, n in counts.items() if n}  # without tags there is no slot head


def _bert(labels: Labels) -> IntentSlotModel:
    from edp_lab.models.bert import BertIntentSlot, BertSize, new_bert  # transformers is slow to import
    from edp_lab.models.wordpiece import SPECIAL, PieceFeatures, wordpiece_tokenizer

    features = PieceFeatures(wordpiece_tokenizer(list(SPECIAL)))
    return BertIntentSlot(labels, features, new_bert(BertSize().architecture(WORD_PIECES)))


def train_small(config: TrainConfig, epochs: int) -> tuple[IntentSlotModel, Split]:
    """A network after a few epochs without privacy, and the split whose training set it has seen."""
    corpus = load_corpus(config.corpus)
    data = split(corpus, config.seed)
    run = Trainer(config, corpus, data)
    for _ in range(epochs):
        run.epoch()
    return run.model.eval(), data


# ---- Padding that leaks --------------------------------------------------------------------------------------------


def leaky_pool(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Wrong on purpose: the maximum over padded positions, too. (R, D), (B) -> (B, D)."""
    padded, _ = to_padded(tokens, lengths)
    return padded.amax(1)


class Leak(NamedTuple):
    """The intent loss of one utterance, by the length of its longest neighbour in the batch."""

    utterance: Utterance
    neighbours: tuple[int, ...]
    losses: Mapping[str, Sequence[float]]  # by way of pooling: the model's own, and two that read padding


@torch.no_grad()
def padding_leak(model: IntentSlotModel, utterances: Sequence[Utterance]) -> Leak:
    """Batch the shortest utterance with a longer one, of each length there is, and look at its own loss only.

    UsageError: all utterances are of one length.
    """
    by_length = {len(u.tokens): u for u in utterances}
    shortest, *others = sorted(by_length)
    require(others, "all utterances are of one length, so that nothing is padded: take a larger corpus")
    pairs = [[by_length[shortest]], *([by_length[shortest], by_length[length]] for length in others)]
    losses: dict[str, list[float]] = {"the library's": [], "max, padding as 0": [], "mean, padding as 0": []}
    for pair in pairs:
        batch = model.dataset(pair).batch(range(len(pair)))
        own, tokens = model.encode(batch, PLAIN, None)
        leaky_mean = to_padded(tokens, batch.lengths)[0].mean(1)  # wrong on purpose, too
        for name, x in zip(losses, (own, leaky_pool(tokens, batch.lengths), leaky_mean), strict=True):
            losses[name].append(float(F.cross_entropy(model.intent(x[:1]), batch.intents[:1])))
    return Leak(by_length[shortest], (shortest, *others), losses)


# ---- The CRF: five words, five tags, and every path through them ---------------------------------------------------

WORDS = ("call", "april", "smith", "on", "sunday")
TAGS = ("O", "B-name", "I-name", "B-date", "I-date")
TRUE_TAGS = ("O", "B-name", "I-name", "O", "B-date")
EMISSIONS = (  # what a tagger that sees one word at a time might say; one row per word, in the order of TAGS
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
    best: list[tuple[tuple[str, ...], float]]  # the five likeliest paths and their probabilities
    loss: float  # -log p(true path), what training makes small


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
    found = forward_backward(emissions, mask, crf.start, crf.transitions, crf.end)
    names, paths = _all_paths()
    each = emissions.expand(len(paths), -1, -1)
    scores = path_score(each, paths, mask.expand(len(paths), -1), crf.start, crf.transitions, crf.end)
    p = (scores - found.log_partition).exp()
    return CrfView(
        word,
        emissions[0].numpy(),
        crf.transitions.double().numpy(),
        path=tuple(TAGS[k] for k in crf.decode(emissions, mask)[0]),
        alone=tuple(TAGS[k] for k in emissions[0].argmax(1).tolist()),
        marginals=found.marginals[0].numpy(),
        best=[(names[k], float(p[k])) for k in p.argsort(descending=True)[:5].tolist()],
        loss=float(found.log_partition - scores[names.index(TRUE_TAGS)]),
    )


@cache
def _all_paths() -> tuple[list[tuple[str, ...]], Tensor]:
    """The tags of every path, and their numbers: (K^T, T)."""
    numbers = torch.tensor(list(product(range(len(TAGS)), repeat=len(WORDS))))
    return list(product(TAGS, repeat=len(WORDS))), numbers


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
    """One utterance as predicted, and what is counted of it together with others that are all right."""

    intent: str
    predicted: tuple[str, ...]  # tags
    tally: Tally  # of all; the others are copies of the reference without an error


def score_errors(intent: str, name: str, time: str, extra: str, others: int) -> Scored:
    """What errors of one prediction do to the four scores.

    Args:
        intent: a key of `INTENTS`.
        name, time, extra: keys of `NAME_ERRORS`, `TIME_ERRORS` and `EXTRAS`.
        others: further utterances without an error, 0 to 1000.

    UsageError: an unknown error, or another number of others.
    """
    check_option("intent", intent, INTENTS)
    check_option("name", name, NAME_ERRORS)
    check_option("time", time, TIME_ERRORS)
    require(0 <= others <= 1000, f"{others} further utterances: take 0 to 1000")
    check_option("extra", extra, EXTRAS)
    tags = (EXTRAS[extra], *NAME_ERRORS[name], *(REFERENCE.tags or ())[3:7], TIME_ERRORS[time])
    [right] = frames([REFERENCE])
    said: Frame = (INTENTS[intent], REFERENCE.tokens, tags)
    return Scored(said[0], tags, Tally.of([right] * (1 + others), [said, *[right] * others]))
