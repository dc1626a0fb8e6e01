"""The gradients of a step's micro-batches, by whichever way is fastest, and the sum of what clipping leaves of them.

    KeptGradients      of our models: one pass for all micro-batches, by book-keeping (ghost clipping)
    LoopGradients      of any module: one pass for each micro-batch, as the paper timed DP-SGD
    BatchGradient      of a step that is a single micro-batch: where autograd leaves it, without a copy
    StackedGradients   given as rows: for panels and audits
    PlainGradient      of plain training, which clips nothing

Gradients are computed when their clipped sum is asked for. Those formed one by one are summed in float64, and rounded
once, and so are the sums of passes: `edp_lab.training.dp_step` says what that is good for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from edp_lab.corpora.encoding import Dataset
from edp_lab.models.ghost_clipping.bookkeeping import Memory, row_norms
from edp_lab.models.ghost_clipping.ops import PLAIN, LookupOps, MicroBatchOps, PlainOps, column_slices
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.training.noise import Rows, Span

MOST_EXAMPLES = 512  # in one pass: more would cost memory and save nothing
Factors = Callable[[Tensor], Tensor]  # norms (M, K) -> factors (M); 0 leaves a micro-batch out, whatever its numbers


class ClippedSum(NamedTuple):
    """sum_m f_m g_m over M micro-batches, as it lies in memory.

    Whoever adds noise scales in the same pass through memory.
    """

    norms: Tensor  # (M, K), float64, of the gradients as they were
    factors: Tensor  # (M) f, float64
    spans: Sequence[Span]  # what they mean, end to end, is the sum (P)

    @classmethod
    def flat(cls, norms: Tensor, factors: Tensor, numbers: Tensor, scale: float = 1.0) -> ClippedSum:
        """`scale` times numbers (P)."""
        return cls(norms, factors, [Span(slice(0, len(numbers)), numbers, scale)])


class MicroGradients(Protocol):
    """The gradients of M micro-batches, in whatever form."""

    def clipped_sum(self, out: Tensor, factors_of: Factors) -> ClippedSum:
        """The sum over micro-batches of f_m g_m, f = factors_of(norms); it may lie in out (P)."""
        ...


@dataclass(frozen=True)
class Layout:
    """Names and columns of the trainable parameters in a flat gradient of P numbers."""

    names: tuple[str, ...]
    columns: tuple[slice, ...]

    @classmethod
    def of(cls, parameters: Sequence[tuple[str, nn.Parameter]]) -> Layout:
        names, tensors = zip(*parameters, strict=True)
        return cls(names, tuple(column_slices(tensors)))

    @property
    def size(self) -> int:
        return self.columns[-1].stop


def layer_norms(gradients: Tensor, layout: Layout) -> Tensor:
    """L2 norm of every gradient in every layer: (M, P) -> (M, K), float64."""
    return torch.stack([row_norms(gradients[:, columns]) for columns in layout.columns], dim=1)


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that training changes, in a fixed order."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


@dataclass
class KeptGradients:
    """Of one of our models: one forward and one backward pass for all micro-batches, by book-keeping."""

    model: IntentSlotModel
    data: Dataset
    parts: Sequence[np.ndarray]  # micro-batches, as numbers of examples in `data`. Empty ones have gradient zero
    dropout_key: int | None  # None for no dropout
    layout: Layout
    memory: Memory | None = None  # what earlier gradients used, which are over
    loss: Tensor = field(init=False)  # summed over the utterances, once the gradients are; so below

    def clipped_sum(self, out: Tensor, factors_of: Factors) -> ClippedSum:
        self.loss = out.zero_().new_zeros(())
        if len(self.parts) == 1:  # cheaper to sum up than to measure by its factors
            if len(self.parts[0]):
                self._pass(self.parts).add_weighted_sum(out)
            norms = layer_norms(out[None], self.layout)
            factors = factors_of(norms)
            return ClippedSum.flat(norms, factors, out if factors[0] else out.zero_(), float(factors[0]))
        norms = out.new_zeros(len(self.parts), len(self.layout.names), dtype=torch.float64)
        factors = factors_of(norms)
        passes: list[list[int]] = []  # micro-batches that go through together, as many as memory allows
        total = MOST_EXAMPLES
        for m, part in enumerate(self.parts):
            if len(part):
                if total + len(part) > MOST_EXAMPLES:
                    passes.append([])
                    total = 0
                passes[-1].append(m)
                total += len(part)
        summed = out.double() if len(passes) > 1 else out  # in float32 the error would grow faster than the batch
        for own in passes:
            before = self.loss.clone()
            ops = self._pass([self.parts[m] for m in own])
            norms[own] = ops.norms()
            factors[own] = factors_of(norms[own])
            left = [m for m in own if factors[m]]
            if len(left) < len(own):  # NaN times 0 is no 0
                self.loss = before
                if not left:
                    continue
                ops = self._pass([self.parts[m] for m in left])
                ops.norms()  # what it forms for them is summed
            ops.add_weighted_sum(out.zero_(), factors[left])
            if summed is not out:
                summed += out
        return ClippedSum.flat(norms, factors, out.copy_(summed))

    def _pass(self, parts: Sequence[np.ndarray]) -> MicroBatchOps:
        sizes = [len(part) for part in parts]
        parameters = [p for _, p in trainable(self.model)]
        for p in parameters:
            p.grad = None
        ops = MicroBatchOps(parameters, sizes, self.memory)
        batch = self.data.batch(np.concatenate(parts)).to(self.loss.device)
        losses = self.model.losses(batch, ops, self.dropout_key)
        (losses * ops.cut.spread(1 / ops.cut.sizes, None).to(losses.dtype)).sum().backward()
        if any(p.grad is not None for p in parameters):
            raise RuntimeError("a parameter was used past the book-keeping")
        self.loss += losses.detach().sum()
        return ops


@dataclass
class LoopGradients:
    """Of any module, as the paper timed DP-SGD. `losses`: for each micro-batch, what computes those of its examples."""

    parameters: Sequence[nn.Parameter]
    losses: Sequence[Callable[[], Tensor]]
    layout: Layout
    loss: Tensor = field(init=False)

    def clipped_sum(self, out: Tensor, factors_of: Factors) -> ClippedSum:
        self.loss = out.zero_().new_zeros(())
        norms = out.new_zeros(len(self.losses), len(self.layout.names), dtype=torch.float64)
        factors, total = factors_of(norms), out.double()
        for m, compute in enumerate(self.losses):
            losses = compute()
            gradients = torch.autograd.grad(losses.mean(), list(self.parameters), materialize_grads=True)
            row = torch.cat([g.flatten() for g in gradients])
            norms[m] = layer_norms(row[None], self.layout)[0]
            factors[m] = factors_of(norms[m : m + 1])[0]
            if factors[m]:
                total.add_(row, alpha=float(factors[m]))
            self.loss += losses.detach().sum()
        return ClippedSum.flat(norms, factors, out.copy_(total))


@dataclass
class BatchGradient:
    """Of a step that is one micro-batch, on one process: plain autograd leaves it in ``.grad``, where it stays.

    Of an embedding table only the rows that were read are kept; the rest of its gradient is zero.
    """

    model: IntentSlotModel
    data: Dataset
    part: np.ndarray
    dropout_key: int | None
    layout: Layout
    loss: Tensor = field(init=False)

    def clipped_sum(self, out: Tensor, factors_of: Factors) -> ClippedSum:
        ops = LookupOps()
        self.loss = plain_gradient(self.model, self.data, self.part, self.dropout_key, 1.0, ops)
        spans, norms = [], []
        for (_, p), columns in zip(trainable(self.model), self.layout.columns, strict=True):
            rows = ops.lookups.get(id(p))
            if rows is not None and p.grad is not None:
                raise RuntimeError("a table was used past the lookups")
            if p.grad is None:  # it is such a table, or was not used
                p.grad = out[columns].view_as(p)
                if rows is None:
                    p.grad.zero_()
            norms.append(row_norms((p.grad if rows is None else rows[1]).reshape(1, -1)))
            spans.append(Span(columns, p.grad.view(-1), rows=rows and Rows(*rows)))
        all_norms = torch.stack(norms, dim=1)
        factors = factors_of(all_norms)
        if not factors[0]:
            spans = [Span(span.columns, span.numbers.zero_()) for span in spans]
        return ClippedSum(all_norms, factors, [span._replace(scale=float(factors[0])) for span in spans])


@dataclass
class PlainGradient:
    """The mean gradient of plain training. It is not clipped, so no noise can be added to it."""

    model: IntentSlotModel
    data: Dataset
    part: np.ndarray
    dropout_key: int | None
    weight: float  # of this process's share in the batch
    loss: Tensor = field(init=False)

    def leave_in_grad(self) -> None:
        self.loss = plain_gradient(self.model, self.data, self.part, self.dropout_key, self.weight)


@dataclass
class StackedGradients:
    """(M, P), one row per micro-batch."""

    gradients: Tensor
    layout: Layout

    def clipped_sum(self, out: Tensor, factors_of: Factors) -> ClippedSum:
        norms = layer_norms(self.gradients, self.layout)
        factors = factors_of(norms)
        total = torch.zeros_like(out, dtype=torch.float64)
        for factor, gradient in zip(factors.tolist(), self.gradients, strict=True):
            if factor:
                total.add_(gradient, alpha=factor)
        return ClippedSum.flat(norms, factors, out.copy_(total))


def model_gradients(
    model: IntentSlotModel,
    data: Dataset,
    parts: Sequence[np.ndarray],
    dropout_key: int | None,
    layout: Layout,
    naive: bool = False,
    memory: Memory | None = None,
    alone: bool = False,
) -> KeptGradients | LoopGradients | BatchGradient:
    """The gradients of one of our models on these micro-batches.

    Args:
        naive: in a loop, whatever it costs.
        alone: whether these are all micro-batches of the step, for all processes; then a single one is cheapest where
            autograd leaves it.
    """
    if not naive:
        if alone and len(parts) == 1:
            return BatchGradient(model, data, parts[0], dropout_key, layout)
        return KeptGradients(model, data, parts, dropout_key, layout, memory)
    device = next(model.parameters()).device

    def compute(part: np.ndarray) -> Tensor:
        return model.losses(data.batch(part).to(device), dropout_key=dropout_key)

    filled = [part for part in parts if len(part)]
    return LoopGradients([p for _, p in trainable(model)], [partial(compute, part) for part in filled], layout)


def plain_gradient(
    model: IntentSlotModel,
    data: Dataset,
    part: np.ndarray,
    dropout_key: int | None,
    weight: float,
    ops: PlainOps = PLAIN,
) -> Tensor:
    """Leave weight times the mean gradient of one batch in ``.grad``, by plain autograd; returns the summed loss."""
    model.zero_grad(set_to_none=True)
    if not len(part):
        return torch.zeros(())
    losses = model.losses(data.batch(part).to(next(model.parameters()).device), ops, dropout_key)
    (losses.sum() * (weight / len(part))).backward()
    return losses.detach().sum()


def stacked_gradients(
    model: IntentSlotModel, data: Dataset, parts: Sequence[np.ndarray], dropout_key: int | None, layout: Layout
) -> StackedGradients:
    """The gradient of each micro-batch as a row of its own."""
    rows = next(model.parameters()).new_zeros(len(parts), layout.size)
    for row, part in zip(rows, parts, strict=True):
        gradients = model_gradients(model, data, [part], dropout_key, layout)
        gradients.clipped_sum(row, lambda norms: torch.ones_like(norms[:, 0]))
    return StackedGradients(rows, layout)
