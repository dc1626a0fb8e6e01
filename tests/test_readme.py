"""What the README shows runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edp_lab.training.processes import Ranks

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
OWN_MODEL = next(block for block in BLOCKS if "PrivateStep" in block)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b != OWN_MODEL])
def test_short_examples_give_what_their_comments_say(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = block.strip().splitlines()
    namespace: dict[str, object] = {}
    for line in lines:
        if "  # " in line and re.fullmatch(r"[\d.]+", line.split("  # ")[1]):
            shown = line.split("  # ")[1]
            assert f"{eval(line, namespace):.3g}" == f"{float(shown):.3g}"
        else:
            exec(line, namespace)


def test_your_own_model_learns_and_two_processes_learn_the_same(tmp_path):
    program = f"{OWN_MODEL}\nprint(repr([p.tolist() for p in model.parameters()]), flush=True)\n"
    program += "from edp_lab.training.processes import end_rank; end_rank(0)\n"
    (tmp_path / "own_model.py").write_text(program)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    alone = subprocess.run(
        [sys.executable, "-m", "own_model"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    accuracy, epsilon = map(float, re.findall(r"\d+\.\d+", alone[0]))
    assert accuracy > 0.9
    assert 1 < epsilon < 30
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with Ranks(2, ["own_model"], threads=1) as ranks:
            together = list(ranks.lines())
    assert together[0] == alone[0]
    numbers = [eval(said[1]) for said in (alone, together)]
    flat = [[x for p in model for row in p for x in (row if isinstance(row, list) else [row])] for model in numbers]
    assert flat[0] == pytest.approx(flat[1], abs=1e-4)
