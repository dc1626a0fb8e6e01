"""Changes with intervals: against scipy's t-test, and Holm's correction by hand."""

import pytest
from scipy.special import stdtrit
from scipy.stats import ttest_1samp

from edp_lab.reproduce.chance import Change, beyond_chance


def test_interval_and_p_are_those_of_a_t_test_on_paired_changes() -> None:
    before, after = [10.0, 12.0, 11.0], [9.0, 11.5, 9.5]
    test = ttest_1samp([100 * (b / a - 1) for a, b in zip(before, after, strict=True)], 0.0)
    change = Change.of(before, after)
    low, high = test.confidence_interval()
    assert (change.mean - change.half_width, change.mean + change.half_width) == pytest.approx((low, high))
    assert change.p == pytest.approx(test.pvalue)
    assert change.falls is bool(high < 0)
    cell = {"ser_change": {"mean": change.mean, "low": low, "high": high}, "seeds": 3}
    assert Change.read(cell, "ser_change").p == pytest.approx(change.p)


def test_holms_correction_asks_more_of_the_smallest_p_and_stops_at_the_first_that_misses() -> None:
    def with_p(p: float) -> Change:
        return Change(-1.0, float(stdtrit(2, 0.975) / -stdtrit(2, p / 2)))

    changes = [with_p(p) for p in (0.03, 0.01, 0.02)]
    assert [change.p for change in changes] == pytest.approx([0.03, 0.01, 0.02])
    assert beyond_chance(changes) == [True, True, True]
    assert beyond_chance([*changes, with_p(0.9)]) == [False, True, False, False]
    assert beyond_chance([with_p(0.02)] * 3) == [False] * 3
