"""Attacks that need no more than a model's answers: extraction (copy the model) and inversion (draw its classes).

The thesis says that DP-Adam and an understudy prevent both (Barzegar 2021, sections 3.2.2 and 3.3). Differential
privacy bounds what one training example can change in a model, hence membership inference. It bounds neither of these:
a copy needs the model's answers and no training example; a class average is a fact about the population, which any
accurate model knows. The plainest proof is a victim that never saw a private image, "strangers": it is 0-DP towards
all of them, and both attacks succeed on it.

Sources: Tramer et al. 2016 (arXiv 1609.02943) and Orekondy et al. 2019 (arXiv 1812.02766) for extraction; Fredrikson
et al. 2015 for inversion, here without gradients by the estimate of Wierstra et al. 2014 (arXiv 1106.4487). Victims,
queries and inputs that there are not are refused by `UsageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from edp_lab.attacks.statistics import Interval, rate_of
from edp_lab.corpora.images import Images
from edp_lab.errors import UsageError
from edp_lab.models.image import ImageClassifier, build_classifier
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.three_phase.classifier import train_classifier
from edp_lab.three_phase.phases import run_three_phase
from edp_lab.three_phase.settings import PLAIN, UNDERSTUDY, ThreePhaseSettings

Pixels = NDArray[np.float32]
Labels = NDArray[np.int64]
Told = Callable[[str], None]

VICTIMS = ("plain", "instructor", "understudy", "dp-adam", "strangers")
INPUTS = ("public", "noise")
# No noise on the pixels, and less on the votes than the thesis has: with its 0.6 and 0.2, ten instructors on digits
# teach an understudy that is right one time in ten. There is nothing to steal from that one, and nothing to use.
SETTINGS = ThreePhaseSettings(phases=(2, 3), vote_epsilon=1.0)

STUDENT_STEPS, STUDENT_BATCH, STUDENT_RATE = 300, 32, 2e-3
DRAWN = 3  # images of each class
PAIRS, REACH = 10, 0.3  # probes on either side of an image at each step, and their distance per pixel
CLIMB, MOMENTUM, SMOOTHING = 0.2, 0.7, 0.1
WHITE_BOX_STEPS = 100


class Part(NamedTuple):
    images: Pixels  # (n, C, H, W) in [0, 1]
    labels: Labels  # (n)


class Shares(NamedTuple):
    """Whose images are whose; no image has two owners."""

    private: Part  # what the plain model, the instructors and DP-Adam are trained on
    public: Part  # other people's: the understudy learns them by noisy labels, "strangers" by their true ones
    pool: Part  # the attacker's, to query with
    test: Part  # where attacks are scored
    classes: int


class Victim(NamedTuple):
    """A model behind an API.

    `epsilon` is of one private training example (of the understudy replaced, of DP-Adam added or removed), had the seed
    been secret; None without a guarantee. `accuracy` is on the test share.
    """

    name: str
    model: ImageClassifier
    epsilon: float | None
    accuracy: float


@dataclass(frozen=True)
class ExtractionRow:
    """A copy of one victim, by so many queries. Intervals: 95 % over test images, given victim and copy."""

    victim: str
    epsilon: float | None
    victim_accuracy: float
    queries: int
    agreement: float  # share of test images on which copy and victim give the same class
    agreement_interval: Interval
    accuracy: float  # of the copy
    accuracy_interval: Interval
    guess_agreement: float  # of a copy that learnt random labels of the same inputs: what no query at all gives
    guess_agreement_interval: Interval
    # Of one that learnt their true labels: what an attacker who can label them himself has without the API; None where
    # the inputs are noise.
    own_labels_agreement: float | None


@dataclass(frozen=True)
class InversionRow:
    """Images drawn of every class, by so many queries each. Intervals: 95 % over images, as if independent."""

    victim: str
    epsilon: float | None
    victim_accuracy: float
    queries: int | None  # for one image; None for the white box, which climbs the model's own gradient
    images: int
    correlation: float  # with the private training images' average of the class, mean over the drawn images
    others: float  # the same with the averages of the other classes
    matched: float  # share closest to the average of its own class, each average less the mean of them all
    matched_interval: Interval
    judged: float  # share that a judge, trained on nobody's private images, takes for the class
    judged_interval: Interval
    guess_matched: float  # shares of images drawn from a network that was never trained
    guess_judged: float
    guess_judged_interval: Interval


class PredictionApi:
    """All an attacker has: images in, probabilities out, and a bill of `queries`, one for each image."""

    def __init__(self, model: ImageClassifier, labels_only: bool = False) -> None:
        self._model, self._labels_only, self.queries = model, labels_only, 0

    def query(self, images: Pixels) -> Pixels:
        """(n, C, H, W) -> (n, K); with labels only, 1 for the most probable class and 0 for all others."""
        self.queries += len(images)
        answers = self._model.probabilities(images)
        return _one_hot(answers.argmax(axis=1), answers.shape[1]) if self._labels_only else answers


# ---- Victims -----------------------------------------------------------------------------------------------


def share_out(images: Images) -> Shares:
    """Two thirds of the training set private, one public; two thirds of the test set for the attacker, one to score."""
    if images.train.ndim != 4:
        raise UsageError(f"the data set {images.name!r} has no images: choose digits or mnist")
    (private, public), (pool, test) = (
        (Part(x[: 2 * len(x) // 3], y[: 2 * len(y) // 3]), Part(x[2 * len(x) // 3 :], y[2 * len(y) // 3 :]))
        for x, y in ((images.train, images.train_labels), (images.test, images.test_labels))
    )
    return Shares(private, public, pool, test, images.classes)


def train_victims(
    shares: Shares, names: Sequence[str] = VICTIMS, settings: ThreePhaseSettings = SETTINGS, told: Told = lambda _: None
) -> list[Victim]:
    """Train the victims of those names, in their order."""
    if not names or not set(names) <= set(VICTIMS):
        unknown = next((name for name in names if name not in VICTIMS), "")
        raise UsageError(f"unknown victim {unknown!r}: choose some of {', '.join(VICTIMS)}")
    found: dict[str, tuple[ImageClassifier, float | None]] = {}
    if {"instructor", "understudy"} & set(names):
        # The plain model, the first instructor, and the understudy, who learns all public images and nothing else.
        images = Images("shares", *shares.private, *_joined(shares.public, shares.test), shares.classes)
        record = run_three_phase(
            replace(settings, labels=len(shares.public.labels)),
            images,
            lambda event: told(f"victim: {event.part}") if event.epoch == event.epochs else None,
        )
        instructor = "instructor 1" if 2 in settings.phases else "one instructor"
        parts = {"plain": PLAIN, "instructor": instructor, "understudy": UNDERSTUDY}
        found = {name: (record.models[part], record.part(part).epsilon) for name, part in parts.items()}
    victims = []
    for name in dict.fromkeys(names):
        if name not in found:
            told(f"victim: {name}")
            part = shares.public if name == "strangers" else shares.private
            method, own = "dp-adam" if name == "dp-adam" else "adam", PLAIN if name == "plain" else name
            trained = train_classifier(settings.training(method, len(part.labels), shares.classes, own), *part)
            found[name] = trained.model, 0.0 if name == "strangers" else trained.guarantee.epsilon
        model, epsilon = found[name]
        accuracy = float((model.predict(shares.test.images) == shares.test.labels).mean())
        victims.append(Victim(name, model, epsilon, accuracy))
    return victims


# ---- Extraction --------------------------------------------------------------------------------------------


def extract(
    victims: Sequence[Victim],
    shares: Shares,
    queries: Sequence[int],
    labels_only: bool = False,
    inputs: str = "public",
    seed: int = 0,
    told: Told = lambda _: None,
) -> list[ExtractionRow]:
    """Copy every victim at every number of queries, beside two copies that were made without it.

    `inputs`: "public", the first of the attacker's pool, or "noise", smooth random images of someone with no data.
    """
    rows, counts = [], check_queries(queries, 1)
    check_inputs(inputs, counts, shares)
    for count in counts:
        images, labels = shares.pool.images[:count], shares.pool.labels[:count]
        if inputs == "noise":
            images = _smooth_noise((count, *images.shape[1:]), key_from_seed(f"api attacks {seed}: inputs"))
        guesses = stream(key_from_seed(f"api attacks {seed}: guesses"), Purpose.SAMPLE)
        told(f"{count} queries: without the API")
        learn = partial(train_student, images, seed=seed)
        guessing = learn(_one_hot(guesses.integers(shares.classes, size=count), shares.classes))
        own = None if inputs == "noise" else learn(_one_hot(labels, shares.classes))
        for victim in victims:
            told(f"{count} queries: {victim.name}")
            copy = learn(PredictionApi(victim.model, labels_only).query(images))
            says, copied, guessed = (m.predict(shares.test.images) for m in (victim.model, copy, guessing))
            of_own = None if own is None else float((own.predict(shares.test.images) == says).mean())
            right = copied == shares.test.labels
            shown = (*rate_of(copied == says), *rate_of(right), *rate_of(guessed == says), of_own)
            rows.append(ExtractionRow(victim.name, victim.epsilon, victim.accuracy, count, *shown))
    return sorted(rows, key=lambda row: [victim.name for victim in victims].index(row.victim))


def train_student(images: Pixels, answers: Pixels, seed: int = 0) -> ImageClassifier:
    """Learn answers (n, K), one distribution over the classes for each of images (n, C, H, W).

    A CNN with rectified units, where the victims have tanh: the attacker need not know how they are built.
    """
    key = key_from_seed(f"api attacks {seed}: student")
    model = build_classifier("cnn", images.shape[1:], answers.shape[1], key % 2**32, "relu")
    rng, x, y = stream(key, Purpose.SHUFFLE), torch.from_numpy(images), torch.from_numpy(answers)
    optimizer = torch.optim.Adam(model.parameters(), STUDENT_RATE)
    for step in range(STUDENT_STEPS):
        optimizer.param_groups[0]["lr"] = STUDENT_RATE * (1 - step / STUDENT_STEPS)
        chosen = torch.from_numpy(rng.integers(len(x), size=min(STUDENT_BATCH, len(x))))
        optimizer.zero_grad()
        F.cross_entropy(model.logits(x[chosen]), y[chosen]).backward()
        optimizer.step()
    return model


def check_queries(queries: Sequence[int], least: int) -> list[int]:
    """In order, each once."""
    if not queries or min(queries) < least:
        raise UsageError(f"queries are {min(queries, default='none')}: give numbers of at least {least}")
    return sorted(set(queries))


def check_inputs(inputs: str, queries: Sequence[int], shares: Shares) -> None:
    """Refuses inputs that `extract` has not, or not as many of."""
    if inputs not in INPUTS:
        raise UsageError(f"unknown inputs {inputs!r}: choose {' or '.join(INPUTS)}")
    if inputs == "public" and max(queries) > len(shares.pool.labels):
        raise UsageError(
            f"{max(queries)} queries, but the attacker has {len(shares.pool.labels)} public images: ask for no more "
            "than that, or take noise as inputs"
        )


def _smooth_noise(shape: tuple[int, ...], key: int) -> Pixels:
    """Stretched to [0, 1]; smoothed, because noise that varies from pixel to pixel is of one class to a network."""
    noise = _blurred(stream(key, Purpose.SAMPLE).standard_normal(shape, dtype=np.float32))
    low, high = (end(noise, axis=(1, 2, 3), keepdims=True) for end in (np.min, np.max))
    return (noise - low) / (high - low)  # type: ignore[no-any-return]


# ---- Inversion ---------------------------------------------------------------------------------------------


def invert(
    victims: Sequence[Victim],
    shares: Shares,
    queries: Sequence[int],
    labels_only: bool = False,
    seed: int = 0,
    told: Told = lambda _: None,
) -> list[InversionRow]:
    """Draw every class of every victim at every number of queries; with probabilities, also by the white box.

    The judge learns the attacker's pool and the test share, which no victim was trained on.
    """
    counts: list[int | None] = [*check_queries(queries, 2), *([] if labels_only else [None])]
    told("judge")
    judged = _joined(shares.pool, shares.test)
    judge = train_student(judged.images, _one_hot(judged.labels, shares.classes), seed + 1)
    untrained = build_classifier("cnn", shares.private.images.shape[1:], shares.classes, seed, "tanh")
    averages = class_averages(shares.private, shares.classes)
    wanted = np.tile(np.arange(shares.classes), DRAWN)

    def drawn(model: ImageClassifier, count: int | None) -> tuple[Any, ...]:
        """The columns of a row on images drawn of this model, from `correlation` to `judged_interval`."""
        rng = stream(key_from_seed(f"api attacks {seed}: drawn"), Purpose.SAMPLE)
        if count is None:
            images = draw_by_gradient(model, wanted, rng)
        else:
            images = draw_by_queries(PredictionApi(model, labels_only), wanted, model.shape, count, rng)
        found = correlations(images, averages)
        own = found[np.arange(len(wanted)), wanted]
        others = (found.sum(axis=1) - own) / (len(averages) - 1)
        closest = correlations(images, averages - averages.mean(axis=0)).argmax(axis=1)
        hits = rate_of(closest == wanted), rate_of(judge.predict(images) == wanted)
        return float(own.mean()), float(others.mean()), *hits[0], *hits[1]

    guesses, rows = {count: drawn(untrained, count) for count in counts}, []
    for victim in victims:
        for count in counts:
            told(f"{victim.name}: {'white box' if count is None else f'{count} queries'}")
            _, _, guess_matched, _, *guess_judged = guesses[count]
            shown = (*drawn(victim.model, count), guess_matched, *guess_judged)
            rows.append(InversionRow(victim.name, victim.epsilon, victim.accuracy, count, len(wanted), *shown))
    return rows


def draw_by_queries(
    api: PredictionApi, wanted: Labels, shape: Sequence[int], queries: int, rng: np.random.Generator
) -> Pixels:
    """One image (n, *shape) for each of the `wanted` classes (n), by at most `queries` queries, at least 2, for each.

    The slope of log p is estimated from pairs of answers at random offsets on either side (Wierstra et al. 2014).
    """
    pairs = min(PAIRS, queries // 2)
    place = np.arange(len(wanted))

    def slope(images: Pixels) -> Pixels:
        offsets = rng.standard_normal((pairs, *images.shape), dtype=np.float32)
        probes = np.concatenate([images + REACH * offsets, images - REACH * offsets]).clip(0, 1)
        answers = api.query(probes.reshape(-1, *shape)).reshape(2, pairs, len(wanted), -1)
        up, down = np.log(answers[:, :, place, wanted] + 1e-6)
        return np.einsum("pn,pn...->n...", up - down, offsets, dtype=np.float32)

    return _climb(slope, (len(wanted), *shape), rng, queries // (2 * pairs))


def draw_by_gradient(model: ImageClassifier, wanted: Labels, rng: np.random.Generator) -> Pixels:
    """The same by whoever holds the model: 100 steps along its own gradient."""

    def slope(images: Pixels) -> Pixels:
        x = torch.from_numpy(images).requires_grad_()
        loss = F.cross_entropy(model.logits(x), torch.from_numpy(wanted), reduction="sum")
        return -torch.autograd.grad(loss, x)[0].numpy()

    return _climb(slope, (len(wanted), *model.shape), rng, WHITE_BOX_STEPS)


def class_averages(part: Part, classes: int) -> NDArray[np.float64]:
    """(K, pixels)."""
    flat = part.images.reshape(len(part.images), -1).astype(np.float64)
    return np.stack([flat[part.labels == label].mean(axis=0) for label in range(classes)])


def correlations(images: Pixels, averages: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of images (n, ...) with averages (K, pixels), over pixels: (n, K); 0 for an image of one shade."""
    a, b = (x - x.mean(axis=1, keepdims=True) for x in (images.reshape(len(images), -1).astype(np.float64), averages))
    lengths = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    return np.divide(a @ b.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def _climb(slope: Callable[[Pixels], Pixels], shape: tuple[int, ...], rng: np.random.Generator, steps: int) -> Pixels:
    """Upwards by `slope`, within [0, 1], smoothed a little after each step: natural images are."""
    # From grey, with a little noise so that the images of a class differ.
    images = 0.5 + 0.1 * rng.standard_normal(shape, dtype=np.float32)
    velocity = np.zeros_like(images)
    for step in range(steps):
        up = slope(images)
        up = up / (np.sqrt(np.square(up).mean(axis=(1, 2, 3), keepdims=True)) + 1e-9)
        velocity = MOMENTUM * velocity + (1 - MOMENTUM) * up
        images = (images + CLIMB * (1 - step / (2 * steps)) * velocity).clip(0, 1)
        images = (1 - SMOOTHING) * images + SMOOTHING * _blurred(images)
    return images


def _blurred(images: Pixels) -> Pixels:
    return F.avg_pool2d(torch.from_numpy(images), 3, stride=1, padding=1).numpy()  # type: ignore[no-any-return]


def _joined(one: Part, other: Part) -> Part:
    return Part(np.concatenate([one.images, other.images]), np.concatenate([one.labels, other.labels]))


def _one_hot(labels: Labels, classes: int) -> Pixels:
    return np.eye(classes, dtype=np.float32)[labels]
