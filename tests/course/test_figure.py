"""Figures as dicts, and the widget that shows them."""

import json
import math
from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from edp_lab.course.kit.figure import (
    LiveFigure,
    error_bars,
    figure,
    gaps,
    line,
    log_axis,
    points,
    vline,
)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    monkeypatch.setattr(LiveFigure, "_send", lambda self, message, buffers=None: messages.append(message))
    return messages


def draw(move: int) -> dict[str, Any]:
    curves = [line("a", "red", x=np.arange(3.0), y=np.arange(3.0) + move), points("b", "blue", "x", 5, x=[1], y=[2])]
    axes = {"xaxis": {"title": "steps", "range": [0, move]}, "shapes": [vline(move)]}
    return figure(f"move {move}", *curves, caption="and a caption", **axes)


def test_a_move_is_one_message_and_none_where_nothing_differs(sent):
    live = LiveFigure(draw(0))
    sent.clear()
    live.show(draw(1))
    [message] = sent
    assert list(message["state"]) == ["drawn"]
    assert message["state"]["drawn"]["layout"]["xaxis"]["range"] == [0, 1]
    live.show(draw(1))
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
