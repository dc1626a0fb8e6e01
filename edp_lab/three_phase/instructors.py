"""Training many networks on disjoint data, here or in several processes, with the same result."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edp_lab.three_phase.classifier import ClassifierSettings, Trained, train_classifier
from edp_lab.training.processes import Ranks, run_rank, usable_cores

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
    """Do every job on one thread, so that any number of workers gives the same networks.

    Processes are new Pythons, not forks, and their files lie in a folder that only this user can read.

    Args:
        listener: told of every epoch, of those in other processes only of the first one's.

    Raises:
        UsageError: as `train_classifier`, or a process that was killed.
    """
    if workers == 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return [job.train(listener) for job in jobs]
        finally:
            torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="edp_lab-") as folder:
        for rank in range(workers):
            share = [(i, *vars(job).values()) for i, job in enumerate(jobs) if i % workers == rank]
            Path(folder, f"jobs-{rank}").write_bytes(pickle.dumps(share))
        with Ranks(workers, ["edp_lab.three_phase.instructors", folder], threads=1) as ranks:
            for line in ranks.lines("train the instructors with fewer workers"):
                if listener is not None:
                    listener(Event(**json.loads(line)))
        return [pickle.loads(Path(folder, f"trained-{i}").read_bytes()) for i in range(len(jobs))]


def _work(folder: Path) -> None:
    """In a process that `train_all` started: its share."""
    for i, *job in pickle.loads(Path(folder, f"jobs-{os.environ['RANK']}").read_bytes()):
        trained = Job(*job).train(lambda event: print(json.dumps(asdict(event)), flush=True))
        Path(folder, f"trained-{i}").write_bytes(pickle.dumps(trained))


if __name__ == "__main__":
    run_rank(lambda folder, _: _work(Path(folder)))
