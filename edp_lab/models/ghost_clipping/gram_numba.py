"""Loops over a batch's rows, compiled for this machine."""

from __future__ import annotations

import numpy as np

from edp_lab.privacy.csprng_numba import compiled

KINDS = ("float32", "float64")
LAYOUTS = [f"void({kind}[:, :, ::1], int64, int64[:, ::1], float64[:, :, ::1])" for kind in KINDS]


@compiled(*LAYOUTS, reassociate=True)
def gram(x: np.ndarray, part: int, rows: np.ndarray, out: np.ndarray) -> None:
    """out[u, s, t] = x[rows[u, s], part] . x[rows[u, t], part], summed in float64; x (R, K, D), rows (u, T).

    A row's numbers are few, and another row reads them again while they lie in the cache: many times as fast as to copy
    rows, padded and widened, for a library's product. Where rows point beyond the last one, out stays as it is.
    """
    for u in range(len(rows)):
        for s in range(rows.shape[1]):
            if rows[u, s] == len(x):
                break
            for t in range(s + 1):
                total = 0.0
                for j in range(x.shape[2]):
                    total += np.float64(x[rows[u, s], part, j]) * np.float64(x[rows[u, t], part, j])
                out[u, s, t] = out[u, t, s] = total


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
