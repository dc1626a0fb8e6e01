"""Calibration of the noise to a budget: the budget is met when judged again, and used to within a millionth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Mechanism, NoGuarantee, accountant_for, gdp_delta, judge, releases_by_epoch
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.foundations import (
    advanced_composition,
    gaussian_loss_density,
    gaussian_loss_tail,
    truth_probability,
)
from tests.privacy.test_guarantee import logarithmic

DELTA = 1e-5
MILLIONTH = 1e-6
DECAYS = ["none", "linear", "exponential"]


disjoint = st.builds(
    lambda printed, clip, z, N, m, decay, tau: (Mechanism.as_printed if printed else Mechanism.sound)(
        clip, z, N, m, decay, tau, "public"
    ),
    st.booleans(),
    logarithmic(1e-2, 1e2),
    logarithmic(0.3, 30),
    st.integers(1, 16),
    st.integers(1, 8),
    st.sampled_from(DECAYS),
    st.floats(0, 0.5),
)
sampled = st.builds(
    lambda z, q, decay, tau: Mechanism.sound(1.0, z, 4, 4, decay, tau, sampling_rate=q),
    logarithmic(0.7, 10),
    logarithmic(0.02, 1.0),
    st.sampled_from(DECAYS),
    st.floats(0, 0.3),
)
disjoint_budgets = st.builds(
    Budget,
    logarithmic(0.05, 1e4),
    logarithmic(1e-10, 1e-3),
    st.sampled_from([None, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE]),
    st.integers(1, 4),
)
sampled_budgets = st.builds(
    Budget,
    logarithmic(0.1, 30),
    logarithmic(1e-8, 1e-4),
    st.sampled_from([None, Adjacency.ADD_OR_REMOVE_ONE]),
    st.integers(1, 2),
)


def epsilon(mechanism: Mechanism, bill: object, budget: Budget) -> float:
    """The guaranteed epsilon with a secret seed; infinite if there is too little noise."""
    verdict = judge(mechanism, bill, budget.delta, False, budget.adjacency, budget.utterances_per_person)
    return math.inf if verdict.conditional_epsilon is None else verdict.conditional_epsilon


def check_z0(mechanism: Mechanism, bill: object, budget: Budget) -> None:
    z0 = calibrate_z0(mechanism, bill, budget)
    spent = epsilon(replace(mechanism, z0=z0), bill, budget)
    assert budget.epsilon * (1 - MILLIONTH) <= spent <= budget.epsilon
    assert epsilon(replace(mechanism, z0=z0 * (1 - MILLIONTH)), bill, budget) > budget.epsilon


@settings(max_examples=50)
@given(disjoint, st.integers(1, 20), disjoint_budgets)
def test_the_noise_meets_the_budget_and_spends_it(mechanism, epochs, budget):
    check_z0(mechanism, epochs, budget)


@settings(max_examples=6)
@given(sampled, st.integers(1, 3), sampled_budgets)
def test_the_noise_under_poisson_sampling(mechanism, epochs, budget):
    check_z0(mechanism, epochs, budget)


def test_a_bill_of_single_steps_and_repeated_epochs_is_taken_as_it_is():
    poisson = Mechanism.sound(1.0, 1.0, 4, 4, sampling_rate=0.01)
    budget = Budget(3.0, DELTA)
    bill = releases_by_epoch(poisson, steps=150)
    check_z0(poisson, bill, budget)
    assert calibrate_z0(poisson, bill, budget) < calibrate_z0(poisson, 2, budget)
    repeated = {0: 1, 1: 3}
    decaying = Mechanism.sound(1.0, 2.0, 4, 4, "exponential", 0.1)
    check_z0(decaying, repeated, budget)


@pytest.mark.parametrize(
    ("budget", "sampling_rate", "steps"),
    [
        (Budget(3.0, 1e-18), 0.1, 40),  # delta below the resolution of floating-point losses
        (Budget(1.0, 1e-5), 1e-6, 5),  # sampled so rarely that delta covers any loss
        (Budget(0.1, 1e-6), 5e-4, 20_000),  # a step's loss is narrower than a bin
        (Budget(1e-5, 1e-5), 0.1, 50),
    ],
)
def test_extreme_budgets_of_sampled_runs_are_met(budget, sampling_rate, steps):
    mechanism = Mechanism.sound(1.0, 1.0, 1, 1, sampling_rate=sampling_rate)
    bill = releases_by_epoch(mechanism, steps=steps)
    z0 = calibrate_z0(mechanism, bill, budget)
    assert accountant_for(replace(mechanism, z0=z0), bill).epsilon(budget.delta) <= budget.epsilon


def test_the_ends_of_the_scale_and_no_noise_at_all():
    fading = Mechanism.sound(1.0, 1e8, 8, 8, "exponential", 300.0)
    with pytest.raises(UsageError, match="no z0"):
        calibrate_z0(fading, 5, Budget(1.0, DELTA))
    check_z0(Mechanism.sound(1.0, 0.0, 8, 8), 5, Budget(8.0, DELTA))


def test_a_budget_that_float32_could_not_carry_is_not_spent():
    """An epsilon of 1e15 would allow noise that rounding removes; the result has enough noise to be judged."""
    mechanism, budget = Mechanism.sound(1.0, 1.0, 8, 8, "exponential", 0.5), Budget(1e15, DELTA)
    z0 = calibrate_z0(mechanism, 10, budget)
    assert epsilon(replace(mechanism, z0=z0), 10, budget) <= budget.epsilon


@pytest.mark.parametrize(
    ("mechanism", "adjacency", "reason"),
    [
        (Mechanism.as_printed(1.0, 1.0, 8, 8, "linear", 0.1, alpha="private"), None, "alpha"),
        (Mechanism.sound(1.0, 1.0, 8, 8, "linear", 0.1), Adjacency.ADD_OR_REMOVE_ONE, "zero-out"),
        (Mechanism.sound(1.0, 1.0, 8, 8, "linear", 0.1, sampling_rate=0.1), Adjacency.REPLACE_ONE, "Poisson"),
    ],
)
def test_what_has_no_guarantee_has_no_answer(mechanism, adjacency, reason):
    with pytest.raises(NoGuarantee, match=reason):
        calibrate_z0(mechanism, 5, Budget(8.0, DELTA, adjacency))


SOUND = Mechanism.sound(1.0, 1.0, 8, 8)


@pytest.mark.parametrize(
    ("sentence", "bad", "call"),
    [
        ("target epsilon", (0.0, -1.0, math.inf, math.nan), lambda target: Budget(target, DELTA)),
        ("delta", (0.0, 1.0, -1e-5, math.nan), lambda delta: Budget(1.0, delta)),
        ("epochs", (-1, 2.5), lambda epochs: calibrate_z0(SOUND, epochs, Budget(1.0, DELTA))),
        ("per person", (0, 1.5), lambda people: calibrate_z0(SOUND, 5, Budget(1.0, DELTA, None, people))),
    ],
)
def test_nonsense_is_refused(sentence, bad, call):
    for value in bad:
        with pytest.raises(UsageError, match=sentence):
            call(value)


# ---- Composition and amplification against exact worst cases, and the privacy loss against integrals -----------------


def worst_case_delta(epsilon: float, releases: int, target: float) -> float:
    """The tight delta at `target` of k binary randomised responses, the worst case of epsilon-DP releases."""
    truths = np.arange(releases + 1)
    loss = epsilon * (2 * truths - releases)
    chance = stats.binom.pmf(truths, releases, truth_probability(epsilon))
    return float(chance @ -np.expm1(np.minimum(target - loss, 0)))


def test_the_queries_of_the_thesis_add_up():
    """9000 labels, each 0.2-DP, are not 0.2-DP. The thesis prints epsilon inside the root (eq 2.17), where the bound
    would not decrease in proportion to epsilon."""
    small, tiny = (advanced_composition(epsilon, 1, 1e-5) for epsilon in (1e-6, 1e-8))
    assert small / tiny == pytest.approx(100, rel=1e-5)
    advanced = advanced_composition(0.2, 9000, 1e-5)
    assert advanced == pytest.approx(0.2 * math.sqrt(18000 * math.log(1e5)) + 1800 * (math.exp(0.2) - 1))
    assert advanced == pytest.approx(489.6, abs=0.1)
    assert advanced_composition(800.0, 3, 0.1) == math.inf


@given(st.floats(1e-3, 3), st.integers(1, 3000), st.floats(-25, -0.1).map(math.exp))
def test_composition_covers_the_worst_case(epsilon, releases, slack):
    assert worst_case_delta(epsilon, releases, advanced_composition(epsilon, releases, slack)) <= slack
    assert worst_case_delta(epsilon, releases, releases * epsilon) < 1e-9
    assert worst_case_delta(0.5, 4, 2.0 - 1e-3) > 0  # and is tight


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


NAN = math.nan


@pytest.mark.parametrize(
    ("sentence", "bad", "call"),
    [
        ("epsilon is", (-1, NAN), lambda epsilon: advanced_composition(epsilon, 2, 0.1)),
        ("slack is", (0, 1), lambda slack: advanced_composition(1, 5, slack)),
        ("number of releases is", (0, 2.5), lambda releases: advanced_composition(1, releases, 0.1)),
        ("mu is", (0, NAN), lambda mu: gaussian_loss_tail(1, mu)),
        ("mu is", (0, NAN), lambda mu: gaussian_loss_density(1, mu)),
    ],
)
def test_bad_input_is_named(sentence, bad, call):
    for value in bad:
        with pytest.raises(UsageError, match=sentence):
            call(value)
