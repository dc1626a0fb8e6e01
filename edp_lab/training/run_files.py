"""A run's folder: the record, one JSON file from which every figure can be traced, and the files around it.

DIR/record.json     configuration, versions, corpus, epochs, final scores, guarantee; "sha256" is of all the rest
DIR/ledger.jsonl    every private release (see `edp_lab.training.ledger`)
DIR/secret.key      the key of a run with a private seed, while it lasts
DIR/state.safetensors   where to resume the run, while it lasts
DIR/certificate.json, .html   what the run promises (see `edp_lab.training.certificate`), where something holds
DIR/model/          the model (see `edp_lab.models.factory`)

While it runs, it reports `StepDone` and `EpochDone` to a listener. A reader finds an old file or a new one, never a
part; what is damaged or cannot be written is a UsageError.
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

from edp_lab.corpora.catalog import hides_published, list_corpora
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
    """After each step: `step` of `steps` in this epoch, mean loss of its batch (not private)."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class EpochDone:
    """After each epoch: its row of the run record, and the status of the guarantee so far."""

    epoch: int
    epochs: int
    row: dict[str, Any]
    status: str


Event = StepDone | EpochDone
Listener = Callable[[Event], None]


# ---- The folder ------------------------------------------------------------------------------------------------------


def new_run_folder(out: str | Path) -> Path:
    """The folder for a new run, not yet created."""
    folder = Path(out)
    parent = next(p for p in (*folder.absolute().parents, folder.absolute()) if p.exists())  # / has no parents
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"output folder {folder} cannot be made in {parent}: choose another --out")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"output folder {folder} is a file: choose another --out")
    if folder.exists() and not may_begin(folder):
        unfinished = (folder / RECORD).exists() and read_record(folder)["status"] != "finished"
        hint = f"run edp-lab train --resume {folder}, or " if unfinished else ""
        raise UsageError(f"output folder {folder} is not empty: {hint}choose another --out")
    return folder


def may_begin(folder: Path) -> bool:
    """Whether the folder is empty but for what a run leaves that is killed before its record, and so its first step."""
    names = {path.name for path in folder.iterdir() if not path.name.startswith(PARTIAL)}
    entries = (folder / LEDGER).read_bytes().count(b"\n") if LEDGER in names else 0  # the first names the mechanism
    return not names or (LOCK in names and names <= BEFORE_A_RECORD and entries <= 1)


def go_on(folder: Path) -> str:
    """The hint where a run cannot be written that has a record."""
    return f"make room, then run edp-lab train --resume {folder}"


@contextmanager
def open_folder(folder: Path, resuming: bool, processes: int) -> Iterator[None]:
    """A new run that fails before its first state leaves nothing in the folder.

    Unless its ledger bills a release before the step that failed, which the failure tells of; or there is a record, and
    it was cut off from a rank or the disk was full: then it can be taken up.
    """
    with locked(folder):
        if not resuming:
            if not may_begin(folder):
                raise UsageError(f"another process was faster to begin a run in {folder}: choose another --out")
            tidy(folder, LEDGER)
        try:
            yield
        except BaseException as error:
            cut_off = processes > 1 and not isinstance(error, UsageError)
            full = isinstance(error.__cause__, OSError)
            kept = resuming or (folder / STATE).exists() or ((cut_off or full) and (folder / RECORD).exists())
            if not (kept or _has_released(folder)):
                tidy(folder, RECORD, LEDGER)
            raise


def _has_released(folder: Path) -> bool:
    """Whether a step under a secret key was ended there: each is billed before it begins."""
    with suppress(UsageError):
        return (folder / SECRET).exists() and len(PrivacyLedger.open(folder / LEDGER).releases) > 1
    return False


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process may work in the folder, which is made if need be and does not stay if nothing is in it."""
    lock = FileLock(folder / LOCK)
    with writing(folder, "make room there and change its permissions, or begin a run in another folder"):
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


def tidy(folder: Path, *more: str) -> None:
    """Remove what a finished run needs no more, and half-written files."""
    half = [path for path in folder.rglob(f"{PARTIAL}*") if not path.is_dir()]
    for path in (*(folder / name for name in (SECRET, STATE, *more)), *half):
        path.unlink(missing_ok=True)


# ---- The record ------------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def settled(config: TrainConfig, delta: float) -> dict[str, Any]:
    """The configuration as it is recorded: defaults filled in, paths absolute."""
    settings = {**asdict(config), "delta": delta, "lr": config.learning_rate}
    return settings | {"corpus": _absolute(config.corpus), "pretrained": _absolute(config.pretrained)}


def _absolute(given: str | None) -> str | None:
    """An absolute path; the name of a corpus, or on a hub, is unchanged."""
    if given is None or (given in {corpus.name for corpus in list_corpora()} and not hides_published(given)):
        return given
    path, *columns = (given,) if Path(given).exists() else given.partition("[")
    return "".join([str(Path(path).resolve()), *columns]) if Path(path).exists() else given


def initial_record(
    config: TrainConfig, settings: dict[str, Any], corpus: Corpus, data: Split, world: int
) -> dict[str, Any]:
    """Initial record fields, but for what only the trainer knows; `world`: how many ranks there are."""
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
    """UsageError if the corpus was split otherwise when the run was made: its training set would count as test set."""
    kept = record["corpus"]
    if kept["splits"] != data.counts or kept.get("train_sha256", digest_of(data)) != digest_of(data):
        raise UsageError(f"the run in {folder} was split by another version of edp_lab: use that one, or train again")


def digest_of(data: Split) -> str:
    """SHA-256 of the training set's texts, in order."""
    return hashlib.sha256("\n".join(u.text for u in data.train).encode(errors="surrogatepass")).hexdigest()


def not_private(
    config: TrainConfig, corpus: Corpus, data: Split, mechanism: Mechanism | None, delta: float
) -> list[str]:
    """Parts of the record and the model that reveal the corpus without noise."""
    flags = [*NOT_PRIVATE]
    if not corpus.labels_declared:
        flags.append("label sets (taken from the corpus; public if listed in intents.txt and slots.txt)")
    if mechanism is not None and mechanism.alpha is Alpha.PRIVATE:
        flags.append("layer scales alpha (from private gradients)")
    if delta * len(data.train) >= 1:
        flags.append("delta: not below 1/n, so epsilon promises nothing")
    return flags


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """``record.json``, with a checksum; the folder is made if need be."""
    content = json.loads(json.dumps(record, allow_nan=False))
    path, text = folder / RECORD, json.dumps(sealed(content), indent=2)
    hint = go_on(folder) if path.exists() else "make room there, or choose another --out"
    write_whole(path, f"{text}\n".encode(), hint)


def read_record(folder: str | Path) -> dict[str, Any]:
    """The record of a finished, interrupted or running run."""
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
    """The ledger of a run, checked against its record, and against its state if it is not finished."""
    record, state = read_record(run), Path(run) / STATE
    if record.get("ledger") is None:
        raise UsageError(f"{run} has no ledger, as it was trained without noise: train with --epsilon, say, 8")
    position: dict[str, Any] = {}
    with suppress(OSError, SafetensorError, ValueError, KeyError, TypeError), safe_open(state, framework="np") as file:
        position = json.loads(file.metadata()["progress"])  # a damaged one is refused where the run goes on
    return PrivacyLedger.open(Path(run) / LEDGER, str(record["ledger"]), position.get("chain"))


def record_guarantee(
    record: dict[str, Any],
    mechanism: Mechanism | None,
    ledger: PrivacyLedger | None,
    epochs: int,
) -> dict[str, float | None]:
    """Judge what the ledger holds, or without one `epochs` epochs, and put the verdict into the record.

    Returns epsilons, and the noise of the last of `epochs` epochs.
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
    """The noise key, readable by its owner alone; it never goes into the record and is deleted when the run ends."""
    write_whole(folder / SECRET, f"{key:032x}\n".encode(), hint, 0o600)


def read_secret(folder: Path) -> int | None:
    """The noise key of a run that can be taken up again; None if it is lost. UsageError: it is there, but no key."""
    path = folder / SECRET
    if not os.path.lexists(path):
        return None
    text = read_bytes(path).strip()
    if not re.fullmatch(rb"[0-9a-f]{32}", text):
        raise UsageError(f"{path} is damaged: restore it, or remove it to resume with a fresh key")
    return int(text, 16)
