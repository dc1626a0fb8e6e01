"""Checkpoint of a run, in one file: parameters, the optimizer's moments and the position in the run.

Everything else that affects the bits of the next step is compared by digest (see `surroundings`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
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
from edp_lab.corpora.corpus import Corpus
from edp_lab.corpora.encoding import PieceFeatures
from edp_lab.errors import UsageError
from edp_lab.files import parse_tensors, read_bytes, write_whole
from edp_lab.models.factory import shapes
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.training.run_files import STATE, go_on, versions

# Prefixes of environment variables that select the order of summation, or the code used on this processor.
LIBRARIES = (
    "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "OPENBLAS_", "NUMBA_", "KMP_", "GOMP_", "OMP_DYNAMIC", "GLIBC_TUNABLES",
)  # fmt: skip
SET_BY_SKLEARN = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")  # on import; they do not change results


@dataclass
class RunPosition:
    """Position in a run, and its results so far."""

    epoch: int = 0
    step_in_epoch: int = 0  # the next step
    step: int = 0  # total number of steps taken
    loss: float = 0.0  # summed over this epoch so far, like the next two fields
    examples: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)  # one per completed epoch, for the record
    chain: str | None = None  # chain value of the ledger, see `edp_lab.training.ledger`
    origin: str = ""  # see `origin`

    def count(self, loss: float, examples: int) -> None:
        """Record a completed step; if its loss is not finite, exclude the step from the mean."""
        if math.isfinite(loss):
            self.loss += loss
            self.examples += examples
        self.step_in_epoch += 1

    def end_epoch(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.epoch, self.step_in_epoch, self.loss, self.examples, self.seconds = self.epoch + 1, 0, 0.0, 0, 0.0


def save_state(
    folder: Path,
    position: RunPosition,
    parameters: Sequence[tuple[str, nn.Parameter]],
    optimizer: torch.optim.Optimizer,
    alpha: Tensor | None,
) -> None:
    """Write the checkpoint from which `load_state` resumes the run."""
    tensors = {f"parameter/{name}": p.detach() for name, p in parameters}
    for number, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{number}/{name}": value for name, value in moments.items()}
    if alpha is not None:
        tensors["alpha"] = alpha
    tensors = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    progress = json.dumps(asdict(position))
    content = save(tensors, {"progress": progress, "sha256": digest(tensors, progress.encode())})
    write_whole(folder / STATE, content, go_on(folder))


def load_state(
    folder: Path, parameters: Sequence[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer, steps: int
) -> tuple[RunPosition, Tensor | None] | None:
    """Restore parameters and moments; return position and alpha, or None if there is no checkpoint yet.

    Args:
        steps: number of steps per epoch.

    Raises:
        UsageError: the checkpoint is damaged or belongs to another run.
    """
    path = folder / STATE
    if not os.path.lexists(path):
        return None
    tensors = parse_tensors(read_bytes(path), path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    try:
        if metadata.get("sha256") != digest(tensors, metadata.get("progress", "").encode()):
            raise UsageError(f"{path} is damaged (its checksum differs): remove it to restart from the first step")
        position, alpha = _position(json.loads(metadata["progress"]), steps), tensors.pop("alpha", None)
        if alpha is not None and (alpha.shape != (len(parameters),) or not alpha.is_floating_point()):
            raise ValueError("the layer scales are not those of this run")
        moments = _moments(tensors, parameters, optimizer)
        with torch.no_grad():
            for name, p in parameters:
                p.copy_(tensors[f"parameter/{name}"])
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise UsageError(
            f"{path} does not belong to this run or version: start a new run with the same options"
        ) from error
    return position, alpha


def _position(fields: Any, steps: int) -> RunPosition:
    """Return the stored position; raise ValueError or TypeError if a run with `steps` per epoch cannot reach it."""
    position = RunPosition(**fields)
    if position.step_in_epoch >= steps or position.step != position.epoch * steps + position.step_in_epoch:
        raise ValueError("different number of steps")
    if len(position.rows) != position.epoch or not isinstance(position.chain, str | None):
        raise ValueError("different epochs, or no chain")
    return position


def _moments(
    tensors: Mapping[str, Tensor], parameters: Sequence[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, Tensor]]:
    """Return the optimizer's tensors by parameter; raise ValueError or KeyError if names or shapes do not match."""
    moments: dict[int, dict[str, Tensor]] = {}
    named = {f"parameter/{name}": p for name, p in parameters}
    for name in tensors.keys() - named.keys():
        _, number, key = name.split("/")
        moments.setdefault(int(number), {})[key] = tensors[name]
    pairs = [(named, {name: tensors[name] for name in named})]
    numbered = dict(enumerate(named.values()))
    for place, saved in moments.items():
        p = numbered[place]
        # Adam creates its tensors at the first step.
        pairs.append((optimizer.state.get(p) or {"step": torch.tensor(0.0), "exp_avg": p, "exp_avg_sq": p}, saved))
    if any(shapes(wanted) != shapes(saved) for wanted, saved in pairs):
        raise ValueError("the tensors are not those of this run")
    return moments


def surroundings(accelerator: Accelerator, inputs: str) -> dict[str, Any]:
    """Return the software, hardware and settings that may affect a step's exact bits; all ranks must call this."""
    from llvmlite.binding import get_host_cpu_name  # slow to import

    processor = [platform.machine(), get_host_cpu_name(), torch.backends.cpu.get_cpu_capability(), platform.node()]
    processor += [torch.get_float32_matmul_precision()]
    named = (name for name in sorted(os.environ) if name.startswith(LIBRARIES) and name not in SET_BY_SKLEARN)
    processor += [f"{name}={os.environ[name]}" for name in named]
    processes = accelerator.num_processes
    return {
        "inputs": inputs,
        "device": accelerator.device.type,
        "processors": gather_object([processor]) if processes > 1 else [processor],
        "threads": torch.get_num_threads(),
        "processes": processes,
        "versions": versions(),
    }


def origin(key: int, surroundings: Mapping[str, Any]) -> str:
    """Digest of a run's key and `surroundings`, which together determine all bits after a checkpoint."""
    return hashlib.sha256(f"{key} {json.dumps(surroundings, sort_keys=True)}".encode()).hexdigest()


def inputs_digest(model: IntentSlotModel, settings: Mapping[str, Any], corpus: Corpus) -> str:
    """Digest of the code, the settings, the corpus, all initial weights, frozen or not, and the vocabulary."""
    code = [path.read_bytes() for path in sorted(Path(edp_lab.__file__).parent.rglob("*.py"))]
    features = model.features
    words = features.tokenizer.to_str() if isinstance(features, PieceFeatures) else repr(features)
    contents = json.dumps({**settings, "corpus": corpus.sha256}, sort_keys=True)
    return digest(model.state_dict(), contents.encode(), words.encode(), *code)


def digest(tensors: Mapping[str, Tensor], *more: bytes) -> str:
    """SHA-256 digest of named tensors and of further bytes."""
    sha256 = hashlib.sha256()
    for part in more:
        sha256.update(part)
    for name, tensor in sorted(tensors.items()):
        sha256.update(name.encode())
        sha256.update(tensor.detach().cpu().contiguous().numpy().data)
    return sha256.hexdigest()
