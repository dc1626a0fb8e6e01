"""The panels of ``00_start.ipynb``: one step under the sliders, and a short training run with their values."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import decades, decay_of, devices, number, variant
from edp_lab.course.kit.figure import Figure, axis, line, log_axis, log_range, logs, points, positive
from edp_lab.course.kit.panel import Panel, RunPanel, Tile, epsilons, panel
from edp_lab.course.kit.text import Html, Words, count, guarantee_of, plain, settings, short, train_command
from edp_lab.course.kit.theme import BLUE, GREEN, ORANGE, SKY, VERMILLION
from edp_lab.course.nb00_start.compute import SmallModel, StepResult, one_step
from edp_lab.privacy import Decay
from edp_lab.training import StepDone, TrainConfig, train
from edp_lab.training.trainer import Event

words = Words(__file__, settings=settings)
figure = partial(fig.figure, height=430)


# ---- One step ------------------------------------------------------------------------------------------------------


@panel("00")
def step(model: SmallModel, start: TrainConfig) -> Panel:
    """One step under the sliders, which begin with the values of `start`: `result` is a `StepResult`."""

    def compute(epoch: int, **values: Any) -> StepResult:
        config = replace(start, **values)
        return one_step(model.on(config.num_devices), config, epoch)

    return Panel(
        "One step of eDP-SGD",
        "How far one batch pulls each layer of a small model, how far the noise pushes it, and what the run costs.",
        compute,
        [draw_layers, draw_privacy],
        words.step,
        lambda result, **_: train_command(result.config),
        tiles=tell_step,
        idle=lambda result: ("tau",) if result.config.decay == Decay.NONE else (),
        as_printed=variant(start.as_printed),
        clip_norm=number("clip norm C", start.clip_norm, decades(-2, 2), unit="gradient norm"),
        z0=number("noise multiplier z0", start.z0, decades(-6, 1)),
        decay=decay_of(start.decay, rare=True),
        tau=number("decay rate τ", start.tau, [k / 100 for k in range(101)], unit="per epoch", rare=True),
        epoch=number("epoch t of this step", 0, range(40), unit="first is 0", rare=True),
        num_devices=devices(start.num_devices),
        epochs=number("length T of the run", start.epochs, range(1, 41), unit="epochs", rare=True),
    )


def tell_step(result: StepResult) -> tuple[Tile, Tile, str]:
    """Both epsilons of the run, and how much noise this step has."""
    noise = f"The noise of this step is {short(result.ratio)} times as long as the signal."
    return *epsilons(result.guarantee), noise


TOTAL = Html("<b>all layers</b>")


def draw_layers(result: StepResult) -> Figure:
    """Per layer, on a log axis: the mean clipped gradient, the noise expected on it, and one draw of that."""
    rows = [*map(theme.layer_name, result.layers), TOTAL]
    signal, noise, draw = (
        positive([*norms, math.hypot(*norms)]) for norms in (result.signal, result.noise, result.draw)
    )
    gaps: dict[str, Any] = {**fig.gaps(signal, noise, rows), "hoverinfo": "skip", "showlegend": False}
    order = [theme.layer_name(name) for name in theme.reading_order(result.layers)]
    rising = {"categoryorder": "array", "categoryarray": [TOTAL, *order[::-1]], "tickfont": {"size": 12}}
    return figure(
        "Signal and noise of one step, by layer",
        "",
        line("", "#bbb", width=2, **gaps),
        points("signal", BLUE, "circle", 11, edge=2, x=signal, y=rows),
        points("noise", VERMILLION, "diamond-open", 13, edge=2, x=noise, y=rows),
        points("noise, one draw", VERMILLION, "x-thin-open", 7, edge=2, x=draw, y=rows),
        fig.hline(0.5, line={"color": "#888", "width": 1}),
        hover="%{y}: %{x:.3g}",
        xaxis=logs("L2 norm, in units of the gradient", log_range([*signal, *noise, *draw], 0.1)),
        yaxis=axis("layer", **rising, showgrid=False, ticks=""),
    )


def layers_figure(result: StepResult) -> fig.Still:
    """The first of the panel's figures, for a cell of its own."""
    return fig.Still(draw_layers(result))


def draw_privacy(result: StepResult) -> Figure:
    """Above: claimed and true epsilon by epoch. Below: what clipping leaves of each device's gradient. Log scales."""
    held, epochs, factors = result.guarantee, list(range(1, result.config.epochs + 1)), list(result.clip_factors)
    told, dash, symbol = "holds", "solid", "circle"
    if held.epsilon is None:
        told, dash, symbol = "if α were public", "dot", "circle-open"
    on: dict[str, Any] = {"x": epochs, "hover": "after %{x} epochs: %{y:.3g}", **fig.at(1)}
    names = [str(device) for device in range(1, len(factors) + 1)]
    below: dict[str, Any] = {"x": names, "y": factors, "showlegend": False, "hover": "%{x}: × %{y:.3g}", **fig.at(2)}
    claimed, true = positive(result.claimed), positive(result.true)
    name = "claimed"
    above = (
        axis("epochs trained (dotted line: this step's)", [0.5, epochs[-1] + 0.5]),
        log_axis(f"ε (at δ = {held.delta:.2g})", [*claimed, *true], margin=0.1, labels=6),
    )
    kept = axis("device"), logs("kept by the clip", [log_range(factors, 0.1)[0], 0.15])
    return figure(
        "Privacy loss ε of the run",
        "",
        line(name, ORANGE, "dash", symbol="square-open", size=10, y=claimed, **on),
        line(told, GREEN, dash, symbol=symbol, size=6, y=true, **on),
        points("device", SKY, "circle", 10, marker={"line": {"color": BLUE}}, **below),
        fig.vline(result.epoch + 1, line={"color": "#666", "dash": "dot", "width": 1}),
        **fig.plots(2, 1, axes=(above, kept), row_heights=(0.64, 0.36), vertical_spacing=0.25),
    )


def table(results: Mapping[str, StepResult]) -> str:
    """Steps of runs of one length and delta in plain text, one a line, under what their epsilons are."""
    rows: list[tuple[str, ...]] = [("", "noise per weight", "noise/signal", "ε claimed", "ε if α public")]
    for label, r in results.items():
        numbers = (r.mechanism.noise_std(r.epoch) / r.mechanism.num_devices, r.ratio, r.claimed[-1], r.true[-1])
        rows.append((label, *map(short, numbers)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{row[0]:<{widths[0]}}  " + "  ".join(map(str.rjust, row[1:], widths[1:])) for row in rows]
    first = next(iter(results.values()))
    told = f"ε of all {count(first.config.epochs, 'epoch')} at δ = {first.guarantee.delta:.2g}"
    accountants = "claimed: zCDP at face value; α public: Gaussian DP"
    return "\n".join([f"{told}; zero-out, disjoint batches", accountants, *lines])


# ---- A short run ---------------------------------------------------------------------------------------------------

METHODS = {
    "sgd": ("no privacy (Adam)", BLUE, "solid", "circle", 9),
    "edp-sgd": ("eDP-SGD", VERMILLION, "dash", "diamond", 10),
}
Rows = Mapping[str, Sequence[Mapping[str, Any]]]  # by method, the rows of its run record so far


@panel("00")
class Training(RunPanel):
    """A short real training run, eDP-SGD with the step panel's values beside SGD; only Run starts any work.

    Attributes:
        rows: by method, the rows of the run record so far.
        records: by method, the records of the runs that were made; none for an SGD run made before.
    """

    def __init__(self, model: SmallModel, sliders: Panel) -> None:
        self._sliders, self._baselines, self._delta = sliders, {model.config: model.epochs}, model.delta
        self.rows: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
        self.records: dict[str, dict[str, Any]] = {}
        self.epochs = number("epochs", model.config.epochs)
        super().__init__(
            "Train it",
            "Two real training runs on the same data, one without privacy and one with the sliders' values above; "
            "lower is better in both pictures.",
            [self.epochs],
            [draw_training(self.rows, self.epochs.value, "")],
        )

    def prepare(self) -> TrainConfig:
        values = {name: value for name, value in self._sliders.values.items() if name != "epoch"}
        return replace(self._sliders.result.config, **{**values, "epochs": self.epochs.value})

    def work(self, config: TrainConfig) -> None:
        """SGD, unless these settings have been trained before, then eDP-SGD."""
        baseline, held = plain(config, config.epochs), None
        self.rows = {"sgd": list(self._baselines.get(baseline, [])), "edp-sgd": []}
        self.records, self.words.value = {}, ""
        with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder:
            for method, run in (("sgd", baseline), ("edp-sgd", config)):
                if len(self.rows[method]) < config.epochs and not self.stopping:
                    listener = partial(self._listen, method, config)
                    self.records[method] = train(run, Path(folder) / method, listener, self.stop_event)
        if len(self.rows["sgd"]) == config.epochs:
            self._baselines[baseline] = self.rows["sgd"]
        self._show(config)
        if record := self.records.get("edp-sgd"):
            held = guarantee_of(record)
        self.words.value = words.trained(config, self.rows["sgd"], record, held)

    def _listen(self, method: str, config: TrainConfig, event: Event) -> None:
        """What the training loop reports."""
        if isinstance(event, StepDone):
            self.progress_of(event, f"{METHODS[method][0]}: ")
        else:
            self.rows[method].append(event.row)
            self._show(config)

    def _show(self, config: TrainConfig) -> None:
        caption = words.caption(config, self.rows["edp-sgd"], self._delta)
        self.figures[0].show(draw_training(self.rows, config.epochs, caption))


def draw_training(rows: Rows, epochs: int, caption: str) -> Figure:
    """Loss on the training set and SER on the validation set by epoch, for both methods."""
    lines = []
    for plot, (what, key) in enumerate({"loss": "loss", "SER": "ser"}.items(), 1):
        for method, (name, color, dash, symbol, size) in METHODS.items():
            values = [row[key] for row in rows[method]]
            hover = f"epoch %{{x}}: {what} %{{y:.3f}}"
            on = {"x": list(range(1, len(values) + 1)), "y": values, "hover": hover, **fig.at(plot)}
            group = {"legendgroup": method, "showlegend": plot == 1}
            lines.append(line(name, color, dash, symbol=symbol, size=size, **on, **group))
    worst = max((row["ser"] for done in rows.values() for row in done), default=1.0)
    trained = axis("epochs trained", [0.5, epochs + 0.5], tickformat="d")
    loss = axis("loss per utterance (nats)", rangemode="tozero")
    ser = axis("SER on the validation set", [0, 1.05 * max(worst, 1.0)])
    layout = fig.plots(1, 2, axes=((trained, loss), (trained, ser)), horizontal_spacing=0.12)
    return figure("Training, epoch by epoch", caption, *lines, height=380, top=120, **layout)
