"""``edp-lab account``: what a mechanism claims and what it guarantees, without training anything."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from edp_lab.privacy import Accountant, Guarantee, Mechanism
    from edp_lab.privacy.calibration import Budget


def account(
    clip: Annotated[float, typer.Option(help="Clip norm C.")] = 1.0,
    z0: Annotated[
        float,
        typer.Option(
            help="Noise multiplier of the first epoch (t = 0). Sound: noise over sensitivity; as printed: std(y)/C."
        ),
    ] = 1.0,
    decay: Annotated[str, typer.Option(help="Of the noise by epoch: none, linear or exponential.")] = "none",
    tau: Annotated[float, typer.Option(help="Decay rate: linear 1/(1 + tau t), exponential e^(-tau t).")] = 0.1,
    epochs: Annotated[int, typer.Option(help="Passes over the corpus.")] = 1,
    gpus: Annotated[int, typer.Option(help="Devices N.")] = 8,
    delta: Annotated[float, typer.Option(help="Probability that epsilon's promise fails; well below 1/n.")] = 1e-5,
    as_printed: Annotated[
        bool, typer.Option("--as-printed", help="Algorithm 1 verbatim instead of the sound mechanism.")
    ] = False,
    alpha_max: Annotated[float, typer.Option(help="Largest layer scale alpha, as printed.")] = 1.0,
    alpha_source: Annotated[
        str | None,
        typer.Option(help="Layer scales from: none, public or private (default: none; private if --as-printed)."),
    ] = None,
    micro_batch_size: Annotated[
        int, typer.Option(help="Utterances that share one clipped gradient; 1 is per-example DP-SGD.")
    ] = 8,
    sampling_rate: Annotated[
        float | None,
        typer.Option(help="Poisson sampling at this rate q instead of disjoint batches; an epoch is ceil(1/q) steps."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Poisson steps, instead of --epochs.")] = None,
    adjacency: Annotated[
        str | None,
        typer.Option(
            help="zero_out, replace_one or add_or_remove_one (default: zero_out; add_or_remove_one if sampling)."
        ),
    ] = None,
    utterances_per_person: Annotated[int, typer.Option(help="Protect anyone with up to so many utterances.")] = 1,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Also find the z0, the epochs and the tau that meet this epsilon.")
    ] = None,
    tight: Annotated[
        bool, typer.Option("--tight", help="Poisson sampling by privacy loss distributions: seconds, less epsilon.")
    ] = False,
    run: Annotated[
        Path | None, typer.Option(help="Judge a run's ledger instead of the settings above (but --delta, --adjacency).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")] = False,
) -> None:
    """Epsilon that the paper's accounting claims, and epsilon that holds."""
    from edp_lab.errors import UsageError
    from edp_lab.privacy import Adjacency, Alpha, Mechanism, accountant_for, judge
    from edp_lab.privacy.calibration import Budget

    neighbours = None
    if adjacency is not None:
        known = {name.lower(): one for name, one in Adjacency.__members__.items()}
        if adjacency.lower() not in known:
            raise UsageError(f"unknown adjacency {adjacency!r}: choose {', '.join(known)}")
        neighbours = known[adjacency.lower()]
    if run is not None:
        from edp_lab.training import read_record, run_ledger

        ledger = run_ledger(run)
        mechanism, bill = ledger.mechanism, ledger.bill()
        published = not read_record(run)["config"].get("private_seed", False)
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
    if guarantee.epsilon is not None:
        report["attack"] = _attack(accountant_for(mechanism, bill, neighbours, utterances_per_person, tight))
    if target_epsilon is not None:
        budget = Budget(target_epsilon, delta, neighbours, utterances_per_person)
        report["calibration"] = _calibration(mechanism, bill, budget)
    if as_json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        _print(report, mechanism)


def _report(mechanism: Mechanism, bill: dict[int, int], guarantee: Guarantee) -> dict[str, Any]:
    from edp_lab.errors import UsageError
    from edp_lab.privacy import NoGuarantee, ReshufflingZCDP, SamplingZCDP

    try:
        sensitivity = mechanism.sensitivity(guarantee.adjacency)
    except NoGuarantee:
        sensitivity = None
    if sensitivity == float("inf"):
        raise UsageError("the clip norm times the largest alpha exceeds the largest float: lower one of them")
    method = (ReshufflingZCDP if mechanism.sampling_rate is None else SamplingZCDP).method
    holds = {
        "status": guarantee.status,
        "epsilon": guarantee.epsilon,
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
        "claimed": {**_claimed(mechanism, bill, guarantee.delta), "method": method},
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


def _claimed(mechanism: Mechanism, bill: dict[int, int], delta: float) -> dict[str, Any]:
    import math

    from edp_lab.errors import UsageError
    from edp_lab.privacy import claimed_accountant

    try:
        accountant = claimed_accountant(mechanism, bill)
    except UsageError as refused:
        return {"epsilon": None, "rho": None, "reason": str(refused)}
    epsilon = accountant.epsilon(delta)
    if not math.isfinite(epsilon):
        return {"epsilon": None, "rho": None, "reason": "epsilon exceeds the largest float"}
    return {"epsilon": epsilon, "rho": accountant.rho, "reason": "z_t taken at face value"}


def _calibration(mechanism: Mechanism, bill: dict[int, int], budget: Budget) -> dict[str, Any]:
    from edp_lab.privacy import Decay, NoGuarantee
    from edp_lab.privacy.calibration import affordable_epochs, affordable_tau, calibrate_z0

    try:
        no_decay = mechanism.decay is Decay.NONE
        return {
            "epsilon": budget.epsilon,
            "z0": calibrate_z0(mechanism, bill, budget),
            "epochs": affordable_epochs(mechanism, budget),
            "tau": None if no_decay else affordable_tau(mechanism, bill, budget),
        }
    except NoGuarantee as none:
        return {"epsilon": budget.epsilon, "z0": None, "epochs": None, "tau": None, "reason": str(none)}


def _print(report: dict[str, Any], mechanism: Mechanism) -> None:
    claimed, holds = report["claimed"], report["holds"]

    def number(value: float | None) -> str:
        return "none" if value is None else f"{value:.6g}"

    name = "Algorithm 1 as printed" if mechanism.variant == "as-printed" else "sound eDP-SGD"
    print(f"{name}, {report['epochs']} epochs, {mechanism.num_devices} devices, delta {holds['delta']:.3g}\n")
    how = f"{holds['method']}; {holds['adjacency']}; {holds['sampling']}"
    print(f"  claimed   epsilon {number(claimed['epsilon'])}   ({claimed['method']}; {claimed['reason']})")
    print(f"  holds     epsilon {number(holds['epsilon'])}   ({how})")
    if holds["status"] != "holds":
        print(f"            {holds['reason']}")
        if holds["epsilon"] is None and holds["epsilon_if_alpha_public"] is not None:
            print(f"            had alpha come from public text: epsilon {number(holds['epsilon_if_alpha_public'])}")
    first, last = report["noise_multiplier"][:1], report["noise_multiplier"][-1:]
    if first and first[0] is not None:
        print(f"\n  noise over sensitivity: {number(first[0])} in the first epoch, {number(last[0])} in the last")
        noise = f"noise on the sum over devices {number(report['noise_std'][0])} at first"
        print(f"  sensitivity {number(report['sensitivity'])}; {noise}")
    if "attack" in report:
        auc, tpr = report["attack"]["best_auc"], report["attack"]["best_tpr_at_fpr_0.01"]
        print(f"  any attack on membership: AUC at most {auc:.4f}, at most {tpr:.1%} found with 1 % false alarms")
    if "calibration" in report:
        found = report["calibration"]
        print(f"\n  for epsilon {number(found['epsilon'])}: z0 {number(found['z0'])} at these epochs")
        print(f"               or {number(found['epochs'])} epochs at this z0")
        if mechanism.decay != "none":
            print(f"               or tau {number(found['tau'])} at this z0 and these epochs")
        if "reason" in found:
            print(f"               {found['reason']}")
    print("\n" + textwrap.fill(holds["scope"], 110, initial_indent="  ", subsequent_indent="  "))
