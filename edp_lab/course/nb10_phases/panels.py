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
from edp_lab.course.kit.figure import Figure, axis, bar, figure, line, log_axis, logs, points
from edp_lab.course.kit.inputs import require
from edp_lab.course.kit.panel import Panel, RunPanel, panel
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb10_phases import compute
from edp_lab.course.nb10_phases.compute import Ballot, LabelBill, NoisedImages, Partition, Sketch
from edp_lab.three_phase.pate import PRIVATE
from edp_lab.three_phase.perturbation import CLAIMED_EPSILON, CLAIMED_SIGMA
from edp_lab.three_phase.settings import NOT_PRIVATE, THESIS_ACCURACY, UNDERSTUDY, ThreePhaseSettings

if TYPE_CHECKING:
    from edp_lab.three_phase.phases import Event, ThreePhaseRecord


def spelt(accountant: str) -> str:
    return accountant.replace("Renyi", "Rényi")


words = text.Words(
    __file__,
    spelt=spelt,
    claimed_epsilon=CLAIMED_EPSILON,
    claimed_sigma=CLAIMED_SIGMA,
    draws=compute.DRAWS,
    not_private=NOT_PRIVATE,
)

HERE: dict[str, Any] = {"line": {"color": "#666", "dash": "dot", "width": 1}}  # where the sliders stand
EDGE = {"line": {"width": 1, "color": BLACK}}  # of a mark
LIST = {"orientation": "v"}  # a legend with one name a line
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
    flags = {"understudy_method": "understudy"}
    options = text.options_of(replace(settings, phases=tuple(take)), ThreePhaseSettings(), always, flags)
    return shlex.join(["edp-lab", "three-phase", "run", "--data", "digits", *options])


def settings_table(sketch: Sketch, rows: Mapping[str, ThreePhaseSettings]) -> text.Html:
    """What the vote keeps, what the labels teach and what they cost, by settings."""
    results = {name: (compute.take_vote(sketch, one), compute.spend_labels(sketch, one)) for name, one in rows.items()}
    return words.side_by_side(results)


# ---- Phase I -------------------------------------------------------------------------------------------------------


@panel("10")
def pixels(sketch: Sketch, start: ThreePhaseSettings) -> Panel:
    """Noise on the pixels; `result` is a `NoisedImages`."""
    return Panel(
        "Phase I: noise on the pixels",
        "First, six private images before and after noise; then, what this noise promises about one image, and what is "
        "claimed.",
        lambda **values: compute.noise_images(sketch, replace(start, **values)),
        [draw_images, draw_epsilon],
        words.pixels,
        lambda result, **_: command(result.settings, (1,)),
        **_controls(start, "sigma", "delta"),
    )


ROWS = ("as it is", "noised", "resized first,\nnoised,\naveraged")
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
        words.images_caption(result),
        {**PICTURE, "z": _tiles(result.shown), "hovertemplate": "pixel %{z:.2f}" + fig.ALONE},
        height=310,
        top=100,
        xaxis=axis("label, passed on without noise", **bare, **labels),
        yaxis={**bare, **rows, "scaleanchor": "x", "constraintoward": "top"},
    )


def _tiles(images: NDArray[np.float64]) -> list[list[float | None]]:
    """(rows, columns, height, width) -> one picture, with a gap of one pixel between images."""
    rows, columns, height, width = images.shape
    field = np.full((rows, height + 1, columns, width + 1), None)  # of objects
    field[:, :height, :, :width] = images.transpose(0, 2, 1, 3)
    return field.reshape(rows * (height + 1), columns * (width + 1))[:-1, :-1].tolist()


def draw_epsilon(result: NoisedImages) -> Figure:
    """Epsilon of one image by sigma: for three sizes exactly, by the thesis' formula, and its claim."""
    sigma, delta = result.settings.sigma, result.settings.delta
    looks: tuple[dict[str, Any], ...] = (
        {"color": PURPLE, "dash": "dashdot"},
        {"color": SKY, "dash": "longdash"},
        {"color": GREEN, "width": 3},
        {"color": ORANGE, "dash": "dash"},
    )
    claimed, here = ([CLAIMED_SIGMA], [CLAIMED_EPSILON]), ([sigma], [result.guarantee.epsilon]) if sigma else ([], [])
    return figure(
        "ε of one image",
        words.epsilon_caption(result),
        *(
            line(name, **look, x=compute.SIGMAS, y=curve, hover="σ %{x:.2g}: ε %{y:.3g}")
            for (name, curve), look in zip(result.curves.items(), looks, strict=True)
        ),
        points("the thesis: σ = 0.6, ε = 2.5", ORANGE, "star", 15, x=claimed[0], y=claimed[1], marker=EDGE),
        points("the slider's σ", GREEN, "circle", 12, x=here[0], y=here[1], marker=EDGE, hover="σ %{x:g}: ε %{y:.4g}"),
        top=196,
        legend=LIST,
        xaxis=axis("σ of the noise on a pixel (0 to 1)", dtick=1, **NUMBERS),
        yaxis=logs(f"ε of one image (at δ = {delta:.2g})"),
    )


# ---- Phase II: one vote, and all -----------------------------------------------------------------------------------


@panel("10")
def votes(sketch: Sketch, start: ThreePhaseSettings) -> Panel:
    """Noisy votes of linear instructors; `result` is a `Ballot`."""

    def take(image: int, draw: int, **values: Any) -> Ballot:
        return compute.take_vote(sketch, replace(start, **values), image, draw)

    return Panel(
        "Phase II: instructors vote",
        "First, the votes on one public image, before and after noise; then, how often noise lets the majority have "
        "its label, and how far the instructors agree.",
        take,
        [draw_ballot, draw_survival],
        words.votes,
        lambda result, **_: command(result.settings, (1, 2)),
        **_controls(start, "instructors", "vote", "vote_epsilon", "sigma"),
        image=number("public image", 0, range(sketch.public), unit="number"),
        draw=number("draw of the noise", 0, range(21), unit="number"),
    )


def draw_ballot(result: Ballot) -> Figure:
    """One public image, the votes on it, with noise, and the chance of each label to come out."""
    labels = [str(k) for k in range(len(result.counts))]
    hatched = {"color": GREEN, "pattern": {"shape": "/"}}
    won = {"marker": hatched, "x": labels, "y": result.chances, "hover": "%{x}: %{y:.1%}", **fig.at(3)}
    drawn = {"x": labels, "y": result.noisy, "hover": "with noise %{y:.1f}", **fig.at(2)}
    bare: dict[str, Any] = {**BARE, "showticklabels": False}
    seen = {**bare, "title": {"text": "as voters see it", "font": {"size": 12}}}
    by_label = axis("label", type="category")
    axes = [
        (seen, {**bare, "autorange": "reversed", "scaleanchor": "x"}),
        (by_label, axis("votes, and with noise")),
        (by_label, axis("chance to win", [0, 1], **PERCENT)),
    ]
    return figure(
        f"One vote: on a {result.truth}",
        words.ballot_caption(result),
        {**PICTURE, "hoverinfo": "skip", "z": result.picture.tolist()},
        bar("votes", BLUE, x=labels, y=result.counts, hover="%{y} say %{x}", **fig.at(2)),
        points("with noise, one draw", VERMILLION, "diamond-open", 11, edge=2, **drawn),
        bar("chance to come out", GREEN, **won),
        height=580,
        top=100,
        bargap=0.3,
        showlegend=False,
        **fig.plots(3, 1, axes=axes, row_heights=(0.2, 0.48, 0.32), vertical_spacing=0.13),
    )


def draw_survival(result: Ballot) -> Figure:
    """Above: the chance that a unanimous label survives, by vote epsilon. Below: how far voters agree."""
    settings, voters = result.settings, result.settings.instructors
    on: dict[str, Any] = {"x": compute.VOTE_EPSILONS, "hover": "ε %{x:.2g}: %{y:.0%}"}
    looks = zip(compute.PANELS_OF_VOTERS, (SKY, BLUE, PURPLE), ("dot", "dash", "dashdot"), strict=True)
    own = {"x": [settings.vote_epsilon], "y": [result.majority], "hover": "ε %{x:g}: %{y:.1%}"}
    agreed = {"x": list(range(voters + 1)), "y": result.winners, "hover": "%{x} votes for the winner: %{y} images"}
    axes = [
        (axis("ε of one label", [-2, 2], dtick=1, **NUMBERS), axis("chance", [0, 1.03], **PERCENT)),
        (axis("votes for the winner", [-0.7, voters + 0.7], tickformat="d"), axis("public images")),
    ]
    return figure(
        "All votes",
        words.survival_caption(result),
        *(line(f"{n} who all agree", *look, y=result.curves[n], visible=n != voters, **on) for n, *look in looks),
        line(f"{voters} who all agree", VERMILLION, width=3, y=result.curves[voters], **on),
        points("these votes: share that it wins", GREEN, "square", 12, marker=EDGE, **own),
        bar("", BLUE, showlegend=False, **agreed, **fig.at(2)),
        fig.vline(settings.vote_epsilon, **HERE),
        height=540,
        top=178,
        legend=LIST,
        bargap=0.1,
        **fig.plots(2, 1, axes=axes, row_heights=(0.58, 0.42), vertical_spacing=0.24),
    )


# ---- Phase II: parts and epsilon -----------------------------------------------------------------------------------


@panel("10")
def parts(start: ThreePhaseSettings) -> Panel:
    """Epsilon of instructors that train with DP-Adam; `result` is a `Partition`."""
    return Panel(
        "Phase II: what ten instructors do to ε",
        "The same private training, on all of MNIST's images or on N parts of them, and the thesis' rule that N "
        "instructors are N times as private.",
        partial(compute.split_training, delta=start.delta),
        [(draw_parts, "1 1 30rem")],
        words.parts,
        lambda result, **_: account_command(result),
        instructors=number("instructors N", start.instructors, compute.PARTS, unit="parts"),
        batch_size=number("batch size", 250, [50, 100, 150, 200, 250, 300, 500, 1000], unit="images"),
        epochs=number("epochs", 10, [1, 2, 5, 10, 15, 20, 30, 40, 60], unit="epochs"),
        noise_multiplier=number("noise multiplier z", 1.1, [k / 10 for k in range(5, 51)]),
    )


def draw_parts(result: Partition) -> Figure:
    """Epsilon by number of instructors: of one on all data, of N on parts, and the thesis' claim."""
    numbers, costs = list(result.costs), result.costs.values()
    on: dict[str, Any] = {"x": numbers, "hover": "%{x} instructors: ε %{y:.3g}"}
    one, together, claimed = zip(*((cost.one, cost.together, cost.claimed) for cost in costs), strict=True)
    return figure(
        "ε, split into N parts",
        words.parts_caption(result),
        line("one model on all images", BLUE, "dot", y=one, **on),
        line("N on parts: the maximum", GREEN, width=3, symbol="circle", y=together, **on),
        line("the thesis: one model's ε over N", ORANGE, "dash", symbol="square-open", size=9, y=claimed, **on),
        fig.vline(result.instructors, **HERE),
        height=420,
        top=156,
        legend=LIST,
        xaxis=axis("instructors N, on 60,000 images", tickangle=0, tickvals=numbers, **NUMBERS),
        yaxis=log_axis(f"ε (at δ = {result.delta:.2g})", [*one, *together, *claimed], margin=0.05),
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
    return Panel(
        "Phase III: the understudy learns from noisy labels",
        "First, what all labels cost together, by several accountants; then, how well a model does that has learnt "
        "from nothing else.",
        lambda **values: compute.spend_labels(sketch, replace(start, **values)),
        [draw_bill, draw_learnt],
        words.labels,
        lambda result, **_: command(result.settings),
        labels=number("labels spent", start.labels or sketch.public, spent, unit="public images"),
        **_controls(start, "instructors", "vote", "vote_epsilon", "sigma", "delta"),
    )


WAYS: dict[str, dict[str, Any]] = {
    "plain sum": {"color": PURPLE, "dash": "dashdot"},
    "advanced composition": {"color": SKY, "dash": "longdash"},
    "zCDP": {"color": BLUE, "dash": "dot"},
    "Renyi DP": {"color": GREEN, "width": 3},
    "Gaussian DP": {"color": GREEN, "width": 3},
}


def draw_bill(result: LabelBill) -> Figure:
    """Epsilon of all labels by their number: by each accountant, for these very votes, and the thesis' claim."""
    settings, composed, own = result.settings, result.composed, result.account.data_dependent_epsilon
    on: dict[str, Any] = {"x": compute.LABEL_COUNTS, "hover": "%{x:,} labels: ε %{y:.3g}"}
    shown = [settings.vote_epsilon, own, *(epsilon for epsilons in composed.values() for epsilon in epsilons)]
    claimed = {"x": [1, compute.MNIST_QUERIES], "y": [settings.vote_epsilon] * 2}
    very = {"x": [result.spent], "y": [own], "hover": "ε %{y:.4g} for these votes"}
    return figure(
        "What labels cost",
        words.bill_caption(result),
        *(line(spelt(way), y=composed.get(way, []), visible=way in composed, **WAYS[way], **on) for way in WAYS),
        line("the thesis: as for one label", ORANGE, "dash", **claimed),
        points("these very votes: not releasable", BLACK, "x-open", 11, edge=2, **very),
        fig.vline(result.spent, **HERE),
        height=540,
        top=212,
        legend=LIST,
        xaxis=axis("labels spent (thesis: 9,000)", [0, 4.05], type="log", tickformat=",", dtick=1),
        yaxis=log_axis(f"ε of all labels (at δ = {settings.delta:.2g})", shown, margin=0.05),
    )


def draw_learnt(result: LabelBill) -> Figure:
    """Accuracy of the understudy by labels spent, beside the same votes without noise, and how many labels are true."""
    on: dict[str, Any] = {"x": result.sizes, "hover": "%{x} labels: %{y:.0%}"}
    band: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    band |= {"type": "scatter", "x": result.sizes}
    ticks = [10, 20, 40, 80, 160, 320, max(result.sizes)]
    return figure(
        "What they teach",
        words.learnt_caption(result),
        {**band, "y": result.low},
        {**band, "y": result.high, "fill": "tonexty", "fillcolor": "rgba(0,158,115,0.18)"},
        line("understudy, noisy labels; 95 %", GREEN, width=3, symbol="circle", size=9, y=result.accuracy, **on),
        line("understudy, votes without noise", BLUE, "dot", symbol="triangle-up-open", size=9, y=result.silent, **on),
        line("noisy labels that are true", VERMILLION, "dash", symbol="diamond-open", size=9, y=result.right, **on),
        fig.vline(result.spent, **HERE),
        height=540,
        top=142,
        legend={**LIST, "traceorder": "normal"},
        xaxis=axis("labels spent", tickangle=0, tickvals=ticks, **NUMBERS),
        yaxis=axis("accuracy, and share of labels", [0, 1.02], **PERCENT),
    )


# ---- The pipeline, live --------------------------------------------------------------------------------------------

Scores = Sequence[tuple[str, float, tuple[float, float]]]  # of each part: name, accuracy, and its 95 % interval


@panel("10")
class Pipeline(RunPanel):
    """The three phases with networks and the label panel's values, beside a plain model; only Run starts any work.

    Attributes:
        runs: all that came to their end.
    """

    def __init__(self, sketch: Sketch, start: ThreePhaseSettings, settings: Panel) -> None:
        self._sketch, self._start, self._settings = sketch, start, settings
        self.runs: list[ThreePhaseRecord] = []
        self.epochs = number("epochs (0: enough)", start.epochs or 0)
        methods = {"Adam": "adam", "DP-Adam": "dp-adam"}
        self.method = choice("understudy trains with", start.understudy_method, methods)
        super().__init__(
            "Run it",
            text.Html(
                "A real run of all three phases on digits, with networks and the values of the panel above: how good "
                "each part is, and what each of your runs paid for it. The <i>plain model</i> has learnt from all "
                "private images without noise, <i>one on all images</i> from the same after phase I. The instructors' "
                "votes without noise: <i>hard</i>, the label that most of them say; <i>soft</i>, the label of the "
                "largest mean probability."
            ),
            [self.method, self.epochs],
            [draw_parts_so_far([], {}, ""), draw_runs([])],
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

        def draw(scores: Scores, what: str) -> None:
            caption = f"{what}: " + words.told(settings, text.Html("<br>")) + "; bars: 95 % of 60 images"
            thesis = THESIS_ACCURACY[settings.model]
            self.figures[0].show(draw_parts_so_far(scores, thesis, caption))

        def listen(event: Event) -> None:
            """What the networks report, epoch by epoch."""
            self.heed_stop("Stopped before an understudy was ready: nothing released, nothing to pay.")
            self.state.value = f"{event.part}: epoch {event.epoch} of {event.epochs}"
            if event.epoch == event.epochs and event.accuracy is not None:
                self.bar.value += 1
                so_far.append((event.part, event.accuracy, (event.accuracy, event.accuracy)))
                draw(so_far, "running")

        record = phases.run_three_phase(settings, self._sketch.images, listen)
        self.runs.append(record)
        scores = [(part.name, part.scores.accuracy, part.scores.interval) for part in record.parts]
        draw(scores, f"run {len(self.runs)}")
        self.figures[1].show(draw_runs(self.runs))
        self.words.value = words.run(record, len(self.runs))


NAMES = {"one instructor": "one on all images", "instructors": "each of N"}  # of parts, as a reader meets them
NETWORKS = ("plain model", *NAMES.values(), "hard vote", "soft vote", "understudy")


def draw_parts_so_far(scores: Scores, thesis: Mapping[str, float], caption: str) -> Figure:
    """Accuracy of every part of a run, beside the thesis'; instructors share a row and have no bars."""
    bars, rows = [], []
    for name, accuracy, interval in scores:
        one_of_many = name.startswith("instructor")
        bars.append((accuracy, accuracy) if one_of_many else interval)
        rows.append(NAMES["instructors"] if one_of_many else NAMES.get(name, name))
    accuracies = [accuracy for _, accuracy, _ in scores]
    reach = fig.error_bars(accuracies, bars, color=BLUE, thickness=1.5)
    here = {"x": accuracies, "y": rows, "error_x": reach, "hover": "%{y}: %{x:.1%}"}
    there = {"x": list(thesis.values()), "y": [NAMES.get(name, name) for name in thesis], "hover": "%{y}: %{x:.0%}"}
    names = {"categoryorder": "array", "categoryarray": NETWORKS[::-1], "range": [-0.5, len(NETWORKS) - 0.5]}
    return figure(
        "Part by part",
        caption,
        points("this run (bar: 95 %)", BLUE, "circle", 11, edge=None, **here),
        points("the thesis, on MNIST", ORANGE, "diamond-open", 12, edge=2, **there),
        height=400,
        top=130,
        legend=LIST,
        xaxis=axis("accuracy on 60 images", [0, 1.03], **PERCENT),
        yaxis=names,
    )


def draw_runs(runs: Sequence[ThreePhaseRecord]) -> Figure:
    """Accuracy of the understudy against the epsilon of its labels, a point for each run."""
    scores = [run.part(UNDERSTUDY).scores for run in runs]
    paid = [run.privacy for run in runs if run.privacy is not None]  # so have all that have an understudy
    epsilons, accuracies = [account.epsilon for account in paid], [score.accuracy for score in scores]
    reach = fig.error_bars(accuracies, [score.interval for score in scores], color=GREEN, thickness=1.5)
    on = {"x": epsilons, "y": accuracies, "error_y": reach, "marker": EDGE, "showlegend": False}
    number = {"mode": "markers+text", "text": [str(k + 1) for k in range(len(runs))], "textposition": "middle right"}
    told = [words.told(run.settings) + f", {one.queries} labels" for run, one in zip(runs, paid, strict=True)]
    marks = points("", GREEN, "circle", 12, **on, **number, hovertext=told, hoverinfo="text")
    caption = "ε by the least of the accountants, δ = {:.2g},\none training example replaced; bars: 95 %"
    caption = caption.format(runs[-1].settings.delta) if runs else ""
    cost = log_axis("ε of the labels, composed", [0.5, 2000.0, *epsilons], margin=0.05)
    accuracy = axis("accuracy of the understudy", [0, 1.08], **PERCENT)
    return figure("Your runs", caption, marks, height=400, top=84, xaxis=cost, yaxis=accuracy)
