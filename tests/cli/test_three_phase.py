"""``edp-lab three-phase run``: a readable table, JSON alone on standard output, and one sentence for bad input."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from edp_lab.cli.three_phase import three_phase_app
from edp_lab.errors import UsageError


@pytest.fixture
def cli(capsys):
    """Run it in this process: (stdout, stderr)."""

    def run(*arguments: str) -> tuple[str, str]:
        three_phase_app(["run", *arguments], standalone_mode=False)
        return capsys.readouterr()

    return run


def test_a_run_says_what_the_thesis_says_and_what_holds(cli):
    out, err = cli("--epochs", "1", "--instructors", "2")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 120
    assert "phases 1, 2, 3 on digits: 1,197 private training images, 540 public, 60 to test on; cnn, seed 0" in out
    rows = {
        name: next(line for line in lines if line.strip().startswith(name)) for name in ("understudy", "plain model")
    }
    assert "31.73" in rows["understudy"]
    assert "none" in rows["plain model"]
    assert any(line.strip().startswith("2 instructors") and "[" in line for line in lines)
    assert "epsilon of one label: 0.2; of 540: 31.73 (plain sum 108)" in out
    assert "void: seed published" in out
    assert "not releasable" in out
    done = [line for line in err.splitlines() if "epochs" in line]
    assert len(done) == len(err.splitlines()) == 5


def test_json_is_the_record_and_nothing_else(cli):
    out, _ = cli(
        "--epochs", "1", "--instructors", "2", "--phases", "2,3", "--vote", "gaussian", "--labels", "50", "--json"
    )
    record = json.loads(out)
    assert record["settings"]["phases"] == [2, 3]
    assert record["labels"]["queries"] == 50
    assert record["image_guarantee"] is None
    assert record["parts"][-1]["epsilon"] == record["privacy"]["epsilon"]


def test_a_vote_without_noise_promises_nothing(cli):
    out, _ = cli("--epochs", "1", "--phases", "3", "--vote", "hard")
    assert "hard vote of the plain model: 540 labels without noise, no guarantee." in out
    out, _ = cli("--epochs", "1", "--phases", "1")
    assert "No label was released" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--instructors", "500"), "500 instructors cannot all see class"),
        (("--sigma", "-1"), "sigma is -1"),
        (("--vote-epsilon", "0"), "epsilon of a vote is 0"),
        (("--phases", "1;2"), "phases are '1;2'"),
        (("--phases", "4"), "phases are 4"),
        (("--data", "circles"), "no images"),
        (("--model", "resnet"), "unknown network 'resnet'"),
    ],
)
def test_bad_input_is_one_sentence(cli, arguments, message):
    with pytest.raises(UsageError, match=message) as error:
        cli(*arguments)
    assert "\n" not in str(error.value)


def test_the_command_loads_nothing_heavy_before_it_runs():
    code = "import sys, edp_lab.cli.three_phase; print('torch' in sys.modules, 'scipy' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert answer == "False False\n"
