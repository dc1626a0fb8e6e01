"""The notebook runner on tiny notebooks: no error passes, wherever it hides; pages load nothing remote."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from edp_lab.course.publish import runner as kept
from edp_lab.course.publish.runner import (
    CellBegun,
    NotebookRun,
    course_notebooks,
    kept_rows,
    notebook_parameters,
    run_course,
    run_notebook,
)
from edp_lab.course.publish.serve import lab_command
from edp_lab.errors import UsageError
from tests.course.conftest import invoked, store

PARAMETERS = 'mode = "quick"\nclip_norm = 1.0  # C'
GOOD = """
import sys
import ipywidgets as w, plotly.graph_objects as go
figure = go.FigureWidget(go.Scatter(x=[1, 2, 3], y=[1, 4, 9]))
read_out, log = w.HTML("epsilon = 3"), w.Output()
slider = w.FloatSlider(value=clip_norm, description="C")
slider.observe(lambda change: figure.data[0].update(y=[change.new] * 3), "value")
with log:
    print("said in a widget")
display(w.VBox([slider, figure, read_out, log]))
"""

INTERACT = """
from ipywidgets import interact, FloatSlider
C = FloatSlider(1, min=0, max=9)
interact(lambda C: 1 / C, C=C)
C.value = 0
"""
OBSERVE = """
from ipywidgets import IntSlider
N = IntSlider()
N.observe(lambda change: 1 / 0, "value")
N.value = 3
"""
BUTTON = """
from ipywidgets import Button
B = Button()
B.on_click(lambda button: 1 / 0)
B.click()
"""
THREAD = """
import threading, time
thread = threading.Thread(target=lambda: 1 / 0)
thread.start(); thread.join(); time.sleep(0.5)
"""
LATE = """
import threading, time
threading.Thread(target=lambda: time.sleep(1) or 1 / 0).start()
"""
PANEL = """
from edp_lab.course.kit.controls import number
from edp_lab.course.kit.panel import Panel
panel = Panel("C", "C.", lambda C: 1 / C, [], str, lambda *_, **values: "", C=number("C", 1.0))
panel.set(C=0.0)
panel.set(C=2.0)  # mended at once
"""

# name of the notebook -> a cell that must fail the run, and what the error sentence says
RAISING = {
    "cell": ("1 / 0", "ZeroDivisionError"),
    "interact": (INTERACT, "ZeroDivisionError"),
    "cleared": (INTERACT + "C.value = 2", "ZeroDivisionError"),  # the good value clears the widget's output
    "output": ("from ipywidgets import Output\nwith Output():\n    {}['tau']", "KeyError: 'tau'"),
    "observe": (OBSERVE, "ZeroDivisionError"),
    "button": (BUTTON, "ZeroDivisionError"),
    "thread": (THREAD, "ZeroDivisionError"),
    "panel": (
        PANEL,
        "ZeroDivisionError: float division by zero (a fault of the course, not yours)",
    ),  # and mended at once
    "exit": ("import sys\nsys.exit(0)", "SystemExit"),
    "killed": ("import os\nos._exit(1)", "the kernel died"),
    "slow": ("import time\ntime.sleep(60)", "the cell took longer than 3 s"),
}


def write(path: Path, *code: str, kernel: str = "python3", parameters: str = PARAMETERS) -> Path:
    given = new_code_cell(parameters, metadata={"tags": ["parameters"]})
    title = new_markdown_cell("# A title\n\nThe noise is $\\sigma = z_0 C$.")
    return store(path, title, given, *map(new_code_cell, code), kernel=kernel)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> NotebookRun:
    folder = tmp_path_factory.mktemp("good")
    later = "slider.value = 7\nread_out.value = 'epsilon = 1.5'"
    notebook = write(folder / "00_good.ipynb", GOOD, later, "print(sys.executable, clip_norm)")
    return run_notebook(notebook, folder / "out", {"clip_norm": 2.5})


def test_good_notebook_passes_and_its_copy_has_outputs_but_no_widget_state_and_no_path(good: NotebookRun) -> None:
    assert good.error is None
    assert good.title == "A title"
    assert good.seconds > 0
    last = nbformat.read(good.executed, as_version=4).cells[-1]
    assert last.outputs[0].text.split() == [sys.executable, "2.5"]
    text = good.executed.read_text()
    assert "widget-view" not in text
    assert "widgets" not in json.loads(text)["metadata"]
    assert str(good.executed.parent) not in text
    assert len(text) < 30_000
    assert [path.name for path in sorted(good.executed.parent.iterdir())] == [
        "00_good.html",
        "00_good.ipynb",
        "course.css",
        "course.js",
        "jupyter.css",
        "plotly.min.js",
    ]


def test_page_shows_widgets_as_they_stand_at_the_end_and_loads_nothing_from_elsewhere(good: NotebookRun) -> None:
    page = good.html.read_text()
    figure = next(
        output.data["application/vnd.plotly.v1+json"]
        for cell in nbformat.read(good.executed, as_version=4).cells
        for output in cell.get("outputs", ())
        if "application/vnd.plotly.v1+json" in output.get("data", {})
    )
    assert figure["data"][0]["y"] == [7, 7, 7]
    assert "epsilon = 1.5" in page
    assert "epsilon = 3" not in re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL)
    assert "said in a widget" in page
    assert "edp-drawn" in page
    loads = re.findall(r"(?:<script[^>]*src|<link[^>]*href|<img[^>]*src|<iframe[^>]*src)=[\"']([^\"']+)", page)
    assert set(loads) == {"plotly.min.js", "course.js", "course.css", "jupyter.css"}
    for text in (page, *((good.html.parent / name).read_text() for name in loads if "plotly" not in name)):
        assert not re.search(r"import\s*\(?\s*[\"']https?:|url\([\"']?https?:|cdnjs|unpkg|jsdelivr|cdn\.plot", text)
    assert "<math" in page
    assert "σ" in page or "&#x003C3;" in page


PANEL_WITH_VIEWS = """
from edp_lab.course.kit.controls import number
from edp_lab.course.kit.figure import figure, line
from edp_lab.course.kit.panel import Panel, claimed, holds
drawn = [lambda n: figure("Main", line("of n", "#0072B2", y=[n, 2 * n])), lambda n: figure("Set aside")]
panel = Panel("Tokens", "What is seen.", lambda n: n, drawn, lambda n: f"words of {n}", lambda _, n: f"do {n}",
              tiles=lambda n: (claimed(f"{n} told"), holds(f"{n} so"), f"Sentence {n}."),
              views={"two of them": {"n": 2}, "nine of them": {"n": 9}}, n=number("tokens held", 5, [2, 5, 9]))
panel.set(n=7)
panel
"""


def test_page_shows_a_panel_at_its_views_and_no_slider(tmp_path: Path) -> None:
    run = run_notebook(write(tmp_path / "a.ipynb", PANEL_WITH_VIEWS), tmp_path / "out")
    assert run.error is None
    page = re.sub(r'<div class="jp-InputArea.*?</pre>', "", run.html.read_text(), flags=re.DOTALL)
    seen = re.sub("<details.*?</details>", "", page, flags=re.DOTALL)
    before, *views = re.split("(?=as the panel starts|two of them|nine of them)", seen)
    assert "Tokens" in before
    for view, n in zip(views, (5, 2, 9), strict=True):
        assert all(
            text in view
            for text in (f"tokens held = {n}", f"{n} told", f"{n} so", f"Sentence {n}.", f'"y":[{n},{2 * n}]')
        )
    assert all(text in page and text not in seen for text in ("words of 2", "do 9", "Set aside"))
    assert "7 told" not in page


def test_a_view_of_a_control_that_is_not_there_fails_the_run(tmp_path: Path) -> None:
    run = run_notebook(write(tmp_path / "a.ipynb", PANEL_WITH_VIEWS.replace('{"n": 9}', '{"m": 9}')), tmp_path / "out")
    assert run.error is not None
    assert "argument 'm'" in run.error


def test_output_widgets_do_not_stall_a_run(tmp_path: Path) -> None:
    """A lost wake-up once held about one cell in fifty like these until its timeout."""
    cell = "from ipywidgets import Output\nout = Output()\nfor i in range(3):\n    with out:\n        print(i)"
    run = run_notebook(write(tmp_path / "a.ipynb", *[cell] * 40), tmp_path / "out", timeout=120)
    assert run.error is None
    assert run.seconds < 100


@pytest.mark.parametrize("name", RAISING)
def test_error_fails_the_run_wherever_it_hides(name: str, tmp_path: Path) -> None:
    code, message = RAISING[name]
    notebook = write(tmp_path / f"{name}.ipynb", "print('before')", code, "print('never')")
    run = run_notebook(notebook, tmp_path / "out", timeout=3 if name == "slow" else 60)
    assert run.error is not None
    assert message in run.error
    assert run.error.startswith(f"{name}.ipynb, cell 4 (")  # title, parameters, before, this one
    assert "\n" not in run.error
    assert run.html.exists()
    assert "never\n" not in run.executed.read_text()


def test_error_of_a_later_moment_fails_the_run_and_is_counted_in_the_source_notebook(tmp_path: Path) -> None:
    run = run_notebook(write(tmp_path / "a.ipynb", LATE, "time.sleep(2)"), tmp_path / "out")
    assert run.error is not None
    assert "ZeroDivisionError" in run.error
    run = run_notebook(write(tmp_path / "a.ipynb", "1 / 0"), tmp_path / "out", {"mode": "full"})
    assert run.error == "a.ipynb, cell 3 ('1 / 0'): ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("parameters", "kernel", "message"),
    [
        ({"mode": 3}, "python3", "'mode' of a.ipynb takes text"),
        ({}, "julia-1.9", "saved for the kernel 'julia-1.9'"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(
    parameters: dict[str, object], kernel: str, message: str, tmp_path: Path
) -> None:
    write(tmp_path / "a.ipynb", "1 / 0", kernel=kernel)
    with pytest.raises(UsageError, match=message):
        run_course(tmp_path, tmp_path / "out", parameters=parameters)
    assert not (tmp_path / "out").exists()


def test_broken_file_is_refused(tmp_path: Path) -> None:
    told = json.loads(write(tmp_path / "good.ipynb").read_text())
    told["metadata"] = {"kernelspec": {"name": "python3", "display_name": "x"}}
    broken = dict.fromkeys(["", "not json", '{"cells": 3}', "[]", "\x80"], "is not a notebook")
    for content, said in {**broken, json.dumps(told): "names no language: set metadata.kernelspec.language"}.items():
        (tmp_path / "a.ipynb").write_text(content, encoding="latin-1")
        with pytest.raises(UsageError, match=rf"a\.ipynb {said}"):
            notebook_parameters(tmp_path / "a.ipynb")
    os.mkfifo(tmp_path / "pipe.ipynb")
    with pytest.raises(UsageError, match=r"pipe\.ipynb is a pipe or a device"):
        notebook_parameters(tmp_path / "pipe.ipynb")


def test_course_goes_on_after_a_failure_and_lists_both(tmp_path: Path) -> None:
    write(tmp_path / "01_bad.ipynb", "1 / 0")
    write(tmp_path / "00_good.ipynb", "x = 1")
    heard: list[CellBegun | NotebookRun] = []
    course = run_course(tmp_path, tmp_path / "out", listen=heard.append)
    assert not course.ok
    assert [run.path.name for run in course.runs] == ["00_good.ipynb", "01_bad.ipynb"]
    assert [run for run in heard if isinstance(run, NotebookRun)] == list(course.runs)
    steps = [(event.done, event.of) for event in heard if isinstance(event, CellBegun) and "good" in event.path.name]
    assert steps[:4] == [(0, 4), (1, 4), (2, 4), (3, 4)]  # title, parameters, those injected, x = 1
    index = course.index.read_text()
    assert 'href="00_good.html"' in index
    assert "ZeroDivisionError" in index
    assert "http" not in index


def test_parameter_goes_to_the_notebooks_that_have_it(tmp_path: Path) -> None:
    write(tmp_path / "00_a.ipynb", "assert clip_norm == 3")
    write(tmp_path / "01_b.ipynb", "assert sigma == 2", parameters="sigma = 1")
    assert run_course(tmp_path, tmp_path / "out", parameters={"clip_norm": 3, "sigma": 2}).ok


def test_two_notebooks_run_at_once_each_in_its_folder_on_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    here = os.getcwd()
    told = "import os, time\nprint(time.time(), os.getcwd(), os.environ['OMP_NUM_THREADS'])\ntime.sleep(3)"
    for name in ("00_a", "01_b"):
        write(tmp_path / f"{name}.ipynb", told, "print(time.time())")
    course = run_course(tmp_path, tmp_path / "out", jobs=2)
    assert course.ok
    cells = [nbformat.read(run.executed, as_version=4).cells for run in course.runs]
    (start_a, *where_a), (start_b, *where_b) = ([*c[-2].outputs[0].text.split()] for c in cells)
    end_a, end_b = (float(c[-1].outputs[0].text) for c in cells)
    assert max(float(start_a), float(start_b)) < min(end_a, end_b)
    assert where_a == where_b == [str(tmp_path.resolve()), "1"]
    assert os.getcwd() == here


def test_memory_is_that_of_the_kernel_and_its_children(tmp_path: Path) -> None:
    child = "import time; x = bytearray(200_000_000); print('there', flush=True); time.sleep(1)"
    code = f"import subprocess, sys\nbytearray(100_000_000)\nsubprocess.run([sys.executable, '-c', {child!r}])"
    plain = run_notebook(write(tmp_path / "a.ipynb", "x = 1"), tmp_path / "out").memory_mb
    large = run_notebook(write(tmp_path / "b.ipynb", code), tmp_path / "out").memory_mb
    assert 20 < plain < 200
    assert 200 < large - plain < 400


def test_resume_runs_only_what_failed_or_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = write(tmp_path / "00_good.ipynb", "x = 1"), write(tmp_path / "01_bad.ipynb", "1 / 0")

    def reused(**options: object) -> list[bool]:
        course = run_course(tmp_path, tmp_path / "out", resume=True, jobs=2, **options)  # type: ignore[arg-type]
        return [run.reused for run in course.runs]

    assert reused() == [False, False]
    assert reused() == [True, False]
    assert not any(run.reused for run in run_course(tmp_path, tmp_path / "out").runs)
    write(bad, "x = 2")
    assert reused() == [True, False]
    assert reused() == [True, True]
    assert reused(parameters={"clip_norm": 7}) == [False, False]
    (tmp_path / "out" / "00_good.html").unlink()
    assert reused(parameters={"clip_norm": 7}) == [False, True]
    monkeypatch.setattr(kept, "code_digest", lambda: "another version of the package")
    assert reused(parameters={"clip_norm": 7}) == [False, False]
    no_title = '{"00_good": {"status": "ok", "digest": "any"}}'
    for damaged in ("damaged", '{"00_good": 7}', f'{{"00_good": {"1" * 5000}}}', "[[1, 2]]", no_title):
        (tmp_path / "out" / "runs.json").write_text(damaged)
        row = kept_rows(tmp_path / "out" / "runs.json").get("00_good", {})
        assert not kept._earlier(good, tmp_path / "out", row, "any")
    assert reused(parameters={"clip_norm": 7}, only=["00"]) == [False]
    assert good.exists()


def test_interrupt_ends_what_runs_and_keeps_what_was_done(tmp_path: Path) -> None:
    write(tmp_path / "00_fast.ipynb", "x = 1")
    write(tmp_path / "01_slow.ipynb", "import time\ntime.sleep(300)")

    def interrupt(event: CellBegun | NotebookRun) -> None:
        if isinstance(event, NotebookRun):
            raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_course(tmp_path, tmp_path / "out", jobs=2, listen=interrupt)
    assert time.monotonic() - start < 60
    assert (tmp_path / "out" / "00_fast.html").exists()
    assert not (tmp_path / "out" / "01_slow.html").exists()
    assert list(json.loads((tmp_path / "out" / "runs.json").read_text())) == ["00_fast"]


def test_notebooks_are_chosen_by_name_in_course_order(tmp_path: Path) -> None:
    for name in ("01_b", "00_a", "02_c"):
        write(tmp_path / f"{name}.ipynb")
    assert [path.stem for path in course_notebooks(tmp_path)] == ["00_a", "01_b", "02_c"]
    assert [path.stem for path in course_notebooks(tmp_path, ["02_c.ipynb", "00_a"])] == ["00_a", "02_c"]
    assert [path.stem for path in course_notebooks(tmp_path, ["02", "01"])] == ["01_b", "02_c"]


def test_command_line_runs_prints_the_index_and_tells_failure_by_its_status(tmp_path: Path) -> None:
    write(tmp_path / "00_good.ipynb", "assert clip_norm == 0.5 and mode == 'full'")
    command = "course", "run", "--notebooks", tmp_path, "--out", tmp_path / "out"
    result = invoked(*command, "--mode", "full", "--parameter", "clip_norm=0.5")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{(tmp_path / 'out' / 'index.html').resolve()}\n"
    assert re.match(r"\[1/1\] 00_good +ok", result.stderr)

    failed = invoked(*command, "--json")
    assert failed.exit_code == 1
    [row] = json.loads(failed.stdout)
    assert list(row) == ["notebook", "status", "seconds", "memory_mb", "error"]
    assert (row["notebook"], row["status"]) == ("00_good", "failed")
    assert row["error"].startswith("00_good.ipynb, cell 3")
    assert row["seconds"] > 0
    assert row["memory_mb"] > 0
    assert re.match(r"\[1/1\] 00_good +failed", failed.stderr)


def test_list_names_notebooks_and_their_parameters(tmp_path: Path) -> None:
    write(tmp_path / "00_good.ipynb")
    result = invoked("course", "list", "--notebooks", tmp_path)
    assert result.stdout.splitlines() == ["00_good  A title", '  mode="quick" clip_norm=1.0']


def test_a_server_ends_with_the_command_that_started_it(tmp_path: Path) -> None:
    """A process told to stop takes its server with it, and Ctrl-C leaves the server to answer."""
    server = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: print('asked', flush=True))\n"
        "print(os.getpid(), flush=True)\n"
        "while True: time.sleep(.01)\n"
    )
    starter = (
        "import os, sys\nfrom edp_lab.course.publish.serve import serve\n"
        f"sys.exit(serve([sys.executable, '-c', {server!r}], os.environ))"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        for one in (process.pid, pid):  # as a terminal does
            os.kill(one, signal.SIGINT)
        assert process.stdout.readline() == "asked\n"
        process.terminate()
        assert process.wait(timeout=20) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_jupyterlab_stays_local_and_calls_nobody(tmp_path: Path) -> None:
    (tmp_path / "00_start.ipynb").touch()
    command, environment = lab_command(tmp_path)
    assert command[0] == sys.executable
    assert command[-1] == str(tmp_path)
    assert "--LabApp.news_url=None" in command
    assert any(option.endswith("NeverCheckForUpdate") for option in command)
    overrides = Path(environment["JUPYTER_CONFIG_PATH"].split(os.pathsep)[0]) / "labconfig"
    settings = json.loads((overrides / "default_setting_overrides.json").read_text())
    assert settings["@jupyterlab/apputils-extension:notification"]["checkForUpdates"] is False
    assert not any("token" in option or "password" in option for option in command)  # the default random token
    for asked, address in ([], "127.0.0.1"), (["--ip=0.0.0.0"], "0.0.0.0"):  # the second: in a container
        shown = [*command, *asked, "--show-config-json"]
        shown = subprocess.run(shown, env=environment, check=True, capture_output=True, text=True).stdout
        told = json.loads(shown)
        assert told["ServerApp"]["ip"] == address
        assert told["LabApp"]["default_url"] == "/lab/tree/00_start.ipynb"
