"""``edp-lab verify`` and ``edp-lab bench``: is the accounting right, and how fast is it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.course_options import DEFAULT_NOTEBOOKS, NotebooksDir, Only, names_in
from edp_lab.cli.train import Json

if TYPE_CHECKING:
    from edp_lab.reproduce.bench.train_step import Task

LONG, LONG_KEYS, LONG_AUDITS = 100_000, 3_000_000, 2_000  # of verify --long
KEYS, AUDITS = 30_000, 40
bench_app = typer.Typer(no_args_is_help=True, help="Time the library beside its peers.")


def verify(
    long: Annotated[
        bool,
        typer.Option(
            "--long", help=f"{LONG:,} settings, {LONG_KEYS:,} keys, {LONG_AUDITS:,} audits; a quarter of an hour."
        ),
    ] = False,
    settings: Annotated[int, typer.Option(help="Random settings to check (if not --long).")] = 200,
    seed: Annotated[int, typer.Option(help="Of the settings.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the result to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """Check the accountants, the keys of the noise and the audit. Exit status 1 if something is wrong.

    No epsilon may be smaller than dp_accounting's lower bound, no two keys may give the same noise, and audits of a
    true claim may not refute it more often than they say.
    """
    from rich.console import Console
    from rich.progress import Progress

    from edp_lab.errors import UsageError
    from edp_lab.reproduce.verify import verify as run

    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise UsageError(f"{out} cannot be written: give --out a file in a folder that exists")
    if seed < 0:
        raise UsageError(f"seed is {seed}: it must be 0 or more")
    if settings < 1:
        raise UsageError(f"the number of settings is {settings}: it must be at least 1")
    total = LONG if long else settings
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("settings checked", total=total)
        keys, audits = (LONG_KEYS, LONG_AUDITS) if long else (KEYS, AUDITS)
        verdict = run(total, keys, audits, seed, lambda done: bar.update(task, completed=done))
    result = {**asdict(verdict), **_surroundings()}
    if out is not None:
        out.write_text(json.dumps(result, indent=2) + "\n")
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"{verdict.settings} settings, {verdict.too_small} of them with epsilon too small; {verdict.seconds:.0f} s"
        )
        closed = f"{verdict.closed_form_error:.1e} from pessimistic privacy loss distributions, relative"
        print(f"closed form: at most {closed}")
        compared = f"dp_accounting's at whole orders, relative; {verdict.renyi_compared} settings compared"
        print(f"RDP: at most {verdict.renyi_error:.1e} from {compared}")
        print(f"noise: {verdict.keys} streams, {verdict.repeated_first_draws} of them with a first draw seen before")
        print(f"audit: {verdict.refuted} of {verdict.audits} audits refute a claim that is true; 5 % may")
        print("passed" if verdict.passed else "FAILED: see above")
    if not verdict.passed:
        raise typer.Exit(1)


@bench_app.command()
def accounting(
    repeats: Annotated[int, typer.Option(help="Rounds; those that take over a second run twice.")] = 7,
    as_json: Json = False,
) -> None:
    """The accountants beside dp_accounting and prv_accountant, in the same run."""
    from edp_lab.errors import UsageError
    from edp_lab.reproduce.bench.accounting import bench_accounting

    if repeats < 1:
        raise UsageError(f"the number of repeats is {repeats}: it must be at least 1")
    result = bench_accounting(
        repeats, progress=lambda name: print(f"... {name}", file=sys.stderr) if not as_json else None
    )
    if as_json:
        print(json.dumps({**result, **_surroundings()}, indent=2))
        return
    for task in ("closed_form", "sampled"):
        print(f"\n{task}")
        for name, row in result[task].items():
            if row["seconds"] is None:
                print(f"  {name:<20} {row['absent']}")
            else:
                print(
                    f"  {name:<20} {row['seconds']:>10.5f} s  {row['times_ours']:>9.1f} x  epsilon {row['epsilon']:.6g}"
                )


Corpus = Annotated[str, typer.Option(help="A name from `edp-lab data list`, or a path.")]
Model = Annotated[str, typer.Option(help="clc or bert (of the paper's size, random weights).")]
Methods = Annotated[str, typer.Option(help="Of sgd, edp-sgd, dp-sgd-naive, dp-sgd and opacus, with commas between.")]
Gpus = Annotated[str, typer.Option(help="Numbers of devices for edp-sgd.")]
Processes = Annotated[str, typer.Option(help="Numbers of real processes.")]
BatchSize = Annotated[int, typer.Option(help="Utterances per step, over all devices.")]
Rounds = Annotated[int, typer.Option(help="Timed steps of each method, one after another in each round.")]
Threads = Annotated[int | None, typer.Option(help="Of each process (default: its share of the cores).")]
Size = Annotated[str, typer.Option(help="paper, medium or small.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda (default: cuda where there is one).")]


@bench_app.command("step", help="Seconds of a training step under each method, as a ratio to SGD, beside Table 2.")
@bench_app.command("epoch", help="Seconds of a training epoch under each method, from the mean of some steps.")
def steps(
    ctx: typer.Context,
    corpus: Corpus = "smart-home",
    model: Model = "clc",
    methods: Methods = "sgd,edp-sgd,dp-sgd-naive,dp-sgd",
    gpus: Gpus = "1,8",
    processes: Processes = "1",
    batch_size: BatchSize = 64,
    rounds: Rounds = 30,
    threads: Threads = None,
    size: Size = "paper",
    device: Device = None,
    as_json: Json = False,
) -> None:
    task = _task(corpus, model, methods, gpus, processes, batch_size, rounds, threads, size, device)
    _time_steps(task, "seconds" if ctx.info_name == "step" else "seconds_per_epoch", as_json)


@bench_app.command()
def attacks(
    run: Annotated[Path, typer.Option("--run", help="Folder of a run: the --out of edp-lab train.")],
    shadows: Annotated[int, typer.Option(help="LiRA's shadow models; 0 leaves LiRA out.")] = 16,
    shadow_size: Annotated[str, typer.Option(help="Their size: paper, medium or small.")] = "medium",
    shadow_epochs: Annotated[int, typer.Option(help="Their epochs.")] = 8,
    as_json: Json = False,
) -> None:
    """Seconds that each attack on a run takes, with nothing cached."""
    from rich.console import Console

    from edp_lab.reproduce.bench.attack_times import bench_attacks

    console, rows = Console(stderr=True), []
    with console.status("loading") as status:
        for row in bench_attacks(run, shadows, shadow_size, shadow_epochs, status.update):
            rows.append(row)
            if not as_json:
                found = ", ".join(f"{k} {_brief(v)}" for k, v in row["found"].items())
                print(f"{row['attack']:<24} {row['seconds']:8.1f} s  {found}", flush=True)
    if as_json:
        print(json.dumps([{**row, **_surroundings()} for row in rows], indent=2))


@bench_app.command()
def images(
    model: Annotated[str, typer.Option(help="cnn, alexnet, vgg or mlp.")] = "cnn",
    methods: Annotated[
        str, typer.Option(help="Of adam, dp-adam, opacus and opacus-ghost, with commas between.")
    ] = "adam,dp-adam,opacus,opacus-ghost",
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = 512,
    rounds: Rounds = 15,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Seconds of a step on images of MNIST's size, private and not, as a ratio to Adam."""
    from rich.console import Console

    from edp_lab.reproduce.bench.image_step import bench_image

    with Console(stderr=True).status("starting") as status:
        rows = bench_image(model, batch_size, rounds, threads, tuple(methods.split(",")), status.update)
    if as_json:
        print(json.dumps([{**row, **_surroundings()} for row in rows], indent=2))
        return
    for row in rows:
        low, high = row["ratio_spread"]
        spread = f"{row['ratio_to_adam']:.2f} x Adam ({low:.2f} to {high:.2f})"
        print(
            f"{row['method']:<14} {row['seconds']:8.3f} s a step  {spread}  {row['seconds_per_epoch']:6.1f} s an epoch"
        )


@bench_app.command()
def panels(
    only: Only = None,
    moves: Annotated[int, typer.Option(help="Slider moves of each panel in its kernel.")] = 200,
    browser_moves: Annotated[int, typer.Option(help="Key presses on sliders in a real browser; 0: no browser.")] = 100,
    notebooks_dir: NotebooksDir = DEFAULT_NOTEBOOKS,
    as_json: Json = False,
) -> None:
    """Milliseconds from slider to new figure for every cheap panel of the course, 95th percentiles.

    In the kernel, and in JupyterLab and Chromium until the figure is painted. With --json: a list of
    {notebook, panel, kernel_ms_p95, browser_ms_p95, moves, browser_moves, date, command, machine, versions}.
    """
    from rich.console import Console

    from edp_lab.course.publish.panel_bench import bench_panels
    from edp_lab.course.publish.runner import course_notebooks
    from edp_lab.errors import UsageError

    if moves < 1 or browser_moves < 0:
        raise UsageError("the number of moves must be at least 1, in the browser at least 0")
    console, rows = Console(stderr=True), []
    with console.status("starting") as status:
        for row in bench_panels(course_notebooks(notebooks_dir, names_in(only)), moves, browser_moves, status.update):
            rows.append(asdict(row))
            if not as_json:
                painted = "" if row.browser_ms_p95 is None else f"{row.browser_ms_p95:6.0f} ms"
                print(f"{row.notebook:<26} {row.kernel_ms_p95:6.1f} ms {painted:>9}  {row.panel}", flush=True)
    if as_json:
        print(json.dumps([{**row, **_surroundings()} for row in rows], indent=2))


@bench_app.command()
def scale(
    sizes: Annotated[str, typer.Option(help="Numbers of utterances, with commas between.")] = "10000,100000,1000000",
    steps: Annotated[int, typer.Option(help="Timed steps for each size.")] = 40,
    size: Size = "paper",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """What a corpus' size costs in time and memory; an extrapolation to eight devices like this one."""
    from rich.console import Console

    from edp_lab.reproduce.bench.scale import bench_scale

    rows = []
    with Console(stderr=True).status("starting") as status:
        for row in bench_scale(_numbers("--sizes", sizes), steps, size, threads, status.update):
            rows.append(row)
            if not as_json:
                print(
                    f"{row['utterances']:>10,} utterances: generated in {row['generate_seconds']:.1f} s, "
                    f"{row['microseconds_per_utterance']:.0f} us each in training, {row['peak_memory_mb']:.0f} MB",
                    flush=True,
                )
    if as_json:
        print(json.dumps([{**row, **_surroundings()} for row in rows], indent=2))
        return
    for guess in rows[-1]["extrapolation"]:
        print(
            f"extrapolated, {guess['network']}: {guess['epoch_seconds']:.0f} s an epoch of {rows[-1]['utterances']:,}"
        )


def _brief(value: Any) -> str:
    if isinstance(value, list):
        return "to".join(f" {_brief(one)} " for one in value).strip()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _task(corpus: str, model: str, methods: str, gpus: str, processes: str, *rest: Any) -> Task:
    from edp_lab.reproduce.bench.train_step import Task

    counts = _numbers("--gpus", gpus), _numbers("--processes", processes)
    return Task(corpus, model, tuple(methods.split(",")), *counts, *rest)


def _time_steps(task: Task, column: str, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from edp_lab.reproduce.bench.train_step import bench_steps

    console = Console(stderr=True)
    with console.status("starting") as status:
        rows = bench_steps(task, lambda name: status.update(name))
    if as_json:
        print(json.dumps([{**row, **_surroundings()} for row in rows], indent=2))
        return
    table = Table(
        title=f"{task.model} ({task.size}) on {task.corpus}, batches of {task.batch_size}, {rows[0]['device']}, "
        f"{rows[0]['threads']} thread(s) a process",
        caption="seconds: median; x SGD: median of the ratios within a round",
        padding=(0, 0, 0, 1),
    )
    for name in ("method", "gpus", "procs", "seconds", "x SGD", "quartiles", "peak MB", "paper x"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in rows:
        low, high = row["ratio_spread"]
        paper = "" if row["paper_ratio"] is None else f"{row['paper_ratio']:.2f}"
        spread, memory = f"{low:.2f}-{high:.2f}", f"{row['peak_memory_mb']:.0f}"
        counts = str(row["gpus"]), str(row["processes"])
        table.add_row(row["method"], *counts, f"{row[column]:.3g}", f"{row['ratio_to_sgd']:.2f}", spread, memory, paper)
    Console().print(table)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    from edp_lab.errors import UsageError

    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f"{option} is {text!r}: give whole numbers with commas between, such as 1,8") from None


def _surroundings() -> dict[str, Any]:
    from datetime import UTC, datetime

    from edp_lab.reproduce.machine import machine
    from edp_lab.training.run_folder import versions

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["edp-lab", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
    }
