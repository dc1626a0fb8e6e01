"""What ``02_dp_sgd.ipynb`` says in words: read-outs beside sliders (HTML), tables, commands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from html import escape

import numpy as np

from edp_lab.course.kit.text import at_most
from edp_lab.course.kit.text import digits as d
from edp_lab.course.nb02_dp_sgd.compute import DELTA, LOOP, Cloud, Denominators, PerExample
from edp_lab.course.nb02_dp_sgd.figures import NAMES
from edp_lab.course.nb02_dp_sgd.two_weights import PEOPLE, STEPS, Training, Tuned
from edp_lab.privacy import Guarantee

# ---- Beside the sliders --------------------------------------------------------------------------------------------

BOUNDS = {
    "by norm": "Clipped by norm, what is longer than C becomes as long as C and keeps its direction.",
    "by value": "Clipped by value, each coordinate is cut to ±C: the bound is a square, and gradients turn.",
    "normalising": "Normalised, every gradient becomes as long as C, the short ones too.",
    "as printed": "Algorithm 8 as printed lengthens the short ones and lets the long ones through.",
}


def cloud_in_words(result: Cloud) -> str:
    """The read-out beside the sliders, as HTML."""
    before, after = float(np.linalg.norm(result.mean)), float(np.linalg.norm(result.clipped_mean))
    clip = (
        f"C = {d(result.clip_norm)} shortens <b>{result.shortened} of {result.examples}</b> gradients. "
        f"{BOUNDS[result.rule]}"
    )
    bias = (
        f"<b>Bias:</b> the mean moves by {d(result.bias)}, from length {d(before)} to {d(after)}, and turns by "
        f"{d(_angle(result))}°."
    )
    if result.guarantee is None:
        sensitivity = (
            "<b>Sensitivity:</b> none. One example can move the sum as far as it likes, so noise of z C hides nothing: "
            "<b>no guarantee</b>."
        )
        return _paragraphs(clip, bias, sensitivity)
    noise = (
        f"<b>Noise:</b> one example moves the sum by {d(result.sensitivity)} at most (its sensitivity). Noise of z = "
        f"{d(result.z)} times that, divided by B = {result.examples}, has deviation <b>{d(result.noise_std)}</b> on "
        f"each coordinate of the mean, and length {d(math.sqrt(2) * result.noise_std)}."
    )
    best = (
        f"Bias and noise together are smallest near C = {d(result.best_clip)}. (That was found by looking at private "
        "gradients: for a real run it is not free.)"
        if result.z > 0
        else "Without noise, the larger C the better."
    )
    cost = f"One such release: {_cost(result.guarantee, 'Gaussian DP, exact; zero-out: one gradient becomes 0')}"
    return _paragraphs(clip, bias, noise, best) + cost


def training_in_words(result: Training) -> str:
    """The read-out beside the sliders, as HTML."""
    poisson = result.recipe.sampling == "poisson"
    losses = {name: d(float(values[-1])) for name, values in result.losses.items()}
    learnt = (
        f"{NAMES[result.recipe.optimizer]} reaches a loss of <b>{losses['private']}</b> with clip and noise (right on "
        f"{result.accuracy:.0%}), {losses['clipped']} with the clip only, {losses['plain']} with neither. Noise on "
        f"each weight's mean gradient: z C / B = {d(result.noise_std)}."
    )
    each = f"{PEOPLE} people"
    taking = (
        f"Each of {each} takes part in each step with chance q = B / {PEOPLE} = "
        f"{d(result.recipe.batch_size / PEOPLE)}; who does is secret, and that helps"
        if poisson
        else f"Each of {each} takes part once in each pass, {result.recipe.steps_per_epoch} steps; {STEPS} steps "
        f"begin {result.recipe.epochs} {'pass' if result.recipe.epochs == 1 else 'passes'}"
    )
    kind = "Rényi DP; add or remove one person" if poisson else "Gaussian DP, exact; zero-out"
    other = result.shuffle[-1] if poisson else result.poisson[-1]
    beside = ""
    if other is not None and result.guarantee.epsilon is not None:
        beside = (
            f" Shuffled batches would have ε = {at_most(other)}."
            if poisson
            else f" Billed as if they were Poisson samples they would seem to cost ε = {at_most(other)}: not theirs."
        )
    return _paragraphs(learnt, f"{taking}.{beside}") + f"{STEPS} steps: {_cost(result.guarantee, kind)}"


def denominators_in_words(result: Denominators) -> str:
    """The read-out beside the sliders, as HTML."""
    drowned = int((result.gradient < result.noise_std).sum())
    floor = int((result.corrected <= math.sqrt(result.gamma) * (1 + 1e-9)).sum())
    small = result.gradient < 0.1 * max(result.noise_std, 1e-3)
    adam = (
        f"Adam divides by the root of the average squared gradient, noise included: at least about "
        f"{d(result.noise_std)}, the noise. {drowned} of {len(result.gradient)} weights have smaller gradients. The "
        f"smallest moves {d(float(result.adam_move[0]))} learning rates where it would move 1 without noise."
    )
    corrected = (
        f"DP-AdamBC takes the noise's known variance Φ = {d(result.noise_std**2)} off. What is left of {floor} weights "
        f"is below the floor γ′, so they are divided by √γ′ = {d(math.sqrt(result.gamma))}: noise alone moves them "
        f"by up to {d(result.noise_std / math.sqrt(result.gamma))} learning rates in the first step, later by about a "
        "quarter of that."
        if small.any() or floor
        else "DP-AdamBC takes the noise's known variance off."
    )
    free = (
        "Neither looks at data again, so neither changes ε (post-processing). No ε is shown here: no guarantee is "
        "claimed for gradients that are made up."
    )
    return _paragraphs(adam, corrected, free)


def _angle(result: Cloud) -> float:
    """Between the means before and after the clip, in degrees."""
    one, two = result.mean, result.clipped_mean
    return abs(math.degrees(math.atan2(one[0] * two[1] - one[1] * two[0], float(one @ two))))


def _cost(held: Guarantee, kind: str) -> str:
    """What a release costs, and one click away what that covers."""
    if held.epsilon is None:
        return f"<b>no guarantee</b>: {held.reason}."
    text = (
        f"<b>ε = {at_most(held.epsilon)}</b> at δ = {DELTA:g} ({kind}) if the noise were secret; its seed is published "
        "here."
    )
    return f"{text}<details><summary>what this ε covers</summary>{escape(held.scope)}</details>"


# ---- Tables --------------------------------------------------------------------------------------------------------


def ways(result: PerExample) -> str:
    """Seconds and passes of each way to the gradient of one batch, in plain text."""
    slowest = result.seconds[LOOP]
    rows = [
        f"{name:<34}{1000 * seconds:7.0f} ms{slowest / seconds:8.1f} times as fast"
        for name, seconds in result.seconds.items()
    ]
    return "\n".join([*rows, f"norms of loop and book-keeping differ by {result.disagreement:.0e} at most"])


def optimizers(rows: Sequence[Tuned]) -> str:
    """Optimizers side by side, in plain text."""
    lines = [
        f"{NAMES[row.optimizer]:<12}{row.lr:>14g}{row.plain:>15.3f}{row.private:>14.3f} ± {row.deviation:.3f}"
        for row in rows
    ]
    return "\n".join([f"{'':<12}{'learning rate':>14}{'without noise':>15}{'loss':>14}", *lines])


# ---- As commands ---------------------------------------------------------------------------------------------------


def account(z: float, **options: object) -> str:
    """The call of `edp-lab account` for per-example DP-SGD at this noise multiplier; "what holds" is its epsilon."""
    words = ["edp-lab", "account", "--z0", f"{z:g}", "--gpus", "1", "--micro-batch-size", "1", "--delta", f"{DELTA:g}"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


# ---- Small parts ---------------------------------------------------------------------------------------------------


def _paragraphs(*texts: str) -> str:
    return "".join(f"<p>{text}</p>" for text in texts)
