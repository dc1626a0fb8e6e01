"""Epsilon against an evaluation with 60 digits, monotonicity, and verdicts of `judge`."""

import dataclasses
import itertools
import math
from dataclasses import replace

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edp_lab.errors import UsageError
from edp_lab.privacy import (
    Adjacency,
    Alpha,
    Decay,
    GaussianDP,
    Mechanism,
    NoGuarantee,
    ReshufflingZCDP,
    Schedule,
    Variant,
    accountant_for,
    claimed_accountant,
    claimed_epsilon,
    gdp_delta,
    gdp_epsilon,
    guaranteed_epsilon,
    judge,
    releases_by_epoch,
    zcdp_epsilon,
)
from edp_lab.privacy.guarantee import upward

DELTA = 1e-5


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), with 60 digits."""
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


@settings(max_examples=300)
@given(logarithmic(1e-3, 1e8), logarithmic(1e-12, 0.1))
@example(1e-3, 0.1)
@example(1e8, 1e-12)
@example(1e-3, 1e-12)
@example(1e-3, 3.98942e-4)  # delta(0) at mu = 1e-3 is 3.989422e-4, so epsilon is just above 0
def test_epsilon_is_never_below_the_truth_within_a_millionth_and_the_inverse_of_delta(mu, delta):
    epsilon = gdp_epsilon(mu, delta)
    assert exact_delta(mu, epsilon) <= delta
    lower = epsilon * (1 - 1e-6) - 1e-12 * mu - 1e-13  # epsilon near 0 has no relative precision
    if lower > 0:
        assert exact_delta(mu, lower) > delta
    if epsilon > 1e-9 * mu and mu < 1e4:
        assert gdp_delta(mu, epsilon) == pytest.approx(delta, rel=1e-6)


@settings(max_examples=100)
@given(logarithmic(1e-17, 1e-3), logarithmic(1e-300, 1e-5))
@example(1e-17, 1e-300)
def test_tiny_mu_is_never_rounded_down(mu, delta):
    """The two terms of delta cancel for tiny mu: mu 1e-17 with delta 1e-300 once gave epsilon 0."""
    assert exact_delta(mu, gdp_epsilon(mu, delta)) <= delta


@settings(max_examples=200)
@given(logarithmic(1e-6, 1e8), st.floats(-5, 8))
def test_delta_is_never_below_the_truth(mu, t):
    epsilon = max(0.0, mu * (t + mu / 2))
    delta, truth = gdp_delta(mu, epsilon), exact_delta(mu, epsilon)
    slack = 1e-14 + 1e-14 * (epsilon / mu + mu / 2)  # t = eps/mu - mu/2 loses these digits
    assert truth <= delta <= min(1, truth * (1 + 1e-9) + slack)


@pytest.mark.parametrize(("mu", "delta"), [(1e-9, 1e-5), (1e-9, 1e-300), (1e150, 1e-300), (1e150, 0.1), (1e6, 1e-300)])
def test_extremes_stay_sane(mu, delta):
    epsilon = gdp_epsilon(mu, delta)
    assert math.isfinite(epsilon)
    covered = mu / math.sqrt(2 * math.pi) <= delta  # delta(0) is about mu / sqrt(2 pi) for small mu
    assert epsilon == 0 if covered else epsilon >= mu * mu / 2
    assert epsilon <= (mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))) * 1.001


def test_the_largest_numbers_become_infinity_not_an_error():
    assert (
        gdp_epsilon(1e200, DELTA) == gdp_epsilon(math.inf, DELTA) == GaussianDP(Schedule([5e-324], [1])).mu == math.inf
    )
    assert ReshufflingZCDP(Schedule([1e-200], [1])).rho == zcdp_epsilon(math.inf, DELTA) == math.inf
    assert gdp_delta(math.inf, 1.0) == gdp_delta(1e150, 0.0) == 1
    assert gdp_delta(1.0, math.inf) == gdp_delta(0.0, 0.0) == gdp_delta(1e-320, 1.0) == gdp_delta(1e150, 1e305) == 0
    assert gdp_epsilon(0.0, DELTA) == 0


MECHANISM = Mechanism.sound(1, 1, 1, 1)
LOSSES = (
    lambda loss: gdp_epsilon(loss, DELTA),
    lambda loss: gdp_delta(loss, 1.0),
    lambda loss: gdp_delta(1.0, loss),
    lambda loss: zcdp_epsilon(loss, DELTA),
)
DELTAS = (
    lambda delta: gdp_epsilon(1.0, delta),
    lambda delta: zcdp_epsilon(1.0, delta),
    lambda delta: judge(MECHANISM, 1, delta),
    lambda delta: judge(None, 1, delta),
)
EPOCHS = [
    lambda epochs, call=call: call(MECHANISM, epochs, DELTA) for call in (judge, guaranteed_epsilon, claimed_epsilon)
]
EPOCHS.append(lambda count: judge(MECHANISM, 4, DELTA, utterances_per_person=count + 1))
BILLS = [lambda bill, call=call: call(MECHANISM, bill) for call in (accountant_for, claimed_accountant)]
BILLS.append(lambda bill: judge(MECHANISM, bill, DELTA))


@pytest.mark.parametrize(
    ("calls", "bad", "sentence"),
    [
        (LOSSES, (math.nan, -1.0, -1e-300, -math.inf), "0 or more"),  # mu = -1 would "satisfy" every delta
        (DELTAS, (0.0, 1.0, -1e-5, math.nan, math.inf), "delta"),
        (EPOCHS, (-1, 2.5, math.nan), "epochs|utterances per person"),
        (BILLS, ({0: 0.9}, {0: -1}, {-5: 1}, {0.5: 1}, {0: math.nan}, {"a": 1}), "whole numbers"),
    ],
    ids=["losses", "deltas", "epochs", "bills"],
)
def test_impossible_numbers_are_refused(calls, bad, sentence):
    for call in calls:
        for value in bad:
            with pytest.raises(UsageError, match=sentence):
                call(value)


def test_the_paper_claims_5_30_where_39_38_holds_by_its_formula():
    mechanism = Mechanism.as_printed(1.0, 1.0, num_devices=8, micro_batch_size=8, alpha="public")
    assert claimed_epsilon(mechanism, 1, DELTA) == pytest.approx(5.30, abs=0.005)
    assert guaranteed_epsilon(mechanism, 1, DELTA) == pytest.approx(39.38, abs=0.005)
    claimed, true = (
        claimed_accountant(mechanism, releases_by_epoch(mechanism, 3)),
        accountant_for(mechanism, releases_by_epoch(mechanism, 3)),
    )
    assert true.schedule.mu**2 / claimed.schedule.mu**2 == pytest.approx(32)
    mechanism = Mechanism.as_printed(2.0, 0.7, 4, 16, "exponential", 0.3)
    rho = sum(1 / (2 * (0.7 * math.exp(-0.3 * t)) ** 2) for t in range(9))
    expected = rho + 2 * math.sqrt(rho * math.log(1 / 5e-4))
    assert claimed_epsilon(mechanism, 9, 5e-4) == pytest.approx(expected, rel=1e-12)


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
UP = 1 + 1e-12  # for rounding errors


@given(mechanisms, st.integers(1, 30), st.floats(1, 50))
def test_less_noise_more_epochs_faster_decay_and_smaller_delta_never_cost_less(mechanism, epochs, factor):
    steady = replace(mechanism, decay="none")
    louder, faster = (
        replace(mechanism, z0=mechanism.z0 * factor),
        replace(mechanism, tau=mechanism.tau * min(factor, 5)),
    )
    for epsilon in (guaranteed_epsilon, claimed_epsilon):
        here = epsilon(mechanism, epochs, DELTA)
        assert epsilon(louder, epochs, DELTA) <= here * UP
        assert epsilon(mechanism, epochs - 1, DELTA) <= here * UP
        assert epsilon(steady, epochs, DELTA) <= here * UP
        assert here <= epsilon(faster, epochs, DELTA) * UP
        assert here <= epsilon(mechanism, epochs, DELTA / factor**6) * UP
    assert guaranteed_epsilon(mechanism, 0, DELTA) == 0
    zero_out, replaced = (guaranteed_epsilon(mechanism, epochs, DELTA, a) for a in ("REPLACE_SPECIAL", "REPLACE_ONE"))
    assert zero_out <= replaced * UP


@given(logarithmic(1e-3, 1e3), st.integers(1, 63), st.integers(1, 64), st.integers(1, 30), st.floats(1, 50))
def test_as_printed_more_devices_and_larger_scales_cost_more_than_is_claimed(z, N, m, epochs, factor):
    few = Mechanism.as_printed(1.0, z, N, m, alpha="public")
    for worse in (replace(few, num_devices=N + 1), replace(few, alpha_max=factor)):
        assert guaranteed_epsilon(worse, epochs, DELTA) >= guaranteed_epsilon(few, epochs, DELTA) * (1 - 1e-12)
        assert claimed_epsilon(worse, epochs, DELTA) == claimed_epsilon(few, epochs, DELTA)
    assert guaranteed_epsilon(replace(few, num_devices=N + 1), epochs, DELTA) > guaranteed_epsilon(few, epochs, DELTA)


@given(logarithmic(1e-2, 1e3), st.integers(1, 64), st.integers(1, 64), st.integers(1, 30))
def test_the_sound_version_never_exceeds_its_claim_whatever_clip_norm_and_devices(z, N, m, epochs):
    """The sound z_t is the multiplier that zCDP assumes, and the closed form is tighter than zCDP."""
    mechanism = Mechanism.sound(7.0, z, N, m)
    assert guaranteed_epsilon(mechanism, epochs, DELTA) <= claimed_epsilon(mechanism, epochs, DELTA)
    one = guaranteed_epsilon(Mechanism.sound(1.0, z, 1, m), epochs, DELTA)
    assert guaranteed_epsilon(mechanism, epochs, DELTA) == pytest.approx(one, rel=1e-9)


def test_bills_count_every_release():
    mechanism = Mechanism.sound(1.0, 1.0, 8, 8, "exponential", 0.1)
    twice = judge(mechanism, {0: 2, 1: 1}, DELTA)
    assert twice.mu == pytest.approx(math.sqrt(2 + math.exp(0.2)))
    assert judge(mechanism, {1: 1, 0: 2}, DELTA) == twice
    for epochs, rate in ((10**6, 1e-13), (10**7, 1e-3)):  # counts must not overflow
        with pytest.raises(UsageError):
            judge(Mechanism.sound(1, 0.1, 8, 8, sampling_rate=rate), epochs, DELTA)


def test_poisson_sampling_has_add_or_remove_and_at_size_1_zero_out():
    shared, alone = (Mechanism.sound(1.0, 1.0, 8, m, sampling_rate=0.01) for m in (8, 1))
    assert (shared.sensitivity(), alone.sensitivity(), alone.sensitivity("REPLACE_SPECIAL")) == (2, 1, 1)
    for mechanism, adjacency in ((shared, "REPLACE_SPECIAL"), (shared, "REPLACE_ONE"), (alone, "REPLACE_ONE")):
        verdict = judge(mechanism, 3, DELTA, False, adjacency)
        assert (verdict.status, verdict.conditional_epsilon) == ("none", None)
        assert "Poisson" in verdict.reason
    verdict = judge(shared, 3, DELTA, False)
    assert (verdict.status, verdict.method, verdict.adjacency) == (
        "holds",
        "privacy loss distributions",
        "ADD_OR_REMOVE_ONE",
    )
    assert judge(shared, 3, DELTA, False, utterances_per_person=3).conditional_epsilon > 3 * verdict.conditional_epsilon
    disjoint = Mechanism.sound(1.0, 3.0, 8, 8)
    assert judge(disjoint, 4, DELTA, utterances_per_person=5).mu == pytest.approx(5 * judge(disjoint, 4, DELTA).mu)


@given(st.sampled_from(["none", "linear"]), logarithmic(1e-6, 1e6), st.integers(1, 40), st.booleans())
def test_alpha_from_private_gradients_never_gives_an_epsilon(decay, z, epochs, published):
    mechanism = Mechanism.as_printed(1.0, z, 8, 8, decay, 0.1, alpha="private")
    verdict = judge(mechanism, epochs, DELTA, published)
    assert (verdict.status, verdict.conditional_epsilon) == ("none", None)
    assert "alpha" in verdict.reason
    assert verdict.claimed_epsilon is not None
    with pytest.raises(NoGuarantee, match="alpha"):
        guaranteed_epsilon(mechanism, epochs, DELTA)
    if z > 1e-4:  # with less, float32 rounding removes the noise
        public = replace(mechanism, alpha="public")
        assert verdict.epsilon_if_alpha_public == guaranteed_epsilon(public, epochs, DELTA)


NO_NOISE = [None, Mechanism.as_printed(1, 0, 8, 8), Mechanism.sound(1, 0, 8, 8)]
VANISHING = [
    Mechanism.as_printed(1, 1e-200, 8, 8, alpha="public"),
    Mechanism.sound(1, 1.0, 8, 8, "exponential", 1000.0),  # the noise underflows to 0 after one epoch
    Mechanism.sound(1e-200, 1e-200, 8, 8),  # the noise itself underflows
]


@pytest.mark.parametrize("mechanism", [*NO_NOISE, *VANISHING])
@pytest.mark.parametrize("published", [True, False])
def test_without_noise_that_lasts_there_is_no_guarantee(mechanism, published):
    verdict = judge(mechanism, 3, DELTA, published)
    assert (verdict.status, verdict.conditional_epsilon, verdict.epsilon_if_alpha_public) == ("none", None, None)
    assert verdict.reason
    assert mechanism in VANISHING or verdict.claimed_epsilon is None


def test_the_papers_extremes_are_reported():
    """Epsilons in Table 1 reach 1e24. Noise that small is lost in float32 arithmetic, so there is no guarantee."""
    mechanism = Mechanism.as_printed(1, 1e-12, 8, 8, alpha="public")
    verdict = judge(mechanism, 1, 5e-4, seed_published=False)
    assert (verdict.status, verdict.conditional_epsilon) == ("none", None)
    assert "float32" in verdict.reason
    assert verdict.claimed_epsilon == pytest.approx(5e23, rel=1e-6)
    assert guaranteed_epsilon(mechanism, 1, 5e-4) == pytest.approx(32 * 5e23, rel=1e-6)


def test_a_published_seed_voids_a_guarantee_but_shows_its_epsilon():
    mechanism = Mechanism.sound(1.0, 1.0, 8, 8)
    assert judge(mechanism, 1, DELTA).status == "void: seed published"
    secret = judge(mechanism, 1, DELTA, seed_published=False)
    assert secret.status == "holds"
    assert (
        secret.conditional_epsilon == judge(mechanism, 1, DELTA).conditional_epsilon == pytest.approx(4.38, abs=0.005)
    )
    assert judge(mechanism, 1, DELTA, seed_published=None).status == "void: seed published"  # type: ignore[arg-type]
    drawn_per_device = replace(mechanism, exact_noise=False)
    for published, mechanism in itertools.product(
        (False, True), (drawn_per_device, Mechanism.as_printed(1, 1, 1, 1, alpha="none"))
    ):
        floats = judge(mechanism, 1, DELTA, published)
        assert (floats.status, floats.condition) == ("for real numbers only", "with exact noise and a secret seed")
        assert "not cryptographic" in floats.scope
        assert ("seed" in floats.reason) == published
        assert floats.conditional_epsilon == guaranteed_epsilon(mechanism, 1, DELTA)
    for named in ("utterance", "zero-out", "disjoint", "adversary", "public", "not covered"):
        assert named in secret.scope


@given(st.floats(1e-9, 1e30), st.integers(1, 9))
def test_a_bound_that_is_shown_is_one_and_hardly_larger(epsilon, digits):
    assert [upward(1361448860.0, 2), upward(20.221), upward(8.0), upward(7.9999)] == ["1.4e+09", "20.3", "8", "8"]
    assert epsilon <= float(upward(epsilon, digits)) * (1 + 1e-15) <= epsilon * (1 + 10 ** (1 - digits)) * (1 + 1e-12)


# ---- What a step releases: noise, sensitivity and their ratio, as printed and sound ----------------------------------


positive = st.floats(1e-6, 1e6)
GOOD = {"clip_norm": 1.0, "z0": 1.0, "num_devices": 4, "micro_batch_size": 4, "tau": 0.1}
BUILDS = (Mechanism.as_printed, Mechanism.sound)


@given(positive, positive, st.integers(1, 512), st.integers(1, 512))
def test_algorithm_1_has_2_sqrt_n_less_noise_than_its_z_says(C, z, N, m):
    """The factor is sqrt(N) for micro-batches of size 1."""
    printed, sound = (build(C, z, N, m) for build in BUILDS)
    ratio = (1 if m == 1 else 2) * math.sqrt(N)
    assert printed.noise_multiplier(0) == pytest.approx(z / ratio)
    assert printed.noise_std(0) / N == pytest.approx(C * z / N**1.5)
    assert printed.device_noise_std(0) == pytest.approx(C * z / N)
    assert sound.noise_multiplier(0) == pytest.approx(z)
    assert sound.noise_std(0) / printed.noise_std(0) == pytest.approx(ratio)


def test_a_single_utterance_moves_by_c_when_zeroed_and_by_2c_when_replaced():
    mechanism = Mechanism.sound(3.0, 1.0, 4, 1)
    assert [mechanism.sensitivity(a) for a in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)] == [3, 6]
    assert mechanism.noise_multiplier(0, Adjacency.REPLACE_ONE) == 0.5
    larger = Mechanism.sound(3.0, 1.0, 4, 2)
    assert larger.sensitivity(Adjacency.ZERO_OUT) == larger.sensitivity(Adjacency.REPLACE_ONE) == 6


@given(positive, st.sampled_from(list(Decay)), st.floats(0, 10), st.integers(0, 200))
def test_decay_starts_at_z0_never_rises_and_follows_the_formulas_of_the_paper(z, decay, tau, epoch):
    setting = Mechanism.sound(1.0, z, 4, 4, decay, tau).noise_multiplier_setting
    assert setting(0) == z
    assert 0 <= setting(epoch + 1) <= setting(epoch)
    expected = {"none": 1, "linear": 1 / (1 + tau * epoch), "exponential": math.exp(-tau * epoch)}[decay]
    assert setting(epoch) == pytest.approx(z * expected, rel=1e-14)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("field", "bad"),
    [(field, bad) for field in GOOD for bad in (math.nan, math.inf, -math.inf, -1.0)]
    + [("clip_norm", 0.0)]
    + [(field, bad) for field in ("num_devices", "micro_batch_size") for bad in (0, 1.5, "3", None)],
)
def test_impossible_mechanisms_are_refused(build, field, bad):
    build(**GOOD)
    with pytest.raises(UsageError, match="must be"):
        build(**{**GOOD, field: bad})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"decay": "cosine"}, "unknown decay 'cosine'.*linear"),
        ({"alpha": "secret"}, "unknown alpha 'secret'.*public"),
        ({"alpha": "private"}, "guarantees nothing"),
        ({"alpha_max": 0.1}, "choose 'public'"),
        ({"variant": "as-printed", "exact_noise": True}, "independent float noise"),
    ],
)
def test_what_does_not_go_together_is_refused_however_it_is_built(changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        dataclasses.replace(Mechanism.sound(**GOOD), **changes)
    if changes.keys() <= {"decay", "alpha"}:
        with pytest.raises(UsageError, match=sentence):
            Mechanism.sound(**GOOD, **changes)
    with pytest.raises(UsageError, match="unknown adjacency"):
        Mechanism.sound(**GOOD).sensitivity("swap")


def test_a_mechanism_survives_a_record_of_plain_strings_and_cannot_be_changed():
    """asdict -> JSON -> Mechanism: compared by identity, "as-printed" would become sound, and private alpha allowed."""
    before = Mechanism.as_printed(1.0, 0.5, 8, 4, "linear", 0.1)
    after = Mechanism(**{k: str(v) if isinstance(v, str) else v for k, v in dataclasses.asdict(before).items()})
    assert after == before
    assert (after.variant, after.alpha, after.decay) == (Variant.AS_PRINTED, Alpha.PRIVATE, Decay.LINEAR)
    assert after.noise_std(3) == before.noise_std(3)
    assert judge(after, 1, 1e-5, seed_published=False).conditional_epsilon is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.z0 = 0.0  # type: ignore[misc]
