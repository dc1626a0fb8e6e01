"""The eDP-SGD step for any module under Accelerate: `edp_lab.training.dp_step` on this rank's micro-batches.

Use `PrivateStep` in your own training loop. It refuses modules that store information about the examples in a buffer,
such as BatchNorm's running statistics.

**Layer scales** alpha_k, by which eDP-SGD divides each layer before clipping, come from

    public    gradients on public text, in your own training loop; they do not change epsilon
    private   the first private gradient, as in the paper (`mean_scales`); the run then has no guarantee

The paper says only "proportional to the norm of gradient calculated on the first iteration". The constant is not an
additional parameter, because step(s alpha, C, z) = step(alpha, s C, z / s), so we set the largest scale to 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from edp_lab.errors import UsageError, check_whole
from edp_lab.privacy import Alpha, Mechanism
from edp_lab.training.batches import shard
from edp_lab.training.config import NOISES
from edp_lab.training.dp_step import SMALLEST_ALPHA, Clipped, Released, add_noise, clip, noise_stds
from edp_lab.training.gradients import (
    FlatGradient,
    Layout,
    LoopGradient,
    MicroGradients,
    check_finite,
    layer_norms,
    most_micro_batches,
    trainable,
)
from edp_lab.training.ledger import fingerprint
from edp_lab.training.noise import ExactNoise, FloatNoise, NoiseSource

THREADS = 4  # for exact noise; with more threads, each would have too little work
T = TypeVar("T")


class PrivateStep(FlatGradient):
    """The eDP-SGD step: clip, average, add noise, and store the result in every ``.grad``.

    Args:
        model: the module; its parameters with ``requires_grad`` are trained.
        epochs: number of epochs accounted for; steps of later epochs are refused.
        key: 128 secret bits, the same in every process (see `edp_lab.privacy.csprng`).
        noise: "per-device" for one draw of float noise per device, "aggregate" for a single draw.
        micro_batches: fixed number of all processes' micro-batches, the divisor of the sum; None for one per device.

    Attributes:
        alpha: (K) layer scales (see the top of this file), or None if all are 1. The first step sets private scales;
            you must set public scales before the first step.

    Guarantee: that of the mechanism, for the releases of all processes together, if each utterance is in one
    micro-batch of one process (with disjoint batches: once per epoch), and no `step` number is reused with a key.
    """

    def __init__(
        self,
        model: nn.Module,
        mechanism: Mechanism,
        key: int,
        epochs: int,
        accelerator: Accelerator | None = None,
        noise: str = "aggregate",
        micro_batches: int | None = None,
        more: int = 0,
    ) -> None:
        check_whole("key", key, 0)
        super().__init__(trainable(model), accelerator, more)
        check_whole("number of epochs", epochs, 1)
        check_whole("number of micro-batches", 1 if micro_batches is None else micro_batches, 1)
        if noise not in NOISES:
            raise UsageError(f"unknown noise {noise!r}: choose {' or '.join(NOISES)}")
        if any(p.grad is not None for p in model.parameters() if not p.requires_grad):
            raise UsageError("a frozen parameter has a gradient, which an optimizer would use: set its .grad to None")
        self.model, self.mechanism, self.epochs = model, mechanism, epochs
        self.alpha: Tensor | None = None
        self._steps: Counter[int] = Counter()  # steps of this process per epoch
        self._clipped: Clipped | None = None  # the sum that `release` may release, once
        self._kept = copies(not_trained(model))
        given = [fingerprint(key), mechanism, self.layout, noise, micro_batches]
        agree(accelerator, given, "keys, mechanisms or models: give all of them the same")
        self.divisor = micro_batches or mechanism.num_devices
        self.devices = shard(mechanism.num_devices, self.rank, self.world)
        if mechanism.exact_noise and noise == "per-device":
            raise UsageError(
                "per-device noise is floating-point, but this mechanism requires exact noise: drop one of them"
            )
        self.noise: NoiseSource
        if mechanism.exact_noise:
            self.noise = ExactNoise(key, min(THREADS, torch.get_num_threads()))
        else:
            self.noise = FloatNoise(key, mechanism.num_devices if noise == "per-device" else 0)

    def clip(self, gradients: Sequence[MicroGradients]) -> Clipped:
        """Clip and average this process's gradients; in the first step of a run, first set private layer scales.

        Every ``.grad`` is set to None, because it would be a view of the sum, which does not have noise yet.
        """
        if tuple(name for name, _ in trainable(self.model)) != self.layout.names:
            raise UsageError(
                "parameters were frozen or unfrozen after the step was built, so some would get no noise: build a new "
                "step with a new key"
            )
        for p in self.parameters:
            p.grad = None
            if p.dtype != (built := self.gradient.dtype):
                raise UsageError(f"the step was built for {built}, but the model is now {p.dtype}: convert it first")
        if self.mechanism.alpha is Alpha.PRIVATE and self.alpha is None:
            self.alpha = mean_scales(self, self.divisor, gradients)
        self._clipped = clip(
            gradients, self.mechanism, self.layout, self.alpha, self.divisor, self.gradient, self.world
        )
        return self._clipped

    def release(self, clipped: Clipped, epoch: int, step: int) -> Released:
        """Sum over processes, add noise, and store the result in every ``.grad``, valid until the next step.

        Raises UsageError if `clipped` is not the last result of `clip`, because the processes would not sum it.
        """
        if clipped is not self._clipped:
            raise UsageError(
                "these gradients were not clipped by this step's last clip(...): pass the result of that call"
            )
        self._clipped = None
        self.sum_over_ranks()
        released = add_noise(clipped, epoch, step, self.noise)
        self.use(released.layers)
        return released

    def __call__(self, epoch: int, step: int, losses: Sequence[Callable[[], Tensor]]) -> Released:
        """Take one full step for any module, looping over this process's micro-batches. Call the optimizer afterwards.

        `losses`: for each micro-batch, a function that returns its examples' losses, one number per example.

        Raises:
            UsageError: there are more micro-batches, or more examples in one, than the mechanism declares; with Poisson
                sampling, a micro-batch has several examples; a buffer has changed; or `clip` raises it.
        """
        self._count(epoch)
        declared, most = self.mechanism, math.ceil(self.divisor / self.mechanism.num_devices) * len(self.devices)
        if declared.sampling_rate is not None:
            if declared.micro_batch_size > 1:
                raise UsageError(
                    f"Poisson sampling with micro_batch_size={declared.micro_batch_size}: one more example would move "
                    "others to other micro-batches, which no epsilon covers; declare micro_batch_size=1"
                )
            most = most_micro_batches(most)  # the number of examples drawn varies
        if len(losses) > most:
            raise UsageError(
                f"this process got {len(losses)} micro-batches, but of {self.divisor} in a step on "
                f"{declared.num_devices} devices it may have only {most}: pass only its own, as from step.own(...)"
            )
        checked = [partial(self._losses, compute) for compute in losses]
        trained = copies(dict(trainable(self.model)))
        clipped = self.clip([LoopGradient(self.parameters, compute, self.layout) for compute in checked])
        self._check_kept(self._kept | trained, not_trained(self.model) | dict(trainable(self.model)))
        return self.release(clipped, epoch, step)

    def _count(self, epoch: int) -> None:
        """Count a step of `epoch`; raise UsageError if it is not accounted for."""
        check_whole("epoch", epoch, max(self._steps, default=0))
        self._steps[epoch] += 1
        if epoch >= self.epochs:
            raise UsageError(
                f"a step of epoch {epoch}, but only {self.epochs} epochs are accounted for (from 0): account for more"
            )
        if self.mechanism.sampling_rate and self._steps[epoch] > (most := self.mechanism.releases_per_epoch):
            raise UsageError(f"step {self._steps[epoch]} of epoch {epoch}: only {most} per epoch are accounted for")

    def _losses(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return the losses of a micro-batch, one per example; raise UsageError if the mechanism declares fewer."""
        if not callable(compute):
            raise UsageError("losses of a micro-batch are given as numbers: give a function, such as lambda: loss(...)")
        losses, most = compute(), self.mechanism.micro_batch_size
        if losses.ndim != 1:
            raise UsageError(
                f"the losses of a micro-batch have the shape {tuple(losses.shape)}: give one number for each example, "
                'such as with reduction="none"; otherwise, the number of examples clipped together is unknown'
            )
        if not losses.requires_grad:
            raise UsageError("the losses do not depend on the model: compute them from it, without detach or no_grad")
        if len(losses) > most:
            raise UsageError(
                f"a micro-batch has {len(losses)} losses, but the mechanism declares micro_batch_size={most}: the "
                "noise would be too small; declare the larger size, or pass smaller micro-batches"
            )
        return losses

    def _check_kept(self, before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
        """Raise UsageError if a tensor of the model has changed, because the change would get no noise."""
        for name, tensor in now.items():
            kept = before.get(name)
            if kept is None or kept.shape != tensor.shape or not torch.equal(kept.nan_to_num(), tensor.nan_to_num()):
                raise UsageError(
                    f"the losses change {name!r}: no noise covers data that a layer stores about the examples; put the "
                    "layer into eval mode, or use a layer that stores nothing, such as GroupNorm or LayerNorm"
                )

    def noise_stds(self, epoch: int) -> list[float]:
        """Return the standard deviation of the noise on the released gradient for each parameter tensor."""
        return noise_stds(self.mechanism, epoch, self.alpha, self.divisor, len(self.parameters))

    def own(self, micro_batches: Sequence[T]) -> Sequence[T]:
        """Return this process's share of a step's micro-batches, which are spread evenly over the devices."""
        devices, count = self.devices, len(micro_batches)
        start, stop = (place * count // self.mechanism.num_devices for place in (devices.start, devices.stop))
        return micro_batches[start:stop]


def agree(accelerator: Accelerator | None, value: object, what: str) -> None:
    """Raise UsageError on every rank if `value` differs between them; with other keys, they would add other noise."""
    several = accelerator is not None and accelerator.num_processes > 1
    if several and any(other != value for other in gather_object([value])):
        raise UsageError(f"the processes have different {what}")


def not_trained(model: nn.Module) -> dict[str, Tensor]:
    """Return, by name, tensors of a model that no noise covers: buffers, frozen parameters, tensors in attributes."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    return {
        name: tensor.detach()
        for prefix, module in model.named_modules()
        for own, tensor in {**vars(module), **module._parameters, **module._buffers}.items()
        if isinstance(tensor, Tensor) and (name := f"{prefix}.{own}".strip(".")) not in trained
    }


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


# ---- Layer scales ----------------------------------------------------------------------------------------------------


def layer_scales(gradient: Tensor, layout: Layout) -> Tensor:
    """Return alpha_k (K): the norm of the mean gradient (P) per layer, scaled to maximum 1; zero gradients get 1."""
    norms = layer_norms(gradient[None], layout)
    check_finite(norms, layout)
    if norms.max() == 0:
        return torch.ones_like(norms[0])
    scales = norms[0] / norms.max()
    return torch.where(scales > 0, scales.clamp_min(SMALLEST_ALPHA), torch.ones_like(scales))


def mean_scales(flat: FlatGradient, divisor: int, gradients: Sequence[MicroGradients]) -> Tensor:
    """Return alpha (K) from the mean of all ranks' gradients, without clipping or noise.

    `divisor`: the fixed number of micro-batches, the divisor of the sum.
    """
    flat.gradient.zero_()
    for some in gradients:
        some.add_weighted_sum(torch.ones(len(some.norms()), device=flat.gradient.device), flat.gradient)
    flat.sum_over_ranks()
    return layer_scales(flat.gradient.div_(divisor), flat.layout)
