"""The gradients of a step's micro-batches, by whichever way is fastest.

    GhostGradients      of our models: one pass for many micro-batches, by ghost clipping
    LoopGradient        of any module: one pass for one micro-batch, as the paper timed DP-SGD
    SingleMicroBatch    of one micro-batch of our models: where autograd leaves it, without a copy
    StackedGradients    given as rows: for panels and audits

Each of them computes norms, and then any weighted sum: `edp_lab.training.dp_step.clip` chooses the weights. A step has
a list of them, which it adds up in a `FlatGradient`. `plain_gradient` is what training without clipping uses.

**Floats round, but the bound on the sensitivity holds.** The sound step clips to B = (1 - h) C, where h is `headroom`:
2^-11, and more where many micro-batches are summed. With u = 2^-24, all to first order:

1. A norm is short by at most 513u of itself: at most 1,024 squares are summed in float32 in whatever order, then a root
   (`row_norms`; float64 beyond), and what squares that underflow may lack is added (`clip_factors`).
2. So a clipped gradient v_m, the gradient as computed times a factor that is rounded, as is the product, has a norm
   of at most B (1 + 515u).
3. The sum of M of them is off by at most D u M C, where each number of it passes through D roundings. For each of these
   is at most u times the sum of the absolute values, whatever the order (Higham 2002, 4.2), and the norm of
   sum_m |v_m| is at most M C. Two neighbours' sums are off by twice that.

Together: where one utterance moves the exact sum by at most s C (s is 1 or 2), it moves the computed one by at most

    s B (1 + 515u) + 2 D u M C  <=  s C,    if h >= (515 + 2 D M) u

(the second order is less than what the third point gains with the norm of v_m, C (1 - h + 515u), in place of C). 2^-11
is 8,192u and does for D M <= 3,838. M is at most 2 b + 100, where b is the fixed number over which the mean is taken: a
Poisson sample is larger with a chance below 10^-54 (Chernoff), and is refused.

Proven thus, with no further assumption, is a step in which each micro-batch's gradient is formed by itself, whatever
its numbers are: with float64 accumulators (`LoopGradient`, `StackedGradients`) D is 1, and with R ranks R, as their
sums are rounded once each and R - 1 times on the way; with one micro-batch on each rank, M = D = R.

If one pass forms the sum for many micro-batches (`GhostGradients`), no bound by C alone is true: the
terms of one gradient can cancel within a product of matrices, and a library may round what it computes of one utterance
by another's presence. There it is *assumed* that all this moves two neighbours' sums apart by less than C / 2,200, some
7,600u C, or than what h leaves, where that is more. Measured are 66u C for 64 utterances, each a micro-batch, 458u C
for 512 (`tests/training/test_dp_step.py`), 1,051u C for 8,192, which are sixteen passes that are summed in float64.
`--precision float64` makes u 2^-53, and the same room 5 * 10^8 times as large beside what is rounded.
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
HEADROOM = 2.0**-11  # share of C by which the sound clip is shorter, at least (see above),
MOST_ROOM = 2.0**-3  # and at most
MOST_EXAMPLES = 512  # in one pass: more would cost memory and save nothing


class MicroGradients(Protocol):
    """The gradients of M micro-batches, in whatever form.

    Attributes:
        loss: summed over their utterances, once the norms are computed.
    """

    loss: Tensor

    def norms(self) -> Tensor:
        """Compute the gradients; their L2 norms in every layer: (M, K), float64."""
        ...

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """total (P) += sum_m factors_m gradient_m; factors (M). 0 leaves a gradient out, whatever its numbers."""
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


class FlatGradient:
    """One flat gradient (P), and a few more numbers, which ranks sum up in one message.

    Args:
        parameters: names and parameters to be trained, the same in every process.
        accelerator: None for a single process.
        more: how many further numbers.

    Raises:
        UsageError: parameters are neither float32 nor float64, in which alone noise is exact.
    """

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], accelerator: Accelerator | None = None, more: int = 0
    ) -> None:
        if not parameters:
            raise UsageError("the model has no trainable parameter: set requires_grad on those to be trained")
        self.layout, self.parameters = Layout.of(parameters), [p for _, p in parameters]
        types = {str(p.dtype) for p in self.parameters}
        if others := types - {"torch.float32", "torch.float64"}:
            raise UsageError(f"parameters of {others.pop()}: noise is exact in float32 and float64 alone; convert them")
        if len(types) > 1:
            raise UsageError(f"parameters of {' and '.join(sorted(types))}: convert them to one precision")
        self.rank, self.world = 0, 1
        if accelerator is not None:
            self.rank, self.world = accelerator.process_index, accelerator.num_processes
        self._message = self.parameters[0].new_zeros(self.layout.size + more, requires_grad=False)
        self.gradient, self._more = self._message[: self.layout.size], self._message[self.layout.size :]

    def sum_over_ranks(self, *numbers: Tensor | float) -> list[float]:
        """Sum `gradient` over ranks in place; returns the sums of these numbers."""
        for k, number in enumerate(numbers):
            self._more[k] = number
        if self.world > 1:
            torch.distributed.all_reduce(self._message)
        return self._more.tolist()  # type: ignore[no-any-return]

    def use(self, layers: Sequence[Tensor]) -> None:
        """Leave a gradient in every ``.grad``, also where ``optimizer.zero_grad()`` has set it to None."""
        for p, layer in zip(self.parameters, layers, strict=True):
            p.grad = layer.view_as(p)

    def take(self) -> None:
        """With several ranks, copy what every ``.grad`` holds into `gradient`, and let each be a view of it."""
        if self.world > 1:
            for p, columns in zip(self.parameters, self.layout.columns, strict=True):
                layer = self.gradient[columns].view_as(p)
                p.grad = layer.zero_() if p.grad is None else layer.copy_(p.grad)


@dataclass
class GhostGradients:
    """Ghost clipping: one forward and one backward pass for all micro-batches; most gradients are never formed."""

    model: IntentSlotModel
    data: Dataset
    parts: Sequence[np.ndarray]  # micro-batches, as numbers of examples in `data`. Empty ones have gradient zero
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
        if len(kept) < len(filled):  # a new pass without the others: NaN times 0 is no 0
            self.loss = self.loss.new_zeros(())
            if kept:
                self._pass(kept)
                self._ops.norms()  # what it forms for them is summed
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
            raise RuntimeError("a parameter was used past the book-keeping")
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
    """Those of any number of micro-batches, in passes of at most `MOST_EXAMPLES`, unless one alone has more."""
    passes: list[list[np.ndarray]] = [[]]
    total = 0
    for part in parts:
        if passes[-1] and total + len(part) > MOST_EXAMPLES:
            passes.append([])
            total = 0
        passes[-1].append(part)
        total += len(part)
    return [GhostGradients(model, data, some, dropout_key, layout, memory) for some in passes if some]


@dataclass
class LoopGradient:
    """The gradient of one micro-batch of any module, by plain autograd. `compute`: the losses of its examples."""

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
        self._row = None  # as large as the model


@dataclass
class SingleMicroBatch:
    """The gradient of one micro-batch of our models, by plain autograd, used where it leaves it: in ``.grad``.

    Gradients of embedding tables are sparse: of BERT's 30,000 rows a batch reads a few hundred.
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
        """The gradient of each layer (n), once the norms are computed: as it lies in ``.grad``, or sparse."""
        return [_flat(p.grad) if p.grad is not None else p.new_zeros(p.numel()) for _, p in trainable(self.model)]

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        if factors[0]:
            for (_, p), columns in zip(trainable(self.model), self.layout.columns, strict=True):
                if p.grad is not None:
                    total[columns].view(p.shape).add_(p.grad, alpha=float(factors[0]))


def _flat(gradient: Tensor) -> Tensor:
    """A gradient's numbers end to end; of a coalesced sparse one (V, D), a sparse vector (V D)."""
    if not gradient.is_sparse:
        return gradient.view(-1)
    rows, width = gradient.indices()[0], gradient.shape[1]
    places = (rows[:, None] * width + torch.arange(width, device=rows.device)).view(1, -1)
    return torch.sparse_coo_tensor(
        places, gradient.values().view(-1), (gradient.numel(),), is_coalesced=True, check_invariants=False
    )


@dataclass
class StackedGradients:
    """(M, P), one row per micro-batch."""

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
    """The gradients of one of our models on these micro-batches. `naive`: in a loop, whatever it costs."""
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
    """Leave weight times the mean gradient of one batch in ``.grad``, by plain autograd; returns the summed loss.

    It is not clipped, so no noise can be added to it.
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
    """The gradient of each micro-batch as a row of its own."""
    rows = next(model.parameters()).new_zeros(len(parts), layout.size)
    for row, part in zip(rows, parts, strict=True):
        gradient = SingleMicroBatch(model, data, part, dropout_key, layout)
        factors = torch.ones_like(gradient.norms()[:, 0])
        gradient.add_weighted_sum(factors, row)
    return StackedGradients(rows, layout)


# ---- Rounding --------------------------------------------------------------------------------------------------------


def headroom(micro_batches: int, ranks: int = 1) -> float:
    """Fraction of C by which the sound clip is shorter. `micro_batches`: a step's fixed number, of all ranks."""
    room = max(HEADROOM, (515 + 2 * ranks * most_micro_batches(micro_batches)) * U)
    if room > MOST_ROOM:
        raise UsageError(
            f"a step sums {micro_batches:,} micro-batches on {ranks:,} ranks, which may round away {room:.0%} of the "
            "clip norm: lower --batch-size or --processes"
        )
    return room


def most_micro_batches(divisor: int) -> int:
    """The largest number of micro-batches of a step whose mean is over `divisor`, see above."""
    return 2 * divisor + 100


def check_finite(norms: Tensor, layout: Layout) -> None:
    """UsageError, which names the layer, where a gradient is NaN or infinite (or its square is): norms (M, K)."""
    if not torch.isfinite(norms).all():
        layer = layout.names[int((~torch.isfinite(norms)).any(0).nonzero()[0])]
        raise UsageError(
            f"the gradient of layer {layer!r} is not finite: min(1, C/NaN) is no clip; lower --lr or check the corpus"
        )
