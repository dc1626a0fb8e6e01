"""What ``04_what_does_it_cost.ipynb`` computes: bills of runs, privacy losses, sampling, Table 1. No widgets, no torch.

    result = run_bill(SOUND, C, z0, decay, tau, num_devices, epochs, delta, utterances=1, target=8.0)    # pure
    print(result.claimed[-1], result.exact[-1], result.z0_needed)
    behind("CLC", "ATIS", "exponential", epochs=30).setting    # what may lie behind one printed epsilon

The mechanism and its accountants are those of `edp_lab.privacy`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri

from edp_lab.attacks.statistics import Rate, Roc, auc, clopper_pearson, roc
from edp_lab.course.kit.controls import Array, check_whole, mechanism_of
from edp_lab.errors import UsageError
from edp_lab.privacy.accountants import (
    Accountant,
    GaussianDP,
    PrivacyLossDistribution,
    RenyiDP,
    ReshufflingZCDP,
    check_delta,
    gdp_delta,
    rdp_epsilon,
    zcdp_delta,
    zcdp_epsilon,
)
from edp_lab.privacy.calibration import Budget, affordable_epochs, calibrate_z0
from edp_lab.privacy.composition import gaussian_loss_density
from edp_lab.privacy.guarantee import Guarantee, accountant_for, claim, claimed_accountant, judge
from edp_lab.privacy.mechanism import Decay, Mechanism, NoGuarantee, Schedule
from edp_lab.reproduce.paper.printed import (
    HALF_DIGIT,
    MAX_EPOCHS,
    NUM_GPUS,
    TABLE_1,
    TAUS,
    Z0_RANGE,
    ExplainedEpsilon,
    Setting,
    Table1Row,
    explain_table1,
)

POINTS = 40  # of a curve
LIMIT = 100_000  # draws: beyond it a slider would stall


# ---- The bill of a run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RunBill:
    """What a run of T epochs costs by three accounts, after some of its epochs. Disjoint batches, secret randomness.

    Attributes:
        budget: a target epsilon, delta, and the utterances that one person may have: `zcdp`, `exact` and the last two
            numbers are for all of them together. The paper's claim knows one.
        after: (P), numbers of epochs; the last is T.
        claimed: (P), the paper's accounting, z taken at face value.
        zcdp, exact: (P), zCDP and Gaussian DP of noise over true sensitivity, with a public alpha.
        factors: (T), the noise of each epoch, over that of the first.
        guarantee: of the whole run.
        z0_needed, epochs_allowed: either would meet the target, with a public alpha. None: no z0 does.

    Where no number exists there is NaN.
    """

    mechanism: Mechanism
    budget: Budget
    after: NDArray[np.int64]
    claimed: Array
    zcdp: Array
    exact: Array
    factors: Array
    guarantee: Guarantee
    z0_needed: float | None
    epochs_allowed: int

    @property
    def epochs(self) -> int:
        return int(self.after[-1])

    @property
    def z_set(self) -> Array:
        """(T), noise multipliers by epoch, as set."""
        return self.mechanism.z0 * self.factors

    @property
    def z_true(self) -> Array:
        """(T), noise over true sensitivity by epoch."""
        return self.mechanism.noise_multiplier(0) * self.factors

    @property
    def share(self) -> Array:
        """(T), of the sum of 1/z^2, what each epoch spends."""
        least = self.factors.min()
        weights = np.divide(least, self.factors, out=np.ones_like(self.factors), where=self.factors > least) ** 2
        return weights / weights.sum()

    @property
    def last_half(self) -> int:
        """How many of the last epochs spend half of what all spend."""
        return int(np.searchsorted(np.cumsum(self.share[::-1]), 0.5 - 1e-9)) + 1

    @property
    def looseness(self) -> float | None:
        """By what share zCDP's epsilon exceeds the exact one; None where that is endless."""
        over = self.zcdp[-1] / self.exact[-1] - 1 if self.exact[-1] else math.inf
        return float(over) if math.isfinite(over) else None


def run_bill(
    variant: str,
    clip_norm: float,
    z0: float,
    decay: str,
    tau: float,
    num_devices: int,
    epochs: int,
    delta: float,
    utterances: int,
    target: float,
) -> RunBill:
    """The bill of `epochs` epochs.

    Raises:
        UsageError: as `mechanism_of` and `judge`; no epochs, a target that is not positive.
    """
    check_whole("number of epochs", epochs, 1, 1000)
    mechanism = mechanism_of(variant, clip_norm, z0, decay, tau, num_devices)
    guarantee, public = judge(mechanism, epochs, delta, False, None, utterances), mechanism.with_public_alpha()
    after = np.unique(np.linspace(1, epochs, POINTS).round().astype(np.int64))
    budget = Budget(target, delta, utterances_per_person=utterances)
    zcdp, exact = np.array([_true_epsilons(public, int(t), budget) for t in after]).T
    return RunBill(
        mechanism,
        budget,
        after,
        claimed=np.array([claim(mechanism, mechanism.bill(int(t)), delta).epsilon for t in after], float),
        zcdp=zcdp,
        exact=exact,
        factors=mechanism.decay.factors(np.arange(epochs), mechanism.tau),
        guarantee=guarantee,
        z0_needed=_z0_needed(public, epochs, budget),
        epochs_allowed=affordable_epochs(public, budget) if z0 else 0,
    )


def _true_epsilons(public: Mechanism, epochs: int, budget: Budget) -> tuple[float, float]:
    """By zCDP and by Gaussian DP; in exact arithmetic, where `judge` would also ask whether floats can carry it."""
    try:
        exact = accountant_for(public, public.bill(epochs), None, budget.utterances_per_person)
    except NoGuarantee:
        return math.nan, math.nan
    return ReshufflingZCDP(exact.schedule).epsilon(budget.delta), exact.epsilon(budget.delta)


def _z0_needed(public: Mechanism, epochs: int, budget: Budget) -> float | None:
    try:
        return calibrate_z0(public, epochs, budget)
    except UsageError:
        return None


class Account(NamedTuple):
    """What one account says, and how long it took."""

    name: str
    epsilon: float
    seconds: float


def accounts(schedule: Schedule, delta: float) -> list[Account]:
    """The same releases, everyone in each of them, by four accountants; the closed form last, which is exact."""
    kinds: dict[str, type[Accountant]] = {
        "zCDP": ReshufflingZCDP,
        "Rényi DP": RenyiDP,
        "privacy loss distribution": PrivacyLossDistribution,
        "Gaussian DP": GaussianDP,
    }
    return [_timed(name, kind, schedule, delta) for name, kind in kinds.items()]


def _timed(name: str, kind: type[Accountant], schedule: Schedule, delta: float) -> Account:
    start = time.perf_counter()
    epsilon = kind(schedule).epsilon(delta)
    return Account(name, epsilon, time.perf_counter() - start)


def _releases(noise_multiplier: float, count: int, rate: float = 1.0) -> Schedule:
    """So many with the same noise over sensitivity."""
    return Schedule(np.array([noise_multiplier]), np.array([count]), rate)


# ---- Privacy losses and what an attacker makes of them -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Loss:
    """T Gaussian releases of one mu each: their privacy loss, and the attack that makes the most of them.

    Attributes:
        mu_each, mu: of one release, and of all together.
        epsilon, zcdp: at `delta`: exact, and by zCDP.
        loss: (P), in nats, as far below 0 as above.
        with_it: (P), density of the loss where the utterance took part.
        excess: (P), (1 - e^(epsilon - loss)) of the first beyond epsilon: its area is delta.
        epsilons, deltas, zcdp_deltas: (P), delta for each epsilon: exact, and by zCDP.
        fpr, fnr, fnr_each: (P), the trade-off curve of all releases, and that of one.
        fnr_pair: (P), what (epsilon, delta) alone would promise.
        attack: the best attack on `draws` simulated runs with the utterance and as many without.
        found: the share that it finds where its threshold, set beforehand, allows 1 % false alarms; 95 % interval.
        best_auc, best_found: the most that any attack can expect of either.
    """

    mu_each: float
    releases: int
    mu: float
    delta: float
    epsilon: float
    zcdp: float
    draws: int
    seed: int
    loss: Array
    with_it: Array
    excess: Array
    epsilons: Array
    deltas: Array
    zcdp_deltas: Array
    fpr: Array
    fnr: Array
    fnr_each: Array
    fnr_pair: Array
    attack: Roc
    attack_auc: float
    found: Rate
    best_auc: float
    best_found: float

    @property
    def without(self) -> Array:
        """(P), density of the loss where the utterance did not take part."""
        return self.with_it[::-1]


def privacy_loss(mu: float, releases: int, delta: float, draws: int, seed: int) -> Loss:
    """`releases` of mu each, everyone in each of them.

    Raises:
        UsageError: mu not from 0.001 to 1000, releases no whole number from 1 to 1000, draws none from 20 to 100,000
            or beyond 10^6 numbers in all, delta outside (0, 1), a negative seed.
    """
    if not 1e-3 <= mu <= 1e3:
        raise UsageError(f"mu is {mu}: it must lie between 0.001 and 1000")
    check_whole("number of epochs", releases, 1, 1000)
    check_whole("number of draws", draws, 20, min(LIMIT, 10**6 // releases))
    check_whole("seed", seed, 0, 2**31)
    one, every = (GaussianDP(_releases(1 / mu, count)) for count in (1, releases))
    epsilon, zcdp = every.epsilon(delta), ReshufflingZCDP(every.schedule)
    loss = np.linspace(-(every.mu**2) / 2 - 4.5 * every.mu, every.mu**2 / 2 + 4.5 * every.mu, 301)
    density = gaussian_loss_density(loss, every.mu)
    epsilons = np.linspace(0, 1.3 * zcdp.epsilon(delta), 80)
    fpr = np.concatenate([[0.0], np.logspace(-6, -2, 40), np.linspace(0.01, 1, 100)[1:]])
    members, others = simulated_attack(mu, releases, draws, seed)
    hits = int((members > ndtri(0.99) * math.sqrt(releases)).sum())
    return Loss(
        mu,
        releases,
        every.mu,
        delta,
        epsilon,
        zcdp.epsilon(delta),
        draws,
        seed,
        loss,
        with_it=density,
        excess=density * -np.expm1(np.minimum(epsilon - loss, 0)),
        epsilons=epsilons,
        deltas=np.array([gdp_delta(every.mu, e) for e in epsilons]),
        zcdp_deltas=np.array([zcdp_delta(zcdp.rho, e) for e in epsilons]),
        fpr=fpr,
        fnr=1 - every.best_tpr(fpr),
        fnr_each=1 - one.best_tpr(fpr),
        fnr_pair=_promised(epsilon, delta, fpr),
        attack=roc(members, others),
        attack_auc=auc(members, others),
        found=Rate(hits / draws, clopper_pearson(hits, draws)),
        best_auc=every.best_auc(),
        best_found=float(every.best_tpr(np.array([0.01]))[0]),
    )


def _promised(epsilon: float, delta: float, fpr: Array) -> Array:
    """Least FNR that (epsilon, delta)-DP alone allows (Dong et al. 2022, proposition 2.5)."""
    growth = math.exp(min(epsilon, 700.0))
    return np.maximum(0, np.maximum(1 - delta - growth * fpr, (1 - delta - fpr) / growth))


def simulated_attack(mu: float, releases: int, draws: int, seed: int) -> tuple[Array, Array]:
    """Scores of the best attack, in runs with the utterance and without: (draws), (draws).

    A release is what the attacker is left with after subtracting all that is known, along the utterance's gradient:
    noise of standard deviation 1, plus mu where the utterance took part. The sum of all releases is the best score.
    """
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((2, draws, releases)).sum(axis=2)
    return noise[0] + mu * releases, noise[1]


# ---- Sampling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sampled:
    """Per-example DP-SGD (each utterance clipped alone) with one noise multiplier, under three ways to make batches.

    Clipped alone, an utterance moves the sum by C, so that the noise over that is z itself.

    Attributes:
        rate: q, the share of the corpus that a step sees.
        after: (P), numbers of steps; the last is that of the run.
        everyone: (P), epsilon where every utterance is in every step (exact).
        shuffled: (P), with disjoint batches, one shuffled pass after the other: an upper bound that no proof with the
            batches known to the attacker improves (Gaussian DP; exact for such an attacker).
        sampled: (P), under Poisson sampling at rate q, by Renyi DP.
        at_least: no epsilon below that holds for a shuffled pass, see `shuffled_at_least`; 0 before a pass is whole.
        output: (P'), values of one step's noisy sum along the utterance's gradient, in units of C.
        without, with_it: (P'), its density where the utterance is absent, and where it takes part.
    """

    rate: float
    noise_multiplier: float
    delta: float
    after: NDArray[np.int64]
    everyone: Array
    shuffled: Array
    sampled: Array
    at_least: float
    output: Array
    without: Array
    with_it: Array

    @property
    def steps(self) -> int:
        return int(self.after[-1])

    @property
    def passes(self) -> int:
        return whole_passes(self.steps, self.rate)

    @property
    def sampled_with(self) -> Array:
        """(P'), density where the utterance is in the batch with chance q."""
        return (1 - self.rate) * self.without + self.rate * self.with_it


def sampling(rate: float, noise_multiplier: float, steps: int, delta: float) -> Sampled:
    """`steps` steps at rate `rate`.

    Raises:
        UsageError: a rate outside (0, 1], no noise, steps no whole number from 1 to 10^6, delta outside (0, 1).
    """
    check_whole("number of steps", steps, 1, 10**6)
    check_delta(delta)
    one = RenyiDP(_releases(noise_multiplier, 1, rate))
    after = np.unique(np.geomspace(1, steps, POINTS).round().astype(np.int64))
    passes, whole = [whole_passes(int(k), rate) for k in after], round(1 / rate)
    output = np.linspace(-4 * noise_multiplier, 1 + 4 * noise_multiplier, 201)
    everyone, shuffled = (
        np.array([GaussianDP(_releases(noise_multiplier, count)).epsilon(delta) for count in counts])
        for counts in (after, passes)
    )
    without, with_it = (
        np.exp(-(((output - mean) / noise_multiplier) ** 2) / 2) / (noise_multiplier * math.sqrt(2 * math.pi))
        for mean in (0.0, 1.0)
    )
    return Sampled(
        rate,
        noise_multiplier,
        delta,
        after,
        everyone,
        shuffled,
        sampled=np.array([rdp_epsilon(one.rdp * float(k), delta) for k in after]),
        at_least=shuffled_at_least(noise_multiplier, whole, delta) if steps >= whole else 0.0,
        output=output,
        without=without,
        with_it=with_it,
    )


def whole_passes(steps: int, rate: float) -> int:
    """How often the corpus has been begun after so many steps of disjoint batches."""
    return math.ceil(steps * rate * (1 - 1e-12))


def shuffled_at_least(noise_multiplier: float, batches: int, delta: float) -> float:
    """An epsilon that one shuffled pass exceeds: no smaller one holds at `delta`, whoever proves it.

    Take a corpus in which every other utterance pulls by -C and ours by +C. Each batch's sum, less what it would be
    with -C throughout, then is noise, but for our batch: 2C with the utterance, C where its slot contributes nothing
    (zero-out). An attacker who only asks whether the largest of these sums exceeds c is right with probabilities P and
    Q, so epsilon >= ln((P - delta) / Q) for every c; the best of a grid is taken.
    Source: the lower bound of Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024 (arXiv 2403.17673).
    """
    c = np.linspace(0, 2 + 10 * noise_multiplier, 2000)
    nothing_else = (batches - 1) * log_ndtr(c / noise_multiplier)
    p, q = (-np.expm1(log_ndtr((c - pull) / noise_multiplier) + nothing_else) for pull in (2.0, 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return max(0.0, float(np.nanmax(np.where(p > delta, np.log(p - delta) - np.log(q), -np.inf))))


def tight_accounts(result: Sampled) -> Iterator[Account]:
    """Epsilon of the whole run, one account after the other; the last, privacy loss distributions, takes seconds."""
    z, sampled = result.noise_multiplier, _releases(result.noise_multiplier, result.steps, result.rate)
    yield _timed("every utterance in every step", GaussianDP, _releases(z, result.steps), result.delta)
    yield _timed("shuffled, exact", GaussianDP, _releases(z, result.passes), result.delta)
    yield _timed("Poisson, Rényi DP", RenyiDP, sampled, result.delta)
    yield _timed("Poisson, loss distribution", PrivacyLossDistribution, sampled, result.delta)


# ---- Table 1 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Behind:
    """What may lie behind one printed epsilon of Table 1.

    Attributes:
        cell: the printed value, and what holds.
        epochs: T.
        z0: (taus, 120), the z0 that gives the printed value exactly, for T = 1 ... 120.
        low, high: (taus), the z0 that give it within rounding at T, cut to the paper's [1e-6, 1]; NaN where none do.
    """

    cell: ExplainedEpsilon
    epochs: int
    z0: Array
    low: Array
    high: Array

    @property
    def taus(self) -> tuple[float, ...]:
        """Of the paper's grid; (0,) without decay."""
        return _taus(self.cell.decay)

    @property
    def fits(self) -> list[tuple[float, float, float]]:
        """Every tau that gives the printed value with T epochs, and its least and largest z0."""
        found = zip(self.taus, self.low.tolist(), self.high.tolist(), strict=True)
        return [fit for fit in found if not math.isnan(fit[1])]

    @property
    def setting(self) -> Setting:
        """The first that gives the printed value with T epochs; with another T where none does."""
        if not self.fits:
            return self.cell.closest
        tau, low, high = self.fits[0]
        z0 = float(np.clip(self.z0[self.taus.index(tau), self.epochs - 1], low, high))
        decays = self.cell.decay is not Decay.NONE
        return Setting(tau if decays else None, self.epochs, z0, (low, high), self.cell.log10_epsilon)

    @property
    def reachable(self) -> int:
        """How many of the 36 printed values T explains."""
        return table1().epochs[self.epochs - 1].reachable


table1 = cache(explain_table1)  # the search behind Table 1, made once


def behind(model: str, corpus: str, decay: str, epochs: int) -> Behind:
    """The settings that a cell of Table 1 may stand for with T = `epochs`.

    Raises:
        UsageError: no such cell, epochs no whole number from 1 to 120.
    """
    check_whole("number of epochs T", epochs, 1, MAX_EPOCHS)
    cells = [c for c in table1().rows if (c.model, c.corpus, c.decay) == (model, corpus, decay)]
    if not cells:
        raise UsageError(f"Table 1 has no cell for {model}, {corpus} and {decay} decay")
    [cell] = cells
    rho = _rho_by_epochs(cell.decay)
    most, exact, least = (
        np.sqrt(rho / _rho_of(10 ** (cell.log10_epsilon + shift), cell.delta)) for shift in (-HALF_DIGIT, 0, HALF_DIGIT)
    )
    low, high = np.maximum(least[:, epochs - 1], Z0_RANGE[0]), np.minimum(most[:, epochs - 1], Z0_RANGE[1])
    fits = low <= high
    low, high = np.where(fits, low, np.nan), np.where(fits, high, np.nan)
    return Behind(cell, epochs, exact, low, high)


def _taus(decay: Decay) -> tuple[float, ...]:
    return TAUS.get(decay, (0.0,))


@cache
def _rho_by_epochs(decay: Decay) -> Array:
    """(taus, 120), the paper's rho of 1 ... 120 epochs at z0 = 1; it falls as 1 / z0^2."""

    def rho(tau: float, epochs: int) -> float:
        mechanism = Mechanism.as_printed(1.0, 1.0, NUM_GPUS, 2, decay, tau)
        return claimed_accountant(mechanism, mechanism.bill(epochs)).rho

    return np.array([[rho(tau, t) for t in range(1, MAX_EPOCHS + 1)] for tau in _taus(decay)])


def _rho_of(epsilon: float, delta: float) -> float:
    """The rho that the paper's conversion turns into epsilon."""

    def excess(log_rho: float) -> float:
        return math.log(zcdp_epsilon(math.exp(log_rho), delta) / epsilon)

    return math.exp(brentq(excess, -50.0, math.log(epsilon), xtol=1e-14))


def fallen_by_decay() -> list[tuple[Table1Row, Decay]]:
    """The cells whose printed epsilon is below that of the same row without decay."""
    decays = (Decay.LINEAR, Decay.EXPONENTIAL)
    return [(r, d) for r in TABLE_1 for d in decays if r.changes[d].log10_epsilon < r.none.log10_epsilon]
