"""Keyed randomness: every draw is a function of (128-bit key, purpose, step, ...), never of hidden state.

torch's CPU generator keeps only 32 bits of its seed. Streams seeded per step would collide within one long run, and an
attacker could find a secret seed by search. The noise that hides gradients therefore comes from AES-128 in counter
mode, the fastest source available, and is added by `edp_lab.privacy.exact_noise`. With a secret key, batches and
dropout seeds also come from AES. With a published key, they come from numpy's SFC64, as initial weights always do.
SFC64 is not cryptographic, and its `SeedSequence` uses all 128 bits of the key. Floating-point noise always comes from
SFC64, because such noise reveals the values that it is added to anyway (Mironov 2012).
"""

from __future__ import annotations

import hashlib
import threading
from enum import IntEnum
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB

MASK64 = 2**64 - 1
PIECE = 2**18  # fits into a processor's cache; smaller pieces would make threads contend for Python's lock
ZEROS = bytes(8 * PIECE)  # plaintext of the cipher; long enough for a piece of either precision

_own = threading.local()


class Purpose(IntEnum):
    """Purpose of a random stream; streams with different purposes never share numbers."""

    SHUFFLE = 1
    NOISE = 2
    INITIAL_WEIGHTS = 3
    DROPOUT = 4
    DEVICE_NOISE = 5
    SAMPLE = 6


def key_from_seed(seed: int | str) -> int:
    """Derive a 128-bit key from a published seed; the key is reproducible, and therefore not secret."""
    return int.from_bytes(hashlib.shake_128(f"edp_lab seed {seed}".encode()).digest(16), "big")


def stream(key: int, purpose: Purpose, *path: int) -> np.random.Generator:
    """Return the random stream of `key` for one purpose and path, such as (step, device); not for secret bits.

    Raises:
        ValueError: the key exceeds 128 bits, or a number in the path exceeds 32 bits. `SeedSequence` would then
            concatenate the words of key and path ambiguously, and different paths could share a stream.
    """
    _check_place(key, path)
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(key, spawn_key=(purpose, *path))))


class SecretStream:
    """Stream of random bits that must stay secret: AES-128 in counter mode, with an AES key per purpose and path.

    The AES key is the SHAKE-128 hash of key, purpose and path, in fixed-width fields. No run draws more than 2^20 of a
    stream's 2^128 blocks, so its bits are as hard to distinguish from random bits as AES itself. Raises ValueError
    in the same cases as `stream`.
    """

    def __init__(self, key: int, purpose: Purpose, *path: int) -> None:
        _check_place(key, path)
        words = (int(purpose), len(path), *path)
        place = key.to_bytes(16, "big") + b"".join(word.to_bytes(4, "big") for word in words)
        aes_key = hashlib.shake_128(b"edp_lab stream" + place).digest(16)
        self._encryptor, self._one_by_one = (Cipher(AES(aes_key), mode).encryptor() for mode in (CTR(bytes(16)), ECB()))

    def fill(self, out: np.ndarray) -> None:
        """Fill a contiguous array with the next random bits; raise ValueError if it has more than 8 `PIECE` bytes."""
        if out.nbytes > len(ZEROS):
            raise ValueError(f"cannot fill {out.nbytes} bytes at once: ask for at most {len(ZEROS)}")
        self._encryptor.update_into(memoryview(ZEROS)[: out.nbytes], out.data.cast("B"))

    def words(self, count: int) -> np.ndarray:
        """Return the next `count` random 64-bit words."""
        out = np.empty(count, dtype=np.uint64)
        for start in range(0, count, PIECE):
            self.fill(out[start : start + PIECE])
        return out

    def blocks(self, numbers: np.ndarray) -> np.ndarray:
        """Return the 128-bit blocks at these n indices (below 2^63), whatever the stream's position: (n, 2) words."""
        counters = np.zeros((len(numbers), 2), dtype=">u8")
        counters[:, 1] = numbers
        drawn = self._one_by_one.update(counters.tobytes())
        return np.frombuffer(bytearray(drawn), dtype=np.uint64).reshape(-1, 2)


def _check_place(key: int, path: tuple[int, ...]) -> None:
    if not 0 <= key < 2**128 or not all(0 <= number < 2**32 for number in path):
        raise ValueError(f"a stream needs a 128-bit key and 32-bit numbers, not path {path}")


def own_memory(use: str, size: int, kind: Any) -> np.ndarray:
    """Return scratch memory of this thread, reused between calls: new pages would take a fifth of the time."""
    known = _own.__dict__.setdefault("memory", {})
    if len(known.get((use, kind), ())) < size:
        known[use, kind] = np.empty(size, dtype=kind)
    return known[use, kind][:size]  # type: ignore[no-any-return]


def uniform_hash(key: int, place: int, rows: np.ndarray, columns: int) -> np.ndarray:
    """Return uniform numbers in [0, 1), hashes of (key, place, row, column): (len(rows), columns), float32.

    Used for dropout masks, because thousands of tiny streams would be slow. Key, place, row and column are hashed one
    after the other with splitmix64, so no arithmetic relation makes two positions collide. Not suitable for noise.
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


def dropout_key(key: int, step: int, secret: bool) -> int:
    """Return the 63-bit key of a step's dropout masks, which reveals nothing about a secret key."""
    if secret:
        return int(SecretStream(key, Purpose.DROPOUT, step).words(1)[0] >> np.uint64(1))
    return int(stream(key, Purpose.DROPOUT, step).integers(2**63))
