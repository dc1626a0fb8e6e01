"""Sliders wired to a pure function and to what shows its result. A panel is one declaration:

    @panel("04")
    def stages(clip_norm: float, z: float) -> Panel:
        return Panel(
            "Algorithm 1, line by line",
            "The gradients of N devices after each line.",
            compute,                        # (clip_norm, z) -> result: pure
            [draw],                         # result -> figure, a dict: see `edp_lab.course.kit.figure`
            words,                          # result -> text or `Html`
            command,                        # (result, **values) -> what to type to get the same
            tiles=tell,                     # result -> two tiles and a sentence
            clip_norm=number("clip norm C", clip_norm, decades(-2, 1)),
            z=number("z", z, decades(-2, 1)),
        )

It can be driven without a browser: ``panel.set(z=0.1)``, then read ``panel.result``. A page without a kernel looks up
what it shows in `Panel.table`.
"""

from __future__ import annotations

import gzip
import json
import math
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import ipywidgets as widgets
from markupsafe import escape

from edp_lab.course.kit.controls import OPTIONS, Control
from edp_lab.course.kit.figure import HALF, Figure, LiveFigure, framed, sent
from edp_lab.course.kit.runs import Frame, box
from edp_lab.course.kit.text import Fold, Tile, Tiles, python
from edp_lab.errors import UsageError

Draw = Callable[[Any], Figure]
STATES, BYTES = 400, 400_000  # of a table at most, the bytes compressed
MADE: list[Panel] = []  # all panels of this process
ROUND = "1.0 3.0 5.0 2.0 1.5 8.0 4.0 6.0 2.5 1.2"  # mantissas, the roundest first
SHORT = 24  # characters of JSON that are not worth sharing


class Panel(Frame):
    """Sliders over a pure function: figures that follow, two tiles and a sentence, and one click away all the rest.

    Args:
        title: what the panel is about, in a few words.
        looking_at: what one is looking at, in one sentence.
        compute: pure, and fast enough for a slider. Its UsageError becomes a sentence under the control.
        figures: for each figure what draws a result as a dict, see `edp_lab.course.kit.figure`, alone or with the width
            of its place (CSS). The main one first; side by side where the window is wide enough.
        words: a result in words: text, or `Html`. One click away.
        command: from a result and, as keywords, the controls' values; without one, the Python call of `compute`.
        account: without a command, from a result the call of `edp-lab account` below that, "" for none.
        tiles: from a result the two numbers that it is about and one sentence.
        idle: from a result, the names of controls that change nothing at present.
        joint: names of the controls that move together on a page without a kernel; without any, the first two.
        controls: by name; `compute` gets their values as keyword arguments. Six at most at first sight.

    Attributes:
        result: of the last values that `compute` accepted.
        figures: the live figures, in order.

    Raises:
        Exception: whatever `compute` or a drawing raises for the first values; `Frame.show_errors` shows later ones.
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
        account: Callable[[Any], str] = lambda result: "",
        tiles: Callable[[Any], tuple[Tile, Tile, str]],
        idle: Callable[[Any], Collection[str]] = lambda result: (),
        joint: Sequence[str] = (),
        **controls: Control,
    ) -> None:
        self.controls, self._compute, self._held = controls, compute, False
        MADE.append(self)
        self.joint = joint or [*controls][:2]
        self._words, self._idle, self._tiles = words, idle, tiles
        self._command = command or (lambda result, **to: f"{python(compute, **to)}\n{account(result)}".rstrip())
        places = [drawing if isinstance(drawing, tuple) else (drawing, HALF) for drawing in figures]
        self.draws = [draw for draw, _ in places]
        self.result = compute(**self.values)
        self.figures = [LiveFigure(draw(self.result)) for draw in self.draws]
        self.tiles, self.words = Tiles(), Fold(summary="All numbers, and what they cover")
        self.command = Fold(summary="The same as a command", code=True)
        self._say()
        for control in controls.values():
            control.observe(self._changed, "entered")
        frames = [framed(live, flex) for live, (_, flex) in zip(self.figures, places, strict=True)]
        below = [box("edp-row", *frames), self.words, self.command]
        super().__init__(title, looking_at, [self._inputs(), self.tiles], below)

    def _inputs(self) -> widgets.Box:
        """The controls; rare ones wait behind "more"."""
        rare = box("edp-controls", *(control for control in self.controls.values() if control.rare))
        rare.layout.display = "none"
        more = widgets.Button(description="more", tooltip="controls that one seldom needs").add_class("edp-quiet")
        reset = widgets.Button(description="reset", tooltip="back to the values this panel started with")
        reset.on_click(lambda _: self.reset())

        def toggle(_: object) -> None:
            hidden = rare.layout.display == "none"
            rare.layout.display, more.description = ("", "less") if hidden else ("none", "more")

        more.on_click(toggle)
        buttons = widgets.HBox([reset.add_class("edp-quiet"), *([more] if rare.children else [])])
        usual = [control for control in self.controls.values() if not control.rare]
        return widgets.VBox([box("edp-controls", *usual, buttons.add_class("edp-buttons")), rare])

    def set(self, **values: Any) -> None:
        """Move several controls, then redraw once. UsageError: the panel has no control of that name."""
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
        """Back to the values the panel started with."""
        self.set(**{name: control.default for name, control in self.controls.items()})

    def _changed(self, change: Mapping[str, Any]) -> None:
        if not self._held:
            self._redraw(change["owner"])

    def _redraw(self, moved: Control | None) -> None:
        with self.show_errors(moved):
            self.result = self._compute(**self.values)
            self._show()

    def _show(self) -> None:
        """Show the result in every place, or, if one of them cannot be made, in none."""
        drawn = [draw(self.result) for draw in self.draws]
        self._say()
        for live, figure in zip(self.figures, drawn, strict=True):
            live.show(figure)

    def _say(self) -> None:
        """Show all of the result but the figures."""
        for widget, shown in self._said(self.result, self.values).items():
            with widget.hold_sync():
                for name, value in shown.items():
                    setattr(widget, name, value)

    def _said(self, result: Any, values: Mapping[str, Any]) -> dict[widgets.Widget, dict[str, Any]]:
        """Contents of each part of the panel, except the figures, for a result."""
        first, second, line = self._tiles(result)
        idle = self._idle(result)
        return {
            self.tiles: {"tiles": [list(first), list(second)], "sentence": line},
            self.words: {"value": escape(self._words(result))},
            self.command: {"value": self._command(result, **values)},
            **{control: {"disabled": name in idle} for name, control in self.controls.items()},
        }

    # ---- A page without a kernel -------------------------------------------------------------------------------------

    def table(self) -> dict[str, Any]:
        """What the panel shows at the stops of its controls, for ``page.js``; the panel goes back to its defaults.

        The controls in `joint` move together, each other one alone while all are at their defaults. Sliders lose stops
        until the table has at most `STATES` states and `BYTES` bytes.

        Returns:
            ``controls``: for each its ``id``, ``stops``, the place of its default ``at`` and whether it is ``joint``.
            ``states``: compressed JSON, a ``pool`` of parts, of which later ones are made of earlier ones; ``joint``,
            for each combination of stops (the last control fastest), and ``alone``, for each other control and stop,
            what to show: by a widget's id its new values.
        """
        self.reset()
        joint = [name for name in self.controls if name in self.joint]
        computed: dict[tuple[Any, ...], Any] = {}
        pool: dict[str, int] = {}
        for most in (STATES, STATES // 2, STATES // 4, STATES // 8):
            stops = self._stops(most)
            pool.clear()

            def state(moved: dict[str, Any]) -> Any:
                entered = {name: control.entered for name, control in self.controls.items()} | moved
                key = tuple(entered.values())
                if key not in computed:
                    computed[key] = self._state(entered, list(moved))
                return _shared(computed[key], pool)

            combinations = product(*(stops[name] for name in joint))
            together = [state(dict(zip(joint, each, strict=True))) for each in combinations]
            alone = {name: [state({name: stop}) for stop in stops[name]] for name in stops if name not in joint}
            states = {"pool": [json.loads(text) for text in pool], "joint": together, "alone": [*alone.values()]}
            packed = gzip.compress(json.dumps(states, separators=(",", ":")).encode(), mtime=0)
            if len(packed) <= BYTES:
                break
        controls = [
            {
                "id": control.model_id,
                "stops": stops[name],
                "at": stops[name].index(control.entered),
                "joint": name in joint,
            }
            for name, control in self.controls.items()
        ]
        return {"controls": controls, "states": b64encode(packed).decode()}

    def _stops(self, most: int) -> dict[str, list[Any]]:
        """What each control may be set to, so that there are at most so many states.

        While there are more, the slider whose loss saves most states loses half its stops, see `_rounder`.
        """
        stops: dict[str, list[Any]] = {}
        for name, control in self.controls.items():
            every = range(len(control.names)) if control.kind in OPTIONS else {*control.stops, control.entered}
            stops[name] = sorted(every)

        def states(tried: Mapping[str, Sequence[Any]]) -> int:
            alone = sum(len(each) for name, each in tried.items() if name not in self.joint)
            return math.prod(len(tried[name]) for name in self.joint) + alone

        sliders = [name for name, control in self.controls.items() if control.kind not in OPTIONS]
        while states(stops) > most:
            fewer = {name: _rounder(stops[name], self.controls[name].entered) for name in sliders}
            name = min(sliders, key=lambda name: states({**stops, name: fewer[name]}))
            stops[name] = fewer[name]
        return stops

    def _state(self, entered: Mapping[str, Any], moved: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What the panel shows at these values, by widget; with a UsageError, that under what was moved last."""
        values = {name: control.meaning(entered[name]) for name, control in self.controls.items()}
        try:
            result = self._compute(**values)
            shown = self._said(result, values)
            figures = [{"drawn": sent(draw(result), "<f4")} for draw in self.draws]
        except UsageError as error:
            return {self.controls[moved[-1]].model_id: {"error": self._in_its_words(str(error))}}
        shown |= dict(zip(self.figures, figures, strict=True))
        return {widget.model_id: states for widget, states in shown.items()}


def _rounder(stops: Sequence[float], default: float) -> list[float]:
    """Half of the stops, with default and ends: of several powers of ten the round numbers, else every other one."""
    positive = [stop for stop in stops if stop > 0]
    if positive and positive[-1] >= 100 * positive[0]:
        round_ones = sorted(stops, key=lambda stop: (ROUND + f"{stop:e}"[:3]).index(f"{stop:e}"[:3]))
        kept = round_ones[: len(stops) // 2]
    else:
        kept = [*stops[stops.index(default) % 2 :: 2]]
    return sorted({*kept, default, stops[0], stops[-1]})


def _shared(value: Any, pool: dict[str, int]) -> Any:
    """The value with each part that may occur again replaced by its place in the pool, and floats to eight digits."""
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        value = {name: _shared(part, pool) for name, part in value.items()}
    elif isinstance(value, list | tuple):
        value = [_shared(part, pool) for part in value]
    text = json.dumps(value)
    return value if len(text) < SHORT else {"$": pool.setdefault(text, len(pool))}


def tables() -> dict[str, Any]:
    """`Panel.table` of every panel that this process has made, by the panel's id."""
    return {panel.model_id: panel.table() for panel in MADE}


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
