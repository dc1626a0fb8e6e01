"""The ranks of a run as real processes: what rank 0 says arrives, a dead rank is noticed, and nothing is left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from edp_lab.errors import UsageError
from edp_lab.training import processes as launch
from edp_lab.training.processes import MACHINES, Machines, Ranks, lost
from tests.training.own_corpus import runs, wait_for

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


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Writes a module for the ranks and returns its arguments for ``Ranks``."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    shutil.copy(launch.__file__, tmp_path / "launch.py")

    def write(source):
        (tmp_path / "toy.py").write_text(TOY + source)
        return ["toy"]

    return write


@pytest.fixture
def parent(tmp_path):
    """Starts a process that starts two ranks; a session of its own, as on a terminal."""
    command, options = [sys.executable, "-c", PARENT], {"text": True, "start_new_session": True, "cwd": tmp_path}
    return lambda: subprocess.Popen(command, stdout=subprocess.PIPE, **options)


def pids(folder, count=2):
    """Of the toy ranks, once all of them listen to their parent."""
    files = [folder / f"pid{rank}" for rank in range(count)]
    assert wait_for(lambda: all(file.is_file() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def exists(pid):
    """Also where it has ended, but nobody has reaped it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_lines_of_rank_0_arrive_whole_and_in_order_and_nothing_else_is_shown(toy, capfd):
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
def test_ranks_get_what_torch_distributed_reads_and_their_share_of_the_cores(toy, tmp_path, threads, expected):
    program = '(here / f"env{rank}").write_text(json.dumps({**os.environ, "group": os.getpgid(0), "me": os.getpid()}))'
    with Ranks(3, toy(program), threads) as ranks:
        assert list(ranks.lines()) == []
    told = [json.loads((tmp_path / f"env{rank}").read_text()) for rank in range(3)]
    for rank, env in enumerate(told):
        wanted = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
        wanted |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": told[0]["MASTER_PORT"], "OMP_NUM_THREADS": str(expected)}
        assert {**wanted, "PYTHONPATH": os.environ["PYTHONPATH"]}.items() <= env.items()
        assert env["group"] == env["me"]  # out of reach of a terminal's Ctrl-C
    assert int(told[0]["MASTER_PORT"]) > 1023


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("raise UsageError('no room: make some')", "^no room: make some$"),
        ("1 / 0", r"^rank 0 of 1 ended with status 1 \(ZeroDivisionError: division by zero\)$"),
        ("threading.Thread(target=time.sleep, args=[60]).start()", None),  # and its end is not waited for
    ],
)
def test_run_rank_says_how_its_work_ended(toy, end, says):
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


def test_ranks_of_one_machine_listen_to_no_other(toy, tmp_path):
    program = """
import psutil
import torch.distributed
from launch import run_rank
def work(job, stop):
    torch.distributed.init_process_group("gloo")
    heard = [one.laddr.ip for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]
    (here / f"heard{rank}").write_text(json.dumps(heard))
    torch.distributed.barrier()
run_rank(work)
"""
    with Ranks(2, [*toy(program), "a job"]) as ranks:
        assert list(ranks.lines()) == []
    heard = [json.loads((tmp_path / f"heard{rank}").read_text()) for rank in range(2)]
    assert heard == [["127.0.0.1"] * 2, ["127.0.0.1"]]  # for one another; and on rank 0, where they meet


PEER = 'fail(1, "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:14055")'
CURE = "resume it with edp-lab train --resume runs/a"
KEY_ERROR = f"rank 1 of 2 ended with status 1 (KeyError: 4): {CURE}"
KILLED = f"rank 1 of 2 was killed by signal SIGKILL (out of memory?): {CURE}"
MESSAGE = "C is 0: give --clip"
TORCHS = '"[rank1]: Traceback", "[rank1]: KeyError: 4", "[rank1]:[W1105 14:00:00.1 a.cpp:1] Warning: b"'
FAILURES = [  # what rank 1 does, what rank 0 does, the sentence
    ('fail(3, "Traceback", "  ValueError: z0", "")', HOUR, f"rank 1 of 2 ended with status 3 (ValueError: z0): {CURE}"),
    ("fail(3)", HOUR, f"rank 1 of 2 ended with status 3: {CURE}"),
    (f'fail(2, "Warning: slow", "error: {MESSAGE}")', HOUR, MESSAGE),
    (f'fail(1, "error: {MESSAGE}", "KeyError: 4")', HOUR, KEY_ERROR),  # it is not the last
    (f'fail(-6, "error: {MESSAGE}", "terminate called without an active exception")', HOUR, MESSAGE),
    ('fail(1, "w" * 1_000_000, "KeyError: 4")', HOUR, KEY_ERROR),
    (f"fail(1, {TORCHS})", HOUR, KEY_ERROR),
    ("fail(-9)", HOUR, KILLED),
    ('fail(-11, "Fatal!")', HOUR, f"rank 1 of 2 was killed by signal SIGSEGV (Fatal!): {CURE}"),
    (HOUR, 'fail(1, "late")', f"rank 0 of 2 ended with status 1 (late): {CURE}"),
    ('time.sleep(0.15); fail(1, "KeyError: 4")', PEER, KEY_ERROR),  # rank 0 is cut off and ends first
    ("fail(-9)", PEER, KILLED),
    ('time.sleep(0.3); fail(1, "KeyError: 4")', "say('done')", KEY_ERROR),  # a run lasts until its last rank has ended
]


@pytest.mark.parametrize(("one", "zero", "sentence"), FAILURES)
def test_dead_rank_ends_the_run_with_one_sentence(toy, tmp_path, one, zero, sentence):
    program = toy(f"while len(list(here.glob('pid*'))) < 2: time.sleep(0.01)\nif rank: {one}\nelse: {zero}")
    with Ranks(2, program) as ranks:
        with pytest.raises(UsageError) as error:
            list(ranks.lines(CURE))
        assert str(error.value) == sentence
        assert not any(map(exists, pids(tmp_path)))  # before close


def test_killed_rank_is_noticed_at_once_while_rank_0_is_silent(toy, tmp_path):
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


def test_lines_said_before_a_failure_are_still_relayed(toy, monkeypatch):
    read = Ranks._read
    monkeypatch.setattr(Ranks, "_read", lambda ranks: (time.sleep(0.6), read(ranks)))  # all is over by then
    program = toy("if rank == 0:\n    for step in range(1000): say(str(step))\n    fail(1, 'KeyError: 4')\n" + HOUR)
    said = []
    with Ranks(2, program) as ranks, pytest.raises(UsageError, match="KeyError: 4"):
        said.extend(ranks.lines())
    assert said == [str(step) for step in range(1000)]


def test_stop_lets_the_ranks_end_in_order(toy):
    program = toy("say('ready')\nstop.wait()\nsay('saved')")
    with Ranks(3, program) as ranks:
        lines = ranks.lines()
        assert next(lines) == "ready"
        ranks.stop()
        ranks.stop()
        assert list(lines) == ["saved"]  # and no failure: a listening thread does not spoil the exit
        ranks.stop()
    ranks.stop()


def test_interrupted_consumer_leaves_no_rank_no_open_file_and_no_thread(toy, tmp_path):
    def consume():
        with Ranks(3, arguments) as ranks:
            kept.append(ranks)
            for _ in ranks.lines():
                pids(tmp_path, 3)
                raise KeyboardInterrupt

    kept = []  # so that files are closed by it, not with it
    arguments = toy(f"say('ready')\n{HOUR}")
    before = threading.active_count(), len(os.listdir("/dev/fd"))
    with pytest.raises(KeyboardInterrupt):
        consume()
    assert not any(map(exists, pids(tmp_path, 3)))
    assert (threading.active_count(), len(os.listdir("/dev/fd"))) == before


@pytest.mark.parametrize("interrupted", [False, True])
def test_ranks_that_ignore_sigterm_are_killed_also_where_a_second_interrupt_cuts_the_wait(
    toy, tmp_path, monkeypatch, interrupted
):
    program = toy(f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('deaf')\n{HOUR}")
    ranks = Ranks(2, program)
    assert next(ranks.lines()) == "deaf"
    started = pids(tmp_path)
    ended = threading.Event()

    def press() -> None:
        for pause in (0.3, 2.0):  # Python loses one that comes while it runs a finalizer
            if not ended.wait(pause):
                os.kill(os.getpid(), signal.SIGINT)

    if interrupted:
        threading.Thread(target=press, daemon=True).start()
    else:
        monkeypatch.setattr(launch, "GRACE", 0.3)
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        ranks.close()
    ended.set()
    assert not any(map(exists, started))
    ranks.close()


def test_start_that_fails_half_way_leaves_no_rank(toy, monkeypatch):
    start, started = subprocess.Popen, []

    def second_fails(*arguments, **options):
        if started:
            raise BlockingIOError("no more processes")
        started.append(start(*arguments, **options))
        return started[0]

    monkeypatch.setattr(launch.subprocess, "Popen", second_fails)
    with pytest.raises(BlockingIOError):
        Ranks(2, toy(HOUR))
    assert not exists(started[0].pid)


def test_ranks_vanish_when_their_parent_is_killed(toy, tmp_path, parent):
    toy(HOUR)
    with parent() as process:
        started = pids(tmp_path)
        assert all(map(runs, started))
        process.kill()
    assert wait_for(lambda: not any(map(runs, started)), 3)


def test_ctrl_c_reaches_the_parent_alone_which_lets_the_ranks_finish(toy, tmp_path, parent):
    toy("say('ready')\nstop.wait()\nsay('saved')")
    with parent() as process:
        assert process.stdout.readline() == "ready\n"
        started = pids(tmp_path)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == "saved\n"
    assert process.returncode == 0
    assert not any(map(runs, started))


# ---- Several machines ------------------------------------------------------------------------------------------------

TWO = ("10.0.0.12", "10.0.0.1")


@pytest.mark.parametrize(
    ("given", "processes", "port", "refusal"),
    [
        ("", 0, "0", "a run cannot have 0 processes: give 1 or more"),
        ("10.0.0.12,10.0.0.1", 1, "0", "a run on 2 machines cannot have 1 processes: give 2 or more"),
        ("10.0.0.12,", 0, "0", "a run cannot have 0 processes"),
        ("10.0.0.1,10.0.0.2", 2, "0", "'10.0.0.1,10.0.0.2', here 10.0.0.1, 10.0.0.2: just one of them must be"),
        ("10.0.0.12,10.0.0.12", 2, "0", "just one of them must be an address by which the others reach this machine"),
        ("a..b", 2, "0", "names 'a..b', which has no IPv4 address here: give the address"),
        ("10.0.0.12,10.0.0.1", 2, "many", "port many is not free: give every machine another MASTER_PORT"),
        ("10.0.0.12,10.0.0.1", 2, "29500", "port 29500 is not free"),  # here, it is not even an address of this machine
    ],
)
def test_what_cannot_be_the_machines_of_a_run_is_refused(given, processes, port, refusal, toy, monkeypatch):
    monkeypatch.setattr(launch, "_interfaces", lambda: {"10.0.0.12": "eth0"})
    monkeypatch.setenv(MACHINES, given)
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(UsageError, match=refusal):
        Ranks(processes, toy(HOUR), machines=Machines.given())


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("RuntimeError: Read error [10.0.0.1]:547: Connection reset by peer. This is", "machine 10.0.0.1 is gone"),
        ("RuntimeError: Connection closed by peer", "machine a (10.0.0.12) or machine 10.0.0.1 is gone"),
        (
            "Timed out waiting",
            "no word from machine a (10.0.0.12) or machine 10.0.0.1 for 600 seconds (EDP_LAB_TIMEOUT)",
        ),
        ("KeyError: 4", None),
    ],
)
def test_the_machine_that_is_gone_is_named(line, sentence):
    others = Machines(("a", "10.0.0.1", "c"), (*TWO, "10.0.0.3"), 2).others
    assert lost(line, others) == sentence
    assert lost(line, []) is None


def test_machines_share_the_ranks():
    for processes in (3, 8):
        shares = [Machines(("a", "b", "c"), (*TWO, "10.0.0.3"), own).ranks(processes) for own in range(3)]
        assert [rank for share in shares for rank in share] == list(range(processes))
        assert min(map(len, shares)) >= processes // 3
