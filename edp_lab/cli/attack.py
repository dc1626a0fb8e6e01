"""``edp-lab attack``: who was in the training set, and what a model remembers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.api_attacks import extraction, inversion
from edp_lab.cli.memorisation import canaries
from edp_lab.cli.train import Json

if TYPE_CHECKING:
    from edp_lab.attacks.membership.attacks import Attacked

attack_app = typer.Typer(
    no_args_is_help=True,
    help="Attack a trained model: who was in its training set, what it remembers, how it is stolen.",
)
for command in (canaries, extraction, inversion):
    attack_app.command()(command)

RunFolder = Annotated[Path, typer.Option("--run", help="Folder of a run: the --out of edp-lab train.")]
Fpr = Annotated[str, typer.Option(help="False positive rates at which to give the true one, with commas between.")]
Confidence = Annotated[float, typer.Option(help="Of the intervals.", min=0.5, max=0.9999)]
Cache = Annotated[
    Path | None, typer.Option(help="Where trained shadow models are kept. (default: the user's cache)", hidden=False)
]
Seed = Annotated[int, typer.Option(help="Of the shadow models and the classifier.")]
Against = Annotated[
    Path | None, typer.Option(help="Also attack this run of the same corpus and seed, and show how the AUC changes.")
]
Out = Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")]


@attack_app.command()
def loss(
    run: RunFolder,
    fpr: Fpr = "0.01,0.001",
    confidence: Confidence = 0.95,
    against: Against = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The floor: call those members whose loss is low. No training."""
    from edp_lab.attacks.membership.attacks import attack_loss

    _finish(lambda run, told: attack_loss(run, _rates(fpr), confidence), run, against, out, as_json)


@attack_app.command()
def shadow(
    run: RunFolder,
    shadow: Annotated[
        list[str] | None,
        typer.Option(
            help="Public corpus of a shadow model; may be repeated; 'generated' is a fresh smart-home corpus. "
            "(default: another corpus at hand)"
        ),
    ] = None,
    classifier: Annotated[str, typer.Option(help="forest, boosting, logistic or mlp.")] = "forest",
    fpr: Fpr = "0.01,0.001",
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    cache: Cache = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Train shadow models by SGD, not by the target's method.")
    ] = False,
    against: Against = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The paper's attack: a shadow model on a public corpus teaches a classifier what members look like."""
    from edp_lab.attacks.membership.attacks import attack_shadow

    _finish(
        lambda run, told: attack_shadow(
            run, tuple(shadow or ()), classifier, _rates(fpr), confidence, seed, cache, plain, told
        ),
        run,
        against,
        out,
        as_json,
    )


@attack_app.command()
def lira(
    run: RunFolder,
    shadows: Annotated[
        int, typer.Option(help="Shadow models, an even number; each is trained on half of the pool.")
    ] = 16,
    offline: Annotated[
        bool, typer.Option("--offline", help="Use only the shadow models that were not trained on an utterance.")
    ] = False,
    size: Annotated[str | None, typer.Option(help="Of the shadow models. (default: the target's)")] = None,
    epochs: Annotated[int | None, typer.Option(help="Of the shadow models. (default: the target's)")] = None,
    fpr: Fpr = "0.01,0.001",
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    cache: Cache = None,
    against: Against = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The strong attack (Carlini et al. 2022): how likely is this confidence with, and without, the utterance?"""
    from edp_lab.attacks.membership.attacks import attack_lira

    _finish(
        lambda run, told: attack_lira(
            run, shadows, not offline, size, epochs, _rates(fpr), confidence, seed, cache, told
        ),
        run,
        against,
        out,
        as_json,
    )


def _rates(text: str) -> tuple[float, ...]:
    from edp_lab.errors import UsageError

    try:
        rates = tuple(float(number) for number in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < 1 for rate in rates):
        raise UsageError(f"--fpr is {text!r}: give rates between 0 and 1 with commas between, such as 0.01,0.001")
    return rates


def _finish(
    attack: Callable[[Path, Callable[[str], None]], Attacked],
    run: Path,
    against: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    from edp_lab.attacks.membership.attacks import change, same_pool
    from edp_lab.errors import UsageError
    from edp_lab.models.files import write_whole

    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise UsageError(f"{out} cannot be written: give --out a file in a folder that exists")
    if against is not None:
        same_pool(against, run)
    with _telling() as told:
        before = None if against is None else attack(against, told)
        attacked = attack(run, told)
    changed = None if before is None else change(before, attacked)
    result = json.dumps({**attacked.to_json(), "change": changed}, indent=2, allow_nan=False)
    print(result if as_json else "\n".join([*_lines(attacked), *_change_line(changed)]))
    if out is not None:
        try:
            write_whole(out, f"{result}\n".encode())
        except OSError as error:
            raise UsageError(f"{out} cannot be written ({error.strerror}): give another --out") from None


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """What is being done: in one changing line on a terminal, else a line each on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: print(what, file=sys.stderr, flush=True)
        return
    with console.status("loading") as status:
        yield status.update


def _lines(attacked: Attacked) -> list[str]:
    result: dict[str, Any] = attacked.to_json()
    percent = f"{100 * result['confidence']:g} %"
    low, high = result["auc_interval"]
    lines = [
        f"{attacked.title}: {result['members']} members, {result['non_members']} non-members",
        f"  AUC            {result['auc']:.4f}  ({percent}: {low:.4f} to {high:.4f})   0.5 is guessing",
    ]
    for rate, found in result["tpr_at_fpr"].items():
        name = f"TPR at {100 * float(rate):g} %"
        if found["value"] is None:
            lines.append(f"  {name:<14} no number: {found['why']}")
        else:
            lines.append(f"  {name:<14} {_rate(found, percent)}   guessing there: {_rate(found['guessing'])}")
    lines += [f"  advantage      {result['advantage']:.4f}", f"guarantee: {attacked.bound_said}"]
    if (bound := result["bound"]) is not None:
        rates = ", ".join(f"{value:.4f} at {100 * float(fpr):g} %" for fpr, value in bound["tpr_at_fpr"].items())
        lines.append(f"  and the TPR by {rates} FPR, the advantage by {bound['advantage']:.4f}")
    return [*lines, f"guards: {result['guards']['said']}", f"verdict: {attacked.verdict}"]


def _rate(found: dict[str, Any], before: str = "") -> str:
    low, high = found["interval"]
    return f"{found['value']:.4f}  ({before + ': ' if before else ''}{low:.4f} to {high:.4f})"


def _change_line(changed: dict[str, Any] | None) -> list[str]:
    if changed is None:
        return []
    relative, low, high = (100 * number for number in (changed["relative"], *changed["interval"]))
    return [f"AUC against {changed['against']}: {relative:+.1f} % ({low:+.1f} to {high:+.1f} %)"]
