"""``edp-lab account``: the claimed and guaranteed epsilon of a mechanism."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.terminal import Clip, Gpus, Json, Report, answer, down, given, neighbours_named, number, up
from edp_lab.errors import UsageError
from edp_lab.training.config import COUNT, flag_of

if TYPE_CHECKING:
    from edp_lab.privacy import Guarantee, Mechanism
    from edp_lab.privacy.foreign_claim import Verdict

AlphaMax = Annotated[float, "Maximum layer scale alpha; only with --as-printed."]
AsPrinted = Annotated[bool, "Use Algorithm 1 as printed in the paper instead of the sound mechanism."]
MicroBatchSize = Annotated[int, "Number of utterances per clipped gradient; 1 means per-example DP-SGD."]

CLAIM = {"claimed", "sampler", "n", "batch_size", "noise_multiplier"}  # options that request a check of a claim
OF_A_CLAIM = {*CLAIM, "sampling_rate", "steps", "epochs", "delta", "micro_batch_size", "clip", "as_json"}
OF_A_RUN = {"run", "delta", "adjacency", "utterances_per_person", "as_json"}


def account(
    ctx: typer.Context,
    clip: Clip = 1.0,
    z0: Annotated[
        float, "Noise multiplier in the first epoch: std(noise)/sensitivity, or std(y)/C with --as-printed."
    ] = 1.0,
    decay: Annotated[str, "Decay of the noise over the epochs t: none, linear or exponential."] = "none",
    tau: Annotated[float, "Decay rate tau: noise falls as 1/(1 + tau t) (linear) or e^(-tau t) (exponential)."] = 0.1,
    epochs: Annotated[int, "Number of passes over the corpus.", COUNT] = 1,
    gpus: Gpus = 8,
    delta: Annotated[
        float, "Delta in (epsilon, delta); choose it well below 1/n (default with --run: the run's delta)."
    ] = 1e-5,
    as_printed: AsPrinted = False,
    alpha_max: AlphaMax = 1.0,
    alpha_source: Annotated[
        str | None, "Source of the layer scales alpha: none, public or private (default: none; private as printed)."
    ] = None,
    micro_batch_size: MicroBatchSize = 8,
    sampling_rate: Annotated[
        float | None, "Use Poisson sampling with this rate q instead of disjoint batches; an epoch has ceil(1/q) steps."
    ] = None,
    steps: Annotated[int | None, "Number of steps with Poisson sampling, instead of --epochs.", {"min": 1}] = None,
    adjacency: Annotated[
        str | None, "Neighbouring relation: zero_out (default), replace_one or add_or_remove_one (default if sampling)."
    ] = None,
    utterances_per_person: Annotated[int, "Protect a person who has up to this many utterances.", COUNT] = 1,
    run: Annotated[
        Path | None, "Run folder: use its ledger; --delta, --adjacency and --utterances-per-person still apply."
    ] = None,
    claimed: Annotated[
        float | None, "Check this epsilon, claimed with another library; requires the settings listed above."
    ] = None,
    sampler: Annotated[str | None, "With --claimed: sampling method, shuffle (one pass per epoch) or poisson."] = None,
    n: Annotated[int | None, "With --claimed: number of training examples."] = None,
    batch_size: Annotated[float | None, "With --claimed: number of examples per step (for Poisson, the mean)."] = None,
    noise_multiplier: Annotated[
        float | None, "With --claimed: standard deviation of the noise on the gradient sum, divided by the clip norm."
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute the claimed and guaranteed epsilon of the paper's mechanism or of a run, or check a claim.

    To check a claim, give --claimed, --sampler, --n, --batch-size or --sampling-rate, --noise-multiplier, --steps or
    --epochs, --delta and --micro-batch-size (1 for per-example clipping). The exit status of an unproven claim is 1.

    Try: edp-lab account --claimed 1.1 --sampler shuffle --n 60000 --batch-size 256 --epochs 10 --noise-multiplier 1
    --delta 1e-5 --micro-batch-size 1
    """
    import numpy as np

    from edp_lab.privacy import Alpha, accountant_for, judge, releases_by_epoch
    from edp_lab.privacy.guarantee import HOLDS

    neighbours, certified = neighbours_named(adjacency), None
    named = given(ctx)
    if named & CLAIM:
        return _judge_claim(ctx, named, as_json)
    _refuse_contradictions(named, decay)
    if run is not None:
        from edp_lab.training.certificate import check_certificate
        from edp_lab.training.run_files import read_record, run_ledger

        ledger, record, certified = run_ledger(run), read_record(run), check_certificate(run)
        mechanism, releases = ledger.mechanism, ledger.releases_by_epoch()
        published = record["config"].get("private_seed") is not True
        delta = delta if "delta" in named else record["guarantee"]["delta"]
    else:
        if as_printed and sampling_rate is not None:
            raise UsageError("Algorithm 1 as printed uses disjoint batches: drop --sampling-rate or --as-printed")
        if alpha_source is None:
            alpha_source = Alpha.PRIVATE if as_printed else Alpha.NONE
        noise: dict[str, Any] = {"clip_norm": clip, "z0": z0, "decay": decay, "tau": tau, "alpha": alpha_source}
        sizes = {"num_devices": gpus, "micro_batch_size": micro_batch_size}
        mechanism = described(as_printed, alpha_max, sampling_rate, **noise, **sizes)
        if z0 == 0:
            raise UsageError("z0 is 0, so no noise is added and epsilon is infinite: choose a z0 greater than 0")
        releases = releases_by_epoch(mechanism, epochs if steps is None else None, steps)
        published = False
    guarantee = judge(mechanism, releases, delta, published, neighbours, utterances_per_person)
    report = _report(mechanism, releases, guarantee)
    if guarantee.status == HOLDS:  # upper bounds for any membership inference attack
        accountant = accountant_for(mechanism, releases, neighbours, utterances_per_person)
        hundredth, thousandth = accountant.best_tpr(np.array([0.01, 0.001])).tolist()
        rates = {"best_tpr_at_fpr_0.01": hundredth, "best_tpr_at_fpr_0.001": thousandth}
        report["attack"] = {"best_auc": accountant.best_auc(), **rates}
    if certified is not None:
        report["certificate"] = certified
    answer(as_json, report, _to_read(report, mechanism, guarantee))


def _judge_claim(ctx: typer.Context, named: set[str], as_json: bool) -> None:
    from edp_lab.privacy.foreign_claim import check_claim

    if idle := sorted(named - OF_A_CLAIM):
        raise UsageError(f"{flag_of(idle[0])} does not apply to a claim made with another library: drop it")
    settings = {name: ctx.params[name] for name in named - {"as_json"}}
    verdict = check_claim(settings)
    answer(as_json, {**verdict._asdict(), "settings": settings}, _verdict_to_read(verdict))
    if verdict.status != "holds":
        raise typer.Exit(1)


def _refuse_contradictions(named: set[str], decay: str) -> None:
    """Raise UsageError for options that would be silently ignored."""
    idle = sorted(named - OF_A_RUN)
    if "run" in named and idle:
        raise UsageError(f"{flag_of(idle[0])} is read from the run's ledger: drop it, or drop --run")
    if {"steps", "epochs"} <= named:
        raise UsageError("--steps and --epochs set the same quantity: give only one of them")
    if "tau" in named and decay == "none":
        raise UsageError("--tau has no effect without a decay: add --decay linear or --decay exponential")


def described(as_printed: bool, alpha_max: float, sampling_rate: float | None, **settings: Any) -> Mechanism:
    """Build the mechanism that these options describe."""
    from edp_lab.privacy import Mechanism

    if as_printed:
        return Mechanism.as_printed(alpha_max=alpha_max, **settings)
    if alpha_max != 1:
        raise UsageError("--alpha-max has no effect on the sound mechanism: drop it, or add --as-printed")
    return Mechanism.sound(sampling_rate=sampling_rate, **settings)


def _report(mechanism: Mechanism, releases: dict[int, int], guarantee: Guarantee) -> dict[str, Any]:
    from edp_lab.privacy import NoGuarantee, claim
    from edp_lab.privacy.guarantee import HOLDS, VOID

    try:
        sensitivity = mechanism.sensitivity(guarantee.adjacency)
    except NoGuarantee:
        sensitivity = None
    if sensitivity == float("inf"):
        raise UsageError("the clip norm times the maximum alpha is too large for a float: lower one of them")
    names = ("mu", "method", "adjacency", "sampling", "delta", "reason", "epsilon_if_alpha_public", "scope")
    holds = {
        "status": guarantee.status,
        "epsilon": guarantee.conditional_epsilon if guarantee.status == HOLDS else None,
        "epsilon_if_seed_secret": guarantee.conditional_epsilon if guarantee.status in (HOLDS, VOID) else None,
        "epsilon_in_real_numbers": guarantee.conditional_epsilon,
        **{name: getattr(guarantee, name) for name in names},
    }
    noise = [mechanism.noise_std(t) for t in releases]
    return {
        "claimed": asdict(claim(mechanism, releases, guarantee.delta)),
        "guaranteed": holds,
        "epochs": guarantee.epochs,
        "releases": sum(releases.values()),
        "z_t": [mechanism.noise_multiplier_setting(t) for t in releases],
        "noise_multiplier": [std / sensitivity if sensitivity else None for std in noise],
        "sensitivity": sensitivity,
        "noise_std": noise,
    }


# ---- Reports ---------------------------------------------------------------------------------------------------------

ASSUMED = (
    "assumptions: fresh secret noise is added to the sum of clipped gradients, the divisor does not depend on the "
    "batch, arithmetic is exact, and nothing else is released"
)


def name_of(mechanism: Mechanism) -> str:
    """Display name of the mechanism."""
    if mechanism.variant == "as-printed":
        return "Algorithm 1 as printed"
    return "DP-SGD" if mechanism.micro_batch_size == 1 else "sound eDP-SGD"


def _to_read(report: dict[str, Any], m: Mechanism, guarantee: Guarantee) -> Report:
    """Format the claimed and guaranteed epsilon for reading."""
    claimed, z, delta = report["claimed"], report["noise_multiplier"], guarantee.delta
    why = claimed["reason"] if claimed["epsilon"] is None else f"{claimed['method']}; {claimed['reason']}"
    devices = f"{m.num_devices} device(s), " if m.micro_batch_size > 1 or m.variant == "as-printed" else ""
    length = f"{report['releases']} steps" if m.sampling_rate else f"{report['epochs']} epoch(s)"
    title = f"{name_of(m)}: z0 {number(m.z0)}, C {number(m.clip_norm)}, {length}, {devices}delta {up(delta, 3)}"
    facts = [
        ("claimed epsilon", f"{number(claimed['epsilon'])} ({why})"),
        ("guaranteed epsilon", up(report["guaranteed"]["epsilon"])),
    ]
    if guarantee.status != "holds":
        facts.append(("", guarantee.reason))
        if guarantee.conditional_epsilon is not None:
            facts.append(("", f"{up(guarantee.conditional_epsilon)} {guarantee.condition}"))
        elif guarantee.epsilon_if_alpha_public is not None:
            facts.append(("", f"{up(guarantee.epsilon_if_alpha_public)} if alpha were public"))
    if z and z[0] is not None:
        later = "" if z[-1] == z[0] else f" in the first epoch, {number(z[-1])} in the last"
        facts.append(("noise / sensitivity", f"{number(z[0])}{later}; sensitivity {number(report['sensitivity'])}"))
    if "attack" in report:
        auc, tpr = up(report["attack"]["best_auc"], 4), up(report["attack"]["best_tpr_at_fpr_0.01"], 3)
        most = f"AUC at most {auc}, TPR at most {tpr} at 1 % FPR (for these neighbours)"
        facts.append(("any membership attack", most))
    if "certificate" in report:
        facts.append(("certificate", "all numbers in the run's certificate were recomputed and are correct"))
    notes = guarantee.scope.split("; ")
    if delta >= 0.01:  # 1/n for a corpus of 100 utterances
        notes.insert(0, f"delta is large: publishing all data with probability {number(delta, 3)} would satisfy it")
    return Report(title, facts, notes)


def _verdict_to_read(verdict: Verdict) -> Report:
    guaranteed = f"none: {verdict.method}"
    if verdict.guaranteed is not None:
        guaranteed = f"{up(verdict.guaranteed)} ({verdict.method}; neighbours: {verdict.neighbours})"
    facts = [("claimed epsilon", f"{number(verdict.claimed)}: {verdict.status}"), ("guaranteed epsilon", guaranteed)]
    if verdict.measured:
        facts.append(("measured epsilon", f"at least {down(verdict.measured)}, independent of the accountant"))
    return Report(facts=facts, notes=[ASSUMED])
