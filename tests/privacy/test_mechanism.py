"""What a step releases: noise, sensitivity and their ratio, as printed and sound."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Alpha, Decay, Mechanism, NoGuarantee, Variant

clip_norms = st.floats(1e-6, 1e6)
multipliers = st.floats(1e-6, 1e6)
devices = st.integers(1, 512)
micro_batches = st.integers(1, 512)


@given(clip_norms, multipliers, devices, st.integers(2, 512))
def test_algorithm_1_has_2_sqrt_n_less_noise_than_its_z_says(C, z, N, m):
    printed = Mechanism.as_printed(C, z, N, m)
    sound = Mechanism.sound(C, z, N, m)
    assert printed.noise_multiplier(0) == pytest.approx(z / (2 * math.sqrt(N)))
    assert printed.noise_std(0) / N == pytest.approx(C * z / N**1.5)
    assert sound.noise_multiplier(0) == pytest.approx(z)
    assert sound.noise_std(0) / printed.noise_std(0) == pytest.approx(2 * math.sqrt(N))


@given(clip_norms, multipliers, devices)
def test_at_micro_batch_size_1_the_ratio_is_sqrt_n(C, z, N):
    printed, sound = Mechanism.as_printed(C, z, N, 1), Mechanism.sound(C, z, N, 1)
    assert printed.noise_multiplier(0) == pytest.approx(z / math.sqrt(N))
    assert sound.noise_std(0) / printed.noise_std(0) == pytest.approx(math.sqrt(N))


def test_algorithm_1_simulated_gives_the_stated_noise():
    """N devices each add y/N, then the mean is taken: measured, not derived."""
    N, C, z = 8, 1.0, 1.0
    y = np.random.default_rng(0).normal(scale=C * z, size=(200_000, N))
    measured = (y / N).mean(axis=1).std()
    mechanism = Mechanism.as_printed(C, z, N, 8)
    assert mechanism.noise_std(0) / N == pytest.approx(0.0442, abs=5e-5)
    assert measured == pytest.approx(mechanism.noise_std(0) / N, rel=0.01)
    assert mechanism.device_noise_std(0) == pytest.approx((y / N).std(), rel=0.01)


@pytest.mark.parametrize("size", [2, 3, 16])
def test_no_pair_of_micro_batches_moves_further_than_the_sensitivity_and_the_worst_reaches_it(size):
    """Adversarial search over one utterance's gradient in a clipped micro-batch mean."""
    mechanism = Mechanism.sound(1.0, 1.0, 1, size)
    rng = np.random.default_rng(size)

    def clip(v):
        return v * min(1.0, mechanism.clip_norm / max(np.linalg.norm(v), 1e-300))

    moves = []
    for scale in 10.0 ** rng.uniform(-2, 4, 400):
        rest = rng.normal(size=3) * 10.0 ** rng.uniform(-2, 2)
        own = rng.normal(size=3) * scale if rng.random() < 0.5 else -rest * scale
        moves.append(np.linalg.norm(clip((rest + own) / size) - clip(rest / size)))
    assert max(moves) <= mechanism.sensitivity() + 1e-12
    assert max(moves) > 0.99 * mechanism.sensitivity()


def test_a_single_utterance_moves_by_c_when_zeroed_and_by_2c_when_replaced():
    mechanism = Mechanism.sound(3.0, 1.0, 4, 1)
    assert mechanism.sensitivity(Adjacency.ZERO_OUT) == 3
    assert mechanism.sensitivity(Adjacency.REPLACE_ONE) == 6
    assert mechanism.noise_multiplier(0, Adjacency.REPLACE_ONE) == 0.5
    larger = Mechanism.sound(3.0, 1.0, 4, 2)
    assert larger.sensitivity(Adjacency.ZERO_OUT) == larger.sensitivity(Adjacency.REPLACE_ONE) == 6


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_OR_REMOVE_ONE, "ADD_OR_REMOVE_ONE"])
@pytest.mark.parametrize("size", [1, 8])
def test_add_or_remove_has_no_number(adjacency, size):
    for build in (Mechanism.as_printed, Mechanism.sound):
        mechanism = build(1.0, 1.0, 8, size)
        with pytest.raises(NoGuarantee, match="shifts every later batch"):
            mechanism.sensitivity(adjacency)
        with pytest.raises(NoGuarantee):
            mechanism.noise_multiplier(0, adjacency)


@given(multipliers, st.sampled_from(list(Decay)), st.floats(0, 10), st.integers(0, 200))
def test_decay_starts_at_z0_and_never_rises(z, decay, tau, epoch):
    mechanism = Mechanism.sound(1.0, z, 4, 4, decay, tau)
    assert mechanism.noise_multiplier_setting(0) == z
    assert 0 <= mechanism.noise_multiplier_setting(epoch + 1) <= mechanism.noise_multiplier_setting(epoch)


def test_decay_follows_the_formulas_of_the_paper():
    epochs = np.array([0, 3])
    assert Decay.LINEAR.factors(epochs, 0.5).tolist() == [1, 1 / 2.5]
    assert Decay.EXPONENTIAL.factors(epochs, 0.5) == pytest.approx([1, math.exp(-1.5)], rel=1e-15)
    assert Decay.NONE.factors(epochs, 0.5).tolist() == [1, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("field", ["clip_norm", "z0", "tau", "num_devices", "micro_batch_size"])
@pytest.mark.parametrize("build", [Mechanism.as_printed, Mechanism.sound])
def test_impossible_numbers_are_refused(build, field, bad):
    good = {"clip_norm": 1.0, "z0": 1.0, "num_devices": 4, "micro_batch_size": 4, "tau": 0.1}
    build(**good)
    with pytest.raises(UsageError, match="must be"):
        build(**{**good, field: bad})


@pytest.mark.parametrize(
    "changed",
    [
        {"clip_norm": 0.0},
        {"num_devices": 0},
        {"micro_batch_size": 0},
        {"num_devices": 2.5},
        {"micro_batch_size": 1.5},
    ],
)
def test_zero_and_fractions_are_refused_where_they_make_no_sense(changed):
    good = {"clip_norm": 1.0, "z0": 1.0, "num_devices": 4, "micro_batch_size": 4}
    with pytest.raises(UsageError, match="must be"):
        Mechanism.sound(**{**good, **changed})


def test_unknown_names_are_refused_in_words():
    with pytest.raises(UsageError, match=r"unknown decay 'cosine'.*linear"):
        Mechanism.sound(1, 1, 1, 1, decay="cosine")
    for build in (Mechanism.sound, Mechanism.as_printed):
        with pytest.raises(UsageError, match=r"unknown alpha 'secret'.*public"):
            build(1, 1, 1, 1, alpha="secret")
    with pytest.raises(UsageError, match="unknown adjacency"):
        Mechanism.sound(1, 1, 1, 1).sensitivity("swap")


def test_sound_refuses_alpha_from_private_gradients_however_it_is_built():
    with pytest.raises(UsageError, match="no sound form"):
        Mechanism.sound(1, 1, 1, 1, alpha="private")
    with pytest.raises(UsageError, match="no sound form"):
        dataclasses.replace(Mechanism.sound(1, 1, 1, 1), alpha="private")


def test_a_mechanism_survives_a_record_of_plain_strings():
    """asdict -> JSON -> Mechanism: compared by identity, "as-printed" would become sound."""
    before = Mechanism.as_printed(1.0, 0.5, 8, 4, "linear", 0.1)
    plain = {k: str(v) if isinstance(v, str) else v for k, v in dataclasses.asdict(before).items()}
    after = Mechanism(**plain)
    assert after == before
    assert (after.variant, after.alpha, after.decay) == (Variant.AS_PRINTED, Alpha.PRIVATE, Decay.LINEAR)
    assert after.noise_std(3) == before.noise_std(3)


def test_a_mechanism_cannot_be_changed_after_it_was_judged():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Mechanism.sound(1, 1, 1, 1).z0 = 0.0  # type: ignore[misc]
