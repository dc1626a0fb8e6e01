"""Panels of ``02_dp_sgd.ipynb``: clipping, a training run of two weights, and per-example gradients.

    result = clip_batch(clip_norm=1.0, z=1.0, examples=100, outliers=0.1, rule="by norm", seed=0)    # deterministic
    run = train(clip_norm=1.0, z=2.0, batch_size=20, lr=1.0, sampling="poisson")

Step, batches, clipping, noise and epsilon come from `edp_lab.training`, `edp_lab.three_phase` and
`edp_lab.privacy`, which also raise UsageError if a setting is invalid.
"""

from __future__ import annotations

import math
import timeit
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import (
    DELTA,
    Array,
    check_option,
    check_seed,
    check_share,
    choice,
    decades,
    number,
    rng_of,
    seed_of,
)
from edp_lab.course.kit.figure import Figure, axis, line, logs, points, positive
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Tile, Words, account_of, at_most, claimed, holds, short
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import HOLDS, INK, NOISE, OTHER, PLAIN
from edp_lab.errors import check_whole
from edp_lab.models.ghost_clipping.bookkeeping import Memory
from edp_lab.privacy import Guarantee, Mechanism, judge, releases_by_epoch
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.privacy.foundations import check_positive
from edp_lab.three_phase.classifier import RULES
from edp_lab.training.batches import Batches
from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import release
from edp_lab.training.gradients import Layout, StackedGradients, model_gradients, plain_gradient
from edp_lab.training.noise import float_noise
from edp_lab.training.trainer import Trainer

words = Words(__file__)
figure = partial(fig.figure, height=360)


def _clip_and_noise(clip_norm: float, z: float) -> dict[str, Any]:
    stops = [stop for stop in decades(-2, 2) if stop <= 20]
    return {
        "clip_norm": number("clip norm C", clip_norm, [stop for stop in stops if stop > 0.04], unit="gradient norm"),
        "z": number("noise multiplier z", z, [0.0, *stops], unit="sensitivities"),
    }


def _account(result: Cloud | Training, **bill: Any) -> str:
    """`edp-lab account` command for the guaranteed epsilon of per-example DP-SGD; "" if nothing is guaranteed."""
    if result.guarantee is None or result.guarantee.conditional_epsilon is None:
        return ""
    return account_of(result.mechanism, delta=DELTA, **bill)


def _held(guarantee: Guarantee | None, of: str) -> Tile:
    """Tile with the guaranteed epsilon."""
    if guarantee is None or guarantee.conditional_epsilon is None:
        return Tile("guaranteed", "none", of, "printed")
    return holds(f"ε = {at_most(guarantee.conditional_epsilon)}", f"{of}, with a secret seed, δ = {short(DELTA)}")


# ---- The gradients of a batch, one by one --------------------------------------------------------------------------

LOOP, BOOKS, WHOLE = "one pass per example", "one pass, book-keeping", "one pass, no clipping"


class PerExample(NamedTuple):
    """Gradient norms of one batch of a small model, and the time that each method takes."""

    norms: Mapping[int, Array]  # by micro-batch size b: shape (B / b,), L2 norms of the mean gradients
    disagreement: float  # largest relative difference between the norms from book-keeping and from a loop
    seconds: Mapping[str, float]  # per gradient: `LOOP` and `BOOKS` clip each example, `WHOLE` is plain SGD


def per_example(config: TrainConfig, epochs: int) -> PerExample:
    """Measure gradients of the first batch after `epochs` epochs, in micro-batches of 1, 4, 16 and 64 examples.

    Args:
        config: configuration of non-private training (method "sgd").
    """
    corpus = load_corpus(config.corpus)
    run = Trainer(config, corpus, split(corpus, config.seed))
    for _ in range(epochs):
        run.epoch()
    [[batch]] = run.batches.devices(run.progress.epoch, 0, run.progress.step)
    out, memory = torch.zeros(run.layout.size), Memory()

    def clipped(size: int, naive: bool) -> Array:
        parts = np.array_split(batch, max(1, len(batch) // size))
        norms = []
        for some in model_gradients(run.model, run.train_data, parts, None, run.layout, naive, memory):
            norms.append(some.norms().norm(dim=1))
            some.add_weighted_sum((1 / norms[-1]).clamp(max=1.0), out)
        return torch.cat(norms).numpy()

    norms = {size: clipped(size, naive=False) for size in (1, 4, 16, 64)}  # also warms up
    ways = {
        LOOP: lambda: clipped(1, naive=True),
        BOOKS: lambda: clipped(1, naive=False),
        WHOLE: lambda: plain_gradient(run.model, run.train_data, batch, None, 1.0),
    }
    seconds = {name: min(timeit.repeat(way, number=1, repeat=2)) for name, way in ways.items()}
    return PerExample(norms, float(np.max(np.abs(norms[1] / clipped(1, naive=True) - 1))), seconds)


# ---- Clipping as geometry ------------------------------------------------------------------------------------------

MOST = 2000  # maximum number of examples
USUAL, ODD = np.array([1.2, 0.8]), np.array([-3.0, 4.0])  # mean gradients of usual examples and of outliers
CLIPS = np.geomspace(0.05, 20, 40)


class Cloud(NamedTuple):
    """Per-example gradients of a model with two weights, before and after clipping, and the noisy mean."""

    mechanism: Mechanism  # per-example DP-SGD with clip norm C and noise multiplier z
    rule: str  # how gradients are bounded: a key of `edp_lab.three_phase.classifier.RULES`
    gradients: Array  # (B, 2)
    clipped: Array  # (B, 2)
    released: Array  # (2,), the mean of the clipped gradients plus noise
    sensitivity: float  # largest change of the sum of clipped gradients by one example; inf if unbounded
    noise_std: float  # standard deviation of the noise on each coordinate of the mean
    biases: Array  # (len(CLIPS),), distance by which clipping at each of `CLIPS` moves the mean
    noises: Array  # (len(CLIPS),), root-mean-square norm of the noise; inf if the sensitivity is infinite
    guarantee: Guarantee | None  # for this one release; None if the rule does not bound gradients

    @property
    def means(self) -> Array:
        """Mean gradients before and after clipping, shape (2, 2)."""
        return np.stack([self.gradients.mean(0), self.clipped.mean(0)])

    @property
    def bias(self) -> float:
        """Distance by which clipping moves the mean."""
        before, after = self.means
        return float(np.linalg.norm(after - before))


def clip_batch(clip_norm: float, z: float, examples: int, outliers: float, rule: str, seed: int) -> Cloud:
    """Clip a batch's gradients by a rule, average them, and add noise of standard deviation z times sensitivity / B.

    The gradients are synthetic, with a share of distant outliers; a larger batch starts with the same examples. If the
    rule's sensitivity is infinite, the noise is computed for a sensitivity of C and hides nothing. UsageError: C is not
    positive, z or the seed is negative, `examples` is not from 1 to 2,000, or the share or the rule is invalid.
    """
    check_option("rule", rule, RULES)
    chosen, mechanism = RULES[rule], Mechanism.sound(clip_norm, z, 1, 1)
    check_whole("the number of examples", examples, 1, MOST)
    check_share("outliers", outliers)
    rng = rng_of(seed, 2)
    spread, odd = rng.standard_normal((MOST, 2)), rng.random(MOST) < outliers
    gradients = torch.from_numpy((np.where(odd[:, None], ODD, USUAL) + spread)[:examples])
    clipped = chosen.clip(gradients, clip_norm)
    sensitivity = chosen.sensitivity(clip_norm, 2)
    bounded = math.isfinite(sensitivity)
    std = z * (sensitivity if bounded else clip_norm) / examples
    noise = std * float_noise(key_from_seed(seed), 0, 2, dtype=torch.float64)
    means = torch.stack([chosen.clip(gradients, float(other)).mean(0) for other in CLIPS])
    sensitivities = np.array([chosen.sensitivity(float(other), 2) for other in CLIPS])
    return Cloud(
        mechanism,
        rule,
        gradients.numpy(),
        clipped.numpy(),
        released=(clipped.mean(0) + noise).numpy(),
        sensitivity=sensitivity,
        noise_std=std,
        biases=(means - gradients.mean(0)).norm(dim=1).numpy(),
        noises=math.sqrt(2) * (z * sensitivities if bounded else sensitivities) / examples,
        guarantee=judge(mechanism, 1, DELTA) if bounded else None,
    )


@panel("02")
def cloud(clip_norm: float = 1.0, z: float = 2.0, examples: int = 10, outliers: float = 0.1, seed: int = 0) -> Panel:
    """Panel on the geometry of clipping: `result` is a `Cloud`."""
    sizes = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
    tips = [
        "larger gradients are scaled down to norm C",
        "each coordinate is limited to ±C",
        "every gradient is scaled to norm C",
        "Algorithm 8 of the thesis, with its reversed condition",
    ]
    return Panel(
        "Clip, average, add noise",
        "Gradients of one batch in a model with two weights, the released mean, and its error for every C.",
        clip_batch,
        [draw_cloud, draw_error],
        words.cloud,
        account=partial(_account, epochs=1),
        tiles=tell_cloud,
        **_clip_and_noise(clip_norm, z),
        examples=number("batch size B", examples, sizes, unit="examples"),
        outliers=number("share of outliers", outliers, [k / 50 for k in range(51)], unit="of 1"),
        rule=choice("clip", "by norm", list(RULES), tooltips=tips),
        seed=seed_of(seed),
    )


def tell_cloud(result: Cloud) -> tuple[Tile, Tile, str]:
    """Return tiles with the error of the mean and the guarantee of one release, and a sentence."""
    bias, noise = result.bias, math.sqrt(2) * result.noise_std
    off = Tile("error", short(math.hypot(bias, noise)), f"{short(bias)} from clipping, {short(noise)} from noise")
    tiles = off, _held(result.guarantee, "one release")
    if result.guarantee is None:
        return *tiles, "This rule does not bound gradients, so the noise protects nobody."
    if max(bias, noise) < 1e-12:
        return *tiles, "Neither clipping nor noise moves the mean."
    return *tiles, f"Clipping moves the mean {'more' if bias > noise else 'less'} than the noise does."


SHOWN = 200  # examples shown in the figure of a cloud
CIRCLE = np.stack([wave(np.linspace(0, 2 * np.pi, 73)) for wave in (np.cos, np.sin)], axis=1)  # closed, of radius 1
SQUARE = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1], [1, 1]])


def draw_cloud(result: Cloud) -> Figure:
    """Plot per-example gradients before and after clipping, their means, and the released mean."""
    before, after = result.gradients[:SHOWN], result.clipped[:SHOWN]
    moves = np.stack([before, after, np.full_like(before, np.nan)], axis=1).reshape(-1, 2)  # separate lines
    bound = result.mechanism.clip_norm * (SQUARE if result.rule == "by value" else CIRCLE)
    noise = result.means[1] + 2 * result.noise_std * CIRCLE
    ticks: dict[str, Any] = {"dtick": 2, "constrain": "domain"}
    return figure(
        "A batch of gradients",
        line("", "#888", width=0.7, **_xy(moves), hoverinfo="skip", showlegend=False),
        points("gradient", OTHER, "circle-open", 6, **_xy(before)),
        points("clipped", PLAIN, "circle", 4, **_xy(after)),
        line("", INK, "dash", width=1.5, **_xy(bound), hoverinfo="skip", showlegend=False),
        fig.note("C", x=0, y=-result.mechanism.clip_norm, yanchor="top"),
        line("bias", PLAIN, symbol="square-open", size=13, **_xy(result.means)),
        points("mean", HOLDS, "star", 11, **_xy(result.means[:1])),
        line("noise", NOISE, **_xy(noise)),
        points("released", INK, "x-thin-open", 8, edge=2.5, **_xy(result.released[None])),
        hover="%{x:.3g}, %{y:.3g}",
        xaxis=axis("gradient of weight 1", [-5, 4], **ticks),
        yaxis=axis("gradient of weight 2", [-2.5, 6.5], scaleanchor="x", **ticks),
    )


def _xy(rows: Array) -> dict[str, Any]:
    """Convert points of shape (n, 2) to the coordinates of a trace."""
    return {"x": rows[:, 0], "y": rows[:, 1]}


def draw_error(result: Cloud) -> Figure:
    """Plot the error of the released mean against C: from clipping, from noise, and from both."""
    both = np.hypot(result.biases, result.noises)
    return figure(
        "Error of the released mean",
        line("from clipping", PLAIN, "dash", x=CLIPS, y=positive(result.biases)),
        line("from noise", NOISE, "dot", x=CLIPS, y=positive(result.noises)),
        line("from both", INK, width=3, x=CLIPS, y=positive(both)),
        fig.vline(result.mechanism.clip_norm),
        hover="C = %{x:.3g}: %{y:.3g}",
        xaxis=logs("clip norm C", np.log10(CLIPS[[0, -1]])),
        yaxis=logs("distance to the mean", [-3, 1.2]),
    )


# ---- A whole training run: two weights, thirty steps -----------------------------------------------------------------

PLANE = Layout(("w",), (slice(0, 2),))  # a model of two weights
PEOPLE, STEPS = 400, 30
START, TRUTH = np.array([-0.8, -1.5]), np.array([1.0, 2.0])
SCALES = np.array([2.0, 0.5])  # scales of the two features: one weight is easier to learn than the other
SAMPLED = {"poisson": "Poisson", "shuffle": "shuffled"}


class Training(NamedTuple):
    """Logistic regression with two weights, trained in three ways.

    `paths` and `losses` have the keys "plain" (no clipping, no noise), "clipped" (no noise) and "private" (DP-SGD).
    """

    batch_size: int
    sampling: str
    mechanism: Mechanism
    paths: Mapping[str, Array]  # (STEPS + 1, 2), weights after each step
    losses: Mapping[str, Array]  # (STEPS + 1,), mean loss over all people
    guarantee: Guarantee  # for all steps, with the batches as drawn
    billed: Guarantee  # for all steps, if the batches were Poisson samples
    passes: int  # passes over the data by shuffled batches, including an incomplete one


def train(clip_norm: float, z: float, batch_size: int, lr: float, sampling: str, seed: int = 0) -> Training:
    """Train for thirty steps; each batch has `batch_size` of 400 people (on average, if Poisson).

    UsageError: see `edp_lab.privacy.Mechanism`; also if the sampling is unknown, the batch size is not from 1 to 400,
    lr is not positive and finite, or the seed is negative.
    """
    check_whole("the batch size", batch_size, 1, PEOPLE)
    check_option("sampling", sampling, SAMPLED)
    check_seed(seed)
    check_positive("the learning rate", lr)
    mechanism = _mechanism(clip_norm, z, batch_size, sampling)
    silent = _mechanism(clip_norm, 0.0, batch_size, sampling)
    settings = {"plain": None, "clipped": silent, "private": mechanism}
    paths = {name: _path(each, batch_size, lr, sampling, seed) for name, each in settings.items()}
    losses = {name: loss(path) for name, path in paths.items()}
    guarantee, billed = (_judged(clip_norm, z, batch_size, drawn) for drawn in (sampling, "poisson"))
    return Training(batch_size, sampling, mechanism, paths, losses, guarantee, billed, _passes(batch_size))


def _mechanism(clip_norm: float, z: float, batch_size: int, sampling: str) -> Mechanism:
    return Mechanism.sound(clip_norm, z, 1, 1, sampling_rate=batch_size / PEOPLE if sampling == "poisson" else None)


@lru_cache(maxsize=100)
def _judged(clip_norm: float, z: float, batch_size: int, sampling: str) -> Guarantee:
    """Guarantee after all steps; with disjoint batches, an incomplete pass counts as a whole pass."""
    mechanism = _mechanism(clip_norm, z, batch_size, sampling)
    releases = releases_by_epoch(mechanism, steps=STEPS) if sampling == "poisson" else _passes(batch_size)
    return judge(mechanism, releases, DELTA)


def _passes(batch_size: int) -> int:
    """Number of passes over the data by shuffled batches, including an incomplete one."""
    return math.ceil(STEPS / math.ceil(PEOPLE / batch_size))


def loss(weights: Array) -> Array:
    """Mean logistic loss over all people, in nats; weights of shape (..., 2) have losses of shape (...)."""
    features, labels = people()
    scores = torch.from_numpy(np.ascontiguousarray(weights)) @ features.T
    return np.asarray((nn.functional.softplus(scores) - labels * scores).mean(-1))


@lru_cache(maxsize=1)
def people() -> tuple[Tensor, Tensor]:
    """Features of shape (n, 2) and labels 0 or 1 of shape (n,); they are the same for every seed."""
    rng = rng_of(0, 2)
    features = rng.standard_normal((PEOPLE, 2)) * SCALES
    labels = rng.random(PEOPLE) < expit(features @ TRUTH)
    return torch.from_numpy(features), torch.from_numpy(labels.astype(np.float64))


def gradients(features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Gradients of each person's loss, shape (B, 2)."""
    return (torch.sigmoid(features @ weights) - labels)[:, None] * features


@lru_cache(maxsize=64)
def _steps(batch_size: int, sampling: str, seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each step: features of shape (B, 2), labels of shape (B,), and standard normal noise of shape (2,)."""
    (features, labels), key = people(), key_from_seed(seed)
    drawn, steps = Batches(key, PEOPLE, batch_size, 1, 1, sampling, per_example=False), []
    for step in range(STEPS):
        part = drawn.devices(*divmod(step, drawn.steps_per_epoch), step)[0][0]
        steps.append((features[part], labels[part], float_noise(key, step, 2, dtype=torch.float64)))
    return steps


@lru_cache(maxsize=1000)
def _path(mechanism: Mechanism | None, batch_size: int, lr: float, sampling: str, seed: int) -> Array:
    """Initial weights and weights after each step, shape (STEPS + 1, 2); no mechanism means no clipping or noise."""
    weights, path = torch.from_numpy(START), [START]
    for features, labels, noise in _steps(batch_size, sampling, seed):
        each = gradients(features, labels, weights)
        if mechanism is None:
            mean = each.sum(0) / batch_size
        else:
            rows = [StackedGradients(each, PLANE)]
            mean = release(mechanism, 0, rows, PLANE, None, noise, divisor=batch_size).gradient
        weights = weights - lr * mean
        path.append(weights.numpy())
    return np.stack(path)


@panel("02")
def training(clip_norm: float, z: float, batch_size: int, lr: float) -> Panel:
    """Panel on a training run of two weights: `result` is a `Training`."""

    def account(result: Training) -> str:
        return _account(result, **{"steps": STEPS} if result.sampling == "poisson" else {"epochs": result.passes})

    return Panel(
        "Thirty private steps",
        "The paths of two weights during the training of a small classifier.",
        train,
        [draw_path],
        words.training,
        account=account,
        tiles=tell_training,
        joint=("z", "batch_size"),
        **_clip_and_noise(clip_norm, z),
        batch_size=number("batch size B", batch_size, [2, 5, 10, 20, 40, 80, 160, 200, 400], unit="people"),
        lr=number("learning rate", lr, decades(-2, 1)),
        sampling=choice("batches", "poisson", {"Poisson": "poisson", "shuffled": "shuffle"}),
    )


def tell_training(result: Training) -> tuple[Tile, Tile, str]:
    """Return tiles with epsilon for Poisson batches and for the batches as drawn, and a sentence on the losses."""
    billed, private, plain = result.billed.conditional_epsilon, result.losses["private"][-1], result.losses["plain"][-1]
    claim = claimed("none" if billed is None else f"ε = {at_most(billed)}", "claimed by many programs", "as if Poisson")
    sentence = f"Private training ends at a loss of {d(private)}; without privacy, the loss is {d(plain)}."
    return claim, _held(result.guarantee, f"{SAMPLED[result.sampling]} batches"), sentence


WINDOW = (-1.6, 4.4), (-2.6, 4.6)
PATHS: dict[str, dict[str, Any]] = {
    "plain": {"name": "no privacy", "color": PLAIN, "dash": "solid", "symbol": "circle"},
    "clipped": {"name": "clip only", "color": OTHER, "dash": "dash", "symbol": "square"},
    "private": {"name": "clip and noise", "color": NOISE, "dash": "dot", "symbol": "diamond"},
}


def draw_path(result: Training) -> Figure:
    """Plot contours of the loss over both weights, and the training paths."""
    landscape = {
        "type": "contour", **_losses(), "line": {"width": 0.6, "color": "#888"}, "showscale": False,
        "showlegend": False, "contours": {"start": 0.44, "end": 2.4, "size": 0.08, "coloring": "none"},
        "hovertemplate": "loss %{z:.2f}" + fig.ALONE,
    }  # fmt: skip
    text = {"text": ["start"], "textposition": "bottom right", "mode": "markers+text"}
    return figure(
        "Weights and loss in thirty steps",
        landscape,
        *(line(**PATHS[name], size=5, width=2, **_xy(path)) for name, path in result.paths.items()),
        fig.ring(11, **_xy(START[None]), hoverinfo="skip", **text),
        hover="%{x:.2f}, %{y:.2f}",
        xaxis=axis("weight 1 (large feature)", WINDOW[0]),
        yaxis=axis("weight 2 (small feature)", WINDOW[1]),
    )


@lru_cache(maxsize=1)
def _losses() -> dict[str, Array]:
    x, y = (np.linspace(*side, 49) for side in WINDOW)
    return {"x": x, "y": y, "z": loss(np.stack(np.meshgrid(x, y), axis=-1))}
