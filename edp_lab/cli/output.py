"""Folders for what a command writes, checked before it works."""

from __future__ import annotations

import tempfile
from pathlib import Path

from edp_lab.errors import UsageError


def output_folder(out: Path, option: str = "--out") -> Path:
    """The folder as an absolute path, created where missing.

    Raises:
        UsageError: nothing can be written there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}): choose another {option}") from None
    return out.resolve()
