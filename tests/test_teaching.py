"""The statements of docs/teaching are true: answers follow from the library, and plans add up."""

import json
import math
import re
import shlex
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.main import get_command

from edp_lab import privacy
from edp_lab.__main__ import app
from edp_lab.attacks import statistics
from edp_lab.attacks.step_audit import MechanismAudit
from edp_lab.corpora import metrics
from edp_lab.course.kit.text import at_least, at_most, digits, short
from edp_lab.course.nb00_start.panels import TIMES, challenge
from edp_lab.jobs import RESULTS, read_kept
from edp_lab.privacy import Mechanism
from edp_lab.privacy import foundations as basic
from edp_lab.reproduce.printed import explain_table1
from edp_lab.three_phase import perturbation, votes
from tests.test_docs import check_command, code_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "teaching"
NOTEBOOKS = [f"{number:02}" for number in range(12)]


class Question(NamedTuple):
    id: str
    text: str
    options: list[tuple[bool, str, str]]  # whether it is right, the option, the meaning of a wrong one
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


def slower(model: str, method: str) -> float:
    """The time of a step, as a multiple of SGD's."""
    wanted = {"model": model, "method": method, "processes": 1, "batch_size": 64}
    rows = read_kept(RESULTS / "bench_step.json")
    (ratio,) = [row["ratio_to_sgd"] for row in rows if wanted.items() <= row.items()]
    return float(ratio)


def drawn(z0: float, num_devices: int, as_printed: bool = True) -> MechanismAudit:
    return challenge(as_printed, z0, num_devices).audit


def right(audit: MechanismAudit) -> float:
    """The share of correct guesses."""
    return 1 - (audit.false_positive_rate.errors + audit.false_negative_rate.errors) / (2 * audit.draws)


NAMES: dict[str, Any] = {"slower": slower, "drawn": drawn, "right": right, "table1": cache(explain_table1)}
NAMES |= {"at_least": at_least, "at_most": at_most, "digits": digits, "short": short}
NAMES["DELTA_OF_00"] = (2_025 + 2 * sum(TIMES)) ** -1.1  # smart-home's training set, including the hidden numbers
for module in (privacy, statistics, votes, perturbation):
    NAMES |= vars(module)
NAMES |= {"math": math, "np": np, "basic": basic, "composition": basic, "metrics": metrics}
NAMES |= {"printed": printed, "sound": sound}
for path in (ROOT / "edp_lab" / "course").glob("nb*/panels.py"):  # such as nb03
    NAMES[path.parent.name[:4]] = import_module(f"edp_lab.course.{path.parent.name}.panels")


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


def confirm(check: str, page: str) -> None:
    """Fail unless the statement of a comment is true and occurs on the page."""
    said, expression = re.split(r": | = ", check, maxsplit=1)
    value = eval(expression, dict(NAMES))
    if said == "true":
        assert value, expression
        return
    if not isinstance(value, str):
        number, percent = re.fullmatch(r"([\d,.]+)( %)?", said).groups()  # type: ignore[union-attr]
        value = f"{value * (100 if percent else 1):,.{len(number.partition('.')[2])}f}{percent or ''}"
    assert value == said, expression
    assert said in page


@pytest.mark.parametrize("one", QUIZ, ids=lambda one: one.id)
def test_right_answers_are_what_the_library_says(one: Question) -> None:
    for check in one.checks:
        confirm(check, " ".join([one.text, *(" ".join(option[1:]) for option in one.options)]))
    (right,) = [option for is_right, option, _ in one.options if is_right]
    for number in re.findall(r"\d[\d,.]*", right):
        assert number.rstrip(".,") in one.text + " ".join(one.checks), f"nothing computes {number}"


def test_the_key_of_the_lesson_is_what_the_library_says() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    checks = re.findall(r"^<!-- (.+?) -->$", page, re.MULTILINE)
    assert len(checks) > 20
    for check in checks:
        confirm(check, re.sub("<!--.*?-->", "", page))


def rows(page: str, cells: int, first: str) -> list[list[str]]:
    """The rows of a page's tables with this number of cells, the first of which matches this pattern."""
    lines = [line for line in (FOLDER / page).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in found if len(row) == cells and re.fullmatch(first, row[0])]


@cache
def notebook(number: str) -> str:
    """The text of a notebook, without the targets of links."""
    [path] = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    text = "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)


def minutes(number: str) -> dict[str, int]:
    """The exercises of a notebook, with the stated number of minutes."""
    found = re.findall(
        r"\*\*Exercise: [^*]+\*\* \((\d+) minutes.*?^# EXERCISE (\w+)$", notebook(number), re.DOTALL | re.M
    )
    return {name: int(given) for given, name in found}


def exercises(text: str) -> list[tuple[str, str]]:
    """The exercises named in a text, in the form 00 `clip`, `refuted`."""
    found = re.findall(r"\b(\d\d) ((?:`\w+`(?:, )?)+)", text)
    return [(number, name) for number, names in found for name in re.findall(r"`(\w+)`", names)]


def test_lessons_have_90_minutes_and_name_what_the_notebooks_have() -> None:
    time, here, lessons = 90, "", 0
    for span, where, students, *_ in rows("README.md", 5, r"\d+-\d+"):
        start, end = map(int, span.split("-"))
        lessons += start == 0
        assert start == time % 90, span
        time = end
        here = next(iter(re.findall(r"^\d\d", where)), here)
        for heading in re.findall(r"\*([^*]+)\*", where):
            assert f"## {heading}\n" in notebook(here), heading
        if here:
            for control in re.findall(r"\*\*([^*]+)\*\*", students):
                assert f"**{control}**" in notebook(here), control
            assert end - start >= sum(minutes(here)[name] for name in re.findall(r"`(\w+)`", students)), span
    assert (time, lessons) == (90, 5)


def test_twelve_weeks_have_every_exercise_once_and_no_question_twice() -> None:
    weeks = rows("README.md", 5, r"\d+")
    planned = [exercise for week in weeks for exercise in exercises(" ".join(week[3:]))]
    assert sorted(planned) == sorted((number, name) for number in NOTEBOOKS for name in minutes(number))
    questions = re.findall(r"\d\d-\d", " ".join(week[2] for week in weeks))
    assert len(weeks) == 12
    assert len(set(questions)) == len(questions)
    for *_, in_class, _ in weeks:
        for choice in in_class.split(" or "):
            assert sum(minutes(number)[name] for number, name in exercises(choice)) <= 25


def test_the_map_needs_what_the_notebooks_say_that_they_need() -> None:
    mapped = {row[0]: (row[2], row[3]) for row in rows("../../notebooks/README.md", 5, r"\d\d")}
    compared = 0
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        opening = " ".join("".join("".join(cell["source"]) for cell in cells[:3]).split())
        opening = re.sub(r"\]\([^)]*\)", "]", opening)  # without link targets
        pattern = r"(\d+) minutes(?: without exercises)?\.\)? ((?:You need|Notebooks) .*?)(?:The paper|#|$)"
        needed = re.search(pattern, opening)
        if needed:
            compared += 1
            assert needed[1] == mapped[path.name[:2]][0], path.name
            assert re.findall(r"\b\d\d\b", needed[2]) == re.findall(r"\d\d", mapped[path.name[:2]][1]), path.name
    assert compared >= 9


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_pages_name_what_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in code_of(text):
        if "edp-lab " in line:
            check_command(get_command(app), shlex.split(line[line.index("edp-lab ") :])[1:])
    for count in re.findall(r"(\d+) questions", text.split("\n\n## ")[0]):
        assert int(count) == len(QUIZ)
