"""Notebook 04: its panels draw, say and command what is computed, and the notebook follows its parameters."""

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
from typer.testing import CliRunner

from edp_lab.cli import app
from edp_lab.course.kit.old_panel import FigurePanel
from edp_lab.course.kit.panel_driver import move
from edp_lab.course.nb04_cost import figures as cost_figures
from edp_lab.course.nb04_cost import panels as cost_panels
from edp_lab.course.nb04_cost import words as cost_words
from edp_lab.course.nb04_cost.compute import (
    AS_PRINTED,
    PUBLIC_ALPHA,
    SOUND,
    Loss,
    RunBill,
    Sampled,
    run_bill,
)
from edp_lab.course.nb04_cost.table1_cells import Behind
from edp_lab.course.publish.runner import notebook_parameters
from edp_lab.errors import UsageError

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "source" / "04_what_does_it_cost.ipynb"


# ---- Panels --------------------------------------------------------------------------------------------------------


def make_bill() -> FigurePanel:
    return cost_panels.bill_panel(1.0, 1.0, "exponential", 0.1, 8, 30, 1e-5, 8.0)


def make_loss() -> FigurePanel:
    return cost_panels.loss_panel(0.5, 10, 1e-5, 1000, 0)


def make_sampling() -> FigurePanel:
    return cost_panels.sampling_panel(0.01, 1.0, 1000, 1e-5)


def make_table1() -> FigurePanel:
    return cost_panels.table1_panel(30)


FIGURES = {
    make_bill: ("bill", "spend"),
    make_loss: ("loss", "tradeoff"),
    make_sampling: ("sampled", "output"),
    make_table1: ("reach", "settings", "cells"),
}
each_panel = pytest.mark.parametrize("make", FIGURES)


def moves(control: Any) -> list[Any]:
    """Where a slider stops, or which buttons there are."""
    return list(control.slider.options) if control.slider else [value for _, value in control.source.options]


def same(one: Any, other: Any) -> bool:
    """Whether two results hold the same values."""
    return json.dumps(asdict(one), default=_plain) == json.dumps(asdict(other), default=_plain)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else vars(value)


@each_panel
def test_every_control_changes_words_figures_and_command_and_reset_undoes_it(make: Any) -> None:
    panel = make()
    first, words, command = panel.result, panel.words.value, panel.command.value
    pictures = [figure.to_json() for figure in panel.figures]
    for name, control in panel.controls.items():
        options = moves(control)
        (control.slider or control.source).value = next(
            stop for stop in options[len(options) // 3 :] if stop != control.value
        )
        assert panel.errors == [], name
        assert panel.command.value != command, name
        assert panel.words.value != words or name == "clip_norm", name
        assert [figure.to_json() for figure in panel.figures] != pictures or name == "clip_norm", name
        panel.reset()
    assert (panel.words.value, panel.command.value) == (words, command)
    assert [figure.to_json() for figure in panel.figures] == pictures
    assert same(panel.result, first)


def said(line: str) -> dict[str, Any]:
    words = shlex.split(line)
    assert words[0] == "edp-lab"
    result = CliRunner().invoke(app, [*words[1:], "--json"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize(
    "change", [{}, {"variant": SOUND, "utterances": 2}, {"variant": PUBLIC_ALPHA, "decay": "none"}]
)
def test_command_of_the_bill_says_what_is_shown(change: dict[str, Any]) -> None:
    panel = make_bill()
    panel.set(**change)
    lines, result = panel.command.value.splitlines(), panel.result
    report = said(lines[0])
    assert report["claimed"]["epsilon"] == pytest.approx(result.claimed[-1])
    assert report["holds"]["epsilon"] == pytest.approx(result.guarantee.epsilon)
    assert report["holds"]["epsilon_if_alpha_public"] == pytest.approx(result.exact[-1])
    assert len(lines) == (2 if result.guarantee.epsilon is None else 1)
    calibration = said(lines[-1])["calibration"]  # with a public alpha, where a private one meets no target
    assert calibration["z0"] == pytest.approx(result.z0_needed)
    assert calibration["epochs"] == result.epochs_allowed


def test_commands_of_the_other_panels_say_what_is_shown() -> None:
    panel = make_loss()
    line, python = panel.command.value.splitlines()
    assert said(line)["holds"]["epsilon"] == pytest.approx(panel.result.epsilon)
    printed: list[Any] = []
    assert shlex.split(python)[:2] == ["python", "-c"]
    exec(shlex.split(python)[2], {"print": printed.append})
    assert same(printed[0], panel.result)
    panel = make_sampling()
    sampled, shuffled = panel.command.value.splitlines()
    assert said(sampled)["holds"]["epsilon"] == pytest.approx(panel.result.sampled[-1])
    assert said(shuffled)["holds"]["epsilon"] == pytest.approx(panel.result.shuffled[-1])
    panel = make_table1()
    study, account = panel.command.value.splitlines()
    assert said(study)["common_epochs"] == [30, 31]
    report = said(account)
    assert math.log10(report["claimed"]["epsilon"]) == pytest.approx(24.4, abs=0.05)


@each_panel
def test_bad_value_is_one_sentence_and_the_last_result_stays(make: Any) -> None:
    panel = make()
    before = panel.result
    panel.set(**{next(name for name in ("epochs", "releases", "steps") if name in panel.controls): -1})
    assert "the number of" in panel.error_box.value
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
    panel.set(**{name: moves(control)[len(moves(control)) // 3] for name, control in panel.controls.items()})
    assert panel.errors == []
    for name, figure in zip(FIGURES[make], panel.figures, strict=True):
        drawn = getattr(cost_figures, f"{name}_figure")(panel.result)
        assert json.loads(figure.to_json())["layout"] == json.loads(drawn.to_json())["layout"]
        for ours, anew in zip(figure.data, drawn.data, strict=True):
            ours, anew = (json.loads(go.Figure(trace).to_json())["data"][0] for trace in (ours, anew))
            kept = (
                {} if anew.get("visible") is not False else {"x": None, "y": None, "name": None, "hovertemplate": None}
            )
            assert {**ours, "uid": None, **kept} == {**anew, "uid": None, **kept}


def test_every_figure_names_its_axes_and_its_account_and_needs_no_colour() -> None:
    for figure in [figure for make in FIGURES for figure in make().figures]:
        assert all(axis.title.text for axis in figure.select_xaxes())
        assert any(axis.title.text for axis in figure.select_yaxes())
        caption = figure.layout.title.subtitle.text
        assert "δ = " in caption
        assert re.search("zCDP|Gaussian DP|zero-out", caption)
        wide = figure.layout.title.text.startswith("What the cells")
        assert max(len(line) for line in caption.split("<br>")) <= (80 if wide else 56)
        shown = [trace for trace in figure.data if trace.showlegend is not False and trace.type == "scatter"]
        colored = [(t.legend, t.line.dash, t.marker.symbol, t.mode, t.fillcolor) for t in shown]
        again = len(colored) - len(set(colored))
        assert again == 0 or figure.layout.title.text == "Which z0 fits?", caption  # eight lines, four dashes


def test_decay_rate_is_alive_only_with_decay() -> None:
    panel = make_bill()
    assert not panel.controls["tau"].slider.disabled
    panel.set(decay="none")
    assert panel.controls["tau"].slider.disabled


def test_tight_accounts_follow_the_panel_and_only_run_on_demand() -> None:
    above = make_sampling()
    panel = cost_panels.TightPanel(above)
    assert panel.accounts == []
    above.set(rate=0.1, noise_multiplier=2.0, steps=20)
    panel.run(wait=True)
    panel.check()
    everyone, shuffled, renyi, tight = (account.epsilon for account in panel.accounts)
    assert (everyone, shuffled) == (above.result.everyone[-1], above.result.shuffled[-1])
    assert tight < renyi == pytest.approx(above.result.sampled[-1])
    assert said(panel.command.value)["holds"]["epsilon"] == pytest.approx(tight)
    assert f"<b>{cost_words.digits(tight)}</b> by privacy loss distributions" in panel.words.value
    assert panel.figure.data[0].x[-1] == tight


# ---- The notebook --------------------------------------------------------------------------------------------------


def cells(kind: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == kind]


def test_notebook_follows_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        "C": 0.5, "z0": 3.0, "tau": 0.2, "decay": "linear", "num_devices": 4, "epochs": 7, "delta": 1e-6, "seed": 3,
        "corpus": "smart-home", "STRICT": True,
    }  # fmt: skip
    assert set(notebook_parameters(NOTEBOOK)) == {"mode", *values}
    space: dict[str, Any] = {}
    for cell in cells("code"):
        exec(cell.source, space)
        if "parameters" in cell.metadata.get("tags", ()):
            space.update(values)
    panel = space["bill_panel"]
    assert panel.values == {
        "variant": AS_PRINTED, "clip_norm": 0.5, "z0": 3.0, "decay": "linear", "tau": 0.2, "num_devices": 4,
        "epochs": 7, "delta": 1e-6, "utterances": 1, "target": 8.0,
    }  # fmt: skip
    wanted = run_bill(**panel.values)
    assert same(panel.result, wanted)
    assert space["loss_panel"].values["seed"] == 3
    assert space["sampling_panel"].values["delta"] == 1e-6
    out = capsys.readouterr().out
    assert f"ε = {wanted.claimed[-1]:.6g} by hand, {wanted.claimed[-1]:.6g} by the library" in out
    assert "3 of 3 exercises solved" in out


def test_results_of_all_panels_have_a_type() -> None:
    types = [RunBill, Loss, Sampled, Behind]
    assert [type(make().result) for make in FIGURES] == types
