"""A run's folder: the record, one JSON file from which every figure can be traced, and the files around it.

DIR/record.json     configuration, versions, corpus, epochs, final scores, guarantee
DIR/ledger.jsonl    every private release (see `edp_lab.training.ledger`)
DIR/secret.key      the key of a run with a private seed, while it lasts
DIR/state.safetensors   parameters, the optimizer's moments and how far the run had come, while it lasts
DIR/model/          the model (see `edp_lab.models.factory`)

Whoever reads finds an old file or a new one, never a part; what is damaged or cannot be written is a
UsageError.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

import edp_lab
from edp_lab.errors import UsageError, writing
from edp_lab.files import read_bytes, write_whole
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.models.tensor_file import parse_tensors
from edp_lab.models.wordpiece import PieceFeatures
from edp_lab.privacy import Mechanism, judge
from edp_lab.training.ledger import LEDGER, PrivacyLedger

RECORD = "record.json"
MODEL = "model"
SECRET = "secret.key"
STATE = "state.safetensors"
LOCK = ".lock"
BEFORE_A_RECORD = {LOCK, SECRET, f"{SECRET}.partial", LEDGER, f"{RECORD}.partial"}
PACKAGES = (
    "edp-lab", "torch", "numpy", "numba", "llvmlite", "scipy", "accelerate", "transformers", "gensim", "dp-accounting",
)  # fmt: skip

NOT_PRIVATE = (
    "training loss",
    "validation scores",
    "corpus checksum",
    "split counts",
    "choice of hyper-parameters",
    "whether and where a run failed",
)


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def new_run_folder(out: str | Path) -> Path:
    """The folder for a new run, not yet created."""
    folder = Path(out)
    parent = next(p for p in (folder.absolute().parents) if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"output folder {folder} cannot be made in {parent}: choose another --out")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"output folder {folder} is a file: choose another --out")
    if folder.exists() and not may_begin(folder):
        raise UsageError(f"output folder {folder} is not empty: it may hold a run; choose another --out")
    return folder


def may_begin(folder: Path) -> bool:
    """Whether the folder is empty but for what a run leaves that is killed before its record, and so its first step."""
    names = {path.name for path in folder.iterdir()}
    entries = (folder / LEDGER).read_bytes().count(b"\n") if LEDGER in names else 0  # the first names the mechanism
    return not names or (LOCK in names and names <= BEFORE_A_RECORD and entries <= 1)


def go_on(folder: Path) -> str:
    """The cure where a run cannot be written that has a record."""
    return f"make room, then go on with edp-lab train --resume {folder}"


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """``record.json``, with a checksum; the folder is made if need be."""
    content = json.loads(json.dumps(record, allow_nan=False))
    path, text = folder / RECORD, json.dumps({**content, "sha256": _checksum(content)}, indent=2)
    cure = go_on(folder) if path.exists() else "make room there, or choose another --out"
    with writing(path, cure):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, f"{text}\n".encode(), cure)


def _checksum(record: Mapping[str, Any]) -> str:
    return digest({}, json.dumps(record, sort_keys=True).encode())


def read_record(folder: str | Path) -> dict[str, Any]:
    """The record of a finished, interrupted or running run."""
    path = Path(folder) / RECORD
    if not path.is_file():
        raise UsageError(f"{folder} holds no run ({RECORD} is missing): give the --out folder of edp-lab train")
    content, cure = read_bytes(path), "train again, or restore it from a copy"
    try:
        record = json.loads(content)
        known = record.pop("sha256", None)
        config = record["config"]
        needed = [config["corpus"], config["keep_duplicates_together"], record["corpus"]["sha256"]]
        needed += [record["guarantee"], record["status"], record["parameters"]]
        assert all(value is not None for value in needed)
        assert isinstance(config["seed"], int)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError):
        raise UsageError(f"{path} is damaged: {cure}") from None
    if known is None:
        warnings.warn(f"{path} is of an earlier version, without a checksum: damage would not show", stacklevel=1)
    elif known != _checksum(record):
        raise UsageError(f"{path} is damaged or was edited (its checksum differs): {cure}")
    return dict(record)


def bill(
    record: dict[str, Any], mechanism: Mechanism | None, ledger: PrivacyLedger | None, epochs: int
) -> dict[str, float | None]:
    """Judge what the ledger holds, or without one `epochs` epochs, and put the verdict into the record.

    Returns epsilons, and the noise of the last of `epochs` epochs.
    """
    config, releases = record["config"], epochs if ledger is None else ledger.bill()
    verdict = asdict(judge(mechanism, releases, config["delta"], seed_published=not config["private_seed"]))
    names = ("epsilon_claimed", "epsilon", "epsilon_if_alpha_public")
    epsilons = {name: verdict.pop(name) for name in names}
    record |= {"ledger": None if ledger is None else ledger.chain, "guarantee": verdict}
    settings: dict[str, float | None] = {"z_t": None, "noise_multiplier": None}
    if mechanism is not None:
        settings["z_t"] = mechanism.noise_multiplier_setting(epochs - 1)
        settings["noise_multiplier"] = mechanism.noise_multiplier(epochs - 1)
    return {**settings, **epsilons}


def write_secret(folder: Path, key: int) -> None:
    """The noise key, readable by its owner alone; it never goes into the record and is deleted when the run ends."""
    with writing(folder / SECRET, "choose another --out"):
        partial = folder / f"{SECRET}.partial"
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # of that mode from the start
        with open(descriptor, "w") as file:
            file.write(f"{key:032x}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, folder / SECRET)


def read_secret(folder: Path) -> int | None:
    """The noise key of a run that can be taken up again; None if it is lost."""
    try:
        return int((folder / SECRET).read_text(), 16)
    except (OSError, ValueError):
        return None


@dataclass
class RunPosition:
    """How far a run has come."""

    epoch: int = 0
    step_in_epoch: int = 0  # the next one
    step: int = 0  # how many were taken in all
    loss: float = 0.0  # of this epoch so far, summed, and so are
    examples: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)  # one for each whole epoch, for the record
    chain: str | None = None  # the ledger's, see `edp_lab.training.ledger`


def save_state(
    folder: Path,
    position: RunPosition,
    parameters: Sequence[tuple[str, nn.Parameter]],
    optimizer: torch.optim.Optimizer,
    alpha: Tensor | None,
) -> None:
    """Where `load_state` takes the run up again."""
    tensors = {f"parameter/{name}": p.detach() for name, p in parameters}
    for number, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{number}/{name}": value for name, value in moments.items()}
    if alpha is not None:
        tensors["alpha"] = alpha
    tensors = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    told = json.dumps(asdict(position))
    content = save(tensors, {"progress": told, "sha256": digest(tensors, told.encode())})
    write_whole(folder / STATE, content, go_on(folder))


def load_state(
    folder: Path, parameters: Sequence[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer
) -> tuple[RunPosition, Tensor | None] | None:
    """Position and alpha, after parameters and moments were set; None if the run never came to a first state."""
    path = folder / STATE
    if not path.exists():
        return None
    tensors = parse_tensors(read_bytes(path), path)
    with safe_open(path, framework="pt") as file:
        told = file.metadata() or {}
    if told.get("sha256") != digest(tensors, told.get("progress", "").encode()):
        raise UsageError(f"{path} is damaged (its checksum differs): remove it to go on from the first step")
    try:
        position = RunPosition(**json.loads(told["progress"]))
        with torch.no_grad():
            for name, p in parameters:
                p.copy_(tensors[f"parameter/{name}"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, number, key = name.split("/")
                moments.setdefault(int(number), {})[key] = tensor
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{path} does not belong to this run or version: start a new run with the same options"
        ) from error
    return position, tensors.get("alpha")


def surroundings(accelerator: Accelerator, inputs: str) -> dict[str, Any]:
    """What a step's bits may depend on beside its key, training data and parameters; all ranks call it together."""
    processor = [platform.machine(), torch.backends.cpu.get_cpu_capability(), platform.node()]
    processes = accelerator.num_processes
    return {
        "inputs": inputs,
        "device": accelerator.device.type,
        "processors": gather_object([processor]) if processes > 1 else [processor],
        "threads": torch.get_num_threads(),
        "processes": processes,
        "versions": versions(),
    }


def inputs_digest(model: IntentSlotModel, settings: Mapping[str, Any]) -> str:
    """Of the code, the settings, the initial weights (also frozen ones) and the vocabulary."""
    code = [path.read_bytes() for path in sorted(Path(edp_lab.__file__).parent.rglob("*.py"))]
    features = model.features
    words = features.tokenizer.to_str() if isinstance(features, PieceFeatures) else repr(features)
    return digest(model.state_dict(), json.dumps(settings, sort_keys=True).encode(), words.encode(), *code)


def digest(tensors: Mapping[str, Tensor], *more: bytes) -> str:
    """SHA-256 of named tensors and whatever else."""
    found = hashlib.sha256()
    for part in more:
        found.update(part)
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().numpy().data)
    return found.hexdigest()
