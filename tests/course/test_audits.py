"""Notebook 08: its panels draw what the library's audits draw, and say what these say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from typer.testing import CliRunner

from edp_lab.attacks.audit.bounds import Finding, one_run_epsilon
from edp_lab.attacks.audit.one_run import audit_one_run
from edp_lab.attacks.audit.step_audit import audit_mechanism, draw_statistics
from edp_lab.cli import app
from edp_lab.course.kit.panel_driver import move
from edp_lab.course.nb08_audit import compute as audits
from edp_lab.course.nb08_audit import figures as audits_figures
from edp_lab.course.nb08_audit import panels as audits_panels
from edp_lab.course.nb08_audit import words as audits_words
from edp_lab.course.nb08_audit.compute import StepNoise, audit_step, guess
from edp_lab.course.publish.build import instructor, read_source
from edp_lab.errors import UsageError
from edp_lab.privacy.csprng import key_from_seed

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "source" / "08_audit_it.ipynb"
PRINTED = (True, 1.0, 1.0, 8, 1.0, 300)
SOUND = (False, 2.0, 0.7, 4, 1.0, 300)


@pytest.fixture(scope="module")
def noise() -> StepNoise:
    return StepNoise(3)


# ---- One step ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [PRINTED, SOUND, (True, 0.3, 0.5, 16, 2.0, 40), (True, 1.0, 0.3, 8, 1.0, 10), (False, 1.0, 8.0, 1, 1.0, 200)],
)
def test_step_audit_is_the_librarys_own_for_the_same_seed(noise: StepNoise, settings: Any) -> None:
    ours = audit_step(noise, *settings)
    theirs = audit_mechanism(ours.mechanism, 1e-5, key_from_seed(3), settings[-1])
    assert (ours.false_positives, ours.false_negatives) == (theirs.false_positive_rate, theirs.false_negative_rate)
    assert (ours.bounds, ours.ceiling, ours.verdict) == (theirs.bounds, theirs.ceiling, theirs.verdict)
    assert (ours.claimed, ours.holds) == (theirs.epsilon_claimed, theirs.epsilon_if_alpha_public)


def test_draws_lie_where_the_real_steps_draws_lie(noise: StepNoise) -> None:
    for settings in (PRINTED, SOUND):
        ours = audit_step(noise, *settings)
        absent, present = draw_statistics(ours.mechanism, ours.draws, key_from_seed(3))
        assert ours.absent == pytest.approx(absent, abs=1e-4 * ours.std)
        assert ours.present == pytest.approx(present, abs=1e-4 * ours.std)


def test_histograms_hold_every_draw_and_c_only_stretches_them(noise: StepNoise) -> None:
    one, tenfold = audit_step(noise, *PRINTED), audit_step(noise, True, 10.0, *PRINTED[2:])
    for shares in one.shares:
        assert shares.sum() == pytest.approx(1)
    assert tenfold.edges == pytest.approx(10 * one.edges)
    assert tenfold.bounds == one.bounds


def test_claims_that_hold_are_refuted_in_few_audits_and_the_printed_one_in_all() -> None:
    seeds = [StepNoise(seed) for seed in range(3)]
    runs = [(noise_, draws) for noise_ in seeds for draws in (50, 500, 5000)]
    assert [audit_step(n, False, 1.0, 1.0, 8, 1.0, k).verdict for n, k in runs].count(Finding.REFUTED) <= 1
    assert {audit_step(n, True, 1.0, 1.0, 8, 1.0, k).verdict for n, k in runs} == {Finding.REFUTED}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"draws": 0}, "the number of draws is 0"),
        ({"draws": 10_001}, "from 1 to 10,000"),
        ({"z0": 0.0}, "there is no claim to audit"),
        ({"z0": -1.0}, "z0"),
        ({"num_devices": 0}, "devices"),
        ({"delta": 1.5}, "delta"),
    ],
)
def test_bad_step_is_one_sentence(noise: StepNoise, change: dict[str, Any], says: str) -> None:
    names = ("as_printed", "clip_norm", "z0", "num_devices", "alpha_max", "draws")
    with pytest.raises(UsageError, match=says) as told:
        audit_step(noise, **{**dict(zip(names, PRINTED, strict=True)), **change})
    assert "\n" not in str(told.value)


def test_seed_of_the_noise_is_checked() -> None:
    with pytest.raises(UsageError, match="seed is -1"):
        StepNoise(-1)


# ---- Guesses -------------------------------------------------------------------------------------------------------


def test_guesses_prove_the_reference_values_of_the_paper() -> None:
    assert guess(1000, 10, 75, delta=1e-4).bounds.distribution_free == pytest.approx(0.673, abs=5e-4)
    perfect = guess(1000, 100, 100).ceiling
    assert perfect[100].distribution_free == pytest.approx(3.49, abs=5e-3)
    assert perfect[1000].distribution_free == pytest.approx(5.78, abs=5e-3)


def test_chances_and_tail_are_those_of_a_coin() -> None:
    result = guess(400, 25, 80, tested=1.0)
    assert (result.made, result.right) == (100, 80)
    rng = np.random.default_rng(0)
    tosses = rng.binomial(100, result.chance, 200_000)
    assert (tosses >= 80).mean() == pytest.approx(result.tail, abs=0.01)
    assert result.chances[result.counts >= 80].sum() == pytest.approx(result.tail, abs=1e-3)
    assert result.chance == pytest.approx(np.e / (1 + np.e))


def test_an_epsilon_is_refuted_where_the_tail_is_below_five_percent_and_delta_does_not_matter() -> None:
    result = guess(1000, 10, 90, delta=1e-12)
    assert guess(1000, 10, 90, tested=result.bounds.distribution_free, delta=1e-12).tail == pytest.approx(
        0.05, abs=1e-4
    )
    refuted = guess(1000, 10, 90, tested=0.9 * result.bounds.distribution_free)
    kept = guess(1000, 10, 90, tested=1.1 * (result.bounds.gaussian or 0))
    assert "refuted for any mechanism" in audits_words.guesses_in_words(refuted)
    assert "This ε is <b>not refuted</b>" in audits_words.guesses_in_words(kept)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"canaries": 5}, "number of canaries is 5"),
        ({"made": 101}, "share of guesses made is 101"),
        ({"right": -1}, "share of right guesses is -1"),
        ({"tested": -0.1}, "epsilon is -0.1"),
        ({"delta": 0.0}, "delta"),
    ],
)
def test_bad_guesses_are_one_sentence(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        guess(**{"canaries": 100, "made": 10, "right": 90, **change})


def test_needed_guesses_are_the_fewest_that_refute() -> None:
    audit = audit_one_run(audits.one_run_config(True, 4.0, 8, 1, 1e-5, 0), 200, linear=True)
    assert audit.verdict is Finding.REFUTED
    for tally in audit.tallies:
        least = audits.needed(audit, tally.guesses)
        if tally.guesses == audit.guesses:
            assert least is not None
            assert least <= audit.correct
    false_at_one = audit_one_run(audits.one_run_config(False, 0.3, 8, 1, 1e-5, 0), 50, linear=True)
    assert audits.needed(false_at_one, 5) is None


# ---- Panels --------------------------------------------------------------------------------------------------------


def make_step(noise: StepNoise) -> audits_panels.StepPanel:
    return audits_panels.StepPanel(noise, True, 1.0, 1.0, 8, 1000)


def make_guess(_: StepNoise) -> Any:
    return audits_panels.guess_panel(1000, 10.0, 97.0, 1.2)


each_panel = pytest.mark.parametrize("make", [make_step, make_guess])
FIGURES = {make_step: ("draws", "scale"), make_guess: ("luck", "ceiling")}


@each_panel
def test_every_slider_changes_words_figures_and_command_and_reset_undoes_it(noise: StepNoise, make: Any) -> None:
    panel = make(noise)
    words, command = panel.words.value, panel.command.value
    pictures = [figure.to_json() for figure in panel.figures]
    for name, control in panel.controls.items():
        options = control.slider.options if control.slider else [True, False]
        other = next(stop for stop in options[len(options) // 3 :] if stop != control.value)
        control.source.value = other
        assert panel.errors == [], name
        assert [figure.to_json() for figure in panel.figures] != pictures, name
        assert panel.command.value != command or name in ("tested",), name
        assert panel.words.value != words or name in ("clip_norm",), name
        panel.reset()
    assert (panel.words.value, panel.command.value) == (words, command)
    assert [figure.to_json() for figure in panel.figures] == pictures


@each_panel
def test_updated_figure_is_the_one_drawn_anew(noise: StepNoise, make: Any) -> None:
    panel = make(noise)
    for name, control in panel.controls.items():
        if control.slider:
            options = control.slider.options
            panel.set(**{name: options[len(options) // 3]})
    for name, figure in zip(FIGURES[make], panel.figures, strict=True):
        drawn = getattr(audits_figures, f"{name}_figure")(panel.result)
        assert json.loads(figure.to_json())["layout"] == json.loads(drawn.to_json())["layout"]
        for ours, anew in zip(figure.data, drawn.data, strict=True):
            ours, anew = (json.loads(go.Figure(trace).to_json())["data"][0] for trace in (ours, anew))
            assert {**ours, "uid": None} == {**anew, "uid": None}


@each_panel
def test_every_slider_moves_without_a_fault(noise: StepNoise, make: Any) -> None:
    panel = make(noise)
    assert len(move(panel, 100)) == 100
    panel.check()


def test_step_command_makes_the_same_audit(noise: StepNoise) -> None:
    panel = make_step(noise)
    panel.set(draws=200, z0=2.5, clip_norm=0.3, num_devices=16, alpha_max=1.5)
    assert _audited(panel.command.value)["bounds"]["gaussian"] == panel.result.bounds.gaussian
    panel.set(as_printed=False)
    told = _audited(panel.command.value)
    assert (told["verdict"], told["epsilon_claimed"]) == (panel.result.verdict, panel.result.claimed)


def _audited(command: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*shlex.split(command)[1:], "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_guess_command_prints_what_is_shown(noise: StepNoise, capsys: pytest.CaptureFixture[str]) -> None:
    panel = make_guess(noise)
    python, flag, code = shlex.split(panel.command.value)
    assert (python, flag) == ("python", "-c")
    exec(code, {})
    assert capsys.readouterr().out == f"{panel.result.bounds}\n"


def test_alpha_is_only_to_be_moved_as_printed(noise: StepNoise) -> None:
    panel = make_step(noise)
    assert not panel.controls["alpha_max"].source.disabled
    panel.set(as_printed=False)
    assert panel.controls["alpha_max"].source.disabled


def test_words_name_accountant_neighbours_and_verdict(noise: StepNoise) -> None:
    refuted = audits_words.step_in_words(audit_step(noise, *PRINTED))
    for told in (
        "ε = <b>5.3</b>",
        "39.4",
        "zCDP",
        "Gaussian DP",
        "zeroed out",
        "disjoint",
        "this seed is published",
        "refuted",
    ):
        assert told in refuted
    powerless = audits_words.step_in_words(audit_step(noise, True, 1.0, 0.2, 8, 1.0, 10))
    assert "no power" in powerless
    assert "could not have refuted" in powerless


# ---- Runs ----------------------------------------------------------------------------------------------------------


def test_run_panel_audits_several_seeds_as_the_command_does() -> None:
    panel = audits_panels.OneRunPanel(True, 4.0, 8, 200, 3, seed=5)
    assert panel.children[-1].children == ()  # no command before the first run
    panel.run(wait=True)
    panel.check()
    assert panel.children[-1].children[-1] is panel.command
    assert list(panel.audits) == [5, 6, 7]
    assert panel.state.value == "done"
    told = _audited(panel.command.value)
    assert told["epsilon_lower_bound"] == panel.audits[7].epsilon_lower_bound
    assert [tally["correct"] for tally in told["tallies"]] == [tally.correct for tally in panel.audits[7].tallies]
    assert panel.figures[1].data[0].y == tuple(audit.epsilon_lower_bound for audit in panel.audits.values())
    assert panel.figures[1].data[2].y[0] == pytest.approx(panel.audits[5].epsilon_claimed)
    assert "audits refute" in panel.words.value


def test_stopped_panel_keeps_the_runs_that_were_done() -> None:
    panel = audits_panels.OneRunPanel(False, 1.0, 8, 100, 50, seed=0)
    real = panel._one

    def one_then_stop(*told: Any) -> None:
        real(*told)
        panel.stop()

    panel._one = one_then_stop  # type: ignore[method-assign]
    panel.run(wait=True)
    assert list(panel.audits) == [0]
    assert panel.state.value == "stopped"


def test_bad_run_is_one_sentence() -> None:
    panel = audits_panels.OneRunPanel(True, 4.0, 8, 100, 1, seed=0)
    panel.runs.value = 0
    panel.run(wait=True)
    assert "the number of runs is 0" in panel.error_box.value
    panel.runs.value, panel.z0.value = 1, 0.0
    panel.run(wait=True)
    assert "there is no claim to audit" in panel.error_box.value
    panel.check()


# ---- Figures and notebook ------------------------------------------------------------------------------------------


def test_every_figure_names_its_axes_and_its_epsilon_and_needs_no_colour(noise: StepNoise) -> None:
    panel = audits_panels.OneRunPanel(True, 4.0, 8, 50, 2, seed=0)
    panel.run(wait=True)
    figures = [*make_step(noise).figures, *make_guess(noise).figures, *panel.figures]
    for figure in figures:
        assert all(axis.title.text for axis in [*figure.select_xaxes(), *figure.select_yaxes()])
        caption = figure.layout.title.subtitle.text
        assert re.search("seed|ε = |δ = ", caption)
        assert max(len(line) for line in caption.split("<br>")) <= 70
        shown = [trace for trace in figure.data if trace.showlegend is not False and trace.type == "scatter"]
        looks = [(t.line.dash, str(t.marker.symbol), t.mode) for t in shown]
        assert len(set(looks)) == len(looks), caption


def cells(kind: str) -> list[Any]:
    return [cell for cell in instructor(read_source(NOTEBOOK)).cells if cell.cell_type == kind]


def test_notebook_follows_its_parameters_and_solves_its_exercises(capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        "C": 0.5,
        "z0": 2.0,
        "z0_run": 3.0,
        "num_devices": 4,
        "draws": 50,
        "canaries": 100,
        "seed": 2,
        "STRICT": True,
    }
    space: dict[str, Any] = {}
    for cell in cells("code"):
        exec(cell.source, space)
        if "parameters" in cell.metadata.get("tags", ()):
            assert set(values) < set(space)
            space.update(values)
    step = {"as_printed": True, "clip_norm": 0.5, "z0": 2.0, "num_devices": 4, "alpha_max": 1.0, "draws": 50}
    assert space["step"].values == step
    assert space["step"].result.bounds == audit_step(space["noise"], **step).bounds
    assert space["guesses"].values["canaries"] == 100
    assert list(space["one_run"].audits) == [2, 3, 4, 5, 6]
    assert space["one_run"].audits[2].mechanism.z0 == 3.0
    assert "3 of 3 exercises solved" in capsys.readouterr().out


def test_numbers_that_the_notebook_states_are_computed() -> None:
    noise = StepNoise(0)
    text = "\n".join(cell.source for cell in cells("markdown"))
    hundred = audit_step(noise, True, 1.0, 1.0, 8, 1.0, 100)
    assert hundred.verdict is Finding.REFUTED
    assert "ε = 21 with Gaussian noise, 3.3 without" in text
    assert (hundred.ceiling, hundred.bounds.distribution_free) == pytest.approx((21.1, 3.28), abs=0.05)
    assert "Ten draws cannot prove more than ε = 4.4" in text
    assert audit_step(noise, True, 1.0, 0.3, 8, 1.0, 10).ceiling == pytest.approx(4.4, abs=0.05)
    assert "even 500 right guesses out of 500 prove only ε = 0.6" in text
    assert one_run_epsilon(5000, 500, 500, 1e-3, 0.05) == pytest.approx(0.6, abs=0.05)
    assert "Six (5.8)" in text
    assert one_run_epsilon(1000, 1000, 1000, 1e-5, 0.05) == pytest.approx(5.8, abs=0.05)
