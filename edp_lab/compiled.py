"""Compiled loops over the entries of a gradient and the rows of a batch.

With numpy, each operation would be a pass over memory. Importing this module loads a compiler in a third of a second.

The Box-Muller transform (1958) converts uniform bits to normal numbers. In single precision, logarithm, sine and cosine
are polynomials from Cephes (Moshier 1989), which allow vector instructions. The loop takes a third of numpy's time, and
its normals are within 2e-6 of the exact values. They are identical on every machine, because each product, sum and root
is rounded individually (operations are not fused).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

i32, u32, f32, u64 = np.int32, np.uint32, np.float32, np.uint64

ONE, HALF, QUARTER, THREE_QUARTERS = f32(1), f32(0.5), f32(0.25), f32(0.75)
UNIT = f32(2.0**-31)
ROOT_HALF = i32(round(2**31 * math.sqrt(0.5)))  # as a fraction of 2^31; below, as the bits of a float
ROOT_HALF_BITS = i32(f32(math.sqrt(0.5)).view(i32))
MANTISSA = i32(23)  # bits
NAN = np.uint32(2**32 - 1).view(f32)  # all bits are set; a processor creates this in one instruction
LN_2 = f32(math.log(2))
ROUNDING = 2.0**-51  # upper bound on the relative rounding error of a float64 sum
LARGEST_SUM = 2.0**48  # in units of the grid
UNIT_64 = 2.0**-64
EIGHTH_TURN = f32(math.pi / 4)
PAIRS = 2048  # pairs per block


def compiled(*signatures: str, reassociate: bool = False) -> Callable[[Any], Any]:
    """Compile a loop for these types; the machine code is cached for other processes if possible.

    All types are compiled together, so processes that start simultaneously write the same files. `reassociate`: allow
    sums in a different order, which is faster but makes the last bits depend on the machine.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    if reassociate:
        options["fastmath"] = {"reassoc", "contract"}

    def decorate(loop: Any) -> Any:
        try:
            return njit(list(signatures), cache=True, **options)(loop)
        except RuntimeError:  # neither this folder nor the user's cache is writable
            return njit(list(signatures), **options)(loop)

    return decorate


@compiled("void(uint32[::1], uint32[::1], float32, float32, float32[::1], float32[::1])")
def normal_single(
    radii: np.ndarray, angles: np.ndarray, middle: float, reach: float, first: np.ndarray, second: np.ndarray
) -> None:
    """Write two independent standard normals (float32) per 32 + 32 bits to `first` and `second`; all arrays are (n).

    Both are NaN if -log u, which is half the sum of their squares, is further than `reach` from `middle`.

    -log u is accurate at both ends of (0, 1), because it is computed from 1 - u if u is near 1. The angle is within an
    eighth of a turn of 45 degrees, where short polynomials suffice. Two further bits determine the signs.
    """
    for i in range(len(first)):
        bits = u32(radii[i])
        whole, part = i32(bits >> u32(1)), HALF * f32(i32(bits & u32(1)))
        u = (f32(whole) + (part + QUARTER)) * UNIT
        pattern = np.float32(u).view(np.int32)
        power = i32(i32(pattern - ROOT_HALF_BITS) >> MANTISSA)
        mantissa = np.int32(pattern - i32(power << MANTISSA)).view(np.float32)
        below = (f32(i32(i32(2**31 - 1) - whole)) + (THREE_QUARTERS - part)) * UNIT  # 1 - u
        x = -below if whole > ROOT_HALF else mantissa - ONE
        x2 = x * x  # pairs of powers, which can be computed in parallel
        y = f32(1.1676998740e-1) - f32(1.1514610310e-1) * x + f32(7.0376836292e-2) * x2
        y = f32(1.4249322787e-1) - f32(1.2420140846e-1) * x + y * x2
        w = f32(2.0000714765e-1) - f32(1.6668057665e-1) * x
        y = f32(3.3333331174e-1) - f32(2.4999993993e-1) * x + w * x2 + y * (x2 * x2)
        log = x + x2 * (y * x - HALF) + f32(power) * LN_2
        radius = f32(math.sqrt(-log)) if abs(log + middle) <= reach else NAN  # divided by the square root of 2
        turned = u32(angles[i])
        angle = f32(i32(np.uint32(turned).view(np.int32) >> i32(2))) * (f32(2.0**-29) * EIGHTH_TURN)
        z = angle * angle
        sin = angle + angle * z * (f32(-1.6666654611e-1) + z * (f32(8.3321608736e-3) - z * f32(1.9515295891e-4)))
        cos = f32(2.443315711809948e-5)
        cos = cos * z - f32(1.388731625493765e-3)
        cos = cos * z + f32(4.166664568298827e-2)
        cos = ONE - HALF * z + z * z * cos
        left, right = radius * (cos - sin), radius * (cos + sin)
        first[i] = np.uint32(np.float32(left).view(np.uint32) ^ u32(turned << u32(31))).view(np.float32)
        second[i] = np.uint32(np.float32(right).view(np.uint32) ^ u32((turned >> u32(1)) << u32(31))).view(np.float32)


@compiled(
    "void(float32[::1], float32, float32[::1], float32, float32, float32, float32, float32, uint8[::1])",
    "void(float64[::1], float64, float32[::1], float64, float64, float64, float64, float64, uint8[::1])",
)
def round_sums(
    numbers: np.ndarray,
    scale: float,
    noise: np.ndarray,
    std: float,
    grid: float,
    margin: float,
    rounding: float,
    integers: float,
    marks: np.ndarray,
) -> None:
    """Replace numbers (n) by `grid` times the integer nearest to x = y + z, for y = scale * number and z = std * noise.

    A number is rounded only if the integer is certain: x must be within margin - (|x| + |z|) * rounding of it.
    Otherwise the number becomes y and its mark 1. `integers`: a float of this precision that rounds sums to integers.
    """
    for i in range(len(numbers)):
        y, z = scale * numbers[i], std * noise[i]
        x = y + z
        whole = (x + integers) - integers
        sure = abs(x - whole) + (abs(x) + abs(z)) * rounding < margin
        numbers[i] = grid * whole if sure else y  # keeping the old number would need a branch
        marks[i] = not sure


@compiled("int64(uint8[::1], int64, int64[::1], int64)")
def where_marked(marks: np.ndarray, start: int, places: np.ndarray, count: int) -> int:
    """Append the indices of non-zero marks, plus `start`, to `places`, which already contains `count` indices.

    Returns the new count. The marks (64 n) are read 64 at a time.
    """
    words = marks.view(np.uint64)
    for first in range(0, len(words), 8):
        any_of_64 = u64(0)
        for i in range(first, first + 8):
            any_of_64 |= words[i]
        if any_of_64:
            for i in range(8 * first, 8 * first + 64):
                if marks[i]:
                    places[count] = start + i
                    count += 1
    return count


@compiled(
    *(
        f"int64(uint32[::1], int64, int64, float32, float32, {of}[::1], {of}[::1], {of}[:, ::1], {of}, {of}, "
        "int64[::1], int64)"
        for of in ("float32", "float64")
    )
)
def round_pairs(
    raw: np.ndarray,
    start: int,
    half: int,
    middle: float,
    reach: float,
    first: np.ndarray,
    second: np.ndarray,
    terms: np.ndarray,
    rounding: float,
    integers: float,
    places: np.ndarray,
    count: int,
) -> int:
    """Apply `normal_single`, then `round_sums` to both halves; noise and marks stay in the level-1 cache.

    Args:
        raw: the bits of `half` radii, followed by those of `half` angles. The pairs begin at `start`.
        first, second: numbers (n) to round; in the block, they begin at `start` and at `start` + `half`.
        terms: shape (2, 4): scale, std, grid and margin for `first` and for `second`.
        places: positions of uncertain numbers, of which `count` are already set. The new count is returned.
    """
    noise, other = np.empty(PAIRS, dtype=np.float32), np.empty(PAIRS, dtype=np.float32)
    marks = np.zeros(PAIRS, dtype=np.uint8)
    for at in range(0, len(first), PAIRS):
        n, pair = min(PAIRS, len(first) - at), start + at
        angles = raw[half + pair : half + pair + n]
        normal_single(raw[pair : pair + n], angles, middle, reach, noise[:n], other[:n])
        marks[n:] = 0
        scale, std, grid, margin = terms[0, 0], terms[0, 1], terms[0, 2], terms[0, 3]
        round_sums(first[at : at + n], scale, noise[:n], std, grid, margin, rounding, integers, marks[:n])
        count = where_marked(marks, pair, places, count)
        scale, std, grid, margin = terms[1, 0], terms[1, 1], terms[1, 2], terms[1, 3]
        round_sums(second[at : at + n], scale, other[:n], std, grid, margin, rounding, integers, marks[:n])
        count = where_marked(marks, half + pair, places, count)
    return count


@compiled(
    *(
        f"int64({of}[::1], float64, float64, int64[::1], int64, uint32[::1], uint64[:, ::1], float64, int64[::1])"
        for of in ("float32", "float64")
    )
)
def round_closely(
    numbers: np.ndarray,
    std: float,
    grid: float,
    places: np.ndarray,
    start: int,
    raw: np.ndarray,
    further: np.ndarray,
    margin: float,
    unsure: np.ndarray,
) -> int:
    """Round the numbers at `places` (n) that `round_sums` left uncertain, with 64 `further` bits per radius and angle.

    `numbers` begins at position `start` of the block, `raw` contains the bits of the block's radii, then of its angles,
    and `further` is (n, 2). Positions that remain uncertain are written to `unsure`, and their number is returned.
    """
    half, count, left = len(raw) // 2, len(places), 0
    words, sums = np.empty((2, count), dtype=np.uint32), np.empty(count)
    for i in range(count):  # the values are far apart in memory, so load them first
        pair = places[i] % half
        words[0, i], words[1, i], sums[i] = raw[pair], raw[pair + half], numbers[places[i] - start]
    for i in range(count):
        k, turned, second = words[0, i], words[1, i], places[i] >= half
        part = (np.float64(further[i, 0]) + 0.5) * UNIT_64
        if k < u32(2**31):
            minus_log = -math.log((np.float64(k) + part) * 2.0**-32)
        else:
            minus_log = -math.log1p(-(np.float64(u32(2**32 - 1) - k) + (1.0 - part)) * 2.0**-32)
        cell = np.float64(i32(np.uint32(turned).view(np.int32) >> i32(2)))
        t = (cell + np.float64(further[i, 1]) * UNIT_64) * (math.pi * 2.0**-31)
        z = std * (math.sqrt(minus_log) * (math.cos(t) + (math.sin(t) if second else -math.sin(t))))
        x = sums[i] + (-z if (turned >> u32(1) if second else turned) & u32(1) else z)
        whole = np.rint(x)
        sure = 0 < k < u32(2**32 - 1) and abs(x - whole) + abs(x) * ROUNDING < margin
        if sure or abs(x) >= LARGEST_SUM:
            numbers[places[i] - start] = grid * (whole + 0.0)  # avoids -0, which would reveal the method used
        else:
            unsure[left] = places[i]
            left += 1
    return left


@compiled(*(f"void({of}[::1], int64, int64[::1], {of}[:, ::1])" for of in ("float32", "float64")))
def fill_rows(numbers: np.ndarray, start: int, places: np.ndarray, rows: np.ndarray) -> None:
    """Set numbers (n), a flat table from position `start` on, to its rows (r, D) at `places` (r) and to 0 elsewhere."""
    numbers[:] = 0
    for i in range(len(places)):
        first = places[i] * rows.shape[1] - start
        for j in range(max(0, -first), min(rows.shape[1], len(numbers) - first)):
            numbers[first + j] = rows[i, j]


# ---- Products of a batch's rows --------------------------------------------------------------------------------------

KINDS = ("float32", "float64")
LAYOUTS = [f"void({kind}[:, :, ::1], int64, int64[:, ::1], float64[:, :, ::1])" for kind in KINDS]


@compiled(*LAYOUTS, reassociate=True)
def gram(x: np.ndarray, part: int, rows: np.ndarray, out: np.ndarray) -> None:
    """out[u, s, t] = x[rows[u, s], part] . x[rows[u, t], part], summed in float64; x (R, K, D), rows (U, T).

    Rows are multiplied in 2 x 2 blocks, which use each value twice, and out is symmetric. This is faster than padding
    the rows and converting them to float64 for a library's product. For row indices past the end, out is unchanged.
    """
    for u in range(len(rows)):
        valid = rows[u, : (rows[u] < len(x)).sum()]
        for s in range(0, len(valid), 2):
            for t in range(0, s + 1, 2):
                # If the number of rows is odd, the last row is multiplied by the others twice.
                s1, t1 = min(s + 1, len(valid) - 1), min(t + 1, len(valid) - 1)
                a, b, c, d = valid[s], valid[s1], valid[t], valid[t1]
                ac = ad = bc = bd = 0.0
                for j in range(x.shape[2]):
                    xa, xb = np.float64(x[a, part, j]), np.float64(x[b, part, j])
                    xc, xd = np.float64(x[c, part, j]), np.float64(x[d, part, j])
                    ac += xa * xc
                    ad += xa * xd
                    bc += xb * xc
                    bd += xb * xd
                out[u, s, t] = out[u, t, s] = ac
                out[u, s, t1] = out[u, t1, s] = ad
                out[u, s1, t] = out[u, t, s1] = bc
                out[u, s1, t1] = out[u, t1, s1] = bd


@compiled(*(f"void({kind}[:, :, ::1], int64[:, ::1], float64[::1])" for kind in KINDS), reassociate=True)
def squares_of_sums(x: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """out[u] = ||sum_t x[rows[u, t], 0]||^2, summed in float64; x (R, 1, D), rows (U, T)."""
    total = np.empty(x.shape[2])
    for u in range(len(rows)):
        total[:] = 0
        for t in range(rows.shape[1]):
            if rows[u, t] == len(x):
                break
            row = x[rows[u, t], 0]  # indexed once: four times as fast
            for j in range(len(total)):
                total[j] += row[j]
        for j in range(len(total)):
            out[u] += total[j] * total[j]
