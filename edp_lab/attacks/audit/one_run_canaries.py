"""Canaries of the audit by one run: where they lie, how they push, and how a run that held them scores them.

Described in `edp_lab.attacks.audit.one_run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from edp_lab.attacks.audit.step_audit import FAR
from edp_lab.corpora import Corpus, Split, Utterance
from edp_lab.errors import UsageError
from edp_lab.privacy import Mechanism
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.training import StepDone, TrainConfig
from edp_lab.training.batches import Batches, Devices
from edp_lab.training.dp_step import release
from edp_lab.training.gradients import (
    Factors,
    Layout,
    MicroGradients,
    StackedGradients,
    model_gradients,
    stacked_gradients,
)
from edp_lab.training.noise import Share, part, standard_noise
from edp_lab.training.trainer import Trainer

Progress = Callable[[int, int], None]  # steps done, of so many


class Kind(StrEnum):
    """What a canary is."""

    GRADIENT = "gradient"
    MISLABELLED = "mislabelled"


# ---- Who is in, and where --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """Disjoint batches, with at most one canary in a micro-batch; numbers from n on are canaries. As `Batches`.

    Attributes:
        utterances: n.
        canaries: m.
        micro_batches: M in a step.
        size: b, the most utterances in a micro-batch.
        reserved: slots of a micro-batch that a canary takes up, its companion's among them.
    """

    key: int
    utterances: int
    canaries: int
    num_devices: int
    micro_batches: int
    size: int
    reserved: int

    @property
    def steps_per_epoch(self) -> int:
        slots = self.utterances + self.reserved * self.canaries
        return max(math.ceil(slots / (self.micro_batches * self.size)), math.ceil(self.canaries / self.micro_batches))

    def devices(self, epoch: int, step_in_epoch: int, step: int) -> Devices:
        """The micro-batches of every device in one step."""
        shuffle = stream(self.key, Purpose.SHUFFLE, epoch)
        places = self.steps_per_epoch * self.micro_batches
        holds = shuffle.permutation(places)[: self.canaries]  # canary i lies in micro-batch holds[i]
        free = np.full(places, self.size)
        free[holds] -= self.reserved
        slots = shuffle.permutation(np.repeat(np.arange(places), free))[: self.utterances]
        first = step_in_epoch * self.micro_batches
        parts = []
        for place in range(first, first + self.micro_batches):
            own = np.flatnonzero(slots == place), self.utterances + np.flatnonzero(holds == place)
            parts.append(np.concatenate(own))
        own_parts = (part(self.micro_batches, device, self.num_devices) for device in range(self.num_devices))
        return [parts[numbers.start : numbers.stop] for numbers in own_parts]


@dataclass(frozen=True)
class Plan:
    """All that is drawn before the run: who is in, and in which step each may take part.

    Attributes:
        key: of the canaries; that of the noise is another.
        included: (m), bool.
        utterances: n; example n + i is canary i.
        batches: who takes part in which step.
        companions: whether an utterance that is always there pushes against each canary.
    """

    key: int
    included: np.ndarray
    utterances: int
    batches: Batches | Placement
    companions: bool

    @classmethod
    def draw(cls, config: TrainConfig, canaries: int, utterances: int, kind: Kind) -> Plan:
        key = key_from_seed(f"{config.seed}, canaries")
        included = stream(key, Purpose.SAMPLE, 0).random(canaries) < 0.5
        size = config.largest_micro_batch
        companions = kind is Kind.GRADIENT and size > 1
        if config.poisson:
            batches = config.batches(key_from_seed(config.seed), utterances + canaries)
            return cls(key, included, utterances, batches, companions)
        placed = partial(Placement, key, utterances, canaries, config.num_devices, config.micro_batches, size)
        return cls(key, included, utterances, placed(1 + companions), companions)

    @property
    def disjoint(self) -> bool:
        return isinstance(self.batches, Placement)

    def step(self, epoch: int, step_in_epoch: int) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
        """Micro-batches without canary; those with one, less the canary; and the canaries' numbers."""
        step = epoch * self.batches.steps_per_epoch + step_in_epoch
        parts = [own for device in self.batches.devices(epoch, step_in_epoch, step) for own in device]
        highest = [own.max(initial=-1) for own in parts]
        others = [own for own, last in zip(parts, highest, strict=True) if last < self.utterances]
        with_canary = [own for own, last in zip(parts, highest, strict=True) if last >= self.utterances]
        numbers = np.array([own.max() for own in with_canary], dtype=np.int64) - self.utterances
        return others, [own[own < self.utterances] for own in with_canary], numbers


# ---- Gradient canaries -----------------------------------------------------------------------------------------------


class Directions:
    """m orthogonal unit vectors in P dimensions: random signs, each on P // m coordinates of its own.

    Raises:
        UsageError: fewer coordinates than canaries.
    """

    def __init__(self, key: int, canaries: int, size: int) -> None:
        share = size // canaries
        if not share:
            raise UsageError(
                f"{canaries:,} canaries for a model of {size:,} weights: each needs a weight of its own; lower "
                "--canaries or take a larger model"
            )
        random = stream(key, Purpose.SAMPLE, 1)
        columns = random.permutation(size)[: canaries * share].reshape(canaries, share)
        signs = random.integers(0, 2, (canaries, share)) * 2 - 1
        self._columns = torch.from_numpy(columns)
        self._values = torch.from_numpy((signs / math.sqrt(share)).astype(np.float32))

    def project(self, gradient: Tensor, canaries: np.ndarray) -> np.ndarray:
        """Inner products with the directions of these canaries: (P), (k) -> (k)."""
        columns, values = self._columns[canaries].to(gradient.device), self._values[canaries].to(gradient)
        return (gradient[columns] * values).double().sum(1).cpu().numpy()

    def push(self, rows: Tensor, canaries: np.ndarray, by: Tensor) -> None:
        """Add to each row its canary's direction times a number: (k, P), (k), (k)."""
        columns, values = self._columns[canaries].to(rows.device), self._values[canaries].to(rows)
        rows.scatter_add_(1, columns, values * by[:, None].to(rows))


@dataclass
class Together:
    """The micro-batches of two kinds of gradients in one step."""

    gradients: Sequence[MicroGradients]

    def clipped_sum(self, out: Tensor, factors_of: Factors) -> tuple[Tensor, Tensor, float]:
        own, total = torch.empty_like(out), torch.zeros_like(out)
        norms, factors = [], []
        for gradients in self.gradients:
            *found, scale = gradients.clipped_sum(own, factors_of)
            total.add_(own, alpha=scale)
            norms.append(found[0])
            factors.append(found[1])
        out.copy_(total)
        return torch.cat(norms), torch.cat(factors), 1.0


def push_rows(rows: Tensor, sizes: np.ndarray, numbers: np.ndarray, plan: Plan, to: Directions, clip: float) -> None:
    """Put canary and companion into micro-batches: their mean gradients without both become those with, in place.

    The canary's push is ten times as large as all that the clip must cut and as the others' share, which the adversary
    knows. With a companion the mean gets -B e from it, and 2 B e more if the canary is in; alone, B e or nothing.

    Args:
        rows: (k, P) mean gradient of the other utterances of each micro-batch.
        sizes: (k) how many they are.
        numbers: (k) the canaries.
    """
    rows *= torch.from_numpy(sizes / (sizes + 1 + plan.companions)).to(rows)[:, None]
    largest = FAR * torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).clamp_min(clip)
    included = torch.from_numpy(plan.included[numbers]).to(rows.device)
    away = -1.0 if plan.companions else 0.0
    to.push(rows, numbers, torch.where(included, largest, away * largest))


class Trainee(Protocol):
    """Who is trained with gradient canaries."""

    layout: Layout

    def gradients(self, parts: Sequence[np.ndarray]) -> MicroGradients:
        """Of micro-batches of real utterances."""
        ...

    def rows(self, parts: Sequence[np.ndarray]) -> Tensor:
        """The mean gradient of each of these micro-batches, 0 for an empty one: (k, P)."""
        ...

    def step(self, epoch: int, step: int, gradients: MicroGradients) -> Tensor:
        """Release the gradients (P), and learn from them."""
        ...


class OneLayer:
    """The audit model: one layer of weights w with loss <w, x> on example x, whose gradient is x, and no corpus."""

    def __init__(self, mechanism: Mechanism, key: int, size: int, divisor: int) -> None:
        self.mechanism, self.key, self.divisor = mechanism, key, divisor
        self.layout = Layout(("weights",), (torch.Size([size]),), (slice(0, size),))

    def gradients(self, parts: Sequence[np.ndarray]) -> MicroGradients:
        return StackedGradients(torch.zeros(0, self.layout.size), self.layout)  # zeros need not be added up

    def rows(self, parts: Sequence[np.ndarray]) -> Tensor:
        return torch.zeros(len(parts), self.layout.size)

    def step(self, epoch: int, step: int, gradients: MicroGradients) -> Tensor:
        noise = standard_noise(self.key, step, self.layout.size, Share())
        return release(self.mechanism, epoch, gradients, self.layout, None, noise, self.divisor).gradient


class RealModel:
    """The CLC or BERT on a corpus, set up as in training."""

    def __init__(self, config: TrainConfig, corpus: Corpus, data: Split, canaries: int) -> None:
        slots = (data.train[0],) * canaries  # hold the canaries' numbers; their words are never read
        self.run = Trainer(config, corpus, replace(data, train=(*data.train, *slots)))
        self.layout = self.run.layout

    def gradients(self, parts: Sequence[np.ndarray]) -> MicroGradients:
        return model_gradients(self.run.model, self.run.train_data, parts, None, self.layout, memory=self.run.memory)

    def rows(self, parts: Sequence[np.ndarray]) -> Tensor:
        return stacked_gradients(self.run.model, self.run.train_data, parts, None, self.layout).gradients

    def step(self, epoch: int, step: int, gradients: MicroGradients) -> Tensor:
        assert self.run.private is not None
        self.run.private.begin(step)
        released = self.run.private.finish(epoch, gradients).gradient
        self.run.optimizer.step()
        return released


def gradient_scores(
    trainee: Trainee, mechanism: Mechanism, config: TrainConfig, plan: Plan, progress: Progress
) -> np.ndarray:
    """Train with gradient canaries, and score them by what is released: (m)."""
    m, per_epoch = len(plan.included), plan.batches.steps_per_epoch
    directions = Directions(plan.key, m, trainee.layout.size)
    scores, everyone = np.zeros(m), np.arange(m)
    for step in range(config.epochs * per_epoch):
        epoch, step_in_epoch = divmod(step, per_epoch)
        others, rows_of, numbers = plan.step(epoch, step_in_epoch)
        rows = trainee.rows(rows_of)
        sizes = np.array([len(own) for own in rows_of], dtype=np.float64)
        push_rows(rows, sizes, numbers, plan, directions, mechanism.clip_norm)
        together = Together([trainee.gradients(others), StackedGradients(rows, trainee.layout)])
        released = trainee.step(epoch, step, together)
        seen = numbers if plan.disjoint else everyone  # whom Poisson sampling drew is secret
        scores[seen] += evidence(mechanism, epoch, config.micro_batches * directions.project(released, seen))
        progress(step + 1, config.epochs * per_epoch)
    return scores


def evidence(mechanism: Mechanism, epoch: int, projections: np.ndarray) -> np.ndarray:
    """How much more likely one step makes it that a canary is in, from projections of the released sum: (k) -> (k).

    ln p(x | in) - ln p(x | out), where noise is added to C or 0, and to C only if a Poisson sample drew the canary.
    With disjoint batches (also between C and -C) this ranks canaries as the inner product itself does.
    """
    c, q = mechanism.clip_norm, mechanism.sampling_rate
    drawn = (projections - c / 2) * c / mechanism.noise_std(epoch) ** 2
    return drawn if q is None or q == 1 else np.logaddexp(math.log1p(-q), math.log(q) + drawn)


# ---- Mislabelled utterances ------------------------------------------------------------------------------------------


def mislabelled_scores(config: TrainConfig, corpus: Corpus, data: Split, plan: Plan, progress: Progress) -> np.ndarray:
    """Minus the loss of mislabelled utterances after the project's own training: (m).

    What it was before would only add its own spread: an untrained model says little, and mostly of their lengths.
    """
    canaries = mislabelled(corpus, data.test, len(plan.included), plan.key)
    run = Trainer(config, corpus, replace(data, train=(*data.train, *canaries)))
    if plan.disjoint:
        run.batches = plan.batches  # type: ignore[assignment]
    _zero_out(run, plan)
    steps = run.batches.steps_per_epoch

    def listen(event: object) -> None:
        if isinstance(event, StepDone):
            progress(event.epoch * steps + event.step, config.epochs * steps)

    for _ in range(config.epochs):
        run.epoch(listen)
    del run.model.losses  # the class's own again
    return -_losses(run, plan)


def mislabelled(corpus: Corpus, utterances: Sequence[Utterance], count: int, key: int) -> tuple[Utterance, ...]:
    """So many of the utterances, each with an intent that is not its own."""
    random = stream(key, Purpose.SAMPLE, 2)
    chosen = [utterances[k] for k in random.permutation(len(utterances))[:count]]
    numbers = {name: k for k, name in enumerate(corpus.intents)}
    wrong = [numbers[u.intent] + 1 + int(random.integers(len(numbers) - 1)) for u in chosen]
    return tuple(
        replace(u, intent=corpus.intents[number % len(numbers)]) for u, number in zip(chosen, wrong, strict=True)
    )


def _zero_out(run: Trainer, plan: Plan) -> None:
    """Let the canaries that are out contribute no gradient, while their slots stay."""
    weights = torch.ones(len(run.train_data))
    weights[plan.utterances :][~torch.from_numpy(plan.included)] = 0
    losses = run.model.losses

    def weighted(batch: Any, *arguments: Any, **settings: Any) -> Tensor:
        own = losses(batch, *arguments, **settings)
        return own * weights[batch.examples].to(own)

    run.model.losses = weighted  # type: ignore[method-assign]


@torch.no_grad()
def _losses(run: Trainer, plan: Plan) -> np.ndarray:
    """Loss of every canary under the model as it is, without dropout: (m)."""
    numbers = plan.utterances + np.arange(len(plan.included))
    device = next(run.model.parameters()).device
    cut = [numbers[start : start + 128] for start in range(0, len(numbers), 128)]
    return torch.cat([run.model.losses(run.train_data.batch(own).to(device)) for own in cut]).double().cpu().numpy()
