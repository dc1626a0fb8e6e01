"""Rounded noise: the released numbers are the ideal normal's rounding, bit for bit, and reveal nothing else."""

import hashlib
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

import edp_lab
from edp_lab.compiled import normal_single
from edp_lab.privacy import exact_noise
from edp_lab.privacy.csprng import PIECE, Purpose, SecretStream, key_from_seed, stream, uniform_hash
from edp_lab.privacy.exact_noise import FURTHER, Piece, add_exactly, decide, grid

KEY, STD, MASK = key_from_seed(0), 0.7, 2**64 - 1
CORNERS = (0, 1, 2**13, 2**19, 2**31 - 1, 2**31, 2**32 - 2**13, 2**32 - 2, 2**32 - 1)
UNIT_RADIUS = 1580029888  # the bits of rho = 1
LONG = os.environ.get("EDP_LAB_LONG") == "1"


def released(size: int, std: float = STD, step: int = 0, dtype: type = np.float32, start: float = 0.0) -> np.ndarray:
    numbers = np.full(size, start, dtype=dtype)
    add_exactly([Piece(numbers, 1.0, std)], KEY, Purpose.NOISE, step, 0)
    return numbers


def drawn(radii: np.ndarray, angles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.empty((2, len(radii)), dtype=np.float32)
    everything = np.float32(0), np.float32(np.inf)
    normal_single(radii.astype(np.uint32), angles.astype(np.uint32), *everything, first, second)
    return first, second


def exact(radius: int, angle: int, second: bool, further: list[tuple[int, int]]) -> mpmath.mpf:
    """The normal number for these bits, with 100 digits."""
    sign = -1 if angle >> second & 1 else 1
    u, t = mpmath.mpf(radius), mpmath.mpf((angle - (angle >> 31 << 32)) >> 2)
    for turn, more in enumerate(further, 1):
        u, t = (whole + mpmath.mpf(part) / 2 ** (64 * turn) for whole, part in zip((u, t), more, strict=True))
    t *= mpmath.pi / 2**31
    return sign * mpmath.sqrt(-mpmath.log(u / 2**32)) * (mpmath.cos(t) + (1 if second else -1) * mpmath.sin(t))


def rounded(x: mpmath.mpf) -> int:
    return int(mpmath.floor(x + mpmath.mpf(1) / 2))


# The claimed errors


@pytest.mark.parametrize("chunk", range(4096) if LONG else (0, 1, 2047, 2048, 2900, 4095))
def test_the_radius_and_the_angle_of_the_first_way_are_as_near_as_the_proof_says(chunk):
    """With EDP_LAB_LONG=1, all possible bits are tested, which is part of the proof."""
    n = np.arange(chunk * 2**20, (chunk + 1) * 2**20)
    k = n[(n >= 2**32 * math.exp(-9.0)) & (n <= 2**32 * math.exp(-2e-6))]
    rho, _ = drawn(k, np.zeros(len(k)))
    for end in (k, k + 1):
        ideal = np.sqrt(np.where(end < 2**31, -np.log(end / 2**32), -np.log1p((end - 2.0**32) / 2**32)))
        assert np.abs(rho - ideal).max() < 0.4369e-6
    if chunk < 1024:
        j = n - 2**29
        both = drawn(np.full(len(j), UNIT_RADIUS), (j * 4) % 2**32)
        for end, (q, sign) in itertools.product((j, j + 1), zip(both, (-1, 1), strict=True)):
            t = end * (math.pi / 2**31)
            assert np.abs(q - (np.cos(t) + sign * np.sin(t))).max() < 0.2031e-6
    assert drawn(np.array([UNIT_RADIUS]), np.zeros(1))[0][0] == 1


def test_what_is_claimed_of_the_product_holds_for_whatever_bits_are_to_come():
    rng = np.random.default_rng(0)
    radii = np.concatenate([rng.integers(2**20, 2**32 - 2**14, 3000), rng.integers(2**19 + 5_000, 2**20, 3000)])
    angles = rng.choice([*rng.integers(0, 2**32, 300), 0, 3, 2**31 - 4, 2**31 - 1, 2**31, 2**32 - 1], len(radii))
    normals = drawn(radii, angles)
    with mpmath.workdps(40):
        for i, second in itertools.product(range(len(radii)), (False, True)):
            n = float(normals[second][i])
            for end in ((0, 0), (MASK, MASK)):
                error = abs(n - exact(int(radii[i]), int(angles[i]), second, [end]))
                assert error < exact_noise.FLOAT32_ERROR + 2.0**-24 * abs(n)


# Rounding


@pytest.fixture
def bits(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stream with chosen bits: `words` of all radii, then angles, and `further(pair, turn)`."""
    chosen = SimpleNamespace(words=np.zeros(0), further=lambda pair, turn: (0, 0))
    chosen.fill = lambda out: np.copyto(out, chosen.words.astype(np.uint32))
    chosen.blocks = lambda places: np.array(
        [chosen.further(int(place) % FURTHER, int(place) // FURTHER - 1) for place in places], dtype=np.uint64
    )
    monkeypatch.setattr(exact_noise, "SecretStream", lambda *place: chosen)
    return chosen


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_number_is_the_rounding_of_100_digits_even_at_half_a_cell_and_at_the_ends_of_a_logarithm(bits, dtype):
    """Extreme bits with sums of 0, with sums that put x exactly on half a cell, and with large sums."""
    angles = (0, 3, 2**31 - 1, 2**31, 2**32 - 4)
    pairs = [(k, j) for k in CORNERS for j in angles for _ in range(6)]
    bits.words = np.concatenate([[k for k, _ in pairs], [j for _, j in pairs]])
    ends = [(1, 0), (0, 1), (MASK, MASK), (2**63, 2**63), (MASK, 0)]
    bits.further = lambda pair, turn: ends[(pair + turn * turn) % 5]
    g, half = grid(STD), len(pairs)
    with mpmath.workdps(100):
        ideal = [
            exact(*pairs[i % half], i >= half, [ends[(i % half + t * t) % 5] for t in range(5)])
            for i in range(2 * half)
        ]
        near = [rounded(STD / g * n) + 0.5 - STD / g * n for n in ideal]
        sums = [(0, x * g, x * g * (1 + 2**-50), 1e5, -3.3 * g, 7e9)[i % 6] for i, x in enumerate(near)]
        numbers = np.array([float(s) for s in sums], dtype=dtype)
        x = [(mpmath.mpf(float(s)) + mpmath.mpf(STD) * n) / g for s, n in zip(numbers, ideal, strict=True)]
        add_exactly([Piece(numbers, 1.0, STD)], KEY, Purpose.NOISE, 0, 0)
        assert numbers.tolist() == [float(dtype(g * rounded(own))) for own in x]


def test_bits_are_drawn_until_it_is_decided_and_no_tail_is_cut():
    asked = []

    def zeros_at_first(turn: int) -> tuple[int, int]:
        asked.append(turn)
        return (0, 0) if turn < 3 else (5, 2**63)

    n = decide(0.0, 1000.0, 0, 0, False, zeros_at_first)  # u = 5 / 2^288
    assert n == pytest.approx(1000 * math.sqrt(-math.log(5.5) + 288 * math.log(2)), abs=60)
    assert asked[:4] == [0, 1, 2, 3]
    assert math.isnan(decide(math.nan, 1.0, 0, 0, False, zeros_at_first))


def test_the_slow_ways_find_what_the_fast_way_does(monkeypatch):
    """Therefore numbers have the same distribution, whichever method is used."""
    fast = [released(2**16 + 1, step=1), released(300, step=2)]
    monkeypatch.setattr(exact_noise, "CERTAIN", (np.float32(0), np.float32(-1)))  # no number is decided in float32
    assert np.array_equal(released(2**16 + 1, step=1), fast[0])
    monkeypatch.setattr(exact_noise, "FLOAT64_ERROR", 1.0)  # or in float64
    assert np.array_equal(released(300, step=2), fast[1])


@pytest.mark.parametrize("start", [0.0, 0.3, 5.0])
def test_cells_have_the_chances_of_an_ideal_normal_and_nothing_goes_with_anything(start):
    """Frequencies of cells, tails, neighbours, pairs and squares; with EDP_LAB_LONG=1, 10^9 numbers."""
    g, blocks, size = grid(STD), 1908 if LONG else 8, 2**19
    reach, last = int(3.6 * STD / g), int(12 * STD / g)
    counts, products = np.zeros(2 * last + 1, dtype=np.int64), np.zeros(3)
    for step in range(100, 100 + blocks):
        values = released(size, step=step, start=start * g).astype(np.float64) / g
        whole = values.astype(np.int64)
        assert np.array_equal(values, whole)
        counts += np.bincount(whole + last, minlength=len(counts))
        z = (values - start) * g / STD
        first, second = z[: size // 2], z[size // 2 :]
        products += z[:-1] @ z[1:], first @ second, (first**2 - 1) @ (second**2 - 1) / 2
    assert np.abs(products / np.sqrt([blocks * size, *[blocks * size / 2] * 2])).max() < 4
    ends = (np.arange(-last, last + 2) - 0.5 - start) * g / STD
    cells = np.diff(stats.norm.cdf(ends))[last - reach : last + reach + 1]
    inner = counts[last - reach : last + reach + 1]
    observed, chances = [*inner, counts.sum() - inner.sum()], np.array([*cells, 1 - cells.sum()])
    assert stats.chisquare(observed, chances * counts.sum()).pvalue > 1e-3
    for cut in (4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0) if LONG else (4.0, 4.5):
        k = math.ceil(cut * STD / g)
        for count, end in (
            (counts[last + k :].sum(), k - 0.5 - start),
            (counts[: last - k + 1].sum(), k - 0.5 + start),
        ):
            assert stats.binomtest(int(count), int(counts.sum()), stats.norm.sf(end * g / STD)).pvalue > 1e-3


def test_how_a_sum_is_cut_into_pieces_and_held_changes_nothing():
    whole = released(1001)
    parts = [np.zeros(n, dtype=np.float32) for n in (1, 0, 63, 64, 873)]
    add_exactly([Piece(part, 1.0, STD) for part in parts], KEY, Purpose.NOISE, 0, 0)
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(released(1001, dtype=np.float64), whole)
    scaled = np.full(1001, 4 * grid(STD), dtype=np.float32)
    add_exactly([Piece(scaled, 0.5, STD)], KEY, Purpose.NOISE, 0, 0)  # the same noise on 2 g
    assert np.array_equal(scaled, whole + np.float32(2 * grid(STD)))


@pytest.mark.parametrize("std", [0.0, 1e-40, 1e-25, 0.5, 1.0, 1e20])
def test_the_grid_is_fine_and_public_and_without_noise_numbers_stay(std):
    numbers = released(64, std, start=1.0)
    if std < exact_noise.SMALLEST_STD:
        assert (numbers == 1).all()
        return
    assert math.frexp(grid(std))[0] == 0.5
    assert 32 <= std / grid(std) < 64
    assert np.isfinite(numbers).all()


def impossible(released: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Count released numbers that no float32 noise can produce if added to the sum in float32: (T, P), (P) -> (T).

    The release never decreases as the noise increases. Therefore, if any float32 produces it, one of the three floats
    nearest to the difference does.
    """
    nearest = (released.astype(float) - total).astype(np.float32)
    neighbours = (np.nextafter(nearest, np.float32(end)) for end in (-np.inf, np.inf))
    return np.all([total + noise != released for noise in (nearest, *neighbours)], axis=0).sum(axis=1)


def exactly(totals: np.ndarray, std: float) -> np.ndarray:
    numbers = totals.flatten()
    add_exactly([Piece(numbers, 1.0, std)], key_from_seed(1), Purpose.NOISE)
    return numbers.reshape(totals.shape)


def test_float_noise_gives_itself_away_and_ours_does_not():
    """At noise multiplier 4, epsilon limits true minus false positive rates to 0.1 (Mironov 2012)."""
    rng, trials = np.random.default_rng(0), 400
    rest, direction = rng.normal(size=(2, 1024))
    absent = (8 * rest / np.linalg.norm(rest)).astype(np.float32)
    present = absent + (direction / np.linalg.norm(direction)).astype(np.float32)

    def guessed(noised) -> tuple[int, int]:
        """Number of releases with the canary, and without it, for which the guess is "present"."""
        return tuple(
            int((impossible(released, absent) > impossible(released, present)).sum())
            for released in (noised(np.tile(total, (trials, 1)), 4.0) for total in (present, absent))
        )

    drawn = rng.standard_normal
    assert guessed(lambda totals, std: totals + np.float32(std) * drawn(totals.shape, np.float32)) == (trials, 0)
    assert guessed(lambda totals, std: totals + (std * drawn(totals.shape)).astype(np.float32)) == (trials, 0)
    found, alarms = guessed(exactly)
    assert stats.binomtest(found, trials, min(1.0, alarms / trials + 0.1), alternative="greater").pvalue > 1e-3
    assert found + alarms > trials / 4  # the attack guesses, but no better than chance


# ---- Keyed randomness: different positions never share numbers, and numbers match their specification ----------------


def first_public(key: int, purpose: Purpose, *path: int) -> int:
    """The first 64 raw bits of a stream; among a million streams, a chance collision has probability 3e-8."""
    return int(stream(key, purpose, *path).bit_generator.random_raw())


def first_secret(key: int, purpose: Purpose, *path: int) -> int:
    bits = np.empty(1, dtype=np.uint64)
    SecretStream(key, purpose, *path).fill(bits)
    return int(bits[0])


both = pytest.mark.parametrize("first_draw", [first_public, first_secret])


@both
def test_streams_of_10_000_places_differ(first_draw):
    keys = [key_from_seed(0), key_from_seed(1), 0, 1, 2**127]
    per_key = [(p, step, device) for p in Purpose for step in range(50) for device in range(8)]
    longer = [(p, step) for p in Purpose for step in range(100)]
    draws = {first_draw(key, *place) for key in keys for place in itertools.chain(per_key, longer)}
    assert len(draws) == len(keys) * (len(per_key) + len(longer))


@both
def test_every_bit_of_the_key_and_every_number_of_the_path_counts(first_draw):
    """torch keeps 32 bits of a seed; digits, zeros and purposes must not be confused."""
    key = key_from_seed(3)
    keys = [key, *(key ^ (1 << bit) for bit in range(128))]
    paths = [(1, 23), (12, 3), (123,), (1, 2, 3), (1,), (1, 0), (1, 0, 0), (0, 1), (0,), ()]
    places = [(k, Purpose.NOISE, 0) for k in keys] + [(7, p, *path) for p in Purpose for path in paths]
    assert len({first_draw(*place) for place in places}) == len(places)


@pytest.mark.parametrize(("key", "path"), [(-1, ()), (2**128, ()), (1, (2**32,)), (1, (-1,)), (1, (0, 2**40))])
def test_numbers_that_numpy_would_run_together_are_refused(key, path):
    """SeedSequence splits numbers into 32-bit words: 2**32 + 5 would equal the path (5, 1)."""
    for kind in (stream, SecretStream):
        with pytest.raises(ValueError, match="128-bit key"):
            kind(key, Purpose.NOISE, *path)


def test_noise_is_aes_in_counter_mode():
    """Blocks are numbered from 0, and none is repeated if a request ends within a block."""
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
    assert np.array_equal(whole.blocks(np.arange(3)).ravel(), expected[:6])  # by number, independent of earlier draws


def test_seeds_that_torch_would_confuse_give_different_keys():
    seeds = [5, 5 + 2**32, 5 + 2**64, -5, 0, -1, 2**32 - 1, 50]
    keys = {key_from_seed(s) for s in seeds}
    assert len(keys) == len(seeds)
    assert 120 < max(k.bit_length() for k in keys) <= 128


REPEATED = """
import hashlib, numpy as np
from edp_lab.privacy.csprng import *
from edp_lab.privacy.exact_noise import Piece, add_exactly
key, out = key_from_seed(5), np.zeros(100_001, np.float32)
add_exactly([Piece(out, 1.0, 1.0)], key, Purpose.NOISE, 3, 1)
drawn = [out, uniform_hash(key, 2, np.arange(2), 2), stream(key, Purpose.SHUFFLE, 1).random(5)]
told = [hashlib.sha256(part).hexdigest() for part in drawn]
"""


def test_another_process_or_a_processor_without_vectors_or_fused_products_draws_the_same():
    """Otherwise a run resumed on another machine would add almost the same noise to a different gradient."""
    here: dict[str, list[str]] = {}
    exec(REPEATED, here)
    stream(1, Purpose.NOISE, 1).standard_normal(1000)  # affects no other stream
    np.random.default_rng(0).normal(size=10)
    for extra in ({}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}):
        command = [sys.executable, "-c", REPEATED + "print(*told)"]
        there = subprocess.run(command, env=os.environ | extra, capture_output=True, text=True, check=True)
        assert there.stdout.split() == here["told"]


@pytest.mark.long
def test_where_machine_code_cannot_be_kept_noise_is_drawn_all_the_same(tmp_path):
    whole = Path(edp_lab.__file__).parent / "compiled.py"
    (tmp_path / whole.name).write_bytes(whole.read_bytes())
    code = "import compiled, numpy as np; out = np.empty((2, 1), np.float32); b = np.ones((2, 1), np.uint32);"
    code += "ends = np.float32(0), np.float32(9); compiled.normal_single(*b, *ends, *out); print(*out.ravel())"
    nowhere = {"NUMBA_CACHE_DIR": "", "HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "PYTHONPATH": str(tmp_path)}
    (tmp_path / "__pycache__").write_text("a file, so no folder can be made")
    told = subprocess.run([sys.executable, "-c", code], env=os.environ | nowhere, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert len(told.stdout.split()) == 2


def test_a_pair_of_normals_is_what_its_bits_say_even_at_both_ends_of_a_logarithm():
    """The first bits determine the radius, the others the angle within 90 degrees and two signs."""
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
        for shift, axis in itertools.product((0, 1, 5), (0, 1)):  # also for shifted rows and columns
            assert abs((u * np.roll(other, shift, axis)).mean() * 12 * u.size**0.5) < 5
