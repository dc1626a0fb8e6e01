"""The three panels of ``03_edp_sgd.ipynb``: Algorithm 1 line by line, its decay, and what is claimed and true."""

from __future__ import annotations

from functools import partial
from typing import Any

from edp_lab.course.kit.panel import Control, choice, decades, number
from edp_lab.course.kit.run_panel import FigurePanel, Picture
from edp_lab.course.nb00_start import compute as start
from edp_lab.course.nb01_coins.words import python
from edp_lab.course.nb03_edp_sgd import compute as steps
from edp_lab.course.nb03_edp_sgd import figures as steps_figures
from edp_lab.course.nb03_edp_sgd import words as steps_words
from edp_lab.course.nb03_edp_sgd.compute import Decayed, GradientHistory, Stages
from edp_lab.privacy import Decay

CLIP_NORMS = [stop for stop in decades(-2, 2) if stop <= 20]
MULTIPLIERS = [0.0, *decades(-6, 1)]
ALPHAS = [stop for stop in decades(-2, 1)]
DEVICES = [1, 2, 4, 8, 16, 32]
PULLS = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0]


def stage_panel(clip_norm: float, z: float, num_devices: int, seed: int) -> FigurePanel:
    """Algorithm 1 line by line on two layers of one weight: `result` is a `steps.Stages`."""
    controls = {
        "as_printed": _variant(True),
        "alpha_large": number("scale α, large layer", 1.0, ALPHAS, unit="no unit"),
        "alpha_small": number("scale α, small layer", 0.2, ALPHAS, unit="no unit"),
        "clip_norm": _clip_norm(clip_norm),
        "z": number("noise multiplier z", z, [0.0, *decades(-2, 1)], unit="no unit"),
        "num_devices": _devices(num_devices),
        "pull": number("pull of sentence 1", 0.0, PULLS, unit="mean gradients"),
        "seed": number("seed", seed, range(21), unit="another draw"),
    }

    def command(result: Stages, **values: Any) -> str:
        line = f"\n{steps_words.stages_command(result)}" if result.guarantee.epsilon is not None else ""
        return python("steps", steps.stages, **values) + line

    return FigurePanel(
        "<h3>Algorithm 1, line by line</h3>What am I looking at? First, the gradients of N devices (one point each) "
        "after each line, in a model of two layers with one weight each; then their mean, and the noise on it.",
        controls,
        steps.stages,
        steps_words.stages_in_words,
        command,
        [
            Picture(steps_figures.stages_figure, steps_figures.update_stages, "3 1 34rem"),
            Picture(steps_figures.mean_figure, steps_figures.update_mean, "2 1 22rem"),
        ],
    )


def decay_panel(
    history: GradientHistory,
    as_printed: bool,
    clip_norm: float,
    z0: float,
    decay: str,
    tau: float,
    num_devices: int,
) -> FigurePanel:
    """Noise against the gradients of a short run: `result` is a `steps.Decayed`."""
    controls = {
        "as_printed": _variant(as_printed),
        "clip_norm": _clip_norm(clip_norm),
        "z0": number("noise multiplier z0", z0, MULTIPLIERS, unit="no unit"),
        "decay": choice("decay of the noise", decay, {str(one): str(one) for one in Decay}),
        "tau": number("decay rate τ", tau, [k / 50 for k in range(51)], unit="per epoch"),
        "num_devices": _devices(num_devices),
    }

    def command(result: Decayed, **_: Any) -> str:
        told = "# trains with these values; the curves come from a run without noise"
        return f"{told}\n{start.command(result.config)}"

    return FigurePanel(
        "<h3>Noise that decays</h3>What am I looking at? First, how long the gradient of a batch is in every epoch of "
        "a short run, and how long the noise would be; then, what the noise costs in privacy.",
        controls,
        partial(steps.decayed, history),
        steps_words.decay_in_words,
        command,
        [
            Picture(steps_figures.decay_figure, steps_figures.update_decay),
            Picture(steps_figures.spent_figure, steps_figures.update_spent),
        ],
    )


def promise_panel(z: float, num_devices: int, epochs: int) -> FigurePanel:
    """Sound or printed: `result` is a `steps.Promise`."""
    controls = {
        "z": number("noise multiplier z", z, decades(-2, 1), unit="no unit"),
        "num_devices": number("GPUs N", num_devices, [1, 2, 4, 8, 16, 32, 64, 128], unit="devices"),
        "alpha_max": number("largest scale α", 1.0, ALPHAS, unit="no unit"),
        "micro_batch_size": number("micro-batch size", 8, [1, 2, 4, 8, 16, 32, 64], unit="sentences"),
        "epochs": number("epochs", epochs, [1, 2, 3, 5, 8, 12, 20, 30, 40], unit="epochs"),
        "delta": number("δ", steps.DELTA, decades(-9, -2), unit="probability"),
    }
    return FigurePanel(
        "<h3>Sound or printed?</h3>What am I looking at? First, what may come out of one step without a sentence and "
        "with it, if the noise were what z says, and as it is; then, what ε that makes, for every N.",
        controls,
        steps.promise,
        steps_words.promise_in_words,
        steps_words.promise_command,
        [
            Picture(steps_figures.bells_figure, steps_figures.update_bells),
            Picture(steps_figures.devices_figure, steps_figures.update_devices),
        ],
    )


def _variant(as_printed: bool) -> Control:
    tips = ["Algorithm 1 of the paper, verbatim", "noise in the scaled space, in proportion to the true sensitivity"]
    return choice("variant", as_printed, {"as printed": True, "sound": False}, tooltips=tips)


def _clip_norm(clip_norm: float) -> Control:
    return number("clip norm C", clip_norm, CLIP_NORMS, unit="gradient ÷ α")


def _devices(num_devices: int) -> Control:
    return number("GPUs N", num_devices, DEVICES, unit="devices")
