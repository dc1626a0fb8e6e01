"""Tight and fast accounts of Poisson-sampled Gaussian releases: privacy loss distributions, every rounding upward.

One release. Where the utterance takes part with chance q, its output is P = (1-q) N(0, z^2) + q N(1, z^2), where it was
removed Q = N(0, z^2), and the privacy loss is l(x) = ln(1 - q + q e^((2x-1)/(2 z^2))). P against Q dominates its
removal, Q against P its addition, and compositions are dominated by products (Zhu, Dong and Wang 2022, arXiv
2106.08567, theorems 10 and 11): with the sum L of independent losses, delta(epsilon) = E[max(0, 1 - e^(epsilon - L))].
The larger one of both directions counts.

On a grid. The masses that P and Q have between two edges are put on these edges, so that both are kept. This draws
delta's curve between the edges as a straight line in e^epsilon: it is convex there, so no delta falls ("connect the
dots", Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, arXiv 2207.04380). What that adds to epsilon falls with
the square of the width. Edges lie closer where the losses are that matter. Differences of normal probabilities,
places of edges and quotients are rounded so that mass moves up, or grows.

Composed. Probabilities are tilted, c_l e^(tilt l) / K, before the Fourier transform, and tilted back afterwards. The
tilt that puts the mean near epsilon makes delta's part of the distribution its bulk, so that a transform whose error is
absolute has a small *relative* one, whatever delta is. To delta is added: what the transform may have lost (Higham
2002, theorem 24.2, for transforms; sums for products), losses beyond the grid as if they were infinite, losses beyond
the window by Chernoff's bound. What wraps around its ends only adds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal import lfilter
from scipy.special import ndtr

from edp_lab.privacy.accountants import SMALLEST_Z, Accountant, GaussianDP, RenyiDP, check_delta, check_loss
from edp_lab.privacy.mechanism import Schedule

UNIT = 2.0**-53  # relative error of one operation
FINENESS = 6e-5  # of the losses' variance: what the grid adds to it, and half as much to epsilon
REFERENCE = 1e-4  # delta, around which losses are told apart best
MOST = 1e9  # releases
REACH = 14.0  # standard deviations beyond the outer peak, where 1e-44 is left
LARGEST = 690.0  # exponent
MOST_EVEN = 200  # edges at equal distance on either side of 0
STEPS = 16  # of tilts, from one power of 2 to the next
TILTS = range(-50 * STEPS, 80 * STEPS)
LEVELS = range(1, 160)  # in quarters of a standard deviation, how far a tilt may move the sum of normal losses
WINDOW = math.log(1e7)  # 1 over the share of delta that may lie beyond its ends
NEGLIGIBLE = 1e-5  # of delta: losses of single releases beyond are as good as infinite
LONGEST = 2**20  # of a transform
LOOSE = 0.01  # of delta: where roundings may cost more, Renyi DP is asked, too


class PrivacyLossDistribution(Accountant):
    """Numerical composition of discretised privacy losses, rounded up (see the module).

    Formal guarantee: an upper bound for add/remove (and zero-out) neighbours under Poisson sampling, errors of
    discretisation, truncation, transform and floating point included; assumed are float64 arithmetic as in IEEE 754 and
    scipy's normal probabilities to 13 digits. Some 1e-4 of epsilon above the truth. Where that cannot be had (noise
    below 0.05, beyond 10^9 releases), the least of Renyi DP and the closed form without sampling holds.
    """

    method = "privacy loss distributions"

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        z, counts, q = schedule.noise_multipliers, schedule.counts, schedule.sampling_rate
        self._everyone = GaussianDP(Schedule(z, counts))  # sampling never costs more
        possible = q < 1 and len(z) and z[0] >= SMALLEST_Z and counts.sum() <= MOST
        self._sides = [Losses(z, counts, q, removed) for removed in (True, False)] if possible else []

    @cached_property
    def _renyi(self) -> RenyiDP:
        return RenyiDP(self.schedule)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        found = [side.epsilon(delta) for side in self._sides]
        epsilon = max((one for one, _ in found), default=math.inf)
        bounds = [epsilon, self._everyone.epsilon(delta)]
        if self.schedule.sampling_rate < 1 and not (found and all(sure for _, sure in found)):
            bounds.append(self._renyi.epsilon(delta))
        return min(bounds)

    def delta(self, epsilon: float) -> float:
        return math.exp(self.log_delta(epsilon))

    def log_delta(self, epsilon: float) -> float:
        check_loss("epsilon", epsilon)
        found = [side.log_delta(epsilon) for side in self._sides]
        bounds = [max((one for one, _ in found), default=0.0), self._everyone.log_delta(epsilon)]
        if self.schedule.sampling_rate < 1 and not (found and all(sure for _, sure in found)):
            bounds.append(self._renyi.log_delta(epsilon))
        return min(bounds)


class Losses:
    """The losses of K kinds of releases in one direction, on a common grid."""

    def __init__(self, z: np.ndarray, counts: np.ndarray, q: float, removed: bool) -> None:
        self.counts = counts.astype(float)
        self.releases = float(self.counts.sum())
        self.most = math.inf if removed else -self.releases * math.log1p(-q) * (1 + 1e-14)  # of an added one's losses
        self._rough = _Rough(z, self.counts, q, removed)
        self._curves: dict[int, Curve] = {}
        tilt, reference = self._rough.at(_level(math.log(REFERENCE)))
        # A grid of width w adds w^2 / 6 to a loss' variance: (1 + tilt) w^2 / 12 to epsilon, which is about the mean.
        spread = min(reference.variance, 2 * max(reference.mean, 0.0) / (1 + tilt))
        width = math.sqrt(6 * FINENESS * spread / self.releases)
        farthest = float(np.abs(self._rough.ends).max())
        self.width = max(width, 15 * math.sqrt(reference.variance) / LONGEST, farthest / 2**50)
        even = math.sqrt(reference.square / self.releases) / self.width
        lowest, highest = self._rough.ends / self.width
        grid = _grid(lowest, highest, min(even, MOST_EVEN))
        masses, self.beyond = _masses(z, q, self.width * grid, removed)
        self.grid, self.masses = (grid, masses) if removed else (-grid[::-1], masses[:, ::-1])

    def epsilon(self, delta: float) -> tuple[float, bool]:
        """The smallest epsilon with that delta, rounded up, and whether roundings hardly count there."""
        found, sure = self._curve(_level(math.log(delta))).epsilon(delta)
        return (found, sure) if found < self.most else (self.most, self.most < math.inf)

    def log_delta(self, epsilon: float) -> tuple[float, bool]:
        """ln delta at epsilon, and whether roundings hardly count there."""
        if epsilon >= self.most:
            return -math.inf, True
        place = bisect_left(LEVELS, True, key=lambda level: self._rough.at(level)[1].mean >= epsilon)
        level = LEVELS[min(place, len(LEVELS) - 1)]
        found = self._curve(level).log_delta(epsilon)
        while (smaller := _level(found[0])) > level:  # as `epsilon` would look at it
            level, now = smaller, self._curve(smaller).log_delta(epsilon)
            found = min(now, found)
        return found

    def _curve(self, level: int) -> Curve:
        if level not in self._curves:
            self._curves[level] = self._composed(level)
        return self._curves[level]

    def _composed(self, level: int) -> Curve:
        """delta's curve from the distribution composed at this level's tilt."""
        tilt, _ = self._rough.at(level)
        bottom, top, further = self._rough.window(level)
        outer = np.cumsum((self.counts @ self.masses)[::-1])[::-1]
        kept = outer >= NEGLIGIBLE * math.exp(-_divergence(level))
        loss, grid, masses = self.width * self.grid[kept], self.grid[kept], self.masses[:, kept]
        beyond = self.beyond + self.masses[:, ~kept].sum(axis=1) + 1e-290  # what underflowed
        with np.errstate(divide="ignore"):
            logs = np.log(masses)
        log_k, log_further = (_log_sum(logs + now * loss) for now in (tilt, tilt + further))
        first = max(math.floor(bottom / self.width), math.ceil(top / self.width) + 1 - LONGEST)
        size = next_fast_len(max(64, math.ceil(top / self.width) + 1 - first), real=True)
        composed = _convolved(np.exp(logs + tilt * loss - log_k[:, None]), self.counts, grid % size, size)
        exponents = 16 + 2 * float(np.abs(tilt * loss).max() - logs[np.isfinite(logs)].min() + np.abs(log_k).max())
        rounding = UNIT * (self.releases * exponents + 64 * size)
        lost = (self.releases + 1) * 10 * UNIT * (math.log2(size) + 2)  # of the 2-norm, which is 1 at most
        lost *= math.exp(min(LARGEST, lost * math.sqrt(size)))
        # Losses beyond the window, by Chernoff's bound; its own rounding is that of sums of so many numbers.
        above = self.counts @ log_further - (tilt + further) * self.width * (first + size)
        above += self.releases * UNIT * (len(grid) + exponents + (tilt + further) * float(np.abs(loss).max()))
        log_beyond = float(np.logaddexp(math.log(float(self.counts @ beyond)), above))
        log_k_all = float(self.counts @ log_k)
        composed = np.roll(composed, -(first % size))
        return Curve.of(composed, first, self.width, tilt, log_k_all, rounding, lost, log_beyond)


class Curve(NamedTuple):
    """ln delta, rounded up, at the places (first + i) width; between them it is below the chord in e^epsilon."""

    first: int
    width: float
    log_delta_at: np.ndarray  # (M)
    log_charged: np.ndarray  # (M), what of that was added for roundings, and more

    @classmethod
    def of(
        cls, tilted: np.ndarray, first: int, width: float, tilt: float, log_k: float, rounding: float, lost: float,
        log_beyond: float,
    ) -> Curve:  # fmt: skip
        """From a distribution (M) whose error's 2-norm is at most `lost`: e^(log_k - tilt l) has still to be put on."""
        fall, drop = math.exp(-tilt * width), -math.expm1(-width)
        tilted = np.maximum(tilted, 0.0)
        # sum_(i>j) fall^(i-j) (1 - e^(-(i-j) width)) x_i, all of whose terms are positive:
        excess = _later((tilted + _later(tilted, fall * (1 - drop))) * drop, fall)
        root = math.sqrt(min(len(tilted), 1 / -math.expm1(-2 * tilt * width)))
        scale = log_k - tilt * width * (first + np.arange(len(tilted))) + math.log1p(rounding) + 1e-12
        with np.errstate(divide="ignore"):
            charged = np.logaddexp(scale + np.log(lost * root + rounding * excess), log_beyond)
            return cls(first, width, np.logaddexp(scale + np.log(excess), charged), charged)

    def epsilon(self, delta: float) -> tuple[float, bool]:
        """The smallest epsilon with that delta, rounded up, and whether roundings hardly count there."""
        target = math.log(delta)
        place = int(np.searchsorted(-self.log_delta_at, -target))
        if place == len(self.log_delta_at):
            return math.inf, False
        found, sure = self.width * (self.first + place), self._sure(place)
        if place:
            before, after = np.exp(np.minimum(self.log_delta_at[place - 1 : place + 1] - target, LARGEST)).tolist()
            share = (before - 1) / (before - after)
            found += math.log1p(share * math.expm1(self.width)) - self.width
        return max(0.0, found + 1e-13 * abs(found)), sure

    def log_delta(self, epsilon: float) -> tuple[float, bool]:
        """ln delta at epsilon, and whether roundings hardly count there."""
        place = math.floor(epsilon / self.width) - self.first
        if place < 0:
            return 0.0, False
        if place + 1 >= len(self.log_delta_at):
            return min(0.0, float(self.log_delta_at[-1])), False
        share = math.expm1(max(0.0, epsilon - self.width * (self.first + place))) / math.expm1(self.width)
        before, after = self.log_delta_at[place : place + 2].tolist()
        chord = before + math.log1p(min(share, 1.0) * math.expm1(after - before)) + 1e-12
        return min(0.0, chord), self._sure(place)

    def _sure(self, place: int) -> bool:
        return bool(self.log_charged[place] <= self.log_delta_at[place] + math.log(LOOSE))


def _later(x: np.ndarray, share: float) -> np.ndarray:
    """sum_(i>j) share^(i-j) x_i: (M) -> (M)."""
    return np.asarray(lfilter([0.0, share], [1.0, -share], x[::-1])[::-1])


def _convolved(masses: np.ndarray, counts: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    """The sum's distribution (M), cyclic, of counts[k] draws of each row's (K, n) at these places."""
    powers: dict[int, np.ndarray] = {}  # by n, the product of the transforms that enter to the power 2^n
    for row, count in zip(masses, counts.astype(np.int64).tolist(), strict=True):
        transform = rfft(np.bincount(places, weights=row, minlength=size))
        for bit in range(count.bit_length()):
            if count >> bit & 1:
                powers[bit] = powers[bit] * transform if bit in powers else transform
    total = np.ones(size // 2 + 1)
    for bit in range(max(powers), -1, -1):
        total = total * total
        total = total * powers[bit] if bit in powers else total
    return irfft(total, size)


def _grid(lowest: float, highest: float, even: float) -> np.ndarray:
    """Whole numbers that span that range, one apart to a distance `even` from 0 and ever farther beyond: (n)."""
    sides: list[list[int]] = []
    for end in (highest, -lowest):
        side = [0]
        while side[-1] <= end + 1:
            side.append(side[-1] + max(1, int(side[-1] / even)))
        sides.append(side)
    return np.array([-j for j in sides[1][:0:-1]] + sides[0])


def _masses(z: np.ndarray, q: float, loss: np.ndarray, removed: bool) -> tuple[np.ndarray, np.ndarray]:
    """What one release of each z (K) puts on a grid of losses (n): (K, n), and beyond its private end: (K); rounded up.

    `loss` is that of a removed utterance, so that an added one's is -loss. Edges x lie where loss is, as near as
    floating point allows, but never to the side where a loss between them would exceed the edge to which it is
    rounded up; `sliver` bounds how far a loss may lie below the other.
    """
    upward, absent, width = (-1 if removed else 1), math.log1p(-q), np.diff(loss)
    blur = 8 * UNIT * (np.abs(loss) + abs(absent))
    share = np.maximum(-np.expm1(absent - loss) + upward * blur, 0.0)  # of the participants in the density there
    with np.errstate(divide="ignore"):
        log_share = np.log(share)
    shift = 8 * UNIT * (1 + np.abs(loss) - math.log(q) + np.where(share > 0, -log_share, 0.0))
    edge = loss - math.log(q) + log_share + upward * shift  # (2x - 1) / (2 z^2)
    half, centre = 1 / (2 * z[:, None]), z[:, None] * edge
    rounding = 2e-13 + 4 * UNIT * (REACH + 4 * half) ** 2  # of normal probabilities
    (plain, plain_more), (moved, moved_more) = (_between(centre + at, rounding) for at in (half, -half))
    mixed, mixed_more = (1 - q) * plain + q * moved, (1 - q) * plain_more + q * moved_more
    mixed_more = mixed_more + 4 * UNIT * mixed
    ours, theirs = (mixed + mixed_more, plain - plain_more) if removed else (plain + plain_more, mixed - mixed_more)
    sliver, inner = 2 * (blur + share * shift), ours[:, 1:-1]
    low, sliver = (loss[:-1], sliver[:-1]) if removed else (-loss[1:], sliver[1:])
    rise = inner * (1 + 2 * sliver) - np.exp(low) * (1 - 4 * UNIT * (2 + np.abs(low))) * theirs[:, 1:-1]
    up = np.clip(rise / -np.expm1(-width) * (1 + 8 * UNIT), 0.0, inner)
    masses = np.zeros((len(z), len(loss)))
    worse, better = (slice(1, None), slice(None, -1)) if removed else (slice(None, -1), slice(1, None))
    masses[:, worse] += up
    masses[:, better] += inner - up
    masses[:, 0 if removed else -1] += ours[:, 0 if removed else -1]
    return masses, ours[:, -1 if removed else 0]


def _between(edges: np.ndarray, rounding: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normal probabilities below, between and above the edges: (K, n) -> (K, n + 1), and bounds on their errors."""
    infinite = np.full((len(edges), 1), np.inf)
    edges = np.concatenate([-infinite, edges, infinite], axis=1)
    tail = ndtr(-np.abs(edges))
    before, after = tail[:, :-1], tail[:, 1:]
    right, left = edges[:, :-1] >= 0, edges[:, 1:] <= 0
    mass = np.where(right, before - after, np.where(left, after - before, 1 - before - after))
    return np.maximum(mass, 0.0), rounding * np.where(right | left, before + after, 1.0)


class Moments(NamedTuple):
    """Of all tilted losses: the sum's mean and its divergence from the untilted one; sums of squares and variances."""

    mean: float
    divergence: float
    square: float
    variance: float


class _Rough:
    """The losses on a few hundred points: to choose tilt, grid and window by, none of which can make a bound wrong."""

    def __init__(self, z: np.ndarray, counts: np.ndarray, q: float, removed: bool) -> None:
        groups = np.array_split(np.arange(len(z)), min(len(z), 32))
        self.counts = np.array([counts[group].sum() for group in groups])
        half = 1 / (2 * np.array([z[group].mean() for group in groups])[:, None])
        places = np.linspace(0.0, 1.0, 160) * (2 * REACH + 2 * half) - REACH
        loss = np.log1p(q * np.expm1(2 * half * (places - half)))
        self.ends = np.array([loss.min(), loss.max()])
        chances = np.exp(-places * places / 2 + (loss if removed else 0.0))
        self.chances = chances / chances.sum(axis=1, keepdims=True)
        self.loss = loss
        if not removed:
            self.loss, self.chances = -loss[:, ::-1], self.chances[:, ::-1]
        self.outer = self.counts[:, None] * np.cumsum(self.chances[:, ::-1], axis=1)[:, ::-1]
        self._at: dict[int, tuple[float, Moments]] = {}

    def at(self, level: int) -> tuple[float, Moments]:
        """The smallest tilt of a ladder that moves the sum as far, and what it makes of it."""
        if level not in self._at:
            weights, aim = self._weights(level), _divergence(level)
            moments = partial(self._moments, weights)
            place = bisect_left(TILTS, True, key=lambda tilt: moments(2 ** (tilt / STEPS)).divergence >= aim)
            tilt = 2 ** (TILTS[min(place, len(TILTS) - 1)] / STEPS)
            self._at[level] = tilt, moments(tilt)
        return self._at[level]

    def window(self, level: int) -> tuple[float, float, float]:
        """Where the tilted sum lies, and how much further to tilt for the best bound of what lies beyond its top.

        Beyond the top is e^-WINDOW of delta; what is below the bottom, or a window's length below it, wraps around.
        """
        weights, (tilt, here) = self._weights(level), self.at(level)
        deviation = math.sqrt(here.variance) or 1e-300
        steps = np.array([0.25, 0.5, 1.0, 2.0, 3.0, 5.0]) / deviation
        log_k, *logs = (self._log_k(weights, now) for now in (tilt, *(tilt + steps), *(tilt - steps)))
        upper, lower = np.split(np.array(logs), 2)
        spare = tilt * here.mean - log_k + WINDOW
        tops = (upper + spare) / (tilt + steps)
        best = int(np.argmin(tops))
        bottom = float(np.max((log_k - lower - WINDOW) / steps))
        length = min(float(tops[best]) - bottom, max(spare / tilt, float(tops[best]) - here.mean + 4 * deviation))
        # Single losses may lie far out once they are tilted: what wraps around from above must not come near.
        length = max(length, float(np.min((upper - log_k + WINDOW) / steps)) - here.mean + 2 * deviation)
        return float(tops[best]) - length, float(tops[best]), float(steps[best])

    def _weights(self, level: int) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(np.where(self.outer >= NEGLIGIBLE * math.exp(-_divergence(level)), self.chances, 0.0))

    def _log_k(self, weights: np.ndarray, tilt: float) -> float:
        return float(self.counts @ _log_sum(weights + tilt * self.loss))

    def _moments(self, weights: np.ndarray, tilt: float) -> Moments:
        logs = weights + tilt * self.loss
        log_k = _log_sum(logs)
        chances = np.exp(logs - log_k[:, None])
        mean, square = (chances * self.loss).sum(axis=1), (chances * self.loss**2).sum(axis=1)
        variance = (chances * (self.loss - mean[:, None]) ** 2).sum(axis=1)
        total = self.counts @ np.stack([mean, tilt * mean - log_k, square, variance], axis=1)
        return Moments(*total.tolist())


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """ln of the sum of e^logs along rows: (K, n) -> (K)."""
    peak = logs.max(axis=1)
    return peak + np.log(np.exp(logs - peak[:, None]).sum(axis=1))


def _level(log_delta: float) -> int:
    """That at which delta is about e^-divergence."""
    return min(LEVELS[-1], max(1, round(4 * math.sqrt(max(0.0, -2 * log_delta)))))


def _divergence(level: int) -> float:
    return level * level / 32
