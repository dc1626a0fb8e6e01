"""A step's Gaussian noise: exact in private runs, a float as printed and for teaching.

It is added once the sum over devices and ranks is complete, by every rank to its own copy: with one key the released
numbers are the same on all ranks. `edp_lab.training.dp_step.add_noise` says how large it is.

    ExactNoise   sum and noise are rounded together, so that the bits released are those of an ideal normal and nothing
                 else (`edp_lab.privacy.exact_noise`)
    FloatNoise   numpy's normals from streams keyed by (key, step, device): one draw for the sum over all devices, or
                 one for each device, as real ones do
    GivenNoise   draws made elsewhere: for panels, audits and tests

Guarantee: a source adds a fresh standard normal vector at each step, and refuses a step twice. Only exact noise keeps
this promise bit by bit: float noise comes from a generator that is not cryptographic, and its last bits give away what
it was added to.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from edp_lab.errors import UsageError
from edp_lab.privacy.csprng import Purpose, stream
from edp_lab.privacy.exact_noise import Piece, release

BLOCK = 2**19  # numbers that share a stream of exact noise: to begin one takes time, and keeps all threads waiting


class NoiseSource(ABC):
    """Standard normal noise, step by step."""

    _last = -1

    def add(self, step: int, layers: Sequence[Tensor], scale: float, stds: Sequence[float]) -> None:
        """Add noise to a sum of P numbers in place: each layer (n) becomes scale * layer + std * noise.

        Raises:
            UsageError: `step` is not above the last one; the same noise on two gradients could be subtracted.
        """
        if step <= self._last:
            raise UsageError(f"the noise of step {step} may have been used already: number all steps upwards")
        self._last = step
        self._add(step, layers, scale, stds)

    @abstractmethod
    def _add(self, step: int, layers: Sequence[Tensor], scale: float, stds: Sequence[float]) -> None: ...


class GivenNoise(NoiseSource):
    """Args: noise (P), standard normal draws for one step."""

    def __init__(self, noise: Tensor) -> None:
        self.noise = noise

    def _add(self, step: int, layers: Sequence[Tensor], scale: float, stds: Sequence[float]) -> None:
        sizes = [len(layer) for layer in layers]
        for layer, noise, std in zip(layers, self.noise.split(sizes), stds, strict=True):
            if scale != 1:
                layer.mul_(scale)
            layer.add_(noise, alpha=std)


class FloatNoise(NoiseSource):
    """Args: devices, how many draw noise, each with its own stream; 0 for one draw in place of all theirs."""

    def __init__(self, key: int, devices: int = 0) -> None:
        self.key, self.devices = key, devices

    def _add(self, step: int, layers: Sequence[Tensor], scale: float, stds: Sequence[float]) -> None:
        noise = float_noise(self.key, step, sum(map(len, layers)), self.devices, layers[0].dtype)
        GivenNoise(noise.to(layers[0].device)).add(step, layers, scale, stds)


def float_noise(key: int, step: int, size: int, devices: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """A step's standard normal draws (size); with `devices`, the sum of one draw each, over sqrt(devices)."""
    kind = np.dtype(str(dtype).removeprefix("torch."))
    if not devices:
        return torch.from_numpy(stream(key, Purpose.NOISE, step).standard_normal(size, dtype=kind))
    draws = (stream(key, Purpose.DEVICE_NOISE, step, i).standard_normal(size, dtype=kind) for i in range(devices))
    return torch.from_numpy(sum(draws, np.zeros(size, dtype=kind)) / kind.type(math.sqrt(devices)))


class ExactNoise(NoiseSource):
    """Args: key, 128 secret bits (see `edp_lab.privacy.csprng`); threads, among which blocks of the sum are shared."""

    def __init__(self, key: int, threads: int = 1) -> None:
        self.key = key
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="noise")

    def _add(self, step: int, layers: Sequence[Tensor], scale: float, stds: Sequence[float]) -> None:
        here = [layer.cpu() for layer in layers]  # a GPU's sum comes to the CPU and goes back

        def release_block(start: int) -> None:
            block = range(start, start + BLOCK)
            release([*_pieces(here, scale, stds, block)], self.key, Purpose.NOISE, step, start // BLOCK)

        for _ in self._pool.map(release_block, range(0, sum(map(len, here)), BLOCK)):
            pass
        for layer, numbers in zip(layers, here, strict=True):
            if layer is not numbers:
                layer.copy_(numbers)


def _pieces(layers: Sequence[Tensor], scale: float, stds: Sequence[float], block: range) -> Iterator[Piece]:
    """The numbers of all layers that lie in the columns `block`."""
    starts = accumulate(map(len, layers), initial=0)
    for start, layer, std in zip(starts, layers, stds, strict=False):
        columns = range(max(block.start - start, 0), min(block.stop - start, len(layer)))
        if columns:
            yield Piece(layer.numpy()[columns.start : columns.stop], scale, std)
