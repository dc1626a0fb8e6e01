"""Grade submitted notebooks: their exercise cells, run in processes of their own and judged by `kit.exercises`.

Launch: ``edp-lab course grade submissions --csv > grades.csv``. One folder per student, named after the student, holds
notebooks whose names begin with their number: `submissions/ada/01_coins_to_composition.ipynb`.

**Submitted code is executed.** The module `confined` says what keeps it in its place and what does not. An exercise is
judged here: what a submission's process sends is answers, as plain data, and its functions are asked from here. Folders
and files of seeds that do not fit are refused by `UsageError`; a submission that cannot be graded gets a row.
"""

from __future__ import annotations

import csv
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from edp_lab.course.kit.exercises import STATUSES, Exercise, Mark, Stopped, exercises, in_words, mark
from edp_lab.course.publish.build import answer_text, context, edition, exercise_name, read_sources
from edp_lab.course.publish.confined import SOLUTIONS, Ended, Submission, check_sandbox, confined
from edp_lab.errors import UsageError
from edp_lab.files import regular

LONGEST = 86_400  # seconds: a day
LARGEST = 50 * 10**6  # bytes of a notebook
MESSAGE = 2_000  # characters


@dataclass(frozen=True)
class Grade:
    """One row of the table."""

    student: str  # the name of their folder
    notebook: str  # the file without its suffix; empty where there is none
    exercise: str  # empty where the file could not be graded at all
    # "solved", "wrong", "open" (still the stub), "missing" (the cell is gone), "timeout", "crashed" (the process
    # ended), or "unreadable" (no notebook of the course).
    status: str
    message: str  # one or two sentences for the student
    seed: int  # of the cases on which the answers were tried


def student_seed(name: str) -> int:
    """The seed of a student who was given none: the same everywhere, from 0 to 2^32 - 1."""
    return int.from_bytes(sha256(unicodedata.normalize("NFC", name).encode()).digest()[:4])


def read_seeds(path: Path) -> dict[str, int]:
    """Seeds by student, from a CSV file with the columns student and seed, as `edp-lab course grade --csv` writes."""
    try:
        with regular(path).open(encoding="utf-8-sig", newline="") as file:
            rows = [(row["student"], row["seed"]) for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"the seeds in {path} cannot be read ({error}): give a CSV file") from error
    except KeyError:
        raise UsageError(f"{path} has no columns `student` and `seed`: its first line must name them") from None
    for name, seed in rows:
        if not (seed and seed.isdecimal() and len(seed) <= 20):
            raise UsageError(f"{path} gives {name!r} the seed {seed!r:.40}: give a whole number from 0 on")
    return {name: int(seed) for name, seed in rows}


def students(folder: Path, seeds: Mapping[str, int] | None = None) -> dict[Path, int]:
    """The folders of the students and the seed of each."""
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
        sandbox: execute submissions in bubblewrap.
    """

    def __init__(self, notebooks_dir: Path, timeout: float = 60, sandbox: bool = False) -> None:
        if not 0 < timeout <= LONGEST:
            raise UsageError(f"the timeout is {timeout:g} s: give more than 0 and at most {LONGEST}")
        if sandbox:
            check_sandbox()
        self._hidden = [notebooks_dir / name for name in SOLUTIONS] if sandbox else None
        sources = {name[:2]: source for name, source in read_sources(notebooks_dir).items()}
        self._notebooks = {number: edition(source, for_students=True) for number, source in sources.items()}
        self._exercises = {number: _places(notebook) for number, notebook in self._notebooks.items()}
        self._timeout = timeout
        if not any(self._exercises.values()):
            raise UsageError(f"no notebooks with exercises in {notebooks_dir / 'source'}: give --notebooks")

    def grade(self, folder: Path, seed: int) -> list[Grade]:
        """The rows of one student; a submission that cannot be graded has a row that says why."""
        if folder.is_symlink():  # it may lead anywhere, as to the whole disk
            return [Grade(folder.name, "", "", "unreadable", "the folder is a link: copy what it leads to", seed)]
        files = sorted(path for path in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
        if not files:
            return [Grade(folder.name, "", "", "unreadable", "the folder has no notebook (*.ipynb)", seed)]
        return [
            Grade(folder.name, path.stem, verdict.exercise, verdict.status, verdict.message[:MESSAGE], seed)
            for path in files
            for verdict in self._file(path, seed)
        ]

    def _file(self, path: Path, seed: int) -> Iterator[Mark]:
        """Of all the exercises of a file; none where the notebook has no exercises."""
        number = path.name[:2]
        if number not in self._exercises:
            known = ", ".join(number for number, places in self._exercises.items() if places)
            yield Mark("", "unreadable", f"the name does not begin with the number of a notebook ({known})")
            return
        try:
            if not path.is_file() or path.stat().st_size > LARGEST:  # a pipe would never end
                raise ValueError
            texts = _submitted(nbformat.read(path, as_version=4), self._exercises[number])
        except Exception:  # nbformat lets through whatever its walk over unexpected content meets
            yield Mark("", "unreadable", "the file is not a notebook")
            return
        verdicts = self._verdicts(number, texts, seed) if texts else {}
        for name in self._exercises[number]:
            yield verdicts.get(name, Mark(name, "missing", f"no cell begins with `# EXERCISE {name}`"))

    def _verdicts(self, number: str, texts: Mapping[str, str], seed: int) -> dict[str, Mark]:
        """By exercise, from the text of each. What comes after an endless loop or a crash is left to a new process."""
        notebook, judges = self._notebooks[number], exercises(number)
        setup, alive = context(notebook, list(judges)[-1]), dict(texts)
        found: dict[str, Mark] = {}
        while not found.keys() >= alive.keys():
            name = ""
            try:
                with confined(setup, seed, self._timeout, self._hidden) as submission:
                    for name, text in alive.items():
                        cell = {"cell": text, "name": name, "answer": answer_text(notebook, name)}
                        if name not in found:
                            found[name] = _judged(submission, cell, judges[name], seed)
                            continue
                        with suppress(Stopped, NotImplementedError):  # later cells may need its names
                            submission.ask(cell)
            except Ended as ended:
                found.setdefault(name, Mark(name, ended.status, ended.why))
                del alive[name]
        return found


def _judged(submission: Submission, cell: Mapping[str, str], judge: Exercise, seed: int) -> Mark:
    try:
        answer = submission.ask(cell)
    except NotImplementedError:
        return Mark(judge.name, "open", "still to do")
    except Stopped as error:
        return Mark(judge.name, "wrong", str(error))
    with warnings.catch_warnings(action="ignore"):  # of what is computed from whatever the answer is
        return mark(judge, answer, seed)


def _places(notebook: NotebookNode) -> dict[str, str]:
    """The exercises of a notebook: the ids of their cells, by name."""
    code = (cell for cell in notebook.cells if cell.cell_type == "code")
    return {name: cell.id for cell in code if (name := exercise_name(cell.source))}


def _submitted(notebook: NotebookNode, places: Mapping[str, str]) -> dict[str, str]:
    """The text of each exercise's cell: the one with its first line, or with its id if that line is gone.

    Of two cells with the same first line the last one counts, as in the notebook.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    named = {name: cell.source for cell in code if (name := exercise_name(cell.source)) in places}
    by_id = {cell.get("id"): cell.source for cell in code}
    found = {name: named.get(name, by_id.get(cell_id)) for name, cell_id in places.items()}
    return {name: text for name, text in found.items() if text is not None}


def total(grades: Sequence[Grade]) -> str:
    """One student in words: "2 of 6 exercises solved; wrong: 01 delta; open: 10 gnmax, 10 parts".

    Of several files for one notebook, the best answer to each exercise counts.
    """
    best: dict[str, str] = {}
    for grade in sorted(grades, key=lambda grade: STATUSES.index(grade.status)):
        what = f"{grade.notebook[:2]} {grade.exercise}" if grade.exercise else grade.notebook or "no notebook"
        best.setdefault(what, grade.status)
    return in_words(dict(sorted(best.items())))
