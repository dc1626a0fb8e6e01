"""What ``03_edp_sgd.ipynb`` computes: Algorithm 1 line by line, noise against gradients, claimed and true. No widgets.

    result = stages(as_printed=True, alpha_large=1.0, alpha_small=0.1, z=1.0, num_devices=8)    # pure
    history = GradientHistory(TrainConfig("smart-home", size="small"), epochs=6)    # trains for some seconds, once
    promise(z=1.0, num_devices=8, alpha_max=1.0, micro_batch_size=8)

Clip factors, noise and the released mean are those of `edp_lab.training.dp_step`, epsilon is the judge's. What they
refuse (UsageError) is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from edp_lab.corpora import load_corpus, split
from edp_lab.course.kit.controls import BATCH, DELTA, DEVICES, Array, require, rng_of
from edp_lab.course.kit.text import plain
from edp_lab.privacy import Alpha, Guarantee, Mechanism, Schedule, judge
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.privacy.foundations import check_positive
from edp_lab.training import TrainConfig
from edp_lab.training.dp_step import clip_factors, layer_scales, noise_stds, release
from edp_lab.training.gradients import Layout, StackedGradients, layer_norms, stacked_gradients
from edp_lab.training.noise import Share, standard_noise
from edp_lab.training.trainer import Trainer

# ---- Algorithm 1, line by line -------------------------------------------------------------------------------------

PLANE = Layout(("large", "small"), (slice(0, 1), slice(1, 2)))  # two layers of one weight
MEAN, SPREAD = np.array([3.0, 0.3]), np.array([4.0, 0.8])  # of one sentence's gradient


class Stages(NamedTuple):
    """What each of N devices holds after each line of Algorithm 1, for a model of two layers with one weight each.

    The clip norm is 1.
    """

    mechanism: Mechanism  # with alpha taken for public; clip norm and alpha are normalised if it is sound
    alpha: Array  # (2,), layer scales as given
    points: Mapping[str, Array]  # by line, in the variant's order, (N, 2); device 0 has the first sentence
    scaled: Collection[str]  # lines after which gradients are in units of alpha
    kept: Array  # (N,), clip factors
    silent: Array  # (2,), the mean over devices without noise
    released: Array  # (2,), and with it
    reach: Array  # (2,), centre of the ellipse of means that the first sentence can reach
    half_axes: Array  # (2,), its half axes: alpha / N
    noise: Array  # (2,), deviation of the noise on the mean, by layer
    guarantee: Guarantee  # of one epoch


def stages(
    as_printed: bool,
    alpha_large: float,
    alpha_small: float,
    z: float,
    num_devices: int,
    pull: float = 0.0,
    seed: int = 0,
) -> Stages:
    """One step on a batch of 64 made-up sentences, cut into N micro-batches.

    UsageError: as `Mechanism`; more than 64 devices, a scale not above 0, a pull or seed below 0.
    """
    for layer, scale in (("large layer", alpha_large), ("small layer", alpha_small)):
        check_positive(f"alpha of the {layer}", scale)
    alpha = torch.tensor([alpha_large, alpha_small], dtype=torch.float64)
    size, largest, unit = math.ceil(BATCH / max(num_devices, 1)), float(alpha.max()), alpha
    if as_printed:
        mechanism = Mechanism.as_printed(1.0, z, num_devices, size, alpha=Alpha.PUBLIC, alpha_max=largest)
    else:  # scales have maximum 1, and the clip norm takes up the rest
        mechanism = Mechanism.sound(largest, z, num_devices, size, alpha=Alpha.PUBLIC)
        unit = alpha / largest
    gradients = _device_gradients(num_devices, pull, seed)
    factors = clip_factors(mechanism, layer_norms(gradients, PLANE), PLANE, unit)
    draws = standard_noise(key_from_seed(seed), 0, 2 * num_devices, Share(), torch.float64).view(num_devices, 2)
    noise = mechanism.device_noise_std(0) * draws

    scaled = gradients / alpha
    clipped = factors[:, None] * scaled
    held = {"gradient": gradients, "scale": scaled, "clip": clipped}
    if as_printed:
        rescaled = alpha * clipped
        held |= {"rescale": rescaled, "noise": rescaled + noise}
    else:
        noised = clipped + noise / largest
        held |= {"noise": noised, "rescale": alpha * noised}

    rows, total = StackedGradients(gradients, PLANE), draws.sum(0) / math.sqrt(num_devices)
    silent, released = (release(mechanism, 0, rows, PLANE, unit, y).gradient for y in (torch.zeros(2).double(), total))
    others = factors[1:] @ gradients[1:] / num_devices
    return Stages(
        mechanism, alpha.numpy(), {name: each.numpy() for name, each in held.items()},
        ("scale", "clip") if as_printed else ("scale", "clip", "noise"), factors.numpy(), silent.numpy(),
        released.numpy(), others.numpy(), alpha.numpy() / num_devices,
        np.array(noise_stds(mechanism, 0, unit, num_devices, 2)), judge(mechanism, 1, DELTA),
    )  # fmt: skip


def _device_gradients(num_devices: int, pull: float, seed: int) -> Tensor:
    """Mean gradients of N micro-batches of the same 64 sentences: (N, 2), float64."""
    idle = f"{num_devices} devices for a batch of {BATCH}: some would have no sentence; lower N"
    require(num_devices <= BATCH, idle)
    require(0 <= pull < math.inf, f"the pull of the first sentence is {pull}: it must be 0 or more")
    sentences = MEAN + SPREAD * rng_of(seed, 3).standard_normal((BATCH, 2))
    if pull:
        sentences[0] = -pull * MEAN
    return torch.from_numpy(np.stack([part.mean(0) for part in np.array_split(sentences, num_devices)]))


# ---- A short real run ----------------------------------------------------------------------------------------------

FINEST = 32  # micro-batches of which all others are made


class GradientHistory:
    """A small model, trained without noise, and the gradients of one batch at the start of each epoch.

    Kept are not the gradients but, by layer, their products with one another: norms of all sums follow from these.

    Args:
        config: of eDP-SGD; `plain` makes the model's own run of it.
        epochs: how long to train.

    Attributes:
        first: (FINEST, P) gradients of the first batch.
        alpha: (K) layer scales from it, as the paper takes them.
        rows: of the run's record.
    """

    def __init__(self, config: TrainConfig, epochs: int) -> None:
        self.config = replace(plain(config, epochs), batch_size=BATCH)
        corpus = load_corpus(self.config.corpus)
        run = Trainer(self.config, corpus, split(corpus, self.config.seed))
        self.layout, self.delta, self.epochs = run.layout, run.delta, epochs
        grams = []
        for epoch in range(epochs):
            gradients = _batch_gradients(run)
            if epoch == 0:
                self.first = gradients
            layers = [gradients[:, columns].double() for columns in self.layout.columns]
            grams.append(torch.stack([layer @ layer.T for layer in layers]))
            run.epoch()
        self.rows: list[dict[str, Any]] = run.record["epochs"]
        self._grams = torch.stack(grams)  # (T, K, FINEST, FINEST)
        self.alpha = layer_scales(self.first.mean(0), self.layout).double()
        self.sizes = torch.tensor([columns.stop - columns.start for columns in self.layout.columns]).double()

    def gram(self, num_devices: int) -> Tensor:
        """Products of N devices' mean gradients, by epoch and layer: (T, K, N, N).

        UsageError: a number of devices into which the batch cannot be cut evenly.
        """
        known = ", ".join(map(str, DEVICES))
        require(num_devices in DEVICES, f"this batch was cut for {known} devices, not for {num_devices}")
        each = FINEST // num_devices
        return self._grams.unflatten(3, (num_devices, each)).unflatten(2, (num_devices, each)).mean((3, 5))

    def layer_norms(self) -> Tensor:
        """Length of the batch's mean gradient, by epoch and layer: (T, K)."""
        return self.gram(1)[:, :, 0, 0].clamp_min(0).sqrt()

    def per_device(self, num_devices: int) -> Tensor:
        """Mean gradients of N micro-batches of the first batch: (N, P)."""
        return self.first.unflatten(0, (num_devices, FINEST // num_devices)).mean(1)


def _batch_gradients(run: Trainer) -> Tensor:
    """(FINEST, P) gradients of the batch that the run meets next, with its own dropout."""
    now = run.progress
    [[batch]] = run.batches.devices(now.epoch, 0, now.step)
    dropout_key = int(stream(run.key, Purpose.DROPOUT, now.step).integers(2**63))
    parts = np.array_split(batch, FINEST)
    return stacked_gradients(run.model, run.train_data, parts, dropout_key, run.layout).gradients.cpu()


class Decayed(NamedTuple):
    """Noise against gradients, epoch by epoch: lengths."""

    config: TrainConfig
    gradient: Array  # (T,), of the batch's mean gradient, neither scaled nor clipped
    signal: Array  # (T,), of the mean of the clipped gradients, which is what gets the noise
    noise: Array  # (T,), expected (root mean square), of the noise on the mean
    same_cost: float | None  # noise of a run without decay that costs as much as the one chosen; None without noise
    guarantee: Guarantee  # of all epochs


def decayed(
    history: GradientHistory, as_printed: bool, clip_norm: float, z0: float, decay: str, tau: float, num_devices: int
) -> Decayed:
    """How the noise of eDP-SGD would compare with these gradients, and what it would cost.

    UsageError: as `TrainConfig` and `Mechanism`, or a number of devices that the batch was not cut for.
    """
    config = replace(
        history.config, method="edp-sgd", as_printed=as_printed, clip_norm=clip_norm, z0=z0, decay=decay, tau=tau,
        num_devices=num_devices,
    )  # fmt: skip
    mechanism = config.mechanism()
    assert mechanism is not None  # the method is private
    alpha = history.alpha if as_printed else None
    layers = len(history.sizes)
    stds = (torch.tensor(noise_stds(mechanism, t, alpha, num_devices, layers)) for t in range(history.epochs))
    noise = np.array([float((history.sizes.sqrt() * std.double()).norm()) for std in stds])
    z = np.array([mechanism.noise_multiplier_setting(t) for t in range(history.epochs)])
    same = math.sqrt(len(z)) / Schedule(z, np.ones(len(z))).mu if z.min() > 0 else None
    return Decayed(
        config,
        history.layer_norms().norm(dim=1).numpy(),
        _signals(history, mechanism, alpha),
        noise,
        None if same is None else float(noise[0] * same / z0),
        judge(mechanism, history.epochs, history.delta),
    )


def _signals(history: GradientHistory, mechanism: Mechanism, alpha: Tensor | None) -> Array:
    """Length of the mean clipped gradient by epoch: (T,)."""
    lengths = []
    for gram in history.gram(mechanism.num_devices):  # (K, N, N)
        norms = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().T
        factors = clip_factors(mechanism, norms, history.layout, alpha) / mechanism.num_devices
        lengths.append(float((factors @ gram.sum(0) @ factors).clamp_min(0).sqrt()))
    return np.array(lengths)


# ---- Claimed and true ----------------------------------------------------------------------------------------------

CLAIMED, PRINTED, SOUND = "claimed", "as printed", "sound"
MANY = (1, 2, 4, 8, 16, 32, 64, 128)


class Promise(NamedTuple):
    """What the same z stands for: in the paper's accounting, as printed, and in the sound variant.

    One epoch, alpha public.
    """

    printed: Mechanism  # Algorithm 1
    sound: Mechanism
    multiplier: Mapping[str, float]  # by name, noise over sensitivity of what one step releases
    epsilon: Mapping[str, float | None]  # by name; None where it overflows
    curves: Mapping[str, Sequence[float | None]]  # by name, epsilon over `MANY` devices at the same micro-batch size
    guarantee: Guarantee  # of Algorithm 1 as printed, alpha public

    def right(self, name: str) -> float:
        """The best chance to tell from one step whether a sentence was there (worst case, even odds)."""
        return float(ndtr(0.5 / self.multiplier[name])) if self.multiplier[name] else 1.0


def promise(z: float, num_devices: int, alpha_max: float, micro_batch_size: int) -> Promise:
    """Algorithm 1 as printed and the sound variant at the same noise multiplier z, for one epoch."""

    def mechanisms(devices: int) -> tuple[Mechanism, Mechanism]:
        printed = Mechanism.as_printed(1.0, z, devices, micro_batch_size, alpha=Alpha.PUBLIC, alpha_max=alpha_max)
        return printed, Mechanism.sound(1.0, z, devices, micro_batch_size)

    def epsilons(devices: int) -> dict[str, float | None]:
        printed, sound = (judge(mechanism, 1, DELTA) for mechanism in mechanisms(devices))
        return {CLAIMED: printed.epsilon_claimed, PRINTED: printed.epsilon, SOUND: sound.epsilon}

    printed, sound = mechanisms(num_devices)
    multiplier = {CLAIMED: z, PRINTED: printed.noise_multiplier(0), SOUND: sound.noise_multiplier(0)}
    others = [epsilons(devices) for devices in MANY]
    curves = {name: [epsilon[name] for epsilon in others] for name in multiplier}
    held = judge(printed, 1, DELTA)
    return Promise(printed, sound, multiplier, epsilons(num_devices), curves, held)
