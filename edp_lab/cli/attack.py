"""``edp-lab attack``: membership inference and memorisation. ``edp-lab audit``: test a claimed epsilon."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.account import AlphaMax, AsPrinted, MicroBatchSize, described, name_of
from edp_lab.cli.terminal import (
    App,
    BatchSize,
    Clip,
    Corpus,
    Delta,
    Epochs,
    Facts,
    Gpus,
    Json,
    Report,
    RunFolder,
    Screen,
    Size,
    answer,
    bar,
    chosen,
    commas,
    down,
    number,
    numbers,
    print_json,
    telling,
    up,
)
from edp_lab.cli.train import listening, one_thread_if_small
from edp_lab.errors import UsageError
from edp_lab.training.config import COUNT, SEED, TrainConfig

if TYPE_CHECKING:
    from edp_lab.attacks.canaries import Memorisation
    from edp_lab.attacks.loss import Attacked
    from edp_lab.attacks.one_run import OneRunAudit
    from edp_lab.attacks.step_audit import MechanismAudit
    from edp_lab.training.run_files import Event

attack_app = App(
    no_args_is_help=True,
    help="Attack a model: find its training data and what it memorised.",
)

# ---- Memorisation ----------------------------------------------------------------------------------------------------

SETTINGS = ("corpus", "model", "size", "epochs", "batch_size", "seed", "clip_norm", "z0", "num_devices")


@attack_app.command()
def canaries(
    ctx: typer.Context,
    corpus: Corpus = "smart-home",
    methods: Annotated[
        str, "Methods to compare, separated by commas: sgd, edp-sgd-as-printed, edp-sgd, dp-sgd."
    ] = "sgd,edp-sgd-as-printed,edp-sgd,dp-sgd",
    repetitions: Annotated[str, "Numbers of copies of a canary, separated by commas; 0 is the control."] = "0,1,4,16",
    each: Annotated[int, typer.Option("--canaries", help="Number of canaries per repetition count.", **COUNT)] = 8,
    references: Annotated[
        int, "Number R of alternatives that each canary is ranked against; exposure is at most log2(R + 1).", COUNT
    ] = 9_999,
    epochs: Epochs = 6,
    size: Size = "small",
    z0: Annotated[float, "Noise multiplier, as each method defines it."] = 0.03,
    clip: Clip = 1.0,
    gpus: Gpus = 8,
    seed: Annotated[int, "Seed of the split, canaries, initial weights, batches and noise.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Insert utterances with a personal number into the training set, and test whether trained models reveal it.

    Exposure, in bits, measures how low the loss of the true number ranks among the losses of other numbers. The
    epsilon of a canary inserted k times is the epsilon of k utterances together.
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
        epsilon = up(row.epsilon_if_seed_secret, 3) if row.repetitions else "-"
        lines.append([row.method, str(row.repetitions), *exposure, *extracted, epsilon])
    Screen().table(lines)
    Screen().report(_canaries_to_read(rows, fillings))


def _canaries_to_read(rows: Sequence[Memorisation], fillings: int) -> Report:
    """Report to print below the table."""
    scores = {row.method: f"{row.method} {row.test_ser:.3f}" for row in rows}
    facts = [
        ("exposure", f"mean bits: about 1.44 without memorisation, at most {rows[0].cap:.2f} (rank 1 of {fillings:,})"),
        ("extracted", "number of canaries with rank 1 (those with 0 copies, the control, were never inserted)"),
        ("test SER", ", ".join(scores.values())),
    ]
    if held := [row for row in rows if row.epsilon_if_seed_secret is not None]:
        facts.append(("epsilon", f"for all copies together, at delta {held[0].delta:.2g}, if the seed were secret"))
    for row in {row.method: row for row in rows if row.repetitions and row.epsilon_if_seed_secret is None}.values():
        claimed = "" if row.claimed_epsilon is None else f"; claimed epsilon {row.claimed_epsilon:.3g}"
        facts.append((row.method, f"no guarantee: {row.reason}{claimed}"))
    return Report(facts=facts)


# ---- Membership inference --------------------------------------------------------------------------------------------

Cache = Annotated[Path | None, "Folder for cached results of shadow models. (default: the user's cache)"]
Seed = Annotated[int, "Seed of the shadow models and the classifier.", SEED]


@attack_app.command()
def loss(ctx: typer.Context, run: RunFolder, as_json: Json = False) -> None:
    """Run the baseline attack, which trains nothing: utterances with a low loss are classified as members."""
    from edp_lab.attacks.loss import attack_loss

    _finish(ctx, lambda run, progress, **settings: attack_loss(run, **settings))


@attack_app.command()
def shadow(
    ctx: typer.Context,
    run: RunFolder,
    shadow: Annotated[
        str | None,
        "Public corpus for the shadow model; 'generated' is a fresh smart-home corpus. "
        "(default: another downloaded corpus)",
    ] = None,
    seed: Seed = 0,
    cache: Cache = None,
    plain: Annotated[bool, "Train the shadow model with SGD instead of the target's method."] = False,
    as_json: Json = False,
) -> None:
    """Run the paper's attack: train a classifier to recognise members, using a shadow model of a public corpus."""
    from edp_lab.attacks.shadow import attack_shadow

    _finish(ctx, attack_shadow, shadow=shadow, plain=plain)


@attack_app.command()
def lira(
    ctx: typer.Context,
    run: RunFolder,
    shadows: Annotated[int, "Even number of shadow models, each trained on half of the pool.", COUNT] = 16,
    size: Annotated[str | None, "Size of the shadow models (default: the target's)."] = None,
    epochs: Annotated[int | None, "Number of epochs for the shadow models (default: the target's).", COUNT] = None,
    seed: Seed = 0,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Run LiRA, a strong attack (Carlini et al. 2022): compare models trained with and without an utterance."""
    from edp_lab.attacks.lira import attack_lira

    _finish(ctx, attack_lira, shadows=shadows, size=size, epochs=epochs)


def _finish(ctx: typer.Context, attack: Callable[..., Attacked], **settings: Any) -> None:
    """Attack the run with the options that these commands share, and print the result."""
    settings |= {name: ctx.params[name] for name in ("seed", "cache") if name in ctx.params}
    with telling() as progress:
        attacked = attack(ctx.params["run"], progress=progress, **settings)
    result = attacked.to_json()
    answer(ctx.params["as_json"], result, _membership_to_read(result, attacked.title))


def _span(ends: Sequence[float]) -> str:
    return f"{ends[0]:.4f} to {ends[1]:.4f}"


def _membership_to_read(result: Mapping[str, Any], title: str) -> Report:
    """Format the JSON result of a membership attack for reading."""
    sure, bound = f"{100 * result['confidence']:g} %", result["bound"]
    facts = [("AUC", f"{result['auc']:.4f} ({sure}: {_span(result['auc_interval'])}); random guessing 0.5")]
    for rate, at in result["tpr_at_fpr"].items():
        if at["value"] is None:
            text = f"no number: {at['why']}"
        else:
            guess = at["guessing"]
            text = f"{at['value']:.4f} ({sure}: {_span(at['interval'])})"
            text += f"; random guessing {guess['value']:.4f} ({_span(guess['interval'])})"
        facts.append((f"TPR at {100 * float(rate):g} %", text))
    facts += [("advantage", f"{result['advantage']:.4f}"), ("guarantee", result["bound_said"])]
    if bound is not None:
        rates = [f"TPR at most {most:.4f} at {100 * float(rate):g} % FPR" for rate, most in bound["tpr_at_fpr"].items()]
        facts.append(("", ", ".join([*rates, f"advantage at most {bound['advantage']:.4f}"])))
    facts += [("guards", result["guards"]["message"]), ("verdict", result["verdict"])]
    return Report(f"{title}: {result['members']} members, {result['non_members']} non-members", facts)


# ---- Audits ----------------------------------------------------------------------------------------------------------

Z0 = Annotated[float, "Noise multiplier: std(noise)/sensitivity; with --as-printed, std(y)/C for one device."]
Confidence = Annotated[float, "Confidence level of the lower bound on epsilon."]

audit_app = App(no_args_is_help=True, help="Audit a claimed epsilon.")


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
            help="Source of the layer scales alpha: none, public, or private (audited as if public; only with "
            "--as-printed). (default: none; public with --as-printed)",
        ),
    ] = None,
    draws: Annotated[int, "Number of steps to simulate with the canary, and again without it."] = 10_000,
    confidence: Confidence = 0.95,
    seed: Annotated[int, "Seed of the noise.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Simulate one step with and without a canary; print a lower bound on epsilon and the claimed epsilon.

    No model is trained. The claim for one step is the paper's zCDP epsilon (as printed) or the guaranteed one (sound).
    """
    from edp_lab.attacks.step_audit import audit_mechanism
    from edp_lab.privacy import Alpha
    from edp_lab.privacy.csprng import key_from_seed

    if alpha is None:
        alpha = Alpha.PUBLIC if as_printed else Alpha.NONE
    if alpha == Alpha.PRIVATE and not as_printed:
        raise UsageError("--alpha private is Algorithm 1 as printed: add --as-printed, or choose none or public")
    sizes = {"num_devices": gpus, "micro_batch_size": micro_batch_size}
    tested = described(as_printed, alpha_max, None, clip_norm=clip, z0=z0, alpha=alpha, **sizes)
    with bar("draws", total=2 * draws) as (update, _):
        audit = audit_mechanism(tested, delta, key_from_seed(seed), draws, confidence, update)
    answer(as_json, {**asdict(audit), "seed": seed}, _step_to_read(audit))


@audit_app.command("one-run")
def one_run(
    ctx: typer.Context,
    corpus: Annotated[str | None, "A name from `edp-lab data list`, or a path; not with --model linear."] = None,
    model: Annotated[str, "Model: clc, bert, or linear (a single layer without a corpus)."] = "clc",
    canaries: Annotated[int, "Number of canaries; each is included with probability 1/2.", COUNT] = 1000,
    method: Annotated[str, "Method: edp-sgd, or dp-sgd (every utterance clipped individually)."] = "edp-sgd",
    as_printed: AsPrinted = False,
    gpus: Gpus = 8,
    z0: Z0 = 1.0,
    clip: Clip = 1.0,
    batch_size: BatchSize = 64,
    micro_batch_size: Annotated[
        int | None, "Number of utterances clipped together (default: batch size / devices; 1 for dp-sgd)."
    ] = None,
    epochs: Epochs = 1,
    size: Annotated[str, "Model size: small or paper."] = "small",
    pretrained: Annotated[str | None, "Weights: a .vec file, an edp-lab pretrain folder, or a BERT hub name."] = None,
    delta: Delta = 1e-5,
    confidence: Confidence = 0.95,
    seed: Annotated[int, "Seed of the split, weights, batches, canaries and noise.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Train once with many canaries; print a lower bound on the run's epsilon and the claimed epsilon.

    A coin toss decides whether each canary is included. An attacker guesses the tosses from the run's releases. More
    correct guesses than the claim allows refute it (Steinke, Nasr and Jagielski 2023). All layer scales alpha are 1.

    Try: edp-lab audit one-run --model linear --as-printed --z0 4
    """
    from edp_lab.attacks.one_run import audit_one_run

    linear = model == "linear"
    if model not in ("clc", "bert", "linear"):
        raise UsageError(f"unknown model {model!r}: choose clc, bert or linear")
    for option, value in (("--corpus", corpus), ("--pretrained", pretrained)) if linear else ():
        if value is not None:
            raise UsageError(f"the linear model uses only canaries: drop {option}, or choose another --model")
    if not linear and corpus is None:
        raise UsageError("an audit of a CLC or BERT needs a corpus: give --corpus, or choose --model linear")
    config = chosen(
        ctx,
        TrainConfig,
        corpus=corpus or "",
        model="clc" if linear else model,
        alpha="none",
        sampling="shuffle",
        dropout=0.0,  # dropout would only make canaries harder to memorise
    )
    one_thread_if_small(size)
    with bar("steps") as (update, _):
        audit = audit_one_run(config, canaries, linear, confidence, update)
    answer(as_json, {**asdict(audit), "corpus": corpus, "seed": seed}, _run_to_read(audit, corpus))


def _three_epsilons(a: MechanismAudit | OneRunAudit, held: str, what: str) -> Facts:
    how = "equal to the guaranteed epsilon" if a.mechanism.variant == "sound" else "zCDP, z at face value"
    assuming = f"{down(a.bounds.distribution_free, 4)} without assuming Gaussian noise"
    noise = f"{number(a.noise_multiplier)}; neighbours: zero-out, delta {number(a.delta, 3)}"
    measured = f"at least {down(a.measured_epsilon, 4)} ({assuming})"
    return [
        ("noise / sensitivity", noise),
        ("claimed epsilon", f"{number(a.claimed_epsilon)} ({how})"),
        ("guaranteed epsilon", f"{up(a.epsilon_if_seed_secret)} if the seed were secret ({held})"),
        ("measured epsilon", f"{measured}; this many {what} could show at most {number(a.ceiling, 4)}"),
    ]


def _step_to_read(a: MechanismAudit) -> Report:
    m, public = a.mechanism, a.epsilon_if_alpha_public
    largest = "" if m.alpha_max == 1 else f" up to {m.alpha_max:g}"
    title = f"{name_of(m)}, one step: {m.num_devices} devices, micro-batches of {m.micro_batch_size}, "
    title += f"alpha {m.alpha}{largest}, C {m.clip_norm:g}, z0 {m.z0:g}"
    held = "no guarantee" if public is None else f"no guarantee; {number(public)} if alpha were public"
    facts = _three_epsilons(a, held if a.epsilon_if_seed_secret is None else "exact", "draws")
    facts.append(("canary", "an utterance with the largest gradient that the clip norm allows"))
    for name, rate in (("false alarms", a.false_positive_rate), ("missed", a.false_negative_rate)):
        facts.append((name, f"{rate.errors:,} of {a.draws:,} (probability at most {rate.upper_limit:.3g})"))
    return Report(title, [*facts, ("verdict", f"{a.verdict}: {a.explanation}")])


def _run_to_read(a: OneRunAudit, corpus: str | None) -> Report:
    m = a.mechanism
    held = "no guarantee" if a.epsilon_if_seed_secret is None else "exact"
    epochs = "one epoch" if a.epochs == 1 else f"{a.epochs} epochs"
    title = f"{name_of(m)}, {epochs} of {a.steps // a.epochs} steps, "
    title += "one layer" if corpus is None else f"{a.model} on {corpus}"
    size = f"{m.num_devices} devices, micro-batches of {m.micro_batch_size}, C {m.clip_norm:g}, z0 {m.z0:.4g}"
    facts = [("setting", size), *_three_epsilons(a, held, "canaries")]
    facts.append(("canaries", f"{a.canaries:,}, of which {a.included:,} were included"))
    for tally in a.tallies:
        facts.append(("", f"{tally.correct:,} of {tally.guesses:,} guesses correct"))
    facts.append(("from the final model only", f"at least {a.last_model.distribution_free:.4g}, for any mechanism"))
    return Report(title, [*facts, ("verdict", f"{a.verdict}: {a.explanation}")])
