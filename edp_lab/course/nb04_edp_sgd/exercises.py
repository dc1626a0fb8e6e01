"""The exercises of notebook 04: the noise of the mean, what more devices do, an accountant with two bugs."""

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
            "That is what the paper's accountant assumes. It would be right if all devices added the same y: "
            "independent ones partly cancel.": c * z / devices,
            "That adds the devices' noises up as if they cancelled completely: their sum has root N times the "
            "deviation of one.": c * z / devices**2,
            "That forgets the 1/N in front of each y, or the one in front of the sum.": c * z / math.sqrt(devices),
            "That is the noise of a single y: there are N of them, and two divisions by N.": c * z,
            "That is the variance: its root is the standard deviation.": (c * z) ** 2 / devices**3,
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
            "That is the function as it stood: one sentence can do more than that.": z / root,
            "That takes z at face value, as the paper does: the noise is smaller, and one sentence can do more.": z,
            "The clip comes before the scaling back: how far can a vector of length C reach once its layers are "
            "multiplied by α?": z / (2 * root),
            "One sentence can turn its device's mean around, from C one way to C the other: how far apart are those?": z
            / (root * largest),
            "On average over layers is not enough: a sentence may put all its gradient into one layer.": (
                z / (2 * root * mean)
            ),
        }
        got, wanted = answer(z, devices, list(alpha)), _printed(z, devices, largest).noise_multiplier(0)
        yield close(got, wanted, f"multiplier({z:.3g}, {devices}, [{shown}])", slips=slips)


EXERCISES = exercises_of(__file__, noise=_noise, devices=_devices, accountant=_accountant)
