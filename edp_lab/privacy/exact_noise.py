"""Exact Gaussian noise on floating-point numbers.

For each number s of a sum, with standard deviation sigma and a public grid spacing g (a power of two), we release

    g * round((s + sigma N) / g),        where N is an ideal normal variable, a real number.

Guarantee: the output depends only on s + sigma N. By post-processing, if the cipher's bits are random, it has exactly
the guarantee of the Gaussian mechanism under every accountant. Rounding adds a variance of g^2 / 12, at most 8.2e-5
sigma^2. Values that a float cannot represent (integers beyond 2^24 in float32) are rounded once more, which is also
post-processing. Float noise added to a float sum guarantees nothing, because the set of reachable sums depends on s
(Mironov 2012; arXiv 2112.05307).

**The ideal pair.** Box and Muller (1958), with half the squared radius, from infinite random bits u, t and two signs:

    N_1 = +-rho (cos t - sin t),  N_2 = +-rho (cos t + sin t),  rho = sqrt(-log u),  u in [0, 1],  |t| <= pi / 4.

The block's stream supplies the first 32 bits of u (the integer k) and the first 30 bits of t (j): u is in
[k, k + 1] / 2^32 and t is in [j, j + 1] pi / 2^31. If a pair needs more bits, these come from a reserved position far
ahead in the stream, which depends on (key, step, block, pair).

**Three rounding methods, one result.** Each computes x = (s + sigma N) / g with an error below a bound e, for any
remaining bits. If x is within 1/2 - e of an integer, this integer is the result. All methods find the same integer,
independently of processor, library, threads and ranks. Otherwise (for one number in 3,700) the next method is used.
All methods use the same s: g times the floating-point value of scale / g * number.

1. Float32 (`edp_lab.compiled.round_pairs`), for pairs with 2e-6 <= rho^2 <= 9; other pairs need method 2.
   N is the product of rho, a function of k, and q = cos t -+ sin t, a function of j. We compared all k and j with
   float64 at both ends of their intervals: the error of rho is below .4369e-6, the error of q below .2031e-6. The
   error of N is therefore below 3 * .2031e-6 + 1.4143 * .4369e-6 + 1e-13 < 1.228e-6; we use 1.25e-6. Four
   roundings, of N, sigma / g, z = sigma N / g and x = s / g + z, have a relative error of 2^-24 each. For these we
   subtract (|x| + |z|) 2^-22. The surplus of 1.25e-6 (over 7e-7 in x) covers the comparison's roundings, below 1e-7.
   `tests/privacy/test_exact_noise.py` checks the ends and a sample; with EDP_LAB_LONG=1, all values in ten minutes.
2. Float64 (`round_closely`), from 96 bits of u and 94 bits of t. Let h = 2^-53. We assume that the C library's log,
   log1p, sin and cos are correct to 4 units in the last place (glibc: 1), and that roots and single operations are
   correctly rounded. Relative errors are then below 3h for u (above 1/2: for 1 - u), 1.45 * 3h + 8h < 13h for -log u
   and 8h for rho. Absolute errors are below 3h for t, 3h + 8h for sin and cos, and 24h for q. Since rho < 4.71, the
   error of N is below 4.71 (24h + 1.42 * 10h) < 2.1e-14, plus 1e-17 for the remaining bits. We use 1.1e-13, and
   subtract 4h |x| for the rounding of x. The first and the last k need method 3.
3. Interval arithmetic (mpmath), which encloses every possible value. It draws 64 further bits of u and of t at a time
   until both ends round to the same integer. No tail is cut off, because more bits are drawn if u is near 0.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, count, pairwise
from typing import NamedTuple

import numpy as np

from edp_lab.privacy.csprng import Purpose, SecretStream, own_memory

GRID = 6  # bits of sigma / g
CERTAIN = np.float32(4.5), np.float32(4.5 - 2.0**-18)  # interval of rho^2 for which method 1 is proven: centre, radius
FLOAT32_ERROR, FLOAT64_ERROR = 1.25e-6, 2.0**-43  # error bounds of N
FLOAT32_ROUNDING = 2.0**-22  # relative rounding error of z and x
SMALLEST_STD = 2.0**-100  # below this, 1 / g is not a float32
FURTHER = 2**40  # first block of the further bits: one block per pair and turn


class Piece(NamedTuple):
    """Contiguous numbers (n) of a sum (float32 or float64), their scale factor and the standard deviation of noise."""

    numbers: np.ndarray
    scale: float
    std: float


def grid(std: float) -> float:
    """Return the grid spacing g, the power of two with std / 64 < g <= std / 32."""
    return math.ldexp(1.0, math.frexp(std)[1] - GRID)


def add_exactly(pieces: Sequence[Piece], key: int, purpose: Purpose, *path: int) -> None:
    """Scale the numbers of all pieces and add noise, in place; the noise is a function of key, purpose and path.

    There is no guarantee for numbers with std below `SMALLEST_STD`, which are only scaled, and for sums beyond 2^48 g,
    which are not rounded. A sum of 10^6 clipped gradients is never so large if the noise multiplier is at least 2^-20.
    """
    from edp_lab.compiled import round_pairs  # slow to load

    size = sum(len(piece.numbers) for piece in pieces)
    half = (size + 1) // 2
    raw, places = own_memory("bits", 2 * half, np.uint32), own_memory("places", 2 * half, np.int64)
    bits, uncertain = SecretStream(key, purpose, *path), 0
    bits.fill(raw)
    for start, lower, upper in _pairs([_scaled_if_silent(piece) for piece in pieces], half):
        of = lower.numbers.dtype.type
        terms, integers = np.array([_terms(lower), _terms(upper)], dtype=of), of(1.5 * 2.0 ** np.finfo(of).nmant)
        both = lower.numbers, upper.numbers, terms, of(FLOAT32_ROUNDING), integers
        uncertain = round_pairs(raw, start, half, *CERTAIN, *both, places, uncertain)
    left, starts = np.sort(places[:uncertain]), [0, *accumulate(len(piece.numbers) for piece in pieces)]
    cuts = np.searchsorted(left, starts)
    for piece, start, first, last in zip(pieces, starts, cuts, cuts[1:], strict=False):
        if first < last and piece.std >= SMALLEST_STD:
            _finish(piece, left[first:last], start, raw, bits)


def _scaled_if_silent(piece: Piece) -> Piece:
    """Return the piece; if it gets no noise, scale it in place and return a dummy piece of the same length."""
    if piece.std >= SMALLEST_STD:
        return piece
    piece.numbers[:] *= piece.numbers.dtype.type(piece.scale)
    return Piece(np.zeros_like(piece.numbers), 1.0, 1.0)


def _terms(piece: Piece) -> tuple[float, ...]:
    """Return scale, std, grid and margin as arguments for `round_pairs`."""
    g = grid(piece.std)
    return piece.scale / g, piece.std / g, g, 0.5 - FLOAT32_ERROR * (piece.std / g)


def _pairs(pieces: list[Piece], half: int) -> Iterator[tuple[int, Piece, Piece]]:
    """Yield runs of pairs: the start, the piece of all first numbers and the piece of all second numbers."""
    odd = 2 * half - sum(len(piece.numbers) for piece in pieces)  # the last pair's second number is discarded
    pieces = [*pieces, *(Piece(np.zeros(odd, dtype=piece.numbers.dtype), 1.0, 1.0) for piece in pieces[:1])]
    starts = [0, *accumulate(len(piece.numbers) for piece in pieces)]
    for start, stop in pairwise(sorted({half, *(place % half for place in starts)})):
        both: list[Piece] = []
        for place in (start, half + start):
            k = bisect_right(starts, place) - 1
            numbers = pieces[k].numbers[place - starts[k] :][: stop - start]
            both.append(pieces[k]._replace(numbers=numbers))
        yield start, both[0], both[1]


def _finish(piece: Piece, places: np.ndarray, start: int, raw: np.ndarray, bits: SecretStream) -> None:
    """Round the numbers at these positions of the block with further bits; the piece starts at position `start`."""
    from edp_lab.compiled import round_closely

    g, half = grid(piece.std), len(raw) // 2
    std, more, unsure = piece.std / g, bits.blocks(places % half + FURTHER), np.empty_like(places)
    margin = 0.5 - FLOAT64_ERROR * std
    left = round_closely(piece.numbers, std, g, places, start, raw, more, margin, unsure)
    for place in unsure[:left].tolist():

        def draw(turn: int, pair: int = place % half) -> list[int]:
            return bits.blocks(np.array([pair + FURTHER * (turn + 1)]))[0].tolist()

        words = int(raw[place % half]), int(raw[place % half + half])
        y = float(piece.numbers[place - start])
        piece.numbers[place - start] = g * decide(y, std, *words, place >= half, draw)


def decide(x: float, std: float, radius: int, angle: int, second: bool, draw: Callable[[int], Sequence[int]]) -> float:
    """Return the integer nearest to x + std N, given the first two words of N and 64 further bits of each per draw.

    A non-finite x is returned unchanged.
    """
    from mpmath.ctx_iv import MPIntervalContext
    from mpmath.libmp import round_floor, to_int

    if not math.isfinite(x):
        return x

    iv = MPIntervalContext()  # a separate context, because the global precision is shared by threads
    sign = -1 if (angle >> 1 if second else angle) & 1 else 1
    angle = (angle - (angle >> 31 << 32)) >> 2  # signed
    for turn in count():
        drawn = 64 * (turn + 1)
        more = draw(turn)
        radius, angle = radius << 64 | more[0], angle << 64 | more[1]
        if radius == 0:
            continue
        iv.prec = drawn + 160
        u = iv.mpf([radius, radius + 1]) / 2 ** (32 + drawn)
        t = iv.mpf([angle, angle + 1]) / 2 ** (31 + drawn) * iv.pi
        q = iv.cos(t) + iv.sin(t) if second else iv.cos(t) - iv.sin(t)
        end = x + std * sign * iv.sqrt(-iv.log(u)) * q + 0.5
        low, high = (to_int(side, round_floor) for side in end._mpi_)
        if low == high:
            return low
    raise AssertionError("unreachable")
