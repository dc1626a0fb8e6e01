"""``edp-lab reproduce thesis`` and ``three-phase run``: readable tables, JSON alone on standard output, files."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser

import pytest

from edp_lab.reproduce.thesis import thesis_tables
from edp_lab.reproduce.thesis.thesis_tables import Scale

TINY = Scale("digits", 1, 2, 20, (100,), 1, 1, 2, 2, instructors=2)
KEYS = {"table", "row", "column", "thesis", "ours", "epsilon_claimed", "epsilon_holds", "note", "seed", "seconds"}


@pytest.fixture
def thesis(cli, monkeypatch, tmp_path):
    """``edp-lab reproduce thesis ARGS``, shortly: (stdout, stderr)."""
    monkeypatch.setattr(thesis_tables, "QUICK", TINY)
    monkeypatch.setenv("EDP_LAB_DATA", str(tmp_path))  # without MNIST

    def run(*arguments: str, status: int = 0) -> tuple[str, str]:
        ended, out, err = cli("reproduce", "thesis", "--out", str(tmp_path / "out"), *arguments)
        assert ended == status, err
        return out, err

    return run


class Tags(HTMLParser):
    """What a page is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_a_table_sets_ours_beside_theirs_and_says_what_holds(thesis):
    out, err = thesis("--quick", "--table", "2.2,4.4", "--figure", "3.2")
    lines = out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("written: ")) <= 120
    assert [line.split(",")[0] for line in lines if re.match(r"(table|figure) \d", line)] == [
        "table 2.2",
        "table 4.4",
        "figure 3.2",
    ]
    [alex] = [line for line in lines if line.startswith("Alex-Net ")]
    assert re.search(r"99 / \S+ \(\d+ to \d+\)\s+98 / \S+\s+98 / \S+\s+98 / \S+\s+none", alex)
    [fourth] = [line for line in lines if line.startswith("4, response")]
    assert "4.02 / " in fourth
    assert "2.828" in fourth
    assert "published here" in out
    told = [line for line in err.splitlines() if line]
    assert [line for line in told if "done after" not in line] == [line for line in told if "epoch 1 of 1" in line]
    assert len(told) == 6


def test_json_is_one_object_a_value_and_nothing_else(thesis):
    out, _ = thesis("--quick", "--table", "4.2", "--json")
    cells = json.loads(out)
    assert all(set(cell) >= KEYS for cell in cells)
    first, second = cells
    assert (first["table"], first["row"], first["thesis"], first["epsilon_claimed"]) == ("4.2", "100", 74.033, 0.2)
    assert first["epsilon_holds"] is None
    assert first["guarantee"] == "no guarantee"
    assert second["thesis"] is None
    assert second["column"] == "at sigma 0.1"


def test_files_hold_what_is_shown(thesis, tmp_path):
    out, _ = thesis("--quick", "--table", "2.2", "--figure", "3.2,4.2", "--json")
    cells, folder = json.loads(out), tmp_path / "out"
    told = json.loads((folder / "thesis.json").read_text())
    assert [cell for part in told["parts"] for cell in part["cells"]] == cells
    assert told["versions"]["torch"]
    with open(folder / "thesis.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["ours"] for row in rows] == [str(cell["ours"]) for cell in cells]
    assert [row["epsilon_holds"] for row in rows][:2] == [str(cell["epsilon_holds"]) for cell in cells][:2]
    page = (folder / "thesis.html").read_text()
    tags = Tags(page).tags
    assert sum(tag == "table" for tag, _ in tags) == 3
    assert page.count("Plotly.newPlot(") == 2
    assert not [
        attrs for tag, attrs in tags if tag in ("script", "link", "img") and ("src" in attrs or "href" in attrs)
    ]


def test_every_kind_of_figure_is_drawn(thesis, tmp_path):
    thesis("--quick", "--table", "4.4", "--figure", "3.2,3.3,3.5,4.1,4.2", "--json")
    page = (tmp_path / "out" / "thesis.html").read_text()
    assert page.count("Plotly.newPlot(") == 7  # of table 4.4 confusions and losses
    for title in ("Confusion", "training points", "epoch", "test accuracy"):
        assert title in page


def test_a_second_call_trains_nothing_and_says_the_same(thesis):
    first, told = thesis("--quick", "--table", "4.1")
    again, quiet = thesis("--quick", "--table", "4.1")
    assert again == first
    assert "perceptron" in told
    assert "perceptron" not in quiet


def test_without_quick_digits_stand_in_where_mnist_is_not_at_hand(thesis, monkeypatch):
    monkeypatch.setattr(thesis_tables, "FULL", Scale("mnist", 1, 1, 20, (100,)))
    out, err = thesis("--table", "4.1", "--json")
    assert json.loads(out)
    assert err.startswith("digits instead of MNIST: ")


def test_ctrl_c_says_what_is_kept(thesis, monkeypatch, tmp_path):
    from edp_lab.three_phase.phases import Job

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "train", interrupted)
    out, err = thesis("--quick", "--table", "4.1", status=130)
    assert out == ""
    assert "finished networks are kept" in err
    assert not list(tmp_path.glob("out/thesis.*"))


# ---- The three phases ------------------------------------------------------------------------------------------------


@pytest.fixture
def three_phase(cli):
    def run(*arguments: str) -> tuple[str, str]:
        status, out, err = cli("three-phase", "run", *arguments)
        assert status == 0, err
        return out, err

    return run


def test_a_run_says_what_the_thesis_says_and_what_holds(three_phase):
    out, err = three_phase("--epochs", "1", "--instructors", "2")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 120
    assert "phases 1, 2, 3 on digits: 1,197 private training images, 540 public, 60 to test on; cnn, seed 0" in out
    rows = {
        name: next(line for line in lines if line.strip().startswith(name)) for name in ("understudy", "plain model")
    }
    assert "31.73" in rows["understudy"]
    assert "none" in rows["plain model"]
    assert any(line.strip().startswith("2 instructors") and "[" in line for line in lines)
    assert "epsilon of one label: 0.2; of 540: 31.73 (plain sum 108)" in out
    assert "void: seed published" in out
    assert "not releasable" in out
    done = [line for line in err.splitlines() if "epochs" in line]
    assert len(done) == len(err.splitlines()) == 5


def test_json_is_the_record_and_nothing_else(three_phase):
    out, _ = three_phase(
        "--epochs", "1", "--instructors", "2", "--phases", "2,3", "--vote", "gaussian", "--labels", "50", "--json"
    )
    record = json.loads(out)
    assert record["settings"]["phases"] == [2, 3]
    assert record["labels"]["queries"] == 50
    assert record["image_guarantee"] is None
    assert record["parts"][-1]["epsilon"] == record["privacy"]["epsilon"]


def test_a_vote_without_noise_promises_nothing(three_phase):
    out, _ = three_phase("--epochs", "1", "--phases", "3", "--vote", "hard")
    assert "hard vote of the plain model: 540 labels without noise, no guarantee." in out
    out, _ = three_phase("--epochs", "1", "--phases", "1")
    assert "No label was released" in out
