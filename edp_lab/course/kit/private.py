"""The panel that trains a private model in front of the reader, by the recipe, and shows its certificate."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edp_lab import training
from edp_lab.course.kit.controls import number
from edp_lab.course.kit.figure import Figure, figure, line
from edp_lab.course.kit.panel import RunPanel, Tile, holds, panel
from edp_lab.course.kit.text import Words, at_most, command, short
from edp_lab.course.kit.theme import NOISE

if TYPE_CHECKING:
    from edp_lab.training.recipe import Plan
    from edp_lab.training.trainer import Event

words = Words(__file__)


SEED = 45  # of the commands


@panel("00")
@panel("06")
class Private(RunPanel):
    """Trains for an epsilon by the recipe with a secret key; ends with a certificate.

    Args:
        corpus: a name or path.
        commands: so many generated ones instead.
        given: fields of `TrainConfig` that stand in for lines of the recipe.

    Attributes:
        rows: of the run's record so far.
        certificate: of the last run that came to its end.
    """

    def __init__(self, corpus: str = "smart-home", epsilon: float = 8.0, commands: int = 0, **given: Any) -> None:
        self._corpus, self._commands, self._given = corpus, commands, given
        self.rows: list[dict[str, Any]] = []
        self.certificate: dict[str, Any] | None = None
        self.epsilon = number("ε that must hold", epsilon, (1.0, 2.0, 3.0, 5.0, 8.0))
        super().__init__(
            "A private model in one step",
            "Run finds the noise that keeps this epsilon, trains by the recipe, and writes a certificate.",
            [self.epsilon],
            [draw_private(self.rows)],
        )

    def prepare(self) -> float:
        return float(self.epsilon.value)

    def work(self, epsilon: float) -> None:
        from edp_lab.training.recipe import plan

        self.rows.clear()
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            corpus, typed = self._corpus, ""
            if self._commands:
                from edp_lab.corpora.smart_home import generate, write_jsonl

                self.progress(0, 1, f"{self._commands:,} commands are made")
                corpus = str(Path(folder) / "commands.jsonl")
                write_jsonl(generate(self._commands, SEED), Path(corpus))
                typed = f"edp-lab data make smart-home --utterances {self._commands} --seed {SEED} --out commands.jsonl"
            self.progress(0, 1, "the noise is sought")
            made = plan(corpus, epsilon, **self._given)
            self.words.value = words.planned(made)
            options = {"corpus": Path(corpus).name if typed else corpus, "epsilon": epsilon, "out": "runs/private"}
            self.command.value = "\n".join(filter(None, (typed, command("train", options))))
            self._train(made, Path(folder) / "run")

    def _train(self, made: Plan, folder: Path) -> None:
        from edp_lab.training.certificate import check_certificate

        def listen(event: Event) -> None:
            self.progress_of(event)
            if isinstance(event, training.EpochDone):
                self.rows.append(event.row)
                self.figures[0].show(draw_private(self.rows))

        record = training.train(made.config, folder, listen, self.stop_event)
        if record["status"] == "interrupted":
            self.words.value = "Stopped: no certificate, though what was released is spent."
            return
        self.certificate = check_certificate(folder)
        ser = Tile("errors (SER)", f"{record['final']['ser']:.2f}", "on the test set")
        held = holds(at_most(record["final"]["epsilon"]), f"ε at δ = {short(made.delta)}")
        self.tiles.show(held, ser, "Every number of the certificate is computed from the run's ledger.")
        self.words.value = words.certified(self.certificate, made)


def draw_private(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """SER on the validation set by epoch."""
    values = [row["ser"] for row in rows]
    on = {"x": list(range(1, len(values) + 1)), "y": values, "hover": "epoch %{x}: SER %{y:.3f}"}
    return figure(
        "Errors by epoch",
        line("with this epsilon", NOISE, "solid", symbol="diamond", size=7, **on),
        height=280,
        xaxis={"title": "epochs trained", "tickformat": "d", "rangemode": "tozero"},
        yaxis={"title": "semantic error rate (SER)", "range": [0, 1]},
    )
