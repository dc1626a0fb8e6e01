"""The gradients of a step's micro-batches: by book-keeping, in a loop, or given as a stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from edp_lab.corpora.encoding import Dataset
from edp_lab.models.ghost_clipping.bookkeeping import Memory, row_norms
from edp_lab.models.ghost_clipping.ops import PLAIN, MicroBatchOps, PlainOps, column_slices
from edp_lab.models.intent_slot import IntentSlotModel

MOST_EXAMPLES = 512  # in one pass: more would cost memory and save nothing
Factors = Callable[[Tensor], Tensor]  # norms (M, K) -> factors (M)


class MicroGradients(Protocol):
    """The gradients of M micro-batches, in whatever form."""

    def clipped_sum(self, out: Tensor, factors_of: Factors) -> tuple[Tensor, Tensor, float]:
        """out (P) times a scale = sum_m f_m g_m, f = factors_of(norms); gives norms (M, K), float64, f (M), the scale.

        Whoever adds the noise multiplies by the scale in the same pass through memory.
        """
        ...


@dataclass(frozen=True)
class Layout:
    """Names, shapes and columns of the trainable parameters in a flat gradient of P numbers."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    columns: tuple[slice, ...]

    @classmethod
    def of(cls, parameters: Sequence[tuple[str, nn.Parameter]]) -> Layout:
        tensors = [p for _, p in parameters]
        return cls(
            tuple(name for name, _ in parameters), tuple(p.shape for p in tensors), tuple(column_slices(tensors))
        )

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
    """Of one of our models: one forward and one backward pass for all micro-batches, by book-keeping.

    Attributes:
        parts: micro-batches, as numbers of examples in `data`. Empty ones have gradient zero.
        dropout_key: None for no dropout.
        memory: what earlier gradients used, which are over.
        loss: summed over the utterances, once the gradients are.
    """

    model: IntentSlotModel
    data: Dataset
    parts: Sequence[np.ndarray]
    dropout_key: int | None
    layout: Layout
    memory: Memory | None = None
    loss: Tensor = field(init=False)

    def clipped_sum(self, out: Tensor, factors_of: Factors) -> tuple[Tensor, Tensor, float]:
        if len(self.parts) == 1:
            return self._whole(out, factors_of)
        self.loss = out.zero_().new_zeros(())
        norms = out.new_zeros(len(self.parts), len(self.layout.names), dtype=torch.float64)
        factors = factors_of(norms)
        for own in self._passes():
            ops = self._pass([self.parts[m] for m in own])
            norms[own] = ops.norms()
            factors[own] = factors_of(norms[own])
            ops.add_weighted_sum(out, factors[own])
        return norms, factors, 1.0

    def _whole(self, out: Tensor, factors_of: Factors) -> tuple[Tensor, Tensor, float]:
        """A single micro-batch is cheaper to sum up than to measure by its factors."""
        self.loss = out.zero_().new_zeros(())
        if len(self.parts[0]):
            self._pass(self.parts).add_weighted_sum(out)
        norms = layer_norms(out[None], self.layout)
        factors = factors_of(norms)
        return norms, factors, float(factors[0])

    def _passes(self) -> list[list[int]]:
        """Numbers of micro-batches that go through together: as many as memory allows, the empty ones left out."""
        passes: list[list[int]] = []
        total = MOST_EXAMPLES
        for m, part in enumerate(self.parts):
            if len(part):
                if total + len(part) > MOST_EXAMPLES:
                    passes.append([])
                    total = 0
                passes[-1].append(m)
                total += len(part)
        return passes

    def _pass(self, parts: Sequence[np.ndarray]) -> MicroBatchOps:
        sizes = [len(part) for part in parts]
        parameters = [p for _, p in trainable(self.model)]
        for p in parameters:
            p.grad = None
        ops = MicroBatchOps(parameters, sizes, self.memory)
        batch = self.data.batch(np.concatenate(parts)).to(self.loss.device)
        losses = self.model.losses(batch, ops, self.dropout_key)
        (losses * ops.cut.spread(1 / ops.cut.sizes, None).to(losses.dtype)).sum().backward()
        assert all(p.grad is None for p in parameters), "a parameter was used past the book-keeping"
        self.loss += losses.detach().sum()
        return ops


@dataclass
class LoopGradients:
    """Of any module: one forward and one backward pass per micro-batch, which is how the paper timed DP-SGD.

    Attributes:
        losses: of each micro-batch, how to compute the losses of its examples.
        loss: their sum, once the gradients are.
    """

    parameters: Sequence[nn.Parameter]
    losses: Sequence[Callable[[], Tensor]]
    layout: Layout
    loss: Tensor = field(init=False)

    def clipped_sum(self, out: Tensor, factors_of: Factors) -> tuple[Tensor, Tensor, float]:
        self.loss = out.zero_().new_zeros(())
        norms = out.new_zeros(len(self.losses), len(self.layout.names), dtype=torch.float64)
        factors = factors_of(norms)
        for m, compute in enumerate(self.losses):
            losses = compute()
            gradients = torch.autograd.grad(losses.mean(), list(self.parameters), allow_unused=True)
            pairs = zip(gradients, self.parameters, strict=True)
            row = torch.cat([p.new_zeros(p.numel()) if g is None else g.flatten() for g, p in pairs])
            norms[m] = layer_norms(row[None], self.layout)[0]
            factors[m] = factors_of(norms[m : m + 1])[0]
            out.add_(row, alpha=float(factors[m]))
            self.loss += losses.detach().sum()
        return norms, factors, 1.0


@dataclass
class StackedGradients:
    """(M, P) gradients, one row per micro-batch: for panels and audits."""

    gradients: Tensor
    layout: Layout

    def clipped_sum(self, out: Tensor, factors_of: Factors) -> tuple[Tensor, Tensor, float]:
        norms = layer_norms(self.gradients, self.layout)
        factors = factors_of(norms)
        out.copy_(factors.to(out.dtype) @ self.gradients)
        return norms, factors, 1.0


def model_gradients(
    model: IntentSlotModel,
    data: Dataset,
    parts: Sequence[np.ndarray],
    dropout_key: int | None,
    layout: Layout,
    naive: bool = False,
    memory: Memory | None = None,
) -> KeptGradients | LoopGradients:
    """The gradients of one of our models on these micro-batches; `naive`: in a loop, whatever it costs."""
    if not naive:
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
