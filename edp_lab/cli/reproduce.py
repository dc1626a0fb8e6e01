"""``edp-lab reproduce``: the sources' tables measured again, ours beside theirs; ``edp-lab three-phase``."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import HEAVY_HEAD

from edp_lab.cli import reports
from edp_lab.cli.options import CORES, COUNT, App, BatchSize, Corpus, Delta, Json, Size, chosen, commas, numbers
from edp_lab.cli.output import Screen, Tell, bar, echo, number, print_json, telling
from edp_lab.errors import UsageError
from edp_lab.files import write_whole
from edp_lab.training.config import SEED

if TYPE_CHECKING:
    from edp_lab.reproduce import thesis as study
    from edp_lab.reproduce.epsilons import ExplainedEpsilon
    from edp_lab.three_phase.phases import Event, Part, ThreePhaseRecord

WIDTH = 150
Row = dict[str, Any]  # of a table, as its JSON has it

reproduce_app = App(no_args_is_help=True, help="Tables and figures of the sources, ours beside theirs.")


# ---- Table 1 ---------------------------------------------------------------------------------------------------------


@reproduce_app.command()
def table1(
    models: Annotated[str, "clc, bert, or both with a comma between."] = "clc,bert",
    corpora: Annotated[
        str,
        "Of atis, snips, nlu-eval, and for the paper's internal corpora smart-home-health, "
        "smart-home-communication, smart-home-video; with commas between.",
    ] = "atis,snips,nlu-eval",
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
        "Maximum epochs of each run, an even number. (default: 8, of BERT 4; 6 and 4 if --quick)",
        {**COUNT, "min": 2},
    ] = None,
    workers: Annotated[int | None, "Runs at a time, a thread each. (default: all cores)", CORES] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore finished runs that come with the checkout.")] = False,
    out: Annotated[Path, "Folder for table.json, finished runs and the run in progress."] = Path("runs/table1"),
    as_json: Json = False,
) -> None:
    """Table 1: error, membership inference and epsilon of SGD and of eDP-SGD, as printed and sound.

    Finished runs are kept in the folder: after a kill, the same command resumes and gives the same table.
    """
    with telling() as tell:
        from edp_lab.jobs import usable_cores
        from edp_lab.reproduce.table1 import ENCODER, FULL, MODELS, QUICK, TableRuns
        from edp_lab.reproduce.table1 import table1 as rows_of

        if epochs is not None and epochs % 2:
            raise UsageError(f"--epochs is {epochs}: give an even number, as a control takes half of them")
        if encoder and quick and "bert" not in models.split(","):
            raise UsageError("--quick has the CLC read words that are made on the spot: drop --encoder or --quick")
        scale = QUICK if quick else FULL
        scale = replace(scale, seeds=scale.seeds if seeds is None else seeds)
        if epochs is not None:
            scale = replace(scale, most_epochs=dict.fromkeys(MODELS, epochs))
        runs = TableRuns(out, workers or usable_cores(), tell, fresh, encoder or ENCODER)
        made: list[list[Row]] = []
        try:
            for cells in rows_of(runs, scale, models.split(","), corpora.split(",")):
                made.append(cells)
                table = json.dumps([cell for row in made for cell in row], indent=1)
                write_whole(out.resolve() / "table.json", f"{table}\n".encode(), "choose another --out")
        except KeyboardInterrupt:
            tell(f"interrupted; finished runs are kept in {out}: the same command resumes", True)
            raise
    if as_json:
        print_json([cell for row in made for cell in row])
        return
    console = Screen(WIDTH)
    for cells in made:
        console.print(f"\n{reports.table1_title(cells[0])}")
        console.table([HEADINGS1, *map(_line1, cells)], padding=(0, 1, 0, 0))
    console.print(f"\n{reports.TABLE1_NOTE}")
    echo(f"written: {out / 'table.json'}")


HEADINGS1 = (
    "method, decay", "SER %", "change %", "theirs", "AUC %", "change %", "theirs", "AUC by loss\nor change %",
    "log10 ε", "theirs", "log10 ε\nthat holds", "z0", "trials",
)  # fmt: skip


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


def interval(estimate: Row | None, sign: str = "") -> str:
    """``3.1 ± 0.2``, the half-width of its interval where it has one."""
    if estimate is None:
        return ""
    mean = _tenths(estimate["mean"], sign)
    return mean if estimate["high"] is None else f"{mean} ± {estimate['high'] - estimate['mean']:.1f}"


def _tenths(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.1f}"


# ---- Table 2 ---------------------------------------------------------------------------------------------------------

QUARTILES = "{ratio_spread[0]:.2f}-{ratio_spread[1]:.2f}"


@reproduce_app.command()
def table2(
    corpus: Corpus = "smart-home",
    model: Annotated[str, "clc or bert (of the paper's size, random weights)."] = "clc",
    methods: Annotated[
        str | None,
        "Of sgd, edp-sgd, dp-sgd-naive, dp-sgd and opacus, with commas between. (default: all, opacus if installed)",
    ] = None,
    gpus: Annotated[str, "Numbers of devices for edp-sgd."] = "1,8",
    processes: Annotated[str, "Numbers of real processes."] = "1",
    batch_size: BatchSize = 64,
    rounds: Annotated[int, "Timed steps of each method, one after another in each round.", COUNT] = 30,
    threads: Annotated[int | None, "Of each process (default: its share of the cores).", CORES] = None,
    size: Size = "paper",
    device: Annotated[str | None, "cpu or cuda (default: cuda if there is one)."] = None,
    as_json: Json = False,
) -> None:
    """Table 2: seconds of a training step under each method, as a ratio to SGD's, beside the paper's.

    Leave the machine alone meanwhile.
    """
    from edp_lab.reproduce.table2 import Task, usable_methods
    from edp_lab.reproduce.table2 import table2 as rows_of

    counts = numbers("--gpus", gpus, "1,8"), numbers("--processes", processes, "1,8", most=CORES["max"])
    contestants = tuple(methods.split(",")) if methods else usable_methods()
    task = Task(corpus, model, contestants, *counts, batch_size, rounds, threads, size, device)
    with telling("starting", lines=False) as tell:
        rows = rows_of(task, tell)
    if as_json:
        print_json([{**row, **surroundings()} for row in rows])
        return
    lines = [["method", "gpus", "procs", "s / step", "x SGD", "quartiles", "s / epoch", "peak MB", "paper x"]]
    for row in rows:
        paper = "" if row["paper_ratio"] is None else f"{row['paper_ratio']:.2f}"
        cells = "{seconds:.3g}", "{ratio_to_sgd:.2f}", QUARTILES, "{seconds_per_epoch:.3g}", "{peak_memory_mb:.0f}"
        counted = [row["method"], str(row["gpus"]), str(row["processes"])]
        lines.append([*counted, *(cell.format_map(row) for cell in cells), paper])
    title = (
        f"{task.model} ({task.size}) on {task.corpus}, batches of {task.batch_size}, {rows[0]['device']}, "
        f"{rows[0]['threads']} thread(s) a process"
    )
    caption = "seconds: median; x SGD: median of the ratios within a round; the paper's ratios are of whole epochs"
    framed: dict[str, Any] = {"box": HEAVY_HEAD, "show_edge": True, "pad_edge": True, "padding": (0, 0, 0, 1)}
    Screen().table(lines, title=title, caption=caption, **framed)


def surroundings() -> Row:
    """When, where and by which command something was measured."""
    from datetime import UTC, datetime

    from edp_lab.reproduce.results_io import machine
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
    """Every epsilon of the paper's Table 1: a setting that explains it, and the true epsilon of that setting."""
    from edp_lab.privacy import Decay
    from edp_lab.reproduce.epsilons import explain_table1

    def cell(row: ExplainedEpsilon) -> str:
        setting, mark = row.closest, "" if row.survives_float32 else " *"
        tau = "" if setting.tau is None else f" tau {setting.tau:g}"
        true = math.ceil(row.true_log10_epsilon * 10) / 10
        return f"{row.log10_epsilon} -> {true}{mark}\n[dim]z0 {setting.z0:.3g}{tau} T {setting.epochs}[/dim]"

    result = explain_table1()
    if as_json:
        print_json(asdict(result))
        return
    console = Screen(markup=True)
    lines = [["model", "corpus", *(f"{decay} decay".replace("none", "no") for decay in Decay)]]
    for start in range(0, len(result.rows), len(Decay)):
        cells = result.rows[start : start + len(Decay)]
        lines.append([cells[0].model, cells[0].corpus, *map(cell, cells)])
    console.print(reports.TABLE1_EPSILONS)
    console.table(lines)
    console.report(reports.table1_epsilons(result))


# ---- The thesis ------------------------------------------------------------------------------------------------------


@reproduce_app.command()
def thesis(
    table: Annotated[
        list[str] | None, "4.1 to 4.8, 6.1, 6.2 or times; several with commas, or repeated. (default: all)"
    ] = None,
    quick: Annotated[bool, "Digits and short training: minutes on one core."] = False,
    data: Annotated[str | None, "digits or mnist. (default: mnist if at hand; digits if --quick)"] = None,
    repeats: Annotated[int | None, "Of all that is trained on images (default: 3; 1 if --quick).", COUNT] = None,
    out: Annotated[Path, "Folder of finished networks."] = Path("runs/reproduce-thesis"),
    seed: Annotated[int, "Of the first repeat; published, so that a table can be repeated.", SEED] = 0,
    as_json: Json = False,
) -> None:
    """Train the thesis' tables again: our scores beside the printed ones, and the guaranteed epsilon.

    In full, on MNIST, it takes about ten hours on two cores, a third of that with --repeats 1. Finished networks are
    kept in the folder: after a kill, the same command resumes. JSON also has confusion matrices and loss curves.
    """
    from edp_lab.reproduce.thesis import TABLES

    tables = commas(*table or TABLES)
    for name in tables:
        if name not in TABLES:
            raise UsageError(f"unknown table {name!r}: choose {', '.join(TABLES)}")
    with telling() as tell:
        from edp_lab.reproduce.thesis import Lab, reproduce

        lab = Lab(out, _scale(quick, data, repeats, tell), seed, tell)
        try:
            rows = [*reproduce(lab, tables)]
        except KeyboardInterrupt:
            tell(f"interrupted; finished networks are kept in {out}: the same command resumes from there", True)
            raise
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        _show_tables(lab, rows)


def _scale(quick: bool, data: str | None, repeats: int | None, tell: Tell) -> Any:
    from edp_lab.corpora.images import load_images
    from edp_lab.reproduce.thesis import FULL, QUICK

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


def _show_tables(lab: study.Lab, rows: Iterable[study.Row]) -> None:
    """A table for each of the thesis', scores side by side, and notes below."""
    from edp_lab.reproduce.thesis import TABLES

    console, epsilons = Screen(), ["epsilon\nclaimed", "epsilon\nguaranteed", "epsilon\nof image", "delta"]
    for name, table_rows in groupby(rows, lambda row: row.table):
        table, lines = TABLES[name], []
        notes: dict[str, list[str]] = {}
        for row in table_rows:
            image = "" if row.epsilon_image is None else reports.up(row.epsilon_image, 4)
            claimed, delta = number(row.epsilon_claimed, 4, ""), number(row.delta, absent="")
            spent = [claimed, reports.up(row.epsilon, 4), image, delta]
            lines.append([row.name, *_both(row), *spent, f"{row.seconds:.1f}"])
            notes.setdefault(row.note, []).append(row.name)
        console.print(f"\n{name if name == 'times' else f'table {name}'}, {table.place}: {table.title}")
        console.table([["thesis / ours", *table.columns, *epsilons, "trained, s"], *lines], padding=(0, 1, 0, 0))
        for note, names in notes.items():
            console.print(note if len(notes) == 1 else f"{', '.join(names)}: {note}", style="dim")
        if table.remark:
            console.print(f"the print: {table.remark}", style="dim")
    console.print(f"\n{reports.thesis_note(lab)}")


def _both(row: study.Row) -> list[str]:
    """The printed value of each column and ours, the first one with its interval."""
    interval = f" ({row.interval[0]:.0f} to {row.interval[1]:.0f})" if row.interval else ""
    shown = {name: f"{ours:.3g}" if ours < 1000 else f"{ours:.0f}" for name, ours in row.ours.items()}
    return [
        f"{number(row.printed.get(name), 9, '-')} / {ours}{'' if place else interval}"
        for place, (name, ours) in enumerate(shown.items())
    ]


# ---- The three phases ------------------------------------------------------------------------------------------------


def three_phase(
    ctx: typer.Context,
    data: Annotated[str, "digits (embedded) or mnist (edp-lab data fetch mnist)."] = "digits",
    model: Annotated[str, "cnn (two convolutions), alexnet, vgg or mlp."] = "cnn",
    phases: Annotated[str, "Which phases take part, such as 1,2,3 or 2,3."] = "1,2,3",
    sigma: Annotated[float, "Phase I: standard deviation of the noise on a pixel in [0, 1]."] = 0.6,
    instructors: Annotated[int, "Phase II: networks on disjoint parts of the training set.", COUNT] = 10,
    vote: Annotated[str, "hard, laplace or gaussian."] = "laplace",
    vote_epsilon: Annotated[float, "Of one noised label; all of them together cost more."] = 0.2,
    labels: Annotated[int | None, "Public images put to the vote (default: all).", COUNT] = None,
    method: Annotated[str, "Training of the instructors: adam, sgd, dp-adam or dp-sgd."] = "adam",
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
    """Run the thesis' three phases: accuracy of every part beside the printed one, and its guaranteed epsilon."""
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
    """The scores of every part, and below what its epsilon rests on."""
    from edp_lab.three_phase.phases import of_instructors
    from edp_lab.three_phase.settings import ONE, PLAIN

    console, settings = Screen(), record.settings
    rows: dict[str, list[Part]] = {}  # instructors share one
    reasons: dict[str, dict[str, None]] = {}
    for part in record.parts:
        name = of_instructors(settings.instructors) if part.name.startswith("instructor") else part.name
        rows.setdefault(name, []).append(part)
        reasons.setdefault(part.why, {})[name] = None
    voters = (
        of_instructors(settings.voters) if 2 in settings.phases else f"the {ONE if 1 in settings.phases else PLAIN}"
    )
    console.table(_scores(rows, settings.model))
    console.report(reports.three_phases(record, reasons, voters))


def _scores(rows: Mapping[str, Sequence[Part]], model: str) -> list[list[str]]:
    """Accuracy with its 95 % interval; or of several networks the mean, and the range from worst to best."""
    from edp_lab.three_phase.settings import THESIS_ACCURACY

    thesis, scores = THESIS_ACCURACY.get(model, {}), ("precision", "recall", "F-score")
    lines = [["", "examples", "accuracy %", "thesis", *scores, "seconds", "epsilon", "of image"]]
    for name, parts in rows.items():
        accuracies, (low, high) = [100 * part.scores.accuracy for part in parts], parts[0].scores.interval
        spread = f"[{min(accuracies):.0f} to {max(accuracies):.0f}]"
        accuracy = f"{statistics.fmean(accuracies):.1f} "
        accuracy += spread if parts[1:] else f"({100 * low:.0f} to {100 * high:.0f})"
        printed = f"{100 * thesis[name]:.0f}" if name in thesis else ""
        each = zip(*((part.scores.precision, part.scores.recall, part.scores.f_score) for part in parts), strict=True)
        means = [f"{100 * statistics.fmean(values):.1f}" for values in each]
        seconds = f"{sum(part.seconds for part in parts):.1f}" if parts[0].rows else ""
        # of one training example, and of its image alone: the worst
        both = zip(*((part.epsilon, part.image_epsilon) for part in parts), strict=True)
        epsilons = ["none" if None in values else reports.up(max(values), 4) for values in both]
        lines.append([name, f"{parts[0].examples:,}", accuracy, printed, *means, seconds, *epsilons])
    return lines
