"""The claims table as a notebook shows it: filtered, one row in full, verdicts that follow the evidence; and Table 1.

All claims, functions and verdicts are those of `edp_lab.reproduce.claims`; nothing is judged here. Values
that make no sense are refused by `UsageError`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from edp_lab.course.kit.inputs import check_option, require
from edp_lab.course.kit.text import at_most, digits
from edp_lab.privacy import Alpha, Mechanism, claimed_epsilon, true_epsilon
from edp_lab.reproduce import results_io
from edp_lab.reproduce.claims import DOCUMENTS, ClaimsTable, Evidence, Verdict
from edp_lab.reproduce.paper.claims_mechanism import p2_noise_of_the_release, p5_micro_batches, p22_free_devices
from edp_lab.reproduce.paper.claims_printed import p10_delta
from edp_lab.reproduce.paper.runs import Change, beyond_chance

EVERY = "all"
DRAWS = 2_000  # of noise, behind a slider
HALF = "sgd, half the epochs"  # the control of Table 1
CHANGES = {"ser_change": "SER (error)", "auc_change": "AUC, shadow", "loss_auc_change": "AUC, loss"}


# ---- Rows of the table -----------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """What a claim says and what was found, both positive, in the claim's own unit."""

    entry: Evidence
    claimed: float
    found: float
    what: str


class View(NamedTuple):
    """The table through a filter."""

    entries: tuple[Evidence, ...]  # that pass it, in the table's order
    selected: Evidence | None  # the row that is shown in full; None where none passes
    counts: Mapping[str, Mapping[Verdict, int]]  # rows by document and verdict
    spans: tuple[Span, ...]  # of the rows about one number, in the table's order
    table: ClaimsTable  # all of it, and where it comes from


def view(
    table: ClaimsTable, document: str = EVERY, verdict: str = EVERY, text: str = "", row: str | None = None
) -> View:
    """Rows of a document ("paper", "thesis") with a verdict that contain all words of a text, whatever the case.

    `row` is selected if it passes, else the first that does.
    """
    check_option("document", document, [EVERY, *DOCUMENTS.values()])
    check_option("verdict", verdict, [EVERY, *map(str, Verdict)])

    def passes(one: Evidence) -> bool:
        claim = one.about
        searched = f"{one.id} {claim.says} {claim.place} {one.strength} {one.said} {claim.function}".lower()
        right = document in (EVERY, claim.document) and verdict in (EVERY, str(one.verdict))
        return right and all(word in searched for word in text.lower().split())

    entries = tuple(filter(passes, table.entries))
    counts = {
        name: Counter(one.verdict for one in entries if one.about.document == name) for name in DOCUMENTS.values()
    }
    chosen = next((entry for entry in entries if entry.id == row), next(iter(entries), None))
    spans = tuple(
        Span(entry, float(entry.measured[pair.claimed]), float(entry.measured[pair.found]), pair.what)
        for entry in entries
        if (pair := entry.about.pair)
    )
    return View(entries, chosen, counts, spans, table)


def rows_of(table: ClaimsTable, cell: str) -> list[Evidence]:
    """The rows that a cell of notebook 11 shows, such as "paper-print"; UsageError where it shows none."""
    found = [entry for entry in table.entries if entry.about.cell == f"11_claims#{cell}"]
    require(found, f"no claim is shown by the cell '11_claims#{cell}'")
    return found


# ---- Change the evidence ---------------------------------------------------------------------------------------------


class Turned(NamedTuple):
    """Claims P2, P5, P10 and P22 of a paper with other settings, by id."""

    evidence: Mapping[str, Evidence]
    times: Mapping[str, float]  # how many times as much as claimed or allowed was found
    claimed: float  # epsilon of one epoch, as the paper claims by zCDP
    epsilon: float  # and exactly (Gaussian DP, zero-out) if alpha were public with largest value 1
    delta: float


def turn(num_devices: int, z0: float, micro_batch: int, training: int, delta: float) -> Turned:
    """The same evidence functions as the table's, with N devices, z0, utterances that share a clip, n and delta."""
    printed = Mechanism.as_printed(1.0, z0, num_devices, micro_batch, alpha=Alpha.PUBLIC)
    found = (
        p2_noise_of_the_release(num_devices, z0, draws=DRAWS),
        p5_micro_batches(micro_batch, z=z0, delta=delta),
        p10_delta({"this corpus": training}, {"this corpus": delta}),
        p22_free_devices((1, num_devices), z0, delta, DRAWS, micro_batch=micro_batch),
    )
    evidence = {one.id: one for one in found}
    pairs = {name: (pair.found, pair.claimed) for name, one in evidence.items() if (pair := one.about.pair)}
    pairs["P22"] = "epsilon", "epsilon_with_fewest"  # whose claim is that both are the same
    times = {
        name: float(evidence[name].measured[a]) / float(evidence[name].measured[b]) for name, (a, b) in pairs.items()
    }
    claimed, true = claimed_epsilon(printed, 1, delta), true_epsilon(printed, 1, delta)
    return Turned(evidence, times, claimed, true, delta)


# ---- Table 1: what ``edp-lab reproduce table1`` measured -------------------------------------------------------------

Cell = Mapping[str, Any]  # as `edp_lab.reproduce.paper.table1` writes it


def table1_cells() -> list[dict[str, Any]]:
    """What was measured. UsageError: as `edp_lab.reproduce.results_io.rows`."""
    return results_io.rows(results_io.RESULTS / "table1.json", "edp-lab reproduce table1 --json")


def beyond(cells: Sequence[Cell]) -> tuple[int, int, int]:
    """Changes of eDP-SGD that have an interval; those beyond chance if each is tested alone, and all together."""
    private = [cell for cell in cells if cell["decay"] and cell["seeds"] > 1]
    told = [(cell[name]["low"], cell[name]["high"], cell["seeds"]) for cell in private for name in CHANGES]
    changes = [Change((low + high) / 2, (high - low) / 2, seeds) for low, high, seeds in told]
    return len(changes), sum(low > 0 or high < 0 for low, high, _ in told), sum(beyond_chance(changes))


def table1_in_words(cells: Sequence[Cell]) -> str:
    """The figure in four sentences: decay at equal epsilon, attacks, how many tests that are, epsilon."""

    def row(cell: Cell) -> tuple[str, str, str]:
        return cell["model"], cell["corpus"], cell["variant"]

    def fall(part: Sequence[Cell], change: str) -> int:
        return sum(cell[change]["high"] is not None and cell[change]["high"] < 0 for cell in part)

    private = [cell for cell in cells if cell["decay"]]
    still = {row(cell): cell["ser"]["mean"] for cell in private if cell["decay"] == "none"}
    falling = [cell for cell in private if cell["decay"] != "none"]
    lower = sum(cell["ser"]["mean"] < still[row(cell)] for cell in falling)
    several = [cell for cell in cells if cell["seeds"] > 1]
    private_fall, control_fall = (
        f"{fall(part, 'auc_change')} ({fall(part, 'loss_auc_change')}) of {len(part)}"
        for part in ([cell for cell in several if cell["decay"]], [cell for cell in several if cell["variant"] == HALF])
    )
    claimed, held = (
        [cell[name] for cell in private if cell["variant"] == "sound"] for name in ("log10_claimed", "epsilon")
    )
    tests, alone, together = beyond(cells)
    return (
        f"Decay, at equal ε: {lower} of {len(falling)} cells have a smaller error than without decay.\n"
        f"Shadow attack (loss attack) weaker than on SGD, beyond chance if each is tested alone: {private_fall} cells "
        f"of eDP-SGD, {control_fall} of SGD for half the epochs.\n"
        f"Of {tests} changes of eDP-SGD {alone} are beyond chance if each is tested alone, {together} if all are "
        f"tested together (Holm).\n"
        f"ε of the sound variant: {digits(10 ** min(claimed))} to {digits(10 ** max(claimed))} by the paper's account, "
        f"{at_most(min(held))} to {at_most(max(held))} by ours."
    )
