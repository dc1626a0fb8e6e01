"""Run a submission's code in a process of its own, and end it with all that it has started.

What holds on Linux, without further rights:

- Nothing that the code starts outlives it, in whatever session it is and whoever its parent was: this process adopts
  orphans (PR_SET_CHILD_SUBREAPER), and kills until none is left.
- The code gets an environment, a home and a temporary folder of its own, one open file (the socket of `submission`),
  and limits on time, memory, processes and the size of a file.
- What it says is read as plain data, and this process judges: no file, print, patch or open file makes a wrong answer
  right. An answer that was copied, or that asks the library, is right.

What does not hold: the code has the rights of whoever grades. It can read and change their files, the solutions and
this program among them, fill the disk with many files, use the network, and kill this process, which ends the grading
and lets go of what the code has started. In a `sandbox` (bubblewrap) it can do none of this. With or without one, it
can fill the memory with files that are kept there (memfd, tmpfs): what is counted is the memory of processes, and only
a container limits both. Where the system is not Linux, orphans are not found.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

import edp_lab
from edp_lab.course.kit.exercises import Stopped
from edp_lab.course.publish.submission import decode, encode, prctl
from edp_lab.errors import UsageError
from edp_lab.files import comes_with

IMPORTING = 300  # seconds for a notebook's imports
MEMORY = 4 * 10**9  # bytes, of a submission's processes together
PROCESSES = 64
FILE = 100 * 10**6  # bytes
SAID = 10**6  # bytes of a reply; the longest right one of the course has 43,000
LOOK_AGAIN = 0.2  # seconds until processes are counted again
ADOPT, DUMPABLE = 36, 4  # options of Linux' prctl
PACKAGE = Path(edp_lab.__file__).parent.resolve()
PYTHON = ("bin", "lib", "lib64", "pyvenv.cfg")  # of its prefix, which can hold other files
SOLUTIONS = ("source", "instructor")  # folders of notebooks
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")


class Ended(BaseException):  # no Exception: those are taken for the answer's wherever a judge runs
    """A submission's process has ended, or has to be: "timeout" or "crashed", and why."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Submission:
    """A submission's process, as a judge sees it: `ask` it for what it defines, and call that if it is a function.

    Args:
        process: the one that was started; what else there is, but for the `spared`, is its doing.
        channel: the socket to it.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], channel: socket.socket, spared: Collection[psutil.Process]
    ) -> None:
        self._process, self._channel, self._spared = process, channel, spared
        self._unread, self._said, self._next_look = b"", 0, 0.0
        self.allow(IMPORTING)

    def allow(self, seconds: float) -> None:
        """From now on, its replies may take this long together."""
        self._allowed = self._left = seconds

    def ask(self, request: Mapping[str, Any]) -> Any:
        """The value in its reply to a request, or a function that asks it; Stopped or NotImplementedError where the
        student's code raised, Ended where there is no reply in time and within the limits."""
        line = self._reply(json.dumps(request).encode() + b"\n")
        begin = time.monotonic()
        try:
            [(kind, content)] = json.loads(line).items()
            value = _READERS[kind](content)
        except Exception as error:  # it can say anything
            raise Ended("crashed", "its process said something that is no answer") from error
        self._left -= time.monotonic() - begin  # so that many replies that are long to read end it, too
        if kind == "stopped":
            raise Stopped(value)
        if kind == "open":
            raise NotImplementedError(value)
        return _Function(self, value) if kind == "function" else value

    def _reply(self, request: bytes) -> bytes:
        """The next line after a request, if there is any."""
        deadline = time.monotonic() + self._left
        try:
            self._channel.settimeout(max(self._left, 1e-3))
            self._channel.sendall(request)
            parts = [self._unread]
            self._said = len(self._unread)
            while b"\n" not in parts[-1]:
                if time.monotonic() > deadline:
                    raise TimeoutError
                parts.append(self._more())
        except TimeoutError:
            why = f"it took longer than {self._allowed:g} s: is there an endless loop?"
            raise Ended("timeout", why) from None
        except ConnectionError:
            raise self._crash() from None
        self._left = deadline - time.monotonic()
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line

    def _more(self) -> bytes:
        """What comes within a moment."""
        if time.monotonic() > self._next_look:
            self._check()
            self._next_look = time.monotonic() + LOOK_AGAIN
        self._channel.settimeout(LOOK_AGAIN)
        try:
            part = self._channel.recv(2**16)
        except TimeoutError:
            if self._process.poll() is not None:  # what it has started can hold the socket open
                raise self._crash() from None
            return b""
        self._said += len(part)
        if not part:
            raise self._crash()
        if self._said > SAID:
            raise Ended("crashed", f"its answer has more than {SAID / 1e6:g} MB")
        return part

    def _crash(self) -> Ended:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        return Ended("crashed", f"the process that ran it ended with status {self._process.poll()}")

    def _check(self) -> None:
        running, held = _started(self._spared), 0
        for process in running:
            with suppress(psutil.Error):  # ended since we looked
                held += process.memory_info().rss
        if len(running) > PROCESSES:
            raise Ended("crashed", f"it started more than {PROCESSES} processes")
        if held > MEMORY:
            raise Ended("crashed", f"it took more than {MEMORY / 1e9:g} GB of memory")


_READERS: dict[str, Callable[[Any], Any]] = {"value": decode, "function": base64.b64decode, "stopped": str, "open": str}


class _Function:
    """A student's function: called here, executed there. Its bytecode can tell that it is the one that was given."""

    def __init__(self, submission: Submission, code: bytes) -> None:
        self._submission = submission
        self.__code__ = SimpleNamespace(co_code=code)

    def __call__(self, *arguments: Any) -> Any:
        return self._submission.ask({"call": [*map(encode, arguments)]})


@contextmanager
def confined(setup: str, seed: int, timeout: float, hidden: Collection[Path] | None = None) -> Iterator[Submission]:
    """A process for the code of one submission; with the block, it and all that it has started end.

    Args:
        setup: code to be executed first, which is not the student's; UsageError where it fails.
        seed: if that has a `seed`, what it becomes.
        timeout: seconds for all replies together.
        hidden: folders that a sandbox does not show, besides the solutions that come with the package; None: there is
            no sandbox.
    """
    tasks = sum(process.info["num_threads"] or 0 for process in psutil.process_iter(["num_threads"]))
    limits = {"CORE": 0, "CPU": IMPORTING + int(timeout), "DATA": MEMORY, "FSIZE": FILE, "NPROC": tasks + PROCESSES}
    ours, theirs = socket.socketpair()
    with _scratch() as folder, ours, theirs, _adopting() as spared:
        process = subprocess.Popen(
            [*_sandbox(hidden), sys.executable, "-m", "edp_lab.course.publish.submission", str(theirs.fileno())],
            cwd=folder,
            env=_environment(folder if hidden is None else Path("/tmp")),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        submission = Submission(process, ours, spared)
        try:
            submission.ask({"setup": setup, "seed": seed, "limits": limits})
        except (Ended, Stopped) as error:
            raise UsageError(f"a notebook's imports fail ({error}): does it run here, and is there room?") from None
        submission.allow(timeout)
        yield submission
    process.wait()


# ---- What a process has started --------------------------------------------------------------------------------------


@contextmanager
def _adopting() -> Iterator[Collection[psutil.Process]]:
    """Within the block, orphans become children of this process, and its memory and environment are its own; at the
    end, it has no other descendants than those of the processes that it had before, which are given."""
    spared = psutil.Process().children()
    prctl(ADOPT, 1)
    prctl(DUMPABLE, 0)
    try:
        yield spared
    finally:
        while running := _started(spared):
            for process in running:
                with suppress(psutil.Error):
                    process.kill()
                with suppress(ChildProcessError):  # it is, as yet, the child of another that is ending
                    os.waitpid(process.pid, os.WNOHANG)
        prctl(DUMPABLE, 1)
        prctl(ADOPT, 0)


def _started(spared: Collection[psutil.Process]) -> list[psutil.Process]:
    """The descendants of this process, other than the spared ones and theirs."""
    children = defaultdict(list)
    for pid in psutil.pids():  # `process_iter` would miss one whose number has been another's
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            children[process.ppid()].append(process)
    found = [child for child in children[os.getpid()] if child not in spared]
    for process in found:  # which grows meanwhile
        found += children[process.pid]
    return found


# ---- Where it runs ---------------------------------------------------------------------------------------------------


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="edp_lab-"))
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL, check=False)  # however deep; follows no link


def _environment(home: Path) -> dict[str, str]:
    """All that a submission's process finds there; its packages are ours, where Python does not find them by itself."""
    given = [Path(folder).absolute() for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "PATH": os.defpath,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, [PACKAGE.parent, *given, *_user_packages()])),
        "TMPDIR": str(home),
    }


def _user_packages() -> list[Path]:
    return [Path(site.getusersitepackages())] if site.ENABLE_USER_SITE else []


def _sandbox(hidden: Collection[Path] | None) -> list[str]:
    """The words before a command that keep it in bubblewrap, if so: no network, no other process, and of all files
    the system's, Python's and this package's, which cannot be written; `/tmp` is in memory.

    A folder is shown where it is, and links lead to it: what is hidden there can be reached in no other way.
    """
    if hidden is None:
        return []
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/dev/shm"):
        words += ["--size", str(FILE), "--tmpfs", folder]
    python = [Path(prefix) / name for prefix in (sys.prefix, sys.base_prefix) for name in PYTHON]
    shown: list[Path] = []
    for path in [*map(Path, SYSTEM), *python, *_user_packages(), PACKAGE, comes_with("data")]:
        place = path.resolve()
        words += ["--ro-bind-try", str(place), str(place)]
        if not any(path.is_relative_to(folder) for folder in [*shown, place]):
            words += ["--symlink", str(place), str(path)]
        shown += [path, place]
    carried = [comes_with("notebooks") / name for name in SOLUTIONS]
    for place in {path.resolve() for path in [*hidden, *carried] if path.is_dir()}:
        if any(place.is_relative_to(folder) for folder in shown):
            words += ["--tmpfs", str(place), "--remount-ro", str(place)]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]


def check_sandbox() -> None:
    """UsageError where bubblewrap is not there, or does not work here."""
    if shutil.which("bwrap") is None:
        raise UsageError("--sandbox needs bubblewrap: install the package of that name, or use a container instead")
    tried = subprocess.run([*_sandbox([]), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise UsageError(f"bubblewrap fails here ({tried.stderr.strip()}): use a container instead of --sandbox")


def terms(timeout: float, sandbox: bool) -> str:
    """What is said before anything is executed: as whom, and what is limited."""
    limits = (
        f"A notebook has {timeout:g} s, {MEMORY / 1e9:g} GB of memory (files that are kept in memory are not counted), "
        f"{PROCESSES} processes and files of {FILE / 1e6:g} MB; what it starts is ended with it."
    )
    if sandbox:
        return f"The submissions' code is executed in bubblewrap, without network and without your files. {limits}"
    cure = "give --sandbox" if shutil.which("bwrap") else "install bubblewrap and give --sandbox, or use a container"
    who = psutil.Process().username()
    return (
        f"The submissions' code is executed as {who}: it can read and change your files and use the network ({cure}). "
        f"{limits}"
    )
