"""Many jobs side by side, in processes of their own: the one pool of workers.

A worker is a new Python, never a fork, which deadlocks under a notebook kernel's threads. It has one thread, as a step
of most networks here is mostly overhead: on two cores two of them train about twice as fast as one process. It ends
with its parent, however that dies (see `edp_lab.training.processes`), and its share of the jobs, which may hold a
corpus, lies in a file only until it has read it.
"""

from __future__ import annotations

import base64
import os
import pickle
import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from edp_lab.errors import UsageError
from edp_lab.training.processes import Ranks, run_rank

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")  # a worker's runs are no ranks of one another
Job = TypeVar("Job")
Result = TypeVar("Result")
Say = Callable[[Any], None]


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
    workers = min(workers, len(jobs))
    if workers <= 1:
        return _here(function, jobs, said, done)
    found: dict[int, Result] = {}
    heard: queue.SimpleQueue[str | Exception | None] = queue.SimpleQueue()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edp_lab-"))
        for k in range(workers):
            worker = stack.enter_context(_started(Path(folder, str(k)), function, list(enumerate(jobs))[k::workers], 1))
            threading.Thread(target=_relay, args=(worker, cure, name, heard), daemon=True).start()
        while workers:
            match heard.get():
                case None:
                    workers -= 1
                case str() as line:
                    place, finished, what = _read(line)
                    if finished:
                        found[place] = what
                        done(place, what)
                    else:
                        said(what)
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
        _started(Path(folder, "job"), function, [(0, job)], threads, environment, processes) as worker,
    ):
        for line in worker.lines():
            _, finished, what = _read(line)
            (found.append if finished else said)(what)
    return found[0]


def _started(
    share: Path,
    function: Callable[[Job, Say], Result],
    jobs: Sequence[tuple[int, Job]],
    threads: int | None,
    environment: Mapping[str, str] | None = None,
    processes: int = 1,
) -> Ranks:
    for rank in range(processes):
        Path(f"{share}-{rank}").write_bytes(pickle.dumps((function, jobs)))
    return Ranks(processes, ["edp_lab.training.pool", str(share)], threads, environment)


def _read(line: str) -> tuple[int, bool, Any]:
    """Place of a job, whether it is done, and its result or news."""
    return pickle.loads(base64.b64decode(line))  # type: ignore[no-any-return]


def _here(
    function: Callable[[Job, Say], Result], jobs: Sequence[Job], said: Say, done: Callable[[int, Any], None]
) -> list[Result]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    try:
        for place, job in enumerate(jobs):
            found.append(function(job, said))
            done(place, found[-1])
    finally:
        torch.set_num_threads(threads)
    return found


def _relay(worker: Ranks, cure: str | None, name: str, heard: queue.SimpleQueue[str | Exception | None]) -> None:
    try:
        for line in worker.lines(cure):
            heard.put(line)
        heard.put(None)
    except UsageError as error:
        heard.put(UsageError(str(error).replace("rank 0 of 1", name)))
    except Exception as error:  # also when everything was closed, and nobody listens
        heard.put(error)


def main(path: str) -> None:
    """In a worker: its share of the jobs. Each line it prints is for `run_jobs`; what jobs print is an error's."""
    share = Path(f"{path}-{os.environ['RANK']}")
    for name in LAUNCHER if os.environ["WORLD_SIZE"] == "1" else ():
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
