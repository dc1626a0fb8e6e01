"""Keyed randomness: every draw is a function of (128-bit key, purpose, step, ...), never of hidden state.

torch's CPU generator keeps 32 bits of its seed, so streams seeded per step would collide within one long run and a
secret seed could be searched. Streams here are numpy's SFC64 seeded through `SeedSequence` with all 128 bits.
Not cryptographic; float32 Gaussian noise has the usual floating-point caveats (Mironov 2012).
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; streams of different purposes never share numbers."""

    SHUFFLE = 1
    NOISE = 2
    INITIAL_WEIGHTS = 3
    DROPOUT = 4


def key_from_seed(seed: int) -> int:
    """A 128-bit key from a published seed: repeatable, and therefore not secret."""
    return int.from_bytes(hashlib.shake_128(f"edp_lab seed {seed}".encode()).digest(16), "big")


def stream(key: int, purpose: Purpose, *path: int) -> np.random.Generator:
    """The random stream of `key` for one purpose and place, such as (step, device)."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(key, spawn_key=(purpose, *path))))


def uniform_hash(key: int, rows: np.ndarray, columns: int) -> np.ndarray:
    """Uniform numbers in [0, 1) that depend only on (key, row number, column): shape (len(rows), columns), float32.

    For dropout masks, where thousands of tiny streams would be slow: splitmix64 over a counter. Not for noise.
    """
    with np.errstate(over="ignore"):
        base = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = base[:, None] ^ (np.arange(columns, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03))[None, :]
        x ^= np.uint64(key & 0xFFFFFFFFFFFFFFFF)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x ^= x >> np.uint64(31)
    return ((x >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)
