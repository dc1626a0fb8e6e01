"""Gaussian noise as the theorem has it, on numbers as a machine has them.

For each number s of a sum, noise of standard deviation sigma and a public grid g, a power of two, this releases

    g * round((s + sigma N) / g),        N an ideal normal: a real number.

Guarantee: this is a function of s + sigma N and nothing else, so it promises exactly what the Gaussian mechanism does,
by post-processing and under every accountant, if the cipher's bits are random. It costs a variance of g^2 / 12, at
most 8.2e-5 sigma^2. What a float cannot hold (whole numbers beyond 2^24 in float32) is rounded once more, which is a
function of the same. Float noise added to a float sum promises nothing: the sums that it can reach from one s and from
another differ (Mironov 2012; arXiv 2112.05307).

**The ideal pair.** Box and Muller (1958), with half the squared radius, from endless random bits u, t and two signs:

    N_1 = +-rho (cos t - sin t),  N_2 = +-rho (cos t + sin t),  rho = sqrt(-log u),  u in [0, 1],  |t| <= pi / 4.

The block's stream gives the first 32 bits k of u and the first 30, j, of t: u lies in [k, k + 1] / 2^32 and t in
[j, j + 1] pi / 2^31. Further bits of a pair are, whenever they are needed, those at the pair's own place far behind in
the stream: a function of (key, step, block, pair).

**Three ways to round, one result.** Each computes x = (s + sigma N) / g with an error below some e, whatever the bits
to come. If x lies within 1/2 - e of a whole number, this is the answer, and any other way would find it, too: the
result does not depend on processor, library, threads or ranks. Elsewhere (one number in 3,700) the next way is taken.
What s is, is settled first: g times the float of scale / g * number.

1. Float32: `edp_lab.compiled.round_pairs`, for pairs with 2e-6 <= rho^2 <= 9; others are passed on.
   N is a product of rho, a function of k, and q = cos t -+ sin t, of j. All k and j were tried against float64, at both
   ends of what is open: rho is off by less than .4369e-6, q by less than .2031e-6. So N is off by less than
   3 * .2031e-6 + 1.4143 * .4369e-6 + 1e-13 < 1.228e-6, of which 1.25e-6 is claimed, and four roundings, each 2^-24
   relative: of N, of sigma / g, of z = sigma N / g and of x = s / g + z. For them (|x| + |z|) 2^-22 is taken off. The
   excess that is claimed, 7e-7 of x, covers the roundings of the comparison, below 1e-7.
   (`tests/privacy/test_exact_noise.py` tries the ends and some of the rest; with EDP_LAB_LONG=1, in ten minutes, all.)
2. Float64, from 96 bits of u and 94 of t: `round_closely`. With h = 2^-53 it is assumed that log, log1p, sin and cos of
   the C library are right to 4 units in the last place (glibc: 1), and the root and single operations are rounded
   correctly. Then u (1 - u above 1/2) has a relative error below 3h, -log u of 1.45 * 3h + 8h < 13h, rho of 8h; t an
   absolute one below 3h, sin and cos of 3h + 8h, q of 24h. As rho < 4.71, N is off by less than 4.71 (24h + 1.42 * 10h)
   < 2.1e-14, and by 1e-17 for the bits to come. 1.1e-13 is claimed; for the rounding of x, 4h |x| is taken off.
   The first and the last k are passed on.
3. Intervals (mpmath), which hold every value that is possible: 64 further bits for u and for t at a time, until both
   ends round alike. So no tail is cut: where u is near 0, more of its bits are drawn.
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
CERTAIN = np.float32(4.5), np.float32(4.5 - 2.0**-18)  # rho^2 for which the first way is proven: middle, reach
FLOAT32_ERROR, FLOAT64_ERROR = 1.25e-6, 2.0**-43  # of N
FLOAT32_ROUNDING = 2.0**-22  # of z and x, relative
SMALLEST_STD = 2.0**-100  # below, 1 / g is no float32
FURTHER = 2**40  # blocks of a stream from here on are further bits: one for each pair, and as many for the next turn


class Piece(NamedTuple):
    """Some numbers (n) of a sum as stored, in float32 or float64; their values are `scale` times these."""

    numbers: np.ndarray
    scale: float
    std: float


def grid(std: float) -> float:
    """g: a power of two, std / 64 < g <= std / 32."""
    return math.ldexp(1.0, math.frexp(std)[1] - GRID)


def add_exactly(pieces: Sequence[Piece], key: int, purpose: Purpose, *path: int) -> None:
    """Replace the numbers of all pieces by their release; the noise is a function of key, purpose and path.

    Numbers without noise, or with less than `SMALLEST_STD`, are scaled and promise nothing; neither does a sum beyond
    2^48 g, which is not rounded (of 10^6 clipped gradients none is, if the noise multiplier is at least 2^-20).
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
    """The piece; without noise, its numbers are scaled, and others to be thrown away stand in their place."""
    if piece.std >= SMALLEST_STD:
        return piece
    piece.numbers[:] *= piece.numbers.dtype.type(piece.scale)
    return Piece(np.zeros_like(piece.numbers), 1.0, 1.0)


def _terms(piece: Piece) -> tuple[float, ...]:
    """Scale, std, grid and margin, as `round_pairs` takes them."""
    g = grid(piece.std)
    return piece.scale / g, piece.std / g, g, 0.5 - FLOAT32_ERROR * (piece.std / g)


def _pairs(pieces: list[Piece], half: int) -> Iterator[tuple[int, Piece, Piece]]:
    """Runs of pairs whose first numbers all lie in one piece, as their second ones do: from where, and both."""
    odd = 2 * half - sum(len(piece.numbers) for piece in pieces)  # the last pair's second number is thrown away
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
    """Round the numbers at these places of the block, in which the piece starts at `start`, with further bits."""
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
    """The whole number nearest to x + std N, N given by its first two words and 64 further bits for both in every draw.

    What is not finite stays.
    """
    from mpmath.ctx_iv import MPIntervalContext
    from mpmath.libmp import round_floor, to_int

    if not math.isfinite(x):
        return x

    iv = MPIntervalContext()  # one of its own: precision is global, and threads share it
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
