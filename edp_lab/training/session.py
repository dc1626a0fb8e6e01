"""Start or resume a training run, in this process or on several, and keep its files consistent.

edp-lab train --corpus smart-home --out runs/first
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from contextlib import nullcontext, suppress
from dataclasses import asdict, fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list

from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.corpora.metrics import Scores
from edp_lab.errors import UsageError
from edp_lab.models.factory import load_model
from edp_lab.privacy import Mechanism
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.privacy.guarantee import HOLDS
from edp_lab.training import checkpoint, run_files
from edp_lab.training.certificate import CERTIFICATE, meaningful, write_certificate
from edp_lab.training.config import TrainConfig
from edp_lab.training.evaluate import evaluate_model
from edp_lab.training.launch import PATIENCE, Ranks, launched, leave_group, lost, rank, watch_launcher
from edp_lab.training.ledger import LEDGER, PrivacyLedger
from edp_lab.training.private_step import agree
from edp_lab.training.run_files import EpochDone, Event, Listener, StepDone
from edp_lab.training.trainer import Trainer


def train(
    config: TrainConfig, out: str | Path, listener: Listener = lambda event: None, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Train one model and return its run record, which is also saved as ``out/record.json``.

    With ``config.processes`` above 1, torchrun starts the ranks, unless a launcher has already started this process as
    a rank. Setting `stop`, or a KeyboardInterrupt, ends the run early with a usable model, a record, and the status
    "interrupted"; `resume` continues the run.

    Raises:
        UsageError: the configuration or corpus is bad, `out` already contains a run (nothing is written), parameters
            (or, in a run without a guarantee, gradients) are not finite, the disk is full, or a process died (progress
            so far is saved).
    """
    folder = run_files.new_run_folder(out) if rank() == 0 else Path(out)
    return _start(config, folder, listener, stop or threading.Event(), resuming=False)


def resume(
    folder: str | Path, listener: Listener = lambda event: None, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Resume a run that was killed, interrupted or failed, and return its record.

    On the same machine and number of processes, the result is bit-identical to that of an uninterrupted run.

    Raises:
        UsageError: `folder` has no run, its corpus or files have changed, another process uses it, or `train` fails.
    """
    record, folder = run_files.read_record(folder), Path(folder)
    if record["status"] == "finished":
        if "guaranteed_epsilon" not in record["final"]:
            raise UsageError(f"{folder} is a finished run of another version of edp_lab: train again")
        load_model(folder / run_files.MODEL)  # a UsageError if it is damaged
        _complete(folder, record)
        run_files.tidy(folder, run_files.LOCK)
        return record
    return _start(TrainConfig.from_record(record), folder, listener, stop or threading.Event(), resuming=True)


def train_here(
    config: TrainConfig, folder: Path, listener: Listener, stop: threading.Event, resuming: bool
) -> dict[str, Any]:
    """Run this process's part of the training; raises like `train`, or if the number of processes is wrong."""
    accelerator = start_accelerator(config.processes)
    with run_files.open_folder(folder, resuming, config.processes) if accelerator.is_main_process else nullcontext():
        corpus = load_corpus(config.corpus, config.tokens)
        earlier = run_files.read_record(folder) if resuming else None
        if earlier is not None and corpus.sha256 != earlier["corpus"]["sha256"]:
            raise UsageError(f"corpus {config.corpus!r} has changed since {folder} was started: restore it")
        data = split(corpus, config.seed, config.keep_duplicates_together)
        if earlier is not None:
            run_files.check_same_split(folder, earlier, data)
        trainer = Trainer(config, corpus, data, accelerator, partial(_key, config, folder, earlier, accelerator))
        if resuming:
            _resume_from_state(trainer, folder)
        if config.processes > 1:
            state = [asdict(trainer.progress), checkpoint.digest(dict(trainer.parameters))]
            agree(accelerator, state, "states: resume all from one folder")
        if trainer.main:
            if trainer.mechanism is not None:
                trainer.ledger = _ledger(folder, trainer.mechanism, trainer.progress.chain, earlier)
            if config.private_seed and trainer.key != run_files.read_secret(folder):
                # All checks have passed, and the record does not mention the key yet.
                hint = "remove this file, and resume again" if resuming else "choose another --out"
                run_files.write_secret(folder, trainer.key, hint)
            trainer.record_guarantee()
            run_files.write_record(folder, trainer.record)
            trainer.save_state(folder)
        _train(trainer, folder, listener, stop)
        if trainer.main and trainer.record["status"] == "finished":
            _complete(folder, trainer.record)
    return trainer.record


def _resume_from_state(trainer: Trainer, folder: Path) -> None:
    """Continue from the last checkpoint in `folder`, if there is one."""
    steps = trainer.batches.steps_per_epoch
    earlier = checkpoint.load_state(folder, trainer.parameters, trainer.optimizer, steps)
    if earlier is not None:
        trainer.progress, alpha = earlier
        trainer.record["epochs"] = trainer.progress.rows
        if trainer.private is not None and alpha is not None:
            trainer.private.alpha = alpha.to(trainer.accelerator.device)


def _finish(trainer: Trainer) -> None:
    """Record the model's scores on the test split and the guarantee for all releases."""
    rows = trainer.progress.rows
    training = {"loss": rows[-1]["loss"] if rows else None, "seconds": sum(row["seconds"] for row in rows)}
    scores = evaluate_model(trainer.model, trainer.test, trainer.accelerator)
    trainer.record["final"] = {**training, **asdict(scores), **trainer.record_guarantee()}


def _complete(folder: Path, record: dict[str, Any]) -> None:
    """Write the certificate of a finished run, if it has a guarantee, and remove key and checkpoint."""
    splits, held = record["corpus"]["splits"], record["guarantee"]
    promised = held["status"] == HOLDS and meaningful(held["delta"], splits["train"])
    if promised and not (folder / CERTIFICATE).exists():
        write_certificate(folder)
    run_files.tidy(folder)


def _ledger(folder: Path, mechanism: Mechanism, chain: str | None, earlier: dict[str, Any] | None) -> PrivacyLedger:
    """Create or open the ledger; raise UsageError if it lacks entries or has a different mechanism."""
    if earlier is None:
        return PrivacyLedger(folder / LEDGER, mechanism)
    ledger = PrivacyLedger.open(folder / LEDGER, earlier["ledger"], chain)
    if ledger.mechanism != mechanism:
        raise UsageError(f"the ledger and the record in {folder} have different mechanisms: restore both from a copy")
    return ledger


def _train(trainer: Trainer, folder: Path, listener: Listener, stop: threading.Event) -> None:
    try:
        status = trainer.train(folder, listener, stop)
        _finish(trainer)
        trainer.save_model(folder, status)
    except KeyboardInterrupt:
        if trainer.accelerator.num_processes > 1:
            raise
        trainer.record_guarantee()
        trainer.record["status"] = "interrupted"
        # The last checkpoint stays, and a resumed run continues from this complete step.
        run_files.write_record(folder, trainer.record)
        _finish(trainer)
        trainer.save_model(folder, "interrupted")
    except UsageError as error:
        if trainer.main:
            _write_failed(folder, trainer.record, trainer.record_guarantee(), error)
        raise


def _write_failed(folder: Path, record: dict[str, Any], epsilons: dict[str, float | None], error: UsageError) -> None:
    unknown = dict.fromkeys(("loss", "seconds", *(field.name for field in fields(Scores))))
    with suppress(UsageError):  # on a full disk, the earlier record stays, and the first error is reported
        run_files.write_record(
            folder, {**record, "final": {**unknown, **epsilons}, "status": "failed", "error": str(error)}
        )


def _start(
    config: TrainConfig, folder: Path, listener: Listener, stop: threading.Event, resuming: bool
) -> dict[str, Any]:
    hint = f"run edp-lab train --resume {folder}"
    if launched()[1] > 1:
        watch_launcher()
    if "WORLD_SIZE" in os.environ or config.processes == 1:
        try:
            return train_here(config, folder, listener, stop, resuming)
        except (RuntimeError, ConnectionError) as error:  # torch raises these if another rank is gone
            message = lost(error) if config.processes > 1 else None
            if message is None:
                raise
            leave_group()  # otherwise torch aborts at exit
            raise UsageError(f"{message}: {hint}") from None
    return _start_ranks(config, folder, listener, stop, resuming, hint)


def _start_ranks(
    config: TrainConfig, folder: Path, listener: Listener, stop: threading.Event, resuming: bool, hint: str
) -> dict[str, Any]:
    """Start the ranks with torchrun, relay their reports, and return the run's record."""
    job = json.dumps({"config": asdict(config), "folder": str(folder), "resuming": resuming})
    record = folder / run_files.RECORD
    before = record.stat().st_mtime_ns if record.exists() else None

    def relay(ranks: Ranks) -> None:
        for line in ranks.lines(hint, stop):
            event = json.loads(line)
            listener(EpochDone(**event) if "row" in event else StepDone(**event))

    try:
        with Ranks(config.processes, "edp_lab.training.session:main", job) as ranks:
            try:
                relay(ranks)
            except KeyboardInterrupt:
                stop.set()
                relay(ranks)
    except UsageError as error:
        if not record.exists():
            raise UsageError(str(error).removesuffix(f": {hint}")) from None  # there is nothing to resume
        if record.stat().st_mtime_ns != before:  # otherwise the ranks stopped before training began
            _record_failed(folder, error)
        raise
    return run_files.read_record(folder)


def _record_failed(folder: Path, error: UsageError) -> None:
    """Mark the run as failed on behalf of ranks that died; the ledger has all their releases."""
    with suppress(UsageError), run_files.locked(folder):
        record = run_files.read_record(folder)
        if record["status"] == "running":
            ledger = None if record["ledger"] is None else PrivacyLedger.open(folder / LEDGER, record["ledger"])
            epochs = min(len(record["epochs"]) + 1, record["config"]["epochs"])
            mechanism = None if ledger is None else ledger.mechanism
            _write_failed(folder, record, run_files.record_guarantee(record, mechanism, ledger, epochs), error)


def start_accelerator(processes: int, device: str | None = None) -> Accelerator:
    """Start an Accelerator, on the CPU if there is no GPU; raise UsageError if the number of processes is wrong."""

    def check(started: int) -> None:
        if started != processes:
            raise UsageError(
                f"{started} processes take part, but --processes asks for {processes}: start that many, or let edp-lab "
                "start them"
            )

    check(launched()[1])  # before they wait for ranks that do not exist
    patience = InitProcessGroupKwargs(timeout=timedelta(seconds=PATIENCE))
    cpu = device == "cpu" or not torch.cuda.is_available()
    try:
        accelerator = Accelerator(cpu=cpu, kwargs_handlers=[patience])
        torch.empty(0, device=accelerator.device)
    except Exception as error:
        set_here = ", ".join(name for name in os.environ if name.startswith("ACCELERATE_"))
        if processes > 1 or not set_here:  # several processes may have lost contact
            raise
        why = str(error).partition("\n")[0]
        raise UsageError(f"Accelerate cannot start ({why}): unset or fix {set_here}") from error
    check(accelerator.num_processes)
    return accelerator


def _key(
    config: TrainConfig, folder: Path, earlier: dict[str, Any] | None, accelerator: Accelerator, inputs: str
) -> tuple[int, int]:
    """Return the key for order, dropout and noise, the same on all ranks, and the number of keys used before it.

    The key of a resumed run is used again only from a checkpoint of this key and these surroundings, so that repeated
    steps have the same bits. Otherwise, for example on another machine, the same noise could be in two different sums
    and be subtracted, so the run gets a fresh key, and the ledger counts repeated steps as further releases. The same
    applies if the key is lost, and on a GPU, where sums have no fixed order.
    """
    here = checkpoint.surroundings(accelerator, inputs)
    agree(accelerator, here, "options, files, versions or numbers of threads: make these the same")
    key, keys = None, 0
    if accelerator.is_main_process:
        keys = 0 if earlier is None else earlier.get("keys", 0)
        if earlier is not None:
            key = run_files.read_secret(folder) if config.private_seed else _published_key(config.seed, keys)
            saved = run_files.saved_position(folder).get("origin")
            if key is None or here["device"] != "cpu" or saved != checkpoint.origin(key, here):
                key, keys = None, keys + 1
        if key is None:
            key = secrets.randbits(128) if config.private_seed else _published_key(config.seed, keys)
    key, keys = broadcast_object_list([key, keys])
    return key, keys


def _published_key(seed: int, number: int) -> int:
    return key_from_seed(seed) if number == 0 else key_from_seed(f"{seed}, key {number}")


def main(job: str, stop: threading.Event) -> None:
    """Run as one of several ranks started by `train`; rank 0 prints events as JSON, one per line."""
    given = json.loads(job)

    def report(event: Event) -> None:
        sys.stdout.write(json.dumps(asdict(event)) + "\n")
        sys.stdout.flush()

    train_here(TrainConfig(**given["config"]), Path(given["folder"]), report, stop, given["resuming"])
