"""The thesis's networks: their sizes and their outputs. For gradients of micro-batches, see test_bookkeeping.py."""

import numpy as np
import pytest
import torch
from torch import nn

from edp_lab.errors import UsageError
from edp_lab.models import image
from edp_lab.models.ghost_clipping.ops import MicroBatchOps
from edp_lab.models.image import ImageBatch, build_classifier


@pytest.mark.parametrize(
    ("kind", "shape", "parameters"),
    [
        ("vgg", (3, 224, 224), 134_301_514),  # VGG-16 as published (138,357,544), with 10 classes instead of 1,000
        ("alexnet", (3, 224, 224), 58_322_314),  # AlexNet in one piece (62,378,344), with 10 classes instead of 1,000
        ("cnn", (1, 28, 28), 26_010),
        ("mlp", (2,), 25 * 2 + 25 + 25 * 10 + 10),
    ],
)
def test_full_networks_have_as_many_parameters_as_published(kind: str, shape: tuple[int, ...], parameters: int):
    with torch.device("meta"):
        model = build_classifier(kind, shape, 10)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_full_alexnet_takes_what_its_dense_layers_are_sized_for():
    assert build_classifier("alexnet", (3, 64, 64), 10).logits(torch.zeros(2, 3, 64, 64)).shape == (2, 10)


@pytest.mark.parametrize(("kind", "side"), [("vgg", 256), ("vgg", 28), ("alexnet", 256), ("alexnet", 28), ("cnn", 8)])
def test_small_variants_keep_the_layers(kind: str, side: int):
    with torch.device("meta"):
        model = build_classifier(kind, (1, side, side), 10)
    convolutions, dense = {"vgg": (13, 3), "alexnet": (5, 3), "cnn": (2, 2)}[kind]
    assert (len(model.convolutions), len(model.dense)) == (convolutions, dense)
    assert sum(p.numel() for p in model.parameters()) < (10**9 if side == 256 else 300_000)


def test_weights_are_a_function_of_the_seed():
    first, again, other = (build_classifier("cnn", (1, 28, 28), 10, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["dense.0.weight"], other["dense.0.weight"])


def test_signals_neither_vanish_nor_explode_on_the_way_through_a_deep_network():
    x = torch.rand(20, 1, 28, 28)
    for activation in image.GAINS:
        logits = build_classifier("vgg", (1, 28, 28), 10, activation=activation).logits(x)
        assert 0.05 < float(logits.detach().std()) < 20, activation


def test_predictions_are_the_largest_probabilities_whatever_the_size_of_a_pass(monkeypatch: pytest.MonkeyPatch):
    model = build_classifier("cnn", (1, 8, 8), 10)
    x = np.random.default_rng(0).random((7, 1, 8, 8), dtype=np.float32)
    whole = np.exp(model.log_probabilities(x))
    monkeypatch.setattr(image, "SCORED", 3 * 64)
    assert np.allclose(np.exp(model.log_probabilities(x)), whole, atol=1e-6)
    assert np.allclose(whole.sum(1), 1, atol=1e-5)
    assert np.array_equal(model.predict(x), whole.argmax(1))
    with torch.no_grad():
        expected = nn.functional.softmax(model.logits(torch.from_numpy(x)), dim=1)
    assert np.allclose(whole, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("cnn", (28, 28), 10), "does not support examples of shape"),
        (("vgg", (1, 7, 28), 10), "does not support examples of shape"),
        (("mlp", (), 10), "does not support examples of shape"),
        (("mlp", (2,), 1), "in 1 classes"),
    ],
)
def test_impossible_networks_are_refused(arguments, problem: str):
    with pytest.raises(UsageError, match=problem):
        build_classifier(*arguments)


def test_first_layers_do_not_ask_for_a_gradient_of_the_images(monkeypatch: pytest.MonkeyPatch):
    """This gradient would take as long as the layer itself."""
    model, seen, original = build_classifier("cnn", (1, 28, 28), 3), [], image._convolution_backward
    monkeypatch.setattr(image, "_convolution_backward", lambda *given: seen.append(given[-1]) or original(*given))
    ops = MicroBatchOps(list(model.parameters()), [1, 1])
    model.losses(ImageBatch(torch.rand(2, 1, 28, 28), torch.tensor([0, 1])), ops).sum().backward()
    assert seen == [0], "of the second convolution alone"
