"""Panels with work that takes a while: Run, Stop, and a bar that shows how far it is."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from edp_lab.course.kit.controls import Control
from edp_lab.course.kit.figure import HALF, Figure, LiveFigure, framed
from edp_lab.course.kit.panel import Frame, box
from edp_lab.course.kit.text import EscapedHTML, Fold, Tiles
from edp_lab.errors import UsageError
from edp_lab.training import Event, StepDone


class StoppedError(Exception):
    """Stop was pressed: see `Runs.heed_stop`."""


class Runs(Frame):
    """Run and Stop for work that takes a while: it runs in the background, and a bar shows how far it is.

    A subclass says what is to be done (`prepare`, in the kernel's thread, where UsageError becomes one sentence in
    the error box) and does it (`work`, in the background thread), where it looks at `stopping`, or calls `heed_stop`,
    now and then. With sliders over a pure function it is also a `Panel`: ``class Explorer(Panel, Runs)``.

    Attributes:
        stop_event: set when Stop is pressed: for what takes an event, such as `edp_lab.training.train`.
    """

    def __init__(
        self, title: str, looking_at: str, above: Sequence[widgets.Widget], below: Sequence[widgets.Widget]
    ) -> None:
        self.stop_event, self._thread = threading.Event(), threading.Thread()
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.run_button.on_click(lambda _: self.run())
        self.stop_button.on_click(lambda _: self.stop())
        self.bar, self.state = widgets.IntProgress(max=1, layout={"width": "10rem"}), widgets.Label()
        row = widgets.Box([self.run_button, self.stop_button, self.bar, self.state]).add_class("edp-run")
        inputs, *read_outs = above
        super().__init__(title, looking_at, [inputs, row, *read_outs], below)

    @abstractmethod
    def prepare(self) -> Any:
        """What is to be done, from the widgets as they stand. UsageError: it makes no sense."""

    @abstractmethod
    def work(self, task: Any) -> None:
        """Do it, in the background thread; an error ends in the error box."""

    @property
    def stopping(self) -> bool:
        return self.stop_event.is_set()

    def heed_stop(self, message: str = "") -> None:
        """End the work here if Stop was pressed, and show `message`: for what only tells how far it is."""
        if self.stopping:
            raise StoppedError(message)

    def progress(self, done: int, of: int, text: str) -> None:
        """Move the bar to `done` of `of` and say what is going on."""
        self.bar.max, self.bar.value, self.state.value = of, done, text

    def progress_of(self, event: Event) -> None:
        """As `progress`, by the steps that a training run reports."""
        if isinstance(event, StepDone):
            done, of = event.epoch * event.steps + event.step, event.epochs * event.steps
            self.progress(done, of, f"epoch {event.epoch + 1} of {event.epochs}")

    def run(self, wait: bool = False) -> None:
        """Start in the background; `wait` returns at the end. Bad settings go to the error box."""
        task, ready = None, False
        with self.show_errors():
            if self._thread.is_alive():
                raise UsageError("a run is going on: press Stop first")
            task, ready = self.prepare(), True
        if ready:
            self.stop_event.clear()
            self.run_button.disabled, self.stop_button.disabled = True, False
            self._thread = threading.Thread(target=self._guarded, args=(task,), daemon=True)
            self._thread.start()
        if wait:
            self.wait()

    def stop(self) -> None:
        """End the work at the next place where that is possible."""
        self.stop_event.set()

    def wait(self) -> None:
        """Until the work has ended; interrupting the kernel stops it."""
        try:
            while self._thread.is_alive():
                self._thread.join()
        except KeyboardInterrupt:
            self.stop()
            raise

    def _guarded(self, task: Any) -> None:
        with self.show_errors():
            try:
                self.work(task)
            except StoppedError as stopped:
                if str(stopped):
                    self.words.value = str(stopped)
        self.state.value = "stopped" if self.stopping else "done"
        self.run_button.disabled, self.stop_button.disabled = False, True


class RunPanel(Runs):
    """A panel whose only work is what Run starts; `figures` are those before anything has run, then the live ones."""

    def __init__(self, title: str, looking_at: str, figures: Sequence[Figure], **controls: Control) -> None:
        self.controls, self.figures = controls, [LiveFigure(drawn) for drawn in figures]
        pictures = [framed(live, HALF if self.figures[1:] else "1 1 auto") for live in self.figures]
        self.tiles, self.words = Tiles(), EscapedHTML()
        self.command = Fold(summary="The last run as a command", code=True)
        above = [box("edp-controls", *controls.values()), self.tiles]
        super().__init__(title, looking_at, above, [box("edp-row", *pictures), self.words, self.command])
