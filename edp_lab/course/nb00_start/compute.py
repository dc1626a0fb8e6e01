"""What ``00_start.ipynb`` computes: numbers read out of a model, one eDP-SGD step, a claim put to the test. No widgets.

    model = SmallModel(config, epochs=4)               # trained once, by the course's own loop
    read = model.secrets[16]                           # a number that it saw 16 times
    result = one_step(model.on(8), config, epoch=0)    # pure
    tested = challenge(as_printed=True, z0=1.0, num_devices=8)

Noise, clipping and epsilon come from `edp_lab.training.dp_step` and `edp_lab.privacy`; nothing is repeated here. What
they refuse (UsageError) is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edp_lab.attacks.canaries import AROUND, DIGITS, draw_canaries, filling_losses
from edp_lab.attacks.step_audit import StepAudit, StepNoise
from edp_lab.corpora import load_corpus, split
from edp_lab.course.kit.exercises import moved
from edp_lab.course.kit.inputs import DELTA, attacked_mechanism, require
from edp_lab.course.kit.text import plain
from edp_lab.errors import UsageError
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.privacy import Alpha, Guarantee, Mechanism, judge
from edp_lab.privacy.csprng import Purpose, stream
from edp_lab.training import TrainConfig
from edp_lab.training.dp_step import layer_scales, noise_stds, release
from edp_lab.training.gradients import Layout, StackedGradients, stacked_gradients
from edp_lab.training.noise import Share, standard_noise
from edp_lab.training.trainer import Trainer

TIMES = (0, 1, 4, 16)  # how often the training set holds a number
NUMBERS = 10_000  # hidden ones and others


class Secret(NamedTuple):
    """A personal number in the training set, and other numbers, by the loss that the model gives them."""

    times: int  # that the training set holds it
    number: str  # seven digits
    likeliest: str  # the number with the smallest loss
    loss: float  # of this number
    losses: np.ndarray  # (F), of it and all others
    rank: int  # of its own among them, 1 the smallest


class Gradients(NamedTuple):
    """What one step starts from."""

    layout: Layout
    per_device: Tensor  # (N, P), mean gradient of each device's micro-batch
    alpha: Tensor  # (K), layer scales from the first batch of training, as in the paper
    noise: Tensor  # (P), standard normal draws
    delta: float  # of a run on this corpus


class StepResult(NamedTuple):
    """One step on one batch, as its figures show it: L2 norms by layer, and what the whole run costs."""

    config: TrainConfig
    mechanism: Mechanism
    epoch: int  # t, which sets the noise through the decay
    layers: tuple[str, ...]  # names of the parameter tensors
    signal: tuple[float, ...]  # of the mean clipped gradient
    noise: tuple[float, ...]  # expected on it: standard deviation times square root of the layer's size
    draw: tuple[float, ...]  # of one draw of that noise
    clip_factors: tuple[float, ...]  # per device, in (0, 1]
    claimed: list[float | None]  # epsilon of the paper's accounting after 1, 2, ... epochs; None where it overflows
    true: list[float | None]  # epsilon that holds if alpha is public, in the same way
    guarantee: Guarantee  # of the whole run

    @property
    def ratio(self) -> float:
        """Expected noise over signal, all layers together."""
        return math.hypot(*self.noise) / math.hypot(*self.signal)


def one_step(gradients: Gradients, config: TrainConfig, epoch: int) -> StepResult:
    """One step of `config` on these gradients, and the privacy loss of the whole run.

    What the step releases is signal + noise: `release` without noise gives the signal. UsageError: plain SGD, an epoch
    outside the run, or other devices than the gradients'.
    """
    mechanism = config.mechanism()
    if mechanism is None:
        raise UsageError("plain SGD adds no noise: choose method 'edp-sgd'")
    outside = f"epoch t = {epoch} lies outside a run of {config.epochs} epochs (t = 0 to {config.epochs - 1})"
    require(0 <= epoch < config.epochs, f"{outside}: lower t or raise the number of epochs")
    held, due = len(gradients.per_device), mechanism.num_devices
    require(held == due, f"{held} gradients for {due} devices")
    alpha = None if mechanism.alpha is Alpha.NONE else gradients.alpha
    layout, draws = gradients.layout, gradients.noise
    rows = StackedGradients(gradients.per_device, layout)
    signal = release(mechanism, epoch, rows, layout, alpha, torch.zeros_like(draws))
    stds = noise_stds(mechanism, epoch, alpha, mechanism.num_devices, len(layout.names))
    sizes = torch.tensor([columns.stop - columns.start for columns in layout.columns])
    spread = torch.tensor(stds).repeat_interleave(sizes)  # (P), of the noise on every weight

    def norms(gradient: Tensor) -> tuple[float, ...]:
        each = (torch.linalg.vector_norm(gradient[columns], dtype=torch.float64) for columns in layout.columns)
        return tuple(norm.item() for norm in each)

    spent = [judge(mechanism, t, gradients.delta) for t in range(1, config.epochs + 1)]
    return StepResult(
        config, mechanism, epoch, layout.names,
        signal=norms(signal.gradient),
        noise=norms(spread),
        draw=norms(spread * draws),
        clip_factors=tuple(signal.clip_factors.tolist()),
        claimed=[held.epsilon_claimed for held in spent],
        true=[held.epsilon_if_alpha_public for held in spent],
        guarantee=spent[-1],
    )  # fmt: skip


class SmallModel:
    """A small model, trained without noise by the course's own loop, and the batch that it would meet next.

    The same model and batch stand behind every setting of the sliders, so that only the mechanism differs.

    Args:
        config: what the panels start with; `plain` makes the model's own run of it.
        epochs: how long to train.

    Attributes:
        secrets: by how often the training set holds a number, what the model gives away of it.
        on: from a number of devices the `Gradients` that a step on them starts from, computed once for each.
        epochs: the rows of its run record.
    """

    def __init__(self, config: TrainConfig, epochs: int) -> None:
        self.config = plain(config, epochs)
        self._run = self.trainer(self.config)
        self.layout, self.delta = self._run.layout, self._run.delta
        self._untrained = deepcopy(self._run.model)
        for _ in range(epochs):
            self._run.epoch()
        self.epochs: list[dict[str, Any]] = self._run.record["epochs"]
        self.secrets = self.read(self._run)
        self.noise = standard_noise(self._run.key, self._run.progress.step, self.layout.size, Share())
        self.on = cache(self._on)

    def trainer(self, config: TrainConfig) -> Trainer:
        """A run on the same corpus with the same numbers hidden in it; `Trainer.epoch` trains it."""
        corpus = load_corpus(config.corpus)
        data = split(corpus, config.seed)
        self.numbers = draw_canaries(corpus, data.train, TIMES, 2, NUMBERS - 2 * len(TIMES), config.seed)
        return Trainer(config, corpus, replace(data, train=(*data.train, *self.numbers.inserted)))

    def read(self, run: Trainer) -> dict[int, Secret]:
        """What a trained model gives away of the first number of each kind."""
        hidden = [group[0] for group in self.numbers.utterances.values()]
        texts = [u.tokens for group in self.numbers.utterances.values() for u in group] + [*self.numbers.references]
        losses = filling_losses(run.model, texts, hidden)
        found = {}
        for times, utterance, loss in zip(self.numbers.utterances, hidden, losses, strict=True):
            own = loss[texts.index(utterance.tokens)]
            names = _digits(utterance.tokens), _digits(texts[int(loss.argmin())])
            found[times] = Secret(times, *names, float(own), loss, int((loss < own).sum()) + 1)
        return found

    def _on(self, num_devices: int) -> Gradients:
        def gradients(model: IntentSlotModel, epoch: int, step: int) -> Tensor:
            """(N, P), of the first batch of an epoch."""
            run, data = self._run, self._run.train_data
            examples = stream(run.key, Purpose.SHUFFLE, epoch).permutation(len(data))[: self.config.batch_size]
            dropout_key = int(stream(run.key, Purpose.DROPOUT, step).integers(2**63))
            parts = np.array_split(examples, num_devices)
            return stacked_gradients(model, data, parts, dropout_key, self.layout).gradients.cpu()

        alpha = layer_scales(gradients(self._untrained, 0, 0).mean(0), self.layout)
        following = gradients(self._run.model, self.config.epochs, self._run.progress.step)
        return Gradients(self.layout, following, alpha, self.noise, self.delta)


def _digits(tokens: Sequence[str]) -> str:
    """``call my doctor at nine one six two zero four seven`` -> "916 2047"."""
    number = "".join(str(DIGITS.index(token)) for token in tokens[len(AROUND) :])
    return f"{number[:3]} {number[3:]}"


# ---- A claim, put to the test ----------------------------------------------------------------------------------------

ROUNDS = 5_000  # draws of a step without the sentence, and as many with it


def challenge(as_printed: bool, z0: float, num_devices: int) -> StepAudit:
    """Test the epsilon that is claimed for one step at clip norm 1 and delta 1e-5, as `edp-lab audit mechanism` does.

    Guarantee: the lower bound on epsilon holds with probability 95 % if the noise is as good as random. UsageError: no
    finite claim; as `Mechanism`.
    """
    return _step_noise().audit(attacked_mechanism(as_printed, 1.0, z0, num_devices), DELTA, ROUNDS)


@cache
def _step_noise() -> StepNoise:
    return StepNoise(0, ROUNDS)


def moves(before: Sequence[float | None], after: Sequence[float | None]) -> str:
    """What became of the last of some epsilons, in the words of the predictions; None is too large for a float."""
    one, other = (math.inf if epsilons[-1] is None else epsilons[-1] for epsilons in (before, after))
    return f"it {moved(one, other)}"
