"""Notebook 11: what its panels show is the ledger, and verdicts follow whatever numbers the sliders give."""

import json
import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from edp_lab.course.publish.build import read_source
from typer.testing import CliRunner

from edp_lab.cli import app
from edp_lab.course.nb11_claims import compute, panels
from edp_lab.errors import UsageError
from edp_lab.reproduce import claims
from edp_lab.reproduce.claims import Verdict, read_table, registry
from tests.course.conftest import prediction
from tests.course.examples import Wrong, drawn

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "source" / "11_claims.ipynb"
PAPER = {"num_devices": 8, "z0": 1.0, "micro_batch": 8, "training": 2641, "delta": 5e-4}
OTHERS = {"num_devices": 1, "z0": 0.5, "micro_batch": 1, "training": 100_000, "delta": 1e-7}
FOUND = read_table()


def test_a_filter_lets_pass_what_it_says_and_without_one_all_rows_are_there() -> None:
    view = compute.view(FOUND)
    assert view.entries == FOUND.entries
    assert view.selected is FOUND.entries[0]
    assert sum(sum(counts.values()) for counts in view.counts.values()) == len(registry())
    spans = {span.entry.id: span for span in view.spans}
    assert list(spans) == [name for name, claim in registry().items() if claim.pair is not None]
    assert (spans["T1"].claimed, spans["T1"].found) == pytest.approx((2.5, 1287), abs=0.5)
    for document, letter in (("paper", "P"), ("thesis", "T")):
        assert {entry.id[0] for entry in compute.view(FOUND, document).entries} == {letter}
    failed = compute.view(FOUND, verdict="does not hold").entries
    assert {entry.verdict for entry in failed} == {Verdict.FAILS}
    for text, ids in (("Gpus FREE", ["P22"]), ("api_attacks", ["T24"])):
        assert [entry.id for entry in compute.view(FOUND, text=text).entries] == ids
    for document, selected in (("all", "T3"), ("paper", "P1")):
        assert compute.view(FOUND, document, row="T3").selected.id == selected  # type: ignore[union-attr]
    nothing = compute.view(FOUND, text="no such words anywhere")
    assert (nothing.entries, nothing.selected, nothing.spans) == ((), None, ())


@pytest.fixture
def rows() -> panels.Ledger:
    return panels.Ledger(FOUND)


def test_the_list_follows_the_filter_and_the_words_follow_the_list(rows: panels.Ledger) -> None:
    assert rows.result.selected.id == rows.controls["row"].value == "P2"
    rows.controls["verdict"].value = "not testable here"
    shown = [entry.id for entry in FOUND.entries if entry.verdict is Verdict.UNTESTABLE]
    assert [name for _, name in rows.controls["row"].options] == shown
    assert rows.controls["row"].value == rows.result.selected.id == shown[0]
    assert FOUND.entries[0].about.says not in rows.words.value
    rows.controls["row"].value = shown[-1]
    assert f"<b>{shown[-1]}</b>" in rows.words.value
    rows.set(text="xyz")
    assert rows.result.selected is None
    assert "No claim passes" in rows.tiles.sentence
    rows.reset()
    assert rows.result.selected.id == "P2"
    assert len(rows.controls["row"].options) == len(registry())
    rows.check()


def test_a_filter_and_a_row_are_set_together_whatever_was_before(rows: panels.Ledger) -> None:
    rows.set(document="thesis", row="T9")
    rows.set(row="P22", document="paper", text="GPU")
    assert rows.result.selected.id == "P22"
    with pytest.raises(UsageError, match="claim 'T9' does not pass the filter"):
        rows.set(row="T9")


def test_the_selected_claim_is_shown_with_all_that_its_verdict_rests_on(rows: panels.Ledger) -> None:
    for name in registry():
        rows.controls["row"].value = name
        entry = rows.result.selected
        for text in (str(entry.verdict), entry.about.function, entry.about.cell, entry.about.test):
            assert text in rows.words.value
        assert rows.words.value.count("<tr>") == len(entry.measured)
    rows.check()
    rows.set(document="thesis", verdict="does not hold", row="T12")
    one, several = (shlex.split(line)[1:] for line in rows.command.value.splitlines())
    said = CliRunner().invoke(app, one).stdout
    assert "T12  does not hold" in said
    told = json.loads(CliRunner().invoke(app, several).stdout)
    assert [row["id"] for row in told] == [entry.id for entry in rows.result.entries]


def test_counts_and_spans_are_drawn_from_the_rows_that_pass(rows: panels.Ledger) -> None:
    rows.set(document="paper")
    spans, counts = drawn(rows)
    for bar in counts.data:
        of_paper = sum(str(entry.verdict) == bar.name for entry in rows.result.entries)
        assert dict(zip(bar.y, bar.x, strict=True)) == {"paper": of_paper, "thesis": 0}
    _, *marks, ring = spans.data
    seen = {name: (times, mark.name) for mark in marks for name, times in zip(mark.y, mark.x, strict=True)}
    assert seen == {
        f"{span.entry.id}  {span.what}": (span.found / span.claimed, str(span.entry.verdict))
        for span in rows.result.spans
    }
    assert ring.y == ("P2  noise",)
    rows.set(row="P4")  # which is not about one number
    assert list(drawn(rows)[0].data[-1].y) == []
    assert [tile[1] for tile in rows.tiles.tiles] == ["P4", "does not hold"]
    rows.set(row="P10")
    assert [tile[1] for tile in rows.tiles.tiles] == ["0.1", "22.5"]


def test_run_computes_the_selected_claim_and_compares(rows: panels.Ledger) -> None:
    again = panels.Again(rows)
    rows.controls["row"].value = "P10"
    assert again.chosen.value == "claim P10"
    assert again.command.value == "edp-lab claims --run --only P10"
    again.run(wait=True)
    again.check()
    assert again.entry is not None
    assert again.entry.id == "P10"
    assert [tile[1] for tile in again.tiles.tiles] == ["does not hold"] * 2
    assert again.tiles.sentence == "Every number is as in the ledger."
    rows.set(text="xyz")
    again.run(wait=True)
    assert "no claim is selected" in again.error_box.value


def test_a_verdict_that_has_changed_is_said() -> None:
    entry = next(entry for entry in FOUND.entries if entry.id == "P10")
    other = replace(entry, measured={**entry.measured, "largest": 0.01})
    before, now, told = panels.tell_again(entry, other)
    assert (before.value, now.value) == ("does not hold", "holds")
    assert told == f"1 of {len(entry.measured)} numbers differs from the ledger: largest."


def test_stop_ends_it_at_the_next_network(rows: panels.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    again = panels.Again(rows)

    def compute(claim: Any, told: Any) -> Any:
        told("training: one")
        again.stop()
        told("training: another")
        pytest.fail("went on")

    monkeypatch.setattr(panels.claims, "compute", compute)
    again.run(wait=True)
    assert again.entry is None
    assert "Stopped" in again.words.value
    again.check()


def test_the_papers_settings_have_the_ledgers_verdicts_and_four_claims_hold_with_others() -> None:
    committed = {entry.id: entry.verdict for entry in FOUND.entries}
    for name, evidence in compute.turn(**PAPER).evidence.items():
        assert evidence.verdict == committed[name]
    turned = compute.turn(**OTHERS)
    assert {evidence.verdict for evidence in turned.evidence.values()} == {Verdict.HOLDS}
    assert turned.times["P22"] == 1
    assert turned.evidence["P22"].measured["epsilon"] == pytest.approx(turned.epsilon)  # of the same micro-batches
    assert max(turned.times.values()) < 1.05
    sentence = panels.tell_turned(compute.turn(**{**PAPER, "micro_batch": 1}))[2]
    assert sentence == "1 of the 4 claims holds as stated: P5."


def test_everything_in_full_mode_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def compute(claim: claims.Claim) -> claims.Evidence:
        asked.append(claim.id)
        return next(entry for entry in FOUND.entries if entry.id == claim.id)

    monkeypatch.setattr(claims, "compute", compute)
    [cell] = [cell for cell in read_source(NOTEBOOK).cells if "claims.compute" in cell.source]
    exec(cell.source, {"found": FOUND, "claims": claims, "mode": "full"})
    assert asked == list(registry())


Changes = list[tuple[float, float]]


def judged(falls: Callable[[float, float], bool], partly: bool = True) -> Callable[[Changes], str]:
    """A verdict by whether a change, of this mean and half-width, `falls`."""

    def verdict(changes: Changes) -> str:
        hits = [falls(*change) for change in changes]
        return "holds" if all(hits) else "holds under conditions" if partly and any(hits) else "does not hold"

    return verdict


guess = partial(prediction, "11", "predict")
WRONG: dict[str, dict[str, Any]] = {
    "verdict": {
        "takes every fall for one beyond chance": Wrong(judged(lambda mean, half: mean < 0), "counts every fall"),
        "takes a rise beyond chance for a fall": Wrong(
            judged(lambda mean, half: abs(mean) > half), "takes a rise beyond chance for a fall"
        ),
        "looks at the wrong end of the interval": Wrong(
            judged(lambda mean, half: mean - half < 0), "yours is 'holds', it should be 'holds under conditions'."
        ),
        "forgets that some may": judged(lambda mean, half: mean + half < 0, partly=False),
        "answers true or false": lambda changes: all(mean + half < 0 for mean, half in changes),
    },
    "noise": {
        "divides by N once more": lambda n, c, z: c * z / n**2,
        "forgets the mean": Wrong(lambda n, c, z: c * z / math.sqrt(n), "with N = "),
        "takes variances for deviations": lambda n, c, z: (c * z / n) ** 2 / n,
        "leaves out the clip norm": lambda n, c, z: z / n**1.5,
    },
    "predict": {
        "the claim sees the GPUs": guess("rises", "rises", "rises", "stays"),
        "larger micro-batches go on costing": guess("rises", "stays", "rises", "rises"),
        "averages out": guess("falls", "stays", "stays", "stays"),
    },
}
