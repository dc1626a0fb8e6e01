"""``edp-lab course`` on tiny notebooks: runs and pages, verdicts, solutions, and a reader's own copy."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell
from selenium.webdriver.common.keys import Keys

from edp_lab.course.run import execute, own_copy, read_notebook, run_course
from tests import browser as browsing
from tests.course.conftest import NOTEBOOKS, asked_elsewhere, console_errors, invoked, store

PANEL = """
import plotly.graph_objects as go
from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import number
from edp_lab.course.kit.figure import figure, line
from edp_lab.course.kit.panel import Panel
from edp_lab.course.kit.text import claimed, holds
theme.activate()
draw = lambda n: figure("Main", line("of n", "#0072B2", y=[n, 2 * n]))
panel = Panel("Tokens", "What is seen.", lambda n: 60 / n, [draw], lambda n: f"words of {n}", lambda _, n: f"do {n}",
              tiles=lambda n: (claimed(f"{n:g} claimed"), holds("b"), "A sentence."), n=number("tokens", 5, [2, 5, 6]))
panel
"""
STUB, SOLUTION = '# EXERCISE delta\nprediction = {"k": None}', '# EXERCISE delta\nprediction = {"k": "solved"}\n'


def write(path: Path, *code: str, exercise: bool = False) -> Path:
    title = new_markdown_cell("# A title\n\nThe noise is $\\sigma = z_0 C$. See [the next](01_next.ipynb).")
    given = new_code_cell('mode = "quick"\nclip_norm = 1.0  # C\nseeds = [0, 1]', metadata={"tags": ["parameters"]})
    stub = [new_code_cell(STUB, metadata={"tags": ["exercise"]})] if exercise else []
    return store(path, title, given, *stub, *map(new_code_cell, code))


def test_notebooks_run_with_solutions_and_parameters_and_one_that_fails_stops_no_other(tmp_path: Path) -> None:
    solved = 'assert prediction["k"] == "solved" and (mode, clip_norm) == ("full", 0.5)'
    write(tmp_path / "00_good.ipynb", solved, exercise=True)
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "00.py").write_text(SOLUTION)
    write(tmp_path / "01_next.ipynb", "1 / 0")
    (tmp_path / "glossary.md").write_text("# Glossary\n\nSee [first](00_good.ipynb#a-title).")
    options = "--notebooks", tmp_path, "--out", tmp_path / "out", "--mode", "full", "--parameter", "clip_norm=0.5"
    result = invoked("course", "run", *options, "--jobs", 2, "--json")
    assert result.exit_code == 1, result.exception
    assert result.stdout, result.exception
    rows = {row["notebook"]: row for row in json.loads(result.stdout)}
    assert list(rows["00_good"]) == ["notebook", "title", "status", "seconds", "error"]
    assert (rows["00_good"]["status"], rows["01_next"]["status"]) == ("ok", "failed"), rows
    assert rows["01_next"]["error"] == "ZeroDivisionError: division by zero (in '1 / 0')"
    index = (tmp_path / "out" / "index.html").read_text()
    assert all(page in index for page in ('href="00_good.html"', 'href="01_next.html"', 'href="glossary.html"'))
    assert "ZeroDivisionError" in index
    assert 'href="00_good.html#a-title"' in (tmp_path / "out" / "glossary.html").read_text()
    assert STUB in read_notebook(tmp_path / "00_good.ipynb").cells[2].source  # the course itself is unchanged


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--parameter", "sigma=1"], "no parameter 'sigma'; they have: mode, clip_norm, seeds"),
        (["05"], "there is no notebook '05'"),
        (["--parameter", "sigma"], "--parameter takes NAME=VALUE"),
        (["--parameter", "clip_norm=0,1"], "parameter clip_norm is (0, 1): give a number, such as 1.0"),
        (["--parameter", "clip_norm=high"], "parameter clip_norm is 'high': give a number, such as 1.0"),
        (["--parameter", "clip_norm=True"], "parameter clip_norm is True: give a number, such as 1.0"),
        (["--parameter", "clip_norm={}"], "parameter clip_norm is {}: give a number, such as 1.0"),
        (["--parameter", "clip_norm=1e999"], "parameter clip_norm is inf: give a number, such as 1.0"),
        (["--parameter", "clip_norm=-1e999"], "parameter clip_norm is -inf: give a number, such as 1.0"),
        (["--parameter", "seeds=3"], "parameter seeds is 3: give a value, such as [0, 1]"),
        (["--parameter", "seeds=0,1"], "parameter seeds is (0, 1): give a value, such as [0, 1]"),
        (["--parameter", "seeds=many"], "parameter seeds is 'many': give a value, such as [0, 1]"),
        (["--parameter", "clip_norm=1", "--parameter", "clip_norm=2"], "'clip_norm' is given twice: give each once"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(options: list[str], says: str, tmp_path: Path) -> None:
    write(tmp_path / "00_a.ipynb")
    result = invoked("course", "run", *options, "--notebooks", tmp_path, "--out", tmp_path / "out")
    assert says in str(result.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (PANEL + "panel.set(n=0)\npanel.set(n=2)\npanel.check()", "ZeroDivisionError"),  # fixed immediately
        ("import time\ntime.sleep(60)", "a cell took longer than 3 s"),
        ("import os\nos._exit(1)", "the kernel died"),
    ],
    ids=["panel", "slow", "dead"],
)
def test_what_goes_wrong_is_one_sentence(cell: str, says: str, tmp_path: Path) -> None:
    notebook = read_notebook(write(tmp_path / "a.ipynb", cell))
    _, error = execute(notebook, {}, timeout=3 if "slee" in cell else 60)
    assert error
    assert says in error
    assert "\n" not in error


@pytest.mark.parametrize("content", ["", "not json", '{"cells": 3}', "[]", "\x80"])
def test_a_broken_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text(content, encoding="latin-1")
    assert "is not a notebook" in str(invoked("course", "run", "--strict", tmp_path / "a.ipynb").exception)


# ---- Pages -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("course")
    write(folder / "00_panel.ipynb", PANEL, "go.Figure(go.Scatter(y=[1, 4, 9]))", "panel.set(n=6)")
    [row] = run_course(folder, folder / "out", {"clip_norm": 2.5})
    assert row["error"] is None
    return folder / "out"


def test_executed_copies_have_outputs_but_no_widget_state_and_no_path(out: Path) -> None:
    text = (out / "00_panel.ipynb").read_text()
    assert "clip_norm = 2.5" in text
    assert "widget-state" not in text
    assert str(out.parent) not in text
    assert len(text) < 60_000


def test_a_page_shows_formulas_and_figures_and_loads_nothing_from_elsewhere(
    out: Path, browser: browsing.Chrome
) -> None:
    page = (out / "00_panel.html").read_text()
    loads = re.findall(r"(?:<script[^>]*src|<link[^>]*href|<img[^>]*src|<iframe[^>]*src)=[\"']([^\"']+)", page)
    assert loads == ["plotly.min.js", "panels.js"]
    assert "<math" in page
    opened(browser, out / "00_panel.html")
    assert drawn(browser) == [[12, 24], [1, 4, 9]]
    seen = browser.find_element("css selector", ".edp-panel").text
    assert all(text in seen for text in ("Tokens", "What is seen.", "12 claimed", "A sentence."))
    assert console_errors(browser) == []
    assert asked_elsewhere(browser) == []


def opened(driver: browsing.Chrome, page: Path) -> None:
    """Open a page and wait until its figures are drawn."""
    console_errors(driver)
    driver.get(page.as_uri())
    browsing.until(lambda: len(drawn(driver)) == 2, 20, "no figures")


def drawn(driver: browsing.Chrome) -> list[list[float]]:
    plots = "return [...document.querySelectorAll('.js-plotly-plot')].map(plot => [...plot._fullData[0].y])"
    return list(driver.execute_script(plots))


def enter(driver: browsing.Chrome, text: str) -> str:
    """Type a number into the panel's box, and return the message below it."""
    box = driver.find_element("css selector", ".edp-panel input[type=text]")
    driver.execute_script(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))", box, text
    )
    time.sleep(0.2)
    return str(driver.find_element("css selector", ".edp-note .edp-lab-error").text)


def test_sliders_move_on_a_page_and_what_is_not_there_is_marked(out: Path, browser: browsing.Chrome) -> None:
    opened(browser, out / "00_panel.html")
    shown = browser.find_element("css selector", ".edp-panel")
    slider = browser.find_element("css selector", ".edp-panel input[type=range]")
    slider.send_keys(Keys.ARROW_RIGHT)
    browsing.until(lambda: drawn(browser)[0] == [10, 20], 5, "the figure did not follow")
    assert "10 claimed" in shown.text
    assert enter(browser, "2") == ""
    assert drawn(browser)[0] == [30, 60]
    assert "nearest" in enter(browser, "5.2")
    assert drawn(browser)[0] == [12, 24]
    assert "must be a number" in enter(browser, "many")
    shown.find_element("xpath", ".//button[text()='reset']").click()
    assert browsing.until(lambda: drawn(browser)[0] == [12, 24], 5, "no reset")
    assert console_errors(browser) == []


# ---- Students and teachers -------------------------------------------------------------------------------------------


STATUSES = {"estimate": "open", "total": "wrong", "delta": "open"}


def test_verdicts_of_a_students_notebook_whatever_its_cells_raise(tmp_path: Path) -> None:
    checks = 'from edp_lab.course.kit.exercises import Checks\ncheck = Checks("01")'
    cells = checks, "1 / 0", 'check("total", lambda *given: 7)'
    store(tmp_path / "ada.ipynb", *map(new_code_cell, cells))
    result = invoked("course", "run", "--strict", tmp_path / "ada.ipynb")
    assert result.exit_code == 0, result.exception
    [row] = json.loads(result.stdout)
    assert row["error"] is None
    assert {name: one["status"] for name, one in row["verdicts"].items()} == STATUSES
    store(tmp_path / "bob.ipynb", new_code_cell("1 + 1"))
    [row] = json.loads(invoked("course", "run", "--strict", tmp_path / "bob.ipynb").stdout)
    assert row["verdicts"] == {}
    assert row["error"]


def test_a_stub_runs_through_papermill_as_a_student_has_it(tmp_path: Path) -> None:
    import papermill

    [path] = (one for one in NOTEBOOKS if one.name.startswith("01"))
    papermill.execute_notebook(path, tmp_path / "out.ipynb", {"sigma": 3.0}, progress_bar=False)


def test_solutions_are_written_with_what_the_notebooks_lead_to(tmp_path: Path) -> None:
    result = invoked("course", "solutions", "--out", tmp_path)
    assert result.stdout == f"{tmp_path.resolve()}\n"
    assert sorted(path.name for path in tmp_path.glob("*.ipynb")) == [path.name for path in NOTEBOOKS]
    assert (tmp_path / "glossary.md").exists()
    assert read_notebook(tmp_path / NOTEBOOKS[3].name) != read_notebook(NOTEBOOKS[3])


def test_a_readers_copy_is_whole_and_never_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    own_copy(NOTEBOOKS[0].parent, mine)
    assert not (mine / "solutions").exists()
    (mine / NOTEBOOKS[0].name).write_text("my work")
    (mine / NOTEBOOKS[1].name).unlink()
    own_copy(NOTEBOOKS[0].parent, mine)
    assert (mine / NOTEBOOKS[0].name).read_text() == "my work"
    assert (mine / NOTEBOOKS[1].name).read_bytes() == NOTEBOOKS[1].read_bytes()
