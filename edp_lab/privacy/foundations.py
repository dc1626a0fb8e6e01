"""The textbook mechanisms: randomised response, Laplace, Gaussian, noisy max, tables made k-anonymous.

And how their guarantees add up: advanced composition, the privacy-loss distribution.

Every draw comes from the generator that the caller passes. The guarantees are statements about real numbers and
secret randomness. Here noise is a float64: its last bits reveal the value beneath it (Mironov 2012), and a value
more than 2^53 times the noise swallows it whole. Good for a course; a release to the world needs a snapped or a
discrete mechanism and a cryptographic generator.

What no guarantee covers raises `UsageError` before anything is drawn: an epsilon, sensitivity, sigma or scale that is
not positive and finite, delta outside (0, 1), answers other than 0 and 1, values or scores that are NaN or infinite.
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

ROUND_UP = 1 + 2.0**-48  # beyond the rounding of any formula here


class Frequencies(NamedTuple):
    """An unbiased estimate of the share of each answer, 0 and 1, and its standard error, both (2)."""

    estimate: NDArray[np.float64]
    standard_error: NDArray[np.float64]


def truth_probability(epsilon: float) -> float:
    """The probability p = e^eps / (e^eps + 1) with which randomised response tells the truth; two coins: ln 3, 3/4."""
    lie, gap = _response(epsilon)
    return lie + gap


def randomised_response(answers: ArrayLike, epsilon: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Each answer 0 or 1 kept with `truth_probability`, else replaced by the other; any shape.

    Guarantee: every answer by itself is epsilon-DP against everyone, the collector included (local DP, replacing
    one answer by the other); exactly that epsilon, no less. One person's m answers cost m epsilon.
    Source: Warner 1965.
    """
    lie, _ = _response(epsilon)
    truth = _check_answers(answers)
    # random() is a multiple of 2^-53, so the comparison rounds the probability of a lie up, never to 0.
    lies = rng.random(truth.shape) < max(lie, 2.0**-53)
    return np.where(lies, 1 - truth, truth)


def estimate_frequencies(responses: ArrayLike, epsilon: float) -> Frequencies:
    """The shares of the true answers, from randomised responses: (share of responses - l) / (p - l), l = 1 - p.

    Unbiased, and therefore sometimes below 0 or above 1; the shares sum to 1. The standard error is that of a
    random sample from a population, hence a little too large for the shares among the respondents themselves; it
    is itself an estimate, and 0 if all responses agree. Only post-processing: costs no privacy.
    """
    lie, gap = _response(epsilon)
    noisy = _check_answers(responses).ravel()
    if not noisy.size:
        raise UsageError("there are no responses: an estimate needs at least one")
    share = np.bincount(noisy, minlength=2) / noisy.size
    return Frequencies((share - lie) / gap, np.sqrt(share * (1 - share) / noisy.size) / gap)


def laplace_scale(sensitivity: float, epsilon: float) -> float:
    """The scale b = sensitivity / epsilon of Laplace noise; its standard deviation is sqrt(2) b."""
    scale = check_positive("sensitivity", sensitivity) / check_positive("epsilon", epsilon)
    return check_positive("the noise scale, sensitivity / epsilon,", scale)  # 0 would be no noise


def laplace_release(
    values: ArrayLike, sensitivity: float, epsilon: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """The values with independent Laplace noise on each; any shape.

    Guarantee: the whole array together is epsilon-DP, if `sensitivity` bounds the L1 distance between the arrays of
    any two neighbouring data sets. In real numbers: see the top of this module.
    Source: Dwork, McSherry, Nissim and Smith 2006, proposition 1.
    """
    scale, exact = laplace_scale(sensitivity, epsilon), _check_finite("values", values)
    return exact + rng.laplace(0.0, scale, exact.shape)


def analytic_gaussian_sigma(sensitivity: float, epsilon: float, delta: float) -> float:
    """The smallest standard deviation that is (epsilon, delta)-DP, for any epsilon, rounded up.

    Guarantee: gdp_delta(sensitivity / sigma, epsilon) <= delta, for an L2 sensitivity. Larger than need be by at
    most 1e-9 of itself for epsilon from 1e-4 on (1e-5 of itself at epsilon 1e-9, where floats run out of digits).
    Source: Balle and Wang 2018, theorem 8; found by bisection.
    """
    check_positive("sensitivity", sensitivity)
    check_positive("epsilon", epsilon)
    check_delta(delta)
    low = high = 1.0  # mu = sensitivity / sigma, with which delta grows; low always keeps the promise
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
    """The exact epsilon at `delta` of Gaussian noise with standard deviation `sigma`, rounded up.

    For an L2 sensitivity. Reference (delta 1e-5, sigma 0.6): sensitivity 1 -> 8.0, 28 -> 1287.
    Source: Balle and Wang 2018, theorem 8.
    """
    mu = check_positive("sensitivity", sensitivity) / check_positive("sigma", sigma)
    return gdp_epsilon(mu * ROUND_UP, delta)


def gaussian_release(values: ArrayLike, sigma: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """The values with independent N(0, sigma^2) noise on each; any shape.

    Guarantee: the whole array together is (`gaussian_epsilon`(sensitivity, sigma, delta), delta)-DP at every delta,
    if `sensitivity` bounds the L2 distance between the arrays of any two neighbours; equally, it is mu-GDP with
    mu = sensitivity / sigma (Dong, Roth and Su 2022, theorem 1). In real numbers: see the top of this module.
    """
    exact = _check_finite("values", values)
    return exact + rng.normal(0.0, check_positive("sigma", sigma), exact.shape)


def report_noisy_max(
    scores: ArrayLike, sensitivity: float, epsilon: float, rng: np.random.Generator
) -> NDArray[np.intp]:
    """The index of the largest score after Laplace noise of scale 2 sensitivity / epsilon; (..., candidates) -> (...).

    Guarantee: each choice is epsilon-DP, however many candidates, if no score moves by more than `sensitivity`
    between neighbours, such as counts under replace-one, where a vote leaves one candidate for another. Only the index
    is covered: the noisy maximum itself is not. Why it holds: given the others' noise, the winner needs noise above a
    threshold, neighbours move that threshold by at most 2 sensitivity, and P[noise > x] falls by at most e^(d / scale)
    over a distance d.
    Source: Dwork and Roth 2014, claim 3.9.
    """
    scale = 2 * laplace_scale(sensitivity, epsilon)
    points = _check_finite("scores", scores)
    return np.argmax(points + rng.laplace(scale=scale, size=points.shape), axis=-1)


def _response(epsilon: float) -> tuple[float, float]:
    """Probability of a lie, and how much likelier the truth is: both without cancellation."""
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
# k-anonymity by generalisation and suppression, and the linkage attack on it. No differential privacy here: it covers
# the columns one thought of, and someone who knows one thing more may still single a person out.
# Source: Sweeney 2002 (both papers in volume 10, 5 of IJUFKS); thesis, sections 2.3 to 2.3.2.

STAR = "*"
Text = NDArray[np.str_]
Form = Callable[[str], str]  # of a value; a column has ever broader ones, from the value itself to "*"


def generalise_code(length: int) -> tuple[Form, ...]:
    """Forms of a code such as a postal code: its last 0 ... `length` characters starred, all of them as one "*"."""
    return (*(partial(_keep, count) for count in range(length, 0, -1)), star)


def generalise_number(*widths: int) -> tuple[Form, ...]:
    """Forms of a whole number: itself, the band of each width that it lies in ("30-39"), "*"."""
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
    """The largest k for which the rows are k-anonymous: the size of the smallest class of equal rows."""
    return int(_class_sizes(np.asarray(rows, dtype=np.str_)).min())


def _class_sizes(rows: Text) -> NDArray[np.int64]:
    """How many rows equal each row, itself included: (records, columns) -> (records,)."""
    _, place, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    return counts[place.ravel()]


class Release(NamedTuple):
    """What is published of the quasi-identifiers."""

    rows: Text  # (records, columns), in the order of the original; of a suppressed record all is "*"
    forms: tuple[Form, ...]  # of each column


def anonymise(rows: Text, forms: Sequence[tuple[Form, ...]], k: int, most_suppressed: float) -> Release:
    """The least generalised k-anonymous release, after suppressing at most a share `most_suppressed` of the records.

    Every column is generalised as a whole; a suppressed record is all "*", and these too are k or none. Least
    generalised: the smallest sum over columns of level / highest level, then the fewest suppressed records.
    """
    best, least = None, (math.inf, 0.0)
    columns = [[_in_form(form, column) for form in known] for known, column in zip(forms, rows.T, strict=True)]
    for levels in itertools.product(*(range(len(column)) for column in columns)):
        shown = np.stack([column[level] for column, level in zip(columns, levels, strict=True)], axis=1)
        sizes = _class_sizes(shown)
        hidden = sizes < k
        if 0 < hidden.sum() < k and not hidden.all():  # too few to hide among: the smallest class joins them
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
    """What a list of people with the same columns, such as a voter list, reveals about a release."""

    rows_per_person: NDArray[np.int64]  # (people,), how many released rows can belong to each
    identified: NDArray[np.bool_]  # (records,), True where only one of the people fits: certain if the list is complete


def link(release: Release, people: Text) -> Linkage:
    """The linkage attack: which released rows can belong to whom."""
    classes, place, counts = np.unique(release.rows, axis=0, return_inverse=True, return_counts=True)
    fits = np.ones((len(classes), len(people)), dtype=np.bool_)  # which class can hold which of the people
    for form, cell, value in zip(release.forms, classes.T, people.T, strict=True):
        fits &= (cell[:, None] == _in_form(form, value)) | (cell[:, None] == STAR)
    return Linkage((fits * counts[:, None]).sum(axis=0), fits.sum(axis=1)[place.ravel()] == 1)


# ---- Composition -----------------------------------------------------------------------------------------------------


def advanced_composition(epsilon: float, releases: int, slack: float) -> float:
    """Epsilon of k releases at delta = slack, each epsilon-DP: eps sqrt(2 k ln(1 / slack)) + k eps (e^eps - 1).

    Guarantee: for any releases, also if each is chosen after seeing the answers before it, and for a slack > 0 chosen
    beforehand. The theorem as it stands: for few releases or a large epsilon (always from ln 2 on) the plain sum
    k eps, which holds at delta 0, is smaller.
    Source: Dwork, Rothblum and Vadhan 2010, theorem III.3; Dwork and Roth 2014, theorem 3.20.
    """
    if not epsilon >= 0:
        raise UsageError(f"epsilon is {epsilon}: a guarantee needs a number from 0 on")
    check_whole("the number of releases", releases, 1)
    if not 0 < slack < 1:
        raise UsageError(f"the slack is {slack}: it is a delta and must be between 0 and 1")
    drift = math.expm1(epsilon) if epsilon < 700 else math.inf
    return epsilon * (math.sqrt(-2 * releases * math.log(slack)) + releases * drift) * ROUND_UP


def gaussian_loss_density(loss: ArrayLike, mu: float) -> NDArray[np.float64]:
    """The density of the privacy loss ln(p(output) / p'(output)) of one Gaussian release: N(mu^2 / 2, mu^2).

    mu is L2 sensitivity over standard deviation; any shape.
    Source: Balle and Wang 2018, lemma 3.
    """
    z = _standardised(loss, mu)
    return np.exp(-z * z / 2) / (mu * math.sqrt(2 * math.pi))


def gaussian_loss_tail(epsilon: ArrayLike, mu: float) -> NDArray[np.float64]:
    """P[loss > epsilon] of one Gaussian release; any shape.

    A delta that is true but too large: the tight one is E[(1 - e^(epsilon - loss))+] = gdp_delta(mu, epsilon), which
    counts an outcome just beyond epsilon hardly at all. Variance 2, sensitivity 1, ln 3: 0.115 against 0.030.
    """
    return ndtr(-_standardised(epsilon, mu))


def _standardised(loss: ArrayLike, mu: float) -> NDArray[np.float64]:
    return np.asarray(loss, dtype=np.float64) / check_positive("mu", mu) - mu / 2
