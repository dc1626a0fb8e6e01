"""Our privacy loss distributions: never below the truth, and barely above it, for ordinary and extreme settings."""

import math
import os

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from edp_lab.privacy import GaussianDP, PrivacyLossDistribution, Schedule, gdp_epsilon
from edp_lab.privacy.losses import HARD, Losses, _convolved
from edp_lab.privacy.pld import CLOSED_FORM, CountedParticipation, GroupRenyiDP, RenyiDP
from tests.privacy.test_guarantee import logarithmic

LONG = os.environ.get("EDP_LAB_LONG") == "1"
HERE = [(1.0, 0.01), (0.06, 0.3), (0.4, 1e-6), (30.0, 0.7), (200.0, 1e-9), (2.0, 1 - 1e-9)]


def exact_delta(z: float, q: float, epsilon: mpmath.mpf, removed: bool) -> mpmath.mpf:
    """The delta of one release, computed from the two normals with 60 digits."""
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
    """Tested in exact arithmetic on the resulting floats, so roundings of edges and quotients are included."""
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
    """Compared with a convolution of all terms, for 17 draws of one distribution and 4 of another."""
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
    """An utterance is left out at most once in 10^9 times, so the closed form without sampling is the truth."""
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
    """The epsilon computed by dp_accounting."""
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


@pytest.mark.parametrize("number", range(25 if LONG else 5))
def test_between_the_peers_optimistic_and_a_thousandth_above_its_pessimistic_distribution(number):
    schedule, delta = settings(number)
    ours = PrivacyLossDistribution(schedule).epsilon(delta)
    assert peer(schedule, delta, ours / 2000, False) <= ours
    assert ours <= peer(schedule, delta, ours / 2000, True) * 1.001
    assert ours <= RenyiDP(schedule).epsilon(delta)


@pytest.mark.parametrize(("z", "count", "q", "delta"), [(0.65, 13, 0.0015, 3.7e-4), (1.4, 29, 0.006, 1.8e-4)])
def test_where_hardly_anybody_takes_part_the_grid_is_fine_enough_too(z, count, q, delta):
    """Epsilon is far below the mean of the tilted losses, which determines the grid's width at first."""
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
    """Epsilon is at most that of the other bounds, and at least that of a single release."""
    schedule, everyone = Schedule([z], [count], q), GaussianDP(Schedule([z], [count]))
    account = PrivacyLossDistribution(schedule)
    ours = account.epsilon(delta)
    assert 0 <= ours <= min(RenyiDP(schedule).epsilon(delta), everyone.epsilon(delta)) * 1.001 + 1e-12
    if math.isfinite(ours):
        if account._composed_epsilon(delta)[1] <= HARD:
            assert account.delta(ours) <= 100 * delta  # different transforms, with different error bounds
        assert all(exact_delta(z, q, ours, removed) <= delta for removed in (True, False))
    else:
        assert z < 1e-200


# ---- Monotone, and sound where nothing can be composed directly ------------------------------------------------------


def account_of(
    q: float, z0: float, steps: float, delta: float, tau: float, people: int
) -> tuple[PrivacyLossDistribution | GroupRenyiDP, float]:
    """The accountant that `judge` would use for eight equally long phases of decaying noise, or for one phase."""
    phases = 8 if tau else 1
    counts = [max(1, int(steps / phases))] * phases
    schedule = Schedule(z0 * np.exp(-tau * np.arange(phases)), counts, min(q, 1.0))
    return PrivacyLossDistribution(schedule) if people == 1 else GroupRenyiDP(schedule, people), delta


@hypothesis_settings(max_examples=2000 if LONG else 25, deadline=None)
@given(
    setting=st.tuples(
        logarithmic(1e-9, 1.0), logarithmic(0.01, 100), logarithmic(1, 1e7 if LONG else 1e4), logarithmic(1e-12, 0.01)
    ),
    tau=st.sampled_from([0.0, 0.05, 0.3]),
    people=st.sampled_from([1, 1, 2, 3]),
    what=st.sampled_from(["sampling rate", "noise", "steps", "delta", "people"]),
    factor=st.sampled_from([1.002, 1.05, 1.3, 2.0, 10.0]),
)
@example((1e-9, 1.0, 1e6, 1e-10), 0.0, 1, "sampling rate", 10.0)  # once 0.458 and 0.00008
@example((3.17e-9, 1.0, 1e6, 1e-5), 0.0, 1, "sampling rate", 3.16)  # once 0.181 and 0.00005
@example((1e-3, 0.05, 1e3, 1e-5), 0.0, 1, "noise", 1.002)  # once 1,470, and 20,000 slightly below
def test_a_larger_rate_less_noise_more_steps_smaller_delta_and_more_people_never_cost_less(
    setting: tuple[float, float, float, float], tau: float, people: int, what: str, factor: float
) -> None:
    q, z0, steps, delta = setting
    worse = {
        "sampling rate": (min(1.0, q * factor), z0, steps, delta, tau, people),
        "noise": (q, z0 / factor, steps, delta, tau, people),
        "steps": (q, z0, steps * factor, delta, tau, people),
        "delta": (q, z0, steps, delta / factor, tau, people),
        "people": (q, z0, steps, delta, tau, people + 1),
    }[what]
    (here, at), (there, below) = account_of(*setting, tau, people), account_of(*worse)
    # Grids make epsilon inaccurate by one per mille; at tiny rates, by up to 1 % or 0.01:
    assert here.epsilon(at) <= there.epsilon(below) * 1.01 + 0.01


def test_little_noise_is_a_little_dearer_than_a_little_more_noise_and_says_which_bound_was_used():
    """Below 0.05, no losses are composed: once, all steps were accounted as unsampled, with 14 times the epsilon."""
    more, less = (PrivacyLossDistribution(Schedule([z], [1000], 1e-3)).bound(1e-5) for z in (0.05, 0.0499))
    assert more.epsilon < less.epsilon < 1.5 * more.epsilon
    assert (more.method, less.method) == ("privacy loss distributions", CountedParticipation.method)
    everyone = GroupRenyiDP(Schedule([0.01], [3], 0.9), 2).bound(1e-5)
    assert everyone.method == CLOSED_FORM
    never = PrivacyLossDistribution(Schedule([0.01], [100], 1e-9)).bound(1e-5)
    assert never.epsilon == 0  # delta covers every run in which the utterance is sampled at all


HARDEST = [
    (1e-9, 1.0, 10**4, 1e-10), (1e-8, 0.3, 10**4, 1e-10), (1e-9, 0.3, 10**4, 1e-10), (1e-6, 30.0, 10**5, 1e-10),
    (3e-9, 0.54, 2000, 2.7e-11), (1e-9, 0.1, 1, 1e-10), (1e-3, 0.04, 100, 1e-5), (0.1, 0.03, 50, 1e-6),
    (1e-4, 1.03, 1900, 1e-11), (2e-5, 0.87, 5000, 1e-10),
]  # fmt: skip


@pytest.mark.parametrize(("q", "z", "count", "delta"), HARDEST)
def test_hard_settings_are_never_below_the_peers_optimistic_distribution(q, z, count, delta):
    schedule = Schedule([z], [count], q)
    ours = PrivacyLossDistribution(schedule).epsilon(delta)
    assert peer(schedule, delta, max(ours / 500, 1e-7), False) <= ours
    assert CountedParticipation(schedule).epsilon(delta) >= peer(schedule, delta, max(ours / 500, 1e-7), False)
