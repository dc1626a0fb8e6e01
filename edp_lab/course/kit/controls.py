"""Inputs of a panel: a slider with a box, buttons, a list; and checks of the values that they give."""

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
BATCH = 64  # utterances in a step, cut into one micro-batch per device
DEVICES = (1, 2, 4, 8, 16, 32)  # numbers of them that are compared
DELTA = 1e-5  # the usual one, where no corpus has its own
OPTIONS = {"choice", "list"}  # kinds whose value is one of several


class Control(anywidget.AnyWidget):
    """One input. Nothing is clamped: a number beyond the slider's ends reaches the library, which says what is wrong.

    Args:
        kind: "number" (a slider over `stops`, none without any, and a box), "choice" (buttons) or "list".
        label: its name on the screen.
        value: at first; `reset` goes back to it.
        unit: of a number.
        options: (name, meaning) of a choice or list.
        tips: what each button says under the pointer.
        rare: whether a reader seldom needs it, so that it waits behind "more".

    Attributes:
        entered: what the page has: a number, or what was typed in place of one; the place of an option.
        error: the sentence under it, "" for none.
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
        """What is entered, as `compute` gets it.

        UsageError: something else than a number, or than a whole number, was typed.
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
        """The value of what may be entered; raises as `value`."""
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
    """JSON knows no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def number(label: str, value: float, stops: Sequence[float] = (), *, unit: str = "", rare: bool = False) -> Control:
    """A slider that stops at the increasing `stops`, and a box for any number; whole numbers if value and stops are."""
    return Control("number", label, value, unit=unit, stops=stops, rare=rare)


def decades(low: int, high: int) -> list[float]:
    """Round numbers, ten to each power of ten, from 10^low to 10^high: stops of a logarithmic slider."""
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
    """Buttons of which one is pressed; `options` maps what they say to what they mean, where that is not the same."""
    meanings = options if isinstance(options, Mapping) else {name: name for name in options}
    return Control("choice", label, value, options=meanings.items(), tips=tooltips, rare=rare)


# ---- Controls that many panels have --------------------------------------------------------------------------------


def variant(as_printed: bool) -> Control:
    """Buttons "as printed" (True) and "sound" (False)."""
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
    return number("δ", delta, decades(low, high), unit="probability", rare=True)


def seed_of(seed: int) -> Control:
    """Another draw."""
    return number("seed", seed, range(21), unit="another draw", rare=True)


# ---- Checks of values, and mechanisms that several rooms have --------------------------------------------------------


def require(holds: object, sentence: str) -> None:
    """UsageError with this sentence, which names culprit and cure, unless something `holds`."""
    if not holds:
        raise UsageError(sentence)


def check_share(name: str, share: float) -> None:
    """Raise UsageError unless a share is in [0, 1]."""
    require(0 <= share <= 1, f"the share of {name} is {share}: it must be between 0 and 1")


def check_seed(seed: int) -> None:
    """UsageError if a seed is negative."""
    require(seed >= 0, f"seed is {seed}: it must be 0 or more")


def check_option(what: str, name: str, options: Collection[str]) -> None:
    """UsageError unless the name is one of the options."""
    require(name in options, f"unknown {what} {name!r}: choose {', '.join(options)}")


def rng_of(seed: int, purpose: int) -> np.random.Generator:
    """Random numbers of a seed, others for each purpose; UsageError where the seed is negative."""
    check_seed(seed)
    return np.random.default_rng([seed, purpose])


SHARED = 8  # utterances in a micro-batch: with more than one, replace-one costs the same as zero-out, a move by 2C


def attacked_mechanism(as_printed: bool, clip_norm: float, z0: float, num_devices: int) -> Mechanism:
    """What attacks and audits are held against: eDP-SGD with public layer scales (as printed), or none (sound)."""
    if as_printed:
        return Mechanism.as_printed(clip_norm, z0, num_devices, SHARED, alpha=Alpha.PUBLIC)
    return Mechanism.sound(clip_norm, z0, num_devices, SHARED)
