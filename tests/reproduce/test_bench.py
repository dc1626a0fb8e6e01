"""The benchmarks: who takes part and what is reported. The ratios themselves are for `edp-lab bench`."""

from types import SimpleNamespace

import pytest

from edp_lab.errors import UsageError
from edp_lab.reproduce.bench import contests
from edp_lab.reproduce.bench.contests import TRAIN, bench_accounting, bench_attacks, bench_start, race
from edp_lab.reproduce.bench.train_step import (
    NETWORKS,
    Contestant,
    Task,
    _encoder,
    _row,
    _turns,
    bench_scale,
    bench_steps,
    extrapolated,
)
from edp_lab.training import TrainConfig

FIELDS = {"model", "corpus", "method", "gpus", "processes", "seconds", "ratio_to_sgd", "ratio_spread", "peak_memory_mb"}


def task(**changes: object) -> Task:
    settings = {"corpus": "smart-home", "size": "small", "rounds": 2, "batch_size": 16, **changes}
    return Task(**settings)  # type: ignore[arg-type]


def test_sgd_comes_first_slow_methods_run_on_one_process_and_the_papers_figures_stand_beside():
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
    bert, turn = task(corpus="atis", model="bert"), {"number": 1, "seconds": 2.0, "sgd": 1.0, "steps": 9, "threads": 2}
    told = [_row(bert, Contestant(method, 1, 1), k, [turn], 1.0) for k, method in enumerate(("sgd", "edp-sgd"))]
    assert [(row["paper_ratio"], row["ratio_to_sgd"]) for row in told] == [(1.0, 1.0), (1.29, 2.0)]


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


def test_twenty_times_the_utterances_take_no_more_memory_to_train_on():
    small, large = bench_scale((2_000, 40_000), steps=2, size="small", threads=1)
    assert large["train_utterances"] == 20 * small["train_utterances"] == 18_000
    assert large["peak_memory_mb"] < small["peak_memory_mb"] + 60
    assert large["parameters"] == small["parameters"]
    assert large["allreduce_bytes"] == 4 * large["parameters"]


def test_an_epoch_on_eight_gpus_is_their_share_and_a_ring_around_them():
    row = {"share_seconds": 0.01, "allreduce_bytes": 20_000_000, "steps_per_epoch": 100}
    one, several = extrapolated(row)
    assert several["step_seconds"] == pytest.approx(0.01 + 1.75 * 20e6 / 1.25e9)
    assert one["epoch_seconds"] == pytest.approx(100 * (0.01 + 1.75 * 20e6 / 100e9))
    assert [guess["network"] for guess in (one, several)] == list(NETWORKS)
    assert not one["measured"]


def test_in_a_race_all_take_turns_the_slow_ones_two_and_who_is_absent_none():
    turns: list[tuple[str, int]] = []

    def absent(number: int) -> None:
        raise ImportError

    contestants = {name: lambda number, name=name: turns.append((name, number)) or number for name in "ab"}
    seconds, found = race({**contestants, "c": absent}, 3, lambda name, number: turns.append((name, -1)), slow=-1.0)
    assert turns == [("a", -1), ("a", 0), ("b", -1), ("b", 0), ("c", -1), ("a", -1), ("a", 1), ("b", -1), ("b", 1)]
    assert {name: len(own) for name, own in seconds.items()} == {"a": 2, "b": 2, "c": 0}
    assert (found["a"], type(found["c"])) == (1, ImportError)


def test_bench_names_every_contestant_and_the_epsilons_agree():
    """Ratios are for `edp-lab bench`; here only that the contest is about the same thing."""
    result = bench_accounting(repeats=1, epochs=10, distinct=4)
    for task in ("closed_form", "sampled"):
        assert result[task]["edp_lab"]["times_ours"] == 1
        epsilons = [row["epsilon"] for row in result[task].values() if row["epsilon"] is not None]
        assert max(epsilons) < 3 * min(epsilons)  # RDP is loose where so little is released
    assert result["renyi_distance"] < 1e-4
    assert result["distribution_distance"] < 1e-3


@pytest.fixture
def attacks(monkeypatch):
    """Stand-ins that take no time; the one-run audit refuses."""
    called = []
    result = SimpleNamespace(result=SimpleNamespace(auc=0.6, auc_interval=(0.5, 0.7)))

    def attack(name):
        return lambda *arguments, **options: called.append((name, options.get("size"))) or result

    def refuse(run):
        raise UsageError("no audit of this run")

    monkeypatch.setattr(contests, "load_target", lambda run: SimpleNamespace(config=TrainConfig("atis")))
    for name in ("attack_loss", "attack_shadow", "attack_lira"):
        monkeypatch.setattr(contests, name, attack(name))
    monkeypatch.setattr(contests, "_audited", refuse)
    monkeypatch.setattr(contests, "_drawn", lambda run: {"verdict": "consistent"})
    return called


def test_every_attack_is_a_row_and_the_suite_their_sum(attacks):
    rows = list(bench_attacks("run", shadows=4, size="small"))
    assert [row["attack"] for row in rows] == [
        "loss", "shadow", "audit one-run", "audit mechanism", contests.SUITE, "lira, 4 shadow models",
    ]  # fmt: skip
    assert all(row["config"]["corpus"] == "atis" for row in rows)
    assert rows[0]["found"] == {"auc": 0.6, "auc_interval": [0.5, 0.7]}
    assert rows[2]["found"] == {"refused": "no audit of this run"}
    assert rows[4]["seconds"] == pytest.approx(sum(row["seconds"] for row in rows[:4]))
    assert attacks == [("attack_loss", None), ("attack_shadow", None), ("attack_lira", "small")]
    assert list(bench_attacks("run", shadows=0))[-1]["attack"] == contests.SUITE


def test_a_command_is_timed_to_its_end_and_training_to_its_first_step():
    told, trained = bench_start(1, ("--help", TRAIN))
    assert (told["start"], trained["start"]) == ("--help", TRAIN)
    assert 0.1 < told["processor_seconds"] < trained["processor_seconds"] / 3
    assert told["seconds"] > 0.1
