"""``edp-lab account``, ``table1-epsilon``: what a mechanism claims and guarantees; ``audit``: a claim on trial."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.attack import PACKED
from edp_lab.cli.options import (
    COUNT,
    App,
    BatchSize,
    Clip,
    Delta,
    Epochs,
    Gpus,
    Json,
    chosen,
    given,
    neighbours_named,
    numbers,
)
from edp_lab.cli.output import PATIENCE, Screen, answer, bar, echo, number, print_json, words
from edp_lab.cli.train import one_thread_if_small
from edp_lab.errors import UsageError
from edp_lab.training.config import SEED, TrainConfig, flag_of

if TYPE_CHECKING:
    from edp_lab.privacy import Guarantee, Mechanism
    from edp_lab.privacy.calibration import Budget

AlphaMax = Annotated[float, "Largest layer scale alpha, as printed."]
AsPrinted = Annotated[bool, "Algorithm 1 verbatim instead of the sound mechanism."]
MicroBatchSize = Annotated[int, "Utterances that share one clipped gradient; 1 is per-example DP-SGD."]

OF_A_RUN = {"run", "delta", "adjacency", "utterances_per_person", "target_epsilon", "as_json"}


def account(
    ctx: typer.Context,
    clip: Clip = 1.0,
    z0: Annotated[
        float, "Noise multiplier of the first epoch (t = 0). Sound: noise over sensitivity; as printed: std(y)/C."
    ] = 1.0,
    decay: Annotated[str, "Of the noise by epoch: none, linear or exponential."] = "none",
    tau: Annotated[float, "Decay rate: linear 1/(1 + tau t), exponential e^(-tau t)."] = 0.1,
    epochs: Annotated[int, "Passes over the corpus.", COUNT] = 1,
    gpus: Gpus = 8,
    delta: Annotated[
        float, "Delta of (epsilon, delta): a slack that should be well below 1/n (with --run: the run's own)."
    ] = 1e-5,
    as_printed: AsPrinted = False,
    alpha_max: AlphaMax = 1.0,
    alpha_source: Annotated[
        str | None, "Layer scales from: none, public, noised or private (default: none; private if --as-printed)."
    ] = None,
    micro_batch_size: MicroBatchSize = 8,
    sampling_rate: Annotated[
        float | None, "Poisson sampling at this rate q instead of disjoint batches; an epoch is ceil(1/q) steps."
    ] = None,
    steps: Annotated[int | None, "Poisson steps, instead of --epochs.", {"min": 1}] = None,
    adjacency: Annotated[
        str | None, "zero_out, replace_one or add_or_remove_one (default: zero_out; add_or_remove_one if sampling)."
    ] = None,
    utterances_per_person: Annotated[int, "Protect anyone with up to so many utterances.", COUNT] = 1,
    target_epsilon: Annotated[float | None, "Also find the z0, the epochs and the tau that meet this epsilon."] = None,
    run: Annotated[
        Path | None, "Judge a run's ledger instead of settings given here; see also --delta, --adjacency."
    ] = None,
    as_json: Json = False,
) -> None:
    """Epsilon that the paper's accounting claims, and epsilon that holds."""
    import numpy as np

    from edp_lab.privacy import Adjacency, Alpha, accountant_for, judge
    from edp_lab.privacy.calibration import Budget
    from edp_lab.privacy.guarantee import HOLDS

    neighbours, certified = neighbours_named(adjacency), None
    named = given(ctx)
    _refuse_contradictions(named, decay, sampling_rate)
    if run is not None:
        from edp_lab.training import read_record, run_ledger
        from edp_lab.training.certificate import check_certificate

        ledger, record, certified = run_ledger(run), read_record(run), check_certificate(run)
        mechanism, bill = ledger.mechanism, ledger.bill()
        published = not record["config"].get("private_seed", False)
        delta = delta if "delta" in named else record["guarantee"]["delta"]
    else:
        if as_printed and sampling_rate is not None:
            raise UsageError("Algorithm 1 as printed has disjoint batches: drop --sampling-rate or --as-printed")
        if alpha_source is None:
            alpha_source = Alpha.PRIVATE if as_printed else Alpha.NONE
        noise: dict[str, Any] = {"clip_norm": clip, "z0": z0, "decay": decay, "tau": tau, "alpha": alpha_source}
        sizes = {"num_devices": gpus, "micro_batch_size": micro_batch_size}
        mechanism = _described(as_printed, alpha_max, sampling_rate, **noise, **sizes)
        if z0 == 0:
            raise UsageError("z0 is 0: no noise is added and epsilon is infinite; choose z0 greater than 0")
        bill = mechanism.bill(epochs) if steps is None else mechanism.bill(steps=steps)
        published = False
    guarantee = judge(mechanism, bill, delta, published, neighbours, utterances_per_person)
    report = _report(mechanism, bill, guarantee)
    if guarantee.status == HOLDS:  # the most that any attack on membership can reach
        accountant = accountant_for(mechanism, bill, neighbours, utterances_per_person)
        hundredth, thousandth = accountant.best_tpr(np.array([0.01, 0.001])).tolist()
        rates = {"best_tpr_at_fpr_0.01": hundredth, "best_tpr_at_fpr_0.001": thousandth}
        report["attack"] = {"best_auc": accountant.best_auc(), **rates}
    if certified is not None:
        report["certificate"] = certified
    if target_epsilon is not None:
        budget = Budget(target_epsilon, delta, neighbours, utterances_per_person)
        report["calibration"] = _calibration(mechanism, bill, budget)
    adjacent = Adjacency(guarantee.adjacency).name.lower().replace("_", "-")
    answer(as_json, report, "account", report, mechanism, adjacent)


def _refuse_contradictions(named: set[str], decay: str, sampling_rate: float | None) -> None:
    """Options that would silently count for nothing."""
    idle = sorted(named - OF_A_RUN)
    if "run" in named and idle:
        raise UsageError(f"{flag_of(idle[0])} is read from the run's ledger: drop it, or drop --run")
    if {"steps", "epochs"} <= named:
        raise UsageError("--steps and --epochs say the same in two ways: give one of them")
    if "tau" in named and decay == "none":
        raise UsageError("--tau counts only with a decay: add --decay linear or --decay exponential")


def _described(as_printed: bool, alpha_max: float, sampling_rate: float | None, **settings: Any) -> Mechanism:
    from edp_lab.privacy import Mechanism

    if as_printed:
        return Mechanism.as_printed(alpha_max=alpha_max, **settings)
    if alpha_max != 1:
        raise UsageError("--alpha-max matters only as printed (sound noise comes before scaling back): drop it")
    return Mechanism.sound(sampling_rate=sampling_rate, **settings)


def _report(mechanism: Mechanism, bill: dict[int, int], guarantee: Guarantee) -> dict[str, Any]:
    from edp_lab.privacy import NoGuarantee, claim
    from edp_lab.privacy.guarantee import HOLDS, VOID
    from edp_lab.privacy.mechanism import of_training

    try:
        sensitivity = mechanism.sensitivity(guarantee.adjacency)
    except NoGuarantee:
        sensitivity = None
    if sensitivity == float("inf"):
        raise UsageError("the clip norm times the largest alpha exceeds the largest float: lower one of them")
    names = ("mu", "method", "adjacency", "sampling", "delta", "reason", "epsilon_if_alpha_public", "scope")
    holds = {
        "status": guarantee.status,
        "epsilon": guarantee.epsilon if guarantee.status == HOLDS else None,
        "epsilon_if_seed_secret": guarantee.epsilon if guarantee.status in (HOLDS, VOID) else None,
        "epsilon_in_real_numbers": guarantee.epsilon,
        **{name: getattr(guarantee, name) for name in names},
    }
    epochs = of_training(bill)
    noise = [mechanism.noise_std(t) for t in epochs]
    return {
        "claimed": asdict(claim(mechanism, bill, guarantee.delta)),
        "holds": holds,
        "epochs": guarantee.epochs,
        "releases": sum(bill.values()),
        "z_t": [mechanism.noise_multiplier_setting(t) for t in epochs],
        "noise_multiplier": [std / sensitivity if sensitivity else None for std in noise],
        "sensitivity": sensitivity,
        "noise_std": noise,
    }


def _calibration(mechanism: Mechanism, bill: dict[int, int], budget: Budget) -> dict[str, Any]:
    from edp_lab.privacy import Decay, NoGuarantee
    from edp_lab.privacy.calibration import affordable_epochs, affordable_tau, calibrate_z0, most_epochs

    try:
        no_decay = mechanism.decay is Decay.NONE
        epochs = affordable_epochs(mechanism, budget)
        return {
            "epsilon": budget.epsilon,
            "z0": calibrate_z0(mechanism, bill, budget),
            "epochs": epochs,
            "steps": None if mechanism.sampling_rate is None else epochs * mechanism.releases_per_epoch,
            "more_epochs_not_tried": epochs == most_epochs(mechanism),
            "tau": None if no_decay else affordable_tau(mechanism, bill, budget),
        }
    except NoGuarantee as none:
        unknown = dict.fromkeys(("z0", "epochs", "steps", "more_epochs_not_tried", "tau"))
        return {"epsilon": budget.epsilon, **unknown, "reason": str(none)}


def table1_epsilon(as_json: Json = False) -> None:
    """Every epsilon of the paper's Table 1: a setting that explains it, and the true epsilon of that setting."""
    from edp_lab.privacy import Decay
    from edp_lab.reproduce.paper.printed import ExplainedEpsilon, explain_table1

    def cell(row: ExplainedEpsilon) -> str:
        setting, mark = row.closest, "" if row.survives_float32 else " *"
        tau = "" if setting.tau is None else f" tau {setting.tau:g}"
        true = math.ceil(row.true_log10_epsilon * 10) / 10
        return f"{row.log10_epsilon} -> {true}{mark}\n[dim]z0 {setting.z0:.3g}{tau} T {setting.epochs}[/dim]"

    result = explain_table1()
    if as_json:
        print_json(asdict(result))
        return
    console = Screen(markup=True)
    lines = [["model", "corpus", *(f"{decay} decay".replace("none", "no") for decay in Decay)]]
    for start in range(0, len(result.rows), len(Decay)):
        cells = result.rows[start : start + len(Decay)]
        lines.append([cells[0].model, cells[0].corpus, *map(cell, cells)])
    echo(words("table1_above", result))
    console.table(lines, kept=2)
    echo(words("table1_below", result))


# ---- Audits ----------------------------------------------------------------------------------------------------------

Confidence = Annotated[float, "With which the lower bound on epsilon holds."]

audit_app = App(no_args_is_help=True, help="Audits: put a claimed epsilon to the test.")


@audit_app.command()
def mechanism(
    as_printed: AsPrinted = False,
    gpus: Gpus = 8,
    z0: Annotated[float, "Noise multiplier. Sound: noise over sensitivity; as printed: std(y)/C of one device."] = 1.0,
    clip: Clip = 1.0,
    delta: Delta = 1e-5,
    micro_batch_size: MicroBatchSize = 8,
    alpha_max: AlphaMax = 1.0,
    alpha: Annotated[
        str | None,
        typer.Option(
            "--alpha",
            "--alpha-source",
            help="Layer scales from: none, public, or, as printed only, private, which is audited as if public "
            "(default: none; public if --as-printed).",
        ),
    ] = None,
    draws: Annotated[int, "Steps drawn with the canary, and as many without."] = 10_000,
    confidence: Confidence = 0.95,
    seed: Annotated[int, "Of the noise.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Draw one step with and without a canary: a lower bound on epsilon beside the epsilon that is claimed.

    No training. As printed, the claim is the paper's zCDP epsilon of one step; sound, it is the epsilon that holds.
    """
    from edp_lab.attacks.audit.step_audit import audit_mechanism
    from edp_lab.privacy import Alpha
    from edp_lab.privacy.csprng import key_from_seed

    if alpha is None:
        alpha = Alpha.PUBLIC if as_printed else Alpha.NONE
    sizes = {"num_devices": gpus, "micro_batch_size": micro_batch_size}
    described = _described(as_printed, alpha_max, None, clip_norm=clip, z0=z0, alpha=alpha, **sizes)
    with bar("draws", total=2 * draws, patience=PATIENCE) as (update, _):
        audit = audit_mechanism(described, delta, key_from_seed(seed), draws, confidence, update)
    answer(as_json, {**asdict(audit), "seed": seed}, "audited_step", audit)


@audit_app.command()
def bits(
    noise: Annotated[
        str | None,
        "box-muller, torch, opacus-secure, numpy-float32, numpy-rounded, numpy-float64, devices, one-rank, each-rank "
        "(the library's float noise, by where it is added), exact-ranks, exact (its own), or MODULE:FUNCTION of yours, "
        "(sum, std) -> what is released, float32 (default: all of these).",
    ] = None,
    attack: Annotated[
        str | None,
        "sum (of any noise: which numbers can no float32 added to the sum give?), devices (added to one rank's share), "
        "pairs (of Box and Muller), numbers (of numpy's ziggurat), or of exact noise grid, cells or zeros (default: "
        "all there are for this noise).",
    ] = None,
    z0: Annotated[float, "Noise multiplier: noise over sensitivity."] = 4.0,
    clip: Clip = 1.0,
    numbers: Annotated[int | None, "How many are released (default: enough for the attack at z0 4).", COUNT] = None,
    trials: Annotated[int, "Releases with the canary, and as many without.", COUNT] = 120,
    delta: Delta = 1e-5,
    confidence: Confidence = 0.95,
    seed: Annotated[int, "Of the sum, the canary and the noise.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Tell from its last bits whether a release can have come without the canary: float noise against the library's.

    A lower bound on epsilon, whatever the mechanism, beside the epsilon of an ideal normal with as much noise.

    Try: edp-lab audit bits --attack sum
    """
    from edp_lab.attacks.audit.bits import audit_bits, clues_of

    sys.path.append("")  # where a module of one's own may lie
    found, asked = [], clues_of(noise, attack)
    with bar("releases", total=2 * trials * len(asked), patience=PATIENCE) as (update, _):
        for turn, (name, clue) in enumerate(asked):

            def progress(done: int, before: int = 2 * trials * turn) -> None:
                update(before + done)

            found.append(audit_bits(name, z0, clip, clue, numbers, trials, delta, confidence, seed, progress=progress))
    if as_json:
        print_json([{**asdict(audit), "seed": seed, "impossible": None} for audit in found])
        return
    lines = [["noise", "attack", "numbers", "found", "false alarms", "epsilon >=", "verdict"]]
    for audit in found:
        shares = (f"{errors:,} of {trials:,}" for errors in (audit.true_positives, audit.false_positives))
        bound = number(audit.epsilon_lower_bound, 3)
        lines.append([audit.noise, audit.clue, f"{audit.size:,}", *shares, bound, str(audit.verdict)])
    Screen(100).table(lines, kept=2, **PACKED)
    echo(words("audited_bits", found[0]))


@audit_app.command("one-run")
def one_run(
    ctx: typer.Context,
    corpus: Annotated[str | None, "A name from `edp-lab data list`, or a path; --model linear has none."] = None,
    model: Annotated[
        str, "clc, bert, or linear (one layer and no corpus: gradient canaries alone, in a second)."
    ] = "clc",
    canaries: Annotated[int, "How many; each is in with chance 1/2.", COUNT] = 1000,
    guesses: Annotated[
        str, "On which shares of the canaries, the surest, with commas between; each costs its part of the error."
    ] = "0.1,0.3,1",
    kind: Annotated[
        str,
        "gradient (white box: each pushes the gradient its own way as hard as the clip allows) or mislabelled "
        "(black box: utterances with a wrong intent, told by their loss).",
    ] = "gradient",
    method: Annotated[str, "edp-sgd, or dp-sgd (every utterance clipped alone)."] = "edp-sgd",
    as_printed: AsPrinted = False,
    gpus: Gpus = 8,
    z0: Annotated[
        float | None,
        "Noise multiplier (default: 1). Sound: noise over sensitivity; as printed: std(y)/C of one device.",
    ] = None,
    target_epsilon: Annotated[
        float | None, "Instead of --z0: the noise with which this epsilon holds for the run."
    ] = None,
    clip: Clip = 1.0,
    batch_size: BatchSize = 64,
    micro_batch_size: Annotated[
        int | None, "Utterances that share a clip (default: batch size over devices; dp-sgd: 1)."
    ] = None,
    sampling: Annotated[str | None, "shuffle, or poisson (dp-sgd only) (default: shuffle; poisson for dp-sgd)."] = None,
    unit: Annotated[str | None, "Who a canary is: utterance (default) or speaker, with all they say."] = None,
    cap: Annotated[int | None, "Of --unit speaker: utterances of one speaker that are kept, at most."] = None,
    epochs: Epochs = 1,
    size: Annotated[str, "Of the model: small or paper."] = "small",
    pretrained: Annotated[str | None, "FastText .vec/.bin, a folder of edp-lab pretrain, or a BERT hub name."] = None,
    delta: Delta = 1e-5,
    confidence: Confidence = 0.95,
    seed: Annotated[int, "Of split, weights, order, canaries and noise.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Train once with many canaries: a lower bound on the run's epsilon beside the epsilon that is claimed.

    Every canary is in or out by a coin. Whoever sees what the run releases guesses which; more right guesses than the
    claim allows refute it (Steinke, Nasr and Jagielski 2023). All layer scales alpha are 1.

    Try: edp-lab audit one-run --model linear --as-printed --z0 4
    """
    from edp_lab.attacks.audit.one_run import audit_one_run

    linear = model == "linear"
    if model not in ("clc", "bert", "linear"):
        raise UsageError(f"unknown model {model!r}: choose clc, bert or linear")
    for option, value in (("--corpus", corpus), ("--pretrained", pretrained)) if linear else ():
        if value is not None:
            raise UsageError(f"the linear model is made of canaries alone: drop {option}, or choose another --model")
    if not linear and corpus is None:
        raise UsageError("a run needs --corpus (or --model linear, which has none): name one")
    if z0 is not None and target_epsilon is not None:
        raise UsageError("--target-epsilon decides z0: drop one of them")
    config = chosen(
        ctx,
        TrainConfig,
        corpus=corpus or "",
        model="clc" if linear else model,
        z0=1.0 if z0 is None else z0,
        alpha="none",
        dropout=0.0,  # it would only make canaries harder to remember
    )
    shares = numbers("--guesses", guesses, "0.1,0.3,1", float, 1e-6, 1)
    one_thread_if_small(size)
    with bar("steps", patience=PATIENCE) as (update, _):
        audit = audit_one_run(config, canaries, kind, linear, confidence, target_epsilon, update, shares)
    answer(as_json, {**asdict(audit), "corpus": corpus, "seed": seed}, "audited_run", audit, corpus)
