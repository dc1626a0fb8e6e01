"""``edp-lab attack`` and ``audit``: tables fit the terminal, standard output contains only JSON, no progress."""

import json
from functools import partial

import pytest

from edp_lab.corpora import smart_home

# ---- Canaries --------------------------------------------------------------------------------------------------------

METHODS = ["sgd", "edp-sgd-as-printed", "edp-sgd", "dp-sgd"]


@pytest.fixture
def canaries(output_of, monkeypatch, tmp_path):
    """Output of the command for a tiny corpus, on a terminal of 80 columns: (stdout, stderr)."""
    smart_home.write_jsonl(smart_home.generate(450, 5), tmp_path / "tiny.jsonl")
    monkeypatch.setenv("COLUMNS", "80")
    short = ("--corpus", str(tmp_path / "tiny.jsonl"), "--epochs", "1", "--references", "99")
    return partial(output_of, "attack", "canaries", *short)


def test_json_has_a_row_for_each_method_and_repetition_count(canaries):
    out, err = canaries("--repetitions", "0,2", "--canaries", "3", "--z0", "2", "--json")
    told = json.loads(out)
    assert told["fillings"] == 100
    assert (told["settings"]["z0"], told["settings"]["size"]) == (2.0, "small")
    assert [(row["method"], row["repetitions"]) for row in told["rows"]] == [(m, k) for m in METHODS for k in (0, 2)]
    sgd, printed, sound, per_example = (row for row in told["rows"] if row["repetitions"] == 2)
    assert [sgd["epsilon_if_seed_secret"], printed["epsilon_if_seed_secret"]] == [None, None]
    assert "alpha comes from private gradients" in printed["reason"]
    assert printed["claimed_epsilon"] > 0
    for row in (sound, per_example):
        assert row["epsilon_if_seed_secret"] > 0
    assert all(len(row["exposures"]) == 3 for row in told["rows"])
    assert [line for line in err.splitlines() if line in METHODS] == METHODS
    assert err.count("epoch   1/1") == 4


def test_table_fits_a_narrow_terminal_and_says_what_holds(canaries):
    out, _ = canaries(
        "--methods", "sgd,edp-sgd-as-printed,edp-sgd", "--repetitions", "0,1,16", "--canaries", "2", "--z0", "4"
    )
    lines = out.splitlines()
    head = next(line.split() for line in lines if line.startswith("method"))
    assert head == ["method", "copies", "exposure", "95", "%", "extracted", "95", "%", "epsilon"]
    rows = [line.split() for line in lines if "/2" in line]
    assert [row[-1] for row in rows[:6]] == ["-", "none", "none", "-", "none", "none"]
    assert float(rows[7][-1]) < float(rows[8][-1])
    assert "…" not in out
    said = " ".join(out.split())
    assert "sgd no guarantee: trained without clipping and noise" in said
    assert "edp-sgd-as-printed no guarantee: alpha comes from private gradients" in said
    assert "if the seed were secret" in said


# ---- Audits ----------------------------------------------------------------------------------------------------------

LINEAR = ("--model", "linear", "--gpus", "40", "--batch-size", "80")


def test_json_states_claim_bounds_and_guesses(output_of):
    settings = ("--z0", "1.2", "--canaries", "300", "--seed", "3", "--json")
    out, err = output_of("audit", "one-run", *LINEAR, *settings)
    report = json.loads(out)
    assert err == ""
    assert report["verdict"] == "consistent"
    assert report["claimed_epsilon"] == report["epsilon_if_seed_secret"] == pytest.approx(3.55, abs=0.01)
    assert report["measured_epsilon"] == report["bounds"]["gaussian"] < report["ceiling"]
    assert 0 < report["bounds"]["distribution_free"] < 4
    assert (report["canaries"], report["confidence"], report["delta"], report["seed"]) == (300, 0.95, 1e-5, 3)
    assert (report["model"], report["corpus"]) == ("linear", None)
    assert {"guesses": report["guesses"], "correct": report["correct"]} in report["tallies"]
    assert [tally["guesses"] for tally in report["tallies"]] == [30, 90, 300]
    assert report["mechanism"]["num_devices"] == 40
    assert report["adjacency"] == "REPLACE_SPECIAL"


REFUTED = ("Algorithm 1 as printed", "zCDP, z at face value", "refuted: 400 canaries in one run refute the claim")


def test_table_for_people_says_what_is_refuted(output_of):
    out, _ = output_of("audit", "one-run", "--model", "linear", "--as-printed", "--z0", "4", "--canaries", "400")
    assert [said for said in REFUTED if said not in " ".join(out.split())] == []
    assert max(map(len, out.splitlines())) <= 120
