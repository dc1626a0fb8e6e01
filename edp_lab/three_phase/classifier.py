"""Training an image classifier: SGD, momentum, RMSprop and Adam (the thesis' 2.4.7), and their private versions.

The thesis' DP-Adam (Algorithm 7) clips each example's gradient, adds Gaussian noise to their sum and hands the mean to
Adam; so does this, for every optimizer. What the thesis leaves out of its account is in the record: the accountant, the
noise multiplier, clip norm, sampling rate, steps, epochs, learning rate, seed and versions (T19). Settings and
examples that cannot be trained on, and a loss that is not finite, are refused by `UsageError`.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from edp_lab.errors import UsageError
from edp_lab.models.ghost_clipping.bookkeeping import Memory
from edp_lab.models.image import ImageClassifier, ImageData, build_classifier
from edp_lab.privacy import Guarantee, Mechanism, judge
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.training.dp_step import PrivateStep
from edp_lab.training.gradients import KeptGradients, plain_gradient, trainable
from edp_lab.training.optimizers import DPAdamBC, make_optimizer
from edp_lab.training.run_folder import versions
from edp_lab.training.trainer import Batches

PLAIN = ("sgd", "momentum", "rmsprop", "adam")
PRIVATE = ("dp-sgd", "dp-momentum", "dp-rmsprop", "dp-adam", "dp-adambc")
METHODS = PLAIN + PRIVATE
BETA = 0.9  # of momentum and RMSprop
EPSILON, DELTA = 7.0, 1e-5  # the thesis' main setting (chapter 6)
LARGEST_RATE = 0.25  # of Poisson sampling by default: small data sets get smaller batches,
LEAST_STEPS = 300  # and more epochs

# Chosen on the last 5,000 of MNIST's training images, at epsilon 2.93 and delta 1e-5 where private.
ONE_RATE = ("sgd", "momentum", "dp-sgd", "dp-momentum")  # for all weights alike
DEFAULTS: dict[str, dict[str, Any]] = {
    name: {"lr": 0.3 if name in ONE_RATE else 2e-3, "batch_size": 64, "epochs": 10, "weight_decay": 0.0}
    for name in PLAIN
} | {
    name: {"batch_size": 2048, "epochs": 20, "clip_norm": 0.2}
    | ({"lr": 8.0, "weight_decay": 0.0} if name in ONE_RATE else {"lr": 1e-2, "weight_decay": 0.1})
    for name in PRIVATE
}

Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class ClassifierSettings:
    """One training run. Where a value is None, it is that of `DEFAULTS` for the method."""

    model: str = "cnn"  # see `edp_lab.models.image.build_classifier`
    activation: str = "tanh"
    method: str = "adam"  # of `METHODS`; "dp-adam" is the thesis' Algorithm 7, "dp-adambc" its modern answer
    # What a private method may spend at `delta`, by which its noise is calibrated; None is the thesis' 7, unless the
    # noise multiplier is given.
    epsilon: float | None = None
    delta: float = DELTA
    noise_multiplier: float | None = None  # deviation of the noise on the sum of clipped gradients, over the clip norm
    clip_norm: float | None = None  # C, the L2 bound on each example's gradient
    # Examples in a step; of a private method, expected: each takes part in each step with chance batch_size / n. None:
    # of a private method at most a quarter of the examples.
    batch_size: int | None = None
    epochs: int | None = None  # passes, or as many Poisson steps; None: on small data as many as make 300 steps
    lr: float | None = None  # learning rate of the first step, from which it falls linearly to 0
    # lambda of decoupled decay (Loshchilov and Hutter 2019, arXiv 1711.05101): a step first takes lr lambda off every
    # weight. Noise lets weights grow, until tanh saturates; this is free of privacy cost.
    weight_decay: float | None = None
    classes: int = 10  # labels are 0 up to classes - 1
    # Of the weights, and of order and noise unless `private_seed`. Runs on different data need different seeds: two
    # that share their noise could be subtracted.
    seed: int = 0
    private_seed: bool = False  # draw the key of order and noise from the operating system, and forget it
    eq33: bool = False  # take the noise of the thesis' eq. 3.3 for epsilon and delta, not noise that suffices for them

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"unknown method {self.method!r}: choose {', '.join(METHODS)}")
        of_noise = (self.epsilon, self.noise_multiplier, self.clip_norm, self.eq33 or None)
        if not self.private and any(value is not None for value in of_noise):
            raise UsageError(
                f"method {self.method!r} adds no noise: drop epsilon, noise multiplier, clip norm and eq. 3.3, or take "
                f"dp-{self.method}"
            )
        if self.noise_multiplier is not None and (self.epsilon is not None or self.eq33):
            raise UsageError("noise multiplier and epsilon both set the noise: give one of them")
        for name in ("batch_size", "epochs"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, Integral) or value < 1):
                raise UsageError(f"{name.replace('_', ' ')} is {value}: it must be a whole number, at least 1")
        for what, rate in (("learning rate", self.lr), ("clip norm C", self.clip_norm)):
            if rate is not None and not 0 < rate < math.inf:
                raise UsageError(f"{what} is {rate}: it must be greater than 0")
        if self.weight_decay is not None and not 0 <= self.weight_decay < math.inf:
            raise UsageError(f"weight decay is {self.weight_decay}: it must be 0 or more")
        if self.epsilon is not None or self.private:
            Budget(EPSILON if self.epsilon is None else self.epsilon, self.delta)

    @property
    def private(self) -> bool:
        return self.method in PRIVATE

    def resolved(self, examples: int) -> ClassifierSettings:
        """With the defaults for so many training examples in place of None."""
        defaults = DEFAULTS[self.method]
        most = max(1, int(LARGEST_RATE * examples)) if self.private else examples
        given = {name: value for name, value in asdict(self).items() if value is not None}
        size = given.get("batch_size", min(defaults["batch_size"], most))
        if size > examples:
            raise UsageError(f"batch size is {size}, for {examples} training examples: lower it")
        epochs = max(defaults["epochs"], math.ceil(LEAST_STEPS * size / examples))
        found = replace(self, **{**defaults, "batch_size": size, "epochs": epochs, **given})
        if found.private and found.epsilon is None and found.noise_multiplier is None:
            found = replace(found, epsilon=EPSILON)
        if (found.lr or 0) * (found.weight_decay or 0) >= 1:
            raise UsageError(
                f"weight decay is {found.weight_decay} at learning rate {found.lr}: their product must be below 1, or "
                "every step turns the weights' sign; lower one of them"
            )
        return found


@dataclass(frozen=True)
class Trained:
    """What `train_classifier` gives back.

    Attributes:
        rows: of each epoch "epoch" (from 1), "loss" (mean over the training examples that took part; not private),
            "test_loss", "accuracy" (on the test examples; None without any) and "seconds" of training.
        guarantee: what holds for the released model, by privacy loss distributions.
        record: everything from which the run can be repeated and judged, as JSON.
    """

    model: ImageClassifier
    rows: list[dict[str, Any]]
    guarantee: Guarantee
    record: dict[str, Any] = field(repr=False)

    @property
    def accuracy(self) -> float | None:
        return self.rows[-1]["accuracy"]  # type: ignore[no-any-return]


def train_classifier(
    settings: ClassifierSettings,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    test_x: NDArray[np.float32] | None = None,
    test_y: NDArray[np.int64] | None = None,
    listener: Listener | None = None,
) -> Trained:
    """Train one network on x (n, ...) in [0, 1] with labels y (n), and score it on the test examples after each epoch.

    Guarantee, of a private method: that of `Trained.guarantee`, for adding or removing one example, of which its image
    and its label are both protected. Not covered: losses, scores on the test examples, and choices made by looking at
    them. Without `private_seed` its epsilon is void, because whoever knows the seed can redraw the noise.

    `listener` is called with the row of each epoch.
    """
    check_examples("training", x, y, settings.classes)
    if test_x is not None or test_y is not None:
        check_examples("test", test_x, test_y, settings.classes, tuple(x.shape[1:]))
    run = ClassifierTraining(settings.resolved(len(x)), x, y)
    rows = []
    for epoch in range(run.epochs):
        start = time.perf_counter()
        row: dict[str, Any] = {"epoch": epoch + 1, "loss": run.epoch(epoch)}
        row |= {"seconds": time.perf_counter() - start, "test_loss": None, "accuracy": None}
        if test_x is not None:
            truth = torch.from_numpy(np.asarray(test_y, dtype=np.int64))
            log_p = torch.from_numpy(run.model.log_probabilities(test_x))
            hits = (log_p.argmax(1) == truth).double().mean()
            row |= {"test_loss": float(F.nll_loss(log_p, truth)), "accuracy": float(hits)}
        rows.append(row)
        if listener is not None:
            listener(row)
    return Trained(run.model, rows, run.guarantee, {**run.record(), "rows": rows})


def check_examples(
    part: str, x: NDArray[Any] | None, y: NDArray[Any] | None, classes: int, shape: tuple[int, ...] | None = None
) -> None:
    """Of the `part` of a data set with that name: x (n, *shape) finite, y (n) whole numbers in 0..classes - 1."""
    if x is None or y is None or len(x) != len(y) or not len(x):
        sizes = " and ".join("no" if a is None else str(len(a)) for a in (x, y))
        raise UsageError(
            f"the {part} set has {sizes} examples and labels: give one label for each example, and at least one"
        )
    if shape is not None and x.shape[1:] != shape:
        raise UsageError(f"{part} examples have the shape {x.shape[1:]}, not {shape} as in training: resize them")
    if not np.isfinite(x).all():
        raise UsageError(f"the {part} set holds a value that is not finite: remove that example")
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= classes:
        raise UsageError(f"the {part} set holds a label outside 0..{classes - 1}: correct or remove that example")


def eq33_sigma(epsilon: float, delta: float) -> float:
    """The thesis' eq. 3.3, sqrt(2 ln(1.25 / delta)) / epsilon: without a clip norm; its theorem asks epsilon < 1."""
    Budget(epsilon, delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


@lru_cache(maxsize=64)
def calibrated_noise(clip_norm: float, sampling_rate: float, epochs: int, epsilon: float, delta: float) -> float:
    """The noise multiplier with which so many epochs of Poisson sampling cost at most epsilon, and hardly less."""
    mechanism = Mechanism.sound(clip_norm, 1.0, 1, 1, sampling_rate=sampling_rate)
    return calibrate_z0(mechanism, epochs, Budget(epsilon, delta), tight=True)


_judged = lru_cache(maxsize=64)(judge)  # remembered, for instructors who differ in their data alone


class ClassifierTraining:
    """The state of one training run, whose `settings` are resolved."""

    def __init__(self, settings: ClassifierSettings, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        self.settings, self.data, self.memory, self.step = settings, ImageData(x, y), Memory(), 0
        assert settings.lr is not None
        assert settings.epochs is not None
        assert settings.batch_size is not None
        self.lr, self.epochs = settings.lr, settings.epochs
        self.model = build_classifier(settings.model, x.shape[1:], settings.classes, settings.seed, settings.activation)
        key = secrets.randbits(128) if settings.private_seed else key_from_seed(settings.seed)
        sampling = "poisson" if settings.private else "shuffle"
        micro_batches = settings.batch_size if settings.private else 1
        self.batches = Batches(key, len(x), settings.batch_size, 1, micro_batches, sampling, alone=settings.private)
        self.steps = self.epochs * self.batches.steps_per_epoch  # of all epochs together
        parameters = trainable(self.model)
        self.mechanism = self.private = None
        if settings.private:
            self.mechanism = self._mechanism(self.batches.sampling_rate)
            self.private = PrivateStep(parameters, self.mechanism, key, micro_batches=micro_batches)
        self.weights: list[torch.Tensor] = [p for _, p in parameters]
        # Algorithms 2 to 6, and DP-AdamBC. Algorithm 5 prints RMSprop's average without its square: a misprint.
        kind = settings.method.removeprefix("dp-")
        self.optimizer: torch.optim.Optimizer
        if kind == "rmsprop":
            self.optimizer = torch.optim.RMSprop(self.weights, self.lr, alpha=BETA)
        elif kind in ("sgd", "momentum"):
            beta = 0.0 if kind == "sgd" else BETA
            self.optimizer = torch.optim.SGD(self.weights, self.lr, momentum=beta, dampening=beta)
        else:
            name = "dp-adambc" if kind == "adambc" else kind
            self.optimizer = make_optimizer(name, [p for _, p in parameters], self.lr)
        published = not settings.private_seed
        self.guarantee = _judged(self.mechanism, self.epochs, settings.delta, published, tight=True)

    def _mechanism(self, rate: float) -> Mechanism:
        """What one step releases: noise of eq. 3.3 on the sum of clipped gradients, as given, or as calibrated."""
        s = self.settings
        assert s.clip_norm is not None
        z0 = s.noise_multiplier
        if z0 is None:
            assert s.epsilon is not None
            if s.eq33:
                z0 = eq33_sigma(s.epsilon, s.delta) / s.clip_norm
            else:
                z0 = calibrated_noise(s.clip_norm, rate, self.epochs, s.epsilon, s.delta)
        return Mechanism.sound(s.clip_norm, z0, 1, 1, sampling_rate=rate)

    def epoch(self, epoch: int) -> float:
        """One pass, or as many Poisson steps as make one; the mean loss of those who took part."""
        total, examples = 0.0, 0
        for place in range(self.batches.steps_per_epoch):
            [parts] = self.batches.devices(epoch, place, self.step)
            total += self.take(epoch, parts)
            examples += sum(len(part) for part in parts)
        return total / max(examples, 1)

    def take(self, epoch: int, parts: list[NDArray[np.int64]]) -> float:
        """One step on these micro-batches; the sum of their losses."""
        model: Any = self.model  # images and their network are used as utterances and theirs are
        data: Any = self.data
        if self.private is None:
            loss = float(plain_gradient(model, data, parts[0], None, 1.0))
        else:
            gradients = KeptGradients(model, data, parts, None, self.private.layout, self.memory)
            self.private.clip_and_noise(epoch, self.step, gradients)
            loss = float(gradients.loss)
        if not math.isfinite(loss):
            raise UsageError("the loss is not finite: lower the learning rate")
        rate = self.lr * (1 - self.step / self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.settings.weight_decay:
            with torch.no_grad():
                torch._foreach_mul_(self.weights, 1 - rate * self.settings.weight_decay)
        if isinstance(self.optimizer, DPAdamBC):
            assert self.private is not None
            self.optimizer.noise_std(self.private.noise_stds(epoch))
        self.optimizer.step()
        self.step += 1
        return loss

    def record(self) -> dict[str, Any]:
        s, q, claim = self.settings, self.batches.sampling_rate, None
        if s.eq33:
            assert s.epsilon is not None
            claim = {  # what the thesis says of noise by its eq. 3.3 (3.2.2), beside why it is not what holds
                "epsilon": s.epsilon,
                "sigma": eq33_sigma(s.epsilon, s.delta),
                "per_step": [q * s.epsilon, q * s.delta],
                "whole_run": q * s.epsilon * math.sqrt(self.steps),
                "why_not": "the theorem behind eq. 3.3 needs epsilon below 1; without the clip norm in it the noise "
                "multiplier is sigma / C; sampling turns epsilon into ln(1 + q (e^epsilon - 1)), not into q epsilon; "
                "O(q epsilon sqrt(T)) has a constant that is not 1",
            }
        return {
            **asdict(s),
            "examples": len(self.data),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "steps": self.steps,
            "sampling_rate": q if s.private else None,
            "mechanism": None if self.mechanism is None else asdict(self.mechanism),
            "noise_std": None if self.private is None else self.private.noise_stds(0)[0],
            "guarantee": asdict(self.guarantee),
            "claim": claim,
            "threads": torch.get_num_threads(),
            "versions": versions(),
        }
