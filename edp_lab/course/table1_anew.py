"""Table 1 in one figure, theirs and ours: what ``edp-lab reproduce table1`` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from edp_lab.course.theme import BLACK, BLUE, TEMPLATE, VERMILLION

LOOKS = {"as printed": (BLUE, "circle", -0.17), "sound": (VERMILLION, "square", 0.17)}  # colour, symbol, shift
CHANGES = {"ser_change": "SER (error)", "auc_change": "AUC of the attack"}
CAPTION = "Left of 0 is better. Bars: Student's 95 % interval over the seeds, formed within a seed; theirs have none."

Cell = Mapping[str, Any]


def changes_figure(cells: Sequence[Cell]) -> go.Figure:
    """Changes of error and of the attack's success against SGD's: a line for each model, corpus and decay.

    `cells` are those of `edp_lab.studies.table1.Cell.as_json`.
    """
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=list(CHANGES.values()))
    lines = list(dict.fromkeys(_line(cell) for cell in cells if cell["decay"]))
    for column, name in enumerate(CHANGES, 1):
        for variant in LOOKS:
            own = [cell for cell in cells if cell["variant"] == variant]
            figure.add_trace(_ours(own, name, variant, lines).update(showlegend=column == 1), 1, column)
        figure.add_trace(_theirs(own, name, lines).update(showlegend=column == 1), 1, column)
        figure.add_vline(0, line={"width": 1, "color": "#888"}, col=column, row=1)
    figure.update_xaxes(title="change against SGD (%)")
    figure.update_yaxes(tickvals=list(range(len(lines))), ticktext=lines, range=[len(lines) - 0.4, -0.6])
    title = {"text": "Table 1, theirs and ours", "subtitle": {"text": CAPTION}}
    legend = {"orientation": "h", "y": 1 + 1 / len(lines), "yanchor": "bottom"}
    height = 30 * len(lines) + 230
    return figure.update_layout(template=TEMPLATE, title=title, height=height, margin_t=140, legend=legend)


def _ours(cells: Sequence[Cell], name: str, variant: str, lines: Sequence[str]) -> go.Scatter:
    color, symbol, shift = LOOKS[variant]
    half = [0 if cell[name]["high"] is None else cell[name]["high"] - cell[name]["mean"] for cell in cells]
    return go.Scatter(
        name=f"ours, {variant}",
        legendgroup=variant,
        x=[cell[name]["mean"] for cell in cells],
        y=[lines.index(_line(cell)) + shift for cell in cells],
        error_x={"array": half},
        mode="markers",
        marker={"symbol": symbol, "size": 9, "color": color},
    )


def _theirs(cells: Sequence[Cell], name: str, lines: Sequence[str]) -> go.Scatter:
    return go.Scatter(
        name="theirs",
        legendgroup="theirs",
        x=[cell["paper"][name] for cell in cells],
        y=[lines.index(_line(cell)) for cell in cells],
        mode="markers",
        marker={"symbol": "diamond-open", "size": 10, "color": BLACK},
    )


def _line(cell: Cell) -> str:
    decay = "no decay" if cell["decay"] == "none" else f"{cell['decay']} decay"
    return f"{cell['model'].upper()}, {cell['corpus']}, {decay}"
