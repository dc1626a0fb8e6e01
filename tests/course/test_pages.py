"""Pages without a kernel: at any setting, they show the kernel's result or mark the control that was moved."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ipywidgets.embed import embed_data
from nbformat.v4 import new_code_cell, new_notebook, new_output

from edp_lab.course.kit.controls import OPTIONS, Control
from edp_lab.course.kit.panel import Panel
from edp_lab.course.kit.table import BYTES, STATES, table
from edp_lab.course.run import page_element, page_of, page_state, write_shared
from tests import browser as browsing
from tests.course.conftest import console_errors
from tests.course.examples import all_panels, panel_of

SETTINGS = 200 if os.environ.get("EDP_LAB_LONG") else 48

LOOK = (browsing.ROOT / "tests/course/look.js").read_text(encoding="utf-8")
# The position of a panel's control and the value to enter; returns what the panel shows after painting.
ENTER = """
const [place, k, kind, value, done] = arguments;
const flat = numbers => Array.from(numbers).flatMap(row => ArrayBuffer.isView(row) ? [...row] : row);
const panel = document.querySelectorAll(".edp-panel")[place], control = panel.querySelectorAll(".edp-control")[k];
const [input] = kind == "choice" ? [control.querySelectorAll("input")[value]] :
    control.querySelectorAll(kind == "list" ? "select" : "input[type=text]");
if (kind == "choice") input.checked = true;
else if (kind == "list") input.selectedIndex = value;
else input.value = value;
const start = performance.now(), top = panel.querySelector(".edp-tiles").offsetTop;
input.dispatchEvent(new Event("change"));
requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done({
    milliseconds: performance.now() - start,
    moved: panel.querySelector(".edp-tiles").offsetTop - top,
    marks: [...panel.querySelectorAll(".edp-lab-error[role]")].map(error => error.textContent),
    tiles: [...panel.querySelectorAll(".edp-tile")].map(tile => [...tile.children].map(part => part.textContent)),
    sentence: panel.querySelector(".edp-tiles p").textContent,
    traces: [...panel.querySelectorAll(".js-plotly-plot")].map(plot => plot._fullData.map(
        trace => Object.fromEntries(["x", "y", "z"].map(name => [name, flat(trace[name] ?? [])])))),
    axes: [...panel.querySelectorAll(".js-plotly-plot")].map(plot => Object.fromEntries(
        Object.keys(plot._fullLayout).filter(name => /^[xy]axis/.test(name)).map(
            name => [name, plot._fullLayout[name].range]))),
}))));
"""
RESET = """
const [place] = arguments;
const buttons = [...document.querySelectorAll(".edp-panel")[place].querySelectorAll("button")];
buttons.find(button => button.textContent == "reset").click();
"""


@pytest.fixture(scope="module")
def panels() -> dict[str, Panel]:
    made = {name: panel_of(name) for name in sorted(all_panels())}
    return {name: panel for name, panel in made.items() if isinstance(panel, Panel)}


@pytest.fixture(scope="module")
def tables(panels: dict[str, Panel]) -> dict[str, Any]:
    return {panel.model_id: table(panel) for panel in panels.values()}


@pytest.fixture(scope="module")
def page(
    panels: dict[str, Panel], tables: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[browsing.Chrome]:
    """A page with all panels, in a browser without access to other machines."""
    if problem := browsing.missing():
        pytest.skip(problem)
    folder = tmp_path_factory.mktemp("pages")
    states = embed_data(views=[*panels.values()], drop_defaults=False)["manager_state"]["state"]
    shown = [page_element(page_state(panel.model_id, states, tables)) for panel in panels.values()]
    cells = [new_code_cell(outputs=[new_output("display_data", {"text/html": html})]) for html in shown]
    (folder / "all.html").write_text(page_of(new_notebook(cells=cells), "all", folder), encoding="utf-8")
    write_shared(folder)
    with browsing.chromium() as driver:
        driver.get((folder / "all.html").as_uri())
        drawn = "return document.querySelectorAll('.edp-panel .js-plotly-plot .main-svg').length > 0 && edpLabReady"
        browsing.until(lambda: driver.execute_script(drawn), 60, "no panels")
        yield driver


def entered(control: Control, draw: random.Random) -> Any:
    """A stop, an option, or any number up to slightly beyond the ends of a slider."""
    if control.kind in OPTIONS:
        return draw.randrange(len(control.names))
    if draw.random() < 0.7 or not control.stops:
        return draw.choice([*control.stops, control.default])
    return draw.uniform(0.5 * control.stops[0], 1.2 * control.stops[-1])


def numbers(values: Any) -> np.ndarray | None:
    try:
        return np.array([np.nan if value is None else value for value in values], dtype=float)
    except (TypeError, ValueError):
        return None


def test_a_page_equals_the_kernel_or_marks_the_control(panels: dict[str, Panel], page: browsing.Chrome) -> None:
    draw, compared, milliseconds = random.Random(0), 0, []
    for k in range(SETTINGS):
        place = k % len(panels)
        name, panel = [*panels.items()][place]
        panel.reset()
        page.execute_script(RESET, place)
        for control_name in draw.sample([*panel.controls], draw.randint(1, min(3, len(panel.controls)))):
            control = panel.controls[control_name]
            value = entered(control, draw)
            at = [*panel.controls.values()].index(control)
            found = page.execute_async_script(ENTER, place, at, control.kind, value)
            milliseconds.append(found["milliseconds"])
            assert found["moved"] == 0, name  # space for messages is reserved
            if any(found["marks"]):
                break
            panel.set(**{control_name: control.meaning(value)})
            compare(name, panel, found)
            compared += 1
    quantiles = np.quantile(milliseconds, [0.5, 0.95]).round(1)
    print(f"{compared} of {len(milliseconds)} moves equal, the others marked; p50 and p95: {quantiles} ms")
    assert compared > SETTINGS / 2
    assert console_errors(page) == []


def test_the_last_plot_of_algorithm_1_moves_with_the_mean(panels: dict[str, Panel], page: browsing.Chrome) -> None:
    panel, place = panels["04 stages"], [*panels].index("04 stages")
    panel.reset()
    page.execute_script(RESET, place)
    for name, value in (("as_printed", False), ("num_devices", 32)):
        control, at = panel.controls[name], [*panel.controls].index(name)
        found = page.execute_async_script(ENTER, place, at, control.kind, 1 if name == "as_printed" else value)
        panel.set(**{name: value})
        compare("04 stages", panel, found)


def test_on_a_telephone_nothing_is_cut_or_covered(page: browsing.Chrome) -> None:
    browsing.resize(page, 360, 740)
    browsing.until(lambda: page.execute_script(f"{LOOK} return panels().every(fits)"), 60, "a figure does not fit")
    faults = "panels().flatMap(panel => [cut, covered, stickingOut].flatMap(find => find(panel)))"
    assert page.execute_script(f"{LOOK} return [{faults}, document.documentElement.scrollWidth]") == [[], 360]


def compare(name: str, panel: Panel, found: dict[str, Any]) -> None:
    assert [tile[:3] for tile in panel.tiles.tiles] == found["tiles"], name
    assert panel.tiles.sentence == found["sentence"], name
    for live, traces, axes in zip(panel.figures, found["traces"], found["axes"], strict=True):
        extended = "scaleanchor" in repr(live.figure["layout"])  # plotly extends some ranges, to keep circles round
        for axis, range_shown in axes.items():
            wanted, shown = sorted(live.figure["layout"][axis].get("range", range_shown)), sorted(range_shown)
            assert np.allclose(np.clip(wanted, *shown) if extended else shown, wanted, rtol=1e-5), (name, axis)
        assert len(traces) == len(live.figure["data"]), name
        for trace, other in zip(live.figure["data"], traces, strict=True):
            for axis in "xyz":
                if (wanted := numbers(trace.get(axis, ()))) is not None and wanted.size:
                    assert np.allclose(wanted.ravel(), numbers(other[axis]), rtol=1e-6, atol=1e-300, equal_nan=True), (
                        name
                    )


def test_tables_are_small_and_most_panels_move_two_controls_together(
    panels: dict[str, Panel], tables: dict[str, Any]
) -> None:
    together = 0
    for panel in panels.values():
        controls, states = tables[panel.model_id]["controls"], tables[panel.model_id]["states"]
        joint = np.prod([len(control["stops"]) for control in controls if control["joint"]])
        assert joint + sum(len(control["stops"]) for control in controls if not control["joint"]) <= STATES
        assert len(states) * 3 / 4 <= BYTES
        together += sum(control["joint"] and len(control["stops"]) > 1 for control in controls) > 1
    assert len(panels) >= 22
    assert together >= 15


def test_every_slider_of_the_method_moves_on_a_page(panels: dict[str, Panel], tables: dict[str, Any]) -> None:
    panel = panels["04 decay"]
    stops = [len(control["stops"]) for control in tables[panel.model_id]["controls"]]
    moving = dict(zip(panel.controls, stops, strict=True))
    assert min(moving[name] for name in ("clip_norm", "z0", "tau", "num_devices")) > 4
