"""What ``02_dp_sgd.ipynb`` computes: per-example gradients, clipping, noise, what Adam divides by. No widgets.

    result = cloud(clip_norm=1.0, z=1.0, examples=100, outliers=0.1, rule="by norm", seed=0)    # pure

Its whole training is `edp_lab.course.nb02_dp_sgd.two_weights`. Clipping, noise, optimizers and epsilon come from
`edp_lab.training`, `edp_lab.three_phase.clipping` and `edp_lab.privacy`; nothing of them is repeated here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edp_lab.corpora import load_corpus, split
from edp_lab.errors import UsageError
from edp_lab.models.ghost_clipping.bookkeeping import Memory
from edp_lab.privacy import Guarantee, Mechanism, judge
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.three_phase.clipping import RULES
from edp_lab.training import TrainConfig
from edp_lab.training.gradients import model_gradients, plain_gradient
from edp_lab.training.noise import Share, standard_noise
from edp_lab.training.optimizers import BETAS, DPAdamBC, make_optimizer
from edp_lab.training.trainer import Trainer

Array = NDArray[np.float64]

DELTA = 1e-5

# ---- The gradients of a batch, one by one --------------------------------------------------------------------------

LOOP, BOOKS, WHOLE = "one pass per example", "one pass, book-keeping", "one pass, the batch as a whole"


@dataclass(frozen=True, eq=False)
class PerExample:
    """The gradients of one batch of a small model, example by example.

    Attributes:
        norms: by micro-batch size b, (B / b) L2 norms of the mean gradients of b examples; 1 is per example.
        disagreement: largest relative difference between the norms by book-keeping and in a loop.
        seconds: of one step's gradient by `LOOP`, `BOOKS` (both clip every example) and `WHOLE` (plain SGD).
    """

    corpus: str
    seed: int
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
    return PerExample(config.corpus, config.seed, norms, apart, {LOOP: loop, BOOKS: books, WHOLE: whole})


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


@dataclass(frozen=True, eq=False)
class Cloud:
    """Per-example gradients of a model with two weights, clipped, averaged and noised.

    Attributes:
        rule: how gradients are bounded, a name of `edp_lab.three_phase.clipping.RULES`.
        gradients, clipped: (B, 2).
        mean, clipped_mean, released: (2,); the last with noise.
        sensitivity: how far one example can move the sum of the clipped gradients; inf where nothing bounds it.
        noise_std: of the noise on each coordinate of the mean.
        biases, noises: (len(CLIPS),), for other thresholds: how far clipping moves the mean, and the expected length
            (root mean square) of the noise; inf where the sensitivity is.
        guarantee: of this one release; None where the rule bounds nothing.
    """

    clip_norm: float
    z: float
    rule: str
    seed: int
    outliers: float
    gradients: Array
    clipped: Array
    mean: Array
    clipped_mean: Array
    released: Array
    sensitivity: float
    noise_std: float
    biases: Array
    noises: Array
    guarantee: Guarantee | None

    @property
    def examples(self) -> int:
        return len(self.gradients)

    @property
    def shortened(self) -> int:
        """How many gradients are shorter than they were."""
        before, after = (np.linalg.norm(g, axis=1) for g in (self.gradients, self.clipped))
        return int((after < before * (1 - 1e-9)).sum())

    @property
    def bias(self) -> float:
        return float(np.linalg.norm(self.clipped_mean - self.mean))

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
        clip_norm, z, rule, seed, outliers, gradients.numpy(), clipped.numpy(), mean.numpy(), clipped_mean.numpy(),
        (clipped_mean + noise).numpy(), sensitivity, std,
        biases=(means - mean).norm(dim=1).numpy(),
        noises=math.sqrt(2) * (z * sensitivities if bounded else sensitivities) / examples,
        guarantee=judge(mechanism, 1, DELTA) if bounded else None,
    )  # fmt: skip


def batch_gradients(examples: int, outliers: float, seed: int) -> Tensor:
    """Made-up gradients (B, 2), float64: a cloud, and a share of outliers far away. More examples keep the first ones.

    Raises:
        UsageError: examples none from 1 to 2,000, a share outside [0, 1], seed negative.
    """
    check_whole("number of examples", examples, MOST)
    if not 0 <= outliers <= 1:
        raise UsageError(f"the share of outliers is {outliers}: it must lie between 0 and 1")
    rng = rng_of(seed)
    spread, odd = rng.standard_normal((MOST, 2)), rng.random(MOST) < outliers
    return torch.from_numpy((np.where(odd[:, None], ODD, USUAL) + spread)[:examples])


# ---- What Adam divides by ------------------------------------------------------------------------------------------

COORDINATES = 120


@dataclass(frozen=True, eq=False)
class Denominators:
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


def denominators(noise_std: float, steps: int, gamma: float, seed: int) -> Denominators:
    """Run Adam and DP-AdamBC for so many steps on one series of noisy gradients, and look into their state.

    Raises:
        UsageError: noise negative or not finite, steps none from 1 to 1,000, gamma not positive, seed negative.
    """
    check_whole("number of steps", steps, 1000)
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


# ---- Small parts ---------------------------------------------------------------------------------------------------


def rng_of(seed: int) -> np.random.Generator:
    check_seed(seed)
    return np.random.default_rng([seed, 2])


def check_seed(seed: int) -> None:
    if seed < 0:
        raise UsageError(f"seed is {seed}: it must be 0 or more")


def check_whole(name: str, value: int, most: int) -> None:
    if not isinstance(value, Integral) or not 1 <= value <= most:
        raise UsageError(f"the {name} is {value}: it must be a whole number from 1 to {most:,}")


def check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise UsageError(f"the {name} is {value}: it must be a finite number greater than 0")
