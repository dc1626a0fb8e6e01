"""Table 2: which methods are measured, and what is reported. The ratios themselves depend on the machine."""

import pytest

from edp_lab.errors import UsageError
from edp_lab.reproduce.table2 import Contestant, Task, _encoder, _row, table2, turns

FIELDS = {"model", "corpus", "method", "gpus", "processes", "seconds", "ratio_to_sgd", "ratio_spread", "peak_memory_mb"}


def task(**changes: object) -> Task:
    settings = {"corpus": "smart-home", "size": "small", "rounds": 2, "batch_size": 16, **changes}
    return Task(**settings)  # type: ignore[arg-type]


def test_sgd_comes_first_slow_methods_run_on_one_process_and_the_papers_figures_stand_beside():
    everyone = task(methods=("dp-sgd-naive", "dp-sgd", "edp-sgd", "sgd"), gpus=(1, 2, 8), processes=(1, 2))
    assert everyone.contestants(1) == [
        Contestant("sgd", 1, 1),
        *(Contestant("edp-sgd", gpus, 1) for gpus in (1, 2, 8)),
        *(Contestant(method, 1, 1) for method in ("dp-sgd-naive", "dp-sgd")),
    ]
    assert everyone.contestants(2) == [
        Contestant("sgd", 2, 2),
        Contestant("edp-sgd", 2, 2),
        Contestant("edp-sgd", 8, 2),
        Contestant("dp-sgd", 2, 2),
    ]
    bert, turn = task(corpus="atis", model="bert"), {"number": 1, "seconds": 2.0, "sgd": 1.0, "steps": 9, "threads": 2}
    told = [_row(bert, Contestant(method, 1, 1), k, [turn], 1.0) for k, method in enumerate(("sgd", "edp-sgd"))]
    assert [(row["paper_ratio"], row["ratio_to_sgd"]) for row in told] == [(1.0, 1.0), (1.29, 2.0)]


@pytest.mark.parametrize("model", ["clc", "bert"])
def test_every_method_takes_a_step_in_every_round_and_sgd_one_beside_it(model, tmp_path):
    chosen = task(model=model, methods=("sgd", "edp-sgd", "dp-sgd", "dp-sgd-naive"), gpus=(2,))
    contestants = chosen.contestants(1)
    encoder = _encoder(chosen, tmp_path) if model == "bert" else None
    told = list(turns(chosen, contestants, encoder, memory=False))
    places = [(t["round"], t["number"]) for t in told]
    assert [number for number, _ in places] == sorted(number for number, _ in places)
    assert places != sorted(places)  # random order within a round
    assert {(r, k) for r in range(2) for k in range(1, len(contestants))} == set(places)
    assert min(t[name] for t in told for name in ("seconds", "sgd")) > 0


def test_rows_on_two_processes_have_every_field():
    [row] = table2(task(methods=("sgd",), processes=(2,)))
    assert (row["method"], row["processes"], row["ratio_to_sgd"], row["device"]) == ("sgd", 2, 1, "cpu")
    assert set(row) >= FIELDS
    assert row["peak_memory_mb"] > 50


def test_a_process_that_dies_ends_the_benchmark_in_one_sentence(monkeypatch):
    monkeypatch.setattr("edp_lab.reproduce.table2.load_corpus", lambda name: None)
    with pytest.raises(UsageError, match="died with status 1"):
        table2(task(corpus="/nowhere/at/all.jsonl"))
