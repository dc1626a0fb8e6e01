"""Adam and DP-Adam are the printed update on the released gradient."""

import pytest
import torch
from torch import Tensor, nn

from edp_lab.errors import UsageError
from edp_lab.training.optimizers import make_optimizer

LR = 0.01
SHAPES = ((40, 3), (7,))


def random_tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def weighted_mean(values: list[Tensor], beta: float) -> Tensor:
    """The bias-corrected exponential moving average is the mean with weight beta^age."""
    weights = [beta**age for age in reversed(range(len(values)))]
    return sum((w * x for w, x in zip(weights, values, strict=True)), torch.zeros(())) / sum(weights)


@pytest.mark.parametrize("name", ["adam", "dp-adam"])
def test_dp_adam_and_adam_are_the_printed_update_on_the_released_gradient(name: str) -> None:
    """Algorithm 7: V and S are averages of dW and dW^2, both corrected; W - a V / (sqrt(S) + epsilon)."""
    gradients, start = [random_tensors(step) for step in range(6)], random_tensors(99)
    parameters = [nn.Parameter(tensor.clone()) for tensor in start]
    optimizer = make_optimizer(name, parameters, LR)
    for gradient in gradients:
        for parameter, of_one in zip(parameters, gradient, strict=True):
            parameter.grad = of_one.clone()
        optimizer.step()
    for k, (initial, end) in enumerate(zip(start, parameters, strict=True)):
        expected = initial.clone()
        for t in range(1, len(gradients) + 1):
            past = [gradient[k] for gradient in gradients[:t]]
            root = weighted_mean([g**2 for g in past], 0.999).sqrt()
            expected -= LR * weighted_mean(past, 0.9) / (root + 1e-8)
        assert float((end.detach() - expected).abs().max()) < 1e-12


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'sgd'.*adam, dp-adam"):
        make_optimizer("sgd", [nn.Parameter(torch.zeros(1))], LR)
