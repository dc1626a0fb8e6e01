"""Composition and amplification against exact worst cases, the privacy loss against samples and integrals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_delta
from edp_lab.privacy.composition import (
    EpsilonDelta,
    advanced_composition,
    amplify_by_subsampling,
    basic_composition,
    best_composition,
    gaussian_loss_density,
    gaussian_loss_tail,
    parallel_composition,
)
from edp_lab.privacy.foundations import truth_probability

EPSILONS = st.floats(1e-3, 5)
DELTAS = st.floats(0, 1e-3)


def worst_case_delta(epsilon: float, releases: int, target: float) -> float:
    """The tight delta at `target` of k binary randomised responses, the worst that epsilon-DP releases can do."""
    truths = np.arange(releases + 1)
    loss = epsilon * (2 * truths - releases)
    chance = stats.binom.pmf(truths, releases, truth_probability(epsilon))
    return float(chance @ -np.expm1(np.minimum(target - loss, 0)))


def test_the_queries_of_the_thesis_add_up():
    """9000 labels, each 0.2-DP, are not 0.2-DP."""
    total = basic_composition([(0.2, 0.0)] * 9000)
    assert total == pytest.approx((1800, 0), rel=1e-12)
    advanced = advanced_composition(0.2, 0.0, 9000, 1e-5)
    assert advanced.epsilon == pytest.approx(0.2 * math.sqrt(18000 * math.log(1e5)) + 1800 * (math.exp(0.2) - 1))
    assert advanced.epsilon == pytest.approx(489.6, abs=0.1)
    assert best_composition(0.2, 0.0, 9000, 1e-5) == advanced


@settings(deadline=None)
@given(st.lists(st.tuples(EPSILONS, DELTAS), min_size=1, max_size=20), st.randoms())
def test_basic_composition_adds_and_parallel_takes_the_maximum(guarantees, random):
    total, most = basic_composition(guarantees), parallel_composition(guarantees)
    assert total == pytest.approx(tuple(map(sum, zip(*guarantees, strict=True))))
    assert most == tuple(map(max, zip(*guarantees, strict=True)))
    shuffled = random.sample(guarantees, len(guarantees))
    assert basic_composition(shuffled) == total
    assert parallel_composition(shuffled) == most
    assert most.epsilon <= total.epsilon * (1 + 1e-12)


def test_composition_of_nothing_and_of_no_guarantee():
    assert basic_composition([]) == parallel_composition([]) == (0, 0)
    assert basic_composition([(1, 0.7), (1, 0.7)]) == (2, 1)
    assert basic_composition(iter([(math.inf, 0), (1, 0)])).epsilon == math.inf
    assert advanced_composition(800.0, 0.5, 3, 0.1) == (math.inf, 1)
    assert best_composition(800.0, 0.5, 3, 0.1) == (2400, 1)
    assert EpsilonDelta(1.0) == (1, 0)


@settings(deadline=None)
@given(st.floats(1e-3, 3), st.integers(1, 3000), st.floats(-25, -0.1).map(math.exp))
def test_composition_covers_the_worst_case(epsilon, releases, slack):
    for compose in (advanced_composition, best_composition):
        assert worst_case_delta(epsilon, releases, compose(epsilon, 0.0, releases, slack).epsilon) <= slack
    assert worst_case_delta(epsilon, releases, basic_composition([(epsilon, 0.0)] * releases).epsilon) < 1e-9


def test_basic_composition_is_tight():
    assert worst_case_delta(0.5, 4, 2.0 - 1e-3) > 0


def test_advanced_composition_covers_the_optimum_of_another_library():
    parameters = pld.common.DifferentialPrivacyParameters(0.1, 1e-7)
    optimal = pld.from_privacy_parameters(parameters).self_compose(200)
    total = advanced_composition(0.1, 1e-7, 200, 1e-5)
    assert total.delta == pytest.approx(200e-7 + 1e-5)
    assert 0.5 * total.epsilon < optimal.get_epsilon_for_delta(total.delta) < total.epsilon


@settings(deadline=None)
@given(EPSILONS, DELTAS, st.integers(1, 10_000), st.floats(1e-9, 0.5))
def test_the_better_bound_is_stated_at_the_delta_of_both(epsilon, delta, releases, slack):
    advanced = advanced_composition(epsilon, delta, releases, slack)
    best = best_composition(epsilon, delta, releases, slack)
    assert best.epsilon == min(advanced.epsilon, releases * epsilon)
    assert best.delta == advanced.delta == min(1, releases * delta + slack)
    if epsilon >= math.log(2):
        assert advanced.epsilon > releases * epsilon


def test_epsilon_stands_outside_the_root():
    """The thesis prints it inside (eq 2.17), where the root would not shrink in proportion."""
    small, tiny = (advanced_composition(epsilon, 0.0, 1, 1e-5).epsilon for epsilon in (1e-6, 1e-8))
    assert small / tiny == pytest.approx(100, rel=1e-5)


# --- amplification


def test_a_step_of_the_thesis():
    amplified = amplify_by_subsampling(7.0, 1e-5, 0.01)
    assert amplified.epsilon == pytest.approx(2.48, abs=0.005)  # said to be 0.07
    assert amplified.delta == pytest.approx(1e-7)


@settings(deadline=None)
@given(st.floats(1e-6, 20), st.floats(1e-6, 1))
def test_amplification_is_the_exact_ratio_of_a_sampled_randomised_response(epsilon, rate):
    """One record holds a secret bit, the sample holds it with probability q, and its presence is answered noisily."""
    lie = 1 - truth_probability(epsilon)
    ratio = (rate * (1 - lie) + (1 - rate) * lie) / lie
    amplified = amplify_by_subsampling(epsilon, 0.0, rate).epsilon
    assert amplified == pytest.approx(math.log(ratio), rel=1e-6, abs=1e-12)
    assert rate * epsilon * (1 - 1e-12) <= amplified <= epsilon


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_amplification_agrees_with_another_library(rate):
    peer = pld.from_laplace_mechanism(1 / 2.0, sampling_prob=rate)
    assert amplify_by_subsampling(2.0, 0.0, rate).epsilon == pytest.approx(peer.get_epsilon_for_delta(0), abs=2e-3)


def test_extreme_amplification():
    assert amplify_by_subsampling(3.0, 0.1, 1.0) == (3, 0.1)
    assert amplify_by_subsampling(0.0, 0.1, 0.5) == (0, 0.05)
    assert amplify_by_subsampling(1287.0, 0.0, 0.01).epsilon == pytest.approx(1287 + math.log(0.01))
    assert amplify_by_subsampling(1e24, 0.0, 1e-300).epsilon == pytest.approx(1e24)
    below, above = (amplify_by_subsampling(e, 0.0, 1e-3).epsilon for e in (700 - 1e-9, 700.0))
    assert below == pytest.approx(above, abs=2e-9)
    assert amplify_by_subsampling(700.0, 0.0, 1e-304).epsilon == pytest.approx(math.log1p(1e-304 * math.exp(700)))
    assert amplify_by_subsampling(math.inf, 0.0, 0.5).epsilon == math.inf


# --- the privacy-loss distribution


def test_the_blue_eyes_of_the_thesis():
    """Variance 2, sensitivity 1, epsilon ln 3; said to have delta 0.054."""
    mu = 1 / math.sqrt(2)
    assert gaussian_loss_tail(math.log(3), mu) == pytest.approx(0.115, abs=5e-4)
    assert gdp_delta(mu, math.log(3)) == pytest.approx(0.030, abs=5e-4)


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
def test_the_loss_of_samples_has_the_stated_distribution(mu):
    outputs = np.random.default_rng(5).normal(mu, 1.0, 20_000)  # from the data set whose answer is mu, not 0
    loss = stats.norm.logpdf(outputs, loc=mu) - stats.norm.logpdf(outputs, loc=0)
    assert stats.kstest(loss, lambda x: 1 - gaussian_loss_tail(x, mu)).pvalue > 1e-3


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_density_tail_and_tight_delta_belong_together(mu, epsilon):
    losses = np.linspace(epsilon, epsilon + mu * mu / 2 + 40 * mu, 200_001)
    density = gaussian_loss_density(losses, mu)
    tail = gaussian_loss_tail(epsilon, mu)
    assert integrate.simpson(density, losses) == pytest.approx(tail, rel=1e-9)
    tight = integrate.simpson(density * -np.expm1(epsilon - losses), losses)
    assert tight == pytest.approx(gdp_delta(mu, epsilon), rel=1e-9)
    assert tight < tail


# --- bad input


@pytest.mark.parametrize(
    ("sentence", "call"),
    [
        ("epsilon is -0.1:", lambda: basic_composition([(1, 0), (-0.1, 0)])),
        ("epsilon is nan:", lambda: parallel_composition([(math.nan, 0)])),
        ("delta is 1.1:", lambda: basic_composition([(1, 1.1)])),
        ("delta is nan:", lambda: amplify_by_subsampling(1, math.nan, 0.5)),
        ("epsilon is -1:", lambda: amplify_by_subsampling(-1, 0, 0.5)),
        ("sampling rate is 0:", lambda: amplify_by_subsampling(1, 0, 0)),
        ("sampling rate is 1.5:", lambda: amplify_by_subsampling(1, 0, 1.5)),
        ("sampling rate is nan:", lambda: amplify_by_subsampling(1, 0, math.nan)),
        ("slack is 0:", lambda: advanced_composition(1, 0, 5, 0)),
        ("slack is 1:", lambda: best_composition(1, 0, 5, 1)),
        ("number of releases is 0:", lambda: advanced_composition(1, 0, 0, 0.1)),
        ("number of releases is 2.5:", lambda: best_composition(1, 0, 2.5, 0.1)),
        ("epsilon is -1:", lambda: advanced_composition(-1, 0, 2, 0.1)),
        ("mu is 0:", lambda: gaussian_loss_tail(1, 0)),
        ("mu is nan:", lambda: gaussian_loss_density(1, math.nan)),
    ],
)
def test_bad_input_is_named(sentence, call):
    with pytest.raises(UsageError, match=sentence):
        call()
