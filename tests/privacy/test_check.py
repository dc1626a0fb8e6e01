"""Other libraries' settings: bounds beside dp_accounting's and attacks', claims recognised and mended."""

import math
from dataclasses import replace

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Schedule, gdp_epsilon
from edp_lab.privacy.allocation import RandomAllocation, shuffled_at_least
from edp_lab.privacy.check import Sampler, Setting, Status, at_least, bound, check, poisson_noise

MNIST = Setting(Sampler.SHUFFLE, n=60_000, batch_size=256, steps=2_350, epochs=10, noise_multiplier=1.0, delta=1e-5)


def random_settings(seed: int, count: int, *samplers: Sampler) -> list[Setting]:
    rng, found = np.random.default_rng(seed), []
    while len(found) < count:
        n, epochs = int(10 ** rng.uniform(2, 5)), int(rng.integers(1, 20))
        batch = max(1, int(n * 10 ** rng.uniform(-2.5, 0)))
        z, delta = float(10 ** rng.uniform(-0.2, 1)), float(10 ** rng.uniform(-8, -4))
        steps = epochs * math.ceil(n / batch)
        found.append(Setting(samplers[len(found) % len(samplers)], n, batch, steps, epochs, z, delta))
    return found


@pytest.mark.parametrize(
    "sampler", [one for one in Sampler if one not in (Sampler.FIXED_SIZE, Sampler.WITH_REPLACEMENT)]
)
def test_no_bound_lies_below_what_an_attack_reaches(sampler):
    """Two computations that share nothing but the setting."""
    for setting in random_settings(1, 200 if sampler in (Sampler.SHUFFLE, Sampler.FIXED_ORDER) else 20, sampler):
        found = bound(setting, Adjacency.ZERO_OUT).epsilon
        assert at_least(setting) <= found, setting
        if sampler is Sampler.FIXED_ORDER:
            assert at_least(setting) == pytest.approx(found)


def test_lower_bound_on_shuffling_is_the_attack_that_it_describes():
    """The attack, played: the largest of the sums, with the utterance (2C) and without it (C, where its slot is)."""
    z, batches, delta = 0.7, 20, 0.01
    rng, runs = np.random.default_rng(0), 100_000
    noise = z * rng.standard_normal((runs, batches), dtype=np.float32)
    where = rng.integers(batches, size=runs)
    largest = {}
    for pull in (2, 1):
        noise[np.arange(runs), where] += pull
        largest[pull] = noise.max(axis=1)
        noise[np.arange(runs), where] -= pull
    grid = np.linspace(1, 4, 61)
    p, q = (np.array([(largest[pull] > c).mean() for c in grid]) for pull in (2, 1))
    played = np.max(np.log((p - delta)[p > delta] / np.maximum(q[p > delta], 1e-4)))
    assert shuffled_at_least(z, batches, 1, delta) == pytest.approx(played, rel=0.1)


def test_bounds_agree_with_dp_accounting():
    for setting in random_settings(2, 8, Sampler.POISSON, Sampler.FIXED_SIZE):
        if setting.sampler is Sampler.POISSON:
            gaussian = dp.GaussianDpEvent(setting.noise_multiplier)
            theirs = PLDAccountant(value_discretization_interval=1e-3)
            theirs.compose(dp.PoissonSampledDpEvent(setting.rate, gaussian), setting.steps)
            found, peer = bound(setting, Adjacency.ADD_OR_REMOVE_ONE).epsilon, theirs.get_epsilon(setting.delta)
            assert found == pytest.approx(peer, rel=0.02, abs=2e-3) or found > 30
        else:  # one example replaced moves the sum by 2C
            event = dp.dp_event.SampledWithoutReplacementDpEvent(
                setting.n, int(setting.batch_size), dp.GaussianDpEvent(setting.noise_multiplier / 2)
            )
            theirs = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
            peer = theirs.compose(event, setting.steps).get_epsilon(setting.delta)
            known = gdp_epsilon(2 * math.sqrt(setting.steps) / setting.noise_multiplier, setting.delta)
            assert bound(setting, Adjacency.REPLACE_ONE).epsilon == pytest.approx(min(peer, known))


def test_what_is_known_by_hand():
    """(sampler, micro-batch) and the mu of zero-out, replace-one and add/remove; None: nothing is known.

    An allotted batch is hidden: 4 passes of 25 steps, or one whose steps are four, with twice the noise.
    """
    hidden = {
        Sampler.BALLS_IN_BINS: RandomAllocation(Schedule([1.0], [1]), 25).epsilon(1e-5),
        Sampler.RANDOM_ALLOCATION: RandomAllocation(Schedule([2.0], [4]), 25).epsilon(1e-5),
    }
    for sampler, micro, mus in (
        (Sampler.SHUFFLE, 1, (1, 2, None)),
        (Sampler.FIXED_ORDER, 4, (2, 2, None)),
        (Sampler.BALLS_IN_BINS, 1, (1, 2, 1)),
        (Sampler.RANDOM_ALLOCATION, 1, (1, 2, 1)),
        (Sampler.BALLS_IN_BINS, 4, (2, 2, None)),
        (Sampler.POISSON, 4, (20, 20, None)),  # each of 100 steps
        (Sampler.WITH_REPLACEMENT, 1, (None, None, None)),
    ):
        setting = Setting(sampler, 1000, 40, 100, 4, 2.0, 1e-5, micro_batch_size=micro)
        mus = [mu and mu * (0.5 if sampler is Sampler.POISSON else 1) for mu in mus]
        for neighbours, mu in zip(Adjacency, mus, strict=True):
            found = bound(setting, neighbours)
            known = None if mu is None else pytest.approx(gdp_epsilon(mu, 1e-5))
            assert found.epsilon == (hidden.get(sampler, known) if micro == mu == 1 else known), found


def test_a_bin_that_is_drawn_once_is_found_by_who_adds_up_the_epochs():
    """Two bins, four epochs: the exact profile of the sums, a mixture of two Gaussians in the plane."""
    setting = Setting(Sampler.BALLS_IN_BINS, 100, 50, 8, 4, 2.0, 1e-3)
    x = np.linspace(-40, 48, 1201)
    gone, there = norm.pdf(x, scale=4), norm.pdf(x, 4, 4)  # of sums of four
    without = np.outer(gone, gone)
    with_it = (np.outer(there, gone) + np.outer(gone, there)) / 2
    found = bound(setting, Adjacency.ADD_OR_REMOVE_ONE).epsilon

    def exact(epsilon):
        ways = ((with_it, without), (without, with_it))
        return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in ways) * (x[1] - x[0]) ** 2

    assert exact(found) <= setting.delta < exact(0.7 * found)
    assert bound(replace(setting, sampler=Sampler.RANDOM_ALLOCATION), Adjacency.ADD_OR_REMOVE_ONE).epsilon < 0.9 * found


def test_truncated_batches_cost_more_than_poisson_ones_and_less_than_every_step():
    sampled = replace(MNIST, sampler=Sampler.POISSON, steps=500, epochs=3)
    cut = replace(sampled, truncated=270)
    least, found, most = (
        bound(one, Adjacency.ZERO_OUT).epsilon for one in (sampled, cut, replace(cut, micro_batch_size=2))
    )
    assert least < found < most
    assert bound(cut, Adjacency.ADD_OR_REMOVE_ONE).epsilon is None


def test_a_claim_of_poisson_accounting_for_shuffled_batches_is_recognised_refuted_and_mended():
    claimed = bound(replace(MNIST, sampler=Sampler.POISSON), Adjacency.ADD_OR_REMOVE_ONE).epsilon
    found = check(replace(MNIST, epsilon=round(claimed, 2)))
    assert found.status is Status.TOO_SMALL
    assert found.at_least > claimed
    assert "Poisson" in found.recognised
    assert found.mend.startswith("draw the batches by Poisson sampling")
    assert check(replace(MNIST, epsilon=claimed, sampler=Sampler.POISSON)).status is Status.HOLDS
    assert check(replace(MNIST, epsilon=claimed, adjacency=Adjacency.ADD_OR_REMOVE_ONE)).status is Status.NO_BOUND


def test_a_claim_below_what_attacks_reach_is_false_however_little():
    exact = Setting(Sampler.FIXED_ORDER, 1000, 40, 25, 1, 1.0, 1e-5)
    true = check(exact).holds[Adjacency.ZERO_OUT].epsilon
    assert check(replace(exact, epsilon=true)).status is Status.HOLDS
    assert check(replace(exact, epsilon=true * 0.9995)).status is Status.TOO_SMALL
    for more in ({"adjacency": Adjacency.REPLACE_ONE}, {"micro_batch_size": 2}):
        own = check(replace(exact, **more)).holds[Adjacency.REPLACE_ONE if "adjacency" in more else Adjacency.ZERO_OUT]
        assert check(replace(exact, **more, epsilon=own.epsilon * 0.9995)).status is Status.NOT_SHOWN


def test_what_mends_a_claim_does():
    """Followed, each advice gives a claim that holds."""
    shared = check(replace(MNIST, epsilon=17.9, micro_batch_size=16))
    assert shared.status is Status.NOT_SHOWN
    assert shared.mend.startswith("clip each example alone")
    assert check(replace(shared.setting, micro_batch_size=1)).status is Status.HOLDS
    noisier = check(replace(MNIST, noise_multiplier=0.4, epsilon=3.0))
    z = float(noisier.mend.split()[-1])
    assert check(replace(noisier.setting, noise_multiplier=z)).status is Status.HOLDS
    assert check(replace(noisier.setting, noise_multiplier=z / 1.02)).status is not Status.HOLDS


def test_claims_by_the_accountants_of_opacus_are_recognised():
    accountants = pytest.importorskip("opacus.accountants")
    wanted = {"rdp": "Renyi", "prv": "loss distributions", "gdp": "central limit"}
    for name, said in wanted.items():
        accountant = accountants.create_accountant(name)
        accountant.history = [(MNIST.noise_multiplier, MNIST.rate, MNIST.steps)]
        assert said in check(replace(MNIST, epsilon=accountant.get_epsilon(delta=1e-5))).recognised


def test_noise_for_a_target_is_what_poisson_sampling_needs():
    z = poisson_noise(MNIST.rate, MNIST.steps, 2.0, 1e-5)
    sampled = replace(MNIST, sampler=Sampler.POISSON, epsilon=2.0)
    assert check(replace(sampled, noise_multiplier=z)).status is Status.HOLDS
    assert check(replace(sampled, noise_multiplier=z / 1.02)).status is not Status.HOLDS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_size": 60_001}, "batch size"),
        ({"steps": 3}, "epochs"),
        ({"noise_multiplier": 0.0}, "noise multiplier"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"micro_batch_size": 257}, "micro-batches"),
        ({"truncated": 300}, "truncated"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_impossible_settings_are_refused(change, said):
    with pytest.raises(UsageError, match=said):
        replace(MNIST, **change)
