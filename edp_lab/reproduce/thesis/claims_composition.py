"""The thesis' claims about many releases: T6, T9 to T12, T15, T19, T22 and T26.

Amplification by sampling, composition, stacked phases; none needs a trained network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from edp_lab.privacy.accountants import zcdp_epsilon
from edp_lab.privacy.composition import (
    advanced_composition,
    amplify_by_subsampling,
    basic_composition,
    best_composition,
)
from edp_lab.privacy.foundations import response_epsilon
from edp_lab.privacy.loss_distribution import PrivacyLossDistribution
from edp_lab.privacy.mechanism import Schedule
from edp_lab.reproduce.claims import CONDITIONAL, FAILS, HOLDS, UNTESTABLE, Claim, Measured, Pair, Verdict
from edp_lab.reproduce.thesis.claims_noise import chance_of_first
from edp_lab.reproduce.thesis.thesis_tables import DELTA, DP_ADAM, LABELS, PHASE_ONE
from edp_lab.three_phase.perturbation import printed_sigma
from edp_lab.three_phase.votes import partition_cost

PHASES = (PHASE_ONE, DP_ADAM, LABELS)  # pixels, training, labels: as the thesis states them
MNIST = 60000
QUERIES = 9000  # 9/10 of the MNIST test images get a noisy label (figure 3.1)
STEPS = (100, 1_000, 10_000, 100_000, 1_000_000)  # for T26
GROWTH_OF_A_ROOT = 0.6  # power of T: a root comes with a factor that rises slowly while epsilon is small
NEEDED = ("epsilon", "delta", "sigma", "clip norm", "batch size", "epochs")


@Claim(
    "T6", "A step that is (eps, delta)-DP for its random batch is (q eps, q delta)-DP for the whole data set.",
    source="section 3.2.2, below eq 3.3", quote="each step is (qε, qδ)-DP concerning the whole database",
    cell="11_claims#thesis-mechanism", pair=Pair("claimed_epsilon", "bound_for_any_mechanism", "ε"),
    rule=lambda m: Verdict.of(
        m.bound_for_any_mechanism <= m.claimed_epsilon * (1 + 1e-9),
        m.epsilon_of_this_mechanism <= m.claimed_epsilon,
    ),
    said="At q {rate:g} and epsilon {epsilon:g} the theorem gives ln(1 + q (e^eps - 1)) = "
    "{bound_for_any_mechanism:.4g↑} and the noise of eq 3.3 itself {epsilon_of_this_mechanism:.3g↑}, where "
    "{claimed_epsilon:.3g} is claimed; both need Poisson or fixed-size random batches.",
    strength="proven",
    counter={
        "whole data set as batch": (HOLDS, {"bound_for_any_mechanism": 0.07}),
        "a mechanism that amplifies better than the theorem": (CONDITIONAL, {"epsilon_of_this_mechanism": 0.07}),
    },
)  # fmt: skip
def t6_sampled_step(epsilon: float = 7.0, rate: float = 0.01, delta: float = DELTA) -> Measured:
    """One step of eq 3.3's noise on a Poisson sample: the general bound, and this mechanism's own account."""
    bound = amplify_by_subsampling(epsilon, delta, rate)
    own = PrivacyLossDistribution(Schedule(np.array([printed_sigma(epsilon, delta)]), np.array([1]), rate))
    return {
        "epsilon": epsilon,
        "rate": rate,
        "claimed_epsilon": rate * epsilon,
        "bound_for_any_mechanism": bound.epsilon,
        "epsilon_of_this_mechanism": own.epsilon(bound.delta),
    }


@Claim(
    "T9", "Ten instructors on disjoint parts are ten times as private as one.",
    source="sections 3.4.2 and 4.2",
    quote="we will increase the privacy ten times more than the system with one ensemble",
    cell="10_three_phases#ledger", pair=Pair("epsilon_claimed", "epsilon_with_many", "ε"),
    rule=lambda m: Verdict.of(m.epsilon_with_many <= m.epsilon_claimed, m.epsilon_with_many < m.epsilon_with_one),
    said="Disjoint parts cost the largest of their epsilons, not a tenth. With batches of the same size from a tenth "
    "of the images it even rises: with noise multiplier {z:g}, batches of {batch} and {epochs} epochs, our choice, "
    "from {epsilon_with_one:.2f↑} to {epsilon_with_many:.2f↑} (Poisson batches, PLD, delta {delta:g}).",
    strength="proven",
    counter={
        "a tenth": (HOLDS, {"epsilon_with_many": 0.05}),
        "less than one instructor": (CONDITIONAL, {"epsilon_with_many": 0.5}),
    },
)  # fmt: skip
def t9_ten_instructors(instructors: int = 10, batch: int = 250, epochs: int = 10, z: float = 1.1) -> Measured:
    """The same training, Poisson batches and noise, on all images and on a tenth of them each."""
    cost = partition_cost(MNIST, instructors, batch, epochs, z, DELTA)
    return {
        "instructors": instructors,
        "batch": batch,
        "epochs": epochs,
        "z": z,
        "epsilon_with_one": cost.one,
        "epsilon_with_many": cost.together,
        "epsilon_claimed": cost.claimed,
        "delta": DELTA,
    }


def _spent(z: float, steps: int, rate: float) -> float:
    """Epsilon at `DELTA` of so many steps on Poisson samples."""
    return PrivacyLossDistribution(Schedule(np.array([z]), np.array([steps]), rate)).epsilon(DELTA)


@Claim(
    "T10", "By composition, several private layers increase the privacy of the information.",
    source="chapter 1 (the paragraph on the three phases)",
    quote="because of using the composition feature of DP [12] we will increase the privacy of information",
    cell="11_claims#thesis-mechanism", pair=Pair("smallest_part", "epsilon_together", "ε"),
    rule=lambda m: Verdict.of(m.epsilon_together < m.smallest_part, m.epsilon_together < m.largest_part),
    said="Composition adds losses: releases of up to epsilon {largest_part:g} cost {epsilon_together:g} together.",
    strength="proven",
    counter={"less together": (HOLDS, {"epsilon_together": 0.1})},
)  # fmt: skip
def t10_composition() -> Measured:
    """The sum of the phases' stated epsilons: what releasing all their results costs."""
    total = basic_composition(PHASES)
    return {
        "largest_part": max(epsilon for epsilon, _ in PHASES),
        "smallest_part": min(epsilon for epsilon, _ in PHASES),
        "epsilon_together": total.epsilon,
        "delta_together": total.delta,
    }


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


@Claim(
    "T11", "Our reading: each of the three phases adds its protection to that of the others.",
    source="chapter 1; section 3, figure 3.1",
    quote="In each layer, we preserve the privacy of data, and finally, the whole system would be protected",
    cell="10_three_phases#ledger",
    rule=lambda m: Verdict.of(m.in_series <= m.smallest / 2, m.in_series <= 0.99 * m.smallest),
    said="Three phases in a row promise hardly more than the best of them does alone: epsilon {in_series:.4g} for all "
    "and {smallest:g} for the best, taking the true epsilons of pixels and labels and the stated one of training. "
    "Even the stated ones, which do not hold, would give {in_series_stated:.2f↑} for all and {smallest_stated:g} "
    "for the best.",
    strength="argued",
    counter={
        "halved by stacking": (HOLDS, {"in_series": 3.0}),
        "a little less by stacking": (CONDITIONAL, {"in_series": 6.0}),
    },
)  # fmt: skip
def t11_stacked_phases() -> Measured:
    """What three phases in a row guarantee if each protects the same record and only the last result is released."""
    true, stated = (1287.0, 7.0, 271.1), [epsilon for epsilon, _ in PHASES]  # pixels (T1), training, labels (T12): pure
    return {
        "smallest": min(true),
        "in_series": in_series(true),
        "smallest_stated": min(stated),
        "in_series_stated": in_series(stated),
        "two_coins_twice": in_series([response_epsilon(0.75)] * 2),
    }


@Claim(
    "T12", "The output labels are 0.2-DP.",
    source="section 4.2, table 4.7, figures 4.4 to 4.10",
    quote="preserved the API part's privacy with (0.2)-DP by using the Laplacian mechanism",
    cell="10_three_phases#ledger", pair=Pair("epsilon_per_query", "zcdp", "ε"),
    rule=lambda m: (
        HOLDS
        if min(m.basic, m.advanced, m.zcdp) <= m.epsilon_per_query
        else FAILS
        if m.at_least > m.epsilon_per_query
        else UNTESTABLE
    ),
    said="{epsilon_per_query:g} is the price of one label; {queries} of them cost {basic:.0f} by the sum, "
    "{advanced:.0f↑} by advanced composition and {zcdp:.0f↑} by zCDP (at delta 1e-5), whatever the votes; and at least "
    "{at_least:.0f↓} where one of {voters} instructors changes its vote on each.",
    strength="proven",
    counter={
        "labels together at a fifth": (HOLDS, {"zcdp": 0.2}),
        "too dear only by the bounds from above": (UNTESTABLE, {"at_least": 0.1}),
    },
)  # fmt: skip
def t12_labels(queries: int = QUERIES, epsilon: float = 0.2, delta: float = DELTA) -> Measured:
    """All noisy labels together: the plain sum, advanced composition, and zCDP with rho = eps^2 / 2 each. From below:
    who counts how often a class wins can tell a unanimous vote of ten from one of nine."""
    from scipy.stats import binom  # slow to import

    voters = 10
    ten, nine = (chance_of_first([k, voters - k] + 8 * [0], 2 / epsilon) for k in (voters, voters - 1))
    wins = np.arange(queries + 1)
    likelier, rarer = (binom.logcdf(wins, queries, chance) for chance in (nine, ten))
    with np.errstate(divide="ignore", invalid="ignore"):
        tells = np.log(np.exp(likelier) - delta) - rarer
    return {
        "queries": queries,
        "epsilon_per_query": epsilon,
        "voters": voters,
        "at_least": float(np.nanmax(tells, initial=0.0)),
        "basic": basic_composition([(epsilon, 0.0)] * queries).epsilon,
        "advanced": best_composition(epsilon, 0.0, queries, delta).epsilon,
        "zcdp": zcdp_epsilon(queries * epsilon**2 / 2, delta),
    }


@Claim(
    "T15", "Our reading: training the understudy with DP-Adam as well protects the private images further.",
    source="sections 3.3 and 4.2", quote="We also used the DPAdam training algorithm for understudy training",
    cell="10_three_phases#ledger",
    rule=lambda m: Verdict.of(m.epsilon_of_all_labels_by_training < m.epsilon_of_the_labels),
    said="The understudy sees public images and labels that cost {epsilon_of_the_labels:.0f↑}; DP-Adam at epsilon "
    "{epsilon_of_one_label_by_training:g} per label is {epsilon_of_all_labels_by_training:.0f} for an image that "
    "may have changed them all: noise without gain.",
    strength="argued",
    counter={"few labels changed": (HOLDS, {"epsilon_of_all_labels_by_training": 7.0})},
)  # fmt: skip
def t15_private_understudy() -> Measured:
    """What DP-Adam on the understudy can add for an instructor's image, which may have changed every label."""
    _, (training, _), (label, _) = PHASES
    return {
        "epsilon_of_the_labels": zcdp_epsilon(QUERIES * label**2 / 2, DELTA),
        "epsilon_of_one_label_by_training": training,
        "epsilon_of_all_labels_by_training": QUERIES * training,
    }


@Claim(
    "T19", "DPAdam trains with (7, 1e-5)-DP.",
    source="chapter 6, first paragraph; section 4.2, tables 4.6 and 4.7",
    quote="we achieve an accuracy of 97% for training with (7, 10^-5)-differential privacy",
    cell="11_claims#thesis-text",
    rule=lambda m: UNTESTABLE if m.missing else Verdict.of(m.highest_epsilon <= m.claimed_epsilon),
    said="Not stated: {missing}. With eq 3.3's sigma for epsilon 7, an instructor's training costs between "
    "{lowest_epsilon:.1f↑} and {highest_epsilon:.1f↑} (PLD), for Poisson batches of 64 to 512 and 5 to 60 epochs.",
    strength="argued",
    counter={
        "everything stated, and little spent": (HOLDS, {"missing": "", "highest_epsilon": 6.9}),
        "everything stated, and too much spent": (FAILS, {"missing": ""}),
    },
)  # fmt: skip
def t19_unstated(stated: Sequence[str] = ("epsilon", "delta")) -> Measured:
    """What (7, 1e-5) leaves open: the epsilon of eq 3.3's noise for batches of 64 to 512 and 5 to 60 epochs."""
    z, images = printed_sigma(7.0, DELTA), 6000  # of each instructor
    found = [_spent(z, epochs * images // batch, batch / images) for batch, epochs in product((64, 512), (5, 60))]
    return {
        "claimed_epsilon": 7.0,
        "missing": ", ".join(name for name in NEEDED if name not in stated),
        "lowest_epsilon": min(found),
        "highest_epsilon": max(found),
    }


@Claim(
    "T22", "Advanced composition: eps' = k eps (e^eps - 1) + sqrt(2 k ln(1/delta') eps).",
    source="section 2.2.6, eq 2.17 (as the text extraction shows it)", quote="Advanced independent Composition Theorem",
    cell="01_coins_to_composition#verdicts",
    rule=lambda m: Verdict.of(m.largest_distance_from_theorem <= 1e-6, m.smallest_ratio_to_a_true_bound >= 1 - 1e-9),
    said="Epsilon belongs outside the root. What is printed never promises too much (on a grid, at "
    "least {smallest_ratio_to_a_true_bound:.3g↓} times a true bound), but it contradicts eq 2.18, whose epsilon "
    "reaches {eq_2_18_in_the_theorem:.2f↑} by the theorem and {eq_2_18_in_eq_2_17:.2f↑} by eq 2.17, for a target of "
    "{target_of_eq_2_18:g}.",
    strength="proven",
    counter={
        "as in the theorem": (HOLDS, {"largest_distance_from_theorem": 0.0}),
        "below a true bound": (FAILS, {"smallest_ratio_to_a_true_bound": 0.9}),
    },
)  # fmt: skip
def t22_printed_theorem() -> Measured:
    """Eq 2.17 with epsilon inside the root, over a grid, against the theorem and the smallest bound that is true."""
    slack = DELTA
    grid = [(float(e), int(k)) for e in np.geomspace(1e-3, 5, 25) for k in np.geomspace(1, 10000, 9)]
    printed = np.array([_eq_2_17(e, k, slack) for e, k in grid])
    theorem = np.array([advanced_composition(e, 0.0, k, slack).epsilon for e, k in grid])
    best = np.array([best_composition(e, 0.0, k, slack).epsilon for e, k in grid])
    target, k = 0.5, 100
    each = target / (2 * math.sqrt(2 * k * math.log(1 / slack)))  # eq 2.18
    return {
        "largest_distance_from_theorem": float(np.abs(printed / theorem - 1).max()),
        "smallest_ratio_to_a_true_bound": float((printed / best).min()),
        "target_of_eq_2_18": target,
        "eq_2_18_in_the_theorem": advanced_composition(each, 0.0, k, slack).epsilon,
        "eq_2_18_in_eq_2_17": _eq_2_17(each, k, slack),
    }


def _eq_2_17(epsilon: float, releases: int, slack: float) -> float:
    return releases * epsilon * math.expm1(epsilon) + math.sqrt(2 * releases * math.log(1 / slack) * epsilon)


@Claim(
    "T26", "DPAdam is (O(q eps sqrt T), delta)-DP by the moments accountant, given an appropriate amount of noise.",
    source="section 3.2.2, after Abadi et al. 2016, theorem 1",
    quote="is O(qε√T, δ) - DP with respect to appropriate amount of noise scale and clipping threshold",
    cell="11_claims#thesis-mechanism",
    rule=lambda m: Verdict.of(
        max(m.growth_inside, m.growth_outside) <= m.growth_of_a_root,
        m.growth_inside <= m.growth_of_a_root,
    ),
    said="An O(.) has no constant, so only growth can refute it. From {steps_before:,} to {steps:,} steps epsilon "
    "grows like T to the power {growth_inside:.2f} at sigma {sigma_inside:.1f}, which the theorem allows, and "
    "{growth_outside:.2f} at the sigma {sigma_outside:.2f} that eq 3.3 gives for epsilon 7, which it does not; up to "
    "{growth_of_a_root:g} counts as a root (q {rate:g}; both are our choice). From {fewest_steps:,} steps on, it is "
    "{smallest_ratio_inside:.2f} to {largest_ratio_inside:.2f} times q eps sqrt T at the first sigma, "
    "{smallest_ratio_outside:.2f} to {largest_ratio_outside:.2f} times at the second. In the end it grows like T under "
    "any noise that stays as it is: what is appropriate depends on T, and the thesis does not say how.",
    strength="argued",
    counter={
        "a root for both": (HOLDS, {"growth_outside": 0.5}),
        "faster than a root for both": (FAILS, {"growth_inside": 0.7}),
    },
)  # fmt: skip
def t26_moments() -> Measured:
    """epsilon / (q eps sqrt T) for 100 to 10^6 steps of eq 3.3's noise, and as which power of T epsilon grows at last.

    Abadi et al. 2016 ask for sigma >= 1 and q < 1 / (16 sigma) (lemma 3), and for enough steps (theorem 1). But at
    fixed noise the loss of a step has a mean, and T steps have T times that: as T grows, the power goes to 1.
    """
    inside, outside, rate = 0.5, 7.0, 0.005
    measured: dict[str, float] = {"rate": rate, "fewest_steps": STEPS[0], "steps_before": STEPS[-2], "steps": STEPS[-1]}
    for name, epsilon in (("inside", inside), ("outside", outside)):
        sigma = printed_sigma(epsilon, DELTA)
        spent = [_spent(sigma, steps, rate) for steps in STEPS]
        ratios = [total / (rate * epsilon * math.sqrt(steps)) for steps, total in zip(STEPS, spent, strict=True)]
        measured |= {
            f"sigma_{name}": sigma,
            f"smallest_ratio_{name}": min(ratios),
            f"largest_ratio_{name}": max(ratios),
            f"growth_{name}": math.log(spent[-1] / spent[-2], STEPS[-1] / STEPS[-2]),
        }
    return {**measured, "growth_of_a_root": GROWTH_OF_A_ROOT}
