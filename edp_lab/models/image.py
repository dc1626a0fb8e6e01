"""The thesis' networks: a CNN with two convolutions, AlexNet, VGG-16, and a perceptron with 25 hidden units.

Sources: Papernot et al. 2021 (arXiv 2007.14191) for the CNN's sizes, Krizhevsky et al. 2012 for AlexNet, Simonyan and
Zisserman 2014 (arXiv 1409.1556) for VGG-16. Unlike in later versions, there is no batch normalisation: an example's
gradient would depend on other examples, and the running statistics would be a further release. There is no dropout
either, because with noisy gradients none of the networks overfits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from edp_lab.errors import UsageError
from edp_lab.models.factory import seeded
from edp_lab.models.ghost_clipping.bookkeeping import MicroBatches, Target, add_weighted, row_norms
from edp_lab.models.ghost_clipping.ops import PLAIN, Kept, MicroBatchOps, PlainOps

KINDS = ("cnn", "alexnet", "vgg", "mlp")
GAINS = {"relu": math.sqrt(2), "tanh": 5 / 3}
SCORED = 2**20  # pixels per inference batch
PATCHES = 2**20  # maximum number of entries in image patches that are materialised at a time
SHALLOW_GAIN = 0.6  # gain of shallow tanh networks; on MNIST with noise, half a point better than the usual 5/3
SMALL = 64  # pixels per side below which AlexNet and VGG are the small variants
TINY = 16  # pixels per side below which the CNN has 3 x 3 kernels


@dataclass(frozen=True)
class Stage:
    """Convolution with `filters` kernels, max pooling over `pool` x `pool` (0 for none), then the activation."""

    filters: int
    kernel: int
    stride: int = 1
    padding: int = 0
    pool: int = 0
    pool_stride: int = 2

    def after(self, size: Sequence[int]) -> tuple[int, int, int]:
        """Output size (C, H, W) for an input of `size` (C, H, W)."""
        height, width = ((n + 2 * self.padding - self.kernel) // self.stride + 1 for n in size[1:])
        if self.pool:
            height, width = ((n - self.pool) // self.pool_stride + 1 for n in (height, width))
        return self.filters, height, width


@dataclass(frozen=True)
class ImageBatch:
    """Batch of examples (B, ...) with their labels (B)."""

    images: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> ImageBatch:
        return ImageBatch(self.images.to(device), self.labels.to(device))


class ImageData:
    """Examples (n, ...) and labels (n) in memory; `batch` selects examples by index."""

    def __init__(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        self.images = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))
        self.labels = torch.from_numpy(np.ascontiguousarray(labels, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, numbers: Sequence[int] | NDArray[np.int64]) -> ImageBatch:
        chosen = torch.as_tensor(numbers, dtype=torch.long)
        return ImageBatch(self.images[chosen], self.labels[chosen])


class ImageClassifier(nn.Module):
    """Convolutional stages followed by dense layers, all with the same activation, and one logit per class.

    Args:
        shape: shape of one example, (C, H, W), or (D) without stages.
        stages: convolutional stages before the dense layers.
        units: sizes of the hidden dense layers.
        gain: gain of the initial weights, whose standard deviation is gain / sqrt(inputs per unit).
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        stages: Sequence[Stage],
        units: Sequence[int],
        activation: str,
        gain: float,
    ) -> None:
        super().__init__()
        self.shape, self.classes, self.stages, self.activation = tuple(shape), classes, tuple(stages), activation
        size, self.convolutions = self.shape, nn.ModuleList()
        for stage in stages:
            self.convolutions.append(nn.Conv2d(size[0], stage.filters, stage.kernel, stage.stride, stage.padding))
            size = stage.after(size)
        widths = [math.prod(size), *units, classes]
        self.dense = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        for layer in [*self.convolutions, *self.dense]:
            nn.init.normal_(layer.weight, std=gain / math.sqrt(layer.weight[0].numel()))
            nn.init.zeros_(layer.bias)

    def logits(self, x: Tensor, ops: PlainOps = PLAIN) -> Tensor:
        """Logits of a batch: (B, *shape) -> (B, classes)."""
        act = F.relu if self.activation == "relu" else torch.tanh
        if self.stages:
            x = (2 * x - 1).contiguous(memory_format=torch.channels_last)  # makes pooling three times as fast
        for stage, layer in zip(self.stages, self.convolutions, strict=True):
            x = convolve(x, layer, ops)
            if stage.pool:
                x = F.max_pool2d(x, stage.pool, stage.pool_stride)
            x = act(x)  # after pooling, which leaves fewer numbers; the result is the same
        x = x.flatten(1)
        layers: list[Any] = list(self.dense)
        *hidden, last = layers
        for layer in hidden:
            x = act(ops.linear(x, layer.weight, layer.bias))
        return ops.linear(x, last.weight, last.bias)

    def losses(self, batch: ImageBatch, ops: PlainOps = PLAIN, dropout_key: int | None = None) -> Tensor:
        """Cross entropy of each example: (B). There is no dropout, so the key is ignored."""
        return F.cross_entropy(self.logits(batch.images, ops), batch.labels, reduction="none")

    @torch.no_grad()
    def log_probabilities(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Log-probabilities of the classes: (n, *shape) -> (n, classes)."""
        parameter = next(self.parameters())
        x = torch.from_numpy(np.ascontiguousarray(images)).to(parameter.device, parameter.dtype)
        parts = x.split(max(1, SCORED // math.prod(self.shape)))
        return torch.cat([self.logits(part).log_softmax(1) for part in parts]).cpu().numpy()  # type: ignore[no-any-return]

    def predict(self, images: NDArray[np.float32]) -> NDArray[np.int64]:
        """Most probable class of each example: (n, *shape) -> (n)."""
        return self.log_probabilities(images).argmax(1)


def build_classifier(
    kind: str, shape: Sequence[int], classes: int, seed: int = 0, activation: str = "relu"
) -> ImageClassifier:
    """Build one of the thesis' networks, with weights drawn from `seed`.

    The thesis contradicts itself (T27). We build:

    * "cnn": two convolutions and two dense layers (3.5, not the three convolutions of 3.5.1). The thesis states no
      sizes, so we use those of Papernot et al. 2021. There are 16 filters of 8 x 8 and 32 of 4 x 4, both with stride 2
      and 2 x 2 max pooling with stride 1, and 32 dense units. The network has 26,010 parameters for 1 x 28 x 28. Images
      below 16 pixels per side get 3 x 3 filters with stride 1 and max pooling with stride 2.
    * "alexnet": five convolutions and three dense layers including the output (2.5.3; 3.5 has two), with the filters of
      Krizhevsky et al. on one GPU, but without their response normalisation and dropout.
    * "vgg": VGG-16's 13 convolutions, five poolings and three dense layers (2.5.2 and 3.5; chapter 5 has 19 layers).
    * "mlp": 25 hidden units (3.1.1), with one output per class; the thesis uses a single sigmoid for two classes.

    For images below 64 pixels per side, "alexnet" and "vgg" are small variants that can be trained on two cores. They
    have the same number and order of layers, but 3 x 3 filters with stride 1, a quarter (AlexNet) or an eighth (VGG, at
    most 32) of the filters, 64 dense units instead of 4,096, and no pooling below 4 pixels per side.

    Raises:
        UsageError: the kind is unknown, or the network does not support the shape.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown network {kind!r}: choose {' or '.join(KINDS)}")
    if classes < 2 or min(shape, default=0) < 1 or (kind != "mlp" and (len(shape) != 3 or min(shape[1:]) < 8)):
        raise UsageError(
            f"network {kind!r} does not support examples of shape {tuple(shape)} in {classes} classes: use at least "
            "two classes, and images (channels, height, width) of at least 8 x 8"
        )
    stages, units = _architecture(kind, min(shape[1:], default=0))
    shallow = kind in ("cnn", "mlp") and activation == "tanh"
    gain = SHALLOW_GAIN if shallow else GAINS[activation]
    with seeded(seed):
        return ImageClassifier(shape, classes, _fitting(stages, shape), units, activation, gain)


def _architecture(kind: str, side: int) -> tuple[list[Stage], tuple[int, ...]]:
    """Stages and dense units for images with `side` pixels per side."""
    if kind == "mlp":
        return [], (25,)
    if kind == "cnn" and side < TINY:
        return [Stage(n, 3, padding=1, pool=2) for n in (16, 32)], (32,)
    if kind == "cnn":
        return [Stage(16, 8, 2, 3, pool=2, pool_stride=1), Stage(32, 4, 2, pool=2, pool_stride=1)], (32,)
    if kind == "alexnet" and side < SMALL:
        sizes = ((24, 2), (64, 2), (96, 0), (96, 0), (64, 2))
        return [Stage(n, 3, padding=1, pool=pool) for n, pool in sizes], (64, 64)
    if kind == "alexnet":
        rest = [Stage(n, 3, padding=1, pool=pool) for n, pool in ((384, 0), (384, 0), (256, 3))]
        return [Stage(96, 11, 4, 2, pool=3), Stage(256, 5, padding=2, pool=3), *rest], (4096, 4096)
    blocks = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    share, units, most = (8, 64, 32) if side < SMALL else (1, 4096, 512)
    pools = [(min(n // share, most), 2 if k == count else 0) for n, count in blocks for k in range(1, count + 1)]
    return [Stage(n, 3, padding=1, pool=pool) for n, pool in pools], (units, units)


def _fitting(stages: Sequence[Stage], shape: Sequence[int]) -> list[Stage]:
    """Remove max pooling from stages if it would leave a single pixel, which has only padding for neighbours."""
    fitting: list[Stage] = []
    size = tuple(shape)
    for stage in stages:
        unpooled = replace(stage, pool=0)
        fits = stage.pool and min(unpooled.after(size)[1:]) >= 2 * stage.pool
        fitting.append(stage if fits else unpooled)
        size = fitting[-1].after(size)
    return fitting


def convolve(x: Tensor, layer: Any, ops: PlainOps) -> Tensor:
    """Convolve x (B, C, H, W) -> (B, O, H', W') by plain autograd, or while recording the factors of the gradients."""
    if not isinstance(ops, MicroBatchOps):
        return layer(x)  # type: ignore[no-any-return]
    parameters = layer.weight, layer.bias

    def back(d: Tensor, wanted: bool, x: Tensor, weight: Tensor) -> Tensor | None:
        ops.keep(ConvolutionRecord(parameters, x.detach(), d, layer.stride, layer.padding))
        return _convolution_backward(d, x, weight, layer.stride, layer.padding, 0) if wanted else None

    return Kept.apply(lambda: (layer(x), x, layer.weight), back, x, *parameters)  # type: ignore[no-any-return]


def _convolution_backward(d: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any, which: int) -> Tensor:
    """Gradient with respect to the input (`which` 0) or the weight (1)."""
    mask = [which == k for k in range(3)]
    given = d, x, weight, None, list(stride), list(padding), [1, 1], False, [0, 0], 1, mask
    return torch.ops.aten.convolution_backward(*given)[which]  # type: ignore[no-any-return]


@dataclass
class ConvolutionRecord:
    """Record of the convolution of x (B, C, H, W) with a weight (O, C, k, l) and a bias; d (B, O, H', W').

    The gradient of a micro-batch is the product of d and the patches of x, summed over all positions. If all
    micro-batches have the same number of examples, as in per-example DP-SGD, one batched product computes them all.
    """

    parameters: tuple[Tensor, ...]
    x: Tensor
    d: Tensor
    stride: Sequence[int]
    padding: Sequence[int]
    materialised: Tensor | None = None  # (M, O * k * l * C): patches follow the memory order of a channels-last x
    sums: Tensor | None = None

    def squared_norms(self, partition: MicroBatches) -> tuple[Tensor, ...]:
        count, weight = len(partition.sizes), self.parameters[0]
        self.materialised = partition.memory.take(self.d, count, weight.numel())
        squares = torch.zeros(count, dtype=torch.float64, device=self.d.device)
        ends = [0, *partition.sizes.cumsum(0).tolist()]
        most = max(1, PATCHES // (math.prod(self.d.shape[2:]) * weight[0].numel()))  # examples per chunk
        start = 0
        while start < count:
            stop = max(start + 1, bisect_right(ends, ends[start] + most) - 1)
            chunk = slice(start, stop)
            out = (
                self.d.new_empty(stop - start, weight.numel())
                if self.materialised is None
                else self.materialised[chunk]
            )
            self._form(partition.sizes[chunk], slice(ends[start], ends[stop]), out.view(len(out), len(weight), -1))
            squares[chunk] = row_norms(out).square()
            start = stop
        self.sums = partition.sums(None, self.d.sum((2, 3)))
        return squares, row_norms(self.sums).square()

    def add_sum(self, target: Target, partition: MicroBatches, factors: Tensor | None) -> None:
        weight, bias = (target(parameter) for parameter in self.parameters)
        if factors is not None and self.materialised is not None and self.sums is not None:
            if weight is not None:
                total = factors.to(self.d.dtype) @ self.materialised
                weight += total.view(len(weight), *weight.shape[2:], -1).permute(0, 3, 1, 2)
            add_weighted([bias], [self.sums], factors)
            return
        d = partition.weighted(self.d, factors, None)
        if weight is not None:
            weight += _convolution_backward(d, self.x, self.parameters[0].detach(), self.stride, self.padding, 1)
        if bias is not None:
            bias += d.sum((0, 2, 3))

    def _form(self, sizes: Tensor, examples: slice, out: Tensor) -> None:
        """Compute gradients (m, O, k * l * C) of micro-batches with `sizes` consecutive examples."""
        d = self.d[examples].permute(0, 2, 3, 1).flatten(1, 2)  # (B, T, O)
        (height, width), (down, right) = self.padding, self.stride
        windows = F.pad(self.x[examples], (width, width, height, height))
        windows = windows.unfold(2, self.parameters[0].shape[2], down).unfold(3, self.parameters[0].shape[3], right)
        # (B, C, H', W', k, l) -> (B, T, k * l * C)
        patches = windows.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
        shared = int(sizes[0])
        if shared and bool((sizes == shared).all()):
            d, patches = (factor.reshape(len(sizes), -1, factor.shape[2]) for factor in (d, patches))
            torch.bmm(d.mT, patches, out=out)
            return
        pairs = zip(d.split(sizes.tolist()), patches.split(sizes.tolist()), strict=True)
        for gradient, (output_gradient, inputs) in zip(out, pairs, strict=True):
            torch.mm(output_gradient.flatten(0, 1).T, inputs.flatten(0, 1), out=gradient)
