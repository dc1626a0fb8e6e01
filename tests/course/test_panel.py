"""Panels without a browser: sliders and boxes follow each other, and no error of a callback is lost."""

from typing import Any

import pytest

from edp_lab.course.kit.controls import choice, decades, number
from edp_lab.course.kit.figure import figure, points
from edp_lab.course.kit.panel import Panel, RunPanel, Tile
from edp_lab.course.kit.text import Html
from edp_lab.errors import UsageError


def compute(x: float, n: int, kind: str) -> float:
    if x < 0:
        raise UsageError("x is negative: it must be 0 or more")
    if x == 13:
        raise ZeroDivisionError("thirteen")
    return -x * n if kind == "minus" else x * n


def draw(result: float) -> dict[str, Any]:
    draw.calls = getattr(draw, "calls", 0) + 1
    return figure(str(result), points("it", "red", "x", 5, x=[0], y=[result]))


def make(**start: Any) -> Panel:
    values = {"x": 1.0, "n": 3, "kind": "plus", **start}
    controls = {
        "x": number("x", values["x"], decades(-2, 2), unit="metres"),
        "n": number("n", values["n"], [1, 2, 4, 8], unit="pieces"),
        "kind": choice("kind", values["kind"], {"plus": "plus", "minus": "minus"}),
    }

    def idle(result: float) -> tuple[str, ...]:
        return ("n",) if result == 0 else ()

    def tiles(result: float) -> tuple[Tile, Tile, str]:
        return Tile("result", str(result)), Tile("twice", str(2 * result)), "A sentence."

    words = Html("<p>{}</p>").format
    return Panel("a test", "A number.", compute, [draw], words, command, tiles=tiles, idle=idle, **controls)


def command(result: float, **values: Any) -> str:
    return f"# {result} of {values}"


def test_starts_with_the_values_given_and_draws_once_when_set() -> None:
    panel = make(x=2.5, kind="minus")
    assert panel.values == {"x": 2.5, "n": 3, "kind": "minus"}
    assert (panel.result, panel.words.value) == (-7.5, "<p>-7.5</p>")
    assert panel.figures[0].figure["layout"]["title"]["text"] == "-7.5"
    assert panel.command.value == "# -7.5 of {'x': 2.5, 'n': 3, 'kind': 'minus'}"
    with pytest.raises(UsageError, match="x is negative"):
        make(x=-1.0)
    panel = make()
    before = draw.calls
    panel.set(x=2.0, n=4, kind="minus")
    assert (panel.result, draw.calls - before) == (-8, 1)
    with pytest.raises(UsageError, match="no control 'z'; it has x, n, kind"):
        panel.set(z=1)


def test_a_number_may_lie_between_and_beyond_the_stops_and_what_is_none_is_refused_in_words() -> None:
    panel = make()
    panel.controls["x"].entered = 0.25
    assert panel.result == 0.75
    panel = make()
    for value in (5, 100, -3):
        panel.controls["n"].entered = value
        assert panel.result == value
    for typed, why in (("many", "n is 'many': it must be a number"), (2.5, "n is 2.5: it must be a whole number")):
        panel.controls["n"].entered = typed
        assert (panel.controls["n"].error, panel.result) == (why, -3)
    panel.controls["n"].entered = 4
    assert (panel.controls["n"].error, panel.result) == ("", 4)


class Stopping(RunPanel):
    def prepare(self) -> bool:
        return bool(self.words.value)

    def work(self, task: bool) -> None:
        if task:
            self.stop()
            self.heed_stop("")
        self.words.value = Html("<p>It ran.</p>")


def test_what_a_run_has_said_stays_as_it_is_where_the_next_is_stopped() -> None:
    panel = Stopping("Stop", "It stops.")
    for state in ("done", "stopped"):
        panel.run(wait=True)
        assert (panel.words.value, panel.state.value) == ("<p>It ran.</p>", state)


def test_a_fault_is_shown_until_the_next_move_and_raised_by_check() -> None:
    panel = make()
    panel.controls["x"].entered = 13.0  # as a browser does: ipywidgets would swallow what the callback raises
    assert "ZeroDivisionError: thirteen" in panel.error_box.value
    panel.set(x=2.0)
    assert panel.error_box.value == ""
    with pytest.raises(ZeroDivisionError, match="thirteen"):
        panel.check()


def test_logarithmic_stops_are_round_increasing_and_hold_the_papers_grid() -> None:
    stops = decades(-6, 1)
    assert stops == sorted(set(stops))
    assert (stops[0], stops[-1], len(stops)) == (1e-6, 10, 71)
    assert {0.1, 0.25, 0.5, 1, 2, 5, 0.03} <= set(stops)


def test_a_control_that_changes_nothing_at_present_is_greyed() -> None:
    panel = make()
    panel.set(x=0.0)
    assert [control.disabled for control in panel.controls.values()] == [False, True, False]
    panel.reset()
    assert not panel.controls["n"].disabled
