"""Long-running jobs: parallel workers, and results stored as JSON under a content key or in `RESULTS`.

    FOLDER/<key>.json    one result, with a checksum

The key is a digest of everything that a result depends on: settings, the content of data and weights, and the version
of the numerics. Interrupted work therefore resumes where it stopped, and renaming a file invalidates no result. Package
versions are not in the key, because they change the last bits but no conclusions. Entries may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from edp_lab.errors import UsageError
from edp_lab.files import comes_with, given_path, read_json, write_whole

RESULTS = comes_with("data") / "results"  # committed results of long-running commands

# Versions of the code that computes results from settings and data. Increase a version if equal settings give results
# that differ beyond rounding, or if a default changes that is not part of the settings. Results of the old version then
# count as missing. Do not increase it for a renamed file, a faster loop, or a new option that is None or False.
NUMERICS = {
    "training": 1,  # runs of intent-and-slot models: splits, models, gradients, noise, optimizers, scores
    "pretraining": 1,  # starting models: text, word vectors, the first layers of an encoder
    "membership": 1,  # attacks on runs that are listed in a table, and shadow models
    "classifier": 1,  # networks of the thesis
}
Name = TypeVar("Name")
Job = TypeVar("Job")
Result = TypeVar("Result")


# ---- Stored results --------------------------------------------------------------------------------------------------


def content_key(areas: Sequence[str], *parts: Any) -> str:
    """Digest of settings and data, and of the current `NUMERICS` of these areas.

    Args:
        parts: JSON values, arrays and dataclasses; dataclass fields that are None or False are ignored.
    """

    import numpy as np

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return [value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
        if is_dataclass(value) and not isinstance(value, type):
            return {name: given for name, given in asdict(value).items() if not (given is None or given is False)}
        raise TypeError(f"{type(value).__name__} cannot be part of a content key")

    return _digest([{area: NUMERICS[area] for area in areas}, parts], sort_keys=True, default=plain)


def _digest(content: Any, **how: Any) -> str:
    return hashlib.sha256(json.dumps(content, **how).encode()).hexdigest()


def content_of(pretrained: str) -> str:
    """Digest of the content of a file or folder, independent of its path; a name on a model hub is its own digest."""
    path = given_path(pretrained)
    if not path.exists():
        return pretrained
    files = sorted(file for file in (path, *path.rglob("*")) if file.is_file())
    if not files:
        raise UsageError(f"the folder of pretrained weights {path} is empty: remove it, and it will be created again")
    return _digest([[str(file.relative_to(path)), _sha256(file.resolve(), file.stat().st_mtime_ns)] for file in files])


@cache
def _sha256(file: Path, changed: int) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def read_result(folder: Path, key: str) -> dict[str, Any] | None:
    """Read the result under this key; None if it is missing or damaged."""
    try:
        result = read_json(folder / f"{key}.json")
        sha256 = result.pop("sha256")
    except (UsageError, KeyError, TypeError, AttributeError):
        return None
    return dict(result) if sha256 == _digest([key, result]) else None


def write_result(folder: Path, key: str, result: dict[str, Any]) -> dict[str, Any]:
    """Store a result atomically; return what `read_result` will return."""
    content = json.dumps({**result, "sha256": _digest([key, result])})
    write_whole(folder / f"{key}.json", content.encode())
    return dict(json.loads(json.dumps(result)))


def kept_results(
    folder: Path,
    keys: Sequence[str],
    jobs: Sequence[Job],
    function: Callable[[Job], dict[str, Any]],
    workers: int,
    done: Callable[[int], None] = lambda count: None,
    hint: str = "the same command resumes from here",
) -> list[dict[str, Any]]:
    """Results of the jobs, in the order of `keys`; missing results are computed, and stored as soon as available.

    `done` is called with the number of available results, first at the start and then after each new result. If it
    raises an exception, the work ends. `hint`: see `parallel`.
    """
    results = {key: result for key in keys if (result := read_result(folder, key)) is not None}
    missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in results}
    done(sum(key in results for key in keys))
    for key, result in parallel(function, missing, workers, hint):
        results[key] = write_result(folder, key, result)
        done(sum(key in results for key in keys))
    return [results[key] for key in keys]


# ---- Committed results -----------------------------------------------------------------------------------------------


def read_kept(path: Path, *parts: str) -> Any:
    """Read a JSON object with these `parts`, or a list of rows if no part is named.

    Raises UsageError if the file is missing or damaged, or has different content.
    """
    if not path.exists():
        raise UsageError(f"{path} is missing: restore it from the repository, or measure it again")
    content = read_json(path)
    whole = {*parts} <= content.keys() if isinstance(content, dict) else isinstance(content, list) and not parts
    if not whole:
        raise UsageError(f"{path} is damaged or of another version: restore it from the repository")
    return content


def machine(device: str = "cpu") -> str:
    """Description of the machine, for interpreting measured times; contains no name that identifies the machine."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    return f"{os.cpu_count()} cores, {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


# ---- Workers ---------------------------------------------------------------------------------------------------------


def parallel(
    function: Callable[[Job], Result], jobs: dict[Name, Job], workers: int, hint: str = "use fewer workers"
) -> Iterator[tuple[Name, Result]]:
    """Yield each job's name and result as soon as the job ends. The number of workers does not change results.

    Each worker is a new Python process with one thread, never a fork. No worker is left running when this ends.

    Args:
        workers: number of processes; 1 means this process, with one thread.
        hint: advice at the end of the error message if a worker is killed, for example because memory ran out.

    Raises:
        UsageError: `function` raised it, or a worker was killed.
    """
    workers = min(workers, len(jobs))
    if workers <= 1:
        for name, job in jobs.items():
            yield name, _on_one_thread(function, job)
        return
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky import BrokenProcessPool, get_reusable_executor

    work = [delayed(_named)(function, name, job) for name, job in jobs.items()]
    watch = {"initializer": end_with_parent, "initargs": (os.getpid(),)}
    try:
        with parallel_config("loky", n_jobs=workers, inner_max_num_threads=1, **watch):
            yield from Parallel(return_as="generator_unordered", batch_size=1, max_nbytes=None)(work)
    except BrokenProcessPool:
        raise UsageError(f"a worker process was killed (out of memory?): {hint}") from None
    finally:
        get_reusable_executor().shutdown(kill_workers=True)


def _on_one_thread(function: Callable[[Job], Result], job: Job) -> Result:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(job)
    finally:
        torch.set_num_threads(threads)


def _named(function: Callable[[Job], Result], name: Name, job: Job) -> tuple[Name, Result]:
    return name, function(job)


def end_with_parent(parent: int) -> None:
    """End this process within a second of its parent's death, even if it is busy."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def usable_cores() -> int:
    """Number of cores available to this process, which in a container can be smaller than the machine's number."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
