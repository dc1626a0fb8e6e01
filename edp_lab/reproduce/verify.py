"""A long look at what privacy rests on: the accountants, the keys of the noise, and the audit of the real step.

Random settings by the thousand are judged beside dp_accounting, and no epsilon may be too small. Each mechanism of its
own kind lies between bounds (`edp_lab.reproduce.verify_mechanisms`). Audits by the thousand are held against a step
whose claim is exactly true, and few may refute it.

Floor: dp_accounting's privacy loss distribution rounded *optimistically* is a lower bound on the true epsilon at any
grid width, so no sound account may lie below it. Peer: its pessimistic distribution and its RDP are upper bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import binomtest

from edp_lab.attacks.audit.bounds import Finding
from edp_lab.attacks.audit.step_audit import audit_mechanism
from edp_lab.privacy import GaussianDP, Mechanism, PrivacyLossDistribution, RenyiDP, Schedule
from edp_lab.privacy.accountants import ORDERS
from edp_lab.privacy.csprng import Purpose, SecretStream, key_from_seed
from edp_lab.reproduce.verify_mechanisms import TRIALS, Between, verified, verify_mechanism
from edp_lab.training.processes import usable_cores

EPSILONS = (0.05, 30.0)
SAMPLED, COMPARED = 20, 200  # every so many settings is Poisson-sampled, is compared with dp_accounting's RDP too
KEYS = 30_000  # streams that one worker looks at a time
BLOCK = 250  # settings that one worker checks at a time
AUDITS = 100  # that one worker makes at a time
DRAWS, CONFIDENCE = 50, 0.95  # of each audit
WHOLE = ORDERS % 1 == 0


class Setting(NamedTuple):
    """A random schedule, delta, and the epsilon of ours."""

    schedule: Schedule
    delta: float
    epsilon: float


def verify(
    settings: int, mechanisms: int, keys: int, audits: int, seed: int, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Check so many random settings of schedules, of each mechanism, keys and audits; the same for the same seed.

    `progress` is told how many settings are done, of `settings` and those of each mechanism together.
    """
    start, processes = time.perf_counter(), usable_cores()
    rows: list[dict[str, Any]] = []
    between: dict[str, list[Between]] = {name: [] for name in TRIALS}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for block in pool.map(partial(_checked, seed), _blocks(settings, BLOCK)):
            rows += block
            progress(len(rows))
        trials = [(name, number) for name in TRIALS for number in range(mechanisms)]
        for done, ((name, _), one) in enumerate(zip(trials, pool.map(partial(_between, seed), trials), strict=True), 1):
            between[name].append(one)
            progress(len(rows) + done)
        refuted = sum(pool.map(_refutations, _blocks(audits, AUDITS)))
        firsts = np.concatenate(list(pool.map(first_draws, _blocks(keys, KEYS))))
    sampled = [row for row in rows if row["sampled"]]
    compared = [row["renyi_error"] for row in sampled if row["renyi_error"] is not None]
    return {
        "settings": len(rows),  # one in twenty of them with Poisson sampling
        "seed": seed,
        "too_small": sum(row["too_small"] for row in rows),  # an epsilon below the floor
        # Relative distances: of the closed form from the pessimistic distribution, of RDP from dp_accounting's at whole
        # orders; the most by which our distribution lies above the pessimistic one and, the median, above the floor.
        "closed_form_error": max((row["closed_form_error"] for row in rows if not row["sampled"]), default=0.0),
        "renyi_error": max(compared, default=0.0),
        "renyi_compared": len(compared),
        "sampled": len(sampled),
        "distribution_excess": max((row["distribution_excess"] for row in sampled), default=0.0),
        "over_floor": float(np.median([row["over_floor"] for row in sampled])) if sampled else 0.0,
        "mechanisms": {name: verified(found) for name, found in between.items() if found},
        "keys": len(firsts),  # streams of noise: other keys, steps and devices, a third each
        "repeated_first_draws": len(firsts) - len(np.unique(firsts)),  # 64-bit numbers that occurred before
        "audits": audits,  # of a sound step, each with a key of its own and 50 draws of the real step a side
        "refuted": refuted,  # how many refuted the claim, which is true; at a confidence of 95 %, at most 5 % may
        "seconds": time.perf_counter() - start,
        "processes": processes,
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


def _checked(seed: int, numbers: range) -> list[dict[str, Any]]:
    return [check(random_setting(seed, n, n % SAMPLED == 0), peer=n % COMPARED == 0) for n in numbers]


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


def check(setting: Setting, peer: bool) -> dict[str, Any]:
    """One row of the sweep; `peer` adds the comparison with dp_accounting's RDP, which is slow."""
    schedule, delta, epsilon = setting
    sampled = schedule.sampling_rate < 1
    row: dict[str, Any] = {"sampled": sampled}
    if sampled:
        # Rounding costs each release up to one grid width.
        width = epsilon / max(200, 10 * int(schedule.counts.sum()))
        floor, ceiling = (_peer_epsilon(schedule, delta, width, pessimistic) for pessimistic in (False, True))
        row |= {"distribution_excess": epsilon / ceiling - 1, "over_floor": epsilon / max(floor, 1e-12) - 1}
        row["renyi_error"] = _renyi_error(schedule) if peer else None
    else:
        # Composed Gaussians are one Gaussian, which the peer needs to discretise only once.
        merged = Schedule(np.array([1 / schedule.mu]), np.array([1]))
        floor, ceiling = (_peer_epsilon(merged, delta, epsilon / 100, pessimistic) for pessimistic in (False, True))
        row["closed_form_error"] = abs(epsilon / ceiling - 1)
    return {**row, "too_small": bool(epsilon < floor * (1 - 1e-9))}


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
