"""The thesis' claims about many releases, each with evidence that needs no trained network.

Rows T6, T9 to T12, T15, T22 and T26 of the claims ledger: amplification by sampling, composition, stacked phases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edp_lab.privacy.composition import (
    advanced_composition,
    amplify_by_subsampling,
    basic_composition,
    best_composition,
    parallel_composition,
)
from edp_lab.privacy.foundations import response_epsilon
from edp_lab.privacy.noise_schedule import Schedule
from edp_lab.privacy.pld import PrivacyLossDistribution
from edp_lab.privacy.renyi import RenyiDP
from edp_lab.privacy.zcdp import zcdp_epsilon
from edp_lab.reproduce.evidence import Evidence, Measured, Verdict
from edp_lab.reproduce.thesis.thesis_foundations import printed_sigma

DELTA = 1e-5
PHASES = ((2.5, DELTA), (7.0, DELTA), (0.2, 0.0))  # pixels, training, labels: as the thesis states them
MNIST = 60000
QUERIES = 9000  # 9/10 of the MNIST test images get a noisy label (figure 3.1)


def t6_sampled_step(epsilon: float = 7.0, rate: float = 0.01, delta: float = DELTA) -> Evidence:
    """One step of eq 3.3's noise on a Poisson sample: the general bound, and this mechanism's own account."""
    bound = amplify_by_subsampling(epsilon, delta, rate)
    own = PrivacyLossDistribution(Schedule(np.array([printed_sigma(epsilon, delta)]), np.array([1]), rate))
    return Evidence(
        "T6",
        "A step that is (eps, delta)-DP for its random batch is (q eps, q delta)-DP for the whole data set.",
        "section 3.2.2, below eq 3.3",
        {
            "epsilon": epsilon,
            "rate": rate,
            "claimed_epsilon": rate * epsilon,
            "bound_for_any_mechanism": bound.epsilon,
            "epsilon_of_this_mechanism": own.epsilon(bound.delta),
        },
        lambda m: Verdict.of(
            m["bound_for_any_mechanism"] <= m["claimed_epsilon"] * (1 + 1e-9),
            m["epsilon_of_this_mechanism"] <= m["claimed_epsilon"],
        ),
        "At q {rate:g} and epsilon {epsilon:g} the theorem gives ln(1 + q (e^eps - 1)) = {bound_for_any_mechanism:.3g} "
        "and the noise of eq 3.3 itself {epsilon_of_this_mechanism:.3g}, where {claimed_epsilon:.3g} is claimed; both "
        "need Poisson or fixed-size random batches.",
    )


def t9_ten_instructors(instructors: int = 10, batch: int = 250, epochs: int = 10, z: float = 1.1) -> Evidence:
    """The same training, Poisson batches and noise, on all images and on a tenth of them each."""
    one, many = (_training(z, epochs, batch, MNIST // parts) for parts in (1, instructors))
    together = parallel_composition([(many, DELTA)] * instructors).epsilon
    return Evidence(
        "T9",
        "Ten instructors on disjoint parts are ten times as private as one.",
        "sections 3.4.2 and 4.2",
        {
            "instructors": instructors,
            "epsilon_with_one": one,
            "epsilon_with_many": together,
            "epsilon_claimed": one / instructors,
        },
        lambda m: Verdict.of(
            m["epsilon_with_many"] <= m["epsilon_claimed"], m["epsilon_with_many"] < m["epsilon_with_one"]
        ),
        "Disjoint parts cost the largest of their epsilons, not a tenth; and with batches of the same size from a "
        "tenth of the images it rises from {epsilon_with_one:.2f} to {epsilon_with_many:.2f}.",
    )


def _training(z: float, epochs: float, batch: int, images: int) -> float:
    steps = round(epochs * images / batch)
    return RenyiDP(Schedule(np.array([z]), np.array([steps]), batch / images)).epsilon(DELTA)


def t10_composition(parts: Sequence[tuple[float, float]] = PHASES) -> Evidence:
    """The sum of the phases' stated epsilons: what releasing all their results costs."""
    total = basic_composition(parts)
    return Evidence(
        "T10",
        "By composition, several private layers increase the privacy of the information.",
        "chapter 1 (the paragraph on the three phases)",
        {
            "largest_part": max(epsilon for epsilon, _ in parts),
            "smallest_part": min(epsilon for epsilon, _ in parts),
            "epsilon_together": total.epsilon,
            "delta_together": total.delta,
        },
        lambda m: Verdict.of(m["epsilon_together"] < m["smallest_part"], m["epsilon_together"] < m["largest_part"]),
        "Composition adds losses: releases of up to epsilon {largest_part:g} cost {epsilon_together:g} together.",
    )


def in_series(epsilons: Sequence[float]) -> float:
    """The epsilon of pure-DP phases of which each sees a record through the one before, and only the last is released.

    (1 + e^(a + b)) / (e^a + e^b) for two: the worst case is randomised response after randomised response, where
    tanh(epsilon / 2) multiplies. Never more than the smallest.
    """
    total = math.inf
    for epsilon in epsilons:
        both = np.logaddexp(0.0, total + epsilon) - np.logaddexp(total, epsilon) if math.isfinite(total) else epsilon
        total = min(max(float(both), 0.0), total, epsilon)
    return total


def t11_stacked_phases(
    true: Sequence[float] = (1287.0, 7.0, 271.0), stated: Sequence[float] = (2.5, 7, 0.2)
) -> Evidence:
    """What three phases in a row guarantee if each protects the same record and only the last result is released.

    `true`: pixels (T1), training as stated, labels (T12); taken as pure epsilons.
    """
    return Evidence(
        "T11",
        "Each of the three phases adds its protection to that of the others.",
        "chapter 1; section 3, figure 3.1",
        {
            "smallest": min(true),
            "in_series": in_series(true),
            "smallest_stated": min(stated),
            "in_series_stated": in_series(stated),
            "two_coins_twice": in_series([response_epsilon(0.75)] * 2),
        },
        lambda m: Verdict.of(m["in_series"] <= m["smallest"] / 2, m["in_series"] <= 0.99 * m["smallest"]),
        "Three phases in a row promise hardly more than the best of them does alone: epsilon {in_series:.4g} for all "
        "and {smallest:g} for the best, taking the true epsilons of pixels and labels and the stated one of training. "
        "Even the stated ones, which do not hold, would give {in_series_stated:.2f} for all and {smallest_stated:g} "
        "for the best.",
    )


def t12_labels(queries: int = QUERIES, epsilon: float = 0.2, delta: float = DELTA) -> Evidence:
    """All noisy labels together: the plain sum, advanced composition, and zCDP with rho = eps^2 / 2 each."""
    measured: Measured = {
        "queries": queries,
        "epsilon_per_query": epsilon,
        "basic": basic_composition([(epsilon, 0.0)] * queries).epsilon,
        "advanced": best_composition(epsilon, 0.0, queries, delta).epsilon,
        "zcdp": zcdp_epsilon(queries * epsilon**2 / 2, delta),
    }
    return Evidence(
        "T12",
        "The output labels are 0.2-DP.",
        "section 4.2, table 4.7, figures 4.4 to 4.10",
        measured,
        lambda m: Verdict.of(min(m["basic"], m["advanced"], m["zcdp"]) <= m["epsilon_per_query"]),
        "{epsilon_per_query:g} is the price of one label; {queries} of them cost {basic:.0f} by the sum, "
        "{advanced:.0f} by advanced composition and {zcdp:.0f} by zCDP (at delta 1e-5), whatever the votes.",
    )


def t15_private_understudy(queries: int = QUERIES, label_epsilon: float = 0.2, training: float = 7.0) -> Evidence:
    """What DP-Adam on the understudy can add for an instructor's image, which may have changed every label."""
    labels = zcdp_epsilon(queries * label_epsilon**2 / 2, DELTA)
    return Evidence(
        "T15",
        "Training the understudy with DP-Adam as well protects the private images further.",
        "sections 3.3 and 4.2",
        {
            "epsilon_of_the_labels": labels,
            "epsilon_of_one_label_by_training": training,
            "epsilon_of_all_labels_by_training": queries * training,
        },
        lambda m: Verdict.of(m["epsilon_of_all_labels_by_training"] < m["epsilon_of_the_labels"]),
        "The understudy sees public images and labels that cost {epsilon_of_the_labels:.0f}; DP-Adam at epsilon "
        "{epsilon_of_one_label_by_training:g} per label is {epsilon_of_all_labels_by_training:.0f} for an image that "
        "may have changed them all: noise without gain.",
    )


def t22_printed_theorem(slack: float = DELTA) -> Evidence:
    """Eq 2.17 with epsilon inside the root, over a grid, against the theorem and the smallest bound that is true."""
    grid = [(float(e), int(k)) for e in np.geomspace(1e-3, 5, 25) for k in np.geomspace(1, 10000, 9)]
    printed = np.array([_eq_2_17(e, k, slack) for e, k in grid])
    theorem = np.array([advanced_composition(e, 0.0, k, slack).epsilon for e, k in grid])
    best = np.array([best_composition(e, 0.0, k, slack).epsilon for e, k in grid])
    target, k = 0.5, 100
    each = target / (2 * math.sqrt(2 * k * math.log(1 / slack)))  # eq 2.18
    return Evidence(
        "T22",
        "Advanced composition: eps' = k eps (e^eps - 1) + sqrt(2 k ln(1/delta') eps).",
        "section 2.2.6, eq 2.17 (as the text extraction shows it)",
        {
            "largest_distance_from_theorem": float(np.abs(printed / theorem - 1).max()),
            "smallest_ratio_to_a_true_bound": float((printed / best).min()),
            "target_of_eq_2_18": target,
            "eq_2_18_in_the_theorem": advanced_composition(each, 0.0, k, slack).epsilon,
            "eq_2_18_in_eq_2_17": _eq_2_17(each, k, slack),
        },
        lambda m: Verdict.of(
            m["largest_distance_from_theorem"] <= 1e-6, m["smallest_ratio_to_a_true_bound"] >= 1 - 1e-9
        ),
        "Epsilon belongs outside the root. What is printed never promises too much (at least "
        "{smallest_ratio_to_a_true_bound:.3g} times a true bound), but it contradicts eq 2.18, whose epsilon reaches "
        "{eq_2_18_in_the_theorem:.2f} by the theorem and {eq_2_18_in_eq_2_17:.2f} by eq 2.17, for a target of "
        "{target_of_eq_2_18:g}.",
    )


def _eq_2_17(epsilon: float, releases: int, slack: float) -> float:
    return releases * epsilon * math.expm1(epsilon) + math.sqrt(2 * releases * math.log(1 / slack) * epsilon)


def t26_moments(inside: float = 0.5, outside: float = 7.0, rate: float = 0.005) -> Evidence:
    """epsilon / (q eps sqrt T) for 100 to 10^5 steps of eq 3.3's noise: O(...) says that it stays bounded.

    Abadi et al. 2016 ask for sigma >= 1 and q < 1 / (16 sigma) (lemma 3), and for enough steps (theorem 1).
    """
    low, high = (_moments_ratio(epsilon, rate) for epsilon in (inside, outside))
    return Evidence(
        "T26",
        "DPAdam is (O(q eps sqrt T), delta)-DP by the moments accountant.",
        "section 3.2.2, after Abadi et al. 2016, theorem 1",
        {
            "rate": rate,
            "sigma_inside": printed_sigma(inside, DELTA),
            "sigma_outside": printed_sigma(outside, DELTA),
            "largest_ratio_inside": low,
            "largest_ratio_outside": high,
        },
        lambda m: Verdict.of(
            m["largest_ratio_inside"] <= 1 and m["largest_ratio_outside"] <= 1, m["largest_ratio_inside"] <= 1
        ),
        "With sigma {sigma_inside:.1f} the loss stays below {largest_ratio_inside:.2f} q eps sqrt T; with the sigma "
        "{sigma_outside:.2f} that eq 3.3 gives for epsilon 7, outside the theorem's conditions, it reaches "
        "{largest_ratio_outside:.1f} times that.",
    )


def _moments_ratio(epsilon: float, rate: float) -> float:
    z = np.array([printed_sigma(epsilon, DELTA)])
    steps = (100, 1000, 10_000, 100_000)
    spent = [RenyiDP(Schedule(z, np.array([count]), rate)).epsilon(DELTA) for count in steps]
    return max(s / (rate * epsilon * math.sqrt(count)) for s, count in zip(spent, steps, strict=True))


COMPOSITION_CLAIMS = (
    t6_sampled_step,
    t9_ten_instructors,
    t10_composition,
    t11_stacked_phases,
    t12_labels,
    t15_private_understudy,
    t22_printed_theorem,
    t26_moments,
)
