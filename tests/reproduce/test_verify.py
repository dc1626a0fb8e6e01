"""The long checks in short: that they look at what they say, and that they would notice."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from edp_lab.cli import app
from edp_lab.privacy import Mechanism
from edp_lab.reproduce import verify_mechanisms
from edp_lab.reproduce.verify import check, first_draws, passed, random_setting
from edp_lab.reproduce.verify_mechanisms import TRIALS, verified, verify_mechanism


@pytest.mark.parametrize("sampled", [False, True])
def test_an_epsilon_that_is_too_small_is_noticed(sampled):
    setting = next(s for s in (random_setting(0, n, sampled) for n in range(50)) if s.epsilon > 2)
    assert not check(setting, peer=True)["too_small"]
    assert check(setting._replace(epsilon=setting.epsilon * 0.5), peer=False)["too_small"]


def test_the_peers_agree_and_60_000_keys_steps_and_devices_give_distinct_first_draws():
    assert check(random_setting(0, 3, False), peer=False)["closed_form_error"] < 1e-3
    assert check(random_setting(0, 3, True), peer=True)["renyi_error"] < 1e-4
    # Three million are `edp-lab verify --long`; a generator of 32 seed bits would repeat a thousand of those.
    assert len(np.unique(first_draws(range(60_000)))) == 60_000


def sweep(name, monkeypatch, settings, most=1.0):
    """Small epsilons alone, which cost little; the others are `edp-lab verify --long`."""
    monkeypatch.setattr(verify_mechanisms, "EPSILONS", (0.05, most))
    return verified([verify_mechanism(name, 0, number) for number in range(settings)])


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


def test_verify_command(tmp_path):
    out = tmp_path / "verified.json"
    answer = CliRunner().invoke(app, ["verify", "--settings", "10", "--mechanisms", "1", "--json", "--out", str(out)])
    assert answer.exit_code == 0
    verdict = json.loads(answer.stdout)
    assert verdict == json.loads(out.read_text())
    assert (verdict["settings"], verdict["too_small"], verdict["repeated_first_draws"]) == (10, 0, 0)
    assert {name: one["settings"] for name, one in verdict["mechanisms"].items()} == dict.fromkeys(TRIALS, 1)
    assert "torch" in verdict["versions"]
