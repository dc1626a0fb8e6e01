"""Sliders wired to a pure function and to whatever shows its result; nothing here knows privacy or plotly.

A panel can be driven without a browser: ``panel.set(z0=0.1)``, then read ``panel.result``. Jupyter swallows an error
that a callback raises; here each one is shown in a box, kept in ``panel.errors``, and raised by ``panel.check()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as widgets

from edp_lab.course.kit.theme import STYLE, Fit
from edp_lab.errors import UsageError

WHOLE_LABEL = {"description_width": "initial"}


@dataclass(frozen=True)
class Control:
    """One input: `source` holds the value, `row` is what people see, `slider` (if any) follows the source.

    The source is never clamped: a number beyond the slider's range reaches the library, which says what is wrong.
    """

    source: widgets.Widget
    row: widgets.Widget
    default: Any
    slider: widgets.Widget | None = None

    @property
    def value(self) -> Any:
        return self.source.value

    def disable(self, disabled: bool) -> None:
        for widget in (self.source, self.slider):
            if widget is not None:
                widget.disabled = disabled


def number(label: str, value: float, stops: Sequence[float], *, unit: str = "", tooltip: str = "") -> Control:
    """A slider that stops at the increasing `stops`, and a box for any number; whole numbers if the stops are."""
    slider = widgets.SelectionSlider(
        options=stops, description=label, style=WHOLE_LABEL, readout=False, tooltip=tooltip or label
    )
    whole = all(isinstance(stop, int) for stop in stops)
    box = (widgets.IntText if whole else widgets.FloatText)(value)

    def nearest(number: float) -> float:
        return min(stops, key=lambda stop: abs(stop - number))

    suffix = f" ({unit})" if unit not in ("", "no unit") else ""

    def tell(_: object = None) -> None:
        """An executed page shows the label of the slider's stop: give it the box's number, which may lie between stops.

        While the slider is dragged both agree, so nothing is sent.
        """
        labels = [f"{stop}{suffix}" for stop in stops]
        if box.value != slider.value:
            labels[slider.index] = f"{box.value}{suffix}"
        if tuple(labels) != slider._options_labels:
            slider.set_trait("_options_labels", tuple(labels))

    widgets.link((box, "value"), (slider, "value"), transform=(nearest, lambda stop: stop))
    tell()
    box.observe(tell, "value")
    slider.layout = {"flex": "1 1 16rem", "min_width": "0", "width": "auto"}
    box.layout.width, box.tooltip = "6rem", f"{label}, as a number"
    units = widgets.Label(unit, layout={"width": "6.5rem"}).add_class("edp-unit")
    row = widgets.HBox([slider, box, units], layout={"align_items": "center"})
    return Control(box, row, box.value, slider)


def decades(low: int, high: int) -> list[float]:
    """Round numbers, ten to each power of ten, from 10^low to 10^high: stops of a logarithmic slider."""
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    return [float(f"{step}e{power}") for power in range(low, high) for step in steps] + [float(f"1e{high}")]


def choice(label: str, value: Any, options: Mapping[str, Any], *, tooltips: Sequence[str] = ()) -> Control:
    """Buttons of which one is pressed; `options` maps what they say to what they mean."""
    buttons = widgets.ToggleButtons(
        options=list(options.items()),
        value=value,
        description=label,
        tooltips=list(tooltips),
        style={**WHOLE_LABEL, "button_width": "auto"},
        layout={"width": "auto"},
    )
    return Control(buttons, buttons, value)


class ErrorBox(widgets.HTML):
    """The visible place for errors. `edp-lab course run` fails where one is shown (class ``edp-lab-error``)."""

    def __init__(self) -> None:
        super().__init__()
        self.add_class("edp-lab-error")
        self.errors: list[Exception] = []

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Keep and show an error of the block, and do not let it out; a block without one clears the box."""
        try:
            yield
            self.value = ""
        except Exception as error:
            self.errors.append(error)
            known = isinstance(error, UsageError)
            text = str(error) if known else f"{type(error).__name__}: {error} (a fault of the course, not yours)"
            self.value = f'<span role="alert">{escape(text)}</span>'


class Frame(widgets.VBox):
    """What all panels have: a border, a heading that says in one line what one is looking at, and an error box."""

    def __init__(self, heading: str, above: Sequence[widgets.Widget], below: Sequence[widgets.Widget]) -> None:
        self.error_box = ErrorBox()
        super().__init__([Fit(), widgets.HTML(STYLE + heading), *above, self.error_box, *below])
        self.add_class("edp-panel")

    @property
    def errors(self) -> list[Exception]:
        """Every error that a callback of this panel raised, bad input included, oldest first."""
        return self.error_box.errors

    def check(self) -> None:
        """Raise the first error that was not bad input, so that a run without a browser fails on it."""
        for error in self.errors:
            if not isinstance(error, UsageError):
                raise error


class Panel(Frame):
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
        super().__init__(heading, [side_by_side(left, right)], below)

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


def side_by_side(*children: widgets.Widget) -> widgets.Box:
    """A row that breaks into a column where the window is narrow."""
    layout = widgets.Layout(display="flex", flex_flow="row wrap", grid_gap="8px 28px", align_items="flex-start")
    return widgets.Box(children, layout=layout)
