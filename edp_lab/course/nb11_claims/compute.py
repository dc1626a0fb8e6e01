"""The claims table as a notebook shows it: filtered, one row in full, and verdicts that follow the evidence.

All claims, functions and verdicts are those of `edp_lab.reproduce.claims`; nothing is judged here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edp_lab.errors import UsageError
from edp_lab.privacy import Alpha, Mechanism, claimed_epsilon, true_epsilon
from edp_lab.reproduce.claims import DOCUMENTS, ClaimsTable, Entry, Evidence, Verdict, registry
from edp_lab.reproduce.paper.claims_mechanism import DRAWS as TABLE_DRAWS
from edp_lab.reproduce.paper.claims_mechanism import p2_noise_of_the_release, p5_micro_batches, p22_free_devices
from edp_lab.reproduce.paper.claims_printed import p10_delta

EVERY = "all"
DRAWS = 2_000  # of noise, behind a slider


# ---- Rows of the table -----------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """What a claim says and what was found, both positive, in the claim's own unit."""

    entry: Entry
    claimed: float
    found: float
    what: str


class View(NamedTuple):
    """The table through a filter.

    Attributes:
        entries: that pass it, in the table's order.
        selected: the row that is shown in full; None where none passes.
        counts: rows by document and verdict.
        spans: of the rows that have one, in the table's order.
        table: all of it, and where it comes from.
    """

    entries: tuple[Entry, ...]
    selected: Entry | None
    counts: Mapping[str, Mapping[Verdict, int]]
    spans: tuple[Span, ...]
    table: ClaimsTable


def view(
    table: ClaimsTable, document: str = EVERY, verdict: str = EVERY, text: str = "", row: str | None = None
) -> View:
    """Rows of a document ("paper", "thesis") with a verdict that contain all words of a text, whatever the case.

    `row` is selected if it passes, else the first that does.

    Raises:
        UsageError: an unknown document or verdict.
    """
    for what, given, known in (("document", document, DOCUMENTS.values()), ("verdict", verdict, map(str, Verdict))):
        if given != EVERY and given not in (names := list(known)):
            raise UsageError(f"unknown {what} {given!r}: choose {EVERY}, {', '.join(names)}")
    words = text.lower().split()
    entries = tuple(
        entry
        for entry in table.entries
        if document in (EVERY, entry.document)
        and verdict in (EVERY, str(entry.verdict))
        and all(word in _searched(entry) for word in words)
    )
    counts = {name: Counter(one.verdict for one in entries if one.document == name) for name in DOCUMENTS.values()}
    chosen = next((entry for entry in entries if entry.id == row), next(iter(entries), None))
    return View(entries, chosen, counts, tuple(filter(None, map(span, entries))), table)


def _searched(entry: Entry) -> str:
    return f"{entry.id} {entry.claim} {entry.source} {entry.said} {entry.function}".lower()


def span(entry: Entry) -> Span | None:
    """None where the claim is not about one number."""
    pair = registry()[entry.id].pair
    if pair is None:
        return None
    return Span(entry, float(entry.measured[pair.claimed]), float(entry.measured[pair.found]), pair.what)


def rows_of(table: ClaimsTable, cell: str) -> list[Entry]:
    """The rows that a notebook cell shows: "11_claims#paper-print" or, of notebook 11, "paper-print".

    Raises:
        UsageError: the cell shows none.
    """
    name = cell if "#" in cell else f"11_claims#{cell}"
    found = [entry for entry in table.entries if entry.cell == name]
    if not found:
        raise UsageError(f"no claim is shown by the cell {name!r}")
    return found


def replaced(ledger: ClaimsTable, entry: Entry) -> ClaimsTable:
    """The ledger with this entry in the place of the one with its id."""
    entries = tuple(entry if one.id == entry.id else one for one in ledger.entries)
    return ClaimsTable(entries, ledger.command, ledger.date, ledger.machine, ledger.versions)


# ---- Change the evidence ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turned:
    """Claims P2, P5, P10 and P22 of a paper with other settings.

    Attributes:
        evidence: by id.
        beyond: how many times as much as is claimed or allowed was found, in the direction that hurts; 1 is as claimed.
        claimed, epsilon: of one epoch at delta, by the paper's zCDP, and exactly (Gaussian DP, zero-out) if alpha were
            public with largest value 1.
        draws, table_draws: of the noise, here and in the table.
    """

    evidence: Mapping[str, Evidence]
    beyond: Mapping[str, float]
    claimed: float
    epsilon: float
    delta: float
    draws: int = DRAWS
    table_draws: int = TABLE_DRAWS


def turn(num_devices: int, z0: float, micro_batch: int, training: int, delta: float) -> Turned:
    """The same evidence functions as the table's, with N devices, z0, utterances that share a clip, n and delta.

    Raises:
        UsageError: a number of devices, utterances or noise that makes no sense, delta outside (0, 1).
    """
    printed = Mechanism.as_printed(1.0, z0, num_devices, micro_batch, alpha=Alpha.PUBLIC)
    found = (
        p2_noise_of_the_release(num_devices, z0, draws=DRAWS),
        p5_micro_batches(micro_batch, z=z0, delta=delta),
        p10_delta({"this corpus": training}, {"this corpus": delta}),
        p22_free_devices((1, num_devices), z0, delta, DRAWS, micro_batch=micro_batch),
    )
    measured = {evidence.id: evidence.measured for evidence in found}
    return Turned(
        evidence={evidence.id: evidence for evidence in found},
        beyond={
            "P2": float(measured["P2"]["times_too_small"]),
            "P5": float(measured["P5"]["epsilon"]) / float(measured["P5"]["claimed_epsilon"]),
            "P10": float(measured["P10"]["largest"]) / float(measured["P10"]["largest_allowed"]),
            "P22": float(measured["P22"]["epsilon"]) / float(measured["P22"]["epsilon_with_fewest"]),
        },
        claimed=claimed_epsilon(printed, 1, delta),
        epsilon=true_epsilon(printed, 1, delta),
        delta=delta,
    )
