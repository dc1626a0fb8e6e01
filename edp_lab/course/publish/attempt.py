"""The process in which `grading` runs one submission: ``python -m edp_lab.course.publish.attempt FOLDER``.

FOLDER/job.json has the notebook without its solutions, the exercises to judge, the text of every exercise cell, and
the seed. FOLDER/verdicts appears once all is imported, and gets a line for each exercise that was judged; an endless
loop or a crash leaves the lines before it. What the submission prints goes nowhere.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from edp_lab.course.kit.exercises import Exercise, Mark, exercises, mark, stopped
from edp_lab.course.publish.exercise_cells import answer, context


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
