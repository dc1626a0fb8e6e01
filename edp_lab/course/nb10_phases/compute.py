"""What ``10_three_phases.ipynb`` computes: noised pixels, noisy votes, and what labels cost. No widgets.

    result = spend_labels(Sketch(seed=0), ThreePhaseSettings())     # in milliseconds, with linear models
    print(panels.command(result.settings))                               # the same with networks, on the command line

Noise, votes and accounts are those of `edp_lab.three_phase`; added is a linear model in place of each network,
so that the whole pipeline follows a slider. Values that make no sense are refused by `UsageError`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edp_lab.attacks.statistics import rate_of
from edp_lab.corpora.images import load_images
from edp_lab.course.kit.inputs import Array, require
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.privacy.foundations import analytic_gaussian_sigma, gaussian_release, laplace_release
from edp_lab.three_phase import perturbation
from edp_lab.three_phase.perturbation import CLAIMED_EPSILON, RESIZED, ImageGuarantee, Perturbation, image_guarantee
from edp_lab.three_phase.settings import PUBLIC_SHARE, ThreePhaseSettings
from edp_lab.three_phase.votes import (
    L1_SENSITIVITY,
    Vote,
    VoteAccount,
    account_votes,
    composed_epsilons,
    label_probabilities,
    query_epsilon,
    vote_counts,
)

SHOWN = 6  # images of phase I in the figure
RIDGE = 1.0  # keeps least squares stable where examples are fewer than pixels
DRAWS = 5  # of the noise on the labels, over which accuracies are averaged
MNIST_SHAPE, MNIST_QUERIES = (1, 28, 28), 9000  # what the thesis has
SIGMAS = [float(s) for s in np.geomspace(0.01, 10, 31)]
LABEL_COUNTS = sorted({round(float(n)) for n in np.geomspace(1, MNIST_QUERIES, 30)})
Labels = NDArray[np.int64]


# ---- The pipeline with linear models --------------------------------------------------------------------------------


class Sketch:
    """Phases I and II on digits, with linear instructors: the images, noise and parts of `run_three_phase`."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.images = seed, load_images("digits", seed)
        self.public = int(PUBLIC_SHARE * len(self.images.test))  # the first ones may be labelled; the others test
        self.key = key_from_seed(f"three phases {seed}")  # that of a run with this seed
        self.order = stream(self.key, Purpose.SHUFFLE).permutation(len(self.images.train))
        # Remembered: (sigma) -> noised train, noised test, (n, 1, 8, 8) both; (sigma) -> what a linear model reads of
        # the noised test images, (n, 65); (sigma, N) -> (N, 600), what each instructor says of each test image.
        self.noised = lru_cache(maxsize=8)(self._noised)
        self.features = lru_cache(maxsize=8)(lambda sigma: linear_features(self.noised(sigma)[1]))
        self.predictions = lru_cache(maxsize=64)(self._predictions)

    def counts(self, settings: ThreePhaseSettings) -> NDArray[np.int64]:
        """Votes for each class on each public image: (Q, K)."""
        predictions = self.predictions(settings.sigma, settings.instructors)
        return vote_counts(predictions[:, : self.public], self.images.classes)

    def labels(self, settings: ThreePhaseSettings, draw: int = 0) -> Labels:
        """The noisy label of each public image; draw 0 has the noise of a run."""
        return settings.aggregator().labels(self.counts(settings), stream(self.key, Purpose.NOISE, 2 + draw))

    def _noised(self, sigma: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        parts = (self.images.train, self.images.test)
        rngs = (stream(self.key, Purpose.NOISE, place) for place in (0, 1))
        train, test = (perturbation.perturb(x, sigma, rng) for x, rng in zip(parts, rngs, strict=True))
        return train, test

    def _predictions(self, sigma: float, instructors: int) -> Labels:
        fewest = int(np.bincount(self.images.train_labels).min())
        rarest = f"the rarest digit, which has {fewest} training images: take {fewest} at most"
        require(instructors <= fewest, f"{instructors} instructors cannot all see {rarest}")
        train, labels = linear_features(self.noised(sigma)[0]), self.images.train_labels
        parts = np.array_split(self.order, instructors)
        models = [fit_linear(train[part], labels[part], self.images.classes) for part in parts]
        return np.array([(self.features(sigma) @ model).argmax(axis=1) for model in models])


def fit_linear(features: Array, y: Labels, classes: int) -> Array:
    """Least squares from features to 1 for the label, 0 for others: (n, F), (n) -> (F, K)."""
    gram = features.T @ features + RIDGE * np.eye(features.shape[1])
    return np.asarray(np.linalg.solve(gram, features.T @ np.eye(classes)[y]), dtype=np.float64)


def linear_features(x: NDArray[np.floating[Any]]) -> Array:
    """Pixels and a constant: (n, ...) -> (n, pixels + 1)."""
    flat = x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float64)  # also of no images
    return np.concatenate([flat, np.ones((len(x), 1))], axis=1)


# ---- Phase I -------------------------------------------------------------------------------------------------------


class NoisedImages(NamedTuple):
    """Phase I on digits."""

    settings: ThreePhaseSettings
    labels: Labels  # (SHOWN)
    shown: Array  # (3, SHOWN, 8, 8) images as they are, noised, and resized, noised and averaged back
    copies: int  # of each pixel after the resize
    pixels: Perturbation  # the thesis' statistics of the training set
    guarantee: ImageGuarantee  # what holds
    mnist: ImageGuarantee  # what would for images of 28 x 28
    resized: ImageGuarantee  # and if the noise came after the resize
    sensitivity_needed: float  # with which this noise would have the claimed epsilon; 0 without noise
    curves: dict[str, list[float]]  # epsilon over `SIGMAS` by name of a line


def noise_images(sketch: Sketch, settings: ThreePhaseSettings) -> NoisedImages:
    """Phase I: Gaussian noise on every pixel, what it does to the images and what it promises.

    Averaging the copies that a resize makes of a pixel leaves noise of deviation sigma / sqrt(copies); that is drawn.
    """
    sigma, delta, clean = settings.sigma, settings.delta, sketch.images.train
    train, shape = sketch.noised(sigma)[0], clean.shape[1:]
    copies = math.prod(RESIZED) // math.prod(shape)
    averaged = clean[:SHOWN] + (train[:SHOWN] - clean[:SHOWN]) / math.sqrt(copies)
    return NoisedImages(
        settings,
        labels=sketch.images.train_labels[:SHOWN],
        shown=np.stack([clean[:SHOWN, 0], train[:SHOWN, 0], averaged[:, 0]]).astype(np.float64),
        copies=copies,
        pixels=perturbation.compare(clean, train),
        guarantee=image_guarantee(shape, sigma, delta),
        mnist=image_guarantee(MNIST_SHAPE, sigma, delta),
        resized=image_guarantee(RESIZED, sigma, delta),
        sensitivity_needed=sigma / analytic_gaussian_sigma(1.0, CLAIMED_EPSILON, delta),
        curves=epsilon_curves(shape, delta),
    )


@lru_cache(maxsize=16)
def epsilon_curves(shape: tuple[int, ...], delta: float) -> dict[str, list[float]]:
    """Epsilon of one image over `SIGMAS`, for three sizes."""
    sizes = {"3 × 256 × 256": RESIZED, "28 × 28 (MNIST)": MNIST_SHAPE, f"{shape[1]} × {shape[2]} (here)": shape}
    return {name: [image_guarantee(size, s, delta).epsilon for s in SIGMAS] for name, size in sizes.items()}


# ---- Phase II ------------------------------------------------------------------------------------------------------


class Ballot(NamedTuple):
    """Phase II: a vote on one public image, and what noise does to all of them."""

    settings: ThreePhaseSettings
    image: int  # its number
    truth: int  # the image's digit
    picture: Array  # (8, 8), as the instructors see it
    counts: NDArray[np.int64]  # (K), votes
    noisy: Array  # (K), with one draw of noise
    chances: Array  # (K), of each label to come out
    said: list[tuple[int, int]]  # labels that have votes, and how many
    best: list[int]  # the one with the most, or those that tie
    queries: int  # public images
    unanimous: float  # chance that a label on which all N agree comes out
    query_epsilon: float  # of one label; for Laplace noise at delta 0
    majority: float  # share of this draw's labels that the most instructors said
    right: float  # and of those that are true
    right_without_noise: float  # share true by counting the votes
    alone: float  # and by one instructor on average


def take_vote(sketch: Sketch, settings: ThreePhaseSettings, image: int = 0, draw: int = 0) -> Ballot:
    """Put the public images to the vote of linear instructors, and look at one of them."""
    require(0 <= image < sketch.public, f"there is no public image {image}: choose 0 to {sketch.public - 1}")
    require(draw >= 0, f"the number of the draw is {draw}: it must be 0 or more")
    aggregator, votes, voters = settings.aggregator(), sketch.counts(settings), settings.instructors
    predictions = sketch.predictions(settings.sigma, voters)[:, : sketch.public]
    truth, labels, winners = sketch.images.test_labels[: sketch.public], sketch.labels(settings, draw), votes.argmax(1)
    counts, strongest = votes[image], int(votes[image].max())
    agreed = np.array([voters] + [0] * (sketch.images.classes - 1))
    chances = label_probabilities(counts, aggregator)  # refuses a vote without noise
    rng = stream(sketch.key, Purpose.NOISE, 3 + image, draw)
    if aggregator.vote is Vote.LAPLACE:
        noisy = laplace_release(counts, L1_SENSITIVITY, L1_SENSITIVITY / aggregator.noise, rng)
    else:
        noisy = gaussian_release(counts, aggregator.noise, rng)
    return Ballot(
        settings,
        image,
        truth=int(truth[image]),
        picture=sketch.noised(settings.sigma)[1][image, 0].astype(np.float64),
        counts=counts,
        noisy=noisy,
        chances=chances,
        said=[(label, said) for label, said in enumerate(counts.tolist()) if said],
        best=np.flatnonzero(counts == strongest).tolist(),
        queries=sketch.public,
        unanimous=float(label_probabilities(agreed, aggregator)[0]),
        query_epsilon=query_epsilon(aggregator, settings.delta),
        majority=float((labels == winners).mean()),
        right=float((labels == truth).mean()),
        right_without_noise=float((winners == truth).mean()),
        alone=float((predictions == truth).mean()),
    )


# ---- Phase III -----------------------------------------------------------------------------------------------------


class LabelBill(NamedTuple):
    """Phase III: what labels cost, and what an understudy learns from them."""

    settings: ThreePhaseSettings
    account: VoteAccount  # of the labels put to the vote
    accountant: str  # the way of adding up that gives the least epsilon
    composed: dict[str, list[float]]  # epsilon over `LABEL_COUNTS`, whatever the votes are, by accountant
    # Means over draws of the noise:
    accuracy: float  # of the understudy on images that nobody labels,
    interval: tuple[float, float]  # both ends of its 95 % interval,
    right: float  # and the share of the labels that are true
    tested: int  # images that nobody labels


def spend_labels(sketch: Sketch, settings: ThreePhaseSettings) -> LabelBill:
    """Account for the labels that linear instructors give, and train linear understudies on them."""
    spent = settings.labels or sketch.public
    there = f"there are {sketch.public} public images: ask for no more than that"
    require(spent <= sketch.public, f"{spent} labels, but {there}")
    aggregator = settings.aggregator()
    bills = [_composed_epsilons(aggregator, n, settings.delta) for n in LABEL_COUNTS]
    account = account_votes(aggregator, spent, settings.delta)
    scores = np.mean([_understudy(sketch, settings, spent, draw) for draw in range(DRAWS)], axis=0)
    accuracy, low, high, right = scores.tolist()
    return LabelBill(
        settings,
        account,
        accountant=min(account.composed, key=lambda way: account.composed[way]),
        composed={way: [bill[way] for bill in bills] for way in bills[0]},
        accuracy=accuracy,
        interval=(low, high),
        right=right,
        tested=len(sketch.images.test) - sketch.public,
    )


def _understudy(sketch: Sketch, settings: ThreePhaseSettings, spent: int, draw: int) -> tuple[float, ...]:
    """Accuracy of an understudy, both ends of its interval, and the share of its labels that are true."""
    features, truth, public = sketch.features(settings.sigma), sketch.images.test_labels, sketch.public
    labels = sketch.labels(settings, draw)[:spent]
    model = fit_linear(features[:spent], labels, sketch.images.classes)
    rate = rate_of((features[public:] @ model).argmax(axis=1) == truth[public:])
    return rate.value, *rate.interval, (labels == truth[:spent]).mean()


_composed_epsilons = lru_cache(maxsize=512)(composed_epsilons)
