"""What results tell of the machine."""

from __future__ import annotations

import os
import platform

import torch


def machine(device: str = "cpu") -> str:
    """What a reader needs to judge times by; no name that would give the machine away."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    return f"{os.cpu_count()} cores, {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
