"""Keyed randomness: different places never share numbers, and the numbers are what they claim to be."""

import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from edp_lab.privacy import csprng
from edp_lab.privacy.csprng import PIECE, Purpose, SecretStream, key_from_seed, stream, uniform_hash
from edp_lab.privacy.csprng_numba import normal_single


def first_public(key: int, purpose: Purpose, *path: int) -> int:
    """The first 64 raw bits of a stream: among a million of them a chance collision has probability 3e-8."""
    return int(stream(key, purpose, *path).bit_generator.random_raw())


def first_secret(key: int, purpose: Purpose, *path: int) -> int:
    bits = np.empty(1, dtype=np.uint64)
    SecretStream(key, purpose, *path).fill(bits)
    return int(bits[0])


both = pytest.mark.parametrize("first_draw", [first_public, first_secret])


@both
def test_streams_of_100_000_places_differ(first_draw):
    keys = [key_from_seed(0), key_from_seed(1), 0, 1, 2**127]
    per_key = [(p, step, device) for p in Purpose for step in range(500) for device in range(8)]
    longer = [(p, step) for p in Purpose for step in range(1000)]
    draws = {first_draw(key, *place) for key in keys for place in itertools.chain(per_key, longer)}
    assert len(draws) == len(keys) * (len(per_key) + len(longer))


@both
def test_every_bit_of_the_key_and_every_number_of_the_path_counts(first_draw):
    """torch keeps 32 bits of a seed; and digits, zeros and purposes must not be run together."""
    key = key_from_seed(3)
    keys = [key, *(key ^ (1 << bit) for bit in range(128))]
    paths = [(1, 23), (12, 3), (123,), (1, 2, 3), (1,), (1, 0), (1, 0, 0), (0, 1), (0,), ()]
    places = [(k, Purpose.NOISE, 0) for k in keys] + [(7, p, *path) for p in Purpose for path in paths]
    assert len({first_draw(*place) for place in places}) == len(places)


@pytest.mark.parametrize(("key", "path"), [(-1, ()), (2**128, ()), (1, (2**32,)), (1, (-1,)), (1, (0, 2**40))])
def test_numbers_that_numpy_would_run_together_are_refused(key, path):
    """SeedSequence cuts numbers into 32-bit words: 2**32 + 5 would be the path (5, 1)."""
    for kind in (stream, SecretStream):
        with pytest.raises(ValueError, match="128-bit key"):
            kind(key, Purpose.NOISE, *path)


def test_noise_is_aes_in_counter_mode():
    """Block by block from 0 on, without repeating any where a request ends within a block."""
    place = (5).to_bytes(16, "big") + b"".join(word.to_bytes(4, "big") for word in (2, 2, 3, 1))
    own = hashlib.shake_128(b"edp_lab stream" + place).digest(16)
    blocks = Cipher(algorithms.AES(own), modes.ECB()).encryptor()
    expected = b"".join(blocks.update(count.to_bytes(16, "big")) for count in range(3))
    bits = SecretStream(5, Purpose.NOISE, 3, 1)
    drawn = [np.empty(n, dtype=np.uint32) for n in (5, 7)]
    for part in drawn:
        bits.fill(part)
    assert np.concatenate(drawn).tobytes() == expected


def test_more_than_a_stream_fills_at_once_is_refused_not_left_as_it_was():
    with pytest.raises(ValueError, match="at most"):
        SecretStream(1, Purpose.NOISE).fill(np.empty(8 * PIECE + 1, dtype=np.uint8))


def test_words_are_those_of_the_stream_however_many():
    whole, parts = SecretStream(5, Purpose.SAMPLE, 3), SecretStream(5, Purpose.SAMPLE, 3)
    expected = np.concatenate([parts.words(n) for n in (0, 2, PIECE - 2, 2, PIECE)])
    assert np.array_equal(whole.words(2 * PIECE + 2), expected)
    assert np.array_equal(whole.blocks(np.arange(3)).ravel(), expected[:6])  # by number, whatever was drawn


def test_seeds_that_torch_would_confuse_give_different_keys():
    seeds = [5, 5 + 2**32, 5 + 2**64, -5, 0, -1, 2**32 - 1, 50]
    keys = {key_from_seed(s) for s in seeds}
    assert len(keys) == len(seeds)
    assert 120 < max(k.bit_length() for k in keys) <= 128


REPEATED = """
import hashlib, numpy as np
from edp_lab.privacy.csprng import *
from edp_lab.privacy.exact_noise import Piece, release
key, out = key_from_seed(5), np.zeros(100_001, np.float32)
release([Piece(out, 1.0, 1.0)], key, Purpose.NOISE, 3, 1)
drawn = [out, uniform_hash(key, 2, np.arange(2), 2), stream(key, Purpose.SHUFFLE, 1).random(5)]
told = [hashlib.sha256(part).hexdigest() for part in drawn]
"""


def test_another_process_or_a_processor_without_vectors_or_fused_products_draws_the_same():
    """Else a run that is taken up on another machine would put nearly the same noise on another gradient."""
    here: dict[str, list[str]] = {}
    exec(REPEATED, here)
    stream(1, Purpose.NOISE, 1).standard_normal(1000)  # moves no other stream
    np.random.default_rng(0).normal(size=10)
    for extra in ({}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}):
        command = [sys.executable, "-c", REPEATED + "print(*told)"]
        there = subprocess.run(command, env=os.environ | extra, capture_output=True, text=True, check=True)
        assert there.stdout.split() == here["told"]


def test_where_machine_code_cannot_be_kept_noise_is_drawn_all_the_same(tmp_path):
    whole = Path(csprng.__file__).parent / "csprng_numba.py"
    (tmp_path / whole.name).write_bytes(whole.read_bytes())
    code = "import csprng_numba, numpy as np; out = np.empty((2, 1), np.float32); b = np.ones((2, 1), np.uint32);"
    code += "ends = np.float32(0), np.float32(9); csprng_numba.normal_single(*b, *ends, *out); print(*out.ravel())"
    nowhere = {"NUMBA_CACHE_DIR": "", "HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "PYTHONPATH": str(tmp_path)}
    (tmp_path / "__pycache__").write_text("a file, so no folder can be made")
    told = subprocess.run([sys.executable, "-c", code], env=os.environ | nowhere, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert len(told.stdout.split()) == 2


def test_a_pair_of_normals_is_what_its_bits_say_even_at_both_ends_of_a_logarithm():
    """The first bits are the radius, the others the angle within 90 degrees and two signs."""
    corners = np.array([0, 1, 2, 2**31 - 1, 2**31, 3037000499, 3037000500, 2**32 - 2, 2**32 - 1], dtype=np.uint32)
    grid = np.array(list(itertools.product(corners, corners)), dtype=np.uint32)
    bits = np.concatenate([grid, np.random.default_rng(0).integers(0, 2**32, (200_000, 2), dtype=np.uint32)])
    radii, angles = np.ascontiguousarray(bits.T)
    first, second = np.empty((2, len(bits)), dtype=np.float32)
    normal_single(radii, angles, np.float32(0), np.float32(np.inf), first, second)
    radius = np.sqrt(-2 * np.log1p(-(2.0**32 - radii - 0.5) / 2**32))
    turn = np.pi / 4 * (1 + (angles.view(np.int32) >> 2) / 2.0**29)
    for drawn, exact, sign in ((first, np.cos(turn), angles & 1), (second, np.sin(turn), angles >> 1 & 1)):
        np.testing.assert_allclose(drawn, radius * exact * (1 - 2.0 * sign), rtol=0, atol=2e-6)
    np.testing.assert_allclose(np.hypot(first, second), radius, rtol=1e-6)


@pytest.mark.parametrize("key", [0, 1, 2**64, key_from_seed(1)])
def test_the_hash_is_uniform_in_every_row_and_column_whatever_the_other_rows_and_columns(key):
    u = uniform_hash(key, 1, np.arange(2000), 500)
    assert (u.dtype, u.shape) == (np.float32, (2000, 500))
    assert 0 <= u.min() <= u.max() < 1
    assert stats.kstest(u.ravel().astype(np.float64), "uniform").pvalue > 1e-3
    for rate in (0.1, 0.5):
        for axis, n in ((0, 2000), (1, 500)):
            z = ((u < rate).mean(axis) - rate) / (rate * (1 - rate) / n) ** 0.5
            assert np.abs(z).max() < 5.5
            assert z.std() == pytest.approx(1, abs=0.15)
    some = np.array([77, 3, 3, 99])
    assert np.array_equal(uniform_hash(key, 1, some, 40), u[some, :40])
    assert uniform_hash(key, 1, np.arange(0), 7).shape == (0, 7)


@pytest.mark.parametrize("key", [0, key_from_seed(1)])
def test_rows_columns_places_and_keys_are_uncorrelated(key):
    u = uniform_hash(key, 0, np.arange(4096), 64) - 0.5
    for table, n in ((u[:64], 64), (u.T, 4096)):
        correlation = table @ table.T / n * 12
        off = correlation[~np.eye(len(table), dtype=bool)] * n**0.5
        assert np.abs(off).max() < 5.5
        assert off.std() == pytest.approx(1, abs=0.1)
    neighbours = [(key, 1), (key + 1, 0), (key ^ 2**63, 0), (key ^ 2**64, 0), (key ^ 2**127, 0), (key, 2)]
    for other_key, place in neighbours:
        other = uniform_hash(other_key, place, np.arange(4096), 64) - 0.5
        for shift, axis in itertools.product((0, 1, 5), (0, 1)):  # also against shifted rows and columns
            assert abs((u * np.roll(other, shift, axis)).mean() * 12 * u.size**0.5) < 5


def test_no_two_of_a_million_cells_of_keys_places_rows_and_columns_agree_row_by_row():
    """Masks of 64 columns all differ: no arithmetic of key, place and row coincides."""
    golden = 0x9E3779B97F4A7C15
    keys = [0, 1, 2, golden, 2 * golden % 2**64, 3 * golden % 2**64, 2**64, 2**64 + 1, key_from_seed(1)]
    rows = np.arange(500)
    masks = [uniform_hash(key, place, rows, 64) < 0.5 for key in keys for place in range(4)]
    packed = np.packbits(np.concatenate(masks), axis=1).view(np.uint64).ravel()
    assert len(np.unique(packed)) == len(keys) * 4 * len(rows)
