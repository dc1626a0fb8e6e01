"""What a step releases: noise, sensitivity and their ratio, as printed and sound."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Alpha, Decay, Mechanism, NoGuarantee, Variant, judge

positive = st.floats(1e-6, 1e6)
GOOD = {"clip_norm": 1.0, "z0": 1.0, "num_devices": 4, "micro_batch_size": 4, "tau": 0.1}
BUILDS = (Mechanism.as_printed, Mechanism.sound)


@given(positive, positive, st.integers(1, 512), st.integers(1, 512))
def test_algorithm_1_has_2_sqrt_n_less_noise_than_its_z_says(C, z, N, m):
    """sqrt(N) at micro-batch size 1."""
    printed, sound = (build(C, z, N, m) for build in BUILDS)
    ratio = (1 if m == 1 else 2) * math.sqrt(N)
    assert printed.noise_multiplier(0) == pytest.approx(z / ratio)
    assert printed.noise_std(0) / N == pytest.approx(C * z / N**1.5)
    assert printed.device_noise_std(0) == pytest.approx(C * z / N)
    assert sound.noise_multiplier(0) == pytest.approx(z)
    assert sound.noise_std(0) / printed.noise_std(0) == pytest.approx(ratio)


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
    assert 0.99 * mechanism.sensitivity() < max(moves) <= mechanism.sensitivity() + 1e-12


def test_a_single_utterance_moves_by_c_when_zeroed_and_by_2c_when_replaced():
    mechanism = Mechanism.sound(3.0, 1.0, 4, 1)
    assert [mechanism.sensitivity(a) for a in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)] == [3, 6]
    assert mechanism.noise_multiplier(0, Adjacency.REPLACE_ONE) == 0.5
    larger = Mechanism.sound(3.0, 1.0, 4, 2)
    assert larger.sensitivity(Adjacency.ZERO_OUT) == larger.sensitivity(Adjacency.REPLACE_ONE) == 6


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_OR_REMOVE_ONE, "ADD_OR_REMOVE_ONE"])
@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("build", BUILDS)
def test_add_or_remove_has_no_number(adjacency, size, build):
    mechanism = build(1.0, 1.0, 8, size)
    for ask in (mechanism.sensitivity, lambda a: mechanism.noise_multiplier(0, a)):
        with pytest.raises(NoGuarantee, match="shifts every later batch"):
            ask(adjacency)


@given(positive, st.sampled_from(list(Decay)), st.floats(0, 10), st.integers(0, 200))
def test_decay_starts_at_z0_never_rises_and_follows_the_formulas_of_the_paper(z, decay, tau, epoch):
    setting = Mechanism.sound(1.0, z, 4, 4, decay, tau).noise_multiplier_setting
    assert setting(0) == z
    assert 0 <= setting(epoch + 1) <= setting(epoch)
    expected = {"none": 1, "linear": 1 / (1 + tau * epoch), "exponential": math.exp(-tau * epoch)}[decay]
    assert setting(epoch) == pytest.approx(z * expected, rel=1e-14)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("field", "bad"),
    [(field, bad) for field in GOOD for bad in (math.nan, math.inf, -math.inf, -1.0)]
    + [("clip_norm", 0.0)]
    + [(field, bad) for field in ("num_devices", "micro_batch_size") for bad in (0, 1.5, "3", None)],
)
def test_impossible_numbers_are_refused(build, field, bad):
    build(**GOOD)
    with pytest.raises(UsageError, match="must be"):
        build(**{**GOOD, field: bad})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"decay": "cosine"}, "unknown decay 'cosine'.*linear"),
        ({"alpha": "secret"}, "unknown alpha 'secret'.*public"),
        ({"alpha": "private"}, "guarantees nothing"),
        ({"alpha_max": 0.1}, "choose 'public'"),
        ({"variant": "as-printed", "shared_noise": True}, "independent float noise"),
        ({"variant": "as-printed", "exact_noise": True}, "independent float noise"),
    ],
)
def test_what_does_not_go_together_is_refused_however_it_is_built(changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        dataclasses.replace(Mechanism.sound(**GOOD), **changes)
    if changes.keys() <= {"decay", "alpha"}:
        with pytest.raises(UsageError, match=sentence):
            Mechanism.sound(**GOOD, **changes)
    with pytest.raises(UsageError, match="unknown adjacency"):
        Mechanism.sound(**GOOD).sensitivity("swap")


def test_a_mechanism_survives_a_record_of_plain_strings_and_cannot_be_changed():
    """asdict -> JSON -> Mechanism: compared by identity, "as-printed" would become sound, and private alpha free."""
    before = Mechanism.as_printed(1.0, 0.5, 8, 4, "linear", 0.1)
    after = Mechanism(**{k: str(v) if isinstance(v, str) else v for k, v in dataclasses.asdict(before).items()})
    assert after == before
    assert (after.variant, after.alpha, after.decay) == (Variant.AS_PRINTED, Alpha.PRIVATE, Decay.LINEAR)
    assert after.noise_std(3) == before.noise_std(3)
    assert judge(after, 1, 1e-5, seed_published=False).epsilon is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.z0 = 0.0  # type: ignore[misc]
