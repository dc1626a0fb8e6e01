"""Grading: each submission in a process of its own, so that one that loops, crashes or lies stops no other."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import nbformat
import pytest
from click.testing import Result
from nbformat.v4 import new_code_cell, new_notebook
from typer.testing import CliRunner

from edp_lab.cli.course import course_app
from edp_lab.course.publish.build import build
from edp_lab.course.publish.grading import Grade, Grader, read_seeds, student_seed, total
from edp_lab.errors import UsageError

TOTAL = """def total(epsilon, releases, delta):
    root = math.sqrt(2 * releases * math.log(1 / delta))
    return min(releases * epsilon, epsilon * root + releases * epsilon * (math.exp(epsilon) - 1))"""
QUESTIONS = ("σ doubles", "Δ and σ both double", "twice as many people", "ε is halved")
DELTA = f"prediction = {dict(zip(QUESTIONS, ('falls', 'stays', 'stays', 'rises'), strict=True))!r}"
LOOP = "def total(epsilon, releases, delta):\n    while True: pass"
CRASH = "import os\nos._exit(3)"
NAME = "01_mini"


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course of one short notebook, with two of the real exercises."""
    folder = tmp_path_factory.mktemp("course")
    cells = [
        "import math, sys\nprint('a panel would stand here')\n1 / 0",
        "seed = 0",
        f"# EXERCISE delta\nprediction = {dict.fromkeys(QUESTIONS)!r}\n# SOLUTION\n{DELTA}",
        'check("delta", prediction)',
        f"# EXERCISE total\ndef total(epsilon, releases, delta):\n    return epsilon\n# SOLUTION\n{TOTAL}",
        'check("total", total)',
    ]
    notebook = new_notebook(cells=[new_code_cell(text, id=f"c{i}") for i, text in enumerate(cells)])
    notebook.cells[1].metadata.tags = ["parameters"]
    (folder / "source").mkdir()
    nbformat.write(notebook, folder / "source" / f"{NAME}.ipynb")
    build(folder)
    return folder


def submit(course: Path, folder: Path, name: str = NAME, **answers: str) -> Path:
    """A student's copy, with new texts below the first lines of exercises."""
    notebook = nbformat.read(course / f"{NAME}.ipynb", as_version=4)
    for cell in notebook.cells:
        for exercise, text in answers.items():
            if cell.source.startswith(f"# EXERCISE {exercise}"):
                cell.source = f"# EXERCISE {exercise}\n{text}"
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / f"{name}.ipynb")
    return folder


def graded(course: Path, folder: Path, timeout: float = 60) -> dict[str, tuple[str, str]]:
    return {row.exercise: (row.status, row.message) for row in Grader(course, timeout).grade(folder, 7)}


def run(course: Path, *arguments: str) -> Result:
    return CliRunner().invoke(course_app, ["grade", *arguments, "--notebooks", str(course)])


def test_a_class_is_graded_whatever_each_one_submits(course: Path, tmp_path: Path) -> None:
    submit(course, tmp_path / "ada", delta=DELTA, total=TOTAL)
    submit(course, tmp_path / "bo" / "week 1", total="total = lambda epsilon, releases, delta: epsilon * releases")
    submit(course, tmp_path / "cy", delta=CRASH, total=TOTAL)
    (tmp_path / "dee").mkdir()
    (tmp_path / "dee" / "01_essay.ipynb").write_text("I could not open it")
    (tmp_path / "eli").mkdir()
    submit(course, tmp_path, "01_nobody")
    result = run(course, str(tmp_path), "--csv")
    assert result.exit_code == 0, result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["student"], row["notebook"], row["exercise"], row["status"]) for row in rows] == [
        ("ada", NAME, "delta", "solved"),
        ("ada", NAME, "total", "solved"),
        ("bo", NAME, "delta", "open"),
        ("bo", NAME, "total", "wrong"),
        ("cy", NAME, "delta", "crashed"),
        ("cy", NAME, "total", "solved"),
        ("dee", "01_essay", "", "unreadable"),
        ("eli", "", "", "unreadable"),
        ("", "01_nobody", "", "unreadable"),
    ]
    assert {row["student"]: row["seed"] for row in rows}["ada"] == str(student_seed("ada"))
    assert "ended with status 3" in rows[4]["message"]
    assert not any("\n" in row["message"] for row in rows)
    assert result.stderr.splitlines() == [
        "ada: 2 of 2 exercises solved",
        "bo: 0 of 2 exercises solved; wrong: 01 total; open: 01 delta",
        "cy: 1 of 2 exercises solved; crashed: 01 delta",
        "dee: 0 of 0 exercises solved; unreadable: 01_essay",
        "eli: 0 of 0 exercises solved; unreadable: no notebook",
        "in no student's folder: 0 of 0 exercises solved; unreadable: 01_nobody",
    ]


def test_an_endless_loop_costs_its_own_exercise_only(course: Path, tmp_path: Path) -> None:
    after = f"{DELTA}\nloops = 1\nwhile loops: pass"
    found = graded(course, submit(course, tmp_path, delta=after, total=TOTAL), timeout=1)
    assert found["delta"] == ("timeout", "it took longer than 1 s: is there an endless loop?")
    assert found["total"][0] == "solved"


def test_only_exercise_cells_run_and_a_name_from_elsewhere_is_explained(course: Path, tmp_path: Path) -> None:
    folder = submit(course, tmp_path, delta="prediction = helper()", total=TOTAL)
    status, message = graded(course, folder)["delta"]
    assert status == "wrong"
    assert message.startswith("your code stops with NameError: name 'helper' is not defined, in line 2 of the cell")
    assert message.endswith("(of a submission, only the cells of exercises are run)")


def test_a_cell_without_its_first_line_is_found_by_its_id_and_a_lost_one_is_named(course: Path, tmp_path: Path) -> None:
    folder = submit(course, tmp_path, total=TOTAL)
    stored = json.loads((folder / f"{NAME}.ipynb").read_text())
    stored["cells"][4]["source"] = TOTAL
    del stored["cells"][2]
    (folder / f"{NAME}.ipynb").write_text(json.dumps(stored))
    found = graded(course, folder)
    assert found["total"][0] == "solved"
    assert found["delta"] == ("missing", "no cell begins with `# EXERCISE delta`")


def test_an_answer_may_use_an_earlier_one_and_the_students_seed(course: Path, tmp_path: Path) -> None:
    uses = f"assert seed == 7 and prediction\n{TOTAL}"
    assert graded(course, submit(course, tmp_path, delta=DELTA, total=uses))["total"][0] == "solved"


def test_what_was_judged_before_a_loop_stays_and_nonsense_among_the_verdicts_is_left_out(
    course: Path, tmp_path: Path
) -> None:
    nonsense = f"""{DELTA}\nopen('verdicts', 'a').write('[1]\\n{{"exercise": "x"}}\\nhalf a li\\n')"""
    found = graded(course, submit(course, tmp_path, delta=nonsense, total=LOOP), timeout=1)
    assert {name: status for name, (status, _) in found.items()} == {"delta": "solved", "total": "timeout"}


def test_seeds_come_from_a_file_or_from_the_name(course: Path, tmp_path: Path) -> None:
    submit(course, tmp_path / "ada", "01_a")
    seeds = tmp_path / "seeds.csv"
    seeds.write_text("student,seed\nada,12\n")
    assert [row["seed"] for row in csv.DictReader(io.StringIO(run(
        course, str(tmp_path), "--csv", "--seed-from", str(seeds)).stdout))] == ["12", "12"]  # fmt: skip
    assert student_seed("ada") == 4260250381  # for good: a second grading must try the same cases
    assert student_seed("Zo\u00eb") == student_seed("Zoe\u0308")  # as two systems write one name
    assert len({student_seed(name) for name in ("ada", "bo", "cy")}) == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name,seed\nada,1\n", "no columns `student` and `seed`"),
        ("student,seed\nada,-1\n", "gives 'ada' the seed '-1'"),
        ("student,seed\nada\n", "gives 'ada' the seed None"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_seeds_that_does_not_fit_is_refused(tmp_path: Path, text: str | None, sentence: str) -> None:
    if text is not None:
        (tmp_path / "seeds.csv").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        read_seeds(tmp_path / "seeds.csv")


def test_a_folder_without_students_or_a_missing_seed_is_refused(course: Path, tmp_path: Path) -> None:
    assert isinstance(run(course, str(tmp_path)).exception, UsageError)
    (tmp_path / "ada").mkdir()
    (tmp_path / "seeds.csv").write_text("student,seed\nbo,1\n")
    refused = run(course, str(tmp_path), "--seed-from", str(tmp_path / "seeds.csv")).exception
    assert str(refused) == "the file of seeds lacks ada: add a line for each"


def test_the_help_says_that_submitted_code_is_executed() -> None:
    assert "SUBMITTED CODE IS EXECUTED" in " ".join(CliRunner().invoke(course_app, ["grade", "--help"]).stdout.split())


def test_of_two_files_for_one_notebook_the_better_answer_counts() -> None:
    rows = [Grade("ada", f"01_{file}", "total", status, "", 0) for file, status in (("a", "solved"), ("b", "open"))]
    assert total(rows) == "1 of 1 exercises solved"
    assert total([*rows[1:], Grade("ada", "x", "", "unreadable", "", 0)]) == (
        "0 of 1 exercises solved; open: 01 total; unreadable: x"
    )
