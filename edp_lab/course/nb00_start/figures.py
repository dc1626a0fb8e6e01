"""The figures of the start panel: each is drawn once from a result, then patched in place by its `update_...`.

What a result holds is in `edp_lab.course.nb00_start.compute`; nothing is computed here but axis ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from edp_lab.course.kit import theme
from edp_lab.course.kit.theme import BLUE, GREEN, ORANGE, SKY, VERMILLION
from edp_lab.course.nb00_start.compute import StepResult, settings

TOTAL = "<b>all layers</b>"


# ---- One step: signal and noise per layer --------------------------------------------------------------------------


def layers_figure(result: StepResult) -> go.Figure:
    """Per layer, on a log axis: the mean clipped gradient, the noise expected on it, and one draw of that."""
    figure = go.Figure(
        [
            go.Scatter(mode="lines", line={"color": "#bbb", "width": 2}, hoverinfo="skip", showlegend=False),
            _marks("signal: mean clipped gradient", BLUE, "circle", 11),
            _marks("noise, expected", VERMILLION, "diamond-open", 13),
            _marks("noise, one draw", VERMILLION, "x-thin-open", 7),
        ]
    )
    figure.update_layout(height=580, title="Signal and noise of one step, by layer", margin_t=138)
    figure.update_xaxes(type="log", title="L2 norm, in units of the gradient", dtick=1, exponentformat="power")
    order = [theme.layer_name(name) for name in theme.reading_order(result.layers)]
    figure.update_yaxes(
        categoryorder="array", categoryarray=[TOTAL, *order[::-1]], tickfont_size=12, showgrid=False, ticks=""
    )
    figure.add_hline(y=0.5, line={"color": "#888", "width": 1})
    update_layers(figure, result)
    return figure


def update_layers(figure: go.Figure, result: StepResult) -> None:
    rows = [*map(theme.layer_name, result.layers), TOTAL]
    signal = [*result.signal, result.total_signal]
    noise = [*result.noise, result.total_noise]
    draw = [*result.draw, result.total_draw]
    with figure.batch_update():
        gap, mean, expected, drawn = figure.data
        gap.x = [x for pair in zip(signal, noise, strict=True) for x in (*map(_positive, pair), None)]
        gap.y = [y for row in rows for y in (row, row, None)]
        for trace, values in ((mean, signal), (expected, noise), (drawn, draw)):
            trace.x, trace.y = [_positive(v) for v in values], rows
        figure.layout.xaxis.range = _decades([*signal, *noise, *draw])
        figure.layout.title.subtitle.text = f"{settings(result.config)}, t = {result.epoch}, seed {result.config.seed}"


def _marks(name: str, color: str, symbol: str, size: int) -> go.Scatter:
    marker = {"color": color, "symbol": symbol, "size": size, "line": {"width": 2, "color": color}}
    return go.Scatter(mode="markers", name=name, marker=marker, hovertemplate="%{y}: %{x:.3g}")


# ---- Epsilon by epoch, and the clip factors ------------------------------------------------------------------------


def privacy_figure(result: StepResult) -> go.Figure:
    """Above: claimed and true epsilon by epoch. Below: what clipping leaves of each device's gradient. Log scales."""
    figure = make_subplots(rows=2, cols=1, row_heights=[0.64, 0.36], vertical_spacing=0.25)
    claim = {"line": {"color": ORANGE, "dash": "dash"}, "marker": {"symbol": "square-open", "size": 10}}
    hover = "after %{x} epochs: %{y:.3g}"
    figure.add_scatter(name="claimed by the paper's accounting", **claim, hovertemplate=hover, row=1, col=1)
    figure.add_scatter(line={"color": GREEN}, hovertemplate=hover, row=1, col=1)
    figure.add_scatter(
        mode="markers", marker={"color": SKY, "size": 10, "line": {"color": BLUE, "width": 1.5}},
        name="device", showlegend=False, hovertemplate="%{x}: × %{y:.3g}", row=2, col=1,
    )  # fmt: skip
    figure.update_layout(height=580, title="Privacy loss ε of the run")
    figure.update_xaxes(title="epochs trained (dotted line: this step's)", row=1, col=1)
    figure.update_xaxes(title="device", row=2, col=1)
    figure.update_yaxes(type="log", exponentformat="power")
    figure.update_yaxes(title="kept by the clip", dtick=1, row=2, col=1)
    figure.add_vline(x=1, line={"color": "#666", "dash": "dot", "width": 1}, row=1, col=1)
    update_privacy(figure, result)
    return figure


def update_privacy(figure: go.Figure, result: StepResult) -> None:
    epochs = list(range(1, result.config.epochs + 1))
    void = result.guarantee.epsilon is None
    with figure.batch_update():
        claimed, true, factors = figure.data
        claimed.x = true.x = epochs
        claimed.y = [_positive(e) for e in result.claimed]
        true.y = [_positive(e) for e in result.true]
        true.name = "if α were public (this run: no guarantee)" if void else "true, if the seed were secret"
        true.line.dash, true.marker.symbol = ("dot", "circle-open") if void else ("solid", "circle")
        claimed.mode = true.mode = "lines+markers"
        factors.x = [str(device) for device in range(1, len(result.clip_factors) + 1)]
        factors.y = list(result.clip_factors)
        figure.layout.xaxis.range = [0.5, epochs[-1] + 0.5]
        figure.layout.yaxis.range = span = _decades([*result.claimed, *result.true])
        figure.layout.yaxis.dtick = math.ceil((span[1] - span[0]) / 6)
        figure.layout.yaxis.title.text = f"ε (at δ = {result.guarantee.delta:.2g})"
        figure.layout.yaxis2.range = [_decades(result.clip_factors)[0], 0.15]
        figure.layout.shapes[0].update(x0=result.epoch + 1, x1=result.epoch + 1)
        account = result.guarantee.method.partition(",")[0].replace("-", " ")
        figure.layout.title.subtitle.text = (
            f"claimed: zCDP at face value; other: {account};<br>δ = {result.guarantee.delta:.2g}, one utterance "
            "(zero-out), disjoint batches"
        )


# ---- Training, live ------------------------------------------------------------------------------------------------

RUNS = {"sgd": "no privacy (Adam)", "edp-sgd": "eDP-SGD"}


def training_figure(epochs: int) -> go.Figure:
    """Loss on the training set and SER on the validation set by epoch, for both methods; empty."""
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.12)
    looks = {
        "sgd": {"line": {"color": BLUE}, "marker": {"symbol": "circle", "size": 9}},
        "edp-sgd": {
            "line": {"color": VERMILLION, "dash": "dash"},
            "marker": {"symbol": "diamond", "size": 10},
        },
    }
    for col, what in ((1, "loss"), (2, "SER")):
        for method, look in looks.items():
            label = RUNS[method]
            figure.add_scatter(
                x=[], y=[], name=label, legendgroup=method, showlegend=col == 1, mode="lines+markers", **look,
                hovertemplate=f"epoch %{{x}}: {what} %{{y:.3f}}<extra>{label}</extra>", row=1, col=col,
            )  # fmt: skip
    figure.update_layout(height=380, title="Training, epoch by epoch", margin_t=120, legend={"orientation": "h"})
    figure.update_xaxes(title="epochs trained", range=[0.5, epochs + 0.5], tickformat="d")
    figure.update_yaxes(title="loss per utterance (nats)", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="SER on the validation set", range=[0, 1.05], row=1, col=2)
    return figure


def update_training(
    figure: go.Figure, rows: Mapping[str, Sequence[Mapping[str, Any]]], epochs: int, caption: str
) -> None:
    """`rows`: per method, the rows of its run record so far."""
    with figure.batch_update():
        figure.layout.title.subtitle.text = caption
        for trace, (key, method) in zip(
            figure.data, ((key, method) for key in ("loss", "ser") for method in RUNS), strict=True
        ):
            values = [row[key] for row in rows[method]]
            trace.x, trace.y = list(range(1, len(values) + 1)), values
        figure.layout.xaxis.range = figure.layout.xaxis2.range = [0.5, epochs + 0.5]
        worst = max((row["ser"] for done in rows.values() for row in done), default=1.0)
        figure.layout.yaxis2.range = [0, 1.05 * max(worst, 1.0)]


def _positive(value: float | None) -> float | None:
    """A number that a log axis can show, else None."""
    return value if value is not None and value > 0 and math.isfinite(value) else None


def _decades(values: Iterable[float | None]) -> list[float]:
    """Exponents of the powers of ten around the values: an axis that stands still while a slider moves a little."""
    logs = [math.log10(v) for v in map(_positive, values) if v is not None] or [0.0]
    return [math.floor(min(logs) - 0.1), math.ceil(max(logs) + 0.1)]
