"""What long commands measured, as it comes with a checkout (``data/results``), and what it tells of the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import edp_lab
from edp_lab.errors import UsageError
from edp_lab.models.files import read_json

RESULTS = Path(edp_lab.__file__).parents[1] / "data" / "results"


def rows(path: Path, command: str) -> list[dict[str, Any]]:
    """What `command` printed, one row after the other.

    Raises:
        UsageError: the file is missing or damaged.
    """
    cure = f"run this in a clone of the project, or make it with `{command}`"
    if not path.exists():
        raise UsageError(f"{path} is not there: {cure}")
    found = read_json(path)
    if not (isinstance(found, list) and all(isinstance(row, dict) for row in found)):
        raise UsageError(f"{path} holds no rows: {cure}")
    return found


def machine(device: str = "cpu") -> str:
    """What a reader needs to judge times by; no name that would give the machine away."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    return f"{os.cpu_count()} cores, {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
