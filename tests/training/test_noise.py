"""A step's noise: the same standard normal vector however many ranks and threads draw it, and never drawn twice."""

import itertools
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
from edp_lab.training.noise import BLOCK, DrawnNoise, NoiseSource, Rows, Share, Span, part, standard_noise

KEY, STEP, DEVICES = key_from_seed(0), 7, 8
WORLDS = (1, 2, 3, 5)
SIZES = (1, 1000, BLOCK, BLOCK + 1, 3 * BLOCK + 5)
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
@pytest.mark.parametrize("dtype", DTYPES)
def test_aggregate_noise_is_bit_for_bit_the_same_whatever_the_number_of_ranks(size, dtype):
    (alone,) = shares("aggregate", size, 1, dtype)
    assert alone.dtype == dtype
    for world in WORLDS:
        drawn = shares("aggregate", size, world, dtype)
        assert torch.equal(sum(drawn), alone)
        for one, other in itertools.combinations(drawn, 2):
            assert not (one * other).any()  # each number is drawn by one rank only


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["per-device", "shared"])
def test_per_device_and_shared_noise_sum_up_to_the_same_whatever_the_number_of_ranks(kind, size):
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-14)):
        (alone,) = shares(kind, size, 1, dtype)
        for world in WORLDS:
            torch.testing.assert_close(sum(shares(kind, size, world, dtype)), alone, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", NOISES)
def test_the_sum_over_ranks_is_standard_normal(kind, dtype):
    total = sum(shares(kind, 3 * BLOCK + 5, 3, dtype)).double().numpy()
    assert stats.kstest(total, "norm").pvalue > 1e-3
    assert total.var() == pytest.approx(1, abs=4 * (2 / len(total)) ** 0.5)
    for size in (1000, BLOCK + 1000):  # and where the blocks join
        assert stats.kstest(total[size - 1000 : size], "norm").pvalue > 1e-3


def test_each_device_draws_its_own_and_of_shared_noise_adds_its_part():
    """Device i alone on rank i: N draws of variance 1/N, no two alike."""
    drawn = np.array([share.numpy() for share in shares("per-device", 20_000, DEVICES)])
    for own in drawn:
        assert stats.kstest(own * DEVICES**0.5, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(drawn) - np.eye(DEVICES)).max() < 5 / 20_000**0.5
    (aggregate,) = shares("aggregate", BLOCK + 1, 1)
    assert torch.equal(aggregate, *shares("shared", BLOCK + 1, 1))
    for share in shares("shared", BLOCK + 1, DEVICES):
        assert torch.equal(share, aggregate / DEVICES)


def test_no_two_of_step_block_device_and_kind_share_numbers(small_blocks):
    """No four numbers in a row occur twice, so that no two streams coincide, not even shifted against each other."""
    blocks, steps = 6, 8
    places = {}
    for step in range(steps):
        for device, share in enumerate([Share(), *(Share("per-device", 5, rank, 5) for rank in range(5))]):
            drawn = standard_noise(KEY, step, blocks * small_blocks, share).double() * share.num_devices**0.5
            for block, own in enumerate(drawn.float().numpy().reshape(blocks, small_blocks)):
                places[step, device, block] = own
    draws = np.array(list(places.values()))
    assert len(draws) == steps * 6 * blocks
    windows = np.lib.stride_tricks.sliding_window_view(draws, 4, axis=1).reshape(-1, 4)
    assert len(np.unique(windows, axis=0)) == len(windows)
    assert np.abs(np.corrcoef(draws) - np.eye(len(draws))).max() < 6.5 / small_blocks**0.5


@given(count=st.integers(0, 100), world=st.integers(1, 11))
def test_parts_are_even_and_leave_nothing_out(count, world):
    parts = [part(count, rank, world) for rank in range(world)]
    assert [k for one in parts for k in one] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


# One step after the other

AHEAD = pytest.mark.parametrize("ahead", [False, True])


@AHEAD
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 3)])
def test_what_is_added_is_the_steps_noise_whoever_draws_it(kind, threads, ahead, rank, world, small_blocks):
    """With one deviation for all, and with one for each of several spans that end within blocks."""
    share, size = Share(kind, DEVICES, rank, world), 10 * small_blocks + 3
    source = NoiseSource(KEY, size, share, torch.float64, threads, ahead)
    for step, spans in enumerate(
        [[(slice(0, size), 0.5)], [(slice(0, 5), 1.0), (slice(5, 200), 2.0), (slice(200, size), 0.0)]]
    ):
        out, drawn = (torch.arange(size, dtype=torch.float64) for _ in range(2))
        stds, noise = [std for _, std in spans], standard_noise(KEY, step, size, share, torch.float64)
        source.of(step).add_to([Span(columns, out[columns], 0.75) for columns, _ in spans], stds)
        DrawnNoise(noise).add_to([Span(columns, drawn[columns], 0.75) for columns, _ in spans], stds)
        std = torch.cat([torch.full((c.stop - c.start,), s, dtype=torch.float64) for c, s in spans])
        for added in (out, drawn):
            torch.testing.assert_close(added, 0.75 * torch.arange(size) + std * noise, rtol=1e-13, atol=1e-13)


@AHEAD
@pytest.mark.parametrize("world", [1, 3])
def test_of_a_table_with_few_rows_what_stands_there_is_overwritten(ahead, world, small_blocks):
    """Memory that nobody has cleared may hold anything. Rows end within blocks."""
    share, size = Share("aggregate", DEVICES, 0, world), 21 * 10
    out, rows = torch.full((size,), torch.nan, dtype=torch.float64), torch.randn(3, 21, dtype=torch.float64)
    span = Span(slice(0, size), out, 0.25, Rows(torch.tensor([9, 3, 6]), rows))
    NoiseSource(KEY, size, share, torch.float64, 2, ahead).of(0).add_to([span], [0.5])
    expected = 0.5 * standard_noise(KEY, 0, size, share, torch.float64).view(-1, 21)
    expected[[9, 3, 6]] += 0.25 * rows
    torch.testing.assert_close(out.view(-1, 21), expected, rtol=1e-13, atol=1e-13)


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


@pytest.mark.parametrize(("share", "ahead"), [(Share(), False), (Share(), True), (None, False)])
def test_nothing_is_drawn_before_the_ledger_has_its_entry_and_nothing_at_all_where_it_fails(monkeypatch, share, ahead):
    entry, refused, drawn = Future(), Future(), []
    for name in ("_fill", "_round"):
        original = getattr(noise, name)
        monkeypatch.setattr(noise, name, lambda *a, original=original: (drawn.append(entry.done()), original(*a)))
    source = NoiseSource(KEY, BLOCK + 1, share, threads=3, ahead=ahead)
    spans = [Span(slice(0, BLOCK + 1), torch.zeros(BLOCK + 1))]
    refused.set_exception(UsageError("the disk is full"))
    with pytest.raises(UsageError, match="disk is full"):
        source.of(0, refused).add_to(spans, [1.0])
    assert drawn == []
    own = source.of(1, entry)
    threading.Timer(0.05, entry.set_result, [None]).start()
    own.add_to(spans, [1.0])
    assert drawn == [True, True]


@pytest.mark.parametrize(("share", "ahead"), [(Share(), False), (Share(), True), (None, False)])
def test_noise_is_used_once_and_drawn_once(share, ahead):
    source, spans = NoiseSource(KEY, 10, share, ahead=ahead), [Span(slice(0, 10), torch.zeros(10))]
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
