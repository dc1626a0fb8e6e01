"""The panels of ``03_edp_sgd.ipynb``: Algorithm 1 line by line, its decay, and what is claimed and true."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import Control, decades, decay_of, delta_of, devices, number, seed_of, variant
from edp_lab.course.kit.figure import Figure, Trace, axis, line, log_axis, logs, points, positive
from edp_lab.course.kit.inputs import Array
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Words, account_command, python, train_command
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, SKY, VERMILLION
from edp_lab.course.nb03_edp_sgd import compute
from edp_lab.course.nb03_edp_sgd.compute import CLAIMED, DELTA, MANY, PRINTED, SOUND
from edp_lab.privacy import Decay, Variant

words = Words(__file__)
figure = partial(fig.figure, height=580)
ALPHAS = decades(-2, 1)


def _clip_norm(clip_norm: float) -> Control:
    return number("clip norm C", clip_norm, [stop for stop in decades(-2, 2) if stop <= 20], unit="gradient ÷ α")


def _account(z: float, devices: int, size: int, epochs: int, delta: float, alpha_max: float | None = None) -> str:
    """The call of `edp-lab account`: as printed with a public alpha where its maximum is given, else sound."""
    numbers = {"z0": z, "gpus": devices, "micro-batch-size": size, "epochs": epochs, "delta": delta}
    printed = [] if alpha_max is None else ["--as-printed", "--alpha-max", f"{alpha_max:g}", "--alpha-source", "public"]
    return account_command(numbers, *printed)


# ---- Algorithm 1, line by line -------------------------------------------------------------------------------------


@panel("03")
def stages(clip_norm: float, z: float, num_devices: int, seed: int) -> Panel:
    """Algorithm 1 line by line on two layers of one weight: `result` is a `Stages`."""

    def command(result: compute.Stages, **values: Any) -> str:
        m, bill = result.mechanism, ""
        if result.guarantee.epsilon is not None:  # what it says under "had alpha come from public text" or "holds"
            largest = float(result.alpha.max()) if m.variant is Variant.AS_PRINTED else None
            bill = "\n" + _account(m.z0, m.num_devices, m.micro_batch_size, 1, DELTA, largest)
        return python(compute.stages, **values) + bill

    pulls = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0]
    return Panel(
        "Algorithm 1, line by line",
        "First, the gradients of N devices (one point each) after each line, in a model of two layers with one weight "
        "each; then their mean, and the noise on it.",
        compute.stages,
        [(draw_stages, "3 1 34rem"), (draw_mean, "2 1 22rem")],
        words.stages,
        command,
        as_printed=variant(True),
        alpha_large=number("scale α, large layer", 1.0, ALPHAS),
        alpha_small=number("scale α, small layer", 0.2, ALPHAS),
        clip_norm=_clip_norm(clip_norm),
        z=number("noise multiplier z", z, [0.0, *decades(-2, 1)]),
        num_devices=devices(num_devices),
        pull=number("pull of sentence 1", 0.0, pulls, unit="mean gradients"),
        seed=seed_of(seed),
    )


TITLES = {
    "gradient": "gradients",
    "scale": "scale: ÷ α",
    "clip": "clip: to C",
    "rescale": "rescale: × α",
    "noise": "add noise",
}
# Many axes are slow: nothing to measure, nothing to drag.
FIXED: dict[str, Any] = {"automargin": False, "fixedrange": True}
ALLOWED = {"name": "what C allows", "line": {"color": BLACK, "dash": "dash", "width": 1.5}}


def draw_stages(result: compute.Stages) -> Figure:
    """What every device holds after each line: a small picture for each, but noise beside what it is added to."""
    layout = fig.plots(2, 2, [" "] * 4, horizontal_spacing=0.16, vertical_spacing=0.25)
    numbered = {line: number for number, line in enumerate(result.points, 1)}
    cells = [[line] for line in result.points if line != "noise"]
    cells[numbered["noise"] - 2].append("noise")
    silent: list[Trace] = []
    noised: list[Trace] = []
    shapes = []
    for cell, lines in enumerate(cells):
        allowed = (result.clip_norm if lines[0] in result.scaled else result.clip_norm * result.alpha) * np.ones(2)
        spans = _spans(lines[0], np.vstack([result.points[one] for one in lines]), allowed)
        for noisy in (False, True) if cell > 1 else (False,):  # in the last two, noise may be added, or has been
            held = [result.points[one] for one in lines if (numbered[one] >= numbered["noise"]) == noisy]
            # What lies further out stands at the edge.
            inside = np.clip(held[0], *np.transpose(spans)) if held else np.empty((0, 2))
            told, ending, shape = ("with noise", ", with noise", "-open") if noisy else ("a device", "", "")
            on = {**fig.at(cell + 1), "cliponaxis": False}
            others, first = {"x": inside[1:, 0], "y": inside[1:, 1]}, {"x": inside[:1, 0], "y": inside[:1, 1]}
            traces = noised if noisy else silent
            traces.append(points(told, BLUE, f"circle{shape}", 7, showlegend=cell == 3 * noisy, **others, **on))
            first |= {"showlegend": not cell}
            traces.append(points(f"device 1{ending}", VERMILLION, f"diamond{shape}", 10, **first, **on))
        if cell:
            refs = {"xref": f"x{cell + 1}", "yref": f"y{cell + 1}"}
            shapes.append({**_ellipse(np.zeros(2), allowed), **ALLOWED, "showlegend": cell == 1, **refs})
        unit = "÷ α" if lines[0] in result.scaled else "gradient"
        for side, layer, span, standoff in zip("xy", ("large", "small"), spans, (4, 2), strict=True):
            title = {"text": f"{layer} layer ({unit})", "font": {"size": 12}, "standoff": standoff}
            small = {**FIXED, "tickfont": {"size": 11}, "nticks": 4, "range": span, "title": title}
            layout[f"{side}axis{cell + 1 if cell else ''}"] |= small
        text = ", ".join(f"{numbered[one]}. {TITLES[one]}" for one in lines)
        layout["annotations"][cell] |= {"text": text, "font": {"size": 13}}
    layout |= {"shapes": shapes, "margin": {"t": 162, "l": 56, "b": 48, "autoexpand": False}, "legend": {"y": 1.12}}
    return figure("Algorithm 1, line by line", words.stages_caption(result), *silent, *noised, **layout)


def _spans(line: str, held: Array, axes: Array) -> list[list[float]]:
    """Ranges of both axes: of the cloud while it is a cloud, then of what C allows, at about equal scale."""
    if line in ("gradient", "scale"):
        others = np.vstack([held[1:], np.zeros((1, 2)), *([-axes, axes] if line == "scale" else [])])
        low, high = others.min(0), others.max(0)
        room = 0.12 * (high - low) + 1e-12
        return np.stack([low - room, high + room], axis=1).tolist()
    half = max(1.15 * float(axes.max()), 1.05 * float(np.abs(held).max()))
    return [[-1.5 * half, 1.5 * half], [-half, half]]  # a small picture is about so much wider than high


def draw_mean(result: compute.Stages) -> Figure:
    """The mean over devices: what one sentence can make of it, and the noise that is to hide that."""
    (x, y), (u, v) = result.silent[:, None], result.released[:, None]
    below = {"layer": "below", "showlegend": True}
    reach = {"name": "what sentence 1 can do", "line": {"color": ORANGE}, "fillcolor": "rgba(230,159,0,0.25)"}
    noise = {"name": "noise, 1 deviation", "line": {"color": VERMILLION, "dash": "dot", "width": 3}}
    half = 1.1 * float(max(2 * result.half_axes.max(), 2.5 * result.noise.max()))
    spans = [[centre - half, centre + half] for centre in result.reach.tolist()]
    return figure(
        "6. mean, and one sentence",
        words.stages_caption(result),
        points("without noise", BLUE, "square", 10, x=x, y=y),
        points("released", BLACK, "x-thin-open", 13, x=u, y=v),
        {**_ellipse(result.reach, result.half_axes), **below, **reach},
        {**_ellipse(result.silent, result.noise), **below, **noise},
        hover="%{x:.3g}, %{y:.3g}",
        margin={"t": 184, "l": 64, "b": 48, "autoexpand": False},
        xaxis=axis("large layer (gradient)", spans[0], **FIXED, constrain="domain"),
        yaxis=axis("small layer (gradient)", spans[1], **FIXED, constrain="domain", scaleanchor="x"),
    )


def _ellipse(centre: Array, half_axes: Array) -> dict[str, Any]:
    corners = np.concatenate([centre - half_axes, centre + half_axes]).tolist()
    return {"type": "circle", **dict(zip(("x0", "y0", "x1", "y1"), corners, strict=True))}


def alpha_figure(history: compute.GradientHistory) -> fig.Still:
    """Per layer: the gradient's length in the first step, which becomes alpha, and the largest later on."""
    norms, names = history.layer_norms().numpy(), history.layout.names
    largest = norms[0].max()
    order = [theme.layer_name(name) for name in theme.reading_order(names)]
    rows = [theme.layer_name(name) for name in names]
    return fig.still(
        "Layer scales α, and what became of the gradients",
        f"{history.config.corpus}, small model, first batch of each of {history.epochs} epochs, seed "
        f"{history.config.seed};\nread off private data: no guarantee",
        points("first step: α", ORANGE, "diamond", 10, x=norms[0] / largest, y=rows),
        points("largest later", BLUE, "circle-open", 10, x=norms[1:].max(0) / largest, y=rows),
        height=480,
        hover="%{y}: %{x:.3g}",
        xaxis=logs("length of the gradient, over the largest layer's at first"),
        yaxis=axis("layer", categoryorder="array", categoryarray=order[::-1]),
    )


# ---- Decay ---------------------------------------------------------------------------------------------------------


@panel("03")
def decay(
    history: compute.GradientHistory,
    as_printed: bool,
    clip_norm: float,
    z0: float,
    decay: str,
    tau: float,
    num_devices: int,
) -> Panel:
    """Noise against the gradients of a short run: `result` is a `Decayed`."""

    def command(result: compute.Decayed, **_: Any) -> str:
        told = "# trains with these values; the curves come from a run without noise"
        return f"{told}\n{train_command(result.config)}"

    return Panel(
        "Noise that decays",
        "First, how long the gradient of a batch is in every epoch of a short run, and how long the noise would be; "
        "then, what the noise costs in privacy.",
        partial(compute.decayed, history),
        [draw_decay, draw_spent],
        words.decay,
        command,
        as_printed=variant(as_printed),
        clip_norm=_clip_norm(clip_norm),
        z0=number("noise multiplier z0", z0, [0.0, *decades(-6, 1)]),
        decay=decay_of(decay),
        tau=number("decay rate τ", tau, [k / 50 for k in range(51)], unit="per epoch"),
        num_devices=devices(num_devices),
    )


DECAYS = {
    Decay.NONE: ("noise, no decay", SKY, "solid"),
    Decay.LINEAR: ("noise, linear", ORANGE, "dash"),
    Decay.EXPONENTIAL: ("noise, exponential", VERMILLION, "dot"),
}


def draw_decay(result: compute.Decayed) -> Figure:
    """Lengths by epoch, on a log axis: gradient, what the clip leaves of it, and noise."""
    epochs, decay = list(range(len(result.gradient))), result.config.decay
    same = [] if decay == Decay.NONE or result.same_cost is None else epochs
    shown = [*result.gradient, *result.signal, *(value for noise in result.noise.values() for value in noise)]
    return figure(
        "Noise against gradients",
        words.decay_caption(result),
        line("gradient as it is", BLACK, symbol="circle-open", x=epochs, y=result.gradient),
        line("clipped mean: the signal", BLUE, symbol="circle", x=epochs, y=result.signal),
        *(
            line(*look, width=4 if one == decay else 1.5, x=epochs, y=positive(result.noise[one]))
            for one, look in DECAYS.items()
        ),
        line("no decay, same cost", "#777", "longdashdot", x=same, y=[result.same_cost] * len(same)),
        top=176,
        hover="t = %{x}: %{y:.3g}",
        xaxis=axis("epoch t (first is 0)", [-0.2, max(epochs[-1], 1) + 0.2], dtick=1),
        yaxis=log_axis("L2 norm, in units of the gradient", shown),
    )


def draw_spent(result: compute.Decayed) -> Figure:
    """Epsilon by epoch, claimed and true, with the decay chosen and without one."""
    epochs = list(range(1, len(result.gradient) + 1))
    claimed, true = ([positive(run[name]) for name in ("chosen", "none")] for run in (result.claimed, result.true))
    cost = [*claimed[0], *claimed[1], *true[0], *true[1]]
    return figure(
        "What it costs",
        words.decay_caption(result),
        line("claimed", ORANGE, "dash", symbol="square-open", x=epochs, y=claimed[0]),
        line("if α were public", GREEN, symbol="circle", x=epochs, y=true[0]),
        line("claimed, no decay", ORANGE, "dot", width=1.5, x=epochs, y=claimed[1]),
        line("α public, no decay", GREEN, "dashdot", width=1.5, x=epochs, y=true[1]),
        top=150,
        hover="after %{x} epochs: %{y:.3g}",
        xaxis=axis("epochs trained", [0.8, max(epochs[-1], 2) + 0.2], dtick=1),
        yaxis=log_axis(f"ε (at δ = {d(result.guarantee.delta)})", cost, labels=8),
    )


# ---- Sound or printed ----------------------------------------------------------------------------------------------


@panel("03")
def promise(z: float, num_devices: int, epochs: int) -> Panel:
    """What is claimed and what is true of the same z: `result` is a `Promise`."""

    def command(result: compute.Promise, **_: Any) -> str:
        """Two calls of `edp-lab account`: as printed, with what is claimed, and sound."""
        given = result.z, result.num_devices, result.micro_batch_size, result.epochs, result.delta
        return f"{_account(*given, result.alpha_max)}\n{_account(*given)}"

    sizes = [1, 2, 4, 8, 16, 32, 64]
    return Panel(
        "Sound or printed?",
        "First, what may come out of one step without a sentence and with it, if the noise were what z says, and as "
        "it is; then, what ε that makes, for every N.",
        compute.promise,
        [draw_bells, draw_by_devices],
        words.promise,
        command,
        z=number("noise multiplier z", z, decades(-2, 1)),
        num_devices=devices(num_devices, MANY),
        alpha_max=number("largest scale α", 1.0, ALPHAS),
        micro_batch_size=number("micro-batch size", 8, sizes, unit="sentences"),
        epochs=number("epochs", epochs, [1, 2, 3, 5, 8, 12, 20, 30, 40], unit="epochs"),
        delta=delta_of(DELTA),
    )


def draw_bells(result: compute.Promise) -> Figure:
    """What comes out of one step without a sentence and with it: as the accountant takes it, and as printed."""
    steps = np.linspace(-4, 4, 81)
    bell, half = np.exp(-(steps**2) / 2), 3.5 * max(result.multiplier.values())
    lines, titles = [], []
    for plot, name in enumerate((CLAIMED, PRINTED), 1):
        noise = result.multiplier[name]
        titles.append(f"{name}: noise of {d(noise)} sensitivities, told apart in {result.right(name):.1%}")
        output, place = max(noise, 1e-6) * steps, {**fig.at(plot), "showlegend": plot == 1}
        lines.append(line("without the sentence", BLUE, x=output, y=bell, **place))
        lines.append(line("with it", ORANGE, "dash", x=1 + output, y=bell, **place))
    axes = (
        axis("released, along the sentence's pull (sensitivities)", [-half - 0.2, 1.2 + half]),
        axis("density (peak = 1)", [0, 1.1]),
    )
    layout = fig.plots(2, 1, ["as claimed", "as printed"], axes=(axes, axes), vertical_spacing=0.26)
    for heading, title in zip(layout["annotations"], titles, strict=True):
        heading |= {"text": title, "font": {"size": 13}}
    return figure(
        "One step, with and without a sentence",
        words.promise_caption(result),
        *lines,
        top=176,
        hover="%{x:.3g}: %{y:.3g}",
        **layout | {"legend": {"y": 1.09}},
    )


def draw_by_devices(result: compute.Promise) -> Figure:
    """Epsilon by the number of devices, at the same z."""
    claimed, printed, sound = (positive(result.curves[name]) for name in (CLAIMED, PRINTED, SOUND))
    return figure(
        "ε by the number of devices",
        words.promise_caption(result),
        line(CLAIMED, ORANGE, "dash", symbol="square-open", x=MANY, y=claimed),
        line("as printed, α public", VERMILLION, symbol="diamond", x=MANY, y=printed),
        line("sound", GREEN, "dot", symbol="circle", x=MANY, y=sound),
        fig.vline(result.num_devices),
        top=150,
        hover="N = %{x}: %{y:.3g}",
        xaxis=axis("devices N, at equal micro-batches", type="log", tickvals=MANY),
        yaxis=log_axis(f"ε (at δ = {d(result.delta)})", [*claimed, *printed, *sound], labels=8),
    )
