"""The price of tuning, against the definitions themselves: slow loops, long sums, and no shared code."""

from __future__ import annotations

import math

import dp_accounting as dp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edp_lab.errors import UsageError
from edp_lab.privacy import GaussianDP, RenyiDP, Schedule, gdp_epsilon
from edp_lab.privacy.composition import best_of_random, composed, stopping_rate

DELTA = 1e-6
DISJOINT = Schedule(np.array([3.0, 5.0, 8.0]), np.array([2, 1, 4]))
SAMPLED = Schedule(np.array([1.1, 2.0]), np.array([30, 100]), 0.02)
SHAPES = (-0.5, 0.0, 1.0, 2.0)


# Everything published


@pytest.mark.parametrize("trials", [1, 2, 9, 400])
def test_k_published_trials_cost_root_k_mu(trials):
    assert composed(DISJOINT, trials, DELTA) == pytest.approx(
        gdp_epsilon(math.sqrt(trials) * DISJOINT.mu, DELTA), rel=1e-10
    )


def test_under_poisson_sampling_k_trials_cost_k_times_the_steps():
    tripled = Schedule(SAMPLED.noise_multipliers, 3 * SAMPLED.counts, SAMPLED.sampling_rate)
    assert composed(SAMPLED, 3, DELTA) == RenyiDP(tripled).epsilon(DELTA)
    assert composed(SAMPLED, 1, DELTA) == RenyiDP(SAMPLED).epsilon(DELTA)


def test_privacy_loss_distributions_give_a_smaller_bound_that_is_no_smaller_than_the_truth():
    theirs = dp.pld.PLDAccountant(value_discretization_interval=1e-4)
    for noise, count in zip(SAMPLED.noise_multipliers, SAMPLED.counts, strict=True):
        event = dp.PoissonSampledDpEvent(SAMPLED.sampling_rate, dp.GaussianDpEvent(float(noise)))
        theirs.compose(event, 3 * int(count))
    found = composed(SAMPLED, 3, DELTA, tight=True)
    assert found == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-3)
    assert found < composed(SAMPLED, 3, DELTA)
    assert composed(DISJOINT, 3, DELTA, tight=True) == composed(DISJOINT, 3, DELTA)


@pytest.mark.parametrize("trials", [0, -1, 1.5, math.nan, math.inf, 10**30])
def test_impossible_numbers_of_trials_are_refused(trials):
    with pytest.raises(UsageError, match="number of trials"):
        composed(DISJOINT, trials, DELTA)


# A random number of trials


def mean_of_truncated_negative_binomial(eta: float, gamma: float) -> float:
    """Definition 1 summed up: P[k] is in proportion to (1-gamma)^k prod_(l<k) (l + eta)/(l + 1), k >= 1."""
    k = np.arange(1, int(60 / gamma) + 100)
    if eta == 0:
        logs = k * math.log1p(-gamma) - np.log(k)  # the limit: (1-gamma)^k / k
        total = math.log(math.log(1 / gamma))
    else:
        logs = k * math.log1p(-gamma) + np.cumsum(np.log(np.abs((k - 1 + eta) / k)))
        total = math.log(abs(gamma**-eta - 1))
    chances = np.exp(logs - total)
    assert chances.sum() == pytest.approx(1, rel=1e-9)
    return float((k * chances).sum())


@pytest.mark.parametrize("eta", SHAPES)
@pytest.mark.parametrize("mean", [1.001, 1.5, 10.0, 70.0])
def test_the_number_of_trials_has_the_stated_mean(eta, mean):
    assert mean_of_truncated_negative_binomial(eta, stopping_rate(mean, eta)) == pytest.approx(mean, rel=1e-8)


def test_geometric_and_logarithmic_are_special_cases():
    assert stopping_rate(40.0, 1.0) == pytest.approx(1 / 40)
    near = [stopping_rate(12.0, eta) for eta in (-1e-9, -1e-300, 0.0, 5e-324, 1e-9)]
    assert near == pytest.approx([near[2]] * 5, rel=1e-6)


def rdp_curve(schedule: Schedule) -> tuple[list[float], list[float]]:
    accountant = dp.rdp.RdpAccountant()
    accountant.compose(schedule.events())
    return list(accountant._orders), list(accountant._rdp)


def straightforward(schedule: Schedule, mean: float, gamma: float, eta: float, delta: float) -> float:
    """Theorem 2, order by order, and proposition 12 of Canonne et al. 2020 for each."""
    orders, rdp = rdp_curve(schedule)
    best = math.inf
    for a, at_a in zip(orders, rdp, strict=True):
        for b, at_b in zip(orders, rdp, strict=True):
            tuned = at_a + (1 + eta) * (1 - 1 / b) * at_b
            tuned += (1 + eta) * math.log(1 / gamma) / b + math.log(mean) / (a - 1)
            best = min(best, tuned + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1))
    return best


@pytest.mark.parametrize("eta", SHAPES)
@pytest.mark.parametrize("schedule", [DISJOINT, SAMPLED])
def test_theorem_2_by_loops(schedule, eta):
    for mean in (3.0, 50.0):
        gamma = stopping_rate(mean, eta)
        expected = straightforward(schedule, mean, gamma, eta, DELTA)
        ours = best_of_random(schedule, mean, DELTA, eta)
        assert ours == pytest.approx(expected, rel=1e-6)  # as precise as their moments


def test_the_geometric_price_at_a_known_mean():
    """eta 1, mean 20: gamma is 1/20, so nothing of ours enters but the theorem."""
    expected = straightforward(DISJOINT, 20.0, 1 / 20, 1.0, DELTA)
    assert best_of_random(DISJOINT, 20.0, DELTA) == pytest.approx(expected, rel=1e-9)


schedules = st.builds(
    lambda z, count, q: Schedule(np.array([z]), np.array([count]), q),
    st.floats(0.5, 30),
    st.integers(1, 50),
    st.sampled_from([1.0, 0.05]),
)


@settings(max_examples=30, deadline=None)
@given(schedules, st.floats(1.01, 1000), st.floats(1.0, 10), st.floats(-0.7, 3), st.floats(0, 2))
def test_it_costs_more_than_one_trial_and_rises_with_mean_and_shape(schedule, mean, factor, eta, more):
    price = best_of_random(schedule, mean, DELTA, eta)
    assert price > RenyiDP(schedule).epsilon(DELTA) * (1 - 1e-12)
    assert best_of_random(schedule, mean * factor, DELTA, eta) >= price * (1 - 1e-9)
    assert best_of_random(schedule, mean, DELTA, eta + more) >= price * (1 - 1e-9)


@settings(max_examples=20, deadline=None)
@given(st.floats(2, 30), st.floats(50, 1000), st.sampled_from(SHAPES[:3]))
def test_for_many_trials_it_is_far_below_publishing_them_all(z, mean, eta):
    schedule = Schedule(np.array([z]), np.array([1]))
    assert best_of_random(schedule, mean, DELTA, eta) < composed(schedule, int(mean), DELTA) / 2


@pytest.mark.parametrize("mean", [10.0, 100.0, 1000.0])
def test_for_small_epsilon_it_costs_two_to_three_times_one_trial(mean):
    """As in the experiments of the paper, however many trials."""
    schedule = Schedule(np.array([10.0]), np.array([1]))
    single = GaussianDP(schedule).epsilon(DELTA)
    assert single < 0.5
    assert 1.9 * single < best_of_random(schedule, mean, DELTA) < 3.4 * single


@pytest.mark.parametrize("mean", [1.0, 0.5, -3.0, math.nan, math.inf, 1e7])
def test_impossible_means_are_refused(mean):
    with pytest.raises(UsageError, match="mean number of trials"):
        best_of_random(DISJOINT, mean, DELTA)


@pytest.mark.parametrize("eta", [-1.0, -2.0, math.nan, math.inf])
def test_impossible_shapes_are_refused(eta):
    with pytest.raises(UsageError, match="eta"):
        best_of_random(DISJOINT, 10.0, DELTA, eta)


@pytest.mark.parametrize(("mean", "eta"), [(1e6, -0.9999), (1 + 1e-15, 1.0), (1.5, 1e300)])
def test_shapes_that_no_float_reaches_are_refused(mean, eta):
    with pytest.raises(UsageError, match="no shape"):
        best_of_random(DISJOINT, mean, DELTA, eta)


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_delta_outside_0_1_is_refused(delta):
    for call in (lambda: composed(DISJOINT, 2, delta), lambda: best_of_random(DISJOINT, 2.0, delta)):
        with pytest.raises(UsageError, match="delta"):
            call()
