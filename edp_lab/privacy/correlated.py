"""Noise that is correlated between steps: a banded square root of the running sum, as in DP-FTRL and BandMF.

Independent noise piles up in the model's position, which is a sum of all steps. Here step t of T releases

    g_t + (C^-1 z)_t,      z ~ N(0, (sigma s)^2 I)

where C is lower triangular and Toeplitz with first column c_0 ... c_{b-1}, 0, 0, ..., and s bounds how far one
utterance moves g_t. So part of each step's noise is taken back by later ones. c are the first b coefficients of
(1 - x)^(-1/2), the square root of the running sum's 1 / (1 - x); b = 1 is independent noise.

Formal guarantee: all T releases are a post-processing of C G + z, also where each g_t depends on what was released
before (Denisov, McMahan, Rush, Smith and Thakurta 2022, arXiv 2202.08312). What an utterance changes in C G is the sum,
over the steps in which it takes part, of its change there times a column of C. Where these steps are at least b apart,
the columns share no row, so squared lengths add up: the releases are mu-GDP with mu^2 = (sum of squared column lengths)
/ sigma^2 (Choquette-Choo et al. 2023, arXiv 2306.08153, on banded matrices). That holds for one *fixed* cyclic order of
disjoint batches. An order that is drawn anew in each pass may put the two steps of an utterance next to each other: b
must be 1 there.

Sources: Henzinger, Upadhyay and Upadhyay 2023 (arXiv 2202.11205) for the square root; Kalinin and Lampert 2024 (arXiv
2405.13763) for its bands.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.signal import lfilter

from edp_lab.errors import UsageError, check_whole
from edp_lab.privacy.mechanism import Schedule

MOST_BANDS = 10_000


def square_root(bands: int) -> np.ndarray:
    """The first coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, ...: (b)."""
    check_whole("number of bands", bands, 1, MOST_BANDS)
    j = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def column_lengths(column: np.ndarray, steps: int) -> np.ndarray:
    """L2 norms of C's columns, which the end of the run cuts off: (b) -> (T)."""
    squares = np.cumsum(np.square(column))
    return np.sqrt(squares[np.minimum(np.arange(steps, 0, -1), len(column)) - 1])


def in_cyclic_order(noise_multiplier: float, bands: int, batches: int, passes: int) -> Schedule:
    """What an accountant composes where every pass goes through the same disjoint batches in the same order.

    An utterance of the first batch has the longest columns. Each pass is one Gaussian release for it, of noise
    multiplier sigma over the length of a column.

    Raises:
        UsageError: more bands than batches, so that an utterance's columns would overlap.
    """
    if bands > batches:
        raise UsageError(
            f"{bands} bands, but an utterance returns after {batches} steps: at most as many bands as batches in a pass"
        )
    lengths = column_lengths(square_root(bands), batches * passes)[::batches]
    return Schedule(noise_multiplier / lengths, np.ones(passes, dtype=np.int64))


def in_cyclic_samples(noise_multiplier: float, bands: int, steps: int, rate: float) -> Schedule:
    """The same with secret samples: the corpus is cut into b parts once, and step t samples from part t mod b.

    Each utterance of that part takes part with chance b times `rate`, independently, so that a step is as large as
    under Poisson sampling at `rate`. Formal guarantee: that of ceil(T / b) Poisson-sampled Gaussian releases with noise
    multiplier sigma over the longest column, for one utterance added or removed whose part is drawn by itself, as the
    rows that a step of its part can change are its own (Choquette-Choo et al. 2023, on amplification). b = 1 is Poisson
    sampling.

    Raises:
        UsageError: a part is smaller than a step.
    """
    if bands * rate > 1 + 1e-12:
        raise UsageError(
            f"{bands} bands at sampling rate {rate:g}: a part of the corpus is smaller than a step; take at most "
            f"{math.floor(1 / rate)} bands"
        )
    longest = column_lengths(square_root(bands), bands)[0]
    return Schedule(np.array([noise_multiplier / longest]), np.array([-(-steps // bands)]), min(1.0, bands * rate))


def correlated_error(bands: int, steps: int, keep: float = 1.0) -> np.ndarray:
    """Standard deviation per coordinate of the model's position after each step, for draws z of deviation 1: (T).

    The position is p_t = keep p_{t-1} + (C^-1 z)_t, in learning rates; with keep 1 it is the running sum.

    Args:
        keep: what a step leaves of an offset, below 1 where the loss pulls the model back.
    """
    draw = (np.arange(steps) == 0).astype(float)
    returns = lfilter([1.0], square_root(bands), draw)  # C^-1: how the draw of one step shows in it and in later ones
    return np.sqrt(np.cumsum(np.square(lfilter([1.0], [1.0, -keep], returns))))


def independent_error(stds: np.ndarray, keep: float = 1.0) -> np.ndarray:
    """The same for independent noise of these deviations, step by step: (T) -> (T)."""
    return np.sqrt(lfilter([1.0], [1.0, -keep * keep], np.square(stds)))
