"""``edp-lab account``: what a mechanism claims and what it guarantees; ``table1-epsilon``: the same of the paper's."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.options import AlphaMax, AsPrinted, Clip, Gpus, Json, MicroBatchSize, given
from edp_lab.cli.output import number, print_json, screen
from edp_lab.errors import UsageError

if TYPE_CHECKING:
    from edp_lab.privacy import Accountant, Guarantee, Mechanism
    from edp_lab.privacy.calibration import Budget
    from edp_lab.reproduce.paper.table1_epsilon import ExplainedEpsilon, Table1Epsilon

ALL_BUT_CERTAIN = 0.9999  # an AUC that limits nobody
LARGE_DELTA = 0.01  # a corpus of a hundred utterances would have it for 1/n
OF_A_RUN = {"run", "delta", "adjacency", "utterances_per_person", "target_epsilon", "as_json", "tight"}


def account(
    ctx: typer.Context,
    clip: Clip = 1.0,
    z0: Annotated[
        float, "Noise multiplier of the first epoch (t = 0). Sound: noise over sensitivity; as printed: std(y)/C."
    ] = 1.0,
    decay: Annotated[str, "Of the noise by epoch: none, linear or exponential."] = "none",
    tau: Annotated[float, "Decay rate: linear 1/(1 + tau t), exponential e^(-tau t)."] = 0.1,
    epochs: Annotated[int, "Passes over the corpus."] = 1,
    gpus: Gpus = 8,
    delta: Annotated[
        float, "Delta of (epsilon, delta): a slack that should be well below 1/n (with --run: the run's own)."
    ] = 1e-5,
    as_printed: AsPrinted = False,
    alpha_max: AlphaMax = 1.0,
    alpha_source: Annotated[
        str | None, "Layer scales from: none, public or private (default: none; private if --as-printed)."
    ] = None,
    micro_batch_size: MicroBatchSize = 8,
    sampling_rate: Annotated[
        float | None,
        "Poisson sampling at this rate q instead of disjoint batches; an epoch is ceil(1/q) steps.",
    ] = None,
    steps: Annotated[int | None, "Poisson steps, instead of --epochs."] = None,
    adjacency: Annotated[
        str | None,
        "zero_out, replace_one or add_or_remove_one (default: zero_out; add_or_remove_one if sampling).",
    ] = None,
    utterances_per_person: Annotated[int, "Protect anyone with up to so many utterances."] = 1,
    target_epsilon: Annotated[float | None, "Also find the z0, the epochs and the tau that meet this epsilon."] = None,
    tight: Annotated[bool, "Poisson sampling by privacy loss distributions: seconds, less epsilon."] = False,
    run: Annotated[
        Path | None, "Judge a run's ledger instead of settings given here; see also --delta, --adjacency."
    ] = None,
    as_json: Json = False,
) -> None:
    """Epsilon that the paper's accounting claims, and epsilon that holds."""
    from edp_lab.privacy import Adjacency, Alpha, Mechanism, accountant_for, judge
    from edp_lab.privacy.calibration import Budget

    neighbours = None
    if adjacency is not None:
        known = {name.lower(): one for name, one in Adjacency.__members__.items()}
        if adjacency.lower() not in known:
            raise UsageError(f"unknown adjacency {adjacency!r}: choose {', '.join(known)}")
        neighbours = known[adjacency.lower()]
    _refuse_contradictions(given(ctx), decay, sampling_rate)
    if run is not None:
        from edp_lab.training import read_record, run_ledger

        ledger, record = run_ledger(run), read_record(run)
        mechanism, bill = ledger.mechanism, ledger.bill()
        published = not record["config"].get("private_seed", False)
        delta = delta if "delta" in given(ctx) else record["guarantee"]["delta"]
    else:
        if alpha_source is None:
            alpha_source = Alpha.PRIVATE if as_printed else Alpha.NONE
        if as_printed:
            if sampling_rate is not None:
                raise UsageError("Algorithm 1 as printed has disjoint batches: drop --sampling-rate or --as-printed")
            mechanism = Mechanism.as_printed(clip, z0, gpus, micro_batch_size, decay, tau, alpha_source, alpha_max)
        else:
            if alpha_max != 1:
                raise UsageError("--alpha-max matters only as printed (sound noise comes before scaling back): drop it")
            mechanism = Mechanism.sound(clip, z0, gpus, micro_batch_size, decay, tau, alpha_source, sampling_rate)
        if z0 == 0:
            raise UsageError("z0 is 0: no noise is added and epsilon is infinite; choose z0 greater than 0")
        bill = mechanism.bill(epochs) if steps is None else mechanism.bill(steps=steps)
        published = False
    guarantee = judge(mechanism, bill, delta, published, neighbours, utterances_per_person, tight)
    report = _report(mechanism, bill, guarantee)
    if guarantee.status == "holds":
        report["attack"] = _attack(accountant_for(mechanism, bill, neighbours, utterances_per_person, tight))
    if target_epsilon is not None:
        budget = Budget(target_epsilon, delta, neighbours, utterances_per_person)
        report["calibration"] = _calibration(mechanism, bill, budget, tight)
    if as_json:
        print_json(report, allow_nan=False)
    else:
        _print(report, mechanism, tight)


def _refuse_contradictions(named: set[str], decay: str, sampling_rate: float | None) -> None:
    """Options that would silently count for nothing."""
    idle = sorted(named - OF_A_RUN)
    if "run" in named and idle:
        raise UsageError(f"--{idle[0].replace('_', '-')} is read from the run's ledger: drop it, or drop --run")
    if {"steps", "epochs"} <= named:
        raise UsageError("--steps and --epochs say the same in two ways: give one of them")
    if "tau" in named and decay == "none":
        raise UsageError("--tau counts only with a decay: add --decay linear or --decay exponential")
    if "tight" in named and sampling_rate is None:
        raise UsageError("--tight counts only with --sampling-rate, as disjoint batches are accounted exactly: drop it")


def _report(mechanism: Mechanism, bill: dict[int, int], guarantee: Guarantee) -> dict[str, Any]:
    from edp_lab.privacy import NoGuarantee, claim

    try:
        sensitivity = mechanism.sensitivity(guarantee.adjacency)
    except NoGuarantee:
        sensitivity = None
    if sensitivity == float("inf"):
        raise UsageError("the clip norm times the largest alpha exceeds the largest float: lower one of them")
    holds = {
        "status": guarantee.status,
        "epsilon": guarantee.epsilon if guarantee.status == "holds" else None,
        "epsilon_if_seed_secret": guarantee.epsilon,
        "mu": guarantee.mu,
        "method": guarantee.method,
        "adjacency": guarantee.adjacency,
        "sampling": guarantee.sampling,
        "delta": guarantee.delta,
        "reason": guarantee.reason,
        "epsilon_if_alpha_public": guarantee.epsilon_if_alpha_public,
        "scope": guarantee.scope,
    }
    return {
        "claimed": asdict(claim(mechanism, bill, guarantee.delta)),
        "holds": holds,
        "epochs": len(bill),
        "releases": sum(bill.values()),
        "z_t": [mechanism.noise_multiplier_setting(t) for t in bill],
        "noise_multiplier": [mechanism.noise_std(t) / sensitivity if sensitivity else None for t in bill],
        "sensitivity": sensitivity,
        "noise_std": [mechanism.noise_std(t) for t in bill],
    }


def _attack(accountant: Accountant) -> dict[str, float]:
    """The most that any attack on membership can reach."""
    import numpy as np

    hundredth, thousandth = accountant.best_tpr(np.array([0.01, 0.001])).tolist()
    return {"best_auc": accountant.best_auc(), "best_tpr_at_fpr_0.01": hundredth, "best_tpr_at_fpr_0.001": thousandth}


def _calibration(mechanism: Mechanism, bill: dict[int, int], budget: Budget, tight: bool) -> dict[str, Any]:
    from edp_lab.privacy import Decay, NoGuarantee
    from edp_lab.privacy.calibration import affordable_epochs, affordable_tau, calibrate_z0, most_epochs

    try:
        no_decay = mechanism.decay is Decay.NONE
        epochs = affordable_epochs(mechanism, budget)
        return {
            "epsilon": budget.epsilon,
            "z0": calibrate_z0(mechanism, bill, budget, tight),
            "epochs": epochs,
            "steps": None if mechanism.sampling_rate is None else epochs * mechanism.releases_per_epoch,
            "more_epochs_not_tried": epochs == most_epochs(mechanism),
            "tau": None if no_decay else affordable_tau(mechanism, bill, budget),
        }
    except NoGuarantee as none:
        unknown = dict.fromkeys(("z0", "epochs", "steps", "more_epochs_not_tried", "tau"))
        return {"epsilon": budget.epsilon, **unknown, "reason": str(none)}


def _print(report: dict[str, Any], mechanism: Mechanism, tight: bool) -> None:
    from edp_lab.privacy import Adjacency
    from edp_lab.privacy.guarantee import upward

    decays = mechanism.decay != "none"
    claimed, holds = report["claimed"], report["holds"]

    def bound(epsilon: float | None) -> str:
        return "none" if epsilon is None else upward(epsilon, 6)

    sound = "DP-SGD" if mechanism.micro_batch_size == 1 else "sound eDP-SGD"
    name = "Algorithm 1 as printed" if mechanism.variant == "as-printed" else sound
    length = f"{report['releases']} steps" if mechanism.sampling_rate else f"{report['epochs']} epoch(s)"
    print(f"{name}, {length}, {mechanism.num_devices} device(s), delta {holds['delta']:.3g}\n")
    if holds["delta"] >= LARGE_DELTA:
        print(f"  delta is large: who publishes everything with probability {holds['delta']:.3g} meets it\n")
    neighbours = Adjacency(holds["adjacency"]).name.lower().replace("_", "-")
    print(f"  the paper's accounting   epsilon {number(claimed['epsilon'])}")
    print(f"      {claimed['method']}; {claimed['reason']}")
    print(f"  what holds               epsilon {bound(holds['epsilon'])}")
    print(f"      {holds['method']}; neighbours: {neighbours}; batches: {holds['sampling']}")
    if holds["status"] != "holds":
        print(f"      {holds['reason']}")
        if holds["epsilon_if_seed_secret"] is not None:
            print(f"      with a secret seed (edp-lab train --private-seed): {bound(holds['epsilon_if_seed_secret'])}")
        elif holds["epsilon_if_alpha_public"] is not None:
            print(f"      had alpha come from public text: epsilon {bound(holds['epsilon_if_alpha_public'])}")
    elif claimed["epsilon"] is not None and claimed["epsilon"] > holds["epsilon"]:
        print("      the paper's number is an upper bound here: looser, not wrong")
    first, last = report["noise_multiplier"][:1], report["noise_multiplier"][-1:]
    if first and first[0] is not None:
        print(f"\n  noise over sensitivity: {number(first[0])} in the first epoch, {number(last[0])} in the last")
        noise = f"noise on the sum over devices {number(report['noise_std'][0])} at first"
        print(f"  sensitivity {number(report['sensitivity'])}; {noise}")
    if "attack" in report:
        auc, tpr = report["attack"]["best_auc"], report["attack"]["best_tpr_at_fpr_0.01"]
        if auc > ALL_BUT_CERTAIN:
            print("  any attack on membership: no limit to speak of (AUC at most 1)")
        else:
            print(f"  any attack on membership: AUC at most {auc:.4f}, at most {tpr:.1%} found with 1 % false alarms")
    if "calibration" in report:
        found = report["calibration"]
        print(f"\n  to meet epsilon {number(found['epsilon'])}:")
        if "reason" in found:
            print(f"      no setting does: {found['reason']}")
        else:
            print(f"      z0 {number(found['z0'])}, or" + (", by Renyi DP, which allows less," if tight else ""))
            epochs = f"{found['epochs'] or 'not even one'} epoch(s)"
            epochs += f" or {found['steps']} steps" if found["steps"] else ""
            epochs += ", perhaps more," if found["more_epochs_not_tried"] else ""
            print(f"      {epochs} at this z0" + (", or" if decays else ""))
            if decays:
                print("      no tau does" if found["tau"] is None else f"      tau {number(found['tau'])} at this z0")
    print()
    for clause in holds["scope"].split("; "):
        print(textwrap.fill(clause, 100, initial_indent="  ", subsequent_indent="      "))


# ---- The epsilons of Table 1 ----------------------------------------------------------------------------------------


def table1_epsilon(as_json: Json = False) -> None:
    """Every epsilon of the paper's Table 1: a setting that explains it, and the true epsilon of that setting."""
    from edp_lab.reproduce.paper.table1_epsilon import explain_table1

    result = explain_table1()
    if as_json:
        print_json(asdict(result))
    else:
        _show_table1(result)


def _show_table1(result: Table1Epsilon) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from edp_lab.privacy import Decay

    console = screen(markup=True)
    console.print(
        f"log10 epsilon in Table 1: as printed -> true (rounded up) if alpha were public, N = {result.num_gpus} GPUs,\n"
        "and a setting that explains the printed value: z0, tau, number of epochs T."
    )
    table = Table("model", "corpus", *(f"{decay} decay".replace("none", "no") for decay in Decay), box=SIMPLE_HEAD)
    for start in range(0, len(result.rows), len(Decay)):
        cells = result.rows[start : start + len(Decay)]
        table.add_row(cells[0].model, cells[0].corpus, *map(_cell, cells))
    console.print(table)
    console.print(_epochs(result))
    console.print(result.note)
    console.print("With alpha from private gradients, as in the paper, no epsilon holds at all.")
    console.print("* On paper only: float32 arithmetic swallows the noise of this setting before the last epoch.")


def _cell(row: ExplainedEpsilon) -> str:
    setting = row.closest
    tau = "" if setting.tau is None else f" tau {setting.tau:g}"
    true = math.ceil(row.true_log10_epsilon * 10) / 10
    mark = "" if row.survives_float32 else " *"
    return f"{row.log10_epsilon} -> {true}{mark}\n[dim]z0 {setting.z0:.3g}{tau} T {setting.epochs}[/dim]"


def _epochs(result: Table1Epsilon) -> str:
    ranges = [(row, *row.epochs_range) for row in result.rows if row.epochs_range]
    high, least, _ = max(ranges, key=lambda item: item[1])
    low, _, most = min(ranges, key=lambda item: item[2])
    common = " or ".join(map(str, result.common_epochs))
    return (
        f"{len(ranges)} of the {len(result.rows)} values can be explained, each with a T of its own; all of them with "
        f"one T only if T = {common}:\n{high.log10_epsilon} ({high.model}, {high.corpus}, {high.decay}) needs "
        f"T >= {least}, {low.log10_epsilon} ({low.model}, {low.corpus}, {low.decay}) needs T <= {most}."
    )
