"""How every figure and panel looks: colours that the colour-blind can tell apart, and no button that calls home.

`activate` is called once, in a notebook's first cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import anywidget
import ipywidgets as widgets
import plotly.graph_objects as go
import plotly.io as pio
import traitlets
from plotly.io.base_renderers import HtmlRenderer

# Okabe and Ito's palette. One role, one colour, in every figure; dash and marker vary with it.
BLUE, VERMILLION, ORANGE, GREEN = "#0072B2", "#D55E00", "#E69F00", "#009E73"
SKY, PURPLE, BLACK = "#56B4E9", "#CC79A7", "#000000"
GRID = "#e4e4e4"

CONFIG: dict[str, Any] = {
    "showSendToCloud": False,
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}

_AXIS = {
    "gridcolor": GRID,
    "zeroline": False,
    "linecolor": "#888",
    "ticks": "outside",
    "tickcolor": "#888",
    "automargin": True,
    "ticklabeloverflow": "allow",  # else each label is measured at every move; margins leave room for all
    "title": {"standoff": 8},
}

TEMPLATE = go.layout.Template(
    layout={
        "colorway": [BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE, BLACK],
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "title": {
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 10, "l": 8},
            "font": {"size": 15},
            "subtitle": {"font": {"size": 12, "color": "#555"}},
        },
        "legend": {"x": 0, "xanchor": "left", "y": 1.01, "yanchor": "bottom"},
        "margin": {"l": 8, "r": 16, "t": 126, "b": 20},
        "hoverlabel": {"font": {"family": "system-ui, sans-serif"}},
    }
)

STYLE = """<style>
.edp-panel { color: #222; background: white; border: 1px solid #ccc; border-radius: 6px; padding: 12px 16px; }
.edp-panel .widget-label { min-width: 9.5rem; text-align: left; }
.edp-panel .edp-wide .widget-label, .edp-panel .edp-unit, .edp-panel .widget-toggle-button { min-width: 0; }
.edp-panel .widget-toggle-buttons { display: flex; align-items: center; }
.edp-panel .widget-toggle-buttons > .widget-label { margin-right: 8px; }
.edp-panel .widget-html-content { line-height: 1.45; }
.edp-panel .widget-html-content p { margin: 0 0 .6em; }
.edp-panel .widget-html-content h3 { margin: 0 0 .2em; }
.edp-panel .widget-html-content :is(td, th) { padding-right: .8em; }
.edp-panel summary { cursor: pointer; color: #0072B2; }
.edp-panel .edp-unit { color: #555; }
.edp-panel textarea { font-family: monospace; }
.edp-panel option { overflow: hidden; text-overflow: ellipsis; }
.edp-panel .edp-lab-error .widget-html-content:not(:empty) {
    border-left: 5px solid #D55E00; background: #fdf0e8; padding: 6px 10px; font-weight: 600; }
.edp-figure { contain: strict; }
.edp-figure > div, .edp-figure .js-plotly-plot { width: 100%; height: 100%; }
</style>"""


class Fit(anywidget.AnyWidget):
    """An invisible line as wide as the panel: when it changes, figures are told to fill their place. (plotly draws
    them before their place has a width, and listens only to the window.)"""

    _esm = """
    export default { render({ el }) {
        el.style.width = "100%";
        const watch = new ResizeObserver(() => window.dispatchEvent(new Event("resize")));
        watch.observe(el);
        return () => watch.disconnect();
    } }
    """


class _Notebook(HtmlRenderer):
    """plotly's "notebook" renderer, by which nbconvert shows figures, but with nothing loaded from elsewhere."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        return {"text/html": pio.to_html(fig_dict, CONFIG, include_plotlyjs=True, full_html=False)}


def activate() -> None:
    """Use the course's template and renderers from here on."""
    pio.templates["edp_lab"] = TEMPLATE
    pio.templates.default = "edp_lab"
    pio.renderers["notebook"] = _Notebook()
    pio.renderers["plotly_mimetype"].config = CONFIG
    pio.renderers.default = "plotly_mimetype+notebook"
    _bundle()


class _Bundle(anywidget.AnyWidget):
    """plotly.js, sent to a page once. Each FigureWidget would bring 5 MB of its own, and a page that has not read
    them after two seconds leaves the figure blank."""

    _esm = """
    export default { initialize({ model }) {
        const code = new Blob([model.get("code")], {type: "text/javascript"});
        (globalThis.edpLabPlotly ??= Promise.withResolvers()).resolve(import(URL.createObjectURL(code)));
    } }
    """
    code = traitlets.Unicode().tag(sync=True)


class LiveFigure(go.FigureWidget):
    """plotly's, drawn by the code in the page's `_Bundle`, and quicker to follow a slider.

    plotly's own tells the kernel after every update what it has drawn, which nobody here asks, which ends in an error
    where a trace holds arrays, and which keeps the kernel from the next move; it sends four messages for one update;
    and it looks up the path of every change in its schema, and whom it concerns, which takes longer than all else.
    """

    _esm = """
    const untold = ["_js2py_traceDeltas", "_js2py_layoutDelta", "_js2py_widget_layoutDelta"];
    const reticent = model => new Proxy(model, { get(target, name) {
        if (name == "set") return (key, value) => { if (!untold.includes(key)) target.set(key, value); };
        const found = target[name];
        return typeof found == "function" ? found.bind(target) : found;
    } });
    export default async () => {
        const { default: made } = await (globalThis.edpLabPlotly ??= Promise.withResolvers()).promise;
        const { initialize, render } = typeof made == "function" ? await made() : made;
        return {
            initialize: ({ model, ...rest }) => initialize?.({ model: reticent(model), ...rest }),
            render: ({ model, ...rest }) => render({ model: reticent(model), ...rest }),
        };
    }
    """

    def _send_update_msg(
        self,
        restyle_data: dict[str, Any],
        relayout_data: dict[str, Any],
        trace_indexes: Any = None,
        source_view_id: str | None = None,
    ) -> None:
        self._py2js_update = {
            "style_data": restyle_data,
            "layout_data": relayout_data,
            "style_traces": self._normalize_trace_indexes(trace_indexes),
            "source_view_id": source_view_id,
        }
        self._trait_values["_py2js_update"] = None  # arrays cannot be compared with the next ones

    def _perform_plotly_relayout(self, relayout_data: dict[str, Any]) -> dict[str, Any]:
        return {path: value for path, value in relayout_data.items() if self._set_in(self._layout, _path(path), value)}

    def _dispatch_layout_change_callbacks(self, relayout_data: dict[str, Any]) -> None:
        """Nobody asked to be told."""


_path = cache(LiveFigure._str_to_dict_path)


@cache
def _bundle() -> _Bundle:
    return _Bundle(code=str(go.FigureWidget._esm))


def live(figure: go.Figure) -> go.FigureWidget:
    """The figure as a widget that can be patched in place."""
    _bundle()
    widget = LiveFigure(figure)
    widget._config = {**widget._config, **CONFIG}
    return widget


HALF = "1 1 28rem"  # of one of two figures: side by side only where there is room for titles and captions


def framed(figure: go.FigureWidget, flex: str = HALF) -> widgets.Box:
    """A place for the figure, as high as the figure asks for and as wide as `flex` (CSS) allows."""
    place = widgets.Layout(flex=flex, min_width="0", height=f"{figure.layout.height}px", overflow="hidden")
    return widgets.Box([figure], layout=place).add_class("edp-figure")


# From the input of a network to its outputs: the order in which people read a figure.
LAYERS = {
    "words": "word vectors",
    "characters": "character vectors",
    "convolution": "character CNN",
    "lstm": "LSTM",
    "intent": "intent head",
    "slots": "slot head",
    "crf": "CRF",
}
TENSORS = {
    "weight": "",
    "bias": "bias",
    "w_ih": "input",
    "w_hh": "recurrent",
    "start": "start",
    "transitions": "transitions",
    "end": "end",
}


def layer_name(parameter: str) -> str:
    """A parameter's name for people: ``lstm.0.w_hh`` -> "LSTM 1 recurrent"; an unknown part stays as it is."""
    first, *rest = parameter.split(".")
    rest = [str(int(part) + 1) if part.isdigit() else TENSORS.get(part, part) for part in rest]
    return " ".join(word for word in (LAYERS.get(first, first), *rest) if word)


def reading_order(parameters: Sequence[str]) -> list[str]:
    """Parameters from input to output; unknown ones before the heads, in the order given."""
    known = list(LAYERS)

    def place(parameter: str) -> int:
        first = parameter.partition(".")[0]
        return known.index(first) if first in known else known.index("intent")

    return sorted(parameters, key=place)
