"""Every notebook in a real JupyterLab and a real browser: its panels follow mouse and keyboard, and nothing leaves.

A screenshot of each panel at two widths is kept under runs/screenshots/.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from edp_lab.course.publish import browser as browsing
from edp_lab.course.publish.browser import until
from tests.course.conftest import NOTEBOOKS, ROOT, asked_elsewhere, console_errors

pytest.importorskip("selenium", reason="the browser test needs selenium: pip install -e '.[test]'")

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

SCREENSHOTS = ROOT / "runs" / "screenshots"
WIDTHS = (1280, 800, 930, 1920)
IN_VIEW = 640  # pixels that JupyterLab leaves a notebook in a window of 1280 x 800
HEIGHT = browsing.SIZE[1]
SECONDS = 20  # that a panel may take to follow on a busy machine

ERRORS = """
const boxes = document.querySelectorAll('.edp-lab-error, .jp-RenderedText[data-mime-type*=stderr], .jp-mod-error');
return [...boxes].map(box => box.textContent.trim()).filter(text => text);
"""
PANELS = "return [...document.querySelectorAll('.edp-panel')]"
# The sliders of the first panel that has one, those left out that are switched off.
SLIDERS = """
const handles = [...document.querySelectorAll('.edp-panel input[type=range]:enabled')].filter(e => e.offsetWidth);
return handles.filter(handle => handle.closest('.edp-panel') == handles[0].closest('.edp-panel'));
"""
# What a panel shows: its read-outs, its number boxes, and what its figures have drawn.
SHOWN = """
const panel = arguments[0].closest('.edp-panel');
const numbers = values => values?.length === undefined || typeof values === 'string' ? undefined
    : Array.from(values).flatMap(v => v?.length === undefined || typeof v === 'string' ? [v] : Array.from(v));
return JSON.stringify({
    heading: panel.querySelector('h3').textContent,
    words: [...panel.querySelectorAll('.widget-html-content, .edp-fold :is(div, pre)')].map(e => e.textContent),
    box: arguments[0].closest('.edp-control').querySelector('input[type=text]').value,
    figures: [...panel.querySelectorAll('.js-plotly-plot')].map(plot => plot._fullData.map(
        trace => Object.fromEntries(['x', 'y', 'z'].map(key => [key, numbers(trace[key])])))),
});
"""
BOX = "return arguments[0].closest('.edp-control').querySelector('input[type=text]')"
BUTTONS = "return [...document.querySelectorAll('.edp-panel .modebar-btn')].map(e => e.dataset.title ?? '')"
AS_TEXT = "const e = document.createElement('div'); e.innerHTML = arguments[0]; return e.textContent"
# Right edges of a panel's figures, of their drawings, and of the panel.
EDGES = """
const right = element => element.getBoundingClientRect().right;
const figures = [...arguments[0].querySelectorAll('.edp-figure')];
return figures.map(f => [right(f), right(f.querySelector('.main-svg')), right(arguments[0])]);
"""
STICKING_OUT = """
const edge = arguments[0].getBoundingClientRect().right;
const looked = '.widget-html-content *, .edp-tile *, .edp-label, input:not([type=radio]), button';
const inside = [...arguments[0].querySelectorAll(looked)];
return inside.filter(e => e.getBoundingClientRect().right > edge + 1).map(e => e.outerHTML.slice(0, 120));
"""

# What is written in a panel's figures and is cut by their edge or lies under their buttons, and commands too long for
# their box.
CUT = """
const place = element => element.getBoundingClientRect();
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const texts = [...arguments[0].querySelectorAll('.edp-tile b, .edp-label')];
const faults = texts.filter(e => e.scrollWidth > e.clientWidth + 2);
for (const figure of arguments[0].querySelectorAll('.edp-figure')) {
    const edge = place(figure), buttons = [...figure.querySelectorAll('.modebar-group')].map(place);
    for (const text of figure.querySelectorAll('svg text')) {
        const box = place(text), out = box.left < edge.left - 1 || box.right > edge.right + 1 ||
            box.top < edge.top - 1 || box.bottom > edge.bottom + 1;
        const under = text.closest('.g-gtitle') && buttons.some(button => meet(button, box));
        if (box.width && (out || under)) faults.push(text);
    }
}
return faults.map(e => e.value ?? e.textContent);
"""

BESIDE_FILES = "window.jupyterapp.shell.expandLeft(); window.jupyterapp.commands.execute('filebrowser:activate')"
THEME = """
const [theme, done] = arguments;
window.jupyterapp.commands.execute('apputils:change-theme', {theme}).then(() => setTimeout(done, 500));
"""
# From the first control of a panel to the foot of its main figure.
SPAN = """
const [control, figure] = ['.edp-control', '.edp-figure'].map(name => arguments[0].querySelector(name));
return control && figure ? figure.getBoundingClientRect().bottom - control.getBoundingClientRect().top : 0;
"""
# Pixels per unit, down over across, of plots whose axes are to have one scale.
ROUND = """
const plots = [...arguments[0].querySelectorAll('.js-plotly-plot')].map(plot => plot._fullLayout);
const axes = plots.flatMap(layout => layout._subplots.cartesian.map(id => id.split('y')).map(
    ([x, y]) => [layout['xaxis' + x.slice(1)], layout['yaxis' + y]]));
return axes.filter(([x, y]) => x.scaleanchor || y.scaleanchor).map(([x, y]) => Math.abs(y._m / x._m));
"""
FAINT = (Path(__file__).parent / "faint.js").read_text()
READABLE = 4.5  # WCAG AA


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def page(request: pytest.FixtureRequest, browser: Chrome, lab: str) -> Iterator[tuple[Chrome, str]]:
    """The browser with a notebook in front, all its cells executed, and the notebook's name."""
    with browsing.open_notebook(browser, lab, request.param.name):
        yield browser, request.param.stem


def shown(driver: Chrome, handle: WebElement) -> dict[str, Any]:
    return json.loads(driver.execute_script(SHOWN, handle))


def in_kernel(driver: Chrome, heading: str) -> dict[str, Any]:
    panels = json.loads(browsing.execute(driver, "ask_kernel", f"{browsing.DRIVER}live.show_all()"))
    return next(panel for panel in panels if panel["heading"] == heading)


def difference(driver: Chrome, handle: WebElement) -> list[Any]:
    """What the page lacks of the read-outs, or draws otherwise, than the panel in the kernel has it."""
    here = shown(driver, handle)
    there = in_kernel(driver, here["heading"])
    words = [driver.execute_script(AS_TEXT, text) for text in there["words"]]
    missing: list[Any] = [text for text in words if text not in here["words"]]
    for drawn, figure in zip(here["figures"], there["figures"], strict=True):
        pairs = list(zip(drawn, figure, strict=True))
        missing += [(d, trace) for d, trace in pairs if not same(d, trace)]
    return missing


def same(drawn: dict[str, Any], trace: dict[str, Any]) -> bool:
    numbers = [key for key in trace if drawn.get(key) and None not in trace[key] and None not in drawn[key]]
    return all(drawn[key] == pytest.approx(trace[key], rel=1e-6) for key in numbers)


def assert_panel_follows(driver: Chrome, move: Callable[[WebElement], None]) -> None:
    """After each move the page shows what the kernel has; the first slider that matters changes words and figures.

    (The clip norm, the first slider of some panels, rightly leaves epsilon alone.)
    """
    handles = driver.execute_script(SLIDERS)
    assert handles, "no panel has a slider"
    for handle in handles:
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", handle)
        before = shown(driver, handle)
        move(handle)
        until(lambda h=handle, box=before["box"]: shown(driver, h)["box"] != box, SECONDS, "the box did not follow")
        with suppress(TimeoutError):
            until(lambda h=handle: not difference(driver, h), SECONDS, "the page does not show what the kernel has")
        assert difference(driver, handle) == []
        assert driver.execute_script(ERRORS) == []
        after = shown(driver, handle)
        if all(after[part] != before[part] for part in ("words", "figures")):
            return
    pytest.fail("no slider of the panel changes both its read-out and a figure")


def test_all_cells_run_no_panel_holds_an_error_and_no_button_shares_a_figure(page: tuple[Chrome, str]) -> None:
    driver, name = page
    assert driver.execute_script(ERRORS) == []
    assert driver.execute_script(PANELS)
    buttons = driver.execute_script(BUTTONS)
    assert not [button for button in buttons if "cloud" in button.lower() or "share" in button.lower()]
    if name == "00_start":  # JupyterLab offers to fetch news
        assert "news" not in driver.find_element("css selector", "body").text.lower()


def test_main_panel_follows_the_mouse(page: tuple[Chrome, str]) -> None:
    driver, _ = page

    def drag(handle: WebElement) -> None:
        start = driver.execute_script("return arguments[0].valueAsNumber / arguments[0].max", handle)
        width = handle.size["width"] - 16  # of the track that the thumb's middle runs along
        along = ActionChains(driver).move_to_element_with_offset(handle, int((start - 0.5) * width), 0).click_and_hold()
        for _ in range(4):
            along.move_by_offset((1 if start < 0.5 else -1) * width // 16, 0)
        along.release().perform()

    assert_panel_follows(driver, drag)


def test_main_panel_follows_the_keyboard(page: tuple[Chrome, str]) -> None:
    driver, _ = page

    def press(handle: WebElement) -> None:
        driver.execute_script("arguments[0].focus()", handle)
        at_end = driver.execute_script("return arguments[0].value == arguments[0].max", handle)
        driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT if at_end else Keys.ARROW_RIGHT)

    assert_panel_follows(driver, press)


def test_a_value_that_makes_no_sense_is_one_visible_sentence_until_it_is_mended(page: tuple[Chrome, str]) -> None:
    driver, _ = page
    handle = driver.execute_script(SLIDERS)[0]
    good, box = shown(driver, handle)["box"], driver.execute_script(BOX, handle)
    for value, refused in (("-1000000", 1), (good, 0)):
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(value, Keys.ENTER)
        until(lambda n=refused: len(driver.execute_script(ERRORS)) == n, SECONDS, f"{value} is not answered")
        assert not [error for error in driver.execute_script(ERRORS) if "fault of the course" in error]


@pytest.mark.parametrize("width", WIDTHS)
def test_panels_fit_and_are_kept_as_pictures(page: tuple[Chrome, str], width: int) -> None:
    driver, name = page
    browsing.resize(driver, width, HEIGHT)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for number, panel in enumerate(driver.execute_script(PANELS), 1):
        driver.execute_script("arguments[0].scrollIntoView()", panel)
        until(lambda panel=panel: fits(driver, panel), SECONDS, f"panel {number}: a figure does not fill its place")
        until(lambda p=panel: not driver.execute_script(STICKING_OUT, p), SECONDS, f"panel {number} has no room")
        until(lambda p=panel: not driver.execute_script(CUT, p), SECONDS, f"panel {number} cuts or covers words")
        browsing.resize(driver, width, max(HEIGHT, 300 + panel.size["height"]))
        panel.screenshot(str(SCREENSHOTS / f"{name}-{number}-{width}.png"))


def test_what_moves_is_in_view_together_and_circles_are_round(page: tuple[Chrome, str]) -> None:
    driver, _ = page
    driver.execute_script(BESIDE_FILES)
    browsing.resize(driver, 1280, 800)
    for panel in driver.execute_script(PANELS):
        driver.execute_script("arguments[0].scrollIntoView()", panel)
        until(lambda p=panel: fits(driver, p), SECONDS, "a figure does not fill its place")
        assert driver.execute_script(SPAN, panel) <= IN_VIEW, panel.text[:60]
        assert all(abs(ratio - 1) < 0.02 for ratio in driver.execute_script(ROUND, panel))


def test_all_that_is_written_can_be_read_in_both_themes(page: tuple[Chrome, str]) -> None:
    driver, _ = page
    try:
        for theme in ("JupyterLab Dark", "JupyterLab Light"):
            driver.execute_async_script(THEME, theme)
            for panel in driver.execute_script(PANELS):
                assert driver.execute_script(FAINT, panel, READABLE) == [], (theme, panel.text[:60])
                assert driver.execute_script(FAINT, panel, 22)  # it finds what is written
    finally:
        driver.execute_async_script(THEME, "JupyterLab Light")


def fits(driver: Chrome, panel: WebElement) -> bool:
    edges = driver.execute_script(EDGES, panel)
    return all(abs(place - drawing) < 4 and drawing < border for place, drawing, border in edges)


def test_console_is_clean_and_nothing_leaves_this_machine(page: tuple[Chrome, str]) -> None:
    driver, _ = page
    assert console_errors(driver) == []
    assert asked_elsewhere(driver) == []
