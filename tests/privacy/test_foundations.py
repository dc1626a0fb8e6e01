"""Textbook mechanisms: each guarantee as a likelihood ratio, and each sampler against its distribution."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_delta
from edp_lab.privacy.foundations import (
    analytic_gaussian_sigma,
    anonymise,
    anonymity,
    estimate_frequencies,
    gaussian_epsilon,
    gaussian_release,
    generalise_code,
    generalise_number,
    laplace_release,
    laplace_scale,
    link,
    randomised_response,
    report_noisy_max,
    star,
    truth_probability,
)
from tests.privacy.test_guarantee import logarithmic

DELTA = 1e-5
DRAWS = 200_000


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20260707)


@given(logarithmic(1e-3, 20))
def test_the_likelihood_ratio_of_randomised_response_is_e_to_the_epsilon(epsilon):
    truth = truth_probability(epsilon)
    assert math.log(truth / (1 - truth)) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("answer", [0, 1])
def test_responses_have_the_stated_probabilities(answer, rng):
    responses = randomised_response(np.full((2, DRAWS // 2), answer), 1.0, rng)
    true = int((responses == answer).sum())
    assert responses.shape == (2, DRAWS // 2)
    assert stats.binomtest(true, DRAWS, truth_probability(1.0)).pvalue > 1e-3


def test_responses_accept_small_types_and_answers_one_by_one_and_the_largest_epsilon_lies_now_and_then(rng):
    assert set(randomised_response(np.array([True, False] * 50), 0.5, rng)) == {0, 1}
    assert set(randomised_response(np.ones(100, np.uint8), 0.5, rng)) == {0, 1}
    assert int(randomised_response(1, 0.5, rng)) in (0, 1)
    smallest = Mock(random=np.zeros)
    assert randomised_response([0, 1], 1e5, smallest).tolist() == [1, 0]


def test_the_estimate_is_unbiased_and_its_standard_error_is_honest(rng):
    share, surveys, people = np.array([0.9, 0.1]), 2000, 400
    answers = rng.choice(2, (surveys, people), p=share)
    results = [estimate_frequencies(row, 1.0) for row in randomised_response(answers, 1.0, rng)]
    estimates, errors = (np.array(part) for part in zip(*results, strict=True))
    spread = estimates.std(axis=0)
    assert np.all(abs(estimates.mean(axis=0) - share) < 4 * spread / math.sqrt(surveys))
    assert errors.mean(axis=0) == pytest.approx(spread, rel=0.08)
    covered = (abs(estimates - share) < 1.96 * errors).mean(axis=0)
    assert np.all((covered > 0.93) & (covered < 0.97))


@given(logarithmic(1e-3, 1e3), logarithmic(1e-3, 100))
def test_the_log_density_ratio_of_laplace_noise_is_epsilon(sensitivity, epsilon):
    noise = stats.laplace(scale=laplace_scale(sensitivity, epsilon))
    x = np.linspace(-3 * sensitivity, 3 * sensitivity, 61)
    assert abs(noise.logpdf(x) - noise.logpdf(x - sensitivity)).max() == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("release", "law"),
    [
        (lambda values, rng: laplace_release(values, 2.0, 0.5, rng), stats.laplace(scale=4)),
        (lambda values, rng: gaussian_release(values, 3.0, rng), stats.norm(scale=3)),
    ],
)
def test_releases_add_noise_of_the_stated_distribution_to_every_value(release, law, rng):
    values = np.arange(DRAWS, dtype=float).reshape(2, -1)
    noise = release(values, rng) - values
    assert noise.shape == values.shape
    assert stats.kstest(noise.ravel(), law.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(noise)[0, 1]) < 5 / math.sqrt(DRAWS / 2)
    assert len(np.unique(noise.round(9))) > 0.99 * DRAWS


@given(logarithmic(1e-4, 1e6), logarithmic(1e-12, 0.99), logarithmic(1e-3, 1e3))
def test_the_analytic_sigma_keeps_delta_and_is_the_smallest(epsilon, delta, sensitivity):
    sigma = analytic_gaussian_sigma(sensitivity, epsilon, delta)
    assert gdp_delta(sensitivity / sigma, epsilon) <= delta
    assert gdp_delta(sensitivity / (sigma * (1 - 2e-9)), epsilon) > delta
    assert gaussian_epsilon(sensitivity, sigma, delta) <= epsilon * (1 + 1e-9)


def test_noisy_max_takes_extreme_scores(rng):
    assert int(report_noisy_max([-1e6, 0.0, -1e6], 1.0, 1.0, rng)) == 1
    assert report_noisy_max([3.0], 1.0, 1.0, rng) == 0


def winning_probabilities(scores: np.ndarray, scale: float) -> np.ndarray:
    """Numerical integral for P[i wins]: integral of f(x - score_i) prod_{j != i} F(x - score_j)."""
    law = stats.laplace
    x = np.concatenate([np.linspace(scores.min() - 40 * scale, scores.max() + 40 * scale, 50_001), scores])
    x.sort()
    density = law.pdf(x[:, None], loc=scores, scale=scale)
    below = law.cdf(x[:, None], loc=scores, scale=scale)
    others = np.stack([np.delete(below, i, axis=1).prod(axis=1) for i in range(len(scores))], axis=1)
    return integrate.trapezoid(density * others, x, axis=0)


def test_noisy_max_chooses_with_the_probabilities_of_its_noise(rng):
    scores, sensitivity, epsilon = np.array([3.0, 2.0, 0.0, 2.5]), 0.5, 0.6
    expected = winning_probabilities(scores, 2 * sensitivity / epsilon)
    assert expected.sum() == pytest.approx(1, abs=1e-3)
    many = np.broadcast_to(scores, (DRAWS, 4))
    chosen = report_noisy_max(many, sensitivity, epsilon, rng)
    assert stats.chisquare(np.bincount(chosen), expected / expected.sum() * DRAWS).pvalue > 1e-3


@pytest.mark.parametrize(
    ("before", "after", "scale"),
    [
        ((4, 4, 3), (5, 4, 3), 1.0),  # one vote added: monotone, noise 1 / epsilon
        ((6, 0, 0), (6, 1, 1), 1.0),
        ((4, 4, 3), (5, 3, 3), 2.0),  # one vote moved: not monotone, noise 2 / epsilon
        ((6, 0, 0), (5, 1, 1), 2.0),
        ((8, 0), (7, 1), 1.0),  # half the noise is not enough if votes move
    ],
)
def test_noisy_max_keeps_epsilon_for_counts(before, after, scale):
    p, q = (winning_probabilities(np.array(scores, float), scale) for scores in (before, after))
    loss = np.abs(np.log(p / q)).max()
    assert loss <= 1 + 2e-3 if len(before) == 3 else loss > 1.7


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("epsilon", lambda x, rng: randomised_response([0], x, rng)),
        ("epsilon", lambda x, rng: estimate_frequencies([0], x)),
        ("sensitivity", lambda x, rng: laplace_release([0], x, 1, rng)),
        ("epsilon", lambda x, rng: analytic_gaussian_sigma(1, x, DELTA)),
        ("sensitivity", lambda x, rng: analytic_gaussian_sigma(x, 1, DELTA)),
        ("sensitivity", lambda x, rng: gaussian_epsilon(x, 1, DELTA)),
        ("sigma", lambda x, rng: gaussian_epsilon(1, x, DELTA)),
        ("sigma", lambda x, rng: gaussian_release([0], x, rng)),
        ("sensitivity", lambda x, rng: report_noisy_max([0], x, 1, rng)),
        ("epsilon", lambda x, rng: report_noisy_max([0], 1, x, rng)),
    ],
)
def test_numbers_that_must_be_positive(name, call, bad, rng):
    with pytest.raises(UsageError, match=rf"^{name} is {bad}: it must be a finite number greater than 0$"):
        call(bad, rng)


@pytest.mark.parametrize(
    ("sentence", "call"),
    [
        *(
            ("delta is .*must be between 1e-300 and 1", lambda rng, call=call, bad=bad: call(1.0, 0.5, bad))
            for call in (analytic_gaussian_sigma, gaussian_epsilon)
            for bad in (0.0, 1.0, -0.1, math.nan)
        ),
        ("answers must be 0 or 1", lambda rng: randomised_response([0, 2], 1.0, rng)),
        ("answers must be 0 or 1", lambda rng: randomised_response([0.0], 1.0, rng)),
        ("answers must be 0 or 1", lambda rng: estimate_frequencies([0, 3], 1.0)),
        ("no responses", lambda rng: estimate_frequencies([], 1.0)),
        ("values contain NaN", lambda rng: laplace_release([1.0, math.nan], 1, 1, rng)),
        ("values contain NaN", lambda rng: gaussian_release(math.inf, 1, rng)),
        ("noise scale, sensitivity / epsilon, is 0.0", lambda rng: laplace_release([1], 1e-300, 1e300, rng)),
        ("noise scale, sensitivity / epsilon, is inf", lambda rng: report_noisy_max([1], 1e300, 1e-300, rng)),
        ("standard deviation .* is inf", lambda rng: analytic_gaussian_sigma(1e300, 1e-300, 1e-300)),
        ("standard deviation .* is inf", lambda rng: analytic_gaussian_sigma(1.0, 5e-324, 1e-300)),
    ],
)
def test_other_bad_input_is_named_before_anything_is_drawn(sentence, call, rng):
    state = rng.bit_generator.state
    with pytest.raises(UsageError, match=sentence):
        call(rng)
    assert rng.bit_generator.state == state
    assert randomised_response([], 1.0, rng).size == laplace_release([], 1.0, 1.0, rng).size == 0


CODE = generalise_code(3)
AGE = generalise_number(10, 20)
SEX = (str, star)
COLUMNS = (CODE, AGE, SEX)
TABLE = np.array(
    [
        ["420", "31", "f"],
        ["421", "35", "f"],
        ["420", "38", "m"],
        ["423", "34", "m"],
        ["510", "62", "f"],
        ["511", "66", "f"],
    ]
)
ROLL = np.vstack([TABLE, [["420", "33", "f"], ["515", "69", "f"], ["510", "21", "m"]]])  # plus three people

tables = st.lists(
    st.tuples(st.sampled_from(["420", "421", "430", "511"]), st.integers(20, 60).map(str), st.sampled_from("fm")),
    min_size=1,
    max_size=20,
)


def test_forms_get_broader_until_nothing_is_left():
    assert [form("421") for form in CODE] == ["421", "42*", "4**", "*"]
    assert [form("39") for form in AGE] == ["39", "30-39", "20-39", "*"]
    assert [form("40") for form in AGE] == ["40", "40-49", "40-59", "*"]
    assert [form("f") for form in SEX] == ["f", "*"]


def test_two_of_each_by_the_least_generalisation_which_suppression_saves():
    """The result is 42*, ten years, sex, with classes {1, 2}, {3, 4}, {5, 6}; no smaller generalisation is enough."""
    release = anonymise(TABLE, COLUMNS, 2, most_suppressed=0)
    assert release.forms == (CODE[1], AGE[1], SEX[0])
    assert anonymity(release.rows) == 2
    assert release.rows[[0, 2, 4]].tolist() == [["42*", "30-39", "f"], ["42*", "30-39", "m"], ["51*", "60-69", "f"]]
    with pytest.raises(UsageError, match="no forms make the table 2-anonymous"):
        anonymise(TABLE, [(str,)] * 3, 2, 0)


@settings(max_examples=50)
@given(tables, st.integers(1, 6), st.sampled_from([0.0, 0.1, 0.5]))
def test_every_release_is_k_anonymous_and_says_nothing_untrue(rows, k, most):
    table, k = np.array(rows), min(k, len(rows))
    release = anonymise(table, COLUMNS, k, most)
    assert anonymity(release.rows) >= k
    shown = np.array([[form(str(value)) for form, value in zip(release.forms, row, strict=True)] for row in table])
    differing = (release.rows != shown).any(axis=1)
    assert differing.mean() <= most
    assert (release.rows[differing] == "*").all()
    linkage = link(release, table)
    assert (linkage.rows_per_person >= k).all()
    assert not linkage.identified.any() or k == 1


def test_the_roll_identifies_patients_in_the_plain_table_and_none_among_two():
    plain = link(anonymise(TABLE, COLUMNS, 1, 0), ROLL)
    assert plain.identified.all()
    assert plain.rows_per_person.tolist() == [1] * 6 + [0] * 3
    linked = link(anonymise(TABLE, COLUMNS, 2, 0), ROLL)
    assert linked.rows_per_person.tolist() == [2] * 8 + [0]
    assert not linked.identified.any()
