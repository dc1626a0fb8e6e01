"""Where a run can be taken up again: parameters, the optimizer's moments and how far it had come, in one file."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

import edp_lab
from edp_lab.errors import UsageError
from edp_lab.models.files import parse_tensors, read_bytes, write_whole
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.models.wordpiece import PieceFeatures
from edp_lab.training.run_folder import versions

STATE = "state.safetensors"


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        epoch, step_in_epoch: the next step.
        step: how many steps were taken in all.
        loss, examples, seconds: of this epoch so far, summed.
        rows: one for each whole epoch, for the record.
        chain: the ledger's, see `edp_lab.training.ledger`.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    loss: float = 0.0
    examples: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    chain: str | None = None


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


def save_state(
    folder: Path,
    progress: Progress,
    parameters: Sequence[tuple[str, nn.Parameter]],
    optimizer: torch.optim.Optimizer,
    alpha: Tensor | None,
) -> None:
    """Atomically: whoever reads finds the old state or the new one.

    Raises:
        UsageError: the folder cannot be written, as when the disk is full.
    """
    tensors = {f"parameter/{name}": p.detach() for name, p in parameters}
    for number, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{number}/{name}": value for name, value in moments.items()}
    if alpha is not None:
        tensors["alpha"] = alpha
    tensors = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    told = json.dumps(asdict(progress))
    try:
        write_whole(folder / STATE, save(tensors, {"progress": told, "sha256": digest(tensors, told.encode())}))
    except OSError as error:
        raise UsageError(
            f"{folder / STATE} cannot be written ({error.strerror}): make room, then go on with edp-lab train --resume"
        ) from error


def load_state(
    folder: Path, parameters: Sequence[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer
) -> tuple[Progress, Tensor | None] | None:
    """Progress and alpha, after parameters and moments were set; None if the run never came to a first state.

    Raises:
        UsageError: the file is damaged, or of another model.
    """
    path = folder / STATE
    if not path.exists():
        return None
    tensors = parse_tensors(read_bytes(path), path)
    with safe_open(path, framework="pt") as file:
        told = file.metadata() or {}
    if told.get("sha256") != digest(tensors, told.get("progress", "").encode()):
        raise UsageError(f"{path} is damaged (its checksum differs): remove it to go on from the first step")
    try:
        progress = Progress(**json.loads(told["progress"]))
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
    return progress, tensors.get("alpha")


def inputs_digest(model: IntentSlotModel, settings: Mapping[str, Any]) -> str:
    """Of the code, the settings, the initial weights (also frozen ones) and the vocabulary."""
    code = [path.read_bytes() for path in sorted(Path(edp_lab.__file__).parent.rglob("*.py"))]
    features = model.features
    words = features.tokenizer.to_str() if isinstance(features, PieceFeatures) else repr(features)
    return digest(model.state_dict(), json.dumps(settings, sort_keys=True).encode(), words.encode(), *code)


def code_of(parts: Sequence[str]) -> list[bytes]:
    """The sources of the package's folders and files of these names: results that are kept depend on them."""
    root = Path(edp_lab.__file__).parent
    files = [file for part in parts for file in ((root / part).rglob("*.py") if "." not in part else [root / part])]
    return [file.read_bytes() for file in sorted(files)]


def digest(tensors: Mapping[str, Tensor], *more: bytes) -> str:
    """SHA-256 of named tensors and whatever else."""
    found = hashlib.sha256()
    for part in more:
        found.update(part)
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().numpy().data)
    return found.hexdigest()
