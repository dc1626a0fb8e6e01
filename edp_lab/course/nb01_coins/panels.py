"""Panels of ``01_coins_to_composition.ipynb`` and their data: randomised response, delta, composition.

result = poll(epsilon=1.1, people=1000, share=0.3, seed=0)    # deterministic: the seed is an argument
print(result.estimate[-1], result.standard_error[-1])
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import Array, check_share, decades, number, rng_of, seed_of, whole_decades
from edp_lab.course.kit.figure import Figure, area, axis, between, line, logs, points, positive
from edp_lab.course.kit.panel import Panel, panel
from edp_lab.course.kit.text import Html, Tile, Words, at_most, claimed, command, count, holds, percent, short
from edp_lab.course.kit.text import digits as d
from edp_lab.course.kit.theme import CLAIMED, HOLDS, INK, NOISE, OTHER, PLAIN, PRINTED
from edp_lab.errors import UsageError, check_whole
from edp_lab.privacy import foundations as basic
from edp_lab.privacy.foundations import advanced_composition, gaussian_loss_tail, truth_probability
from edp_lab.privacy.gdp import check_delta, gdp_delta, gdp_epsilon
from edp_lab.privacy.zcdp import zcdp_epsilon

TINY = "below 10⁻³⁰⁷"  # a positive number that rounds to 0 as a float
figure = partial(fig.figure, height=380)
EPSILON = "nats"

POINTS = 60  # points per curve
HALF = float(ndtri(0.95))  # half-width of a 90 % interval, in standard errors


def spread(first: int, last: int) -> NDArray[np.int64]:
    """Distinct integers from `first` to `last`, spaced roughly geometrically."""
    return np.unique(np.geomspace(first, last, POINTS).round().astype(np.int64))


# ---- A table without names -------------------------------------------------------------------------------------------

FORMS = basic.generalise_code(5), basic.generalise_number(5, 10, 20), (str, basic.star)  # postal code, age, sex


def linked(k: int, seed: int) -> tuple[float, float]:
    """Simulate linkage attacks on a k-anonymous table of 600 patients; `k` = 1 is the original table.

    Returns the share of patients who are singled out by a list of 3000 voters, and the share who are singled out by an
    attacker who knows their data and the month of the visit.
    """
    rng = rng_of(seed, 0)
    columns = rng.integers(42000, 42020, 3000), rng.integers(18, 91, 3000), rng.choice(["f", "m"], 3000)
    voters = np.column_stack([column.astype(np.str_) for column in columns])
    patients = voters[rng.choice(3000, 600, replace=False)]
    months = rng.integers(1, 13, 600).astype(np.str_)
    release = basic.anonymise(patients, FORMS, k, most_suppressed=0.05)
    with_month = basic.Release(np.column_stack([release.rows, months]), (*release.forms, str))
    by_list = basic.link(release, voters).identified
    by_month = basic.link(with_month, np.column_stack([patients, months])).rows_per_person == 1
    return float(by_list.mean()), float(by_month.mean())


# ---- A coin for everyone ---------------------------------------------------------------------------------------------


class Poll(NamedTuple):
    """Randomised responses to a yes-or-no question, and the collector's estimates; 1 means yes."""

    epsilon: float  # pure epsilon of one answer: local DP, one answer replaced by the other
    share: float  # share of the population whose true answer is yes
    truth: NDArray[np.int64]  # (people,), true answers
    responses: NDArray[np.int64]  # (people,); only these are sent to the collector
    asked: NDArray[np.int64]  # (points,), number of people asked so far
    yes: Array  # (points,), share of yes among the responses so far
    estimate: Array  # (points,), estimate of `share` from the responses so far
    standard_error: Array  # (points,), standard error of `estimate`


def poll(epsilon: float, people: int, share: float, seed: int) -> Poll:
    """Simulate randomised response by `people` people from a population in which the true answer of a `share` is yes.

    UsageError: epsilon is not positive and finite, `people` is not an integer from 2 to 100,000, `share` is outside
    [0, 1], or the seed is negative.
    """
    check_whole("the number of people", people, 2, 100_000)
    check_share("yes", share)
    truth = (rng_of(seed, 1).random(people) < share).astype(np.int64)
    responses = basic.randomised_response(truth, epsilon, rng_of(seed, 2))
    asked = spread(max(2, min(10, people // 5)), people)
    estimates = [basic.estimate_frequencies(responses[:n], epsilon) for n in asked]
    estimate, error = np.array([(shares.estimate[1], shares.standard_error[1]) for shares in estimates]).T
    yes = np.cumsum(responses)[asked - 1] / asked
    return Poll(epsilon, share, truth, responses, asked, yes, estimate, error)


def belief(before: Array | float, loss: float) -> Array:
    """Update probabilities by Bayes' rule: the odds are multiplied by e^loss. Pure epsilon-DP has |loss| <= epsilon."""
    return np.asarray(expit(logit(before) + loss))


words = Words(__file__, tiny=TINY, belief=belief, truth_probability=truth_probability)


@panel("01")
def coin(epsilon: float = 1.1, people: int = 300, share: float = 0.3, seed: int = 0) -> Panel:
    """Panel on randomised response: `result` is a `Poll`."""
    crowds = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000]
    return Panel(
        "A coin for everyone",
        "People's answers after tossing secret coins, and the collector's estimate.",
        poll,
        [draw_people, draw_poll],
        words.coin,
        tiles=tell_coin,
        epsilon=number("ε per answer", epsilon, decades(-2, 1), unit=EPSILON),
        people=number("number of people", people, crowds, unit="people"),
        share=number("share of yes", share, [k / 100 for k in range(101)], unit="of 1"),
        seed=seed_of(seed),
    )


def tell_coin(result: Poll) -> tuple[Tile, Tile, str]:
    """Return tiles on the belief after one yes and the estimate from all answers, and a sentence on lies."""
    share, (estimate, error) = 100 * result.share, (100 * result.estimate[-1], 100 * result.standard_error[-1])
    after = f"{d(share)} % → {percent(float(belief(result.share, result.epsilon)))}"
    person = Tile("a person who says yes", after, "belief before and after")
    spread, at = (f" ± {short(HALF * error)}", ", at 90 % confidence") if error else ("", "")  # 0: all answers agree
    everyone = holds(f"{d(estimate)} %{spread}", f"estimated yes{at}; the true share is {d(share)} %", "all people")
    first = min(SHOWN, result.truth.size)
    lies = int((result.truth != result.responses)[:first].sum())
    lie = "lies" if lies == 1 else "lie"
    return person, everyone, f"{lies} of the first {first} people {lie}, and nobody can tell which."


SHOWN = 100  # people shown in the figure of a poll
LOOKS_OF_ANSWERS = {
    ("yes, true", PLAIN, "circle"): (1, True),
    ("no, true", PLAIN, "circle-open"): (0, True),
    ("yes, a lie", NOISE, "diamond"): (1, False),
    ("no, a lie", NOISE, "diamond-open"): (0, False),
}


def draw_people(result: Poll) -> Figure:
    """Plot the first hundred people, ten per row, with their answers and whether these are true."""
    truth, responses = result.truth[:SHOWN], result.responses[:SHOWN]
    marks = []
    for look, (answer, honest) in LOOKS_OF_ANSWERS.items():
        who = np.flatnonzero((responses == answer) & ((responses == truth) == honest))
        marks.append(points(*look, 11, edge=2.5, x=who % 10, y=who // 10))
    ticks: dict[str, Any] = {"showgrid": False, "tickvals": list(range(0, 10, 3))}
    return figure(
        f"Answers of the first {SHOWN} people",
        *marks,
        hover="person %{y}%{x}",
        xaxis=axis("person: last digit", [-0.6, 9.6], **ticks),
        yaxis=axis("person: tens", [9.6, -0.6], **ticks),
    )


def draw_poll(result: Poll) -> Figure:
    """Plot the estimate with its 90 % interval against the number of people asked."""
    asked, estimate = result.asked, 100 * result.estimate
    half = 100 * HALF * result.standard_error
    band = between(asked, estimate - half, estimate + half)
    return figure(
        "The collector's estimate",
        area("", OTHER, 0.45, hoverinfo="skip", showlegend=False, **band),
        line("estimate", INK, x=asked, y=estimate),
        line("observed share", CLAIMED, "dash", x=asked, y=100 * result.yes),
        line("true share", HOLDS, "dot", x=asked[[0, -1]], y=[100 * result.share] * 2),
        hover="%{x:,} people: %{y:.3g} %",
        xaxis=axis("people asked so far", np.log10(asked[[0, -1]]), type="log", dtick=1),
        yaxis=axis("share of yes (%)", [-20, 120]),
    )


# ---- Delta as an area ------------------------------------------------------------------------------------------------


class GaussianCount(NamedTuple):
    """A count of 1000 with Gaussian noise, which one more person raises by `sensitivity` (thesis, figures 2.1 to 2.3).

    `delta` is the area between `density` and `raised` where `density` is higher.
    """

    epsilon: float
    sigma: float
    sensitivity: float
    mu: float  # sensitivity divided by sigma
    delta: float  # the smallest delta for epsilon (Gaussian DP, exact)
    tail: float  # P[loss > epsilon], shown in figure 2.3 of the thesis
    output: Array  # (201,), the noisy count
    density: Array  # (201,), density of `output` without the person
    density_neighbour: Array  # (201,), density of `output` with the person
    raised: Array  # (201,), e^epsilon times `density_neighbour`
    epsilons: Array  # (points,)
    deltas: Array  # (points,), smallest delta for each of `epsilons`
    tails: Array  # (points,), P[loss > epsilon] for each of `epsilons`


def gaussian_count(epsilon: float, sigma: float, sensitivity: float) -> GaussianCount:
    """Compute the densities and deltas of one Gaussian release of a count.

    UsageError: epsilon is negative or infinite, or sigma or sensitivity is not positive and finite.
    """
    mu = basic.check_positive("the sensitivity", sensitivity)
    mu /= basic.check_positive("the standard deviation sigma", sigma)
    if epsilon == math.inf:
        raise UsageError("epsilon is inf: it must be a finite number, 0 or more")
    shift = np.linspace(-4 / mu, 1 + 4 / mu, 201)  # distance of the noisy count from 1000, divided by the sensitivity
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


@panel("01")
def delta(epsilon: float = 1.1, sigma: float = 1.41, sensitivity: float = 1.0) -> Panel:
    """Panel on delta of the Gaussian mechanism: `result` is a `GaussianCount`."""
    return Panel(
        "δ of Gaussian noise",
        "The density of the noisy count with and without one person, and the smallest δ for every ε.",
        gaussian_count,
        [draw_delta, draw_deltas],
        words.delta,
        account=lambda result: _account(1 / result.mu, 1, result.delta),
        tiles=tell_delta,
        joint=("sigma",),
        epsilon=number("ε per answer", epsilon, [0.0, *decades(-2, 1)], unit=EPSILON),
        sigma=number("noise σ", sigma, decades(-1, 2), unit="people"),
        sensitivity=number("sensitivity Δ", sensitivity, [float(k) for k in range(1, 21)], unit="people"),
    )


def tell_delta(result: GaussianCount) -> tuple[Tile, Tile, str]:
    """Return tiles with the probability of a loss above epsilon (the thesis takes it for delta) and with delta."""
    at = f"at ε = {d(result.epsilon)}"
    tail, least = d(result.tail) if result.tail else TINY, at_most(result.delta) if result.delta else TINY
    both = claimed(tail, at, "probability of a loss above ε"), holds(least, at, "smallest δ")
    if result.delta == 0:
        return *both, "At this ε, δ is too small for a floating-point number."
    return *both, f"The probability of a loss above ε is {short(result.tail / result.delta)} times δ."


def _account(noise_multiplier: float, releases: int, delta: float) -> str:
    """Command that prints the total epsilon of Gaussian releases; "" for a delta that it would reject."""
    options = {"z0": noise_multiplier, "epochs": releases, "delta": delta}
    return command("account", options) if 0 < delta < 1 else ""


def draw_delta(result: GaussianCount) -> Figure:
    """Plot the density without the person and e^epsilon times the density with the person; delta is an area."""
    output, raised, top = result.output, result.raised, 1.2 * float(result.density.max())
    return figure(
        "δ as an area",
        area("δ", PRINTED, 0.7, **between(output, np.minimum(raised, result.density), result.density)),
        line("without", PLAIN, x=output, y=result.density),
        line("with", NOISE, "dash", x=output, y=result.density_neighbour),
        line(Html("e<sup>ε</sup> × with"), HOLDS, "dot", x=output, y=np.minimum(raised, 100 * top)),
        hover="%{x:.4g}: %{y:.3g}",
        xaxis=axis("noisy count (people)", output[[0, -1]]),
        yaxis=axis("density (per person)", [0, top]),
    )


def draw_deltas(result: GaussianCount) -> Figure:
    """Plot the smallest delta and the probability of a loss above epsilon, against epsilon."""
    low = max(-12, fig.log_range(result.deltas)[0])
    return figure(
        "δ for every ε",
        line("loss above ε", CLAIMED, "dash", x=result.epsilons, y=positive(result.tails)),
        line("smallest δ", HOLDS, x=result.epsilons, y=positive(result.deltas)),
        fig.ring(10, x=[result.epsilon] * 2, y=positive([result.tail, result.delta])),
        fig.vline(result.epsilon),
        hover="ε ≈ %{x:.3g}: %{y:.3g}",
        xaxis=axis("ε (nats)"),
        yaxis=logs("probability", [low, 0.1], dtick=math.ceil((0.1 - low) / 6)),
    )


# ---- Many releases ---------------------------------------------------------------------------------------------------

SUM, ADVANCED, ZCDP, GAUSSIAN = "plain sum", "advanced composition", "zCDP", "Gaussian"


class Composed(NamedTuple):
    """Total epsilon of many releases, by four accountants."""

    epsilon: float  # pure epsilon of one release
    delta: float  # delta of the total, for all accountants except the plain sum, which has 0
    releases: NDArray[np.int64]  # (points,), numbers of releases
    total: Mapping[str, Array]  # by accountant: (points,), total epsilon for each number of releases

    @property
    def last(self) -> dict[str, float]:
        """Total epsilon of all releases, by accountant."""
        return {name: float(costs[-1]) for name, costs in self.total.items()}


def composed(epsilon: float, releases: int, delta: float) -> Composed:
    """Compute the total epsilon of 1 to `releases` releases that have a pure `epsilon` each.

    The Gaussian total is exact, but for a different mechanism: Gaussian noise on a single number, with the standard
    deviation of the Laplace noise. Sensitivity divided by sigma is epsilon / sqrt(2) per release.

    UsageError: epsilon is not positive and finite, or `releases` (1 to 10^9) or delta (0 to 1) is out of range.
    """
    basic.check_positive("the epsilon of one release", epsilon)
    check_whole("the number of releases", releases, 1, 10**9)
    check_delta(delta)
    numbers = spread(1, releases)
    total = {
        SUM: [k * epsilon for k in numbers],
        ADVANCED: [advanced_composition(epsilon, int(k), delta) for k in numbers],
        ZCDP: [zcdp_epsilon(k * epsilon**2 / 2, delta) for k in numbers],
        GAUSSIAN: [gdp_epsilon(epsilon * math.sqrt(k / 2), delta) for k in numbers],
    }
    return Composed(epsilon, delta, numbers, {name: np.array(costs) for name, costs in total.items()})


@panel("01")
def composition(epsilon: float = 0.1, releases: int = 1000, delta: float = 1e-5) -> Panel:
    """Panel on composition: `result` is a `Composed`."""
    return Panel(
        "Many releases",
        "The total ε of many releases, by four accountants.",
        composed,
        [draw_total],
        words.composition,
        account=lambda result: _account(2**0.5 / result.epsilon, int(result.releases[-1]), result.delta),
        tiles=tell_composition,
        epsilon=number("ε per release", epsilon, decades(-3, 1), unit=EPSILON, within=(1e-9, 1e9)),
        releases=number("number of releases", releases, whole_decades(0, 6), unit="releases"),
        delta=number("δ of the total", delta, decades(-12, -1), unit="probability"),
    )


LOOKS = {SUM: (PLAIN, "solid"), ADVANCED: (OTHER, "dash"), ZCDP: (HOLDS, "dashdot"), GAUSSIAN: (NOISE, "dot")}


def tell_composition(result: Composed) -> tuple[Tile, Tile, str]:
    """Return tiles with the plain sum and the smallest valid total, and a sentence that compares both."""
    last = result.last
    best = min((SUM, ADVANCED, ZCDP), key=last.__getitem__)
    plain = Tile(SUM, f"ε = {at_most(last[SUM])}", "δ = 0")
    at = f"{best}, δ = {0 if best == SUM else short(result.delta)}"
    least = holds(f"ε = {at_most(last[best])}", at, "smallest of three")
    many = count(int(result.releases[-1]), "release")
    if best == SUM:
        return plain, least, f"For {many}, neither advanced composition nor zCDP is below the plain sum."
    return plain, least, f"The plain sum of {many} is {short(last[SUM] / last[best])} times the total by {best}."


def draw_total(result: Composed) -> Figure:
    """Plot total epsilon against the number of releases on log axes, by accountant."""
    mode = "lines" if result.releases.size > 1 else "markers"
    right = max(1.0, math.log10(result.releases[-1]) + 0.05)
    top = max(total for name, total in result.last.items() if name != ADVANCED)
    return figure(
        "Total ε of many releases",
        *(
            line(name, *look, x=result.releases, y=positive(result.total[name]), mode=mode)
            for name, look in LOOKS.items()
        ),
        hover="%{x:,} releases: ε ≈ %{y:.3g}",
        xaxis=logs("releases about the same data", [-0.03, right]),
        yaxis=fig.log_axis("total ε (nats)", [result.epsilon, top]),
    )
