"""The command line as a person uses it: help, results, an interrupt; how its options are declared."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from edp_lab.cli import app as main_app
from edp_lab.cli.options import App, chosen, options_of
from edp_lab.cli.thesis import run as three_phase_run
from edp_lab.training import TrainConfig

SMALL = ("--size", "small", "--epochs", "1", "--batch-size", "16", "--gpus", "4")


@pytest.mark.parametrize("module", ["edp_lab.cli", "edp_lab.training.config"])
def test_the_command_line_starts_without_what_is_slow_to_import(module):
    source = f"import sys, {module}; print(sorted({{'torch', 'scipy', 'plotly', 'numpy'}} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


@pytest.mark.parametrize("command", ["account --z0 1", "account --sampling-rate 0.1 --tight", "table1-epsilon"])
def test_accounting_needs_no_torch(command):
    source = (
        "import sys; from edp_lab.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", source, *command.split(), "--json"], capture_output=True, check=True)


def test_privacy_needs_no_torch():
    source = (
        "import importlib, pkgutil, sys, edp_lab.privacy as p; "
        "[importlib.import_module(m.name) for m in pkgutil.iter_modules(p.__path__, 'edp_lab.privacy.')]; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", source], check=True)


# ---- Declaring options -----------------------------------------------------------------------------------------------


def test_train_has_an_option_for_each_field_with_the_help_that_stands_beside_it():
    options = {option.name: option for option in typer.main.get_command(main_app).commands["train"].params}
    hints = inspect.get_annotations(TrainConfig, eval_str=True)
    for field in dataclasses.fields(TrainConfig):
        option = options[{"clip_norm": "clip", "num_devices": "gpus"}.get(field.name, field.name)]
        if field.name != "corpus":  # which a run that is resumed does without
            assert (option.help, option.default) == (hints[field.name].__metadata__[0], field.default)


def test_three_phase_run_has_the_defaults_of_its_settings():
    from edp_lab.three_phase.phases import ThreePhaseSettings

    options = inspect.signature(three_phase_run).parameters
    for field in dataclasses.fields(ThreePhaseSettings):
        option = options[{"understudy_method": "understudy"}.get(field.name, field.name)]
        assert option.default == ("1,2,3" if field.name == "phases" else field.default)


def test_a_string_is_help_and_a_dataclass_stands_for_its_fields():
    @dataclasses.dataclass
    class Asked:
        name: Annotated[str, "Of whom."]
        clip_norm: Annotated[float, "How much."] = 2.0
        quiet: Annotated[bool, "Say little."] = False

    app, seen = App(), []

    @app.command()
    @options_of(Asked)
    def command(
        ctx: typer.Context, name: Annotated[str, "Whose."] = "Ada", *, last: Annotated[int, "The end."] = 1, **_: Any
    ) -> None:
        seen.append(chosen(ctx, Asked, name=name.upper()))

    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert [shown.index(word) for word in ("Whose", "How much", "Say little", "The end")] == sorted(
        shown.index(word) for word in ("Whose", "How much", "Say little", "The end")
    )
    assert "--no-quiet" not in shown
    assert CliRunner().invoke(app, ["--clip", "3", "--quiet"]).exit_code == 0
    assert seen == [Asked("ADA", 3.0, True)]


# ---- Results ---------------------------------------------------------------------------------------------------------


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


def test_make_smart_home_and_train_on_it(cli, tmp_path):
    path = tmp_path / "made.jsonl"
    assert cli("data", "make", "smart-home", "--utterances", "200", "--seed", "3", "--out", str(path))[0] == 0
    assert len(path.read_text().splitlines()) == 200
    assert cli("train", "--corpus", str(path), "--out", str(tmp_path / "run"), *SMALL)[0] == 0


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
