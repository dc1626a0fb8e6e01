"""Notebook 01: what its panels draw and say is what mechanisms and accountants give, whatever the sliders say."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from typer.testing import CliRunner

from edp_lab.cli import app
from edp_lab.course.kit.old_panel import FigurePanel
from edp_lab.course.kit.panel_driver import move
from edp_lab.course.nb01_coins import compute as coins
from edp_lab.course.nb01_coins import figures as coins_figures
from edp_lab.course.nb01_coins import panels as coins_panels
from edp_lab.course.nb01_coins import words as coins_words
from edp_lab.course.nb01_coins.compute import (
    ADVANCED,
    GAUSSIAN,
    SUM,
    ZCDP,
    averaging,
    belief,
    composed,
    gaussian_count,
    poll,
)
from edp_lab.course.nb01_coins.words import at_most, digits
from edp_lab.course.publish.runner import notebook_parameters
from edp_lab.errors import UsageError
from edp_lab.privacy import GaussianDP, Schedule
from edp_lab.privacy.composition import advanced_composition, basic_composition
from edp_lab.privacy.foundations import NoisyCounter, estimate_frequencies, truth_probability
from edp_lab.reproduce.thesis.claims_composition import t12_labels
from edp_lab.reproduce.thesis.claims_noise import t21_loss_tail
from edp_lab.reproduce.thesis.thesis_foundations import CREDIT_EPSILON, local_and_global, loss_figures

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_coins_to_composition.ipynb"
LN3 = math.log(3)
epsilons = st.floats(1e-3, 20)


# ---- The coin ------------------------------------------------------------------------------------------------------


@given(st.floats(0.001, 0.999), epsilons)
def test_belief_is_bayes_rule_for_the_coins_own_probabilities(before: float, epsilon: float) -> None:
    truth = truth_probability(epsilon)
    yes = before * truth / (before * truth + (1 - before) * (1 - truth))
    no = before * (1 - truth) / (before * (1 - truth) + (1 - before) * truth)
    assert belief(before, epsilon) == pytest.approx(yes)
    assert belief(before, -epsilon) == pytest.approx(no)
    drawn, half = poll(epsilon, 2, 0.5, seed=0), 50
    assert (drawn.before[half], drawn.after_yes[half], drawn.after_no[half]) == pytest.approx((0.5, truth, 1 - truth))


def test_estimates_are_those_of_the_first_responses_and_end_with_all() -> None:
    result = poll(1.1, 1000, 0.3, seed=3)
    assert (result.asked[0], result.asked[-1]) == (10, 1000)
    for place in (0, 20, -1):
        first = estimate_frequencies(result.responses[: result.asked[place]], 1.1)
        assert result.estimate[place] == first.estimate[1]
        assert result.standard_error[place] == first.standard_error[1]
        assert result.yes[place] == result.responses[: result.asked[place]].mean()


def test_the_interval_covers_the_population_nine_times_in_ten() -> None:
    results = [poll(1.0, 500, 0.3, seed) for seed in range(400)]
    covered = [abs(r.estimate[-1] - 0.3) < coins.HALF * r.standard_error[-1] for r in results]
    assert np.mean(covered) == pytest.approx(0.9, abs=0.05)


def test_people_keep_their_coins_while_epsilon_and_the_crowd_change() -> None:
    much, little = poll(0.1, 500, 0.3, seed=1), poll(3.0, 500, 0.3, seed=1)
    assert (much.truth == little.truth).all()
    lies, fewer = much.truth != much.responses, little.truth != little.responses
    assert 0 < fewer.sum() < lies.sum()
    assert not (fewer & ~lies).any()
    assert (poll(0.1, 100, 0.3, seed=1).responses == much.responses[:100]).all()
    assert (poll(0.1, 500, 0.3, seed=2).responses != much.responses).any()


# ---- One question, again and again ---------------------------------------------------------------------------------


def test_the_thesis_figure_2_4_is_one_setting_of_the_panel() -> None:
    ours = averaging(CREDIT_EPSILON, 1, 50, 5.0, 0)
    half = ours.average.half_width
    assert (ours.true_count, ours.decisive) == (3, 44)  # 1.645 * 2 / sqrt(44) = 0.496
    assert half[43] < 0.5 <= half[42]


def test_budget_stops_the_very_answers_that_are_drawn() -> None:
    result = averaging(0.7, 4, 50, 5.0, seed=2)
    assert result.allowed == 7
    counter = NoisyCounter([True] * 3, 5.0 / 4, np.random.default_rng([2, 0]))
    assert result.answers[:7] == pytest.approx([counter.count(bool, 0.7 / 4) for _ in range(7)])
    with pytest.raises(UsageError, match=r"of the budget of 1\.25 is left"):
        counter.count(bool, 0.7 / 4)


def test_cache_answers_once_and_a_budget_that_is_too_small_never() -> None:
    cached = averaging(0.7, 1, 50, 5.0, seed=0).cached
    assert cached.shape == (50,)
    assert len(set(cached)) == 1
    refused = averaging(0.7, 1, 50, 0.5, seed=0)
    assert (refused.allowed, refused.cached.size, refused.answers.size) == (0, 0, 50)
    assert averaging(0.1, 1, 50, 1.0, seed=0).allowed == 10  # though ten times 0.1, as floats, exceeds 1


@given(epsilons, st.integers(1, 20))
def test_densities_with_and_without_a_person_are_within_epsilon(epsilon: float, sensitivity: int) -> None:
    result = averaging(epsilon, sensitivity, 1, 1.0, seed=0)
    output = np.linspace(-2, 30, 400)  # no density underflows
    loss = np.abs(np.log(result.density(output, 0)) - np.log(result.density(output, sensitivity)))
    assert loss.max() == pytest.approx(epsilon, rel=1e-6)


def test_noise_follows_the_sensitivity_and_its_density() -> None:
    one, ten = averaging(0.5, 1, 2000, 5.0, seed=0), averaging(0.5, 10, 2000, 5.0, seed=0)
    assert (ten.answers - 3) == pytest.approx(10 * (one.answers - 3))
    near = np.abs(one.answers - 3) < 2
    inside = np.linspace(1, 5, 4001)
    assert near.mean() == pytest.approx(trapezoid(one.density(inside, 0), inside), abs=0.03)


def test_the_thesis_interval_is_a_little_too_narrow_and_ours_a_little_too_wide() -> None:
    ours, printed = coins.interval_coverage(4000, seed=0)
    assert ours == pytest.approx(0.918, abs=0.015)
    assert printed == pytest.approx(0.886, abs=0.015)


# ---- Delta as an area ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "sigma", "sensitivity"), [(LN3, math.sqrt(2), 1.0), (0.0, 1.0, 1.0), (2, 5, 8)])
def test_every_area_that_is_drawn_is_the_number_that_is_said(epsilon: float, sigma: float, sensitivity: float) -> None:
    result = gaussian_count(epsilon, sigma, sensitivity)
    assert trapezoid(result.density, result.output) == pytest.approx(1, abs=1e-3)
    above = np.maximum(result.density - result.raised, 0)
    assert trapezoid(above, result.output) == pytest.approx(result.delta, abs=2e-3)
    assert trapezoid(result.loss_excess, result.loss) == pytest.approx(result.delta, abs=2e-3)
    beyond = np.where(result.loss > epsilon, result.loss_density, 0)
    assert trapezoid(beyond, result.loss) == pytest.approx(result.tail, abs=0.01)
    assert np.interp(epsilon, result.epsilons, result.deltas) == pytest.approx(result.delta, rel=0.02)


def test_the_thesis_example_is_one_setting_and_only_the_ratio_counts() -> None:
    thesis, evidence = loss_figures(), t21_loss_tail()
    ours, doubled = gaussian_count(LN3, math.sqrt(2), 1.0), gaussian_count(LN3, math.sqrt(8), 2.0)
    assert (ours.delta, ours.tail) == pytest.approx((thesis.delta, thesis.tail))
    assert ours.tail == pytest.approx(evidence.measured["tail"])
    assert (doubled.delta, doubled.tail) == pytest.approx((ours.delta, ours.tail))
    assert doubled.output[-1] - 1000 == pytest.approx(2 * (ours.output[-1] - 1000))


# ---- Composition ---------------------------------------------------------------------------------------------------


def test_totals_are_the_accountants() -> None:
    result = composed(0.2, 9000, 1e-5, 5.0)
    assert (result.releases[0], result.releases[-1]) == (1, 9000)
    last, evidence = {name: total[-1] for name, total in result.total.items()}, t12_labels(9000, 0.2).measured
    assert last[SUM] == pytest.approx(evidence["basic"]) == basic_composition([(0.2, 0.0)] * 9000).epsilon
    assert last[ZCDP] == evidence["zcdp"]
    assert last[ADVANCED] == advanced_composition(0.2, 0.0, 9000, 1e-5).epsilon
    noise = Schedule(np.array([math.sqrt(2) / 0.2]), np.array([9000]))
    assert last[GAUSSIAN] == pytest.approx(GaussianDP(noise).epsilon(1e-5))


@given(st.floats(1e-3, 5), st.floats(0.05, 100))
def test_allowed_is_the_largest_number_within_the_total(epsilon: float, budget: float) -> None:
    result = composed(epsilon, 10, 1e-6, budget)
    for name, total in coins.accounts(epsilon, 1e-6).items():
        allowed = result.allowed[name]
        assert allowed == 0 or total(allowed) <= budget
        assert allowed == coins.COUNTABLE or total(allowed + 1) > budget


def test_advanced_composition_pays_for_many_small_releases_only() -> None:
    first = composed(0.1, 100, 1e-5, 5.0).advanced_pays_from
    assert first is not None
    costs = [advanced_composition(0.1, 0.0, k, 1e-5).epsilon for k in (first - 1, first)]
    assert costs[0] >= 0.1 * (first - 1)
    assert costs[1] < 0.1 * first
    assert composed(1.0, 100, 1e-5, 5.0).advanced_pays_from is None


def test_choices_of_both_mechanisms_favour_the_votes_the_more_the_larger_epsilon() -> None:
    result = coins.choices({"a": 5, "b": 3, "c": 0}, [0.2, 5.0], 4000, seed=0)
    assert result.exponential.sum(axis=1) == pytest.approx([1, 1])
    for chances in (result.exponential, result.noisy_max):
        assert 0.3 < chances[0, 0] < 0.5
        assert chances[1, 0] > 0.95
        assert (np.diff(chances) < 0).all()
    # Scale 2 / epsilon, for a vote that moves from one label to another
    assert result.exponential[0, 0] / result.exponential[0, 1] == pytest.approx(math.exp(0.2 * (5 - 3) / 2))


# ---- Bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "change", "says"),
    [
        ("poll", {"epsilon": 0.0}, "epsilon is 0.0: it must be a finite number greater than 0"),
        ("poll", {"people": 1}, "the number of people is 1: it must be a whole number from 2 to 100,000"),
        ("poll", {"people": 10**9}, "the number of people is 1000000000"),
        ("poll", {"share": 1.2}, r"the share of yes is 1\.2: it must lie between 0 and 1"),
        ("poll", {"seed": -1}, "seed is -1: it must be 0 or more"),
        ("averaging", {"epsilon": math.nan}, "epsilon is nan"),
        ("averaging", {"sensitivity": 0}, "the sensitivity is 0: it must be a whole number from 1"),
        ("averaging", {"queries": 2.5}, r"the number of queries is 2\.5"),
        ("averaging", {"budget": 0.0}, "budget is 0.0: it must be a finite number greater than 0"),
        ("gaussian_count", {"epsilon": -0.1}, r"epsilon is -0\.1"),
        ("gaussian_count", {"sigma": 0.0}, "the standard deviation sigma is 0.0"),
        ("gaussian_count", {"sensitivity": math.inf}, "the sensitivity is inf"),
        ("composed", {"epsilon": -1.0}, "the epsilon of one release is -1.0"),
        ("composed", {"releases": 0}, "the number of releases is 0"),
        ("composed", {"delta": 0.0}, "delta"),
        ("composed", {"budget": -5.0}, "the budget is -5.0"),
    ],
)
def test_bad_values_are_one_sentence(function: str, change: dict[str, Any], says: str) -> None:
    good: dict[str, dict[str, Any]] = {
        "poll": {"epsilon": 1.0, "people": 10, "share": 0.5, "seed": 0},
        "averaging": {"epsilon": 1.0, "sensitivity": 1, "queries": 5, "budget": 5.0, "seed": 0},
        "gaussian_count": {"epsilon": 1.0, "sigma": 1.0, "sensitivity": 1.0},
        "composed": {"epsilon": 0.1, "releases": 5, "delta": 1e-5, "budget": 5.0},
    }
    with pytest.raises(UsageError, match=says) as error:
        getattr(coins, function)(**{**good[function], **change})
    assert "\n" not in str(error.value)


# ---- In words ------------------------------------------------------------------------------------------------------


def test_words_say_what_every_epsilon_is() -> None:
    text = coins_words.poll_in_words(poll(LN3, 1000, 0.3, 0))
    assert "ε = 1.1 per answer</b> (pure, local DP" in text
    assert "truth with probability 75 %" in text
    assert "<b>3 times</b>" in text
    assert "believes <b>56.2 %</b> after a yes and 12.5 % after a no" in text
    text = coins_words.averaging_in_words(averaging(0.7, 1, 50, 5.0, 0))
    assert "costs a person <b>ε = 0.7</b> (pure DP, add or remove that person)" in text
    assert "50 answers cost <b>ε = 35</b> by the plain sum" in text
    assert "pays for <b>7 answers</b>" in text
    text = coins_words.gaussian_in_words(gaussian_count(LN3, math.sqrt(2), 1.0))
    assert "<b>ε = 1.1 holds with δ = 0.0304</b> and no smaller (Gaussian DP, exact" in text
    assert "exceeds ε with probability 0.115" in text
    text = coins_words.composed_in_words(composed(0.1, 1000, 1e-5, 5.0))
    assert "ε = <b>100</b> by the plain sum (δ = 0)" in text
    assert "25.7 by advanced composition and <b>20.2</b> by zCDP" in text
    assert "ε = 11.5 (Gaussian DP, exact)" in text


def test_words_at_the_ends_of_the_scales() -> None:
    assert "does not pay for a single answer" in coins_words.averaging_in_words(averaging(0.7, 1, 1, 0.5, 0))
    assert "a person with up to 10 records" in coins_words.averaging_in_words(averaging(0.7, 10, 1, 0.5, 0))
    assert "never pays at this ε" in coins_words.composed_in_words(composed(1.0, 10, 1e-5, 5.0))
    assert "a billion or more" in coins_words.composed_in_words(composed(1e-6, 10, 1e-5, 1e3))
    assert "endlessly too large" in coins_words.gaussian_in_words(gaussian_count(100.0, 1.0, 1.0))
    assert "theorem (2.12) would ask for σ" in coins_words.gaussian_in_words(gaussian_count(0.5, 1.0, 1.0))
    assert "beyond 1e308 times" in coins_words.poll_in_words(poll(800.0, 10, 0.5, 0))


def test_numbers_as_people_write_them() -> None:
    numbers = {0.02964: "0.0296", 16.44: "16.4", 1234.5: "1,234", 3e-8: "3e-8", 2.5e9: "2.5e9", 0.0: "0", 1.0: "1"}
    assert {value: digits(value) for value in numbers} == numbers


@given(st.floats(1e-9, 1e12))
def test_what_holds_is_never_written_smaller_than_it_is(epsilon: float) -> None:
    written = at_most(epsilon)
    assert epsilon * (1 - 1e-11) <= float(written.replace(",", "")) <= epsilon * 1.0101
    assert at_most(math.inf) == digits(math.inf)
    assert [at_most(1000 * 0.1), at_most(7.501), at_most(1234.1)] == ["100", "7.51", "1,235"]


# ---- Panels --------------------------------------------------------------------------------------------------------


def make_coin() -> FigurePanel:
    return coins_panels.coin_panel(1.1, 300, 0.3, 0)


def make_averaging() -> FigurePanel:
    return coins_panels.averaging_panel(0.7, 1, 50, 5.0, 0)


def make_delta() -> FigurePanel:
    return coins_panels.delta_panel(1.1, 1.41, 1.0)


def make_composition() -> FigurePanel:
    return coins_panels.composition_panel(0.1, 1000, 1e-5, 5.0)


each_panel = pytest.mark.parametrize("make", [make_coin, make_averaging, make_delta, make_composition])
FIGURES = {
    make_coin: ("people", "poll"),
    make_averaging: ("answers", "price"),
    make_delta: ("delta", "loss"),
    make_composition: ("total", "allowed"),
}


def same(one: Any, other: Any) -> bool:
    """Whether two results hold the same values."""
    texts = (json.dumps(asdict(result), default=np.ndarray.tolist) for result in (one, other))
    return next(texts) == next(texts)


@each_panel
def test_every_slider_changes_words_figures_and_command_and_reset_undoes_it(make: Any) -> None:
    panel = make()
    first, words, command = panel.result, panel.words.value, panel.command.value
    pictures = [figure.to_json() for figure in panel.figures]
    for name, control in panel.controls.items():
        stops = control.slider.options
        control.slider.value = next(stop for stop in stops[len(stops) // 3 :] if stop != control.slider.value)
        assert panel.errors == [], name
        assert panel.words.value != words or name == "seed", name
        assert [figure.to_json() for figure in panel.figures] != pictures, name
        assert f"{name}={control.value!r}" in panel.command.value
        panel.reset()
    assert (panel.words.value, panel.command.value) == (words, command)
    assert [figure.to_json() for figure in panel.figures] == pictures
    assert same(panel.result, first)


@each_panel
def test_command_computes_what_is_shown(make: Any) -> None:
    panel, printed = make(), []
    python, *rest = panel.command.value.splitlines()
    assert shlex.split(python)[:2] == ["python", "-c"]
    exec(shlex.split(python)[2], {"print": printed.append})
    assert same(printed[0], panel.result)
    for line in rest:
        words = line.split()
        assert words[:2] == ["edp-lab", "account"]
        report = json.loads(CliRunner().invoke(app, [*words[1:], "--json"]).stdout)
        result = panel.result
        shown = result.epsilon if make is make_delta else result.total[GAUSSIAN][-1]
        assert report["holds"]["epsilon"] == pytest.approx(shown, rel=1e-4)


@each_panel
def test_bad_value_is_one_sentence_and_the_last_result_stays(make: Any) -> None:
    panel = make()
    before = panel.result
    panel.set(epsilon=-1.0)
    assert "epsilon" in panel.error_box.value
    assert isinstance(panel.errors[-1], UsageError)
    assert panel.result is before
    panel.reset()
    assert panel.error_box.value == ""
    panel.check()


@each_panel
def test_every_slider_moves_without_a_fault(make: Any) -> None:
    panel = make()
    assert len(move(panel, 100)) == 100
    panel.check()


@each_panel
def test_updated_figure_is_the_one_drawn_anew(make: Any) -> None:
    panel = make()
    stops = {name: control.slider.options for name, control in panel.controls.items()}
    panel.set(**{name: options[len(options) // 3] for name, options in stops.items()})
    for name, figure in zip(FIGURES[make], panel.figures, strict=True):
        drawn = getattr(coins_figures, f"{name}_figure")(panel.result)
        assert json.loads(figure.to_json())["layout"] == json.loads(drawn.to_json())["layout"]
        for ours, anew in zip(figure.data, drawn.data, strict=True):
            ours, anew = (json.loads(go.Figure(trace).to_json())["data"][0] for trace in (ours, anew))
            assert {**ours, "uid": None} == {**anew, "uid": None}


def every_figure() -> list[go.Figure]:
    panels = [make() for make in FIGURES]
    votes = coins.choices({"a": 5, "b": 3}, [0.2, 1.0], 100, seed=0)
    local = local_and_global([10, 100], [0.2, 1.1])
    drawn = [coins_figures.choices_figure(votes), coins_figures.local_figure(local)]
    return [*(figure for panel in panels for figure in panel.figures), *drawn]


def test_every_figure_names_its_axes_and_its_epsilon_and_needs_no_colour() -> None:
    for figure in every_figure():
        assert all(axis.title.text for axis in [*figure.select_xaxes(), *figure.select_yaxes()])
        caption = figure.layout.title.subtitle.text
        assert "ε" in caption
        assert re.search("pure|Gaussian DP", caption)
        shown = [trace for trace in figure.data if trace.showlegend is not False and trace.type == "scatter"]
        looks = [(t.legend, t.line.dash, t.marker.symbol, t.mode, t.fillcolor) for t in shown]
        assert len(set(looks)) == len(looks), caption


# ---- The notebook --------------------------------------------------------------------------------------------------


def cells(kind: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == kind]


def test_notebook_follows_its_parameters_and_fails_on_a_hidden_error(capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        "epsilon": 0.5, "epsilon_count": 0.2, "sensitivity": 3, "queries": 20, "budget": 2.0,
        "sigma": 3.0, "epsilon_each": 0.05, "releases": 400, "delta": 1e-6, "seed": 4,
    }  # fmt: skip
    assert set(notebook_parameters(NOTEBOOK)) == {"mode", "STRICT", *values}
    space: dict[str, Any] = {}
    for cell in cells("code"):
        exec(cell.source, space)
        if "parameters" in cell.metadata.get("tags", ()):
            space.update(values)
    assert space["coin_panel"].values == {"epsilon": 0.5, "people": 1000, "share": 0.3, "seed": 4}
    assert space["averaging_panel"].values == {
        "epsilon": 0.2, "sensitivity": 3, "queries": 20, "budget": 2.0, "seed": 4
    }  # fmt: skip
    assert space["delta_panel"].values == {"epsilon": 0.5, "sigma": 3.0, "sensitivity": 3.0}
    assert space["composition_panel"].values == {"epsilon": 0.05, "releases": 400, "delta": 1e-6, "budget": 2.0}
    assert same(space["averaging_panel"].result, averaging(0.2, 3, 20, 2.0, 4))
    assert "44 answers, ε = 31" in capsys.readouterr().out

    space["delta_panel"]._show = lambda result: 1 / 0  # a fault that only a moved slider meets
    space["delta_panel"].controls["sigma"].slider.value = 10.0
    with pytest.raises(ZeroDivisionError):
        exec(cells("code")[-1].source, space)
