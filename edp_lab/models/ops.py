"""The four ways in which our models use a parameter, once for plain autograd and once per device.

A simulated run on N devices needs N gradients, one per micro-batch. Running the model N times would cost N
small passes; instead the whole batch makes one forward and one backward pass, and each operation splits only
its *parameter* gradient by device: for a linear layer, dW_i = dY_i^T X_i over the rows of micro-batch i. (The
same book-keeping idea gives per-example clipping: Bu et al. 2023, arXiv 2210.00038.)

Rows: activations are flat, one row per example or per token, examples in order, so the rows of a device are
one slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from edp_lab.models import lstm


class PlainOps:
    """Ordinary autograd: every parameter receives its gradient in ``.grad``."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """x (R, D), weight (O, D), bias (O) -> (R, O). `rows` (B): rows of each example; None: one each."""
        return F.linear(x, weight, bias)

    def embedding(self, ids: Tensor, table: Tensor, rows: Tensor | None = None) -> Tensor:
        """ids (R, ...), table (V, D) -> (R, ..., D)."""
        return F.embedding(ids, table)

    def lstm(self, x: Tensor, packing: lstm.Packing, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> Tensor:
        """One bidirectional LSTM layer over flat tokens: (R, D) -> (R, 2H).

        Shapes of the weights: `lstm.BiLSTM`.
        """
        return _PlainLSTM.apply(x, packing, w_ih, w_hh, bias)  # type: ignore[no-any-return]

    def copies(self, parameter: Tensor) -> Tensor:
        """A small parameter with one copy per group of examples: (G, *shape); here G = 1."""
        return parameter[None]

    def grid(self, examples: int) -> tuple[Tensor, int, int]:
        """Where each example stands on a (G, m) grid: flat positions (B), G and m. Group g uses copy g."""
        return torch.arange(examples), 1, examples


PLAIN = PlainOps()


class DeviceOps(PlainOps):
    """Collects one gradient per device and parameter, in one flat buffer, during one backward pass.

    Args:
        parameters: the trainable parameters, in the order of the buffer.
        sizes: examples per device; device i owns the next ``sizes[i]`` examples of the batch. May contain
            zeros.
        buffer: (N, P) float tensor that receives the gradients, P the number of parameters; overwritten.

    A frozen parameter (one that is not in `parameters`) is used as it is.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], sizes: Sequence[int], buffer: Tensor) -> None:
        buffer.zero_()
        self.sizes = list(sizes)
        self._gradients: dict[int, Tensor] = {}
        self._copies: list[tuple[Tensor, Tensor]] = []
        for parameter, columns in zip(parameters, column_slices(parameters), strict=True):
            self._gradients[id(parameter)] = buffer[:, columns].view(len(self.sizes), *parameter.shape)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """The (N, *shape) view into the buffer, or None for a frozen parameter."""
        return self._gradients.get(id(parameter))

    def slices(self, rows: Tensor | None) -> Iterator[tuple[int, slice]]:
        """Device number and its slice of rows, for devices that have any."""
        ends = torch.tensor([0, *self.sizes]).cumsum(0)
        if rows is not None:
            if len(rows) != sum(self.sizes):
                raise ValueError(f"the devices own {sum(self.sizes)} examples, the batch has {len(rows)}")
            ends = torch.cat([rows.new_zeros(1), rows.cumsum(0)]).cpu()[ends]
        bounds = ends.tolist()
        for device, (start, stop) in enumerate(pairwise(bounds)):
            if stop > start:
                yield device, slice(start, stop)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None = None) -> Tensor:
        return _DeviceLinear.apply(x, weight, bias, self, rows)  # type: ignore[no-any-return]

    def embedding(self, ids: Tensor, table: Tensor, rows: Tensor | None = None) -> Tensor:
        if self.gradient(table) is None:
            return F.embedding(ids, table)
        return _DeviceEmbedding.apply(ids, table, self, rows)  # type: ignore[no-any-return]

    def lstm(self, x: Tensor, packing: lstm.Packing, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> Tensor:
        return _DeviceLSTM.apply(x, packing, w_ih, w_hh, bias, self)  # type: ignore[no-any-return]

    def copies(self, parameter: Tensor) -> Tensor:
        copies = parameter.detach().expand(len(self.sizes), *parameter.shape).clone().requires_grad_()
        gradient = self.gradient(parameter)
        if gradient is not None:
            self._copies.append((copies, gradient))
        return copies

    def grid(self, examples: int) -> tuple[Tensor, int, int]:
        widest = max(self.sizes)
        positions = [widest * device + k for device, size in enumerate(self.sizes) for k in range(size)]
        return torch.tensor(positions), len(self.sizes), widest

    def finish(self) -> None:
        """Call after the backward pass: moves the gradients of the small parameters into the buffer."""
        while self._copies:
            copies, gradient = self._copies.pop()
            if copies.grad is not None:
                gradient += copies.grad


def column_slices(parameters: Sequence[Tensor]) -> list[slice]:
    """Where each parameter lies in a flat vector of all of them."""
    ends = torch.tensor([0, *(p.numel() for p in parameters)]).cumsum(0).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


class _DeviceLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, ops, rows):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.ops, ctx.rows, ctx.bias = ops, rows, bias
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        add_linear_gradients(ctx.ops, weight, ctx.bias, x, dy, ctx.rows)
        return dy @ weight if ctx.needs_input_grad[0] else None, None, None, None, None


def add_linear_gradients(
    ops: DeviceOps, weight: Tensor, bias: Tensor | None, x: Tensor, dy: Tensor, rows: Tensor | None
) -> None:
    """dW_i += dY_i^T X_i and db_i += sum dY_i for every device i; frozen parameters are passed over."""
    dw = ops.gradient(weight)
    db = None if bias is None else ops.gradient(bias)
    for device, own in ops.slices(rows):
        if dw is not None:
            dw[device].addmm_(dy[own].T, x[own])
        if db is not None:
            db[device] += dy[own].sum(0)


class _DeviceEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ids, table, ops, rows):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(ids, table)
        ctx.ops, ctx.rows = ops, rows
        return F.embedding(ids, table)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        ids, table = ctx.saved_tensors
        gradient = ctx.ops.gradient(table)
        for device, own in ctx.ops.slices(ctx.rows):
            gradient[device].index_add_(0, ids[own].flatten(), dy[own].flatten(0, -2))
        return None, None, None, None


class _PlainLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, packing, w_ih, w_hh, bias):  # type: ignore[no-untyped-def]
        out, ctx.trace = lstm.forward(x, packing, w_ih, w_hh, bias)
        ctx.packing = packing
        ctx.save_for_backward(x, w_ih, w_hh)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):  # type: ignore[no-untyped-def]
        x, w_ih, w_hh = ctx.saved_tensors
        d_gates, h_before = lstm.backward(dout, ctx.packing, ctx.trace, w_hh)
        d_x = d_gates.flatten(1) @ w_ih.flatten(0, 1) if ctx.needs_input_grad[0] else None
        d_w_ih = (d_gates.flatten(1).T @ x).view_as(w_ih)
        d_w_hh = torch.stack([d_gates[:, d].T @ h_before[:, d] for d in (0, 1)])
        return d_x, None, d_w_ih, d_w_hh, d_gates.sum(0)


class _DeviceLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, packing, w_ih, w_hh, bias, ops):  # type: ignore[no-untyped-def]
        out, ctx.trace = lstm.forward(x, packing, w_ih, w_hh, bias)
        ctx.packing, ctx.ops, ctx.bias = packing, ops, bias
        ctx.save_for_backward(x, w_ih, w_hh)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):  # type: ignore[no-untyped-def]
        x, w_ih, w_hh = ctx.saved_tensors
        d_gates, h_before = lstm.backward(dout, ctx.packing, ctx.trace, w_hh)
        d_x = d_gates.flatten(1) @ w_ih.flatten(0, 1) if ctx.needs_input_grad[0] else None
        gradients = [ctx.ops.gradient(p) for p in (w_ih, w_hh, ctx.bias)]
        for device, own in ctx.ops.slices(ctx.packing.lengths):
            d, h = d_gates[own], h_before[own]
            if gradients[0] is not None:
                gradients[0][device].flatten(0, 1).addmm_(d.flatten(1).T, x[own])
            if gradients[1] is not None:
                for direction in (0, 1):
                    gradients[1][device, direction].addmm_(d[:, direction].T, h[:, direction])
            if gradients[2] is not None:
                gradients[2][device] += d.sum(0)
        return d_x, None, None, None, None, None
