"""Privacy audit with one run (Steinke, Nasr and Jagielski 2023): each canary is included by a fair coin flip.

An attacker who sees all releases of the run scores every canary, and guesses "in" for the highest scores and "out" for
the lowest. If more guesses are right than the claimed epsilon allows, the claim is refuted. A canary that is out keeps
its slot but contributes no gradient. So the data with and without it are zero-out neighbours, as the accounting assumes
for disjoint batches. Canaries of the same step are in different micro-batches.

Canary i moves its micro-batch's gradient along a direction e_i, which is orthogonal to the other canaries' directions.
It moves the gradient as far as clipping allows: to +C e_i if the canary is in. If it is out, the gradient is 0 for a
canary that is alone in its micro-batch. Otherwise it is -C e_i, because an opposing example, which is always present,
pushes the other way. So the two gradients differ by the sensitivity, C or 2C, except for the micro-batch's other
utterances, which keep a tenth of C. The score is the sum of the inner products of e_i with the releases of all steps in
which the canary could take part. An attacker who knows only the initial and the last model uses as score the distance
between the two along -e_i.

All layer scales alpha are 1; private layer scales would be an additional leak. The order and positions of the canaries
are public, which is valid as long as sampling does not amplify privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from edp_lab.attacks.statistics import OneRunBounds, Tally, check_confidence, make_guesses, one_run_bounds
from edp_lab.attacks.step_audit import FAR, Audit, claim_under_test
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import Corpus, Split, split
from edp_lab.errors import UsageError
from edp_lab.privacy import Alpha, Mechanism, judge
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.training.batches import Devices, shard
from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import release
from edp_lab.training.gradients import Layout, MicroGradients, StackedGradients, model_gradients, stacked_gradients
from edp_lab.training.noise import float_noise
from edp_lab.training.trainer import Trainer

MOST_CANARIES = 10**6
DELTA = 1e-5

Gradients = Sequence[MicroGradients]  # gradients of one step
OnStep = Callable[[int, int], None]  # receives the number of steps done and the total


# ---- Choice and placement of the canaries ----------------------------------------------------------------------------


class Placement(NamedTuple):
    """Disjoint batches like `Batches`, with at most one canary per micro-batch; index n + i is canary i."""

    key: int
    utterances: int  # n
    canaries: int  # m
    num_devices: int
    micro_batches: int  # M per step
    size: int  # b, maximum number of utterances in a micro-batch
    reserved: int  # slots of a micro-batch used by a canary and its opposing example

    @property
    def steps_per_epoch(self) -> int:
        slots = self.utterances + self.reserved * self.canaries
        return max(math.ceil(slots / (self.micro_batches * self.size)), math.ceil(self.canaries / self.micro_batches))

    def devices(self, epoch: int, step_in_epoch: int, step: int) -> Devices:
        """The micro-batches of every device in one step."""
        shuffle = stream(self.key, Purpose.SHUFFLE, epoch)
        places = self.steps_per_epoch * self.micro_batches
        holds = shuffle.permutation(places)[: self.canaries]  # canary i is in micro-batch holds[i]
        free = np.full(places, self.size)
        free[holds] -= self.reserved
        slots = shuffle.permutation(np.repeat(np.arange(places), free))[: self.utterances]
        first = step_in_epoch * self.micro_batches
        micro_batches = [
            np.concatenate([np.flatnonzero(slots == place), self.utterances + np.flatnonzero(holds == place)])
            for place in range(first, first + self.micro_batches)
        ]
        shards = (shard(self.micro_batches, device, self.num_devices) for device in range(self.num_devices))
        return [micro_batches[numbers.start : numbers.stop] for numbers in shards]


class Plan(NamedTuple):
    """Random choices made before the run: which canaries are in, and in which step each may take part."""

    key: int  # random key for the canaries; the noise uses a different key
    included: np.ndarray  # (m), bool
    utterances: int  # n; index n + i is canary i
    batches: Placement
    opposing_examples: bool  # whether an example that is always present pushes against each canary

    @classmethod
    def draw(cls, config: TrainConfig, canaries: int, utterances: int) -> Plan:
        key = key_from_seed(f"{config.seed}, canaries")
        included = stream(key, Purpose.SAMPLE, 0).random(canaries) < 0.5
        size = config.largest_micro_batch
        opposed = size > 1
        batches = Placement(key, utterances, canaries, config.num_devices, config.micro_batches, size, 1 + opposed)
        return cls(key, included, utterances, batches, opposed)

    def step(self, epoch: int, step_in_epoch: int) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
        """Micro-batches of one step without a canary; the other utterances of those with one; the canaries' indices."""
        step = epoch * self.batches.steps_per_epoch + step_in_epoch
        parts = [examples for device in self.batches.devices(epoch, step_in_epoch, step) for examples in device]
        with_canary = [examples for examples in parts if examples.max(initial=-1) >= self.utterances]
        others = [examples for examples in parts if examples.max(initial=-1) < self.utterances]
        numbers = np.array([examples.max() for examples in with_canary], dtype=np.int64) - self.utterances
        return others, [examples[examples < self.utterances] for examples in with_canary], numbers


# ---- Canaries -----------------------------------------------------------------------------------------------


class Directions:
    """m orthogonal unit vectors in P dimensions, each with random signs on P // m coordinates of its own."""

    def __init__(self, key: int, canaries: int, size: int) -> None:
        share = size // canaries
        if not share:
            raise UsageError(
                f"{canaries:,} canaries are too many for a model with {size:,} weights, because each needs its own "
                "weight: lower --canaries or use a larger model"
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
        """Add to each row its canary's direction times `by`: (k, P), (k), (k)."""
        columns, values = self._columns[canaries].to(rows.device), self._values[canaries].to(rows)
        rows.scatter_add_(1, columns, values * by[:, None].to(rows))


class LinearModel:
    """Audit model that needs no corpus: one layer of weights w with loss <w, x> on example x, so the gradient is x."""

    def __init__(self, mechanism: Mechanism, key: int, size: int, divisor: int) -> None:
        self.mechanism, self.key, self.divisor = mechanism, key, divisor
        self.layout = Layout(("weights",), (slice(0, size),))
        self.moved = torch.zeros(size)  # as in `RealModel`

    def gradients(self, others: Sequence[np.ndarray], rows_of: Sequence[np.ndarray]) -> tuple[Gradients, Tensor]:
        """Gradients of micro-batches without a canary; mean gradients of those for a canary (0 if empty): (k, P)."""
        return [], torch.zeros(len(rows_of), self.layout.size)  # zero gradients need not be added

    def step(self, epoch: int, step: int, gradients: Gradients) -> Tensor:
        """Take an optimizer step, and return the noisy mean gradient (P)."""
        noise = float_noise(self.key, step, self.layout.size)
        released = release(self.mechanism, epoch, gradients, self.layout, None, noise, self.divisor).gradient
        self.moved -= released
        return released


class RealModel:
    """CLC or BERT model on a corpus, set up as in training."""

    def __init__(self, config: TrainConfig, corpus: Corpus, data: Split, canaries: int) -> None:
        slots = (data.train[0],) * canaries  # placeholders: their words are never read
        self.run = Trainer(config, corpus, replace(data, train=(*data.train, *slots)))
        self.layout = self.run.layout
        self.start = self._weights()

    def _weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for _, p in self.run.parameters])

    @property
    def moved(self) -> Tensor:
        """Change of the weights since the start of training: (P)."""
        return self._weights() - self.start

    def gradients(self, others: Sequence[np.ndarray], rows_of: Sequence[np.ndarray]) -> tuple[Gradients, Tensor]:
        model, data, memory = self.run.model, self.run.train_data, self.run.memory
        rows = stacked_gradients(model, data, rows_of, None, self.layout).gradients
        return model_gradients(model, data, others, None, self.layout, memory=memory), rows

    def step(self, epoch: int, step: int, gradients: Gradients) -> Tensor:
        assert self.run.private is not None
        released = self.run.private.release(self.run.private.clip(gradients), epoch, step).gradient
        self.run.optimizer.step()
        return released


def gradient_scores(
    trainee: LinearModel | RealModel, mechanism: Mechanism, config: TrainConfig, plan: Plan, progress: OnStep
) -> tuple[np.ndarray, np.ndarray]:
    """Train with gradient canaries; return their scores from all releases and from the last model: (m), (m)."""
    m, per_epoch = len(plan.included), plan.batches.steps_per_epoch
    directions = Directions(plan.key, m, trainee.layout.size)
    scores = np.zeros(m)
    for step in range(config.epochs * per_epoch):
        epoch, step_in_epoch = divmod(step, per_epoch)
        others, rows_of, numbers = plan.step(epoch, step_in_epoch)
        # Add canaries and opposing examples to the mean gradients of their micro-batches. The push B is ten times the
        # clip norm, or ten times the norm of the others' gradient if that is larger; the adversary knows both. We add
        # B e for a canary that is in. For a canary that is out, we add -B e if it is opposed, and nothing if alone.
        gradients, rows = trainee.gradients(others, rows_of)
        sizes = np.array([len(utterances) for utterances in rows_of], float)
        rows *= torch.from_numpy(sizes / (sizes + 1 + plan.opposing_examples)).to(rows)[:, None]
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        push = FAR * norms.clamp_min(mechanism.clip_norm)
        away = (-1.0 if plan.opposing_examples else 0.0) * push
        included = torch.from_numpy(plan.included[numbers]).to(rows.device)
        directions.push(rows, numbers, torch.where(included, push, away))
        released = trainee.step(epoch, step, [*gradients, StackedGradients(rows, trainee.layout)])
        projections = config.micro_batches * directions.project(released, numbers)
        scores[numbers] += evidence(mechanism, epoch, projections)
        progress(step + 1, config.epochs * per_epoch)
    return scores, -directions.project(trainee.moved, np.arange(m))


def evidence(mechanism: Mechanism, epoch: int, projections: np.ndarray) -> np.ndarray:
    """Log-likelihood ratios of "in" against "out", from projections of one released sum: (k) -> (k).

    This is ln p(x | in) - ln p(x | out) for noise added to C or 0. For C or -C, the ranking is the same.
    """
    c = mechanism.clip_norm
    return (projections - c / 2) * c / mechanism.noise_std(epoch) ** 2


# ---- The audit -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OneRunAudit(Audit):
    """Claimed, guaranteed and measured epsilon of a run; the lower bound assumes Gaussian noise."""

    model: str  # "clc", "bert", or "linear", the one-layer audit model
    bounds: OneRunBounds  # lower bounds from all releases
    last_model: OneRunBounds  # lower bounds for an attacker who sees only the last model, valid for any mechanism
    canaries: int  # m
    included: int  # number of canaries that were in
    guesses: int  # number of guesses that yield the lower bound
    correct: int  # number of correct guesses
    tallies: tuple[Tally, ...]  # one for each number of guesses tried; they share the error probability
    epochs: int
    steps: int  # optimizer steps of the run


def audit_one_run(
    config: TrainConfig,
    canaries: int = 1000,
    linear: bool = False,
    confidence: float = 0.95,
    progress: OnStep = lambda done, steps: None,
) -> OneRunAudit:
    """Train once with canaries, and compute a lower bound on epsilon from the run's releases.

    Args:
        config: settings of the run. The seed determines noise, canaries and order. A `delta` of None means 1e-5.
            Canaries never share a micro-batch, so the run may need more steps than plain training.
        linear: replace the model and corpus by one layer that has one weight per canary and no other data.
        progress: called with the number of steps done and the total.

    Guarantee: if the noise is as good as random, epsilon is at least `measured_epsilon` with probability
    `confidence`. So a true claim is refuted with probability at most 1 - `confidence` (see `one_run_bounds`).

    Raises UsageError if the run claims no finite epsilon, or if the model is too small for that many canaries.
    """
    delta = config.delta or DELTA
    _check(config, canaries, confidence)
    corpus = None if linear else load_corpus(config.corpus, config.tokens)
    data = None if corpus is None else split(corpus, config.seed, config.keep_duplicates_together)
    utterances = 0 if data is None else len(data.train)
    mechanism = config.mechanism(utterances + canaries)
    assert mechanism is not None
    guarantee = judge(mechanism, config.epochs, delta, seed_published=False)
    claim_under_test(guarantee, mechanism)  # raises UsageError if there is no claim
    plan = Plan.draw(config, canaries, utterances)
    if corpus is None or data is None:
        trainee: LinearModel | RealModel = LinearModel(
            mechanism, key_from_seed(config.seed), canaries, config.micro_batches
        )
    else:
        trainee = RealModel(config, corpus, data, canaries)
    scores, last = gradient_scores(trainee, mechanism, config, plan, progress)
    tallies = make_guesses(scores, plan.included)
    perfect = [Tally(tally.guesses, tally.guesses) for tally in tallies]
    prove = partial(one_run_bounds, canaries, delta=guarantee.delta, confidence=confidence)
    bounds, most = (prove(counted, gaussian=True) for counted in (tallies, perfect))
    guesses, correct = bounds.tally.guesses, bounds.tally.correct
    return OneRunAudit.of(
        mechanism,
        guarantee,
        bounds.best,
        most.best,
        confidence,
        f"{canaries:,} canaries in one run",
        f"{correct:,} of {guesses:,} guesses are right, so ",
        "a wrong guess",
        model="linear" if linear else config.model,
        bounds=bounds,
        last_model=prove(make_guesses(last, plan.included), gaussian=False),
        canaries=canaries,
        included=int(plan.included.sum()),
        guesses=guesses,
        correct=correct,
        tallies=tallies,
        epochs=config.epochs,
        steps=config.epochs * plan.batches.steps_per_epoch,
    )


def _check(config: TrainConfig, canaries: int, confidence: float) -> None:
    if config.method == "sgd":
        raise UsageError("plain training has no claimed epsilon: audit edp-sgd or dp-sgd")
    if config.alpha_source is not Alpha.NONE:
        raise UsageError("this audit assumes that every layer scale alpha is 1: choose alpha 'none'")
    if config.poisson:
        raise UsageError("this audit places its canaries in disjoint batches: choose sampling 'shuffle'")
    if not (isinstance(canaries, Integral) and 1 <= canaries <= MOST_CANARIES):
        raise UsageError(f"the number of canaries is {canaries}: it must be a whole number from 1 to {MOST_CANARIES:,}")
    check_confidence(confidence)
