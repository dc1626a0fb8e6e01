"""What notebooks/howto.md says works as it stands there, and is as short as it promises."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import edp_lab
from edp_lab.privacy import gdp_epsilon

PAGE = Path(edp_lab.__file__).parents[1] / "notebooks" / "howto.md"
BLOCKS = re.findall(r"```(diff|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
ASK = """
from edp_lab.privacy import Mechanism, judge
mechanism = Mechanism.sound(1.0, 1.0, 8, 8, decay="square-root", tau=3.0)
print(mechanism.noise_multiplier(1), judge(mechanism, 5, 1e-5).epsilon)
"""


def code(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


def test_each_extension_takes_at_most_15_lines_beside_imports() -> None:
    for kind, text in BLOCKS:
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("import", "from"))]
        assert sum(line.startswith("+") for line in lines) - 1 <= 15 if kind == "diff" else len(lines) <= 15


@pytest.mark.skipif(shutil.which("git") is None, reason="applies a patch with git")
def test_a_new_decay_is_accounted_like_the_others(tmp_path: Path) -> None:
    shutil.copytree(Path(edp_lab.__file__).parent, tmp_path / "edp_lab", ignore=shutil.ignore_patterns("__pycache__"))
    [patch] = code("diff")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
    told = subprocess.run([sys.executable, "-c", ASK], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    multiplier, epsilon = map(float, told.split())
    assert multiplier == pytest.approx(0.5)
    assert epsilon == pytest.approx(gdp_epsilon(sum(1 + 3 * t for t in range(5)) ** 0.5, 1e-5))


def test_a_new_accountant_is_never_below_the_truth_and_refuses_what_it_cannot_judge() -> None:
    scope: dict[str, object] = {}
    first, second, _ = code("python")
    exec(first + second, scope)
    with pytest.raises(Exception, match="sampling"):
        exec("OneOrder(Schedule([1.0], [10], 0.1)).epsilon(1e-5)", scope)


def test_a_new_panel_follows_its_sliders() -> None:
    scope: dict[str, object] = {}
    exec(code("python")[2], scope)
    panel = scope["panel"]
    panel.set(mu=2.0)  # type: ignore[attr-defined]
    panel.check()  # type: ignore[attr-defined]
    assert panel.result == gdp_epsilon(2.0, 1e-5)  # type: ignore[attr-defined]
    assert panel.figures[0].data[0].y == (panel.result,)  # type: ignore[attr-defined]
