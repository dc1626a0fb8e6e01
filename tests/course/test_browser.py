"""Notebooks in a real JupyterLab and browser: panels respond to mouse and keyboard, and nothing leaves the machine."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from edp_lab.course.run import run_course
from tests import browser as browsing
from tests.browser import until
from tests.course.conftest import NOTEBOOKS, ROOT, asked_elsewhere, console_errors, store_hostile
from tests.course.hostile import RUN, SHORT, show

WIDTHS = (800, 1920)
IN_VIEW = 640  # height in pixels of a notebook in a JupyterLab window of 1280 x 800
HEIGHT = browsing.SIZE[1]
SECONDS = 60  # allowed for a panel to respond on a busy machine

LOOK = Path(__file__).with_name("look.js").read_text()
FAINT = Path(__file__).with_name("faint.js").read_text()
READABLE = 4.5  # minimum contrast, WCAG AA


FIRST, *OTHERS = [path for path in NOTEBOOKS if "panels." in path.read_text(encoding="utf-8")]
WITH_PANELS = [FIRST, *(pytest.param(path, marks=pytest.mark.long) for path in OTHERS)]


@pytest.fixture(scope="module", params=WITH_PANELS, ids=lambda path: path.stem)
def page(request: pytest.FixtureRequest, browser: Chrome, lab: str) -> Iterator[tuple[Chrome, str]]:
    """The browser with an open notebook, in which all cells were executed, and the notebook's name."""
    with browsing.open_notebook(browser, lab, request.param.name):
        yield browser, request.param.stem


def look(driver: Chrome, what: str, *at: Any) -> Any:
    """The result of a function of ``look.js``."""
    return driver.execute_script(f"{LOOK}\nreturn {what}(...arguments)", *at)


def shown(driver: Chrome, handle: WebElement) -> dict[str, Any]:
    return json.loads(look(driver, "shown", handle))


# Prints, as JSON, each panel's heading, its read-outs in HTML, and the content of its figures.
PANELS = """
import json
import numpy as np
from ipywidgets.widgets.widget import _instances
from edp_lab.course.kit.panel import Panel

def numbers(trace):
    arrays = {key: np.asarray(trace[key]) for key in "xyz" if trace.get(key) is not None}
    plain = {key: values.ravel() for key, values in arrays.items() if values.dtype.kind in "biuf"}
    return {key: [float(v) if np.isfinite(v) else None for v in values] for key, values in plain.items()}

found = [panel for panel in list(_instances.values()) if isinstance(panel, Panel)]
print(json.dumps([{
    "heading": panel.title,
    "words": [panel.words.value, panel.command.value],
    "figures": [[numbers(trace) for trace in live.figure["data"]] for live in panel.figures],
} for panel in found]))
"""


def in_kernel(driver: Chrome, heading: str) -> dict[str, Any]:
    panels = json.loads(browsing.ask_kernel(driver, PANELS))
    return next(panel for panel in panels if panel["heading"] == heading)


def difference(driver: Chrome, handle: WebElement) -> list[Any]:
    """Differences between the page and the panel in the kernel, in read-outs or figures."""
    here = shown(driver, handle)
    there = in_kernel(driver, here["heading"])
    words = [look(driver, "asText", text) for text in there["words"]]
    missing: list[Any] = [text for text in words if text not in here["words"]]
    for drawn, figure in zip(here["figures"], there["figures"], strict=True):
        pairs = list(zip(drawn, figure, strict=True))
        missing += [(d, trace) for d, trace in pairs if not same(d, trace)]
    return missing


def same(drawn: dict[str, Any], trace: dict[str, Any]) -> bool:
    numbers = [key for key in trace if drawn.get(key) and None not in trace[key] and None not in drawn[key]]
    return all(drawn[key] == pytest.approx(trace[key], rel=1e-6) for key in numbers)


def at_rest(element: WebElement) -> bool:
    place = element.rect
    time.sleep(0.1)
    return place == element.rect


def assert_panel_follows(driver: Chrome, move: Callable[[WebElement], None]) -> None:
    """Check that the page follows the kernel after each move; the first effective slider changes texts and figures.

    (In some panels the first slider, the clip norm, rightly has no effect on epsilon.)
    """
    handles = look(driver, "sliders")
    assert handles, "no panel has a slider"
    for handle in handles:
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", handle)
        until(lambda h=handle: at_rest(h), SECONDS, "the page does not come to rest")
        before = shown(driver, handle)

        def followed(handle: WebElement = handle, box: str = before["box"]) -> bool:
            move(handle)  # try again if the page was busy
            time.sleep(0.3)
            return shown(driver, handle)["box"] != box

        until(followed, SECONDS, "the box did not follow")
        with suppress(TimeoutError):
            until(lambda h=handle: not difference(driver, h), SECONDS, "the page does not show what the kernel has")
        assert difference(driver, handle) == []
        assert look(driver, "errors") == []
        after = shown(driver, handle)
        if all(after[part] != before[part] for part in ("words", "figures")):
            return
    pytest.fail("no slider of the panel changes both its read-out and a figure")


def test_all_cells_run_no_panel_holds_an_error_and_no_button_shares_a_figure(page: tuple[Chrome, str]) -> None:
    driver, name = page
    assert look(driver, "errors") == []
    assert look(driver, "panels")
    buttons = look(driver, "buttons")
    assert not [button for button in buttons if "cloud" in button.lower() or "share" in button.lower()]
    if name == "00_start":  # JupyterLab asks whether to fetch news
        assert "news" not in driver.find_element("css selector", "body").text.lower()


def test_main_panel_follows_the_mouse(page: tuple[Chrome, str]) -> None:
    driver, _ = page

    def drag(handle: WebElement) -> None:
        start = driver.execute_script("return arguments[0].valueAsNumber / arguments[0].max", handle)
        width = handle.size["width"] - 16  # width of the track for the middle of the thumb
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
    handle = look(driver, "sliders")[0]
    good, box = shown(driver, handle)["box"], look(driver, "box", handle)
    for value, refused in (("-1000000", 1), (good, 0)):
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(value, Keys.ENTER)
        until(lambda n=refused: len(look(driver, "errors")) == n, SECONDS, f"{value} is not answered")
        assert not [error for error in look(driver, "errors") if "bug in the course" in error]


@pytest.mark.parametrize("width", WIDTHS)
def test_panels_fit(page: tuple[Chrome, str], width: int) -> None:
    driver, _ = page
    browsing.resize(driver, width, HEIGHT)
    for number, panel in enumerate(look(driver, "panels"), 1):
        driver.execute_script("arguments[0].scrollIntoView()", panel)
        until(lambda p=panel: look(driver, "fits", p), SECONDS, f"panel {number}: a figure does not fill its place")
        until(lambda p=panel: not look(driver, "stickingOut", p), SECONDS, f"panel {number} has no room")
        until(lambda p=panel: not look(driver, "cut", p), SECONDS, f"panel {number} cuts or covers words")


def test_what_moves_is_in_view_together_and_circles_are_round(page: tuple[Chrome, str]) -> None:
    driver, _ = page
    look(driver, "besideFiles")
    browsing.resize(driver, 1280, 800)
    for panel in look(driver, "panels"):
        driver.execute_script("arguments[0].scrollIntoView()", panel)
        until(lambda p=panel: look(driver, "fits", p), SECONDS, "a figure does not fill its place")
        assert look(driver, "span", panel) <= IN_VIEW, panel.text[:60]
        assert all(abs(ratio - 1) < 0.02 for ratio in look(driver, "ratios", panel))


def test_all_that_is_written_can_be_read_in_both_themes(page: tuple[Chrome, str]) -> None:
    driver, _ = page
    try:
        for theme in ("JupyterLab Dark", "JupyterLab Light"):
            look(driver, "changeTheme", theme)
            for panel in look(driver, "panels"):
                assert driver.execute_script(FAINT, panel, READABLE) == [], (theme, panel.text[:60])
                assert driver.execute_script(FAINT, panel, 22)  # it finds text with low contrast
    finally:
        look(driver, "changeTheme", "JupyterLab Light")


def test_console_is_clean_and_nothing_leaves_this_machine(page: tuple[Chrome, str]) -> None:
    driver, _ = page
    assert console_errors(driver) == []
    assert asked_elsewhere(driver) == []


# ---- Text that would do harm as markup -------------------------------------------------------------------------------


CLICKED = """
const first = [{curveNumber: 0, pointNumber: 0}];
document.querySelectorAll('.js-plotly-plot').forEach(plot => window.Plotly?.Fx.hover(plot, first));
const links = [...document.querySelectorAll('svg a, .edp-panel a, .jp-OutputArea table a, [href^=javascript]')];
links.forEach(link => link.dispatchEvent(new MouseEvent('click', {bubbles: true})));
return [Boolean(window.pwned), links.map(link => link.outerHTML), document.body.textContent.includes('window.pwned')];
"""


class Scripts(HTMLParser):
    """Elements that only external text can have created."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script" or any(name.startswith("on") or "javascript:" in (value or "") for name, value in attrs):
            self.found.append(self.get_starttag_text() or "")


def test_a_panel_escapes_text_and_keeps_markup_that_says_so() -> None:
    panel = show()
    panel.set(a=2.0)  # an error with hostile text
    boxes = [panel.error_box, panel.words, *panel.children[:1]]
    assert RUN in panel.words.value
    assert [found for box in boxes for found in Scripts(box.value).found] == []
    panel.words.value = Markup("<b>{}</b>").format("1 < 2")
    assert panel.words.value == "<b>1 &lt; 2</b>"


@pytest.mark.parametrize("template", sorted(ROOT.glob("edp_lab/**/words.html.j2")), ids=lambda path: path.parent.name)
def test_in_read_outs_only_constants_are_safe(template: Path) -> None:
    found = re.findall(r'("[^"]*" )?\| *safe\b', template.read_text(encoding="utf-8"))
    assert all(found), "markup is passed as `Html`"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("hostile")
    store_hostile(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield folder


def test_no_script_runs_on_a_page(folder: Path, browser: browsing.Chrome) -> None:
    browser.get(f"data:text/html,{SHORT}")
    assert browser.execute_script("return window.pwned") == 1  # unescaped, it would run
    [row] = run_course(folder, folder / "out", {})
    assert RUN in row["error"]
    browser.get((folder / "out" / "00_hostile.html").as_uri())
    browsing.until(lambda: len(browser.find_elements("css selector", ".main-svg")) >= 2, SECONDS, "no figures")
    assert browser.execute_script(CLICKED) == [False, [], True]
    browser.get((folder / "out" / "index.html").as_uri())
    assert browser.execute_script(CLICKED) == [False, [], True]


def test_no_script_runs_in_the_live_lab(lab: str, browser: browsing.Chrome) -> None:
    with browsing.open_notebook(browser, lab, "00_hostile.ipynb"):
        browsing.until(lambda: browser.find_elements("css selector", ".edp-panel .main-svg"), SECONDS, "no figure")
        assert browser.execute_script(CLICKED) == [False, [], True]
    browser.get("about:blank")
