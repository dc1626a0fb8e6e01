"""Ways to an epsilon that is smaller than the truth: each is refused, and the refusal names what is wrong."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edp_lab.errors import UsageError
from edp_lab.privacy import Mechanism
from edp_lab.training import PrivateStep


def step_of(model: nn.Module, micro_batch_size: int = 8, **options) -> PrivateStep:
    mechanism = Mechanism.sound(1.0, 1.0, options.pop("devices", 2), micro_batch_size, **options)
    return PrivateStep(model, mechanism, key=1, epochs=3)


# ---- What leaves beside the gradient ---------------------------------------------------------------------------------


class Remembers(nn.Module):
    """A linear layer that keeps a mean of its inputs, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.layer, self.attribute, self.number = way, nn.Linear(4, 2), torch.zeros(4), 0.0
        self.register_buffer("buffer", torch.zeros(4), persistent=False)
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.history: dict[str, list[Tensor]] = {"means": []}

    def forward(self, x: Tensor) -> Tensor:
        mean = x.detach().mean(0)
        if self.way == "buffer":
            self.buffer.data.lerp_(mean, 0.1)  # which no version counter sees
        elif self.way == "attribute":
            self.attribute = mean
        elif self.way == "number":
            self.number += float(mean[0])
        elif self.way == "frozen":
            self.frozen.data.copy_(mean)
        elif self.way == "history":
            self.history["means"].append(mean)
        return self.layer(x - self.buffer)


class Backbone(nn.Module):
    """A head whose frozen backbone is no part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.others = [nn.BatchNorm1d(4)]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.others[0](x))


INSTANCES = nn.Unflatten(1, (1, 4)), nn.InstanceNorm1d(1, track_running_stats=True)


@pytest.mark.parametrize(
    ("model", "layer", "kept"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), "'1' (BatchNorm1d)", "running_mean"),
        (nn.Sequential(*INSTANCES, nn.Flatten(), nn.Linear(4, 2)), "'1' (InstanceNorm1d)", "running_var"),
        (nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 99))), "(_SpectralNorm)", "_u"),
        (nn.Sequential(Remembers("buffer")), "'0' (Remembers)", "buffer"),
        (nn.Sequential(Remembers("attribute")), "'0' (Remembers)", "attribute"),
        (nn.Sequential(Remembers("number")), "'0' (Remembers)", "number"),
        (nn.Sequential(Remembers("frozen")), "'0' (Remembers)", "frozen"),
        (nn.Sequential(Remembers("history")), "'0' (Remembers)", "history"),
        (Backbone(), "(BatchNorm1d)", "running_mean"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)  # fmt: skip
def test_a_layer_that_keeps_something_of_the_examples_is_refused_by_name(model, layer, kept):
    x, y = torch.randn(16, 4), torch.randint(0, 2, (16,))
    step = step_of(model)
    losses = [lambda p=p: F.cross_entropy(model(x[p]), y[p], reduction="none") for p in torch.arange(16).chunk(2)]
    with pytest.raises(UsageError) as refused:
        step(0, 0, losses)
    assert all(word in str(refused.value) for word in (layer, kept, "eval"))
    assert all(p.grad is None for p in model.parameters()), "something was released"


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3).eval(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.GroupNorm(1, 3), nn.Dropout(0.5), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2)),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))),
        nn.Sequential(Remembers("nothing")),
    ],
)
def test_a_layer_that_keeps_nothing_trains_as_before(model):
    x, y = torch.randn(16, 4), torch.randint(0, 2, (16,))
    step, optimizer = step_of(model), torch.optim.SGD(model.parameters(), 0.1)
    for number in range(3):
        step(
            0,
            number,
            [lambda p=p: F.cross_entropy(model(x[p]), y[p], reduction="none") for p in torch.arange(16).chunk(2)],
        )
        optimizer.step()


# ---- What is declared, against what arrives --------------------------------------------------------------------------


def losses_of(model: nn.Module, *sizes: int):
    return [lambda n=n: model(torch.ones(n, 4)).square().sum(1) for n in sizes]


@pytest.mark.parametrize(
    ("micro_batch_size", "options", "call", "named"),
    [
        (1, {}, lambda step, net: step(0, 0, losses_of(net, 8)), "8 losses, .* micro_batch_size=1"),
        (4, {}, lambda step, net: step(0, 0, losses_of(net, 4, 5)), "5 losses, .* micro_batch_size=4"),
        (1, {"sampling_rate": 0.1}, lambda step, net: step(0, 0, losses_of(net, 2)), "2 losses"),
        (1, {}, lambda step, net: step(0, 0, [lambda: net(torch.ones(8, 4)).mean()]), r"shape \(\)"),
        (8, {}, lambda step, net: step(0, 0, [lambda: net(torch.ones(8, 4))]), r"shape \(8, 2\)"),
        (8, {}, lambda step, net: step(0, 0, losses_of(net, 1, 1, 1)), "3 micro-batches"),
        (8, {"sampling_rate": 0.1}, lambda step, net: step(0, 0, losses_of(net, 1, 1, 1)), "3 micro-batches"),
        (8, {}, lambda step, net: step(3, 0, losses_of(net, 1)), "epoch 3, but 3 epochs are billed"),
        (8, {}, lambda step, net: step(-1, 0, losses_of(net, 1)), "epoch -1"),
        (
            1,
            {"sampling_rate": 0.5},
            lambda step, net: [step(0, number, losses_of(net, 1)) for number in range(3)],
            "step 3 of epoch 0: 2 steps",
        ),
        (8, {}, lambda step, net: with_alpha(step, [1.0, 1.0])(0, 0, losses_of(net, 1)), "alpha.*none"),
        (8, {"alpha": "public"}, lambda step, net: with_alpha(step, [2.0, 1.0])(0, 0, losses_of(net, 1)), "2.0"),
        (8, {"alpha": "public"}, lambda step, net: with_alpha(step, [1.0])(0, 0, losses_of(net, 1)), "1 layer sc"),
    ],
)  # fmt: skip
def test_what_arrives_beyond_a_declared_bound_is_refused(micro_batch_size, options, call, named):
    model = nn.Linear(4, 2)
    with pytest.raises(UsageError, match=named):
        call(step_of(model, micro_batch_size, **options), model)


def with_alpha(step: PrivateStep, alpha: list[float]) -> PrivateStep:
    step.alpha = torch.tensor(alpha)
    return step
