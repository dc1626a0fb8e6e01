"""The course as a student meets it: a real JupyterLab (or Voila) and a real Chromium, driven by Selenium.

Used by the browser tests and by ``edp-lab bench panels``. Nothing here knows pytest.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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
DONE = "const done = arguments[arguments.length - 1];"

# Once JupyterLab is there: opens a notebook, without the list of files beside it, and runs all its cells. An error that
# Jupyter would swallow, as of a callback, is put on the console.
START = """
const pause = ms => new Promise(resolve => setTimeout(resolve, ms)), path = arguments[0];
window.running = (async () => {
    while (!window.jupyterapp?.shell) await pause(50);
    const app = window.jupyterapp;
    await app.restored;
    app.shell.collapseLeft();
    window.notebook = await app.commands.execute("docmanager:open", {path});
    await window.notebook.revealed;
    await window.notebook.sessionContext.ready;
    window.notebook.sessionContext.session.kernel.iopubMessage.connect((_, { header, content }) => {
        if (header.msg_type == "error") console.error(`${content.ename}: ${content.evalue}`);
    });
    await app.commands.execute("notebook:run-all-cells");
})();
"""
FINISH = f"{DONE} window.running.then(() => done(null), error => done(String(error)));"
CLOSE = f"""{DONE}
window.notebook.sessionContext.shutdown().then(() => done(null), error => done(String(error)));
"""
# What the kernel prints for a piece of code, after all that was sent to it before.
ASK = f"""{DONE}
const kernel = window.notebook.sessionContext.session.kernel;
const future = kernel.requestExecute({{code: arguments[0], store_history: false}});
let text = "";
future.onIOPub = message => {{
    if (message.header.msg_type == "stream") text += message.content.text;
    if (message.header.msg_type == "error") text += message.content.ename + ": " + message.content.evalue;
}};
future.done.then(() => done(text), error => done(String(error)));
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
    driver.execute_script(START, name)
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
    return driver.execute_async_script(ASK, code)


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


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _serving(command: list[str], environment: dict[str, str], port: int) -> Iterator[None]:
    """A server on this port, for as long as the block runs."""
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            until(lambda: _listens(port) or server.poll() is not None, 90, "the server did not start")
            if server.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"the server ended: {log.read()[-2000:]}")
            yield
        finally:
            server.terminate()
            server.wait(30)
