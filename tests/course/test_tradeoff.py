"""Notebook 06: measured runs are real runs, and what panels say of them is what mechanisms and accountants say."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import edp_lab.training
from edp_lab.cli import app
from edp_lab.course.kit.old_panel import FigurePanel
from edp_lab.course.kit.panel_driver import move
from edp_lab.course.nb06_tradeoff import figures as tradeoff_figures
from edp_lab.course.nb06_tradeoff import panels as tradeoff_panels
from edp_lab.course.nb06_tradeoff import words as tradeoff_words
from edp_lab.course.nb06_tradeoff.compute import decays, explore, ladder, tuning
from edp_lab.course.nb06_tradeoff.grid import BASE, MARKS, Grid, Point, load_grid
from edp_lab.course.nb06_tradeoff.panels import ExplorerPanel, LivePanel
from edp_lab.errors import UsageError
from edp_lab.privacy import Adjacency, gdp_epsilon
from edp_lab.privacy.tuning import best_of_random
from edp_lab.training import TrainConfig

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "source" / "06_train_and_trade_off.ipynb"
DELTA = 2e-4


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


# ---- The nearest ---------------------------------------------------------------------------------------------------


def setting(point: Point) -> tuple[str, int, float, str, int]:
    method = "sound" if point.method == "dp" else point.method
    return method, point.micro_batch, point.config.z0, point.config.decay, point.config.epochs


def test_every_measured_point_is_nearest_to_itself(grid: Grid) -> None:
    for point in grid.points:
        if point.config.seed == 0 and point.method != "naive":
            found = explore(grid, *setting(point))
            assert found.point is point
            assert found.differs == {}


def test_what_the_nearest_point_has_instead_is_said(grid: Grid) -> None:
    found = explore(grid, "sound", 4, 0.02, "linear", 7)
    assert found.differs == {"z0": (0.02, 0.03), "decay": ("linear", "none"), "epochs": (7, 8)}
    text = tradeoff_words.explored_in_words(found)
    assert (
        "Nearest measured run (z0 = 0.02: measured 0.03; decay = linear: measured none; epochs = 7: measured 8)" in text
    )
    assert [p.config.epochs for p in found.path] == list(MARKS)
    assert {p.config.epochs for p in found.others} == {8}


def test_the_cheaper_run_is_as_good_and_the_cheapest(grid: Grid) -> None:
    found = explore(grid, "printed", 8, 0.01, "none", 8)
    cheaper = found.cheaper
    assert cheaper is not None
    assert cheaper.ser <= found.point.ser
    epsilons = [p.epsilon for p in grid.points if p.epsilon is not None and p.ser <= found.point.ser]
    assert cheaper.epsilon == min(epsilons) < 1e-3 * (found.point.epsilon or 0)
    assert explore(grid, "sgd", 8, 0.01, "none", 8).cheaper is None


def test_words_never_call_a_printed_or_seeded_run_private(grid: Grid) -> None:
    text = {
        m: tradeoff_words.explored_in_words(explore(grid, m, 8, 0.1, "none", 8)) for m in ("sgd", "printed", "sound")
    }
    assert "No guarantee" in text["sgd"]
    assert "<b>No guarantee</b>: α comes from private gradients" in text["printed"]
    assert "here it is void, for the seed is published" in text["sound"]
    poisson = tradeoff_words.explored_in_words(explore(grid, "poisson", 8, 1.0, "none", 8))
    assert "one utterance added or removed; Poisson sampling" in poisson
    for said in (text["printed"], text["sound"], poisson):
        assert "what this ε covers" in said


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"z0": 0.0}, "z0 is 0.0: the measured runs have noise"),
        ({"z0": math.nan}, "z0 is nan"),
        ({"method": "naive"}, "unknown method 'naive': choose sgd, printed, sound or poisson"),
        ({"micro_batch": 16}, "8 micro-batches of 16 do not fit"),
        ({"decay": "cubic"}, "unknown decay 'cubic'"),
        ({"epochs": 0}, "number of epochs is 0"),
    ],
)
def test_exploring_refuses_in_one_sentence(grid: Grid, change: dict[str, Any], says: str) -> None:
    good: dict[str, Any] = {"method": "sound", "micro_batch": 8, "z0": 0.1, "decay": "none", "epochs": 4}
    with pytest.raises(UsageError, match=says):
        explore(grid, **{**good, **change})


# ---- The ladder ----------------------------------------------------------------------------------------------------


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
    for rung in result.rungs:
        bound = (1 if rung.micro_batch == 1 else 2) * clip_norm
        assert rung.sensitivity == pytest.approx(bound)
        assert rung.micro_batches == math.ceil(64 / rung.micro_batch)
        assert rung.noise == pytest.approx(z * bound / rung.micro_batches)
        assert rung.equal_z * bound / rung.micro_batches == pytest.approx(result.chosen.noise)
        assert rung.epsilon == pytest.approx(gdp_epsilon(math.sqrt(epochs) / z, DELTA), rel=1e-9)
        assert rung.equal_epsilon == pytest.approx(gdp_epsilon(math.sqrt(epochs) / rung.equal_z, DELTA), rel=1e-9)
    assert result.printed_noise == pytest.approx(clip_norm * z / devices**1.5)


def test_single_utterances_feel_replace_one_and_shared_ones_do_not() -> None:
    zeroed, replaced = (ladder(8, 8, 64, 1.0, 8, DELTA, a) for a in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE))
    assert replaced.rungs[0].epsilon == pytest.approx(gdp_epsilon(2 * math.sqrt(8), DELTA))
    for before, after in zip(zeroed.rungs[1:], replaced.rungs[1:], strict=True):
        assert (before.epsilon, before.sensitivity) == (after.epsilon, after.sensitivity)
    assert replaced.rungs[0].sensitivity == 2 * zeroed.rungs[0].sensitivity


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"micro_batch": 16}, "micro-batches of 16: a batch of 64 on 8 devices has at most 8 utterances in each"),
        ({"micro_batch": 0}, "micro-batches of 0"),
        ({"num_devices": 64}, "64 devices for a batch of 64"),
        ({"adjacency": "ADD_OR_REMOVE_ONE"}, "there is no number for add/remove"),
        ({"delta": 0.0}, "delta"),
        ({"z": -1.0}, "noise multiplier z0 is -1.0"),
    ],
)
def test_the_ladder_refuses_in_one_sentence(change: dict[str, Any], says: str) -> None:
    good: dict[str, Any] = {
        "micro_batch": 8, "num_devices": 8, "batch_size": 64, "z": 1.0, "epochs": 8, "delta": DELTA
    }  # fmt: skip
    with pytest.raises(UsageError, match=says):
        ladder(**{**good, **change})


def test_a_ladder_without_noise_promises_nothing() -> None:
    result = ladder(8, 8, 64, 0.0, 8, DELTA)
    assert {rung.epsilon for rung in result.rungs} == {None}
    tradeoff_figures.update_ladder(tradeoff_figures.ladder_figure(result), result)
    assert "none" in tradeoff_words.ladder_in_words(result)


# ---- Decay and tuning ----------------------------------------------------------------------------------------------


def test_decays_cost_more_from_the_same_z0_and_the_same_from_their_own() -> None:
    steady, *others = decays(0.3, 0.2, 8, DELTA)
    assert steady.z0 == 0.3
    for decayed in others:
        assert decayed.epsilon[0] == steady.epsilon[0]
        assert (decayed.epsilon[1:] > steady.epsilon[1:]).all()
        assert decayed.z0 > 0.3
        assert gdp_epsilon(math.sqrt((decayed.noise**-2.0).sum()), DELTA) == pytest.approx(steady.epsilon[-1], rel=1e-5)


def test_tuning_is_priced_by_the_library() -> None:
    result = tuning(2.0, 4, 7, DELTA)
    assert result.trials[result.chosen] == 7
    assert result.published[result.chosen] == pytest.approx(gdp_epsilon(math.sqrt(7) * result.mu, DELTA))
    trial = BASE.mechanism()
    assert trial is not None
    schedule = replace(trial, z0=2.0).schedule({t: 1 for t in range(4)})
    assert result.random[result.chosen] == best_of_random(schedule, 7.0, DELTA)
    assert result.published[0] == pytest.approx(result.free)
    assert list(result.published) == sorted(result.published)
    assert result.random[0] is None


@pytest.mark.parametrize(
    ("change", "says"),
    [({"trials": 0}, "the number of trials is 0"), ({"trials": 10**6}, "from 1 to 1000"), ({"z0": 0.0}, "z0 is 0.0")],
)
def test_tuning_refuses_in_one_sentence(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tuning(**{"z0": 1.0, "epochs": 4, "trials": 5, "delta": DELTA, **change})


# ---- Panels --------------------------------------------------------------------------------------------------------


def make_explorer() -> FigurePanel:
    return ExplorerPanel(load_grid(), replace(BASE, z0=0.03, epochs=4))


def make_ladder() -> FigurePanel:
    return tradeoff_panels.ladder_panel(replace(BASE, z0=0.1), DELTA)


def make_tuning() -> FigurePanel:
    return tradeoff_panels.tuning_panel(1.0, 8, 20, DELTA)


FIGURES = {make_explorer: ("epsilon", "time"), make_ladder: ("noise", "ladder"), make_tuning: ("tuning",)}
OTHER = {
    make_explorer: {"method": "printed", "micro_batch": 2, "z0": 0.1, "decay": "exponential", "epochs": 8},
    make_ladder: {
        "micro_batch": 2, "num_devices": 4, "batch_size": 128, "z": 1.0, "epochs": 20, "delta": 1e-6,
        "adjacency": "REPLACE_ONE",
    },
    make_tuning: {"z0": 4.0, "epochs": 20, "trials": 100, "delta": 1e-6},
}  # fmt: skip
each_panel = pytest.mark.parametrize("make", FIGURES, ids=lambda make: make.__name__.removeprefix("make_"))


@each_panel
def test_every_control_changes_words_and_figures_and_reset_undoes_it(make: Any) -> None:
    panel = make()
    words, command = panel.words.value, panel.command.value
    pictures = [figure.to_json() for figure in panel.figures]
    assert set(OTHER[make]) == set(panel.controls)
    for name, value in OTHER[make].items():
        panel.set(**{name: value})
        assert panel.errors == [], name
        assert panel.words.value != words, name
        assert [figure.to_json() for figure in panel.figures] != pictures, name
        panel.reset()
    assert (panel.words.value, panel.command.value) == (words, command)


@each_panel
def test_updated_figure_is_the_one_drawn_anew(make: Any) -> None:
    panel = make()
    panel.set(**OTHER[make])
    for name, figure in zip(FIGURES[make], panel.figures, strict=True):
        drawn = getattr(tradeoff_figures, f"{name}_figure")(panel.result)
        assert json.loads(figure.to_json())["layout"] == json.loads(drawn.to_json())["layout"]
        for ours, anew in zip(figure.data, drawn.data, strict=True):
            ours, anew = (json.loads(go.Figure(trace).to_json())["data"][0] for trace in (ours, anew))
            assert {**ours, "uid": None} == {**anew, "uid": None}


def test_every_figure_names_its_axes_and_its_epsilon_and_needs_no_colour(grid: Grid) -> None:
    drawn = [tradeoff_figures.decay_figure(decays(0.3, 0.2, 8, DELTA), grid, 8, DELTA)]
    for figure in [*drawn, *(figure for make in FIGURES for figure in make().figures)]:
        assert all(axis.title.text for axis in [*figure.select_xaxes(), *figure.select_yaxes()])
        caption = figure.layout.title.subtitle.text
        assert "ε of each" in caption or ("δ = " in caption and "Gaussian DP" in caption)
        assert max(map(len, caption.split("<br>"))) <= 75
        shown = [trace for trace in figure.data if trace.showlegend is not False]
        looks = [(t.line.dash, t.marker.symbol, t.mode) for t in shown]
        assert len(set(looks)) == len(looks), caption


@each_panel
def test_every_slider_moves_without_a_fault(make: Any) -> None:
    panel = make()
    assert len(move(panel, 100)) == 100
    panel.check()


def account(line: str) -> dict[str, Any]:
    words = shlex.split(line)
    assert words[:2] == ["edp-lab", "account"]
    report = CliRunner().invoke(app, [*words[1:], "--json"])
    assert report.exit_code == 0, report.output
    return json.loads(report.stdout)


def test_the_ladder_s_commands_give_its_epsilons() -> None:
    panel = make_ladder()
    for values in (panel.values, OTHER[make_ladder]):
        panel.set(**values)
        chosen, single = map(account, panel.command.value.splitlines())
        assert chosen["holds"]["epsilon"] == pytest.approx(panel.result.chosen.epsilon, rel=1e-4)
        assert single["holds"]["epsilon"] == pytest.approx(panel.result.rungs[0].equal_epsilon, rel=1e-4)


def test_the_tuning_panel_s_command_prints_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    panel = make_tuning()
    paid, (line, account_line) = panel.result, panel.command.value.splitlines()
    python, flag, code = shlex.split(line)
    assert (python, flag) == ("python", "-c")
    exec(code, {})
    assert capsys.readouterr().out == f"{paid.free} {paid.published[paid.chosen]} {paid.random[paid.chosen]}\n"
    assert account(account_line)["holds"]["epsilon"] == pytest.approx(panel.result.free, rel=1e-4)


def test_the_explorer_s_command_makes_the_very_run(monkeypatch: pytest.MonkeyPatch, grid: Grid) -> None:
    class CallError(Exception):
        pass

    def caught(config: TrainConfig, out: Path, *_: Any) -> None:
        raise CallError(config)

    monkeypatch.setattr(edp_lab.training, "train", caught)
    panel = ExplorerPanel(grid, replace(BASE, epochs=4))
    for method in ("sgd", "printed", "sound", "poisson"):
        for micro_batch in (8, 1):
            panel.set(method=method, micro_batch=micro_batch, decay="exponential")
            result = CliRunner().invoke(app, shlex.split(panel.command.value)[1:])
            assert isinstance(result.exception, CallError), result.output
            assert result.exception.args == (panel.result.point.config,)


def test_every_setting_has_an_output_folder_of_its_own(grid: Grid) -> None:
    points = [point for point in grid.points if point.method != "naive"]
    folders = {shlex.split(tradeoff_words.command(point.config))[-1] for point in points}
    assert len(folders) == len(points)
    assert "runs/sound-m8-z0.03-8epochs-seed0" in folders


def test_sliders_of_delta_stand_at_the_number_in_the_box() -> None:
    for panel in (
        tradeoff_panels.ladder_panel(BASE, 0.00023063885),
        tradeoff_panels.tuning_panel(1.0, 8, 20, 0.00023063885),
    ):
        delta = panel.controls["delta"]
        assert delta.slider is not None
        assert (delta.value, delta.slider.value, panel.result.delta) == (0.000231, 0.000231, 0.000231)
        assert "--delta 0.000231" in panel.command.value


def test_bad_values_are_one_sentence_and_the_last_result_stays() -> None:
    panel = make_ladder()
    before = panel.result
    panel.set(num_devices=32)
    assert "micro-batches of 8: a batch of 64 on 32 devices has at most 2" in panel.error_box.value
    assert panel.result is before
    panel.reset()
    assert panel.error_box.value == ""
    panel.check()


# ---- One more run --------------------------------------------------------------------------------------------------


@pytest.fixture
def live(grid: Grid, small: TrainConfig) -> LivePanel:
    return LivePanel(small, ExplorerPanel(grid, replace(small, epochs=1)))


def test_a_run_becomes_a_star_in_both_pictures(live: LivePanel) -> None:
    explorer = live._explorer
    assert live.children[-1].children == ()  # no command before the first run
    explorer.set(micro_batch=1, z0=0.2, decay="linear")
    live.run(wait=True)
    live.check()
    assert live.children[-1].children[-1] is live.command
    [point] = live.points
    assert explorer.result.live == (point,)
    assert (point.method, point.config.z0, point.config.decay, point.config.epochs) == ("dp", 0.2, "linear", 1)
    for figure, value in zip(explorer.figures, (point.epsilon, point.seconds), strict=True):
        stars = next(trace for trace in figure.data if trace.name == "your runs")
        assert (list(stars.x), list(stars.y)) == ([value], [point.ser])
    assert f"SER {point.ser:.3f}" in live.words.value
    assert "the seed is published" in live.words.value
    assert "--sampling shuffle" in live.command.value
    explorer.set(method="sgd")
    live.run(wait=True)
    assert [p.method for p in explorer.live] == ["dp", "sgd"]
    assert "No guarantee" in live.words.value


def test_stop_before_the_first_epoch_draws_nothing(live: LivePanel, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = live.progress

    def press(done: int, of: int, text: str) -> None:
        progress(done, of, text)
        live.stop()

    monkeypatch.setattr(live, "progress", press)
    live.run(wait=True)
    live.check()
    assert (live.points, live._explorer.live) == ([], [])
    assert "Stopped before the first epoch" in live.words.value
    assert live.state.value == "stopped"


def test_settings_that_make_no_sense_start_nothing(live: LivePanel) -> None:
    live._explorer.controls["z0"].source.value = -1.0
    live.run(wait=True)
    assert "z0 is -1.0" in live.error_box.value
    assert live.points == []
