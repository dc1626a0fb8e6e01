"""Runs that compare decays cost the same epsilon, and are paired by seed."""

from __future__ import annotations

import pytest

from edp_lab.privacy import judge
from edp_lab.reproduce.decay import ARMS, changes, config


@pytest.mark.parametrize("arm", ARMS)
def test_every_decay_has_the_epsilon_of_constant_noise(arm) -> None:
    steady, falling = (config("atis", 0, *one) for one in (ARMS[0], arm))
    assert falling.lr_schedule == "constant"
    assert (falling.decay, falling.tau) == (arm if arm[1] else (steady.decay, steady.tau))
    both = [judge(one.mechanism(), one.epochs, 1e-4, seed_published=False).epsilon for one in (steady, falling)]
    assert both[1] == pytest.approx(both[0], rel=1e-9)


def test_changes_are_paired_by_seed() -> None:
    sers = {"none": (0.1, 0.2), "linear": (0.11, 0.22)}
    rows = [
        {"corpus": "atis", "seed": seed, "decay": decay, "tau": tau, "ser": sers[decay][seed]}
        for seed in (0, 1)
        for decay, tau in (("none", 0.0), ("linear", 0.3))
    ]
    [change] = changes(rows).values()
    assert (change.mean, change.half_width) == (pytest.approx(10), pytest.approx(0, abs=1e-9))
