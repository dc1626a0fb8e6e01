"""Panels and figures of ``05_membership_inference.ipynb``: ROC curves, canaries, and attacks on runs with noise.

    attacks = {"loss": attack_loss("runs/target"), ...}                    # from `edp_lab.attacks`
    shown = show_roc(attacks, "loss", called=10, people=2025, as_printed=True, z0=4.0, num_devices=8, epochs=8)
    remembered = show_canaries(measured().canaries, "sgd", z0=0.01, repetitions=4)

The library computes attacks, training, intervals and bounds. ``data/results/course.py`` stored the results that take
too long to compute here. UsageError: a setting is invalid, or has no stored result.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edp_lab.attacks import statistics as stats
from edp_lab.attacks.canaries import Memorisation
from edp_lab.attacks.lira import ShadowLogits, aligned, lira_scores
from edp_lab.attacks.loss import Attacked, judged, signals
from edp_lab.attacks.statistics import AttackResult, Bound, Rate, clopper_pearson, summarise
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import text
from edp_lab.course.kit.controls import Array, attacked_mechanism, choice, decades, devices, number, require
from edp_lab.course.kit.figure import DOTTED, Figure, Trace, figure, line, points
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Tile, Words, at_most, count, digits, percent, short, train_command
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.errors import check_whole
from edp_lab.jobs import RESULTS, read_kept
from edp_lab.privacy import Adjacency, Guarantee, Mechanism, Variant, judge
from edp_lab.training.config import TrainConfig

POINTS = 90  # points per curve

KEPT = RESULTS / "course_membership.json"
PARTS = ("shadows", "defended", "canaries")
EPOCHS = 8  # enough for a small model to memorise its training set
Z0S = (0.001, 0.003, 0.01, 0.03, 0.1)
REPETITIONS = (0, 1, 2, 4, 8, 16)
CANARIES = TrainConfig("smart-home", size="small", epochs=EPOCHS)
METHODS = {"sgd": "SGD", "edp-sgd-as-printed": "as printed", "edp-sgd": "sound"}  # training methods and their labels
words = Words(__file__)
ATTACKS = {"loss": "loss", "shadow": "shadow model", "lira-online": "LiRA"}
LOG = {"type": "log", "dtick": 1, "tickformat": "~g"}


# ---- What is attacked, and what was measured -----------------------------------------------------------------------


def target_config(corpus: str, seed: int, epochs: int = EPOCHS) -> TrainConfig:
    """Configuration of a small model that overfits, without noise or dropout."""
    return TrainConfig(corpus, method="sgd", size="small", epochs=epochs, dropout=0.0, seed=seed)


CanaryGrid = Mapping[tuple[str, float | None], Sequence[Memorisation]]  # by method and z0 (None for SGD)


class Measured(NamedTuple):
    """Stored results: attacked runs, SGD first, and canaries, one row per number of copies.

    A run has "config" (a `TrainConfig`), "ser" on the validation set, "delta", "claimed_epsilon",
    "epsilon_if_alpha_public" (for a secret seed; None without noise), and "found", which maps each attack to its "auc",
    its "tpr" at 1 % FPR, and intervals.
    """

    defended: Sequence[Mapping[str, Any]]
    canaries: CanaryGrid


@cache
def _read(path: Path) -> dict[str, Any]:
    return read_kept(path, *PARTS)


def measured(path: Path = KEPT) -> Measured:
    """Read runs and canaries from a file written by ``data/results/course.py``."""
    kept = _read(path)
    runs = [run | {"config": TrainConfig(**run["config"])} for run in kept["defended"]]
    rows = {(model["method"], model["z0"]): model["rows"] for model in kept["canaries"]}
    return Measured(
        runs,
        {
            key: tuple(Memorisation(**row | {"interval": tuple(row["interval"])}) for row in canary_rows)
            for key, canary_rows in rows.items()
        },
    )


# ---- LiRA from the moments of shadow models that are not stored ----------------------------------------------------


class Moments(NamedTuple):
    """Sufficient statistics of LiRA's shadow models for n utterances with d logits each and a common variance."""

    models: int  # number of models
    inside: Array  # (n, d), mean logits of the models trained with each utterance
    outside: Array  # (n, d), mean logits of the models trained without it
    v_in: Array  # (d,), variances over models with an utterance, averaged over utterances
    v_out: Array  # (d,), the same for models without it

    @classmethod
    def of(cls, shadows: ShadowLogits) -> Moments:
        logits, half = shadows.logits, len(shadows.inside) // 2  # each utterance is in half of the models
        sides = []
        for used in (shadows.inside, ~shadows.inside):
            mean = (logits * used[..., None]).sum(0) / half
            sides.append((mean, (((logits - mean) * used[..., None]) ** 2).sum((0, 1)) / (half - 1) / len(mean)))
        (inside, v_in), (outside, v_out) = sides
        return cls(len(shadows.inside), inside, outside, v_in, v_out)

    def shadows(self) -> ShadowLogits:
        """Four artificial models with these moments: two trained with every utterance and two without."""
        apart = [sign * np.sqrt(v / 2) for v in (self.v_in, self.v_out) for sign in (-1, 1)]
        means = (self.inside, self.inside, self.outside, self.outside)
        logits = np.stack([mean + shift for mean, shift in zip(means, apart, strict=True)])
        known = np.repeat([[True], [True], [False], [False]], logits.shape[1], axis=1)
        return ShadowLogits(logits, known)


def kept_lira(loss: Attacked, path: Path = KEPT) -> Attacked | None:
    """Run LiRA (online) with stored shadow models on this target; None for another corpus, seed or split."""
    target = loss.target
    key = target.corpus.sha256, target.config.seed, len(target.pool)
    rows = [row for row in _read(path)["shadows"] if (row["corpus_sha256"], row["seed"], row["pool"]) == key]
    if not rows or not target.config.keep_duplicates_together:
        return None
    [row] = rows
    inside, outside = (
        np.frombuffer(base64.b64decode(row[side]), "<f2").astype(np.float64).reshape(row["pool"], -1)
        for side in ("inside", "outside")
    )
    shadows = Moments(row["models"], inside, outside, np.array(row["v_in"]), np.array(row["v_out"])).shadows()
    scores = lira_scores(aligned(signals(target.model, target.pool).logits, shadows), shadows)
    about = {"shadows": row["models"], "shadow_size": "small", "shadow_epochs": EPOCHS}
    return judged(target, "lira-online", scores, about)


# ---- A curve, a threshold, and what epsilon allows -----------------------------------------------------------------


Attacks = Mapping[str, Attacked]  # by name


class Shown(NamedTuple):
    """An attack on equal numbers of members and non-members, one threshold, and the bounds of a mechanism."""

    result: AttackResult
    threshold: float  # score reached by the top `called` percent of all sentences
    hits: Rate  # TPR at the threshold, with its Clopper-Pearson interval
    alarms: Rate  # FPR at the threshold
    curve: Array  # (4, P) FPR, TPR, and both ends of the TPR's interval, pointwise; thinned out for a log axis
    sides: list[Array]  # scores of members, and of non-members
    mechanism: Mechanism
    guarantee: Guarantee  # for one replaced utterance; void because the seed is published
    claimed: Bound  # limit on any attack by the claimed epsilon
    guaranteed: Bound  # limit on any attack by the guaranteed mu
    beyond: tuple[bool, bool]  # whether the TPR exceeds each bound anywhere, beyond the intervals of both rates


def show_roc(
    attacks: Attacks,
    attack: str,
    called: float,
    people: int,
    as_printed: bool = False,
    z0: float = 0.0,
    num_devices: int = 1,
    epochs: int = 1,
) -> Shown:
    """Evaluate one attack on the first `people` members and non-members, with the bounds of a mechanism.

    Args:
        attacks: attacks by name, all on one target.
        called: percentage of sentences that the threshold calls members.
    """
    require(attack in attacks, f"attack {attack!r} was not run: choose {' or '.join(attacks)}")
    target = attacks[attack].target
    check_whole("the number of sentences", people, stats.LEAST_MEMBERS, len(target.members))
    require(0 < called <= 100, f"the share called members is {called} %: it must be above 0 and at most 100")
    inside, outside = sides = [side[:people] for side in target.sides(attacks[attack].scores)]
    texts, other_texts = (side[:people] for side in target.sides(target.texts))
    result = summarise(attack, inside, outside, texts=(texts, other_texts))
    threshold = float(np.sort(np.concatenate(sides))[-max(1, round(2 * people * called / 100))])
    hits, alarms = (stats.rate_of(side >= threshold) for side in sides)

    corners = np.unique(np.searchsorted(result.roc.fpr, np.geomspace(0.5 / people, 1, POINTS), side="right") - 1)
    fpr, tpr = result.roc.fpr[corners], result.roc.tpr[corners]
    (low, high), (_, most) = (
        np.array([clopper_pearson(round(rate * people), people) for rate in rates]).T for rates in (tpr, fpr)
    )
    mechanism = attacked_mechanism(as_printed, 1.0, z0, num_devices)  # bounds do not depend on C
    delta = float(len(target.members) ** -1.1)  # n^-1.1 for n members, as in training
    held = judge(mechanism, epochs, delta, adjacency=Adjacency.REPLACE_ONE)
    epsilon, mu = (np.inf if number is None else number for number in (held.claimed_epsilon, held.mu))
    claimed, guaranteed = stats.dp_bound(epsilon, delta), stats.gaussian_bound(mu)
    beyond = bool((low > claimed.tpr(most)).any()), bool((low > guaranteed.tpr(most)).any())
    curve = np.array([fpr, tpr, low, high])
    return Shown(result, threshold, hits, alarms, curve, sides, mechanism, held, claimed, guaranteed, beyond)


def view(attack: str, scores: Array) -> Array:
    """Transform scores for a histogram: minus the logarithm of the loss, or ratios limited to +-10."""
    if attack == "loss":
        return -np.log10(np.maximum(-scores, 1e-6))
    return np.clip(scores, -10, 10) if attack == "lira-online" else scores


@panel("05")
def roc(attacks: Attacks, *bounds: Any) -> Panel:
    """Panel on the ROC curves of attacks; `result` is a `Shown`.

    Args:
        bounds: as_printed, z0, num_devices and epochs of a mechanism, to draw its bounds.
    """
    most = len(next(iter(attacks.values())).target.members)
    sizes = [*(n for n in (stats.LEAST_MEMBERS, 100, 200, 500, 1000, 2000) if n < most), most]
    called = [0.05, 0.1, 0.2, 0.5, *map(float, range(1, 10)), *map(float, range(10, 101, 5))]
    controls = {
        "attack": choice("attack", list(attacks)[-1], {ATTACKS[name]: name for name in attacks}),
        "called": number("called members", 10.0, called, unit="top % of all"),
        "people": number("sentences", most, sizes, unit="per side"),
    }
    if bounds:
        as_printed, z0, num_devices, epochs = bounds
        controls |= {
            "as_printed": choice("lines of", as_printed, {"as printed": True, "sound": False}),
            "z0": number("noise multiplier z0", z0, decades(-1, 2)),
            "num_devices": devices(num_devices),
            "epochs": number("epochs T", epochs, range(1, 41), unit="passes", rare=True),
        }
    return Panel(
        "Who was in the training set?",
        "Members found and strangers accused, and the scores of both.",
        partial(show_roc, attacks),
        [draw_roc, draw_scores],
        words.roc,
        lambda result, attack, **_: roc_command(result, attacks[attack]),
        tiles=tell_roc,
        **controls,
    )


def tell_roc(result: Shown) -> tuple[Tile, Tile, str]:
    """Return tiles with both rates at the threshold, and a sentence on whether each epsilon allows the curve."""
    held, says = result.guarantee, "Without noise, nothing limits an attack."
    if held.conditional_epsilon is not None:
        claimed = f"claimed ε = {digits(held.claimed_epsilon)}"
        guaranteed = f"guaranteed ε = {at_most(held.conditional_epsilon)}"
        if result.mechanism.variant is Variant.AS_PRINTED:
            guaranteed += " (if α were public)"
        says = {
            (True, True): f"Neither the {claimed} nor the {guaranteed} allows this curve.",
            (True, False): f"The {claimed} does not allow this curve, but the {guaranteed} does.",
            (False, True): f"The {claimed} allows this curve, but the {guaranteed} does not.",
            (False, False): f"The {claimed} and the {guaranteed} both allow this curve, which proves nothing.",
        }[result.beyond]
    of = f"of {count(result.result.members, 'sentence')}"
    members_found = Tile("members found", percent(result.hits.value), of)
    return members_found, Tile("strangers accused", percent(result.alarms.value), of, "printed"), says


SMALLEST = 3e-4  # smallest rate on a log axis


def draw_roc(result: Shown) -> Figure:
    """Plot the attack's ROC curve on log axes, with its band, the threshold, and the limits by two epsilons."""
    floor = max(SMALLEST, 0.5 / result.result.members)
    fpr, tpr, low, high = np.maximum(result.curve, floor)
    corners = np.repeat(fpr, 2)[1:]  # the band has steps like the curve
    upper, lower = np.repeat(high, 2)[:-1], np.repeat(low, 2)[:-1]
    grid = np.geomspace(SMALLEST, 1, 0 if result.guarantee.conditional_epsilon is None else 80)
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
    "lira-online": "log-likelihood ratio (nats, limited to ±10)",
}
BINS = 44
TAILS = (0.5, 99.5)  # percentiles: scores beyond them are in the outermost bins


def draw_scores(result: Shown) -> Figure:
    """Plot histograms of the scores of members and non-members; a line marks the threshold."""
    attack = result.result.attack
    views, threshold = [view(attack, side) for side in result.sides], np.array([result.threshold])
    least, largest = np.percentile(np.concatenate(views), TAILS)
    edges = np.linspace(least, max(largest, least + 1e-9), BINS + 1)
    mark = float(np.clip(view(attack, threshold)[0], edges[0], edges[-1]))
    right = mark < (edges[0] + edges[-1]) / 2
    side = fig.beside("called members →" if right else "← called strangers", mark, left=not right)
    bars = fig.histograms(edges, views, (("members", NOISE, "/"), ("strangers", PLAIN, "")))
    return figure(
        "Scores of members and strangers",
        *bars,
        fig.vline(mark),
        side,
        **fig.OVERLAID,
        xaxis=fig.axis(SCORES[attack], [edges[0], edges[-1]]),
        yaxis=fig.axis("share of members or strangers (%)", [0, 1.15 * max(float(trace["y"].max()) for trace in bars)]),
    )


def roc_command(result: Shown, attacked: Attacked) -> str:
    """Return commands that train the target, run this attack, and compute the epsilons of the lines, if any."""
    run, held = "runs/target", result.guarantee
    attack = f"{result.result.attack.partition('-')[0]} --run {run}"
    if "shadows" in attacked.about or result.result.attack == "lira-online":
        attack += f" --shadows {attacked.about.get('shadows')}"
    commands = f"{train_command(attacked.target.config, run)}\nedp-lab attack {attack}"
    if held.conditional_epsilon is None:
        return commands
    account = text.account_of(result.mechanism, epochs=held.epochs, delta=held.delta, adjacency="replace_one")
    return f"{commands}\n{account}"


def attacks_table(attacks: Attacks) -> str:
    """Format a plain-text table with one attack per line: shares in percent, with 95 % intervals."""
    rows: list[Sequence[str]] = [("attack", "AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR")]
    for name, attacked in attacks.items():
        result = attacked.result
        tails = (words.tail(result.tpr_at_fpr[fpr]) for fpr in ("0.01", "0.001"))
        rows.append((ATTACKS[name], f"{result.auc:.3f} ({words.interval(result.auc_interval)})", *tails))
    return text.columns(rows)


# ---- Canaries ------------------------------------------------------------------------------------------------------


class Remembered(NamedTuple):
    """Memorisation of canaries by the number of copies in the training set."""

    method: str  # training method of the chosen model
    z0: float  # noise multiplier of all models with noise
    chosen: Memorisation  # memorisation of canaries with the chosen number of copies
    rows: Mapping[str, Sequence[Memorisation]]  # the same by method, for all numbers of copies


def show_canaries(grid: CanaryGrid, method: str, z0: float, repetitions: int) -> Remembered:
    """Select one of the measured models."""
    noised = sorted({key[1] for key in grid if key[1] is not None})
    require(method in METHODS, f"method {method!r} was not measured: choose {', '.join(METHODS)}")
    known = ", ".join(f"{value:g}" for value in noised)
    require(z0 in noised, f"z0 = {z0:g} was not measured: choose {known}, or run `edp-lab attack canaries --z0 {z0:g}`")
    rows = {name: grid[name, None if name == "sgd" else z0] for name in METHODS}
    counts = {row.repetitions: row for row in rows[method]}
    require(repetitions in counts, f"{repetitions} repetitions were not measured: choose {', '.join(map(str, counts))}")
    return Remembered(method, z0, counts[repetitions], rows)


@panel("05")
def canaries(grid: CanaryGrid, method: str, z0: float, repetitions: int) -> Panel:
    """Panel on how well models remember canaries; `result` is a `Remembered`."""
    return Panel(
        "What does the model remember?",
        "The rank of a hidden number among ten thousand numbers.",
        partial(show_canaries, grid),
        [(draw_exposure, "1 1 auto")],
        lambda result: words.canaries(result, METHODS[result.method], CANARIES),
        lambda result, **_: canaries_command(result),
        tiles=tell_canaries,
        joint=("method", "z0", "repetitions"),
        method=choice("method", method, {label: name for name, label in METHODS.items()}),
        z0=number("noise multiplier z0", z0, Z0S, unit="measured"),
        repetitions=number("copies of a canary", repetitions, REPETITIONS, unit="times"),
    )


def tell_canaries(result: Remembered) -> tuple[Tile, Tile, str]:
    """Return tiles with exposure and extracted numbers, and a sentence with the typical rank."""
    row = result.chosen
    seen = {0: "never occurs", 1: "occurs once"}.get(row.repetitions, f"occurs {row.repetitions} times")
    rank, fillings = short(2 ** (row.cap - row.exposure)), short(2**row.cap)
    says = f"A number that {seen} typically has rank {rank} of {fillings} by loss."
    interval = "95 % interval {:.1f} to {:.1f}; nothing remembered: 1.4".format(*row.interval)
    exposure = Tile("exposure", f"{row.exposure:.1f} bits", interval)
    back = Tile("extracted", f"{row.extracted} of {len(row.exposures)}", "numbers with rank 1", "printed")
    return exposure, back, says


def draw_exposure(result: Remembered) -> Figure:
    """Plot mean exposure against the number of copies, by method; a ring marks the chosen model."""
    looks = ((PLAIN, "dot", "x"), (PRINTED, "dash", "square"), (HOLDS, "solid", "circle"))
    traces = []
    for (method, rows), (color, dash, symbol) in zip(result.rows.items(), looks, strict=True):
        exposures = [row.exposure for row in rows]
        reach = fig.error_bars(exposures, [row.interval for row in rows], width=4, color=color, thickness=1.2)
        on: Trace = {"x": [str(row.repetitions) for row in rows], "y": exposures, "error_y": reach}
        traces.append(line(METHODS[method], color, dash, symbol=symbol, size=9, **on))
    forgotten, cap = math.log2(math.e), result.chosen.cap
    return figure(
        "Exposure by number of copies",
        *traces,
        fig.ring(18, x=[str(result.chosen.repetitions)], y=[result.chosen.exposure], hoverinfo="skip"),
        fig.hline(forgotten, line=DOTTED),
        fig.hline(cap),
        fig.over("nothing remembered", forgotten, yanchor="top"),
        fig.over("extracted", cap, x=0, xanchor="left"),
        hover="%{x} times: %{y:.1f} bits",
        xaxis=fig.axis("copies in the training set", type="category"),
        yaxis=fig.axis("exposure (bits)", [-0.3, 15]),
    )


def canaries_command(result: Remembered) -> str:
    """Return the `edp-lab attack canaries` command that measures this model."""
    asked, counts = CANARIES, ",".join(str(row.repetitions) for row in result.rows[result.method])
    options = {"corpus": asked.corpus, "methods": result.method, "repetitions": counts, "epochs": asked.epochs}
    return text.command("attack canaries", {**options, "size": asked.size, "z0": result.z0, "seed": asked.seed})


# ---- Drawn once ----------------------------------------------------------------------------------------------------


def sharp_and_blunt(people: int, seed: int) -> dict[str, tuple[Array, Array]]:
    """Draw synthetic scores of equal numbers of members and non-members, by attack.

    The blunt attack scores every member 0.36 standard deviations higher. The sharp attack is certain about one member
    in twenty and guesses about the others.
    """
    rng = np.random.default_rng([seed, 7])
    known = np.where(np.arange(people) < round(people / 20), 10.0, 0.0)
    return {
        "blunt": (rng.normal(0.36, 1, people), rng.normal(0, 1, people)),
        "sharp": (rng.normal(0, 1, people) + known, rng.normal(0, 1, people)),
    }


LEFT = ["bottom left"] * 4 + ["bottom right"]  # label positions of five marks, without overlap
RUNS = (("as printed", True, PRINTED, "square", LEFT), ("sound", False, HOLDS, "circle", ["top right"] * 5))


def defence_figure(runs: Sequence[Mapping[str, Any]]) -> fig.Still:
    """Plot LiRA's AUC against SER for runs with noise, labelled with the guaranteed epsilon if alpha is public."""
    plain, *noised = runs
    traces: list[Trace] = []
    for name, as_printed, color, symbol, side in RUNS:
        kind = [run for run in noised if run["config"].as_printed == as_printed]
        outcomes = [run["found"]["lira-online"] for run in kind]
        areas = [outcome["auc"] for outcome in outcomes]
        reach = fig.error_bars(areas, [outcome["auc_interval"] for outcome in outcomes], width=4, color=color)
        epsilons = [at_most(run["epsilon_if_alpha_public"]) for run in kind]
        label: Trace = {"mode": "markers+text", "text": epsilons, "textposition": side}
        on: Trace = {"x": [run["ser"] for run in kind], "y": areas, "error_y": reach, **label}
        traces.append(points(name, color, symbol, 10, hover="ε = %{text}: SER %{x:.2f}, AUC %{y:.3g}", **on))
    level = plain["found"]["lira-online"]["auc"]
    caption = (
        f"{plain['config'].corpus}, {plain['config'].epochs} epochs; bars: 95 % intervals; ε: one sentence replaced, "
        f"δ = {short(plain['delta'])},\npublic α. The seed is published, so every ε is void."
    )
    return fig.still(
        "Error, attack and ε",
        *traces,
        fig.hline(level),
        fig.over("no noise", level),
        fig.hline(0.5, line=DOTTED),
        fig.over("guessing", 0.5, x=0, xanchor="left"),
        caption=caption,
        height=460,
        xaxis=fig.axis("error rate on other sentences (SER)", [-0.3, 1.25]),
        yaxis=fig.axis("AUC of LiRA", [0.45, 1]),
    )
