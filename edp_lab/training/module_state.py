"""Refuses modules that keep something of the examples beside the gradient, such as BatchNorm's running statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edp_lab.errors import UsageError

CONTAINERS = ("_parameters", "_buffers", "_modules")  # torch's containers of what a module holds
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers of as many bytes


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """UsageError if the block changes what a module keeps: it would be released, or steer later steps, without noise.

    Watched are the modules of the model and any other one that is called in the block: their parameters, their buffers,
    and tensors, arrays and floats in their attributes. A tensor with a gradient function, as weight norm leaves it, is
    made again from the parameters in each call, and is not looked at.
    """
    names = {module: name for name, module in model.named_modules()}
    before = {module: _state(module) for module in names}

    def called(module: nn.Module, _: object) -> None:
        if module not in before:
            before[module] = _state(module)

    hook = nn.modules.module.register_module_forward_pre_hook(called)
    try:
        yield
    finally:
        hook.remove()
    for module, earlier in before.items():
        now = _state(module)
        changed = sorted(name for name in earlier.keys() | now.keys() if earlier.get(name) != now.get(name))
        if changed:
            raise UsageError(
                f"the losses change {', '.join(changed)} of layer {names.get(module, '')!r} ({type(module).__name__}): "
                "what a layer keeps of the examples is not covered by any noise; put the layer into eval mode, or use "
                "one that keeps nothing, such as GroupNorm or LayerNorm"
            )


def _state(module: nn.Module) -> dict[str, object]:
    """What the module itself holds, by name, without that of its children."""
    attributes = {name: value for name, value in vars(module).items() if name not in CONTAINERS}
    kept = {**attributes, **module._parameters, **module._buffers}
    return {name: mark for name, value in kept.items() if (mark := _mark(value)) is not None}


def _mark(value: Any) -> object:
    """Something that differs if the numbers in it do; None for what holds none."""
    if isinstance(value, Tensor):
        return None if value.grad_fn is not None else _digest(value)
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return _mark([*value.values()])
    if isinstance(value, list | tuple | set):
        marks = [_mark(one) for one in value]
        return marks if any(mark is not None for mark in marks) else None
    return None


def _digest(tensor: Tensor) -> object:
    """Shape and the sum of its bits: unlike a version counter, it sees what was written through ``.data``."""
    if tensor.layout is not torch.strided or tensor.element_size() not in WORDS:
        return id(tensor), tensor._version
    bits = tensor.detach().contiguous().view(WORDS[tensor.element_size()])
    return tuple(tensor.shape), int(bits.sum(dtype=torch.int64))
