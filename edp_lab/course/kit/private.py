"""The panel that trains a private model in front of the reader, by the recipe, and shows its certificate.

Before that it shows a run that was made earlier:

    python -m edp_lab.course.kit.private data/results/course_private.json
"""

from __future__ import annotations

import sys
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
from edp_lab.reproduce.results_io import RESULTS, read_kept, write_kept

if TYPE_CHECKING:
    from edp_lab.training.recipe import Plan
    from edp_lab.training.trainer import Event

words = Words(__file__)


SEED = 45  # of the commands
KEPT, COMMAND = RESULTS / "course_private.json", "python -m edp_lab.course.kit.private PATH"


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
    """

    def __init__(self, corpus: str = "smart-home", epsilon: float = 8.0, commands: int = 0) -> None:
        self._corpus, self._commands = corpus, commands
        self.rows: list[dict[str, Any]] = []
        self.certificate: dict[str, Any] | None = None
        self.settings = {"corpus": corpus, "commands": commands, "epsilon": epsilon}
        kept = read_kept(KEPT, "runs")["runs"] if KEPT.exists() else []
        self.kept = next((one for one in kept if one["settings"] == self.settings), None)
        self.epsilon = number("ε that must hold", epsilon, (1.0, 2.0, 3.0, 5.0, 8.0))
        super().__init__(
            "A private model in one step",
            "Run finds the noise that keeps this epsilon, trains by the recipe, and writes a certificate.",
            [self.epsilon],
            [self._drawn()],
        )
        if self.kept is not None:
            self._tell(**self.kept["told"])
            self.tiles.sentence = "This run was made earlier, with another secret key. Press Run for your own."

    def _drawn(self) -> Figure:
        before = {} if self.kept is None else {"kept": self.kept["rows"]}
        return draw_errors(before | ({"edp-sgd": self.rows} if self.rows or not before else {}))

    def _tell(self, ser: float, epsilon: float, delta: float) -> None:
        told = "Every number of the certificate is computed from the run's ledger."
        held = holds(at_most(epsilon), f"ε at δ = {short(delta)}")
        self.tiles.show(held, Tile("errors (SER)", f"{ser:.2f}", "on the test set"), told)

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
            made = plan(corpus, epsilon)
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
                self.figures[0].show(self._drawn())

        record = training.train(made.config, folder, listen, self.stop_event)
        if record["status"] == "interrupted":
            self.words.value = "Stopped: no certificate, though what was released is spent."
            return
        self.certificate = check_certificate(folder)
        self.told = {"ser": record["final"]["ser"], "epsilon": record["final"]["epsilon"], "delta": made.delta}
        self._tell(**self.told)
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


def measure(path: Path) -> None:
    """Make the runs of notebooks 00 and 06 that the panels show before the reader's own."""
    runs = []
    for given in ({"epsilon": 3.0, "commands": 45_000}, {"epsilon": 8.0}):
        made = Private(**given)  # type: ignore[arg-type]
        made.run(wait=True)
        made.check()
        runs.append({"settings": made.settings, "told": made.told, "rows": [{"ser": row["ser"]} for row in made.rows]})
    write_kept(path, COMMAND, runs=runs)


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
