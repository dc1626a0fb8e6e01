"""``edp-lab compare``: runs side by side, on a terminal, as CSV, for LaTeX and as a web page.

The CSV has every column; tables for people leave out columns that are empty, and say once what is the same in all runs.
"""

from __future__ import annotations

import math
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from edp_lab.cli import reports
from edp_lab.cli.options import Json
from edp_lab.cli.output import (
    Screen,
    Section,
    as_csv,
    check_file,
    echo,
    html_page,
    print_json,
    shown,
    table,
    write_text,
)
from edp_lab.errors import UsageError

if TYPE_CHECKING:
    from edp_lab.course.kit.figure import Figure
    from edp_lab.reproduce.compare import Comparison, Row

NOTHING, NOTE = "-", "note: {}".format
LONGEST = 22  # of a name in a table; longer ones go on in the next line


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
    outputs = {"--csv": (csv, csv_of), "--latex": (latex, latex_of), "--plot": (plot, page)}
    files = {option: path for option, (path, _) in outputs.items() if path is not None}
    _refuse_files(files, comparison)
    contents = {option: outputs[option][1](comparison) for option in files}
    for option, path in files.items():
        write_text(path, contents[option], option)
    if as_json:
        print_json(json_of(comparison))
    else:
        _show(comparison)
        if files:
            echo(f"written: {', '.join(map(str, files.values()))}")


def _refuse_files(files: dict[str, Path], comparison: Comparison) -> None:
    """Before anything is written."""
    places = {option: path.resolve() for option, path in files.items()}
    for option, place in places.items():
        given = files[option]
        check_file(given, option)
        if option == "--plot" and place.suffix not in (".html", ".htm"):
            raise UsageError(f"--plot writes a web page, {given} says otherwise: give a name that ends in .html")
        if list(places.values()).count(place) > 1:
            raise UsageError(f"{given} is given for two outputs: choose another {option}")
        for run in comparison.runs:
            if place.is_relative_to(Path(run["folder"]).resolve()):
                raise UsageError(f"{given} lies in run {run['name']}, which stays as it is: choose another {option}")


# ---- Columns ---------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """One property of the runs for people."""

    title: str  # with a new line where it may break
    group: str  # neighbours in a table with a column per run
    value: Callable[[Row], Any]  # of a row; None where it has none
    spec: str = ""  # by which a float is written
    folds: bool = False  # said once where it is the same in all runs
    number: bool = True  # flushed right

    def text(self, run: Row) -> str:
        value = self.value(run)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return NOTHING if value is None else shown(format(value, self.spec if isinstance(value, float) else ""))


def columns(comparison: Comparison) -> list[Column]:
    """Every column in which at least one run has something."""
    from edp_lab.privacy.guarantee import upward

    def column(title: str, group: str, name: str, spec: str = "", **more: bool) -> Column:
        return Column(title, group, itemgetter(name), spec, **more)

    def setting(name: str) -> Column:
        words = any(isinstance(run["settings"].get(name), str) for run in comparison.runs)
        return Column(name.replace("_", "\n"), "run", lambda run: run["settings"].get(name), ".6g", number=not words)

    def epochs(run: Row) -> Any:
        done, planned = run["epochs"], run["epochs_planned"]
        return done if done == planned else f"{done} of {planned}"

    def holds(run: Row) -> Any:
        return "none" if run["epsilon_that_holds"] is None else run["epsilon_that_holds"]

    fastest = "SGD" if comparison.reference is not None and comparison.reference["method"] == "sgd" else "fastest"
    every = [
        column("run", "run", "name", number=False),
        *(column(name, "run", name, folds=True, number=False) for name in ("status", "corpus", "model", "method")),
        *map(setting, comparison.settings),
        Column("epochs", "run", epochs, folds=True),
        column("test\nSER", "scores", "test_ser", ".4f"),
        column("intent\naccuracy", "scores", "intent_accuracy", ".4f"),
        column("slot\nF1", "scores", "slot_f1", ".4f"),
        column("exact\nmatch", "scores", "exact_match", ".4f"),
        column("training\nseconds", "time", "seconds", ".1f"),
        column(f"epoch time\n({fastest} = 1)", "time", "times_reference", ".2f"),
        column("epsilon\nclaimed", "privacy", "epsilon_claimed", ".4g"),
        Column("epsilon\nthat holds", "privacy", holds, ".4g"),
        column("guarantee", "privacy", "guarantee", folds=True, number=False),
        column("epsilon if\nseed secret", "privacy", "epsilon_if_seed_secret", ".4g"),
        column("epsilon in\nreal numbers", "privacy", "epsilon_in_real_numbers", ".4g"),
        column("epsilon if\nalpha public", "privacy", "epsilon_if_alpha_public", ".4g"),
        Column("delta", "privacy", lambda run: run["delta"] and float(upward(run["delta"])), ".3g", folds=True),
    ]
    return [one for one in every if any(one.text(run) != NOTHING for run in comparison.runs)]


def fold(comparison: Comparison) -> tuple[list[Column], str]:
    """The columns of a table with one row per run, and a sentence about those that are the same in all runs."""
    kept, same = [], []
    for column in columns(comparison):
        texts = {column.text(run) for run in comparison.runs} - {NOTHING}
        if column.folds and len(texts) == 1 and len(comparison.runs) > 1:
            same.append(f"{column.title} {texts.pop()}")
        else:
            kept.append(column)
    return kept, f"the same in all runs: {', '.join(same)}" if same else ""


# ---- On a terminal ---------------------------------------------------------------------------------------------------


def _show(comparison: Comparison) -> None:
    """One row per run if that fits into a line, else one column per run, as many beside each other as fit."""
    console, (kept, same) = Screen(shutil.get_terminal_size((80, 0)).columns), fold(comparison)
    names = [textwrap.fill(column.text(run), LONGEST) for run in comparison.runs for column in kept[:1]]
    cells = [
        [name, *(column.text(run) for column in kept[1:])] for name, run in zip(names, comparison.runs, strict=True)
    ]
    rows = [[column.title for column in kept], *cells]
    if console.fits(table(rows)):
        console.print(f"{same}\n" if same else "")
        console.table(rows)
    else:
        turned = [
            [column.title.replace("\n", " "), *(textwrap.fill(column.text(run), LONGEST) for run in comparison.runs)]
            for column in columns(comparison)
        ]
        beside = len(comparison.runs)
        while beside > 1 and not console.fits(table([line[: 1 + beside] for line in turned])):
            beside -= 1
        for start in range(0, len(comparison.runs), beside):
            console.table([[name, *texts[start : start + beside]] for name, *texts in turned])
    console.print(f"\n{reports.compared(comparison)}", style="dim")
    for reason in comparison.notes:
        console.print(NOTE(reason))


# ---- As files --------------------------------------------------------------------------------------------------------

LATEX = str.maketrans(
    {
        **{char: f"\\{char}" for char in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}"},
    }
)
TABULAR = r"""\begin{tabular}{%s}
\toprule
%s
\midrule
%s
\bottomrule
\end{tabular}
"""


def json_of(comparison: Comparison) -> dict[str, Any]:
    """For `json.dumps`; the reference by its name."""
    return comparison._asdict() | {"reference": comparison.reference and comparison.reference["name"]}


def csv_of(comparison: Comparison) -> str:
    """One row per run, numbers in full, settings in columns of their own; what a run does not have is empty."""
    rows: list[Row] = []
    for run in comparison.runs:
        own = {name: run["settings"].get(name) for name in comparison.settings}
        parts = [own if name == "settings" else {name: one} for name, one in run.items() if name != "validation_ser"]
        rows.append({name: one for part in parts for name, one in part.items()})
    return as_csv(rows)


def latex_of(comparison: Comparison) -> str:
    """A tabular for the package booktabs; what is the same in all runs, and what does not compare, is in comments."""
    kept, same = fold(comparison)
    comments = ["\\usepackage{booktabs}", same, reports.compared(comparison), *map(NOTE, comparison.notes)]
    titles = [column.title.replace("\n", " ").translate(LATEX) for column in kept]
    titles = [title.replace("epsilon", r"$\varepsilon$").replace("delta", r"$\delta$") for title in titles]
    rows = [[_latex(column.text(run)) for column in kept] for run in comparison.runs]
    head, *lines = (" & ".join(row) + r" \\" for row in (titles, *rows))
    places = "".join("r" if column.number else "l" for column in kept)
    said = "".join(f"% {' '.join(comment.split())}\n" for comment in comments if comment)  # a name may have two lines
    return said + TABULAR % (places, head, "\n".join(lines))


def _latex(text: str) -> str:
    if power := re.fullmatch(r"(-?[\d.]+)e([+-]\d+)", text):
        return rf"${power[1]}\times10^{{{int(power[2])}}}$"
    return "--" if text == NOTHING else text.translate(LATEX)


# ---- As a web page ---------------------------------------------------------------------------------------------------

MANY_EPOCHS = 40  # more markers than that hide their line
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "pentagon", "hexagon")  # with colours and dashes, 84 looks
KINDS = {
    "epsilon_that_holds": ("", "ε that holds"),
    "epsilon_if_seed_secret": ("-open", "ε if seed secret"),
    "epsilon_in_real_numbers": ("-open", "ε in real numbers"),
    "epsilon_if_alpha_public": ("-open-dot", "ε if α public"),
}
MARKERS = (
    "a filled marker is an ε that holds; an open one would hold if the seed were secret and the noise exact, and one "
    "with a dot if alpha and words came from public text as well"
)


def page(comparison: Comparison) -> str:
    """A web page with the figure, what is the same in all runs and what does not compare; it needs no network."""
    _, same = fold(comparison)
    said = [same, MARKERS if any(map(_point, comparison.runs)) else "", *map(NOTE, comparison.notes)]
    lines = [f"{line[0].upper()}{line[1:]}." for line in said if line]
    return html_page("Runs side by side", [Section(figures=[_figure(comparison)], notes=lines)])


def _point(run: Row) -> tuple[str, float] | None:
    """The one of its epsilons that there is, by name, of a run that a log axis can show."""
    found = next(((name, run[name]) for name in KINDS if run[name] is not None), ("", 0.0))
    return found if run["test_ser"] is not None and found[1] else None


def _figure(comparison: Comparison) -> Figure:
    """SER on the validation set by epoch and, where a run has an epsilon, SER on the test set against it."""
    from edp_lab.course.kit import figure as fig
    from edp_lab.course.kit.theme import TEMPLATE

    runs, points, colors = comparison.runs, [*map(_point, comparison.runs)], TEMPLATE.layout.colorway
    data, lines, labels = [], [], []
    for place, (run, point) in enumerate(zip(runs, points, strict=True)):
        line = {"color": colors[place % len(colors)], "dash": DASHES[place % len(DASHES)]}
        symbol, named = SYMBOLS[place % len(SYMBOLS)], {"name": run["name"], "legendgroup": run["name"]}
        mode = "lines+markers" if run["epochs"] <= MANY_EPOCHS else "lines"
        curve = {"mode": mode, "line": line, "marker": {"symbol": symbol, "size": 9}, **fig.at(1)}
        epochs, hover = list(range(1, run["epochs"] + 1)), "epoch %{x}: SER %{y:.4f}"
        data.append(fig.trace(look=curve, x=epochs, y=run["validation_ser"], hover=hover, **named))
        if point is not None:
            suffix, assumed = KINDS[point[0]]
            size = 14 if suffix else 9  # a filled marker leaves an open one around it to be seen
            marker = {"symbol": symbol + suffix, "size": size, "color": line["color"], "line": {"width": 2}}
            look = {"mode": "markers", "marker": marker, "showlegend": False, **fig.at(2)}
            hover = f"{assumed}: %{{x:.4g}}\nSER %{{y:.4f}}"
            data.append(fig.trace(look=look, x=[point[1]], y=[run["test_ser"]], hover=hover, **named))
        elif any(points) and run["test_ser"] is not None:
            lacks = "no ε" if all(run[name] is None for name in KINDS) else "ε is 0"
            place_of = {"x": 1, "xref": "x2 domain", "xanchor": "right", "yref": "y2", "yanchor": "bottom"}
            lines.append(fig.hline(run["test_ser"], "y2", line=line))
            labels.append(fig.note(f"{run['name']}: {lacks}", y=run["test_ser"], **place_of))
    for name, (suffix, assumed) in KINDS.items():  # what filled and open markers mean, in the legend only
        if any(point is not None and point[0] == name for point in points):
            data.append(fig.points(assumed, "#666", f"circle{suffix}", 11, edge=2, x=[None], y=[None], **fig.at(2)))
    deltas = {run["delta"] for run, point in zip(runs, points, strict=True) if point and run["delta"] is not None}
    layout = _layout(runs, sorted(deltas), two=any(points))
    return fig.figure("", *data, *lines, *labels, height=520, top=50, template=TEMPLATE, **layout)


def _layout(runs: Sequence[Row], deltas: Sequence[float], two: bool) -> dict[str, Any]:
    """Of one plot or of two: titles, axes, legend; `deltas` of the runs whose epsilon is shown."""
    from edp_lab.course.kit import figure as fig

    scores = [score for run in runs for score in (*run["validation_ser"], run["test_ser"]) if score is not None]
    span = [0, 1.06 * (max(scores, default=0.0) or 1.0)]
    tick = max(1, math.ceil(max(run["epochs"] for run in runs) / 10))
    axes = [(fig.axis("epochs trained", dtick=tick, tick0=0), fig.axis("semantic error rate (SER)", span))]
    if two:
        power = {"type": "log", "exponentformat": "power", "nticks": 6, "minor": {"showgrid": False}}
        title = f"ε (at δ = {' or '.join(f'{delta:.2g}' for delta in deltas)})" if deltas else ""
        axes.append((fig.axis(title, **power) if deltas else {}, {"range": span}))
    legend = {"orientation": "v", "x": 1.01, "y": 1, "yanchor": "top", "tracegroupgap": 0}
    titles = ["Validation SER by epoch", "Test SER against ε"][: len(axes)]
    return {**fig.plots(1, len(axes), titles, axes, horizontal_spacing=0.09), "legend": legend, "margin": {"b": 60}}
