"""Training many networks on disjoint data, here or in several processes, with the same result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edp_lab.three_phase.classifier import ClassifierSettings, Trained, train_classifier
from edp_lab.training.pool import Say, run_jobs
from edp_lab.training.processes import usable_cores

PARALLEL_FROM = 10_000  # training examples: below, starting processes takes longer than they save


@dataclass(frozen=True)
class Event:
    """A network has done an epoch."""

    part: str
    epoch: int
    epochs: int
    loss: float
    accuracy: float | None


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Job:
    """A network to train, and what to score it on after each epoch."""

    name: str
    settings: ClassifierSettings
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]

    def train(self, listener: Listener | None) -> Trained:
        epochs = self.settings.resolved(len(self.x)).epochs or 0

        def tell(row: dict[str, Any]) -> None:
            if listener is not None:
                listener(Event(self.name, row["epoch"], epochs, row["loss"], row["accuracy"]))

        return train_classifier(self.settings, self.x, self.y, self.test_x, self.test_y, tell)


def usable_workers(examples: int) -> int:
    """How many processes pay for instructors on so many examples together: 1, or one per core."""
    cores = usable_cores()
    return cores if examples >= PARALLEL_FROM else 1


def train_all(jobs: Sequence[Job], workers: int, listener: Listener | None) -> list[Trained]:
    """Do every job on one thread, so that any number of workers gives the same networks; `listener` hears every epoch.

    Raises:
        UsageError: as `train_classifier`, or a process that was killed.
    """
    cure, name = "train the instructors with fewer workers", "a process that trains instructors"
    return run_jobs(_train, jobs, workers, listener or (lambda event: None), cure=cure, name=name)


def _train(job: Job, say: Say) -> Trained:
    return job.train(say)
