"""The eDP-SGD step: micro-batch gradients in, one released gradient out. `clip`, then `add_noise`.

    scale     g_i,k / alpha_k                 over layers k
    clip      min(1, C / ||.||_2)             over the whole scaled gradient
    rescale   alpha_k (.)
    noise     as `Mechanism.noise_std` says
    mean      over the devices' fixed number of micro-batches

Scaling and scaling back cancel but for the clip factor, so a micro-batch contributes its gradient times one number.

**Floats round, and the sensitivity holds all the same.** The sound step clips to B = (1 - h) C, where h is `headroom`:
2^-11, and more where many micro-batches are summed. With u = 2^-24, all to first order:

1. A norm is short by at most 513u of itself: at most 1,024 squares are summed in float32 in whatever order, then a root
   (`row_norms`; float64 beyond), and what squares that underflow may lack is added (`clip_factors`).
2. So a clipped gradient v_m, the gradient as computed times a factor that is rounded, as is the product, has a norm
   of at most B (1 + 515u).
3. The sum of M of them is off by at most D u M C, where each number of it passes through D roundings. For each of these
   is at most u times the sum of the absolute values, whatever the order (Higham 2002, 4.2), and the norm of
   sum_m |v_m| is at most M C. Two neighbours' sums are off by twice that.

Together: where one utterance moves the exact sum by at most s C (s is 1 or 2), it moves the computed one by at most

    s B (1 + 515u) + 2 D u M C  <=  s C,    if h >= (515 + 2 D M) u

(the second order is less than what the third point gains with the norm of v_m, C (1 - h + 515u), in place of C). 2^-11
is 8,192u and does for D M <= 3,838. M is at most 2 b + 100, where b is the fixed number over which the mean is taken: a
Poisson sample is larger with a chance below 10^-54 (Chernoff), and is refused.

Proven thus, with no further assumption, is a step in which each micro-batch's gradient is formed by itself, whatever
its numbers are: with float64 accumulators (`LoopGradient`, `StackedGradients`) D is 1, and with R ranks R, as their
sums are rounded once each and R - 1 times on the way; with one micro-batch on each rank, M = D = R.

Where one pass forms the sum for many micro-batches (`GhostGradients`), no bound by C alone is true: the
terms of one gradient can cancel within a product of matrices, and a library may round what it computes of one utterance
by another's presence. There it is *assumed* that all this moves two neighbours' sums apart by less than C / 2,200, some
7,600u C, or than what h leaves, where that is more. Measured are 66u C for 64 utterances, each a micro-batch, 458u C
for 512 (`tests/training/test_dp_step.py`), 1,051u C for 8,192, which are sixteen passes that are summed in float64.
`--precision float64` makes u 2^-53, and the same room 5 * 10^8 times as large beside what is rounded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from edp_lab.errors import UsageError, check_whole
from edp_lab.privacy import Adjacency, Alpha, Mechanism, Variant
from edp_lab.privacy.csprng import Purpose
from edp_lab.privacy.exact_noise import Piece
from edp_lab.privacy.exact_noise import release as release_rounded
from edp_lab.training.gradients import (
    Layout,
    LoopGradient,
    MicroGradients,
    SingleMicroBatch,
    layer_norms,
    trainable,
)
from edp_lab.training.ledger import fingerprint
from edp_lab.training.module_state import computed_now, unchanged
from edp_lab.training.noise import DrawnNoise, Noise, NoiseSource, Share, Span, scaled_

U = 2.0**-24  # by how much of itself a float32 is rounded at most
HEADROOM = 2.0**-11  # by how much of C the sound clip is shorter at least, see above,
MOST_ROOM = 2.0**-3  # and at most
SMALLEST_SQUARE = 2.0**-126  # below, float32 arithmetic may make it 0
SMALLEST_ALPHA = 2.0**-40  # below, a float32 gradient that matters after division by alpha underflows before it
T = TypeVar("T")
Numbers = Callable[[], Sequence[Tensor | float]]


def check_finite(norms: Tensor, layout: Layout) -> None:
    """UsageError, which names the layer, where a gradient is NaN or infinite (or its square is): norms (M, K)."""
    if not torch.isfinite(norms).all():
        layer = layout.names[int((~torch.isfinite(norms)).any(0).nonzero()[0])]
        raise UsageError(
            f"the gradient of layer {layer!r} is not finite: min(1, C/NaN) is no clip; lower --lr or check the corpus"
        )


def headroom(micro_batches: int, ranks: int = 1) -> float:
    """By how much of C the sound clip is shorter, see above. `micro_batches`: a step's fixed number, of all ranks."""
    room = max(HEADROOM, (515 + 2 * ranks * most_micro_batches(micro_batches)) * U)
    if room > MOST_ROOM:
        raise UsageError(
            f"a step sums {micro_batches:,} micro-batches on {ranks:,} ranks, which may round away {room:.0%} of the "
            "clip norm: lower --batch-size or --processes"
        )
    return room


def most_micro_batches(divisor: int) -> int:
    """How many micro-batches a step may have, see above, where the mean is taken over `divisor`."""
    return 2 * divisor + 100


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
class Clipped:
    """The mean of a step's clipped gradients, made by `clip`: the only thing that noise can be added to.

    Guarantee: one utterance moves it by at most `sensitivity()` (L2), if it is in at most one micro-batch. Sound, that
    is true of the numbers as computed, as far as the head of this file proves it, and measured where the noise is
    added: in each layer divided by alpha_k.
    """

    mechanism: Mechanism
    layout: Layout
    alpha: Tensor | None  # (K)
    divisor: int  # the fixed number of micro-batches over which the mean is taken
    norms: Tensor  # (M, K), float64, of the gradients as they were. Not private
    factors: Tensor  # (M) in [0, 1], what each gradient was multiplied by. Not private
    spans: Sequence[Span]  # what they mean, end to end, is the mean (P); on one of several ranks, its share of it

    def sensitivity(self, adjacency: Adjacency | str | None = None) -> float:
        """As `Mechanism.sensitivity`, of the mean."""
        return self.mechanism.sensitivity(adjacency) / self.divisor

    def layers(self) -> list[Span]:
        """The mean's K layers, each by itself."""
        if len(self.spans) == len(self.layout.columns):
            return list(self.spans)
        [(_, numbers, scale, _)] = self.spans
        return [Span(columns, numbers[columns], scale) for columns in self.layout.columns]

    def scaled(self) -> Clipped:
        """The same mean, of numbers that mean themselves: ready to be summed over ranks."""
        return replace(self, spans=[scaled_(span) for span in self.spans])


class Released(NamedTuple):
    """One step's output and what the panels show of it."""

    parts: Sequence[Tensor]  # the released mean gradient, in flat pieces; by `add_noise` to a rank's share, that share
    clip_factors: Tensor  # (M) in [0, 1], what each micro-batch's gradient was multiplied by. Not private
    norms: Tensor  # (M, K) of the unclipped, unscaled gradients. Not private
    sums: Sequence[float] = ()  # over ranks, of what was counted beside. Not private

    @property
    def gradient(self) -> Tensor:
        """All parts end to end: (P)."""
        return self.parts[0] if len(self.parts) == 1 else torch.cat(list(self.parts))


def clip(
    mechanism: Mechanism,
    gradients: Sequence[MicroGradients],
    layout: Layout,
    alpha: Tensor | None,
    divisor: int | None,
    out: Tensor,
    ranks: int = 1,
) -> Clipped:
    """Scale, clip, rescale and average the gradients of all micro-batches: the step up to its noise.

    Args:
        alpha: (K) layer scales with maximum 1, or None for all 1.
        divisor: the fixed number of micro-batches in a step over which the mean is taken; None: one per device.
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
    divisor = divisor or mechanism.num_devices
    sound = mechanism.variant is Variant.SOUND
    room, most = (headroom(divisor, ranks), most_micro_batches(divisor)) if sound else (0.0, math.inf)
    if ranks == 1 and len(gradients) == 1 and isinstance(only := gradients[0], SingleMicroBatch):
        norms = only.norms()
        factors = clip_factors(mechanism, norms, layout, alpha, room)
        return Clipped(mechanism, layout, alpha, divisor, norms, factors, only.in_place(float(factors / divisor), out))
    # In float32 the rounding error of a sum of sums would grow faster than the batch.
    total = out.zero_() if len(gradients) == 1 else torch.zeros_like(out, dtype=torch.float64)
    all_norms, all_factors = [total.new_zeros(0, len(layout.names))], [total.new_zeros(0)]
    for some in gradients:
        all_norms.append(some.norms())
        if (count := sum(map(len, all_norms))) > most:
            raise UsageError(f"a step of {divisor:,} micro-batches got {count:,} or more: it may have {most:,} at most")
        all_factors.append(clip_factors(mechanism, all_norms[-1], layout, alpha, room))
        some.add_weighted_sum(all_factors[-1] / divisor, total)
    spans = [Span(slice(0, len(out)), out.copy_(total))]
    return Clipped(mechanism, layout, alpha, divisor, torch.cat(all_norms), torch.cat(all_factors), spans)


def add_noise(clipped: Clipped, epoch: int, noise: Noise) -> Released:
    """The Gaussian mechanism: what was clipped, in place, plus the noise that its mechanism prescribes for this epoch.

    Guarantee: as judged by `edp_lab.privacy.judge` for this mechanism, if the noise is fresh, independent of the data
    and secret; of rounded noise, exactly that for the sum as it was computed, else up to rounding. On one of several
    ranks, float noise and what was clipped are its share, and the guarantee is that of the sum over ranks.
    """
    if not isinstance(clipped, Clipped):
        raise TypeError(f"noise hides only what was clipped, not a {type(clipped).__name__}: call clip(...) first")
    stds = noise_stds(clipped.mechanism, epoch, clipped.alpha, clipped.divisor, len(clipped.layout.names))
    if len(set(stds)) == 1:
        noise.add_to(clipped.spans, stds[:1] * len(clipped.spans))
    else:
        noise.add_to(clipped.layers(), stds)
    return Released([span.numbers for span in clipped.spans], clipped.factors, clipped.norms)


def release(
    mechanism: Mechanism,
    epoch: int,
    gradients: Sequence[MicroGradients],
    layout: Layout,
    alpha: Tensor | None,
    noise: Tensor,
    divisor: int | None = None,
) -> Released:
    """One eDP-SGD step as a function of given standard normal draws (P): `clip`, then `add_noise`, which see."""
    clipped = clip(mechanism, gradients, layout, alpha, divisor, torch.empty_like(noise))
    return add_noise(clipped, epoch, DrawnNoise(noise))


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
    lost = [math.sqrt(SMALLEST_SQUARE * (columns.stop - columns.start)) for columns in layout.columns]
    norms = norms + norms.new_tensor(lost)
    total = torch.linalg.vector_norm(norms if alpha is None else norms / alpha, dim=1)
    bound = mechanism.clip_norm * (1 - room if mechanism.variant is Variant.SOUND else 1.0)
    return (bound / total.clamp_min(1e-300)).clamp_max(1.0).where(torch.isfinite(total), 0.0)


class FlatGradient:
    """One flat gradient (P) behind every parameter's ``.grad``, which ranks sum up in one message.

    Args:
        parameters: names and parameters to be trained, the same in every process.
        accelerator: None for a single process.
        tail: how many further numbers ranks sum up in the same message.
    """

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], accelerator: Accelerator | None = None, tail: int = 0
    ) -> None:
        self.layout, self.parameters = Layout.of(parameters), [p for _, p in parameters]
        if others := {str(p.dtype) for p in self.parameters} - {"torch.float32", "torch.float64"}:
            raise UsageError(f"parameters of {others.pop()}: noise is exact in float32 and float64 alone; convert them")
        self.world = 1 if accelerator is None else accelerator.num_processes
        self._message = self.parameters[0].new_zeros(self.layout.size + tail, requires_grad=False)
        self.gradient, self._tail = self._message[: self.layout.size], self._message[self.layout.size :]

    def reduce(self, *numbers: Tensor | float) -> Sequence[float]:
        """Sum the gradient over ranks; gives the sums of these numbers."""
        for k, number in enumerate(numbers):
            self._tail[k] = number
        if self.world > 1:
            torch.distributed.all_reduce(self._message)
        return self._tail.tolist()  # type: ignore[no-any-return]


class PlainStep(FlatGradient):
    """Plain training, which protects nobody: nothing is clipped, and no noise is added."""

    def average(self) -> None:
        """Sum what ``.grad`` holds over processes, each of which has weighted it by its share of the batch."""
        if self.world > 1:
            for p, columns in zip(self.parameters, self.layout.columns, strict=True):
                layer = self.gradient[columns].view_as(p)
                p.grad = layer.zero_() if p.grad is None else layer.copy_(p.grad)


class PrivateStep(FlatGradient):
    """eDP-SGD's step under Accelerate: clip, average, add noise, and leave the result in every ``.grad``.

    Args:
        model: its parameters with ``requires_grad`` are trained.
        epochs: how many are billed; a step of a later one is refused.
        key: 128 secret bits, the same in every process, see `edp_lab.privacy.csprng`.
        noise: a kind of `edp_lab.training.noise`.
        micro_batches: fixed number over which the mean is taken, in all processes together; None: one per device.

    Attributes:
        alpha: (K) layer scales; to be set from public data (see `scales`), or None for all 1. With `Alpha.PRIVATE` they
            come from the first gradient, with `Alpha.NOISED` they are to be set by `noised_scales` before that.

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
        tail: int = 0,
    ) -> None:
        super().__init__(trainable(model), accelerator, tail)
        check_whole("number of epochs", epochs, 1)
        self.model, self.mechanism, self.epochs = model, mechanism, epochs
        self.alpha: Tensor | None = None
        self._steps: Counter[int] = Counter()  # by epoch, of this process
        self._agree(fingerprint(key), mechanism, self.layout, noise, micro_batches)
        self.divisor = micro_batches or mechanism.num_devices
        rank = 0 if accelerator is None else accelerator.process_index
        self.share = Share(noise, mechanism.num_devices, rank, self.world)
        self.rounded = mechanism.exact_noise
        if self.rounded and noise == "per-device":
            raise UsageError(
                "noise of each device is a float, and this mechanism promises exact noise: drop one of them"
            )
        share = None if self.rounded else self.share
        threads = min(4, torch.get_num_threads())
        self._noise = NoiseSource(key, self.layout.size, share, self.gradient.dtype, threads)

    def clip(self, gradients: Sequence[MicroGradients]) -> Clipped:
        """Clip and average this process's gradients; the first ones of a run may first give the layer scales."""
        if self.mechanism.alpha is Alpha.PRIVATE and self.alpha is None:
            self.alpha = self.scales(gradients)
        return clip(self.mechanism, gradients, self.layout, self.alpha, self.divisor, self.gradient, self.world)

    def release(
        self, clipped: Clipped, epoch: int, step: int, entry: Future[None] | None = None, numbers: Numbers = tuple
    ) -> Released:
        """Sum up over processes, add the noise, and leave the result in every ``.grad``.

        Args:
            entry: the step's line in a ledger, before which no noise is drawn.
            numbers: gives further ones of this process, to be summed in the same message; asked as late as possible.
        """
        noise = self._noise.of(step, entry)
        if self.rounded:  # once the sum is complete
            clipped = clipped.scaled() if self.world > 1 else clipped
            if entry is not None:
                entry.result()
            sums = self.reduce(*numbers())
            released = add_noise(clipped, epoch, noise)
        else:
            released = add_noise(clipped, epoch, noise)
            sums = self.reduce(*numbers())
        for p, layer in zip(self.parameters, clipped.layers(), strict=True):
            p.grad = layer.numbers.view_as(p)  # also where ``optimizer.zero_grad()`` has set it to None
        return released._replace(sums=sums)

    def __call__(self, epoch: int, step: int, losses: Sequence[Callable[[], Tensor]]) -> Released:
        """One whole step of any module, in a loop over this process's micro-batches; then the optimizer may step.

        `losses`: for each micro-batch, what computes the losses of its examples, one number each.

        Raises:
            UsageError: more micro-batches, or more examples in one of them, than the mechanism declares; micro-batches
                of several under Poisson sampling; a module keeps something beside the gradient, see `unchanged`; as
                `clip`.
        """
        self._count(epoch)
        declared, most = self.mechanism, math.ceil(self.divisor / self.mechanism.num_devices) * len(self.share.devices)
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
        with unchanged(self.model):
            clipped = self.clip([LoopGradient(self.parameters, compute, self.layout) for compute in checked])
        return self.release(clipped, epoch, step)

    def _count(self, epoch: int) -> None:
        """UsageError for a step that is not among those billed."""
        check_whole("epoch", epoch, max(self._steps, default=0))
        self._steps[epoch] += 1
        if epoch >= self.epochs:
            raise UsageError(f"a step of epoch {epoch}, but {self.epochs} epochs are billed, from 0: bill more of them")
        if self.mechanism.sampling_rate and self._steps[epoch] > (most := self.mechanism.releases_per_epoch):
            raise UsageError(f"step {self._steps[epoch]} of epoch {epoch}: {most} steps of an epoch are billed")

    def _losses(self, compute: Callable[[], Tensor]) -> Tensor:
        """The losses of a micro-batch, if they are of as many examples as the mechanism declares."""
        losses, most = computed_now(compute), self.mechanism.micro_batch_size
        if losses.ndim != 1:
            raise UsageError(
                f"the losses of a micro-batch have the shape {tuple(losses.shape)}: give one number for each example, "
                'such as those of reduction="none"; with fewer, nobody can tell how many examples share a clip'
            )
        if len(losses) > most:
            raise UsageError(
                f"a micro-batch has {len(losses)} losses, and the mechanism declares micro_batch_size={most}: the "
                "noise would be too small for it; declare the larger size, or hand over smaller micro-batches"
            )
        return losses

    def noise_stds(self, epoch: int) -> list[float]:
        """Standard deviation of the noise on the released gradient, for each parameter."""
        return noise_stds(self.mechanism, epoch, self.alpha, self.divisor, len(self.parameters))

    def scales(self, gradients: Sequence[MicroGradients]) -> Tensor:
        """alpha (K) from the mean of these gradients, without clipping or noise."""
        self.gradient.zero_()
        for some in gradients:
            some.add_weighted_sum(torch.ones(len(some.norms()), device=self.gradient.device), self.gradient)
        self.reduce()
        return layer_scales(self.gradient.div_(self.divisor), self.layout)

    def noised_scales(self, gradients: Sequence[MicroGradients], key: int) -> Tensor:
        """alpha (K): layer norms of the mean of these gradients, clipped as a step's are, with noise; largest 1.

        Formal guarantee: a Gaussian release of noise multiplier `SCALES_NOISE` z0, see `Mechanism.scales_noise_std`; to
        be in the ledger before. What cannot be told from noise counts as one standard deviation of it.
        """
        silent = DrawnNoise(torch.zeros_like(self.gradient))
        out = torch.empty_like(self.gradient)
        clipped = clip(self.mechanism, gradients, self.layout, None, self.divisor, out, self.world)
        self.gradient.copy_(add_noise(clipped, 0, silent).gradient)
        self.reduce()
        norms = layer_norms(self.gradient[None].double(), self.layout)[0]  # of a sum, which is up to M C long
        std, noised = self.mechanism.scales_noise_std() / self.divisor, norms.cpu()
        release_rounded([Piece(noised.numpy(), 1.0, std)], key, Purpose.SCALES)
        noised = noised.to(norms.device).clamp_min(std)
        return (noised / noised.max()).to(self.gradient.dtype)

    def own(self, micro_batches: Sequence[T]) -> Sequence[T]:
        """The micro-batches of this process, out of all that a step has: equally many for each device, or nearly so."""
        devices, count = self.share.devices, len(micro_batches)
        start, stop = (place * count // self.mechanism.num_devices for place in (devices.start, devices.stop))
        return micro_batches[start:stop]

    def _agree(self, *settings: object) -> None:
        """UsageError on every rank, if these are not the same on all: each would release noise of its own."""
        if self.world > 1 and any(other != settings for other in gather_object([settings])):
            raise UsageError("the processes have different keys, mechanisms or models: give all of them the same")
