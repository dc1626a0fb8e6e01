"""What the thesis says of itself: numbers and descriptions that contradict each other, or that are missing.

Rows T2, T14, T17 to T20 and T27 of the claims ledger; the printed values are data here, with their places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np

from edp_lab.privacy.foundations import analytic_gaussian_sigma, gaussian_epsilon, laplace_scale
from edp_lab.privacy.gdp import gdp_delta
from edp_lab.privacy.noise_schedule import Schedule
from edp_lab.privacy.renyi import RenyiDP
from edp_lab.reproduce.evidence import Evidence, Verdict
from edp_lab.reproduce.thesis.thesis_foundations import printed_sigma

DELTA = 1e-5
TEST_IMAGES = 1000  # a tenth of the MNIST test set (section 3.5, item 3)


class PrintedAccuracy(NamedTuple):
    place: str
    epsilon: float
    delta: float
    accuracy: float


DPADAM = (
    PrintedAccuracy("table 4.8, VGG", 1, 1e-6, 0.90),
    PrintedAccuracy("table 4.8, VGG", 2, 1e-6, 0.93),
    PrintedAccuracy("table 4.8, VGG", 5, 1e-6, 0.95),
    PrintedAccuracy("table 4.8, VGG", 10, 1e-6, 0.98),
    PrintedAccuracy("table 6.1", 10, 1e-5, 0.973),
    PrintedAccuracy("table 6.2, CNN", 7, 1e-5, 0.973),
    PrintedAccuracy("table 6.2, CNN", 5, 1e-5, 0.95),
    PrintedAccuracy("table 6.2, CNN", 2, 1e-5, 0.917),
)
DPSGD = {7: 0.97, 5: 0.94, 2: 0.91}  # table 6.2, at delta 1e-5
PUBLISHED_AT_2 = 0.95  # Abadi et al. 2016, section 5.2: (2, 1e-5), the work that the thesis compares with
LAYERS: dict[str, dict[str, int]] = {
    "dense layers of AlexNet": {"section 2.5.3": 3, "section 3.5": 2},
    "weight layers of VGG": {"section 2.5.2": 16, "chapter 5": 19},
    "layers of the simple CNN": {"abstract": 2, "résumé": 3},
}
IN_PATE = {  # whether Papernot et al. 2017 (PATE) have it
    "disjoint parts, a model on each": True,
    "noisy majority vote": True,
    "a further model trained on the noisy labels": True,
    "loss fixed by the number of labels": True,
    "noise on the inputs": False,
    "private training of each model": False,
}
NEEDED = ("epsilon", "delta", "sigma", "clip norm", "batch size", "epochs")


def t2_sigma(stated: float = 0.6, in_formula: float = 0.4) -> Evidence:
    """Gaussian(0, x): x as a standard deviation, and as a variance, as section 2.6.6 defines N(mu, sigma^2)."""
    return Evidence(
        "T2",
        "The noise of phase I has sigma 0.6; the same step adds Gaussian(0, 0.4).",
        "section 3.1.1, before and after eq 3.1",
        {
            "stated": stated,
            "in_formula": in_formula,
            "epsilon_at_stated": gaussian_epsilon(1.0, stated, DELTA),
            "epsilon_if_deviation": gaussian_epsilon(1.0, in_formula, DELTA),
            "distance_if_deviation": abs(stated - in_formula),
            "distance_if_variance": abs(stated**2 - in_formula),
        },
        lambda m: Verdict.of(m["distance_if_deviation"] < 0.05, m["distance_if_variance"] < 0.05),
        "As standard deviations {stated:g} and {in_formula:g} contradict each other (epsilon "
        "{epsilon_at_stated:.1f} and {epsilon_if_deviation:.1f} for sensitivity 1); they agree only if the second is a "
        "variance, rounded to one digit.",
    )


def t14_output_noise(named: Sequence[str] = ("gaussian", "laplace"), epsilon: float = 0.2) -> Evidence:
    """Two noises for one step, and what each has to be where one instructor's vote moves (L1 2, L2 sqrt 2)."""
    laplace = math.sqrt(2) * laplace_scale(2.0, epsilon)
    return Evidence(
        "T14",
        "The labels are protected by the Gaussian mechanism (chapter 3), by the Laplace mechanism (chapter 4).",
        "sections 3.2.1 (either), 3.3 (Gaussian) and 4.2 (Laplace)",
        {
            "named": " and ".join(named),
            "different": len(set(named)),
            "laplace_deviation": laplace,
            "gaussian_deviation": analytic_gaussian_sigma(math.sqrt(2), epsilon, DELTA),
            "delta_of_gaussian_at_laplace_deviation": gdp_delta(math.sqrt(2) / laplace, epsilon),
        },
        lambda m: Verdict.of(m["different"] == 1, m["delta_of_gaussian_at_laplace_deviation"] == 0),
        "Named: {named}. Only Laplace noise can be 0.2-DP without a delta; at its deviation {laplace_deviation:.1f} "
        "Gaussian noise has delta {delta_of_gaussian_at_laplace_deviation:.2g}, and 1e-5 takes "
        "{gaussian_deviation:.1f}.",
    )


def t17_accuracies(printed: Sequence[PrintedAccuracy] = DPADAM) -> Evidence:
    """Pairs where the weaker guarantee has the lower accuracy, and those beyond the sampling error of 1000 images."""
    pairs = [(a, b) for a, b in permutations(printed, 2) if a.epsilon <= b.epsilon and a.delta <= b.delta]
    falls = [(a, b) for a, b in pairs if a.accuracy > b.accuracy]
    beyond = [(a, b) for a, b in falls if a.accuracy - b.accuracy > _half_width(a.accuracy, b.accuracy)]
    return Evidence(
        "T17",
        "Accuracy grows with epsilon, by the same measure in all tables.",
        "tables 4.8, 6.1 and 6.2",
        {
            "comparable_pairs": len(pairs),
            "falls": len(falls),
            "falls_beyond_sampling_error": len(beyond),
            "examples": "; ".join(f"{a.place} {a.accuracy:.1%}, {b.place} {b.accuracy:.1%}" for a, b in falls),
        },
        lambda m: Verdict.of(m["falls"] == 0, m["falls_beyond_sampling_error"] == 0),
        "{falls} of {comparable_pairs} comparable pairs have the lower accuracy at the weaker guarantee ({examples}), "
        "{falls_beyond_sampling_error} of them beyond the sampling error of 1000 images; the networks differ.",
    )


def t18_gains(published: float = PUBLISHED_AT_2) -> Evidence:
    """DPAdam against DPSGD in table 6.2, with 95 % half-widths, and DPSGD against its own authors."""
    dpadam = {row.epsilon: row.accuracy for row in DPADAM if row.place.startswith("table 6.2")}
    gains = {epsilon: dpadam[epsilon] - accuracy for epsilon, accuracy in DPSGD.items()}
    widths = {epsilon: _half_width(accuracy, dpadam[epsilon]) for epsilon, accuracy in DPSGD.items()}
    return Evidence(
        "T18",
        "DPAdam is more accurate than DPSGD, which reaches 91 % at (2, 1e-5).",
        "chapter 6, table 6.2",
        {
            "largest_gain": max(gains.values()),
            "gains_beyond_sampling_error": sum(gains[e] > widths[e] for e in gains),
            "half_width_of_97_percent": _half_width(0.97),
            "smallest_half_width_of_a_gain": min(widths.values()),
            "dpsgd_printed_at_2": DPSGD[2],
            "dpsgd_published_at_2": published,
            "dpadam_at_2": dpadam[2],
        },
        _judge_t18,
        "No gain exceeds {largest_gain:.1%}, {gains_beyond_sampling_error} of 3 are beyond the sampling error of 1000 "
        "images (+-{half_width_of_97_percent:.2%} for 97 % alone), and DPSGD's authors report "
        "{dpsgd_published_at_2:.0%} where the table has {dpsgd_printed_at_2:.0%} and DPAdam {dpadam_at_2:.1%}.",
    )


def _judge_t18(m: Mapping[str, Any]) -> Verdict:
    """Gains within the sampling error show nothing; that DPSGD's authors had more than DPAdam does."""
    if m["gains_beyond_sampling_error"] > 0:
        return Verdict.of(m["dpsgd_printed_at_2"] >= m["dpsgd_published_at_2"], True)
    return Verdict.FAILS if m["dpadam_at_2"] < m["dpsgd_published_at_2"] else Verdict.UNTESTABLE


def _half_width(*accuracies: float) -> float:
    """Of the 95 % interval of an accuracy, or of the difference of two from separate tests."""
    return 1.96 * math.sqrt(sum(p * (1 - p) / TEST_IMAGES for p in accuracies))


def t19_unstated(stated: Sequence[str] = ("epsilon", "delta")) -> Evidence:
    """What (7, 1e-5) leaves open: the epsilon of eq 3.3's noise for batches of 64 to 512 and 5 to 60 epochs."""
    z, images = np.array([printed_sigma(7.0, DELTA)]), 6000  # of each instructor

    def account(batch: int, epochs: int) -> float:
        return RenyiDP(Schedule(z, np.array([epochs * images // batch]), batch / images)).epsilon(DELTA)

    found = [account(batch, epochs) for batch, epochs in product((64, 512), (5, 60))]
    missing = [name for name in NEEDED if name not in stated]
    return Evidence(
        "T19",
        "DPAdam trains with (7, 1e-5)-DP.",
        "section 4.2, tables 4.6 and 4.7",
        {
            "claimed_epsilon": 7.0,
            "missing": ", ".join(missing),
            "lowest_epsilon": min(found),
            "highest_epsilon": max(found),
        },
        lambda m: Verdict.UNTESTABLE if m["missing"] else Verdict.of(m["highest_epsilon"] <= m["claimed_epsilon"]),
        "Not stated: {missing}. With eq 3.3's sigma for epsilon 7, an instructor's training costs between "
        "{lowest_epsilon:.1f} and {highest_epsilon:.1f}, by batch size and epochs.",
    )


def t20_architecture(parts: Mapping[str, bool] = IN_PATE) -> Evidence:
    """Which parts of the three phases PATE has."""
    return Evidence(
        "T20",
        "The three-phase architecture is new.",
        "abstract; chapter 1, contributions",
        {
            "parts": len(parts),
            "parts_in_pate": sum(parts.values()),
            "new": ", ".join(part for part, known in parts.items() if not known),
        },
        lambda m: Verdict.of(m["parts_in_pate"] == 0, m["parts_in_pate"] < m["parts"]),
        "{parts_in_pate} of {parts} parts, phases II and III but for private training, are PATE (Papernot et al. "
        "2017), which is not cited; beside it stand: {new}.",
    )


def t27_layers(described: Mapping[str, Mapping[str, int]] = LAYERS) -> Evidence:
    """How many layers the networks have, by where one reads."""
    places = {f"{what} ({place})": n for what, where in described.items() for place, n in where.items()}
    return Evidence(
        "T27",
        "The networks are AlexNet, VGG and a simple CNN, each of a stated depth.",
        "abstract, résumé, sections 2.5 and 3.5, chapter 5",
        {**places, "contradictions": sum(len(set(where.values())) > 1 for where in described.values())},
        lambda m: Verdict.of(m["contradictions"] == 0),
        "{contradictions} of the networks have two different depths.",
    )


TEXT_CLAIMS = (t2_sigma, t14_output_noise, t17_accuracies, t18_gains, t19_unstated, t20_architecture, t27_layers)
