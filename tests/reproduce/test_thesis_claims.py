"""The thesis' claims on noise and composition: what is measured agrees with simulations and values by hand."""

from __future__ import annotations

import gzip
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edp_lab.errors import UsageError
from edp_lab.privacy.foundations import Noise, report_noisy_max, response_epsilon
from edp_lab.reproduce.claims import CONDITIONAL, FAILS, HOLDS
from edp_lab.reproduce.thesis import claims_composition as composition
from edp_lab.reproduce.thesis import claims_noise as noise
from edp_lab.reproduce.thesis.claims_networks import PrintedAccuracy, t17_accuracies

FALLEN = (PrintedAccuracy("a", 1, 1e-5, 0.98), PrintedAccuracy("b", 2, 1e-5, 0.92))
OTHERWISE = [  # claims with other settings than the thesis'
    (noise.t1_pixel_noise, (1, 2.0), CONDITIONAL),  # its labels get no noise
    (noise.t2_sigma, (0.6, 0.6), HOLDS),
    (noise.t2_sigma, (0.6, 0.5), FAILS),
    (noise.t5_outside_the_theorem, ([(10.0, 1e-5)],), FAILS),
    (noise.t5_outside_the_theorem, ([(10.0, 1e-6)],), FAILS),
    (noise.t5_outside_the_theorem, ([(0.5, 1e-5)],), HOLDS),
    (noise.t8_batch_clipping, (1,), HOLDS),
    (noise.t13_noisy_votes, (10, 10, 5.0), HOLDS),
    (noise.t21_loss_tail, (0.5,), FAILS),
    (noise.t23_anonymity, (np.random.default_rng(0), 600), HOLDS),  # nothing but months is left, 50 of each
    (composition.t6_sampled_step, (0.1,), CONDITIONAL),
    (composition.t6_sampled_step, (2.0, 1.0), HOLDS),
    (composition.t12_labels, (1,), HOLDS),
    (composition.t19_unstated, (composition.NEEDED,), FAILS),
    (t17_accuracies, (FALLEN,), FAILS),
    (t17_accuracies, (FALLEN[:1],), HOLDS),
]


@pytest.mark.parametrize(("function", "arguments", "verdict"), OTHERWISE, ids=lambda one: getattr(one, "__name__", ""))
def test_the_verdict_follows_what_is_given(function, arguments, verdict):
    assert function(*arguments).verdict == verdict


def test_correlation_is_signal_over_signal_and_noise():
    rng = np.random.default_rng(1)
    half = np.tile([0.2, 0.8], (20, 2000))  # standard deviation 0.3 in every image
    m = noise.t3_correlation(half, rng, sigma=0.4).measured
    assert m["correlation"] == pytest.approx(0.3 / 0.5, abs=0.01)
    assert m["sigma_for_the_claim"] == pytest.approx(0.3 * math.sqrt(1 / 0.81254**2 - 1))
    assert m["correlation_of_the_negative"] == pytest.approx(-1)
    assert noise.t3_correlation(half, rng, sigma=m["sigma_for_the_claim"]).verdict == HOLDS
    with pytest.raises(UsageError, match="one shade"):
        noise.t3_correlation(np.zeros((1, 4)), rng)


def test_on_mnist_the_correlation_is_045_where_081_is_printed(real_data):
    raw = gzip.decompress((real_data / "mnist" / "train-images-idx3-ubyte.gz").read_bytes())
    digits = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 28, 28)[:2000] / 255
    evidence = noise.t3_correlation(digits, np.random.default_rng(2))
    assert evidence.measured["correlation"] == pytest.approx(0.447, abs=0.01)
    assert evidence.measured["sigma_for_the_claim"] == pytest.approx(0.21, abs=0.01)
    assert evidence.verdict == FAILS


@pytest.mark.parametrize("batch", [1, 10, 250])
def test_batch_clipping_moves_by_2c_whatever_the_batch(batch):
    m = noise.t8_batch_clipping(batch, 3.0).measured
    assert (m["moved_by_batch_clipping"], m["moved_by_example_clipping"]) == pytest.approx((6, 6 / batch))


def test_ten_instructors_cost_more_than_one():
    m = composition.t9_ten_instructors().measured
    assert m["epsilon_with_many"] > 3 * m["epsilon_with_one"]
    assert composition.t9_ten_instructors(1).measured["epsilon_with_many"] == pytest.approx(m["epsilon_with_one"])


def test_phases_in_series_are_two_coins_on_two_coins():
    """3/4 * 3/4 + 1/4 * 1/4 = 5/8 truth: ln(5/3)."""
    assert composition.in_series([math.log(3)] * 2) == pytest.approx(math.log(5 / 3))
    assert composition.in_series([1e6, 7.0]) == 7.0


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 30), min_size=1, max_size=5))
def test_phases_in_series_multiply_the_tanh_of_half_epsilon(epsilons):
    total = composition.in_series(epsilons)
    assert 0 <= total <= min(epsilons)
    assert math.tanh(total / 2) == pytest.approx(math.prod(math.tanh(e / 2) for e in epsilons), rel=1e-6, abs=1e-9)
    if len(epsilons) == 2 and max(epsilons) < 10:
        p, q = (1 / (1 + math.exp(-e)) for e in epsilons)
        truth = p * q + (1 - p) * (1 - q)
        assert total == pytest.approx(response_epsilon(truth), rel=1e-6, abs=1e-9)


def test_a_unanimous_vote_survives_as_often_as_in_a_simulation():
    m = noise.t13_noisy_votes().measured
    votes = np.zeros((100_000, 10))
    votes[:, 3] = 10
    for name, monotone in (("right_at_scale_1_over_epsilon", True), ("right_at_scale_2_over_epsilon", False)):
        chosen = report_noisy_max(votes, 1, 0.2, np.random.default_rng(4), Noise.LAPLACE, monotone)
        assert np.mean(chosen == 3) == pytest.approx(m[name], abs=0.006)
    assert noise.t13_noisy_votes(voters=0).measured["right_at_scale_1_over_epsilon"] == pytest.approx(0.1)


def test_the_best_classifier_of_two_circles_agrees_with_a_simulation():
    rng = np.random.default_rng(3)
    radius = rng.choice([0.8, 1.0], 200_000)
    x, y = radius + rng.normal(0, 0.15, radius.size), rng.normal(0, 0.15, radius.size)
    seen = np.hypot(x, y)
    best = max(np.mean((seen > cut) == (radius == 1.0)) for cut in np.linspace(0.8, 1.1, 61))
    assert noise.best_accuracy(0.15, 0.8) == pytest.approx(best, abs=0.004)
    assert noise.best_accuracy(0.1, 0.8) == pytest.approx(0.84, abs=0.005)  # figure 4.2 has sigma 0.1


def test_what_is_not_stated_decides_epsilon():
    m = composition.t19_unstated().measured
    assert m["missing"] == "sigma, clip norm, batch size, epochs"
    assert m["lowest_epsilon"] < 7 < m["highest_epsilon"]


@settings(deadline=None, max_examples=200)
@given(st.floats(1e-4, 50), st.integers(1, 10**6), st.floats(1e-12, 0.5))
def test_eq_2_17_as_printed_promises_no_more_than_is_true(epsilon, releases, slack):
    """Below 1 its root is larger than the theorem's; from ln 2 on its first term alone is the plain sum."""
    best = composition.best_composition(epsilon, 0.0, releases, slack).epsilon
    assert composition._eq_2_17(epsilon, releases, slack) >= best * (1 - 1e-9)


def test_eq_2_18_reaches_its_target_by_the_theorem_only():
    m = composition.t22_printed_theorem().measured
    assert m["eq_2_18_in_the_theorem"] <= m["target_of_eq_2_18"] < m["eq_2_18_in_eq_2_17"]


def test_anonymity_ends_where_one_thing_more_is_known():
    m = noise.t23_anonymity(np.random.default_rng(0)).measured
    assert m["anonymity"] >= m["k"] == 5
    assert m["identified_before"] > 0.25
    assert m["identified"] == 0


def test_the_moments_bound_needs_its_conditions():
    m = composition.t26_moments().measured
    assert m["sigma_inside"] > 1 > m["sigma_outside"]
    assert m["rate"] < 1 / (16 * m["sigma_inside"])
    assert m["largest_ratio_inside"] < 1 < 4 < m["largest_ratio_outside"]


def test_the_variance_whose_tail_is_printed_has_it():
    fitting = noise.t21_loss_tail().measured["variance_with_that_tail"]
    assert noise.t21_loss_tail(fitting).verdict == HOLDS
