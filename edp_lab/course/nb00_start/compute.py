"""What ``00_start.ipynb`` computes: one eDP-SGD step on real gradients. No widgets.

    model = SmallModel(config, epochs=4)               # trained once, by the course's own loop
    result = one_step(model.on(8), config, epoch=0)    # pure

Noise, clipping and epsilon come from `edp_lab.training.dp_step` and `edp_lab.privacy`; nothing is repeated here.
"""

from __future__ import annotations

import math
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edp_lab.corpora import load_corpus, split
from edp_lab.course.kit.inputs import require
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
    def total_noise(self) -> float:
        """Expected, all layers together."""
        return math.hypot(*self.noise)

    @property
    def ratio(self) -> float:
        """Expected noise over signal, all layers together."""
        return self.total_noise / math.hypot(*self.signal)


def one_step(gradients: Gradients, config: TrainConfig, epoch: int) -> StepResult:
    """One step of `config` on these gradients, and the privacy loss of the whole run.

    What the step releases is signal + noise: `release` without noise gives the signal.

    Raises:
        UsageError: plain SGD, an epoch outside the run, or other devices than the gradients'.
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
        on: from a number of devices the `Gradients` that a step on them starts from, computed once for each.
        epochs: the rows of its run record.

    Raises:
        UsageError: as `edp_lab.training.train`.
    """

    def __init__(self, config: TrainConfig, epochs: int) -> None:
        self.config = plain(config, epochs)
        corpus = load_corpus(config.corpus)
        self._run = Trainer(self.config, corpus, split(corpus, config.seed))
        self.layout, self.delta = self._run.layout, self._run.delta
        self._untrained = deepcopy(self._run.model)
        for _ in range(epochs):
            self._run.epoch()
        self.epochs: list[dict[str, Any]] = self._run.record["epochs"]
        self.noise = standard_noise(self._run.key, self._run.progress.step, self.layout.size, Share())
        self.on = cache(self._on)

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
