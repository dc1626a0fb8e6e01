"""The panels of ``02_dp_sgd.ipynb``: a batch of gradients, a whole training, and what Adam divides by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import choice, decades, number, seed_of
from edp_lab.course.kit.figure import Figure, axis, line, logs, points, positive
from edp_lab.course.kit.inputs import Array
from edp_lab.course.kit.panel import Panel, Tile, claimed, holds, panel
from edp_lab.course.kit.text import Words, account_of, at_most, columns, count, percent, short
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.course.nb02_dp_sgd import compute
from edp_lab.course.nb02_dp_sgd.compute import CLIPS, DELTA, LOOP, OPTIMIZERS, SAMPLINGS, STEPS
from edp_lab.privacy import Guarantee
from edp_lab.three_phase.clipping import RULES

NAMES = {"sgd": "SGD", "momentum": "momentum", "adam": "Adam", "dp-adambc": "DP-AdamBC"}
words = Words(__file__, names=NAMES)
figure = partial(fig.figure, height=360)


def _clip_and_noise(clip_norm: float, z: float) -> dict[str, Any]:
    stops = [stop for stop in decades(-2, 2) if stop <= 20]
    return {
        "clip_norm": number("clip norm C", clip_norm, [stop for stop in stops if stop > 0.04], unit="gradient norm"),
        "z": number("noise multiplier z", z, [0.0, *stops], unit="sensitivities"),
    }


def _account(result: compute.Cloud | compute.Training, **bill: Any) -> str:
    """The call of `edp-lab account` for per-example DP-SGD, if it has an epsilon: that of "what holds"."""
    if result.guarantee is None or result.guarantee.epsilon is None:
        return ""
    return account_of(result.mechanism, delta=DELTA, **bill)


def _held(guarantee: Guarantee | None, of: str) -> Tile:
    """The tile of what is promised."""
    if guarantee is None or guarantee.epsilon is None:
        return holds("no guarantee", of)
    return holds(f"ε = {at_most(guarantee.epsilon)}", f"{of}, with a secret seed, δ = {short(DELTA)}")


# ---- The gradients of a batch --------------------------------------------------------------------------------------


def norms_figure(result: compute.PerExample, clip_norm: float) -> fig.Still:
    """Lengths of the gradients of one batch, by how many examples share one."""
    bar = {"symbol": "line-ns-open", "size": 22, "line": {"width": 1.6}, "color": PLAIN}
    look = {"type": "scatter", "mode": "markers", "marker": bar, "showlegend": False}
    here = {"x": math.log10(clip_norm), "y": 1, "yref": "paper", "yanchor": "bottom"}  # on a log axis, the logarithm
    return fig.still(
        "How long the gradients of one batch are",
        *(
            {**look, "x": norms, "y": ["1 example" if size == 1 else f"{size} examples"] * len(norms)}
            for size, norms in result.norms.items()
        ),
        fig.vline(clip_norm),
        fig.note(f"C = {d(clip_norm)}", **here),
        caption=f"{result.config.corpus}, small model, seed {result.config.seed}; a bar is one gradient;\n"
        "read off private data: no guarantee",
        height=356,
        top=92,  # for the label on the line
        hover="%{x:.3g}" + fig.ALONE,
        xaxis=axis("L2 norm of the mean gradient", type="log", tickformat="~g", dtick="D2"),
        yaxis=axis("mean of", autorange="reversed"),
    )


def ways(result: compute.PerExample) -> str:
    """Seconds and passes of each way to the gradient of one batch, in plain text."""
    times = ((name, seconds, result.seconds[LOOP] / seconds) for name, seconds in result.seconds.items())
    rows = [(name, f"{1000 * seconds:.0f} ms", f"{faster:.1f} times as fast") for name, seconds, faster in times]
    return (
        f"{columns(rows)}\nthe lengths of loop and book-keeping differ by a share of {result.disagreement:.0e} at most"
    )


# ---- Clipping as geometry ------------------------------------------------------------------------------------------


@panel("02")
def cloud(clip_norm: float = 1.0, z: float = 2.0, examples: int = 10, outliers: float = 0.1, seed: int = 0) -> Panel:
    """Clipping as geometry: `result` is a `Cloud`."""
    sizes = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
    tips = [
        "longer gradients become as long as C",
        "each coordinate cut to ±C",
        "every gradient becomes as long as C",
        "the thesis' Algorithm 8: the wrong way round",
    ]
    return Panel(
        "Clip, average, add noise",
        "The gradients of a batch for a model with two weights, what is released, and how far off that is for every C.",
        compute.cloud,
        [draw_cloud, draw_error],
        words.cloud,
        account=partial(_account, epochs=1),
        tiles=tell_cloud,
        **_clip_and_noise(clip_norm, z),
        examples=number("batch size B", examples, sizes, unit="examples"),
        outliers=number("share of outliers", outliers, [k / 50 for k in range(51)], unit="of 1"),
        rule=choice("clip", "by norm", list(RULES), tooltips=tips),
        seed=seed_of(seed),
    )


def tell_cloud(result: compute.Cloud) -> tuple[Tile, Tile, str]:
    """How far off the released mean is to be expected, and what one release promises."""
    noise, examples = math.sqrt(2) * result.noise_std, len(result.gradients)
    off = Tile(
        "off by", short(math.hypot(result.bias, noise)), f"{short(result.bias)} by the clip, {short(noise)} by noise"
    )
    tiles = off, _held(result.guarantee, "one release")
    if result.guarantee is None:
        return *tiles, "This rule bounds no gradient, so the noise hides nobody."
    larger = f"moves the mean {'more' if result.bias > noise else 'less'} than the noise does"
    if max(result.bias, noise) < 1e-12:
        larger = "leaves the mean as it is, and so does the noise"
    return *tiles, f"The clip shortens {result.shortened:,} of {count(examples, 'gradient')} and {larger}."


SHOWN = 200  # examples in the picture of a cloud
CIRCLE = np.stack([wave(np.linspace(0, 2 * np.pi, 73)) for wave in (np.cos, np.sin)], axis=1)  # of radius 1, closed
SQUARE = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1], [1, 1]])


def draw_cloud(result: compute.Cloud) -> Figure:
    """Per-example gradients before and after the clip, and what becomes of their mean."""
    before, after = result.gradients[:SHOWN], result.clipped[:SHOWN]
    moves = np.stack([before, after, np.full_like(before, np.nan)], axis=1).reshape(-1, 2)  # separate lines
    bound = result.mechanism.clip_norm * (SQUARE if result.rule == "by value" else CIRCLE)
    noise = result.clipped_mean + 2 * result.noise_std * CIRCLE
    ticks: dict[str, Any] = {"dtick": 2, "constrain": "domain"}
    return figure(
        "A batch of gradients",
        line("", "#888", width=0.7, **_xy(moves), hoverinfo="skip", showlegend=False),
        points("gradient", OTHER, "circle-open", 6, **_xy(before)),
        points("clipped", PLAIN, "circle", 4, **_xy(after)),
        line("", INK, "dash", width=1.5, **_xy(bound), hoverinfo="skip", showlegend=False),
        fig.note("C", x=0, y=-result.mechanism.clip_norm, yanchor="top"),
        line("bias", PLAIN, symbol="square", size=7, **_xy(np.stack([result.mean, result.clipped_mean]))),
        points("mean", HOLDS, "star", 11, **_xy(result.mean[None])),
        line("noise", NOISE, **_xy(noise)),
        points("released", INK, "x-thin-open", 8, edge=2.5, **_xy(result.released[None])),
        hover="%{x:.3g}, %{y:.3g}",
        xaxis=axis("gradient of weight 1", [-5, 4], **ticks),
        yaxis=axis("gradient of weight 2", [-2.5, 6.5], scaleanchor="x", **ticks),
    )


def _xy(rows: Array) -> dict[str, Any]:
    """Points (n, 2) as a trace takes them."""
    return {"x": rows[:, 0], "y": rows[:, 1]}


def draw_error(result: compute.Cloud) -> Figure:
    """How far the released mean is off, by C: through clipping, through noise, and through both."""
    both = np.hypot(result.biases, result.noises)
    return figure(
        "How far off is the released mean?",
        line("by the clip", PLAIN, "dash", x=CLIPS, y=positive(result.biases)),
        line("by noise", NOISE, "dot", x=CLIPS, y=positive(result.noises)),
        line("by both", INK, width=3, x=CLIPS, y=positive(both)),
        fig.vline(result.mechanism.clip_norm),
        hover="C = %{x:.3g}: %{y:.3g}",
        xaxis=logs("clip norm C", np.log10(CLIPS[[0, -1]])),
        yaxis=logs("distance to the mean", [-3, 1.2]),
    )


# ---- A whole training ----------------------------------------------------------------------------------------------


@panel("02")
def training(clip_norm: float, z: float, batch_size: int, optimizer: str, lr: float, seed: int) -> Panel:
    """A whole training of two weights: `result` is a `Training`."""

    def account(result: compute.Training) -> str:
        sampled = result.mechanism.sampling_rate is not None
        return _account(result, **{"steps": STEPS} if sampled else {"epochs": result.recipe.epochs})

    return Panel(
        "Thirty private steps",
        "Two weights on their way down the loss of a small classifier, and what the steps cost.",
        compute.training,
        [draw_path, draw_price],
        words.training,
        account=account,
        tiles=tell_training,
        **_clip_and_noise(clip_norm, z),
        batch_size=number("batch size B", batch_size, [2, 5, 10, 20, 40, 80, 160, 200, 400], unit="people"),
        lr=number("learning rate", lr, decades(-2, 1)),
        optimizer=choice("optimizer", optimizer, {NAMES[name]: name for name in OPTIMIZERS}),
        sampling=choice("batches", "poisson", {"Poisson": "poisson", "shuffled": "shuffle"}),
        gamma=number("floor γ′", 1e-3, decades(-6, 0), unit="gradient², of DP-AdamBC", rare=True),
        seed=seed_of(seed),
        idle=lambda result: () if result.recipe.optimizer == "dp-adambc" else ("gamma",),
    )


def tell_training(result: compute.Training) -> tuple[Tile, Tile, str]:
    """Epsilon of all steps, billed as Poisson samples and as the batches were drawn; what was learnt."""
    billed, private, plain = result.spent["poisson"][STEPS], result.losses["private"][-1], result.losses["plain"][-1]
    told = claimed("nothing" if billed is None else f"ε = {at_most(billed)}", "as Poisson batches", "billed as usual")
    right = f"right for {percent(round(result.accuracy, 2))} of the people"
    sentence = f"The private walker ends at a loss of {d(private)}, {right}; without privacy the loss is {d(plain)}."
    return told, _held(result.guarantee, f"{SAMPLED[result.recipe.sampling][0]} batches"), sentence


WINDOW = (-1.6, 4.4), (-2.6, 4.6)
PATHS: dict[str, dict[str, Any]] = {
    "plain": {"name": "no privacy", "color": PLAIN, "dash": "solid", "symbol": "circle"},
    "clipped": {"name": "clip only", "color": OTHER, "dash": "dash", "symbol": "square"},
    "private": {"name": "clip and noise", "color": NOISE, "dash": "dot", "symbol": "diamond"},
}
SAMPLED = {"poisson": ("Poisson", "solid"), "shuffle": ("shuffled", "dash")}


def draw_path(result: compute.Training) -> Figure:
    """The loss as a landscape over both weights, and the ways down."""
    landscape = {
        "type": "contour", **_losses(), "line": {"width": 0.6, "color": "#888"}, "showscale": False,
        "showlegend": False, "contours": {"start": 0.44, "end": 2.4, "size": 0.08, "coloring": "none"},
        "hovertemplate": "loss %{z:.2f}" + fig.ALONE,
    }  # fmt: skip
    text = {"text": ["start"], "textposition": "bottom right", "mode": "markers+text"}
    return figure(
        "Thirty steps downhill",
        landscape,
        *(line(**PATHS[name], size=5, width=2, **_xy(path)) for name, path in result.paths.items()),
        fig.ring(11, **_xy(compute.START[None]), hoverinfo="skip", **text),
        hover="%{x:.2f}, %{y:.2f}",
        xaxis=axis("weight 1 (its feature is large)", WINDOW[0]),
        yaxis=axis("weight 2 (its feature is small)", WINDOW[1]),
    )


@lru_cache(maxsize=1)
def _losses() -> dict[str, Array]:
    x, y = (np.linspace(*side, 49) for side in WINDOW)
    return {"x": x, "y": y, "z": compute.loss(np.stack(np.meshgrid(x, y), axis=-1))}


def draw_price(result: compute.Training) -> Figure:
    """Epsilon by step, as the batches were drawn and as they were not."""
    lines = []
    for name in SAMPLINGS:
        (label, dash), own = SAMPLED[name], name == result.recipe.sampling
        told, color = (f"these {label} batches", HOLDS) if own else (f"if they were {label}", "#777")
        shape = {"shape": "hv" if name == "shuffle" else "linear"}  # a pass is paid for as it begins
        spent = result.spent[name]
        drawn: dict[str, Any] = {"x": list(spent), "y": positive(list(spent.values())), "line": shape}
        if name == "poisson":  # between the steps that are marked epsilon is a bit higher
            drawn["symbol"] = "circle"
        lines.append(line(told, color, dash, width=3 if own else 1.5, **drawn))
    costs = [epsilon for spent in result.spent.values() for epsilon in spent.values()]
    return figure(
        "What the steps cost",
        *lines,
        hover="step %{x}: ε ≈ %{y:.3g}",
        xaxis=axis("step", [0, STEPS + 0.5]),
        yaxis=fig.log_axis(f"ε (at δ = {short(DELTA)})", costs),
    )


def optimizers(rows: Sequence[compute.Tuned]) -> str:
    """Optimizers side by side, in plain text."""
    table = [("", "learning rate", "loss without privacy", "loss with it, ± deviation over seeds")]
    table += [(NAMES[r.optimizer], f"{r.lr:g}", f"{r.plain:.3f}", f"{r.private:.3f} ± {r.deviation:.3f}") for r in rows]
    return columns(table)


# ---- What Adam divides by ------------------------------------------------------------------------------------------


@panel("02")
def denominators(noise_std: float = 0.1, steps: int = 30, gamma: float = 1e-4, seed: int = 0) -> Panel:
    """Adam's second moment under noise: `result` is a `Denominators`."""
    return Panel(
        "What Adam divides by",
        "What the average gradient of each weight is divided by, and how far the true gradient then moves the weight.",
        compute.denominators,
        [draw_denominators, draw_moves],
        words.denominators,
        tiles=tell_denominators,
        noise_std=number("noise deviation", noise_std, [0.0, *decades(-3, 0)], unit="gradient"),
        steps=number("steps so far", steps, [1, 2, 3, 5, 10, 20, 30, 50, 80], unit="steps"),
        gamma=number("floor γ′", gamma, decades(-8, 0), unit="gradient²"),
        seed=seed_of(seed),
    )


def tell_denominators(result: compute.Denominators) -> tuple[Tile, Tile, str]:
    """How far both optimizers move the weight with the smallest gradient."""
    floor, weights = f"learning rates moved; floor √γ′ = {short(math.sqrt(result.gamma))}", len(result.gradient)
    adam = Tile(
        "Adam, smallest gradient", short(result.adam_move[0]), "learning rates moved; 1 without noise", "printed"
    )
    corrected = holds(short(result.corrected_move[0]), floor, "DP-AdamBC, smallest gradient")
    hidden = int((result.gradient < result.noise_std).sum())
    if not hidden:
        return adam, corrected, f"The noise is smaller than all {weights} gradients, so Adam still tells them apart."
    many = f"{hidden} of {weights} gradients {'is' if hidden == 1 else 'are'} smaller than the noise"
    return adam, corrected, f"{many}, and there Adam divides by the noise."


def draw_denominators(result: compute.Denominators) -> Figure:
    """What each weight's average gradient is divided by."""
    ends = result.gradient[[0, -1]]
    noise = line("noise", NOISE, "dot", x=ends, y=positive([result.noise_std] * 2))
    marks = *_optimizers(result.gradient, result.adam, result.corrected, ends), noise
    return figure(
        "What the average is divided by", *marks, hover=HOVER, xaxis=SIZE, yaxis=logs("divided by", [-4.2, 1.3])
    )


def draw_moves(result: compute.Denominators) -> Figure:
    """How far the true gradient then moves each weight."""
    marks = _optimizers(result.gradient, result.adam_move, result.corrected_move, np.ones(2))
    move = logs("move (learning rates)", [-3.3, 1.6])
    return figure("How far the true gradient moves it", *marks, hover=HOVER, xaxis=SIZE, yaxis=move)


HOVER, SIZE = "gradient %{x:.2g}: %{y:.3g}", logs("size of the weight's gradient", [-3.1, 0.1])


def _optimizers(size: Array, adam: Array, corrected: Array, silent: Array) -> list[fig.Mark]:
    """One number of each weight by the size of its gradient; `silent` at both ends is Adam's without noise."""
    return [
        points("Adam", PRINTED, "circle", 6, x=size, y=adam),
        points("DP-AdamBC", HOLDS, "diamond", 6, x=size, y=corrected),
        line("Adam, no noise", PLAIN, "dash", width=1.5, x=size[[0, -1]], y=silent),
    ]
