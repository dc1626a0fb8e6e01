"""What commands print for people: a title, names beside values, and notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edp_lab.cli.output import Report, down, number, up

if TYPE_CHECKING:
    from edp_lab.attacks.canaries import Memorisation
    from edp_lab.attacks.one_run import OneRunAudit
    from edp_lab.attacks.step_audit import MechanismAudit
    from edp_lab.privacy import Mechanism
    from edp_lab.privacy.foreign_claim import Verdict
    from edp_lab.training.recipe import Plan

Facts = list[tuple[str, str]]  # names and values; a line without a name goes on with what is above it


def _span(ends: Sequence[float]) -> str:
    return f"{ends[0]:.4f} to {ends[1]:.4f}"


def _name(mechanism: Mechanism) -> str:
    if mechanism.variant == "as-printed":
        return "Algorithm 1 as printed"
    return "DP-SGD" if mechanism.micro_batch_size == 1 else "sound eDP-SGD"


# ---- Epsilon ---------------------------------------------------------------------------------------------------------


def account(report: Mapping[str, Any], mechanism: Mechanism) -> Report:
    """Report of ``edp-lab account``."""
    m, holds, claimed = mechanism, report["guaranteed"], report["claimed"]
    devices = f"{m.num_devices} device(s), " if m.micro_batch_size > 1 or m.variant == "as-printed" else ""
    length = f"{report['releases']} steps" if m.sampling_rate else f"{report['epochs']} epoch(s)"
    title = f"{_name(m)}: z0 {number(m.z0)}, C {number(m.clip_norm)}, {length}, {devices}delta {up(holds['delta'], 3)}"
    facts = [
        ("claimed epsilon", f"{number(claimed['epsilon'])} ({claimed['method']}; {claimed['reason']})"),
        ("guaranteed epsilon", up(holds["epsilon"])),
        *[("", line) for line in _unless(holds)],
    ]
    facts += [*_noise(report), *_limits(report.get("attack"))]
    if report.get("certificate"):
        facts.append(("certificate", "every number of the run's certificate was recomputed, and is right"))
    notes = holds["scope"].split("; ")
    if holds["delta"] >= 0.01:  # a corpus of a hundred utterances would have it for 1/n
        notes.insert(0, f"delta is large: publishing everything with probability {number(holds['delta'], 3)} meets it")
    return Report(title, facts, notes)


def _unless(holds: Mapping[str, Any]) -> list[str]:
    """Why there is no guarantee, and under which condition there would be one."""
    if holds["status"] == "holds":
        return []
    conditions = {
        "epsilon_if_seed_secret": "with a secret seed (edp-lab train --private-seed)",
        "epsilon_in_real_numbers": "in real numbers",
        "epsilon_if_alpha_public": "if alpha were public",
    }
    first = next((name for name in conditions if holds[name] is not None), None)
    return [holds["reason"], *([f"{up(holds[first])} {conditions[first]}"] if first else [])]


def _noise(report: Mapping[str, Any]) -> Facts:
    z = report["noise_multiplier"]
    if not z or z[0] is None:
        return []
    noise = number(z[0]) if z[-1] == z[0] else f"{number(z[0])} in the first epoch, {number(z[-1])} in the last"
    return [("noise over sensitivity", f"{noise}; sensitivity {number(report['sensitivity'])}")]


def _limits(attack: Mapping[str, float] | None) -> Facts:
    if attack is None:
        return []
    auc, tpr = up(attack["best_auc"], 4), up(attack["best_tpr_at_fpr_0.01"], 3)
    return [("any membership attack", f"AUC at most {auc}, TPR at most {tpr} at 1 % FPR (between these neighbours)")]


ASSUMED = (
    "assumed: fresh secret noise on the sum of clipped gradients, a divisor that does not depend on the batch, real "
    "numbers, nothing else released"
)


def claim(verdict: Verdict) -> Report:
    """Verdict on a claim made with another library."""
    guaranteed = f"none: {verdict.method}"
    if verdict.guaranteed is not None:
        guaranteed = f"{up(verdict.guaranteed)} ({verdict.method}; neighbours: {verdict.neighbours})"
    facts = [
        ("claimed epsilon", f"{number(verdict.claimed)}: {verdict.status}"),
        ("guaranteed epsilon", guaranteed),
    ]
    if verdict.measured:
        facts.append(("measured epsilon", f"at least {down(verdict.measured)}, whatever the accountant"))
    return Report(facts=facts, notes=[ASSUMED])


# ---- Runs ------------------------------------------------------------------------------------------------------------


def plan(made: Plan) -> Report:
    """What ``edp-lab train --epsilon`` is about to do."""
    config = made.config
    time = f"{made.seconds:.0f} s" if made.seconds < 120 else f"{made.seconds / 60:.0f} min"
    title = (
        f"epsilon {number(made.epsilon)} for each of n = {made.protected:,} utterances, at delta {up(made.delta, 3)}"
    )
    facts = [
        ("delta times n", up(made.delta * made.protected, 2)),
        ("training", f"{made.steps} steps, about {time} here; noise multiplier {number(config.z0, 4)}"),
        *(("assumed public", f"the start, trained without privacy on {corpus}") for corpus in made.public),
        *((line.setting, f"{line.value}: {line.why}") for line in made.lines),
    ]
    notes = [f"note: {warning}" for warning in made.warnings]
    if made.delta >= 0.01:
        notes.append(f"note: delta is large: publishing everything with probability {up(made.delta, 3)} meets it")
    return Report(title, facts, notes)


def trained(record: Mapping[str, Any], out: Path) -> Report:
    """The record of a run."""
    final, held, config, splits = (record[name] for name in ("final", "guarantee", "config", "corpus"))
    splits, warnings = splits["splits"], splits["warnings"]
    slots = "no slot annotation" if final["slot_f1"] is None else f"slot F1 {final['slot_f1']:.4f}"
    facts = [
        (
            "split",
            f"{splits['train']} utterances to train, {splits['validation']} to validate, {splits['test']} to test",
        ),
        ("test", f"SER {final['ser']:.4f}, intent accuracy {final['intent_accuracy']:.4f}, {slots}"),
    ]
    if config["method"] == "sgd":
        facts.append(("guaranteed epsilon", "none (plain training)"))
    else:
        facts += _promised(final, held)
        if held["status"] == "holds" and record["status"] == "finished":
            facts.append(("certificate", f"{out}/certificate.html; edp-lab account --run {out} recomputes it"))
    if final["noise_multiplier"] is not None:
        z = f"{number(final['noise_multiplier'], 4)} times the sensitivity of what is released"
        devices = f"; {record['devices']}" if config["method"] == "edp-sgd" else ""
        facts.append(("noise, last epoch", f"{z}{devices}"))
    facts += [("not private", ", ".join(record["not_private"])), ("run", str(out))]
    return Report(facts=facts, notes=[f"note: {warning}" for warning in warnings])


def _promised(final: Mapping[str, Any], held: Mapping[str, Any]) -> Facts:
    from edp_lab.privacy.guarantee import CONDITIONS

    at, reason = f"for an utterance, at delta {up(held['delta'], 3)}", held["reason"]
    facts = []
    if final["claimed_epsilon"] is not None:
        facts.append(("claimed epsilon", f"{number(final['claimed_epsilon'], 4)} (the paper's accounting)"))
    if held["status"] == "holds":
        return [*facts, ("guaranteed epsilon", f"{up(final['epsilon'], 4)} {at} ({reason})")]
    facts.append(("guaranteed epsilon", f"none: {held['status']} ({reason})"))
    if final["epsilon"] is not None:
        facts.append(("", f"{up(final['epsilon'], 4)} {CONDITIONS[held['status']]}, {at}"))
    elif final["epsilon_if_alpha_public"] is not None:
        facts.append(("", f"{up(final['epsilon_if_alpha_public'], 4)} if alpha and words were public, {at}"))
    return facts


def corpora(rows: Iterable[Mapping[str, Any]]) -> Report:
    facts = []
    for row in rows:
        size = "" if row["utterances"] is None else f"{row['utterances']:,} utterances; "
        facts += [(row["name"], f"{size}{row['description']}")]
        facts += [("", f"{row['licence']}; {row['where'] or 'not here: edp-lab data fetch ' + row['name']}")]
    return Report(facts=facts)


def predicted(answers: Iterable[Mapping[str, Any]]) -> Report:
    facts = []
    for answer in answers:
        slots = [f"{slot['slot']} = {slot['value']} ({slot['probability']:.2f})" for slot in answer["slots"]]
        facts += [("", answer["text"]), ("intent", f"{answer['intent']} ({answer['intent_probability']:.2f})")]
        facts += [("slots", ", ".join(slots) or "none")]
    return Report(facts=facts)


def evaluated(scores: Mapping[str, float | None]) -> Report:
    return Report(facts=[(name, number(score, 4, "-")) for name, score in scores.items()])


# ---- Attacks and audits ----------------------------------------------------------------------------------------------


def membership(result: Mapping[str, Any], title: str) -> Report:
    """A membership attack, as its JSON has it."""
    sure, bound = f"{100 * result['confidence']:g} %", result["bound"]
    facts = [("AUC", f"{result['auc']:.4f} ({sure}: {_span(result['auc_interval'])}); 0.5 is guessing")]
    for rate, at in result["tpr_at_fpr"].items():
        if at["value"] is None:
            text = f"no number: {at['why']}"
        else:
            guess = at["guessing"]
            text = f"{at['value']:.4f} ({sure}: {_span(at['interval'])})"
            text += f"; guessing there {guess['value']:.4f} ({_span(guess['interval'])})"
        facts.append((f"TPR at {100 * float(rate):g} %", text))
    facts += [("advantage", f"{result['advantage']:.4f}"), ("guarantee", result["bound_said"])]
    if bound is not None:
        rates = [f"TPR at most {most:.4f} at {100 * float(rate):g} % FPR" for rate, most in bound["tpr_at_fpr"].items()]
        facts.append(("", ", ".join([*rates, f"advantage at most {bound['advantage']:.4f}"])))
    facts += [("guards", result["guards"]["said"]), ("verdict", result["verdict"])]
    return Report(f"{title}: {result['members']} members, {result['non_members']} non-members", facts)


def canaries(rows: Sequence[Memorisation], fillings: int) -> Report:
    """What canaries show, below their table."""
    scores = {row.method: f"{row.method} {row.test_ser:.3f}" for row in rows}
    facts = [
        ("exposure", f"mean bits; about 1.44 without memorisation, at most {rows[0].cap:.2f} (rank 1 of {fillings:,})"),
        ("extracted", "canaries with rank 1; 0 copies: the control, never inserted"),
        ("test SER", ", ".join(scores.values())),
    ]
    if held := [row for row in rows if row.epsilon is not None]:
        facts.append(("epsilon", f"of all copies together, at delta {held[0].delta:.2g}, if the seed were secret"))
    for row in {row.method: row for row in rows if row.repetitions and row.epsilon is None}.values():
        claimed = "" if row.claimed_epsilon is None else f"; claimed epsilon {row.claimed_epsilon:.3g}"
        facts.append((row.method, f"no guarantee: {row.reason}{claimed}"))
    for row in rows:
        if row.extraction_limit is not None and row.extraction_limit < 0.995:
            copies = "1 copy" if row.repetitions == 1 else f"{row.repetitions} copies"
            limit = f"the guarantee allows {100 * row.extraction_limit:.2g} % of canaries to be extracted on average"
            facts.append((f"{row.method}, {copies}", limit))
    return Report(facts=facts)


def _three_epsilons(a: Any, neighbours: str, held: str, what: str, digits: int) -> Facts:
    how = "the sound epsilon itself" if a.mechanism.variant == "sound" else "zCDP, z at face value"
    free = f"{number(a.bounds.distribution_free, digits)} without assuming Gaussian noise"
    return [
        (
            "noise over sensitivity",
            f"{number(a.noise_multiplier)}; neighbours: {neighbours}, delta {number(a.delta, 3)}",
        ),
        ("claimed epsilon", f"{number(a.claimed_epsilon)} ({how})"),
        ("guaranteed epsilon", f"{up(a.guaranteed_epsilon)} ({held})"),
        (
            "measured epsilon",
            f"at least {number(a.measured_epsilon, digits)}"
            f" ({'for any mechanism' if a.bounds.gaussian is None else free});"
            f" so many {what} could show at most {number(a.ceiling, digits)}",
        ),
    ]


def audited_step(a: MechanismAudit) -> Report:
    m, public = a.mechanism, a.epsilon_if_alpha_public
    largest = "" if m.alpha_max == 1 else f" up to {m.alpha_max:g}"
    title = f"{_name(m)}, one step: {m.num_devices} devices, micro-batches of {m.micro_batch_size}, "
    title += f"alpha {m.alpha}{largest}, C {m.clip_norm:g}, z0 {m.z0:g}"
    held = "no guarantee" if public is None else f"no guarantee; {number(public)} if alpha were public"
    facts = _three_epsilons(a, "zero-out", held if a.guaranteed_epsilon is None else "exact", "draws", 6)
    facts.append(("canary", "an utterance with a gradient as large as the clip allows; was it there?"))
    for name, rate in (("false alarms", a.false_positive_rate), ("missed", a.false_negative_rate)):
        facts.append((name, f"{rate.errors:,} of {a.draws:,} (probability at most {rate.upper_limit:.3g})"))
    return Report(title, [*facts, ("verdict", f"{a.verdict}: {a.explanation}")])


def audited_run(a: OneRunAudit, corpus: str | None) -> Report:
    m = a.mechanism
    sampled = m.sampling_rate is not None
    held = "no guarantee" if a.guaranteed_epsilon is None else "upper bound" if sampled else "exact"
    epochs = "one epoch" if a.epochs == 1 else f"{a.epochs} epochs"
    title = f"{_name(m)}, {epochs} of {a.steps // a.epochs} steps, "
    title += "one layer" if corpus is None else f"{a.model} on {corpus}"
    sampling = ", Poisson sampling" if sampled else ""
    size = f"{m.num_devices} devices, micro-batches of {m.micro_batch_size}{sampling}, C {m.clip_norm:g}, z0 {m.z0:.4g}"
    neighbours = "add or remove one utterance" if sampled else "zero-out"
    facts = [("setting", size), *_three_epsilons(a, neighbours, held, "canaries", 4)]
    facts.append(("canaries", f"{a.canaries:,}, {a.included:,} of them in"))
    for tally in a.tallies:
        facts.append(("", f"{tally.correct:,} of {tally.guesses:,} guesses right"))
    facts.append(("from the last model alone", f"at least {a.last_model.distribution_free:.4g}, for any mechanism"))
    return Report(title, [*facts, ("verdict", f"{a.verdict}: {a.explanation}")])
