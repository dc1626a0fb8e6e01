"""``edp-lab three-phase``: the thesis' architecture, run and accounted for."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edp_lab.cli.options import App, Delta, Json, chosen
from edp_lab.cli.output import bar, print_json, screen, table
from edp_lab.errors import UsageError

if TYPE_CHECKING:
    from edp_lab.three_phase.phases import Event, Part, ThreePhaseRecord

MEANS = ("precision", "recall", "f_score")
EPSILONS = ("epsilon", "of image")  # of one training example, and of its image alone

three_phase_app = App(no_args_is_help=True, help="The thesis' input noise, instructors and understudy.")


@three_phase_app.callback()
def _three_phases() -> None:
    pass


@three_phase_app.command()
def run(
    ctx: typer.Context,
    data: Annotated[str, "digits (embedded) or mnist (edp-lab data fetch mnist)."] = "digits",
    model: Annotated[str, "cnn (two convolutions), alexnet, vgg or mlp."] = "cnn",
    phases: Annotated[str, "Which phases take part, such as 1,2,3 or 2,3."] = "1,2,3",
    sigma: Annotated[float, "Phase I: standard deviation of the noise on a pixel in [0, 1]."] = 0.6,
    instructors: Annotated[int, "Phase II: networks on disjoint parts of the training set."] = 10,
    vote: Annotated[str, "hard, soft, laplace, gaussian or confident."] = "laplace",
    vote_epsilon: Annotated[float, "Of one noised label; all of them together cost more."] = 0.2,
    labels: Annotated[int | None, "Public images put to the vote (default: all)."] = None,
    method: Annotated[str, "Training of the instructors: adam, dp-adam, sgd ..."] = "adam",
    understudy: Annotated[str, "Phase III: training of the understudy, likewise."] = "adam",
    train_epsilon: Annotated[float, "Of each network trained with a private method."] = 7.0,
    delta: Delta = 1e-5,
    epochs: Annotated[int | None, "Of every network (default: as its examples need)."] = None,
    seed: Annotated[int, "Published, so that the run can be repeated."] = 0,
    private_seed: Annotated[bool, "Draw all noise from a secret key, so that epsilon holds."] = False,
    workers: Annotated[
        int | None, "Processes that train instructors (default: one, or one per core for mnist)."
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the three phases: accuracy and epsilon of every part, and what the thesis says beside what holds."""
    from edp_lab.corpora.images import load_images
    from edp_lab.three_phase.phases import ThreePhaseSettings, run_three_phase

    settings = chosen(ctx, ThreePhaseSettings, phases=_phases(phases))
    images = load_images(data, seed)
    with bar("training") as (update, say):

        def listen(event: Event) -> None:
            update(event.epoch, event.epochs, description=event.part)
            if event.epoch == event.epochs:
                accuracy = "" if event.accuracy is None else f"  accuracy {event.accuracy:.3f}"
                say(f"{event.part:<16} {event.epochs:>4} epochs  loss {event.loss:.3f}{accuracy}")

        record = run_three_phase(settings, images, listen)
    if as_json:
        print_json(record.as_json(), allow_nan=False)
    else:
        _print(record)


def _phases(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"phases are {text!r}: give some of 1, 2 and 3, such as 1,2,3") from None


def _print(record: ThreePhaseRecord) -> None:
    console = screen()
    settings, data = record.settings, record.data
    seed = "secret" if settings.private_seed else settings.seed
    console.print(
        f"phases {', '.join(map(str, settings.phases))} on {data['name']}: {data['train']:,} private training images, "
        f"{data['public']:,} public, {data['test']:,} to test on; {settings.model}, seed {seed}"
    )
    console.print(_parts(record))
    for why in dict.fromkeys(part.why for part in record.parts):
        names = dict.fromkeys(_name(part, record) for part in record.parts if part.why == why)
        console.print(f"epsilon of {', '.join(names)}: {why}")
    if any(part.image_epsilon is not None for part in record.parts) and not settings.private_seed:
        console.print(f"seed {seed} is published: who knows it redraws the noise; --private-seed makes epsilons hold")
    console.print("\n" + _cost(record))
    beside = Table("", "the thesis says", "here", box=SIMPLE_HEAD)
    for row in record.comparisons:
        beside.add_row(row.row, row.thesis, row.here)
    console.print(beside)


def _parts(record: ThreePhaseRecord) -> Table:
    """Instructors share a row: the mean of their scores, and from which accuracy to which."""
    from edp_lab.three_phase.phases import THESIS_ACCURACY

    lines = [["", "examples", "accuracy %", "thesis", "precision", "recall", "F-score", "seconds", *EPSILONS]]
    thesis = THESIS_ACCURACY.get(record.settings.model, {})
    for name in dict.fromkeys(_name(part, record) for part in record.parts):
        parts = [part for part in record.parts if _name(part, record) == name]
        printed = f"{100 * thesis[name]:.0f}" if name in thesis else ""
        means = [f"{100 * statistics.fmean(getattr(part.scores, mean) for part in parts):.1f}" for mean in MEANS]
        seconds = f"{sum(part.seconds for part in parts):.1f}" if parts[0].rows else ""
        epsilons = [_worst([getattr(part, kind) for part in parts]) for kind in ("epsilon", "image_epsilon")]
        lines.append([name, f"{parts[0].examples:,}", _accuracy(parts), printed, *means, seconds, *epsilons])
    return table(lines, show_edge=True, pad_edge=True)


def _name(part: Part, record: ThreePhaseRecord) -> str:
    from edp_lab.three_phase.phases import of_instructors

    return of_instructors(record.settings.instructors) if part.name.startswith("instructor") else part.name


def _accuracy(parts: list[Part]) -> str:
    """With its 95 % interval, or of several networks the mean, and the range from worst to best."""
    found = [100 * part.scores.accuracy for part in parts]
    if len(parts) > 1:
        return f"{statistics.fmean(found):.1f} [{min(found):.0f} to {max(found):.0f}]"
    low, high = (100 * end for end in parts[0].scores.interval)
    return f"{found[0]:.1f} ({low:.0f} to {high:.0f})"


def _worst(epsilons: list[float | None]) -> str:
    known = [epsilon for epsilon in epsilons if epsilon is not None]
    return f"{max(known):.4g}" if len(known) == len(epsilons) else "none"


def _cost(record: ThreePhaseRecord) -> str:
    from edp_lab.three_phase.phases import ONE, PLAIN, of_instructors

    account, labels = record.privacy, record.labels
    if account is None or labels is None:
        return "No label was released, so none was accounted for."
    settings = record.settings
    alone = ONE if 1 in settings.phases else PLAIN
    voters = of_instructors(settings.voters) if 2 in settings.phases else f"the {alone}"
    if not account.composed:
        return f"{settings.vote} vote of {voters}: {labels.queries:,} labels without noise, no guarantee."
    ways = ", ".join(f"{way} {epsilon:.4g}" for way, epsilon in account.composed.items())
    status = "" if record.status == "holds" else f" ({record.status})"
    return (
        f"{settings.vote} vote of {voters}: {labels.queries:,} labels asked, {labels.answered:,} answered, "
        f"{labels.right:.1%} of these right; one training example replaced: epsilon {account.epsilon:.4g} at delta "
        f"{account.delta:g}{status}, by way of adding up: {ways}.\n"
        f"For these very votes {account.data_dependent_epsilon:.4g}: {account.data_dependent_note}."
    )
