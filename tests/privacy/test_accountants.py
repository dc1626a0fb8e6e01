"""What every accountant must do, whatever its method; and each against a peer: dp_accounting's RDP and PLD."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import pairwise

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom, norm

from edp_lab.errors import UsageError
from edp_lab.privacy import (
    Accountant,
    GaussianDP,
    GroupRenyiDP,
    PrivacyLossDistribution,
    RenyiDP,
    ReshufflingZCDP,
    SamplingZCDP,
    Schedule,
    gdp_epsilon,
)
from edp_lab.privacy.accountants import ORDERS, log_moments

DELTA = 1e-5
WHOLE_NUMBERS = ORDERS % 1 == 0
EMPTY = Schedule(np.array([]), np.array([], dtype=int))


def optimistic(schedule: Schedule, interval: float = 1e-3) -> pld.PrivacyLossDistribution:
    """A *lower* bound on the privacy loss: no sound epsilon lies below it."""
    total = pld.identity(interval, pessimistic_estimate=False)
    for z, count in zip(schedule.noise_multipliers, schedule.counts, strict=True):
        one = pld.from_gaussian_mechanism(
            z,
            value_discretization_interval=interval,
            sampling_prob=schedule.sampling_rate,
            pessimistic_estimate=False,
            use_connect_dots=False,
        )
        total = total.compose(one.self_compose(int(count)))
    return total


class AccountantContract(ABC):
    """Every accountant must pass this; a subclass names it and a few schedules that it judges."""

    sound = True  # its epsilon holds

    @abstractmethod
    def build(self, schedule: Schedule) -> Accountant: ...

    @abstractmethod
    def schedules(self) -> list[Schedule]: ...

    def accountants(self) -> Iterator[Accountant]:
        return map(self.build, self.schedules())

    def test_epsilon_falls_as_delta_rises(self):
        for accountant in self.accountants():
            epsilons = [accountant.epsilon(delta) for delta in (1e-9, 1e-7, 1e-5, 1e-3, 0.1, 0.9)]
            assert all(a >= b >= 0 for a, b in pairwise(epsilons))
            assert epsilons[0] > epsilons[-2]

    def test_delta_falls_as_epsilon_rises_within_0_and_1(self):
        for accountant in self.accountants():
            deltas = [accountant.delta(epsilon) for epsilon in (0, 0.1, 1, 3, 10, 100, 1e6)]
            assert all(1 >= a >= b >= 0 for a, b in pairwise(deltas))

    def test_epsilon_meets_its_delta(self):
        for accountant in self.accountants():
            for delta in (1e-9, 1e-5, 1e-2):
                epsilon = accountant.epsilon(delta)
                assert accountant.delta(epsilon) <= delta * (1 + 1e-6)
                if epsilon > 1e-3:
                    assert accountant.delta(epsilon * 0.99 - 1e-3) > delta

    def test_another_release_never_costs_less(self):
        for schedule in self.schedules():
            z, counts = schedule.noise_multipliers, schedule.counts
            more = Schedule(z, counts + 1, schedule.sampling_rate)
            assert self.build(more).epsilon(DELTA) > self.build(schedule).epsilon(DELTA)

    def test_more_noise_costs_less(self):
        for schedule in self.schedules():
            louder = Schedule(schedule.noise_multipliers * 1.1, schedule.counts, schedule.sampling_rate)
            assert self.build(louder).epsilon(DELTA) < self.build(schedule).epsilon(DELTA)

    def test_order_of_the_releases_does_not_matter(self):
        for schedule in self.schedules():
            z = np.repeat(schedule.noise_multipliers, schedule.counts)
            shuffled = np.random.default_rng(0).permutation(z)
            one_by_one = Schedule(shuffled, np.ones(len(z), dtype=int), schedule.sampling_rate)
            assert self.build(one_by_one).epsilon(DELTA) == self.build(schedule).epsilon(DELTA)

    def test_no_release_costs_nothing(self):
        empty = Schedule(EMPTY.noise_multipliers, EMPTY.counts, self.schedules()[0].sampling_rate)
        accountant = self.build(empty)
        assert accountant.epsilon(DELTA) == accountant.delta(0.0) == 0

    def test_never_below_the_optimistic_bound(self):
        if not self.sound:
            return
        for schedule in self.schedules():
            floor, accountant = optimistic(schedule), self.build(schedule)
            for delta in (1e-8, 1e-5, 1e-2):
                assert accountant.epsilon(delta) >= floor.get_epsilon_for_delta(delta) - 1e-9
            for epsilon in (0.0, 0.5, 2.0):
                assert accountant.delta(epsilon) >= floor.get_delta_for_epsilon(epsilon) - 1e-12

    def test_attack_bounds_cover_every_pair_of_epsilon_and_delta(self):
        fpr = np.array([0.0, 1e-3, 0.01, 0.1, 0.5, 0.9, 1.0])
        for accountant in self.accountants():
            tpr = accountant.best_tpr(fpr)
            assert (np.diff(tpr) >= -1e-12).all()
            assert (tpr >= fpr - 1e-12).all()
            assert tpr[-1] == pytest.approx(1)
            auc = accountant.best_auc()
            x = np.linspace(0, 1, 20_001)
            assert 0.5 <= auc <= 1
            assert auc >= np.trapezoid(accountant.best_tpr(x), x) - 1e-4  # an upper bound, but for the grid here
            if self.sound and accountant.schedule.sampling_rate == 1:
                exact = norm.cdf(norm.ppf(fpr) + accountant.schedule.mu)
                assert (tpr >= exact - 1e-9).all()
                assert auc >= norm.cdf(accountant.schedule.mu / math.sqrt(2)) - 1e-9

    @pytest.mark.parametrize("bad", [0.0, 1.0, -1e-5, math.nan, math.inf])
    def test_delta_outside_0_1_is_refused(self, bad):
        with pytest.raises(UsageError, match="delta"):
            next(self.accountants()).epsilon(bad)

    @pytest.mark.parametrize("bad", [-1.0, -1e-300, math.nan])
    def test_negative_epsilon_is_refused(self, bad):
        with pytest.raises(UsageError, match="epsilon"):
            next(self.accountants()).delta(bad)


FULL = [
    Schedule(np.array([1.0]), np.array([1])),
    Schedule(np.array([3.0, 4.0, 2.5]), np.array([4, 1, 2])),
    Schedule(np.array([40.0]), np.array([300])),
]
SAMPLED = [
    Schedule(np.array([1.0]), np.array([500]), 0.01),
    Schedule(np.array([2.0, 0.7, 0.9]), np.array([100, 20, 30]), 0.05),
]


class TestGaussianDP(AccountantContract):
    def build(self, schedule):
        return GaussianDP(schedule)

    def schedules(self):
        return FULL

    def test_refuses_sampling(self):
        with pytest.raises(UsageError, match="Poisson"):
            GaussianDP(SAMPLED[0])

    def test_attack_bounds_are_those_of_two_normals(self):
        account = GaussianDP(FULL[0])
        assert account.best_auc() == pytest.approx(norm.cdf(1 / math.sqrt(2)))
        assert account.best_tpr(np.array([0.01]))[0] == pytest.approx(norm.sf(norm.isf(0.01) - 1))
        generic = Accountant.best_tpr(account, np.array([1e-4, 0.01, 0.3]))
        exact = account.best_tpr(np.array([1e-4, 0.01, 0.3]))
        assert (generic >= exact).all()
        assert generic == pytest.approx(exact, abs=2e-3)
        assert account.best_auc() <= Accountant.best_auc(account) <= account.best_auc() + 5e-3

    def test_k_utterances_of_one_person_cost_k_times_mu(self):
        assert GaussianDP(FULL[1]).group(3).mu == pytest.approx(3 * GaussianDP(FULL[1]).mu)


class TestRenyiDP(AccountantContract):
    def build(self, schedule):
        return RenyiDP(schedule)

    def schedules(self):
        return FULL + SAMPLED


class TestPrivacyLossDistribution(AccountantContract):
    def build(self, schedule):
        return PrivacyLossDistribution(schedule, interval=1e-3)

    def schedules(self):
        return FULL[:2] + SAMPLED


@pytest.mark.parametrize("delta", [1e-8, 1e-9, 1e-10, 3e-11, 1e-13])
def test_a_million_releases_do_not_round_epsilon_below_the_truth(delta):
    """Nobody is left out but once in 10^12, so the closed form is exact; Fourier's rounding would undercut it."""
    million = Schedule(np.array([1000.0]), np.array([10**6]), 1 - 1e-12)
    exact = GaussianDP(Schedule(np.array([1000.0]), np.array([10**6]))).epsilon(delta)
    assert exact <= PrivacyLossDistribution(million).epsilon(delta) <= 1.2 * exact


class TestReshufflingZCDP(AccountantContract):
    def build(self, schedule):
        return ReshufflingZCDP(schedule)

    def schedules(self):
        return FULL


class TestSamplingZCDP(AccountantContract):
    sound = False

    def build(self, schedule):
        return SamplingZCDP(schedule)

    def schedules(self):
        return [SAMPLED[0], Schedule(np.array([1.5, 2.0]), np.array([10, 4000]), 0.002)]

    def test_both_branches_of_the_formula(self):
        q, z, steps = 0.01, 1.2, 3000
        account = SamplingZCDP(Schedule(np.array([z]), np.array([steps]), q))
        rho, u = steps * q * q / z**2, z**2 * math.log(1 / (q * z)) + 1
        assert account.epsilon(1e-2) == pytest.approx(rho + 2 * math.sqrt(rho * math.log(100)))
        tiny = math.exp(-rho * (u - 1) ** 2) / 10
        assert account.epsilon(tiny) == pytest.approx(rho * u - math.log(tiny) / (u - 1))

    @pytest.mark.parametrize(("z", "q"), [(0.99, 0.001), (1.0, 1 / 16), (4.0, 0.02), (1.0, 1.0)])
    def test_refused_outside_its_range(self, z, q):
        with pytest.raises(UsageError, match="no claim"):
            SamplingZCDP(Schedule(np.array([z]), np.array([1]), q))


class TestGroupOfThree(AccountantContract):
    sound = False  # of three people's utterances: compared below

    def build(self, schedule):
        return GroupRenyiDP(schedule, 3)

    def schedules(self):
        return SAMPLED[:1]

    def test_never_below_the_exact_account_where_there_is_one(self):
        for schedule in FULL:
            for size in (1, 2, 5, 40):
                exact = GaussianDP(schedule).group(size)
                assert GroupRenyiDP(schedule, size).epsilon(DELTA) >= exact.epsilon(DELTA) * (1 - 1e-9)

    def test_a_group_of_one_is_one(self):
        for schedule in FULL + SAMPLED:
            single = RenyiDP(schedule)
            assert GroupRenyiDP(schedule, 1).epsilon(DELTA) == pytest.approx(single.epsilon(DELTA), rel=1e-8)

    def test_three_utterances_in_one_direction_never_cost_more(self):
        """The worst person with three utterances, each sampled on its own: a mixture of shifts 0 to 3."""
        for schedule in SAMPLED:
            q, total = schedule.sampling_rate, pld.identity(1e-2, pessimistic_estimate=False)
            for z, count in zip(schedule.noise_multipliers, schedule.counts, strict=True):
                one = pld.from_mixture_gaussian_mechanism(
                    z,
                    [0, 1, 2, 3],
                    binom.pmf([0, 1, 2, 3], 3, q).tolist(),
                    value_discretization_interval=1e-2,
                    pessimistic_estimate=False,
                    use_connect_dots=False,
                )
                total = total.compose(one.self_compose(int(count)))
            assert GroupRenyiDP(schedule, 3).epsilon(DELTA) >= total.get_epsilon_for_delta(DELTA)


# Against peers


def random_schedule(sampled: bool, number: int) -> Schedule:
    """At most 8 distinct z, epsilon between .05 and 30."""
    rng = np.random.default_rng((number, sampled))
    while True:
        distinct = rng.integers(1, 9)
        q = 10 ** rng.uniform(-3, -0.5) if sampled else 1.0
        z = 10 ** (rng.uniform(-0.2, 1.0) + rng.uniform(-0.1, 0.1, distinct)) * (1 if sampled else 2)
        schedule = Schedule(z, rng.integers(1, 60 if sampled else 6, distinct), q)
        if 0.05 <= RenyiDP(schedule).epsilon(DELTA) <= 30:
            return schedule


@pytest.mark.parametrize("number", range(100))
def test_closed_form_lies_between_optimistic_and_pessimistic_distributions(number):
    schedule = random_schedule(False, number)
    ours = GaussianDP(schedule).epsilon(DELTA)
    single = Schedule(np.array([1 / schedule.mu]), np.array([1]))  # the same mechanism, discretised once
    assert ours >= optimistic(single).get_epsilon_for_delta(DELTA)
    assert ours == pytest.approx(PrivacyLossDistribution(schedule, 1e-3).epsilon(DELTA), rel=1e-3)


@pytest.mark.parametrize("number", range(100))
def test_renyi_agrees_with_dp_accounting_and_is_never_below_the_optimistic_bound(number):
    """At whole orders, where theirs is exact; at fractional ones theirs adds the moduli of an alternating series."""
    schedule = random_schedule(True, number)
    whole = ORDERS[WHOLE_NUMBERS]
    theirs = dp.rdp.RdpAccountant(orders=whole.tolist())
    theirs.compose(schedule.events())
    ours = RenyiDP(schedule)
    at_whole = ours.rdp[WHOLE_NUMBERS]
    assert at_whole == pytest.approx(theirs._rdp, rel=1e-6, abs=1e-9)
    assert min(30, rdp_epsilon_at(whole, at_whole)) == pytest.approx(min(30, theirs.get_epsilon(DELTA)), rel=1e-6)
    assert ours.epsilon(DELTA) <= theirs.get_epsilon(DELTA) * (1 + 1e-9)
    assert ours.epsilon(DELTA) >= optimistic(schedule).get_epsilon_for_delta(DELTA)


def rdp_epsilon_at(orders: np.ndarray, rdp: np.ndarray) -> float:
    return float(np.min(rdp + np.log1p(-1 / orders) - np.log(DELTA * orders) / (orders - 1)))


@pytest.mark.parametrize("number", range(0, 100, 20))
def test_renyi_is_never_above_dp_accounting_at_fractional_orders(number):
    schedule = random_schedule(True, number)
    theirs = dp.rdp.RdpAccountant()
    theirs.compose(schedule.events())
    assert (RenyiDP(schedule).rdp <= theirs._rdp * (1 + 1e-6) + 1e-9).all()
    assert RenyiDP(schedule).epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=2e-2)


@pytest.mark.parametrize(("z", "q"), [(0.3, 0.01), (0.06, 0.5), (0.38, 0.17), (1.0, 1e-4), (5.0, 0.3), (30.0, 0.9)])
@pytest.mark.parametrize("order", [1.1, 1.7, 2.0, 5.3, 10.9])
def test_moments_by_quadrature_equal_an_integral_with_40_digits(z, q, order):
    with mpmath.workdps(40):
        a, zz, qq = mpmath.mpf(order), mpmath.mpf(z), mpmath.mpf(q)
        edges = [
            -30 * zz,
            -10 * zz,
            -5 * zz,
            0,
            *(a * k / 8 for k in range(1, 9)),
            a + 5 * zz,
            a + 10 * zz,
            a + 30 * zz,
        ]
        density = lambda x: (1 - qq + qq * mpmath.exp((2 * x - 1) / (2 * zz**2))) ** a * mpmath.npdf(x, 0, zz)  # noqa: E731
        exact = mpmath.log(mpmath.quad(density, edges))
    ours = log_moments(np.array([z]), q)[np.argmin(np.abs(ORDERS - order)), 0]
    assert exact < ours <= float(exact) * (1 + 1e-9) + 2e-14


def test_at_tiny_noise_the_chord_between_whole_orders_is_an_upper_bound():
    below, above = log_moments(np.array([0.0499, 0.0501]), 0.1).T
    assert (below >= above * (1 - 1e-12)).all()
    assert (below <= above * 3).all()


def test_sampling_everyone_is_no_sampling():
    z = np.array([1.0, 2.0])
    almost = log_moments(z, 1 - 1e-12)
    assert almost == pytest.approx(log_moments(z, 1.0), rel=1e-9)


def test_renyi_stays_above_the_closed_form_without_sampling():
    for schedule in FULL:
        exact = GaussianDP(schedule).epsilon(DELTA)
        assert exact <= RenyiDP(schedule).epsilon(DELTA) <= ReshufflingZCDP(schedule).epsilon(DELTA) * 1.01
    assert gdp_epsilon(1.0, DELTA) == pytest.approx(4.38, abs=0.005)


@pytest.mark.parametrize(
    ("z", "steps", "size", "least"), [(0.1414, 2, 10, 4996), (0.7, 2, 40, 3263), (20.0, 2, 4096, 42300)]
)
def test_large_groups_at_nearly_full_sampling_cost_what_they_must(z, steps, size, least):
    """delta of one utterance underflows there; lower bounds from likelihood ratios."""
    assert GroupRenyiDP(Schedule(np.array([z]), np.array([steps]), 0.999), size).epsilon(DELTA) >= least


@pytest.mark.parametrize("z", [1e-300, 1e-152, 1e-7])
def test_noise_next_to_nothing_is_never_free(z):
    schedule = Schedule(np.array([z]), np.array([1]), 0.5)
    assert RenyiDP(schedule).epsilon(DELTA) >= min(1 / (2 * z * z) if z > 1e-150 else 1e300, 1e300)
    assert RenyiDP(schedule).delta(1.0) == 1


def test_sampling_never_costs_more_than_everyone():
    z = np.array([0.01, 0.0499, 0.0501, 0.3, 1.0, 100.0])
    assert (log_moments(z, 0.5) <= log_moments(z, 1.0)).all()


@pytest.mark.parametrize("rates", [[-0.1], [1.5], [math.nan]])
def test_rates_outside_0_1_are_refused(rates):
    for account in (GaussianDP(FULL[0]), RenyiDP(FULL[0])):
        with pytest.raises(UsageError, match="false-positive rate"):
            account.best_tpr(np.array(rates))


@pytest.mark.parametrize(
    ("z", "counts", "q"),
    [([0.0], [1], 1), ([1.0], [2.0**51], 1), ([1.0], [math.inf], 1), ([1.0], [1, 2], 1), ([1.0], [1], 1e-20)]
    + [([0.0], [1], 1), ([-1.0], [1], 1), ([math.nan], [1], 1), ([1.0], [-1], 1), ([1.0], [0.5], 1)]
    + [([1.0], [1], q) for q in (0.0, -0.1, 1.1, math.nan)],
)
def test_impossible_schedules_are_refused(z, counts, q):
    with pytest.raises(UsageError):
        Schedule(np.array(z), np.array(counts), q)
