"""eDP-SGD's step under Accelerate, for any module: what `edp_lab.training.dp_step` defines, on this rank's share.

`PrivateStep` is what you use in a training loop of your own. It refuses modules that keep something of the examples
in a buffer, such as BatchNorm's running statistics.

**Layer scales** alpha_k, by which eDP-SGD divides each layer before it clips, come from

    public    gradients on public text, in a training loop of your own: cost nothing
    private   the first private gradient, as in the paper (`mean_scales`): no guarantee is left

The paper only says "proportional to the norm of gradient calculated on the first iteration". The constant is not
another parameter: step(s alpha, C, z) = step(alpha, s C, z / s). So the largest scale is 1 here.
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

THREADS = 4  # for exact noise: more share too little work
T = TypeVar("T")


class PrivateStep(FlatGradient):
    """eDP-SGD's step: clip, average, add noise, and leave the result in every ``.grad``.

    Args:
        model: its parameters with ``requires_grad`` are trained.
        epochs: how many are accounted for; a step of a later one is refused.
        key: 128 secret bits, the same in every process, see `edp_lab.privacy.csprng`.
        noise: "per-device" draws as many float noises as there are devices, "aggregate" one.
        micro_batches: fixed number over which the mean is taken, in all processes together; None: one per device.

    Attributes:
        alpha: (K) layer scales, see the head of this file, or None for all 1. From private gradients they are
            set by the first step; public ones are to be set before it.

    Guarantee: that of the mechanism, for what all processes together release, if each utterance is in one micro-batch
    of one process (with disjoint batches: once an epoch), and `step` numbers never repeat under one key.
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
            raise UsageError("a frozen parameter holds a gradient, which an optimizer would use: set its .grad to None")
        self.model, self.mechanism, self.epochs = model, mechanism, epochs
        self.alpha: Tensor | None = None
        self._steps: Counter[int] = Counter()  # by epoch, of this process
        self._clipped: Clipped | None = None  # what `release` may release, once
        self._kept = copies(not_trained(model))
        self._agree(fingerprint(key), mechanism, self.layout, noise, micro_batches)
        self.divisor = micro_batches or mechanism.num_devices
        self.devices = shard(mechanism.num_devices, self.rank, self.world)
        if mechanism.exact_noise and noise == "per-device":
            raise UsageError(
                "noise of each device is a float, and this mechanism promises exact noise: drop one of them"
            )
        self.noise: NoiseSource
        if mechanism.exact_noise:
            self.noise = ExactNoise(key, min(THREADS, torch.get_num_threads()))
        else:
            self.noise = FloatNoise(key, mechanism.num_devices if noise == "per-device" else 0)

    def clip(self, gradients: Sequence[MicroGradients]) -> Clipped:
        """Clip and average this process's gradients; the first ones of a run may first give the layer scales.

        No ``.grad`` is left: it would be a view of the memory in which the sum now forms, without noise.
        """
        if tuple(name for name, _ in trainable(self.model)) != self.layout.names:
            raise UsageError(
                "parameters were frozen or unfrozen after the step was built, so its noise misses some: build a new "
                "step, with a new key"
            )
        for p in self.parameters:
            p.grad = None
            if p.dtype != (built := self.gradient.dtype):
                raise UsageError(f"the step was built for {built} and the model is {p.dtype} now: convert it before")
        if self.mechanism.alpha is Alpha.PRIVATE and self.alpha is None:
            self.alpha = mean_scales(self, self.divisor, gradients)
        self._clipped = clip(
            gradients, self.mechanism, self.layout, self.alpha, self.divisor, self.gradient, self.world
        )
        return self._clipped

    def release(self, clipped: Clipped, epoch: int, step: int) -> Released:
        """Sum up over processes, add the noise, and leave the result in every ``.grad``; it lasts until the next step.

        UsageError: `clipped` is not what this step's `clip` returned last, so it is not what the processes sum up.
        """
        if clipped is not self._clipped:
            raise UsageError(
                "these gradients were not clipped by this step's last clip(...): hand over what that returned"
            )
        self._clipped = None
        self.sum_over_ranks()
        released = add_noise(clipped, epoch, step, self.noise)
        self.use(released.layers)
        return released

    def __call__(self, epoch: int, step: int, losses: Sequence[Callable[[], Tensor]]) -> Released:
        """One whole step of any module, in a loop over this process's micro-batches; then the optimizer may step.

        `losses`: for each micro-batch, what computes the losses of its examples, one number each.

        Raises:
            UsageError: more micro-batches, or more examples in one of them, than the mechanism declares; micro-batches
                of several under Poisson sampling; a buffer has changed; as `clip`.
        """
        self._count(epoch)
        declared, most = self.mechanism, math.ceil(self.divisor / self.mechanism.num_devices) * len(self.devices)
        if declared.sampling_rate is not None:
            if declared.micro_batch_size > 1:
                raise UsageError(
                    f"Poisson sampling with micro_batch_size={declared.micro_batch_size}: one example more would move "
                    "others to other micro-batches, which no epsilon covers; declare micro_batch_size=1"
                )
            most = most_micro_batches(most)  # as many as are drawn
        if len(losses) > most:
            raise UsageError(
                f"this process got {len(losses)} micro-batches: of {self.divisor} in a step on {declared.num_devices} "
                f"devices it may have {most}; give each process its own ones, as step.own(...) does"
            )
        checked = [partial(self._losses, compute) for compute in losses]
        trained = copies(dict(trainable(self.model)))
        clipped = self.clip([LoopGradient(self.parameters, compute, self.layout) for compute in checked])
        self._check_kept(self._kept | trained, not_trained(self.model) | dict(trainable(self.model)))
        return self.release(clipped, epoch, step)

    def _count(self, epoch: int) -> None:
        """UsageError for a step that is not among those accounted for."""
        check_whole("epoch", epoch, max(self._steps, default=0))
        self._steps[epoch] += 1
        if epoch >= self.epochs:
            raise UsageError(
                f"a step of epoch {epoch}, but {self.epochs} epochs are accounted for, from 0: account for more"
            )
        if self.mechanism.sampling_rate and self._steps[epoch] > (most := self.mechanism.releases_per_epoch):
            raise UsageError(f"step {self._steps[epoch]} of epoch {epoch}: {most} steps of an epoch are accounted for")

    def _losses(self, compute: Callable[[], Tensor]) -> Tensor:
        """The losses of a micro-batch, if they are of as many examples as the mechanism declares."""
        if not callable(compute):
            raise UsageError("losses of a micro-batch are given as numbers: give a function, such as lambda: loss(...)")
        losses, most = compute(), self.mechanism.micro_batch_size
        if losses.ndim != 1:
            raise UsageError(
                f"the losses of a micro-batch have the shape {tuple(losses.shape)}: give one number for each example, "
                'such as those of reduction="none"; with fewer, nobody can tell how many examples share a clip'
            )
        if not losses.requires_grad:
            raise UsageError("the losses do not depend on the model: compute them from it, without detach or no_grad")
        if len(losses) > most:
            raise UsageError(
                f"a micro-batch has {len(losses)} losses, and the mechanism declares micro_batch_size={most}: the "
                "noise would be too small for it; declare the larger size, or hand over smaller micro-batches"
            )
        return losses

    def _check_kept(self, before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
        """Raise UsageError if a tensor of the model has changed: the change would get no noise."""
        for name, tensor in now.items():
            kept = before.get(name)
            if kept is None or kept.shape != tensor.shape or not torch.equal(kept.nan_to_num(), tensor.nan_to_num()):
                raise UsageError(
                    f"the losses change {name!r}: what a layer keeps of the examples is not covered by any noise; put "
                    "the layer into eval mode, or use one that keeps nothing, such as GroupNorm or LayerNorm"
                )

    def noise_stds(self, epoch: int) -> list[float]:
        """Standard deviation of the noise on the released gradient, for each parameter."""
        return noise_stds(self.mechanism, epoch, self.alpha, self.divisor, len(self.parameters))

    def own(self, micro_batches: Sequence[T]) -> Sequence[T]:
        """The micro-batches of this process, out of all that a step has: equally many for each device, or nearly so."""
        devices, count = self.devices, len(micro_batches)
        start, stop = (place * count // self.mechanism.num_devices for place in (devices.start, devices.stop))
        return micro_batches[start:stop]

    def _agree(self, *settings: object) -> None:
        """UsageError on every rank, if these are not the same on all: each would release noise of its own."""
        if self.world > 1 and any(other != settings for other in gather_object([settings])):
            raise UsageError("the processes have different keys, mechanisms or models: give all of them the same")


def not_trained(model: nn.Module) -> dict[str, Tensor]:
    """Part of a model that no noise covers: buffers, frozen parameters and tensors in attributes, by name."""
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
    """alpha_k (K): norm of the devices' mean gradient (P) per layer, largest 1; a layer without gradient gets 1."""
    norms = layer_norms(gradient[None], layout)
    check_finite(norms, layout)
    if norms.max() == 0:
        return torch.ones_like(norms[0])
    scales = norms[0] / norms.max()
    return torch.where(scales > 0, scales.clamp_min(SMALLEST_ALPHA), torch.ones_like(scales))


def mean_scales(flat: FlatGradient, divisor: int, gradients: Sequence[MicroGradients]) -> Tensor:
    """alpha (K) from the mean of these gradients of all ranks, without clipping or noise.

    `divisor`: the fixed number of micro-batches over which the mean is taken.
    """
    flat.gradient.zero_()
    for some in gradients:
        some.add_weighted_sum(torch.ones(len(some.norms()), device=flat.gradient.device), flat.gradient)
    flat.sum_over_ranks()
    return layer_scales(flat.gradient.div_(divisor), flat.layout)
