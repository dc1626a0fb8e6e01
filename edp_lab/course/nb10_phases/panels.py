"""The panels of ``10_three_phases.ipynb``: four that follow their sliders, and one that runs the pipeline."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import ipywidgets as widgets

from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import WHOLE_LABEL, Control, choice, decades, number
from edp_lab.course.kit.old_panel import FigurePanel, Picture
from edp_lab.course.kit.panel import COPY, command_box, side_by_side
from edp_lab.course.kit.run_panel import RunPanel
from edp_lab.course.nb10_phases import compute as phases
from edp_lab.course.nb10_phases import figures as phases_figures
from edp_lab.course.nb10_phases import words as phases_words
from edp_lab.course.nb10_phases.compute import Ballot, RunPoint, Score, Sketch
from edp_lab.errors import UsageError
from edp_lab.three_phase.pate import PRIVATE
from edp_lab.three_phase.phases import (
    THESIS_ACCURACY,
    UNDERSTUDY,
    Event,
    ThreePhaseRecord,
    ThreePhaseSettings,
    run_three_phase,
)

SIGMAS = [k / 20 for k in range(41)]
INSTRUCTORS = [1, 2, 3, 5, 10, 15, 20, 30, 50, 100]
LABELS = [1, 2, 5, 10, 20, 40, 80, 120, 160, 240, 320, 400, 480, 540]


# ---- Phase I -------------------------------------------------------------------------------------------------------


def pixel_panel(sketch: Sketch, start: ThreePhaseSettings) -> FigurePanel:
    """Noise on the pixels; `result` is a `NoisedImages`."""
    controls = {"sigma": _sigma(start), "delta": _delta(start)}
    pictures = (
        Picture(phases_figures.images_figure, phases_figures.update_images),
        Picture(phases_figures.epsilon_figure, phases_figures.update_epsilon),
    )
    return FigurePanel(
        "<h3>Phase I: noise on the pixels</h3>What am I looking at? First, six private images before and after noise; "
        "then, what this noise promises about one image, and what is claimed.",
        controls,
        lambda **values: phases.noise_images(sketch, replace(start, **values)),
        phases_words.pixels_in_words,
        lambda result, **_: phases_words.command(result.settings, phases=(1,)),
        pictures,
    )


# ---- Phase II ------------------------------------------------------------------------------------------------------


def vote_panel(sketch: Sketch, start: ThreePhaseSettings) -> FigurePanel:
    """Noisy votes of linear instructors; `result` is a `Ballot`."""
    controls = {
        "instructors": _instructors(start),
        "vote": _vote(start),
        "vote_epsilon": _vote_epsilon(start),
        "sigma": _sigma(start),
        "image": number("public image", 0, range(sketch.public), unit="number"),
        "draw": number("draw of the noise", 0, range(21), unit="number"),
    }
    pictures = (
        Picture(phases_figures.ballot_figure, phases_figures.update_ballot),
        Picture(phases_figures.survival_figure, phases_figures.update_survival),
    )

    def compute(image: int, draw: int, **values: Any) -> Ballot:
        return phases.take_vote(sketch, replace(start, **values), image, draw)

    return FigurePanel(
        "<h3>Phase II: instructors vote</h3>What am I looking at? First, the votes on one public image, before and "
        "after noise; then, how often noise lets the majority have its label, and how far the instructors agree.",
        controls,
        compute,
        phases_words.votes_in_words,
        lambda result, **_: phases_words.command(result.settings, phases=(1, 2)),
        pictures,
    )


def partition_panel(start: ThreePhaseSettings) -> FigurePanel:
    """Epsilon of instructors that train with DP-Adam; `result` is a `Partition`."""
    controls = {
        "instructors": number("instructors N", start.instructors, phases.PARTS, unit="parts"),
        "batch_size": number("batch size", 250, [50, 100, 150, 200, 250, 300, 500, 1000], unit="images"),
        "epochs": number("epochs", 10, [1, 2, 5, 10, 15, 20, 30, 40, 60], unit="epochs"),
        "noise_multiplier": number("noise multiplier z", 1.1, [k / 10 for k in range(5, 51)], unit="no unit"),
    }
    return FigurePanel(
        "<h3>Phase II: what ten instructors do to ε</h3>What am I looking at? The same private training, on all of "
        "MNIST's images or on N parts of them, and the thesis' rule that N instructors are N times as private.",
        controls,
        partial(phases.split_training, delta=start.delta),
        phases_words.partition_in_words,
        lambda result, **_: phases_words.account_command(result),
        [Picture(phases_figures.partition_figure, phases_figures.update_partition, "1 1 30rem")],
    )


# ---- Phase III -----------------------------------------------------------------------------------------------------


def label_panel(sketch: Sketch, start: ThreePhaseSettings) -> FigurePanel:
    """What labels cost and teach; `result` is a `LabelBill`."""
    controls = {
        "labels": number("labels spent", start.labels or sketch.public, LABELS, unit="public images"),
        "instructors": _instructors(start),
        "vote": _vote(start),
        "vote_epsilon": _vote_epsilon(start),
        "sigma": _sigma(start),
        "delta": _delta(start),
    }
    pictures = (
        Picture(phases_figures.bill_figure, phases_figures.update_bill),
        Picture(phases_figures.learnt_figure, phases_figures.update_learnt),
    )
    return FigurePanel(
        "<h3>Phase III: the understudy learns from noisy labels</h3>What am I looking at? First, what all labels cost "
        "together, by several accountants; then, how well a model does that has learnt from nothing else.",
        controls,
        lambda **values: phases.spend_labels(sketch, replace(start, **values)),
        phases_words.labels_in_words,
        lambda result, **_: phases_words.command(result.settings),
        pictures,
    )


# ---- The pipeline, live --------------------------------------------------------------------------------------------


class StoppedError(Exception):
    """Stop was pressed."""


class PipelinePanel(RunPanel):
    """The three phases with networks and the label panel's values, beside a plain model; only Run starts any work.

    Attributes:
        record: of the last run that came to its end; None before.
        runs: what each of them bought.
        scores: of the parts so far.
    """

    def __init__(self, sketch: Sketch, start: ThreePhaseSettings, settings: FigurePanel) -> None:
        self._sketch, self._start, self._settings = sketch, start, settings
        self.record: ThreePhaseRecord | None = None
        self.runs: list[RunPoint] = []
        self.scores: list[Score] = []
        label, look = "epochs (0: enough)", {"style": WHOLE_LABEL, "layout": {"width": "13rem"}}
        self.epochs = widgets.IntText(start.epochs or 0, description=label, **look)
        methods = {"Adam": "adam", "DP-Adam": "dp-adam"}
        self.method = choice("understudy trains with", start.understudy_method, methods)
        self.words, self.command = widgets.HTML(), command_box(3)
        self.command.value = phases_words.command(self.prepare())
        self.figures = [theme.live(draw()) for draw in (phases_figures.run_figure, phases_figures.runs_figure)]
        super().__init__(
            "<h3>Run it</h3>What am I looking at? A real run of all three phases on digits, with networks and the "
            "values of the panel above: how good each part is, and what each of your runs paid for it. The <i>plain "
            "model</i> has learnt from all private images without noise, <i>one on all images</i> from the same after "
            "phase I. The instructors' votes without noise: <i>hard</i>, the label that most of them say; <i>soft</i>, "
            "the label of the largest mean probability.",
            [self.method.row, self.epochs],
            [
                side_by_side(theme.framed(self.figures[0]), theme.framed(self.figures[1])),
                self.words,
                widgets.HTML(f"{COPY} (of the last run)"),
                self.command,
            ],
        )

    def prepare(self) -> ThreePhaseSettings:
        own = {"epochs": self.epochs.value or None, "understudy_method": self.method.value}
        return replace(self._start, **self._settings.values, **own)

    def work(self, settings: ThreePhaseSettings) -> None:
        self.scores, self.words.value, self.command.value = [], "", phases_words.command(settings)
        self.bar.max, self.bar.value = settings.instructors + 3, 0
        try:
            record = run_three_phase(settings, self._sketch.images, partial(self._listen, settings))
        except StoppedError:
            self.words.value = "<p>Stopped before an understudy was ready: nothing released, nothing to pay.</p>"
        else:
            self._keep(record)

    def _listen(self, settings: ThreePhaseSettings, event: Event) -> None:
        """What the networks report, epoch by epoch."""
        if self.stopping:
            raise StoppedError
        self.state.value = f"{event.part}: epoch {event.epoch} of {event.epochs}"
        if event.epoch == event.epochs and event.accuracy is not None:
            self.bar.value += 1
            self.scores.append(Score(event.part, *[event.accuracy] * 3))
            self._draw(settings, "running")

    def _keep(self, record: ThreePhaseRecord) -> None:
        self.record = record
        self.scores = [Score(part.name, part.scores.accuracy, *part.scores.interval) for part in record.parts]
        paid, bought = record.privacy, next(score for score in self.scores if score.name == UNDERSTUDY)
        assert paid is not None
        told = f"{phases_words.told(record.settings)}, {paid.queries} labels"
        self.runs.append(RunPoint(paid.epsilon, bought, told))
        self._draw(record.settings, f"run {len(self.runs)}")
        phases_figures.update_runs(self.figures[1], self.runs, record.settings.delta)
        self.words.value = phases_words.run_in_words(record, len(self.runs))

    def _draw(self, settings: ThreePhaseSettings, what: str) -> None:
        caption = f"{what}: {phases_words.told(settings).replace(', ε', ',<br>ε')}; bars: 95 % of 60 images"
        phases_figures.update_run(self.figures[0], self.scores, THESIS_ACCURACY[settings.model], caption)


# ---- Pieces --------------------------------------------------------------------------------------------------------


def _sigma(start: ThreePhaseSettings) -> Control:
    return number("noise on a pixel σ", start.sigma, SIGMAS, unit="pixel: 0 to 1")


def _delta(start: ThreePhaseSettings) -> Control:
    return number("δ", start.delta, decades(-9, -2), unit="probability")


def _instructors(start: ThreePhaseSettings) -> Control:
    return number("instructors N", start.instructors, INSTRUCTORS, unit="models")


def _vote(start: ThreePhaseSettings) -> Control:
    if start.vote not in PRIVATE:
        raise UsageError(f"a {start.vote} vote has no noise to look at: choose {', '.join(PRIVATE)}")
    tooltips = ["most votes after Laplace noise", "the same with Gaussian noise", "Gaussian, where voters agree only"]
    return choice("vote", str(start.vote), {str(vote): str(vote) for vote in PRIVATE}, tooltips=tooltips)


def _vote_epsilon(start: ThreePhaseSettings) -> Control:
    return number("vote ε", start.vote_epsilon, decades(-2, 2), unit="per label")
