"""A step's noise: the same standard normal vector for any number of ranks and threads, and never drawn twice."""

import sys
import threading
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from edp_lab.errors import UsageError
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.privacy.exact_noise import grid
from edp_lab.training import noise
from edp_lab.training.config import NOISES
from edp_lab.training.noise import BLOCK, NoiseSource, Rows, Share, Span, part, standard_noise

KEY, STEP, DEVICES = key_from_seed(0), 7, 8
WORLDS = (1, 2, 3, 5)
SIZES = (1, 1000)
DTYPES = (torch.float32, torch.float64)


def shares(kind: str, size: int, world: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """What each rank draws."""
    return [standard_noise(KEY, STEP, size, Share(kind, DEVICES, rank, world), dtype) for rank in range(world)]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """So that a short vector has many."""
    monkeypatch.setattr(noise, "BLOCK", 64)
    return 64


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", NOISES)
def test_noise_sums_up_to_the_same_for_any_number_of_ranks(kind, size):
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-14)):
        (alone,) = shares(kind, size, 1, dtype)
        assert alone.dtype == dtype
        for world in WORLDS:
            drawn = sum(shares(kind, size, world, dtype))
            torch.testing.assert_close(drawn, alone, rtol=0, atol=0 if kind == "aggregate" else tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", NOISES)
def test_the_sum_over_ranks_is_distributed_as_the_rounded_noise_of_a_private_run(kind, dtype):
    """Standard normal, with the moments and tails of one; rounded to its grid, the exact noise has the same values."""
    size, cell = 400_000, grid(1.0)
    total = sum(shares(kind, size, 3, dtype)).double().numpy()
    exact = torch.zeros(size)
    NoiseSource(KEY, size, None).of(STEP).add_to([Span(slice(0, size), exact)], [1.0])
    assert stats.kstest(total, "norm").pvalue > 1e-3
    assert stats.ks_2samp(np.rint(total / cell), np.rint(exact.numpy() / cell)).pvalue > 1e-3
    for draws in (total, exact.double().numpy()):
        assert abs(draws.mean()) < 4 / size**0.5
        assert abs(draws.var() - 1) < 4 * (2 / size) ** 0.5
        assert abs(stats.skew(draws)) < 4 * (6 / size) ** 0.5
        assert abs(stats.kurtosis(draws)) < 4 * (24 / size) ** 0.5
        for cut in (2 + cell / 2, 3 + cell / 2, 4 + cell / 2):  # tails are where epsilon lives
            assert stats.binomtest(int((abs(draws) > cut).sum()), size, 2 * stats.norm.sf(cut)).pvalue > 1e-3


def test_each_device_draws_its_own_noise_and_of_shared_noise_adds_its_part():
    """Device i alone on rank i: N draws of variance 1/N, no two alike."""
    drawn = np.array([share.numpy() for share in shares("per-device", 20_000, DEVICES)])
    for one in drawn:
        assert stats.kstest(one * DEVICES**0.5, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(drawn) - np.eye(DEVICES)).max() < 5 / 20_000**0.5
    (aggregate,) = shares("aggregate", 1000, 1)
    for share in shares("shared", 1000, DEVICES):
        assert torch.equal(share, aggregate / DEVICES)


def test_no_two_of_key_step_device_and_kind_share_numbers():
    """No four numbers in a row occur twice, so that no two streams coincide, not even shifted against each other.

    Keys differ in one bit, in all 128 places: torch would keep 32 of them.
    """
    keys = [KEY, *(KEY ^ 1 << bit for bit in range(128))]
    draws = [standard_noise(key, step, 64, Share()) for key in keys for step in range(8)]
    draws += [
        5**0.5 * standard_noise(KEY, step, 64, Share("per-device", 5, r, 5)) for step in range(8) for r in range(5)
    ]
    windows = np.lib.stride_tricks.sliding_window_view(np.array(draws), 4, axis=1).reshape(-1, 4)
    assert len(np.unique(windows, axis=0)) == len(windows)


@given(count=st.integers(0, 100), world=st.integers(1, 11))
def test_parts_are_even_and_leave_nothing_out(count, world):
    parts = [part(count, rank, world) for rank in range(world)]
    assert [k for one in parts for k in one] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


# One step after the other


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 3)])
def test_what_is_added_is_the_steps_noise(kind, rank, world):
    """With several standard deviations, and to a table with few rows, whose memory may hold anything."""
    share, size = Share(kind, DEVICES, rank, world), 300
    rows, noise = torch.randn(2, 10, dtype=torch.float64), standard_noise(KEY, 4, 300, share, torch.float64)
    plain, table = torch.arange(200.0, dtype=torch.float64), torch.full((100,), torch.nan, dtype=torch.float64)
    spans = [Span(slice(0, 200), plain, 0.75), Span(slice(200, size), table, 0.25, Rows(torch.tensor([9, 3]), rows))]
    NoiseSource(KEY, size, share, torch.float64).of(4).add_to(spans, [2.0, 0.5])
    torch.testing.assert_close(plain, 0.75 * torch.arange(200.0, dtype=torch.float64) + 2 * noise[:200])
    expected = 0.5 * noise[200:].view(10, 10)
    expected[[9, 3]] += 0.25 * rows
    torch.testing.assert_close(table.view(10, 10), expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_rounded_noise_is_bit_for_bit_the_same_however_the_sum_lies_in_memory(threads, small_blocks):
    """In one span or several, with one deviation or several, a table with few rows or in full."""
    size, rows = 10 * small_blocks + 3, torch.randn(4, 20)
    table, numbers = torch.zeros(20, 20), torch.tensor([19, 0, 7, 8])
    table[numbers] = rows
    sums = torch.cat([torch.randn(100), table.flatten(), torch.randn(size - 500)])
    whole, spans = sums.clone(), []
    for columns, few in ((slice(0, 100), None), (slice(100, 500), Rows(numbers, rows)), (slice(500, size), None)):
        held = sums[columns].clone() if few is None else torch.full((400,), torch.nan)
        spans.append(Span(columns, held, 0.5, few))
    NoiseSource(KEY, size, None, threads=threads).of(3).add_to([Span(slice(0, size), whole, 0.5)], [0.3])
    NoiseSource(KEY, size, None).of(3).add_to(spans, [0.3] * 3)
    assert torch.equal(torch.cat([span.numbers for span in spans]), whole)
    cells = (whole.double() / grid(0.3)).numpy()
    assert np.array_equal(cells, np.rint(cells))
    noise = (whole - 0.5 * sums) / 0.3
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("share", [Share(), None])
def test_nothing_is_drawn_before_the_ledger_has_its_entry_and_nothing_at_all_if_it_fails(monkeypatch, share):
    entry, refused, drawn = Future(), Future(), []
    for name in ("standard_noise", "_round"):
        original = getattr(noise, name)
        monkeypatch.setattr(noise, name, lambda *a, original=original: (drawn.append(entry.done()), original(*a))[1])
    source = NoiseSource(KEY, BLOCK + 1, share, threads=3)
    spans = [Span(slice(0, BLOCK + 1), torch.zeros(BLOCK + 1))]
    refused.set_exception(UsageError("the disk is full"))
    with pytest.raises(UsageError, match="disk is full"):
        source.of(0, refused).add_to(spans, [1.0])
    assert drawn == []
    own = source.of(1, entry)
    threading.Timer(0.05, entry.set_result, [None]).start()
    own.add_to(spans, [1.0])
    assert set(drawn) == {True}


@pytest.mark.parametrize("share", [Share(), None])
def test_noise_is_used_once_and_drawn_once(share):
    source, spans = NoiseSource(KEY, 10, share), [Span(slice(0, 10), torch.zeros(10))]
    own = source.of(3)
    own.add_to(spans, [1.0])
    with pytest.raises(RuntimeError, match="used"):
        own.add_to(spans, [1.0])
    for step in (2, 3):
        with pytest.raises(UsageError, match="number all steps upwards"):
            source.of(step)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only torch for Linux brings GNU OpenMP")
def test_cores_are_released_and_products_go_on_afterwards():
    assert noise._openmp() is not None
    a = torch.randn(400, 400, generator=torch.Generator().manual_seed(0))
    before = a @ a
    for _ in range(3):
        noise.release_cores()
        assert torch.equal(a @ a, before)
