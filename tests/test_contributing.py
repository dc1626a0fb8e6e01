"""What CONTRIBUTING.md says works as it stands there, and is as short as it promises."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edp_lab
from edp_lab.course.kit.panel import PANELS
from edp_lab.privacy import Accountant, Schedule, gdp_epsilon
from tests.course import test_contract as contract
from tests.privacy.test_accountants import FULL, AccountantContract

ROOT = Path(edp_lab.__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TEXTS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def code(section: str, kind: str = "python") -> str:
    [text] = re.findall(rf"```{kind}\n(.*?)```", TEXTS[section], re.DOTALL)
    return text


def run(section: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "edp_lab.example"}
    exec(compile(code(section), f"<{section}>", "exec"), space)
    return space


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, to be patched by git."""
    if shutil.which("git") is None:
        pytest.skip("applies a patch with git")
    shutil.copytree(Path(edp_lab.__file__).parent, tmp_path / "edp_lab", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def patched(copy: Path, section: str, python: str, **environment: str) -> str:
    """What some Python prints with a section's patch."""
    subprocess.run(["git", "apply", "-"], cwd=copy, input=code(section, "diff"), text=True, check=True)
    environment = {**os.environ, "PYTHONPATH": str(copy), **environment}
    return subprocess.run(
        [sys.executable, "-c", python], cwd=copy, env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("section", [name for name, text in TEXTS.items() if "```python" in text])
def test_the_examples_are_in_the_style_that_ci_asks_for(section: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", "edp_lab/example.py", "-"]
    checked = subprocess.run(command, cwd=ROOT, input=code(section), text=True, capture_output=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("section", TEXTS)
def test_each_addition_takes_at_most_15_lines_beside_imports(section: str) -> None:
    for kind, text in re.findall(r"```(diff|python)\n(.*?)```", TEXTS[section], re.DOTALL):
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("import", "from"))]
        assert sum(line.startswith("+") for line in lines) - 1 <= 15 if kind == "diff" else len(lines) <= 15


def test_a_new_panel_passes_the_contract_of_all_panels(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        panel = run("A panel")["one_release"]()
        assert PANELS["04 one_release"]().result == gdp_epsilon(1.0, 1e-5)
    finally:
        PANELS.pop("04 one_release", None)
    contract.test_each_control_moves_to_its_ends_and_the_figures_follow(panel)
    contract.test_a_bad_value_is_one_sentence_and_the_last_result_stays(panel)
    contract.test_headings_sliders_and_axes_say_what_they_are_and_need_no_colour(panel)
    contract.test_the_command_says_what_is_shown(panel, capsys)


class TestOneOrder(AccountantContract):
    """The accountant of the page, under the contract of all accountants."""

    def build(self, schedule: Schedule) -> Accountant:
        return run("An accountant")["OneOrder"](schedule)

    def schedules(self) -> list[Schedule]:
        return FULL


def test_a_new_corpus_is_found_complete_and_read(copy: Path) -> None:
    with (copy / "edp_lab" / "corpora" / "sources.tsv").open("a") as sources:
        sources.write(code("A corpus", "tsv"))
    folder = copy / "data" / "lights"
    folder.mkdir(parents=True)
    for name, text in {"seq.in": "lamp on", "seq.out": "B-thing O", "label": "switch"}.items():
        (folder / name).write_text(f"{text}\n" * 4)
    told = "from edp_lab.corpora import load_corpus; print(load_corpus('lights').utterances[-1].text)"
    assert patched(copy, "A corpus", told, EDP_LAB_DATA=str(copy / "data")) == "lamp on\n"


def test_a_new_decay_is_accounted_like_the_others(copy: Path) -> None:
    ask = (
        "from edp_lab.privacy import Mechanism, judge\n"
        "mechanism = Mechanism.sound(1.0, 1.0, 8, 8, decay='square-root', tau=3.0)\n"
        "print(mechanism.noise_multiplier(1), judge(mechanism, 5, 1e-5).epsilon)"
    )
    multiplier, epsilon = map(float, patched(copy, "A noise decay", ask).split())
    assert multiplier == pytest.approx(0.5)
    assert epsilon == pytest.approx(gdp_epsilon(sum(1 + 3 * t for t in range(5)) ** 0.5, 1e-5))
