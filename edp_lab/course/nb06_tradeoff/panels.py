"""The panels of ``06_train_and_trade_off.ipynb``: measured runs, the ladder, tuning, and one more run."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from edp_lab.course.kit.controls import Control, choice, decades, number
from edp_lab.course.kit.old_panel import FigurePanel, Picture
from edp_lab.course.kit.panel import command_box
from edp_lab.course.kit.run_panel import RunPanel, last_command
from edp_lab.course.nb06_tradeoff import compute as tradeoff
from edp_lab.course.nb06_tradeoff import figures as tradeoff_figures
from edp_lab.course.nb06_tradeoff import words as tradeoff_words
from edp_lab.course.nb06_tradeoff.grid import Grid, Point, configured, live_point
from edp_lab.privacy import Adjacency, Decay
from edp_lab.training import StepDone, TrainConfig, train
from edp_lab.training.trainer import Event

METHODS = {"SGD": "sgd", "eDP-SGD as printed": "printed", "sound": "sound", "DP-SGD, Poisson": "poisson"}


# ---- Measured runs -------------------------------------------------------------------------------------------------


class ExplorerPanel(FigurePanel):
    """The measured runs under sliders; `result` is a `tradeoff.Explored`.

    Attributes:
        live: runs that were made here; `add` draws one more.
    """

    def __init__(self, grid: Grid, start: TrainConfig, method: str = "sound", micro_batch: int = 8) -> None:
        self.live: list[Point] = []
        tooltips = [
            "no noise",
            "Algorithm 1 of the paper, verbatim",
            "micro-batches of m; 1 is DP-SGD",
            "m = 1, sampled",
        ]
        controls = {
            "method": choice("method", method, METHODS, tooltips=tooltips),
            "micro_batch": number("micro-batch size m", micro_batch, [1, 2, 4, 8], unit="if sound"),
            "z0": number("noise multiplier z0", start.z0, decades(-3, 0), unit="no unit"),
            "decay": choice("decay of the noise", start.decay, {str(d): str(d) for d in Decay}),
            "epochs": number("epochs", start.epochs, range(1, 9), unit="passes"),
        }
        figures = tradeoff_figures
        super().__init__(
            "<h3>Error, privacy, time</h3>What am I looking at? Runs that were measured once. The ring is the one "
            "nearest to your sliders: first what it costs in ε, then in seconds. Lower is better.",
            controls,
            lambda **values: tradeoff.explore(grid, **values, live=self.live),
            tradeoff_words.explored_in_words,
            lambda result, **values: tradeoff_words.command(result.point.config),
            [
                Picture(figures.epsilon_figure, figures.update_epsilon),
                Picture(figures.time_figure, figures.update_time),
            ],
        )

    def add(self, point: Point) -> None:
        """Draw a run that was made here as a star."""
        self.live.append(point)
        self.set()

    def _draw(self, result: Any) -> None:
        super()._draw(result)
        method = self.values["method"]
        self.controls["micro_batch"].disable(method != "sound")
        for name in ("z0", "decay"):
            self.controls[name].disable(method == "sgd")


class LivePanel(RunPanel):
    """Trains just what the explorer's sliders say, with the notebook's corpus, C, N, tau and seed.

    Attributes:
        points: of the runs that were made; the explorer shows them as stars.
        record: of the last one.
    """

    def __init__(self, base: TrainConfig, explorer: ExplorerPanel) -> None:
        self._base, self._explorer = base, explorer
        self.points: list[Point] = []
        self.record: dict[str, Any] | None = None
        self.words, self.command = widgets.HTML(), command_box(3)
        super().__init__(
            "<h3>Train one more</h3>What am I looking at? Run trains what the sliders above say, just so, in about a "
            "second per epoch, and puts a star into both pictures above.",
            [],
            [self.words, last_command(self.command)],
        )

    def prepare(self) -> TrainConfig:
        return configured(self._base, **self._explorer.values)

    def work(self, config: TrainConfig) -> None:
        self.words.value, self.command.value = "", tradeoff_words.command(config)
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            self.record = train(config, Path(folder) / "run", self._listen, self.stop_event)
        if not self.record["epochs"]:
            self.words.value = "<p>Stopped before the first epoch was over: there is nothing to draw.</p>"
            return
        self.points.append(live_point(config, self.record))
        self._explorer.add(self.points[-1])
        stopped = self.record["status"] == "interrupted"
        self.words.value = tradeoff_words.live_in_words(self.points[-1], len(self.points), stopped)

    def _listen(self, event: Event) -> None:
        """What the training loop reports."""
        if isinstance(event, StepDone):
            done, of = event.epoch * event.steps + event.step, event.epochs * event.steps
            self.progress(done, of, f"epoch {event.epoch + 1} of {event.epochs}")


# ---- Computed ------------------------------------------------------------------------------------------------------


def ladder_panel(start: TrainConfig, delta: float) -> FigurePanel:
    """What a micro-batch size costs; `result` is a `tradeoff.Ladder`."""
    largest = start.largest_micro_batch
    controls = {
        "micro_batch": number("micro-batch size m", largest, [1, 2, 4, 8, 16, 32, 64], unit="utterances"),
        "num_devices": number("devices N", start.num_devices, [1, 2, 4, 8, 16, 32], unit="devices"),
        "batch_size": number("batch size", start.batch_size, [16, 32, 64, 128, 256, 512], unit="utterances"),
        "z": number("noise multiplier z", start.z0, decades(-3, 1), unit="noise/sensit."),
        "epochs": number("epochs", start.epochs, range(1, 41), unit="passes"),
        "delta": _delta(delta),
        "adjacency": choice(
            "neighbours", str(Adjacency.ZERO_OUT), {"zero-out": "REPLACE_SPECIAL", "replace-one": "REPLACE_ONE"}
        ),
    }
    figures = tradeoff_figures
    return FigurePanel(
        "<h3>The ladder</h3>What am I looking at? The same noise multiplier with micro-batches of all sizes: first, "
        "the noise that reaches the model; then ε, and what it would be with as much noise on every rung.",
        controls,
        partial(tradeoff.ladder, clip_norm=start.clip_norm),
        tradeoff_words.ladder_in_words,
        lambda result, **values: tradeoff_words.ladder_command(result),
        [Picture(figures.noise_figure, figures.update_noise), Picture(figures.ladder_figure, figures.update_ladder)],
    )


def tuning_panel(z0: float, epochs: int, trials: int, delta: float) -> FigurePanel:
    """What trying costs; `result` is a `tradeoff.Tuning`."""
    stops = [1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000]
    controls = {
        "z0": number("noise multiplier z0", z0, decades(-1, 2), unit="no unit"),
        "epochs": number("epochs of a trial", epochs, range(1, 41), unit="passes"),
        "trials": number("trials", trials, stops, unit="runs"),
        "delta": _delta(delta),
    }
    return FigurePanel(
        "<h3>The price of tuning</h3>What am I looking at? One private run has an ε. Here is what it costs to try "
        "several settings on private data and keep the best.",
        controls,
        tradeoff.tuning,
        tradeoff_words.tuning_in_words,
        lambda result, **values: tradeoff_words.tuning_command(result),
        [Picture(tradeoff_figures.tuning_figure, tradeoff_figures.update_tuning, "1 1 30rem")],
    )


def _delta(start: float) -> Control:
    """In three digits, with a stop of its own: slider, box, read-out and command say the same number."""
    rounded = float(f"{start:.3g}")
    return number("δ", rounded, sorted({*decades(-9, -2), rounded}), unit="probability")
