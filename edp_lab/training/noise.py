"""Gaussian noise of a step: exact in private runs, floating-point in as-printed runs and for teaching.

Every rank adds the noise to its own copy of the sum over devices and ranks. All ranks have the same key, so they
release identical numbers. `edp_lab.training.dp_step.add_noise` sets the standard deviation.

    ExactNoise   rounds the sum and ideal normal noise together, so the released bits depend only on their exact sum
                 (see `edp_lab.privacy.exact_noise`)
    FloatNoise   numpy's normals from streams keyed by (key, step, device): one draw for the sum over all devices, or
                 one draw per device, as on real devices
    GivenNoise   precomputed draws, for panels, audits and tests

Guarantee: a source adds a fresh standard normal vector at each step, and never uses the noise of a step twice. Only
exact noise has this guarantee to the last bit: float noise comes from a non-cryptographic generator, and its last bits
reveal the value that it was added to.
"""

from __future__ import annotations

import ctypes
import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edp_lab.errors import UsageError
from edp_lab.privacy.csprng import Purpose, stream
from edp_lab.privacy.exact_noise import Piece, add_exactly

BLOCK = 2**19  # numbers per stream of exact noise: starting a stream takes time and blocks all threads


class NoiseSource(ABC):
    """Source of standard normal noise for successive steps."""

    _last = -1

    def add(
        self, step: int, layers: Sequence[Tensor], out: Sequence[Tensor], scale: float, stds: Sequence[float]
    ) -> None:
        """Set each tensor of `out` (n) to scale * layer + std * noise; the K layers have P numbers in total.

        For a dense layer, `out` is the layer itself; for a sparse table (V, D), the previous content is ignored.

        Raises:
            UsageError: `step` is not above the last step (noise used on two gradients could be subtracted), or a
                standard deviation is negative or NaN.
        """
        if not all(std >= 0 for std in stds):
            raise UsageError(f"a standard deviation of the noise is {min(stds)}: it must be 0 or more")
        if step <= self._last:
            raise UsageError(f"the noise of step {step} may have been used already: number all steps upwards")
        self._last = step
        self._add(step, layers, out, scale, stds)

    @abstractmethod
    def _add(
        self, step: int, layers: Sequence[Tensor], out: Sequence[Tensor], scale: float, stds: Sequence[float]
    ) -> None: ...


class GivenNoise(NoiseSource):
    """Precomputed noise (P): standard normal draws for one step."""

    def __init__(self, noise: Tensor) -> None:
        self.noise = noise

    def _add(
        self, step: int, layers: Sequence[Tensor], out: Sequence[Tensor], scale: float, stds: Sequence[float]
    ) -> None:
        draws = self.noise.split([len(dense) for dense in out])
        for layer, dense, noise, std in zip(layers, out, draws, stds, strict=True):
            if layer.is_sparse:
                dense.copy_(layer.to_dense().view(-1))
            if scale != 1:
                dense.mul_(scale)
            dense.add_(noise, alpha=std)


class FloatNoise(NoiseSource):
    """Floating-point noise; `devices`: number of devices, each with its own stream, or 0 for a single draw in total."""

    def __init__(self, key: int, devices: int = 0) -> None:
        self.key, self.devices = key, devices

    def _add(
        self, step: int, layers: Sequence[Tensor], out: Sequence[Tensor], scale: float, stds: Sequence[float]
    ) -> None:
        noise = float_noise(self.key, step, sum(map(len, out)), self.devices, out[0].dtype)
        GivenNoise(noise.to(out[0].device)).add(step, layers, out, scale, stds)


def float_noise(key: int, step: int, size: int, devices: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return standard normal draws for a step (size); with `devices`, one draw per device, summed / sqrt(devices)."""
    kind = np.dtype(str(dtype).removeprefix("torch."))
    if not devices:
        return torch.from_numpy(stream(key, Purpose.NOISE, step).standard_normal(size, dtype=kind))
    draws = (stream(key, Purpose.DEVICE_NOISE, step, i).standard_normal(size, dtype=kind) for i in range(devices))
    return torch.from_numpy(sum(draws, np.zeros(size, dtype=kind)) / kind.type(math.sqrt(devices)))


class ExactNoise(NoiseSource):
    """Exact noise from `key`, 128 secret bits (see `edp_lab.privacy.csprng`); `threads` share the blocks of the sum."""

    def __init__(self, key: int, threads: int = 1) -> None:
        self.key, self.threads = key, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="noise")

    def _add(
        self, step: int, layers: Sequence[Tensor], out: Sequence[Tensor], scale: float, stds: Sequence[float]
    ) -> None:
        from edp_lab.compiled import fill_rows  # slow to load

        here = [dense.cpu() for dense in out]  # a sum on a GPU is copied to the CPU and back
        sparse = [layer.cpu().coalesce() if layer.is_sparse else None for layer in layers]

        *starts, size = accumulate(map(len, here), initial=0)
        blocks = iter(range(0, size, BLOCK))

        def pieces(block: int) -> Iterator[Piece]:
            """Yield the parts of all layers in this block; make sparse tables dense block by block, in cache."""
            for k in range(bisect_right(starts, block) - 1, bisect_left(starts, block + BLOCK)):
                first = max(block - starts[k], 0)
                numbers = here[k].numpy()[first : block + BLOCK - starts[k]]
                if (table := sparse[k]) is not None:
                    fill_rows(numbers, first, table.indices()[0].numpy(), table.values().numpy())
                yield Piece(numbers, scale, stds[k])

        def run_blocks() -> None:
            for block in blocks:
                add_exactly([*pieces(block)], self.key, Purpose.NOISE, step, block // BLOCK)

        if self.threads > 1:
            release_cores()
        helpers = [self._pool.submit(run_blocks) for _ in range(self.threads - 1)]
        try:
            run_blocks()
        finally:
            wait(helpers)
        for helper in helpers:
            helper.result()
        for dense, numbers in zip(out, here, strict=True):
            if dense is not numbers:
                dense.copy_(numbers)


@cache
def _openmp() -> ctypes.CDLL | None:
    """The GNU OpenMP library that torch has loaded; None if it uses another implementation."""
    for path in (Path(torch.__file__).parent / "lib").glob("libgomp*"):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "omp_pause_resource_all"):
            return library
    return None


def release_cores() -> None:
    """End OpenMP's idle threads, which spin for milliseconds and would delay the noise threads.

    The next parallel operation starts new threads within a tenth of a millisecond.
    """
    if (library := _openmp()) is not None:
        library.omp_pause_resource_all(1)  # omp_pause_soft
