"""``edp-lab attack``: who was in the training set, and what a model remembers. ``edp-lab audit``: is a claim true?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli import reports
from edp_lab.cli.account import AlphaMax, AsPrinted, MicroBatchSize, described
from edp_lab.cli.options import (
    App,
    BatchSize,
    Clip,
    Corpus,
    Delta,
    Epochs,
    Gpus,
    Json,
    RunFolder,
    Size,
    chosen,
    commas,
    numbers,
)
from edp_lab.cli.output import PATIENCE, Screen, answer, bar, number, print_json, telling
from edp_lab.cli.train import listening, one_thread_if_small
from edp_lab.errors import UsageError
from edp_lab.training.config import COUNT, SEED, TrainConfig

if TYPE_CHECKING:
    from edp_lab.attacks.loss import Attacked
    from edp_lab.training import Event

attack_app = App(
    no_args_is_help=True,
    help="Attack a trained model: who was in its training set, and what it remembers.",
)

# ---- What a model remembers ------------------------------------------------------------------------------------------

SETTINGS = ("corpus", "model", "size", "epochs", "batch_size", "seed", "clip_norm", "z0", "num_devices")


@attack_app.command()
def canaries(
    ctx: typer.Context,
    corpus: Corpus = "smart-home",
    methods: Annotated[
        str, "Of sgd, edp-sgd-as-printed, edp-sgd and dp-sgd, with commas between."
    ] = "sgd,edp-sgd-as-printed,edp-sgd,dp-sgd",
    repetitions: Annotated[str, "How often a canary is inserted, with commas between; 0 is the control."] = "0,1,4,16",
    each: Annotated[int, typer.Option("--canaries", help="Canaries for each repetition count.", **COUNT)] = 8,
    references: Annotated[
        int, "Other numbers among which a canary is ranked; log2 of one more caps the exposure.", COUNT
    ] = 9_999,
    epochs: Epochs = 6,
    size: Size = "small",
    z0: Annotated[float, "Noise multiplier, with the meaning that each method gives it."] = 0.03,
    clip: Clip = 1.0,
    gpus: Gpus = 8,
    seed: Annotated[int, "Split, canaries, initial weights, order, noise.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Hide utterances with a personal number in the training set, and ask each trained model for the number.

    Exposure in bits says how far down the true number's loss ranks among other numbers. A canary that was inserted k
    times is protected by the epsilon of k utterances together.
    """
    from edp_lab.attacks.canaries import measure_memorisation

    counts = numbers("--repetitions", repetitions, "0,1,4,16", least=0)
    config = chosen(ctx, TrainConfig)
    one_thread_if_small(size)
    last_heard, fillings = "", references + 1
    with listening() as listen:

        def progress(method: str, event: Event) -> None:
            nonlocal last_heard
            if method != last_heard:
                sys.stderr.write(f"{method}\n")
                last_heard = method
            listen(event)

        rows = measure_memorisation(config, commas(methods), counts, each, references, progress)
    if as_json:
        settings = {name: getattr(config, name) for name in SETTINGS}
        result = {"settings": settings, "fillings": fillings, "rows": [asdict(row) for row in rows]}
        print_json(result)
        return
    lines = [["method", "copies", "exposure", "95 %", "extracted", "95 %", "epsilon"]]
    for row in rows:
        exposure = f"{row.exposure:.2f}", "{:.1f}-{:.1f}".format(*row.interval)
        extracted = f"{row.extracted}/{len(row.exposures)}", "{:.2f}-{:.2f}".format(*row.extracted_interval)
        epsilon = number(row.epsilon, 3) if row.repetitions else "-"
        lines.append([row.method, str(row.repetitions), *exposure, *extracted, epsilon])
    Screen().table(lines, groups=1)
    Screen().report(reports.canaries(rows, fillings))


# ---- Who was in the training set -------------------------------------------------------------------------------------

Cache = Annotated[Path | None, "Folder for results of trained shadow models. (default: the user's cache)"]
Seed = Annotated[int, "Of the shadow models and the classifier.", SEED]


@attack_app.command()
def loss(
    ctx: typer.Context,
    run: RunFolder,
    as_json: Json = False,
) -> None:
    """The floor: call those members whose loss is low. No training."""
    from edp_lab.attacks.loss import attack_loss

    _finish(ctx, lambda run, progress, **settings: attack_loss(run, **settings))


@attack_app.command()
def shadow(
    ctx: typer.Context,
    run: RunFolder,
    shadow: Annotated[
        str | None,
        "Public corpus of the shadow model; 'generated' is a fresh smart-home corpus. "
        "(default: another corpus at hand)",
    ] = None,
    seed: Seed = 0,
    cache: Cache = None,
    plain: Annotated[bool, "Train the shadow model by SGD, not by the target's method."] = False,
    as_json: Json = False,
) -> None:
    """The paper's attack: a shadow model on a public corpus teaches a classifier what members look like."""
    from edp_lab.attacks.shadow import attack_shadow

    _finish(ctx, attack_shadow, shadow=shadow, plain=plain)


@attack_app.command()
def lira(
    ctx: typer.Context,
    run: RunFolder,
    shadows: Annotated[int, "Shadow models, an even number; each is trained on half of the pool.", COUNT] = 16,
    size: Annotated[str | None, "Of the shadow models. (default: the target's)"] = None,
    epochs: Annotated[int | None, "Of the shadow models. (default: the target's)", COUNT] = None,
    seed: Seed = 0,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """The strong attack, LiRA (Carlini and others 2022): how likely is a confidence with and without the utterance?"""
    from edp_lab.attacks.lira import attack_lira

    _finish(ctx, attack_lira, shadows=shadows, size=size, epochs=epochs)


def _finish(ctx: typer.Context, attack: Callable[..., Attacked], **settings: Any) -> None:
    """Attack the run with the options that these commands share, and print the result."""
    settings |= {name: ctx.params[name] for name in ("seed", "cache") if name in ctx.params}
    with telling() as progress:
        attacked = attack(ctx.params["run"], progress=progress, **settings)
    result = attacked.to_json()
    answer(ctx.params["as_json"], result, reports.membership(result, attacked.title))


# ---- Audits ----------------------------------------------------------------------------------------------------------

Z0 = Annotated[float, "Noise multiplier. Sound: noise over sensitivity; as printed: std(y)/C of one device."]
Confidence = Annotated[float, "With which the lower bound on epsilon holds."]

audit_app = App(no_args_is_help=True, help="Audits: put a claimed epsilon to the test.")


@audit_app.command()
def mechanism(
    as_printed: AsPrinted = False,
    gpus: Gpus = 8,
    z0: Z0 = 1.0,
    clip: Clip = 1.0,
    delta: Delta = 1e-5,
    micro_batch_size: MicroBatchSize = 8,
    alpha_max: AlphaMax = 1.0,
    alpha: Annotated[
        str | None,
        typer.Option(
            "--alpha",
            "--alpha-source",
            help="Layer scales from: none, public, noised (if sound) or private (as printed), audited as if public "
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
    if alpha == Alpha.PRIVATE and not as_printed:
        raise UsageError(
            "--alpha private is Algorithm 1 as printed: add --as-printed, or choose none, public or noised"
        )
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
    method: Annotated[str, "edp-sgd, or dp-sgd (every utterance clipped alone)."] = "edp-sgd",
    as_printed: AsPrinted = False,
    gpus: Gpus = 8,
    z0: Z0 = 1.0,
    clip: Clip = 1.0,
    batch_size: BatchSize = 64,
    micro_batch_size: Annotated[
        int | None, "Utterances that share a clip (default: batch size over devices; dp-sgd: 1)."
    ] = None,
    sampling: Annotated[str | None, "shuffle, or poisson (dp-sgd only) (default: shuffle; poisson for dp-sgd)."] = None,
    epochs: Epochs = 1,
    size: Annotated[str, "Of the model: small or paper."] = "small",
    pretrained: Annotated[str | None, "FastText .vec, a folder of edp-lab pretrain, or a BERT hub name."] = None,
    delta: Delta = 1e-5,
    confidence: Confidence = 0.95,
    seed: Annotated[int, "Of split, weights, order, canaries and noise.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Train once with many canaries: a lower bound on the run's epsilon beside the epsilon that is claimed.

    Every canary is in or out by a coin. An attacker who sees what the run releases guesses which; more right
    guesses than the claim allows refute it (Steinke, Nasr and Jagielski 2023). All layer scales alpha are 1.

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
    config = chosen(
        ctx,
        TrainConfig,
        corpus=corpus or "",
        model="clc" if linear else model,
        alpha="none",
        dropout=0.0,  # it would only make canaries harder to remember
    )
    one_thread_if_small(size)
    with bar("steps", patience=PATIENCE) as (update, _):
        audit = audit_one_run(config, canaries, linear, confidence, update)
    answer(as_json, {**asdict(audit), "corpus": corpus, "seed": seed}, reports.audited_run(audit, corpus))
