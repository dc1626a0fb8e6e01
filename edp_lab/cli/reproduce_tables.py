"""``edp-lab reproduce table1`` and ``table2``: the paper's tables measured anew, ours beside theirs."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.options import Json
from edp_lab.cli.output import telling

if TYPE_CHECKING:
    from rich.table import Table

    from edp_lab.reproduce.paper.table1 import Cell, Estimate

FILES = ("table.json", "table.csv", "table.html")
WIDTH = 150

Models = Annotated[str, typer.Option(help="clc, bert, or both with a comma between.")]
Corpora = Annotated[
    str,
    typer.Option(
        help="Of atis, snips, nlu-eval, and for the paper's internal corpora smart-home-health, "
        "smart-home-communication, smart-home-video; with commas between."
    ),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Runs at a time, a thread each. (default: all cores)")]
Resume = Annotated[
    bool,
    typer.Option("--resume/--fresh", help="Use what is finished in --out or comes with the checkout, or do it anew."),
]
PUBLIC = "atis,snips,nlu-eval"


def table1(
    models: Models = "clc,bert",
    corpora: Corpora = PUBLIC,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Medium-sized models, fewer epochs and levels: minutes, not hours.")
    ] = False,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Public encoder, a hub name or a folder: BERT starts from its first 4 layers (2 if --quick), the CLC "
            "reads its words' vectors (fastText made on the spot if --quick). (default: "
            "sentence-transformers/all-MiniLM-L6-v2)"
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each cell. (default: 3)")] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=2, help="At most so many of each run, an even number. (default: 8, of BERT 4; 6 and 4 if --quick)"
        ),
    ] = None,
    workers: Workers = None,
    resume: Resume = True,
    out: Annotated[Path, typer.Option(help="Folder for the table, its runs and what is finished.")] = Path(
        "runs/table1"
    ),
    as_json: Json = False,
) -> None:
    """Table 1: error, membership inference and epsilon of SGD and of eDP-SGD, as printed and sound.

    Finished runs are kept in the folder: after a kill, the same command (without --fresh) goes on from
    there and gives the same table.
    """
    with telling() as tell:
        from edp_lab.errors import UsageError
        from edp_lab.reproduce.paper.table1 import FULL, MODELS, QUICK
        from edp_lab.reproduce.paper.table1 import table1 as rows_of
        from edp_lab.reproduce.pretrained import ENCODER
        from edp_lab.reproduce.run_cache import TableRuns
        from edp_lab.training.processes import usable_cores

        if epochs is not None and epochs % 2:
            raise UsageError(f"--epochs is {epochs}: give an even number, as a control takes half of them")
        if encoder and quick and "bert" not in models.split(","):
            raise UsageError("--quick has the CLC read words that are made on the spot: drop --encoder or --quick")
        scale = QUICK if quick else FULL
        scale = replace(scale, seeds=scale.seeds if seeds is None else seeds)
        if epochs is not None:
            scale = replace(scale, most_epochs=dict.fromkeys(MODELS, epochs))
        runs = TableRuns(out, usable_cores() if workers is None else workers, tell, fresh=not resume)
        made: list[list[Cell]] = []
        try:
            for row in rows_of(runs, scale, models.split(","), corpora.split(","), encoder or ENCODER):
                made.append(row)
                write_table(out, [cell.as_json() for part in made for cell in part], _page1(made))
        except KeyboardInterrupt:
            tell(f"interrupted; finished runs are kept in {out}: the same command without --fresh goes on", True)
            raise
    if as_json:
        print(json.dumps([cell.as_json() for part in made for cell in part], indent=1, allow_nan=False))
        return
    _show(made)
    print(f"written: {', '.join(str(out / name) for name in FILES)}")


def table2(
    models: Models = "clc,bert",
    corpora: Corpora = PUBLIC,
    quick: Annotated[bool, typer.Option("--quick/--full", help="Medium-sized models, few rounds.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the table and what was measured.")] = Path("runs/table2"),
    as_json: Json = False,
) -> None:
    """Table 2: seconds of an epoch under each method, as a ratio to SGD.

    What was measured on this machine before is kept in the folder. Leave the machine alone meanwhile.
    """
    with telling() as tell:
        from edp_lab.reproduce.paper.table2 import table2 as rows_of

        size, rounds = ("medium", 5) if quick else ("paper", 11)
        made: list[dict[str, Any]] = []
        for rows in rows_of(out, models.split(","), corpora.split(","), size, rounds, tell):
            made += rows
            write_table(out, made, _page("Table 2, measured anew", [_lines2(made)]))
    if as_json:
        print(json.dumps(made, indent=1, allow_nan=False))
        return
    print_table("Table 2: seconds of an epoch (median), and the median ratio to SGD's in the same round", _lines2(made))
    print(f"written: {', '.join(str(out / name) for name in FILES)}")


# ---- Table 1 in text -----------------------------------------------------------------------------------------------

HEADINGS = (
    "method, decay", "SER %", "change %", "theirs", "AUC %", "change %", "theirs", "AUC by loss\nor change %",
    "log10 ε", "theirs", "log10 ε\nthat holds", "z0", "trials",
)  # fmt: skip


def _lines1(cells: Sequence[Cell]) -> list[list[str]]:
    return [list(HEADINGS), *(_line1(cell) for cell in cells)]


def _line1(cell: Cell) -> list[str]:
    measured = []
    for own, change, name in (
        (cell.ser, cell.ser_change, "ser_change"),
        (cell.auc, cell.auc_change, "auc_change"),
    ):
        printed = _signed(cell.paper[name]) if cell.decay else ""
        measured += [interval(own), interval(change, signed=True), printed]
    loss = cell.loss_auc_change
    measured.append(interval(cell.loss_auc) if loss is None else interval(loss, signed=True))
    if cell.decay is None:
        return [cell.variant.replace("sgd", "SGD"), *measured, "", "", "none", "", ""]
    return [
        f"{cell.variant}, {cell.decay}",
        *measured,
        _number(cell.log10_claimed),
        _number(cell.paper["log10_claimed"]),
        _holds(cell),
        f"{cell.z0:.2g}",
        f"{cell.trials}{'' if cell.within_tolerance else '*'}",
    ]


def _holds(cell: Cell) -> str:
    if cell.epsilon is not None:
        return _log10_upward(cell.epsilon)
    return "none" if cell.epsilon_if_alpha_public is None else f"none ({_log10_upward(cell.epsilon_if_alpha_public)})"


def _log10_upward(epsilon: float) -> str:
    return f"{math.ceil(10 * math.log10(epsilon)) / 10:.1f}"


def interval(estimate: Estimate | None, signed: bool = False) -> str:
    if estimate is None:
        return ""
    mean = f"{estimate.mean:+.1f}" if signed else f"{estimate.mean:.1f}"
    return mean if estimate.high is None else f"{mean} ± {estimate.high - estimate.mean:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"


def _title1(cells: Sequence[Cell]) -> str:
    first = cells[0]
    own = first.stands_for.lower() == first.corpus.lower()
    corpus = first.stands_for if own else f"{first.corpus} (in place of the paper's internal {first.stands_for})"
    about, theirs = first.about, first.paper
    printed = "" if theirs["ser"] is None else f" (the paper's SGD: SER {theirs['ser']}, AUC {theirs['auc']})"
    return (
        f"{first.model.upper()} on {corpus}{printed}: {about['size']} size, {about['epochs']} epochs of batches of "
        f"{about['batch_size']}, {first.seeds} {'seed' if first.seeds == 1 else 'seeds'}, "
        f"n = {about['examples']}, {about['device']}, shadow {', '.join(about['shadow_corpora'])}"
    )


NOTE = (
    "Mean over seeds ± Student's 95 % interval, narrow for any other sample, as the seeds' test splits overlap; "
    "changes are relative to SGD within a seed. AUC: the paper's attack, its shadow model trained by SGD for as many "
    "epochs; by loss: an attack without one. Half the epochs: a control, what learning less does. log10 ε: as the "
    "paper accounts, at its delta (5e-4 for public corpora, else 5e-5). That holds, rounded up: Gaussian DP at delta "
    "= n^-1.1, one utterance zeroed out or replaced, disjoint batches, were the seed secret; with layer scales from "
    "private gradients, as printed, there is none (in brackets: were they public). z0 without decay was chosen on the "
    "validation split of seed 0, by so many trials, which no epsilon covers: the most noise with at most 1.15 times "
    "SGD's error there, else the least error; so changes of SER say where that line is, not which method is better. "
    "Decays (linear 0.3, exponential 0.2) start as much higher as leaves epsilon the same. *: above that line on seed "
    "0. C (1), batches, epochs and levels of z0 come from some thirty earlier runs of the CLC on ATIS, with these "
    "seeds and test scores in sight. The paper states neither its epochs nor its batches. All methods read the same "
    "frozen public word vectors, which are not the paper's; BERT is 384 wide, not 312, and without dropout, like the "
    "CLC."
)


def _show(made: Sequence[Sequence[Cell]]) -> None:
    for cells in made:
        print_table(_title1(cells), _lines1(cells))
    print(f"\n{textwrap.fill(NOTE, 120)}")


def _page1(made: Sequence[Sequence[Cell]]) -> str:
    from edp_lab.course.kit.theme import CONFIG
    from edp_lab.course.nb11_claims.table1_figure import changes_figure

    figure = changes_figure([cell.as_json() for cells in made for cell in cells])
    drawn = figure.to_html(CONFIG, include_plotlyjs=True, full_html=False)
    parts = [_lines1(cells) for cells in made]
    return _page("Table 1, measured anew", parts, [_title1(cells) for cells in made], NOTE, drawn)


# ---- Table 2 in text -----------------------------------------------------------------------------------------------


def _lines2(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    lines = [["model", "corpus", "method", "devices", "s / epoch", "x SGD", "quartiles", "paper x", "paper s, SGD"]]
    for row in rows:
        low, high = row["ratio_spread"]
        paper = "" if row["paper_ratio"] is None else f"{row['paper_ratio']:.2f}"
        seconds = f"{row['paper_sgd_seconds']:.1f}" if row["method"] == "sgd" else ""
        numbers = [f"{row['seconds_per_epoch']:.3g}", f"{row['ratio_to_sgd']:.2f}", f"{low:.2f} to {high:.2f}"]
        lines.append([row["model"].upper(), row["corpus"], row["method"], str(row["gpus"]), *numbers, paper, seconds])
    return lines


# ---- Files and screen ----------------------------------------------------------------------------------------------


def print_table(title: str, lines: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    table: Table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(lines[0]):
        table.add_column(heading, justify="right" if number else "left", no_wrap=not number)
    for line in lines[1:]:
        table.add_row(*line)
    console.print(f"\n{title}")
    console.print(table)


PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; color: #222; max-width: 1200px; margin: 1.5em auto; padding: 0 1em }}
h1 {{ font-size: 1.4em }} h2 {{ font-size: 1.05em; margin-top: 2em }}
table {{ border-collapse: collapse }} td, th {{ padding: .1em .5em; text-align: right; white-space: nowrap;
   border-bottom: 1px solid #ddd }}
td:first-child, th:first-child {{ text-align: left }} p {{ color: #555 }}
</style></head><body><h1>{title}</h1>{parts}<p>{note}</p></body></html>
"""


def _page(
    title: str,
    parts: Sequence[Sequence[Sequence[str]]],
    titles: Sequence[str] = (),
    note: str = "",
    figure: str = "",
) -> str:
    """A page that needs no network."""
    drawn = [figure]
    for number, lines in enumerate(parts):
        heading = f"<h2>{html.escape(titles[number])}</h2>" if titles else ""
        drawn.append(f"{heading}{html_table(lines)}")
    return PAGE.format(title=html.escape(title), parts="\n".join(drawn), note=html.escape(note))


def html_table(lines: Sequence[Sequence[str]]) -> str:
    """The first line holds the headings."""
    rows = []
    for place, line in enumerate(lines):
        tag = "td" if place else "th"
        rows.append("<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in line) + "</tr>")
    return f"<table>{''.join(rows)}</table>"


def write_table(out: Path, rows: Sequence[dict[str, Any]], page: str) -> None:
    from edp_lab.errors import UsageError
    from edp_lab.models.files import write_whole

    flat = [_flat(row) for row in rows]
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    contents = (json.dumps(rows, indent=1, allow_nan=False), lines.getvalue(), page)
    for name, content in zip(FILES, contents, strict=True):
        try:
            write_whole(out / name, content.encode())
        except OSError as error:
            raise UsageError(f"{out / name} cannot be written ({error.strerror}): choose another --out") from error


def _flat(row: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested entries as columns: {"ser": {"mean": 1}} -> {"ser.mean": 1}."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[before + name] = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return found
