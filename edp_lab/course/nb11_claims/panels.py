"""The panels of ``11_claims.ipynb``: the claims table, one claim computed again, and evidence that can be changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import ipywidgets as widgets

from edp_lab.course.kit import figure as fig
from edp_lab.course.kit.controls import WHOLE_LABEL, Control, choice, decades, delta_of, devices, number
from edp_lab.course.kit.figure import Figure, figure, line
from edp_lab.course.kit.panel import COPY, Panel, RunPanel, StoppedError, panel
from edp_lab.course.kit.text import Words, account_command
from edp_lab.course.kit.theme import BLUE, GREEN, ORANGE, SKY, VERMILLION
from edp_lab.course.nb11_claims import compute
from edp_lab.course.nb11_claims.compute import EVERY, Turned, View
from edp_lab.errors import UsageError
from edp_lab.reproduce import claims
from edp_lab.reproduce.claims import ClaimsTable, Entry, Measured, Verdict

words = Words(__file__)
LONGEST = 60  # letters of a claim in a list
MARKS = {Verdict.HOLDS: "✓", Verdict.CONDITIONAL: "◐", Verdict.FAILS: "✗", Verdict.UNTESTABLE: "?"}
COLORS = {Verdict.HOLDS: GREEN, Verdict.CONDITIONAL: SKY, Verdict.FAILS: VERMILLION, Verdict.UNTESTABLE: "#999999"}
PATTERNS = {Verdict.HOLDS: "", Verdict.CONDITIONAL: "/", Verdict.FAILS: "x", Verdict.UNTESTABLE: "."}
SYMBOLS = {Verdict.HOLDS: "circle", Verdict.CONDITIONAL: "diamond", Verdict.FAILS: "x"}

# ---- The claims table ------------------------------------------------------------------------------------------------


@panel("11")
class Ledger(Panel):
    """The claims table, filtered, and one row of it in full; `result` is a `View`.

    Its list holds the rows that pass the filter; a row that no longer passes gives way to the first that does.
    """

    def __init__(self, found: ClaimsTable, row: str = "P2") -> None:
        wide = {"style": WHOLE_LABEL, "layout": {"width": "100%"}}
        self._list = widgets.Select(options=_options(found.entries), value=row, rows=12, description="claim", **wide)
        search = widgets.Text(
            description="search", placeholder="words, such as: noise GPU", style=WHOLE_LABEL, layout={"width": "24rem"}
        )
        search.tooltip = "rows that contain all of these words"
        verdicts = {EVERY: EVERY, **{f"{MARKS[one]} {one}": str(one) for one in Verdict}}
        super().__init__(
            "The ledger",
            "First, every claim of the two documents with its verdict; then, the selected one with the numbers that "
            "its verdict follows from.",
            {
                "document": choice("source", EVERY, {EVERY: EVERY, "paper (P)": "paper", "thesis (T)": "thesis"}),
                "verdict": choice("verdict", EVERY, verdicts),
                "text": Control(search, search, ""),
                "row": Control(self._list, self._list, row),
            },
            partial(compute.view, found),
            [draw_counts, draw_spans],
            words.view,
            lambda result, **_: view_command(result),
        )

    def set(self, **values: Any) -> None:
        """Move several controls; the row last, when the filter has made its list.

        Raises:
            UsageError: no such control, or a row that the filter does not let pass.
        """
        row = values.pop("row", None)
        super().set(**values)
        if row is not None:
            if row not in [entry.id for entry in self.result.entries]:
                raise UsageError(f"claim {row!r} does not pass the filter: choose another, or reset the panel")
            super().set(row=row)

    def _tell(self) -> None:
        """The list is of the rows that pass; changing it selects in it, which is not the reader's choice."""
        held, self._held = self._held, True
        try:
            if list(self._list.options) != (options := _options(self.result.entries)):
                self._list.options = options
            self._list.value = self.result.selected.id if self.result.selected else None
        finally:
            self._held = held
        super()._tell()


def _options(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """Rows of the list: ``P2 ✗ The returned gradient is ...``, cut to one line, and their ids."""
    cut = {one.id: one.claim if len(one.claim) <= LONGEST else f"{one.claim[:LONGEST]}…" for one in entries}
    return [(f"{one.id} {MARKS[one.verdict]} {cut[one.id]}", one.id) for one in entries]


def draw_counts(result: View) -> Figure:
    """How many claims of each document have which verdict."""
    documents, bars = list(result.counts), []
    for verdict in Verdict:
        values = [result.counts[document][verdict] for document in documents]
        # Light strokes on the verdict's colour; without a background of its own a patterned bar would be white.
        pattern = {"shape": PATTERNS[verdict], "bgcolor": COLORS[verdict], "fgcolor": "white", "solidity": 0.2}
        bars.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": str(verdict),
                "x": values,
                "y": documents,
                "text": [str(value) if value else "" for value in values],
                "marker": {"color": COLORS[verdict], "pattern": {**pattern, "size": 10}},
                "textfont": {"color": "black", "size": 14},
                "textposition": "inside",
                "insidetextanchor": "middle",
                "hovertemplate": f"%{{y}}: %{{x}}<extra>{verdict}</extra>",
            }
        )
    return figure(
        bars,
        "Claims by verdict",
        f"{len(result.entries)} of {len(result.table.entries)} claims pass the filter;<br>"
        f"evidence of {result.table.date}",
        330,
        barmode="stack",
        legend={"traceorder": "normal"},
        xaxis={"title": "number of claims", "tickformat": "d"},
        yaxis={"title": "document", "showgrid": False, "autorange": "reversed"},
    )


def _marks(name: str, color: str, symbol: str, size: int, width: float | None = None, **more: Any) -> fig.Trace:
    marker = {"color": color, "symbol": symbol, "size": size} | ({"line": {"width": width}} if width else {})
    return {"type": "scatter", "mode": "markers", "name": name, "marker": marker, **more}


def draw_spans(result: View) -> Figure:
    """What is claimed or allowed, and what was found, of every claim about one number; log scale."""
    names = [f"{span.entry.id}  {span.what}" for span in result.spans]
    claimed, found = ([getattr(span, side) for span in result.spans] for side in ("claimed", "found"))
    chosen = [k for k, span in enumerate(result.spans) if result.selected and span.entry.id == result.selected.id]
    silent: dict[str, Any] = {"hoverinfo": "skip", "showlegend": False}
    told: dict[str, Any] = {"y": names, "hovertemplate": "%{y}: %{x:.3g}"}
    ends = [x for one, other in zip(claimed, found, strict=True) for x in (one, other, None)]
    rows = [y for name in names for y in (name, name, None)]
    marks = [
        line("", "#bbb", line={"width": 2}, x=ends, y=rows, **silent),
        _marks("claimed or allowed", ORANGE, "square-open", 10, 2, x=claimed, **told),
        _marks("found", BLUE, "circle", 9, x=found, **told),
        _marks(
            "selected",
            "#000",
            "circle-open",
            22,
            2,
            x=[found[k] for k in chosen],
            y=[names[k] for k in chosen],
            **silent,
        ),
    ]
    return figure(
        marks,
        "What is claimed, and what was found",
        "each row has its own unit; each ε has the accountant and δ<br>that its claim names; ring: the selected row",
        680,
        margin={"b": 90, "r": 36},
        legend={"orientation": "v"},
        xaxis=_log_axis("value, in the claim's own unit", [*claimed, *found]),
        yaxis={
            "title": "claim, and what its number is",
            "autorange": "reversed",
            "tickfont": {"size": 11},
            "ticks": "",
        },
    )


def _log_axis(title: str, values: Sequence[float]) -> dict[str, Any]:
    low, high = fig.log_range(values, margin=0.1)
    return {"title": title, **fig.LOG, "range": [low, high]}


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


def table(entries: Sequence[Entry]) -> str:
    """Claims beside what was found, as an HTML table."""
    return words.table(entries)


def numbers(measured: Measured) -> str:
    """Everything that was measured, by name, as an HTML table."""
    return words.numbers(measured)


def view_command(result: View) -> str:
    """The call that prints the same: of the selected row, or of the rows that pass."""
    if result.selected is None:
        return "edp-lab claims"
    every = len(result.entries) == len(result.table.entries)
    passed = "" if every else f" --only {','.join(entry.id for entry in result.entries)}"
    return f"edp-lab claims --only {result.selected.id}\nedp-lab claims{passed} --json"


# ---- Compute it again ------------------------------------------------------------------------------------------------


@panel("11")
class Again(RunPanel):
    """Computes the selected claim's evidence again; Stop ends it at the next network.

    Attributes:
        entry: of the last run that came to its end; None before.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.entry: Entry | None = None
        self.chosen = widgets.Label()
        super().__init__(
            "Compute it again",
            "The claim that is selected above, its evidence computed on this machine, beside the committed one. Most "
            "take less than a second, some train networks first.",
            [self.chosen],
            rows=1,
            copy=COPY,
        )
        ledger.controls["row"].source.observe(lambda _: self._follow(), "value")
        self._follow()

    def _follow(self) -> None:
        selected = self._ledger.result.selected
        row = self._ledger.controls["row"].value or (selected.id if selected else None)
        self.chosen.value = f"claim {row}" if row else "no claim is selected"
        self.command.value = f"edp-lab claims --run --only {row}" if row else ""

    def prepare(self) -> Entry:
        selected: Entry | None = self._ledger.result.selected
        if selected is None:
            raise UsageError("no claim is selected: take a word out of the search above")
        return selected

    def work(self, task: Entry) -> None:
        self.words.value, self.bar.max, self.bar.value = "", 1, 0
        try:
            self.entry = claims.compute(claims.registry()[task.id], self._hear)
        except StoppedError:
            self.words.value = "<p>Stopped: nothing was changed.</p>"
        else:
            self.bar.value = 1
            self.words.value = changed_in_words(task, self.entry)

    def _hear(self, what: str) -> None:
        self.heed_stop()
        self.state.value = what


def changed_in_words(before: Entry, now: Entry) -> str:
    """A claim that was computed again beside the committed one: HTML."""
    moved = [name.replace("_", " ") for name, value in now.measured.items() if value != before.measured.get(name)]
    return words.again(now, before, moved)


# ---- Change the evidence ---------------------------------------------------------------------------------------------


@panel("11")
def turn(num_devices: int, z0: float, micro_batch: int, training: int, delta: float) -> Panel:
    """Verdicts of another paper's settings; `result` is a `Turned`."""
    sizes = [100, 300, 1000, 2641, 6517, 11571, 30_000, 100_000, 450_000, 1_000_000]
    return Panel(
        "Change the evidence",
        "Four claims of the paper, with the numbers of your choice in the place of its own: evidence is computed, and "
        "verdicts follow.",
        {
            "num_devices": devices(num_devices),
            "z0": number("noise multiplier z0", z0, decades(-2, 1), unit="no unit"),
            "micro_batch": number("micro-batch size", micro_batch, [1, 2, 4, 8, 16, 32, 64], unit="utterances"),
            "training": number("training set n", training, sizes, unit="utterances"),
            "delta": delta_of(delta),
        },
        compute.turn,
        [(draw_beyond, "1 1 30rem")],
        words.turned,
        turned_command,
    )


NAMES = {"P2": "P2  noise", "P5": "P5  sensitivity", "P10": "P10  n δ over 0.1", "P22": "P22  number of GPUs"}


def draw_beyond(result: Turned) -> Figure:
    """How many times as much as claimed was found, by claim, marked with the verdict; log scale."""
    ends = [x for factor in result.beyond.values() for x in (1.0, factor, None)]
    rows = [y for name in result.beyond for y in (NAMES[name], NAMES[name], None)]
    marks = [line("", "#bbb", line={"width": 3}, x=ends, y=rows, hoverinfo="skip", showlegend=False)]
    for verdict, symbol in SYMBOLS.items():
        own = [name for name, one in result.evidence.items() if one.verdict == verdict]
        places: dict[str, Any] = {"x": [result.beyond[name] for name in own], "y": [NAMES[name] for name in own]}
        hover = "%{y}: %{x:.3g} times<extra></extra>"
        marks.append(_marks(str(verdict), COLORS[verdict], symbol, 14, 2, **places, hovertemplate=hover))
    return figure(
        marks,
        "How far the truth is from the claim",
        f"ε of one epoch: {result.epsilon:.3g} (Gaussian DP, were α public),<br>"
        f"claimed {result.claimed:.3g} (zCDP); δ = {result.delta:.2g}, seed 0",
        400,
        margin={"b": 60, "r": 36},
        legend={"orientation": "v"},
        shapes=[fig.vline(1, line={"color": "#444", "dash": "dot", "width": 2})],
        xaxis=_log_axis("found over claimed or allowed (times)", [1.0, *result.beyond.values()]),
        yaxis={
            "title": "claim",
            "autorange": "reversed",
            "categoryorder": "array",
            "categoryarray": list(NAMES.values()),
        },
    )


def turned_command(result: Turned, **values: float) -> str:
    """The call that prints verdicts and evidence, and that of `edp-lab account`, which gives the two epsilons."""
    given = ", ".join(f"{name}={value!r}" for name, value in values.items())
    python = f"from {compute.__name__} import turn; found = turn({given}).evidence.values(); "
    printed = "print(*(f'{one.id} {one.verdict}: {one.said}' for one in found), sep='\\n')"
    numbers = {"gpus": "num_devices", "z0": "z0", "micro-batch-size": "micro_batch", "delta": "delta"}
    options = {option: values[name] for option, name in numbers.items()}
    account = account_command(options, "--as-printed", "--alpha-source", "public")
    return f'python -c "{python}{printed}"\n{account}'
