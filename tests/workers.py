"""Jobs for workers, in a module that is fast to import."""

import os
import time
from pathlib import Path
from typing import Any

from edp_lab.errors import UsageError


def add(job: dict[str, Any]) -> dict[str, Any]:
    """Return the sum of an array, and the id of the process that computed it."""
    import torch

    if "fails after" in job:
        while not job["fails after"].exists():
            time.sleep(0.05)
        raise UsageError("bad input: mend it")
    return {"sum": float(job["array"].sum()), "threads": torch.get_num_threads(), "pid": os.getpid()}


def sleep(nap: tuple[str, float]) -> dict[str, Any]:
    """Write a file with the process id to the folder, then sleep for this number of seconds."""
    folder, seconds = nap
    (Path(folder) / f"pid-{os.getpid()}").touch()
    time.sleep(seconds)
    return {"slept": seconds}
