"""``edp-lab reproduce``: the paper's tables measured anew, ours beside theirs, and what there is beyond them."""

from __future__ import annotations

import html
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.options import App, Json, write_text
from edp_lab.cli.output import Tell, as_csv, html_table, print_json, screen, table, telling
from edp_lab.cli.thesis import thesis
from edp_lab.errors import UsageError

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from edp_lab.reproduce.paper.table1 import Cell, Estimate
    from edp_lab.reproduce.pareto import Point

FILES = ("table.json", "table.csv", "table.html")
WIDTH = 150
PUBLIC = "atis,snips,nlu-eval"

Models = Annotated[str, "clc, bert, or both with a comma between."]
Corpora = Annotated[
    str,
    "Of atis, snips, nlu-eval, and for the paper's internal corpora smart-home-health, "
    "smart-home-communication, smart-home-video; with commas between.",
]
Workers = Annotated[int | None, typer.Option(min=1, help="Runs at a time, a thread each. (default: all cores)")]
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
    seeds: Annotated[int | None, "Runs of each cell. (default: 3)"] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=2, help="At most so many of each run, an even number. (default: 8, of BERT 4; 6 and 4 if --quick)"
        ),
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
        runs = TableRuns(out, workers or usable_cores(), tell, fresh=not resume)
        rows = rows_of(runs, scale, models.split(","), corpora.split(","), encoder or ENCODER)
        made = _written(rows, out, tell, _page1)
    _finish([cell.as_json() for row in made for cell in row], _parts1(made), NOTE1, out, as_json)


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
        made: list[dict[str, Any]] = []
        for rows in rows_of(out, models.split(","), corpora.split(","), size, rounds, tell):
            made += rows
            write_table(out, made, page("Table 2, measured anew", [("", _lines2(made))]))
    title = "Table 2: seconds of an epoch (median), and the median ratio to SGD's in the same round"
    _finish(made, [(title, _lines2(made))], "", out, as_json)


@reproduce_app.command()
def pareto(
    corpora: Annotated[
        str, "Names from edp-lab data list, or paths, with commas between."
    ] = "atis,snips,nlu-eval,smart-home",
    encoder: Annotated[
        str | None,
        "The published BERT that reads the words, or is trained on: a hub name or a folder. "
        "(default: sentence-transformers/all-MiniLM-L6-v2)",
    ] = None,
    models: Annotated[
        str, "clc, which reads its words with a frozen encoder; bert, which goes on training one."
    ] = "clc",
    epsilons: Annotated[str | None, "Targets; eDP-SGD has the largest. (default: 8,3,1; 8 if --quick)"] = None,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="A smaller SGD, one seed, few steps: minutes, not hours.")
    ] = False,
    seeds: Annotated[int | None, "Runs of each point. (default: 3; 1 if --quick)"] = None,
    workers: Workers = None,
    resume: Resume = True,
    out: Annotated[Path, "Folder for table and figure, runs and what is finished."] = Path("runs/pareto"),
    as_json: Json = False,
) -> None:
    """Utility, privacy and time: DP-SGD's error at epsilons that hold, eDP-SGD's at the largest, beside SGD's.

    Finished runs are kept in the folder: after a kill, the same command (without --fresh) goes on from
    there and gives the same table.
    """
    with telling() as tell:
        from edp_lab.reproduce.pareto import FULL, QUICK
        from edp_lab.reproduce.pareto import pareto as points_of
        from edp_lab.reproduce.pretrained import ENCODER
        from edp_lab.reproduce.run_cache import TableRuns
        from edp_lab.training.processes import usable_cores

        targets, known = _targets(epsilons), QUICK if quick else FULL
        scales = [
            replace(scale, seeds=scale.seeds if seeds is None else seeds, epsilons=targets or scale.epsilons)
            for scale in map(known.__getitem__, _known_models(models))
        ]
        runs = TableRuns(out, workers or usable_cores(), tell, fresh=not resume)
        points = points_of(runs, scales, corpora.split(","), encoder or ENCODER)
        made = _written(points, out, tell, _pareto_page)
    _finish([point.as_json() for row in made for point in row], _pareto_parts(made), NOTE_PARETO, out, as_json)


reproduce_app.command()(thesis)


Lines = Sequence[Sequence[str]]
Parts = Sequence[tuple[str, Lines]]  # tables, the first line of each its headings, under their titles


def _written(rows: Iterable[list[Any]], out: Path, tell: Tell, page_of: Callable[[Any], str]) -> list[list[Any]]:
    """All rows; the files are written anew as soon as one is there."""
    made: list[list[Any]] = []
    try:
        for row in rows:
            made.append(row)
            write_table(out, [cell.as_json() for part in made for cell in part], page_of(made))
    except KeyboardInterrupt:
        tell(f"interrupted; finished runs are kept in {out}: the same command without --fresh goes on", True)
        raise
    return made


def _finish(rows: Sequence[dict[str, Any]], parts: Parts, note: str, out: Path, as_json: bool) -> None:
    if as_json:
        print_json(rows, indent=1, allow_nan=False)
        return
    console = screen(WIDTH)
    for title, lines in parts:
        console.print(f"\n{title}")
        console.print(table(lines, wrap=True, padding=(0, 1, 0, 0)))
    if note:
        print(f"\n{textwrap.fill(note, 120)}")
    print(f"written: {', '.join(str(out / name) for name in FILES)}")


# ---- Table 1 in text -------------------------------------------------------------------------------------------------

HEADINGS1 = (
    "method, decay", "SER %", "change %", "theirs", "AUC %", "change %", "theirs", "AUC by loss\nor change %",
    "log10 ε", "theirs", "log10 ε\nthat holds", "z0", "trials",
)  # fmt: skip


def _parts1(made: Sequence[Sequence[Cell]]) -> Parts:
    return [(_title1(cells), [HEADINGS1, *map(_line1, cells)]) for cells in made]


def _line1(cell: Cell) -> list[str]:
    measured = []
    for own, change, name in (
        (cell.ser, cell.ser_change, "ser_change"),
        (cell.auc, cell.auc_change, "auc_change"),
    ):
        printed = _tenths(cell.paper[name], "+") if cell.decay else ""
        measured += [interval(own), interval(change, signed=True), printed]
    loss = cell.loss_auc_change
    measured.append(interval(cell.loss_auc) if loss is None else interval(loss, signed=True))
    if cell.decay is None:
        return [cell.variant.replace("sgd", "SGD"), *measured, "", "", "none", "", ""]
    return [
        f"{cell.variant}, {cell.decay}",
        *measured,
        _tenths(cell.log10_claimed),
        _tenths(cell.paper["log10_claimed"]),
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
    mean = _tenths(estimate.mean, "+" if signed else "")
    return mean if estimate.high is None else f"{mean} ± {estimate.high - estimate.mean:.1f}"


def _tenths(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.1f}"


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


NOTE1 = (
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


def _page1(made: Sequence[Sequence[Cell]]) -> str:
    from edp_lab.course.nb11_claims.table1_figure import changes_figure

    figure = changes_figure([cell.as_json() for cells in made for cell in cells])
    return page("Table 1, measured anew", _parts1(made), NOTE1, figure)


# ---- Table 2 in text -------------------------------------------------------------------------------------------------


def _lines2(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    lines = [["model", "corpus", "method", "devices", "s / epoch", "x SGD", "quartiles", "paper x", "paper s, SGD"]]
    for row in rows:
        low, high = row["ratio_spread"]
        paper = "" if row["paper_ratio"] is None else f"{row['paper_ratio']:.2f}"
        seconds = f"{row['paper_sgd_seconds']:.1f}" if row["method"] == "sgd" else ""
        numbers = [f"{row['seconds_per_epoch']:.3g}", f"{row['ratio_to_sgd']:.2f}", f"{low:.2f} to {high:.2f}"]
        lines.append([row["model"].upper(), row["corpus"], row["method"], str(row["gpus"]), *numbers, paper, seconds])
    return lines


# ---- The Pareto front in text ----------------------------------------------------------------------------------------

NOTE_PARETO = (
    "SER, intent accuracy and slot F1 on test splits: mean over seeds ± Student's 95 % interval, narrow for any other "
    "sample, as the seeds' test splits overlap. Epsilon: of one training utterance at delta = n^-1.1, by privacy loss "
    "distributions with Poisson sampling (DP-SGD: one added or removed) or by Gaussian DP with disjoint batches "
    "(eDP-SGD: one zeroed out), were the seed secret. ε with trials: of all runs of the row, those that were compared "
    "on the first seed's validation split and those of all seeds, were they all published and each noised by a secret "
    "key of its own (as run, those of one seed draw the same noise); it does not cover the utterances of that split "
    "(other seeds' splits overlap with it), nor the thirty runs or so on ATIS and SNIPS, with other seeds, in which "
    "the recipe was found with test scores in sight (a test split is half of the corpus, so most of its utterances "
    "had been scored then), nor ten on a million smart-home utterances. Time: of training on one thread, steps taken "
    "in turn, reading by the encoder included, as a multiple of SGD's at the paper's size, which reads nothing. "
    "Encoder and word vectors come from other text, which is taken to be public."
)


def _targets(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(sorted({float(part) for part in (text or "").split(",") if part}, reverse=True))
    except ValueError:
        raise UsageError(f"--epsilons is {text!r}: give numbers with commas between, such as 8,3,1") from None


def _known_models(text: str) -> list[str]:
    from edp_lab.reproduce.paper.table1 import MODELS

    for name in text.split(","):
        if name not in MODELS:
            raise UsageError(f"unknown model {name!r}: choose {', '.join(MODELS)}")
    return text.split(",")


def _pareto_parts(made: Sequence[Sequence[Point]]) -> Parts:
    headings = ["method", "ε that\nholds", "ε with\ntrials", "SER %", "intent %", "slot F1 %", "x SGD's\ntime"]
    headings += ["size", "epochs x\nbatch", "z0", "lr", "intent\nweight", "trials"]
    parts = []
    for points in made:
        first = points[0]
        what = f"{first.model.upper()} on {first.corpus}, n = {first.examples:,}"
        title = f"{what}, {len(first.runs)} seed(s), {first.about['device']}"
        parts.append((title, [headings, *map(_pareto_line, points)]))
    return parts


def _pareto_line(point: Point) -> list[str]:
    from edp_lab.privacy.guarantee import upward

    told, private = point.settings, point.epsilon is not None
    return [
        point.method,
        *("none" if held is None else upward(held) for held in (point.epsilon, point.epsilon_of_tuning)),
        *map(interval, (point.ser, point.intent_accuracy, point.slot_f1)),
        f"{point.time_ratio:.2f}",
        told["size"],
        f"{told['epochs']} x {told['batch_size']}",
        f"{told['z0']:.3g}" if private else "",
        f"{told['learning_rate']:g}",
        f"{told['intent_weight']:g}",
        str(point.trials or ""),
    ]


def _pareto_page(made: Sequence[Sequence[Point]]) -> str:
    from edp_lab.course.nb06_tradeoff.panels import pareto_figure

    figure = pareto_figure([point.as_json() for points in made for point in points])
    return page("Utility, privacy and time", _pareto_parts(made), NOTE_PARETO, figure)


# ---- Files -----------------------------------------------------------------------------------------------------------

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


def page(title: str, parts: Parts, note: str = "", figure: go.Figure | None = None) -> str:
    """A page that needs no network."""
    from edp_lab.course.kit.theme import CONFIG

    drawn = ["" if figure is None else figure.to_html(CONFIG, include_plotlyjs=True, full_html=False)]
    for heading, lines in parts:
        drawn.append((f"<h2>{html.escape(heading)}</h2>" if heading else "") + html_table(lines))
    return PAGE.format(title=html.escape(title), parts="\n".join(drawn), note=html.escape(note))


def write_table(out: Path, rows: Sequence[dict[str, Any]], page: str) -> None:
    contents = (json.dumps(rows, indent=1, allow_nan=False), as_csv([*map(_flat, rows)]), page)
    for name, content in zip(FILES, contents, strict=True):
        write_text(out / name, content)


def _flat(row: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested entries as columns: {"ser": {"mean": 1}} -> {"ser.mean": 1}."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[before + name] = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return found
