"""The hand-written bidirectional LSTM against torch.nn.LSTM on packed sequences and finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from edp_lab.models.ghost_clipping.ops import PLAIN
from edp_lab.models.lstm import BiLSTM, Packing

LENGTHS = [[5], [1], [1, 1, 1], [3, 7, 1, 7, 2], [2, 2, 2], [1, 9], [9, 1], [4, 1, 1, 6, 3, 8, 8, 2]]


def to_torch_gates(weight: Tensor) -> Tensor:
    """Our gates stand in the order i, f, o, g along dimension 0; torch's in the order i, f, g, o."""
    i, f, o, g = weight.chunk(4)
    return torch.cat([i, f, g, o])


def torch_lstm(layer: BiLSTM) -> nn.LSTM:
    _, four_hidden, inputs = layer.w_ih.shape
    peer = nn.LSTM(inputs, four_hidden // 4, batch_first=True, bidirectional=True).to(layer.w_ih.dtype)
    for d, suffix in enumerate(("", "_reverse")):
        getattr(peer, f"weight_ih_l0{suffix}").data = to_torch_gates(layer.w_ih.data[d])
        getattr(peer, f"weight_hh_l0{suffix}").data = to_torch_gates(layer.w_hh.data[d])
        getattr(peer, f"bias_ih_l0{suffix}").data = to_torch_gates(layer.bias.data[d])
        getattr(peer, f"bias_hh_l0{suffix}").data.zero_()
    return peer


def run_torch(peer: nn.LSTM, x: Tensor, lengths: Tensor) -> Tensor:
    padded = pad_sequence(list(x.split(lengths.tolist())), batch_first=True)
    packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
    out, _ = pad_packed_sequence(peer(packed)[0], batch_first=True)
    return torch.cat([out[k, :n] for k, n in enumerate(lengths.tolist())])


def random_layer(inputs: int = 4, hidden: int = 3, seed: int = 0, dtype=torch.float64) -> BiLSTM:
    torch.manual_seed(seed)
    layer = BiLSTM(inputs, hidden).to(dtype)
    layer.bias.data.normal_()
    return layer


def apply(layer: BiLSTM, x: Tensor, lengths: Tensor) -> Tensor:
    return PLAIN.lstm(x, Packing.of(lengths), layer.w_ih, layer.w_hh, layer.bias)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_forward_and_backward_equal_torch(lengths):
    lengths = torch.tensor(lengths)
    layer = random_layer(seed=len(lengths))
    peer = torch_lstm(layer)
    x = torch.randn(int(lengths.sum()), 4, dtype=torch.float64)
    ours_at, theirs_at = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours, theirs = apply(layer, ours_at, lengths), run_torch(peer, theirs_at, lengths)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    direction = torch.randn_like(ours)
    ours.backward(direction)
    theirs.backward(direction)
    torch.testing.assert_close(ours_at.grad, theirs_at.grad, rtol=0, atol=1e-12)
    for d, suffix in enumerate(("", "_reverse")):
        for own, name in ((layer.w_ih, "weight_ih"), (layer.w_hh, "weight_hh"), (layer.bias, "bias_ih")):
            expected = getattr(peer, f"{name}_l0{suffix}").grad
            torch.testing.assert_close(to_torch_gates(own.grad[d]), expected, rtol=0, atol=1e-11)


def test_two_layers_equal_torch_in_float32():
    lengths = torch.tensor([3, 12, 1, 5])
    first, second = random_layer(6, 8, 1, torch.float32), random_layer(16, 8, 2, torch.float32)
    x = torch.randn(21, 6)
    ours = apply(second, apply(first, x, lengths), lengths)
    theirs = run_torch(torch_lstm(second), run_torch(torch_lstm(first), x, lengths), lengths)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_gradcheck():
    layer, lengths = random_layer(2, 2), torch.tensor([3, 1, 2])
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)

    def run(x, w_ih, w_hh, bias):
        return PLAIN.lstm(x, Packing.of(lengths), w_ih, w_hh, bias)

    assert torch.autograd.gradcheck(run, (x, layer.w_ih, layer.w_hh, layer.bias))


def test_frozen_inputs_and_weights_are_passed_over():
    layer, lengths = random_layer(), torch.tensor([2, 3])
    x = torch.randn(5, 4, dtype=torch.float64)
    layer.w_hh.requires_grad_(False)
    apply(layer, x, lengths).sum().backward()
    assert layer.w_hh.grad is None
    assert layer.w_ih.grad is not None
    assert x.grad is None


def test_a_second_derivative_is_refused_rather_than_wrong():
    """The backward pass is written by hand and is not differentiable itself."""
    layer, lengths = random_layer(), torch.tensor([2, 3])
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(apply(layer, x, lengths).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


def test_backward_may_run_twice_on_a_kept_graph():
    layer, lengths = random_layer(), torch.tensor([2, 3, 1])
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    total = apply(layer, x, lengths).square().sum()
    once = torch.autograd.grad(total, [x, *layer.parameters()], retain_graph=True)
    twice = torch.autograd.grad(total, [x, *layer.parameters()])
    for a, b in zip(once, twice, strict=True):
        assert torch.equal(a, b)


def test_packing_visits_every_token_once_in_each_direction():
    lengths = torch.tensor([2, 5, 1, 5])
    packing = Packing.of(lengths)
    assert packing.batch_sizes == [4, 3, 2, 2, 2]
    for direction in (0, 1):
        assert sorted(packing.index[direction].tolist()) == list(range(13))
    start = {0: 0, 1: 2, 2: 7, 3: 8}
    for t, rows in enumerate(packing.index[0].split(packing.batch_sizes)):
        assert {int(r) for r in rows} == {start[k] + t for k, n in enumerate([2, 5, 1, 5]) if n > t}
    for t, rows in enumerate(packing.index[1].split(packing.batch_sizes)):
        assert {int(r) for r in rows} == {start[k] + n - 1 - t for k, n in enumerate([2, 5, 1, 5]) if n > t}


def test_initialisation_is_what_the_docstring_says():
    layer = BiLSTM(5, 4)
    _i, f, _o, _g = layer.bias.chunk(4, dim=1)
    assert (f == 1).all()
    assert layer.bias.sum() == f.numel()
    for direction in (0, 1):
        for gate in layer.w_hh[direction].chunk(4):
            torch.testing.assert_close(gate @ gate.T, torch.eye(4), rtol=0, atol=1e-5)
