"""``edp-lab reproduce thesis``: its tables and figures, ours beside theirs; ``three-phase run``: its architecture."""

from __future__ import annotations

import html
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edp_lab.cli.options import App, Delta, Json, chosen, commas, write_text
from edp_lab.cli.output import Tell, as_csv, bar, html_table, print_json, screen, table, telling
from edp_lab.errors import UsageError

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from edp_lab.reproduce.thesis.lab import Lab
    from edp_lab.reproduce.thesis.thesis_tables import Cell, Part
    from edp_lab.three_phase.phases import Event, ThreePhaseRecord
    from edp_lab.three_phase.phases import Part as Trained

FILES = ("thesis.json", "thesis.csv", "thesis.html")


def thesis(
    table: Annotated[
        list[str] | None, "2.2, 4.1 to 4.8, 6.1, 6.2 or times; several with commas, or repeated. (default: all)"
    ] = None,
    figure: Annotated[list[str] | None, "3.2, 3.3, 3.5, 4.1 or 4.2, likewise. (default: all, if no --table)"] = None,
    quick: Annotated[bool, "Digits and short training: minutes on one core."] = False,
    data: Annotated[str | None, "digits or mnist. (default: mnist if at hand; digits if --quick)"] = None,
    repeats: Annotated[int | None, "Of all that is trained on images (default: 3; 1 if --quick)."] = None,
    out: Annotated[Path, "Folder for thesis.json, .csv and .html, and for finished networks."] = Path(
        "runs/reproduce-thesis"
    ),
    seed: Annotated[int, "Of the first repeat; published, so that a table can be repeated."] = 0,
    as_json: Json = False,
) -> None:
    """Make the thesis' tables and figures anew: ours, theirs, and the epsilon that holds.

    In full, on MNIST, it takes about ten hours on two cores, a third of that with --repeats 1. Finished networks are
    kept in the folder: after a kill, the same command goes on from there. The files hold what this call was asked for,
    and replace those of the last one.
    """
    parts = _names(table, figure)
    with telling() as tell:
        from edp_lab.reproduce.thesis.lab import Lab, reproduce

        lab = Lab(out, _scale(quick, data, repeats, tell), seed, tell)
        made, start = [], time.perf_counter()
        try:
            for name, part in zip(parts, reproduce(lab, parts), strict=True):
                tell(f"{_title(name)} done after {time.perf_counter() - start:.0f} s", True)
                made.append(part)
        except KeyboardInterrupt:
            tell(f"interrupted; finished networks are kept in {out}: the same command goes on from there", True)
            raise
    _write(out, lab, made)
    if as_json:
        print_json([cell.as_json() for part in made for cell in part.cells], allow_nan=False)
    else:
        _show(lab, made)
        print(f"written: {', '.join(str(out / name) for name in FILES)}")


def _names(table: list[str] | None, figure: list[str] | None) -> list[str]:
    """As `reproduce_thesis.PARTS` has them.

    Raises:
        UsageError: an unknown one.
    """
    from edp_lab.reproduce.thesis.thesis_tables import FIGURES, TABLES

    asked = []
    for kind, known, given in (("table", TABLES, table), ("figure", FIGURES, figure)):
        for name in commas(*given or ()):
            if name not in known:
                raise UsageError(f"unknown {kind} {name!r}: choose {', '.join(known)}")
            asked.append(name if kind == "table" else f"figure {name}")
    every = [*TABLES, *(f"figure {name}" for name in FIGURES)]
    return list(dict.fromkeys(asked)) or every


def _title(name: str) -> str:
    return name if name == "times" or name.startswith("figure") else f"table {name}"


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


# ---- On a terminal -------------------------------------------------------------------------------------------------


def _show(lab: Lab, parts: Sequence[Part]) -> None:
    console = screen()
    for part in parts:
        console.print(f"\n{_title(part.id)}, {part.place}: {part.title}" + (f" ({part.unit})" if part.unit else ""))
        console.print(_table(part))
        for note in _notes(part):
            console.print(note, style="dim")
    console.print(f"\n{_explained(lab)}")


def _explained(lab: Lab) -> str:
    return (
        f"On {lab.scale.data}, seed {lab.seed}. In brackets: 95 % interval over the test images, or from lowest to "
        "highest of the repeats on circles. Epsilon that holds: of one example with its label, and of its image alone, "
        "at delta, if the seeds were secret; they are published here, so that a table can be repeated. The thesis has "
        "60,000 training images of 28 x 28 pixels; digits are 1,197 of 8 x 8, an instructor's part of them is 119."
    )


def _table(part: Part) -> Table:
    """The scores of a network side by side; of everything else a value a line."""
    from edp_lab.reproduce.thesis.thesis_tables import SCORES

    scores = {cell.column for cell in part.cells} == set(SCORES)
    last = ["epsilon\nclaimed", "epsilon\nthat holds", "epsilon\nof image", "delta", "seconds"]
    lines = [["thesis / ours", *(SCORES if scores else ("",)), *last]]
    rows: dict[str, list[Cell]] = {}
    for cell in part.cells:
        rows.setdefault(cell.row if scores else f"{cell.row}, {cell.column}", []).append(cell)
    for name, cells in rows.items():
        seconds = f"{cells[0].seconds:.1f}" if cells[0].seconds else ""
        lines.append([name, *map(_values, cells), *_epsilons(cells[0]), seconds])
    return table(lines, padding=(0, 1, 0, 0))


def _values(cell: Cell) -> str:
    interval = "" if cell.low is None or cell.high is None else f" ({cell.low:.0f} to {cell.high:.0f})"
    ours = "-" if cell.ours is None else f"{cell.ours:.3g}" if abs(cell.ours) < 1000 else f"{cell.ours:.0f}"
    return f"{'-' if cell.thesis is None else f'{cell.thesis:.9g}'} / {ours}{interval}"


def _epsilons(cell: Cell) -> tuple[str, str, str, str]:
    """Claimed, that holds, of the image alone, and delta."""
    holds = "none" if cell.epsilon_holds is None else f"{cell.epsilon_holds:.4g}"
    claimed, image = ("" if e is None else f"{e:.4g}" for e in (cell.epsilon_claimed, cell.epsilon_image))
    return claimed, holds, image, "" if cell.delta is None else f"{cell.delta:g}"


def _notes(part: Part) -> list[str]:
    """Each once, with the rows that it is about if there are others."""
    rows: dict[str, list[str]] = {}
    for cell in part.cells:
        rows.setdefault(cell.note, []).append(cell.row)
    named = {note: ", ".join(dict.fromkeys(names)) for note, names in rows.items()}
    notes = [note if len(named) == 1 else f"{names}: {note}" for note, names in named.items()]
    return [*notes, *([f"the print: {part.remark}"] if part.remark else [])]


# ---- Files -----------------------------------------------------------------------------------------------------------


def _write(out: Path, lab: Lab, parts: Sequence[Part]) -> None:
    cells = as_csv([cell.as_json() for part in parts for cell in part.cells])
    for name, content in zip(FILES, (_as_json(lab, parts), cells, _page(lab, parts)), strict=True):
        write_text(out / name, content)


def _as_json(lab: Lab, parts: Sequence[Part]) -> str:
    from edp_lab.training.run_folder import versions

    told = {
        "scale": asdict(lab.scale),
        "seed": lab.seed,
        "versions": versions(),
        "parts": [{**asdict(part), "cells": [cell.as_json() for cell in part.cells]} for part in parts],
    }
    return json.dumps(told, indent=1, allow_nan=False)


PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>The thesis, made anew</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 1.5em auto; padding: 0 1em }}
h1 {{ font-size: 1.4em }} h2 {{ font-size: 1.1em; margin-top: 2em }}
table {{ border-collapse: collapse }} td, th {{ padding: .1em .7em; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child, td:nth-child(2), th:nth-child(2) {{ text-align: left }}
p {{ margin: .3em 0; color: #555 }}
</style></head>
<body><h1>The thesis, made anew</h1>
<p>{explained}</p>
{parts}
</body></html>
"""
HEADINGS = (
    "", "", "thesis", "ours", "from", "to", "ε claimed", "ε that holds", "ε of the image", "δ", "guarantee", "seconds",
)  # fmt: skip


def _page(lab: Lab, parts: Sequence[Part]) -> str:
    """Every table and figure; it needs no network."""
    from edp_lab.course.kit.theme import CONFIG

    sections, library = [], True
    for part in parts:
        drawn = []
        for figure in _figures(part):
            drawn.append(figure.to_html(CONFIG, include_plotlyjs=library, full_html=False))
            library = False
        notes = "\n".join(f"<p>{html.escape(note)}</p>" for note in _notes(part))
        title = html.escape(f"{_title(part.id)}, {part.place}: {part.title}")
        sections.append("\n".join([f"<h2>{title[0].upper()}{title[1:]}</h2>", _html_table(part), notes, *drawn]))
    return PAGE.format(explained=html.escape(_explained(lab)), parts="\n".join(sections))


def _html_table(part: Part) -> str:
    lines: list[Sequence[str]] = [HEADINGS]
    for cell in part.cells:
        numbers = ["" if n is None else f"{n:.4g}" for n in (cell.thesis, cell.ours, cell.low, cell.high)]
        lines.append([cell.row, cell.column, *numbers, *_epsilons(cell), cell.guarantee, f"{cell.seconds:.1f}"])
    return html_table(lines, between="\n")


# ---- Figures ---------------------------------------------------------------------------------------------------------

COLUMNS = 4  # of small figures beside each other


def _figures(part: Part) -> list[go.Figure]:
    drawing = part.drawing
    if part.id == "figure 4.1":
        return [_accuracy_by_size(part)]
    if part.id == "figure 4.2":
        return [_boxes(drawing["accuracies"])]
    if part.id in ("figure 3.2", "figure 3.3"):
        return [_scatters(drawing)]
    if part.id == "figure 3.5":
        return [_images(drawing["image"], reverse=True)]
    if "confusion" in drawing:
        return [_images(drawing["confusion"]), _losses(drawing["loss"])]
    return []


def _grid(names: Sequence[str], height: int, **axes: Any) -> tuple[go.Figure, list[dict[str, int]]]:
    """An empty figure with a small one of each name, and where they are."""
    from plotly.subplots import make_subplots

    from edp_lab.course.kit.theme import TEMPLATE

    rows = -(-len(names) // COLUMNS)
    columns = min(len(names), COLUMNS)
    titles = [html.escape(name) for name in names]
    figure = make_subplots(rows, columns, subplot_titles=titles, vertical_spacing=0.3 / rows, **axes)
    figure.update_layout(template=TEMPLATE, height=height * rows + 60, width=1050, margin={"t": 40, "b": 50})
    figure.update_annotations(font_size=11)
    places = [{"row": k // COLUMNS + 1, "col": k % COLUMNS + 1} for k in range(len(names))]
    return figure, places


def _scatters(drawing: Mapping[str, Any]) -> go.Figure:
    """Points by class, or before and after noise."""
    from edp_lab.course.kit.theme import BLUE, VERMILLION

    figure, places = _grid(list(drawing), 260)
    for k, (told, place) in enumerate(zip(drawing.values(), places, strict=True)):
        if "labels" in told:
            both = {
                f"class {c}": [p for p, y in zip(told["points"], told["labels"], strict=True) if y == c] for c in (0, 1)
            }
        else:
            both = {"with noise": told["noised"], "without": told["clean"]}
        for (name, points), color in zip(both.items(), (BLUE, VERMILLION), strict=True):
            marker = {"color": color, "size": 3}
            figure.add_scatter(
                x=[p[0] for p in points], y=[p[1] for p in points], mode="markers", marker=marker, name=name,
                showlegend=k == 0, **place,
            )  # fmt: skip
    figure.update_xaxes(range=[-2.5, 2.5])
    figure.update_yaxes(range=[-2.5, 2.5])
    return figure


def _images(drawing: Mapping[str, Any], reverse: bool = False) -> go.Figure:
    """Matrices: an image, or how often each class (down) was taken for each (across)."""
    figure, places = _grid(list(drawing), 230)
    for matrix, place in zip(drawing.values(), places, strict=True):
        scale = "Greys_r" if reverse else "Blues"
        figure.add_heatmap(
            z=matrix, showscale=False, colorscale=scale, hovertemplate="%{y}, %{x}: %{z}<extra></extra>", **place
        )
    figure.update_yaxes(autorange="reversed")
    if not reverse:
        figure.update_layout(title={"text": "Confusion: true class (down), predicted (across)", "y": 1})
    return figure


def _losses(drawing: Mapping[str, Any]) -> go.Figure:
    from edp_lab.course.kit.theme import BLUE, VERMILLION

    figure, places = _grid(list(drawing), 220)
    looks = {"loss": ("training", BLUE, "solid"), "test_loss": ("test", VERMILLION, "dash")}
    for k, (told, place) in enumerate(zip(drawing.values(), places, strict=True)):
        for part, (name, color, dash) in looks.items():
            line, epochs = {"color": color, "dash": dash}, list(range(1, len(told[part]) + 1))
            figure.add_scatter(x=epochs, y=told[part], name=name, line=line, mode="lines", showlegend=k == 0, **place)
    figure.update_xaxes(title={"text": "epoch", "font": {"size": 10}})
    figure.update_yaxes(rangemode="tozero")
    return figure


def _accuracy_by_size(part: Part) -> go.Figure:
    figure, [place] = _grid([part.title], 360)
    sizes = [int(cell.row) for cell in part.cells]
    ours = [cell.ours for cell in part.cells]
    figure.add_scatter(x=sizes, y=ours, mode="lines+markers", **place)
    figure.update_xaxes(type="log", title="training points")
    figure.update_yaxes(title="test accuracy (%)")
    return figure


def _boxes(accuracies: Mapping[str, Sequence[float]]) -> go.Figure:
    figure, [place] = _grid(["test accuracy by size of the training set, over repeats"], 360)
    for size, values in accuracies.items():
        figure.add_box(y=values, name=size, boxpoints="all", showlegend=False, **place)
    figure.update_xaxes(type="category", title="training points")
    figure.update_yaxes(title="test accuracy (%)")
    return figure


# ---- The three phases ------------------------------------------------------------------------------------------------

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
        _print_record(record)


def _phases(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"phases are {text!r}: give some of 1, 2 and 3, such as 1,2,3") from None


def _print_record(record: ThreePhaseRecord) -> None:
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


def _name(part: Trained, record: ThreePhaseRecord) -> str:
    from edp_lab.three_phase.phases import of_instructors

    return of_instructors(record.settings.instructors) if part.name.startswith("instructor") else part.name


def _accuracy(parts: list[Trained]) -> str:
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
