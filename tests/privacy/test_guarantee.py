"""Epsilon against reference values, a 60-digit evaluation, another accountant, and monotonicity."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import mpmath
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edp_lab.errors import UsageError
from edp_lab.privacy import (
    Adjacency,
    GaussianDP,
    Mechanism,
    NoGuarantee,
    ReshufflingZCDP,
    Schedule,
    accountant_for,
    claimed_accountant,
    claimed_epsilon,
    gdp_delta,
    gdp_epsilon,
    judge,
    true_epsilon,
    zcdp_epsilon,
)
from edp_lab.privacy.guarantee import upward

DELTA = 1e-5


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2) with 60 digits."""
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [(1, 4.38), (2, 10.00), (2 * math.sqrt(2), 15.46), (4, 24.38), (2 * math.sqrt(8), 39.38)],
)
def test_reference_values(mu, epsilon):
    assert gdp_epsilon(mu, DELTA) == pytest.approx(epsilon, abs=0.005)


def test_the_paper_claims_5_30_where_39_38_holds():
    mechanism = Mechanism.as_printed(1.0, 1.0, num_devices=8, micro_batch_size=8, alpha="public")
    assert claimed_epsilon(mechanism, 1, DELTA) == pytest.approx(5.30, abs=0.005)
    assert true_epsilon(mechanism, 1, DELTA) == pytest.approx(39.38, abs=0.005)
    claimed, true = claimed_accountant(mechanism, mechanism.bill(3)), accountant_for(mechanism, mechanism.bill(3))
    assert true.schedule.mu**2 / claimed.schedule.mu**2 == pytest.approx(32)


def test_claimed_formula():
    mechanism = Mechanism.as_printed(2.0, 0.7, 4, 16, "exponential", 0.3)
    rho = sum(1 / (2 * (0.7 * math.exp(-0.3 * t)) ** 2) for t in range(9))
    expected = rho + 2 * math.sqrt(rho * math.log(1 / 5e-4))
    assert claimed_epsilon(mechanism, 9, 5e-4) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(logarithmic(1e-3, 1e8), logarithmic(1e-12, 0.1))
@example(1e-3, 0.1)
@example(1e8, 1e-12)
@example(1e-3, 1e-12)
@example(1e-3, 3.98942e-4)  # delta(0) at mu = 1e-3 is 3.989422e-4: epsilon hardly above 0
def test_never_below_the_truth_and_within_a_millionth(mu, delta):
    epsilon = gdp_epsilon(mu, delta)
    assert exact_delta(mu, epsilon) <= delta
    lower = epsilon * (1 - 1e-6) - 1e-12 * mu - 1e-13  # epsilon near 0 has no relative precision
    if lower > 0:
        assert exact_delta(mu, lower) > delta


@settings(max_examples=100, deadline=None)
@given(logarithmic(1e-17, 1e-3), logarithmic(1e-300, 1e-5))
@example(1e-17, 1e-300)
def test_tiny_mu_is_never_rounded_down(mu, delta):
    """The two terms of delta cancel there: mu 1e-17 with delta 1e-300 once gave epsilon 0."""
    assert exact_delta(mu, gdp_epsilon(mu, delta)) <= delta


@settings(max_examples=200, deadline=None)
@given(logarithmic(1e-6, 1e8), st.floats(-5, 8))
def test_delta_is_never_below_the_truth(mu, t):
    epsilon = max(0.0, mu * (t + mu / 2))
    delta = gdp_delta(mu, epsilon)
    truth = exact_delta(mu, epsilon)
    assert delta >= truth
    assert delta <= 1
    slack = 1e-14 + 1e-14 * (epsilon / mu + mu / 2)  # t = eps/mu - mu/2 loses these digits
    assert delta <= truth * (1 + 1e-9) + slack


@pytest.mark.parametrize(("mu", "delta"), [(1e-9, 1e-5), (1e-9, 1e-300), (1e150, 1e-300), (1e150, 0.1), (1e6, 1e-300)])
def test_extremes_stay_sane(mu, delta):
    epsilon = gdp_epsilon(mu, delta)
    assert math.isfinite(epsilon)
    covered = mu / math.sqrt(2 * math.pi) <= delta  # delta(0) is about mu / sqrt(2 pi) for small mu
    assert epsilon == 0 if covered else epsilon >= mu * mu / 2
    assert epsilon <= (mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))) * 1.001


def test_the_largest_numbers_become_infinity_not_an_error():
    assert gdp_epsilon(1e200, DELTA) == math.inf
    assert gdp_epsilon(math.inf, DELTA) == math.inf
    assert GaussianDP(Schedule([5e-324], [1])).mu == math.inf
    assert ReshufflingZCDP(Schedule([1e-200], [1])).rho == zcdp_epsilon(math.inf, DELTA) == math.inf
    assert gdp_delta(math.inf, 1.0) == 1
    assert gdp_delta(1.0, math.inf) == gdp_delta(0.0, 0.0) == gdp_delta(1e-320, 1.0) == 0
    assert gdp_delta(1e150, 0.0) == 1
    assert gdp_delta(1e150, 1e305) == 0
    assert gdp_epsilon(0.0, DELTA) == 0
    assert 4.9e299 < gdp_epsilon(1e150, 1e-300) < 5.1e299


@settings(max_examples=50, deadline=None)
@given(logarithmic(1e-3, 1e4), logarithmic(1e-12, 0.1))
def test_delta_and_epsilon_are_inverse(mu, delta):
    epsilon = gdp_epsilon(mu, delta)
    if epsilon > 1e-9 * mu:
        assert gdp_delta(mu, epsilon) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, -1.0, -1e-300, -math.inf])
def test_negative_losses_are_refused(bad):
    """Taken at face value, mu = -1 "satisfies" every delta and would give epsilon 0."""
    for call in (
        lambda: gdp_epsilon(bad, DELTA),
        lambda: gdp_delta(bad, 1.0),
        lambda: gdp_delta(1.0, bad),
        lambda: zcdp_epsilon(bad, DELTA),
    ):
        with pytest.raises(UsageError):
            call()


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, math.inf])
def test_delta_outside_0_1_is_refused(delta):
    mechanism = Mechanism.sound(1, 1, 1, 1)
    for call in (
        lambda: gdp_epsilon(1.0, delta),
        lambda: zcdp_epsilon(1.0, delta),
        lambda: judge(mechanism, 1, delta),
        lambda: judge(None, 1, delta),
    ):
        with pytest.raises(UsageError, match="delta"):
            call()


@pytest.mark.parametrize("epochs", [-1, 2.5, math.nan])
def test_impossible_epochs_are_refused(epochs):
    for call in (judge, true_epsilon, claimed_epsilon):
        with pytest.raises(UsageError, match="epochs"):
            call(Mechanism.sound(1, 1, 1, 1), epochs, DELTA)


# A peer: dp_accounting's privacy loss distributions, the event already divided by the sensitivity.


@pytest.mark.parametrize(
    ("mechanism", "epochs"),
    [
        (Mechanism.sound(1.0, 1.0, 8, 8), 1),
        (Mechanism.sound(0.3, 2.0, 4, 1), 6),
        (Mechanism.as_printed(1.0, 4.0, 8, 8, alpha="public"), 3),
        (Mechanism.sound(1.0, 3.0, 8, 8, "linear", 0.4), 8),
        (Mechanism.as_printed(5.0, 9.0, 4, 8, "exponential", 0.1, alpha="public"), 5),
    ],
)
def test_agrees_with_privacy_loss_distributions(mechanism, epochs):
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for t in range(epochs):
        accountant.compose(dp_accounting.GaussianDpEvent(mechanism.noise_multiplier(t)))
    theirs, ours = accountant.get_epsilon(DELTA), true_epsilon(mechanism, epochs, DELTA)
    assert ours == pytest.approx(theirs, rel=2e-3)
    assert ours <= theirs * (1 + 1e-6)  # theirs is an upper bound, ours exact


def test_replace_one_agrees_with_privacy_loss_distributions():
    """One utterance per micro-batch: replacing it costs twice the shift of zeroing it out."""
    mechanism = Mechanism.sound(1.0, 2.0, 8, 1)
    for ours, theirs in (
        (Adjacency.ZERO_OUT, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE),
        (Adjacency.REPLACE_ONE, dp_accounting.NeighboringRelation.REPLACE_ONE),
    ):
        accountant = PLDAccountant(neighboring_relation=theirs, value_discretization_interval=1e-3)
        accountant.compose(dp_accounting.GaussianDpEvent(2.0))
        assert true_epsilon(mechanism, 1, DELTA, ours) == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)


# Monotonicity


mechanisms = st.builds(
    lambda sound, z, N, m, decay, tau: (Mechanism.sound if sound else Mechanism.as_printed)(
        1.0, z, N, m, decay, tau, alpha="none"
    ),
    st.booleans(),
    logarithmic(1e-3, 1e3),
    st.integers(1, 64),
    st.integers(1, 64),
    st.sampled_from(["none", "linear", "exponential"]),
    st.floats(0, 2),
)


def with_(mechanism: Mechanism, **changes: object) -> Mechanism:
    return Mechanism(**{**vars(mechanism), **changes})


@given(mechanisms, st.integers(1, 30), st.floats(1, 50))
def test_more_noise_never_costs_more(mechanism, epochs, factor):
    louder = with_(mechanism, z0=mechanism.z0 * factor)
    for epsilon in (true_epsilon, claimed_epsilon):
        assert epsilon(louder, epochs, DELTA) <= epsilon(mechanism, epochs, DELTA) * (1 + 1e-12)


@given(mechanisms, st.integers(0, 30))
def test_another_epoch_never_costs_less(mechanism, epochs):
    for epsilon in (true_epsilon, claimed_epsilon):
        assert epsilon(mechanism, epochs, DELTA) <= epsilon(mechanism, epochs + 1, DELTA) * (1 + 1e-12)
    assert true_epsilon(mechanism, 0, DELTA) == 0


@given(mechanisms, st.integers(1, 30), st.floats(1, 5))
def test_faster_decay_never_costs_less(mechanism, epochs, factor):
    faster = with_(mechanism, tau=mechanism.tau * factor)
    for epsilon in (true_epsilon, claimed_epsilon):
        assert epsilon(faster, epochs, DELTA) >= epsilon(mechanism, epochs, DELTA) * (1 - 1e-12)


@given(logarithmic(1e-3, 1e3), st.integers(1, 63), st.integers(1, 64), st.integers(1, 30), st.floats(1, 50))
def test_as_printed_more_devices_and_larger_scales_cost_more_than_is_claimed(z, N, m, epochs, factor):
    few = Mechanism.as_printed(1.0, z, N, m, alpha="public")
    for worse in (with_(few, num_devices=N + 1), with_(few, alpha_max=factor)):
        assert true_epsilon(worse, epochs, DELTA) >= true_epsilon(few, epochs, DELTA) * (1 - 1e-12)
        assert claimed_epsilon(worse, epochs, DELTA) == claimed_epsilon(few, epochs, DELTA)
    assert true_epsilon(with_(few, num_devices=N + 1), epochs, DELTA) > true_epsilon(few, epochs, DELTA)


@given(logarithmic(1e-2, 1e2), st.integers(1, 30), logarithmic(0.1, 10))
def test_scaling_alpha_is_scaling_clip_and_noise(z, epochs, s):
    """(s alpha, C, z) has the epsilon of (alpha, s C, z / s)."""
    scaled = Mechanism.as_printed(1.0, z, 8, 8, alpha="public", alpha_max=s)
    moved = Mechanism.as_printed(s, z / s, 8, 8, alpha="public")
    assert true_epsilon(scaled, epochs, DELTA) == pytest.approx(true_epsilon(moved, epochs, DELTA), rel=1e-9)


@given(mechanisms, st.integers(1, 30))
def test_decay_can_only_raise_epsilon(mechanism, epochs):
    steady = with_(mechanism, decay="none")
    for epsilon in (true_epsilon, claimed_epsilon):
        assert epsilon(mechanism, epochs, DELTA) >= epsilon(steady, epochs, DELTA) * (1 - 1e-12)


@given(mechanisms, st.integers(1, 30), logarithmic(1e-12, 0.1), st.floats(1, 9))
def test_a_larger_delta_never_costs_more(mechanism, epochs, delta, factor):
    larger = true_epsilon(mechanism, epochs, delta * factor)
    assert larger <= true_epsilon(mechanism, epochs, delta) * (1 + 1e-12)


@given(mechanisms, st.integers(1, 30))
def test_replace_one_never_costs_less_than_zero_out(mechanism, epochs):
    zero_out = true_epsilon(mechanism, epochs, DELTA, Adjacency.ZERO_OUT)
    assert true_epsilon(mechanism, epochs, DELTA, Adjacency.REPLACE_ONE) >= zero_out * (1 - 1e-12)


@given(logarithmic(1e-2, 1e3), st.integers(1, 64), st.integers(1, 64), st.integers(1, 30))
def test_the_sound_version_never_exceeds_the_claim_made_for_it(z, N, m, epochs):
    """Sound z_t is the multiplier that zCDP assumes, and the closed form is tighter than zCDP."""
    mechanism = Mechanism.sound(1.0, z, N, m)
    assert true_epsilon(mechanism, epochs, DELTA) <= claimed_epsilon(mechanism, epochs, DELTA)


@given(logarithmic(1e-2, 1e3), st.integers(1, 64), st.integers(1, 30))
def test_epsilon_does_not_depend_on_clip_norm_or_sound_devices(z, N, epochs):
    one = true_epsilon(Mechanism.sound(1.0, z, 1, 4), epochs, DELTA)
    assert true_epsilon(Mechanism.sound(7.0, z, N, 4), epochs, DELTA) == pytest.approx(one, rel=1e-9)


def test_add_or_remove_has_no_epsilon():
    with pytest.raises(NoGuarantee):
        true_epsilon(Mechanism.sound(1, 1, 1, 8), 1, DELTA, Adjacency.ADD_OR_REMOVE_ONE)


# Bills


@pytest.mark.parametrize("bill", [{0: 0.9}, {0: -1}, {-5: 1}, {0.5: 1}, {0: math.nan}, {"a": 1}])
def test_bills_that_are_no_bills_are_refused(bill):
    mechanism = Mechanism.sound(1.0, 1.0, 8, 8, "exponential", 1.0)
    for call in (judge, lambda m, b, d: accountant_for(m, b), lambda m, b, d: claimed_accountant(m, b)):
        with pytest.raises(UsageError, match="whole numbers"):
            call(mechanism, bill, DELTA)


def test_bills_count_every_release():
    mechanism = Mechanism.sound(1.0, 1.0, 8, 8, "exponential", 0.1)
    twice = judge(mechanism, {0: 2, 1: 1}, DELTA)
    assert twice.mu == pytest.approx(math.sqrt(2 + math.exp(0.2)))
    assert judge(mechanism, {1: 1, 0: 2}, DELTA) == twice


@pytest.mark.parametrize(("epochs", "rate"), [(10**6, 1e-13), (10**7, 1e-3)])
def test_counts_beyond_reckoning_are_refused_not_wrapped_around(epochs, rate):
    with pytest.raises(UsageError):
        judge(Mechanism.sound(1, 0.1, 8, 8, sampling_rate=rate), epochs, DELTA)


# Poisson sampling


def test_poisson_sampling_has_add_or_remove_and_at_size_1_zero_out():
    shared, alone = (Mechanism.sound(1.0, 1.0, 8, m, sampling_rate=0.01) for m in (8, 1))
    assert (shared.sensitivity(), alone.sensitivity()) == (2, 1)
    assert alone.sensitivity("REPLACE_SPECIAL") == 1
    for mechanism, adjacency in ((shared, "REPLACE_SPECIAL"), (shared, "REPLACE_ONE"), (alone, "REPLACE_ONE")):
        verdict = judge(mechanism, 3, DELTA, False, adjacency)
        assert (verdict.status, verdict.epsilon) == ("none", None)
        assert "Poisson" in verdict.reason
    verdict = judge(shared, 3, DELTA, False)
    assert (verdict.status, verdict.method, verdict.adjacency) == ("holds", "Renyi DP", "ADD_OR_REMOVE_ONE")
    assert judge(shared, 3, DELTA, False, tight=True).epsilon < verdict.epsilon
    assert judge(shared, 3, DELTA, False, utterances_per_person=3).epsilon > 3 * verdict.epsilon


def test_someone_with_k_utterances_of_disjoint_batches_has_k_mu():
    mechanism = Mechanism.sound(1.0, 3.0, 8, 8)
    assert judge(mechanism, 4, DELTA, utterances_per_person=5).mu == pytest.approx(5 * judge(mechanism, 4, DELTA).mu)
    for bad in (0, 1.5, -1):
        with pytest.raises(UsageError, match="utterances per person"):
            judge(mechanism, 4, DELTA, utterances_per_person=bad)


def test_alpha_none_with_another_largest_scale_is_refused():
    with pytest.raises(UsageError, match="choose 'public'"):
        Mechanism.as_printed(1.0, 1.0, 8, 8, alpha="none", alpha_max=0.1)


# Judgements


@given(st.sampled_from(["none", "linear"]), logarithmic(1e-6, 1e6), st.integers(1, 40), st.booleans())
def test_alpha_from_private_gradients_never_gives_an_epsilon(decay, z, epochs, published):
    mechanism = Mechanism.as_printed(1.0, z, 8, 8, decay, 0.1, alpha="private")
    verdict = judge(mechanism, epochs, DELTA, published)
    assert verdict.status == "none"
    assert verdict.epsilon is None
    assert "alpha" in verdict.reason
    assert verdict.epsilon_claimed is not None
    with pytest.raises(NoGuarantee, match="alpha"):
        true_epsilon(mechanism, epochs, DELTA)
    if z > 1e-4:  # below, float32 swallows the noise
        public = dataclasses.replace(mechanism, alpha="public")
        assert verdict.epsilon_if_alpha_public == true_epsilon(public, epochs, DELTA)


def test_alpha_private_read_from_a_record_never_gives_an_epsilon():
    plain = {k: str(v) if isinstance(v, str) else v for k, v in vars(Mechanism.as_printed(1.0, 1.0, 8, 8)).items()}
    assert judge(Mechanism(**plain), 1, DELTA, seed_published=False).epsilon is None


@pytest.mark.parametrize("mechanism", [None, Mechanism.as_printed(1, 0, 8, 8), Mechanism.sound(1, 0, 8, 8)])
@pytest.mark.parametrize("published", [True, False])
def test_without_noise_there_is_no_guarantee_and_no_claim(mechanism, published):
    verdict = judge(mechanism, 5, DELTA, published)
    assert verdict.status == "none"
    assert verdict.reason
    assert verdict.epsilon is verdict.epsilon_claimed is verdict.epsilon_if_alpha_public is None


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism.as_printed(1, 1e-200, 8, 8, alpha="public"),
        Mechanism.sound(1, 1.0, 8, 8, "exponential", 1000.0),  # underflows to 0 after one epoch
        Mechanism.sound(1e-200, 1e-200, 8, 8),  # the noise itself underflows
    ],
)
def test_noise_that_vanishes_is_no_guarantee(mechanism):
    verdict = judge(mechanism, 3, DELTA, seed_published=False)
    assert verdict.status == "none"
    assert verdict.epsilon is None


def test_the_papers_extremes_are_reported():
    """Table 1 reaches 1e24; noise that small does not survive float32 arithmetic, so nothing holds."""
    mechanism = Mechanism.as_printed(1, 1e-12, 8, 8, alpha="public")
    verdict = judge(mechanism, 1, 5e-4, seed_published=False)
    assert (verdict.status, verdict.epsilon) == ("none", None)
    assert "float32" in verdict.reason
    assert verdict.epsilon_claimed == pytest.approx(5e23, rel=1e-6)
    assert true_epsilon(mechanism, 1, 5e-4) == pytest.approx(32 * 5e23, rel=1e-6)


def test_a_published_seed_voids_a_guarantee_but_shows_its_epsilon():
    mechanism = Mechanism.sound(1.0, 1.0, 8, 8)
    assert judge(mechanism, 1, DELTA).status == "void: seed published"
    secret = judge(mechanism, 1, DELTA, seed_published=False)
    assert secret.status == "holds"
    assert secret.epsilon == judge(mechanism, 1, DELTA).epsilon == pytest.approx(4.38, abs=0.005)
    for named in ("utterance", "zero-out", "disjoint", "adversary", "public", "not covered"):
        assert named in secret.scope


# What is shown of an epsilon is never less than it is


def test_bounds_are_rounded_up():
    assert [upward(1361448860.0, 2), upward(20.221), upward(8.0), upward(7.9999)] == ["1.4e+09", "20.3", "8", "8"]


@given(st.floats(1e-9, 1e30), st.integers(1, 9))
def test_a_bound_that_is_shown_is_one_and_hardly_larger(epsilon, digits):
    assert epsilon <= float(upward(epsilon, digits)) * (1 + 1e-15) <= epsilon * (1 + 10 ** (1 - digits)) * (1 + 1e-12)
