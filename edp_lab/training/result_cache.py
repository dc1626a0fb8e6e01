"""What took long, kept: runs behind tables, shadow models' signals, networks of the thesis, times.

    FOLDER/<key>.json    one result, with a checksum

The key is a digest of everything that the result is a function of: settings, the content of data and weights, and the
declared version of the numerics. So work that was killed goes on where it stopped, and a renamed file costs nothing.
Package versions are not in it: they change bits, not what a table says, and each result names its own. Entries may be
deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edp_lab.errors import UsageError
from edp_lab.models.files import read_json, write_whole
from edp_lab.training.pool import Job, Say, run_jobs

# Versions of what turns settings and data into results. Raise one when its code begins to make something else of the
# same settings: other numbers beyond rounding, or a new default that is not among the settings. Results under the old
# number then count as missing. A renamed file, a faster loop, a new option that is off (None, False) are no reason.
NUMERICS = {
    "training": 1,  # a run of an intent and slot model: splits, models, gradients, noise, optimizers, scores
    "pretraining": 1,  # what runs start from: text, word vectors, the first layers of an encoder
    "membership": 1,  # the attacks on a run that stand in a table, and shadow models
    "classifier": 1,  # networks of the thesis
    "timing": 1,  # what is timed, and how
}


def content_key(areas: Sequence[str], *parts: Any) -> str:
    """The digest of settings and data, under the present numerics of these areas.

    Args:
        parts: of what JSON knows, arrays, and dataclasses, whose settings count but for those that are None or False.
    """
    told = [{area: NUMERICS[area] for area in areas}, parts]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    if is_dataclass(value) and not isinstance(value, type):
        return {name: own for name, own in asdict(value).items() if own is not None and own is not False}
    raise TypeError(f"{type(value).__name__} has no content that could be a part of a key")


def content_of(pretrained: str) -> str:
    """A digest of a file or folder, the same for whoever keeps it elsewhere; of a name on a hub, the name.

    Raises:
        UsageError: the folder holds no files.
    """
    path = Path(pretrained).expanduser()
    if not path.exists():
        return pretrained
    files = sorted(file for file in (path, *path.rglob("*")) if file.is_file())
    if not files:
        raise UsageError(f"the folder of pretrained weights {path} is empty: remove it, and it is made anew")
    told = [[str(file.relative_to(path)), _sha256(file.resolve(), file.stat().st_mtime_ns)] for file in files]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


@cache
def _sha256(file: Path, changed: int) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


class ResultCache:
    """Results by their keys.

    Args:
        folder: created.
        cure: what to do where it cannot be written.
        named: the folder that a message names; None: this one.

    Raises:
        UsageError: it cannot be written, which should show before hours of work.
    """

    def __init__(self, folder: Path, cure: str = "choose another --out", named: Path | None = None) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise UsageError(f"{named or folder} cannot be written ({error.strerror}): {cure}") from error

    def read(self, key: str) -> dict[str, Any] | None:
        """None where it is missing, damaged, or another's."""
        return read_result(self.folder, key)

    def write(self, key: str, found: dict[str, Any]) -> dict[str, Any]:
        """Atomically, also where two processes write the same; returns what `read` will.

        Raises:
            UsageError: it cannot be written.
        """
        entry = self.folder / f"{key}.json"
        told = {**found, "sha256": _checksum(key, found)}
        own = entry.with_name(f"{entry.name}.{os.getpid()}")
        try:
            write_whole(own, json.dumps(told, indent=1).encode())
            os.replace(own, entry)
        except OSError as error:
            raise UsageError(f"{entry} cannot be written ({error.strerror}): make room there") from error
        return dict(json.loads(json.dumps(found)))

    def results(
        self,
        keys: Sequence[str],
        jobs: Sequence[Job],
        function: Callable[[Job, Say], dict[str, Any]],
        workers: int,
        said: Callable[[int, Any], None] = lambda done, what: None,
        cure: str | None = None,
        name: str = "a worker process",
    ) -> list[dict[str, Any]]:
        """What each job comes to; those whose result is missing are done now, and each is kept as soon as it is done.

        Args:
            said: called with how many of the jobs are done, at first and after each; or with that and a job's news.
                What it raises ends the work.
            function, workers, cure, name: see `run_jobs`.

        Raises:
            UsageError: as `run_jobs` and `write`.
        """
        found = {key: self.read(key) for key in keys}
        missing = {key: job for key, job in zip(keys, jobs, strict=True) if found[key] is None}
        places = list(missing)

        def count() -> int:
            return sum(found[key] is not None for key in keys)

        def keep(place: int, result: dict[str, Any]) -> None:
            found[places[place]] = self.write(places[place], result)
            said(count(), None)

        said(count(), None)
        run_jobs(function, list(missing.values()), workers, lambda what: said(count(), what), keep, cure, name)
        return [result for key in keys if (result := found[key]) is not None]


def read_result(folder: Path, key: str) -> dict[str, Any] | None:
    """As `ResultCache.read`, of a folder that need not exist or be writable."""
    try:
        found = read_json(folder / f"{key}.json")
        sha256 = found.pop("sha256")
    except (UsageError, KeyError, TypeError, AttributeError):
        return None
    return dict(found) if sha256 == _checksum(key, found) else None


def _checksum(key: str, found: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([key, found]).encode()).hexdigest()
