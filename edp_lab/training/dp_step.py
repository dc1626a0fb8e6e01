"""The eDP-SGD step, from micro-batch gradients to one released gradient: `clip`, then `add_noise`.

    Layout           names and columns of the layers in a flat gradient                 `edp_lab.training.gradients`
    MicroGradients   the gradients of micro-batches, without a guarantee                `edp_lab.training.gradients`
    Clipped          the mean of the clipped gradients, which one utterance moves by at most `sensitivity()`
    NoiseSource      standard normal noise; each step's draw is used only once          `edp_lab.training.noise`
    Released         the mean plus noise, with the guarantee that `edp_lab.privacy.judge` computes

    scale     g_i,k / alpha_k                 over layers k
    clip      min(1, C / ||.||_2)             over the whole scaled gradient
    rescale   alpha_k (.)
    mean      over the devices' fixed number of micro-batches
    noise     with standard deviation `Mechanism.noise_std` / that number; if sound, times alpha_k in layer k

Scaling and rescaling cancel except for the clip factor, so a micro-batch contributes its gradient times one number.

`edp_lab.training.gradients` proves that the sensitivity bound holds despite floating-point rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, Alpha, Mechanism, Variant
from edp_lab.training.gradients import (
    HEADROOM,
    Layout,
    MicroGradients,
    SingleMicroBatch,
    check_finite,
    headroom,
    most_micro_batches,
)
from edp_lab.training.noise import GivenNoise, NoiseSource

SMALLEST_SQUARE = 2.0**-126  # smaller squares may become 0 in float32
SMALLEST_ALPHA = 2.0**-40  # with a smaller alpha, gradients that are large after division by it may underflow


@dataclass(frozen=True)
class Clipped:
    """Mean of a step's clipped gradients, returned by `clip` and required by `add_noise`.

    Guarantee: an utterance in at most one micro-batch moves the mean by at most `sensitivity()` (L2). In the sound
    variant, this is true of the numbers as computed, as far as `edp_lab.training.gradients` proves it, after each layer
    is divided by alpha_k, because the noise is added there.
    """

    mechanism: Mechanism
    layout: Layout
    alpha: Tensor | None  # (K)
    divisor: int  # the fixed number of micro-batches over which the mean is taken
    layers: Sequence[Tensor]  # K vectors or sparse tables (V, D); times `scale`, they are the mean or this rank's share
    scale: float  # clip factor / divisor if not yet applied, otherwise 1
    memory: Tensor  # (P), buffer for sparse layers, which noise makes dense
    ranks: int  # number of ranks whose shares make up the mean

    def sensitivity(self, adjacency: Adjacency | str | None = None) -> float:
        """Sensitivity of the mean; see `Mechanism.sensitivity`."""
        return self.mechanism.sensitivity(adjacency) / self.divisor


@dataclass(frozen=True)
class Released:
    """A step's output, the noisy mean gradient, which is valid until the next step."""

    layers: Sequence[Tensor]  # K flat tensors

    @property
    def gradient(self) -> Tensor:
        """All layers, concatenated: (P)."""
        return torch.cat(list(self.layers))


def clip(
    gradients: Sequence[MicroGradients],
    mechanism: Mechanism,
    layout: Layout,
    alpha: Tensor | None,
    divisor: int,
    out: Tensor,
    ranks: int = 1,
) -> Clipped:
    """Scale, clip, rescale and average the gradients of all micro-batches: the step without its noise.

    Args:
        alpha: (K) layer scales with maximum 1, or None for all 1.
        divisor: the fixed number of micro-batches in a step over which the mean is taken.
        out: (P) memory for the result.
        ranks: number of processes whose sums are added.

    Guarantee: that of `Clipped`, for any gradients. Depending on the norm of g / alpha, a micro-batch

        that is missing or empty   contributes 0, with the same divisor
        with norm 0 to C           is unchanged (sound: up to C minus `headroom`, which absorbs rounding)
        with a larger norm         is clipped to C
        with NaN or infinity       contributes 0, because a refusal would reveal it (as printed: is refused)

    Raises:
        UsageError: a layer scale is too small for float32, exceeds `Mechanism.alpha_max`, or is given although alpha
            is "none"; there are far too many micro-batches; or, as printed, a gradient is not finite.
    """
    if alpha is not None and (mechanism.alpha is Alpha.NONE or alpha.shape != (len(layout.names),)):
        raise UsageError(
            f"{len(alpha)} layer scales for {len(layout.names)} layers and a mechanism with alpha {mechanism.alpha}: "
            "give one scale for each layer, and declare where they come from"
        )
    sound = mechanism.variant is Variant.SOUND
    room, most = (headroom(divisor, ranks), most_micro_batches(divisor)) if sound else (0.0, math.inf)
    # One group of micro-batches is summed in place. In float32, the rounding error of a sum of sums would grow faster
    # than the batch, so several groups are summed in float64.
    total = out if len(gradients) == 1 else torch.zeros_like(out, dtype=torch.float64)
    layers, scale, count = [out[columns] for columns in layout.columns], 1.0, 0
    for group in gradients:
        norms = group.norms()
        count += len(norms)
        if count > most:
            raise UsageError(f"a step of {divisor:,} micro-batches got {count:,} or more: it may have at most {most:,}")
        factors = clip_factors(mechanism, norms, layout, alpha, room)
        if ranks == len(gradients) == 1 and isinstance(group, SingleMicroBatch) and factors[0]:
            # A single finite gradient stays in place and is scaled when the noise is added, which saves one pass.
            layers, scale = group.layers(), float(factors / divisor)
        else:
            group.add_weighted_sum(factors / divisor, total.zero_() if total is out else total)
    if total is not out:
        out.copy_(total)
    return Clipped(mechanism, layout, alpha, divisor, layers, scale, out, ranks)


def add_noise(clipped: Clipped, epoch: int, step: int, noise: NoiseSource) -> Released:
    """Apply the Gaussian mechanism: add, in place, the noise that the mechanism prescribes for this epoch.

    Guarantee: as judged by `edp_lab.privacy.judge` for this mechanism, if the noise is fresh, independent of the data
    and secret. With `ExactNoise`, the guarantee covers the sum as computed. With float noise, it covers only real
    numbers, because the last bits of floats may reveal the sum.
    """
    if not isinstance(clipped, Clipped):
        raise TypeError(f"noise can be added only to Clipped, not to {type(clipped).__name__}: call clip(...) first")
    stds = noise_stds(clipped.mechanism, epoch, clipped.alpha, clipped.divisor, len(clipped.layers))
    dense = [
        clipped.memory[columns] if layer.is_sparse else layer
        for layer, columns in zip(clipped.layers, clipped.layout.columns, strict=True)
    ]
    noise.add(step, clipped.layers, dense, clipped.scale, stds)
    return Released(dense)


def release(
    mechanism: Mechanism,
    epoch: int,
    gradients: Sequence[MicroGradients],
    layout: Layout,
    alpha: Tensor | None,
    noise: Tensor,
    divisor: int | None = None,
) -> Released:
    """Take one eDP-SGD step with given standard normal draws (P): see `clip` and `add_noise`.

    `divisor`: None for one micro-batch per device.
    """
    clipped = clip(gradients, mechanism, layout, alpha, divisor or mechanism.num_devices, torch.empty_like(noise))
    return add_noise(clipped, epoch, 0, GivenNoise(noise))


def noise_stds(mechanism: Mechanism, epoch: int, alpha: Tensor | None, divisor: int, layers: int) -> list[float]:
    """Return the standard deviation of the noise on the released mean per layer (K); if sound, scaled by alpha."""
    std = mechanism.noise_std(epoch) / divisor
    scaled_back = mechanism.variant is Variant.SOUND and alpha is not None
    return [std * scale for scale in alpha.tolist()] if scaled_back else [std] * layers  # type: ignore[union-attr]


def clip_factors(
    mechanism: Mechanism, norms: Tensor, layout: Layout, alpha: Tensor | None, room: float = HEADROOM
) -> Tensor:
    """Return min(1, C / ||g_m / alpha||) for each micro-batch, or 0 to exclude it: norms (M, K) -> (M), float64.

    `room`: the `headroom` of the sound step. Raises the same errors as `clip`.
    """
    if alpha is not None and not float(alpha.min()) >= SMALLEST_ALPHA:
        raise UsageError(f"a layer scale alpha is {float(alpha.min())}: it must be at least {SMALLEST_ALPHA:.1e}")
    if alpha is not None and not float(alpha.max()) <= mechanism.alpha_max * (1 + 1e-6):
        raise UsageError(
            f"a layer scale alpha is {float(alpha.max())}, above the mechanism's maximum of {mechanism.alpha_max}: "
            "normalise the scales"
        )
    if mechanism.variant is Variant.AS_PRINTED:
        check_finite(norms, layout)
    # Add the most that a norm may have lost to underflow.
    lost = [math.sqrt(SMALLEST_SQUARE * (columns.stop - columns.start)) for columns in layout.columns]
    norms = norms + norms.new_tensor(lost)
    total = torch.linalg.vector_norm(norms if alpha is None else norms / alpha, dim=1)
    bound = mechanism.clip_norm * (1 - room if mechanism.variant is Variant.SOUND else 1.0)
    return (bound / total.clamp_min(1e-300)).clamp_max(1.0).where(torch.isfinite(total), 0.0)
