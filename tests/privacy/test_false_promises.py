"""Mistakes that would give an epsilon below the true one: each is refused with a message that names the problem."""

import re
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edp_lab.errors import UsageError
from edp_lab.privacy import Mechanism, PrivacyLossDistribution, Schedule, gdp_epsilon
from edp_lab.privacy.foreign_claim import check_claim, shuffled_at_least
from edp_lab.three_phase.settings import ClassifierSettings, ThreePhaseSettings
from edp_lab.training.batches import shard
from edp_lab.training.config import TrainConfig
from edp_lab.training.private_step import PrivateStep


def step_of(model: nn.Module, micro_batch_size: int = 8, **options) -> PrivateStep:
    mechanism = Mechanism.sound(1.0, 1.0, options.pop("devices", 2), micro_batch_size, **options)
    return PrivateStep(model, mechanism, key=1, epochs=3)


# ---- Releases besides the gradient -----------------------------------------------------------------------------------


class Remembers(nn.Module):
    """A linear layer that stores the mean of its inputs in one of several ways, or not at all."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.layer = way, nn.Linear(4, 2)
        self.register_buffer("buffer", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.detach().mean(0)
        if self.way == "buffer":
            self.buffer.data.lerp_(mean, 0.1)  # not detected by version counters
        if self.way == "weight":
            self.layer.weight.data += mean
        if self.way == "memory":
            self.memory = mean
        return self.layer(x - self.buffer)


INSTANCES = nn.Unflatten(1, (1, 4)), nn.InstanceNorm1d(1, track_running_stats=True)


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), "1.running_mean"),
        (nn.Sequential(*INSTANCES, nn.Flatten(), nn.Linear(4, 2)), "1.running_mean"),
        (nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 99))), "_u"),
        (nn.Sequential(Remembers("buffer")), "0.buffer"),
        (nn.Sequential(Remembers("weight")), "0.layer.weight"),
        (nn.Sequential(Remembers("memory")), "0.memory"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)  # fmt: skip
def test_a_layer_that_keeps_something_of_the_examples_is_refused_by_name(model, kept):
    x, y = torch.randn(16, 4), torch.randint(0, 2, (16,))
    step = step_of(model)
    losses = [lambda p=p: F.cross_entropy(model(x[p]), y[p], reduction="none") for p in torch.arange(16).chunk(2)]
    with pytest.raises(UsageError) as refused:
        step(0, 0, losses)
    assert all(word in str(refused.value) for word in (kept, "eval"))
    assert all(p.grad is None for p in model.parameters()), "something was released"
    if "weight" not in kept:  # a parameter may change between steps
        with pytest.raises(UsageError, match="eval"):  # even if they were computed before the step
            step(0, 1, before(losses))


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


# ---- Declared and actual sizes ---------------------------------------------------------------------------------------


def sound(**given: object) -> Mechanism:
    return Mechanism.sound(**{"clip_norm": 1.0, "z0": 1.0, "num_devices": 1, "micro_batch_size": 1, **given})


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
        (8, {"sampling_rate": 0.1}, lambda step, net: step(0, 0, losses_of(net, 1, 1)), "Poisson.*micro_batch_size=8"),
        (1, {"sampling_rate": 0.1}, lambda step, net: step(0, 0, losses_of(net, *[1] * 105)), "105 micro-batches"),
        (8, {}, lambda step, net: step(3, 0, losses_of(net, 1)), "epoch 3, but only 3 epochs are accounted for"),
        (8, {}, lambda step, net: step(-1, 0, losses_of(net, 1)), "epoch is -1"),
        (8, {}, lambda step, net: step(0.5, 0, losses_of(net, 1)), "epoch is 0.5"),
        (8, {}, lambda step, net: [step(epoch, 0, losses_of(net, 1)) for epoch in (1, 0)], "epoch is 0"),
        (8, {}, lambda step, net: step_of(net.half()), "parameters of torch.float16: .*convert them"),
        (8, {}, lambda step, net: step_of(net.bfloat16()), "parameters of torch.bfloat16: .*convert them"),
        (8, {}, lambda step, net: step_of(nn.Sequential(net, nn.Linear(2, 2).half())), "parameters of torch.float16"),
        (8, {}, lambda step, net: step(0, 0, losses_of(net.half(), 1)), "built for torch.float32, .*torch.float16"),
        (8, {}, lambda step, net: step(0, 0, losses_of(net.bfloat16(), 1)), "the model is now torch.bfloat16"),
        (8, {}, lambda step, net: step(0, 0, losses_of(net.double(), 1)), "is now torch.float64"),
        (
            1,
            {"sampling_rate": 0.5},
            lambda step, net: [step(0, number, losses_of(net, 1)) for number in range(3)],
            "step 3 of epoch 0: only 2 per epoch",
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


def before(losses):
    done = [compute() for compute in losses]
    return [lambda given=given: given for given in done]


def test_a_process_gets_its_share_of_however_many_micro_batches():
    step = PrivateStep(nn.Linear(4, 2), Mechanism.sound(1.0, 1.0, 8, 1), key=1, epochs=1, micro_batches=64)
    assert step.own(range(64)) == range(64)
    step.devices = shard(8, 1, 4)
    assert step.own(range(64)) == range(16, 32)
    assert step.own(range(8)) == range(2, 4)


def test_a_later_step_that_is_refused_leaves_no_gradient_without_noise():
    model = nn.Linear(4, 2)
    model.register_buffer("seen", torch.zeros(()))
    step = PrivateStep(model, Mechanism.sound(1.0, 1.0, 1, 4), key=1, epochs=1)
    x = torch.randn(4, 4)
    step(0, 0, [lambda: model(x).square().sum(1)])
    for number, kept in ((0, False), (1, True)):

        def losses(kept: bool = kept) -> torch.Tensor:
            if kept:
                model.seen.copy_(x.sum())
            return model(x).square().sum(1)

        with pytest.raises(UsageError, match="seen" if kept else "number all steps upwards"):
            step(0, number, [losses])
        assert all(p.grad is None for p in model.parameters()), "something was released"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"micro_batches": -1}, "micro-batches is -1"),
        ({"micro_batches": 2.5}, "micro-batches is 2.5"),
        ({"noise": "per_device"}, "unknown noise 'per_device'"),
        ({"key": None}, "key is None: it must be a whole number"),
        ({"key": "secret"}, "key is secret: it must be a whole number"),
        ({"epochs": None}, "number of epochs is None: it must be a whole number"),
    ],
)
def test_a_step_is_set_up_with_numbers_and_words_that_mean_something(options, named):
    set_up = {"mechanism": Mechanism.sound(1.0, 1.0, 1, 1, sampling_rate=0.1), "key": 1, "epochs": 1, **options}
    with pytest.raises(UsageError, match=named):
        PrivateStep(nn.Linear(4, 2), **set_up)


@pytest.mark.parametrize("build", [lambda **given: TrainConfig("smart-home", **given), sound])
@pytest.mark.parametrize("name", ["z0", "clip_norm", "tau"])
@pytest.mark.parametrize("value", ["0.1", None, [1, 2], (0, 1), {}, True, 1j])
def test_a_setting_that_is_no_number_is_named(build, name, value):
    with pytest.raises(UsageError, match=f"^{name} is {re.escape(repr(value))}: it must be a number$"):
        build(**{name: value})


def test_models_that_an_optimizer_would_move_without_noise_are_refused():
    mixed, frozen, fixed = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 2)
    mixed.bias.data = mixed.bias.data.double()
    frozen.bias.requires_grad_(False).grad = torch.ones(2)
    fixed.requires_grad_(False)
    for model, named in ((mixed, "one precision"), (frozen, "frozen parameter"), (fixed, "no trainable parameter")):
        with pytest.raises(UsageError, match=named):
            PrivateStep(model, Mechanism.sound(1.0, 1.0, 1, 1), key=1, epochs=1)


def test_only_what_this_step_has_clipped_last_is_released_and_once():
    model = nn.Linear(4, 2)
    step, other = (PrivateStep(model, Mechanism.sound(1.0, 1.0, 1, 1), key=1, epochs=1) for _ in range(2))
    earlier, last = step.clip([]), step.clip([])
    for number, (clipped, released) in enumerate([(other.clip([]), 0), (earlier, 0), (last, 1), (last, 0)]):
        with nullcontext() if released else pytest.raises(UsageError, match="not clipped by this step"):
            step.release(clipped, 0, number)


@pytest.mark.parametrize("frozen", [True, False])
def test_parameters_stay_frozen_or_trained_as_they_were_when_the_step_was_built(frozen):
    """The loss's own backward pass left a gradient without noise, which the optimizer used."""
    model = nn.Linear(4, 2)
    model.bias.requires_grad_(not frozen)
    step = PrivateStep(model, Mechanism.sound(1.0, 1.0, 1, 1), key=1, epochs=1)
    model.bias.requires_grad_(frozen)
    with pytest.raises(UsageError, match="frozen or unfrozen after the step was built"):
        step(0, 0, [lambda: model(torch.ones(1, 4)).square().sum(1)])


@pytest.mark.parametrize(
    ("compute", "named"), [(torch.ones(1), "give a function"), (lambda: torch.ones(1), "do not depend on the model")]
)
def test_losses_are_computed_from_the_model(compute, named):
    step = PrivateStep(nn.Linear(4, 2), Mechanism.sound(1.0, 1.0, 1, 1), key=1, epochs=1)
    with pytest.raises(UsageError, match=named):
        step(0, 0, [compute])


def with_alpha(step: PrivateStep, alpha: list[float]) -> PrivateStep:
    step.alpha = torch.tensor(alpha)
    return step


# ---- Claims made with another library --------------------------------------------------------------------------------

WHOLE = {
    "sampler": "shuffle", "n": 60_000, "batch_size": 256, "epochs": 10, "noise_multiplier": 1.0, "delta": 1e-5,
    "micro_batch_size": 1, "claimed": 1.1,
}  # fmt: skip


def judged(**change):
    settings = {name: value for name, value in {**WHOLE, **change}.items() if value is not None}
    return check_claim(settings)


@pytest.mark.parametrize("missing", WHOLE)
@pytest.mark.parametrize("sampler", ["shuffle", "poisson"])
def test_a_setting_that_decides_is_asked_for_and_never_filled_in(missing, sampler):
    """In the case with a claimed epsilon of 3 and a true one of 67.8, only the noise was missing."""
    with pytest.raises(UsageError, match=f"not given.* --{missing.replace('_', '-')}"):
        judged(**{"sampler": sampler, missing: None})


@pytest.mark.parametrize(
    "wrong",
    [
        {"sampler": True}, {"sampler": "Poisson sampling"}, {"sampler": "fixed"}, {"n": 0}, {"batch_size": -1},
        {"epochs": -10}, {"epochs": 0}, {"noise_multiplier": 0}, {"noise_multiplier": float("nan")},
        {"noise_multiplier": float("inf")}, {"delta": 0}, {"delta": 1}, {"claimed": -1.0}, {"micro_batch_size": 0},
        {"batch_size": 60_001}, {"micro_batch_size": 257}, {"sampling_rate": 0.01}, {"steps": 2350},
    ],
    ids=str,
)  # fmt: skip
def test_every_setting_is_checked_alone_and_against_the_others(wrong):
    with pytest.raises(UsageError):
        judged(**wrong)


def test_what_holds_is_that_of_the_sampler_that_was_used():
    sampled = Schedule([1.0], [2350], 256 / 60_000)
    tight = PrivacyLossDistribution(sampled).epsilon(1e-5)
    assert judged(sampler="poisson", claimed=tight)[:3] == ("holds", tight, tight)
    shuffled = judged(claimed=tight)
    assert (shuffled.status, shuffled.guaranteed) == ("false", gdp_epsilon(10**0.5, 1e-5))
    kept, dropped = shuffled_at_least(1.0, 235, 9, 1e-5), shuffled_at_least(1.0, 234, 10, 1e-5, 1 - 234 * 256 / 60_000)
    assert shuffled.measured == min(kept, dropped) > 4.3  # unknown whether the last batch, of 96, was used
    assert judged(claimed=10.0).status == "not proven"
    assert judged(claimed=17.9).status == "holds"
    assert judged(sampler="poisson", claimed=0.7 * tight).status == "not proven"
    shared = judged(micro_batch_size=16, claimed=17.9)
    assert (shared.status, shared.guaranteed) == ("not proven", gdp_epsilon(2 * 10**0.5, 1e-5))
    assert judged(sampler="poisson", micro_batch_size=16, claimed=1e6).guaranteed is None
    by_rate = judged(batch_size=None, sampling_rate=256 / 60_000, epochs=None, steps=2340)
    assert by_rate[:4] == shuffled._replace(claimed=1.1)[:4]


@pytest.mark.parametrize("sampler", ["shuffle", "poisson"])
def test_at_a_delta_of_1_over_n_no_claim_holds(sampler):
    verdict = judged(sampler=sampler, delta=1 / 60_000, claimed=1e6)
    assert (verdict.status, verdict.guaranteed) == ("not proven", None)
    assert "1/n" in verdict.method


GIVEN = {"clip_norm": 1.0, "z0": 1.0, "num_devices": 4, "micro_batch_size": 4}


@pytest.mark.parametrize(
    ("build", "wrong"),
    [
        *((TrainConfig, {"corpus": "smart-home", name: "False"}) for name in ("private_seed", "as_printed", "frozen")),
        *(
            (TrainConfig, {"corpus": "smart-home", **wrong})
            for wrong in ({"z0": True}, {"delta": "1e-5"}, {"noise": 1})
        ),
        (TrainConfig, {"corpus": "smart-home", "num_devices": None}),
        *((Mechanism.sound, {**GIVEN, name: "False"}) for name in ("exact_noise", "sampling_rate")),
        *((Mechanism.sound, {**GIVEN, name: True}) for name in ("z0", "num_devices", "sampling_rate")),
        (ClassifierSettings, {"private_seed": "False"}),
        (ThreePhaseSettings, {"private_seed": "False"}),
    ],
)
def test_text_of_a_file_is_no_boolean_and_a_boolean_no_number(build, wrong):
    """If read as true, a private seed of "False" would make epsilon guaranteed."""
    with pytest.raises(UsageError, match="it must be"):
        build(**wrong)
