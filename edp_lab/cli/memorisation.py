"""``edp-lab attack canaries``: does a model remember personal numbers that it saw in training?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from edp_lab.cli.train import Json

if TYPE_CHECKING:
    from collections.abc import Callable

    from edp_lab.attacks.memorisation import Memorisation
    from edp_lab.training import TrainConfig
    from edp_lab.training.trainer import Event

SETTINGS = ("corpus", "model", "size", "epochs", "batch_size", "seed", "clip_norm", "z0", "num_devices")


def canaries(
    corpus: Annotated[str, typer.Option(help="A name from `edp-lab data list`, or a path.")] = "smart-home",
    methods: Annotated[
        str, typer.Option(help="Of sgd, edp-sgd-as-printed, edp-sgd and dp-sgd, with commas between.")
    ] = "sgd,edp-sgd-as-printed,edp-sgd,dp-sgd",
    repetitions: Annotated[
        str, typer.Option(help="How often a canary is inserted, with commas between; 0 is the control.")
    ] = "0,1,4,16",
    each: Annotated[int, typer.Option("--canaries", help="Canaries for each repetition count.")] = 8,
    references: Annotated[
        int, typer.Option(help="Other numbers among which a canary is ranked; log2 of one more caps the exposure.")
    ] = 9_999,
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 6,
    size: Annotated[str, typer.Option(help="paper, medium or small.")] = "small",
    z0: Annotated[float, typer.Option(help="Noise multiplier, with the meaning that each method gives it.")] = 0.03,
    clip: Annotated[float, typer.Option(help="Clip norm C.")] = 1.0,
    gpus: Annotated[int, typer.Option(help="Devices N.")] = 8,
    seed: Annotated[int, typer.Option(help="Split, canaries, initial weights, order, noise.")] = 0,
    as_json: Json = False,
) -> None:
    """Hide utterances with a personal number in the training set, and ask each trained model for the number.

    Exposure in bits says how far down the true number's loss ranks among other numbers. A canary that was inserted k
    times is protected by the epsilon of k utterances together.
    """
    from edp_lab.attacks.memorisation import measure_memorisation
    from edp_lab.training import TrainConfig

    counts = _numbers(repetitions)
    config = TrainConfig(corpus, size=size, epochs=epochs, z0=z0, clip_norm=clip, num_devices=gpus, seed=seed)
    if size == "small":
        import torch

        torch.set_num_threads(1)  # small products gain nothing from a second thread
    with _training() as progress:
        rows = measure_memorisation(
            config, [method.strip() for method in methods.split(",")], counts, each, references, progress
        )
    if as_json:
        settings = {name: getattr(config, name) for name in SETTINGS}
        told = {"settings": settings, "fillings": references + 1, "rows": [asdict(row) for row in rows]}
        print(json.dumps(told, indent=2, allow_nan=False))
    else:
        _show(config, rows, references + 1)


def _numbers(text: str) -> tuple[int, ...]:
    from edp_lab.errors import UsageError

    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        example = "give whole numbers with commas between, such as 0,1,4,16"
        raise UsageError(f"--repetitions is {text!r}: {example}") from None


@contextmanager
def _training() -> Iterator[Callable[[str, Event], None]]:
    """A bar on a terminal and a line per epoch, under the name of each method."""
    from edp_lab.cli.progress import listening

    now = ""
    with listening() as listen:

        def progress(method: str, event: Event) -> None:
            nonlocal now
            if method != now:
                sys.stderr.write(f"{method}\n")
                now = method
            listen(event)

        yield progress


def _show(config: TrainConfig, rows: list[Memorisation], fillings: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    for name in ("method", "copies", "exposure", "95 %", "extracted", "95 %", "epsilon"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    before = ""
    for row in rows:
        if row.method != before and before:
            table.add_section()
        (low, high), (few, many) = row.interval, row.extracted_interval
        table.add_row(
            row.method if row.method != before else "",
            str(row.repetitions),
            f"{row.exposure:.2f}",
            f"{low:.1f}-{high:.1f}",
            f"{row.extracted}/{len(row.exposures)}",
            f"{few:.2f}-{many:.2f}",
            "-" if not row.repetitions else "none" if row.epsilon is None else f"{row.epsilon:.3g}",
        )
        before = row.method
    console = Console(highlight=False, markup=False)
    console.print(table)
    print(
        f"\n{config.corpus}, {config.size} {config.model}, {config.epochs} epochs, z0 {config.z0:g}, seed {config.seed}"
    )
    print("\n".join(_notes(rows, fillings)))


def _notes(rows: list[Memorisation], fillings: int) -> list[str]:
    expected = "about 1.44 without memorisation"
    sers = {row.method: row.test_ser for row in rows}
    lines = [
        f"exposure: mean in bits, {expected}; {rows[0].cap:.2f} at most, for rank 1 of {fillings:,}",
        "extracted: canaries with rank 1; copies 0: the control, never inserted",
        f"test SER: {', '.join(f'{method} {ser:.3f}' for method, ser in sers.items())}",
    ]
    deltas = [row.delta for row in rows if row.epsilon is not None]
    if deltas:
        lines.append(f"epsilon: of all copies together, at delta {deltas[0]:.2g}, had the seed been secret")
    for row in {row.method: row for row in rows if row.repetitions and row.epsilon is None}.values():
        claimed = (
            "" if row.epsilon_claimed is None else f"; the paper's accounting says epsilon {row.epsilon_claimed:.3g}"
        )
        lines.append(f"no guarantee for {row.method}: {row.reason}{claimed}")
    for row in rows:
        if row.extraction_limit is not None and row.extraction_limit < 0.995:
            share = f"at most {100 * row.extraction_limit:.2g} % of canaries are extracted on average"
            copies = "1 copy" if row.repetitions == 1 else f"{row.repetitions} copies"
            lines.append(f"{row.method}, {copies}: by the guarantee {share}")
    return lines
