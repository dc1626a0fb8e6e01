"""The run record: one JSON file from which every figure can be traced, and the files around it.

DIR/record.json     configuration, versions, corpus, epochs, final scores, guarantee
DIR/ledger.jsonl    every private release (see `edp_lab.training.ledger`)
DIR/secret.key      the key of a run with a private seed, while it lasts
DIR/model/          the model (see `edp_lab.models.factory`)
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edp_lab.errors import UsageError
from edp_lab.models.files import write_whole

RECORD = "record.json"
MODEL = "model"
SECRET = "secret.key"
PACKAGES = (
    "edp-lab", "torch", "numpy", "numba", "llvmlite", "scipy", "accelerate", "transformers", "gensim", "dp-accounting",
)  # fmt: skip

NOT_PRIVATE = (
    "training loss",
    "validation scores",
    "corpus checksum",
    "split counts",
    "choice of hyper-parameters",
    "whether and where a run failed",
)


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def new_run_folder(out: str | Path) -> Path:
    """The folder for a new run, not yet created.

    Raises:
        UsageError: it already holds something.
    """
    folder = Path(out)
    parent = next(p for p in (folder.absolute().parents) if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"output folder {folder} cannot be made in {parent}: choose another --out")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"output folder {folder} is a file: choose another --out")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"output folder {folder} is not empty: it may hold a run; choose another --out")
    return folder


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Atomically: a reader sees the old record or the new one.

    Raises:
        UsageError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / RECORD, (json.dumps(record, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise UsageError(
            f"{folder / RECORD} cannot be written ({error.strerror}): make room there, or choose another --out"
        ) from error


def write_secret(folder: Path, key: int) -> None:
    """The noise key, readable by its owner alone; it never goes into the record and is deleted when the run ends.

    Raises:
        UsageError: the folder cannot be written.
    """
    partial = folder / f"{SECRET}.partial"
    try:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(f"{key:032x}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, folder / SECRET)
    except OSError as error:
        raise UsageError(f"{folder / SECRET} cannot be written ({error.strerror}): choose another --out") from error


def read_secret(folder: Path) -> int | None:
    """The noise key of a run that can be taken up again; None if it is lost."""
    try:
        return int((folder / SECRET).read_text(), 16)
    except (OSError, ValueError):
        return None


def read_record(folder: str | Path) -> dict[str, Any]:
    """The record of a finished, interrupted or running run.

    Raises:
        UsageError: the folder holds no run, or the record is damaged.
    """
    path = Path(folder) / RECORD
    if not path.is_file():
        raise UsageError(f"{folder} holds no run ({RECORD} is missing): give the --out folder of edp-lab train")
    try:
        record = json.loads(path.read_text())
        config = record["config"]
        needed = [config["corpus"], config["keep_duplicates_together"], record["corpus"]["sha256"]]
        needed += [record["guarantee"], record["status"], record["parameters"]]
        assert all(value is not None for value in needed)
        assert isinstance(config["seed"], int)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise UsageError(f"{path} is damaged: train again, or restore it from a copy") from None
    return dict(record)
