"""Loops over the numbers of a gradient, compiled for this machine: numpy would go through memory once per operation.

Uniform bits become normal numbers by Box and Muller's method (1958). In single precision the logarithm, the sine and
the cosine are polynomials (of Cephes, Moshier 1989), so that the loop runs on the processor's vectors: a third of
numpy's time, and normals within 2e-6 of their exact values. They are the same on every machine, as nothing in them is
rounded but by single products, sums and roots (no contraction to fused products).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

i32, u32, f32, u64 = np.int32, np.uint32, np.float32, np.uint64

ONE, HALF, QUARTER, THREE_QUARTERS = f32(1), f32(0.5), f32(0.25), f32(0.75)
UNIT = f32(2.0**-31)
ROOT_HALF = i32(round(2**31 * math.sqrt(0.5)))  # as a fraction of 2^31, below as a float's bits
ROOT_HALF_BITS = i32(f32(math.sqrt(0.5)).view(i32))
MANTISSA = i32(23)  # bits
LN_2 = f32(math.log(2))
EIGHTH_TURN = f32(math.pi / 4)


def compiled(*signatures: str, reassociate: bool = False) -> Callable[[Any], Any]:
    """Machine code for these types, kept for other processes where there is a place for it.

    All types are compiled at once: processes that begin together write the same files. `reassociate`: sums may be
    formed in another order, which makes them fast and their last bits the machine's.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    if reassociate:
        options["fastmath"] = {"reassoc", "contract"}

    def decorate(loop: Any) -> Any:
        try:
            return njit(list(signatures), cache=True, **options)(loop)
        except RuntimeError:  # neither this folder nor the user's cache can be written
            return njit(list(signatures), **options)(loop)

    return decorate


@compiled("void(uint32[::1], uint32[::1], float32[::1], float32[::1])")
def normal_single(radii: np.ndarray, angles: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    """Two independent standard normals, float32, from 32 bits and 32 bits; all arrays are (n).

    -log u for u in (0, 1) keeps its digits at both ends: near 1 it is formed from 1 - u. The angle lies within an
    eighth of a turn of 45 degrees, for which short polynomials do; two further bits are the signs.
    """
    for i in range(len(first)):
        bits = u32(radii[i])
        whole, part = i32(bits >> u32(1)), HALF * f32(i32(bits & u32(1)))
        u = (f32(whole) + (part + QUARTER)) * UNIT
        pattern = np.float32(u).view(np.int32)
        power = i32(i32(pattern - ROOT_HALF_BITS) >> MANTISSA)
        mantissa = np.int32(pattern - i32(power << MANTISSA)).view(np.float32)
        below = (f32(i32(i32(2**31 - 1) - whole)) + (THREE_QUARTERS - part)) * UNIT  # 1 - u
        x = -below if whole > ROOT_HALF else mantissa - ONE
        x2 = x * x  # by pairs of powers: steps that need not wait for one another
        y = f32(1.1676998740e-1) - f32(1.1514610310e-1) * x + f32(7.0376836292e-2) * x2
        y = f32(1.4249322787e-1) - f32(1.2420140846e-1) * x + y * x2
        w = f32(2.0000714765e-1) - f32(1.6668057665e-1) * x
        y = f32(3.3333331174e-1) - f32(2.4999993993e-1) * x + w * x2 + y * (x2 * x2)
        log = x + x2 * (y * x - HALF) + f32(power) * LN_2
        radius = f32(math.sqrt(-log))  # over the square root of 2
        turned = u32(angles[i])
        angle = f32(i32(np.uint32(turned).view(np.int32) >> i32(2))) * (f32(2.0**-29) * EIGHTH_TURN)
        z = angle * angle
        sin = angle + angle * z * (f32(-1.6666654611e-1) + z * (f32(8.3321608736e-3) - z * f32(1.9515295891e-4)))
        cos = f32(2.443315711809948e-5)
        cos = cos * z - f32(1.388731625493765e-3)
        cos = cos * z + f32(4.166664568298827e-2)
        cos = ONE - HALF * z + z * z * cos
        left, right = radius * (cos - sin), radius * (cos + sin)
        first[i] = np.uint32(np.float32(left).view(np.uint32) ^ u32(turned << u32(31))).view(np.float32)
        second[i] = np.uint32(np.float32(right).view(np.uint32) ^ u32((turned >> u32(1)) << u32(31))).view(np.float32)


@compiled("void(uint64[::1], uint64[::1], float64[::1], float64[::1])")
def normal_double(radii: np.ndarray, angles: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    """The same in float64, from 53 of 64 bits each."""
    for i in range(len(first)):
        radius = math.sqrt(-2 * math.log(((radii[i] >> u64(11)) + 0.5) * 2.0**-53))
        angle = (angles[i] >> u64(11)) * (2 * math.pi * 2.0**-53)
        first[i] = radius * math.cos(angle)
        second[i] = radius * math.sin(angle)


@compiled("void(float32[::1], float32, float32[::1], float32)", "void(float64[::1], float64, float64[::1], float64)")
def scale_and_add(gradient: np.ndarray, scale: float, noise: np.ndarray, std: float) -> None:
    """gradient (n) becomes scale times itself plus std times the noise (n), all of one precision."""
    for i in range(len(gradient)):
        gradient[i] = scale * gradient[i] + std * noise[i]
