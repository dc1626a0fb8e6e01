"""Parameterised operations of our models: with plain autograd, or recording the factors of the gradients.

With `MicroBatchOps` the backward pass computes only the gradients of activations. The factors of a parameter's
gradient are recorded (`edp_lab.models.ghost_clipping.bookkeeping`) and summed once the clip factors are known.

Rows: activations are flat, one row per example or per token, examples in order, so a micro-batch's rows form one
slice. ``rows`` (B): number of rows per example; None for one row each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from edp_lab.models.crf import CRF, forward_backward, path_score
from edp_lab.models.ghost_clipping import bookkeeping as books
from edp_lab.models.ghost_clipping.bookkeeping import LayerRecord, Memory, MicroBatches


class PlainOps:
    """Ordinary autograd: every parameter receives its gradient in ``.grad``."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """x (R, D), weight (O, D), bias (O) -> (R, O)."""
        return F.linear(x, weight, bias)

    def embedding(self, ids: Tensor, table: Tensor, rows: Tensor | None = None) -> Tensor:
        """ids (R, ...), table (V, D) -> (R, ..., D)."""
        return F.embedding(ids, table)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, rows: Tensor | None = None) -> Tensor:
        """x (R, D), weight (D), bias (D) -> (R, D)."""
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def crf(self, emissions: Tensor, tags: Tensor, mask: Tensor, crf: CRF) -> Tensor:
        """-log p(tags | emissions) of each example: (B, T, K), (B, T), (B, T) -> (B), float64.

        The mask is true for a prefix of each example, at least one token. Values outside it are ignored.
        """
        return _CRF.apply(emissions, tags, mask, None, crf.start, crf.transitions, crf.end)  # type: ignore[no-any-return]


class SparseOps(PlainOps):
    """Ordinary autograd, but with sparse gradients of embedding tables."""

    def embedding(self, ids: Tensor, table: Tensor, rows: Tensor | None = None) -> Tensor:
        return F.embedding(ids, table, sparse=True)


PLAIN, SPARSE = PlainOps(), SparseOps()


class MicroBatchOps(PlainOps):
    """Record the factors of the gradients of M micro-batches; after the backward pass, compute norms and any sum.

    Args:
        parameters: the trainable parameters. Others are treated as constants.
        sizes: number of examples per micro-batch; micro-batch i has the next ``sizes[i]`` examples of the batch. May
            contain zeros.
        memory: buffers reused from earlier, completed passes.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], sizes: Sequence[int], memory: Memory | None = None) -> None:
        self.parameters = list(parameters)
        self.partition = MicroBatches(sizes, self.parameters[0].device, memory)
        self._uses: list[LayerRecord] = []
        self._place = {id(p): k for k, p in enumerate(parameters)}
        self._columns = column_slices(parameters)

    def keep(self, use: LayerRecord) -> None:
        """Store the record of an operation, called from its backward pass; ignored if all its parameters are frozen.

        Raises:
            ValueError: a parameter is used a second time; the squared norms of two uses cannot be added.
        """
        trained = {id(p) for p in use.parameters} & self._place.keys()
        if not trained:
            return
        if trained & {id(p) for known in self._uses for p in known.parameters}:
            raise ValueError("a parameter is used twice in one pass, so its norm is unknown: use micro-batch loops")
        self._uses.append(use)

    def norms(self) -> Tensor:
        """L2 norm of every micro-batch's gradient, per parameter: (M, K), float64."""
        self.partition.memory.restart()
        shape = len(self.parameters), len(self.partition.sizes)
        all_squares = torch.zeros(shape, dtype=torch.float64, device=self.partition.sizes.device)
        for use in self._uses:
            for parameter, squares in zip(use.parameters, use.squared_norms(self.partition), strict=True):
                if (place := self._place.get(id(parameter))) is not None:
                    all_squares[place] = squares.clamp_min(0)
        return all_squares.sqrt_().T

    def add_weighted_sum(self, out: Tensor, factors: Tensor | None = None) -> None:
        """out (P) += sum_m factors_m gradient_m, with concatenated parameters; factors (M), None for all 1."""

        def target(parameter: Tensor) -> Tensor | None:
            place = self._place.get(id(parameter))
            return None if place is None else out[self._columns[place]].view_as(parameter)

        for use in self._uses:
            use.add_sum(target, self.partition, factors)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None = None) -> Tensor:
        parameters = (weight,) if bias is None else (weight, bias)

        def back(d: Tensor, wanted: bool, x: Tensor, weight: Tensor) -> Tensor | None:
            d = d.contiguous()  # once, rather than in each compiled loop
            self.keep(books.LinearRecord(parameters, x.detach().contiguous(), d, rows))
            return d @ weight if wanted else None

        return Kept.apply(lambda: (F.linear(x, weight, bias), x, weight), back, x, *parameters)  # type: ignore[no-any-return]

    def embedding(self, ids: Tensor, table: Tensor, rows: Tensor | None = None) -> Tensor:
        if id(table) not in self._place:
            return F.embedding(ids, table)

        def back(d: Tensor, wanted: bool) -> None:
            self.keep(books.LookupRecord((table,), ids, d, rows))

        return Kept.apply(lambda: (F.embedding(ids, table),), back, ids, table)  # type: ignore[no-any-return]

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, rows: Tensor | None = None) -> Tensor:
        parameters = weight, bias

        def run() -> tuple[Tensor, ...]:
            y, mean, inverse = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
            return y, x, mean, inverse, weight, bias

        def back(d: Tensor, wanted: bool, x: Tensor, mean: Tensor, inverse: Tensor, *scale: Tensor) -> Tensor | None:
            self.keep(books.SumRecord(parameters[:1], d * ((x - mean) * inverse), rows))
            self.keep(books.SumRecord(parameters[1:], d, rows))
            given = d, x, scale[0].shape, mean, inverse, *scale, [wanted, False, False]
            return torch.ops.aten.native_layer_norm_backward(*given)[0]

        return Kept.apply(run, back, x, weight, bias)  # type: ignore[no-any-return]

    def crf(self, emissions: Tensor, tags: Tensor, mask: Tensor, crf: CRF) -> Tensor:
        def keep(d_start: Tensor, d_end: Tensor, transitions: books.TransitionRecord) -> None:
            self.keep(books.SumRecord((crf.start,), d_start, None))
            self.keep(books.SumRecord((crf.end,), d_end, None))
            self.keep(transitions)

        return _CRF.apply(emissions, tags, mask, keep, crf.start, crf.transitions, crf.end)  # type: ignore[no-any-return]


def column_slices(parameters: Sequence[Tensor]) -> list[slice]:
    """Slice of each parameter in the flat vector of all parameters."""
    ends = torch.tensor([0, *(p.numel() for p in parameters)]).cumsum(0).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


# mypy cannot type the interface of torch.autograd.Function.


class Kept(torch.autograd.Function):
    """Operation on x and parameters that records the factors of the parameters' gradients.

    `run` returns the output and the tensors that `back` needs, which autograd frees and checks for in-place changes.
    `back(d, wanted, *needed)` records the factors of the parameters' gradients and returns the gradient of x, or None
    if it is not needed.
    """

    @staticmethod
    def forward(ctx: Any, run: Callable[[], tuple[Tensor, ...]], back: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        output, *needed = run()
        ctx.save_for_backward(*needed)
        ctx.back, ctx.count = back, len(parameters)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> Any:
        return None, None, ctx.back(d, ctx.needs_input_grad[2], *ctx.saved_tensors), *[None] * ctx.count


class _CRF(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, emissions: Tensor, tags: Tensor, mask: Tensor, keep: Any, *scores: Tensor) -> Tensor:
        """`scores`: start, transition and end scores of the CRF."""
        tags = tags.masked_fill(~mask, 0)
        ctx.recursion = recursion = forward_backward(emissions, mask, *scores)
        ctx.save_for_backward(tags, mask, scores[1])
        ctx.keep, ctx.transitions, ctx.dtype = keep, scores[1], emissions.dtype
        return recursion.log_partition - path_score(emissions, tags, mask, *scores)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> Any:
        tags, mask, transitions = ctx.saved_tensors
        recursion, dtype = ctx.recursion, ctx.dtype
        gold = torch.zeros_like(recursion.marginals).scatter_(2, tags[..., None], mask[..., None].double())
        d = (recursion.marginals - gold) * weight.double()[:, None, None]
        last = (mask.sum(1) - 1).clamp_min(0)
        d_start, d_end = d[:, 0].to(dtype), d[torch.arange(len(d), device=d.device), last].to(dtype)
        moved = mask[:, 1:]
        use = books.TransitionRecord(
            (ctx.transitions,),
            recursion.before[moved],
            recursion.after[moved],
            (tags[:, :-1] * len(transitions) + tags[:, 1:])[moved],
            weight.double()[:, None].expand(moved.shape)[moved],
            (transitions.double() - recursion.highest).exp(),
            moved.sum(1),
        )
        if ctx.keep is not None:
            ctx.keep(d_start, d_end, use)
            return d.to(dtype), None, None, None, None, None, None
        d_transitions = torch.zeros_like(transitions)
        use.add_sum(lambda parameter: d_transitions, MicroBatches([len(d)], d.device), None)
        return d.to(dtype), None, None, None, d_start.sum(0), d_transitions, d_end.sum(0)
