"""Machine faults and damaged files: one sentence with the file and a fix, no traceback, and no incomplete file."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from edp_lab.corpora import catalog
from edp_lab.errors import UsageError
from edp_lab.files import PARTIAL, write_whole
from edp_lab.training import checkpoint
from edp_lab.training.build import make_optimizer
from edp_lab.training.config import TrainConfig
from edp_lab.training.ledger import LEDGER
from edp_lab.training.run_files import RECORD, STATE, read_record
from edp_lab.training.session import resume

DEEP = b"[" * 100_000 + b"]" * 100_000
DIGITS = b'{"sha256": %s}' % (b"1" * 5_000)  # more digits than Python converts to a number
FULL = "error: a file: No space left on device: free some space there, then try again\n2\n"


@pytest.fixture
def run(noised: Path, tmp_path: Path) -> Path:
    return shutil.copytree(noised, tmp_path / "run")


# ---- Standard output and error ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("EDP account --z0 1 --json > /dev/full", FULL),
        ("PYTHONUNBUFFERED=1 EDP --version > /dev/full", FULL),
        ("(EDP --help; echo $? >&2) | true", "1\n0\n"),  # no error: the reader has closed the pipe
    ],
)
def test_output_that_cannot_be_written_is_one_sentence(script, said):
    script = f"{script}; echo $? >&2".replace("EDP", f"{sys.executable} -m edp_lab")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert (ended.stdout, ended.stderr) == ("", said)


def test_a_run_whose_summary_cannot_be_printed_is_said_to_be_whole(cli, corpus, tmp_path, monkeypatch):
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(sys.modules["edp_lab.cli.train"], "answer", full)
    out = str(tmp_path / "run")
    status, _, err = cli("train", "--corpus", corpus, "--out", out, "--z0", "1", "--size", "small", "--epochs", "1")
    said = f"error: standard output cannot be written (No space left on device): the run is saved in {out}, "
    said += f"and edp-lab compare {out} prints its results"
    assert (status, err.splitlines()[-1]) == (2, said)


def test_no_character_is_too_much_for_a_terminal(tmp_path):
    path = tmp_path / "caf\xe9.jsonl"
    call = [sys.executable, "-m", "edp_lab", "data", "make", "smart-home", "--utterances", "1", "--out", path]
    made = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (made.returncode, made.stdout.strip()) == (0, str(path).replace("\xe9", r"\xe9"))


# ---- Handling of errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError(13, "Permission denied", "a.json"),
            "a.json: Permission denied: change its permissions, or give",
        ),
        (OSError(28, "No space left on device"), "a file: No space left on device: free some space"),
        (
            OSError("Cannot load x.so. It may be this. Or that.: mend"),
            "Cannot load x.so: fix this, or allow more memory",
        ),
        (MemoryError(), "out of memory: request less at a time"),
    ],
)
def test_a_fault_of_the_machine_is_one_sentence(cli, monkeypatch, error, said):
    def fails():
        raise error

    monkeypatch.setattr(catalog, "list_corpora", fails)
    status, out, err = cli("data", "list")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {said}")


def test_a_fault_of_the_library_keeps_its_traceback(cli, monkeypatch):
    monkeypatch.delattr(catalog, "list_corpora")
    with pytest.raises(ImportError):
        cli("data", "list")


@pytest.mark.parametrize(
    "call",
    [
        "data make smart-home --out loop/x.jsonl",
        "train --method sgd --corpus loop --out new",
    ],
)
def test_a_link_to_itself_is_named(cli, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    status, out, err = cli(*call.split())
    assert (status, out, err.count("\n"), os.listdir()) == (2, "", 1, ["loop"])
    assert "loop" in err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ACCELERATE_TORCH_DEVICE", "cuda:99"),
        pytest.param("ACCELERATE_USE_DEEPSPEED", "true", marks=pytest.mark.long),
    ],
)
def test_what_accelerate_is_told_and_cannot_do_is_named(corpus, tmp_path, name, value):
    command = [sys.executable, "-m", "edp_lab", "train", "--corpus", corpus, "--out", "new", "--z0", "1"]
    how = {"capture_output": True, "text": True, "cwd": tmp_path, "env": {**os.environ, name: value}}
    ended = subprocess.run([*command, "--size", "small", "--gpus", "4"], check=False, **how)
    assert (ended.returncode, ended.stderr.count("\n"), os.listdir(tmp_path)) == (2, 1, [])
    assert ended.stderr.endswith(f"unset or fix {name}\n")


# ---- Damaged files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [DEEP, DIGITS])
@pytest.mark.parametrize(
    ("file", "call"),
    [
        (RECORD, "train --resume run"),
        (RECORD, "compare run"),
        (LEDGER, "account --run run"),
        ("model/model.json", "predict --run run hello"),
        ("corpus.jsonl", "train --method sgd --corpus run/corpus.jsonl --out new"),
    ],
)
def test_what_is_nested_without_end_or_too_long_a_number_is_named(cli, run, monkeypatch, file, call, content):
    monkeypatch.chdir(run.parent)
    (run / file).write_bytes(content)
    status, _, err = cli(*call.split())
    assert (status, err.count("\n"), (run.parent / "new").exists()) == (2, 1, False)
    assert Path(file).name in err


@pytest.mark.parametrize(
    ("setting", "value"),
    [("alpha", []), ("pretrained", True), ("private_seed", float("nan")), ("epochs", "3")],
)
def test_a_setting_of_another_kind_or_version_is_refused(run, setting, value):
    told = json.loads((run / RECORD).read_text())
    told["config"]["lr"] = 1
    assert TrainConfig.from_record(told).lr == 1
    with pytest.raises(UsageError, match=f"{setting} is .*: it must be"):
        TrainConfig.from_record({"config": {**told["config"], setting: value}})
    with pytest.raises(UsageError, match="the run was made by another version of edp_lab"):
        TrainConfig.from_record({"config": {**told["config"], "unknown": value}})


def test_every_changed_bit_of_a_record_shows_or_means_nothing(run):
    path, record = run / RECORD, read_record(run)
    raw = path.read_bytes()
    for place in range(0, len(raw), 11):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1 << place % 7]) + raw[place + 1 :])
        try:
            found = read_record(run)
        except UsageError:
            continue
        assert found == record


@pytest.mark.parametrize(
    ("position", "tensors"),
    [
        ({"epoch": -5}, {}),
        ({"step": "x"}, {}),
        ({"rows": 3}, {}),
        ({"step_in_epoch": 10**6}, {}),
        ({"step_in_epoch": 5, "step": 10}, {}),
        ({}, {"parameter/weight": torch.ones(1)}),
        ({}, {"parameter/weight": torch.ones(2, 3).bfloat16()}),
        ({}, {"optimizer/0/exp_avg": torch.ones(1)}),
        ({}, {"optimizer/0/exp_avg": torch.ones(2, 3).long()}),
        ({}, {"optimizer/9/exp_avg": torch.ones(2, 3)}),
        ({}, {"optimizer/x": torch.ones(2, 3)}),
        ({}, {"alpha": torch.ones(7)}),
    ],
)
def test_a_state_that_no_run_can_have_is_refused(tmp_path, position, tensors):
    layer = torch.nn.Linear(3, 2)
    parameters = [*layer.named_parameters()]
    optimizer = make_optimizer("adam", [*layer.parameters()], 0.1)
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    rows = [{"loss": 1.0, "seconds": 1.0}]
    reached = checkpoint.RunPosition(1, 2, 7, rows=rows)
    checkpoint.save_state(tmp_path, reached, parameters, optimizer, torch.ones(2))
    assert checkpoint.load_state(tmp_path, parameters, optimizer, 5)[0] == reached
    told = json.dumps({**vars(reached), **position})
    content = {**load_file(tmp_path / STATE), **tensors}
    sha256 = "" if "bfloat16" in str(tensors) else checkpoint.digest(content, told.encode())
    save_file(content, tmp_path / STATE, {"progress": told, "sha256": sha256})
    with pytest.raises(UsageError, match="does not belong to this run or version: start a new run"):
        checkpoint.load_state(tmp_path, parameters, optimizer, 5)


# ---- Full disks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "data make smart-home --out new.jsonl",
        "data make smart-home --out new.jsonl.gz",
        "pretrain --out new --model clc --utterances 50 --epochs 1 --size small",
        "pretrain --out new --model bert --utterances 50 --epochs 1 --size small",
    ],
)
def test_a_full_disk_leaves_no_half_of_a_file(cli, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would leave incomplete bytecode files
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))
    try:
        status, out, err = cli(*call.split())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = err.splitlines()[-1]
    assert (status, out, [*tmp_path.iterdir()]) == (2, "", [])
    assert said.startswith("error: ")
    assert "cannot be written" in said
    assert "free some space" in said


def test_what_lies_beside_a_file_is_not_in_the_way_and_stays(tmp_path):
    os.mkfifo(tmp_path / "table.csv.partial")
    (tmp_path / "mine").write_text("mine")
    for name in ("table.csv", "x" * 255):
        write_whole(tmp_path / name, b"content")
        assert (tmp_path / name).read_bytes() == b"content"
    assert {*os.listdir(tmp_path)} == {"table.csv", "table.csv.partial", "x" * 255, "mine"}


def test_processes_that_write_one_file_at_the_same_time_all_do(tmp_path):
    code = "import sys; from pathlib import Path; from edp_lab.files import write_whole\nsys.stdin.read()\n"
    code += "for _ in range(300): write_whole(Path(sys.argv[1]), sys.argv[2].encode() * 100_000)"
    path, pipes = tmp_path / "table.csv", {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    writers = [subprocess.Popen([sys.executable, "-c", code, path, letter], **pipes) for letter in "ab"]
    for writer in writers:
        writer.stdin.close()
    while any(writer.poll() is None for writer in writers):
        assert not path.exists() or (len(found := path.read_bytes()), len({*found})) == (100_000, 1)
    assert [writer.stderr.read() for writer in writers] == [b"", b""]
    assert os.listdir(tmp_path) == ["table.csv"]


def test_a_pipe_stays_a_pipe(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(UsageError, match="is a pipe or a device: give a file"):
        write_whole(pipe, b"content")
    assert pipe.is_fifo()


def test_what_a_user_puts_into_a_run_stays_and_what_a_killed_run_left_goes(run):
    (run / "my.partial").touch()
    (run / "model" / f"{PARTIAL}folder").mkdir()
    (run / "model" / f"{PARTIAL}weights").touch()
    resume(run)
    assert (run / "my.partial").exists()
    assert [path.name for path in run.rglob(f"{PARTIAL}*")] == [f"{PARTIAL}folder"]
