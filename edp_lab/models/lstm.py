"""A bidirectional LSTM layer over flat tokens, with an explicit backward pass.

We do not use nn.LSTM, because it hides the *gate gradients*. The gradient of a recurrent weight is a product of gate
gradients and inputs, with one row per token. From these rows, N simulated devices (or per-example clipping) can compute
any partial sum without a second backward pass. Both directions share one batched product per time step, unpadded.

Shapes: R tokens in total, D inputs, H hidden units, 2 directions; gates in the order input, forget, output, candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from edp_lab.models.ghost_clipping.bookkeeping import LSTMRecord
from edp_lab.models.ghost_clipping.ops import MicroBatchOps, PlainOps


class BiLSTM(nn.Module):
    """One bidirectional layer: w_ih (2, 4H, D), w_hh (2, 4H, H), bias (2, 4H); forget bias starts at 1."""

    def __init__(self, inputs: int, hidden_size: int) -> None:
        super().__init__()
        self.w_ih = nn.Parameter(torch.empty(2, 4 * hidden_size, inputs))
        self.w_hh = nn.Parameter(torch.empty(2, 4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(2, 4 * hidden_size))
        for direction in (0, 1):
            nn.init.xavier_uniform_(self.w_ih.data[direction])
            for gate in self.w_hh.data[direction].chunk(4):
                nn.init.orthogonal_(gate)
        self.bias.data[:, hidden_size : 2 * hidden_size] = 1.0


@dataclass(frozen=True)
class Packing:
    """Order in which flat tokens (example after example) are visited, time step by time step.

    Attributes:
        lengths: (B) tokens per example.
        index: (2, R) flat row visited at each packed position, for the forward and the backward direction.
        batch_sizes: number of examples still active at each time step, never increasing.
    """

    lengths: Tensor
    index: Tensor
    batch_sizes: list[int]

    @classmethod
    def of(cls, lengths: Tensor) -> Packing:
        ordered, order = torch.sort(lengths, descending=True, stable=True)
        start = torch.cumsum(lengths, 0) - lengths
        running = torch.arange(int(ordered[0]), device=lengths.device)[:, None] < ordered  # (T, B)
        time, example = running.nonzero(as_tuple=True)
        first = start[order][example]
        index = torch.stack([first + time, first + ordered[example] - 1 - time])
        return cls(lengths, index, running.sum(1).tolist())


def bilstm(x: Tensor, packing: Packing, w_ih: Tensor, w_hh: Tensor, bias: Tensor, ops: PlainOps) -> Tensor:
    """Apply one layer to flat tokens: (R, D) -> (R, 2H), by plain autograd or recording the gradients' factors."""

    def keep(h: Tensor, d: Tensor) -> None:
        assert isinstance(ops, MicroBatchOps)
        ops.keep(LSTMRecord((w_ih, w_hh, bias), x.detach(), h, d, packing.lengths))

    kept = keep if isinstance(ops, MicroBatchOps) else None
    return _LSTM.apply(x, packing, w_ih, w_hh, bias, kept)  # type: ignore[no-any-return]


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packing: Any, w_ih: Tensor, w_hh: Tensor, bias: Tensor, keep: Any) -> Tensor:
        out, ctx.trace = _forward(x, packing, w_ih, w_hh, bias)
        ctx.packing, ctx.keep = packing, keep
        ctx.save_for_backward(x, w_ih, w_hh)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Any:
        x, w_ih, w_hh = ctx.saved_tensors
        d, h = _backward(dout, ctx.packing, ctx.trace, w_hh)
        dx = d.flatten(1) @ w_ih.flatten(0, 1) if ctx.needs_input_grad[0] else None
        if ctx.keep is not None:
            ctx.keep(h, d)
            return dx, None, None, None, None, None
        d_w_ih = (d.flatten(1).T @ x).view_as(w_ih)
        d_w_hh = torch.stack([d[:, k].T @ h[:, k] for k in (0, 1)])
        return dx, None, d_w_ih, d_w_hh, d.sum(0), None


class Trace(NamedTuple):
    """Packed activations of the forward pass: activated gates (2, R, 4H), cell, tanh(cell) and hidden (2, R, H)."""

    gates: Tensor
    cell: Tensor
    tanh_cell: Tensor
    hidden: Tensor


def _forward(x: Tensor, packing: Packing, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> tuple[Tensor, Trace]:
    """Forward pass: x (R, D), w_ih (2, 4H, D), w_hh (2, 4H, H), bias (2, 4H) -> hidden states (R, 2H), flat order."""
    rows, hidden_size = x.shape[0], w_hh.shape[-1]
    projected = torch.addmm(bias.flatten(), x, w_ih.flatten(0, 1).T).view(rows, 2, -1)
    gates = torch.stack([projected[packing.index[d], d] for d in (0, 1)])  # (2, R, 4H)
    cell, tanh_cell, hidden = (gates.new_empty(2, rows, hidden_size) for _ in range(3))
    recurrent = w_hh.transpose(1, 2)
    before, at = 0, 0
    for step, size in enumerate(packing.batch_sizes):
        now, last = slice(at, at + size), slice(before, before + size)
        g = gates[:, now]
        if step:
            g.baddbmm_(hidden[:, last], recurrent)
        i, f, o = g[..., : 3 * hidden_size].sigmoid_().chunk(3, dim=-1)
        candidate = g[..., 3 * hidden_size :].tanh_()
        c = torch.mul(i, candidate, out=cell[:, now])
        if step:
            c.addcmul_(f, cell[:, last])
        torch.mul(o, torch.tanh(c, out=tanh_cell[:, now]), out=hidden[:, now])
        before, at = at, at + size
    flat = x.new_empty(rows, 2, hidden_size)
    for d in (0, 1):
        flat[packing.index[d], d] = hidden[d]
    return flat.flatten(1), Trace(gates, cell, tanh_cell, hidden)


def _backward(dout: Tensor, packing: Packing, trace: Trace, w_hh: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the gates' pre-activations (R, 2, 4H), and the hidden state before each token (R, 2, H), flat.

    From these, dW_ih = d_gates^T x, dW_hh = d_gates^T h_before and db = sum d_gates, over any set of rows.
    """
    rows, hidden_size = dout.shape[0], w_hh.shape[-1]
    dout = dout.view(rows, 2, hidden_size)
    d_hidden = torch.stack([dout[packing.index[d], d] for d in (0, 1)])
    i, f, o, candidate = trace.gates.unflatten(-1, (4, hidden_size)).unbind(2)
    h_before, cell_before = _before(trace.hidden, packing), _before(trace.cell, packing)
    # Precompute the factors that do not depend on later steps: those of d_hidden for the cell and the output gate, and
    # those of d_cell for the other gates.
    to_cell = o.addcmul(o * trace.tanh_cell, trace.tanh_cell, value=-1)
    d_gates = torch.empty_like(trace.gates)
    slope = d_gates.unflatten(-1, (4, hidden_size))
    torch.mul(candidate, i.addcmul(i, i, value=-1), out=slope[:, :, 0])
    torch.mul(cell_before, f.addcmul(f, f, value=-1), out=slope[:, :, 1])
    torch.mul(trace.tanh_cell, o.addcmul(o, o, value=-1), out=slope[:, :, 2])
    torch.mul(i, 1 - candidate * candidate, out=slope[:, :, 3])
    sizes = packing.batch_sizes
    ends = torch.tensor(sizes).cumsum(0).tolist()
    d_cell_next: Tensor | None = None
    for step in range(len(sizes) - 1, -1, -1):
        now = slice(ends[step] - sizes[step], ends[step])
        dh = d_hidden[:, now]
        dc = dh * to_cell[:, now]
        if d_cell_next is not None:
            dc[:, : d_cell_next.shape[1]] += d_cell_next
        gates = slope[:, now]
        gates[:, :, :2] *= dc[:, :, None]
        gates[:, :, 2] *= dh
        gates[:, :, 3] *= dc
        if step:
            last = slice(now.start - sizes[step - 1], now.start - sizes[step - 1] + sizes[step])
            d_hidden[:, last].baddbmm_(d_gates[:, now], w_hh)
            d_cell_next = dc * f[:, now]
    flat_gates = dout.new_empty(rows, 2, 4 * hidden_size)
    flat_hidden = dout.new_empty(rows, 2, hidden_size)
    for d in (0, 1):
        flat_gates[packing.index[d], d] = d_gates[d]
        flat_hidden[packing.index[d], d] = h_before[d]
    return flat_gates, flat_hidden


def _before(x: Tensor, packing: Packing) -> Tensor:
    """Values at the time step before each packed position (2, R, H); zeros at the first."""
    sizes = packing.batch_sizes
    shifted = torch.zeros_like(x)
    at = sizes[0]
    for last, size in pairwise(sizes):
        shifted[:, at : at + size] = x[:, at - last : at - last + size]
        at += size
    return shifted
