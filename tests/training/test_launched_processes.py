"""The ranks of a run as real processes: what rank 0 says arrives, a dead rank is noticed, and nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from edp_lab.errors import UsageError
from edp_lab.training import processes as launch
from edp_lab.training.processes import Ranks

ROOT = Path(__file__).parents[2]
HOUR = "time.sleep(3600)"
# Each toy rank starts with this. `launch` is a copy of the module beside it, which brings no torch.
TOY = """
import json, os, signal, sys, threading, time
from pathlib import Path
from launch import obey

rank, here, stop = int(os.environ["RANK"]), Path(__file__).parent, threading.Event()
obey(stop)
(here / f"pid{rank}").write_text(str(os.getpid()))
def say(text, end="\\n"):
    sys.stdout.write(text + end)
    sys.stdout.flush()
def fail(status, *lines):
    print(*lines, sep="\\n", file=sys.stderr, flush=True)
    sys.exit(status) if status >= 0 else os.kill(os.getpid(), -status)
"""
# A parent of two such ranks, in a process of its own.
PARENT = """
from launch import Ranks
with Ranks(2, ["toy"]) as ranks:
    try:
        for line in ranks.lines():
            print(line, flush=True)
    except KeyboardInterrupt:
        ranks.stop()
        for line in ranks.lines():
            print(line, flush=True)
"""

Toy = Callable[[str], list[str]]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Writes a module for the ranks and returns its arguments for ``Ranks``."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    shutil.copy(launch.__file__, tmp_path / "launch.py")

    def write(source: str) -> list[str]:
        (tmp_path / "toy.py").write_text(TOY + source)
        return ["toy"]

    return write


@pytest.fixture
def parent(tmp_path: Path) -> Callable[[], subprocess.Popen[str]]:
    """Starts a process that starts two ranks; a session of its own, as on a terminal."""

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path
        )

    return start


def wait_for(condition: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def pids(folder: Path, count: int = 2) -> list[int]:
    """Of the toy ranks, once all of them listen to their parent."""
    files = [folder / f"pid{rank}" for rank in range(count)]
    assert wait_for(lambda: all(file.is_file() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def exists(pid: int) -> bool:
    """Also where it has ended, but nobody has reaped it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def runs(pid: int) -> bool:
    """Orphans are reaped by whatever adopts them; one that waits for that does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self").exists() and exists(pid)


def test_lines_of_rank_0_arrive_whole_and_in_order_and_nothing_else_is_shown(
    toy: Toy, capfd: pytest.CaptureFixture[str]
) -> None:
    program = """
print("UserWarning: slow", "w" * 1_000_000, file=sys.stderr)
if rank == 1:
    print("x" * 1_000_000)
for step in range(200 * (rank == 0)):
    say(json.dumps({"step": step, "pad": "ä" * (300_000 if step == 7 else 3)}, ensure_ascii=False))
"""
    with Ranks(2, toy(program)) as ranks:
        records = [json.loads(line) for line in ranks.lines()]
    assert [record["step"] for record in records] == list(range(200))
    assert records[7]["pad"] == "ä" * 300_000
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("threads", "expected"), [(None, max(1, launch.usable_cores() // 3)), (7, 7)])
def test_ranks_get_what_torch_distributed_reads_and_their_share_of_the_cores(
    toy: Toy, tmp_path: Path, threads: int | None, expected: int
) -> None:
    program = '(here / f"env{rank}").write_text(json.dumps({**os.environ, "group": os.getpgid(0), "me": os.getpid()}))'
    with Ranks(3, toy(program), threads) as ranks:
        assert list(ranks.lines()) == []
    ports = set()
    for rank in range(3):
        env = json.loads((tmp_path / f"env{rank}").read_text())
        assert env["RANK"] == env["LOCAL_RANK"] == str(rank)
        assert env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == "3"
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert env["OMP_NUM_THREADS"] == str(expected)
        assert env["PYTHONPATH"] == os.environ["PYTHONPATH"]
        assert env["group"] == env["me"]  # out of reach of a terminal's Ctrl-C
        ports.add(int(env["MASTER_PORT"]))
    assert len(ports) == 1
    assert ports.pop() > 1023


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("raise UsageError('no room: make some')", "^no room: make some$"),
        ("1 / 0", r"^rank 0 of 1 ended with status 1 \(ZeroDivisionError: division by zero\)$"),
        ("threading.Thread(target=time.sleep, args=[60]).start()", None),  # and its end is not waited for
    ],
)
def test_run_rank_says_how_its_work_ended(toy: Toy, end: str, says: str | None) -> None:
    program = f"""
from launch import run_rank
from edp_lab.errors import UsageError
def work(job, stop):
    print(job)
    {end}
run_rank(work)
"""
    start, lines = time.monotonic(), []
    with Ranks(1, [*toy(program), "a job"]) as ranks, pytest.raises(UsageError, match=says) if says else nullcontext():
        lines.extend(ranks.lines())
    assert says or lines == ["a job"]
    assert time.monotonic() - start < 30


PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:14055"
CURE = "resume it with edp-lab train --resume runs/a"
# what rank 1 does, what rank 0 does -> the sentence
FAILURES = {
    "status": (
        'fail(3, "Traceback", "  ValueError: z0", "")',
        HOUR,
        f"rank 1 of 2 ended with status 3 (ValueError: z0): {CURE}",
    ),
    "silent": ("fail(3)", HOUR, f"rank 1 of 2 ended with status 3: {CURE}"),
    "own sentence": ('fail(2, "Warning: slow", "error: C is 0: give --clip")', HOUR, "C is 0: give --clip"),
    "not its last": (
        'fail(1, "error: C is 0", "KeyError: 4")',
        HOUR,
        f"rank 1 of 2 ended with status 1 (KeyError: 4): {CURE}",
    ),
    "killed": ("fail(-9)", HOUR, f"rank 1 of 2 was killed by signal SIGKILL (out of memory?): {CURE}"),
    "crash": (
        'fail(-11, "Fatal Python error")',
        HOUR,
        f"rank 1 of 2 was killed by signal SIGSEGV (Fatal Python error): {CURE}",
    ),
    "rank 0": (HOUR, 'fail(1, "late")', f"rank 0 of 2 ended with status 1 (late): {CURE}"),
    "long": ('fail(1, "w" * 1_000_000, "KeyError: 4")', HOUR, f"rank 1 of 2 ended with status 1 (KeyError: 4): {CURE}"),
    "torch's additions": (
        'fail(1, "[rank1]: Traceback", "[rank1]: KeyError: 4", "[rank1]:[W1105 14:00:00.1 a.cpp:1] Warning: b")',
        HOUR,
        f"rank 1 of 2 ended with status 1 (KeyError: 4): {CURE}",
    ),
    "abort at exit": (
        'fail(-6, "error: C is 0: give --clip", "terminate called without an active exception")',
        HOUR,
        "C is 0: give --clip",
    ),
    "rank 0 is cut off and ends first": (
        'time.sleep(0.15); fail(1, "KeyError: 4")',
        f'fail(1, "{PEER}")',
        f"rank 1 of 2 ended with status 1 (KeyError: 4): {CURE}",
    ),
    "rank 0 is cut off from one without words": (
        "fail(-9)",
        f'fail(1, "{PEER}")',
        f"rank 1 of 2 was killed by signal SIGKILL (out of memory?): {CURE}",
    ),
}


@pytest.mark.parametrize(("one", "zero", "sentence"), FAILURES.values(), ids=FAILURES)
def test_dead_rank_ends_the_run_with_one_sentence(toy: Toy, tmp_path: Path, one: str, zero: str, sentence: str) -> None:
    program = toy(f"while len(list(here.glob('pid*'))) < 2: time.sleep(0.01)\nif rank: {one}\nelse: {zero}")
    with Ranks(2, program) as ranks:
        with pytest.raises(UsageError) as error:
            list(ranks.lines(CURE))
        assert str(error.value) == sentence
        assert not any(map(exists, pids(tmp_path)))  # before close


def test_killed_rank_is_noticed_at_once_while_rank_0_is_silent(toy: Toy, tmp_path: Path) -> None:
    program = toy(f"if rank == 0:\n    say('ready')\n    say('half a li', end='')\n{HOUR}")
    with Ranks(4, program) as ranks:
        lines = ranks.lines()
        assert next(lines) == "ready"
        started = pids(tmp_path, 4)
        os.kill(started[1], signal.SIGKILL)
        since = time.monotonic()
        with pytest.raises(UsageError, match=r"^rank 1 of 4 was killed by signal SIGKILL"):
            next(lines)
        assert time.monotonic() - since < 2  # 0.4 on an idle machine
        assert not any(map(exists, started))


def test_lines_said_before_a_failure_are_still_relayed(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Ranks._read

    def read_late(ranks: Ranks) -> None:
        time.sleep(0.6)  # all is over by then
        read(ranks)

    monkeypatch.setattr(Ranks, "_read", read_late)
    program = toy("if rank == 0:\n    for step in range(1000): say(str(step))\n    fail(1, 'KeyError: 4')\n" + HOUR)
    said: list[str] = []
    with Ranks(2, program) as ranks, pytest.raises(UsageError, match="KeyError: 4"):
        said.extend(ranks.lines())
    assert said == [str(step) for step in range(1000)]


def test_run_lasts_until_its_last_rank_has_ended(toy: Toy) -> None:
    program = toy("if rank == 1:\n    time.sleep(0.3)\n    fail(3, 'KeyError: 4')")
    with Ranks(2, program) as ranks, pytest.raises(UsageError, match="rank 1 of 2 ended with status 3"):
        list(ranks.lines())


def test_stop_lets_the_ranks_end_in_order(toy: Toy) -> None:
    program = toy("say('ready')\nstop.wait()\nsay('saved')")
    with Ranks(3, program) as ranks:
        lines = ranks.lines()
        assert next(lines) == "ready"
        ranks.stop()
        ranks.stop()
        assert list(lines) == ["saved"]  # and no failure: a listening thread does not spoil the exit
        ranks.stop()
    ranks.stop()


def test_interrupted_consumer_leaves_no_rank_no_open_file_and_no_thread(toy: Toy, tmp_path: Path) -> None:
    def consume() -> None:
        with Ranks(3, arguments) as ranks:
            kept.append(ranks)
            for _ in ranks.lines():
                pids(tmp_path, 3)
                raise KeyboardInterrupt

    kept: list[Ranks] = []  # so that files are closed by it, not with it
    arguments = toy(f"say('ready')\n{HOUR}")
    before = threading.active_count(), len(os.listdir("/dev/fd"))
    with pytest.raises(KeyboardInterrupt):
        consume()
    assert not any(map(exists, pids(tmp_path, 3)))
    assert (threading.active_count(), len(os.listdir("/dev/fd"))) == before


def test_rank_that_ignores_sigterm_is_killed(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE", 0.3)
    program = toy(f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('deaf')\n{HOUR}")
    with Ranks(2, program) as ranks:
        assert next(ranks.lines()) == "deaf"
        started = pids(tmp_path)
    assert not any(map(exists, started))


def test_second_interrupt_while_ranks_are_ended_leaves_none(toy: Toy, tmp_path: Path) -> None:
    program = toy(f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('deaf')\n{HOUR}")
    ranks = Ranks(2, program)
    assert next(ranks.lines()) == "deaf"
    started = pids(tmp_path)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        ranks.close()
    assert not any(map(exists, started))
    ranks.close()


def test_start_that_fails_half_way_leaves_no_rank(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def second_fails(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError("no more processes")
        started.append(start(*arguments, **options))  # type: ignore[call-overload]
        return started[0]

    monkeypatch.setattr(launch.subprocess, "Popen", second_fails)
    with pytest.raises(BlockingIOError):
        Ranks(2, toy(HOUR))
    assert not exists(started[0].pid)


def test_ranks_vanish_when_their_parent_is_killed(
    toy: Toy, tmp_path: Path, parent: Callable[[], subprocess.Popen[str]]
) -> None:
    toy(HOUR)
    with parent() as process:
        started = pids(tmp_path)
        assert all(map(runs, started))
        process.kill()
    assert wait_for(lambda: not any(map(runs, started)), 3)


def test_ctrl_c_reaches_the_parent_alone_which_lets_the_ranks_finish(
    toy: Toy, tmp_path: Path, parent: Callable[[], subprocess.Popen[str]]
) -> None:
    toy("say('ready')\nstop.wait()\nsay('saved')")
    with parent() as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        started = pids(tmp_path)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == "saved\n"
    assert process.returncode == 0
    assert not any(map(runs, started))


def test_run_of_no_process_is_refused(toy: Toy) -> None:
    with pytest.raises(UsageError, match="0 processes: give 1 or more"):
        Ranks(0, toy(HOUR))
