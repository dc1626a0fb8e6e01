"""Votes: what counts, how often noise changes the label, and that each query keeps its promise exactly."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_delta
from edp_lab.three_phase.pate import query_epsilon
from edp_lab.three_phase.votes import NO_LABEL, Aggregator, Vote, label_probabilities, vote_counts

COUNTS = st.lists(st.integers(0, 12), min_size=2, max_size=5).filter(any).map(np.array)


def one_hot(votes: list[list[int]], classes: int = 3) -> np.ndarray:
    return np.eye(classes)[np.array(votes)]


def neighbours(counts: np.ndarray) -> list[np.ndarray]:
    """One vote moved from one class to another."""
    moved = []
    for a, b in itertools.permutations(range(len(counts)), 2):
        if counts[a]:
            other = counts.copy()
            other[a] -= 1
            other[b] += 1
            moved.append(other)
    return moved


def test_counts_are_votes_per_class():
    assert vote_counts([[0, 2], [0, 1], [1, 1]], 3).tolist() == [[2, 1, 0], [0, 2, 1]]
    for wrong in ([[0, 3]], [[-1]], [[0.5]], [0, 1], np.zeros((0, 4), int)):
        with pytest.raises(UsageError):
            vote_counts(wrong, 3)


def test_a_hard_vote_counts_heads_and_a_soft_one_weighs_them():
    probabilities = np.array([[[0.51, 0.49]], [[0.51, 0.49]], [[0.0, 1.0]]])
    assert Aggregator(Vote.HARD).labels(probabilities, np.random.default_rng(0)).tolist() == [0]
    assert Aggregator(Vote.SOFT).labels(probabilities, np.random.default_rng(0)).tolist() == [1]


def test_a_tied_hard_vote_takes_the_lowest_class():
    assert Aggregator(Vote.HARD).labels(one_hot([[2], [1]]), np.random.default_rng(0)).tolist() == [1]


def test_ten_voters_who_agree_are_often_overruled_at_the_thesis_epsilon():
    """T13: at 0.2 per query a unanimous label survives 26 % (2 / epsilon) or 50 % (1 / epsilon) of the time."""
    unanimous = np.array([10] + 9 * [0])
    sound = label_probabilities(unanimous, Aggregator.for_epsilon("laplace", 0.2, 1e-5, 10))
    assert sound[0] == pytest.approx(0.257, abs=5e-4)
    assert label_probabilities(unanimous, Aggregator(Vote.LAPLACE, 5.0))[0] == pytest.approx(0.499, abs=5e-4)
    assert sound[1:] == pytest.approx([(1 - sound[0]) / 9] * 9)


@pytest.mark.parametrize("vote", [Vote.LAPLACE, Vote.GAUSSIAN])
def test_labels_come_out_as_often_as_computed(vote):
    counts = [5, 3, 2]
    aggregator = Aggregator(vote, 3.0)
    votes = np.repeat(one_hot([[label] for label in np.repeat(range(3), counts)]), 20_000, axis=1)
    found = np.bincount(aggregator.labels(votes, np.random.default_rng(1)), minlength=3)
    assert stats.chisquare(found, 20_000 * label_probabilities(counts, aggregator)).pvalue > 1e-4


def test_label_probabilities_have_closed_forms_for_two_classes():
    """P[Laplace difference > -g] = 1 - (2 + g) / (4 e^g), and a normal difference has deviation sqrt(2) sigma."""
    for gap in (0.0, 0.3, 4.0, 30.0):
        laplace = label_probabilities([gap * 2, 0], Aggregator(Vote.LAPLACE, 2.0))
        assert laplace[1] == pytest.approx((2 + gap) / (4 * math.exp(gap)), rel=1e-10)
        gaussian = label_probabilities([gap * 2, 0], Aggregator(Vote.GAUSSIAN, 2.0))
        assert gaussian[1] == pytest.approx(stats.norm.sf(gap / math.sqrt(2)), rel=1e-6, abs=1e-15)


@settings(deadline=None, max_examples=40)
@given(COUNTS, st.floats(0.05, 50))
def test_label_probabilities_sum_to_one_and_favour_the_winner(counts, noise):
    for vote in (Vote.LAPLACE, Vote.GAUSSIAN):
        chances = label_probabilities(counts, Aggregator(vote, noise))
        assert chances.sum() == pytest.approx(1, abs=1e-12)
        assert (np.diff(chances[np.argsort(counts, kind="stable")]) >= -1e-12).all()


@settings(deadline=None, max_examples=40)
@given(COUNTS, st.floats(0.05, 3))
def test_a_query_keeps_its_epsilon_exactly(counts, epsilon):
    """No neighbour makes any set of labels more than e^epsilon times as likely (Gaussian: + delta)."""
    for vote in (Vote.LAPLACE, Vote.GAUSSIAN):
        aggregator = Aggregator.for_epsilon(vote, epsilon, 1e-3, 10)
        chances = label_probabilities(counts, aggregator)
        for other in neighbours(counts):
            excess = np.maximum(chances - math.exp(epsilon) * label_probabilities(other, aggregator), 0).sum()
            assert excess <= (1e-12 if vote is Vote.LAPLACE else 1e-3)


def test_half_the_laplace_noise_would_break_the_promise():
    """1 / epsilon is enough only if no vote moves to another class: neighbours here move one."""
    counts, moved = np.array([60, 0]), np.array([59, 1])
    halved = Aggregator(Vote.LAPLACE, 1 / 0.2)
    one, two = (label_probabilities(c, halved)[1] for c in (moved, counts))
    assert one > math.exp(0.2) * two * 1.1


@pytest.mark.parametrize("vote", ["laplace", "gaussian", "confident"])
@pytest.mark.parametrize("epsilon", [0.05, 0.2, 3.0])
def test_noise_is_calibrated_to_the_epsilon_of_a_query(vote, epsilon):
    aggregator = Aggregator.for_epsilon(vote, epsilon, 1e-5, 250)
    assert query_epsilon(aggregator, 1e-5) == pytest.approx(epsilon, rel=1e-6)


def test_gaussian_votes_are_calibrated_to_the_distance_that_one_vote_can_move():
    gaussian = Aggregator.for_epsilon("gaussian", 0.5, 1e-5, 250)
    assert gdp_delta(math.sqrt(2) / gaussian.noise, 0.5) == pytest.approx(1e-5, rel=1e-6)
    confident = Aggregator.for_epsilon("confident", 0.5, 1e-5, 250)
    mu = math.sqrt(2 / confident.noise**2 + 1 / confident.threshold_noise**2)
    assert gdp_delta(mu, 0.5) == pytest.approx(1e-5, rel=1e-6)
    assert (confident.threshold, confident.threshold_noise / confident.noise) == (200, 150 / 40)


def test_a_confident_vote_answers_where_instructors_agree():
    agree, differ = 200 * [[1, 0]], 100 * [[0, 1]]
    votes = one_hot(np.concatenate([agree, [[1, 2]] * 40, differ]).tolist(), 3)
    aggregator = Aggregator(Vote.CONFIDENT, noise=5.0, threshold=220, threshold_noise=3.0)
    assert aggregator.labels(votes, np.random.default_rng(0)).tolist() == [1, NO_LABEL]


def test_one_draw_never_serves_two_queries():
    votes = np.repeat(one_hot([[0], [1], [2]]), 200, axis=1)
    for vote in (Vote.LAPLACE, Vote.GAUSSIAN):
        assert len(set(Aggregator(vote, 1.0).labels(votes, np.random.default_rng(0)).tolist())) == 3


@pytest.mark.parametrize("epsilon", [0, -1.0, math.inf, math.nan])
def test_an_impossible_epsilon_is_refused(epsilon):
    for vote in ("laplace", "gaussian", "confident"):
        with pytest.raises(UsageError, match="epsilon"):
            Aggregator.for_epsilon(vote, epsilon, 1e-5, 10)
    assert Aggregator.for_epsilon("hard", epsilon, 1e-5, 10) == Aggregator(Vote.HARD)


def test_noise_that_does_not_fit_the_vote_is_refused():
    wrong = [("laplace", 0.0), ("hard", 1.0), ("gaussian", math.inf), ("gaussian", 1.0, 3.0, 1.0), ("confident", 1.0)]
    for arguments in wrong:
        with pytest.raises(UsageError, match="noise"):
            Aggregator(*arguments)
    with pytest.raises(UsageError, match="choose hard, soft, laplace, gaussian, confident"):
        Aggregator("loud", 1.0)
    with pytest.raises(UsageError, match="no noise"):
        label_probabilities([1, 2], Aggregator("soft"))
