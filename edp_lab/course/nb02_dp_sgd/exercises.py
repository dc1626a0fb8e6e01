"""The exercises of notebook 02: clip every example, scale the noise, mend a step."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from edp_lab.course.kit.controls import Array
from edp_lab.course.kit.exercises import Differences, close, exercises_of
from edp_lab.privacy import Mechanism
from edp_lab.three_phase.classifier import by_norm, clipped_mean

ROUNDING = 5e-4  # the library clips a little below C, so that float32 cannot exceed it


def _clip(answer: Callable[[Tensor, float], Tensor], rng: np.random.Generator) -> Differences:
    for _ in range(4):
        clip_norm, gradients = float(rng.uniform(0.5, 3)), _gradients(rng)
        got, wanted = answer(gradients.clone(), clip_norm), by_norm(gradients, clip_norm)
        wrong = close(got, wanted, f"clip(gradients, C={clip_norm:.2f})", rtol=ROUNDING)
        if wrong is not None:
            mine = np.asarray(got, dtype=float)
            yield wrong if mine.shape != wanted.shape else _clipped_wrong(mine, gradients.numpy(), clip_norm) or wrong


def _clipped_wrong(mine: Array, gradients: Array, clip_norm: float) -> str | None:
    """What is wrong with gradients that should have been clipped."""
    before, after = (np.linalg.norm(rows, axis=1) for rows in (gradients, mine))
    rows = list(enumerate(zip(before, after, strict=True)))
    at = f"With C = {clip_norm:.2f}, row"
    for row, (old, new) in rows:
        if not math.isfinite(new):
            return f"{at} {row}, of length {old:.3g}, has become {new}: do not divide by a length that may be 0."
        if not new <= clip_norm * (1 + ROUNDING):
            return f"{at} {row} of your result has length {new:.3g}: longer than C."
    for row, (old, new) in rows:
        if old <= clip_norm and abs(new - old) > ROUNDING * max(old, 1):
            return f"{at} {row} was short enough ({old:.3g}), and has become {new:.3g} long."
        if abs(float(mine[row] @ gradients[row]) - old * new) > ROUNDING * old * max(new, 1e-9):
            return f"{at} {row} has turned: a clip keeps the direction of a gradient."
    return None


def _gradients(rng: np.random.Generator) -> Tensor:
    """(B, P), float64: a row of zeros, short rows and long ones."""
    examples, size = int(rng.integers(5, 10)), int(rng.integers(2, 6))
    lengths = np.array([0.0, 0.2, 0.3, 9.0, 30.0, *rng.uniform(0.1, 20, examples - 5)])
    rows = rng.standard_normal((examples, size))
    return torch.from_numpy(rows / np.linalg.norm(rows, axis=1, keepdims=True) * lengths[:, None])


def _noise(answer: Callable[[float, float, int], float], rng: np.random.Generator) -> Differences:
    alone = "an example alone in its clip moves the sum from its share to nothing, by C at most."
    for _ in range(4):
        c, z, batch = float(rng.uniform(0.1, 3)), float(rng.uniform(0.3, 4)), int(rng.integers(5, 500))
        slips = {
            "That is the noise on the sum: the mean is the sum over B, noise included.": c * z,
            "That divides by B twice: the noise is drawn once, on the sum.": c * z / batch**2,
            "That divides by the root of B, as if every example had noise of its own.": c * z / batch**0.5,
            "That has no C in it: the noise must grow with what one example can do.": z / batch,
            f"That has 2 C: {alone}": 2 * c * z / batch,
        }
        wanted = Mechanism.sound(c, z, 1, 1).noise_std(0) / batch
        yield close(answer(c, z, batch), wanted, f"noise_std({c:.3g}, {z:.3g}, {batch})", slips=slips)


def _bug(answer: Callable[[Tensor, float, float, Tensor], Tensor], rng: np.random.Generator) -> Differences:
    for _ in range(4):
        c, z, gradients = float(rng.uniform(0.5, 2)), float(rng.uniform(8, 20)), _gradients(rng)
        batch, size = gradients.shape
        noise = torch.from_numpy(rng.standard_normal(size))
        due, mean = c * z / batch * noise, by_norm(gradients, c).mean(0)  # the library clips by 2^-11 of C more
        slips = {
            "Noise still goes in before the clip, which shrinks it with the gradients: less noise than z says.": (
                by_norm(gradients + due, c).mean(0)
            ),
            "That clips the mean: one example can turn all of it, and the noise is far too small.": (
                clipped_mean(gradients, c) + due
            ),
            "That clips once more after the noise: no harm to privacy, but it bends what was safe already.": (
                by_norm((mean + due)[None], c)[0]
            ),
            "The noise belongs on the sum, before the division by B.": mean + c * z * noise,
        }
        got, what = answer(gradients.clone(), c, z, noise.clone()), f"(C = {c:.2f}, z = {z:.2f}, B = {batch})"
        yield close(got, mean + due, f"the released mean {what}", slips=slips, rtol=ROUNDING)


EXERCISES = exercises_of(__file__, clip=_clip, noise=_noise, bug=_bug)
