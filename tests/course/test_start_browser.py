"""The first notebook as a student meets it: a real JupyterLab, a real browser, a slider moved by keyboard."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlparse

import pytest

from edp_lab.cli.course import lab_command

selenium = pytest.importorskip("selenium", reason="the browser test needs selenium: pip install edp-lab[test]")

from selenium.webdriver import Chrome, ChromeOptions, ChromeService  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "00_start.ipynb"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
TOKEN = "browser-test"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1500,1700 --hide-scrollbars"
).split()

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs a browser: apt-get install chromium chromium-driver"
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab on a copy of the notebook, with settings of its own."""
    folder = tmp_path_factory.mktemp("lab")
    notebook = Path(shutil.copy(NOTEBOOK, folder))
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    options = [
        f"--ServerApp.port={port}",
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={folder}",
        "--ServerApp.open_browser=False",
        "--ServerApp.allow_root=True",
        "--LabApp.expose_app_in_browser=True",
    ]
    places = {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    log = (folder / "lab.log").open("w")
    server = subprocess.Popen(
        [*lab_command(notebook.parent), *options],
        env={**os.environ, **places, "HOME": str(folder), "OMP_NUM_THREADS": "1"},
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        WebDriverWait(server, 60).until(lambda s: s.poll() is not None or _answers(f"{address}/api"))
        assert server.poll() is None, (folder / "lab.log").read_text()[-2000:]
        yield address
    finally:
        server.terminate()
        server.wait(30)
        log.close()


@pytest.fixture(scope="module")
def browser(lab: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Chromium with the notebook open and every cell executed."""
    options = ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    driver = Chrome(options=options, service=ChromeService(DRIVER))
    try:
        driver.get(f"{lab}/lab/tree/{NOTEBOOK.name}?token={TOKEN}")
        wait(driver, 90, lambda d: d.execute_script(KERNEL) == "idle")
        driver.set_script_timeout(180)
        assert driver.execute_async_script(RUN_ALL) is None
        wait(driver, 180, lambda d: d.execute_script(KERNEL) == "idle")
        yield driver
    finally:
        driver.quit()


KERNEL = """
const panel = window.jupyterapp?.shell.currentWidget;
return panel?.sessionContext?.session?.kernel?.status ?? null;
"""
RUN_ALL = """
const done = arguments[arguments.length - 1];
window.jupyterapp.commands.execute("notebook:run-all-cells").then(() => done(null), error => done(String(error)));
"""
