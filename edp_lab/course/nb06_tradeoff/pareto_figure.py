"""Utility, privacy and time in one figure: what ``edp-lab reproduce pareto`` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from edp_lab.course.kit.theme import BLUE, TEMPLATE, VERMILLION
from edp_lab.privacy.guarantee import upward
from edp_lab.reproduce import results_io as results

LOOKS = ((BLUE, "solid", "circle"), (VERMILLION, "dash", "square"))
CAPTION = (
    "ε of one utterance at δ = n<sup>-1.1</sup>, were the seeds secret. DP-SGD: privacy loss distributions, Poisson "
    "sampling,<br>add or remove one; eDP-SGD: Gaussian DP, shuffled batches, zero-out, so it lacks what sampling "
    "hides. Bars: 95 % over seeds.<br>x: time as a multiple of SGD's at the paper's size (batches of 64)"
)

Point = Mapping[str, Any]


def load_points(path: Path = results.RESULTS / "pareto.json") -> list[dict[str, Any]]:
    """What was measured, as `edp_lab.reproduce.pareto.Point.as_json` has it.

    Raises:
        UsageError: as `results.rows`.
    """
    return results.rows(path, "edp-lab reproduce pareto --json")


def pareto_figure(points: Sequence[Point]) -> go.Figure:
    """Error by epsilon, a picture for each model and corpus, a line a method; errors without privacy are levels."""
    shown = list(dict.fromkeys(map(_panel, points)))
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure = make_subplots(rows, columns, subplot_titles=shown, vertical_spacing=0.32 / rows, horizontal_spacing=0.1)
    for place, panel in enumerate(shown):
        own = [point for point in points if _panel(point) == panel]
        where = {"row": place // columns + 1, "col": place % columns + 1}
        methods = dict.fromkeys(point["method"] for point in own if point["epsilon"])
        for number, method in enumerate(methods):
            line = _line(sorted((p for p in own if p["method"] == method), key=lambda p: p["epsilon"] or 0), number)
            figure.add_trace(line.update(showlegend=not place), **where)
        plain = sorted((p for p in own if p["epsilon"] is None), key=lambda point: point["ser"]["mean"])
        for level, (dash, side) in zip(plain, (("dashdot", "bottom"), ("dot", "top")), strict=False):
            figure.add_hline(
                level["ser"]["mean"],
                line={"dash": dash, "width": 1.5},
                annotation_text=f"{level['method']}, x{level['time_ratio']:.2g}",
                annotation_position=f"{side} left",
                **where,
            )
    order = sorted({_epsilon(point) for point in points if point["epsilon"]}, key=float)
    axis = {"type": "category", "categoryorder": "array", "categoryarray": order, "range": [-0.5, len(order) - 0.5]}
    figure.update_xaxes(axis, title="ε that holds (no unit)")
    figure.update_yaxes(title="SER on the test split (%)", rangemode="tozero")
    title = {"text": "Utility, privacy, time", "subtitle": {"text": CAPTION}}
    legend = {"orientation": "h", "y": 1 + 0.12 / rows, "yanchor": "bottom"}
    return figure.update_layout(template=TEMPLATE, title=title, height=360 * rows + 150, legend=legend, margin_t=150)


def _panel(point: Point) -> str:
    return f"{point['model'].upper()} on {point['corpus']}"


def _line(points: Sequence[Point], number: int) -> go.Scatter:
    color, dash, symbol = LOOKS[number % len(LOOKS)]
    errors = [point["ser"] for point in points]
    half = [0 if error["high"] is None else error["high"] - error["mean"] for error in errors]
    return go.Scatter(
        name=points[0]["method"],
        legendgroup=points[0]["method"],
        x=[_epsilon(point) for point in points],
        y=[error["mean"] for error in errors],
        error_y={"array": half},
        mode="lines+markers+text",
        text=[f"x{point['time_ratio']:.2g}" for point in points],
        textposition="top right",
        line={"color": color, "dash": dash},
        marker={"symbol": symbol, "size": 9},
    )


def _epsilon(point: Point) -> str:
    """Rounded up: a target is met with a little to spare."""
    return upward(point["epsilon"], 2)
