"""Formatting of numbers, tables, tiles and commands, shared by all notebooks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from decimal import ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import Any, NamedTuple

import anywidget
import ipywidgets as widgets
import traitlets
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from traitlets import validate

from edp_lab.privacy import Alpha, Decay, Guarantee, Mechanism, Variant
from edp_lab.privacy.guarantee import upward
from edp_lab.training.config import TrainConfig, flag_of

# ---- Read-outs -----------------------------------------------------------------------------------------------------


class Html(Markup):
    """Trusted markup: a constant into which `format` inserts escaped values. Other strings are shown as plain text."""

    def _repr_html_(self) -> str:
        return f'<div class="mathjax_ignore">{self}</div>'  # else Jupyter reads text in $...$ as TeX


CELL = Html('style="text-align:left; vertical-align:top; white-space:normal"')  # style of a table cell


class Words:
    """Texts of a notebook: each macro of the ``words.html.j2`` in a file's folder becomes a method that renders it.

        words = Words(__file__)
        words.stages(result)    # HTML on one line

    Templates can use the filters ``d`` (for `digits`), `at_most`, `at_least`, `short`, `percent` and `duration`, the
    functions `count` and ``table`` (for `html_table`), the style ``cell`` (for `CELL`), the macros ``privacy`` and
    ``scope`` of this package, and the names passed to the constructor. Inserted values are escaped. An unknown name
    raises an error.
    """

    def __init__(self, beside: str, **names: Any) -> None:
        here = Environment(loader=FileSystemLoader(Path(beside).parent), undefined=StrictUndefined, autoescape=True)
        named = {function.__name__: function for function in (at_most, at_least, short, percent, duration)}
        here.filters |= {"d": digits, **named}
        here.globals |= {"count": count, "table": html_table, "cell": CELL, **names}
        shared: Any = here.from_string(Path(__file__).with_name("words.html.j2").read_text(encoding="utf-8")).module
        here.globals |= {"privacy": shared.privacy, "scope": shared.scope}
        self._macros = here.get_template("words.html.j2").module

    def __getattr__(self, name: str) -> Callable[..., Html]:
        macro = getattr(self._macros, name)
        return lambda *results, **more: Html(" ".join(str(macro(*results, **more)).split()))


# ---- Numbers -------------------------------------------------------------------------------------------------------


def digits(value: float | None) -> str:
    """Format a number with three digits: 0.0296, 16.4, 1,234, 12.3 million, 3 × 10⁻⁸. None and inf mean too large for
    a float."""
    return _written(value, 3)


def at_most(value: float | None) -> str:
    """Format an upper bound, such as a guaranteed epsilon or sufficient noise, like `digits` but rounded up.

    None stands for a number that is too large for a float.
    """
    if value is None or not math.isfinite(value):
        return digits(value)
    value *= 1 - 1e-12  # absorbs rounding errors: 1000 times 0.1 must give 100
    return f"{math.ceil(value):,}" if 1000 <= value < 1e6 else digits(float(upward(value)))


def at_least(value: float | None) -> str:
    """Format a lower bound, such as a measured epsilon or the actual noise, like `digits` but rounded down.

    None stands for a number that is too large for a float.
    """
    if value is None or not math.isfinite(value):
        return digits(value)
    value *= 1 + 1e-12  # see `at_most`
    if 1000 <= value < 1e6:
        return f"{math.floor(value):,}"
    return digits(float(Context(3, ROUND_FLOOR).create_decimal(Decimal(value))))


def short(value: float | None) -> str:
    """Format a number with two digits: 0.0013, 32, 7,100, 3.4 million. None means too large for a float."""
    return _written(value, 2)


def _written(value: float | None, figures: int) -> str:
    """Format a number for reading, with `figures` significant digits."""
    if value is None or math.isinf(value):
        return "beyond 10³⁰⁸"
    if 1000 <= abs(value) < 1e6 and figures > 2:
        return f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.{figures}g}".partition("e")
    if not exponent:
        return mantissa
    if 0 < int(exponent) < 6:
        return f"{float(f'{value:.{figures}g}'):,.0f}"
    for power, name in ((6, "million"), (9, "billion")):
        if power <= int(exponent) < power + 3:
            return f"{float(mantissa) * 10 ** (int(exponent) - power):.3g} {name}"
    times = "" if mantissa == "1" else f"{mantissa} × "
    return f"{times}10{str(int(exponent)).translate(SUPERSCRIPT)}"


SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def percent(share: float, decimals: int | None = None) -> str:
    """Format a fraction as a percentage: "12.5 %" with three digits, or "12.50 %" if `decimals` is 2."""
    return f"{digits(100 * share) if decimals is None else f'{100 * share:.{decimals}f}'} %"


def duration(seconds: float) -> str:
    """Format a duration with three digits: "12.3 ms", "4 s"."""
    return f"{digits(1000 * seconds)} ms" if seconds < 1 else f"{digits(seconds)} s"


def count(number: int, what: str, many: str | None = None) -> str:
    """Format a number with its noun: "1 device", "1,000 devices"."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


# ---- Paragraphs and tables -----------------------------------------------------------------------------------------


def html_table(rows: Sequence[Sequence[str]]) -> Html:
    """An HTML table; the first row contains the headings."""
    cell, lines = Html("<{0} {1}>{2}</{0}>").format, []
    for place, row in enumerate(rows):
        cells = (cell("td" if place else "th", CELL, text) for text in row)
        lines.append(Html("<tr>{}</tr>").format(Html().join(cells)))
    return Html("<table>{}</table>").format(Html().join(lines))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """A plain-text table, in which each column is as wide as its widest cell."""
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    lines = ("".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def guarantee_of(record: Mapping[str, Any]) -> Guarantee:
    """The guarantee in a run record."""
    epsilons = ("conditional_epsilon", "claimed_epsilon", "epsilon_if_alpha_public")
    return Guarantee(**record["guarantee"], **{name: record["final"][name] for name in epsilons})


# ---- Settings and commands -----------------------------------------------------------------------------------------

# Options of `edp-lab train` that are shown even if they have their default values.
ALWAYS = ("corpus", "method", "clip_norm", "z0", "decay", "tau", "num_devices", "epochs", "seed")
MECHANISM = ("clip_norm", "z0", "decay", "tau", "num_devices", "as_printed", "alpha", "noise")


def plain(config: TrainConfig, epochs: int) -> TrainConfig:
    """Settings of the non-private run to compare an eDP-SGD run with; the mechanism's settings have no effect."""
    defaults = type(config)(config.corpus)
    return replace(config, method="sgd", epochs=epochs, **{name: getattr(defaults, name) for name in MECHANISM})


def train_command(config: TrainConfig, out: str = "runs/mine") -> str:
    """The `edp-lab train` command for exactly this run."""
    options = options_of(config, type(config)(config.corpus), ALWAYS)
    return shlex.join(["edp-lab", "train", *options, "--out", out])


def options_of(settings: Any, defaults: Any, always: Collection[str]) -> Iterator[str]:
    """Command-line options for a dataclass of settings: those that differ from the defaults, and those in `always`."""
    usual = asdict(defaults)
    for name, value in asdict(settings).items():
        if name in always or value != usual[name]:
            flag = flag_of(name)
            yield flag.replace("--", "--no-", 1) if value is False else flag
            if not isinstance(value, bool):
                yield ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def command(name: str, options: Mapping[str, Any], *flags: str) -> str:
    """An ``edp-lab NAME`` command with `flags`, then the `options` that are not None; floats have up to 12 digits."""
    words = ["edp-lab", *name.split(), *flags]
    for option, value in options.items():
        if value is not None:
            words += [flag_of(option), f"{value:.12g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def account_of(mechanism: Mechanism, **options: Any) -> str:
    """The ``edp-lab account`` command for a mechanism, with additional `options`."""
    m, printed = mechanism, ["--as-printed"] if mechanism.variant is Variant.AS_PRINTED else []
    settings = {"clip": m.clip_norm, "z0": m.z0, "gpus": m.num_devices, "micro-batch-size": m.micro_batch_size}
    options = {**settings, **options}
    if m.decay is not Decay.NONE:
        options |= {"decay": m.decay, "tau": m.tau}
    if m.alpha_max != 1:
        options["alpha-max"] = m.alpha_max
    if m.sampling_rate is not None:
        options["sampling-rate"] = m.sampling_rate
    if m.alpha is not Alpha.NONE:
        options["alpha-source"] = m.alpha
    return command("account", options, *printed)


def python(function: Callable[..., object], *arguments: object, do: str = "print({})", **values: object) -> str:
    """A command that calls a Python function and prints its result, or runs the code `do`, where {} is the result."""
    given = ", ".join([*map(repr, arguments), *(f"{name}={value!r}" for name, value in values.items())])
    name = function.__name__
    return f'python -c "from {function.__module__} import {name}; {do.replace("{}", f"{name}({given})")}"'


# ---- Tiles and folds -------------------------------------------------------------------------------------------------


class EscapedHTML(widgets.HTML):
    """HTML widget that escapes its text, unless the text is `Html`."""

    @validate("value")
    def _asked_for(self, proposal: dict[str, Any]) -> str:
        return str(escape(proposal["value"]))


class Tile(NamedTuple):
    """One of a panel's main numbers, as text without markup.

    Attributes:
        label: a name of one or two words.
        value: the number, or "none".
        unit: the measured quantity, in a few words.
        role: "claimed", "holds", "printed" (for failures) or "plain"; sets the tile's colour, as in the figures.
    """

    label: str
    value: str
    unit: str = ""
    role: str = "plain"


def claimed(value: str, unit: str = "", label: str = "claimed") -> Tile:
    """Tile for a value claimed by a source."""
    return Tile(label, value, unit, "claimed")


def holds(value: str, unit: str = "", label: str = "guaranteed") -> Tile:
    """Tile for a guaranteed value."""
    return Tile(label, value, unit, "holds")


def epsilons(held: Guarantee) -> tuple[Tile, Tile]:
    """Tiles for the epsilon claimed by the paper's accounting and for the guaranteed epsilon."""
    at = f"ε at δ = {short(held.delta)}"
    why = "not covered by the paper's formula" if "Poisson" in held.sampling else "too little noise, or none"
    claim = claimed("none", why) if held.claimed_epsilon is None else claimed(digits(held.claimed_epsilon), at)
    if held.conditional_epsilon is not None:
        return claim, holds(at_most(held.conditional_epsilon), f"{at}, {held.condition or 'with a secret seed'}")
    public = held.epsilon_if_alpha_public
    unit = at if public is None else f"ε = {at_most(public)} if α were public"
    return claim, Tile("guaranteed", "none", unit, "printed")


class Tiles(anywidget.AnyWidget):
    """Two tiles, and a sentence that screen readers announce when it changes."""

    _esm = Path(__file__).with_name("tiles.js")
    tiles: Any = traitlets.List().tag(sync=True)
    sentence = traitlets.Unicode("").tag(sync=True)

    def show(self, first: Tile, second: Tile, sentence: str) -> None:
        """Update both tiles and the sentence in one message."""
        with self.hold_sync():
            self.tiles, self.sentence = [list(first), list(second)], sentence


class Fold(anywidget.AnyWidget):
    """Collapsible section with text, `Html`, or a command and a Copy button. Stays open when its content changes."""

    _esm = Path(__file__).with_name("fold.js")
    summary = traitlets.Unicode().tag(sync=True)
    value = traitlets.Unicode("").tag(sync=True)
    code = traitlets.Bool(False).tag(sync=True)

    @validate("value")
    def _asked_for(self, proposal: dict[str, Any]) -> str:
        return proposal["value"] if self.code else str(escape(proposal["value"]))
