"""The panels of ``02_dp_sgd.ipynb``: a batch of gradients, a whole training, and what Adam divides by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import choice, decades, number, seed_of
from edp_lab.course.kit.figure import ABOVE, BELOW, Figure, axis, figure, line, logs, points, positive, two_plots
from edp_lab.course.kit.inputs import Array
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Words, account_command, python
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, SKY, VERMILLION
from edp_lab.course.nb02_dp_sgd import compute
from edp_lab.course.nb02_dp_sgd.compute import CLIPS, DELTA, LOOP, OPTIMIZERS, SAMPLINGS, STEPS
from edp_lab.three_phase.clipping import RULES

NAMES = {"sgd": "SGD", "momentum": "momentum", "adam": "Adam", "dp-adambc": "DP-AdamBC"}
words = Words(__file__, length=np.linalg.norm, names=NAMES, delta=DELTA)


def _clip_and_noise(clip_norm: float, z: float) -> dict[str, Any]:
    stops = [stop for stop in decades(-2, 2) if stop <= 20]
    return {
        "clip_norm": number("clip norm C", clip_norm, [stop for stop in stops if stop > 0.04], unit="gradient norm"),
        "z": number("noise multiplier z", z, [0.0, *stops], unit="sensitivities"),
    }


def _account(z: float, **bill: Any) -> str:
    """The call of `edp-lab account` for per-example DP-SGD at this noise multiplier; "what holds" is its epsilon."""
    return "\n" + account_command({"z0": z, "gpus": 1, "micro_batch_size": 1, "delta": DELTA, **bill})


# ---- The gradients of a batch --------------------------------------------------------------------------------------


def norms_figure(result: compute.PerExample, clip_norm: float) -> fig.Still:
    """Lengths of the gradients of one batch, by how many examples share one."""
    bar = {"symbol": "line-ns-open", "size": 22, "line": {"width": 1.6}, "color": BLUE}
    look = {"type": "scatter", "mode": "markers", "marker": bar, "showlegend": False}
    here = {"x": math.log10(clip_norm), "y": 1, "yref": "paper", "yanchor": "bottom"}  # on a log axis, the logarithm
    return fig.still(
        "How long the gradients of one batch are",
        f"{result.config.corpus}, small model, seed {result.config.seed}; a bar is one gradient;\n"
        "read off private data: no guarantee",
        *(
            {**look, "x": norms, "y": ["1 example" if size == 1 else f"{size} examples"] * len(norms)}
            for size, norms in result.norms.items()
        ),
        fig.vline(clip_norm),
        fig.note(f"C = {d(clip_norm)}", **here),
        height=340,
        top=100,
        hover="%{x:.3g}" + fig.ALONE,
        xaxis=axis("L2 norm of the mean gradient", type="log", tickformat="~g", dtick="D2"),
        yaxis=axis("mean of", autorange="reversed"),
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
        compute.cloud,
        [draw_cloud, draw_error],
        words.cloud,
        command,
        **_clip_and_noise(clip_norm, z),
        examples=number("batch size B", examples, sizes, unit="examples"),
        outliers=number("share of outliers", outliers, [k / 50 for k in range(51)], unit="of 1"),
        rule=choice("clip", "by norm", list(RULES), tooltips=tips),
        seed=seed_of(seed),
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
    ticks: dict[str, Any] = {"dtick": 2, "constrain": "domain"}
    return figure(
        "A batch of gradients",
        words.cloud_caption(result),
        line("", "#bbb", width=1, **_xy(moves), hoverinfo="skip", showlegend=False),
        points("gradient of an example", SKY, "circle-open", 7, **_xy(before)),
        points("after the clip", BLUE, "circle", 5, **_xy(after)),
        line("bound C", BLACK, "dash", width=1.5, **_xy(bound)),
        points("mean as it is", GREEN, "star", 16, **_xy(result.mean[None])),
        points("mean after the clip", ORANGE, "square", 12, **_xy(result.clipped_mean[None])),
        line("noise, 1 deviation", VERMILLION, "dot", **_xy(noise)),
        points("released", VERMILLION, "x-thin-open", 14, **_xy(result.released[None])),
        top=170,
        hover="%{x:.3g}, %{y:.3g}",
        xaxis=axis("gradient of weight 1", [-6, 4.5], **ticks),
        yaxis=axis("gradient of weight 2", [-3, 7.5], scaleanchor="x", **ticks),
    )


def _xy(rows: Array) -> dict[str, Any]:
    """Points (n, 2) as a trace takes them."""
    return {"x": rows[:, 0], "y": rows[:, 1]}


def draw_error(result: compute.Cloud) -> Figure:
    """How far the released mean is off, by C: through clipping, through noise, and through both."""
    both = np.hypot(result.biases, result.noises)
    return figure(
        "How far off is the released mean?",
        words.cloud_caption(result),
        line("bias of the clip", ORANGE, "dash", x=CLIPS, y=positive(result.biases)),
        line("noise, expected", VERMILLION, "dot", x=CLIPS, y=positive(result.noises)),
        line("both", BLACK, width=3, x=CLIPS, y=positive(both)),
        fig.vline(result.mechanism.clip_norm),
        top=130,
        hover="C = %{x:.3g}: %{y:.3g}",
        xaxis=logs("clip norm C, in units of the gradient", np.log10(CLIPS[[0, -1]])),
        yaxis=logs("distance to the mean as it is", [-3, 1.2]),
    )


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
        compute.training,
        [draw_path, draw_learning],
        words.training,
        command,
        **_clip_and_noise(clip_norm, z),
        batch_size=number("batch size B", batch_size, [2, 5, 10, 20, 40, 80, 160, 200, 400], unit="people"),
        optimizer=choice("optimizer", optimizer, {NAMES[name]: name for name in OPTIMIZERS}),
        lr=number("learning rate", lr, decades(-2, 1)),
        gamma=number("floor γ′ (DP-AdamBC)", 1e-3, decades(-6, 0), unit="gradient²"),
        sampling=choice("batches", "poisson", {"Poisson": "poisson", "shuffled": "shuffle"}),
        seed=seed_of(seed),
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
        "type": "contour", **_losses(), "colorscale": [[0, "#f2f2f2"], [1, "#9a9a9a"]], "line": {"width": 0.6},
        "contours": {"start": 0.44, "end": 2.4, "size": 0.08}, "showscale": False,
        "hovertemplate": "loss %{z:.2f}" + fig.ALONE,
    }  # fmt: skip
    text = {"text": ["start"], "textposition": "middle left", "mode": "markers+text"}
    return figure(
        "Thirty steps downhill",
        words.training_caption(result),
        landscape,
        *(line(**PATHS[name], size=5, width=2, **_xy(path)) for name, path in result.paths.items()),
        fig.ring(11, **_xy(compute.START[None]), hoverinfo="skip", **text),
        top=130,
        hover="%{x:.2f}, %{y:.2f}",
        xaxis=axis("weight 1 (its feature is large)", WINDOW[0]),
        yaxis=axis("weight 2 (its feature is small)", WINDOW[1]),
    )


@lru_cache(maxsize=1)
def _losses() -> dict[str, Array]:
    x, y = (np.linspace(*side, 49) for side in WINDOW)
    return {"x": x, "y": y, "z": compute.loss(np.stack(np.meshgrid(x, y), axis=-1))}


def draw_learning(result: compute.Training) -> Figure:
    """Above: loss by step. Below: epsilon by step, as the batches were drawn and as they were not."""
    above: dict[str, Any] = {"x": list(range(STEPS + 1)), **ABOVE}
    below: dict[str, Any] = {"x": list(range(1, STEPS + 1)), **BELOW}
    lines = [line(**PATHS[name], size=5, y=losses, **above) for name, losses in result.losses.items()]
    for name in SAMPLINGS:
        (label, dash), own = SAMPLED[name], name == result.recipe.sampling
        told, color = (f"{label}: these batches", GREEN) if own else (f"were they {label}", "#777")
        shape = {"shape": "hv" if name == "shuffle" else "linear"}  # a pass is paid for as it begins
        width = 3 if own else 1.5
        lines.append(line(told, color, dash, width=width, y=positive(result.spent[name]), line=shape, **below))
    highest = max(1.7, min(4.0, 1.05 * float(result.losses["private"].max())))
    step = axis("step", [0, STEPS + 0.5])
    costs = [epsilon for spent in result.spent.values() for epsilon in spent]
    return two_plots(
        "What it learns, and what it costs",
        words.training_caption(result),
        *lines,
        hover="step %{x}: %{y:.3g}",
        axes=(
            (step, axis("loss (nats per person)", [0.35, highest])),
            (step, fig.log_axis(f"ε (at δ = {DELTA:g})", costs)),
        ),
    )


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
        compute.denominators,
        [(draw_denominators, "1 1 30rem")],
        words.denominators,
        noise_std=number("noise deviation", noise_std, [0.0, *decades(-3, 0)], unit="gradient"),
        steps=number("steps so far", steps, [1, 2, 3, 5, 10, 20, 30, 50, 80], unit="steps"),
        gamma=number("floor γ′", gamma, decades(-8, 0), unit="gradient²"),
        seed=seed_of(seed),
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
            line("Adam without noise", BLACK, "dash", width=1.5, x=ends, y=silent, **on),
        ]
    traces.append(line("noise alone", ORANGE, "dot", x=ends, y=positive(result.noise_std * one), **ABOVE))
    size = logs("size of the weight's gradient", np.log10([8e-4, 1.2]))
    return two_plots(
        "What Adam divides by",
        f"noise of deviation {d(result.noise_std)} on each of {len(result.gradient)} weights,\n"
        f"after {result.steps} steps, γ′ = {d(result.gamma)}, seed {result.seed}",
        *traces,
        height=640,
        hover="gradient %{x:.2g}: %{y:.3g}",
        axes=(
            (size, logs("divided by", [-4.2, 1.3], domain=[0.58, 1])),
            (size, logs("move (learning rates)", [-3.3, 1.6], domain=[0, 0.42])),
        ),
    )
