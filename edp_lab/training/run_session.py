"""Start a training run, or take one up again: in this process or on several, with its files kept safe meanwhile.

    python -m edp_lab train --corpus smart-home --out runs/first

DIR/state.safetensors (where to take up again), DIR/secret.key and the lock are there only until the run has finished.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, gather_object
from filelock import FileLock, Timeout

from edp_lab.corpora import load_corpus, split
from edp_lab.corpora.metrics import Scores
from edp_lab.errors import UsageError, writing
from edp_lab.files import PARTIAL
from edp_lab.models import load_model
from edp_lab.privacy import Mechanism
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.privacy.guarantee import HOLDS
from edp_lab.training import checkpoint, run_folder
from edp_lab.training.certificate import CERTIFICATE, meaningful, write_certificate
from edp_lab.training.config import TrainConfig
from edp_lab.training.launch import PATIENCE, Ranks, launched, leave_group, lost, rank, watch_launcher
from edp_lab.training.ledger import LEDGER, PrivacyLedger
from edp_lab.training.run_folder import LOCK, MODEL, RECORD, SECRET, STATE, read_record, run_config, write_record
from edp_lab.training.trainer import EpochDone, Event, Listener, StepDone, Trainer


def train(
    config: TrainConfig, out: str | Path, listener: Listener = lambda event: None, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Train one model and return its run record, which also lies in ``out/record.json``.

    With ``config.processes`` above 1, torchrun starts the ranks, unless a launcher has already started this process as
    one of them. A `stop` that is set, or a KeyboardInterrupt, ends the run early with a usable model and record, status
    "interrupted"; `resume` goes on with it.

    Raises:
        UsageError: bad configuration or corpus, `out` already holds a run (nothing is written then), parameters (or,
            where nothing is promised, gradients) that are not finite, a full disk, a process that died (what was learnt
            so far stays).
    """
    folder = run_folder.new_run_folder(out) if rank() == 0 else Path(out)
    return _start(config, folder, listener, stop or threading.Event(), resuming=False)


def resume(
    folder: str | Path, listener: Listener = lambda event: None, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Take up a run that was killed, interrupted or failed, and return its record.

    On the same machine and number of processes the result is, bit for bit, that of a run that was never broken off.

    Raises:
        UsageError: no run there, its corpus or files have changed, another process is at it, or as `train`.
    """
    record, folder = read_record(folder), Path(folder)
    if record["status"] == "finished":
        load_model(folder / MODEL)  # refused where it is damaged
        _complete(folder, record)
        _tidy(folder, LOCK)
        return record
    return _start(run_config(record), folder, listener, stop or threading.Event(), resuming=True)


def train_here(
    config: TrainConfig, folder: Path, listener: Listener, stop: threading.Event, resuming: bool
) -> dict[str, Any]:
    """This process's part of a run; UsageError as `train`, and for another number of processes than `config` says."""
    accelerator = start_accelerator(config.processes)
    with _files(folder, resuming, config.processes) if accelerator.is_main_process else nullcontext():
        corpus = load_corpus(config.corpus)
        earlier = read_record(folder) if resuming else None
        if earlier is not None and corpus.sha256 != earlier["corpus"]["sha256"]:
            raise UsageError(f"corpus {config.corpus!r} is not the one of {folder}: its content has changed since")
        data = split(corpus, config.seed, **config.split)
        run = Trainer(config, corpus, data, accelerator, partial(_key, config, folder, earlier, accelerator))
        if resuming:
            run.take_up(folder)
        if config.processes > 1:
            state = [asdict(run.progress), checkpoint.digest(dict(run.parameters))]
            _agree(accelerator, state, "states: resume with one folder")
        if run.main:
            run.ledger = None if run.mechanism is None else _ledger(folder, run.mechanism, run.progress.chain, earlier)
            if config.private_seed and run.key != run_folder.read_secret(folder):
                # Nothing can be refused any more, and the record does not say yet that it is in use.
                cure = "remove what is there, and resume again" if resuming else "choose another --out"
                run_folder.write_secret(folder, run.key, cure)
            run.bill()
            write_record(folder, run.record)
        _train(run, folder, listener, stop)
        if run.main and run.record["status"] == "finished":
            _complete(folder, run.record)
    return run.record


def _complete(folder: Path, record: dict[str, Any]) -> None:
    """After the record of a finished run: its certificate, if something is promised; and no key and state any more."""
    splits, held = record["corpus"]["splits"], record["guarantee"]
    promised = held["status"] == HOLDS and meaningful(held["delta"], splits["train"])
    if promised and not (folder / CERTIFICATE).exists():
        write_certificate(folder)
    _tidy(folder)


def _ledger(folder: Path, mechanism: Mechanism, chain: str | None, earlier: dict[str, Any] | None) -> PrivacyLedger:
    """A new one, or the earlier one; UsageError if that lacks what record or state remember, or is of other noise."""
    if earlier is None:
        return PrivacyLedger(folder / LEDGER, mechanism)
    ledger = PrivacyLedger.open(folder / LEDGER, earlier["ledger"], chain)
    if ledger.mechanism != mechanism:
        raise UsageError(f"the ledger in {folder} is of another mechanism than its record: restore both from a copy")
    return ledger


def _agree(accelerator: Accelerator, value: Any, what: str) -> None:
    """UsageError on every rank, if they do not tell the same."""
    if accelerator.num_processes > 1 and any(other != value for other in gather_object([value])):
        raise UsageError(f"the processes have different {what}")


def _train(run: Trainer, folder: Path, listener: Listener, stop: threading.Event) -> None:
    try:
        status = run.train(folder, listener, stop)
        run.finish()
        run.save_model(folder, status)
    except KeyboardInterrupt:
        if run.accelerator.num_processes > 1:
            raise
        run.bill()
        run.record["status"] = "interrupted"
        write_record(folder, run.record)  # the last state stays, so that a resumed run goes on from a whole step
        run.finish()
        run.save_model(folder, "interrupted")
    except UsageError as error:
        if run.main:
            _write_failed(folder, run.record, run.bill(), error)
        raise


def _write_failed(folder: Path, record: dict[str, Any], bill: dict[str, float | None], error: UsageError) -> None:
    unknown = dict.fromkeys(("loss", "seconds", *(field.name for field in fields(Scores))))
    with suppress(UsageError):  # on a full disk the earlier record stays, and what matters is the first error
        write_record(folder, {**record, "final": {**unknown, **bill}, "status": "failed", "error": str(error)})


def _start(
    config: TrainConfig, folder: Path, listener: Listener, stop: threading.Event, resuming: bool
) -> dict[str, Any]:
    hint = f"go on with edp-lab train --resume {folder}"
    if launched()[1] > 1:
        watch_launcher()
    if "WORLD_SIZE" in os.environ or config.processes == 1:
        try:
            return train_here(config, folder, listener, stop, resuming)
        except (RuntimeError, ConnectionError) as error:  # torch's, if another rank is gone
            message = lost(error) if config.processes > 1 else None
            if message is None:
                raise
            leave_group()  # else torch aborts at exit
            raise UsageError(f"{message}: {hint}") from None
    job = json.dumps({"config": asdict(config), "folder": str(folder), "resuming": resuming})
    record = folder / RECORD
    before = record.stat().st_mtime_ns if record.exists() else None

    def relay(ranks: Ranks) -> None:
        for line in ranks.lines(hint, stop):
            event = json.loads(line)
            listener(EpochDone(**event) if "row" in event else StepDone(**event))

    try:
        with Ranks(config.processes, "edp_lab.training.run_session:main", job) as ranks:
            try:
                relay(ranks)
            except KeyboardInterrupt:
                stop.set()
                relay(ranks)
    except UsageError as error:
        if not record.exists():
            raise UsageError(str(error).removesuffix(f": {hint}")) from None  # there is nothing to go on with
        if record.stat().st_mtime_ns != before:  # else the ranks were refused before they began
            _bill_failed(folder, error)
        raise
    return read_record(folder)


def _bill_failed(folder: Path, error: UsageError) -> None:
    """For ranks that died and could not do so themselves; the ledger knows all that they released."""
    with suppress(UsageError), _locked(folder):
        record = read_record(folder)
        if record["status"] == "running":
            ledger = None if record["ledger"] is None else PrivacyLedger.open(folder / LEDGER, record["ledger"])
            epochs = min(len(record["epochs"]) + 1, record["config"]["epochs"])
            mechanism = None if ledger is None else ledger.mechanism
            _write_failed(folder, record, run_folder.bill(record, mechanism, ledger, epochs), error)


def start_accelerator(processes: int, device: str | None = None) -> Accelerator:
    """Accelerate's, on the CPU where there is no GPU; UsageError if not as many processes take part as asked for."""

    def check(started: int) -> None:
        if started != processes:
            raise UsageError(
                f"processes that take part: {started}, asked for: {processes}; start as many as --processes says, or "
                "let edp-lab start them"
            )

    check(launched()[1])  # before they wait for others that never come
    patience = InitProcessGroupKwargs(timeout=timedelta(seconds=PATIENCE))
    cpu = device == "cpu" or not torch.cuda.is_available()
    try:
        accelerator = Accelerator(cpu=cpu, kwargs_handlers=[patience])
        torch.empty(0, device=accelerator.device)
    except Exception as error:
        set_here = ", ".join(name for name in os.environ if name.startswith("ACCELERATE_"))
        if processes > 1 or not set_here:  # several may have lost one another
            raise
        why = str(error).partition("\n")[0]
        raise UsageError(f"Accelerate cannot start ({why}): unset or mend what is set of {set_here}") from error
    check(accelerator.num_processes)
    return accelerator


def _key(
    config: TrainConfig, folder: Path, earlier: dict[str, Any] | None, accelerator: Accelerator, inputs: str
) -> tuple[int, int]:
    """The key of order, dropout and noise, the same on all ranks, and how many keys the run has had before it.

    A run that is taken up elsewhere may redo steps with other last bits, and the same noise on two of them could be
    subtracted. So it gets a fresh key, and the ledger bills what is redone as further releases. So does one whose key
    is lost, and one on a GPU, where sums have no fixed order.
    """
    here = checkpoint.surroundings(accelerator, inputs)
    _agree(accelerator, here, "options, files, versions or numbers of threads: start them all alike")
    key, keys = None, 0
    if accelerator.is_main_process:
        keys = 0 if earlier is None else earlier.get("keys", 0)
        same = earlier is not None and earlier.get("surroundings") == here and here["device"] == "cpu"
        same = same and (keys == 0 or (folder / STATE).exists())  # a later key did not begin at the first step
        if config.private_seed:
            key = run_folder.read_secret(folder) if same else None
        elif earlier is None or same:
            key = _published_key(config.seed, keys)
        if key is None:
            keys += earlier is not None
            key = secrets.randbits(128) if config.private_seed else _published_key(config.seed, keys)
    key, keys = broadcast_object_list([key, keys])
    return key, keys


def _published_key(seed: int, number: int) -> int:
    return key_from_seed(seed) if number == 0 else key_from_seed(f"{seed}, key {number}")


@contextmanager
def _files(folder: Path, resuming: bool, processes: int) -> Iterator[None]:
    """A new run that fails before its first state leaves nothing in the folder.

    Unless its ledger bills a release before the step that failed, which the failure tells of; or there is a record, and
    it was cut off from a rank or the disk was full: then it can be taken up.
    """
    with _locked(folder):
        if not resuming:
            if not run_folder.may_begin(folder):
                raise UsageError(f"another process was faster to begin a run in {folder}: choose another --out")
            _tidy(folder, LEDGER)
        try:
            yield
        except BaseException as error:
            cut_off = processes > 1 and not isinstance(error, UsageError)
            full = isinstance(error.__cause__, OSError)
            kept = resuming or (folder / STATE).exists() or ((cut_off or full) and (folder / RECORD).exists())
            if not (kept or _has_released(folder)):
                _tidy(folder, RECORD, LEDGER)
            raise


def _has_released(folder: Path) -> bool:
    """Whether a step under a secret key was ended there: each is billed before it begins."""
    with suppress(UsageError):
        return (folder / SECRET).exists() and len(PrivacyLedger.open(folder / LEDGER).releases) > 1
    return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process may work in the folder, which is made if need be and does not stay if nothing is in it."""
    lock = FileLock(folder / LOCK)
    with writing(folder, "make room there and mend its permissions, or begin a run in another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UsageError(
                f"another process is training in {folder}: wait until it has ended; a new run needs another --out"
            ) from None
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            folder.rmdir()


def _tidy(folder: Path, *more: str) -> None:
    """Remove what a finished run needs no more, and half-written files."""
    half = [path for path in folder.rglob(f"{PARTIAL}*") if not path.is_dir()]
    for path in (*(folder / name for name in (SECRET, STATE, *more)), *half):
        path.unlink(missing_ok=True)


def main(job: str, stop: threading.Event) -> None:
    """Be one of several ranks, started by `train`; rank 0 prints events as JSON, one a line."""
    given = json.loads(job)

    def report(event: Event) -> None:
        sys.stdout.write(json.dumps(asdict(event)) + "\n")
        sys.stdout.flush()

    train_here(TrainConfig(**given["config"]), Path(given["folder"]), report, stop, given["resuming"])
