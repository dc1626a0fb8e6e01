"""Run the course: each notebook through papermill, kept as an executed copy and as a web page, with an index.

Launch: ``edp-lab course run`` (what ``make course`` calls). A run fails on any error, also on one
raised in a slider's callback (see ``kernel.py``); a parameter that no notebook has is refused before
anything runs.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError

import edp_lab
from edp_lab.course.publish import pages
from edp_lab.course.publish.kernel import ENGINE, Watch
from edp_lab.course.solutions import read_notebook, solved, title
from edp_lab.errors import UsageError
from edp_lab.files import CARRIED, read_json, regular, write_whole

TIMEOUT = 600.0  # seconds that one cell may take
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class NotebookRun:
    """One executed notebook."""

    path: Path  # of the notebook that was run
    title: str  # its first heading
    seconds: float  # wall-clock time, kernel start included
    memory_mb: float  # the most that kernel and child processes held together (see `Watch`)
    executed: Path  # the executed copy, with outputs, without widget state
    html: Path  # the same as a web page
    error: str | None  # one sentence (notebook, cell, error), or None where every cell ran
    reused: bool = False  # nothing ran: the results of an earlier run are those that this one would have

    @property
    def row(self) -> dict[str, Any]:
        """What ``edp-lab course run --json`` prints of it."""
        told = {"notebook": self.path.stem, "status": "failed" if self.error else "ok"}
        return told | {"seconds": round(self.seconds, 2), "memory_mb": round(self.memory_mb), "error": self.error}


class CellBegun(NamedTuple):
    """A notebook is at a cell that has `done` of the notebook's `of` cells before it."""

    path: Path
    done: int
    of: int


@dataclass(frozen=True)
class CourseRun:
    """All notebooks of one ``run_course``, in course order, and the page that lists them."""

    runs: tuple[NotebookRun, ...]
    index: Path

    @property
    def ok(self) -> bool:
        return all(run.error is None for run in self.runs)


def course_notebooks(notebooks_dir: Path, only: Sequence[str] = ()) -> list[Path]:
    """The notebooks of a folder in course order, or those named in ``only``: "03_step", "03_step.ipynb" or "03"."""
    found = sorted(notebooks_dir.glob("*.ipynb"))
    if not found:
        raise UsageError(f"no notebooks in {notebooks_dir}: run this in a clone of the project, or give --notebooks")
    chosen = set()
    for name in only:
        stem = Path(name).name.removesuffix(".ipynb")
        named = [path for path in found if stem in (path.stem, path.stem.partition("_")[0])]
        if not named:
            names = ", ".join(path.stem for path in found)
            raise UsageError(f"there is no notebook {stem!r} in {notebooks_dir}: choose from {names}")
        chosen.update(named)
    return [path for path in found if path in chosen or not only]


def notebook_parameters(path: Path) -> dict[str, str]:
    """The names in a notebook's ``parameters`` cell and their defaults, as source text; UsageError where it is no
    notebook, names no language, or is saved for a kernel other than ``python3``."""
    try:
        kernel = nbformat.read(regular(path), as_version=4).metadata.get("kernelspec", {}).get("name")
    except FileNotFoundError:
        raise UsageError(f"there is no notebook {path}") from None
    except UsageError:
        raise
    except Exception:  # nbformat lets through whatever its walk over unexpected content meets
        raise UsageError(f"{path} is not a notebook: restore it, for instance with `git checkout`") from None
    if kernel != "python3":
        raise UsageError(f"{path} is saved for the kernel {kernel!r}: set metadata.kernelspec.name to 'python3'")
    try:
        return {name: found["default"] for name, found in papermill.inspect_notebook(path).items()}
    except ValueError:
        raise UsageError(f"{path} names no language: set metadata.kernelspec.language to 'python'") from None


def share_out(notebooks: Iterable[Path], parameters: Mapping[str, Any]) -> dict[Path, dict[str, Any]]:
    """For each notebook those of the parameters that it has. What papermill lets pass is refused by `UsageError`: a
    parameter that none of them has, text for a number or the reverse."""
    known = {path: notebook_parameters(path) for path in notebooks}
    for name, value in parameters.items():
        if not any(name in names for names in known.values()):
            have = ", ".join(dict.fromkeys(have for names in known.values() for have in names)) or "none"
            raise UsageError(f"the chosen notebooks have no parameter {name!r}; they have: {have}")
        for path, source in ((path, names[name]) for path, names in known.items() if name in names):
            try:
                default = ast.literal_eval(source)
            except (ValueError, SyntaxError):
                continue
            if default is not None and isinstance(default, str) != isinstance(value, str):
                kind = "text" if isinstance(default, str) else "a number"
                raise UsageError(f"parameter {name!r} of {path.name} takes {kind} such as {source}, not {value!r}")
    return {path: {name: parameters[name] for name in parameters if name in names} for path, names in known.items()}


def run_notebook(
    path: Path,
    out_dir: Path,
    parameters: Mapping[str, Any] = MappingProxyType({}),
    *,
    timeout: float = TIMEOUT,
    environment: Mapping[str, str] = MappingProxyType({}),
    watch: Watch | None = None,
    names: Collection[str] = (),
) -> NotebookRun:
    """Execute one notebook in its own folder, or in the working folder if it came with a wheel; write the executed copy
    and its page.

    Args:
        path: the notebook; it is not changed.
        out_dir: created where missing; earlier results of the same name are replaced, never half-written.
        parameters: values for names in the notebook's ``parameters`` cell, as `share_out` has checked them.
        timeout: seconds that one cell may take.
        environment: variables that the kernel gets on top of this process'.
        watch: is told of each cell, and can end the run by a KeyboardInterrupt; earlier results stay.
        names: of the pages that will lie beside this one; links to others become text.

    Returns:
        The run; an error inside the notebook is in its ``error``, it is not raised.
    """
    path, out_dir, watch = path.resolve(), out_dir.resolve(), watch or Watch()
    out_dir.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    how: Any = {"execution_timeout": timeout, "environment": environment, "watch": watch}
    notebook, error = _execute(path, dict(parameters), **how)
    seconds = time.perf_counter() - started
    if watch.killed:
        raise KeyboardInterrupt
    pages.freeze_widgets(notebook)
    notebook.metadata.papermill.update(input_path=path.name, output_path=path.name)  # no path of this machine
    run = NotebookRun(path, title(notebook, path.stem), seconds, watch.memory_mb, *_results(path, out_dir), error)
    write_whole(run.executed, nbformat.writes(notebook).encode())
    pages.store_page(pages.fit_links(pages.page_html(notebook, run.title), {"index.html", *names}), run.html)
    return run


def run_course(
    notebooks_dir: Path,
    out_dir: Path,
    mode: str = "quick",
    only: Sequence[str] = (),
    parameters: Mapping[str, Any] = MappingProxyType({}),
    *,
    jobs: int = 1,
    timeout: float = TIMEOUT,
    resume: bool = False,
    listen: Callable[[CellBegun | NotebookRun], None] = lambda event: None,
) -> CourseRun:
    """Run the course's notebooks; one that fails does not stop the others. Before any has run, UsageError where one
    cannot: see `notebook_parameters` and `share_out`.

    Args:
        notebooks_dir, only: see ``course_notebooks``.
        out_dir: gets an executed copy and a page per notebook, pages of the Markdown files beside the notebooks,
            ``index.html``, and what ``resume`` needs.
        mode: the value of every notebook's ``mode`` parameter, "quick" or "full".
        parameters: further parameters, see `share_out`.
        jobs: how many notebooks run at once; with more than one, each has one thread (``OMP_NUM_THREADS``).
        timeout: seconds that one cell may take.
        resume: do not run a notebook again that went well, with the same source, parameters and package, before.
        listen: gets the progress of each notebook, from its own thread, and each finished run, from this one.
    """
    values = {"mode": mode, **parameters}
    todo = share_out(course_notebooks(notebooks_dir.resolve(), only), values)
    out_dir = out_dir.resolve()
    out_dir.mkdir(parents=True, exist_ok=True)
    kept = out_dir / "runs.json"
    rows, digests = kept_rows(kept), {path: digest(path, given) for path, given in todo.items()}
    earlier = {path: _earlier(path, out_dir, rows.get(path.stem, {}), digests[path]) for path in todo if resume}
    runs = {path: run for path, run in earlier.items() if run}
    for run in runs.values():
        listen(run)
    left = {path: given for path, given in todo.items() if path not in runs}
    others = pages.documents(notebooks_dir)
    names = {f"{path.stem}.html" for path in todo} | {entry.page for entry in others}
    for run in _run_all(left, out_dir, jobs, timeout, names, listen):
        runs[run.path] = run
        rows[run.path.stem] = {**run.row, "title": run.title, "digest": digests[run.path]}
        write_whole(kept, (json.dumps(dict(sorted(rows.items())), indent=2) + "\n").encode())
        listen(run)
    settings = ", ".join(f"{name}={value}" for name, value in values.items())
    about = f"edp_lab {edp_lab.__version__} on Python {platform.python_version()}; {settings}."
    in_order = tuple(runs[path] for path in todo)
    for entry in others:
        pages.write_document(entry, out_dir, names, pages.filled("navigation.html.j2"))
    cards = [pages.card(run, names) for run in in_order]
    return CourseRun(in_order, pages.write_contents("edp_lab: the course", cards, others, about, out_dir, in_order))


def _run_all(
    todo: Mapping[Path, Mapping[str, Any]],
    out_dir: Path,
    jobs: int,
    timeout: float,
    names: Collection[str],
    listen: Callable[[CellBegun], None],
) -> Iterator[NotebookRun]:
    """The runs as they end, `jobs` at a time, each in a thread of its own.

    Where the caller leaves early, what waits is dropped, and the kernels of what runs are killed.
    """
    alone = {} if jobs == 1 or "OMP_NUM_THREADS" in os.environ else ONE_THREAD
    watches = {path: Watch(partial(lambda path, *place: listen(CellBegun(path, *place)), path)) for path in todo}
    run = partial(run_notebook, timeout=timeout, environment=alone, names=names)
    pool = ThreadPoolExecutor(jobs)
    try:
        waiting = [pool.submit(run, path, out_dir, given, watch=watches[path]) for path, given in todo.items()]
        for future in as_completed(waiting):
            yield future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for watch in watches.values():
            watch.kill()
        raise
    finally:
        pool.shutdown()


def _results(path: Path, out_dir: Path) -> tuple[Path, Path]:
    """Where a notebook's executed copy and page are."""
    return out_dir / path.name, out_dir / f"{path.stem}.html"


def _execute(path: Path, parameters: dict[str, Any], **ours: Any) -> tuple[NotebookNode, str | None]:
    """The executed notebook and its error, if any; papermill writes to a folder of its own meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        copy, fallback, whole = Path(folder) / path.name, None, Path(folder) / f"solved-{path.name}"
        nbformat.write(solved(read_notebook(path), path), whole)
        ours |= {"folder": Path.cwd() if CARRIED in path.parents else path.parent, "progress_bar": False}
        try:
            papermill.execute_notebook(whole, copy, parameters, engine_name=ENGINE, kernel_name="python3", **ours)
        except (PapermillExecutionError, DeadKernelError) as exception:
            fallback = f"{path.name}: {exception}"
        notebook = nbformat.read(copy, as_version=4)
    return notebook, _first_error(notebook, path.name) or fallback


def _first_error(notebook: NotebookNode, name: str) -> str | None:
    """The first error as a sentence; the cell is counted as in the source notebook, from 1, all cells."""
    added = {"injected-parameters", "papermill-error-cell-tag"}
    number = 0
    for cell in notebook.cells:
        number += not added & set(cell.metadata.get("tags", ()))
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                code = cell.source.strip().splitlines()[0]
                value = " ".join(re.sub(r"\x1b\[[0-9;]*m|<[^>]+>", "", output.evalue).split())
                return f"{name}, cell {number} ({code!r}): {output.ename}: {value}"
    return None


# ---- What earlier runs left, for ``--resume`` -----------------------------------------------------------------------


@cache
def code_digest() -> str:
    """Of every file of the package and of the Python that runs it."""
    root = Path(edp_lab.__file__).parent
    total = hashlib.sha256(sys.version.encode())
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.parent.name != "__pycache__":  # numba keeps its own there, too
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(root)} {content}\n".encode())
    return total.hexdigest()


def digest(notebook: Path, parameters: Mapping[str, Any]) -> str:
    """Of all that decides how a run goes: the notebook, the values of its parameters, and `code_digest`."""
    told = [code_digest(), hashlib.sha256(notebook.read_bytes()).hexdigest(), sorted(parameters.items())]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def kept_rows(path: Path) -> dict[str, dict[str, Any]]:
    """What ``runs.json`` says of earlier runs, by notebook; a damaged file counts as none."""
    with suppress(UsageError, TypeError, ValueError):
        return {name: row for name, row in dict(read_json(path)).items() if isinstance(row, dict)}
    return {}


def _earlier(path: Path, out_dir: Path, row: Mapping[str, Any], digest: str) -> NotebookRun | None:
    """The run that a row tells of, if it went well with this digest and its results are still there."""
    executed, html = _results(path, out_dir)
    whole = row.keys() >= {"title", "seconds", "memory_mb"} and executed.is_file() and html.is_file()
    if not whole or (row.get("status"), row.get("digest")) != ("ok", digest):
        return None
    return NotebookRun(path, row["title"], row["seconds"], row["memory_mb"], executed, html, None, reused=True)
