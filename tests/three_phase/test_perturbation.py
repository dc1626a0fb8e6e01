"""Phase I: the noise is as asked, the statistics are the thesis', and the epsilon is that of a whole image."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from edp_lab.corpora.images import load_images
from edp_lab.errors import UsageError
from edp_lab.three_phase.perturbation import (
    RESIZED,
    compare,
    image_guarantee,
    image_sensitivity,
    perturb,
    printed_sigma,
)

DIGITS = load_images("digits").train


def noised(sigma: float = 0.6, seed: int = 0) -> np.ndarray:
    return perturb(DIGITS, sigma, np.random.default_rng(seed))


def test_noise_is_normal_independent_not_clipped_and_of_its_own_in_every_block():
    noise = (noised().astype(np.float64) - DIGITS).ravel()
    assert stats.kstest(noise / 0.6, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(noise[:-64], noise[64:])[0, 1]) < 0.02
    assert noised().min() < -0.5
    assert noised().max() > 1.5
    assert np.array_equal(noised(0.0), DIGITS)
    black = np.zeros((4001, 1, 8, 8), dtype=np.float32)
    found = perturb(black, 0.6, np.random.default_rng(0))
    assert not (found == 0).any()
    assert not np.array_equal(found[:2000], found[2000:4000])
    assert found.dtype == np.float32
    assert not black.any()


def test_the_printed_sigma_goes_on_above_1():
    assert printed_sigma(0.5, 1e-5) == pytest.approx(math.sqrt(2 * math.log(125000)) / 0.5)
    assert printed_sigma(7, 1e-5) == pytest.approx(0.6921, abs=1e-4)


def test_noise_after_the_resize_would_protect_sixteen_times_less():
    before, after = (image_guarantee(shape, 0.6, 1e-5) for shape in ((1, 28, 28), RESIZED))
    assert before.sensitivity == 28
    assert after.sensitivity == pytest.approx(443.4, abs=0.05)
    assert after.epsilon > 200 * before.epsilon


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_no_two_images_are_further_apart_than_the_sensitivity(shape, seed):
    rng = np.random.default_rng(seed)
    distance = np.linalg.norm((rng.random(shape) - rng.random(shape)).ravel())
    assert distance <= image_sensitivity(shape) == np.linalg.norm(np.ones(shape).ravel())


def test_statistics_are_those_of_numpy_also_without_noise_or_contrast():
    found = compare(DIGITS, noised())
    x, y = DIGITS.ravel().astype(np.float64), noised().ravel().astype(np.float64)
    assert (found.before.mean, found.before.variance) == pytest.approx((x.mean(), x.var()))
    assert found.before.standard_deviation == pytest.approx(x.std())
    assert found.covariance == pytest.approx(np.cov(x, y, bias=True)[0, 1], rel=1e-5)
    assert found.correlation == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-5)
    assert found.signal_noise_ratio == pytest.approx(x.var() / 0.36, rel=0.02)
    each = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(DIGITS, noised(), strict=True)]
    assert found.image_correlation == pytest.approx(np.mean(each), rel=1e-5)
    same = compare(DIGITS, DIGITS)
    assert same.correlation == pytest.approx(1)
    assert same.image_correlation == pytest.approx(1)
    assert same.signal_noise_ratio == math.inf
    grey = np.full((3, 1, 2, 2), 0.5, dtype=np.float32)
    flat = compare(grey, grey)
    assert (flat.correlation, flat.image_correlation) == (0, None)


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        *((partial(noised, sigma), "sigma is") for sigma in (-1e-9, math.nan, math.inf)),
        *((partial(image_guarantee, (1, 8, 8), sigma, 1e-5), "sigma is") for sigma in (-1e-9, math.nan, math.inf)),
        *(
            (partial(perturb, wrong, 0.6, np.random.default_rng(0)), "between 0 and 1")
            for wrong in (255 * DIGITS, DIGITS - 0.01, np.where(DIGITS > 0.9, np.nan, DIGITS))
        ),
        *((partial(image_sensitivity, shape), "no pixels") for shape in ((), (1, 0, 8))),
        *((partial(compare, DIGITS[:0], other), "cannot compare") for other in (DIGITS[:5], DIGITS[:0])),
    ],
)
def test_what_makes_no_sense_is_refused(call, culprit):
    with pytest.raises(UsageError, match=culprit):
        call()
