"""The panels of ``11_claims.ipynb``: the ledger, one claim computed again, and evidence that can be changed."""

from __future__ import annotations

from functools import partial
from typing import Any

import ipywidgets as widgets

from edp_lab.course.kit.controls import WHOLE_LABEL, Control, choice, decades, number
from edp_lab.course.kit.old_panel import FigurePanel, Picture
from edp_lab.course.kit.panel import COPY, command_box
from edp_lab.course.kit.run_panel import RunPanel
from edp_lab.course.nb11_claims import compute as ledger
from edp_lab.course.nb11_claims import figures as ledger_figures
from edp_lab.course.nb11_claims import words as ledger_words
from edp_lab.course.nb11_claims.compute import EVERY, View
from edp_lab.errors import UsageError
from edp_lab.reproduce.claims import REGISTRY, ClaimsTable, Entry, compute
from edp_lab.reproduce.evidence import Verdict

SIZES = [100, 300, 1000, 2641, 6517, 11571, 30_000, 100_000, 450_000, 1_000_000]


# ---- The ledger ------------------------------------------------------------------------------------------------------


class LedgerPanel(FigurePanel):
    """The ledger, filtered, and one row of it in full; `result` is a `View`.

    Its list holds the rows that pass the filter; a row that no longer passes gives way to the first that does.
    """

    def __init__(self, found: ClaimsTable, row: str = "P2") -> None:
        rows = {ledger_words.label(entry): entry.id for entry in found.entries}
        self._list = widgets.Select(
            options=list(rows.items()), value=row, rows=12, description="claim", style=WHOLE_LABEL,
            layout={"width": "100%"},
        )  # fmt: skip
        search = widgets.Text(
            description="search", placeholder="words, such as: noise GPU", style=WHOLE_LABEL, layout={"width": "24rem"}
        )
        search.tooltip = "rows that contain all of these words"
        verdicts = {EVERY: EVERY, **{f"{ledger_words.MARKS[one]} {one}": str(one) for one in Verdict}}
        controls = {
            "document": choice("source", EVERY, {EVERY: EVERY, "paper (P)": "paper", "thesis (T)": "thesis"}),
            "verdict": choice("verdict", EVERY, verdicts),
            "text": Control(search, search, ""),
            "row": Control(self._list, self._list, row),
        }
        super().__init__(
            "<h3>The ledger</h3>What am I looking at? First, every claim of the two documents with its verdict; then, "
            "the selected one with the numbers that its verdict follows from.",
            controls,
            partial(ledger.view, found),
            ledger_words.view_in_words,
            lambda result, **_: ledger_words.view_command(result),
            [
                Picture(ledger_figures.counts_figure, ledger_figures.update_counts),
                Picture(ledger_figures.spans_figure, ledger_figures.update_spans),
            ],
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

    def _draw(self, result: View) -> None:
        self._show_list(result)
        super()._draw(result)

    def _show_list(self, result: View) -> None:
        """The rows that pass; changing a list selects in it, which is not to be taken for the reader's choice."""
        options = [(ledger_words.label(entry), entry.id) for entry in result.entries]
        held, self._held = self._held, True
        try:
            if list(self._list.options) != options:
                self._list.options = options
            self._list.value = result.selected.id if result.selected else None
        finally:
            self._held = held


class StoppedError(Exception):
    """Stop was pressed."""


class AgainPanel(RunPanel):
    """Computes the selected claim's evidence again; Stop ends it at the next network.

    Attributes:
        entry: of the last run that came to its end; None before.
    """

    def __init__(self, panel: LedgerPanel) -> None:
        self._panel = panel
        self.entry: Entry | None = None
        self.chosen, self.words, self.command = widgets.Label(), widgets.HTML(), command_box(1)
        panel.controls["row"].source.observe(lambda _: self._follow(), "value")
        self._follow()
        super().__init__(
            "<h3>Compute it again</h3>What am I looking at? The claim that is selected above, its evidence computed on "
            "this machine, beside the committed one. Most take less than a second, some train networks first.",
            [self.chosen],
            [self.words, widgets.HTML(COPY), self.command],
        )

    def _follow(self) -> None:
        selected = self._panel.result.selected
        row = self._panel.controls["row"].value or (selected.id if selected else None)
        self.chosen.value = f"claim {row}" if row else "no claim is selected"
        self.command.value = ledger_words.again_command(row) if row else ""

    def prepare(self) -> Entry:
        selected: Entry | None = self._panel.result.selected
        if selected is None:
            raise UsageError("no claim is selected: take a word out of the search above")
        return selected

    def work(self, task: Entry) -> None:
        self.words.value, self.bar.max, self.bar.value = "", 1, 0
        try:
            self.entry = compute(REGISTRY[task.id], self._tell)
        except StoppedError:
            self.words.value = "<p>Stopped: nothing was changed.</p>"
        else:
            self.bar.value = 1
            self.words.value = ledger_words.changed_in_words(task, self.entry)

    def _tell(self, what: str) -> None:
        if self.stopping:
            raise StoppedError
        self.state.value = what


# ---- Change the evidence ---------------------------------------------------------------------------------------------


def turn_panel(num_devices: int, z0: float, micro_batch: int, training: int, delta: float) -> FigurePanel:
    """Verdicts of another paper's settings; `result` is a `ledger.Turned`."""
    controls = {
        "num_devices": number("GPUs N", num_devices, [1, 2, 4, 8, 16, 32], unit="devices"),
        "z0": number("noise multiplier z0", z0, decades(-2, 1), unit="no unit"),
        "micro_batch": number("micro-batch size", micro_batch, [1, 2, 4, 8, 16, 32, 64], unit="utterances"),
        "training": number("training set n", training, SIZES, unit="utterances"),
        "delta": number("δ", delta, decades(-9, -2), unit="probability"),
    }
    return FigurePanel(
        "<h3>Change the evidence</h3>What am I looking at? Four claims of the paper, with the numbers of your choice "
        "in the place of its own: evidence is computed, and verdicts follow.",
        controls,
        ledger.turn,
        ledger_words.turned_in_words,
        ledger_words.turned_command,
        [Picture(ledger_figures.beyond_figure, ledger_figures.update_beyond, "1 1 30rem")],
    )
