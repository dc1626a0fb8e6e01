"""Each way to bound a gradient keeps the sensitivity that it states, and no smaller one would do."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edp_lab.errors import UsageError
from edp_lab.three_phase.clipping import RULES, as_printed, by_norm, by_value, clipped_mean, normalising

PRIVATE = ("by norm", "by value", "normalising")
SIZE = 7


@st.composite
def gradients(draw: st.DrawFn) -> torch.Tensor:
    """(3, 7) of any length from 0 to 1e300, whose squares underflow and overflow."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    lengths = draw(st.lists(st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 0.3, 1.0, 5.0, 1e300]), min_size=3, max_size=3))
    return (
        torch.randn(3, SIZE, dtype=torch.float64, generator=generator)
        * torch.tensor(lengths, dtype=torch.float64)[:, None]
    )


@pytest.mark.parametrize("name", PRIVATE)
@given(rows=gradients(), threshold=st.sampled_from([1e-3, 1.0, 40.0]))
def test_no_example_moves_the_sum_by_more_than_the_sensitivity(name: str, rows: torch.Tensor, threshold: float):
    rule = RULES[name]
    moved = rule.clip(rows, threshold).sum(0) - rule.clip(rows[1:], threshold).sum(0)
    assert float(moved.norm()) <= rule.sensitivity(threshold, SIZE) * (1 + 1e-9)


@pytest.mark.parametrize("name", PRIVATE)
def test_the_sensitivity_is_reached(name: str):
    clipped = RULES[name].clip(torch.full((1, SIZE), 100.0), 2.0)
    assert float(clipped.norm()) == pytest.approx(RULES[name].sensitivity(2.0, SIZE), rel=1e-6)


def test_rules_by_hand_of_which_the_printed_one_bounds_nothing_and_enlarges_the_small():
    rows = torch.tensor([[3.0, -4.0], [0.3, 0.4], [0.0, 0.0]])
    assert by_norm(rows, 1.0).tolist() == [pytest.approx([0.6, -0.8]), pytest.approx([0.3, 0.4]), [0.0, 0.0]]
    assert by_value(rows, 1.0).tolist() == [[1.0, -1.0], pytest.approx([0.3, 0.4]), [0.0, 0.0]]
    assert normalising(rows, 1.0).tolist() == [pytest.approx([0.6, -0.8]), pytest.approx([0.6, 0.8]), [0.0, 0.0]]
    assert by_norm(rows, 1.0).dtype == torch.float32
    rows = torch.tensor([[3e5, 4e5], [0.3, 0.4], [0.0, 0.0]])
    assert as_printed(rows, 1.0).tolist() == [[3e5, 4e5], pytest.approx([0.6, 0.8]), [0.0, 0.0]]
    assert RULES["as printed"].sensitivity(1.0, 2) == math.inf


@pytest.mark.parametrize("size", [2, 2000])
def test_one_example_turns_a_clipped_mean_around_however_many_there_are(size: int):
    """T8: 2 C, where the mean of clipped gradients moves by C / B."""
    rows = torch.zeros(size, 3)
    rows[:, 0] = 1e3
    other = rows.clone()
    other[0, 0] = -1e9
    assert float((clipped_mean(rows, 0.5) - clipped_mean(other, 0.5)).norm()) == pytest.approx(1.0)
    assert float((by_norm(rows, 0.5).mean(0) - by_norm(other, 0.5).mean(0)).norm()) == pytest.approx(
        1.0 / size, rel=1e-4
    )


@pytest.mark.parametrize("name", RULES)
def test_what_cannot_be_clipped_is_refused(name: str):
    for bad in (math.nan, math.inf):
        with pytest.raises(UsageError, match="a gradient is not finite"):
            RULES[name].clip(torch.tensor([[1.0, bad]]), 1.0)
    for threshold in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="the clip threshold is"):
            RULES[name].clip(torch.ones(1, 2), threshold)
