"""Why is my model bad? Where a run's error comes from, read off what the run has left, and the one change to try first.

    noise     what is left of the noise after all steps, against the longest gradient that clipping lets through
    clip      C against the length of a gradient: far above it, noise is added for nothing; far below, Adam stands still
    reach     how far Adam can carry a weight: the sum of its learning rates (too small a rate, or too few steps)
    corpus    utterances for each label, where the training set was learnt and others are not

No privacy is spent: all comes from configuration, released model and sentences that a grammar makes up. Training loss
and validation scores, which the record holds, are not covered by epsilon (`NOT_PRIVATE`), and decide between causes.
Only `look`, which is asked for by name, computes anything from the training set.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import Labels
from edp_lab.corpora.smart_home import generate
from edp_lab.errors import UsageError
from edp_lab.models import load_model
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.privacy import NoGuarantee, judge
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.guarantee import upward
from edp_lab.training.config import LEARNING_RATES, TrainConfig
from edp_lab.training.gradients import model_gradients
from edp_lab.training.inference import evaluate_model, run_data
from edp_lab.training.optimizers import BETAS, EPSILON, GAMMA
from edp_lab.training.run_folder import MODEL, read_record, run_config
from edp_lab.training.trainer import Trainer

# What is felt. The first two are from the 43 runs of notebook 06 (smart-home, small CLC): up to this noise the error
# stays within .1 of SGD's, and SGD needs about so many steps at the default rate.
FELT_NOISE = 0.015
ENOUGH_STEPS = 200
PER_LABEL = 25  # utterances of a label; ATIS has as many
LEARNT = 0.1  # of the loss before training: below, the training set has been learnt
WORTH_NAMING = 1.5  # times too much or too little
MADE_UP = 32  # sentences
ALONE = 1000  # weights on which Adam is tried with noise alone


class Layer(NamedTuple):
    """One parameter: norms of the noise in a step's mean gradient, of the way it went, and of what noise alone does."""

    name: str
    size: int
    noise: float
    moved: float
    by_noise: float


class Cause(NamedTuple):
    """`factor`: how many times too much (or too little) of it there is, at least 1. `change`: of the configuration."""

    name: str
    factor: float
    said: str
    change: dict[str, Any]
    utterances: int | None = None  # that the corpus should have, where it is that


class Looked(NamedTuple):
    """From one pass over the training set with the final model: not private, and not to be published."""

    clipped: float  # share of clipped gradients
    kept: float  # length of the mean clipped gradient, over that of the unclipped one
    cosine: float  # between the two: 1 is no bias
    noise: float  # length of the noise in one step's mean, over that of the mean clipped gradient
    train_ser: float


class Explained(NamedTuple):
    """What was found. `causes`: the worst first; none where nothing stands out."""

    config: TrainConfig  # without what follows from the rest
    delta: float
    ser: float
    epsilon: float | None
    utterances: int  # or speakers, where these are protected
    steps: int
    noise: float  # see `_noise_left`; 0 without noise
    gradient: float  # typical length of an unclipped one, at first
    unlearnt: float  # training loss over the loss before training
    layers: list[Layer]
    causes: list[Cause]
    more: list[tuple[int, float]]  # utterances, and the noise with batches as many times larger: the same epsilon
    plain_ser: float | None  # of the run without privacy beside it
    looked: Looked | None


def explain(run: str | Path, beside: str | Path | None = None, look: bool = False) -> Explained:
    """Explain a finished or interrupted run; see the module.

    Args:
        beside: a run of ``--method sgd`` with the same corpus and start: the ceiling without privacy.
        look: also compute what only the training set tells (see `Looked`).

    Raises:
        UsageError: no run, one of another corpus or start, or one that has not finished an epoch.
    """
    record, corpus, data = run_data(run)
    config = run_config(record)
    if not record["epochs"]:
        raise UsageError(f"the run in {run} has not finished an epoch: go on with edp-lab train --resume {run}")
    trainer = Trainer(config, corpus, data)
    model = load_model(Path(run) / MODEL)
    plain = None if beside is None else _plain_ser(beside, record)
    steps = len(record["epochs"]) * trainer.batches.steps_per_epoch
    gradient, before = _made_up(trainer)
    noise = _noise_left(trainer, steps, gradient)
    unlearnt = record["epochs"][-1]["loss"] / before
    scores = record["final"] or record["epochs"][-1]
    found = Explained(
        _as_given(config, trainer.batches.examples),
        trainer.delta,
        scores["ser"],
        scores["epsilon"],
        trainer.batches.examples,
        steps,
        noise,
        gradient,
        unlearnt,
        _layers(trainer, model, steps),
        [],
        [(k * trainer.batches.examples, noise / k) for k in (1, 2, 4)],
        plain,
        _look(trainer, model) if look else None,
    )
    return found._replace(causes=_ranked(found, trainer))


def _as_given(config: TrainConfig, utterances: int) -> TrainConfig:
    """A record settles the rate and delta: the usual ones are left to the next run."""
    usual = replace(config, lr=None, delta=None)
    lr = None if config.lr == usual.learning_rate else config.lr
    return replace(config, lr=lr, delta=None if config.delta == max(utterances, 2) ** -1.1 else config.delta)


def _plain_ser(beside: str | Path, record: dict[str, Any]) -> float:
    plain = read_record(beside)
    if plain["config"]["method"] != "sgd" or plain["corpus"]["sha256"] != record["corpus"]["sha256"]:
        raise UsageError(f"the run in {beside} is no --method sgd on the same corpus: give one, or drop --beside")
    if not plain["epochs"]:
        raise UsageError(f"the run in {beside} has not finished an epoch: go on with edp-lab train --resume {beside}")
    starts = [one["config"]["pretrained"] or "nothing" for one in (plain, record)]
    if starts[0] != starts[1]:
        raise UsageError(
            f"the run in {beside} starts from {starts[0]}, the other from {starts[1]}, so they do not show what "
            "privacy costs: drop --beside, and edp-lab explain names a run to set beside"
        )
    return float((plain["final"] or plain["epochs"][-1])["ser"])


# ---- What is read off, without a look at the training set ------------------------------------------------------------


def _made_up(trainer: Trainer) -> tuple[float, float]:
    """Median length of a micro-batch's gradient, and mean loss, before training, on sentences and labels made up."""
    size = min(MADE_UP, trainer.config.largest_micro_batch) if trainer.private is not None else 1
    data = trainer.model.dataset(_sentences(trainer.model.labels, MADE_UP * min(size, 4)))
    parts = np.array_split(np.arange(len(data.utterances)), len(data.utterances) // size or 1)
    gradients = model_gradients(trainer.model, data, parts, None, trainer.layout)
    flat = next(p for _, p in trainer.parameters).new_zeros(trainer.layout.size)
    norms = gradients.clipped_sum(flat, lambda norms: torch.ones_like(norms[:, 0])).norms
    for _, p in trainer.parameters:
        p.grad = None
    return float(norms.norm(dim=1).median()), float(gradients.loss) / len(data.utterances)


def _sentences(labels: Labels, count: int) -> list[Utterance]:
    """Public words, with labels drawn from the public label sets."""
    rng = np.random.default_rng(0)
    found = []
    for utterance in generate(count, 0).utterances:
        tags = tuple(rng.choice(labels.tags, len(utterance.tokens)).tolist()) if labels.tags else None
        found.append(Utterance(utterance.tokens, tags, str(rng.choice(labels.intents))))
    return found


def _noise_left(trainer: Trainer, steps: int, gradient: float) -> float:
    """Length of the noise in the mean over all steps, over the longest mean gradient that clipping lets through.

    The noise of T steps averages to 1 / sqrt(T). The mean of clipped gradients is at most min(C, a gradient's length);
    what examples do not agree about cancels in it, and clipping the mean of m examples comes after that: a factor of
    sqrt(m), by which runs with micro-batches of 1 to 8 fall on one curve.
    """
    if trainer.mechanism is None:
        return 0.0
    epochs = range(-(-steps // trainer.batches.steps_per_epoch))
    sizes = [columns.stop - columns.start for columns in trainer.layout.columns]
    squares = [sum(n * s * s for n, s in zip(sizes, trainer.rule.noise_stds(t), strict=True)) for t in epochs]
    shared = math.sqrt(min(trainer.config.largest_micro_batch, trainer.config.batch_size))
    longest = min(trainer.config.clip_norm, gradient) * shared
    return math.sqrt(sum(squares) / len(squares) / steps) / longest


def _rates(config: TrainConfig, steps: int, planned: int) -> np.ndarray:
    """Adam's learning rate in each step: (T)."""
    fallen = np.arange(steps) / planned if config.lr_schedule == "linear" else np.zeros(steps)
    return config.learning_rate * (1 - fallen)


def _layers(trainer: Trainer, model: IntentSlotModel, steps: int) -> list[Layer]:
    per_epoch, final = trainer.batches.steps_per_epoch, dict(model.named_parameters())
    rates = _rates(trainer.config, steps, per_epoch * trainer.config.epochs)
    stds = np.array([trainer.rule.noise_stds(t) for t in range(-(-steps // per_epoch))])  # (epochs, K)
    found = []
    for k, (name, first) in enumerate(trainer.parameters):
        moved = float((final[name].detach().double() - first.detach().double().cpu()).norm())
        root, own = math.sqrt(first.numel()), np.repeat(stds[:, k], per_epoch)[:steps]
        found.append(Layer(name, first.numel(), float(stds[0, k]) * root, moved, root * _walk(rates, own)))
    return found


def _walk(rates: np.ndarray, stds: np.ndarray) -> float:
    """Root mean square distance that Adam moves a weight if its gradient is noise alone: simulated."""
    if not stds.any():
        return 0.0
    rng, (slow, square) = np.random.default_rng(0), BETAS
    place, mean, power = np.zeros((3, ALONE))
    for t, (rate, std) in enumerate(zip(rates, stds, strict=True), 1):
        noise = std * rng.standard_normal(ALONE)
        mean, power = slow * mean + (1 - slow) * noise, square * power + (1 - square) * noise**2
        place -= rate * mean / (1 - slow**t) / (np.sqrt(power / (1 - square**t)) + EPSILON)
    return float(np.sqrt(np.mean(place**2)))


# ---- What only the training set tells --------------------------------------------------------------------------------


def _look(trainer: Trainer, model: IntentSlotModel) -> Looked:
    """One pass over the training set, without noise: nothing of it is private."""
    model.to(trainer.accelerator.device)
    limit = math.inf if trainer.mechanism is None else trainer.mechanism.clip_norm
    data, flat = model.dataset(trainer.train_data.utterances), next(model.parameters()).new_zeros(trainer.layout.size)
    raw, kept = torch.zeros(2, trainer.layout.size, dtype=torch.float64)
    parts = [
        part
        for step in range(trainer.batches.steps_per_epoch)
        for device in trainer.batches.devices(0, step, step)
        for part in device
        if len(part)
    ]
    clipped = 0
    for some in np.array_split(np.arange(len(parts)), trainer.batches.steps_per_epoch):
        gradients = model_gradients(model, data, [parts[k] for k in some], None, trainer.layout)
        norms = gradients.clipped_sum(flat, lambda norms: torch.ones_like(norms[:, 0])).norms.norm(dim=1)
        raw += flat.double().cpu()
        gradients.clipped_sum(flat, lambda norms: (limit / norms.norm(dim=1).clamp_min(1e-300)).clamp_max(1.0))
        kept += flat.double().cpu()
        clipped += int((norms > limit).sum())
    long, short = float(raw.norm()), float(kept.norm()) + 1e-300
    noise = math.hypot(*(layer.noise for layer in _layers(trainer, model, 1))) * len(parts)  # of as many means
    train = evaluate_model(model, trainer.train_data.utterances).ser
    cosine = float(raw @ kept) / max(long * short, 1e-300)
    return Looked(clipped / len(parts), short / max(long, 1e-300), cosine, noise / short, train)


# ---- Causes ----------------------------------------------------------------------------------------------------------


def _ranked(found: Explained, trainer: Trainer) -> list[Cause]:
    """The worst first, of an error. Without privacy's part in it, noise and clip are no causes."""
    if found.ser == 0:
        return []
    causes = [*_of_reach(found), *_of_corpus(found, trainer)]
    if found.plain_ser is None or found.ser - found.plain_ser > 0.2 * found.ser:
        causes += _of_noise(found, trainer)
    causes = [cause for cause in causes if cause.factor >= WORTH_NAMING]
    return sorted(causes, key=lambda cause: -cause.factor)


def _of_noise(found: Explained, trainer: Trainer) -> list[Cause]:
    config, mechanism = found.config, trainer.mechanism
    if mechanism is None:
        return []
    floor = math.sqrt(GAMMA) if config.optimizer == "dp-adambc" else EPSILON
    per_weight = min(config.clip_norm, found.gradient) / math.sqrt(trainer.layout.size)
    standing = 3 * floor / max(per_weight, *trainer.rule.noise_stds(0))
    above = max(1.0, config.clip_norm / found.gradient)
    felt = found.noise / FELT_NOISE
    length = f"a gradient is about {found.gradient:.2g} long at first"
    to_length = {"clip_norm": _rounded(found.gradient)}
    large = f"C is {above:.2g} times that ({length}), and the noise grows with C"
    small = f"a step is {standing:.2g} times too small for Adam, which adds {floor:.0e} to its root ({length})"
    left = f"what {found.steps:,} steps leave of the noise is {found.noise:.2g} of the longest mean gradient"
    less = _less_noise(config, felt / above)
    return [
        Cause("clip norm too small", standing, small, to_length),
        Cause("clip norm too large", min(above, felt), large, to_length),
        Cause("too much noise", felt / above, f"{left}; up to {FELT_NOISE} is hardly felt", less),
    ]


def _less_noise(config: TrainConfig, factor: float) -> dict[str, Any]:
    """At the same epsilon where it can be had: clipped alone, one moves the sum half as far, of m times as many."""
    if config.method == "edp-sgd" and not config.as_printed and config.largest_micro_batch > 1:
        return {"method": "dp-sgd", "sampling": "poisson" if config.poisson else "shuffle", "micro_batch_size": None}
    return {"z0": _rounded(config.z0 / factor)}


def _of_reach(found: Explained) -> list[Cause]:
    """Sum of learning rates: too few steps times too small a rate. What has been learnt needs no more."""
    config = found.config
    if found.unlearnt < LEARNT:
        return []
    usual = LEARNING_RATES[config.size][config.model]
    full = found.steps * (0.5 if config.lr_schedule == "linear" else 1.0)
    left = f"{found.unlearnt:.0%} of the loss before training is left"
    slow, few = usual / config.learning_rate, ENOUGH_STEPS / full
    if slow * few < 1:
        return []
    low, short = (
        f"it is {slow:.2g} times below the usual {usual:g}",
        f"there were {found.steps:,}, {few:.2g} times too few",
    )
    return [
        Cause("learning rate too small", slow, f"{low}, and {left}", {"lr": usual}),
        Cause("too few steps", few, f"{short}, and {left}", {"epochs": math.ceil(config.epochs * max(1.0, few))}),
    ]


def _of_corpus(found: Explained, trainer: Trainer) -> list[Cause]:
    """Utterances for each label. With more of them, as many steps are fewer epochs."""
    labels = trainer.model.labels
    kinds = len(labels.intents) + len({tag[2:] for tag in labels.tags} - {""})
    count = len(trainer.train_data.utterances)
    few = PER_LABEL * kinds / count
    if found.unlearnt >= LEARNT or few <= 1:
        return []
    said = f"{count:,} for {kinds} labels are learnt by heart ({found.unlearnt:.0%} of the loss is left)"
    epochs = max(1, round(found.config.epochs / few))
    return [Cause("too few utterances", few, said, {"epochs": epochs}, math.ceil(found.utterances * few))]


def followed(found: Explained, cause: Cause) -> tuple[TrainConfig, float | None]:
    """The run that follows this advice, and its epsilon at the run's delta, had its seed been secret.

    More epochs get the noise with which epsilon stays, where there is one.
    """
    config = replace(found.config, **cause.change)
    mechanism = config.mechanism(cause.utterances or found.utterances)
    if mechanism is None:
        return config, None
    if cause.name == "too few steps" and found.epsilon is not None:
        with suppress(NoGuarantee, UsageError):
            z0 = calibrate_z0(mechanism, config.epochs, Budget(found.epsilon, found.delta))
            config = replace(config, z0=float(upward(z0)))
            mechanism = replace(mechanism, z0=config.z0)
    return config, judge(mechanism, config.epochs, found.delta).epsilon


def _rounded(value: float) -> float:
    """To one digit."""
    return float(f"{value:.1g}")
