"""A corpus of the user's own, small enough to be learnt in seconds, and how the tests train on it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from edp_lab.training import TrainConfig

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


def config(corpus: str | Path, **changes: object) -> TrainConfig:
    settings = {"size": "small", "epochs": 2, "batch_size": 16, "num_devices": 4, "lr": 1e-2, **changes}
    return TrainConfig(corpus=str(corpus), **settings)  # type: ignore[arg-type]
