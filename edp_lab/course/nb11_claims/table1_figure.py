"""Table 1 in one figure, theirs and ours: what ``edp-lab reproduce table1`` measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, TEMPLATE, VERMILLION
from edp_lab.privacy.guarantee import upward
from edp_lab.reproduce import results_io as results

HALF = "sgd, half the epochs"
LOOKS = {  # name, colour, symbol, shift
    "as printed": ("ours, as printed", BLUE, "circle", -0.17),
    "sound": ("ours, sound", VERMILLION, "square", 0.17),
    HALF: ("SGD, half the epochs", GREEN, "x", 0.0),
}
CHANGES = {"ser_change": "SER (error)", "auc_change": "AUC, shadow", "loss_auc_change": "AUC, loss"}
CAPTION = (
    "Changes: left of 0 is better; bars: Student's 95 % interval over seeds, formed within a seed; theirs have none, "
    "nor has one seed.<br>ε hollow: as the paper accounts, δ = 5e-4 (public corpora). Filled: what would hold, were "
    "the seeds secret (as printed: and the<br>layer scales public), for one utterance zeroed out, disjoint batches, "
    "Gaussian DP, δ = n<sup>-1.1</sup>."
)

Cell = Mapping[str, Any]


def load_cells(path: Path = results.RESULTS / "table1.json") -> list[dict[str, Any]]:
    """What was measured, as `edp_lab.reproduce.paper.table1._cell` has it.

    Raises:
        UsageError: as `results.rows`.
    """
    return results.rows(path, "edp-lab reproduce table1 --json")


def changes_figure(cells: Sequence[Cell]) -> go.Figure:
    """Changes of error and of attacks' success against SGD's, and epsilon: a line for each model, corpus and decay.

    `cells` are those of `edp_lab.reproduce.paper.table1._cell`.
    """
    names = (*CHANGES.values(), "ε")
    figure = make_subplots(1, 4, shared_yaxes=True, horizontal_spacing=0.02, subplot_titles=names)
    lines = list(dict.fromkeys(_line(cell) for cell in cells if cell["ser_change"]))
    printed = [cell for cell in cells if cell["variant"] == "as printed"]
    for column, name in enumerate(CHANGES, 1):
        low, high = _range(cells, name)
        for variant in LOOKS:
            own = [cell for cell in cells if cell["variant"] == variant]
            changes = [cell[name]["mean"] for cell in own]
            half = [0 if cell[name]["high"] is None else cell[name]["high"] - cell[name]["mean"] for cell in own]
            half = [width if low <= x <= high else 0 for x, width in zip(changes, half, strict=True)]
            trace = _ours(own, changes, variant, lines).update(error_x={"array": half}, showlegend=column == 1)
            figure.add_trace(trace, 1, column)
            for cell, change in zip(own, changes, strict=True):
                if not low <= change <= high:  # it would leave no room for the others
                    place = {"x": high, "xanchor": "right"} if change > high else {"x": low, "xanchor": "left"}
                    text = f"{change:+.0f} ▸" if change > high else f"◂ {change:+.0f}"
                    told = {"text": text, "showarrow": False, "font": {"color": LOOKS[variant][1]}}
                    figure.add_annotation(told, **place, y=lines.index(_line(cell)), row=1, col=column)
        if name in printed[0]["paper"]:
            theirs = _theirs(printed, [cell["paper"][name] for cell in printed], lines)
            figure.add_trace(theirs.update(showlegend=column == 1), 1, column)
        figure.add_vline(0, line={"width": 1, "color": "#888"}, col=column, row=1)
        figure.update_xaxes(title="change (%)", range=[low, high], col=column, row=1)
    for trace in _epsilons(cells, printed, lines):
        figure.add_trace(trace.update(showlegend=False), 1, 4)
    figure.update_xaxes(type="log", title="ε (no unit)", exponentformat="power", nticks=4, col=4, row=1)
    figure.update_yaxes(tickvals=list(range(len(lines))), ticktext=lines, range=[len(lines) - 0.4, -0.6])
    title = {"text": "Table 1, theirs and ours", "subtitle": {"text": CAPTION}}
    legend = {"orientation": "h", "y": 1 + 1 / len(lines), "yanchor": "bottom"}
    height = 30 * len(lines) + 250
    return figure.update_layout(template=TEMPLATE, title=title, height=height, margin_t=180, legend=legend)


def told(cells: Sequence[Cell]) -> str:
    """The figure in three sentences: decay at equal epsilon, attacks, epsilon."""
    private = [cell for cell in cells if cell["decay"]]
    still = {_row(cell): cell["ser"]["mean"] for cell in private if cell["decay"] == "none"}
    falling = [cell for cell in private if cell["decay"] != "none"]
    lower = sum(cell["ser"]["mean"] < still[_row(cell)] for cell in falling)
    several = [cell for cell in cells if cell["seeds"] > 1]
    private_fall, control_fall = (
        f"{_beyond_chance(part, 'auc_change')} (loss alone: {_beyond_chance(part, 'loss_auc_change')}) of {len(part)}"
        for part in ([cell for cell in several if cell["decay"]], [cell for cell in several if cell["variant"] == HALF])
    )
    claimed, held = (
        [cell[name] for cell in private if cell["variant"] == "sound"] for name in ("log10_claimed", "epsilon")
    )
    return (
        f"Decay, at equal ε: {lower} of {len(falling)} cells have a smaller error than without decay.\n"
        f"Attacks beyond chance weaker than on SGD: {private_fall} cells of eDP-SGD, {control_fall} of SGD for half "
        f"the epochs, where several seeds tell.\n"
        f"ε of the sound variant: 10^{min(claimed):.1f} to 10^{max(claimed):.1f} by the paper's account, "
        f"{upward(min(held), 2)} to {upward(max(held), 2)} by ours."
    )


def _row(cell: Cell) -> tuple[str, str, str]:
    return cell["model"], cell["corpus"], cell["variant"]


def _beyond_chance(cells: Sequence[Cell], change: str) -> int:
    return sum(cell[change]["high"] is not None and cell[change]["high"] < 0 for cell in cells)


def _range(cells: Sequence[Cell], change: str) -> tuple[float, float]:
    """What shows eDP-SGD's changes, theirs and ours, and the control where it lies near; intervals may end beyond."""
    private = [cell for cell in cells if cell["decay"]]
    theirs = [cell["paper"].get(change) for cell in private]
    ends = [0.0, *(cell[change]["mean"] for cell in private), *(one for one in theirs if one is not None)]
    width = max(ends) - min(ends)
    control = [cell[change]["mean"] for cell in cells if cell["variant"] == HALF]
    ends += [one for one in control if min(ends) - width / 2 < one < max(ends) + width / 2]
    margin = 0.12 * width + 1
    return min(ends) - margin, max(ends) + margin


def _epsilons(cells: Sequence[Cell], printed: Sequence[Cell], lines: Sequence[str]) -> list[go.Scatter]:
    traces = []
    for variant in ("as printed", "sound"):
        own = [cell for cell in cells if cell["variant"] == variant]
        claimed = _ours(own, [_power(cell["log10_claimed"]) for cell in own], variant, lines)
        symbol = f"{claimed.marker.symbol}-open"
        traces.append(claimed.update(name=f"{claimed.name}: claimed", marker_symbol=symbol))
        hold = _ours(own, [cell["epsilon"] or cell["epsilon_if_alpha_public"] for cell in own], variant, lines)
        traces.append(
            hold.update(name=f"{hold.name}: holds" if variant == "sound" else f"{hold.name}: were alpha public")
        )
    return [*traces, _theirs(printed, [_power(cell["paper"]["log10_claimed"]) for cell in printed], lines)]


def _power(log10: float | None) -> float | None:
    return None if log10 is None else math.pow(10, log10)


def _ours(cells: Sequence[Cell], x: Sequence[float | None], variant: str, lines: Sequence[str]) -> go.Scatter:
    name, color, symbol, shift = LOOKS[variant]
    return go.Scatter(
        name=name,
        legendgroup=variant,
        x=x,
        y=[lines.index(_line(cell)) + shift for cell in cells],
        mode="markers",
        marker={"symbol": symbol, "size": 9, "color": color},
    )


def _theirs(cells: Sequence[Cell], x: Sequence[float | None], lines: Sequence[str]) -> go.Scatter:
    return go.Scatter(
        name="theirs",
        legendgroup="theirs",
        x=x,
        y=[lines.index(_line(cell)) for cell in cells],
        mode="markers",
        marker={"symbol": "diamond-open", "size": 10, "color": BLACK},
    )


def _line(cell: Cell) -> str:
    where = f"{cell['model'].upper()}, {cell['corpus']}"
    if cell["variant"] == HALF:
        return f"{where}, half the epochs"
    return f"{where}, {'no' if cell['decay'] == 'none' else cell['decay']} decay"
