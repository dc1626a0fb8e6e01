"""Train an image classifier with SGD or Adam (section 2.4.7 of the thesis), or with their private versions.

The thesis' DP-Adam (Algorithm 7) clips each example's gradient, adds Gaussian noise to the sum and passes the mean to
Adam. We do the same for every optimizer. Unlike the thesis, our record contains the accountant, noise multiplier, clip
norm, sampling rate, steps, epochs, learning rate, seed and versions (T19). Raises UsageError if the settings do not
permit training, or if the loss is not finite.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv
from torch import Tensor
from torch.nn import functional as F

from edp_lab.errors import UsageError
from edp_lab.models.ghost_clipping.bookkeeping import Memory
from edp_lab.models.image import ImageClassifier, ImageData, build_classifier
from edp_lab.privacy import Guarantee, Mechanism, judge
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.three_phase.settings import ClassifierSettings
from edp_lab.training.batches import Batches
from edp_lab.training.build import SGD, make_optimizer
from edp_lab.training.gradients import ghost_gradients, plain_gradient, trainable
from edp_lab.training.private_step import PrivateStep
from edp_lab.training.run_files import versions

Classes = NDArray[np.int64]
Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Trained:
    """Result of `train_classifier`."""

    model: ImageClassifier
    # Per epoch: "epoch" (from 1), "loss" (mean over the training examples that took part; not private), "test_loss",
    # "accuracy" (on the test examples) and "seconds" of training.
    rows: list[dict[str, Any]]
    guarantee: Guarantee  # for the released model, computed from privacy loss distributions
    record: dict[str, Any] = field(repr=False)  # everything needed to repeat and to judge the run, as JSON


def train_classifier(
    settings: ClassifierSettings,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    test_x: NDArray[np.float32],
    test_y: NDArray[np.int64],
    listener: Listener = lambda row: None,
) -> Trained:
    """Train one network on x (n, ...) in [0, 1] with labels y (n), and score it on the test examples after each epoch.

    Guarantee of a private method: `Trained.guarantee`, for adding or removing one example. It protects the example's
    image and label. It does not cover losses, scores on the test examples, or choices based on these. Without
    `private_seed` its epsilon is void, because anyone who knows the seed can reproduce the noise.

    `listener` is called with the row of each epoch.
    """
    run, rows, truth = ClassifierTraining(settings.resolved(len(x)), x, y), [], torch.from_numpy(test_y)
    for epoch in range(run.epochs):
        start = time.perf_counter()
        loss = run.epoch(epoch)
        seconds = time.perf_counter() - start
        log_p = torch.from_numpy(run.model.log_probabilities(test_x))
        accuracy = float((log_p.argmax(1) == truth).double().mean())
        test_loss = float(F.nll_loss(log_p, truth))
        rows.append(
            {"epoch": epoch + 1, "loss": loss, "seconds": seconds, "test_loss": test_loss, "accuracy": accuracy}
        )
        listener(rows[-1])
    return Trained(run.model, rows, run.guarantee, {**run.record(), "rows": rows})


@lru_cache(maxsize=64)
def calibrated_noise(clip_norm: float, sampling_rate: float, epochs: int, epsilon: float, delta: float) -> float:
    """Nearly the smallest noise multiplier at which `epochs` epochs of Poisson sampling are (epsilon, delta)-DP."""
    mechanism = Mechanism.sound(clip_norm, 1.0, 1, 1, sampling_rate=sampling_rate)
    return calibrate_z0(mechanism, epochs, Budget(epsilon, delta))


_judged = lru_cache(maxsize=64)(judge)  # cached, because instructors differ only in their data


class ClassifierTraining:
    """State of one training run; `settings` must be resolved."""

    def __init__(self, settings: ClassifierSettings, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        self.settings, self.data, self.memory, self.step = settings, ImageData(x, y), Memory(), 0
        given: Any = settings  # no field is None
        self.lr, self.epochs = given.lr, given.epochs
        self.model = build_classifier(settings.model, x.shape[1:], settings.classes, settings.seed, settings.activation)
        key = secrets.randbits(128) if settings.private_seed else key_from_seed(settings.seed)
        sampling, micro_batches = ("poisson", given.batch_size) if settings.private else ("shuffle", 1)
        shape = (given.batch_size, 1, micro_batches, sampling, settings.private)
        self.batches = Batches(key, len(x), *shape, secret=settings.private_seed)
        self.steps = self.epochs * self.batches.steps_per_epoch  # over all epochs
        parameters = trainable(self.model)
        self.mechanism = self.private = None
        if settings.private:
            rate = self.batches.sampling_rate
            z0 = calibrated_noise(given.clip_norm, rate, self.epochs, given.epsilon, given.delta)
            self.mechanism = Mechanism.sound(given.clip_norm, z0, 1, 1, sampling_rate=rate)
            self.private = PrivateStep(self.model, self.mechanism, key, self.epochs, micro_batches=micro_batches)
        self.weights: list[Tensor] = [p for _, p in parameters]
        self.optimizer: torch.optim.Optimizer
        if settings.method in ("sgd", "dp-sgd"):
            self.optimizer = SGD(self.weights, self.lr)
        else:
            self.optimizer = make_optimizer("adam", [p for _, p in parameters], self.lr)
        self.guarantee = _judged(self.mechanism, self.epochs, settings.delta, not settings.private_seed)

    def epoch(self, epoch: int) -> float:
        """Run one pass, or an equal number of Poisson steps; return the mean loss of the participating examples."""
        total, examples = 0.0, 0
        for place in range(self.batches.steps_per_epoch):
            [parts] = self.batches.devices(epoch, place, self.step)
            total += self.take(epoch, parts)
            examples += sum(len(part) for part in parts)
        return total / max(examples, 1)

    def take(self, epoch: int, parts: list[NDArray[np.int64]]) -> float:
        """Take one step on these micro-batches; return the sum of their losses."""
        model: Any = self.model  # an image network has the same interface as an utterance model
        data: Any = self.data
        if self.private is None:
            loss = float(plain_gradient(model, data, parts[0], None, 1.0))
        else:
            gradients = ghost_gradients(model, data, parts, None, self.private.layout, self.memory)
            self.private.release(self.private.clip(gradients), epoch, self.step)
            loss = float(sum(some.loss for some in gradients))
        if not math.isfinite(loss):
            raise UsageError("the loss is not finite: lower the learning rate")
        rate = self.lr * (1 - self.step / self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.settings.weight_decay:
            with torch.no_grad():
                torch._foreach_mul_(self.weights, 1 - rate * self.settings.weight_decay)
        self.optimizer.step()
        self.step += 1
        return loss

    def record(self) -> dict[str, Any]:
        s = self.settings
        return {
            **asdict(s),
            "examples": len(self.data),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "steps": self.steps,
            "sampling_rate": self.batches.sampling_rate if s.private else None,
            "mechanism": None if self.mechanism is None else asdict(self.mechanism),
            "noise_std": None if self.private is None else self.private.noise_stds(0)[0],
            "guarantee": asdict(self.guarantee),
            "threads": torch.get_num_threads(),
            "versions": versions(),
        }


# ---- Scores --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Scores of predicted labels."""

    accuracy: float
    interval: tuple[float, float]  # 95 % Clopper-Pearson interval of the accuracy
    precision: float  # mean over classes, like the next two; a class that is absent or never predicted counts as 0
    recall: float
    f_score: float
    confusion: list[list[int]]  # [true][predicted] counts


def score_labels(truth: Classes, predicted: Classes, classes: int) -> Scores:
    """Compute the accuracy, and precision, recall and F-score averaged over classes, of (n) labels, n at least 1."""
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (truth, predicted), 1)
    right, total = np.diag(confusion), int(confusion.sum())
    precision = right / np.maximum(confusion.sum(axis=0), 1)
    recall = right / np.maximum(confusion.sum(axis=1), 1)
    f_score = 2 * precision * recall / np.maximum(precision + recall, 1e-300)
    hits = int(right.sum())
    low = float(betaincinv(hits, total - hits + 1, 0.025)) if hits else 0.0
    high = float(betaincinv(hits + 1, total - hits, 0.975)) if hits < total else 1.0
    means = [float(values.mean()) for values in (precision, recall, f_score)]
    return Scores(hits / total, (low, high), means[0], means[1], means[2], confusion.tolist())


# ---- Ways to bound an example's gradient (sections 2.4.8 and 3.2.2 of the thesis) ------------------------------------


def by_norm(gradients: Tensor, threshold: float) -> Tensor:
    """Scale rows with a norm above the threshold down to the threshold, and leave all other rows unchanged."""
    norms, units = _polar(gradients, threshold)
    return torch.where(norms > threshold, (threshold * units).to(gradients.dtype), gradients)


def by_value(gradients: Tensor, threshold: float) -> Tensor:
    """Clip each coordinate to [-threshold, threshold], which may change a gradient's direction."""
    _polar(gradients, threshold)
    return gradients.clamp(-threshold, threshold)


def normalising(gradients: Tensor, threshold: float) -> Tensor:
    """Scale every row to a norm equal to the threshold, except zero rows."""
    return (threshold * _polar(gradients, threshold)[1]).to(gradients.dtype)


def as_printed(gradients: Tensor, threshold: float) -> Tensor:
    """The thesis' Algorithm 8: scale rows with a smaller norm up to the threshold, and leave others unchanged (T7)."""
    norms, units = _polar(gradients, threshold)
    return torch.where(norms <= threshold, (threshold * units).to(gradients.dtype), gradients)


class Rule(NamedTuple):
    """Rule for bounding gradients, and the resulting sensitivity.

    Guarantee: the sensitivity bounds the L2 distance by which adding or removing one example moves the sum of the rows,
    for all finite gradients, up to the rounding of one product. Raises UsageError if a gradient is not finite, or if
    the threshold is not above 0.
    """

    clip: Callable[[Tensor, float], Tensor]  # gradients (B, P) and a threshold -> (B, P)
    sensitivity: Callable[[float, int], float]  # the threshold and P -> the largest L2 norm of a row of `clip`


RULES = {
    "by norm": Rule(by_norm, lambda threshold, size: threshold),  # 2.4.8; used by the private step (Abadi et al. 2016)
    "by value": Rule(by_value, lambda threshold, size: threshold * math.sqrt(size)),  # 3.2.2
    "normalising": Rule(normalising, lambda threshold, size: threshold),  # "scaling" of 3.2.2 (Bu et al. 2022)
    "as printed": Rule(as_printed, lambda threshold, size: math.inf),  # Algorithm 8: large gradients are unbounded
}


def _polar(gradients: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """L2 norms (B, 1) and directions (B, P), float64; a zero gradient has direction 0.

    Each gradient is first divided by its largest coordinate, which prevents squares from overflowing or underflowing.
    """
    if not 0 < threshold < math.inf:
        raise UsageError(f"the clip threshold is {threshold}: it must be greater than 0")
    if not torch.isfinite(gradients).all():
        raise UsageError("a gradient is not finite, so it cannot be clipped: lower the learning rate")
    largest = gradients.double().abs().amax(1, keepdim=True)
    scaled = gradients.double() / largest.clamp_min(5e-324)
    norms = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return largest * norms, scaled / norms.clamp_min(1.0)
