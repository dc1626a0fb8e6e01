"""What ``07_membership_inference.ipynb`` computes: attacks on a model, seen as curves, and canaries. No widgets.

    attacks = {"loss": attack_loss("runs/target"), ...}                    # of `edp_lab.attacks`
    shown = show_roc(attacks, "loss", called=10, people=2025, as_printed=True, z0=4.0, num_devices=8, epochs=8)
    remembered = show_canaries(measured().canaries, "sgd", z0=0.01, repetitions=4)

Attacks, training, intervals and bounds are the library's. What takes longer than a reader would wait was measured once,
by ``data/results/course.py``. Values that make no sense, and what was not measured, are refused by `UsageError`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edp_lab.attacks import statistics as stats
from edp_lab.attacks.canaries import Memorisation
from edp_lab.attacks.lira import ShadowSignals, aligned, lira_scores
from edp_lab.attacks.loss import Signals, signals
from edp_lab.attacks.statistics import AttackResult, Bound, Guards, Rate, check_split, clopper_pearson, summarise
from edp_lab.attacks.target import Attacked
from edp_lab.course.kit.controls import Array, attacked_mechanism, check_whole, require
from edp_lab.privacy import Adjacency, Guarantee, Mechanism, judge
from edp_lab.reproduce.results_io import RESULTS, read_kept
from edp_lab.training import TrainConfig

POINTS = 90  # of a curve

KEPT = RESULTS / "course_membership.json"
PARTS = ("shadows", "defended", "canaries")
EPOCHS = 8  # enough for a small model to learn its training set by heart
Z0S = (0.001, 0.003, 0.01, 0.03, 0.1)
REPETITIONS = (0, 1, 2, 4, 8, 16)
CANARIES = TrainConfig("smart-home", size="small", epochs=EPOCHS)
METHODS = {"sgd": "SGD", "edp-sgd-as-printed": "as printed", "edp-sgd": "sound"}  # how models were trained


def target_config(corpus: str, seed: int, epochs: int = EPOCHS) -> TrainConfig:
    """A small model that overfits: no noise, no dropout."""
    return TrainConfig(corpus, method="sgd", size="small", epochs=epochs, dropout=0.0, seed=seed)


def guard(loss: Attacked, copies: int = 100) -> dict[str, Guards]:
    """Guards' findings on a target's split, and on two splits that would make every attack worthless; two seconds."""
    target = loss.target
    members, non_members = target.members, target.non_members
    ordered = tuple(sorted(target.pool, key=lambda utterance: utterance.intent))
    return {
        "random, as here": Guards(**loss.result.guards),
        "a sorted file, cut in the middle": check_split(ordered[: len(members)], ordered[len(members) :]),
        f"{copies} texts on both sides": check_split(members, (*members[:copies], *non_members[copies:])),
    }


# ---- A curve, a threshold, and what epsilon allows -----------------------------------------------------------------


Attacks = Mapping[str, Attacked]  # by name


class Shown(NamedTuple):
    """An attack on some members and as many non-members, one threshold, and the bounds of a mechanism."""

    result: AttackResult
    threshold: float  # reached by as many of all as were `called` members
    hits: Rate  # TPR there, with its Clopper-Pearson interval
    alarms: Rate  # FPR there
    curve: Array  # (4, P) FPR, TPR, and both ends of the TPR's interval, pointwise; thinned out for a log axis
    sides: list[Array]  # scores of members, and of non-members
    mechanism: Mechanism
    guarantee: Guarantee  # of a run against replacing one utterance; void, as its seed is published
    claimed: Bound  # what the claimed epsilon lets any attack reach
    guaranteed: Bound  # what the guaranteed mu does
    beyond: tuple[bool, bool]  # whether somewhere the TPR exceeds either bound, intervals of both rates granted


def show_roc(
    attacks: Attacks,
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
    """
    require(attack in attacks, f"no attack {attack!r} was made: choose {' or '.join(attacks)}")
    target = attacks[attack].target
    check_whole("number of members", people, stats.LEAST_MEMBERS, len(target.members))
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
    mechanism = attacked_mechanism(as_printed, 1.0, z0, num_devices)  # C does not matter to a bound
    delta = float(len(target.members) ** -1.1)  # n^-1.1 for n members, as for a run on them
    held = judge(mechanism, epochs, delta, adjacency=Adjacency.REPLACE_ONE)
    epsilon, mu = (np.inf if number is None else number for number in (held.epsilon_claimed, held.mu))
    claimed, guaranteed = stats.dp_bound(epsilon, delta), stats.gaussian_bound(mu)
    beyond = bool((low > claimed.tpr(most)).any()), bool((low > guaranteed.tpr(most)).any())
    curve = np.array([fpr, tpr, low, high])
    return Shown(result, threshold, hits, alarms, curve, sides, mechanism, held, claimed, guaranteed, beyond)


def view(attack: str, scores: Array) -> Array:
    """Scores as a histogram shows them, in the same order: minus the logarithm of the loss, a ratio cut to +-10."""
    if attack == "loss":
        return -np.log10(np.maximum(-scores, 1e-6))
    return np.clip(scores, -10, 10) if attack == "lira-online" else scores


# ---- Canaries ------------------------------------------------------------------------------------------------------

CanaryGrid = Mapping[tuple[str, float | None], Sequence[Memorisation]]  # by method and z0 (None for SGD)


class Remembered(NamedTuple):
    """How well models remember canaries, by the number of copies in the training set."""

    method: str  # of the chosen model
    z0: float  # of all models with noise
    chosen: Memorisation  # how well it remembers canaries with the chosen number of copies
    rows: Mapping[str, Sequence[Memorisation]]  # by method, for all numbers of copies


def show_canaries(grid: CanaryGrid, method: str, z0: float, repetitions: int) -> Remembered:
    """One of the measured models."""
    noised = sorted({key[1] for key in grid if key[1] is not None})
    require(method in METHODS, f"no canaries were hidden from {method!r}: choose {', '.join(METHODS)}")
    known = ", ".join(f"{value:g}" for value in noised)
    require(z0 in noised, f"z0 = {z0:g} was not measured: choose {known}, or run `edp-lab attack canaries --z0 {z0:g}`")
    rows = {name: grid[name, None if name == "sgd" else z0] for name in METHODS}
    counts = {row.repetitions: row for row in rows[method]}
    require(repetitions in counts, f"{repetitions} repetitions were not measured: choose {', '.join(map(str, counts))}")
    return Remembered(method, z0, counts[repetitions], rows)


# ---- LiRA from the moments of shadow models that are not kept ------------------------------------------------------


class Moments(NamedTuple):
    """Sufficient statistics of shadow models for LiRA with one variance for all utterances; n utterances, d logits."""

    models: int  # how many there were
    inside: Array  # (n, d), mean logits of the models with each utterance
    outside: Array  # and without it
    v_in: Array  # (d), their variances over models, the mean over utterances
    v_out: Array

    @classmethod
    def of(cls, shadows: ShadowSignals) -> Moments:
        logits, half = shadows.signals.logits, len(shadows.inside) // 2  # each utterance is in half of the models
        sides = []
        for used in (shadows.inside, ~shadows.inside):
            mean = (logits * used[..., None]).sum(0) / half
            sides.append((mean, (((logits - mean) * used[..., None]) ** 2).sum((0, 1)) / (half - 1) / len(mean)))
        (inside, v_in), (outside, v_out) = sides
        return cls(len(shadows.inside), inside, outside, v_in, v_out)

    def shadows(self) -> ShadowSignals:
        """Four models, two with every utterance and two without, that have these moments; they carry no losses."""
        apart = [sign * np.sqrt(v / 2) for v in (self.v_in, self.v_out) for sign in (-1, 1)]
        means = (self.inside, self.inside, self.outside, self.outside)
        logits = np.stack([mean + shift for mean, shift in zip(means, apart, strict=True)])
        tags = logits[..., 1] if logits.shape[-1] > 1 else None
        known = np.repeat([[True], [True], [False], [False]], logits.shape[1], axis=1)
        return ShadowSignals(Signals(np.full(known.shape, np.nan), logits[..., 0], tags), known)


def kept_lira(loss: Attacked, path: Path = KEPT) -> Attacked | None:
    """LiRA (online) with kept shadow models on the target of a loss attack; None for another corpus, seed or split."""
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
    scores = lira_scores(aligned(signals(target.model, target.pool), shadows), shadows)
    bound = loss.result.bound or {}
    members, non_members = target.sides(scores)
    promised: Any = {"epsilon": bound.get("epsilon"), "delta": bound.get("delta"), "guards": loss.result.guards}
    result = summarise("lira-online", members, non_members, texts=target.sides(target.texts), **promised)
    about = {"run": str(target.folder), "shadows": row["models"], "shadow_size": "small", "shadow_epochs": EPOCHS}
    return replace(loss, result=result, scores=scores, about=about)


# ---- Scores that are made up, and all that is kept -----------------------------------------------------------------


def sharp_and_blunt(people: int, seed: int) -> dict[str, tuple[Array, Array]]:
    """Made-up scores of members and of as many non-members, by attack.

    The blunt attack scores every member 0.36 standard deviations higher; the sharp one knows one member in twenty for
    certain and guesses about the others.
    """
    rng = np.random.default_rng([seed, 7])
    known = np.where(np.arange(people) < round(people / 20), 10.0, 0.0)
    return {
        "blunt": (rng.normal(0.36, 1, people), rng.normal(0, 1, people)),
        "sharp": (rng.normal(0, 1, people) + known, rng.normal(0, 1, people)),
    }


class Measured(NamedTuple):
    """Runs under attack, SGD first, and canaries, a row for each repetition count.

    Of each run: "config" (a `TrainConfig`), "ser" on the validation set, "delta", "epsilon_claimed", "epsilon" (if the
    seed were secret and alpha public; None without noise), and by attack "found": "auc", "tpr" at 1 % FPR, intervals.
    """

    defended: Sequence[Mapping[str, Any]]
    canaries: CanaryGrid


@cache
def _read(path: Path) -> dict[str, Any]:
    return read_kept(path, *PARTS)


def measured(path: Path = KEPT) -> Measured:
    """The runs and canaries of a file that ``data/results/course.py`` wrote."""
    kept = _read(path)
    runs = [run | {"config": TrainConfig(**run["config"])} for run in kept["defended"]]
    rows = {(model["method"], model["z0"]): model["rows"] for model in kept["canaries"]}
    return Measured(
        runs,
        {
            key: tuple(Memorisation(**row | {"interval": tuple(row["interval"])}) for row in own)
            for key, own in rows.items()
        },
    )
