"""``edp-lab attack extraction`` and ``inversion``: what can be had from a model's answers, by number of queries."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edp_lab.cli.train import Json

if TYPE_CHECKING:
    from edp_lab.attacks.extraction import ExtractionRow, InversionRow
    from edp_lab.three_phase.phases import ThreePhaseSettings

WIDTH = 100

ALL = "plain,instructor,understudy,dp-adam,strangers"
OF_BOTH = (
    "By guessing: the same attack without an answer of the victim. Epsilon: of one private training example, had the "
    "seed been secret; none: no guarantee. Strangers: a model that learnt other people's images."
)
NOTES = {
    "extraction": "Agreement: share of test images on which copy and victim give the same class. Own labels: that of a "
    f"copy by someone who labels the same images himself. Right: of the copy's answers. {OF_BOTH}",
    "inversion": "Like class, like others: mean correlation with the private images' average of the class, and of the "
    f"others. Judged: share that another model, which saw no private image, takes for the class. {OF_BOTH}",
}

Data = Annotated[str, typer.Option(help="digits (embedded) or mnist (takes many minutes).")]
LabelsOnly = Annotated[bool, typer.Option("--labels-only", help="The API tells the class, and no probabilities.")]
Names = Annotated[
    str, typer.Option(help="Some of plain, instructor, understudy, dp-adam and strangers, with commas between.")
]
Instructors = Annotated[int, typer.Option(help="On disjoint parts of the private images; they teach the understudy.")]
Sigma = Annotated[float, typer.Option(help="Noise on the pixels of instructors and understudy; the thesis has 0.6.")]
VoteEpsilon = Annotated[float, typer.Option(help="Of one label of the understudy; the thesis has 0.2.")]
TrainEpsilon = Annotated[float, typer.Option(help="Of the network trained with DP-Adam.")]
Epochs = Annotated[int | None, typer.Option(help="Of every victim. (default: as its examples need)")]
Seed = Annotated[int, typer.Option(help="Published, so that the attack can be repeated.")]


@dataclass(frozen=True)
class _Options:
    """Of both attacks; only an extraction has `inputs`."""

    data: str
    queries: str
    labels_only: bool
    victims: str
    instructors: int
    sigma: float
    vote_epsilon: float
    train_epsilon: float
    epochs: int | None
    seed: int
    inputs: str | None = None


def extraction(
    data: Data = "digits",
    queries: Annotated[str, typer.Option(help="Numbers of images to query with, with commas between.")] = "25,100,400",
    inputs: Annotated[
        str, typer.Option(help="public images of other people, or noise of someone with none.")
    ] = "public",
    labels_only: LabelsOnly = False,
    victims: Names = ALL,
    instructors: Instructors = 10,
    sigma: Sigma = 0.0,
    vote_epsilon: VoteEpsilon = 1.0,
    train_epsilon: TrainEpsilon = 7.0,
    epochs: Epochs = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Copy a model by its answers (Tramer et al. 2016), by number of queries."""
    options = _Options(
        data, queries, labels_only, victims, instructors, sigma, vote_epsilon, train_epsilon, epochs, seed, inputs
    )
    _finish("extraction", options, _attack(options), _extraction_lines, as_json)


def inversion(
    data: Data = "digits",
    queries: Annotated[str, typer.Option(help="Of each image, with commas between.")] = "25,100,400,1000",
    labels_only: LabelsOnly = False,
    victims: Names = ALL,
    instructors: Instructors = 10,
    sigma: Sigma = 0.0,
    vote_epsilon: VoteEpsilon = 1.0,
    train_epsilon: TrainEpsilon = 7.0,
    epochs: Epochs = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Draw what a model takes for each class (Fredrikson et al. 2015), by number of queries and by the white box."""
    options = _Options(
        data, queries, labels_only, victims, instructors, sigma, vote_epsilon, train_epsilon, epochs, seed
    )
    _finish("inversion", options, _attack(options), _inversion_lines, as_json)


def _attack(options: _Options) -> Any:
    """Train the victims, once all that can be wrong has been checked, and attack them."""
    from edp_lab.attacks.extraction import (
        check_inputs,
        check_queries,
        extract,
        invert,
        share_out,
        train_victims,
    )
    from edp_lab.corpora.images import load_images

    names = [name.strip() for name in options.victims.split(",")]
    counts = check_queries(_numbers(options.queries), 2 if options.inputs is None else 1)
    settings = _settings(options)
    shares = share_out(load_images(options.data, options.seed))
    if options.inputs is not None:
        check_inputs(options.inputs, counts, shares)
    with _telling() as told:
        victims = train_victims(shares, names, settings, told)
        if options.inputs is None:
            return invert(victims, shares, counts, options.labels_only, options.seed, told)
        return extract(victims, shares, counts, options.labels_only, options.inputs, options.seed, told)


def _settings(options: _Options) -> ThreePhaseSettings:
    from edp_lab.three_phase.phases import ThreePhaseSettings

    return ThreePhaseSettings(
        phases=(1, 2, 3) if options.sigma else (2, 3),
        instructors=options.instructors,
        sigma=options.sigma,
        vote_epsilon=options.vote_epsilon,
        train_epsilon=options.train_epsilon,
        epochs=options.epochs,
        seed=options.seed,
    )


def _numbers(text: str) -> list[int]:
    from edp_lab.errors import UsageError

    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UsageError(f"--queries is {text!r}: give whole numbers with commas between, such as 25,100") from None


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """What is being done: in one changing line on a terminal, else a line each on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: print(what, file=sys.stderr, flush=True)
        return
    with console.status("loading") as status:
        yield status.update


def _finish(attack: str, options: _Options, rows: Any, lines: Callable[[Any], list[list[str]]], as_json: bool) -> None:
    from edp_lab.reproduce.thesis.claims_networks import said

    conclusion = said(attack, rows)
    if as_json:
        settings = {name: value for name, value in asdict(options).items() if value is not None}
        found = {"attack": attack, "settings": settings, "rows": [asdict(row) for row in rows], "said": conclusion}
        print(json.dumps(found, indent=2, allow_nan=False))
        return
    _print(lines(rows))
    print("\n".join([*textwrap.wrap(NOTES[attack], WIDTH), "", *textwrap.wrap(conclusion, WIDTH)]))


def _extraction_lines(rows: Sequence[ExtractionRow]) -> list[list[str]]:
    heading = [
        "victim",
        "epsilon",
        "accuracy",
        "queries",
        "agreement %",
        "(95 %)",
        "by guessing",
        "own labels",
        "right",
    ]
    return [heading] + [
        [
            *_victim(row),
            f"{row.queries:,}",
            f"{100 * row.agreement:.1f}",
            _range(row.agreement_interval),
            f"{100 * row.guess_agreement:.1f}",
            "-" if row.own_labels_agreement is None else f"{100 * row.own_labels_agreement:.1f}",
            f"{100 * row.accuracy:.1f}",
        ]
        for row in rows
    ]


def _inversion_lines(rows: Sequence[InversionRow]) -> list[list[str]]:
    heading = ["victim", "epsilon", "accuracy", "queries", "like class", "like others", "judged %", "(95 %)"]
    return [[*heading, "by guessing"]] + [
        [
            *_victim(row),
            "white box" if row.queries is None else f"{row.queries:,}",
            f"{row.correlation:.2f}",
            f"{row.others:.2f}",
            f"{100 * row.judged:.0f}",
            _range(row.judged_interval),
            f"{100 * row.guess_judged:.0f}",
        ]
        for row in rows
    ]


def _victim(row: ExtractionRow | InversionRow) -> list[str]:
    epsilon = "none" if row.epsilon is None else f"{row.epsilon:.3g}"
    return [row.victim, epsilon, f"{100 * row.victim_accuracy:.1f}"]


def _range(interval: tuple[float, float]) -> str:
    low, high = (100 * end for end in interval)
    return f"{low:.0f}-{high:.0f}"


def _print(lines: list[list[str]]) -> None:
    """A victim's name, epsilon and accuracy stand in its first row only."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    heading, *rows = lines
    for name in heading:
        table.add_column(name, justify="left" if name == "victim" else "right", no_wrap=True)
    before = ""
    for row in rows:
        if row[0] == before:
            row[:3] = ["", "", ""]
        else:
            if before:
                table.add_section()
            before = row[0]
        table.add_row(*row)
    Console(highlight=False, markup=False, width=WIDTH).print(table)
    print()
