"""``edp-lab compare`` as a person uses it: real runs, a narrow terminal, files, and one sentence for bad input."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edp_lab.cli import main
from edp_lab.training import TrainConfig, train

SETTINGS = {"plain": {"method": "sgd"}, "noised": {"z0": 0.5}, "secret": {"z0": 0.5, "private_seed": True}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with three runs on a tiny corpus."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [{"tokens": ["call", str(k)], "tags": ["O", "B-number"], "intent": "call"} for k in range(60)]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, told in SETTINGS.items():
        config = TrainConfig(str(folder / "own.jsonl"), size="small", epochs=2, batch_size=16, num_devices=4, **told)
        train(config, folder / name)
    return folder


@pytest.fixture
def cli(monkeypatch, capsys, trained):
    """Run ``edp-lab compare ARGS`` among the runs, on a terminal of 80 columns: (exit status, stdout, stderr)."""
    monkeypatch.chdir(trained)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["edp-lab", "compare", *arguments])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run


def final(trained: Path, name: str) -> dict:
    return json.loads((trained / name / "record.json").read_text())["final"]


# ---- Tables --------------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_the_records(cli, trained):
    status, out, err = cli(*SETTINGS, "--json")
    assert (status, err) == (0, "")
    plain, noised, secret = json.loads(out)["runs"]
    assert [run["name"] for run in (plain, noised, secret)] == list(SETTINGS)
    for run in (plain, noised, secret):
        recorded = final(trained, run["name"])
        assert (run["test_ser"], run["intent_accuracy"]) == (recorded["ser"], recorded["intent_accuracy"])
        assert (run["slot_f1"], run["exact_match"]) == (recorded["slot_f1"], recorded["exact_match"])
        assert run["seconds"] == pytest.approx(recorded["seconds"])
        assert run["epsilon_claimed"] == recorded["epsilon_claimed"]
    assert noised["epsilon_if_seed_secret"] == secret["epsilon_that_holds"] == final(trained, "secret")["epsilon"]
    assert noised["epsilon_that_holds"] is secret["epsilon_if_seed_secret"] is None
    assert noised["settings"] == {"z0": 0.5, "private_seed": False}
    assert plain["times_reference"] == 1


def test_few_runs_stand_side_by_side_on_a_narrow_terminal(cli, trained):
    status, out, _ = cli(*SETTINGS)
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["run", *SETTINGS] in lines
    assert ["test", "SER", *(f"{final(trained, name)['ser']:.4f}" for name in SETTINGS)] in lines
    epsilon = f"{final(trained, 'secret')['epsilon']:.4g}"
    assert ["epsilon", "that", "holds", "none", "none", epsilon] in lines
    assert ["epsilon", "if", "seed", "secret", "-", epsilon, "-"] in lines
    assert max(map(len, out.splitlines())) <= 80


def test_many_runs_stand_in_rows_of_tables_that_fit(cli, tmp_path):
    names = []
    for k in range(12):
        one = json.loads(Path("noised/record.json").read_text())
        one["config"]["z0"] = k + 0.123
        one["final"]["exact_match"] = k / 1000
        folder = tmp_path / ("a-name-that-is-far-too-long-for-a-table" if k == 5 else f"[bold]:cat:{k}")
        folder.mkdir()
        (folder / "record.json").write_text(json.dumps(one))
        names.append(str(folder))
    status, out, _ = cli(*names)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "method edp-sgd, epochs 2, guarantee void: seed published" in out.replace("\n", "")
    for k in set(range(12)) - {5}:
        rows = [line for line in out.splitlines() if line.startswith(f"[bold]:cat:{k} ")]
        assert len(rows) > 1
        assert f"{k + 0.123}" in " ".join(rows).split()
        assert f"{k / 1000:.4f}" in " ".join(rows).split()


@pytest.mark.parametrize("width", ["20", "40", "100", "300"])
def test_any_terminal_is_wide_enough_and_shows_every_number(cli, trained, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    status, out, _ = cli(*SETTINGS)
    assert status == 0
    assert max(map(len, out.splitlines())) <= int(width)
    for name in SETTINGS:
        assert f"{final(trained, name)['exact_match']:.4f}" in out


def test_a_reason_not_to_compare_is_noted(cli, tmp_path):
    other = json.loads(Path("noised/record.json").read_text())
    other["config"]["seed"] = 7
    (tmp_path / "record.json").write_text(json.dumps(other))
    assert "note: seeds 0 and 7 make different splits" in cli("noised", str(tmp_path))[1]
    assert "note:" not in cli("noised", "secret")[1]


# ---- Files ---------------------------------------------------------------------------------------------------------


def test_files_are_written_and_named(cli, tmp_path):
    table, tex, page = (str(tmp_path / name) for name in ("runs.csv", "runs.tex", "runs.html"))
    Path(table).write_text("old")
    status, out, _ = cli(*SETTINGS, "--csv", table, "--latex", tex, "--plot", page)
    assert status == 0
    assert out.replace("\n", "").endswith(f"written: {table}, {tex}, {page}")
    assert [row["name"] for row in csv.DictReader(Path(table).read_text().splitlines())] == list(SETTINGS)
    assert r"\begin{tabular}" in Path(tex).read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.csv", "runs.html", "runs.tex"]


class Tags(HTMLParser):
    """Addresses that a page would load, and what the page says outside its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href") and value]


def drawing(page: str) -> tuple[list[dict], dict, dict]:
    """What plotly is told to draw: data, layout, configuration."""
    decoder, found = json.JSONDecoder(), []
    rest = page[page.rindex("Plotly.newPlot(") :].partition('"figure",')[2]
    for _ in range(3):
        part, end = decoder.raw_decode(rest := rest.lstrip(" \n,"))
        found.append(part)
        rest = rest[end:]
    return found[0], found[1], found[2]


def test_page_draws_the_runs_and_needs_no_network(cli, trained, tmp_path):
    assert cli(*SETTINGS, "--plot", str(tmp_path / "page.html"))[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert Tags(page).addresses == []
    data, layout, config = drawing(page)
    assert (config["displaylogo"], config["showSendToCloud"]) == (False, False)
    lines = {trace["name"]: trace for trace in data if trace["mode"] == "lines+markers"}
    assert list(lines) == list(SETTINGS)
    for name, line in lines.items():
        rows = json.loads((trained / name / "record.json").read_text())["epochs"]
        assert line["y"] == [row["ser"] for row in rows]
    looks = {(t["line"]["color"], t["line"]["dash"], t["marker"]["symbol"]) for t in lines.values()}
    assert len(looks) == 3
    points = {t["name"]: t for t in data if t["mode"] == "markers" and t["x"] != [None]}
    assert list(points) == ["noised", "secret"]
    for name, point in points.items():
        assert (point["x"], point["y"]) == ([final(trained, name)["epsilon"]], [final(trained, name)["ser"]])
        assert point["marker"]["symbol"].endswith("-open") == (name == "noised")
    assert layout["xaxis2"]["type"] == "log"
    assert [shape["y0"] for shape in layout["shapes"]] == [final(trained, "plain")["ser"]]


def test_page_of_plain_runs_has_one_panel_and_names_stay_text(cli, tmp_path):
    folder = tmp_path / "<b>bold<script>"
    folder.mkdir()
    (folder / "record.json").write_text(Path("plain/record.json").read_text())
    assert cli(str(folder), "plain", "--plot", str(tmp_path / "page.html"))[0] == 0
    page = (tmp_path / "page.html").read_text()
    data, layout, _ = drawing(page)
    assert data[0]["name"] == "&lt;b&gt;bold&lt;script&gt;"  # plotly shows the entities as signs
    assert "xaxis2" not in layout
    assert "b" not in Tags(page).tags


# ---- Bad input -----------------------------------------------------------------------------------------------------

BAD = {
    "no run": ([], "no run"),
    "no such folder": (["plain", "nowhere"], "nowhere"),
    "no run in the folder": (["plain", "."], "holds no run"),
    "the same run twice": (["plain", "./plain"], "twice"),
    "damaged": (["plain", "damaged"], "damaged"),
    "output into nowhere": (["plain", "--csv", "nowhere/table.csv"], "--csv"),
    "output onto a folder": (["plain", "--latex", "noised"], "--latex"),
    "output onto a device": (["plain", "--plot", "/dev/null"], "--plot"),
    "a web page named as a picture": (["plain", "--plot", "page.png"], "ends in .html"),
    "output into a run": (["plain", "--csv", "plain/record.json"], "stays as it is"),
    "two outputs in one": (["plain", "--csv", "both", "--latex", "both"], "two outputs"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_writes_nothing(cli, trained, tmp_path, case):
    arguments, saying = BAD[case]
    (trained / "damaged").mkdir(exist_ok=True)
    (trained / "damaged" / "record.json").write_text('{"config"')
    kept = tmp_path / "kept.html"
    kept.write_text("old")
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    output = [] if "--plot" in arguments else ["--plot", str(kept)]
    status, out, err = cli(*arguments, *output)
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert saying in err
    assert kept.read_text() == "old"
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_the_command_line_starts_without_torch_or_plotly():
    source = "import sys, edp_lab.cli.compare; print(sorted({'torch', 'plotly'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
