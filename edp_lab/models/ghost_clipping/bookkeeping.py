"""Gradients of many micro-batches from one backward pass, without storing one gradient per micro-batch.

The gradient of a weight is a sum over rows (tokens, bytes, utterances) of products of two factors: the input x and
the gradient d of the output. From these factors we can compute

    the norm of a micro-batch's gradient   ||sum_t d_t x_t^T||^2 = sum_t,s (d_t . d_s)(x_t . x_s)
    any weighted sum over micro-batches     sum_t (c_t d_t) x_t^T

with clip factors c_t of the rows' micro-batches (Goodfellow 2015, arXiv 1510.01799; Bu et al. 2023, arXiv 2210.00038).
A micro-batch may be one utterance (per-example DP-SGD), a device's share (eDP-SGD), or the whole batch (plain SGD).
If there are only a few long micro-batches, their gradients are materialised: norms and sum then take no more work.

The terms of the first sum cancel, and an underestimated norm clips too loosely, so Gram matrices are float64.
A materialised gradient has the same rounding error as the released sum: 1e-7 of the terms that cancel within it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

SIMILAR = 1.25  # largest ratio of row counts of micro-batches that are padded together
LARGEST = 2**22  # largest number of entries in a padded block
LONG = 32  # with at least this many rows on average, each micro-batch is summed separately
ROOM = 3 * 2**25  # largest number of entries in materialised gradients: 16 micro-batches of the CLC at the paper's size
BLOCK = 1024  # numbers per float32 sum: a sum of millions of numbers, and so the clip, can be off by a percent
Target = Callable[[Tensor], Tensor | None]  # buffer for a parameter's gradient; None if it is frozen


class Block(NamedTuple):
    """Micro-batches of similar row counts: their indices (u), and their row indices, padded (u, T).

    Padding points one past the last row, where `padding_row` puts zeros. ValueError if a factor x does not have `total`
    rows, the number of rows in the micro-batches of all blocks.
    """

    numbers: Tensor
    rows: Tensor
    total: int

    def gather(self, x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """Gather rows of x: (R, D) -> (u, T, D)."""
        self._check(x)
        return padding_row(x, dtype)[self.rows]

    def gram(self, x: Tensor, part: int = 0) -> Tensor:
        """Gram matrix of each micro-batch's rows: x (R, D), or one part of (R, K, D) -> (u, T, T), float64."""
        self._check(x)
        if x.device.type != "cpu":
            gathered = self.gather(x if x.dim() == 2 else x[:, part])
            return gathered @ gathered.mT
        from edp_lab.compiled import gram  # slow to load: its compiler takes a third of a second

        out = torch.zeros(*self.rows.shape, self.rows.shape[1], dtype=torch.float64)
        gram(_parts(x), part, self.rows.contiguous().numpy(), out.numpy())
        return out

    def squares_of_sums(self, x: Tensor) -> Tensor:
        """||sum_t x_t||^2 of each micro-batch: (R, D) -> (u), float64.

        Gram matrices are not used: if rows cancel, their sum would lose twice as many digits.
        """
        self._check(x)
        if x.device.type != "cpu":
            return self.gather(x).sum(1).square().sum(1)
        from edp_lab.compiled import squares_of_sums

        out = torch.zeros(len(self.rows), dtype=torch.float64)
        squares_of_sums(_parts(x), self.rows.contiguous().numpy(), out.numpy())
        return out

    def squares_of_products(self, d: Tensor, x: Tensor) -> Tensor:
        """||sum_t d_t x_t^T||^2 of each micro-batch, by materialising it: d (R, O), x (R, D) -> (u), float64."""
        return row_norms((self.gather(d, d.dtype).mT @ self.gather(x, x.dtype)).flatten(1)).square()

    def gram_is_cheaper(self, inputs: int, outputs: int) -> bool:
        """Whether Gram matrices are faster than gradients (outputs, inputs) on two cores; float64 is half as fast."""
        return self.rows.shape[1] * (inputs + outputs) < inputs * outputs

    def _check(self, x: Tensor) -> None:
        if len(x) != self.total:  # a compiled loop would read past the end
            raise ValueError(f"the micro-batches hold {self.total} rows, but {len(x)} are given")


class MicroBatches:
    """A batch cut into M micro-batches of consecutive examples, some of which may be empty; ``sizes`` (M).

    A gradient's rows are flat, example after example; ``rows`` (B): number of rows per example, None for one row each.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device, memory: Memory | None = None) -> None:
        self.sizes = torch.tensor(sizes, dtype=torch.long, device=device)
        self.memory = memory or Memory()
        self._blocks: dict[int, tuple[Tensor | None, list[Block]]] = {}

    def row_counts(self, rows: Tensor | None) -> Tensor:
        """Number of rows of each micro-batch: (M).

        Raises:
            ValueError: the batch has more or fewer examples than the micro-batches.
        """
        if rows is None:
            return self.sizes
        ends = torch.cat([rows.new_zeros(1), rows.cumsum(0)])
        bounds = torch.cat([rows.new_zeros(1), self.sizes.cumsum(0)])
        if int(bounds[-1]) != len(rows):
            raise ValueError(f"the micro-batches hold {int(bounds[-1])} examples, but the batch has {len(rows)}")
        return ends[bounds].diff()

    def materialised(self, rows: Tensor | None, *pairs: tuple[Tensor, Tensor]) -> list[Tensor] | None:
        """Gradients sum_t d_t x_t^T of each micro-batch, for each pair of d (R, O) and x (R, D): (M, O * D).

        None if they need too much memory, or if the micro-batches are so short that Gram matrices are faster. For T
        rows, these take T^2 (O + D) / 2 products in float64; a gradient takes three passes over O * D numbers.
        """
        shapes = [(d.shape[1], x.shape[1]) for d, x in pairs]
        length = len(pairs[0][0]) / len(self.sizes)
        if 2 * length * sum(outputs + inputs for outputs, inputs in shapes) < sum(map(math.prod, shapes)):
            return None
        gradients = []
        for (d, x), shape in zip(pairs, shapes, strict=True):
            if (out := self.memory.take(d, len(self.sizes), math.prod(shape))) is None:
                return None
            for gradient, selection in zip(out, self.slices(rows), strict=True):
                torch.mm(d[selection].T, x[selection], out=gradient.view(shape))
            gradients.append(out)
        return gradients

    def sums(self, rows: Tensor | None, d: Tensor) -> Tensor:
        """Sum of the rows of each micro-batch: (R, ...) -> (M, ...)."""
        if len(d) < LONG * len(self.sizes):
            return d.new_zeros(len(self.sizes), *d.shape[1:]).index_add_(0, self.numbers(rows), d)
        return torch.stack([d[selection].sum(0) for selection in self.slices(rows)])

    def slices(self, rows: Tensor | None) -> list[slice]:
        """Slice of rows of each micro-batch."""
        ends = [0, *self.row_counts(rows).cumsum(0).tolist()]
        return [slice(start, end) for start, end in pairwise(ends)]

    def spread(self, values: Tensor, rows: Tensor | None) -> Tensor:
        """Repeat one value per micro-batch for each of its rows: (M) -> (R)."""
        return values.repeat_interleave(self.row_counts(rows))

    def weighted(self, d: Tensor, factors: Tensor | None, rows: Tensor | None) -> Tensor:
        """d (R, ...) with each row times its micro-batch's factor (M); unchanged if `factors` is None."""
        if factors is None:
            return d
        return d * self.spread(factors, rows).to(d.dtype).view(-1, *[1] * (d.dim() - 1))

    def numbers(self, rows: Tensor | None) -> Tensor:
        """Index of each row's micro-batch: (R)."""
        return self.spread(torch.arange(len(self.sizes), device=self.sizes.device), rows)

    def blocks(self, rows: Tensor | None, width: int) -> list[Block]:
        """Blocks of all non-empty micro-batches, for rows of `width` numbers."""
        known = self._blocks.get(id(rows))
        if known is None:
            known = self._blocks[id(rows)] = rows, self._cut(self.row_counts(rows))
        blocks = []
        for numbers, places, total in known[1]:
            most = max(1, LARGEST // (places.shape[1] * width))
            parts = zip(numbers.split(most), places.split(most), strict=True)
            blocks += [Block(*part, total) for part in parts]
        return blocks

    def _cut(self, counts: Tensor) -> list[Block]:
        first = counts.cumsum(0) - counts
        order = counts.argsort(stable=True)
        ordered = counts[order].tolist()
        starts = [k for k, n in enumerate(ordered) if n and (k == 0 or ordered[k - 1] == 0)]
        for k, n in enumerate(ordered):
            if starts and n > SIMILAR * ordered[starts[-1]] + 1:
                starts.append(k)
        blocks = []
        for start, end in pairwise([*starts, len(ordered)]):
            numbers = order[start:end]
            column = torch.arange(ordered[end - 1], device=counts.device)
            place = (first[numbers, None] + column).where(column < counts[numbers, None], counts.sum())
            blocks.append(Block(numbers, place, int(counts.sum())))
        return blocks


class Memory:
    """Gradient buffers reused by the next pass: allocating new pages would take longer than the arithmetic."""

    def __init__(self) -> None:
        self._pieces: list[Tensor] = []
        self.restart()

    def restart(self) -> None:
        """Release all buffers."""
        self._next, self._left = 0, ROOM

    def take(self, like: Tensor, rows: int, columns: int) -> Tensor | None:
        """An uninitialised buffer (rows, columns); None if there is not enough memory left."""
        size = rows * columns
        if size > self._left:
            return None
        if self._next == len(self._pieces):
            self._pieces.append(like.new_empty(0))
        piece = self._pieces[self._next]
        if len(piece) < size or (piece.dtype, piece.device) != (like.dtype, like.device):
            piece = self._pieces[self._next] = like.new_empty(size)
        self._next += 1
        self._left -= size
        return piece[:size].view(rows, columns)


def _parts(x: Tensor) -> np.ndarray:
    """(R, D) or (R, K, D) -> (R, K, D), contiguous."""
    return x.detach().contiguous().view(len(x), -1, x.shape[-1]).numpy()  # type: ignore[no-any-return]


class LayerRecord(Protocol):
    """Record of one use of `parameters` in the forward pass, completed by the backward pass.

    Gradients that were materialised for the norms are kept for the sum: `materialised`, each (M, n).
    """

    parameters: tuple[Tensor, ...]

    def squared_norms(self, partition: MicroBatches) -> tuple[Tensor, ...]:
        """Squared gradient norm of each micro-batch, for each parameter: (M), float64."""
        ...

    def add_sum(self, target: Target, partition: MicroBatches, factors: Tensor | None) -> None:
        """Add sum_m factors_m gradient_m of each parameter to its target; factors (M), None for all 1."""
        ...


@dataclass
class LinearRecord:
    """Record of y = x W^T + b: the weight and optionally a bias, x (R, D), d (R, O)."""

    parameters: tuple[Tensor, ...]
    x: Tensor
    d: Tensor
    rows: Tensor | None
    materialised: list[Tensor] | None = None

    def squared_norms(self, partition: MicroBatches) -> tuple[Tensor, ...]:
        weights = partition.materialised(self.rows, (self.d, self.x))
        if weights is not None:
            self.materialised = [*weights, partition.sums(self.rows, self.d)][: len(self.parameters)]
            return tuple(row_norms(gradients).square() for gradients in self.materialised)
        squares = torch.zeros(2, len(partition.sizes), dtype=torch.float64, device=self.d.device)
        inputs, outputs = self.x.shape[1], self.d.shape[1]
        for block in partition.blocks(self.rows, inputs + outputs):
            if block.gram_is_cheaper(inputs, outputs):
                weight = (block.gram(self.d) * block.gram(self.x)).sum((1, 2))
            else:
                weight = block.squares_of_products(self.d, self.x)
            squares[:, block.numbers] = torch.stack([weight, block.squares_of_sums(self.d)])
        return tuple(squares)[: len(self.parameters)]

    def add_sum(self, target: Target, partition: MicroBatches, factors: Tensor | None) -> None:
        outs = [target(parameter) for parameter in self.parameters]
        if factors is not None and self.materialised is not None:
            add_weighted(outs, self.materialised, factors)
            return
        d = partition.weighted(self.d, factors, self.rows)
        weight, bias = (*outs, None)[:2]
        if weight is not None:
            weight.addmm_(d.T, self.x)
        if bias is not None:
            bias += d.sum(0)


@dataclass
class LSTMRecord:
    """Record of a bidirectional LSTM layer; x (R, D), h (R, 2, H) before each token, d (R, 2, 4H) of the gates."""

    parameters: tuple[Tensor, ...]
    x: Tensor
    h: Tensor
    d: Tensor
    rows: Tensor
    materialised: list[Tensor] | None = None  # for w_ih, w_hh in both directions, and the bias

    def squared_norms(self, partition: MicroBatches) -> tuple[Tensor, ...]:
        flat = self.d.flatten(1)
        pairs = [(flat, self.x), *((self.d[:, k], self.h[:, k]) for k in (0, 1))]
        weights = partition.materialised(self.rows, *pairs)
        if weights is not None:
            self.materialised = [*weights, partition.sums(self.rows, flat)]
            w_ih, forward, backward, bias = (row_norms(gradients).square() for gradients in self.materialised)
            return w_ih, forward + backward, bias
        squares = torch.zeros(3, len(partition.sizes), dtype=torch.float64, device=self.d.device)
        for block in partition.blocks(self.rows, self.d[0].numel() + self.h[0].numel() + self.x.shape[1]):
            if block.gram_is_cheaper(self.h.shape[2], self.d.shape[2]):
                d, h = ([block.gram(factor, k) for k in (0, 1)] for factor in (self.d, self.h))
                w_ih, w_hh = ((d[0] + d[1]) * block.gram(self.x)).sum((1, 2)), (d[0] * h[0] + d[1] * h[1]).sum((1, 2))
            else:
                w_ih, forward, backward = (block.squares_of_products(d, x) for d, x in pairs)
                w_hh = forward + backward
            squares[:, block.numbers] = torch.stack([w_ih, w_hh, block.squares_of_sums(flat)])
        return tuple(squares)

    def add_sum(self, target: Target, partition: MicroBatches, factors: Tensor | None) -> None:
        w_ih, w_hh, bias = (target(parameter) for parameter in self.parameters)
        if factors is not None and self.materialised is not None:
            directions = (None, None) if w_hh is None else tuple(w_hh)
            add_weighted([w_ih, *directions, bias], self.materialised, factors)
            return
        d = partition.weighted(self.d, factors, self.rows)
        if w_ih is not None:
            w_ih.flatten(0, 1).addmm_(d.flatten(1).T, self.x)
        if w_hh is not None:
            w_hh.baddbmm_(d.permute(1, 2, 0), self.h.transpose(0, 1))
        if bias is not None:
            bias += d.sum(0)


@dataclass
class LookupRecord:
    """Record of y = table[ids]: ids (R, ...), d (R, ..., D). Unread rows of the table have gradient zero."""

    parameters: tuple[Tensor, ...]
    ids: Tensor
    d: Tensor
    rows: Tensor | None

    def squared_norms(self, partition: MicroBatches) -> tuple[Tensor, ...]:
        each, height = self.ids[0].numel() if self.ids.dim() > 1 else 1, len(self.parameters[0])
        number = partition.numbers(self.rows).repeat_interleave(each)
        read, summed = summed_by(number * height + self.ids.flatten(), self.d.flatten(0, -2).double())
        squares = torch.zeros(len(partition.sizes), dtype=torch.float64, device=self.d.device)
        return (squares.index_add_(0, read // height, summed.square().sum(1)),)

    def add_sum(self, target: Target, partition: MicroBatches, factors: Tensor | None) -> None:
        if (table := target(self.parameters[0])) is not None:
            d = partition.weighted(self.d, factors, self.rows)
            table.index_add_(0, *summed_by(self.ids.flatten(), d.flatten(0, -2)))


def summed_by(ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct ids (n), and the sum of the rows of each id: ids (R), rows (R, D) -> (n), (n, D)."""
    distinct, place = torch.unique(ids, return_inverse=True)
    # This is by far the fastest way to add up rows on a CPU.
    return distinct, torch.ops.aten.embedding_dense_backward(rows, place, len(distinct), -1, False)


@dataclass
class SumRecord:
    """Record of a parameter whose gradient is a sum of rows d (R, *shape): LayerNorm's scale and shift, CRF scores."""

    parameters: tuple[Tensor, ...]
    d: Tensor
    rows: Tensor | None
    materialised: list[Tensor] | None = None

    def squared_norms(self, partition: MicroBatches) -> tuple[Tensor, ...]:
        self.materialised = [partition.sums(self.rows, self.d.flatten(1))]
        return (row_norms(self.materialised[0]).square(),)

    def add_sum(self, target: Target, partition: MicroBatches, factors: Tensor | None) -> None:
        out, d = target(self.parameters[0]), self.d.flatten(1)
        if factors is not None and self.materialised is not None:
            add_weighted([out], self.materialised, factors)
        elif out is not None:
            out += (d.sum(0) if factors is None else partition.spread(factors, self.rows).to(d.dtype) @ d).view_as(out)


@dataclass
class TransitionRecord:
    """Record of CRF transitions. Gradient: exp(transitions - highest) * (A^T Q) - counts, rows weighted by `weight`.

    Attributes:
        before, after: (R, K) A and Q, one row per step from a token to the next.
        path: (R) index 'from * K + to' of the gold transition.
        weight: (R) gradient of the loss of the row's example.
        weights: (K, K) exp(transitions - highest).
    """

    parameters: tuple[Tensor, ...]
    before: Tensor
    after: Tensor
    path: Tensor
    weight: Tensor
    weights: Tensor
    rows: Tensor

    def squared_norms(self, partition: MicroBatches) -> tuple[Tensor, ...]:
        squares = torch.zeros(len(partition.sizes), dtype=torch.float64, device=self.before.device)
        before, after = padding_row(self.before), padding_row(self.after * self.weight[:, None])
        path, weight = padding_row(self.path[:, None], torch.long)[:, 0], padding_row(self.weight[:, None])[:, 0]
        for block in partition.blocks(self.rows, self.weights.numel()):
            gradient = (before[block.rows].mT @ after[block.rows]).mul_(self.weights).flatten(1)
            gradient.scatter_add_(1, path[block.rows], -weight[block.rows])
            squares[block.numbers] = gradient.square_().sum(1)
        return (squares,)

    def add_sum(self, target: Target, partition: MicroBatches, factors: Tensor | None) -> None:
        if (out := target(self.parameters[0])) is not None:
            weight = self.weight if factors is None else self.weight * partition.spread(factors, self.rows)
            gradient = (self.before.T @ (self.after * weight[:, None])).mul_(self.weights)
            gradient.view(-1).index_add_(0, self.path, -weight)
            out += gradient.to(out.dtype)


def add_weighted(outs: Sequence[Tensor | None], materialised: Sequence[Tensor], factors: Tensor) -> None:
    """out += sum_m factors_m gradient_m, for each out that is not None: n numbers in any shape, (M, n), (M)."""
    for out, gradients in zip(outs, materialised, strict=True):
        if out is not None:
            out.view(-1).addmv_(gradients.T, factors.to(gradients.dtype))


def padding_row(x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """x with a row of zeros appended: (R, ...) -> (R + 1, ...)."""
    out = x.new_zeros(len(x) + 1, *x.shape[1:], dtype=dtype)
    out[:-1] = x
    return out


def row_norms(x: Tensor) -> Tensor:
    """L2 norm of each row: (N, n) -> (N), float64; squares are summed in float32 within blocks, then in float64."""
    blocks = x.shape[1] // BLOCK
    if blocks == 0:
        return torch.linalg.vector_norm(x, dim=1).double()
    whole = torch.linalg.vector_norm(x[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)), dim=2).double()
    rest = torch.linalg.vector_norm(x[:, blocks * BLOCK :], dim=1).double()
    return torch.hypot(torch.linalg.vector_norm(whole, dim=1), rest)
