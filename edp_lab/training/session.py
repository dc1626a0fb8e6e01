"""Start a training run, or resume one: in this process or on several, with its files kept safe meanwhile.

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
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, gather_object

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
from edp_lab.training.run_files import EpochDone, Event, Listener, StepDone
from edp_lab.training.trainer import Trainer


def train(
    config: TrainConfig, out: str | Path, listener: Listener = lambda event: None, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Train one model and return its run record, which is also written to ``out/record.json``.

    With ``config.processes`` above 1, torchrun starts the ranks, unless a launcher has already started this process as
    one of them. A `stop` that is set, or a KeyboardInterrupt, ends the run early with a usable model and record, status
    "interrupted"; `resume` continues it.

    Raises:
        UsageError: bad configuration or corpus, `out` already holds a run (nothing is written then), parameters (or,
            where nothing is promised, gradients) that are not finite, a full disk, a process that died (what was learnt
            so far stays).
    """
    folder = run_files.new_run_folder(out) if rank() == 0 else Path(out)
    return _start(config, folder, listener, stop or threading.Event(), resuming=False)


def resume(
    folder: str | Path, listener: Listener = lambda event: None, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Take up a run that was killed, interrupted or failed, and return its record.

    On the same machine and number of processes the result is, bit for bit, that of a run that was never broken off.

    Raises:
        UsageError: no run there, its corpus or files have changed, another process is at it, or as `train`.
    """
    record, folder = run_files.read_record(folder), Path(folder)
    if record["status"] == "finished":
        if "guaranteed_epsilon" not in record["final"]:
            raise UsageError(f"{folder} was trained by another version of edp_lab, and has finished: train again")
        load_model(folder / run_files.MODEL)  # refused where it is damaged
        _complete(folder, record)
        run_files.tidy(folder, run_files.LOCK)
        return record
    return _start(TrainConfig.from_record(record), folder, listener, stop or threading.Event(), resuming=True)


def train_here(
    config: TrainConfig, folder: Path, listener: Listener, stop: threading.Event, resuming: bool
) -> dict[str, Any]:
    """This process's part of a run; UsageError as `train`, and for another number of processes than `config` says."""
    accelerator = start_accelerator(config.processes)
    with run_files.open_folder(folder, resuming, config.processes) if accelerator.is_main_process else nullcontext():
        corpus = load_corpus(config.corpus, config.tokens)
        earlier = run_files.read_record(folder) if resuming else None
        if earlier is not None and corpus.sha256 != earlier["corpus"]["sha256"]:
            raise UsageError(f"corpus {config.corpus!r} is not the one of {folder}: its content has changed since")
        data = split(corpus, config.seed, **config.split)
        if earlier is not None:
            run_files.check_same_split(folder, earlier, data)
        trainer = Trainer(config, corpus, data, accelerator, partial(_key, config, folder, earlier, accelerator))
        if resuming:
            _resume_from_state(trainer, folder)
        if config.processes > 1:
            state = [asdict(trainer.progress), checkpoint.digest(dict(trainer.parameters))]
            _agree(accelerator, state, "states: resume with one folder")
        if trainer.main:
            if trainer.mechanism is not None:
                trainer.ledger = _ledger(folder, trainer.mechanism, trainer.progress.chain, earlier)
            if config.private_seed and trainer.key != run_files.read_secret(folder):
                # Nothing can be refused any more, and the record does not say yet that it is in use.
                hint = "remove what is there, and resume again" if resuming else "choose another --out"
                run_files.write_secret(folder, trainer.key, hint)
            trainer.record_guarantee()
            run_files.write_record(folder, trainer.record)
        _train(trainer, folder, listener, stop)
        if trainer.main and trainer.record["status"] == "finished":
            _complete(folder, trainer.record)
    return trainer.record


def _resume_from_state(trainer: Trainer, folder: Path) -> None:
    """Resume from the last state saved in `folder`, if there is one."""
    steps = trainer.batches.steps_per_epoch
    earlier = checkpoint.load_state(folder, trainer.parameters, trainer.optimizer, steps)
    if earlier is not None:
        trainer.progress, alpha = earlier
        trainer.record["epochs"] = trainer.progress.rows
        if trainer.private is not None and alpha is not None:
            trainer.private.alpha = alpha.to(trainer.accelerator.device)


def _finish(trainer: Trainer) -> None:
    """Score the current model on the test split, with the guarantee of everything that was released."""
    rows = trainer.progress.rows
    training = {"loss": rows[-1]["loss"] if rows else None, "seconds": sum(row["seconds"] for row in rows)}
    scores = evaluate_model(trainer.model, trainer.test, trainer.accelerator)
    trainer.record["final"] = {**training, **asdict(scores), **trainer.record_guarantee()}


def _complete(folder: Path, record: dict[str, Any]) -> None:
    """Write the certificate of a finished run, if something is promised, and remove key and state."""
    splits, held = record["corpus"]["splits"], record["guarantee"]
    promised = held["status"] == HOLDS and meaningful(held["delta"], splits["train"])
    if promised and not (folder / CERTIFICATE).exists():
        write_certificate(folder)
    run_files.tidy(folder)


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
        # The last state stays, so that a resumed run goes on from a whole step.
        run_files.write_record(folder, trainer.record)
        _finish(trainer)
        trainer.save_model(folder, "interrupted")
    except UsageError as error:
        if trainer.main:
            _write_failed(folder, trainer.record, trainer.record_guarantee(), error)
        raise


def _write_failed(folder: Path, record: dict[str, Any], epsilons: dict[str, float | None], error: UsageError) -> None:
    unknown = dict.fromkeys(("loss", "seconds", *(field.name for field in fields(Scores))))
    with suppress(UsageError):  # on a full disk the earlier record stays, and what matters is the first error
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
        except (RuntimeError, ConnectionError) as error:  # torch's, if another rank is gone
            message = lost(error) if config.processes > 1 else None
            if message is None:
                raise
            leave_group()  # else torch aborts at exit
            raise UsageError(f"{message}: {hint}") from None
    return _start_ranks(config, folder, listener, stop, resuming, hint)


def _start_ranks(
    config: TrainConfig, folder: Path, listener: Listener, stop: threading.Event, resuming: bool, hint: str
) -> dict[str, Any]:
    """Start the ranks by torchrun, relay what they report, and return the run's record."""
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
        if record.stat().st_mtime_ns != before:  # else the ranks were refused before they began
            _record_failed(folder, error)
        raise
    return run_files.read_record(folder)


def _record_failed(folder: Path, error: UsageError) -> None:
    """For ranks that died and could not do so themselves; the ledger knows all that they released."""
    with suppress(UsageError), run_files.locked(folder):
        record = run_files.read_record(folder)
        if record["status"] == "running":
            ledger = None if record["ledger"] is None else PrivacyLedger.open(folder / LEDGER, record["ledger"])
            epochs = min(len(record["epochs"]) + 1, record["config"]["epochs"])
            mechanism = None if ledger is None else ledger.mechanism
            _write_failed(folder, record, run_files.record_guarantee(record, mechanism, ledger, epochs), error)


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
        raise UsageError(f"Accelerate cannot start ({why}): unset or fix {set_here}") from error
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
        same = same and (
            keys == 0 or (folder / run_files.STATE).exists()
        )  # a later key did not begin at the first step
        if config.private_seed:
            key = run_files.read_secret(folder) if same else None
        elif earlier is None or same:
            key = _published_key(config.seed, keys)
        if key is None:
            keys += earlier is not None
            key = secrets.randbits(128) if config.private_seed else _published_key(config.seed, keys)
    key, keys = broadcast_object_list([key, keys])
    return key, keys


def _published_key(seed: int, number: int) -> int:
    return key_from_seed(seed) if number == 0 else key_from_seed(f"{seed}, key {number}")


def main(job: str, stop: threading.Event) -> None:
    """Be one of several ranks, started by `train`; rank 0 prints events as JSON, one per line."""
    given = json.loads(job)

    def report(event: Event) -> None:
        sys.stdout.write(json.dumps(asdict(event)) + "\n")
        sys.stdout.flush()

    train_here(TrainConfig(**given["config"]), Path(given["folder"]), report, stop, given["resuming"])
