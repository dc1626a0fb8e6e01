"""``edp-lab audit``: put a claimed epsilon to the test."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from edp_lab.attacks.audit.bounds import ErrorRate
    from edp_lab.attacks.audit.one_run import OneRunAudit
    from edp_lab.attacks.audit.step_audit import MechanismAudit

PATIENCE = 2.0  # seconds before a bar appears

audit_app = typer.Typer(no_args_is_help=True, help="Audits: put a claimed epsilon to the test.")


@audit_app.callback()
def _audits() -> None:
    pass


@audit_app.command()
def mechanism(
    as_printed: Annotated[
        bool, typer.Option("--as-printed", help="Algorithm 1 verbatim instead of the sound mechanism.")
    ] = False,
    gpus: Annotated[int, typer.Option(help="Devices N.")] = 8,
    z0: Annotated[
        float,
        typer.Option(help="Noise multiplier. Sound: noise over sensitivity; as printed: std(y)/C of one device."),
    ] = 1.0,
    clip: Annotated[float, typer.Option(help="Clip norm C.")] = 1.0,
    delta: Annotated[
        float, typer.Option(help="Delta of (epsilon, delta): a slack that should be well below 1/n.")
    ] = 1e-5,
    micro_batch_size: Annotated[
        int, typer.Option(help="Utterances that share one clipped gradient; 1 is per-example DP-SGD.")
    ] = 8,
    alpha_max: Annotated[float, typer.Option(help="Largest layer scale alpha, as printed.")] = 1.0,
    alpha: Annotated[
        str | None,
        typer.Option(
            "--alpha",
            "--alpha-source",
            help="Layer scales from: none, public, or, as printed only, private, which is audited as if public "
            "(default: none; public if --as-printed).",
        ),
    ] = None,
    draws: Annotated[int, typer.Option(help="Steps drawn with the canary, and as many without.")] = 10_000,
    confidence: Annotated[float, typer.Option(help="With which the lower bound on epsilon holds.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")] = False,
) -> None:
    """Draw one step with and without a canary: a lower bound on epsilon beside the epsilon that is claimed.

    No training. As printed, the claim is the paper's zCDP epsilon of one step; sound, it is the epsilon that holds.
    """
    from dataclasses import asdict

    from edp_lab.attacks.audit.step_audit import audit_mechanism
    from edp_lab.errors import UsageError

    if seed < 0:
        raise UsageError(f"seed is {seed}: it must be 0 or more")
    from edp_lab.privacy import Alpha, Mechanism
    from edp_lab.privacy.csprng import key_from_seed

    if as_printed:
        source = Alpha.PUBLIC if alpha is None else alpha
        described = Mechanism.as_printed(clip, z0, gpus, micro_batch_size, alpha=source, alpha_max=alpha_max)
    else:
        if alpha_max != 1:
            raise UsageError("--alpha-max matters only as printed (sound noise comes before scaling back): drop it")
        described = Mechanism.sound(clip, z0, gpus, micro_batch_size, alpha=Alpha.NONE if alpha is None else alpha)
    with _bar(2 * draws) as show:
        audit = audit_mechanism(described, delta, key_from_seed(seed), draws, confidence, show)
    if as_json:
        print(json.dumps({**asdict(audit), "seed": seed}, indent=2, allow_nan=False))
    else:
        _print(audit)


@audit_app.command("one-run")
def one_run(
    corpus: Annotated[
        str | None, typer.Option(help="A name from `edp-lab data list`, or a path; --model linear has none.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="clc, bert, or linear (one layer and no corpus: gradient canaries alone, in a second)."),
    ] = "clc",
    canaries: Annotated[int, typer.Option(help="How many; each is in with chance 1/2.")] = 1000,
    kind: Annotated[
        str,
        typer.Option(
            help="gradient (white box: each pushes the gradient its own way as hard as the clip allows) or mislabelled "
            "(black box: utterances with a wrong intent, told by their loss)."
        ),
    ] = "gradient",
    method: Annotated[str, typer.Option(help="edp-sgd, or dp-sgd (every utterance clipped alone).")] = "edp-sgd",
    as_printed: Annotated[
        bool, typer.Option("--as-printed", help="Algorithm 1 verbatim instead of the sound mechanism.")
    ] = False,
    gpus: Annotated[int, typer.Option(help="Devices N.")] = 8,
    z0: Annotated[
        float | None,
        typer.Option(
            help="Noise multiplier (default: 1). Sound: noise over sensitivity; as printed: std(y)/C of one device."
        ),
    ] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Instead of --z0: the noise with which this epsilon holds for the run.")
    ] = None,
    clip: Annotated[float, typer.Option(help="Clip norm C.")] = 1.0,
    batch_size: Annotated[int, typer.Option(help="Utterances per step, over all devices.")] = 64,
    micro_batch_size: Annotated[
        int | None, typer.Option(help="Utterances that share a clip (default: batch size over devices; dp-sgd: 1).")
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(help="shuffle, or poisson (dp-sgd only) (default: shuffle; poisson for dp-sgd)."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 1,
    size: Annotated[str, typer.Option(help="Of the model: small or paper.")] = "small",
    pretrained: Annotated[
        str | None, typer.Option(help="FastText .vec/.bin, a folder of edp-lab pretrain, or a BERT hub name.")
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Delta of (epsilon, delta): a slack that should be well below 1/n.")
    ] = 1e-5,
    confidence: Annotated[float, typer.Option(help="With which the lower bound on epsilon holds.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of split, weights, order, canaries and noise.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")] = False,
) -> None:
    """Train once with many canaries: a lower bound on the run's epsilon beside the epsilon that is claimed.

    Every canary is in or out by a coin. Whoever sees what the run releases guesses which; more right guesses than the
    claim allows refute it (Steinke, Nasr and Jagielski 2023). All layer scales alpha are 1.

    Try: edp-lab audit one-run --model linear --as-printed --z0 4
    """
    from dataclasses import asdict

    from edp_lab.errors import UsageError

    if seed < 0:
        raise UsageError(f"seed is {seed}: it must be 0 or more")
    linear = model == "linear"
    if model not in ("clc", "bert", "linear"):
        raise UsageError(f"unknown model {model!r}: choose clc, bert or linear")
    if linear and corpus is not None:
        raise UsageError("the linear model is made of canaries alone: drop --corpus, or choose another --model")
    if not linear and corpus is None:
        raise UsageError("a run needs --corpus (or --model linear, which has none): name one")
    if z0 is not None and target_epsilon is not None:
        raise UsageError("--target-epsilon decides z0: drop one of them")
    from edp_lab.attacks.audit.one_run import audit_one_run
    from edp_lab.training import TrainConfig

    config = TrainConfig(
        corpus=corpus or "",
        model="clc" if linear else model,
        method=method,
        as_printed=as_printed,
        alpha="none",
        num_devices=gpus,
        z0=1.0 if z0 is None else z0,
        clip_norm=clip,
        batch_size=batch_size,
        micro_batch_size=micro_batch_size,
        sampling=sampling,
        epochs=epochs,
        size=size,
        pretrained=pretrained,
        dropout=0.0,  # it would only make canaries harder to remember
        delta=delta,
        seed=seed,
    )
    if size == "small":
        import torch

        torch.set_num_threads(1)  # small products gain nothing from a second thread
    with _bar(None, "steps") as show:
        audit = audit_one_run(config, canaries, kind, linear, confidence, target_epsilon, show)
    if as_json:
        print(json.dumps({**asdict(audit), "corpus": corpus, "seed": seed}, indent=2, allow_nan=False))
    else:
        _print_one_run(audit, corpus)


@contextmanager
def _bar(total: int | None, what: str = "draws") -> Iterator[Callable[..., None]]:
    """A bar on a terminal, hidden until the work has taken a while; told how much is done, and of how much if new."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total, visible=False)

        def show(done: int, of: int | None = total) -> None:
            bar.update(task, completed=done, total=of, visible=(bar.tasks[task].elapsed or 0) > PATIENCE)

        yield show


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


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
    neighbours = f"neighbours: zero-out, delta {audit.delta:.3g}"
    print(f"noise over sensitivity {_number(audit.noise_multiplier)}; {neighbours}\n")
    how = "the sound epsilon itself" if sound else "zCDP, z at face value"
    print(f"  claimed    epsilon    {_number(audit.epsilon_claimed):<8}  ({how})")
    held = "exact" if audit.epsilon_holds is not None else "no guarantee"
    if audit.epsilon_holds is None and audit.epsilon_if_alpha_public is not None:
        held += f"; had alpha come from public text: {_number(audit.epsilon_if_alpha_public)}"
    print(f"  holds      epsilon    {_number(audit.epsilon_holds):<8}  ({held})")
    free = f"without assuming Gaussian noise: >= {_number(audit.bounds.distribution_free)}"
    print(f"  measured   epsilon >= {_number(audit.epsilon_lower_bound):<8}  ({free})")
    print(f"  so many draws could show at most {_number(audit.ceiling)}\n")
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
    neighbours = "zero-out" if described.sampling_rate is None else "add or remove one utterance"
    print(
        f"noise over sensitivity {_number(audit.noise_multiplier)}; neighbours: {neighbours}, delta {audit.delta:.3g}\n"
    )
    how = "the sound epsilon itself" if sound else "zCDP, z at face value"
    print(f"  claimed    epsilon    {_number(audit.epsilon_claimed):<8}  ({how})")
    held = "no guarantee" if audit.epsilon_holds is None else "upper bound" if sampled else "exact"
    print(f"  holds      epsilon    {_number(audit.epsilon_holds):<8}  ({held})")
    free = f"without assuming Gaussian noise: >= {audit.bounds.distribution_free:.4g}"
    if audit.bounds.gaussian is None:
        free = "for any mechanism"
    print(f"  measured   epsilon >= {audit.epsilon_lower_bound:<8.4g}  ({free})")
    print(f"  so many canaries could show at most {audit.ceiling:.4g}\n")
    what = "gradients of their own direction" if audit.kind == "gradient" else "utterances with a wrong intent"
    print(f"  {audit.canaries:,} canaries ({what}), {audit.included:,} of them in")
    for tally in audit.tallies:
        print(f"  {tally.correct:,} of {tally.guesses:,} guesses right ({tally.correct / tally.guesses:.1%})")
    print(f"\n{textwrap.fill(f'{audit.verdict}: {audit.explanation}', 100)}")
