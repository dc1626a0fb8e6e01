"""The ranks of a run, started by torchrun: rank 0's output is shown, a dead rank is named, and no process remains."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edp_lab.errors import UsageError
from edp_lab.training import launch
from edp_lab.training.launch import Ranks
from edp_lab.training.ledger import LEDGER
from edp_lab.training.run_files import read_record
from tests.training.own_corpus import result, runs, wait_for, write_corpus

ROOT = Path(__file__).parents[2]
HOUR = "time.sleep(3600)"
HINT = "go on"
TOY = """
import json, os, signal, sys, threading, time
from pathlib import Path
from edp_lab.errors import UsageError

rank = int(os.environ["RANK"])
def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()
def work(argument, stop):
    folder = Path(argument)
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    while len(list(folder.glob("pid*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    say("ready")
"""
# A parent of two such ranks.
PARENT = """
import sys
from edp_lab.training.launch import Ranks
with Ranks(2, "toy:work", sys.argv[1]) as ranks:
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
    """Write the module of the ranks, whose work ends with these lines; returns its arguments for ``Ranks``."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))

    def write(*lines):
        (tmp_path / "toy.py").write_text(TOY + "".join(f"    {line}\n" for line in lines))
        return "toy:work", str(tmp_path)

    return write


def processes(folder, count=2):
    """The ids of the toy ranks, once all of them have started."""
    files = [folder / f"pid{rank}" for rank in range(count)]
    assert wait_for(lambda: all(file.is_file() and file.read_text() for file in files), 60)
    return [int(file.read_text()) for file in files]


ORPHANS = 5.0 if os.environ.get("EDP_LAB_LONG") else 30.0  # seconds until no process is left; 30 on a busy machine


def gone(ranks, seconds=ORPHANS):
    return wait_for(lambda: not any(map(runs, ranks)), seconds)


def test_lines_of_rank_0_arrive_whole_and_nothing_else_is_shown(toy, tmp_path, capfd):
    program = (
        'print("UserWarning: slow", "w" * 1_000_000, file=sys.stderr)',
        "if rank == 1: say('x' * 1_000_000)",
        "env = {name: os.environ[name] for name in ('WORLD_SIZE', 'OMP_NUM_THREADS', 'GLOO_SOCKET_IFNAME')}",
        "(folder / f'env{rank}').write_text(json.dumps(env))",
        "for k in range(200): say(json.dumps(['ä' * (300_000 if k == 7 else 3), k], ensure_ascii=False))",
    )
    with Ranks(3, *toy(*program), threads=7) as ranks:
        ready, *lines = ranks.lines()
    assert ready == "ready"
    assert [json.loads(line) for line in lines] == [["ä" * (300_000 if k == 7 else 3), k] for k in range(200)]
    assert capfd.readouterr() == ("", "")
    for rank in range(3):
        told = json.loads((tmp_path / f"env{rank}").read_text())
        assert told == {"WORLD_SIZE": "3", "OMP_NUM_THREADS": "7", "GLOO_SOCKET_IFNAME": launch._loopback()}


CLOSED = 'raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:14055")'
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
KILLED = f"rank 1 of 2 was killed by signal SIGKILL (out of memory?): {HINT}"


@pytest.mark.parametrize(
    ("one", "zero", "message"),  # actions of both ranks, and the message
    [
        ("raise UsageError('C is 0: give --clip')", CLOSED, "C is 0: give --clip"),
        (f"time.sleep(1); {KILL}", CLOSED, KILLED),  # rank 0 loses its connection, and torchrun sees both
        pytest.param("os._exit(3)", HOUR, f"rank 1 of 2 ended with status 3: {HINT}", marks=pytest.mark.long),
        (
            "os.kill(os.getppid(), signal.SIGKILL)",
            HOUR,
            f"torchrun was killed by signal SIGKILL (out of memory?): {HINT}",
        ),
        ("time.sleep(0.3); raise KeyError(4)", "pass", f"rank 1 of 2 failed (KeyError: 4): {HINT}"),
    ],
)
def test_a_dead_rank_ends_the_run_with_one_sentence(toy, tmp_path, one, zero, message):
    with Ranks(2, *toy(f"if rank: {one}", zero)) as ranks:
        with pytest.raises(UsageError) as error:
            list(ranks.lines(HINT))
        assert str(error.value) == message
        assert gone(processes(tmp_path), 0.1)


def test_an_interrupted_consumer_leaves_no_process_no_file_and_no_thread(toy, tmp_path, monkeypatch):
    """This holds even if a rank is stopped and notices nothing."""
    monkeypatch.setattr(launch, "GRACE", 0.5)
    before = threading.active_count(), len(os.listdir("/dev/fd"))

    def consume():
        with Ranks(2, *toy(HOUR)) as ranks:
            for _ in ranks.lines():
                os.kill(processes(tmp_path)[1], signal.SIGSTOP)
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert gone(processes(tmp_path))
    assert (threading.active_count(), len(os.listdir("/dev/fd"))) == before


@pytest.mark.parametrize("victim", ["torchrun", "torchrun by hand", pytest.param("parent", marks=pytest.mark.long)])
def test_ranks_end_soon_after_their_launcher_was_killed(toy, tmp_path, victim):
    toy(HOUR)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    by_hand = [*torchrun, "-m", "edp_lab.training.launch", "toy:work", str(tmp_path)]
    command = [sys.executable, *(by_hand if "hand" in victim else ["-c", PARENT, str(tmp_path)])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        started = processes(tmp_path)
        (os.kill(psutil.Process(started[0]).ppid(), signal.SIGKILL) if victim == "torchrun" else parent.kill())
        assert gone(started)


def test_ctrl_c_reaches_the_parent_alone_which_lets_the_ranks_finish(toy, tmp_path):
    toy("heard = folder / 'heard'", "while not heard.exists(): stop.wait(0.1) and heard.touch()", "say('saved')")
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.read() == "saved\n"
    assert parent.returncode == 0


# Kills of the parent, of torchrun and of ranks at random moments: no process is left, and no step is lost or repeated.


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
VICTIMS = ["parent", "torchrun", "rank 0", "rank 1"]
KILLS = 20 if os.environ.get("EDP_LAB_LONG") else 1
SETTINGS = f"--z0 0.03 --size small --gpus 4 --batch-size 10 --processes 2 --epochs {5 * (KILLS + 1)}"
PATIENCE = 120.0  # seconds, for a busy machine
SENTENCES = {  # messages of the parent
    "torchrun": "torchrun was killed by signal SIGKILL (out of memory?)",
    "rank 0": "rank 0 of 2 was killed by signal SIGKILL (out of memory?)",
    "rank 1": "rank 1 of 2 was killed by signal SIGKILL (out of memory?)",
}


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.fixture(scope="module")
def corpus(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "own.jsonl", 110)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "edp_lab", "train", *arguments]
    return subprocess.Popen(command, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def family(parent: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    """A run's processes by role; fewer at its beginning and end."""
    found = {"parent": psutil.Process(parent.pid)}
    for process in found["parent"].children(recursive=True):
        try:
            command = process.cmdline()
            name = "torchrun" if "torch.distributed.run" in command else f"rank {process.environ()['RANK']}"
        except (psutil.Error, KeyError):
            continue
        found[name] = process
    return found


def steps(folder: Path) -> int:
    """Number of lines in the ledger."""
    return (folder / LEDGER).read_bytes().count(b"\n") if (folder / LEDGER).exists() else 0


def kill(parent: subprocess.Popen[str], folder: Path, victim: str, after: int) -> None:
    """Kill one process after this many more steps, and check the remaining files and processes."""
    until = steps(folder) + after
    assert wait_for(lambda: steps(folder) > until, PATIENCE)
    processes = family(parent)
    assert set(processes) == set(VICTIMS)
    os.kill(processes[victim].pid, signal.SIGKILL)
    orphans = [one.pid for name, one in processes.items() if name != "parent"]
    assert wait_for(lambda: not any(map(runs, orphans)), ORPHANS)
    _, errors = parent.communicate()
    if victim == "parent":
        assert (parent.returncode, read_record(folder)["status"]) == (-signal.SIGKILL, "running")
        return
    hint = f"run edp-lab train --resume {folder}"
    *_, last = errors.splitlines()
    assert (parent.returncode, last) == (2, f"error: {SENTENCES[victim]}: {hint}")
    assert (read_record(folder)["status"], f"error: {read_record(folder)['error']}") == ("failed", last)


@linux
def test_killed_again_and_again_a_run_ends_as_if_nothing_had_happened(corpus: Path, tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    new = ["--corpus", str(corpus), *SETTINGS.split(), "--out"]
    rng = random.Random(time.time())
    with start(*new, str(whole)):
        arguments = [*new, str(folder)]
        for victim in rng.sample(VICTIMS * KILLS, KILLS):
            print(f"kill {victim}")
            with start(*arguments) as parent:
                kill(parent, folder, victim, rng.randrange(12))
            arguments = ["--resume", str(folder)]
    with start(*arguments) as parent:
        _, errors = parent.communicate(timeout=PATIENCE)
        assert parent.returncode == 0, errors
    assert result(folder) == result(whole)


@linux
def test_ctrl_c_ends_the_ranks_after_the_step_in_hand_with_a_usable_model(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with start("--corpus", str(corpus), *SETTINGS.split(), "--out", str(folder)) as parent:
        assert wait_for(lambda: steps(folder) > 6, PATIENCE)
        processes = family(parent)
        parent.send_signal(signal.SIGINT)
        _, errors = parent.communicate(timeout=PATIENCE)
    assert parent.returncode == 130
    assert f"interrupted: to continue, run edp-lab train --resume {folder}" in errors
    assert not any(runs(one.pid) for one in processes.values())
    record = read_record(folder)
    assert (record["status"], record["final"]["ser"] is not None) == ("interrupted", True)
