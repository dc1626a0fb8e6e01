"""A trusted peer: with one utterance per micro-batch and no layer scales, our step is Opacus's DPOptimizer."""

from functools import partial

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from scipy import stats

from edp_lab.privacy import Mechanism
from edp_lab.training.config import NOISES
from edp_lab.training.dp_step import PrivateStep, release
from edp_lab.training.gradients import Layout, LoopGradients, trainable
from edp_lab.training.noise import Share, standard_noise

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")  # of Opacus, on a first layer

C = 1.2


def batch(size: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    scale = torch.logspace(-2, 2, size)[:, None]  # some gradients are clipped, some are not
    return model, torch.randn(size, 5) * scale, torch.randint(0, 3, (size,))


def utterance_loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, k: int) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(x[k : k + 1]), y[k : k + 1], reduction="none")


def looped(size: int) -> tuple[torch.nn.Module, LoopGradients]:
    """Our gradients, one utterance per micro-batch."""
    model, x, y = batch(size)
    parameters = trainable(model)
    losses = [partial(utterance_loss, model, x, y, k) for k in range(size)]
    return model, LoopGradients([p for _, p in parameters], losses, Layout.of(parameters))


def ours(size: int, mechanism: Mechanism, noise: torch.Tensor) -> torch.Tensor:
    """(P) released by our step, one utterance per device."""
    _, gradients = looped(size)
    return release(mechanism, 0, gradients, gradients.layout, None, noise).gradient


def theirs(size: int, noise_multiplier: float, seed: int = 0) -> torch.Tensor:
    """(P) the gradient that Opacus hands to the optimizer."""
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
    """Whatever the number of devices that share the eight utterances, the mean is over eight."""
    model, gradients = looped(8)
    printed = Mechanism.as_printed(C, 0.0, devices, 1, alpha="none")
    step = PrivateStep(model, printed, key=1, epochs=1, micro_batches=8)
    step(0, 0, gradients.losses)
    left = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(left, theirs(8, 0.0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", NOISES)
def test_with_noise_the_distribution_is_that_of_opacus(kind):
    """Two samples of 300 steps each: means, spread and shape of every coordinate."""
    size, z = 4, 0.7
    sound = Mechanism.sound(C, z, size, 1)
    mean = theirs(size, 0.0)
    noise = [standard_noise(1, step, len(mean), Share(kind, size)) for step in range(300)]
    left = torch.stack([ours(size, sound, draw) for draw in noise]) - mean
    right = torch.stack([theirs(size, z, seed) for seed in range(300)]) - mean
    std = z * C / size
    for sample in (left.numpy(), right.numpy()):
        assert stats.kstest(sample.flatten() / std, "norm").pvalue > 1e-3
        assert np.abs(sample.mean(0)).max() < 5 * std / 300**0.5
    assert stats.ks_2samp(left.flatten().numpy(), right.flatten().numpy()).pvalue > 1e-3
    assert left.std() / right.std() == pytest.approx(1, abs=0.02)
