"""Notebook 04: each drawn line of Algorithm 1 is the library's step, texts agree with the guarantee, and common
mistakes are recognised. The contract of all panels is in `test_contract`."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from edp_lab.course.nb04_edp_sgd import panels
from edp_lab.course.nb04_edp_sgd.panels import (
    CLAIMED_NAME,
    PRINTED_NAME,
    SOUND_NAME,
    GradientHistory,
    algorithm1,
    decayed,
    same_z,
)
from edp_lab.privacy import Mechanism, claimed_epsilon, gdp_epsilon, guaranteed_epsilon
from edp_lab.training.dp_step import release
from edp_lab.training.gradients import StackedGradients
from tests.course.conftest import prediction
from tests.course.examples import Wrong, gradient_history

STEP: dict[str, Any] = {
    "as_printed": True, "alpha_large": 1.0, "alpha_small": 0.2, "z": 1.0, "num_devices": 8
}  # fmt: skip
DECAY: dict[str, Any] = {
    "as_printed": True, "clip_norm": 1.0, "z0": 0.03, "decay": "exponential", "tau": 0.3, "num_devices": 8
}  # fmt: skip
relaxed = settings(max_examples=50)
alphas, both = st.floats(0.05, 10), st.booleans()


@pytest.fixture
def history() -> GradientHistory:
    return gradient_history()


@relaxed
@given(both, alphas, alphas, st.floats(0, 3), st.sampled_from([1, 2, 8, 32, 64]), st.floats(0, 1e4))
def test_mean_of_what_the_devices_hold_is_what_the_library_releases(
    as_printed: bool, large: float, small: float, z: float, devices: int, pull: float
) -> None:
    result = algorithm1(as_printed, large, small, z, devices, pull, seed=1)
    last = list(result.points.values())[-1]
    assert last.shape == (devices, 2)
    assert last.mean(0) == pytest.approx(result.released, rel=1e-6, abs=1e-9)


def test_every_line_does_what_it_says() -> None:
    result = algorithm1(**STEP, pull=50.0)
    held, alpha = result.points, np.array([1.0, 0.2])
    assert list(held) == ["gradient", "scale", "clip", "rescale", "noise"]
    assert held["scale"] == pytest.approx(held["gradient"] / alpha)
    lengths = np.linalg.norm(held["scale"], axis=1)
    assert np.linalg.norm(held["clip"], axis=1) == pytest.approx(np.minimum(lengths, 1.0))
    assert result.kept == pytest.approx(np.minimum(1, 1 / lengths))
    assert held["rescale"] == pytest.approx(held["clip"] * alpha)
    assert list(algorithm1(**{**STEP, "as_printed": False}).points)[3:] == ["noise", "rescale"]
    longest = 2 * result.half_axes.max() * STEP["num_devices"]
    assert longest == pytest.approx(result.mechanism.sensitivity())


def test_noise_on_the_mean_has_the_deviation_that_is_shown() -> None:
    for as_printed, expected in ((True, [8**-1.5] * 2), (False, [2 / 8, 0.2 * 2 / 8])):
        results = [algorithm1(**{**STEP, "as_printed": as_printed}, seed=seed) for seed in range(300)]
        assert results[0].noise == pytest.approx(expected)
        found = np.std([result.released - result.silent for result in results], axis=0)
        assert found == pytest.approx(expected, rel=0.15)


@relaxed
@given(both, alphas, alphas, st.sampled_from([2, 8, 32]), st.floats(1, 1e4))
def test_the_first_sentence_stays_within_its_ellipse(
    as_printed: bool, large: float, small: float, devices: int, pull: float
) -> None:
    result = algorithm1(as_printed, large, small, 1.0, devices, pull)
    calm = algorithm1(as_printed, large, small, 1.0, devices)
    assert result.reach == pytest.approx(calm.reach)  # the other gradients do not move
    inside = (result.silent - result.reach) / result.half_axes
    assert np.linalg.norm(inside) <= 1 + 1e-9
    if pull > 1000:  # its device's gradient is reversed and cannot move further away
        assert np.linalg.norm(inside) == pytest.approx(1, abs=6e-4)


def test_products_of_gradients_give_the_norms_of_every_cut(history: GradientHistory) -> None:
    for devices in (1, 8, 32):
        rows = history.per_device(devices).double()
        gram = history.gram(devices)[0]
        for k, columns in enumerate(history.layout.columns):
            assert gram[k].diagonal().sqrt() == pytest.approx(rows[:, columns].norm(dim=1), rel=1e-4, abs=1e-7)
    assert history.layer_norms().shape == (2, len(history.layout.names))
    assert history.alpha.max() == 1


@pytest.mark.parametrize(
    "change", [{}, {"as_printed": False}, {"num_devices": 2, "clip_norm": 0.1}, {"clip_norm": 20.0}]
)
def test_signal_and_noise_are_those_of_the_step(history: GradientHistory, change: dict[str, Any]) -> None:
    result = decayed(history, **{**DECAY, **change})
    mechanism, devices = result.config.mechanism(), result.config.num_devices
    assert mechanism is not None
    alpha = history.alpha if result.config.as_printed else None
    rows, size = [StackedGradients(history.per_device(devices), history.layout)], history.layout.size
    silent = release(mechanism, 0, rows, history.layout, alpha, torch.zeros(size)).gradient
    assert result.signal[0] == pytest.approx(float(silent.norm()), rel=1e-4)
    nobody = [StackedGradients(rows[0].gradients[:0], history.layout)]
    for t in (0, 1):
        ones = release(mechanism, t, nobody, history.layout, alpha, torch.ones(size)).gradient
        assert result.noise[t] == pytest.approx(float(ones.norm()), rel=1e-4)
    assert result.gradient[0] == pytest.approx(float(history.per_device(1).norm()), rel=1e-4)


def test_decay_only_costs_and_the_same_cost_lies_between_first_and_last_noise(history: GradientHistory) -> None:
    result, none = decayed(history, **DECAY), decayed(history, **{**DECAY, "decay": "none"})
    assert result.guarantee.claimed_epsilon > none.guarantee.claimed_epsilon
    assert result.guarantee.epsilon_if_alpha_public > none.guarantee.epsilon_if_alpha_public
    assert result.same_cost is not None
    assert result.noise[0] > result.same_cost > result.noise[-1]
    flat = decayed(history, **{**DECAY, "decay": "none", "z0": 0.03 * result.same_cost / result.noise[0]})
    assert flat.guarantee.claimed_epsilon == pytest.approx(result.guarantee.claimed_epsilon)
    assert flat.same_cost == pytest.approx(flat.noise[0])


@relaxed
@given(st.floats(0.05, 5), st.sampled_from([1, 4, 8, 64]), st.floats(0.1, 10), st.integers(1, 8))
def test_promises_are_the_judges_and_the_formula_holds(z: float, devices: int, alpha_max: float, size: int) -> None:
    result = same_z(z, devices, alpha_max, size)
    printed = Mechanism.as_printed(1.0, z, devices, size, alpha="public", alpha_max=alpha_max)
    times = 1 if size == 1 else 2
    assert result.multiplier[PRINTED_NAME] == pytest.approx(z / (times * math.sqrt(devices) * alpha_max))
    assert result.multiplier[CLAIMED_NAME] == result.multiplier[SOUND_NAME] == pytest.approx(z)
    assert result.epsilon[CLAIMED_NAME] == claimed_epsilon(printed, 1, 1e-5)
    assert result.epsilon[PRINTED_NAME] == guaranteed_epsilon(printed, 1, 1e-5)
    assert result.epsilon[SOUND_NAME] == pytest.approx(gdp_epsilon(1 / z, 1e-5))
    assert result.right(CLAIMED_NAME) == pytest.approx(norm.cdf(0.5 / z))  # half a standard deviation on either side
    assert len(set(result.curves[CLAIMED_NAME])) == len(set(result.curves[SOUND_NAME])) == 1
    assert result.pull == pytest.approx(times * alpha_max / np.array(panels.MANY))
    assert result.noise == pytest.approx(z / np.array(panels.MANY) ** 1.5)


def test_command_of_a_decay_is_that_of_its_values(history: GradientHistory, trained: Any) -> None:
    panel = panels.decay(history, **DECAY)
    panel.set(decay="linear", as_printed=False)
    assert trained(panel.command.value) == panel.result.config


guess = partial(prediction, "04", "devices")
WRONG: dict[str, dict[str, Any]] = {
    "noise": {
        "believes the accountant": Wrong(lambda C, z, N: C * z / N, "all devices added the same y"),
        "adds variances as if they were deviations": lambda C, z, N: C * z / N**2,
        "forgets one division by N": lambda C, z, N: C * z / math.sqrt(N),
        "one device's noise": lambda C, z, N: C * z,
        "takes the variance": Wrong(lambda C, z, N: (C * z) ** 2 / N**3, "That is the variance"),
    },
    "devices": {
        "believes the paper": Wrong(guess("stays", "stays"), "ε if α were public: you said 'stays', but it "),
        "more noise sources hide more": Wrong(guess("falls", "falls"), "claimed ε: you said 'falls'"),
        "the share of a sentence falls": guess("stays", "falls"),
        "claim and truth move together": guess("rises", "rises"),
    },
    "accountant": {
        "takes z at face value": lambda z, N, alpha: z,
        "mends nothing": lambda z, N, alpha: z / math.sqrt(N),
        "ignores the rescaling": Wrong(
            lambda z, N, alpha: z / (2 * math.sqrt(N)), "The clip comes before the scaling back"
        ),
        "ignores that a sentence can turn the mean around": Wrong(
            lambda z, N, alpha: z / (math.sqrt(N) * max(alpha)), "from C one way to C the other"
        ),
        "takes a scale to be 1 at least": lambda z, N, alpha: z / (2 * math.sqrt(N) * max(1, max(alpha))),
        "averages alpha": Wrong(
            lambda z, N, alpha: z / (2 * math.sqrt(N) * sum(alpha) / len(alpha)), "all its gradient into one layer"
        ),
        "takes alpha for a number (crash)": lambda z, N, alpha: z / (2 * math.sqrt(N) * alpha),
    },
}
