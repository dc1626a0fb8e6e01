"""The two panels of ``00_start.ipynb``: one step under the sliders, and a short training run with their values."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from edp_lab.course import figures, theme
from edp_lab.course.panel import WHOLE_LABEL, Frame, Panel, choice, decades, number, side_by_side
from edp_lab.course.start import SmallModel, StepResult, caption, command, in_words, one_step, plain, trained_in_words
from edp_lab.errors import UsageError
from edp_lab.privacy import Decay
from edp_lab.training import StepDone, TrainConfig, train
from edp_lab.training.run import Event


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
        self.command = widgets.Textarea(rows=4, tooltip="the command", layout={"width": "auto"})
        pictures = theme.framed(self.layers, "3 1 28rem"), theme.framed(self.privacy, "2 1 24rem")
        super().__init__(
            "<h3>One step of eDP-SGD</h3>What am I looking at? Left, how far one batch pulls each layer of a small "
            "trained model (signal) and how far the noise pushes it; right, what the whole run costs in privacy.",
            controls,
            partial(self._compute_step, model),
            self._draw,
            [self.words, widgets.HTML("<b>Copy as command</b>"), self.command],
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


class LivePanel(Frame):
    """A short real training run, eDP-SGD with the step panel's values beside SGD; only Run starts any work.

    Attributes:
        rows: by method, the rows of the run record so far.
        records: by method, the records of the runs that were made; none for an SGD run made before.
    """

    def __init__(self, model: SmallModel, settings: StepPanel) -> None:
        self._settings, self._stop, self._thread = settings, threading.Event(), threading.Thread()
        self._baselines, self._delta = {model.config: model.epochs}, model.delta
        self.rows: dict[str, list[dict[str, Any]]] = {"sgd": [], "edp-sgd": []}
        self.records: dict[str, dict[str, Any]] = {}
        self.words, self.state = widgets.HTML(), widgets.Label()
        self.epochs = widgets.IntText(
            model.config.epochs, description="epochs", style=WHOLE_LABEL, layout={"width": "9rem"}
        )
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.run_button.on_click(lambda _: self.run())
        self.stop_button.on_click(lambda _: self.stop())
        self.bar = widgets.IntProgress(max=1, layout={"width": "12rem"})
        self.figure = theme.live(figures.training_figure(self.epochs.value))
        buttons = [self.epochs, self.run_button, self.stop_button, self.bar, self.state]
        row = widgets.HBox(buttons, layout={"align_items": "center", "flex_flow": "row wrap"})
        super().__init__(
            "<h3>Train it</h3>What am I looking at? Two real training runs on the same data, one without privacy and "
            "one with the sliders' values above; lower is better in both pictures.",
            [row.add_class("edp-wide")],
            [theme.framed(self.figure, "1 1 auto"), self.words],
        )

    def run(self, wait: bool = False) -> None:
        """Start a run in the background; `wait` returns when it has ended. Bad settings go to the error box."""
        config = None
        with self.error_box.guard():
            if self._thread.is_alive():
                raise UsageError("a run is going on: press Stop first")
            config = replace(self._settings.config, epochs=self.epochs.value)
        if config is not None:
            self._stop.clear()
            self.run_button.disabled, self.stop_button.disabled = True, False
            self._thread = threading.Thread(target=self._train, args=(config,), daemon=True)
            self._thread.start()
        if wait:
            self.wait()

    def stop(self) -> None:
        """End the run after the step it is at; its record stays usable."""
        self._stop.set()

    def wait(self) -> None:
        """Until the run has ended; interrupting the kernel stops it."""
        try:
            while self._thread.is_alive():
                self._thread.join()
        except KeyboardInterrupt:
            self.stop()
            raise

    def _train(self, config: TrainConfig) -> None:
        """The background thread: SGD, unless these settings have been trained before, then eDP-SGD."""
        baseline = plain(config, config.epochs)
        self.rows = {"sgd": list(self._baselines.get(baseline, [])), "edp-sgd": []}
        self.records, self.words.value = {}, ""
        try:
            with self.error_box.guard(), tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
                for method, run in (("sgd", baseline), ("edp-sgd", config)):
                    if len(self.rows[method]) < config.epochs and not self._stop.is_set():
                        listener = partial(self._listen, method, config)
                        self.records[method] = train(run, Path(folder) / method, listener, self._stop)
                if len(self.rows["sgd"]) == config.epochs:
                    self._baselines[baseline] = self.rows["sgd"]
                self._draw(config)
                self.words.value = trained_in_words(config, self.rows["sgd"], self.records.get("edp-sgd"))
        finally:
            self.state.value = "stopped" if self._stop.is_set() else "done"
            self.run_button.disabled, self.stop_button.disabled = False, True

    def _listen(self, method: str, config: TrainConfig, event: Event) -> None:
        """What the training loop reports."""
        if isinstance(event, StepDone):
            self.bar.max, self.bar.value = event.epochs * event.steps, event.epoch * event.steps + event.step
            self.state.value = f"{figures.RUNS[method]}: epoch {event.epoch + 1} of {event.epochs}"
        else:
            self.rows[method].append(event.row)
            self._draw(config)

    def _draw(self, config: TrainConfig) -> None:
        figures.update_training(
            self.figure, self.rows, config.epochs, caption(config, self.rows["edp-sgd"], self._delta)
        )
