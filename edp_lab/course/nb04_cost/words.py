"""What ``04_what_does_it_cost.ipynb`` says: read-outs beside sliders (HTML), tables in plain text, commands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from html import escape

from edp_lab.course.kit.text import at_most, digits, python
from edp_lab.course.nb04_cost.compute import Account, Loss, RunBill, Sampled, privacy_loss
from edp_lab.course.nb04_cost.table1_cells import Behind
from edp_lab.privacy import Decay, Guarantee, Mechanism, NoGuarantee, Variant, true_epsilon
from edp_lab.reproduce.paper.printed import Z0_RANGE
from edp_lab.reproduce.paper.table1_epsilon import ExplainedEpsilon

DECAYS = {Decay.NONE: "no decay", Decay.LINEAR: "linear decay", Decay.EXPONENTIAL: "exponential decay"}

# ---- Beside the sliders --------------------------------------------------------------------------------------------


def bill_in_words(result: RunBill) -> str:
    """The read-out beside the sliders, as HTML."""
    people = "one utterance" if result.utterances == 1 else f"all {result.utterances} utterances of one person"
    claimed = (
        f"After {_count(result.epochs, 'epoch')} the paper's accounting says <b>ε = {digits(result.claimed[-1])}</b> "
        f"at δ = {digits(result.delta)} (zCDP, z0 at face value, one utterance; C and N do not enter)."
    )
    if math.isnan(result.claimed[-1]):
        claimed = "The paper's accounting gives no number here."
    first, last = result.z_true[0], result.z_true[-1]
    truly = (
        f"Noise over what one utterance can move: {digits(first)} in the first epoch"
        + (f", {digits(last)} in the last" if result.epochs > 1 else "")
        + f", where the setting says {digits(result.z_set[0])}"
        + (f" and {digits(result.z_set[-1])}. " if result.epochs > 1 else ". ")
        + f"Half of the bill is run up in the last {_count(_last_half(result), 'epoch')}."
    )
    scope = f"{result.guarantee.scope}; status: {result.guarantee.status}, because {result.guarantee.reason}"
    return (
        _paragraphs(claimed, _holds_in_words(result.guarantee, people, result.exact[-1]), _loose(result), truly)
        + f"<p>{_target(result)}</p><details><summary>what this ε covers</summary>{escape(scope)}</details>"
    )


def _holds_in_words(guarantee: Guarantee, people: str, exact: float) -> str:
    """The epsilon that holds, or why there is none."""
    account = f"for {people} (Gaussian DP, exact; zero-out neighbours, disjoint batches)"
    if guarantee.epsilon is not None:
        return f"What holds: <b>ε = {at_most(guarantee.epsilon)}</b> {account}, while the noise's seed is secret."
    if guarantee.epsilon_if_alpha_public is not None:
        return (
            "What holds: <b>no guarantee</b>, because α is read off private gradients. With a public α it would be "
            f"<b>ε = {at_most(guarantee.epsilon_if_alpha_public)}</b> {account}."
        )
    paper = "" if math.isnan(exact) else f" (On paper, with a public α: ε = {at_most(exact)} {account}.)"
    return f"What holds: <b>no guarantee</b>, because {guarantee.reason}.{paper}"


def _loose(result: RunBill) -> str:
    if math.isnan(result.zcdp[-1]):
        return ""
    more = 100 * (result.zcdp[-1] / result.exact[-1] - 1) if result.exact[-1] else math.inf
    return (
        f"zCDP with the true noise says {at_most(result.zcdp[-1])}: a bound that holds too, "
        f"{digits(more) if math.isfinite(more) else 'endlessly many'} % above the exact one."
    )


def _last_half(result: RunBill) -> int:
    """How many of the last epochs spend half of what all spend."""
    left, count = 0.5, 0
    for share in result.share[::-1]:
        left, count = left - share, count + 1
        if left <= 1e-9:
            break
    return count


def _target(result: RunBill) -> str:
    """What would meet the target."""
    meant = "" if result.guarantee.epsilon is not None else " (with a public α)"
    if result.z0_needed is None:
        return f"No z0 up to a billion meets ε = {digits(result.target)}."
    epochs = _count(result.epochs_allowed, "epoch") if result.epochs_allowed else "not even one epoch"
    return (
        f"<b>To meet ε = {digits(result.target)}</b>{meant}: z0 = <b>{at_most(result.z0_needed)}</b> for as many "
        f"epochs; at this z0, {epochs}."
    )


def loss_in_words(result: Loss) -> str:
    """The read-out beside the sliders, as HTML."""
    low, high = result.found.interval
    return _paragraphs(
        f"{_count(result.releases, 'epoch')} of μ = {digits(result.mu_each)} each are together <b>μ = "
        f"{digits(result.mu)}</b>: √{result.releases} times, not {result.releases} times as much. The privacy loss is "
        f"normal: mean ±μ²/2 = ±{digits(result.mu**2 / 2)}, standard deviation μ.",
        f"<b>ε = {at_most(result.epsilon)}</b> at δ = {digits(result.delta)} (Gaussian DP, exact; one utterance, "
        f"zero-out, disjoint batches); zCDP says {at_most(result.zcdp)}.",
        f"No attack has more than AUC {result.best_auc:.3f}, or finds more than <b>{_percent(result.best_found)}</b> "
        f"of the members with 1 % false alarms. On {result.draws:,} simulated runs with the utterance and as many "
        f"without, the best attack reached AUC {result.attack_auc:.3f} and found {_percent(result.found.value)} (95 % "
        f"interval {_percent(low)} to {_percent(high)}).",
    )


def sampled_in_words(result: Sampled) -> str:
    """The read-out beside the sliders, as HTML."""
    steps, passes = _count(result.steps, "step"), _count(result.passes, "pass", "passes")
    shuffled, sampled = float(result.shuffled[-1]), float(result.sampled[-1])
    proof = ""
    if result.at_least > sampled:
        proof = (
            f" An attack on its first pass alone shows that <b>no ε below {digits(result.at_least)}</b> can hold for "
            f"shuffled batches: to bill them as a sample ({digits(sampled)}) would be false, not just unproven."
        )
    elif result.at_least:
        proof = f" The attack on its first pass shows that no ε below {digits(result.at_least)} can hold."
    return _paragraphs(
        f"{steps} at noise multiplier {digits(result.noise_multiplier)}, each utterance clipped alone, δ = "
        f"{digits(result.delta)}, one utterance (zero-out). Every utterance in every step: ε = "
        f"{digits(float(result.everyone[-1]))} (Gaussian DP, exact).",
        f"<b>Poisson sampling</b>, each utterance in each step with chance q = {digits(result.rate)}, in secret: "
        f"<b>ε = {digits(sampled)}</b> (Rényi DP, an upper bound).",
        f"<b>Shuffled</b> disjoint batches of the same size, {passes}: <b>ε = {digits(shuffled)}</b> (Gaussian DP, "
        f"each utterance once per pass).{proof}",
    )


def accounts_in_words(accounts: Sequence[Account]) -> str:
    """The read-out of the tight accounts, as HTML."""
    bound, tight = accounts[-2], accounts[-1]
    less = f"{_percent(1 - tight.epsilon / bound.epsilon)} less" if bound.epsilon else "the same"
    return _paragraphs(
        f"Poisson sampling costs ε = {at_most(bound.epsilon)} by Rényi DP ({_duration(bound.seconds)}) and "
        f"<b>{at_most(tight.epsilon)}</b> by privacy loss distributions ({_duration(tight.seconds)}): {less}, for the "
        "same noise. Both are upper bounds (zero-out, or add or remove one utterance); quote the smaller."
    )


def behind_in_words(result: Behind) -> str:
    """The read-out beside the sliders, as HTML."""
    cell, found = result.cell, list(zip(result.taus, result.low, result.high, strict=True))
    fits = [f"{_tau(cell, tau)}z0 {_span(low, high)}" for tau, low, high in found if not math.isnan(low)]
    settings = (
        f"With T = {result.epochs} it fits {len(fits)} of {_count(len(found), 'decay rate')} of the paper's grid: "
        f"{'; '.join(fits)}."
        if fits
        else f"With T = {result.epochs} no z0 from {digits(Z0_RANGE[0])} to {digits(Z0_RANGE[1])} and no τ of the "
        "paper's grid gives it."
    )
    common = " and ".join(map(str, result.table.common_epochs))
    return _paragraphs(
        f"{cell.model} on {cell.corpus}, {DECAYS[cell.decay]}: the paper prints <b>log₁₀ ε = {cell.log10_epsilon}</b> "
        f"at δ = {digits(cell.delta)} (zCDP at face value).",
        settings,
        f"T = {result.epochs} explains {result.reachable} of the 36 cells; T = {common} explain all. That is "
        "consistency, not proof: neither z0 nor T is printed.",
        f"<b>What the cell really is:</b> no guarantee, because α is private. With a public α the setting behind it "
        f"costs <b>log₁₀ ε = {_ceil(cell.true_log10_epsilon)}</b> (Gaussian DP, exact; one utterance, zero-out, "
        f"disjoint batches, N = {result.table.num_gpus})"
        + (", and even that on paper only: float32 swallows its noise." if not cell.survives_float32 else "."),
    )


def _tau(cell: ExplainedEpsilon, tau: float) -> str:
    return "" if cell.decay is Decay.NONE else f"τ = {tau:g} with "


def _span(low: float, high: float) -> str:
    return f"{digits(low)} to {digits(high)}"


# ---- Tables in plain text ------------------------------------------------------------------------------------------


def devices_table(mechanisms: Sequence[Mechanism], epochs: int, delta: float) -> str:
    """Noise, sensitivity and epsilon (of a public alpha), one mechanism a line."""
    rows: list[tuple[str, ...]] = [
        ("N", "noise on the sum", "one utterance moves it by", "noise over that", "ε that holds")
    ]
    for mechanism in mechanisms:
        try:
            holds = at_most(true_epsilon(mechanism, epochs, delta))
        except NoGuarantee:
            holds = "none"
        numbers = mechanism.noise_std(0), mechanism.sensitivity(), mechanism.noise_multiplier(0)
        rows.append((str(mechanism.num_devices), *map(digits, numbers), holds))
    return _table(rows)


def accounts_table(accounts: Sequence[Account], notes: Mapping[str, str]) -> str:
    """What each account says, how long it took, and a note."""
    rows = [("account", "ε", "time", "")]
    rows += [(a.name, at_most(a.epsilon), _duration(a.seconds), notes.get(a.name, "")) for a in accounts]
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


# ---- As commands ---------------------------------------------------------------------------------------------------


def bill_command(result: RunBill) -> str:
    """The call of `edp-lab account` that says the same; with a private alpha also that with a public one."""
    m = result.mechanism
    options: dict[str, object] = {
        "clip": m.clip_norm, "z0": m.z0, "gpus": m.num_devices, "micro-batch-size": m.micro_batch_size,
        "epochs": result.epochs, "delta": result.delta, "utterances-per-person": result.utterances,
        "target-epsilon": result.target,
    }  # fmt: skip
    if m.decay is not Decay.NONE:
        options |= {"decay": m.decay, "tau": m.tau}
    printed = m.variant is Variant.AS_PRINTED
    if printed:
        options["alpha-source"] = m.alpha
    lines = [_account(options, as_printed=printed)]
    if result.guarantee.epsilon is None and result.guarantee.epsilon_if_alpha_public is not None:
        lines.append(_account({**options, "alpha-source": "public"}, as_printed=printed))
    return "\n".join(lines)


def loss_command(result: Loss) -> str:
    """The call of `edp-lab account` that says the same, and the Python that attacks."""
    bill = _account({"z0": 1 / result.mu_each, "epochs": result.releases, "delta": result.delta})
    attack = result.mu_each, result.releases, result.delta, result.draws, result.seed
    return f"{bill}\n{python(privacy_loss, *attack)}"


def sampled_command(result: Sampled, tight: bool = False) -> str:
    """Two calls of `edp-lab account`: Poisson sampling, and disjoint batches."""
    common: dict[str, object] = {
        "z0": result.noise_multiplier, "micro-batch-size": 1, "delta": result.delta
    }  # fmt: skip
    sampled = _account({**common, "sampling-rate": result.rate, "steps": result.steps})
    if tight:
        return f"{sampled} --tight"
    return f"{sampled}\n{_account({**common, 'epochs': result.passes})}"


def behind_command(result: Behind) -> str:
    """The search over all cells, and a setting behind this one: with T epochs, if there is one."""
    cell, setting = result.cell, result.setting
    options: dict[str, object] = {
        "z0": setting.z0, "epochs": setting.epochs, "delta": cell.delta, "gpus": result.table.num_gpus
    }  # fmt: skip
    if setting.tau is not None:
        options |= {"decay": cell.decay, "tau": setting.tau}
    return f"edp-lab table1-epsilon\n{_account({**options, 'alpha-source': 'public'}, as_printed=True)}"


def _account(options: Mapping[str, object], as_printed: bool = False) -> str:
    words = ["edp-lab", "account", *(["--as-printed"] if as_printed else [])]
    for name, value in options.items():
        words += [f"--{name}", f"{value:.12g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


# ---- Small parts ---------------------------------------------------------------------------------------------------


def settings(mechanism: Mechanism) -> str:
    """What a caption says of a run."""
    decay = "no decay" if mechanism.decay is Decay.NONE else f"{mechanism.decay} decay τ = {mechanism.tau:g}"
    return f"{mechanism.variant}, N = {mechanism.num_devices}, z0 = {digits(mechanism.z0)}, {decay}"


def _ceil(log10: float) -> str:
    """One decimal, rounded up: an epsilon must not look smaller than it is."""
    return f"{math.ceil(log10 * 10) / 10:g}"


def _duration(seconds: float) -> str:
    return f"{digits(1000 * seconds)} ms" if seconds < 1 else f"{digits(seconds)} s"


def _percent(share: float) -> str:
    return f"{digits(100 * share)} %"


def _count(number: int, what: str, many: str | None = None) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {many or f'{what}s'}"


def _paragraphs(*texts: str) -> str:
    return "".join(f"<p>{text}</p>" for text in texts if text)
