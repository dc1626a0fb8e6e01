"""What earlier runs left in a folder, so that ``edp-lab course run --resume`` runs only what has changed since."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import edp_lab
from edp_lab.errors import UsageError
from edp_lab.models.files import read_json, write_whole

NAME = "runs.json"


@cache
def code_digest() -> str:
    """Of every file of the package and of the Python that runs it."""
    root = Path(edp_lab.__file__).parent
    total = hashlib.sha256(sys.version.encode())
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(root)} {content}\n".encode())
    return total.hexdigest()


def digest(notebook: Path, parameters: Mapping[str, Any]) -> str:
    """Of all that decides how a run goes: the notebook, the values of its parameters, and `code_digest`."""
    told = [code_digest(), hashlib.sha256(notebook.read_bytes()).hexdigest(), sorted(parameters.items())]
    return hashlib.sha256(repr(told).encode()).hexdigest()


class Kept:
    """The rows of ``runs.json``, by notebook; a damaged file counts as none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._rows: dict[str, dict[str, Any]] = {}
        with suppress(UsageError):
            rows = read_json(self._path)
            self._rows = rows if isinstance(rows, dict) else {}

    def find(self, notebook: str, digest: str) -> Mapping[str, Any] | None:
        """The row of a run that went well with this digest, if there is one."""
        row = self._rows.get(notebook, {})
        return row if (row.get("status"), row.get("digest")) == ("ok", digest) else None

    def add(self, notebook: str, row: Mapping[str, Any]) -> None:
        """Keep the row, in place of an earlier one."""
        self._rows = dict(sorted({**self._rows, notebook: dict(row)}.items()))
        write_whole(self._path, (json.dumps(self._rows, indent=2) + "\n").encode())
