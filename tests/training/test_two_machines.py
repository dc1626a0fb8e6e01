"""Two machines, connected by their own network: they train like one machine, and a machine that disappears is named.

A machine is a process with its own host name, list of hosts and network namespace; a virtual cable connects the two.
Programs on a machine see the files of this computer, but not its network.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from edp_lab.training.ledger import LEDGER
from edp_lab.training.run_files import read_record, run_ledger
from tests.training.own_corpus import result, runs, wait_for, write_corpus

NAMES, ADDRESSES = ("one", "two"), ("10.77.0.1", "10.77.0.2")
BOTH = range(2)
PATIENCE = 60.0  # seconds, for a busy machine
TIMEOUT = 20  # seconds that ranks wait for one another; starting takes some of them
SETTINGS = "--z0 0.03 --size small --gpus 4 --batch-size 10 --epochs 8 --processes 2"
HOLD = "hostname {} && mount --bind {} /etc/hosts && ip link set lo up && echo ready && exec cat"
TORCHRUN = (
    "torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint one:29500 --rdzv-id r"
)
# `edp-lab` with a shorter timeout.
QUICK = f"from edp_lab.training import launch; launch.PATIENCE = {TIMEOUT}; from edp_lab.__main__ import main; main()"


class Machines:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        hosts = folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(map("{} {}\n".format, ADDRESSES, NAMES)))
        command = ["unshare", "--net", "--uts", "--mount", "sh", "-c"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.holders = [subprocess.Popen([*command, HOLD.format(name, hosts)], text=True, **pipes) for name in NAMES]
        for holder in self.holders:
            stack.enter_context(holder)
            stack.callback(holder.kill)  # this removes the namespace and the cable
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
        """Run a command on a separate core, if there are two."""
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
    """One core per rank, even if there are more, because the number of threads can change bits."""
    cores = os.sched_getaffinity(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setenv("OMP_NUM_THREADS", "1")
        os.sched_setaffinity(0, sorted(cores)[:2])
        yield
        os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "own.jsonl", 110)


@pytest.fixture(scope="module")
def whole(machines: Machines, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of two processes on one machine."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    subprocess.run([sys.executable, "-m", "edp_lab", *new(corpus, folder)], check=True, capture_output=True)
    return result(folder)


def new(corpus: Path, folder: Path) -> list[str]:
    return ["train", "--corpus", str(corpus), "--out", str(folder), *SETTINGS.split()]


class Launch:
    """The same torchrun command on both machines, as from a terminal on each."""

    def __init__(self, machines: Machines, program: Path, arguments: list[str]) -> None:
        command = [sys.executable, "-m", *TORCHRUN.split(), str(program), *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.terminals = [machines.run(machine, command, **pipes) for machine in BOTH]

    def ranks(self) -> list[psutil.Process]:
        return [child for one in self.terminals for child in psutil.Process(one.pid).children(recursive=True)]

    def ends(self) -> list[str]:
        """The standard error of each machine."""
        return [terminal.communicate(timeout=PATIENCE)[1] for terminal in self.terminals]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "quick.py"
    path.write_text(QUICK)
    return path


def after_release(folder: Path, number: int) -> None:
    """Wait until the ledger has this number of lines."""
    ledger = folder / LEDGER
    assert wait_for(lambda: ledger.exists() and ledger.read_bytes().count(b"\n") > number, PATIENCE)


@pytest.mark.long
def test_two_machines_come_to_the_bits_of_one_after_a_killed_rank_and_a_cut_cable(
    machines, corpus, whole, program, tmp_path
):
    folder = tmp_path / "run"
    hint = f": run edp-lab train --resume {folder}"
    first = Launch(machines, program, new(corpus, folder))
    after_release(folder, 6)
    first.ranks()[1].kill()
    one, two = first.ends()
    assert f"error: another process is gone{hint}\n" in one
    assert "Signal 9 (SIGKILL) received" in two

    second = Launch(machines, program, ["train", "--resume", str(folder)])
    after_release(folder, len(run_ledger(folder).releases) + 4)
    ranks = second.ranks()
    machines.cable("down")
    assert wait_for(lambda: not any(runs(rank.pid) for rank in ranks), 3 * TIMEOUT)
    for terminal in second.terminals:
        terminal.kill()  # torchrun itself waits for minutes
    said = f"error: no response from another process for {TIMEOUT} seconds{hint}\n"
    assert all(said in errors for errors in second.ends())

    machines.cable("up")
    Launch(machines, program, ["train", "--resume", str(folder)]).ends()
    assert result(folder) == whole
    processors = read_record(folder)["surroundings"]["processors"]
    assert [name for _, _, _, name, *_ in processors] == [*NAMES]
