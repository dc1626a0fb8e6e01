"""``edp-lab reproduce thesis``: readable tables, JSON alone on standard output, and one sentence for bad input."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edp_lab.cli.reproduce import reproduce_app
from edp_lab.errors import UsageError
from edp_lab.reproduce.thesis import thesis_tables
from edp_lab.reproduce.thesis.thesis_tables import FIGURES, TABLES, Scale

TINY = Scale("digits", 1, 2, 20, (100,), 1, 1, 2, 2, instructors=2)
KEYS = {"table", "row", "column", "thesis", "ours", "epsilon_claimed", "epsilon_holds", "note", "seed", "seconds"}


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """Run it in this process, shortly: (stdout, stderr)."""
    monkeypatch.setattr(thesis_tables, "QUICK", TINY)
    monkeypatch.setenv("EDP_LAB_DATA", str(tmp_path))  # without MNIST

    def run(*arguments: str, out: Path = tmp_path / "out") -> tuple[str, str]:
        reproduce_app(["thesis", "--out", str(out), *arguments], standalone_mode=False)
        return capsys.readouterr()

    return run


class Tags(HTMLParser):
    """What a page is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_a_table_sets_ours_beside_theirs_and_says_what_holds(cli):
    out, err = cli("--quick", "--table", "2.2,4.4", "--figure", "3.2")
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


def test_json_is_one_object_a_value_and_nothing_else(cli):
    out, _ = cli("--quick", "--table", "4.2", "--json")
    cells = json.loads(out)
    assert all(set(cell) >= KEYS for cell in cells)
    first, second = cells
    assert (first["table"], first["row"], first["thesis"], first["epsilon_claimed"]) == ("4.2", "100", 74.033, 0.2)
    assert first["epsilon_holds"] is None
    assert first["guarantee"] == "no guarantee"
    assert second["thesis"] is None
    assert second["column"] == "at sigma 0.1"


def test_files_hold_what_is_shown(cli, tmp_path):
    out, _ = cli("--quick", "--table", "2.2", "--figure", "3.2,4.2", "--json")
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


def test_every_kind_of_figure_is_drawn(cli, tmp_path):
    cli("--quick", "--table", "4.4", "--figure", "3.2,3.3,3.5,4.1,4.2", "--json")
    page = (tmp_path / "out" / "thesis.html").read_text()
    assert page.count("Plotly.newPlot(") == 7  # of table 4.4 confusions and losses
    for title in ("Confusion", "training points", "epoch", "test accuracy"):
        assert title in page


def test_a_second_call_trains_nothing_and_says_the_same(cli):
    first, told = cli("--quick", "--table", "4.1")
    again, quiet = cli("--quick", "--table", "4.1")
    assert again == first
    assert "perceptron" in told
    assert "perceptron" not in quiet


def test_without_quick_digits_stand_in_where_mnist_is_not_at_hand(cli, monkeypatch):
    monkeypatch.setattr(thesis_tables, "FULL", Scale("mnist", 1, 1, 20, (100,)))
    out, err = cli("--table", "4.1", "--json")
    assert json.loads(out)
    assert err.startswith("digits instead of MNIST: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--table", "9.9"], f"unknown table '9.9': choose {', '.join(TABLES)}"),
        (["--table", "4.1,figure 4.1"], "unknown table 'figure 4.1'"),
        (["--figure", "1.1"], f"unknown figure '1.1': choose {', '.join(FIGURES)}"),
        (["--data", "circles"], "unknown image data 'circles': choose digits or mnist"),
        (["--seed", "-1"], "seed is -1"),
        (["--repeats", "0"], "the number of repeats is 0"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(cli, tmp_path, arguments, said):
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        cli("--quick", *arguments)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_is_refused(cli, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another --out"):
        cli("--quick", "--table", "2.2", out=tmp_path / "file")


def test_ctrl_c_says_what_is_kept(cli, monkeypatch, tmp_path):
    from edp_lab.three_phase.phases import Job

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "train", interrupted)
    out, err = cli("--quick", "--table", "4.1")
    assert out == ""
    assert "finished networks are kept" in err
    assert not list(tmp_path.glob("out/thesis.*"))


def test_the_command_line_starts_without_torch_or_plotly():
    source = "import sys, edp_lab.cli.reproduce; print(sorted({'torch', 'plotly', 'numpy'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
