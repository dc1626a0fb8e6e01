"""The two panels of ``00_start.ipynb``: one step under the sliders, and a short training run with their values."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import WHOLE_LABEL, choice, decades, number
from edp_lab.course.kit.old_panel import OldPanel as Panel
from edp_lab.course.kit.panel import COPY, command_box, side_by_side
from edp_lab.course.kit.run_panel import RunPanel
from edp_lab.course.nb00_start import figures
from edp_lab.course.nb00_start.compute import (
    SmallModel,
    StepResult,
    caption,
    command,
    in_words,
    one_step,
    plain,
    trained_in_words,
)
from edp_lab.privacy import Decay
from edp_lab.training import StepDone, TrainConfig, train
from edp_lab.training.trainer import Event


class StepPanel(Panel):
    """One step under the sliders; `result` is a `StepResult`, `config` what the sliders say."""

    def __init__(self, model: SmallModel, start: TrainConfig) -> None:
        self._start = start
        controls = {
            "as_printed": choice(
                "variant",
                start.as_printed,
                {"as printed": True, "sound": False},
                tooltips=[
                    "Algorithm 1 of the paper, verbatim",
                    "noise in proportion to the true sensitivity",
                ],
            ),
            "clip_norm": number("clip norm C", start.clip_norm, decades(-2, 2), unit="gradient norm"),
            "z0": number("noise multiplier z0", start.z0, decades(-6, 1), unit="no unit"),
            "decay": choice("decay of the noise", start.decay, {str(d): str(d) for d in Decay}),
            "tau": number("decay rate τ", start.tau, [k / 100 for k in range(101)], unit="per epoch"),
            "epoch": number("epoch t of this step", 0, range(40), unit="first is 0"),
            "num_devices": number("GPUs N", start.num_devices, [1, 2, 4, 8, 16, 32], unit="devices"),
            "epochs": number("length T of the run", start.epochs, range(1, 41), unit="epochs"),
        }
        first = self._compute_step(model, **{name: control.value for name, control in controls.items()})
        self.layers = theme.live(figures.layers_figure(first))
        self.privacy = theme.live(figures.privacy_figure(first))
        self.words = widgets.HTML()
        self.command = command_box()
        pictures = theme.framed(self.layers, "3 1 28rem"), theme.framed(self.privacy, "2 1 24rem")
        super().__init__(
            "<h3>One step of eDP-SGD</h3>What am I looking at? First, how far one batch pulls each layer of a small "
            "trained model (signal) and how far the noise pushes it; then, what the whole run costs in privacy.",
            controls,
            partial(self._compute_step, model),
            self._draw,
            [self.words, widgets.HTML(COPY), self.command],
            [side_by_side(*pictures)],
        )

    @property
    def config(self) -> TrainConfig:
        """What the sliders say now; UsageError if that makes no sense."""
        return replace(self._start, **{name: value for name, value in self.values.items() if name != "epoch"})

    def _compute_step(self, model: SmallModel, epoch: int, **values: Any) -> StepResult:
        config = replace(self._start, **values)
        return one_step(model.on(config.num_devices), config, epoch)

    def _draw(self, result: StepResult) -> None:
        figures.update_layers(self.layers, result)
        figures.update_privacy(self.privacy, result)
        self.words.value = in_words(result)
        self.command.value = command(result.config)
        self.controls["tau"].disable(result.config.decay == Decay.NONE)


class LivePanel(RunPanel):
    """A short real training run, eDP-SGD with the step panel's values beside SGD; only Run starts any work.

    Attributes:
        rows: by method, the rows of the run record so far.
        records: by method, the records of the runs that were made; none for an SGD run made before.
    """

    def __init__(self, model: SmallModel, settings: StepPanel) -> None:
        self._settings, self._baselines, self._delta = settings, {model.config: model.epochs}, model.delta
        self.rows: dict[str, list[dict[str, Any]]] = {"sgd": [], "edp-sgd": []}
        self.records: dict[str, dict[str, Any]] = {}
        self.words = widgets.HTML()
        self.epochs = widgets.IntText(
            model.config.epochs, description="epochs", style=WHOLE_LABEL, layout={"width": "9rem"}
        )
        self.figure = theme.live(figures.training_figure(self.epochs.value))
        super().__init__(
            "<h3>Train it</h3>What am I looking at? Two real training runs on the same data, one without privacy and "
            "one with the sliders' values above; lower is better in both pictures.",
            [self.epochs],
            [theme.framed(self.figure, "1 1 auto"), self.words],
        )

    def prepare(self) -> TrainConfig:
        return replace(self._settings.config, epochs=self.epochs.value)

    def work(self, config: TrainConfig) -> None:
        """SGD, unless these settings have been trained before, then eDP-SGD."""
        baseline = plain(config, config.epochs)
        self.rows = {"sgd": list(self._baselines.get(baseline, [])), "edp-sgd": []}
        self.records, self.words.value = {}, ""
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            for method, run in (("sgd", baseline), ("edp-sgd", config)):
                if len(self.rows[method]) < config.epochs and not self.stopping:
                    listener = partial(self._listen, method, config)
                    self.records[method] = train(run, Path(folder) / method, listener, self.stop_event)
        if len(self.rows["sgd"]) == config.epochs:
            self._baselines[baseline] = self.rows["sgd"]
        self._draw(config)
        self.words.value = trained_in_words(config, self.rows["sgd"], self.records.get("edp-sgd"))

    def _listen(self, method: str, config: TrainConfig, event: Event) -> None:
        """What the training loop reports."""
        if isinstance(event, StepDone):
            text = f"{figures.RUNS[method]}: epoch {event.epoch + 1} of {event.epochs}"
            self.progress(event.epoch * event.steps + event.step, event.epochs * event.steps, text)
        else:
            self.rows[method].append(event.row)
            self._draw(config)

    def _draw(self, config: TrainConfig) -> None:
        figures.update_training(
            self.figure, self.rows, config.epochs, caption(config, self.rows["edp-sgd"], self._delta)
        )
