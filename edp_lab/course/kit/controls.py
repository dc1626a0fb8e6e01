"""Inputs of a panel (a slider with a box, buttons, a list), and checks of their values."""

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
DELTA = 1e-5  # the usual delta, if no corpus sets its own
OPTIONS = {"choice", "list"}  # kinds whose value is one of several options


class Control(anywidget.AnyWidget):
    """One input. Nothing is clamped: the library checks numbers outside the slider's range, and reports errors.

    Args:
        kind: "number" (a box, with a slider if there are `stops`), "choice" (buttons) or "list".
        label: its name on screen.
        value: its initial value, which `reset` restores.
        unit: the unit of a number.
        options: the (name, meaning) pairs of a choice or list.
        tips: the tooltip of each button.
        rare: whether it is rarely needed, so that it is hidden behind "more".

    Attributes:
        entered: the value on the page: a number, the text typed instead of one, or the index of the chosen option.
        error: the message shown under it, "" for none.
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
        options: Iterable[tuple[str, Any]] = (),
        tips: Sequence[str] = (),
        rare: bool = False,
    ) -> None:
        self.options, self.default, self.rare = list(options), value, rare
        stops = list(stops)
        self._whole = isinstance(value, Integral) and all(isinstance(stop, Integral) for stop in stops)
        names = [name for name, _ in self.options]
        super().__init__(kind=kind, label=label, unit=unit, stops=stops, names=names, tips=list(tips))
        self.value = value

    @property
    def value(self) -> Any:
        """The entered value, as passed to `compute`.

        UsageError: the text typed is not a number, or not a whole number if one is needed.
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
        """The value of a possible entry; raises the same errors as `value`."""
        if self.kind in OPTIONS:
            return None if entered is None else self.options[entered][1]
        if isinstance(entered, str):
            raise UsageError(f"{self.label} is {entered!r}: it must be a number")
        if not self._whole:
            return float(entered)
        if not float(entered).is_integer():
            raise UsageError(f"{self.label} is {entered}: it must be a whole number")
        return int(entered)


def _plain(value: Any) -> Any:
    """Make a value fit for JSON, which has no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def number(label: str, value: float, stops: Sequence[float] = (), *, unit: str = "", rare: bool = False) -> Control:
    """A slider with increasing `stops`, and a box for any number; only whole numbers if value and stops are whole."""
    return Control("number", label, value, unit=unit, stops=stops, rare=rare)


def decades(low: int, high: int) -> list[float]:
    """Round numbers from 10^low to 10^high, ten per power of ten, as the stops of a logarithmic slider."""
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    return [float(f"{step}e{power}") for power in range(low, high) for step in steps] + [float(f"1e{high}")]


def choice(
    label: str,
    value: Any,
    options: Mapping[str, Any] | Iterable[str],
    *,
    tooltips: Sequence[str] = (),
    rare: bool = False,
) -> Control:
    """Buttons, one of which is pressed; `options` maps their labels to their values if these differ."""
    meanings = options if isinstance(options, Mapping) else {name: name for name in options}
    return Control("choice", label, value, options=meanings.items(), tips=tooltips, rare=rare)


# ---- Controls shared by many panels --------------------------------------------------------------------------------


def variant(as_printed: bool) -> Control:
    """Buttons "as printed" (True) and "sound" (False)."""
    tips = ["Algorithm 1 of the paper, verbatim", "noise in the scaled space, in proportion to the true sensitivity"]
    return choice("variant", as_printed, {"as printed": True, "sound": False}, tooltips=tips)


def devices(num_devices: int, stops: Sequence[int] = DEVICES) -> Control:
    """The number of GPUs."""
    return number("GPUs N", num_devices, stops, unit="devices")


def decay_of(decay: str) -> Control:
    """How the noise decreases: a name of `Decay`."""
    return choice("decay of the noise", decay, map(str, Decay))


def delta_of(delta: float, low: int = -9, high: int = -2) -> Control:
    """The delta, from 10^low to 10^high."""
    return number("δ", delta, decades(low, high), unit="probability", rare=True)


def seed_of(seed: int) -> Control:
    """The seed; another seed gives another draw."""
    return number("seed", seed, range(21), unit="another draw", rare=True)


# ---- Checks of values, and mechanisms shared by several rooms --------------------------------------------------------


def require(holds: object, sentence: str) -> None:
    """Raise UsageError with this sentence, which names the problem and a fix, unless `holds` is true."""
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
    """Random number generator of a seed, a different one per purpose; UsageError if the seed is negative."""
    check_seed(seed)
    return np.random.default_rng([seed, purpose])


SHARED = 8  # utterances per micro-batch: with more than one, replace-one and zero-out both have sensitivity 2C


def attacked_mechanism(as_printed: bool, clip_norm: float, z0: float, num_devices: int) -> Mechanism:
    """Mechanism that attacks and audits test: eDP-SGD with public layer scales (as printed), or none (sound)."""
    if as_printed:
        return Mechanism.as_printed(clip_norm, z0, num_devices, SHARED, alpha=Alpha.PUBLIC)
    return Mechanism.sound(clip_norm, z0, num_devices, SHARED)
