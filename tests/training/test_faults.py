"""Runs that are killed at a chosen operation, stopped, locked out or without disk space: the files are sufficient.

Importing torch takes seconds, so a server imports it once, and every process is forked from the server. For kills of
ranks and their launcher, see test_launch.py.
"""

import gc
import json
import os
import resource
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from edp_lab.__main__ import main
from edp_lab.files import PARTIAL
from edp_lab.models.factory import load_model
from edp_lab.training import noise
from edp_lab.training import trainer as run
from edp_lab.training.evaluate import evaluate_run
from edp_lab.training.ledger import LEDGER, PrivacyLedger, fingerprint
from edp_lab.training.run_files import LOCK, MODEL, RECORD, SECRET, STATE, read_record, run_ledger
from tests.training.own_corpus import contents, result, wait_for, write_corpus

EPOCHS, STEPS = 3, 5  # steps in an epoch
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, and limits files of other processes")
PATIENCE = 60.0  # seconds, for a busy machine
FORKS = get_context("forkserver")
PRELOADED = ["pytest", "edp_lab.cli.train", "edp_lab.training.session", "torch._dynamo", "typer._adapters"]
RELEASE = f"write {LEDGER}"
KILLED = -signal.SIGKILL
FAULTS: dict[str, Any] = {
    "die_at": None,  # SIGKILL before this operation is executed for the n-th time: ("unlink .lock", 1)
    "die_before": None,  # SIGKILL before this change to the run's folder, counted from 1
    "hold_at": None,  # before the entry of this release (from 0), wait until the file "held" is removed
    "save_every": 60.0,  # seconds between two saved states
    "threads": 1,  # for torch
}
operations: list[str] = []
set_threads = torch.set_num_threads


def be(arguments: list[str], home: Path, faults: dict[str, Any]) -> None:
    """Run ``python -m edp_lab ARGUMENTS`` with its faults in a separate process; `home` receives files for `Job`."""
    gc.freeze()  # scanning all imported objects would copy them
    sys.dont_write_bytecode = True  # on a full disk, Python would leave incomplete bytecode
    FAULTS.update(faults, home=home)
    os.dup2(os.dup2(os.open(home / "log", os.O_WRONLY | os.O_CREAT), 1), 2)
    for name in ("fsync", "replace", "unlink"):
        before(os, name, lambda *paths, name=name: die(name, *paths))
    if FAULTS["die_before"] is not None:
        sys.addaudithook(partial(count_down, [FAULTS["die_before"]], str(home)))
    before(PrivacyLedger, "write", hold)
    before(noise, "add_exactly", note)
    patch = pytest.MonkeyPatch()
    patch.setattr(run, "SAVE_EVERY", FAULTS["save_every"])
    patch.setattr(torch, "set_num_threads", lambda _: set_threads(FAULTS["threads"]))
    sys.argv = ["edp-lab", *arguments]
    main()


def before(owner: Any, name: str, first: Callable[..., object]) -> None:
    original = getattr(owner, name)
    pytest.MonkeyPatch().setattr(owner, name, lambda *a, **k: (first(*a), original(*a, **k))[1])


def die(name: str, *paths: Any) -> None:
    file = os.readlink(f"/proc/self/fd/{paths[0]}") if name == "fsync" else paths[-1]
    operations.append(
        f"{name} {Path(file).name.removeprefix(PARTIAL).split('-')[0]}"
    )  # weights-0123456789abcdef.safetensors
    if FAULTS["die_at"] == (operations[-1], operations.count(operations[-1])):
        os.kill(os.getpid(), signal.SIGKILL)


def count_down(left: list[int], home: str, event: str, arguments: tuple[Any, ...]) -> None:
    changes = event in {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}
    changes = changes or (event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR)))
    if changes and str(arguments[0]).startswith(str(Path(home).parent / "run")):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)


def hold(ledger: PrivacyLedger, *entry: int) -> None:
    die("write", LEDGER)
    if len(ledger.releases) == FAULTS["hold_at"]:
        (FAULTS["home"] / "held").touch()
        waited(lambda: not (FAULTS["home"] / "held").exists())


def note(pieces: Any, key: int, purpose: Any, step: int, block: int) -> None:
    with open(FAULTS["home"] / "drawn", "a") as file:
        file.write(json.dumps([step, fingerprint(key)]) + "\n")


class Job:
    """A test's handle for such a process; its files are next to the run's folder."""

    def __init__(self, folder: Path, arguments: list[str], **faults: Any) -> None:
        self.folder, self.home = folder, Path(tempfile.mkdtemp(dir=folder.parent))
        given = {"JOB": (arguments, self.home, faults)}
        self.process = FORKS.Process(target=runpy.run_path, args=(__file__, given, "__fault__"), daemon=True)
        self.process.start()

    def held(self) -> int:
        """Wait until the process is held; return its process id."""
        waited(lambda: (self.home / "held").exists() or not self.process.is_alive())
        assert self.process.is_alive(), (self.home / "log").read_text()
        return self.process.pid or 0

    def ends(self, status: int) -> str:
        """Wait for the end with this status (minus a signal's number), check all invariants, and return the log."""
        self.process.join(PATIENCE)
        said, drawn, folder = (self.home / "log").read_text(), self.home / "drawn", self.folder
        assert self.process.exitcode == status, said
        if drawn.exists():  # all noise is in the ledger
            assert {*map(tuple, map(json.loads, drawn.open()))} <= set(run_ledger(folder).releases)
        assert len(read_record(folder)["epochs"]) < 2 or load_model(folder / MODEL)  # saved after the record
        return said

    def error(self) -> str:
        """Wait until it has ended with one sentence, and return the sentence without "error: "."""
        (said,) = [line for line in self.ends(2).splitlines() if not line.startswith(("epoch ", "ending after"))]
        assert said.startswith("error: ")
        return said.removeprefix("error: ")


def waited(condition: Callable[[], bool]) -> None:
    assert wait_for(condition, PATIENCE)


def new(corpus: Path, folder: Path) -> list[str]:
    settings = f"--z0 0.03 --size small --gpus 4 --batch-size 10 --epochs {EPOCHS}"
    return ["train", "--corpus", str(corpus), "--out", str(folder), *settings.split()]


def again(folder: Path) -> list[str]:
    return ["train", "--resume", str(folder)]


def resumed(folder: Path) -> dict[str, Any]:
    Job(folder, again(folder)).ends(0)
    return result(folder)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A corpus; also imports all modules for the processes, and selects the CPU, where sums have a fixed order."""
    path = write_corpus(tmp_path_factory.mktemp("corpus") / "own.jsonl", 110)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads should not slow down others
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        FORKS.set_forkserver_preload(PRELOADED)
        yield path


@pytest.fixture(scope="module")
def whole(corpus: Path) -> dict[str, Any]:
    """The result of a run without faults."""
    folder = corpus.parent / "whole"
    Job(folder, new(corpus, folder)).ends(0)
    return result(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("first", "then", "save_every"),
    [
        ((RELEASE, 4), (f"replace {STATE}", 1), 60),  # before a state exists, and while the first one is written
        pytest.param((f"replace {STATE}", 7), (f"replace {RECORD}", 2), 0, marks=pytest.mark.long),  # within an epoch
        ((f"fsync {RECORD}", 2), (f"unlink {STATE}", 1), 60),
    ],
)
def test_killed_twice_anywhere_a_run_ends_as_if_nothing_had_happened(corpus, whole, folder, first, then, save_every):
    Job(folder, new(corpus, folder), die_at=first, save_every=save_every).ends(KILLED)
    Job(folder, again(folder), die_at=then, save_every=save_every).ends(KILLED)
    assert resumed(folder) == whole


def test_killed_at_any_change_before_there_is_a_record_a_run_may_begin_anew(corpus, folder):
    """Each run starts in the folder that the previous run left."""
    left = set()
    for number in range(4, 40, 7):  # all numbers would pass, but take seven times as long
        job = Job(folder, [*new(corpus, folder), "--private-seed"], die_before=number)
        job.process.join(PATIENCE)
        assert job.process.exitcode == KILLED, (job.home / "log").read_text()
        left |= {*os.listdir(folder)}
        if (folder / RECORD).exists():
            break
    assert {LOCK, SECRET, LEDGER} < left
    Job(folder, again(folder)).ends(0)
    assert (read_record(folder)["status"], run_ledger(folder).releases_by_epoch()) == ("finished", {0: 1, 1: 1, 2: 1})


def test_others_are_refused_and_ctrl_c_ends_after_the_step_with_a_model_of_use(corpus, whole, folder):
    job = Job(folder, new(corpus, folder), hold_at=7)
    process, before = job.held(), contents(folder)
    assert Job(folder, again(folder)).error().startswith(f"another process is training in {folder}: wait")
    assert "is not empty" in Job(folder, new(corpus, folder)).error()
    assert contents(folder) == before
    os.kill(process, signal.SIGINT)
    waited(lambda: "ending after" in (job.home / "log").read_text())
    (job.home / "held").unlink()
    assert f"interrupted: to continue, run edp-lab train --resume {folder}" in job.ends(130)
    record = read_record(folder)
    assert (record["status"], len(record["epochs"]), record["guarantee"]["epochs"]) == ("interrupted", 1, 2)
    assert len(run_ledger(folder).releases) == 8
    assert evaluate_run(folder)["ser"] == record["final"]["ser"]
    assert resumed(folder) == whole


@pytest.mark.parametrize(
    ("hold_at", "save_every", "room", "status", "written"),  # a record needs more bytes, and so does a state
    [(7, 60, 2_000, "running", {LEDGER}), (3, 0, 3_000_000, "failed", {LEDGER, RECORD})],
)
def test_a_full_disk_costs_nothing(corpus, whole, folder, hold_at, save_every, room, status, written):
    job = Job(folder, new(corpus, folder), hold_at=hold_at, save_every=save_every)
    resource.prlimit(job.held(), resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    before = contents(folder)
    (job.home / "held").unlink()
    assert job.error().startswith(f"{folder / STATE} cannot be written (File too large): make room, then run")
    changed = {name for name, content in contents(folder).items() if before.get(name) != content}
    assert (read_record(folder)["status"], changed) == (status, written)
    assert resumed(folder) == whole


@pytest.mark.parametrize(
    ("private", "threads", "lost", "keys"),
    [(False, 2, False, 1), (True, 1, True, 1), (True, 1, False, 0)],
)
def test_steps_that_may_differ_are_billed_under_a_fresh_key(corpus, whole, folder, private, threads, lost, keys):
    Job(folder, [*new(corpus, folder), *["--private-seed"] * private], die_at=(RELEASE, 9)).ends(KILLED)
    if lost:
        (folder / SECRET).unlink()
    before = run_ledger(folder).releases
    Job(folder, again(folder), threads=threads).ends(0)
    record, ledger = read_record(folder), run_ledger(folder)
    assert (record["status"], record["keys"], (folder / SECRET).exists()) == ("finished", keys, False)
    assert before.items() <= ledger.releases.items()
    assert ledger.releases_by_epoch() == {0: 1, 1: 1 + keys, 2: 1}
    assert len(ledger.releases) == EPOCHS * STEPS + 3 * keys  # steps 5, 6 and 7 under both
    assert (record["final"]["conditional_epsilon"] > whole["rows"][-1]["conditional_epsilon"]) is bool(keys)


def test_a_changed_corpus_and_a_damaged_state_are_refused_and_cost_nothing(corpus, whole, folder):
    own, state = folder.with_name("own.jsonl"), folder / STATE
    own.write_bytes(corpus.read_bytes())
    job = Job(folder, new(own, folder), hold_at=8)
    os.kill(job.held(), signal.SIGKILL)
    job.ends(KILLED)
    raw = state.read_bytes()
    flipped = raw[:2_000_000] + bytes([raw[2_000_000] ^ 1]) + raw[2_000_001:]
    damages = [(own, own.read_bytes().replace(b"anna", b"anne"), "has changed since")]
    damages += [(state, damaged, "is damaged") for damaged in (b"", raw[:-100], flipped)]
    for path, content, sentence in damages:
        intact = path.read_bytes()
        path.write_bytes(content)
        before = contents(folder)
        assert sentence in Job(folder, again(folder)).error()
        assert contents(folder) == before
        path.write_bytes(intact)
    assert resumed(folder) == whole


if __name__ == "__fault__":
    be(*JOB)  # type: ignore[name-defined]  # noqa: F821
