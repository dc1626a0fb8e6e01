"""The panels of ``10_three_phases.ipynb``: two that follow their sliders, and one that also runs the pipeline."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import text
from edp_lab.course.kit.controls import choice, decades, delta_of, number
from edp_lab.course.kit.figure import Figure, axis, bar, line, log_axis, logs, points
from edp_lab.course.kit.inputs import require
from edp_lab.course.kit.panel import Panel, RunPanel, Tile, claimed, holds, panel
from edp_lab.course.kit.text import at_least, at_most, count, digits, percent, short
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN
from edp_lab.course.nb10_phases import compute
from edp_lab.course.nb10_phases.compute import Ballot, LabelBill, NoisedImages, Sketch
from edp_lab.three_phase.perturbation import CLAIMED_EPSILON, CLAIMED_SIGMA
from edp_lab.three_phase.settings import NOT_PRIVATE, THESIS_ACCURACY, UNDERSTUDY, ThreePhaseSettings
from edp_lab.three_phase.settings import PLAIN as PLAIN_MODEL
from edp_lab.three_phase.votes import PRIVATE, VoteAccount

if TYPE_CHECKING:
    from edp_lab.three_phase.phases import Event, ThreePhaseRecord


words = text.Words(
    __file__,
    draws=compute.DRAWS,
    not_private=NOT_PRIVATE,
    spelt=lambda name: name.replace("Renyi", "Rényi"),
    thesis_accuracy=THESIS_ACCURACY,
)
figure = partial(fig.figure, height=380)
HERE: dict[str, Any] = {"line": {"color": "#666", "dash": "dot", "width": 1}}  # where the sliders stand
EDGE = {"line": {"width": 1, "color": INK}}  # of a mark
NUMBERS: dict[str, Any] = {"type": "log", "tickformat": "~g"}  # a log axis with numbers, not powers
PERCENT: dict[str, Any] = {"tickformat": ".0%"}


def _controls(start: ThreePhaseSettings, *names: str) -> dict[str, Any]:
    """The inputs for settings of these names, in this order."""
    noised = "vote" not in names or start.vote in PRIVATE
    require(noised, f"a {start.vote} vote has no noise to look at: choose {', '.join(PRIVATE)}")
    kinds = ["most votes after Laplace noise", "the same with Gaussian noise"]
    voters, sigmas = [1, 2, 3, 5, 10, 15, 20, 30, 50, 100], [k / 20 for k in range(41)]
    make = {
        "sigma": lambda: number("noise on a pixel σ", start.sigma, sigmas, unit="pixel: 0 to 1"),
        "delta": lambda: delta_of(start.delta),
        "instructors": lambda: number("instructors N", start.instructors, voters, unit="models"),
        "vote": lambda: choice("vote", str(start.vote), map(str, PRIVATE), tooltips=kinds),
        "vote_epsilon": lambda: number("vote ε", start.vote_epsilon, decades(-2, 2), unit="per label"),
    }
    return {name: make[name]() for name in names}


def command(settings: ThreePhaseSettings, take: Sequence[int] = (1, 2, 3)) -> str:
    """The call of `edp-lab three-phase` that does these phases with networks."""
    always = ("phases", "sigma", "instructors", "vote", "vote_epsilon", "delta", "seed")
    options = text.options_of(replace(settings, phases=tuple(take)), ThreePhaseSettings(), always)
    return shlex.join(["edp-lab", "three-phase", "--data", "digits", *options])


def settings_table(sketch: Sketch, rows: Mapping[str, ThreePhaseSettings]) -> text.Html:
    """What the vote keeps, what the labels teach and what they cost, by settings."""
    head = ("", "unanimous labels survive", "labels true", "understudy right", "ε of one label", "ε of all labels")
    table: list[tuple[str, ...]] = [head]
    for name, settings in rows.items():
        ballot, bill = compute.take_vote(sketch, settings), compute.spend_labels(sketch, settings)
        shares = map(percent, (ballot.unanimous, bill.right, bill.accuracy))
        table.append((name, *shares, *map(at_most, (ballot.query_epsilon, bill.account.epsilon))))
    return text.html_table(table)


# ---- Phase I -------------------------------------------------------------------------------------------------------


@panel("10")
def pixels(sketch: Sketch, start: ThreePhaseSettings) -> Panel:
    """Noise on the pixels; `result` is a `NoisedImages`."""
    return Panel(
        "Phase I: noise on the pixels",
        "Six private images before and after noise, and the ε that this noise gives to one of them.",
        lambda **values: compute.noise_images(sketch, replace(start, **values)),
        [draw_images, draw_epsilon],
        words.pixels,
        lambda result, **_: command(result.settings, (1,)),
        tiles=tell_pixels,
        **_controls(start, "sigma", "delta"),
    )


def tell_pixels(result: NoisedImages) -> tuple[Tile, Tile, str]:
    """The thesis' epsilon of one image and the true one, and what the claim would take."""
    sigma, epsilon = result.settings.sigma, result.guarantee.epsilon
    said = claimed(digits(CLAIMED_EPSILON), f"ε of one image, at σ = {CLAIMED_SIGMA:g}")
    if not sigma:
        return said, holds("no guarantee", "without noise"), "Without noise the images leave as they are."
    told = f"A black and a white image are {result.guarantee.sensitivity:g} apart; "
    if epsilon > CLAIMED_EPSILON:
        told += f"for the claimed ε no two may be more than {at_least(result.sensitivity_needed)} apart."
    else:
        told += "so much noise hides even that, and leaves little to learn from."
    return (
        said,
        holds(at_most(epsilon), f"ε of one image, at δ = {short(result.settings.delta)}, in real numbers"),
        told,
    )


ROWS = ("as it is", "noised", "resized,\nnoised,\naveraged")
PICTURE = {"type": "heatmap", "colorscale": [[0, "black"], [1, "white"]], "zmin": 0, "zmax": 1, "showscale": False}
BARE = {"ticks": "", "showline": False, "constrain": "domain"}  # axes of a picture


def draw_images(result: NoisedImages) -> Figure:
    """Images as they are, noised, and with what a resize before the noise leaves."""
    shown, side = result.shown.shape[1:3]
    places = [(side + 1) * i + (side - 1) / 2 for i in range(shown)]
    bare: dict[str, Any] = {**BARE, "showgrid": False, "ticklabelstandoff": 4}
    labels = {"tickvals": places, "ticktext": [str(label) for label in result.labels]}
    rows = {"tickvals": places[: len(ROWS)], "ticktext": ROWS, "autorange": "reversed"}
    return figure(
        "What noise leaves",
        {**PICTURE, "z": _side_by_side(result.shown), "hovertemplate": "pixel %{z:.2f}" + fig.ALONE},
        height=300,
        top=44,
        xaxis=axis("label, passed on without noise", **bare, **labels),
        yaxis={**bare, **rows, "scaleanchor": "x", "constraintoward": "top"},
    )


def _side_by_side(images: NDArray[np.float64]) -> list[list[float | None]]:
    """(rows, columns, height, width) -> one picture, with a gap of one pixel between images."""
    rows, columns, height, width = images.shape
    field = np.full((rows, height + 1, columns, width + 1), None)  # of objects
    field[:, :height, :, :width] = images.transpose(0, 2, 1, 3)
    return field.reshape(rows * (height + 1), columns * (width + 1))[:-1, :-1].tolist()


def draw_epsilon(result: NoisedImages) -> Figure:
    """Epsilon of one image by sigma, for three sizes, and what the thesis claims."""
    sigma = result.settings.sigma
    looks: tuple[dict[str, Any], ...] = (
        {"color": OTHER, "dash": "dot"},
        {"color": OTHER, "dash": "dash"},
        {"color": HOLDS, "width": 3},
    )
    said, here = ([CLAIMED_SIGMA], [CLAIMED_EPSILON]), ([sigma], [result.guarantee.epsilon]) if sigma else ([], [])
    shown = {"marker": EDGE, "hover": "σ %{x:g}: ε ≈ %{y:.3g}"}
    return figure(
        "ε of one image, by its size in pixels",
        *(
            line(name, **look, x=compute.SIGMAS, y=curve, hover="σ %{x:.2g}: ε ≈ %{y:.3g}")
            for (name, curve), look in zip(result.curves.items(), looks, strict=True)
        ),
        points("claimed", CLAIMED, "star", 15, x=said[0], y=said[1], **shown),
        points("here", HOLDS, "circle", 12, x=here[0], y=here[1], showlegend=False, **shown),
        xaxis=axis("noise on a pixel σ", dtick=1, **NUMBERS),
        yaxis=logs(f"ε at δ = {short(result.settings.delta)}"),
    )


# ---- Phase II: votes -----------------------------------------------------------------------------------------------


@panel("10")
def votes(sketch: Sketch, start: ThreePhaseSettings) -> Panel:
    """Noisy votes of linear instructors; `result` is a `Ballot`."""

    def take(image: int, draw: int, **values: Any) -> Ballot:
        return compute.take_vote(sketch, replace(start, **values), image, draw)

    return Panel(
        "Phase II: instructors vote",
        "The votes on one public image, without and with noise, and under each label its chance to come out.",
        take,
        [(draw_ballot, "1 1 30rem")],
        words.votes,
        lambda result, **_: command(result.settings, (1, 2)),
        tiles=tell_votes,
        **_controls(start, "instructors", "vote", "vote_epsilon", "sigma"),
        image=number("public image", 0, range(sketch.public), unit="number", rare=True),
        draw=number("draw of the noise", 0, range(21), unit="number"),
    )


def tell_votes(result: Ballot) -> tuple[Tile, Tile, str]:
    """How often a label survives on which all agree, said and true, and what became of this vote."""
    voters, best, most = result.settings.instructors, result.best, int(result.counts.max())
    survive = "of unanimous labels survive the noise"
    said = claimed("100 %", survive)
    held = holds(percent(result.unanimous), survive)
    told = f"{words.listed(best)} {'have' if best[1:] else 'has'} the most votes, {most} of {voters}"
    told += " each" if best[1:] else ""
    return said, held, f"{told}; in this draw of the noise {result.noisy.argmax()} leads."


def draw_ballot(result: Ballot) -> Figure:
    """One public image, the votes on it, with noise, and the chance of each label to come out."""
    places = list(range(len(result.counts)))
    names = [text.Html("<b>{}</b><br>{:.0f} %").format(k, 100 * chance) for k, chance in enumerate(result.chances)]
    bare: dict[str, Any] = {**BARE, "showticklabels": False}
    seen = {**bare, "title": {"text": f"a {result.truth}, as seen", "font": {"size": 12}}}
    by_label = axis("label, and its chance to come out", [-0.5, places[-1] + 0.5], tickvals=places, ticktext=names)
    axes = [(seen, {**bare, "autorange": "reversed", "scaleanchor": "x"}), (by_label, axis("votes"))]
    return figure(
        "One vote",
        {**PICTURE, "hoverinfo": "skip", "z": result.picture.tolist()},
        bar("votes", PLAIN, x=places, y=result.counts, hover="%{y} say %{x}", **fig.at(2)),
        points("with noise", NOISE, "diamond", 11, x=places, y=result.noisy, hover="%{x}: %{y:.1f}", **fig.at(2)),
        bargap=0.3,
        **fig.plots(1, 2, axes=axes, column_widths=(0.2, 0.8), horizontal_spacing=0.14),
    )


# ---- Phase III: what labels cost and teach, and the pipeline with networks -------------------------------------------


@panel("10")
class Pipeline(RunPanel):
    """What labels cost and teach, by linear models that follow the controls; Run does the same with networks."""

    def __init__(self, sketch: Sketch, start: ThreePhaseSettings) -> None:
        self._sketch, self._start = sketch, start
        self.runs: list[ThreePhaseRecord] = []  # all that came to their end
        spent = [1, 2, 5, 10, 20, 40, 80, 120, 160, 240, 320, 400, 480, 540]
        self.inputs = self.controls = {
            "labels": number("labels spent", start.labels or sketch.public, spent, unit="public images"),
            **_controls(start, "instructors", "vote", "vote_epsilon", "sigma"),
            "understudy_method": choice("understudy", start.understudy_method, {"Adam": "adam", "DP-Adam": "dp-adam"}),
        }
        self.bill = compute.spend_labels(sketch, start)
        super().__init__(
            "Phase III: an understudy learns from labels",
            "What all labels cost together, and how well a model does that learns from nothing else.",
            [*self.inputs.values()],
            [draw_bill(self.bill), draw_runs([], self.bill)],
        )
        self._show()
        for control in self.inputs.values():
            control.observe(self._changed, "entered")

    @property
    def record(self) -> ThreePhaseRecord | None:
        """The last run that came to its end."""
        return self.runs[-1] if self.runs else None

    def prepare(self) -> ThreePhaseSettings:
        return replace(self._start, **{name: control.value for name, control in self.inputs.items()})

    def _changed(self, change: Mapping[str, Any]) -> None:
        with self.guard(change["owner"]):
            self.bill = compute.spend_labels(self._sketch, self.prepare())
            self._show()

    def _show(self, record: ThreePhaseRecord | None = None) -> None:
        """The bill of the labels as the controls stand, and what a run that has just ended adds to it."""
        self.figures[0].show(draw_bill(self.bill))
        self.figures[1].show(draw_runs(self.runs, self.bill))
        self.tiles.show(*(tell_run(record) if record else tell_labels(self.bill)))
        self.words.value = words.pipeline(self.bill, record, len(self.runs))
        self.command.value = command(self.bill.settings)

    def work(self, settings: ThreePhaseSettings) -> None:
        from edp_lab.three_phase import phases  # brings torch, which only networks need

        self.bill = compute.spend_labels(self._sketch, settings)
        self._show()
        self.bar.max, self.bar.value = settings.instructors + 3, 0

        def listen(event: Event) -> None:
            self.heed_stop("Stopped before an understudy was ready: nothing released, nothing to pay.")
            self.state.value = f"{event.part}: epoch {event.epoch} of {event.epochs}"
            self.bar.value += event.epoch == event.epochs

        self.runs.append(phases.run_three_phase(settings, self._sketch.images, listen))
        self._show(self.record)


def tell_labels(result: LabelBill) -> tuple[Tile, Tile, str]:
    """The thesis' epsilon of all labels, the true one, and what the understudy has learnt."""
    taught = f"A linear understudy is right on {percent(result.accuracy)} of new images"
    return *_epsilons(result.account, result.settings), f"{taught}; {percent(result.right)} of its labels are true."


def tell_run(record: ThreePhaseRecord) -> tuple[Tile, Tile, str]:
    """The same for a run with networks, beside a network that learnt without privacy."""
    account, plainly, scores = record.privacy, record.part(PLAIN_MODEL).scores, record.part(UNDERSTUDY).scores
    assert account is not None
    taught = f"The understudy is right on {percent(scores.accuracy)} of new images"
    beside = f"a model without privacy on {percent(plainly.accuracy)}"
    return *_epsilons(account, record.settings), f"{taught}, {beside}."


def _epsilons(account: VoteAccount, settings: ThreePhaseSettings) -> tuple[Tile, Tile]:
    of = f"ε of {count(account.queries, 'label')}, at δ = {short(account.delta)}, in real numbers"
    return claimed(digits(settings.vote_epsilon), "ε of all labels"), holds(at_most(account.epsilon), of)


def draw_bill(result: LabelBill) -> Figure:
    """Epsilon of all labels by their number: by the plain sum, by the least of the accountants, and as claimed."""
    settings, account, n = result.settings, result.account, compute.LABEL_COUNTS
    least = [min(epsilons) for epsilons in zip(*result.composed.values(), strict=True)]
    summed, said = [k * account.query_epsilon for k in n], [settings.vote_epsilon] * len(n)
    on: dict[str, Any] = {"x": n, "hover": "%{x:,} labels: ε ≈ %{y:.3g}"}
    return figure(
        "What labels cost",
        line("holds", HOLDS, width=3, y=least, **on),
        line("plain sum", OTHER, "dashdot", y=summed, visible="plain sum" in result.composed, **on),
        line("claimed", CLAIMED, "dash", y=said, **on),
        fig.vline(account.queries, **HERE),
        xaxis=axis("labels spent (thesis: 9,000)", [0, 4.05], type="log", tickformat=",", dtick=1),
        yaxis=log_axis(f"ε of all labels, at δ = {short(settings.delta)}", [*least, *summed, *said], margin=0.05),
    )


def draw_runs(runs: Sequence[ThreePhaseRecord], bill: LabelBill) -> Figure:
    """Accuracy of the understudy against the epsilon of its labels: linear models now, and networks, a point a run."""
    scores = [run.part(UNDERSTUDY).scores for run in runs]
    paid = [run.privacy.epsilon for run in runs if run.privacy is not None]  # every run with an understudy
    accuracies, numbers = [score.accuracy for score in scores], [str(k + 1) for k in range(len(runs))]
    bars = fig.error_bars(accuracies, [score.interval for score in scores], color=HOLDS, thickness=1.5)
    on: dict[str, Any] = {"x": paid, "y": accuracies, "error_y": bars, "marker": EDGE}
    on |= {"mode": "markers+text", "text": numbers, "textposition": "middle right"}
    on |= {"hovertext": [words.told(run.settings) for run in runs], "hoverinfo": "text"}
    here: dict[str, Any] = {"x": [bill.account.epsilon], "y": [bill.accuracy], "hover": "ε ≈ %{x:.3g}: %{y:.0%}"}
    reach = fig.error_bars(here["y"], [bill.interval], color=NOISE, thickness=1.5)
    cost = log_axis("ε of the labels", [0.5, 2000.0, *paid, *here["x"]], margin=0.05)
    return figure(
        "What they teach",
        points("linear models, as set", NOISE, "diamond", 12, error_y=reach, **here),
        points("your runs", HOLDS, "circle", 12, **on),
        xaxis=cost,
        yaxis=axis("accuracy of the understudy (95 %)", [0, 1.08], **PERCENT),
    )
