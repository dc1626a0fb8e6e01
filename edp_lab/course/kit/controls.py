"""Controls of a panel (sliders with text boxes, buttons, lists), and checks of their values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets
from numpy.typing import NDArray

from edp_lab.errors import UsageError
from edp_lab.privacy import Alpha, Decay, Mechanism

Array = NDArray[np.float64]
BATCH = 64  # utterances per step, split into one micro-batch per device
DEVICES = (1, 2, 4, 8, 16, 32)  # numbers of devices to compare
DELTA = 1e-5  # the default delta, unless a corpus sets its own
Limits = tuple[float, float]  # smallest and largest number
ANY: Limits = (-math.inf, math.inf)
OPTIONS = {"choice", "list"}  # kinds of control with a fixed list of options


class Control(anywidget.AnyWidget):
    """An input of a panel. Numbers beyond the ends of a slider are permitted, but not those outside `within`.

    Args:
        kind: "number" (a text box, with a slider if there are `stops`), "choice" (buttons) or "list".
        label: the control's name on screen.
        value: the initial value, which `Panel.reset` restores.
        unit: the unit of a number.
        within: the smallest and the largest number permitted.
        options: the (name, value) pairs of a choice or list.
        tips: the tooltip of each button.
        rare: whether the control is hidden until "more" is pressed.

    Attributes:
        entered: the input on the page: a number, typed text that is not a number, or the index of the chosen option.
        error: the message shown under the control, or "".
    """

    _esm = Path(__file__).with_name("control.js")
    kind = traitlets.Unicode().tag(sync=True)
    label = traitlets.Unicode().tag(sync=True)
    unit = traitlets.Unicode().tag(sync=True)
    stops: Any = traitlets.List().tag(sync=True)
    names: Any = traitlets.List().tag(sync=True)
    tips: Any = traitlets.List().tag(sync=True)
    entered = traitlets.Any().tag(sync=True, to_json=lambda value, _: _plain(value))
    disabled = traitlets.Bool(False).tag(sync=True)
    error = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        kind: str,
        label: str,
        value: Any,
        *,
        unit: str = "",
        stops: Iterable[float] = (),
        within: Limits = ANY,
        options: Iterable[tuple[str, Any]] = (),
        tips: Sequence[str] = (),
        rare: bool = False,
    ) -> None:
        self.options, self.default, self.rare, self.within = list(options), value, rare, within
        stops = list(stops)
        self._whole = isinstance(value, Integral) and all(isinstance(stop, Integral) for stop in stops)
        names = [name for name, _ in self.options]
        super().__init__(kind=kind, label=label, unit=unit, stops=stops, names=names, tips=list(tips))
        self.value = value

    @property
    def value(self) -> Any:
        """The entered value, as passed to `compute`.

        Raises UsageError if the input is not a number, not `within`, or not whole if the control requires that.
        """
        return self.meaning(self.entered)

    @value.setter
    def value(self, value: Any) -> None:
        if self.kind in OPTIONS:
            meanings = [meaning for _, meaning in self.options]
            require(value in meanings, f"{self.label} is {value!r}: choose {', '.join(map(repr, meanings))}")
            value = meanings.index(value)
        self.entered = value

    def meaning(self, entered: Any) -> Any:
        """Convert an input to the control's value; raises the same errors as `value`."""
        if self.kind in OPTIONS:
            return None if entered is None else self.options[entered][1]
        if isinstance(entered, str):
            raise UsageError(f"{self.label} is {entered!r}: it must be a number")
        low, high = self.within
        require(low <= entered <= high, f"{self.label} is {entered}: enter a number from {low:,.10g} to {high:,.10g}")
        if not self._whole:
            return float(entered)
        if not float(entered).is_integer():
            raise UsageError(f"{self.label} is {entered}: it must be a whole number")
        return int(entered)


def _plain(value: Any) -> Any:
    """Convert infinity and NaN, which JSON does not support, to text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def number(
    label: str, value: float, stops: Sequence[float] = (), *, unit: str = "", within: Limits = ANY, rare: bool = False
) -> Control:
    """A slider with increasing `stops` and a text box; it requires integers if the value and all stops are integers."""
    return Control("number", label, value, unit=unit, stops=stops, within=within, rare=rare)


def decades(low: int, high: int) -> list[float]:
    """Stops of a logarithmic slider: ten round numbers per power of ten, from 10^low to 10^high."""
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    return [float(f"{step}e{power}") for power in range(low, high) for step in steps] + [float(f"1e{high}")]


def whole_decades(low: int, high: int) -> list[int]:
    """The whole numbers among `decades`."""
    return [int(stop) for stop in decades(low, high) if stop.is_integer()]


def choice(
    label: str,
    value: Any,
    options: Mapping[str, Any] | Iterable[str],
    *,
    tooltips: Sequence[str] = (),
    rare: bool = False,
) -> Control:
    """Buttons for choosing one of several options; `options` maps labels to values if these differ."""
    meanings = options if isinstance(options, Mapping) else {name: name for name in options}
    return Control("choice", label, value, options=meanings.items(), tips=tooltips, rare=rare)


# ---- Controls shared by many panels --------------------------------------------------------------------------------


def variant(as_printed: bool) -> Control:
    """Buttons for the mechanism's variant: "as printed" (True) or "sound" (False)."""
    tips = ["Algorithm 1 of the paper, verbatim", "noise in the scaled space, in proportion to the true sensitivity"]
    return choice("variant", as_printed, {"as printed": True, "sound": False}, tooltips=tips)


def devices(num_devices: int, stops: Sequence[int] = DEVICES) -> Control:
    """A slider for the number of GPUs."""
    return number("GPUs N", num_devices, stops, unit="devices")


def decay_of(decay: str) -> Control:
    """Buttons for the decay of the noise; the values are the names in `Decay`."""
    return choice("decay of the noise", decay, map(str, Decay))


def delta_of(delta: float, low: int = -9, high: int = -2) -> Control:
    """A slider for delta, from 10^low to 10^high."""
    return number("δ", delta, decades(low, high), unit="probability", rare=True)


def seed_of(seed: int) -> Control:
    """A slider for the seed of the random draws."""
    return number("seed", seed, range(21), unit="another draw", rare=True)


# ---- Checks of values, and mechanisms shared by several notebooks ----------------------------------------------------


def require(holds: object, sentence: str) -> None:
    """Raise UsageError unless `holds` is true; `sentence` is the message, which names the problem and a fix."""
    if not holds:
        raise UsageError(sentence)


def check_share(name: str, share: float) -> None:
    """Raise UsageError unless a share is in [0, 1]."""
    require(0 <= share <= 1, f"the share of {name} is {share}: it must be between 0 and 1")


def check_seed(seed: int) -> None:
    """Raise UsageError if a seed is negative."""
    require(seed >= 0, f"seed is {seed}: it must be 0 or more")


def check_option(what: str, name: str, options: Collection[str]) -> None:
    """Raise UsageError unless the name is one of the options."""
    require(name in options, f"unknown {what} {name!r}: choose {', '.join(options)}")


def rng_of(seed: int, purpose: int) -> np.random.Generator:
    """Random number generator for a seed and a purpose; UsageError if the seed is negative."""
    check_seed(seed)
    return np.random.default_rng([seed, purpose])


SHARED = 8  # utterances per micro-batch; for more than one, the sensitivity to replace-one and to zero-out is 2C


def attacked_mechanism(as_printed: bool, clip_norm: float, z0: float, num_devices: int) -> Mechanism:
    """Mechanism for attacks and audits: as printed with public layer scales, or the sound mechanism without scales."""
    if as_printed:
        return Mechanism.as_printed(clip_norm, z0, num_devices, SHARED, alpha=Alpha.PUBLIC)
    return Mechanism.sound(clip_norm, z0, num_devices, SHARED)
