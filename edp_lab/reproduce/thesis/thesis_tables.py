"""What the thesis prints in tables 2.2, 4.1 to 4.8, 6.1 and 6.2, and what it has five figures of, with their places;
and the shape of a table made anew, with ours beside it.

Source: Barzegar 2021. Accuracies are in percent, as printed; claimed epsilon and delta are the thesis' own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edp_lab.corpora.images import Images
from edp_lab.privacy.guarantee import VOID
from edp_lab.reproduce.thesis.thesis_foundations import TABLE_2_2
from edp_lab.three_phase.settings import Scores, score_labels
from edp_lab.three_phase.votes import vote_counts

SIGMA, DELTA = 0.6, 1e-5  # of phase I; of all tables but 4.8
PHASE_ONE = (2.5, 1e-5)  # sections 3.1.1 and 3.5, for sigma 0.6
DP_ADAM = (7.0, 1e-5)  # captions of figure 4.6; chapter 6
LABELS = (0.2, 0.0)  # section 4.2, of the labels; nothing is said of how many
MODELS = {"Simple CNN": "cnn", "Alex-Net": "alexnet", "VGG-Net": "vgg"}
TRAIN_SIZES = (100, 1000, 5000, 10_000, 100_000)
SCORES = ("accuracy", "F-score", "recall", "precision")
TEST_ACCURACY = "test accuracy"


# ---- The print -------------------------------------------------------------------------------------------------------


class Privacy(NamedTuple):
    epsilon: float
    delta: float


class Printed(NamedTuple):
    """One value; None where none is printed."""

    row: str
    column: str
    value: float | None
    claimed: Privacy | None


@dataclass(frozen=True)
class PrintedTable:
    """A table of the thesis; or a figure, of which no numbers are printed."""

    id: str  # "4.1", "figure 4.1"; or "times", for two numbers in the running text
    title: str
    place: str  # the section
    unit: str = "%"
    columns: tuple[str, ...] = ()
    rows: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)  # a value for each of `columns`
    # The (epsilon, delta) that the thesis states, by the row or column that it is about; "" for all.
    claimed: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    remark: str = ""  # what is wrong with the print, if anything

    def cells(self) -> Iterator[Printed]:
        for row, values in self.rows.items():
            for column, value in zip(self.columns, values, strict=True):
                stated = next((self.claimed[name] for name in (row, column, "") if name in self.claimed), None)
                yield Printed(row, column, value, None if stated is None else Privacy(*stated))


def _by_size(number: str, privacy: str, epsilon: float | None, *accuracies: float) -> PrintedTable:
    rows = {f"{size}": (value,) for size, value in zip(TRAIN_SIZES, accuracies, strict=True)}
    claimed = {} if epsilon is None else {"": (epsilon, 1e-5)}  # delta: that of section 3.1.1, the table has none
    title = f"accuracy of the perceptron on two circles, {privacy}, by train size"
    return PrintedTable(number, title, "section 4.1", "%", (TEST_ACCURACY,), rows, claimed)


TABLES = {table.id: table for table in (
    PrintedTable(
        "2.2", "answers to a noisy count of bad credit ratings", "section 2.2.4", "ratings", ("response",),
        {
            **{str(k): (value,) for k, value in enumerate(TABLE_2_2.responses, 1)},
            "average": (TABLE_2_2.average,),
            "90 % interval, from": (TABLE_2_2.interval[0],),
            "90 % interval, to": (TABLE_2_2.interval[1],),
        },
        remark="the printed interval divides by n where n - 1 belongs: it is too narrow",
    ),
    _by_size("4.1", "no privacy", None, 93.89, 94.71, 94.87, 99.99, 99.99),
    _by_size("4.2", "epsilon 0.2", 0.2, 74.033, 83.668, 84.113, 83.953, 84.953),
    _by_size("4.3", "epsilon 0.4", 0.4, 84.900, 84.800, 86.990, 86.209, 87.426),
    PrintedTable(
        "4.4", "MNIST without privacy", "section 4.2", "%", SCORES,
        {"Simple CNN": (98, 97, 98, 97), "Alex-Net": (99, 98, 98, 98), "VGG-Net": (99, 99, 99, 99)},
    ),
    PrintedTable(
        "4.5", "MNIST after phase I, noise on the images", "section 4.2", "%", SCORES,
        {"Simple CNN": (97, 96, 97, 96), "Alex-Net": (98, 98, 96, 98), "VGG-Net": (98, 98, 98, 98)},
        {"": PHASE_ONE},
    ),
    PrintedTable(
        "4.6", "MNIST after phases I and II, ten instructors by DPAdam", "section 4.2", "%", SCORES,
        {"DP-Simple CNN": (95, 95, 94, 95), "DP-Alex-Net": (96, 96, 97, 96), "DP-VGG-Net": (97, 97, 97, 97)},
        {"": DP_ADAM},
    ),
    PrintedTable(
        "4.7", "MNIST after phases I, II and III, the understudy", "section 4.2", "%", SCORES,
        {"DP-Simple CNN": (95, 96, 95, 96), "DP-Alex-Net": (96, 96, 96, None), "DP-VGG-Net": (97, 97, 96, 97)},
        {"": LABELS},
        "of DP-Alex-Net the text has three values for four columns: the last is left out here",
    ),
    PrintedTable(
        "4.8", "VGG by DPAdam, at delta 1e-6", "section 4.2", "%", SCORES,
        {
            "epsilon 1": (90, 91, 90, 90),
            "epsilon 2": (93, 92, 93, 92),
            "epsilon 5": (95, 94, 94, 95),
            "epsilon 10": (98, 98, 98, 98),
        },
        {f"epsilon {epsilon}": (epsilon, 1e-6) for epsilon in (1, 2, 5, 10)},
    ),
    PrintedTable(
        "6.1", "MNIST beside other work", "chapter 6", "%", ("accuracy",),
        {
            "no privacy, Adam": (99,), "no privacy, SGD": (98,), "Shokri et al.": (80,),
            "DPSGD": (97,), "DPAdam": (97.3,),
        },
        {"DPSGD": (10, 1e-5), "DPAdam": (10, 1e-5)},
    ),
    PrintedTable(
        "6.2", "MNIST, CNN, DPAdam beside Abadi et al., at delta 1e-5", "chapter 6", "%",
        ("epsilon 7", "epsilon 5", "epsilon 2"), {"DPSGD": (97, 94, 91), "DPAdam": (97.3, 95, 91.7)},
        {f"epsilon {epsilon}": (epsilon, 1e-5) for epsilon in (7, 5, 2)},
    ),
    PrintedTable(
        "times", "time to train one instructor on everything, and ten on a tenth each", "section 4.2, after table 4.8",
        "s", ("seconds",), {"1 instructor": (181_234.21,), "10 instructors": (222_918.07,), "ratio": (1.2,)},
        remark="the network is not named",
    ),
)}  # fmt: skip
FIGURES = {number: PrintedTable(f"figure {number}", title, place) for number, title, place in (
    ("3.2", "two circles under noise N(0, 0.2), N(0, 0.4) and N(0, 0.6)", "section 3.1.1"),
    ("3.3", "noise on 50, 100, 500 and 1000 entries", "section 3.1.1"),
    ("3.5", "a digit under more and more noise, from epsilon infinite to 0", "section 3.5.1"),
    ("4.1", "accuracy on two circles by train size, sigma 0.1", "section 4.1"),
    ("4.2", "its distribution over repeats, as boxes", "section 4.1"),
)}  # fmt: skip
PRINTED = {one.id: one for one in (*TABLES.values(), *FIGURES.values())}


# ---- Networks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """How much is trained; epochs that are None are as the classifier's defaults have it."""

    data: str  # "digits" or "mnist"
    repeats: int  # of what is trained on images, each with other seeds
    circle_repeats: int  # and of what is trained on circles
    circle_steps: int  # of training there, at least
    sizes: tuple[int, ...] = TRAIN_SIZES  # of the training sets there
    epochs: int | None = None  # of networks on all training images, without privacy
    part_epochs: int | None = None  # on an instructor's part
    private_epochs: int | None = None  # and with
    private_part_epochs: int | None = None
    instructors: int = 10


QUICK = Scale("digits", 1, 3, 300, TRAIN_SIZES, 17, 30, 20, 12)
FULL = Scale("mnist", 3, 10, 2000, private_part_epochs=30)


class Network(NamedTuple):
    """A trained network, without its weights; see `edp_lab.three_phase.classifier.Trained`."""

    predicted: NDArray[np.int64]  # (n) labels of its test examples
    rows: list[dict[str, Any]]
    epsilon: float | None  # of its guarantee
    record: dict[str, Any]

    @property
    def seconds(self) -> float:
        return sum(row["seconds"] for row in self.rows)

    @property
    def chosen(self) -> str:
        """The settings that the thesis leaves open."""
        r = self.record
        text = f"{r['method']}, {r['activation']}, lr {r['lr']:g}, batch {r['batch_size']}, {r['epochs']} epochs"
        text += f", weight decay {r['weight_decay']:g}" if r["weight_decay"] else ""
        if r["mechanism"] is None:
            return text
        return f"{text}, C {r['clip_norm']:g}, noise multiplier {r['mechanism']['z0']:.3g}"


def scores_of(images: Sequence[Images], networks: Sequence[Network], start: int = 0) -> Scores:
    """Over all repeats' test images from `start` on."""
    truth = np.concatenate([one.test_labels[start:] for one in images])
    return score_labels(truth, np.concatenate([one.predicted for one in networks]), images[0].classes)


def vote_scores(images: Sequence[Images], ensembles: Sequence[Sequence[Network]]) -> Scores:
    """Of a vote without noise among each repeat's networks."""
    classes = images[0].classes
    votes = [vote_counts([one.predicted for one in ensemble], classes).argmax(axis=1) for ensemble in ensembles]
    return score_labels(np.concatenate([one.test_labels for one in images]), np.concatenate(votes), classes)


def largest(networks: Sequence[Network]) -> float:
    """Epsilon of networks on disjoint parts, or of each of several: the largest; inf where one has none."""
    return max(math.inf if one.epsilon is None else one.epsilon for one in networks)


# ---- Ours beside the print -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One value of the thesis, and ours; accuracies in percent."""

    table: str  # "4.1", "figure 4.1" or "times"
    row: str
    column: str
    thesis: float | None
    ours: float | None
    # 95 % interval of our accuracy by Clopper and Pearson, over the test images of all repeats; on circles, from the
    # lowest to the highest of the repeats.
    low: float | None = None
    high: float | None = None
    epsilon_claimed: float | None = None  # by the thesis
    epsilon_holds: float | None = None  # of one example with its label, under secret randomness; None: no guarantee
    epsilon_image: float | None = None  # of the image or point alone, likewise
    delta: float | None = None  # of these epsilons; None where there is none
    note: str = ""  # the settings that the thesis leaves open (T19, T27), and what else a reader should know
    seed: int = 0  # of the first repeat
    seconds: float = 0.0  # of training, of all networks behind this value together

    @property
    def guarantee(self) -> str:
        """Whoever knows the seed can redraw the noise: none of these epsilons protects the run that is shown."""
        return "no guarantee" if self.epsilon_holds is None else VOID

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "guarantee": self.guarantee}


@dataclass
class Part:
    """A table or a figure, made anew cell by cell."""

    printed: PrintedTable  # what the thesis has there
    seed: int  # of the first repeat
    cells: list[Cell] = field(default_factory=list)
    drawing: dict[str, Any] = field(default_factory=dict)  # what its figures show, as plain numbers by name

    def cell(self, row: str, column: str, ours: float | None, **more: Any) -> None:
        """Beside the thesis' value of this row and column, if it has one; `more` as in `Cell`."""
        place, of = (row, column), self.printed.id
        thesis, claimed = next((p[2:] for p in self.printed.cells() if p[:2] == place), (None, None))
        stated = None if claimed is None else claimed.epsilon
        self.cells.append(Cell(of, *place, thesis, ours, **{"epsilon_claimed": stated, "seed": self.seed, **more}))

    def scores(
        self,
        row: str,
        scores: Scores,
        networks: Sequence[Network],
        note: str = "",
        holds: float | None = None,
        image: float | None = None,
        columns: Sequence[str] = SCORES,
        delta: float = DELTA,
    ) -> None:
        """A row of accuracy, F-score, recall and precision; or the accuracy alone, in the one column given.

        Args:
            networks: all that were trained for these scores.
            holds, image, delta: epsilon of an example, and of its image alone if that is another, at delta.
        """
        image = holds if image is None else image
        shared = {
            "epsilon_holds": holds,
            "epsilon_image": image,
            "delta": None if image is None else delta,
            "note": f"{note}; {networks[0].chosen}" if note else networks[0].chosen,
            "seconds": sum(network.seconds for network in networks),
        }
        low, high = (100 * end for end in scores.interval)
        self.cell(row, columns[0], 100 * scores.accuracy, low=low, high=high, **shared)
        for column, value in zip(columns[1:], (scores.f_score, scores.recall, scores.precision), strict=False):
            self.cell(row, column, 100 * value, **shared)
        losses = {  # the mean over networks, which were trained for as many epochs
            name: np.mean([[epoch[name] for epoch in network.rows] for network in networks], axis=0).tolist()
            for name in ("loss", "test_loss")
        }
        key = row if columns[0] == SCORES[0] else f"{row}, {columns[0]}"
        self.drawing.setdefault("confusion", {})[key] = scores.confusion
        self.drawing.setdefault("loss", {})[key] = losses

    def as_json(self) -> dict[str, Any]:
        one, cells = self.printed, [cell.as_json() for cell in self.cells]
        told = {"id": one.id, "title": one.title, "place": one.place, "unit": one.unit, "cells": cells}
        return {**told, "remark": one.remark, "drawing": self.drawing}
