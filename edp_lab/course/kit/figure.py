"""Figures as plain dicts in plotly.js's format, and a widget that updates them when a slider moves.

    def draw(result):                                    # a pure function, called for every update
        curve = line("loss", PLAIN, x=result.steps, y=result.losses)
        steps, loss = axis("step", [0, result.steps[-1]]), log_axis("loss", result.losses)
        return figure("Training", curve, xaxis=steps, yaxis=loss, hover="step %{x}: %{y:.3g}")

    live = LiveFigure(draw(first))
    live.show(draw(second))                              # plotly.js finds what has changed

Dicts are fast, while plotly looks up every property of a ``go.Figure`` in its schema. A slider move takes 1 to 3 ms
with dicts, and 80 to 190 ms if all objects are redrawn.

plotly.js interprets text as a subset of HTML, including links. Here every string is plain text: `figure` escapes it
and keeps line breaks. Markup must have its own type: ``Html("e<sup>ε</sup>")``.
"""

from __future__ import annotations

import html
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import anywidget
import ipywidgets as widgets
import numpy as np
import plotly.graph_objects as go
import traitlets
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from edp_lab.course.kit import theme
from edp_lab.course.kit.text import Html

Figure = dict[str, Any]  # {"data": [trace, ...], "layout": {...}}
Trace = dict[str, Any]
Mark = dict[str, Any]  # a trace, a shape or an annotation
Still: TypeAlias = go.Figure
NUMBERS = {bool, int, float, type(None)}

LEGEND = {"orientation": "h"}
HERE = {"color": "#444", "dash": "dashdot", "width": 1.5}  # style of a line at a slider's value
DOTTED = {"color": "#666", "dash": "dot", "width": 1.5}
# plotly draws powers of ten 1.25 times as large as other labels.
LOG = {"type": "log", "dtick": 1, "exponentformat": "power", "tickfont": {"size": 10}}
OVERLAID: dict[str, Any] = {"barmode": "overlay", "bargap": 0}  # layout options for `histograms`
ALONE = Html("<extra></extra>")  # end of a ``hovertemplate`` that hides the trace's name

# ---- Drawing -------------------------------------------------------------------------------------------------------


def figure(
    title: str, *marks: Mark, caption: str = "", height: int = 400, top: Any = None, hover: Any = "", **layout: Any
) -> Figure:
    """A figure with a title, an optional caption below the title, and a horizontal legend.

    Args:
        title, caption: plain text, like all strings in a figure.
        marks: traces (`line`, `points`, `area`, `bar`), shapes (`vline`, `hline`) and annotations (`note`, `beside`).
        height: in pixels.
        top: minimum pixels above the plot, for title, caption and legend.
        hover: the ``hovertemplate`` for traces that have none.
        layout: plotly's layout options, such as ``xaxis`` (see `axis`); dicts are merged into existing ones.
    """
    heading: dict[str, Any] = {"text": title}
    if caption:
        heading["subtitle"] = {"text": caption}
    above = {} if top is None else {"margin": {"t": top}}
    lines = as_text(caption).count("<br>") + 1 if caption else 0
    # The legend is below the title, at the figure's left edge. The plot begins below it, however many rows it has.
    under = {"xref": "container", "yref": "container", "y": 1 - (32 + 17 * lines) / height, "yanchor": "top"}
    legend = LEGEND if "legend" in layout else {**LEGEND, **under}
    whole = merged({"height": height, "title": heading, "legend": legend}, above, layout)
    for name, place in whole.items():  # plotly.js requires a dict here
        if name[1:5] == "axis" and isinstance(place.get("title"), str):
            whole[name] = {**place, "title": {"text": place["title"]}}
    data: list[Trace] = []
    for mark in marks:
        if "showarrow" in mark:
            whole["annotations"] = [*whole.get("annotations", ()), mark]
        elif "x0" in mark:
            whole["shapes"] = [*whole.get("shapes", ()), mark]
        else:
            silent = not hover or {"hovertemplate", "hoverinfo"} & mark.keys()
            data.append(mark if silent else {**mark, "hovertemplate": hover})
    return {"data": as_text(data), "layout": as_text(whole)}


def still(title: str, *marks: Mark, **more: Any) -> Still:
    """A `figure` that a cell displays once, without updates."""
    return go.Figure(figure(title, *marks, **more))


def as_text(value: Any) -> Any:
    """Escape all strings in part of a figure, except `Html`, to make plotly.js show them literally."""
    if isinstance(value, str):
        return (str(value) if hasattr(value, "__html__") else html.escape(value, quote=False)).replace("\n", "<br>")
    if isinstance(value, Mapping):
        return {name: as_text(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return as_text(value.tolist()) if value.dtype.kind in "OSTU" else value
    if isinstance(value, list | tuple) and not {*map(type, value)} <= NUMBERS:
        return [as_text(item) for item in value]
    return value


def line(name: str, color: str, dash: str = "solid", *, width: Any = None, **more: Any) -> Trace:
    """A line, with markers if `more` contains a `symbol` (and a `size`). `more`: see `trace`."""
    look: Trace = {
        "mode": "lines",
        "line": {"color": color, "dash": dash} | ({} if width is None else {"width": width}),
    }
    if symbol := more.pop("symbol", ""):
        look |= {"mode": "lines+markers", "marker": {"color": color, "symbol": symbol, "size": more.pop("size", 8)}}
    return trace(name, look, **more)


def points(name: str, color: str, symbol: str, size: int, *, edge: Any = 1.5, **more: Any) -> Trace:
    """Markers without a line; the markers' outline is `edge` pixels wide, unless it is None. `more`: see `trace`."""
    marker: Trace = {"color": color, "symbol": symbol, "size": size}
    if edge is not None:
        marker["line"] = {"width": edge, "color": color}
    return trace(name, {"mode": "markers", "marker": marker}, **more)


def ring(size: int = 12, **more: Any) -> Trace:
    """A ring around a chosen point, without a legend entry. `more`: see `trace`."""
    return points("", theme.INK, "circle-open", size, **{"edge": 2, "showlegend": False, **more})


def area(name: str, color: str, opacity: float, **more: Any) -> Trace:
    """The filled area inside an outline ``x``, ``y``; `color` is ``#rrggbb``. `more`: see `trace`."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    look = {"mode": "lines", "fill": "toself", "fillcolor": f"rgba({red},{green},{blue},{opacity})"}
    return trace(name, {**look, "line": {"width": 0}}, **more)


def bar(name: str, color: str, hatch: Any = None, **more: Any) -> Trace:
    """Bars of one colour, with a white pattern if `hatch` is given ("/" or "x"). `more`: see `trace`."""
    # By default, plotly replaces the colour with a white pattern, which makes the bar invisible.
    pattern = {} if hatch is None else {"pattern": {"shape": hatch, "fillmode": "overlay", "fgcolor": "white"}}
    return trace(name, {"type": "bar", "marker": {"color": color, **pattern}}, **more)


def histograms(edges: Any, samples: Iterable[Any], looks: Iterable[tuple[str, str, str]], of: str = "") -> list[Trace]:
    """Transparent histograms of samples, with common bin `edges`; the outer bins include all values beyond the edges.

    Args:
        looks: name, colour and hatch of each histogram.
        of: text before the name in hover labels, such as "the draws ".
    """
    bins: dict[str, Any] = {"x": (edges[1:] + edges[:-1]) / 2, "width": edges[1] - edges[0]}
    sheer = {"opacity": 0.6, "pattern": {"size": 6}, "line": {"width": 0}}
    bars = []
    for (name, color, hatch), sample in zip(looks, samples, strict=True):
        y = 100 * np.histogram(np.clip(sample, edges[0], edges[-1]), edges)[0] / len(sample)
        bars.append(bar(name, color, hatch, marker=sheer, y=y, hover=f"%{{x:.3g}}: %{{y:.2f}} % of {of}{name}", **bins))
    return bars


def trace(name: str, look: Trace, *, hover: Any = "", **more: Any) -> Trace:
    """A trace with this style. `more`: ``x``, ``y`` and plotly's other properties; `hover` is its ``hovertemplate``."""
    template = {"hovertemplate": hover} if hover else {}
    return merged({"type": "scatter", "name": name}, look, template, more)


def between(x: NDArray, low: NDArray, high: NDArray) -> dict[str, Any]:
    """``x`` and ``y`` of the outline of the area between two curves, for `area`."""
    return {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([low, high[::-1]])}


def gaps(starts: Iterable[Any], ends: Iterable[Any], rows: Iterable[Any]) -> dict[str, Any]:
    """``x`` and ``y`` of a line with horizontal segments, each from a start to an end at the height given in `rows`."""
    pieces = list(zip(starts, ends, rows, strict=True))
    return {"x": [x for a, b, _ in pieces for x in (a, b, None)], "y": [y for *_, y in pieces for y in (y, y, None)]}


def error_bars(values: Iterable[float], intervals: Iterable[tuple[float, float]], **look: Any) -> dict[str, Any]:
    """Error bars from each value to both ends of its interval, for plotly's ``error_x`` or ``error_y``."""
    ends = [(high - value, value - low) for value, (low, high) in zip(values, intervals, strict=True)]
    above, below = [up for up, _ in ends], [down for _, down in ends]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, **look}


def note(text: str, **place: Any) -> dict[str, Any]:
    """An annotation without an arrow."""
    return {"text": text, "showarrow": False, **place}


def over(text: str, y: Any, **place: Any) -> Mark:
    """An annotation above the right end of a horizontal line at `y`."""
    here = {"xref": "x domain", "x": 1, "xanchor": "right", "yref": "y", "y": y, "yanchor": "bottom"}
    return note(text, **{**here, **place})


def beside(text: str, x: Any, left: bool) -> dict[str, Any]:
    """An annotation at the top of the plot, to the left or right of a vertical line at `x`."""
    side = {"xanchor": "right", "xshift": -6} if left else {"xanchor": "left", "xshift": 6}
    return note(text, x=x, yref="paper", y=1, yanchor="top", **side)


def vline(x: Any, axis: str = "x", **look: Any) -> dict[str, Any]:
    """A shape: a vertical line across the plot of this x axis, in the style `HERE`."""
    of = f"{axis.replace('x', 'y', 1)} domain"
    return {"type": "line", "x0": x, "x1": x, "xref": axis, "y0": 0, "y1": 1, "yref": of, "line": HERE, **look}


def hline(y: Any, axis: str = "y", **look: Any) -> dict[str, Any]:
    """A shape: a horizontal line across the plot of this y axis, in the style `HERE`."""
    of = f"{axis.replace('y', 'x', 1)} domain"
    return {"type": "line", "y0": y, "y1": y, "yref": axis, "x0": 0, "x1": 1, "xref": of, "line": HERE, **look}


# ---- Axes ----------------------------------------------------------------------------------------------------------


def axis(title: str, span: Any = None, **more: Any) -> dict[str, Any]:
    """An axis with a title and, if given, the range `span`."""
    return {"title": title, **({} if span is None else {"range": span}), **more}


def logs(title: str, span: Any = None, **more: Any) -> dict[str, Any]:
    """A logarithmic axis labelled with powers of ten; `span` is given in exponents."""
    return axis(title, span, **{**LOG, **more})


def log_axis(
    title: str, values: Iterable[float | None], *, margin: Any = 0, labels: Any = 0, **more: Any
) -> dict[str, Any]:
    """A logarithmic axis that covers the values, with about `labels` labels at most, or one per power of ten if 0."""
    low, high = log_range(values, margin)
    return logs(title, [low, high], **({"dtick": math.ceil((high - low) / labels)} if labels else {}), **more)


def positive(values: Iterable[float | None]) -> list[float | None]:
    """The values, with None in place of numbers that a logarithmic axis cannot show."""
    return [float(v) if v is not None and v > 0 and math.isfinite(v) else None for v in values]


def log_range(values: Iterable[float | None], margin: float = 0.0) -> list[float]:
    """Exponents of the powers of ten around the values, which keep an axis fixed while a slider moves a little.

    With a `margin`, values this close to a power of ten count as beyond it. Without one, 0.05 is added at each end.
    """
    logs = [math.log10(v) for v in positive(values) if v is not None] or [0.0]
    beyond = 0 if margin else 0.05
    return [math.floor(min(logs) - margin) - beyond, math.ceil(max(logs) + margin) + beyond]


# ---- Several plots -------------------------------------------------------------------------------------------------


def plots(rows: int, cols: int, titles: Sequence[str] = (), axes: Any = (), **options: Any) -> dict[str, Any]:
    """Layout of a grid of plots in one figure: the domains of ``xaxis``, ``yaxis``, ``xaxis2``, ..., row by row.

    Args:
        titles: the plots' titles, which become ``annotations``.
        axes: the x and y axis of each plot (see `axis`).
        options: options of `plotly.subplots.make_subplots`, such as ``vertical_spacing`` or ``row_heights``.
    """
    axes_by_name: dict[str, Any] = {}
    for plot, (x, y) in enumerate(axes, 1):
        axes_by_name |= {f"xaxis{plot if plot > 1 else ''}": x, f"yaxis{plot if plot > 1 else ''}": y}
    return merged(deepcopy(_plots(rows, cols, tuple(map(str, titles)), tuple(sorted(options.items())))), axes_by_name)


@cache
def _plots(rows: int, cols: int, titles: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    made = make_subplots(rows=rows, cols=cols, subplot_titles=titles or None, **dict(options)).to_dict()["layout"]
    return {name: value for name, value in made.items() if name != "template"}


def at(plot: int) -> dict[str, Any]:
    """Axes of a trace in plot number `plot` (from 1) of `plots`."""
    return {"xaxis": "x", "yaxis": "y"} if plot == 1 else {"xaxis": f"x{plot}", "yaxis": f"y{plot}"}


def merged(base: Mapping[str, Any], *more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge dicts recursively into a new dict; later values take precedence.

    A title given as text replaces the text of a title that is a dict.
    """
    result = dict(base)
    for other in more:
        for name, value in other.items():
            here = result.get(name)
            if isinstance(here, Mapping) and isinstance(value, str) and "text" in here:
                value = {"text": value}
            result[name] = merged(here, value) if isinstance(here, Mapping) and isinstance(value, Mapping) else value
    return result


# ---- Display -------------------------------------------------------------------------------------------------------


class LiveFigure(anywidget.AnyWidget):
    """A figure on a page, updated by `show`.

    Plotly's own widget validates every property and sends four messages per update. After each message, it reports the
    drawn figure to the kernel, which we do not need and which delays the next update.

    Attributes:
        figure: the current figure.
    """

    _css = theme.STYLE
    _esm = Path(__file__).with_name("figure.js")
    drawn = traitlets.Dict().tag(sync=True)

    def __init__(self, figure: Figure) -> None:
        theme.bundle()
        super().__init__(drawn=sent(figure))
        self.figure = figure

    def show(self, figure: Figure) -> None:
        """Show this figure. This sends one message, or none if nothing has changed."""
        self.figure, self.drawn = figure, sent(figure)


def sent(value: Any, kind: str = "<f8") -> Any:
    """Convert a value for JSON; arrays become base64-encoded bytes, as plotly.js expects.

    `kind`: "<f8", or "<f4" for six digits; arrays that cannot be represented in "<f4" are sent as "<f8".
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            return value.tolist()
        sizes = {"shape": ", ".join(map(str, value.shape))} if value.ndim > 1 else {}
        with np.errstate(over="ignore"):
            if kind == "<f4" and not np.allclose(value.astype(kind), value, rtol=2e-7, atol=0, equal_nan=True):
                kind = "<f8"
        return {"dtype": kind[1:], "bdata": b64encode(value.astype(kind).tobytes()).decode(), **sizes}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {name: sent(item, kind) for name, item in value.items()}
    return [sent(item, kind) for item in value] if isinstance(value, list | tuple) else value


HALF = "1 1 21rem"  # CSS flex of two figures, side by side only if titles and captions fit


def framed(live: LiveFigure, flex: str = HALF) -> widgets.Box:
    """A container with the figure's height, whose width is set by `flex` (CSS)."""
    height = live.figure["layout"]["height"]
    place = widgets.Layout(flex=flex, min_width="0", height=f"{height}px", overflow="hidden")
    return widgets.Box([live], layout=place).add_class("edp-figure")
