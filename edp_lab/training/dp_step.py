"""The eDP-SGD step: micro-batch gradients in, one released gradient out. `clip`, then `add_noise`.

    Layout           names and columns of the layers in a flat gradient                 `edp_lab.training.gradients`
    MicroGradients   the gradients of micro-batches; they promise nothing               `edp_lab.training.gradients`
    Clipped          their mean once clipped: one utterance moves it by at most its `sensitivity`
    NoiseSource      fresh standard normal noise, each step's once                      `edp_lab.training.noise`
    Released         its `layers`, mean plus noise, have the guarantee that `edp_lab.privacy.judge` gives

    scale     g_i,k / alpha_k                 over layers k
    clip      min(1, C / ||.||_2)             over the whole scaled gradient
    rescale   alpha_k (.)
    mean      over the devices' fixed number of micro-batches
    noise     of standard deviation `Mechanism.noise_std` over that number; sound, alpha_k times that in layer k

Scaling and scaling back cancel but for the clip factor, so a micro-batch contributes its gradient times one number.

The bound on the sensitivity holds although floats round, as shown in `edp_lab.training.gradients`.
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

SMALLEST_SQUARE = 2.0**-126  # below, float32 arithmetic may make it 0
SMALLEST_ALPHA = 2.0**-40  # below, a float32 gradient that matters after division by alpha underflows before it


@dataclass(frozen=True)
class Clipped:
    """The mean of a step's clipped gradients, made by `clip`: the only thing that noise can be added to.

    Guarantee: one utterance moves it by at most `sensitivity()` (L2), if it is in at most one micro-batch. Sound, that
    is true of the numbers as computed, as far as `edp_lab.training.gradients` proves it, measured in each layer divided
    by alpha_k, where the noise is added.
    """

    mechanism: Mechanism
    layout: Layout
    alpha: Tensor | None  # (K)
    divisor: int  # the fixed number of micro-batches over which the mean is taken
    layers: Sequence[Tensor]  # K vectors, some sparse: `scale` times them is the mean, or this rank's share of it
    scale: float  # clip factor over divisor if that is still to be multiplied in, else 1
    memory: Tensor  # (P), where sparse layers will lie once they have noise
    ranks: int  # how many such shares make up the mean

    def sensitivity(self, adjacency: Adjacency | str | None = None) -> float:
        """Sensitivity of the mean; see `Mechanism.sensitivity`."""
        return self.mechanism.sensitivity(adjacency) / self.divisor


@dataclass(frozen=True)
class Released:
    """A step's output, the noisy mean gradient. It lasts until the next step."""

    layers: Sequence[Tensor]  # K flat tensors

    @property
    def gradient(self) -> Tensor:
        """All layers end to end: (P)."""
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
    """Scale, clip, rescale and average the gradients of all micro-batches: the step up to its noise.

    Args:
        alpha: (K) layer scales with maximum 1, or None for all 1.
        divisor: the fixed number of micro-batches in a step over which the mean is taken.
        out: (P) memory for the result.
        ranks: how many processes' sums are added up.

    Guarantee: that of `Clipped`, whatever the gradients. By the norm of g / alpha:

        no micro-batch, or an empty one   contributes 0; the divisor stays
        0 to C                            stays as it is (sound: to C less `headroom`, which floats may round away)
        beyond C                          shortened to C
        NaN or infinite                   contributes 0: to refuse it would tell that it is there (as printed: refused)

    Raises:
        UsageError: a layer scale is too small for float32, larger than judged, or there although the mechanism has
            none; far too many micro-batches; as printed, a gradient is not finite.
    """
    if alpha is not None and (mechanism.alpha is Alpha.NONE or alpha.shape != (len(layout.names),)):
        raise UsageError(
            f"{len(alpha)} layer scales for {len(layout.names)} layers and a mechanism with alpha {mechanism.alpha!r}: "
            "give one scale for each layer, and declare where they come from"
        )
    sound = mechanism.variant is Variant.SOUND
    room, most = (headroom(divisor, ranks), most_micro_batches(divisor)) if sound else (0.0, math.inf)
    # One group of micro-batches is summed in place. In float32 the rounding error of a sum of sums would grow faster
    # than the batch, so several are summed in float64.
    total = out if len(gradients) == 1 else torch.zeros_like(out, dtype=torch.float64)
    layers, scale, count = [out[columns] for columns in layout.columns], 1.0, 0
    for some in gradients:
        norms = some.norms()
        count += len(norms)
        if count > most:
            raise UsageError(f"a step of {divisor:,} micro-batches got {count:,} or more: it may have {most:,} at most")
        factors = clip_factors(mechanism, norms, layout, alpha, room)
        if ranks == len(gradients) == 1 and isinstance(some, SingleMicroBatch) and factors[0]:
            # A single micro-batch stays where autograd left it, and is scaled when the noise is added: a pass less.
            layers, scale = some.layers(), float(factors / divisor)
        else:
            some.add_weighted_sum(factors / divisor, total.zero_() if total is out else total)
    if total is not out:
        out.copy_(total)
    return Clipped(mechanism, layout, alpha, divisor, layers, scale, out, ranks)


def add_noise(clipped: Clipped, epoch: int, step: int, noise: NoiseSource) -> Released:
    """The Gaussian mechanism: what was clipped, in place, plus the noise that its mechanism prescribes for this epoch.

    Guarantee: as judged by `edp_lab.privacy.judge` for this mechanism, if the noise is fresh, independent of the data
    and secret: with `ExactNoise` for the sum as computed; with float noise in real numbers only, as its last bits may
    give the sum away.
    """
    if not isinstance(clipped, Clipped):
        raise TypeError(f"noise hides only what was clipped, not a {type(clipped).__name__}: call clip(...) first")
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
    """One eDP-SGD step as a function of given standard normal draws (P): `clip`, then `add_noise`, which see.

    `divisor`: None for one micro-batch per device.
    """
    clipped = clip(gradients, mechanism, layout, alpha, divisor or mechanism.num_devices, torch.empty_like(noise))
    return add_noise(clipped, epoch, 0, GivenNoise(noise))


def noise_stds(mechanism: Mechanism, epoch: int, alpha: Tensor | None, divisor: int, layers: int) -> list[float]:
    """Standard deviation of the noise on the released mean in each of K layers; sound, it is scaled back by alpha."""
    std = mechanism.noise_std(epoch) / divisor
    scaled_back = mechanism.variant is Variant.SOUND and alpha is not None
    return [std * scale for scale in alpha.tolist()] if scaled_back else [std] * layers  # type: ignore[union-attr]


def clip_factors(
    mechanism: Mechanism, norms: Tensor, layout: Layout, alpha: Tensor | None, room: float = HEADROOM
) -> Tensor:
    """min(1, C / ||g_m / alpha||) for each micro-batch, 0 to leave it out: norms (M, K) -> (M), float64.

    `room`: the sound step's `headroom`. Raises as `clip`.
    """
    if alpha is not None and not float(alpha.min()) >= SMALLEST_ALPHA:
        raise UsageError(f"a layer scale alpha is {float(alpha.min())}: it must be at least {SMALLEST_ALPHA:.1e}")
    if alpha is not None and not float(alpha.max()) <= mechanism.alpha_max * (1 + 1e-6):
        raise UsageError(
            f"a layer scale alpha is {float(alpha.max())}, above the {mechanism.alpha_max} by which the mechanism is "
            "judged: normalise the scales"
        )
    if mechanism.variant is Variant.AS_PRINTED:
        check_finite(norms, layout)
    # What underflow may have lost of a norm is added to it.
    lost = [math.sqrt(SMALLEST_SQUARE * (columns.stop - columns.start)) for columns in layout.columns]
    norms = norms + norms.new_tensor(lost)
    total = torch.linalg.vector_norm(norms if alpha is None else norms / alpha, dim=1)
    bound = mechanism.clip_norm * (1 - room if mechanism.variant is Variant.SOUND else 1.0)
    return (bound / total.clamp_min(1e-300)).clamp_max(1.0).where(torch.isfinite(total), 0.0)
