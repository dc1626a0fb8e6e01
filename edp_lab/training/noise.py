"""Drawing a step's noise: by one process or many, in the background while the gradient is computed.

All numbers are standard normal; `edp_lab.training.step.release` scales them. The vector of P numbers is cut into blocks
with a stream each, a function of (key, step, block), so that threads and ranks can share the work:

* aggregate: one draw for the sum over all devices. Each rank draws its part of the blocks, and zeros elsewhere.
* per-device: every device draws all P numbers from streams of its own; their sum over sqrt(N) is distributed alike.
* shared: all devices add one common secret draw, which every rank makes for itself.

Guarantee: whichever it is, the sum over ranks is one fresh standard normal vector for each step, and with one key the
first and the third are the same numbers whatever the number of ranks (per device, up to the order of a sum).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edp_lab.privacy.noise import Purpose, fill_normal, stream

KINDS = ("aggregate", "per-device", "shared")
BLOCK = 2**17


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
        _fill(noise.numpy(), key, step, block, share)
    return noise


class NoiseSource:
    """Draws in the background, into memory that is used again: take the noise of one step before starting the next.

    Args:
        key: 128 bits, see `edp_lab.privacy.noise`.
        size: P.
        threads: how many draw at a time.
    """

    def __init__(self, key: int, size: int, share: Share, dtype: torch.dtype = torch.float32, threads: int = 1) -> None:
        self.key, self.share = key, share
        self._noise = torch.zeros(size, dtype=dtype)
        self._pool = ThreadPoolExecutor(threads + 1, thread_name_prefix="noise")
        self._drawn: Future[None] | None = None

    def start(self, step: int, first: Callable[[], None]) -> None:
        """Begin with the noise of `step`, as soon as `first` (the entry into the ledger) has been done."""
        self._drawn = self._pool.submit(self._draw, step, first)

    def take(self) -> Tensor:
        """Wait for the noise: (P); valid until the next `start`. Raises what `first` raised."""
        assert self._drawn is not None
        self._drawn.result()
        self._drawn = None
        return self._noise

    def _draw(self, step: int, first: Callable[[], None]) -> None:
        first()
        blocks = self.share.blocks(len(self._noise))
        list(self._pool.map(lambda block: _fill(self._noise.numpy(), self.key, step, block, self.share), blocks))


def _fill(noise: np.ndarray, key: int, step: int, block: int, share: Share) -> None:
    out = noise[block * BLOCK : (block + 1) * BLOCK]
    if share.kind == "per-device":
        out[:] = 0
        own = np.empty_like(out)
        for device in share.devices:
            fill_normal(stream(key, Purpose.DEVICE_NOISE, step, device, block), own)
            out += own
        out /= np.sqrt(share.num_devices).astype(out.dtype)
        return
    fill_normal(stream(key, Purpose.NOISE, step, block), out)
    if share.kind == "shared":
        out *= out.dtype.type(len(share.devices) / share.num_devices)
