"""Tables of precomputed panel states, which ``page.js`` shows on pages without a kernel."""

from __future__ import annotations

import gzip
import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from edp_lab.course.kit.controls import OPTIONS
from edp_lab.course.kit.figure import sent
from edp_lab.course.kit.panel import MADE, Panel
from edp_lab.errors import UsageError

STATES, BYTES = 320, 400_000  # maximum states and compressed bytes per table
ROUND = "1.0 3.0 5.0 2.0 1.5 8.0 4.0 6.0 2.5 1.2"  # mantissas, starting with the roundest
SHORT = 24  # JSON texts shorter than this are not shared


def table(panel: Panel) -> dict[str, Any]:
    """Precompute a panel's states at its controls' stops, for ``page.js``. This resets the panel to its defaults.

    The table contains all combinations of the controls in `joint`. Every other control is varied alone, with the rest
    at their defaults. Stops of sliders are removed to keep the table within `STATES` states and `BYTES` bytes.

    Returns:
        ``controls``: for each control, its ``id``, its ``stops``, the index ``at`` of its default, and ``joint``.
        ``states``: compressed JSON. ``pool`` is a list of parts, which can refer to earlier parts. ``joint`` lists the
        states for all combinations of stops (the last control varies fastest), and ``alone`` those for each other
        control. A state maps widget ids to new property values.
    """
    panel.reset()
    joint = [name for name in panel.controls if name in panel.joint]
    computed: dict[tuple[Any, ...], Any] = {}
    pool: dict[str, int] = {}
    for most in (STATES, STATES // 2, STATES // 4, STATES // 8):
        stops = _stops(panel, most)
        pool.clear()

        def state(moved: dict[str, Any]) -> Any:
            entered = {name: control.entered for name, control in panel.controls.items()} | moved
            key = tuple(entered.values())
            if key not in computed:
                computed[key] = _state(panel, entered, list(moved))
            return _shared(computed[key], pool)

        combinations = product(*(stops[name] for name in joint))
        together = [state(dict(zip(joint, each, strict=True))) for each in combinations]
        alone = {name: [state({name: stop}) for stop in stops[name]] for name in stops if name not in joint}
        states = {"pool": [json.loads(text) for text in pool], "joint": together, "alone": [*alone.values()]}
        packed = gzip.compress(json.dumps(states, separators=(",", ":")).encode(), mtime=0)
        if len(packed) <= BYTES:
            break
    controls = [
        {"id": control.model_id, "stops": stops[name], "at": stops[name].index(control.entered), "joint": name in joint}
        for name, control in panel.controls.items()
    ]
    return {"controls": controls, "states": b64encode(packed).decode()}


def _stops(panel: Panel, most: int) -> dict[str, list[Any]]:
    """Stops of each control, for at most `most` states.

    While there are more, half of the stops are removed from the slider where this saves most states: see `_rounder`.
    """
    stops: dict[str, list[Any]] = {}
    for name, control in panel.controls.items():
        every = range(len(control.names)) if control.kind in OPTIONS else {*control.stops, control.entered}
        stops[name] = sorted(every)

    def states(tried: Mapping[str, Sequence[Any]]) -> int:
        alone = sum(len(each) for name, each in tried.items() if name not in panel.joint)
        return math.prod(len(tried[name]) for name in panel.joint) + alone

    sliders = [name for name, control in panel.controls.items() if control.kind not in OPTIONS]
    while states(stops) > most:
        fewer = {name: _rounder(stops[name], panel.controls[name].entered) for name in sliders}
        name = min(sliders, key=lambda name: states({**stops, name: fewer[name]}))
        stops[name] = fewer[name]
    return stops


def _state(panel: Panel, entered: Mapping[str, Any], moved: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Property values of each widget for this input; a UsageError is shown under the control that was moved last."""
    try:
        values = {name: control.meaning(entered[name]) for name, control in panel.controls.items()}
        result = panel.compute(**values)
        shown = panel.shown(result, values)
        figures = [{"drawn": sent(draw(result), "<f4")} for draw in panel.draws]
    except UsageError as error:
        return {panel.controls[moved[-1]].model_id: {"error": panel._in_its_words(str(error))}}
    shown |= dict(zip(panel.figures, figures, strict=True))
    return {widget.model_id: states for widget, states in shown.items()}


def _rounder(stops: Sequence[float], default: float) -> list[float]:
    """Half of the stops, plus the default and both ends: round numbers if the stops span a factor of 100 or more."""
    positive = [stop for stop in stops if stop > 0]
    if positive and positive[-1] >= 100 * positive[0]:
        round_ones = sorted(stops, key=lambda stop: (ROUND + f"{stop:e}"[:3]).index(f"{stop:e}"[:3]))
        kept = round_ones[: len(stops) // 2]
    else:
        kept = [*stops[stops.index(default) % 2 :: 2]]
    return sorted({*kept, default, stops[0], stops[-1]})


def _shared(value: Any, pool: dict[str, int]) -> Any:
    """The value with floats rounded to eight digits, and with every long part replaced by its index in the pool."""
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        value = {name: _shared(part, pool) for name, part in value.items()}
    elif isinstance(value, list | tuple):
        value = [_shared(part, pool) for part in value]
    text = json.dumps(value)
    return value if len(text) < SHORT else {"$": pool.setdefault(text, len(pool))}


def tables() -> dict[str, Any]:
    """The `table` of every panel created in this process, by the panel's id."""
    return {panel.model_id: table(panel) for panel in MADE}
