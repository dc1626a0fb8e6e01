"""Chapter 2 of the thesis as data: the printed values give themselves back, ours have the stated distribution."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from edp_lab.errors import UsageError
from edp_lab.privacy.foundations import estimate_frequencies, local_count_error, randomised_response
from edp_lab.reproduce.thesis.thesis_foundations import (
    TABLE_2_2,
    linkage_table,
    local_and_global,
    loss_figures,
    noisy_counts,
    summarise_counts,
    synthetic_voters,
)
from edp_lab.three_phase.perturbation import printed_sigma


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20210501)


def test_table_2_2_divides_by_n_and_the_printed_sigma_goes_on_above_1():
    ours = summarise_counts(TABLE_2_2.responses)
    assert round(ours.average, 2) == TABLE_2_2.average
    assert ours.interval_dividing_by_n == pytest.approx(TABLE_2_2.interval, abs=0.006)
    # s = sqrt(10.66408 / 4), Student's t(4) at 95 % = 2.1318: 3.088 +- 1.5567
    assert ours.interval == pytest.approx((1.5313, 4.6447), abs=1e-3)
    with pytest.raises(UsageError, match="number of answers is 1"):
        summarise_counts([3.0])
    assert printed_sigma(0.5, 1e-5) == pytest.approx(math.sqrt(2 * math.log(125000)) / 0.5)
    assert printed_sigma(7, 1e-5) == pytest.approx(0.6921, abs=1e-4)


def test_intervals_for_a_mean_cover_it_as_often_as_they_say(rng):
    counts = [noisy_counts(rng) for _ in range(500)]
    right = np.mean([c.interval[0] < 3 < c.interval[1] for c in counts])
    narrow = np.mean([c.interval_dividing_by_n[0] < 3 < c.interval_dividing_by_n[1] for c in counts])
    assert right > 0.86
    assert narrow < right - 0.02


def test_the_loss_figures_are_two_densities_whose_bad_events_are_the_tail_and_their_excess_delta():
    figures = loss_figures(points=20_001)
    assert figures.density == pytest.approx(stats.norm(1000, math.sqrt(2)).pdf(figures.output))
    assert figures.density_neighbour == pytest.approx(stats.norm(1001, math.sqrt(2)).pdf(figures.output))
    outcome = stats.norm(1000, math.sqrt(2)).ppf(figures.probability)
    ratio = stats.norm(1000, math.sqrt(2)).pdf(outcome) / stats.norm(1001, math.sqrt(2)).pdf(outcome)
    assert figures.loss_ratio == pytest.approx(ratio)
    assert (np.diff(figures.loss_ratio) < 0).all()  # the line that reaches infinity is the left one
    bad = figures.loss_ratio > 3
    assert bad.mean() == pytest.approx(figures.tail, abs=1e-4)
    assert figures.tail == pytest.approx(0.1150, abs=1e-4)
    excess = np.where(bad, 1 - 3 / figures.loss_ratio, 0)
    assert excess.mean() == pytest.approx(figures.delta, abs=1e-4)
    gap = np.maximum(figures.density - 3 * figures.density_neighbour, 0)
    assert integrate.trapezoid(gap, figures.output) == pytest.approx(figures.delta, abs=1e-3)
    with pytest.raises(UsageError, match="variance is 0"):
        loss_figures(0)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_error_of_a_local_count_is_that_of_its_estimates(share, rng):
    people, epsilon = 400, 1.2
    answers = (np.arange(people) < share * people).astype(int)
    responses = randomised_response(np.broadcast_to(answers, (4000, people)), epsilon, rng)
    counts = [people * estimate_frequencies(row, epsilon).estimate[1] for row in responses]
    assert np.mean(counts) == pytest.approx(share * people, abs=4 * np.std(counts) / math.sqrt(4000))
    assert np.std(counts) == pytest.approx(local_count_error(people, epsilon), rel=0.05)


@given(st.integers(3, 10**6), st.floats(1e-3, 1))
def test_from_three_people_on_the_local_count_is_the_worse_one_and_global_noise_does_not_grow(people, epsilon):
    table = local_and_global([people, 4 * people], [epsilon])
    assert table.central == pytest.approx([math.sqrt(2) / epsilon])
    assert table.local[0] == pytest.approx(math.sqrt(people) * math.exp(epsilon / 2) / math.expm1(epsilon))
    assert table.local[1, 0] == pytest.approx(2 * table.local[0, 0])
    assert table.local[0, 0] > table.central[0]


def test_the_roll_identifies_no_one_in_k_anonymous_releases_but_one_thing_more_does(rng):
    table = linkage_table(synthetic_voters(rng), (1, 2, 5))
    plain, *anonymous = table.rows
    assert plain.levels == (0, 0, 0)
    assert 0.25 < plain.identified < 0.45  # 1500 of 3000 equals in 2920 cells: e^(-3000 / 2920) = 0.36
    for row in anonymous:
        assert row.identified == 0
        assert row.suppressed <= 0.05
        assert row.identified_with_month > 0.02
    assert table.shown.shape == table.shown_k.shape == (10, 3)
    assert (table.shown != table.shown_k).any()
