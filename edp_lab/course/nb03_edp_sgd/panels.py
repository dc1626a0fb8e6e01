"""The panels of ``03_edp_sgd.ipynb``: what is claimed and what holds, Algorithm 1 line by line, and its decay."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import Array, decades, decay_of, devices, number, variant
from edp_lab.course.kit.figure import Figure, Mark, axis, line, log_axis, points, positive
from edp_lab.course.kit.panel import Panel, Tile, claimed, epsilons, panel
from edp_lab.course.kit.text import Words, account_of, at_least, at_most, percent, short, train_command
from edp_lab.course.kit.theme import HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.course.nb03_edp_sgd import compute
from edp_lab.course.nb03_edp_sgd.compute import DELTA, MANY, MEAN, Decayed, Promise, Stages
from edp_lab.privacy import Decay, Variant

words = Words(__file__)
figure = partial(fig.figure, height=380)
ALPHAS = decades(-2, 1)


# ---- Sound or printed ----------------------------------------------------------------------------------------------


@panel("03")
def promise(z: float = 1.0, num_devices: int = 8) -> Panel:
    """What is claimed and what is true of the same z: `result` is a `Promise`."""

    def command(result: Promise, **_: Any) -> str:
        """Two calls of `edp-lab account`: as printed, with what is claimed, and sound."""
        of = (result.printed, result.sound)
        return "\n".join(account_of(one, epochs=1, delta=DELTA) for one in of)

    return Panel(
        "Sound or printed?",
        "How well one step hides a sentence, as claimed and as printed, and the ε that follows.",
        compute.promise,
        [draw_bells, draw_by_devices],
        words.promise,
        command,
        tiles=tell_promise,
        z=number("noise multiplier z", z, decades(-2, 1)),
        num_devices=devices(num_devices, MANY),
        alpha_max=number("largest scale α", 1.0, ALPHAS),
        micro_batch_size=number("micro-batch size", 8, [1, 2, 4, 8, 16, 32, 64], unit="sentences", rare=True),
    )


def tell_promise(result: Promise) -> tuple[Tile, Tile, str]:
    """Both epsilons, and what an attacker makes of one step."""
    said, public = epsilons(result.guarantee)[0], at_most(result.epsilon[compute.PRINTED])
    claim, printed = (percent(result.right(name)) for name in (compute.CLAIMED, compute.PRINTED))
    sentence = f"An attacker who sees one step can be right in {printed} of guesses. The claimed z allows {claim}."
    held = Tile("holds", "no guarantee", f"with a public α: ε = {public}", "printed")
    return said, held, sentence


def draw_bells(result: Promise) -> Figure:
    """What comes out of one step without a sentence and with it: as the accountant takes it, and as printed."""
    steps = np.linspace(-4, 4, 81)
    bell, half = np.exp(-(steps**2) / 2), 3.5 * max(result.multiplier.values())
    lines, titles = [], []
    for plot, name in enumerate((compute.CLAIMED, compute.PRINTED), 1):
        noise = result.multiplier[name]
        titles.append(f"{name}: {percent(result.right(name))} of guesses are right")
        output, place = max(noise, 1e-6) * steps, {**fig.at(plot), "showlegend": plot == 1}
        lines.append(line("without the sentence", PLAIN, x=output, y=bell, **place))
        lines.append(line("with it", NOISE, "dash", x=1 + output, y=bell, **place))
    span, density = [-half - 0.2, 1.2 + half], axis("density", [0, 1.1], showticklabels=False)
    axes = (
        (axis("", span, matches="x2", showticklabels=False), density),
        (axis("released (1: the sentence's pull)", span), density),
    )
    layout = fig.plots(2, 1, titles, axes=axes, vertical_spacing=0.14)
    for heading in layout["annotations"]:
        heading["font"] = {"size": 13}
    return figure("One step, with and without a sentence", *lines, hover="%{x:.3g}: %{y:.3g}", **layout)


def draw_by_devices(result: Promise) -> Figure:
    """Epsilon by the number of devices, at the same z."""
    said, printed, sound = map(positive, result.curves.values())
    return figure(
        "ε by the number of GPUs",
        line("claimed", theme.CLAIMED, "dash", symbol="square-open", x=MANY, y=said),
        line("as printed, α public", PRINTED, symbol="diamond", x=MANY, y=printed),
        line("sound", HOLDS, "dot", symbol="circle", x=MANY, y=sound),
        fig.vline(result.printed.num_devices),
        hover="N = %{x}: %{y:.3g}",
        xaxis=axis("GPUs N, at equal micro-batches", type="log", tickvals=MANY),
        yaxis=log_axis(f"ε (at δ = {short(DELTA)})", [*said, *printed, *sound], labels=6),
    )


# ---- Algorithm 1, line by line -------------------------------------------------------------------------------------


@panel("03")
def stages(z: float = 1.0, num_devices: int = 8, seed: int = 0) -> Panel:
    """Algorithm 1 line by line on two layers of one weight: `result` is a `Stages`."""

    pulls = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0]
    return Panel(
        "Algorithm 1, line by line",
        "The gradients of N devices after each line, one point each, in a model of two layers with one weight each.",
        partial(compute.stages, seed=seed),
        [(draw_stages, "1 1 100%")],
        words.stages,
        lambda result, **_: account_of(result.mechanism, epochs=1, delta=DELTA),
        tiles=tell_stages,
        as_printed=variant(True),
        pull=number("pull of sentence 1", 0.0, pulls, unit="mean gradients"),
        alpha_large=number("α of the large layer", 1.0, ALPHAS),
        alpha_small=number("α of the small layer", 0.2, ALPHAS),
        z=number("noise multiplier z", z, [0.0, *decades(-2, 1)]),
        num_devices=devices(num_devices),
    )


def tell_stages(result: Stages) -> tuple[Tile, Tile, str]:
    """The two meanings of z, and what they are made of."""
    mechanism, meant = result.mechanism, "noise over sensitivity"
    role = "printed" if mechanism.variant is Variant.AS_PRINTED else "holds"
    large, small = map(short, result.noise)
    spread = large if large == small else f"{large} on the large layer and {small} on the small one"
    return (
        claimed(short(mechanism.z0), f"{meant}, by the claim", "z claimed"),
        Tile("z that holds", at_least(mechanism.noise_multiplier(0)), f"{meant}, in truth", role),
        f"One sentence can move the mean by {short(2 * result.half_axes.max())}. The noise on the mean is {spread}.",
    )


TITLES = {
    "gradient": "gradients",
    "scale": "line 1: ÷ α",
    "clip": "line 2: clip to C",
    "rescale": "line 3: × α",
    "noise": "line 4: add noise",
}
SHAPE = np.array([1.5, 1.0])  # a picture is about so much wider than high


def draw_stages(result: Stages) -> Figure:
    """What every device holds after each line, and last what is released of it: all to scale."""
    layout = fig.plots(2, 3, [" "] * 6, horizontal_spacing=0.1, vertical_spacing=0.25)
    marks: list[Mark] = []
    for place, (name, held) in enumerate(result.points.items(), 1):
        allowed = np.ones(2) if name in result.scaled else result.alpha
        # A long first gradient would leave no room for the others: what lies further out stands at the edge.
        usual = [held] if place > 2 else [held[1:], [MEAN / (1 if place == 1 else result.alpha)]]
        window = _window([0, 0], *usual, *([[-allowed, allowed]] if place > 1 else []))
        _show(layout, place, TITLES[name], window)
        inside, on = np.clip(held, *window.T), {**fig.at(place), "cliponaxis": False, "showlegend": place == 1}
        marks.append(points("device", PLAIN, "circle", 6, x=inside[1:, 0], y=inside[1:, 1], **on))
        marks.append(points("device 1", PRINTED, "diamond", 9, x=inside[:1, 0], y=inside[:1, 1], **on))
        if place > 1:
            dash = {"name": "allowed by C", "line": {"color": INK, "dash": "dash", "width": 1.5}}
            marks.append(_ellipse(np.zeros(2), allowed, place, showlegend=place == 2, **dash))
    reach, sides = result.reach, np.stack([result.half_axes, result.noise])
    _show(layout, 6, "line 5: the mean", _window(reach - 1.5 * sides, reach + 1.5 * sides))
    one = {"name": "one sentence", "line": {"color": PRINTED}, "fillcolor": PRINTED, "opacity": 0.25}
    noise = {"name": "noise", "line": {"color": NOISE, "dash": "dot", "width": 3}}
    (x, y), (u, v) = result.silent[:, None], result.released[:, None]
    marks += [
        points("mean", PLAIN, "square", 9, x=x, y=y, **fig.at(6)),
        points("released", INK, "x-thin-open", 12, x=u, y=v, **fig.at(6)),
        _ellipse(reach, result.half_axes, 6, layer="below", showlegend=True, **one),
        _ellipse(result.silent, result.noise, 6, layer="below", showlegend=True, **noise),
    ]
    margin = {"t": 98, "l": 56, "b": 36, "autoexpand": False}
    title = "What each line does to the gradients"
    return figure(title, *marks, hover="%{x:.3g}, %{y:.3g}", **layout | {"margin": margin})


def _window(*corners: Any) -> Array:
    """The ends of both axes, (2, 2), of a picture at equal scale with all these points."""
    low, high = (end(np.vstack(corners), axis=0) for end in (np.min, np.max))
    half = (0.58 * max((high - low) / SHAPE) + 1e-12) * SHAPE
    return np.stack([(low + high) / 2 - half, (low + high) / 2 + half], axis=1)


def _show(layout: Figure, place: int, heading: str, window: Array) -> None:
    """Give the picture its title and its axes. Many axes are slow: nothing to measure, nothing to drag."""
    layout["annotations"][place - 1] |= {"text": heading, "font": {"size": 13}}
    fixed = {"automargin": False, "fixedrange": True, "nticks": 4, "tickfont": {"size": 11}, "constrain": "domain"}
    ends = str(place) if place > 1 else ""
    for side, layer, span in zip("xy", ("large", "small"), window.tolist(), strict=True):
        outer = place > 3 if side == "x" else place % 3 == 1
        title = {"text": f"{layer} layer" if outer else "", "font": {"size": 11}, "standoff": 0}
        layout[f"{side}axis{ends}"] |= {"range": span, "title": title, **fixed}
    layout[f"yaxis{ends}"]["scaleanchor"] = f"x{ends}"


def _ellipse(centre: Array, half_axes: Array, place: int, **look: Any) -> Mark:
    corners = np.concatenate([centre - half_axes, centre + half_axes]).tolist()
    on = {"xref": f"x{place}", "yref": f"y{place}"}
    return {"type": "circle", **on, **dict(zip(("x0", "y0", "x1", "y1"), corners, strict=True)), **look}


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

    def command(result: Decayed, **_: Any) -> str:
        """The run with this noise; the curves come from one without."""
        return train_command(result.config)

    return Panel(
        "Noise that decays",
        "How long the gradient and the noise are in every epoch of a short run.",
        partial(compute.decayed, history),
        [draw_decay],
        words.decay,
        command,
        tiles=tell_decay,
        idle=lambda result: ["tau"] if result.config.decay == Decay.NONE else [],
        as_printed=variant(as_printed),
        decay=decay_of(decay),
        tau=number("decay rate τ", tau, [k / 50 for k in range(51)], unit="per epoch"),
        z0=number("noise multiplier z0", z0, [0.0, *decades(-6, 1)]),
        num_devices=devices(num_devices),
        clip_norm=number("clip norm C", clip_norm, decades(-2, 1), unit="gradient ÷ α", rare=True),
    )


def tell_decay(result: Decayed) -> tuple[Tile, Tile, str]:
    """Both epsilons of the run, and noise over signal at its ends."""
    first, last = (short(over) for over in (result.noise / result.signal.clip(1e-300))[[0, -1]])
    told = f"Over all weights, the noise is {first} times as long as the signal in the first epoch"
    return *epsilons(result.guarantee), f"{told} and {last} times in the last."


def draw_decay(result: Decayed) -> Figure:
    """Lengths by epoch, on a log axis: gradient, what the clip leaves of it, and noise."""
    epochs = list(range(len(result.gradient)))
    same = [] if result.config.decay == Decay.NONE or result.same_cost is None else epochs
    return figure(
        "Noise against gradients",
        line("gradient", OTHER, "dot", symbol="circle-open", x=epochs, y=result.gradient),
        line("signal (clipped)", PLAIN, symbol="circle", x=epochs, y=result.signal),
        line("noise", NOISE, width=4, x=epochs, y=positive(result.noise)),
        line("no decay, equal ε", INK, "longdashdot", x=same, y=[result.same_cost] * len(same)),
        hover="t = %{x}: %{y:.3g}",
        xaxis=axis("epoch t (first is 0)", [-0.2, max(epochs[-1], 1) + 0.2], dtick=1),
        yaxis=log_axis("L2 norm", [*result.gradient, *result.signal, *result.noise]),
    )
