"""The eDP-SGD step against Algorithm 1 written out line by line, and its noise against its own description."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from edp_lab.corpora import Utterance
from edp_lab.corpora.encoding import Labels
from edp_lab.errors import UsageError
from edp_lab.models import build_model
from edp_lab.privacy import Alpha, Mechanism
from edp_lab.training.gradients import device_gradients, micro_batches, trainable
from edp_lab.training.step import Layout, device_noise, layer_norms, layer_scales, release, standard_noise

WORDS = ["set", "an", "alarm", "for", "noon", "please", "call", "my", "doctor", "now"]
LABELS = Labels(("alarm", "call"), ("O", "B-time", "I-time"))


def utterances(count: int, seed: int = 0) -> list[Utterance]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        tokens = tuple(rng.choice(WORDS, size=rng.integers(1, 9)).tolist())
        tags = tuple("B-time" if t == "noon" else "O" for t in tokens)
        made.append(Utterance(tokens, tags, LABELS.intents[int(rng.integers(2))]))
    return made


def small_model():
    size = {"hidden": 6, "layers": 2, "word": 5, "character": 4, "filters": 3, "dropout": 0.0}
    model = build_model("clc", LABELS, seed=1, private=True, size=size)
    return model.double()


def algorithm_1(model, data, batch, devices, clip, z_t, alpha, key, step):
    """Algorithm 1 of the paper, line by line: a dictionary of tensors per device, plain autograd, no tricks."""
    parameters = dict(model.named_parameters())
    released = {k: torch.zeros_like(w) for k, w in parameters.items()}
    size = sum(w.numel() for w in parameters.values())
    for i, micro_batch in enumerate(np.array_split(batch, devices)):
        loss = torch.stack([model.losses(data.batch([x]))[0] for x in micro_batch]).mean()
        delta = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
        delta = {k: g / alpha[k] for k, g in delta.items()}  # scale
        norm = math.sqrt(sum(float(g.pow(2).sum()) for g in delta.values()))
        delta = {k: min(1, clip / norm) * g for k, g in delta.items()}  # clip
        delta = {k: alpha[k] * g for k, g in delta.items()}  # rescale
        y = clip * z_t * device_noise(key, step, i, size).double()  # y ~ N(0, (C z_t)^2)
        for k, y_k in zip(parameters, torch.split(y, [w.numel() for w in parameters.values()]), strict=True):
            released[k] += delta[k] + y_k.view_as(delta[k]) / devices
    return torch.cat([(g / devices).flatten() for g in released.values()])


@pytest.mark.parametrize("clip", [0.1, 1.0, 50.0])
def test_simulated_step_equals_algorithm_1(clip):
    model, everything = small_model(), utterances(22)
    data, batch, devices = model.dataset(everything), np.arange(22), 4
    layout = Layout.of(trainable(model))
    buffer = torch.zeros(devices, layout.size, dtype=torch.float64)
    device_gradients(model, data, micro_batches(batch, devices), buffer, None)
    alpha = layer_scales(buffer, layout)
    mechanism = Mechanism.as_printed(clip, 0.3, devices, 6, decay="linear", tau=0.5)
    noise = standard_noise(7, 11, layout.size, devices, per_device=True).double()
    ours = release(mechanism, 3, buffer, layout, alpha, noise).gradient
    scales = dict(zip(layout.names, alpha.tolist(), strict=True))
    z_t = 0.3 / (1 + 0.5 * 3)
    reference = algorithm_1(model, data, batch, devices, clip, z_t, scales, 7, 11)
    assert torch.allclose(ours, reference, rtol=1e-6, atol=1e-7 * clip)


def test_alpha_follows_its_definition():
    model, everything = small_model(), utterances(12, seed=3)
    data, layout = model.dataset(everything), Layout.of(trainable(model))
    buffer = torch.zeros(3, layout.size, dtype=torch.float64)
    device_gradients(model, data, micro_batches(np.arange(12), 3), buffer, None)
    norms = [float(buffer.mean(0)[columns].norm()) for columns in layout.columns]
    expected = [n / max(norms) if n > 0 else 1.0 for n in norms]
    assert layer_scales(buffer, layout).tolist() == pytest.approx(expected)
    assert max(expected) == 1.0


def fake_layout(sizes=(7, 40, 3)) -> Layout:
    parameters = [(f"layer {k}", torch.nn.Parameter(torch.zeros(n))) for k, n in enumerate(sizes)]
    return Layout.of(parameters)


@given(scale=st.floats(0.05, 20), clip=st.floats(0.1, 5), z=st.floats(0, 2), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_scaling_alpha_is_scaling_clip_and_noise(scale, clip, z, seed):
    """step(s alpha, C, z) = step(alpha, s C, z / s): alpha's constant is no further knob."""
    layout, generator = fake_layout(), torch.Generator().manual_seed(seed)
    gradients = torch.randn(4, layout.size, generator=generator, dtype=torch.float64)
    noise = torch.randn(layout.size, generator=generator, dtype=torch.float64)
    alpha = torch.rand(3, generator=generator, dtype=torch.float64) + 0.1
    scaled = Mechanism.as_printed(clip, z, 4, 8, alpha="public", alpha_max=scale * 1.1)
    plain = Mechanism.as_printed(scale * clip, z / scale, 4, 8, alpha="public", alpha_max=1.1)
    one = release(scaled, 0, gradients, layout, scale * alpha, noise)
    other = release(plain, 0, gradients, layout, alpha, noise)
    assert torch.allclose(one.gradient, other.gradient, rtol=1e-9, atol=1e-12)
    assert scaled.noise_multiplier(0) == pytest.approx(plain.noise_multiplier(0))


def test_scales_beyond_those_that_are_judged_are_refused():
    layout = fake_layout()
    gradients, noise = torch.ones(4, layout.size), torch.zeros(layout.size)
    with pytest.raises(UsageError, match="normalise"):
        release(Mechanism.as_printed(1, 1, 4, 8), 0, gradients, layout, torch.tensor([1.0, 6.6, 0.1]), noise)


@given(size=st.floats(1e-30, 1e15), clip=st.floats(1e-3, 10), seed=st.integers(0, 1000), scaled=st.booleans())
@settings(max_examples=100, deadline=None)
def test_sound_clip_never_exceeds_its_sensitivity(size, clip, seed, scaled):
    """Swapping one device's gradient moves the noiseless sum, in the scaled space, by at most 2C."""
    layout, generator = fake_layout(), torch.Generator().manual_seed(seed)
    gradients = torch.randn(4, layout.size, generator=generator)
    other = gradients.clone()
    other[2] = -size * gradients[2]
    alpha = 0.99 * torch.rand(3, generator=generator, dtype=torch.float64) + 0.01 if scaled else None
    mechanism = Mechanism.sound(clip, 0.0, 4, 8, alpha=Alpha.PUBLIC if scaled else Alpha.NONE)
    zero = torch.zeros(layout.size)
    difference = 4 * (
        release(mechanism, 0, gradients, layout, alpha, zero).gradient.double()
        - release(mechanism, 0, other, layout, alpha, zero).gradient.double()
    )
    if alpha is not None:
        for columns, a in zip(layout.columns, alpha.tolist(), strict=True):
            difference[columns] /= a
    assert float(difference.norm()) <= mechanism.sensitivity()


def test_norms_of_millions_of_numbers_are_exact_enough_for_the_clip():
    """A float32 sum of 10^7 equal squares is off by 0.8 %: a clip that trusts it lets 1.008 C through."""
    layout = fake_layout((10**7, 5000))
    gradients = torch.full((1, layout.size), 0.1)
    exact = gradients[:, layout.columns[0]].double().norm(), gradients[:, layout.columns[1]].double().norm()
    assert layer_norms(gradients, layout)[0].tolist() == pytest.approx([float(x) for x in exact], rel=1e-6)
    released = release(Mechanism.sound(1, 0, 1, 2), 0, gradients, layout, None, torch.zeros(layout.size))
    assert 1 - 1e-4 < float(released.gradient.double().norm()) <= 1


@pytest.mark.parametrize("per_device", [False, True])
@pytest.mark.parametrize("variant", ["as printed", "sound", "sound with public alpha"])
def test_noise_is_what_the_mechanism_says(per_device, variant):
    """Zero gradients released 40 times: per layer and in aggregate, Gaussian with the described deviation."""
    devices, layout = 8, fake_layout((2000, 300, 5000))
    alpha = torch.tensor([1.0, 0.25, 0.01], dtype=torch.float64)
    if variant == "as printed":
        mechanism = Mechanism.as_printed(2.0, 0.5, devices, 8, decay="exponential", tau=0.2)
        expected = [2.0 * 0.5 * math.exp(-0.2 * 3) / devices**1.5] * 3
    elif variant == "sound":
        mechanism, alpha = Mechanism.sound(2.0, 0.5, devices, 8), None
        expected = [2 * 2.0 * 0.5 / devices] * 3
    else:
        mechanism = Mechanism.sound(2.0, 0.5, devices, 8, alpha="public")
        expected = [a * 2 * 2.0 * 0.5 / devices for a in alpha.tolist()]
    zero = torch.zeros(devices, layout.size)
    draws = torch.stack(
        [
            release(
                mechanism, 3, zero, layout, alpha, standard_noise(5, step, layout.size, devices, per_device)
            ).gradient
            for step in range(40)
        ]
    )
    standardised, steps = [], draws.clone()
    for columns, std in zip(layout.columns, expected, strict=True):
        layer = (draws[:, columns] / std).flatten().double().numpy()
        assert stats.kstest(layer, "norm").pvalue > 1e-4
        standardised.append(layer)
        steps[:, columns] /= std
    everything = np.concatenate(standardised)
    assert stats.kstest(everything, "norm").pvalue > 1e-4
    assert everything.var() == pytest.approx(1.0, abs=5 * math.sqrt(2 / len(everything)))
    correlation = np.corrcoef(steps.numpy())
    assert np.abs(correlation - np.eye(40)).max() < 5.5 / math.sqrt(layout.size)


def test_per_device_noise_is_the_scaled_sum_of_device_streams():
    total = sum(device_noise(3, 9, i, 50) for i in range(4)) / 2
    assert torch.allclose(standard_noise(3, 9, 50, 4, per_device=True), total)
    assert not torch.allclose(device_noise(3, 9, 0, 50), device_noise(3, 9, 1, 50))
    assert not torch.allclose(device_noise(3, 9, 0, 50), device_noise(3, 10, 0, 50))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradient_that_is_not_finite_names_its_layer(value):
    layout = fake_layout()
    gradients = torch.zeros(2, layout.size)
    gradients[1, 10] = value
    with pytest.raises(UsageError, match="layer 1"):
        release(Mechanism.sound(1, 1, 2, 4), 0, gradients, layout, None, torch.zeros(layout.size))


def test_empty_micro_batches_release_noise_alone():
    model = small_model()
    data = model.dataset(utterances(2))
    layout = Layout.of(trainable(model))
    buffer = torch.full((4, layout.size), 9.0, dtype=torch.float64)
    device_gradients(model, data, micro_batches(np.arange(2), 4), buffer, None)
    assert buffer[:2].abs().sum() > 0
    assert buffer[2:].abs().sum() == 0
