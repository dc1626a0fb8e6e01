"""Correlated noise: its square root and errors against matrices, its account against brute force and a peer."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.linalg import toeplitz
from scipy.stats import norm

from edp_lab.errors import UsageError
from edp_lab.privacy import RenyiDP
from edp_lab.privacy.correlated import (
    column_lengths,
    correlated_error,
    in_cyclic_order,
    in_cyclic_samples,
    independent_error,
    square_root,
)


def matrix(bands: int, steps: int) -> np.ndarray:
    column = np.zeros(steps)
    column[: min(bands, steps)] = square_root(bands)[:steps]
    return np.tril(toeplitz(column))


def test_all_bands_are_the_square_root_of_the_running_sum() -> None:
    root = matrix(12, 12)
    assert root @ root == pytest.approx(np.tril(np.ones((12, 12))))


@pytest.mark.parametrize(("bands", "batches", "passes"), [(1, 3, 2), (2, 2, 3), (3, 4, 2), (4, 4, 1)])
def test_no_choice_of_changes_moves_the_draws_by_more_than_the_account_says(
    bands: int, batches: int, passes: int
) -> None:
    """Brute force: every batch, and changes of length 1 in every pass, in the same, opposite and other directions."""
    steps = batches * passes
    root, moved = matrix(bands, steps), []
    directions = [np.array(d) for d in ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.6, 0.8))]
    for first, chosen in itertools.product(range(batches), itertools.product(directions, repeat=passes)):
        changes = np.zeros((steps, 2))
        changes[first::batches] = chosen
        moved.append(np.linalg.norm(root @ changes))
    assert max(moved) == pytest.approx(in_cyclic_order(1.0, bands, batches, passes).mu)


def test_overlapping_columns_would_cost_more_so_they_are_refused() -> None:
    pulled = matrix(3, 6)[:, [0, 2, 4]].sum(axis=1)  # back after two steps, three bands
    assert np.linalg.norm(pulled) > math.sqrt(3) * column_lengths(square_root(3), 6)[0]
    with pytest.raises(UsageError, match="at most as many bands as batches"):
        in_cyclic_order(1.0, 3, 2, 3)
    with pytest.raises(UsageError, match="at most 4 bands"):
        in_cyclic_samples(1.0, 5, 20, 0.25)


def test_one_band_is_independent_noise() -> None:
    order, sample = in_cyclic_order(2.0, 1, 7, 5), in_cyclic_samples(2.0, 1, 35, 0.1)
    assert (order.noise_multipliers.tolist(), order.counts.tolist()) == ([2.0], [5])
    assert (sample.noise_multipliers.tolist(), sample.counts.tolist(), sample.sampling_rate) == ([2.0], [35], 0.1)
    assert correlated_error(1, 35, 0.9) == pytest.approx(independent_error(np.ones(35), 0.9))


@pytest.mark.parametrize("keep", [1.0, 0.8])
def test_errors_are_those_of_the_matrices(keep: float) -> None:
    steps, bands = 30, 4
    position = np.array([[keep ** (t - s) if t >= s else 0.0 for s in range(steps)] for t in range(steps)])
    expected = np.linalg.norm(position @ np.linalg.inv(matrix(bands, steps)), axis=1)
    assert correlated_error(bands, steps, keep) == pytest.approx(expected)
    stds = np.linspace(2, 1, steps)
    assert independent_error(stds, keep) == pytest.approx(np.linalg.norm(position * stds, axis=1))


def test_more_bands_need_longer_draws_and_leave_less_of_the_sum() -> None:
    mus = [in_cyclic_order(1.0, bands, 16, 8).mu for bands in (1, 2, 4, 8, 16)]
    sums = [mu * correlated_error(bands, 128)[-1] for mu, bands in zip(mus, (1, 2, 4, 8, 16), strict=True)]
    assert mus == sorted(mus)
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_sampled_account_covers_the_exact_privacy_profile_of_two_steps_of_one_part(epsilon: float) -> None:
    """Steps 0 and 2 of three, two bands, each taken with chance q = 2/3: a mixture of four Gaussians in the plane."""
    sigma, rate = 1.3, 1 / 3
    x = np.linspace(-8, 8, 401) * sigma
    longer, shorter = column_lengths(square_root(2), 3)[[0, 2]]
    base = norm.pdf(x, scale=sigma)
    mixtures = [(1 - 2 * rate) * base + 2 * rate * norm.pdf(x, length, sigma) for length in (longer, shorter)]
    without, with_it = np.outer(base, base), np.outer(*mixtures)
    growth, cell = math.exp(epsilon), (x[1] - x[0]) ** 2
    exact = max(float(np.maximum(p - growth * q, 0).sum() * cell) for p, q in ((with_it, without), (without, with_it)))
    schedule = in_cyclic_samples(sigma, 2, 3, rate)
    assert exact <= RenyiDP(schedule).delta(epsilon) <= 1
    peer = pld.from_gaussian_mechanism(
        float(schedule.noise_multipliers[0]), sampling_prob=2 * rate, value_discretization_interval=1e-4
    ).self_compose(2)
    assert exact <= peer.get_delta_for_epsilon(epsilon) + 1e-9
