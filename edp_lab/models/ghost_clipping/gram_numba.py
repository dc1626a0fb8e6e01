"""Loops over a batch's rows, compiled for this machine."""

from __future__ import annotations

import numpy as np

from edp_lab.privacy.csprng_numba import compiled

KINDS = ("float32", "float64")
LAYOUTS = [f"void({kind}[:, :, ::1], int64, int64[:, ::1], float64[:, :, ::1])" for kind in KINDS]


@compiled(*LAYOUTS, reassociate=True)
def gram(x: np.ndarray, part: int, rows: np.ndarray, out: np.ndarray) -> None:
    """out[u, s, t] = x[rows[u, s], part] . x[rows[u, t], part], summed in float64; x (R, K, D), rows (u, T).

    Rows meet in pairs, two by two: what is read serves twice, and out is symmetric. Faster than to copy rows,
    padded and widened, for a library's product. Where rows point beyond the last one, out stays as it is.
    """
    for u in range(len(rows)):
        valid = rows[u, : (rows[u] < len(x)).sum()]
        for s in range(0, len(valid), 2):
            for t in range(0, s + 1, 2):
                # An odd last row meets the others twice.
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
    """out[u] = ||sum_t x[rows[u, t], 0]||^2, summed in float64; x (R, 1, D), rows (u, T)."""
    total = np.empty(x.shape[2])
    for u in range(len(rows)):
        total[:] = 0
        for t in range(rows.shape[1]):
            if rows[u, t] == len(x):
                break
            for j in range(len(total)):
                total[j] += x[rows[u, t], 0, j]
        for j in range(len(total)):
            out[u] += total[j] * total[j]
