"""``edp-lab course lab``: a student's own copy of the course, which follows it and loses nothing."""

import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from edp_lab.cli.course import DEFAULT_NOTEBOOKS
from edp_lab.course.publish import serve
from edp_lab.course.publish.serve import RECORD, own_copy
from edp_lab.files import PARTIAL
from tests.course.conftest import invoked

NAMES = ["00_start.ipynb", "01_next.ipynb", "glossary.md", "images/a.png"]
KILLED = """
import os, sys
from pathlib import Path
from edp_lab.course.publish.serve import own_copy
left, replace = int(sys.argv[3]), os.replace
def killed(*paths):
    global left
    if not left:
        os.kill(os.getpid(), 9)
    left -= 1
    replace(*paths)
os.replace = killed
own_copy(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A course with solutions and sources, all of the first edition."""
    folder = tmp_path / "course"
    for name in [*NAMES, "README.md", "instructor/00_start.ipynb", "source/00_start.ipynb"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name}, first edition")
    return folder


def new_edition(course: Path) -> None:
    for path in course.rglob("*.*"):
        path.write_text(path.read_text().replace("first", "second"))


def texts(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((RECORD, PARTIAL))]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_students_get_neither_solutions_nor_sources_and_instructors_all(course: Path, tmp_path: Path) -> None:
    assert own_copy(course, tmp_path / "mine") == []
    assert sorted(texts(tmp_path / "mine")) == NAMES
    assert own_copy(course, tmp_path / "mine", instructor=True) == []
    assert texts(tmp_path / "mine") == texts(course)


def test_what_was_changed_stays_and_what_was_not_follows_the_course(course: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    own_copy(course, mine)
    (mine / "00_start.ipynb").write_text("my work")
    (mine / "my_own.ipynb").write_text("my own")
    assert own_copy(course, mine) == []  # no newer edition yet
    new_edition(course)
    for _ in range(2):
        assert own_copy(course, mine) == ["00_start.ipynb"]
        assert texts(mine).pop("00_start.ipynb") == "my work"
        assert texts(mine).pop("my_own.ipynb") == "my own"
        assert [texts(mine)[name] for name in NAMES[1:]] == [f"{name}, second edition" for name in NAMES[1:]]
    (mine / "00_start.ipynb").unlink()
    assert own_copy(course, mine) == []
    assert texts(mine)["00_start.ipynb"] == "00_start.ipynb, second edition"


def test_a_notebook_that_was_only_looked_at_follows_and_one_that_was_run_stays(course: Path, tmp_path: Path) -> None:
    cells = [new_markdown_cell("# A\n\ntext"), new_code_cell("1 + 1")]
    for name in NAMES[:2]:
        nbformat.write(new_notebook(cells=cells), course / name)
    mine = tmp_path / "mine"
    own_copy(course, mine)
    looked, ran = (nbformat.read(mine / name, as_version=4) for name in NAMES[:2])
    looked.metadata["language_info"] = {"name": "python", "version": "3.12"}  # as JupyterLab does
    nbformat.write(looked, mine / NAMES[0])
    ran.cells[1].outputs = [new_output("stream", text="2")]
    nbformat.write(ran, mine / NAMES[1])
    for name in NAMES[:2]:
        nbformat.write(new_notebook(cells=[*cells, new_markdown_cell("more")]), course / name)
    assert own_copy(course, mine) == [NAMES[1]]
    assert [len(nbformat.read(mine / name, as_version=4).cells) for name in NAMES[:2]] == [3, 2]


@pytest.mark.parametrize("record", [None, "", "[1]", '{"00_start.ipynb": '])
def test_without_its_record_nothing_that_differs_is_overwritten(course: Path, tmp_path: Path, record: str) -> None:
    mine = tmp_path / "mine"
    own_copy(course, mine)
    (mine / "00_start.ipynb").write_text("my work")
    (mine / RECORD).unlink() if record is None else (mine / RECORD).write_text(record)
    assert own_copy(course, mine) == ["00_start.ipynb"]
    assert texts(mine)["00_start.ipynb"] == "my work"
    new_edition(course)
    assert own_copy(course, mine) == ["00_start.ipynb"]  # the others are known again


@pytest.mark.parametrize("done", range(len(NAMES) + 1))
def test_a_kill_in_the_middle_leaves_no_half_file(course: Path, tmp_path: Path, done: int) -> None:
    mine = tmp_path / "mine"
    own_copy(course, mine)
    new_edition(course)
    command = [sys.executable, "-c", KILLED, str(course), str(mine), str(done)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    editions = [texts(mine)[name].removeprefix(f"{name}, ") for name in NAMES]
    assert editions == done * ["second edition"] + (len(NAMES) - done) * ["first edition"]
    assert own_copy(course, mine) == []
    assert texts(mine) == {name: f"{name}, second edition" for name in NAMES}


def test_command_opens_the_copy_and_says_what_is_newer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = []
    monkeypatch.setattr(serve, "serve", lambda command, environment: started.append(command) or 0)
    monkeypatch.chdir(tmp_path)
    mine, before = tmp_path / "edp-lab-course", texts(DEFAULT_NOTEBOOKS / "instructor")
    assert invoked("course", "lab", "--no-browser").stderr == f"your own notebooks are in {mine}\n"
    assert started[0][-2:] == [str(mine), "--no-browser"]
    assert not any((mine / name).exists() for name in ("instructor", "source", "README.md"))
    (mine / "00_start.ipynb").write_text("my work")
    (mine / RECORD).unlink()
    said = invoked("course", "lab", "--instructor").stderr.splitlines()
    assert said[1:] == [
        "there is a newer 00_start.ipynb: yours stays; to get the new one, move yours away and start again"
    ]
    assert (mine / "00_start.ipynb").read_text() == "my work"
    assert texts(mine / "instructor") == before == texts(DEFAULT_NOTEBOOKS / "instructor")
