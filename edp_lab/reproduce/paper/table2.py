"""Table 2 again: seconds per epoch under each method, from the engine's benchmark, beside the paper's factors."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from edp_lab.corpora import load_corpus
from edp_lab.errors import UsageError
from edp_lab.models.files import write_whole
from edp_lab.reproduce.bench.train_step import Task, bench_steps
from edp_lab.reproduce.paper.printed import NUM_GPUS, TABLE_2
from edp_lab.reproduce.paper.table1 import CORPORA, MODELS
from edp_lab.reproduce.run_cache import TRAINING
from edp_lab.training.run_folder import code_of, digest, versions

METHODS = ("sgd", "edp-sgd", "dp-sgd-naive", "dp-sgd")
CODE = (*TRAINING, "reproduce/bench/train_step.py")


def table2(
    out: Path,
    models: Sequence[str],
    corpora: Sequence[str],
    size: str = "paper",
    rounds: int = 11,
    tell: Callable[[str, bool], None] = lambda line, kept: None,
) -> Iterator[list[dict[str, Any]]]:
    """The rows of one model on one corpus after the other; what was measured on this machine before is kept.

    Raises:
        UsageError: an unknown model or corpus, one that is not at hand, or a folder that cannot be written.
    """
    for name, known, given in (("model", MODELS, models), ("corpus", tuple(CORPORA), corpora)):
        for one in given:
            if one not in known:
                raise UsageError(f"unknown {name} {one!r}: choose {', '.join(known)}")
    try:
        (out / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}): choose another --out") from error
    for model in models:
        for corpus in corpora:
            yield _measured(out, Task(corpus, model, METHODS, (1, NUM_GPUS), rounds=rounds, size=size), tell)


def _measured(out: Path, task: Task, tell: Callable[[str, bool], None]) -> list[dict[str, Any]]:
    what = f"{task.model.upper()} on {task.corpus}"
    entry = out / "cells" / f"{_key(task)}.json"
    try:
        rows: list[dict[str, Any]] = json.loads(entry.read_text())
        tell(f"{what}: was measured before", True)
    except (OSError, ValueError):
        rows = [_beside_paper(row) for row in bench_steps(task, lambda name: tell(f"{what}: {name}", False))]
        write_whole(entry, json.dumps(rows, indent=1, allow_nan=False).encode())
        tell(f"{what}: measured", True)
    return rows


def _beside_paper(row: dict[str, Any]) -> dict[str, Any]:
    """With the paper's seconds of an SGD epoch and its factor; ours stand on simulated devices, theirs on 8 GPUs."""
    names = row["model"].upper(), CORPORA[row["corpus"]]
    printed = next(one for one in TABLE_2 if (one.model, one.corpus) == names)
    factors = {"sgd": 1.0, "dp-sgd-naive": printed.dp_sgd_factor}
    factor = printed.edp_sgd_factor if (row["method"], row["gpus"]) == ("edp-sgd", NUM_GPUS) else None
    told = {"stands_for": printed.corpus, "paper_sgd_seconds": printed.sgd_seconds, "versions": versions()}
    return {**row, **told, "paper_ratio": factors.get(row["method"], factor)}


def _key(task: Task) -> str:
    machine = [platform.node(), platform.machine(), torch.get_num_threads(), torch.cuda.is_available()]
    told = [asdict(task), load_corpus(task.corpus).sha256, versions(), machine]
    return digest({}, json.dumps(told, sort_keys=True).encode(), *code_of(CODE))[:24]
