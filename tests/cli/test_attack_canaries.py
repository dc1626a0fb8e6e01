"""``edp-lab attack canaries`` as a person uses it: a table, JSON, progress, and one sentence for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from edp_lab.cli.attack import canaries
from edp_lab.corpora import smart_home
from edp_lab.errors import UsageError

ROOT = Path(__file__).parents[2]
METHODS = ["sgd", "edp-sgd-as-printed", "edp-sgd", "dp-sgd"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "tiny.jsonl"
    smart_home.write_jsonl(smart_home.generate(450, 5), path)
    return str(path)


@pytest.fixture
def cli(corpus, monkeypatch, capsys):
    """Run the command on the tiny corpus, on a terminal of 80 columns: (stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "80")
    app = typer.Typer()
    app.command()(canaries)

    def run(*arguments: str) -> tuple[str, str]:
        app(["--corpus", corpus, "--epochs", "1", "--references", "99", *arguments], standalone_mode=False)
        return capsys.readouterr()

    return run


def test_json_has_a_row_for_each_method_and_repetition_count(cli):
    out, err = cli("--repetitions", "0,2", "--canaries", "3", "--z0", "2", "--json")
    told = json.loads(out)
    assert told["fillings"] == 100
    assert (told["settings"]["z0"], told["settings"]["size"]) == (2.0, "small")
    assert [(row["method"], row["repetitions"]) for row in told["rows"]] == [(m, k) for m in METHODS for k in (0, 2)]
    sgd, printed, sound, per_example = (row for row in told["rows"] if row["repetitions"] == 2)
    assert [sgd["epsilon"], printed["epsilon"]] == [None, None]
    assert "alpha comes from private gradients" in printed["reason"]
    assert printed["epsilon_claimed"] > 0
    for row in (sound, per_example):
        assert row["epsilon"] > 0
        assert 0.01 < row["extraction_limit"] < 1
    assert all(len(row["exposures"]) == 3 and row["trace"] for row in told["rows"])
    assert [line for line in err.splitlines() if line in METHODS] == METHODS
    assert err.count("epoch   1/1") == 4


def test_table_fits_a_narrow_terminal_and_says_what_holds(cli):
    out, _ = cli(
        "--methods", "sgd,edp-sgd-as-printed,edp-sgd", "--repetitions", "0,1,16", "--canaries", "2", "--z0", "4"
    )
    lines = out.splitlines()
    head = next(line.split() for line in lines if line.startswith("method"))
    assert head == ["method", "copies", "exposure", "95", "%", "extracted", "95", "%", "epsilon"]
    rows = [line.split() for line in lines if "/2" in line]
    assert [row[-1] for row in rows[:6]] == ["-", "none", "none", "-", "none", "none"]
    assert float(rows[7][-1]) < float(rows[8][-1])
    assert "…" not in out
    assert "no guarantee for sgd: trained without clipping and noise" in out
    assert "no guarantee for edp-sgd-as-printed: alpha comes from private gradients" in out
    assert "edp-sgd, 1 copy: by the guarantee at most" in out
    assert "had the seed been secret" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repetitions", "1;4"], "--repetitions is '1;4'"),
        (["--repetitions", "1,1"], "given twice"),
        (["--methods", "sgd,adam"], "unknown method 'adam'"),
        (["--canaries", "1"], "at least 2"),
        (["--size", "huge"], "unknown size 'huge'"),
        (["--corpus", "smart-hom"], "did you mean smart-home"),
        (["--seed", "-1"], "seed -1 is negative"),
        (["--z0", "-1"], "z0 is -1"),
    ],
    ids=lambda told: " ".join(told)[:30] if isinstance(told, list) else "",
)
def test_bad_input_is_refused_before_anything_is_trained(cli, capsys, arguments, message):
    with pytest.raises(UsageError, match=message) as refused:
        cli(*arguments)
    assert "\n" not in str(refused.value)
    assert capsys.readouterr().err == ""


def test_importing_the_command_brings_no_torch():
    program = "import sys, edp_lab.cli.attack; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
