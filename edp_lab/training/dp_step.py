"""The eDP-SGD step: micro-batch gradients in, one released gradient out.

    scale     g_i,k / alpha_k                 over layers k
    clip      min(1, C / ||.||_2)             over the whole scaled gradient
    rescale   alpha_k (.)
    noise     as `Mechanism.noise_std` says
    mean      over the devices' fixed number of micro-batches

Scaling and scaling back cancel but for the clip factor, so a micro-batch contributes its gradient times one number.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from edp_lab.errors import UsageError
from edp_lab.models.ghost_clipping.bookkeeping import row_norms
from edp_lab.privacy import Alpha, Mechanism, Variant
from edp_lab.training.gradients import Layout, LoopGradients, MicroGradients, layer_norms
from edp_lab.training.noise import NoiseSource, Share, Span, add_scaled

# The sound clip stays below C by more than float32 can round within one block of a norm, and in one product.
CLIP_MARGIN = 1 - 2.0**-16
SMALLEST_ALPHA = 2.0**-40  # below, a float32 gradient that matters after division by alpha underflows before it
T = TypeVar("T")


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


class FlatGradient:
    """One flat gradient; every parameter's ``.grad`` is a view of it, and ranks sum it up in one message.

    Attributes:
        gradient: (P).
        tail: further numbers that ranks sum up in the same message.
    """

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], accelerator: Accelerator | None = None, tail: int = 0
    ) -> None:
        self.layout = Layout.of(parameters)
        self.world = 1 if accelerator is None else accelerator.num_processes
        self._buffer = parameters[0][1].new_zeros(self.layout.size + tail, requires_grad=False)
        self.gradient, self.tail = self._buffer[: self.layout.size], self._buffer[self.layout.size :]
        self._views = [
            (p, self.gradient[columns].view_as(p))
            for (_, p), columns in zip(parameters, self.layout.columns, strict=True)
        ]

    def collect(self) -> None:
        """Take over what autograd left in ``.grad``; zeros where it left nothing."""
        for p, view in self._views:
            view.zero_() if p.grad is None else view.copy_(p.grad)
        self.attach()

    def attach(self) -> None:
        """Make every ``.grad`` the view, also where ``optimizer.zero_grad()`` has set it to None."""
        for p, view in self._views:
            p.grad = view

    def fill(self, lookups: Container[int]) -> None:
        """Where autograd left no ``.grad``, make it the view: of zeros, or for `lookups` of whatever is there."""
        for p, view in self._views:
            if p.grad is None:
                p.grad = view if id(p) in lookups else view.zero_()

    def reduce(self) -> None:
        """Sum over ranks."""
        if self.world > 1:
            torch.distributed.all_reduce(self._buffer)


class PrivateStep:
    """eDP-SGD's step under Accelerate: clip, add noise, average, and leave the result in ``.grad``.

    Args:
        parameters: names and parameters to be trained, the same in every process.
        mechanism: what is released, see `edp_lab.privacy.judge` for what it guarantees.
        key: 128 secret bits, the same in every process, see `edp_lab.privacy.csprng`.
        accelerator: None for a single process.
        noise: a kind of `edp_lab.training.noise`.
        micro_batches: fixed number over which the mean is taken, in all processes together; None: one per device.
        alpha: (K) layer scales from public data; with `Alpha.PRIVATE` they come from the first gradient.

    Guarantee: that of the mechanism, for what all processes together release, if each utterance is in one micro-batch
    of one process, `step` numbers never repeat under one key, and epochs are what the mechanism was billed for.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        mechanism: Mechanism,
        key: int,
        accelerator: Accelerator | None = None,
        noise: str = "aggregate",
        micro_batches: int | None = None,
        alpha: Tensor | None = None,
        tail: int = 0,
    ) -> None:
        self.flat, self.parameters = FlatGradient(parameters, accelerator, tail), [p for _, p in parameters]
        self.layout, self.mechanism, self.alpha = self.flat.layout, mechanism, alpha
        self.divisor = micro_batches or mechanism.num_devices
        rank = 0 if accelerator is None else accelerator.process_index
        self.share = Share(noise, mechanism.num_devices, rank, self.flat.world)
        threads, on_gpu = min(4, torch.get_num_threads()), self.flat.gradient.device.type != "cpu"
        self._source = NoiseSource(key, self.layout.size, self.share, self.flat.gradient.dtype, threads, on_gpu)

    def begin(self, step: int, first: Callable[[], None] = lambda: None) -> None:
        """Begin with `step` in the background: no noise is drawn before `first` (the entry into a ledger) is done."""
        self._source.start(step, first)

    def finish(self, epoch: int, gradients: MicroGradients) -> Released:
        """Release the gradients of the step that was begun.

        Raises:
            UsageError: as `release`; or what `first` raised.
        """
        if self.mechanism.alpha is Alpha.PRIVATE and self.alpha is None:
            self.alpha = self.scales(gradients)
        released = release(
            self.mechanism,
            epoch,
            gradients,
            self.layout,
            self.alpha,
            self._source.add_to,
            self.divisor,
            self.flat.gradient,
        )
        self.flat.attach()
        return released

    @property
    def whole(self) -> bool:
        """Whether a step releases the gradient of one micro-batch of one process, layer scales known."""
        known = self.mechanism.alpha is not Alpha.PRIVATE or self.alpha is not None
        return known and self.divisor == 1 and self.flat.world == 1

    def finish_whole(self, epoch: int, lookups: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        """Where `whole`: release what plain autograd has left in every ``.grad``, in place.

        Args:
            lookups: by ``id`` of a parameter, the rows of its gradient that are not zero, see `release_whole`.

        Raises:
            UsageError: as `release`; or what `first` raised.
        """
        assert self.whole
        assert all(p.grad is None for p in self.parameters if id(p) in lookups), "a table was used past the lookups"
        self.flat.fill(lookups)
        gradients = [p.grad for p in self.parameters]
        rows = {k: lookups[id(p)] for k, p in enumerate(self.parameters) if id(p) in lookups}
        release_whole(self.mechanism, epoch, gradients, rows, self.layout, self.alpha, self._source.add_to)  # type: ignore[arg-type]

    def noise_stds(self, epoch: int) -> list[float]:
        """Standard deviation of the noise on the released gradient, for each parameter."""
        return noise_stds(self.mechanism, epoch, self.alpha, self.divisor, len(self.layout.names))

    def scales(self, gradients: MicroGradients) -> Tensor:
        """alpha (K) from the mean of these gradients, without clipping or noise."""
        gradients.clipped_sum(self.flat.gradient, lambda norms: torch.ones_like(norms[:, 0]))
        self.flat.reduce()
        return layer_scales(self.flat.gradient.div_(self.divisor), self.layout)

    def own(self, micro_batches: Sequence[T]) -> Sequence[T]:
        """Of one micro-batch per device, those of this process."""
        devices = self.share.devices
        return micro_batches[devices.start : devices.stop]

    def __call__(self, epoch: int, step: int, losses: Sequence[Callable[[], Tensor]]) -> Released:
        """One whole step of any module, in a loop over this process's micro-batches; then the optimizer may step.

        Args:
            losses: for each micro-batch, what computes the losses of its examples.
        """
        self.begin(step)
        released = self.finish(epoch, LoopGradients(self.parameters, losses, self.layout))
        self.flat.reduce()
        return released
