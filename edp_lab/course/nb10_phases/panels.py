"""The panels of ``10_three_phases.ipynb``: four that follow their sliders, and one that runs the pipeline."""

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
from edp_lab.course.nb10_phases.compute import Ballot, LabelBill, NoisedImages, Partition, Sketch
from edp_lab.three_phase.perturbation import CLAIMED_EPSILON, CLAIMED_SIGMA
from edp_lab.three_phase.settings import NOT_PRIVATE, THESIS_ACCURACY, UNDERSTUDY, ThreePhaseSettings
from edp_lab.three_phase.settings import PLAIN as PLAIN_MODEL
from edp_lab.three_phase.votes import PRIVATE

if TYPE_CHECKING:
    from edp_lab.three_phase.phases import Event, ThreePhaseRecord


words = text.Words(
    __file__, draws=compute.DRAWS, not_private=NOT_PRIVATE, spelt=lambda name: name.replace("Renyi", "Rényi")
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
    kinds = ["most votes after Laplace noise", "the same with Gaussian noise", "Gaussian, where voters agree only"]
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
    """The call of `edp-lab three-phase run` that does these phases with networks."""
    always = ("phases", "sigma", "instructors", "vote", "vote_epsilon", "delta", "seed")
    options = text.options_of(replace(settings, phases=tuple(take)), ThreePhaseSettings(), always)
    return shlex.join(["edp-lab", "three-phase", "run", "--data", "digits", *options])


def settings_table(sketch: Sketch, rows: Mapping[str, ThreePhaseSettings]) -> text.Html:
    """What the vote keeps, what the labels teach and what they cost, by settings."""
    head = ("", "unanimous labels survive", "labels true", "understudy right", "ε of one label", "ε of all labels")
    table: list[tuple[str, ...]] = [head]
    for name, settings in rows.items():
        ballot, bill = compute.take_vote(sketch, settings), compute.spend_labels(sketch, settings)
        shares = map(percent, (ballot.unanimous, bill.right[bill.here], bill.accuracy[bill.here]))
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
        views={"no noise": {"sigma": 0.0}, "noise σ = 2": {"sigma": 2.0}, "noise σ = 30": {"sigma": 30.0}},
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
        views={
            "100 instructors": {"instructors": 100},
            "ε = 5 for one label": {"vote_epsilon": 5.0},
            "no noise on the pixels": {"sigma": 0.0},
        },
        **_controls(start, "instructors", "vote", "vote_epsilon", "sigma"),
        image=number("public image", 0, range(sketch.public), unit="number", rare=True),
        draw=number("draw of the noise", 0, range(21), unit="number"),
    )


def tell_votes(result: Ballot) -> tuple[Tile, Tile, str]:
    """How often a label survives on which all agree, said and true, and what became of this vote."""
    voters, best, most = result.settings.instructors, result.best, int(result.counts.max())
    survive = "of unanimous labels survive the noise"
    said = claimed("100 %", survive)
    held = holds(percent(result.unanimous), survive + (", if answered" if result.answer < 1 else ""))
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


# ---- Phase II: parts and epsilon -----------------------------------------------------------------------------------


@panel("10")
def parts(start: ThreePhaseSettings) -> Panel:
    """Epsilon of instructors that train with DP-Adam; `result` is a `Partition`."""
    return Panel(
        "Phase II: what instructors do to ε",
        "The ε of one model that trains privately on all of MNIST's images, and of N models on a part each.",
        partial(compute.split_training, delta=start.delta),
        [(draw_parts, "1 1 30rem")],
        words.parts,
        lambda result, **_: account_command(result),
        tiles=tell_parts,
        views={
            "1 instructor": {"instructors": 1},
            "100 instructors": {"instructors": 100},
            "100 instructors, batches of 50": {"instructors": 100, "batch_size": 50},
        },
        instructors=number("instructors N", start.instructors, compute.PARTS, unit="parts"),
        batch_size=number("batch size", 250, [50, 100, 150, 200, 250, 300, 500, 1000], unit="images"),
        epochs=number("epochs", 10, [1, 2, 5, 10, 15, 20, 30, 40, 60], unit="epochs"),
        noise_multiplier=number("noise multiplier z", 1.1, [k / 10 for k in range(5, 51)]),
    )


def tell_parts(result: Partition) -> tuple[Tile, Tile, str]:
    """The thesis' epsilon of all instructors together and the true one, and why it is larger than one model's."""
    n, cost = result.instructors, result.cost
    told = "One instructor has all images: there is nothing to split."
    if n > 1:
        told = f"An image of a part is in a batch {digits(result.rate(n) / result.rate(1))} times as often, "
        told += f"so ε rises from the {at_most(cost.one)} of one model on all images."
    said = claimed(digits(cost.claimed), f"ε of one model, divided by {n}")
    return said, holds(at_most(cost.together), f"ε of all together, at δ = {short(result.delta)}"), told


def draw_parts(result: Partition) -> Figure:
    """Epsilon by number of instructors: of one on all data, of N on parts, and the thesis' claim."""
    numbers, costs = list(result.costs), result.costs.values()
    on: dict[str, Any] = {"x": numbers, "hover": "%{x} instructors: ε ≈ %{y:.3g}"}
    one, together, said = zip(*((cost.one, cost.together, cost.claimed) for cost in costs), strict=True)
    return figure(
        "ε, split into N parts",
        line("one model on all", OTHER, "dot", y=one, **on),
        line("holds: N on parts", HOLDS, width=3, symbol="circle", y=together, **on),
        line("claimed", CLAIMED, "dash", symbol="square-open", size=9, y=said, **on),
        fig.vline(result.instructors, **HERE),
        xaxis=axis("instructors N, on 60,000 images", tickangle=0, tickvals=numbers, **NUMBERS),
        yaxis=log_axis(f"ε at δ = {short(result.delta)}", [*one, *together, *said], margin=0.05),
    )


def account_command(partition: Partition) -> str:
    """The call of `edp-lab account` that gives the epsilon of one of the instructors."""
    rate, z, delta = partition.rate(partition.instructors), partition.noise_multiplier, partition.delta
    alone = {"clip": 1, "z0": f"{z:g}", "gpus": 1, "micro-batch-size": 1}
    return text.command("account", {**alone, "sampling-rate": rate, "epochs": partition.epochs, "delta": f"{delta:g}"})


# ---- Phase III: what labels cost, and teach ------------------------------------------------------------------------


@panel("10")
def labels(sketch: Sketch, start: ThreePhaseSettings) -> Panel:
    """What labels cost and teach; `result` is a `LabelBill`."""
    spent = [1, 2, 5, 10, 20, 40, 80, 120, 160, 240, 320, 400, 480, 540]
    many = {"instructors": 100, "sigma": 0.0}
    return Panel(
        "Phase III: an understudy learns from labels",
        "What all labels cost together, and how well a model does that learns from nothing else.",
        lambda **values: compute.spend_labels(sketch, replace(start, **values)),
        [draw_bill, draw_learnt],
        words.labels,
        lambda result, **_: command(result.settings),
        tiles=tell_labels,
        views={
            "100 instructors, no noise on pixels": many,
            "and Gaussian votes": {**many, "vote": "gaussian"},
            "and 100 labels": {**many, "vote": "gaussian", "labels": 100},
        },
        labels=number("labels spent", start.labels or sketch.public, spent, unit="public images"),
        **_controls(start, "instructors", "vote", "vote_epsilon", "sigma", "delta"),
    )


def tell_labels(result: LabelBill) -> tuple[Tile, Tile, str]:
    """The thesis' epsilon of all labels and the true one, and what the understudy has learnt."""
    account, here = result.account, result.here
    said = claimed(digits(result.settings.vote_epsilon), "ε of all labels")
    of = f"ε of {count(result.spent, 'label')}, at δ = {short(account.delta)}, in real numbers"
    held = holds(at_most(account.epsilon), of)
    noisy, silent = (percent(scores[here]) for scores in (result.accuracy, result.silent))
    return said, held, f"The understudy is right on {noisy} of new images; votes without noise would teach it {silent}."


def draw_bill(result: LabelBill) -> Figure:
    """Epsilon of all labels by their number: by the plain sum, by the least of the accountants, and as claimed."""
    settings, composed, n = result.settings, result.composed, compute.LABEL_COUNTS
    least = [min(epsilons) for epsilons in zip(*composed.values(), strict=True)]
    summed, said = [k * result.account.query_epsilon for k in n], [settings.vote_epsilon] * len(n)
    on: dict[str, Any] = {"x": n, "hover": "%{x:,} labels: ε ≈ %{y:.3g}"}
    return figure(
        "What labels cost",
        line("holds", HOLDS, width=3, y=least, **on),
        line("plain sum", OTHER, "dashdot", y=summed, visible="plain sum" in composed, **on),
        line("claimed", CLAIMED, "dash", y=said, **on),
        fig.vline(result.spent, **HERE),
        xaxis=axis("labels spent (thesis: 9,000)", [0, 4.05], type="log", tickformat=",", dtick=1),
        yaxis=log_axis(f"ε of all labels, at δ = {short(settings.delta)}", [*least, *summed, *said], margin=0.05),
    )


def draw_learnt(result: LabelBill) -> Figure:
    """Accuracy of the understudy by labels spent, beside the same votes without noise, and how many labels are true."""
    on: dict[str, Any] = {"x": result.sizes, "hover": "%{x} labels: %{y:.0%}"}
    band: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    band |= {"type": "scatter", "x": result.sizes}
    ticks = [*compute.SAMPLES, max(result.sizes)]
    return figure(
        "What they teach",
        {**band, "y": result.low},
        {**band, "y": result.high, "fill": "tonexty", "fillcolor": "rgba(204,121,167,0.2)"},
        line("understudy (95 %)", NOISE, width=3, symbol="circle", size=9, y=result.accuracy, **on),
        line("without noise", PLAIN, "dot", symbol="triangle-up-open", size=9, y=result.silent, **on),
        line("labels that are true", OTHER, "dash", symbol="diamond-open", size=9, y=result.right, **on),
        fig.vline(result.spent, **HERE),
        xaxis=axis("labels spent", tickangle=0, tickvals=ticks, **NUMBERS),
        yaxis=axis("share that is right", [0, 1.02], **PERCENT),
    )


# ---- The pipeline, live --------------------------------------------------------------------------------------------

Scores = Sequence[tuple[str, float, tuple[float, float]]]  # of each part: name, accuracy, and its 95 % interval


@panel("10")
class Pipeline(RunPanel):
    """The three phases with networks and the label panel's values, beside a plain model; only Run starts any work."""

    def __init__(self, sketch: Sketch, start: ThreePhaseSettings, settings: Panel) -> None:
        self._sketch, self._start, self._settings = sketch, start, settings
        self.runs: list[ThreePhaseRecord] = []  # all that came to their end
        self.epochs = number("epochs (0: enough)", start.epochs or 0)
        methods = {"Adam": "adam", "DP-Adam": "dp-adam"}
        self.method = choice("understudy uses", start.understudy_method, methods)
        super().__init__(
            "Run it",
            "How good each part of a real run with networks is, and what your runs cost.",
            [self.method, self.epochs],
            [draw_parts_so_far([], {}), draw_runs([])],
        )
        self.command.value = command(self.prepare())

    @property
    def record(self) -> ThreePhaseRecord | None:
        """Of the last run that came to its end."""
        return self.runs[-1] if self.runs else None

    def prepare(self) -> ThreePhaseSettings:
        own = {"epochs": self.epochs.value or None, "understudy_method": self.method.value}
        return replace(self._start, **self._settings.values, **own)

    def work(self, settings: ThreePhaseSettings) -> None:
        from edp_lab.three_phase import phases  # brings torch, which only networks need

        self.words.value, self.command.value = "", command(settings)
        self.bar.max, self.bar.value = settings.instructors + 3, 0
        so_far: list[tuple[str, float, tuple[float, float]]] = []

        def draw(scores: Scores) -> None:
            self.figures[0].show(draw_parts_so_far(scores, THESIS_ACCURACY[settings.model]))

        def listen(event: Event) -> None:
            """What the networks report, epoch by epoch."""
            self.heed_stop("Stopped before an understudy was ready: nothing released, nothing to pay.")
            self.state.value = f"{event.part}: epoch {event.epoch} of {event.epochs}"
            if event.epoch == event.epochs and event.accuracy is not None:
                self.bar.value += 1
                so_far.append((event.part, event.accuracy, (event.accuracy, event.accuracy)))
                draw(so_far)

        record = phases.run_three_phase(settings, self._sketch.images, listen)
        self.runs.append(record)
        draw([(part.name, part.scores.accuracy, part.scores.interval) for part in record.parts])
        self.figures[1].show(draw_runs(self.runs))
        self.tiles.show(*tell_run(record))
        self.words.value = words.run(record, len(self.runs))


def tell_run(record: ThreePhaseRecord) -> tuple[Tile, Tile, str]:
    """The thesis' epsilon of a run's labels and the true one, and how good the understudy is that has learnt them."""
    account, plainly, scores = record.privacy, record.part(PLAIN_MODEL).scores, record.part(UNDERSTUDY).scores
    assert account is not None
    said = claimed(digits(record.settings.vote_epsilon), "ε of all labels")
    held = holds(at_most(account.epsilon), f"ε at δ = {short(account.delta)}, in real numbers")
    told = f"The understudy is right on {percent(scores.accuracy)} of new images, "
    return said, held, f"{told}a model without privacy on {percent(plainly.accuracy)}."


NAMES = {  # of parts, as a reader meets them
    PLAIN_MODEL: "without noise",
    "one instructor": "one, noised images",
    "instructors": "each of N",
    "hard vote": "most votes",
    "soft vote": "mean of votes",
    UNDERSTUDY: "understudy",
}


def draw_parts_so_far(scores: Scores, thesis: Mapping[str, float]) -> Figure:
    """Accuracy of every part of a run, beside the thesis'; instructors share a row and have no bars."""
    bars, rows = [], []
    for name, accuracy, interval in scores:
        one_of_many = name.startswith("instructor")
        bars.append((accuracy, accuracy) if one_of_many else interval)
        rows.append(NAMES["instructors" if one_of_many else name])
    accuracies = [accuracy for _, accuracy, _ in scores]
    reach = fig.error_bars(accuracies, bars, color=PLAIN, thickness=1.5)
    here = {"x": accuracies, "y": rows, "error_x": reach, "hover": "%{y}: %{x:.1%}"}
    there = {"x": list(thesis.values()), "y": [NAMES[name] for name in thesis], "hover": "%{y}: %{x:.0%}"}
    names = {"categoryorder": "array", "categoryarray": [*NAMES.values()][::-1], "range": [-0.5, len(NAMES) - 0.5]}
    return figure(
        "Part by part",
        points("this run (95 %)", PLAIN, "circle", 11, edge=None, **here),
        points("the thesis, MNIST", CLAIMED, "diamond-open", 12, edge=2, **there),
        xaxis=axis("accuracy on 60 images", [0, 1.03], **PERCENT),
        yaxis=names,
    )


def draw_runs(runs: Sequence[ThreePhaseRecord]) -> Figure:
    """Accuracy of the understudy against the epsilon of its labels, a point for each run."""
    scores = [run.part(UNDERSTUDY).scores for run in runs]
    paid = [run.privacy for run in runs if run.privacy is not None]  # so have all that have an understudy
    epsilons, accuracies = [account.epsilon for account in paid], [score.accuracy for score in scores]
    reach = fig.error_bars(accuracies, [score.interval for score in scores], color=HOLDS, thickness=1.5)
    on = {"x": epsilons, "y": accuracies, "error_y": reach, "marker": EDGE, "showlegend": False}
    number = {"mode": "markers+text", "text": [str(k + 1) for k in range(len(runs))], "textposition": "middle right"}
    told = [words.told(run.settings) + f", {one.queries} labels" for run, one in zip(runs, paid, strict=True)]
    marks = points("", HOLDS, "circle", 12, **on, **number, hovertext=told, hoverinfo="text")
    cost = log_axis("ε of the labels", [0.5, 2000.0, *epsilons], margin=0.05)
    accuracy = axis("accuracy of the understudy", [0, 1.08], **PERCENT)
    return figure("Your runs", marks, xaxis=cost, yaxis=accuracy)
