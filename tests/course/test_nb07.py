"""Notebook 07: measured runs are real runs, texts agree with mechanisms and accountants, and common mistakes are
recognised. The contract of all panels is in `test_contract`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binom

from edp_lab.course.nb07_train import panels
from edp_lab.course.nb07_train.exercises import EPOCHS, PAIRS
from edp_lab.course.nb07_train.panels import BASE, Grid, Point, explore, load_grid
from edp_lab.errors import UsageError
from edp_lab.jobs import RESULTS, read_kept
from edp_lab.privacy import gdp_epsilon
from edp_lab.training.config import TrainConfig
from tests.course.conftest import prediction
from tests.course.examples import Wrong, drawn
from tests.training.own_corpus import write_corpus

DELTA = 2e-4
KEPT = RESULTS / "tradeoff.json"


@pytest.fixture(scope="module")
def grid() -> Grid:
    return load_grid()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A run of two epochs on a corpus of 400 short commands."""
    path = write_corpus(tmp_path_factory.mktemp("corpus") / "commands.jsonl", 400)
    return replace(BASE, corpus=str(path), epochs=2, z0=0.01)


def test_each_run_of_the_grid_is_nearest_to_itself(grid: Grid) -> None:
    assert len({replace(point.config, epochs=8) for point in grid.points if point.method != "naive"}) == 42
    assert {"command", "machine", "versions"} <= set(grid.about)
    assert all(0 < p.ser < 1.2 and p.seconds > 0 for p in grid.points)
    unproven = {p.method for p in grid.points if p.guarantee.status == "none"}
    assert unproven == {"sgd", "printed"}
    assert {p.guarantee.status for p in grid.points if p.method not in unproven} == {"void: seed published"}
    for point in grid.points:
        if point.config.seed == 0 and point.method != "naive":
            method = "sound" if point.method == "dp" else point.method
            config = point.config
            found = explore(grid, method, point.micro_batch, config.z0, config.decay, config.epochs)
            assert (found.point, found.differs) == (point, {})
            assert point in found.others


def test_what_the_notebook_s_prose_says_of_the_runs_holds(grid: Grid) -> None:
    def at(method: str, m: int = 8, z0: float = 0.03) -> Point:
        return explore(grid, method, m, z0, "none", 8).point

    printed, sound, single = at("printed"), at("sound"), at("sound", 1)
    assert printed.ser > sound.ser > 2 * single.ser
    assert sound.epsilon == single.epsilon
    assert printed.guarantee.claimed_epsilon
    assert printed.epsilon / printed.guarantee.claimed_epsilon == pytest.approx(30, rel=0.05)  # type: ignore[operator]
    claim, _ = panels.epsilons(printed.guarantee)
    assert f">{claim.value}\N{EM SPACE}<" in panels.points_table([printed])
    rungs = [at("sound", m).ser for m in (8, 4, 2, 1)]
    assert rungs == sorted(rungs, reverse=True)
    assert [panels.epsilon(at(method, 1, 1.0).epsilon) for method in ("poisson", "sound")] == ["2.53", "13.3"]
    assert [panels.epsilon(at(method, 1, 0.1).epsilon) for method in ("poisson", "sound")] == ["918", "499"]
    assert binom.sf(18, 8 * 32, 64 / 2025) > sound.guarantee.delta > binom.sf(19, 8 * 32, 64 / 2025)
    assert (len(grid.points), {point.config.epochs for point in grid.points}) == (169, {1, 2, 4, 8})
    assert gdp_epsilon(math.sqrt(20 * 8), sound.guarantee.delta) > 100
    private = read_kept(RESULTS / "course_private.json", "outcome")["outcome"]
    assert (round(private["ser"], 2), round(private["guaranteed_epsilon"], 5)) == (0.08, 3)
    pace = {p.method: p.seconds / p.config.epochs for p in grid.points}
    assert pace["dp"] < 2 * pace["sgd"] < 10 * pace["sgd"] < pace["naive"]
    assert min(p.ser for p in grid.points if p.epsilon is not None and p.epsilon < 15) > 0.9
    by_setting: dict[TrainConfig, list[float]] = {}
    for point in grid.points:
        if point.config.epochs == 8:
            by_setting.setdefault(replace(point.config, seed=0), []).append(point.ser)
    repeated = [errors for errors in by_setting.values() if len(errors) == 3]
    assert len(repeated) == 3
    assert all(max(errors) - min(errors) < 0.06 for errors in repeated)


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    for content in ('{"runs": [{"config": {"corpus": "x"}}]}', KEPT.read_text().replace('"utterances"', '"sentences"')):
        (tmp_path / "grid.json").write_text(content)
        with pytest.raises(UsageError, match="is damaged or of another version"):
            load_grid(tmp_path / "grid.json")
    with pytest.raises(UsageError, match="is missing: restore it"):
        load_grid(tmp_path / "none.json")


def test_what_the_nearest_run_has_instead_and_the_cheaper_run_are_named(grid: Grid) -> None:
    found = explore(grid, "sound", 4, 0.02, "linear", 7)
    assert found.differs == {"z0": 0.03, "decay": "none", "epochs": 8}
    assert all(tile.unit.endswith(", nearest run") for tile in panels.tell_explored(found)[:2])
    assert {p.config.epochs for p in found.others} == {8}
    found = explore(grid, "printed", 8, 0.01, "none", 8)
    epsilons = [p.epsilon for p in grid.points if p.epsilon is not None and p.ser <= found.point.ser]
    assert found.cheaper.epsilon == min(epsilons) < 1e-3 * (found.point.epsilon or 0)
    assert f"{panels.setting(found.cheaper)} does at least as well, at ε = " in panels.tell_explored(found)[2]
    best = explore(grid, "sound", 1, found.cheaper.config.z0, found.cheaper.config.decay, found.cheaper.config.epochs)
    assert best.cheaper is best.point
    assert "no other run" in panels.tell_explored(best)[2]
    useless = explore(grid, "sound", 8, 0.3, "none", 4)  # another run is better by less than the effect of a seed
    assert panels.tell_explored(useless)[2].endswith("useless at any ε.")
    assert "the error without privacy" in panels.tell_explored(explore(grid, "sgd", 8, 0.01, "none", 8))[2]


def test_the_command_makes_the_run_of_the_ring(trained: Any, grid: Grid) -> None:
    panel = panels.Explorer(grid, replace(BASE, epochs=4))
    for method in ("sgd", "printed", "sound", "poisson"):
        for micro_batch in (8, 1):
            panel.set(method=method, micro_batch=micro_batch, decay="exponential")
            assert trained(panel.command.value) == panel.result.point.config


def test_runs_of_other_methods_fade(grid: Grid) -> None:
    found = explore(grid, "sound", 2, 0.03, "none", 8)
    families = {trace["name"]: trace for trace in panels.draw_runs(found)["data"]}
    bright = [p for p in found.others if (p.method, p.micro_batch) == ("sound", 2)]
    opacities = families["sound, m = 2 to 8"]["marker"]["opacity"]
    assert opacities.count(1.0) == len(bright) > 0
    assert set(opacities) == {1.0, 0.4}
    assert set(families["as printed"]["marker"]["opacity"]) == {0.4}


def test_run_adds_a_star_that_becomes_the_nearest_run(grid: Grid, small: TrainConfig) -> None:
    explorer = panels.Explorer(grid, replace(small, epochs=1))
    explorer.set(micro_batch=1, z0=0.2, decay="linear")
    explorer.run(wait=True)
    explorer.check()
    [point] = explorer.live
    assert explorer.result.point is point
    assert (point.method, point.config.z0, point.config.decay, point.config.epochs) == ("dp", 0.2, "linear", 1)
    stars = next(trace for trace in drawn(explorer)[0].data if trace.name == "yours")
    assert (list(stars.x), list(stars.y)) == ([point.epsilon], [point.ser])
    assert explorer.tiles.sentence.startswith(f"Your run has an SER of {point.ser:.2f}")
    assert f"SER {point.ser:.3f}" in explorer.words.value
    assert "The seed is published" in explorer.words.value
    assert "--sampling shuffle" in explorer.command.value
    explorer.set(method="sgd")
    explorer.run(wait=True)
    assert [p.method for p in explorer.live] == ["dp", "sgd"]
    assert [tile[1] for tile in explorer.tiles.tiles] == ["none", "none"]


@pytest.mark.parametrize("question", PAIRS)
def test_the_runs_of_a_pair_were_measured_and_err_alike(question: str) -> None:
    runs = [explore(load_grid(), *setting, EPOCHS) for setting in PAIRS[question]]
    assert [run.differs for run in runs] == [{}, {}]
    assert abs(runs[0].point.ser - runs[1].point.ser) < 0.03  # the effect of seeds
    epsilons = sorted(run.point.epsilon or math.inf for run in runs)
    assert epsilons[1] > 1.5 * epsilons[0]


chosen = partial(prediction, "07", "smaller")


def reported(epsilon: Callable[..., float], by: str = "validation_ser", score: str = "test_ser") -> Callable[..., Any]:
    """An answer: a score of the trial that is best by another score, and epsilon of all mus and the best trial's."""

    def report(trials: Sequence[dict[str, float]], delta: float) -> tuple[float, float]:
        best = min(trials, key=lambda trial: trial[by])
        return best[score], epsilon([trial["mu"] for trial in trials], best["mu"], partial(gdp_epsilon, delta=delta))

    return report


WRONG: dict[str, dict[str, Any]] = {
    "smaller": {
        "the printed run promises more": Wrong(chosen(*"BBA"), "you said B, but A: SER 0.58, ε 4,774; B: SER 0.61"),
        "a larger z0 is all that counts": chosen(*"AAA"),
        "sampling always helps": chosen(*"ABB"),
    },
    "noise": {
        "C on every rung": lambda z, clip, m, batch: z * clip * m / batch,
        "2C on every rung": lambda z, clip, m, batch: z * 2 * clip * m / batch,
        "divides by sentences, not micro-batches": lambda z, clip, m, batch: z * (1 + (m > 1)) * clip / batch,
        "the noise of the sum": lambda z, clip, m, batch: z * (1 + (m > 1)) * clip,
        "independent noises average out": lambda z, clip, m, batch: z * (1 + (m > 1)) * clip * math.sqrt(m / batch),
    },
    "report": {
        "pays for the winner only": reported(lambda mus, best, epsilon: epsilon(best)),
        "still picks by the test set": reported(lambda mus, _, epsilon: epsilon(math.hypot(*mus)), by="test_ser"),
        "adds the mus": reported(lambda mus, _, epsilon: epsilon(sum(mus))),
        "takes the largest mu": reported(lambda mus, _, epsilon: epsilon(max(mus))),
        "adds the epsilons": reported(lambda mus, _, epsilon: sum(map(epsilon, mus))),
        "reports the score it chose": reported(
            lambda mus, _, epsilon: epsilon(math.hypot(*mus)), score="validation_ser"
        ),
    },
}
