"""A figure that follows a slider: one message an update with what differs, and nothing that the browser sends back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edp_lab.course.kit.figure import (
    LiveFigure,
    axis,
    differences,
    error_bars,
    figure,
    gaps,
    line,
    log_axis,
    plots,
    points,
    vline,
)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    monkeypatch.setattr(LiveFigure, "_send", lambda self, message, buffers=None: messages.append(message))
    return messages


def draw(move: int, shapes: int = 1) -> dict[str, Any]:
    curves = [line("a", "red", x=np.arange(3.0), y=np.arange(3.0) + move), points("b", "blue", "x", 5, x=[1], y=[2])]
    axes = {"xaxis": {"title": "steps", "range": [0, move]}, "shapes": [vline(move + n) for n in range(shapes)]}
    return figure(f"move {move}", *curves, caption="and a caption", **axes)


def test_a_move_is_one_message_with_what_differs_and_none_where_nothing_does(sent):
    live = LiveFigure(draw(0))
    for move in (1, 2):
        sent.clear()
        live.show(draw(move))
        [message] = sent
        [(name, update)] = message["state"].items()
        assert name == "_py2js_update"
        assert (update["style_traces"], list(update["style_data"])) == ([0], ["y"])
        changed = {"title.text": f"move {move}", "xaxis.range": [0, move], "shapes[0].x0": move, "shapes[0].x1": move}
        assert update["layout_data"] == changed
    sent.clear()
    live.show(draw(2))
    assert sent == []
    # What was sent is not kept, and a page that is loaded again has the last figure.
    assert live.get_state()["_py2js_update"] is None
    assert list(live.data[0].y) == [2, 3, 4]
    assert (live.layout.title.text, live.layout.xaxis.range, live.layout.shapes[0].x0) == ("move 2", (0, 2), 2)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5))
def test_patched_is_drawn_anew_whatever_the_way(moves):
    live = LiveFigure(draw(0))
    for move, shapes in moves:
        live.show(draw(move, shapes))
        patched, anew = (go.Figure(one).to_plotly_json() for one in (live, LiveFigure(draw(move, shapes))))
        assert str(patched["layout"]) == str(anew["layout"])
        assert [{**trace, "uid": None} for trace in patched["data"]].__str__() == str(
            [{**trace, "uid": None} for trace in anew["data"]]
        )


def test_a_column_of_a_matrix_is_sent_in_one_piece():
    column = np.arange(6.0).reshape(3, 2)[:, 1]
    [(_, sent)] = differences({"y": None}, {"y": column})
    assert (list(sent), sent.flags.c_contiguous, column.flags.c_contiguous) == ([1, 3, 5], True, False)


def test_another_number_of_traces_is_refused():
    live, less = LiveFigure(draw(0)), draw(1)
    less["data"].pop()
    with pytest.raises(ValueError, match="zip"):
        live.show(less)


def test_a_patch_leaves_what_drawings_share_alone():
    shared = {"orientation": "h"}
    live = LiveFigure({"data": [], "layout": {}})
    live.show({"data": [], "layout": {"legend": shared}})
    live.show({"data": [], "layout": {"legend": {"orientation": "h", "y": 2}}})
    assert shared == {"orientation": "h"}


def test_differences_are_paths_and_none_where_something_has_gone():
    old = {"a": {"b": 1, "c": [1, 2]}, "rows": [{"x": 0}, {"x": 1}], "same": np.array([1.0, np.nan]), "gone": 1}
    new = {"a": {"b": 2, "c": [1, 2]}, "rows": [{"x": 0}, {"x": 5}], "same": np.array([1.0, 2.0]), "new": {"d": 1}}
    found = dict(differences(old, new))
    assert list(found.pop(("same",))) == [1, 2]
    assert found == {("a", "b"): 2, ("rows", 1, "x"): 5, ("gone",): None, ("new", "d"): 1}
    assert dict(differences(old, old)) == {}
    assert dict(differences({"rows": [{"x": 0}]}, {"rows": []})) == {("rows",): []}


def test_drawing_helpers_give_what_plotly_takes():
    layout = plots(2, 1, ["above", "below"], [({}, {}), (axis("x", [0, 1]), {"title": "y"})], vertical_spacing=0.3)
    drawn = go.Figure(figure("two plots", top=90, **layout)).layout
    assert (drawn.annotations[1].text, drawn.xaxis2.title.text, drawn.yaxis2.title.text) == ("below", "x", "y")
    assert drawn.yaxis.domain[0] == pytest.approx(0.65)
    assert drawn.margin.t == 90
    curve = line("l", "red", symbol="circle", size=9, width=4, x=[1], y=[1])
    assert (curve["mode"], curve["marker"]["size"]) == ("lines+markers", 9)
    assert curve["line"] == {"color": "red", "dash": "solid", "width": 4}
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
