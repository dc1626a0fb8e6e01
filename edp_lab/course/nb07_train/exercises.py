"""Exercises of ``07_train_privately.ipynb``: epsilons of measured runs, noise by micro-batch size, tuning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edp_lab.course.kit.exercises import Differences, chosen, close, exercises_of, first_wrong, given
from edp_lab.course.kit.text import at_most
from edp_lab.course.nb07_train.panels import explore, load_grid
from edp_lab.privacy import Mechanism, gdp_epsilon

Setting = tuple[str, int, float, str]  # method, micro-batch size, z0, decay

# Pairs of measured runs of eight epochs with about the same SER.
PAIRS: dict[str, tuple[Setting, Setting]] = {
    "A: eDP-SGD sound, z0 = 0.03, no decay; B: as printed, z0 = 0.03, exponential decay": (
        ("sound", 8, 0.03, "none"),
        ("printed", 8, 0.03, "exponential"),
    ),
    "A: eDP-SGD sound, z0 = 0.03, no decay; B: DP-SGD, z0 = 0.3, linear decay": (
        ("sound", 8, 0.03, "none"),
        ("sound", 1, 0.3, "linear"),
    ),
    "A: DP-SGD, disjoint batches, z0 = 0.1; B: DP-SGD, Poisson sampling, z0 = 0.1": (
        ("sound", 1, 0.1, "none"),
        ("poisson", 1, 0.1, "none"),
    ),
}
EPOCHS = 8


def _smaller(answer: Any, cases: np.random.Generator) -> Differences:
    """Compare the predictions with the epsilons of the measured runs."""
    grid, right = load_grid(), {}
    for question, settings in PAIRS.items():
        runs = [explore(grid, *setting, EPOCHS).point for setting in settings]
        epsilons = [run.epsilon or math.inf for run in runs]
        pairs = zip("AB", runs, epsilons, strict=True)
        comparison = "; ".join(f"{name}: SER {run.ser:.2f}, ε {at_most(epsilon)}" for name, run, epsilon in pairs)
        right[question] = "AB"[int(np.argmin(epsilons))], f"you said {{}}, but {comparison}"
    yield chosen(answer, right, ("A", "B"), "neither 'A' nor 'B'")


def _noise(answer: Any, cases: np.random.Generator) -> Differences:
    for micro_batch in (8, 1, 2, 4, 16):
        micro_batches = int(cases.integers(2, 33))
        z, clip_norm = round(float(cases.uniform(0.05, 3)), 2), round(float(cases.uniform(0.1, 5)), 1)
        mechanism = Mechanism.sound(clip_norm, z, 1, micro_batch)
        batch = micro_batch * micro_batches
        case = f"z = {z}, C = {clip_norm}, m = {micro_batch}, a batch of {batch}"
        got = answer(z, clip_norm, micro_batch, batch)
        yield close(got, mechanism.noise_std(0) / micro_batches, f"noise on the mean with {case}")


def _report(answer: Any, cases: np.random.Generator) -> Differences:
    untouched, verdicts = True, []
    for _ in range(3):
        trials, delta = _trials(cases), 1e-4
        got = given(answer([dict(trial) for trial in trials], delta))
        lucky = min(trials, key=lambda trial: trial["test_ser"])
        untouched &= bool(np.allclose(got, (lucky["test_ser"], gdp_epsilon(lucky["mu"], delta))))
        ser, epsilon = got
        best = min(trials, key=lambda trial: trial["validation_ser"])
        together = gdp_epsilon(math.sqrt(sum(trial["mu"] ** 2 for trial in trials)), delta)
        what = f"ε of all {len(trials)} runs (μ = {', '.join(str(trial['mu']) for trial in trials)})"
        verdicts.append(close(ser, best["test_ser"], "the SER of the run that is best on the validation set"))
        verdicts.append(close(epsilon, together, what))
    yield first_wrong(verdicts, untouched, "it still chooses by the test set, and counts only the μ of the best run")


def _trials(cases: np.random.Generator) -> list[dict[str, float]]:
    """Random trials; the best on the validation set is neither the best on the test set nor largest in mu."""
    count = int(cases.integers(3, 6))
    validation = np.sort(cases.uniform(0.2, 0.6, count))
    test = validation + cases.uniform(0.0, 0.05, count)
    test[0] = test.max() - 0.01
    mu = np.sort(cases.uniform(0.5, 4, count))
    rows = zip(validation.round(3), test.round(3), mu.round(2), strict=True)
    trials = [{"validation_ser": float(v), "test_ser": float(t), "mu": float(m)} for v, t, m in rows]
    return [trials[k] for k in cases.permutation(count)]


EXERCISES = exercises_of(__file__, smaller=_smaller, noise=_noise, report=_report)
