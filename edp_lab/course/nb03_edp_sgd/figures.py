"""The figures of ``03_edp_sgd.ipynb``: those of a panel are drawn once, then patched in place.

What a result holds is in `edp_lab.course.nb03_edp_sgd.compute`; nothing is computed here but outlines and axis ranges.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from edp_lab.course.kit import theme
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, SKY, VERMILLION
from edp_lab.course.nb01_coins.words import at_most
from edp_lab.course.nb01_coins.words import digits as d
from edp_lab.course.nb02_dp_sgd.figures import HERE, LEGEND, LOG, decades, points, positive
from edp_lab.course.nb03_edp_sgd.compute import (
    CLAIMED,
    MANY,
    PRINTED,
    SOUND,
    Array,
    Decayed,
    GradientHistory,
    Promise,
    Stages,
)
from edp_lab.privacy import Decay, Guarantee, Variant

HEIGHT = 580
FIXED = {"automargin": False, "fixedrange": True}  # many axes are slow: nothing to measure, nothing to drag
CELLS, WIDE = 4, 1.5  # small pictures, and how much wider than high, about
NOISY = (2, 3)  # those in which noise may be added, or has been
TITLES = {
    "gradient": "gradients",
    "scale": "scale: ÷ α",
    "clip": "clip: to C",
    "rescale": "rescale: × α",
    "noise": "add noise",
}


# ---- Algorithm 1, line by line -------------------------------------------------------------------------------------


def stages_figure(result: Stages) -> go.Figure:
    """What every device holds after each line: a small picture for each, but noise beside what it is added to."""
    figure = make_subplots(rows=2, cols=2, horizontal_spacing=0.16, vertical_spacing=0.25, subplot_titles=[" "] * CELLS)
    allowed = {"type": "circle", "line": {"color": BLACK, "dash": "dash", "width": 1.5}}
    for cell in range(CELLS):
        place = {"row": cell // 2 + 1, "col": cell % 2 + 1, "cliponaxis": False}
        figure.add_scatter(**points("a device", BLUE, "circle", 7), showlegend=cell == 0, **place)
        figure.add_scatter(**points("device 1", VERMILLION, "diamond", 10), showlegend=cell == 0, **place)
        if cell:  # what C allows
            shape = {**allowed, "x0": 0.0, "x1": 1.0, "y0": 0.0, "y1": 1.0, "name": "what C allows"}
            figure.add_shape(**shape, row=place["row"], col=place["col"], showlegend=cell == 1)
    for cell in NOISY:
        place = {"row": cell // 2 + 1, "col": cell % 2 + 1, "cliponaxis": False}
        figure.add_scatter(**points("with noise", BLUE, "circle-open", 7), showlegend=cell == NOISY[1], **place)
        figure.add_scatter(**points("device 1, with noise", VERMILLION, "diamond-open", 10), showlegend=False, **place)
    figure.update_layout(
        height=HEIGHT,
        title="Algorithm 1, line by line",
        margin={"t": 162, "l": 56, "b": 48, "autoexpand": False},
        legend={"orientation": "h", "y": 1.12},
    )
    figure.update_annotations(font_size=13)
    small = {**FIXED, "title_font_size": 12, "tickfont_size": 11, "nticks": 4}
    figure.update_xaxes(**small, title_standoff=4)
    figure.update_yaxes(**small, title_standoff=2)
    update_stages(figure, result)
    return figure


def update_stages(figure: go.Figure, result: Stages) -> None:
    layout: dict[str, Any] = {"title.subtitle.text": _stages_caption(result)}
    silent: list[Array] = []
    noised: list[Array] = []
    numbered = dict(zip(result.points, range(1, 1 + len(result.points)), strict=True))
    for cell, lines in enumerate(_cells(result)):
        axes = (result.clip_norm if result.scaled(lines[0]) else result.clip_norm * result.alpha) * np.ones(2)
        spans = _spans(lines[0], np.vstack([result.points[line] for line in lines]), axes)
        for group, noisy in ((silent, False), (noised, True)):
            if not noisy or cell in NOISY:
                held = [result.points[one] for one in lines if (numbered[one] >= numbered["noise"]) == noisy]
                # What lies further out stands at the edge.
                inside = np.clip(held[0], *np.transpose(spans)) if held else np.empty((0, 2))
                group += [inside[1:], inside[:1]]
        if cell:
            layout |= _ellipse(cell - 1, np.zeros(2), axes)
        unit = "÷ α" if result.scaled(lines[0]) else "gradient"
        for axis, layer, span in zip("xy", ("large", "small"), spans, strict=True):
            name = f"{axis}axis{cell + 1 if cell else ''}"
            layout |= {f"{name}.range": span, f"{name}.title.text": f"{layer} layer ({unit})"}
        layout[f"annotations[{cell}].text"] = ", ".join(f"{numbered[line]}. {TITLES[line]}" for line in lines)
    places = [part.T.tolist() for part in (*silent, *noised)]
    figure.plotly_update({"x": [x for x, _ in places], "y": [y for _, y in places]}, layout)


def _cells(result: Stages) -> list[list[str]]:
    """Lines by picture: noise goes where it is added."""
    cells: list[list[str]] = []
    for line in result.points:
        if line == "noise":
            cells[-1].append(line)
        else:
            cells.append([line])
    return cells


def _spans(line: str, held: Array, axes: Array) -> list[list[float]]:
    """Ranges of both axes: of the cloud while it is a cloud, then of what C allows, at about equal scale."""
    if line in ("gradient", "scale"):
        others = np.vstack(
            [held[1:], np.zeros((1, 2)), -axes, axes] if line == "scale" else [held[1:], np.zeros((1, 2))]
        )
        low, high = others.min(0), others.max(0)
        room = 0.12 * (high - low) + 1e-12
        return np.stack([low - room, high + room], axis=1).tolist()
    half = max(1.15 * float(axes.max()), 1.05 * float(np.abs(held).max()))
    return [[-WIDE * half, WIDE * half], [-half, half]]


def mean_figure(result: Stages) -> go.Figure:
    """The mean over devices: what one sentence can make of it, and the noise that is to hide that."""
    figure = go.Figure(
        [
            go.Scatter(points("without noise", BLUE, "square", 10)),
            go.Scatter(points("released", BLACK, "x-thin-open", 13)),
        ]
    )
    ellipse = {"type": "circle", "layer": "below", "x0": 0.0, "x1": 1.0, "y0": 0.0, "y1": 1.0, "showlegend": True}
    figure.add_shape(**ellipse, name="what sentence 1 can do", line_color=ORANGE, fillcolor="rgba(230,159,0,0.25)")
    dotted = {"color": VERMILLION, "dash": "dot", "width": 3}
    figure.add_shape(**ellipse, name="noise, 1 deviation", line=dotted)
    figure.update_layout(height=HEIGHT, title="6. mean, and one sentence", legend=LEGEND)
    figure.update_layout(margin={"t": 184, "l": 64, "b": 48, "autoexpand": False})
    figure.update_xaxes(**FIXED, title="large layer (gradient)", constrain="domain")
    figure.update_yaxes(**FIXED, title="small layer (gradient)", scaleanchor="x", constrain="domain")
    figure.update_traces(hovertemplate="%{x:.3g}, %{y:.3g}")
    update_mean(figure, result)
    return figure


def update_mean(figure: go.Figure, result: Stages) -> None:
    half = 1.1 * float(max(2 * result.half_axes.max(), 2.5 * result.noise.max()))
    spans = [[c - half, c + half] for c in result.reach.tolist()]
    places = np.stack([result.silent, result.released], axis=1)[..., None].tolist()
    layout = {
        **_ellipse(0, result.reach, result.half_axes),
        **_ellipse(1, result.silent, result.noise),
        "title.subtitle.text": _stages_caption(result),
    }
    figure.plotly_update({"x": places[0], "y": places[1]}, {"xaxis.range": spans[0], "yaxis.range": spans[1], **layout})


def _stages_caption(result: Stages) -> str:
    mechanism, held = result.mechanism, result.guarantee
    name = "as printed" if mechanism.variant is Variant.AS_PRINTED else "sound"
    told = (
        f"{name}, N = {mechanism.num_devices}, C = {d(result.clip_norm)}, z = {d(mechanism.z0)}, "
        f"α = {d(result.alpha[0])} and {d(result.alpha[1])}, seed {result.seed}"
    )
    public = ", were α public" if mechanism.variant is Variant.AS_PRINTED else ""
    return f"{told};<br>{_held(held, f'one epoch{public}')}".replace(": ε", ":<br>ε")


def _held(held: Guarantee, what: str) -> str:
    """Epsilon of a caption, and where it ends."""
    if held.epsilon_if_alpha_public is None:
        return f"no guarantee: {held.reason.partition(':')[0]}"
    after = what if held.epsilon is not None else "no guarantee; were α public"
    return f"{after}: ε = {at_most(held.epsilon_if_alpha_public)} at δ = {d(held.delta)} (Gaussian DP, zero-out)"


def alpha_figure(history: GradientHistory) -> go.Figure:
    """Per layer: the gradient's length in the first step, which becomes alpha, and the largest later on."""
    norms, names = history.layer_norms().numpy(), history.layout.names
    largest = norms[0].max()
    order = [theme.layer_name(name) for name in theme.reading_order(names)]
    rows = [theme.layer_name(name) for name in names]
    figure = go.Figure(
        [
            go.Scatter(x=norms[0] / largest, y=rows, **points("first step: α", ORANGE, "diamond", 10)),
            go.Scatter(x=norms[1:].max(0) / largest, y=rows, **points("largest later", BLUE, "circle-open", 10)),
        ]
    )
    figure.update_layout(height=480, title="Layer scales α, and what became of the gradients", legend=LEGEND)
    figure.layout.title.subtitle.text = (
        f"{history.config.corpus}, small model, first batch of each of {history.epochs} epochs, seed "
        f"{history.config.seed};<br>read off private data: no guarantee"
    )
    figure.update_xaxes(title="length of the gradient, over the largest layer's at first", **LOG)
    figure.update_yaxes(title="layer", categoryorder="array", categoryarray=order[::-1])
    figure.update_traces(hovertemplate="%{y}: %{x:.3g}")
    return figure


# ---- Decay ---------------------------------------------------------------------------------------------------------

DECAYS = {
    Decay.NONE: ("noise, no decay", SKY, "solid"),
    Decay.LINEAR: ("noise, linear", ORANGE, "dash"),
    Decay.EXPONENTIAL: ("noise, exponential", VERMILLION, "dot"),
}


def decay_figure(result: Decayed) -> go.Figure:
    """Lengths by epoch, on a log axis: gradient, what the clip leaves of it, and noise."""
    figure = go.Figure(
        [
            _line("gradient as it is", BLACK, "solid", "circle-open"),
            _line("clipped mean: the signal", BLUE, "solid", "circle"),
        ]
    )
    for name, color, dash in DECAYS.values():
        figure.add_scatter(name=name, mode="lines", line={"color": color, "dash": dash})
    figure.add_scatter(name="no decay, same cost", mode="lines", line={"color": "#777", "dash": "longdashdot"})
    figure.update_layout(height=HEIGHT, title="Noise against gradients", legend=LEGEND, margin_t=176)
    figure.update_traces(hovertemplate="t = %{x}: %{y:.3g}")
    figure.update_xaxes(title="epoch t (first is 0)", dtick=1)
    figure.update_yaxes(title="L2 norm, in units of the gradient", **LOG)
    update_decay(figure, result)
    return figure


def update_decay(figure: go.Figure, result: Decayed) -> None:
    epochs = list(range(len(result.gradient)))
    with figure.batch_update():
        gradient, signal, *noises, same = figure.data
        for trace, values in ((gradient, result.gradient), (signal, result.signal)):
            trace.x, trace.y = epochs, values
        for trace, decay in zip(noises, DECAYS, strict=True):
            trace.x, trace.y = epochs, positive(result.noise[decay])
            trace.line.width = 4 if decay == result.config.decay else 1.5
        flat = result.config.decay == Decay.NONE or result.same_cost is None
        same.x, same.y = ([], []) if flat else (epochs, [result.same_cost] * len(epochs))
        shown = [*result.gradient, *result.signal, *(value for noise in result.noise.values() for value in noise)]
        figure.layout.yaxis.range = decades(shown)
        figure.layout.xaxis.range = [-0.2, max(epochs[-1], 1) + 0.2]
        figure.layout.title.subtitle.text = _decay_caption(result)


def spent_figure(result: Decayed) -> go.Figure:
    """Epsilon by epoch, claimed and true, with the decay chosen and without one."""
    figure = go.Figure(
        [
            _line("claimed", ORANGE, "dash", "square-open"),
            _line("if α were public", GREEN, "solid", "circle"),
            go.Scatter(name="claimed, no decay", mode="lines", line={"color": ORANGE, "dash": "dot", "width": 1.5}),
            go.Scatter(name="α public, no decay", mode="lines", line={"color": GREEN, "dash": "dashdot", "width": 1.5}),
        ]
    )
    figure.update_layout(height=HEIGHT, title="What it costs", legend=LEGEND, margin_t=150)
    figure.update_traces(hovertemplate="after %{x} epochs: %{y:.3g}")
    figure.update_xaxes(title="epochs trained", dtick=1)
    figure.update_yaxes(**LOG)
    update_spent(figure, result)
    return figure


def update_spent(figure: go.Figure, result: Decayed) -> None:
    epochs = list(range(1, len(result.gradient) + 1))
    lines = [run[name] for name in ("chosen", "none") for run in (result.claimed, result.true)]
    with figure.batch_update():
        for trace, values in zip(figure.data, lines, strict=True):
            trace.x, trace.y = epochs, positive(values)
        figure.layout.xaxis.range = [0.8, max(epochs[-1], 2) + 0.2]
        figure.layout.yaxis.range = span = decades([value for values in lines for value in values])
        figure.layout.yaxis.dtick = max(1, math.ceil((span[1] - span[0]) / 8))
        figure.layout.yaxis.title.text = f"ε (at δ = {d(result.guarantee.delta)})"
        figure.layout.title.subtitle.text = _decay_caption(result)


def _decay_caption(result: Decayed) -> str:
    config, held = result.config, result.guarantee
    name = "as printed" if config.as_printed else "sound"
    decay = "no decay" if config.decay == Decay.NONE else f"{config.decay}, τ = {d(config.tau)}"
    told = (
        f"{name}, N = {config.num_devices}, C = {d(config.clip_norm)}, z0 = {d(config.z0)}, {decay}, seed {config.seed}"
    )
    return f"{told};<br>{_held(held, f'{len(result.gradient)} epochs')}"


# ---- Claimed and true ----------------------------------------------------------------------------------------------


def bells_figure(result: Promise) -> go.Figure:
    """What comes out of one step without a sentence and with it: as the accountant takes it, and as printed."""
    figure = make_subplots(rows=2, cols=1, vertical_spacing=0.26, subplot_titles=["as claimed", "as printed"])
    for row in (1, 2):
        place = {"row": row, "col": 1, "showlegend": row == 1, "mode": "lines"}
        figure.add_scatter(name="without the sentence", line={"color": BLUE}, **place)
        figure.add_scatter(name="with it", line={"color": ORANGE, "dash": "dash"}, **place)
    figure.update_layout(height=HEIGHT, title="One step, with and without a sentence", margin_t=176)
    figure.update_layout(legend={**LEGEND, "y": 1.09})
    figure.update_annotations(font_size=13)
    figure.update_xaxes(title="released, along the sentence's pull (sensitivities)")
    figure.update_yaxes(title="density (peak = 1)", range=[0, 1.1])
    figure.update_traces(hovertemplate="%{x:.3g}: %{y:.3g}")
    update_bells(figure, result)
    return figure


def update_bells(figure: go.Figure, result: Promise) -> None:
    with figure.batch_update():
        for row, name in enumerate((CLAIMED, PRINTED)):
            deviation = max(result.multiplier[name], 1e-6)
            for trace, centre in zip(figure.data[2 * row : 2 * row + 2], (0, 1), strict=True):
                steps = np.linspace(-4, 4, 81)
                trace.x, trace.y = centre + deviation * steps, np.exp(-(steps**2) / 2)
            figure.layout.annotations[
                row
            ].text = (
                f"{name}: noise of {d(result.multiplier[name])} sensitivities, told apart in {result.right(name):.1%}"
            )
        half = 3.5 * max(result.multiplier.values())
        figure.layout.xaxis.range = figure.layout.xaxis2.range = [-half - 0.2, 1.2 + half]
        figure.layout.title.subtitle.text = _promise_caption(result)


def devices_figure(result: Promise) -> go.Figure:
    """Epsilon by the number of devices, at the same z."""
    figure = go.Figure(
        [
            _line(CLAIMED, ORANGE, "dash", "square-open"),
            _line("as printed, α public", VERMILLION, "solid", "diamond"),
            _line("sound", GREEN, "dot", "circle"),
        ]
    )
    figure.update_layout(height=HEIGHT, title="ε by the number of devices", legend=LEGEND, margin_t=150)
    figure.update_traces(x=MANY, hovertemplate="N = %{x}: %{y:.3g}")
    figure.update_xaxes(title="devices N, at equal micro-batches", type="log", tickvals=MANY)
    figure.update_yaxes(**LOG)
    figure.add_vline(x=1, line=HERE)
    update_devices(figure, result)
    return figure


def update_devices(figure: go.Figure, result: Promise) -> None:
    lines = [result.curves[name] for name in (CLAIMED, PRINTED, SOUND)]
    with figure.batch_update():
        for trace, values in zip(figure.data, lines, strict=True):
            trace.y = positive(values)
        figure.layout.yaxis.range = span = decades([value for values in lines for value in values])
        figure.layout.yaxis.dtick = max(1, math.ceil((span[1] - span[0]) / 8))
        figure.layout.yaxis.title.text = f"ε (at δ = {d(result.delta)})"
        figure.layout.shapes[0].update(x0=result.num_devices, x1=result.num_devices)
        figure.layout.title.subtitle.text = _promise_caption(result)


def _promise_caption(result: Promise) -> str:
    told = f"z = {d(result.z)}, N = {result.num_devices}, largest α = {d(result.alpha_max)}"
    epochs = f"{result.epochs} epoch{'' if result.epochs == 1 else 's'}"
    batches = f"disjoint batches, micro-batches of {result.micro_batch_size}"
    return f"{told}; claimed: zCDP; others: Gaussian DP, zero-out;<br>{batches}, {epochs}, δ = {d(result.delta)}"


# ---- Small parts ---------------------------------------------------------------------------------------------------


def _line(name: str, color: str, dash: str, symbol: str) -> go.Scatter:
    marker = {"color": color, "symbol": symbol, "size": 8}
    return go.Scatter(name=name, mode="lines+markers", line={"color": color, "dash": dash}, marker=marker)


def _ellipse(shape: int, centre: Array, half_axes: Array) -> dict[str, float]:
    """What makes that circle the ellipse around `centre`."""
    corners = np.concatenate([centre - half_axes, centre + half_axes]).tolist()
    return {f"shapes[{shape}].{name}": value for name, value in zip(("x0", "y0", "x1", "y1"), corners, strict=True)}
