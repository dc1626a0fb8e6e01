"""The benchmark of steps: who takes part, what is reported. The ratios themselves are for `edp-lab bench`."""

from __future__ import annotations

import pytest

from edp_lab.errors import UsageError
from edp_lab.reproduce.bench.train_step import Contestant, Task, _encoder, _row, _turns, bench_steps

FIELDS = {"model", "corpus", "method", "gpus", "processes", "seconds", "ratio_to_sgd", "ratio_spread", "peak_memory_mb"}


def task(**changes: object) -> Task:
    settings = {"corpus": "smart-home", "size": "small", "rounds": 2, "batch_size": 16, **changes}
    return Task(**settings)  # type: ignore[arg-type]


def test_sgd_comes_first_and_slow_methods_run_on_one_process():
    everyone = task(methods=("opacus", "dp-sgd-naive", "dp-sgd", "edp-sgd", "sgd"), gpus=(1, 2, 8), processes=(1, 2))
    assert everyone.contestants(1) == [
        Contestant("sgd", 1, 1),
        *(Contestant("edp-sgd", gpus, 1) for gpus in (1, 2, 8)),
        *(Contestant(method, 1, 1) for method in ("dp-sgd-naive", "dp-sgd", "opacus")),
    ]
    assert everyone.contestants(2) == [
        Contestant("sgd", 2, 2),
        Contestant("edp-sgd", 2, 2),
        Contestant("edp-sgd", 8, 2),
        Contestant("dp-sgd", 2, 2),
    ]


@pytest.mark.parametrize("model", ["clc", "bert"])
def test_every_method_takes_a_step_in_every_round_and_sgd_one_beside_it(model, tmp_path):
    chosen = task(model=model, methods=("sgd", "edp-sgd", "dp-sgd", "dp-sgd-naive"), gpus=(2,))
    contestants, told = chosen.contestants(1), []
    encoder = _encoder(chosen, tmp_path) if model == "bert" else None
    _turns((chosen, contestants, encoder, False), told.append)
    turns = [(t["round"], t["number"]) for t in told]
    assert [number for number, _ in turns] == sorted(number for number, _ in turns)
    assert turns != sorted(turns)  # in no fixed order within a round
    assert {(r, k) for r in range(2) for k in range(1, len(contestants))} == set(turns)
    assert min(t[name] for t in told for name in ("seconds", "sgd")) > 0


def test_rows_on_two_processes_have_every_field():
    [row] = bench_steps(task(methods=("sgd",), processes=(2,)))
    assert (row["method"], row["processes"], row["ratio_to_sgd"], row["device"]) == ("sgd", 2, 1, "cpu")
    assert set(row) >= FIELDS
    assert row["peak_memory_mb"] > 50


def test_the_papers_figures_stand_beside_its_corpora():
    bert, first = task(corpus="atis", model="bert"), {"steps": 9, "threads": 2}
    told = [_row(bert, Contestant(method, 1, 1), [2.0], [1.0], first, 1.0) for method in ("sgd", "edp-sgd")]
    assert [row["paper_ratio"] for row in told] == [1.0, 1.29]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"methods": ("sgd", "adam")}, "unknown method 'adam'"),
        ({"methods": ("dp-sgd",)}, "add sgd"),
        ({"gpus": (0,)}, "--gpus must be"),
        ({"rounds": 0}, "--rounds must be"),
        ({"model": "gru"}, "unknown model 'gru'"),
        ({"gpus": (16,)}, "Algorithm 1 asks for fewer"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
    ],
)
def test_a_benchmark_without_meaning_is_refused(changes, says):
    with pytest.raises(UsageError, match=says):
        task(**changes)
