"""Votes: how often noise changes a label, the exact guarantee of each query, and the cost of many queries."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_delta
from edp_lab.three_phase.votes import (
    PRIVATE,
    Aggregator,
    Vote,
    account_votes,
    composed_epsilons,
    label_probabilities,
    partition_cost,
    query_epsilon,
    vote_counts,
)
from tests.privacy.test_calibration import worst_case_delta
from tests.privacy.test_guarantee import exact_delta

COUNTS = st.lists(st.integers(0, 12), min_size=2, max_size=5).filter(any).map(np.array)
DELTA = 1e-5
RNG = partial(np.random.default_rng, 0)


def neighbours(counts: np.ndarray) -> list[np.ndarray]:
    """Counts in which one vote has moved to another class."""
    moved = []
    for a, b in itertools.permutations(range(len(counts)), 2):
        if counts[a]:
            other = counts.copy()
            other[a] -= 1
            other[b] += 1
            moved.append(other)
    return moved


def test_votes_are_counted_and_their_noise_is_drawn_one_by_one():
    assert vote_counts([[0, 2], [0, 1], [1, 1]], 3).tolist() == [[2, 1, 0], [0, 2, 1]]
    counts = np.array([[2, 1, 0], [0, 1, 1]])  # ties: the lowest class wins
    assert Aggregator(Vote.HARD).labels(counts, RNG()).tolist() == [0, 1]
    for vote in PRIVATE:
        assert len(set(Aggregator(vote, 1.0).labels(np.ones((200, 3), int), RNG()).tolist())) == 3


@pytest.mark.parametrize("vote", [Vote.LAPLACE, Vote.GAUSSIAN])
def test_labels_come_out_as_often_as_computed(vote):
    counts = [5, 3, 2]
    aggregator = Aggregator(vote, 3.0)
    labels = aggregator.labels(np.tile(counts, (20_000, 1)), np.random.default_rng(1))
    found = np.bincount(labels, minlength=3)
    assert stats.chisquare(found, 20_000 * label_probabilities(counts, aggregator)).pvalue > 1e-4


def test_label_probabilities_have_closed_forms_for_two_classes():
    """P[Laplace difference > -g] = 1 - (2 + g) / (4 e^g); a normal difference has standard deviation sqrt(2) sigma."""
    for gap in (0.0, 0.3, 4.0, 30.0):
        laplace = label_probabilities([gap * 2, 0], Aggregator(Vote.LAPLACE, 2.0))
        assert laplace[1] == pytest.approx((2 + gap) / (4 * math.exp(gap)), rel=1e-10)
        gaussian = label_probabilities([gap * 2, 0], Aggregator(Vote.GAUSSIAN, 2.0))
        assert gaussian[1] == pytest.approx(stats.norm.sf(gap / math.sqrt(2)), rel=1e-6, abs=1e-15)


@settings(max_examples=40)
@given(COUNTS, st.floats(0.05, 3))
def test_a_query_keeps_its_epsilon_exactly(counts, epsilon):
    """No neighbour makes a set of labels more than e^epsilon times as likely (Gaussian noise: plus delta)."""
    for vote in (Vote.LAPLACE, Vote.GAUSSIAN):
        aggregator = Aggregator.for_epsilon(vote, epsilon, 1e-3)
        chances = label_probabilities(counts, aggregator)
        for other in neighbours(counts):
            excess = np.maximum(chances - math.exp(epsilon) * label_probabilities(other, aggregator), 0).sum()
            assert excess <= (1e-12 if vote is Vote.LAPLACE else 1e-3)


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 3.0])
def test_noise_is_calibrated_to_the_epsilon_of_a_query_and_the_distance_that_one_vote_can_move(epsilon):
    for vote in PRIVATE:
        aggregator = Aggregator.for_epsilon(vote, epsilon, 1e-5)
        assert query_epsilon(aggregator, 1e-5) == pytest.approx(epsilon, rel=1e-6)
    gaussian = Aggregator.for_epsilon("gaussian", epsilon, 1e-5)
    assert gdp_delta(math.sqrt(2) / gaussian.noise, epsilon) == pytest.approx(1e-5, rel=1e-6)


class TestComposition:
    def test_labels_of_the_thesis_of_pate_and_gaussian_labels_by_hand(self):
        """9000 queries with 0.2 each: 9000 * 0.2; rho = 9000 * 0.2^2 / 2 = 180, rho + 2 sqrt(rho ln 1e5); T12."""
        account = account_votes(Aggregator.for_epsilon("laplace", 0.2, DELTA), 9000, DELTA)
        assert account.query_epsilon == pytest.approx(0.2)
        assert account.composed["plain sum"] == pytest.approx(1800)
        assert account.composed["zCDP"] == pytest.approx(180 + 2 * math.sqrt(180 * math.log(1e5)))
        assert account.epsilon == min(account.composed.values()) == pytest.approx(270.0, abs=0.1)
        # PATE 2017: 1000 labels at gamma 0.05 have "still epsilon = 26" by strong composition; we do not round.
        found = composed_epsilons(Aggregator(Vote.LAPLACE, 20.0), 1000, DELTA)
        assert found["advanced composition"] == pytest.approx(26, abs=0.5)
        assert found["Renyi DP"] < found["zCDP"] < found["advanced composition"] < found["plain sum"]
        # 540 queries of sigma 20: mu = sqrt(2 * 540) / 20.
        account = account_votes(Aggregator("gaussian", 20.0), 540, DELTA)
        delta = exact_delta(math.sqrt(1080) / 20, account.epsilon)
        assert delta <= DELTA
        assert float(delta) == pytest.approx(DELTA, rel=1e-6)

    @settings(max_examples=30)
    @given(st.floats(0.01, 3), st.integers(1, 3000))
    def test_every_sum_covers_the_worst_that_private_queries_can_do(self, epsilon, queries):
        aggregator = Aggregator.for_epsilon("laplace", epsilon, DELTA)
        for found in composed_epsilons(aggregator, queries, DELTA).values():
            assert worst_case_delta(epsilon, queries, found) <= DELTA

    def test_more_queries_cost_more_none_cost_nothing_and_without_noise_nothing_is_guaranteed(self):
        for vote in PRIVATE:
            aggregator = Aggregator.for_epsilon(vote, 0.5, DELTA)
            costs = [account_votes(aggregator, queries, DELTA).epsilon for queries in (0, 1, 10, 1000)]
            assert costs[0] == 0 < costs[1] < costs[2] < costs[3]
        account = account_votes(Aggregator(Vote.HARD), 1, DELTA)
        assert account.epsilon == account.query_epsilon == math.inf


def test_ten_instructors_are_not_ten_times_more_private_and_full_batches_change_nothing():
    """T9: each instructor samples its part at ten times the rate, and the guarantee is that of the worst instructor."""
    cost = partition_cost(60_000, 10, 256, 10, 1.0, DELTA)
    assert cost.claimed == pytest.approx(cost.one / 10)
    assert cost.together == partition_cost(6000, 1, 256, 10, 1.0, DELTA).one > 2 * cost.one
    cost = partition_cost(1000, 10, 100, 5, 2.0, DELTA)
    assert gdp_delta(math.sqrt(5) / 2, cost.together) == pytest.approx(DELTA, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        *((partial(vote_counts, wrong, 3), "must be a class from 0 to 2") for wrong in ([[0, 3]], [[-1]], [[0.5]])),
        *((partial(vote_counts, wrong, 3), "at least one instructor") for wrong in ([0, 1], np.zeros((0, 4), int))),
        (partial(Aggregator, "laplace", 0.0), "noise of a laplace vote is 0.0: it must be a finite number greater"),
        (partial(Aggregator, "hard", 1.0), "noise of a hard vote is 1.0: it must be 0"),
        (partial(label_probabilities, [1, 2], Aggregator("hard")), "no noise"),
        (partial(account_votes, Aggregator("laplace", 1.0), 1, 0.0), "delta is 0"),
        (partial(partition_cost, 1000, 11, 100, 5, 1.0, DELTA), "no smaller than a batch"),
    ],
)
def test_what_makes_no_sense_is_refused(call, culprit):
    with pytest.raises(UsageError, match=culprit):
        call()
    assert Aggregator.for_epsilon("hard", math.nan, 1e-5) == Aggregator(Vote.HARD)
