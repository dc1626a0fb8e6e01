"""Kills of the parent, of torchrun and of ranks at random moments: no process is left, and no step is lost or redone.

EDP_LAB_LONG=1 kills twenty times instead of once each.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edp_lab.training import read_record
from edp_lab.training.ledger import LEDGER
from tests.training.own_corpus import result, runs, wait_for, write_corpus

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
VICTIMS = ["parent", "torchrun", "rank 0", "rank 1"]
KILLS = 20 if os.environ.get("EDP_LAB_LONG") else 3
SETTINGS = f"--z0 0.03 --size small --gpus 4 --batch-size 10 --processes 2 --epochs {6 * (KILLS + 1)}"
PATIENCE = 120.0  # seconds, for a machine with much else to do
ORPHANS = 5.0  # seconds until none is left
SENTENCES = {  # of the parent
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
    """The processes of a run by their parts in it; fewer at its beginning and its end."""
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
    """Lines of the ledger."""
    return (folder / LEDGER).read_bytes().count(b"\n") if (folder / LEDGER).exists() else 0


def kill(parent: subprocess.Popen[str], folder: Path, victim: str, after: int) -> None:
    """Kill one process after so many more steps, and check what is left."""
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
    hint = f"go on with edp-lab train --resume {folder}"
    *_, last = errors.splitlines()
    assert (parent.returncode, last) == (2, f"error: {SENTENCES[victim]}: {hint}")
    assert (read_record(folder)["status"], f"error: {read_record(folder)['error']}") == ("failed", last)


def test_killed_again_and_again_a_run_ends_as_if_nothing_had_happened(corpus: Path, tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    new = ["--corpus", str(corpus), *SETTINGS.split(), "--out"]
    rng = random.Random(0 if KILLS == 3 else time.time())
    with start(*new, str(whole)):
        arguments = [*new, str(folder)]
        victims = (VICTIMS if KILLS > 3 else ["parent", "torchrun", "rank 1"]) * KILLS
        for victim in rng.sample(victims[:KILLS], KILLS):
            with start(*arguments) as parent:
                kill(parent, folder, victim, rng.randrange(12))
            arguments = ["--resume", str(folder)]
    with start(*arguments) as parent:
        _, errors = parent.communicate(timeout=PATIENCE)
        assert parent.returncode == 0, errors
    assert result(folder) == result(whole)


def test_ctrl_c_ends_the_ranks_after_the_step_in_hand_with_a_usable_model(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with start("--corpus", str(corpus), *SETTINGS.split(), "--out", str(folder)) as parent:
        assert wait_for(lambda: steps(folder) > 6, PATIENCE)
        processes = family(parent)
        parent.send_signal(signal.SIGINT)
        _, errors = parent.communicate(timeout=PATIENCE)
    assert parent.returncode == 130
    assert f"interrupted: go on with edp-lab train --resume {folder}" in errors
    assert not any(runs(one.pid) for one in processes.values())
    record = read_record(folder)
    assert (record["status"], record["final"]["ser"] is not None) == ("interrupted", True)
