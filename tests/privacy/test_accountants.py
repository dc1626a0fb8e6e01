"""Requirements for every accountant, and comparisons with a peer, dp_accounting's PLD."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from edp_lab.errors import UsageError
from edp_lab.privacy import (
    Accountant,
    GaussianDP,
    Mechanism,
    PrivacyLossDistribution,
    ReshufflingZCDP,
    Schedule,
    gdp_epsilon,
    judge,
)
from edp_lab.privacy.gdp import gdp_delta
from edp_lab.privacy.pld import ORDERS, GroupRenyiDP, RenyiDP, log_moments

DELTA = 1e-5
FULL = [Schedule([1.0], [1]), Schedule([3.0, 4.0, 2.5], [4, 1, 2]), Schedule([40.0], [300])]
SAMPLED = [Schedule([1.0], [500], 0.01), Schedule([2.0, 0.7, 0.9], [100, 20, 30], 0.05)]


def composed(schedule: Schedule, one_release, interval: float) -> pld.PrivacyLossDistribution:
    total = pld.identity(interval, pessimistic_estimate=False)
    for z, count in zip(schedule.noise_multipliers, schedule.counts, strict=True):
        total = total.compose(one_release(z).self_compose(int(count)))
    return total


OPTIMISTIC = {"pessimistic_estimate": False, "use_connect_dots": False}


def optimistic(schedule: Schedule, interval: float = 1e-3) -> pld.PrivacyLossDistribution:
    """A *lower* bound on the privacy loss: no valid epsilon is smaller."""
    options = {"value_discretization_interval": interval, "sampling_prob": schedule.sampling_rate, **OPTIMISTIC}
    return composed(schedule, lambda z: pld.from_gaussian_mechanism(z, **options), interval)


class AccountantContract:
    """Tests for every accountant; a subclass defines the accountant and a few schedules."""

    sound = True  # whether its epsilon is valid
    build: Callable[[Schedule], Accountant]

    def schedules(self) -> list[Schedule]:
        return FULL

    def accountants(self) -> Iterator[Accountant]:
        return map(self.build, self.schedules())

    def test_epsilon_and_delta_fall_as_the_other_rises_and_belong_together(self):
        for accountant in self.accountants():
            epsilons = [accountant.epsilon(delta) for delta in (1e-9, 1e-7, 1e-5, 1e-3, 0.1, 0.9)]
            assert all(a >= b >= 0 for a, b in pairwise(epsilons))
            assert epsilons[0] > epsilons[-2]
            deltas = [accountant.delta(epsilon) for epsilon in (0, 0.1, 1, 3, 10, 100, 1e6)]
            assert all(1 >= a >= b >= 0 for a, b in pairwise(deltas))
            for delta in (1e-9, 1e-5, 1e-2):
                epsilon = accountant.epsilon(delta)
                assert accountant.delta(epsilon) <= delta * (1 + 1e-6)
                if type(accountant).epsilon is Accountant.epsilon:  # epsilon from bisection, on the safe side
                    assert accountant.log_delta(epsilon) <= math.log(delta)
                if epsilon > 1e-3:
                    assert accountant.delta(epsilon * 0.99 - 1e-3) > delta

    def test_more_releases_cost_more_and_more_noise_less_in_any_order(self):
        for schedule in self.schedules():
            z, counts, q = schedule.noise_multipliers, schedule.counts, schedule.sampling_rate
            here, *others = (
                self.build(other).epsilon(DELTA)
                for other in (schedule, Schedule(z * 1.1, counts, q), Schedule(z, counts + 1, q))
            )
            assert others[0] < here < others[1]
            one_by_one = np.random.default_rng(0).permutation(np.repeat(z, counts))
            shuffled = Schedule(one_by_one, np.ones(len(one_by_one), dtype=int), q)
            assert self.build(shuffled).epsilon(DELTA) == here
            nothing = self.build(Schedule(z[:0], counts[:0], q))
            assert nothing.epsilon(DELTA) == nothing.delta(0.0) == 0

    def test_never_below_the_optimistic_bound(self):
        for schedule in self.schedules() if self.sound else ():
            floor, accountant = optimistic(schedule), self.build(schedule)
            for delta in (1e-8, 1e-5, 1e-2):
                assert accountant.epsilon(delta) >= floor.get_epsilon_for_delta(delta) - 1e-9
            for epsilon in (0.0, 0.5, 2.0):
                assert accountant.delta(epsilon) >= floor.get_delta_for_epsilon(epsilon) - 1e-12

    @pytest.mark.parametrize("z", [0.05, 0.15, 1000.0])
    def test_little_and_much_noise_are_never_below_the_truth(self, z):
        if self.sound:
            accountant = self.build(Schedule([z], [1]))
            for delta, epsilon in ((1e-5, 1.0), (1e-12, 0.0)):
                assert accountant.epsilon(delta) >= gdp_epsilon(1 / z, delta) * (1 - 1e-9)
                assert accountant.delta(epsilon) >= gdp_delta(1 / z, epsilon) * (1 - 1e-9)

    def test_sampling_is_judged_or_refused(self):
        for schedule in SAMPLED if self.sound else ():
            with suppress(UsageError):  # refused
                assert self.build(schedule).epsilon(DELTA) >= optimistic(schedule).get_epsilon_for_delta(DELTA) - 1e-9

    def test_attack_bounds_cover_every_pair_of_epsilon_and_delta(self):
        fpr, x = np.array([0.0, 1e-3, 0.01, 0.1, 0.5, 0.9, 1.0]), np.linspace(0, 1, 20_001)
        for accountant in self.accountants():
            tpr, auc = accountant.best_tpr(fpr), accountant.best_auc()
            assert (np.diff(tpr) >= -1e-12).all()
            assert (tpr >= fpr - 1e-12).all()
            assert tpr[-1] == pytest.approx(1)
            assert 0.5 <= auc <= 1
            assert auc >= np.trapezoid(accountant.best_tpr(x), x) - 1e-4  # an upper bound, except for the grid
            if self.sound and accountant.schedule.sampling_rate == 1:
                mu = accountant.schedule.mu
                assert (tpr >= norm.cdf(norm.ppf(fpr) + mu) - 1e-9).all()
                assert auc >= norm.cdf(mu / math.sqrt(2)) - 1e-9

    def test_numbers_that_are_no_delta_epsilon_or_rate_are_refused(self):
        accountant = next(self.accountants())
        for ask, bad, sentence in (
            (accountant.epsilon, (0.0, 1.0, -1e-5, math.nan, math.inf), "delta"),
            (accountant.delta, (-1.0, -1e-300, math.nan), "epsilon"),
            (accountant.best_tpr, ([-0.1], [1.5], [math.nan]), "false-positive rate"),
        ):
            for value in bad:
                with pytest.raises(UsageError, match=sentence):
                    ask(value)


class TestGaussianDP(AccountantContract):
    build = GaussianDP


class TestRenyiDP(AccountantContract):
    build = RenyiDP

    def schedules(self):
        return FULL + SAMPLED


class TestPrivacyLossDistribution(AccountantContract):
    build = PrivacyLossDistribution

    def schedules(self):
        return FULL[:2] + SAMPLED


class Unsure(Accountant):
    """An accountant whose delta is undefined up to some epsilon, or for all epsilons."""

    method = "none"

    def __init__(self, schedule: Schedule, until: float) -> None:
        super().__init__(schedule)
        self.until = until

    def log_delta(self, epsilon: float) -> float:
        return -epsilon if epsilon > self.until else math.nan


@pytest.mark.parametrize("until", [0.0, 20.0, math.inf])
def test_a_delta_that_is_not_a_number_vouches_for_nothing(until):
    assert Unsure(FULL[0], until).epsilon(DELTA) == pytest.approx(max(until, -math.log(DELTA)), rel=1e-8)


class TestGroupOfThree(AccountantContract):
    sound = False  # for three people's utterances: compared below
    build = staticmethod(lambda schedule: GroupRenyiDP(schedule, 3))

    def schedules(self):
        return SAMPLED[:1]


def test_attack_bounds_of_the_closed_form_are_those_of_two_normals():
    account, fpr = GaussianDP(FULL[0]), np.array([1e-4, 0.01, 0.3])
    assert account.best_auc() == pytest.approx(norm.cdf(1 / math.sqrt(2)))
    assert account.best_tpr(fpr) == pytest.approx(norm.sf(norm.isf(fpr) - 1))
    generic = Accountant.best_tpr(account, fpr)
    assert (generic >= account.best_tpr(fpr)).all()
    assert generic == pytest.approx(account.best_tpr(fpr), abs=2e-3)
    assert account.best_auc() <= Accountant.best_auc(account) <= account.best_auc() + 5e-3


def test_groups_cost_no_less_than_the_exact_account_and_of_one_what_one_costs():
    for schedule in FULL:
        for size in (1, 2, 5, 40):
            exact = GaussianDP(schedule).group(size)
            assert exact.mu == pytest.approx(size * schedule.mu)
            assert GroupRenyiDP(schedule, size).epsilon(DELTA) == pytest.approx(exact.epsilon(DELTA), rel=1e-8)
    for schedule in SAMPLED:
        single = RenyiDP(schedule)
        assert GroupRenyiDP(schedule, 1).epsilon(DELTA) == pytest.approx(single.epsilon(DELTA), rel=1e-8)


def test_hardly_any_noise_and_a_huge_group_have_an_account():
    for z in (1e-300, 1e-3, 1e300):
        assert GroupRenyiDP(Schedule([z], [1], 0.5), 10**6).epsilon(DELTA) >= 0


@pytest.mark.long
@pytest.mark.parametrize("schedule", SAMPLED)
def test_three_utterances_in_one_direction_never_cost_more(schedule):
    """Worst case: one person with three utterances, each sampled independently, as a mixture of shifts 0 to 3."""
    shifts, options = [0, 1, 2, 3], {"value_discretization_interval": 1e-2, **OPTIMISTIC}
    chances = binom.pmf(shifts, 3, schedule.sampling_rate).tolist()
    worst = composed(schedule, lambda z: pld.from_mixture_gaussian_mechanism(z, shifts, chances, **options), 1e-2)
    assert GroupRenyiDP(schedule, 3).epsilon(DELTA) >= worst.get_epsilon_for_delta(DELTA)


@pytest.mark.parametrize(
    ("z", "steps", "size", "least"), [(0.1414, 2, 10, 4996), (0.7, 2, 40, 3263), (20.0, 2, 4096, 42300)]
)
def test_large_groups_at_nearly_full_sampling_cost_what_they_must(z, steps, size, least):
    """The delta of one utterance underflows here; the lower bounds are from likelihood ratios."""
    assert GroupRenyiDP(Schedule([z], [steps], 0.999), size).epsilon(DELTA) >= least


@pytest.mark.parametrize(
    ("z", "q", "order"),
    [
        (0.3, 0.01, 1.1), (0.06, 0.5, 5.3), (1.0, 1e-4, 2.0), (1.0, 1e-4, 20.0), (5.0, 0.3, 1.1), (5.0, 0.3, 10.9),
        (30.0, 0.9, 5.3), (0.115188, 5.446e-8, 2.0),
        *(pytest.param(*each, marks=pytest.mark.long) for each in [(0.3, 0.01, 20.0), (0.115188, 5.446e-8, 20.0)]),
    ],
)  # fmt: skip
def test_moments_equal_an_integral_with_40_digits(z, q, order):
    with mpmath.workdps(40):
        a, zz, qq = mpmath.mpf(order), mpmath.mpf(z), mpmath.mpf(q)
        edges = [-30 * zz, -10 * zz, -5 * zz, 0, *(a * k / 8 for k in range(1, 9))]
        edges += [a + 5 * zz, a + 10 * zz, a + 30 * zz]
        density = lambda x: (1 - qq + qq * mpmath.exp((2 * x - 1) / (2 * zz**2))) ** a * mpmath.npdf(x, 0, zz)  # noqa: E731
        exact = mpmath.log(mpmath.quad(density, edges))
    ours = log_moments(np.array([z]), q)[np.argmin(np.abs(ORDERS - order)), 0]
    assert exact < ours <= float(exact) * (1 + 1e-9) + 1e-13


def test_moments_at_the_edges():
    """For tiny noise, the chord between integer orders is an upper bound; a sampling rate of 1 equals no sampling; and
    sampling never has a larger epsilon than no sampling."""
    below, above = log_moments(np.array([0.0499, 0.0501]), 0.1).T
    assert (below >= above * (1 - 1e-12)).all()
    assert (below <= above * 3).all()
    z = np.array([0.01, 0.0499, 0.0501, 0.3, 1.0, 2.0, 100.0])
    assert log_moments(z[4:6], 1 - 1e-12) == pytest.approx(log_moments(z[4:6], 1.0), rel=1e-9)
    assert (log_moments(z, 0.5) <= log_moments(z, 1.0)).all()
    for schedule in FULL:
        exact = GaussianDP(schedule).epsilon(DELTA)
        assert exact <= RenyiDP(schedule).epsilon(DELTA) <= ReshufflingZCDP(schedule).epsilon(DELTA) * 1.01


@pytest.mark.parametrize("z", [1e-300, 1e-152, 1e-7])
def test_noise_next_to_nothing_is_never_free(z):
    schedule = Schedule([z], [1], 0.5)
    assert RenyiDP(schedule).epsilon(DELTA) >= min(1 / (2 * z * z) if z > 1e-150 else 1e300, 1e300)
    assert RenyiDP(schedule).delta(1.0) == 1
    assert 0.5 <= PrivacyLossDistribution(schedule).delta(1.0) <= 0.6  # the probability of taking part
    everyone = GaussianDP(Schedule([z], [1])).epsilon(DELTA)
    assert everyone * (1 - 1e-6) <= PrivacyLossDistribution(schedule).epsilon(DELTA) <= everyone


@pytest.mark.parametrize(
    ("z", "counts", "q"),
    [([z], [1], 1) for z in (0.0, -1.0, math.nan)]
    + [([1.0], counts, 1) for counts in ([2.0**51], [math.inf], [1, 2], [-1], [0.5])]
    + [([1.0], [1], q) for q in (0.0, 1e-20, -0.1, 1.1, math.nan)],
)
def test_impossible_schedules_are_refused(z, counts, q):
    with pytest.raises(UsageError):
        Schedule(z, counts, q)


# ---- Random settings, judged independently with dp_accounting: our epsilon is never too small ------------------------


TIMES = 50 if os.environ.get("EDP_LAB_LONG") == "1" else 1
FINENESS = 50  # grid steps of dp_accounting's distributions, per release and per unit of our epsilon


class Release(NamedTuple):
    """A number of Gaussian releases with this std, which one utterance shifts by `shift` with probability `rate`."""

    std: float
    shift: float
    times: int
    rate: float


def at_least(releases: list[Release], delta: float, epsilon: float) -> float:
    """Optimistic epsilon by dp_accounting, with losses rounded down: a lower bound on the true epsilon."""
    width = epsilon / (FINENESS * max(5, sum(one.times for one in releases)))
    distributions = [
        pld.from_gaussian_mechanism(
            one.std,
            sensitivity=one.shift,
            value_discretization_interval=width,
            sampling_prob=one.rate,
            pessimistic_estimate=False,
            use_connect_dots=False,
        ).self_compose(one.times)
        for one in releases
    ]
    return float(reduce(lambda total, one: total.compose(one), distributions).get_epsilon_for_delta(delta))


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log10(low), math.log10(high)).map(lambda power: 10**power)


SHUFFLED = st.none()
SAMPLING = logarithmic(5e-3, 0.5)


def judged(rate: float | None, micro_batch_size: int, z0: float, epochs: int, delta: float) -> tuple[float, float]:
    """Guaranteed epsilon of a run with the sound mechanism, and dp_accounting's lower bound on the true epsilon."""
    mechanism = Mechanism.sound(0.7, z0, 3, micro_batch_size, "linear", 0.2, sampling_rate=rate)
    epsilon = judge(mechanism, epochs, delta, seed_published=False).conditional_epsilon
    assert epsilon is not None
    if not 0.05 <= epsilon <= 12:  # outside this range, dp_accounting is slow
        return epsilon, 0.0
    shift = 0.7 * (1 if micro_batch_size == 1 else 2)  # the clipped mean of several can be reversed
    steps, chance = (1, 1.0) if rate is None else (math.ceil(1 / rate), rate)
    releases = [Release(mechanism.noise_std(epoch), shift, steps, chance) for epoch in range(epochs)]
    return epsilon, at_least(releases, delta, epsilon)


@settings(max_examples=8 * TIMES, deadline=None)
@given(
    rate=SHUFFLED | SAMPLING,
    micro_batch_size=st.sampled_from([1, 2, 8]),
    z0=logarithmic(0.5, 15),
    epochs=st.integers(1, 3),
    delta=logarithmic(1e-8, 1e-3),
)
@example(rate=0.01, micro_batch_size=2, z0=1.0, epochs=1, delta=1e-5)
def test_no_epsilon_is_below_dp_accountings_optimistic_one(
    rate: float | None, micro_batch_size: int, z0: float, epochs: int, delta: float
) -> None:
    epsilon, bound = judged(rate, micro_batch_size, z0, epochs, delta)
    assume(bound > 0)
    assert epsilon >= bound * (1 - 1e-6)


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("sensitivity", lambda self, adjacency=None: self.clip_norm),  # also if several share a clip
        ("releases_per_epoch", property(lambda self: int(0.5 / self.sampling_rate))),
    ],
)
def test_a_step_that_does_other_than_is_accounted_is_noticed(
    fault: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mechanism, fault, wrong)
    epsilon, bound = judged(0.05, 2, 2.0, 2, 1e-5)
    assert epsilon < bound * (1 - 1e-6)
