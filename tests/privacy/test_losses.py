"""Our privacy loss distributions: never below the truth, hardly above it, at ordinary and at absurd settings."""

import math
import os

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from edp_lab.privacy import GaussianDP, PrivacyLossDistribution, Schedule, gdp_epsilon
from edp_lab.privacy.losses import Losses, _convolved
from edp_lab.privacy.pld import RenyiDP

HERE = [(1.0, 0.01), (0.06, 0.3), (0.4, 1e-6), (30.0, 0.7), (200.0, 1e-9), (2.0, 1 - 1e-9)]


def exact_delta(z: float, q: float, epsilon: mpmath.mpf, removed: bool) -> mpmath.mpf:
    """delta of one release, from the two normals: 60 digits."""
    with mpmath.workdps(60):
        z, q, growth = mpmath.mpf(z), mpmath.mpf(q), mpmath.exp(epsilon)
        odds = (growth if removed else 1 / growth) - (1 - q)  # at the edge, q e^((2x-1)/(2 z^2))
        if odds <= 0:
            return mpmath.mpf(1) - growth if removed else mpmath.mpf(0)
        edge = z * mpmath.log(odds / q) + 1 / (2 * z)  # x/z
        above = lambda u: mpmath.erfc(min(u, 10**6) / mpmath.sqrt(2)) / 2  # noqa: E731
        plain, mixed = above(edge), (1 - q) * above(edge) + q * above(edge - 1 / z)
        return mixed - growth * plain if removed else (1 - plain) - growth * (1 - mixed)


@pytest.mark.parametrize(("z", "q"), HERE)
@pytest.mark.parametrize("removed", [True, False])
def test_masses_of_one_release_dominate_it_at_and_between_the_edges(z, q, removed):
    """In exact arithmetic on the floats that come out, so that roundings of edges and quotients are covered."""
    whole = Losses(Schedule([z], [1], q), removed)
    losses = whole.released(whole.width)
    between = losses.width * np.random.default_rng(0).uniform(losses.grid[0], losses.grid[-1], 6)
    near = losses.width * np.arange(-2, 3) / 2
    with mpmath.workdps(60):
        at = [mpmath.mpf(losses.width) * int(j) for j in losses.grid]
        masses = map(mpmath.mpf, losses.masses[0].tolist())
        parts = [(mass, mpmath.exp(-loss)) for loss, mass in zip(at, masses, strict=True)]
        for epsilon in [*at[:: len(at) // 6], *map(mpmath.mpf, [*near.tolist(), *between.tolist()])]:
            growth = mpmath.exp(epsilon)
            ours = mpmath.fsum(mass * (1 - growth * fall) for mass, fall in parts if growth * fall < 1)
            assert ours + mpmath.mpf(float(losses.beyond[0])) >= exact_delta(z, q, epsilon, removed)
    assert 1 <= losses.masses.sum() + losses.beyond.sum() <= 1 + 1e-8


def test_transforms_are_as_precise_as_is_charged():
    """Beside a convolution of all terms; 17 draws of one and 4 of another."""
    rng = np.random.default_rng(1)
    masses = rng.dirichlet(np.ones(9), 2)
    slow = np.ones(1)
    for row, count in zip(masses, (17, 4), strict=True):
        for _ in range(count):
            slow = np.convolve(slow, row)
    fast = _convolved(masses, np.array([17, 4]), np.arange(9), 256)
    lost = 22 * 10 * 2.0**-53 * (8 + 2)
    assert float(np.linalg.norm(fast[: len(slow)] - slow)) <= lost
    assert np.abs(fast[len(slow) :]).max() <= lost


@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-5, 1e-9, 1e-13, 1e-30])
@pytest.mark.parametrize(("z", "count"), [(1.0, 1), (3.0, 40), (1000.0, 10**6), (0.2, 7)])
def test_where_hardly_anybody_is_left_out_it_is_the_closed_form(delta, z, count):
    """Nobody is left out but once in 10^9 or more, so that the closed form without sampling is the truth."""
    exact, side = gdp_epsilon(math.sqrt(count) / z, delta), Losses(Schedule([z], [count], 1 - 1e-15), True)
    ours, _ = side.epsilon(delta)
    assert exact * (1 - 1e-9) <= ours <= exact * 1.001 + 1e-9


def settings(number: int) -> tuple[Schedule, float]:
    rng = np.random.default_rng((number, 32))
    while True:
        kinds, q, delta = rng.integers(1, 4), 10 ** rng.uniform(-3.5, -0.1), 10 ** rng.uniform(-9, -2)
        schedule = Schedule(10 ** rng.uniform(-0.5, 1, kinds), rng.integers(1, 12, kinds), q)
        if 0.02 <= RenyiDP(schedule).epsilon(delta) <= 20:
            return schedule, delta


def peer(schedule: Schedule, delta: float, width: float, pessimistic: bool) -> float:
    """dp_accounting's."""
    total = None
    for z, count in zip(schedule.noise_multipliers.tolist(), schedule.counts.tolist(), strict=True):
        one = pld.from_gaussian_mechanism(
            z,
            value_discretization_interval=width,
            sampling_prob=schedule.sampling_rate,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        ).self_compose(count)
        total = one if total is None else total.compose(one)
    return total.get_epsilon_for_delta(delta)


@pytest.mark.parametrize("number", range(25 if os.environ.get("EDP_LAB_LONG") else 5))
def test_between_the_peers_optimistic_and_a_thousandth_above_its_pessimistic_distribution(number):
    schedule, delta = settings(number)
    ours = PrivacyLossDistribution(schedule).epsilon(delta)
    assert peer(schedule, delta, ours / 2000, False) <= ours
    assert ours <= peer(schedule, delta, ours / 2000, True) * 1.001
    assert ours <= RenyiDP(schedule).epsilon(delta)


@pytest.mark.parametrize(("z", "count", "q", "delta"), [(0.65, 13, 0.0015, 3.7e-4), (1.4, 29, 0.006, 1.8e-4)])
def test_where_hardly_anybody_takes_part_the_grid_is_fine_enough_too(z, count, q, delta):
    """Epsilon lies far below the mean of the tilted losses, by which the grid's width is chosen at first."""
    schedule = Schedule([z], [count], q)
    ours = PrivacyLossDistribution(schedule).epsilon(delta)
    assert peer(schedule, delta, ours / 200, False) <= ours <= peer(schedule, delta, ours / 200, True) * 1.001


@pytest.mark.parametrize("number", range(25))
def test_a_direction_that_is_surely_below_is_below(number):
    schedule, delta = settings(number)
    epsilon, _ = Losses(schedule, True).epsilon(delta)
    other = Losses(schedule, False)
    found, _ = other.epsilon(delta)
    if other.surely_below(epsilon, math.log(delta)):
        assert found <= epsilon
    assert not other.surely_below(found * 0.999, math.log(delta))


@pytest.mark.parametrize("delta", [1e-300, 1e-12, 0.5])
@pytest.mark.parametrize("q", [1e-9, 0.5, 1 - 1e-12])
@pytest.mark.parametrize("count", [1, 10**6, 2**49])
@pytest.mark.parametrize("z", [1e-300, 0.049, 0.051, 1.0, 1e7])
def test_absurd_settings_get_an_answer_that_no_other_bound_contradicts(z, count, q, delta):
    """No more than the other bounds say, and no less than a single release costs."""
    schedule, everyone = Schedule([z], [count], q), GaussianDP(Schedule([z], [count]))
    account = PrivacyLossDistribution(schedule)
    ours = account.epsilon(delta)
    assert 0 <= ours <= min(RenyiDP(schedule).epsilon(delta), everyone.epsilon(delta)) * 1.001 + 1e-12
    if math.isfinite(ours):
        if account.bound(delta).method == account.method:
            assert account.delta(ours) <= 10 * delta  # by another transform, where charges differ
        assert all(exact_delta(z, q, ours, removed) <= delta for removed in (True, False))
    else:
        assert z < 1e-200
