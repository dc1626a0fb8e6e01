"""The eDP-SGD step: micro-batch gradients in, one released gradient out.

    scale     g_i,k / alpha_k                 over layers k
    clip      min(1, C / ||.||_2)             over the whole scaled gradient
    rescale   alpha_k (.)
    noise     as `Mechanism.noise_std` says
    mean      over the devices' fixed number of micro-batches

Scaling and scaling back cancel but for the clip factor, so a micro-batch contributes its gradient times one number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from edp_lab.errors import UsageError
from edp_lab.models.ghost_clipping.bookkeeping import row_norms
from edp_lab.models.ghost_clipping.ops import column_slices
from edp_lab.privacy import Mechanism, Variant
from edp_lab.training.noise import Span, add_scaled

# The sound clip stays below C by more than float32 can round within one block of a norm, and in one product.
CLIP_MARGIN = 1 - 2.0**-16
SMALLEST_ALPHA = 2.0**-40  # below, a float32 gradient that matters after division by alpha underflows before it
Factors = Callable[[Tensor], Tensor]  # norms (M, K) -> factors (M)


class MicroGradients(Protocol):
    """The gradients of M micro-batches, in whatever form; see `edp_lab.training.gradients`."""

    def clipped_sum(self, out: Tensor, factors_of: Factors) -> tuple[Tensor, Tensor, float]:
        """out (P) times a scale = sum_m f_m g_m, f = factors_of(norms); gives norms (M, K), float64, f (M), the scale.

        Whoever adds the noise multiplies by the scale in the same pass through memory.
        """
        ...


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
    """L2 norm of every gradient in every layer: (M, P) -> (M, K), float64."""
    return torch.stack([row_norms(gradients[:, columns]) for columns in layout.columns], dim=1)


def check_finite(norms: Tensor, layout: Layout) -> None:
    """
    Raises:
        UsageError: a gradient is NaN or infinite (or its square is); names the layer.
    """
    if not torch.isfinite(norms).all():
        layer = layout.names[int((~torch.isfinite(norms)).any(0).nonzero()[0])]
        raise UsageError(
            f"the gradient of layer {layer!r} is not finite: min(1, C/NaN) is no clip; lower --lr or check the corpus"
        )


def layer_scales(gradient: Tensor, layout: Layout) -> Tensor:
    """alpha_k (K): norm of the devices' mean gradient (P) per layer, largest 1; a layer without gradient gets 1.

    The paper only says "proportional to the norm of gradient calculated on the first iteration". The constant is no
    further knob: step(s alpha, C, z) = step(alpha, s C, z / s).
    """
    norms = layer_norms(gradient[None], layout)
    check_finite(norms, layout)
    if norms.max() == 0:
        return torch.ones_like(norms[0])
    scales = norms[0] / norms.max()
    return torch.where(scales > 0, scales.clamp_min(SMALLEST_ALPHA), torch.ones_like(scales))


@dataclass(frozen=True)
class Released:
    """One step's output and what the panels show of it.

    Attributes:
        gradient: (P) the released mean gradient; on one of several ranks, its share of it.
        clip_factors: (M) in (0, 1], what each micro-batch's gradient was multiplied by. Not private.
        norms: (M, K) unclipped, unscaled gradient norms. Not private.
    """

    gradient: Tensor
    clip_factors: Tensor
    norms: Tensor


def release(
    mechanism: Mechanism,
    epoch: int,
    gradients: MicroGradients,
    layout: Layout,
    alpha: Tensor | None,
    noise: Tensor | Callable[[Sequence[Span]], None],
    divisor: int | None = None,
    out: Tensor | None = None,
) -> Released:
    """One eDP-SGD step.

    Args:
        gradients: mean gradient of each micro-batch.
        alpha: (K) layer scales with maximum 1, or None for all 1.
        noise: (P) standard normal draws for the sum over all micro-batches, from `edp_lab.training.noise`; or what
            scales the gradient and adds them, once it is there.
        divisor: the fixed number of micro-batches in a step over which the mean is taken; None: one per device.
        out: (P) where the result goes; None: new memory like the noise's.

    Guarantee: as judged by `edp_lab.privacy.judge` for this mechanism, if `noise` is fresh, independent of the data
    and secret, and every utterance is in at most one micro-batch. Up to float32 rounding of clip and noise. On one of
    several ranks, `gradients` and `noise` are its share, and the guarantee is that of the sum over ranks.

    Raises:
        UsageError: a gradient is not finite, or a layer scale is too small for float32 or larger than judged.
    """
    result = torch.empty_like(noise) if out is None and isinstance(noise, Tensor) else out
    assert result is not None
    divisor = divisor or mechanism.num_devices
    norms, factors, scale = gradients.clipped_sum(
        result, lambda norms: clip_factors(mechanism, norms, layout, alpha) / divisor
    )
    stds = noise_stds(mechanism, epoch, alpha, divisor, len(layout.names))
    if len(set(stds)) == 1:
        spans = [Span(slice(0, layout.size), stds[0], result, scale)]
    else:
        spans = [Span(columns, std, result[columns], scale) for columns, std in zip(layout.columns, stds, strict=True)]
    if isinstance(noise, Tensor):
        add_scaled(noise, spans)
    else:
        noise(spans)
    return Released(result, (factors * divisor).clamp_max(1), norms)


def release_whole(
    mechanism: Mechanism,
    epoch: int,
    gradients: Sequence[Tensor],
    lookups: Mapping[int, tuple[Tensor, Tensor]],
    layout: Layout,
    alpha: Tensor | None,
    noise: Callable[[Sequence[Span]], None],
) -> None:
    """The step of a single device that is a single process: its gradients (K, of any shape) are released in place.

    What `release` does, without a flat copy. Guarantee and errors: as there.

    Args:
        lookups: of those of the K that are tables, numbers of the rows that were read, each once (n), and their
            gradient (n, D). What stands in ``gradients`` for them is overwritten.
    """
    flat = [gradient.view(-1) for gradient in gradients]
    measured = [lookups[k][1].flatten() if k in lookups else gradient for k, gradient in enumerate(flat)]
    norms = torch.stack([row_norms(gradient[None]) for gradient in measured], dim=1)
    factor = float(clip_factors(mechanism, norms, layout, alpha)[0])
    stds = noise_stds(mechanism, epoch, alpha, 1, len(flat))
    scales = [0.0 if k in lookups else factor for k in range(len(flat))]
    noise([Span(*one) for one in zip(layout.columns, stds, flat, scales, strict=True)])
    for k, (read, rows) in lookups.items():
        gradients[k].index_add_(0, read, rows, alpha=factor)


def noise_stds(mechanism: Mechanism, epoch: int, alpha: Tensor | None, divisor: int, layers: int) -> list[float]:
    """Standard deviation of the noise on the released mean in each of K layers; sound, it is scaled back by alpha."""
    std = mechanism.noise_std(epoch) / divisor
    scaled_back = mechanism.variant is Variant.SOUND and alpha is not None
    return [std * scale for scale in alpha.tolist()] if scaled_back else [std] * layers  # type: ignore[union-attr]


def clip_factors(mechanism: Mechanism, norms: Tensor, layout: Layout, alpha: Tensor | None) -> Tensor:
    """min(1, C / ||g_m / alpha||) for each micro-batch: norms (M, K) -> (M), float64.

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
    check_finite(norms, layout)
    total = torch.linalg.vector_norm(norms if alpha is None else norms / alpha, dim=1)
    bound = mechanism.clip_norm * (CLIP_MARGIN if mechanism.variant is Variant.SOUND else 1.0)
    return (bound / total.clamp_min(1e-300)).clamp_max(1.0)
