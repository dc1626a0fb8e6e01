"""The first notebook as a student meets it: a real JupyterLab, a real browser, a slider moved by keyboard."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edp_lab.cli.course import lab_command

pytest.importorskip("selenium", reason="the browser test needs selenium: pip install -e '.[test]'")

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "00_start.ipynb"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
TOKEN = "browser-test"
FLAGS = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --window-size=1300,1500
"""

KERNEL = "return window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status"
RUN_ALL = """
const done = arguments[arguments.length - 1];
window.jupyterapp.commands.execute("notebook:run-all-cells").then(() => done("ran"), error => done(String(error)));
"""
ERRORS = "return [...document.querySelectorAll('.edp-lab-error, .jp-RenderedText[data-mime-type*=stderr]')]"
WORDS = "return document.querySelector('.edp-panel p').innerText"
HANDLE = """
const label = [...document.querySelectorAll('.edp-panel .widget-label')].find(e => e.innerText == arguments[0]);
return label.parentElement.querySelector('.noUi-handle');
"""
BOX = "return arguments[0].closest('.widget-hbox').querySelector('input').value"
# Right edges of the panel's figures, of their drawings, and of the panel.
FIGURES = """
const right = element => element.getBoundingClientRect().right;
const figures = [...document.querySelectorAll('.edp-panel .edp-figure')];
return figures.map(f => [right(f), right(f.querySelector('.main-svg')), right(f.closest('.edp-panel'))]);
"""
HOSTS = "return [...new Set(performance.getEntriesByType('resource').map(entry => new URL(entry.name).host))]"
BUTTONS = "return [...document.querySelectorAll('.edp-panel .modebar-btn')].map(e => e.dataset.title ?? '')"

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs a browser: apt-get install chromium chromium-driver"
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab, started as `edp-lab course lab` does, on a copy of the notebook."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(NOTEBOOK, folder)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = [
        f"--ServerApp.port={port}",
        f"--ServerApp.root_dir={folder}",
        f"--IdentityProvider.token={TOKEN}",
        "--ServerApp.open_browser=False",
        "--ServerApp.allow_root=True",
        "--LabApp.expose_app_in_browser=True",
    ]
    own = {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    log = folder / "lab.log"
    with log.open("w") as file:
        command, environment = lab_command(folder)
        environment |= {**own, "HOME": str(folder)}
        server = subprocess.Popen([*command, *options], env=environment, stdout=file, stderr=file)
    try:
        until = time.monotonic() + 90
        while not _listens(port):
            assert server.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < until, log.read_text()[-2000:]
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def browser(lab: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Chromium with the notebook open, every cell executed, the first panel in view."""
    options = ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    driver = Chrome(options=options, service=ChromeService(DRIVER))
    try:
        driver.set_script_timeout(240)
        driver.get(f"{lab}/lab/tree/{NOTEBOOK.name}?token={TOKEN}")
        wait(driver, 90, KERNEL, "idle")
        assert driver.execute_async_script(RUN_ALL) == "ran"
        driver.execute_script("document.querySelector('.edp-panel').scrollIntoView()")
        wait(driver, 60, KERNEL, "idle")
        yield driver
    finally:
        driver.quit()


def wait(driver: Chrome, seconds: float, script: str, expected: Any) -> None:
    WebDriverWait(driver, seconds, poll_frequency=0.1).until(lambda d: d.execute_script(script) == expected)


def errors(driver: Chrome) -> list[str]:
    return [element.text for element in driver.execute_script(ERRORS) if element.text]


def test_every_cell_runs_and_both_panels_appear(browser: Chrome) -> None:
    assert errors(browser) == []
    assert browser.execute_script("return document.querySelectorAll('.edp-panel').length") == 2
    assert "news" not in browser.find_element("css selector", "body").text.lower()  # JupyterLab offers to fetch some
    assert "z0 = 0.03 on 8 devices adds noise of 0.0013 C" in browser.execute_script(WORDS)


def test_slider_moved_by_keyboard_changes_box_and_words(browser: Chrome) -> None:
    handle = browser.execute_script(HANDLE, "noise multiplier z0")
    browser.execute_script("arguments[0].focus()", handle)
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    changed = "z0 = 0.04 on 8 devices adds noise of 0.0018 C"
    WebDriverWait(browser, 20).until(lambda d: changed in d.execute_script(WORDS))
    assert browser.execute_script(BOX, handle) == "0.04"
    assert errors(browser) == []


def test_value_that_makes_no_sense_is_one_visible_sentence(browser: Chrome) -> None:
    handle = browser.execute_script(HANDLE, "GPUs N")
    box = browser.execute_script("return arguments[0].closest('.widget-hbox').querySelector('input')", handle)
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("64", Keys.ENTER)
    WebDriverWait(browser, 20).until(lambda d: errors(d))
    assert errors(browser)[0].startswith("64 devices for a batch of 64")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("16", Keys.ENTER)
    WebDriverWait(browser, 20).until(lambda d: not errors(d))
    assert "16 devices: 1 process, 15 simulated" in browser.find_element("css selector", ".edp-panel").text


def test_figures_fill_their_place_and_stay_in_the_panel(browser: Chrome) -> None:
    figures = browser.execute_script(FIGURES)
    assert len(figures) == 3
    for place, drawing, panel in figures:
        assert abs(place - drawing) < 4
        assert drawing < panel


def test_nothing_is_loaded_from_elsewhere_and_no_button_shares_a_figure(browser: Chrome, lab: str) -> None:
    assert browser.execute_script(HOSTS) == [lab.removeprefix("http://")]
    buttons = browser.execute_script(BUTTONS)
    assert "Reset axes" in buttons
    assert not [button for button in buttons if "cloud" in button.lower() or "share" in button.lower()]
