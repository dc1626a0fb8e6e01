"""The runs behind notebook 06: what ships was measured as planned, and measuring makes real runs."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from edp_lab.course.nb06_tradeoff import grid as tradeoff_grid
from edp_lab.course.nb06_tradeoff.compute import explore
from edp_lab.course.nb06_tradeoff.grid import BASE, MARKS, Grid, Point, configured, load_grid, measure, plan
from edp_lab.errors import UsageError
from edp_lab.privacy import judge
from edp_lab.training import TrainConfig, train


@pytest.fixture(scope="module")
def grid() -> Grid:
    return load_grid()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """Two epochs on a corpus of 400 short commands."""
    rows = [
        {"tokens": ["call", f"n{k % 40}", str(k)], "tags": ["O", "B-x", "O"], "intent": "ab"[k % 2]} for k in range(400)
    ]
    path = tmp_path_factory.mktemp("corpus") / "commands.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return replace(BASE, corpus=str(path), epochs=2, z0=0.01)


def test_the_grid_holds_every_run_of_the_plan_after_each_mark(grid: Grid) -> None:
    planned = {replace(run, epochs=mark) for run in plan() for mark in MARKS if mark <= run.epochs}
    assert len(plan()) == 43
    assert {point.config for point in grid.points} == planned
    assert len(grid.points) == len(planned)
    assert {"command", "machine", "versions"} <= set(grid.about)
    assert all(0 < p.ser < 1.2 and p.seconds > 0 for p in grid.points)


def test_every_epsilon_is_the_judge_s(grid: Grid) -> None:
    for point in grid.after(8):
        found = judge(point.config.mechanism(point.utterances), 8, point.utterances**-1.1)
        assert point.guarantee == found
        assert point.epsilon == found.epsilon_if_alpha_public
        assert found.status == ("none" if point.method in ("sgd", "printed") else "void: seed published")


def test_what_the_notebook_s_prose_says_of_the_runs_holds(grid: Grid) -> None:
    def at(method: str, m: int = 8, z0: float = 0.03, decay: str = "none") -> Point:
        return explore(grid, method, m, z0, decay, 8).point

    printed, sound, single = at("printed"), at("sound"), at("sound", 1)
    assert printed.ser > sound.ser > 2 * single.ser
    assert sound.epsilon == single.epsilon
    assert printed.guarantee.epsilon_claimed
    assert printed.epsilon / printed.guarantee.epsilon_claimed == pytest.approx(30, rel=0.05)  # type: ignore[operator]
    rungs = [at("sound", m).ser for m in (8, 4, 2, 1)]
    assert rungs == sorted(rungs, reverse=True)
    decayed, steady = at("sound", 1, 0.3, "exponential"), at("sound", 1, 0.1)
    assert decayed.epsilon < steady.epsilon  # type: ignore[operator]
    assert decayed.ser > steady.ser
    pace = {p.method: p.seconds / p.config.epochs for p in grid.points}
    assert pace["dp"] < 2 * pace["sgd"] < 10 * pace["sgd"] < pace["naive"]
    assert min(p.ser for p in grid.points if p.epsilon is not None and p.epsilon < 15) > 0.9
    spreads = [max(sers) - min(sers) for p in grid.after(8) if len(sers := [q.ser for q in grid.seeds(p)]) > 1]
    assert max(spreads) < 0.06


def test_measuring_is_taken_up_where_it_was_left(small: TrainConfig, tmp_path: Path) -> None:
    path, said = tmp_path / "runs" / "grid.json", []
    runs = [configured(small, method, 1, 0.05, "none", 2) for method in ("sgd", "sound")]
    first = measure(path, runs[:1])
    assert [p.config for p in first.points] == [replace(runs[0], epochs=k) for k in (1, 2)]
    both = measure(path, runs, said.append)
    assert said == ["run 2 of 2: DP-SGD, disjoint batches", "timing"]
    assert [p.method for p in both.points] == ["sgd", "sgd", "dp", "dp"]
    before = path.read_bytes()
    measure(path, runs, said.append)
    assert (said[2:], path.read_bytes()) == ([], before)
    assert all(math.isfinite(p.seconds) and p.seconds > 0 for p in both.points)


def test_a_measured_point_is_the_run_that_its_command_makes(small: TrainConfig, tmp_path: Path) -> None:
    run = configured(small, "sound", 8, 0.01, "linear", 2)
    for point in measure(tmp_path / "grid.json", [run]).points:
        record = train(point.config, tmp_path / str(point.config.epochs))
        assert round(record["final"]["ser"], 4) == point.ser
        assert record["final"]["epsilon"] == point.guarantee.epsilon
        assert tradeoff_grid.live_point(run, record).config == point.config


def test_stopped_measuring_keeps_whole_runs_only(small: TrainConfig, tmp_path: Path) -> None:
    path, stop = tmp_path / "grid.json", threading.Event()
    runs = [configured(small, "sound", m, 0.05, "none", 2) for m in (1, 8)]

    def say(text: str) -> None:
        if text.startswith("run 2"):
            stop.set()

    assert [p.micro_batch for p in measure(path, runs, say, stop).points] == [1, 1]


def test_a_grid_that_is_missing_or_damaged_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is missing: restore it"):
        load_grid(tmp_path / "none.json")
    (tmp_path / "old.json").write_text('{"runs": [{"config": {"corpus": "x"}}]}')
    with pytest.raises(UsageError, match="is damaged or of another version"):
        load_grid(tmp_path / "old.json")


@pytest.mark.parametrize(
    ("method", "micro_batch", "expected"),
    [
        ("sgd", 8, ("sgd", None, False)),
        ("printed", 8, ("edp-sgd", None, True)),
        ("sound", 4, ("edp-sgd", 4, False)),
        ("sound", 1, ("dp-sgd", None, False)),
        ("poisson", 8, ("dp-sgd", None, False)),
    ],
)
def test_settings_become_runs(method: str, micro_batch: int, expected: tuple[str, int | None, bool]) -> None:
    config = configured(replace(BASE, clip_norm=0.5, seed=3), method, micro_batch, 0.2, "linear", 3)
    assert (config.method, config.micro_batch_size, config.as_printed) == expected
    assert (config.poisson, config.epochs, config.seed) == (method == "poisson", 3, 3)
    if method != "sgd":
        assert (config.z0, config.decay, config.clip_norm) == (0.2, "linear", 0.5)
