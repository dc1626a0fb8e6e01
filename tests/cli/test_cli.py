"""The command line as a person uses it: help, results, and one clear sentence for bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edp_lab.cli import main


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run ``edp-lab ARGS`` in this process: (exit status, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["edp-lab", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def rows(count: int = 60) -> list[dict[str, object]]:
    made = []
    for k in range(count):
        intent = ("call", "play")[k % 2]
        made.append({"tokens": [intent, str(k)], "tags": ["O", "B-number"], "intent": intent})
    return made


def write(path: Path, content: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return str(path)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write(tmp_path / "own.jsonl", rows())


SMALL = ("--size", "small", "--epochs", "1", "--batch-size", "16", "--gpus", "4")


def test_help_names_every_command(cli):
    status, out, _ = cli("--help")
    assert status == 0
    for command in ("train", "evaluate", "predict", "pretrain", "data", "course"):
        assert command in out


def test_train_evaluate_predict(cli, corpus, tmp_path):
    run = str(tmp_path / "run")
    status, out, err = cli("train", "--corpus", corpus, "--out", run, *SMALL, "--method", "edp-sgd", "--json")
    assert status == 0
    record = json.loads(out)
    assert record["config"]["num_devices"] == 4
    assert "epoch   1/1" in err
    status, out, _ = cli("evaluate", "--run", run, "--json")
    assert (status, json.loads(out)["ser"]) == (0, record["final"]["ser"])
    status, out, _ = cli("predict", "--run", run, "call 7", "play 9", "--json")
    assert status == 0
    assert [answer["text"] for answer in json.loads(out)] == ["call 7", "play 9"]


def test_summary_shows_the_claimed_and_the_true_epsilon(cli, corpus, tmp_path):
    status, out, _ = cli("train", "--corpus", corpus, "--out", str(tmp_path / "run"), *SMALL, "--as-printed")
    assert status == 0
    assert "the paper's accounting says epsilon" in out
    assert "had alpha and words come from public text" in out
    assert "guarantee: none" in out


BAD = {
    "unknown corpus": (["--corpus", "atsi"], "atis"),
    "unknown model": (["--model", "gpt"], "clc"),
    "unknown method": (["--method", "dp"], "edp-sgd"),
    "unknown decay": (["--decay", "cosine"], "exponential"),
    "unknown size": (["--size", "huge"], "paper"),
    "too many devices": (["--gpus", "16"], "--batch-size"),
    "no devices": (["--gpus", "0"], "devices"),
    "clip norm 0": (["--clip", "0"], "greater than 0"),
    "clip norm negative": (["--clip=-1"], "greater than 0"),
    "clip norm nan": (["--clip", "nan"], "greater than 0"),
    "z0 negative": (["--z0=-1"], "z0"),
    "tau negative": (["--tau=-0.1", "--decay", "linear"], "tau"),
    "delta 1": (["--delta", "1"], "delta"),
    "delta 0": (["--delta", "0"], "delta"),
    "no epochs": (["--epochs", "0"], "epochs"),
    "dropout 1": (["--dropout", "1"], "dropout"),
    "private alpha, sound": (["--alpha", "private"], "sound"),
    "public alpha without corpus": (["--alpha", "public"], "public:"),
    "alpha unknown": (["--alpha", "some"], "none"),
    "no such pretrained": (["--pretrained", "nowhere.vec"], "nowhere.vec"),
    "seed negative": (["--seed=-1"], "seed"),
    "not a number": (["--clip", "one"], "--clip"),
    "unknown option": (["--clipp", "1"], "clipp"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_option_is_one_sentence_and_writes_nothing(cli, corpus, tmp_path, case):
    options, expected = BAD[case]
    out_folder = tmp_path / "run"
    status, out, err = cli("train", "--corpus", corpus, "--out", str(out_folder), *SMALL, *options)
    assert status == 2, err
    assert expected in err
    assert "Traceback" not in err
    assert out == ""
    assert not out_folder.exists()


def broken(kind: str) -> str:
    good = [json.dumps(row) for row in rows()]
    if kind == "not JSON":
        good[6] = '{"tokens": ["call"'
    elif kind == "tags and tokens of different length":
        good[6] = json.dumps({"tokens": ["call", "me"], "tags": ["O"], "intent": "call"})
    elif kind == "no intent":
        good[6] = json.dumps({"tokens": ["call"], "tags": ["O"]})
    elif kind == "tag that is not BIO":
        good[6] = json.dumps({"tokens": ["call"], "tags": ["number"], "intent": "call"})
    return "\n".join(good) + "\n"


@pytest.mark.parametrize(
    "kind", ["not JSON", "tags and tokens of different length", "no intent", "tag that is not BIO"]
)
def test_malformed_line_is_named_by_file_and_number(cli, tmp_path, kind):
    path = tmp_path / "own.jsonl"
    path.write_text(broken(kind))
    status, _, err = cli("train", "--corpus", str(path), "--out", str(tmp_path / "run"), *SMALL)
    assert status == 2
    assert "own.jsonl" in err
    assert "line 7" in err
    assert not (tmp_path / "run").exists()


def test_empty_split_is_refused(cli, tmp_path):
    path = write(tmp_path / "own.jsonl", rows(2))
    status, _, err = cli("train", "--corpus", path, "--out", str(tmp_path / "run"), *SMALL)
    assert status == 2
    assert "empty" in err


def test_output_folder_that_holds_a_run_is_kept(cli, corpus, tmp_path):
    run = tmp_path / "run"
    assert cli("train", "--corpus", corpus, "--out", str(run), *SMALL)[0] == 0
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    status, _, err = cli("train", "--corpus", corpus, "--out", str(run), *SMALL)
    assert status == 2
    assert "--out" in err
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_damaged_model_and_missing_run_are_one_sentence(cli, corpus, tmp_path):
    run = tmp_path / "run"
    assert cli("evaluate", "--run", str(tmp_path / "nothing"))[0] == 2
    assert cli("train", "--corpus", corpus, "--out", str(run), *SMALL)[0] == 0
    weights = next((run / "model").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-9])
    for command in (("evaluate", "--run", str(run)), ("predict", "--run", str(run), "call 7")):
        status, _, err = cli(*command)
        assert status == 2
        assert err.startswith("error: ")
        assert len(err.splitlines()) == 1
    (run / "record.json").write_text("{")
    assert "damaged" in cli("evaluate", "--run", str(run))[2]
    (run / "record.json").write_text('{"config": {"corpus": "x"}, "guarantee": {"status": "none"}}')
    assert "damaged" in cli("evaluate", "--run", str(run))[2]


def test_make_smart_home_and_train_on_it(cli, tmp_path):
    path = tmp_path / "made.jsonl"
    assert cli("data", "make", "smart-home", "--utterances", "200", "--seed", "3", "--out", str(path))[0] == 0
    assert len(path.read_text().splitlines()) == 200
    assert cli("data", "make", "smart-home", "--out", str(path))[0] == 2
    assert cli("data", "make", "snips", "--out", str(tmp_path / "x.jsonl"))[0] == 2
    status, _, told = cli("data", "make", "smart-home", "--out", str(path / "packed"))
    assert (status, "cannot be written" in told) == (2, True)
    assert cli("train", "--corpus", str(path), "--out", str(tmp_path / "run"), *SMALL)[0] == 0


@pytest.mark.parametrize("option", ["--clip=nan", "--clip=-1", "--gpus=-3", "--decay=cosine", "--z0=-1"])
def test_plain_training_refuses_bad_options_too(cli, corpus, tmp_path, option):
    status, _, err = cli("train", "--corpus", corpus, "--out", str(tmp_path / "run"), "--method", "sgd", option)
    assert (status, len(err.splitlines()), (tmp_path / "run").exists()) == (2, 1, False)


def test_output_that_cannot_be_made_is_refused_before_training(cli, corpus):
    status, _, err = cli("train", "--corpus", corpus, "--out", f"{corpus}/run", *SMALL)
    assert status == 2
    assert "--out" in err


def test_data_list_names_every_corpus(cli):
    status, out, _ = cli("data", "list")
    assert status == 0
    for name in ("atis", "snips", "nlu-eval", "smart-home"):
        assert name in out


def test_interrupt_of_a_real_process_leaves_a_usable_run(corpus, tmp_path):
    """Ctrl-C (SIGINT) in the middle of training: status 130, a record that says so, a model that can be used."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "edp_lab", "train", "--corpus", corpus, "--out", str(run)]
    process = subprocess.Popen(
        [*command, *SMALL, "--epochs", "100000"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert process.stderr is not None
    for _ in range(3):
        process.stderr.readline()
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted" in err
    record = json.loads((run / "record.json").read_text())
    assert record["status"] == "interrupted"
    answer = subprocess.run(
        [sys.executable, "-m", "edp_lab", "predict", "--run", str(run), "call 7", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(answer.stdout)[0]["intent"] in ("call", "play")
