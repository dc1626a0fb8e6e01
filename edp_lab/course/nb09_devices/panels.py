"""The panels of ``09_many_gpus.ipynb``: noise of N devices, real processes, a benchmark, what N devices would give."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets

from edp_lab.course.kit import inputs as cost
from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import WHOLE_LABEL, choice, decades, number
from edp_lab.course.kit.old_panel import FigurePanel, Picture
from edp_lab.course.kit.panel import command_box
from edp_lab.course.kit.run_panel import RunPanel, last_command
from edp_lab.course.nb09_devices import compute as devices
from edp_lab.course.nb09_devices import figures as devices_figures
from edp_lab.course.nb09_devices import words as devices_words
from edp_lab.course.nb09_devices.compute import LittleRun, Timed
from edp_lab.reproduce.bench.train_step import Task
from edp_lab.training import StepDone, TrainConfig
from edp_lab.training.trainer import Event

SMALL = 298_131  # parameters of the small CLC on smart-home
MODELS = {"small CLC": SMALL, **{f"paper's {m.upper()}": devices.shares(m).parameters for m in ("clc", "bert")}}


class StoppedError(Exception):
    """Stop was pressed."""


def noise_panel(C: float, z0: float, num_devices: int, epochs: int, delta: float, seed: int) -> FigurePanel:
    """What N devices add and send: `result` is a `devices.DeviceNoise`."""
    controls = {
        "variant": choice("variant", cost.AS_PRINTED, {name: name for name in (cost.AS_PRINTED, cost.SOUND)}),
        "num_devices": number("GPUs N", num_devices, devices.COUNTS, unit="devices"),
        "clip_norm": number("clip norm C", C, decades(-2, 2), unit="gradient norm"),
        "z0": number("noise multiplier z0", z0, decades(-3, 1), unit="no unit"),
        "epochs": number("length of the run", epochs, range(1, 41), unit="epochs"),
        "parameters": choice("model", SMALL, MODELS),
        "delta": number("δ", delta, decades(-9, -2), unit="probability"),
        "seed": number("seed", seed, range(21), unit="another draw"),
    }
    return FigurePanel(
        "<h3>N devices, one noise</h3>What am I looking at? First, the noise on the mean gradient, drawn by one or N; "
        "then, how it depends on N, and what the run costs.",
        controls,
        devices.device_noise,
        devices_words.noise_in_words,
        lambda result, **_: devices_words.noise_command(result),
        [
            Picture(devices_figures.drawn_figure, devices_figures.update_drawn),
            Picture(devices_figures.devices_figure, devices_figures.update_devices),
        ],
    )


class ProcessesPanel(RunPanel):
    """A real run with the noise panel's values, its devices on one process or on several; only Run starts any work.

    Attributes:
        runs: all that were made, oldest first.
    """

    def __init__(self, settings: FigurePanel, start: TrainConfig) -> None:
        self._settings, self._start = settings, start
        self.runs: list[LittleRun] = []
        label = {"style": WHOLE_LABEL, "layout": {"width": "9rem"}}
        self.epochs = widgets.IntText(start.epochs, description="epochs", **label)
        self.processes = widgets.IntText(start.processes, description="processes", **label)
        self.noise = choice("noise", start.noise, {"per device": "per-device", "one draw": "aggregate"})
        self.words, self.command = widgets.HTML(), command_box(4)
        self.copy = last_command(self.command)
        self.figure = theme.live(devices_figures.losses_figure())
        super().__init__(
            "<h3>Run on real processes</h3>What am I looking at? The loss of every step of a real training run, "
            "whose N devices live on one process or on several; the rest is simulated.",
            [self.processes, self.epochs, self.noise.row],
            [theme.framed(self.figure, "1 1 auto"), self.words, self.copy],
        )
        self.run_button.description = "Run on real processes"
        self.run_button.layout.width = "13rem"

    def prepare(self) -> TrainConfig:
        values = self._settings.values
        return TrainConfig(
            self._start.corpus,
            as_printed=values["variant"] == cost.AS_PRINTED,
            clip_norm=values["clip_norm"],
            z0=values["z0"],
            num_devices=values["num_devices"],
            seed=values["seed"],
            delta=values["delta"],
            epochs=self.epochs.value,
            processes=self.processes.value,
            noise=self.noise.value,
            size=self._start.size,
            lr=self._start.lr,
            precision=self._start.precision,
        )

    def work(self, config: TrainConfig) -> None:
        losses: list[float] = []
        name = f"running: {config.processes} of {config.num_devices} devices real"

        def listen(event: Event) -> None:
            if isinstance(event, StepDone):
                losses.append(event.loss)
                self.progress(len(losses), event.epochs * event.steps, f"step {len(losses)}")
                self._draw(config, (name, losses))

        self.words.value = ""
        self.progress(0, 1, "starting processes" if config.processes > 1 else "training")
        run = devices.little_run(config, listen, self.stop_event)
        finished = run.record["status"] == "finished"
        others = [other for other in self.runs if finished and devices.alike(config, other.config)]
        others = [other for other in others if other.config.processes != config.processes][-1:]
        self.runs.append(run)
        self._draw(config)
        self.words.value = devices_words.run_in_words(run, others)
        self.command.value = devices_words.run_command(config)

    def _draw(self, config: TrainConfig, *running: tuple[str, Sequence[float]]) -> None:
        told = [(run.record["devices"], run.losses) for run in self.runs]
        devices_figures.update_losses(self.figure, [*told, *running], config)


class MeasurePanel(RunPanel):
    """Some cells of Table 2, timed on this machine; only Run starts any work.

    Attributes:
        rows: of the last run.
    """

    def __init__(self, corpus: str) -> None:
        self._corpus = corpus
        self.rows: list[Timed] = []
        self.size = choice("size", "small", {"small": "small", "medium": "medium", "paper's": "paper"})
        self.rounds = widgets.IntText(5, description="rounds", style=WHOLE_LABEL, layout={"width": "9rem"})
        self.words, self.command = widgets.HTML(), command_box(2)
        self.copy = last_command(self.command)
        self.figure = theme.live(devices_figures.measured_figure([], devices.table2("clc")))
        super().__init__(
            "<h3>Time it here</h3>What am I looking at? Steps of several methods, in turn on the same batches of this "
            "machine, as a ratio to SGD; beside them what was committed.",
            [self.size.row, self.rounds],
            [theme.framed(self.figure, "1 1 auto"), self.words, self.copy],
        )

    def prepare(self) -> Task:
        methods = ("sgd", "edp-sgd", "dp-sgd", "dp-sgd-naive")
        return Task(self._corpus, methods=methods, rounds=self.rounds.value, threads=1, size=self.size.value)

    def work(self, task: Task) -> None:
        self.rows, self.words.value = [], ""
        self.command.value = devices_words.measure_command(task)
        steps = 0

        def told(name: str) -> None:
            nonlocal steps
            if self.stopping:
                raise StoppedError
            steps += 1
            self.progress(min(steps, 6 * task.rounds), 6 * task.rounds, name)

        self.progress(0, 1, "starting a process")
        try:
            self.rows = devices.measure(task, told)
        except StoppedError:
            return
        caption = f"here: CLC ({task.size}) on {task.corpus}, one thread, {task.rounds} rounds; no ε"
        devices_figures.update_measured(self.figure, self.rows, devices.table2("clc"), caption)
        self.words.value = devices_words.measured_in_words(self.rows)


def scaling_panel(num_devices: int) -> FigurePanel:
    """What N devices would give: `result` is a `devices.Scaling`."""
    controls = {
        "model": choice("model", "clc", {"CLC": "clc", "BERT": "bert"}),
        "devices": number("GPUs N", num_devices, [*devices.COUNTS, 64], unit="devices"),
        "batch": number("batch", 64, [16, 32, 64, 128, 256, 512, 1024], unit="utterances"),
        "bandwidth": number("bandwidth", 10.0, decades(-1, 3), unit="GB/s"),
        "latency": number("latency", 10.0, [0.0, *decades(0, 4)], unit="µs a message"),
        "speed": number("speed of a device", 1.0, decades(0, 3), unit="× one core"),
    }
    return FigurePanel(
        "<h3>What would N GPUs give?</h3>What am I looking at? First, the parts of one step of eDP-SGD; then, how "
        "much faster N devices are than one, and how much slower than SGD. Only one core was measured.",
        controls,
        devices.scaling,
        devices_words.scaling_in_words,
        lambda result, **_: devices_words.scaling_command(result),
        [
            Picture(devices_figures.step_figure, devices_figures.update_step),
            Picture(devices_figures.speed_figure, devices_figures.update_speed),
        ],
    )
