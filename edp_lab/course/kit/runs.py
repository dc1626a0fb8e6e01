"""The base class of all panels, and panels for long-running work with Run, Stop and a progress bar.

Jupyter swallows errors raised in callbacks. Panels show each error in a box and store it in ``panel.errors``, and
``panel.check()`` re-raises the first error that is not bad input.
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
    """Base class of all panels, with a border, a heading with a one-line description, and a box for errors.

    A notebook's last cell calls `check`.

    Attributes:
        errors: all errors raised in this panel's callbacks, including bad input, oldest first.
        title: the title as plain text.
        controls: the controls by name.
        tiles, words, command: widgets with the main numbers, the explanation and the command.
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
        """Store and show an error raised in the block instead of propagating it; if there is none, clear the box.

        Bad input is reported under the control `culprit`, and a bug in the course above the figures. In both cases,
        output that does not match the current input turns grey.
        """
        message = ""
        try:
            yield
        except Exception as error:
            self.errors.append(error)
            message = sentence(error) or f"{type(error).__name__}: {error} (a bug in the course, not your mistake)"
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
        """The library's message, with names of options replaced by this panel's labels."""
        for name, control in self.controls.items():
            message = re.sub(rf"{flag_of(name)}\b", control.label, message)
        return message

    def check(self) -> None:
        """Re-raise the first error that was not bad input, which makes a run without a browser fail."""
        for error in self.errors:
            if not isinstance(error, UsageError):
                raise error


def box(css: str, *children: widgets.Widget) -> widgets.Box:
    """A row that wraps if the window is narrow."""
    return widgets.Box(children).add_class(css)


# ---- Long-running work -----------------------------------------------------------------------------------------------


class StoppedError(Exception):
    """Raised by `Runs.heed_stop` after Stop was pressed."""


class Runs(Frame):
    """Panel with Run and Stop for long-running work, which runs in the background and moves a progress bar.

    A subclass implements `prepare`, which is called in the kernel's thread, and `work`, which is called in a background
    thread and must regularly check `stopping` or call `heed_stop`. A subclass that also has sliders for a pure function
    inherits from `Panel` as well: ``class Explorer(Panel, Runs)``.

    Attributes:
        stop_event: an event that is set when Stop is pressed, for functions such as `edp_lab.training.train`.
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
        """Return the work to do for the current values of the widgets; UsageError if the values are invalid."""

    @abstractmethod
    def work(self, task: Any) -> None:
        """Do the work in the background thread; errors are shown in the error box."""

    @property
    def stopping(self) -> bool:
        return self.stop_event.is_set()

    def heed_stop(self, message: str = "") -> None:
        """If Stop was pressed, end the work and show `message`. Call this from a function's progress callback."""
        if self.stopping:
            raise StoppedError(message)

    def progress(self, done: int, of: int, text: str) -> None:
        """Move the progress bar to `done` of `of`, and show `text` next to it."""
        self.bar.max, self.bar.value, self.state.value = of, done, text

    def progress_of(self, event: Event) -> None:
        """Move the progress bar if the event reports a training step."""
        if isinstance(event, StepDone):
            done, of = event.epoch * event.steps + event.step, event.epochs * event.steps
            self.progress(done, of, f"epoch {event.epoch + 1} of {event.epochs}")

    def run(self, wait: bool = False) -> None:
        """Start the work in the background, and with `wait`, wait for its end; show bad settings in the error box."""
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
        """Ask the work to end as soon as possible."""
        self.stop_event.set()

    def wait(self) -> None:
        """Wait until the work has ended; interrupting the kernel stops the work."""
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
    """A panel that computes only when Run is pressed; the argument `figures` contains the initial figures."""

    def __init__(self, title: str, looking_at: str, figures: Sequence[Figure], **controls: Control) -> None:
        self.controls, self.figures = controls, [LiveFigure(drawn) for drawn in figures]
        pictures = [framed(live, HALF if self.figures[1:] else "1 1 auto") for live in self.figures]
        self.tiles, self.words = Tiles(), EscapedHTML()
        self.command = Fold(summary="The last run as a command", code=True)
        above = [box("edp-controls", *controls.values()), self.tiles]
        super().__init__(title, looking_at, above, [box("edp-row", *pictures), self.words, self.command])
