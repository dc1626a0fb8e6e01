"""How fast the cheap panels of every notebook follow their sliders: ``edp-lab bench panels``.

Kernel-side: in a kernel of its own, without a browser. In the browser: in JupyterLab and a headless Chromium, from a
key press on a slider to the first animation frame after the last figure that it changed was redrawn.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import numpy as np
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from edp_lab.course.publish import browser
from edp_lab.course.publish.kernel import KernelManager

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

TIMEOUT = 600  # seconds of a cell
# Presses arrow keys on one slider after the other, as often as asked for in all, turning round at the ends;
# milliseconds of each press that changed a figure, until the frame after the last redrawing. A press is over when the
# kernel is idle again and two frames have gone by without a redrawing, or half a second without any.
PRESS = """
const done = arguments[arguments.length - 1], [heading, moves] = arguments;
const kernel = window.notebook.sessionContext.session.kernel;
const panel = [...document.querySelectorAll(".edp-panel")].find(e => e.querySelector("h3")?.textContent == heading);
const handles = [...panel.querySelectorAll(".noUi-handle")].filter(handle => !handle.closest("[disabled]"));
const plots = [...panel.querySelectorAll(".js-plotly-plot")];
const frame = () => new Promise(requestAnimationFrame), pause = ms => new Promise(resolve => setTimeout(resolve, ms));
let redrawn = 0, painted = null;
const drawn = () => { redrawn++; requestAnimationFrame(() => { painted = performance.now(); }); };
plots.forEach(plot => plot.on("plotly_afterplot", drawn));
const idle = () => new Promise(resolve => {
    let busy = false;
    const hear = (_, status) => {
        busy ||= status == "busy";
        if (busy && status == "idle") { kernel.statusChanged.disconnect(hear); resolve(); }
    };
    kernel.statusChanged.connect(hear);
});
async function press(handle, key) {
    const over = idle(), start = performance.now();
    painted = null;
    handle.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
    await Promise.race([over, pause(5000)]);
    for (let waited = 0; painted === null && waited < 500; waited += 20) await pause(20);
    for (let before = -1; before != redrawn;) { before = redrawn; await pause(20); await frame(); await frame(); }
    return painted === null ? null : painted - start;
}
(async () => {
    panel.scrollIntoView();
    await pause(200);
    const times = [];
    for (const [number, handle] of handles.entries()) {
        const share = Math.floor(moves / handles.length) + (number < moves % handles.length);
        for (let move = 0, way = 1; move < share; move++) {
            const at = name => Number(handle.getAttribute(`aria-value${name}`));
            if (at("now") >= at("max")) way = -1;
            if (at("now") <= at("min")) way = 1;
            times.push(await press(handle, way > 0 ? "ArrowRight" : "ArrowLeft"));
        }
    }
    plots.forEach(plot => plot.removeListener("plotly_afterplot", drawn));
    return times.filter(time => time !== null);
})().then(times => done(JSON.stringify(times)), error => done(JSON.stringify(String(error))));
"""


@dataclass(frozen=True)
class PanelTime:
    """One panel: 95th percentiles in milliseconds, over `moves` in the kernel and `browser_moves` in the browser.

    `browser_ms_p95` is None, and `browser_moves` 0, where there is no browser.
    """

    notebook: str
    panel: str
    kernel_ms_p95: float
    browser_ms_p95: float | None
    moves: int
    browser_moves: int


def bench_panels(
    notebooks: Sequence[Path], moves: int = 200, browser_moves: int = 100, say: Callable[[str], None] = print
) -> Iterator[PanelTime]:
    """Time every cheap panel of these notebooks.

    Args:
        moves, browser_moves: over all sliders of a panel; 0 in the browser leaves the browser out.
        say: is told what is being done.
    """
    seen = _in_browser(notebooks, browser_moves, say) if browser_moves else {}
    for path in notebooks:
        say(f"{path.stem} in its kernel")
        for row in _in_kernel(path, moves):
            pressed = seen.get((path.stem, row["panel"]), [])
            painted = _p95(pressed) if pressed else None
            kernel = row["kernel_ms"]
            yield PanelTime(path.stem, row["panel"], _p95(kernel), painted, len(kernel), len(pressed))


def _p95(times: Sequence[float]) -> float:
    return round(float(np.percentile(times, 95)), 1)


def _in_kernel(path: Path, moves: int) -> list[dict[str, Any]]:
    """Heading and times of each cheap panel, after all cells of the notebook."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(new_code_cell(f"from edp_lab.course.kit import panel_driver as live\nlive.time_all({moves})"))
    client = NotebookClient(notebook, timeout=TIMEOUT, kernel_manager_class=KernelManager)
    client.execute(cwd=str(path.parent.resolve()))
    return ast.literal_eval(notebook.cells[-1].outputs[-1].data["text/plain"])  # what is printed may come too late


def _in_browser(
    notebooks: Sequence[Path], moves: int, say: Callable[[str], None]
) -> dict[tuple[str, str], list[float]]:
    """By notebook and heading of the panel, the times of its key presses."""
    found = {}
    with browser.chromium() as driver, browser.jupyterlab(notebooks) as address:
        for path in notebooks:
            say(f"{path.stem} in the browser")
            browser.finish_notebook(driver, browser.start_notebook(driver, address, path.name))
            for heading in _headings(driver):
                found[path.stem, heading] = _press(driver, heading, moves)
            browser.close_notebook(driver)
    return found


def _headings(driver: Chrome) -> list[str]:
    """Of the panels that have a slider."""
    code = "from edp_lab.course.kit import panel_driver as live; live.show_all()"
    return [panel["heading"] for panel in json.loads(browser.ask_kernel(driver, code)) if panel["sliders"]]


def _press(driver: Chrome, heading: str, moves: int) -> list[float]:
    times = json.loads(driver.execute_async_script(PRESS, heading, moves))
    if isinstance(times, str):
        raise RuntimeError(f"{heading}: {times}")
    return times
