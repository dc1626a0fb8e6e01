"""What ``02_dp_sgd.ipynb`` computes: per-example gradients, clipping, noise, a whole training of two weights, what Adam
divides by. No widgets.

    result = cloud(clip_norm=1.0, z=1.0, examples=100, outliers=0.1, rule="by norm", seed=0)    # pure
    run = training(clip_norm=1.0, z=2.0, batch_size=20, optimizer="sgd", lr=1.0, sampling="poisson", seed=0)

Step, batches, clipping, noise, optimizers and epsilon come from `edp_lab.training`, `edp_lab.three_phase.clipping` and
`edp_lab.privacy`; nothing of them is repeated here. What they refuse (UsageError) is refused here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from edp_lab.corpora import load_corpus, split
from edp_lab.course.kit.inputs import DELTA, Array, check_option, check_seed, check_share, check_whole, require, rng_of
from edp_lab.models.ghost_clipping.bookkeeping import Memory
from edp_lab.privacy import Guarantee, Mechanism, NoGuarantee, accountant_for, judge
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.privacy.foundations import check_positive
from edp_lab.three_phase.clipping import RULES
from edp_lab.training import TrainConfig
from edp_lab.training.dp_step import noise_stds, release
from edp_lab.training.gradients import Layout, StackedGradients, model_gradients, plain_gradient
from edp_lab.training.noise import Share, standard_noise
from edp_lab.training.optimizers import BETAS, DPAdamBC, make_optimizer
from edp_lab.training.trainer import Batches, Trainer

# ---- The gradients of a batch, one by one --------------------------------------------------------------------------

LOOP, BOOKS, WHOLE = "one pass per example", "one pass, book-keeping", "one pass, the batch as a whole"


class PerExample(NamedTuple):
    """The gradients of one batch of a small model, example by example."""

    config: TrainConfig
    norms: Mapping[int, Array]  # by micro-batch size b, (B / b) L2 norms of the mean gradients of b examples
    disagreement: float  # largest relative difference between the norms by book-keeping and in a loop
    seconds: Mapping[str, float]  # of one gradient by `LOOP`, `BOOKS` (both clip every example) and `WHOLE` (plain SGD)


def per_example(config: TrainConfig, epochs: int) -> PerExample:
    """The first batch after `epochs` epochs of plain training, in micro-batches of 1, 4, 16 and 64.

    Args:
        config: of plain training (method "sgd").
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

    norms = {size: clipped(size, naive=False) for size in (1, 4, 16, 64)}  # also warms up
    loop, in_loop = _timed(lambda: clipped(1, naive=True))
    books, at_once = _timed(lambda: clipped(1, naive=False))
    whole, _ = _timed(lambda: plain_gradient(run.model, run.train_data, batch, None, 1.0))
    apart = float(np.max(np.abs(at_once / in_loop - 1)))
    return PerExample(config, norms, apart, {LOOP: loop, BOOKS: books, WHOLE: whole})


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The least seconds of two tries, and what the last one gave."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), found


# ---- Clipping as geometry ------------------------------------------------------------------------------------------

MOST = 2000  # examples
USUAL, ODD = np.array([1.2, 0.8]), np.array([-3.0, 4.0])  # mean gradients of usual examples and of outliers
CLIPS = np.geomspace(0.05, 20, 40)


class Cloud(NamedTuple):
    """Per-example gradients of a model with two weights, clipped, averaged and noised."""

    mechanism: Mechanism  # per-example DP-SGD with the threshold C and the noise multiplier z
    rule: str  # how gradients are bounded, a name of `edp_lab.three_phase.clipping.RULES`
    gradients: Array  # (B, 2)
    clipped: Array  # (B, 2)
    shortened: int  # how many gradients are shorter than they were
    mean: Array  # (2,)
    clipped_mean: Array  # (2,)
    turn: float  # between these two, in degrees
    released: Array  # (2,), with noise
    sensitivity: float  # how far one example can move the sum of the clipped gradients; inf where nothing bounds it
    noise_std: float  # of the noise on each coordinate of the mean
    biases: Array  # (len(CLIPS),), how far clipping at other thresholds moves the mean
    noises: Array  # (len(CLIPS),), expected length (root mean square) of the noise; inf where the sensitivity is
    guarantee: Guarantee | None  # of this one release; None where the rule bounds nothing

    @property
    def bias(self) -> float:
        """How far clipping moves the mean."""
        return float(np.linalg.norm(self.clipped_mean - self.mean))

    @property
    def best_clip(self) -> float:
        """Of `CLIPS`, where bias and noise together are smallest."""
        return float(CLIPS[np.argmin(np.hypot(self.biases, self.noises))])


def cloud(clip_norm: float, z: float, examples: int, outliers: float, rule: str, seed: int) -> Cloud:
    """Clip the gradients of a batch by a rule, average them, and add noise of deviation z times sensitivity / B.

    The gradients are made up: a cloud, and a share of outliers far away. More examples keep the first ones. Where the
    rule's sensitivity is infinite, the noise is that of a sensitivity C, which hides nothing. UsageError: C not above
    0, z negative, examples none from 1 to 2,000, a share outside [0, 1], an unknown rule, seed negative.
    """
    check_option("rule", rule, RULES)
    chosen, mechanism = RULES[rule], Mechanism.sound(clip_norm, z, 1, 1)
    check_whole("number of examples", examples, 1, MOST)
    check_share("outliers", outliers)
    rng = rng_of(seed, 2)
    spread, odd = rng.standard_normal((MOST, 2)), rng.random(MOST) < outliers
    gradients = torch.from_numpy((np.where(odd[:, None], ODD, USUAL) + spread)[:examples])
    clipped = chosen.clip(gradients, clip_norm)
    mean, clipped_mean = gradients.mean(0), clipped.mean(0)
    before, after = (np.linalg.norm(g.numpy(), axis=1) for g in (gradients, clipped))
    (x, y), (u, v) = mean.numpy(), clipped_mean.numpy()
    sensitivity = chosen.sensitivity(clip_norm, 2)
    bounded = math.isfinite(sensitivity)
    std = z * (sensitivity if bounded else clip_norm) / examples
    noise = std * standard_noise(key_from_seed(seed), 0, 2, Share(), torch.float64)
    means = torch.stack([chosen.clip(gradients, float(other)).mean(0) for other in CLIPS])
    sensitivities = np.array([chosen.sensitivity(float(other), 2) for other in CLIPS])
    return Cloud(
        mechanism, rule, gradients.numpy(), clipped.numpy(), int((after < before * (1 - 1e-9)).sum()),
        mean.numpy(), clipped_mean.numpy(), abs(math.degrees(math.atan2(x * v - y * u, float(mean @ clipped_mean)))),
        (clipped_mean + noise).numpy(), sensitivity, std,
        biases=(means - mean).norm(dim=1).numpy(),
        noises=math.sqrt(2) * (z * sensitivities if bounded else sensitivities) / examples,
        guarantee=judge(mechanism, 1, DELTA) if bounded else None,
    )  # fmt: skip


# ---- A whole training: two weights, thirty steps ---------------------------------------------------------------------

PLANE = Layout(("w",), (slice(0, 2),))  # a model of two weights
PEOPLE, STEPS = 400, 30
BILLED = (1, 3, 8, 15, 22, STEPS)  # of Poisson samples, each an account of milliseconds
START, TRUTH = np.array([-0.8, -1.5]), np.array([1.0, 2.0])
SCALES = np.array([2.0, 0.5])  # of the two features: one weight is learnt more easily than the other
OPTIMIZERS = ("sgd", "momentum", "adam", "dp-adambc")
MOMENTUM = 0.9
SAMPLINGS = ("poisson", "shuffle")


class Recipe(NamedTuple):
    """How to train, clip and noise aside; see `training`."""

    batch_size: int
    optimizer: str
    lr: float
    sampling: str
    seed: int
    gamma: float

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

    Paths and losses are those of "plain" (neither clip nor noise), "clipped" (clip only) and "private" (both).
    """

    recipe: Recipe
    mechanism: Mechanism
    noise_std: float  # of the noise on each weight's released mean gradient
    paths: Mapping[str, Array]  # (STEPS + 1, 2), weights after each step
    losses: Mapping[str, Array]  # (STEPS + 1,), over all people
    accuracy: float  # of the private weights at the end, over the same people
    spent: Mapping[str, Mapping[int, float | None]]  # epsilon after so many steps, were the batches drawn so
    guarantee: Guarantee  # of all steps as they were drawn


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

    UsageError: as `edp_lab.privacy.Mechanism`, or an unknown optimizer or sampling, a batch size none from 1 to 400, lr
    or gamma not positive and finite, seed negative.
    """
    check_whole("batch size", batch_size, 1, PEOPLE)
    check_option("optimizer", optimizer, OPTIMIZERS)
    require(sampling in SAMPLINGS, f"unknown sampling {sampling!r}: choose {' or '.join(SAMPLINGS)}")
    check_seed(seed)
    check_positive("the learning rate", lr)
    check_positive("the floor gamma'", gamma)
    recipe = Recipe(batch_size, optimizer, lr, sampling, seed, gamma if optimizer == "dp-adambc" else 0.0)
    mechanism = recipe.mechanism(clip_norm, z)
    settings = {"plain": None, "clipped": recipe.mechanism(clip_norm, 0.0), "private": mechanism}
    paths = {name: _path(described, recipe) for name, described in settings.items()}
    drawn = {name: recipe._replace(sampling=name).mechanism(1.0, z) for name in SAMPLINGS}
    spent = {name: _spent(each, recipe.steps_per_epoch) for name, each in drawn.items()}
    people, labels = _people()
    right = (people @ torch.from_numpy(paths["private"][-1]) > 0) == (labels > 0.5)
    losses, accuracy = {name: loss(path) for name, path in paths.items()}, float(right.double().mean())
    held, noise_std = _judged(mechanism, recipe.epochs), _noise_std(mechanism, recipe)
    return Training(recipe, mechanism, noise_std, paths, losses, accuracy, spent, held)


def loss(weights: Array) -> Array:
    """Mean logistic loss over all people: (..., 2) -> (...), in nats."""
    people, labels = _people()
    scores = torch.from_numpy(np.ascontiguousarray(weights)) @ people.T
    return np.asarray((nn.functional.softplus(scores) - labels * scores).mean(-1))


@lru_cache(maxsize=1)
def _people() -> tuple[Tensor, Tensor]:
    """Features (n, 2) and labels (n), 0 or 1; the same for every seed, so that the loss surface stands still."""
    rng = rng_of(0, 2)
    features = rng.standard_normal((PEOPLE, 2)) * SCALES
    labels = rng.random(PEOPLE) < expit(features @ TRUTH)
    return torch.from_numpy(features), torch.from_numpy(labels.astype(np.float64))


@lru_cache(maxsize=64)
def _steps(batch_size: int, sampling: str, seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Who takes part in each step, features (B, 2) and labels (B), and the standard normal draws of its noise (2)."""
    (features, labels), key = _people(), key_from_seed(seed)
    drawn, steps = Batches(key, PEOPLE, batch_size, 1, 1, sampling, alone=False), []
    for step in range(STEPS):
        part = drawn.devices(*divmod(step, drawn.steps_per_epoch), step)[0][0]
        steps.append((features[part], labels[part], standard_noise(key, step, 2, Share(), torch.float64)))
    return steps


def _noise_std(mechanism: Mechanism, recipe: Recipe) -> float:
    return noise_stds(mechanism, 0, None, recipe.batch_size, 1)[0]


@lru_cache(maxsize=1000)
def _path(mechanism: Mechanism | None, recipe: Recipe) -> Array:
    """Weights before the first step and after each: (STEPS + 1, 2). Without a mechanism, neither clip nor noise."""
    weight, path = nn.Parameter(torch.from_numpy(START.copy())), [START]
    momentum = MOMENTUM if recipe.optimizer == "momentum" else 0.0
    if recipe.optimizer == "dp-adambc":
        optimizer: torch.optim.Optimizer = DPAdamBC([weight], recipe.lr, recipe.gamma)
    elif recipe.optimizer == "adam":
        optimizer = make_optimizer("adam", [weight], recipe.lr)
    else:
        optimizer = torch.optim.SGD([weight], recipe.lr, momentum=momentum, dampening=momentum)
    for features, labels, noise in _steps(recipe.batch_size, recipe.sampling, recipe.seed):
        now = weight.detach()
        each = (torch.sigmoid(features @ now) - labels)[:, None] * features  # (B, 2), of the loss of each
        if mechanism is None:
            weight.grad = each.sum(0) / recipe.batch_size
        else:
            rows = StackedGradients(each, PLANE)
            weight.grad = release(mechanism, 0, rows, PLANE, None, noise, divisor=recipe.batch_size).gradient
        if isinstance(optimizer, DPAdamBC):
            optimizer.noise_std([0.0 if mechanism is None else _noise_std(mechanism, recipe)])
        optimizer.step()
        path.append(now.numpy().copy())
    return np.stack(path)


@lru_cache(maxsize=256)
def _judged(mechanism: Mechanism, epochs: int) -> Guarantee:
    """Of all steps; with shuffled batches, of the passes that were begun."""
    return judge(mechanism, epochs if mechanism.sampling_rate is None else mechanism.bill(steps=STEPS), DELTA)


@lru_cache(maxsize=256)
def _spent(mechanism: Mechanism, steps_per_epoch: int) -> dict[int, float | None]:
    """Epsilon after so many steps of this mechanism; with disjoint batches a pass is paid for as it begins."""
    if mechanism.sampling_rate is not None:
        bills = {step: mechanism.bill(steps=step) for step in BILLED}
    else:
        bills = {step: mechanism.bill((step - 1) // steps_per_epoch + 1) for step in range(1, STEPS + 1)}
    try:
        found = {step: accountant_for(mechanism, bill).epsilon(DELTA) for step, bill in bills.items()}
    except NoGuarantee:
        return dict.fromkeys(bills)
    return {step: epsilon if math.isfinite(epsilon) else None for step, epsilon in found.items()}


class Tuned(NamedTuple):
    """One optimizer at the learning rate that suits it best with noise: mean final losses, and their deviation."""

    optimizer: str
    lr: float
    plain: float
    private: float
    deviation: float
    epsilon: float | None


def tuned(clip_norm: float, z: float, batch_size: int, rates: Sequence[float], seeds: Sequence[int]) -> list[Tuned]:
    """Every optimizer at the best of these learning rates, mean over the seeds; the tuning itself is not accounted."""
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

    A move is that of the last step if the average gradient were the true one, in learning rates: without noise 1.
    """

    noise_std: float
    gamma: float
    gradient: Array  # (COORDINATES,), size of each weight's gradient, the same in every step
    adam: Array  # (COORDINATES,), what Adam divides a weight's average gradient by
    corrected: Array  # (COORDINATES,), what DP-AdamBC does
    adam_move: Array  # (COORDINATES,)
    corrected_move: Array  # (COORDINATES,)
    floored: int  # how many weights DP-AdamBC divides by the root of its floor


def denominators(noise_std: float, steps: int, gamma: float, seed: int) -> Denominators:
    """Run Adam and DP-AdamBC for so many steps on one series of noisy gradients, and look into their state.

    UsageError: noise negative or not finite, steps none from 1 to 1,000, gamma not positive, seed negative.
    """
    check_whole("number of steps", steps, 1, 1000)
    check_positive("the floor gamma'", gamma)
    gradient = torch.logspace(-3, 0, COORDINATES, dtype=torch.float64)
    noise = torch.from_numpy(rng_of(seed, 2).standard_normal((steps, COORDINATES)))
    weights = [nn.Parameter(torch.zeros_like(gradient)) for _ in range(2)]
    adam, corrected = make_optimizer("adam", weights[:1], 1e-3), DPAdamBC(weights[1:], 1e-3, gamma)
    for step in range(steps):
        for weight in weights:
            weight.grad = gradient + noise_std * noise[step]
        corrected.noise_std([noise_std])
        adam.step()
        corrected.step()
    unbiased, state = 1 - BETAS[1] ** steps, corrected.state[weights[1]]
    v = (adam.state[weights[0]]["exp_avg_sq"] / unbiased).sqrt().numpy()
    left = ((state["exp_avg_sq"] - state["noise_sq"]) / unbiased).clamp_min(gamma).sqrt().numpy()
    size, floored = gradient.numpy(), int((left <= math.sqrt(gamma) * (1 + 1e-9)).sum())
    return Denominators(noise_std, gamma, size, v, left, size / v, size / left, floored)
