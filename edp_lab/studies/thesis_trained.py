"""The thesis' claims on which trained networks have a say: rows T3, T13, T15 to T19, T25 and T27 of the claims ledger.

What follows without training is in `thesis_claims`, `thesis_composition` and `thesis_text`. Evidence here is drawn from
the tables that `reproduce_thesis` makes anew, or from further networks of the same `Lab`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from edp_lab.corpora.images import Images
from edp_lab.models.image import build_classifier
from edp_lab.studies.evidence import Evidence, Verdict
from edp_lab.studies.reproduce_thesis import Lab, reproduce
from edp_lab.studies.thesis_tables import DELTA, SIGMA, Network, Part, Understudy, scores_of
from edp_lab.studies.thesis_text import LAYERS
from edp_lab.three_phase.votes import Aggregator, Vote

# ---- Evidence from the tables ----------------------------------------------------------------------------------------

DRAWN_FROM = ("figure 3.5", "4.2", "4.8", "6.1", "6.2")
POINT = 1.0  # the thesis prints whole percents


def with_training(lab: Lab) -> tuple[Evidence, ...]:
    """All evidence of this module, in the order of the ledger; whatever it takes is trained, once."""
    parts = {part.id: part for part in reproduce(lab, DRAWN_FROM)}
    drawn = (t3_accuracy(parts), t16_measured(parts), t17_measured(parts), t18_measured(parts), t19_measured(parts))
    found = (*drawn, t13_understudy(lab), t15_private_understudy(lab), t25_convergence(lab), t27_built())
    return tuple(sorted(found, key=lambda evidence: int(evidence.id[1:])))


class _Accuracy(NamedTuple):
    """Of a cell, in percent, with its interval."""

    ours: float
    low: float
    high: float

    def beyond(self, other: _Accuracy) -> float:
        """The half-width, from both intervals, that a fall from `self` to `other` has to exceed."""
        return math.hypot(self.ours - self.low, other.high - other.ours)


def _accuracy(parts: Mapping[str, Part], name: str, row: str, column: str = "accuracy") -> _Accuracy:
    cell = next(cell for cell in parts[name].cells if (cell.row, cell.column) == (row, column))
    assert cell.ours is not None
    assert cell.low is not None
    assert cell.high is not None
    return _Accuracy(cell.ours, cell.low, cell.high)


def t3_accuracy(parts: Mapping[str, Part]) -> Evidence:
    """The CNN of figure 3.5 on clean images, at the sigma that the printed correlation fits, and at the stated one."""
    clean, fitting, stated = (_accuracy(parts, "figure 3.5", f"sigma {sigma:g}") for sigma in (0, 0.2, SIGMA))
    return Evidence(
        "T3",
        "Images with noise of sigma 0.6 are as good to learn from: one point of accuracy is lost.",
        "section 3.4.1; tables 4.4 and 4.5, simple CNN",
        {
            "accuracy": clean.ours,
            "lost": clean.ours - stated.ours,
            "lost_at_02": clean.ours - fitting.ours,
            "half_width": clean.beyond(stated),
        },
        lambda m: Verdict.of(m["lost"] <= POINT + m["half_width"], m["lost_at_02"] <= POINT + m["half_width"]),
        "From {accuracy:.1f} % the CNN loses {lost:.1f} points (+-{half_width:.1f}) at sigma 0.6, and "
        "{lost_at_02:.1f} at sigma 0.2, to which the printed correlation belongs.",
    )


def t16_measured(parts: Mapping[str, Part]) -> Evidence:
    """The perceptron of table 4.2, trained and tested on circles under the noise that epsilon 0.2 means."""
    own = [cell for cell in parts["4.2"].cells if cell.ours is not None]
    return Evidence(
        "T16",
        "A network still separates the two circles with 85 % accuracy when the data are 0.2-DP.",
        "section 4.1, table 4.2",
        {
            "claimed": max(cell.thesis or 0.0 for cell in own),
            "accuracy": max(cell.ours or 0.0 for cell in own if cell.thesis is not None),
            "accuracy_at_01": max(cell.ours or 0.0 for cell in own if cell.thesis is None),
        },
        lambda m: Verdict.of(m["accuracy"] >= m["claimed"] - POINT),
        "No size of the training set brings more than {accuracy:.1f} %, which is chance; at sigma 0.1, that of figure "
        "4.2, it is {accuracy_at_01:.1f} %: so table 4.2 is about 75 times less noise than its epsilon says.",
    )


def t17_measured(parts: Mapping[str, Part]) -> Evidence:
    """Neighbouring epsilons of the same network: VGG at delta 1e-6, and the CNN at 1e-5."""
    vgg = [_accuracy(parts, "4.8", f"epsilon {epsilon}") for epsilon in (1, 2, 5, 10)]
    cnn = [_accuracy(parts, "6.2", "DPAdam", f"epsilon {epsilon}") for epsilon in (2, 5, 7)]
    cnn.append(_accuracy(parts, "6.1", "DPAdam"))
    pairs = [*pairwise(vgg), *pairwise(cnn)]
    falls = [(a, b) for a, b in pairs if a.ours > b.ours]
    return Evidence(
        "T17",
        "Accuracy grows with epsilon.",
        "section 4.2, tables 4.8, 6.1 and 6.2",
        {
            "pairs": len(pairs),
            "falls": len(falls),
            "falls_beyond_chance": sum(a.ours - b.ours > a.beyond(b) for a, b in falls),
            "vgg": ", ".join(f"{one.ours:.1f}" for one in vgg),
            "cnn": ", ".join(f"{one.ours:.1f}" for one in cnn),
        },
        lambda m: Verdict.of(m["falls"] == 0, m["falls_beyond_chance"] == 0),
        "Of {pairs} steps to a larger epsilon {falls} lower the accuracy, {falls_beyond_chance} beyond chance; VGG at "
        "1, 2, 5, 10: {vgg} %; the CNN at 2, 5, 7, 10: {cnn} %.",
    )


def t18_measured(parts: Mapping[str, Part]) -> Evidence:
    """DP-Adam beside DP-SGD, each with its own learning rate, the same accountant and the same noise."""
    columns = [f"epsilon {epsilon}" for epsilon in (2, 5, 7)]
    pairs = [(_accuracy(parts, "6.2", "DPSGD", c), _accuracy(parts, "6.2", "DPAdam", c)) for c in columns]
    return Evidence(
        "T18",
        "DPAdam is more accurate than DPSGD, which reaches 91 % at (2, 1e-5).",
        "chapter 6, table 6.2",
        {
            "gains": ", ".join(f"{adam.ours - sgd.ours:+.1f}" for sgd, adam in pairs),
            "gains_beyond_chance": sum(adam.ours - sgd.ours > adam.beyond(sgd) for sgd, adam in pairs),
            "dpsgd_at_2": pairs[0][0].ours,
        },
        lambda m: Verdict.of(m["gains_beyond_chance"] == 3, m["gains_beyond_chance"] > 0),
        "At epsilon 2, 5 and 7 DPAdam gains {gains} points, {gains_beyond_chance} of these beyond chance; DPSGD "
        "reaches {dpsgd_at_2:.1f} % at 2.",
    )


def t19_measured(parts: Mapping[str, Part]) -> Evidence:
    """The noise of eq. 3.3 for epsilon 7, with the C of Abadi et al., on whose work the thesis builds."""
    cells = {cell.row: cell for cell in parts["6.2"].cells if cell.column == "epsilon 7"}
    printed = next(cell for row, cell in cells.items() if "eq. 3.3" in row)
    return Evidence(
        "T19",
        "DPAdam trains with (7, 1e-5)-DP.",
        "section 3.2.2, eq 3.3; table 6.2",
        {
            "claimed_epsilon": 7.0,
            "epsilon": math.inf if printed.epsilon_holds is None else printed.epsilon_holds,
            "accuracy": printed.ours or 0.0,
            "accuracy_at_7": cells["DPAdam"].ours or 0.0,
        },
        lambda m: Verdict.of(m["epsilon"] <= m["claimed_epsilon"]),
        "With the noise of eq. 3.3 and C = 4, neither of which the thesis states for its runs, training costs "
        "{epsilon:.3g} and reaches {accuracy:.1f} %; with noise that suffices for 7, {accuracy_at_7:.1f} %.",
    )


# ---- Evidence from networks of its own -------------------------------------------------------------------------------

TUNED = {"dp-adam": (1e-2, 2e-2, 5e-2, 0.1), "dp-sgd": (4.0, 8.0, 16.0, 32.0)}  # learning rates, at the default C
TUNING_SHARE = 0.2  # of the training images, on which the rates are compared
TARGET = 0.9  # of the lower of two final accuracies: who gets there first has converged faster


def _lost(truth: NDArray[Any], before: Sequence[Network], after: Sequence[Network]) -> tuple[float, float]:
    """Points of accuracy from one network to another on the same images (repeats one after another); half-width."""
    first, second = (np.concatenate([one.predicted for one in networks]) == truth for networks in (before, after))
    difference = 100 * (first.astype(float) - second)
    return float(difference.mean()), 1.96 * float(difference.std()) / math.sqrt(len(truth))


def _labelled(lab: Lab, vote: Aggregator, **given: Any) -> list[Understudy]:
    """Understudies of CNN instructors on clean images without privacy, where there is something to lose."""
    name, found = "clean CNN", []
    for repeat in lab.repeats:
        voters = lab.instructors(name, repeat, 0.0, model="cnn")
        found.append(lab.understudy(name, repeat, 0.0, voters, vote, model="cnn", **given))
    return found


def _scored_on(lab: Lab) -> NDArray[np.int64]:
    return np.concatenate([data.test_labels[lab.public :] for data in lab.all_images()])


def t13_understudy(lab: Lab, epsilon: float = 0.2) -> Evidence:
    """Two understudies of the same instructors, on labels as they vote and on noised ones."""
    exact = _labelled(lab, Aggregator(Vote.HARD))
    noisy = _labelled(lab, Aggregator.for_epsilon("laplace", epsilon, DELTA, lab.scale.instructors))
    lost, half = _lost(_scored_on(lab), [one.network for one in exact], [one.network for one in noisy])
    return Evidence(
        "T13",
        "Protected labels cost no accuracy.",
        "section 4.2, tables 4.6 and 4.7",
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


def t15_private_understudy(lab: Lab, epsilon: float = 7.0) -> Evidence:
    """The same noisy labels, learnt with and without DP-Adam."""
    vote = Aggregator.for_epsilon("laplace", 0.2, DELTA, lab.scale.instructors)
    plain = _labelled(lab, vote)
    private = _labelled(lab, vote, method="dp-adam", epsilon=epsilon)
    lost, half = _lost(_scored_on(lab), [one.network for one in plain], [one.network for one in private])
    return Evidence(
        "T15",
        "DPAdam for the understudy as well adds privacy and costs no accuracy.",
        "sections 3.3 and 4.2, table 4.7",
        {
            "data": lab.scale.data,
            "accuracy": 100 * scores_of(_rest(lab), [one.network for one in plain]).accuracy,
            "lost": lost,
            "half_width": half,
            "epsilon": plain[0].label_epsilon,
            "epsilon_with": private[0].label_epsilon,
        },
        lambda m: Verdict.of(
            m["lost"] <= POINT and m["epsilon_with"] < m["epsilon"], m["lost"] <= max(POINT, m["half_width"])
        ),
        "The understudy ({data}) falls from {accuracy:.1f} % by {lost:.1f} points (+-{half_width:.1f}) when it is "
        "trained by DPAdam, and a private example still costs {epsilon_with:.3g}, as without: it is in the labels.",
    )


def _judge_t15(m: Mapping[str, Any]) -> Verdict:
    harmless = m["lost"] <= max(POINT, m["half_width"])
    return Verdict.of(harmless and m["epsilon_with"] < m["epsilon"], harmless)


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


def t27_built(described: Mapping[str, Mapping[str, int]] = LAYERS) -> Evidence:
    """What the thesis says of its networks, beside the layers of those that were trained here."""
    networks = {kind: build_classifier(kind, (1, 28, 28), 10) for kind in ("cnn", "alexnet", "vgg")}
    layers = {kind: (len(network.convolutions), len(network.dense)) for kind, network in networks.items()}
    built = dict(zip(LAYERS, (layers["alexnet"][1], sum(layers["vgg"]), layers["cnn"][0]), strict=True))
    fits = {what: [n == built[what] for n in places.values()] for what, places in described.items()}
    return Evidence(
        "T27",
        "The networks are AlexNet, VGG and a simple CNN, each of a stated depth.",
        "abstract, résumé, sections 2.5 and 3.5, chapter 5",
        {
            **built,
            "statements": sum(map(len, fits.values())),
            "statements_that_fit": sum(map(sum, fits.values())),
            "networks_without_one": sum(not any(one) for one in fits.values()),
        },
        lambda m: Verdict.of(m["statements_that_fit"] == m["statements"], m["networks_without_one"] == 0),
        "Built here are 2 + 2 layers of the CNN, 5 + 3 of AlexNet and 13 + 3 of VGG, convolutions and dense ones: "
        "{statements_that_fit} of {statements} statements fit.",
    )
