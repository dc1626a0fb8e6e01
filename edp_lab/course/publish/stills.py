"""What a page without a kernel shows of a notebook's panels: asked of its kernel after the last cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from ipywidgets.widgets.widget import _instances
from markupsafe import escape

from edp_lab.course.kit.panel import Frame, Panel, RunPanel
from edp_lab.course.kit.predictions import Predictions
from edp_lab.errors import UsageError

Still = dict[str, Any]


def stills() -> dict[str, Still]:
    """By model id: of a figure ``figure``, of predictions ``questions``, of a panel ``heading``, ``views``, ``more``.

    A view has what was ``moved``, ``tiles``, ``sentence``, ``figures``, and folded away ``words`` and ``command``;
    ``more`` are figures that change less of what one is to see.
    """
    widgets = list(_instances.items())
    shown: dict[str, Still] = {}
    frames = [(key, widget) for key, widget in widgets if isinstance(widget, Frame)]
    inside = {id(live) for _, frame in frames if isinstance(frame, Panel | RunPanel) for live in frame.figures}
    for key, widget in widgets:
        if isinstance(widget, go.FigureWidget) and id(widget) not in inside:
            # What plotly sends a live figure later goes to the browser only: the widget's state is that of the start.
            shown[key] = {"figure": slim(widget)}
        elif isinstance(widget, Predictions):
            shown[key] = {"questions": list(widget.questions.values())}
    return shown | {key: _panel(frame) for key, frame in frames}


def _panel(frame: Any) -> Still:
    heading = frame.children[1].value
    if isinstance(frame, Panel):
        views = [view for moved, values in (frame.views or {"": {}}).items() if (view := _view(frame, moved, values))]
        return {"heading": heading, "views": views, "more": list(map(slim, frame.view().figures[1:]))}
    folded = {"words": frame.words.value, "command": frame.command.value}
    view = {"moved": "", "tiles": frame.tiles.tiles, "sentence": frame.tiles.sentence, **folded}
    return {"heading": heading, "views": [{**view, "figures": list(map(slim, frame.figures))}], "more": []}


def _view(panel: Panel, moved: str, values: Mapping[str, Any]) -> Still | None:
    """The panel at one of its telling settings; None where the notebook's parameters do not allow for that."""
    try:
        view = panel.view(**values)
    except UsageError:
        return None
    words, figures = str(escape(view.words)), list(map(slim, view.figures[:1]))
    return {**view._asdict(), "moved": moved, "words": words, "figures": figures}


def slim(figure: Any) -> dict[str, Any]:
    """A figure as JSON, with as many digits as a picture can show."""
    parts = json.loads(pio.to_json(figure, validate=False), parse_float=lambda text: float(f"{float(text):.6g}"))
    return {name: parts[name] for name in ("data", "layout")}
