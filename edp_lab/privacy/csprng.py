"""Keyed randomness: every draw is a function of (128-bit key, purpose, step, ...), never of hidden state.

torch's CPU generator keeps 32 bits of its seed, so streams seeded per step would collide within one long run
and a secret seed could be searched. What hides a gradient is drawn from AES-128 in counter mode, the fastest source at
hand, and released through `edp_lab.privacy.exact_noise`. Under a secret key, order, sampling and the seeds of dropout
come from AES, too. Under a published one they come, as initial weights do, from numpy's SFC64, seeded through
`SeedSequence` with all 128 bits of the key: not cryptographic. Float noise comes from there under any key: as floats,
normal numbers reveal what they are added to anyway (Mironov 2012).
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
PIECE = 2**18  # fits into a processor's cache; smaller ones would make threads quarrel over Python's lock
ZEROS = bytes(8 * PIECE)  # what the cipher hides; long enough for a piece of either precision

_own = threading.local()


class Purpose(IntEnum):
    """Purpose of a stream; streams of different purposes never share numbers."""

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
    """The random stream of `key` for one purpose and place, such as (step, device); what must stay secret for good is
    drawn from a `SecretStream`.

    Raises:
        ValueError: key outside 128 bits or a number of the path outside 32 bits, where `SeedSequence` would
            run the words of key and path together, so that different places could share one stream.
    """
    _check_place(key, path)
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(key, spawn_key=(purpose, *path))))


class SecretStream:
    """Random bits for whatever must stay secret: AES-128 in counter mode, under a key of this purpose and place alone.

    That key is SHAKE-128 of key, purpose and path, each in a field of fixed width. A stream holds 2^128 blocks of which
    no run draws more than 2^20, so its bits differ from random ones by less than AES does. Errors: as `stream`.
    """

    def __init__(self, key: int, purpose: Purpose, *path: int) -> None:
        _check_place(key, path)
        words = (int(purpose), len(path), *path)
        place = key.to_bytes(16, "big") + b"".join(word.to_bytes(4, "big") for word in words)
        aes_key = hashlib.shake_128(b"edp_lab stream" + place).digest(16)
        self._encryptor, self._one_by_one = (Cipher(AES(aes_key), mode).encryptor() for mode in (CTR(bytes(16)), ECB()))

    def fill(self, out: np.ndarray) -> None:
        """The next bits into all bytes of `out`, contiguous; ValueError if there are more than 8 `PIECE`."""
        if out.nbytes > len(ZEROS):
            raise ValueError(f"{out.nbytes} bytes at once: at most {len(ZEROS)} are filled")
        self._encryptor.update_into(memoryview(ZEROS)[: out.nbytes], out.data.cast("B"))

    def words(self, count: int) -> np.ndarray:
        """The next random words of 64 bits: (count)."""
        out = np.empty(count, dtype=np.uint64)
        for start in range(0, count, PIECE):
            self.fill(out[start : start + PIECE])
        return out

    def blocks(self, numbers: np.ndarray) -> np.ndarray:
        """Blocks of 128 bits, by their numbers (n) below 2^63, whatever was drawn before: (n, 2) words."""
        counters = np.zeros((len(numbers), 2), dtype=">u8")
        counters[:, 1] = numbers
        drawn = self._one_by_one.update(counters.tobytes())
        return np.frombuffer(bytearray(drawn), dtype=np.uint64).reshape(-1, 2)


def _check_place(key: int, path: tuple[int, ...]) -> None:
    if not 0 <= key < 2**128 or not all(0 <= number < 2**32 for number in path):
        raise ValueError(f"a stream needs a 128-bit key and 32-bit numbers, not path {path}")


def own_memory(use: str, size: int, kind: Any) -> np.ndarray:
    """Scratch memory of this thread, for one use at a time: fresh pages would cost a fifth of the time."""
    known = _own.__dict__.setdefault("memory", {})
    if len(known.get((use, kind), ())) < size:
        known[use, kind] = np.empty(size, dtype=kind)
    return known[use, kind][:size]  # type: ignore[no-any-return]


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


def dropout_key(key: int, step: int, secret: bool) -> int:
    """63 bits from which a step's dropout masks follow; they tell nothing of a secret key."""
    if secret:
        return int(SecretStream(key, Purpose.DROPOUT, step).words(1)[0] >> np.uint64(1))
    return int(stream(key, Purpose.DROPOUT, step).integers(2**63))
