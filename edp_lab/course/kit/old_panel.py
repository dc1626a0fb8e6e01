"""The panels as they were: for notebooks whose room has not been converted to `kit.panel.Panel` yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ipywidgets as widgets
import plotly.graph_objects as go

from edp_lab.course.kit import figure as kit_figure
from edp_lab.course.kit.controls import Control
from edp_lab.course.kit.figure import framed
from edp_lab.course.kit.panel import COPY, Frame, Panel, command_box, side_by_side
from edp_lab.errors import UsageError


class OldLiveFigure(kit_figure.LiveFigure):
    """Patched by hand, through plotly's own properties."""

    def __init__(self, figure: go.Figure) -> None:
        kit_figure.theme.bundle()
        go.FigureWidget.__init__(self, figure)
        self._config = {**self._config, **kit_figure.theme.CONFIG}

    def _send_update_msg(self, restyle_data, relayout_data, trace_indexes=None, source_view_id=None):
        super()._send_update_msg(restyle_data, relayout_data, self._normalize_trace_indexes(trace_indexes))

    def _perform_plotly_relayout(self, relayout_data: dict[str, Any]) -> dict[str, Any]:
        return {path: value for path, value in relayout_data.items() if self._set_in(self._layout, path, value)}

    def _dispatch_layout_change_callbacks(self, relayout_data: dict[str, Any]) -> None:
        """Nobody asked to be told."""


def live(figure: go.Figure) -> go.FigureWidget:
    return OldLiveFigure(figure)


class Picture(NamedTuple):
    """How a figure is drawn from a result and follows the next one, and how wide it is (CSS)."""

    draw: Callable[[Any], go.Figure]
    update: Callable[[Any, Any], None]
    flex: str = kit_figure.HALF


class OldPanel(Panel):
    """Controls, a function of their values, and what shows its result.

    Args:
        heading: HTML.
        controls: by name; `compute` gets their values as keyword arguments.
        compute: pure, fast enough for a slider. Its UsageError becomes one sentence in the error box.
        show: draws a result.
        beside, below: widgets that `show` fills, to the right of the controls and under them.

    Attributes:
        result: of the last values that `compute` accepted.

    Raises:
        Exception: whatever `compute` or `show` raises for the values the panel starts with.
    """

    def __init__(
        self,
        heading: str,
        controls: Mapping[str, Control],
        compute: Callable[..., Any],
        show: Callable[[Any], None],
        beside: Sequence[widgets.Widget],
        below: Sequence[widgets.Widget],
    ) -> None:
        self.controls, self._compute, self._show, self._held = dict(controls), compute, show, False
        self.result = compute(**self.values)
        show(self.result)
        for control in self.controls.values():
            control.source.observe(self._changed, "value")
        reset = widgets.Button(description="Reset", tooltip="back to the values this panel started with")
        reset.on_click(lambda _: self.reset())
        left = widgets.VBox([*(control.row for control in self.controls.values()), reset])
        right = widgets.VBox(beside)
        for column, flex in ((left, "1 1 30rem"), (right, "1 1 24rem")):
            column.layout.flex, column.layout.min_width = flex, "0"
        Frame.__init__(self, heading, [side_by_side(left, right)], below)

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
            with self.error_box.guard():
                self.result = self._compute(**self.values)
                self._show(self.result)


class FigurePanel(OldPanel):
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
        self.figures = [live(picture.draw(first)) for picture in pictures]
        self.words, self.command = widgets.HTML(), command_box()
        for control in controls.values():  # in a narrow window the number goes below its slider
            control.row.layout.flex_flow = "row wrap"
        frames = [framed(f, picture.flex) for f, picture in zip(self.figures, pictures, strict=True)]
        beside = [self.words, widgets.HTML(COPY), self.command]
        super().__init__(heading, controls, compute, self._draw, beside, [side_by_side(*frames)])

    def _draw(self, result: Any) -> None:
        for figure, update in zip(self.figures, self._updates, strict=True):
            update(figure, result)
        self.words.value = self._in_words(result)
        self.command.value = self._say(result, **self.values)
