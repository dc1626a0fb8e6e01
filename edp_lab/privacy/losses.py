"""Discretised privacy losses and their composition by Fourier transforms, with all rounding upward.

`edp_lab.privacy.pld` uses the losses of removing and of adding one utterance, composed over all releases.

One release. With an utterance that takes part with probability q, the output is P = (1-q) N(0, z^2) + q N(1, z^2).
Without it, the output is Q = N(0, z^2). The privacy loss is l(x) = ln(1 - q + q e^((2x-1)/(2 z^2))). (P, Q) dominates
removal, (Q, P) dominates addition, and products dominate compositions (Zhu, Dong and Wang 2022, arXiv 2106.08567,
theorems 10 and 11): with the sum L of independent losses, delta(epsilon) = E[max(0, 1 - e^(epsilon - L))]. The larger
delta of the two directions is used.

The grid. The probability masses of P and Q between two edges are moved to these edges so that both are preserved. This
replaces the curve of delta between the edges with a straight line in e^epsilon. The curve is convex there, so delta
never decreases ("connect the dots", Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, arXiv 2207.04380). The
increase in epsilon is proportional to the squared width. Edges are denser around the losses that matter most. Rounding
of normal probabilities, of positions of edges and of quotients always moves mass up, or increases it.

Composition. Probabilities c_l are tilted to c_l e^(tilt l) / K before the Fourier transform, and tilted back
afterwards. The tilt moves the mean near epsilon, so the tail that determines delta becomes the bulk, and the absolute
error of the transform is a small *relative* error for any delta. We add three terms to delta: a bound on the
transform's error (Higham 2002, theorem 24.2, for transforms; sums for products), losses beyond the grid, as if they
were infinite, and losses beyond the window, by Chernoff's bound. Mass that wraps around only increases delta.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr

from edp_lab.privacy.schedule import Schedule

UNIT = 2.0**-53  # relative error of one operation
FINENESS = 1.2e-4  # relative increase of the losses' variance by the grid; epsilon's is similar
TOLERATED = 3e-4  # largest relative increase of epsilon by the grid; above it, a finer grid is used
FINEST = 8  # powers of 2 by which the grid may be finer
SMALLEST_EPSILON = 0.01  # the smallest epsilon with this accuracy
REFERENCE = 1e-4  # delta around which the grid resolves losses best
REACH = 14.0  # standard deviations beyond the outer peak; the remaining probability is 1e-44
LARGEST = 690.0  # largest exponent
EVEN, MOST_EVEN = 1.5, 300  # extent of evenly spaced edges on either side of 0: in standard deviations, and in edges
STEPS = 16  # tilts per power of 2
TILTS = range(-50 * STEPS, 80 * STEPS)
LEVELS = range(1, 160)  # shifts of the sum of normal losses by a tilt, in quarters of a standard deviation
WINDOW = math.log(1e9)  # minus ln of the share of delta that may be beyond the window
NEGLIGIBLE = 1e-5  # share of delta; single losses this rare are treated as infinite
LONGEST = 2**20  # largest transform
LOOSE, HARD = 0.01, 0.5  # shares of delta; if the charge for roundings is larger, other curves and bounds are tried
RARE = 1e-4  # sampling rate below which LOOSE replaces HARD
COARSE = ((1, 4), (0.97, 4), (0.97, 16), (0.85, 4), (0.85, 16), (0.7, 4), (0.7, 16))  # factors of level and width
AT_ONCE = 8  # transforms per batch
TRUNCATED = 4.0  # a window that needs a grid coarser by up to this factor is truncated instead (below RARE, never)


class Released(NamedTuple):
    """Losses of K kinds of single releases, on a grid of integer multiples of a width."""

    width: float
    grid: np.ndarray  # (n), integers
    masses: np.ndarray  # (K, n)
    beyond: np.ndarray  # (K), mass of losses beyond the grid


class Losses:
    """Distribution of a schedule's total privacy loss when an utterance is `removed`, or when it is added."""

    def __init__(self, schedule: Schedule, removed: bool) -> None:
        self.z, self.q, self.removed = schedule.noise_multipliers, schedule.sampling_rate, removed
        self.counts = schedule.counts.astype(float)
        self.releases = float(self.counts.sum())
        # Upper bound on the losses of an added utterance:
        self.most = math.inf if removed else -self.releases * math.log1p(-self.q) * (1 + 1e-14)
        self._rough = _Rough(self.z, self.counts, self.q, removed)
        self._released: dict[float, Released] = {}
        self._curves: dict[int, Curve] = {}

    def epsilon(self, delta: float) -> tuple[float, float]:
        """Return the smallest epsilon at this delta, rounded up, and the share of delta charged for rounding."""
        log_delta = math.log(delta)
        level = _level(log_delta)
        epsilon, charged = self._curve(level).epsilon(log_delta)
        bearable = HARD if self.q >= RARE else LOOSE
        if charged > bearable:  # epsilon is far below what the level assumes: use less tilt and a coarser grid
            again = (self._coarse(round(share * level), times).epsilon(log_delta) for share, times in COARSE)
            epsilon, charged = min((epsilon, charged), *again)
        return (epsilon, charged) if epsilon < self.most else (self.most, 1.0)

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """ln delta at epsilon, and the share of delta charged for roundings."""
        if epsilon >= self.most:
            return -math.inf, 0.0
        place = bisect_left(LEVELS, True, key=lambda level: self._rough.at(level)[1].mean >= epsilon)
        level = LEVELS[min(place, len(LEVELS) - 1)]
        result = self._curve(level).log_delta(epsilon)
        while (smaller := _level(result[0])) > level:  # the level that `epsilon` would choose
            level, now = smaller, self._curve(smaller).log_delta(epsilon)
            result = min(now, result)
        return result

    def surely_below(self, epsilon: float, log_delta: float) -> bool:
        """Whether delta at epsilon is certainly no larger, by a moment bound that does not need the distribution.

        E[max(0, 1 - e^(epsilon - L))] <= E[e^(t (L - epsilon))] t^t / (1 + t)^(1 + t), where the last factor is the
        maximum of max(0, 1 - e^-x) e^(-t x).
        """
        if epsilon >= self.most or not math.isfinite(log_delta + epsilon):
            return epsilon >= self.most
        tilt, released = self._rough.at(_level(log_delta))[0], self.released(self.width)
        with np.errstate(divide="ignore"):
            logs = np.log(released.masses)
        shift = tilt * released.width * np.abs(released.grid).max()
        rounding = self.releases * UNIT * (len(released.grid) + 16 + 2 * (shift - logs[np.isfinite(logs)].min()))
        moment = float(self.counts @ log_sum(logs + tilt * released.width * released.grid)) + rounding
        line = moment - tilt * epsilon - math.log1p(tilt) - tilt * math.log1p(1 / tilt) + 1e-12 * (1 + tilt * epsilon)
        return float(np.logaddexp(line, math.log(float(self.counts @ (released.beyond + 1e-290))))) <= log_delta

    @cached_property
    def width(self) -> float:
        """Width of the grid, unless a curve needs a finer grid."""
        tilt, reference = self._rough.at(_level(math.log(REFERENCE)))
        # A grid of width w adds w^2 / 6 to a loss' variance and (1 + tilt) w^2 / 12 to epsilon, which is near the mean.
        spread = min(reference.variance, 2 * max(reference.mean, 0.0) / (1 + tilt))
        width = math.sqrt(6 * FINENESS * spread / self.releases)
        farthest = float(np.abs(self._rough.ends).max())
        return max(width, 15 * math.sqrt(reference.variance) / LONGEST, farthest / 2**50)

    def released(self, width: float) -> Released:
        """Return the masses of each kind of release on a grid of this width."""
        if width not in self._released:
            _, reference = self._rough.at(_level(math.log(REFERENCE)))
            even = EVEN * math.sqrt(reference.square / self.releases) / width
            lowest, highest = (self._rough.ends / width).tolist()
            grid = _grid(lowest, highest, min(even, MOST_EVEN))
            masses, beyond = _masses(self.z, self.q, width * grid, self.removed)
            if not self.removed:
                grid, masses = -grid[::-1], masses[:, ::-1]
            self._released[width] = Released(width, grid, masses, beyond)
        return self._released[width]

    def _curve(self, level: int) -> Curve:
        if level not in self._curves:
            needed = self._rough.reach(level) / LONGEST
            bearable = TRUNCATED * self.width if self.q >= RARE else self.width
            curve = self._composed(level, needed if needed > bearable else self.width)
            coarse = curve.added(-_divergence(level), self.releases) / TOLERATED
            if coarse > 1:  # the width was chosen as if epsilon were the mean
                finer = 2 ** min(FINEST, 1 + math.ceil(math.log2(coarse) / 2))  # +1: a coarse grid hides some error
                curve = self._composed(level, max(self.width / finer, needed))
            self._curves[level] = curve
        return self._curves[level]

    def _coarse(self, level: int, times: int) -> Curve:
        level = max(1, level)
        return self._composed(level, times * max(self.width, self._rough.reach(level) / LONGEST))

    def _composed(self, level: int, width: float) -> Curve:
        """Compute the curve of delta from the distribution that is composed with this level's tilt."""
        tilt, _ = self._rough.at(level)
        bottom, top, further = self._rough.window(level)
        released = self.released(width)
        outer = np.cumsum((self.counts @ released.masses)[::-1])[::-1]
        kept = outer >= NEGLIGIBLE * math.exp(-_divergence(level))
        loss, grid, masses = width * released.grid[kept], released.grid[kept], released.masses[:, kept]
        beyond = released.beyond + released.masses[:, ~kept].sum(axis=1) + 1e-290  # 1e-290 for underflow
        with np.errstate(divide="ignore"):
            logs = np.log(masses)
        log_k, log_further = (log_sum(logs + now * loss) for now in (tilt, tilt + further))
        first = max(math.floor(bottom / width), math.ceil(top / width) + 1 - LONGEST)
        size = next_fast_len(max(64, math.ceil(top / width) + 1 - first), real=True)
        composed = _convolved(np.exp(logs + tilt * loss - log_k[:, None]), self.counts, grid % size, size)
        exponents = 16 + 2 * float(np.abs(tilt * loss).max() - logs[np.isfinite(logs)].min() + np.abs(log_k).max())
        rounding = UNIT * (self.releases * exponents + 64 * size)
        lost = (self.releases + 1) * 10 * UNIT * (math.log2(size) + 2)  # relative to the 2-norm, at most 1
        lost *= math.exp(min(LARGEST, lost * math.sqrt(size)))
        # Losses beyond the window, by Chernoff's bound, with the rounding error of sums of this many numbers.
        above = self.counts @ log_further - (tilt + further) * width * (first + size)
        above += self.releases * UNIT * (len(grid) + exponents + (tilt + further) * float(np.abs(loss).max()))
        log_beyond = float(np.logaddexp(math.log(float(self.counts @ beyond)), above))
        log_k_all = float(self.counts @ log_k)
        start = min(max(first, -1), first + size - 2)  # epsilons below 0 are not needed
        composed = np.roll(composed, -(first % size))[start - first :]
        return Curve.of(composed, start, width, tilt, log_k_all, rounding, lost, log_beyond)


class Curve(NamedTuple):
    """ln delta, rounded up, at epsilon = (first + i) width; between these, delta is below its chord in e^epsilon."""

    first: int
    width: float
    log_delta_at: np.ndarray  # (M)
    log_charged: np.ndarray  # (M), ln of the part of delta that was added for rounding and truncation

    @classmethod
    def of(
        cls, tilted: np.ndarray, first: int, width: float, tilt: float, log_k: float, rounding: float, lost: float,
        log_beyond: float,
    ) -> Curve:  # fmt: skip
        """Curve of a tilted distribution (M), to multiply by e^(log_k - tilt l); `lost` bounds its 2-norm error."""
        fall, drop = math.exp(-tilt * width), -math.expm1(-width)
        tilted = np.maximum(tilted, 0.0)
        # sum_(i>j) fall^(i-j) (1 - e^(-(i-j) width)) x_i, a sum of positive terms:
        excess = _later((tilted + _later(tilted, fall * (1 - drop))) * drop, fall)
        root = math.sqrt(min(len(tilted), 1 / -math.expm1(-2 * tilt * width)))
        scale = log_k - tilt * width * (first + np.arange(len(tilted))) + math.log1p(rounding) + 1e-12
        with np.errstate(divide="ignore"):
            charged = np.logaddexp(scale + np.log(lost * root + rounding * excess), log_beyond)
            return cls(first, width, np.logaddexp(scale + np.log(excess), charged), charged)

    def epsilon(self, log_delta: float) -> tuple[float, float]:
        """Return the smallest epsilon at this ln delta, rounded up, and the share of delta charged for rounding."""
        place = self._place(log_delta)
        if place == len(self.log_delta_at):
            return math.inf, 1.0
        epsilon, charged = self.width * (self.first + place), self._charged(place)
        if place:
            before, after = np.exp(np.minimum(self.log_delta_at[place - 1 : place + 1] - log_delta, LARGEST)).tolist()
            share = (before - 1) / (before - after)
            epsilon += math.log1p(share * math.expm1(self.width)) - self.width
        return max(0.0, epsilon + 1e-13 * abs(epsilon)), charged

    def added(self, log_delta: float, releases: float) -> float:
        """Estimate the relative increase of epsilon by the grid: w^2 / 12 (1 + delta'' / |delta'|) per release."""
        place = self._place(log_delta)
        if not 0 < place < len(self.log_delta_at) - 1:
            return 0.0
        here, around = self.log_delta_at[place], self.log_delta_at[[place - 1, place + 1]]
        before, after = np.expm1(np.minimum(around - here, 1.0)).tolist()
        slope = 2 * (before + after) / self.width / (before - after) if before > after else 0.0
        return releases * self.width**2 / 12 * (1 + slope) / max(self.epsilon(log_delta)[0], SMALLEST_EPSILON)

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """ln delta at epsilon, and the share of delta charged for roundings."""
        place = math.floor(epsilon / self.width) - self.first
        if place < 0:
            return 0.0, 1.0
        if place + 1 >= len(self.log_delta_at):
            return min(0.0, float(self.log_delta_at[-1])), 1.0
        share = math.expm1(max(0.0, epsilon - self.width * (self.first + place))) / math.expm1(self.width)
        before, after = self.log_delta_at[place : place + 2].tolist()
        chord = before + math.log1p(min(share, 1.0) * math.expm1(after - before)) + 1e-12
        return min(0.0, chord), self._charged(place)

    def _place(self, log_delta: float) -> int:
        return int(np.searchsorted(-self.log_delta_at, -log_delta))

    def _charged(self, place: int) -> float:
        charged, total = float(self.log_charged[place]), float(self.log_delta_at[place])
        return math.exp(charged - total) if charged > -math.inf else 0.0


def _later(x: np.ndarray, share: float) -> np.ndarray:
    """sum_(i>j) share^(i-j) x_i: (M) -> (M)."""
    from scipy.signal import lfilter  # slow to import

    return np.asarray(lfilter([0.0, share], [1.0, -share], x[::-1])[::-1])


def _convolved(masses: np.ndarray, counts: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    """Return the cyclic distribution (M) of the sum of counts[k] draws from each row k of masses (K, n) at `places`."""
    products: dict[int, np.ndarray] = {}  # products of the transforms, by count
    for first in range(0, len(masses), AT_ONCE):
        rows = [np.bincount(places, weights=row, minlength=size) for row in masses[first : first + AT_ONCE]]
        for count, transform in zip(counts[first:].astype(np.int64).tolist(), rfft(np.stack(rows)), strict=False):
            products[count] = products[count] * transform if count in products else transform
    total = np.ones(size // 2 + 1)
    for bit in range(max(products).bit_length() - 1, -1, -1):
        total = total * total
        for count, product in products.items():
            if count >> bit & 1:
                total = total * product
    return irfft(total, size)


def _grid(lowest: float, highest: float, even: float) -> np.ndarray:
    """Return integers (n) spanning this range: consecutive up to a distance `even` from 0, then increasingly sparse."""
    sides, even = [], max(1.0, math.floor(even))
    for end in (highest, -lowest):
        farther = math.log(max(1.0, (end + 2) / even)) / math.log1p(1 / even)
        beyond = np.floor(even * np.exp(np.arange(math.ceil(farther) + 2) * math.log1p(1 / even)))
        sides.append(np.unique(np.concatenate([np.arange(min(even, max(end, 0.0) + 2)), beyond])).astype(np.int64))
    return np.concatenate([-sides[1][:0:-1], sides[0]])


def _masses(z: np.ndarray, q: float, loss: np.ndarray, removed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the masses, rounded up, of a release of each z (K) on a grid of losses (n) and above it: (K, n), (K).

    `loss` is the loss of a removed utterance; the loss of an added utterance is -loss. Each edge x is placed at its
    loss as exactly as floating point allows, but never on the side where a loss between two edges would exceed the edge
    to which it is rounded up. `sliver` bounds how far a loss may be below the lower edge.
    """
    upward, absent, width = (-1 if removed else 1), math.log1p(-q), np.diff(loss)
    blur = 8 * UNIT * (np.abs(loss) + abs(absent))
    share = np.maximum(-np.expm1(absent - loss) + upward * blur, 0.0)  # of participants in the density there
    with np.errstate(divide="ignore"):
        log_share = np.log(share)
    shift = 8 * UNIT * (1 + np.abs(loss) - math.log(q) + np.where(share > 0, -log_share, 0.0))
    edge = loss - math.log(q) + log_share + upward * shift  # (2x - 1) / (2 z^2)
    half, centre = 1 / (2 * z[:, None]), z[:, None] * edge
    rounding = 2e-13 + 4 * UNIT * (REACH + 4 * half) ** 2  # error of normal probabilities
    (plain, plain_more), (moved, moved_more) = (_between(centre + at, rounding) for at in (half, -half))
    mixed, mixed_more = (1 - q) * plain + q * moved, (1 - q) * plain_more + q * moved_more
    mixed_more = mixed_more + 4 * UNIT * mixed
    ours, theirs = (mixed + mixed_more, plain - plain_more) if removed else (plain + plain_more, mixed - mixed_more)
    sliver, inner = 2 * (blur + share * shift), ours[:, 1:-1]
    low, sliver = (loss[:-1], sliver[:-1]) if removed else (-loss[1:], sliver[1:])
    growth = np.exp(np.minimum(low, LARGEST)) * (1 - 4 * UNIT * (2 + np.abs(low)))
    rise = inner * (1 + 2 * sliver) - growth * theirs[:, 1:-1]
    up = np.clip(rise / -np.expm1(-width) * (1 + 8 * UNIT), 0.0, inner)
    masses = np.zeros((len(z), len(loss)))
    worse, better = (slice(1, None), slice(None, -1)) if removed else (slice(None, -1), slice(1, None))
    masses[:, worse] += up
    masses[:, better] += inner - up
    masses[:, 0 if removed else -1] += ours[:, 0 if removed else -1]
    return masses, ours[:, -1 if removed else 0]


def _between(edges: np.ndarray, rounding: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return normal probabilities below, between and above the edges, (K, n) -> (K, n + 1), with error bounds."""
    infinite = np.full((len(edges), 1), np.inf)
    edges = np.concatenate([-infinite, edges, infinite], axis=1)
    tail = ndtr(-np.abs(edges))
    before, after = tail[:, :-1], tail[:, 1:]
    right, left = edges[:, :-1] >= 0, edges[:, 1:] <= 0
    mass = np.where(right, before - after, np.where(left, after - before, 1 - before - after))
    return np.maximum(mass, 0.0), rounding * np.where(right | left, before + after, 1.0)


class Moments(NamedTuple):
    """Mean of the tilted total loss, its divergence from the untilted loss, sums of squares and of variances."""

    mean: float
    divergence: float
    square: float
    variance: float


class _Rough:
    """Losses on a few hundred points, to choose tilt, grid and window; the bounds are valid for every choice."""

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
        """Return the smallest of the `TILTS` that moves the sum by `level`, and the moments of the tilted sum."""
        if level not in self._at:
            weights, aim = self._weights(level), _divergence(level)
            place = bisect_left(TILTS, True, key=lambda tilt: self._moved(weights, 2 ** (tilt / STEPS)) >= aim)
            tilt = 2 ** (TILTS[min(place, len(TILTS) - 1)] / STEPS)
            self._at[level] = tilt, self._moments(weights, tilt)
        return self._at[level]

    def reach(self, level: int) -> float:
        """Return the length of the window."""
        bottom, top, _ = self.window(level)
        return top - bottom

    def window(self, level: int) -> tuple[float, float, float]:
        """Return both ends of the window around the tilted sum, and the extra tilt that best bounds the mass above it.

        The mass above the window is e^-WINDOW of delta. Mass below it, or a full window further below, wraps around.
        """
        weights, (tilt, here) = self._weights(level), self.at(level)
        deviation = math.sqrt(here.variance) or 1e-300
        steps = np.array([0.25, 0.5, 1.0, 2.0, 3.0, 5.0]) / deviation
        tilts = np.concatenate([[tilt], tilt + steps, tilt - steps])
        log_k, *logs = (log_sum(weights + tilts[:, None, None] * self.loss) @ self.counts).tolist()
        upper, lower = np.split(np.array(logs), 2)
        spare = tilt * here.mean - log_k + WINDOW
        tops = (upper + spare) / (tilt + steps)
        best = int(np.argmin(tops))
        bottom = float(np.max((log_k - lower - WINDOW) / steps))
        length = min(float(tops[best]) - bottom, max(spare / tilt, float(tops[best]) - here.mean + 4 * deviation))
        # Single losses may be very large when tilted: mass that wraps around from above must stay away from the bulk.
        length = max(length, float(np.min((upper - log_k + WINDOW) / steps)) - here.mean + 5 * deviation)
        return float(tops[best]) - length, float(tops[best]), float(steps[best])

    def _weights(self, level: int) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(np.where(self.outer >= NEGLIGIBLE * math.exp(-_divergence(level)), self.chances, 0.0))

    def _moved(self, weights: np.ndarray, tilt: float) -> float:
        """Divergence of the tilted sum from the untilted sum."""
        logs = weights + tilt * self.loss
        peak = logs.max(axis=1)
        chances = np.exp(logs - peak[:, None])
        total = chances.sum(axis=1)
        mean = np.einsum("kn,kn->k", chances, self.loss) / total
        return float(self.counts @ (tilt * mean - peak - np.log(total)))

    def _moments(self, weights: np.ndarray, tilt: float) -> Moments:
        logs = weights + tilt * self.loss
        log_k = log_sum(logs)
        chances = np.exp(logs - log_k[:, None])
        mean, square = (chances * self.loss).sum(axis=1), (chances * self.loss**2).sum(axis=1)
        variance = (chances * (self.loss - mean[:, None]) ** 2).sum(axis=1)
        total = self.counts @ np.stack([mean, tilt * mean - log_k, square, variance], axis=1)
        return Moments(*total.tolist())


def log_sum(logs: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return ln of the sum of e^logs along an axis; scipy's logsumexp takes ten times as long for small arrays."""
    peak = logs.max(axis=axis, keepdims=True)
    return peak.squeeze(axis) + np.log(np.exp(logs - peak).sum(axis=axis))


def _level(log_delta: float) -> int:
    """Return the level at which delta is about e^-divergence."""
    return min(LEVELS[-1], max(1, round(4 * math.sqrt(max(0.0, -2 * log_delta)))))


def _divergence(level: int) -> float:
    return level * level / 32
