"""The training of ``02_dp_sgd.ipynb``: two weights, thirty steps, with and without clip and noise. No widgets.

    result = training(clip_norm=1.0, z=2.0, batch_size=20, optimizer="sgd", lr=1.0, sampling="poisson", seed=0)

Pure, and fast enough for a slider. Step, batches, noise, optimizers and epsilon come from `edp_lab.training` and
`edp_lab.privacy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from edp_lab.course.nb02_dp_sgd.compute import DELTA, Array, check_positive, check_seed, check_whole, rng_of
from edp_lab.errors import UsageError
from edp_lab.privacy import Guarantee, Mechanism, NoGuarantee, RenyiDP, accountant_for, judge
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.privacy.renyi import rdp_epsilon
from edp_lab.training.batches import Batches
from edp_lab.training.dp_step import noise_stds, release
from edp_lab.training.gradients import Layout, StackedGradients
from edp_lab.training.noise import Share, standard_noise
from edp_lab.training.optimizers import DPAdamBC, make_optimizer

PLANE = Layout(("w",), (torch.Size([2]),), (slice(0, 2),))  # a model of two weights
PEOPLE, STEPS = 400, 30
START, TRUTH = np.array([-0.8, -1.5]), np.array([1.0, 2.0])
SCALES = np.array([2.0, 0.5])  # of the two features: one weight is learnt more easily than the other
OPTIMIZERS = ("sgd", "momentum", "adam", "dp-adambc")
MOMENTUM = 0.9
SAMPLINGS = ("poisson", "shuffle")


@dataclass(frozen=True)
class Recipe:
    """How to train, clip and noise aside; see `training`."""

    batch_size: int
    optimizer: str
    lr: float
    sampling: str
    seed: int
    gamma: float

    def __post_init__(self) -> None:
        check_whole("batch size", self.batch_size, PEOPLE)
        if self.optimizer not in OPTIMIZERS:
            raise UsageError(f"unknown optimizer {self.optimizer!r}: choose {', '.join(OPTIMIZERS)}")
        if self.sampling not in SAMPLINGS:
            raise UsageError(f"unknown sampling {self.sampling!r}: choose {' or '.join(SAMPLINGS)}")
        check_seed(self.seed)
        check_positive("learning rate", self.lr)
        check_positive("floor gamma'", self.gamma)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(PEOPLE / self.batch_size)

    @property
    def epochs(self) -> int:
        """Passes over the data that are begun, with shuffled batches."""
        return math.ceil(STEPS / self.steps_per_epoch)

    def mechanism(self, clip_norm: float, z: float) -> Mechanism:
        rate = self.batch_size / PEOPLE if self.sampling == "poisson" else None
        return Mechanism.sound(clip_norm, z, 1, 1, sampling_rate=rate)


@dataclass(frozen=True, eq=False)
class Training:
    """Logistic regression with two weights, trained with DP-SGD, beside the same without noise and without clipping.

    Attributes:
        plain, clipped, private: (STEPS + 1, 2) weights after each step: neither clip nor noise, clip only, both.
        losses: by the same names, (STEPS + 1,), over all people.
        accuracy: of the private weights at the end, over the same people.
        poisson, shuffle: (STEPS,) epsilon after each step were the batches drawn so; None where there is none.
        guarantee: of all steps as they were drawn.
    """

    recipe: Recipe
    mechanism: Mechanism
    plain: Array
    clipped: Array
    private: Array
    losses: Mapping[str, Array]
    accuracy: float
    poisson: Sequence[float | None]
    shuffle: Sequence[float | None]
    guarantee: Guarantee

    @property
    def noise_std(self) -> float:
        """Of the noise on each weight's released mean gradient."""
        return _noise_std(self.mechanism, self.recipe)


def training(
    clip_norm: float,
    z: float,
    batch_size: int,
    optimizer: str,
    lr: float,
    sampling: str,
    seed: int,
    gamma: float = 1e-3,
) -> Training:
    """Thirty steps, each on a batch of (Poisson: about) `batch_size` of 400 people.

    Args:
        gamma: the floor gamma' of DP-AdamBC; the others do not look at it.

    Raises:
        UsageError: as `edp_lab.privacy.Mechanism`, or an unknown optimizer or sampling, a batch size none from 1 to
            400, lr or gamma not positive and finite, seed negative.
    """
    recipe = Recipe(batch_size, optimizer, lr, sampling, seed, gamma)
    mechanism = recipe.mechanism(clip_norm, z)
    plain, clipped = _plain_path(recipe), _clipped_path(recipe.mechanism(clip_norm, 0.0), recipe)
    private = _private_path(mechanism, recipe)
    poisson, shuffle = (_spent(replace(recipe, sampling=sampling).mechanism(1.0, z), recipe) for sampling in SAMPLINGS)
    people, labels = _people()
    right = (people @ torch.from_numpy(private[-1]) > 0) == (labels > 0.5)
    return Training(
        recipe, mechanism, plain, clipped, private,
        {"plain": loss(plain), "clipped": loss(clipped), "private": loss(private)},
        float(right.double().mean()), poisson, shuffle, _judged(mechanism, recipe),
    )  # fmt: skip


def loss(weights: Array) -> Array:
    """Mean logistic loss over all people: (..., 2) -> (...), in nats."""
    people, labels = _people()
    scores = torch.from_numpy(np.ascontiguousarray(weights)) @ people.T
    return np.asarray((nn.functional.softplus(scores) - labels * scores).mean(-1))


@lru_cache(maxsize=1)
def _people() -> tuple[Tensor, Tensor]:
    """Features (n, 2) and labels (n), 0 or 1; the same for every seed, so that the loss surface stands still."""
    rng = rng_of(0)
    features = rng.standard_normal((PEOPLE, 2)) * SCALES
    labels = rng.random(PEOPLE) < expit(features @ TRUTH)
    return torch.from_numpy(features), torch.from_numpy(labels.astype(np.float64))


Batch = tuple[Tensor, Tensor]  # features (B, 2) and labels (B)


def _gradients(weights: Tensor, batch: Batch) -> Tensor:
    """Of the loss of each person in the batch: (B, 2)."""
    features, labels = batch
    return (torch.sigmoid(features @ weights) - labels)[:, None] * features


@lru_cache(maxsize=64)
def _batches(batch_size: int, sampling: str, seed: int) -> list[Batch]:
    """Who takes part in each step."""
    (features, labels), drawn = _people(), Batches(key_from_seed(seed), PEOPLE, batch_size, 1, 1, sampling, alone=False)
    places = (divmod(step, drawn.steps_per_epoch) for step in range(STEPS))
    parts = [drawn.devices(*place, step)[0][0] for step, place in enumerate(places)]
    return [(features[part], labels[part]) for part in parts]


@lru_cache(maxsize=64)
def _noise(seed: int) -> Tensor:
    """(STEPS, 2) standard normal draws."""
    draws = [standard_noise(key_from_seed(seed), step, 2, Share(), torch.float64) for step in range(STEPS)]
    return torch.stack(draws)


def _noise_std(mechanism: Mechanism, recipe: Recipe) -> float:
    return noise_stds(mechanism, 0, None, recipe.batch_size, 1)[0]


@lru_cache(maxsize=256)
def _plain_path(recipe: Recipe) -> Array:
    """Neither clip nor noise."""
    return _path(recipe, lambda weights, batch, step: _gradients(weights, batch).sum(0) / recipe.batch_size, 0.0)


@lru_cache(maxsize=256)
def _clipped_path(mechanism: Mechanism, recipe: Recipe) -> Array:
    """No noise: `mechanism` has z = 0."""
    return _private_path(mechanism, recipe)


def _private_path(mechanism: Mechanism, recipe: Recipe) -> Array:
    noise = _noise(recipe.seed)

    def released(weights: Tensor, batch: Batch, step: int) -> Tensor:
        rows = StackedGradients(_gradients(weights, batch), PLANE)
        return release(mechanism, 0, rows, PLANE, None, noise[step], divisor=recipe.batch_size).gradient

    return _path(recipe, released, _noise_std(mechanism, recipe))


def _path(recipe: Recipe, gradient: Callable[[Tensor, Batch, int], Tensor], noise_std: float) -> Array:
    """Weights before the first step and after each: (STEPS + 1, 2)."""
    weights = nn.Parameter(torch.from_numpy(START.copy()))
    optimizer, path = _optimizer(recipe, weights), [START]
    for step, batch in enumerate(_batches(recipe.batch_size, recipe.sampling, recipe.seed)):
        weights.grad = gradient(weights.detach(), batch, step)
        if isinstance(optimizer, DPAdamBC):
            optimizer.noise_std([noise_std])
        optimizer.step()
        path.append(weights.detach().numpy().copy())
    return np.stack(path)


def _optimizer(recipe: Recipe, weights: nn.Parameter) -> torch.optim.Optimizer:
    if recipe.optimizer == "dp-adambc":
        return DPAdamBC([weights], recipe.lr, recipe.gamma)
    if recipe.optimizer == "adam":
        return make_optimizer("adam", [weights], recipe.lr)
    momentum = MOMENTUM if recipe.optimizer == "momentum" else 0.0
    return torch.optim.SGD([weights], recipe.lr, momentum=momentum, dampening=momentum)


@lru_cache(maxsize=256)
def _judged(mechanism: Mechanism, recipe: Recipe) -> Guarantee:
    """Of all steps; with shuffled batches, of the passes that were begun."""
    poisson = recipe.sampling == "poisson"
    return judge(mechanism, mechanism.bill(steps=STEPS) if poisson else recipe.epochs, DELTA)


@lru_cache(maxsize=256)
def _spent(mechanism: Mechanism, recipe: Recipe) -> tuple[float | None, ...]:
    """Epsilon after 1, 2, ... steps of this mechanism, whichever sampling the recipe has."""
    try:
        if mechanism.sampling_rate is not None:
            each = RenyiDP(mechanism.schedule({0: 1})).rdp
            found = [rdp_epsilon(each * step, DELTA) for step in range(1, STEPS + 1)]
        else:
            bills = (mechanism.bill(passes) for passes in range(1, recipe.epochs + 1))
            by_pass = [accountant_for(mechanism, bill).epsilon(DELTA) for bill in bills]
            found = [by_pass[step // recipe.steps_per_epoch] for step in range(STEPS)]
    except NoGuarantee:
        return (None,) * STEPS
    return tuple(epsilon if math.isfinite(epsilon) else None for epsilon in found)


@dataclass(frozen=True)
class Tuned:
    """One optimizer at the learning rate that suits it best with noise: mean final losses, and their deviation."""

    optimizer: str
    lr: float
    plain: float
    private: float
    deviation: float
    epsilon: float | None


def tuned(clip_norm: float, z: float, batch_size: int, rates: Sequence[float], seeds: Sequence[int]) -> list[Tuned]:
    """Every optimizer at the best of these learning rates, mean over the seeds; the tuning itself is not accounted.

    Raises:
        UsageError: as `training`.
    """
    rows = []
    for optimizer in OPTIMIZERS:
        tries = []
        for lr in rates:
            runs = [training(clip_norm, z, batch_size, optimizer, lr, "poisson", seed) for seed in seeds]
            plain, private = (np.array([run.losses[name][-1] for run in runs]) for name in ("plain", "private"))
            row = (float(plain.mean()), float(private.mean()), float(private.std()))
            tries.append(Tuned(optimizer, lr, *row, runs[0].guarantee.epsilon))
        rows.append(min(tries, key=lambda row: row.private))
    return rows
