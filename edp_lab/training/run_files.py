"""Files in a run's folder. The most important file is the record, from which every figure can be traced.

DIR/record.json     configuration, versions, corpus, epochs, final scores, guarantee; "sha256": digest of these fields
DIR/ledger.jsonl    every private release (see `edp_lab.training.ledger`)
DIR/secret.key      the key of a run with a private seed; deleted when the run finishes
DIR/state.safetensors   the checkpoint from which to resume; deleted when the run finishes
DIR/certificate.json, .html   the privacy certificate (see `edp_lab.training.certificate`), if there is a guarantee
DIR/model/          the model (see `edp_lab.models.factory`)

A run reports `StepDone` and `EpochDone` events to a listener. Files are replaced atomically: a reader sees the old or
the new version, never a part of it. The functions raise UsageError if a file is damaged or cannot be written.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open

from edp_lab.corpora.catalog import cut_columns, hides_published, list_corpora
from edp_lab.corpora.corpus import Corpus, Split, most_copies, notes_on_split
from edp_lab.errors import UsageError, writing
from edp_lab.files import PARTIAL, read_bytes, sealed, unsealed, write_whole
from edp_lab.privacy import Alpha, Mechanism, judge
from edp_lab.training.config import TrainConfig
from edp_lab.training.ledger import LEDGER, PrivacyLedger

RECORD = "record.json"
MODEL = "model"
SECRET = "secret.key"
STATE = "state.safetensors"
LOCK = ".lock"
BEFORE_A_RECORD = {LOCK, SECRET, LEDGER}
PACKAGES = (
    "edp-lab", "torch", "numpy", "numba", "llvmlite", "scipy", "accelerate", "transformers", "gensim", "dp-accounting",
)  # fmt: skip

NOT_PRIVATE = (
    "training loss", "validation scores", "training time", "corpus checksum", "what was fixed or noted in the corpus",
    "split counts", "the largest number of equal utterances", "choice of hyper-parameters",
    "whether and where a run failed",
)  # fmt: skip


# ---- Events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepDone:
    """Event after each step: `step` of `steps` in this epoch, and the mean loss of its batch (not private)."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class EpochDone:
    """Event after each epoch: the epoch's row of the run record, and the status of the guarantee so far."""

    epoch: int
    epochs: int
    row: dict[str, Any]
    status: str


Event = StepDone | EpochDone
Listener = Callable[[Event], None]


# ---- The folder ------------------------------------------------------------------------------------------------------


def new_run_folder(out: str | Path) -> Path:
    """Return the path of a new run's folder without creating it; raise UsageError if the folder cannot be used."""
    folder = Path(out)
    parent = next(p for p in (*folder.absolute().parents, folder.absolute()) if p.exists())  # / has no parents
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"output folder {folder} cannot be created in {parent}: choose another --out")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"output folder {folder} is a file: choose another --out")
    if folder.exists() and not may_begin(folder):
        unfinished = (folder / RECORD).exists() and read_record(folder)["status"] != "finished"
        hint = f"run edp-lab train --resume {folder}, or " if unfinished else ""
        raise UsageError(f"output folder {folder} is not empty: {hint}choose another --out")
    return folder


def may_begin(folder: Path) -> bool:
    """Whether the folder has only files of a run that was killed before its record, and so before its first step."""
    names = {path.name for path in folder.iterdir() if not path.name.startswith(PARTIAL)}
    entries = (folder / LEDGER).read_bytes().count(b"\n") if LEDGER in names else 0  # the first line is the mechanism
    return not names or (LOCK in names and names <= BEFORE_A_RECORD and entries <= 1)


def go_on(folder: Path) -> str:
    """Hint for an error message: a file of a run that has a record cannot be written."""
    return f"free some space, then run edp-lab train --resume {folder}"


@contextmanager
def open_folder(folder: Path, resuming: bool, processes: int) -> Iterator[None]:
    """Lock a run's folder; if a new run fails before its first checkpoint, empty the folder.

    The files are kept if the ledger has a release before the failed step, because the failure reveals something about
    this release. They are also kept if a run with a record lost a rank or filled the disk: it can be resumed.
    """
    with locked(folder):
        if not resuming:
            if not may_begin(folder):
                raise UsageError(f"another process has just started a run in {folder}: choose another --out")
            tidy(folder, LEDGER)
        try:
            yield
        except BaseException as error:
            cut_off = processes > 1 and not isinstance(error, UsageError)
            full = isinstance(error.__cause__, OSError)
            kept = resuming or saved_position(folder).get("step") or ((cut_off or full) and (folder / RECORD).exists())
            if not (kept or _has_released(folder)):
                tidy(folder, RECORD, LEDGER)
            raise


def _has_released(folder: Path) -> bool:
    """Whether a step with a secret key was completed; the ledger records each step before it begins."""
    with suppress(UsageError):
        return (folder / SECRET).exists() and len(PrivacyLedger.open(folder / LEDGER).releases) > 1
    return False


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Exclusive lock on the folder for one process; create the folder if needed, and remove it if it stays empty."""
    lock = FileLock(folder / LOCK)
    with writing(folder, "free disk space, fix its permissions, or start the run in another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UsageError(
                f"another process is training in {folder}: wait until it ends, or choose another --out for a new run"
            ) from None
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            folder.rmdir()


def tidy(folder: Path, *more: str) -> None:
    """Remove files that a finished run no longer needs, and partially written files."""
    half = [path for path in folder.rglob(f"{PARTIAL}*") if not path.is_dir()]
    for path in (*(folder / name for name in (SECRET, STATE, *more)), *half):
        path.unlink(missing_ok=True)


# ---- The record ------------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def settled(config: TrainConfig, delta: float) -> dict[str, Any]:
    """Return the configuration for the record, with defaults filled in and absolute paths."""
    settings = {**asdict(config), "delta": delta, "lr": config.learning_rate}
    return settings | {"corpus": _absolute(config.corpus), "pretrained": _absolute(config.pretrained)}


def _absolute(given: str | None) -> str | None:
    """Make a path absolute; leave the name of a corpus or of a hub model unchanged."""
    if given is None or (given in {corpus.name for corpus in list_corpora()} and not hides_published(given)):
        return given
    path, _ = cut_columns(given)
    return f"{Path(path).resolve()}{given.removeprefix(path)}" if Path(path).exists() else given


def initial_record(
    config: TrainConfig, settings: dict[str, Any], corpus: Corpus, data: Split, world: int
) -> dict[str, Any]:
    """Return the initial fields of the record, except those that only the trainer knows; `world`: number of ranks."""
    devices = config.num_devices
    shared = f"{world} process" + ("es" if world > 1 else "")  # "8 devices: 2 processes, 6 simulated"
    if config.method != "sgd":
        shared = f"{devices} device{'s' if devices > 1 else ''}: {shared}, {devices - world} simulated"
    return {
        "status": "running",
        "config": settings,
        "versions": versions(),
        "world_size": world,
        "devices": shared,
        "corpus": {
            "sha256": corpus.sha256,
            "splits": data.counts,
            "train_sha256": digest_of(data),
            "has_tags": corpus.has_tags,
            "copies": most_copies(data.train),
            "warnings": [*corpus.warnings, *notes_on_split(corpus, data)],
        },
        "final": None,
        "guarantee": {},
    }


def check_same_split(folder: str | Path, record: Mapping[str, Any], data: Split) -> None:
    """Raise UsageError if the run was split differently: its training utterances could be in the test set of `data`."""
    kept = record["corpus"]
    if kept["splits"] != data.counts or kept.get("train_sha256", digest_of(data)) != digest_of(data):
        raise UsageError(f"the run in {folder} was split by another version of edp_lab: use that version, or retrain")


def digest_of(data: Split) -> str:
    """SHA-256 of the training set's texts, in order."""
    return hashlib.sha256("\n".join(u.text for u in data.train).encode(errors="surrogatepass")).hexdigest()


def not_private(
    config: TrainConfig, corpus: Corpus, data: Split, mechanism: Mechanism | None, delta: float
) -> list[str]:
    """List the parts of the record and the model that reveal information about the corpus without noise."""
    flags = [*NOT_PRIVATE]
    if not corpus.labels_declared:
        flags.append("label sets (taken from the corpus; public if listed in intents.txt and slots.txt)")
    if mechanism is not None and mechanism.alpha is Alpha.PRIVATE:
        flags.append("layer scales alpha (from private gradients)")
    if delta * len(data.train) >= 1:
        flags.append("delta: not below 1/n, so epsilon promises nothing")
    return flags


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write ``record.json``, with a checksum; create the folder if needed."""
    content = json.loads(json.dumps(record, allow_nan=False))
    path, text = folder / RECORD, json.dumps(sealed(content), indent=2)
    hint = go_on(folder) if path.exists() else "free some space there, or choose another --out"
    write_whole(path, f"{text}\n".encode(), hint)


def read_record(folder: str | Path) -> dict[str, Any]:
    """Read the record of a finished, interrupted or running run; UsageError if it is missing or damaged."""
    path = Path(folder) / RECORD
    if not path.is_file():
        raise UsageError(f"{folder} contains no run ({RECORD} is missing): give the --out folder of edp-lab train")
    content = read_bytes(path)
    try:
        return unsealed(json.loads(content))
    except (ValueError, RecursionError) as error:
        hint = "train again, or restore it from a copy"
        raise UsageError(f"{path} is damaged or was edited ({error}): {hint}") from None


def run_ledger(run: str | Path) -> PrivacyLedger:
    """Return the ledger of a run, checked against its record and, if the run is unfinished, its checkpoint."""
    record = read_record(run)
    if record.get("ledger") is None:
        raise UsageError(f"{run} has no ledger, because it was trained without noise: train with --epsilon, such as 8")
    return PrivacyLedger.open(Path(run) / LEDGER, str(record["ledger"]), saved_position(run).get("chain"))


def saved_position(run: str | Path) -> dict[str, Any]:
    """Return the position in a run's checkpoint; empty if it cannot be read (resuming refuses a damaged one)."""
    errors, path = (OSError, SafetensorError, ValueError, KeyError, TypeError), Path(run) / STATE
    with suppress(*errors), safe_open(path, framework="np") as file:
        return dict(json.loads(file.metadata()["progress"]))
    return {}


def record_guarantee(
    record: dict[str, Any],
    mechanism: Mechanism | None,
    ledger: PrivacyLedger | None,
    epochs: int,
) -> dict[str, float | None]:
    """Judge the releases in the ledger, or, without a ledger, those of `epochs` epochs; record the guarantee.

    Returns the epsilons and the noise of the last of these epochs.
    """
    config, releases = record["config"], epochs if ledger is None else ledger.releases_by_epoch()
    published = config["private_seed"] is not True
    guarantee = judge(mechanism, releases, config["delta"], published)
    verdict = asdict(guarantee)
    names = ("claimed_epsilon", "conditional_epsilon", "epsilon_if_alpha_public")
    epsilons = {"guaranteed_epsilon": guarantee.guaranteed_epsilon, **{name: verdict.pop(name) for name in names}}
    record |= {"ledger": None if ledger is None else ledger.chain, "guarantee": verdict}
    settings: dict[str, float | None] = {"z_t": None, "noise_multiplier": None}
    if mechanism is not None:
        settings["z_t"] = mechanism.noise_multiplier_setting(epochs - 1)
        settings["noise_multiplier"] = mechanism.noise_multiplier(epochs - 1)
    return {**settings, **epsilons}


def write_secret(folder: Path, key: int, hint: str) -> None:
    """Save the noise key, readable only by its owner; it is never in the record and is deleted when the run ends."""
    write_whole(folder / SECRET, f"{key:032x}\n".encode(), hint, 0o600)


def read_secret(folder: Path) -> int | None:
    """Return the noise key of a resumable run, or None if the file is missing; raise UsageError if it has no key."""
    path = folder / SECRET
    if not os.path.lexists(path):
        return None
    text = read_bytes(path).strip()
    if not re.fullmatch(rb"[0-9a-f]{32}", text):
        raise UsageError(f"{path} is damaged: restore it, or remove it to resume with a fresh key")
    return int(text, 16)
