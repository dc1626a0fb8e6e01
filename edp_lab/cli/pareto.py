"""``edp-lab reproduce pareto``: beyond the paper, the least error at an epsilon that holds, and its price in time."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edp_lab.cli.options import Json
from edp_lab.cli.output import telling
from edp_lab.cli.reproduce_tables import FILES, PAGE, Resume, Workers, html_table, interval, print_table, write_table

if TYPE_CHECKING:
    from edp_lab.reproduce.pareto import Point

NOTE = (
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


def pareto(
    corpora: Annotated[
        str, typer.Option(help="Names from edp-lab data list, or paths, with commas between.")
    ] = "atis,snips,nlu-eval,smart-home",
    encoder: Annotated[
        str | None,
        typer.Option(
            help="The published BERT that reads the words, or is trained on: a hub name or a folder. "
            "(default: sentence-transformers/all-MiniLM-L6-v2)"
        ),
    ] = None,
    models: Annotated[
        str, typer.Option(help="clc, which reads its words with a frozen encoder; bert, which goes on training one.")
    ] = "clc",
    epsilons: Annotated[
        str | None, typer.Option(help="Targets; eDP-SGD has the largest. (default: 8,3,1; 8 if --quick)")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="A smaller SGD, one seed, few steps: minutes, not hours.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(help="Runs of each point. (default: 3; 1 if --quick)")] = None,
    workers: Workers = None,
    resume: Resume = True,
    out: Annotated[Path, typer.Option(help="Folder for table and figure, runs and what is finished.")] = Path(
        "runs/pareto"
    ),
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

        targets, all_scales = _targets(epsilons), QUICK if quick else FULL
        scales = [
            replace(scale, seeds=scale.seeds if seeds is None else seeds, epsilons=targets or scale.epsilons)
            for scale in map(all_scales.__getitem__, _models(models))
        ]
        runs = TableRuns(out, usable_cores() if workers is None else workers, tell, fresh=not resume)
        made: list[list[Point]] = []
        try:
            for points in points_of(runs, scales, corpora.split(","), encoder or ENCODER):
                made.append(points)
                write_table(out, [point.as_json() for part in made for point in part], _page(made))
        except KeyboardInterrupt:
            tell(f"interrupted; finished runs are kept in {out}: the same command without --fresh goes on", True)
            raise
    if as_json:
        print(json.dumps([point.as_json() for part in made for point in part], indent=1, allow_nan=False))
        return
    for points in made:
        print_table(_title(points), _lines(points))
    print(f"\n{textwrap.fill(NOTE, 120)}\nwritten: {', '.join(str(out / name) for name in FILES)}")


def _targets(text: str | None) -> tuple[float, ...]:
    from edp_lab.errors import UsageError

    try:
        return tuple(sorted({float(part) for part in (text or "").split(",") if part}, reverse=True))
    except ValueError:
        raise UsageError(f"--epsilons is {text!r}: give numbers with commas between, such as 8,3,1") from None


def _models(text: str) -> list[str]:
    from edp_lab.errors import UsageError
    from edp_lab.reproduce.paper.table1 import MODELS

    for name in text.split(","):
        if name not in MODELS:
            raise UsageError(f"unknown model {name!r}: choose {', '.join(MODELS)}")
    return text.split(",")


def _title(points: Sequence[Point]) -> str:
    first = points[0]
    what = f"{first.model.upper()} on {first.corpus}"
    return f"{what}, n = {first.examples:,}, {len(first.runs)} seed(s), {first.about['device']}"


def _lines(points: Sequence[Point]) -> list[list[str]]:
    headings = ["method", "ε that\nholds", "ε with\ntrials", "SER %", "intent %", "slot F1 %", "x SGD's\ntime"]
    return [[*headings, "size", "epochs x\nbatch", "z0", "lr", "intent\nweight", "trials"], *map(_line, points)]


def _line(point: Point) -> list[str]:
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


def _page(made: Sequence[Sequence[Point]]) -> str:
    from edp_lab.course.kit.theme import CONFIG
    from edp_lab.course.nb06_tradeoff.pareto_figure import pareto_figure

    figure = pareto_figure([point.as_json() for points in made for point in points])
    parts = [figure.to_html(CONFIG, include_plotlyjs=True, full_html=False)]
    for points in made:
        parts.append(f"<h2>{html.escape(_title(points))}</h2>{html_table(_lines(points))}")
    return PAGE.format(title="Utility, privacy and time", parts="\n".join(parts), note=html.escape(NOTE))
