"""What ``07_membership_inference.ipynb`` computes: attacks on a model, seen as curves, and canaries. No widgets.

    attacks = {"loss": attack_loss("runs/target"), ...}                    # of `edp_lab.attacks.membership.attacks`
    shown = show_roc(attacks, "loss", called=10, people=2025, as_printed=True, z0=4.0, num_devices=8, epochs=8)
    told = show_canaries(measured().canaries, "sgd", z0=0.01, repetitions=4)

Scores, intervals and bounds come from `edp_lab.attacks`, guarantees from `edp_lab.privacy`. What takes longer than one
would wait for was measured once: `edp_lab.course.nb07_membership.measured`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from edp_lab.attacks.membership.attacks import Attacked, Target
from edp_lab.attacks.memorisation import Memorisation
from edp_lab.attacks.statistics import (
    LEAST_MEMBERS,
    AttackResult,
    Bound,
    Guards,
    Rate,
    check_split,
    clopper_pearson,
    dp_bound,
    gaussian_bound,
    summarise,
)
from edp_lab.course.nb07_membership.measured import METHODS, Defended, Measured, found_by
from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Alpha, Guarantee, Mechanism, judge
from edp_lab.training.run_folder import read_record

Array = NDArray[np.float64]

POINTS = 90  # of a curve
BINS = 44
MICRO_BATCH = 8  # utterances: more than one, so that replace-one and zero-out cost the same
TAILS = (0.5, 99.5)  # percentiles: what lies beyond is in the outermost bins of a histogram
FPRS = (0.01, 0.001)


# ---- Splits that leak ----------------------------------------------------------------------------------------------


def guard(loss: Attacked, copies: int = 100) -> dict[str, Guards]:
    """What the guards say of a target's split, and of two that would make every attack on it worthless; two seconds.

    Raises:
        UsageError: as `edp_lab.attacks.statistics.check_split`.
    """
    target = loss.target
    members, non_members = target.members, target.non_members
    ordered = tuple(sorted(target.pool, key=lambda utterance: utterance.intent))
    return {
        "random, as here": Guards(**loss.result.guards),
        "a sorted file, cut in the middle": check_split(ordered[: len(members)], ordered[len(members) :]),
        f"{copies} texts on both sides": check_split(members, (*members[:copies], *non_members[copies:])),
    }


# ---- A curve, a threshold, and what epsilon allows -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shown:
    """An attack on some members and as many non-members, one threshold, and the bounds of a mechanism.

    Attributes:
        attack: name of it.
        seed: of the target.
        people: members, and as many non-members.
        result: AUC and TPR at low FPR with intervals.
        threshold: scores from it on are called members, `called` percent of all.
        hits, alarms: TPR and FPR there, each with its Clopper-Pearson interval.
        fpr, tpr, low, high: (P), the ROC curve thinned out for a log axis, and the interval of the TPR pointwise.
        edges, shares: (BINS + 1) and by side (BINS), histograms of `view(attack, scores)`; and `mark`, the threshold's
            place among them.
        guarantee: of a run of the mechanism against replacing one utterance; void, as its seed is published.
        claimed, true: what the paper's epsilon, and what the true mu, let any attack reach.
        beyond: for both, whether somewhere on the curve the TPR exceeds the bound, intervals of both rates granted.
    """

    attack: str
    seed: int
    people: int
    called: float
    result: AttackResult
    threshold: float
    hits: Rate
    alarms: Rate
    fpr: Array
    tpr: Array
    low: Array
    high: Array
    edges: Array
    shares: tuple[Array, Array]
    mark: float
    mechanism: Mechanism
    guarantee: Guarantee
    claimed: Bound
    true: Bound
    beyond: tuple[bool, bool]


def show_roc(
    attacks: Mapping[str, Attacked],
    attack: str,
    called: float,
    people: int,
    as_printed: bool,
    z0: float,
    num_devices: int,
    epochs: int,
) -> Shown:
    """One of the attacks on the first `people` members and non-members, beside the bounds of a mechanism.

    Args:
        attacks: by name, all on one target.
        called: percent of all that the threshold calls members.

    Raises:
        UsageError: an attack that was not made, fewer than 50 people or more than there are, a share outside (0, 100];
            as `Mechanism` and `judge`.
    """
    attacked = _chosen(attacks, attack)
    _check_people(people, len(attacked.target.members))
    if not 0 < called <= 100:
        raise UsageError(f"the share called members is {called} %: it must be above 0 and at most 100")
    inside, outside = (side[:people] for side in attacked.target.sides(attacked.scores))
    texts = tuple(side[:people] for side in attacked.target.sides(attacked.target.texts))
    result = summarise(attack, inside, outside, fprs=FPRS, texts=(texts[0], texts[1]))
    threshold = float(np.sort(np.concatenate([inside, outside]))[-max(1, round(2 * people * called / 100))])
    fpr, tpr, low, high = _thinned(result)
    edges, shares = _histograms(attack, inside, outside)
    mechanism = bound_mechanism(as_printed, z0, num_devices)
    guarantee = judge(mechanism, epochs, people_delta(attacked.target), adjacency=Adjacency.REPLACE_ONE)
    claimed, true = _bounds(guarantee)
    return Shown(
        attack,
        attacked.target.config.seed,
        people,
        called,
        result,
        threshold,
        hits=_rate(inside >= threshold),
        alarms=_rate(outside >= threshold),
        fpr=fpr,
        tpr=tpr,
        low=low,
        high=high,
        edges=edges,
        shares=shares,
        mark=float(np.clip(view(attack, np.array([threshold]))[0], edges[0], edges[-1])),
        mechanism=mechanism,
        guarantee=guarantee,
        claimed=claimed,
        true=true,
        beyond=(_exceeds(fpr, low, people, claimed), _exceeds(fpr, low, people, true)),
    )


def people_delta(target: Target) -> float:
    """The delta of the bounds that are drawn: n^-1.1 for n members, as a run of them has it."""
    return float(len(target.members) ** -1.1)


def bound_mechanism(as_printed: bool, z0: float, num_devices: int) -> Mechanism:
    """eDP-SGD with public layer scales (as printed) or without any (sound); C does not matter to a bound."""
    if as_printed:
        return Mechanism.as_printed(1.0, z0, num_devices, MICRO_BATCH, alpha=Alpha.PUBLIC)
    return Mechanism.sound(1.0, z0, num_devices, MICRO_BATCH)


def view(attack: str, scores: Array) -> Array:
    """Scores as a histogram shows them, in the same order: minus the logarithm of the loss, a ratio cut to +-10."""
    if attack == "loss":
        return -np.log10(np.maximum(-scores, 1e-6))
    return np.clip(scores, -10, 10) if attack == "lira-online" else scores


def _bounds(guarantee: Guarantee) -> tuple[Bound, Bound]:
    """By the claimed epsilon and by the true mu; a number that is missing bounds nothing."""
    epsilon = np.inf if guarantee.epsilon_claimed is None else guarantee.epsilon_claimed
    mu = np.inf if guarantee.mu is None else guarantee.mu
    return dp_bound(epsilon, guarantee.delta), gaussian_bound(mu)


def _thinned(result: AttackResult) -> tuple[Array, Array, Array, Array]:
    """Of the curve's corners so many as a log axis shows, and the Clopper-Pearson interval of the TPR at each."""
    curve, least = result.roc, 0.5 / result.non_members
    grid = np.geomspace(least, 1, POINTS)
    kept = np.unique(np.searchsorted(curve.fpr, grid, side="right") - 1)
    fpr, tpr = curve.fpr[kept], curve.tpr[kept]
    band = [clopper_pearson(round(rate * result.members), result.members) for rate in tpr]
    low, high = np.array(band).T
    return fpr, tpr, low, high


def _exceeds(fpr: Array, low: Array, people: int, bound: Bound) -> bool:
    highest = np.array([clopper_pearson(round(rate * people), people)[1] for rate in fpr])
    return bool((low > bound.tpr(highest)).any())


def _rate(called: NDArray[np.bool_]) -> Rate:
    hits = int(called.sum())
    return Rate(hits / len(called), clopper_pearson(hits, len(called)))


def _histograms(attack: str, inside: Array, outside: Array) -> tuple[Array, tuple[Array, Array]]:
    sides = [view(attack, side) for side in (inside, outside)]
    low, high = np.percentile(np.concatenate(sides), TAILS)
    edges = np.linspace(low, max(high, low + 1e-9), BINS + 1)
    members, non_members = (np.histogram(np.clip(side, low, high), edges)[0] / len(side) for side in sides)
    return edges, (members, non_members)


def _chosen(attacks: Mapping[str, Attacked], attack: str) -> Attacked:
    if attack not in attacks:
        raise UsageError(f"no attack {attack!r} was made: choose {' or '.join(attacks)}")
    return attacks[attack]


def _check_people(people: int, most: int) -> None:
    if not isinstance(people, Integral) or not LEAST_MEMBERS <= people <= most:
        raise UsageError(
            f"the number of members is {people}: it must be a whole number from {LEAST_MEMBERS} to {most:,}"
        )


# ---- Canaries ------------------------------------------------------------------------------------------------------

CanaryGrid = Mapping[tuple[str, float | None], Sequence[Memorisation]]


@dataclass(frozen=True, eq=False)
class Remembered:
    """What models have stored of canaries, by how often these were in the training set.

    Attributes:
        method: of the model looked at.
        z0: of the models with noise.
        rows: of that model, by repetitions.
        chosen: that of the number of repetitions looked at.
        others: by method, the rows of models at the same z0, SGD among them.
    """

    method: str
    z0: float
    rows: tuple[Memorisation, ...]
    chosen: Memorisation
    others: Mapping[str, tuple[Memorisation, ...]]


def show_canaries(grid: CanaryGrid, method: str, z0: float, repetitions: int) -> Remembered:
    """One of the measured models.

    Raises:
        UsageError: a method, z0 or number of repetitions that was not measured.
    """
    noised = sorted({key[1] for key in grid if key[1] is not None})
    if method not in METHODS:
        raise UsageError(f"no canaries were hidden from {method!r}: choose {', '.join(METHODS)}")
    if z0 not in noised:
        known = ", ".join(f"{value:g}" for value in noised)
        raise UsageError(f"z0 = {z0:g} was not measured: choose {known}, or run `edp-lab attack canaries --z0 {z0:g}`")
    others = {name: tuple(grid[name, None if name == "sgd" else z0]) for name in METHODS}
    counts = [row.repetitions for row in others[method]]
    if repetitions not in counts:
        raise UsageError(f"{repetitions} repetitions were not measured: choose {', '.join(map(str, counts))}")
    rows = others[method]
    return Remembered(method, z0, rows, rows[counts.index(repetitions)], others)


# ---- Runs with noise -----------------------------------------------------------------------------------------------


def defended(attacks: Mapping[str, Attacked], kept: Measured) -> list[Defended]:
    """The target under these attacks, then the measured runs with noise of the same corpus and seed."""
    target = next(iter(attacks.values())).target
    ser = read_record(target.folder)["epochs"][-1]["ser"]
    found = {name: found_by(attacked) for name, attacked in attacks.items()}
    plain = Defended(target.config, ser, people_delta(target), None, None, found)

    def alike(run: Defended) -> bool:
        same = (run.config.corpus, run.config.seed) == (target.config.corpus, target.config.seed)
        return same and run.config.method != "sgd"

    return [plain, *filter(alike, kept.defended)]


# ---- Two attacks to compare ----------------------------------------------------------------------------------------


def sharp_and_blunt(people: int, seed: int, found: float = 0.05, shift: float = 0.36) -> dict[str, tuple[Array, Array]]:
    """Scores of two attacks that never were: one a little right about all, one wholly right about a few.

    Args:
        people: members, and as many non-members.
        found: share of members that the sharp attack knows for certain; it guesses the others.
        shift: how far the blunt attack's scores of members lie above those of non-members, in standard deviations.

    Returns:
        By attack, scores of members and of non-members.
    """
    rng = np.random.default_rng([seed, 7])
    known = np.where(np.arange(people) < round(found * people), 10.0, 0.0)
    return {
        "blunt": (rng.normal(shift, 1, people), rng.normal(0, 1, people)),
        "sharp": (rng.normal(0, 1, people) + known, rng.normal(0, 1, people)),
    }
