"""Drawing a step's noise: by one process or many, block by block, on as many threads as there are.

Draws are standard normal; `edp_lab.training.dp_step.release` says by how much to scale them. The vector of P numbers is
cut into blocks with a stream each, a function of (key, step, block), so that threads and ranks can share the work:

* aggregate: one draw for the sum over all devices. Each rank draws its part of the blocks, and zeros elsewhere.
* per-device: every device draws all P numbers from streams of its own; their sum over sqrt(N) is distributed alike.
* shared: all devices add one common secret draw, which every rank makes for itself.

Guarantee: whichever it is, the sum over ranks is one fresh standard normal vector for each step, and with one key the
first and the third are the same numbers whatever the number of ranks (per device, up to the order of a sum).
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from edp_lab.errors import UsageError
from edp_lab.privacy.csprng import Purpose, SecretStream, fill_normal

KINDS = ("aggregate", "per-device", "shared")
BLOCK = 2**19  # to begin a stream takes time, and keeps all threads waiting


class Span(NamedTuple):
    """Some columns of the flat gradient, (n) numbers that lie together in memory, and what becomes of them.

    Attributes:
        columns: which of the P.
        std: standard deviation of the noise.
        gradient: (n), which becomes `scale` times itself plus noise.
        scale: with 0, what stood there does not matter.
    """

    columns: slice
    std: float
    gradient: Tensor
    scale: float = 1.0


@dataclass(frozen=True)
class Share:
    """What one of `world` processes draws: of N devices it is those from `first` up to `last`."""

    kind: str = "aggregate"
    num_devices: int = 1
    rank: int = 0
    world: int = 1

    @property
    def devices(self) -> range:
        """The devices that live on this rank, as evenly spread as can be."""
        return part(self.num_devices, self.rank, self.world)

    def blocks(self, size: int) -> range:
        """The blocks that this rank fills."""
        blocks = -(-size // BLOCK)
        return part(blocks, self.rank, self.world) if self.kind == "aggregate" else range(blocks)


def part(count: int, rank: int, world: int) -> range:
    """Of `count` things in a row, those of one rank: consecutive, and evenly spread."""
    return range(count * rank // world, count * (rank + 1) // world)


def standard_noise(key: int, step: int, size: int, share: Share, dtype: torch.dtype = torch.float32) -> Tensor:
    """This rank's share of a step's noise: (size). Summed over ranks, standard normal."""
    noise = torch.zeros(size, dtype=dtype)
    for block in share.blocks(size):
        _fill(noise[_columns(block, size)].numpy(), key, step, block, share)
    return noise


def add_scaled(noise: Tensor, spans: Sequence[Span]) -> None:
    """What `Span` says, with standard normal noise (P)."""
    for columns, std, gradient, scale in spans:
        scaled_(gradient, scale).add_(noise[columns], alpha=std)


def scaled_(x: Tensor, scale: float) -> Tensor:
    """x times `scale`, in place; zeros for 0, even where x is not finite."""
    return x.zero_() if scale == 0 else x if scale == 1 else x.mul_(scale)


class NoiseSource:
    """The noise of one step after the other.

    On a CPU a block is drawn and added while it lies in the cache, once the gradient is done: drawn during the
    backward pass, which keeps all cores busy itself, it would cost more time than it hides. For a GPU, which leaves the
    CPU idle, it is drawn `ahead`.

    Args:
        key: 128 bits, see `edp_lab.privacy.csprng`.
        size: P.
        threads: how many draw at a time.
        ahead: draw in the background from `start` on.
    """

    def __init__(
        self,
        key: int,
        size: int,
        share: Share,
        dtype: torch.dtype = torch.float32,
        threads: int = 1,
        ahead: bool = False,
    ) -> None:
        self.key, self.share, self.size, self.threads = key, share, size, threads
        self._drawn = torch.zeros(size, dtype=dtype) if ahead else None
        self._dtype = np.dtype(str(dtype).removeprefix("torch."))
        self._pool = ThreadPoolExecutor(threads + 1, thread_name_prefix="noise")
        self._own = threading.local()  # memory of each thread: fresh pages every step would cost time
        self._begun: Future[None] | None = None
        self._step = -1

    def start(self, step: int, first: Callable[[], None]) -> None:
        """Begin with the noise of `step`: in the background, `first` (the entry into the ledger).

        Raises:
            UsageError: `step` is not beyond the last one; the same noise on two gradients could be subtracted.
        """
        if step <= self._step:
            raise UsageError(f"the noise of step {step} may have been used already: number all steps upwards")
        self._begun = self._pool.submit(self._begin, step, first)
        self._step = step

    def add_to(self, spans: Sequence[Span]) -> None:
        """Add this rank's share of the noise that was begun, to spans in the order of their columns.

        Raises:
            Exception: what `first` raised.
        """
        assert self._begun is not None, "no step was begun, or its noise has been used"
        begun, self._begun = self._begun, None
        begun.result()
        if self._drawn is not None:
            add_scaled(self._drawn.to(spans[0].gradient.device), spans)
            return
        if self.share.world > 1:  # some blocks are other ranks' to draw
            spans = [span._replace(gradient=scaled_(span.gradient, span.scale), scale=1.0) for span in spans]
        arrays = [_Array(s.columns.start, s.columns.stop, s.std, s.gradient.numpy(), s.scale) for s in spans]
        self._draw(self._step, partial(_add, arrays))

    def _begin(self, step: int, first: Callable[[], None]) -> None:
        first()
        if self._drawn is not None:
            self._draw(step, self._drawn.numpy().__setitem__)

    def _draw(self, step: int, use: Callable[[slice, np.ndarray], None]) -> None:
        """Call `use` with every block of this rank: its columns, and numbers that are valid until it returns."""
        left = iter(self.share.blocks(self.size))

        def help_out() -> None:
            if not hasattr(self._own, "memory"):
                self._own.memory = np.empty(min(BLOCK, self.size), dtype=self._dtype)
            for block in left:
                columns = _columns(block, self.size)
                noise = self._own.memory[: columns.stop - columns.start]
                _fill(noise, self.key, step, block, self.share)
                use(columns, noise)

        if self.threads > 1 and self._drawn is None:
            release_cores()
        helpers = [self._pool.submit(help_out) for _ in range(self.threads - 1)]
        help_out()
        for helper in helpers:
            helper.result()


@cache
def _openmp() -> ctypes.CDLL | None:
    """The GNU OpenMP that torch has loaded; None with another one."""
    for path in (Path(torch.__file__).parent / "lib").glob("libgomp*"):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "omp_pause_resource_all"):
            return library
    return None


def release_cores() -> None:
    """Let this thread's OpenMP workers go: for milliseconds after a product they would spin on the others' cores.

    The next product starts new ones, which takes a tenth of a millisecond.
    """
    if (library := _openmp()) is not None:
        library.omp_pause_resource_all(1)  # omp_pause_soft


def _columns(block: int, size: int) -> slice:
    return slice(block * BLOCK, min((block + 1) * BLOCK, size))


class _Array(NamedTuple):
    """A `Span` as an array."""

    first: int
    last: int
    std: float
    gradient: np.ndarray
    scale: float


def _add(arrays: Sequence[_Array], own: slice, noise: np.ndarray) -> None:
    """Add the noise of the columns `own` to the gradients of all arrays that it meets."""
    from edp_lab.privacy.csprng_numba import scale_and_add  # its compiler takes a third of a second to load

    for first, last, std, whole, scale in arrays[bisect_right(arrays, own.start, key=attrgetter("last")) :]:
        if first >= own.stop:
            break
        start, stop = max(own.start, first), min(own.stop, last)
        own_noise, gradient = noise[start - own.start : stop - own.start], whole[start - first : stop - first]
        assert len(gradient) == len(own_noise), "a span's columns are not as many as its numbers"
        of = gradient.dtype.type
        if scale == 0:
            np.multiply(own_noise, of(std), out=gradient)
        else:
            scale_and_add(gradient, of(scale), own_noise, of(std))


def _fill(out: np.ndarray, key: int, step: int, block: int, share: Share) -> None:
    """The numbers of one block."""
    if share.kind == "per-device":
        out[:] = 0
        own = np.empty_like(out)
        for device in share.devices:
            fill_normal(SecretStream(key, Purpose.DEVICE_NOISE, step, device, block), own)
            out += own
        out /= np.sqrt(share.num_devices).astype(out.dtype)
        return
    fill_normal(SecretStream(key, Purpose.NOISE, step, block), out)
    if share.kind == "shared":
        out *= out.dtype.type(len(share.devices) / share.num_devices)
