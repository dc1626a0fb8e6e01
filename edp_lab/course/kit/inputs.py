"""What computations of several notebooks take: whole numbers in bounds, and a mechanism as sliders describe it."""

from __future__ import annotations

import math
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from edp_lab.errors import UsageError
from edp_lab.privacy import Alpha, Mechanism

Array = NDArray[np.float64]

BATCH = 64  # utterances in a step, cut into one micro-batch per device
AS_PRINTED, PUBLIC_ALPHA, SOUND = "as printed", "as printed, α public", "sound"
VARIANTS = (AS_PRINTED, PUBLIC_ALPHA, SOUND)


def check_whole(name: str, value: int, least: int, most: int) -> None:
    """UsageError unless `value` is a whole number from `least` to `most`."""
    if not isinstance(value, Integral) or not least <= value <= most:
        raise UsageError(f"the {name} is {value}: it must be a whole number from {least} to {most:,}")


def check_positive(name: str, value: float) -> float:
    """The value; UsageError unless it is a finite number above 0."""
    if not 0 < value < math.inf:
        raise UsageError(f"the {name} is {value}: it must be a finite number greater than 0")
    return value


def check_seed(seed: int) -> None:
    """UsageError where a seed is negative."""
    if seed < 0:
        raise UsageError(f"seed is {seed}: it must be 0 or more")


def mechanism_of(variant: str, clip_norm: float, z0: float, decay: str, tau: float, num_devices: int) -> Mechanism:
    """One of `VARIANTS` on batches of 64, one micro-batch per device.

    Raises:
        UsageError: as `Mechanism`; 64 devices or more.
    """
    if num_devices >= BATCH:
        raise UsageError(
            f"{num_devices} devices for a batch of {BATCH}: Algorithm 1 asks for fewer devices than utterances in a "
            "batch; lower N"
        )
    size = math.ceil(BATCH / max(1, num_devices))
    if variant == SOUND:
        return Mechanism.sound(clip_norm, z0, num_devices, size, decay, tau)
    alpha = Alpha.PRIVATE if variant == AS_PRINTED else Alpha.PUBLIC
    return Mechanism.as_printed(clip_norm, z0, num_devices, size, decay, tau, alpha)
