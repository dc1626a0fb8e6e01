"""The panels of ``03_edp_sgd.ipynb``: Algorithm 1 line by line, its decay, and what is claimed and true.

What a result holds is in `compute`; nothing is computed here but outlines and axis ranges.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import Control, decades, decay_of, delta_of, devices, number, seed_of, variant
from edp_lab.course.kit.figure import Figure, Trace, figure, line, points, positive
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Words, account_command, at_most, count, python, train_command
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, SKY, VERMILLION
from edp_lab.course.nb03_edp_sgd import compute
from edp_lab.course.nb03_edp_sgd.compute import (
    CLAIMED,
    DELTA,
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

words = Words(__file__)
HEIGHT = 580
ALPHAS = decades(-2, 1)


def _clip_norm(clip_norm: float) -> Control:
    return number("clip norm C", clip_norm, [stop for stop in decades(-2, 2) if stop <= 20], unit="gradient ÷ α")


# ---- Algorithm 1, line by line -------------------------------------------------------------------------------------


@panel("03")
def stages(clip_norm: float, z: float, num_devices: int, seed: int) -> Panel:
    """Algorithm 1 line by line on two layers of one weight: `result` is a `Stages`."""

    def command(result: Stages, **values: Any) -> str:
        bill = f"\n{account_of_step(result)}" if result.guarantee.epsilon is not None else ""
        return python(compute.stages, **values) + bill

    pulls = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0]
    return Panel(
        "Algorithm 1, line by line",
        "First, the gradients of N devices (one point each) after each line, in a model of two layers with one weight "
        "each; then their mean, and the noise on it.",
        {
            "as_printed": variant(True),
            "alpha_large": number("scale α, large layer", 1.0, ALPHAS, unit="no unit"),
            "alpha_small": number("scale α, small layer", 0.2, ALPHAS, unit="no unit"),
            "clip_norm": _clip_norm(clip_norm),
            "z": number("noise multiplier z", z, [0.0, *decades(-2, 1)], unit="no unit"),
            "num_devices": devices(num_devices),
            "pull": number("pull of sentence 1", 0.0, pulls, unit="mean gradients"),
            "seed": seed_of(seed),
        },
        compute.stages,
        [(draw_stages, "3 1 34rem"), (draw_mean, "2 1 22rem")],
        words.stages,
        command,
    )


WIDE = 1.5  # how much wider than high a small picture is, about
NOISY = (2, 3)  # the small pictures in which noise may be added, or has been
TITLES = {
    "gradient": "gradients",
    "scale": "scale: ÷ α",
    "clip": "clip: to C",
    "rescale": "rescale: × α",
    "noise": "add noise",
}
FIXED = {"automargin": False, "fixedrange": True}  # many axes are slow: nothing to measure, nothing to drag


def draw_stages(result: Stages) -> Figure:
    """What every device holds after each line: a small picture for each, but noise beside what it is added to."""
    layout = fig.plots(2, 2, [" "] * 4, horizontal_spacing=0.16, vertical_spacing=0.25)
    numbered = dict(zip(result.points, range(1, 1 + len(result.points)), strict=True))
    silent: list[Trace] = []
    noised: list[Trace] = []
    shapes = []
    for cell, lines in enumerate(_cells(result)):
        allowed = (result.clip_norm if result.scaled(lines[0]) else result.clip_norm * result.alpha) * np.ones(2)
        spans = _spans(lines[0], np.vstack([result.points[one] for one in lines]), allowed)
        for noisy in (False, True) if cell in NOISY else (False,):
            held = [result.points[one] for one in lines if (numbered[one] >= numbered["noise"]) == noisy]
            # What lies further out stands at the edge.
            inside = np.clip(held[0], *np.transpose(spans)) if held else np.empty((0, 2))
            (noised if noisy else silent).extend(_devices(inside, cell, noisy))
        if cell:
            shapes.append({**_ellipse(np.zeros(2), allowed), **ALLOWED, "showlegend": cell == 1, **_refs(cell)})
        unit = "÷ α" if result.scaled(lines[0]) else "gradient"
        for axis, layer, span, standoff in zip("xy", ("large", "small"), spans, (4, 2), strict=True):
            title = {"text": f"{layer} layer ({unit})", "font": {"size": 12}, "standoff": standoff}
            small = {**FIXED, "tickfont": {"size": 11}, "nticks": 4, "range": span, "title": title}
            layout[f"{axis}axis{cell + 1 if cell else ''}"] |= small
        text = ", ".join(f"{numbered[one]}. {TITLES[one]}" for one in lines)
        layout["annotations"][cell] |= {"text": text, "font": {"size": 13}}
    layout |= {"shapes": shapes, "margin": {"t": 162, "l": 56, "b": 48, "autoexpand": False}, "legend": {"y": 1.12}}
    return figure([*silent, *noised], "Algorithm 1, line by line", _stages_caption(result), HEIGHT, **layout)


ALLOWED = {"name": "what C allows", "line": {"color": BLACK, "dash": "dash", "width": 1.5}}


def _devices(held: Array, cell: int, noisy: bool) -> list[Trace]:
    """All devices but the first, and the first, as two traces of a small picture."""
    ending, shape = (", with noise", "-open") if noisy else ("", "")
    others = points("with noise" if noisy else "a device", BLUE, f"circle{shape}", 7, x=held[1:, 0], y=held[1:, 1])
    first = points(f"device 1{ending}", VERMILLION, f"diamond{shape}", 10, x=held[:1, 0], y=held[:1, 1])
    shown = (cell == NOISY[1], False) if noisy else (cell == 0, cell == 0)
    return [
        {**trace, **fig.at(cell + 1), "cliponaxis": False, "showlegend": show}
        for trace, show in zip((others, first), shown, strict=True)
    ]


def _refs(cell: int) -> dict[str, str]:
    return {"xref": f"x{cell + 1}", "yref": f"y{cell + 1}"}


def _cells(result: Stages) -> list[list[str]]:
    """Lines by picture: noise goes where it is added."""
    cells: list[list[str]] = []
    for name in result.points:
        if name == "noise":
            cells[-1].append(name)
        else:
            cells.append([name])
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


def draw_mean(result: Stages) -> Figure:
    """The mean over devices: what one sentence can make of it, and the noise that is to hide that."""
    hover = {"hovertemplate": "%{x:.3g}, %{y:.3g}"}
    marks = [
        points(name, color, symbol, size, x=place[:1], y=place[1:], **hover)
        for name, color, symbol, size, place in (
            ("without noise", BLUE, "square", 10, result.silent),
            ("released", BLACK, "x-thin-open", 13, result.released),
        )
    ]
    below = {"layer": "below", "showlegend": True}
    reach = {"name": "what sentence 1 can do", "line": {"color": ORANGE}, "fillcolor": "rgba(230,159,0,0.25)"}
    noise = {"name": "noise, 1 deviation", "line": {"color": VERMILLION, "dash": "dot", "width": 3}}
    shapes = [
        {**_ellipse(result.reach, result.half_axes), **below, **reach},
        {**_ellipse(result.silent, result.noise), **below, **noise},
    ]
    half = 1.1 * float(max(2 * result.half_axes.max(), 2.5 * result.noise.max()))
    axes = [{**FIXED, "constrain": "domain", "range": [c - half, c + half]} for c in result.reach.tolist()]
    return figure(
        marks,
        "6. mean, and one sentence",
        _stages_caption(result),
        HEIGHT,
        shapes=shapes,
        margin={"t": 184, "l": 64, "b": 48, "autoexpand": False},
        xaxis={**axes[0], "title": "large layer (gradient)"},
        yaxis={**axes[1], "title": "small layer (gradient)", "scaleanchor": "x"},
    )


def _ellipse(centre: Array, half_axes: Array) -> dict[str, Any]:
    corners = np.concatenate([centre - half_axes, centre + half_axes]).tolist()
    return {"type": "circle", **dict(zip(("x0", "y0", "x1", "y1"), corners, strict=True))}


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


def account_of_step(result: Stages) -> str:
    """The call of `edp-lab account` for one epoch of this step; "had alpha come from public text" is its epsilon."""
    mechanism = result.mechanism
    printed = mechanism.variant is Variant.AS_PRINTED
    given = mechanism.z0, mechanism.num_devices, mechanism.micro_batch_size, 1, DELTA
    return _account(*given, alpha_max=float(result.alpha.max()) if printed else None)


def _account(z: float, devices: int, size: int, epochs: int, delta: float, alpha_max: float | None = None) -> str:
    """As printed with a public alpha where its maximum is given, else sound."""
    numbers = {"z0": z, "gpus": devices, "micro-batch-size": size, "epochs": epochs, "delta": delta}
    if alpha_max is None:
        return account_command(numbers)
    return account_command(numbers, "--as-printed", "--alpha-max", f"{alpha_max:g}", "--alpha-source", "public")


def alpha_figure(history: GradientHistory) -> go.Figure:
    """Per layer: the gradient's length in the first step, which becomes alpha, and the largest later on."""
    norms, names = history.layer_norms().numpy(), history.layout.names
    largest = norms[0].max()
    order = [theme.layer_name(name) for name in theme.reading_order(names)]
    rows = [theme.layer_name(name) for name in names]
    hover = {"hovertemplate": "%{y}: %{x:.3g}"}
    marks = [
        points("first step: α", ORANGE, "diamond", 10, x=norms[0] / largest, y=rows, **hover),
        points("largest later", BLUE, "circle-open", 10, x=norms[1:].max(0) / largest, y=rows, **hover),
    ]
    caption = (
        f"{history.config.corpus}, small model, first batch of each of {history.epochs} epochs, seed "
        f"{history.config.seed};<br>read off private data: no guarantee"
    )
    return go.Figure(
        figure(
            marks,
            "Layer scales α, and what became of the gradients",
            caption,
            480,
            xaxis={"title": "length of the gradient, over the largest layer's at first", **fig.LOG},
            yaxis={"title": "layer", "categoryorder": "array", "categoryarray": order[::-1]},
        )
    )


# ---- Decay ---------------------------------------------------------------------------------------------------------


@panel("03")
def decay(
    history: GradientHistory,
    as_printed: bool,
    clip_norm: float,
    z0: float,
    decay: str,
    tau: float,
    num_devices: int,
) -> Panel:
    """Noise against the gradients of a short run: `result` is a `Decayed`."""

    def command(result: Decayed, **_: Any) -> str:
        told = "# trains with these values; the curves come from a run without noise"
        return f"{told}\n{train_command(result.config)}"

    return Panel(
        "Noise that decays",
        "First, how long the gradient of a batch is in every epoch of a short run, and how long the noise would be; "
        "then, what the noise costs in privacy.",
        {
            "as_printed": variant(as_printed),
            "clip_norm": _clip_norm(clip_norm),
            "z0": number("noise multiplier z0", z0, [0.0, *decades(-6, 1)], unit="no unit"),
            "decay": decay_of(decay),
            "tau": number("decay rate τ", tau, [k / 50 for k in range(51)], unit="per epoch"),
            "num_devices": devices(num_devices),
        },
        partial(compute.decayed, history),
        [draw_decay, draw_spent],
        words.decay,
        command,
    )


DECAYS = {
    Decay.NONE: ("noise, no decay", SKY, "solid"),
    Decay.LINEAR: ("noise, linear", ORANGE, "dash"),
    Decay.EXPONENTIAL: ("noise, exponential", VERMILLION, "dot"),
}


def draw_decay(result: Decayed) -> Figure:
    """Lengths by epoch, on a log axis: gradient, what the clip leaves of it, and noise."""
    epochs = list(range(len(result.gradient)))
    on: dict[str, Any] = {"x": epochs, "hovertemplate": "t = %{x}: %{y:.3g}"}
    lines = [
        line("gradient as it is", BLACK, symbol="circle-open", y=result.gradient, **on),
        line("clipped mean: the signal", BLUE, symbol="circle", y=result.signal, **on),
    ]
    for decay, look in DECAYS.items():
        width = {"width": 4 if decay == result.config.decay else 1.5}
        lines.append(line(*look, y=positive(result.noise[decay]), line=width, **on))
    flat = result.config.decay == Decay.NONE or result.same_cost is None
    same = {"x": [], "y": []} if flat else {"x": epochs, "y": [result.same_cost] * len(epochs)}
    lines.append(line("no decay, same cost", "#777", "longdashdot", **{**on, **same}))
    shown = [*result.gradient, *result.signal, *(value for noise in result.noise.values() for value in noise)]
    return figure(
        lines,
        "Noise against gradients",
        _decay_caption(result),
        HEIGHT,
        margin={"t": 176},
        xaxis={"title": "epoch t (first is 0)", "dtick": 1, "range": [-0.2, max(epochs[-1], 1) + 0.2]},
        yaxis=fig.log_axis("L2 norm, in units of the gradient", shown),
    )


def draw_spent(result: Decayed) -> Figure:
    """Epsilon by epoch, claimed and true, with the decay chosen and without one."""
    epochs = list(range(1, len(result.gradient) + 1))
    on: dict[str, Any] = {"x": epochs, "hovertemplate": "after %{x} epochs: %{y:.3g}"}
    claimed, true = ([positive(run[name]) for name in ("chosen", "none")] for run in (result.claimed, result.true))
    thin = {"line": {"width": 1.5}}
    lines = [
        line("claimed", ORANGE, "dash", symbol="square-open", y=claimed[0], **on),
        line("if α were public", GREEN, symbol="circle", y=true[0], **on),
        line("claimed, no decay", ORANGE, "dot", y=claimed[1], **thin, **on),
        line("α public, no decay", GREEN, "dashdot", y=true[1], **thin, **on),
    ]
    return figure(
        lines,
        "What it costs",
        _decay_caption(result),
        HEIGHT,
        margin={"t": 150},
        xaxis={"title": "epochs trained", "dtick": 1, "range": [0.8, max(epochs[-1], 2) + 0.2]},
        yaxis=_epsilon_axis(lines, result.guarantee.delta),
    )


def _epsilon_axis(lines: list[Trace], delta: float) -> dict[str, Any]:
    values = [value for one in lines for value in one["y"]]
    low, high = fig.log_range(values)
    return fig.log_axis(f"ε (at δ = {d(delta)})", values, dtick=max(1, math.ceil((high - low) / 8)))


def _decay_caption(result: Decayed) -> str:
    config, held = result.config, result.guarantee
    name = "as printed" if config.as_printed else "sound"
    decay = "no decay" if config.decay == Decay.NONE else f"{config.decay}, τ = {d(config.tau)}"
    told = (
        f"{name}, N = {config.num_devices}, C = {d(config.clip_norm)}, z0 = {d(config.z0)}, {decay}, seed {config.seed}"
    )
    return f"{told};<br>{_held(held, f'{len(result.gradient)} epochs')}"


# ---- Sound or printed ----------------------------------------------------------------------------------------------


@panel("03")
def promise(z: float, num_devices: int, epochs: int) -> Panel:
    """What is claimed and what is true of the same z: `result` is a `Promise`."""
    sizes = [1, 2, 4, 8, 16, 32, 64]
    return Panel(
        "Sound or printed?",
        "First, what may come out of one step without a sentence and with it, if the noise were what z says, and as "
        "it is; then, what ε that makes, for every N.",
        {
            "z": number("noise multiplier z", z, decades(-2, 1), unit="no unit"),
            "num_devices": devices(num_devices, MANY),
            "alpha_max": number("largest scale α", 1.0, ALPHAS, unit="no unit"),
            "micro_batch_size": number("micro-batch size", 8, sizes, unit="sentences"),
            "epochs": number("epochs", epochs, [1, 2, 3, 5, 8, 12, 20, 30, 40], unit="epochs"),
            "delta": delta_of(DELTA),
        },
        compute.promise,
        [draw_bells, draw_by_devices],
        words.promise,
        promise_command,
    )


def draw_bells(result: Promise) -> Figure:
    """What comes out of one step without a sentence and with it: as the accountant takes it, and as printed."""
    layout = fig.plots(2, 1, ["as claimed", "as printed"], vertical_spacing=0.26)
    steps = np.linspace(-4, 4, 81)
    half = 3.5 * max(result.multiplier.values())
    lines = []
    for row, name in enumerate((CLAIMED, PRINTED)):
        deviation = max(result.multiplier[name], 1e-6)
        place: dict[str, Any] = {**fig.at(row + 1), "showlegend": row == 0, "hovertemplate": "%{x:.3g}: %{y:.3g}"}
        bell = np.exp(-(steps**2) / 2)
        lines += [
            line("without the sentence", BLUE, x=deviation * steps, y=bell, **place),
            line("with it", ORANGE, "dash", x=1 + deviation * steps, y=bell, **place),
        ]
        noise = f"{name}: noise of {d(result.multiplier[name])} sensitivities, told apart in {result.right(name):.1%}"
        layout["annotations"][row] |= {"text": noise, "font": {"size": 13}}
        number = "" if row == 0 else "2"
        title = "released, along the sentence's pull (sensitivities)"
        layout[f"xaxis{number}"] |= {"title": title, "range": [-half - 0.2, 1.2 + half]}
        layout[f"yaxis{number}"] |= {"title": "density (peak = 1)", "range": [0, 1.1]}
    layout |= {"legend": {"y": 1.09}, "margin": {"t": 176}}
    return figure(lines, "One step, with and without a sentence", _promise_caption(result), HEIGHT, **layout)


def draw_by_devices(result: Promise) -> Figure:
    """Epsilon by the number of devices, at the same z."""
    looks: dict[str, Any] = {
        CLAIMED: (CLAIMED, ORANGE, "dash", "square-open"),
        PRINTED: ("as printed, α public", VERMILLION, "solid", "diamond"),
        SOUND: ("sound", GREEN, "dot", "circle"),
    }
    lines = [
        line(*look, symbol=symbol, x=MANY, y=positive(result.curves[name]), hovertemplate="N = %{x}: %{y:.3g}")
        for name, (*look, symbol) in looks.items()
    ]
    return figure(
        lines,
        "ε by the number of devices",
        _promise_caption(result),
        HEIGHT,
        margin={"t": 150},
        shapes=[fig.vline(result.num_devices)],
        xaxis={"title": "devices N, at equal micro-batches", "type": "log", "tickvals": MANY},
        yaxis=_epsilon_axis(lines, result.delta),
    )


def _promise_caption(result: Promise) -> str:
    told = f"z = {d(result.z)}, N = {result.num_devices}, largest α = {d(result.alpha_max)}"
    batches = f"disjoint batches, micro-batches of {result.micro_batch_size}"
    until = f"{count(result.epochs, 'epoch')}, δ = {d(result.delta)}"
    return f"{told}; claimed: zCDP; others: Gaussian DP, zero-out;<br>{batches}, {until}"


def promise_command(result: Promise, **_: Any) -> str:
    """Two calls of `edp-lab account`: as printed, with what is claimed, and sound."""
    given = result.z, result.num_devices, result.micro_batch_size, result.epochs, result.delta
    return f"{_account(*given, alpha_max=result.alpha_max)}\n{_account(*given)}"
