"""An attack on the bits of noise: is what was released possible without the canary?

On real numbers every sum can give every release. Floats are few: a sum that is held in float32, and noise that was
drawn as floats, reach only some of the floats. Whoever knows all of the sum but the canary (differential privacy's
adversary) counts for both sums the released numbers that they cannot reach, and guesses "present" if these are more
without the canary than with it. One number may decide, whatever epsilon says (Mironov 2012; arXiv 2112.05307).

Ways to tell that a number is impossible:

* sum: no float32 number, added to this sum in float32, gives it. It asks nothing of the noise but that it was float32,
  so it breaks perfect normals, too. What tells are numbers nearer to 0 than the noise that gave them: they have kept
  the sum's last bits.
* devices: the same of a sum over two ranks, one of which had added the noise to its share before: no float32 number,
  added there, gives it.
* pairs: Box and Muller (1958) make two normals of b + b random bits. Near such a pair few radii and angles exist, and
  all are tried. Of 24 + 24 bits most pairs give themselves away, of 32 + 32 those far out: 1 in 10^5.
* grid, cells, zeros: three on noise that is rounded to a grid g. Against a sum stands a number that is no multiple of
  g away from it (as if noise alone had been rounded), one in an odd cell if the sum lies in an even one or the other
  way round (as if cells had different chances), and a zero or subnormal number with another sign than the sum's.
* numbers: numpy's ziggurat in float32 has 2^23 values in each of 256 layers, 2^24 in its tail. All layers are tried.

Who resists, and how far. Where each of two ranks adds float32 noise of its own, one's last bits blur the other's, and
what is counted no longer proves anything, but it still tells most releases apart. Float64 noise that is added in
float64 and rounded to float32 once resists, as a float32 cell holds thousands of its values. Numpy's have 52 bits in
each layer, so where a cell is W wide its chance is off by 2^-50 sigma / W of itself at most. Numbers near 2^-j sigma,
whose cells are 2^(-23 - j) sigma wide, thus add 2^(j - 54) to the divergence from the ideal while j < 28, and 2^-j (j -
27) beyond: less than 2^-25 for each number released. By Pinsker's inequality that adds at most 2 sqrt(P 2^-26) to an
attack's advantage on P numbers: .025 for 10^4, and no promise for 10^8. (The rounding of float64 itself, far below, is
left out.) `edp_lab.privacy.exact_noise` needs no such bound: it adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edp_lab.attacks.audit.bounds import Audit, claim_under_test, error_rate, lower_bounds, upper_limit
from edp_lab.attacks.audit.step_audit import FAR
from edp_lab.attacks.statistics import Interval, check_confidence, clopper_pearson, gaussian_bound
from edp_lab.errors import UsageError
from edp_lab.privacy import Mechanism, judge
from edp_lab.privacy.csprng import PIECE, Purpose, SecretStream, fill_normal, key_from_seed
from edp_lab.privacy.exact_noise import Piece, grid
from edp_lab.privacy.exact_noise import release as release_exactly

Floats = NDArray[np.float32]
Sums = tuple[Floats, Floats]  # (P) without the canary, and with it
Count = Callable[[Floats, Floats, float], NDArray[np.int64]]  # released (T, P), a sum (P), std -> (T)
f32 = np.float32

OTHERS = 8.0  # clip norms: the rest of the sum, which the adversary knows
MOST_NUMBERS, MOST_TRIALS = 10**8, 10**6
AT_A_TIME = 2**20  # numbers


class Clue(NamedTuple):
    """A way to tell impossible numbers: how many of each release are, given a sum (P) and the noise's deviation."""

    impossible: Count
    size: int  # P that is enough at z0 = 4


class Noise(NamedTuple):
    """A way to release a sum with noise, and what tells it apart."""

    said: str
    release: Callable[[Floats, float, int], Floats]  # sums (T, P), std, seed -> (T, P)
    clues: Mapping[str, Clue]


# ---- Which numbers are impossible ------------------------------------------------------------------------------------


def no_float_sum(released: Floats, total: Floats, std: float) -> NDArray[np.int64]:
    """Numbers that no float32 number gives, if it is added to the sum in float32.

    Proof: what is released does not fall as the noise rises. So if some float32 gives it, one of the three that are
    nearest to the difference does.
    """
    nearest = (released.astype(float) - total).astype(f32)
    impossible = total + nearest != released
    for end in (-np.inf, np.inf):
        impossible &= total + np.nextafter(nearest, f32(end)) != released
    return impossible.sum(axis=-1)


def shares(total: Floats, std: float) -> Sums:
    """The sum's parts on two ranks, (..., P) each: with the second's utterances the canary is not. All are known."""
    size = total.shape[-1]
    second = np.random.default_rng(size).normal(0.0, 2 * std / math.sqrt(size), (size,)).astype(f32)
    return total - second, second


def no_device_sum(released: Floats, total: Floats, std: float) -> NDArray[np.int64]:
    """Numbers that no float32 number gives, if it is added to either rank's share, in float32, before they are summed.

    Proof: again nothing falls as the noise rises, so the least float that gives as much gives it, or none does.
    """
    impossible = np.ones(released.shape, dtype=bool)
    for own, other in (parts := shares(total, std), parts[::-1]):
        nearest = (released.astype(float) - own - other).astype(f32)
        rows, places = np.nonzero(impossible & (own + nearest + other != released))
        own, other, wanted = own[places], other[places], released[rows, places]
        low, high = (np.full(len(rows), end, dtype=np.int64) for end in (-LARGEST_FLOAT, LARGEST_FLOAT))
        while (low < high).any():
            middle = (low + high) // 2
            enough = own + _float_of(middle) + other >= wanted
            low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
        missed = np.zeros_like(impossible)
        missed[rows, places] = own + _float_of(low) + other != wanted
        impossible &= missed
    return impossible.sum(axis=-1)


LARGEST_FLOAT = int(np.finfo(f32).max.view(np.int32))


def _float_of(number: NDArray[np.int64]) -> Floats:
    """All float32 numbers in their order, 0 from 0."""
    bits = np.abs(number).astype(np.uint32) | (number < 0).astype(np.uint32) << np.uint32(31)
    return bits.view(f32)


@dataclass(frozen=True)
class Pairs:
    """Box and Muller of b + b bits: how pairs lie in memory, and the normals that are near one.

    Only pairs that are `least` deviations from 0 are looked at: nearer ones are mostly possible.
    """

    split: Callable[[NDArray[Any]], list[tuple[NDArray[Any], NDArray[Any]]]]  # (P) -> places of first and second
    near: Callable[[float, float], tuple[NDArray[Any], NDArray[Any]]]  # a pair -> normals (K), (K)
    least: float
    error: float  # of a normal that is near, relative to the pair's radius; 0 where it is the generator's own

    def __call__(self, released: Floats, total: Floats, std: float) -> NDArray[np.int64]:
        places = np.arange(total.size)
        return np.array(
            [sum(self._impossible(row, total, std, *own) for own in self.split(places)) for row in released]
        )

    def _impossible(self, row: Floats, total: Floats, std: float, *places: NDArray[Any]) -> int:
        first, second = ((row[own].astype(float) - total[own]) / std for own in places)
        found = 0
        for k in np.flatnonzero(first * first + second * second > self.least**2):
            pair = np.array([first.flat[k], second.flat[k]])
            slack = self.error * math.hypot(*pair) * std
            fits = True
            for own, normals, sign in zip(places, self.near(*np.abs(pair)), np.sign(pair), strict=True):
                s, x = total[own].flat[k], row[own].flat[k]
                if self.error:
                    fits = fits & (abs(s + std * sign * normals - float(x)) <= slack + 2.0**-23 * abs(float(x)))
                else:
                    fits = fits & (s + f32(std * sign) * normals == x)
            found += not np.any(fits)
        return found


def _halves(places: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """As `fill_normal` draws them: the first half of a piece of the stream goes with the second."""
    pieces = [places[start : min(start + PIECE, len(places) // 2 * 2)] for start in range(0, len(places), PIECE)]
    return [(piece[: len(piece) // 2], piece[len(piece) // 2 :]) for piece in pieces]


def _eights(places: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """As torch draws them on a CPU: each 8 numbers go with the next 8. (The last 16 it may draw again.)"""
    rows = places[: len(places) // 16 * 16].reshape(-1, 2, 8)[: -1 if len(places) % 16 else None]
    return [(rows[:, 0].reshape(-1), rows[:, 1].reshape(-1))]


def _grid(middle: float, reach: float, angle: float, turn: float, most: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """All whole numbers near two, of which the first lies in [0, most)."""
    k = np.arange(max(0, math.floor(middle - reach)), min(most, math.ceil(middle + reach) + 1))
    j = np.arange(math.floor(angle - turn), math.ceil(angle + turn) + 1)
    return np.repeat(k, len(j)), np.tile(j, len(k))


NEAR = 5e-6  # further than any float32 normal here is from its exact value, and a release from its sum


def _near_ours(first: float, second: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """The normals of `normal_single` near a pair without signs: itself computes them."""
    from edp_lab.privacy.csprng_numba import normal_single

    r, t = math.hypot(first, second), math.atan2(second, first) - math.pi / 4
    u = 2.0**32 * math.exp(-r * r / 2)
    k, j = _grid(u, u * r * NEAR + 1, t * 2.0**31 / math.pi, NEAR / r * 2.0**31 / math.pi + 1, 2**32)
    normals = np.empty((2, len(k)), dtype=f32)
    normal_single(k.astype(np.uint32), (4 * j % 2**32).astype(np.uint32), f32(0), f32(np.inf), *normals)
    return np.abs(normals[0]), np.abs(normals[1])


def _near_torchs(first: float, second: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Those of torch's radius and angle near a pair without signs, but for the rounding of logarithm, sine and cosine.

    The signs are those of the angle's quadrant, and 2^24 is a multiple of 4.
    """
    r, t = math.hypot(first, second), math.atan2(second, first)
    u = 2.0**24 * math.exp(-r * r / 2)
    k, j = _grid(u, u * r * NEAR + 1, t * 2.0**23 / math.pi, NEAR / r * 2.0**23 / math.pi + 1, 2**24 + 1)
    k, j = k[k > 0], j[k > 0]
    radius = np.sqrt(-2 * np.log(k * 2.0**-24))
    angle = j * (math.pi * 2.0**-23)
    return radius * np.cos(angle), radius * np.sin(angle)


TAIL = 3.6541528853610088  # where numpy's ziggurat ends


@cache
def ziggurat() -> Floats:
    """The unit of each of numpy's 256 layers in float32, the base first (Marsaglia and Tsang 2000): (256)."""

    def density(x: float) -> float:
        return math.exp(-x * x / 2)

    area = TAIL * density(TAIL) + math.sqrt(math.pi / 2) * math.erfc(TAIL / math.sqrt(2))
    widths = [TAIL]
    while len(widths) < 255:
        widths.append(math.sqrt(-2 * math.log(area / widths[-1] + density(widths[-1]))))
    return (np.array([area / density(TAIL), *widths]) * 2.0**-23).astype(f32)


def no_ziggurat(released: Floats, total: Floats, std: float) -> NDArray[np.int64]:
    """Numbers beyond 3 deviations that no layer of numpy's float32 ziggurat gives, nor its tail."""
    difference = (released.astype(float) - total) / std
    rows, places = np.nonzero(np.abs(difference) > 3)
    far, s, x = np.abs(difference[rows, places]), total[places], released[rows, places]
    possible, scale = np.zeros(len(far), dtype=bool), f32(std) * np.sign(difference[rows, places]).astype(f32)
    for unit in ziggurat():
        for step in (-1, 0, 1):
            k = np.rint(far / unit) + step
            possible |= (k < 2**23) & (s + scale * (k.astype(f32) * unit) == x)
    beyond = far > TAIL - NEAR
    possible[beyond] |= _in_tail(far[beyond], s[beyond], x[beyond], scale[beyond])
    return np.bincount(rows[~possible], minlength=len(released))


def _in_tail(far: NDArray[Any], s: Floats, x: Floats, scale: Floats) -> NDArray[np.bool_]:
    """Whether TAIL - log(1 - u) / TAIL, u of 24 bits, gives x; a logarithm may be off by one unit in its last place."""
    left = 2.0**24 * np.exp(-TAIL * np.maximum(far - TAIL, 0.0))
    reach = math.ceil(2.0**24 * TAIL * NEAR)
    possible = np.zeros(len(far), dtype=bool)
    for step in range(-reach, reach + 1):
        rest = np.clip(np.rint(left) + step, 1, 2**24) * 2.0**-24
        nearest = (-np.log(rest) / TAIL).astype(f32)
        for end in (nearest, np.nextafter(nearest, f32(0)), np.nextafter(nearest, f32(np.inf))):
            possible |= s + scale * (f32(TAIL) + end) == x
    return possible


def off_grid(released: Floats, total: Floats, std: float) -> NDArray[np.int64]:
    """Numbers that are no multiple of the public grid away from the sum."""
    steps = (released.astype(float) - total) / grid(std)
    return (steps != np.rint(steps)).sum(axis=-1)


def other_cells(released: Floats, total: Floats, std: float) -> NDArray[np.int64]:
    """Numbers in odd cells of the public grid where the sum lies in an even one, or the other way round."""
    cells, own = (np.rint(numbers / grid(std)).astype(np.int64) for numbers in (released, total))
    return ((cells ^ own) & 1).sum(axis=-1)


def other_zeros(released: Floats, total: Floats, std: float) -> NDArray[np.int64]:
    """Zeros and subnormal numbers with another sign than the sum's."""
    return ((np.abs(released) < np.finfo(f32).tiny) & (np.signbit(released) != np.signbit(total))).sum(axis=-1)


# ---- Ways to release a sum -------------------------------------------------------------------------------------------


def _box_muller(totals: Floats, std: float, seed: int) -> Floats:
    noise = np.empty_like(totals)
    for turn, row in enumerate(noise):
        fill_normal(SecretStream(key_from_seed(seed), Purpose.NOISE, turn), row)
    return totals + f32(std) * noise


def _numpy(dtype: Any, rounded: bool, totals: Floats, std: float, seed: int) -> Floats:
    noise = std * np.random.default_rng(seed).standard_normal(totals.shape, dtype)
    return (totals + (noise.astype(f32) if rounded else noise)).astype(f32)


def _torch(totals: Floats, std: float, seed: int) -> Floats:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return (torch.from_numpy(totals) + torch.normal(0.0, std, totals.shape, generator=generator)).numpy()


def _opacus_secure(totals: Floats, std: float, seed: int) -> Floats:
    """Half the sum of four normals after one that is thrown away, as Opacus documents it (Holohan and Braghin 2021).

    The bits are torch's own instead of a cipher's.
    """
    import torch

    generator, noise = torch.Generator().manual_seed(seed), torch.zeros(totals.shape)
    torch.normal(0.0, std, (1, 1), generator=generator)
    for _ in range(4):
        noise += torch.normal(0.0, std, totals.shape, generator=generator)
    return (torch.from_numpy(totals) + noise / 2).numpy()


def _by_ranks(kind: str, world: int, totals: Floats, std: float, seed: int) -> Floats:
    """As the library trains with float noise: two devices on as many ranks, whose shares are summed in float32."""
    import torch

    from edp_lab.training.noise import NoiseSource, Share, Span

    released = [part.copy() for part in ((totals,) if world == 1 else shares(totals, std))]
    released[1:] = [np.tile(part, (len(totals), 1)) for part in released[1:]]
    for rank, rows in enumerate(released):
        source = NoiseSource(key_from_seed(seed), rows.shape[1], Share(kind, 2, rank, world))
        for step, row in enumerate(rows):
            source.of(step).add_to([Span(slice(0, len(row)), torch.from_numpy(row))], [std])
    return np.sum(released, axis=0, dtype=f32)


def _exact_by_ranks(totals: Floats, std: float, seed: int) -> Floats:
    return _exact(np.sum(np.broadcast_arrays(*shares(totals, std)), axis=0, dtype=f32), std, seed)


def _exact(totals: Floats, std: float, seed: int) -> Floats:
    numbers = totals.flatten()
    for block, start in enumerate(range(0, len(numbers), PIECE)):
        piece = Piece(numbers[start : start + PIECE], 1.0, std)
        release_exactly([piece], key_from_seed(seed), Purpose.NOISE, block)
    return numbers.reshape(totals.shape)


SUM, DEVICES = Clue(no_float_sum, 1024), Clue(no_device_sum, 2**16)
OURS = Clue(Pairs(_halves, _near_ours, 4.9, 0.0), 5_000_000)
TORCHS = Clue(Pairs(_eights, _near_torchs, 4.0, 4e-7), 2**17)
ZIGGURAT = Clue(no_ziggurat, 2**20)
GRID, CELLS, ZEROS = (Clue(against, 2**17) for against in (off_grid, other_cells, other_zeros))
NOISES: dict[str, Noise] = {
    "box-muller": Noise("Box and Muller, float32, 32 + 32 bits", _box_muller, {"sum": SUM, "pairs": OURS}),
    "torch": Noise("torch's normal, as Opacus adds it by default", _torch, {"sum": SUM, "pairs": TORCHS}),
    "opacus-secure": Noise("Opacus' secure mode: half of four of torch's", _opacus_secure, {"sum": SUM}),
    "numpy-float32": Noise("numpy's, float32", partial(_numpy, f32, True), {"sum": SUM, "numbers": ZIGGURAT}),
    "numpy-rounded": Noise("numpy's, float64, rounded, then added", partial(_numpy, float, True), {"sum": SUM}),
    "numpy-float64": Noise("numpy's, float64, added, then rounded", partial(_numpy, float, False), {"sum": SUM}),
    "devices": Noise("each simulated device's own, as printed", partial(_by_ranks, "per-device", 1), {"sum": SUM}),
    "one-rank": Noise("one rank's, before the sum over two", partial(_by_ranks, "aggregate", 2), {"devices": DEVICES}),
    "each-rank": Noise("each rank's own, as printed", partial(_by_ranks, "per-device", 2), {"devices": DEVICES}),
    "exact-ranks": Noise("ours, after the sum over two ranks", _exact_by_ranks, {"devices": DEVICES}),
    "exact": Noise(
        "an ideal normal, rounded with the sum: ours",
        _exact,
        {"sum": SUM, "pairs": OURS, "numbers": ZIGGURAT, "grid": GRID, "cells": CELLS, "zeros": ZEROS},
    ),
}


def own_noise(name: str) -> Noise:
    """Of a function of one's own, `MODULE:FUNCTION`: sum (P), float32, and std -> what is released, (P).

    UsageError where there is none of that name, or what it releases is no float32 array of the sum's shape.
    """
    module, _, function = name.partition(":")
    try:
        own = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join(NOISES)
        raise UsageError(f"unknown noise {name!r} ({error}): choose {known}, or MODULE:FUNCTION of your own") from error

    def release(totals: Floats, std: float, seed: int) -> Floats:
        rows = [np.asarray(own(row.copy(), std)) for row in totals]
        if any(row.dtype != f32 or row.shape != totals.shape[1:] for row in rows):
            raise UsageError(f"{name} releases no float32 array of its sum's shape: end it with .astype(numpy.float32)")
        return np.stack(rows)

    return Noise(name, release, {"sum": SUM})


def clues_of(noise: str | None, clue: str | None) -> list[tuple[str, str]]:
    """The pairs of noise and clue that are asked for; None: all there are. UsageError where there are none."""
    known = NOISES if noise is None else {noise: NOISES.get(noise) or own_noise(noise)}
    found = [(name, one) for name, source in known.items() for one in source.clues if clue in (None, one)]
    if not found:
        there = dict.fromkeys(one for source in known.values() for one in source.clues)
        raise UsageError(f"no attack {clue!r} on {noise or 'any noise'}: choose {' or '.join(there)}")
    return found


# ---- The audit -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BitsAudit(Audit):
    """What an ideal normal would guarantee, and what the released bits prove of this noise, whatever the mechanism."""

    noise: str
    clue: str
    size: int  # P
    trials: int  # releases without the canary, and as many with it
    true_positives: int  # releases with the canary of which "present" was guessed,
    false_positives: int  # and without it
    advantage: Interval  # of true over false positives, at `confidence`
    advantage_allowed: float  # to any attack on an ideal normal
    impossible: tuple[tuple[tuple[int, int], ...], ...]  # by side and release: numbers impossible without it, with it


def neighbours(clip_norm: float, size: int, seed: int) -> Sums:
    """A sum (P) without the canary and with it: both dense, in directions of their own; C apart at most."""
    rest, direction = np.random.default_rng(seed).normal(size=(2, size))
    rest *= OTHERS * clip_norm / np.linalg.norm(rest)
    gradient = FAR * clip_norm / np.linalg.norm(direction) * direction
    clipped = gradient * ((1 - 2.0**-20) * clip_norm / np.linalg.norm(gradient))  # the sum's rounding adds less
    return rest.astype(f32), rest.astype(f32) + clipped.astype(f32)


def audit_bits(
    noise: str,
    z0: float = 4.0,
    clip_norm: float = 1.0,
    clue: str = "sum",
    size: int | None = None,
    trials: int = 120,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> BitsAudit:
    """Release a sum without and with a canary, `trials` times each, and guess by impossible numbers which it was.

    Args:
        noise: a name of `NOISES`, or `MODULE:FUNCTION`, see `own_noise`.
        clue: "sum", or what else this noise has.
        size: P; None is as much as this clue needs at z0 = 4.
        progress: told how many of the 2 `trials` releases were looked at.

    Guarantee: if releases are independent, epsilon is at least `epsilon_lower_bound` with probability `confidence`,
    whatever the mechanism. On trial is the epsilon of an ideal normal with noise multiplier z0; UsageError where
    that is not finite, for an unknown noise or clue, and for numbers out of range.
    """
    ((_, clue),) = clues_of(noise, clue)
    source = NOISES.get(noise) or own_noise(noise)
    if size is None:
        size = source.clues[clue].size
    for what, value, most in (("numbers", size, MOST_NUMBERS), ("releases a side", trials, MOST_TRIALS)):
        if not 1 <= value <= most:
            raise UsageError(f"the number of {what} is {value}: it must be a whole number from 1 to {most:,}")
    check_confidence(confidence)
    mechanism = Mechanism.sound(clip_norm, z0, 1, 1)
    guarantee = judge(mechanism, 1, delta, seed_published=False)
    claim_under_test(guarantee, mechanism)  # there is one
    sums, std = neighbours(clip_norm, size, seed), mechanism.noise_std(0)
    impossible, rows, counted = source.clues[clue].impossible, max(1, AT_A_TIME // size), []
    for side, total in enumerate(sums):
        for start in range(0, trials, rows):
            totals = np.tile(total, (min(rows, trials - start), 1))
            own = int(np.random.SeedSequence((seed, side, start)).generate_state(1)[0])  # torch takes only 32 bits
            released = source.release(totals, std, own)
            counted.append(np.stack([impossible(released, other, std) for other in sums], axis=1))
            progress(side * trials + start + len(totals))
    found = np.concatenate(counted).reshape(2, trials, 2)  # by side and release, without the canary and with it
    guesses = found[..., 0] > found[..., 1]
    fpr, fnr = (error_rate(wrong, confidence) for wrong in (guesses[0], ~guesses[1]))
    least = upper_limit(0, trials, confidence)
    true, false = (clopper_pearson(int(side.sum()), trials, confidence) for side in guesses[::-1])
    return BitsAudit.of(
        mechanism,
        guarantee,
        lower_bounds(fpr.upper_limit, fnr.upper_limit, delta).distribution_free,
        lower_bounds(least, least, delta).distribution_free,
        confidence,
        f"{trials:,} releases a side of {size:,} numbers",
        f"the canary is found in {trials - fnr.errors:,} releases with it and in {fpr.errors:,} without, so ",
        noise=noise,
        clue=clue,
        size=size,
        trials=trials,
        true_positives=trials - fnr.errors,
        false_positives=fpr.errors,
        advantage=(true[0] - false[1], true[1] - false[0]),
        advantage_allowed=gaussian_bound(1 / z0).advantage,
        impossible=tuple(tuple(map(tuple, side)) for side in found.tolist()),
    )
