"""``edp-lab attack extraction`` and ``inversion``: a table, JSON, progress apart, and one sentence for bad input."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer

from edp_lab.cli.attack import extraction, inversion
from edp_lab.errors import UsageError

QUICK = ("--epochs", "1", "--instructors", "2")


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run it in this process, with attacks that hardly try: (stdout, stderr)."""
    for steps in ("STUDENT_STEPS", "WHITE_BOX_STEPS"):
        monkeypatch.setattr(f"edp_lab.attacks.extraction.{steps}", 5)
    app = typer.Typer()
    app.command()(extraction)
    app.command()(inversion)

    def run(*arguments: str) -> tuple[str, str]:
        app(arguments, standalone_mode=False)
        return capsys.readouterr()

    return run


def test_a_table_has_each_victim_once_and_says_what_privacy_does_not_bound(cli):
    out, err = cli("extraction", *QUICK, "--victims", "plain, understudy,strangers", "--queries", "20,10")
    assert max(map(len, out.splitlines())) <= 100
    table = [line.split() for line in out.splitlines()[2:10] if line.strip()]
    assert [row[0] for row in table] == ["plain", "20", "understudy", "20", "strangers", "20"]
    assert [row[1] for row in table if len(row) == 9] == ["none", "294", "0"]
    flat = " ".join(out.split())
    assert "it does not bound how well its answers can be copied" in flat
    assert "saw no private image (epsilon 0) and, at 20 queries, is copied to an agreement of" in flat
    assert {"victim: understudy", "10 queries: plain"} <= set(err.splitlines())


def test_json_is_all_of_standard_output(cli):
    out, _ = cli("extraction", *QUICK, "--victims", "strangers", "--queries", "10", "--inputs", "noise", "--json")
    told = json.loads(out)
    assert (told["attack"], told["settings"]["inputs"], told["settings"]["epochs"]) == ("extraction", "noise", 1)
    [row] = told["rows"]
    low, high = row["agreement_interval"]
    assert (row["victim"], row["queries"], row["own_labels_agreement"]) == ("strangers", 10, None)
    assert low <= row["agreement"] <= high
    assert "membership" in told["said"]


def test_inversion_ends_with_the_white_box_unless_only_labels_are_told(cli):
    out, _ = cli("inversion", *QUICK, "--victims", "strangers", "--queries", "4,20")
    assert "white box" in out
    assert "a fact about the population" in " ".join(out.split())
    out, _ = cli("inversion", *QUICK, "--victims", "strangers", "--queries", "4", "--labels-only", "--json")
    told = json.loads(out)
    assert [row["queries"] for row in told["rows"]] == [4]
    assert "inputs" not in told["settings"]


def test_options_reach_the_victims(cli):
    arguments = (*QUICK, "--victims", "understudy,dp-adam", "--queries", "4", "--labels-only", "--json")
    out, err = cli("inversion", *arguments, "--sigma", "0.6", "--vote-epsilon", "0.2", "--train-epsilon", "3")
    rows = {row["victim"]: row for row in json.loads(out)["rows"]}
    assert rows["understudy"]["epsilon"] == pytest.approx(25.87, abs=0.1)  # 399 labels of epsilon 0.2
    assert rows["dp-adam"]["epsilon"] == pytest.approx(3, abs=0.01)
    assert "victim: one instructor" in err.splitlines()  # phase I took part
    assert "victim: instructor 3" not in err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("extraction", "--queries", "5;6"), "--queries is '5;6'"),
        (("extraction", "--queries", "0"), "queries are 0"),
        (("extraction", "--queries", "500"), "the attacker has 400 public images"),
        (("inversion", "--queries", "1"), "queries are 1"),
        (("extraction", "--inputs", "tea"), "unknown inputs 'tea'"),
        (("extraction", "--victims", "plain,bert"), "unknown victim 'bert'"),
        (("inversion", "--data", "circles"), "no images"),
        (("inversion", "--data", "letters"), "unknown image data"),
        (("inversion", "--sigma", "-1"), "sigma is -1"),
        (("inversion", "--vote-epsilon", "0"), "epsilon of a vote is 0"),
        (("inversion", "--instructors", "500"), "500 instructors cannot all see class"),
        (("inversion", "--seed", "-1"), "seed is -1"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_trained(cli, arguments, message, monkeypatch):
    for module in ("edp_lab.attacks.extraction", "edp_lab.three_phase.phases"):
        monkeypatch.setattr(f"{module}.train_classifier", None)
    with pytest.raises(UsageError, match=message) as error:
        cli(*arguments)
    assert "\n" not in str(error.value)


def test_the_commands_load_nothing_heavy_before_they_run():
    code = "import sys, edp_lab.cli.attack; print('torch' in sys.modules, 'scipy' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert answer == "False False\n"
