"""Notebook 01: panels agree with the mechanisms and accountants, and wrong answers are recognised. The contract of all
panels is in `test_contract`."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from edp_lab.course.nb01_coins.panels import belief, gaussian_count, linked, poll
from edp_lab.privacy.foundations import estimate_frequencies, truth_probability
from tests.course.conftest import prediction
from tests.course.examples import Wrong

LN3 = math.log(3)


@given(st.floats(0.001, 0.999), st.floats(1e-3, 20))
def test_belief_is_bayes_rule_for_the_coins_own_probabilities(before: float, epsilon: float) -> None:
    truth = truth_probability(epsilon)
    yes = before * truth / (before * truth + (1 - before) * (1 - truth))
    no = before * (1 - truth) / (before * (1 - truth) + (1 - before) * truth)
    assert belief(before, epsilon) == pytest.approx(yes)
    assert belief(before, -epsilon) == pytest.approx(no)


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


@pytest.mark.parametrize(("epsilon", "sigma", "sensitivity"), [(LN3, math.sqrt(2), 1.0), (0.0, 1.0, 1.0), (2, 5, 8)])
def test_every_area_that_is_drawn_is_the_number_that_is_said(epsilon: float, sigma: float, sensitivity: float) -> None:
    result = gaussian_count(epsilon, sigma, sensitivity)
    assert trapezoid(result.density, result.output) == pytest.approx(1, abs=1e-3)
    above = np.maximum(result.density - result.raised, 0)
    assert trapezoid(above, result.output) == pytest.approx(result.delta, abs=2e-3)
    assert np.interp(epsilon, result.epsilons, result.deltas) == pytest.approx(result.delta, rel=0.02)
    assert np.interp(epsilon, result.epsilons, result.tails) == pytest.approx(result.tail, rel=0.02)


def test_voter_list_identifies_no_one_in_k_anonymous_releases_but_the_month_does() -> None:
    by_list, by_month = linked(1, seed=20210501)
    assert 0.25 < by_list < 0.45  # 3,000 of them in 2,920 cells: e^(-3000 / 2920) = 0.36
    assert by_month > by_list
    for k in (2, 5):
        by_list, by_month = linked(k, seed=20210501)
        assert by_list == 0
        assert by_month > 0.02


def corrected(of: Callable[[Any, float], Any]) -> Callable[[Any, float], Any]:
    """An answer that applies `of` to the share of yes among the responses and the probability of a lie."""
    return lambda responses, epsilon: of(np.mean(responses), 1 / (math.exp(epsilon) + 1))


def advanced(epsilon: float, releases: int, delta: float) -> float:
    return epsilon * math.sqrt(2 * releases * math.log(1 / delta)) + releases * epsilon * (math.exp(epsilon) - 1)


guess = partial(prediction, "01", "delta")
WRONG: dict[str, dict[str, Any]] = {
    "estimate": {
        "takes responses for truth": Wrong(corrected(lambda yes, lie: yes), "includes all lies"),
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
