"""The notebook runner on tiny notebooks: no error passes, wherever it hides; pages load nothing remote."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from typer.testing import CliRunner

from edp_lab.cli.course import course_app, lab_command
from edp_lab.course.runner import NotebookRun, check_parameters, course_notebooks, run_course, run_notebook
from edp_lab.errors import UsageError

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
import ipywidgets
box = ipywidgets.HTML().add_class("edp-lab-error")
box.value = "<b>C must be positive</b>"
box.value = ""
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
    "panel": (PANEL, "C must be positive"),
    "exit": ("import sys\nsys.exit(0)", "SystemExit"),
    "killed": ("import os\nos._exit(1)", "the kernel died"),
    "slow": ("import time\ntime.sleep(60)", "the cell took longer than 3 s"),
}


def write(path: Path, *code: str, kernel: str = "python3", parameters: str = PARAMETERS) -> Path:
    cells = [new_markdown_cell("# A title\n\nThe noise is $\\sigma = z_0 C$."), new_code_cell(parameters)]
    cells[1].metadata["tags"] = ["parameters"]
    notebook = new_notebook(cells=cells + [new_code_cell(source) for source in code])
    notebook.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
    nbformat.write(notebook, path)
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> NotebookRun:
    folder = tmp_path_factory.mktemp("good")
    later = "slider.value = 7\nread_out.value = 'epsilon = 1.5'"
    notebook = write(folder / "00_good.ipynb", GOOD, later, "print(sys.executable, clip_norm)")
    return run_notebook(notebook, folder / "out", {"clip_norm": 2.5})


def test_good_notebook_passes_with_its_parameters_in_this_interpreter(good: NotebookRun) -> None:
    assert good.error is None
    assert good.title == "A title"
    assert good.seconds > 0
    last = nbformat.read(good.executed, as_version=4).cells[-1]
    assert last.outputs[0].text.split() == [sys.executable, "2.5"]


def test_executed_copy_has_outputs_but_no_widget_state_and_no_path(good: NotebookRun) -> None:
    text = good.executed.read_text()
    assert "widget-view" not in text
    assert "widgets" not in json.loads(text)["metadata"]
    assert str(good.executed.parent) not in text
    assert len(text) < 30_000
    assert [path.name for path in sorted(good.executed.parent.iterdir())] == [
        "00_good.html",
        "00_good.ipynb",
        "plotly.min.js",
    ]


def test_page_shows_widgets_as_they_stand_at_the_end(good: NotebookRun) -> None:
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
    assert "C <b>7.0</b>" in page
    assert "Plotly.newPlot" in page


def test_page_loads_nothing_from_elsewhere_and_shows_formulas(good: NotebookRun) -> None:
    page = good.html.read_text()
    loads = re.findall(r"(?:<script[^>]*src|<link[^>]*href|<img[^>]*src|<iframe[^>]*src)=[\"']([^\"']+)", page)
    assert loads == ["plotly.min.js"]
    assert not re.search(r"import\s*\(?\s*[\"']https?:|url\([\"']?https?:|cdnjs|unpkg|jsdelivr|cdn\.plot", page)
    assert "<math" in page
    assert "σ" in page or "&#x003C3;" in page


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
    run = run_notebook(notebook, tmp_path / "out", timeout=3)
    assert run.error is not None
    assert message in run.error
    assert run.error.startswith(f"{name}.ipynb, cell 4 (")  # title, parameters, before, this one
    assert "\n" not in run.error
    assert run.html.exists()
    assert "never\n" not in run.executed.read_text()


def test_error_is_counted_in_the_source_notebook_despite_injected_parameters(tmp_path: Path) -> None:
    run = run_notebook(write(tmp_path / "a.ipynb", "1 / 0"), tmp_path / "out", {"mode": "full"})
    assert run.error == "a.ipynb, cell 3 ('1 / 0'): ZeroDivisionError: division by zero"


def test_error_that_comes_while_a_later_cell_runs_fails_the_run(tmp_path: Path) -> None:
    run = run_notebook(write(tmp_path / "a.ipynb", LATE, "time.sleep(2)"), tmp_path / "out")
    assert run.error is not None
    assert "ZeroDivisionError" in run.error


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"clip_nrom": 1.0}, "no parameter 'clip_nrom'; it has: mode, clip_norm"),
        ({"clip_norm": "abc"}, "'clip_norm' of a.ipynb takes a number such as 1.0, not 'abc'"),
        ({"mode": 3}, "'mode' of a.ipynb takes text"),
    ],
)
def test_wrong_parameter_is_refused_before_anything_runs(
    parameters: dict[str, object], message: str, tmp_path: Path
) -> None:
    notebook = write(tmp_path / "a.ipynb", "1 / 0")
    with pytest.raises(UsageError, match=message):
        run_notebook(notebook, tmp_path / "out", parameters)
    assert not (tmp_path / "out").exists()


def test_notebook_for_another_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"saved for the kernel 'julia-1.9'"):
        check_parameters(write(tmp_path / "a.ipynb", kernel="julia-1.9"), {})


@pytest.mark.parametrize("content", ["", "not json", '{"cells": 3}', "[]", "\x80"])
def test_broken_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text(content, encoding="latin-1")
    with pytest.raises(UsageError, match=r"a\.ipynb is not a notebook"):
        check_parameters(tmp_path / "a.ipynb", {})


def test_course_goes_on_after_a_failure_and_lists_both(tmp_path: Path) -> None:
    write(tmp_path / "01_bad.ipynb", "1 / 0")
    write(tmp_path / "00_good.ipynb", "x = 1")
    said: list[str] = []
    course = run_course(tmp_path, tmp_path / "out", say=said.append)
    assert not course.ok
    assert [run.path.name for run in course.runs] == ["00_good.ipynb", "01_bad.ipynb"]
    lines = "".join(said).splitlines()
    assert re.fullmatch(r"\[1/2\] 00_good.ipynb \.\.\. ok after \d+\.\d s", lines[0])
    assert re.fullmatch(r"\[2/2\] 01_bad.ipynb \.\.\. failed after \d+\.\d s", lines[1])
    assert "ZeroDivisionError" in lines[2]
    index = course.index.read_text()
    assert 'href="00_good.html"' in index
    assert "ZeroDivisionError" in index
    assert "http" not in index


def test_notebooks_are_chosen_by_name_in_course_order(tmp_path: Path) -> None:
    for name in ("01_b", "00_a", "02_c"):
        write(tmp_path / f"{name}.ipynb")
    assert [path.stem for path in course_notebooks(tmp_path)] == ["00_a", "01_b", "02_c"]
    assert [path.stem for path in course_notebooks(tmp_path, ["02_c.ipynb", "00_a"])] == ["00_a", "02_c"]
    with pytest.raises(UsageError, match="there is no notebook '03'"):
        course_notebooks(tmp_path, ["03"])
    with pytest.raises(UsageError, match="no notebooks in"):
        course_notebooks(tmp_path / "empty")


def test_command_line_runs_prints_the_index_last_and_tells_failure_by_its_status(tmp_path: Path) -> None:
    write(tmp_path / "00_good.ipynb", "assert clip_norm == 0.5 and mode == 'full'")
    folders = ["--notebooks", str(tmp_path), "--out", str(tmp_path / "out")]
    options = ["run", *folders, "--mode", "full", "--parameter", "clip_norm=0.5"]
    result = CliRunner().invoke(course_app, options)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str((tmp_path / "out" / "index.html").resolve())

    failed = CliRunner().invoke(course_app, ["run", *folders, "--json"])
    assert failed.exit_code == 1
    record = json.loads(failed.stdout)
    assert record["runs"][0]["error"].startswith("00_good.ipynb, cell 3")
    assert record["runs"][0]["seconds"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--parameter", "clip_norm"], "NAME=VALUE"),
        (["--parameter", "clip=1"], "no parameter 'clip'"),
        (["01_other"], "no notebook '01_other'"),
    ],
)
def test_command_line_refuses_bad_arguments(options: list[str], message: str, tmp_path: Path) -> None:
    write(tmp_path / "00_good.ipynb")
    result = CliRunner().invoke(course_app, ["run", "--notebooks", str(tmp_path), *options])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def test_list_names_notebooks_and_their_parameters(tmp_path: Path) -> None:
    write(tmp_path / "00_good.ipynb")
    result = CliRunner().invoke(course_app, ["list", "--notebooks", str(tmp_path)])
    assert result.stdout.splitlines() == ["00_good  A title", '  mode="quick" clip_norm=1.0']


def test_jupyterlab_stays_local_and_calls_nobody(tmp_path: Path) -> None:
    command, environment = lab_command(tmp_path)
    assert command[0] == sys.executable
    assert command[-1] == str(tmp_path / "00_start.ipynb")
    assert "--ServerApp.ip=127.0.0.1" in command
    assert "--LabApp.news_url=None" in command
    assert any(option.endswith("NeverCheckForUpdate") for option in command)
    overrides = Path(environment["JUPYTER_CONFIG_PATH"].split(os.pathsep)[0]) / "labconfig"
    settings = json.loads((overrides / "default_setting_overrides.json").read_text())
    assert settings["@jupyterlab/apputils-extension:notification"]["checkForUpdates"] is False
    assert not any("token" in option or "password" in option for option in command)  # the default random token
