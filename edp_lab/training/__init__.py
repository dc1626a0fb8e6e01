"""One training loop, the eDP-SGD step, and the files of a run. Here: the events that a run reports."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StepDone:
    """After each step: `step` of `steps` in this epoch, mean loss of its batch (not private)."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class EpochDone:
    """After each epoch: its row of the run record, and the status of the guarantee so far."""

    epoch: int
    epochs: int
    row: dict[str, Any]
    status: str


Event = StepDone | EpochDone
Listener = Callable[[Event], None]
