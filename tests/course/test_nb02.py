"""Notebook 02: what its panels draw and say is what clip, noise, optimizers and accountants give, and what students get
wrong is found. What holds for all panels is in `test_contract`."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edp_lab.course.nb02_dp_sgd import panels
from edp_lab.course.nb02_dp_sgd.panels import CLIPS, DELTA, clip_batch, per_example, train
from edp_lab.privacy import Mechanism, gdp_epsilon
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.three_phase.classifier import as_printed, by_norm, by_value, clipped_mean, normalising
from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import release
from edp_lab.training.gradients import Layout, StackedGradients
from edp_lab.training.noise import float_noise
from tests.course.examples import Wrong

pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN = TrainConfig("smart-home", method="sgd", size="small", lr=0.02)
BASE: dict[str, Any] = {
    "clip_norm": 1.0, "z": 2.0, "batch_size": 20, "optimizer": "sgd", "lr": 1.0, "sampling": "poisson", "seed": 0
}  # fmt: skip


def trained(**change: Any) -> panels.Training:
    return train(**{**BASE, **change})


def test_book_keeping_gives_the_norms_of_a_loop_and_of_every_cut_of_the_batch() -> None:
    found = per_example(PLAIN, epochs=0)
    assert found.disagreement < 1e-5
    assert {size: len(norms) for size, norms in found.norms.items()} == {1: 64, 4: 16, 16: 4, 64: 1}
    longest = [norms.max() for norms in found.norms.values()]
    assert longest == sorted(longest, reverse=True)  # a mean is no longer than the longest of its parts
    assert found.seconds[panels.LOOP] > found.seconds[panels.BOOKS]


def test_a_cloud_clipped_by_norm_is_what_the_private_step_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edp_lab.training.dp_step.headroom", lambda *steps: 0.0)  # which clips by 2^-11 more
    result = clip_batch(0.7, 1.3, 40, 0.2, "by norm", seed=3)
    layout = Layout(("w",), (slice(0, 2),))
    noise = float_noise(key_from_seed(3), 0, 2, dtype=torch.float64)
    rows, mechanism = [StackedGradients(torch.from_numpy(result.gradients), layout)], Mechanism.sound(0.7, 1.3, 1, 1)
    released = release(mechanism, 0, rows, layout, None, noise, divisor=40)
    assert result.released == pytest.approx(released.gradient.numpy(), rel=1e-4)
    assert result.noise_std == pytest.approx(mechanism.noise_std(0) / 40)


@pytest.mark.parametrize("rule", ["by norm", "by value", "normalising"])
def test_curves_are_the_clouds_of_other_thresholds(rule: str) -> None:
    result = clip_batch(1.0, 2.0, 60, 0.1, rule, seed=0)
    for place in (0, 20, 39):
        other = clip_batch(float(CLIPS[place]), 2.0, 60, 0.1, rule, seed=0)
        assert result.biases[place] == pytest.approx(other.bias)
        assert result.noises[place] == pytest.approx(math.sqrt(2) * other.noise_std)


@pytest.mark.parametrize("optimizer", list(panels.NAMES))
def test_without_noise_and_with_a_loose_clip_all_walkers_go_the_same_way(optimizer: str) -> None:
    silent = trained(optimizer=optimizer, z=0.0)
    assert (silent.paths["private"] == silent.paths["clipped"]).all()
    assert silent.guarantee.conditional_epsilon is silent.billed.conditional_epsilon is None
    loose = trained(optimizer=optimizer, clip_norm=1000.0)
    assert loose.paths["clipped"] == pytest.approx(loose.paths["plain"], abs=1e-3)


def test_first_step_of_sgd_is_the_learning_rate_times_what_is_released() -> None:
    result = trained(lr=0.5, seed=4)
    draw = float_noise(key_from_seed(4), 0, 2, dtype=torch.float64).numpy()
    assert result.paths["private"][1] - result.paths["clipped"][1] == pytest.approx(-0.5 * 2.0 / 20 * draw)
    assert (result.paths["private"][0] == panels.START).all()


def test_loss_is_the_cross_entropy_of_all_people() -> None:
    weights = np.array([[0.3, -1.0], [1.0, 2.0]])
    people, labels = panels._people()
    for row, loss in zip(weights, panels.loss(weights), strict=True):
        assert loss == pytest.approx(F.binary_cross_entropy_with_logits(people @ torch.from_numpy(row), labels).item())
    assert panels.loss(panels.TRUTH) < 0.5 < panels.loss(panels.START)


def test_shuffled_batches_cost_one_release_for_each_pass() -> None:
    for batch_size, passes in ((10, 1), (40, 3), (400, 30)):
        result = trained(sampling="shuffle", batch_size=batch_size)
        assert result.passes == passes
        assert result.guarantee.conditional_epsilon == pytest.approx(gdp_epsilon(math.sqrt(passes) / 2.0, DELTA))
    sampled = trained(batch_size=40)
    assert (
        sampled.guarantee.conditional_epsilon
        == sampled.billed.conditional_epsilon
        < result.guarantee.conditional_epsilon
    )
    assert trained(sampling="shuffle", batch_size=40).billed == sampled.billed


def test_adam_divides_by_the_noise_where_it_is_larger_than_the_gradient() -> None:
    gradient, silent = panels.adam_divisors(0.0, 30, seed=0)
    _, noisy = panels.adam_divisors(0.1, 30, seed=0)
    assert silent == pytest.approx(gradient)
    assert noisy[gradient < 0.01] == pytest.approx(0.1, rel=0.5)
    assert noisy[-1] == pytest.approx(1.0, rel=0.1)


def step(of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A released mean, from gradients, C and the noise that is due on it."""
    return lambda gradients, C, z, noise: of(gradients, C, C * z / len(gradients) * noise)


WRONG: dict[str, dict[str, Any]] = {
    "clip": {
        "clips every coordinate": Wrong(by_value, "With C = "),
        "clips the mean": Wrong(clipped_mean, "yours has shape ("),
        "lengthens short gradients, as Algorithm 8 of the thesis": Wrong(as_printed, "longer than C"),
        "makes all gradients equally long": Wrong(normalising, "was short enough"),
        "one factor for the whole batch": Wrong(lambda g, C: g * min(1.0, C / g.norm().item()), "was short enough"),
        "divides a row of zeros by its length": Wrong(
            lambda gradients, C: C * gradients / gradients.norm(dim=1, keepdim=True), "length 0, has become nan"
        ),
        "takes numpy for torch (crash)": lambda gradients, C: gradients * (C / gradients.length()),
    },
    "noise": {
        "forgets the division": lambda C, z, batch_size: C * z,
        "divides twice": Wrong(lambda C, z, batch_size: C * z / batch_size**2, "divides by B twice"),
        "noise for every example": Wrong(
            lambda C, z, batch_size: C * z / batch_size**0.5, "as if every example had noise of its own"
        ),
        "forgets C": lambda C, z, batch_size: z / batch_size,
        "doubles the sensitivity": lambda C, z, batch_size: 2 * C * z / batch_size,
        "takes the variance": lambda C, z, batch_size: (C * z / batch_size) ** 2,
    },
    "bug": {
        "leaves the noise before the clip": Wrong(
            step(lambda g, C, noise: by_norm(g + noise, C).mean(0)), "Noise still goes in before the clip"
        ),
        "clips the mean": Wrong(step(lambda g, C, noise: clipped_mean(g, C) + noise), "clips the mean"),
        "clips once more": Wrong(
            step(lambda g, C, noise: by_norm((by_norm(g, C).mean(0) + noise)[None], C)[0]), "clips once more"
        ),
        "forgets to divide the noise": step(lambda g, C, noise: by_norm(g, C).mean(0) + len(g) * noise),
    },
}


def in_numpy(gradients: Tensor, C: float) -> Any:
    rows = gradients.numpy()
    return rows / ((rows**2).sum(1, keepdims=True) ** 0.5 / C).clip(1)


def in_place(gradients: Tensor, C: float) -> Tensor:
    gradients *= (C / gradients.norm(dim=1, keepdim=True)).clamp(max=1)
    return torch.nan_to_num(gradients)


RIGHT = {"clip": (in_numpy, in_place)}
