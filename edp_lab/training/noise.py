"""A step's noise, and how it is drawn: by one process or many.

`edp_lab.training.dp_step.add_noise` says by how much to scale it.

* rounded: the sound step's. It comes after the sum over devices and ranks, and every rank releases all P numbers for
  itself; sum and noise are rounded together, so that the bits released are those of an ideal normal and nothing else
  (`edp_lab.privacy.exact_noise`). The vector is cut into blocks with a stream each, which threads share.
* float noise, as printed and for teaching: numpy's normals, from streams of (key, step, device).
  aggregate: one draw for the sum over all devices, by rank 0.
  per-device: every device draws all P numbers; their sum over sqrt(N) is distributed alike.
  shared: all devices add one common draw, which every rank makes for itself.

Guarantee: the sum over ranks is one fresh vector for each step, standard normal up to rounding, and with one key the
numbers are the same whatever the number of ranks (per device, up to the order of a sum). Float noise comes from a
generator that is not cryptographic, and its last bits betray what it is added to: it promises nothing.
"""

from __future__ import annotations

import ctypes
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from edp_lab.errors import UsageError
from edp_lab.privacy.csprng import Purpose, stream
from edp_lab.privacy.exact_noise import Piece, release

BLOCK = 2**19  # of rounded noise: to begin a stream takes time, and keeps all threads waiting


class Rows(NamedTuple):
    """Rows (r, D) of a table whose other rows are zero, and their numbers (r), no two alike."""

    numbers: Tensor
    rows: Tensor


class Span(NamedTuple):
    """Some columns of a sum of P numbers, as they lie in memory: the sum is `scale` times the numbers."""

    columns: slice  # which of the P
    numbers: Tensor  # (n) that lie together
    scale: float = 1.0
    rows: Rows | None = None  # where there are some, numbers are these, and what stands there does not matter


class Noise(Protocol):
    """The standard normal noise (P) of one step, drawn or yet to be drawn."""

    def add_to(self, spans: Sequence[Span], stds: Sequence[float]) -> None:
        """Make the numbers of each span what it means plus its std times the noise of its columns.

        Spans come in the order of their columns. Scaling and adding take one pass through memory.
        """
        ...


def filled(span: Span) -> Span:
    """The same sum, of numbers that are there: a table's rows in their places, and zeros around them."""
    if span.rows is None:
        return span
    table = span.numbers.zero_().view(-1, span.rows.rows.shape[1])
    table.index_copy_(0, *span.rows)
    return span._replace(rows=None)


@dataclass(frozen=True)
class DrawnNoise:
    """Noise that has been drawn: numbers (P), on the device of what they are added to."""

    numbers: Tensor

    def add_to(self, spans: Sequence[Span], stds: Sequence[float]) -> None:
        for span, std in zip(map(scaled_, spans), stds, strict=True):
            span.numbers.add_(self.numbers[span.columns], alpha=std)


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


def part(count: int, rank: int, world: int) -> range:
    """Of `count` things in a row, those of one rank: consecutive, and evenly spread."""
    return range(count * rank // world, count * (rank + 1) // world)


def standard_noise(key: int, step: int, size: int, share: Share, dtype: torch.dtype = torch.float32) -> Tensor:
    """This rank's share of a step's float noise: (size). Summed over ranks, standard normal."""
    kind = np.dtype(str(dtype).removeprefix("torch."))
    if share.kind == "per-device":
        total = np.zeros(size, dtype=kind)
        for device in share.devices:
            total += stream(key, Purpose.DEVICE_NOISE, step, device).standard_normal(size, dtype=kind)
        return torch.from_numpy(total / kind.type(math.sqrt(share.num_devices)))
    if share.kind == "aggregate" and share.rank:
        return torch.zeros(size, dtype=dtype)
    noise = torch.from_numpy(stream(key, Purpose.NOISE, step).standard_normal(size, dtype=kind))
    return noise * (len(share.devices) / share.num_devices) if share.kind == "shared" else noise


def scaled_(span: Span) -> Span:
    """The same sum, of numbers that mean themselves: scaled in place."""
    span = filled(span)
    if span.scale != 1:
        span.numbers.mul_(span.scale)
    return span._replace(scale=1.0)


class NoiseSource:
    """The noise of one step after the other.

    Args:
        key: 128 bits, see `edp_lab.privacy.csprng`.
        size: P.
        share: of float noise, what this rank draws; None for noise that is rounded with the sum, on every rank alike.
        threads: how many round at a time.
    """

    def __init__(
        self, key: int, size: int, share: Share | None, dtype: torch.dtype = torch.float32, threads: int = 1
    ) -> None:
        self.key, self.size, self.share, self.dtype, self.threads = key, size, share, dtype, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="noise")
        self._last = -1

    def of(self, step: int, entry: Future[None] | None = None) -> Noise:
        """This rank's share of the noise of `step`, which can be added once.

        Guarantee: nothing of it is drawn before `entry`, the step's entry into the ledger, is done. If that fails,
        so does adding the noise, by the same exception.

        Raises:
            UsageError: `step` is not beyond the last one; the same noise on two gradients could be subtracted.
        """
        if step <= self._last:
            raise UsageError(f"the noise of step {step} may have been used already: number all steps upwards")
        self._last = step
        return _StepNoise(self, step, entry)

    def round(self, step: int, spans: Sequence[Span], stds: Sequence[float]) -> None:
        """Round sum and noise together, on the CPU: a GPU's sum comes there and goes back."""
        away = spans[0].numbers.device.type != "cpu"
        here = [span._replace(numbers=span.numbers.cpu()) for span in map(filled, spans)] if away else spans

        def release_block(block: int) -> None:
            _round([*_pieces(here, stds, columns_of(block, self.size))], self.key, step, block)

        self.share_out(range(-(-self.size // BLOCK)), release_block)
        if away:
            for span, copy in zip(spans, here, strict=True):
                span.numbers.copy_(copy.numbers)

    def share_out(self, blocks: range, work: Callable[[int], None]) -> None:
        """Do the work on every block, by as many threads as there are."""
        left = iter(blocks)

        def help_out() -> None:
            for block in left:
                work(block)

        if self.threads > 1:
            release_cores()
        helpers = [self._pool.submit(help_out) for _ in range(self.threads - 1)]
        help_out()
        for helper in helpers:
            helper.result()


@dataclass
class _StepNoise:
    """What `NoiseSource.of` gives."""

    source: NoiseSource
    step: int
    entry: Future[None] | None
    used: bool = field(default=False, init=False)

    def add_to(self, spans: Sequence[Span], stds: Sequence[float]) -> None:
        if self.used:
            raise RuntimeError(f"the noise of step {self.step} has been used")
        self.used, source = True, self.source
        if self.entry is not None:
            self.entry.result()
        if source.share is None:
            source.round(self.step, spans, stds)
        else:
            noise = standard_noise(source.key, self.step, source.size, source.share, source.dtype)
            DrawnNoise(noise.to(spans[0].numbers.device)).add_to(spans, stds)


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


def columns_of(block: int, size: int) -> slice:
    """The columns of one block of P numbers."""
    return slice(block * BLOCK, min((block + 1) * BLOCK, size))


def _pieces(spans: Sequence[Span], stds: Sequence[float], block: slice) -> Iterator[Piece]:
    """The numbers of all spans that lie in the columns `block`; rows come to their places while in the cache."""
    from edp_lab.privacy.csprng_numba import fill_rows  # its compiler takes a third of a second to load

    first = bisect_right(spans, block.start, key=lambda span: span.columns.stop)
    for (columns, whole, scale, rows), std in zip(spans[first:], stds[first:], strict=True):
        if columns.start >= block.stop:
            break
        if len(whole) != columns.stop - columns.start:
            raise RuntimeError("a span's columns are not as many as its numbers")
        start = max(block.start, columns.start) - columns.start
        numbers = whole.numpy()[start : block.stop - columns.start]
        if rows is not None:
            fill_rows(numbers, start, rows.numbers.numpy(), rows.rows.numpy())
        yield Piece(numbers, scale, std)


def _round(pieces: Sequence[Piece], key: int, step: int, block: int) -> None:
    """The sum in one block becomes what is released of it."""
    release(pieces, key, Purpose.NOISE, step, block)
