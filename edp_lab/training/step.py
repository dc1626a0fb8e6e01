"""The eDP-SGD step: N micro-batch gradients in, one released gradient out.

    scale     g_i,k / alpha_k                 over layers k
    clip      min(1, C / ||.||_2)             over the whole scaled gradient
    rescale   alpha_k (.)
    noise     as `Mechanism.noise_std` says
    mean      over the N devices

Scaling and scaling back cancel but for the clip factor, so one device's contribution is its gradient times one
number, and the sum over devices is a single matrix-vector product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from edp_lab.errors import UsageError
from edp_lab.models.ops import column_slices
from edp_lab.privacy import Mechanism, Variant
from edp_lab.privacy.noise import Purpose, stream

# The sound clip stays below C by more than float32 can round within one block of a norm, and in one product.
CLIP_MARGIN = 1 - 2.0**-16
SMALLEST_ALPHA = 2.0**-40  # below, a float32 gradient that matters after division by alpha underflows before it
BLOCK = 1024  # numbers summed in float32: over millions of them the sum can be off by a percent, and the clip with it


@dataclass(frozen=True)
class Layout:
    """Names, shapes and columns of the trainable parameters in a flat gradient of P numbers."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    columns: tuple[slice, ...]

    @classmethod
    def of(cls, parameters: Sequence[tuple[str, nn.Parameter]]) -> Layout:
        tensors = [p for _, p in parameters]
        return cls(
            tuple(name for name, _ in parameters), tuple(p.shape for p in tensors), tuple(column_slices(tensors))
        )

    @property
    def size(self) -> int:
        return self.columns[-1].stop


def layer_norms(gradients: Tensor, layout: Layout) -> Tensor:
    """L2 norm of every device's gradient in every layer: (N, P) -> (N, K), float64.

    Raises:
        UsageError: a gradient is NaN or infinite (or its square is); names the layer.
    """
    norms = torch.stack([_row_norms(gradients[:, columns]) for columns in layout.columns], dim=1)
    if not torch.isfinite(norms).all():
        layer = layout.names[int((~torch.isfinite(norms)).any(0).nonzero()[0])]
        raise UsageError(
            f"the gradient of layer {layer!r} is not finite: min(1, C/NaN) is no clip; lower --lr or check the corpus"
        )
    return norms


def _row_norms(x: Tensor) -> Tensor:
    """L2 norm of each row: (N, n) -> (N), float64; squares are summed in float32 within a block, in float64 beyond."""
    blocks = x.shape[1] // BLOCK
    if blocks == 0:
        return torch.linalg.vector_norm(x, dim=1).double()
    whole = torch.linalg.vector_norm(x[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)), dim=2).double()
    rest = torch.linalg.vector_norm(x[:, blocks * BLOCK :], dim=1).double()
    return torch.hypot(torch.linalg.vector_norm(whole, dim=1), rest)


def layer_scales(gradients: Tensor, layout: Layout) -> Tensor:
    """alpha_k (K): norm of the devices' mean gradient per layer, largest 1; a layer without gradient gets 1.

    The paper only says "proportional to the norm of gradient calculated on the first iteration". The constant is no
    further knob: step(s alpha, C, z) = step(alpha, s C, z / s).
    """
    norms = layer_norms(gradients.mean(0, keepdim=True), layout)[0]
    if norms.max() == 0:
        return torch.ones_like(norms)
    scales = norms / norms.max()
    return torch.where(scales > 0, scales.clamp_min(SMALLEST_ALPHA), torch.ones_like(scales))


@dataclass(frozen=True)
class Released:
    """One step's output and what the panels show of it.

    Attributes:
        gradient: (P) the released mean gradient.
        clip_factors: (N) in (0, 1], what each device's gradient was multiplied by. Not private.
        norms: (N, K) unclipped, unscaled gradient norms. Not private.
    """

    gradient: Tensor
    clip_factors: Tensor
    norms: Tensor


def release(
    mechanism: Mechanism, epoch: int, gradients: Tensor, layout: Layout, alpha: Tensor | None, noise: Tensor
) -> Released:
    """One eDP-SGD step.

    Args:
        gradients: (N, P) mean gradient of each device's micro-batch; zeros for an empty one.
        alpha: (K) layer scales with maximum 1, or None for all 1.
        noise: (P) standard normal draws for the sum over devices, from `standard_noise`.

    Guarantee: as judged by `edp_lab.privacy.judge` for this mechanism, if `noise` is fresh, independent of the data
    and secret, and every utterance is in at most one micro-batch. Up to float32 rounding of clip and noise.

    Raises:
        UsageError: a gradient is not finite, or a layer scale is too small for float32 or larger than judged.
    """
    if alpha is not None and not float(alpha.min()) >= SMALLEST_ALPHA:
        raise UsageError(f"a layer scale alpha is {float(alpha.min())}: it must be at least {SMALLEST_ALPHA:.1e}")
    if alpha is not None and not float(alpha.max()) <= mechanism.alpha_max * (1 + 1e-6):
        raise UsageError(
            f"a layer scale alpha is {float(alpha.max())}, above the {mechanism.alpha_max} by which the mechanism is "
            "judged: normalise the scales"
        )
    norms = layer_norms(gradients, layout)
    scaled = norms if alpha is None else norms / alpha
    total = torch.linalg.vector_norm(scaled, dim=1)
    bound = mechanism.clip_norm * (CLIP_MARGIN if mechanism.variant is Variant.SOUND else 1.0)
    factors = (bound / total.clamp_min(1e-300)).clamp_max(1.0)
    result = factors.to(gradients.dtype) @ gradients
    std = mechanism.noise_std(epoch)
    if mechanism.variant is Variant.SOUND and alpha is not None:
        for columns, scale in zip(layout.columns, alpha.tolist(), strict=True):
            result[columns].add_(noise[columns], alpha=std * scale)
    else:
        result.add_(noise, alpha=std)
    return Released(result.div_(mechanism.num_devices), factors, norms)


def standard_noise(
    key: int, step: int, size: int, num_devices: int, per_device: bool = False, out: Tensor | None = None
) -> Tensor:
    """(size) standard normal numbers for the sum over devices at one step, a function of (key, step) alone.

    One aggregate draw, or (`per_device`) the scaled sum of N draws, one from each device's own stream: the same
    distribution, and the same numbers as N real ranks produce.
    """
    noise = torch.empty(size) if out is None else out
    if not per_device:
        stream(key, Purpose.NOISE, step).standard_normal(dtype=np.float32, out=noise.numpy())
        return noise
    noise.zero_()
    for device in range(num_devices):
        noise += device_noise(key, step, device, size)
    return noise.div_(num_devices**0.5)


def device_noise(key: int, step: int, device: int, size: int) -> Tensor:
    """(size) standard normal numbers of one device at one step."""
    return torch.from_numpy(stream(key, Purpose.NOISE, step, device).standard_normal(size, dtype=np.float32))
