"""Panels of ``10_three_phases.ipynb``: noise on pixels, cost and benefit of noisy votes, and Adam under noise.

    result = spend_labels(Sketch(seed=0), ThreePhaseSettings())     # in milliseconds, with linear models
    print(command(result.settings))                                 # the command for a run with networks

`edp_lab.three_phase` computes noise, votes and accounts. Linear models replace its networks, so the whole pipeline can
follow a slider; the panel of phases II and III also trains networks. Invalid values raise `UsageError`.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edp_lab.attacks.statistics import rate_of
from edp_lab.corpora.images import load_images
from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import text
from edp_lab.course.kit.controls import Array, choice, decades, delta_of, number, require, rng_of
from edp_lab.course.kit.figure import Figure, axis, line, log_axis, logs, points, positive
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.runs import Runs
from edp_lab.course.kit.text import Tile, at_least, at_most, claimed, count, digits, holds, percent, short
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.privacy.foundations import analytic_gaussian_sigma
from edp_lab.three_phase import perturbation
from edp_lab.three_phase.perturbation import (
    CLAIMED_EPSILON,
    CLAIMED_SIGMA,
    RESIZED,
    ImageGuarantee,
    Perturbation,
    image_guarantee,
)
from edp_lab.three_phase.settings import NOT_PRIVATE, PUBLIC_SHARE, THESIS_ACCURACY, UNDERSTUDY, ThreePhaseSettings
from edp_lab.three_phase.settings import PLAIN as PLAIN_MODEL
from edp_lab.three_phase.votes import (
    PRIVATE,
    VoteAccount,
    account_votes,
    composed_epsilons,
    label_probabilities,
    vote_counts,
)

SHOWN = 6  # number of images in the figure of phase I
RIDGE = 1.0  # keeps least squares stable if there are fewer examples than pixels
DRAWS = 5  # number of noise draws over which accuracies are averaged
MNIST_SHAPE, MNIST_QUERIES = (1, 28, 28), 9000  # as in the thesis
SIGMAS = [float(s) for s in np.geomspace(0.01, 10, 31)]
LABEL_COUNTS = sorted({round(float(n)) for n in np.geomspace(1, MNIST_QUERIES, 30)})
Labels = NDArray[np.int64]


# ---- The pipeline with linear models --------------------------------------------------------------------------------


class Sketch:
    """Phases I and II on digits with linear instructors; images, noise and parts are those of `run_three_phase`."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.images = seed, load_images("digits", seed)
        self.public = int(PUBLIC_SHARE * len(self.images.test))  # images to label; the others are test images
        self.key = key_from_seed(f"three phases {seed}")  # the key of a run with this seed
        self.order = stream(self.key, Purpose.SHUFFLE).permutation(len(self.images.train))
        # Caches. By sigma: noised training and test images, (n, 1, 8, 8) each, and the linear features of the test
        # images, (n, 65). By sigma and N: each instructor's label for each test image, (N, 600).
        self.noised = lru_cache(maxsize=8)(self._noised)
        self.features = lru_cache(maxsize=8)(lambda sigma: linear_features(self.noised(sigma)[1]))
        self.predictions = lru_cache(maxsize=64)(self._predictions)

    def counts(self, settings: ThreePhaseSettings) -> NDArray[np.int64]:
        """Number of votes for each class on each public image, shape (Q, K)."""
        predictions = self.predictions(settings.sigma, settings.instructors)
        return vote_counts(predictions[:, : self.public], self.images.classes)

    def labels(self, settings: ThreePhaseSettings, draw: int = 0) -> Labels:
        """Noisy labels of the public images; draw 0 uses the noise of a real run."""
        return settings.aggregator().labels(self.counts(settings), stream(self.key, Purpose.NOISE, 2 + draw))

    def _noised(self, sigma: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        parts = (self.images.train, self.images.test)
        rngs = (stream(self.key, Purpose.NOISE, place) for place in (0, 1))
        train, test = (perturbation.perturb(x, sigma, rng) for x, rng in zip(parts, rngs, strict=True))
        return train, test

    def _predictions(self, sigma: float, instructors: int) -> Labels:
        fewest = int(np.bincount(self.images.train_labels).min())
        rarest = f"the rarest digit, which has {fewest} training images: enter 1 to {fewest}"
        require(1 <= instructors <= fewest, f"{instructors} instructors cannot all see {rarest}")
        train, labels = linear_features(self.noised(sigma)[0]), self.images.train_labels
        parts = np.array_split(self.order, instructors)
        models = [fit_linear(train[part], labels[part], self.images.classes) for part in parts]
        return np.array([(self.features(sigma) @ model).argmax(axis=1) for model in models])


def fit_linear(features: Array, y: Labels, classes: int) -> Array:
    """Least-squares weights for the target 1 at the label and 0 elsewhere: (n, F), (n) or (n, D) -> (F, K or D K)."""
    gram, targets = features.T @ features + RIDGE * np.eye(features.shape[1]), np.eye(classes)[y].reshape(len(y), -1)
    return np.asarray(np.linalg.solve(gram, features.T @ targets), dtype=np.float64)


def linear_features(x: NDArray[np.floating[Any]]) -> Array:
    """Flatten images and append a constant: (n, ...) -> (n, pixels + 1)."""
    flat = x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float64)  # also works for n = 0
    return np.concatenate([flat, np.ones((len(x), 1))], axis=1)


if TYPE_CHECKING:
    from edp_lab.three_phase.phases import Event, ThreePhaseRecord


words = text.Words(
    __file__,
    draws=DRAWS,
    not_private=NOT_PRIVATE,
    spelt=lambda name: name.replace("Renyi", "Rényi"),
    thesis_accuracy=THESIS_ACCURACY,
)
figure = partial(fig.figure, height=380)
EDGE = {"line": {"width": 1, "color": INK}}  # outline of a marker


def _controls(start: ThreePhaseSettings, *names: str) -> dict[str, Any]:
    """Create the controls of the settings with these names, in this order."""
    noised = "vote" not in names or start.vote in PRIVATE
    require(noised, f"a {start.vote} vote has no noise: choose {', '.join(PRIVATE)}")
    kinds = ["most votes after Laplace noise", "most votes after Gaussian noise"]
    voters, sigmas = [1, 2, 3, 5, 10, 15, 20, 30, 50, 100], [k / 20 for k in range(41)]
    make = {
        "sigma": lambda: number("noise on a pixel σ", start.sigma, sigmas, unit="pixel: 0 to 1"),
        "delta": lambda: delta_of(start.delta),
        "instructors": lambda: number("instructors N", start.instructors, voters, unit="models"),
        "vote": lambda: choice("vote", str(start.vote), map(str, PRIVATE), tooltips=kinds),
        "vote_epsilon": lambda: number("vote ε", start.vote_epsilon, decades(-2, 2), unit="per label", within=(0, 1e9)),
    }
    return {name: make[name]() for name in names}


def command(settings: ThreePhaseSettings, take: Sequence[int] = (1, 2, 3)) -> str:
    """The `edp-lab three-phase` command that runs these phases with networks."""
    always = ("phases", "sigma", "instructors", "vote", "vote_epsilon", "delta", "seed")
    options = text.options_of(replace(settings, phases=tuple(take)), ThreePhaseSettings(), always)
    return shlex.join(["edp-lab", "three-phase", "--data", "digits", *options])


def settings_table(sketch: Sketch, rows: Mapping[str, ThreePhaseSettings]) -> text.Html:
    """HTML table with the accuracy of vote and understudy, and the epsilon of the labels, by settings."""
    head = ("", "unanimous labels kept", "true labels", "understudy's accuracy", "ε of one label", "ε of all labels")
    table: list[tuple[str, ...]] = [head]
    for name, settings in rows.items():
        bill = spend_labels(sketch, settings)
        shares = map(percent, (bill.unanimous, bill.right, bill.accuracy))
        table.append((name, *shares, *map(at_most, (bill.account.query_epsilon, bill.account.epsilon))))
    return text.html_table(table)


# ---- Phase I -------------------------------------------------------------------------------------------------------


class NoisedImages(NamedTuple):
    """Results of phase I on digits."""

    settings: ThreePhaseSettings
    labels: Labels  # (SHOWN)
    shown: Array  # (2, SHOWN, 8, 8) original and noised images
    pixels: Perturbation  # the thesis' statistics of the training set
    guarantee: ImageGuarantee  # the guarantee for digits
    mnist: ImageGuarantee  # the guarantee for images of 28 x 28 pixels
    sensitivity_needed: float  # sensitivity at which this noise has the claimed epsilon; 0 without noise
    curves: dict[str, list[float]]  # epsilon over `SIGMAS`, by name of the line


def noise_images(sketch: Sketch, settings: ThreePhaseSettings) -> NoisedImages:
    """Add Gaussian noise to every pixel, as in phase I, and compute the epsilon of an image."""
    sigma, delta, clean = settings.sigma, settings.delta, sketch.images.train
    train, shape = sketch.noised(sigma)[0], clean.shape[1:]
    return NoisedImages(
        settings,
        labels=sketch.images.train_labels[:SHOWN],
        shown=np.stack([clean[:SHOWN, 0], train[:SHOWN, 0]]).astype(np.float64),
        pixels=perturbation.compare(clean, train),
        guarantee=image_guarantee(shape, sigma, delta),
        mnist=image_guarantee(MNIST_SHAPE, sigma, delta),
        sensitivity_needed=sigma / analytic_gaussian_sigma(1.0, CLAIMED_EPSILON, delta),
        curves=epsilon_curves(shape, delta),
    )


@lru_cache(maxsize=16)
def epsilon_curves(shape: tuple[int, ...], delta: float) -> dict[str, list[float]]:
    """Epsilon of one image over `SIGMAS`, for three image sizes."""
    sizes = {"3 × 256 × 256": RESIZED, "28 × 28 (MNIST)": MNIST_SHAPE, f"{shape[1]} × {shape[2]} (here)": shape}
    return {name: [image_guarantee(size, s, delta).epsilon for s in SIGMAS] for name, size in sizes.items()}


@panel("10")
def pixels(sketch: Sketch, start: ThreePhaseSettings) -> Panel:
    """Panel of phase I, noise on pixels; `result` is a `NoisedImages`."""
    return Panel(
        "Phase I: noise on the pixels",
        "Six private images before and after noise, and the ε of one image with this noise.",
        lambda **values: noise_images(sketch, replace(start, **values)),
        [draw_images, draw_epsilon],
        words.pixels,
        lambda result, **_: command(result.settings, (1,)),
        tiles=tell_pixels,
        **_controls(start, "sigma", "delta"),
    )


def tell_pixels(result: NoisedImages) -> tuple[Tile, Tile, str]:
    """Tiles with the claimed and the guaranteed epsilon of one image; a sentence on distances and noise."""
    sigma, epsilon = result.settings.sigma, result.guarantee.epsilon
    claim = claimed(digits(CLAIMED_EPSILON), f"ε of one image, at σ = {CLAIMED_SIGMA:g}")
    if not sigma:
        return claim, holds("none", "without noise"), "Without noise, the images are passed on unchanged."
    sentence = f"A black and a white image have a distance of {result.guarantee.sensitivity:g}. "
    if epsilon > CLAIMED_EPSILON:
        sentence += f"For the claimed ε, two images may be at most {at_least(result.sensitivity_needed)} apart."
    else:
        sentence += "The noise hides this distance, but it leaves little to learn from."
    return (
        claim,
        holds(at_most(epsilon), f"ε of one image, at δ = {short(result.settings.delta)}, with exact noise"),
        sentence,
    )


ROWS = ("original", "noisy")
PICTURE = {"type": "heatmap", "colorscale": [[0, "black"], [1, "white"]], "zmin": 0, "zmax": 1, "showscale": False}
BARE = {"ticks": "", "showline": False, "constrain": "domain"}  # axes of an image


def draw_images(result: NoisedImages) -> Figure:
    """Plot original and noised images."""
    shown, side = result.shown.shape[1:3]
    places = [(side + 1) * i + (side - 1) / 2 for i in range(shown)]
    bare: dict[str, Any] = {**BARE, "showgrid": False, "ticklabelstandoff": 4}
    labels = {"tickvals": places, "ticktext": [str(label) for label in result.labels]}
    rows = {"tickvals": places[: len(ROWS)], "ticktext": ROWS, "autorange": "reversed"}
    return figure(
        "Images before and after noise",
        {**PICTURE, "z": _side_by_side(result.shown), "hovertemplate": "pixel %{z:.2f}" + fig.ALONE},
        height=260,
        top=44,
        xaxis=axis("label, passed on without noise", **bare, **labels),
        yaxis={**bare, **rows, "scaleanchor": "x", "constraintoward": "top"},
    )


def _side_by_side(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rows, columns, height, width) -> one picture, with a gap (NaN) of one pixel between images."""
    rows, columns, height, width = images.shape
    field = np.full((rows, height + 1, columns, width + 1), np.nan)
    field[:, :height, :, :width] = images.transpose(0, 2, 1, 3)
    return field.reshape(rows * (height + 1), columns * (width + 1))[:-1, :-1]


def draw_epsilon(result: NoisedImages) -> Figure:
    """Plot the epsilon of one image by sigma for three image sizes, with the claimed epsilon."""
    looks = ((OTHER, "dot", None), (OTHER, "dash", None), (HOLDS, "solid", 3))
    here: dict[str, Any] = {"x": positive([result.settings.sigma]), "y": positive([result.guarantee.epsilon])}
    marked = {"marker": EDGE, "hover": "σ %{x:g}: ε ≈ %{y:.3g}"}
    return figure(
        "ε of one image, by its size in pixels",
        *(
            line(name, color, dash, width=width, x=SIGMAS, y=curve, hover="σ %{x:.2g}: ε ≈ %{y:.3g}")
            for (name, curve), (color, dash, width) in zip(result.curves.items(), looks, strict=True)
        ),
        points("claimed", CLAIMED, "star", 15, x=[CLAIMED_SIGMA], y=[CLAIMED_EPSILON], **marked),
        points("here", HOLDS, "circle", 12, showlegend=False, **here, **marked),
        xaxis=axis("noise on a pixel σ", dtick=1, type="log", tickformat="~g"),
        yaxis=logs(f"ε at δ = {short(result.settings.delta)}"),
    )


# ---- Phases II and III ----------------------------------------------------------------------------------------------


class LabelBill(NamedTuple):
    """Epsilon of noisy labels, and accuracy of an understudy that is trained on them."""

    settings: ThreePhaseSettings
    unanimous: float  # probability that a label on which all N agree survives the noise
    silent: float  # share of all public images with the true label if votes are counted without noise
    alone: float  # mean share of these images on which one instructor is right
    account: VoteAccount  # privacy account of the labels
    accountant: str  # the accountant with the smallest epsilon
    composed: dict[str, list[float]]  # epsilon over `LABEL_COUNTS`, for any votes, by accountant
    # Means over draws of the noise:
    accuracy: float  # accuracy of the understudy on the test images
    interval: tuple[float, float]  # both ends of its 95 % interval
    right: float  # share of the labels that are true


def spend_labels(sketch: Sketch, settings: ThreePhaseSettings) -> LabelBill:
    """Account for the labels of linear instructors, and train linear understudies on these labels."""
    spent = settings.labels or sketch.public
    there = f"there are only {sketch.public} public images"
    require(spent <= sketch.public, f"{spent} labels, but {there}")
    aggregator = settings.aggregator()
    bills = [_composed_epsilons(aggregator, n, settings.delta) for n in LABEL_COUNTS]
    account = account_votes(aggregator, spent, settings.delta)
    accuracy, low, high, right = np.mean(_understudies(sketch, settings, spent), axis=0).tolist()
    truth, votes, voters = sketch.images.test_labels[: sketch.public], sketch.counts(settings), settings.instructors
    agreed = np.array([voters] + [0] * (sketch.images.classes - 1))
    return LabelBill(
        settings,
        unanimous=float(label_probabilities(agreed, aggregator)[0]),  # raises UsageError for a vote without noise
        silent=float((votes.argmax(1) == truth).mean()),
        alone=float((sketch.predictions(settings.sigma, voters)[:, : sketch.public] == truth).mean()),
        account=account,
        accountant=min(account.composed, key=lambda way: account.composed[way]),
        composed={way: [bill[way] for bill in bills] for way in bills[0]},
        accuracy=accuracy,
        interval=(low, high),
        right=right,
    )


def _understudies(sketch: Sketch, settings: ThreePhaseSettings, spent: int) -> list[tuple[float, ...]]:
    """The accuracy of each draw, both ends of its interval, and the share of labels that are true."""
    features, truth, public = sketch.features(settings.sigma), sketch.images.test_labels, sketch.public
    labels = np.stack([sketch.labels(settings, draw)[:spent] for draw in range(DRAWS)], axis=1)
    models = fit_linear(features[:spent], labels, sketch.images.classes)
    predicted = (features[public:] @ models).reshape(-1, DRAWS, sketch.images.classes).argmax(axis=2)
    rates = [rate_of(answers == truth[public:]) for answers in predicted.T]
    right = (labels == truth[:spent, None]).mean(axis=0)
    return [(rate.value, *rate.interval, share) for rate, share in zip(rates, right, strict=True)]


_composed_epsilons = lru_cache(maxsize=512)(composed_epsilons)


@panel("10")
class Pipeline(Panel, Runs):
    """Panel of phases II and III; linear models follow the controls, and Run trains networks.

    Attributes:
        result: a `LabelBill`.
        runs: all finished runs.
    """

    def __init__(self, sketch: Sketch, start: ThreePhaseSettings) -> None:
        self._sketch, self._start = sketch, start
        self.runs: list[ThreePhaseRecord] = []
        spent = [1, 2, 5, 10, 20, 40, 80, 120, 160, 240, 320, 400, 480, 540]
        super().__init__(
            "Phases II and III: instructors vote, an understudy learns",
            "The ε of noisy labels, and the accuracy of a model trained only on them. Run trains networks.",
            lambda **values: spend_labels(sketch, replace(start, **values)),
            [draw_bill, lambda bill: draw_runs(self.runs, bill)],
            lambda bill: words.pipeline(bill, self._run_of(bill)),
            lambda bill, **_: command(bill.settings),
            tiles=lambda bill: tell_run(run) if (run := self._run_of(bill)) else tell_labels(bill),
            joint=("labels", "instructors", "vote"),
            labels=number("labels", start.labels or sketch.public, spent, unit="public images"),
            **_controls(start, "instructors", "vote", "vote_epsilon", "sigma"),
            understudy_method=choice("understudy", start.understudy_method, {"Adam": "adam", "DP-Adam": "dp-adam"}),
        )

    def _run_of(self, bill: LabelBill) -> ThreePhaseRecord | None:
        """The last run with these settings, if any."""
        return next((run for run in reversed(self.runs) if run.settings == bill.settings), None)

    def prepare(self) -> ThreePhaseSettings:
        require(self.values["instructors"] >= 1, "there are no instructors: enter 1 or more")
        return replace(self._start, **self.values)

    def work(self, settings: ThreePhaseSettings) -> None:
        from edp_lab.three_phase import phases  # imports torch, which only networks need

        self.bar.max, self.bar.value = settings.instructors + 3, 0

        def listen(event: Event) -> None:
            if self.stopping:
                self.tiles.sentence = "Stopped before an understudy was ready. Nothing was released, so ε is 0."
            self.heed_stop()
            self.state.value = f"{event.part}: epoch {event.epoch} of {event.epochs}"
            self.bar.value += event.epoch == event.epochs

        self.runs.append(phases.run_three_phase(settings, self._sketch.images, listen))
        self.set()


def tell_labels(result: LabelBill) -> tuple[Tile, Tile, str]:
    """Tiles with the claimed and the guaranteed epsilon of all labels; a sentence on labels and accuracy."""
    kept = f"Noise keeps {percent(result.unanimous)} of unanimous labels, {percent(result.right)} of labels are true"
    taught = f"a linear understudy is right on {percent(result.accuracy)} of new images"
    return *_epsilons(result.account, result.settings), f"{kept}, and {taught}."


def tell_run(record: ThreePhaseRecord) -> tuple[Tile, Tile, str]:
    """Tiles and sentence for a run with networks, compared with a network trained without privacy."""
    account, plainly, scores = record.privacy, record.part(PLAIN_MODEL).scores, record.part(UNDERSTUDY).scores
    assert account is not None
    taught = f"The understudy is right on {percent(scores.accuracy)} of new images"
    beside = f"a model without privacy on {percent(plainly.accuracy)}"
    return *_epsilons(account, record.settings), f"{taught}, {beside}."


def _epsilons(account: VoteAccount, settings: ThreePhaseSettings) -> tuple[Tile, Tile]:
    of = f"ε of {count(account.queries, 'label')}, at δ = {short(account.delta)}, with exact noise"
    return claimed(digits(settings.vote_epsilon), "ε of all labels"), holds(at_most(account.epsilon), of)


def draw_bill(result: LabelBill) -> Figure:
    """Plot the epsilon of all labels by their number: the best accountant, the plain sum and the claim."""
    settings, account, n = result.settings, result.account, LABEL_COUNTS
    least = [min(epsilons) for epsilons in zip(*result.composed.values(), strict=True)]
    summed, as_claimed = [k * account.query_epsilon for k in n], [settings.vote_epsilon] * len(n)
    on: dict[str, Any] = {"x": n, "hover": "%{x:,} labels: ε ≈ %{y:.3g}"}
    return figure(
        "ε of the labels",
        line("guaranteed", HOLDS, width=3, y=least, **on),
        line("plain sum", OTHER, "dashdot", y=summed, visible="plain sum" in result.composed, **on),
        line("claimed", CLAIMED, "dash", y=as_claimed, **on),
        fig.vline(account.queries, line=fig.DOTTED),
        xaxis=axis("number of labels (thesis: 9,000)", [0, 4.05], type="log", tickformat=",", dtick=1),
        yaxis=log_axis(f"ε of all labels, at δ = {short(settings.delta)}", [*least, *summed, *as_claimed], margin=0.05),
    )


def draw_runs(runs: Sequence[ThreePhaseRecord], bill: LabelBill) -> Figure:
    """Plot the understudy's accuracy against the epsilon of its labels, for linear models and for each run."""
    scores = [run.part(UNDERSTUDY).scores for run in runs]
    paid = [run.privacy.epsilon for run in runs if run.privacy is not None]  # every run with an understudy
    accuracies, numbers = [score.accuracy for score in scores], [str(k + 1) for k in range(len(runs))]
    bars = fig.error_bars(accuracies, [score.interval for score in scores], color=HOLDS, thickness=1.5)
    on: dict[str, Any] = {"x": paid, "y": accuracies, "error_y": bars, "marker": EDGE}
    on |= {"mode": "markers+text", "text": numbers, "textposition": "middle right"}
    on |= {"hovertext": [words.described(run.settings) for run in runs], "hoverinfo": "text"}
    here: dict[str, Any] = {"x": [bill.account.epsilon], "y": [bill.accuracy], "hover": "ε ≈ %{x:.3g}: %{y:.0%}"}
    reach = fig.error_bars(here["y"], [bill.interval], color=NOISE, thickness=1.5)
    cost = log_axis("ε of the labels", [0.5, 2000.0, *paid, *here["x"]], margin=0.05)
    return figure(
        "Accuracy of the understudy",
        points("current linear models", NOISE, "diamond", 12, error_y=reach, **here),
        points("your runs", HOLDS, "circle", 12, **on),
        xaxis=cost,
        yaxis=axis("accuracy, with 95 % intervals", [0, 1.08], tickformat=".0%"),
    )


# ---- What Adam divides by ------------------------------------------------------------------------------------------


class Divisors(NamedTuple):
    """Adam's divisor of each weight's average gradient; all gradients have noise of one standard deviation."""

    noise_std: float
    sizes: Array  # (120) each weight's gradient, the same in every step
    divisors: Array  # (120) divisors after all steps


def adam_divisors(noise_std: float, steps: int) -> Divisors:
    """Compute Adam's divisors of 120 weights after `steps`, with noise of one standard deviation on all gradients."""
    from edp_lab.training.build import BETAS  # imports torch, which only networks need

    sizes = np.logspace(-3, 0, 120)
    squares = (sizes + noise_std * rng_of(0, 2).standard_normal((steps, len(sizes)))) ** 2
    weights = BETAS[1] ** np.arange(steps - 1, -1, -1.0)
    return Divisors(noise_std, sizes, np.sqrt(weights @ squares / weights.sum()))


@panel("10")
def adam() -> Panel:
    """Panel on Adam under noise; `result` is a `Divisors`."""
    return Panel(
        "What Adam divides by",
        "Each mark is one of 120 weights, with made-up gradients between 0.001 and 1.",
        adam_divisors,
        [draw_divisors],
        lambda r: f"In theory, the divisor of a gradient g is about the square root of g² + {short(r.noise_std)}².",
        tiles=tell_divisors,
        noise_std=number("noise σ", 0.1, [0.0, *decades(-3, 0)], unit="gradient: 0.001 to 1", within=(0, 100)),
        steps=number("steps", 30, [1, 3, 10, 30, 100, 300, 1000], unit="of Adam", within=(1, 10_000)),
    )


def tell_divisors(result: Divisors) -> tuple[Tile, Tile, str]:
    """Tiles with Adam's average step for the smallest and the largest gradient; a sentence on the reason."""
    low, high = (result.sizes / result.divisors)[[0, -1]]
    below = int((result.sizes <= result.noise_std).sum())
    sentence = "No gradient is below σ, so Adam moves every weight by about one learning rate."
    if below:
        sentence = f"{below} of 120 gradients are below σ. For these, Adam acts almost like SGD."
    unit = "learning rates per step"
    return Tile("smallest gradient", short(low), unit), Tile("largest gradient", short(high), unit), sentence


def draw_divisors(result: Divisors) -> Figure:
    """Plot Adam's divisor by the size of the gradient, with and without noise."""
    x, hover = result.sizes, "gradient %{x:.2g}: divided by %{y:.2g}"
    return figure(
        "What Adam divides the average gradient by",
        line("without noise", PLAIN, "dot", x=x, y=x),
        points("with noise", NOISE, "square", 6, x=x, y=result.divisors, hover=hover),
        xaxis=logs("size of the weight's gradient"),
        yaxis=logs("divided by"),
    )
