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
from edp_lab.course.nb01_coins.compute import belief, composed, gaussian_count, poll
from edp_lab.privacy.foundations import estimate_frequencies, truth_probability
from edp_lab.reproduce.thesis.thesis_foundations import local_and_global
from tests.course.conftest import prediction
from tests.course.examples import Wrong
from tests.course.test_contract import assert_readable

LN3 = math.log(3)
epsilons = st.floats(1e-3, 20)


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
