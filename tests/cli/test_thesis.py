"""``edp-lab reproduce thesis`` and ``three-phase``: readable tables, and JSON alone on standard output."""

import json
import re

import pytest

from edp_lab.reproduce import thesis as tables
from edp_lab.reproduce.thesis import Scale
from edp_lab.three_phase.phases import Job

TINY = Scale("digits", 1, 2, 20, (100,), 1, 1, 2, 2, instructors=2)


@pytest.fixture
def thesis(output_of, monkeypatch, tmp_path):
    """``edp-lab reproduce thesis --out FOLDER ARGS``, shortly and without MNIST."""
    monkeypatch.setattr(tables, "QUICK", TINY)
    monkeypatch.setenv("EDP_LAB_DATA", str(tmp_path))
    return lambda *arguments, **how: output_of("reproduce", "thesis", "--out", str(tmp_path / "out"), *arguments, **how)


def test_a_table_sets_ours_beside_theirs_and_says_what_holds(thesis):
    out, err = thesis("--quick", "--table", "4.1,4.4")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 120
    assert [line.split(",")[0] for line in lines if re.match(r"table \d", line)] == ["table 4.1", "table 4.4"]
    [alex] = [line for line in lines if line.startswith("Alex-Net ")]
    assert re.search(r"99 / \S+ \(\d+ to \d+\)\s+98 / \S+\s+98 / \S+\s+98 / \S+\s+none", alex)
    assert "if the seeds were secret" in out
    assert len([line for line in err.splitlines() if re.search(r"epoch (\d+) of \1 ", line)]) == 5


def test_without_quick_digits_stand_in_where_mnist_is_not_at_hand(thesis, monkeypatch):
    monkeypatch.setattr(tables, "FULL", Scale("mnist", 1, 1, 20, (100,)))
    out, err = thesis("--table", "4.1", "--json")
    [row] = json.loads(out)
    assert (row["table"], row["printed"], row["delta"]) == ("4.1", {"accuracy": 93.89}, None)
    assert err.startswith("digits instead of MNIST: ")


def test_ctrl_c_says_what_is_kept(thesis, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "train", interrupted)
    out, err = thesis("--quick", "--table", "4.1", status=130)
    assert out == ""
    assert "finished networks are kept" in err


# ---- The three phases ------------------------------------------------------------------------------------------------

RUN = ("three-phase", "--epochs", "1", "--instructors", "2")


def test_a_run_says_what_the_thesis_says_and_what_holds(output_of):
    out, err = output_of(*RUN)
    assert max(map(len, out.splitlines())) <= 120
    for expected in (
        "digits: 1,197 private images, 540 public, 60 test",
        "epsilon of one label 0.2, of 540 31.73",
        "void: seed published",
    ):
        assert expected in out
    for row in (r"understudy .*31\.73", "plain model .*none", r"2 instructors .*\["):
        assert re.search(f"^ *{row}", out, re.MULTILINE)
    assert [line for line in err.splitlines() if "epochs" not in line] == []
    assert len(err.splitlines()) == 5


def test_json_is_the_record_and_nothing_else(output_of):
    out, _ = output_of(*RUN, "--phases", "2,3", "--vote", "gaussian", "--labels", "50", "--json")
    record = json.loads(out)
    assert record["settings"]["phases"] == [2, 3]
    assert record["labels"]["queries"] == 50
    assert record["image_guarantee"] is None
    assert record["parts"][-1]["epsilon"] == record["privacy"]["epsilon"]


@pytest.mark.parametrize(
    ("phases", "cost"),
    [("3", "vote of the plain model 540 without noise, no guarantee"), ("1", "none")],
)
def test_a_vote_without_noise_promises_nothing(output_of, phases, cost):
    assert cost in " ".join(output_of(*RUN, "--phases", phases, "--vote", "hard")[0].split())
