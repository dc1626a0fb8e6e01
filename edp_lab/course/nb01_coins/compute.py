"""What ``01_coins_to_composition.ipynb`` computes. No widgets, no torch.

    result = poll(epsilon=1.1, people=1000, share=0.3, seed=0)    # pure: the seed is an argument
    print(result.estimate[-1], result.standard_error[-1])

The mechanisms and the accountants come from `edp_lab.privacy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

from edp_lab.course.kit.controls import Array, check_share, check_whole, rng_of
from edp_lab.errors import UsageError
from edp_lab.privacy import foundations as basic
from edp_lab.privacy.accountants import check_delta, gdp_delta, gdp_epsilon, zcdp_epsilon
from edp_lab.privacy.composition import advanced_composition, gaussian_loss_tail

POINTS = 60  # of a curve
HALF = float(ndtri(0.95))  # half of a 90 % interval, in standard errors


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
    yes: Array  # (points,), the share of yes among these responses
    estimate: Array  # (points,), of `share`, from these responses
    standard_error: Array  # (points,), of the estimate


def poll(epsilon: float, people: int, share: float, seed: int) -> Poll:
    """Ask `people` of a population in which a `share` would truly say yes. With one seed, people keep their coins.

    UsageError: epsilon not positive and finite, people no whole number from 2 to 100,000, share outside [0, 1], seed
    negative.
    """
    check_whole("number of people", people, 2, 100_000)
    check_share("yes", share)
    truth = (rng_of(seed, 1).random(people) < share).astype(np.int64)
    responses = basic.randomised_response(truth, epsilon, rng_of(seed, 2))
    asked = spread(max(2, min(10, people // 5)), people)
    estimates = [basic.estimate_frequencies(responses[:n], epsilon) for n in asked]
    estimate, error = np.array([(shares.estimate[1], shares.standard_error[1]) for shares in estimates]).T
    yes = np.cumsum(responses)[asked - 1] / asked
    return Poll(epsilon, share, truth, responses, asked, yes, estimate, error)


def belief(before: Array | float, loss: float) -> Array:
    """Bayes' rule in odds: e^loss times the odds before; any shape. Pure epsilon-DP keeps |loss| <= epsilon."""
    return np.asarray(expit(logit(before) + loss))


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
    shift = np.linspace(-4 / mu, 1 + 4 / mu, 301)  # of the noisy count from 1000, over the sensitivity
    peak = mu / (sensitivity * math.sqrt(2 * math.pi))
    density, neighbour = (peak * np.exp(-np.square((shift - more) * mu) / 2) for more in (0, 1))
    epsilons = np.linspace(0, max(1.25 * epsilon, 4 * mu + mu * mu / 2), POINTS)
    return GaussianCount(
        epsilon, sigma, sensitivity, mu, gdp_delta(mu, epsilon), float(gaussian_loss_tail(epsilon, mu)),
        output=1000 + sensitivity * shift,
        density=density,
        density_neighbour=neighbour,
        raised=neighbour * math.exp(min(epsilon, 700)),
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
    releases: NDArray[np.int64]  # (points,), numbers of releases
    total: Mapping[str, Array]  # by account, (points,), epsilon of so many

    @property
    def last(self) -> dict[str, float]:
        """Epsilon of all releases, by account."""
        return {name: float(costs[-1]) for name, costs in self.total.items()}


def composed(epsilon: float, releases: int, delta: float) -> Composed:
    """Total epsilon of 1 ... `releases` releases of pure `epsilon` each.

    The Gaussian account is exact, but of another mechanism: noise of the standard deviation that Laplace noise of
    this epsilon has, on a single number. It has sensitivity over sigma = epsilon / sqrt(2) per release.

    UsageError: epsilon not positive and finite, releases no whole number from 1 to 10^9, delta outside (0, 1).
    """
    basic.check_positive("the epsilon of one release", epsilon)
    check_whole("number of releases", releases, 1, 10**9)
    check_delta(delta)
    numbers = spread(1, releases)
    total = {
        SUM: [k * epsilon for k in numbers],
        ADVANCED: [advanced_composition(epsilon, 0.0, int(k), delta).epsilon for k in numbers],
        ZCDP: [zcdp_epsilon(k * epsilon**2 / 2, delta) for k in numbers],
        GAUSSIAN: [gdp_epsilon(epsilon * math.sqrt(k / 2), delta) for k in numbers],
    }
    return Composed(epsilon, delta, numbers, {name: np.array(costs) for name, costs in total.items()})


# ---- A table without names -----------------------------------------------------------------------------------------

HIERARCHIES = (
    basic.Hierarchy("postal code", basic.generalise_code(5)),
    basic.Hierarchy("age", basic.generalise_number(5, 10, 20)),
    basic.Hierarchy("sex", (str, basic.star)),
)
MONTH = basic.Hierarchy("month", (str, basic.star))


class Linked(NamedTuple):
    """One release of a patients' table, and the shares of patients that an attacker finds in it."""

    rows: basic.Text  # (patients, 3), what is published of postal code, age and sex
    identified: float  # by a voter list with names
    disclosed: float  # whose diagnosis the voter list reveals
    identified_by_month: float  # by someone who knows their data and the month of the visit


def linked(ks: Sequence[int], seed: int) -> dict[int, Linked]:
    """k-anonymise the table of 600 made-up patients for each k, and link it to a list of 3000 voters."""
    rng = rng_of(seed, 0)
    columns = rng.integers(42000, 42020, 3000), rng.integers(18, 91, 3000), rng.choice(["f", "m"], 3000)
    voters = np.column_stack([column.astype(np.str_) for column in columns])
    chosen = rng.choice(3000, 600, replace=False)
    diagnoses = rng.choice(["asthma", "diabetes", "fracture", "migraine"], 600)
    months = rng.integers(1, 13, 600).astype(np.str_)
    patients, releases = voters[chosen], {}
    for k in ks:
        release = basic.anonymise(patients, HIERARCHIES, k, most_suppressed=0.05)
        by_list = basic.link(release, voters, diagnoses)
        with_month = release._replace(
            rows=np.column_stack([release.rows, months]),
            levels=(*release.levels, 0),
            hierarchies=(*release.hierarchies, MONTH),
        )
        by_month = basic.link(with_month, np.column_stack([patients, months]), diagnoses).rows_per_person == 1
        shares = by_list.identified, by_list.disclosed[chosen], by_month
        releases[k] = Linked(release.rows, *(float(share.mean()) for share in shares))
    return releases
