"""What is said of decays at equal epsilon is what the committed runs tell; runs that compare them cost the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edp_lab.privacy import judge
from edp_lab.reproduce.decay import ARMS, changes, config
from edp_lab.reproduce.paper.runs import Change

ROOT = Path(__file__).parents[2]


def test_sentences_on_decay_state_what_table_1s_runs_tell() -> None:
    kept = [json.loads(path.read_text("utf-8")) for path in (ROOT / "data/results/cells").glob("[0-9a-f]*.json")]
    ser = {one["run"]: one["ser"] for one in kept if "run" in one}
    cells = json.loads((ROOT / "data/results/table1.json").read_text("utf-8"))
    own = {(c["model"], c["corpus"], c["variant"], c["decay"]): [ser[run] for run in c["runs"]] for c in cells}
    found = [
        Change.of(str(key), own[*key[:3], "none"], values)
        for key, values in own.items()
        if key[3] in ("linear", "exponential")
    ]
    assert all(change.mean > 0 for change in found)
    least, most = (round(end(change.mean for change in found)) for end in (min, max))
    beyond = sum(change.rises for change in found)
    for page in ("docs/results.md", "data/results/README.md"):
        said = " ".join((ROOT / page).read_text("utf-8").split())
        assert f"the {len(found)} decays than" in said.replace("each of 24", "each of the 24"), page
        assert f"by {least} to {most} %" in said
        assert f"and for {beyond} of them beyond chance" in said


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
