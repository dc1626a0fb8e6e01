"""The contract of every panel in the course's registry, including panels added by readers (see CONTRIBUTING.md).

A panel's figures follow its result. It reports a bad value in one sentence and keeps its last result, can be reset,
gives a command that runs, and has figures with axis titles that can be read without colour.
"""

import inspect
import math
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import click
import plotly.graph_objects as go
import pytest
import typer

from edp_lab.__main__ import app
from edp_lab.course.kit.figure import LiveFigure
from edp_lab.course.kit.panel import Frame, Panel
from edp_lab.course.kit.runs import RunPanel, Runs
from edp_lab.course.nb01_coins.panels import GAUSSIAN
from edp_lab.course.nb04_edp_sgd.panels import CLAIMED_NAME, PRINTED_NAME
from edp_lab.course.nb04_edp_sgd.panels import SOUND_NAME as SOUND_VARIANT
from edp_lab.course.nb06_audit.panels import StepNoise
from edp_lab.course.nb08_models.panels import layers
from edp_lab.errors import UsageError
from tests.course.examples import THESIS, all_panels, drawn, panel_of, phases_sketch, report_of


def made_by(make: Any) -> type:
    """The class created by a function or class of the registry."""
    return make if isinstance(make, type) else inspect.signature(make, eval_str=True).return_annotation


PANELS = all_panels()
WITH_SLIDERS = [name for name, make in PANELS.items() if issubclass(made_by(make), Panel)]


@pytest.fixture
def panel(request: pytest.FixtureRequest) -> Any:
    return panel_of(request.param)


every_panel = pytest.mark.parametrize("panel", list(PANELS), indirect=True)
with_sliders = pytest.mark.parametrize("panel", WITH_SLIDERS, indirect=True)


def ends(control: Any) -> list[Any]:
    """Both ends and the middle of a slider, up to a dozen options of buttons or a list, or a word as text."""
    if not control.stops:
        options = [value for _, value in control.options or [("", "noise")]]
        return options[:: 1 + len(options) // 12]
    stops = list(control.stops)
    return [stops[0], stops[len(stops) // 2], stops[-1]]


def elsewhere(panel: Panel, sliders: bool = True) -> dict[str, Any]:
    """Different values: sliders in the middle, or unchanged, and the last button of each control."""
    buttons = {name: ends(c)[-1] for name, c in panel.controls.items() if c.kind == "choice"}
    return buttons | {name: ends(c)[1] for name, c in panel.controls.items() if sliders and c.stops}


def said(panel: Panel) -> str:
    """All messages, whether under a control or above the figures."""
    return panel.error_box.value + "".join(control.error for control in panel.controls.values())


def shown(panel: Panel) -> str:
    return repr((panel.words.value, panel.command.value, [live.drawn for live in panel.figures]))


@with_sliders
def test_each_control_moves_to_its_ends_and_the_figures_follow(panel: Panel) -> None:
    first, changed = shown(panel), set()
    for name, control in panel.controls.items():
        for value in ends(control):
            control.value = value
            assert [error for error in panel.errors if not isinstance(error, UsageError)] == [], (name, value)
            if not said(panel):
                for live, draw in zip(panel.figures, panel.draws, strict=True):
                    assert live.drawn == LiveFigure(draw(panel.result)).drawn
                assert not re.search(r"\bnan\b|\bNone\b(?! of )|\{\{", panel.words.value), (name, value)
                if shown(panel) != first:
                    changed.add(name)
        panel.reset()
        assert shown(panel) == first, f"reset does not undo {name}"
    movable = {
        name for name, control in panel.controls.items() if len(control.options) != 1
    }  # one of the corpora may be available
    assert changed == movable, "some controls change nothing"


BY_BUTTONS_ALONE = {"variant", "adjacency", "row"}  # only buttons set these; they are not words in a call of `compute`


@with_sliders
def test_a_word_that_is_no_option_is_refused_by_its_name(panel: Panel) -> None:
    for name, control in panel.controls.items():
        options = [value for _, value in control.options]
        if options and name not in BY_BUTTONS_ALONE and all(isinstance(value, str) for value in options):
            with pytest.raises(UsageError, match="no such"):
                panel.compute(**{**panel.values, name: "no such"})


@with_sliders
def test_a_bad_value_is_one_sentence_and_the_last_result_stays(panel: Panel) -> None:
    for name, control in panel.controls.items():
        if control.kind == "number":
            refused = dict.fromkeys((-1, -(10**6), 0, math.inf, "many"), False)
            for value in refused:
                before = panel.result
                control.value = value
                assert all(isinstance(error, UsageError) for error in panel.errors), (name, value, panel.errors)
                refused[value] = bool(control.error)
                assert said(panel) == control.error
                assert ("edp-stale" in panel._dom_classes) == refused[value], (
                    "what does not belong to the value is grey"
                )
                assert (panel.result is before) == refused[value]
                assert not refused[value] or not re.search(r"\n|\bnan\b", str(panel.errors[-1])), (name, value)
            assert refused["many"]
            assert refused[-1] or refused[-(10**6)], f"{name} takes {refused}"
            assert not any(re.search(r"--\w", control.error) for control in panel.controls.values())
            panel.reset()
            assert said(panel) == ""


def assert_readable(figure: go.Figure) -> None:
    """Check that every axis has a title, captions have short lines, and legend entries differ not only by colour.

    No title is required for an axis that shares another's title, has named positions, is inside a grid of plots with
    titles at its edges, or is a bare side of a picture.
    """
    used: dict[str, set[str]] = {}
    for trace in figure.data:
        for axis in (trace.xaxis or "x", trace.yaxis or "y") if hasattr(trace, "xaxis") else ():
            used.setdefault(f"{axis[0]}axis{axis[1:]}", set()).add(trace.type)
    titled = {(name[0], figure.layout[name].domain) for name in used if figure.layout[name].title.text}
    for name, axis, types in ((name, figure.layout[name], types) for name, types in used.items()):
        bare = axis.showticklabels is False and (axis.matches or types == {"heatmap"})
        inside = axis.domain and (name[0], axis.domain) in titled
        assert axis.title.text or axis.ticktext or axis.categoryarray or inside or bare, f"{axis} has no title"
    assert figure.layout.title.text
    assert not re.search(r"&lt;/?(br|b|i|sup|sub|extra)&gt;", figure.to_json()), "markup in a figure is `Html`"
    caption = figure.layout.title.subtitle.text or ""
    assert all(len(line) <= 100 for line in caption.split("<br>")), caption
    lines = [trace for trace in figure.data if trace.type == "scatter" and trace.showlegend is not False]
    lines = [trace for trace in lines if trace.visible is not False]
    looks = [(trace.legend, trace.line.dash, trace.line.width, trace.marker.symbol, trace.mode) for trace in lines]
    fills = [trace.fill if trace.line.width else trace.fillcolor for trace in lines]  # areas have only a colour
    assert len({*zip(looks, fills, strict=True)}) == len(looks), "two lines of one legend differ by colour alone"
    patterns = [trace.marker.pattern for trace in figure.data if trace.type == "bar"]
    hidden = [one for one in patterns if one.shape and one.fgcolor and one.fillmode != "overlay" and not one.bgcolor]
    assert hidden == [], "where a white pattern replaces the colour, the bar cannot be seen"


@every_panel
def test_headings_sliders_and_axes_say_what_they_are_and_need_no_colour(panel: Frame) -> None:
    heading = panel.children[0].value
    assert re.fullmatch(r"<h3>.+</h3>.+[.?]", heading)
    assert all(control.label for control in panel.controls.values())
    for figure in drawn(panel) if isinstance(panel, Panel | RunPanel) else ():
        assert_readable(figure)


@with_sliders
def test_the_command_says_what_is_shown(panel: Panel, capsys: pytest.CaptureFixture[str]) -> None:
    """Python commands are executed and return the panel's result; command lines are parsed with all options."""
    for values in ({}, elsewhere(panel)):
        panel.set(**values)
        *before, last = panel.command.value.splitlines()
        if before and before[0].startswith("from "):
            space: dict[str, Any] = {}
            exec("\n".join([*before, f"given = {last}"]), space)
            assert type(space["given"]) is type(panel.result)
            continue
        for line in [*before, last]:
            words = shlex.split(line, comments=True)
            if words[:2] == ["python", "-c"]:
                given: list[Any] = []
                exec(words[2], {"print": lambda *told, given=given, **_: given.extend(told)})
                assert given, "the command prints nothing"
                if type(given[0]) is type(panel.result):
                    assert repr(given[0]) == repr(panel.result)
            elif words:
                assert words[0] == "edp-lab"
                parse(words[1:])
    capsys.readouterr()


def parse(words: list[str]) -> None:
    """Parse a command line without executing it."""
    command, context = typer.main.get_command(app), None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name="edp-lab")
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"no command {name}"
        command = found
    command.make_context(command.name, words, parent=context)


@every_panel
def test_what_is_seen_at_first_is_six_controls_two_numbers_and_a_sentence(panel: Any) -> None:
    assert sum(not control.rare for control in panel.controls.values()) <= 6
    if isinstance(panel, Panel):
        assert len(panel.tiles.tiles) == 2
        assert panel.tiles.sentence.endswith((".", "?", "”"))


RUNNING = [name for name, make in PANELS.items() if issubclass(made_by(make), Runs)]
KEPT = {"07 Explorer": "live", "06 OneRun": "audits"}
KEPT |= {"10 Pipeline": "runs"}  # computed only by whole runs


def boxes(widget: Any) -> Iterator[Any]:
    """All text boxes for numbers."""
    if getattr(widget, "kind", "") == "number":
        yield widget
    for child in getattr(widget, "children", ()):
        yield from boxes(child)


@pytest.mark.parametrize("panel", RUNNING, indirect=True)
def test_a_panel_that_runs_starts_nothing_with_bad_values_ends_when_it_is_stopped_and_hides_no_fault(
    panel: Runs, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = request.node.callspec.params["panel"]
    for box in boxes(panel):
        good, box.value = box.value, -1
        panel.run(wait=True)
        assert re.fullmatch(".+", panel.error_box.value), f"{box.label} takes -1"
        box.value = good

    def stop_at_once(_: object) -> None:
        assert (panel.run_button.disabled, panel.stop_button.disabled) == (True, False)
        panel.run()
        assert "a run is in progress" in panel.error_box.value
        panel.stop_button.click()

    if name not in ("11 Again",):  # these take long, so their own tests use stand-ins
        panel.state.observe(stop_at_once, "value")
        panel.run(wait=True)
        panel.check()
        assert panel.state.value == "stopped"
        assert not getattr(panel, KEPT.get(name, ""), ())
        panel.state.unobserve_all()
    for fault in (UsageError("the disk is full"), RuntimeError("out of memory")):
        monkeypatch.setattr(panel, "work", Mock(side_effect=fault))
        panel.run(wait=True)
        assert str(fault) in panel.error_box.value
        assert (panel.run_button.disabled, panel.stop_button.disabled) == (False, True)
    with pytest.raises(RuntimeError, match="out of memory"):
        panel.check()
    panel.errors.clear()


# ---- Command lines give the epsilon that a panel shows ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: layers("gpt", None), "unknown model 'gpt': choose clc, bert"),  # type: ignore[arg-type]
        (lambda: StepNoise(-1), "seed is -1"),
        (lambda: PANELS["10 Pipeline"](phases_sketch(), replace(THESIS, vote="hard")), "a hard vote has no noise"),
    ],
)
def test_what_only_code_can_ask_for_is_refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()


# For each panel: values, the index of a command line, and functions that return epsilon from its JSON and result.
Epsilon = Callable[[Any], Any]
COMMANDS: list[tuple[str, list[dict[str, Any]], int, str, Epsilon]] = [
    ("01 delta", [{}, {"epsilon": 0.5}], 1, "guaranteed", lambda r: r.epsilon),
    ("01 composition", [{}, {"epsilon": 0.5}], 1, "guaranteed", lambda r: r.last[GAUSSIAN]),
    ("02 cloud", [{}, {"rule": "by value"}, {"z": 5.0}], 1, "guaranteed", lambda r: r.guarantee.conditional_epsilon),
    (
        "02 training",
        [{}, {"sampling": "shuffle"}, {"z": 5.0}],
        1,
        "guaranteed",
        lambda r: r.guarantee.conditional_epsilon,
    ),
    ("04 promise", [{}, {"micro_batch_size": 1}], 0, "guaranteed", lambda r: r.epsilon[PRINTED_NAME]),
    ("04 promise", [{}, {"alpha_max": 3.0}], 0, "claimed", lambda r: r.epsilon[CLAIMED_NAME]),
    ("04 promise", [{}, {"alpha_max": 3.0}], 1, "guaranteed", lambda r: r.epsilon[SOUND_VARIANT]),
    ("03 bill", [{}, {"epochs": 3}], 0, "claimed", lambda r: r.guarantee.claimed_epsilon),
    ("03 bill", [{}, {"epochs": 3}], 0, "guaranteed", lambda r: r.guarantee.conditional_epsilon),
    ("03 bill", [{"target": 0.5}], 1, "guaranteed", lambda r: r.target),
    ("03 loss", [{}], 0, "guaranteed", lambda r: r.epsilon),
    ("03 sampling", [{}], 0, "guaranteed", lambda r: r.sampled[-1]),
    ("03 sampling", [{}], 1, "guaranteed", lambda r: r.shuffled[-1]),
    (
        "04 stages",
        [{}, {"as_printed": False, "alpha_large": 5.0}, {"num_devices": 2, "z": 3.0}],
        0,
        "guaranteed",
        lambda r: r.guarantee.conditional_epsilon,
    ),
]


@pytest.mark.parametrize(("name", "settings", "line", "what", "epsilon"), COMMANDS)
def test_command_line_gives_the_epsilon_that_is_shown(
    name: str, settings: list[dict[str, Any]], line: int, what: str, epsilon: Epsilon
) -> None:
    for values in settings:
        panel = panel_of(name, **values)
        report = report_of(panel.command.value.splitlines()[line])
        shown = report[what]["epsilon" if what == "claimed" else "epsilon_in_real_numbers"]
        assert shown == pytest.approx(epsilon(panel.result), rel=1e-4 if name[:2] in ("01", "07") else 1e-6)
        held = getattr(panel.result, "guarantee", None)
        assert held is None or report["guaranteed"]["adjacency"] == held.adjacency
