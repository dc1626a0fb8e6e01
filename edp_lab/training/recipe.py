"""Recipe for training a usable model at a given epsilon: each line is one setting with its reason.

`plan` turns a corpus and an epsilon into the settings of a run, and explains them before training starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from edp_lab.corpora.catalog import load_corpus, note_on_words
from edp_lab.corpora.corpus import most_copies, notes_on_split, split
from edp_lab.errors import UsageError
from edp_lab.models.public_start import ABOUT, check_unseen, is_start, made_of, start_folder, start_for
from edp_lab.privacy import judge
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.guarantee import upward
from edp_lab.training.config import TrainConfig


@dataclass(frozen=True)
class Line:
    """One setting, and the reason for its value."""

    setting: str
    value: Any
    why: str


@dataclass(frozen=True)
class Plan:
    """A run that is ready to start.

    Attributes:
        config: configuration of the run; its noise guarantees `epsilon` at `delta`.
        protected: number of protected utterances.
        steps: number of steps that the run will take.
        public: data that the starting model was trained on, one line per source.
        lines: the settings of the recipe.
        copies: number of occurrences of the most frequent text in the training set.
        copies_epsilon: epsilon of all these copies together, at `delta`; None if no such epsilon is guaranteed.
        warnings: warnings about the corpus.
    """

    config: TrainConfig
    epsilon: float
    delta: float
    protected: int
    steps: int
    public: tuple[str, ...]
    lines: tuple[Line, ...]
    copies: int
    copies_epsilon: float | None
    warnings: tuple[str, ...]


def recipe(n: int, start: str | None, **given: Any) -> tuple[Line, ...]:
    """Return the settings for n utterances; `start` is a public starting model that was not trained on them.

    Some settings depend on "model", "frozen" or "batch_size", which may be `given`. Epsilon determines only the noise.
    docs/results.md has the measurements behind each line.
    """
    model = given.get("model", "clc")
    frozen = given.get("frozen", model == "clc" and n < HEADS_ALONE and is_start(start))
    batch = _batch_size(n, model, frozen)
    steps = STEPS // 2 if frozen else STEPS
    epochs = max(1, round(steps * given.get("batch_size", batch.value) / n))
    if frozen:
        knows = "this model was trained on other people's commands, and uses the words in label names"
        learns = f"only heads and CRF are trained (below {HEADS_ALONE:,} utterances): fewer parameters get noise"
        clip = Line("clip_norm", 1.0, "well-predicted utterances have smaller gradients, so they count less")
        rates = [
            Line("lr", 0.01, "Adam's learning rate"),
            Line("lr_schedule", "constant", "for the same sum of rates, constant rates accumulate the least noise"),
        ]
    else:
        knows, learns = "this model was trained on other people's commands", "all weights are trained"
        clip = Line("clip_norm", 0.1, "most gradients have a larger norm, so all utterances count about equally")
        rates = [Line("lr", 0.001 if model == "bert" else 0.015, "Adam's initial learning rate, falling to zero")]
    return (
        Line("method", "dp-sgd", "each utterance is clipped individually, which halves the sensitivity"),
        Line("sampling", "poisson", "chance hides which utterances take part, so less noise is needed"),
        Line("pretrained", start, knows),
        Line("frozen", frozen, learns),
        Line("size", "medium", "a third of the paper's width, because each trained weight gets noise"),
        batch,
        Line("epochs", epochs, "more passes do not help" if frozen else "as many passes as time allows"),
        clip,
        *rates,
        Line("intent_weight", 1.0, "the intent counts as much as the slots"),
        Line("dropout", 0.0, "the noise regularises enough"),
    )


def _batch_size(n: int, model: str, frozen: bool) -> Line:
    if LARGE <= n < HEADS_ALONE and frozen:
        return Line("batch_size", 1_400, "keeps the run short enough for a lesson")
    if n >= LARGE:
        return Line("batch_size", round(12.5 * math.sqrt(n)), "grows with the square root of n: larger is too slow")
    rounds = 8 if model == "bert" else 2 if frozen else 4
    return Line("batch_size", math.ceil(n / rounds), "a larger batch has less noise relative to its signal")


STEPS, LARGE, HEADS_ALONE = 320, 20_000, 100_000


def plan(corpus: str, epsilon: float, **given: Any) -> Plan:
    """Plan a run that guarantees `epsilon` by the recipe; `given`: fields of `TrainConfig` that override its lines.

    The noise is the smallest that suffices, to nine digits, by privacy loss distributions with Poisson sampling.

    Raises:
        UsageError: a setting is invalid, the corpus is too small for epsilon, or no noise makes the settings private.
    """
    asked = TrainConfig(corpus, **{"method": "dp-sgd", "private_seed": True, **given})
    whole = load_corpus(corpus, asked.tokens)
    if asked.method == "sgd":
        raise UsageError("sgd adds no noise: drop --epsilon, or choose another --method")
    if not asked.private_seed:
        raise UsageError("with a published seed, no epsilon is guaranteed: drop --no-private-seed or --epsilon")
    if asked.noise == "per-device":
        raise UsageError("per-device noise is floating-point, and its last bits may leak data: drop --noise per-device")
    data = split(whole, asked.seed, asked.keep_duplicates_together)
    n = len(data.train)
    delta = max(n, 2) ** -1.1 if asked.delta is None else asked.delta
    budget = Budget(epsilon, delta)
    if delta > 1 / n:
        raise UsageError(f"delta {delta:g} would permit publishing one of {n} utterances: give less than {1 / n:.2g}")
    if epsilon > MOST_EPSILON:
        raise UsageError(f"epsilon {epsilon:g} is too large to be meaningful: give at most {MOST_EPSILON:g}")
    if n * epsilon < LEAST_SIGNAL:
        units = f"{n} training utterances (of {len(whole.utterances):,} utterances in total)"
        raise UsageError(
            f"{units} are too few for epsilon {epsilon:g}: the noise would hide the signal; use about "
            f"{math.ceil(LEAST_SIGNAL / epsilon):,} training utterances, or allow epsilon {upward(LEAST_SIGNAL / n, 2)}"
        )
    start = asked.pretrained
    if start is None and asked.model == "clc":  # for BERT the user names the weights
        start = start_for(whole.name)
    if start is not None:
        check_unseen(start, (utterance.text for utterance in data.train))
    lines = tuple(
        Line(line.setting, given[line.setting], "as given") if line.setting in given else line
        for line in recipe(n, start, **given)
    )
    settings = {line.setting: line.value for line in lines} | given
    config = replace(asked, **settings)
    mechanism = config.mechanism(n)
    assert mechanism is not None
    z0 = calibrate_z0(mechanism, config.epochs, budget)
    config = replace(config, z0=float(upward(z0, 9)))
    steps = config.epochs * config.batches(0, n).steps_per_epoch
    copies = most_copies(data.train)
    group = judge(config.mechanism(n), config.epochs, delta, False, None, copies) if copies > 1 else None
    together = epsilon if group is None else group.conditional_epsilon
    about = epsilon, delta, n, steps, tuple(made_of(start)), lines, copies, together
    words = note_on_words(whole, start_folder(start) / ABOUT) if start and is_start(start) else ()
    return Plan(config, *about, (*whole.warnings, *words, *notes_on_split(whole, data)))


MOST_EPSILON = 1000.0
LEAST_SIGNAL = 500.0  # minimum n * epsilon; below it, models barely beat guessing (SER .96 at 580, .61 at 2,160)
