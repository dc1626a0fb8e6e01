"""How fast the accountants are, beside their peers, in one run: interleaved, medians, ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from edp_lab.privacy import Mechanism, PrivacyLossDistribution, RenyiDP, Schedule, true_epsilon

DELTA = 1e-5


def bench_accounting(
    repeats: int = 7, epochs: int = 1000, distinct: int = 200, progress: Callable[[str], None] = lambda name: None
) -> dict[str, Any]:
    """Seconds and epsilon of each accountant on two tasks.

    closed_form: so many epochs of disjoint batches with linear decay, each with its own noise multiplier.
    sampled: so many distinct noise multipliers under Poisson sampling, as with decaying noise.
    """
    disjoint = Mechanism.sound(1.0, 100.0, 8, 8, "linear", 0.01)
    schedule = Schedule(np.linspace(2.0, 1.0, distinct), np.full(distinct, 10), 0.01)
    closed = {
        "edp_lab": lambda: true_epsilon(disjoint, epochs, DELTA),
        "dp_accounting PLD": lambda: _peer_pld(disjoint.schedule(disjoint.bill(epochs))),
    }
    sampled = {
        "edp_lab": lambda: RenyiDP(schedule).epsilon(DELTA),
        "dp_accounting RDP": lambda: _peer_rdp(schedule),
        "dp_accounting PLD": lambda: _peer_pld(schedule),
        "prv_accountant": lambda: _peer_prv(schedule),
    }
    result: dict[str, Any] = {
        "closed_form": _race(closed, repeats, progress),
        "sampled": _race(sampled, repeats, progress),
    }
    ours, theirs = (result["sampled"][name]["epsilon"] for name in ("edp_lab", "dp_accounting RDP"))
    result["renyi_distance"] = abs(ours - theirs) / theirs
    return result


def _race(
    contestants: dict[str, Callable[[], float]], repeats: int, progress: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Every contestant once per round; the slow ones (over a second) only in the first two rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    epsilons: dict[str, float | None] = {}
    absent: dict[str, str] = {}
    for round_number in range(repeats):
        for name, call in contestants.items():
            slow = seconds[name] and min(seconds[name]) > 1
            if name in absent or (slow and round_number >= 2):
                continue
            progress(name)
            start = time.perf_counter()
            try:
                epsilons[name] = call()
            except ImportError:
                absent[name] = "not installed: pip install prv-accountant"
                continue
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) if times else None for name, times in seconds.items()}
    ours = statistics.median(seconds["edp_lab"])
    return {
        name: {
            "seconds": median,
            "times_ours": None if median is None else median / ours,
            "rounds": len(seconds[name]),
            "epsilon": epsilons.get(name),
            **({"absent": absent[name]} if name in absent else {}),
        }
        for name, median in medians.items()
    }


def _peer_rdp(schedule: Schedule) -> float:
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    accountant.compose(schedule.events())
    return float(accountant.get_epsilon(DELTA))


def _peer_pld(schedule: Schedule) -> float:
    return PrivacyLossDistribution(schedule, interval=1e-3).epsilon(DELTA)


def _peer_prv(schedule: Schedule) -> float:
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    releases = [
        PoissonSubsampledGaussianMechanism(noise_multiplier=z, sampling_probability=schedule.sampling_rate)
        for z in schedule.noise_multipliers.tolist()
    ]
    counts = schedule.counts.tolist()
    accountant = PRVAccountant(prvs=releases, max_self_compositions=counts, eps_error=0.05, delta_error=DELTA / 100)
    return float(accountant.compute_epsilon(DELTA, counts)[2])
