"""Committed measurements: what is shown of an epsilon is never less than it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edp_lab.privacy.guarantee import upward


def test_bounds_are_rounded_up():
    assert [upward(1361448860.0, 2), upward(20.221), upward(8.0), upward(7.9999)] == ["1.4e+09", "20.3", "8", "8"]


@given(st.floats(1e-9, 1e30), st.integers(1, 9))
def test_a_bound_that_is_shown_is_one_and_hardly_larger(epsilon, digits):
    assert epsilon <= float(upward(epsilon, digits)) * (1 + 1e-15) <= epsilon * (1 + 10 ** (1 - digits)) * (1 + 1e-12)
