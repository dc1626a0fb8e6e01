"""A real JupyterLab and a real Chromium, controlled by Selenium, for testing the course as students see it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT = Path(__file__).parents[1]
TOKEN = "of-a-server-that-lives-for-a-test"
FLAGS = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars
    --disable-background-timer-throttling --disable-renderer-backgrounding --disable-backgrounding-occluded-windows
"""
NOBODY_ELSE = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost"
SIZE = (1280, 1600)  # size of a window, in CSS pixels
PATIENCE = 600  # seconds allowed for all cells of a notebook on a busy machine
LAB = Path(__file__).with_name("lab.js").read_text(encoding="utf-8")


def missing() -> str:
    """Return a sentence about what this machine lacks for browser tests, or ""."""
    if find_spec("selenium") is None:
        return "driving a browser needs selenium: pip install -c constraints.txt selenium"
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "driving a browser needs Chromium and its driver: apt-get install chromium chromium-driver"
    return ""


@contextmanager
def chromium() -> Iterator[Chrome]:
    """A headless Chromium that records its console and cannot reach other machines."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    with tempfile.TemporaryDirectory(prefix="edp-lab-chromium-") as profile:
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS.split(), NOBODY_ELSE, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
        try:
            driver.command_executor.client_config.timeout = PATIENCE
            driver.set_script_timeout(PATIENCE)
            remember_all = {"source": "performance.setResourceTimingBufferSize(100000)"}  # all that a page loads
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", remember_all)
            resize(driver, *SIZE)
            yield driver
        finally:
            driver.quit()


@contextmanager
def jupyterlab(notebooks: Path) -> Iterator[str]:
    """The address of a JupyterLab that ``edp-lab course lab`` has started in a folder of notebooks."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="edp-lab-") as folder, tempfile.TemporaryFile("w+") as log:
        own = {f"JUPYTER_{name}_DIR": f"{folder}/.{name}" for name in ("CONFIG", "DATA", "RUNTIME")}
        command = [sys.executable, "-m", "edp_lab", "course", "lab", "--notebooks", str(notebooks.resolve())]
        command += ["--allow-root", "--no-browser", f"--port={port}", f"--IdentityProvider.token={TOKEN}"]
        environment = {**os.environ, **own, "HOME": folder, "PYTHONPATH": str(ROOT)}
        whole = [*command, "--LabApp.expose_app_in_browser=True"]
        server = subprocess.Popen(whole, env=environment, cwd=folder, stdout=log, stderr=log)

        def listens() -> bool:
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        try:
            until(lambda: listens() or server.poll() is not None, PATIENCE, "the server did not start")
            if server.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"the server ended: {log.read()[-2000:]}")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)


@contextmanager
def open_notebook(driver: Chrome, address: str, name: str) -> Iterator[None]:
    """Open a notebook in JupyterLab and execute its cells; its kernel stops at the end of the block."""
    resize(driver, *SIZE)
    driver.get(f"{address}/lab/workspaces/{Path(name).stem}?token={TOKEN}")
    driver.execute_script(f"{LAB}\nreturn openNotebook(...arguments)", name)
    yield
    driver.execute_script("return window.notebook?.sessionContext.shutdown()")


def ask_kernel(driver: Chrome, code: str) -> str:
    """Return the output of a piece of code in the open notebook's kernel, after all earlier code."""
    return str(driver.execute_script(f"{LAB}\nreturn askKernel(...arguments)", code))


def resize(driver: Chrome, width: int, height: int) -> None:
    """Set the page's size in CSS pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def until(true: Callable[[], Any], seconds: float, complaint: str) -> Any:
    """Wait for a condition and return its value; a TimeoutError contains `complaint`."""
    end = time.monotonic() + seconds
    while not (value := true()):
        if time.monotonic() > end:
            raise TimeoutError(f"{complaint} within {seconds:g} s")
        time.sleep(0.05)
    return value
