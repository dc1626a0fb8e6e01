"""What ``07_membership_inference.ipynb`` says in words: read-outs beside sliders (HTML), tables, commands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from edp_lab.attacks.membership.attacks import Attacked
from edp_lab.attacks.membership.guards import Guards
from edp_lab.attacks.statistics import AttackResult, Rate
from edp_lab.course.kit.text import at_most, digits, train_command
from edp_lab.course.nb07_membership.compute import Remembered, Shown
from edp_lab.course.nb07_membership.measured import CANARIES, Defended
from edp_lab.privacy import Variant
from edp_lab.training import TrainConfig

ATTACKS = {"loss": "loss", "shadow": "shadow model", "lira-online": "LiRA"}
METHOD_NAMES = {"sgd": "SGD", "edp-sgd-as-printed": "as printed", "edp-sgd": "sound"}


# ---- Beside the sliders --------------------------------------------------------------------------------------------


def roc_in_words(result: Shown) -> str:
    """The read-out beside the sliders, as HTML."""
    found = result.result
    members = round(result.hits.value * result.people)
    accused = round(result.alarms.value * result.people)
    return paragraphs(
        f"<b>{ATTACKS[result.attack]}</b> on {result.people:,} members and as many non-members. The threshold calls "
        f"{members + accused:,} of them members: {members:,} rightly (TPR {_percent(result.hits)}), "
        f"<b>{accused:,} wrongly</b> (FPR {_percent(result.alarms)}).",
        f"All thresholds together: AUC <b>{found.auc:.3f}</b> ({_interval(found.auc_interval)}). {_tails(found)}.",
        _allowed(result),
    )


def _tails(result: AttackResult) -> str:
    return "; ".join(f"TPR at {100 * float(fpr):g} % FPR: {_rate(told)}" for fpr, told in result.tpr_at_fpr.items())


def _allowed(result: Shown) -> str:
    """What the two bounds are, and whether the attack found more."""
    guarantee = result.guarantee
    if guarantee.epsilon is None and guarantee.epsilon_claimed is None:
        return f"Drawn in: no bound, for there is <b>no guarantee</b> ({guarantee.reason})."
    claimed, true = (digits(float(bound.tpr(0.01)) * 100) for bound in (result.claimed, result.true))
    said, holds = _epsilons(result)
    exceeds = {
        (True, True): "This attack found more than either line allows: no model with such an ε behaves like this one.",
        (True, False): "This attack found more than the claimed ε allows, and no more than the true one.",
    }
    found = exceeds.get(result.beyond, "This attack found no more than that, which is no proof of anything.")
    return (
        f"For comparison, eDP-SGD {bound_settings(result)}: <b>ε = {said} claimed</b> (zCDP), <b>{holds} true</b> "
        f"(Gaussian DP, exact; δ = {guarantee.delta:.2g}, one utterance replaced, disjoint batches, α public, were the "
        f"seed secret). The claimed ε would allow an AUC of {result.claimed.auc:.3f} and {claimed} % of members at 1 % "
        f"FPR; the true one {result.true.auc:.3f} and {true} %. {found} The model under attack was trained without "
        "noise and promises nothing."
    )


def canaries_in_words(result: Remembered) -> str:
    """The read-out beside the sliders, as HTML."""
    row, low, high = result.chosen, *result.chosen.interval
    times = "never" if row.repetitions == 0 else "once" if row.repetitions == 1 else f"{row.repetitions} times"
    noise = "" if result.method == "sgd" else f", z0 = {result.z0:g}"
    each = len(row.exposures)
    return paragraphs(
        f"<b>{METHOD_NAMES[result.method]}</b>{noise}, {each} canaries that were in the training set {times}: mean "
        f"exposure <b>{row.exposure:.1f} bits</b> (95 % interval {low:.1f} to {high:.1f}; nothing remembered: 1.4; at "
        f"most {row.cap:.1f}). <b>{row.extracted} of {each}</b> rank first of {round(2**row.cap, -1):,.0f} numbers: "
        f"extracted. The model's SER on the test set is {row.test_ser:.2f}.",
        _digits_remembered(result),
        _promised(result),
        f"Measured once: {CANARIES.corpus}, small model, {CANARIES.epochs} epochs, seed {CANARIES.seed}.",
    )


def _digits_remembered(result: Remembered) -> str:
    token = max(result.chosen.trace[1:], key=lambda token: token.probability / max(token.elsewhere, 1e-9))
    times = token.probability / max(token.elsewhere, 1e-9)
    return (
        f"Token by token: the label {token.label} on '{token.token}' has probability {digits(token.probability)} in "
        f"this canary, and {digits(token.elsewhere)} after other numbers: {digits(times)} times as likely, the most of "
        "all its tokens."
    )


def _promised(result: Remembered) -> str:
    row = result.chosen
    if row.repetitions == 0:
        return "Never inserted: the control, to which every guarantee would have to make the others alike."
    claimed = "" if row.epsilon_claimed is None else f" The paper's zCDP says ε = {digits(row.epsilon_claimed)}."
    if row.epsilon is None:
        return f"<b>No guarantee</b>: {row.reason}.{claimed}"
    limit = 1.0 if row.extraction_limit is None else row.extraction_limit
    excludes = "excludes nothing" if limit > 0.995 else f"lets {digits(100 * limit)} % be extracted at most"
    copies = "one copy" if row.repetitions == 1 else f"all {row.repetitions} copies together"
    return (
        f"For {copies} <b>ε = {at_most(row.epsilon)}</b> would hold (Gaussian DP, δ = {row.delta:.2g}, zero-out, "
        f"disjoint batches; void, as the seed is published). It {excludes}.{claimed}"
    )


def defended_in_words(run: Defended, plain: Defended | None) -> str:
    """What attacks found on a run with noise, as HTML."""
    noise = f"{'as printed' if run.config.as_printed else 'sound'}, z0 = {run.config.z0:g}"
    name = "SGD" if run.config.method == "sgd" else f"eDP-SGD {noise}"
    before = "" if plain is None else f" (without noise {plain.ser:.2f})"
    found = "; ".join(
        f"{ATTACKS[attack]}: AUC <b>{one.auc:.3f}</b> ({_interval(one.auc_interval)}), {100 * one.tpr:.1f} % of "
        "members at 1 % FPR"
        for attack, one in run.found.items()
    )
    promise = "No guarantee: trained without noise."
    if run.epsilon is not None:
        public = "; void, as α is private and the seed published" if run.config.as_printed else "; void: seed published"
        promise = (
            f"Claimed: ε = {digits(run.epsilon_claimed or float('inf'))} (zCDP). True, were α public and the seed "
            f"secret: ε = <b>{at_most(run.epsilon)}</b> (Gaussian DP, δ = {run.delta:.2g}, one utterance replaced, "
            f"disjoint batches{public}). Such an ε bounds no attack."
        )
    return paragraphs(
        f"{name}, {run.config.epochs} epochs: SER <b>{run.ser:.2f}</b>{before}. {found}.",
        f"{promise} An attack that fails is no guarantee: this one expects models that were trained without noise.",
    )


# ---- Tables --------------------------------------------------------------------------------------------------------


def attacks_table(attacks: Mapping[str, Attacked]) -> str:
    """Attacks side by side in plain text, one a line, under a heading; shares in percent, 95 % intervals."""
    head = ("attack", "AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR")
    rows = [(ATTACKS[name], *_cells(attacked.result)) for name, attacked in attacks.items()]
    return columns([head, *rows])


def _cells(result: AttackResult) -> Sequence[str]:
    rates = [_rate(result.tpr_at_fpr[fpr]) for fpr in ("0.01", "0.001")]
    return [f"{result.auc:.3f} ({_interval(result.auc_interval)})", *rates]


def guards_table(found: Mapping[str, Guards]) -> str:
    """What the guards say of splits, one a line, under a heading."""
    head = ("split", "AUC of words alone", "texts on both sides", "fit for an attack")
    rows = []
    for name, guards in found.items():
        fit = "no" if guards.leaks or guards.duplicates else "yes"
        rows.append((name, f"{guards.text_auc:.3f}", f"{guards.duplicates:,}", fit))
    return columns([head, *rows])


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in plain text, each column as wide as its widest cell."""
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    lines = ("".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


# ---- As commands ---------------------------------------------------------------------------------------------------

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


def canaries_command(result: Remembered) -> str:
    """The call of `edp-lab attack canaries` that measures this model."""
    counts = ",".join(str(row.repetitions) for row in result.rows)
    return (
        f"edp-lab attack canaries --corpus {CANARIES.corpus} --methods {result.method} --repetitions {counts} "
        f"--epochs {CANARIES.epochs} --size {CANARIES.size} --z0 {result.z0!r} --seed {CANARIES.seed}"
    )


def defended_command(config: TrainConfig) -> str:
    """The calls that train such a run and attack it."""
    run = "runs/noised"
    return (
        f"{train_command(config, run)}\nedp-lab attack loss --run {run}\nedp-lab attack lira --run {run} --shadows 32"
    )


# ---- Small parts ---------------------------------------------------------------------------------------------------


def bound_settings(result: Shown) -> str:
    """The mechanism whose bounds are drawn."""
    name = "as printed" if result.mechanism.variant is Variant.AS_PRINTED else "sound"
    epochs = "1 epoch" if result.guarantee.epochs == 1 else f"{result.guarantee.epochs} epochs"
    return f"{name}, N = {result.mechanism.num_devices}, z0 = {result.mechanism.z0:g}, {epochs}"


def bound_names(result: Shown) -> tuple[str, str]:
    """The two lines: what they are, and by which accountant."""
    claimed, true = _epsilons(result)
    return f"claimed: ε = {claimed} (zCDP)", f"true: ε = {true} (Gaussian DP)"


def roc_caption(result: Shown) -> str:
    """Under the title of the curve."""
    return (
        f"{result.people:,} a side; target: SGD, no guarantee, seed {result.seed};<br>"
        f"lines: {bound_settings(result)}, δ = {result.guarantee.delta:.1g}, replace-one"
    )


def _epsilons(result: Shown) -> tuple[str, str]:
    """Claimed and true, as people write them."""
    both = (result.guarantee.epsilon_claimed, result.guarantee.epsilon)
    claimed, true = (math.inf if epsilon is None else epsilon for epsilon in both)
    return digits(claimed), at_most(true)


def canary_caption(result: Remembered) -> str:
    """Settings, and what is promised for one canary with all its copies."""
    row = result.chosen
    noise = "" if result.method == "sgd" else f", z0 = {result.z0:g}"
    told = f"{METHOD_NAMES[result.method]}{noise}, {row.repetitions} copies, seed {CANARIES.seed}"
    claimed = "" if row.epsilon_claimed is None else f"; claimed: ε = {digits(row.epsilon_claimed)} (zCDP)"
    if row.repetitions == 0:
        return f"{told};<br>never inserted: nothing to protect"
    if row.epsilon is None:
        return f"{told};<br>no guarantee{claimed}"
    return f"{told};<br>all copies: ε = {at_most(row.epsilon)} (Gaussian DP, δ = {row.delta:.1g}), void"


def paragraphs(*texts: str) -> str:
    """As HTML."""
    return "".join(f"<p>{text}</p>" for text in texts)


def _interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.3f} to {interval[1]:.3f}"


def _percent(rate: Rate) -> str:
    low, high = rate.interval
    return f"{100 * rate.value:.2g} %, interval {100 * low:.2g} to {100 * high:.2g}"


def _rate(told: Mapping[str, Any]) -> str:
    if told["value"] is None:
        return "too few non-members"
    low, high = told["interval"]
    return f"{100 * told['value']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
