"""The frame of every panel, and panels for long-running work, with Run, Stop and a progress bar.

Jupyter swallows errors raised in callbacks; here each error is shown in a box, stored in ``panel.errors``, and raised
again by ``panel.check()``.
"""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ipywidgets as widgets
from markupsafe import escape

from edp_lab.course.kit.controls import Control
from edp_lab.course.kit.figure import HALF, Figure, LiveFigure, framed
from edp_lab.course.kit.text import EscapedHTML, Fold, Html, Tiles
from edp_lab.errors import UsageError, sentence
from edp_lab.training.config import flag_of
from edp_lab.training.run_files import Event, StepDone


class Frame(widgets.VBox):
    """Frame of every panel: a border, a heading that says in one line what the panel shows, and a box for errors.

    A notebook's last cell calls `check`, which raises the first error of a callback, if any.

    Attributes:
        errors: every error raised by this panel's callbacks, including bad input, oldest first.
        title: the title, as text.
        controls: the controls by name.
        tiles, words, command: the read-outs; words and command have a `.value`.
    """

    controls: Mapping[str, Control]
    words: EscapedHTML | Fold

    def __init__(
        self, title: str, looking_at: str, above: Sequence[widgets.Widget], below: Sequence[widgets.Widget]
    ) -> None:
        self.errors: list[Exception] = []
        self.title = escape(title).striptags()
        self.error_box = EscapedHTML().add_class("edp-lab-error")
        heading = EscapedHTML(Html("<h3>{}</h3>{}").format(title, looking_at)).add_class("edp-heading")
        super().__init__([heading, *above, self.error_box, *below])
        self.add_class("edp-panel")

    @contextmanager
    def show_errors(self, culprit: Control | None = None) -> Iterator[None]:
        """Store and show an error of the block instead of raising it; a block without errors clears the box.

        Bad input is reported under its `culprit`, a bug of the course above the figures; either way, output that does
        not belong to the current input turns grey.
        """
        message = ""
        try:
            yield
        except Exception as error:
            self.errors.append(error)
            message = sentence(error) or f"{type(error).__name__}: {error} (a fault of the course, not yours)"
            if not isinstance(error, UsageError):
                culprit = None
        for control in self.controls.values():
            control.error = self._in_its_words(message) if control is culprit else ""
        self.error_box.value = Html('<span role="alert">{}</span>').format(message) if message and not culprit else ""
        (self.add_class if message else self.remove_class)("edp-stale")

    @property
    def values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    def _in_its_words(self, message: str) -> str:
        """The library's message, with this panel's names instead of the command line's."""
        for name, control in self.controls.items():
            message = re.sub(rf"{flag_of(name)}\b", control.label, message)
        return message

    def check(self) -> None:
        """Raise the first error that was not bad input, so that a run without a browser fails."""
        for error in self.errors:
            if not isinstance(error, UsageError):
                raise error


def box(css: str, *children: widgets.Widget) -> widgets.Box:
    """A row that wraps if the window is narrow."""
    return widgets.Box(children).add_class(css)


# ---- Work that takes a while ----------------------------------------------------------------------------------------


class StoppedError(Exception):
    """Stop was pressed: see `Runs.heed_stop`."""


class Runs(Frame):
    """Run and Stop for long-running work: it runs in the background, and a bar shows its progress.

    A subclass defines the work (`prepare`, in the kernel's thread; a UsageError is shown as one sentence in the error
    box) and does it (`work`, in the background thread, which must check `stopping` or call `heed_stop` regularly).
    With sliders over a pure function it is also a `Panel`: ``class Explorer(Panel, Runs)``.

    Attributes:
        stop_event: set when Stop is pressed; for functions that take an event, such as `edp_lab.training.train`.
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
        """The work to do, from the current values of the widgets. UsageError: the values make no sense."""

    @abstractmethod
    def work(self, task: Any) -> None:
        """Do the work, in the background thread; an error is shown in the error box."""

    @property
    def stopping(self) -> bool:
        return self.stop_event.is_set()

    def heed_stop(self, message: str = "") -> None:
        """End the work here if Stop was pressed, and show `message`; for functions that only report progress."""
        if self.stopping:
            raise StoppedError(message)

    def progress(self, done: int, of: int, text: str) -> None:
        """Move the bar to `done` of `of`, and show what is being done."""
        self.bar.max, self.bar.value, self.state.value = of, done, text

    def progress_of(self, event: Event) -> None:
        """Move the bar as a training run reports its steps."""
        if isinstance(event, StepDone):
            done, of = event.epoch * event.steps + event.step, event.epochs * event.steps
            self.progress(done, of, f"epoch {event.epoch + 1} of {event.epochs}")

    def run(self, wait: bool = False) -> None:
        """Start in the background; `wait` returns at the end. Bad settings are shown in the error box."""
        task, ready = None, False
        with self.show_errors():
            if self._thread.is_alive():
                raise UsageError("a run is in progress: press Stop first")
            task, ready = self.prepare(), True
        if ready:
            self.stop_event.clear()
            self.run_button.disabled, self.stop_button.disabled = True, False
            self._thread = threading.Thread(target=self._guarded, args=(task,), daemon=True)
            self._thread.start()
        if wait:
            self.wait()

    def stop(self) -> None:
        """End the work as soon as possible."""
        self.stop_event.set()

    def wait(self) -> None:
        """Wait until the work has ended; interrupting the kernel stops it."""
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
    """A panel that only works after Run; `figures` are the initial figures, then the live ones."""

    def __init__(self, title: str, looking_at: str, figures: Sequence[Figure], **controls: Control) -> None:
        self.controls, self.figures = controls, [LiveFigure(drawn) for drawn in figures]
        pictures = [framed(live, HALF if self.figures[1:] else "1 1 auto") for live in self.figures]
        self.tiles, self.words = Tiles(), EscapedHTML()
        self.command = Fold(summary="The last run as a command", code=True)
        above = [box("edp-controls", *controls.values()), self.tiles]
        super().__init__(title, looking_at, above, [box("edp-row", *pictures), self.words, self.command])
