"""The price of tuning: what it costs that the best of several private runs was chosen by looking at private scores."""

from __future__ import annotations

import math
from numbers import Integral

from scipy.optimize import brentq

from edp_lab.errors import UsageError
from edp_lab.privacy.accountant import Accountant, check_delta
from edp_lab.privacy.gdp import GaussianDP
from edp_lab.privacy.noise_schedule import Schedule
from edp_lab.privacy.pld import PrivacyLossDistribution
from edp_lab.privacy.renyi import ORDERS, RenyiDP, rdp_epsilon

MOST_TRIALS = 1e6


def composed(trial: Schedule, trials: int, delta: float, tight: bool = False) -> float:
    """epsilon of publishing everything about `trials` runs: they compose like so many runs in a row.

    Exact (Gaussian DP, sqrt(trials) mu) without sampling, else Renyi DP, or privacy loss distributions if `tight`.

    Raises:
        UsageError: trials that are no whole number from 1 to a million, delta outside (0, 1).
    """
    if not isinstance(trials, Integral) or not 1 <= trials <= MOST_TRIALS:
        raise UsageError(f"the number of trials is {trials}: it must be a whole number from 1 to {MOST_TRIALS:g}")
    schedule = Schedule(trial.noise_multipliers, trial.counts * float(trials), trial.sampling_rate)
    sampled: type[Accountant] = PrivacyLossDistribution if tight else RenyiDP
    return (GaussianDP if trial.sampling_rate == 1 else sampled)(schedule).epsilon(delta)


def best_of_random(trial: Schedule, mean_trials: float, delta: float, eta: float = 1.0) -> float:
    """epsilon of publishing only the best of K runs, K itself drawn at random: Papernot and Steinke 2022, theorem 2.

    K follows the truncated negative binomial distribution with shape `eta` (1 geometric, 0 logarithmic) and mean
    `mean_trials`; hyper-parameters are drawn anew, at random, for each run. For every pair of orders a, b > 1

        rdp'(a) <= rdp(a) + (1 + eta)(1 - 1/b) rdp(b) + (1 + eta) ln(1/gamma) / b + ln E[K] / (a - 1).

    The *number* of runs must stay secret and random: choosing the best of a fixed number has no such bound, and only
    the winner may be looked at.

    Raises:
        UsageError: mean_trials not above 1, eta not above -1 or too close to it for this mean, delta outside (0, 1).
    """
    check_delta(delta)
    if not 1 < mean_trials <= MOST_TRIALS:
        raise UsageError(f"the mean number of trials is {mean_trials}: it must lie above 1, at most {MOST_TRIALS:g}")
    if not -1 < eta < math.inf:
        raise UsageError(f"eta is {eta}: it must be greater than -1 (1 is the geometric distribution)")
    single = RenyiDP(trial).rdp
    gamma = stopping_rate(mean_trials, eta)
    extra = (1 + eta) * ((1 - 1 / ORDERS) * single + math.log(1 / gamma) / ORDERS).min()
    return rdp_epsilon(single + extra + math.log(mean_trials) / (ORDERS - 1), delta)


def stopping_rate(mean_trials: float, eta: float) -> float:
    """gamma of the truncated negative binomial distribution with shape eta and this mean (their definition 1).

    Raises:
        UsageError: no float gamma gives this mean.
    """

    def mean(log_gamma: float) -> float:
        odds, x = math.expm1(-log_gamma), eta * log_gamma  # 1/gamma - 1
        return odds / -log_gamma * (x / math.expm1(x) if x else 1.0)

    low, high = -700.0, -1e-12
    if not mean(high) < mean_trials < mean(low):
        raise UsageError(f"no shape eta {eta} has a mean of {mean_trials} trials: take eta 1 or a larger mean")
    return math.exp(brentq(lambda x: math.log(mean(x) / mean_trials), low, high, xtol=1e-14)) * (
        1 - 1e-12
    )  # smaller costs more
