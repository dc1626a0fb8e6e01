"""The course as a student meets it: a real JupyterLab and a real Chromium, driven by Selenium.

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
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import numpy as np
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from edp_lab.course.publish.kernel import KernelManager
from edp_lab.course.publish.serve import lab_command, panels_only
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
SCRIPTS = Path(__file__).parent / "scripts"


def missing() -> str:
    """What a browser test lacks on this machine, as a sentence that says how to get it; "" if nothing."""
    if find_spec("selenium") is None:
        return "driving a browser needs selenium: pip install -c constraints.txt selenium"
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "driving a browser needs Chromium and its driver: apt-get install chromium chromium-driver"
    return ""


@contextmanager
def chromium() -> Iterator[Chrome]:
    """A headless Chromium that keeps its console and reaches no other machine; UsageError where one is `missing`."""
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
            remember_all = {"source": "performance.setResourceTimingBufferSize(100000)"}  # that a page loads
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", remember_all)
            resize(driver, *SIZE)
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
        command += [*options, f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={TOKEN}"]
        with served(command, {**environment, **own, "HOME": str(folder)}) as address:
            yield address


@contextmanager
def served(command: list[str], environment: dict[str, str]) -> Iterator[str]:
    """The address of a server that takes ``--port``, for as long as the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([*command, f"--port={port}"], env=environment, stdout=log, stderr=log)
        try:
            until(lambda: listens() or server.poll() is not None, 90, "the server did not start")
            if server.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"the server ended: {log.read()[-2000:]}")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)


@contextmanager
def open_notebook(driver: Chrome, address: str, name: str) -> Iterator[None]:
    """A JupyterLab in the browser with a notebook whose cells have run, an error in one of them included; its kernel
    ends with the block."""
    resize(driver, *SIZE)
    driver.get(f"{address}/lab/workspaces/{Path(name).stem}?token={TOKEN}")
    execute(driver, "open_notebook", name)
    yield
    driver.execute_script("return window.notebook.sessionContext.shutdown()")


def execute(driver: Chrome, script: str, *arguments: Any) -> Any:
    """What the promise of a script in `SCRIPTS` becomes."""
    return driver.execute_script((SCRIPTS / f"{script}.js").read_text(encoding="utf-8"), *arguments)


def resize(driver: Chrome, width: int, height: int) -> None:
    """Give the page this size in CSS pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def until(true: Callable[[], Any], seconds: float, complaint: str) -> Any:
    """Wait for a condition and return its value; a TimeoutError has the complaint."""
    end = time.monotonic() + seconds
    while not (value := true()):
        if time.monotonic() > end:
            raise TimeoutError(f"{complaint} within {seconds:g} s")
        time.sleep(0.05)
    return value


# ---- How fast panels follow -----------------------------------------------------------------------------------------

TIMEOUT = 600  # seconds of a cell
DRIVER = "from edp_lab.course.publish import panel_driver as live\n"  # in the notebook's kernel


def bench_panels(
    notebooks: Sequence[Path], moves: int = 200, browser_moves: int = 100, say: Callable[[str], None] = print
) -> Iterator[dict[str, Any]]:
    """Time every cheap panel of these notebooks: "notebook" and "panel", and 95th percentiles in milliseconds,
    "kernel_ms_p95" over so many "moves" and "browser_ms_p95" over "browser_moves" (None and 0 without a browser).

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
            yield {
                "notebook": path.stem,
                "panel": row["panel"],
                "kernel_ms_p95": _p95(kernel),
                "browser_ms_p95": _p95(pressed) if pressed else None,
                "moves": len(kernel),
                "browser_moves": len(pressed),
            }


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
            with open_notebook(driver, address, path.name):
                panels = json.loads(execute(driver, "ask_kernel", f"{DRIVER}live.show_all()"))
                for heading in (panel["heading"] for panel in panels if panel["sliders"]):
                    found[path.stem, heading] = execute(driver, "press_sliders", heading, moves)
    return found
