"""The thesis' tables and figures made anew: ours beside what it prints, and the epsilon that holds beside the claimed.

    OUT/cells/<key>.json    one trained network: what it predicts, its losses, its guarantee

The key is a digest of settings and examples (see `edp_lab.training.result_cache`). So a run that was killed goes on
where it stopped, tables share networks, and entries may be deleted at any time.

Seeds are published, so that a table can be repeated; its epsilons are those that such noise has under secret seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edp_lab.corpora.images import INNER, Images, load_images, two_circles
from edp_lab.errors import UsageError
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.privacy.foundations import gaussian_epsilon
from edp_lab.reproduce.thesis.thesis_foundations import CREDIT_EPSILON, TABLE_2_2, noisy_counts
from edp_lab.reproduce.thesis.thesis_tables import (
    DELTA,
    DP_ADAM,
    LABELS,
    MODELS,
    PHASE_ONE,
    PRINTED,
    SCORES,
    SIGMA,
    TEST_ACCURACY,
    Network,
    Part,
    Scale,
    largest,
    scores_of,
    vote_scores,
)
from edp_lab.three_phase.perturbation import compare, image_guarantee, perturb
from edp_lab.three_phase.phases import Event, Job, usable_workers
from edp_lab.three_phase.settings import PRIVATE_METHODS, PUBLIC_SHARE, ClassifierSettings
from edp_lab.three_phase.votes import Aggregator, account_votes
from edp_lab.training.result_cache import ResultCache, Say, content_key

CIRCLES_TEST = 10_000
POINT_SENSITIVITY = 2.0  # two points of the unit disc are at most that far apart
BOX_SIGMA = 0.1  # section 4.1, of figures 4.1 and 4.2
CIRCLE_SIGMAS = (0.0, 0.2, 0.4, 0.6)  # figure 3.2
ENTRIES = (50, 100, 500, 1000)  # figure 3.3
PIXEL_SIGMAS = (0.0, 0.2, 0.4, 0.6, 1.0, 2.0)  # figure 3.5 states none
ABADI_CLIP = 4.0  # Abadi et al. 2016, section 5.2, whom the thesis follows and whose C its eq. 3.3 leaves out
CNN = "Simple CNN"
COMPARED = {"DPSGD": "dp-sgd", "DPAdam": "dp-adam"}


class Understudy(NamedTuple):
    """What learnt from the labels of a vote."""

    network: Network
    right: float  # share of these labels that are true
    label_epsilon: float  # of one training example replaced, by the noise on all labels together; inf without


class Lab:
    """Trains what the tables ask for, each network once.

    Args:
        out: its folder `cells` keeps what is finished.
        tell: called with a line, and whether it is worth keeping: one for each network, between them one per epoch.

    A folder that cannot be written, or unknown data, is a UsageError.
    """

    def __init__(self, out: Path, scale: Scale, seed: int = 0, tell: Callable[[str, bool], None] | None = None) -> None:
        if scale.data not in ("digits", "mnist"):
            raise UsageError(f"unknown image data {scale.data!r}: choose digits or mnist")
        self.scale, self.seed, self.repeats = scale, seed, range(scale.repeats)
        self.tell = tell or (lambda line, kept: None)
        self.known: dict[tuple[int, float], Images] = {}
        self.cells = ResultCache(out / "cells")

    # ---- Data and settings

    def images(self, repeat: int, sigma: float = 0.0) -> Images:
        """The data of one repeat, with noise on the pixels of training and test images (phase I)."""
        if (repeat, sigma) not in self.known:
            images = load_images(self.scale.data, self.seed + repeat)
            key = self._key(repeat, f"pixels, sigma {sigma:g}")
            parts = (images.train, images.test)
            train, test = (perturb(part, sigma, stream(key, Purpose.NOISE, k)) for k, part in enumerate(parts))
            self.known[repeat, sigma] = replace(images, train=train, test=test)
        return self.known[repeat, sigma]

    def all_images(self, sigma: float = 0.0) -> list[Images]:
        return [self.images(repeat, sigma) for repeat in self.repeats]

    def image_epsilon(self, sigma: float) -> float:
        """Of an image alone, by the noise on its pixels; inf without."""
        return image_guarantee(self.images(0).train.shape[1:], sigma, DELTA).epsilon

    @cached_property
    def public(self) -> int:
        """How many of the test images are labelled by the vote; the understudy is scored on the others."""
        return int(PUBLIC_SHARE * len(self.images(0).test))

    def _key(self, repeat: int, name: str) -> int:
        return key_from_seed(f"thesis {self.seed + repeat}: {name}")

    def job(self, name: str, repeat: int, data: Images, part: bool = False, method: str = "adam", **given: Any) -> Job:
        """With tanh if nothing else is given: under noise, networks with the thesis' ReLU may cease to learn."""
        s, private = self.scale, method in PRIVATE_METHODS
        epochs = ((s.private_epochs, s.private_part_epochs) if private else (s.epochs, s.part_epochs))[part]
        defaults = {"epochs": epochs, "classes": data.classes, "seed": self._key(repeat, name) % 2**32}
        settings = ClassifierSettings(method=method, **{**defaults, **given})
        return Job(name, settings, data.train, data.train_labels, data.test, data.test_labels)

    # ---- What the thesis trains

    def networks(self, name: str, sigma: float = 0.0, **given: Any) -> list[Network]:
        """On all training images, one for each repeat; other settings need another name."""
        named = f"{name}, noise {sigma:g} on the images" if sigma else name
        return self.train([self.job(named, repeat, self.images(repeat, sigma), **given) for repeat in self.repeats])

    def private(self, model: str, method: str, epsilon: float, delta: float = DELTA, **given: Any) -> list[Network]:
        """On all training images, each (epsilon, delta)-DP, or by what eq. 3.3 says so of."""
        settings = {"model": model, "method": method, "epsilon": epsilon, "delta": delta, **given}
        return self.networks(", ".join(f"{key} {value}" for key, value in settings.items()), **settings)

    def instructors(self, name: str, repeat: int, sigma: float, **given: Any) -> list[Network]:
        """Phase II: one network on each part of the training images; parts go by place in the set."""
        data = self.images(repeat, sigma)
        order = stream(self._key(repeat, "parts"), Purpose.SHUFFLE).permutation(len(data.train))
        jobs = []
        for k, own in enumerate(np.array_split(order, self.scale.instructors), 1):
            part = replace(data, train=data.train[own], train_labels=data.train_labels[own])
            named = f"{name}, noise {sigma:g} on the images, instructor {k} of {self.scale.instructors}"
            jobs.append(self.job(named, repeat, part, True, **given))
        return self.train(jobs)

    def understudy(
        self, name: str, repeat: int, sigma: float, voters: Sequence[Network], vote: Aggregator, **given: Any
    ) -> Understudy:
        """Phase III: trained on nine tenths of the test images, as `voters` label them; scored on the last tenth."""
        data, public = self.images(repeat, sigma), self.public
        predicted = np.array([voter.predicted[:public] for voter in voters])
        noise = stream(self._key(repeat, f"{vote.vote} vote, {name}"), Purpose.NOISE)
        labels = vote.labels(np.eye(data.classes, dtype=np.float32)[predicted], noise)
        last_tenth = data.test[public:], data.test_labels[public:]
        seen = Images(data.name, data.test[:public], labels, *last_tenth, data.classes)
        [network] = self.train([self.job(f"{name}: understudy, {vote.vote} vote", repeat, seen, **given)])
        right = float(np.mean(labels == data.test_labels[:public]))
        return Understudy(network, right, account_votes(vote, public, DELTA).epsilon)

    def perceptrons(self, size: int, sigma: float) -> tuple[list[Network], list[float]]:
        """Section 4.1, one for each repeat, and their accuracies in percent on points that are noised alike."""
        batch = min(256, max(16, size // 8))
        epochs = math.ceil(self.scale.circle_steps / math.ceil(size / batch))
        given: dict[str, Any] = {"model": "mlp", "activation": "relu", "lr": 0.02}
        name, jobs = f"perceptron, {size} points with noise {sigma:g}", []
        for repeat in range(self.scale.circle_repeats):
            data = two_circles(size, CIRCLES_TEST, self.seed + repeat + 1, sigma)  # the thesis' seed is 1
            jobs.append(self.job(name, repeat, data, epochs=epochs, batch_size=batch, **given))
        networks = self.train(jobs)
        return networks, [100 * float(np.mean(o.predicted == j.test_y)) for o, j in zip(networks, jobs, strict=True)]

    # ---- Training, once

    def train(self, jobs: Sequence[Job]) -> list[Network]:
        """Each job's network: as kept, or trained and kept, as many at a time as pay."""
        keys = [content_key(["classifier"], *list(vars(job).values())[1:]) for job in jobs]  # whatever its name
        missing = sum(len(job.x) for job, key in zip(jobs, keys, strict=True) if self.cells.read(key) is None)

        def listen(done: int, event: Event | None) -> None:
            if event is not None:
                accuracy = "" if event.accuracy is None else f"  accuracy {event.accuracy:.3f}"
                line = f"{event.part}: epoch {event.epoch} of {event.epochs}  loss {event.loss:.3f}{accuracy}"
                self.tell(line, event.epoch == event.epochs)

        cure, name = "the same command goes on from here", "a process that trains networks"
        found = self.cells.results(keys, jobs, _trained, usable_workers(missing), listen, cure, name)
        return [Network(**{**one, "predicted": np.array(one["predicted"])}) for one in found]


def _trained(job: Job, say: Say) -> dict[str, Any]:
    """Of a network what `Network` has."""
    one = job.train(say)
    record = {name: value for name, value in one.record.items() if name != "rows"}
    predicted = one.model.predict(job.test_x).tolist()
    return {"predicted": predicted, "rows": one.rows, "epsilon": one.guarantee.epsilon, "record": record}


# ---- Chapters 2 and 3 ------------------------------------------------------------------------------------------------


def table_2_2(lab: Lab, part: Part) -> None:
    counts = noisy_counts(np.random.default_rng(lab.seed), len(TABLE_2_2.responses))
    ours = [*map(float, counts.responses), counts.average, *counts.interval]
    note = f"Laplace noise of scale sqrt(2): epsilon {CREDIT_EPSILON:.3f} an answer; here of all answers so far"
    for place, (row, value) in enumerate(zip(part.printed.rows, ours, strict=True), 1):
        spent = CREDIT_EPSILON * min(place, len(counts.responses))
        part.cell(row, "response", value, epsilon_holds=spent, delta=0.0, note=note)


def figure_3_2(lab: Lab, part: Part) -> None:
    """How far noise mixes the circles."""
    note = "share of 1000 points that are nearer to the other circle; sigma as a standard deviation (T2)"
    for sigma in CIRCLE_SIGMAS:
        data, row = two_circles(1000, 1, lab.seed + 1, sigma), f"sigma {sigma:g}"
        outside = np.hypot(*data.train.T.astype(np.float64)) > (1 + INNER) / 2
        mixed = 100 * float(np.mean(outside != (data.train_labels == 0)))
        part.cell(row, "mixed", mixed, note=note, **_of_points(lab, sigma))
        part.drawing[row] = {"points": data.train.astype(float).round(3).tolist(), "labels": data.train_labels.tolist()}


def figure_3_3(lab: Lab, part: Part) -> None:
    """The same noise on more and more points: what it does to their mean, in percent of the radius."""
    note = f"distance of the mean of the noised points from that of the points; sigma {SIGMA:g}, none is stated"
    for n in ENTRIES:
        clean, noised = (two_circles(n, 1, lab.seed + 1, sigma).train.astype(float) for sigma in (0.0, SIGMA))
        error = 100 * float(np.linalg.norm((noised - clean).mean(axis=0)))
        part.cell(str(n), "error of the mean", error, note=note, **_of_points(lab, SIGMA))
        part.drawing[str(n)] = {"clean": clean.round(3).tolist(), "noised": noised.round(3).tolist()}


def figure_3_5(lab: Lab, part: Part) -> None:
    """One image under more and more noise, and what a network that is trained on such images still gets right."""
    for sigma in PIXEL_SIGMAS:
        row, before, after = f"sigma {sigma:g}", lab.images(0), lab.images(0, sigma)
        networks = lab.networks(CNN, sigma, model="cnn")
        note = f"correlation with the clean images {compare(before.test, after.test).image_correlation:.2f}"
        image = lab.image_epsilon(sigma) if sigma else None
        scores = scores_of(lab.all_images(sigma), networks)
        part.scores(row, scores, networks, note, image=image, columns=SCORES[:1])
        part.drawing.setdefault("image", {})[row] = after.test[0, 0].astype(float).round(3).tolist()


# ---- Two circles: section 4.1 ----------------------------------------------------------------------------------------


def circle_sigma(epsilon: float | None) -> float:
    """By the thesis' only pair, sigma 0.6 for epsilon 2.5."""
    return 0.0 if epsilon is None else SIGMA * PHASE_ONE[0] / epsilon


def point_epsilon(sigma: float) -> float | None:
    """Of a point anywhere in the unit disc, without its label."""
    return gaussian_epsilon(POINT_SENSITIVITY, sigma, DELTA) if sigma else None


def _of_points(lab: Lab, sigma: float) -> dict[str, Any]:
    """What every cell on circles has; the thesis' seed is 1."""
    return {"epsilon_image": point_epsilon(sigma), "delta": DELTA if sigma else None, "seed": lab.seed + 1}


def _circles(lab: Lab, part: Part, size: int, sigma: float, column: str, share: float | None = None) -> list[float]:
    """A cell with the mean accuracy of the perceptrons or, given a share, that quantile; returns their accuracies."""
    networks, hits = lab.perceptrons(size, sigma)
    note = f"sigma {sigma:g} on training and test points, none on labels" if sigma else "no noise"
    note += f"; mean of {len(networks)}; relu, lr 0.02, batches of 16 to 256, as many epochs as make "
    note += f"{lab.scale.circle_steps} steps"
    ours = float(np.mean(hits) if share is None else np.quantile(hits, share))
    seconds = sum(network.seconds for network in networks)
    more = {"low": min(hits), "high": max(hits), "note": note, "seconds": seconds, **_of_points(lab, sigma)}
    part.cell(str(size), column, ours, **more)
    return hits


def tables_4_1_to_4_3(lab: Lab, part: Part) -> None:
    for row, column, _, claimed in part.printed.cells():
        size = int(row)
        if size in lab.scale.sizes:
            _circles(lab, part, size, circle_sigma(claimed and claimed.epsilon), column)
            if claimed is not None:
                _circles(lab, part, size, BOX_SIGMA, f"at sigma {BOX_SIGMA:g}")


def figure_4_1(lab: Lab, part: Part) -> None:
    for size in lab.scale.sizes:
        _circles(lab, part, size, BOX_SIGMA, TEST_ACCURACY)


def figure_4_2(lab: Lab, part: Part) -> None:
    part.drawing["accuracies"] = {}
    for size in lab.scale.sizes:
        for column, share in (("lower quartile", 0.25), ("median", 0.5), ("upper quartile", 0.75)):
            hits = _circles(lab, part, size, BOX_SIGMA, column, share)
            part.drawing["accuracies"][str(size)] = hits


# ---- MNIST: section 4.2 and chapter 6 --------------------------------------------------------------------------------


def table_4_4(lab: Lab, part: Part) -> None:
    for row, kind in MODELS.items():
        networks = lab.networks(row, model=kind)
        part.scores(row, scores_of(lab.all_images(), networks), networks, "one network on all training images")


def table_4_5(lab: Lab, part: Part) -> None:
    """The vote of ten, which section 4.2 says that all models are, and one network on all noised images."""
    data, image = lab.all_images(SIGMA), lab.image_epsilon(SIGMA)
    for row, kind in MODELS.items():
        ten = _instructors(lab, row, kind, False)
        note = f"hard vote of {len(ten[0])} instructors; labels are bare"
        part.scores(row, vote_scores(data, ten), list(chain(*ten)), note, image=image)
        one = lab.networks(row, SIGMA, model=kind)
        part.scores(f"{row}, one network", scores_of(data, one), one, "on all images; labels are bare", image=image)


def table_4_6(lab: Lab, part: Part) -> None:
    data = lab.all_images(SIGMA)
    for row, kind in MODELS.items():
        ten = _instructors(lab, row, kind, True)
        networks = list(chain(*ten))
        note = f"hard vote of {len(ten[0])} instructors: the largest of their epsilons, of one example's slot emptied"
        holds = largest(networks)
        part.scores(f"DP-{row}", vote_scores(data, ten), networks, note, holds, min(holds, lab.image_epsilon(SIGMA)))


def table_4_7(lab: Lab, part: Part) -> None:
    """As printed, with DPAdam in phases II and III; and without it, as in the captions of figure 4.4."""
    for row, kind in MODELS.items():
        for private in (True, False):
            ten, training = _instructors(lab, row, kind, private), _training(private)
            vote = Aggregator.for_epsilon("laplace", LABELS[0], DELTA, len(ten[0]))
            name, how = f"{row}, {training['method']}", {"model": kind, **training}
            found = [lab.understudy(name, repeat, SIGMA, voters, vote, **how) for repeat, voters in enumerate(ten)]
            labels, instructors = found[0].label_epsilon, largest(list(chain(*ten)))
            right = f"{np.mean([one.right for one in found]):.0%} of the labels right"
            note = f"{right}; by all labels epsilon {labels:.4g}"
            note += f", by the instructors' DPAdam {instructors:.3g}: the smaller holds" if private else ""
            networks, holds = [one.network for one in found], min(labels, instructors)
            scores = scores_of(lab.all_images(SIGMA), networks, lab.public)
            image = min(holds, lab.image_epsilon(SIGMA))
            part.scores(f"DP-{row}" if private else f"{row}, no DPAdam", scores, networks, note, holds, image)


def _training(private: bool) -> dict[str, Any]:
    return {"method": "dp-adam", "epsilon": DP_ADAM[0], "delta": DP_ADAM[1]} if private else {"method": "adam"}


def _instructors(lab: Lab, row: str, kind: str, private: bool) -> list[list[Network]]:
    """On noised images, of each repeat."""
    training = _training(private)
    name = f"{row}, {training['method']}"
    return [lab.instructors(name, repeat, SIGMA, model=kind, **training) for repeat in lab.repeats]


def table_4_8(lab: Lab, part: Part) -> None:
    note = "one network on clean images: which phases take part is not stated"
    for row, (epsilon, delta) in part.printed.claimed.items():
        networks = lab.private("vgg", "dp-adam", epsilon, delta)
        part.scores(row, scores_of(lab.all_images(), networks), networks, note, largest(networks), delta=delta)


def table_6_1(lab: Lab, part: Part) -> None:
    data, accuracy = lab.all_images(), SCORES[:1]
    for row, method in (("no privacy, Adam", "adam"), ("no privacy, SGD", "sgd")):
        networks = lab.networks(CNN if method == "adam" else f"{CNN}, {method}", model="cnn", method=method)
        part.scores(row, scores_of(data, networks), networks, "CNN; the network is not stated", columns=accuracy)
    part.cell("Shokri et al.", SCORES[0], None, note="epsilon per parameter; not trained here")
    for row, method in COMPARED.items():
        networks = lab.private("cnn", method, *part.printed.claimed[row])
        part.scores(row, scores_of(data, networks), networks, "CNN", largest(networks), columns=accuracy)


def table_6_2(lab: Lab, part: Part) -> None:
    """And DPAdam under eq. 3.3, whose epsilon is another: it leaves out C and the number of steps."""
    kinds: list[tuple[str, str, dict[str, Any], str]] = [(row, method, {}, "") for row, method in COMPARED.items()]
    printed = {"eq33": True, "clip_norm": ABADI_CLIP}
    kinds.append((f"DPAdam, noise of eq. 3.3, C {ABADI_CLIP:g}", "dp-adam", printed, "C as in Abadi et al."))
    for row, method, given, note in kinds:
        for column, claimed in part.printed.claimed.items():
            networks = lab.private("cnn", method, *claimed, **given)
            scores = scores_of(lab.all_images(), networks)
            part.scores(row, scores, networks, note, largest(networks), columns=[column])


def times(lab: Lab, part: Part) -> None:
    """Of the CNN on noised images: the networks of table 4.5, in the first repeat."""
    one = lab.networks(CNN, SIGMA, model="cnn")[:1]
    ten = lab.instructors(f"{CNN}, adam", 0, SIGMA, model="cnn", method="adam")
    first, second = (sum(network.seconds for network in networks) for networks in (one, ten))
    note = f"CNN, {one[0].record['epochs']} epochs, and {ten[0].record['epochs']} of each of {len(ten)}; one by one"
    for row, value in zip(part.printed.rows, (first, second, second / max(first, 1e-9)), strict=True):
        part.cell(row, "seconds", value, note=note, seconds=first + second)


PARTS: dict[str, Callable[[Lab, Part], None]] = {
    "2.2": table_2_2, "4.1": tables_4_1_to_4_3, "4.2": tables_4_1_to_4_3, "4.3": tables_4_1_to_4_3, "4.4": table_4_4,
    "4.5": table_4_5, "4.6": table_4_6, "4.7": table_4_7, "4.8": table_4_8, "6.1": table_6_1, "6.2": table_6_2,
    "times": times, "figure 3.2": figure_3_2, "figure 3.3": figure_3_3, "figure 3.5": figure_3_5,
    "figure 4.1": figure_4_1, "figure 4.2": figure_4_2,
}  # fmt: skip


def reproduce(lab: Lab, parts: Sequence[str] = tuple(PARTS)) -> Iterator[Part]:
    """The tables and figures of these names, one by one."""
    for name in parts:
        part = Part(PRINTED[name], lab.seed)
        PARTS[name](lab, part)
        yield part
