"""Check whether an epsilon claimed with another library holds for the sampler that was used.

The most common mistake is to account for shuffled batches as Poisson sampling. Required settings have no defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr

from edp_lab.errors import UsageError, check_whole
from edp_lab.privacy.gdp import check_delta, gdp_epsilon
from edp_lab.privacy.mechanism import SMALLEST_RATE
from edp_lab.privacy.pld import PrivacyLossDistribution
from edp_lab.privacy.schedule import MOST_RELEASES, Schedule

NEIGHBOURS = {"shuffle": "zero-out", "poisson": "add or remove one"}  # neighbouring relation by sampler
DECISIVE = (  # names of required options; of two alternatives, exactly one is required
    "claimed", "sampler", "n", "batch_size sampling_rate", "steps epochs", "noise_multiplier", "delta",
    "micro_batch_size",
)  # fmt: skip
SMALLEST_TAIL = 1e-290  # probability below which floats lose digits


class Verdict(NamedTuple):
    """Verdict on a claim; `measured` is 0 if this module knows no attack."""

    status: str  # "holds", "not proven" (`guaranteed` is larger, or None) or "false" (`measured` exceeds the claim)
    claimed: float
    guaranteed: float | None  # the smallest epsilon proven for the sampler that was used
    measured: float  # lower bound: an attack shows that no smaller epsilon holds
    method: str  # the accountant that proves `guaranteed`, or the reason why there is none
    neighbours: str


def check_claim(settings: Mapping[str, Any]) -> Verdict:
    """Judge the claim for a DP-SGD run from the settings in `DECISIVE`.

    Each step is assumed to release only the sum of gradients clipped to C plus fresh secret noise of `noise_multiplier`
    times C. At a micro-batch size above 1, means of this many gradients are clipped, and each clipped mean can move by
    2C. Raises UsageError if a setting is missing, given in two ways, or out of range.
    """
    _check(settings)
    claimed, sampler, z, delta = (settings[name] for name in ("claimed", "sampler", "noise_multiplier", "delta"))
    n, alone, measured = settings["n"], settings["micro_batch_size"] == 1, 0.0
    batch = settings.get("batch_size") or n * settings["sampling_rate"]
    full, all_used = math.floor(n / batch), math.ceil(n / batch)  # steps per epoch without and with a partial batch
    epochs = settings.get("epochs") or math.ceil(settings["steps"] / full)
    fewest, most = (settings.get("steps") or epochs * steps for steps in (full, all_used))
    guaranteed, method = None, "with Poisson sampling, an extra example moves others to other micro-batches"
    if sampler == "shuffle":
        method = "Gaussian DP, one release per epoch"
        guaranteed = gdp_epsilon(math.sqrt(epochs) / z * (1 if alone else 2), delta)
        if alone:  # it is unknown whether a partial last batch was used or dropped
            kept = shuffled_at_least(z, all_used, fewest // all_used, delta)
            measured = min(kept, shuffled_at_least(z, full, fewest // full, delta, max(0.0, 1 - full * batch / n)))
    elif alone:
        sampled = Schedule(np.array([z]), np.array([most]), max(batch / n, SMALLEST_RATE))
        guaranteed, method = PrivacyLossDistribution(sampled).bound(delta)
    if n * delta >= 1:
        guaranteed, method = None, "delta is not below 1/n, so publishing one whole example would satisfy it"
    if guaranteed is not None and not math.isfinite(guaranteed):
        guaranteed, method = None, "epsilon exceeds the largest float"
    proven = guaranteed is not None and guaranteed <= claimed * (1 + 1e-9)
    status = "holds" if proven else "false" if claimed < measured else "not proven"
    return Verdict(status, claimed, guaranteed, measured, method, NEIGHBOURS[sampler])


def _check(settings: Mapping[str, Any]) -> None:
    if unclear := [names for names in DECISIVE if len(settings.keys() & set(names.split())) != 1]:
        options = ", ".join(f"--{names.replace(' ', ' or --').replace('_', '-')}" for names in unclear)
        raise UsageError(f"not given, or given in two ways: {options}; epsilon depends on these, so give each once")
    for name in settings.keys() & {"n", "steps", "epochs", "micro_batch_size"}:
        check_whole(name, settings[name], 1)
    for name, value in settings.items():
        if name != "sampler" and not (isinstance(value, int | float) and 0 < value <= MOST_RELEASES):
            raise UsageError(f"{name} is {value!r}: it must be a number above 0, at most {MOST_RELEASES:,}")
    check_delta(settings["delta"])
    if settings["sampler"] not in NEIGHBOURS:
        raise UsageError(f"sampler is {settings['sampler']!r}: choose one of {', '.join(NEIGHBOURS)}")
    n, together = settings["n"], settings["micro_batch_size"]
    batch = settings.get("batch_size") or n * settings["sampling_rate"]
    if not together <= batch <= n:
        raise UsageError(f"batches of {batch:g} do not fit n = {n:,} or micro-batches of {together}: fix these numbers")


# ---- A lower bound ---------------------------------------------------------------------------------------------------


def shuffled_at_least(noise_multiplier: float, batches: int, passes: int, delta: float, dropped: float = 0.0) -> float:
    """Lower bound on epsilon for `passes` shuffled passes: no smaller epsilon holds at `delta` (zero-out).

    `dropped`: the share of the corpus that each pass leaves out.

    Consider a corpus in which the target utterance has the gradient +C and all others have -C. From each batch's sum,
    subtract the sum of as many gradients -C. Only noise is left, except in the target's batch: there, 2C is added
    with the target and C if it is zeroed out. The largest of these differences exceeds c with probability P with the
    target and Q without it, so epsilon >= ln((P - delta) / Q) for every c. We take the best c on a grid.
    Source: the lower bound of Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024 (arXiv 2403.17673), section
    3, for one pass.
    """
    c = np.linspace(0, 2 + 12 * noise_multiplier, 400)
    other = log_ndtr(c / noise_multiplier)
    with np.errstate(divide="ignore"):  # logarithm of 0 if nothing is dropped
        here, absent = np.log1p(-dropped), np.log(dropped) + other
    ours = (np.logaddexp(here + log_ndtr((c - pull) / noise_multiplier), absent) for pull in (2.0, 1.0))
    p, q = (-np.expm1(passes * ((batches - 1) * other + log_probability)) for log_probability in ours)
    seen = (p > delta) & (q > SMALLEST_TAIL)
    return float((np.log(p[seen] - delta) - np.log(q[seen])).max(initial=0.0))
