"""The texts of a room's exercises, which are a table of their own: title, hint and why."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edp_lab.course.kit.exercises import Exercise


def exercises_of(beside: str, **checks: Callable[..., str | None]) -> tuple[Exercise, ...]:
    """A check for each exercise, by name and in their order; what is said of it is in the ``.toml`` beside a file.

    EXERCISES = exercises_of(__file__, clip=_clip, noise=_noise)
    """
    texts: dict[str, dict[str, Any]] = tomllib.loads(Path(beside).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(Exercise(name, check=check, **texts[name]) for name, check in checks.items())
