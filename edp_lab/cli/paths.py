"""Folders for what a command writes, checked before it works."""

from __future__ import annotations

import tempfile
from pathlib import Path

from edp_lab.errors import UsageError


def output_folder(out: Path, option: str = "--out") -> Path:
    """The folder as an absolute path; it need not exist, and is not created.

    Raises:
        UsageError: nothing can be written there.
    """
    out = out.resolve()
    there = next(folder for folder in (out, *out.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return out
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}): choose another {option}") from None
