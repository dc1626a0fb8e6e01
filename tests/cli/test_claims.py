"""``edp-lab claims`` as a person uses it: the committed ledger and a claim computed again."""

from __future__ import annotations

import json

import pytest

from edp_lab.reproduce import claims as study
from edp_lab.reproduce.claims import read_table, registry


def test_json_is_the_committed_ledger_and_nothing_else(cli):
    status, out, err = cli("claims", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == [entry.as_json() for entry in read_table().entries]


def test_all_claims_stand_in_a_table_that_fits_and_are_counted(cli):
    status, out, _ = cli("claims")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 120
    firsts = [(line.split() or [""])[0] for line in out.splitlines()]
    assert [first for first in firsts if first in registry()] == list(registry())
    assert f"{len(registry())} claims: " in out
    assert f"as committed ({read_table().date}" in out


@pytest.mark.parametrize("arguments", [["--only", "P2,T1"], ["--only", "T1", "--only", "P2"]])
def test_a_few_claims_are_shown_with_their_numbers(cli, arguments):
    _, out, _ = cli("claims", *arguments)
    first, second = out.index("P2  does not hold: measured (20,000 draws"), out.index("T1  does not hold: proven")
    assert first < second
    assert f"“{registry()['P2'].quote}”" in " ".join(out.split())  # a long line is broken
    assert "times_too_small" in out
    assert registry()["P2"].test in out
    assert registry()["T1"].cell in out
    assert "2 claims: does not hold 2; proven 1, measured 1" in " ".join(out.split())


def test_a_claim_is_computed_again_and_said_to_be(cli):
    status, out, err = cli("claims", "--run", "--only", "P22", "--json")
    assert status == 0
    [row] = json.loads(out)
    assert row["evidence"]["measured"]["epsilon"] > 100
    assert err.split()[:4] == ["P22", "does", "not", "hold"]
    assert "computed now" in cli("claims", "--run", "--only", "P22")[1]


def test_the_whole_ledger_is_written_with_where_it_comes_from(cli, monkeypatch, tmp_path):
    few = {name: registry()[name] for name in ("P2", "P10")}
    monkeypatch.setattr(study, "registry", lambda: few)
    status, _, _ = cli("claims", "--run", "--out", str(tmp_path / "claims.json"))
    assert status == 0
    ledger = read_table(tmp_path / "claims.json")
    assert [entry.id for entry in ledger.entries] == ["P2", "P10"]
    assert ledger.command == f"edp-lab claims --run --out {tmp_path / 'claims.json'}"
    assert ledger.versions["torch"]
    assert ledger.machine
