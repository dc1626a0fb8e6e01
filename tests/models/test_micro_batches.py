"""How rows are cut into blocks, and squared norms of products and of table rows, against the explicit gradients."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edp_lab.models.ghost_clipping.bookkeeping import LARGEST, SIMILAR, LinearUse, LookupUse, MicroBatches

CPU = torch.device("cpu")

# Blocks


@st.composite
def cuts(draw) -> tuple[list[int], list[int] | None]:
    """Sizes of micro-batches, and the rows of each of their examples, or None: one each."""
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))
    if draw(st.booleans()):
        return sizes, None
    return sizes, draw(st.lists(st.integers(0, 30), min_size=sum(sizes), max_size=sum(sizes)))


@given(cuts(), st.sampled_from([1, 7, LARGEST // 20, LARGEST, 2 * LARGEST]))
def test_blocks_hold_every_row_of_every_micro_batch_once(cut_and_rows, width):
    sizes, each = cut_and_rows
    rows = None if each is None else torch.tensor(each, dtype=torch.long)
    cut = MicroBatches.of(sizes, CPU)
    bounds = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    counts = [sum([1] * (b - a) if each is None else each[a:b]) for a, b in pairwise(bounds)]
    first = [sum(counts[:m]) for m in range(len(counts))]
    seen = []
    for block in cut.blocks(rows, width):
        own = [counts[m] for m in block.numbers.tolist()]
        assert block.rows.shape[1] <= SIMILAR * min(own) + 1
        assert len(own) == 1 or block.rows.numel() * width <= LARGEST
        for m, row in zip(block.numbers.tolist(), block.rows.tolist(), strict=True):
            seen.append(m)
            assert row[: counts[m]] == list(range(first[m], first[m] + counts[m]))
            assert set(row[counts[m] :]) <= {sum(counts)}, "padding must point at the row of zeros"
    assert sorted(seen) == [m for m, count in enumerate(counts) if count]


@given(cuts())
def test_spread_gives_each_row_the_value_of_its_micro_batch(cut_and_rows):
    sizes, each = cut_and_rows
    rows = None if each is None else torch.tensor(each, dtype=torch.long)
    owner = [m for m, size in enumerate(sizes) for _ in range(size)]
    expected = [m for k, m in enumerate(owner) for _ in range(1 if each is None else each[k])]
    assert MicroBatches.of(sizes, CPU).numbers(rows).tolist() == expected


def test_blocks_of_two_row_counts_are_not_confused():
    """They are remembered per tensor of row counts, whose place in memory another may take over."""
    cut = MicroBatches.of([1, 1], CPU)
    for counts in ([2, 3], [4, 1], [1, 1], [3, 2]) * 5:
        blocks = cut.blocks(torch.tensor(counts), 1)
        assert sorted(set(torch.cat([b.rows.flatten() for b in blocks]).tolist()) - {sum(counts)}) == list(
            range(sum(counts))
        )


# Norms of products and of table rows


@settings(deadline=None)
@given(cuts(), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 2**32))
def test_squared_norms_of_products_equal_the_explicit_product(cut_and_rows, inputs, outputs, single, seed):
    """Few rows and many numbers: by Gram matrices; many rows: by the product; bias and weight, empty micro-batches."""
    sizes, each = cut_and_rows
    rows, cut = None if each is None else torch.tensor(each, dtype=torch.long), MicroBatches.of(sizes, CPU)
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if single else torch.float64
    count = sum(sizes) if each is None else sum(each)
    d, x = (torch.randn(count, n, dtype=dtype, generator=generator) for n in (outputs, inputs))
    weight, bias = nn.Parameter(torch.zeros(outputs, inputs)), nn.Parameter(torch.zeros(outputs))
    found = LinearUse(weight, bias, x, d, rows).squared_norms(cut)
    for m, own in enumerate(cut.slices(rows)):
        own_d, own_x = d[own].double(), x[own].double()
        tolerance = {"rtol": 1e-5 if single else 1e-11, "atol": 1e-3 if single else 1e-9}
        torch.testing.assert_close(found[0][m], (own_d.T @ own_x).square().sum(), **tolerance)
        torch.testing.assert_close(found[1][m], own_d.sum(0).square().sum(), **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gram_matrices_are_the_same_by_the_compiled_loop_and_by_a_product(dtype):
    """The loop for a CPU reads rows where they lie, of one of several parts; a GPU gathers them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, 3, 50, dtype=dtype, generator=generator)
    [block] = MicroBatches.of([1, 1, 1], CPU).blocks(torch.tensor([4, 4, 5]), 1)
    for part in range(3):
        own = block.gather(x[:, part])
        torch.testing.assert_close(block.gram(x, part), own @ own.mT, rtol=1e-13, atol=1e-13)
    assert block.gram(x, 1)[:2, -1].count_nonzero() == 0, "padding has products of zero"


@pytest.mark.parametrize("counts", [[3, 3], [2, 1], [1, 2, 2]])
def test_micro_batches_of_other_rows_than_there_are_are_refused(counts):
    """A compiled loop would read whatever lies behind them."""
    block = MicroBatches.of([1] * len(counts), CPU).blocks(torch.tensor(counts), 1)[0]
    for use in (block.gram, block.gather, block.squares_of_sums):
        with pytest.raises(ValueError, match=f"hold {sum(counts)} rows, but 4 are given"):
            use(torch.zeros(4, 200))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_biass_norm_keeps_what_is_left_where_rows_cancel(dtype):
    """The Gram matrix's terms are 2^54 times as large as their sum, which float64 would lose."""
    big = torch.full((1, 100), 2.0**27, dtype=dtype)
    d = torch.cat([big, -big, torch.zeros(1, 100, dtype=dtype)])
    d[2, 0] = 8
    weight, bias = (nn.Parameter(torch.zeros(*shape)) for shape in ((100, 100), (100,)))
    squares = LinearUse(weight, bias, torch.ones(3, 100, dtype=dtype), d, torch.tensor([3])).squared_norms(
        MicroBatches.of([1], CPU)
    )
    assert float(squares[1][0]) == 64


@pytest.mark.parametrize(("steps", "short"), [(2, True), (4, True), (5, False), (30, False)])
def test_gram_matrices_are_used_where_they_are_less_work(steps, short):
    [block] = MicroBatches.of([1], CPU).blocks(torch.tensor([steps]), 1)
    assert block.short(20, 20) == short


@settings(deadline=None)
@given(cuts(), st.integers(1, 5), st.sampled_from([(), (1,), (3,)]), st.integers(0, 2**32))
def test_lookups_of_repeated_ids_equal_the_explicit_table(cut_and_rows, height, shape, seed):
    sizes, each = cut_and_rows
    count = sum(sizes) if each is None else sum(each)
    if not count:
        return
    generator = torch.Generator().manual_seed(seed)
    table = nn.Parameter(torch.zeros(height, 2, dtype=torch.float64))
    ids = torch.randint(height, (count, *shape), generator=generator)
    d = torch.randn(count, *shape, 2, dtype=torch.float64, generator=generator)
    rows, cut = None if each is None else torch.tensor(each), MicroBatches.of(sizes, CPU)
    use = LookupUse(table, ids, d, rows)
    expected = torch.zeros(len(sizes), height, 2, dtype=torch.float64)
    for row, m in enumerate(cut.numbers(rows).tolist()):
        expected[m].index_add_(0, ids[row].flatten(), d[row].reshape(-1, 2))
    torch.testing.assert_close(use.squared_norms(cut)[0], expected.square().sum((1, 2)), rtol=1e-12, atol=1e-12)
    factors = torch.rand(len(sizes), dtype=torch.float64, generator=generator)
    for weight in (factors, None):
        out = torch.zeros_like(table)
        use.add_sum(lambda _, out=out: out, cut, weight)
        whole = expected if weight is None else expected * weight[:, None, None]
        torch.testing.assert_close(out, whole.sum(0), rtol=0, atol=1e-12)
