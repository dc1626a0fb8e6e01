"""The step for any module: gradients of this process's micro-batches in, the released gradient in every ``.grad``."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from edp_lab.privacy import Alpha, Mechanism
from edp_lab.training.dp_step import Layout, MicroGradients, Released, layer_scales, noise_stds, release, release_whole
from edp_lab.training.gradients import LoopGradients
from edp_lab.training.noise import NoiseSource, Share

T = TypeVar("T")


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
