"""Seconds until a command has answered, and until training takes its first step; beside those of importing torch."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from edp_lab.reproduce.bench.contests import race
from edp_lab.training.ledger import LEDGER

TRAIN = "train, first step"
ARGUMENTS: Mapping[str, Sequence[str]] = {  # of Python
    "import torch": ("-c", "import torch"),
    "--help": ("-m", "edp_lab", "--help"),
    "train --help": ("-m", "edp_lab", "train", "--help"),
    "account": ("-m", "edp_lab", "account"),
    "account --sampling-rate": ("-m", "edp_lab", "account", "--sampling-rate", "0.01"),
    TRAIN: ("-m", "edp_lab", "train", "--corpus", "smart-home", "--out", "run"),
}


def bench_start(
    rounds: int = 5, names: Sequence[str] = tuple(ARGUMENTS), progress: Callable[[str], None] = lambda name: None
) -> list[dict[str, Any]]:
    """Of each: median seconds by the clock and of the processor, with all modules on disk and in its cache."""
    worked: dict[str, list[float]] = {name: [] for name in names}

    def turn(name: str, number: int) -> None:
        before = _processor_seconds()
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, *ARGUMENTS[name]]
            with subprocess.Popen(command, cwd=folder, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL) as process:
                while name == TRAIN and process.poll() is None and not _first_step(Path(folder, "run", LEDGER)):
                    time.sleep(0.005)
                if name == TRAIN:
                    process.kill()
        worked[name].append(_processor_seconds() - before)

    contestants = {name: partial(turn, name) for name in names}
    seconds, _ = race(contestants, rounds, lambda name, number: progress(f"{name}, round {number + 1}"))
    return [
        {"start": name, "seconds": statistics.median(seconds[name]), "processor_seconds": statistics.median(own)}
        for name, own in worked.items()
    ]


def _first_step(ledger: Path) -> bool:
    """Its entry follows the mechanism's, just before its noise is drawn."""
    return ledger.exists() and ledger.read_bytes().count(b"\n") > 1


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
