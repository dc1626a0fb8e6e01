"""Which utterances take part in which step, on which device, in which micro-batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from edp_lab.privacy.csprng import Purpose, stream, uniform_hash
from edp_lab.training.noise import part

Devices = list[list[np.ndarray]]  # of each device, its micro-batches


@dataclass(frozen=True)
class Batches:
    """A function of the key alone, the same on every rank.

    With "shuffle", each epoch is one pass in a new order, cut into disjoint batches; micro-batches are slices whose
    sizes differ by at most one. With "poisson", each utterance takes part with chance `sampling_rate`, independently;
    its micro-batch is a keyed hash of its number, so that one utterance more moves no other.
    """

    key: int
    examples: int  # n, numbered from 0
    batch_size: int  # utterances in a step; with Poisson sampling, expected
    num_devices: int  # N
    micro_batches: int  # M in a step, at least N; device i holds the i-th part of them
    sampling: str
    alone: bool  # every utterance is a micro-batch of its own. Then a Poisson step has as many as it happens to draw

    @property
    def sampling_rate(self) -> float:
        """q, under Poisson sampling."""
        return min(1.0, self.batch_size / self.examples)

    @property
    def steps_per_epoch(self) -> int:
        if self.sampling == "poisson":
            return math.ceil(1 / self.sampling_rate)
        return math.ceil(self.examples / self.batch_size)

    def devices(self, epoch: int, step_in_epoch: int, step: int) -> Devices:
        """The micro-batches of every device in one step; `step` counts through all epochs."""
        if self.sampling == "shuffle":
            start = step_in_epoch * self.batch_size
            batch = _order(self.key, epoch, self.examples)[start : start + self.batch_size]
            micro_batches = np.array_split(batch, self.micro_batches)
        else:
            drawn = np.flatnonzero(stream(self.key, Purpose.SAMPLE, step).random(self.examples) < self.sampling_rate)
            chance = uniform_hash(self.key, step, drawn, 1)[:, 0].astype(np.float64)
            if self.alone:
                device = (chance * self.num_devices).astype(np.int64)
                return [[drawn[k : k + 1] for k in np.flatnonzero(device == i)] for i in range(self.num_devices)]
            place = (chance * self.micro_batches).astype(np.int64)
            micro_batches = [drawn[place == m] for m in range(self.micro_batches)]
        own = (part(self.micro_batches, i, self.num_devices) for i in range(self.num_devices))
        return [micro_batches[numbers.start : numbers.stop] for numbers in own]


@lru_cache(maxsize=1)
def _order(key: int, epoch: int, examples: int) -> np.ndarray:
    """One epoch's order, which all its steps share."""
    return stream(key, Purpose.SHUFFLE, epoch).permutation(examples)
