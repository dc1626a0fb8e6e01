"""Phase I: Gaussian noise on every pixel, its effect on the data (the thesis' statistics) and its guarantee.

Source: Barzegar 2021, sections 2.6, 3.1 and 3.4.1. The thesis adds noise to training and test images before resizing
them. This is local DP (the data collector sees only noised images), not "global" DP, as the thesis says. Labels get no
noise. Raises UsageError for an invalid sigma, delta or shape, pixels outside [0, 1], or data sets that do not match.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edp_lab.errors import UsageError
from edp_lab.privacy.foundations import gaussian_epsilon
from edp_lab.privacy.gdp import check_delta

CLAIMED_EPSILON, CLAIMED_SIGMA = 2.5, 0.6  # section 3.5, step 1, at delta 1e-5
# Input size of the thesis' AlexNet and VGG. Images are enlarged after noise is added, so this is post-processing. If
# noise were added afterwards, the sensitivity would be 443 instead of 28. This bound is attained, because black stays
# black and white stays white. The enlarged pixels would be copies, so their noise would average out.
RESIZED = (3, 256, 256)
BLOCK = 2000  # images per chunk, because float64 noise for all of MNIST would take a gigabyte

Floats = NDArray[np.floating[Any]]


def perturb(images: Floats, sigma: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Add independent N(0, sigma^2) noise to every pixel, without clipping; any shape (n, ...).

    Guarantee for each image: see `image_guarantee`. Without noise (sigma 0), nothing is guaranteed. Noise and sum are
    float64, rounded to float32 at the end, with the caveats of `edp_lab.privacy.foundations`.
    """
    check_sigma(sigma)
    if images.size and not (images.min() >= 0 and images.max() <= 1):
        raise UsageError("pixels must be between 0 and 1, because the sensitivity depends on this range: rescale them")
    noised = images.astype(np.float32)
    if sigma:
        for block in np.split(noised, range(BLOCK, len(noised), BLOCK)):
            block += rng.normal(0.0, sigma, block.shape)
    return noised


def check_sigma(sigma: float) -> None:
    """Raise UsageError unless sigma is between 0 and a million, far more than is needed to hide a pixel in [0, 1]."""
    if not 0 <= sigma <= 1e6:
        raise UsageError(f"sigma is {sigma}: the noise on a pixel must have a standard deviation from 0 to 1,000,000")


@dataclass(frozen=True)
class Statistics:
    """Mean and spread of all pixels of a data set (equations 2.26, 2.27 and 2.28)."""

    mean: float
    variance: float
    standard_deviation: float


@dataclass(frozen=True)
class Perturbation:
    """Statistics of a data set before and after noise is added."""

    before: Statistics
    after: Statistics
    covariance: float  # between the pixels before and after noise, over all pixels; equations 2.29 and 2.30
    correlation: float
    # Mean over images of equation 3.4, the correlation within an image (the thesis' "0.8125"); None if no image has any
    # contrast.
    image_correlation: float | None
    signal_noise_ratio: float  # variance of the pixels over that of the noise, equation 2.32; inf without noise


def compare(before: Floats, after: Floats) -> Perturbation:
    """Compute the thesis' statistics of a data set and its noised copy, both (n, ...).

    None of these measures privacy: they measure how much of the signal is left.
    """
    if before.shape != after.shape or not before.size:
        raise UsageError(f"cannot compare images of shape {before.shape} with noised images of shape {after.shape}")
    original, noised = statistics(before), statistics(after)
    covariance = float(np.mean((before - original.mean) * (after - noised.mean), dtype=np.float64))
    spread = original.standard_deviation * noised.standard_deviation
    noise_variance = float(np.var(after - before, dtype=np.float64))
    total, count = 0.0, 0  # sum and number of correlations of images with contrast
    for start in range(0, len(before), BLOCK):
        correlations = image_correlations(*(part[start : start + BLOCK] for part in (before, after)))
        total += float(np.nansum(correlations))
        count += int((~np.isnan(correlations)).sum())
    return Perturbation(
        original,
        noised,
        covariance,
        correlation=covariance / spread if spread else 0.0,
        image_correlation=total / count if count else None,
        signal_noise_ratio=original.variance / noise_variance if noise_variance else math.inf,
    )


def image_correlations(before: Floats, after: Floats) -> NDArray[np.float64]:
    """Correlation of each image with its noised copy (equation 3.4): (n, ...) twice -> (n); NaN without contrast."""
    a, b = (images.reshape(len(images), -1) for images in (before, after))
    a, b = (flat - flat.mean(axis=1, keepdims=True, dtype=np.float64) for flat in (a, b))
    with np.errstate(invalid="ignore"):
        return (a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))  # type: ignore[no-any-return]


def statistics(images: Floats) -> Statistics:
    """Mean and spread over all pixels of images (n, ...)."""
    mean, variance = float(images.mean(dtype=np.float64)), float(images.var(dtype=np.float64))
    return Statistics(mean, variance, math.sqrt(variance))


@dataclass(frozen=True)
class ImageGuarantee:
    """Guarantee at `delta` for replacing one image by any other, with noise `sigma` on each pixel."""

    sigma: float
    delta: float
    sensitivity: float  # sqrt(pixels): L2 distance between an all-black and an all-white image, pixels in [0, 1]
    epsilon: float  # exact; inf without noise
    label_epsilon: float  # inf, because labels get no noise
    printed_epsilon: float  # by equation 3.1 with sensitivity 1, even for epsilon >= 1, which its theorem excludes


def image_guarantee(shape: Sequence[int], sigma: float, delta: float) -> ImageGuarantee:
    """Guarantee of Phase I for images of one `shape`, such as (1, 28, 28).

    Reference: (1, 28, 28), sigma 0.6, delta 1e-5 -> sensitivity 28, epsilon 1287. The thesis claims 2.5.
    """
    check_sigma(sigma)
    check_delta(delta)
    if not shape or min(shape) < 1:
        raise UsageError(f"images of shape {tuple(shape)} have no pixels")
    sensitivity, epsilon, printed = math.sqrt(math.prod(shape)), math.inf, math.inf
    if sigma:
        epsilon, printed = gaussian_epsilon(sensitivity, sigma, delta), math.sqrt(2 * math.log(1.25 / delta)) / sigma
    return ImageGuarantee(sigma, delta, sensitivity, epsilon, math.inf, printed)
