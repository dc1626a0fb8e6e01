"""What docs/teaching says is so: quiz answers follow from the library, every exercise has its points, plans add up."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from edp_lab import privacy
from edp_lab.attacks import statistics
from edp_lab.attacks.audit import bounds
from edp_lab.corpora import metrics
from edp_lab.course.nb01_coins.compute import belief
from edp_lab.course.nb05_models.compute import look_at
from edp_lab.course.nb06_tradeoff.compute import explore, load_grid
from edp_lab.privacy import Mechanism, composition
from edp_lab.privacy import foundations as basic
from edp_lab.three_phase import pate, perturbation

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "teaching"
NOTEBOOKS = [f"{number:02}" for number in range(12)]


class Question(NamedTuple):
    id: str
    text: str
    options: list[tuple[bool, str, str]]  # is it right, the option, what a wrong one means
    checks: list[str]


def read_quiz() -> list[Question]:
    text = (FOLDER / "quiz.md").read_text(encoding="utf-8")
    return [question(*found) for found in re.findall(r"^### (\S+) [^\n]+\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.M)]


def question(id: str, body: str) -> Question:
    options = [
        (tick == "x", option, meaning)
        for tick, option, meaning in re.findall(r"^- \[([ x])\] (.+?)(?: — \*(.+)\*)?$", body, re.M)
    ]
    return Question(id, body.split("- [")[0].strip(), options, re.findall(r"<!-- (.+?) -->", body))


QUIZ = read_quiz()


def printed(num_devices: int, z0: float = 1.0, m: int = 8, **more: Any) -> Mechanism:
    return Mechanism.as_printed(1.0, z0, num_devices, m, alpha="public", **more)


def sound(num_devices: int, z0: float = 1.0, m: int = 8, clip_norm: float = 1.0, **more: Any) -> Mechanism:
    return Mechanism.sound(clip_norm, z0, num_devices, m, **more)


NAMES = {name: value for module in (privacy, statistics, bounds, pate, perturbation) for name, value in vars(module).items()}
NAMES |= {"math": math, "np": np, "basic": basic, "composition": composition, "metrics": metrics, "belief": belief}
NAMES |= {"look_at": look_at, "explore": explore, "load_grid": load_grid, "printed": printed, "sound": sound}


def test_there_are_questions_on_every_notebook() -> None:
    assert len(QUIZ) >= 40
    assert len({one.id for one in QUIZ}) == len(QUIZ)
    for notebook in NOTEBOOKS:
        assert sum(one.id.startswith(f"{notebook}-") for one in QUIZ) >= 2


@pytest.mark.parametrize("one", QUIZ, ids=lambda one: one.id)
def test_one_option_is_right_and_every_wrong_one_says_what_it_means(one: Question) -> None:
    assert one.text.endswith("?")
    assert [right for right, *_ in one.options].count(True) == 1
    assert len(one.options) >= 3
    assert len({option for _, option, _ in one.options}) == len(one.options)
    for right, _, meaning in one.options:
        assert bool(meaning) != right


@pytest.mark.parametrize("one", QUIZ, ids=lambda one: one.id)
def test_right_answers_are_what_the_library_says(one: Question) -> None:
    for check in one.checks:
        said, expression = re.split(r": | = ", check, maxsplit=1)
        value = eval(expression, dict(NAMES))
        if said == "true":
            assert value, expression
            continue
        number, percent = re.fullmatch(r"([\d,.]+)( %)?", said).groups()  # type: ignore[union-attr]
        digits = len(number.partition(".")[2])
        assert f"{value * (100 if percent else 1):,.{digits}f}" == number, expression
        assert said in " ".join([one.text, *(" ".join(option[1:]) for option in one.options)])
    (right,) = [option for is_right, option, _ in one.options if is_right]
    for number in re.findall(r"\d[\d,.]*", right):
        assert number.rstrip(".,") in one.text + " ".join(one.checks), f"nothing computes {number}"
