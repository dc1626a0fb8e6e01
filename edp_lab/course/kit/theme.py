"""Shared style of figures and panels: a palette for colour-blind readers, and no buttons that upload data.

Call `activate` once, in a notebook's first cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import plotly.graph_objects as go
import plotly.io as pio
import traitlets
from plotly.offline import get_plotlyjs

# The Okabe-Ito palette. Each colour has one meaning throughout the course; dash patterns and markers differ, too.
PLAIN = "#0072B2"  # no noise or privacy: the signal, the data, training without the sentence
NOISE = "#CC79A7"  # the noise, and training with the sentence
CLAIMED = "#E69F00"  # values claimed by a source
HOLDS = "#009E73"  # guaranteed values; the sound mechanism
PRINTED = "#D55E00"  # Algorithm 1 as printed in the paper; failures and leaks
OTHER = "#56B4E9"  # a second series of the same kind
INK = "#000000"  # released or chosen values
GRID = "#e4e4e4"
DARK = {  # replacement colours on dark pages
    PLAIN: "#5cb3ee",
    NOISE: "#e29ac3",
    CLAIMED: "#f0b429",
    HOLDS: "#2fcb9e",
    PRINTED: "#ff8a4c",
    OTHER: "#8fd0f7",
    INK: "#ffffff",
    GRID: "#343a41",
    "#222": "#e6e8eb",
    "#444": "#ccd1d7",
    "#555": "#adb4bd",
    "#666": "#a0a7b0",
    "#777": "#949ba4",
    "#888": "#7d858f",
}


def _style() -> str:
    """The panels' style sheet, with rules that replace plotly's inline colours on dark pages."""
    plot = 'body[data-jp-theme-light="false"] .js-plotly-plot'
    rules = [Path(__file__).with_name("panel.css").read_text(encoding="utf-8")]
    rules += [
        f"{plot} .main-svg {{ background: transparent !important; }}",
        f"{plot} rect.bg {{ fill: none !important; }}",
    ]
    for light, dark in DARK.items():
        digits = light[1:] if len(light) == 7 else "".join(2 * digit for digit in light[1:])
        rgb = ", ".join(str(int(digits[place : place + 2], 16)) for place in (0, 2, 4))
        for what in ("stroke", "fill"):
            place = f'{plot} :not(.bartext, .hoverlayer *)[style*="{what}: rgb({rgb})"]'
            rules.append(f"{place} {{ {what}: {dark} !important; }}")
    return "\n".join(rules)


STYLE = _style()

CONFIG: dict[str, Any] = {
    "showSendToCloud": False,
    "displaylogo": False,
    "responsive": False,  # `figure.js` resizes figures
    "typesetMath": False,  # otherwise MathJax would turn plain text into formulas, which can contain links
    "modeBarButtons": [["toImage", "resetScale2d"]],  # no zoom buttons: dragging zooms
}

_AXIS = {
    "gridcolor": GRID,
    "zeroline": False,
    "linecolor": "#888",
    "ticks": "outside",
    "tickcolor": "#888",
    "automargin": True,
    "ticklabeloverflow": "allow",  # otherwise plotly measures every label on every update; all labels fit
    "title": {"standoff": 8},
}

TEMPLATE = go.layout.Template(
    layout={
        "colorway": [PLAIN, PRINTED, HOLDS, CLAIMED, OTHER, NOISE, INK],
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#222"},
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
            "font": {"size": 14},
            "subtitle": {"font": {"size": 12, "color": "#555"}},
        },
        "legend": {"x": 0, "xanchor": "left", "y": 1.01, "yanchor": "bottom"},
        "margin": {"l": 8, "r": 16, "t": 76, "b": 20},
        "hoverlabel": {"font": {"family": "system-ui, sans-serif"}},
    }
)


def activate() -> None:
    """Set the course's plotly template, and a renderer that sends figures as JSON."""
    pio.templates["edp_lab"] = TEMPLATE
    pio.templates.default = "edp_lab"
    pio.renderers["plotly_mimetype"].config = CONFIG
    pio.renderers.default = "plotly_mimetype"
    bundle()


class _Bundle(anywidget.AnyWidget):
    """Widget that sends plotly.js and the course's template to a page once. The page parses plotly.js when idle,
    because parsing takes seconds on a slow machine."""

    _esm = """
    // anywidget stops waiting for a model after 2 s, which is too early on a busy machine.
    const timeout = AbortSignal.timeout.bind(AbortSignal);
    AbortSignal.timeout = ms => timeout(ms === 2000 ? 120_000 : ms);

    export default { initialize({ model }) {
        const idle = globalThis.requestIdleCallback ?? setTimeout;  // Safari has no requestIdleCallback
        const read = done => idle(() => {
            const script = document.createElement("script");
            script.textContent = model.get("code");
            document.head.append(script);  // runs synchronously
            done({ plotly: Plotly, ...model.get("how") });
        });
        (globalThis.edpLabPlotly ??= Promise.withResolvers()).resolve(new Promise(read));
    } }
    """
    code = traitlets.Unicode().tag(sync=True)
    how = traitlets.Dict().tag(sync=True)


@cache
def bundle() -> anywidget.AnyWidget:
    """The widget that loads plotly.js for all live figures of a page, created on first use."""
    return _Bundle(code=get_plotlyjs(), how={"template": TEMPLATE.to_plotly_json(), "config": CONFIG})


# Layer names in figures, ordered from the network's input to its outputs.
LAYERS = {
    "words": "word vectors",
    "characters": "character vectors",
    "convolution": "character CNN",
    "lstm": "LSTM",
    "intent": "intent head",
    "slots": "slot head",
    "crf": "CRF",
}
TENSORS = {"weight": "", "w_ih": "input", "w_hh": "recurrent"}  # other tensors keep their names


def layer_name(parameter: str) -> str:
    """Readable name of a parameter: "LSTM 1 recurrent" for ``lstm.0.w_hh``. Unknown parts stay unchanged."""
    first, *rest = parameter.split(".")
    rest = [str(int(part) + 1) if part.isdigit() else TENSORS.get(part, part) for part in rest]
    return " ".join(word for word in (LAYERS.get(first, first), *rest) if word)


def reading_order(parameters: Sequence[str]) -> list[str]:
    """Sort parameters from input to output, which moves the heads from the beginning to the end."""
    return sorted(parameters, key=lambda name: name.startswith(("intent", "slots", "crf")))
