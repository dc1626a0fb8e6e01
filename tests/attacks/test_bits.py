"""The attack on the bits of noise: it breaks every float noise, and finds nothing where there is nothing to find."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from edp_lab.attacks.audit import bits
from edp_lab.attacks.audit.bits import NOISES, audit_bits, no_device_sum, no_float_sum, ziggurat
from edp_lab.attacks.audit.bounds import Finding
from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_epsilon

f32 = np.float32
LONG = os.environ.get("EDP_LAB_LONG") == "1"
RESIST = ("numpy-float64", "exact", "exact-ranks")
PROVEN = [(name, clue) for name, noise in NOISES.items() for clue in noise.clues if name not in (*RESIST, "each-rank")]
OURS = [(name, clue) for name in RESIST[1:] for clue in NOISES[name].clues]


@pytest.mark.parametrize(("noise", "clue"), PROVEN)
def test_float_noise_is_told_without_a_false_alarm(noise, clue):
    trials = {"sum": 120, "devices": 120, "numbers": 3, "pairs": 10 if noise == "torch" else 2}[clue]
    audit = audit_bits(noise, clue=clue, trials=trials, seed=1, size=4096 if clue == "devices" else None)
    assert (audit.true_positives, audit.false_positives) == (trials, 0)
    without, present = np.array(audit.impossible)
    assert not without[:, 0].any()  # what was released is possible
    assert not present[:, 1].any()
    if trials == 120:
        assert audit.verdict is Finding.REFUTED
        assert audit.epsilon_claimed == pytest.approx(gdp_epsilon(1 / 4, 1e-5))
        assert audit.epsilon_lower_bound == pytest.approx(3.4665, abs=1e-3)


def test_float_noise_of_two_ranks_does_not_hide_one_anothers_last_bits():
    audit = audit_bits("each-rank", clue="devices", size=2**14, trials=120)
    assert audit.advantage[0] > 0.3 > audit.advantage_allowed
    alone = np.random.default_rng(0).normal(size=(1, 4096)).astype(f32)
    for own, other in ((parts := bits.shares(alone[0], 4.0)), parts[::-1]):
        assert no_device_sum((own + alone) + other, own + other, 4.0) == 0  # what is reached counts as possible


@pytest.mark.parametrize(("noise", "z0"), [("numpy-float64", 4.0), ("numpy-float64", 0.5), ("exact", 0.5)])
def test_noise_that_is_rounded_with_the_sum_stays_at_chance(noise, z0):
    audit = audit_bits(noise, z0=z0, trials=1500)
    assert audit.verdict is not Finding.REFUTED
    assert audit.advantage[0] <= audit.advantage_allowed


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize(("noise", "clue"), OURS)
def test_no_attack_gains_more_from_exact_noise_than_its_epsilon_allows(noise, clue, size):
    """With EDP_LAB_LONG=1 from 10,000 releases of 1,024 numbers, 200 of a million: see data/results/audits.json."""
    numbers, trials = {"small": (1024, 10_000 if LONG else 400), "large": (10**6, 200 if LONG else 3)}[size]
    audit = audit_bits(noise, clue=clue, size=numbers, trials=trials)
    assert audit.advantage[0] <= audit.advantage_allowed == pytest.approx(0.0995, abs=1e-4)


def test_a_zero_does_not_tell_how_it_was_decided():
    total = np.zeros((1, 2**20), dtype=f32)
    released = np.concatenate([NOISES["exact"].release(total, 0.7, seed) for seed in range(4)])
    assert (released == 0).sum() > 4_000
    assert not np.signbit(released[released == 0]).any()


def test_which_sums_are_impossible_is_right_for_every_float_there_is():
    """Against all float16 noise, in float16, where all can be tried."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every) & (np.abs(every) < 1024)]
    rng = np.random.default_rng(0)
    for total in rng.choice(every, 20):
        reached = np.isin(every, (every + total).astype(np.float16))
        nearest = (every.astype(float) - float(total)).astype(np.float16)
        ends = (nearest, *(np.nextafter(nearest, np.float16(end)) for end in (-np.inf, np.inf)))
        assert np.array_equal(
            reached | (np.abs(every) > 512),
            np.any([total + end == every for end in ends], axis=0) | (np.abs(every) > 512),
        )
    kept = np.array([[2.0**-30, 1.0, -1.0, 0.0]], dtype=f32)
    assert no_float_sum(kept, np.full(4, 3.0, dtype=f32), 1.0).tolist() == [1]


def test_the_layers_are_numpys():
    drawn = np.abs(np.random.default_rng(0).standard_normal(20_000, dtype=f32))
    left = drawn[drawn < bits.TAIL]
    for unit in ziggurat():
        k = np.rint(left / unit).astype(f32)
        left = left[(k * unit != left) | (k >= 2**23)]
    assert len(ziggurat()) == 256
    assert not len(left)


def test_a_release_of_ones_own_is_judged_and_a_wrong_one_refused(monkeypatch):
    rng = np.random.default_rng(0)
    own = SimpleNamespace(
        naive=lambda total, std: total + f32(std) * rng.standard_normal(len(total)).astype(f32),
        silent=lambda total, std: np.zeros_like(total),
        double=lambda total, std: total + std * rng.standard_normal(len(total)),
    )
    monkeypatch.setitem(sys.modules, "own_release", own)
    assert audit_bits("own_release:naive", trials=50).verdict is Finding.REFUTED
    assert audit_bits("own_release:silent", trials=50).epsilon_lower_bound == 0
    for name, said in (("double", "no float32 array"), ("absent", "unknown noise")):
        with pytest.raises(UsageError, match=said):
            audit_bits(f"own_release:{name}", trials=2)
