"""Gradients of a step's micro-batches, computed in the fastest available way.

    GhostGradients      our models: one pass for many micro-batches, by ghost clipping
    LoopGradient        any module: one pass per micro-batch, like the DP-SGD timed in the paper
    SingleMicroBatch    our models, one micro-batch: the gradient stays in ``.grad``, without a copy
    StackedGradients    gradients given as rows, for panels and audits

Each class computes norms, and then a weighted sum with weights from `edp_lab.training.dp_step.clip`. A step has a list
of these objects and adds their sums up in a `FlatGradient`. Training without clipping uses `plain_gradient`.

**The sensitivity bound holds despite floating-point rounding.** The sound step clips to B = (1 - h) C, where h is
`headroom`: 2^-11, or more if many micro-batches are summed. With u = 2^-24, all to first order:

1. A computed norm is too small by at most 513u (relative). Before the root is taken, at most 1,024 squares are summed
   in float32, in any order (`row_norms`; more in float64), and a bound on underflow is added (`clip_factors`).
2. A clipped gradient v_m, the rounded product of a computed gradient and a rounded factor, therefore has a norm of at
   most B (1 + 515u).
3. The sum of M clipped gradients has an error of at most D u M C, if each entry is rounded D times. Each rounding error
   is at most u times the sum of the absolute values, in any order (Higham 2002, 4.2), and the norm of
   sum_m |v_m| is at most M C. The difference of two neighbours' sums has at most twice this error.

Together: if one utterance moves the exact sum by at most s C (s is 1 or 2), it moves the computed sum by at most

    s B (1 + 515u) + 2 D u M C  <=  s C,    if h >= (515 + 2 D M) u

(the second-order terms are smaller than the gain from using v_m's norm, C (1 - h + 515u), instead of C in point 3).
2^-11 is 8,192u, which is enough for D M <= 3,838. M is at most 2 b + 100, where b is the fixed divisor of the sum: a
Poisson sample is larger with probability below 10^-54 (Chernoff), and is then refused.

This proves the bound without further assumptions, and for any values, if a step computes the gradient of each
micro-batch separately. With float64 accumulators (`LoopGradient`, `StackedGradients`), D is 1. With R ranks, D is R,
because each rank's sum is rounded once and the all-reduce rounds R - 1 times; with one micro-batch per rank, M = D = R.

If one pass computes the sum for many micro-batches (`GhostGradients`), no bound in terms of C alone holds: the terms
of one gradient can cancel within a matrix product, and the presence of one utterance may change how a library rounds
the results for another. Here we *assume* that these effects change the difference of two neighbours' sums by less than
C / 2,200, about 7,600u C, or by less than h allows, if that is more. We measured 66u C for 64 single-utterance
micro-batches, 458u C for 512 (`tests/training/test_dp_step.py`) and 1,051u C for 8,192 (sixteen passes summed in
float64). With `--precision float64`, u is 2^-53, and relative to it the same headroom is 5 * 10^8 times as large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from edp_lab.corpora.encoding import Dataset
from edp_lab.errors import UsageError
from edp_lab.models.ghost_clipping.bookkeeping import Memory, row_norms
from edp_lab.models.ghost_clipping.ops import PLAIN, SPARSE, MicroBatchOps, PlainOps, column_slices
from edp_lab.models.intent_slot import IntentSlotModel

U = 2.0**-24  # largest relative rounding error of a float32 operation
HEADROOM = 2.0**-11  # minimum share of C that the sound step reserves for rounding (see above)
MOST_ROOM = 2.0**-3  # maximum share
MOST_EXAMPLES = 512  # per pass; more would need memory without saving time


class MicroGradients(Protocol):
    """Gradients of M micro-batches, in any form.

    Attributes:
        loss: sum of the losses of all utterances, available once the norms are computed.
    """

    loss: Tensor

    def norms(self) -> Tensor:
        """Compute the gradients and return their L2 norms per layer: (M, K), float64."""
        ...

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Add sum_m factors_m gradient_m to total (P); factors (M). A factor of 0 excludes even a gradient with NaN."""
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
    """L2 norm of every gradient per layer: (M, P) -> (M, K), float64."""
    return torch.stack([row_norms(gradients[:, columns]) for columns in layout.columns], dim=1)


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the names and the trainable parameters of a model, in a fixed order."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


class FlatGradient:
    """One flat gradient (P) and a few more numbers, which the ranks sum in one all-reduce.

    Args:
        parameters: names and parameters to be trained, the same in every process.
        accelerator: None for a single process.
        more: how many more numbers.

    Raises:
        UsageError: parameters are neither float32 nor float64, the only types with exact noise.
    """

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], accelerator: Accelerator | None = None, more: int = 0
    ) -> None:
        if not parameters:
            raise UsageError("the model has no trainable parameter: set requires_grad on those to be trained")
        self.layout, self.parameters = Layout.of(parameters), [p for _, p in parameters]
        types = {str(p.dtype) for p in self.parameters}
        if others := types - {"torch.float32", "torch.float64"}:
            raise UsageError(f"parameters of {others.pop()}: noise is exact in float32 and float64 only; convert them")
        if len(types) > 1:
            raise UsageError(f"parameters of {' and '.join(sorted(types))}: convert them to one precision")
        self.rank, self.world = 0, 1
        if accelerator is not None:
            self.rank, self.world = accelerator.process_index, accelerator.num_processes
        self._message = self.parameters[0].new_zeros(self.layout.size + more, requires_grad=False)
        self.gradient, self._more = self._message[: self.layout.size], self._message[self.layout.size :]

    def sum_over_ranks(self, *numbers: Tensor | float) -> list[float]:
        """Sum `gradient` over ranks in place; return the sums of `numbers` over ranks."""
        for k, number in enumerate(numbers):
            self._more[k] = number
        if self.world > 1:
            torch.distributed.all_reduce(self._message)
        return self._more.tolist()  # type: ignore[no-any-return]

    def use(self, layers: Sequence[Tensor]) -> None:
        """Set every ``.grad`` to the gradient of its layer, even if ``optimizer.zero_grad()`` set it to None."""
        for p, layer in zip(self.parameters, layers, strict=True):
            p.grad = layer.view_as(p)

    def take(self) -> None:
        """With several ranks, copy every ``.grad`` into `gradient` and replace it with a view of the copy."""
        if self.world > 1:
            for p, columns in zip(self.parameters, self.layout.columns, strict=True):
                layer = self.gradient[columns].view_as(p)
                p.grad = layer.zero_() if p.grad is None else layer.copy_(p.grad)


@dataclass
class GhostGradients:
    """Ghost clipping: one forward and one backward pass for all micro-batches, without forming most gradients."""

    model: IntentSlotModel
    data: Dataset
    parts: Sequence[np.ndarray]  # micro-batches, as indices of examples in `data`; if empty, the gradient is zero
    dropout_key: int | None  # None for no dropout
    layout: Layout
    memory: Memory | None = None  # buffers reused from earlier steps
    loss: Tensor = field(init=False)
    _ops: MicroBatchOps = field(init=False)

    def norms(self) -> Tensor:
        norms = torch.zeros(len(self.parts), len(self.layout.names), dtype=torch.float64, device=self._device)
        if filled := [m for m, part in enumerate(self.parts) if len(part)]:
            self._pass(filled)
            norms[filled] = self._ops.norms()
        else:
            self.loss = norms.new_zeros(())
        return norms

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        filled = [m for m, part in enumerate(self.parts) if len(part)]
        kept = [m for m in filled if factors[m]]
        if len(kept) < len(filled):  # a new pass without excluded micro-batches, because NaN times 0 is NaN
            self.loss = self.loss.new_zeros(())
            if kept:
                self._pass(kept)
                self._ops.norms()  # materialises the gradients that are then summed
        if kept:
            local = total if total.dtype == self.loss.dtype else torch.zeros_like(total, dtype=self.loss.dtype)
            self._ops.add_weighted_sum(local, factors[kept])
            if local is not total:
                total += local

    def _pass(self, places: Sequence[int]) -> None:
        parts = [self.parts[m] for m in places]
        parameters = [p for _, p in trainable(self.model)]
        for p in parameters:
            p.grad = None
        self._ops = MicroBatchOps(parameters, [len(part) for part in parts], self.memory)
        batch = self.data.batch(np.concatenate(parts)).to(self._device)
        losses = self.model.losses(batch, self._ops, self.dropout_key)
        partition = self._ops.partition
        (losses * partition.spread(1 / partition.sizes, None).to(losses.dtype)).sum().backward()
        if any(p.grad is not None for p in parameters):
            raise RuntimeError("a parameter was used outside the ghost-clipping operations")
        self.loss = losses.detach().sum()

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def ghost_gradients(
    model: IntentSlotModel,
    data: Dataset,
    parts: Sequence[np.ndarray],
    dropout_key: int | None,
    layout: Layout,
    memory: Memory | None = None,
) -> list[GhostGradients]:
    """Group micro-batches into passes of at most `MOST_EXAMPLES`; a larger micro-batch gets its own pass."""
    passes: list[list[np.ndarray]] = [[]]
    total = 0
    for part in parts:
        if passes[-1] and total + len(part) > MOST_EXAMPLES:
            passes.append([])
            total = 0
        passes[-1].append(part)
        total += len(part)
    return [GhostGradients(model, data, group, dropout_key, layout, memory) for group in passes if group]


@dataclass
class LoopGradient:
    """Gradient of one micro-batch of any module, by plain autograd; `compute` returns its examples' losses."""

    parameters: Sequence[nn.Parameter]
    compute: Callable[[], Tensor]
    layout: Layout
    loss: Tensor = field(init=False)
    _row: Tensor | None = field(init=False, default=None)

    def norms(self) -> Tensor:
        losses = self.compute()
        gradients = torch.autograd.grad(losses.mean(), list(self.parameters), materialize_grads=True)
        self._row, self.loss = torch.cat([g.flatten() for g in gradients]), losses.detach().sum()
        return layer_norms(self._row[None], self.layout)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        if factors[0] and self._row is not None:
            total.add_(self._row, alpha=float(factors[0]))
        self._row = None  # free it: it is as large as the model


@dataclass
class SingleMicroBatch:
    """Gradient of one micro-batch of our models, by plain autograd, used directly from ``.grad``.

    Gradients of embedding tables are sparse: a batch reads a few hundred of BERT's 30,000 rows.
    """

    model: IntentSlotModel
    data: Dataset
    part: np.ndarray
    dropout_key: int | None
    layout: Layout
    loss: Tensor = field(init=False)

    def norms(self) -> Tensor:
        self.loss = plain_gradient(self.model, self.data, self.part, self.dropout_key, 1.0, SPARSE)
        norms = []
        for _, p in trainable(self.model):
            if p.grad is not None and p.grad.is_sparse:
                p.grad = p.grad.coalesce()
            numbers = p.new_zeros(1) if p.grad is None else p.grad.values() if p.grad.is_sparse else p.grad
            norms.append(row_norms(numbers.reshape(1, -1)))
        return torch.stack(norms, dim=1)

    def layers(self) -> list[Tensor]:
        """Return each layer's gradient, flat (n) or as a sparse table (V, D); call `norms` first."""
        gradients = [p.new_zeros(p.numel()) if p.grad is None else p.grad for _, p in trainable(self.model)]
        return [gradient if gradient.is_sparse else gradient.view(-1) for gradient in gradients]

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        if factors[0]:
            for (_, p), columns in zip(trainable(self.model), self.layout.columns, strict=True):
                if p.grad is not None:
                    total[columns].view(p.shape).add_(p.grad, alpha=float(factors[0]))


@dataclass
class StackedGradients:
    """Gradients given as a matrix (M, P), one row per micro-batch."""

    gradients: Tensor
    layout: Layout
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))

    def norms(self) -> Tensor:
        return layer_norms(self.gradients, self.layout)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        exact = total.double()
        for factor, gradient in zip(factors.tolist(), self.gradients, strict=True):
            if factor:
                exact.add_(gradient, alpha=factor)
        total.copy_(exact)


def model_gradients(
    model: IntentSlotModel,
    data: Dataset,
    parts: Sequence[np.ndarray],
    dropout_key: int | None,
    layout: Layout,
    naive: bool = False,
    memory: Memory | None = None,
) -> Sequence[MicroGradients]:
    """Return the gradients of one of our models on these micro-batches; `naive`: loop over micro-batches (slow)."""
    if len(parts) == 1 and not naive:
        return [SingleMicroBatch(model, data, parts[0], dropout_key, layout)]
    if not naive:
        return ghost_gradients(model, data, parts, dropout_key, layout, memory)
    device, parameters = next(model.parameters()).device, [p for _, p in trainable(model)]

    def compute(part: np.ndarray) -> Tensor:
        return model.losses(data.batch(part).to(device), dropout_key=dropout_key)

    return [LoopGradient(parameters, partial(compute, part), layout) for part in parts if len(part)]


def plain_gradient(
    model: IntentSlotModel,
    data: Dataset,
    part: np.ndarray,
    dropout_key: int | None,
    weight: float,
    ops: PlainOps = PLAIN,
) -> Tensor:
    """Store weight times the mean gradient of one batch in ``.grad``, by plain autograd; return the summed loss.

    The gradient is not clipped, so no noise can make it private.
    """
    model.zero_grad(set_to_none=True)
    if not len(part):
        return torch.zeros(())
    losses = model.losses(data.batch(part).to(next(model.parameters()).device), ops, dropout_key)
    (losses.sum() * (weight / len(part))).backward()
    return losses.detach().sum()


def stacked_gradients(
    model: IntentSlotModel, data: Dataset, parts: Sequence[np.ndarray], dropout_key: int | None, layout: Layout
) -> StackedGradients:
    """Return the gradients of micro-batches as the rows of a matrix."""
    rows = next(model.parameters()).new_zeros(len(parts), layout.size)
    for row, part in zip(rows, parts, strict=True):
        gradient = SingleMicroBatch(model, data, part, dropout_key, layout)
        factors = torch.ones_like(gradient.norms()[:, 0])
        gradient.add_weighted_sum(factors, row)
    return StackedGradients(rows, layout)


# ---- Rounding --------------------------------------------------------------------------------------------------------


def headroom(micro_batches: int, ranks: int = 1) -> float:
    """Return the share h of C reserved for rounding (see above); `micro_batches`: number per step on all ranks."""
    room = max(HEADROOM, (515 + 2 * ranks * most_micro_batches(micro_batches)) * U)
    if room > MOST_ROOM:
        raise UsageError(
            f"a step sums {micro_batches:,} micro-batches on {ranks:,} ranks, which may round away {room:.0%} of the "
            "clip norm: lower --batch-size or --processes"
        )
    return room


def most_micro_batches(divisor: int) -> int:
    """Return the maximum number of micro-batches in a step with this divisor of the sum (see above)."""
    return 2 * divisor + 100


def check_finite(norms: Tensor, layout: Layout) -> None:
    """Raise a UsageError that names the layer if a gradient or its square is NaN or infinite; norms (M, K)."""
    if not torch.isfinite(norms).all():
        layer = layout.names[int((~torch.isfinite(norms)).any(0).nonzero()[0])]
        raise UsageError(
            f"the gradient of layer {layer!r} is not finite: min(1, C/NaN) is no clip; lower --lr or check the corpus"
        )
