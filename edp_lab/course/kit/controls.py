"""The inputs of a panel: a slider with a box for any number, and buttons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets as widgets

from edp_lab.privacy import Decay

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


def number(label: str, value: float, stops: Sequence[float], *, unit: str = "") -> Control:
    """A slider that stops at the increasing `stops`, and a box for any number; whole numbers if the stops are."""
    slider = widgets.SelectionSlider(options=stops, description=label, style=WHOLE_LABEL, readout=False, tooltip=label)
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


def choice(
    label: str, value: Any, options: Mapping[str, Any] | Iterable[str], *, tooltips: Sequence[str] = ()
) -> Control:
    """Buttons of which one is pressed; `options` maps what they say to what they mean, where that is not the same."""
    meanings = options if isinstance(options, Mapping) else {name: name for name in options}
    buttons = widgets.ToggleButtons(
        options=list(meanings.items()),
        value=value,
        description=label,
        tooltips=list(tooltips),
        style={**WHOLE_LABEL, "button_width": "auto"},
        layout={"width": "auto"},
    )
    return Control(buttons, buttons, value)


def number_box(label: str, value: float, width: str = "9rem") -> widgets.Widget:
    """A box for any number, a whole one if `value` is: for what only counts once Run is pressed."""
    box = widgets.IntText if isinstance(value, int) else widgets.FloatText
    return box(value, description=label, style=WHOLE_LABEL, layout={"width": width})


# ---- Controls that many panels have --------------------------------------------------------------------------------

DEVICES = (1, 2, 4, 8, 16, 32)


def variant(as_printed: bool) -> Control:
    """As printed or sound: True or False."""
    tips = ["Algorithm 1 of the paper, verbatim", "noise in the scaled space, in proportion to the true sensitivity"]
    return choice("variant", as_printed, {"as printed": True, "sound": False}, tooltips=tips)


def devices(num_devices: int, stops: Sequence[int] = DEVICES) -> Control:
    """The number of GPUs."""
    return number("GPUs N", num_devices, stops, unit="devices")


def decay_of(decay: str) -> Control:
    """How the noise falls: a name of `Decay`."""
    return choice("decay of the noise", decay, map(str, Decay))


def delta_of(delta: float, low: int = -9, high: int = -2) -> Control:
    """delta, from 10^low to 10^high."""
    return number("δ", delta, decades(low, high), unit="probability")


def seed_of(seed: int) -> Control:
    """Another draw."""
    return number("seed", seed, range(21), unit="another draw")
