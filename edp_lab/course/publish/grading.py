"""Grade submitted notebooks: their exercise cells, run in processes of their own and judged by `kit.exercises`.

Launch: ``edp-lab course grade submissions --csv > grades.csv``. One folder per student, named after the student, holds
notebooks whose names begin with their number: `submissions/ada/01_coins_to_composition.ipynb`.

**Submitted code is executed**, with the rights of whoever grades: a process of its own keeps an endless loop or a crash
away from the others, it keeps no secret and protects no file. Use a container or an account that has nothing to lose.
An answer that means to could also forge its own verdict.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from edp_lab.course.kit.exercises import Exercise, Mark, exercises, mark, stopped
from edp_lab.course.publish.build import answer, context, exercise_cells, exercise_name, read_source, student
from edp_lab.errors import UsageError

STATUSES = ("solved", "wrong", "open", "missing", "timeout", "crashed", "unreadable")
IMPORTING = 300  # seconds for a notebook's imports


@dataclass(frozen=True)
class Grade:
    """One row of the table.

    Attributes:
        student: the name of their folder.
        notebook: the file without its suffix; empty where there is none.
        exercise: its name; empty where the file could not be graded at all.
        status: "solved", "wrong", "open" (still the stub), "missing" (the cell is gone), "timeout", "crashed" (the
            process ended), or "unreadable" (no notebook of the course).
        message: one or two sentences for the student.
        seed: of the cases on which the answers were tried.
    """

    student: str
    notebook: str
    exercise: str
    status: str
    message: str
    seed: int


def student_seed(name: str) -> int:
    """The seed of a student who was given none: the same everywhere, from 0 to 2^32 - 1."""
    return int.from_bytes(sha256(unicodedata.normalize("NFC", name).encode()).digest()[:4])


def read_seeds(path: Path) -> dict[str, int]:
    """Seeds by student, from a CSV file with the columns student and seed, as `edp-lab course grade --csv` writes it.

    Raises:
        UsageError: no such file, no such columns, or a seed that is no whole number from 0 on.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [(row["student"], row["seed"]) for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"the seeds in {path} cannot be read ({error}): give a CSV file") from error
    except KeyError:
        raise UsageError(f"{path} has no columns `student` and `seed`: its first line must name them") from None
    for name, seed in rows:
        if not (seed and seed.isdecimal()):
            raise UsageError(f"{path} gives {name!r} the seed {seed!r}: give a whole number from 0 on")
    return {name: int(seed) for name, seed in rows}


def students(folder: Path, seeds: Mapping[str, int] | None = None) -> dict[Path, int]:
    """The folders of the students and the seed of each.

    Raises:
        UsageError: there is no folder with sub-folders, or `seeds` lacks a student.
    """
    folders = sorted(path for path in folder.glob("*") if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise UsageError(f"{folder} has no folders: give each student one, such as {folder / 'ada'}")
    lacking = [path.name for path in folders if seeds is not None and path.name not in seeds]
    if lacking:
        raise UsageError(f"the file of seeds lacks {', '.join(lacking)}: add a line for each")
    return {path: student_seed(path.name) if seeds is None else seeds[path.name] for path in folders}


def strays(folder: Path) -> list[Grade]:
    """Rows for the notebooks that lie in no student's folder."""
    message = "it is in no student's folder: put it into one that is named after the student"
    return [Grade("", path.stem, "", "unreadable", message, 0) for path in sorted(folder.glob("*.ipynb"))]


class Grader:
    """Grades one student after the other.

    Args:
        notebooks_dir: the course's; its `source/` has the notebooks with exercises.
        timeout: seconds that the answers of one notebook may take, after its imports; beyond it, the answer that is
            being judged is given up and the others are tried without it.

    Raises:
        UsageError: there are no sources, or one is not whole.
    """

    def __init__(self, notebooks_dir: Path, timeout: float = 60) -> None:
        sources = {path.name[:2]: read_source(path) for path in sorted((notebooks_dir / "source").glob("*.ipynb"))}
        self._notebooks = {number: student(source) for number, source in sources.items()}
        self._exercises = {number: _places(source) for number, source in sources.items()}
        self._timeout = timeout
        if not any(self._exercises.values()):
            raise UsageError(f"no notebooks with exercises in {notebooks_dir / 'source'}: give --notebooks")

    def grade(self, folder: Path, seed: int) -> list[Grade]:
        """The rows of one student; a submission that cannot be graded has a row that says why."""
        files = sorted(path for path in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
        if not files:
            return [Grade(folder.name, "", "", "unreadable", "the folder has no notebook (*.ipynb)", seed)]
        return [
            Grade(folder.name, path.stem, exercise, status, message, seed)
            for path in files
            for exercise, status, message in self._file(path, seed)
        ]

    def _file(self, path: Path, seed: int) -> Iterator[tuple[str, str, str]]:
        """Exercise, status and message of all the exercises of a file; none where the notebook has no exercises."""
        number = path.name[:2]
        if number not in self._exercises:
            known = ", ".join(number for number, places in self._exercises.items() if places)
            yield "", "unreadable", f"the name does not begin with the number of a notebook ({known})"
            return
        try:
            texts = _submitted(nbformat.read(path, as_version=4), self._exercises[number])
        except Exception:  # nbformat lets through whatever its walk over unexpected content meets
            yield "", "unreadable", "the file is not a notebook"
            return
        verdicts = self._verdicts(number, texts, seed)
        for name in self._exercises[number]:
            yield name, *verdicts.get(name, ("missing", f"no cell begins with `# EXERCISE {name}`"))

    def _verdicts(self, number: str, texts: dict[str, str], seed: int) -> dict[str, tuple[str, str]]:
        """Status and message of each text. What a process did not come to is left to the next one."""
        done: dict[str, tuple[str, str]] = {}
        alive = dict(texts)
        while asked := [name for name in alive if name not in done]:
            job = {"notebook": self._notebooks[number], "number": number, "texts": alive, "asked": asked, "seed": seed}
            verdicts, failure = _run(job, self._timeout)
            found = {verdict.exercise: (verdict.status, verdict.message) for verdict in verdicts}
            if found.keys().isdisjoint(asked):  # the first one is at fault, and nothing before it
                found[asked[0]] = failure
                del alive[asked[0]]
            done |= found
        return done


def _places(source: NotebookNode) -> dict[str, str]:
    """The exercises of a notebook: the ids of their cells, by name."""
    ids = {exercise_name(cell.source): cell.id for cell in source.cells if cell.cell_type == "code"}
    return {name: ids[name] for name in exercise_cells(source)}


def _submitted(notebook: NotebookNode, places: Mapping[str, str]) -> dict[str, str]:
    """The text of each exercise's cell: the one with its first line, or with its id if that line is gone.

    Of two cells with the same first line the last one counts, as in the notebook.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    named = {name: cell.source for cell in code if (name := exercise_name(cell.source)) in places}
    by_id = {cell.get("id"): cell.source for cell in code}
    found = {name: named.get(name, by_id.get(cell_id)) for name, cell_id in places.items()}
    return {name: text for name, text in found.items() if text is not None}


def _run(job: Mapping[str, Any], timeout: float) -> tuple[list[Mark], tuple[str, str]]:
    """The verdicts that a new process came to, and what is to be said of the answer after these, if there is one."""
    with tempfile.TemporaryDirectory(prefix="edp_lab-", ignore_cleanup_errors=True) as folder:
        lines = Path(folder, "verdicts")
        Path(folder, "job.json").write_text(json.dumps(job), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", "edp_lab.course.publish.grading", folder],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that what it starts can be ended with it
        )
        try:
            failure = "crashed", f"the process that ran it ended with status {_wait(process, lines, timeout)}"
        except subprocess.TimeoutExpired:
            failure = "timeout", f"it took longer than {timeout:g} s: is there an endless loop?"
        finally:
            _end(process)
        return _read_verdicts(lines), failure


def _wait(process: subprocess.Popen[bytes], begun: Path, timeout: float) -> int:
    """The exit status, within `timeout` of the moment when a file appears."""
    deadline = time.monotonic() + IMPORTING
    while process.poll() is None and not begun.exists():
        if time.monotonic() > deadline:
            raise UsageError(f"the notebook's imports take longer than {IMPORTING} s: try again when less is running")
        time.sleep(0.02)
    return process.wait(timeout)


def _read_verdicts(lines: Path) -> list[Mark]:
    """The verdicts in a file that the submission could have written to: what is none is left out."""
    found = []
    for line in lines.read_bytes().splitlines() if lines.exists() else ():
        with suppress(ValueError, TypeError):
            verdict = Mark(**json.loads(line))
            if verdict.status in STATUSES:
                found.append(verdict)
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, also where it has ended itself."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def total(grades: Sequence[Grade]) -> str:
    """One student in words: "2 of 6 exercises solved; wrong: 01 delta; open: 10 gnmax, 10 parts".

    Of several files for one notebook, the best answer to each exercise counts.
    """
    best: dict[str, str] = {}
    for grade in sorted(grades, key=lambda grade: STATUSES.index(grade.status)):
        what = f"{grade.notebook[:2]} {grade.exercise}" if grade.exercise else grade.notebook or "no notebook"
        best.setdefault(what, grade.status)
    of = {status: sorted(what for what in best if best[what] == status) for status in STATUSES}
    counted = len(best) - len(of["unreadable"])
    rest = [f"; {status}: {', '.join(of[status])}" for status in STATUSES[1:] if of[status]]
    return f"{len(of['solved'])} of {counted} exercises solved{''.join(rest)}"


# ---- In the process that runs one submission: ``python -m edp_lab.course.publish.grading FOLDER`` -------------------
# FOLDER/job.json has the notebook without its solutions, the exercises to judge, the text of every exercise cell, and
# the seed. FOLDER/verdicts appears once all is imported, and gets a line for each exercise that was judged; an endless
# loop or a crash leaves the lines before it. What the submission prints goes nowhere.


def attempt(notebook: NotebookNode, exercise: Exercise, text: str, space: dict[str, Any], seed: int) -> Mark:
    """The verdict on the text of an exercise cell.

    Args:
        notebook: from which the imports, the parameters and the call of the check are taken.
        exercise: the judge.
        text: of the cell.
        space: names of the student's earlier cells; this cell's are added.
        seed: of the student; it replaces the notebook's parameter, too.
    """
    given = context(notebook, exercise.name)
    given |= {"seed": seed} if "seed" in given else {}
    for name in given.keys() - space.keys():
        space[name] = given[name]
    try:
        answered = answer(notebook, exercise.name, text, space)
    except NotImplementedError:
        return Mark(exercise.name, "open", "still to do")
    except (Exception, SystemExit) as error:  # whatever the student's code does
        alone = " (of a submission, only the cells of exercises are run)" if isinstance(error, NameError) else ""
        return Mark(exercise.name, "wrong", stopped(error) + alone)
    return mark(exercise, answered, seed)


def _work(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    notebook, judges = nbformat.from_dict(job["notebook"]), exercises(job["number"])
    context(notebook, list(judges)[-1])  # imports all that is needed, before the time begins to count
    space: dict[str, Any] = {}
    with (folder / "verdicts").open("x", encoding="utf-8") as file:
        for name, text in job["texts"].items():
            if name in job["asked"]:
                file.write(json.dumps(asdict(attempt(notebook, judges[name], text, space, job["seed"]))) + "\n")
                file.flush()
            else:  # judged by a process before this one, in which a later cell failed
                with suppress(Exception):
                    answer(notebook, name, text, space)


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
    os._exit(0)  # whatever threads the submission has left behind
