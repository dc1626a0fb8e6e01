"""Digits, MNIST from its idx files, and two circles: loading and refusals."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from edp_lab.corpora import images
from edp_lab.corpora.images import load_images, two_circles
from edp_lab.errors import UsageError


def idx(numbers: np.ndarray) -> bytes:
    """The bytes of a file in MNIST's original idx format: magic number, sizes, data."""
    return (0x800 + numbers.ndim).to_bytes(4, "big") + np.array(numbers.shape, ">u4").tobytes() + numbers.tobytes()


def pictures(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with four small files in MNIST's format, the only place that is searched."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    monkeypatch.setattr(images, "data_folders", lambda: [tmp_path])
    for prefix, count in (("train", 20), ("t10k", 10)):
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pictures(count))))
        labels = np.arange(count, dtype=np.uint8) % 10
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return folder


def test_digits_are_split_without_overlap_and_the_seed_draws_the_split():
    first, again, other = (load_images("digits", seed) for seed in (0, 0, 1))
    assert (first.train.shape, first.test.shape) == ((1197, 1, 8, 8), (600, 1, 8, 8))
    assert (first.train.min(), first.train.max(), first.train.dtype) == (0, 1, np.float32)
    assert set(first.train_labels) == set(first.test_labels) == set(range(first.classes))
    assert np.array_equal(first.test, again.test)
    assert not np.array_equal(first.test, other.test)
    every = np.concatenate([first.train, first.test]).reshape(1797, -1)
    shuffled = np.concatenate([other.train, other.test]).reshape(1797, -1)
    assert np.array_equal(every[np.lexsort(every.T)], shuffled[np.lexsort(shuffled.T)])


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_files_are_read_as_they_were_published(mnist: Path, zipped: bool):
    if not zipped:
        for path in list(mnist.iterdir()):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    data = load_images("mnist")
    assert data.train.shape == (20, 1, 28, 28)
    assert data.train.dtype == np.float32
    assert np.array_equal(np.rint(data.train[:, 0] * 255), pictures(20))
    assert np.array_equal(np.rint(data.test[:, 0] * 255), pictures(10))
    assert data.train_labels.tolist() == [*range(10), *range(10)]


def test_real_mnist_has_its_known_counts(real_data: Path):
    data = load_images("mnist")
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.train_labels).tolist() == counts
    assert data.test.shape == (10_000, 1, 28, 28)
    assert data.train_labels[:3].tolist() == [5, 0, 4]
    assert data.train.mean() == pytest.approx(0.1307, abs=1e-4)


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
WHOLE = gzip.compress(idx(pictures(20)))
DAMAGE = {
    "no gzip": (IMAGES, b"not gzipped", "cannot be read"),
    "gzip with a wrong bit": (IMAGES, WHOLE[:200] + bytes([WHOLE[200] ^ 16]) + WHOLE[201:], "damaged"),
    "empty": (IMAGES, gzip.compress(b""), "begin"),
    "header cut short": (IMAGES, gzip.compress(idx(pictures(1))[:9]), "begin"),
    "pixels missing": (IMAGES, gzip.compress(idx(pictures(20))[:-1]), "announces"),
    "announces more than memory": (IMAGES, gzip.compress(idx(pictures(1))[:4] + b"\xff" * 12), "announces"),
    "fewer labels": (LABELS, gzip.compress(idx(np.zeros(19, dtype=np.uint8))), "19 labels for 20 images"),
    "label 10": (LABELS, gzip.compress(idx(np.full(20, 10, dtype=np.uint8))), "label 10 is outside 0..9"),
    "nothing in it": (LABELS, gzip.compress(idx(np.zeros(0, dtype=np.uint8))), "0 labels"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_mnist_files_are_named_in_one_sentence(mnist: Path, damage: str):
    name, content, problem = DAMAGE[damage]
    (mnist / name).write_bytes(content)
    with pytest.raises(UsageError, match=problem) as refused:
        load_images("mnist")
    assert str(mnist / name) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("arguments", [(0, 10), (10, 0), (10, 10, 0, -0.1), (10, 10, 0, float("nan"))])
def test_what_is_missing_unknown_or_impossible_is_refused(mnist: Path, arguments):
    (mnist / LABELS).unlink()
    with pytest.raises(UsageError, match=f"{LABELS} is in none of"):
        load_images("mnist")
    with pytest.raises(UsageError, match="unknown image data 'cifar': choose digits or mnist"):
        load_images("cifar")
    with pytest.raises(UsageError, match="circles"):
        two_circles(*arguments)


def test_circles_lie_on_their_circles_and_the_test_points_are_others():
    data = two_circles(500, 400, seed=3)
    assert np.allclose(np.linalg.norm(data.train, axis=1), np.where(data.train_labels, 0.8, 1.0), atol=1e-6)
    assert (data.train.shape, data.test.shape, data.classes) == ((500, 2), (400, 2), 2)
    nearest = np.abs(data.train[:, None] - data.test).sum(2).min(0)
    assert np.count_nonzero(nearest) > 390
    noised = two_circles(500, 400, seed=3, noise=0.2)
    assert np.std(noised.train - data.train) == pytest.approx(0.2, rel=0.1)
