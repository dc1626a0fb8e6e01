"""The panels of ``00_start.ipynb``: a number read out of a model, one step under the sliders, training with its noise,
and a claim put to the test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from edp_lab.attacks.bounds import Finding
from edp_lab.attacks.step_audit import StepAudit
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import choice, decades, decay_of, devices, number, variant
from edp_lab.course.kit.figure import Figure, axis, bar, line, log_axis, log_range, logs, points, positive
from edp_lab.course.kit.panel import Panel, RunPanel, Tile, claimed, epsilons, holds, panel, proven
from edp_lab.course.kit.private import Private as Private
from edp_lab.course.kit.private import draw_errors
from edp_lab.course.kit.text import Html, Words, at_least, at_most, columns, count, short, step_command, train_command
from edp_lab.course.kit.theme import CLAIMED, HOLDS, NOISE, PLAIN, PRINTED
from edp_lab.course.nb00_start.compute import TIMES, Secret, SmallModel, StepResult, challenge, one_step
from edp_lab.privacy import Decay, Guarantee, Variant, judge
from edp_lab.training import TrainConfig
from edp_lab.training.trainer import Event

words = Words(__file__)
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
    noise = f"The noise of this step is {short(result.ratio)} times as long as the signal, over all weights."
    return *epsilons(result.guarantee), noise


TOTAL = Html("<b>all layers</b>")


def draw_layers(result: StepResult) -> Figure:
    """Per layer, on a log axis: the mean clipped gradient, the noise expected on it, and one draw of that."""
    rows = [*map(theme.layer_name, result.layers), TOTAL]
    lengths = (result.signal, result.noise, result.draw)
    signal, noise, draw = (positive([*norms, math.hypot(*norms)]) for norms in lengths)
    gaps: dict[str, Any] = {**fig.gaps(signal, noise, rows), "hoverinfo": "skip", "showlegend": False}
    order = [theme.layer_name(name) for name in theme.reading_order(result.layers)]
    rising = {"categoryorder": "array", "categoryarray": [TOTAL, *order[::-1]], "tickfont": {"size": 12}}
    return figure(
        "Signal and noise of one step, by layer",
        line("", "#bbb", width=2, **gaps),
        points("signal", PLAIN, "circle", 11, edge=2, x=signal, y=rows),
        points("noise", NOISE, "diamond-open", 13, edge=2, x=noise, y=rows),
        points("one draw of it", NOISE, "x-thin-open", 7, edge=2, x=draw, y=rows),
        fig.hline(0.5, line={"color": "#888", "width": 1}),
        hover="%{y}: %{x:.3g}",
        xaxis=logs("length of the gradient, or noise", log_range([*signal, *noise, *draw], 0.1)),
        yaxis=axis("layer", **rising, showgrid=False, ticks=""),
    )


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
    above = (
        axis("epochs trained", [0.5, epochs[-1] + 0.5]),
        log_axis(f"ε (at δ = {held.delta:.2g})", [*claimed, *true], margin=0.1, labels=6),
    )
    kept = axis("GPU"), logs("clip keeps", [log_range(factors, 0.1)[0], 0.15])
    return figure(
        "Privacy loss ε of the run",
        line("claimed", CLAIMED, "dash", symbol="square-open", size=10, y=claimed, **on),
        line(told, HOLDS, dash, symbol=symbol, size=6, y=true, **on),
        points("GPU", PLAIN, "circle", 9, **below),
        fig.vline(result.epoch + 1, line={"color": "#666", "dash": "dot", "width": 1}),
        **fig.plots(2, 1, axes=(above, kept), row_heights=(0.64, 0.36), vertical_spacing=0.25),
    )


def table(results: Mapping[str, StepResult]) -> str:
    """Steps of runs of one length and delta in plain text, one a line, under what their epsilons are."""
    rows: list[tuple[str, ...]] = [("", "noise per weight", "noise/signal", "ε claimed", "ε if α public")]
    for label, r in results.items():
        numbers = (r.mechanism.noise_std(r.epoch) / r.mechanism.num_devices, r.ratio, r.claimed[-1], r.true[-1])
        rows.append((label, *map(short, numbers)))
    first = next(iter(results.values()))
    told = f"ε of all {count(first.config.epochs, 'epoch')} at δ = {first.guarantee.delta:.2g}"
    accountants = "claimed: the paper's formula (zCDP); α public: exact (Gaussian DP)"
    return f"{told}; zero-out, disjoint batches\n{accountants}\n{columns(rows)}"


# ---- A number, read out of a model -----------------------------------------------------------------------------------


@panel("00")
def read(model: SmallModel) -> Panel:
    """What the model gives away of a number that it saw so often: `result` is a `Secret`."""
    times = {str(times): times for times in TIMES}
    return Panel(
        "Read a number out of a model",
        "Ten thousand numbers in “call my doctor at …”. The smaller its loss, the likelier the model finds a number.",
        lambda times: model.secrets[times],
        [draw_secret],
        words.secret,
        lambda result, **_: "edp-lab attack canaries --methods sgd --repetitions 0,1,4,16 --canaries 2",
        tiles=tell_secret,
        times=choice("times in the data", 16, times),
    )


def tell_secret(result: Secret) -> tuple[Tile, Tile, str]:
    """The number, and its place among ten thousand."""
    of = f"of {len(result.losses):,}, the smallest loss first"
    own = Tile("true number", result.number, "only its owner knows it")
    place = Tile("its rank", f"{result.rank:,}", of)
    if result.rank == 1:
        return own, place._replace(role="printed"), "The model gives the number away: it prefers it to all others."
    if 20 * result.rank <= len(result.losses):
        told = f"An attacker needs about {result.rank:,} guesses, not {len(result.losses) // 2:,} as by chance."
        return own, place._replace(role="printed"), told
    return own, place, "This attack does not find the number."


def draw_secret(result: Secret) -> Figure:
    """A histogram of the losses of all numbers, and the true one's."""
    shares, edges = np.histogram(result.losses, 60)
    middle, width = (edges[1:] + edges[:-1]) / 2, float(edges[1] - edges[0])
    left = result.loss > (edges[0] + edges[-1]) / 2
    return figure(
        "Loss of the true number, and of others",
        bar("other numbers", PLAIN, x=middle, y=shares, width=width, hover="loss %{x:.2f}: %{y} numbers"),
        fig.vline(result.loss, line={"color": PRINTED, "width": 3}),
        fig.beside(f"the true number: {result.number}", result.loss, left=left),
        height=330,
        top=40,
        bargap=0,
        showlegend=False,
        xaxis=axis("loss (small: the model knows the number)"),
        yaxis=axis("how many numbers", [0, 1.2 * float(shares.max())]),
    )


# ---- A short run ---------------------------------------------------------------------------------------------------


@panel("00")
class Training(RunPanel):
    """Trains with the step panel's values on the data with the hidden numbers; only Run starts any work.

    Attributes:
        rows: by method, the rows of the run record so far.
        secret: what the trained model gives away of the number that it saw most often.
        guarantee: of the run, for one sentence.
        together: the same for all sentences with that number.
    """

    def __init__(self, model: SmallModel, sliders: Panel) -> None:
        self._model, self._sliders = model, sliders
        self.rows: dict[str, list[dict[str, Any]]] = {"sgd": list(model.epochs), "edp-sgd": []}
        self.secret = model.secrets[max(model.secrets)]
        self.guarantee: Guarantee | None = None
        self.together: Guarantee | None = None
        super().__init__(
            "Train with this noise, and read again",
            "The same training with the values of “One step of eDP-SGD”: what it learns, and what it gives away.",
            figures=[draw_errors(self.rows), draw_secret(self.secret)],
        )
        self._say()

    def prepare(self) -> TrainConfig:
        values = {name: value for name, value in self._sliders.values.items() if name != "epoch"}
        return replace(self._sliders.result.config, **{**values, "epochs": self._model.config.epochs})

    def work(self, config: TrainConfig) -> None:
        run = self._model.trainer(config)
        self.rows["edp-sgd"] = run.record["epochs"]

        def listen(event: Event) -> None:
            self.heed_stop("Stopped: nothing was read.")
            self.progress_of(event)

        while run.progress.epoch < config.epochs:
            run.epoch(listen)
            self.figures[0].show(draw_errors(self.rows))
        bill = partial(judge, run.mechanism, config.epochs, run.delta)
        self.guarantee, self.together = bill(), bill(utterances_per_person=self.secret.times)
        self.secret = self._model.read(run)[self.secret.times]
        self.figures[1].show(draw_secret(self.secret))
        self.command.value = train_command(config)
        self._say()

    def _say(self) -> None:
        held, before = self.guarantee, self._model.secrets[self.secret.times].rank
        last = (self.rows["edp-sgd"] or self.rows["sgd"])[-1]["ser"]
        errors = Tile("errors (SER)", f"{last:.2f}", f"{self.rows['sgd'][-1]['ser']:.2f} without privacy")
        rank = Tile("rank of the number", f"{self.secret.rank:,}", f"{before:,} without privacy")
        told = "This is the model without privacy. Press Run to train it with noise."
        if held is not None:
            told = "This attack no longer finds the number. The price is in the errors."
            if 20 * self.secret.rank <= len(self.secret.losses):
                needed = count(self.secret.rank, "guess", "guesses")
                told = f"The noise does not hide the number: an attacker needs {needed}. More noise costs more errors."
            self.words.value = words.trained(held, self.together, self.secret.times, self._model.config.epochs)
        self.tiles.show(errors, rank, told)


# ---- A claim, put to the test ----------------------------------------------------------------------------------------


@panel("00")
def refute(as_printed: bool = True, z0: float = 1.0, num_devices: int = 8) -> Panel:
    """One step, drawn without a sentence and with it: `result` is a `StepAudit`."""
    return Panel(
        "Put the claim to the test",
        "What one step releases, drawn 5,000 times without one sentence and 5,000 times with it.",
        challenge,
        [draw_refute],
        words.refute,
        step_command,
        tiles=tell_refute,
        as_printed=variant(as_printed),
        z0=number("noise multiplier z0", z0, decades(-1, 1)),
        num_devices=devices(num_devices),
    )


def tell_refute(result: StepAudit) -> tuple[Tile, Tile, str]:
    """The epsilon that is claimed, and the one that the draws prove to be too small."""
    audit = result.audit
    found, at = f"at least {at_least(audit.bounds.gaussian)}", f"ε of one step at δ = {short(audit.delta)}"
    tile = proven(found, "ε at this δ: 95 % sure, for Gaussian noise", audit.verdict is Finding.REFUTED)
    wrong = audit.false_positive_rate.errors + audit.false_negative_rate.errors
    right = f"{100 * (1 - wrong / (2 * audit.draws)):.1f} % of the guesses “with” or “without” are right"
    verdict = {
        Finding.REFUTED: "the claim is refuted",
        Finding.CONSISTENT: "these draws do not refute it",
        Finding.NO_POWER: "so few draws could not refute it",
    }[audit.verdict]
    first = claimed(short(audit.epsilon_claimed), at)
    if audit.mechanism.variant is Variant.SOUND:  # nobody claims another one
        first = holds(at_most(audit.epsilon_holds), at)
    return first, tile, f"{right}: {verdict}."


def draw_refute(result: StepAudit) -> Figure:
    """Histograms of what is released, without the sentence and with it; the guess changes in the middle."""
    reach = float(np.abs([result.absent, result.present]).max())
    edges = np.linspace(-reach, reach, 61)
    looks = (("without the sentence", PLAIN, ""), ("with it", NOISE, "/"))
    bars = fig.histograms(edges, (result.absent, result.present), looks, "the draws ")
    return figure(
        "One step, without a sentence and with it",
        *bars,
        fig.vline(0),
        fig.beside("guess: without", 0, left=True),
        fig.beside("guess: with", 0, left=False),
        height=330,
        top=56,
        **fig.OVERLAID,
        xaxis=axis("released, along the sentence's pull (C = 1)", [-reach, reach]),
        yaxis=axis("share of the draws (%)", [0, 1.2 * max(float(trace["y"].max()) for trace in bars)]),
    )
