"""The thesis' claims that take trained networks: rows T25 and T28 of the claims ledger.

What follows without training is in `thesis_claims`, `thesis_composition` and `thesis_text`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from edp_lab.corpora.images import Images
from edp_lab.reproduce.evidence import Evidence, Verdict
from edp_lab.reproduce.thesis.lab import Lab
from edp_lab.reproduce.thesis.thesis_tables import DELTA, Network, Understudy, scores_of
from edp_lab.three_phase.votes import Aggregator, Vote

TUNED = {"dp-adam": (1e-2, 2e-2, 5e-2, 0.1), "dp-sgd": (4.0, 8.0, 16.0, 32.0)}  # learning rates, at the default C
TUNING_SHARE = 0.2  # of the training images, on which the rates are compared
POINT = 1.0  # of accuracy; the thesis prints whole percents
TARGET = 0.9  # of the lower of two final accuracies: who gets there first has converged faster


def _lost(truth: NDArray[Any], before: Sequence[Network], after: Sequence[Network]) -> tuple[float, float]:
    """Points of accuracy from one network to another on the same images (repeats one after another); half-width."""
    first, second = (np.concatenate([one.predicted for one in networks]) == truth for networks in (before, after))
    difference = 100 * (first.astype(float) - second)
    return float(difference.mean()), 1.96 * float(difference.std()) / math.sqrt(len(truth))


def _labelled(lab: Lab, vote: Aggregator) -> list[Understudy]:
    """Understudies of CNN instructors on clean images without privacy, where there is something to lose."""
    name, found = "clean CNN", []
    for repeat in lab.repeats:
        voters = lab.instructors(name, repeat, 0.0, model="cnn")
        found.append(lab.understudy(name, repeat, 0.0, voters, vote, model="cnn"))
    return found


def _scored_on(lab: Lab) -> NDArray[np.int64]:
    return np.concatenate([data.test_labels[lab.public :] for data in lab.all_images()])


def t28_understudy(lab: Lab, epsilon: float = 0.2) -> Evidence:
    """Two understudies of the same instructors, on labels as they vote and on noised ones."""
    exact = _labelled(lab, Aggregator(Vote.HARD))
    noisy = _labelled(lab, Aggregator.for_epsilon("laplace", epsilon, DELTA, lab.scale.instructors))
    lost, half = _lost(_scored_on(lab), [one.network for one in exact], [one.network for one in noisy])
    return Evidence(
        "T28",
        "Labels that are protected by noise on the votes cost the understudy no accuracy.",
        "section 3.2.1 (noisy-max); section 4.2, tables 4.6 and 4.7",
        {
            "labels": lab.public,
            "data": lab.scale.data,
            "right": float(np.mean([one.right for one in exact])),
            "right_noised": float(np.mean([one.right for one in noisy])),
            "accuracy": 100 * scores_of(_rest(lab), [one.network for one in exact]).accuracy,
            "lost": lost,
            "half_width": half,
        },
        lambda m: Verdict.of(m["lost"] <= POINT, m["lost"] <= m["half_width"]),
        "Of {labels} labels ({data}) {right:.0%} are right, {right_noised:.0%} after noise of epsilon 0.2 each; the "
        "understudy falls from {accuracy:.1f} % by {lost:.1f} points (+-{half_width:.1f}).",
    )


def _rest(lab: Lab) -> list[Images]:
    """What understudies are scored on."""
    found = lab.all_images()
    return [replace(data, test=data.test[lab.public :], test_labels=data.test_labels[lab.public :]) for data in found]


def t25_convergence(lab: Lab, epsilon: float = 3.0, repeats: int = 5) -> Evidence:
    """The CNN by DP-Adam and DP-SGD at one epsilon, noise and number of steps, each at its best learning rate.

    The rates are compared on a fifth of the training images, at one seed; that costs privacy, which is not accounted.
    """
    rates = {method: _best_rate(lab, method, epsilon) for method in TUNED}
    runs = {method: _curves(lab, method, epsilon, rate, repeats) for method, rate in rates.items()}
    pairs = list(zip(runs["dp-adam"], runs["dp-sgd"], strict=True))
    epochs = [_epochs_to(adam, sgd) for adam, sgd in pairs]
    saved, saved_half = _mean([sgd - adam for adam, sgd in epochs])
    gain, gain_half = _mean([100 * (adam[-1] - sgd[-1]) for adam, sgd in pairs])
    return Evidence(
        "T25",
        "DPAdam converges faster than DPSGD, and does not get stuck where DPSGD does.",
        "section 3.2.2; chapters 5 and 6",
        {
            "data": lab.scale.data,
            "epsilon": epsilon,
            "repeats": repeats,
            "adam_rate": rates["dp-adam"],
            "sgd_rate": rates["dp-sgd"],
            "sgd_epochs": float(np.mean([sgd for _, sgd in epochs])),
            "saved": saved,
            "saved_half_width": saved_half,
            "adam_accuracy": float(np.mean([100 * adam[-1] for adam, _ in pairs])),
            "gain": gain,
            "gain_half_width": gain_half,
        },
        _judge_t25,
        "At epsilon {epsilon:g} ({data}, learning rates {adam_rate:g} and {sgd_rate:g}, the best of four each) DPSGD "
        "reaches 90 % of the final accuracy in {sgd_epochs:.1f} epochs, DPAdam saves {saved:.1f} "
        "(+-{saved_half_width:.1f}) of these and ends at {adam_accuracy:.1f} %, {gain:+.1f} points "
        "(+-{gain_half_width:.1f}) beside DPSGD; {repeats} runs each.",
    )


def _judge_t25(m: Mapping[str, Any]) -> Verdict:
    """Holds: faster beyond chance, and not worse at the end. In part: faster, or better without being slower."""
    faster, slower = (sign * m["saved"] > m["saved_half_width"] for sign in (1, -1))
    better, worse = (sign * m["gain"] > m["gain_half_width"] for sign in (1, -1))
    return Verdict.of(faster and not worse, faster or (better and not slower))


def _mean(differences: Sequence[float]) -> tuple[float, float]:
    """Of differences between paired runs; half-width by Student's t."""
    values = np.asarray(differences, dtype=np.float64)
    half = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(half)


def _best_rate(lab: Lab, method: str, epsilon: float) -> float:
    data = lab.images(0)
    held = int(TUNING_SHARE * len(data.train))
    parts = data.train[held:], data.train_labels[held:], data.train[:held], data.train_labels[:held]
    given: dict[str, Any] = {"model": "cnn", "method": method, "epsilon": epsilon}
    seen = Images(data.name, *parts, data.classes)
    jobs = [lab.job(f"{method}, rate {rate:g} to compare", 0, seen, lr=rate, **given) for rate in TUNED[method]]
    hits = [np.mean(one.predicted == seen.test_labels) for one in lab.train(jobs)]
    return TUNED[method][int(np.argmax(hits))]


def _curves(lab: Lab, method: str, epsilon: float, rate: float, repeats: int) -> list[list[float]]:
    """Accuracy on the test images by epoch."""
    data = lab.images(0)
    given: dict[str, Any] = {"model": "cnn", "method": method, "epsilon": epsilon, "lr": rate}
    jobs = [lab.job(f"{method} at {epsilon:g}, run {run}", 0, data, **given) for run in range(repeats)]
    return [[row["accuracy"] for row in network.rows] for network in lab.train(jobs)]


def _epochs_to(first: Sequence[float], second: Sequence[float]) -> tuple[int, int]:
    """After how many epochs each has reached TARGET of the lower of their last accuracies."""
    goal = TARGET * min(first[-1], second[-1])
    return tuple(next(k for k, hit in enumerate(curve, 1) if hit >= goal) for curve in (first, second))  # type: ignore[return-value]
