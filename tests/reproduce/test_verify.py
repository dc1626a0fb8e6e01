"""The long checks in short: that they look at what they say, and that they would notice."""

import json
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from edp_lab.cli import app
from edp_lab.privacy import Mechanism
from edp_lab.reproduce import verify
from edp_lab.reproduce.verify import (
    TRIALS,
    check_everyone,
    check_sampled,
    first_draws,
    floor,
    passed,
    peer,
    random_setting,
    released,
    verified,
    verify_mechanism,
)


def test_an_epsilon_that_is_too_small_is_noticed():
    everyone, sampled = (
        next(s for s in (random_setting(0, n, how) for n in range(50)) if s.epsilon > 2) for how in (False, True)
    )
    for setting, check in ((everyone, check_everyone), (sampled, partial(check_sampled, compared=False, renyi=False))):
        assert not check(setting)["too_small"]
        assert check(setting._replace(epsilon=setting.epsilon * 0.97))["too_small"]


@pytest.mark.parametrize("number", [3, 6, 31])
def test_the_floor_is_below_dp_accountings_ceiling_and_hardly_below_ours(number):
    schedule, delta, epsilon = random_setting(0, number, True)
    high = peer(released(schedule), delta, epsilon, pessimistic=True, bins=200, sharp=True)
    assert epsilon * 0.97 < floor(schedule, delta, epsilon) < high


def test_the_peers_agree_and_60_000_keys_steps_and_devices_give_distinct_first_draws():
    assert check_everyone(random_setting(0, 3, False))["closed_form_error"] < 1e-3
    row = check_sampled(random_setting(0, 3, True), compared=True, renyi=True)
    assert row["renyi_error"] < 1e-4
    assert row["distribution_excess"] < 1e-3
    # Three million are `edp-lab verify --long`; a generator of 32 seed bits would repeat a thousand of those.
    assert len(np.unique(first_draws(range(60_000)))) == 60_000


def sweep(name, monkeypatch, settings, most=1.0):
    """Small epsilons alone, which cost little; the others are `edp-lab verify --long`."""
    monkeypatch.setattr(verify, "OF_MECHANISMS", (0.05, most))
    return verified([verify_mechanism(0, name, number) for number in range(settings)])


@pytest.mark.parametrize("name", TRIALS)
def test_mechanisms_lie_between_the_peers_bounds_or_cited_ones(name, monkeypatch):
    found = sweep(name, monkeypatch, 25 if name == "random allocation" else 9)
    assert (found["too_small"], found["too_large"]) == (0, 0)
    assert found["least_ours_over_low"] < 1.1  # the bounds could tell


@pytest.mark.parametrize(
    ("name", "fault", "wrong"),
    [
        ("speakers", "sensitivity", lambda self, adjacency=None: self.clip_norm),  # also where several share a clip
        ("eDP-SGD under Poisson sampling", "releases_per_epoch", property(lambda self: int(1 / self.sampling_rate))),
        ("noised layer scales", "scales_noise_std", lambda self: 0.5 * self.z0 * self.sensitivity()),
    ],
)
def test_a_step_that_does_other_than_is_accounted_is_noticed(name, fault, wrong, monkeypatch):
    monkeypatch.setattr(Mechanism, fault, wrong)
    assert sweep(name, monkeypatch, 6)["too_small"]


def test_each_thing_that_is_wrong_is_noticed():
    errors = dict.fromkeys(
        ("too_small", "closed_form_error", "renyi_error", "distribution_excess", "repeated_first_draws"), 0
    )
    well = {**errors, "audits": 2000, "refuted": 100, "mechanisms": {"one": {"too_small": 0, "too_large": 0}}}
    assert passed(well)
    outside = (
        {"mechanisms": {"one": {"too_small": 0, "too_large": 0, side: 1}}} for side in ("too_small", "too_large")
    )
    for worse in ({"refuted": 140}, *({name: 1} for name in errors), *outside):
        assert not passed({**well, **worse})


def test_verify_command(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(verify, "BLOCK", 4)  # so that several blocks come together
    out = tmp_path / "verified.json"
    answer = CliRunner().invoke(app, ["verify", "--settings", "10", "--mechanisms", "1", "--json", "--out", str(out)])
    assert answer.exit_code == 0
    verdict = json.loads(answer.stdout)
    assert verdict == json.loads(out.read_text())
    assert (verdict["sampled"], verdict["too_small"], verdict["repeated_first_draws"]) == (10, 0, 0)
    assert {name: one["settings"] for name, one in verdict["mechanisms"].items()} == dict.fromkeys(TRIALS, 1)
    assert "torch" in verdict["versions"]
