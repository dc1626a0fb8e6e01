"""The panels of ``07_membership_inference.ipynb``: two that follow their sliders, and one that trains with noise.

What a result holds is in `compute`; nothing is computed here but axis ranges.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from edp_lab.attacks.membership.attacks import Attacked
from edp_lab.attacks.memorisation import AROUND, DIGITS, Memorisation, Traced
from edp_lab.attacks.statistics import LEAST_MEMBERS, Guards
from edp_lab.attacks.statistics import roc as roc_curve
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import choice, decades, devices, number, number_box
from edp_lab.course.kit.figure import Figure, Trace, figure, line
from edp_lab.course.kit.panel import Panel, RunPanel, panel
from edp_lab.course.kit.text import Words, at_most, columns, count, train_command
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb07_membership import compute
from edp_lab.course.nb07_membership.compute import Array, CanaryGrid, Remembered, Shown
from edp_lab.course.nb07_membership.measured import CANARIES, METHODS, REPETITIONS, Z0S, Defended, Found, defend
from edp_lab.privacy import Variant
from edp_lab.training import StepDone, TrainConfig
from edp_lab.training.trainer import Event

words = Words(__file__)
VARIANTS = {"as printed": True, "sound": False}
ATTACKS = {"loss": "loss", "shadow": "shadow model", "lira-online": "LiRA"}
METHOD_NAMES = {"sgd": "SGD", "edp-sgd-as-printed": "as printed", "edp-sgd": "sound"}
HEIGHT = 520
CHANCE = {"color": "#666", "dash": "dot", "width": 1.5}
LOG = {"type": "log", "dtick": 1, "tickformat": "~g"}


def _bars(values: Sequence[float], intervals: Sequence[tuple[float, float]], **look: Any) -> dict[str, Any]:
    """Error bars from a value to both ends of its interval."""
    ends = list(zip(values, intervals, strict=True))
    above, below = [high - y for y, (_, high) in ends], [y - low for y, (low, _) in ends]
    style = {"type": "data", "symmetric": False, "width": 4, "color": "#444"}
    return {**style, "array": above, "arrayminus": below, **look}


def _note(text: str, y: float, side: str, **place: Any) -> dict[str, Any]:
    """What a horizontal line says at its right end."""
    at = {"xref": "x domain", "x": 1, "xanchor": "right", "yref": "y", "y": y, "yanchor": side}
    return {"text": text, "showarrow": False, **at, **place}


# ---- The curve and the scores --------------------------------------------------------------------------------------


@panel("07")
def roc(attacks: Mapping[str, Attacked], as_printed: bool, z0: float, num_devices: int, epochs: int) -> Panel:
    """Attacks as curves, beside the bounds of a mechanism; `result` is a `Shown`."""
    most = len(next(iter(attacks.values())).target.members)
    sizes = [*(n for n in (LEAST_MEMBERS, 100, 200, 500, 1000, 2000) if n < most), most]
    called = [0.05, 0.1, 0.2, 0.5, *map(float, range(1, 10)), *map(float, range(10, 101, 5))]
    return Panel(
        "Who was in the training set?",
        "First, how many members an attack finds for every share of strangers it accuses, and what two epsilons would "
        "allow; then, the scores behind it.",
        {
            "attack": choice("attack", list(attacks)[-1], {ATTACKS[name]: name for name in attacks}),
            "called": number("call as members", 10.0, called, unit="top % of all"),
            "people": number("members", most, sizes, unit="a side"),
            "as_printed": choice("line of", as_printed, VARIANTS),
            "z0": number("noise multiplier z0", z0, decades(-1, 2), unit="no unit"),
            "num_devices": devices(num_devices),
            "epochs": number("epochs T", epochs, range(1, 41), unit="passes"),
        },
        partial(compute.show_roc, attacks),
        [draw_roc, draw_scores],
        lambda result: words.roc(result, ATTACKS[result.attack], bound_settings(result)),
        lambda result, **_: roc_command(result, attacks[result.attack]),
    )


SMALLEST = 3e-4  # rate that a log axis shows


def draw_roc(result: Shown) -> Figure:
    """The attack's ROC curve on log axes with its band, the threshold's point, and what two epsilons allow."""
    floor = max(SMALLEST, 0.5 / result.people)
    fpr, tpr, low, high = (np.maximum(one, floor) for one in (result.fpr, result.tpr, result.low, result.high))
    grid = np.geomspace(SMALLEST, 1, 80)
    held = result.guarantee
    claimed, true = (
        f"claimed: ε = {d(math.inf if held.epsilon_claimed is None else held.epsilon_claimed)} (zCDP)",
        f"true: ε = {at_most(held.epsilon)} (Gaussian DP)",
    )
    hover: dict[str, Any] = {"hovertemplate": "FPR %{x:.3g}: TPR %{y:.3g}"}
    wide = {"line": {"width": 2.5}}
    edges = _steps(fpr, low, high)
    band = {"fill": "toself", "fillcolor": "rgba(86,180,233,0.35)", "line": {"width": 0}, "hoverinfo": "skip"}
    diagonal = {"x": [SMALLEST, 1], "y": [SMALLEST, 1], "line": CHANCE, "hoverinfo": "skip"}
    ring = {"color": BLACK, "symbol": "circle-open", "size": 13, "line": {"width": 3}}
    rates = [(max(rate.value, floor), rate.interval) for rate in (result.alarms, result.hits)]
    bars = [_bars([value], [(min(value, max(interval[0], floor)), interval[1])]) for value, interval in rates]
    point = {"type": "scatter", "name": "threshold", "mode": "markers", "marker": ring, **hover}
    traces = [
        {"type": "scatter", "name": "95 % band", "mode": "lines", "x": edges[0], "y": edges[1], **band, **hover},
        line(ATTACKS[result.attack], BLUE, x=fpr, y=tpr, line={"width": 2.5, "shape": "hv"}, **hover),
        line(claimed, ORANGE, "dash", x=grid, y=result.claimed.tpr(grid), **wide, **hover),
        line(true, GREEN, "longdashdot", x=grid, y=result.true.tpr(grid), **wide, **hover),
        {"type": "scatter", "name": "guessing", "mode": "lines", **diagonal, **hover},
        {**point, "x": [rates[0][0]], "y": [rates[1][0]], "error_x": bars[0], "error_y": bars[1]},
    ]
    span = [math.log10(SMALLEST), 0.03]
    return figure(
        traces,
        "Members found, non-members accused",
        f"{result.people:,} a side; target: SGD, no guarantee, seed {result.seed};<br>"
        f"lines: {bound_settings(result)}, δ = {held.delta:.1g}, replace-one",
        HEIGHT,
        # No attack is worse than guessing for long: the corner is free.
        legend={"orientation": None, "x": 0.99, "xanchor": "right", "y": 0.01, "yanchor": "bottom"},
        margin={"t": 90},
        xaxis={**LOG, "title": "false-positive rate (share of non-members)", "range": span},
        yaxis={**LOG, "title": "true-positive rate (share of members)", "range": span},
    )


def _steps(x: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The outline of a band whose edges are steps like those of the curve, for "toself"."""
    corners = np.repeat(x, 2)[1:]
    upper, lower = np.repeat(high, 2)[:-1], np.repeat(low, 2)[:-1]
    return np.concatenate([corners, corners[::-1]]), np.concatenate([upper, lower[::-1]])


SCORES = {
    "loss": "minus log<sub>10</sub> of the loss (nats)",
    "shadow": "probability of 'member', by the forest",
    "lira-online": "log-likelihood ratio (nats; cut at ±10)",
}


def draw_scores(result: Shown) -> Figure:
    """Histograms of the attack's scores, of members and of non-members; the line is the threshold."""
    middles, width = (result.edges[1:] + result.edges[:-1]) / 2, result.edges[1] - result.edges[0]
    bars = []
    looks = (("members", ORANGE, "/"), ("non-members", BLUE, ""))
    for (name, color, shape), shares in zip(looks, result.shares, strict=True):
        hatch = {"fillmode": "overlay", "fgcolor": "white", "size": 6, "shape": shape}
        marker = {"color": color, "opacity": 0.6, "pattern": hatch, "line": {"width": 0}}
        hover = f"%{{x:.3g}}: %{{y:.2f}} % of {name}"
        bar = {"type": "bar", "name": name, "marker": marker, "hovertemplate": hover, "width": width}
        bars.append({**bar, "x": middles, "y": 100 * shares})
    left = result.mark < (result.edges[0] + result.edges[-1]) / 2
    side: dict[str, Any] = {"text": "← others", "xanchor": "right", "xshift": -6}
    if left:
        side = {"text": "called members →", "xanchor": "left", "xshift": 6}
    place = {"x": result.mark, "yref": "paper", "y": 1, "yanchor": "top", "showarrow": False}
    top = max(float(shares.max()) for shares in result.shares)
    return figure(
        bars,
        "What the attack sees",
        f"{ATTACKS[result.attack]}, {result.people:,} a side, right: looks like a member;<br>"
        f"the top {result.called:g} % are called members",
        HEIGHT,
        barmode="overlay",
        bargap=0,
        margin={"t": 116},
        shapes=[fig.vline(result.mark)],
        annotations=[{**place, **side}],
        xaxis={"title": SCORES[result.attack], "range": result.edges[[0, -1]].tolist()},
        yaxis={"title": "share of that side (%)", "range": [0, 115 * top]},
    )


def bound_settings(result: Shown) -> str:
    """The mechanism whose bounds are drawn."""
    name = "as printed" if result.mechanism.variant is Variant.AS_PRINTED else "sound"
    epochs = count(result.guarantee.epochs, "epoch")
    return f"{name}, N = {result.mechanism.num_devices}, z0 = {result.mechanism.z0:g}, {epochs}"


COMMANDS = {
    "loss": "loss --run {run}",
    "shadow": "shadow --run {run}",
    "lira-online": "lira --run {run} --shadows {shadows}",
}


def roc_command(result: Shown, attacked: Attacked) -> str:
    """The calls that train the target, make this attack, and account for the lines drawn in."""
    mechanism, run = result.mechanism, "runs/target"
    attack = COMMANDS[result.attack].format(run=run, shadows=attacked.about.get("shadows"))
    printed = " --as-printed --alpha-source public" if mechanism.variant is Variant.AS_PRINTED else ""
    account = (
        f"edp-lab account{printed} --z0 {mechanism.z0!r} --gpus {mechanism.num_devices} --epochs "
        f"{result.guarantee.epochs} --delta {result.guarantee.delta:.6g} --adjacency replace_one"
    )
    return f"{train_command(attacked.target.config, run)}\nedp-lab attack {attack}\n{account}"


def attacks_table(attacks: Mapping[str, Attacked]) -> str:
    """Attacks side by side in plain text, one a line, under a heading; shares in percent, 95 % intervals."""

    def tail(told: Mapping[str, Any]) -> str:
        if told["value"] is None:
            return "too few non-members"
        value, low, high = (100 * share for share in (told["value"], *told["interval"]))
        return f"{value:.1f} % ({low:.1f} to {high:.1f})"

    rows: list[Sequence[str]] = [("attack", "AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR")]
    for name, attacked in attacks.items():
        found = attacked.result
        low, high = found.auc_interval
        tails = (tail(found.tpr_at_fpr[fpr]) for fpr in ("0.01", "0.001"))
        rows.append((ATTACKS[name], f"{found.auc:.3f} ({low:.3f} to {high:.3f})", *tails))
    return columns(rows)


def guards_table(found: Mapping[str, Guards]) -> str:
    """What the guards say of splits, one a line, under a heading."""
    rows = [("split", "AUC of words alone", "texts on both sides", "fit for an attack")]
    for name, guards in found.items():
        fit = "no" if guards.leaks or guards.duplicates else "yes"
        rows.append((name, f"{guards.text_auc:.3f}", f"{guards.duplicates:,}", fit))
    return columns(rows)


# ---- Canaries ------------------------------------------------------------------------------------------------------


@panel("07")
def canaries(grid: CanaryGrid, method: str, z0: float, repetitions: int) -> Panel:
    """What models have stored of canaries; `result` is a `Remembered`."""
    return Panel(
        "What does it remember?",
        "First, how far up a hidden number ranks among ten thousand others; then, for one canary a row, by how much "
        "each token gives it away.",
        {
            "method": choice("method", method, {METHOD_NAMES[name]: name for name in METHODS}),
            "z0": number("noise multiplier z0", z0, Z0S, unit="measured"),
            "repetitions": number("copies of a canary", repetitions, REPETITIONS, unit="times"),
        },
        partial(compute.show_canaries, grid),
        [(draw_exposure, "2 1 22rem"), (draw_tokens, "3 1 30rem")],
        canaries_in_words,
        lambda result, **_: canaries_command(result),
    )


def _likelier(token: Traced) -> float:
    """How many times as likely its label is in the canary as after other numbers."""
    return token.probability / max(token.elsewhere, 1e-9)


def canaries_in_words(result: Remembered) -> str:
    """The read-out beside the sliders: HTML."""
    return words.canaries(result, METHOD_NAMES[result.method], CANARIES, max(result.chosen.trace[1:], key=_likelier))


def draw_exposure(result: Remembered) -> Figure:
    """Mean exposure by repetitions, for each method; the ring is the one looked at."""
    looks = {
        "sgd": (BLACK, "dot", "x"),
        "edp-sgd-as-printed": (ORANGE, "dash", "square"),
        "edp-sgd": (GREEN, "solid", "circle"),
    }
    traces: list[Trace] = []
    for (method, (color, dash, symbol)), rows in zip(looks.items(), result.others.values(), strict=True):
        exposures = [row.exposure for row in rows]
        traces.append(
            {
                "type": "scatter",
                "name": METHOD_NAMES[method],
                "mode": "lines+markers",
                "line": {"color": color, "dash": dash},
                "marker": {"symbol": symbol, "size": 9},
                "x": [str(row.repetitions) for row in rows],
                "y": exposures,
                "error_y": _bars(exposures, [row.interval for row in rows], color=color, thickness=1.2),
                "hovertemplate": "%{x} times: %{y:.1f} bits",
            }
        )
    ring = {"color": VERMILLION, "symbol": "circle-open", "size": 18, "line": {"width": 3}}
    chosen = {"x": [str(result.chosen.repetitions)], "y": [result.chosen.exposure]}
    traces.append(
        {"type": "scatter", "mode": "markers", "marker": ring, "showlegend": False, "hoverinfo": "skip", **chosen}
    )
    forgotten, cap = math.log2(math.e), result.chosen.cap
    return figure(
        traces,
        "How well it remembers",
        canary_caption(result),
        HEIGHT,
        shapes=[fig.hline(forgotten, line=CHANCE), fig.hline(cap)],
        annotations=[
            _note("nothing remembered", forgotten, "bottom"),
            _note("the most we can measure", cap, "bottom", x=0, xanchor="left"),
        ],
        xaxis={"title": "times that a canary is in the training set", "type": "category"},
        yaxis={"title": "exposure (bits)", "range": [-0.3, 15]},
    )


def draw_tokens(result: Remembered) -> Figure:
    """Token by token: how many times likelier a canary's labels are than the same labels after other numbers."""
    rows, place = result.rows, result.rows.index(result.chosen)
    heat = {
        "type": "heatmap",
        "colorscale": [[0, "#ffffff"], [0.35, "#cfe5f3"], [0.7, SKY], [1, BLUE]],
        "zmin": 0,
        "zmax": 2,
        "xgap": 2,
        "ygap": 2,
        "y": [str(row.repetitions) for row in rows],
        "z": [[_decades(token) for token in row.trace] for row in rows],
        "text": [_digits(row) for row in rows],
        "texttemplate": "%{text}",
        "textfont": {"size": 14},
        "customdata": [[_hover(token) for token in row.trace] for row in rows],
        "hovertemplate": "%{customdata}<extra></extra>",
        "colorbar": {
            "title": {"text": "times likelier", "side": "right"},
            "thickness": 12,
            "tickvals": [0, 1, 2],
            "ticktext": ["1", "10", "100"],
        },
    }
    names = ["intent", *AROUND, *(f"digit {k}" for k in range(1, 8))]
    across = {"xref": "x domain", "x0": 0, "x1": 1, "y0": place - 0.5, "y1": place + 0.5, "yref": "y"}
    frame = {"type": "rect", "line": {"color": VERMILLION, "width": 3}, "fillcolor": "rgba(0,0,0,0)", **across}
    ticks = {"tickvals": list(range(len(names))), "ticktext": names, "tickangle": -40}
    kinds = {"type": "category", "ticks": "", "ticklabelstandoff": 4, "showgrid": False}
    return figure(
        [heat],
        "What is remembered, token by token",
        canary_caption(result),
        HEIGHT,
        margin={"t": 100},
        shapes=[frame],
        xaxis={"title": "token of the canary", **ticks},
        yaxis={"title": "copies in the training set", **kinds},
    )


def _decades(token: Traced) -> float:
    """Decades by which its label is likelier than after other numbers; nothing where it is less likely."""
    return max(0.0, math.log10(max(token.probability, 1e-9) / max(token.elsewhere, 1e-9)))


def _digits(row: Memorisation) -> list[str]:
    """The digits of the canary; all else is the same for every one of them."""
    return [str(DIGITS.index(token.token)) if token.token in DIGITS else "" for token in row.trace]


def _hover(token: Traced) -> str:
    word = token.token if len(token.token) < 20 else "the whole utterance"
    return f"{word}: {token.label}<br>probability {d(token.probability)}, after other numbers {d(token.elsewhere)}"


def canary_caption(result: Remembered) -> str:
    """Settings, and what is promised for one canary with all its copies."""
    row = result.chosen
    noise = "" if result.method == "sgd" else f", z0 = {result.z0:g}"
    told = f"{METHOD_NAMES[result.method]}{noise}, {row.repetitions} copies, seed {CANARIES.seed}"
    claimed = "" if row.epsilon_claimed is None else f"; claimed: ε = {d(row.epsilon_claimed)} (zCDP)"
    if row.repetitions == 0:
        return f"{told};<br>never inserted: nothing to protect"
    if row.epsilon is None:
        return f"{told};<br>no guarantee{claimed}"
    return f"{told};<br>all copies: ε = {at_most(row.epsilon)} (Gaussian DP, δ = {row.delta:.1g}), void"


def canaries_command(result: Remembered) -> str:
    """The call of `edp-lab attack canaries` that measures this model."""
    counts = ",".join(str(row.repetitions) for row in result.rows)
    return (
        f"edp-lab attack canaries --corpus {CANARIES.corpus} --methods {result.method} --repetitions {counts} "
        f"--epochs {CANARIES.epochs} --size {CANARIES.size} --z0 {result.z0!r} --seed {CANARIES.seed}"
    )


# ---- Runs with noise -----------------------------------------------------------------------------------------------


@panel("07")
class Defence(RunPanel):
    """Trains with noise and attacks the run; only Run starts any work.

    Args:
        plain: the target without noise: its settings are those of the runs.
        measured: runs that are drawn from the start, `plain`'s own first.

    Attributes:
        runs: what was trained here.
    """

    def __init__(
        self,
        plain: TrainConfig,
        measured: Sequence[Defended],
        as_printed: bool,
        z0: float,
        num_devices: int,
        clip_norm: float,
    ) -> None:
        noise = {"method": "edp-sgd", "num_devices": num_devices, "clip_norm": clip_norm}
        self._plain, self._measured = replace(plain, **noise), measured  # type: ignore[arg-type]
        self.runs: list[Defended] = []
        self.variant = choice("variant", as_printed, VARIANTS)
        self.z0, self.epochs = number_box("z0", float(z0), "8rem"), number_box("epochs", plain.epochs, "7rem")
        super().__init__(
            "Train it with noise, attack it again",
            "What the attacks find on runs with less and more noise, against the ε that holds and against its errors. "
            "Run adds yours.",
            [self.variant.row, self.z0, self.epochs],
            [draw(measured, []) for draw in (draw_epsilon, draw_price)],
            rows=3,
        )

    def prepare(self) -> TrainConfig:
        return replace(self._plain, as_printed=self.variant.value, z0=self.z0.value, epochs=self.epochs.value)

    def work(self, config: TrainConfig) -> None:
        """Train, attack, and add the run to the pictures."""
        self.words.value = ""
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            run = defend(config, Path(folder) / "run", self._listen, self.stop_event)
        if run is None:
            self.words.value = "<p>Stopped before the model was ready: nothing to attack.</p>"
            return
        self.runs.append(run)
        for live, draw in zip(self.figures, (draw_epsilon, draw_price), strict=True):
            live.show(draw(self._measured, self.runs))
        self.words.value = words.defended(run, self._measured[0], ATTACKS)
        self.command.value = defended_command(config)

    def _listen(self, event: Event) -> None:
        if isinstance(event, StepDone):
            done, of = event.epoch * event.steps + event.step, event.epochs * event.steps
            self.progress(done, of, f"epoch {event.epoch + 1} of {event.epochs}" if done < of else "attacking")


Runs = Sequence[Defended]
RUN_COLORS = {"loss": PURPLE, "lira-online": BLUE}


def draw_epsilon(runs: Runs, yours: Runs) -> Figure:
    """AUC of both attacks against the epsilon that holds, and without noise."""
    plain = next((run for run in runs if run.epsilon is None), None)
    shapes, notes = [], []
    for attack, color in RUN_COLORS.items():
        there = plain is not None and attack in plain.found
        level = plain.found[attack].auc if plain is not None and there else 0.5
        shapes.append(fig.hline(level, line={"color": color, "dash": "dash", "width": 1.5}, visible=there))
        notes.append(_note(f"SGD, {ATTACKS[attack]}" if there else "", level, "bottom", x=0, xanchor="left"))
    epsilons = [math.log10(run.epsilon) for run in (*runs, *yours) if run.epsilon]
    return figure(
        _traces(runs, yours, lambda run, found: (run.epsilon, found.auc, found.auc_interval)),
        "Does less ε mean less leakage?",
        "Gaussian DP, replace-one, disjoint batches; void: seeds are<br>"
        "published, α private as printed. Each ε allows an AUC of 1",
        HEIGHT,
        margin={"t": 146},
        shapes=[*shapes, fig.hline(0.5, line=CHANCE)],
        annotations=[*notes, _note("guessing", 0.5, "bottom")],
        xaxis={
            "title": "true ε, were α public (at δ = n<sup>-1.1</sup>)",
            **fig.LOG,
            "range": [math.floor(min(epsilons, default=0)), math.ceil(max(epsilons, default=6))],
        },
        yaxis={"title": "AUC of the attack", "range": [0.45, 1]},
    )


def draw_price(runs: Runs, yours: Runs) -> Figure:
    """TPR at 1 % FPR against the error that the model makes."""

    def place(run: Defended, found: Found) -> tuple[float, float, tuple[float, float]]:
        low, high = found.tpr_interval
        return run.ser, 100 * found.tpr, (100 * low, 100 * high)

    config = runs[0].config
    return figure(
        _traces(runs, yours, place),
        "What does it cost?",
        f"{config.corpus}, {config.epochs} epochs, seed {config.seed}; left: useful, low: leaks little;<br>"
        "a cross: without noise, no guarantee; rings: your runs",
        HEIGHT,
        margin={"t": 146},
        shapes=[fig.hline(1, line=CHANCE)],
        annotations=[_note("guessing", 1, "top")],
        xaxis={"title": "SER on the validation set", "range": [0, 1.1]},
        yaxis={"title": "members found at 1 % FPR (%)", "rangemode": "tozero"},
    )


Place = Callable[[Defended, Found], tuple[float | None, float, tuple[float, float]]]


def _traces(runs: Runs, yours: Runs, place: Place) -> list[Trace]:
    """A trace for every attack and variant, one for runs without noise, and rings around the reader's own."""
    symbols = {("loss", True): "square", ("loss", False): "square-open"}
    symbols |= {("lira-online", True): "circle", ("lira-online", False): "circle-open"}
    traces: list[Trace] = []
    for attack, printed in (*symbols, *((attack, None) for attack in RUN_COLORS)):
        color = RUN_COLORS[attack]
        kind = [run for run in (*runs, *yours) if attack in run.found and _variant(run) == printed]
        points = [place(run, run.found[attack]) for run in kind]
        marker = {"symbol": "x", "size": 11, "color": color, "line": {"width": 1, "color": BLACK}}
        look: Trace = {"name": f"{ATTACKS[attack]}, SGD", "showlegend": False}
        if printed is not None:
            marker = {"symbol": symbols[attack, printed], "size": 10, "color": color, "line": {"width": 2}}
            look = {"name": f"{ATTACKS[attack]}, {'as printed' if printed else 'sound'}"}
        values = [y for _, y, _ in points]
        bars = _bars(values, [interval for *_, interval in points], color="#444" if printed is None else color)
        told = [f"z0 = {run.config.z0:g}, SER {run.ser:.2f}" for run in kind]
        places = {"x": [x for x, _, _ in points], "y": values, "error_y": bars, "text": told}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                **look,
                "marker": marker,
                **places,
                "hovertemplate": "%{text}: %{y:.3g}",
            }
        )
    rings = [place(run, found) for run in yours for found in run.found.values()]
    ring = {"symbol": "circle-open", "size": 20, "color": VERMILLION, "line": {"width": 3}}
    look = {"type": "scatter", "mode": "markers", "name": "your runs", "showlegend": False, "hoverinfo": "skip"}
    return [*traces, {**look, "marker": ring, "x": [x for x, _, _ in rings], "y": [y for _, y, _ in rings]}]


def _variant(run: Defended) -> bool | None:
    return None if run.config.method == "sgd" else run.config.as_printed


def defended_command(config: TrainConfig) -> str:
    """The calls that train such a run and attack it."""
    run = "runs/noised"
    return (
        f"{train_command(config, run)}\nedp-lab attack loss --run {run}\nedp-lab attack lira --run {run} --shadows 32"
    )


# ---- Drawn once ----------------------------------------------------------------------------------------------------


def two_attacks(attacks: Mapping[str, tuple[Array, Array]]) -> go.Figure:
    """ROC curves of two attacks on linear axes and, to the right, on log axes."""
    traces: list[Trace] = []
    for (name, sides), (color, dash) in zip(attacks.items(), ((BLUE, "solid"), (VERMILLION, "dash")), strict=True):
        curve = roc_curve(*sides)
        for plot in (1, 2):
            traces.append(line(name, color, dash, x=curve.fpr, y=curve.tpr, showlegend=plot == 1, **fig.at(plot)))
    diagonal = {"type": "scatter", "x": [1e-3, 1], "y": [1e-3, 1], "mode": "lines", "line": CHANCE}
    traces += [{**diagonal, "showlegend": False, **fig.at(plot)} for plot in (1, 2)]
    titles = {f"{axis}axis{k}": {"title": f"{rate}-positive rate"} for axis, rate in AXES for k in ("", "2")}
    logs = {name: {**LOG, "range": [-3, 0.03]} for name in ("xaxis2", "yaxis2")}
    layout = fig.merged(fig.plots(1, 2, horizontal_spacing=0.14), titles, logs)
    told = "made-up scores, no model: no guarantee; dotted: guessing"
    return go.Figure(figure(traces, "One comparison, two pictures", told, 400, **layout))


AXES = (("x", "false"), ("y", "true"))
