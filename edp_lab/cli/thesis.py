"""``edp-lab reproduce thesis``: its tables and figures, ours beside theirs; ``three-phase``: its architecture."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edp_lab.cli.options import CORES, COUNT, Delta, Json, chosen, commas, numbers
from edp_lab.cli.output import (
    Screen,
    Section,
    Tell,
    bar,
    echo,
    html_page,
    number,
    print_json,
    prose,
    telling,
    words,
    write_table,
)
from edp_lab.errors import UsageError
from edp_lab.training.config import SEED

if TYPE_CHECKING:
    from edp_lab.course.kit.figure import Figure, Trace
    from edp_lab.reproduce.thesis.lab import Lab
    from edp_lab.reproduce.thesis.thesis_tables import Cell, Part
    from edp_lab.three_phase.phases import Event, ThreePhaseRecord
    from edp_lab.three_phase.phases import Part as Trained


def thesis(
    table: Annotated[
        list[str] | None, "2.2, 4.1 to 4.8, 6.1, 6.2 or times; several with commas, or repeated. (default: all)"
    ] = None,
    figure: Annotated[list[str] | None, "3.2, 3.3, 3.5, 4.1 or 4.2, likewise. (default: all, if no --table)"] = None,
    quick: Annotated[bool, "Digits and short training: minutes on one core."] = False,
    data: Annotated[str | None, "digits or mnist. (default: mnist if at hand; digits if --quick)"] = None,
    repeats: Annotated[int | None, "Of all that is trained on images (default: 3; 1 if --quick).", COUNT] = None,
    out: Annotated[Path, "Folder for thesis.json, .csv and .html, and for finished networks."] = Path(
        "runs/reproduce-thesis"
    ),
    seed: Annotated[int, "Of the first repeat; published, so that a table can be repeated.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Make the thesis' tables and figures anew: ours, theirs, and the epsilon that holds.

    In full, on MNIST, it takes about ten hours on two cores, a third of that with --repeats 1. Finished networks are
    kept in the folder: after a kill, the same command goes on from there. The files hold what this call was asked for,
    and replace those of the last one.
    """
    from edp_lab.reproduce.thesis.thesis_tables import FIGURES, PRINTED, TABLES

    asked = []
    for kind, known, given in (("table", TABLES, table), ("figure", FIGURES, figure)):
        for name in commas(*given or ()):
            if name not in known:
                raise UsageError(f"unknown {kind} {name!r}: choose {', '.join(known)}")
            asked.append(known[name].id)
    with telling() as tell:
        from edp_lab.reproduce.thesis.lab import Lab, reproduce

        lab = Lab(out, _scale(quick, data, repeats, tell), seed, tell)
        parts, start = [], time.perf_counter()
        try:
            for part in reproduce(lab, list(dict.fromkeys(asked or PRINTED))):
                tell(f"{_name(part)} done after {time.perf_counter() - start:.0f} s", True)
                parts.append(part)
        except KeyboardInterrupt:
            tell(f"interrupted; finished networks are kept in {out}: the same command goes on from there", True)
            raise
    cells = [cell.as_json() for part in parts for cell in part.cells]
    written = write_table(out / "thesis", _content(lab, parts), cells, _page(lab, parts))
    if as_json:
        print_json(cells)
    else:
        _show(lab, parts)
        echo(written)


def _scale(quick: bool, data: str | None, repeats: int | None, tell: Tell) -> Any:
    from edp_lab.corpora.images import load_images
    from edp_lab.reproduce.thesis.thesis_tables import FULL, QUICK

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


# ---- Words -----------------------------------------------------------------------------------------------------------


def _name(part: Part) -> str:
    name = part.printed.id
    return name if name == "times" or name.startswith("figure") else f"table {name}"


def _title(part: Part) -> str:
    return f"{_name(part)}, {part.printed.place}: {part.printed.title}"


def _notes(part: Part) -> list[str]:
    """Each once, with the rows that it is about if there are others."""
    rows: dict[str, dict[str, None]] = {}
    for cell in part.cells:
        rows.setdefault(cell.note, {})[cell.row] = None
    notes = [note if len(rows) == 1 else f"{', '.join(names)}: {note}" for note, names in rows.items()]
    return [*notes, *([f"the print: {part.printed.remark}"] if part.printed.remark else [])]


def _epsilons(cell: Cell) -> list[str]:
    """Claimed, that holds, of the image alone, and delta."""
    claimed, image = (number(epsilon, 4, "") for epsilon in (cell.epsilon_claimed, cell.epsilon_image))
    return [claimed, number(cell.epsilon_holds, 4), image, number(cell.delta, absent="")]


def _show(lab: Lab, parts: Sequence[Part]) -> None:
    """The scores of a network side by side; of everything else a value a line."""
    from edp_lab.reproduce.thesis.thesis_tables import SCORES

    console, epsilons = Screen(), ["epsilon\nclaimed", "epsilon\nthat holds", "epsilon\nof image", "delta"]
    for part in parts:
        scores = {cell.column for cell in part.cells} == set(SCORES)
        lines = [["thesis / ours", *(SCORES if scores else ("",)), *epsilons, "seconds"]]
        rows: dict[str, list[Cell]] = {}
        for cell in part.cells:
            rows.setdefault(cell.row if scores else f"{cell.row}, {cell.column}", []).append(cell)
        for name, cells in rows.items():
            seconds = f"{cells[0].seconds:.1f}" if cells[0].seconds else ""
            lines.append([name, *map(_both, cells), *_epsilons(cells[0]), seconds])
        console.print(f"\n{_title(part)}" + (f" ({part.printed.unit})" if part.printed.unit else ""))
        console.table(lines, padding=(0, 1, 0, 0))
        for line in _notes(part):
            console.print(line, style="dim")
    console.print(f"\n{prose('thesis_note', lab)}")


def _both(cell: Cell) -> str:
    interval = "" if cell.low is None or cell.high is None else f" ({cell.low:.0f} to {cell.high:.0f})"
    ours = "-" if cell.ours is None else f"{cell.ours:.3g}" if abs(cell.ours) < 1000 else f"{cell.ours:.0f}"
    return f"{number(cell.thesis, 9, '-')} / {ours}{interval}"


# ---- Files -----------------------------------------------------------------------------------------------------------

HEADINGS = (
    "", "", "thesis", "ours", "from", "to", "ε claimed", "ε that holds", "ε of the image", "δ", "guarantee", "seconds",
)  # fmt: skip


def _content(lab: Lab, parts: Sequence[Part]) -> dict[str, Any]:
    from edp_lab.training.run_folder import versions

    told = {"scale": asdict(lab.scale), "seed": lab.seed, "versions": versions()}
    return {**told, "parts": [part.as_json() for part in parts]}


def _page(lab: Lab, parts: Sequence[Part]) -> str:
    """Every table and figure; it needs no network."""
    sections = []
    for part in parts:
        title, lines = _title(part), [list(HEADINGS)]
        for cell in part.cells:
            numbers = [number(value, 4, "") for value in (cell.thesis, cell.ours, cell.low, cell.high)]
            lines.append([cell.row, cell.column, *numbers, *_epsilons(cell), cell.guarantee, f"{cell.seconds:.1f}"])
        sections.append(Section(title[0].upper() + title[1:], lines, _notes(part), [*_figures(part)]))
    explained = Section(notes=[prose("thesis_note", lab)])
    return html_page("The thesis, made anew", [explained, *sections], names=2)


# ---- Figures ---------------------------------------------------------------------------------------------------------

COLUMNS = 4  # of small figures beside each other
BY_SIZE = {"title": "training points"}, {"title": "test accuracy (%)"}


def _figures(part: Part) -> Iterator[Figure]:
    from edp_lab.course.kit import figure as fig
    from edp_lab.course.kit.theme import PLAIN, PRINTED

    name, drawing = part.printed.id, part.drawing
    if name == "figure 4.1":
        sizes, ours = [int(cell.row) for cell in part.cells], [cell.ours for cell in part.cells]
        line = {"type": "scatter", "x": sizes, "y": ours, "mode": "lines+markers", "showlegend": None}
        yield _grid({part.printed.title: [line]}, 360, {"type": "log", **BY_SIZE[0]}, BY_SIZE[1])
    elif name == "figure 4.2":
        look = {"type": "box", "boxpoints": "all", "showlegend": False}
        boxes = [{**look, "y": values, "name": size} for size, values in drawing["accuracies"].items()]
        title = "test accuracy by size of the training set, over repeats"
        yield _grid({title: boxes}, 360, {"type": "category", **BY_SIZE[0]}, BY_SIZE[1])
    elif name in ("figure 3.2", "figure 3.3"):
        square = {"range": [-2.5, 2.5]}
        yield _grid({one: _clouds(told) for one, told in drawing.items()}, 260, square, square)
    elif name == "figure 3.5":
        yield _images(drawing["image"], "Greys_r")
    elif "confusion" in drawing:
        yield _images(drawing["confusion"], "Blues", "Confusion: true class (down), predicted (across)")
        looks = {"loss": ("training", PLAIN, "solid"), "test_loss": ("test", PRINTED, "dash")}
        curves = {
            one: [fig.line(*looks[kind], x=list(range(1, len(own) + 1)), y=own) for kind, own in told.items()]
            for one, told in drawing["loss"].items()
        }
        epochs = {"title": {"text": "epoch", "font": {"size": 10}}}
        yield _grid(curves, 220, epochs, {"rangemode": "tozero"})


def _grid(
    small: Mapping[str, Sequence[Trace]], height: int, across: dict[str, Any], down: dict[str, Any], title: str = ""
) -> Figure:
    """Small figures by name, each with its traces, and the same axes for all."""
    from edp_lab.course.kit import figure as fig
    from edp_lab.course.kit.theme import TEMPLATE

    rows, columns = -(-len(small) // COLUMNS), min(len(small), COLUMNS)
    layout = fig.plots(rows, columns, [*small], [(across, down)] * (rows * columns), vertical_spacing=0.3 / rows)
    for name in layout["annotations"]:
        name["font"] = {"size": 11}
    own = enumerate(small.values(), 1)
    data = [{"showlegend": plot == 1, **trace, **fig.at(plot)} for plot, traces in own for trace in traces]
    layout |= {"template": TEMPLATE, "width": 1050, "margin": {"b": 50}}
    return fig.figure(title, *data, height=height * rows + 60, top=40, **layout)


def _clouds(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Points by class, or before and after noise."""
    from edp_lab.course.kit import figure as fig
    from edp_lab.course.kit.theme import PLAIN, PRINTED

    if "labels" in told:
        pairs = list(zip(told["points"], told["labels"], strict=True))
        clouds = {f"class {c}": [point for point, label in pairs if label == c] for c in (0, 1)}
    else:
        clouds = {"with noise": told["noised"], "without": told["clean"]}
    looks = ({"mode": "markers", "marker": {"color": color, "size": 3}} for color in (PLAIN, PRINTED))
    return [
        fig.trace(name, look, x=[x for x, _ in points], y=[y for _, y in points])
        for (name, points), look in zip(clouds.items(), looks, strict=True)
    ]


def _images(matrices: Mapping[str, Any], colors: str, title: str = "") -> Figure:
    """Matrices: an image, or how often each class (down) was taken for each (across)."""
    from edp_lab.course.kit.figure import ALONE

    look = {"type": "heatmap", "showscale": False, "colorscale": colors, "showlegend": None}
    look["hovertemplate"] = "%{y}, %{x}: %{z}" + ALONE
    return _grid({name: [{**look, "z": z}] for name, z in matrices.items()}, 230, {}, {"autorange": "reversed"}, title)


# ---- The three phases ------------------------------------------------------------------------------------------------


def three_phase(
    ctx: typer.Context,
    data: Annotated[str, "digits (embedded) or mnist (edp-lab data fetch mnist)."] = "digits",
    model: Annotated[str, "cnn (two convolutions), alexnet, vgg or mlp."] = "cnn",
    phases: Annotated[str, "Which phases take part, such as 1,2,3 or 2,3."] = "1,2,3",
    sigma: Annotated[float, "Phase I: standard deviation of the noise on a pixel in [0, 1]."] = 0.6,
    instructors: Annotated[int, "Phase II: networks on disjoint parts of the training set.", COUNT] = 10,
    vote: Annotated[str, "hard, soft, laplace, gaussian or confident."] = "laplace",
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
    rows: dict[str, list[Trained]] = {}  # instructors share one
    for part in record.parts:
        name = of_instructors(settings.instructors) if part.name.startswith("instructor") else part.name
        rows.setdefault(name, []).append(part)
    reasons: dict[str, dict[str, None]] = {}
    for name, parts in rows.items():
        for part in parts:
            reasons.setdefault(part.why, {})[name] = None
    alone = f"the {ONE if 1 in settings.phases else PLAIN}"
    console.print(words("three_phases", record))
    console.table(_scores(rows, settings.model), show_edge=True, pad_edge=True)
    voters = of_instructors(settings.voters) if 2 in settings.phases else alone
    console.print(words("three_phases_cost", record, reasons, voters))
    beside = Table("", "the thesis says", "here", box=SIMPLE_HEAD)
    for row in record.comparisons:
        beside.add_row(row.row, row.thesis, row.here)
    console.print(beside)


def _scores(rows: Mapping[str, Sequence[Trained]], model: str) -> list[list[str]]:
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
