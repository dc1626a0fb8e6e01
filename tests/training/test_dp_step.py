"""The eDP-SGD step against Algorithm 1 written out line by line, and its noise against its own description."""

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
from edp_lab.training.config import NOISES
from edp_lab.training.dp_step import PrivateStep, add_noise, clip, layer_scales, release
from edp_lab.training.gradients import (
    Layout,
    StackedGradients,
    layer_norms,
    model_gradients,
    stacked_gradients,
    trainable,
)
from edp_lab.training.noise import DrawnNoise, Share, standard_noise

WORDS = ["set", "an", "alarm", "for", "noon", "please", "call", "my", "doctor", "now"]
LABELS = Labels(("alarm", "call"), ("O", "B-time", "I-time"))


def utterances(count: int, seed: int = 0) -> list[Utterance]:
    rng = np.random.default_rng(seed)
    texts = [tuple(rng.choice(WORDS, size=rng.integers(1, 9)).tolist()) for _ in range(count)]
    tags = [tuple("B-time" if t == "noon" else "O" for t in text) for text in texts]
    return [Utterance(*one, LABELS.intents[int(rng.integers(2))]) for one in zip(texts, tags, strict=True)]


def small_model():
    size = {"hidden": 6, "layers": 2, "word": 5, "character": 4, "filters": 3, "dropout": 0.0}
    return build_model("clc", LABELS, seed=1, private=True, size=size).double()


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
        own = math.sqrt(devices) * standard_noise(key, step, size, Share("per-device", devices, i, devices))
        y = clip * z_t * own.double()  # y ~ N(0, (C z_t)^2)
        for k, y_k in zip(parameters, torch.split(y, [w.numel() for w in parameters.values()]), strict=True):
            released[k] += delta[k] + y_k.view_as(delta[k]) / devices
    return torch.cat([(g / devices).flatten() for g in released.values()])


@pytest.mark.parametrize("naive", [False, True])
@pytest.mark.parametrize("clip", [0.1, 1.0, 50.0])
def test_simulated_step_equals_algorithm_1(clip, naive):
    model, everything = small_model(), utterances(22)
    data, batch, devices = model.dataset(everything), np.arange(22), 4
    layout, parts = Layout.of(trainable(model)), np.array_split(batch, devices)
    alpha = layer_scales(stacked_gradients(model, data, parts, None, layout).gradients.mean(0), layout)
    mechanism = Mechanism.as_printed(clip, 0.3, devices, 6, decay="linear", tau=0.5)
    noise = standard_noise(7, 11, layout.size, Share("per-device", devices)).double()
    gradients = model_gradients(model, data, parts, None, layout, naive)
    ours = release(mechanism, 3, gradients, layout, alpha, noise).gradient
    scales = dict(zip(layout.names, alpha.tolist(), strict=True))
    z_t = 0.3 / (1 + 0.5 * 3)
    reference = algorithm_1(model, data, batch, devices, clip, z_t, scales, 7, 11)
    assert torch.allclose(ours, reference, rtol=1e-6, atol=1e-7 * clip)


def test_alpha_follows_its_definition():
    model, everything = small_model(), utterances(12, seed=3)
    data, layout = model.dataset(everything), Layout.of(trainable(model))
    rows = stacked_gradients(model, data, np.array_split(np.arange(12), 3), None, layout).gradients
    norms = [float(rows.mean(0)[columns].norm()) for columns in layout.columns]
    expected = [n / max(norms) if n > 0 else 1.0 for n in norms]
    assert layer_scales(rows.mean(0), layout).tolist() == pytest.approx(expected)
    assert max(expected) == 1.0


def fake_layout(sizes=(7, 40, 3)) -> Layout:
    parameters = [(f"layer {k}", torch.nn.Parameter(torch.zeros(n))) for k, n in enumerate(sizes)]
    return Layout.of(parameters)


@given(scale=st.floats(0.05, 20), clip=st.floats(0.1, 5), z=st.floats(0, 2), seed=st.integers(0, 1000))
@settings(max_examples=50)
def test_scaling_alpha_is_scaling_clip_and_noise(scale, clip, z, seed):
    """step(s alpha, C, z) = step(alpha, s C, z / s): alpha's constant is no further knob."""
    layout, generator = fake_layout(), torch.Generator().manual_seed(seed)
    gradients = StackedGradients(torch.randn(4, layout.size, generator=generator, dtype=torch.float64), layout)
    noise = torch.randn(layout.size, generator=generator, dtype=torch.float64)
    alpha = torch.rand(3, generator=generator, dtype=torch.float64) + 0.1
    scaled = Mechanism.as_printed(clip, z, 4, 8, alpha="public", alpha_max=scale * 1.1)
    plain = Mechanism.as_printed(scale * clip, z / scale, 4, 8, alpha="public", alpha_max=1.1)
    one = release(scaled, 0, gradients, layout, scale * alpha, noise)
    other = release(plain, 0, gradients, layout, alpha, noise)
    assert torch.allclose(one.gradient, other.gradient, rtol=1e-9, atol=1e-12)
    assert scaled.noise_multiplier(0) == pytest.approx(plain.noise_multiplier(0))


@given(
    size=st.floats(1e-30, 1e15),
    bound=st.floats(1e-3, 10),
    seed=st.integers(0, 1000),
    scaled=st.booleans(),
    divisor=st.none() | st.integers(1, 64),
)
@settings(max_examples=100)
def test_sound_clip_never_exceeds_its_sensitivity(size, bound, seed, scaled, divisor):
    """Swapping one micro-batch's gradient moves what is noised, in the scaled space, by at most what it says."""
    layout, generator = fake_layout(), torch.Generator().manual_seed(seed)
    gradients = torch.randn(4, layout.size, generator=generator)
    other = gradients.clone()
    other[2] = -size * gradients[2]
    alpha = 0.99 * torch.rand(3, generator=generator, dtype=torch.float64) + 0.01 if scaled else None
    mechanism = Mechanism.sound(bound, 0.0, 4, 8, alpha=Alpha.PUBLIC if scaled else Alpha.NONE)
    stacks = [StackedGradients(g, layout) for g in (gradients, other)]
    ends = [clip(mechanism, stack, layout, alpha, divisor, torch.zeros(layout.size)) for stack in stacks]
    difference = ends[0].total.spans[0].numbers.double() - ends[1].total.spans[0].numbers
    if alpha is not None:
        for columns, a in zip(layout.columns, alpha.tolist(), strict=True):
            difference[columns] /= a
    assert float(difference.norm()) <= ends[0].sensitivity() == mechanism.sensitivity() / (divisor or 4)


def test_noise_hides_only_what_was_clipped():
    layout = fake_layout()
    silence, stack = DrawnNoise(torch.zeros(layout.size)), StackedGradients(torch.ones(4, layout.size), layout)
    for unclipped in (torch.ones(layout.size), stack, stack.clipped_sum(torch.zeros(layout.size), lambda n: n[:, 0])):
        with pytest.raises(TypeError, match=r"noise hides only what was clipped, not a \w+: call clip"):
            add_noise(unclipped, 0, silence)
    clipped = clip(Mechanism.sound(1, 1, 4, 8), stack, layout, None, None, torch.zeros(layout.size))
    assert float(add_noise(clipped, 0, silence).gradient.norm()) == pytest.approx(1, rel=6e-4)


def test_norms_of_millions_of_numbers_are_exact_enough_for_the_clip():
    """A float32 sum of 10^7 equal squares is off by 0.8 %: a clip that trusts it lets 1.008 C through."""
    layout = fake_layout((10**7, 5000))
    gradients = torch.full((1, layout.size), 0.1)
    exact = gradients[:, layout.columns[0]].double().norm(), gradients[:, layout.columns[1]].double().norm()
    assert layer_norms(gradients, layout)[0].tolist() == pytest.approx([float(x) for x in exact], rel=1e-6)
    stack, silence = StackedGradients(gradients, layout), torch.zeros(layout.size)
    released = release(Mechanism.sound(1, 0, 1, 2), 0, stack, layout, None, silence)
    assert 1 - 6e-4 < float(released.gradient.double().norm()) <= 1


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("variant", ["as printed", "sound", "sound with public alpha", "sound, 20 micro-batches"])
def test_noise_is_what_the_mechanism_says(kind, variant):
    """Zero gradients released 40 times: per layer and in aggregate, Gaussian with the described deviation."""
    devices, layout, divisor = 8, fake_layout((2000, 300, 5000)), None
    alpha = torch.tensor([1.0, 0.25, 0.01], dtype=torch.float64)
    if variant == "as printed":
        mechanism = Mechanism.as_printed(2.0, 0.5, devices, 8, decay="exponential", tau=0.2)
        expected = [2.0 * 0.5 * math.exp(-0.2 * 3) / devices**1.5] * 3
    elif variant == "sound with public alpha":
        mechanism = Mechanism.sound(2.0, 0.5, devices, 8, alpha="public")
        expected = [a * 2 * 2.0 * 0.5 / devices for a in alpha.tolist()]
    else:
        mechanism, alpha = Mechanism.sound(2.0, 0.5, devices, 8), None
        divisor = 20 if "20" in variant else None
        expected = [2 * 2.0 * 0.5 / (divisor or devices)] * 3
    zero, share = StackedGradients(torch.zeros(devices, layout.size), layout), Share(kind, devices)
    noises = [standard_noise(5, step, layout.size, share) for step in range(40)]
    draws = torch.stack([release(mechanism, 3, zero, layout, alpha, noise, divisor).gradient for noise in noises])
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


@pytest.mark.parametrize(
    ("value", "alpha", "says"),
    [(math.nan, None, "layer 1"), (math.inf, None, "layer 1"), (1.0, [1.0, 6.6, 0.1], "normalise")],
)
def test_gradients_that_are_not_finite_and_scales_beyond_those_that_are_judged_are_refused(value, alpha, says):
    layout = fake_layout()
    gradients = torch.zeros(2, layout.size)
    gradients[1, 10] = value
    scales, silence = alpha and torch.tensor(alpha), torch.zeros(layout.size)
    with pytest.raises(UsageError, match=says):
        release(Mechanism.as_printed(1, 1, 2, 4), 0, StackedGradients(gradients, layout), layout, scales, silence)


@pytest.mark.parametrize("variant", ["pass", "naive", "alone", "one of one"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_utterance_whose_gradient_is_not_finite_counts_as_if_it_were_not_there(variant, value):
    """Were it refused, whether the step is taken would tell that it is there, whatever epsilon says."""
    model, everything = small_model(), utterances(5)
    data = model.dataset([*everything, Utterance(("poison",), ("O",), "alarm")])
    with torch.no_grad():
        model.words.weight[data.batch([5]).inputs["words"]] = value
    layout, mechanism = Layout.of(trainable(model)), Mechanism.sound(0.5, 0.0, 2, 1)
    before, after = ([], []) if variant in ("alone", "one of one") else ([np.arange(2)], [np.arange(2, 5)])
    found = []
    for poison in (np.array([5]), np.array([], dtype=int)):
        parts = [*before, poison, *after]
        given = model_gradients(model, data, parts, None, layout, variant == "naive", alone=variant == "alone")
        out = clip(mechanism, given, layout, None, None, torch.full((layout.size,), math.nan).double())
        found.append(add_noise(out, 0, DrawnNoise(torch.zeros(layout.size).double())).gradient)
    assert torch.isfinite(found[1]).all()
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("naive", [False, True])
def test_empty_micro_batches_add_nothing_and_the_divisor_stays(naive):
    """Two utterances on four devices: the mean is over four all the same. Without any, the noise goes out alone."""
    model = small_model()
    data, layout = model.dataset(utterances(2)), Layout.of(trainable(model))
    mechanism, parts = Mechanism.sound(1e-3, 0.7, 4, 1), np.array_split(np.arange(2), 4)
    filled = stacked_gradients(model, data, parts[:2], None, layout).gradients
    expected = sum(g * (mechanism.clip_norm / g.norm()) for g in filled) / 4
    silence, noise = torch.zeros(layout.size).double(), standard_noise(1, 2, layout.size, Share()).double()
    released = release(mechanism, 0, model_gradients(model, data, parts, None, layout, naive), layout, None, silence)
    torch.testing.assert_close(released.gradient, expected, rtol=6e-4, atol=0)
    for nobody in (parts[2:], []):
        gradients = model_gradients(model, data, nobody, None, layout, naive)
        alone = release(mechanism, 0, gradients, layout, None, noise)
        torch.testing.assert_close(alone.gradient, noise * mechanism.noise_std(0) / 4, rtol=1e-9, atol=0)
        assert float(gradients.loss) == 0


def test_the_step_survives_zero_grad_and_refuses_to_use_noise_twice():
    """`optimizer.zero_grad()` sets gradients to None, behind the back of whoever holds views of them."""
    model = torch.nn.Linear(3, 2)
    step = PrivateStep(model, Mechanism.sound(1.0, 1.0, 2, 4), key=1, epochs=1)
    losses = [lambda: model(torch.ones(4, 3)).square().sum(1)] * 2
    for number in (0, 1):
        model.zero_grad()
        released = step(0, number, losses).gradient
        assert torch.equal(torch.cat([p.grad.flatten() for p in model.parameters()]), released)
    with pytest.raises(UsageError, match="number all steps upwards"):
        step(0, 1, losses)
