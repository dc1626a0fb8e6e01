"""The panel that trains a private model in front of the reader, by the recipe, and shows its certificate.

Before the first Run it shows one that ``data/results/course.py`` has made.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edp_lab import training
from edp_lab.course.kit.controls import number
from edp_lab.course.kit.figure import Figure, axis, figure, line
from edp_lab.course.kit.panel import RunPanel, Tile, holds, panel
from edp_lab.course.kit.text import Words, at_most, command, short
from edp_lab.course.kit.theme import NOISE, OTHER, PLAIN
from edp_lab.reproduce.results_io import RESULTS, read_kept

if TYPE_CHECKING:
    from edp_lab.training.recipe import Plan
    from edp_lab.training.trainer import Event

words = Words(__file__)


SEED = 45  # of the commands
KEPT = RESULTS / "course_private.json"


@panel("00")
@panel("06")
class Private(RunPanel):
    """Trains for an epsilon by the recipe with a secret key; ends with a certificate.

    Args:
        corpus: a name or path.
        commands: so many generated ones instead.

    Attributes:
        rows: of the run's record so far.
        certificate: of the last run that came to its end.
        outcome: its error, epsilon and delta.
    """

    def __init__(self, corpus: str = "smart-home", epsilon: float = 8.0, commands: int = 0) -> None:
        self.settings: dict[str, Any] = {"corpus": corpus, "commands": commands, "epsilon": epsilon}
        self.rows: list[dict[str, Any]] = []
        self.certificate: dict[str, Any] | None = None
        kept = next((run for run in read_kept(KEPT, "runs")["runs"] if run["settings"] == self.settings), None)
        self._kept = {"kept": kept["rows"]} if kept else {}
        super().__init__(
            "A private model in one step",
            "Run finds the noise that keeps this epsilon, trains by the recipe, and writes a certificate.",
            [draw_errors(self._kept or {"edp-sgd": []})],
            epsilon=number("ε that must hold", epsilon, (1.0, 2.0, 3.0, 5.0, 8.0)),
        )
        if kept:
            self._tell(**kept["told"])
            self.tiles.sentence = "This run was made earlier, with another secret key. Press Run for your own."

    def _tell(self, ser: float, epsilon: float, delta: float) -> None:
        self.outcome = {"ser": ser, "epsilon": epsilon, "delta": delta}
        source = "Every number of the certificate is computed from the run's ledger."
        held = holds(at_most(epsilon), f"ε at δ = {short(delta)}")
        self.tiles.show(held, Tile("errors (SER)", f"{ser:.2f}", "on the test set"), source)

    def prepare(self) -> float:
        return float(self.values["epsilon"])

    def work(self, epsilon: float) -> None:
        from edp_lab.training.recipe import plan

        self.rows.clear()
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            corpus, commands, lines = self.settings["corpus"], self.settings["commands"], []
            options = {"corpus": corpus, "epsilon": epsilon, "out": "runs/private"}
            if commands:
                from edp_lab.corpora.smart_home import generate, write_jsonl

                self.progress(0, 1, f"{commands:,} commands are made")
                corpus, options["corpus"] = f"{folder}/commands.jsonl", "commands.jsonl"
                write_jsonl(generate(commands, SEED), Path(corpus))
                make = {"utterances": commands, "seed": SEED, "out": "commands.jsonl"}
                lines.append(command("data make smart-home", make))
            self.progress(0, 1, "the noise is sought")
            made = plan(corpus, epsilon)
            self.words.value = words.planned(made)
            self.command.value = "\n".join([*lines, command("train", options)])
            self._train(made, Path(folder) / "run")

    def _train(self, made: Plan, folder: Path) -> None:
        from edp_lab.training.certificate import check_certificate

        def listen(event: Event) -> None:
            self.progress_of(event)
            if isinstance(event, training.EpochDone):
                self.rows.append(event.row)
                self.figures[0].show(draw_errors(self._kept | {"edp-sgd": self.rows}))

        record = training.train(made.config, folder, listen, self.stop_event)
        if record["status"] == "interrupted":
            self.words.value = "Stopped: no certificate, though what was released is spent."
            return
        self.certificate = check_certificate(folder)
        self._tell(record["final"]["ser"], record["final"]["epsilon"], made.delta)
        self.words.value = words.certified(self.certificate, made)


RunRows = Mapping[str, Sequence[Mapping[str, Any]]]  # by method, the rows of its run record so far
METHODS = {
    "sgd": ("without privacy", PLAIN, "solid", "circle"),
    "edp-sgd": ("with noise", NOISE, "dash", "diamond"),
    "kept": ("an earlier run, with noise", OTHER, "dot", "diamond-open"),
}


def draw_errors(rows: RunRows) -> Figure:
    """SER on the validation set by epoch, without privacy and with noise."""
    lines = []
    for method, done in rows.items():
        name, color, dash, symbol = METHODS[method]
        values = [row["ser"] for row in done]
        on = {"x": list(range(1, len(values) + 1)), "y": values, "hover": "epoch %{x}: SER %{y:.3f}"}
        lines.append(line(name, color, dash, symbol=symbol, size=9, **on))
    worst = max((row["ser"] for done in rows.values() for row in done), default=1.0)
    return figure(
        "Errors by epoch",
        *lines,
        height=330,
        top=56,
        xaxis=axis("epochs trained", tickformat="d", rangemode="tozero"),
        yaxis=axis("SER on the validation set", [0, 1.05 * max(worst, 1.0)]),
    )
