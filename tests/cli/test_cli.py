"""The command line as a person uses it: results, and how its options are declared."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from edp_lab.cli import app as main_app
from edp_lab.cli.options import App, chosen, option_name, options_of
from edp_lab.cli.thesis import run as three_phase_run
from edp_lab.training import TrainConfig

SMALL = ("--size", "small", "--epochs", "1", "--batch-size", "16", "--gpus", "4")
ALL_OF_PRIVACY = (
    "import importlib, pkgutil, edp_lab.privacy as p; "
    "[importlib.import_module(m.name) for m in pkgutil.iter_modules(p.__path__, 'edp_lab.privacy.')]"
)
CALL = "from edp_lab.cli import app; app('{} --json'.split(), standalone_mode=False)"
TRAIN = " ".join(("train --corpus smart-home --out run", *SMALL))


@pytest.mark.parametrize(
    ("source", "slow"),
    [
        ("import edp_lab.cli", {"torch", "scipy", "plotly", "numpy", "jinja2"}),
        ("import edp_lab.training.config", {"torch", "scipy", "plotly", "numpy"}),
        ("import edp_lab.reproduce.compare, edp_lab.training.run_folder", {"torch"}),
        (ALL_OF_PRIVACY, {"torch"}),
        (CALL.format("account --z0 1"), {"torch"}),
        (CALL.format("account --sampling-rate 0.1 --tight"), {"torch"}),
        (CALL.format("table1-epsilon"), {"torch"}),
        (
            CALL.format(TRAIN),
            {"torch._dynamo", "transformers", "gensim", "pandas"},
        ),
    ],
)
def test_nothing_slow_is_imported_before_it_is_needed(source, slow, tmp_path):
    source = f"{source}; import sys; assert not {slow} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, check=True)


# ---- Declaring options -----------------------------------------------------------------------------------------------


def test_train_has_an_option_for_each_field_with_the_help_that_stands_beside_it():
    options = {option.name: option for option in typer.main.get_command(main_app).commands["train"].params}
    hints = inspect.get_annotations(TrainConfig, eval_str=True)
    for field in dataclasses.fields(TrainConfig):
        option = options[option_name(field.name)]
        if field.name != "corpus":  # which a run that is resumed does without
            assert (option.help, option.default) == (hints[field.name].__metadata__[0], field.default)


def test_three_phase_run_has_the_defaults_of_its_settings():
    from edp_lab.three_phase.settings import ThreePhaseSettings

    options = inspect.signature(three_phase_run).parameters
    for field in dataclasses.fields(ThreePhaseSettings):
        default = options[option_name(field.name)].default
        assert default == ("1,2,3" if field.name == "phases" else field.default)


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
    places = [shown.index(word) for word in ("Whose", "How much", "Say little", "The end")]
    assert places == sorted(places)
    assert "--no-quiet" not in shown
    assert CliRunner().invoke(app, ["--clip", "3", "--quiet"]).exit_code == 0
    assert seen == [Asked("ADA", 3.0, True)]


# ---- Results ---------------------------------------------------------------------------------------------------------


def test_train_evaluate_predict(cli, corpus, tmp_path):
    run = str(tmp_path / "run")
    status, out, err = cli("train", "--corpus", corpus, "--out", run, *SMALL, "--method", "edp-sgd", "--json")
    assert status == 0
    record = json.loads(out)
    assert record["config"]["num_devices"] == 4
    assert "epoch   1/1" in err
    assert json.loads(cli("evaluate", "--run", run, "--json")[1])["ser"] == record["final"]["ser"]
    answers = json.loads(cli("predict", "--run", run, "call 7", "play 9", "--json")[1])
    assert [answer["text"] for answer in answers] == ["call 7", "play 9"]


def test_summary_shows_the_claimed_and_the_true_epsilon(cli, corpus, tmp_path):
    status, out, _ = cli("train", "--corpus", corpus, "--out", str(tmp_path / "run"), *SMALL, "--as-printed")
    assert status == 0
    for said in ("the paper's accounting says epsilon", "alpha and words come from public text", "guarantee: none"):
        assert said in out


def test_corpora_are_made_trained_on_and_listed(cli, tmp_path):
    path = tmp_path / "made.jsonl"
    assert cli("data", "make", "smart-home", "--utterances", "200", "--seed", "3", "--out", str(path))[0] == 0
    assert len(path.read_text().splitlines()) == 200
    assert cli("train", "--corpus", str(path), "--out", str(tmp_path / "run"), *SMALL)[0] == 0
    rows, shown = json.loads(cli("data", "list", "--json")[1]), cli("data", "list")[1]
    assert {"atis", "snips", "nlu-eval", "smart-home"} <= {row["name"] for row in rows}
    assert all(row["name"] in shown and row["licence"] in shown for row in rows)
