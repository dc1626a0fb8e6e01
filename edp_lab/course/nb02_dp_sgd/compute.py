"""What ``02_dp_sgd.ipynb`` computes: per-example gradients, clipping, noise, a whole training of two weights, what Adam
divides by. No widgets.

    result = cloud(clip_norm=1.0, z=1.0, examples=100, outliers=0.1, rule="by norm", seed=0)    # pure
    run = training(clip_norm=1.0, z=2.0, batch_size=20, optimizer="sgd", lr=1.0, sampling="poisson", seed=0)

Step, batches, clipping, noise, optimizers and epsilon come from `edp_lab.training`, `edp_lab.three_phase.clipping` and
`edp_lab.privacy`; nothing of them is repeated here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from edp_lab.corpora import load_corpus, split
from edp_lab.course.kit.controls import Array, check_positive, check_seed, check_whole
from edp_lab.errors import UsageError
from edp_lab.models.ghost_clipping.bookkeeping import Memory
from edp_lab.privacy import Guarantee, Mechanism, NoGuarantee, RenyiDP, accountant_for, judge
from edp_lab.privacy.accountants import rdp_epsilon
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.three_phase.clipping import RULES
from edp_lab.training import TrainConfig
from edp_lab.training.batches import Batches
from edp_lab.training.dp_step import noise_stds, release
from edp_lab.training.gradients import Layout, StackedGradients, model_gradients, plain_gradient
from edp_lab.training.noise import Share, standard_noise
from edp_lab.training.optimizers import BETAS, DPAdamBC, make_optimizer
from edp_lab.training.trainer import Trainer

DELTA = 1e-5


def rng_of(seed: int) -> np.random.Generator:
    check_seed(seed)
    return np.random.default_rng([seed, 2])


# ---- The gradients of a batch, one by one --------------------------------------------------------------------------

LOOP, BOOKS, WHOLE = "one pass per example", "one pass, book-keeping", "one pass, the batch as a whole"


class PerExample(NamedTuple):
    """The gradients of one batch of a small model, example by example.

    Attributes:
        norms: by micro-batch size b, (B / b) L2 norms of the mean gradients of b examples; 1 is per example.
        disagreement: largest relative difference between the norms by book-keeping and in a loop.
        seconds: of one step's gradient by `LOOP`, `BOOKS` (both clip every example) and `WHOLE` (plain SGD).
    """

    config: TrainConfig
    norms: Mapping[int, Array]
    disagreement: float
    seconds: Mapping[str, float]


def per_example(config: TrainConfig, epochs: int, sizes: Sequence[int] = (1, 4, 16, 64)) -> PerExample:
    """The first batch after `epochs` epochs of plain training, in micro-batches of these sizes.

    Args:
        config: of plain training (method "sgd").

    Raises:
        UsageError: as `edp_lab.training.train`.
    """
    corpus = load_corpus(config.corpus)
    run = Trainer(config, corpus, split(corpus, config.seed))
    for _ in range(epochs):
        run.epoch()
    [[batch]] = run.batches.devices(run.progress.epoch, 0, run.progress.step)
    out, memory = torch.zeros(run.layout.size), Memory()

    def clipped(size: int, naive: bool) -> Array:
        parts = np.array_split(batch, max(1, len(batch) // size))
        gradients = model_gradients(run.model, run.train_data, parts, None, run.layout, naive, memory)
        found = gradients.clipped_sum(out, lambda norms: (1 / norms.norm(dim=1)).clamp(max=1.0))
        return found.norms.norm(dim=1).numpy()

    norms = {size: clipped(size, naive=False) for size in sizes}  # also warms up
    loop, in_loop = _timed(lambda: clipped(1, naive=True))
    books, at_once = _timed(lambda: clipped(1, naive=False))
    whole, _ = _timed(lambda: plain_gradient(run.model, run.train_data, batch, None, 1.0))
    apart = float(np.max(np.abs(at_once / in_loop - 1)))
    return PerExample(config, norms, apart, {LOOP: loop, BOOKS: books, WHOLE: whole})


def _timed(work: Callable[[], Any], times: int = 2) -> tuple[float, Any]:
    """The least seconds of so many tries, and what the last one gave."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), found


# ---- Clipping as geometry ------------------------------------------------------------------------------------------

MOST = 2000  # examples
USUAL, ODD = np.array([1.2, 0.8]), np.array([-3.0, 4.0])  # mean gradients of usual examples and of outliers
CLIPS = np.geomspace(0.05, 20, 40)


class Cloud(NamedTuple):
    """Per-example gradients of a model with two weights, clipped, averaged and noised.

    Attributes:
        mechanism: per-example DP-SGD with the threshold C and the noise multiplier z.
        rule: how gradients are bounded, a name of `edp_lab.three_phase.clipping.RULES`.
        gradients, clipped: (B, 2).
        mean, clipped_mean, released: (2,); the last with noise.
        noise_std: of the noise on each coordinate of the mean.
        biases, noises: (len(CLIPS),), for other thresholds: how far clipping moves the mean, and the expected length
            (root mean square) of the noise; inf where the sensitivity is.
        guarantee: of this one release; None where the rule bounds nothing.
    """

    mechanism: Mechanism
    rule: str
    seed: int
    gradients: Array
    clipped: Array
    mean: Array
    clipped_mean: Array
    released: Array
    noise_std: float
    biases: Array
    noises: Array
    guarantee: Guarantee | None

    @property
    def sensitivity(self) -> float:
        """How far one example can move the sum of the clipped gradients; inf where nothing bounds it."""
        return RULES[self.rule].sensitivity(self.mechanism.clip_norm, 2)

    @property
    def shortened(self) -> int:
        """How many gradients are shorter than they were."""
        before, after = (np.linalg.norm(g, axis=1) for g in (self.gradients, self.clipped))
        return int((after < before * (1 - 1e-9)).sum())

    @property
    def bias(self) -> float:
        return float(np.linalg.norm(self.clipped_mean - self.mean))

    @property
    def turn(self) -> float:
        """Between the means before and after the clip, in degrees."""
        one, two = self.mean, self.clipped_mean
        return abs(math.degrees(math.atan2(one[0] * two[1] - one[1] * two[0], float(one @ two))))

    @property
    def best_clip(self) -> float:
        """Of `CLIPS`, where bias and noise together are smallest."""
        return float(CLIPS[np.argmin(np.hypot(self.biases, self.noises))])


def cloud(clip_norm: float, z: float, examples: int, outliers: float, rule: str, seed: int) -> Cloud:
    """Clip the gradients of a batch by a rule, average them, and add noise of deviation z times sensitivity / B.

    Where the rule's sensitivity is infinite, the noise is that of a sensitivity C, which hides nothing.

    Raises:
        UsageError: C not above 0, z negative, examples none from 1 to 2,000, a share outside [0, 1], an unknown rule.
    """
    if rule not in RULES:
        raise UsageError(f"unknown rule {rule!r}: choose {', '.join(RULES)}")
    chosen, mechanism = RULES[rule], Mechanism.sound(clip_norm, z, 1, 1)
    gradients = batch_gradients(examples, outliers, seed)
    clipped = chosen.clip(gradients, clip_norm)
    mean, clipped_mean = gradients.mean(0), clipped.mean(0)
    sensitivity = chosen.sensitivity(clip_norm, 2)
    bounded = math.isfinite(sensitivity)
    std = z * (sensitivity if bounded else clip_norm) / examples
    noise = std * standard_noise(key_from_seed(seed), 0, 2, Share(), torch.float64)
    means = torch.stack([chosen.clip(gradients, float(other)).mean(0) for other in CLIPS])
    sensitivities = np.array([chosen.sensitivity(float(other), 2) for other in CLIPS])
    return Cloud(
        mechanism, rule, seed, gradients.numpy(), clipped.numpy(), mean.numpy(), clipped_mean.numpy(),
        (clipped_mean + noise).numpy(), std,
        biases=(means - mean).norm(dim=1).numpy(),
        noises=math.sqrt(2) * (z * sensitivities if bounded else sensitivities) / examples,
        guarantee=judge(mechanism, 1, DELTA) if bounded else None,
    )  # fmt: skip


def batch_gradients(examples: int, outliers: float, seed: int) -> Tensor:
    """Made-up gradients (B, 2), float64: a cloud, and a share of outliers far away. More examples keep the first ones.

    Raises:
        UsageError: examples none from 1 to 2,000, a share outside [0, 1], seed negative.
    """
    check_whole("number of examples", examples, 1, MOST)
    if not 0 <= outliers <= 1:
        raise UsageError(f"the share of outliers is {outliers}: it must lie between 0 and 1")
    rng = rng_of(seed)
    spread, odd = rng.standard_normal((MOST, 2)), rng.random(MOST) < outliers
    return torch.from_numpy((np.where(odd[:, None], ODD, USUAL) + spread)[:examples])


# ---- A whole training: two weights, thirty steps ---------------------------------------------------------------------

PLANE = Layout(("w",), (slice(0, 2),))  # a model of two weights
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
        check_whole("batch size", self.batch_size, 1, PEOPLE)
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


class Training(NamedTuple):
    """Logistic regression with two weights, trained with DP-SGD, beside the same without noise and without clipping.

    Attributes:
        paths: by name, "plain" (neither clip nor noise), "clipped" (clip only) and "private" (both), (STEPS + 1, 2)
            weights after each step.
        losses: by the same names, (STEPS + 1,), over all people.
        accuracy: of the private weights at the end, over the same people.
        spent: by sampling, (STEPS,) epsilon after each step were the batches drawn so; None where there is none.
        guarantee: of all steps as they were drawn.
    """

    recipe: Recipe
    mechanism: Mechanism
    paths: Mapping[str, Array]
    losses: Mapping[str, Array]
    accuracy: float
    spent: Mapping[str, Sequence[float | None]]
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
    settings = {"plain": None, "clipped": recipe.mechanism(clip_norm, 0.0), "private": mechanism}
    paths = {name: _path(setting, recipe) for name, setting in settings.items()}
    spent = {other: _spent(replace(recipe, sampling=other).mechanism(1.0, z), recipe) for other in SAMPLINGS}
    people, labels = _people()
    right = (people @ torch.from_numpy(paths["private"][-1]) > 0) == (labels > 0.5)
    losses = {name: loss(path) for name, path in paths.items()}
    return Training(recipe, mechanism, paths, losses, float(right.double().mean()), spent, _judged(mechanism, recipe))


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


@lru_cache(maxsize=64)
def _batches(batch_size: int, sampling: str, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Who takes part in each step: features (B, 2) and labels (B)."""
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
def _path(mechanism: Mechanism | None, recipe: Recipe) -> Array:
    """Weights before the first step and after each: (STEPS + 1, 2). Without a mechanism, neither clip nor noise."""
    weights = nn.Parameter(torch.from_numpy(START.copy()))
    optimizer, path, noise = _optimizer(recipe, weights), [START], _noise(recipe.seed)
    for step, (features, labels) in enumerate(_batches(recipe.batch_size, recipe.sampling, recipe.seed)):
        each = (torch.sigmoid(features @ weights.detach()) - labels)[:, None] * features  # (B, 2), of the loss of each
        if mechanism is None:
            weights.grad = each.sum(0) / recipe.batch_size
        else:
            rows = StackedGradients(each, PLANE)
            weights.grad = release(mechanism, 0, rows, PLANE, None, noise[step], divisor=recipe.batch_size).gradient
        if isinstance(optimizer, DPAdamBC):
            optimizer.noise_std([0.0 if mechanism is None else _noise_std(mechanism, recipe)])
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


class Tuned(NamedTuple):
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


# ---- What Adam divides by ------------------------------------------------------------------------------------------

COORDINATES = 120


class Denominators(NamedTuple):
    """Adam on weights whose gradients differ in size, all with the same noise: what each is divided by.

    Attributes:
        gradient: (COORDINATES,) size of each weight's gradient, the same in every step.
        adam, corrected: (COORDINATES,) what Adam and DP-AdamBC divide a weight's average gradient by.
        adam_move, corrected_move: (COORDINATES,) of the last step, what it would be if the average gradient were the
            true one, in learning rates: without noise 1.
    """

    noise_std: float
    steps: int
    gamma: float
    seed: int
    gradient: Array
    adam: Array
    corrected: Array

    @property
    def adam_move(self) -> Array:
        return self.gradient / self.adam

    @property
    def corrected_move(self) -> Array:
        return self.gradient / self.corrected

    @property
    def floored(self) -> int:
        """How many weights DP-AdamBC divides by the root of its floor."""
        return int((self.corrected <= math.sqrt(self.gamma) * (1 + 1e-9)).sum())


def denominators(noise_std: float, steps: int, gamma: float, seed: int) -> Denominators:
    """Run Adam and DP-AdamBC for so many steps on one series of noisy gradients, and look into their state.

    Raises:
        UsageError: noise negative or not finite, steps none from 1 to 1,000, gamma not positive, seed negative.
    """
    check_whole("number of steps", steps, 1, 1000)
    check_positive("floor gamma'", gamma)
    gradient, rng = torch.logspace(-3, 0, COORDINATES, dtype=torch.float64), rng_of(seed)
    noise = torch.from_numpy(rng.standard_normal((steps, COORDINATES)))
    weights = [nn.Parameter(torch.zeros_like(gradient)) for _ in range(2)]
    adam, corrected = make_optimizer("adam", weights[:1], 1e-3), DPAdamBC(weights[1:], 1e-3, gamma)
    for step in range(steps):
        for weight in weights:
            weight.grad = gradient + noise_std * noise[step]
        corrected.noise_std([noise_std])
        adam.step()
        corrected.step()
    unbiased = 1 - BETAS[1] ** steps
    v = adam.state[weights[0]]["exp_avg_sq"] / unbiased
    state = corrected.state[weights[1]]
    left = (state["exp_avg_sq"] - state["noise_sq"]) / unbiased
    return Denominators(
        noise_std, steps, gamma, seed, gradient.numpy(), v.sqrt().numpy(), left.clamp_min(gamma).sqrt().numpy()
    )
