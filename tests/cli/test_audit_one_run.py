"""``edp-lab audit one-run``: what it prints, for people and for programs, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edp_lab.cli.audit import audit_app
from edp_lab.errors import UsageError

ROOT = Path(__file__).parents[2]
LINEAR = ("--model", "linear", "--gpus", "40", "--batch-size", "80")


def command(*arguments: str):
    return CliRunner().invoke(audit_app, ["one-run", *arguments])


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, "-m", "edp_lab", "audit", "one-run", *arguments]
    return subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, check=False)


def test_json_states_claim_bounds_and_guesses():
    result = program(*LINEAR, "--target-epsilon", "4", "--canaries", "300", "--seed", "3", "--json")
    report = json.loads(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert report["verdict"] == "consistent"
    assert report["epsilon_claimed"] == report["epsilon_holds"] == pytest.approx(4, abs=1e-5)
    assert report["epsilon_lower_bound"] == report["bounds"]["gaussian"] < report["ceiling"]
    assert 0 < report["bounds"]["distribution_free"] < 4
    assert (report["canaries"], report["confidence"], report["delta"], report["seed"]) == (300, 0.95, 1e-5, 3)
    assert (report["kind"], report["model"], report["corpus"]) == ("gradient", "linear", None)
    assert {"guesses": report["guesses"], "correct": report["correct"]} in report["tallies"]
    assert [tally["guesses"] for tally in report["tallies"]] == [30, 90, 300]
    assert report["mechanism"]["num_devices"] == 40
    assert report["adjacency"] == "REPLACE_SPECIAL"


def test_table_for_people_says_that_the_print_is_refuted():
    result = command("--model", "linear", "--as-printed", "--z0", "4", "--canaries", "400")
    assert result.exit_code == 0
    assert "Algorithm 1 as printed" in result.stdout
    assert "zCDP, z at face value" in result.stdout
    assert "refuted: 400 canaries in one run refute the claim" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_table_for_people_names_poisson_sampling():
    result = command(*LINEAR, "--method", "dp-sgd", "--canaries", "100")
    assert "Poisson sampling" in result.stdout
    assert "add or remove one utterance" in result.stdout
    assert "for any mechanism" in result.stdout


@pytest.mark.parametrize("kind", ["gradient", "mislabelled"])
def test_a_real_corpus_is_audited(kind, tmp_path):
    path = tmp_path / "own.jsonl"
    rows = ({"tokens": [verb, str(k)], "intent": verb} for k in range(40) for verb in ("call", "play"))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = command("--corpus", str(path), "--kind", kind, "--canaries", "20", "--batch-size", "16", "--json")
    report = json.loads(result.stdout)
    assert (report["kind"], report["corpus"], report["canaries"]) == (kind, str(path), 20)
    assert report["epsilon_lower_bound"] <= report["epsilon_holds"]
    assert list(tmp_path.iterdir()) == [path]


def test_bad_input_is_one_sentence_and_status_2():
    result = program("--model", "linear", "--z0", "0")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "error: there is no claim to audit (z0 is 0: no noise is added, so epsilon is infinite): choose a larger z0\n"
    )


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ((), "needs --corpus"),
        (("--corpus", "no-such"), "unknown corpus 'no-such'"),
        (("--model", "linear", "--corpus", "smart-home"), "drop --corpus"),
        (("--model", "large", "--corpus", "smart-home"), "choose clc, bert or linear"),
        (("--model", "linear", "--z0", "1", "--target-epsilon", "2"), "--target-epsilon decides z0"),
        (("--model", "linear", "--as-printed", "--target-epsilon", "2"), "as printed"),
        (("--model", "linear", "--method", "sgd"), "claims no epsilon"),
        (("--model", "linear", "--sampling", "poisson"), "--sampling shuffle"),
        (("--model", "linear", "--method", "dp-sgd", "--as-printed"), "clips every utterance alone"),
        (("--model", "linear", "--kind", "mislabelled"), "linear"),
        (("--model", "linear", "--gpus", "64"), "fewer devices"),
        (("--model", "linear", "--delta", "0"), "delta is 0"),
        (("--model", "linear", "--seed", "-1"), "seed is -1"),
    ],
)
def test_what_cannot_be_audited_is_refused(arguments, culprit):
    result = command(*arguments)
    assert isinstance(result.exception, UsageError)
    assert culprit in str(result.exception)
