"""Two machines, which a network of their own connects: they train as one does, and one that is gone is named.

A machine is a process that holds a name, a list of hosts and a network namespace; a virtual cable joins the two. What
runs on one sees the files, but not the network, of this computer.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from edp_lab.training import read_record, run_ledger
from edp_lab.training.ledger import LEDGER
from tests.training.own_corpus import wait_for, write_corpus
from tests.training.test_faults import result

NAMES, ADDRESSES = ("one", "two"), ("10.77.0.1", "10.77.0.2")
BOTH = range(2)
PATIENCE = 60.0  # seconds, for a machine with much else to do
TIMEOUT = 12  # seconds that ranks wait for one another; they need some of them to start
SETTINGS = "--z0 0.03 --size small --gpus 4 --batch-size 10 --epochs 12 --processes 2"
HOLD = "hostname {} && mount --bind {} /etc/hosts && ip link set lo up && echo ready && exec cat"
TORCHRUN = "torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint one:29500"


class Machines:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        hosts = folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(map("{} {}\n".format, ADDRESSES, NAMES)))
        command = ["unshare", "--net", "--uts", "--mount", "sh", "-c"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.holders = [subprocess.Popen([*command, HOLD.format(name, hosts)], text=True, **pipes) for name in NAMES]
        for holder in self.holders:
            stack.enter_context(holder)
            stack.callback(holder.kill)  # with it go namespace and cable
            if holder.stdout.readline() != "ready\n":
                pytest.skip(f"no namespaces can be made here: {holder.stderr.read().strip()}")
        pids = [str(holder.pid) for holder in self.holders]
        cable = f"ip link add eth1 netns {pids[0]} type veth peer name eth1 netns {pids[1]}"
        made = subprocess.run(cable.split(), capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no virtual network can be made here: {made.stderr.strip()}")
        for machine, address in enumerate(ADDRESSES):
            self.run(machine, f"ip addr add {address}/24 dev eth1".split()).wait()
        self.cable("up")

    def run(self, machine: int, command: list[str], **options: Any) -> subprocess.Popen[str]:
        """On a core of its own, if there are two."""
        core = sorted(os.sched_getaffinity(0))[-machine:][:1]
        enter = ["nsenter", "--net", "--uts", "--mount", "--target", str(self.holders[machine].pid)]
        own_core = partial(os.sched_setaffinity, 0, core)
        return subprocess.Popen([*enter, *command], text=True, preexec_fn=own_core, **options)

    def cable(self, state: str) -> None:
        for machine in BOTH:
            assert self.run(machine, f"ip link set eth1 {state}".split()).wait() == 0


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("network namespaces need Linux, and root")
    if missing := [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]:
        pytest.skip(f"network namespaces need {' and '.join(missing)}: install iproute2 and util-linux")
    with ExitStack() as stack:
        yield Machines(tmp_path_factory.mktemp("machines"), stack)


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """One core for each rank, also where there are more: the number of threads can change bits."""
    cores = os.sched_getaffinity(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("EDP_LAB_TIMEOUT", str(TIMEOUT))
        os.sched_setaffinity(0, sorted(cores)[:2])
        yield
        os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "own.jsonl", 110)


@pytest.fixture(scope="module")
def whole(machines: Machines, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes of one machine come to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    subprocess.run([sys.executable, "-m", "edp_lab", *new(corpus, folder)], check=True, capture_output=True)
    return result(folder)


def new(corpus: Path, folder: Path) -> list[str]:
    return ["train", "--corpus", str(corpus), "--out", str(folder), *SETTINGS.split()]


class Launch:
    """The same command on both machines, as from a terminal of each."""

    def __init__(self, machines: Machines, arguments: list[str], launcher: str = "") -> None:
        command = [sys.executable, *(f"-m {launcher}".split() if launcher else []), "-m", "edp_lab", *arguments]
        told: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if not launcher:
            told["env"] = {**os.environ, "EDP_LAB_MACHINES": ",".join(NAMES)}
        self.terminals = [machines.run(machine, command, **told) for machine in BOTH]

    def ends(self, status: int) -> list[str]:
        """What stands on standard error of each at last, but for the epochs."""
        said = []
        for terminal in self.terminals:
            _, errors = terminal.communicate(timeout=PATIENCE)
            assert terminal.returncode == status, errors
            said.append("".join(line for line in errors.splitlines(keepends=True) if not line.startswith("epoch ")))
        return said


def after_release(folder: Path, number: int) -> None:
    """Waits until the ledger has so many lines."""
    ledger = folder / LEDGER
    assert wait_for(lambda: ledger.exists() and ledger.read_bytes().count(b"\n") > number, PATIENCE)


def test_two_machines_of_a_launcher_come_to_the_bits_of_one(machines, corpus, whole, tmp_path):
    Launch(machines, new(corpus, tmp_path / "run"), TORCHRUN).ends(0)
    assert result(tmp_path / "run") == whole
    processors = read_record(tmp_path / "run")["surroundings"]["processors"]
    assert [name for _, _, _, name, *_ in processors] == [*NAMES]


def test_a_rank_is_killed_and_a_cable_cut_and_each_time_the_run_goes_on(machines, corpus, whole, tmp_path):
    folder = tmp_path / "run"
    cure = f": go on with edp-lab train --resume {folder} on each machine\n"
    first = Launch(machines, new(corpus, folder))
    after_release(folder, 8)
    [rank] = psutil.Process(first.terminals[1].pid).children()
    rank.kill()
    killed = time.monotonic()
    gone = f"error: machine two (10.77.0.2) is gone{cure}"
    assert first.ends(2) == [gone, f"error: rank 1 of 2 was killed by signal SIGKILL (out of memory?){cure}"]
    assert time.monotonic() - killed < TIMEOUT
    record = read_record(folder)
    assert (record["status"], f"error: {record['error']}\n") == ("failed", gone)

    second = Launch(machines, ["train", "--resume", str(folder)])
    after_release(folder, len(run_ledger(folder).releases) + 4)
    machines.cable("down")
    cut = time.monotonic()
    late = f"for {TIMEOUT} seconds (EDP_LAB_TIMEOUT)"
    others = f"machine two (10.77.0.2) {late}", f"machine one (10.77.0.1) {late}"
    assert second.ends(2) == [f"error: no word from {other}{cure}" for other in others]
    assert time.monotonic() - cut < 2 * TIMEOUT

    machines.cable("up")
    Launch(machines, ["train", "--resume", str(folder)]).ends(0)
    assert result(folder) == whole
