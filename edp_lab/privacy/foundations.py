"""Textbook mechanisms: randomised response, Laplace, Gaussian, report noisy max, and k-anonymous tables.

The module also has advanced composition and the privacy loss distribution of a Gaussian release.

All random numbers come from the caller's generator. The guarantees assume real numbers and secret randomness. Here,
noise is a float64: its last bits reveal the value that it was added to (Mironov 2012), and it is lost in a value more
than 2^53 times as large. This is good enough for a course, but a real release needs a snapped or discrete mechanism
and a cryptographic generator.

Inputs that no guarantee covers raise `UsageError` before anything is drawn: an epsilon, sensitivity, sigma or scale
that is not positive and finite, delta outside (0, 1), answers other than 0 and 1, NaN or infinite values or scores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from edp_lab.errors import UsageError, check_whole
from edp_lab.privacy.gdp import check_delta, gdp_delta, gdp_epsilon

ROUND_UP = 1 + 2.0**-48  # exceeds the rounding error of every formula here


class Frequencies(NamedTuple):
    """Unbiased estimates of the shares of the answers 0 and 1, and their standard errors; shape (2) each."""

    estimate: NDArray[np.float64]
    standard_error: NDArray[np.float64]


def truth_probability(epsilon: float) -> float:
    """Probability p = e^eps / (e^eps + 1) that randomised response reports the truth; 3/4 at epsilon = ln 3."""
    lie, gap = _response(epsilon)
    return lie + gap


def randomised_response(answers: ArrayLike, epsilon: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Keep each answer (0 or 1) with `truth_probability`, otherwise replace it with the other answer; any shape.

    Guarantee: each answer is epsilon-DP against everyone, including the collector (local DP, replacing one answer with
    the other), and no smaller epsilon holds. Together, m answers of one person are (m epsilon)-DP.
    Source: Warner 1965.
    """
    lie, _ = _response(epsilon)
    truth = _check_answers(answers)
    # random() is a multiple of 2^-53, so the comparison rounds the probability of a lie up, never to 0.
    lies = rng.random(truth.shape) < max(lie, 2.0**-53)
    return np.where(lies, 1 - truth, truth)


def estimate_frequencies(responses: ArrayLike, epsilon: float) -> Frequencies:
    """Estimate the shares of the true answers from randomised responses: (share of responses - l) / (p - l), l = 1 - p.

    The estimates are unbiased, and therefore sometimes below 0 or above 1; they sum to 1. The standard error is for a
    random sample from a population, so it is slightly too large for the shares among the respondents themselves. It is
    itself an estimate, and is 0 if all responses agree. Estimation is post-processing and does not increase epsilon.
    """
    lie, gap = _response(epsilon)
    noisy = _check_answers(responses).ravel()
    if not noisy.size:
        raise UsageError("there are no responses: an estimate needs at least one")
    share = np.bincount(noisy, minlength=2) / noisy.size
    return Frequencies((share - lie) / gap, np.sqrt(share * (1 - share) / noisy.size) / gap)


def laplace_scale(sensitivity: float, epsilon: float) -> float:
    """Scale b = sensitivity / epsilon of Laplace noise; its standard deviation is sqrt(2) b."""
    scale = check_positive("sensitivity", sensitivity) / check_positive("epsilon", epsilon)
    return check_positive("the noise scale, sensitivity / epsilon,", scale)  # at 0 there would be no noise


def laplace_release(
    values: ArrayLike, sensitivity: float, epsilon: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Add independent Laplace noise to each value; any shape.

    Guarantee: the whole array is epsilon-DP if `sensitivity` bounds the L1 distance between the arrays of any two
    neighbouring data sets. This holds for real numbers; see the top of this module.
    Source: Dwork, McSherry, Nissim and Smith 2006, proposition 1.
    """
    scale, exact = laplace_scale(sensitivity, epsilon), _check_finite("values", values)
    return exact + rng.laplace(0.0, scale, exact.shape)


def analytic_gaussian_sigma(sensitivity: float, epsilon: float, delta: float) -> float:
    """Return the smallest standard deviation of (epsilon, delta)-DP Gaussian noise, for any epsilon, rounded up.

    Guarantee: gdp_delta(sensitivity / sigma, epsilon) <= delta, for an L2 sensitivity. The relative excess over the
    optimum is at most 1e-9 for epsilon of at least 1e-4 (1e-5 at epsilon 1e-9, because of the precision of floats).
    Source: Balle and Wang 2018, theorem 8; found by bisection.
    """
    check_positive("sensitivity", sensitivity)
    check_positive("epsilon", epsilon)
    check_delta(delta)
    low = high = 1.0  # mu = sensitivity / sigma; delta increases with mu, and `low` always satisfies the guarantee
    while gdp_delta(low, epsilon) > delta:
        low /= 2
    while gdp_delta(high, epsilon) <= delta:
        high *= 2
    while high > low * (1 + 0.5e-9) and low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if gdp_delta(middle, epsilon) <= delta else (low, middle)
    sigma = sensitivity / low * ROUND_UP if low else math.inf
    while gdp_delta(sensitivity / sigma, epsilon) > delta:  # the last digits of gdp_delta are not monotone
        sigma *= 1 + 1e-12
    return check_positive("the standard deviation that this epsilon and delta need", sigma)


def gaussian_epsilon(sensitivity: float, sigma: float, delta: float) -> float:
    """Return the exact epsilon at `delta` of Gaussian noise with standard deviation `sigma`, rounded up.

    The sensitivity is in L2. Reference values (delta 1e-5, sigma 0.6): sensitivity 1 -> 8.0, 28 -> 1287.
    Source: Balle and Wang 2018, theorem 8.
    """
    mu = check_positive("sensitivity", sensitivity) / check_positive("sigma", sigma)
    return gdp_epsilon(mu * ROUND_UP, delta)


def gaussian_release(values: ArrayLike, sigma: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Add independent N(0, sigma^2) noise to each value; any shape.

    Guarantee: the whole array is (`gaussian_epsilon`(sensitivity, sigma, delta), delta)-DP at every delta, if
    `sensitivity` bounds the L2 distance between the arrays of any two neighbours. Equivalently, it is mu-GDP with
    mu = sensitivity / sigma (Dong, Roth and Su 2022, theorem 1). This holds for real numbers (see this module's top).
    """
    exact = _check_finite("values", values)
    return exact + rng.normal(0.0, check_positive("sigma", sigma), exact.shape)


def report_noisy_max(
    scores: ArrayLike, sensitivity: float, epsilon: float, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Add Laplace noise of scale 2 sensitivity / epsilon; return the index of the maximum: (..., candidates) -> (...).

    Guarantee: each choice is epsilon-DP, for any number of candidates, if no score differs by more than `sensitivity`
    between neighbours. An example is vote counts under replace-one, where one vote moves to another candidate. The
    guarantee covers only the index, not the noisy maximum. Proof: given all other noise, the winner needs noise above
    a threshold. Between neighbours, the threshold moves by at most 2 sensitivity, and P[noise > x] falls by at
    most a factor e^(d / scale) over a distance d.
    Source: Dwork and Roth 2014, claim 3.9.
    """
    scale = 2 * laplace_scale(sensitivity, epsilon)
    points = _check_finite("scores", scores)
    return np.argmax(points + rng.laplace(scale=scale, size=points.shape), axis=-1)


def _response(epsilon: float) -> tuple[float, float]:
    """Return the probability of a false answer, and the probability of the truth minus it, without cancellation."""
    check_positive("epsilon", epsilon)
    total = 1 + math.exp(-epsilon)
    return math.exp(-epsilon) / total, -math.expm1(-epsilon) / total


def check_positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise UsageError(f"{name} is {value}: it must be a finite number greater than 0")
    return value


def _check_answers(answers: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(answers)
    if array.size and not (array.dtype.kind in "biu" and array.min() >= 0 and array.max() < 2):
        raise UsageError("answers must be 0 or 1")
    return array.astype(np.int64)


def _check_finite(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise UsageError(f"{name} contain NaN or infinity, which no noise can hide: clip or replace them first")
    return array


# ---- Anonymity -------------------------------------------------------------------------------------------------------
# k-anonymity by generalisation and suppression, and the linkage attack on it. This is not differential privacy: it
# covers only the chosen columns, and an attacker who knows one more attribute may still identify a person.
# Source: Sweeney 2002 (both papers in volume 10, 5 of IJUFKS); thesis, sections 2.3 to 2.3.2.

STAR = "*"
Text = NDArray[np.str_]
Form = Callable[[str], str]  # generalises a value; a column has increasingly broad forms, from the value itself to "*"


def generalise_code(length: int) -> tuple[Form, ...]:
    """Forms of a code such as a postal code, with its last 0 ... `length` characters starred (all: a single "*")."""
    return (*(partial(_keep, count) for count in range(length, 0, -1)), star)


def generalise_number(*widths: int) -> tuple[Form, ...]:
    """Forms of an integer: itself, the band of each width that contains it ("30-39"), "*"."""
    return (str, *(partial(_band, width) for width in widths), star)


def _keep(count: int, code: str) -> str:
    return code[:count] + STAR * (len(code) - count)


def _band(width: int, number: str) -> str:
    low = int(number) // width * width
    return f"{low}-{low + width - 1}"


def star(value: str) -> str:
    return STAR


def _in_form(form: Form, column: Text) -> Text:
    return np.array([form(str(value)) for value in column], dtype=np.str_)


def anonymity(rows: ArrayLike) -> int:
    """Largest k for which the rows are k-anonymous: the size of the smallest class of equal rows."""
    return int(_class_sizes(np.asarray(rows, dtype=np.str_)).min())


def _class_sizes(rows: Text) -> NDArray[np.int64]:
    """Number of rows equal to each row, including itself: (records, columns) -> (records,)."""
    _, place, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    return counts[place.ravel()]


class Release(NamedTuple):
    """Published quasi-identifiers."""

    rows: Text  # (records, columns), in the original order; all columns of a suppressed record are "*"
    forms: tuple[Form, ...]  # one per column


def anonymise(rows: Text, forms: Sequence[tuple[Form, ...]], k: int, most_suppressed: float) -> Release:
    """Return the least generalised k-anonymous release that suppresses at most a share `most_suppressed` of records.

    Every column is generalised as a whole. Suppressed records have only "*"; none or at least k records are suppressed.
    Least generalised means the smallest sum over columns of level / highest level, then the fewest suppressed records.
    """
    best, least = None, (math.inf, 0.0)
    columns = [[_in_form(form, column) for form in known] for known, column in zip(forms, rows.T, strict=True)]
    for levels in itertools.product(*(range(len(column)) for column in columns)):
        shown = np.stack([column[level] for column, level in zip(columns, levels, strict=True)], axis=1)
        sizes = _class_sizes(shown)
        hidden = sizes < k
        if 0 < hidden.sum() < k and not hidden.all():  # fewer than k suppressed: also suppress the smallest class
            hidden |= (shown == shown[~hidden][sizes[~hidden].argmin()]).all(axis=1)
        released = np.where(hidden[:, None], STAR, shown)
        suppressed = float((released != shown).any(axis=1).mean())
        cost = sum(level / max(1, len(known) - 1) for level, known in zip(levels, forms, strict=True)), suppressed
        if cost < least and suppressed <= most_suppressed and anonymity(released) >= k:
            chosen = tuple(known[level] for level, known in zip(levels, forms, strict=True))
            best, least = Release(released, chosen), cost
    if best is None:
        raise UsageError(f"no forms make the table {k}-anonymous: lower k, or let the last form of all columns be '*'")
    return best


class Linkage(NamedTuple):
    """Result of linking a release with a list of people that has the same columns, such as a voter list."""

    rows_per_person: NDArray[np.int64]  # (people,), number of released rows that can belong to each person
    identified: NDArray[np.bool_]  # (records,), True if only one person matches; certain if the list is complete


def link(release: Release, people: Text) -> Linkage:
    """Run the linkage attack: match released rows with the people that they can belong to."""
    classes, place, counts = np.unique(release.rows, axis=0, return_inverse=True, return_counts=True)
    fits = np.ones((len(classes), len(people)), dtype=np.bool_)  # which class can contain which person
    for form, cell, value in zip(release.forms, classes.T, people.T, strict=True):
        fits &= (cell[:, None] == _in_form(form, value)) | (cell[:, None] == STAR)
    return Linkage((fits * counts[:, None]).sum(axis=0), fits.sum(axis=1)[place.ravel()] == 1)


# ---- Composition -----------------------------------------------------------------------------------------------------


def advanced_composition(epsilon: float, releases: int, slack: float) -> float:
    """Epsilon of k epsilon-DP releases at delta = slack: eps sqrt(2 k ln(1 / slack)) + k eps (e^eps - 1).

    Guarantee: valid for any releases, even if each is chosen after seeing the earlier answers, and for any slack > 0
    chosen beforehand. For few releases or a large epsilon (always if it is at least ln 2), the plain sum k eps, which
    holds at delta 0, is smaller.
    Source: Dwork, Rothblum and Vadhan 2010, theorem III.3; Dwork and Roth 2014, theorem 3.20.
    """
    if not epsilon >= 0:
        raise UsageError(f"epsilon is {epsilon}: it must be 0 or more")
    check_whole("the number of releases", releases, 1)
    if not 0 < slack < 1:
        raise UsageError(f"the slack is {slack}: it is a delta and must be between 0 and 1")
    drift = math.expm1(epsilon) if epsilon < 700 else math.inf
    return epsilon * (math.sqrt(-2 * releases * math.log(slack)) + releases * drift) * ROUND_UP


def gaussian_loss_density(loss: ArrayLike, mu: float) -> NDArray[np.float64]:
    """Density of the privacy loss ln(p(output) / p'(output)) of one Gaussian release: N(mu^2 / 2, mu^2).

    mu is the L2 sensitivity divided by the standard deviation; `loss` has any shape.
    Source: Balle and Wang 2018, lemma 3.
    """
    z = _standardised(loss, mu)
    return np.exp(-z * z / 2) / (mu * math.sqrt(2 * math.pi))


def gaussian_loss_tail(epsilon: ArrayLike, mu: float) -> NDArray[np.float64]:
    """P[loss > epsilon] of one Gaussian release; any shape.

    This delta is valid but loose. The tight delta, E[(1 - e^(epsilon - loss))+] = gdp_delta(mu, epsilon), gives little
    weight to a loss just above epsilon. At variance 2, sensitivity 1 and epsilon ln 3, it is 0.030 instead of 0.115.
    """
    return ndtr(-_standardised(epsilon, mu))


def _standardised(loss: ArrayLike, mu: float) -> NDArray[np.float64]:
    return np.asarray(loss, dtype=np.float64) / check_positive("mu", mu) - mu / 2
