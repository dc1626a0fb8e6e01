"""The thesis' claims about its networks: what its tables say of them (T17, T18), how they are built (T20, T27), what
attacks on trained ones reach (T24), and how they learn (T25, T28).
"""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edp_lab.attacks.extraction import SETTINGS, ExtractionRow, InversionRow, extract, invert, share_out, train_victims
from edp_lab.corpora.images import Images, load_images
from edp_lab.errors import UsageError
from edp_lab.reproduce.claims import CONDITIONAL, FAILS, HOLDS, UNTESTABLE, Claim, Measured, Told, Verdict
from edp_lab.reproduce.paper.runs import spread
from edp_lab.reproduce.thesis.lab import Lab
from edp_lab.reproduce.thesis.thesis_tables import DELTA, QUICK, TABLES, Network, Scale
from edp_lab.three_phase.votes import Aggregator

# ---- What the tables say ---------------------------------------------------------------------------------------------

TEST_IMAGES = 1000  # a tenth of the MNIST test set (section 3.5, item 3)


class PrintedAccuracy(NamedTuple):
    place: str
    epsilon: float
    delta: float
    accuracy: float


DPADAM = tuple(
    PrintedAccuracy(place, *cell.claimed, cell.value / 100)
    for table, place in (("4.8", "table 4.8, VGG"), ("6.1", "table 6.1"), ("6.2", "table 6.2, CNN"))
    for cell in TABLES[table].cells()
    if cell.claimed and cell.value and (cell.row == "DPAdam" or (table == "4.8" and cell.column == "accuracy"))
)
DPSGD = {  # table 6.2, at delta 1e-5
    cell.claimed.epsilon: cell.value / 100
    for cell in TABLES["6.2"].cells()
    if cell.claimed and cell.value and cell.row == "DPSGD"
}
PUBLISHED_AT_2 = 0.95  # Abadi et al. 2016, section 5.2: (2, 1e-5), the work that the thesis compares with


@Claim(
    "T17", "The larger epsilon, the higher the accuracy.",
    source="table 4.8, caption; tables 6.1 and 6.2", quote="the privacy will decrease and accuracy will increase",
    cell="11_claims#thesis-text",
    rule=lambda m: Verdict.of(m.falls == 0, m.falls_within_a_table == 0),
    said="Within one table, yes: in all {pairs_within_a_table} pairs. Between tables, whose networks differ, {falls} "
    "of {pairs_between_tables} comparable pairs have the lower accuracy at the weaker guarantee ({examples}), "
    "{falls_beyond_sampling_error} of them beyond the sampling error of 1000 images. Each number is of one training, "
    "without an interval.",
    strength="argued",
    counter={
        "no fall": (HOLDS, {"falls": 0}),
        "a fall within a table": (FAILS, {"falls_within_a_table": 1}),
    },
)  # fmt: skip
def t17_accuracies(printed: Sequence[PrintedAccuracy] = DPADAM) -> Measured:
    """Pairs where the weaker guarantee has the lower accuracy, and those beyond the sampling error of 1000 images."""
    pairs = [(a, b) for a, b in permutations(printed, 2) if a.epsilon <= b.epsilon and a.delta <= b.delta]
    falls = [(a, b) for a, b in pairs if a.accuracy > b.accuracy]
    beyond = [(a, b) for a, b in falls if a.accuracy - b.accuracy > _half_width(a.accuracy, b.accuracy)]
    return {
        "pairs_within_a_table": sum(a.place == b.place for a, b in pairs),
        "pairs_between_tables": sum(a.place != b.place for a, b in pairs),
        "falls": len(falls),
        "falls_within_a_table": sum(a.place == b.place for a, b in falls),
        "falls_beyond_sampling_error": len(beyond),
        "examples": "; ".join(f"{a.place} {a.accuracy:.1%}, {b.place} {b.accuracy:.1%}" for a, b in falls),
    }


def _half_width(*accuracies: float) -> float:
    """Of the 95 % interval of an accuracy, or of the difference of two from separate tests."""
    return 1.96 * math.sqrt(sum(p * (1 - p) / TEST_IMAGES for p in accuracies))


def _t18_rule(m: Any) -> Verdict:
    """Differences within the sampling error show nothing. What DPSGD's authors report is of another network: it tells
    what a gain over the table's DPSGD is worth, not whether there is one."""
    if m.gains_beyond_sampling_error > 0:
        return Verdict.of(m.dpsgd_printed_at_2 >= m.dpsgd_published_at_2, True)
    return FAILS if m.losses_beyond_sampling_error > 0 else UNTESTABLE


@Claim(
    "T18", "Our reading: DPAdam is more accurate than DPSGD, which reaches 91 % at (2, 1e-5).",
    source="chapter 6, table 6.2", quote="the more detailed comparison with their work is in the table 6.2",
    cell="11_claims#thesis-text",
    rule=_t18_rule,
    said="No gain exceeds {largest_gain:.1%}, and {gains_beyond_sampling_error} of {gains} are beyond the sampling "
    "error of 1000 images (±{half_width_of_97_percent:.2%} for 97 % alone), which decides nothing. DPSGD's authors "
    "report {dpsgd_published_at_2:.0%} at (2, 1e-5) with another network and training, so the table's "
    "{dpsgd_printed_at_2:.0%} is a weak baseline.",
    strength="argued",
    counter={
        "a real gain": (CONDITIONAL, {"gains_beyond_sampling_error": 1}),
        "a real gain over authors with no more": (
            HOLDS,
            {"gains_beyond_sampling_error": 1, "dpsgd_published_at_2": 0.91},
        ),
        "a real loss": (FAILS, {"losses_beyond_sampling_error": 1}),
    },
)  # fmt: skip
def t18_gains() -> Measured:
    """DPAdam against DPSGD in table 6.2, with 95 % half-widths, and DPSGD against its own authors."""
    dpadam = {row.epsilon: row.accuracy for row in DPADAM if row.place.startswith("table 6.2")}
    gains = {epsilon: dpadam[epsilon] - accuracy for epsilon, accuracy in DPSGD.items()}
    widths = {epsilon: _half_width(accuracy, dpadam[epsilon]) for epsilon, accuracy in DPSGD.items()}
    return {
        "gains": len(gains),
        "largest_gain": max(gains.values()),
        "gains_beyond_sampling_error": sum(gains[e] > widths[e] for e in gains),
        "losses_beyond_sampling_error": sum(-gains[e] > widths[e] for e in gains),
        "half_width_of_97_percent": _half_width(0.97),
        "smallest_half_width_of_a_gain": min(widths.values()),
        "dpsgd_printed_at_2": DPSGD[2],
        "dpsgd_published_at_2": PUBLISHED_AT_2,
        "dpadam_at_2": dpadam[2],
    }


# ---- How they are built ----------------------------------------------------------------------------------------------

IN_PATE = {  # whether Papernot et al. 2017 (PATE) have it
    "disjoint parts, a model on each": True,
    "noisy majority vote": True,
    "a further model trained on the noisy labels": True,
    "loss fixed by the number of labels": True,
    "noise on the inputs": False,
    "private training of each model": False,
}
LAYERS: dict[str, dict[str, int]] = {
    "dense layers of AlexNet": {"section 2.5.3": 3, "section 3.5": 2},
    "weight layers of VGG": {"section 2.5.2": 16, "chapter 5": 19},
    "layers of the simple CNN": {"abstract": 2, "résumé": 3},
}


@Claim(
    "T20", "The three-phase architecture is new (to the best of the author's knowledge).",
    source="chapter 5, first sentences; chapter 1, contributions",
    quote="This research led to a new approach in privacy preservation in ML systems to the best of our knowledge",
    cell="11_claims#thesis-text",
    rule=lambda m: Verdict.of(m.parts_in_pate == 0, m.parts_in_pate < m.parts),
    said="{parts_in_pate} of {parts} parts, phases II and III but for private training, are PATE (Papernot et al. "
    "2017), which is not cited; beside it stand: {new}.",
    strength="argued",
    counter={"nothing in PATE": (HOLDS, {"parts_in_pate": 0}), "everything in PATE": (FAILS, {"parts_in_pate": 6})},
)  # fmt: skip
def t20_architecture() -> Measured:
    """Which parts of the three phases PATE has."""
    new = [part for part, known in IN_PATE.items() if not known]
    return {"parts": len(IN_PATE), "parts_in_pate": len(IN_PATE) - len(new), "new": ", ".join(new)}


@Claim(
    "T27", "The networks are AlexNet, VGG and a simple CNN, each of a stated depth.",
    source="abstract, résumé, sections 2.5 and 3.5, chapter 5", quote="As this CNN network has 19 latent layer",
    cell="11_claims#thesis-text",
    rule=lambda m: Verdict.of(m.contradictions == 0),
    said="{contradictions} of the networks have two different depths.",
    strength="proven",
    counter={"one depth each": (HOLDS, {"contradictions": 0})},
)  # fmt: skip
def t27_layers() -> Measured:
    """How many layers the networks have, by where one reads."""
    places = {f"{what} ({place})": n for what, where in LAYERS.items() for place, n in where.items()}
    return {**places, "contradictions": sum(len(set(where.values())) > 1 for where in LAYERS.values())}


# ---- Attacks by the API, on digits -----------------------------------------------------------------------------------

UNSEEING = "strangers"
VICTIMS = ("plain", "understudy", "dp-adam", UNSEEING)
EXTRACTION_QUERIES, INVERSION_QUERIES = 400, 1000


def at_most_queries(rows: Sequence[Any]) -> dict[str, Any]:
    """The row of each victim with the most queries; the white box has no queries."""
    asked = sorted((row for row in rows if row.queries is not None), key=lambda row: row.queries)
    return {row.victim: row for row in asked}


def _attacked(told: Told) -> Mapping[str, Any]:
    """Train the plain model, the understudy, DP-Adam and the strangers' model on digits, and attack all four."""
    shares = share_out(load_images("digits"))
    victims = train_victims(shares, VICTIMS, SETTINGS, told)
    return {
        "extraction": extract(victims, shares, [EXTRACTION_QUERIES], told=told),
        "inversion": invert(victims, shares, [INVERSION_QUERIES], told=told),
    }


SUCCESSES = ("understudy_agreement", "understudy_judged", "dp_adam_agreement", "dp_adam_judged")


def _t24_rule(m: Any) -> Verdict:
    """An attack succeeds where its interval lies above all of those by guessing."""
    found = [getattr(m, f"{name}_low") > getattr(m, f"guess_{name.split('_')[-1]}_high") for name in SUCCESSES]
    return Verdict.of(not any(found), not all(found))


def _if_low(*names: str) -> tuple[Verdict, Measured]:
    """Where the interval of each begins at a tenth, the claim holds in part."""
    return CONDITIONAL, {f"{name}_low": 0.1 for name in names}


@Claim(
    "T24", "DP-Adam prevents model inversion and model extraction, and the understudy prevents attacks by the API.",
    source='section 3.2.2, first paragraph; of the understudy chapter 1, "this phase will prevent API attacks"',
    quote="we can prevent form model inversion and model extraction attacks",
    cell="11_claims#thesis-trained", inputs=_attacked, trains=True,
    rule=_t24_rule,
    said="Copies made by {extraction_queries} queries agree with the plain model on {plain_agreement:.1%} of new "
    "images, with the understudy (epsilon {understudy_epsilon:.3g↑}) on {understudy_agreement:.1%}, with DP-Adam "
    "(epsilon {dp_adam_epsilon:.2g↑}) on {dp_adam_agreement:.1%}; guessing gives {guess_agreement_high:.1%↑} at "
    "most. Of images drawn by {inversion_queries} queries a judge takes {plain_judged:.0%}, "
    "{understudy_judged:.0%} and {dp_adam_judged:.0%} for their class; guessing gives {guess_judged_high:.0%↑} at "
    "most. Differential privacy bounds neither: a model that saw no private image, of epsilon "
    "{strangers_epsilon:g}, gives {strangers_agreement:.1%} and {strangers_judged:.0%}.",
    strength="measured ({images} images drawn, of the understudy 95 %: at least {understudy_judged_low:.0%↓})",
    counter={
        "copies of the protected no better than guesses": _if_low("understudy_agreement", "dp_adam_agreement"),
        "drawings of the protected no better than guesses": _if_low("understudy_judged", "dp_adam_judged"),
        "an understudy that tells nothing": _if_low("understudy_agreement", "understudy_judged"),
        "all but copies of DP-Adam prevented": _if_low("understudy_agreement", "understudy_judged", "dp_adam_judged"),
        "all prevented": (HOLDS, {f"{name}_low": 0.1 for name in SUCCESSES}),
        "guesses as good": (HOLDS, {"guess_agreement_high": 1.0, "guess_judged_high": 1.0}),
    },
)  # fmt: skip
def t24_api_attacks(extraction: Sequence[ExtractionRow], inversion: Sequence[InversionRow]) -> Measured:
    """From the attacks on all of `VICTIMS`, at the most queries that there are.

    The claim holds if none succeeds on a protected victim, in part if some do not. The strangers' model decides
    nothing: it shows that the success is none that an epsilon could prevent, since it has the epsilon 0 towards every
    private image.
    """
    copied, inverted = at_most_queries(extraction), at_most_queries(inversion)
    measured: dict[str, float | str | bool] = {
        "extraction_queries": copied[UNSEEING].queries,
        "inversion_queries": inverted[UNSEEING].queries or 0,
        "images": inverted[UNSEEING].images,
        "guess_agreement_high": max(copied[name].guess_agreement_interval[1] for name in VICTIMS),
        "guess_judged_high": max(inverted[name].guess_judged_interval[1] for name in VICTIMS),
    }
    for name in VICTIMS:
        copy, drawn, key = copied[name], inverted[name], name.replace("-", "_")
        measured[f"{key}_accuracy"] = copy.victim_accuracy
        measured[f"{key}_agreement"], measured[f"{key}_judged"] = copy.agreement, drawn.judged
        measured[f"{key}_agreement_low"] = copy.agreement_interval[0]
        measured[f"{key}_judged_low"] = drawn.judged_interval[0]
        if copy.epsilon is not None:
            measured[f"{key}_epsilon"] = copy.epsilon
    return measured


# ---- Training, on digits ---------------------------------------------------------------------------------------------

TUNED = {"dp-adam": (1e-2, 2e-2, 5e-2, 0.1), "dp-sgd": (4.0, 8.0, 16.0, 32.0)}  # learning rates, at the default C
TUNING_SHARE = 0.2  # of the training images, on which the rates are compared
POINT = 1.0  # of accuracy; the thesis prints whole percents
TARGET = 0.9  # of the lower of two final accuracies: who gets there first has converged faster


def _lab(told: Told, scale: Scale = QUICK) -> Mapping[str, Any]:
    """Networks on digits if nothing else is asked for, kept in a folder that goes with the lab."""
    folder = tempfile.TemporaryDirectory()
    made = Lab(Path(folder.name), scale, 0, lambda line, kept: told(line))
    weakref.finalize(made, folder.cleanup)
    return {"lab": made}


def _t25_rule(m: Any) -> Verdict:
    """Faster or slower beyond chance; worse at the end, it is faster under a condition. A difference within chance on
    one small network decides nothing."""
    faster, slower = (sign * m.saved > m.saved_half_width for sign in (1, -1))
    if not faster:
        return FAILS if slower else UNTESTABLE
    return Verdict.of(m.gain >= -m.gain_half_width, True)


@Claim(
    "T25", "DPAdam converges faster than DPSGD.",
    source="section 3.2.2; chapters 5 and 6", quote="it converges faster than the DPSGD algorithm",
    cell="11_claims#thesis-trained", inputs=_lab, trains=True,
    rule=_t25_rule,
    said="At epsilon {epsilon:g} ({data}, learning rates {adam_rate:g} and {sgd_rate:g}, the best of four each) DPSGD "
    "reaches 90 % of the final accuracy in {sgd_epochs:.1f} epochs, DPAdam saves {saved:.1f} "
    "(±{saved_half_width:.1f}) of these and ends at {adam_accuracy:.1f} %, {gain:+.1f} points "
    "(±{gain_half_width:.1f}) beside DPSGD; {repeats} runs each. What is within chance on a small CNN and 8 x 8 "
    "pixels shows neither that it is faster nor that it is not.",
    strength="measured ({repeats} runs, {saved:.1f} ±{saved_half_width:.1f} epochs saved)",
    counter={
        "faster": (HOLDS, {"saved": 3.0, "saved_half_width": 1.0, "gain": 0.0, "gain_half_width": 1.0}),
        "faster but worse": (
            CONDITIONAL,
            {"saved": 3.0, "saved_half_width": 1.0, "gain": -5.0, "gain_half_width": 1.0},
        ),
        "slower": (FAILS, {"saved": -3.0, "saved_half_width": 1.0}),
    },
)  # fmt: skip
def t25_convergence(lab: Lab, epsilon: float = 3.0, repeats: int = 5) -> Measured:
    """The CNN by DP-Adam and DP-SGD at one epsilon, noise and number of steps, each at its best learning rate.

    The rates are compared on a fifth of the training images, at one seed; that costs privacy, which is not accounted.
    """
    rates: dict[str, float] = {}
    curves: list[list[list[float]]] = []  # accuracy on the test images, by method, run and epoch
    for method in TUNED:
        how: dict[str, Any] = {"model": "cnn", "method": method, "epsilon": epsilon}
        rates[method] = how["lr"] = _best_rate(lab, **how)
        jobs = [lab.job(f"{method} at {epsilon:g}, run {run}", 0, lab.images(0), **how) for run in range(repeats)]
        curves.append([[row["accuracy"] for row in network.rows] for network in lab.train(jobs)])
    pairs = list(zip(*curves, strict=True))
    epochs = [_epochs_to(adam, sgd) for adam, sgd in pairs]
    return {
        "data": lab.scale.data,
        "epsilon": epsilon,
        "repeats": repeats,
        "adam_rate": rates["dp-adam"],
        "sgd_rate": rates["dp-sgd"],
        "sgd_epochs": float(np.mean([sgd for _, sgd in epochs])),
        **spread(saved=[sgd - adam for adam, sgd in epochs]),
        "adam_accuracy": float(np.mean([100 * adam[-1] for adam, _ in pairs])),
        **spread(gain=[100 * (adam[-1] - sgd[-1]) for adam, sgd in pairs]),
    }


def _best_rate(lab: Lab, **how: Any) -> float:
    data, rates = lab.images(0), TUNED[how["method"]]
    held = int(TUNING_SHARE * len(data.train))
    parts = data.train[held:], data.train_labels[held:], data.train[:held], data.train_labels[:held]
    seen = Images(data.name, *parts, data.classes)
    jobs = [lab.job(f"{how['method']}, rate {rate:g} to compare", 0, seen, lr=rate, **how) for rate in rates]
    hits = [np.mean(one.predicted == seen.test_labels) for one in lab.train(jobs)]
    return rates[int(np.argmax(hits))]


def _epochs_to(first: Sequence[float], second: Sequence[float]) -> tuple[int, int]:
    """After how many epochs each has reached TARGET of the lower of their last accuracies."""
    goal = TARGET * min(first[-1], second[-1])
    return tuple(next(k for k, hit in enumerate(curve, 1) if hit >= goal) for curve in (first, second))  # type: ignore[return-value]


def _voted(told: Told) -> Mapping[str, Any]:
    """On MNIST, as in the thesis, where it is at hand."""
    try:
        load_images("mnist")
    except UsageError:
        return _lab(told)
    return _lab(told, Scale("mnist", 1, 1, 50, epochs=5))


def _t28_rule(m: Any) -> Verdict:
    """By the ends of the interval: all of it within a point, none of it, or both, which decides nothing."""
    if m.lost + m.half_width <= m.point:
        return HOLDS
    return FAILS if m.lost - m.half_width > m.point else UNTESTABLE


@Claim(
    "T28", "Our reading: noise on the votes costs no accuracy, since the best is 97 % without and with it.",
    source="section 4.2, tables 4.6 (without) and 4.7 (with); section 3.2.1 (noisy-max)",
    quote="We reach the maximum accuracy of 97%, F-score 97%, Recall 96% and Precision 97%",
    cell="11_claims#thesis-trained", inputs=_voted, trains=True,
    rule=_t28_rule,
    said="Even if all ten instructors were right on every image, {right_noised:.0%} of {labels:,} labels ({data}) are "
    "right after noise of epsilon 0.2 each. An understudy, a CNN without other noise, falls from {accuracy:.1f} % by "
    "{lost:.1f} points (±{half_width:.1f}, of the test images; each is trained once).",
    strength="measured ({images:,} test images of one training, {lost:.1f} ±{half_width:.1f} points lost)",
    counter={
        "nothing lost": (HOLDS, {"lost": 0.1, "half_width": 0.5}),
        "within chance": (UNTESTABLE, {"lost": 5.0, "half_width": 6.0}),
    },
)  # fmt: skip
def t28_understudy(lab: Lab) -> Measured:
    """Two understudies, on true labels and on what noise leaves of ten votes for each."""
    data, public = lab.images(0), lab.public
    truth, rest = data.test_labels[:public], (data.test[public:], data.test_labels[public:])
    vote = Aggregator.for_epsilon("laplace", 0.2, DELTA, lab.scale.instructors)
    votes = np.repeat(np.eye(data.classes, dtype=np.float32)[truth][None], lab.scale.instructors, axis=0)
    noised = vote.labels(votes, np.random.default_rng(0))
    before, after = lab.train([
        lab.job(f"{name} labels", 0, Images(data.name, data.test[:public], labels, *rest, data.classes), model="cnn")
        for name, labels in (("true", truth), ("noised", noised))
    ])  # fmt: skip
    lost, half = _lost(rest[1], before, after)
    return {
        "labels": public,
        "images": len(rest[1]),
        "data": lab.scale.data,
        "right_noised": float(np.mean(noised == truth)),
        "accuracy": 100 * float(np.mean(before.predicted == rest[1])),
        "lost": lost,
        "half_width": half,
        "point": POINT,
    }


def _lost(truth: NDArray[Any], before: Network, after: Network) -> tuple[float, float]:
    """Points of accuracy from one network to another on the same images; half-width of the 95 % interval."""
    first, second = (one.predicted == truth for one in (before, after))
    difference = 100 * (first.astype(float) - second)
    return float(difference.mean()), 1.96 * float(difference.std()) / math.sqrt(len(truth))
