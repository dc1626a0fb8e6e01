"""A figure that follows a slider: one message an update, and nothing that the browser sends back upsets it."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from edp_lab.course.kit import theme


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    monkeypatch.setattr(theme.LiveFigure, "_send", lambda self, message, buffers=None: messages.append(message))
    return messages


def test_an_update_is_one_message_however_much_it_changes(sent):
    figure = theme.live(go.Figure([go.Scatter(x=np.arange(3.0), y=np.arange(3.0)) for _ in range(2)]))
    for k in range(3):
        sent.clear()
        with figure.batch_update():
            for trace in figure.data:
                trace.y = np.arange(3.0) + k + 1
            figure.layout.title.text = f"move {k}"
            figure.layout.xaxis.range = [0, k + 2]
        [message] = sent
        [(name, update)] = message["state"].items()
        assert name == "_py2js_update"
        assert update["style_traces"] == [0, 1]
        assert update["layout_data"]["title.text"] == f"move {k}"


def test_an_update_that_changes_nothing_is_no_message(sent):
    figure = theme.live(go.Figure(go.Scatter(x=[1, 2], y=[3, 4])))
    sent.clear()
    with figure.batch_update():
        figure.data[0].y = [3, 4]
    assert sent == []


def test_what_was_sent_is_not_kept(sent):
    """A page that is loaded again takes the figure as it is, not its last update on top."""
    figure = theme.live(go.Figure(go.Scatter(x=[1, 2], y=[3, 4])))
    with figure.batch_update():
        figure.data[0].y = np.array([5.0, 6.0])
    assert figure.get_state()["_py2js_update"] is None
    assert list(figure.data[0].y) == [5, 6]


def test_paths_of_a_direct_update_reach_layout_and_browser(sent):
    figure = theme.live(go.Figure(go.Scatter(x=[1, 2], y=[3, 4])).add_annotation(text="before").add_shape(x0=0))
    sent.clear()
    figure.plotly_update(
        {"y": [[5.0, 6.0]]}, {"xaxis.range": [0, 9], "annotations[0].text": "after", "shapes[0].x0": 3}
    )
    [message] = sent
    update = message["state"]["_py2js_update"]
    assert update["layout_data"] == {"xaxis.range": [0, 9], "annotations[0].text": "after", "shapes[0].x0": 3}
    assert update["style_data"] == {"y": [[5.0, 6.0]]}
    layout = figure.layout
    assert (layout.xaxis.range, layout.annotations[0].text, layout.shapes[0].x0) == ((0, 9), "after", 3)
    sent.clear()
    figure.plotly_update({}, {"xaxis.range": [0, 9]})
    assert sent == []
