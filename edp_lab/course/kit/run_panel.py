"""Work that takes a while: only Run starts it."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from edp_lab.course.kit.panel import COPY, Frame
from edp_lab.errors import UsageError


class StoppedError(Exception):
    """Stop was pressed."""


class RunPanel(Frame):
    """Work that takes a while: only Run starts it, in the background, Stop ends it, a bar shows how far it is.

    A subclass says what is to be done (`prepare`, in the kernel's thread, where UsageError becomes one sentence in
    the error box) and does it (`work`, in the background thread), where it looks at `stopping`, or calls `heed_stop`,
    now and then.

    Args:
        heading: HTML.
        inputs: widgets before the buttons.
        below: what `work` fills.
    """

    def __init__(self, heading: str, inputs: Sequence[widgets.Widget], below: Sequence[widgets.Widget]) -> None:
        self._stop, self._thread = threading.Event(), threading.Thread()
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.run_button.on_click(lambda _: self.run())
        self.stop_button.on_click(lambda _: self.stop())
        self.bar, self.state = widgets.IntProgress(max=1, layout={"width": "10rem"}), widgets.Label()
        buttons = [*inputs, self.run_button, self.stop_button, self.bar, self.state]
        row = widgets.HBox(buttons, layout={"align_items": "center", "flex_flow": "row wrap"})
        super().__init__(heading, [row.add_class("edp-wide")], below)

    @abstractmethod
    def prepare(self) -> Any:
        """What is to be done, from the widgets as they stand.

        Raises:
            UsageError: it makes no sense.
        """

    @abstractmethod
    def work(self, task: Any) -> None:
        """Do it, in the background thread; an error ends in the error box."""

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def heed_stop(self) -> None:
        """End the work here if Stop was pressed, by a `StoppedError`: for what only tells how far it is."""
        if self.stopping:
            raise StoppedError

    @property
    def stop_event(self) -> threading.Event:
        """Set when Stop is pressed: for what takes an event, such as `edp_lab.training.train`."""
        return self._stop

    def progress(self, done: int, of: int, text: str) -> None:
        """Move the bar to `done` of `of` and say what is going on."""
        self.bar.max, self.bar.value, self.state.value = of, done, text

    def run(self, wait: bool = False) -> None:
        """Start in the background; `wait` returns at the end. Bad settings go to the error box."""
        task, ready = None, False
        with self.error_box.guard():
            if self._thread.is_alive():
                raise UsageError("a run is going on: press Stop first")
            task, ready = self.prepare(), True
        if ready:
            self._stop.clear()
            self.run_button.disabled, self.stop_button.disabled = True, False
            self._thread = threading.Thread(target=self._guarded, args=(task,), daemon=True)
            self._thread.start()
        if wait:
            self.wait()

    def stop(self) -> None:
        """End the work at the next place where that is possible."""
        self._stop.set()

    def wait(self) -> None:
        """Until the work has ended; interrupting the kernel stops it."""
        try:
            while self._thread.is_alive():
                self._thread.join()
        except KeyboardInterrupt:
            self.stop()
            raise

    def _guarded(self, task: Any) -> None:
        try:
            with self.error_box.guard():
                self.work(task)
        finally:
            self.state.value = "stopped" if self.stopping else "done"
            self.run_button.disabled, self.stop_button.disabled = False, True


def last_command(command: widgets.Textarea) -> widgets.VBox:
    """A heading and the box under it, both absent while the box is empty: nothing has been run yet."""
    place = widgets.VBox()
    shown = (widgets.HTML(f"{COPY} (of the last run)"), command)

    def follow(change: object) -> None:
        place.children = shown if command.value else ()

    command.observe(follow, "value")
    follow(None)
    return place
