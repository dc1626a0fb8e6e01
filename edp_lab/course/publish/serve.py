"""The commands that open the course on this machine: JupyterLab for readers, Voila for those who only want the panels.

Both listen on 127.0.0.1, ask for a token, and load nothing from elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from edp_lab.errors import UsageError
from edp_lab.files import read_json, write_whole

SETTINGS = Path(__file__).parent / "jupyter"  # no offer to fetch news; the dashboard's template
FOR_STUDENTS = ["*.ipynb", "glossary.md", "references.md", "images/*"]
FOR_INSTRUCTORS = ["*.md", "instructor/*.ipynb", "source/*.ipynb"]
RECORD = ".edp-lab-course.json"  # what `own_copy` has copied


def lab_command(notebooks_dir: Path) -> tuple[list[str], dict[str, str]]:
    """Command and environment that start JupyterLab with this interpreter: local, with a token, calling nobody."""
    no_updates = "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate"
    options = ["--MappingKernelManager.transport_encryption=auto", "--LabApp.news_url=None", no_updates]
    if (notebooks_dir / "00_start.ipynb").exists():
        options.append("--LabApp.default_url=/lab/tree/00_start.ipynb")  # which the URL that it prints has, too
    command = [sys.executable, "-m", "jupyterlab", *options, str(notebooks_dir)]
    return command, _with_settings("JUPYTER_CONFIG_PATH")


def dashboard_command(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Command and environment that serve the notebooks of a folder by Voila: local, with a token, panels only."""
    options = ["--Voila.ip=127.0.0.1", "--token", "--template=edp-lab", "--classic-tree"]
    return [sys.executable, "-m", "voila", *options, str(folder)], _with_settings("JUPYTER_PATH")


def own_copy(notebooks_dir: Path, folder: Path, instructor: bool = False) -> list[str]:
    """Copy what students work with into a folder, and for instructors the solutions, sources and teacher's pages, too.

    A file that is still as it was copied is brought up to date. One that was changed since is never written to.

    Returns:
        The names of changed files of which there is a newer edition.
    """
    record, newer = folder / RECORD, []
    try:
        copied = dict(read_json(record))  # name: the edition that was copied
    except (UsageError, TypeError, ValueError):
        copied = {}  # none yet, or damaged: whatever differs then counts as changed
    patterns = [*FOR_STUDENTS, *FOR_INSTRUCTORS] if instructor else FOR_STUDENTS
    for path in sorted({path for pattern in patterns for path in notebooks_dir.glob(pattern)}):
        name, content = path.relative_to(notebooks_dir).as_posix(), path.read_bytes()
        copy, edition = folder / name, _edition(content)
        found = _edition(copy.read_bytes()) if copy.exists() else None
        if found not in (None, edition, copied.get(name)):
            newer += [name] if copied.get(name) != edition else []
            continue
        if found != edition:
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_whole(copy, content)
        copied[name] = edition
    write_whole(record, f"{json.dumps(copied, indent=1)}\n".encode())
    return newer


def _edition(content: bytes) -> str:
    """A checksum of a file; of a notebook, of its cells: JupyterLab rewrites the rest when one only looks at it."""
    with suppress(ValueError, KeyError, TypeError):  # what is no notebook
        cells = [
            (cell["cell_type"], "".join(cell["source"]), cell.get("outputs")) for cell in json.loads(content)["cells"]
        ]
        content = repr(cells).encode()
    return sha256(content).hexdigest()


def serve(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a server until it ends; return its exit status.

    Ctrl-C is the server's to answer, as Jupyter asks back; a SIGTERM to this process ends it.
    """
    with subprocess.Popen(command, env=environment) as server:
        answers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: lambda *_: server.terminate()}
        before = {number: signal.signal(number, answer) for number, answer in answers.items()}
        try:
            status = server.wait()
            return status if status >= 0 else 128 - status  # ended by a signal, as shells put it
        finally:
            for number, answer in before.items():
                signal.signal(number, answer)


@contextmanager
def panels_only(notebooks: Sequence[Path]) -> Iterator[Path]:
    """A folder with copies of the notebooks and nothing else, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
        for path in notebooks:
            shutil.copy(path, folder)
        yield Path(folder)


def _with_settings(variable: str) -> dict[str, str]:
    """This process' environment, with `SETTINGS` first in the variable."""
    path = os.pathsep.join(filter(None, [str(SETTINGS), os.environ.get(variable)]))
    return {**os.environ, variable: path}
