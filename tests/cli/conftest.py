"""Fixtures: a corpus for ``edp-lab``, and a run."""

import json
from pathlib import Path

import pytest

from edp_lab.training.config import TrainConfig
from edp_lab.training.session import train


def write_rows(path: Path, count: int = 60) -> Path:
    """Write utterances such as "call 7" as JSON lines, with an intent and a slot."""
    rows = []
    for k in range(count):
        intent = ("call", "play")[k % 2]
        rows.append({"tokens": [intent, str(k)], "tags": ["O", "B-number"], "intent": intent})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def noised(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with noise on this corpus, which tests must not change."""
    folder = tmp_path_factory.mktemp("noised") / "run"
    train(TrainConfig(corpus, size="small", epochs=1, batch_size=16, num_devices=4, z0=0.5), folder)
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_rows(tmp_path_factory.mktemp("corpus") / "own.jsonl"))
