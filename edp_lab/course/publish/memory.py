"""What one can see of a notebook while it runs: how many cells are done, and how much memory its kernel takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import psutil

SAMPLE = 0.2  # seconds between two looks at the memory
MB = 1e6


class Watch:
    """Follows one kernel with all its child processes, and can end it.

    Args:
        on_cell: is told, before each cell, how many cells are behind it and how many there are.

    Attributes:
        memory_mb: the most resident memory that the kernel and its children held together, in 10^6 bytes, looked at
            five times a second. Pages that processes share count once for each of them.
        killed: `kill` was called.
    """

    def __init__(self, on_cell: Callable[[int, int], None] = lambda done, of: None) -> None:
        self.on_cell, self.memory_mb, self.killed = on_cell, 0.0, False
        self._kernel: psutil.Process | None = None
        self._end = threading.Event()

    def follow(self, pid: int) -> None:
        """Look at the memory of this kernel until it ends, or until `stop`."""
        self._kernel = psutil.Process(pid)
        threading.Thread(target=self._sample, daemon=True).start()
        if self.killed:  # while the kernel was starting
            self.kill()

    def stop(self) -> None:
        """Stop looking; the kernel goes on."""
        self._end.set()

    def kill(self) -> None:
        """End the kernel and its children at once; a kernel that is still to come ends as soon as it is followed."""
        self.killed = True
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _processes(self) -> list[psutil.Process]:
        """The children, and last the kernel itself."""
        if self._kernel is None:
            return []
        with suppress(psutil.NoSuchProcess):
            return [*self._kernel.children(recursive=True), self._kernel]
        return []

    def _sample(self) -> None:
        while processes := self._processes():
            held = 0
            for process in processes:
                with suppress(psutil.NoSuchProcess):  # ended since we asked
                    held += process.memory_info().rss
            self.memory_mb = max(self.memory_mb, held / MB)
            if self._end.wait(SAMPLE):
                return
