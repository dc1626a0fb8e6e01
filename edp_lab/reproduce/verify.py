"""A long look at what privacy rests on: the accountants, the keys of the noise, and the audit of the real step.

Random settings by the thousand are judged beside dp_accounting, and no epsilon may be too small. Each mechanism of its
own kind lies between bounds (`edp_lab.reproduce.verify_mechanisms`). Audits by the thousand are held against a step
whose claim is exactly true, and few may refute it.

Floor: losses rounded down to a grid, a few lines that share nothing with the accountants. dp_accounting's privacy loss
distribution rounded *optimistically* is a floor, too: no sound account lies below either at any grid width. Peer: its
pessimistic distribution and its RDP are upper bounds.

    CACHE/<key>.json    what a block of settings came to, so that whoever kills the work and starts it again goes on

The key is of the code, too: another accountant is checked anew.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr
from scipy.stats import binomtest

from edp_lab.attacks.audit.bounds import Finding
from edp_lab.attacks.audit.step_audit import audit_mechanism
from edp_lab.privacy import (
    GaussianDP,
    Mechanism,
    PrivacyLossDistribution,
    RenyiDP,
    Schedule,
    accountants,
    loss_distribution,
)
from edp_lab.privacy.accountants import ORDERS
from edp_lab.privacy.csprng import Purpose, SecretStream, key_from_seed
from edp_lab.reproduce.verify_mechanisms import TRIALS, Between, verified, verify_mechanism
from edp_lab.training.processes import usable_cores
from edp_lab.training.result_cache import ResultCache, Say, content_key, content_of

EPSILONS = (0.05, 30.0)
COMPARED, RENYI = 50, 500  # every so many sampled settings is compared with dp_accounting's distributions, and its RDP
FINENESS, LONGEST = 60, 2**17  # bins of the floor's grid for each release, of epsilon in all; most of them in all
AHEAD = 8.0  # nats
KEYS = 30_000  # streams that one worker looks at a time
BLOCK = 250  # settings that one worker checks at a time
AUDITS = 100  # that one worker makes at a time
DRAWS, CONFIDENCE = 50, 0.95  # of each audit
WHOLE = ORDERS % 1 == 0
PRIVACY = [str(module.__file__) for module in (accountants, loss_distribution)]


class Setting(NamedTuple):
    """A random schedule, delta, and the epsilon of ours."""

    schedule: Schedule
    delta: float
    epsilon: float


def verify(
    settings: int, mechanisms: int, keys: int, audits: int, seed: int, cache: Path, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Check so many random schedules, with Poisson sampling and as many without, so many settings of each mechanism,
    keys and audits; the same for the same seed.

    `progress` is told how many settings are done, of `settings` and those of each mechanism together.
    """
    start, processes = time.perf_counter(), usable_cores()
    blocks, code = _blocks(settings, BLOCK), [content_of(file) for file in (*PRIVACY, __file__)]
    found = ResultCache(cache, "choose another $XDG_CACHE_HOME").results(
        [content_key([], "verify", code, seed, one.start, one.stop) for one in blocks],
        [(seed, one) for one in blocks],
        checked,
        processes,
        lambda done, _: progress(min(settings, done * BLOCK)),
    )
    rows = {name: [row for block in found for row in block[name]] for name in ("sampled", "everyone")}
    between: dict[str, list[Between]] = {name: [] for name in TRIALS}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        trials = [(name, number) for name in TRIALS for number in range(mechanisms)]
        for done, ((name, _), one) in enumerate(zip(trials, pool.map(partial(_between, seed), trials), strict=True), 1):
            between[name].append(one)
            progress(settings + done)
        refuted = sum(pool.map(_refutations, _blocks(audits, AUDITS)))
        firsts = np.concatenate(list(pool.map(first_draws, _blocks(keys, KEYS))))
    return {
        **summary(rows["sampled"], rows["everyone"]),
        "seed": seed,
        "mechanisms": {name: verified(found) for name, found in between.items() if found},
        "keys": len(firsts),  # streams of noise: other keys, steps and devices, a third each
        "repeated_first_draws": len(firsts) - len(np.unique(firsts)),  # 64-bit numbers that occurred before
        "audits": audits,  # of a sound step, each with a key of its own and 50 draws of the real step a side
        "refuted": refuted,  # how many refuted the claim, which is true; at a confidence of 95 %, at most 5 % may
        "seconds": time.perf_counter() - start,
        "processes": processes,
    }


def summary(sampled: list[dict[str, Any]], everyone: list[dict[str, Any]]) -> dict[str, Any]:
    """How many epsilons are too small; relative distances, the largest ones and medians."""

    def most(name: str, rows: list[dict[str, Any]]) -> float:
        return max((row[name] for row in rows if name in row), default=0.0)

    return {
        "sampled": len(sampled),
        "everyone": len(everyone),
        "too_small": sum(row["too_small"] for row in sampled + everyone),  # an epsilon below a floor
        "over_floor": float(np.median([row["over_floor"] for row in sampled])) if sampled else 0.0,
        "compared": sum("distribution_excess" in row for row in sampled),
        # By how much ours lies above dp_accounting's pessimistic distribution; distances of the closed form from that,
        # and of RDP from dp_accounting's at whole orders.
        "distribution_excess": most("distribution_excess", sampled),
        "closed_form_error": most("closed_form_error", everyone),
        "renyi_error": most("renyi_error", sampled),
    }


def passed(found: Mapping[str, Any]) -> bool:
    """Nothing too small or repeated, peers that agree, and audits that are no more often wrong than they say.

    That is, there is no evidence to the contrary at the level 1e-3.
    """
    wrong = binomtest(found["refuted"], found["audits"], 1 - CONFIDENCE, alternative="greater").pvalue <= 1e-3
    agree = found["closed_form_error"] <= 1e-3 and found["renyi_error"] <= 1e-4 and found["distribution_excess"] <= 1e-3
    outside = sum(one["too_small"] + one["too_large"] for one in found["mechanisms"].values())
    return bool(agree and found["too_small"] == found["repeated_first_draws"] == outside == 0 and not wrong)


def _blocks(total: int, size: int) -> list[range]:
    return [range(first, min(first + size, total)) for first in range(0, total, size)]


# ---- Accountants -----------------------------------------------------------------------------------------------------


def checked(job: tuple[int, range], say: Say) -> dict[str, Any]:
    """Rows of the settings of these numbers; the rare rows that say more cost most of the time."""
    seed, numbers = job
    sampled = [check_sampled(random_setting(seed, n, True), n % COMPARED == 0, n % RENYI == 0) for n in numbers]
    return {"sampled": sampled, "everyone": [check_everyone(random_setting(seed, n, False)) for n in numbers]}


def _between(seed: int, trial: tuple[str, int]) -> Between:
    return verify_mechanism(trial[0], seed, trial[1])


def random_setting(seed: int, number: int, sampled: bool) -> Setting:
    """Up to 8 distinct z, delta from 1e-9 to 1e-3, epsilon within `EPSILONS`."""
    rng = np.random.default_rng((seed, number))
    while True:
        distinct = rng.integers(1, 9)
        q = 10 ** rng.uniform(-3.5, -0.3) if sampled else 1.0
        z = 10 ** (rng.uniform(-1.3 if sampled else -0.3, 1.2) + rng.uniform(-0.15, 0.15, distinct))
        schedule = Schedule(z, rng.integers(1, 7 if sampled else 40, distinct), q)
        delta = 10 ** rng.uniform(-9, -3)
        epsilon = (PrivacyLossDistribution if sampled else GaussianDP)(schedule).epsilon(delta)
        if EPSILONS[0] <= epsilon <= EPSILONS[1]:
            return Setting(schedule, delta, epsilon)


def check_sampled(setting: Setting, compared: bool, renyi: bool) -> dict[str, Any]:
    """Beside the floor; on demand beside dp_accounting's distributions on both sides, and ours beside its RDP."""
    schedule, delta, epsilon = setting
    low = floor(schedule, delta, epsilon)
    row: dict[str, Any] = {"over_floor": epsilon / max(low, 1e-12) - 1}
    if compared:
        width = epsilon / max(200, 10 * int(schedule.counts.sum()))  # it costs each release up to that
        lower, upper = (_peer_epsilon(schedule, delta, width, pessimistic) for pessimistic in (False, True))
        low = max(low, lower)
        row["distribution_excess"] = epsilon / upper - 1
    if renyi:
        row["renyi_error"] = _renyi_error(schedule)
    return {**row, "too_small": bool(epsilon < low * (1 - 1e-9))}


def check_everyone(setting: Setting) -> dict[str, Any]:
    """Beside dp_accounting's distributions of one Gaussian, which composed Gaussians are."""
    schedule, delta, epsilon = setting
    merged = Schedule(np.array([1 / schedule.mu]), np.array([1]))
    lower, upper = (_peer_epsilon(merged, delta, epsilon / 100, pessimistic) for pessimistic in (False, True))
    return {"closed_form_error": abs(epsilon / upper - 1), "too_small": bool(epsilon < lower * (1 - 1e-9))}


def floor(schedule: Schedule, delta: float, about: float) -> float:
    """An epsilon below the true one, which should be `about` so large: of an utterance removed, losses rounded down.

    A loss is rounded to a multiple of a width, and to what is `AHEAD` of epsilon; sums beyond wrap around to smaller
    ones. None is below K ln(1 - q). 1e-12 is taken off delta for rounding errors of normal probabilities and transform.
    """
    z, counts, q = schedule.noise_multipliers[:, None], schedule.counts.tolist(), schedule.sampling_rate
    top = 1.6 * about + AHEAD
    width = max(about / (FINENESS * sum(counts)), top / LONGEST)
    farthest = min(top, float(np.log1p(q * np.expm1((9 + 1 / z) / z - 1 / (2 * z * z))).max()))
    lowest = math.floor(math.log1p(-q) / width)
    edges = width * np.arange(lowest, math.floor(farthest / width) + 1)
    x = z * np.log(np.maximum(1 + np.expm1(edges) / q, 1e-300)) + 1 / (2 * z)  # in deviations, where losses are those
    beyond = (1 - q) * ndtr(-x) + q * ndtr(1 / z - x)
    masses = beyond - np.concatenate([beyond[:, 1:], np.zeros((len(z), 1))], axis=1)
    bottom = lowest * sum(counts)
    size = next_fast_len(int(top / width) - bottom, real=True)
    total = np.ones(size // 2 + 1, dtype=complex)
    for transform, count in zip((rfft(row, size) for row in masses), counts, strict=True):
        for _ in range(count):
            total *= transform
    chances, losses = irfft(total, size)[-bottom:], width * np.arange(size + bottom)
    above, scaled = (np.cumsum(mass[::-1])[::-1] for mass in (chances, chances * np.exp(-losses)))
    more = np.flatnonzero(above - np.exp(losses) * scaled > delta + 1e-12)
    place = min(int(more[-1]) + 1, len(losses) - 1) if len(more) else 0
    return max(0.0, math.log((above[place] - delta - 1e-12) / scaled[place])) if place else 0.0


def _peer_epsilon(schedule: Schedule, delta: float, interval: float, pessimistic: bool) -> float:
    from dp_accounting.pld import privacy_loss_distribution as pld

    total: Any = None
    for z, count in zip(schedule.noise_multipliers.tolist(), schedule.counts.tolist(), strict=True):
        one = pld.from_gaussian_mechanism(
            z,
            value_discretization_interval=interval,
            sampling_prob=schedule.sampling_rate,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,  # the sharper method has no optimistic form
        ).self_compose(count)
        total = one if total is None else total.compose(one)
    return float(total.get_epsilon_for_delta(delta))


def _renyi_error(schedule: Schedule) -> float:
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant(orders=ORDERS[WHOLE].tolist())
    theirs.compose(schedule.events())
    ours = RenyiDP(schedule).rdp[WHOLE]
    return float(np.max(np.abs(ours / np.maximum(theirs._rdp, 1e-9) - 1)[theirs._rdp > 1e-9]))


# ---- Keys of the noise, and audits -----------------------------------------------------------------------------------


def first_draws(numbers: range) -> np.ndarray:
    """The first 64 bits of these noise streams, a function of their numbers alone."""
    draws = np.empty((len(numbers), 1), dtype=np.uint64)
    for draw, number in zip(draws, numbers, strict=True):
        part, place = number % 3, number // 3
        key = key_from_seed(place if part == 0 else -1)
        SecretStream(key, Purpose.NOISE, *((0, 0), (place, 0), (0, place + 1))[part]).fill(draw)
    return draws[:, 0]


def _refutations(numbers: range) -> int:
    """How many audits, each with the key of its number, refute a claim that is exactly true."""
    torch.set_num_threads(1)  # the processes share the cores
    true = Mechanism.sound(clip_norm=1.0, z0=1.0, num_devices=8, micro_batch_size=8)
    verdicts = [audit_mechanism(true, 1e-5, key, DRAWS, CONFIDENCE).verdict for key in map(key_from_seed, numbers)]
    return verdicts.count(Finding.REFUTED)
