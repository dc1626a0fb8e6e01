"""The eDP-SGD step against Algorithm 1 written out line by line, and its noise against its description."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from scipy import stats

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import Labels
from edp_lab.corpora.smart_home import generate
from edp_lab.errors import UsageError
from edp_lab.models.factory import build_model
from edp_lab.privacy import Alpha, Mechanism
from edp_lab.privacy.csprng import Purpose, stream
from edp_lab.training.dp_step import Clipped, add_noise, clip, clip_factors, release
from edp_lab.training.gradients import (
    Layout,
    LoopGradient,
    StackedGradients,
    U,
    headroom,
    layer_norms,
    model_gradients,
    stacked_gradients,
    trainable,
)
from edp_lab.training.noise import GivenNoise, float_noise
from edp_lab.training.private_step import PrivateStep, layer_scales

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
    """Algorithm 1 of the paper, line by line, with a dictionary of tensors per device and plain autograd."""
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
        draw = stream(key, Purpose.DEVICE_NOISE, step, i).standard_normal(size, dtype=np.float32)
        y = clip * z_t * torch.from_numpy(draw).double()  # y ~ N(0, (C z_t)^2)
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
    noise = float_noise(7, 11, layout.size, devices).double()
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


def flat(clipped: Clipped) -> torch.Tensor:
    """The mean of a step on one rank, shape (P)."""
    return clipped.scale * torch.cat([layer.to_dense().flatten() for layer in clipped.layers]).double()


def fake_layout(sizes=(7, 40, 3)) -> Layout:
    parameters = [(f"layer {k}", torch.nn.Parameter(torch.zeros(n))) for k, n in enumerate(sizes)]
    return Layout.of(parameters)


@given(scale=st.floats(0.05, 20), clip=st.floats(0.1, 5), z=st.floats(0, 2), seed=st.integers(0, 1000))
@settings(max_examples=50)
def test_scaling_alpha_is_scaling_clip_and_noise(scale, clip, z, seed):
    """step(s alpha, C, z) = step(alpha, s C, z / s): a constant factor of alpha is not an additional setting."""
    layout, generator = fake_layout(), torch.Generator().manual_seed(seed)
    gradients = StackedGradients(torch.randn(4, layout.size, generator=generator, dtype=torch.float64), layout)
    noise = torch.randn(layout.size, generator=generator, dtype=torch.float64)
    alpha = torch.rand(3, generator=generator, dtype=torch.float64) + 0.1
    scaled = Mechanism.as_printed(clip, z, 4, 8, alpha="public", alpha_max=scale * 1.1)
    plain = Mechanism.as_printed(scale * clip, z / scale, 4, 8, alpha="public", alpha_max=1.1)
    one = release(scaled, 0, [gradients], layout, scale * alpha, noise)
    other = release(plain, 0, [gradients], layout, alpha, noise)
    assert torch.allclose(one.gradient, other.gradient, rtol=1e-9, atol=1e-12)
    assert scaled.noise_multiplier(0) == pytest.approx(plain.noise_multiplier(0))


@given(
    size=st.floats(1e-30, 1e15),
    bound=st.floats(1e-3, 10),
    seed=st.integers(0, 1000),
    scaled=st.booleans(),
    divisor=st.integers(1, 64),
)
@settings(max_examples=100)
def test_sound_clip_never_exceeds_its_sensitivity(size, bound, seed, scaled, divisor):
    """Replacing one micro-batch's gradient changes the sum, in the scaled space, by at most the stated sensitivity."""
    layout, generator = fake_layout(), torch.Generator().manual_seed(seed)
    gradients = torch.randn(4, layout.size, generator=generator)
    other = gradients.clone()
    other[2] = -size * gradients[2]
    alpha = 0.99 * torch.rand(3, generator=generator, dtype=torch.float64) + 0.01 if scaled else None
    mechanism = Mechanism.sound(bound, 0.0, 4, 8, alpha=Alpha.PUBLIC if scaled else Alpha.NONE)
    stacks = [StackedGradients(g, layout) for g in (gradients, other)]
    ends = [clip([stack], mechanism, layout, alpha, divisor, torch.zeros(layout.size)) for stack in stacks]
    difference = flat(ends[0]) - flat(ends[1])
    if alpha is not None:
        for columns, a in zip(layout.columns, alpha.tolist(), strict=True):
            difference[columns] /= a
    assert float(difference.norm()) <= ends[0].sensitivity() == mechanism.sensitivity() / divisor


def test_noise_hides_only_what_was_clipped():
    layout = fake_layout()
    silence, stack = GivenNoise(torch.zeros(layout.size)), StackedGradients(torch.ones(4, layout.size), layout)
    for unclipped in (torch.ones(layout.size), stack):
        with pytest.raises(TypeError, match=r"noise can be added only to Clipped, not to \w+: call clip"):
            add_noise(unclipped, 0, 0, silence)
    clipped = clip([stack], Mechanism.sound(1, 1, 4, 8), layout, None, 4, torch.zeros(layout.size))
    assert float(add_noise(clipped, 0, 0, silence).gradient.norm()) == pytest.approx(1, rel=6e-4)


def test_norms_of_millions_of_numbers_are_exact_enough_for_the_clip():
    """A float32 sum of 10^7 equal squares is off by 0.8 %, so clipping based on it would allow a norm of 1.008 C."""
    layout = fake_layout((10**7, 5000))
    gradients = torch.full((1, layout.size), 0.1)
    exact = gradients[:, layout.columns[0]].double().norm(), gradients[:, layout.columns[1]].double().norm()
    assert layer_norms(gradients, layout)[0].tolist() == pytest.approx([float(x) for x in exact], rel=1e-6)
    stack, silence = [StackedGradients(gradients, layout)], torch.zeros(layout.size)
    released = release(Mechanism.sound(1, 0, 1, 2), 0, stack, layout, None, silence)
    assert 1 - 6e-4 < float(released.gradient.double().norm()) <= 1


@pytest.mark.parametrize("draws", [0, 8])
@pytest.mark.parametrize("variant", ["as printed", "sound", "sound with public alpha", "sound, 20 micro-batches"])
def test_noise_is_what_the_mechanism_says(draws, variant):
    """For zero gradients, 40 releases are Gaussian with the described deviation, per layer and in aggregate."""
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
    zero = [StackedGradients(torch.zeros(devices, layout.size), layout)]
    noises = [float_noise(5, step, layout.size, draws) for step in range(40)]
    released = torch.stack([release(mechanism, 3, zero, layout, alpha, noise, divisor).gradient for noise in noises])
    standardised, steps = [], released.clone()
    for columns, std in zip(layout.columns, expected, strict=True):
        layer = (released[:, columns] / std).flatten().double().numpy()
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
        release(Mechanism.as_printed(1, 1, 2, 4), 0, [StackedGradients(gradients, layout)], layout, scales, silence)


@pytest.mark.parametrize("variant", ["pass", "naive", "one of one", "one of two ranks"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_utterance_whose_gradient_is_not_finite_counts_as_if_it_were_not_there(variant, value):
    """If it were refused, the absence of a step would reveal the utterance's presence, whatever epsilon is."""
    model, everything = small_model(), utterances(5)
    data = model.dataset([*everything, Utterance(("poison",), ("O",), "alarm")])
    with torch.no_grad():
        model.words.weight[data.batch([5]).inputs["words"]] = value
    layout, mechanism = Layout.of(trainable(model)), Mechanism.sound(0.5, 0.0, 2, 1)
    before, after = ([], []) if variant.startswith("one") else ([np.arange(2)], [np.arange(2, 5)])
    released = []
    for poison in (np.array([5]), np.array([], dtype=int)):
        parts = [*before, poison, *after]
        given = model_gradients(model, data, parts, None, layout, variant == "naive")
        ranks = 2 if variant == "one of two ranks" else 1
        out = clip(given, mechanism, layout, None, 2, torch.full((layout.size,), math.nan).double(), ranks)
        released.append(add_noise(out, 0, 0, GivenNoise(torch.zeros(layout.size).double())).gradient)
    assert torch.isfinite(released[1]).all()
    torch.testing.assert_close(*released, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("naive", [False, True])
def test_empty_micro_batches_add_nothing_and_the_divisor_stays(naive):
    """With two utterances on four devices, the mean is still over four. Without utterances, only noise is released."""
    model = small_model()
    data, layout = model.dataset(utterances(2)), Layout.of(trainable(model))
    mechanism, parts = Mechanism.sound(1e-3, 0.7, 4, 1), np.array_split(np.arange(2), 4)
    filled = stacked_gradients(model, data, parts[:2], None, layout).gradients
    expected = sum(g * (mechanism.clip_norm / g.norm()) for g in filled) / 4
    silence, noise = torch.zeros(layout.size).double(), float_noise(1, 2, layout.size).double()
    released = release(mechanism, 0, model_gradients(model, data, parts, None, layout, naive), layout, None, silence)
    torch.testing.assert_close(released.gradient, expected, rtol=6e-4, atol=0)
    for nobody in (parts[2:], []):
        gradients = model_gradients(model, data, nobody, None, layout, naive)
        alone = release(mechanism, 0, gradients, layout, None, noise)
        torch.testing.assert_close(alone.gradient, noise * mechanism.noise_std(0) / 4, rtol=1e-9, atol=0)
        assert sum(float(some.loss) for some in gradients) == 0


def test_the_step_survives_zero_grad_and_refuses_to_use_noise_twice():
    """`optimizer.zero_grad()` sets gradients to None, although views of them exist."""
    model = torch.nn.Linear(3, 2)
    step = PrivateStep(model, Mechanism.sound(1.0, 1.0, 2, 4), key=1, epochs=1)
    losses = [lambda: model(torch.ones(4, 3)).square().sum(1)] * 2
    for number in (0, 1):
        model.zero_grad()
        released = step(0, number, losses).gradient
        assert torch.equal(torch.cat([p.grad.flatten() for p in model.parameters()]), released)
    with pytest.raises(UsageError, match="number all steps upwards"):
        step(0, 1, losses)


# ---- The rounding error of a clipped sum is below the clip's margin --------------------------------------------------


SHORT = 515  # in units u, by which a clipped gradient may be too long
ASSUMED = 1 / 2200  # times C, if a pass computes many gradients


def room(count: int) -> float:
    """Margin for the rounding errors of two sums, in units of u C."""
    return headroom(count) / U - SHORT


def sum_of(gradients: torch.Tensor, kind: str, bound: float, count: int | None = None) -> torch.Tensor:
    """The computed sum (P) of rows (M, P) clipped to `bound`, if `count` rows are expected."""
    layout = Layout(("all",), (slice(0, gradients.shape[1]),))
    given = [StackedGradients(gradients, layout)]
    if kind == "loop":
        weight = torch.nn.Parameter(torch.zeros(gradients.shape[1], dtype=gradients.dtype))
        given = [LoopGradient([weight], lambda row=row: (weight * row).sum()[None], layout) for row in gradients]
    mechanism = Mechanism.sound(bound, 1.0, len(gradients), 1)
    out = torch.empty(gradients.shape[1], dtype=gradients.dtype)
    count = count or len(gradients)
    return flat(clip(given, mechanism, layout, None, count, out)) * count


def adversarial(count: int, width: int) -> torch.Tensor:
    """Numbers that a float32 sum of 256 or more always rounds in the same direction, by almost half a unit."""
    return torch.full((count, width), 1 + 2.0**-16 + 2.0**-20)


@pytest.mark.parametrize("kind", ["stacked", "loop"])
@pytest.mark.parametrize("count", [1, 2, 512, 4096])
def test_sums_of_gradients_formed_one_by_one_are_as_near_the_exact_ones_as_is_charged(kind, count):
    rows = adversarial(count, 16)
    bound = 1.01 * float(rows[0].double().norm())  # nothing is clipped, so the exact sum is known
    error = sum_of(rows, kind, bound) - count * rows[0].double()
    assert float(error.norm()) <= room(count) / 2 * U * bound
    if count > 256:  # a float32 accumulator would fail
        naive = torch.from_numpy(np.cumsum(rows.numpy(), axis=0, dtype=np.float32)[-1]).double()
        assert float((naive - count * rows[0].double()).norm()) > room(count) / 2 * U * bound


def test_neighbours_sums_as_computed_are_no_further_apart_than_the_sensitivity():
    generator = torch.Generator().manual_seed(0)
    for count, width in ((1, 3), (16, 4000), (512, 100)):
        rows = 1 + torch.rand(count, width, generator=generator) * 2.0**-12
        for other in (0.0, -1.0, 1e-25, 1e15):
            moved = torch.cat([rows[:-1], other * rows[-1:]])
            apart = (sum_of(rows, "stacked", 1.0) - sum_of(moved, "stacked", 1.0)).norm()
            assert float(apart) <= (1 if other >= 0 else 2)


@pytest.mark.long
def test_in_a_large_batch_the_last_rounding_of_the_sum_is_charged(monkeypatch):
    rows = torch.ones(20_000, 16)
    without = torch.cat([rows[:-1], 0 * rows[-1:]])

    def furthest() -> float:
        """Largest change of the sum, relative to C, when one of many equal gradients is removed, over several C."""
        bounds = np.linspace(1, 2, 9)
        return max(float((sum_of(rows, "stacked", c) - sum_of(without, "stacked", c)).norm()) / c for c in bounds)

    assert furthest() <= 1
    monkeypatch.setattr("edp_lab.training.dp_step.headroom", lambda *steps: 2.0**-11)
    assert furthest() > 1


def test_more_than_floats_can_add_up_is_refused():
    with pytest.raises(UsageError, match="lower --batch-size or --processes"):
        headroom(10**6, ranks=8)
    with pytest.raises(UsageError, match="a step of 1 micro-batches got 103 or more: it may have at most 102"):
        sum_of(torch.ones(103, 1), "stacked", 1.0, count=1)


def test_a_norm_whose_squares_underflow_is_not_too_short():
    layout, mechanism = Layout(("all",), (slice(0, 10**6),)), Mechanism.sound(1e-6, 1.0, 1, 1, alpha="public")
    alpha, tiny = torch.tensor([2.0**-38], dtype=torch.float64), torch.full((1, 10**6), 1e-20)
    torch.set_flush_denormal(True)
    try:
        norms = StackedGradients(tiny, layout).norms()
    finally:
        torch.set_flush_denormal(False)
    exact = math.sqrt(10**6) * 1e-20 / float(alpha[0])
    assert float(clip_factors(mechanism, norms, layout, alpha)[0]) * exact <= mechanism.clip_norm


@pytest.mark.parametrize("size", [1, 4])
def test_what_one_pass_for_many_micro_batches_rounds_is_far_less_than_is_assumed(size):
    """Ghost clipping in float32, with and without an utterance, against float64, one by one."""
    corpus = generate(64, seed=3)
    widths = {"hidden": 32, "layers": 2, "word": 20, "character": 8, "filters": 8, "dropout": 0.0}
    model = build_model("clc", Labels.of(corpus), seed=1, private=True, size=widths)
    data, layout = model.dataset(corpus.utterances), Layout.of(trainable(model))
    mechanism = Mechanism.sound(0.1, 1.0, 1, size)

    def total(parts: list[np.ndarray], naive: bool) -> torch.Tensor:
        out = torch.empty(layout.size, dtype=next(model.parameters()).dtype)
        given = model_gradients(model, data, parts, None, layout, naive)
        return flat(clip(given, mechanism, layout, None, 1, out))

    parts = np.array_split(np.arange(64), 64 // size)
    floats = [total(given, naive=False) for given in (parts, parts[1:])]
    model.double()
    exact = [total(given, naive=True) for given in (parts, parts[1:])]
    error = float(((floats[0] - floats[1]) - (exact[0] - exact[1])).norm()) / mechanism.clip_norm
    assert error < ASSUMED / 50, f"{error / U:.1f} u"


# ---- A trusted peer: with one utterance per micro-batch and no layer scales, our step is Opacus's DPOptimizer --------


pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")  # from Opacus, for a first layer

C = 1.2


def batch(size: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    scale = torch.logspace(-2, 2, size)[:, None]  # some gradients are clipped, some are not
    return model, torch.randn(size, 5) * scale, torch.randint(0, 3, (size,))


def utterance_loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, k: int) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x[k : k + 1]), y[k : k + 1], reduction="none")


def looped(size: int) -> tuple[torch.nn.Module, list[LoopGradient]]:
    """Our gradients with one utterance per micro-batch."""
    model, x, y = batch(size)
    named = trainable(model)
    parameters, layout = [p for _, p in named], Layout.of(named)
    return model, [LoopGradient(parameters, partial(utterance_loss, model, x, y, k), layout) for k in range(size)]


def ours(size: int, mechanism: Mechanism, noise: torch.Tensor) -> torch.Tensor:
    """Our step's release (P), with one utterance per device."""
    _, gradients = looped(size)
    return release(mechanism, 0, gradients, gradients[0].layout, None, noise).gradient


def theirs(size: int, noise_multiplier: float, seed: int = 0) -> torch.Tensor:
    """The gradient (P) that Opacus passes to the optimizer."""
    model, x, y = batch(size)
    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0),
        noise_multiplier=noise_multiplier,
        max_grad_norm=C,
        expected_batch_size=size,
        generator=torch.Generator().manual_seed(seed),
    )
    torch.nn.functional.cross_entropy(wrapped(x), y).backward()
    optimizer.pre_step()
    return torch.cat([p.grad.flatten() for p in wrapped.parameters()])


@pytest.mark.parametrize("size", [1, 8])
def test_without_noise_the_step_equals_opacus(size):
    printed = Mechanism.as_printed(C, 0.0, size, 1, alpha="none")
    silence = torch.zeros(theirs(size, 0.0).numel())
    assert torch.allclose(ours(size, printed, silence), theirs(size, 0.0), rtol=0, atol=1e-6)
    sound = Mechanism.sound(C, 0.0, size, 1)  # clips by 2^-11 more, to stay below C in float32
    assert torch.allclose(ours(size, sound, silence), theirs(size, 0.0), rtol=0, atol=2e-4)


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_the_step_for_any_module_leaves_in_grad_what_opacus_does(devices):
    """The mean is over eight utterances for any number of devices that share them."""
    model, gradients = looped(8)
    printed = Mechanism.as_printed(C, 0.0, devices, 1, alpha="none")
    step = PrivateStep(model, printed, key=1, epochs=1, micro_batches=8)
    step(0, 0, [each.compute for each in gradients])
    left = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(left, theirs(8, 0.0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("draws", [0, pytest.param(4, marks=pytest.mark.long)])
def test_with_noise_the_distribution_is_that_of_opacus(draws):
    """Two samples of 300 steps each: means, spread and distribution of every coordinate."""
    size, z = 4, 0.7
    sound = Mechanism.sound(C, z, size, 1)
    mean = theirs(size, 0.0)
    noise = [float_noise(1, step, len(mean), draws) for step in range(300)]
    left = torch.stack([ours(size, sound, draw) for draw in noise]) - mean
    right = torch.stack([theirs(size, z, seed) for seed in range(300)]) - mean
    std = z * C / size
    for sample in (left.numpy(), right.numpy()):
        assert stats.kstest(sample.flatten() / std, "norm").pvalue > 1e-3
        assert np.abs(sample.mean(0)).max() < 5 * std / 300**0.5
    assert stats.ks_2samp(left.flatten().numpy(), right.flatten().numpy()).pvalue > 1e-3
    assert left.std() / right.std() == pytest.approx(1, abs=0.02)
