"""Reproduce the thesis' tables: our scores and the guaranteed epsilons, compared with the printed values.

    lab = Lab(Path("runs/reproduce-thesis"), QUICK)
    for row in reproduce(lab, ["4.4"]):
        print(row.name, row.printed, row.ours, row.confusion, row.loss, row.seconds)

Finished networks are saved in the folder, so a killed run can resume, and tables share networks. Seeds are published
to make tables repeatable. Every epsilon is the one that the same noise would guarantee with a secret seed.

Source: Barzegar 2021. Scores are in percent, as printed. Table 2.2 is in notebook 01.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edp_lab.corpora.images import Images, load_images, two_circles
from edp_lab.files import writable
from edp_lab.jobs import content_key, kept_results, read_result
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.privacy.foundations import gaussian_epsilon
from edp_lab.three_phase.classifier import Scores, score_labels
from edp_lab.three_phase.perturbation import image_guarantee
from edp_lab.three_phase.phases import Job, disjoint_parts, noised, usable_workers
from edp_lab.three_phase.settings import PRIVATE_METHODS, PUBLIC_SHARE, ClassifierSettings
from edp_lab.three_phase.votes import Aggregator, account_votes, vote_counts

SIGMA, DELTA = 0.6, 1e-5  # noise of phase I; delta of all tables except 4.8
PHASE_ONE = (2.5, DELTA)  # sections 3.1.1 and 3.5, for sigma 0.6
DP_ADAM = (7.0, DELTA)  # captions of figure 4.6, and chapter 6
LABELS = (0.2, 0.0)  # section 4.2, for the labels; the thesis does not state their number
BY_DP_ADAM: dict[str, Any] = {"method": "dp-adam", "epsilon": DP_ADAM[0], "delta": DP_ADAM[1]}
MODELS = {"Simple CNN": "cnn", "Alex-Net": "alexnet", "VGG-Net": "vgg"}
TRAIN_SIZES = (100, 1000, 5000, 10_000, 100_000)
SCORES = ("accuracy", "F-score", "recall", "precision")
CIRCLES_TEST = 10_000
POINT_SENSITIVITY = 2.0  # largest distance between two points of the unit disc


# ---- Printed tables --------------------------------------------------------------------------------------------------


class Printed(NamedTuple):
    """A table as printed in the thesis."""

    title: str
    rows: Mapping[str, tuple[float | None, ...]]  # one value per column
    claimed: Mapping[str, tuple[float, float]] = {}  # epsilon and delta as stated, by row; "" for all rows

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names: all scores, or only the accuracy."""
        return SCORES[: len(next(iter(self.rows.values())))]

    def claim(self, row: str) -> float | None:
        """The claimed epsilon of a row."""
        return self.claimed.get(row, self.claimed.get("", (None,)))[0]


def _circles(privacy: str, epsilon: float | None, *accuracies: float) -> Printed:
    rows = {f"{size} points": (value,) for size, value in zip(TRAIN_SIZES, accuracies, strict=True)}
    claimed = {} if epsilon is None else {"": (epsilon, DELTA)}  # delta from section 3.1.1; the table states no delta
    return Printed(f"perceptron on two circles, {privacy}", rows, claimed)


TABLES = {
    "4.1": _circles("no privacy", None, 93.89, 94.71, 94.87, 99.99, 99.99),
    "4.2": _circles("epsilon 0.2", 0.2, 74.033, 83.668, 84.113, 83.953, 84.953),
    "4.3": _circles("epsilon 0.4", 0.4, 84.900, 84.800, 86.990, 86.209, 87.426),
    "4.4": Printed(
        "MNIST without privacy",
        {"Simple CNN": (98, 97, 98, 97), "Alex-Net": (99, 98, 98, 98), "VGG-Net": (99, 99, 99, 99)},
    ),
    "4.5": Printed(
        "MNIST after phase I, noise on the images",
        {"Simple CNN": (97, 96, 97, 96), "Alex-Net": (98, 98, 96, 98), "VGG-Net": (98, 98, 98, 98)},
        {"": PHASE_ONE},
    ),
    "4.6": Printed(
        "MNIST after phases I and II, ten instructors trained with DPAdam",
        {"DP-Simple CNN": (95, 95, 94, 95), "DP-Alex-Net": (96, 96, 97, 96), "DP-VGG-Net": (97, 97, 97, 97)},
        {"": DP_ADAM},
    ),
    "4.7": Printed(
        "MNIST after phases I, II and III, the understudy",
        # For DP-Alex-Net, the text prints three values for four columns.
        {"DP-Simple CNN": (95, 96, 95, 96), "DP-Alex-Net": (96, 96, 96, None), "DP-VGG-Net": (97, 97, 96, 97)},
        {"": LABELS},
    ),
    "4.8": Printed(
        "VGG trained with DPAdam, at delta 1e-6",
        {
            "epsilon 1": (90, 91, 90, 90),
            "epsilon 2": (93, 92, 93, 92),
            "epsilon 5": (95, 94, 94, 95),
            "epsilon 10": (98, 98, 98, 98),
        },
        {f"epsilon {epsilon}": (epsilon, 1e-6) for epsilon in (1, 2, 5, 10)},
    ),
    "6.1": Printed(
        "MNIST compared with other work",
        # The thesis has a fifth row, 80 % by Shokri et al., with an epsilon per parameter.
        {"no privacy, Adam": (99,), "no privacy, SGD": (98,), "DPSGD": (97,), "DPAdam": (97.3,)},
        {"DPSGD": (10, DELTA), "DPAdam": (10, DELTA)},
    ),
    "6.2": Printed(
        "MNIST, CNN, DPAdam compared with Abadi et al., at delta 1e-5",
        {
            **{f"DPSGD, epsilon {epsilon}": (value,) for epsilon, value in ((7, 97), (5, 94), (2, 91))},
            **{f"DPAdam, epsilon {epsilon}": (value,) for epsilon, value in ((7, 97.3), (5, 95), (2, 91.7))},
        },
        {f"{name}, epsilon {epsilon}": (epsilon, DELTA) for name in ("DPSGD", "DPAdam") for epsilon in (7, 5, 2)},
    ),
}


@dataclass(frozen=True)
class Row:
    """One row of a table: our values and the printed values."""

    table: str
    name: str
    printed: dict[str, float]  # by column
    ours: dict[str, float]
    # 95 % Clopper-Pearson interval of our accuracy, over the test images of all repeats; for circles, the range from
    # the lowest to the highest repeat.
    interval: tuple[float, float] | None = None
    claimed_epsilon: float | None = None  # claimed in the thesis
    epsilon_if_seed_secret: float | None = None  # for one example with its label; None without a guarantee
    epsilon_image: float | None = None  # the same for only the example's image or point
    delta: float | None = None  # delta of both epsilons; None without a guarantee
    note: str = ""  # settings that the thesis does not specify (T19, T27), and other remarks
    seconds: float = 0.0  # total training time of all networks of this row
    confusion: list[list[int]] = field(default_factory=list, repr=False)  # [true][predicted] counts
    loss: list[float] = field(default_factory=list, repr=False)  # loss per epoch, mean over networks
    test_loss: list[float] = field(default_factory=list, repr=False)  # the same on the test examples


# ---- Networks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """Amount of training. If a number of epochs is None, the classifier's default is used."""

    data: str  # "digits" or "mnist"
    repeats: int  # repeats of training on images, with different seeds
    circle_repeats: int  # repeats of training on circles
    circle_steps: int  # minimum number of steps on circles
    sizes: tuple[int, ...] = TRAIN_SIZES  # sizes of the training sets of circles
    epochs: int | None = None  # for networks on all training images, without privacy
    part_epochs: int | None = None  # for networks on an instructor's part
    private_epochs: int | None = None  # for networks with privacy
    private_part_epochs: int | None = None
    instructors: int = 10


QUICK = Scale("digits", 1, 3, 300, TRAIN_SIZES, 17, 30, 20, 12)
FULL = Scale("mnist", 3, 10, 2000, private_part_epochs=30)


class Network(NamedTuple):
    """A trained network, without its weights."""

    predicted: NDArray[np.int64]  # (n) predicted labels of the test examples
    rows: list[dict[str, Any]]  # see `edp_lab.three_phase.classifier.Trained`
    epsilon: float | None  # guaranteed
    record: dict[str, Any]

    @property
    def seconds(self) -> float:
        return sum(row["seconds"] for row in self.rows)

    @property
    def chosen(self) -> str:
        """Text of the settings that the thesis does not specify."""
        r = self.record
        text = f"{r['method']}, {r['activation']}, lr {r['lr']:g}, batch {r['batch_size']}, {r['epochs']} epochs"
        text += f", weight decay {r['weight_decay']:g}" if r["weight_decay"] else ""
        if r["mechanism"] is None:
            return text
        return f"{text}, C {r['clip_norm']:g}, noise multiplier {r['mechanism']['z0']:.3g}"


class Lab:
    """Train the networks that the tables need, each network only once.

    Args:
        out: folder for finished networks.
        tell: called with a line of progress, and whether the line is worth keeping.

    Raises UsageError if the folder cannot be written or the data are unknown.
    """

    def __init__(self, out: Path, scale: Scale, seed: int = 0, tell: Callable[[str, bool], None] | None = None) -> None:
        self.scale, self.seed, self.repeats = scale, seed, range(scale.repeats)
        self.tell = tell or (lambda line, kept: None)
        self.known: dict[tuple[int, float], Images] = {}
        self.public = int(PUBLIC_SHARE * len(self.images(0).test))  # number of (first) test images to label
        self.cells = writable(out / "cells", "choose another --out")

    def images(self, repeat: int, sigma: float = 0.0) -> Images:
        """Data of one repeat, with noise on the pixels of training and test images (phase I)."""
        if (repeat, sigma) not in self.known:
            images = load_images(self.scale.data, self.seed + repeat)
            self.known[repeat, sigma] = noised(images, sigma, self._key(repeat, f"pixels, sigma {sigma:g}"))
        return self.known[repeat, sigma]

    @property
    def image_epsilon(self) -> float:
        """Epsilon for an image without its label, guaranteed by phase I's noise on the pixels."""
        return image_guarantee(self.images(0).train.shape[1:], SIGMA, DELTA).epsilon

    def _key(self, repeat: int, name: str) -> int:
        return key_from_seed(f"thesis {self.seed + repeat}: {name}")

    def job(self, name: str, repeat: int, data: Images, part: bool = False, method: str = "adam", **given: Any) -> Job:
        """Describe a network to train, with tanh by default: under noise, the thesis' ReLU networks may not learn."""
        s, private = self.scale, method in PRIVATE_METHODS
        epochs = ((s.private_epochs, s.private_part_epochs) if private else (s.epochs, s.part_epochs))[part]
        defaults = {"epochs": epochs, "classes": data.classes, "seed": self._key(repeat, name) % 2**32}
        settings = ClassifierSettings(method=method, **{**defaults, **given})
        return Job(name, settings, data.train, data.train_labels, data.test, data.test_labels)

    def networks(self, name: str, **given: Any) -> list[Network]:
        """Networks trained on all training images, one per repeat. Different settings need different names."""
        return self.train([self.job(name, repeat, self.images(repeat), **given) for repeat in self.repeats])

    def instructors(self, name: str, repeat: int, **given: Any) -> list[Network]:
        """Phase II: one network per part of the noised training images; parts depend only on positions in the set."""
        count = self.scale.instructors
        parts = disjoint_parts(self.images(repeat, SIGMA), count, self._key(repeat, "parts"))
        named = f"{name}, noise {SIGMA:g} on the images, instructor {{}} of {count}".format
        return self.train([self.job(named(k), repeat, part, True, **given) for k, part in enumerate(parts, 1)])

    def ensembles(self, name: str, **given: Any) -> list[list[Network]]:
        """The instructors of each repeat."""
        return [self.instructors(name, repeat, **given) for repeat in self.repeats]

    def understudy(
        self, name: str, repeat: int, voters: Sequence[Network], vote: Aggregator, **given: Any
    ) -> tuple[Network, float]:
        """Phase III: train a network on the first nine tenths of the noised test images, as labelled by `voters`.

        Returns: the network, and the share of its labels that are correct.
        """
        data, public = self.images(repeat, SIGMA), self.public
        counts = vote_counts([voter.predicted[:public] for voter in voters], data.classes)
        noise = stream(self._key(repeat, f"{vote.vote} vote, {name}"), Purpose.NOISE)
        labels = vote.labels(counts, noise)
        last_tenth = data.test[public:], data.test_labels[public:]
        seen = Images(data.name, data.test[:public], labels, *last_tenth, data.classes)
        [network] = self.train([self.job(f"{name}: understudy, {vote.vote} vote", repeat, seen, **given)])
        return network, float(np.mean(labels == data.test_labels[:public]))

    def perceptrons(self, size: int, sigma: float) -> tuple[list[Network], list[float]]:
        """Section 4.1: one perceptron per repeat, with its accuracy in percent on points with the same noise."""
        batch = min(256, max(16, size // 8))
        epochs = math.ceil(self.scale.circle_steps / math.ceil(size / batch))
        given: dict[str, Any] = {"model": "mlp", "activation": "relu", "lr": 0.02}
        name, jobs = f"perceptron, {size} points with noise {sigma:g}", []
        for repeat in range(self.scale.circle_repeats):
            data = two_circles(size, CIRCLES_TEST, self.seed + repeat + 1, sigma)  # the thesis' seed is 1
            jobs.append(self.job(name, repeat, data, epochs=epochs, batch_size=batch, **given))
        networks = self.train(jobs)
        return networks, [100 * float(np.mean(o.predicted == j.test_y)) for o, j in zip(networks, jobs, strict=True)]

    def train(self, jobs: Sequence[Job]) -> list[Network]:
        """Network of each job; networks missing in the folder are trained in parallel and saved there."""
        keys = [content_key(["classifier"], *list(vars(job).values())[1:]) for job in jobs]  # without the job's name
        missing = sum(len(job.x) for job, key in zip(jobs, keys, strict=True) if read_result(self.cells, key) is None)

        def progress(done: int) -> None:
            if missing:
                self.tell(f"{jobs[0].name}: {done} of {len(jobs)} networks are trained", True)

        results = kept_results(self.cells, keys, jobs, _trained, usable_workers(missing), progress)
        return [Network(**{**result, "predicted": np.array(result["predicted"])}) for result in results]

    def scores(self, ensembles: Sequence[Sequence[Network]], start: int = 0) -> Scores:
        """Score the noiseless votes of each repeat's networks, on the test images of all repeats from `start` on."""
        truth = np.concatenate([self.images(repeat).test_labels[start:] for repeat in self.repeats])
        counts = [vote_counts([network.predicted for network in ten], self.images(0).classes) for ten in ensembles]
        return score_labels(truth, np.concatenate(counts).argmax(axis=1), self.images(0).classes)


def _trained(job: Job) -> dict[str, Any]:
    """Train a network; return the fields of `Network`."""
    trained = job.train()
    record = {name: value for name, value in trained.record.items() if name != "rows"}
    predicted = trained.model.predict(job.test_x).tolist()
    epsilon = trained.guarantee.conditional_epsilon
    return {"predicted": predicted, "rows": trained.rows, "epsilon": epsilon, "record": record}


def largest(networks: Iterable[Network]) -> float:
    """Largest epsilon of networks on disjoint parts, or of several repeats; inf if a network has no guarantee."""
    return max(math.inf if network.epsilon is None else network.epsilon for network in networks)


def row(table: str, name: str, ours: Sequence[float], **more: Any) -> Row:
    """Make a row of our values and the printed values of the same name; `more`: other fields of `Row`."""
    print_ = TABLES[table]
    values = zip(print_.columns, print_.rows[name], strict=True)
    printed = {column: value for column, value in values if value is not None}
    scores = dict(zip(print_.columns, ours, strict=False))
    return Row(table, name, printed, scores, claimed_epsilon=print_.claim(name), **more)


def score_row(
    lab: Lab,
    table: str,
    name: str,
    voters: Iterable[Sequence[Network]],
    note: str = "",
    epsilon: float | None = None,
    image: float | None = None,
    delta: float = DELTA,
    start: int = 0,
) -> Row:
    """Make a row of accuracy, F-score, recall and precision, or only of the accuracy.

    Args:
        voters: the networks of each repeat, which vote without noise.
        epsilon, image, delta: guaranteed epsilon for an example, and for only its image if that differs; their delta.
        start: index of the first test image to score.
    """
    voters, image = [*voters], epsilon if image is None else image
    networks, scores = list(chain(*voters)), lab.scores(voters, start)
    loss, test_loss = (
        np.mean([[epoch[name] for epoch in network.rows] for network in networks], axis=0).tolist()
        for name in ("loss", "test_loss")
    )
    return row(
        table,
        name,
        [100 * value for value in (scores.accuracy, scores.f_score, scores.recall, scores.precision)],
        interval=(100 * scores.interval[0], 100 * scores.interval[1]),
        epsilon_if_seed_secret=epsilon,
        epsilon_image=image,
        delta=None if image is None else delta,
        note=f"{note}; {networks[0].chosen}" if note else networks[0].chosen,
        seconds=sum(network.seconds for network in networks),
        confusion=scores.confusion,
        loss=loss,
        test_loss=test_loss,
    )


# ---- Two circles: section 4.1 ----------------------------------------------------------------------------------------


def circle_sigma(epsilon: float | None) -> float:
    """Noise for a claimed epsilon, scaled from the only pair in the thesis, sigma 0.6 for epsilon 2.5."""
    return 0.0 if epsilon is None else SIGMA * PHASE_ONE[0] / epsilon


def point_epsilon(sigma: float) -> float | None:
    """Epsilon for a point anywhere in the unit disc, without its label."""
    return gaussian_epsilon(POINT_SENSITIVITY, sigma, DELTA) if sigma else None


def circles(table: str, lab: Lab) -> Iterator[Row]:
    """Perceptrons on point sets of every size. In private tables, training and test points have noise."""
    for size in lab.scale.sizes:
        name = f"{size} points"
        sigma = circle_sigma(TABLES[table].claim(name))
        networks, hits = lab.perceptrons(size, sigma)
        noise = f"sigma {sigma:g} on training and test points, none on labels" if sigma else "no noise"
        yield row(
            table,
            name,
            [float(np.mean(hits))],
            interval=(min(hits), max(hits)),
            epsilon_image=point_epsilon(sigma),
            delta=DELTA if sigma else None,
            note=f"{noise}; mean of {len(networks)}; {networks[0].chosen}",
            seconds=sum(network.seconds for network in networks),
        )


# ---- MNIST: section 4.2 and chapter 6 --------------------------------------------------------------------------------


def without_privacy(table: str, lab: Lab) -> Iterator[Row]:
    for name, model in MODELS.items():
        yield score_row(lab, table, name, zip(lab.networks(name, model=model)), "one network on all training images")


def phase_one(table: str, lab: Lab) -> Iterator[Row]:
    """Each model is a vote of ten networks, as in section 4.2."""
    for name, model in MODELS.items():
        ten = lab.ensembles(f"{name}, adam", model=model)
        note = f"hard vote of {lab.scale.instructors} instructors; labels have no noise"
        yield score_row(lab, table, name, ten, note, image=lab.image_epsilon)


def phase_two(table: str, lab: Lab) -> Iterator[Row]:
    for name, model in MODELS.items():
        ten = lab.ensembles(f"{name}, dp-adam", model=model, **BY_DP_ADAM)
        epsilon = largest(chain(*ten))
        note = f"hard vote of {lab.scale.instructors} instructors; largest epsilon, if one example's place is emptied"
        yield score_row(lab, table, f"DP-{name}", ten, note, epsilon, min(epsilon, lab.image_epsilon))


def phase_three(table: str, lab: Lab) -> Iterator[Row]:
    """Understudy with the smaller of two epsilons: that of its labels, and that of its instructors' DP-Adam."""
    vote = Aggregator.for_epsilon("laplace", LABELS[0], DELTA)
    labels = account_votes(vote, lab.public, DELTA).epsilon
    for name, model in MODELS.items():
        named, given = f"{name}, dp-adam", {"model": model, **BY_DP_ADAM}
        ten = lab.ensembles(named, **given)
        taught = [lab.understudy(named, repeat, voters, vote, **given) for repeat, voters in enumerate(ten)]
        epsilon = min(labels, largest(chain(*ten)))
        right = float(np.mean([share for _, share in taught]))
        note = f"{right:.0%} of the labels are right; all labels together have epsilon {labels:.4g}"
        students = [[network] for network, _ in taught]
        image = min(epsilon, lab.image_epsilon)
        yield score_row(lab, table, f"DP-{name}", students, note, epsilon, image, start=lab.public)


def claimed_rows(table: str, lab: Lab, model: str = "cnn", note: str = "") -> Iterator[Row]:
    """One network for each printed epsilon."""
    for name, (epsilon, delta) in TABLES[table].claimed.items():
        method = "dp-sgd" if name.startswith("DPSGD") else "dp-adam"
        settings = {"model": model, "method": method, "epsilon": epsilon, "delta": delta}
        networks = lab.networks(", ".join(f"{key} {value}" for key, value in settings.items()), **settings)
        yield score_row(lab, table, name, zip(networks), note, largest(networks), delta=delta)


def other_work(table: str, lab: Lab) -> Iterator[Row]:
    adam = lab.networks("Simple CNN", model="cnn", method="adam")  # as in table 4.4
    sgd = lab.networks("Simple CNN, sgd", model="cnn", method="sgd")
    yield score_row(lab, table, "no privacy, Adam", zip(adam))
    yield score_row(lab, table, "no privacy, SGD", zip(sgd))
    yield from claimed_rows(table, lab)


MAKE: dict[str, Callable[[str, Lab], Iterator[Row]]] = {
    **dict.fromkeys(("4.1", "4.2", "4.3"), circles),
    "4.4": without_privacy,
    "4.5": phase_one,
    "4.6": phase_two,
    "4.7": phase_three,
    "4.8": partial(claimed_rows, model="vgg", note="one network on clean images; the thesis does not state the phases"),
    "6.1": other_work,
    "6.2": claimed_rows,
}


def reproduce(lab: Lab, tables: Sequence[str] = tuple(TABLES)) -> Iterator[Row]:
    """Yield the rows of these tables, each as soon as it is available."""
    for table in tables:
        yield from MAKE[table](table, lab)
