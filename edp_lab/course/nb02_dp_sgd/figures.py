"""The figures of ``02_dp_sgd.ipynb``: those of a panel are drawn once, then patched in place.

What a result holds is in `edp_lab.course.nb02_dp_sgd.compute`; nothing is computed here but outlines and axis ranges.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from edp_lab.course.kit.text import at_most
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, SKY, VERMILLION
from edp_lab.course.nb02_dp_sgd import two_weights as dpsgd_training
from edp_lab.course.nb02_dp_sgd.compute import CLIPS, DELTA, Array, Cloud, Denominators, PerExample
from edp_lab.course.nb02_dp_sgd.two_weights import SAMPLINGS, STEPS, Training

HEIGHT = 560
LEGEND = {"orientation": "h"}
HERE = {"color": "#444", "dash": "dashdot", "width": 1.5}
LOG = {"type": "log", "dtick": 1, "exponentformat": "power"}
SHOWN = 200  # examples in the picture of a cloud
NAMES = {"sgd": "SGD", "momentum": "momentum", "adam": "Adam", "dp-adambc": "DP-AdamBC"}


# ---- The gradients of a batch --------------------------------------------------------------------------------------


def norms_figure(result: PerExample, clip_norm: float) -> go.Figure:
    """Lengths of the gradients of one batch, by how many examples share one."""
    figure = go.Figure()
    for size, norms in result.norms.items():
        rows = ["1 example" if size == 1 else f"{size} examples"] * len(norms)
        figure.add_scatter(
            x=norms, y=rows, mode="markers", showlegend=False, hovertemplate="%{x:.3g}<extra></extra>",
            marker={"symbol": "line-ns-open", "size": 22, "line": {"width": 1.6}, "color": BLUE},
        )  # fmt: skip
    figure.add_vline(x=clip_norm, line=HERE)
    figure.add_annotation(  # plotly wants the logarithm here, and only here
        x=math.log10(clip_norm), y=1, yref="paper", yanchor="bottom", text=f"C = {d(clip_norm)}", showarrow=False
    )
    figure.update_layout(height=340, title="How long the gradients of one batch are", margin_t=100)
    figure.layout.title.subtitle.text = (
        f"{result.corpus}, small model, seed {result.seed}; a bar is one gradient;<br>"
        "read off private data: no guarantee"
    )
    figure.update_xaxes(title="L2 norm of the mean gradient", type="log", tickformat="~g", dtick="D2")
    figure.update_yaxes(title="mean of", autorange="reversed")
    return figure


# ---- Clipping as geometry ------------------------------------------------------------------------------------------


def cloud_figure(result: Cloud) -> go.Figure:
    """Per-example gradients before and after the clip, and what becomes of their mean."""
    thin = {"color": "#bbb", "width": 1}
    figure = go.Figure(
        [
            go.Scatter(mode="lines", line=thin, hoverinfo="skip", showlegend=False),
            go.Scatter(points("gradient of an example", SKY, "circle-open", 7)),
            go.Scatter(points("after the clip", BLUE, "circle", 5)),
            go.Scatter(name="bound C", mode="lines", line={"color": BLACK, "dash": "dash", "width": 1.5}),
            go.Scatter(points("mean as it is", GREEN, "star", 16)),
            go.Scatter(points("mean after the clip", ORANGE, "square", 12)),
            go.Scatter(name="noise, 1 deviation", mode="lines", line={"color": VERMILLION, "dash": "dot"}),
            go.Scatter(points("released", VERMILLION, "x-thin-open", 14)),
        ]
    )
    figure.update_layout(height=HEIGHT, title="A batch of gradients", legend=LEGEND, margin_t=170)
    figure.update_xaxes(title="gradient of weight 1", range=[-6, 4.5], dtick=2, constrain="domain")
    figure.update_yaxes(title="gradient of weight 2", range=[-3, 7.5], dtick=2, scaleanchor="x", constrain="domain")
    figure.update_traces(hovertemplate="%{x:.3g}, %{y:.3g}")
    update_cloud(figure, result)
    return figure


def update_cloud(figure: go.Figure, result: Cloud) -> None:
    before, after = result.gradients[:SHOWN], result.clipped[:SHOWN]
    with figure.batch_update():
        moves, raw, clipped, bound, mean, clipped_mean, noise, released = figure.data
        moves.x, moves.y = (_segments(before[:, k], after[:, k]) for k in (0, 1))
        for trace, rows in ((raw, before), (clipped, after)):
            trace.x, trace.y = rows.T
        corners = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1], [1, 1]])
        outline = corners if result.rule == "by value" else _circle()
        bound.x, bound.y = result.clip_norm * outline.T
        noise.x, noise.y = (result.clipped_mean + result.noise_std * _circle()).T
        for trace, point in ((mean, result.mean), (clipped_mean, result.clipped_mean), (released, result.released)):
            trace.x, trace.y = [[value] for value in point]
        figure.layout.title.subtitle.text = _cloud_caption(result)


def error_figure(result: Cloud) -> go.Figure:
    """How far the released mean is off, by C: through clipping, through noise, and through both."""
    figure = go.Figure(
        [
            go.Scatter(name="bias of the clip", line={"color": ORANGE, "dash": "dash"}),
            go.Scatter(name="noise, expected", line={"color": VERMILLION, "dash": "dot"}),
            go.Scatter(name="both", line={"color": BLACK, "width": 3}),
        ]
    )
    figure.update_traces(x=CLIPS, mode="lines", hovertemplate="C = %{x:.3g}: %{y:.3g}")
    figure.update_layout(height=HEIGHT, title="How far off is the released mean?", legend=LEGEND, margin_t=130)
    figure.update_xaxes(title="clip norm C, in units of the gradient", range=np.log10(CLIPS[[0, -1]]), **LOG)
    figure.update_yaxes(title="distance to the mean as it is", **LOG)
    figure.add_vline(x=1.0, line=HERE)
    update_error(figure, result)
    return figure


def update_error(figure: go.Figure, result: Cloud) -> None:
    both = np.hypot(result.biases, result.noises)
    with figure.batch_update():
        for trace, values in zip(figure.data, (result.biases, result.noises, both), strict=True):
            trace.y = positive(values)
        figure.layout.yaxis.range = [-3, 1.2]
        figure.layout.shapes[0].update(x0=result.clip_norm, x1=result.clip_norm)
        figure.layout.title.subtitle.text = _cloud_caption(result)


def _cloud_caption(result: Cloud) -> str:
    held = result.guarantee
    if held is None:
        cost = "no guarantee: nothing bounds an example"
    elif held.epsilon is None:
        cost = "no guarantee: no noise"
    else:
        cost = f"ε = {at_most(held.epsilon)} at δ = {DELTA:g} (Gaussian DP, one release)"
    return f"{cost},<br>zero-out; C = {d(result.clip_norm)}, {result.rule}, B = {result.examples}, seed {result.seed}"


# ---- A whole training ----------------------------------------------------------------------------------------------

WINDOW = (-1.6, 4.4), (-2.6, 4.6)
PATHS = {
    "plain": ("no clip, no noise", BLUE, "solid", "circle"),
    "clipped": ("clip only", ORANGE, "dash", "square"),
    "private": ("clip and noise", VERMILLION, "dot", "diamond"),
}
SAMPLED = {"poisson": ("Poisson", "solid"), "shuffle": ("shuffled", "dash")}


def path_figure(result: Training) -> go.Figure:
    """The loss as a landscape over both weights, and the ways down."""
    x, y, losses = _landscape()
    figure = go.Figure(
        go.Contour(
            x=x, y=y, z=losses, colorscale=[[0, "#f2f2f2"], [1, "#9a9a9a"]], contours={"start": 0.44, "end": 2.4,
            "size": 0.08}, line={"width": 0.6}, showscale=False, hovertemplate="loss %{z:.2f}<extra></extra>",
        )
    )  # fmt: skip
    for name, color, dash, symbol in PATHS.values():
        line, marker = {"color": color, "dash": dash, "width": 2}, {"color": color, "symbol": symbol, "size": 5}
        figure.add_scatter(
            name=name, mode="lines+markers", line=line, marker=marker, hovertemplate="%{x:.2f}, %{y:.2f}"
        )
    (x0, y0), ring = dpsgd_training.START, {"color": BLACK, "symbol": "circle-open", "size": 11, "line": {"width": 2}}
    figure.add_scatter(
        x=[x0], y=[y0], mode="markers+text", text=["start"], textposition="middle left", marker=ring, showlegend=False,
        hoverinfo="skip",
    )  # fmt: skip
    figure.update_layout(height=HEIGHT, title="Thirty steps downhill", legend=LEGEND, margin_t=130)
    figure.update_xaxes(title="weight 1 (its feature is large)", range=WINDOW[0])
    figure.update_yaxes(title="weight 2 (its feature is small)", range=WINDOW[1])
    update_path(figure, result)
    return figure


def update_path(figure: go.Figure, result: Training) -> None:
    with figure.batch_update():
        for trace, name in zip(figure.data[1:], PATHS, strict=False):
            trace.x, trace.y = getattr(result, name).T
        figure.layout.title.subtitle.text = _training_caption(result)


@lru_cache(maxsize=1)
def _landscape() -> tuple[Array, Array, Array]:
    x, y = (np.linspace(*side, 49) for side in WINDOW)
    return x, y, dpsgd_training.loss(np.stack(np.meshgrid(x, y), axis=-1))


def learning_figure(result: Training) -> go.Figure:
    """Above: loss by step. Below: epsilon by step, as the batches were drawn and as they were not."""
    figure, above, below = _two_rows()
    for name, color, dash, symbol in PATHS.values():
        marker = {"color": color, "symbol": symbol, "size": 5}
        figure.add_scatter(name=name, mode="lines+markers", line={"color": color, "dash": dash}, marker=marker, **above)
    for name in SAMPLINGS:
        shape = "hv" if name == "shuffle" else "linear"  # a pass is paid for as it begins
        figure.add_scatter(x=list(range(1, STEPS + 1)), mode="lines", line={"shape": shape}, **below)
    figure.update_layout(title="What it learns, and what it costs")
    figure.update_traces(x=list(range(STEPS + 1)), row=1, col=1)
    figure.update_traces(hovertemplate="step %{x}: %{y:.3g}")
    figure.update_xaxes(title="step", range=[0, STEPS + 0.5])
    figure.update_yaxes(title="loss (nats per person)", row=1, col=1)
    figure.update_yaxes(title=f"ε (at δ = {DELTA:g})", row=2, col=1, **LOG)
    update_learning(figure, result)
    return figure


def update_learning(figure: go.Figure, result: Training) -> None:
    with figure.batch_update():
        for trace, name in zip(figure.data[:3], PATHS, strict=True):
            trace.y = result.losses[name]
        for trace, name in zip(figure.data[3:], SAMPLINGS, strict=True):
            label, dash = SAMPLED[name]
            own = name == result.recipe.sampling
            trace.y = positive(getattr(result, name))
            trace.line.update(color=GREEN if own else "#777", dash=dash, width=3 if own else 1.5)
            trace.name = f"{label}: these batches" if own else f"were they {label}"
        figure.layout.yaxis.range = [0.35, max(1.7, min(4.0, 1.05 * float(result.losses["private"].max())))]
        figure.layout.yaxis2.range = decades([*result.poisson, *result.shuffle])
        figure.layout.title.subtitle.text = _training_caption(result)


def _training_caption(result: Training) -> str:
    held, mechanism, recipe = result.guarantee, result.mechanism, result.recipe
    told = (
        f"{NAMES[recipe.optimizer]}, C = {d(mechanism.clip_norm)}, z = {d(mechanism.z0)}, B = {recipe.batch_size}, "
        f"seed {recipe.seed}"
    )
    if held.epsilon is None:
        return f"{told};<br>no guarantee: {held.reason.partition(':')[0]}"
    sampled, neighbours = ("Poisson", "add/remove") if recipe.sampling == "poisson" else ("shuffled", "zero-out")
    accountant = held.method.replace("Renyi", "Rényi").partition(",")[0]
    return f"{told};<br>ε = {at_most(held.epsilon)} at δ = {DELTA:g} ({accountant}, {sampled}, {neighbours})"


# ---- What Adam divides by ------------------------------------------------------------------------------------------


def denominators_figure(result: Denominators) -> go.Figure:
    """Above: what each weight's average gradient is divided by. Below: how far the true gradient then moves it."""
    figure, above, below = _two_rows()
    for place in (above, below):
        shown = {"showlegend": place is above, **place}
        figure.add_scatter(**points("Adam", VERMILLION, "circle", 6), **shown)
        figure.add_scatter(**points("DP-AdamBC", BLUE, "diamond", 6), **shown)
        line = {"color": BLACK, "dash": "dash", "width": 1.5}
        figure.add_scatter(name="Adam without noise", mode="lines", line=line, **shown)
    figure.add_scatter(name="noise alone", mode="lines", line={"color": ORANGE, "dash": "dot"}, **above)
    figure.update_layout(height=640, title="What Adam divides by", yaxis_domain=[0.58, 1], yaxis2_domain=[0, 0.42])
    span = np.log10([8e-4, 1.2])
    figure.update_xaxes(title="size of the weight's gradient", range=span, **LOG)
    figure.update_yaxes(title="divided by", range=[-4.2, 1.3], row=1, col=1, **LOG)
    figure.update_yaxes(title="move (learning rates)", range=[-3.3, 1.6], row=2, col=1, **LOG)
    figure.update_traces(hovertemplate="gradient %{x:.2g}: %{y:.3g}")
    update_denominators(figure, result)
    return figure


def update_denominators(figure: go.Figure, result: Denominators) -> None:
    ends, one = result.gradient[[0, -1]], np.ones(2)
    with figure.batch_update():
        adam, corrected, same, adam_move, corrected_move, unit, noise = figure.data
        for trace, values in (
            (adam, result.adam), (corrected, result.corrected), (adam_move, result.adam_move),
            (corrected_move, result.corrected_move),
        ):  # fmt: skip
            trace.x, trace.y = result.gradient, values
        same.x = unit.x = noise.x = ends
        same.y, unit.y, noise.y = ends, one, positive(result.noise_std * one)
        figure.layout.title.subtitle.text = (
            f"noise of deviation {d(result.noise_std)} on each of {len(result.gradient)} weights,<br>"
            f"after {result.steps} steps, γ′ = {d(result.gamma)}, seed {result.seed}"
        )


# ---- Small parts ---------------------------------------------------------------------------------------------------


def points(name: str, color: str, symbol: str, size: int) -> dict[str, Any]:
    """How a trace of markers looks."""
    marker = {"color": color, "symbol": symbol, "size": size, "line": {"width": 1.5, "color": color}}
    return {"name": name, "mode": "markers", "marker": marker}


def _two_rows() -> tuple[go.Figure, dict[str, Any], dict[str, Any]]:
    """An empty figure with two plots, each under its own legend, and where a trace of either goes."""
    figure = make_subplots(rows=2, cols=1, vertical_spacing=0.3)
    below = {**LEGEND, "y": 0.38, "yanchor": "bottom", "x": 0, "xanchor": "left"}
    figure.update_layout(height=HEIGHT, legend=LEGEND, legend2=below)
    return figure, {"row": 1, "col": 1}, {"row": 2, "col": 1, "legend": "legend2"}


@lru_cache(maxsize=1)
def _circle() -> Array:
    """A closed unit circle, (73, 2)."""
    angle = np.linspace(0, 2 * np.pi, 73)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _segments(start: Array, end: Array) -> Array:
    """Coordinates of separate lines from each start to its end."""
    return np.stack([start, end, np.full_like(start, np.nan)], axis=1).ravel()


def positive(values: Any) -> list[float | None]:
    """Numbers that a log axis can show, else None."""
    return [float(v) if v is not None and v > 0 and math.isfinite(v) else None for v in values]


def decades(values: Any) -> list[float]:
    """Exponents of the powers of ten around the values: an axis that stands still while a slider moves a little."""
    logs = [math.log10(v) for v in positive(values) if v is not None] or [0.0]
    return [math.floor(min(logs)) - 0.05, math.ceil(max(logs)) + 0.05]
