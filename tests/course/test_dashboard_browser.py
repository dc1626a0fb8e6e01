"""The dashboard (Voila) in a real browser: a token is asked for, panels without code follow, and nothing leaves."""

from collections.abc import Iterator

import pytest

from edp_lab.course.publish import browser as browsing
from edp_lab.course.publish.serve import dashboard_command, panels_only
from tests.course.conftest import NOTEBOOKS, asked_elsewhere, console_errors

pytest.importorskip("selenium", reason="the browser test needs selenium: pip install -e '.[test]'")

from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

NOTEBOOK = next(path for path in NOTEBOOKS if path.stem.startswith("01"))  # four panels, no training
READY = """
const panels = [...document.querySelectorAll('.edp-panel:not(.edp-predictions)')];
return panels.length > 0 && panels.every(panel => panel.querySelector('.js-plotly-plot .main-svg'));
"""
SEEN_CODE = "return [...document.querySelectorAll('.jp-InputArea pre')].filter(e => e.offsetHeight > 0).length"
WORDS = "return document.querySelector('.edp-panel p').innerText"
DRAWN = "return JSON.stringify(document.querySelector('.edp-panel .js-plotly-plot')._fullData.map(t => [...t.y ?? []]))"
ERRORS = "return [...document.querySelectorAll('.edp-lab-error')].map(e => e.textContent.trim()).filter(text => text)"


@pytest.fixture(scope="module")
def dashboard(browser: Chrome) -> Iterator[str]:
    with panels_only([NOTEBOOK]) as folder:
        command, environment = dashboard_command(folder)
        with browsing.served([*command, f"--token={browsing.TOKEN}", "--no-browser"], environment) as address:
            browsing.resize(browser, *browsing.SIZE)
            console_errors(browser)
            yield address
            browser.get("about:blank")  # a page of Voila calls its server when it is left


def test_without_the_token_there_is_nothing_to_see(browser: Chrome, dashboard: str) -> None:
    browser.get(f"{dashboard}/voila/render/{NOTEBOOK.name}")
    assert "/login" in browser.current_url
    assert browser.execute_script("return document.querySelectorAll('.edp-panel').length") == 0


def test_panels_without_code_follow_a_slider_and_nothing_leaves(browser: Chrome, dashboard: str) -> None:
    browser.get(f"{dashboard}/?token={browsing.TOKEN}")
    browser.get(browser.find_element("link text", NOTEBOOK.name).get_attribute("href"))
    browsing.until(lambda: browser.execute_script(READY), 120, "the panels did not appear")
    assert browser.execute_script(SEEN_CODE) == 0
    words, drawn = browser.execute_script(WORDS), browser.execute_script(DRAWN)

    handle = browser.execute_script("return document.querySelector('.edp-panel input[type=range]')")
    browser.execute_script("arguments[0].focus()", handle)
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)

    browsing.until(lambda: browser.execute_script(WORDS) != words, 20, "the read-out did not follow")
    browsing.until(lambda: browser.execute_script(DRAWN) != drawn, 20, "the figure did not follow")
    assert browser.execute_script(ERRORS) == []
    assert console_errors(browser) == []
    assert asked_elsewhere(browser) == []
