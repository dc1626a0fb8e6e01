"""How long commands say what they are at."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def telling() -> Iterator[Callable[[str, bool], None]]:
    """On standard error: on a terminal a changing line as well, everywhere a line for what is worth keeping."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield lambda line, kept: print(line, file=sys.stderr, flush=True) if kept else None
        return
    with console.status("loading") as status:

        def tell(line: str, kept: bool) -> None:
            status.update(line)
            if kept:
                console.print(line)

        yield tell
