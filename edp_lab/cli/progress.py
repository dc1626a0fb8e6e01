"""Training progress for people: a bar on a terminal, one line per epoch everywhere. Both go to standard error."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from edp_lab.training.trainer import Event


def epoch_line(event: Event) -> str:
    """``epoch  3/12  loss 4.21  SER 0.112  intent 0.951  slot F1 0.902  epsilon 1.2e+04  9.1 s``."""
    row = event.row  # type: ignore[union-attr]
    parts = [f"epoch {event.epoch + 1:>3}/{event.epochs}", f"loss {row['loss']:.3f}", f"SER {row['ser']:.4f}"]
    parts.append(f"intent {row['intent_accuracy']:.3f}")
    if row["slot_f1"] is not None:
        parts.append(f"slot F1 {row['slot_f1']:.3f}")
    if row["z_t"] is not None:
        parts.append(f"z {row['z_t']:.3g}")
        secret = "" if event.status == "holds" else " if the seed were secret"  # type: ignore[union-attr]
        parts.append("no guarantee" if row["epsilon"] is None else f"epsilon {row['epsilon']:.3g}{secret}")
    return "  ".join([*parts, f"{row['seconds']:.1f} s"])


@contextmanager
def on_interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets; the second Ctrl-C is a KeyboardInterrupt as always.

    A launcher's SIGTERM ends a rank at once: one that waits for another would not come to run a handler.
    """
    stop, rank = threading.Event(), os.environ.get("RANK")

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if rank in (None, "0"):
            sys.stderr.write("ending after this step; Ctrl-C again to end at once\n")

    handled = (signal.SIGINT, signal.SIGTERM) if rank is None else (signal.SIGINT,)
    earlier = {number: signal.signal(number, ask) for number in handled}
    try:
        yield stop
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@contextmanager
def listening(quiet: bool = False) -> Iterator[Callable[[Event], None]]:
    """A listener for `edp_lab.training.train` that shows a bar on a terminal and prints a line per epoch.

    `quiet`: nothing, because another rank speaks.
    """
    from edp_lab.training.trainer import StepDone

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[loss]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("training", total=None, loss="")

        def listen(event: Event) -> None:
            if quiet:
                return
            if isinstance(event, StepDone):
                done = event.epoch * event.steps + event.step
                bar.update(
                    task,
                    description=f"epoch {event.epoch + 1}/{event.epochs}",
                    total=event.epochs * event.steps,
                    completed=done,
                    loss=f"loss {event.loss:.3f}",
                )
            elif console.is_terminal:
                console.print(epoch_line(event), highlight=False)
            else:
                sys.stderr.write(epoch_line(event) + "\n")
                sys.stderr.flush()

        yield listen
