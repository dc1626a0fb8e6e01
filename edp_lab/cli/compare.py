"""``edp-lab compare``: runs side by side, without lines that are empty."""

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

NOTHING = "-"
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


class Property(NamedTuple):
    """One property of the runs, a line of the table."""

    title: str
    value: Callable[[Row], Any]  # of a row; None where it has none
    spec: str = ""  # by which a float is written

    def text(self, run: Row) -> str:
        value = self.value(run)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return NOTHING if value is None else shown(format(value, self.spec if isinstance(value, float) else ""))


def properties(comparison: Comparison) -> list[Property]:
    """Every property of which at least one run has something."""
    from edp_lab.privacy.guarantee import upward

    def plain(title: str, name: str, spec: str = "") -> Property:
        return Property(title, itemgetter(name), spec)

    def setting(name: str) -> Property:
        return Property(name.replace("_", " "), lambda run: run["settings"].get(name), ".6g")

    def epochs(run: Row) -> Any:
        done, planned = run["epochs"], run["epochs_planned"]
        return done if done == planned else f"{done} of {planned}"

    def bound(title: str, name: str, absent: str | None = None) -> Property:
        return Property(title, lambda run: absent if run[name] is None else upward(run[name], 4))

    fastest = "SGD" if comparison.reference is not None and comparison.reference["method"] == "sgd" else "fastest"
    every = [
        plain("run", "name"),
        *(plain(name, name) for name in ("status", "corpus", "model", "method")),
        *map(setting, comparison.settings),
        Property("epochs", epochs),
        plain("test SER", "test_ser", ".4f"),
        plain("intent accuracy", "intent_accuracy", ".4f"),
        plain("slot F1", "slot_f1", ".4f"),
        plain("exact match", "exact_match", ".4f"),
        plain("training seconds", "seconds", ".1f"),
        plain(f"epoch time ({fastest} = 1)", "times_reference", ".2f"),
        plain("claimed epsilon", "epsilon_claimed", ".4g"),
        bound("guaranteed epsilon", "epsilon_that_holds", "none"),
        plain("guarantee", "guarantee"),
        bound("epsilon if seed secret", "epsilon_if_seed_secret"),
        bound("epsilon in real numbers", "epsilon_in_real_numbers"),
        bound("epsilon if alpha public", "epsilon_if_alpha_public"),
        Property("delta", lambda run: run["delta"] and float(upward(run["delta"])), ".3g"),
    ]
    return [candidate for candidate in every if any(candidate.text(run) != NOTHING for run in comparison.runs)]


def _show(comparison: Comparison) -> None:
    """One column per run, as many beside each other as fit."""
    console, runs = Screen(shutil.get_terminal_size((80, 0)).columns), comparison.runs
    lines = [[line.title, *(textwrap.fill(line.text(run), LONGEST) for run in runs)] for line in properties(comparison)]
    beside = len(runs)
    while beside > 1 and not console.fits(table([line[: 1 + beside] for line in lines])):
        beside -= 1
    for start in range(0, len(runs), beside):
        console.table([[name, *texts[start : start + beside]] for name, *texts in lines])
    console.print(f"\n{reports.compared(comparison)}", style="dim")
    for reason in comparison.notes:
        console.print(f"note: {reason}")
