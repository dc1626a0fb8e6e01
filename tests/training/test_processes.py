"""Real processes compute the same parameters as one process that simulates them, for any model, method and noise.

Starting a rank takes seconds, so the ranks of one launch process all cases in turn: they execute this file.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.errors import UsageError
from edp_lab.training.config import TrainConfig
from edp_lab.training.launch import Ranks
from edp_lab.training.private_step import agree
from edp_lab.training.run_files import read_record, run_ledger
from edp_lab.training.session import train
from edp_lab.training.trainer import Trainer
from tests.training.own_corpus import write_corpus, write_encoder

pytestmark = pytest.mark.usefixtures("one_thread")
HERE = Path(__file__)
EPOCHS, STEPS = 2, 10
KEY = 2**127 + 12345
CORPUS, ENCODER = "own.jsonl", "encoder"
CASES: dict[str, dict[str, Any]] = {
    "CLC as printed": {"as_printed": True},
    "CLC sound": {},
    "BERT as printed": {"model": "bert", "as_printed": True},
    "BERT sound": {"model": "bert", "pretrained": ENCODER},
    "plain SGD": {"method": "sgd"},
    "DP-SGD": {"method": "dp-sgd"},
    "five devices": {"num_devices": 5, "as_printed": True},
    "aggregate noise": {"noise": "aggregate"},
    "micro-batches": {"micro_batch_size": 3, "sampling": "poisson", "noise": "aggregate"},
}


def cases(processes: int) -> list[str]:
    """The cases; BERT, whose import takes seconds, is tested only with two processes."""
    return [case for case, changes in CASES.items() if processes == 2 or changes.get("model") != "bert"]


def config(folder: Path, processes: int, **changes: Any) -> TrainConfig:
    """Five steps per epoch, with batches of 20 and a last one of 19. If a gradient is 0, Adam turns its rounding error
    into a change of lr / 1e-8 times that error; hence the low learning rate."""
    settings: dict[str, Any] = {"num_devices": 4, "batch_size": 20, "epochs": EPOCHS, "size": "small", "lr": 1e-3}
    settings |= {"precision": "float64", "noise": "per-device", "dropout": 0.3, "processes": processes, **changes}
    if "pretrained" in settings:
        settings["pretrained"] = str(folder / settings["pretrained"])
    return TrainConfig(corpus=str(folder / CORPUS), **settings)


def trained(folder: Path, case: str, accelerator: Accelerator | None = None) -> tuple[Tensor, Trainer]:
    """All parameters after training."""
    corpus = load_corpus(folder / CORPUS)
    settings = config(folder, 1 if accelerator is None else accelerator.num_processes, **CASES[case])
    run = Trainer(settings, corpus, split(corpus, 0), accelerator, KEY)
    while run.progress.epoch < EPOCHS:
        assert run.epoch()
    assert run.progress.step == STEPS
    return torch.cat([p.detach().flatten() for _, p in run.parameters]), run


def main(argument: str, stop: threading.Event) -> None:
    """Train each case in one rank. Rank 0 writes the parameters and prints the scores."""
    folder = Path(argument)
    accelerator = Accelerator(cpu=True)
    for case in cases(accelerator.num_processes):
        parameters, run = trained(folder, case, accelerator)
        digest = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()
        agree(accelerator, digest, f"parameters in the case {case}")
        if accelerator.is_main_process:
            torch.save(parameters, folder / f"{case} {accelerator.num_processes}.pt")
            print(json.dumps([case, run.record["devices"], run.progress.rows]), flush=True)
    with pytest.raises(UsageError, match="the processes have different ranks"):
        agree(accelerator, accelerator.process_index, "ranks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of 99 training utterances, and an encoder."""
    folder = tmp_path_factory.mktemp("processes")
    write_encoder(folder / ENCODER, [json.loads(row)["tokens"] for row in write_corpus(folder / CORPUS, 220).open()])
    return folder


@pytest.fixture(scope="module")
def simulated(folder: Path) -> dict[str, tuple[Tensor, list[dict[str, Any]]]]:
    return {case: (parameters, run.progress.rows) for case in CASES for parameters, run in [trained(folder, case)]}


def scores(rows: list[dict[str, Any]]) -> list[float]:
    return [row[name] for row in rows for name in ("loss", "ser", "intent_accuracy", "slot_f1")]


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.long)])
def test_real_processes_give_the_parameters_and_scores_of_the_simulation(folder, simulated, processes, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE.parent), str(HERE.parents[2])]))
    with Ranks(processes, f"{HERE.stem}:main", str(folder), threads=1) as ranks:
        told = {case: (devices, rows) for case, devices, rows in map(json.loads, ranks.lines())}
    differences = {}
    for case in cases(processes):
        parameters, rows = simulated[case]
        differences[case] = float((torch.load(folder / f"{case} {processes}.pt") - parameters).abs().max())
        assert scores(told[case][1]) == pytest.approx(scores(rows), rel=1e-9), case
    assert max(differences.values()) < 1e-9, differences
    noise = float((simulated["aggregate noise"][0] - simulated["CLC sound"][0]).abs().max())
    assert noise > 1e-3  # the noise is large enough to matter in the comparison
    many = f"{processes} processes"
    assert told["CLC sound"][0] == f"4 devices: {many}, {4 - processes} simulated"
    assert told["five devices"][0] == f"5 devices: {many}, {5 - processes} simulated"
    assert told["plain SGD"][0] == many


@pytest.mark.parametrize(("started", "asked"), [(2, 3), (2, 1), (1, 2)])
def test_another_number_of_processes_than_asked_for_is_refused_in_one_sentence(folder, monkeypatch, started, asked):
    """Immediately, before they wait for processes that never start."""
    for name, value in {"WORLD_SIZE": started, "RANK": 0, "LOCAL_RANK": 0, "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UsageError, match=f"{started} processes take part, but --processes asks for {asked}: start"):
        train(config(folder, asked), folder / "run")
    assert not (folder / "run").exists()


def test_a_launcher_may_start_the_processes_and_hears_one_summary(folder, simulated):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    options = f"--method edp-sgd --processes 2 --gpus 4 --batch-size 20 --epochs {EPOCHS} --size small --lr 1e-3"
    options += f" --precision float64 --corpus {folder / CORPUS} --out {folder / 'launched'}"
    command = [*launcher, "-m", "edp_lab", "train", *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parents[2], timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("not private") == done.stdout.count("SER") == 1
    assert done.stderr.count(f"epoch   {EPOCHS}/{EPOCHS}") == 1
    record = read_record(folder / "launched")
    assert (record["status"], record["world_size"]) == ("finished", 2)
    assert record["devices"] == "4 devices: 2 processes, 2 simulated"
    assert len(run_ledger(folder / "launched").releases) == STEPS
    alone = train(config(folder, 1, noise="aggregate"), folder / "alone")
    assert scores(record["epochs"]) == pytest.approx(scores(alone["epochs"]), rel=1e-9)
