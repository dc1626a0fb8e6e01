"""``edp-lab audit``: put a claimed epsilon to the test."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from edp_lab.cli import reports
from edp_lab.cli.account import AlphaMax, AsPrinted, MicroBatchSize, described
from edp_lab.cli.options import COUNT, App, BatchSize, Clip, Delta, Epochs, Gpus, Json, chosen, numbers
from edp_lab.cli.output import PATIENCE, answer, bar
from edp_lab.cli.train import one_thread_if_small
from edp_lab.errors import UsageError
from edp_lab.training.config import SEED, TrainConfig

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
    from edp_lab.attacks.step_audit import audit_mechanism
    from edp_lab.privacy import Alpha
    from edp_lab.privacy.csprng import key_from_seed

    if alpha is None:
        alpha = Alpha.PUBLIC if as_printed else Alpha.NONE
    sizes = {"num_devices": gpus, "micro_batch_size": micro_batch_size}
    tested = described(as_printed, alpha_max, None, clip_norm=clip, z0=z0, alpha=alpha, **sizes)
    with bar("draws", total=2 * draws, patience=PATIENCE) as (update, _):
        audit = audit_mechanism(tested, delta, key_from_seed(seed), draws, confidence, update)
    answer(as_json, {**asdict(audit), "seed": seed}, reports.audited_step(audit))


@audit_app.command("one-run")
def one_run(
    ctx: typer.Context,
    corpus: Annotated[str | None, "A name from `edp-lab data list`, or a path; --model linear has none."] = None,
    model: Annotated[str, "clc, bert, or linear (one layer and no corpus, in a second)."] = "clc",
    canaries: Annotated[int, "How many; each is in with chance 1/2.", COUNT] = 1000,
    guesses: Annotated[
        str, "On which shares of the canaries, the surest, with commas between; each costs its part of the error."
    ] = "0.1,0.3,1",
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
    seed: Annotated[int, "Of split, weights, order, canaries and noise.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Train once with many canaries: a lower bound on the run's epsilon beside the epsilon that is claimed.

    Every canary is in or out by a coin. Whoever sees what the run releases guesses which; more right guesses than the
    claim allows refute it (Steinke, Nasr and Jagielski 2023). All layer scales alpha are 1.

    Try: edp-lab audit one-run --model linear --as-printed --z0 4
    """
    from edp_lab.attacks.one_run import audit_one_run

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
        audit = audit_one_run(config, canaries, linear, confidence, target_epsilon, update, shares)
    answer(as_json, {**asdict(audit), "corpus": corpus, "seed": seed}, reports.audited_run(audit, corpus))
