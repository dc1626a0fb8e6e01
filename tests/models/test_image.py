"""The thesis' networks: their sizes, and gradients of micro-batches against a loop by plain autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from edp_lab.errors import UsageError
from edp_lab.models import image
from edp_lab.models.ghost_clipping import bookkeeping
from edp_lab.models.ghost_clipping.ops import MicroBatchOps
from edp_lab.models.image import ImageBatch, ImageClassifier, ImageData, build_classifier

NETWORKS = {
    "cnn": ("cnn", (1, 28, 28)),
    "cnn, two channels, not square": ("cnn", (2, 20, 25)),
    "cnn of digits": ("cnn", (1, 8, 8)),
    "alexnet": ("alexnet", (1, 28, 28)),
    "vgg": ("vgg", (1, 28, 28)),
    "vgg of digits": ("vgg", (1, 8, 8)),
    "mlp": ("mlp", (2,)),
}


def network(name: str, activation: str = "tanh") -> ImageClassifier:
    kind, shape = NETWORKS[name]
    return build_classifier(kind, shape, 3, seed=1, activation=activation).double()


def batch(model: ImageClassifier, size: int) -> ImageBatch:
    generator = torch.Generator().manual_seed(size)
    x = torch.rand(size, *model.shape, dtype=torch.float64, generator=generator)
    return ImageBatch(x, torch.randint(model.classes, (size,), generator=generator))


def looped(model: ImageClassifier, data: ImageBatch, sizes: list[int]) -> torch.Tensor:
    """(M, P) gradient of the mean loss of each micro-batch, one after the other."""
    rows, parameters = [], list(model.parameters())
    for x, y in zip(data.images.split(sizes), data.labels.split(sizes), strict=True):
        loss = model.losses(ImageBatch(x, y)).mean() if len(x) else sum(p.sum() for p in parameters) * 0
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    return torch.stack(rows)


def kept(model: ImageClassifier, data: ImageBatch, sizes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Norms (M, K), and the same gradients one by one as weighted sums (M, P)."""
    parameters = list(model.parameters())
    ops = MicroBatchOps(parameters, sizes)
    weights = ops.cut.spread(1 / ops.cut.sizes.double(), None)
    (model.losses(data, ops) * weights).sum().backward()
    assert all(p.grad is None for p in parameters)
    norms = ops.norms()
    rows = torch.zeros(len(sizes), sum(p.numel() for p in parameters), dtype=torch.float64)
    for row, factors in zip(rows, torch.eye(len(sizes), dtype=torch.float64), strict=True):
        ops.add_weighted_sum(row, factors)
    return norms, rows


@pytest.fixture(params=["formed", "a piece at a time", "no room"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much memory there is for gradients, or for the patches that make them up."""
    if request.param != "formed":
        monkeypatch.setattr(image, "PATCHES", 1)
    if request.param == "no room":
        monkeypatch.setattr(bookkeeping, "ROOM", 0)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("sizes", [[1] * 5, [2, 2], [3, 0, 1, 1]], ids=["examples", "pairs", "uneven"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_micro_batches_equal_a_loop(name: str, sizes: list[int]):
    model = network(name)
    data = batch(model, sum(sizes))
    expected = looped(model, data, sizes)
    norms, rows = kept(model, data, sizes)
    assert torch.allclose(rows, expected, rtol=0, atol=1e-10)
    columns = expected.split([p.numel() for p in model.parameters()], dim=1)
    by_layer = torch.stack([part.norm(dim=1) for part in columns], dim=1)
    assert torch.allclose(norms, by_layer, rtol=0, atol=1e-10)
    assert expected.abs().max() > 1e-3


def test_relu_networks_have_the_same_gradients_both_ways():
    for name in ("cnn", "alexnet"):
        model = network(name, "relu")
        data = batch(model, 4)
        assert torch.allclose(kept(model, data, [1] * 4)[1], looped(model, data, [1] * 4), rtol=0, atol=1e-10)


def test_the_unweighted_sum_is_the_gradient_of_the_batch():
    model = network("cnn")
    data, parameters = batch(model, 6), list(model.parameters())
    ops = MicroBatchOps(parameters, [6])
    model.losses(data, ops).mean().backward()
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    ops.add_weighted_sum(total)
    assert torch.allclose(total[None], looped(model, data, [6]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_loss_does_not_depend_on_its_batch(name: str):
    """Else clipping would bound nothing: no network may normalise over a batch."""
    model = network(name)
    data = batch(model, 5)
    alone = torch.cat([model.losses(ImageBatch(data.images[[k]], data.labels[[k]])) for k in range(5)])
    assert torch.allclose(model.losses(data), alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "shape", "parameters"),
    [
        ("vgg", (3, 224, 224), 134_301_514),  # VGG-16 as published (138,357,544), with 10 classes for 1,000
        ("alexnet", (3, 224, 224), 58_322_314),  # AlexNet in one piece (62,378,344), with 10 classes for 1,000
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
    for activation in image.ACTIVATIONS:
        logits = build_classifier("vgg", (1, 28, 28), 10, activation=activation).logits(x)
        assert 0.05 < float(logits.detach().std()) < 20, activation


def test_predictions_are_the_largest_probabilities_whatever_the_size_of_a_pass(monkeypatch: pytest.MonkeyPatch):
    model = build_classifier("cnn", (1, 8, 8), 10)
    x = np.random.default_rng(0).random((7, 1, 8, 8), dtype=np.float32)
    whole = model.probabilities(x)
    monkeypatch.setattr(image, "SCORED", 3 * 64)
    assert np.allclose(model.probabilities(x), whole, atol=1e-6)
    assert np.allclose(whole.sum(1), 1, atol=1e-5)
    assert np.array_equal(model.predict(x), whole.argmax(1))
    with torch.no_grad():
        expected = nn.functional.softmax(model.logits(torch.from_numpy(x)), dim=1)
    assert np.allclose(whole, expected.numpy(), atol=1e-6)


def test_batches_are_taken_by_number():
    data = ImageData(np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6))
    chosen = data.batch(np.array([4, 0]))
    assert (chosen.images.tolist(), chosen.labels.tolist(), len(data)) == ([[8, 9], [0, 1]], [4, 0], 6)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("resnet", (1, 28, 28), 10), "unknown network 'resnet': choose cnn or alexnet or vgg or mlp"),
        (("cnn", (28, 28), 10), "cannot take examples of shape"),
        (("vgg", (1, 7, 28), 10), "cannot take examples of shape"),
        (("mlp", (), 10), "cannot take examples of shape"),
        (("mlp", (2,), 1), "in 1 classes"),
        (("mlp", (2,), 2, 0, "sigmoid"), "unknown activation 'sigmoid': choose relu or tanh"),
    ],
)
def test_impossible_networks_are_refused(arguments, problem: str):
    with pytest.raises(UsageError, match=problem):
        build_classifier(*arguments)


def test_first_layers_do_not_ask_for_a_gradient_of_the_images():
    """It would cost as much as the layer itself."""
    model = network("cnn")
    data = batch(model, 2)
    seen = []
    original = image._convolution_backward
    try:
        image._convolution_backward = lambda d, x, w, s, p, which: seen.append(which) or original(d, x, w, s, p, which)
        kept(model, data, [1, 1])
    finally:
        image._convolution_backward = original
    assert seen == [0], "of the second convolution alone"
