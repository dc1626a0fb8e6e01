"""The benchmark of attacks: each is timed, one that refuses a run is a row and no end, and the suite is their sum."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edp_lab.errors import UsageError
from edp_lab.reproduce.bench import contests as bench


@pytest.fixture
def attacks(monkeypatch):
    """Stand-ins that take no time; the one-run audit refuses."""
    called = []
    result = SimpleNamespace(result=SimpleNamespace(auc=0.6, auc_interval=(0.5, 0.7)))

    def attack(name):
        return lambda *arguments, **options: called.append((name, options.get("size"))) or result

    def refuse(run):
        raise UsageError("no audit of this run")

    monkeypatch.setattr(bench, "load_target", lambda run: None)
    for name in ("attack_loss", "attack_shadow", "attack_lira"):
        monkeypatch.setattr(bench, name, attack(name))
    monkeypatch.setattr(bench, "_audited", refuse)
    monkeypatch.setattr(bench, "_drawn", lambda run: {"verdict": "consistent"})
    return called


def test_every_attack_is_a_row_and_the_suite_their_sum(attacks):
    rows = list(bench.bench_attacks("run", shadows=4, size="small"))
    assert [row["attack"] for row in rows] == [
        "loss", "shadow", "audit one-run", "audit mechanism", bench.SUITE, "lira, 4 shadow models",
    ]  # fmt: skip
    assert rows[0]["found"] == {"auc": 0.6, "auc_interval": [0.5, 0.7]}
    assert rows[2]["found"] == {"refused": "no audit of this run"}
    assert rows[4]["seconds"] == pytest.approx(sum(row["seconds"] for row in rows[:4]))
    assert attacks == [("attack_loss", None), ("attack_shadow", None), ("attack_lira", "small")]


def test_without_shadow_models_lira_is_left_out(attacks):
    assert list(bench.bench_attacks("run", shadows=0))[-1]["attack"] == bench.SUITE


def test_a_run_that_is_none_is_refused_before_anything_is_timed(tmp_path):
    with pytest.raises(UsageError, match="holds no run"):
        next(bench.bench_attacks(tmp_path))
