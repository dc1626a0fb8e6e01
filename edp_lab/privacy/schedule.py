"""Count a mechanism's releases, and build the schedule of Gaussian releases that an accountant composes.

    releases = releases_by_epoch(mechanism, epochs=30)      # {epoch: releases in which one utterance may take part}
    schedule = schedule_of(mechanism, releases)             # noise multipliers and counts
    GaussianDP(schedule).epsilon(1e-5)

`PrivacyLedger.releases_by_epoch` counts the actual releases of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from edp_lab.errors import UsageError, check_whole
from edp_lab.privacy.mechanism import MOST, Adjacency, Mechanism, NoGuarantee, check_sampling_rate

MOST_RELEASES = 2.0**50


@dataclass(frozen=True)
class Schedule:
    """Gaussian releases for adaptive composition: `counts[k]` releases with noise multiplier `noise_multipliers[k]`.

    Multipliers are relative to the sensitivity under the chosen adjacency. They are sorted and equal multipliers are
    merged, so the order of releases does not matter. Raises UsageError if a value is outside the ranges below.

    Attributes:
        noise_multipliers: noise multipliers z > 0 in increasing order (K).
        counts: numbers of releases, at least 1 each (K).
        sampling_rate: q in (0, 1], the probability that an utterance independently takes part in a release (Poisson
            sampling); 1 if it takes part in all releases, as with disjoint batches (one release per epoch).
    """

    noise_multipliers: np.ndarray
    counts: np.ndarray
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        z, counts = np.atleast_1d(np.asarray(self.noise_multipliers, float)), np.atleast_1d(np.asarray(self.counts))
        check_sampling_rate(self.sampling_rate)
        if z.shape != counts.shape or z.ndim != 1:
            raise UsageError(f"{z.size} noise multipliers and {counts.size} counts: give one count per multiplier")
        if not (np.isfinite(z) & (z > 0)).all():
            raise UsageError("a noise multiplier z must be a number above 0: without noise, epsilon is infinite")
        whole = np.isfinite(counts) & (counts >= 0) & (counts == np.floor(counts))
        if not whole.all() or counts.astype(float).sum() > MOST_RELEASES:
            raise UsageError(f"the number of releases must be a whole number from 0 to {MOST_RELEASES:.0e}")
        merged, place = np.unique(z[counts > 0], return_inverse=True)
        total = np.zeros(len(merged), dtype=np.int64)
        np.add.at(total, place, counts[counts > 0].astype(np.int64))
        object.__setattr__(self, "noise_multipliers", merged)
        object.__setattr__(self, "counts", total)

    @property
    def mu(self) -> float:
        """mu = sqrt(sum counts / z^2) of the releases without sampling (Dong et al. 2022, corollary 3.3)."""
        if not len(self.counts):
            return 0.0
        smallest = float(self.noise_multipliers[0])
        total = math.sqrt(float(np.sum(self.counts * (smallest / self.noise_multipliers) ** 2)))
        return total / smallest * (1 + 1e-14) if smallest > 1e-300 else math.inf  # rounded up


def releases_by_epoch(
    mechanism: Mechanism, epochs: int | Mapping[int, int] | None = None, steps: int | None = None
) -> dict[int, int]:
    """Count, per epoch, the releases in which one utterance may take part, for full epochs or Poisson steps.

    Mappings are returned unchanged.

    Raises:
        UsageError: non-integer counts, or a number of steps with disjoint batches.
    """
    if epochs is not None and steps is not None:
        raise UsageError("both epochs and steps are given: give only one of them")
    if isinstance(epochs, Mapping):
        return dict(epochs)
    per_epoch = mechanism.releases_per_epoch
    if epochs is not None:
        check_whole("number of epochs", epochs, 0, MOST)
        whole, rest = epochs, 0
    elif mechanism.sampling_rate is None:
        raise UsageError("a number of steps needs a sampling rate: for disjoint batches, give a number of epochs")
    else:
        check_whole("number of steps", -1 if steps is None else steps, 0, MOST * per_epoch)
        whole, rest = divmod(int(steps or 0), per_epoch)
    return {**dict.fromkeys(range(whole), per_epoch), **({whole: rest} if rest else {})}


def epochs_and_counts(releases: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return epoch numbers (T) and counts (T); raise UsageError unless all are non-negative integers."""
    for number in (*releases.keys(), *releases.values()):
        if isinstance(number, bool) or not isinstance(number, Integral) or not 0 <= number <= MOST_RELEASES:
            raise UsageError("releases by epoch must be whole numbers, for epochs counted from 0")
    return np.array([*releases.keys()], dtype=np.int64), np.array([*releases.values()], dtype=np.int64)


def schedule_of(
    mechanism: Mechanism, releases: Mapping[int, int], adjacency: Adjacency | str | None = None
) -> Schedule:
    """Return the schedule of these releases by epoch, for an accountant to compose.

    Raises:
        NoGuarantee: for the reasons of `Mechanism.sensitivity`, alpha from private gradients, no noise, or so little
            noise that z underflows.
    """
    if mechanism.why_no_guarantee():
        raise NoGuarantee(mechanism.why_no_guarantee())
    epochs, counts = epochs_and_counts(releases)
    z = mechanism.noise_multiplier(0, adjacency) * mechanism.decay.factors(epochs, mechanism.tau)
    if len(z) and not z.min() > 0:
        raise NoGuarantee("the noise has decayed to 0, so epsilon is infinite")
    return Schedule(z, counts, 1.0 if mechanism.sampling_rate is None else mechanism.sampling_rate)
