"""Assignment of utterances to steps, devices and micro-batches, as a function of the key alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from edp_lab.privacy.csprng import Purpose, SecretStream, stream, uniform_hash

Devices = list[list[np.ndarray]]  # the micro-batches of each device


@dataclass(frozen=True)
class Batches:
    """Batches of a run, identical on every rank; with a `secret` key, all randomness comes from a stream cipher.

    With "shuffle", each epoch is one pass in a new order, divided into disjoint batches. Micro-batches are slices of a
    batch with sizes that differ by at most one. With "poisson", each utterance is drawn independently with probability
    `sampling_rate`, and a keyed hash of its index selects its micro-batch: an extra utterance does not move any others.
    """

    key: int
    examples: int  # n, indexed from 0
    batch_size: int  # utterances per step; with Poisson sampling, the expected number
    num_devices: int  # N
    micro_batches: int  # M per step, at least N; device i has the i-th shard
    sampling: str
    per_example: bool  # one micro-batch per utterance; with Poisson sampling, their number varies from step to step
    secret: bool = False

    @property
    def sampling_rate(self) -> float:
        """Sampling rate q under Poisson sampling."""
        return min(1.0, self.batch_size / self.examples)

    @property
    def steps_per_epoch(self) -> int:
        if self.sampling == "poisson":
            return math.ceil(1 / self.sampling_rate)
        return math.ceil(self.examples / self.batch_size)

    def devices(self, epoch: int, step_in_epoch: int, step: int) -> Devices:
        """Return the micro-batches of every device in one step; `step` counts from the start of the run."""
        if self.sampling == "shuffle":
            start = step_in_epoch * self.batch_size
            batch = _order(self.key, epoch, self.examples, self.secret)[start : start + self.batch_size]
            micro_batches = np.array_split(batch, self.micro_batches)
        else:
            drawn, chance = self._sampled(step)
            if self.per_example:
                device = (chance * self.num_devices).astype(np.int64)
                return [[drawn[k : k + 1] for k in np.flatnonzero(device == i)] for i in range(self.num_devices)]
            place = (chance * self.micro_batches).astype(np.int64)
            micro_batches = [drawn[place == m] for m in range(self.micro_batches)]
        shards = (shard(self.micro_batches, i, self.num_devices) for i in range(self.num_devices))
        return [micro_batches[numbers.start : numbers.stop] for numbers in shards]

    def _sampled(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the sampled utterances (r) and an independent number in [0, 1) for each (r)."""
        if not self.secret:
            drawn = np.flatnonzero(stream(self.key, Purpose.SAMPLE, step).random(self.examples) < self.sampling_rate)
            return drawn, uniform_hash(self.key, step, drawn, 1)[:, 0].astype(np.float64)
        words = SecretStream(self.key, Purpose.SAMPLE, step).words(2 * self.examples).reshape(-1, 2) >> np.uint64(11)
        drawn = np.flatnonzero(words[:, 0] < np.uint64(math.floor(self.sampling_rate * 2.0**53)))  # rounded down
        return drawn, words[drawn, 1] * 2.0**-53


def shard(count: int, rank: int, world: int) -> range:
    """Return the contiguous shard of `range(count)` for `rank` of `world`; shard sizes differ by at most one."""
    return range(count * rank // world, count * (rank + 1) // world)


@lru_cache(maxsize=1)
def _order(key: int, epoch: int, examples: int, secret: bool) -> np.ndarray:
    """Return a random order of the examples for one epoch; with a secret key, sort random 64-bit words."""
    if secret:
        return np.argsort(SecretStream(key, Purpose.SHUFFLE, epoch).words(examples), kind="stable")
    return stream(key, Purpose.SHUFFLE, epoch).permutation(examples)
