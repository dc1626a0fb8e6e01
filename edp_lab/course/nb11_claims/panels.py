"""The panels of ``11_claims.ipynb``: the claims table, one claim computed again, and evidence that can be changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import ipywidgets as widgets

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit import text
from edp_lab.course.kit.controls import Control, choice, decades, devices, number
from edp_lab.course.kit.figure import Figure, axis, figure, line, log_axis, points, trace
from edp_lab.course.kit.inputs import require
from edp_lab.course.kit.panel import Panel, RunPanel, Tile, claimed, holds, panel
from edp_lab.course.kit.panel import View as Seen
from edp_lab.course.kit.text import Html, Words, at_least, at_most, count, digits, duration, short
from edp_lab.course.kit.theme import CLAIMED, HOLDS, OTHER, PLAIN, PRINTED, TEMPLATE
from edp_lab.course.nb11_claims import compute
from edp_lab.course.nb11_claims.compute import CHANGES, DRAWS, EVERY, HALF, Cell, Turned, View
from edp_lab.errors import UsageError
from edp_lab.reproduce import claims
from edp_lab.reproduce.claims import ClaimsTable, Evidence, Verdict
from edp_lab.reproduce.paper.claims_mechanism import DRAWS as TABLE_DRAWS

# Measured values that bound an epsilon from above, as do those with "epsilon" in their names, and from below.
UPPER, LOWER = ("zcdp", "advanced", "bound_for_any_mechanism"), ("at_least", "true_up_to_epsilon", "epsilon_that_binds")


def written(name: str, value: float | str | bool) -> str:
    """A measured value as people read it: bounds are rounded away from what they bound."""
    if not isinstance(value, float):
        return f"{value:,}" if type(value) is int else str(value)
    if name in LOWER:
        return at_least(value)
    held = "epsilon" in name and "claim" not in name and name != "smallest_epsilon"  # which is a printed one
    return at_most(value) if held or name in UPPER else digits(value)


words = Words(__file__, draws=DRAWS, table_draws=TABLE_DRAWS, written=written)
table, numbers = words.table, words.numbers  # of rows of the table, and of what was measured
LONGEST = 60  # letters of a claim in a list
LOOKS = {  # mark in a list, colour, hatch of a bar, symbol
    Verdict.HOLDS: ("✓", HOLDS, "", "circle"),
    Verdict.CONDITIONAL: ("◐", OTHER, "/", "diamond"),
    Verdict.FAILS: ("✗", PRINTED, "x", "x"),
    Verdict.UNTESTABLE: ("?", "#888", ".", "square"),
}

# ---- The claims table ------------------------------------------------------------------------------------------------


@panel("11")
class Ledger(Panel):
    """The claims table, filtered, and one row of it in full; `result` is a `View`.

    Its list holds the rows that pass the filter; a row that no longer passes gives way to the first that does.
    """

    def __init__(self, found: ClaimsTable, row: str = "P2") -> None:
        verdicts = {EVERY: EVERY, **{f"{look[0]} {one}": str(one) for one, look in LOOKS.items()}}
        super().__init__(
            "The ledger",
            "How far off each claim about one number is; in the second figure, how many claims hold.",
            partial(compute.view, found),
            [draw_spans, draw_counts],
            words.view,
            view_command,
            tiles=tell_view,
            views={
                "claims that hold": {"verdict": str(Verdict.HOLDS), "row": "P11"},
                "claims of the thesis": {"document": "thesis", "row": "T1"},
                "claims that speak of GPUs": {"text": "gpu", "row": "P22"},
            },
            document=choice("source", EVERY, {EVERY: EVERY, "paper (P)": "paper", "thesis (T)": "thesis"}),
            verdict=Control("list", "verdict", EVERY, options=verdicts.items()),
            text=Control("text", "search", "", unit="such as: noise GPU"),
            row=Control("list", "claim", row, options=_options(found.entries)),
        )

    def set(self, **values: Any) -> None:
        """Move several controls; the row last, when the filter has made its list, which must let it pass."""
        row = values.pop("row", None)
        super().set(**values)
        if row is not None:
            passing = [entry.id for entry in self.result.entries]
            require(row in passing, f"claim {row!r} does not pass the filter: choose another, or reset the panel")
            super().set(row=row)

    def _show(self, seen: Seen) -> None:
        """The list is of the rows that pass; changing it selects in it, which is not the reader's choice."""
        held, self._held = self._held, True
        self.controls["row"].offer(_options(self.result.entries), self.result.selected and self.result.selected.id)
        self._held = held
        super()._show(seen)


def _options(entries: Sequence[Evidence]) -> list[tuple[str, str]]:
    """Rows of the list: ``P2 ✗ The returned gradient is ...``, cut to one line, and their ids."""
    cut = {one.id: says if len(says := one.about.says) <= LONGEST else f"{says[:LONGEST]}…" for one in entries}
    return [(f"{one.id} {LOOKS[one.verdict][0]} {cut[one.id]}", one.id) for one in entries]


def tell_view(result: View) -> tuple[Tile, Tile, str]:
    """Of the selected claim both numbers, or its verdict where it is not about one, and what it says."""
    entry = result.selected
    if entry is None:
        told = "No claim passes the filter: take a word out of the search, or choose “all”."
        return Tile("claims that pass", "0", f"of {len(result.table.entries)}"), Tile("claim", "none"), told
    told = f"{entry.id} {'is ' if entry.verdict is Verdict.UNTESTABLE else ''}{entry.verdict}"
    told += f" ({entry.strength.split()[0]}): “{entry.about.says}”"
    pair = entry.about.pair
    if pair is None:
        verdict = Tile("verdict", str(entry.verdict), entry.strength.split()[0])
        return Tile("claim", entry.id, f"of the {entry.about.document}"), verdict, told
    said, found = (written(name, entry.measured[name]) for name in (pair.claimed, pair.found))
    return claimed(said, pair.what, "claimed or allowed"), holds(found, pair.what, "found"), told


def draw_counts(result: View) -> Figure:
    """How many claims of each document have which verdict."""
    documents, bars = list(result.counts), []
    for verdict, (_, color, hatch, _) in LOOKS.items():
        values = [result.counts[document][verdict] for document in documents]
        # Light strokes on the verdict's colour; without a background of its own a patterned bar would be white.
        pattern = {"shape": hatch, "bgcolor": color, "fgcolor": "white", "solidity": 0.2, "size": 10}
        look = {"type": "bar", "orientation": "h", "marker": {"color": color, "pattern": pattern}}
        text = {"textfont": {"color": "black", "size": 14}, "textposition": "inside", "insidetextanchor": "middle"}
        told = {"text": [str(value) if value else "" for value in values], **text}
        bars.append(trace(str(verdict), look, x=values, y=documents, hover="%{y}: %{x}", **told))
    return figure(
        "Claims by verdict",
        *bars,
        height=320,
        top=116,
        barmode="stack",
        xaxis=axis("number of claims", tickformat="d"),
        yaxis=axis("document", showgrid=False, autorange="reversed"),
    )


def draw_spans(result: View) -> Figure:
    """How far every claim about one number is off; the selected one, if it is among them, has a ring."""
    rows = [(f"{span.entry.id}  {span.what}", span.found / span.claimed, span.entry.verdict) for span in result.spans]
    chosen = [k for k, span in enumerate(result.spans) if span.entry is result.selected]
    drawn = draw_times(rows, height=430, size=10)
    ring = fig.ring(18, x=[rows[k][1] for k in chosen], y=[rows[k][0] for k in chosen], hoverinfo="skip")
    return {**drawn, "data": [*drawn["data"], ring]}


def draw_times(rows: Sequence[tuple[str, float, Verdict]], height: int, size: int) -> Figure:
    """How many times as much as claimed or allowed was found, on a log axis: rows of a name, that number, a verdict."""
    names, times, _ = zip(*rows, strict=True) if rows else ((), (), ())
    from_1 = fig.gaps([1.0] * len(rows), times, names)
    marks = [line("", "#888", width=2, **from_1, hoverinfo="skip", showlegend=False)]
    for verdict, (_, color, _, symbol) in LOOKS.items():
        own = [(found, name) for name, found, one in rows if one is verdict]
        places = {"x": [found for found, _ in own], "y": [name for _, name in own]}
        marks.append(points(str(verdict), color, symbol, size, edge=None, **places))
    return figure(
        "Found, over claimed or allowed",
        *marks,
        fig.vline(1, line={"color": "#444", "dash": "dot", "width": 2}),
        height=height,
        hover="%{y}: %{x:.3g} times" + fig.ALONE,
        xaxis=log_axis("found over claimed or allowed (times)", [1.0, *times], margin=0.1, labels=5),
        yaxis=axis("claim", autorange="reversed", tickfont={"size": size}, ticks="", dtick=1),  # a label for every row
    )


def provenance(table: ClaimsTable) -> str:
    """Where the committed numbers come from, in one line."""
    versions = ", ".join(f"{name} {table.versions[name]}" for name in ("edp-lab", "torch", "numpy"))
    return f"{len(table.entries)} claims, computed on {table.date} on {table.machine} by `{table.command}`; {versions}"


def counted(result: View) -> str:
    """How many claims of each document have which verdict, a line each."""
    return "\n".join(
        f"{document}: {', '.join(f'{counts[verdict]} {verdict}' for verdict in Verdict if counts[verdict])}"
        for document, counts in result.counts.items()
    )


def view_command(result: View, **_: Any) -> str:
    """The call that prints the same: of the selected row, or of the rows that pass."""
    if result.selected is None:
        return "edp-lab claims"
    every = len(result.entries) == len(result.table.entries)
    passed = "" if every else f" --only {','.join(entry.id for entry in result.entries)}"
    return f"edp-lab claims --only {result.selected.id}\nedp-lab claims{passed} --json"


# ---- Compute it again ------------------------------------------------------------------------------------------------


@panel("11")
class Again(RunPanel):
    """Computes the selected claim's evidence again; Stop ends it at the next network."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.entry: Evidence | None = None  # of the last run that came to its end
        self.chosen = widgets.Label()
        super().__init__(
            "Compute it again",
            "The verdict on the claim that is selected above, in the ledger and computed on this machine.",
            [self.chosen],
        )
        ledger.controls["row"].observe(lambda _: self._follow(), "entered")
        self._follow()

    def _follow(self) -> None:
        selected = self._ledger.result.selected
        row = self._ledger.controls["row"].value or (selected.id if selected else None)
        self.chosen.value = f"claim {row}" if row else "no claim is selected"
        self.command.value = f"edp-lab claims --run --only {row}" if row else ""

    def prepare(self) -> Evidence:
        selected: Evidence | None = self._ledger.result.selected
        if selected is None:
            raise UsageError("no claim is selected: take a word out of the search above")
        return selected

    def work(self, task: Evidence) -> None:
        def hear(what: str) -> None:
            self.heed_stop("Stopped: nothing was changed.")
            self.state.value = what

        self.words.value, self.bar.max, self.bar.value = "", 1, 0
        self.entry = claims.compute(task.about, hear)
        self.bar.value = 1
        self.tiles.show(*tell_again(task, self.entry))
        self.words.value = text.details(words.in_full(self.entry), "the claim, and the numbers of now")


def tell_again(before: Evidence, now: Evidence) -> tuple[Tile, Tile, str]:
    """Both verdicts on a claim, the committed one and that of now, and which numbers differ."""
    moved = [name.replace("_", " ") for name, value in now.measured.items() if value != before.measured.get(name)]
    told = "Every number is as in the ledger."
    if moved:
        told = f"{len(moved)} of {count(len(now.measured), 'number')} "
        told += f"{'differ' if moved[1:] else 'differs'} from the ledger: {', '.join(moved)}."
    took = "in " + (duration(now.seconds) if now.seconds >= 0.1 else "no time")
    return Tile("in the ledger", str(before.verdict), before.id), Tile("computed now", str(now.verdict), took), told


# ---- Change the evidence ---------------------------------------------------------------------------------------------


@panel("11")
def turn(num_devices: int, z0: float, micro_batch: int, training: int, delta: float) -> Panel:
    """Verdicts of another paper's settings; `result` is a `Turned`."""
    sizes = [100, 300, 1000, 2641, 6517, 11571, 30_000, 100_000, 450_000, 1_000_000]
    alone = {"num_devices": 1, "micro_batch": 1}
    return Panel(
        "Change the evidence",
        "Four claims of the paper, judged with numbers of your choice in the place of its own.",
        compute.turn,
        [(draw_turned, "1 1 30rem")],
        words.turned,
        turned_command,
        tiles=tell_turned,
        views={
            "1 GPU": {"num_devices": 1},
            "1 GPU, 1 utterance in a micro-batch": alone,
            "and δ = 10⁻⁸": {**alone, "delta": 1e-8},
        },
        num_devices=devices(num_devices),
        z0=number("noise multiplier z0", z0, decades(-2, 1)),
        micro_batch=number("micro-batch size", micro_batch, [1, 2, 4, 8, 16, 32, 64], unit="utterances"),
        training=number("training set n", training, sizes, unit="utterances"),
        delta=number("δ", delta, decades(-9, -2), unit="probability"),
    )


def tell_turned(result: Turned) -> tuple[Tile, Tile, str]:
    """Both epsilons of one epoch, and which claims hold."""
    hold = [name for name, one in result.evidence.items() if one.verdict is Verdict.HOLDS]
    told = f"{len(hold)} of the 4 claims hold{'s' if len(hold) == 1 else ''} as stated: {', '.join(hold)}."
    told = {0: "None of the 4 claims holds as stated.", 4: "All 4 claims hold."}.get(len(hold), told)
    said = claimed(digits(result.claimed), f"ε of an epoch, at δ = {short(result.delta)}")
    return said, holds(at_most(result.epsilon), f"ε with a public α, at δ = {short(result.delta)}"), told


NAMES = {"P2": "P2  noise", "P5": "P5  ε", "P10": "P10  n δ", "P22": "P22  ε, for more GPUs"}


def draw_turned(result: Turned) -> Figure:
    """How many times as much as claimed was found, for four claims."""
    rows = [(NAMES[name], times, result.evidence[name].verdict) for name, times in result.times.items()]
    return draw_times(rows, height=360, size=14)


def turned_command(result: Turned, **values: float) -> str:
    """The call that prints verdicts and evidence, and that of `edp-lab account`, which gives the two epsilons."""
    judged = "found = {}.evidence.values(); print(*(f'{one.id} {one.verdict}: {one.said}' for one in found), sep='\\n')"
    numbers = {"gpus": "num_devices", "z0": "z0", "micro-batch-size": "micro_batch", "delta": "delta"}
    options = {option: values[name] for option, name in numbers.items()}
    account = text.account_command(options, "--as-printed", "--alpha-source", "public")
    return f"{text.python(compute.turn, do=judged, **values)}\n{account}"


# ---- Table 1, theirs and ours ----------------------------------------------------------------------------------------

VARIANTS: dict[str, tuple[str, str, str, float]] = {  # name, colour, symbol, shift
    "as printed": ("ours, as printed", PRINTED, "circle", -0.17),
    "sound": ("ours, sound", HOLDS, "square", 0.17),
    HALF: ("SGD, half the epochs", PLAIN, "x", 0.0),
    "theirs": ("theirs, another protocol", CLAIMED, "diamond-open", 0),
}
TABLE1_CAPTION = Html(
    "Changes against SGD of the same seed; left of 0 is better. Bars: Student's 95 % interval over seeds, each tested "
    "alone.\nTheirs: C, z0 and τ tuned, one run; ours: C and τ fixed, z0 the noisiest of five within 1.15 times SGD's "
    "error.\nε hollow: as the paper accounts, δ = 5e-4 (public corpora). Filled: what would hold, were the seeds secret"
    "\n(as printed: and the layer scales public), for one utterance zeroed out, disjoint batches, Gaussian DP, δ = "
    "n<sup>-1.1</sup>."
)


def table1_figure(cells: Sequence[Cell]) -> fig.Still:
    """Changes of error and of attacks' success against SGD's, and epsilon: a line for each model, corpus and decay.

    `cells` are those of `edp_lab.course.nb11_claims.compute.table1_cells`.
    """
    of = {variant: [cell for cell in cells if cell["variant"] == variant] for variant in VARIANTS}
    of["theirs"] = of["as printed"]
    lines = list(dict.fromkeys(_line(cell) for cell in cells if cell["ser_change"]))
    marks, axes = [], []

    def draw(variant: str, x: Sequence[float | None], plot: int, what: str = "", hollow: str = "", **more: Any) -> None:
        name, color, symbol, shift = VARIANTS[variant]
        y, size = [lines.index(_line(cell)) + shift for cell in of[variant]], 10 if variant == "theirs" else 9
        shown = {"legendgroup": variant, "showlegend": plot == 1, **fig.at(plot), **more}
        marks.append(points(name + what, color, symbol + hollow, size, edge=None, x=x, y=y, **shown))

    rows = {"tickvals": list(range(len(lines))), "ticktext": lines, "range": [len(lines) - 0.4, -0.6]}
    for plot, name in enumerate(CHANGES, 1):
        (low, high), at = _range(cells, name), fig.at(plot)
        for variant in ("as printed", "sound", HALF):
            changes = [cell[name] for cell in of[variant]]
            seen = [low <= one["mean"] <= high and one["high"] is not None for one in changes]
            half = [one["high"] - one["mean"] if bar else 0 for one, bar in zip(changes, seen, strict=True)]
            draw(variant, [one["mean"] for one in changes], plot, error_x={"array": half})
            for cell in of[variant]:
                if not low <= (change := cell[name]["mean"]) <= high:  # it would leave no room for the others
                    place = {"x": high, "xanchor": "right"} if change > high else {"x": low, "xanchor": "left"}
                    row = lines.index(_line(cell)) + VARIANTS[variant][3]
                    place |= {"y": row, "xref": at["xaxis"], "yref": at["yaxis"]}
                    marks.append(fig.note(f"{change:+.0f} ▸" if change > high else f"◂ {change:+.0f}", **place))
        if name in of["theirs"][0]["paper"]:
            draw("theirs", [cell["paper"][name] for cell in of["theirs"]], plot)
        marks.append(fig.vline(0, at["xaxis"], line={"width": 1, "color": "#888"}))
        axes.append((axis("change (%)", [low, high]), rows))
    for variant, what in (("as printed", "were alpha public"), ("sound", "holds")):
        draw(variant, [_power(cell["log10_claimed"]) for cell in of[variant]], 4, ": claimed", "-open")
        held = [cell["epsilon"] or cell["epsilon_if_alpha_public"] for cell in of[variant]]
        draw(variant, held, 4, f": {what}")
    draw("theirs", [_power(cell["paper"]["log10_claimed"]) for cell in of["theirs"]], 4)
    axes.append((axis("ε (no unit)", type="log", exponentformat="power", nticks=4), rows))
    layout = fig.plots(1, 4, (*CHANGES.values(), "ε"), axes, shared_yaxes=True, horizontal_spacing=0.02)
    layout |= {"legend": {"y": 1 + 1 / len(lines), "yanchor": "bottom"}, "template": TEMPLATE}
    height = 30 * len(lines) + 250
    return fig.still("Table 1, theirs and ours", *marks, caption=TABLE1_CAPTION, height=height, top=180, **layout)


def _range(cells: Sequence[Cell], change: str) -> tuple[float, float]:
    """What shows eDP-SGD's changes, theirs and ours, and the control where it lies near; intervals may end beyond."""
    private = [cell for cell in cells if cell["decay"]]
    theirs = [cell["paper"].get(change) for cell in private]
    ends = [0.0, *(cell[change]["mean"] for cell in private), *(one for one in theirs if one is not None)]
    width = max(ends) - min(ends)
    control = [cell[change]["mean"] for cell in cells if cell["variant"] == HALF]
    ends += [one for one in control if min(ends) - width / 2 < one < max(ends) + width / 2]
    margin = 0.12 * width + 1
    return min(ends) - margin, max(ends) + margin


def _power(log10: float | None) -> float | None:
    return None if log10 is None else math.pow(10, log10)


def _line(cell: Cell) -> str:
    where = f"{cell['model'].upper()}, {cell['corpus']}"
    if cell["variant"] == HALF:
        return f"{where}, half the epochs"
    return f"{where}, {'no' if cell['decay'] == 'none' else cell['decay']} decay"
