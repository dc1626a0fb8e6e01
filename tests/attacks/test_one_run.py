"""The audit in one run: its bounds hold and match published numbers, and canaries are as far apart as possible."""

import math
from dataclasses import replace
from functools import lru_cache

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from edp_lab.attacks import one_run
from edp_lab.attacks.one_run import Directions, LinearModel, Plan, RealModel, audit_one_run, gradient_scores
from edp_lab.attacks.statistics import SHARES, Tally, make_guesses, one_run_bounds, one_run_epsilon, one_run_mu
from edp_lab.attacks.step_audit import Finding
from edp_lab.corpora.catalog import load_corpus
from edp_lab.corpora.corpus import split
from edp_lab.corpora.smart_home import generate, write_jsonl
from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_epsilon, judge
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.training.config import TrainConfig
from edp_lab.training.dp_step import release

DELTA = 1e-5
FAST = {"num_devices": 40, "batch_size": 80}  # many canaries per step, so few steps are enough


def config(corpus: str = "none", **changes: object) -> TrainConfig:
    settings = {"alpha": "none", "delta": DELTA, "epochs": 1, "size": "small", "dropout": 0.0, **changes}
    return TrainConfig(corpus, **settings)  # type: ignore[arg-type]


def guaranteeing(epsilon: float, settings: TrainConfig, canaries: int = 1000) -> TrainConfig:
    """The settings with the noise that guarantees this epsilon for a run on that many canaries alone."""
    mechanism = settings.mechanism(canaries)
    assert mechanism is not None
    return replace(settings, z0=calibrate_z0(mechanism, settings.epochs, Budget(epsilon, DELTA)))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "own.jsonl"
    write_jsonl(generate(90, 0, "health"), path)
    return str(path)


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "epsilon"),
    [
        (1000, 100, 75, 1e-4, 0.673),
        (100_000, 1510, 1439, 1e-5, 2.676),
        (100, 100, 100, 1e-5, 3.49),
        (5000, 5000, 5000, 1e-5, 7.28),
    ],
)
def test_published_numbers_of_the_one_run_bound(m, r, v, delta, epsilon):
    digits = 2 if m == r else 3
    assert one_run_epsilon(m, r, v, delta, 0.05) == pytest.approx(epsilon, abs=0.51 * 10**-digits)


def chance(m: int, r: int, v: int, delta: float, epsilon: float) -> float:
    """p(epsilon) of the theorem, computed with scipy's binomial distribution."""
    counts = stats.binom(r, 1 / (1 + math.exp(-epsilon)))
    below = np.cumsum(counts.pmf(np.arange(v - 1, -1, -1))) / np.arange(1, v + 1)
    return float(counts.sf(v - 1) + 2 * m * delta * below.max())


@pytest.mark.parametrize("seed", range(30))
def test_epsilon_is_the_largest_that_is_refuted_rounded_down(seed):
    random = np.random.default_rng(seed)
    m = int(random.integers(1, 2000))
    r = int(random.integers(1, m + 1))
    v, delta, beta = int(random.integers(0.6 * r, r + 1)), 10 ** random.uniform(-9, -2), random.uniform(0.001, 0.2)
    epsilon = one_run_epsilon(m, r, v, delta, beta)
    if epsilon > 0:
        assert max(chance(m, r, v, delta, e) for e in np.linspace(0, epsilon, 5)) < beta
    if 2 * m * delta <= 1 and v > 0:  # otherwise the bound requires slightly more than the theorem
        assert chance(m, r, v, delta, epsilon + 1e-4) >= beta


def test_bound_stays_stable_for_very_many_guesses_and_proves_nothing_by_none():
    plain = math.log(700_000 / 300_000)
    assert plain - 0.02 < one_run_epsilon(10**6, 10**6, 700_000, 1e-12, 0.05) < plain
    exact = -math.log(math.expm1(-math.log(0.05) / 1e5))
    assert one_run_epsilon(10**5, 10**5, 10**5, 0.0, 0.05) == pytest.approx(exact, rel=1e-6)
    assert one_run_epsilon(300, 100, 0, 1e-5, 0.05) == one_run_epsilon(300, 100, 90, 0.1, 0.05) == 0


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 5.0])
def test_randomized_response_is_refuted_exactly_as_often_as_promised_or_less(epsilon):
    """The theorem's tight case, without sampling error."""
    r, number = 600, np.arange(601)
    refuted = [one_run_epsilon(r, r, int(v), 0.0, 0.05) > epsilon for v in number]
    wrongly = stats.binom.pmf(number, r, 1 / (1 + math.exp(-epsilon))) @ refuted
    assert 0.005 < wrongly <= 0.05


def least_total(m: int, r: int, v: int, beta: float, mu: float) -> float:
    """The paper's recursion with 40 digits, for wrong guesses h and right guesses r, from v downwards."""
    with mpmath.workdps(40):
        h, right = mpmath.mpf(beta) * (r - v) / m, mpmath.mpf(beta) * v / m
        for i in range(v - 1, -1, -1):
            quantile = mpmath.findroot(lambda x, p=right: mpmath.ncdf(x) - p, stats.norm.ppf(float(right)))
            larger = max(h, mpmath.ncdf(quantile - mu))
            right, h = right + mpmath.mpf(i) / (r - i) * (larger - h), larger
        return float((h + right) * m / r)


@pytest.mark.parametrize(("m", "r", "v"), [(40, 12, 12), (40, 40, 33), (1000, 60, 55), (25, 12, 11)])
def test_gaussian_bound_is_the_largest_mu_that_is_refuted_rounded_down(m, r, v):
    mu = one_run_mu(m, r, v, 0.05)
    assert mu > 0.1
    assert least_total(m, r, v, 0.05, mu) > 1 > least_total(m, r, v, 0.05, mu + 1e-4)


epsilon_of, mu_of = lru_cache(None)(one_run_epsilon), lru_cache(None)(one_run_mu)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("share", SHARES)
def test_a_gaussian_mechanism_is_refuted_no_more_often_than_allowed(mu, share):
    """Pure Gaussian releases; if only some examples are guessed, the releases determine which."""
    random, audits, m = np.random.default_rng(0), 400, 200
    included = random.random((audits, m)) < 0.5
    scores = mu * included + random.standard_normal((audits, m))
    wrongly = {"mu": 0, "epsilon": 0}
    for truth, own in zip(included, scores, strict=True):
        tally = next(t for t in make_guesses(own, truth) if t.guesses == share * m)
        wrongly["mu"] += mu_of(m, tally.guesses, tally.correct, 0.05) > mu
        wrongly["epsilon"] += epsilon_of(m, tally.guesses, tally.correct, DELTA, 0.05) > gdp_epsilon(mu, DELTA)
    for count in wrongly.values():
        assert stats.binomtest(count, audits, 0.05, alternative="greater").pvalue > 1e-3


def test_guesses_are_made_on_the_extreme_scores_of_both_ends():
    scores = np.arange(20.0)
    included = scores >= 10
    assert make_guesses(scores, included) == (Tally(2, 2), Tally(6, 6), Tally(20, 20))
    assert make_guesses(-scores, included) == (Tally(2, 0), Tally(6, 0), Tally(20, 0))
    assert make_guesses(scores[:1], included[:1]) == (Tally(1, 0),)


def test_several_tallies_are_paid_for_and_the_gaussian_bound_needs_less_than_the_free_one():
    one, three = (one_run_bounds(1000, [Tally(100, 83)] * count, DELTA, 0.95, gaussian=True) for count in (1, 3))
    assert three.distribution_free == one_run_epsilon(1000, 100, 83, DELTA, 0.05 / 3) < one.distribution_free
    assert three.mu == one_run_mu(1000, 100, 83, 0.05 / 3) < one.mu
    assert gdp_epsilon(one.mu, DELTA) >= one.gaussian == one.best > one.distribution_free > 1
    free = one_run_bounds(1000, [Tally(100, 83)], DELTA, 0.95, gaussian=False)
    assert (free.best, free.mu, free.gaussian) == (one.distribution_free, None, None)


def test_algorithm_1_as_printed_is_refuted():
    for seed in range(3):
        audit = audit_one_run(config(as_printed=True, z0=4.0, num_devices=8, seed=seed), linear=True)
        assert audit.verdict is Finding.REFUTED
        assert audit.claimed_epsilon == pytest.approx(1.23, abs=0.01)
        assert (
            audit.claimed_epsilon
            < audit.bounds.distribution_free
            < audit.measured_epsilon
            < audit.epsilon_if_seed_secret
        )
        assert (
            audit.epsilon_if_seed_secret == judge(audit.mechanism, 1, DELTA, seed_published=False).conditional_epsilon
        )
        assert "refute the claim" in audit.explanation


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "dp-sgd", "sampling": "shuffle"},
        {"micro_batch_size": 2},
        {"epochs": 3, **FAST},
    ],
    ids=["per example", "ladder", "epochs"],
)
def test_every_sound_method_is_left_standing(changes):
    audit = audit_one_run(guaranteeing(4.0, config(**changes)), linear=True)
    assert audit.verdict is Finding.CONSISTENT
    assert audit.adjacency == "REPLACE_SPECIAL"
    assert 1 < audit.bounds.distribution_free < audit.measured_epsilon < 4


@pytest.mark.parametrize("fault", ["too little noise", "no clip"])
def test_a_faulty_step_is_caught(monkeypatch, fault):
    def faulty(mechanism, epoch, gradients, layout, alpha, noise, divisor):
        if fault == "too little noise":
            return release(mechanism, epoch, gradients, layout, alpha, noise / math.sqrt(8), divisor)
        return release(replace(mechanism, clip_norm=100.0), epoch, gradients, layout, alpha, noise / 100, divisor)

    monkeypatch.setattr(one_run, "release", faulty)
    assert audit_one_run(guaranteeing(2.0, config()), linear=True).verdict is Finding.REFUTED


def test_few_canaries_have_no_power_and_the_seed_decides_everything():
    audit = audit_one_run(config(z0=0.5), canaries=5, linear=True)
    assert audit.verdict is Finding.NO_POWER
    assert audit.measured_epsilon <= audit.ceiling < audit.claimed_epsilon
    assert "cannot test" in audit.explanation
    first, again, other = (audit_one_run(config(seed=seed, **FAST), 200, linear=True) for seed in (1, 1, 2))
    assert first == again != other
    assert Plan.draw(config(), 10, 0).key != key_from_seed(0)  # the key of the noise


@pytest.mark.parametrize(("size", "reserved"), [(1, 1), (2, 2), (8, 2), (8, 1)])
@pytest.mark.parametrize("utterances", [0, 37, 300])
def test_every_epoch_holds_all_once_and_no_micro_batch_two_canaries(size, reserved, utterances):
    placement = one_run.Placement(7, utterances, 41, 3, 6, size, reserved)
    orders = []
    for epoch in (0, 1):
        steps = [placement.devices(epoch, k, 0) for k in range(placement.steps_per_epoch)]
        parts = [part for devices in steps for device in devices for part in device]
        assert all(len(devices) == 3 for devices in steps)
        assert len(parts) == 6 * len(steps)
        orders.append(np.concatenate(parts))
        assert sorted(orders[-1]) == list(range(utterances + 41))
        for part in parts:
            held = int((part >= utterances).sum())
            assert held <= 1
            assert len(part) + held * (reserved - 1) <= size
    assert not np.array_equal(*orders)


def test_directions_are_orthonormal():
    directions, everyone = Directions(3, 7, 45), np.arange(7)
    rows = torch.zeros(7, 45)
    directions.push(rows, everyone, torch.ones(7))
    assert torch.allclose(rows @ rows.T, torch.eye(7), atol=1e-6)
    projected = np.array([directions.project(row, everyone) for row in rows])
    assert np.allclose(projected, np.eye(7), atol=1e-6)
    with pytest.raises(UsageError, match="8 canaries are too many for a model with 7 weights"):
        Directions(3, 8, 7)


class Silent:
    """Record what a trainee receives, and release it without noise."""

    def __init__(self, trainee, mechanism, divisor):
        self.trainee, self.mechanism, self.divisor = trainee, mechanism, divisor
        self.layout, self.released, self.moved = trainee.layout, [], torch.zeros(trainee.layout.size)
        self.gradients = trainee.gradients

    def step(self, epoch, step, gradients):
        silence = torch.zeros(self.layout.size)
        done = release(self.mechanism, epoch, gradients, self.layout, None, silence, self.divisor)
        self.released.append(done.gradient)
        return done.gradient


@pytest.mark.parametrize("changes", [{}, {"micro_batch_size": 2}, {"method": "dp-sgd", "sampling": "shuffle"}])
@pytest.mark.parametrize("real", [False, True], ids=["one layer", "clc"])
def test_canaries_in_and_out_are_as_far_apart_as_the_sensitivity(corpus, changes, real):
    chosen = config(corpus, clip_norm=0.7, batch_size=16, num_devices=4, **changes)
    data = split(load_corpus(corpus), 0)
    n, m = (len(data.train) if real else 0), 20
    mechanism = chosen.mechanism(n + m)
    plan, ends = Plan.draw(chosen, m, n), []
    for included in (np.ones(m, bool), np.zeros(m, bool)):
        trainee = RealModel(chosen, load_corpus(corpus), data, m) if real else LinearModel(mechanism, 1, m, 1)
        silent = Silent(trainee, mechanism, divisor=1)
        gradient_scores(silent, mechanism, chosen, plan._replace(included=included), lambda done, steps: None)
        projections = np.zeros(m)
        directions = Directions(plan.key, m, trainee.layout.size)
        for step, released in enumerate(silent.released):
            numbers = plan.step(0, step)[2]
            projections[numbers] = directions.project(released, numbers)
        ends.append(projections)
    apart = ends[0] - ends[1]
    assert (apart > 0.97 * mechanism.sensitivity()).all()
    assert (apart < 1.01 * mechanism.sensitivity()).all()


def test_scores_are_the_log_likelihood_ratios_of_what_is_released():
    chosen = config(method="dp-sgd", sampling="shuffle", clip_norm=0.7, z0=2.0)
    disjoint, sums = chosen.mechanism(200), np.linspace(-3, 3, 7)
    present, absent = (stats.norm.pdf(sums, mean, 2.0 * 0.7) for mean in (0.7, 0.0))
    assert np.allclose(one_run.evidence(disjoint, 0, sums), np.log(present / absent))
    plan = Plan.draw(chosen, 20, 0)
    silent = Silent(LinearModel(disjoint, 1, 20, 64), disjoint, divisor=64)
    scores, _ = gradient_scores(silent, disjoint, chosen, plan, lambda done, steps: None)
    assert np.allclose(scores, one_run.evidence(disjoint, 0, 0.7 * plan.included), atol=1e-3)  # the clip's margin


def test_gradient_canaries_of_a_real_run_are_told_apart_once_the_noise_is_gone(corpus):
    told = []
    chosen = config(corpus, z0=0.001, batch_size=16, num_devices=4)
    audit = audit_one_run(chosen, 60, progress=lambda done, steps: told.append((done, steps)))
    too_many = abs(audit.included - 30)  # surplus of one kind, because half of the guesses are "in"
    assert audit.tallies == (Tally(6, 6), Tally(18, 18), Tally(60, 60 - too_many))
    assert audit.verdict is Finding.NO_POWER
    assert told[-1] == (audit.steps, audit.steps) == (len(told), len(told))
    assert audit.last_model.tally.correct > 0.9 * audit.last_model.tally.guesses  # from Adam, not a gradient


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        (lambda: one_run_epsilon(10, 11, 5, DELTA, 0.05), "11 guesses on 10"),
        (lambda: one_run_mu(10, 5, 6, 0.05), "6 right of 5"),
        (lambda: one_run_mu(10, 5, 5, 1.0), "beta is 1"),
        (lambda: one_run_epsilon(10, 5, 5, 1.0, 0.05), "delta is 1"),
        (lambda: audit_one_run(config(alpha="private", as_printed=True), linear=True), "alpha"),
        (lambda: audit_one_run(config(method="dp-sgd"), linear=True), "disjoint batches"),
        (lambda: audit_one_run(config(), 2.5, linear=True), "number of canaries is 2.5"),
        (lambda: audit_one_run(config(), confidence=1.0, linear=True), "confidence is 1"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, culprit):
    """Invalid command-line input is covered by test_refusals.py."""
    with pytest.raises(UsageError, match=culprit):
        call()
