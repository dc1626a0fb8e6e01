"""``edp-lab`` in this process, and a corpus to run it on."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edp_lab.cli import main
from edp_lab.training import TrainConfig, train

Cli = Callable[..., tuple[int, str, str]]
OutputOf = Callable[..., tuple[str, str]]


def write_rows(path: Path, count: int = 60) -> Path:
    """Utterances such as "call 7" as JSON lines, with an intent and a slot."""
    rows = []
    for k in range(count):
        intent = ("call", "play")[k % 2]
        rows.append({"tokens": [intent, str(k)], "tags": ["O", "B-number"], "intent": intent})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def cli(monkeypatch, capsys) -> Cli:
    """Run ``edp-lab ARGS``: (exit status, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["edp-lab", *arguments])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def output_of(cli: Cli) -> OutputOf:
    """Run ``edp-lab ARGS``, which must end with a status, 0 unless said otherwise: (stdout, stderr)."""

    def run(*arguments: str, status: int = 0) -> tuple[str, str]:
        ended, out, err = cli(*arguments)
        assert ended == status, err
        return out, err

    return run


@pytest.fixture(scope="session")
def noised(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run on it, with noise; not to be changed."""
    folder = tmp_path_factory.mktemp("noised") / "run"
    train(TrainConfig(corpus, size="small", epochs=1, batch_size=16, num_devices=4, z0=0.5), folder)
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_rows(tmp_path_factory.mktemp("corpus") / "own.jsonl"))
