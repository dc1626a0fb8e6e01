"""What ``01_coins_to_composition.ipynb`` computes. No widgets, no torch.

    result = poll(epsilon=1.1, people=1000, share=0.3, seed=0)    # pure: the seed is an argument
    print(result.estimate[-1], result.standard_error[-1])

The mechanisms and the accountants come from `edp_lab.privacy`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

from edp_lab.course.kit.inputs import Array, check_share, check_whole, rng_of
from edp_lab.course.nb01_coins import chapter2
from edp_lab.errors import UsageError
from edp_lab.privacy import foundations as basic
from edp_lab.privacy.accountants import check_delta, gdp_delta, gdp_epsilon, zcdp_epsilon
from edp_lab.privacy.composition import advanced_composition, gaussian_loss_tail

LIMIT = 100_000  # people: beyond it a slider would stall
COUNTABLE = 10**9  # releases: only counted
POINTS = 60  # of a curve
HALF = float(ndtri(0.95))  # half of a 90 % interval, in standard errors


def exp(epsilon: float) -> float:
    """e^epsilon; inf where that is too large for a float."""
    return math.exp(epsilon) if epsilon < 700 else math.inf


def spread(first: int, last: int) -> NDArray[np.int64]:
    """Whole numbers from `first` to `last`, in about equal ratios, each once."""
    return np.unique(np.geomspace(first, last, POINTS).round().astype(np.int64))


# ---- A coin for everyone -------------------------------------------------------------------------------------------


class Poll(NamedTuple):
    """Randomised response to a yes-or-no question, and what the collector makes of it; 1 is yes."""

    epsilon: float  # of one answer, pure: local DP, one answer replaced by the other
    share: float  # of the population whose true answer is yes
    truth: NDArray[np.int64]  # (people,)
    responses: NDArray[np.int64]  # (people,); only these leave their owners
    asked: NDArray[np.int64]  # (points,), how many were asked so far
    yes: Array  # (points,), the share of yes among these responses, as it stands
    estimate: Array  # (points,), of `share`, from these responses
    standard_error: Array  # (points,), of the estimate


def poll(epsilon: float, people: int, share: float, seed: int) -> Poll:
    """Ask `people` of a population in which a `share` would truly say yes. With one seed, people keep their coins.

    UsageError: epsilon not positive and finite, people no whole number from 2 to 100,000, share outside [0, 1], seed
    negative.
    """
    check_whole("number of people", people, 2, LIMIT)
    check_share("yes", share)
    truth = (rng_of(seed, 1).random(people) < share).astype(np.int64)
    responses = basic.randomised_response(truth, epsilon, rng_of(seed, 2))
    asked = spread(max(2, min(10, people // 5)), people)
    found = [basic.estimate_frequencies(responses[:n], epsilon) for n in asked]
    estimate, error = np.array([(frequencies.estimate[1], frequencies.standard_error[1]) for frequencies in found]).T
    yes = np.cumsum(responses)[asked - 1] / asked
    return Poll(epsilon, share, truth, responses, asked, yes, estimate, error)


def belief(before: Array | float, loss: float) -> Array:
    """Bayes' rule in odds: e^loss times the odds before; any shape. Pure epsilon-DP keeps |loss| <= epsilon."""
    return np.asarray(expit(logit(before) + loss))


# ---- A table of noisy counts ----------------------------------------------------------------------------------------

TRUE_COUNT = chapter2.CREDIT_RATINGS["bad"]  # table 2.1 of the thesis: 3


def interval_coverage(tables: int, seed: int, answers: int = 5) -> tuple[float, float]:
    """How often table 2.2's "90 %" interval covers the truth, in so many fresh tables: as it should be, as printed.

    The first divides the squares by n - 1, the second by n; Laplace noise of standard deviation 2, as in the thesis.
    """
    fresh = basic.laplace_release(np.full((tables, answers), TRUE_COUNT), 1.0, chapter2.CREDIT_EPSILON, rng_of(seed, 0))
    both = [(table.interval, table.interval_dividing_by_n) for table in map(chapter2.summarise_counts, fresh)]
    right, printed = np.mean([[low < TRUE_COUNT < high for low, high in pair] for pair in both], axis=0)
    return float(right), float(printed)


# ---- Delta as an area ----------------------------------------------------------------------------------------------


class GaussianCount(NamedTuple):
    """A count of 1000, or `sensitivity` more with one more person, under Gaussian noise: figures 2.1 to 2.3.

    `delta` is the area of `density` above `raised`.
    """

    epsilon: float
    sigma: float
    sensitivity: float
    mu: float  # sensitivity over sigma
    delta: float  # the smallest that goes with epsilon (Gaussian DP, exact)
    tail: float  # P[loss > epsilon], what figure 2.3 of the thesis measures
    classic_sigma: float | None  # what theorem (2.12) asks for; it says nothing of epsilon from 1 on, nor of pure ones
    output: Array  # (301,), the noisy count
    density: Array  # (301,), of the count without the person
    density_neighbour: Array  # (301,), and with them
    raised: Array  # (301,), e^epsilon times that
    epsilons: Array  # (points,)
    deltas: Array  # (points,), the smallest delta for each
    tails: Array  # (points,), P[loss > epsilon] for each


def gaussian_count(epsilon: float, sigma: float, sensitivity: float) -> GaussianCount:
    """One Gaussian release of a count, at any epsilon.

    UsageError: epsilon negative or infinite, sigma or sensitivity not positive and finite.
    """
    mu = basic.check_positive("the sensitivity", sensitivity)
    mu /= basic.check_positive("the standard deviation sigma", sigma)
    if epsilon == math.inf:
        raise UsageError("epsilon is inf: it must be a finite number, 0 or more")
    delta = gdp_delta(mu, epsilon)
    classic = 0 < epsilon < 1 and 0 < delta < 1
    shift = np.linspace(-4 / mu, 1 + 4 / mu, 301)  # of the noisy count from 1000, over the sensitivity
    peak = mu / (sensitivity * math.sqrt(2 * math.pi))
    density, neighbour = (peak * np.exp(-(np.square((shift - more) * mu)) / 2) for more in (0, 1))
    epsilons = np.linspace(0, max(1.25 * epsilon, 4 * mu + mu * mu / 2), POINTS)
    return GaussianCount(
        epsilon, sigma, sensitivity, mu, delta, float(gaussian_loss_tail(epsilon, mu)),
        basic.classic_gaussian_sigma(sensitivity, epsilon, delta) if classic else None,
        output=1000 + sensitivity * shift,
        density=density,
        density_neighbour=neighbour,
        raised=neighbour * exp(epsilon),
        epsilons=epsilons,
        deltas=np.array([gdp_delta(mu, e) for e in epsilons]),
        tails=gaussian_loss_tail(epsilons, mu),
    )  # fmt: skip


# ---- Many releases -------------------------------------------------------------------------------------------------

SUM, ADVANCED, ZCDP, GAUSSIAN = "plain sum", "advanced", "zCDP", "Gaussian"


class Composed(NamedTuple):
    """What many releases cost together, by four accounts."""

    epsilon: float  # of one release, pure
    delta: float  # of the total, for all accounts but the plain sum, which has 0
    budget: float
    releases: NDArray[np.int64]  # (points,), numbers of releases
    total: Mapping[str, Array]  # by account, (points,), epsilon of so many
    last: Mapping[str, float]  # by account, epsilon of all of them
    allowed: Mapping[str, int]  # by account, how many releases a total epsilon of `budget` pays for
    advanced_pays_from: int | None  # from how many on advanced composition is below the plain sum, if ever


def accounts(epsilon: float, delta: float) -> dict[str, Callable[[int], float]]:
    """By account, the total epsilon of k releases of pure `epsilon` each, at `delta` (the plain sum at 0).

    The Gaussian account is exact, but of another mechanism: noise of the standard deviation that Laplace noise of
    this epsilon has, on a single number. It has sensitivity over sigma = epsilon / sqrt(2) per release.
    """
    return {
        SUM: lambda k: k * epsilon,
        ADVANCED: lambda k: advanced_composition(epsilon, 0.0, k, delta).epsilon,
        ZCDP: lambda k: zcdp_epsilon(k * epsilon**2 / 2, delta),
        GAUSSIAN: lambda k: gdp_epsilon(epsilon * math.sqrt(k / 2), delta),
    }


def composed(epsilon: float, releases: int, delta: float, budget: float) -> Composed:
    """Total epsilon of 1 ... `releases` releases.

    UsageError: epsilon or budget not positive and finite, releases no whole number from 1 to 10^9, delta outside
    (0, 1).
    """
    basic.check_positive("the epsilon of one release", epsilon)
    basic.check_positive("the budget", budget)
    check_whole("number of releases", releases, 1, COUNTABLE)
    check_delta(delta)
    numbers, countable, of = spread(1, releases), range(1, COUNTABLE + 1), accounts(epsilon, delta)
    total = {name: np.array([cost(int(k)) for k in numbers]) for name, cost in of.items()}
    last = {name: float(costs[-1]) for name, costs in total.items()}
    allowed = {name: bisect_right(countable, budget, key=cost) for name, cost in of.items()}
    pays = bisect_left(countable, True, key=lambda k: of[ADVANCED](k) < of[SUM](k)) + 1
    return Composed(
        epsilon, delta, budget, numbers, total, last, allowed, advanced_pays_from=pays if pays <= COUNTABLE else None
    )


# ---- A choice, a table of people -----------------------------------------------------------------------------------


class Choices(NamedTuple):
    """Which label wins a vote: chances by the exponential mechanism, shares of `draws` by noisy max (Laplace)."""

    votes: Mapping[str, int]  # one vote leaves a label for another: scores have sensitivity 1, and are not monotone
    epsilons: tuple[float, ...]  # (E,), of one choice, pure
    draws: int
    seed: int
    exponential: Array  # (E, labels)
    noisy_max: Array  # (E, labels)


def choices(votes: Mapping[str, int], epsilons: Sequence[float], draws: int, seed: int) -> Choices:
    """One vote, chosen privately at each epsilon."""
    scores, rng = np.array(list(votes.values()), dtype=np.float64), rng_of(seed, 0)
    many = np.tile(scores, (draws, 1))
    exact = [basic.exponential_probabilities(scores, 1.0, epsilon) for epsilon in epsilons]
    drawn = [np.bincount(basic.report_noisy_max(many, 1.0, e, rng), minlength=scores.size) / draws for e in epsilons]
    return Choices(dict(votes), tuple(epsilons), draws, seed, np.array(exact), np.array(drawn))
