"""``edp-lab reproduce``: the tables of the paper and the thesis. ``edp-lab three-phase``: the thesis' pipeline."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.terminal import (
    App,
    BatchSize,
    Corpus,
    Json,
    Report,
    Screen,
    Size,
    Tell,
    bar,
    chosen,
    commas,
    echo,
    number,
    numbers,
    options_of,
    print_json,
    telling,
    up,
)
from edp_lab.errors import UsageError
from edp_lab.files import write_whole
from edp_lab.three_phase.settings import THESIS_ACCURACY, ThreePhaseSettings
from edp_lab.training.config import CORES, COUNT, SEED

if TYPE_CHECKING:
    from edp_lab.reproduce import thesis as study
    from edp_lab.reproduce.printed import ExplainedEpsilon
    from edp_lab.three_phase.phases import Event, ThreePhaseRecord

WIDTH = 150
Row = dict[str, Any]  # one row of a table, as in its JSON

reproduce_app = App(no_args_is_help=True, help="Reproduce and compare the tables of the paper and the thesis.")


@contextmanager
def _resumable(out: Path, what: str) -> Iterator[Tell]:
    """Report progress on standard error; after Ctrl-C, report what was saved."""
    with telling() as tell:
        try:
            yield tell
        except KeyboardInterrupt:
            tell(f"interrupted; finished {what} are saved in {out}: run the same command again to resume", True)
            raise


# ---- Table 1 ---------------------------------------------------------------------------------------------------------


@reproduce_app.command()
def table1(
    models: Annotated[str, "Models, separated by a comma: clc, bert or both."] = "clc,bert",
    corpora: Annotated[
        str,
        "Corpora, separated by commas: atis, snips, nlu-eval, and, in place of the paper's internal corpora, "
        "smart-home-health, smart-home-communication, smart-home-video.",
    ] = "atis,snips,nlu-eval",
    seeds: Annotated[int | None, "Number of runs per table cell. (default: 3)", COUNT] = None,
    workers: Annotated[int | None, "Number of parallel runs, one thread each. (default: all cores)", CORES] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat the runs that are in the repository.")] = False,
    out: Annotated[Path, "Folder for table.json, finished runs and the run in progress."] = Path("runs/table1"),
    as_json: Json = False,
) -> None:
    """Reproduce Table 1: error, membership inference and epsilon of SGD and of eDP-SGD (as printed and sound).

    BERT starts from the first 4 layers of sentence-transformers/all-MiniLM-L6-v2, the CLC from its word vectors.
    Finished runs are saved in the folder. If the command is interrupted, run it again to complete the same table.
    """
    made: list[Row] = []
    with _resumable(out, "runs") as tell:
        from edp_lab.jobs import usable_cores
        from edp_lab.reproduce.table1 import FULL, TableRuns
        from edp_lab.reproduce.table1 import table1 as rows_of

        scale = replace(FULL, seeds=seeds or FULL.seeds)
        runs = TableRuns(out, workers or usable_cores(), tell, fresh)
        for cells in rows_of(runs, scale, models.split(","), corpora.split(",")):
            made += cells
            table = json.dumps(made, indent=1)
            write_whole(out.resolve() / "table.json", f"{table}\n".encode(), "choose another --out")
    if as_json:
        print_json(made)
        return
    console = Screen(WIDTH)
    for _, row in groupby(made, lambda cell: (cell["model"], cell["corpus"])):
        cells = [*row]
        console.print(f"\n{_title1(cells[0])}")
        console.table([HEADINGS1, *map(_line1, cells)], padding=(0, 1, 0, 0))
    console.print(f"\n{NOTE1}")
    echo(f"written: {out / 'table.json'}")


NOTE1 = (
    "Values are means over seeds ± Student's 95 % interval. Changes are relative to SGD with the same seed. AUC is for "
    "the paper's attack, AUC by loss for an attack without a shadow model. ε is claimed at the paper's delta, and "
    "guaranteed (rounded up) at delta = n^-1.1 by Gaussian DP, with one utterance zeroed out or replaced, if the seed "
    "were secret (in brackets: if alpha were public). z0 is the most noise with at most 1.15 times SGD's error on "
    "validation, seed 0 (*: none has). No epsilon covers the trials to find z0. For more limits, read docs/results.md."
)
HEADINGS1 = (
    "method, decay", "SER %", "change %", "theirs", "AUC %", "change %", "theirs", "AUC by loss\nor change %",
    "log10 ε\nclaimed", "theirs", "log10 ε\nguaranteed", "z0", "trials",
)  # fmt: skip


def _title1(cell: Row) -> str:
    """Heading for the results of one model on one corpus."""
    about, paper, corpus = cell["about"], cell["paper"], cell["stands_for"]
    if corpus.lower() != cell["corpus"].lower():
        corpus = f"{cell['corpus']} (in place of the paper's internal {corpus})"
    theirs = "" if paper["ser"] is None else f" (the paper's SGD: SER {paper['ser']}, AUC {paper['auc']})"
    runs = f"{cell['seeds']} seed{'' if cell['seeds'] == 1 else 's'}, n = {about['examples']}, {about['device']}"
    size = f"{about['size']} size, {about['epochs']} epochs of batches of {about['batch_size']}"
    return f"{cell['model'].upper()} on {corpus}{theirs}: {size}, {runs}, shadow {', '.join(about['shadow_corpora'])}"


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
        for epsilon in (cell["epsilon_if_seed_secret"], cell["epsilon_if_alpha_public"])
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


def interval(estimate: Row | None, sign: str = "") -> str:
    """Format a mean, with the half-width of its interval if there is one: ``3.1 ± 0.2``."""
    if estimate is None:
        return ""
    mean = _tenths(estimate["mean"], sign)
    return mean if estimate["high"] is None else f"{mean} ± {estimate['high'] - estimate['mean']:.1f}"


def _tenths(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.1f}"


# ---- Table 2 ---------------------------------------------------------------------------------------------------------


@reproduce_app.command()
def table2(
    corpus: Corpus = "smart-home",
    model: Annotated[str, "Model with random weights: clc or bert."] = "clc",
    methods: Annotated[
        str, "Methods to time, separated by commas: sgd (required), edp-sgd, dp-sgd-naive, dp-sgd."
    ] = "sgd,edp-sgd,dp-sgd-naive,dp-sgd",
    gpus: Annotated[str, "Numbers of devices for edp-sgd, separated by commas."] = "1,8",
    processes: Annotated[str, "Numbers of real processes, separated by commas."] = "1",
    batch_size: BatchSize = 64,
    rounds: Annotated[int, "Number of rounds; each round times one step per method.", COUNT] = 30,
    threads: Annotated[int | None, "Number of threads per process (default: an equal share of cores).", CORES] = None,
    size: Size = "paper",
    device: Annotated[str | None, "Device: cpu or cuda (default: cuda if available)."] = None,
    as_json: Json = False,
) -> None:
    """Reproduce Table 2: the time of a training step with each method relative to SGD, next to the paper's ratio.

    Do not run anything else on the machine at the same time.
    """
    from edp_lab.reproduce.table2 import Task
    from edp_lab.reproduce.table2 import table2 as rows_of

    counts = numbers("--gpus", gpus, "1,8"), numbers("--processes", processes, "1,8", most=CORES["max"])
    task = Task(corpus, model, tuple(methods.split(",")), *counts, batch_size, rounds, threads, size, device)
    with telling("starting", lines=False) as tell:
        rows = rows_of(task, tell)
    if as_json:
        print_json([{**row, **surroundings()} for row in rows])
        return
    cells = {
        "method": "{method}", "gpus": "{gpus}", "procs": "{processes}", "s / step": "{seconds:.3g}",
        "x SGD": "{ratio_to_sgd:.2f}", "quartiles": "{ratio_spread[0]:.2f}-{ratio_spread[1]:.2f}",
        "s / epoch": "{seconds_per_epoch:.3g}", "peak MB": "{peak_memory_mb:.0f}", "paper x": "{paper_ratio}",
    }  # fmt: skip
    console, device, threads = Screen(), rows[0]["device"], rows[0]["threads"]
    console.print(f"{model} ({size}) on {corpus}, batches of {batch_size}, {device}, {threads} thread(s) per process")
    shown = [{**row, "paper_ratio": number(row["paper_ratio"], absent="")} for row in rows]
    console.table([[*cells], *([cell.format_map(row) for cell in cells.values()] for row in shown)])
    console.print("Seconds are medians. x SGD: median of the ratios within a round. The paper's ratios are for epochs.")


def surroundings() -> Row:
    """Date, command, machine and software versions of a measurement."""
    from datetime import UTC, datetime

    from edp_lab.jobs import machine
    from edp_lab.training.run_files import versions

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["edp-lab", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
    }


# ---- Epsilons of Table 1 ---------------------------------------------------------------------------------------------


@reproduce_app.command()
def epsilons(as_json: Json = False) -> None:
    """For each epsilon in the paper's Table 1, find a setting that explains it, and compute its guaranteed epsilon."""
    from edp_lab.privacy import Decay
    from edp_lab.reproduce.printed import explain_table1

    def cell(row: ExplainedEpsilon) -> str:
        setting, mark = row.closest, "" if row.survives_float32 else " *"
        tau = "" if setting.tau is None else f" tau {setting.tau:g}"
        guaranteed = math.ceil(row.log10_guaranteed_if_alpha_public * 10) / 10
        return f"{row.log10_epsilon} -> {guaranteed}{mark}\n[dim]z0 {setting.z0:.3g}{tau} T {setting.epochs}[/dim]"

    result = explain_table1()
    if as_json:
        print_json(asdict(result))
        return
    console = Screen(markup=True)
    console.print(
        "log10 epsilon in Table 1: claimed -> guaranteed (rounded up) if alpha were public,\n"
        "and a setting that explains the claim: z0, tau, number of epochs T"
    )
    lines = [["model", "corpus", *(f"{decay} decay".replace("none", "no") for decay in Decay)]]
    for start in range(0, len(result.rows), len(Decay)):
        cells = result.rows[start : start + len(Decay)]
        lines.append([cells[0].model, cells[0].corpus, *map(cell, cells)])
    console.table(lines)
    explained = sum(row.epochs_range is not None for row in result.rows)
    common = " or ".join(map(str, result.common_epochs))
    console.print(
        f"{explained} of the {len(result.rows)} values can be explained; one T explains all only if T = {common}.\n"
        f"{result.note}\n"
        "With alpha from private gradients, as in the paper, no epsilon is guaranteed.\n"
        "* In theory only: in float32, rounding removes the noise of this setting before the last epoch."
    )


# ---- The thesis ------------------------------------------------------------------------------------------------------


@reproduce_app.command()
def thesis(
    table: Annotated[
        list[str] | None, "Tables, separated by commas: 4.1 to 4.8, 6.1 or 6.2; repeatable. (default: all)"
    ] = None,
    quick: Annotated[bool, "Use digits instead of MNIST and train briefly (minutes on one core)."] = False,
    repeats: Annotated[
        int | None, "Number of repeats of each network trained on images (default: 3; 1 with --quick).", COUNT
    ] = None,
    out: Annotated[Path, "Folder for finished networks."] = Path("runs/reproduce-thesis"),
    seed: Annotated[int, "Seed of the first repeat, published to make the tables repeatable.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Retrain the networks in the thesis' tables; print our scores, the thesis' scores and the guaranteed epsilon.

    On MNIST, the full command takes about ten hours on two cores, or a third of this time with --repeats 1. Finished
    networks are saved in the folder. If the command is interrupted, run it again to resume. --json also prints
    confusion matrices and loss curves.
    """
    from edp_lab.reproduce.thesis import TABLES

    tables = commas(*table or TABLES)
    for name in tables:
        if name not in TABLES:
            raise UsageError(f"unknown table {name!r}: choose {', '.join(TABLES)}")
    with _resumable(out, "networks") as tell:
        from edp_lab.reproduce.thesis import FULL, QUICK, Lab, reproduce

        scale = QUICK if quick else FULL
        lab = Lab(out, replace(scale, repeats=repeats or scale.repeats), seed, tell)
        rows = [*reproduce(lab, tables)]
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        _show_tables(lab, rows)


def _show_tables(lab: study.Lab, rows: Iterable[study.Row]) -> None:
    """Print a table for each of the thesis' tables, with the thesis' scores next to ours."""
    from edp_lab.reproduce.thesis import TABLES

    console = Screen()
    for name, table_rows in groupby(rows, lambda row: row.table):
        table = TABLES[name]
        epsilons = "claimed\nepsilon", "epsilon if\nseed secret", "epsilon\nof image"
        lines = [["thesis / ours", *table.columns, "95 %", *epsilons, "delta", "seconds"]]
        for row in table_rows:
            scores = [f"{number(row.printed.get(score), 9, '-')} / {ours:.3g}" for score, ours in row.ours.items()]
            low, high = row.interval or (math.nan, math.nan)
            claimed, delta = number(row.claimed_epsilon, 4, ""), number(row.delta, absent="")
            spent = [claimed, up(row.epsilon_if_seed_secret, 4), up(row.epsilon_image, 4), delta]
            lines.append([row.name, *scores, f"{low:.0f} to {high:.0f}", *spent, f"{row.seconds:.1f}"])
        console.print(f"\ntable {name}: {table.title}")
        console.table(lines, padding=(0, 1, 0, 0))
    console.print(
        f"\nData: {lab.scale.data}, seed {lab.seed}. 95 %: interval of our accuracy over the test images, or, on "
        "circles, its range over the repeats. The epsilons (for one example with its label, and for its image alone) "
        "would be guaranteed if the seeds were secret. --json prints settings, confusion matrices and losses."
    )


# ---- The three phases ------------------------------------------------------------------------------------------------


@options_of(ThreePhaseSettings)
def three_phase(
    ctx: typer.Context,
    data: Annotated[str, "Data set: digits (embedded) or mnist (edp-lab data fetch mnist)."] = "digits",
    phases: Annotated[str, "Phases to include, such as 1,2,3 or 2,3."] = "1,2,3",
    *,
    as_json: Json = False,
    **_: Any,
) -> None:
    """Run the thesis' three phases; print our accuracy, the thesis' accuracy and the epsilon of every part.

    For comparison, the command also trains a model without noise on the same data.
    """
    from edp_lab.corpora.images import load_images
    from edp_lab.three_phase.phases import run_three_phase

    settings = chosen(ctx, ThreePhaseSettings, phases=numbers("--phases", phases, "1,2,3", most=3))
    images = load_images(data, settings.seed)
    with bar("training") as (update, say):

        def listen(event: Event) -> None:
            update(event.epoch, event.epochs, description=event.part)
            if event.epoch == event.epochs:
                scores = f"loss {event.loss:.3f}  accuracy {event.accuracy:.3f}"
                say(f"{event.part:<16} {event.epochs:>4} epochs  {scores}")

        record = run_three_phase(settings, images, listen)
    if as_json:
        print_json(record.as_json())
    else:
        _show_run(record)


def _show_run(record: ThreePhaseRecord) -> None:
    """Print accuracy and epsilon of every part except single instructors, then the data, the settings and the vote."""
    data, settings, vote = record.data, record.settings, record.labels
    printed = THESIS_ACCURACY.get(settings.model, {})
    lines = [["", "examples", "accuracy %", "95 %", "thesis %", "seconds", "epsilon", "epsilon\nof image"]]
    for part in record.parts:
        if part.name.startswith("instructor "):
            continue
        low, high = part.scores.interval
        accuracy = [f"{100 * part.scores.accuracy:.1f}", f"{100 * low:.0f} to {100 * high:.0f}"]
        thesis = f"{100 * printed[part.name]:.0f}" if part.name in printed else ""
        epsilons = up(part.conditional_epsilon, 4), up(part.image_epsilon, 4)
        lines.append([part.name, f"{part.examples:,}", *accuracy, thesis, f"{part.seconds:.1f}", *epsilons])
    facts = [
        ("data", f"{data['name']}: {data['train']:,} private images, {data['public']:,} public, {data['test']:,} test"),
        ("phases", f"{', '.join(map(str, settings.phases))}; {settings.model}"),
        ("seed", "secret" if settings.private_seed else f"{settings.seed}, published"),
        ("guaranteed epsilon", "none: each epsilon above assumes exact noise and a secret seed"),
    ]
    if vote is not None:
        right = f"{vote.right:.1%} right ({vote.right_without_noise:.1%} without noise)"
        facts.append(("labels", f"{vote.queries:,} by {settings.vote} vote, {right}"))
        facts.append(("epsilon of labels", _cost(record)))
    Screen().table(lines)
    Screen().report(Report(facts=facts))


def _cost(record: ThreePhaseRecord) -> str:
    """Epsilon of one released label and of all labels together."""
    account = record.privacy
    if account is None or not account.composed:
        return "no guarantee, because the vote has no noise"
    each = up(account.query_epsilon * (1 - 1e-12), 4)  # absorbs floating-point error: 0.2 stays 0.2
    everything = f"{up(account.epsilon, 4)} for all labels at delta {account.delta:g} ({record.status})"
    return f"{each} for one label, {everything}, if one training example is replaced"
