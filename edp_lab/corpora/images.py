"""Data sets of the thesis: scikit-learn's digits, MNIST from its original files, and points on two circles.

Raises UsageError for an unknown name, missing or damaged files, or impossible settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edp_lab.corpora.catalog import data_folders
from edp_lab.errors import UsageError
from edp_lab.files import read_bytes

CLASSES = 10
DIGITS_TEST = 600  # number of test images, out of 1,797
INNER = 0.8  # the smaller radius, scikit-learn's default


@dataclass(frozen=True)
class Images:
    """Labelled training and test examples."""

    name: str
    train: NDArray[np.float32]  # (n, channels, height, width) in [0, 1]; for `two_circles` (n, 2), points in [-1, 1]
    train_labels: NDArray[np.int64]  # (n) from 0 up to `classes` - 1
    test: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    classes: int


def load_images(name: str, seed: int = 0) -> Images:
    """Load a data set of the thesis by its name.

    * "digits": scikit-learn's 1,797 images of 1 x 8 x 8; `seed` draws the 600 test images.
    * "mnist": 60,000 and 10,000 images of 1 x 28 x 28, from the original idx files, gzipped or not, in ``mnist/`` in
      a data folder (`edp_lab.corpora.data_folders`). This is the published split, and `seed` is ignored.
    """
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        x, y = (digits.images[:, None] / 16).astype(np.float32), digits.target.astype(np.int64)
        order = np.random.default_rng(seed).permutation(len(x))
        test, train = order[:DIGITS_TEST], order[DIGITS_TEST:]
        return Images(name, x[train], y[train], x[test], y[test], CLASSES)
    if name == "mnist":
        return Images(name, *_mnist_part("train"), *_mnist_part("t10k"), CLASSES)
    raise UsageError(f"unknown image data {name!r}: choose digits or mnist")


def two_circles(train: int, test: int, seed: int = 0, noise: float = 0.0) -> Images:
    """Draw points on two circles around 0, with radius 1 (class 0) and 0.8 (class 1), at random angles.

    The thesis (section 3.1.1) used scikit-learn's ``make_circles``. We do not, because it spaces the points evenly:
    without noise, a test set of the same size would equal the training set.

    `noise`: standard deviation of Gaussian noise on each coordinate, in both sets.
    """
    if min(train, test) < 1:
        raise UsageError(f"a set of two circles has {min(train, test)} points: use at least 1")
    if not 0 <= noise < math.inf:
        raise UsageError(f"noise on the circles is {noise}: it must be 0 or more")
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=train + test)
    angle = rng.uniform(0, 2 * np.pi, train + test)
    points = np.where(labels, INNER, 1.0)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points = (points + noise * rng.standard_normal(points.shape)).astype(np.float32)
    return Images("circles", points[:train], labels[:train], points[train:], labels[train:], 2)


def _mnist_part(prefix: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    image_file, label_file = (_mnist_file(f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if not len(images) == len(labels) > 0:
        raise _damaged(label_file, f"it has {len(labels)} labels for {len(images)} images")
    if labels.max() >= CLASSES:
        raise _damaged(label_file, f"label {labels.max()} is outside 0..{CLASSES - 1}")
    return np.divide(images[:, None], 255, dtype=np.float32), labels.astype(np.int64)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes with this number of dimensions, gzipped if its name ends in ``.gz``."""
    content = read_bytes(path)
    start = 4 + 4 * dimensions
    magic = 0x800 + dimensions
    if len(content) < start or int.from_bytes(content[:4], "big") != magic:
        raise _damaged(path, f"it does not begin with {magic:#010x}")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    if len(content) - start != math.prod(shape):
        raise _damaged(path, f"its header announces {math.prod(shape):,} bytes, but {len(content) - start:,} follow")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _mnist_file(name: str) -> Path:
    folders = [folder / "mnist" for folder in data_folders()]
    paths = (folder / (name + suffix) for folder in folders for suffix in (".gz", ""))
    if path := next(filter(Path.is_file, paths), None):
        return path
    raise UsageError(
        f"MNIST's {name}.gz is in none of {', '.join(map(str, folders))}: run `edp-lab data fetch mnist`, or put the "
        "four original files into one of these folders"
    )


def _damaged(path: Path, problem: str) -> UsageError:
    return UsageError(f"{path} is damaged ({problem}): replace it by the original MNIST file")
