"""Panels: sliders for the arguments of a pure function, with figures and text that show its result.

    @panel("04")
    def stages(clip_norm: float, z: float) -> Panel:
        return Panel(
            "Algorithm 1, line by line",
            "The gradients of N devices after each line.",
            compute,                        # (clip_norm, z) -> result: pure
            [draw],                         # result -> figure, a dict: see `edp_lab.course.kit.figure`
            words,                          # result -> text or `Html`
            command,                        # (result, **values) -> command for the same result
            tiles=tell,                     # result -> two tiles and a sentence
            clip_norm=number("clip norm C", clip_norm, decades(-2, 1)),
            z=number("z", z, decades(-2, 1)),
        )

A panel also works without a browser: call ``panel.set(z=0.1)``, then read ``panel.result``. On pages without a kernel,
it shows precomputed states (see `edp_lab.course.kit.table`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import ipywidgets as widgets
from markupsafe import escape

from edp_lab.course.kit.controls import Control
from edp_lab.course.kit.figure import HALF, Figure, LiveFigure, framed
from edp_lab.course.kit.runs import Frame, box
from edp_lab.course.kit.text import Fold, Tile, Tiles, python
from edp_lab.errors import UsageError

Draw = Callable[[Any], Figure]
MADE: list[Panel] = []  # all panels created in this process


class Panel(Frame):
    """Panel with sliders for a pure function, live figures, two tiles and a sentence; details are one click away.

    Args:
        title: the panel's topic, in a few words.
        looking_at: a one-sentence description of the panel.
        compute: a pure function, fast enough to call at every slider move. Its UsageError is shown under the control.
        figures: functions that draw a result as a dict (see `edp_lab.course.kit.figure`), each alone or in a pair with
            a CSS width. The main figure is first. Figures are side by side if the window is wide enough.
        words: optional function that describes a result as text or `Html`, one click away.
        command: function of a result and keyword values that returns a command; default: the Python call of `compute`.
        account: if `command` is omitted, function that returns the `edp-lab account` command to append, or "".
        tiles: function that returns a result's two main numbers, as tiles, and one sentence.
        idle: function that returns the names of controls that have no effect on a result.
        joint: names of the controls that can be combined on a page without a kernel; default: the first two.
        controls: controls by name; `compute` receives their values as keyword arguments. At most six are not `rare`.

    Attributes:
        result: the result for the latest values that `compute` accepted.
        figures: the live figures, in order.

    Raises:
        Exception: any error from `compute` or a drawing function for the initial values; later errors are only shown.
    """

    def __init__(
        self,
        title: str,
        looking_at: str,
        compute: Callable[..., Any],
        figures: Sequence[Draw | tuple[Draw, str]],
        words: Callable[[Any], str] | None = None,
        command: Callable[..., str] | None = None,
        /,
        *,
        account: Callable[[Any], str] = lambda result: "",
        tiles: Callable[[Any], tuple[Tile, Tile, str]],
        idle: Callable[[Any], Collection[str]] = lambda result: (),
        joint: Sequence[str] = (),
        **controls: Control,
    ) -> None:
        self.controls, self.compute, self._held = controls, compute, False
        self.joint = joint or [*controls][:2]
        self._words, self._idle, self._tiles = words, idle, tiles
        self._command = command or (lambda result, **to: f"{python(compute, **to)}\n{account(result)}".rstrip())
        places = [drawing if isinstance(drawing, tuple) else (drawing, HALF) for drawing in figures]
        self.draws = [draw for draw, _ in places]
        self.result = compute(**self.values)
        self.figures = [LiveFigure(draw(self.result)) for draw in self.draws]
        self.tiles, self.words = Tiles(), Fold(summary="All numbers and their scope")
        self.command = Fold(summary="This result as a command", code=True)
        self._say()
        for control in controls.values():
            control.observe(lambda change: None if self._held else self._redraw(change["owner"]), "entered")
        frames = [framed(live, flex) for live, (_, flex) in zip(self.figures, places, strict=True)]
        below = [box("edp-row", *frames), *([self.words] if words else []), self.command]
        super().__init__(title, looking_at, [self._inputs(), self.tiles], below)
        MADE.append(self)

    def _inputs(self) -> widgets.Box:
        """The controls; rarely used ones are hidden until "more" is pressed."""
        rare = box("edp-controls", *(control for control in self.controls.values() if control.rare))
        rare.layout.display = "none"
        more = widgets.Button(description="more", tooltip="rarely used controls").add_class("edp-quiet")
        reset = widgets.Button(description="reset", tooltip="restore the initial values")
        reset.on_click(lambda _: self.reset())

        def toggle(_: object) -> None:
            hidden = rare.layout.display == "none"
            rare.layout.display, more.description = ("", "less") if hidden else ("none", "more")

        more.on_click(toggle)
        buttons = widgets.HBox([reset.add_class("edp-quiet"), *([more] if rare.children else [])])
        usual = [control for control in self.controls.values() if not control.rare]
        return widgets.VBox([box("edp-controls", *usual, buttons.add_class("edp-buttons")), rare])

    def set(self, **values: Any) -> None:
        """Set several controls, then redraw once; UsageError if the panel has no control of that name."""
        for name in values:
            if name not in self.controls:
                raise UsageError(f"the panel has no control {name!r}; it has {', '.join(self.controls)}")
        self._held = True
        try:
            for name, value in values.items():
                self.controls[name].value = value
        finally:
            self._held = False
        self._redraw(self.controls[name] if values else None)

    def reset(self) -> None:
        """Restore the initial values."""
        self.set(**{name: control.default for name, control in self.controls.items()})

    def _redraw(self, moved: Control | None) -> None:
        with self.show_errors(moved):
            self.result = self.compute(**self.values)
            self._show()

    def _show(self) -> None:
        """Update all parts of the panel, or none if one of them fails."""
        drawn = [draw(self.result) for draw in self.draws]
        self._say()
        for live, figure in zip(self.figures, drawn, strict=True):
            live.show(figure)

    def _say(self) -> None:
        """Update everything except the figures."""
        for widget, shown in self.shown(self.result, self.values).items():
            with widget.hold_sync():
                for name, value in shown.items():
                    setattr(widget, name, value)

    def shown(self, result: Any, values: Mapping[str, Any]) -> dict[widgets.Widget, dict[str, Any]]:
        """Property values of each widget except the figures, for this result."""
        first, second, line = self._tiles(result)
        idle = self._idle(result)
        return {
            self.tiles: {"tiles": [list(first), list(second)], "sentence": line},
            **({self.words: {"value": escape(self._words(result))}} if self._words else {}),
            self.command: {"value": self._command(result, **values)},
            **{control: {"disabled": name in idle} for name, control in self.controls.items()},
        }


# ---- The registry ---------------------------------------------------------------------------------------------------

PANELS: dict[str, Callable[..., Frame]] = {}  # by name ("04 stages"): functions or classes that create panels
Make = TypeVar("Make", bound=Callable[..., Frame])


def panel(notebook: str) -> Callable[[Make], Make]:
    """Register a function or class that creates a panel of a notebook ("04"), under its own name."""

    def enter(make: Make) -> Make:
        PANELS[f"{notebook} {make.__name__}"] = make
        return make

    return enter
