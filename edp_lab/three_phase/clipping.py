"""Ways to bound an example's gradient, side by side (the thesis' 2.4.8 and 3.2.2), and what each bounds.

A rule takes per-example gradients (B, P), one row each, and a threshold above 0. Its sensitivity is the L2 distance by
which adding or removing one example moves the sum of the rows that come out: the noise has to be in proportion to it.

    by norm       g min(1, C / ||g||)        C            2.4.8; what the private step does (Abadi et al. 2016)
    by value      each g_k cut to [-c, c]    c sqrt(P)    "by value" of 3.2.2
    normalising   C g / ||g||                C            "scaling" of 3.2.2; small gradients grow (Bu et al. 2022)
    as printed    C g / ||g|| if ||g|| <= C  unbounded    Algorithm 8: the wrong way round, so large gradients stay

Guarantee: the sensitivities hold for all finite gradients, up to the rounding of one product. Gradients that are not
finite, and a threshold that is not above 0, are refused by UsageError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from edp_lab.errors import UsageError


def by_norm(gradients: Tensor, threshold: float) -> Tensor:
    """Rows longer than the threshold become as long as it; the others, also those of length 0, stay as they are."""
    norms, units = _polar(gradients, threshold)
    return torch.where(norms > threshold, (threshold * units).to(gradients.dtype), gradients)


def by_value(gradients: Tensor, threshold: float) -> Tensor:
    """Each coordinate cut to at most the threshold, either way, which may turn a gradient."""
    _polar(gradients, threshold)
    return gradients.clamp(-threshold, threshold)


def normalising(gradients: Tensor, threshold: float) -> Tensor:
    """Every row becomes as long as the threshold, except those of length 0."""
    return (threshold * _polar(gradients, threshold)[1]).to(gradients.dtype)


def as_printed(gradients: Tensor, threshold: float) -> Tensor:
    """The thesis' Algorithm 8: rows up to the threshold become as long as it, and longer ones stay as they are (T7)."""
    norms, units = _polar(gradients, threshold)
    return torch.where(norms <= threshold, (threshold * units).to(gradients.dtype), gradients)


def clipped_mean(gradients: Tensor, threshold: float) -> Tensor:
    """What Algorithm 7 does as printed (T8): the mean of a batch, clipped by its norm: (B, P) -> (P).

    One example can turn the mean anywhere, so that it moves by up to twice the threshold, however large the batch: the
    mean of gradients that were clipped one by one moves by the threshold over B.
    """
    return by_norm(gradients.mean(0, keepdim=True), threshold)[0]


class Rule(NamedTuple):
    """How gradients are bounded."""

    clip: Callable[[Tensor, float], Tensor]  # gradients (B, P) and a threshold -> (B, P)
    sensitivity: Callable[[float, int], float]  # the threshold and P -> the largest L2 norm of a row of `clip`


RULES = {
    "by norm": Rule(by_norm, lambda threshold, size: threshold),
    "by value": Rule(by_value, lambda threshold, size: threshold * math.sqrt(size)),
    "normalising": Rule(normalising, lambda threshold, size: threshold),
    "as printed": Rule(as_printed, lambda threshold, size: math.inf),
}


def _polar(gradients: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """L2 norms (B, 1) and directions (B, P), float64; a gradient of 0 has direction 0.

    Each is divided by its largest coordinate first, so that no square overflows or underflows.
    """
    if not 0 < threshold < math.inf:
        raise UsageError(f"the clip threshold is {threshold}: it must be greater than 0")
    if not torch.isfinite(gradients).all():
        raise UsageError("a gradient is not finite, and C over its norm is no clip: lower the learning rate")
    largest = gradients.double().abs().amax(1, keepdim=True)
    scaled = gradients.double() / largest.clamp_min(5e-324)
    norms = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return largest * norms, scaled / norms.clamp_min(1.0)
