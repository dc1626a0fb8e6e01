"""``edp-lab table1-epsilon``: what the epsilons of the paper's Table 1 mean."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from edp_lab.cli.train import Json

if TYPE_CHECKING:
    from edp_lab.reproduce.paper.table1_epsilon import ExplainedEpsilon, Table1Epsilon

WIDTH = 120


def table1_epsilon(as_json: Json = False) -> None:
    """Every epsilon of the paper's Table 1: a setting that explains it, and the true epsilon of that setting."""
    from edp_lab.reproduce.paper.table1_epsilon import explain_table1

    result = explain_table1()
    if as_json:
        print(json.dumps(asdict(result), indent=2))
    else:
        _show(result)


def _show(result: Table1Epsilon) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from edp_lab.privacy import Decay

    console = Console(highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    console.print(
        f"log10 epsilon in Table 1: as printed -> true (rounded up) if alpha were public, N = {result.num_gpus} GPUs,\n"
        "and a setting that explains the printed value: z0, tau, number of epochs T."
    )
    table = Table("model", "corpus", *(f"{decay} decay".replace("none", "no") for decay in Decay), box=SIMPLE_HEAD)
    for start in range(0, len(result.rows), len(Decay)):
        cells = result.rows[start : start + len(Decay)]
        table.add_row(cells[0].model, cells[0].corpus, *map(_cell, cells))
    console.print(table)
    console.print(_epochs(result))
    console.print(result.note)
    console.print("With alpha from private gradients, as in the paper, no epsilon holds at all.")
    console.print("* On paper only: float32 arithmetic swallows the noise of this setting before the last epoch.")


def _cell(row: ExplainedEpsilon) -> str:
    setting = row.closest
    tau = "" if setting.tau is None else f" tau {setting.tau:g}"
    true = math.ceil(row.true_log10_epsilon * 10) / 10
    mark = "" if row.survives_float32 else " *"
    return f"{row.log10_epsilon} -> {true}{mark}\n[dim]z0 {setting.z0:.3g}{tau} T {setting.epochs}[/dim]"


def _epochs(result: Table1Epsilon) -> str:
    ranges = [(row, *row.epochs_range) for row in result.rows if row.epochs_range]
    high, least, _ = max(ranges, key=lambda item: item[1])
    low, _, most = min(ranges, key=lambda item: item[2])
    common = " or ".join(map(str, result.common_epochs))
    return (
        f"{len(ranges)} of the {len(result.rows)} values can be explained, each with a T of its own; all of them with "
        f"one T only if T = {common}:\n{high.log10_epsilon} ({high.model}, {high.corpus}, {high.decay}) needs "
        f"T >= {least}, {low.log10_epsilon} ({low.model}, {low.corpus}, {low.decay}) needs T <= {most}."
    )
