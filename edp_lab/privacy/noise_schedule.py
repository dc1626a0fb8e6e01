"""What an accountant composes: Gaussian releases, how often each, and on which sample of the corpus."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from edp_lab.errors import UsageError

MOST_RELEASES = 2.0**50
SMALLEST_RATE = 1e-9


@dataclass(frozen=True)
class Schedule:
    """`counts[k]` Gaussian releases with noise multiplier `noise_multipliers[k]`, all adaptively composed.

    The noise multiplier is noise over sensitivity, so the sensitivity under the adjacency in question is already
    divided out. Equal multipliers are merged and the rest sorted: a schedule does not depend on the order of its parts.

    Attributes:
        noise_multipliers: (K) z > 0, rising.
        counts: (K) whole numbers, at least 1.
        sampling_rate: q, the chance with which an utterance takes part in a release, independently (Poisson); 1 where
            it takes part in every one of them, as with one release per epoch of disjoint batches.

    Raises:
        UsageError: z that is no positive number, negative counts, q outside (0, 1].
    """

    noise_multipliers: np.ndarray
    counts: np.ndarray
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        z, counts = np.atleast_1d(np.asarray(self.noise_multipliers, float)), np.atleast_1d(np.asarray(self.counts))
        check_sampling_rate(self.sampling_rate)
        if z.shape != counts.shape or z.ndim != 1:
            raise UsageError(f"{z.size} noise multipliers and {counts.size} counts: give one count for each")
        if not (np.isfinite(z) & (z > 0)).all():
            raise UsageError("a noise multiplier z must be a number above 0: without noise epsilon is infinite")
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
        """sqrt(sum counts / z^2): the releases are mu-GDP where everyone takes part (Dong et al. 2022, cor. 3.3).

        inf where it exceeds the largest float; 0 for no release.
        """
        if not len(self.counts):
            return 0.0
        smallest = float(self.noise_multipliers[0])
        total = math.sqrt(float(np.sum(self.counts * (smallest / self.noise_multipliers) ** 2)))
        return total / smallest * (1 + 1e-14) if smallest > 1e-300 else math.inf  # rounded up

    def events(self) -> Any:
        """The same as a dp_accounting event, to be judged under its ADD_OR_REMOVE_ONE.

        Its REPLACE_ONE would double the shift again: the sensitivity is divided out already.
        """
        import dp_accounting as dp

        def release(z: float) -> dp.DpEvent:
            gaussian = dp.GaussianDpEvent(z)
            return gaussian if self.sampling_rate == 1 else dp.PoissonSampledDpEvent(self.sampling_rate, gaussian)

        pairs = zip(self.noise_multipliers.tolist(), self.counts.tolist(), strict=True)
        return dp.ComposedDpEvent([dp.SelfComposedDpEvent(release(z), count) for z, count in pairs])


def check_sampling_rate(rate: float) -> None:
    if not SMALLEST_RATE <= rate <= 1:
        raise UsageError(
            f"sampling rate q is {rate}: it must lie above 0 (from {SMALLEST_RATE:g}) and be at most 1; it is the "
            "batch size over the number of utterances"
        )
