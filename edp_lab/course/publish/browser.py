"""The course as a student meets it: a real JupyterLab (or Voila) and a real Chromium, driven by Selenium.

Used by the browser tests, and by ``edp-lab bench panels``: how fast the cheap panels of every notebook follow their
sliders. Kernel-side: in a kernel of its own, without a browser. In the browser: from a key press on a slider to the
first animation frame after the last figure that it changed was redrawn.
"""

from __future__ import annotations

import ast
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import nbformat
import numpy as np
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from edp_lab.course.publish.kernel import KernelManager
from edp_lab.course.publish.serve import dashboard_command, lab_command, panels_only
from edp_lab.errors import UsageError

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

TOKEN = "of-a-server-that-lives-for-a-test"
FLAGS = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars
    --disable-background-timer-throttling --disable-renderer-backgrounding --disable-backgrounding-occluded-windows
"""
NOBODY_ELSE = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost"
SIZE = (1280, 1600)  # of a window, in CSS pixels
LOCAL = {"127.0.0.1", "localhost"}
SCRIPTS = Path(__file__).parent / "scripts"
DONE = "const done = arguments[arguments.length - 1];"

FINISH = f"{DONE} window.running.then(() => done(null), error => done(String(error)));"
CLOSE = f"""{DONE}
window.notebook.sessionContext.shutdown().then(() => done(null), error => done(String(error)));
"""


def missing() -> str:
    """What a browser test lacks on this machine, as a sentence that says how to get it; "" if nothing."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "driving a browser needs selenium: pip install -c constraints.txt selenium"
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "driving a browser needs Chromium and its driver: apt-get install chromium chromium-driver"
    return ""


@contextmanager
def chromium() -> Iterator[Chrome]:
    """A headless Chromium that keeps its console and reaches no other machine.

    Raises:
        UsageError: see `missing`.
    """
    if problem := missing():
        raise UsageError(problem)
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    with tempfile.TemporaryDirectory(prefix="edp-lab-chromium-") as profile:
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS.split(), NOBODY_ELSE, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
        try:
            driver.set_script_timeout(240)
            _prepare(driver)
            yield driver
        finally:
            driver.quit()


@contextmanager
def jupyterlab(notebooks: Sequence[Path]) -> Iterator[str]:
    """The address of a JupyterLab, started as ``edp-lab course lab`` does, on copies of the notebooks."""
    options = ["--LabApp.expose_app_in_browser=True", "--ServerApp.allow_root=True", "--ServerApp.open_browser=False"]
    with panels_only(notebooks) as folder:
        command, environment = lab_command(folder)
        own = {f"JUPYTER_{name}_DIR": str(folder / f".{name}") for name in ("CONFIG", "DATA", "RUNTIME")}
        port = _free_port()
        options += [f"--ServerApp.port={port}", f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={TOKEN}"]
        with _serving([*command, *options], {**environment, **own, "HOME": str(folder)}, port):
            yield f"http://127.0.0.1:{port}"


@contextmanager
def voila(notebooks: Sequence[Path]) -> Iterator[str]:
    """The address of a dashboard, started as ``edp-lab course dashboard`` does, on copies of the notebooks.

    Raises:
        UsageError: Voila is not installed.
    """
    with panels_only(notebooks) as folder:
        command, environment = dashboard_command(folder)
        port = _free_port()
        options = [f"--port={port}", f"--token={TOKEN}", "--no-browser"]
        with _serving([*command, *options], environment, port):
            yield f"http://127.0.0.1:{port}"


def start_notebook(driver: Chrome, address: str, name: str) -> str:
    """Let all cells of a notebook run in a JupyterLab in a window of its own, behind the one in front.

    Returns:
        The window, for `finish_notebook`.
    """
    front = driver.current_window_handle
    driver.switch_to.new_window("window")
    _prepare(driver)
    driver.get(f"{address}/lab/workspaces/{Path(name).stem}?token={TOKEN}")
    driver.execute_script(_script("open_notebook"), name)
    # Two JupyterLabs that load at the same time disturb each other: one of them loads again.
    until(lambda: driver.execute_script("return Boolean(window.notebook)"), 90, f"{name} did not open")
    window = driver.current_window_handle
    driver.switch_to.window(front)
    return window


def finish_notebook(driver: Chrome, window: str) -> None:
    """Bring a window to the front once its notebook's cells have run; an error in a cell stays in the page."""
    driver.switch_to.window(window)
    _well(driver.execute_async_script(FINISH))


def close_notebook(driver: Chrome) -> None:
    """End the kernel of the notebook in front and close its window."""
    _well(driver.execute_async_script(CLOSE))
    driver.close()
    driver.switch_to.window(driver.window_handles[0])


def ask_kernel(driver: Chrome, code: str) -> str:
    """What the kernel of the notebook in front prints for this code, once all earlier messages are handled."""
    return driver.execute_async_script(_script("ask_kernel"), code)


def resize(driver: Chrome, width: int, height: int) -> None:
    """Give the page this size in CSS pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def console_errors(driver: Chrome) -> list[str]:
    """What the page has put on the console as an error since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def asked_elsewhere(driver: Chrome) -> list[str]:
    """Addresses outside this machine that the page has tried to load; those that it could not are also
    `console_errors`, because no name of another machine is resolved."""
    names = driver.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    return [a for a in names if urlsplit(a).scheme in ("http", "https") and urlsplit(a).hostname not in LOCAL]


def until(true: Callable[[], Any], seconds: float, complaint: str) -> Any:
    """Wait for a condition and return its value.

    Raises:
        TimeoutError: with the complaint.
    """
    end = time.monotonic() + seconds
    while not (value := true()):
        if time.monotonic() > end:
            raise TimeoutError(f"{complaint} within {seconds:g} s")
        time.sleep(0.05)
    return value


def _script(name: str) -> str:
    return (SCRIPTS / f"{name}.js").read_text(encoding="utf-8")


def _prepare(driver: Chrome) -> None:
    """Give a new window its size, and let its pages remember all that they load."""
    resize(driver, *SIZE)
    remember = {"source": "performance.setResourceTimingBufferSize(100000)"}
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", remember)


def _well(error: str | None) -> None:
    if error:
        raise RuntimeError(f"JupyterLab: {error}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@contextmanager
def _serving(command: list[str], environment: dict[str, str], port: int) -> Iterator[None]:
    """A server on this port, for as long as the block runs."""

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            until(lambda: listens() or server.poll() is not None, 90, "the server did not start")
            if server.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"the server ended: {log.read()[-2000:]}")
            yield
        finally:
            server.terminate()
            server.wait(30)


# ---- How fast panels follow -----------------------------------------------------------------------------------------

TIMEOUT = 600  # seconds of a cell
DRIVER = "from edp_lab.course.kit import panel_driver as live\n"  # in the notebook's kernel


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
        notebook = nbformat.read(path, as_version=4)
        notebook.cells.append(new_code_cell(f"{DRIVER}live.time_all({moves})"))
        client = NotebookClient(notebook, timeout=TIMEOUT, kernel_manager_class=KernelManager)
        client.execute(cwd=str(path.parent.resolve()))
        answer = notebook.cells[-1].outputs[-1].data["text/plain"]  # what is printed may come too late
        for row in ast.literal_eval(answer):
            pressed, kernel = seen.get((path.stem, row["panel"]), []), row["kernel_ms"]
            painted = _p95(pressed) if pressed else None
            yield PanelTime(path.stem, row["panel"], _p95(kernel), painted, len(kernel), len(pressed))


def _p95(times: Sequence[float]) -> float:
    return round(float(np.percentile(times, 95)), 1)


def _in_browser(
    notebooks: Sequence[Path], moves: int, say: Callable[[str], None]
) -> dict[tuple[str, str], list[float]]:
    """By notebook and heading of the panel, the times of its key presses."""
    found = {}
    with chromium() as driver, jupyterlab(notebooks) as address:
        for path in notebooks:
            say(f"{path.stem} in the browser")
            finish_notebook(driver, start_notebook(driver, address, path.name))
            panels = json.loads(ask_kernel(driver, f"{DRIVER}live.show_all()"))
            for heading in (panel["heading"] for panel in panels if panel["sliders"]):
                times = json.loads(driver.execute_async_script(_script("press_sliders"), heading, moves))
                if isinstance(times, str):
                    raise RuntimeError(f"{heading}: {times}")
                found[path.stem, heading] = times
            close_notebook(driver)
    return found
