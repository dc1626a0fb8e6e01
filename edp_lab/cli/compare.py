"""``edp-lab compare``: runs side by side."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from edp_lab.cli.options import Json, write_text
from edp_lab.cli.output import print_json
from edp_lab.errors import UsageError

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from edp_lab.reproduce.compare import Column, Comparison, Run

LONGEST = 22  # of a name in a table; longer ones go on in the next line
MANY_EPOCHS = 40  # more markers than that hide their line


def compare(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Folders of runs: the --out of edp-lab train.")
    ] = None,
    csv: Annotated[Path | None, "Also write every column, in full precision, to this file."] = None,
    latex: Annotated[Path | None, "Also write the table for LaTeX (package booktabs)."] = None,
    plot: Annotated[Path | None, "Also write a web page: SER by epoch, and SER against epsilon."] = None,
    as_json: Json = False,
) -> None:
    """Set runs side by side: what differs between them, their scores, their time, and what each epsilon means.

    Files that exist are replaced.
    """
    from edp_lab.reproduce import compare as study

    comparison = study.compare(runs or [])
    outputs = {"--csv": csv, "--latex": latex, "--plot": plot}
    files = {option: path for option, path in outputs.items() if path is not None}
    _refuse_files(files, comparison)
    writers = {"--csv": study.as_csv, "--latex": study.as_latex, "--plot": page}
    contents = {option: writers[option](comparison) for option in files}
    for option, path in files.items():
        write_text(path, contents[option], f"choose another {option}")
    if as_json:
        print_json(study.as_json(comparison), allow_nan=False)
    else:
        _show(comparison)
        if files:
            print(f"written: {', '.join(map(str, files.values()))}")


def _refuse_files(files: dict[str, Path], comparison: Comparison) -> None:
    """Before anything is written."""
    places = {option: path.resolve() for option, path in files.items()}
    for option, place in places.items():
        given = files[option]
        usable = place.parent.is_dir() and os.access(place.parent, os.W_OK) and (place.is_file() or not place.exists())
        if not usable:
            raise UsageError(f"{given} cannot be written: give {option} a file in a folder that exists")
        if option == "--plot" and place.suffix not in (".html", ".htm"):
            raise UsageError(f"--plot writes a web page, {given} says otherwise: give a name that ends in .html")
        if list(places.values()).count(place) > 1:
            raise UsageError(f"{given} is given for two outputs: choose another {option}")
        for run in comparison.runs:
            if place.is_relative_to(run.folder.resolve()):
                raise UsageError(f"{given} lies in run {run.name}, which stays as it is: choose another {option}")


# ---- On a terminal -------------------------------------------------------------------------------------------------


def _show(comparison: Comparison) -> None:
    """One row per run if that fits into a line, else one column per run, else several tables of rows."""
    from edp_lab.reproduce.compare import columns, explanation, fold

    console = Console(highlight=False, markup=False, emoji=False)  # names are names
    kept, same = fold(comparison)
    rows = _by_run(comparison.runs, kept)
    turned = _by_property(comparison.runs, columns(comparison))
    blocks: list[Table | str] = [same] if same else []
    if _fits(rows, console):
        blocks += [rows]
    elif _fits(turned, console):
        blocks = [turned]
    else:
        blocks += [_by_run(comparison.runs, part) for part in _cut(comparison.runs, kept, console)]
    for block in blocks:
        console.print(block)
        console.print()
    console.print(explanation(comparison), style="dim")
    for note in comparison.notes:
        console.print(f"note: {note}")


def _table() -> Table:
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)


def _by_run(runs: Sequence[Run], columns: Sequence[Column]) -> Table:
    table = _table()
    for column in columns:
        side: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(column.title, justify=side, max_width=LONGEST, overflow="fold")
    for run in runs:
        table.add_row(*(column.text(run) for column in columns))
    return table


def _by_property(runs: Sequence[Run], columns: Sequence[Column]) -> Table:
    table = _table()
    name, *properties = columns
    table.add_column(name.title)
    for run in runs:
        table.add_column(name.text(run), justify="right", max_width=LONGEST, overflow="fold")
    for _, members in groupby(properties, lambda column: column.group):
        table.add_section()
        for column in members:
            table.add_row(column.title.replace("\n", " "), *(column.text(run) for run in runs))
    return table


def _fits(table: Table, console: Console) -> bool:
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum <= console.width


def _cut(runs: Sequence[Run], columns: Sequence[Column], console: Console) -> list[list[Column]]:
    """Tables as wide as fits, each with the names; a group is cut only where it does not fit by itself."""
    name, *properties = columns
    tables = [[name]]
    for _, members in groupby(properties, lambda column: column.group):
        group = list(members)
        whole = _fits(_by_run(runs, [name, *group]), console)
        for part in [group] if whole else [[column] for column in group]:
            if len(tables[-1]) > 1 and not _fits(_by_run(runs, [*tables[-1], *part]), console):
                tables.append([name])
            tables[-1] += part
    return tables


# ---- As a web page -------------------------------------------------------------------------------------------------

DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "pentagon", "hexagon")
KINDS = {
    "epsilon_that_holds": ("", "ε that holds"),
    "epsilon_if_seed_secret": ("-open", "ε if seed secret"),
    "epsilon_if_alpha_public": ("-open-dot", "ε if α public"),
}
MARKERS = (
    "a filled marker is an ε that holds; an open one would hold if the seed were secret, and one with a dot if alpha "
    "and words came from public text as well"
)
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Runs side by side</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; color: #222; max-width: 1300px; margin: 1.5em auto; padding: 0 1em }}
h1 {{ font-size: 1.4em; margin: 0 }}
p {{ margin: .4em 0; max-width: 60em }}
</style></head>
<body><h1>Runs side by side</h1>
{figure}
{lines}
</body></html>
"""


def page(comparison: Comparison) -> str:
    """A web page with the figure, what is the same in all runs and what does not compare; it needs no network."""
    from edp_lab.course.kit.theme import CONFIG
    from edp_lab.reproduce.compare import fold

    _, same = fold(comparison)
    said = [same, MARKERS if _points(comparison) else "", *(f"note: {note}" for note in comparison.notes)]
    lines = "\n".join(f"<p>{html.escape(line[0].upper() + line[1:])}.</p>" for line in said if line)
    drawn = _figure(comparison).to_html(CONFIG, include_plotlyjs=True, full_html=False, div_id="figure")
    return PAGE.format(figure=drawn, lines=lines)


def _points(comparison: Comparison) -> list[Run]:
    """The runs that a log axis of epsilon can show."""
    return [run for run in comparison.runs if run.test_ser is not None and run.epsilon_that_would_hold]


def _figure(comparison: Comparison) -> go.Figure:
    """SER on the validation set by epoch and, where a run has an epsilon, SER on the test set against it."""
    from plotly.subplots import make_subplots

    points = _points(comparison)
    titles = ["Validation SER by epoch", "Test SER against ε"][: 2 if points else 1]
    figure = make_subplots(1, len(titles), subplot_titles=titles, horizontal_spacing=0.09)
    looks = _looks(len(comparison.runs))
    for run, look in zip(comparison.runs, looks, strict=True):
        _draw_epochs(figure, run, look)
        if run in points:
            _draw_point(figure, run, look)
    if points:
        _draw_kinds(figure, points)
        for run, look in zip(comparison.runs, looks, strict=True):
            if run.test_ser is not None and run not in points:
                label = f"{html.escape(run.name)}: {'no ε' if run.epsilon_that_would_hold is None else 'ε is 0'}"
                figure.add_hline(run.test_ser, line=look["line"], annotation_text=label, row=1, col=2)
    _lay_out(figure, comparison, points)
    return figure


def _looks(count: int) -> list[dict[str, Any]]:
    """Colour, dash and marker of each run; 84 of them differ."""
    from edp_lab.course.kit.theme import TEMPLATE

    colors = TEMPLATE.layout.colorway
    return [
        {
            "line": {"color": colors[place % len(colors)], "dash": DASHES[place % len(DASHES)]},
            "marker": {"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 9},
        }
        for place in range(count)
    ]


def _draw_epochs(figure: go.Figure, run: Run, look: dict[str, Any]) -> None:
    figure.add_scatter(
        x=list(range(1, run.epochs + 1)), y=run.validation_ser, name=html.escape(run.name), legendgroup=run.name,
        mode="lines+markers" if run.epochs <= MANY_EPOCHS else "lines", **look, row=1, col=1,
        hovertemplate="epoch %{x}: SER %{y:.4f}",
    )  # fmt: skip


def _draw_point(figure: go.Figure, run: Run, look: dict[str, Any]) -> None:
    suffix, assumed = next(kind for name, kind in KINDS.items() if getattr(run, name) is not None)
    size = 14 if suffix else 9  # a filled marker leaves an open one around it to be seen
    marker = {"symbol": look["marker"]["symbol"] + suffix, "size": size, "color": look["line"]["color"]}
    figure.add_scatter(
        x=[run.epsilon_that_would_hold], y=[run.test_ser], name=html.escape(run.name), legendgroup=run.name,
        mode="markers", marker={**marker, "line_width": 2}, showlegend=False, row=1, col=2,
        hovertemplate=f"{assumed}: %{{x:.4g}}<br>SER %{{y:.4f}}",
    )  # fmt: skip


def _draw_kinds(figure: go.Figure, points: Sequence[Run]) -> None:
    """In the legend only: what filled and open markers mean."""
    for name, (suffix, assumed) in KINDS.items():
        if any(getattr(run, name) is not None for run in points):
            marker = {"symbol": f"circle{suffix}", "size": 11, "color": "#666", "line_width": 2}
            figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=assumed, row=1, col=2)


def _lay_out(figure: go.Figure, comparison: Comparison, points: Sequence[Run]) -> None:
    from edp_lab.course.kit.theme import TEMPLATE

    scores = [score for run in comparison.runs for score in (*run.validation_ser, run.test_ser) if score is not None]
    epochs = max(run.epochs for run in comparison.runs)
    legend = {"x": 1.01, "y": 1, "yanchor": "top", "tracegroupgap": 0}
    figure.update_layout(template=TEMPLATE, height=520, margin={"t": 50, "b": 60}, legend=legend)
    figure.update_yaxes(range=[0, 1.06 * (max(scores, default=0.0) or 1.0)])
    figure.update_yaxes(title="semantic error rate (SER)", row=1, col=1)
    figure.update_xaxes(title="epochs trained", dtick=max(1, math.ceil(epochs / 10)), tick0=0, row=1, col=1)
    if points:
        deltas = sorted({run.delta for run in points if run.delta is not None})
        at = " or ".join(f"{delta:.2g}" for delta in deltas)
        figure.update_xaxes(
            title=f"ε (at δ = {at})",
            type="log",
            exponentformat="power",
            nticks=6,
            minor={"showgrid": False},
            row=1,
            col=2,
        )
