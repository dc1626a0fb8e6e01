"""What long commands measured, as it comes with a checkout (``data/results``), and what it tells of the machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edp_lab.errors import UsageError
from edp_lab.files import comes_with, read_json, write_whole

if TYPE_CHECKING:
    from edp_lab.training import TrainConfig

RESULTS = comes_with("data") / "results"


def rows(path: Path, command: str) -> list[dict[str, Any]]:
    """What `command` printed, one row after the other; UsageError where the file is missing or damaged."""
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


# ---- What the course keeps: a file that grows by one item at a time ------------------------------------------------


def read_kept(path: Path, *parts: str) -> dict[str, Any]:
    """What `write_kept` wrote; UsageError where the file is missing, damaged, or lacks one of the parts."""
    if not path.exists():
        raise UsageError(f"{path} is missing: restore it from the repository, or measure it anew")
    told = read_json(path)
    if not isinstance(told, dict) or not {*parts} <= told.keys():
        raise UsageError(f"{path} is damaged or of another version: restore it from the repository")
    return told


def write_kept(path: Path, command: str, **parts: Mapping[str, Any] | list[Any]) -> None:
    """The command, machine and versions, then each part: a list with one item a line."""
    from edp_lab.training.run_folder import versions

    about = {"command": command, "machine": f"{machine()}; one thread", "versions": versions()}
    lines = [f' "{name}": {json.dumps(value)}' for name, value in about.items()]
    for name, part in parts.items():
        items = ",\n".join(json.dumps(item, allow_nan=False) for item in part) if isinstance(part, list) else ""
        lines.append(f' "{name}": ' + (f"[\n{items}\n ]" if items else json.dumps(part)))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def changed_settings(config: TrainConfig) -> dict[str, Any]:
    """The corpus, and all settings that differ from the defaults."""
    defaults = asdict(type(config)(config.corpus))
    return {name: value for name, value in asdict(config).items() if name == "corpus" or value != defaults[name]}
