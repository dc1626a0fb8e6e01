"""The command line as a user sees it: results, and the declaration of options."""

import ast
import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from edp_lab.__main__ import app as main_app
from edp_lab.cli import terminal
from edp_lab.cli.terminal import App, chosen, options_of
from edp_lab.corpora.catalog import load_corpus
from edp_lab.training.config import TrainConfig, option_name

SMALL = ("--size", "small", "--epochs", "1", "--batch-size", "16", "--gpus", "4")
ALL_OF_PRIVACY = (
    "import importlib, pkgutil, edp_lab.privacy as p; "
    "[importlib.import_module(m.name) for m in pkgutil.iter_modules(p.__path__, 'edp_lab.privacy.')]"
)
CALL = "from edp_lab.__main__ import app; app('{} --json'.split(), standalone_mode=False)"


@pytest.mark.parametrize(
    ("source", "slow"),
    [
        ("import edp_lab.__main__", {"torch", "scipy", "plotly", "numpy", "jinja2"}),
        ("import edp_lab.training.config", {"torch", "scipy", "plotly", "numpy"}),
        (ALL_OF_PRIVACY, {"torch"}),
        (CALL.format("reproduce epsilons"), {"torch"}),
        (
            CALL.format(f"train --corpus smart-home --method edp-sgd --out run {' '.join(SMALL)}"),
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
        if field.name != "corpus":  # a resumed run does not need it
            assert (option.help, option.default) == (hints[field.name].__metadata__[0], field.default)


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


def test_train_evaluate_predict(output_of, corpus, tmp_path):
    run = str(tmp_path / "run")
    out, err = output_of("train", "--corpus", corpus, "--out", run, *SMALL, "--method", "edp-sgd", "--json")
    record = json.loads(out)
    assert record["config"]["num_devices"] == 4
    assert "epoch   1/1" in err
    assert json.loads(output_of("evaluate", "--run", run, "--json")[0])["ser"] == record["final"]["ser"]
    answers = json.loads(output_of("predict", "--run", run, "call 7", "play 9", "--json")[0])
    assert [answer["text"] for answer in answers] == ["call 7", "play 9"]


def test_summary_shows_the_claimed_and_the_true_epsilon(output_of, corpus, tmp_path):
    out, _ = output_of("train", "--corpus", corpus, "--out", str(tmp_path / "run"), *SMALL, "--as-printed")
    for said in ("claimed epsilon", "if alpha and words were public", "guaranteed epsilon  none"):
        assert said in out


@pytest.mark.parametrize("name", ["made.jsonl", "missing/made.jsonl.gz"])
def test_corpora_are_made_trained_on_and_listed(cli, tmp_path, name):
    path = tmp_path / name
    assert cli("data", "make", "smart-home", "--utterances", "200", "--seed", "3", "--out", str(path))[0] == 0
    assert len(load_corpus(path).utterances) == 200
    assert cli("train", "--corpus", str(path), "--method", "edp-sgd", "--out", str(tmp_path / "run"), *SMALL)[0] == 0
    rows, shown = json.loads(cli("data", "list", "--json")[1]), cli("data", "list")[1]
    assert {"atis", "snips", "nlu-eval", "smart-home"} <= {row["name"] for row in rows}
    assert all(row["name"] in shown and row["licence"] in shown for row in rows)


# ---- On a terminal and in a spreadsheet ------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
HOSTILE = "go\x1b[31mred\x07\u202egnp.\x9b2J[bold]x[/bold]"
HARMLESS = "go\\u001b[31mred\\u0007\\u202egnp.\\u009b2J[bold]x[/bold]"


def test_what_a_corpus_holds_does_not_command_a_terminal(capsys):
    terminal.echo(HOSTILE)
    terminal.print_json([HOSTILE.replace("\x1b", "")])
    terminal.Screen().print(HOSTILE)
    terminal.Screen().table([["name", "x"], [HOSTILE, "1"]])
    printed = capsys.readouterr().out
    assert printed.count(HARMLESS) == 3
    assert "\\u202e" in printed
    assert not terminal.UNSAFE.search(printed)


def test_all_that_is_printed_goes_through_what_escapes_it():
    for path in (ROOT / "edp_lab" / "cli").glob("*.py"):
        called = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        direct = [one for one in called if isinstance(one, ast.Name) and one.id == "print"]
        assert len(direct) == {"terminal.py": 1, "__init__.py": 1}.get(path.name, 0), path.name


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize(
    "command",
    ["account --decay linear", "account --as-printed", "reproduce epsilons", "evaluate --run RUN",
     "compare RUN", "data list", "audit mechanism --draws 100"],
)  # fmt: skip
def test_what_is_printed_fits_a_narrow_terminal(cli, monkeypatch, noised, command, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = cli(*command.replace("RUN", str(noised)).split())
    long = [line for line in out.splitlines() if len(line) > columns and len(line.split()) > 2]  # not paths or names
    assert (status, long) == (0, [])
