"""Work that takes long: done in worker processes, and kept, as runs behind tables, shadow models' signals, times.

    FOLDER/<key>.json    one result, with a checksum

The key is a digest of everything that the result is a function of: settings, the content of data and weights, and the
declared version of the numerics. So work that was killed goes on where it stopped, and a renamed file costs nothing.
Package versions are not in it: they change bits, not what a table says, and each result names its own. Entries may be
deleted at any time.

A worker is a new Python, never a fork, which deadlocks under a notebook kernel's threads. It has one thread, as a step
of most networks here is mostly overhead: on two cores two of them train about twice as fast as one process. It ends
with its parent, however that dies (see `edp_lab.training.processes`), and its share of the jobs, which may hold a
corpus, lies in a file only until it has read it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from edp_lab.errors import UsageError
from edp_lab.files import given_path, read_json, writable, write_whole
from edp_lab.training.processes import LAUNCHER, Ranks, run_rank

# Versions of what turns settings and data into results. Raise one when its code begins to make something else of the
# same settings: other numbers beyond rounding, or a new default that is not among the settings. Results under the old
# number then count as missing. A renamed file, a faster loop, a new option that is off (None, False) are no reason.
NUMERICS = {
    "training": 1,  # a run of an intent and slot model: splits, models, gradients, noise, optimizers, scores
    "pretraining": 1,  # what runs start from: text, word vectors, the first layers of an encoder
    "membership": 1,  # the attacks on a run that stand in a table, and shadow models
    "classifier": 1,  # networks of the thesis
    "timing": 1,  # what is timed, and how
}
Job = TypeVar("Job")
Result = TypeVar("Result")
Say = Callable[[Any], None]


def content_key(areas: Sequence[str], *parts: Any) -> str:
    """The digest of settings and data, under the present numerics of these areas.

    Args:
        parts: of what JSON knows, arrays, and dataclasses, whose settings count but for those that are None or False.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return [value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
        if is_dataclass(value) and not isinstance(value, type):
            return {name: own for name, own in asdict(value).items() if own is not None and own is not False}
        raise TypeError(f"{type(value).__name__} has no content that could be a part of a key")

    told = [{area: NUMERICS[area] for area in areas}, parts]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=plain).encode()).hexdigest()


def content_of(pretrained: str) -> str:
    """A digest of a file or folder, the same for whoever keeps it elsewhere; of a name on a hub, the name."""
    path = given_path(pretrained)
    if not path.exists():
        return pretrained
    files = sorted(file for file in (path, *path.rglob("*")) if file.is_file())
    if not files:
        raise UsageError(f"the folder of pretrained weights {path} is empty: remove it, and it is made anew")
    told = [[str(file.relative_to(path)), _sha256(file.resolve(), file.stat().st_mtime_ns)] for file in files]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


@cache
def _sha256(file: Path, changed: int) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


class ResultCache:
    """Results by their keys.

    Args:
        folder: made with the first result.
        cure: what to do where it cannot be written.

    Raises:
        UsageError: it cannot be written, which should show before hours of work.
    """

    def __init__(self, folder: Path, cure: str = "choose another --out") -> None:
        self.folder = writable(folder, cure)

    def read(self, key: str) -> dict[str, Any] | None:
        """None where it is missing, damaged, or another's."""
        return read_result(self.folder, key)

    def write(self, key: str, found: dict[str, Any]) -> dict[str, Any]:
        """Atomically, also where two processes write the same; returns what `read` will."""
        content = json.dumps({**found, "sha256": _checksum(key, found)}, indent=1)
        write_whole(self.folder / f"{key}.json", content.encode())
        return dict(json.loads(json.dumps(found)))

    def results(
        self,
        keys: Sequence[str],
        jobs: Sequence[Job],
        function: Callable[[Job, Say], dict[str, Any]],
        workers: int,
        said: Callable[[int, Any], None] = lambda done, what: None,
        cure: str | None = None,
        name: str = "a worker process",
    ) -> list[dict[str, Any]]:
        """What each job comes to; those whose result is missing are done now, and each is kept as soon as it is done.

        Args:
            said: called with how many of the jobs are done, at first and after each; or with that and a job's news.
                What it raises ends the work.
            function, workers, cure, name: see `run_jobs`.
        """
        found = {key: self.read(key) for key in keys}
        missing = {key: job for key, job in zip(keys, jobs, strict=True) if found[key] is None}
        places = list(missing)

        def tell(what: Any) -> None:
            said(sum(found[key] is not None for key in keys), what)

        def keep(place: int, result: dict[str, Any]) -> None:
            found[places[place]] = self.write(places[place], result)
            tell(None)

        tell(None)
        run_jobs(function, list(missing.values()), workers, tell, keep, cure, name)
        return [result for key in keys if (result := found[key]) is not None]


def read_result(folder: Path, key: str) -> dict[str, Any] | None:
    """As `ResultCache.read`, of a folder that need not exist or be writable."""
    try:
        found = read_json(folder / f"{key}.json")
        sha256 = found.pop("sha256")
    except (UsageError, KeyError, TypeError, AttributeError):
        return None
    return dict(found) if sha256 == _checksum(key, found) else None


def _checksum(key: str, found: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([key, found]).encode()).hexdigest()


# ---- Workers ---------------------------------------------------------------------------------------------------------


def run_jobs(
    function: Callable[[Job, Say], Result],
    jobs: Sequence[Job],
    workers: int,
    said: Say = lambda what: None,
    done: Callable[[int, Any], None] = lambda place, result: None,
    cure: str | None = None,
    name: str = "a worker process",
) -> list[Result]:
    """What `function` makes of each job, in order; any number of workers gives the same.

    Args:
        function: of a module; takes a job and what is called with news of it. Jobs, news and results are pickled.
        workers: processes; 1 is this one, on one thread.
        said, done: called here with a job's news, and with a job's place and result as soon as it is done. What they
            raise ends the work.
        cure, name: end and begin the sentence about a worker that died, for instance of too little memory.

    Raises:
        UsageError: as `function`, or a worker was killed. As after any error, no worker is left.
    """
    found: dict[int, Result] = {}

    def finish(place: int, result: Result) -> None:
        found[place] = result
        done(place, result)

    workers = min(workers, len(jobs))
    if workers <= 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for place, job in enumerate(jobs):
                finish(place, function(job, said))
        finally:
            torch.set_num_threads(threads)
        return list(found.values())

    heard: queue.SimpleQueue[str | Exception | None] = queue.SimpleQueue()

    def relay(worker: Ranks) -> None:
        try:
            for line in worker.lines(cure):
                heard.put(line)
            heard.put(None)
        except UsageError as error:
            heard.put(UsageError(str(error).replace("rank 0 of 1", name)))
        except Exception as error:  # also when everything was closed, and nobody listens
            heard.put(error)

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edp_lab-"))
        for k in range(workers):
            share = list(enumerate(jobs))[k::workers]
            worker = stack.enter_context(_started(Path(folder, str(k)), (function, share), 1, 1))
            threading.Thread(target=relay, args=(worker,), daemon=True).start()
        while workers:
            match heard.get():
                case None:
                    workers -= 1
                case str() as line:
                    place, finished, what = _read(line)
                    finish(place, what) if finished else said(what)
                case Exception() as error:
                    raise error
    return [found[place] for place in range(len(jobs))]


def run_apart(
    function: Callable[[Job, Say], Result],
    job: Job,
    said: Say = lambda what: None,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    processes: int = 1,
) -> Result:
    """As `run_jobs`, one job in a new process; or in several, which are ranks of one another: the first is heard.

    Args:
        threads: of each process; None: its share of the cores.
        environment: further variables.
    """
    found: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="edp_lab-") as folder,
        _started(Path(folder, "job"), (function, [(0, job)]), processes, threads, environment) as worker,
    ):
        for line in worker.lines():
            _, finished, what = _read(line)
            (found.append if finished else said)(what)
    return found[0]


def _started(share: Path, work: tuple[Any, Sequence[tuple[int, Any]]], processes: int = 1, *options: Any) -> Ranks:
    """Workers, or ranks of one, that do the jobs of `work` by its function. `options`: of `Ranks`."""
    for rank in range(processes):
        Path(f"{share}-{rank}").write_bytes(pickle.dumps(work))
    return Ranks(processes, ["edp_lab.training.result_cache", str(share)], *options)


def _read(line: str) -> tuple[int, bool, Any]:
    """Place of a job, whether it is done, and its result or news."""
    return pickle.loads(base64.b64decode(line))  # type: ignore[no-any-return]


def main(path: str) -> None:
    """In a worker: its share of the jobs. Each line it prints is for `run_jobs`; what jobs print is an error's."""
    share = Path(f"{path}-{os.environ['RANK']}")
    for name in LAUNCHER if os.environ["WORLD_SIZE"] == "1" else ():  # its runs are no ranks of one another
        del os.environ[name]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    content = share.read_bytes()
    share.unlink()
    parent, sys.stdout = sys.stdout, sys.stderr

    def tell(place: int, finished: bool, what: Any) -> None:
        parent.write(base64.b64encode(pickle.dumps((place, finished, what))).decode() + "\n")
        parent.flush()

    function, jobs = pickle.loads(content)
    for place, job in jobs:
        tell(place, True, function(job, partial(tell, place, False)))


if __name__ == "__main__":
    run_rank(lambda path, _: main(path))
