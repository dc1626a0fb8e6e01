"""A small corpus of the user's own that is learnt in seconds, an encoder, and helper functions for training tests."""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edp_lab.training.config import TrainConfig
from edp_lab.training.run_files import MODEL, read_record, run_ledger

NAMES = ("anna", "bob", "carla", "dev", "eve", "fred")


def write_corpus(path: Path, utterances: int = 120, tags: bool = True, first: int = 0) -> Path:
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for k in range(first, first + utterances):
            if rng.random() < 0.5:
                tokens, labels, intent = ["call", str(rng.choice(NAMES)), str(k)], ["O", "B-name", "B-number"], "call"
            else:
                tokens, labels, intent = ["play", "song", str(k)], ["O", "O", "B-title"], "play"
            row = {"tokens": tokens, "tags": labels, "intent": intent}
            if not tags:
                del row["tags"]
            file.write(json.dumps(row) + "\n")
    return path


def write_encoder(folder: Path, texts: Sequence[Sequence[str]], layers: int = 1) -> str:
    """Write an untrained BERT, which is too small to be useful; private training requires pretrained weights."""
    from transformers import BertForMaskedLM  # this takes seconds, so import it only here

    from edp_lab.corpora.encoding import train_wordpieces
    from edp_lab.models.bert import BertSize, bert_config

    tokenizer = train_wordpieces(texts)
    size = BertSize(layers=layers, heads=2, hidden=16, intermediate=32, positions=24)
    torch.manual_seed(1)
    BertForMaskedLM(bert_config(size.architecture(tokenizer.get_vocab_size()))).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def config(corpus: str | Path, **changes: object) -> TrainConfig:
    settings = {"size": "small", "epochs": 2, "batch_size": 16, "num_devices": 4, "lr": 1e-2, **changes}
    return TrainConfig(corpus=str(corpus), **settings)  # type: ignore[arg-type]


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Return whether the condition became true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def runs(pid: int) -> bool:
    """Whether a process runs; a terminated orphan that has not been reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def contents(folder: Path) -> dict[str, int]:
    """Hashes of all files except the lock, whose content is irrelevant."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): hash(path.read_bytes()) for path in files}


def result(folder: Path) -> dict[str, Any]:
    """The parts of a finished run that must not depend on interruptions."""
    record, ledger = read_record(folder), run_ledger(folder)
    rows = [{**row, "seconds": None} for row in (*record["epochs"], record["final"])]
    told = {name: record[name] for name in ("status", "keys", "guarantee")}
    files = sorted(os.listdir(folder)), contents(folder / MODEL)
    return {"rows": rows, "files": files, "releases": ledger.releases, "bill": ledger.releases_by_epoch(), **told}
