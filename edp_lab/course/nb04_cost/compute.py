"""What ``04_what_does_it_cost.ipynb`` computes: bills of runs, privacy losses, sampling. No widgets, no torch.

    result = run_bill(SOUND, C, z0, decay, tau, num_devices, epochs, delta, utterances=1, target=8.0)    # pure
    print(result.claimed[-1], result.exact[-1], result.z0_needed)

The mechanism and its accountants are those of `edp_lab.privacy`. Table 1 is in `table1_cells`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri

from edp_lab.attacks.statistics import Rate, Roc, auc, clopper_pearson, roc
from edp_lab.errors import UsageError
from edp_lab.privacy import (
    Accountant,
    Alpha,
    GaussianDP,
    Guarantee,
    Mechanism,
    NoGuarantee,
    PrivacyLossDistribution,
    RenyiDP,
    ReshufflingZCDP,
    Schedule,
    accountant_for,
    claim,
    gdp_delta,
    judge,
    zcdp_delta,
)
from edp_lab.privacy.accountant import check_delta
from edp_lab.privacy.calibration import Budget, affordable_epochs, calibrate_z0
from edp_lab.privacy.composition import gaussian_loss_density
from edp_lab.privacy.renyi import rdp_epsilon

Array = NDArray[np.float64]

BATCH = 64  # utterances in a step, cut into one micro-batch per device
POINTS = 40  # of a curve
LIMIT = 100_000  # draws: beyond it a slider would stall
AS_PRINTED, PUBLIC_ALPHA, SOUND = "as printed", "as printed, α public", "sound"
VARIANTS = (AS_PRINTED, PUBLIC_ALPHA, SOUND)


# ---- The bill of a run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RunBill:
    """What a run of T epochs costs by three accounts, after some of its epochs. Disjoint batches, secret randomness.

    Attributes:
        utterances: that one person may have: `zcdp`, `exact` and the last two numbers are for all of them together.
            The paper's claim knows one.
        after: (P), numbers of epochs; the last is T.
        claimed: (P), the paper's accounting, z taken at face value.
        zcdp, exact: (P), zCDP and Gaussian DP of noise over true sensitivity, with a public alpha.
        z_set, z_true: (T), noise multipliers by epoch: as set, and over true sensitivity.
        share: (T), of the sum of 1/z^2, what each epoch spends.
        guarantee: of the whole run.
        target: an epsilon; `z0_needed` and `epochs_allowed` (both with a public alpha) would meet it. None: no z0 does.

    Where no number exists there is NaN.
    """

    mechanism: Mechanism
    utterances: int
    delta: float
    after: NDArray[np.int64]
    claimed: Array
    zcdp: Array
    exact: Array
    z_set: Array
    z_true: Array
    share: Array
    guarantee: Guarantee
    target: float
    z0_needed: float | None
    epochs_allowed: int

    @property
    def epochs(self) -> int:
        return int(self.after[-1])


def mechanism_of(variant: str, clip_norm: float, z0: float, decay: str, tau: float, num_devices: int) -> Mechanism:
    """One of `VARIANTS` on batches of 64, one micro-batch per device.

    Raises:
        UsageError: as `Mechanism`; 64 devices or more.
    """
    if num_devices >= BATCH:
        raise UsageError(
            f"{num_devices} devices for a batch of {BATCH}: Algorithm 1 asks for fewer devices than utterances in a "
            "batch; lower N"
        )
    size = math.ceil(BATCH / max(1, num_devices))
    if variant == SOUND:
        return Mechanism.sound(clip_norm, z0, num_devices, size, decay, tau)
    alpha = Alpha.PRIVATE if variant == AS_PRINTED else Alpha.PUBLIC
    return Mechanism.as_printed(clip_norm, z0, num_devices, size, decay, tau, alpha)


def with_public_alpha(mechanism: Mechanism) -> Mechanism:
    """The same, were its layer scales read off public text."""
    return replace(mechanism, alpha=Alpha.PUBLIC) if mechanism.alpha is Alpha.PRIVATE else mechanism


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
    guarantee, public = judge(mechanism, epochs, delta, False, None, utterances), with_public_alpha(mechanism)
    after = np.unique(np.linspace(1, epochs, POINTS).round().astype(np.int64))
    claimed = [claim(mechanism, mechanism.bill(int(t)), delta).epsilon for t in after]
    factors = mechanism.decay.factors(np.arange(epochs), mechanism.tau)
    least = factors.min()
    weights = np.array([1.0 if factor == least else (least / factor) ** 2 for factor in factors])
    zcdp, exact = np.array([_true_epsilons(public, int(t), delta, utterances) for t in after]).T
    budget = Budget(target, delta, utterances_per_person=utterances)
    return RunBill(
        mechanism,
        utterances,
        delta,
        after,
        np.array([math.nan if epsilon is None else epsilon for epsilon in claimed]),
        zcdp,
        exact,
        z_set=mechanism.z0 * factors,
        z_true=mechanism.noise_multiplier(0) * factors,
        share=weights / weights.sum(),
        guarantee=guarantee,
        target=target,
        z0_needed=_z0_needed(public, epochs, budget),
        epochs_allowed=affordable_epochs(public, budget) if z0 else 0,
    )


def _true_epsilons(public: Mechanism, epochs: int, delta: float, utterances: int) -> tuple[float, float]:
    """By zCDP and by Gaussian DP; in exact arithmetic, where `judge` would also ask whether floats can carry it."""
    try:
        exact = accountant_for(public, public.bill(epochs), None, utterances)
    except NoGuarantee:
        return math.nan, math.nan
    return ReshufflingZCDP(exact.schedule).epsilon(delta), exact.epsilon(delta)


def _z0_needed(public: Mechanism, epochs: int, budget: Budget) -> float | None:
    try:
        return calibrate_z0(public, epochs, budget)
    except UsageError:
        return None


@dataclass(frozen=True)
class Account:
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
    return [_timed(name, lambda kind=kind: kind(schedule).epsilon(delta)) for name, kind in kinds.items()]  # type: ignore[misc]


def _timed(name: str, account: Callable[[], float]) -> Account:
    start = time.perf_counter()
    epsilon = account()
    return Account(name, epsilon, time.perf_counter() - start)


# ---- Privacy losses and what an attacker makes of them -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Loss:
    """T Gaussian releases of one mu each: their privacy loss, and the attack that makes the most of them.

    Attributes:
        mu_each, mu: of one release, and of all together.
        epsilon, zcdp: at `delta`: exact, and by zCDP.
        loss: (P), in nats.
        with_it, without: (P), density of the loss where the utterance took part, and where it did not.
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
    without: Array
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
    one, every = (GaussianDP(Schedule(np.array([1 / mu]), np.array([count]))) for count in (1, releases))
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
        without=density[::-1],
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

    Attributes:
        rate: q, the share of the corpus that a step sees.
        after: (P), numbers of steps; the last is that of the run.
        everyone: (P), epsilon where every utterance is in every step (exact).
        shuffled: (P), with disjoint batches, one shuffled pass after the other: an upper bound that no proof with the
            batches known to the attacker improves (Gaussian DP; exact for such an attacker).
        sampled: (P), under Poisson sampling at rate q, by Renyi DP.
        at_least: no epsilon below that holds for a shuffled pass, see `shuffled_at_least`; 0 before a pass is whole.
        output, without, with_it, sampled_with: (P'), density of one step's noisy sum along the utterance's gradient
            (in units of C): where it is absent, where it takes part, and where it is in the batch with chance q.
    """

    rate: float
    noise_multiplier: float
    steps: int
    delta: float
    after: NDArray[np.int64]
    everyone: Array
    shuffled: Array
    sampled: Array
    at_least: float
    output: Array
    without: Array
    with_it: Array
    sampled_with: Array

    @property
    def passes(self) -> int:
        return whole_passes(self.steps, self.rate)


def sampling(rate: float, noise_multiplier: float, steps: int, delta: float) -> Sampled:
    """`steps` steps at rate `rate`.

    Raises:
        UsageError: a rate outside (0, 1], no noise, steps no whole number from 1 to 10^6, delta outside (0, 1).
    """
    check_whole("number of steps", steps, 1, 10**6)
    check_delta(delta)
    one = RenyiDP(_sampled(rate, noise_multiplier, 1))
    after = np.unique(np.geomspace(1, steps, POINTS).round().astype(np.int64))
    passes = np.array([whole_passes(int(k), rate) for k in after])
    output = np.linspace(-4 * noise_multiplier, 1 + 4 * noise_multiplier, 201)
    without, with_it = (_normal(output, at, noise_multiplier) for at in (0.0, 1.0))
    return Sampled(
        rate,
        noise_multiplier,
        steps,
        delta,
        after,
        everyone=_disjoint(noise_multiplier, after, delta),
        shuffled=_disjoint(noise_multiplier, passes, delta),
        sampled=np.array([rdp_epsilon(one.rdp * float(k), delta) for k in after]),
        at_least=shuffled_at_least(noise_multiplier, round(1 / rate), delta) if steps >= round(1 / rate) else 0.0,
        output=output,
        without=without,
        with_it=with_it,
        sampled_with=(1 - rate) * without + rate * with_it,
    )


def _sampled(rate: float, noise_multiplier: float, steps: int) -> Schedule:
    """Clipped alone, an utterance moves the sum by C, so that the noise over that is z itself."""
    return Schedule(np.array([noise_multiplier]), np.array([steps]), rate)


def whole_passes(steps: int, rate: float) -> int:
    """How often the corpus has been begun after so many steps of disjoint batches."""
    return math.ceil(steps * rate * (1 - 1e-12))


def _disjoint(noise_multiplier: float, counts: NDArray[np.int64], delta: float) -> Array:
    every = (GaussianDP(Schedule(np.array([noise_multiplier]), np.array([count]))) for count in counts)
    return np.array([account.epsilon(delta) for account in every])


def _normal(x: Array, mean: float, std: float) -> Array:
    return np.exp(-(((x - mean) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))


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
    z, delta = result.noise_multiplier, result.delta
    yield _timed("every utterance in every step", lambda: float(_disjoint(z, np.array([result.steps]), delta)[0]))
    yield _timed("shuffled, exact", lambda: float(_disjoint(z, np.array([result.passes]), delta)[0]))
    schedule = _sampled(result.rate, z, result.steps)
    yield _timed("Poisson, Rényi DP", lambda: RenyiDP(schedule).epsilon(delta))
    yield _timed("Poisson, loss distribution", lambda: PrivacyLossDistribution(schedule).epsilon(delta))


# ---- Small parts ---------------------------------------------------------------------------------------------------


def check_whole(name: str, value: int, least: int, most: int) -> None:
    if not isinstance(value, Integral) or not least <= value <= most:
        raise UsageError(f"the {name} is {value}: it must be a whole number from {least} to {most:,}")
