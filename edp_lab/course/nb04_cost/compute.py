"""What ``04_what_does_it_cost.ipynb`` computes: bills of runs, privacy losses, sampling, Table 1. No widgets, no torch.

    result = run_bill(SOUND, z0, decay, tau, num_devices, target, epochs=30, delta=1e-5)    # pure
    print(result.guarantee.epsilon_claimed, result.guarantee.epsilon)
    behind("CLC", "ATIS", "exponential", epochs=30).fits    # what may lie behind one printed epsilon

The mechanism and its accountants are those of `edp_lab.privacy`.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from edp_lab.attacks.statistics import Rate, Roc, gaussian_bound, rate_of, roc
from edp_lab.course.kit.controls import Array, check_whole, mechanism_of, require
from edp_lab.errors import UsageError
from edp_lab.privacy.accountants import GaussianDP, check_delta
from edp_lab.privacy.calibration import Budget, calibrate_z0
from edp_lab.privacy.claimed import shuffled_at_least
from edp_lab.privacy.composition import gaussian_loss_density
from edp_lab.privacy.guarantee import Guarantee, judge
from edp_lab.privacy.loss_distribution import PrivacyLossDistribution
from edp_lab.privacy.mechanism import Mechanism, Schedule
from edp_lab.reproduce import epsilons, printed
from edp_lab.reproduce.epsilons import MAX_EPOCHS, ExplainedEpsilon

# ---- The bill of a run, and noise for a target ---------------------------------------------------------------------

JUDGED = 16  # numbers of epochs: a verdict takes a millisecond


class RunBill(NamedTuple):
    """What a run costs after some of its epochs, and the noise with which it would meet a target.

    For one utterance, disjoint batches and secret randomness.
    """

    mechanism: Mechanism
    target: float  # epsilon
    after: list[int]  # numbers of epochs; the last is that of the whole run
    verdicts: list[Guarantee]  # after so many
    claimed_z0: float  # that meets the target by the paper's accounting
    needed_z0: float | None  # that meets it with a public alpha; None if none up to a billion does

    @property
    def guarantee(self) -> Guarantee:
        """Of the whole run."""
        return self.verdicts[-1]


def run_bill(
    variant: str, z0: float, decay: str, tau: float, num_devices: int, target: float, epochs: int, delta: float
) -> RunBill:
    """The bill of `epochs` epochs. UsageError: as `mechanism_of`, `judge` and `Budget`."""
    mechanism, budget = mechanism_of(variant, 1.0, z0, decay, tau, num_devices), Budget(target, delta)
    after = np.unique(np.linspace(1, epochs, JUDGED).round().astype(int)).tolist()
    verdicts = [judge(mechanism, t, delta, seed_published=False) for t in after]
    with np.errstate(divide="ignore", over="ignore"):
        spent = np.sum(mechanism.decay.factors(np.arange(epochs), mechanism.tau) ** -2.0)  # 2 rho at z0 = 1
    claimed = math.sqrt(spent / 2) * math.exp(-epsilons.log_rho(math.log10(target), delta) / 2)
    needed = None
    with suppress(UsageError):
        needed = calibrate_z0(mechanism.with_public_alpha(), epochs, budget)
    return RunBill(mechanism, target, after, verdicts, claimed, needed)


def releases_of(noise_multiplier: float, count: int, rate: float = 1.0) -> Schedule:
    """So many with the same noise over sensitivity."""
    return Schedule(np.array([noise_multiplier]), np.array([count]), rate)


# ---- Privacy losses and what an attacker makes of them -------------------------------------------------------------


class Loss(NamedTuple):
    """Gaussian releases of one mu each: their privacy loss, and the attack that makes the most of them."""

    releases: int
    delta: float
    draws: int  # simulated runs with the utterance, and as many without
    mu: float  # of all releases together
    epsilon: float  # at delta, exact
    loss: Array  # (P), in nats, as far below 0 as above
    with_it: Array  # (P), density of the loss if the utterance took part
    without: Array  # (P), and if it did not
    excess: Array  # (P), (1 - e^(epsilon - loss)) of the first beyond epsilon: its area is delta
    attack: Roc  # of the best attack on the simulated runs
    found: Rate  # true positives with a threshold set beforehand for 1 % false positives; 95 % interval
    best_found: float  # the most that any attack can expect there


def privacy_loss(mu: float, releases: int, delta: float, draws: int, seed: int) -> Loss:
    """`releases` of mu each, everyone in each of them.

    UsageError: mu not from 0.001 to 1000, releases no whole number from 1 to 1000, draws none from 20 to 100,000 or
    beyond 10^6 numbers in all, delta outside (0, 1), a negative seed.
    """
    require(1e-3 <= mu <= 1e3, f"mu is {mu}: it must lie between 0.001 and 1000")
    check_whole("number of epochs", releases, 1, 1000)
    check_whole("number of draws", draws, 20, min(100_000, 10**6 // releases))
    check_whole("seed", seed, 0, 2**31)
    every = GaussianDP(releases_of(1 / mu, releases))
    epsilon = every.epsilon(delta)
    loss = np.linspace(-(every.mu**2) / 2 - 4.5 * every.mu, every.mu**2 / 2 + 4.5 * every.mu, 301)
    density = gaussian_loss_density(loss, every.mu)
    # A release is what the attacker is left with after subtracting all that is known, along the utterance's gradient:
    # noise of standard deviation 1, plus mu if the utterance took part. The sum of all releases is the best score.
    noise = np.random.default_rng(seed).standard_normal((2, draws, releases)).sum(axis=2)
    members, others = noise[0] + mu * releases, noise[1]
    return Loss(
        releases,
        delta,
        draws,
        every.mu,
        epsilon,
        loss,
        with_it=density,
        without=density[::-1],
        excess=density * -np.expm1(np.minimum(epsilon - loss, 0)),
        attack=roc(members, others),
        found=rate_of(members > ndtri(0.99) * math.sqrt(releases)),
        best_found=float(gaussian_bound(every.mu).tpr(0.01)),
    )


# ---- Sampling ------------------------------------------------------------------------------------------------------


class Sampled(NamedTuple):
    """Per-example DP-SGD (each utterance clipped alone) with one noise multiplier, under three ways to make batches.

    Clipped alone, an utterance moves the sum by C, so that the noise over that is z itself.
    """

    rate: float  # q, the share of the corpus that a step sees
    noise_multiplier: float
    delta: float
    passes: int  # how often the steps begin the corpus, with disjoint batches
    after: NDArray[np.int64]  # (P), numbers of steps; the last is that of the run
    everyone: Array  # (P), epsilon if every utterance is in every step (exact)
    shuffled: Array  # (P), one shuffled pass after the other; exact for an attacker who knows the batches (Gaussian DP)
    now_and_then: NDArray[np.int64]  # (P''), some of `after`, with the last
    sampled: Array  # (P''), after as many, under Poisson sampling at rate q, by privacy loss distributions
    at_least: float  # no epsilon below that holds for a shuffled pass: `shuffled_at_least`; 0 before a pass is whole


def sampling(rate: float, noise_multiplier: float, steps: int, delta: float) -> Sampled:
    """`steps` steps at rate `rate`.

    UsageError: a rate outside (0, 1], no noise, steps no whole number from 1 to 10^6, delta outside (0, 1).
    """
    check_whole("number of steps", steps, 1, 10**6)
    check_delta(delta)
    after = np.unique(np.geomspace(1, steps, 40).round().astype(np.int64))
    now_and_then = after[np.unique(np.linspace(0, len(after) - 1, 4).round().astype(int))]  # each takes milliseconds
    samples = [PrivacyLossDistribution(releases_of(noise_multiplier, k, rate)) for k in now_and_then.tolist()]
    passes, whole = [math.ceil(k * rate * (1 - 1e-12)) for k in after.tolist()], steps_of_a_pass(rate)
    exact = cache(lambda count: GaussianDP(releases_of(noise_multiplier, count)).epsilon(delta))
    return Sampled(
        rate,
        noise_multiplier,
        delta,
        passes[-1],
        after,
        everyone=np.array([exact(count) for count in after.tolist()]),
        shuffled=np.array([exact(count) for count in passes]),
        now_and_then=now_and_then,
        sampled=np.array([account.epsilon(delta) for account in samples]),
        at_least=shuffled_at_least(noise_multiplier, whole, 1, delta) if steps >= whole else 0.0,
    )


def steps_of_a_pass(rate: float) -> int:
    """After how many steps of disjoint batches everyone has been in one."""
    return math.ceil(1 / rate - 1e-9)


# ---- Table 1 -------------------------------------------------------------------------------------------------------


class Behind(NamedTuple):
    """What may lie behind one printed epsilon of Table 1."""

    cell: ExplainedEpsilon  # the printed value, and the true one
    epochs: int  # T
    taus: tuple[float, ...]  # of the paper's grid; (0,) without decay
    z0: Array  # (taus, 120), the z0 that gives the printed value exactly, for T = 1 ... 120
    fits: list[tuple[float, float, float]]  # tau, least and largest z0 of the paper's that give it within rounding
    reachable: int  # how many of the 36 printed values T explains


table1 = cache(epsilons.explain_table1)  # the search behind Table 1, made once


def behind(model: str, corpus: str, decay: str, epochs: int) -> Behind:
    """The settings that a cell of Table 1 may stand for with T = `epochs`.

    UsageError: no such cell, epochs no whole number from 1 to 120.
    """
    check_whole("number of epochs T", epochs, 1, MAX_EPOCHS)
    cells = [c for c in table1().rows if (c.model, c.corpus, c.decay) == (model, corpus, decay)]
    require(cells, f"Table 1 has no cell for {model}, {corpus} and {decay} decay")
    [cell] = cells
    [row] = [row for row in printed.TABLE_1 if (row.model, row.corpus) == (model, corpus)]
    taus, (low, z0, high) = printed.TAUS.get(cell.decay, (0.0,)), (10**log for log in epsilons.search(row, cell.decay))
    here = zip(taus, low[:, epochs - 1].tolist(), high[:, epochs - 1].tolist(), strict=True)
    fits = [(tau, least, most) for tau, least, most in here if least <= most]
    return Behind(cell, epochs, taus, z0, fits, table1().epochs[epochs - 1].reachable)
