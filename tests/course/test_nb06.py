"""Notebook 06: measured runs are real runs, what panels say of them is what mechanisms and accountants say, and what
students get wrong is found. What holds for all panels is in `test_contract`."""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edp_lab.course.nb06_tradeoff import compute, panels
from edp_lab.course.nb06_tradeoff.compute import BASE, Grid, Point, explore, ladder, load_grid
from edp_lab.course.nb06_tradeoff.exercises import EPOCHS, PAIRS
from edp_lab.errors import UsageError
from edp_lab.privacy import gdp_epsilon
from edp_lab.reproduce.results_io import RESULTS
from edp_lab.training import TrainConfig
from tests.course.conftest import prediction
from tests.course.examples import Wrong, drawn
from tests.course.test_contract import assert_readable
from tests.training.own_corpus import write_corpus

DELTA = 2e-4
KEPT = RESULTS / "tradeoff.json"


@pytest.fixture(scope="module")
def grid() -> Grid:
    return load_grid()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """Two epochs on a corpus of 400 short commands."""
    path = write_corpus(tmp_path_factory.mktemp("corpus") / "commands.jsonl", 400)
    return replace(BASE, corpus=str(path), epochs=2, z0=0.01)


def test_each_run_of_the_grid_is_nearest_to_itself(grid: Grid) -> None:
    assert len({(point.config.seed, *sorted(map(str, point.setting.items()))) for point in grid.points}) == 43
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
            assert found.point is point
            assert found.differs == {}


def test_what_the_notebook_s_prose_says_of_the_runs_holds(grid: Grid) -> None:
    def at(method: str, m: int = 8, z0: float = 0.03, decay: str = "none") -> Point:
        return explore(grid, method, m, z0, decay, 8).point

    printed, sound, single = at("printed"), at("sound"), at("sound", 1)
    assert printed.ser > sound.ser > 2 * single.ser
    assert sound.epsilon == single.epsilon
    assert printed.guarantee.epsilon_claimed
    assert printed.epsilon / printed.guarantee.epsilon_claimed == pytest.approx(30, rel=0.05)  # type: ignore[operator]
    claim, _ = panels.epsilons(printed.guarantee)
    assert f">{claim.value}\N{EM SPACE}<" in panels.points_table([printed])
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


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    for content in ('{"runs": [{"config": {"corpus": "x"}}]}', KEPT.read_text().replace('"utterances"', '"sentences"')):
        (tmp_path / "grid.json").write_text(content)
        with pytest.raises(UsageError, match="is damaged or of another version"):
            load_grid(tmp_path / "grid.json")
    with pytest.raises(UsageError, match="is missing: restore it"):
        load_grid(tmp_path / "none.json")


def test_what_the_nearest_point_has_instead_is_said_and_the_cheaper_run_is_as_good(grid: Grid) -> None:
    found = explore(grid, "sound", 4, 0.02, "linear", 7)
    assert found.differs == {"z0": (0.02, 0.03), "decay": ("linear", "none"), "epochs": (7, 8)}
    assert [p.config.epochs for p in found.path] == [1, 2, 4, 8]
    assert {p.config.epochs for p in found.others} == {8}
    found = explore(grid, "printed", 8, 0.01, "none", 8)
    assert found.cheaper is not None
    assert found.cheaper.ser <= found.point.ser
    epsilons = [p.epsilon for p in grid.points if p.epsilon is not None and p.ser <= found.point.ser]
    assert found.cheaper.epsilon == min(epsilons) < 1e-3 * (found.point.epsilon or 0)
    *_, says = panels.tell_explored(found)
    assert f"{panels.told(found.cheaper)} does at least as well, at ε = " in says
    best = explore(grid, "sound", 1, found.cheaper.config.z0, found.cheaper.config.decay, found.cheaper.config.epochs)
    assert best.cheaper is best.point
    assert "no other measured run" in panels.tell_explored(best)[2]
    useless = explore(grid, "sound", 8, 0.3, "none", 4)  # another is better by less than a seed is worth
    assert (useless.point.ser > compute.USELESS, useless.cheaper) == (True, None)
    assert panels.tell_explored(useless)[2].endswith("of no use, whatever its ε.")
    assert explore(grid, "sgd", 8, 0.01, "none", 8).cheaper is None


@given(
    st.sampled_from([(1, 8), (2, 4), (4, 8), (8, 8), (3, 4)]),
    st.floats(0.05, 5),
    st.integers(1, 30),
    st.floats(0.1, 10),
)
def test_rungs_have_the_noise_of_theory_and_equal_noise_is_equal(
    sizes: tuple[int, int], z: float, epochs: int, clip_norm: float
) -> None:
    micro_batch, devices = sizes
    result = ladder(micro_batch, devices, 64, z, epochs, DELTA, clip_norm=clip_norm)
    assert result.chosen.micro_batch == micro_batch
    for rung in result.rungs:
        bound = (1 if rung.micro_batch == 1 else 2) * clip_norm
        assert rung.sensitivity == pytest.approx(bound)
        assert rung.micro_batches == math.ceil(64 / rung.micro_batch)
        assert rung.noise == pytest.approx(z * bound / rung.micro_batches)
        assert rung.equal_z * bound / rung.micro_batches == pytest.approx(result.chosen.noise)
        assert rung.epsilon == pytest.approx(gdp_epsilon(math.sqrt(epochs) / z, DELTA), rel=1e-9)
        assert rung.equal_epsilon == pytest.approx(gdp_epsilon(math.sqrt(epochs) / rung.equal_z, DELTA), rel=1e-9)
    assert result.printed_noise == pytest.approx(clip_norm * z / devices**1.5)


def test_decays_cost_more_from_the_same_z0_and_the_same_from_their_own(grid: Grid) -> None:
    steady, *others = curves = compute.decays(0.3, 0.2, 8, DELTA)
    assert steady.z0 == 0.3
    for decayed in others:
        assert decayed.epsilon[0] == steady.epsilon[0]
        assert (decayed.epsilon[1:] > steady.epsilon[1:]).all()
        assert decayed.z0 > 0.3
        assert gdp_epsilon(math.sqrt((decayed.noise**-2.0).sum()), DELTA) == pytest.approx(steady.epsilon[-1], rel=1e-5)
    assert_readable(panels.decay_figure(curves, grid, 8, DELTA))


def test_the_explorer_s_command_makes_the_very_run_in_a_folder_of_its_own(trained: Any, grid: Grid) -> None:
    panel = panels.Explorer(grid, replace(BASE, epochs=4))
    for method in ("sgd", "printed", "sound", "poisson"):
        for micro_batch in (8, 1):
            panel.set(method=method, micro_batch=micro_batch, decay="exponential")
            assert trained(panel.command.value) == panel.result.point.config
    commands = [panels.run_command(point.config) for point in grid.points if point.method != "naive"]
    folders = {shlex.split(command)[-1] for command in commands}
    assert len(folders) == len(commands)
    assert "runs/sound-m8-z0.03-8epochs-seed0" in folders


def test_what_has_not_the_method_of_the_chosen_run_fades(grid: Grid) -> None:
    found = explore(grid, "sound", 2, 0.03, "none", 8)
    families = {trace["name"]: trace for trace in panels.draw_runs(found)["data"]}
    bright = [p for p in found.others if (p.method, p.micro_batch) == ("sound", 2)]
    opacities = families["sound, m = 2 to 8"]["marker"]["opacity"]
    assert opacities.count(1.0) == len(bright) > 0
    assert set(opacities) == {1.0, 0.4}
    assert set(families["as printed"]["marker"]["opacity"]) == {0.4}


def test_the_slider_of_delta_stands_at_the_number_in_the_box() -> None:
    panel = panels.ladder(BASE, 0.00023063885)
    delta = panel.controls["delta"]
    assert delta.value == 0.000231
    assert "--delta 0.000231" in panel.command.value


@pytest.fixture
def live(grid: Grid, small: TrainConfig) -> panels.Live:
    return panels.Live(small, panels.Explorer(grid, replace(small, epochs=1)))


def test_a_run_becomes_a_star_and_says_what_holds(live: panels.Live) -> None:
    explorer = live._explorer
    explorer.set(micro_batch=1, z0=0.2, decay="linear")
    live.run(wait=True)
    live.check()
    [point] = live.points
    assert explorer.result.live == (point,)
    assert (point.method, point.config.z0, point.config.decay, point.config.epochs) == ("dp", 0.2, "linear", 1)
    stars = next(trace for trace in drawn(explorer)[0].data if trace.name == "trained below, epochs: 1")
    assert (list(stars.x), list(stars.y)) == ([point.epsilon], [point.ser])
    assert live.tiles.sentence.startswith(f"Run 1 has SER {point.ser:.2f} after ")
    assert f"SER {point.ser:.3f}" in live.words.value
    assert "the seed is published" in live.words.value
    assert "--sampling shuffle" in live.command.value
    explorer.set(method="sgd")
    live.run(wait=True)
    assert [p.method for p in explorer.live] == ["dp", "sgd"]
    assert live.tiles.tiles[1][1] == "no guarantee"


@pytest.mark.parametrize("question", PAIRS)
def test_the_runs_of_a_pair_were_measured_and_err_alike(question: str) -> None:
    runs = [explore(load_grid(), *setting, EPOCHS) for setting in PAIRS[question]]
    assert [run.differs for run in runs] == [{}, {}]
    assert abs(runs[0].point.ser - runs[1].point.ser) < 0.03  # what seeds do
    epsilons = sorted(run.point.epsilon or math.inf for run in runs)
    assert epsilons[1] > 1.5 * epsilons[0]


chosen = partial(prediction, "06", "smaller")


def reported(epsilon: Callable[..., float], by: str = "validation_ser", score: str = "test_ser") -> Callable[..., Any]:
    """A score of the trial that is best by another, and the epsilon of the mu that is made of all mus and the best."""

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
