"""The audit of the mechanism alone: it refutes false claims but not true ones, and draws the real step."""

import json
import math
from dataclasses import replace
from functools import lru_cache

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from edp_lab.attacks import step_audit
from edp_lab.attacks.statistics import Bounds, lower_bounds, mu_lower_bound, upper_limit
from edp_lab.attacks.step_audit import LAYOUT, Finding, audit_mechanism, draw_statistics, worst_case_pair
from edp_lab.errors import UsageError
from edp_lab.privacy import Mechanism, gdp_epsilon
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.training.dp_step import release
from edp_lab.training.gradients import StackedGradients

DELTA, KEY = 1e-5, key_from_seed(0)
PRINTED = Mechanism.as_printed(1.0, 1.0, 8, 8, alpha="public")
SOUND = Mechanism.sound(1.0, 1.0, 8, 8)
MECHANISMS = {
    "printed": PRINTED,
    "printed, large alpha": Mechanism.as_printed(1.0, 4.0, 3, 2, alpha="public", alpha_max=6.6),
    "printed, one device": Mechanism.as_printed(1.0, 1.0, 1, 4, alpha="private"),
    "sound": SOUND,
    "sound, micro-batch size 1": Mechanism.sound(3.0, 0.5, 8, 1),
    "sound, micro-batch size 2, public alpha": Mechanism.sound(1.0, 1.0, 4, 2, alpha="public"),
}


@lru_cache(None)
def limit(errors: int, draws: int) -> float:
    return upper_limit(errors, draws, 0.95)


def counts(repeats: int, draws: int, mu: float) -> np.ndarray:
    """False positives and false negatives of `repeats` audits of a mu-GDP step, shape (repeats, 2)."""
    return np.random.default_rng(0).binomial(draws, stats.norm.sf(mu / 2), (repeats, 2))


def test_a_hundred_draws_refute_the_print_and_take_a_private_alpha_for_public():
    public = audit_mechanism(PRINTED, DELTA, KEY, draws=100)
    assert public.verdict is Finding.REFUTED
    assert public.claimed_epsilon == pytest.approx(5.2985, abs=1e-4)
    assert public.epsilon_if_seed_secret == pytest.approx(39.38, abs=0.01)
    assert public.claimed_epsilon < public.measured_epsilon < public.epsilon_if_seed_secret
    assert public.noise_multiplier == pytest.approx(1 / math.sqrt(32))
    assert "refute" in public.explanation
    private = audit_mechanism(Mechanism.as_printed(1.0, 1.0, 8, 8), DELTA, KEY, draws=100)
    assert private.epsilon_if_seed_secret is None
    assert private.epsilon_if_alpha_public == public.epsilon_if_seed_secret
    assert private.bounds == public.bounds
    assert "as if it were public" in private.explanation


@pytest.mark.parametrize("mechanism", [SOUND, Mechanism.sound(1.0, 0.5, 8, 1, alpha="public")], ids=["8", "1"])
def test_the_sound_mechanism_is_not_refuted(mechanism):
    audit = audit_mechanism(mechanism, DELTA, KEY, draws=300)
    assert audit.verdict is Finding.CONSISTENT
    assert 0 < audit.measured_epsilon <= audit.claimed_epsilon == audit.epsilon_if_seed_secret <= audit.ceiling


def test_the_print_is_sound_for_one_utterance_and_without_power_the_audit_says_so():
    audit = audit_mechanism(Mechanism.as_printed(1.0, 1.0, 1, 1, alpha="public"), DELTA, KEY, draws=200)
    assert audit.verdict is Finding.CONSISTENT
    assert audit.epsilon_if_seed_secret < audit.claimed_epsilon
    mechanism = Mechanism.as_printed(1.0, 0.01, 8, 8, alpha="public")
    audit = audit_mechanism(mechanism, DELTA, KEY, draws=40, confidence=0.9)
    assert audit.false_positive_rate.errors == audit.false_negative_rate.errors == 0
    assert audit.measured_epsilon == audit.ceiling < audit.claimed_epsilon
    assert audit.verdict is Finding.NO_POWER
    rate = 1 - 0.05 ** (1 / 40)
    assert audit.ceiling == pytest.approx(gdp_epsilon(-2 * stats.norm.ppf(rate), DELTA), rel=1e-6)


@pytest.mark.parametrize("fault", ["too little noise", "no clip", "noise scaled back twice"])
def test_a_faulty_step_is_caught(monkeypatch, fault):
    def faulty(mechanism, epoch, gradients, layout, alpha, noise):
        if fault == "too little noise":
            return release(mechanism, epoch, gradients, layout, alpha, noise / math.sqrt(8))
        if fault == "no clip":
            noise = noise / 100
            return release(replace(mechanism, clip_norm=100.0), epoch, gradients, layout, alpha, noise)
        return release(mechanism, epoch, gradients, layout, alpha, noise * alpha.repeat_interleave(4))

    monkeypatch.setattr(step_audit, "release", faulty)
    mechanism = Mechanism.sound(1.0, 1.0, 8, 8, alpha="public")
    assert audit_mechanism(mechanism, DELTA, KEY, draws=200).verdict is Finding.REFUTED


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_draws_have_the_spread_and_distance_that_the_accounting_says(mechanism):
    draws, devices = 150, mechanism.num_devices
    absent, present = draw_statistics(mechanism, draws, KEY)
    scaled_back = 0.5 if (mechanism.variant, mechanism.alpha) == ("sound", "public") else 1
    std, distance = (scaled_back * x / devices for x in (mechanism.noise_std(0), mechanism.sensitivity()))
    squares = (draws - 1) * (absent.var(ddof=1) + present.var(ddof=1)) / std**2
    assert 1e-4 < stats.chi2.cdf(squares, 2 * (draws - 1)) < 1 - 1e-4
    assert abs(present.mean() - absent.mean() - distance) < 4 * std * math.sqrt(2 / draws)
    assert abs(present.mean() + absent.mean()) < 4 * std * math.sqrt(2 / draws)


@pytest.mark.parametrize("size", [1, 2, 8, 1000])
def test_pair_is_as_far_apart_as_the_sensitivity(size):
    mechanism = Mechanism.as_printed(0.3, 1.0, 4, size, alpha="public")
    pair = worst_case_pair(mechanism)
    silence = torch.zeros(LAYOUT.size)
    stacks = [[StackedGradients(rows, LAYOUT)] for rows in (pair.present, pair.absent)]
    ends = [release(mechanism, 0, stack, LAYOUT, pair.alpha, silence).gradient for stack in stacks]
    assert float((ends[0] - ends[1]).norm()) == pytest.approx(mechanism.sensitivity() / 4, rel=1e-4)
    assert float((ends[0] - ends[1]) @ pair.direction) == pytest.approx(mechanism.sensitivity() / 4, rel=1e-4)
    assert (pair.present[1:] == pair.absent[1:]).all()


def test_every_draw_has_noise_of_its_own_which_errs_as_often_as_the_closed_form_and_the_key_decides_it():
    absent, present = draw_statistics(SOUND, 1500, KEY)
    for wrong in (absent > 0, present <= 0):
        assert stats.binomtest(int(wrong.sum()), len(wrong), stats.norm.sf(0.5)).pvalue > 1e-4
    assert len(np.unique(np.concatenate([absent, present]))) > 2990  # float32 numbers can be equal by chance
    assert abs(np.corrcoef(absent, present)[0, 1]) < 0.1
    again, other = (draw_statistics(SOUND, 5, key) for key in (KEY, key_from_seed(1)))
    assert np.array_equal(again[0], absent[:5])
    assert not np.isin(other[0], absent).any()


def test_upper_limit_is_clopper_pearson_and_the_free_bound_takes_the_better_direction():
    """Each side has half of the error probability, so that both limits hold jointly."""
    for draws in (1, 7, 100, 10_000):
        for errors in {0, 1, draws // 3, draws - 1, draws}:
            peer = stats.binomtest(errors, draws).proportion_ci(0.95, "exact").high
            assert peer <= limit(errors, draws) <= peer * (1 + 1e-8)
    assert lower_bounds(0.01, 0.2, DELTA).distribution_free == pytest.approx(math.log((0.8 - DELTA) / 0.01))
    assert lower_bounds(0.2, 0.01, DELTA).distribution_free == pytest.approx(math.log((0.8 - DELTA) / 0.01))
    assert lower_bounds(1.0, 1.0, DELTA) == Bounds(0.0, 0.0)
    assert lower_bounds(1.0, 0.1, DELTA).gaussian == 0


@pytest.mark.parametrize("draws", [50, 10_000])
def test_true_claims_are_refuted_no_more_often_than_allowed(draws):
    refuted = {"gaussian": 0, "distribution_free": 0}
    for false_positives, false_negatives in counts(2000, draws, 1.0).tolist():
        bounds = lower_bounds(limit(false_positives, draws), limit(false_negatives, draws), DELTA)
        for name in refuted:
            refuted[name] += getattr(bounds, name) > gdp_epsilon(1, DELTA)
    for count in refuted.values():
        assert stats.binomtest(count, 2000, 0.05, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("shift", [0.0, 0.5, 1.5])  # of the threshold from the midpoint, in standard deviations
def test_lower_bound_on_mu_holds_exactly_as_often_as_promised_or_more(mu, shift):
    draws = 100
    number = np.arange(draws + 1)
    limits = [limit(int(k), draws) for k in number]
    fpr, fnr = (stats.binom.pmf(number, draws, stats.norm.sf(mu / 2 + move)) for move in (shift, -shift))
    above = np.array([[mu_lower_bound(a, b) > mu for b in limits] for a in limits])
    assert float(fpr @ above @ fnr) <= 0.05


@pytest.mark.parametrize("delta", [1e-100, 1e-5, 0.3])
@pytest.mark.parametrize("rate", [0.499, 0.31, 0.01, 1e-12, 1e-200])
def test_epsilon_is_rounded_down(rate, delta):
    """At the returned bound, the Gaussian's delta is still at least the requested delta."""
    mu, epsilon = mu_lower_bound(rate, rate), lower_bounds(rate, rate, delta).gaussian
    with mpmath.workdps(150):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        exact = mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)
        assert epsilon == 0 or exact >= delta
    assert epsilon == pytest.approx(gdp_epsilon(mu, delta), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("mechanism", "settings", "culprit"),
    [
        (Mechanism.sound(1.0, 0.0, 8, 8), {}, "z0 is 0"),
        (Mechanism.sound(1.0, 1e-9, 8, 8), {}, "no claim to audit"),
        (Mechanism.sound(1.0, 1.0, 8, 8, sampling_rate=0.1), {}, "Poisson"),
        (SOUND, {"draws": 2.5}, "draws is 2.5"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(mechanism, settings, culprit):
    with pytest.raises(UsageError, match=culprit):
        audit_mechanism(mechanism, **{"delta": DELTA, "key": KEY, **settings})


def test_command_prints_json_that_states_claim_and_bound_and_a_table_for_people(output_of):
    mechanism = ("audit", "mechanism", "--as-printed")
    printed, _ = output_of(*mechanism, "--gpus", "8", "--z0", "1", "--draws", "100", "--seed", "3", "--json")
    report = json.loads(printed)
    assert report["verdict"] == "refuted"
    assert report["measured_epsilon"] == report["bounds"]["gaussian"] > report["bounds"]["distribution_free"]
    assert (report["confidence"], report["draws"], report["delta"], report["seed"]) == (0.95, 100, 1e-5, 3)
    assert set(report["false_positive_rate"]) == {"errors", "upper_limit"}
    table, error = output_of(*mechanism, "--alpha", "private", "--alpha-max", "2", "--draws", "20")
    assert (error, " if alpha were public" in table) == ("", True)
