"""``edp-lab compare``: runs side by side, without columns that are empty; what is the same in all is said once."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from edp_lab.cli import reports
from edp_lab.cli.options import Json
from edp_lab.cli.output import Screen, print_json, shown, table

if TYPE_CHECKING:
    from edp_lab.reproduce.compare import Comparison, Row

NOTHING, NOTE = "-", "note: {}".format
LONGEST = 22  # of a name in a table; longer ones go on in the next line


def compare(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Folders of runs: the --out of edp-lab train.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set runs side by side: what differs between them, their scores, their time, and what each epsilon means."""
    from edp_lab.reproduce import compare as study

    comparison = study.compare(runs or [])
    if as_json:
        print_json(comparison._asdict() | {"reference": comparison.reference and comparison.reference["name"]})
    else:
        _show(comparison)


# ---- Columns ---------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """One property of the runs."""

    title: str  # with a new line where it may break
    value: Callable[[Row], Any]  # of a row; None where it has none
    spec: str = ""  # by which a float is written
    folds: bool = False  # said once where it is the same in all runs

    def text(self, run: Row) -> str:
        value = self.value(run)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return NOTHING if value is None else shown(format(value, self.spec if isinstance(value, float) else ""))


def columns(comparison: Comparison) -> list[Column]:
    """Every column in which at least one run has something."""
    from edp_lab.privacy.guarantee import upward

    def column(title: str, name: str, spec: str = "", folds: bool = False) -> Column:
        return Column(title, itemgetter(name), spec, folds)

    def setting(name: str) -> Column:
        return Column(name.replace("_", "\n"), lambda run: run["settings"].get(name), ".6g")

    def epochs(run: Row) -> Any:
        done, planned = run["epochs"], run["epochs_planned"]
        return done if done == planned else f"{done} of {planned}"

    def holds(run: Row) -> Any:
        return "none" if run["epsilon_that_holds"] is None else run["epsilon_that_holds"]

    fastest = "SGD" if comparison.reference is not None and comparison.reference["method"] == "sgd" else "fastest"
    every = [
        column("run", "name"),
        *(column(name, name, folds=True) for name in ("status", "corpus", "model", "method")),
        *map(setting, comparison.settings),
        Column("epochs", epochs, folds=True),
        column("test\nSER", "test_ser", ".4f"),
        column("intent\naccuracy", "intent_accuracy", ".4f"),
        column("slot\nF1", "slot_f1", ".4f"),
        column("exact\nmatch", "exact_match", ".4f"),
        column("training\nseconds", "seconds", ".1f"),
        column(f"epoch time\n({fastest} = 1)", "times_reference", ".2f"),
        column("claimed\nepsilon", "epsilon_claimed", ".4g"),
        Column("guaranteed\nepsilon", holds, ".4g"),
        column("guarantee", "guarantee", folds=True),
        column("epsilon if\nseed secret", "epsilon_if_seed_secret", ".4g"),
        column("epsilon in\nreal numbers", "epsilon_in_real_numbers", ".4g"),
        column("epsilon if\nalpha public", "epsilon_if_alpha_public", ".4g"),
        Column("delta", lambda run: run["delta"] and float(upward(run["delta"])), ".3g", folds=True),
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
