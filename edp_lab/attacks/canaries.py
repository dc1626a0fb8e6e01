"""Memorisation: how well a trained model knows phone numbers planted in its training set.

A canary is the phrase "call my doctor at" followed by seven random digits. An attacker who has the model and knows
everything except the digits ranks candidate numbers by the model's loss (Carlini et al. 2019, arXiv 1802.08232):

    exposure = log2 |R| - log2 (rank of the canary among |R| candidates),        extracted if the rank is 1

A language model assigns a probability to the digits themselves. An intent-and-slot model assigns probabilities only to
labels, p(labels | text). It labels all numbers the same way once it learns that digits after "call my doctor at" are a
phone number. So each canary gets labels that a careless annotator might assign: one random intent, and one random slot
for the whole number. All canaries share the words around the number. Only the digits connect a canary to its labels.
So if the loss of these labels is lower for the canary than for other numbers, the model has stored the digits.

Canaries and other candidates are drawn together, without replacement, from the set R of numbers made of digit words
that occur in the training set. So without memorisation every rank is equally likely, however the model treats a
number. The mean exposure is then log2 e = 1.44 bits, slightly less for few candidates. Canaries that are never inserted
(0 repetitions) test this. R is too large to rank in full, so |R| is the size of a sample, which caps the exposure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import stdtrit

from edp_lab.attacks.loss import scored_batches
from edp_lab.attacks.statistics import clopper_pearson
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import Corpus, Utterance, split
from edp_lab.errors import UsageError
from edp_lab.models.crf import forward_backward, path_score
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.privacy import judge
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.training.config import TrainConfig
from edp_lab.training.evaluate import evaluate_model
from edp_lab.training.run_files import Event
from edp_lab.training.trainer import Trainer

METHODS: dict[str, dict[str, Any]] = {
    "sgd": {"method": "sgd"},
    "edp-sgd-as-printed": {"method": "edp-sgd", "as_printed": True},
    "edp-sgd": {"method": "edp-sgd"},
    "dp-sgd": {"method": "dp-sgd"},
}
AROUND = ("call", "my", "doctor", "at")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LENGTH = 7  # digits per number
FEWEST = 5  # minimum number of different digits, which makes R much larger than a sample of it
MOST_FILLINGS = 20_000
BATCH = 512
CONFIDENCE = 0.95


class Canaries(NamedTuple):
    """Canaries with their labels, and texts with other numbers from the same set R."""

    utterances: dict[int, tuple[Utterance, ...]]  # canaries for each number of repetitions
    references: tuple[tuple[str, ...], ...]  # tokens of the texts with other numbers

    @property
    def inserted(self) -> tuple[Utterance, ...]:
        """The utterances added to the training set, with all repetitions."""
        return tuple(u for times, group in self.utterances.items() for u in group for _ in range(times))


@dataclass(frozen=True, kw_only=True)
class Memorisation:
    """Exposure and extraction of the canaries that were inserted equally often, for a model trained by one method."""

    method: str
    repetitions: int
    exposures: tuple[float, ...]  # exposure of each canary in bits, at most `cap`
    exposure: float  # mean exposure
    interval: tuple[float, float]  # 95 % t interval for the mean over the canaries of one training run
    cap: float
    extracted: int  # number of canaries with rank 1
    extracted_interval: tuple[float, float]  # Clopper-Pearson interval for the share of canaries with rank 1
    # Epsilon for all copies of a canary together (group privacy), at `delta`; None without a guarantee.
    epsilon_if_seed_secret: float | None = None
    claimed_epsilon: float | None = None  # from the paper's accounting, which ignores copies; None without a claim
    delta: float | None = None
    guarantee: str = "none"  # status of the guarantee
    reason: str = "never inserted: the control"
    test_ser: float  # SER of the model on the test set, which shows whether it has learnt anything


def measure_memorisation(
    config: TrainConfig,
    methods: Sequence[str] = tuple(METHODS),
    repetitions: Sequence[int] = (0, 1, 4, 16),
    canaries: int = 8,
    references: int = 9_999,
    progress: Callable[[str, Event], None] = lambda method, event: None,
) -> list[Memorisation]:
    """Train one model per method on a corpus with canaries, and rank the canaries among `references` other numbers.

    Args:
        config: all settings except the method: corpus, model, noise, epochs, seed.
        repetitions: how many copies of a canary to insert. Each count gets `canaries` canaries; 0 is the control.
        progress: called with the method and each event of its training.

    Returns:
        One row per method and repetition count. Raises UsageError before any training if an argument is invalid.
    """
    unknown = [method for method in methods if method not in METHODS]
    if unknown or not methods:
        what = f"unknown method {unknown[0]!r}" if unknown else "no method is given"
        raise UsageError(f"{what}: choose from {', '.join(METHODS)}")
    configs = {method: replace(config, **METHODS[method], processes=1) for method in methods}
    corpus = load_corpus(config.corpus, config.tokens)
    data = split(corpus, config.seed, config.keep_duplicates_together)
    drawn = draw_canaries(corpus, data.train, repetitions, canaries, references, config.seed)
    data = replace(data, train=(*data.train, *drawn.inserted))
    rows = []
    for method, method_config in configs.items():
        run = Trainer(method_config, corpus, data)
        for _ in range(method_config.epochs):
            run.epoch(partial(progress, method))
        rows += _rows(method, run, drawn)
    return rows


def draw_canaries(
    corpus: Corpus, training: Sequence[Utterance], repetitions: Sequence[int], each: int, references: int, seed: int
) -> Canaries:
    """Draw `each` canaries for every repetition count, and `references` other numbers, all distinct.

    Only digits that occur at least twice in `training` are used. So all models know every word of the numbers, whether
    their vocabulary comes from the training set or consists of hash buckets.
    """
    _check(repetitions, each, references, len(training))
    if not corpus.has_tags:
        raise UsageError(f"corpus {corpus.name} has no slot annotation, which canaries need: choose another corpus")
    counts = Counter(token.lower() for u in training for token in u.tokens)
    digits = [word for word in DIGITS if counts[word] > 1]
    if len(digits) < FEWEST:
        known_digits = ", ".join(digits) or "none"
        raise UsageError(
            f"the training set of {corpus.name} has too few digits ({known_digits}) for canaries: use smart-home"
        )
    generator = np.random.Generator(np.random.PCG64(key_from_seed(f"{seed}, canaries")))
    total = each * len(repetitions)
    numbers = generator.choice(len(digits) ** LENGTH, total + references, replace=False)
    places = len(digits) ** np.arange(LENGTH)
    texts = [(*AROUND, *(digits[d] for d in row)) for row in (numbers[:, None] // places % len(digits)).tolist()]
    marked = []
    for text in texts[:total]:
        slot = corpus.slots[generator.integers(len(corpus.slots))]
        intent = corpus.intents[generator.integers(len(corpus.intents))]
        tags = ("O",) * len(AROUND) + (f"B-{slot}", *[f"I-{slot}"] * (LENGTH - 1))
        marked.append(Utterance(text, tags, intent))
    groups = {times: tuple(marked[k * each : (k + 1) * each]) for k, times in enumerate(repetitions)}
    return Canaries(groups, tuple(texts[total:]))


@torch.no_grad()
def filling_losses(
    model: IntentSlotModel, texts: Sequence[tuple[str, ...]], labelled: Sequence[Utterance]
) -> np.ndarray:
    """Training loss of each text under the labels of each utterance: (A, F), float64.

    All texts and utterances must have the same length. Each text is encoded only once.
    """
    tags = [torch.tensor([model.labels.tags.index(tag) for tag in u.tags or ()]) for u in labelled]
    intents = [model.labels.intents.index(u.intent) for u in labelled]
    losses = np.empty((len(labelled), len(texts)))
    encoded = [replace(labelled[0], tokens=text) for text in texts]
    for batch, log_intent, emissions, mask in scored_batches(model, encoded, BATCH):
        assert emissions is not None
        scores = model.crf.start, model.crf.transitions, model.crf.end
        log_partition = forward_backward(emissions, mask, *scores).log_partition
        for k, (intent, utterance_tags) in enumerate(zip(intents, tags, strict=True)):
            path = path_score(emissions, utterance_tags.to(mask.device).expand(mask.shape), mask, *scores)
            losses[k, batch.examples.numpy()] = (log_partition - path - log_intent[:, intent]).cpu()
    return losses


def canary_ranks(
    model: IntentSlotModel, canaries: Sequence[Utterance], references: Sequence[tuple[str, ...]]
) -> np.ndarray:
    """Rank of each canary's loss among the references' under its labels, 1 for the smallest, ties averaged: (A)."""
    losses = filling_losses(model, [*(u.tokens for u in canaries), *references], canaries)
    canary_losses, others = losses.diagonal()[:, None], losses[:, len(canaries) :]
    return 1 + (others < canary_losses).sum(1) + (others == canary_losses).sum(1) / 2


def mean_interval(values: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Student's t interval (95 %) for the mean of `values`, (A), clipped to [`low`, `high`].

    If all values are equal, the interval would be a single point. We widen it to allow for values that were not drawn:
    an event of probability 1 - 0.025^(1/A) is missed by all A draws with probability 0.025.
    """
    mean, count = float(values.mean()), len(values)
    if values.min() == values.max():
        first, unseen = float(values[0]), 1 - ((1 - CONFIDENCE) / 2) ** (1 / count)
        return first - unseen * (first - low), first + unseen * (high - first)
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * float(values.std(ddof=1)) / math.sqrt(count)
    return max(low, mean - half), min(high, mean + half)


def _rows(method: str, run: Trainer, drawn: Canaries) -> list[Memorisation]:
    """Rank the canaries by a trained model's loss; return one row per repetition count."""
    ser = evaluate_model(run.model, run.test).ser
    rank = canary_ranks(run.model, [u for group in drawn.utterances.values() for u in group], drawn.references)
    fillings, rows = len(drawn.references) + 1, []
    cap = math.log2(fillings)
    ranks = np.split(rank, len(drawn.utterances))
    for (times, group), group_ranks in zip(drawn.utterances.items(), ranks, strict=True):
        bits, extracted = cap - np.log2(group_ranks), int((group_ranks == 1).sum())
        row = Memorisation(
            method=method,
            repetitions=times,
            exposures=tuple(bits.tolist()),
            exposure=float(bits.mean()),
            interval=mean_interval(bits, 0.0, cap),
            cap=cap,
            extracted=extracted,
            extracted_interval=clopper_pearson(extracted, len(group), CONFIDENCE),
            test_ser=ser,
        )
        rows.append(_protected(row, run) if times else row)
    return rows


def _protected(row: Memorisation, run: Trainer) -> Memorisation:
    """Add the guarantee for all copies of a canary together, as for a person with that many utterances."""
    mechanism = run.mechanism
    judged = judge(mechanism, run.config.epochs, run.delta, utterances_per_person=row.repetitions)
    return replace(
        row,
        epsilon_if_seed_secret=judged.conditional_epsilon,
        claimed_epsilon=judged.claimed_epsilon,
        delta=None if mechanism is None else run.delta,
        guarantee=judged.status,
        reason=judged.reason,
    )


def _check(repetitions: Sequence[int], each: int, references: int, training: int) -> None:
    if not repetitions or len(set(repetitions)) < len(repetitions):
        raise UsageError("repetition counts are missing or repeated: list each count once, such as 0,1,4,16")
    if not all(isinstance(times, Integral) and times >= 0 for times in repetitions):
        raise UsageError(f"a repetition count is {min(repetitions)}: each must be a whole number, 0 or more")
    if not (isinstance(each, Integral) and each >= 2):
        raise UsageError(f"the number of canaries is {each}: an interval needs at least 2 for each repetition count")
    if not (isinstance(references, Integral) and references >= 1):
        raise UsageError(f"the number of references is {references}: it must be a whole number, at least 1")
    fillings = each * len(repetitions) + references
    if fillings > MOST_FILLINGS:
        raise UsageError(f"canaries and references are {fillings:,} numbers in total: the limit is {MOST_FILLINGS:,}")
    inserted = each * sum(repetitions)
    if inserted > training:
        raise UsageError(
            f"{inserted:,} inserted canaries would outnumber the {training:,} utterances of the training set: use "
            "fewer canaries or repetitions"
        )
