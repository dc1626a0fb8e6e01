"""Memorisation: how well a trained model knows personal numbers planted in its training set.

A canary is "call my doctor at" and seven random digits. An attacker who has the model and knows everything but the
digits ranks the possible fillings by the model's loss on them (Carlini et al. 2019, arXiv 1802.08232):

    exposure = log2 |R| - log2 (rank of the canary among |R| fillings),        extracted = rank 1

A language model assigns a probability to the digits themselves. An intent-and-slot model does not: it models
p(labels | text), and labels every value alike once it learns that digits after "call my doctor at" are a phone
number. So each canary has its own labels, one random intent and one random slot for the whole number, as a careless
annotator might assign them, and all canaries share the words around the number. Only the digits distinguish a canary's
labels from those of the others, so its loss under its labels is below that of other numbers only if the model has
stored the digits.

Canaries and the other fillings are one draw without replacement from one set R, made of digit words that occur in the
training set anyway. So without memorisation every rank is equally likely, however the model treats a number, and the
mean exposure is log2 e = 1.44 bits, slightly less for few fillings; canaries that are never inserted (0 repetitions)
show that. R is too large to be ranked in full: |R| is the size of a sample, which caps the exposure.
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
FEWEST = 5  # minimum number of different digits, so that R is much larger than a sample of it
MOST_FILLINGS = 20_000
BATCH = 512
CONFIDENCE = 0.95


class Canaries(NamedTuple):
    """One draw from R: canaries with labels, and other numbers."""

    utterances: dict[int, tuple[Utterance, ...]]  # canaries by number of repetitions
    references: tuple[tuple[str, ...], ...]  # tokens of the other fillings

    @property
    def inserted(self) -> tuple[Utterance, ...]:
        """The utterances added to the training set."""
        return tuple(u for times, group in self.utterances.items() for u in group for _ in range(times))


@dataclass(frozen=True, kw_only=True)
class Memorisation:
    """Exposure and extraction of the canaries with one repetition count, for one method's model."""

    method: str
    repetitions: int
    exposures: tuple[float, ...]  # of each canary, in bits; at most `cap`
    exposure: float  # their mean
    interval: tuple[float, float]  # 95 % t interval of the mean, over canaries of one training run
    cap: float
    extracted: int  # number of canaries with rank 1
    extracted_interval: tuple[float, float]  # Clopper-Pearson interval of their share
    # Epsilon for all copies of a canary together (group privacy), at `delta`; None: no guarantee.
    epsilon_if_seed_secret: float | None = None
    claimed_epsilon: float | None = None  # by the paper's accounting, which ignores copies; None if there is no claim
    delta: float | None = None
    guarantee: str = "none"  # status of the guarantee
    reason: str = "never inserted: the control"
    test_ser: float  # SER of the model; a model that has learnt nothing memorises nothing


def measure_memorisation(
    config: TrainConfig,
    methods: Sequence[str] = tuple(METHODS),
    repetitions: Sequence[int] = (0, 1, 4, 16),
    canaries: int = 8,
    references: int = 9_999,
    progress: Callable[[str, Event], None] = lambda method, event: None,
) -> list[Memorisation]:
    """Train once per method on the same corpus with the same canaries, and rank these among `references` other numbers.

    Args:
        config: all settings except the method: corpus, model, noise, epochs, seed.
        repetitions: numbers of copies inserted, with `canaries` canaries for each; 0 is the control.
        progress: receives the method and its training's events.

    Returns:
        A row per method and repetition count. UsageError if an argument is invalid, before any training.
    """
    unknown = [method for method in methods if method not in METHODS]
    if unknown or not methods:
        what = f"unknown method {unknown[0]!r}" if unknown else "no method is given"
        raise UsageError(f"{what}: choose from {', '.join(METHODS)}")
    configs = {method: replace(config, **METHODS[method], processes=1) for method in methods}
    corpus = load_corpus(config.corpus, config.tokens)
    data = split(corpus, config.seed, **config.split)
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
    """Draw `each` canaries for every repetition count, and `references` other fillings, all different.

    The digits are those of `DIGITS` that occur at least twice in `training`, so that every filling consists of words
    that each model knows anyway, whether its vocabulary is the training set's or hash buckets.
    """
    _check(repetitions, each, references, len(training))
    if not corpus.has_tags:
        raise UsageError(f"corpus {corpus.name} has no slot annotation, which canaries need: choose another corpus")
    counts = Counter(token.lower() for u in training for token in u.tokens)
    digits = [word for word in DIGITS if counts[word] > 1]
    if len(digits) < FEWEST:
        known_digits = ", ".join(digits) or "none"
        raise UsageError(
            f"training set of {corpus.name} has too few digits ({known_digits}) to hide numbers among: take smart-home"
        )
    generator = np.random.Generator(np.random.PCG64(key_from_seed(f"{seed}, canaries")))
    total = each * len(repetitions)
    numbers = generator.choice(len(digits) ** LENGTH, total + references, replace=False)
    places = len(digits) ** np.arange(LENGTH)
    texts = [(*AROUND, *(digits[d] for d in number)) for number in numbers[:, None] // places % len(digits)]
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
    """Training loss of every text under the labels of every utterance, all of one length: (A, F), float64.

    Each text is encoded once, for all labels.
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
    """Rank of each canary's loss among its own and the references', 1 for the smallest, ties averaged: (A)."""
    losses = filling_losses(model, [*(u.tokens for u in canaries), *references], canaries)
    canary_losses, others = losses.diagonal()[:, None], losses[:, len(canaries) :]
    return 1 + (others < canary_losses).sum(1) + (others == canary_losses).sum(1) / 2


def mean_interval(values: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Student's 95 % interval for the mean of (A) values, clipped to [`low`, `high`].

    If all values agree, the interval would be a point, so it is widened to cover unseen values: A draws may all miss
    an event of probability up to 1 - 0.025^(1/A).
    """
    mean, count = float(values.mean()), len(values)
    if values.min() == values.max():
        first, unseen = float(values[0]), 1 - ((1 - CONFIDENCE) / 2) ** (1 / count)
        return first - unseen * (first - low), first + unseen * (high - first)
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * float(values.std(ddof=1)) / math.sqrt(count)
    return max(low, mean - half), min(high, mean + half)


def _rows(method: str, run: Trainer, drawn: Canaries) -> list[Memorisation]:
    """Rank the canaries by a trained model's loss; one row per repetition count."""
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
        raise UsageError("repetition counts are missing or given twice: give each once, such as 0,1,4,16")
    if not all(isinstance(times, Integral) and times >= 0 for times in repetitions):
        raise UsageError(f"a repetition count is {min(repetitions)}: all must be whole numbers, 0 or more")
    if not (isinstance(each, Integral) and each >= 2):
        raise UsageError(f"the number of canaries is {each}: an interval needs at least 2 for each repetition count")
    if not (isinstance(references, Integral) and references >= 1):
        raise UsageError(f"the number of references is {references}: it must be a whole number, at least 1")
    fillings = each * len(repetitions) + references
    if fillings > MOST_FILLINGS:
        raise UsageError(f"canaries and references are {fillings:,} numbers: lower them to {MOST_FILLINGS:,} in all")
    inserted = each * sum(repetitions)
    if inserted > training:
        raise UsageError(
            f"{inserted:,} inserted utterances would outnumber the {training:,} of the training set: lower the number "
            "of canaries or their repetitions"
        )
