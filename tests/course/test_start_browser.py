"""The first notebook as a student meets it: what stands in its panels, and what bad input looks like."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edp_lab.course.publish import browser as browsing

pytest.importorskip("selenium", reason="the browser test needs selenium: pip install -e '.[test]'")

from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

ERRORS = "return [...document.querySelectorAll('.edp-lab-error, .jp-RenderedText[data-mime-type*=stderr]')]"
WORDS = "return document.querySelector('.edp-panel p').innerText"
HANDLE = """
const label = [...document.querySelectorAll('.edp-panel .widget-label')].find(e => e.innerText == arguments[0]);
return label.parentElement.querySelector('.noUi-handle');
"""
BOX = "return arguments[0].closest('.widget-hbox').querySelector('input').value"
BUTTONS = "return [...document.querySelectorAll('.edp-panel .modebar-btn')].map(e => e.dataset.title ?? '')"


@pytest.fixture(scope="module")
def page(browser: Chrome, lab: str) -> Iterator[Chrome]:
    """The browser with the notebook open, every cell executed, the first panel in view."""
    browsing.finish_notebook(browser, browsing.start_notebook(browser, lab, "00_start.ipynb"))
    browser.execute_script("document.querySelector('.edp-panel').scrollIntoView()")
    yield browser
    browsing.close_notebook(browser)


def errors(driver: Chrome) -> list[str]:
    return [element.text for element in driver.execute_script(ERRORS) if element.text]


def test_every_cell_runs_and_both_panels_appear(page: Chrome) -> None:
    assert errors(page) == []
    assert page.execute_script("return document.querySelectorAll('.edp-panel').length") == 2
    assert "news" not in page.find_element("css selector", "body").text.lower()  # JupyterLab offers to fetch some
    assert "z0 = 0.03 on 8 devices adds noise of 0.0013 C" in page.execute_script(WORDS)


def test_slider_moved_by_keyboard_changes_box_and_words(page: Chrome) -> None:
    handle = page.execute_script(HANDLE, "noise multiplier z0")
    page.execute_script("arguments[0].focus()", handle)
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    changed = "z0 = 0.04 on 8 devices adds noise of 0.0018 C"
    WebDriverWait(page, 20).until(lambda d: changed in d.execute_script(WORDS))
    assert page.execute_script(BOX, handle) == "0.04"
    assert errors(page) == []


def test_value_that_makes_no_sense_is_one_visible_sentence(page: Chrome) -> None:
    handle = page.execute_script(HANDLE, "GPUs N")
    box = page.execute_script("return arguments[0].closest('.widget-hbox').querySelector('input')", handle)
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("64", Keys.ENTER)
    WebDriverWait(page, 20).until(lambda d: errors(d))
    assert errors(page)[0].startswith("64 devices for a batch of 64")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("16", Keys.ENTER)
    WebDriverWait(page, 20).until(lambda d: not errors(d))
    assert "16 devices: 1 process, 15 simulated" in page.find_element("css selector", ".edp-panel").text


def test_no_button_shares_a_figure(page: Chrome) -> None:
    buttons = page.execute_script(BUTTONS)
    assert "Reset axes" in buttons
    assert not [button for button in buttons if "cloud" in button.lower() or "share" in button.lower()]
