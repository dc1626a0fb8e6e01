"""What the rooms' computations take, and refuse with one sentence. No widgets."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from edp_lab import errors
from edp_lab.errors import UsageError
from edp_lab.privacy import Alpha, Mechanism

Array = NDArray[np.float64]
BATCH = 64  # utterances in a step, cut into one micro-batch per device
DEVICES = (1, 2, 4, 8, 16, 32)  # numbers of them that are compared
DELTA = 1e-5  # the usual one, where no corpus has its own
AS_PRINTED, PUBLIC_ALPHA, SOUND = "as printed", "as printed, α public", "sound"
VARIANTS = (AS_PRINTED, PUBLIC_ALPHA, SOUND)


def require(holds: object, sentence: str) -> None:
    """UsageError with this sentence, which names culprit and cure, unless something `holds`."""
    if not holds:
        raise UsageError(sentence)


def check_whole(name: str, value: int, least: int, most: int) -> None:
    """UsageError unless `value` is a whole number from `least` to `most`."""
    errors.check_whole(f"the {name}", value, least, most)


def check_share(name: str, share: float) -> None:
    """UsageError unless a share lies in [0, 1]."""
    require(0 <= share <= 1, f"the share of {name} is {share}: it must lie between 0 and 1")


def check_seed(seed: int) -> None:
    """UsageError where a seed is negative."""
    require(seed >= 0, f"seed is {seed}: it must be 0 or more")


def check_option(what: str, name: str, options: Collection[str]) -> None:
    """UsageError unless the name is one of the options."""
    require(name in options, f"unknown {what} {name!r}: choose {', '.join(options)}")


def rng_of(seed: int, purpose: int) -> np.random.Generator:
    """Random numbers of a seed, others for each purpose; UsageError where the seed is negative."""
    check_seed(seed)
    return np.random.default_rng([seed, purpose])


def mechanism_of(variant: str, clip_norm: float, z0: float, decay: str, tau: float, num_devices: int) -> Mechanism:
    """One of `VARIANTS` on batches of 64, one micro-batch per device.

    UsageError: as `Mechanism`; 64 devices or more.
    """
    told = "Algorithm 1 asks for fewer devices than utterances in a batch; lower N"
    require(num_devices < BATCH, f"{num_devices} devices for a batch of {BATCH}: {told}")
    size = math.ceil(BATCH / max(1, num_devices))
    if variant == SOUND:
        return Mechanism.sound(clip_norm, z0, num_devices, size, decay, tau)
    alpha = Alpha.PRIVATE if variant == AS_PRINTED else Alpha.PUBLIC
    return Mechanism.as_printed(clip_norm, z0, num_devices, size, decay, tau, alpha)


SHARED = 8  # utterances in a micro-batch: with more than one, replace-one costs the same as zero-out, a move by 2C


def attacked_mechanism(
    as_printed: bool, clip_norm: float, z0: float, num_devices: int, alpha_max: float = 1.0
) -> Mechanism:
    """What attacks and audits are held against: eDP-SGD with public layer scales (as printed), or none (sound)."""
    if as_printed:
        return Mechanism.as_printed(clip_norm, z0, num_devices, SHARED, alpha=Alpha.PUBLIC, alpha_max=alpha_max)
    return Mechanism.sound(clip_norm, z0, num_devices, SHARED)
