"""``edp-lab bench``: how fast the library is, beside its peers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any

import typer
from rich.box import HEAVY_HEAD

from edp_lab.cli.options import CORES, COUNT, UTTERANCES, App, BatchSize, Corpus, Json, RunFolder, Size, numbers
from edp_lab.cli.output import Screen, Tell, echo, fitted, print_json, telling
from edp_lab.training.config import Bounds

SPARE: Bounds = {**COUNT, "min": 0}  # may be left out
bench_app = App(no_args_is_help=True, help="Time the library beside its peers.")


@bench_app.command()
def accounting(
    repeats: Annotated[int, "Rounds; those that take over a second run twice.", COUNT] = 7, as_json: Json = False
) -> None:
    """The accountants beside dp_accounting and prv_accountant, in the same run."""
    from edp_lab.reproduce.bench.contests import bench_accounting

    if as_json:
        print_json({**bench_accounting(repeats), **surroundings()})
        return
    result = bench_accounting(repeats, progress=lambda name: echo(f"... {name}", error=True))
    for task in ("closed_form", "sampled"):
        echo(f"\n{task}")
        for name, row in result[task].items():
            echo(fitted(f"  {name:<20} {row.get('absent') or ACCOUNTANT.format_map(row)}"))


ACCOUNTANT = "{seconds:>10.5f} s  {times_ours:>9.1f} x  epsilon {epsilon:.6g}"
QUARTILES = "{ratio_spread[0]:.2f}-{ratio_spread[1]:.2f}"
Rounds = Annotated[int, "Timed steps of each method, one after another in each round.", COUNT]
Threads = Annotated[int | None, "Of each process (default: its share of the cores).", CORES]


@bench_app.command("step", help="Seconds of a training step under each method, as a ratio to SGD, beside Table 2.")
@bench_app.command("epoch", help="Seconds of a training epoch under each method, from the mean of some steps.")
def steps(
    ctx: typer.Context,
    corpus: Corpus = "smart-home",
    model: Annotated[str, "clc or bert (of the paper's size, random weights)."] = "clc",
    methods: Annotated[
        str, "Of sgd, edp-sgd, dp-sgd-naive, dp-sgd and opacus, with commas between."
    ] = "sgd,edp-sgd,dp-sgd-naive,dp-sgd",
    gpus: Annotated[str, "Numbers of devices for edp-sgd."] = "1,8",
    processes: Annotated[str, "Numbers of real processes."] = "1",
    batch_size: BatchSize = 64,
    rounds: Rounds = 30,
    threads: Threads = None,
    size: Size = "paper",
    device: Annotated[str | None, "cpu or cuda (default: cuda where there is one)."] = None,
    as_json: Json = False,
) -> None:
    from edp_lab.reproduce.bench.train_step import Task, bench_steps

    counts = numbers("--gpus", gpus, "1,8"), numbers("--processes", processes, "1,8", most=CORES["max"])
    task = Task(corpus, model, tuple(methods.split(",")), *counts, batch_size, rounds, threads, size, device)
    rows = _measured(partial(bench_steps, task), as_json)
    if as_json:
        return
    column = "seconds" if ctx.info_name == "step" else "seconds_per_epoch"
    lines = [["method", "gpus", "procs", "seconds", "x SGD", "quartiles", "peak MB", "paper x"]]
    shown = f"{{{column}:.3g}}", "{ratio_to_sgd:.2f}", QUARTILES, "{peak_memory_mb:.0f}"
    for row in rows:
        paper = "" if row["paper_ratio"] is None else f"{row['paper_ratio']:.2f}"
        counted = [row["method"], str(row["gpus"]), str(row["processes"])]
        lines.append([*counted, *(cell.format_map(row) for cell in shown), paper])
    title = (
        f"{task.model} ({task.size}) on {task.corpus}, batches of {task.batch_size}, {rows[0]['device']}, "
        f"{rows[0]['threads']} thread(s) a process"
    )
    caption = "seconds: median; x SGD: median of the ratios within a round"
    if noise := next((row["noise_ratio"] for row in rows if row["noise_ratio"]), None):
        caption += f"; exact noise takes {noise:.2f} times what drawing and adding float noise takes"
    framed: dict[str, Any] = {"box": HEAVY_HEAD, "show_edge": True, "pad_edge": True, "padding": (0, 0, 0, 1)}
    Screen().table(lines, title=title, caption=caption, **framed)


@bench_app.command()
def start(rounds: Annotated[int, "Rounds; each has a turn in each.", COUNT] = 5, as_json: Json = False) -> None:
    """Seconds until a command answers and until training takes its first step, beside importing torch."""
    from edp_lab.reproduce.bench.contests import bench_start

    line = "{start:<24} {seconds:6.2f} s, of the processor {processor_seconds:6.2f} s"
    _measured(lambda tell: bench_start(rounds, progress=tell), as_json, line.format_map)


@bench_app.command()
def attacks(
    run: RunFolder,
    shadows: Annotated[int, "LiRA's shadow models; 0 leaves LiRA out.", SPARE] = 16,
    shadow_size: Annotated[str, "Their size: paper, medium or small."] = "medium",
    shadow_epochs: Annotated[int, "Their epochs.", COUNT] = 8,
    as_json: Json = False,
) -> None:
    """Seconds that each attack on a run takes, with nothing cached."""
    from edp_lab.reproduce.bench.contests import bench_attacks

    def brief(value: Any) -> str:
        if isinstance(value, list):
            return " to ".join(map(brief, value))
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    def line(row: dict[str, Any]) -> str:
        found = ", ".join(f"{name} {brief(value)}" for name, value in row["found"].items())
        return f"{row['attack']:<24} {row['seconds']:8.1f} s  {found}"

    _measured(partial(bench_attacks, run, shadows, shadow_size, shadow_epochs), as_json, line)


@bench_app.command()
def images(
    model: Annotated[str, "cnn, alexnet, vgg or mlp."] = "cnn",
    methods: Annotated[
        str, "Of adam, dp-adam, opacus and opacus-ghost, with commas between."
    ] = "adam,dp-adam,opacus,opacus-ghost",
    batch_size: Annotated[int, "Images per step.", COUNT] = 512,
    rounds: Rounds = 15,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Seconds of a step on images of MNIST's size, private and not, as a ratio to Adam."""
    from edp_lab.reproduce.bench.contests import bench_image

    ratio = "{ratio_to_adam:.2f} x Adam ({ratio_spread[0]:.2f} to {ratio_spread[1]:.2f})"
    line = "{method:<14} {seconds:8.3f} s a step  " + ratio + "  {seconds_per_epoch:6.1f} s an epoch"
    rows_of = partial(bench_image, model, batch_size, rounds, threads, tuple(methods.split(",")))
    _measured(rows_of, as_json, line.format_map)


@bench_app.command()
def scale(
    sizes: Annotated[str, "Numbers of utterances, with commas between."] = "10000,100000,1000000",
    steps: Annotated[int, "Timed steps for each size.", COUNT] = 40,
    size: Size = "paper",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """What a corpus' size costs in time and memory; an extrapolation to eight devices like this one."""
    from edp_lab.reproduce.bench.train_step import bench_scale

    trained = "{microseconds_per_utterance:.0f} us each in training, {peak_memory_mb:.0f} MB"
    line = "{utterances:>10,} utterances: generated in {generate_seconds:.1f} s, " + trained
    counts = numbers("--sizes", sizes, "10000,100000", least=1000, most=UTTERANCES["max"])
    last = _measured(partial(bench_scale, counts, steps, size, threads), as_json, line.format_map)[-1]
    for guess in () if as_json else last["extrapolation"]:
        per_epoch = f"{guess['epoch_seconds']:.0f} s an epoch of {last['utterances']:,}"
        echo(fitted(f"extrapolated, {guess['network']}: {per_epoch}"))


def _measured(
    rows_of: Callable[[Tell], Iterable[dict[str, Any]]],
    as_json: bool,
    line: Callable[[dict[str, Any]], str] | None = None,
) -> list[dict[str, Any]]:
    """The rows, which are printed: as JSON in the end, or a line of each as soon as it is there."""
    seen = []
    with telling("starting", lines=False) as tell:
        for row in rows_of(tell):
            seen.append(row)
            if line is not None and not as_json:
                echo(fitted(line(row)))
    if as_json:
        print_json([{**row, **surroundings()} for row in seen])
    return seen


def surroundings() -> dict[str, Any]:
    """What a measured result must tell of its making."""
    from datetime import UTC, datetime

    from edp_lab.reproduce.results_io import machine
    from edp_lab.training.run_folder import versions

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["edp-lab", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
    }
