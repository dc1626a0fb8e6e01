"""The panels and figures of ``07_membership_inference.ipynb``: the curve of an attack, canaries, runs with noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from edp_lab.attacks.statistics import LEAST_MEMBERS, Guards
from edp_lab.attacks.statistics import roc as roc_curve
from edp_lab.attacks.target import Attacked
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import text
from edp_lab.course.kit.controls import choice, decades, devices, number
from edp_lab.course.kit.figure import DOTTED, Figure, Trace, figure, line, points
from edp_lab.course.kit.panel import Panel, Tile, panel
from edp_lab.course.kit.text import Words, at_most, count, digits, percent, short, train_command
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.course.nb07_membership import compute
from edp_lab.course.nb07_membership.compute import Array, Attacks, CanaryGrid, Remembered, Shown
from edp_lab.privacy import Variant

METHODS = compute.METHODS
words = Words(__file__)
VARIANTS = {"as printed": True, "sound": False}
ATTACKS = {"loss": "loss", "shadow": "shadow model", "lira-online": "LiRA"}
LOG = {"type": "log", "dtick": 1, "tickformat": "~g"}


# ---- The curve and the scores --------------------------------------------------------------------------------------


@panel("07")
def roc(attacks: Attacks, as_printed: bool, z0: float, num_devices: int, epochs: int) -> Panel:
    """Attacks as curves, beside the bounds of a mechanism; `result` is a `Shown`."""
    most = len(next(iter(attacks.values())).target.members)
    sizes = [*(n for n in (LEAST_MEMBERS, 100, 200, 500, 1000, 2000) if n < most), most]
    called = [0.05, 0.1, 0.2, 0.5, *map(float, range(1, 10)), *map(float, range(10, 101, 5))]
    return Panel(
        "Who was in the training set?",
        "How many members an attack finds for each share of strangers that it accuses, and the scores behind it.",
        partial(compute.show_roc, attacks),
        [draw_roc, draw_scores],
        words.roc,
        lambda result, attack, **_: roc_command(result, attacks[attack]),
        tiles=tell_roc,
        attack=choice("attack", list(attacks)[-1], {ATTACKS[name]: name for name in attacks}),
        called=number("called members", 10.0, called, unit="top % of all"),
        people=number("members", most, sizes, unit="a side"),
        as_printed=choice("lines of", as_printed, VARIANTS),
        z0=number("noise multiplier z0", z0, decades(-1, 2)),
        num_devices=devices(num_devices),
        epochs=number("epochs T", epochs, range(1, 41), unit="passes", rare=True),
    )


def tell_roc(result: Shown) -> tuple[Tile, Tile, str]:
    """Both rates at the threshold, and where the curve runs beside the lines of both epsilons."""
    held, says = result.guarantee, "Nothing is guaranteed here, so nothing limits an attack."
    if held.epsilon is not None:
        claimed = f"claimed ε = {digits(held.epsilon_claimed)}"
        guaranteed = f"guaranteed ε = {at_most(held.epsilon)}"
        if result.mechanism.variant is Variant.AS_PRINTED:
            guaranteed += " (if α were public)"
        says = {
            (True, True): f"Neither the {claimed} nor the {guaranteed} allows this curve.",
            (True, False): f"The {claimed} does not allow this curve; the {guaranteed} does.",
            (False, True): f"The {claimed} allows this curve; the {guaranteed} does not.",
            (False, False): f"The {claimed} and the {guaranteed} both allow this curve, which proves nothing.",
        }[result.beyond] + " This target was trained without noise."
    of = f"of {count(result.result.members, 'sentence')}"
    found = Tile("members found", percent(result.hits.value), of)
    return found, Tile("strangers accused", percent(result.alarms.value), of, "printed"), says


SMALLEST = 3e-4  # rate that a log axis shows


def draw_roc(result: Shown) -> Figure:
    """The attack's ROC curve on log axes with its band, the threshold's point, and what two epsilons allow."""
    floor = max(SMALLEST, 0.5 / result.result.members)
    fpr, tpr, low, high = np.maximum(result.curve, floor)
    corners = np.repeat(fpr, 2)[1:]  # the band has steps like the curve
    upper, lower = np.repeat(high, 2)[:-1], np.repeat(low, 2)[:-1]
    grid = np.geomspace(SMALLEST, 1, 80)
    point: Trace = {}
    for axis, rate in (("x", result.alarms), ("y", result.hits)):
        value, (least, most) = max(rate.value, floor), rate.interval
        reach = fig.error_bars([value], [(min(value, max(least, floor)), most)], width=4, color="#444")
        point |= {axis: [value], f"error_{axis}": reach}
    chance, span = {"mode": "lines", "line": DOTTED}, [math.log10(SMALLEST), 0.03]
    return figure(
        "Members found, strangers accused",
        fig.area("95 % band", OTHER, 0.35, **fig.between(corners, upper, lower), hoverinfo="skip"),
        line(ATTACKS[result.result.attack], PLAIN, width=2.5, x=fpr, y=tpr, line={"shape": "hv"}),
        line("claimed", CLAIMED, "dash", width=2.5, x=grid, y=result.claimed.tpr(grid)),
        line("guaranteed", HOLDS, "longdashdot", width=2.5, x=grid, y=result.guaranteed.tpr(grid)),
        fig.trace("", chance, x=[SMALLEST, 1], y=[SMALLEST, 1], showlegend=False, hoverinfo="skip"),
        fig.note("guessing", x=-1, y=-1.1, xanchor="left", yanchor="top"),
        points("", INK, "circle-open", 13, edge=3, showlegend=False, **point),
        hover="FPR %{x:.3g}: TPR %{y:.3g}",
        xaxis=fig.axis("share of strangers accused (FPR)", span, **LOG),
        yaxis=fig.axis("share of members found (TPR)", span, **LOG),
    )


SCORES = {
    "loss": "−log₁₀ of the loss (nats)",
    "shadow": "probability of “member”",
    "lira-online": "log-likelihood ratio (nats, cut at ±10)",
}
BINS = 44
TAILS = (0.5, 99.5)  # percentiles: scores beyond are in the outermost bins


def draw_scores(result: Shown) -> Figure:
    """Histograms of the attack's scores, of members and of non-members; the line is the threshold."""
    attack = result.result.attack
    views, threshold = [compute.view(attack, side) for side in result.sides], np.array([result.threshold])
    least, largest = np.percentile(np.concatenate(views), TAILS)
    edges = np.linspace(least, max(largest, least + 1e-9), BINS + 1)
    mark = float(np.clip(compute.view(attack, threshold)[0], edges[0], edges[-1]))
    right = mark < (edges[0] + edges[-1]) / 2
    side = fig.beside("called members →" if right else "← called strangers", mark, left=not right)
    bars = fig.histograms(edges, views, (("members", NOISE, "/"), ("strangers", PLAIN, "")))
    return figure(
        "What the attack sees",
        *bars,
        fig.vline(mark),
        side,
        **fig.OVERLAID,
        xaxis=fig.axis(SCORES[attack], [edges[0], edges[-1]]),
        yaxis=fig.axis("share of that side (%)", [0, 1.15 * max(float(trace["y"].max()) for trace in bars)]),
    )


def roc_command(result: Shown, attacked: Attacked) -> str:
    """The calls that train the target, make this attack, and account for the lines drawn in."""
    run, held = "runs/target", result.guarantee
    attack = f"{result.result.attack.partition('-')[0]} --run {run}"
    if "shadows" in attacked.about or result.result.attack == "lira-online":
        attack += f" --shadows {attacked.about.get('shadows')}"
    account = text.account_of(result.mechanism, epochs=held.epochs, delta=held.delta, adjacency="replace_one")
    return f"{train_command(attacked.target.config, run)}\nedp-lab attack {attack}\n{account}"


def attacks_table(attacks: Attacks) -> str:
    """Attacks side by side in plain text, one a line, under a heading; shares in percent, 95 % intervals."""
    rows: list[Sequence[str]] = [("attack", "AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR")]
    for name, attacked in attacks.items():
        found = attacked.result
        tails = (words.tail(found.tpr_at_fpr[fpr]) for fpr in ("0.01", "0.001"))
        rows.append((ATTACKS[name], f"{found.auc:.3f} ({words.interval(found.auc_interval)})", *tails))
    return text.columns(rows)


def guards_table(found: Mapping[str, Guards]) -> str:
    """What the guards say of splits, one a line, under a heading."""
    rows = [("split", "AUC of words alone", "texts on both sides", "fit for an attack")]
    for name, guards in found.items():
        fit = "no" if guards.leaks or guards.duplicates else "yes"
        rows.append((name, f"{guards.text_auc:.3f}", f"{guards.duplicates:,}", fit))
    return text.columns(rows)


# ---- Canaries ------------------------------------------------------------------------------------------------------


@panel("07")
def canaries(grid: CanaryGrid, method: str, z0: float, repetitions: int) -> Panel:
    """What models have stored of canaries; `result` is a `Remembered`."""
    return Panel(
        "What does it remember?",
        "How far up a hidden number ranks among ten thousand others.",
        partial(compute.show_canaries, grid),
        [(draw_exposure, "1 1 auto")],
        lambda result: words.canaries(result, METHODS[result.method], compute.CANARIES),
        lambda result, **_: canaries_command(result),
        tiles=tell_canaries,
        method=choice("method", method, {label: name for name, label in METHODS.items()}),
        z0=number("noise multiplier z0", z0, compute.Z0S, unit="measured"),
        repetitions=number("copies of a canary", repetitions, compute.REPETITIONS, unit="times"),
    )


def tell_canaries(result: Remembered) -> tuple[Tile, Tile, str]:
    """How well the chosen canaries are remembered."""
    row = result.chosen
    seen = {0: "was never seen", 1: "was seen once"}.get(row.repetitions, f"was seen {row.repetitions} times")
    rank, fillings = short(2 ** (row.cap - row.exposure)), short(2**row.cap)
    says = f"A number that {seen} typically has rank {rank} of {fillings} by its loss."
    exposure = Tile("exposure", f"{row.exposure:.1f} bits", f"nothing remembered: 1.4; at most {row.cap:.1f}")
    back = Tile("read back", f"{row.extracted} of {len(row.exposures)}", "numbers rank first", "printed")
    return exposure, back, says


def draw_exposure(result: Remembered) -> Figure:
    """Mean exposure by repetitions, for each method; the ring is the one looked at."""
    looks = ((PLAIN, "dot", "x"), (PRINTED, "dash", "square"), (HOLDS, "solid", "circle"))
    traces = []
    for (method, rows), (color, dash, symbol) in zip(result.rows.items(), looks, strict=True):
        exposures = [row.exposure for row in rows]
        reach = fig.error_bars(exposures, [row.interval for row in rows], width=4, color=color, thickness=1.2)
        on: Trace = {"x": [str(row.repetitions) for row in rows], "y": exposures, "error_y": reach}
        traces.append(line(METHODS[method], color, dash, symbol=symbol, size=9, **on))
    forgotten, cap = math.log2(math.e), result.chosen.cap
    return figure(
        "How well it remembers",
        *traces,
        fig.ring(18, x=[str(result.chosen.repetitions)], y=[result.chosen.exposure], hoverinfo="skip"),
        fig.hline(forgotten, line=DOTTED),
        fig.hline(cap),
        fig.over("nothing remembered", forgotten, yanchor="top"),
        fig.over("read back", cap, x=0, xanchor="left"),
        hover="%{x} times: %{y:.1f} bits",
        xaxis=fig.axis("copies in the training set", type="category"),
        yaxis=fig.axis("exposure (bits)", [-0.3, 15]),
    )


def canaries_command(result: Remembered) -> str:
    """The call of `edp-lab attack canaries` that measures this model."""
    asked, counts = compute.CANARIES, ",".join(str(row.repetitions) for row in result.rows[result.method])
    options = {"corpus": asked.corpus, "methods": result.method, "repetitions": counts, "epochs": asked.epochs}
    return text.command("attack canaries", {**options, "size": asked.size, "z0": result.z0, "seed": asked.seed})


# ---- Drawn once ----------------------------------------------------------------------------------------------------


def two_attacks(attacks: Mapping[str, tuple[Array, Array]]) -> fig.Still:
    """ROC curves of two attacks on linear axes and, to the right, on log axes."""
    traces: list[Trace] = []
    for (name, sides), (color, dash) in zip(attacks.items(), ((PLAIN, "solid"), (OTHER, "dash")), strict=True):
        on: Trace = {"x": (curve := roc_curve(*sides)).fpr, "y": curve.tpr}
        traces += [line(name, color, dash, **on, showlegend=plot == 1, **fig.at(plot)) for plot in (1, 2)]
    diagonal = {"mode": "lines", "line": DOTTED, "x": [1e-3, 1], "y": [1e-3, 1], "showlegend": False}
    traces += [fig.trace("", diagonal, **fig.at(plot)) for plot in (1, 2)]
    rates = ("share of strangers accused (FPR)", "share of members found (TPR)")
    linear, logs = ([fig.axis(rate, span, **look) for rate in rates] for span, look in ((None, {}), ([-3, 0.03], LOG)))
    layout = fig.plots(1, 2, axes=[tuple(linear), tuple(logs)], horizontal_spacing=0.14)
    told = "made-up scores, no model: no guarantee; dotted: guessing"
    return fig.still("One comparison, two pictures", *traces, caption=told, height=400, **layout)


RUNS = (("as printed", True, PRINTED, "square"), ("sound", False, HOLDS, "circle"))


def defence_figure(runs: Sequence[Mapping[str, Any]]) -> fig.Still:
    """LiRA's AUC on runs with noise: left by the epsilon guaranteed if alpha were public, right by the error rate."""
    plain, *noised = runs
    traces: list[Trace] = []
    for name, as_printed, color, symbol in RUNS:
        kind = [run for run in noised if run["config"].as_printed == as_printed]
        found = [run["found"]["lira-online"] for run in kind]
        areas, settings = (
            [one["auc"] for one in found],
            [f"z0 = {run['config'].z0:g}, SER {run['ser']:.2f}" for run in kind],
        )
        reach = fig.error_bars(areas, [one["auc_interval"] for one in found], width=4, color=color)
        for plot, across in ((1, "epsilon"), (2, "ser")):
            at: Trace = {"x": [run[across] for run in kind], "showlegend": plot == 1, **fig.at(plot)}
            hover = "%{text}: AUC %{y:.3g}"
            traces.append(points(name, color, symbol, 10, y=areas, error_y=reach, text=settings, hover=hover, **at))
    for plot in (1, 2):
        level, of = plain["found"]["lira-online"]["auc"], fig.at(plot)["yaxis"]
        traces += [fig.hline(level, of), fig.hline(0.5, of, line=DOTTED)]
    auc = fig.axis("AUC of LiRA", [0.45, 1])
    axes = [(fig.logs("ε, if α were public"), auc), (fig.axis("errors on other sentences (SER)", [0, 1.25]), auc)]
    caption = (
        f"{plain['config'].corpus}, {plain['config'].epochs} epochs; upper line: no noise, lower: guessing; bars: 95 %;"
        f"\nε: one sentence replaced, δ = {short(plain['delta'])}, seed published, so every ε is void"
    )
    layout = fig.plots(1, 2, axes=axes, horizontal_spacing=0.14)
    return fig.still("Error, attack and ε", *traces, caption=caption, height=420, **layout)
