"""The two kinds of panel that a notebook is made of: figures that follow sliders, and work that Run starts.

    panel = FigurePanel(heading, controls, compute, in_words, command, [Picture(draw, update)])

`compute` is pure and fast, `draw(result)` makes a figure once, `update(figure, result)` patches it in place.
"""

from __future__ import annotations

import textwrap
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ipywidgets as widgets
import plotly.graph_objects as go

from edp_lab.course.kit import theme
from edp_lab.course.kit.panel import Control, Frame, Panel, side_by_side
from edp_lab.errors import UsageError


class Picture(NamedTuple):
    """How a figure is drawn from a result and follows the next one, and how wide it is (CSS)."""

    draw: Callable[[Any], go.Figure]
    update: Callable[[Any, Any], None]
    flex: str = theme.HALF


COLUMNS = 54  # of a command box where it is narrowest


def command_box(rows: int = 4) -> widgets.Textarea:
    """Where a panel says by which command line, or Python call, one gets what it shows.

    A command that needs more rows gets them; the box never shrinks, so that figures below it stay where they are.
    """
    box = widgets.Textarea(rows=rows, tooltip="the command", layout={"width": "auto"})

    def grow(_: object) -> None:
        box.rows = max(box.rows, sum(len(textwrap.wrap(line, COLUMNS)) for line in box.value.splitlines()))

    box.observe(grow, "value")
    return box


COPY = "<b>Copy as command</b>"


class FigurePanel(Panel):
    """A pure function under sliders: figures, a read-out in words, and the command that says the same.

    Args:
        heading, controls, compute: see `Panel`.
        in_words: HTML of a result.
        command: from a result and, as keywords, the controls' values.
        pictures: the figures, side by side where the window is wide enough.

    Attributes:
        figures: live, one for each of `pictures`.
        words, command: the read-outs (`.value`).
    """

    def __init__(
        self,
        heading: str,
        controls: Mapping[str, Control],
        compute: Callable[..., Any],
        in_words: Callable[[Any], str],
        command: Callable[..., str],
        pictures: Sequence[Picture],
    ) -> None:
        self._in_words, self._say, self._updates = in_words, command, [picture.update for picture in pictures]
        first = compute(**{name: control.value for name, control in controls.items()})
        self.figures = [theme.live(picture.draw(first)) for picture in pictures]
        self.words, self.command = widgets.HTML(), command_box()
        for control in controls.values():  # in a narrow window the number goes below its slider
            control.row.layout.flex_flow = "row wrap"
        frames = [theme.framed(f, picture.flex) for f, picture in zip(self.figures, pictures, strict=True)]
        beside = [self.words, widgets.HTML(COPY), self.command]
        super().__init__(heading, controls, compute, self._draw, beside, [side_by_side(*frames)])

    def _draw(self, result: Any) -> None:
        for figure, update in zip(self.figures, self._updates, strict=True):
            update(figure, result)
        self.words.value = self._in_words(result)
        self.command.value = self._say(result, **self.values)


class RunPanel(Frame):
    """Work that takes a while: only Run starts it, in the background, Stop ends it, a bar shows how far it is.

    A subclass says what is to be done (`prepare`, in the kernel's thread, where UsageError becomes one sentence in
    the error box) and does it (`work`, in the background thread), where it looks at `stopping` now and then.

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
