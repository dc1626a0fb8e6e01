"""A long look at what privacy rests on: the accountants, the keys of the noise, and the audit of the real step.

Random settings by the thousand are judged beside dp_accounting, and no epsilon may be too small. Audits by the thousand
are held against a step whose claim is exactly true, and few may refute it.

Floor: dp_accounting's privacy loss distribution rounded *optimistically* is a lower bound on the true epsilon at any
grid width, so no sound account may lie below it. Peer: its pessimistic distribution and its RDP are upper bounds.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest

from edp_lab.attacks.audit.bounds import Finding
from edp_lab.attacks.audit.step_audit import audit_mechanism
from edp_lab.privacy import GaussianDP, Mechanism, RenyiDP, Schedule
from edp_lab.privacy.accountants import ORDERS
from edp_lab.privacy.csprng import Purpose, SecretStream, key_from_seed

EPSILONS = (0.05, 30.0)
SAMPLED, COMPARED = 20, 200  # every so many settings is Poisson-sampled, is compared with dp_accounting's RDP too
KEYS = 30_000  # streams that one worker looks at a time
BLOCK = 250  # settings that one worker checks at a time
AUDITS = 100  # that one worker makes at a time
DRAWS, CONFIDENCE = 50, 0.95  # of each audit
WHOLE = ORDERS % 1 == 0


@dataclass(frozen=True)
class Setting:
    """A random schedule, delta, and the epsilon of ours."""

    schedule: Schedule
    delta: float
    epsilon: float


@dataclass(frozen=True)
class Sweep:
    """What a sweep found.

    Attributes:
        settings: how many random settings were checked, one in twenty of them with Poisson sampling.
        too_small: settings whose epsilon lies below the floor; must be 0.
        closed_form_error: largest relative distance of the closed form from the pessimistic distribution.
        renyi_error: largest relative distance of RDP from dp_accounting's, at whole orders, over `renyi_compared`.
        keys: streams of noise whose first draw was looked at: other keys, steps and devices, a third each.
        repeated_first_draws: how many of these 64-bit numbers occurred before; must be 0.
        renyi_excess: median distance of RDP's epsilon from the floor, relative: what the fast accountant gives away.
        audits: audits of a sound step, each with a noise key of its own and 50 draws of the real step a side.
        refuted: how many of them refuted the claim, which is true; at a confidence of 95 %, at most 5 % may.
    """

    settings: int
    seed: int
    too_small: int
    closed_form_error: float
    renyi_error: float
    renyi_compared: int
    renyi_excess: float
    keys: int
    repeated_first_draws: int
    audits: int
    refuted: int
    seconds: float
    processes: int

    @property
    def passed(self) -> bool:
        agree = self.closed_form_error <= 1e-3 and self.renyi_error <= 1e-4
        return agree and self.too_small == 0 and self.repeated_first_draws == 0 and self.audits_hold

    @property
    def audits_hold(self) -> bool:
        """No evidence, at the level 1e-3, that the audit is wrong more often than it says."""
        return bool(binomtest(self.refuted, self.audits, 1 - CONFIDENCE, alternative="greater").pvalue > 1e-3)


def verify(
    settings: int, keys: int, audits: int, seed: int = 0, progress: Callable[[int], None] = lambda done: None
) -> Sweep:
    """Check so many random settings and keys, and make so many audits, on all cores; the same ones for the same seed.

    `progress` is told how many settings are done.
    """
    start, processes = time.perf_counter(), os.cpu_count() or 1
    blocks = [(seed, first, min(BLOCK, settings - first)) for first in range(0, settings, BLOCK)]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for block in pool.map(_check_block, blocks):
            rows += block
            progress(len(rows))
        refuted = sum(pool.map(_refutations, range(0, audits, AUDITS), [audits] * math.ceil(audits / AUDITS)))
        firsts = np.concatenate(list(pool.map(_first_draws, range(0, keys, KEYS), [keys] * math.ceil(keys / KEYS))))
    sampled = [row for row in rows if row["sampled"]]
    compared = [row["renyi_error"] for row in sampled if row["renyi_error"] is not None]
    return Sweep(
        settings=len(rows),
        seed=seed,
        too_small=sum(row["too_small"] for row in rows),
        closed_form_error=max((row["closed_form_error"] for row in rows if not row["sampled"]), default=0.0),
        renyi_error=max(compared, default=0.0),
        renyi_compared=len(compared),
        renyi_excess=float(np.median([row["excess"] for row in sampled])) if sampled else 0.0,
        keys=len(firsts),
        repeated_first_draws=len(firsts) - len(np.unique(firsts)),
        audits=audits,
        refuted=refuted,
        seconds=time.perf_counter() - start,
        processes=processes,
    )


def random_setting(seed: int, number: int, sampled: bool) -> Setting:
    """Up to 8 distinct z, delta from 1e-9 to 1e-3, epsilon within `EPSILONS`."""
    rng = np.random.default_rng((seed, number))
    while True:
        distinct = rng.integers(1, 9)
        q = 10 ** rng.uniform(-3.5, -0.3) if sampled else 1.0
        z = 10 ** (rng.uniform(-1.3 if sampled else -0.3, 1.2) + rng.uniform(-0.15, 0.15, distinct))
        schedule = Schedule(z, rng.integers(1, 7 if sampled else 40, distinct), q)
        delta = 10 ** rng.uniform(-9, -3)
        epsilon = (RenyiDP if sampled else GaussianDP)(schedule).epsilon(delta)
        if EPSILONS[0] <= epsilon <= EPSILONS[1]:
            return Setting(schedule, delta, epsilon)


def check(setting: Setting, peer: bool) -> dict[str, Any]:
    """One row of the sweep; `peer` adds the comparison with dp_accounting's RDP, which is slow."""
    sampled = setting.schedule.sampling_rate < 1
    row: dict[str, Any] = {"sampled": sampled, "renyi_error": None}
    if sampled:
        # Rounding costs each release up to one grid width.
        interval = setting.epsilon / max(100, 10 * int(setting.schedule.counts.sum()))
        floor = _distribution(setting, False, interval).get_epsilon_for_delta(setting.delta)
        row["excess"] = setting.epsilon / max(floor, 1e-12) - 1
        if peer:
            row["renyi_error"] = _renyi_error(setting.schedule)
    else:
        # Composed Gaussians are one Gaussian, which the peer needs to discretise only once.
        merged = Setting(Schedule(np.array([1 / setting.schedule.mu]), np.array([1])), setting.delta, setting.epsilon)
        floor = _distribution(merged, False, setting.epsilon / 100).get_epsilon_for_delta(setting.delta)
        ceiling = _distribution(merged, True, setting.epsilon / 100).get_epsilon_for_delta(setting.delta)
        row["closed_form_error"] = abs(setting.epsilon / ceiling - 1)
    row["too_small"] = bool(setting.epsilon < floor * (1 - 1e-9))
    return row


def _check_block(block: tuple[int, int, int]) -> list[dict[str, Any]]:
    seed, first, count = block
    numbers = range(first, first + count)
    return [check(random_setting(seed, n, n % SAMPLED == 0), peer=n % COMPARED == 0) for n in numbers]


def _first_draws(first: int, keys: int) -> np.ndarray:
    """The first 64 bits of up to `KEYS` noise streams, a function of their numbers alone."""
    draws = []
    for number in range(first, min(first + KEYS, keys)):
        part, place = number % 3, number // 3
        key = key_from_seed(place) if part == 0 else key_from_seed(-1)
        path = ((0, 0), (place, 0), (0, place + 1))[part]
        draws.append(np.empty(1, dtype=np.uint64))
        SecretStream(key, Purpose.NOISE, *path).fill(draws[-1])
    return np.concatenate(draws)


def _refutations(first: int, audits: int) -> int:
    """How many of up to `AUDITS` audits refute a claim that is exactly true."""
    torch.set_num_threads(1)  # the processes share the cores
    true = Mechanism.sound(clip_norm=1.0, z0=1.0, num_devices=8, micro_batch_size=8)
    keys = (key_from_seed(number) for number in range(first, min(first + AUDITS, audits)))
    verdicts = [audit_mechanism(true, 1e-5, key, DRAWS, CONFIDENCE).verdict for key in keys]
    return verdicts.count(Finding.REFUTED)


def _distribution(setting: Setting, pessimistic: bool, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    schedule, total = setting.schedule, None
    for z, count in zip(schedule.noise_multipliers.tolist(), schedule.counts.tolist(), strict=True):
        one = pld.from_gaussian_mechanism(
            z,
            value_discretization_interval=interval,
            sampling_prob=schedule.sampling_rate,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,  # the sharper method has no optimistic form
        ).self_compose(count)
        total = one if total is None else total.compose(one)
    return total


def _renyi_error(schedule: Schedule) -> float:
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant(orders=ORDERS[WHOLE].tolist())
    theirs.compose(schedule.events())
    ours = RenyiDP(schedule).rdp[WHOLE]
    return float(np.max(np.abs(ours / np.maximum(theirs._rdp, 1e-9) - 1)[theirs._rdp > 1e-9]))
