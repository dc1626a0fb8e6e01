"""``edp-lab reproduce`` and ``three-phase``: readable tables, and JSON alone on standard output."""

import json
import re

import pytest

from edp_lab.reproduce import table1 as table1_study
from edp_lab.reproduce import table2 as table2_study
from edp_lab.reproduce import thesis as tables
from edp_lab.reproduce.thesis import Scale
from edp_lab.three_phase.phases import Job

# ---- Tables 1 and 2 --------------------------------------------------------------------------------------------------


@pytest.fixture
def reproduce(output_of, monkeypatch, tmp_path):
    """Output of ``edp-lab reproduce ARGS`` with invented measurements: (stdout, stderr)."""

    def result(config):
        plain = config.method == "sgd"
        return {
            "validation_ser": 0.1, "ser": 0.1 + 0.01 * config.seed + (0 if plain else 0.02),
            "run": f"run-{config.seed}",
            "claimed_epsilon": None if plain else 1 / config.z0, "delta": 1e-4, "examples": 600, "seconds": 1.0,
            "epsilon_if_seed_secret": None if plain or config.as_printed else 3e4,
            "epsilon_if_alpha_public": None if plain else 9e5,
            "device": "cpu", "machine": "x", "threads": 1, "versions": {}, "auc": 0.6, "loss_auc": 0.65,
            "shadow_corpora": ["generated"],
        }  # fmt: skip

    monkeypatch.setattr(table1_study.TableRuns, "results", lambda self, configs, what: list(map(result, configs)))
    monkeypatch.setattr(table1_study.TableRuns, "prepare", lambda self, configs: None)
    return lambda *arguments: output_of("reproduce", *arguments, "--out", str(tmp_path / "out"))


TABLE1 = ("table1", "--models", "clc", "--corpora", "smart-home-health")


def test_table1_sets_ours_beside_theirs_and_says_what_holds(reproduce):
    out, _ = reproduce(*TABLE1)
    lines = out.splitlines()
    assert max(map(len, lines[:-3])) <= 150
    assert "in place of the paper's internal Health" in out
    [printed] = [line for line in lines if line.startswith("as printed, exponential")]
    assert "-2.7" in printed  # on the same line
    assert "none (6.0)" in printed
    [sound] = [line for line in lines if line.startswith("sound, linear")]
    assert "  4.5  " in sound  # log10 of 30,000 is 4.48


def test_files_and_json_say_the_same(reproduce, tmp_path):
    out, _ = reproduce(*TABLE1, "--json")
    cells = json.loads(out)
    assert cells == json.loads((tmp_path / "out" / "table.json").read_text())
    assert len(cells) == 8
    assert cells[0]["runs"] == ["run-0", "run-1", "run-2"]


def test_table2_sets_every_method_beside_sgd_and_the_paper(output_of, monkeypatch):
    tasks: list[table2_study.Task] = []

    def rows(task: table2_study.Task, progress) -> list[dict]:
        tasks.append(task)
        return [
            {"method": method, "gpus": gpus, "processes": 1, "seconds": 0.1, "ratio_to_sgd": 1.234, "threads": 2,
             "ratio_spread": [1.1, 1.3], "peak_memory_mb": 700.0, "seconds_per_epoch": 2.0, "device": "cpu",
             "paper_ratio": 1.04 if gpus == 8 else None}
            for method, gpus in (("sgd", 1), ("edp-sgd", 8))
        ]  # fmt: skip

    monkeypatch.setattr(table2_study, "table2", rows)
    out, _ = output_of("reproduce", "table2", "--rounds", "3")
    assert tasks[0].methods == table2_study.METHODS
    [line] = [line for line in out.splitlines() if "edp-sgd" in line]
    assert "1.23" in line
    assert "1.04" in line
    found = json.loads(output_of("reproduce", "table2", "--methods", "sgd,dp-sgd", "--json")[0])
    assert tasks[1].methods == ("sgd", "dp-sgd")
    assert [row["ratio_to_sgd"] for row in found] == [1.234, 1.234]
    assert found[0]["command"].startswith("edp-lab reproduce table2")


# ---- The thesis ------------------------------------------------------------------------------------------------------


TINY = Scale("digits", 1, 2, 20, (100,), 1, 1, 2, 2, instructors=2)


@pytest.fixture
def thesis(output_of, monkeypatch, tmp_path):
    """Output of ``edp-lab reproduce thesis --out FOLDER ARGS``, with little training and without MNIST."""
    monkeypatch.setattr(tables, "QUICK", TINY)
    monkeypatch.setenv("EDP_LAB_DATA", str(tmp_path))
    return lambda *arguments, **how: output_of("reproduce", "thesis", "--out", str(tmp_path / "out"), *arguments, **how)


def test_a_table_sets_ours_beside_theirs_and_says_what_holds(thesis):
    out, err = thesis("--quick", "--table", "4.1,4.4")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 120
    assert [line.split(":")[0] for line in lines if re.match(r"table \d", line)] == ["table 4.1", "table 4.4"]
    [alex] = [line for line in lines if line.startswith("Alex-Net ")]
    assert re.search(r"99 / \S+\s+98 / \S+\s+98 / \S+\s+98 / \S+\s+\d+ to \d+\s+none", alex)
    assert "if the seeds were secret" in out
    assert re.search(r"(\d+) of \1 networks are trained", err)


def test_ctrl_c_says_what_is_kept(thesis, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "train", interrupted)
    out, err = thesis("--quick", "--table", "4.1", status=130)
    assert out == ""
    assert "finished networks are saved" in err


# ---- The three phases ------------------------------------------------------------------------------------------------

RUN = ("three-phase", "--epochs", "1", "--instructors", "2")


def test_a_run_says_what_the_thesis_says_and_what_holds(output_of):
    out, err = output_of(*RUN)
    assert max(map(len, out.splitlines())) <= 120
    for expected in (
        "digits: 1,197 private images, 540 public, 60 test",
        "0.2 for one label, 31.73",
        "void: seed published",
    ):
        assert expected in " ".join(out.split())
    for row in (r"understudy .*31\.73", "plain model .*none", "hard vote .*none"):
        assert re.search(f"^ *{row}", out, re.MULTILINE)
    assert [line for line in err.splitlines() if "epochs" not in line] == []
    assert len(err.splitlines()) == 5


def test_json_is_the_record_and_nothing_else(output_of):
    out, _ = output_of(*RUN, "--phases", "2,3", "--vote", "gaussian", "--labels", "50", "--json")
    record = json.loads(out)
    assert record["settings"]["phases"] == [2, 3]
    assert record["labels"]["queries"] == 50
    assert record["image_guarantee"] is None
    assert record["parts"][-1]["conditional_epsilon"] == record["privacy"]["epsilon"]


@pytest.mark.parametrize(
    ("phases", "cost"),
    [("3", "540 by hard vote"), ("2", "epsilon of labels no guarantee, because the vote has no noise"), ("1", "none")],
)
def test_a_vote_without_noise_promises_nothing(output_of, phases, cost):
    assert cost in " ".join(output_of(*RUN, "--phases", phases, "--vote", "hard")[0].split())
