"""The panels of a running notebook, seen from within its kernel: what they show, live and on a page without a kernel,
and how fast they follow.

Imported by code that is sent to a kernel: after the last cell, by browser tests and by ``edp-lab bench panels``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from typing import Any

import ipywidgets as widgets
import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
from ipywidgets.widgets.widget import _instances
from markupsafe import escape

from edp_lab.course.kit.controls import Control
from edp_lab.course.kit.figure import LiveFigure
from edp_lab.course.kit.panel import Fold, Frame, Panel
from edp_lab.course.kit.predictions import Predictions
from edp_lab.course.kit.text import digits
from edp_lab.errors import UsageError

DRAWN = ("x", "y", "z")  # what a trace draws
Still = dict[str, Any]


def panels() -> list[Panel]:
    """The cheap panels, those that redraw while a slider moves, in the order in which they were made."""
    return [widget for widget in list(_instances.values()) if isinstance(widget, Panel)]


def shown(panel: Panel) -> dict[str, Any]:
    """What a panel shows, for comparison with a browser.

    Returns:
        heading; sliders: how many; words: each read-out, in HTML; figures: of each figure, of each trace, the numbers
        under "x", "y" and "z", flat, None for what is missing.
    """
    inside = list(_within(panel))
    figures = [widget.figure for widget in inside if isinstance(widget, LiveFigure)]
    return {
        "heading": panel.title,
        "sliders": len(_sliders(panel)),
        "words": [widget.value for widget in inside if isinstance(widget, widgets.HTML | Fold)],
        "figures": [[_numbers(trace) for trace in figure["data"]] for figure in figures],
    }


def show_all() -> None:
    """Print `shown` of all panels as JSON."""
    print(json.dumps([shown(panel) for panel in panels()]))


def move(panel: Panel, moves: int) -> list[float]:
    """Move the panel's sliders, one after the other, stop by stop, up and down; seconds of each move.

    A move is what a browser's message starts: the function, the patches of the figures, the read-outs, and sending
    them. The panel is reset afterwards.
    """
    sliders, seconds = list(_sliders(panel).items()), []
    for number, (name, slider) in enumerate(sliders):
        share = moves // len(sliders) + (number < moves % len(sliders))
        for value in _walk(slider, share):
            start = time.perf_counter()
            slider.value = value
            seconds.append(time.perf_counter() - start)
        panel.set(**{name: panel.controls[name].default})
    return seconds


def time_all(moves: int) -> list[dict[str, Any]]:
    """Heading ("panel") and milliseconds of each move ("kernel_ms") for every cheap panel with a slider."""
    timed = [(panel.title, move(panel, moves)) for panel in panels() if _sliders(panel)]
    return [{"panel": name, "kernel_ms": [1000 * s for s in seconds]} for name, seconds in timed]


def _sliders(panel: Panel) -> dict[str, Control]:
    return {name: control for name, control in panel.controls.items() if control.stops}


def _walk(slider: Control, steps: int) -> Iterator[Any]:
    """The values of that many steps along a slider's stops, from where it stands, turning round at the ends."""
    stops = slider.stops
    following = 1 + min(range(len(stops)), key=lambda k: abs(stops[k] - slider.value))
    return islice(cycle([*stops, *stops[-2:0:-1]]), following, following + steps)


def _within(widget: widgets.Widget) -> Iterator[widgets.Widget]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _within(child)


def _numbers(trace: Any) -> dict[str, list[float | None]]:
    found = {}
    for key in (key for key in DRAWN if key in trace and trace[key] is not None):
        values = np.asarray(trace[key])
        if values.dtype.kind in "biuf":  # no words on an axis
            found[key] = [float(value) if np.isfinite(value) else None for value in values.ravel()]
    return found


# ---- On a page without a kernel --------------------------------------------------------------------------------------


def stills() -> dict[str, Still]:
    """By model id: of a figure ``figure``, of predictions ``questions``, of a panel ``heading``, ``views``, ``more``.

    A view has what was ``moved``, all ``settings``, ``tiles``, ``sentence``, ``figures``, and folded away ``words`` and
    ``command``; ``more`` are figures that change less of what one is to see.
    """
    found: dict[str, Still] = {}
    for key, widget in list(_instances.items()):
        if isinstance(widget, go.FigureWidget):
            # A reader's own. What plotly sends it later goes to the browser only: its state is that of the start.
            found[key] = {"figure": slim(widget)}
        elif isinstance(widget, Predictions):
            found[key] = {"questions": list(widget.questions.values())}
        elif isinstance(widget, Frame):
            found[key] = _panel(widget)
    return found


def _panel(frame: Any) -> Still:
    heading = frame.children[1].value
    if isinstance(frame, Panel):
        telling = frame.views
        if all({**frame.start, **values} != frame.start for values in telling.values()):  # what they differ from
            telling = {"as the panel starts": {}, **telling}
        views = [view for moved, values in telling.items() if (view := _view(frame, moved, values))]
        return {"heading": heading, "views": views, "more": list(map(slim, frame.view().figures[1:]))}
    folded = {"words": frame.words.value, "command": frame.command.value}
    view = {"moved": "", "settings": "", "tiles": frame.tiles.tiles, "sentence": frame.tiles.sentence, **folded}
    figures = [slim(live.figure) for live in frame.figures]
    return {"heading": heading, "views": [{**view, "figures": figures}], "more": []}


def _view(panel: Panel, moved: str, values: Mapping[str, Any]) -> Still | None:
    """The panel at one of its telling settings; None where the notebook's parameters do not allow for that."""
    try:
        view = panel.view(**values)
    except UsageError:
        return None
    words, figures = str(escape(view.words)), list(map(slim, view.figures[:1]))
    settings = " · ".join(filter(None, map(_setting, panel.controls.values(), {**panel.start, **values}.values())))
    return {**view._asdict(), "moved": moved, "settings": settings, "words": words, "figures": figures}


def _setting(control: Control, value: Any) -> str:
    """A control and its value, as a caption; nothing of one that a reader seldom needs."""
    if control.rare or control.kind == "text" or control.label == "seed":
        return ""
    told = next((name for name, meaning in control.options if meaning == value), value)
    if isinstance(told, str):
        return f"{control.label}: {told}"
    return f"{control.label} = {told:,}" if isinstance(told, int) else f"{control.label} = {digits(told)}"


def slim(figure: Any) -> dict[str, Any]:
    """A figure as JSON, with as many digits as a picture can show."""
    parts = json.loads(pio.to_json(figure, validate=False), parse_float=lambda text: float(f"{float(text):.6g}"))
    return {name: parts[name] for name in ("data", "layout")}
