"""The long checks in short: that they look at what they say, and that they would notice."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from edp_lab.cli import app
from edp_lab.reproduce.verify import check, first_draws, passed, random_setting


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


def test_each_thing_that_is_wrong_is_noticed():
    errors = dict.fromkeys(("too_small", "closed_form_error", "renyi_error", "repeated_first_draws"), 0)
    assert passed({**errors, "audits": 2000, "refuted": 100})
    for worse in ({"refuted": 140}, *({name: 1} for name in errors)):
        assert not passed({**errors, "audits": 2000, "refuted": 100, **worse})


def test_verify_command(tmp_path):
    out = tmp_path / "verified.json"
    answer = CliRunner().invoke(app, ["verify", "--settings", "10", "--json", "--out", str(out)])
    assert answer.exit_code == 0
    verdict = json.loads(answer.stdout)
    assert verdict == json.loads(out.read_text())
    assert (verdict["settings"], verdict["too_small"], verdict["repeated_first_draws"]) == (10, 0, 0)
    assert "torch" in verdict["versions"]
