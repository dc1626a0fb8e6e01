"""The panels of ``10_three_phases.ipynb``: four that follow their sliders, and one that runs the pipeline.

What a result holds is in `compute`; nothing is computed here but places and axis ranges.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import Control, choice, decades, delta_of, number, number_box
from edp_lab.course.kit.figure import Figure, Trace, figure, line, points
from edp_lab.course.kit.panel import Panel, RunPanel, StoppedError, panel
from edp_lab.course.kit.text import Words
from edp_lab.course.kit.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from edp_lab.course.nb10_phases import compute
from edp_lab.course.nb10_phases.compute import Ballot, LabelBill, NoisedImages, Partition, Score, Sketch
from edp_lab.errors import UsageError
from edp_lab.three_phase import phases
from edp_lab.three_phase.pate import PRIVATE, Vote
from edp_lab.three_phase.perturbation import CLAIMED_EPSILON, CLAIMED_SIGMA
from edp_lab.three_phase.phases import Event, Part, ThreePhaseRecord, ThreePhaseSettings


def spelt(accountant: str) -> str:
    return accountant.replace("Renyi", "Rényi")


words = Words(
    __file__,
    spelt=spelt,
    claimed_epsilon=CLAIMED_EPSILON,
    claimed_sigma=CLAIMED_SIGMA,
    draws=compute.DRAWS,
    not_private=phases.NOT_PRIVATE,
)

HERE: dict[str, Any] = {"line": {"color": "#666", "dash": "dot", "width": 1}}  # where the sliders stand
WIDE: dict[str, Any] = {"line": {"width": 3}}  # the line that counts
EDGE, THICK = {"line": {"width": 1, "color": BLACK}}, {"line": {"width": 2}}  # of a mark
LIST = {"orientation": "v"}  # a legend with one name a line
EPSILON = {"type": "log", "exponentformat": "power", "dtick": 1}


def _controls(start: ThreePhaseSettings, *names: str) -> dict[str, Control]:
    """The inputs for settings of these names, in this order."""
    if "vote" in names and start.vote not in PRIVATE:
        raise UsageError(f"a {start.vote} vote has no noise to look at: choose {', '.join(PRIVATE)}")
    kinds = ["most votes after Laplace noise", "the same with Gaussian noise", "Gaussian, where voters agree only"]
    voters, sigmas = [1, 2, 3, 5, 10, 15, 20, 30, 50, 100], [k / 20 for k in range(41)]
    make = {
        "sigma": lambda: number("noise on a pixel σ", start.sigma, sigmas, unit="pixel: 0 to 1"),
        "delta": lambda: delta_of(start.delta),
        "instructors": lambda: number("instructors N", start.instructors, voters, unit="models"),
        "vote": lambda: choice("vote", str(start.vote), {str(vote): str(vote) for vote in PRIVATE}, tooltips=kinds),
        "vote_epsilon": lambda: number("vote ε", start.vote_epsilon, decades(-2, 2), unit="per label"),
    }
    return {name: make[name]() for name in names}


ALWAYS = ("phases", "sigma", "instructors", "vote", "vote_epsilon", "delta", "seed")
FLAGS = {"understudy_method": "understudy"}  # options that are not named like their field


def command(settings: ThreePhaseSettings, take: Sequence[int] = (1, 2, 3)) -> str:
    """The call of `edp-lab three-phase run` that does these phases with networks."""
    chosen = replace(settings, phases=tuple(take))
    call, defaults = ["edp-lab", "three-phase", "run", "--data", "digits"], asdict(ThreePhaseSettings())
    for name, value in asdict(chosen).items():
        if name in ALWAYS or value != defaults[name]:
            text = ",".join(map(str, value)) if name == "phases" else str(value)
            flag = f"--{FLAGS.get(name, name).replace('_', '-')}"
            call += [flag] if isinstance(value, bool) else [flag, text]
    return shlex.join(call)


def settings_table(sketch: Sketch, rows: Mapping[str, ThreePhaseSettings]) -> str:
    """What the vote keeps, what the labels teach and what they cost, by settings: an HTML table."""
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
        _controls(start, "sigma", "delta"),
        lambda **values: compute.noise_images(sketch, replace(start, **values)),
        [draw_images, draw_epsilon],
        words.pixels,
        lambda result, **_: command(result.settings, (1,)),
    )


ROWS = ("as it is", "noised", "resized first,<br>noised,<br>averaged")
PICTURE = {"colorscale": [[0, "black"], [1, "white"]], "zmin": 0, "zmax": 1, "showscale": False}
BARE = {"ticks": "", "showline": False, "constrain": "domain"}  # axes of a picture


def draw_images(result: NoisedImages) -> Figure:
    """Images as they are, noised, and with what a resize before the noise leaves."""
    shown, side = result.shown.shape[1:3]
    places = [(side + 1) * i + (side - 1) / 2 for i in range(shown)]
    bare = {**BARE, "showgrid": False, "ticklabelstandoff": 4}
    hover = "pixel %{z:.2f}<extra></extra>"
    return figure(
        [{"type": "heatmap", **PICTURE, "z": _tiles(result.shown), "hovertemplate": hover}],
        "What noise leaves",
        f"σ = {result.settings.sigma:g}, seed {result.settings.seed}; 0 is black, 1 white;<br>"
        f"the resize makes {result.copies:,} copies of each pixel",
        310,
        margin={"t": 100},
        xaxis={
            **bare,
            "title": "label, passed on without noise",
            "tickvals": places,
            "ticktext": [str(label) for label in result.labels],
        },
        yaxis={
            **bare,
            "autorange": "reversed",
            "scaleanchor": "x",
            "constraintoward": "top",
            "tickvals": places[: len(ROWS)],
            "ticktext": ROWS,
        },
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
    hover = "σ %{x:.2g}: ε %{y:.3g}"
    looks: tuple[dict[str, Any], ...] = (
        {"color": PURPLE, "dash": "dashdot"},
        {"color": SKY, "dash": "longdash"},
        {"color": GREEN, **WIDE},
        {"color": ORANGE, "dash": "dash"},
    )
    curves = [
        line(name, **look, x=compute.SIGMAS, y=curve, hovertemplate=hover)
        for (name, curve), look in zip(result.curves.items(), looks, strict=True)
    ]
    claim, claimed = "the thesis: σ = 0.6, ε = 2.5", {"x": [CLAIMED_SIGMA], "y": [CLAIMED_EPSILON]}
    here = {"x": [sigma], "y": [result.guarantee.epsilon]} if sigma else {"x": [], "y": []}
    return figure(
        [
            *curves,
            points(claim, ORANGE, "star", 15, **claimed, marker=EDGE),
            points("the slider's σ", GREEN, "circle", 12, **here, marker=EDGE, hovertemplate="σ %{x:g}: ε %{y:.4g}"),
        ],
        "ε of one image",
        f"one image replaced, δ = {delta:.2g}, exact Gaussian<br>accountant; its label: no guarantee at any σ",
        560,
        legend=LIST,
        margin={"t": 196},
        xaxis={"title": "σ of the noise on a pixel (0 to 1)", "type": "log", "tickformat": "~g", "dtick": 1},
        yaxis={"title": f"ε of one image (at δ = {delta:.2g})", **EPSILON},
    )


# ---- Phase II: one vote, and all -----------------------------------------------------------------------------------


@panel("10")
def votes(sketch: Sketch, start: ThreePhaseSettings) -> Panel:
    """Noisy votes of linear instructors; `result` is a `Ballot`."""
    controls = {
        **_controls(start, "instructors", "vote", "vote_epsilon", "sigma"),
        "image": number("public image", 0, range(sketch.public), unit="number"),
        "draw": number("draw of the noise", 0, range(21), unit="number"),
    }

    def take(image: int, draw: int, **values: Any) -> Ballot:
        return compute.take_vote(sketch, replace(start, **values), image, draw)

    return Panel(
        "Phase II: instructors vote",
        "First, the votes on one public image, before and after noise; then, how often noise lets the majority have "
        "its label, and how far the instructors agree.",
        controls,
        take,
        [draw_ballot, draw_survival],
        words.votes,
        lambda result, **_: command(result.settings, (1, 2)),
    )


def _delta(settings: ThreePhaseSettings) -> str:
    """At which delta the epsilon of one label holds."""
    return "δ = 0" if settings.vote == Vote.LAPLACE else f"δ = {settings.delta:.2g}"


def draw_ballot(result: Ballot) -> Figure:
    """One public image, the votes on it, with noise, and the chance of each label to come out."""
    settings, labels = result.settings, [str(k) for k in range(len(result.counts))]
    votes: Trace = {"type": "bar", "name": "votes", "marker": {"color": BLUE}, "hovertemplate": "%{y} say %{x}"}
    noisy = {"hovertemplate": "with noise %{y:.1f}", "marker": THICK, "x": labels, "y": result.noisy, **fig.at(2)}
    hatched = {"color": GREEN, "pattern": {"shape": "/"}}
    chances = {"type": "bar", "name": "chance to come out", "marker": hatched, "hovertemplate": "%{x}: %{y:.1%}"}
    bare = {**BARE, "showticklabels": False}
    axes = {
        "xaxis": {**bare, "title": {"text": "as voters see it", "font": {"size": 12}}},
        "yaxis": {**bare, "autorange": "reversed", "scaleanchor": "x"},
        "xaxis2": {"title": "label", "type": "category"},
        "xaxis3": {"title": "label", "type": "category"},
        "yaxis2": {"title": "votes, and with noise"},
        "yaxis3": {"title": "chance to win", "range": [0, 1], "tickformat": ".0%"},
    }
    return figure(
        [
            {"type": "heatmap", **PICTURE, "hoverinfo": "skip", "z": result.picture.tolist()},
            {**votes, "x": labels, "y": result.counts, **fig.at(2)},
            points("with noise, one draw", VERMILLION, "diamond-open", 11, **noisy),
            {**chances, "x": labels, "y": result.chances, **fig.at(3)},
        ],
        f"One vote: on a {result.truth}",
        "bars: votes; diamonds: with one draw of noise;<br>"
        f"{settings.vote}, ε = {result.query_epsilon:.3g} for one label ({_delta(settings)}, one<br>"
        f"example replaced), N = {settings.instructors}, σ = {settings.sigma:g}, image {result.image},<br>"
        f"seed {settings.seed}, draw {result.draw}",
        580,
        margin={"t": 100},
        bargap=0.3,
        showlegend=False,
        **fig.merged(fig.plots(3, 1, row_heights=(0.2, 0.48, 0.32), vertical_spacing=0.13), axes),
    )


def draw_survival(result: Ballot) -> Figure:
    """Above: the chance that a unanimous label survives, by vote epsilon. Below: how far voters agree."""
    settings, voters = result.settings, result.settings.instructors
    hover: dict[str, Any] = {"hovertemplate": "ε %{x:.2g}: %{y:.0%}"}
    curves = [
        line(
            f"{n} who all agree", color, dash, x=compute.VOTE_EPSILONS, y=result.curves[n], visible=n != voters, **hover
        )
        for n, dash, color in zip(
            compute.PANELS_OF_VOTERS, ("dot", "dash", "dashdot"), (SKY, BLUE, PURPLE), strict=True
        )
    ]
    own = {"x": [settings.vote_epsilon], "y": [result.majority], "hovertemplate": "ε %{x:g}: %{y:.1%}"}
    bars: Trace = {"type": "bar", "marker": {"color": BLUE}, "showlegend": False, **fig.at(2)}
    counted = {"x": list(range(voters + 1)), "y": result.winners}
    axes = {
        "xaxis": {"title": "ε of one label", "range": [-2, 2], "type": "log", "dtick": 1, "tickformat": "~g"},
        "yaxis": {"title": "chance", "range": [0, 1.03], "tickformat": ".0%"},
        "xaxis2": {"title": "votes for the winner", "tickformat": "d", "range": [-0.7, voters + 0.7]},
        "yaxis2": {"title": "public images"},
    }
    return figure(
        [
            *curves,
            line(
                f"{voters} who all agree", VERMILLION, x=compute.VOTE_EPSILONS, y=result.curves[voters], **WIDE, **hover
            ),
            points("these votes: share that it wins", GREEN, "square", 12, marker=EDGE, **own),
            {**bars, **counted, "hovertemplate": "%{x} votes for the winner: %{y} images"},
        ],
        "All votes",
        f"{settings.vote} noise, {_delta(settings)}, one example replaced;<br>"
        f"{result.answered} of {result.queries} labels come out in draw {result.draw},<br>"
        f"σ = {settings.sigma:g}, seed {settings.seed}",
        540,
        legend=LIST,
        margin={"t": 178},
        bargap=0.1,
        shapes=[fig.vline(settings.vote_epsilon, **HERE)],
        **fig.merged(fig.plots(2, 1, row_heights=(0.58, 0.42), vertical_spacing=0.24), axes),
    )


# ---- Phase II: parts and epsilon -----------------------------------------------------------------------------------


@panel("10")
def parts(start: ThreePhaseSettings) -> Panel:
    """Epsilon of instructors that train with DP-Adam; `result` is a `Partition`."""
    controls = {
        "instructors": number("instructors N", start.instructors, compute.PARTS, unit="parts"),
        "batch_size": number("batch size", 250, [50, 100, 150, 200, 250, 300, 500, 1000], unit="images"),
        "epochs": number("epochs", 10, [1, 2, 5, 10, 15, 20, 30, 40, 60], unit="epochs"),
        "noise_multiplier": number("noise multiplier z", 1.1, [k / 10 for k in range(5, 51)], unit="no unit"),
    }
    return Panel(
        "Phase II: what ten instructors do to ε",
        "The same private training, on all of MNIST's images or on N parts of them, and the thesis' rule that N "
        "instructors are N times as private.",
        controls,
        partial(compute.split_training, delta=start.delta),
        [(draw_parts, "1 1 30rem")],
        words.parts,
        lambda result, **_: account_command(result),
    )


def draw_parts(result: Partition) -> Figure:
    """Epsilon by number of instructors: of one on all data, of N on parts, and the thesis' claim."""
    numbers, costs = list(result.costs), result.costs.values()
    told: dict[str, Any] = {"x": numbers, "hovertemplate": "%{x} instructors: ε %{y:.3g}"}
    one, together, claimed = zip(*((cost.one, cost.together, cost.claimed) for cost in costs), strict=True)
    return figure(
        [
            line("one model on all images", BLUE, "dot", y=one, **told),
            line("N on parts: the maximum", GREEN, symbol="circle", y=together, **WIDE, **told),
            line("the thesis: one model's ε over N", ORANGE, "dash", symbol="square-open", size=9, y=claimed, **told),
        ],
        "ε, split into N parts",
        f"DP-Adam, batches of {result.batch_size}, {result.epochs} epochs, z = {result.noise_multiplier:g};<br>"
        f"Rényi DP, δ = {result.delta:.2g}, Poisson sampling,<br>one example added or removed",
        420,
        legend=LIST,
        margin={"t": 156},
        shapes=[fig.vline(result.instructors, **HERE)],
        xaxis={
            "title": "instructors N, on 60,000 images",
            "type": "log",
            "tickformat": "~g",
            "tickangle": 0,
            "tickvals": numbers,
        },
        yaxis={
            "title": f"ε (at δ = {result.delta:.2g})",
            **EPSILON,
            "range": fig.whole_decades([*one, *together, *claimed]),
        },
    )


def account_command(partition: Partition) -> str:
    """The call of `edp-lab account` that gives the epsilon of one of the instructors."""
    rate, clip, z0 = partition.rate(partition.instructors), "--clip 1", f"--z0 {partition.noise_multiplier:g}"
    poisson = f"--sampling-rate {rate!r} --epochs {partition.epochs} --delta {partition.delta:g}"
    return f"edp-lab account {clip} {z0} --gpus 1 --micro-batch-size 1 {poisson}"


# ---- Phase III: what labels cost, and teach ------------------------------------------------------------------------


@panel("10")
def labels(sketch: Sketch, start: ThreePhaseSettings) -> Panel:
    """What labels cost and teach; `result` is a `LabelBill`."""
    spent = [1, 2, 5, 10, 20, 40, 80, 120, 160, 240, 320, 400, 480, 540]
    return Panel(
        "Phase III: the understudy learns from noisy labels",
        "First, what all labels cost together, by several accountants; then, how well a model does that has learnt "
        "from nothing else.",
        {
            "labels": number("labels spent", start.labels or sketch.public, spent, unit="public images"),
            **_controls(start, "instructors", "vote", "vote_epsilon", "sigma", "delta"),
        },
        lambda **values: compute.spend_labels(sketch, replace(start, **values)),
        [draw_bill, draw_learnt],
        words.labels,
        lambda result, **_: command(result.settings),
    )


WAYS: dict[str, dict[str, Any]] = {
    "plain sum": {"color": PURPLE, "dash": "dashdot"},
    "advanced composition": {"color": SKY, "dash": "longdash"},
    "zCDP": {"color": BLUE, "dash": "dot"},
    "Renyi DP": {"color": GREEN, **WIDE},
    "Gaussian DP": {"color": GREEN, **WIDE},
}


def draw_bill(result: LabelBill) -> Figure:
    """Epsilon of all labels by their number: by each accountant, for these very votes, and the thesis' claim."""
    settings, composed, own = result.settings, result.composed, result.account.data_dependent_epsilon
    hover = "%{x:,} labels: ε %{y:.3g}"
    lines = [
        line(
            spelt(way),
            x=compute.LABEL_COUNTS,
            y=composed.get(way, []),
            visible=way in composed,
            hovertemplate=hover,
            **look,
        )
        for way, look in WAYS.items()
    ]
    shown = [settings.vote_epsilon, own, *(epsilon for epsilons in composed.values() for epsilon in epsilons)]
    claimed = {"x": [1, compute.MNIST_QUERIES], "y": [settings.vote_epsilon] * 2}
    very = {"x": [result.spent], "y": [own], "hovertemplate": "ε %{y:.4g} for these votes"}
    return figure(
        [
            *lines,
            line("the thesis: as for one label", ORANGE, "dash", **claimed),
            points("these very votes: not releasable", BLACK, "x-open", 11, **very, marker=THICK),
        ],
        "What labels cost",
        f"{settings.vote} vote, ε = {settings.vote_epsilon:g} per label, δ = {settings.delta:.2g},<br>"
        f"one example replaced; least by {spelt(result.accountant)}, seed {settings.seed}",
        540,
        legend=LIST,
        margin={"t": 212},
        shapes=[fig.vline(result.spent, **HERE)],
        xaxis={
            "title": "labels spent (thesis: 9,000)",
            "type": "log",
            "range": [0, 4.05],
            "tickformat": ",",
            "dtick": 1,
        },
        yaxis={"title": f"ε of all labels (at δ = {settings.delta:.2g})", **EPSILON, "range": fig.whole_decades(shown)},
    )


def draw_learnt(result: LabelBill) -> Figure:
    """Accuracy of the understudy by labels spent, beside the same votes without noise, and how many labels are true."""
    told: dict[str, Any] = {"x": result.sizes, "hovertemplate": "%{x} labels: %{y:.0%}"}
    bound: Trace = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    band = {"fill": "tonexty", "fillcolor": "rgba(0,158,115,0.18)"}
    curves = (
        line("understudy, noisy labels; 95 %", GREEN, symbol="circle", size=9, y=result.accuracy, **WIDE, **told),
        line(
            "understudy, votes without noise", BLUE, "dot", symbol="triangle-up-open", size=9, y=result.silent, **told
        ),
        line("noisy labels that are true", VERMILLION, "dash", symbol="diamond-open", size=9, y=result.right, **told),
    )
    return figure(
        [
            {**bound, "x": result.sizes, "y": result.low},
            {**bound, "x": result.sizes, "y": result.high, **band},
            *curves,
        ],
        "What they teach",
        f"linear understudy, tested on {result.tested} images,<br>"
        f"mean of {compute.DRAWS} draws of the noise, seed {result.settings.seed}",
        540,
        legend={**LIST, "traceorder": "normal"},
        margin={"t": 142},
        shapes=[fig.vline(result.spent, **HERE)],
        xaxis={
            "title": "labels spent",
            "type": "log",
            "tickformat": "~g",
            "tickangle": 0,
            "tickvals": [10, 20, 40, 80, 160, 320, max(result.sizes)],
        },
        yaxis={"title": "accuracy, and share of labels", "range": [0, 1.02], "tickformat": ".0%"},
    )


# ---- The pipeline, live --------------------------------------------------------------------------------------------


@panel("10")
class Pipeline(RunPanel):
    """The three phases with networks and the label panel's values, beside a plain model; only Run starts any work.

    Attributes:
        runs: all that came to their end.
        scores: of the parts so far.
    """

    def __init__(self, sketch: Sketch, start: ThreePhaseSettings, settings: Panel) -> None:
        self._sketch, self._start, self._settings = sketch, start, settings
        self.runs: list[ThreePhaseRecord] = []
        self.scores: list[Score] = []
        self.epochs = number_box("epochs (0: enough)", start.epochs or 0, "13rem")
        methods = {"Adam": "adam", "DP-Adam": "dp-adam"}
        self.method = choice("understudy trains with", start.understudy_method, methods)
        super().__init__(
            "Run it",
            "A real run of all three phases on digits, with networks and the values of the panel above: how good each "
            "part is, and what each of your runs paid for it. The <i>plain model</i> has learnt from all private "
            "images without noise, <i>one on all images</i> from the same after phase I. The instructors' votes "
            "without noise: <i>hard</i>, the label that most of them say; <i>soft</i>, the label of the largest mean "
            "probability.",
            [self.method.row, self.epochs],
            [draw_parts_so_far([], {}, ""), draw_runs([])],
            rows=3,
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
        self.scores, self.words.value, self.command.value = [], "", command(settings)
        self.bar.max, self.bar.value = settings.instructors + 3, 0
        try:
            record = phases.run_three_phase(settings, self._sketch.images, partial(self._listen, settings))
        except StoppedError:
            self.words.value = "<p>Stopped before an understudy was ready: nothing released, nothing to pay.</p>"
            return
        self.runs.append(record)
        self.scores = [_score(part) for part in record.parts]
        self._draw(settings, f"run {len(self.runs)}")
        self.figures[1].show(draw_runs(self.runs))
        self.words.value = words.run(record, len(self.runs))

    def _listen(self, settings: ThreePhaseSettings, event: Event) -> None:
        """What the networks report, epoch by epoch."""
        self.heed_stop()
        self.state.value = f"{event.part}: epoch {event.epoch} of {event.epochs}"
        if event.epoch == event.epochs and event.accuracy is not None:
            self.bar.value += 1
            self.scores.append(Score(event.part, *[event.accuracy] * 3))
            self._draw(settings, "running")

    def _draw(self, settings: ThreePhaseSettings, what: str) -> None:
        caption = f"{what}: {told(settings).replace(', ε', ',<br>ε')}; bars: 95 % of 60 images"
        self.figures[0].show(draw_parts_so_far(self.scores, phases.THESIS_ACCURACY[settings.model], caption))


def _score(part: Part) -> Score:
    return Score(part.name, part.scores.accuracy, *part.scores.interval)


def told(settings: ThreePhaseSettings) -> str:
    """What a caption says of the settings."""
    vote = f"{settings.vote} vote, ε = {settings.vote_epsilon:g} per label"
    return f"σ = {settings.sigma:g}, N = {settings.instructors}, {vote}, seed {settings.seed}"


NAMES = {"one instructor": "one on all images", "instructors": "each of N"}  # of parts, as a reader meets them
NETWORKS = ("plain model", *NAMES.values(), "hard vote", "soft vote", "understudy")


def draw_parts_so_far(scores: Sequence[Score], thesis: Mapping[str, float], caption: str) -> Figure:
    """Accuracy of every part of a run, beside the thesis'; instructors share a row and have no bars."""
    many = [score.name.startswith("instructor") for score in scores]
    bars = [s._replace(low=s.accuracy, high=s.accuracy) if m else s for s, m in zip(scores, many, strict=True)]
    names = ["instructors" if m else score.name for score, m in zip(scores, many, strict=True)]
    here: Trace = {
        "type": "scatter",
        "name": "this run (bar: 95 %)",
        "mode": "markers",
        "marker": {"color": BLUE, "symbol": "circle", "size": 11},
        "x": [score.accuracy for score in scores],
        "y": [NAMES.get(name, name) for name in names],
        "error_x": _bars(bars, BLUE),
        "hovertemplate": "%{y}: %{x:.1%}",
    }
    there = {"x": list(thesis.values()), "y": [NAMES.get(name, name) for name in thesis]}
    look = {"marker": THICK, "hovertemplate": "%{y}: %{x:.0%}"}
    return figure(
        [here, points("the thesis, on MNIST", ORANGE, "diamond-open", 12, **there, **look)],
        "Part by part",
        caption,
        400,
        legend=LIST,
        margin={"t": 130},
        xaxis={"title": "accuracy on 60 images", "range": [0, 1.03], "tickformat": ".0%"},
        yaxis={
            "categoryorder": "array",
            "categoryarray": NETWORKS[::-1],
            "range": [-0.5, len(NETWORKS) - 0.5],
        },
    )


def draw_runs(runs: Sequence[ThreePhaseRecord]) -> Figure:
    """Accuracy of the understudy against the epsilon of its labels, a point for each run."""
    scores = [_score(run.part(phases.UNDERSTUDY)) for run in runs]
    paid = [run.privacy for run in runs if run.privacy is not None]  # so have all that have an understudy
    epsilons = [account.epsilon for account in paid]
    mark = points(
        "",
        GREEN,
        "circle",
        12,
        marker=EDGE,
        mode="markers+text",
        textposition="middle right",
        showlegend=False,
        x=epsilons,
        y=[score.accuracy for score in scores],
        error_y=_bars(scores, GREEN),
        text=[str(number) for number in range(1, len(runs) + 1)],
        hovertext=[f"{told(run.settings)}, {one.queries} labels" for run, one in zip(runs, paid, strict=True)],
        hoverinfo="text",
    )
    caption = "ε by the least of the accountants, δ = {:.2g},<br>one training example replaced; bars: 95 %"
    return figure(
        [mark],
        "Your runs",
        caption.format(runs[-1].settings.delta) if runs else "",
        400,
        margin={"t": 84},
        xaxis={
            "title": "ε of the labels, composed",
            **EPSILON,
            "range": fig.whole_decades([0.5, 2000.0, *epsilons]),
        },
        yaxis={"title": "accuracy of the understudy", "range": [0, 1.08], "tickformat": ".0%"},
    )


def _bars(scores: Sequence[Score], color: str) -> dict[str, Any]:
    up, down = [s.high - s.accuracy for s in scores], [s.accuracy - s.low for s in scores]
    return {"type": "data", "array": up, "arrayminus": down, "color": color, "thickness": 1.5}
