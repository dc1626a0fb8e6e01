"""Keyed randomness: every draw is a function of (128-bit key, purpose, step, ...), never of hidden state.

torch's CPU generator keeps 32 bits of its seed, so streams seeded per step would collide within one long run
and a secret seed could be searched. Streams here are numpy's SFC64 seeded through `SeedSequence` with all 128
bits. Not cryptographic; float32 Gaussian noise has the usual floating-point caveats (Mironov 2012).
"""

from __future__ import annotations

import hashlib
import threading
from enum import IntEnum

import numpy as np

MASK64 = 2**64 - 1
PIECE = 2**17  # fits into a processor's cache; smaller ones would make threads quarrel over Python's lock

_own = threading.local()


class Purpose(IntEnum):
    """What a stream is for; streams of different purposes never share numbers."""

    SHUFFLE = 1
    NOISE = 2
    INITIAL_WEIGHTS = 3
    DROPOUT = 4
    DEVICE_NOISE = 5
    SAMPLE = 6


def key_from_seed(seed: int | str) -> int:
    """A 128-bit key from a published seed: repeatable, and therefore not secret."""
    return int.from_bytes(hashlib.shake_128(f"edp_lab seed {seed}".encode()).digest(16), "big")


def stream(key: int, purpose: Purpose, *path: int) -> np.random.Generator:
    """The random stream of `key` for one purpose and place, such as (step, device).

    Raises:
        ValueError: key outside 128 bits or a number of the path outside 32 bits, where `SeedSequence` would
            run the words of key and path together, so that different places could share one stream.
    """
    if not 0 <= key < 2**128 or not all(0 <= number < 2**32 for number in path):
        raise ValueError(f"a stream needs a 128-bit key and 32-bit numbers, not path {path}")
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(key, spawn_key=(purpose, *path))))


def fill_normal(generator: np.random.Generator, out: np.ndarray) -> None:
    """Fill `out` (n), float32 or float64, with standard normal numbers of its own precision.

    A float64 gradient must not get float32 noise: its last bits would show through. In float32: Box and Muller 1958,
    with 32 fresh bits for each radius and each angle, three times as fast as numpy's own. No number exceeds 6.8 (a
    normal one does so once in 10^11 draws).
    """
    if out.dtype == np.float64:
        generator.standard_normal(out=out)
        return
    for start in range(0, len(out), PIECE):
        piece = out[start : start + PIECE]
        half = -(-len(piece) // 2)
        uniform = _workspace()[: 2 * half]
        uniform[:] = generator.bit_generator.random_raw(half).view(np.uint32)
        radius, angle = uniform[:half], uniform[half:]
        radius += np.float32(0.5)
        radius *= np.float32(2.0**-32)
        np.log(radius, out=radius)
        radius *= np.float32(-2)
        np.sqrt(radius, out=radius)
        angle *= np.float32(2 * np.pi * 2.0**-32)
        np.cos(angle, out=piece[:half])
        np.sin(angle[: len(piece) - half], out=piece[half:])
        piece[:half] *= radius
        piece[half:] *= radius[: len(piece) - half]


def _workspace() -> np.ndarray:
    """Memory of this thread's own: fresh pages would cost a fifth of the time."""
    if not hasattr(_own, "workspace"):
        _own.workspace = np.empty(PIECE, dtype=np.float32)
    return _own.workspace  # type: ignore[no-any-return]


def uniform_hash(key: int, place: int, rows: np.ndarray, columns: int) -> np.ndarray:
    """Uniform numbers in [0, 1), a function of (key, place, row, column): (len(rows), columns), float32.

    For dropout masks, where thousands of tiny streams would be slow. Key, place, row and column are absorbed
    one after the other (splitmix64), so that no arithmetic among them makes two places agree. Not for noise.
    """
    words = np.array([key & MASK64, key >> 64 & MASK64, place], dtype=np.uint64)
    state = np.zeros(1, dtype=np.uint64)
    for word in words:
        state = _mix(state ^ word)
    state = _mix(state ^ rows.astype(np.uint64))
    state = _mix(state[:, None] ^ np.arange(columns, dtype=np.uint64))
    return (state >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def _mix(x: np.ndarray) -> np.ndarray:
    """One step of splitmix64: a bijection of 64-bit numbers."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
