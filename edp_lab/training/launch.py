"""Start the ranks of a run with torchrun, relay rank 0's reports, and leave no process behind.

    edp-lab train, or a kernel   has the write end of a pipe; reads the events that rank 0 prints
      torchrun                   passes the read end on to the ranks as standard input
        rank 0, rank 1, ...      "stop" on the pipe requests an orderly end; end of file means the parent is gone

torchrun ends its ranks if one of them fails or if torchrun receives SIGTERM, but not if SIGKILL kills torchrun. Every
rank therefore watches the pipe and its parent process (`watch_launcher`), and exits within seconds if either ends. A
rank is a new Python process, never a fork, because a fork deadlocks with the threads of a notebook's kernel.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from typing import NoReturn

import psutil

from edp_lab.errors import UsageError, sentence
from edp_lab.jobs import usable_cores

LOOK_AGAIN = 0.1  # seconds between checks of a stop event or a process
WATCH = 1.0  # seconds between a rank's checks of its parent
LINGER = 3.0  # seconds a cut-off rank waits for torchrun to end it (which happens if the dead rank is a sibling)
GRACE = 4.0  # seconds from SIGTERM to SIGKILL
TAIL = 65_536  # bytes at the end of standard error that are searched for an error sentence
LAUNCHER = os.getppid()  # the launcher's process id, if this process is a rank
PATIENCE = 600.0  # seconds that ranks wait for one another
CUT_OFF = re.compile(r"connection .*(closed|reset|refused)|(closed|reset) by peer|remote process exited", re.IGNORECASE)
IN_VAIN = re.compile(r"timed ?out", re.IGNORECASE)
REFUSAL = re.compile(r"^error: (.+)$", re.MULTILINE)  # a rank's error sentence about bad input or the machine
FAILURE = re.compile(r"^failed: (.+)$", re.MULTILINE)  # a rank's sentence about any other error
ROOT_CAUSE = re.compile(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", re.DOTALL)  # torchrun's report


class Ranks(AbstractContextManager["Ranks"]):
    """Ranks of one run on this machine; leaving the context ends all ranks that are still running.

    Args:
        function: "module:name"; each rank calls it with `argument` and an event that is set when the run should end
            early. Rank 0 must flush each line it prints; output of other ranks is discarded.
        threads: OMP_NUM_THREADS of each rank (default: an equal share of the cores available to this process).
    """

    def __init__(self, processes: int, function: str, argument: str, threads: int | None = None) -> None:
        torchrun = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        rank = ["-m", "edp_lab.training.launch", function, argument]
        threads = threads or max(1, usable_cores() // processes)
        self._processes, self._stopping, self._rest = processes, False, b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._torchrun = subprocess.Popen(
            [sys.executable, "-m", *torchrun, "--nproc-per-node", str(processes), *rank],
            env={**os.environ, "GLOO_SOCKET_IFNAME": _loopback(), "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # a terminal's Ctrl-C then reaches only the parent
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def lines(self, hint: str | None = None, stop: threading.Event | None = None) -> Iterator[str]:
        """Yield the lines that rank 0 prints until all ranks have ended.

        After a KeyboardInterrupt, call this again for the remaining lines. `hint` ends the error about a dead rank.

        Raises:
            UsageError: a rank or torchrun failed; by then, all ranks have ended and all lines of rank 0 were relayed.
        """
        while self._torchrun.poll() is None:
            if stop is not None and stop.is_set():
                self.stop()
            yield from self._read(LOOK_AGAIN) or ()
        self._end()  # ranks that outlived a killed torchrun
        while (lines := self._read(GRACE)) is not None:
            yield from lines
        if self._torchrun.returncode:
            raise UsageError(self._sentence(hint))

    def stop(self) -> None:
        """Ask the ranks once to finish their step and end; one rank reads the request and informs the others."""
        assert self._torchrun.stdin
        if not self._stopping:
            with suppress(BrokenPipeError, ValueError):  # the ranks have ended, or the pipe is closed
                self._torchrun.stdin.write(b"stop\n")
                self._torchrun.stdin.flush()
        self._stopping = True

    def close(self) -> None:
        """End torchrun and the ranks; after a few seconds, kill them with SIGKILL."""
        self._end()
        assert self._torchrun.stdout
        self._torchrun.stdout.close()
        self._errors.close()

    def _read(self, seconds: float) -> list[str] | None:
        """Return the complete lines received; None if nothing arrives within `seconds` or the pipe is closed."""
        assert self._torchrun.stdout
        pipe = self._torchrun.stdout.fileno()
        if not select.select([pipe], [], [], seconds)[0] or not (content := os.read(pipe, 2**20)):
            return None
        *lines, self._rest = (self._rest + content).split(b"\n")
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def _end(self) -> None:
        """End torchrun and its ranks; if torchrun is gone, closing their pipe ends the ranks."""
        assert self._torchrun.stdin
        alive: list[psutil.Process] = []
        if self._torchrun.poll() is None:
            with suppress(psutil.NoSuchProcess):
                launcher = psutil.Process(self._torchrun.pid)
                alive = [launcher, *launcher.children(recursive=True)]
        with suppress(BrokenPipeError):
            self._torchrun.stdin.close()
        try:
            _signal(alive, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._torchrun.wait(GRACE)
        finally:  # also if a second Ctrl-C interrupts the wait
            _signal(alive, signal.SIGKILL)
            self._torchrun.wait()

    def _sentence(self, hint: str | None) -> str:
        """Return the error message: a rank's report of its failure, or torchrun's report if there is none."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - TAIL))
        text = self._errors.read().decode(errors="replace")
        if refusal := REFUSAL.search(text):
            return refusal[1]
        if failure := FAILURE.search(text):
            message = failure[1]
        elif report := ROOT_CAUSE.search(text):
            message = f"rank {report[1]} of {self._processes} {_ended(int(report[2]))}"
        else:
            message = f"torchrun {_ended(self._torchrun.returncode)}"
        return f"{message}: {hint}" if hint else message


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    memory = " (out of memory?)" if status == -signal.SIGKILL else ""
    return f"was killed by signal {signal.Signals(-status).name}{memory}"


def _loopback() -> str:
    """Name of the loopback network interface."""
    addresses = psutil.net_if_addrs().items()
    return next((name for name, listed in addresses if any(each.address == "127.0.0.1" for each in listed)), "lo")


# ---- In a rank -------------------------------------------------------------------------------------------------------


def main() -> NoReturn:
    """Run as one rank started by ``Ranks``."""
    status, stop = 1, threading.Event()
    try:
        watch_launcher(stop)  # before imports that take seconds
        if os.environ["RANK"] != "0":
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        module, _, name = sys.argv[1].partition(":")
        getattr(import_module(module), name)(sys.argv[2], stop)
        status = 0
    except BaseException as error:
        if lost(error):
            time.sleep(LINGER)
        rank = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
        message = sentence(error) if not isinstance(error, ConnectionError) else None
        failure = f"failed: {lost(error) or f'{rank} failed ({type(error).__name__}: {error})'}"
        line = f"error: {message}" if message else failure
        sys.stderr.write(line.replace("\n", " ") + "\n")
    finally:
        end_rank(status)


def watch_launcher(stop: threading.Event | None = None) -> None:
    """End this rank soon after its launcher dies. With `stop`, also read the parent's pipe."""
    pipe = [] if stop is None else [0]

    def watch() -> None:
        while os.getppid() == LAUNCHER:
            if select.select(pipe, [], [], WATCH)[0]:
                if not os.read(0, 64):
                    break
                assert stop
                stop.set()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def lost(error: BaseException) -> str | None:
    """Describe what happened to another rank if this error means that it does not respond; otherwise return None."""
    if not isinstance(error, (RuntimeError, ConnectionError)):
        return None
    if isinstance(error, ConnectionError) or CUT_OFF.search(str(error)):
        return "another process is gone"
    return f"no response from another process for {PATIENCE:.0f} seconds" if IN_VAIN.search(str(error)) else None


def end_rank(status: int) -> NoReturn:
    """Leave the process group and exit without Python's clean-up, during which torch's threads sometimes abort."""
    try:
        leave_group()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def leave_group() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_initialized():
        distributed.destroy_process_group()


def launched() -> tuple[int, int]:
    """Return this process's rank, as set by a launcher, and the number of ranks; raise UsageError if inconsistent."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    given = {name: os.environ[name] for name in names if name in os.environ}
    if not given:
        return 0, 1
    with suppress(KeyError, ValueError):
        numbers = {name: int(value) for name, value in given.items()}
        if 0 <= numbers["RANK"] < numbers["WORLD_SIZE"]:
            return numbers["RANK"], numbers["WORLD_SIZE"]
    settings = ", ".join(f"{name} is {value}" for name, value in given.items())
    raise UsageError(
        f"{settings}, but RANK must be a whole number, at least 0 and below WORLD_SIZE: unset them, or let torchrun "
        "set them"
    )


def rank() -> int:
    """Return the rank of this process; rank 0 writes files and reports for all ranks."""
    return launched()[0]


if __name__ == "__main__":
    main()
