"""Exercises of notebook 04: noise on the mean, more devices, and an accountant with two bugs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edp_lab.course.kit.controls import DELTA
from edp_lab.course.kit.exercises import Differences, close, exercises_of, predicted
from edp_lab.privacy import Mechanism, claimed_epsilon, guaranteed_epsilon


def _noise(answer: Callable[[float, float, int], float], rng: np.random.Generator) -> Differences:
    for _ in range(4):
        c, z, devices = float(rng.uniform(0.1, 3)), float(rng.uniform(0.3, 4)), int(rng.integers(2, 33))
        wanted = Mechanism.as_printed(c, z, devices, 8).noise_std(0) / devices
        slips = {
            "This is what the paper's accountant assumes. It would be right if all devices added the same y, but "
            "independent noise partly cancels.": c * z / devices,
            "This treats the sum of the noise as a single term: the sum of N terms has √N times the standard "
            "deviation of one term.": c * z / devices**2,
            "This omits a division by N: of each y, or of the sum.": c * z / math.sqrt(devices),
            "This is the noise of a single y: there are N of them, and two divisions by N.": c * z,
            "This is the variance: the standard deviation is its square root.": (c * z) ** 2 / devices**3,
        }
        yield close(answer(c, z, devices), wanted, f"noise_std({c:.3g}, {z:.3g}, {devices})", slips=slips)


def _devices(answer: Any, rng: np.random.Generator) -> Differences:
    z = float(rng.uniform(0.3, 3))
    printed = [_printed(z, devices, 1.0) for devices in (8, 32)]
    claimed, public = (
        [epsilon(mechanism, 1, DELTA) for mechanism in printed] for epsilon in (claimed_epsilon, guaranteed_epsilon)
    )
    measured = {"claimed ε": (claimed[0], claimed[1]), "ε if α were public": (public[0], public[1])}
    yield predicted(answer, measured, f"it (as printed, z = {z:.2g}, 8 and 32 GPUs, a public α)")


def _printed(z: float, devices: int, alpha_max: float) -> Mechanism:
    return Mechanism.as_printed(1.0, z, devices, 8, alpha="public", alpha_max=alpha_max)


def _accountant(answer: Callable[[float, int, list[float]], float], rng: np.random.Generator) -> Differences:
    for most in (6, 0.9, 6, 0.9):  # scales may all be below 1
        z, devices, alpha = float(rng.uniform(0.3, 4)), int(rng.integers(2, 33)), rng.uniform(0.01, most, 5).tolist()
        root, largest, mean = math.sqrt(devices), max(alpha), sum(alpha) / len(alpha)
        shown = ", ".join(f"{scale:.2g}" for scale in alpha)
        slips = {
            "Your function is unchanged: one sentence can move the sum further than that.": z / root,
            "Your function returns z, as the paper assumes: the noise is smaller and the sensitivity larger.": z,
            "Rescaling comes after the clip: how long can a vector of norm C become if its layers are "
            "multiplied by α?": z / (2 * root),
            "One sentence can reverse its device's clipped mean: how far apart are the two means?": z
            / (root * largest),
            "The average over layers is not enough: a sentence's gradient may be all in one layer.": (
                z / (2 * root * mean)
            ),
        }
        got, wanted = answer(z, devices, list(alpha)), _printed(z, devices, largest).noise_multiplier(0)
        yield close(got, wanted, f"multiplier({z:.3g}, {devices}, [{shown}])", slips=slips)


EXERCISES = exercises_of(__file__, noise=_noise, devices=_devices, accountant=_accountant)
