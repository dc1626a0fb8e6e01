"""What a run of the three phases is asked for, and what it leaves behind: settings, scores, parts and the record."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from edp_lab.errors import UsageError
from edp_lab.models.image import ImageClassifier
from edp_lab.privacy.accountant import check_delta
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.three_phase.classifier import ClassifierSettings
from edp_lab.three_phase.pate import VoteAccount
from edp_lab.three_phase.perturbation import ImageGuarantee, Perturbation, check_sigma
from edp_lab.three_phase.votes import Aggregator

FEWEST_STEPS = 300  # of a network without privacy, however few its examples
SMALL, SMALL_BATCH, BATCH = 5000, 32, 64  # up to so many examples, smaller batches
NOT_PRIVATE = (
    "scores and losses of all but the understudy, the votes, their statistics, the data-dependent epsilon, statistics "
    "of the pixels, checksum and size of the data, the record's own digest, and whether and where a run failed"
)


@dataclass(frozen=True)
class ThreePhaseSettings:
    """One run of the pipeline.

    Attributes:
        model: "cnn", "alexnet" or "vgg", for instructors and understudy alike.
        phases: which of 1, 2 and 3 take part. Without 2 there is one instructor, on all training examples.
        instructors: N.
        sigma: standard deviation of the noise on a pixel, phase I.
        vote, vote_epsilon: see `edp_lab.three_phase.votes`; epsilon is that of one label.
        labels: public images put to the vote, from the first on; None: all.
        method, understudy_method: of training, see `ClassifierSettings`; the thesis has "dp-adam" for both.
        train_epsilon: of each network whose method is private, at `delta`.
        epochs: of every network; None: as many as its examples need.
        private_seed: draw the keys of all noise from the operating system, and forget them.
        workers: processes that train instructors, of one thread each; None: one, or for large data one per core.

    Raises:
        UsageError: a value that makes no sense.
    """

    model: str = "cnn"
    phases: tuple[int, ...] = (1, 2, 3)
    instructors: int = 10
    sigma: float = 0.6
    vote: str = "laplace"
    vote_epsilon: float = 0.2
    labels: int | None = None
    method: str = "adam"
    understudy_method: str = "adam"
    train_epsilon: float = 7.0
    delta: float = 1e-5
    epochs: int | None = None
    seed: int = 0
    private_seed: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", tuple(sorted(set(self.phases))))
        if not self.phases or not set(self.phases) <= {1, 2, 3}:
            raise UsageError(f"phases are {', '.join(map(str, self.phases)) or 'none'}: choose some of 1, 2 and 3")
        for name in ("instructors", "labels", "workers", "epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"the number of {name} is {value}: it must be at least 1")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}: it must be 0 or more")
        for of, epsilon in (("a vote", self.vote_epsilon), ("a private training", self.train_epsilon)):
            if not 0 < epsilon < math.inf:  # also where nothing uses it
                raise UsageError(f"the epsilon of {of} is {epsilon}: it must be a finite number greater than 0")
        check_sigma(self.sigma)
        check_delta(self.delta)
        self.aggregator()
        for method in (self.method, self.understudy_method):
            self.training(method, 1000, 10, "")

    @property
    def voters(self) -> int:
        return self.instructors if 2 in self.phases else 1

    def aggregator(self) -> Aggregator:
        return Aggregator.for_epsilon(self.vote, self.vote_epsilon, self.delta, self.voters)

    def training(self, method: str, examples: int, classes: int, name: str) -> ClassifierSettings:
        """How the network of that name is trained on so many examples."""
        seed = key_from_seed(f"three phases {self.seed}: {name}") % 2**32
        given = ClassifierSettings(self.model, method=method, delta=self.delta, classes=classes, seed=seed)
        if given.private:
            return replace(given, epochs=self.epochs, epsilon=self.train_epsilon, private_seed=self.private_seed)
        batch = min(SMALL_BATCH if examples <= SMALL else BATCH, examples)
        epochs = self.epochs or max(5, math.ceil(FEWEST_STEPS / math.ceil(examples / batch)))
        return replace(given, batch_size=batch, epochs=epochs)


@dataclass(frozen=True)
class Scores:
    """On the last tenth of the test set.

    Attributes:
        interval: of the accuracy, 95 % by Clopper and Pearson.
        precision, recall, f_score: means over the classes; 0 for a class that is never predicted, or not there.
        confusion: [true][predicted] counts.
    """

    accuracy: float
    interval: tuple[float, float]
    precision: float
    recall: float
    f_score: float
    confusion: list[list[int]]


def score_labels(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> Scores:
    """Accuracy, and precision, recall and F-score averaged over classes: (n), (n) -> numbers; n at least 1."""
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (truth, predicted), 1)
    right, total = np.diag(confusion), int(confusion.sum())
    precision = right / np.maximum(confusion.sum(axis=0), 1)
    recall = right / np.maximum(confusion.sum(axis=1), 1)
    f_score = 2 * precision * recall / np.maximum(precision + recall, 1e-300)
    hits = int(right.sum())
    low = float(betaincinv(hits, total - hits + 1, 0.025)) if hits else 0.0
    high = float(betaincinv(hits + 1, total - hits, 0.975)) if hits < total else 1.0
    means = [float(values.mean()) for values in (precision, recall, f_score)]
    return Scores(hits / total, (low, high), means[0], means[1], means[2], confusion.tolist())


@dataclass(frozen=True)
class Part:
    """One network, or the vote of all.

    Attributes:
        examples: it was trained on.
        rows: of each epoch: loss, test loss, accuracy, seconds; none for a vote.
        seconds: of training.
        epsilon: of one private training example, image and label; None where nothing is guaranteed.
        image_epsilon: of its image alone, by phase I or `epsilon`; None where neither says anything.
        why: what epsilon rests on, or why there is none.
    """

    name: str
    examples: int
    scores: Scores
    rows: list[dict[str, Any]]
    seconds: float
    epsilon: float | None
    image_epsilon: float | None
    why: str


@dataclass(frozen=True)
class Labels:
    """What the vote said about the public images.

    Attributes:
        queries, answered: asked, and answered: a confident vote may decline.
        right: share of the answers that are true; right_without_noise: of the same votes, counted exactly.
        unanimous: share of the queries on which all instructors agree.
        unanimous_survives: the chance that noise leaves the label of such a query as it is.
    """

    queries: int
    answered: int
    right: float
    right_without_noise: float
    unanimous: float
    unanimous_survives: float


@dataclass(frozen=True)
class Comparison:
    """A row of the claims on the thesis (T1 to T27) or a section, what it says, and what this run shows."""

    row: str
    thesis: str
    here: str


@dataclass(frozen=True)
class ThreePhaseRecord:
    """Everything about one run.

    Attributes:
        data: name, sizes and checksum.
        pixels: "train" and "test" before and after phase I.
        image_guarantee: of phase I; labels, privacy: of the vote; None where that phase has no part in the run.
        seconds: of one instructor on everything, of all N as the clock saw it, and how many processes shared them.
        status: of the guarantee: "holds"; "void: seed published", since whoever knows it can redraw the noise; "none".
        not_private: what of this record must not be published together with the understudy.
        digest: of all this but times, versions and workers: equal for equal runs on one machine.
        models: the networks by name of their part, for attacks; not in the file.
    """

    settings: ThreePhaseSettings
    data: dict[str, Any]
    pixels: dict[str, Perturbation]
    image_guarantee: ImageGuarantee | None
    parts: list[Part]
    labels: Labels | None
    privacy: VoteAccount | None
    seconds: dict[str, float]
    status: str
    comparisons: list[Comparison]
    versions: dict[str, str]
    not_private: str = NOT_PRIVATE
    digest: str = ""
    models: dict[str, ImageClassifier] = field(default_factory=dict, repr=False, compare=False)

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def as_json(self) -> dict[str, Any]:
        """Plain data; infinity, which JSON does not have, is null."""
        fields = asdict(replace(self, models={}))
        del fields["models"]
        return _plain(fields)  # type: ignore[no-any-return]

    def with_digest(self) -> ThreePhaseRecord:
        untimed = [replace(p, seconds=0.0, rows=[{**row, "seconds": 0.0} for row in p.rows]) for p in self.parts]
        settings = replace(self.settings, workers=None)
        settled = replace(self, settings=settings, parts=untimed, seconds={}, versions={}, comparisons=[], digest="")
        text = json.dumps(settled.as_json(), sort_keys=True)
        return replace(self, digest=hashlib.sha256(text.encode()).hexdigest())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
