"""A step's noise: standard normal, the same for any number of threads, and never drawn twice."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from edp_lab.errors import UsageError
from edp_lab.privacy.csprng import Purpose, key_from_seed, stream
from edp_lab.privacy.exact_noise import grid
from edp_lab.training import noise
from edp_lab.training.batches import shard
from edp_lab.training.noise import ExactNoise, FloatNoise, GivenNoise, NoiseSource, float_noise

KEY, STEP, DEVICES = key_from_seed(0), 7, 8
DTYPES = (torch.float32, torch.float64)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Small blocks, which give a short vector many of them."""
    monkeypatch.setattr(noise, "BLOCK", 64)
    return 64


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("devices", [0, DEVICES])
def test_float_noise_is_distributed_as_the_exact_noise_of_a_private_run(devices, dtype):
    """Standard normal in its moments and tails; rounded to its grid, the exact noise has the same values."""
    size, cell = 400_000, grid(1.0)
    total = float_noise(KEY, STEP, size, devices, dtype)
    assert total.dtype == dtype
    exact = torch.zeros(size)
    ExactNoise(KEY).add(STEP, [exact], [exact], 1.0, [1.0])
    assert stats.kstest(total.double().numpy(), "norm").pvalue > 1e-3
    assert stats.ks_2samp(np.rint(total.double().numpy() / cell), np.rint(exact.numpy() / cell)).pvalue > 1e-3
    for draws in (total.double().numpy(), exact.double().numpy()):
        assert abs(draws.mean()) < 4 / size**0.5
        assert abs(draws.var() - 1) < 4 * (2 / size) ** 0.5
        assert abs(stats.skew(draws)) < 4 * (6 / size) ** 0.5
        assert abs(stats.kurtosis(draws)) < 4 * (24 / size) ** 0.5
        for cut in (2 + cell / 2, 3 + cell / 2, 4 + cell / 2):  # epsilon depends on the tails
            assert stats.binomtest(int((abs(draws) > cut).sum()), size, 2 * stats.norm.sf(cut)).pvalue > 1e-3


def test_each_device_draws_noise_of_its_own():
    """N different draws, whose sum divided by sqrt(N) is the step's noise."""
    draws = np.array([stream(KEY, Purpose.DEVICE_NOISE, STEP, i).standard_normal(20_000) for i in range(DEVICES)])
    assert np.abs(np.corrcoef(draws) - np.eye(DEVICES)).max() < 5 / 20_000**0.5
    total = float_noise(KEY, STEP, 20_000, DEVICES, torch.float64)
    np.testing.assert_allclose(total, draws.sum(0) / DEVICES**0.5, rtol=0, atol=1e-14)


def test_no_two_of_key_step_and_number_of_devices_share_numbers():
    """No four consecutive numbers occur twice, so no two streams coincide, even if shifted against each other.

    Keys differ in one bit, in all 128 positions: torch would keep 32 of them.
    """
    keys = [KEY, *(KEY ^ 1 << bit for bit in range(128))]
    draws = [float_noise(key, step, 64, devices) for key in keys for step in range(8) for devices in (0, 1)]
    windows = np.lib.stride_tricks.sliding_window_view(np.array(draws), 4, axis=1).reshape(-1, 4)
    assert len(np.unique(windows, axis=0)) == len(windows)


@given(count=st.integers(0, 100), world=st.integers(1, 11))
def test_shards_are_even_and_leave_nothing_out(count, world):
    shards = [shard(count, rank, world) for rank in range(world)]
    assert [k for numbers in shards for k in numbers] == list(range(count))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


# ---- Consecutive steps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [0, DEVICES])
def test_what_is_added_is_the_steps_noise(devices):
    """With several standard deviations, added to layers that are scaled by `scale`."""
    layers = [torch.arange(200.0).double(), torch.ones(100).double()]
    draws = float_noise(KEY, 4, 300, devices, torch.float64)
    FloatNoise(KEY, devices).add(4, layers, layers, 0.75, [2.0, 0.5])
    expected = [0.75 * torch.arange(200.0) + 2 * draws[:200], 0.75 + 0.5 * draws[200:]]
    torch.testing.assert_close(torch.cat(layers), torch.cat(expected))


@pytest.mark.parametrize("source", [FloatNoise(KEY), ExactNoise(KEY, 3)])
def test_noise_is_bit_for_bit_the_same_however_the_sum_lies_in_memory(source, small_blocks):
    """In one layer or several, including sparse ones with arbitrary memory between them, for any number of threads."""
    size = 10 * small_blocks + 3
    sums = torch.randn(size)
    sums[100:499].view(57, 7)[torch.rand(57) < 0.7] = 0
    whole, out = sums.clone(), [part.clone() for part in sums.split([100, 399, size - 499])]
    layers = [out[0], out[1].view(57, 7).to_sparse(1), out[2]]
    out[1].fill_(torch.nan)
    source.add(3, [whole], [whole], 0.5, [0.3])
    source._last = -1
    source.add(3, layers, out, 0.5, [0.3] * 3)
    assert torch.equal(torch.cat(out), whole)
    if isinstance(source, ExactNoise):
        cells = (whole.double() / grid(0.3)).numpy()
        assert np.array_equal(cells, np.rint(cells))
    assert stats.kstest(((whole - 0.5 * sums) / 0.3).numpy(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("source", [GivenNoise(torch.ones(10)), FloatNoise(KEY), FloatNoise(KEY, 2), ExactNoise(KEY)])
def test_no_step_is_noised_twice(source: NoiseSource):
    layer = torch.zeros(10)
    source.add(3, [layer], [layer], 1.0, [1.0])
    for step in (2, 3):
        with pytest.raises(UsageError, match="number all steps upwards"):
            source.add(step, [layer], [layer], 1.0, [1.0])
