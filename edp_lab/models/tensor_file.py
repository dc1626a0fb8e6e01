"""Tensors in a file: safetensors, whose format is a JSON header and raw numbers, so that nothing in it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from edp_lab.errors import UsageError


def parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file.

    Raises:
        UsageError: the bytes are not a whole safetensors file.
    """
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is damaged: it is not a whole safetensors file ({error})") from error


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """What must agree before numbers are taken over: copying would stretch or convert them silently."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
