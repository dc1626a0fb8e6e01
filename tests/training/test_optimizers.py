"""DP-AdamBC against its formula with plain weighted means, against Adam, and what it promises about noise."""

import math

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from edp_lab.errors import UsageError
from edp_lab.training.optimizers import BETAS, EPSILON, GAMMA, DPAdamBC, make_optimizer

LR = 0.01
SHAPES = ((40, 3), (7,))
STDS = [(0.5, 0.02), (0.5, 0.02), (0.3, 0.012), (0.3, 0.012), (0.1, 0.004), (0.0, 0.0)]  # decays, and by tensor


def random_tensors(seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def noisy_gradients(steps: list[tuple[float, float]], dtype: torch.dtype = torch.float64) -> list[list[Tensor]]:
    """For every step and tensor, a gradient of about 0.1 and noise of the given standard deviation."""
    drawn = [(random_tensors(t, dtype), random_tensors(1000 + t, dtype), stds) for t, stds in enumerate(steps)]
    return [[0.1 * g + std * z for g, z, std in zip(*own, strict=True)] for own in drawn]


def parameters_like(tensors: list[Tensor]) -> list[nn.Parameter]:
    return [nn.Parameter(t.clone()) for t in tensors]


def test_what_makes_no_optimizer_and_a_step_whose_noise_was_not_told_are_refused() -> None:
    groups = [{"params": parameters_like(random_tensors(0))}, {"params": parameters_like(random_tensors(1)), "lr": 1.0}]
    with pytest.raises(UsageError, match="one group of parameters"):
        DPAdamBC(groups, LR)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"'sgd'.*adam, dp-adam, dp-adambc"):
        make_optimizer("sgd", parameters_like(random_tensors(1)), LR)
    optimizer = DPAdamBC(parameters_like(random_tensors(1)), LR)
    gradients = noisy_gradients(STDS[:1])
    after_one = take_steps(optimizer, gradients, STDS[:1])
    with pytest.raises(UsageError, match="noise_std"):
        optimizer.step()
    assert all(torch.equal(p, w) for p, w in zip(optimizer.param_groups[0]["params"], after_one, strict=True))


def take_steps(
    optimizer: torch.optim.Optimizer, gradients: list[list[Tensor]], stds: list[tuple[float, float]]
) -> list[Tensor]:
    """The weights after steps with these gradients and deviations."""
    parameters = optimizer.param_groups[0]["params"]
    for g, std in zip(gradients, stds, strict=True):
        for p, grad in zip(parameters, g, strict=True):
            p.grad = grad.clone()
        if isinstance(optimizer, DPAdamBC):
            optimizer.noise_std(std)
        optimizer.step()
    return [p.detach().clone() for p in parameters]


def weighted_mean(values: list[Tensor] | list[float], beta: float) -> Tensor | float:
    """The bias-corrected exponential moving average is the mean with weight beta^age."""
    weights = [beta**age for age in reversed(range(len(values)))]
    return sum(w * x for w, x in zip(weights, values, strict=True)) / sum(weights)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-4)])
def test_dp_adambc_takes_the_steps_of_the_paper_with_the_noise_of_each_step_and_tensor(dtype, tolerance):
    gamma, gradients = 1e-4, noisy_gradients(STDS, dtype)
    start = random_tensors(77, dtype)
    taken = take_steps(DPAdamBC(parameters_like(start), LR, gamma), gradients, STDS)
    for k, (initial, end) in enumerate(zip(start, taken, strict=True)):
        expected, on_floor = initial.double().clone(), 0
        for t in range(1, len(STDS) + 1):
            past, phi = [g[k].double() for g in gradients[:t]], weighted_mean([s[k] ** 2 for s in STDS[:t]], BETAS[1])
            corrected = weighted_mean([g**2 for g in past], BETAS[1]) - phi
            expected -= LR * weighted_mean(past, BETAS[0]) / corrected.clamp_min(gamma).sqrt()
            on_floor += int((corrected <= gamma).sum())
        assert 0 < on_floor < len(STDS) * initial.numel()  # both sides of the maximum are in play
        assert float((end.double() - expected).abs().max()) < tolerance


def test_without_noise_and_with_a_tiny_floor_dp_adambc_is_adam():
    """With Adam's epsilon at 0; the next test says what epsilon and gamma' each do where the gradient is tiny."""
    gradients, none = noisy_gradients([(0.0, 0.0)] * 20), [(0.0, 0.0)] * 20
    bias_corrected = take_steps(DPAdamBC(parameters_like(random_tensors(5)), LR, gamma=1e-40), gradients, none)
    adam = torch.optim.Adam(parameters_like(random_tensors(5)), LR, eps=0.0)
    for ours, theirs in zip(bias_corrected, take_steps(adam, gradients, none), strict=True):
        assert float((ours - theirs).abs().max()) < 1e-9


@pytest.mark.parametrize("gradient", [1e-10, 1e-8, 1e-6, 1.0])
def test_gamma_is_a_floor_under_the_root_where_adam_adds_epsilon_beside_it(gradient):
    adam, floored = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    adam.grad = floored.grad = torch.full_like(adam, gradient)
    torch.optim.Adam([adam], LR, eps=EPSILON).step()
    optimizer = DPAdamBC([floored], LR, gamma=EPSILON**2)
    optimizer.noise_std([0.0])
    optimizer.step()
    assert -adam.item() == pytest.approx(LR * gradient / (gradient + EPSILON), rel=1e-12)
    assert -floored.item() == pytest.approx(LR * gradient / max(gradient, EPSILON), rel=1e-12)


def test_the_second_moment_less_the_noise_is_unbiased_for_the_squared_gradient_while_the_noise_decays():
    signal, steps, size = 0.02, 60, 100_000
    stds = [0.1 * 0.96**t for t in range(steps)]
    weight = nn.Parameter(torch.zeros(size, dtype=torch.float64))
    optimizer, generator = DPAdamBC([weight], LR), torch.Generator().manual_seed(3)
    for std in stds:
        weight.grad = signal + std * torch.randn(size, generator=generator, dtype=torch.float64)
        optimizer.noise_std([std])
        optimizer.step()
    state, correction = optimizer.state[weight], 1 - BETAS[1] ** steps
    second_moment, phi = state["exp_avg_sq"] / correction, float(state["noise_sq"]) / correction
    standard_error = float(second_moment.std()) / math.sqrt(size)
    assert standard_error < signal**2 / 50  # the test can tell signal^2 from a tenth more or less
    assert abs(float(second_moment.mean()) - phi - signal**2) < 4 * standard_error
    assert phi > 3 * signal**2  # uncorrected, it is mostly noise


def test_a_loaded_state_goes_on_bit_for_bit_and_is_made_of_tensors_that_safetensors_can_hold():
    gradients, start = noisy_gradients(STDS, torch.float32), random_tensors(8, torch.float32)
    whole = take_steps(DPAdamBC(parameters_like(start), LR), gradients, STDS)
    first = DPAdamBC(parameters_like(start), LR)
    halfway = take_steps(first, gradients[:3], STDS[:3])
    saved = first.state_dict()
    assert all(set(s) == {"exp_avg", "exp_avg_sq", "noise_sq", "step"} for s in saved["state"].values())
    on_disk = load(save({f"{i} {k}": t for i, s in saved["state"].items() for k, t in s.items()}))
    second = DPAdamBC(parameters_like(halfway), lr=1.0)
    state = {i: {k: on_disk[f"{i} {k}"] for k in s} for i, s in saved["state"].items()}
    second.load_state_dict({"state": state, "param_groups": saved["param_groups"]})
    for ours, expected in zip(take_steps(second, gradients[3:], STDS[3:]), whole, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("name", ["adam", "dp-adam"])
def test_dp_adam_and_adam_are_the_printed_update_on_the_released_gradient(name):
    """Algorithm 7: V and S are averages of dW and dW^2, both corrected; W - a V / (sqrt(S) + epsilon)."""
    gradients, start = noisy_gradients(STDS), random_tensors(4)
    taken = take_steps(make_optimizer(name, parameters_like(start), LR), gradients, STDS)
    for k, (initial, end) in enumerate(zip(start, taken, strict=True)):
        expected = initial.clone()
        for t in range(1, len(STDS) + 1):
            past = [g[k] for g in gradients[:t]]
            root = weighted_mean([g**2 for g in past], 0.999).sqrt()
            expected -= LR * weighted_mean(past, 0.9) / (root + 1e-8)
        assert float((end - expected).abs().max()) < 1e-12
    ours, same = make_optimizer("dp-adambc", parameters_like(start), LR), DPAdamBC(parameters_like(start), LR, GAMMA)
    assert all(map(torch.equal, take_steps(ours, gradients, STDS), take_steps(same, gradients, STDS)))


@pytest.mark.parametrize("stds", [[0.1], [0.1, 0.1, 0.1], [0.1, -0.1], [math.nan, 0.1], [0.1, math.inf]])
def test_noise_that_is_not_one_deviation_for_each_tensor_is_refused(stds):
    with pytest.raises(UsageError, match="noise deviation"):
        DPAdamBC(parameters_like(random_tensors(1)), LR).noise_std(stds)
