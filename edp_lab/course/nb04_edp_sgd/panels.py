"""Panels of ``04_edp_sgd.ipynb`` and their data: claimed and guaranteed epsilon, Algorithm 1, noise decay.

    result = algorithm1(as_printed=True, alpha_large=1.0, alpha_small=0.1, z=1.0, num_devices=8)    # no side effects
    history = GradientHistory(TrainConfig("smart-home", size="small"), epochs=6)    # trains for a few seconds

Clip factors, noise and the released mean come from `edp_lab.training.dp_step`, epsilon from `edp_lab.privacy.judge`.
Both raise UsageError if a setting is invalid.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import (
    BATCH,
    DELTA,
    DEVICES,
    Array,
    decades,
    decay_of,
    devices,
    number,
    require,
    rng_of,
    variant,
)
from edp_lab.course.kit.figure import Figure, Mark, axis, line, log_axis, points, positive
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import (
    Tile,
    Words,
    account_of,
    at_least,
    claimed,
    epsilons,
    percent,
    plain,
    short,
    train_command,
)
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.privacy import Alpha, Decay, Guarantee, Mechanism, Schedule, Variant, judge
from edp_lab.privacy.csprng import dropout_key, key_from_seed
from edp_lab.privacy.foundations import check_positive
from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import clip_factors, noise_stds, release
from edp_lab.training.gradients import Layout, StackedGradients, layer_norms, stacked_gradients
from edp_lab.training.noise import float_noise
from edp_lab.training.private_step import layer_scales
from edp_lab.training.trainer import Trainer

words = Words(__file__)
figure = partial(fig.figure, height=380)
ALPHAS = decades(-2, 1)
TALL = 440  # height of two stacked plots
_after_an_epoch = lru_cache(1000)(lambda mechanism: judge(mechanism, 1, DELTA))  # for many positions of the sliders


# ---- Sound or printed ------------------------------------------------------------------------------------------------

CLAIMED_NAME, PRINTED_NAME, SOUND_NAME = "claimed", "as printed", "sound"
MANY = (1, 2, 4, 8, 16, 32, 64, 128)


class Promise(NamedTuple):
    """The same noise multiplier z as claimed in the paper, as printed, and in the sound variant.

    All values are for one epoch; alpha is public, except in `guarantee`.
    """

    printed: Mechanism  # Algorithm 1
    sound: Mechanism
    multiplier: Mapping[str, float]  # by name: noise divided by sensitivity in one step
    epsilon: Mapping[str, float | None]  # by name: epsilon, or None if it overflows
    curves: Mapping[str, Sequence[float | None]]  # by name: epsilon for each of `MANY`, at one micro-batch size
    pull: Array  # for each of `MANY`, the largest change of the mean by one sentence (C is 1)
    noise: Array  # for each of `MANY`, the standard deviation of the noise on the mean, as printed
    guarantee: Guarantee  # for Algorithm 1 as printed; alpha is private unless the largest is 1

    def right(self, name: str) -> float:
        """Largest probability of guessing right whether one step used a sentence (worst case, even odds)."""
        return float(ndtr(0.5 / self.multiplier[name])) if self.multiplier[name] else 1.0


def same_z(z: float, num_devices: int, alpha_max: float, micro_batch_size: int) -> Promise:
    """Compare Algorithm 1 as printed with the sound variant at the same noise multiplier z, for one epoch."""

    def mechanisms(devices: int) -> tuple[Mechanism, Mechanism]:
        printed = Mechanism.as_printed(1.0, z, devices, micro_batch_size, alpha=Alpha.PUBLIC, alpha_max=alpha_max)
        return printed, Mechanism.sound(1.0, z, devices, micro_batch_size)

    def epsilons(devices: int) -> dict[str, float | None]:
        printed, sound = map(_after_an_epoch, mechanisms(devices))
        return {
            CLAIMED_NAME: printed.claimed_epsilon,
            PRINTED_NAME: printed.conditional_epsilon,
            SOUND_NAME: sound.conditional_epsilon,
        }

    printed, sound = mechanisms(num_devices)
    multiplier = {CLAIMED_NAME: z, PRINTED_NAME: printed.noise_multiplier(0), SOUND_NAME: sound.noise_multiplier(0)}
    others = [epsilons(devices) for devices in MANY]
    curves = {name: [epsilon[name] for epsilon in others] for name in multiplier}
    sums = [(step.sensitivity(), step.noise_std(0)) for step, _ in map(mechanisms, MANY)]
    pull, noise = np.array(sums).T / MANY
    held = judge(replace(printed, alpha=Alpha.NONE if alpha_max == 1 else Alpha.PRIVATE), 1, DELTA)
    return Promise(printed, sound, multiplier, epsilons(num_devices), curves, pull, noise, held)


@panel("04")
def promise(z: float = 1.0, num_devices: int = 8) -> Panel:
    """Panel on claimed and guaranteed epsilon at the same z0: `result` is a `Promise`."""

    def command(result: Promise, **_: Any) -> str:
        """Return two `edp-lab account` commands: for the step as printed, and for the sound step."""
        of = (result.printed, result.sound)
        return "\n".join(account_of(mechanism, epochs=1, delta=DELTA) for mechanism in of)

    return Panel(
        "Sound or printed?",
        "How well one step hides a sentence, as claimed and as printed.",
        same_z,
        [draw_bells, draw_by_devices],
        words.promise,
        command,
        tiles=tell_promise,
        z=number("noise multiplier z0", z, decades(-2, 1)),
        num_devices=devices(num_devices, MANY),
        alpha_max=number("largest scale α", 1.0, ALPHAS),
        micro_batch_size=number("micro-batch size", 8, [1, 2, 4, 8, 16, 32, 64], unit="sentences", rare=True),
    )


def tell_promise(result: Promise) -> tuple[Tile, Tile, str]:
    """Return tiles with both epsilons, and a sentence on the success of an attack on one step."""
    claim, printed = (percent(result.right(name)) for name in (CLAIMED_NAME, PRINTED_NAME))
    z = at_least(result.multiplier[PRINTED_NAME]), short(result.multiplier[CLAIMED_NAME])
    sentence = f"Noise / sensitivity is {z[0]} as printed and {z[1]} as claimed"
    sentence += f": an attacker can guess right in {printed} and {claim} of cases."
    claim_tile, held = epsilons(result.guarantee)
    return claim_tile, held._replace(label="guaranteed, as printed", role="printed"), sentence


def draw_bells(result: Promise) -> Figure:
    """Plot the release of one step with and without a sentence, as the accountant assumes and as printed."""
    steps = np.linspace(-4, 4, 81)
    bell, half = np.exp(-(steps**2) / 2), 3.5 * max(result.multiplier.values())
    lines, titles = [], []
    for plot, name in enumerate((CLAIMED_NAME, PRINTED_NAME), 1):
        noise = result.multiplier[name]
        titles.append(f"{name}: {percent(result.right(name))} of guesses are right")
        output, place = max(noise, 1e-6) * steps, {**fig.at(plot), "showlegend": plot == 1}
        lines.append(line("without the sentence", PLAIN, x=output, y=bell, **place))
        lines.append(line("with it", NOISE, "dash", x=1 + output, y=bell, **place))
    span, density = [-half - 0.2, 1.2 + half], axis("density", [0, 1.1], showticklabels=False)
    axes = (
        (axis("", span, matches="x2", showticklabels=False), density),
        (axis("released value (1: pull of the sentence)", span), density),
    )
    layout = fig.plots(2, 1, [" "] * 2, axes=axes, vertical_spacing=0.14)
    for heading, text in zip(layout["annotations"], titles, strict=True):
        heading |= {"text": text, "font": {"size": 13}}
    title = "One step, with and without a sentence"
    return figure(title, *lines, height=TALL, hover="%{x:.3g}: %{y:.3g}", **layout)


def draw_by_devices(result: Promise) -> Figure:
    """Plot the noise on the mean, and epsilon, against the number of devices at the same z0."""
    as_claimed, printed, sound = map(positive, result.curves.values())
    needed = result.multiplier[CLAIMED_NAME] * result.pull
    claim = partial(line, CLAIMED_NAME, CLAIMED, "dash", symbol="square-open", x=MANY)
    private = result.guarantee.conditional_epsilon is None
    name = "as printed, if α were public" if private else "guaranteed, as printed"
    as_printed = partial(line, name, PRINTED, symbol="diamond", x=MANY)
    marks = [
        line("pull of one sentence", PLAIN, width=5, x=MANY, y=result.pull),
        claim(y=needed, showlegend=False),
        as_printed(y=result.noise, showlegend=False),
        claim(y=as_claimed, **fig.at(2)),
        as_printed(y=printed, **fig.at(2)),
        line("guaranteed, sound", HOLDS, "dot", symbol="circle", x=MANY, y=sound, **fig.at(2)),
        fig.vline(result.printed.num_devices, "x2", yref="paper"),
    ]
    lengths = log_axis("noise, pull (C = 1)", [*needed, *result.pull, *result.noise], labels=4)
    epsilon = log_axis(f"ε (at δ = {short(DELTA)})", [*as_claimed, *printed, *sound], labels=4)
    gpus = axis("GPUs N (same micro-batch size)", type="log", tickvals=MANY)
    axes = ({**gpus, "title": "", "matches": "x2", "showticklabels": False}, lengths), (gpus, epsilon)
    layout = fig.plots(2, 1, axes=axes, vertical_spacing=0.08)
    title = "Noise on the mean and ε, by number of GPUs"
    return figure(title, *marks, height=TALL, hover="N = %{x}: %{y:.3g}", **layout)


# ---- Algorithm 1, line by line ---------------------------------------------------------------------------------------

PLANE = Layout(("large", "small"), (slice(0, 1), slice(1, 2)))  # two layers of one weight
MEAN, SPREAD = np.array([3.0, 0.3]), np.array([4.0, 0.8])  # mean and spread of one sentence's gradient


class Stages(NamedTuple):
    """Gradients of N devices after each line of Algorithm 1, in a model of two layers with one weight each.

    The clip norm is 1.
    """

    mechanism: Mechanism  # treats alpha as public; the sound variant normalises clip norm and alpha
    alpha: Array  # (2,), layer scales as given
    points: Mapping[str, Array]  # by line, in the variant's order: (N, 2); device 0 has the first sentence
    scaled: Collection[str]  # lines after which gradients are in units of alpha
    kept: Array  # (N,), clip factors
    silent: Array  # (2,), the mean over devices without noise
    released: Array  # (2,), the mean with noise
    reach: Array  # (2,), centre of the ellipse of means that the first sentence can reach
    half_axes: Array  # (2,), half-axes of this ellipse: alpha / N
    noise: Array  # (2,), standard deviation of the noise on the mean, by layer
    guarantee: Guarantee  # for one epoch


def algorithm1(
    as_printed: bool,
    alpha_large: float,
    alpha_small: float,
    z: float,
    num_devices: int,
    pull: float = 0.0,
    seed: int = 0,
) -> Stages:
    """Compute one step on 64 synthetic sentences, split into N micro-batches.

    UsageError: see `Mechanism`; also for more than 64 devices, a scale of 0 or less, or a negative pull or seed.
    """
    for layer, scale in (("large layer", alpha_large), ("small layer", alpha_small)):
        check_positive(f"alpha of the {layer}", scale)
    alpha = torch.tensor([alpha_large, alpha_small], dtype=torch.float64)
    size, largest, unit = math.ceil(BATCH / max(num_devices, 1)), float(alpha.max()), alpha
    if as_printed:
        mechanism = Mechanism.as_printed(1.0, z, num_devices, size, alpha=Alpha.PUBLIC, alpha_max=largest)
    else:  # scales have maximum 1, and the clip norm absorbs the factor
        mechanism = Mechanism.sound(largest, z, num_devices, size, alpha=Alpha.PUBLIC)
        unit = alpha / largest
    gradients = _device_gradients(num_devices, pull, seed)
    factors = clip_factors(mechanism, layer_norms(gradients, PLANE), PLANE, unit)
    draws = float_noise(key_from_seed(seed), 0, 2 * num_devices, dtype=torch.float64).view(num_devices, 2)
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

    rows, total = [StackedGradients(gradients, PLANE)], draws.sum(0) / math.sqrt(num_devices)
    silent, released = (release(mechanism, 0, rows, PLANE, unit, y).gradient for y in (torch.zeros(2).double(), total))
    others = factors[1:] @ gradients[1:] / num_devices
    return Stages(
        mechanism, alpha.numpy(), {name: each.numpy() for name, each in held.items()},
        ("scale", "clip") if as_printed else ("scale", "clip", "noise"), factors.numpy(), silent.numpy(),
        released.numpy(), others.numpy(), alpha.numpy() / num_devices,
        np.array(noise_stds(mechanism, 0, unit, num_devices, 2)), judge(mechanism, 1, DELTA),
    )  # fmt: skip


def _device_gradients(num_devices: int, pull: float, seed: int) -> Tensor:
    """Mean gradients of N micro-batches of the same 64 sentences, shape (N, 2), float64."""
    require(num_devices <= BATCH, f"a batch of {BATCH} is too small for {num_devices} devices: lower N")
    require(0 <= pull < math.inf, f"the pull of the first sentence is {pull}: it must be 0 or more")
    sentences = MEAN + SPREAD * rng_of(seed, 3).standard_normal((BATCH, 2))
    if pull:
        sentences[0] = -pull * MEAN
    return torch.from_numpy(np.stack([part.mean(0) for part in np.array_split(sentences, num_devices)]))


@panel("04")
def stages(z: float = 1.0, num_devices: int = 8, seed: int = 0) -> Panel:
    """Panel on Algorithm 1, line by line, for two layers of one weight each: `result` is a `Stages`."""

    pulls = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0]
    return Panel(
        "Algorithm 1, line by line",
        "The gradients of N devices after each line, in a model of two weights.",
        partial(algorithm1, seed=seed),
        [(draw_stages, "1 1 100%")],
        words.stages,
        lambda result, **_: account_of(result.mechanism, epochs=1, delta=DELTA),
        tiles=tell_stages,
        joint=("as_printed", "alpha_large", "num_devices"),
        as_printed=variant(True),
        pull=number("pull of sentence 1", 0.0, pulls, unit="mean gradients"),
        alpha_large=number("α of the large layer", 1.0, ALPHAS),
        alpha_small=number("α of the small layer", 0.2, ALPHAS),
        z=number("noise multiplier z0", z, [0.0, *decades(-2, 1)]),
        num_devices=devices(num_devices),
    )


def tell_stages(result: Stages) -> tuple[Tile, Tile, str]:
    """Return tiles with the two meanings of z, and a sentence with the effect of one sentence and the noise."""
    mechanism, meant = result.mechanism, "noise / sensitivity"
    role = "printed" if mechanism.variant is Variant.AS_PRINTED else "holds"
    large, small = map(short, result.noise)
    spread = large if large == small else f"{large} on the large layer and {small} on the small layer"
    moved = f"One sentence can move the mean by {short(2 * result.half_axes.max())}."
    return (
        claimed(short(mechanism.z0), f"{meant}, as claimed", "z claimed"),
        Tile("effective z", at_least(mechanism.noise_multiplier(0)), f"{meant}, of the release", role),
        f"{moved} The noise on the mean has standard deviation {spread}.",
    )


TITLES = {
    "gradient": "gradients",
    "scale": "line 1: ÷ α",
    "clip": "line 2: clip to C",
    "rescale": "line 3: × α",
    "noise": "line 4: add noise",
}
SHAPE = np.array([1.5, 1.0])  # approximate width of a plot divided by its height


def draw_stages(result: Stages) -> Figure:
    """Plot every device's gradient after each line, and the release, with equal scales on both axes."""
    layout = fig.plots(2, 3, [" "] * 6, horizontal_spacing=0.1, vertical_spacing=0.25)
    marks: list[Mark] = []
    for place, (name, held) in enumerate(result.points.items(), 1):
        allowed = np.ones(2) if name in result.scaled else result.alpha
        # A large first gradient would leave no room for the others, so points outside are drawn at the edge.
        usual = [held] if place > 2 else [held[1:], [MEAN / (1 if place == 1 else result.alpha)]]
        window = _window([0, 0], *usual, *([[-allowed, allowed]] if place > 1 else []))
        _show(layout, place, TITLES[name], window)
        edges = (window + 1e-6 * (window[:, ::-1] - window)).T  # stay in the range after conversion to float32
        inside, on = np.clip(held, *edges), {**fig.at(place), "cliponaxis": False, "showlegend": place == 1}
        marks.append(points("device", PLAIN, "circle", 6, x=inside[1:, 0], y=inside[1:, 1], **on))
        marks.append(points("device 1", PRINTED, "diamond", 9, x=inside[:1, 0], y=inside[:1, 1], **on))
        if place > 1:
            dash = {"name": "allowed by C", "line": {"color": INK, "dash": "dash", "width": 1.5}}
            marks.append(_ellipse(np.zeros(2), allowed, place, showlegend=place == 2, **dash))
    reach, sides = result.reach, np.stack([result.half_axes, result.noise])
    _show(layout, 6, "line 5: the mean", _window(reach - 1.5 * sides, reach + 1.5 * sides))
    sentence = {"name": "one sentence", "line": {"color": PRINTED}, "fillcolor": PRINTED, "opacity": 0.25}
    noise = {"name": "noise", "line": {"color": NOISE, "dash": "dot", "width": 3}}
    (x, y), (u, v) = result.silent[:, None], result.released[:, None]
    marks += [
        points("mean", PLAIN, "square", 9, x=x, y=y, **fig.at(6)),
        points("released", INK, "x-thin-open", 12, x=u, y=v, **fig.at(6)),
        _ellipse(reach, result.half_axes, 6, layer="below", showlegend=True, **sentence),
        _ellipse(result.silent, result.noise, 6, layer="below", showlegend=True, **noise),
    ]
    margin = {"t": 98, "l": 56, "b": 36, "autoexpand": False}
    title = "Gradients after each line"
    return figure(title, *marks, hover="%{x:.3g}, %{y:.3g}", **layout | {"margin": margin})


def _window(*corners: Any) -> Array:
    """Ranges of both axes, shape (2, 2), for a plot with equal scales that shows all these points."""
    low, high = (end(np.vstack(corners), axis=0) for end in (np.min, np.max))
    half = (0.58 * max((high - low) / SHAPE) + 1e-12) * SHAPE
    return np.stack([(low + high) / 2 - half, (low + high) / 2 + half], axis=1)


def _show(layout: Figure, place: int, heading: str, window: Array) -> None:
    """Set the title and axes of a plot. Many axes are slow, so these have fixed ranges and margins."""
    layout["annotations"][place - 1] |= {"text": heading, "font": {"size": 13}}
    fixed = {"automargin": False, "fixedrange": True, "nticks": 4, "tickfont": {"size": 11}}
    ends = str(place) if place > 1 else ""
    for side, layer, span in zip("xy", ("large", "small"), window.tolist(), strict=True):
        outer = place > 3 if side == "x" else place % 3 == 1
        title = {"text": f"{layer} layer" if outer else "", "font": {"size": 11}, "standoff": 0}
        layout[f"{side}axis{ends}"] |= {"range": span, "title": title, **fixed}
    layout[f"yaxis{ends}"]["scaleanchor"] = f"x{ends}"


def _ellipse(centre: Array, half_axes: Array, place: int, **look: Any) -> Mark:
    corners = np.concatenate([centre - half_axes, centre + half_axes]).tolist()
    on = {"xref": f"x{place}", "yref": f"y{place}"}
    return {"type": "circle", **on, **dict(zip(("x0", "y0", "x1", "y1"), corners, strict=True)), **look}


# ---- Decay -----------------------------------------------------------------------------------------------------------

FINEST = 32  # number of the smallest micro-batches, which make up all larger ones


class GradientHistory:
    """A small model trained without noise, and the gradients of one batch at the start of each epoch.

    Only inner products of gradients are stored, by layer; the norms of all sums follow from these.

    Args:
        config: configuration of eDP-SGD; `plain` turns it into the settings of non-private training.
        epochs: number of training epochs.

    Attributes:
        first: gradients of the first batch, shape (FINEST, P).
        alpha: layer scales from the first batch, computed as in the paper, shape (K,).
        rows: rows of the run record, one per epoch.
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
        """Inner products of N devices' mean gradients by epoch and layer, shape (T, K, N, N).

        UsageError: the batch cannot be split evenly among this number of devices.
        """
        known = ", ".join(map(str, DEVICES))
        require(num_devices in DEVICES, f"this batch can be split among {known} devices, not {num_devices}")
        each = FINEST // num_devices
        return self._grams.unflatten(3, (num_devices, each)).unflatten(2, (num_devices, each)).mean((3, 5))

    def layer_norms(self) -> Tensor:
        """Norms of the batch's mean gradient by epoch and layer, shape (T, K)."""
        return self.gram(1)[:, :, 0, 0].clamp_min(0).sqrt()

    def per_device(self, num_devices: int) -> Tensor:
        """Mean gradients of N micro-batches of the first batch, shape (N, P)."""
        return self.first.unflatten(0, (num_devices, FINEST // num_devices)).mean(1)


def _batch_gradients(run: Trainer) -> Tensor:
    """Gradients of the run's next batch, with the dropout of this step, shape (FINEST, P)."""
    now = run.progress
    [[batch]] = run.batches.devices(now.epoch, 0, now.step)
    masks = dropout_key(run.key, now.step, False)
    parts = np.array_split(batch, FINEST)
    return stacked_gradients(run.model, run.train_data, parts, masks, run.layout).gradients.cpu()


class Decayed(NamedTuple):
    """Norms of noise and gradients by epoch."""

    config: TrainConfig
    gradient: Array  # (T,), norm of the batch's mean gradient, neither scaled nor clipped
    signal: Array  # (T,), norm of the mean of the clipped gradients, without noise
    noise: Array  # (T,), root-mean-square norm of the noise on the mean
    same_cost: float | None  # norm of the noise at the same epsilon without decay; None if there is no noise
    guarantee: Guarantee  # for all epochs


def decayed(
    history: GradientHistory, as_printed: bool, clip_norm: float, z0: float, decay: str, tau: float, num_devices: int
) -> Decayed:
    """Compare the noise of eDP-SGD with these gradients, and compute the guarantee.

    UsageError: see `TrainConfig` and `Mechanism`; also if the batch cannot be split evenly among the devices.
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
    """Norms of the mean clipped gradient by epoch, shape (T,)."""
    lengths = []
    for gram in history.gram(mechanism.num_devices):  # (K, N, N)
        norms = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().T
        factors = clip_factors(mechanism, norms, history.layout, alpha) / mechanism.num_devices
        lengths.append(float((factors @ gram.sum(0) @ factors).clamp_min(0).sqrt()))
    return np.array(lengths)


@panel("04")
def decay(
    history: GradientHistory, as_printed: bool, clip_norm: float, z0: float, decay: str, tau: float, num_devices: int
) -> Panel:
    """Panel that compares noise with the gradients of a short run: `result` is a `Decayed`."""

    def command(result: Decayed, **_: Any) -> str:
        """Return the command that trains with this noise; the curves are from a run without noise."""
        return train_command(result.config)

    return Panel(
        "Noise that decays",
        "Norms of the gradient and the noise in every epoch of a short run.",
        partial(decayed, history),
        [draw_decay],
        words.decay,
        command,
        tiles=tell_decay,
        joint=("decay", "tau", "z0"),
        idle=lambda result: ["tau"] if result.config.decay == Decay.NONE else [],
        as_printed=variant(as_printed),
        decay=decay_of(decay),
        tau=number("decay rate τ", tau, [k / 50 for k in range(51)], unit="per epoch"),
        z0=number("noise multiplier z0", z0, [0.0, *decades(-6, 1)]),
        num_devices=devices(num_devices),
        clip_norm=number("clip norm C", clip_norm, decades(-2, 2), unit="gradient ÷ α"),
    )


def tell_decay(result: Decayed) -> tuple[Tile, Tile, str]:
    """Return tiles with both epsilons, and a sentence on noise divided by signal in the first and last epoch."""
    first, last = (short(over) for over in (result.noise / result.signal.clip(1e-300))[[0, -1]])
    sentence = f"Over all weights, the noise has {first} times the signal's norm in the first epoch and {last} times"
    return *epsilons(result.guarantee), f"{sentence} in the last."


def draw_decay(result: Decayed) -> Figure:
    """Plot the norms of gradient, clipped gradient and noise against epochs, on a log axis."""
    epochs = list(range(len(result.gradient)))
    same = [] if result.config.decay == Decay.NONE or result.same_cost is None else epochs
    return figure(
        "Norms of noise and gradients",
        line("gradient", OTHER, "dot", symbol="circle-open", x=epochs, y=result.gradient),
        line("signal (clipped)", PLAIN, symbol="circle", x=epochs, y=result.signal),
        line("noise", NOISE, width=4, x=epochs, y=positive(result.noise)),
        line("no decay, equal ε", INK, "longdashdot", x=same, y=[result.same_cost] * len(same)),
        hover="t = %{x}: %{y:.3g}",
        xaxis=axis("epoch t (first is 0)", [-0.2, max(epochs[-1], 1) + 0.2], dtick=1),
        yaxis=log_axis("L2 norm", [*result.gradient, *result.signal, *result.noise]),
    )
