"""What ``01_coins_to_composition.ipynb`` computes. No widgets, no torch.

    result = poll(epsilon=1.1, people=1000, share=0.3, seed=0)    # pure: the seed is an argument
    print(result.estimate[-1], result.standard_error[-1])

The mechanisms, the accountants and the thesis' figures come from `edp_lab.privacy` and `edp_lab.reproduce`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

from edp_lab.course.kit.controls import Array, check_positive, check_seed, check_whole
from edp_lab.errors import UsageError
from edp_lab.privacy.accountants import check_delta, gdp_delta, gdp_epsilon, zcdp_epsilon
from edp_lab.privacy.composition import advanced_composition, gaussian_loss_density, gaussian_loss_tail
from edp_lab.privacy.foundations import (
    Average,
    CachedCounter,
    NoisyCounter,
    averaging_attack,
    classic_gaussian_sigma,
    estimate_frequencies,
    exponential_probabilities,
    laplace_release,
    laplace_scale,
    randomised_response,
    report_noisy_max,
    truth_probability,
)
from edp_lab.reproduce.thesis.thesis_foundations import (
    CREDIT_EPSILON,
    CREDIT_RATINGS,
    loss_figures,
    summarise_counts,
)

LIMIT = 100_000  # people, answers: beyond it a slider would stall
COUNTABLE = 10**9  # releases: only counted
POINTS = 60  # of a curve
HALF = float(ndtri(0.95))  # half of a 90 % interval, in standard errors


# ---- A coin for everyone -------------------------------------------------------------------------------------------


class Poll(NamedTuple):
    """Randomised response to a yes-or-no question, and what the collector makes of it; 1 is yes.

    Attributes:
        epsilon: of one answer, pure: local DP, one answer replaced by the other.
        share: of the population whose true answer is yes.
        truth, responses: (people,); only the second leave their owners.
        asked: (points,), how many were asked so far.
        yes: (points,), the share of yes among these responses, as it stands.
        estimate, standard_error: (points,), of `share`, from these responses.
    """

    epsilon: float
    share: float
    seed: int
    truth: NDArray[np.int64]
    responses: NDArray[np.int64]
    asked: NDArray[np.int64]
    yes: Array
    estimate: Array
    standard_error: Array

    @property
    def truth_probability(self) -> float:
        return truth_probability(self.epsilon)

    @property
    def odds(self) -> float:
        """How many times likelier a yes is where it is true; so much one response can move the odds."""
        return _exp(self.epsilon)


def poll(epsilon: float, people: int, share: float, seed: int) -> Poll:
    """Ask `people` of a population in which a `share` would truly say yes. With one seed, people keep their coins.

    Raises:
        UsageError: epsilon not positive and finite, people no whole number from 2 to 100,000, share outside
            [0, 1], seed negative.
    """
    check_whole("number of people", people, 2, LIMIT)
    if not 0 <= share <= 1:
        raise UsageError(f"the share of yes is {share}: it must lie between 0 and 1")
    truth = (_rng(seed, 1).random(people) < share).astype(np.int64)
    responses = randomised_response(truth, epsilon, _rng(seed, 2))
    asked = _spread(max(2, min(10, people // 5)), people)
    estimates = [estimate_frequencies(responses[:n], epsilon) for n in asked]
    return Poll(
        epsilon,
        share,
        seed,
        truth,
        responses,
        asked,
        yes=np.cumsum(responses)[asked - 1] / asked,
        estimate=np.array([frequencies.estimate[1] for frequencies in estimates]),
        standard_error=np.array([frequencies.standard_error[1] for frequencies in estimates]),
    )


def belief(before: Array | float, loss: float) -> Array:
    """Bayes' rule in odds: e^loss times the odds before; any shape. Pure epsilon-DP keeps |loss| <= epsilon."""
    return np.asarray(expit(logit(before) + loss))


# ---- One question, asked again and again ---------------------------------------------------------------------------

TRUE_COUNT = CREDIT_RATINGS["bad"]  # table 2.1 of the thesis: 3


class Averaging(NamedTuple):
    """A count under Laplace noise, asked `queries` times: without a limit, with a budget, and with a cache.

    Attributes:
        epsilon: of one answer, pure; one person with all of their records added or removed.
        sensitivity: records that one person may have, so how far one person moves the count.
        budget: of epsilon, for one person.
        answers: (queries,), without a limit.
        average: of the first answers, with 90 % intervals.
        allowed: how many of the answers the budget pays for.
        cached: (queries,), the answers of a counter with that budget and a cache; empty if it refuses.
    """

    epsilon: float
    sensitivity: int
    budget: float
    seed: int
    answers: Array
    average: Average
    allowed: int
    cached: Array

    @property
    def scale(self) -> float:
        """Of the noise; its standard deviation is sqrt(2) times that."""
        return laplace_scale(self.sensitivity, self.epsilon)

    @property
    def decisive(self) -> int:
        """After how many answers the interval is narrower than +-1/2, so that a count is known."""
        return math.floor((2 * float(self.average.half_width[0])) ** 2) + 1  # half-widths fall as 1 / sqrt(n)

    def density(self, output: Array, more: int) -> Array:
        """Of one answer, per person, where the true count is `more` larger; any shape."""
        return np.exp(-np.abs(output - TRUE_COUNT - more) / self.scale) / (2 * self.scale)


def averaging(epsilon: float, sensitivity: int, queries: int, budget: float, seed: int) -> Averaging:
    """Ask for the number of bad ratings, `TRUE_COUNT`, again and again, and average.

    A counter bills one record; who has `sensitivity` records pays that many times as much.

    Raises:
        UsageError: epsilon or budget not positive and finite, sensitivity no whole number from 1 on, queries none
            from 1 to 100,000, seed negative.
    """
    check_whole("sensitivity", sensitivity, 1, LIMIT)
    check_whole("number of queries", queries, 1, LIMIT)
    answers = laplace_release(np.full(queries, TRUE_COUNT), sensitivity, epsilon, _rng(seed))
    average = averaging_attack(answers, laplace_scale(sensitivity, epsilon))

    def ask(kind: type[NoisyCounter]) -> Array:
        counter = kind([True] * TRUE_COUNT, budget / sensitivity, _rng(seed))
        return _until_refused(counter, epsilon / sensitivity, queries)

    return Averaging(
        epsilon, sensitivity, budget, seed, answers, average, ask(NoisyCounter).size, cached=ask(CachedCounter)
    )


def _until_refused(counter: NoisyCounter, epsilon: float, queries: int) -> Array:
    answers: list[float] = []
    for _ in range(queries):
        try:
            answers.append(counter.count(bool, epsilon))
        except UsageError:  # the same question costs the same again: it stays refused
            break
    return np.array(answers)


def interval_coverage(tables: int, seed: int, answers: int = 5) -> tuple[float, float]:
    """How often table 2.2's "90 %" interval covers the truth, in so many fresh tables: as it should be, as printed.

    The first divides the squares by n - 1, the second by n; Laplace noise of standard deviation 2, as in the thesis.
    """
    fresh = laplace_release(np.full((tables, answers), TRUE_COUNT), 1.0, CREDIT_EPSILON, _rng(seed))
    both = [(table.interval, table.interval_dividing_by_n) for table in map(summarise_counts, fresh)]
    right, printed = np.mean([[low < TRUE_COUNT < high for low, high in pair] for pair in both], axis=0)
    return float(right), float(printed)


# ---- Delta as an area ----------------------------------------------------------------------------------------------


class GaussianCount(NamedTuple):
    """A count of 1000, or `sensitivity` more with one more person, under Gaussian noise: figures 2.1 to 2.3.

    Attributes:
        epsilon, delta: `delta` is the smallest that goes with `epsilon` (Gaussian DP, exact).
        tail: P[loss > epsilon], what figure 2.3 of the thesis measures.
        output: (301,), the noisy count.
        density, density_neighbour: (301,), its density without and with the person.
        loss, loss_density: (301,).
        epsilons, deltas, tails: (points,), both curves.
    """

    epsilon: float
    sigma: float
    sensitivity: float
    delta: float
    tail: float
    output: Array
    density: Array
    density_neighbour: Array
    loss: Array
    loss_density: Array
    epsilons: Array
    deltas: Array
    tails: Array

    @property
    def mu(self) -> float:
        return self.sensitivity / self.sigma

    @property
    def classic_sigma(self) -> float | None:
        """What the classic theorem (2.12) asks for; it says nothing of epsilon from 1 on, nor of pure epsilon."""
        if not (0 < self.epsilon < 1 and 0 < self.delta < 1):
            return None
        return classic_gaussian_sigma(self.sensitivity, self.epsilon, self.delta)

    @property
    def raised(self) -> Array:
        """e^epsilon times the density with the person; `delta` is the area of the one without above it."""
        return self.density_neighbour * _exp(self.epsilon)

    @property
    def loss_excess(self) -> Array:
        """(1 - e^(epsilon - loss)) of the loss' density beyond epsilon.

        Its area is `delta`; that of all the density beyond epsilon is `tail`.
        """
        return self.loss_density * np.maximum(-np.expm1(np.minimum(self.epsilon - self.loss, 0)), 0)


def gaussian_count(epsilon: float, sigma: float, sensitivity: float) -> GaussianCount:
    """One Gaussian release of a count, at any epsilon.

    Raises:
        UsageError: epsilon negative, sigma or sensitivity not positive and finite.
    """
    mu = check_positive("sensitivity", sensitivity) / check_positive("standard deviation sigma", sigma)
    with np.errstate(over="ignore"):  # e^loss, which is not used here
        figures = loss_figures(mu**-2, epsilon, points=301)
    loss = mu * (np.linspace(-4, 4, 301) + mu / 2)
    epsilons = np.linspace(0, max(1.25 * epsilon, 4 * mu + mu * mu / 2), POINTS)
    return GaussianCount(
        epsilon,
        sigma,
        sensitivity,
        figures.delta,
        figures.tail,
        1000 + sensitivity * (figures.output - 1000),
        figures.density / sensitivity,
        figures.density_neighbour / sensitivity,
        loss,
        gaussian_loss_density(loss, mu),
        epsilons,
        deltas=np.array([gdp_delta(mu, e) for e in epsilons]),
        tails=gaussian_loss_tail(epsilons, mu),
    )


# ---- Many releases -------------------------------------------------------------------------------------------------

SUM, ADVANCED, ZCDP, GAUSSIAN = "plain sum", "advanced", "zCDP", "Gaussian"


class Composed(NamedTuple):
    """What many releases cost together, by four accounts.

    Attributes:
        epsilon: of one release, pure.
        delta: of the total, for all accounts but the plain sum, which has 0.
        releases: (points,), numbers of releases.
        total: by account, (points,), epsilon of so many.
        allowed: by account, how many releases a total epsilon of `budget` pays for.
        advanced_pays_from: from how many releases on advanced composition is below the plain sum; None if never.
    """

    epsilon: float
    delta: float
    budget: float
    releases: NDArray[np.int64]
    total: Mapping[str, Array]
    allowed: Mapping[str, int]
    advanced_pays_from: int | None

    @property
    def last(self) -> dict[str, float]:
        """By account, the total of all releases."""
        return {name: float(total[-1]) for name, total in self.total.items()}


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

    Raises:
        UsageError: epsilon or budget not positive and finite, releases no whole number from 1 to 10^9, delta
            outside (0, 1).
    """
    check_positive("epsilon of one release", epsilon)
    check_positive("budget", budget)
    check_whole("number of releases", releases, 1, COUNTABLE)
    check_delta(delta)
    numbers, countable = _spread(1, releases), range(1, COUNTABLE + 1)
    of = accounts(epsilon, delta)
    pays = bisect_left(countable, True, key=lambda k: of[ADVANCED](k) < of[SUM](k)) + 1
    return Composed(
        epsilon,
        delta,
        budget,
        numbers,
        total={name: np.array([total(int(k)) for k in numbers]) for name, total in of.items()},
        allowed={name: bisect_right(countable, budget, key=total) for name, total in of.items()},
        advanced_pays_from=pays if pays <= COUNTABLE else None,
    )


# ---- A choice, a table of people -----------------------------------------------------------------------------------


class Choices(NamedTuple):
    """Which label wins a vote: chances by the exponential mechanism, shares of `draws` by noisy max (Laplace).

    Attributes:
        votes: by label; one vote leaves a label for another, so scores have sensitivity 1 and are not monotone.
        epsilons: (E,), of one choice, pure.
        exponential, noisy_max: (E, labels).
    """

    votes: Mapping[str, int]
    epsilons: tuple[float, ...]
    draws: int
    seed: int
    exponential: Array
    noisy_max: Array


def choices(votes: Mapping[str, int], epsilons: Sequence[float], draws: int, seed: int) -> Choices:
    """One vote, chosen privately at each epsilon."""
    scores, rng = np.array(list(votes.values()), dtype=np.float64), _rng(seed)
    many = np.tile(scores, (draws, 1))
    exact = [exponential_probabilities(scores, 1.0, epsilon) for epsilon in epsilons]
    drawn = [np.bincount(report_noisy_max(many, 1.0, e, rng), minlength=scores.size) / draws for e in epsilons]
    return Choices(dict(votes), tuple(epsilons), draws, seed, np.array(exact), np.array(drawn))


# ---- Small parts ---------------------------------------------------------------------------------------------------


def _exp(epsilon: float) -> float:
    return math.exp(epsilon) if epsilon < 700 else math.inf


def _spread(first: int, last: int) -> NDArray[np.int64]:
    """Whole numbers from `first` to `last`, in about equal ratios, each once."""
    return np.unique(np.geomspace(first, last, POINTS).round().astype(np.int64))


def _rng(seed: int, purpose: int = 0) -> np.random.Generator:
    check_seed(seed)
    return np.random.default_rng([seed, purpose])
