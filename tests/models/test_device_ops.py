"""One pass that collects a gradient per device, against a loop that runs the model once per micro-batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from edp_lab.corpora.corpus import Utterance
from edp_lab.corpora.encoding import Labels, WordFeatures
from edp_lab.models.clc import CLC, CLCSize
from edp_lab.models.ops import PLAIN, DeviceOps, column_slices

TAGS = ("O", "B-a", "I-a", "B-b", "I-b")
LABELS = Labels(("x", "y", "z"), TAGS)
WORDS = ("a", "play", "música", "antidisestablishmentarianism", "日本語", "aaaa", "to", "x")
LENGTHS = (4, 1, 7, 2, 1, 1, 5, 3)
KEY = 2**100 + 12345


def utterance(length: int, seed: int, tagged: bool = True) -> Utterance:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(len(WORDS), (length,), generator=generator).tolist()
    tags = torch.randint(len(TAGS), (length,), generator=generator).tolist()
    intent = LABELS.intents[seed % 3]
    return Utterance(tuple(WORDS[w] for w in words), tuple(TAGS[t] for t in tags) if tagged else None, intent)


def build(tagged: bool = True, vectors: bool = False, lengths=LENGTHS):
    torch.manual_seed(0)
    labels = LABELS if tagged else Labels(LABELS.intents, ())
    size = CLCSize(hidden=5, layers=2, word=4, character=3, filters=4, dropout=0.5)
    features = WordFeatures(WORDS[:5], buckets=3)
    model = CLC(labels, features, size, torch.randn(5, 6) if vectors else None).double()
    return model, model.dataset([utterance(n, k, tagged) for k, n in enumerate(lengths)])


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def by_loop(model, data, sizes: list[int], examples: list[int], key: int | None) -> Tensor:
    """The micro-batch mean gradients, one plain run of the model per device."""
    parameters, rows, start = trainable(model), [], 0
    for size in sizes:
        own, start = examples[start : start + size], start + size
        row = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        if own:
            loss = model.losses(data.batch(own), PLAIN, key).mean()
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            pairs = zip(gradients, parameters, strict=True)
            row = parameters_to_vector([torch.zeros_like(p) if g is None else g for g, p in pairs])
        rows.append(row)
    return torch.stack(rows)


def by_device_ops(model, data, sizes: list[int], examples: list[int], key: int | None) -> Tensor:
    parameters = trainable(model)
    buffer = torch.full((len(sizes), sum(p.numel() for p in parameters)), torch.nan, dtype=torch.float64)
    ops = DeviceOps(parameters, sizes, buffer)
    weights = torch.tensor([1 / size for size in sizes for _ in range(size)], dtype=torch.float64)
    (model.losses(data.batch(examples), ops, key) * weights).sum().backward()
    ops.finish()
    assert all(p.grad is None for p in parameters), "a gradient also went the ordinary way"
    return buffer


SIZES = [[8], [4, 4], [5, 1, 0, 2], [0, 0, 8], [1] * 8, [3, 3, 2], [8, 0], [1, 0, 0, 7]]


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "dropout"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_device_gets_its_own_mean_gradient(sizes, key):
    model, data = build()
    examples = [5, 0, 1, 2, 3, 4, 7, 6]
    ours = by_device_ops(model, data, sizes, examples, key)
    torch.testing.assert_close(ours, by_loop(model, data, sizes, examples, key), rtol=0, atol=1e-12)
    for row, size in zip(ours, sizes, strict=True):
        assert row.any() == (size > 0)


@pytest.mark.parametrize("tagged", [True, False], ids=["tags", "intents only"])
@pytest.mark.parametrize("vectors", [False, True], ids=["learnt words", "frozen words"])
def test_frozen_vectors_and_untagged_corpora(tagged, vectors):
    model, data = build(tagged, vectors)
    assert any(name == "words.weight" for name, p in model.named_parameters() if not p.requires_grad) == vectors
    ours = by_device_ops(model, data, [3, 0, 5], list(range(8)), KEY)
    torch.testing.assert_close(ours, by_loop(model, data, [3, 0, 5], list(range(8)), KEY), rtol=0, atol=1e-12)


@pytest.mark.parametrize("frozen", ["characters", "convolution", "lstm.0", "lstm.1", "slots", "crf", "intent", "words"])
def test_any_part_may_be_frozen(frozen):
    """A frozen part has no columns and receives nothing; the others are not disturbed."""
    model, data = build()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    sizes, examples = [2, 5, 1], list(range(8))
    ours = by_device_ops(model, data, sizes, examples, KEY)
    torch.testing.assert_close(ours, by_loop(model, data, sizes, examples, KEY), rtol=0, atol=1e-12)


@pytest.mark.parametrize("frozen", ["bias", "w_hh", "weight"])
def test_single_tensors_may_be_frozen(frozen):
    model, data = build()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith(frozen))
    sizes, examples = [2, 5, 1], list(range(8))
    ours = by_device_ops(model, data, sizes, examples, None)
    torch.testing.assert_close(ours, by_loop(model, data, sizes, examples, None), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sizes", [[2, 1, 3], [1] * 6, [0, 6]], ids=str)
def test_single_token_utterances_where_rows_and_examples_are_equally_many(sizes):
    model, data = build(lengths=[1] * 6)
    examples = list(range(6))
    ours = by_device_ops(model, data, sizes, examples, KEY)
    torch.testing.assert_close(ours, by_loop(model, data, sizes, examples, KEY), rtol=0, atol=1e-12)


def test_the_same_utterance_on_two_devices_counts_on_both():
    model, data = build()
    ours = by_device_ops(model, data, [2, 2], [3, 0, 0, 3], KEY)
    torch.testing.assert_close(ours[0], ours[1], rtol=0, atol=1e-12)


def test_losses_do_not_depend_on_the_devices():
    model, data = build()
    batch = data.batch(range(8))
    plain = model.losses(batch, PLAIN, KEY)
    for sizes in SIZES:
        buffer = torch.empty(len(sizes), sum(p.numel() for p in trainable(model)), dtype=torch.float64)
        devices = model.losses(batch, DeviceOps(trainable(model), sizes, buffer), KEY)
        torch.testing.assert_close(devices, plain, rtol=0, atol=1e-12)


def test_columns_stand_in_the_order_of_parameters_to_vector():
    model, data = build()
    parameters = trainable(model)
    expected = by_loop(model, data, [8], list(range(8)), None)[0]
    buffer = by_device_ops(model, data, [8], list(range(8)), None)[0]
    model.losses(data.batch(range(8))).mean().backward()
    torch.testing.assert_close(buffer, parameters_to_vector([p.grad for p in parameters]), rtol=0, atol=1e-12)
    torch.testing.assert_close(buffer, expected, rtol=0, atol=1e-12)
    for parameter, columns in zip(parameters, column_slices(parameters), strict=True):
        torch.testing.assert_close(buffer[columns].view_as(parameter), parameter.grad, rtol=0, atol=1e-12)
    assert column_slices(parameters)[-1].stop == sum(p.numel() for p in parameters)


def test_float32_stays_close():
    model, data = build()
    exact = by_device_ops(model, data, [3, 5], list(range(8)), None)
    single = model.float()
    parameters = trainable(single)
    buffer = torch.empty(2, sum(p.numel() for p in parameters))
    ops = DeviceOps(parameters, [3, 5], buffer)
    weights = torch.tensor([1 / 3] * 3 + [1 / 5] * 5)
    (single.losses(data.batch(range(8)), ops) * weights).sum().backward()
    ops.finish()
    assert (buffer - exact).norm() < 1e-5 * exact.norm()


def test_finishing_twice_counts_once():
    model, data = build()
    parameters = trainable(model)
    buffer = torch.empty(1, sum(p.numel() for p in parameters), dtype=torch.float64)
    ops = DeviceOps(parameters, [8], buffer)
    model.losses(data.batch(range(8)), ops).mean().backward()
    ops.finish()
    once = buffer.clone()
    ops.finish()
    assert torch.equal(buffer, once)


@pytest.mark.parametrize("sizes", [[3, 4], [4, 5], [0, 0]])
@pytest.mark.parametrize("tagged", [True, False])
def test_sizes_that_do_not_fit_the_batch_are_refused(sizes, tagged):
    """Too small a sum would drop utterances silently."""
    model, data = build(tagged)
    parameters = trainable(model)
    buffer = torch.empty(2, sum(p.numel() for p in parameters), dtype=torch.float64)
    ops = DeviceOps(parameters, sizes, buffer)
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        model.losses(data.batch(range(8)), ops).sum().backward()


def test_linear_and_embedding_pass_gradients_on_to_their_inputs():
    torch.manual_seed(1)
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    weight, bias = (nn.Parameter(torch.randn(*s, dtype=torch.float64)) for s in ((3, 4), (3,)))
    ops = DeviceOps([weight, bias], [1, 2], torch.empty(2, 15, dtype=torch.float64))
    rows = torch.tensor([1, 3, 2])
    assert torch.autograd.gradcheck(lambda v: ops.linear(v, weight, bias, rows), (x,))
    ours = torch.autograd.grad(ops.linear(x, weight, bias, rows).square().sum(), x)[0]
    theirs = torch.autograd.grad(nn.functional.linear(x, weight, bias).square().sum(), x)[0]
    torch.testing.assert_close(ours, theirs)


def test_a_second_derivative_is_refused_rather_than_wrong():
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    weight = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    ops = DeviceOps([weight], [6], torch.empty(1, 12, dtype=torch.float64))
    first = torch.autograd.grad(ops.linear(x, weight, None).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()
