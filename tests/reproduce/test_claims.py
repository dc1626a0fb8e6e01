"""The registry: every claim has a function, a cell and a test that exist; the committed ledger says what they say."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from edp_lab.course.nb10_phases.compute import SENTENCES
from edp_lab.errors import UsageError
from edp_lab.reproduce import claims
from edp_lab.reproduce.claim_quotes import QUOTES
from edp_lab.reproduce.claims import LEDGER, REGISTRY, Claim, Entry, compute, find, read_ledger
from edp_lab.reproduce.evidence import Verdict

ROOT = Path(__file__).parents[2]
NEEDS_CORPORA, TIMED = "P23", "P19"
QUICK = [name for name in REGISTRY if not REGISTRY[name].trains and name not in (NEEDS_CORPORA, TIMED)]
each_claim = pytest.mark.parametrize("claim", REGISTRY.values(), ids=lambda claim: claim.id)


@cache
def cells(notebook: str) -> dict[str, str]:
    """Source of every cell by id, of a notebook's source."""
    told = json.loads((ROOT / "notebooks" / "source" / f"{notebook}.ipynb").read_text(encoding="utf-8"))
    return {cell["id"]: "".join(cell["source"]) for cell in told["cells"]}


@cache
def functions(path: str) -> dict[str, str]:
    """Source of every test function of a file."""
    source = (ROOT / path).read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.unparse(node) for node in nodes if node.name.startswith("test_")}


def test_all_claims_of_both_documents_are_there_in_order() -> None:
    assert list(REGISTRY) == [*(f"P{k}" for k in range(1, 33)), *(f"T{k}" for k in range(1, 29))]
    assert list(QUOTES) == list(REGISTRY)


@each_claim
def test_the_cell_exists_and_shows_the_claim(claim: Claim) -> None:
    notebook, _, cell = claim.cell.partition("#")
    source = cells(notebook)[cell]
    if notebook == "11_claims":
        assert f'rows_of(found, "{cell}")' in source
    elif notebook == "10_three_phases":
        assert claim.evidence in SENTENCES
        assert "thesis_sentences()" in source
    else:
        assert f".{claim.evidence.__name__}(" in source


@each_claim
def test_the_test_exists_and_is_about_the_claim(claim: Claim) -> None:
    path, _, node = claim.test.partition("::")
    name, _, parameter = node.partition("[")
    assert "verdict" in functions(path)[name]
    assert parameter in ("", f"{claim.id}]")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert f'"{claim.id}"' in text or claim.evidence.__name__ in text


@each_claim
def test_a_pair_names_two_numbers_that_were_measured(claim: Claim) -> None:
    if claim.pair is not None:
        measured = next(entry for entry in read_ledger().entries if entry.id == claim.id).measured
        assert float(measured[claim.pair.claimed]) > 0
        assert float(measured[claim.pair.found]) > 0


# ---- The committed ledger


def test_the_committed_ledger_is_that_of_the_registry() -> None:
    told = json.loads(LEDGER.read_text(encoding="utf-8"))
    assert {"command", "date", "machine", "versions"} < told.keys()
    assert [entry.id for entry in read_ledger().entries] == list(REGISTRY)
    for entry in read_ledger().entries:
        claim = REGISTRY[entry.id]
        assert (entry.cell, entry.test, entry.function) == (claim.cell, claim.test, claim.function)
        assert entry.source.endswith(f": “{claim.quote}”")


@pytest.mark.parametrize("name", QUICK)
def test_evidence_computed_now_is_the_committed_one(name: str) -> None:
    committed = next(entry for entry in read_ledger().entries if entry.id == name)
    now = compute(REGISTRY[name])
    assert (now.claim, now.source, now.verdict) == (committed.claim, committed.source, committed.verdict)
    assert now.measured.keys() == committed.measured.keys()
    if now.measured.get("images") != committed.measured.get("images"):
        return  # MNIST is not at hand, and scikit-learn's digits give the same verdict
    for key, value in committed.measured.items():
        expected = pytest.approx(value, rel=1e-3) if isinstance(value, float) else value
        assert now.measured[key] == expected, key


def test_entries_travel_as_json_with_the_keys_that_are_promised() -> None:
    for entry in read_ledger().entries:
        row = json.loads(json.dumps(entry.as_json(), allow_nan=False))
        assert list(row) == ["id", "claim", "source", "verdict", "evidence", "cell", "test"]
        assert list(row["evidence"]) == ["function", "said", "measured", "seconds"]
        assert Entry.of_json(row) == entry


def test_a_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    ledger = replace(read_ledger(), command="edp-lab claims --run", date="2026-01-02")
    (tmp_path / "claims.json").write_text(ledger.as_json(), encoding="utf-8")
    assert read_ledger(tmp_path / "claims.json") == ledger


@pytest.mark.parametrize("text", ["", "{}", '{"entries": [{"id": "P1"}]}', "[]"])
def test_a_damaged_ledger_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "claims.json").write_text(text)
    with pytest.raises(UsageError, match="damaged") as refused:
        read_ledger(tmp_path / "claims.json")
    assert "\n" not in str(refused.value)


def test_a_missing_ledger_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="add --run"):
        read_ledger(tmp_path / "claims.json")


# ---- Finding and computing


def test_claims_are_found_in_the_ledgers_order() -> None:
    assert [claim.id for claim in find(["T3", "P10", "P2", "P2"])] == ["P2", "P10", "T3"]
    assert len(find()) == len(REGISTRY)
    with pytest.raises(UsageError, match="there is no claim 'P99': choose P1 to P32 or T1 to T28"):
        find(["P1", "P99"])


def test_what_takes_long_is_told_and_can_be_ended() -> None:
    class EndedError(Exception):
        pass

    def told(what: str) -> None:
        raise EndedError(what)

    with pytest.raises(EndedError, match="training: DP-SGD, seed 0"):
        compute(REGISTRY["P14"], told)
    with pytest.raises(EndedError):
        compute(REGISTRY["T25"], told)


def test_networks_of_the_thesis_go_with_their_folder() -> None:
    given: dict[str, Any] = dict(claims.inputs.lab(lambda what: None))
    folder = given["lab"].cells.parent
    assert folder.is_dir()
    given.clear()
    assert not folder.exists()


def test_a_verdict_is_of_the_measured_numbers_alone() -> None:
    """Handing them over without the function that measured them changes nothing."""
    for name in ("P1", "P10", "T12", "T27"):
        evidence = REGISTRY[name].evidence(**REGISTRY[name].inputs(lambda what: None))
        assert replace(evidence, measured=json.loads(json.dumps(dict(evidence.measured)))).verdict == evidence.verdict
        assert evidence.verdict in tuple(Verdict)
