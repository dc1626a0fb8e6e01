"""``edp-lab reproduce``: the paper's tables measured anew, ours beside theirs, and what there is beyond them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.options import CORES, COUNT, App, Json
from edp_lab.cli.output import (
    Screen,
    Section,
    Tell,
    echo,
    filled,
    html_page,
    print_json,
    prose,
    telling,
    words,
    write_table,
)
from edp_lab.cli.thesis import thesis
from edp_lab.errors import UsageError

if TYPE_CHECKING:
    import plotly.graph_objects as go


WIDTH = 150
PUBLIC = "atis,snips,nlu-eval"

Models = Annotated[str, "clc, bert, or both with a comma between."]
Corpora = Annotated[
    str,
    "Of atis, snips, nlu-eval, and for the paper's internal corpora smart-home-health, "
    "smart-home-communication, smart-home-video; with commas between.",
]
Workers = Annotated[int | None, "Runs at a time, a thread each. (default: all cores)", CORES]
Resume = Annotated[
    bool,
    typer.Option("--resume/--fresh", help="Use what is finished in --out or comes with the checkout, or do it anew."),
]

reproduce_app = App(no_args_is_help=True, help="Tables and figures of the sources, ours beside theirs.")


@reproduce_app.command()
def table1(
    models: Models = "clc,bert",
    corpora: Corpora = PUBLIC,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Medium-sized models, fewer epochs and levels: minutes, not hours.")
    ] = False,
    encoder: Annotated[
        str | None,
        "Public encoder, a hub name or a folder: BERT starts from its first 4 layers (2 if --quick), the CLC "
        "reads its words' vectors (fastText made on the spot if --quick). (default: "
        "sentence-transformers/all-MiniLM-L6-v2)",
    ] = None,
    seeds: Annotated[int | None, "Runs of each cell. (default: 3)", COUNT] = None,
    epochs: Annotated[
        int | None,
        "At most so many of each run, an even number. (default: 8, of BERT 4; 6 and 4 if --quick)",
        {**COUNT, "min": 2},
    ] = None,
    workers: Workers = None,
    resume: Resume = True,
    out: Annotated[Path, "Folder for the table, its runs and what is finished."] = Path("runs/table1"),
    as_json: Json = False,
) -> None:
    """Table 1: error, membership inference and epsilon of SGD and of eDP-SGD, as printed and sound.

    Finished runs are kept in the folder: after a kill, the same command (without --fresh) goes on from
    there and gives the same table.
    """
    with telling() as tell:
        from edp_lab.reproduce.paper.table1 import FULL, MODELS, QUICK
        from edp_lab.reproduce.paper.table1 import table1 as rows_of
        from edp_lab.reproduce.run_cache import ENCODER, TableRuns
        from edp_lab.training.processes import usable_cores

        if epochs is not None and epochs % 2:
            raise UsageError(f"--epochs is {epochs}: give an even number, as a control takes half of them")
        if encoder and quick and "bert" not in models.split(","):
            raise UsageError("--quick has the CLC read words that are made on the spot: drop --encoder or --quick")
        scale = QUICK if quick else FULL
        scale = replace(scale, seeds=scale.seeds if seeds is None else seeds)
        if epochs is not None:
            scale = replace(scale, most_epochs=dict.fromkeys(MODELS, epochs))
        runs = TableRuns(out, workers or usable_cores(), tell, fresh=not resume)
        rows = rows_of(runs, scale, models.split(","), corpora.split(","), encoder or ENCODER)
        made, written = _written(rows, out, tell, _page1)
    _finish(made, _parts1(made), "table1_note", written, as_json)


@reproduce_app.command()
def table2(
    models: Models = "clc,bert",
    corpora: Corpora = PUBLIC,
    quick: Annotated[bool, typer.Option("--quick/--full", help="Medium-sized models, few rounds.")] = False,
    out: Annotated[Path, "Folder for the table and what was measured."] = Path("runs/table2"),
    as_json: Json = False,
) -> None:
    """Table 2: seconds of an epoch under each method, as a ratio to SGD.

    What was measured on this machine before is kept in the folder. Leave the machine alone meanwhile.
    """
    with telling() as tell:
        from edp_lab.reproduce.bench.train_step import table2 as rows_of

        size, rounds = ("medium", 5) if quick else ("paper", 11)
        made, written = [], ""
        for row in rows_of(out, models.split(","), corpora.split(","), size, rounds, tell):
            made.append(row)
            written = _write(out, made, page("Table 2, measured anew", [("", _lines2(made))]))
    title = "Table 2: seconds of an epoch (median), and the median ratio to SGD's in the same round"
    _finish(made, [(title, _lines2(made))], "", written, as_json)


reproduce_app.command()(thesis)


# ---- Files and screen ------------------------------------------------------------------------------------------------

Row = dict[str, Any]  # of a table, as its JSON has it
Made = Sequence[Sequence[Row]]  # the rows of one model on one corpus after the other
Parts = Sequence[tuple[str, Sequence[Sequence[str]]]]  # tables, the first line of each its headings, under their titles


def page(title: str, parts: Parts, macro: str = "", figure: go.Figure | None = None) -> str:
    """A page with the figure, the tables and a macro's words."""
    tables = [Section(heading, lines) for heading, lines in parts]
    below = Section(notes=[prose(macro) if macro else ""])
    return html_page(title, [Section(figures=[figure] if figure else []), *tables, below])


def _written(rows: Iterable[list[Row]], out: Path, tell: Tell, page_of: Callable[[Made], str]) -> tuple[Made, str]:
    """All rows, and where they are; the files are written anew as soon as one is there."""
    made: list[list[Row]] = []
    said = ""
    try:
        for row in rows:
            made.append(row)
            said = _write(out, made, page_of(made))
    except KeyboardInterrupt:
        tell(f"interrupted; finished runs are kept in {out}: the same command without --fresh goes on", True)
        raise
    return made, said


def _write(out: Path, made: Made, page: str) -> str:
    rows = [*chain(*made)]
    return write_table(out / "table", rows, [*map(_flat, rows)], page)


def _flat(row: Row, before: str = "") -> Row:
    """Nested entries as columns: {"ser": {"mean": 1}} -> {"ser.mean": 1}."""
    found: Row = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[before + name] = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return found


def _finish(made: Made, parts: Parts, macro: str, written: str, as_json: bool) -> None:
    if as_json:
        print_json([*chain(*made)], indent=1)
        return
    console = Screen(WIDTH)
    for title, lines in parts:
        console.print(f"\n{title}")
        console.table(lines, wrap=True, padding=(0, 1, 0, 0))
    if macro:
        echo(filled(prose(macro), 120))
    echo(written)


def interval(estimate: Row | None, sign: str = "") -> str:
    """``3.1 ± 0.2``, the half-width of its interval where it has one."""
    if estimate is None:
        return ""
    mean = _tenths(estimate["mean"], sign)
    return mean if estimate["high"] is None else f"{mean} ± {estimate['high'] - estimate['mean']:.1f}"


def _tenths(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.1f}"


# ---- Table 1 in text -------------------------------------------------------------------------------------------------

HEADINGS1 = (
    "method, decay", "SER %", "change %", "theirs", "AUC %", "change %", "theirs", "AUC by loss\nor change %",
    "log10 ε", "theirs", "log10 ε\nthat holds", "z0", "trials",
)  # fmt: skip


def _parts1(made: Made) -> Parts:
    return [(words("table1_title", cells[0]), [HEADINGS1, *map(_line1, cells)]) for cells in made]


def _line1(cell: Row) -> list[str]:
    measured = []
    for name in ("ser", "auc"):
        printed = _tenths(cell["paper"][f"{name}_change"], "+") if cell["decay"] else ""
        measured += [interval(cell[name]), interval(cell[f"{name}_change"], "+"), printed]
    measured.append(interval(cell["loss_auc_change"], "+") or interval(cell["loss_auc"]))
    if cell["decay"] is None:
        return [cell["variant"].replace("sgd", "SGD"), *measured, "", "", "none", "", ""]
    holds, if_public = (
        epsilon and f"{math.ceil(10 * math.log10(epsilon)) / 10:.1f}"
        for epsilon in (cell["epsilon"], cell["epsilon_if_alpha_public"])
    )
    return [
        f"{cell['variant']}, {cell['decay']}",
        *measured,
        _tenths(cell["log10_claimed"]),
        _tenths(cell["paper"]["log10_claimed"]),
        holds or ("none" if if_public is None else f"none ({if_public})"),
        f"{cell['z0']:.2g}",
        f"{cell['trials']}{'' if cell['within_tolerance'] else '*'}",
    ]


def _page1(made: Made) -> str:
    from edp_lab.course.nb11_claims.table1 import table1_figure

    return page("Table 1, measured anew", _parts1(made), "table1_note", table1_figure([*chain(*made)]))


# ---- Table 2 in text -------------------------------------------------------------------------------------------------


def _lines2(made: Made) -> list[list[str]]:
    lines = [["model", "corpus", "method", "devices", "s / epoch", "x SGD", "quartiles", "paper x", "paper s, SGD"]]
    for row in chain(*made):
        low, high = row["ratio_spread"]
        paper = "" if row["paper_ratio"] is None else f"{row['paper_ratio']:.2f}"
        seconds = f"{row['paper_sgd_seconds']:.1f}" if row["method"] == "sgd" else ""
        numbers = [f"{row['seconds_per_epoch']:.3g}", f"{row['ratio_to_sgd']:.2f}", f"{low:.2f} to {high:.2f}"]
        lines.append([row["model"].upper(), row["corpus"], row["method"], str(row["gpus"]), *numbers, paper, seconds])
    return lines
