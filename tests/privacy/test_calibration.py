"""From a budget to the noise, the epochs or the decay it allows: met when judged again, and spent to a millionth."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Mechanism, NoGuarantee, accountant_for, judge
from edp_lab.privacy.calibration import MOST_EPOCHS, Budget, affordable_epochs, affordable_tau, calibrate_z0
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
    """As everyone is told it; infinite where too little noise is left."""
    verdict = judge(mechanism, bill, budget.delta, False, budget.adjacency, budget.utterances_per_person)
    return math.inf if verdict.epsilon is None else verdict.epsilon


def check_z0(mechanism: Mechanism, bill: object, budget: Budget) -> None:
    z0 = calibrate_z0(mechanism, bill, budget)
    spent = epsilon(replace(mechanism, z0=z0), bill, budget)
    assert budget.epsilon * (1 - MILLIONTH) <= spent <= budget.epsilon
    assert epsilon(replace(mechanism, z0=z0 * (1 - MILLIONTH)), bill, budget) > budget.epsilon


def check_tau(mechanism: Mechanism, bill: object, budget: Budget) -> None:
    tau = affordable_tau(mechanism, bill, budget)
    steady = epsilon(replace(mechanism, tau=0.0), bill, budget)
    if tau is None:
        assert steady > budget.epsilon
        return
    assert epsilon(replace(mechanism, tau=tau), bill, budget) <= budget.epsilon
    if tau < 1000:
        more = replace(mechanism, tau=tau * (1 + MILLIONTH) + 1e-9)
        assert epsilon(more, bill, budget) > budget.epsilon


def check_epochs(mechanism: Mechanism, budget: Budget) -> None:
    epochs = affordable_epochs(mechanism, budget)
    assert epsilon(mechanism, epochs, budget) <= budget.epsilon
    if epochs < MOST_EPOCHS:
        assert epsilon(mechanism, epochs + 1, budget) > budget.epsilon


@settings(max_examples=50)
@given(disjoint, st.integers(1, 20), disjoint_budgets)
def test_all_three_meet_the_budget_and_spend_it(mechanism, epochs, budget):
    check_z0(mechanism, epochs, budget)
    check_tau(replace(mechanism, decay="linear") if mechanism.decay == "none" else mechanism, epochs, budget)
    check_epochs(mechanism, replace(budget, epsilon=min(budget.epsilon, 100.0)))


@settings(max_examples=6)
@given(sampled, st.integers(1, 3), sampled_budgets)
def test_all_three_under_poisson_sampling(mechanism, epochs, budget):
    check_z0(mechanism, epochs, budget)
    if mechanism.decay != "none":
        check_tau(mechanism, epochs, budget)
    check_epochs(replace(mechanism, z0=1.0, tau=mechanism.tau + 0.2, decay="exponential"), budget)


def test_a_bill_of_single_steps_and_repeated_epochs_is_taken_as_it_is():
    poisson = Mechanism.sound(1.0, 1.0, 4, 4, sampling_rate=0.01)
    budget = Budget(3.0, DELTA)
    bill = poisson.bill(steps=150)
    check_z0(poisson, bill, budget)
    assert calibrate_z0(poisson, bill, budget) < calibrate_z0(poisson, 2, budget)
    repeated = {0: 1, 1: 3}
    decaying = Mechanism.sound(1.0, 2.0, 4, 4, "exponential", 0.1)
    check_z0(decaying, repeated, budget)
    check_tau(decaying, repeated, budget)


@pytest.mark.parametrize(
    ("budget", "sampling_rate", "steps"),
    [
        (Budget(3.0, 1e-18), 0.1, 40),  # delta below what floating-point losses can tell
        (Budget(1.0, 1e-5), 1e-6, 5),  # whom nothing is drawn of: delta covers any loss
        (Budget(0.1, 1e-6), 5e-4, 20_000),  # a step's loss is narrower than a bin
        (Budget(1e-5, 1e-5), 0.1, 50),
    ],
)
def test_extreme_budgets_of_sampled_runs_are_met(budget, sampling_rate, steps):
    mechanism = Mechanism.sound(1.0, 1.0, 1, 1, sampling_rate=sampling_rate)
    bill = mechanism.bill(steps=steps)
    z0 = calibrate_z0(mechanism, bill, budget)
    assert accountant_for(replace(mechanism, z0=z0), bill).epsilon(budget.delta) <= budget.epsilon


def test_the_ends_of_the_scale_and_no_noise_at_all():
    quiet, loud = Mechanism.sound(1.0, 1e-3, 8, 8, "linear", 0.1), Mechanism.sound(1.0, 1e8, 8, 8, "linear", 0.0)
    budget = Budget(1.0, DELTA)
    assert affordable_epochs(quiet, budget) == 0
    assert affordable_tau(quiet, 3, budget) is None
    assert affordable_epochs(loud, budget) == MOST_EPOCHS
    assert affordable_tau(loud, 1, budget) == 1000
    fading = replace(loud, decay="exponential", tau=5.0)
    check_epochs(fading, budget)
    with pytest.raises(UsageError, match="no z0"):
        calibrate_z0(replace(fading, tau=300.0), 5, budget)
    mechanism = Mechanism.sound(1.0, 0.0, 8, 8)
    with pytest.raises(NoGuarantee, match="z0 is 0"):
        affordable_epochs(mechanism, Budget(8.0, DELTA))
    check_z0(mechanism, 5, Budget(8.0, DELTA))


def test_a_budget_that_float32_could_not_carry_is_not_spent():
    """epsilon 1e15 would allow noise that rounding swallows: the answer keeps enough of it to be judged at all."""
    mechanism, budget = Mechanism.sound(1.0, 1.0, 8, 8, "exponential", 0.5), Budget(1e15, DELTA)
    z0 = calibrate_z0(mechanism, 10, budget)
    assert epsilon(replace(mechanism, z0=z0), 10, budget) <= budget.epsilon
    check_epochs(mechanism, budget)
    check_tau(mechanism, 10, budget)


@pytest.mark.parametrize(
    ("mechanism", "adjacency", "reason"),
    [
        (Mechanism.as_printed(1.0, 1.0, 8, 8, "linear", 0.1, alpha="private"), None, "alpha"),
        (Mechanism.sound(1.0, 1.0, 8, 8, "linear", 0.1), Adjacency.ADD_OR_REMOVE_ONE, "zero-out"),
        (Mechanism.sound(1.0, 1.0, 8, 8, "linear", 0.1, sampling_rate=0.1), Adjacency.REPLACE_ONE, "Poisson"),
    ],
)
def test_what_has_no_guarantee_has_no_answer(mechanism, adjacency, reason):
    budget = Budget(8.0, DELTA, adjacency)
    for ask in (
        lambda: calibrate_z0(mechanism, 5, budget),
        lambda: affordable_epochs(mechanism, budget),
        lambda: affordable_tau(mechanism, 5, budget),
    ):
        with pytest.raises(NoGuarantee, match=reason):
            ask()


SOUND = Mechanism.sound(1.0, 1.0, 8, 8)


@pytest.mark.parametrize(
    ("sentence", "bad", "call"),
    [
        ("target epsilon", (0.0, -1.0, math.inf, math.nan), lambda target: Budget(target, DELTA)),
        ("delta", (0.0, 1.0, -1e-5, math.nan), lambda delta: Budget(1.0, delta)),
        ("decay", (5,), lambda epochs: affordable_tau(SOUND, epochs, Budget(1.0, DELTA))),
        ("epochs", (-1, 2.5), lambda epochs: calibrate_z0(SOUND, epochs, Budget(1.0, DELTA))),
        ("per person", (0, 1.5), lambda people: calibrate_z0(SOUND, 5, Budget(1.0, DELTA, None, people))),
    ],
)
def test_nonsense_is_refused(sentence, bad, call):
    for value in bad:
        with pytest.raises(UsageError, match=sentence):
            call(value)
