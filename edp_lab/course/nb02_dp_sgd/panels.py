"""The panels of ``02_dp_sgd.ipynb``: a batch of gradients, a whole training, and what Adam divides by.

What a result holds is in `compute`; nothing is computed here but outlines and axis ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import plotly.graph_objects as go

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import Array, Control, choice, decades, number, seed_of
from edp_lab.course.kit.figure import ABOVE, BELOW, Figure, figure, line, points, positive, two_plots
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Words, account_command, at_most, python
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, SKY, VERMILLION
from edp_lab.course.nb02_dp_sgd import compute
from edp_lab.course.nb02_dp_sgd.compute import CLIPS, DELTA, LOOP, OPTIMIZERS, SAMPLINGS, STEPS
from edp_lab.three_phase.clipping import RULES

NAMES = {"sgd": "SGD", "momentum": "momentum", "adam": "Adam", "dp-adambc": "DP-AdamBC"}
words = Words(__file__, length=np.linalg.norm, names=NAMES)
THIN = {"width": 1.5}


def _clip_norm(clip_norm: float) -> Control:
    return number(
        "clip norm C", clip_norm, [stop for stop in decades(-2, 2) if 0.04 < stop <= 20], unit="gradient norm"
    )


def _multiplier(z: float) -> Control:
    stops = [0.0, *[stop for stop in decades(-2, 2) if stop <= 20]]
    return number("noise multiplier z", z, stops, unit="sensitivities")


def _account(z: float, **bill: Any) -> str:
    """The call of `edp-lab account` for per-example DP-SGD at this noise multiplier; "what holds" is its epsilon."""
    return "\n" + account_command({"z0": z, "gpus": 1, "micro_batch_size": 1, "delta": DELTA, **bill})


# ---- The gradients of a batch --------------------------------------------------------------------------------------


def norms_figure(result: compute.PerExample, clip_norm: float) -> go.Figure:
    """Lengths of the gradients of one batch, by how many examples share one."""
    bar = {"symbol": "line-ns-open", "size": 22, "line": {"width": 1.6}, "color": BLUE}
    look = {"type": "scatter", "mode": "markers", "marker": bar, "showlegend": False}
    rows = [
        {**look, "x": norms, "y": ["1 example" if size == 1 else f"{size} examples"] * len(norms)}
        for size, norms in result.norms.items()
    ]
    here = {"x": math.log10(clip_norm), "y": 1, "yref": "paper", "yanchor": "bottom"}  # on a log axis, the logarithm
    return go.Figure(
        figure(
            [{**row, "hovertemplate": "%{x:.3g}<extra></extra>"} for row in rows],
            "How long the gradients of one batch are",
            f"{result.config.corpus}, small model, seed {result.config.seed}; a bar is one gradient;<br>"
            "read off private data: no guarantee",
            340,
            margin={"t": 100},
            shapes=[fig.vline(clip_norm)],
            annotations=[{**here, "text": f"C = {d(clip_norm)}", "showarrow": False}],
            xaxis={"title": "L2 norm of the mean gradient", "type": "log", "tickformat": "~g", "dtick": "D2"},
            yaxis={"title": "mean of", "autorange": "reversed"},
        )
    )


def ways(result: compute.PerExample) -> str:
    """Seconds and passes of each way to the gradient of one batch, in plain text."""
    slowest = result.seconds[LOOP]
    rows = [
        f"{name:<34}{1000 * seconds:7.0f} ms{slowest / seconds:8.1f} times as fast"
        for name, seconds in result.seconds.items()
    ]
    return "\n".join([*rows, f"norms of loop and book-keeping differ by {result.disagreement:.0e} at most"])


# ---- Clipping as geometry ------------------------------------------------------------------------------------------


@panel("02")
def cloud(clip_norm: float, z: float, examples: int, outliers: float, seed: int) -> Panel:
    """Clipping as geometry: `result` is a `Cloud`."""

    def command(result: compute.Cloud, **values: Any) -> str:
        held = result.guarantee is not None and result.guarantee.epsilon
        return python(compute.cloud, **values) + (_account(result.mechanism.z0, epochs=1) if held else "")

    sizes = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
    tips = [
        "longer gradients become as long as C",
        "each coordinate cut to ±C",
        "every gradient becomes as long as C",
        "the thesis' Algorithm 8: the wrong way round",
    ]
    return Panel(
        "Clip, average, add noise",
        "First, the gradient of every example of a batch, for a model with two weights, and what is made of them; "
        "then, how far the result is off, for every C.",
        {
            "clip_norm": _clip_norm(clip_norm),
            "z": _multiplier(z),
            "examples": number("batch size B", examples, sizes, unit="examples"),
            "outliers": number("share of outliers", outliers, [k / 50 for k in range(51)], unit="of 1"),
            "rule": choice("clip", "by norm", {name: name for name in RULES}, tooltips=tips),
            "seed": seed_of(seed),
        },
        compute.cloud,
        [draw_cloud, draw_error],
        words.cloud,
        command,
    )


SHOWN = 200  # examples in the picture of a cloud
CIRCLE = np.stack([wave(np.linspace(0, 2 * np.pi, 73)) for wave in (np.cos, np.sin)], axis=1)  # of radius 1, closed
SQUARE = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1], [1, 1]])


def draw_cloud(result: compute.Cloud) -> Figure:
    """Per-example gradients before and after the clip, and what becomes of their mean."""
    before, after = result.gradients[:SHOWN], result.clipped[:SHOWN]
    moves = np.stack([before, after, np.full_like(before, np.nan)], axis=1).reshape(-1, 2)  # separate lines
    bound = result.mechanism.clip_norm * (SQUARE if result.rule == "by value" else CIRCLE)
    noise = result.clipped_mean + result.noise_std * CIRCLE
    grey: dict[str, Any] = {"line": {"width": 1}, "hoverinfo": "skip", "showlegend": False}
    traces = [
        line("", "#bbb", **_xy(moves), **grey),
        points("gradient of an example", SKY, "circle-open", 7, **_xy(before)),
        points("after the clip", BLUE, "circle", 5, **_xy(after)),
        line("bound C", BLACK, "dash", **_xy(bound), line=THIN),
        points("mean as it is", GREEN, "star", 16, **_xy(result.mean[None])),
        points("mean after the clip", ORANGE, "square", 12, **_xy(result.clipped_mean[None])),
        line("noise, 1 deviation", VERMILLION, "dot", **_xy(noise)),
        points("released", VERMILLION, "x-thin-open", 14, **_xy(result.released[None])),
    ]
    axis = {"dtick": 2, "constrain": "domain"}
    return figure(
        [{**trace, "hovertemplate": "%{x:.3g}, %{y:.3g}"} for trace in traces],
        "A batch of gradients",
        _cloud_caption(result),
        margin={"t": 170},
        xaxis={"title": "gradient of weight 1", "range": [-6, 4.5], **axis},
        yaxis={"title": "gradient of weight 2", "range": [-3, 7.5], "scaleanchor": "x", **axis},
    )


def _xy(rows: Array) -> dict[str, Any]:
    """Points (n, 2) as a trace takes them."""
    return {"x": rows[:, 0], "y": rows[:, 1]}


def draw_error(result: compute.Cloud) -> Figure:
    """How far the released mean is off, by C: through clipping, through noise, and through both."""
    on: dict[str, Any] = {"x": CLIPS, "hovertemplate": "C = %{x:.3g}: %{y:.3g}"}
    both = np.hypot(result.biases, result.noises)
    lines = [
        line("bias of the clip", ORANGE, "dash", y=positive(result.biases), **on),
        line("noise, expected", VERMILLION, "dot", y=positive(result.noises), **on),
        line("both", BLACK, y=positive(both), line={"width": 3}, **on),
    ]
    return figure(
        lines,
        "How far off is the released mean?",
        _cloud_caption(result),
        margin={"t": 130},
        shapes=[fig.vline(result.mechanism.clip_norm)],
        xaxis={**fig.LOG, "title": "clip norm C, in units of the gradient", "range": np.log10(CLIPS[[0, -1]])},
        yaxis={**fig.LOG, "title": "distance to the mean as it is", "range": [-3, 1.2]},
    )


def _cloud_caption(result: compute.Cloud) -> str:
    held = result.guarantee
    if held is None:
        cost = "no guarantee: nothing bounds an example"
    elif held.epsilon is None:
        cost = "no guarantee: no noise"
    else:
        cost = f"ε = {at_most(held.epsilon)} at δ = {DELTA:g} (Gaussian DP, one release)"
    told = f"C = {d(result.mechanism.clip_norm)}, {result.rule}, B = {len(result.gradients)}, seed {result.seed}"
    return f"{cost},<br>zero-out; {told}"


# ---- A whole training ----------------------------------------------------------------------------------------------


@panel("02")
def training(clip_norm: float, z: float, batch_size: int, optimizer: str, lr: float, seed: int) -> Panel:
    """A whole training of two weights: `result` is a `Training`."""

    def command(result: compute.Training, **values: Any) -> str:
        rate, bill = result.mechanism.sampling_rate, ""
        if result.guarantee.epsilon is not None:
            passes = {"epochs": result.recipe.epochs} if rate is None else {"sampling_rate": rate, "steps": STEPS}
            bill = _account(result.mechanism.z0, **passes)
        return python(compute.training, **values) + bill

    return Panel(
        "Thirty private steps",
        "First, the way of two weights down the loss of a small classifier, without clip and noise, with the clip, "
        "with both; then, loss and ε step by step.",
        {
            "clip_norm": _clip_norm(clip_norm),
            "z": _multiplier(z),
            "batch_size": number("batch size B", batch_size, [2, 5, 10, 20, 40, 80, 160, 200, 400], unit="people"),
            "optimizer": choice("optimizer", optimizer, {NAMES[name]: name for name in OPTIMIZERS}),
            "lr": number("learning rate", lr, decades(-2, 1), unit="no unit"),
            "gamma": number("floor γ′ (DP-AdamBC)", 1e-3, decades(-6, 0), unit="gradient²"),
            "sampling": choice("batches", "poisson", {"Poisson": "poisson", "shuffled": "shuffle"}),
            "seed": seed_of(seed),
        },
        compute.training,
        [draw_path, draw_learning],
        words.training,
        command,
    )


WINDOW = (-1.6, 4.4), (-2.6, 4.6)
PATHS: dict[str, dict[str, Any]] = {
    "plain": {"name": "no clip, no noise", "color": BLUE, "dash": "solid", "symbol": "circle"},
    "clipped": {"name": "clip only", "color": ORANGE, "dash": "dash", "symbol": "square"},
    "private": {"name": "clip and noise", "color": VERMILLION, "dash": "dot", "symbol": "diamond"},
}
SAMPLED = {"poisson": ("Poisson", "solid"), "shuffle": ("shuffled", "dash")}


def draw_path(result: compute.Training) -> Figure:
    """The loss as a landscape over both weights, and the ways down."""
    landscape = {
        "type": "contour", **_landscape(), "colorscale": [[0, "#f2f2f2"], [1, "#9a9a9a"]], "line": {"width": 0.6},
        "contours": {"start": 0.44, "end": 2.4, "size": 0.08}, "showscale": False,
        "hovertemplate": "loss %{z:.2f}<extra></extra>",
    }  # fmt: skip
    look: dict[str, Any] = {"size": 5, "line": {"width": 2}, "hovertemplate": "%{x:.2f}, %{y:.2f}"}
    ways = [line(**PATHS[name], **_xy(path), **look) for name, path in result.paths.items()]
    text = {"text": ["start"], "textposition": "middle left", "mode": "markers+text", "showlegend": False}
    ring = points("", BLACK, "circle-open", 11, marker={"line": {"width": 2}}, hoverinfo="skip", **text)
    return figure(
        [landscape, *ways, {**ring, **_xy(compute.START[None])}],
        "Thirty steps downhill",
        _training_caption(result),
        margin={"t": 130},
        xaxis={"title": "weight 1 (its feature is large)", "range": WINDOW[0]},
        yaxis={"title": "weight 2 (its feature is small)", "range": WINDOW[1]},
    )


@lru_cache(maxsize=1)
def _landscape() -> dict[str, Array]:
    x, y = (np.linspace(*side, 49) for side in WINDOW)
    return {"x": x, "y": y, "z": compute.loss(np.stack(np.meshgrid(x, y), axis=-1))}


def draw_learning(result: compute.Training) -> Figure:
    """Above: loss by step. Below: epsilon by step, as the batches were drawn and as they were not."""
    hover = {"hovertemplate": "step %{x}: %{y:.3g}"}
    above: dict[str, Any] = {"x": list(range(STEPS + 1)), **hover, **ABOVE}
    below: dict[str, Any] = {"x": list(range(1, STEPS + 1)), **hover, **BELOW}
    lines = [line(**PATHS[name], size=5, y=losses, **above) for name, losses in result.losses.items()]
    for name in SAMPLINGS:
        (label, dash), own = SAMPLED[name], name == result.recipe.sampling
        told, color = (f"{label}: these batches", GREEN) if own else (f"were they {label}", "#777")
        shape = {"shape": "hv" if name == "shuffle" else "linear"}  # a pass is paid for as it begins
        width = {"width": 3 if own else 1.5}
        lines.append(line(told, color, dash, y=positive(result.spent[name]), line={**shape, **width}, **below))
    highest = max(1.7, min(4.0, 1.05 * float(result.losses["private"].max())))
    step = {"title": "step", "range": [0, STEPS + 0.5]}
    costs = [epsilon for spent in result.spent.values() for epsilon in spent]
    return two_plots(
        lines,
        "What it learns, and what it costs",
        _training_caption(result),
        xaxis=step,
        yaxis={"title": "loss (nats per person)", "range": [0.35, highest]},
        xaxis2=step,
        yaxis2=fig.log_axis(f"ε (at δ = {DELTA:g})", costs),
    )


def _training_caption(result: compute.Training) -> str:
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


def optimizers(rows: Sequence[compute.Tuned]) -> str:
    """Optimizers side by side, in plain text."""
    lines = [
        f"{NAMES[row.optimizer]:<12}{row.lr:>14g}{row.plain:>15.3f}{row.private:>14.3f} ± {row.deviation:.3f}"
        for row in rows
    ]
    return "\n".join([f"{'':<12}{'learning rate':>14}{'without noise':>15}{'loss':>14}", *lines])


# ---- What Adam divides by ------------------------------------------------------------------------------------------


@panel("02")
def denominators(noise_std: float, steps: int, gamma: float, seed: int) -> Panel:
    """Adam's second moment under noise: `result` is a `Denominators`."""
    return Panel(
        "What Adam divides by",
        "Every point is a weight; to the right those with large gradients. Above, what its average gradient is divided "
        "by; below, how far the true gradient then moves it.",
        {
            "noise_std": number("noise deviation", noise_std, [0.0, *decades(-3, 0)], unit="gradient"),
            "steps": number("steps so far", steps, [1, 2, 3, 5, 10, 20, 30, 50, 80], unit="steps"),
            "gamma": number("floor γ′", gamma, decades(-8, 0), unit="gradient²"),
            "seed": seed_of(seed),
        },
        compute.denominators,
        [(draw_denominators, "1 1 30rem")],
        words.denominators,
        lambda result, **values: python(compute.denominators, **values),
    )


def draw_denominators(result: compute.Denominators) -> Figure:
    """Above: what each weight's average gradient is divided by. Below: how far the true gradient then moves it."""
    ends, one = result.gradient[[0, -1]], np.ones(2)
    plots: Any = (ABOVE, result.adam, result.corrected, ends), (BELOW, result.adam_move, result.corrected_move, one)
    traces = []
    for place, adam, corrected, silent in plots:
        on: dict[str, Any] = {**place, "showlegend": place is ABOVE}
        traces += [
            points("Adam", VERMILLION, "circle", 6, x=result.gradient, y=adam, **on),
            points("DP-AdamBC", BLUE, "diamond", 6, x=result.gradient, y=corrected, **on),
            line("Adam without noise", BLACK, "dash", x=ends, y=silent, line=THIN, **on),
        ]
    traces.append(line("noise alone", ORANGE, "dot", x=ends, y=positive(result.noise_std * one), **ABOVE))
    size = {**fig.LOG, "title": "size of the weight's gradient", "range": np.log10([8e-4, 1.2])}
    return two_plots(
        [{**trace, "hovertemplate": "gradient %{x:.2g}: %{y:.3g}"} for trace in traces],
        "What Adam divides by",
        f"noise of deviation {d(result.noise_std)} on each of {len(result.gradient)} weights,<br>"
        f"after {result.steps} steps, γ′ = {d(result.gamma)}, seed {result.seed}",
        height=640,
        xaxis=size,
        yaxis={**fig.LOG, "title": "divided by", "range": [-4.2, 1.3], "domain": [0.58, 1]},
        xaxis2=size,
        yaxis2={**fig.LOG, "title": "move (learning rates)", "range": [-3.3, 1.6], "domain": [0, 0.42]},
    )
