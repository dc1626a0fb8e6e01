"""How every figure and panel looks: colours that the colour-blind can tell apart, and no button that calls home.

`activate` is called once, in a notebook's first cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import anywidget
import plotly.graph_objects as go
import plotly.io as pio
import traitlets
from plotly.io.base_renderers import HtmlRenderer

from edp_lab.course.kit.text import Html

# Okabe and Ito's palette. One role, one colour, in every figure; dash and marker vary with it.
BLUE, VERMILLION, ORANGE, GREEN = "#0072B2", "#D55E00", "#E69F00", "#009E73"
SKY, PURPLE, BLACK = "#56B4E9", "#CC79A7", "#000000"
GRID = "#e4e4e4"

CONFIG: dict[str, Any] = {
    "showSendToCloud": False,
    "displaylogo": False,
    "responsive": True,
    "typesetMath": False,  # a page's MathJax would read formulas, and links in them, in what is text
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

STYLE = Html("""<style>
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
</style>""")


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
    bundle()


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


@cache
def bundle() -> anywidget.AnyWidget:
    """What all live figures of a page are drawn by; sent when it is first asked for."""
    return _Bundle(code=str(go.FigureWidget._esm))


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
    places = {layer: place for place, layer in enumerate(LAYERS)}
    return sorted(parameters, key=lambda name: places.get(name.partition(".")[0], places["intent"]))
