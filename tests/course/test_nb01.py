"""Notebook 01: what its panels draw and say is what mechanisms and accountants give, whatever the sliders say, and what
students get wrong is found. What holds for all panels is in `test_contract`."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from edp_lab.course.nb01_coins import compute, panels
from edp_lab.course.nb01_coins.chapter2 import (
    TABLE_2_2,
    linkage_table,
    local_and_global,
    summarise_counts,
    synthetic_voters,
)
from edp_lab.course.nb01_coins.compute import belief, composed, gaussian_count, poll
from edp_lab.errors import UsageError
from edp_lab.privacy.foundations import (
    estimate_frequencies,
    local_count_error,
    randomised_response,
    truth_probability,
)
from tests.course.conftest import prediction
from tests.course.examples import Wrong
from tests.course.test_contract import assert_readable

LN3 = math.log(3)
epsilons = st.floats(1e-3, 20)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20210501)


@given(st.floats(0.001, 0.999), epsilons)
def test_belief_is_bayes_rule_for_the_coins_own_probabilities(before: float, epsilon: float) -> None:
    truth = truth_probability(epsilon)
    yes = before * truth / (before * truth + (1 - before) * (1 - truth))
    no = before * (1 - truth) / (before * (1 - truth) + (1 - before) * truth)
    assert belief(before, epsilon) == pytest.approx(yes)
    assert belief(before, -epsilon) == pytest.approx(no)
    assert compute.exp(epsilon) == pytest.approx(truth / (1 - truth))


def test_estimates_are_those_of_the_first_responses() -> None:
    result = poll(1.1, 1000, 0.3, seed=3)
    assert (result.asked[0], result.asked[-1]) == (10, 1000)
    for place in (0, 20, -1):
        first = estimate_frequencies(result.responses[: result.asked[place]], 1.1)
        assert result.estimate[place] == first.estimate[1]
        assert result.standard_error[place] == first.standard_error[1]
        assert result.yes[place] == result.responses[: result.asked[place]].mean()


def test_people_keep_their_coins_while_epsilon_and_the_crowd_change() -> None:
    much, little = poll(0.1, 500, 0.3, seed=1), poll(3.0, 500, 0.3, seed=1)
    assert (much.truth == little.truth).all()
    lies, fewer = much.truth != much.responses, little.truth != little.responses
    assert 0 < fewer.sum() < lies.sum()
    assert not (fewer & ~lies).any()
    assert (poll(0.1, 100, 0.3, seed=1).responses == much.responses[:100]).all()
    assert (poll(0.1, 500, 0.3, seed=2).responses != much.responses).any()


def test_the_thesis_interval_is_a_little_too_narrow() -> None:
    assert compute.TRUE_COUNT == 3
    assert compute.interval_coverage(4000, seed=0) == pytest.approx((0.918, 0.886), abs=0.015)


@pytest.mark.parametrize(("epsilon", "sigma", "sensitivity"), [(LN3, math.sqrt(2), 1.0), (0.0, 1.0, 1.0), (2, 5, 8)])
def test_every_area_that_is_drawn_is_the_number_that_is_said(epsilon: float, sigma: float, sensitivity: float) -> None:
    result = gaussian_count(epsilon, sigma, sensitivity)
    assert trapezoid(result.density, result.output) == pytest.approx(1, abs=1e-3)
    above = np.maximum(result.density - result.raised, 0)
    assert trapezoid(above, result.output) == pytest.approx(result.delta, abs=2e-3)
    assert np.interp(epsilon, result.epsilons, result.deltas) == pytest.approx(result.delta, rel=0.02)
    assert np.interp(epsilon, result.epsilons, result.tails) == pytest.approx(result.tail, rel=0.02)


@given(st.floats(1e-3, 5), st.floats(0.05, 100))
def test_allowed_is_the_largest_number_within_the_total(epsilon: float, budget: float) -> None:
    result = composed(epsilon, 10, 1e-6, budget)
    for name, total in compute.accounts(epsilon, 1e-6).items():
        allowed = result.allowed[name]
        assert allowed == 0 or total(allowed) <= budget
        assert allowed == compute.COUNTABLE or total(allowed + 1) > budget


def test_figures_drawn_once_say_what_they_show() -> None:
    votes = compute.choices({"a": 5, "b": 3}, [0.2, 1.0], 100, seed=0)
    local = local_and_global([10, 100], [0.2, 1.1])
    for figure in (panels.choices_figure(votes), panels.local_figure(local)):
        assert_readable(figure)
        assert "pure" in figure.layout.title.subtitle.text


def test_table_2_2_divides_by_n() -> None:
    ours = summarise_counts(TABLE_2_2.responses)
    assert round(ours.average, 2) == TABLE_2_2.average
    assert ours.interval_dividing_by_n == pytest.approx(TABLE_2_2.interval, abs=0.006)
    # s = sqrt(10.66408 / 4), Student's t(4) at 95 % = 2.1318: 3.088 +- 1.5567
    assert ours.interval == pytest.approx((1.5313, 4.6447), abs=1e-3)
    with pytest.raises(UsageError, match="number of answers is 1"):
        summarise_counts([3.0])


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_error_of_a_local_count_is_that_of_its_estimates(share: float, rng: np.random.Generator) -> None:
    people, epsilon = 400, 1.2
    answers = (np.arange(people) < share * people).astype(int)
    responses = randomised_response(np.broadcast_to(answers, (4000, people)), epsilon, rng)
    counts = [people * estimate_frequencies(row, epsilon).estimate[1] for row in responses]
    assert np.mean(counts) == pytest.approx(share * people, abs=4 * np.std(counts) / math.sqrt(4000))
    assert np.std(counts) == pytest.approx(local_count_error(people, epsilon), rel=0.05)


@given(st.integers(3, 10**6), st.floats(1e-3, 1))
def test_from_three_people_on_the_local_count_is_the_worse_one_and_global_noise_does_not_grow(
    people: int, epsilon: float
) -> None:
    table = local_and_global([people, 4 * people], [epsilon])
    assert table.central == pytest.approx([math.sqrt(2) / epsilon])
    assert table.local[0] == pytest.approx(math.sqrt(people) * math.exp(epsilon / 2) / math.expm1(epsilon))
    assert table.local[1, 0] == pytest.approx(2 * table.local[0, 0])
    assert table.local[0, 0] > table.central[0]


def test_the_roll_identifies_no_one_in_k_anonymous_releases_but_one_thing_more_does(rng: np.random.Generator) -> None:
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


def corrected(of: Callable[[Any, float], Any]) -> Callable[[Any, float], Any]:
    """From the share of yes among the responses and the chance of a lie, an estimate."""
    return lambda responses, epsilon: of(np.mean(responses), 1 / (math.exp(epsilon) + 1))


def advanced(epsilon: float, releases: int, delta: float) -> float:
    return epsilon * math.sqrt(2 * releases * math.log(1 / delta)) + releases * epsilon * (math.exp(epsilon) - 1)


guess = partial(prediction, "01", "delta")
WRONG: dict[str, dict[str, Any]] = {
    "estimate": {
        "takes responses for truth": Wrong(corrected(lambda yes, lie: yes), "as it was heard"),
        "takes the lies off, but does not rescale": Wrong(corrected(lambda yes, lie: yes - lie), "does not divide"),
        "has two fair coins, whatever epsilon": Wrong(corrected(lambda yes, lie: 2 * yes - 1 / 2), "two fair coins"),
        "mends a negative estimate, which biases it": Wrong(
            corrected(lambda yes, lie: np.clip((yes - lie) / (1 - 2 * lie), 0, 1)), "it should be -"
        ),
        "confuses its arguments (crash)": lambda epsilon, responses: np.sum(responses) / len(responses),
    },
    "delta": {
        "a crowd hides more": Wrong(
            guess("falls", "stays", "falls", "rises"), "twice as many people: you said 'falls', but δ is "
        ),
        "sensitivity weighs more than noise": guess("falls", "rises", "stays", "rises"),
        "a smaller epsilon is all gain": guess("falls", "stays", "stays", "falls"),
    },
    "total": {
        "the plain sum only": lambda epsilon, releases, delta: epsilon * releases,
        "advanced composition always": advanced,
        "the largest instead of the least": lambda epsilon, releases, delta: max(
            epsilon * releases, advanced(epsilon, releases, delta)
        ),
        "leaves out the last release": lambda epsilon, releases, delta: min(
            epsilon * (releases - 1), advanced(epsilon, releases, delta)
        ),
        "forgets the drift": lambda epsilon, releases, delta: min(
            epsilon * releases, epsilon * math.sqrt(2 * releases * math.log(1 / delta))
        ),
    },
}
