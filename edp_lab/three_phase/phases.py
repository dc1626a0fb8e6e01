"""The thesis' three phases as one pipeline, and their actual guarantees.

Phase I adds noise to the pixels of training and test images (`perturbation`). Phase II trains N instructors on disjoint
parts of the training set, and the instructors vote on the labels of public images (`votes`). Phase III trains an
understudy on these labels, and only the understudy is released. The public images are nine tenths of the test set; the
last tenth is used for scoring.

The understudy's epsilon is the epsilon of its labels (`votes`), whatever the other phases do. Phase I does not protect
labels, phase II guarantees nothing without noise, and guarantees do not multiply. Raises UsageError before any training
if settings or data are invalid.

Source: Barzegar 2021, chapters 3 and 4; phases II and III are PATE (Papernot et al. 2017).
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edp_lab.corpora.images import Images
from edp_lab.errors import UsageError
from edp_lab.jobs import parallel, usable_cores
from edp_lab.models.image import ImageClassifier
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.privacy.guarantee import IDEAL, VOID
from edp_lab.three_phase.classifier import Classes, Scores, Trained, score_labels, train_classifier
from edp_lab.three_phase.perturbation import ImageGuarantee, Perturbation, compare, image_guarantee, perturb
from edp_lab.three_phase.settings import (
    HARD,
    NOT_PRIVATE,
    ONE,
    PLAIN,
    PUBLIC_SHARE,
    UNDERSTUDY,
    ClassifierSettings,
    ThreePhaseSettings,
)
from edp_lab.three_phase.votes import VoteAccount, account_votes, vote_counts
from edp_lab.training.run_files import versions

Rows = list[dict[str, Any]]

PARALLEL_FROM = 10_000  # training examples; with fewer, starting processes takes more time than it saves


@dataclass(frozen=True)
class Part:
    """One network, or the vote of all instructors."""

    name: str
    examples: int  # number of training examples
    scores: Scores
    rows: Rows  # per epoch: loss, test loss, accuracy, seconds; empty for a vote
    seconds: float  # training time
    conditional_epsilon: float | None  # for one training example, see `ThreePhaseRecord.status`
    image_epsilon: float | None  # for only the example's image, by any phase; None without a guarantee


@dataclass(frozen=True)
class Labels:
    """Accuracy of the labels that the vote assigned to the public images."""

    queries: int
    right: float  # share of correct labels
    right_without_noise: float  # share of correct labels with exact vote counts


@dataclass
class ThreePhaseRecord:
    """Record of one run. Fields of phases that were not run are empty or None."""

    settings: ThreePhaseSettings
    data: dict[str, Any]  # name, sizes and checksum
    pixels: dict[str, Perturbation] = field(default_factory=dict)  # "train" and "test" before and after phase I
    image_guarantee: ImageGuarantee | None = None  # guarantee of phase I
    parts: list[Part] = field(default_factory=list)
    labels: Labels | None = None  # labels of the vote
    privacy: VoteAccount | None = None  # privacy cost of the labels
    # `IDEAL` (the noise is floating-point), `VOID` (anyone who knows the seed can reproduce the noise), or "none".
    status: str = "none"
    versions: dict[str, str] = field(default_factory=dict)
    not_private: str = NOT_PRIVATE  # parts of this record that must not be published with the understudy

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def as_json(self) -> dict[str, Any]:
        """JSON-serialisable data; infinity, which JSON lacks, becomes null."""
        return _plain(asdict(self))  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- Networks, trained in one process or several ---------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """Progress report: a network has completed an epoch."""

    part: str
    epoch: int
    epochs: int
    loss: float
    accuracy: float


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Job:
    """A network to train, and the data to score it on after each epoch."""

    name: str
    settings: ClassifierSettings
    x: NDArray[np.float32]
    y: Classes
    test_x: NDArray[np.float32]
    test_y: Classes

    def train(self, listener: Listener = lambda event: None) -> Trained:
        epochs = self.settings.resolved(len(self.x)).epochs or 0

        def tell(row: dict[str, Any]) -> None:
            listener(Event(self.name, row["epoch"], epochs, row["loss"], row["accuracy"]))

        return train_classifier(self.settings, self.x, self.y, self.test_x, self.test_y, tell)


def usable_workers(examples: int) -> int:
    """Number of processes for training on this total number of examples: 1, or one per core."""
    return usable_cores() if examples >= PARALLEL_FROM else 1


def noised(images: Images, sigma: float, key: int) -> Images:
    """Phase I: add noise to the pixels of training and test images."""
    parts = enumerate((images.train, images.test))
    train, test = (perturb(part, sigma, stream(key, Purpose.NOISE, place)) for place, part in parts)
    return replace(images, train=train, test=test)


def disjoint_parts(images: Images, instructors: int, key: int) -> list[Images]:
    """Phase II: a training set for each instructor; an example's part depends only on its index."""
    order = stream(key, Purpose.SHUFFLE).permutation(len(images.train))
    parts = np.array_split(order, instructors)
    return [replace(images, train=images.train[part], train_labels=images.train_labels[part]) for part in parts]


# ---- The pipeline ----------------------------------------------------------------------------------------------------


def run_three_phase(
    settings: ThreePhaseSettings, images: Images, listener: Listener = lambda event: None
) -> ThreePhaseRecord:
    """Run the phases on `images`, train a plain model for comparison, and account for the understudy's privacy.

    Formal guarantee: `privacy` of the record, for the understudy and everything computed from it and public images.
    Neighbours differ by replacing one training example; its instructor depends only on its position. The guarantee
    assumes real numbers and an ideal random generator (see the caveats in `edp_lab.privacy.foundations`).

    Args:
        listener: called after every epoch; for instructors, only after the last one.
    """
    run = _Run(settings, images, listener)
    run.train_one(PLAIN)
    if 1 in settings.phases:
        run.phase_one()
    if 2 in settings.phases:
        run.phase_two()
    if {2, 3} & set(settings.phases):
        run.label()
    if 3 in settings.phases:
        run.phase_three()
    return run.record


class _Run:
    """State shared by the phases, and the record that they fill. Phase I adds noise to `images`."""

    def __init__(self, settings: ThreePhaseSettings, images: Images, listener: Listener) -> None:
        self.public = int(PUBLIC_SHARE * len(images.test))
        _check(settings, images, self.public)
        self.settings, self.images, self.listener = settings, images, listener
        self.key = secrets.randbits(128) if settings.private_seed else key_from_seed(f"three phases {settings.seed}")
        self.voters: list[ImageClassifier] = []
        self.answers = np.zeros(0, dtype=np.int64)
        sha256 = hashlib.sha256()
        for array in (images.train, images.train_labels, images.test, images.test_labels):
            sha256.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
        data = {"name": images.name, "shape": list(images.train.shape[1:]), "classes": images.classes}
        data |= {"train": len(images.train), "public": self.public, "test": len(images.test) - self.public}
        self.record = ThreePhaseRecord(settings, {**data, "sha256": sha256.hexdigest()}, versions=versions())

    def train_one(self, name: str) -> None:
        """Train a network on the whole training set: the plain model, or the only instructor."""
        job = self._job(name, self.images.train, self.images.train_labels, self.settings.method)
        trained = job.train(self.listener)
        self._keep(job, trained, trained.guarantee.conditional_epsilon)
        self.voters = [trained.model]

    def phase_one(self) -> None:
        """Add noise to all images; an instructor trained on all of them shows the effect on accuracy."""
        before, sigma = self.images, self.settings.sigma
        after = self.images = noised(before, sigma, self.key)
        self.record.pixels = {part: compare(getattr(before, part), getattr(after, part)) for part in ("train", "test")}
        self.record.image_guarantee = image_guarantee(after.train.shape[1:], sigma, self.settings.delta)
        self.train_one(ONE)

    def phase_two(self) -> None:
        """Train instructors on disjoint parts, and score their votes without noise."""
        examples, parts = len(self.images.train), disjoint_parts(self.images, self.settings.instructors, self.key)
        jobs = {
            i: self._job(f"instructor {i}", part.train, part.train_labels, self.settings.method)
            for i, part in enumerate(parts, 1)
        }
        finished: dict[int, Trained] = {}
        for i, result in parallel(Job.train, jobs, usable_workers(examples), "close other programs"):
            finished[i], last = result, result.rows[-1]
            self.listener(Event(jobs[i].name, last["epoch"], last["epoch"], last["loss"], last["accuracy"]))
        trained = [finished[i] for i in jobs]
        for job, done in zip(jobs.values(), trained, strict=True):
            self._keep(job, done, done.guarantee.conditional_epsilon)
        self.voters = [done.model for done in trained]
        # Parallel composition: votes are as private as the worst instructor, if all other examples keep their
        # instructor in the neighbouring data set. Splitting the other n - 1 examples again would move them, so this
        # epsilon is for removing an example and leaving its place empty.
        epsilons = [done.guarantee.conditional_epsilon for done in trained]
        worst = None if None in epsilons else max(epsilon for epsilon in epsilons if epsilon is not None)
        predicted = self._counts(slice(self.public, None)).argmax(axis=1)
        self._add(HARD, examples, predicted, worst, [], sum(part.seconds for part in self.record.parts[-len(jobs) :]))

    def label(self) -> None:
        """Label the public images by vote, and account for the privacy cost of the vote."""
        queries = self.settings.labels or self.public
        counts, aggregator = self._counts(slice(queries)), self.settings.aggregator()
        account = self.record.privacy = account_votes(aggregator, queries, self.settings.delta)
        if math.isfinite(account.epsilon):
            self.record.status = IDEAL if self.settings.private_seed else VOID
        self.answers = aggregator.labels(counts, stream(self.key, Purpose.NOISE, 2))
        truth = self.images.test_labels[:queries]
        self.record.labels = Labels(
            queries,
            right=float((self.answers == truth).mean()),
            right_without_noise=float((counts.argmax(axis=1) == truth).mean()),
        )

    def phase_three(self) -> None:
        """Train the understudy on the public images labelled by the vote."""
        account = self.record.privacy
        assert account is not None
        labelled = self.images.test[: len(self.answers)]
        job = self._job(UNDERSTUDY, labelled, self.answers, self.settings.understudy_method)
        # Epsilon depends only on the labels (T15): private training would protect images that are public and labels
        # that are already noisy.
        epsilon = account.epsilon if math.isfinite(account.epsilon) else None
        self._keep(job, job.train(self.listener), epsilon)

    def _job(self, name: str, x: NDArray[np.float32], y: Classes, method: str) -> Job:
        settings = self.settings.training(method, len(x), self.images.classes, name)
        return Job(name, settings, x, y, self.images.test[self.public :], self.images.test_labels[self.public :])

    def _counts(self, queries: slice) -> NDArray[np.int64]:
        """Number of votes for each class: (Q, K)."""
        predicted = [voter.predict(self.images.test[queries]) for voter in self.voters]
        return vote_counts(predicted, self.images.classes)

    def _keep(self, job: Job, trained: Trained, epsilon: float | None) -> None:
        seconds = sum(row["seconds"] for row in trained.rows)
        self._add(job.name, len(job.x), trained.model.predict(job.test_x), epsilon, trained.rows, seconds)

    def _add(
        self, name: str, examples: int, predicted: Classes, epsilon: float | None, rows: Rows, seconds: float
    ) -> None:
        scores = score_labels(self.images.test_labels[self.public :], predicted, self.images.classes)
        noise = self.record.image_guarantee
        image = min(noise.epsilon if noise else math.inf, math.inf if epsilon is None else epsilon)
        image_epsilon = image if math.isfinite(image) else None
        self.record.parts.append(Part(name, examples, scores, rows, seconds, epsilon, image_epsilon))


def _check(settings: ThreePhaseSettings, images: Images, public: int) -> None:
    sizes = np.bincount(images.train_labels, minlength=images.classes)
    rarest, fewest = int(sizes.argmin()), int(sizes.min())
    voters = settings.instructors if 2 in settings.phases else 1
    if voters > fewest:
        rare = f"class {rarest}, which has {fewest} training example{'' if fewest == 1 else 's'}"
        who = f"{voters} instructor{'' if voters == 1 else 's'}"
        raise UsageError(f"{who} cannot all see {rare}: use at most {fewest}")
    if not 0 < public < len(images.test):
        raise UsageError(f"a test set of {len(images.test)} is too small for labelling and testing: use at least 2")
    if (settings.labels or 0) > public:
        raise UsageError(f"{settings.labels} labels exceed the {public} public images: ask for at most that many")
