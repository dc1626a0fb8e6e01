"""Panels without a browser: sliders and boxes follow each other, and no error of a callback is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ipywidgets as widgets
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from edp_lab.course.kit.controls import choice, decades, number
from edp_lab.course.kit.figure import figure, points
from edp_lab.course.kit.panel import Panel, command_box
from edp_lab.course.publish.runner import run_notebook
from edp_lab.errors import UsageError

RAISING = """
import sys
sys.path.insert(0, {folder!r})
from test_panel import make
panel = make()
panel.set(x=13.0)
panel.set(x=2.0)
"""


def compute(x: float, n: int, kind: str) -> float:
    if x < 0:
        raise UsageError("x is negative: it must be 0 or more")
    if x == 13:
        raise ZeroDivisionError("thirteen")
    return -x * n if kind == "minus" else x * n


def draw(result: float) -> dict[str, Any]:
    draw.calls = getattr(draw, "calls", 0) + 1
    return figure([points("it", "red", "x", 5, x=[0], y=[result])], str(result))


def make(**start: Any) -> Panel:
    values = {"x": 1.0, "n": 3, "kind": "plus", **start}
    controls = {
        "x": number("x", values["x"], decades(-2, 2), unit="metres"),
        "n": number("n", values["n"], [1, 2, 4, 8], unit="pieces"),
        "kind": choice("kind", values["kind"], {"plus": "plus", "minus": "minus"}),
    }
    idle = {"idle": lambda result: ("n",) if result == 0 else ()}
    return Panel("a test", "A number.", controls, compute, [draw], lambda result: f"<p>{result}</p>", command, **idle)


def command(result: float, **values: Any) -> str:
    return f"# {result} of {values}"


def test_starts_with_the_values_given() -> None:
    panel = make(x=2.5, kind="minus")
    assert panel.values == {"x": 2.5, "n": 3, "kind": "minus"}
    assert panel.result == -7.5
    assert panel.words.value == "<p>-7.5</p>"
    assert panel.command.value == "# -7.5 of {'x': 2.5, 'n': 3, 'kind': 'minus'}"
    assert panel.figures[0].layout.title.text == "-7.5"


def test_start_values_that_make_no_sense_raise() -> None:
    with pytest.raises(UsageError, match="x is negative"):
        make(x=-1.0)


def test_slider_and_box_follow_each_other() -> None:
    panel = make()
    slider, box = panel.controls["x"].slider, panel.controls["x"].source
    slider.value = 0.25
    assert (box.value, panel.result) == (0.25, 0.75)
    box.value = 60
    assert (slider.value, panel.result) == (60, 180)


def test_an_executed_page_says_the_number_of_the_box_and_its_unit(tmp_path: Path) -> None:
    code = (
        RAISING.format(folder=str(Path(__file__).parent))
        .replace("x=13.0", "x=1.1")
        .replace("panel.set(x=2.0)", "panel")
    )
    notebook = new_notebook(cells=[new_code_cell(code)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    page = run_notebook(tmp_path / "in.ipynb", tmp_path / "out").html.read_text()
    assert "x <b>1.1 (metres)</b>" in page
    assert "n <b>3 (pieces)</b>" in page


def test_box_takes_numbers_between_and_beyond_the_stops_of_its_slider() -> None:
    panel = make()
    box = panel.controls["n"].source
    for value, stop in ((5, 4), (7, 8), (100, 8), (-3, 1)):
        box.value = value
        assert (box.value, panel.controls["n"].slider.value) == (value, stop)
        assert panel.result == value


def test_every_slider_has_a_whole_label_a_box_and_a_unit() -> None:
    for control in list(make().controls.values())[:2]:
        slider, box, unit = control.row.children
        assert slider.style.description_width == "initial"
        assert slider.description
        assert isinstance(box, widgets.FloatText | widgets.IntText)
        assert unit.value


def test_command_box_grows_until_the_whole_command_is_seen_and_never_shrinks() -> None:
    box = command_box(2)
    box.value = "edp-lab attack lira"
    assert box.rows == 2
    box.value = "edp-lab train --corpus atis\n" + "--gpus 8 " * 20  # 180 characters, up to 54 in a row
    assert box.rows == 1 + 4
    box.value = "edp-lab attack lira"
    assert box.rows == 5


def test_set_draws_once_and_reset_goes_back() -> None:
    panel = make()
    before = draw.calls
    panel.set(x=2.0, n=4, kind="minus")
    assert (panel.result, draw.calls - before) == (-8, 1)
    panel.reset()
    assert panel.values == {"x": 1.0, "n": 3, "kind": "plus"}
    assert panel.result == 3
    with pytest.raises(UsageError, match="no control 'z'; it has x, n, kind"):
        panel.set(z=1)


def test_bad_input_is_one_sentence_in_the_box_until_it_is_mended() -> None:
    panel = make()
    panel.set(x=-1.0)
    assert panel.error_box.value == '<span role="alert">x is negative: it must be 0 or more</span>'
    assert panel.result == 3
    panel.check()  # bad input is no fault of the panel
    panel.set(x=2.0)
    assert panel.error_box.value == ""
    assert [str(error) for error in panel.errors] == ["x is negative: it must be 0 or more"]


def test_fault_in_a_callback_is_shown_kept_and_raised_by_check() -> None:
    panel = make()
    panel.controls["x"].source.value = 13.0  # as a browser does: ipywidgets would swallow what the callback raises
    assert "ZeroDivisionError: thirteen" in panel.error_box.value
    panel.set(x=2.0)
    assert panel.error_box.value == ""
    with pytest.raises(ZeroDivisionError, match="thirteen"):
        panel.check()


def test_fault_in_a_callback_fails_the_course_even_if_mended_at_once(tmp_path: Path) -> None:
    notebook = new_notebook(cells=[new_code_cell(RAISING.format(folder=str(Path(__file__).parent)))])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "raising.ipynb")
    run = run_notebook(tmp_path / "raising.ipynb", tmp_path / "out")
    assert run.error is not None
    assert "ZeroDivisionError: thirteen" in run.error


def test_logarithmic_stops_are_round_increasing_and_hold_the_papers_grid() -> None:
    stops = decades(-6, 1)
    assert stops == sorted(set(stops))
    assert (stops[0], stops[-1], len(stops)) == (1e-6, 10, 71)
    assert {0.1, 0.25, 0.5, 1, 2, 5, 0.03} <= set(stops)


def test_a_control_that_changes_nothing_at_present_is_greyed() -> None:
    panel = make()
    panel.set(x=0.0)
    assert [control.source.disabled for control in panel.controls.values()] == [False, True, False]
    panel.reset()
    assert not panel.controls["n"].slider.disabled
