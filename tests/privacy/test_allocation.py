"""Random allocation: moments and privacy profile against brute force, bounds on either side, and a peer's."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from edp_lab.errors import UsageError
from edp_lab.privacy import GaussianDP, Schedule
from edp_lab.privacy.accountants import ORDERS
from edp_lab.privacy.allocation import ENDS, RandomAllocation, _added, allocation_at_least

DELTA = 1e-5


def passes_of(z: float, passes: int = 1) -> Schedule:
    return Schedule(np.array([z]), np.array([passes]))


def in_the_plane(z: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Densities of two batches, with and without the utterance, and the area of a cell."""
    x = np.linspace(-12 * z, 12 * z + 1, 1001)
    absent, present = norm.pdf(x, scale=z), norm.pdf(x, 1, z)
    return (
        (np.outer(present, absent) + np.outer(absent, present)) / 2,
        np.outer(absent, absent),
        float((x[1] - x[0]) ** 2),
    )


@pytest.mark.parametrize("z", [0.5, 1.0, 3.0])
def test_renyi_divergence_of_both_directions_and_profile_of_two_batches_by_brute_force(z: float) -> None:
    present, absent, cell = in_the_plane(z)
    account = RandomAllocation(passes_of(z), 2)
    for order in (1.5, 2.0, 3.0, 5.0):
        log_ratio = np.log(present) - np.log(absent)
        removed = np.log((absent * np.exp(order * log_ratio)).sum() * cell)
        added = np.log((present * np.exp(-order * log_ratio)).sum() * cell)
        ours = float(account.rdp[order == ORDERS][0]) * (order - 1)
        assert ours >= max(removed, added) * (1 - 1e-6)
        if order % 1 == 0:
            assert ours == pytest.approx(max(removed, added), rel=1e-6)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        ways = ((present, absent), (absent, present))
        exact = max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell) for p, q in ways)
        assert exact <= account.delta(epsilon)
        if exact > 1e-9:
            assert allocation_at_least(z, 2, 1, exact) <= epsilon * (1 + 1e-3)


@pytest.mark.parametrize(("z", "batches"), [(0.7, 5), (1.0, 20), (2.0, 3)])
def test_moments_of_many_batches_are_those_of_draws(z: float, batches: int) -> None:
    draws = np.random.default_rng(0).standard_normal((200_000, batches)) / z - 1 / (2 * z * z)
    ratio = np.exp(draws).mean(axis=1)
    moment = float(RandomAllocation(passes_of(z), batches).rdp[ORDERS == 2][0])
    spread = 4 * float(np.std(ratio**2)) / math.sqrt(len(ratio))
    assert math.exp(moment) == pytest.approx(float(np.mean(ratio**2)), abs=spread)
    for s in (1, 2, 4):
        inverse = ratio**-s
        expected = pytest.approx(float(inverse.mean()), abs=4 * float(inverse.std()) / math.sqrt(len(ratio)))
        assert math.exp(_added(z, batches, ENDS)[s]) == expected


def test_one_batch_hides_nothing_and_more_batches_passes_and_noise_do_what_they_should() -> None:
    account = RandomAllocation(passes_of(2.0, 5), 1)
    assert account.epsilon(DELTA) == GaussianDP(passes_of(2.0, 5)).epsilon(DELTA)

    def costs(z: float, passes: int, batches: int) -> float:
        return RandomAllocation(passes_of(z, passes), batches).epsilon(DELTA)

    by_batches = [costs(1.0, 5, batches) for batches in (1, 2, 3, 10, 100, 1000)]
    assert by_batches == sorted(by_batches, reverse=True)
    by_passes = [costs(1.0, passes, 10) for passes in (1, 2, 10, 100)]
    assert by_passes == sorted(by_passes)
    by_noise = [costs(z, 5, 10) for z in (0.2, 0.5, 1.0, 3.0, 10.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    mixed = RandomAllocation(Schedule([1.0, 2.0], [1, 4]), 10).epsilon(DELTA)  # noise that decays
    assert costs(2.0, 5, 10) < mixed < costs(1.0, 5, 10)
    with pytest.raises(UsageError, match="number of batches"):
        costs(1.0, 5, 0)
    with pytest.raises(UsageError, match="Poisson sampling"):
        RandomAllocation(Schedule([1.0], [1], 0.5), 2)


@pytest.mark.parametrize(("z", "batches"), [(0.6, 10), (1.0, 100), (2.0, 3)])
def test_one_pass_is_within_a_fifth_of_the_bound_by_poisson_sampling_of_the_peer(z: float, batches: int) -> None:
    """Poisson sampling at 1/t that is known to have drawn at least once is worse than allocation (Feldman and Shenfeld
    2025), and amplification undone gives its profile from the peer's."""
    some = 1 - (1 - 1 / batches) ** batches
    peer = pld.from_gaussian_mechanism(z, sampling_prob=1 / batches, value_discretization_interval=1e-3).self_compose(
        batches
    )
    epsilon = peer.get_epsilon_for_delta(DELTA * some)
    bound = math.log1p(math.expm1(epsilon) / some)
    least = allocation_at_least(z, batches, 1, DELTA)
    assert least <= bound * (1 + 1e-6)
    assert 0.8 * least < RandomAllocation(passes_of(z), batches).epsilon(DELTA) < 1.2 * bound
