"""The panels of ``07_membership_inference.ipynb``: three that follow their sliders, and one that trains with noise."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edp_lab.attacks.membership.attacks import Attacked
from edp_lab.attacks.memorisation import DIGITS, Traced
from edp_lab.attacks.statistics import LEAST_MEMBERS, Guards
from edp_lab.attacks.statistics import roc as roc_curve
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import text
from edp_lab.course.kit.controls import choice, decades, devices, number
from edp_lab.course.kit.figure import DOTTED, Figure, Trace, figure, line, points
from edp_lab.course.kit.panel import Panel, RunPanel, Tile, claimed, holds, panel
from edp_lab.course.kit.text import Words, at_most, count, digits, percent, short, train_command
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.course.nb07_membership import compute, speakers
from edp_lab.course.nb07_membership.compute import Array, Attacks, CanaryGrid, Defended, Found, Remembered, Shown
from edp_lab.course.nb07_membership.speakers import Covered
from edp_lab.privacy import Variant
from edp_lab.training import TrainConfig

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
        views={
            "the loss alone": {"attack": "loss"},
            f"{sizes[0]} members": {"people": sizes[0]},
            "lines for z0 = 10": {"z0": 10.0},
            "lines of the sound step": {"as_printed": False},
        },
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
    held, told = result.guarantee, "Nothing is guaranteed here, so nothing limits an attack."
    if held.epsilon is not None:
        said, true = f"claimed ε = {digits(held.epsilon_claimed)}", f"ε = {at_most(held.epsilon)} that would hold"
        if result.mechanism.variant is Variant.AS_PRINTED:
            true += " with a public α"
        above_claimed, above_true = result.beyond
        told = {
            (True, True): f"Neither the {said} nor the {true} allows this curve.",
            (True, False): f"The {said} does not allow this curve; the {true} does.",
            (False, True): f"The {said} allows this curve; the {true} does not.",
            (False, False): f"The {said} and the {true} both allow this curve, which proves nothing.",
        }[above_claimed, above_true] + " This target was trained without noise."
    of = f"of {count(result.result.members, 'sentence')}"
    found = Tile("members found", percent(result.hits.value), of)
    return found, Tile("strangers accused", percent(result.alarms.value), of, "printed"), told


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
    hover = "FPR %{x:.3g}: TPR %{y:.3g}"
    silent: dict[str, Any] = {"hoverinfo": "skip", "hover": hover}
    chance, span = {"mode": "lines", "line": DOTTED}, [math.log10(SMALLEST), 0.03]
    return figure(
        "Members found, strangers accused",
        fig.area("95 % band", OTHER, 0.35, **fig.between(corners, upper, lower), **silent),
        line(ATTACKS[result.result.attack], PLAIN, width=2.5, x=fpr, y=tpr, line={"shape": "hv"}),
        line("claimed", CLAIMED, "dash", width=2.5, x=grid, y=result.claimed.tpr(grid)),
        line("holds", HOLDS, "longdashdot", width=2.5, x=grid, y=result.true.tpr(grid)),
        fig.trace("", chance, x=[SMALLEST, 1], y=[SMALLEST, 1], showlegend=False, **silent),
        fig.note("guessing", x=-1, y=-1.1, xanchor="left", yanchor="top"),
        points("", INK, "circle-open", 13, edge=3, showlegend=False, **point),
        hover=hover,
        xaxis=fig.axis("share of strangers accused (FPR)", span, **LOG),
        yaxis=fig.axis("share of members found (TPR)", span, **LOG),
    )


SCORES = {
    "loss": "−log₁₀ of the loss (nats)",
    "shadow": "probability of “member”",
    "lira-online": "log-likelihood ratio (nats, cut at ±10)",
}


def draw_scores(result: Shown) -> Figure:
    """Histograms of the attack's scores, of members and of non-members; the line is the threshold."""
    attack, ends = result.result.attack, result.edges[[0, -1]]
    right = result.mark < ends.sum() / 2
    told = fig.beside("called members →" if right else "← called strangers", result.mark, left=not right)
    bars = fig.histograms(result.edges, result.views, (("members", NOISE, "/"), ("strangers", PLAIN, "")))
    return figure(
        "What the attack sees",
        *bars,
        fig.vline(result.mark),
        told,
        **fig.OVERLAID,
        xaxis=fig.axis(SCORES[attack], ends.tolist()),
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
    for name, found in ((name, attacked.result) for name, attacked in attacks.items()):
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
    printed = {"method": "edp-sgd-as-printed", "z0": 0.1}
    return Panel(
        "What does it remember?",
        "How far up a hidden number ranks among ten thousand others, and how sure the model is of the number's odd "
        "label.",
        partial(compute.show_canaries, grid),
        [draw_exposure, draw_tokens],
        lambda result: words.canaries(result, METHODS[result.method], compute.CANARIES),
        lambda result, **_: canaries_command(result),
        tiles=tell_canaries,
        views={
            "one copy": {"repetitions": 1},
            "sixteen copies": {"repetitions": 16},
            "sixteen copies, trained as printed, z0 = 0.1": {**printed, "repetitions": 16},
        },
        method=choice("method", method, {label: name for name, label in METHODS.items()}),
        z0=number("noise multiplier z0", z0, compute.Z0S, unit="measured"),
        repetitions=number("copies of a canary", repetitions, compute.REPETITIONS, unit="times"),
    )


def tell_canaries(result: Remembered) -> tuple[Tile, Tile, str]:
    """How well the chosen canaries are remembered, and how sure the model is of the digits of one."""
    row = result.chosen
    tokens = row.trace[-NUMBER:]
    here, elsewhere = (sum(getattr(t, of) for t in tokens) / NUMBER for of in ("probability", "elsewhere"))
    seen = {0: "that was never seen", 1: "seen once"}.get(row.repetitions, f"seen {row.repetitions} times")
    chances = [f"{short(100 * chance)} %" for chance in (here, elsewhere)]
    told = f"A number {seen} gets its odd label with probability {chances[0]}; other numbers get it with {chances[1]}."
    exposure = Tile("exposure", f"{row.exposure:.1f} bits", f"nothing remembered: 1.4; at most {row.cap:.1f}")
    back = Tile("read back", f"{row.extracted} of {len(row.exposures)}", "numbers rank first", "printed")
    return exposure, back, told


NUMBER = 7  # digits of a number


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


def draw_tokens(result: Remembered) -> Figure:
    """One canary a row: the probability of the odd label that the training set gave each of its digits."""
    rows = result.rows[result.method]
    place = rows.index(result.chosen)

    def each(told: Callable[[Traced], Any]) -> list[list[Any]]:
        return [[told(token) for token in row.trace[-NUMBER:]] for row in rows]

    def hover(token: Traced) -> str:
        return f"{token.token}: {token.label}\n{short(token.probability)}; after other numbers {short(token.elsewhere)}"

    heat = {
        **{"type": "heatmap", "colorscale": [[0, "#ffffff"], [1, OTHER]], "zmin": 0, "zmax": 1, "xgap": 2, "ygap": 2},
        "y": [str(row.repetitions) for row in rows],
        "z": each(lambda token: token.probability),
        "text": each(lambda token: str(DIGITS.index(token.token))),
        "texttemplate": "%{text}",
        "textfont": {"size": 14, "color": "#111"},  # cells are light in the dark theme, too
        "customdata": each(hover),
        "hovertemplate": "%{customdata}" + fig.ALONE,
        "colorbar": {"title": {"text": "probability of the odd label", "side": "right"}, "thickness": 12},
    }
    across = {"xref": "x domain", "x0": 0, "x1": 1, "y0": place - 0.5, "y1": place + 0.5, "yref": "y"}
    frame = {"type": "rect", "line": {"color": INK, "width": 3}, "fillcolor": "rgba(0,0,0,0)", **across}
    kinds = {"type": "category", "ticks": "", "ticklabelstandoff": 4, "showgrid": False}
    return figure(
        "What it has learnt, digit by digit",
        heat,
        frame,
        top=44,
        xaxis=fig.axis("digit of the number", tickvals=list(range(NUMBER)), ticktext=list(range(1, NUMBER + 1))),
        yaxis=fig.axis("copies in the training set", **kinds),
    )


def canaries_command(result: Remembered) -> str:
    """The call of `edp-lab attack canaries` that measures this model."""
    asked, counts = compute.CANARIES, ",".join(str(row.repetitions) for row in result.rows[result.method])
    options = {"corpus": asked.corpus, "methods": result.method, "repetitions": counts, "epochs": asked.epochs}
    return text.command("attack canaries", {**options, "size": asked.size, "z0": result.z0, "seed": asked.seed})


# ---- Runs with noise -----------------------------------------------------------------------------------------------


@panel("07")
class Defence(RunPanel):
    """Trains with noise and attacks the run; only Run starts any work.

    Args:
        plain: the target without noise: its settings are those of the runs.
        measured: runs that are drawn from the start, `plain`'s own first.
    """

    def __init__(
        self, plain: TrainConfig, measured: Runs, as_printed: bool, z0: float, num_devices: int, clip_norm: float
    ) -> None:
        self._base = replace(plain, method="edp-sgd", num_devices=num_devices, clip_norm=clip_norm)
        self._measured: Runs = measured
        self.runs: list[Defended] = []  # what was trained here
        self.variant = choice("variant", as_printed, VARIANTS)
        self.z0, self.epochs = number("z0", float(z0)), number("epochs", plain.epochs)
        super().__init__(
            "Train it with noise, attack it again",
            "What attacks find on runs with less and more noise, by their ε and by their errors; Run adds yours.",
            [self.variant, self.z0, self.epochs],
            [draw(measured, []) for draw in (draw_epsilon, draw_price)],
        )

    def prepare(self) -> TrainConfig:
        return replace(self._base, as_printed=self.variant.value, z0=self.z0.value, epochs=self.epochs.value)

    def work(self, config: TrainConfig) -> None:
        """Train, attack, and add the run to the pictures."""
        self.words.value = ""
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            listen = partial(self.progress_of, after="attacking")
            run = compute.defend(config, Path(folder) / "run", listen, self.stop_event)
        if run is None:
            self.words.value = "Stopped before the model was ready: nothing to attack."
            return
        self.runs.append(run)
        for live, draw in zip(self.figures, (draw_epsilon, draw_price), strict=True):
            live.show(draw(self._measured, self.runs))
        self.tiles.show(*tell_run(run))
        self.words.value = words.defended(run, self._measured[0], ATTACKS)
        attack = "edp-lab attack loss --run runs/noised\nedp-lab attack lira --run runs/noised --shadows 32"
        self.command.value = f"{train_command(config, 'runs/noised')}\n{attack}"


def tell_run(run: Defended) -> tuple[Tile, Tile, str]:
    """Both epsilons of a run that was attacked, and what the stronger attack finds."""
    (name, found), at = list(run.found.items())[-1], f"ε at δ = {short(run.delta)}"
    true = holds("no guarantee", at)
    if run.epsilon is not None and run.config.as_printed:
        true = holds("no guarantee", f"with a public α: ε = {at_most(run.epsilon)}")
    elif run.epsilon is not None:
        true = holds(at_most(run.epsilon), f"{at}, with a secret seed")
    told = f"With errors (SER) of {run.ser:.2f}, {ATTACKS[name]} reaches an AUC of {found.auc:.2f}; guessing has 0.5."
    return claimed(short(run.epsilon_claimed), at), true, told


Runs = Sequence[Defended]
RUN_COLORS = {"as printed": PRINTED, "sound": HOLDS, None: PLAIN}
SERIES = (  # attack, symbol, and the variant of the runs; None: without noise
    ("loss", "square-open", "as printed"),
    ("loss", "circle-open", "sound"),
    ("lira-online", "square", "as printed"),
    ("lira-online", "circle", "sound"),
    ("loss", "x-open", None),
    ("lira-online", "x", None),
)


def draw_epsilon(runs: Runs, yours: Runs) -> Figure:
    """AUC of both attacks against the epsilon that holds, and without noise."""
    plain = next((run.found for run in runs if run.epsilon is None), {})
    levels = []
    for attack in ("loss", "lira-online"):
        level, text = (plain[attack].auc, f"no noise, {ATTACKS[attack]}") if attack in plain else (0.5, "")
        look = {"color": PLAIN, "dash": "dash", "width": 1.5}
        levels.append(fig.hline(level, line=look, visible=attack in plain))
        levels.append(fig.over(text, level, x=0, xanchor="left"))
    epsilons = [math.log10(run.epsilon) for run in (*runs, *yours) if run.epsilon]
    span = [math.floor(min(epsilons, default=0)), math.ceil(max(epsilons, default=6))]
    return figure(
        "Does less ε mean less leakage?",
        *_traces(runs, yours, lambda run, found: (run.epsilon, found.auc, found.auc_interval)),
        *levels,
        fig.hline(0.5, line=DOTTED),
        fig.over("guessing", 0.5),
        xaxis=fig.logs("ε that would hold with a public α", span),
        yaxis=fig.axis("AUC of the attack", [0.45, 1]),
    )


def draw_price(runs: Runs, yours: Runs) -> Figure:
    """TPR at 1 % FPR against the error that the model makes."""

    def place(run: Defended, found: Found) -> tuple[float, float, tuple[float, float]]:
        low, high = found.tpr_interval
        return run.ser, 100 * found.tpr, (100 * low, 100 * high)

    return figure(
        "What does it cost?",
        *_traces(runs, yours, place),
        fig.hline(1, line=DOTTED),
        fig.over("guessing", 1),
        xaxis=fig.axis("errors on other sentences (SER)", [0, 1.25]),
        yaxis=fig.axis("members found at 1 % FPR (%)", rangemode="tozero"),
    )


Place = Callable[[Defended, Found], tuple[float | None, float, tuple[float, float]]]  # x, y, and y's interval


def _traces(runs: Runs, yours: Runs, place: Place) -> list[Trace]:
    """A trace for every attack and variant, and rings around the reader's own."""
    traces = []
    for attack, symbol, variant in SERIES:
        kind = [run for run in (*runs, *yours) if attack in run.found and variant_of(run) == variant]
        places = [place(run, run.found[attack]) for run in kind]
        y, reach = [value for _, value, _ in places], [interval for *_, interval in places]
        color, told = RUN_COLORS[variant], [f"z0 = {run.config.z0:g}, SER {run.ser:.2f}" for run in kind]
        marker: Trace = {"symbol": symbol, "size": 10, "color": color, "line": {"width": 2, "color": color}}
        look = {"mode": "markers", "marker": marker, "showlegend": variant is not None}
        on: Trace = {"x": [x for x, _, _ in places], "y": y, "text": told, "hover": "%{text}: %{y:.3g}"}
        on["error_y"] = fig.error_bars(y, reach, width=4, color=color)
        traces.append(fig.trace(f"{ATTACKS[attack]}, {variant or 'SGD'}", look, **on))
    rings = [place(run, found) for run in yours for found in run.found.values()]
    return [*traces, fig.ring(20, edge=3, hoverinfo="skip", x=[x for x, *_ in rings], y=[y for _, y, _ in rings])]


def variant_of(run: Defended) -> str | None:
    """As in `SERIES`."""
    return None if run.config.method == "sgd" else "as printed" if run.config.as_printed else "sound"


# ---- Whole people --------------------------------------------------------------------------------------------------


@panel("07")
def people(runs: Sequence[Covered], epsilon: float, said: str) -> Panel:
    """Runs whose epsilon covers a sentence, or a person; `result` is a `speakers.Shown`."""
    return Panel(
        "Whom does ε cover?",
        "How well an attack that listens to all that somebody says finds the people of the training set.",
        partial(speakers.show_cover, runs),
        [draw_people, draw_people_price],
        words.people,
        people_command,
        tiles=tell_people,
        views={
            "later sentences": {"said": "fresh"},
            "ε = 10": {"epsilon": 10.0},
            "ε = 100": {"epsilon": 100.0},
        },
        epsilon=number("ε that would hold", epsilon, speakers.EPSILONS, unit="measured"),
        said=choice("listens to sentences", said, {label: name for name, label in speakers.SAID.items()}),
    )


UNITS = {
    "utterance": ("of a sentence", PRINTED, "dash", "square"),
    "speaker": ("of a person", HOLDS, "solid", "circle"),
}


def tell_people(result: speakers.Shown) -> tuple[Tile, Tile, str]:
    """The attack on both runs, and what the first one promises to a person."""
    one, other = (run.found[result.said] for run in (result.utterance, result.speaker))
    spans = ["AUC, {:.2f} to {:.2f}".format(*leak.interval) for leak in (one, other)]
    most, promised, epsilon = result.utterance.most, result.utterance.epsilon_of_most, result.utterance.epsilon
    told = "no ε at all" if promised is None else f"ε = {at_most(promised)}"
    said = f"Somebody with {most} sentences is promised {told}, where one sentence is promised ε = {short(epsilon)}."
    found = Tile("ε of a sentence", f"{one.value:.2f}", spans[0], "printed")
    return found, Tile("ε of a person", f"{other.value:.2f}", spans[1], "holds"), said


def draw_people(result: speakers.Shown) -> Figure:
    """The AUC of the attack on speakers, by epsilon and by whom that covers."""
    guessing = fig.hline(0.5, line=DOTTED), fig.over("guessing", 0.5)
    y, axis = (lambda run: run.found[result.said].value), fig.axis("AUC of the attack", [0.35, 1])
    return _by_unit("Are people found?", result, y, *guessing, reach=True, hover="ε ≈ %{x:.3g}: %{y:.3f}", yaxis=axis)


def draw_people_price(result: speakers.Shown) -> Figure:
    """Errors by epsilon and by whom that covers."""
    axis = fig.axis("errors on strangers' sentences (SER)", [0, 1.1])
    return _by_unit("What does it cost?", result, lambda run: run.ser, hover="ε ≈ %{x:.3g}: %{y:.2f}", yaxis=axis)


def _by_unit(
    title: str, result: speakers.Shown, y: Callable[[Covered], float], *marks: Trace, reach: bool = False, **more: Any
) -> Figure:
    """Both curves over epsilon, maybe with intervals, a ring on the chosen epsilon, and a level without noise."""
    traces, both, [plain] = [], (result.utterance, result.speaker), result.of("nobody")
    for unit, (name, color, dash, symbol) in UNITS.items():
        of = result.of(unit)
        on: Trace = {"x": [run.epsilon for run in of], "y": [y(run) for run in of]}
        if reach:
            intervals = [run.found[result.said].interval for run in of]
            on["error_y"] = fig.error_bars(on["y"], intervals, width=4, color=color, thickness=1.2)
        traces.append(line(f"ε {name}", color, dash, symbol=symbol, size=9, **on))
    return figure(
        title,
        *traces,
        fig.ring(18, x=[run.epsilon for run in both], y=[y(run) for run in both], hoverinfo="skip"),
        fig.hline(y(plain), line={"color": PLAIN, "dash": "dot", "width": 1.5}),
        fig.over("no noise", y(plain), x=0, xanchor="left"),
        *marks,
        xaxis=fig.axis("ε that would hold", [0.1, 2.4], **LOG, tickvals=speakers.EPSILONS),
        **more,
    )


def people_command(result: speakers.Shown, said: str, **_: Any) -> str:
    """The calls that make the corpus, train the run whose epsilon is a person's, and attack it."""
    corpus, later, run = "runs/spoken.jsonl", "runs/later.jsonl", "runs/people"
    made = {"speakers": speakers.SPEAKERS, "seed": 0}
    lines = [text.command("data make smart-home", {"utterances": speakers.UTTERANCES, **made, "out": corpus})]
    if said == "fresh":
        more = speakers.UTTERANCES + speakers.LATER
        lines.append(text.command("data make smart-home", {"utterances": more, **made, "out": later}))
    config = replace(speakers.BY_UNIT["speaker"], corpus=corpus, z0=result.speaker.z0)
    attack = {"run": run, "fresh": later if said == "fresh" else None}
    return "\n".join([*lines, train_command(config, run), text.command("attack speakers", attack)])


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
