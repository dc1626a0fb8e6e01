"""Refuses modules that keep something of the examples beside the gradient, such as BatchNorm's running statistics."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edp_lab.errors import UsageError

CONTAINERS = ("_parameters", "_buffers", "_modules")  # torch's containers of what a module holds
PLAIN = (bool, int, float, complex, str, bytes)
NESTED = 4  # containers and objects within one another that are looked into


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """UsageError if the block changes what a module keeps: it would be released, or steer later steps, without noise.

    Watched are the modules of the model and any other one that is called in the block: their parameters, their buffers,
    and numbers, text, arrays and tensors in their attributes and those of their classes, also within containers and
    plain objects. A weight that a hook makes again before each call, as `torch.nn.utils.weight_norm` does, is not.
    Global variables and what a closure holds are out of sight.
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


def computed_now(compute: Callable[[], Tensor]) -> Tensor:
    """What `compute` returns; UsageError if part of it was computed before, when nobody watched the modules."""
    first = _number((torch.zeros((), requires_grad=True) + 0).grad_fn)
    losses = compute()
    left, seen = [losses.grad_fn], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if _number(node) < first:
            raise UsageError(
                "the losses of a micro-batch were computed before the step, which could not watch what layers keep: "
                "hand over functions that compute them"
            )
        left += [further for further, _ in node.next_functions]
    return losses


def _number(node: Any) -> int:
    """When autograd recorded it: later ones have larger numbers, parameters the largest."""
    return int(node._sequence_nr())


def _state(module: nn.Module) -> dict[str, object]:
    """What the module itself and its class hold, by name, without what its children do."""
    remade = {getattr(hook, "name", None) for hook in module._forward_pre_hooks.values()}
    shared = {name: value for name, value in vars(type(module)).items() if not name.startswith("__")}
    attributes = {name: value for name, value in vars(module).items() if name not in CONTAINERS}
    kept = {**shared, **attributes, **module._parameters, **module._buffers}
    return {name: mark for name, value in kept.items() if name not in remade and (mark := _mark(value)) is not None}


def _mark(value: Any, depth: int = NESTED) -> object:
    """Something that differs if what is held differs; None for what holds nothing that could."""
    if isinstance(value, Tensor):
        return _digest(value)
    if isinstance(value, np.ndarray):
        return value.shape, zlib.crc32(np.ascontiguousarray(value).tobytes())
    if isinstance(value, PLAIN):
        return repr(value)
    if value is None or isinstance(value, nn.Module | ModuleType | type) or callable(value) or depth == 0:
        return None
    if isinstance(value, Mapping):
        value = list(value.items())
    elif not isinstance(value, Collection):
        value = list(getattr(value, "__dict__", {}).items())
    marks = [_mark(item, depth - 1) for item in value]
    return marks if any(mark is not None for mark in marks) else None


def _digest(tensor: Tensor) -> object:
    """Shape and checksum of the numbers: unlike a version counter, it sees what was written through ``.data``."""
    try:
        numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    except (RuntimeError, TypeError):  # sparse, quantised or on no device
        return id(tensor), tensor._version
    return tuple(tensor.shape), zlib.crc32(numbers.data)
