"""``edp-lab audit``: put a claimed epsilon to the test."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from edp_lab.cli.options import (
    AlphaMax,
    App,
    AsPrinted,
    BatchSize,
    Clip,
    Delta,
    Epochs,
    Gpus,
    Json,
    MicroBatchSize,
    check_seed,
    chosen,
)
from edp_lab.cli.output import PATIENCE, bar, number, print_json
from edp_lab.cli.train import one_thread_if_small
from edp_lab.errors import UsageError
from edp_lab.training.config import TrainConfig

if TYPE_CHECKING:
    from edp_lab.attacks.audit.bounds import ErrorRate
    from edp_lab.attacks.audit.one_run import OneRunAudit
    from edp_lab.attacks.audit.step_audit import MechanismAudit

Confidence = Annotated[float, "With which the lower bound on epsilon holds."]

audit_app = App(no_args_is_help=True, help="Audits: put a claimed epsilon to the test.")


@audit_app.callback()
def _audits() -> None:
    pass


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
    seed: Annotated[int, "Of the noise."] = 0,
    as_json: Json = False,
) -> None:
    """Draw one step with and without a canary: a lower bound on epsilon beside the epsilon that is claimed.

    No training. As printed, the claim is the paper's zCDP epsilon of one step; sound, it is the epsilon that holds.
    """
    from edp_lab.attacks.audit.step_audit import audit_mechanism
    from edp_lab.privacy import Alpha, Mechanism
    from edp_lab.privacy.csprng import key_from_seed

    check_seed(seed)
    if as_printed:
        source = Alpha.PUBLIC if alpha is None else alpha
        described = Mechanism.as_printed(clip, z0, gpus, micro_batch_size, alpha=source, alpha_max=alpha_max)
    else:
        if alpha_max != 1:
            raise UsageError("--alpha-max matters only as printed (sound noise comes before scaling back): drop it")
        described = Mechanism.sound(clip, z0, gpus, micro_batch_size, alpha=Alpha.NONE if alpha is None else alpha)
    with bar("draws", total=2 * draws, patience=PATIENCE) as (update, _):
        audit = audit_mechanism(described, delta, key_from_seed(seed), draws, confidence, update)
    if as_json:
        print_json({**asdict(audit), "seed": seed}, allow_nan=False)
    else:
        _print(audit)


@audit_app.command("one-run")
def one_run(
    ctx: typer.Context,
    corpus: Annotated[str | None, "A name from `edp-lab data list`, or a path; --model linear has none."] = None,
    model: Annotated[
        str, "clc, bert, or linear (one layer and no corpus: gradient canaries alone, in a second)."
    ] = "clc",
    canaries: Annotated[int, "How many; each is in with chance 1/2."] = 1000,
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
    epochs: Epochs = 1,
    size: Annotated[str, "Of the model: small or paper."] = "small",
    pretrained: Annotated[str | None, "FastText .vec/.bin, a folder of edp-lab pretrain, or a BERT hub name."] = None,
    delta: Delta = 1e-5,
    confidence: Confidence = 0.95,
    seed: Annotated[int, "Of split, weights, order, canaries and noise."] = 0,
    as_json: Json = False,
) -> None:
    """Train once with many canaries: a lower bound on the run's epsilon beside the epsilon that is claimed.

    Every canary is in or out by a coin. Whoever sees what the run releases guesses which; more right guesses than the
    claim allows refute it (Steinke, Nasr and Jagielski 2023). All layer scales alpha are 1.

    Try: edp-lab audit one-run --model linear --as-printed --z0 4
    """
    from edp_lab.attacks.audit.one_run import audit_one_run

    check_seed(seed)
    linear = model == "linear"
    if model not in ("clc", "bert", "linear"):
        raise UsageError(f"unknown model {model!r}: choose clc, bert or linear")
    if linear and corpus is not None:
        raise UsageError("the linear model is made of canaries alone: drop --corpus, or choose another --model")
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
    one_thread_if_small(size)
    with bar("steps", patience=PATIENCE) as (update, _):
        audit = audit_one_run(config, canaries, kind, linear, confidence, target_epsilon, update)
    if as_json:
        print_json({**asdict(audit), "corpus": corpus, "seed": seed}, allow_nan=False)
    else:
        _print_one_run(audit, corpus)


def _print(audit: MechanismAudit) -> None:
    described, sound = audit.mechanism, audit.mechanism.variant == "sound"

    def errors(rate: ErrorRate) -> str:
        return f"{rate.errors:,} of {audit.draws:,} (probability at most {rate.upper_limit:.3g})"

    name = "sound eDP-SGD" if sound else "Algorithm 1 as printed"
    settings = (
        f"{described.num_devices} devices, micro-batches of {described.micro_batch_size}, alpha {described.alpha}"
    )
    largest = "" if described.alpha_max == 1 else f" up to {described.alpha_max:g}"
    print(f"{name}, one step: {settings}{largest}, C {described.clip_norm:g}, z0 {described.z0:g}")
    held = "exact" if audit.epsilon_holds is not None else "no guarantee"
    if audit.epsilon_holds is None and audit.epsilon_if_alpha_public is not None:
        held += f"; had alpha come from public text: {number(audit.epsilon_if_alpha_public)}"
    _print_epsilons(audit, "zero-out", held, "draws", digits=6)
    print("  canary: one utterance whose gradient is as large as the clip allows; the attack guesses if it was there")
    print(f"  guessed there, but was not  {errors(audit.false_positive_rate)}")
    print(f"  missed, but was there       {errors(audit.false_negative_rate)}\n")
    print(textwrap.fill(f"{audit.verdict}: {audit.explanation}", 100))


def _print_one_run(audit: OneRunAudit, corpus: str | None) -> None:
    described, sound = audit.mechanism, audit.mechanism.variant == "sound"
    alone = described.micro_batch_size == 1
    name = ("DP-SGD" if alone else "sound eDP-SGD") if sound else "Algorithm 1 as printed"
    place = "one layer" if corpus is None else f"{audit.model} on {corpus}"
    sampled = "" if described.sampling_rate is None else ", Poisson sampling"
    sizes = f"{described.num_devices} devices, micro-batches of {described.micro_batch_size}{sampled}"
    epochs = "one epoch" if audit.epochs == 1 else f"{audit.epochs} epochs"
    print(f"{name}, {epochs} of {audit.steps // audit.epochs} steps, {place}")
    print(f"{sizes}, C {described.clip_norm:g}, z0 {described.z0:.4g}")
    held = "no guarantee" if audit.epsilon_holds is None else "upper bound" if sampled else "exact"
    neighbours = "add or remove one utterance" if sampled else "zero-out"
    _print_epsilons(audit, neighbours, held, "canaries", digits=4)
    what = "gradients of their own direction" if audit.kind == "gradient" else "utterances with a wrong intent"
    print(f"  {audit.canaries:,} canaries ({what}), {audit.included:,} of them in")
    for tally in audit.tallies:
        print(f"  {tally.correct:,} of {tally.guesses:,} guesses right ({tally.correct / tally.guesses:.1%})")
    print(f"\n{textwrap.fill(f'{audit.verdict}: {audit.explanation}', 100)}")


def _print_epsilons(audit: MechanismAudit | OneRunAudit, neighbours: str, held: str, what: str, digits: int) -> None:
    """Claimed, that holds, measured; `digits` of what is measured."""
    how = "the sound epsilon itself" if audit.mechanism.variant == "sound" else "zCDP, z at face value"
    free = f"without assuming Gaussian noise: >= {number(audit.bounds.distribution_free, digits)}"
    if audit.bounds.gaussian is None:
        free = "for any mechanism"
    noise = f"noise over sensitivity {number(audit.noise_multiplier)}"
    print(f"{noise}; neighbours: {neighbours}, delta {audit.delta:.3g}\n")
    print(f"  claimed    epsilon    {number(audit.epsilon_claimed):<8}  ({how})")
    print(f"  holds      epsilon    {number(audit.epsilon_holds):<8}  ({held})")
    print(f"  measured   epsilon >= {number(audit.epsilon_lower_bound, digits):<8}  ({free})")
    print(f"  so many {what} could show at most {number(audit.ceiling, digits)}\n")
