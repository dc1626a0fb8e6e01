"""Start the ranks of a multi-process run, relay what rank 0 reports, and leave nothing running.

A rank is a new Python with the variables that torch.distributed's ``env://`` reads; never a fork, which deadlocks
under a notebook kernel's threads. Its standard input is a pipe that the parent holds open: "stop" asks for an orderly
end, and end of file says that the parent is gone, however it died (see ``run_rank``).

Several machines can share a run:

    EDP_LAB_MACHINES=one,two edp-lab train --processes 8 ...     # on each of them

The first one's first rank is where they meet, and its folder is the run's; each starts its part of the ranks.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import IO, NamedTuple, NoReturn

import psutil

from edp_lab.errors import UsageError, sentence

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")  # what tells a rank of itself and the others
LOOK_AGAIN = 0.05  # seconds between two looks at which ranks still run
SETTLE = 0.3  # seconds that a rank gets to end by itself, if its failure has already ended another
GRACE = 5.0  # seconds from SIGTERM to SIGKILL
TAIL = 16_384  # bytes at the end of a rank's standard error among which its last line is sought
PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch puts it before each line of a traceback
AT_EXIT = re.compile(r"^(\[[IW]\d{4} |terminate called without)")  # torch may say this after the error itself
MACHINES = "EDP_LAB_MACHINES"  # environment variable: names or addresses, the same on each machine
TIMEOUT = "EDP_LAB_TIMEOUT"  # environment variable: seconds that ranks wait for one another (600)
CUT_OFF = re.compile(r"connection .*(closed|reset)|(closed|reset) by peer|remote process exited", re.IGNORECASE)
IN_VAIN = re.compile(r"timed ?out", re.IGNORECASE)


class Ranks(AbstractContextManager["Ranks"]):
    """The ranks of one run on this machine; as a context manager, it ends those that are left.

    Args:
        arguments: a module, which calls ``run_rank``, and its argument, as after ``python -m``. Rank 0 flushes each
            line it prints.
        threads: OMP_NUM_THREADS of a rank (default: its share of the cores that this process may use).
        environment: further variables for every rank.
        machines: that share the `processes`; the others do the same.
    """

    def __init__(
        self,
        processes: int,
        arguments: Sequence[str],
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
        machines: Machines | None = None,
    ) -> None:
        self._machines, self._processes = machines or Machines(), processes
        self._numbers = self._machines.ranks(processes)
        here = len(self._numbers)
        world = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(here), **self._machines.environment()}
        world["OMP_NUM_THREADS"] = str(threads or max(1, usable_cores() // here))
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._errors: list[IO[bytes]] = []
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._stopping = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        try:
            for local, rank in enumerate(self._numbers):
                numbers = {"RANK": str(rank), "LOCAL_RANK": str(local)}
                self._errors.append(tempfile.TemporaryFile())  # noqa: SIM115 - closed in `close`
                own = subprocess.Popen(
                    [sys.executable, "-m", *arguments],
                    env={**os.environ, **world, **(environment or {}), **numbers},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
                    stderr=self._errors[-1],
                    start_new_session=True,  # a terminal's Ctrl-C reaches the parent only
                )
                self._ranks.append(own)
                if rank == 0:
                    self._reader.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def lines(self, cure: str | None = None, stop: threading.Event | None = None) -> Iterator[str]:
        """Yield what rank 0 prints, without line ends, until all ranks have ended with status 0.

        KeyboardInterrupt ends no rank by itself: after ``stop``, which a `stop` that is set calls, too, a second call
        relays the rest. `cure` ends the sentence about a rank that left none of its own.

        Raises:
            UsageError: a rank ended otherwise. By then the other ranks, which might wait for it forever, are gone,
                and every whole line of rank 0 has been relayed. Where a rank's standard error ends with a line
                "error: SENTENCE", that is the sentence.
        """
        while any(rank.poll() is None for rank in self._ranks) and not self._failed():
            if stop is not None and stop.is_set():
                self.stop()
            try:
                line = self._said.get(timeout=LOOK_AGAIN)
            except queue.Empty:
                continue
            yield line
        if self._failed():
            time.sleep(SETTLE)
        failed = self._failed()  # before the others are ended, too
        self._end()
        while not self._said.empty():
            yield self._said.get()
        if failed:
            raise UsageError(self._sentence(failed, cure))

    def stop(self) -> None:
        """Ask every rank, once, to finish its step and end; ``lines`` relays what rank 0 still has to say."""
        for rank in [] if self._stopping else self._ranks:
            assert rank.stdin
            with suppress(BrokenPipeError, ValueError):  # it has ended, or its pipe is closed
                rank.stdin.write(b"stop\n")
                rank.stdin.flush()
        self._stopping = True

    def close(self) -> None:
        """End the ranks that still run, at the latest by SIGKILL after five seconds, and reap them."""
        self._end()
        for rank in self._ranks:
            assert rank.stdin
            with suppress(BrokenPipeError):  # a "stop" that came too late
                rank.stdin.close()
        for file in self._errors:
            file.close()

    def _read(self) -> None:
        assert self._ranks[0].stdout
        with self._ranks[0].stdout as said:
            for line in said:
                if line.endswith(b"\n"):  # else the rank died in the middle of it
                    self._said.put(line.decode(errors="replace").rstrip("\r\n"))

    def _failed(self) -> dict[int, int]:
        """The status of each rank that has ended badly: minus the signal's number where one killed it."""
        ended = {number: rank.poll() for number, rank in zip(self._numbers, self._ranks, strict=False)}
        return {number: status for number, status in ended.items() if status}

    def _end(self) -> None:
        try:
            for rank in self._ranks:
                rank.terminate()
                rank.send_signal(signal.SIGCONT)  # else one that was stopped would not notice
            deadline = time.monotonic() + GRACE
            for rank in self._ranks:
                with suppress(subprocess.TimeoutExpired):
                    rank.wait(max(0, deadline - time.monotonic()))
        finally:  # also where a second Ctrl-C cuts the wait short
            for rank in self._ranks:
                rank.kill()
            for rank in self._ranks:
                rank.wait()
        if self._reader.is_alive():
            self._reader.join(1)  # not for ever: a process that rank 0 started may hold its output open

    def _sentence(self, failed: dict[int, int], cure: str | None) -> str:
        """About the rank that explains the failure of the others; those were only cut off from it."""
        last = {}  # line with content that each left on standard error; "" if none
        for number, errors in zip(self._numbers, self._errors, strict=True):
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - TAIL))
            lines = [PREFIX.sub("", line).strip() for line in errors.read().decode(errors="replace").splitlines()]
            last[number] = next((line for line in reversed(lines) if line and not AT_EXIT.match(line)), "")
        for line in last.values():
            if line.startswith("error: "):
                return line.removeprefix("error: ")
        rank = min(failed, key=lambda rank: bool(CUT_OFF.search(last[rank])))
        status, silent = failed[rank], [f"rank {number}" for number in self._numbers if number not in failed]
        how = f"was killed by signal {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        why = "out of memory?" if status == -signal.SIGKILL else last[rank]
        said = lost(last[rank], [*self._machines.others, *silent])
        said = said or f"rank {rank} of {self._processes} {how}" + (f" ({why})" if why else "")
        return f"{said}: {cure}" if cure else said


def run_rank(main: Callable[[str, threading.Event], None]) -> NoReturn:
    """What a module does in a rank that ``Ranks`` started: ``main`` on its argument, then the end of this process.

    The event is set when the parent asks for an orderly end. The process ends with status 1 and a last line
    "error: SENTENCE" after bad input or a fault of the machine, with status 1 and a traceback after any other error,
    and else with status 0.
    """
    status = 1
    try:
        stop = threading.Event()
        obey(stop)
        _meeting = meet() if os.environ["RANK"] == "0" and os.environ["WORLD_SIZE"] != "1" else None  # kept to the end
        main(sys.argv[1], stop)
        status = 0
    except BaseException as error:
        # That it was cut off from another rank, whose own sentence is to be heard, is none.
        said = None if isinstance(error, ConnectionError) else sentence(error)
        print(f"error: {said}" if said else traceback.format_exc(), file=sys.stderr)
    finally:
        end_rank(status)


def meet() -> object:
    """Where the ranks meet, at MASTER_ADDR alone: torch finds it by its port, and would listen at every address."""
    from torch.distributed import TCPStore

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    own = socket.create_server((address, port)).detach()
    return TCPStore(address, port, None, True, wait_for_workers=False, multi_tenant=True, master_listen_fd=own)


def end_rank(status: int) -> NoReturn:
    """Leave the group, and end this process without Python's clean-up, in which torch's threads abort now and then."""
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


def obey(stop: threading.Event) -> None:
    """In a rank that ``Ranks`` started: set ``stop`` when the parent asks for an orderly end.

    At the end of standard input, which means that the parent is gone, this process ends with status 1, wherever it is.
    """

    def listen() -> None:
        # Not sys.stdin: Python aborts at exit when a daemon thread holds its lock.
        with open(0, "rb", buffering=0, closefd=False) as parent:
            for line in parent:
                if line == b"stop\n":
                    stop.set()
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()


def usable_cores() -> int:
    """Those that this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- Several machines ------------------------------------------------------------------------------------------------


class Machines(NamedTuple):
    """By default this one alone."""

    names: tuple[str, ...] = ("localhost",)
    addresses: tuple[str, ...] = ("127.0.0.1",)
    own: int = 0  # which of them this is

    @classmethod
    def given(cls) -> Machines:
        """Those that EDP_LAB_MACHINES names; UsageError unless just one of them is this machine."""
        given = os.environ.get(MACHINES, "")
        names = tuple(filter(None, map(str.strip, given.split(","))))
        if not names:
            return cls()
        addresses = tuple(map(_address, names))
        reached = {address for address in _interfaces() if not address.startswith("127.")}
        own = [number for number, address in enumerate(addresses) if address in reached]
        if len(own) != 1:
            raise UsageError(
                f"{MACHINES} is {given!r}, here {', '.join(addresses)}: just one of them must be an address by which "
                "the others reach this machine"
            )
        return cls(names, addresses, own[0])

    def ranks(self, processes: int) -> range:
        """Those that this machine starts of so many; UsageError where there are not enough for all machines."""
        many = len(self.names)
        if processes < many:
            on = f" on {many} machines" if many > 1 else ""
            raise UsageError(f"a run{on} cannot have {processes} processes: give {many} or more")
        return range(processes * self.own // many, processes * (self.own + 1) // many)

    def environment(self) -> dict[str, str]:
        """Where the ranks meet, and through which network; UsageError where another run meets there."""
        port = os.environ.get("MASTER_PORT", "29500") if len(self.names) > 1 else "0"
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier run may just have ended
            try:
                if self.own == 0:
                    probe.bind((self.addresses[0], int(port)))
                    port = str(probe.getsockname()[1])  # 0 is any that is free
            except (OSError, ValueError, OverflowError):
                raise UsageError(f"port {port} is not free: give every machine another MASTER_PORT") from None
        interface = _interfaces()[self.addresses[self.own]]
        return {"MASTER_ADDR": self.addresses[0], "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": interface}

    @property
    def others(self) -> list[str]:
        pairs = zip(self.names, self.addresses, strict=True)
        told = [f"machine {name}" + (f" ({address})" if name != address else "") for name, address in pairs]
        return [one for number, one in enumerate(told) if number != self.own]


def _address(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except (OSError, UnicodeError):
        raise UsageError(f"{MACHINES} names {name!r}, which has no IPv4 address here: give the address") from None


def _interfaces() -> dict[str, str]:
    """This machine's network interfaces by their addresses."""
    return {one.address: name for name, own in psutil.net_if_addrs().items() for one in own}


def lost(line: str, others: Sequence[str]) -> str | None:
    """What became of the others, if there are any and the error with this last line means that they do not answer."""
    address = re.search(r"\[(\d+\.\d+\.\d+\.\d+)\]", line)
    who = " or ".join([one for one in others if address and address[1] in re.split("[ ()]", one)] or others)
    if who and CUT_OFF.search(line):
        return f"{who} is gone"
    if who and IN_VAIN.search(line):
        return f"no word from {who} for {os.environ.get(TIMEOUT, '600')} seconds ({TIMEOUT})"
    return None
