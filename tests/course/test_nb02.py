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

from edp_lab.course.nb02_dp_sgd import compute, panels
from edp_lab.course.nb02_dp_sgd.compute import CLIPS, DELTA, STEPS, cloud, per_example, training, tuned
from edp_lab.privacy import Mechanism, gdp_epsilon
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.three_phase.clipping import as_printed, by_norm, by_value, clipped_mean, normalising
from edp_lab.training import TrainConfig
from edp_lab.training.dp_step import release
from edp_lab.training.gradients import Layout, StackedGradients
from edp_lab.training.noise import Share, standard_noise
from tests.course.examples import Wrong

pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN = TrainConfig("smart-home", method="sgd", size="small", lr=0.02)
BASE: dict[str, Any] = {
    "clip_norm": 1.0, "z": 2.0, "batch_size": 20, "optimizer": "sgd", "lr": 1.0, "sampling": "poisson", "seed": 0
}  # fmt: skip


def trained(**change: Any) -> compute.Training:
    return training(**{**BASE, **change})


def test_book_keeping_gives_the_norms_of_a_loop_and_of_every_cut_of_the_batch() -> None:
    found = per_example(PLAIN, epochs=0)
    assert found.disagreement < 1e-5
    assert {size: len(norms) for size, norms in found.norms.items()} == {1: 64, 4: 16, 16: 4, 64: 1}
    longest = [norms.max() for norms in found.norms.values()]
    assert longest == sorted(longest, reverse=True)  # a mean is no longer than the longest of its parts
    assert found.seconds[compute.LOOP] > found.seconds[compute.BOOKS]
    text = panels.ways(found)
    assert "one pass per example" in text
    assert "1.0 times as fast" in text
    figure = panels.norms_figure(found, 1.0)
    assert [len(trace.x) for trace in figure.data] == [64, 16, 4, 1]
    assert "no guarantee" in figure.layout.title.subtitle.text


def test_a_cloud_clipped_by_norm_is_what_the_private_step_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edp_lab.training.dp_step.headroom", lambda *steps: 0.0)  # which clips by 2^-11 more
    result = cloud(0.7, 1.3, 40, 0.2, "by norm", seed=3)
    layout = Layout(("w",), (slice(0, 2),))
    noise = standard_noise(key_from_seed(3), 0, 2, Share(), torch.float64)
    rows, mechanism = StackedGradients(torch.from_numpy(result.gradients), layout), Mechanism.sound(0.7, 1.3, 1, 1)
    released = release(mechanism, 0, rows, layout, None, noise, divisor=40)
    assert result.released == pytest.approx(released.gradient.numpy(), rel=1e-4)
    assert result.noise_std == pytest.approx(mechanism.noise_std(0) / 40)
    assert result.shortened == int((released.clip_factors < 1 - 1e-4).sum())


@pytest.mark.parametrize("rule", ["by norm", "by value", "normalising"])
def test_curves_are_the_clouds_of_other_thresholds(rule: str) -> None:
    result = cloud(1.0, 2.0, 60, 0.1, rule, seed=0)
    for place in (0, 20, 39):
        other = cloud(float(CLIPS[place]), 2.0, 60, 0.1, rule, seed=0)
        assert result.biases[place] == pytest.approx(other.bias)
        assert result.noises[place] == pytest.approx(math.sqrt(2) * other.noise_std)
    assert result.best_clip in CLIPS


@pytest.mark.parametrize("optimizer", compute.OPTIMIZERS)
def test_without_noise_and_with_a_loose_clip_all_walkers_go_the_same_way(optimizer: str) -> None:
    silent = trained(optimizer=optimizer, z=0.0)
    assert (silent.paths["private"] == silent.paths["clipped"]).all()
    assert (silent.guarantee.epsilon, set(silent.spent["poisson"].values())) == (None, {None})
    loose = trained(optimizer=optimizer, clip_norm=1000.0)
    assert loose.paths["clipped"] == pytest.approx(loose.paths["plain"], abs=1e-3)


def test_first_step_of_sgd_is_the_learning_rate_times_what_is_released() -> None:
    result = trained(lr=0.5, seed=4)
    draw = standard_noise(key_from_seed(4), 0, 2, Share(), torch.float64).numpy()
    assert result.noise_std == pytest.approx(2.0 * 1.0 / 20)
    assert result.paths["private"][1] - result.paths["clipped"][1] == pytest.approx(-0.5 * result.noise_std * draw)
    assert (result.paths["private"][0] == compute.START).all()


def test_dp_adambc_is_told_the_noise_that_was_added() -> None:
    adam, corrected = (trained(optimizer=name, z=4.0, lr=0.05) for name in ("adam", "dp-adambc"))
    long = [np.abs(np.diff(run.paths["private"], axis=0)).mean() for run in (adam, corrected)]
    assert long[1] > 1.2 * long[0]  # divided by less than Adam divides by
    same = [trained(optimizer=name, z=0.0, lr=0.05, gamma=1e-12).paths["private"] for name in ("adam", "dp-adambc")]
    assert same[0] == pytest.approx(same[1], abs=1e-6)
    floored = trained(optimizer="dp-adambc", z=0.0, lr=0.05, gamma=0.1).paths["private"]
    assert not np.allclose(floored, same[1], atol=1e-3)


def test_loss_is_the_cross_entropy_of_all_people() -> None:
    weights = np.array([[0.3, -1.0], [1.0, 2.0]])
    people, labels = compute._people()
    for row, loss in zip(weights, compute.loss(weights), strict=True):
        assert loss == pytest.approx(F.binary_cross_entropy_with_logits(people @ torch.from_numpy(row), labels).item())
    assert compute.loss(compute.TRUTH) < 0.5 < compute.loss(compute.START)


def test_shuffled_batches_cost_one_release_for_each_pass() -> None:
    result = trained(sampling="shuffle", batch_size=40, z=2.0)
    assert result.recipe.steps_per_epoch == 10
    assert result.recipe.epochs == 3
    for step, passes in ((1, 1), (10, 1), (11, 2), (STEPS, 3)):
        assert result.spent["shuffle"][step] == pytest.approx(gdp_epsilon(math.sqrt(passes) / 2.0, DELTA))
    assert result.guarantee.epsilon == result.spent["shuffle"][STEPS]
    assert trained().guarantee.epsilon == pytest.approx(trained().spent["poisson"][STEPS], rel=1e-9)
    assert result.spent["poisson"][STEPS] < result.spent["shuffle"][STEPS]
    assert trained(sampling="poisson", batch_size=40, z=2.0).spent["shuffle"] == result.spent["shuffle"]


def test_tuned_finds_the_best_of_the_rates_for_each_optimizer() -> None:
    rows = tuned(1.0, 2.0, 20, rates=(1e-3, 1.0), seeds=range(2))
    assert [row.optimizer for row in rows] == list(compute.OPTIMIZERS)
    by_hand = {
        lr: np.mean([trained(lr=lr, seed=seed).losses["private"][-1] for seed in range(2)]) for lr in (1e-3, 1.0)
    }
    assert (rows[0].lr, rows[0].private) == (1.0, pytest.approx(by_hand[1.0]))
    assert by_hand[1.0] < by_hand[1e-3]
    assert "DP-AdamBC" in panels.optimizers(rows)


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
