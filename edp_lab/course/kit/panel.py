"""Sliders wired to a pure function and to what shows its result. A panel is one declaration:

    @panel("03")
    def stages(clip_norm: float, z: float) -> Panel:
        return Panel(
            "Algorithm 1, line by line",
            "The gradients of N devices after each line.",
            compute,                        # (clip_norm, z) -> result: pure
            [draw],                         # result -> figure, a dict: see `edp_lab.course.kit.figure`
            words,                          # result -> text or `Html`
            command,                        # (result, **values) -> what to type to get the same
            clip_norm=number("clip norm C", clip_norm, decades(-2, 1)),
            z=number("z", z, decades(-2, 1)),
        )

It can be driven without a browser: ``panel.set(z=0.1)``, then read ``panel.result``. Jupyter swallows an error that a
callback raises; here each one is shown in a box, kept in ``panel.errors``, and raised by ``panel.check()``.
"""

from __future__ import annotations

import textwrap
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ipywidgets as widgets
from markupsafe import escape
from traitlets import validate

from edp_lab.course.kit.controls import Control
from edp_lab.course.kit.figure import HALF, Figure, LiveFigure, framed
from edp_lab.course.kit.text import Html, python
from edp_lab.course.kit.theme import STYLE, Fit
from edp_lab.errors import UsageError, sentence

if TYPE_CHECKING:  # torch takes seconds, and notebook 01 has no use for it
    from edp_lab.training.trainer import Event

Draw = Callable[[Any], Figure]


class Told(widgets.HTML):
    """A place in a page for text, or for `Html`: whatever is not is escaped."""

    @validate("value")
    def _asked_for(self, proposal: dict[str, Any]) -> str:
        return str(escape(proposal["value"]))


class Frame(widgets.VBox):
    """What all panels have: a border, a heading that says in one line what one is looking at, and a place for errors.

    `edp-lab course run` fails where an error is shown (class ``edp-lab-error``).

    Attributes:
        errors: every error that a callback of this panel raised, bad input included, oldest first.
    """

    def __init__(
        self, title: str, looking_at: str, above: Sequence[widgets.Widget], below: Sequence[widgets.Widget]
    ) -> None:
        self.errors: list[Exception] = []
        self.error_box = Told().add_class("edp-lab-error")
        heading = Told(STYLE + Html("<h3>{}</h3>What am I looking at? {}").format(title, looking_at))
        super().__init__([Fit(), heading, *above, self.error_box, *below])
        self.add_class("edp-panel")

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Keep and show an error of the block, and do not let it out; a block without one clears the place."""
        try:
            yield
            self.error_box.value = ""
        except Exception as error:
            self.errors.append(error)
            text = sentence(error) or f"{type(error).__name__}: {error} (a fault of the course, not yours)"
            self.error_box.value = Html('<span role="alert">{}</span>').format(text)

    def check(self) -> None:
        """Raise the first error that was not bad input, so that a run without a browser fails on it."""
        for error in self.errors:
            if not isinstance(error, UsageError):
                raise error


def side_by_side(*children: widgets.Widget) -> widgets.Box:
    """A row that breaks into a column where the window is narrow."""
    layout = widgets.Layout(display="flex", flex_flow="row wrap", grid_gap="8px 28px", align_items="flex-start")
    return widgets.Box(children, layout=layout)


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


COPY = Html("<b>Copy as command</b>")


class Panel(Frame):
    """Sliders over a pure function: figures that follow, a read-out in words, and the command that says the same.

    Args:
        title: what the panel is about, in a few words.
        looking_at: the answer to "What am I looking at?", one or two sentences.
        compute: pure, and fast enough for a slider. Its UsageError becomes one sentence in the error box.
        figures: for each figure what draws a result as a dict, see `edp_lab.course.kit.figure`, alone or with the width
            of its place (CSS). Side by side where the window is wide enough.
        words: a result in words: text, or `Html`.
        command: from a result and, as keywords, the controls' values; without one, the Python call of `compute`.
        idle: from a result, the names of controls that change nothing at present.
        controls: by name; `compute` gets their values as keyword arguments.

    Attributes:
        result: of the last values that `compute` accepted.
        figures: the live figures, in order.
        words, command: the read-outs (`.value`).

    Raises:
        Exception: whatever `compute` or a drawing raises for the values the panel starts with.
    """

    def __init__(
        self,
        title: str,
        looking_at: str,
        compute: Callable[..., Any],
        figures: Sequence[Draw | tuple[Draw, str]],
        words: Callable[[Any], str],
        command: Callable[..., str] | None = None,
        /,
        *,
        idle: Callable[[Any], Collection[str]] = lambda result: (),
        **controls: Control,
    ) -> None:
        self.controls, self._compute, self._held = controls, compute, False
        self._words, self._idle = words, idle
        self._command = command or (lambda result, **values: python(compute, **values))
        places = [one if isinstance(one, tuple) else (one, HALF) for one in figures]
        self.draws = [draw for draw, _ in places]
        self.result = compute(**self.values)
        self.figures = [LiveFigure(draw(self.result)) for draw in self.draws]
        self.words, self.command = Told(), command_box()
        self._tell()
        for control in self.controls.values():
            control.source.observe(self._changed, "value")
            control.row.layout.flex_flow = "row wrap"  # in a narrow window the number goes below its slider
        reset = widgets.Button(description="Reset", tooltip="back to the values this panel started with")
        reset.on_click(lambda _: self.reset())
        left = widgets.VBox([*(control.row for control in self.controls.values()), reset])
        right = widgets.VBox([self.words, Told(COPY), self.command])
        for column, flex in ((left, "1 1 30rem"), (right, "1 1 24rem")):
            column.layout.flex, column.layout.min_width = flex, "0"
        frames = [framed(live, flex) for live, (_, flex) in zip(self.figures, places, strict=True)]
        super().__init__(title, looking_at, [side_by_side(left, right)], [side_by_side(*frames)])

    @property
    def values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    def set(self, **values: Any) -> None:
        """Move several controls, then redraw once.

        Raises:
            UsageError: the panel has no control of that name.
        """
        for name in values:
            if name not in self.controls:
                raise UsageError(f"the panel has no control {name!r}; it has {', '.join(self.controls)}")
        self._held = True
        try:
            for name, value in values.items():
                self.controls[name].source.value = value
        finally:
            self._held = False
        self._changed(None)

    def reset(self) -> None:
        """Back to the values the panel started with."""
        self.set(**{name: control.default for name, control in self.controls.items()})

    def _changed(self, _: object) -> None:
        if not self._held:
            with self.guard():
                self.result = self._compute(**self.values)
                for live, draw in zip(self.figures, self.draws, strict=True):
                    live.show(draw(self.result))
                self._tell()

    def _tell(self) -> None:
        self.words.value = self._words(self.result)
        self.command.value = self._command(self.result, **self.values)
        idle = self._idle(self.result)
        for name, control in self.controls.items():
            control.disable(name in idle)


# ---- Work that takes a while ---------------------------------------------------------------------------------------


class StoppedError(Exception):
    """Stop was pressed: see `RunPanel.heed_stop`."""


class RunPanel(Frame):
    """Work that takes a while: only Run starts it, in the background, Stop ends it, a bar shows how far it is.

    A subclass says what is to be done (`prepare`, in the kernel's thread, where UsageError becomes one sentence in
    the error box) and does it (`work`, in the background thread), where it looks at `stopping`, or calls `heed_stop`,
    now and then.

    Args:
        title, looking_at: as of `Panel`.
        inputs: widgets before the buttons.
        figures: as they are before anything has run.
        rows: of the box with the command, 0 for none.
        copy: what stands over that box; "" for what shows, box and all, only once there is a command.

    Attributes:
        figures: the live figures, in order.
        words, command: the read-outs (`.value`).
        stop_event: set when Stop is pressed: for what takes an event, such as `edp_lab.training.train`.
    """

    def __init__(
        self,
        title: str,
        looking_at: str,
        inputs: Sequence[widgets.Widget] = (),
        figures: Sequence[Figure] = (),
        rows: int = 0,
        copy: str = "",
    ) -> None:
        self.stop_event, self._thread = threading.Event(), threading.Thread()
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.run_button.on_click(lambda _: self.run())
        self.stop_button.on_click(lambda _: self.stop())
        self.bar, self.state = widgets.IntProgress(max=1, layout={"width": "10rem"}), widgets.Label()
        buttons = [*inputs, self.run_button, self.stop_button, self.bar, self.state]
        row = widgets.HBox(buttons, layout={"align_items": "center", "flex_flow": "row wrap"}).add_class("edp-wide")
        self.figures = [LiveFigure(drawn) for drawn in figures]
        pictures = [framed(live, HALF if self.figures[1:] else "1 1 auto") for live in self.figures]
        self.words, self.command = Told(), command_box(rows)
        told = widgets.VBox([Told(copy or COPY + " (of the last run)"), self.command])
        shown = told.children

        def follow(_: object) -> None:
            told.children = shown if self.command.value else ()

        if not copy:
            self.command.observe(follow, "value")
            follow(None)
        below = [side_by_side(*pictures)] if pictures[1:] else pictures
        super().__init__(title, looking_at, [row], [*below, self.words, *([told] if rows else [])])

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
        return self.stop_event.is_set()

    def heed_stop(self, told: str = "") -> None:
        """End the work here if Stop was pressed, and say what is `told`: for what only tells how far it is."""
        if self.stopping:
            raise StoppedError(told)

    def progress(self, done: int, of: int, text: str) -> None:
        """Move the bar to `done` of `of` and say what is going on."""
        self.bar.max, self.bar.value, self.state.value = of, done, text

    def progress_of(self, event: Event, before: str = "", after: str = "") -> None:
        """As `progress`, by the steps that a training run reports; at the last one say what comes `after`."""
        from edp_lab.training import StepDone

        if isinstance(event, StepDone):
            done, of = event.epoch * event.steps + event.step, event.epochs * event.steps
            text = f"{before}epoch {event.epoch + 1} of {event.epochs}"
            self.progress(done, of, after if after and done == of else text)

    def run(self, wait: bool = False) -> None:
        """Start in the background; `wait` returns at the end. Bad settings go to the error box."""
        task, ready = None, False
        with self.guard():
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
        try:
            with self.guard():
                try:
                    self.work(task)
                except StoppedError as stopped:
                    if str(stopped):
                        self.words.value = str(stopped)
        finally:
            self.state.value = "stopped" if self.stopping else "done"
            self.run_button.disabled, self.stop_button.disabled = False, True


# ---- The registry ---------------------------------------------------------------------------------------------------

PANELS: dict[str, Callable[..., Frame]] = {}  # "03 stages": what makes that panel; see `all_panels`
Make = TypeVar("Make", bound=Callable[..., Frame])


def panel(notebook: str) -> Callable[[Make], Make]:
    """Enter a function or class that makes a panel of a notebook ("03") into the registry, under its own name."""

    def enter(make: Make) -> Make:
        PANELS[f"{notebook} {make.__name__}"] = make
        return make

    return enter


def all_panels() -> dict[str, Callable[..., Frame]]:
    """Every panel of the course, by notebook and name."""
    for room in sorted(Path(__file__).parents[1].glob("nb*/panels.py")):
        import_module(f"edp_lab.course.{room.parent.name}.panels")
    return PANELS
