"""What ``04_what_does_it_cost.ipynb`` computes: bills of runs, privacy losses, sampling, Table 1. No widgets, no torch.

    result = run_bill(SOUND, z0, num_devices, epochs, decay, tau, C, utterances=1, delta=1e-5)    # pure
    print(result.claimed[-1], result.exact[-1])
    behind("CLC", "ATIS", "exponential", epochs=30).setting    # what may lie behind one printed epsilon

The mechanism and its accountants are those of `edp_lab.privacy`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from edp_lab.attacks.statistics import Rate, Roc, auc, rate_of, roc
from edp_lab.course.kit.inputs import Array, check_whole, mechanism_of, require
from edp_lab.errors import UsageError
from edp_lab.privacy.accountants import GaussianDP, ReshufflingZCDP, check_delta
from edp_lab.privacy.calibration import LARGEST_Z, Budget, calibrate_z0
from edp_lab.privacy.claimed import shuffled_at_least
from edp_lab.privacy.composition import gaussian_loss_density
from edp_lab.privacy.guarantee import Guarantee, accountant_for, claim, judge
from edp_lab.privacy.loss_distribution import PrivacyLossDistribution
from edp_lab.privacy.mechanism import Decay, Mechanism, NoGuarantee, Schedule
from edp_lab.reproduce import epsilons, printed
from edp_lab.reproduce.epsilons import MAX_EPOCHS, ExplainedEpsilon, Setting
from edp_lab.reproduce.printed import Table1Row

POINTS = 40  # of a curve
SEEN = 4  # of them, where an account takes milliseconds
LIMIT = 100_000  # draws: beyond it a slider would stall


# ---- The bill of a run ---------------------------------------------------------------------------------------------


class RunBill(NamedTuple):
    """What a run of T epochs costs by three accounts, after some of its epochs. Disjoint batches, secret randomness.

    Where no number exists there is NaN.
    """

    mechanism: Mechanism
    delta: float
    utterances: int  # of one person: all but the paper's claim is for all of them
    epochs: int  # T
    after: NDArray[np.int64]  # (P), numbers of epochs; the last is T
    claimed: Array  # (P), the paper's accounting, z taken at face value
    zcdp: Array  # (P), zCDP of noise over true sensitivity, with a public alpha
    exact: Array  # (P), Gaussian DP of the same
    looseness: float | None  # by what share zCDP's epsilon exceeds the exact one at T; None where that is endless
    z_set: Array  # (T), noise multipliers by epoch, as set
    z_true: Array  # (T), noise over true sensitivity by epoch
    guarantee: Guarantee  # of the whole run


def run_bill(
    variant: str,
    z0: float,
    num_devices: int,
    epochs: int,
    decay: str,
    tau: float,
    clip_norm: float,
    utterances: int,
    delta: float,
) -> RunBill:
    """The bill of `epochs` epochs. UsageError: as `mechanism_of` and `judge`; no epochs."""
    check_whole("number of epochs", epochs, 1, 1000)
    mechanism = mechanism_of(variant, clip_norm, z0, decay, tau, num_devices)
    guarantee, public = judge(mechanism, epochs, delta, False, None, utterances), mechanism.with_public_alpha()
    after = np.unique(np.linspace(1, epochs, POINTS).round().astype(np.int64))
    # In exact arithmetic, where `judge` would also ask whether floats can carry it.
    zcdp, exact = np.full((2, len(after)), math.nan)
    for place, t in enumerate(after.tolist()):
        with suppress(NoGuarantee):
            account = accountant_for(public, public.bill(t), None, utterances)
            zcdp[place], exact[place] = ReshufflingZCDP(account.schedule).epsilon(delta), account.epsilon(delta)
    over = float(zcdp[-1] / exact[-1] - 1) if exact[-1] else math.inf
    factors = mechanism.decay.factors(np.arange(epochs), mechanism.tau)
    return RunBill(
        mechanism, delta, utterances, epochs, after,
        np.array([claim(mechanism, mechanism.bill(t), delta).epsilon for t in after.tolist()], float),
        zcdp, exact, over if math.isfinite(over) else None,
        z_set=mechanism.z0 * factors,
        z_true=mechanism.noise_multiplier(0) * factors,
        guarantee=guarantee,
    )  # fmt: skip


class Needed(NamedTuple):
    """The noise with which runs of 1 ... T epochs meet a target, and which epochs of the longest pay for it."""

    mechanism: Mechanism  # with z0 as needed for T epochs, or 1 where no z0 meets the target
    budget: Budget  # target epsilon, delta, utterances of one person
    epochs: int  # T
    claimed: Array  # (T), z0 by the paper's accounting, for one utterance
    z0: Array  # (T), z0 that meets the target with a public alpha; NaN where none up to a billion does
    share: Array  # (T), of the sum of 1/z^2, what each epoch spends
    last_half: int  # how many of the last epochs spend half of what all spend


def needed(
    variant: str, target: float, num_devices: int, epochs: int, decay: str, tau: float, utterances: int, delta: float
) -> Needed:
    """The noise for a target epsilon. UsageError: as `mechanism_of` and `Budget`; no epochs."""
    check_whole("number of epochs", epochs, 1, 1000)
    check_whole("number of utterances of a person", utterances, 1, 10**6)
    budget = Budget(target, delta, utterances_per_person=utterances)
    mechanism = mechanism_of(variant, 1.0, 1.0, decay, tau, num_devices)
    public, factors = mechanism.with_public_alpha(), mechanism.decay.factors(np.arange(epochs), mechanism.tau)
    with np.errstate(divide="ignore", over="ignore"):
        spent = np.cumsum(factors**-2.0)  # of noise multiplier 1 at first; rho and the square of mu go with it
    z0 = np.full(epochs, math.nan)
    with suppress(UsageError):
        z0 = calibrate_z0(public, 1, budget) * np.sqrt(spent)
        z0[z0 > LARGEST_Z] = math.nan
        z0[-1] = math.nan  # unless it is found
        z0[-1] = calibrate_z0(public, epochs, budget)
        mechanism = replace(mechanism, z0=float(z0[-1]))
    weights = np.divide(factors.min(), factors, out=np.ones_like(factors), where=factors > factors.min()) ** 2
    share = weights / weights.sum()
    claimed = np.sqrt(spent / 2) * math.exp(-epsilons.log_rho(math.log10(target), delta) / 2)
    return Needed(
        mechanism, budget, epochs, claimed, z0, share,
        int(np.searchsorted(np.cumsum(share[::-1]), 0.5 - 1e-9)) + 1,
    )  # fmt: skip


def releases_of(noise_multiplier: float, count: int, rate: float = 1.0) -> Schedule:
    """So many with the same noise over sensitivity."""
    return Schedule(np.array([noise_multiplier]), np.array([count]), rate)


class Account(NamedTuple):
    """What one account says, and how long it took."""

    name: str
    epsilon: float
    seconds: float


def accounts(schedule: Schedule, delta: float) -> list[Account]:
    """The same releases, everyone in each of them, by four accountants; the closed form last, which is exact."""
    from dp_accounting.rdp import RdpAccountant

    kinds: dict[str, Callable[[], float]] = {
        "zCDP": lambda: ReshufflingZCDP(schedule).epsilon(delta),
        "Rényi DP": lambda: RdpAccountant().compose(schedule.events()).get_epsilon(delta),
        "privacy loss distribution": lambda: PrivacyLossDistribution(schedule).epsilon(delta),
        "Gaussian DP": lambda: GaussianDP(schedule).epsilon(delta),
    }
    found = []
    for name, epsilon in kinds.items():
        start = time.perf_counter()
        found.append(Account(name, epsilon(), time.perf_counter() - start))
    return found


# ---- Privacy losses and what an attacker makes of them -------------------------------------------------------------


class Loss(NamedTuple):
    """T Gaussian releases of one mu each: their privacy loss, and the attack that makes the most of them."""

    mu_each: float  # of one release
    releases: int  # T
    delta: float
    draws: int  # simulated runs with the utterance, and as many without
    mu: float  # of all releases together
    epsilon: float  # at delta, exact
    zcdp: float  # at delta, by zCDP
    loss: Array  # (P), in nats, as far below 0 as above
    with_it: Array  # (P), density of the loss where the utterance took part
    without: Array  # (P), and where it did not
    excess: Array  # (P), (1 - e^(epsilon - loss)) of the first beyond epsilon: its area is delta
    fpr: Array  # (P'), false positive rates
    fnr: Array  # (P'), least false negative rates that all releases allow: the trade-off curve
    fnr_each: Array  # (P'), and one of them
    fnr_pair: Array  # (P'), and what (epsilon, delta) alone would promise (Dong et al. 2022, proposition 2.5)
    attack: Roc  # of the best attack on the simulated runs
    attack_auc: float
    found: Rate  # what it finds where its threshold, set beforehand, allows 1 % false alarms; 95 % interval
    best_auc: float  # the most that any attack can expect
    best_found: float


def privacy_loss(mu: float, releases: int, delta: float, draws: int, seed: int) -> Loss:
    """`releases` of mu each, everyone in each of them.

    UsageError: mu not from 0.001 to 1000, releases no whole number from 1 to 1000, draws none from 20 to 100,000 or
    beyond 10^6 numbers in all, delta outside (0, 1), a negative seed.
    """
    require(1e-3 <= mu <= 1e3, f"mu is {mu}: it must lie between 0.001 and 1000")
    check_whole("number of epochs", releases, 1, 1000)
    check_whole("number of draws", draws, 20, min(LIMIT, 10**6 // releases))
    check_whole("seed", seed, 0, 2**31)
    one, every = (GaussianDP(releases_of(1 / mu, count)) for count in (1, releases))
    epsilon, zcdp = every.epsilon(delta), ReshufflingZCDP(every.schedule)
    loss = np.linspace(-(every.mu**2) / 2 - 4.5 * every.mu, every.mu**2 / 2 + 4.5 * every.mu, 301)
    density = gaussian_loss_density(loss, every.mu)
    fpr = np.concatenate([[0.0], np.logspace(-6, -2, 40), np.linspace(0.01, 1, 100)[1:]])
    growth = math.exp(min(epsilon, 700.0))
    # A release is what the attacker is left with after subtracting all that is known, along the utterance's gradient:
    # noise of standard deviation 1, plus mu where the utterance took part. The sum of all releases is the best score.
    noise = np.random.default_rng(seed).standard_normal((2, draws, releases)).sum(axis=2)
    members, others = noise[0] + mu * releases, noise[1]
    return Loss(
        mu, releases, delta, draws, every.mu, epsilon, zcdp.epsilon(delta), loss,
        with_it=density,
        without=density[::-1],
        excess=density * -np.expm1(np.minimum(epsilon - loss, 0)),
        fpr=fpr,
        fnr=1 - every.best_tpr(fpr),
        fnr_each=1 - one.best_tpr(fpr),
        fnr_pair=np.maximum(0, np.maximum(1 - delta - growth * fpr, (1 - delta - fpr) / growth)),
        attack=roc(members, others),
        attack_auc=auc(members, others),
        found=rate_of(members > ndtri(0.99) * math.sqrt(releases)),
        best_auc=every.best_auc(),
        best_found=float(every.best_tpr(np.array([0.01]))[0]),
    )  # fmt: skip


# ---- Sampling ------------------------------------------------------------------------------------------------------


class Sampled(NamedTuple):
    """Per-example DP-SGD (each utterance clipped alone) with one noise multiplier, under three ways to make batches.

    Clipped alone, an utterance moves the sum by C, so that the noise over that is z itself.
    """

    rate: float  # q, the share of the corpus that a step sees
    noise_multiplier: float
    delta: float
    steps: int
    passes: int  # how often the steps begin the corpus, with disjoint batches
    after: NDArray[np.int64]  # (P), numbers of steps; the last is that of the run
    everyone: Array  # (P), epsilon where every utterance is in every step (exact)
    shuffled: Array  # (P), one shuffled pass after the other; exact for an attacker who knows the batches (Gaussian DP)
    now_and_then: NDArray[np.int64]  # (P''), some of `after`, with the last
    sampled: Array  # (P''), after as many, under Poisson sampling at rate q, by privacy loss distributions
    at_least: float  # no epsilon below that holds for a shuffled pass: `shuffled_at_least`; 0 before a pass is whole
    output: Array  # (P'), values of one step's noisy sum along the utterance's gradient, in units of C
    without: Array  # (P'), its density where the utterance is absent
    with_it: Array  # (P'), where it takes part
    sampled_with: Array  # (P'), where it is in the batch with chance q


def sampling(rate: float, noise_multiplier: float, steps: int, delta: float) -> Sampled:
    """`steps` steps at rate `rate`.

    UsageError: a rate outside (0, 1], no noise, steps no whole number from 1 to 10^6, delta outside (0, 1).
    """
    check_whole("number of steps", steps, 1, 10**6)
    check_delta(delta)
    after = np.unique(np.geomspace(1, steps, POINTS).round().astype(np.int64))
    now_and_then = after[np.unique(np.linspace(0, len(after) - 1, SEEN).round().astype(int))]
    samples = [releases_of(noise_multiplier, count, rate) for count in now_and_then.tolist()]
    passes, whole = [math.ceil(k * rate * (1 - 1e-12)) for k in after.tolist()], steps_of_a_pass(rate)
    exact = cache(lambda count: GaussianDP(releases_of(noise_multiplier, count)).epsilon(delta))
    everyone, shuffled = (np.array([exact(count) for count in counts]) for counts in (after.tolist(), passes))
    output = np.linspace(-4 * noise_multiplier, 1 + 4 * noise_multiplier, 201)
    without, with_it = (
        np.exp(-(((output - mean) / noise_multiplier) ** 2) / 2) / (noise_multiplier * math.sqrt(2 * math.pi))
        for mean in (0.0, 1.0)
    )
    return Sampled(
        rate, noise_multiplier, delta, steps, passes[-1], after, everyone, shuffled, now_and_then,
        sampled=np.array([PrivacyLossDistribution(schedule).epsilon(delta) for schedule in samples]),
        at_least=shuffled_at_least(noise_multiplier, whole, 1, delta) if steps >= whole else 0.0,
        output=output,
        without=without,
        with_it=with_it,
        sampled_with=(1 - rate) * without + rate * with_it,
    )  # fmt: skip


def steps_of_a_pass(rate: float) -> int:
    """After how many steps of disjoint batches everyone has been in one."""
    return math.ceil(1 / rate - 1e-9)


# ---- Table 1 -------------------------------------------------------------------------------------------------------


class Behind(NamedTuple):
    """What may lie behind one printed epsilon of Table 1."""

    cell: ExplainedEpsilon  # the printed value, and what holds
    epochs: int  # T
    taus: tuple[float, ...]  # of the paper's grid; (0,) without decay
    z0: Array  # (taus, 120), the z0 that gives the printed value exactly, for T = 1 ... 120
    fits: list[tuple[float, float, float]]  # tau, least and largest z0 of the paper's that give it within rounding
    setting: Setting  # the first that fits; with another T where none does
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
    fits, setting = [(tau, least, most) for tau, least, most in here if least <= most], cell.closest
    if fits:
        tau, *span = fits[0]
        value = float(np.clip(z0[taus.index(tau), epochs - 1], *span))
        tau_told = None if cell.decay is Decay.NONE else tau
        setting = Setting(tau_told, epochs, value, (span[0], span[1]), cell.log10_epsilon)
    return Behind(cell, epochs, taus, z0, fits, setting, table1().epochs[epochs - 1].reachable)


def fallen_by_decay() -> list[tuple[Table1Row, Decay]]:
    """The cells whose printed epsilon is below that of the same row without decay."""
    decays = (Decay.LINEAR, Decay.EXPONENTIAL)
    return [(r, d) for r in printed.TABLE_1 for d in decays if r.changes[d].log10_epsilon < r.none.log10_epsilon]
