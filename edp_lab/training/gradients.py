"""One gradient per device: in a single pass where the model knows how, else one pass per micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from edp_lab.corpora.encoding import Dataset
from edp_lab.models.intent_slot import IntentSlotModel
from edp_lab.models.ops import DeviceOps


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that training changes, in a fixed order."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def micro_batches(examples: np.ndarray, num_devices: int) -> list[np.ndarray]:
    """The batch cut into N consecutive micro-batches whose sizes differ by at most one; some may be empty."""
    return np.array_split(examples, num_devices)


def device_gradients(
    model: IntentSlotModel,
    data: Dataset,
    parts: Sequence[np.ndarray],
    buffer: Tensor,
    dropout_key: int | None,
) -> Tensor:
    """Mean gradient of each micro-batch into `buffer` (N, P); returns the summed loss of all utterances.

    An empty micro-batch gives a zero gradient.
    """
    if model.supports_device_ops:
        return _one_pass(model, data, parts, buffer, dropout_key)
    total = buffer.new_zeros(())
    parameters = [p for _, p in trainable(model)]
    for row, part in zip(buffer, parts, strict=True):
        row.zero_()
        if len(part):
            losses = model.losses(data.batch(part).to(buffer.device), dropout_key=dropout_key)
            gradients = torch.autograd.grad(losses.mean(), parameters, allow_unused=True)
            flat = [
                (p.new_zeros(p.numel()) if g is None else g.flatten())
                for p, g in zip(parameters, gradients, strict=True)
            ]
            torch.cat(flat, out=row)
            total += losses.detach().sum()
    return total


def _one_pass(
    model: IntentSlotModel, data: Dataset, parts: Sequence[np.ndarray], buffer: Tensor, dropout_key: int | None
) -> Tensor:
    sizes = [len(part) for part in parts]
    ops = DeviceOps([p for _, p in trainable(model)], sizes, buffer)
    losses = model.losses(data.batch(np.concatenate(parts)).to(buffer.device), ops, dropout_key)
    weight = torch.tensor([1 / size for size in sizes for _ in range(size)], device=losses.device)
    (losses * weight.to(losses.dtype)).sum().backward()
    ops.finish()
    return losses.detach().sum()
