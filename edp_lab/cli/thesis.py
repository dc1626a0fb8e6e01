"""``edp-lab reproduce thesis``: its tables, ours beside theirs; ``edp-lab three-phase``: its architecture."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edp_lab.cli import reports
from edp_lab.cli.options import CORES, COUNT, Delta, Json, chosen, commas, numbers
from edp_lab.cli.output import Screen, Tell, bar, number, print_json, telling
from edp_lab.errors import UsageError
from edp_lab.training.config import SEED

if TYPE_CHECKING:
    from edp_lab.reproduce.thesis import Lab, Row
    from edp_lab.three_phase.phases import Event, Part, ThreePhaseRecord


def thesis(
    table: Annotated[
        list[str] | None, "4.1 to 4.8, 6.1, 6.2 or times; several with commas, or repeated. (default: all)"
    ] = None,
    quick: Annotated[bool, "Digits and short training: minutes on one core."] = False,
    data: Annotated[str | None, "digits or mnist. (default: mnist if at hand; digits if --quick)"] = None,
    repeats: Annotated[int | None, "Of all that is trained on images (default: 3; 1 if --quick).", COUNT] = None,
    out: Annotated[Path, "Folder of finished networks."] = Path("runs/reproduce-thesis"),
    seed: Annotated[int, "Of the first repeat; published, so that a table can be repeated.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Train the thesis' tables again: our scores beside the printed ones, and the guaranteed epsilon.

    In full, on MNIST, it takes about ten hours on two cores, a third of that with --repeats 1. Finished networks are
    kept in the folder: after a kill, the same command resumes. JSON also has confusion matrices and loss curves.
    """
    from edp_lab.reproduce.thesis import TABLES

    tables = commas(*table or TABLES)
    for name in tables:
        if name not in TABLES:
            raise UsageError(f"unknown table {name!r}: choose {', '.join(TABLES)}")
    with telling() as tell:
        from edp_lab.reproduce.thesis import Lab, reproduce

        lab = Lab(out, _scale(quick, data, repeats, tell), seed, tell)
        try:
            rows = [*reproduce(lab, tables)]
        except KeyboardInterrupt:
            tell(f"interrupted; finished networks are kept in {out}: the same command resumes from there", True)
            raise
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        _show(lab, rows)


def _scale(quick: bool, data: str | None, repeats: int | None, tell: Tell) -> Any:
    from edp_lab.corpora.images import load_images
    from edp_lab.reproduce.thesis import FULL, QUICK

    scale = QUICK if quick else FULL
    if data is not None:
        scale = replace(scale, data=data)
    elif not quick:
        try:
            load_images(scale.data)
        except UsageError as error:
            tell(f"digits instead of MNIST: {error}", True)
            scale = replace(scale, data="digits")
    return scale if repeats is None else replace(scale, repeats=repeats)


def _show(lab: Lab, rows: Iterable[Row]) -> None:
    """A table for each of the thesis', scores side by side, and notes below."""
    from edp_lab.reproduce.thesis import TABLES

    console, epsilons = Screen(), ["epsilon\nclaimed", "epsilon\nguaranteed", "epsilon\nof image", "delta"]
    for name, found in groupby(rows, lambda row: row.table):
        table, lines = TABLES[name], []
        notes: dict[str, list[str]] = {}
        for row in found:
            claimed, image = (number(epsilon, 4, "") for epsilon in (row.epsilon_claimed, row.epsilon_image))
            told = [claimed, number(row.epsilon, 4), image, number(row.delta, absent="")]
            lines.append([row.name, *_both(row), *told, f"{row.seconds:.1f}"])
            notes.setdefault(row.note, []).append(row.name)
        console.print(f"\n{name if name == 'times' else f'table {name}'}, {table.place}: {table.title}")
        console.table([["thesis / ours", *table.columns, *epsilons, "trained, s"], *lines], padding=(0, 1, 0, 0))
        for note, names in notes.items():
            console.print(note if len(notes) == 1 else f"{', '.join(names)}: {note}", style="dim")
        if table.remark:
            console.print(f"the print: {table.remark}", style="dim")
    console.print(f"\n{reports.thesis_note(lab)}")


def _both(row: Row) -> list[str]:
    """The printed value of each column and ours, the first one with its interval."""
    interval = f" ({row.interval[0]:.0f} to {row.interval[1]:.0f})" if row.interval else ""
    shown = {name: f"{ours:.3g}" if ours < 1000 else f"{ours:.0f}" for name, ours in row.ours.items()}
    return [
        f"{number(row.printed.get(name), 9, '-')} / {ours}{'' if place else interval}"
        for place, (name, ours) in enumerate(shown.items())
    ]


# ---- The three phases ------------------------------------------------------------------------------------------------


def three_phase(
    ctx: typer.Context,
    data: Annotated[str, "digits (embedded) or mnist (edp-lab data fetch mnist)."] = "digits",
    model: Annotated[str, "cnn (two convolutions), alexnet, vgg or mlp."] = "cnn",
    phases: Annotated[str, "Which phases take part, such as 1,2,3 or 2,3."] = "1,2,3",
    sigma: Annotated[float, "Phase I: standard deviation of the noise on a pixel in [0, 1]."] = 0.6,
    instructors: Annotated[int, "Phase II: networks on disjoint parts of the training set.", COUNT] = 10,
    vote: Annotated[str, "hard, laplace or gaussian."] = "laplace",
    vote_epsilon: Annotated[float, "Of one noised label; all of them together cost more."] = 0.2,
    labels: Annotated[int | None, "Public images put to the vote (default: all).", COUNT] = None,
    method: Annotated[str, "Training of the instructors: adam, dp-adam, sgd ..."] = "adam",
    understudy: Annotated[str, "Phase III: training of the understudy, likewise."] = "adam",
    train_epsilon: Annotated[float, "Of each network trained with a private method."] = 7.0,
    delta: Delta = 1e-5,
    epochs: Annotated[int | None, "Of every network (default: as its examples need).", COUNT] = None,
    seed: Annotated[int, "Published, so that the run can be repeated.", SEED] = 0,
    private_seed: Annotated[bool, "Draw all noise from a secret key, so that epsilon holds."] = False,
    workers: Annotated[
        int | None, "Processes that train instructors (default: one, or one per core for mnist).", CORES
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the thesis' three phases: accuracy and epsilon of every part, and what the thesis says beside what holds."""
    from edp_lab.corpora.images import load_images
    from edp_lab.three_phase.phases import run_three_phase
    from edp_lab.three_phase.settings import ThreePhaseSettings

    settings = chosen(ctx, ThreePhaseSettings, phases=numbers("--phases", phases, "1,2,3", most=3))
    images = load_images(data, seed)
    with bar("training") as (update, say):

        def listen(event: Event) -> None:
            update(event.epoch, event.epochs, description=event.part)
            if event.epoch == event.epochs:
                accuracy = "" if event.accuracy is None else f"  accuracy {event.accuracy:.3f}"
                say(f"{event.part:<16} {event.epochs:>4} epochs  loss {event.loss:.3f}{accuracy}")

        record = run_three_phase(settings, images, listen)
    if as_json:
        print_json(record.as_json())
    else:
        _show_run(record)


def _show_run(record: ThreePhaseRecord) -> None:
    from edp_lab.three_phase.phases import of_instructors
    from edp_lab.three_phase.settings import ONE, PLAIN

    console, settings = Screen(), record.settings
    rows: dict[str, list[Part]] = {}  # instructors share one
    for part in record.parts:
        name = of_instructors(settings.instructors) if part.name.startswith("instructor") else part.name
        rows.setdefault(name, []).append(part)
    reasons: dict[str, dict[str, None]] = {}
    for name, parts in rows.items():
        for part in parts:
            reasons.setdefault(part.why, {})[name] = None
    alone = f"the {ONE if 1 in settings.phases else PLAIN}"
    console.table(_scores(rows, settings.model))
    voters = of_instructors(settings.voters) if 2 in settings.phases else alone
    console.report(reports.three_phases(record, reasons, voters))
    beside = Table("", "the thesis says", "here", box=SIMPLE_HEAD)
    for row in record.comparisons:
        beside.add_row(row.row, row.thesis, row.here)
    console.print(beside)


def _scores(rows: Mapping[str, Sequence[Part]], model: str) -> list[list[str]]:
    """Accuracy with its 95 % interval; or of several networks the mean, and the range from worst to best."""
    from edp_lab.three_phase.settings import THESIS_ACCURACY

    thesis, scores = THESIS_ACCURACY.get(model, {}), ("precision", "recall", "F-score")
    lines = [["", "examples", "accuracy %", "thesis", *scores, "seconds", "epsilon", "of image"]]
    for name, parts in rows.items():
        found, (low, high) = [100 * part.scores.accuracy for part in parts], parts[0].scores.interval
        accuracy = f"{statistics.fmean(found):.1f} "
        accuracy += f"[{min(found):.0f} to {max(found):.0f}]" if parts[1:] else f"({100 * low:.0f} to {100 * high:.0f})"
        printed = f"{100 * thesis[name]:.0f}" if name in thesis else ""
        each = zip(*((part.scores.precision, part.scores.recall, part.scores.f_score) for part in parts), strict=True)
        means = [f"{100 * statistics.fmean(values):.1f}" for values in each]
        seconds = f"{sum(part.seconds for part in parts):.1f}" if parts[0].rows else ""
        # of one training example, and of its image alone: the worst
        both = zip(*((part.epsilon, part.image_epsilon) for part in parts), strict=True)
        epsilons = ["none" if None in values else f"{max(values):.4g}" for values in both]
        lines.append([name, f"{parts[0].examples:,}", accuracy, printed, *means, seconds, *epsilons])
    return lines
