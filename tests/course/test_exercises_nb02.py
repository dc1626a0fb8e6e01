"""What students get wrong in notebook 02; `test_exercises` shows that each of these is found."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from edp_lab.course.kit.exercises import exercises, mark
from edp_lab.three_phase.clipping import as_printed, by_norm, by_value, clipped_mean, normalising


def one_factor_for_all(gradients: Tensor, C: float) -> Tensor:
    return gradients * min(1.0, C / gradients.norm().item())


def noise_first(gradients: Tensor, C: float, z: float, noise: Tensor) -> Tensor:
    return by_norm(gradients + C * z / len(gradients) * noise, C).mean(0)


def clips_the_mean(gradients: Tensor, C: float, z: float, noise: Tensor) -> Tensor:
    return clipped_mean(gradients, C) + C * z / len(gradients) * noise


def clips_again(gradients: Tensor, C: float, z: float, noise: Tensor) -> Tensor:
    released = by_norm(gradients, C).mean(0) + C * z / len(gradients) * noise
    return by_norm(released[None], C)[0]


def noise_not_divided(gradients: Tensor, C: float, z: float, noise: Tensor) -> Tensor:
    return by_norm(gradients, C).mean(0) + C * z * noise


WRONG: dict[str, dict[str, Any]] = {
    "clip": {
        "clips every coordinate": by_value,
        "clips the mean": clipped_mean,
        "lengthens short gradients, as Algorithm 8 of the thesis": as_printed,
        "makes all gradients equally long": normalising,
        "one factor for the whole batch": one_factor_for_all,
        "divides a row of zeros by its length": lambda gradients, C: (
            C * gradients / gradients.norm(dim=1, keepdim=True)
        ),
        "takes numpy for torch (crash)": lambda gradients, C: gradients * (C / gradients.length()),
    },
    "noise": {
        "forgets the division": lambda C, z, batch_size: C * z,
        "divides twice": lambda C, z, batch_size: C * z / batch_size**2,
        "noise for every example": lambda C, z, batch_size: C * z / batch_size**0.5,
        "forgets C": lambda C, z, batch_size: z / batch_size,
        "doubles the sensitivity": lambda C, z, batch_size: 2 * C * z / batch_size,
        "takes the variance": lambda C, z, batch_size: (C * z / batch_size) ** 2,
    },
    "bug": {
        "leaves the noise before the clip": noise_first,
        "clips the mean": clips_the_mean,
        "clips once more": clips_again,
        "forgets to divide the noise": noise_not_divided,
    },
}


@pytest.mark.parametrize(
    ("name", "what", "says"),
    [
        ("clip", "clips every coordinate", "has turned|longer than C"),
        ("clip", "clips the mean", r"yours has shape \(\d+,\)"),
        ("clip", "lengthens short gradients, as Algorithm 8 of the thesis", "longer than C"),
        ("clip", "makes all gradients equally long", "was short enough"),
        ("clip", "one factor for the whole batch", "was short enough"),
        ("clip", "divides a row of zeros by its length", "length 0, has become nan"),
        ("noise", "divides twice", "divides by B twice"),
        ("noise", "noise for every example", "as if every example had noise of its own"),
        ("bug", "leaves the noise before the clip", "Noise still goes in before the clip"),
        ("bug", "clips the mean", "clips the mean"),
        ("bug", "clips once more", "clips once more"),
    ],
)
def test_a_slip_is_told_in_words(name: str, what: str, says: str) -> None:
    for seed in range(5):
        message = mark(exercises("02")[name], WRONG[name][what], seed).message
        assert re.search(says, message), message


def test_a_clip_in_numpy_is_as_good_as_one_in_torch() -> None:
    def clip(gradients: Tensor, C: float) -> Any:
        rows = gradients.numpy()
        lengths = (rows**2).sum(1, keepdims=True) ** 0.5
        return rows / (lengths / C).clip(1)

    assert mark(exercises("02")["clip"], clip, 0).status == "solved"


def test_a_clip_that_changes_its_argument_is_judged_by_what_it_returns() -> None:
    def clip(gradients: Tensor, C: float) -> Tensor:
        gradients *= (C / gradients.norm(dim=1, keepdim=True)).clamp(max=1)
        return torch.nan_to_num(gradients)

    assert mark(exercises("02")["clip"], clip, 0).status == "solved"
