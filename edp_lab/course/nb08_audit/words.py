"""What ``08_audit_it.ipynb`` says in words: read-outs beside sliders (HTML), tables, commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from edp_lab.attacks.audit.bounds import Finding
from edp_lab.attacks.audit.one_run import OneRunAudit
from edp_lab.course.kit.text import at_most, digits
from edp_lab.course.nb07_membership.words import columns, paragraphs
from edp_lab.course.nb08_audit.compute import CONFIDENCE, Guesses, StepAudit
from edp_lab.privacy import Variant
from edp_lab.training import TrainConfig

SURE = f"{100 * CONFIDENCE:g} %"
MEANINGS = {
    Finding.REFUTED: "the proven bound lies above the claim",
    Finding.CONSISTENT: "the proven bound lies below the claim, which proves nothing: another attack might do better",
    Finding.NO_POWER: "even draws without a single error could not have refuted this claim: draw more",
}


# ---- Beside the sliders --------------------------------------------------------------------------------------------


def step_in_words(result: StepAudit) -> str:
    """The read-out beside the sliders, as HTML."""
    mechanism, false = result.mechanism, (result.false_positives, result.false_negatives)
    printed = mechanism.variant is Variant.AS_PRINTED
    name = "As printed" if printed else "Sound"
    source = "the paper's zCDP, z0 taken at face value" if printed else "what holds is claimed"
    alpha = "; α taken to be public" if printed else ""
    errors = " and ".join(
        f"{rate.errors:,} times {what} (probability at most {rate.upper_limit:.3g})"
        for rate, what in zip(false, ("seen where it was not", "missed where it was"), strict=True)
    )
    return paragraphs(
        f"<b>{name}</b>, N = {mechanism.num_devices}: noise over sensitivity is "
        f"<b>{digits(mechanism.noise_multiplier(0))}</b>. Claimed: ε = <b>{digits(result.claimed)}</b> ({source}). "
        f"True: ε = <b>{at_most(result.holds)}</b> (Gaussian DP, exact{alpha}). One step, δ = {result.delta:.2g}, one "
        "utterance zeroed out, disjoint batches; it would hold for secret noise, and this seed is published.",
        f"Of {result.draws:,} draws a side, the canary was {errors}, at {SURE} for both together. So <b>ε is at least "
        f"{digits(result.bounds.gaussian)}</b> if one knows that the noise is Gaussian, and at least "
        f"{digits(result.bounds.distribution_free)} whatever the mechanism. Draws without an error would have shown "
        f"{digits(result.ceiling)}.",
        f"Verdict: <b>{result.verdict}</b>: {MEANINGS[result.verdict]}.",
    )


def guesses_in_words(result: Guesses) -> str:
    """The read-out beside the sliders, as HTML."""
    bounds, best = result.bounds, result.best
    assert bounds.gaussian is not None
    assert best.gaussian is not None
    refuted = result.tested < bounds.distribution_free
    tested = "refuted for any mechanism" if refuted else "not refuted, unless one knows that the noise is Gaussian"
    if not refuted and result.tested >= bounds.gaussian:
        tested = "not refuted"
    return paragraphs(
        f"{result.canaries:,} canaries, each in or out by a coin. On {result.made:,} of them a guess, the surest, "
        f"<b>{result.right:,} are right</b>. At {SURE} and δ = {result.delta:.2g} that proves <b>ε ≥ "
        f"{digits(bounds.distribution_free)}</b> for any mechanism, and ε ≥ <b>{digits(bounds.gaussian)}</b> for a "
        "Gaussian one (the neighbours are those of a canary: here zero-out).",
        f"If ε = {digits(result.tested)} held (δ aside), each guess would be right with chance "
        f"{result.chance:.1%} at most, and {result.right:,} or more of {result.made:,} would be right with chance "
        f"{digits(100 * result.tail)} %. This ε is <b>{tested}</b>.",
        f"Had all {result.made:,} guesses been right: ε ≥ {digits(best.distribution_free)}, or "
        f"{digits(best.gaussian)} for a Gaussian one. No claim above that can be refuted with so few guesses.",
    )


def runs_in_words(audits: Mapping[int, OneRunAudit]) -> str:
    """What a series of audits, one a seed, has found, as HTML."""
    rows = list(audits.values())
    last, refuted = rows[-1], sum(audit.verdict is Finding.REFUTED for audit in rows)
    assert last.epsilon_holds is not None
    source = claim_source(last.mechanism.variant)
    holds = "as it should: a true claim is refuted in 5 % of audits at most" if not refuted else "although it is true"
    said = holds if last.epsilon_claimed >= last.epsilon_holds else f"and what is true is {at_most(last.epsilon_holds)}"
    audited = "1 audit refutes" if refuted == 1 else f"{refuted} audits refute"
    return paragraphs(
        f"Claimed ε = {digits(last.epsilon_claimed)} ({source}, δ = {last.delta:.2g}, zero-out, disjoint batches). Of "
        f"{len(rows)}, <b>{audited}</b> it, {said}.",
        f"The last one, {last.steps} steps with {last.canaries:,} canaries of which {last.included:,} were in: "
        f"{escape(last.explanation)}",
    )


# ---- Tables --------------------------------------------------------------------------------------------------------


def table(results: Mapping[str, StepAudit]) -> str:
    """Audits of steps side by side in plain text, one a line, under a heading."""
    head = ("", "claimed", "true", "proven", "any mechanism", "verdict")
    return columns([head, *((label, *_row(result)) for label, result in results.items())])


def _row(result: StepAudit) -> Sequence[str]:
    numbers = (result.claimed, result.holds, result.bounds.gaussian, result.bounds.distribution_free)
    return [*map(digits, numbers), str(result.verdict)]


# ---- As commands ---------------------------------------------------------------------------------------------------


def step_command(result: StepAudit) -> str:
    """The call of `edp-lab audit mechanism` that draws the same."""
    mechanism = result.mechanism
    printed = mechanism.variant is Variant.AS_PRINTED
    alpha = f" --alpha-max {mechanism.alpha_max:g}" if printed else ""
    return (
        f"edp-lab audit mechanism{' --as-printed' if printed else ''} --gpus {mechanism.num_devices} "
        f"--z0 {mechanism.z0!r} --clip {mechanism.clip_norm!r}{alpha} --delta {result.delta!r} --draws {result.draws} "
        f"--seed {result.seed}"
    )


def guesses_command(result: Guesses) -> str:
    """The call that prints the same bounds."""
    return (
        'python -c "from edp_lab.attacks.audit.bounds import Tally, one_run_bounds; '
        f"print(one_run_bounds({result.canaries}, [Tally({result.made}, {result.right})], delta={result.delta!r}, "
        f'confidence={CONFIDENCE!r}, gaussian=True))"'
    )


def one_run_command(config: TrainConfig, canaries: int) -> str:
    """The call of `edp-lab audit one-run` that makes this very audit."""
    printed = " --as-printed" if config.as_printed else ""
    return (
        f"edp-lab audit one-run --model linear{printed} --z0 {config.z0!r} --gpus {config.num_devices} "
        f"--epochs {config.epochs} --canaries {canaries} --delta {config.delta!r} --seed {config.seed}"
    )


# ---- In captions ---------------------------------------------------------------------------------------------------


def step_settings(result: StepAudit) -> str:
    """What a caption says of the step."""
    mechanism = result.mechanism
    printed = mechanism.variant is Variant.AS_PRINTED
    alpha = f", largest α = {mechanism.alpha_max:g}" if printed else ""
    name = "as printed" if printed else "sound"
    return f"{name}: N = {mechanism.num_devices}, C = {mechanism.clip_norm:g}, z0 = {mechanism.z0:g}{alpha}"


def claim_source(variant: Variant) -> str:
    """Where the claim under test comes from."""
    return "the paper's zCDP" if variant is Variant.AS_PRINTED else "the true one"


def one_run_settings(audit: OneRunAudit) -> str:
    """What a caption says of an audited run."""
    mechanism = audit.mechanism
    name = "as printed" if mechanism.variant is Variant.AS_PRINTED else "sound"
    epochs = "1 epoch" if audit.epochs == 1 else f"{audit.epochs} epochs"
    return f"{name}: N = {mechanism.num_devices}, z0 = {mechanism.z0:g}, {epochs}, m = {audit.canaries:,}"
