"""Code shared by all notebooks, without a browser: panels, figures, and numbers as text."""

import json
import math
import re
import shlex
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edp_lab.course.kit.controls import choice, decades, number
from edp_lab.course.kit.figure import LiveFigure, error_bars, figure, gaps, line, log_axis, points, vline
from edp_lab.course.kit.panel import Panel
from edp_lab.course.kit.runs import RunPanel
from edp_lab.course.kit.text import Html, Tile, at_least, at_most, digits, plain, short, train_command
from edp_lab.errors import UsageError
from edp_lab.training.config import TrainConfig

# ---- Panels ----------------------------------------------------------------------------------------------------------


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
    with pytest.raises(UsageError, match="kind is 'times': choose "):
        panel.set(kind="times")


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
    panel = Stopping("Stop", "It stops.", [])
    for state in ("done", "stopped"):
        panel.run(wait=True)
        assert (panel.words.value, panel.state.value) == ("<p>It ran.</p>", state)


def test_a_fault_is_shown_until_the_next_move_and_raised_by_check() -> None:
    panel = make()
    panel.controls["x"].entered = 13.0  # like a browser; ipywidgets would swallow the error
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


# ---- Figures ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    monkeypatch.setattr(LiveFigure, "_send", lambda self, message, buffers=None: messages.append(message))
    return messages


def drawn(move: int) -> dict[str, Any]:
    curves = [line("a", "red", x=np.arange(3.0), y=np.arange(3.0) + move), points("b", "blue", "x", 5, x=[1], y=[2])]
    axes = {"xaxis": {"title": "steps", "range": [0, move]}, "shapes": [vline(move)]}
    return figure(f"move {move}", *curves, caption="and a caption", **axes)


def test_a_move_is_one_message_and_none_where_nothing_differs(sent):
    live = LiveFigure(drawn(0))
    sent.clear()
    live.show(drawn(1))
    [message] = sent
    assert list(message["state"]) == ["drawn"]
    assert message["state"]["drawn"]["layout"]["xaxis"]["range"] == [0, 1]
    live.show(drawn(1))
    assert len(sent) == 1


def test_what_is_sent_is_json_and_an_array_the_bytes_of_its_numbers():
    column, words = np.arange(6).reshape(3, 2)[:, 1], np.array(["a", "b"], dtype=object)
    live = LiveFigure(figure("t", {"type": "heatmap", "x": column, "y": words, "z": np.array([[0.5, np.nan]])}))
    [trace] = json.loads(json.dumps(live.drawn, allow_nan=False))["data"]
    assert trace["y"] == ["a", "b"]
    seen = {name: np.frombuffer(b64decode(trace[name]["bdata"]), trace[name]["dtype"]) for name in "xz"}
    assert (list(seen["x"]), trace["z"]["shape"]) == ([1, 3, 5], "1, 2")
    np.testing.assert_array_equal(seen["z"], [0.5, np.nan])


def test_drawing_helpers_give_what_plotly_takes():
    curve = line("l", "red", x=[1], y=[1])
    told = figure("hover", curve, {**curve, "hovertemplate": "own"}, {**curve, "hoverinfo": "skip"}, hover="all")
    assert [trace.get("hovertemplate") for trace in told["data"]] == ["all", "own", None]
    assert gaps([1, 2], [3, 4], "ab") == {"x": [1, 3, None, 2, 4, None], "y": ["a", "a", None, "b", "b", None]}
    bars = error_bars([1.0, 5.0], [(0.5, 3.0), (5.0, 6.0)])
    assert (bars["array"], bars["arrayminus"]) == ([2.0, 1.0], [0.5, 0.0])


@pytest.mark.parametrize(
    ("values", "margin", "span"),
    [([0.02, 300], 0, [-2.05, 3.05]), ([1, 100], 0.05, [-1, 3]), ([None, -1, math.inf], 0.05, [-1, 1])],
)
def test_a_log_axis_stands_on_powers_of_ten_around_what_it_can_show(values, margin, span):
    assert log_axis("x", values, margin=margin)["range"] == pytest.approx(span)


# ---- Numbers and commands --------------------------------------------------------------------------------------------


SOUND = TrainConfig("smart-home", clip_norm=0.5, z0=0.2, decay="linear", tau=0.3, num_devices=4, epochs=5)


def test_numbers_as_people_write_them() -> None:
    three = {0.02964: "0.0296", 16.44: "16.4", 1234.5: "1,234", 3e-8: "3 × 10⁻⁸", 0.0: "0", 1.0: "1"}
    three |= {2.5e9: "2.5 billion", 999.99: "1,000", 4.4e12: "4.4 × 10¹²"}
    assert {value: digits(value) for value in three} == three
    two = {0.0013258: "0.0013", 17.6: "18", 590_000: "590,000", 215: "220", 0.0: "0", 2.0: "2", None: "beyond 10³⁰⁸"}
    two |= {1.5e8: "150 million", 4.29e11: "430 billion"}
    assert {value: short(value) for value in two} == two


def read(written: str) -> float:
    """The number in a text."""
    number, _, power = re.sub("^10(?=[⁻⁰¹²³⁴⁵⁶⁷⁸⁹])", "1 × 10", written.replace(",", "")).partition(" × 10")
    number, _, name = number.partition(" ")
    exponent = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)
    return float(number) * {"": 1, "million": 1e6, "billion": 1e9}[name] * 10.0**exponent


@given(st.floats(1e-9, 1e15))
def test_what_holds_is_never_written_smaller_than_it_is(epsilon: float) -> None:
    written = at_most(epsilon)
    assert epsilon * (1 - 1e-11) <= read(written) <= epsilon * 1.0101
    assert at_most(math.inf) == at_most(None) == digits(math.inf)
    proven = at_least(epsilon)
    assert epsilon / 1.0101 <= read(proven) <= epsilon * (1 + 1e-11)
    assert [at_least(3 * 1.1), at_least(9.999), at_least(1234.9), at_least(0.0)] == ["3.3", "9.99", "1,234", "0"]
    assert at_least(math.inf) == at_least(None) == digits(math.inf)
    assert [at_most(1000 * 0.1), at_most(7.501), at_most(1234.1)] == ["100", "7.51", "1,235"]


@pytest.mark.parametrize(
    "config",
    [
        replace(SOUND, as_printed=True, size="small", lr=0.02),
        SOUND,
        plain(SOUND, 3),
        replace(SOUND, keep_duplicates_together=False),
    ],
)
def test_train_command_makes_this_very_run(config: TrainConfig, trained: Callable[[str], Any]) -> None:
    line = train_command(config, "runs/my run")
    assert shlex.split(line)[:2] == ["edp-lab", "train"]
    assert shlex.split(line)[-2:] == ["--out", "runs/my run"]
    assert trained(line) == config
