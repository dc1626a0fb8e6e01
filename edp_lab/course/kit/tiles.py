"""What a panel says beside its figures: two tiles and a sentence, and what is one click away."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import anywidget
import ipywidgets as widgets
import traitlets
from markupsafe import escape
from traitlets import validate

from edp_lab.course.kit.text import at_most, digits, short
from edp_lab.privacy import Guarantee


class EscapedHTML(widgets.HTML):
    """A place in a page for text, or for `Html`: whatever is not is escaped."""

    @validate("value")
    def _asked_for(self, proposal: dict[str, Any]) -> str:
        return str(escape(proposal["value"]))


class Tile(NamedTuple):
    """A number that a panel is about, as text: no markup.

    Attributes:
        label: what it is, in a word or two.
        value: the number, "no guarantee".
        unit: what it is a number of, in a few words.
        role: "claimed", "holds", "printed" (what fails) or "plain": its colour, the same as in the figures.
    """

    label: str
    value: str
    unit: str = ""
    role: str = "plain"


def claimed(value: str, unit: str = "", label: str = "claimed") -> Tile:
    """The tile of what a source says."""
    return Tile(label, value, unit, "claimed")


def holds(value: str, unit: str = "", label: str = "holds") -> Tile:
    """The tile of what is so."""
    return Tile(label, value, unit, "holds")


def proven(value: str, unit: str, refutes: bool) -> Tile:
    """The tile of what an attack or draws prove, and whether that `refutes` an epsilon."""
    return Tile("proven", value, unit, "printed" if refutes else "plain")


def epsilons(held: Guarantee) -> tuple[Tile, Tile]:
    """The epsilon that the paper's accounting claims, and the one that holds."""
    at = f"ε at δ = {short(held.delta)}"
    claim = claimed("nothing" if held.epsilon_claimed is None else digits(held.epsilon_claimed), at)
    if held.epsilon is not None:
        return claim, holds(at_most(held.epsilon), f"{at}, {held.condition or 'with a secret seed'}")
    public = held.epsilon_if_alpha_public
    unit = at if public is None else f"with a public α: ε = {at_most(public)}"
    return claim, Tile("holds", "no guarantee", unit, "printed")


class Tiles(anywidget.AnyWidget):
    """Two tiles and a sentence, which a screen reader speaks when it changes."""

    _esm = Path(__file__).with_name("tiles.js")
    tiles: Any = traitlets.List().tag(sync=True)
    sentence = traitlets.Unicode("").tag(sync=True)

    def show(self, first: Tile, second: Tile, sentence: str) -> None:
        """Become these, in one message."""
        with self.hold_sync():
            self.tiles, self.sentence = [list(first), list(second)], sentence


class Fold(anywidget.AnyWidget):
    """What is one click away: text or `Html`, or a command with a button that copies it. It stays open once opened."""

    _esm = Path(__file__).with_name("fold.js")
    summary = traitlets.Unicode().tag(sync=True)
    value = traitlets.Unicode("").tag(sync=True)
    code = traitlets.Bool(False).tag(sync=True)

    @validate("value")
    def _asked_for(self, proposal: dict[str, Any]) -> str:
        return proposal["value"] if self.code else str(escape(proposal["value"]))
