"""Exercises of ``09_many_gpus.ipynb``: noise on a mean, noise of a rank, one process or two."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from edp_lab.course.kit.exercises import Differences, close, exercises_of, first_wrong, given, predicted
from edp_lab.privacy import Mechanism, guaranteed_epsilon
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.training.batches import shard

SIZE = 4000  # coordinates: enough to estimate a standard deviation to 1 %
STEPS = (0, 1, 2)
BY_CHANCE = 6  # standard errors that are accepted as chance


def _aggregate(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare with the library if all devices have equal noise, and with the closed form if they do not."""
    for devices in (1, 2, int(cases.integers(4, 33))):
        z0 = round(float(cases.uniform(0.1, 3)), 2)
        mechanism = Mechanism.as_printed(1.0, z0, devices, 2)
        stds = np.full(devices, mechanism.device_noise_std(0))
        quantity = f"noise on the mean, with N = {devices} and standard deviation {stds[0]:.3g} per device"
        yield close(answer(stds.copy()), mechanism.noise_std(0) / devices, quantity)
    stds = cases.uniform(0.1, 2, 5).round(2)
    wanted = math.sqrt(float(np.sum(stds**2))) / len(stds)
    yield close(answer(stds.copy()), wanted, f"noise on the mean, with standard deviations {stds.tolist()}")


def _processes(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare the noise of 8 devices, and its epsilon, between one process and two."""
    key, step = key_from_seed(int(cases.integers(10**6))), int(cases.integers(100))
    draws = np.array([stream(key, Purpose.DEVICE_NOISE, step, device).standard_normal(SIZE) for device in range(8)])
    mechanism = Mechanism.sound(1.0, round(float(cases.uniform(0.5, 2)), 1), 8, 8)
    each, total, lengths, gradient = [], [], [], cases.normal(size=SIZE)
    for world in (1, 2):
        shards = [shard(8, rank, world) for rank in range(world)]
        noise = sum(draws[list(devices)].sum(0) for devices in shards) / math.sqrt(8)
        each.append(float(SIZE * len(shards[0])))
        total.append(float(sum(SIZE * len(devices) for devices in shards)))
        lengths.append(float(np.linalg.norm(gradient + mechanism.noise_std(0) / 8 * noise)))
    epsilon = guaranteed_epsilon(mechanism, 10, 1e-5)
    measured = {
        "numbers drawn by one process": (each[0], each[1]),
        "numbers drawn by all processes": (total[0], total[1]),
        "the released gradient's norm": (lengths[0], lengths[1]),
        "the guaranteed ε": (epsilon, epsilon),  # the mechanism depends on devices, not on processes
    }
    yield predicted(answer, measured, f"the number (8 devices, {SIZE:,} parameters)")


def _ranks(answer: Any, cases: np.random.Generator) -> Differences:
    """Check the sum's standard deviation, independence of keys, steps and ranks, and repeatability."""
    untouched, verdicts = True, []
    for ranks in (2, 8):
        key, other = map(int, cases.choice(2**31, 2, replace=False))
        std = round(float(cases.uniform(0.5, 3)), 2)
        draws = [
            [[given(answer(noise_key, step, rank, ranks, SIZE, std)) for rank in range(ranks)] for step in STEPS]
            for noise_key in (key, key, other)
        ]
        noise, again, another = np.array(draws, dtype=float)  # (steps, ranks, SIZE) each
        if noise.shape != (len(STEPS), ranks, SIZE):
            yield f"a rank's noise should have {SIZE} numbers; yours has shape {noise.shape[2:]}."
        untouched &= bool((noise == noise[0, 0]).all()) and math.isclose(noise[0, 0].std(), std, rel_tol=0.1)
        wrong = _wrong(noise, again, another, std)
        verdicts.append(wrong and f"{ranks} ranks, standard deviation {std}: {wrong}")
    yield first_wrong(verdicts, untouched, "it still draws the same numbers on every rank and in every step")


def _wrong(noise: np.ndarray, again: np.ndarray, another: np.ndarray, std: float) -> str | None:
    """Describe the error, if any, in noise drawn twice with one key and once with another key."""
    ranks = range(noise.shape[1])
    if _alike(noise[0, 0], noise[0, 1]):
        return "ranks 0 and 1 draw the same numbers, so the difference of their messages has no noise at all."
    if any(_alike(noise[k, i], noise[k + 1, j]) for k, i, j in product(range(len(noise) - 1), ranks, ranks)):
        return "numbers of one step recur in the next step, so the noise can be subtracted."
    total = noise.sum(axis=1).std()
    if abs(total / std - 1) > BY_CHANCE / math.sqrt(2 * noise[:, 0].size):
        return f"the sum over ranks has standard deviation {total:.3g}."
    if not np.array_equal(noise, again):
        return "a second call with the same key, step and rank returns other numbers, so no run can be repeated."
    for step, rows, other_rows in zip(STEPS, noise, another, strict=True):
        if any(map(_alike, rows, other_rows)):
            return f"in step {step} another key gives the same numbers, so the noise can be drawn without the key."
    return None


def _alike(first: np.ndarray, second: np.ndarray) -> bool:
    return abs(float(np.corrcoef(first, second)[0, 1])) > BY_CHANCE / math.sqrt(SIZE)


EXERCISES = exercises_of(__file__, aggregate=_aggregate, ranks=_ranks, processes=_processes)
