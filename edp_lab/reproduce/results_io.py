"""What long commands measured, as it comes with a checkout (``data/results``), and what it tells of the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from edp_lab.errors import UsageError
from edp_lab.files import comes_with, read_json

RESULTS = comes_with("data") / "results"


def rows(path: Path, command: str) -> list[dict[str, Any]]:
    """What `command` printed, one row after the other; UsageError where the file is missing or damaged."""
    hint = f"run this in a clone of the project, or make it with `{command}`"
    if not path.exists():
        raise UsageError(f"{path} is not there: {hint}")
    content = read_json(path)
    if not (isinstance(content, list) and all(isinstance(row, dict) for row in content)):
        raise UsageError(f"{path} holds no rows: {hint}")
    return content


def machine(device: str = "cpu") -> str:
    """What a reader needs to judge times by; no name that would give the machine away."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    return f"{os.cpu_count()} cores, {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def read_kept(path: Path, *parts: str) -> dict[str, Any]:
    """A JSON object by its parts; UsageError where the file is missing, damaged, or lacks one of the parts."""
    if not path.exists():
        raise UsageError(f"{path} is missing: restore it from the repository, or measure it anew")
    content = read_json(path)
    if not isinstance(content, dict) or not {*parts} <= content.keys():
        raise UsageError(f"{path} is damaged or of another version: restore it from the repository")
    return content
