"""Notebook 02: what its panels draw and say is what clip, noise, optimizers and accountants give."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from typer.testing import CliRunner

from edp_lab.cli import app
from edp_lab.course.kit.old_panel import FigurePanel
from edp_lab.course.kit.panel_driver import move
from edp_lab.course.nb02_dp_sgd import compute as dpsgd
from edp_lab.course.nb02_dp_sgd import figures as dpsgd_figures
from edp_lab.course.nb02_dp_sgd import panels as dpsgd_panels
from edp_lab.course.nb02_dp_sgd import two_weights as dpsgd_training
from edp_lab.course.nb02_dp_sgd import words as dpsgd_words
from edp_lab.course.nb02_dp_sgd.compute import CLIPS, DELTA, cloud, denominators, per_example
from edp_lab.course.nb02_dp_sgd.two_weights import PEOPLE, STEPS, training, tuned
from edp_lab.course.publish.build import read_source
from edp_lab.course.publish.runner import notebook_parameters
from edp_lab.errors import UsageError
from edp_lab.privacy import Mechanism, gdp_epsilon
from edp_lab.privacy.csprng import key_from_seed
from edp_lab.training import TrainConfig
from edp_lab.training.dp_step import release
from edp_lab.training.gradients import Layout, StackedGradients
from edp_lab.training.noise import Share, standard_noise

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "source" / "02_dp_sgd.ipynb"
relaxed = settings(deadline=None, max_examples=50)  # others share the machine
PLAIN = TrainConfig("smart-home", method="sgd", size="small", lr=0.02)
BASE: dict[str, Any] = {
    "clip_norm": 1.0, "z": 2.0, "batch_size": 20, "optimizer": "sgd", "lr": 1.0, "sampling": "poisson", "seed": 0
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def trained(**change: Any) -> dpsgd_training.Training:
    return training(**{**BASE, **change})


# ---- The gradients of a batch --------------------------------------------------------------------------------------


def test_book_keeping_gives_the_norms_of_a_loop_and_of_every_cut_of_the_batch() -> None:
    found = per_example(PLAIN, epochs=0)
    assert found.disagreement < 1e-5
    assert {size: len(norms) for size, norms in found.norms.items()} == {1: 64, 4: 16, 16: 4, 64: 1}
    longest = [norms.max() for norms in found.norms.values()]
    assert longest == sorted(longest, reverse=True)  # a mean is no longer than the longest of its parts
    assert found.seconds[dpsgd.LOOP] > found.seconds[dpsgd.BOOKS]
    text = dpsgd_words.ways(found)
    assert "one pass per example" in text
    assert "1.0 times as fast" in text
    figure = dpsgd_figures.norms_figure(found, 1.0)
    assert [len(trace.x) for trace in figure.data] == [64, 16, 4, 1]
    assert "no guarantee" in figure.layout.title.subtitle.text


# ---- Clipping as geometry ------------------------------------------------------------------------------------------


def test_a_cloud_clipped_by_norm_is_what_the_private_step_releases() -> None:
    result = cloud(0.7, 1.3, 40, 0.2, "by norm", seed=3)
    layout = Layout(("w",), (torch.Size([2]),), (slice(0, 2),))
    noise = standard_noise(key_from_seed(3), 0, 2, Share(), torch.float64)
    rows, mechanism = StackedGradients(torch.from_numpy(result.gradients), layout), Mechanism.sound(0.7, 1.3, 1, 1)
    released = release(mechanism, 0, rows, layout, None, noise, divisor=40)
    assert result.released == pytest.approx(released.gradient.numpy(), rel=1e-4)
    assert result.noise_std == pytest.approx(mechanism.noise_std(0) / 40)
    assert result.shortened == int((released.clip_factors < 1 - 1e-4).sum())


@relaxed
@given(st.sampled_from(["by norm", "by value", "normalising"]), st.floats(0.05, 20), st.integers(0, 39))
def test_one_example_moves_the_sum_by_no_more_than_the_sensitivity(rule: str, clip_norm: float, out: int) -> None:
    result = cloud(clip_norm, 1.0, 40, 0.3, rule, seed=1)
    assert np.linalg.norm(result.clipped[out]) <= result.sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("rule", ["by norm", "by value", "normalising"])
def test_curves_are_the_clouds_of_other_thresholds(rule: str) -> None:
    result = cloud(1.0, 2.0, 60, 0.1, rule, seed=0)
    for place in (0, 20, 39):
        other = cloud(float(CLIPS[place]), 2.0, 60, 0.1, rule, seed=0)
        assert result.biases[place] == pytest.approx(other.bias)
        assert result.noises[place] == pytest.approx(math.sqrt(2) * other.noise_std)
    assert result.best_clip in CLIPS


def test_noise_on_the_mean_is_as_long_as_the_curve_says() -> None:
    results = [cloud(1.0, 3.0, 10, 0.0, "by norm", seed) for seed in range(600)]
    lengths = [np.sum((result.released - result.clipped_mean) ** 2) for result in results]
    place = int(np.argmin(abs(CLIPS - 1)))
    assert math.sqrt(np.mean(lengths)) == pytest.approx(results[0].noises[place] / CLIPS[place], rel=0.1)


def test_epsilon_of_a_release_depends_on_z_alone() -> None:
    for rule in ("by norm", "by value", "normalising"):
        for clip_norm, examples in ((1.0, 100), (5.0, 10)):
            held = cloud(clip_norm, 2.0, examples, 0.1, rule, 0).guarantee
            assert held is not None
            assert held.epsilon == pytest.approx(gdp_epsilon(1 / 2.0, DELTA))
    assert cloud(1.0, 2.0, 100, 0.1, "as printed", 0).guarantee is None
    assert math.isinf(cloud(1.0, 2.0, 100, 0.1, "as printed", 0).sensitivity)


def test_more_examples_keep_the_first_ones_and_outliers_come_one_by_one() -> None:
    few, many = (cloud(1.0, 1.0, size, 0.1, "by norm", 2).gradients for size in (20, 200))
    assert (many[:20] == few).all()
    more = cloud(1.0, 1.0, 200, 0.4, "by norm", 2).gradients
    changed = (more != many).any(1)
    assert 0.2 < changed.mean() < 0.4


# ---- A whole training ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", dpsgd_training.OPTIMIZERS)
def test_without_noise_and_with_a_loose_clip_all_walkers_go_the_same_way(optimizer: str) -> None:
    silent = trained(optimizer=optimizer, z=0.0)
    assert (silent.private == silent.clipped).all()
    assert (silent.guarantee.epsilon, set(silent.poisson)) == (None, {None})
    loose = trained(optimizer=optimizer, clip_norm=1000.0)
    assert loose.clipped == pytest.approx(loose.plain, abs=1e-3)


def test_first_step_of_sgd_is_the_learning_rate_times_what_is_released() -> None:
    result = trained(lr=0.5, seed=4)
    draw = standard_noise(key_from_seed(4), 0, 2, Share(), torch.float64).numpy()
    assert result.noise_std == pytest.approx(2.0 * 1.0 / 20)
    assert result.private[1] - result.clipped[1] == pytest.approx(-0.5 * result.noise_std * draw)
    assert (result.private[0] == dpsgd_training.START).all()


def test_dp_adambc_is_told_the_noise_that_was_added() -> None:
    adam, corrected = (trained(optimizer=name, z=4.0, lr=0.05) for name in ("adam", "dp-adambc"))
    long = [np.abs(np.diff(run.private, axis=0)).mean() for run in (adam, corrected)]
    assert long[1] > 1.2 * long[0]  # divided by less than Adam divides by
    same = [trained(optimizer=name, z=0.0, lr=0.05, gamma=1e-12).private for name in ("adam", "dp-adambc")]
    assert same[0] == pytest.approx(same[1], abs=1e-6)


def test_loss_is_the_cross_entropy_of_all_people() -> None:
    weights = np.array([[0.3, -1.0], [1.0, 2.0]])
    people, labels = dpsgd_training._people()
    for row, loss in zip(weights, dpsgd_training.loss(weights), strict=True):
        assert loss == pytest.approx(F.binary_cross_entropy_with_logits(people @ torch.from_numpy(row), labels).item())
    assert dpsgd_training.loss(dpsgd_training.TRUTH) < 0.5 < dpsgd_training.loss(dpsgd_training.START)


@pytest.mark.parametrize(("z", "batch_size"), [(2.0, 20), (1.0, 80)])
def test_poisson_epsilon_is_the_peers_for_as_many_steps(z: float, batch_size: int) -> None:
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    result = trained(z=z, batch_size=batch_size)
    assert result.guarantee.epsilon == pytest.approx(result.poisson[-1], rel=1e-9)
    event = dp.PoissonSampledDpEvent(batch_size / PEOPLE, dp.GaussianDpEvent(z))
    for steps in (1, STEPS):
        peer = RdpAccountant().compose(event, steps).get_epsilon(DELTA)
        assert result.poisson[steps - 1] == pytest.approx(peer, rel=0.02)


def test_shuffled_batches_cost_one_release_for_each_pass() -> None:
    result = trained(sampling="shuffle", batch_size=40, z=2.0)
    assert result.recipe.steps_per_epoch == 10
    assert result.recipe.epochs == 3
    for step, passes in ((1, 1), (10, 1), (11, 2), (STEPS, 3)):
        assert result.shuffle[step - 1] == pytest.approx(gdp_epsilon(math.sqrt(passes) / 2.0, DELTA))
    assert result.guarantee.epsilon == result.shuffle[-1]
    assert result.poisson[-1] < result.shuffle[-1]
    assert trained(sampling="poisson", batch_size=40, z=2.0).shuffle == result.shuffle


def test_tuned_finds_the_best_of_the_rates_for_each_optimizer() -> None:
    rows = tuned(1.0, 2.0, 20, rates=(1e-3, 1.0), seeds=range(2))
    assert [row.optimizer for row in rows] == list(dpsgd_training.OPTIMIZERS)
    by_hand = {
        lr: np.mean([trained(lr=lr, seed=seed).losses["private"][-1] for seed in range(2)]) for lr in (1e-3, 1.0)
    }
    assert (rows[0].lr, rows[0].private) == (1.0, pytest.approx(by_hand[1.0]))
    assert by_hand[1.0] < by_hand[1e-3]
    assert "DP-AdamBC" in dpsgd_words.optimizers(rows)


# ---- What Adam divides by ------------------------------------------------------------------------------------------


def test_after_one_step_adam_divides_by_gradient_and_noise_together() -> None:
    silent, noisy = denominators(0.0, 1, 1e-8, 0), denominators(0.2, 1, 1e-8, 0)
    draw = torch.from_numpy(np.random.default_rng([0, 2]).standard_normal((1, dpsgd.COORDINATES)))[0].numpy()
    assert silent.adam == pytest.approx(silent.gradient)
    assert noisy.adam == pytest.approx(np.abs(noisy.gradient + 0.2 * draw))
    left = (noisy.gradient + 0.2 * draw) ** 2 - 0.2**2
    assert noisy.corrected == pytest.approx(np.sqrt(np.maximum(left, 1e-8)))


@relaxed
@given(st.floats(0.03, 1), st.integers(20, 60))
def test_noise_slows_adam_down_where_gradients_are_smaller_than_it(noise_std: float, steps: int) -> None:
    result = denominators(noise_std, steps, 1e-6, seed=1)
    small = result.gradient < 0.1 * noise_std
    assert np.median(result.adam[small]) == pytest.approx(noise_std, rel=0.2)
    assert (result.adam_move[small] < 0.2).mean() > 0.95
    assert np.median(result.corrected_move[small]) > np.median(result.adam_move[small])


# ---- Bad input -----------------------------------------------------------------------------------------------------

CLOUD = {"clip_norm": 1.0, "z": 1.0, "examples": 10, "outliers": 0.1, "rule": "by norm", "seed": 0}
ADAM = {"noise_std": 0.1, "steps": 5, "gamma": 1e-4, "seed": 0}


@pytest.mark.parametrize(
    ("function", "good", "change", "says"),
    [
        (cloud, CLOUD, {"clip_norm": 0.0}, r"clip norm C is 0\.0"),
        (cloud, CLOUD, {"z": -1.0}, r"noise multiplier z0 is -1\.0: it must be 0 or more"),
        (cloud, CLOUD, {"examples": 0}, "the number of examples is 0: it must be a whole number from 1 to 2,000"),
        (cloud, CLOUD, {"outliers": 1.5}, r"the share of outliers is 1\.5: it must lie between 0 and 1"),
        (cloud, CLOUD, {"rule": "by hand"}, "unknown rule 'by hand': choose by norm, by value"),
        (cloud, CLOUD, {"seed": -1}, "seed is -1: it must be 0 or more"),
        (training, BASE, {"batch_size": 401}, "the batch size is 401: it must be a whole number from 1 to 400"),
        (training, BASE, {"optimizer": "lion"}, "unknown optimizer 'lion': choose sgd, momentum, adam, dp-adambc"),
        (training, BASE, {"sampling": "dealt"}, "unknown sampling 'dealt': choose poisson or shuffle"),
        (training, BASE, {"lr": 0.0}, r"the learning rate is 0\.0: it must be a finite number greater than 0"),
        (training, BASE, {"gamma": math.nan}, "the floor gamma' is nan"),
        (training, BASE, {"seed": -3}, "seed is -3"),
        (denominators, ADAM, {"steps": 0}, "the number of steps is 0"),
        (denominators, ADAM, {"gamma": 0.0}, r"the floor gamma' is 0\.0"),
        (denominators, ADAM, {"noise_std": -0.1}, r"-0\.1: give a finite number from 0 up"),
    ],
)
def test_bad_values_are_one_sentence(function: Any, good: dict[str, Any], change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        function(**{**good, **change})
    assert "\n" not in str(error.value)


# ---- In words ------------------------------------------------------------------------------------------------------


def test_words_say_what_every_epsilon_is() -> None:
    text = dpsgd_words.cloud_in_words(cloud(1.0, 2.0, 100, 0.1, "by norm", 0))
    assert "has deviation <b>0.02</b> on each coordinate" in text
    assert "<b>ε = 2</b> at δ = 1e-05 (Gaussian DP, exact; zero-out: one gradient becomes 0)" in text
    assert "its seed is published" in text
    text = dpsgd_words.training_in_words(trained())
    assert "q = B / 400 = 0.05" in text
    assert "<b>ε = 0.707</b> at δ = 1e-05 (Rényi DP; add or remove one person)" in text
    assert "Shuffled batches would have ε = 2.95" in text
    text = dpsgd_words.training_in_words(trained(sampling="shuffle"))
    assert "<b>ε = 2.95</b> at δ = 1e-05 (Gaussian DP, exact; zero-out)" in text
    assert "Billed as if they were Poisson samples they would seem to cost ε = 0.707: not theirs" in text


def test_words_promise_nothing_where_nothing_holds() -> None:
    silent = dpsgd_words.cloud_in_words(cloud(1.0, 0.0, 100, 0.1, "by norm", 0))
    printed = dpsgd_words.cloud_in_words(cloud(1.0, 2.0, 100, 0.1, "as printed", 0))
    still = dpsgd_words.training_in_words(trained(z=0.0))
    adam = dpsgd_words.denominators_in_words(denominators(0.1, 30, 1e-4, 0))
    for text in (silent, printed, still, adam):
        assert "no guarantee" in text
        assert "ε = " not in text


# ---- Panels --------------------------------------------------------------------------------------------------------


def make_cloud() -> FigurePanel:
    return dpsgd_panels.cloud_panel(1.0, 2.0, 100, 0.1, 0)


def make_training() -> FigurePanel:
    return dpsgd_panels.training_panel(1.0, 2.0, 20, "sgd", 1.0, 0)


def make_denominators() -> FigurePanel:
    return dpsgd_panels.denominators_panel(0.1, 30, 1e-4, 0)


FIGURES = {
    make_cloud: ("cloud", "error"),
    make_training: ("path", "learning"),
    make_denominators: ("denominators",),
}
each_panel = pytest.mark.parametrize("make", list(FIGURES))


def plain(value: Any) -> Any:
    """A result as nested lists and numbers, to be compared."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def stops(control: Any) -> list[Any]:
    return list(control.slider.options) if control.slider else [value for _, value in control.source.options]


@each_panel
def test_every_control_changes_what_is_shown_and_reset_undoes_it(make: Callable[[], FigurePanel]) -> None:
    panel = make()
    first, words, command = plain(panel.result), panel.words.value, panel.command.value
    pictures = [figure.to_json() for figure in panel.figures]
    for name, control in panel.controls.items():
        values = stops(control)
        if name == "gamma" and "optimizer" in panel.controls:
            panel.set(optimizer="dp-adambc")  # the only one that looks at it
            pictures_before = [figure.to_json() for figure in panel.figures]
        else:
            pictures_before = pictures
        control.source.value = next(v for v in values[len(values) // 3 :] if v != control.value)
        assert panel.errors == [], name
        assert [figure.to_json() for figure in panel.figures] != pictures_before, name
        assert f"{name}={control.value!r}" in panel.command.value
        panel.reset()
    assert (panel.words.value, panel.command.value) == (words, command)
    assert [figure.to_json() for figure in panel.figures] == pictures
    assert plain(panel.result) == first


@each_panel
@pytest.mark.parametrize("change", [{}, {"sampling": "shuffle"}, {"z": 5.0}])
def test_command_computes_what_is_shown(make: Callable[[], FigurePanel], change: dict[str, Any]) -> None:
    panel, printed = make(), []
    panel.set(**{name: value for name, value in change.items() if name in panel.controls})
    python, *rest = panel.command.value.splitlines()
    assert shlex.split(python)[:2] == ["python", "-c"]
    exec(shlex.split(python)[2], {"print": printed.append})
    assert plain(printed[0]) == plain(panel.result)
    for line in rest:
        words = shlex.split(line)
        assert words[:2] == ["edp-lab", "account"]
        report = json.loads(CliRunner().invoke(app, [*words[1:], "--json"]).stdout)
        assert report["holds"]["epsilon"] == pytest.approx(panel.result.guarantee.epsilon, rel=1e-6)
        assert report["holds"]["adjacency"] == panel.result.guarantee.adjacency
    assert bool(rest) == (make is not make_denominators)


def test_without_an_epsilon_there_is_no_call_that_gives_one() -> None:
    panel = make_cloud()
    panel.set(rule="as printed")
    assert "account" not in panel.command.value
    panel.set(rule="by norm", z=0.0)
    assert "account" not in panel.command.value


@each_panel
def test_bad_value_is_one_sentence_and_the_last_result_stays(make: Callable[[], FigurePanel]) -> None:
    panel = make()
    before = panel.result
    panel.set(seed=-1)
    assert "seed is -1" in panel.error_box.value
    assert isinstance(panel.errors[-1], UsageError)
    assert panel.result is before
    panel.reset()
    assert panel.error_box.value == ""
    panel.check()


@each_panel
def test_every_slider_moves_without_a_fault(make: Callable[[], FigurePanel]) -> None:
    panel = make()
    assert len(move(panel, 100)) == 100
    panel.check()


@each_panel
@pytest.mark.parametrize("place", [3, 5])
def test_updated_figure_is_the_one_drawn_anew(make: Callable[[], FigurePanel], place: int) -> None:
    panel = make()
    panel.set(**{name: stops(c)[len(stops(c)) * place // 6] for name, c in panel.controls.items()})
    for name, figure in zip(FIGURES[make], panel.figures, strict=True):
        drawn = getattr(dpsgd_figures, f"{name}_figure")(panel.result)
        assert json.loads(figure.to_json())["layout"] == json.loads(drawn.to_json())["layout"]
        for ours, anew in zip(figure.data, drawn.data, strict=True):
            ours, anew = (json.loads(go.Figure(trace).to_json())["data"][0] for trace in (ours, anew))
            assert {**ours, "uid": None} == {**anew, "uid": None}


@each_panel
def test_every_figure_names_its_axes_its_seed_and_its_epsilon_and_needs_no_colour(
    make: Callable[[], FigurePanel],
) -> None:
    for figure in make().figures:
        assert all(axis.title.text for axis in [*figure.select_xaxes(), *figure.select_yaxes()])
        caption = figure.layout.title.subtitle.text
        assert "seed 0" in caption
        assert all(len(line) < 80 for line in caption.split("<br>"))
        if make is not make_denominators:  # which has no epsilon
            assert re.search(r"ε = .* at δ = 1e-05 \((Gaussian|Rényi) DP", caption)
        shown = [t for t in figure.data if t.showlegend is not False and t.type == "scatter"]
        looks = [(t.legend, t.line.dash, t.line.width, t.marker.symbol, t.mode) for t in shown]
        assert len(set(looks)) == len(looks), caption


# ---- The notebook --------------------------------------------------------------------------------------------------


def cells(kind: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in read_source(NOTEBOOK).cells if cell.cell_type == kind]


def test_notebook_follows_its_parameters_and_fails_on_a_hidden_error(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"corpus": "smart-home", "C": 0.5, "z0": 3.0, "batch_size": 40, "optimizer": "adam", "seed": 2}
    assert set(notebook_parameters(NOTEBOOK)) == {"mode", "STRICT", *values}
    space: dict[str, Any] = {}
    for cell in cells("code"):
        exec(cell.source, space)
        if "parameters" in cell.metadata.get("tags", ()):
            space.update(values, STRICT=True)
    assert space["cloud_panel"].result.clip_norm == 0.5
    assert space["training_panel"].values["optimizer"] == "adam"
    given = {"clip_norm": 0.5, "z": 3.0, "batch_size": 40, "optimizer": "adam", "lr": 0.2, "seed": 2}
    assert plain(space["training_panel"].result) == plain(trained(**given))
    assert space["batch"].seed == 2
    assert "3 of 3 exercises solved" in capsys.readouterr().out

    space["adam_panel"]._show = lambda result: 1 / 0  # a fault that only a moved slider meets
    space["adam_panel"].controls["steps"].slider.value = 50
    with pytest.raises(ZeroDivisionError):
        exec(cells("code")[-1].source, space)
