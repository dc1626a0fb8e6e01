"""What ``03_edp_sgd.ipynb`` computes: Algorithm 1 line by line, noise against gradients, claimed and true. No widgets.

    result = stages(as_printed=True, alpha_large=1.0, alpha_small=0.1, clip_norm=1.0, z=1.0, num_devices=8)    # pure
    history = GradientHistory(TrainConfig("smart-home", size="small"), epochs=6)    # trains for some seconds, once
    promise(z=1.0, num_devices=8, alpha_max=1.0, micro_batch_size=8, epochs=1, delta=1e-5)

Clip factors, noise and the released mean are those of `edp_lab.training.dp_step`, epsilon is the judge's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from edp_lab.corpora import load_corpus, split
from edp_lab.course.kit.text import plain
from edp_lab.errors import UsageError
from edp_lab.privacy import Alpha, Decay, Guarantee, Mechanism, Schedule, Variant, judge
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.training import TrainConfig
from edp_lab.training.dp_step import clip_factors, layer_scales, noise_stds, release
from edp_lab.training.gradients import Layout, StackedGradients, layer_norms, stacked_gradients
from edp_lab.training.noise import Share, standard_noise
from edp_lab.training.trainer import Trainer

Array = NDArray[np.float64]

DELTA = 1e-5
SENTENCES = 64  # in a batch

# ---- Algorithm 1, line by line -------------------------------------------------------------------------------------

PLANE = Layout(("large", "small"), (slice(0, 1), slice(1, 2)))  # two layers of one weight
MEAN, SPREAD = np.array([3.0, 0.3]), np.array([4.0, 0.8])  # of one sentence's gradient
LINES = {
    Variant.AS_PRINTED: ("gradient", "scale", "clip", "rescale", "noise"),
    Variant.SOUND: ("gradient", "scale", "clip", "noise", "rescale"),
}
SCALED = ("scale", "clip")  # lines after which gradients are in units of alpha; sound, also the noise


@dataclass(frozen=True, eq=False)
class Stages:
    """What each of N devices holds after each line of Algorithm 1, for a model of two layers with one weight each.

    Attributes:
        mechanism: with alpha taken for public. Its clip norm and alpha are normalised where the variant is sound.
        alpha: (2,) layer scales as given; clip_norm: C as given, in units of alpha.
        pull: how hard the first sentence pulls backwards; 0 where it is like the others.
        points: by line, in the variant's order, (N, 2); device 0 has the first sentence.
        kept: (N,) clip factors.
        silent, released: (2,) the mean over devices without and with noise.
        reach: (2,) centre of what the first device can make of the mean; its half axes are C alpha / N.
        noise: (2,) deviation of the noise on the mean, by layer.
        guarantee: of one epoch.
    """

    mechanism: Mechanism
    alpha: Array
    clip_norm: float
    pull: float
    seed: int
    points: Mapping[str, Array]
    kept: Array
    silent: Array
    released: Array
    reach: Array
    noise: Array
    guarantee: Guarantee

    @property
    def half_axes(self) -> Array:
        """Of the ellipse of means that one sentence can reach: (2,)."""
        return self.clip_norm * self.alpha / self.mechanism.num_devices

    def scaled(self, line: str) -> bool:
        """Whether gradients are in units of alpha after this line."""
        return line in SCALED or (line == "noise" and self.mechanism.variant is Variant.SOUND)


def stages(
    as_printed: bool,
    alpha_large: float,
    alpha_small: float,
    clip_norm: float,
    z: float,
    num_devices: int,
    pull: float = 0.0,
    seed: int = 0,
) -> Stages:
    """One step on a batch of 64 made-up sentences, cut into N micro-batches.

    Raises:
        UsageError: as `Mechanism`; more than 64 devices, a scale not above 0, a pull or seed below 0.
    """
    for name, scale in (("large", alpha_large), ("small", alpha_small)):
        if not 0 < scale < math.inf:
            raise UsageError(f"alpha of the {name} layer is {scale}: it must be a finite number greater than 0")
    alpha = torch.tensor([alpha_large, alpha_small], dtype=torch.float64)
    mechanism, unit = _normalised(as_printed, alpha, clip_norm, z, num_devices)
    gradients = device_gradients(num_devices, pull, seed)
    factors = clip_factors(mechanism, layer_norms(gradients, PLANE), PLANE, unit)
    draws = _draws(num_devices, seed)
    points = _lines(mechanism, gradients, alpha, factors, draws)
    rows = StackedGradients(gradients, PLANE)
    total = draws.sum(0) / math.sqrt(num_devices)
    silent, released = (release(mechanism, 0, rows, PLANE, unit, y).gradient for y in (torch.zeros(2).double(), total))
    others = factors[1:] @ gradients[1:] / num_devices
    return Stages(
        mechanism, alpha.numpy(), clip_norm, pull, seed, {name: held.numpy() for name, held in points.items()},
        factors.numpy(), silent.numpy(), released.numpy(), others.numpy(),
        np.array(noise_stds(mechanism, 0, unit, num_devices, 2)), judge(mechanism, 1, DELTA),
    )  # fmt: skip


def _normalised(
    as_printed: bool, alpha: Tensor, clip_norm: float, z: float, num_devices: int
) -> tuple[Mechanism, Tensor]:
    """The mechanism, and the layer scales to give it; sound ones have maximum 1, and C takes up the rest."""
    size, largest = math.ceil(SENTENCES / max(num_devices, 1)), float(alpha.max())
    if as_printed:
        printed = Mechanism.as_printed(clip_norm, z, num_devices, size, alpha=Alpha.PUBLIC, alpha_max=largest)
        return printed, alpha
    return Mechanism.sound(clip_norm * largest, z, num_devices, size, alpha=Alpha.PUBLIC), alpha / largest


def _lines(mechanism: Mechanism, gradients: Tensor, alpha: Tensor, factors: Tensor, draws: Tensor) -> dict[str, Tensor]:
    """What devices hold after each line: (N, 2) each."""
    scaled = gradients / alpha
    clipped = factors[:, None] * scaled
    noise = mechanism.device_noise_std(0) * draws
    held = {"gradient": gradients, "scale": scaled, "clip": clipped}
    if mechanism.variant is Variant.AS_PRINTED:
        rescaled = alpha * clipped
        return {**held, "rescale": rescaled, "noise": rescaled + noise}
    noised = clipped + noise / alpha.max()  # its C has taken up the largest alpha
    return {**held, "noise": noised, "rescale": alpha * noised}


def device_gradients(num_devices: int, pull: float, seed: int) -> Tensor:
    """Mean gradients of N micro-batches of the same 64 sentences: (N, 2), float64.

    Raises:
        UsageError: more devices than sentences, pull or seed below 0.
    """
    if num_devices > SENTENCES:
        raise UsageError(f"{num_devices} devices for a batch of {SENTENCES}: some would have no sentence; lower N")
    if not 0 <= pull < math.inf:
        raise UsageError(f"the pull of the first sentence is {pull}: it must be 0 or more")
    if seed < 0:
        raise UsageError(f"seed is {seed}: it must be 0 or more")
    sentences = MEAN + SPREAD * np.random.default_rng([seed, 3]).standard_normal((SENTENCES, 2))
    if pull:
        sentences[0] = -pull * MEAN
    return torch.from_numpy(np.stack([part.mean(0) for part in np.array_split(sentences, num_devices)]))


def _draws(num_devices: int, seed: int) -> Tensor:
    """Standard normal draws of each device: (N, 2)."""
    return standard_noise(key_from_seed(seed), 0, 2 * num_devices, Share(), torch.float64).view(num_devices, 2)


def spread(alpha: Tensor, layout: Layout) -> Tensor:
    """The scale of each weight: (K) layer scales -> (P)."""
    sizes = torch.tensor([columns.stop - columns.start for columns in layout.columns])
    return alpha.repeat_interleave(sizes)


# ---- A short real run ----------------------------------------------------------------------------------------------

FINEST = 32  # micro-batches of which all others are made
DEVICES = (1, 2, 4, 8, 16, 32)


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

    Raises:
        UsageError: as `edp_lab.training.train`.
    """

    def __init__(self, config: TrainConfig, epochs: int) -> None:
        self.config = replace(plain(config, epochs), batch_size=SENTENCES)
        corpus = load_corpus(self.config.corpus)
        run = Trainer(self.config, corpus, split(corpus, self.config.seed))
        self.layout, self.delta = run.layout, run.delta
        self.first = _batch_gradients(run)
        grams = [_gram(self.first, self.layout)]
        for _ in range(1, epochs):
            run.epoch()
            grams.append(_gram(_batch_gradients(run), self.layout))
        run.epoch()
        self.rows: list[dict[str, Any]] = run.record["epochs"]
        self._grams = torch.stack(grams)  # (T, K, FINEST, FINEST)
        self.alpha = layer_scales(self.first.mean(0), self.layout).double()
        self.sizes = torch.tensor([columns.stop - columns.start for columns in self.layout.columns]).double()

    @property
    def epochs(self) -> int:
        return len(self._grams)

    def gram(self, num_devices: int) -> Tensor:
        """Products of N devices' mean gradients, by epoch and layer: (T, K, N, N).

        Raises:
            UsageError: a number of devices into which the batch cannot be cut evenly.
        """
        if num_devices not in DEVICES:
            raise UsageError(f"this batch was cut for {', '.join(map(str, DEVICES))} devices, not for {num_devices}")
        each = FINEST // num_devices
        return self._grams.unflatten(3, (num_devices, each)).unflatten(2, (num_devices, each)).mean((3, 5))

    def layer_norms(self) -> Tensor:
        """Length of the batch's mean gradient, by epoch and layer: (T, K)."""
        return self.gram(1)[:, :, 0, 0].clamp_min(0).sqrt()

    def per_device(self, num_devices: int) -> Tensor:
        """Mean gradients of N micro-batches of the first batch: (N, P)."""
        return self.first.unflatten(0, (num_devices, FINEST // num_devices)).mean(1)


def library_step(history: GradientHistory, clip_norm: float, z: float, num_devices: int, draws: Tensor) -> Tensor:
    """What the library releases of the first batch, as printed, with standard normal draws (N, P) of the devices: (P).

    Raises:
        UsageError: as `Mechanism`.
    """
    size = math.ceil(SENTENCES / num_devices)
    mechanism = Mechanism.as_printed(clip_norm, z, num_devices, size)
    rows = StackedGradients(history.per_device(num_devices), history.layout)
    noise = draws.sum(0) / math.sqrt(num_devices)
    return release(mechanism, 0, rows, history.layout, history.alpha, noise).gradient


def _batch_gradients(run: Trainer) -> Tensor:
    """(FINEST, P) gradients of the batch that the run meets next, with its own dropout."""
    now = run.progress
    [[batch]] = run.batches.devices(now.epoch, 0, now.step)
    dropout_key = int(stream(run.key, Purpose.DROPOUT, now.step).integers(2**63))
    parts = np.array_split(batch, FINEST)
    return stacked_gradients(run.model, run.train_data, parts, dropout_key, run.layout).gradients.cpu()


def _gram(gradients: Tensor, layout: Layout) -> Tensor:
    """(M, P) -> (K, M, M), float64."""
    layers = (gradients[:, columns].double() for columns in layout.columns)
    return torch.stack([layer @ layer.T for layer in layers])


@dataclass(frozen=True, eq=False)
class Decayed:
    """Noise against gradients, epoch by epoch.

    Attributes:
        gradient: (T,) length of the batch's mean gradient, neither scaled nor clipped.
        signal: (T,) length of the mean of the clipped gradients, which is what gets the noise.
        noise: by decay, (T,) expected length (root mean square) of the noise on the mean.
        same_cost: noise length of a run without decay that costs as much as the one chosen; None without noise.
        claimed, true: by "chosen" and "none", (T,) epsilon after 1, 2, ... epochs; `true` takes alpha to be public.
        guarantee: of all epochs with the decay chosen.
    """

    config: TrainConfig
    gradient: Array
    signal: Array
    noise: Mapping[Decay, Array]
    same_cost: float | None
    claimed: Mapping[str, Sequence[float | None]]
    true: Mapping[str, Sequence[float | None]]
    guarantee: Guarantee

    @property
    def chosen(self) -> Array:
        return self.noise[Decay(self.config.decay)]


def decayed(
    history: GradientHistory,
    as_printed: bool,
    clip_norm: float,
    z0: float,
    decay: str,
    tau: float,
    num_devices: int,
) -> Decayed:
    """How the noise of eDP-SGD would compare with these gradients, and what it would cost.

    Raises:
        UsageError: as `TrainConfig` and `Mechanism`, or a number of devices that the batch was not cut for.
    """
    config = replace(
        history.config, method="edp-sgd", as_printed=as_printed, clip_norm=clip_norm, z0=z0, decay=decay, tau=tau,
        num_devices=num_devices,
    )  # fmt: skip
    mechanism = config.mechanism()
    assert mechanism is not None  # the method is private
    alpha = history.alpha if as_printed else None
    bills = range(1, history.epochs + 1)
    verdicts = {
        name: [judge(described, epochs, history.delta) for epochs in bills]
        for name, described in (("chosen", mechanism), ("none", replace(mechanism, decay=Decay.NONE)))
    }
    noise = {one: _noise_lengths(history, replace(mechanism, decay=one), alpha) for one in Decay}
    z = np.array([mechanism.noise_multiplier_setting(t) for t in range(history.epochs)])
    same = math.sqrt(len(z)) / Schedule(z, np.ones(len(z))).mu if z.min() > 0 else None
    return Decayed(
        config,
        history.layer_norms().norm(dim=1).numpy(),
        _signals(history, mechanism, alpha),
        noise,
        None if same is None else float(noise[Decay.NONE][0] * same / z0),
        {name: [verdict.epsilon_claimed for verdict in run] for name, run in verdicts.items()},
        {name: [verdict.epsilon_if_alpha_public for verdict in run] for name, run in verdicts.items()},
        verdicts["chosen"][-1],
    )


def _signals(history: GradientHistory, mechanism: Mechanism, alpha: Tensor | None) -> Array:
    """Length of the mean clipped gradient by epoch: (T,)."""
    lengths = []
    for gram in history.gram(mechanism.num_devices):  # (K, N, N)
        norms = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().T
        factors = clip_factors(mechanism, norms, history.layout, alpha) / mechanism.num_devices
        lengths.append(float((factors @ gram.sum(0) @ factors).clamp_min(0).sqrt()))
    return np.array(lengths)


def _noise_lengths(history: GradientHistory, mechanism: Mechanism, alpha: Tensor | None) -> Array:
    layers, devices = len(history.sizes), mechanism.num_devices
    stds = (torch.tensor(noise_stds(mechanism, t, alpha, devices, layers)) for t in range(history.epochs))
    return np.array([float((history.sizes.sqrt() * std.double()).norm()) for std in stds])


# ---- Claimed and true ----------------------------------------------------------------------------------------------

CLAIMED, PRINTED, SOUND = "claimed", "as printed", "sound"
MANY = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, eq=False)
class Promise:
    """What the same z stands for: in the paper's accounting, as printed, and in the sound variant; alpha public.

    Attributes:
        multiplier: by name, noise over sensitivity of what one step releases.
        epsilon: by name; None where it overflows.
        curves: by name, epsilon over `MANY` numbers of devices at the same micro-batch size.
        guarantee: of Algorithm 1 as printed, alpha public.
    """

    z: float
    num_devices: int
    alpha_max: float
    micro_batch_size: int
    epochs: int
    delta: float
    multiplier: Mapping[str, float]
    epsilon: Mapping[str, float | None]
    curves: Mapping[str, Sequence[float | None]]
    guarantee: Guarantee

    def right(self, name: str) -> float:
        """The best chance to tell from one step whether a sentence was there (worst case, even odds)."""
        return float(ndtr(0.5 / self.multiplier[name])) if self.multiplier[name] else 1.0


def promise(z: float, num_devices: int, alpha_max: float, micro_batch_size: int, epochs: int, delta: float) -> Promise:
    """Algorithm 1 as printed and the sound variant at the same noise multiplier z, for so many epochs.

    Raises:
        UsageError: as `Mechanism` and `judge`.
    """
    printed, sound = _pair(z, num_devices, alpha_max, micro_batch_size)
    others = [_epsilons(z, devices, alpha_max, micro_batch_size, epochs, delta) for devices in MANY]
    return Promise(
        z,
        num_devices,
        alpha_max,
        micro_batch_size,
        epochs,
        delta,
        {CLAIMED: z, PRINTED: printed.noise_multiplier(0), SOUND: sound.noise_multiplier(0)},
        _epsilons(z, num_devices, alpha_max, micro_batch_size, epochs, delta),
        {name: [epsilons[name] for epsilons in others] for name in (CLAIMED, PRINTED, SOUND)},
        judge(printed, epochs, delta),
    )


def _epsilons(
    z: float, num_devices: int, alpha_max: float, micro_batch_size: int, epochs: int, delta: float
) -> dict[str, float | None]:
    printed, sound = _pair(z, num_devices, alpha_max, micro_batch_size)
    held = judge(printed, epochs, delta)
    return {CLAIMED: held.epsilon_claimed, PRINTED: held.epsilon, SOUND: judge(sound, epochs, delta).epsilon}


def _pair(z: float, num_devices: int, alpha_max: float, micro_batch_size: int) -> tuple[Mechanism, Mechanism]:
    printed = Mechanism.as_printed(1.0, z, num_devices, micro_batch_size, alpha=Alpha.PUBLIC, alpha_max=alpha_max)
    return printed, Mechanism.sound(1.0, z, num_devices, micro_batch_size)
