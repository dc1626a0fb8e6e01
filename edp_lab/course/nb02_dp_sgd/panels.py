"""The three panels of ``02_dp_sgd.ipynb``: a batch of gradients, a whole training, and what Adam divides by."""

from __future__ import annotations

from typing import Any

from edp_lab.course.kit.controls import choice, decades, number
from edp_lab.course.kit.old_panel import FigurePanel, Picture
from edp_lab.course.kit.text import python
from edp_lab.course.nb02_dp_sgd import compute as dpsgd
from edp_lab.course.nb02_dp_sgd import figures as dpsgd_figures
from edp_lab.course.nb02_dp_sgd import two_weights as dpsgd_training
from edp_lab.course.nb02_dp_sgd import words as dpsgd_words
from edp_lab.course.nb02_dp_sgd.compute import Cloud
from edp_lab.course.nb02_dp_sgd.two_weights import STEPS, Training
from edp_lab.three_phase.clipping import RULES

CLIP_NORMS = [stop for stop in decades(-2, 2) if 0.04 < stop <= 20]
MULTIPLIERS = [0.0, *[stop for stop in decades(-2, 2) if stop <= 20]]
EXAMPLES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
BATCHES = [2, 5, 10, 20, 40, 80, 160, 200, 400]
SEEDS = range(21)
RULE_TIPS = [
    "longer gradients become as long as C",
    "each coordinate cut to ±C",
    "every gradient becomes as long as C",
    "the thesis' Algorithm 8: the wrong way round",
]


def cloud_panel(clip_norm: float, z: float, examples: int, outliers: float, seed: int) -> FigurePanel:
    """Clipping as geometry: `result` is a `dpsgd.Cloud`."""
    controls = {
        "clip_norm": number("clip norm C", clip_norm, CLIP_NORMS, unit="gradient norm"),
        "z": number("noise multiplier z", z, MULTIPLIERS, unit="sensitivities"),
        "examples": number("batch size B", examples, EXAMPLES, unit="examples"),
        "outliers": number("share of outliers", outliers, [k / 50 for k in range(51)], unit="of 1"),
        "rule": choice("clip", "by norm", {name: name for name in RULES}, tooltips=RULE_TIPS),
        "seed": number("seed", seed, SEEDS, unit="another draw"),
    }
    return FigurePanel(
        "<h3>Clip, average, add noise</h3>What am I looking at? First, the gradient of every example of a batch, for a "
        "model with two weights, and what is made of them; then, how far the result is off, for every C.",
        controls,
        dpsgd.cloud,
        dpsgd_words.cloud_in_words,
        _cloud_command,
        [
            Picture(dpsgd_figures.cloud_figure, dpsgd_figures.update_cloud),
            Picture(dpsgd_figures.error_figure, dpsgd_figures.update_error),
        ],
    )


def training_panel(clip_norm: float, z: float, batch_size: int, optimizer: str, lr: float, seed: int) -> FigurePanel:
    """A whole training of two weights: `result` is a `dpsgd.Training`."""
    names = {dpsgd_figures.NAMES[name]: name for name in dpsgd_training.OPTIMIZERS}
    controls = {
        "clip_norm": number("clip norm C", clip_norm, CLIP_NORMS, unit="gradient norm"),
        "z": number("noise multiplier z", z, MULTIPLIERS, unit="sensitivities"),
        "batch_size": number("batch size B", batch_size, BATCHES, unit="people"),
        "optimizer": choice("optimizer", optimizer, names),
        "lr": number("learning rate", lr, decades(-2, 1), unit="no unit"),
        "gamma": number("floor γ′ (DP-AdamBC)", 1e-3, decades(-6, 0), unit="gradient²"),
        "sampling": choice("batches", "poisson", {"Poisson": "poisson", "shuffled": "shuffle"}),
        "seed": number("seed", seed, SEEDS, unit="another draw"),
    }
    return FigurePanel(
        "<h3>Thirty private steps</h3>What am I looking at? First, the way of two weights down the loss of a small "
        "classifier, without clip and noise, with the clip, with both; then, loss and ε step by step.",
        controls,
        dpsgd_training.training,
        dpsgd_words.training_in_words,
        _training_command,
        [
            Picture(dpsgd_figures.path_figure, dpsgd_figures.update_path),
            Picture(dpsgd_figures.learning_figure, dpsgd_figures.update_learning),
        ],
    )


def denominators_panel(noise_std: float, steps: int, gamma: float, seed: int) -> FigurePanel:
    """Adam's second moment under noise: `result` is a `dpsgd.Denominators`."""
    controls = {
        "noise_std": number("noise deviation", noise_std, [0.0, *decades(-3, 0)], unit="gradient"),
        "steps": number("steps so far", steps, [1, 2, 3, 5, 10, 20, 30, 50, 80], unit="steps"),
        "gamma": number("floor γ′", gamma, decades(-8, 0), unit="gradient²"),
        "seed": number("seed", seed, SEEDS, unit="another draw"),
    }
    return FigurePanel(
        "<h3>What Adam divides by</h3>What am I looking at? Every point is a weight; to the right those with large "
        "gradients. Above, what its average gradient is divided by; below, how far the true gradient then moves it.",
        controls,
        dpsgd.denominators,
        dpsgd_words.denominators_in_words,
        lambda result, **values: python(dpsgd.denominators, **values),
        [Picture(dpsgd_figures.denominators_figure, dpsgd_figures.update_denominators, "1 1 30rem")],
    )


def _cloud_command(result: Cloud, **values: Any) -> str:
    """The Python call; and, where there is an epsilon, the command line that says the same."""
    line = f"\n{dpsgd_words.account(result.z, epochs=1)}" if result.guarantee and result.guarantee.epsilon else ""
    return python(dpsgd.cloud, **values) + line


def _training_command(result: Training, **values: Any) -> str:
    """Likewise."""
    rate, line = result.mechanism.sampling_rate, ""
    if result.guarantee.epsilon is not None:
        bill: dict[str, Any] = (
            {"epochs": result.recipe.epochs} if rate is None else {"sampling_rate": rate, "steps": STEPS}
        )
        line = f"\n{dpsgd_words.account(result.mechanism.z0, **bill)}"
    return python(dpsgd_training.training, **values) + line
