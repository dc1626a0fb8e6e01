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
    from edp_lab.attacks.mechanism_audit import ErrorRate, MechanismAudit

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
    delta: Annotated[float, typer.Option(help="Probability that epsilon's promise fails.")] = 1e-5,
    micro_batch_size: Annotated[
        int, typer.Option(help="Utterances that share one clipped gradient; 1 is per-example DP-SGD.")
    ] = 8,
    alpha_max: Annotated[float, typer.Option(help="Largest layer scale alpha, as printed.")] = 1.0,
    alpha: Annotated[
        str | None,
        typer.Option(
            "--alpha",
            "--alpha-source",
            help="Layer scales from: none, public or private, which is audited as if public "
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

    from edp_lab.attacks.mechanism_audit import audit_mechanism
    from edp_lab.errors import UsageError

    if seed < 0:
        raise UsageError(f"seed is {seed}: it must be 0 or more")
    from edp_lab.privacy import Alpha, Mechanism
    from edp_lab.privacy.noise import key_from_seed

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


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, hidden until the work has taken a while."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("draws", total=total, visible=False)

        def show(done: int) -> None:
            bar.update(task, completed=done, visible=(bar.tasks[task].elapsed or 0) > PATIENCE)

        yield show


def _print(audit: MechanismAudit) -> None:
    described, sound = audit.mechanism, audit.mechanism.variant == "sound"

    def number(value: float | None) -> str:
        return "none" if value is None else f"{value:.6g}"

    def errors(rate: ErrorRate) -> str:
        return f"{rate.errors:,} of {audit.draws:,} (probability at most {rate.upper_limit:.3g})"

    name = "sound eDP-SGD" if sound else "Algorithm 1 as printed"
    settings = (
        f"{described.num_devices} devices, micro-batches of {described.micro_batch_size}, alpha {described.alpha}"
    )
    largest = "" if described.alpha_max == 1 else f" up to {described.alpha_max:g}"
    print(f"{name}, one step: {settings}{largest}, C {described.clip_norm:g}, z0 {described.z0:g}")
    neighbours = f"neighbours: zero-out, delta {audit.delta:.3g}"
    print(f"noise over sensitivity {number(audit.noise_multiplier)}; {neighbours}\n")
    how = "the sound epsilon itself" if sound else "zCDP, z at face value"
    print(f"  claimed    epsilon    {number(audit.epsilon_claimed):<8}  ({how})")
    held = "exact" if audit.epsilon_holds is not None else "no guarantee"
    if audit.epsilon_holds is None and audit.epsilon_if_alpha_public is not None:
        held += f"; had alpha come from public text: {number(audit.epsilon_if_alpha_public)}"
    print(f"  holds      epsilon    {number(audit.epsilon_holds):<8}  ({held})")
    free = f"without assuming Gaussian noise: >= {number(audit.bounds.distribution_free)}"
    print(f"  measured   epsilon >= {number(audit.epsilon_lower_bound):<8}  ({free})")
    print(f"  so many draws could show at most {number(audit.ceiling)}\n")
    print("  canary: one utterance whose gradient is as large as the clip allows; the attack guesses if it was there")
    print(f"  guessed there, but was not  {errors(audit.false_positive_rate)}")
    print(f"  missed, but was there       {errors(audit.false_negative_rate)}\n")
    print(textwrap.fill(f"{audit.verdict}: {audit.explanation}", 100))
