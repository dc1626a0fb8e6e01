"""Execute the course's notebooks with their solutions by papermill, and convert them to HTML pages by nbconvert.

A notebook such as ``notebooks/04_edp_sgd.ipynb`` has a stub for each exercise, in a code cell that is tagged
``exercise`` and begins with the line ``# EXERCISE name``. The solutions are in ``notebooks/solutions/04.py``. Each
begins with the same line as its stub.

The pages need no kernel, server or network. The widgets of a panel are drawn by their own front ends, and ``page.js``
looks up the panel's state in a table (see `edp_lab.course.kit.table`). A panel with a Run button shows the last run in
the executed notebook. Formulas are converted to MathML.
"""

from __future__ import annotations

import ast
import json
import math
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import nbformat
import papermill
from joblib import Parallel, delayed
from latex2mathml import converter
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from papermill.exceptions import PapermillExecutionError
from plotly.offline import get_plotlyjs
from traitlets.config import Config

from edp_lab.course.kit import theme
from edp_lab.course.kit.controls import OPTIONS, Control
from edp_lab.course.kit.figure import LiveFigure
from edp_lab.course.kit.text import Fold, Tiles
from edp_lab.errors import UsageError
from edp_lab.files import write_whole

HERE = Path(__file__).parent
WIDGET = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
PLOTLY = "application/vnd.plotly.v1+json"
VERDICTS = "application/vnd.edp-lab.verdicts+json"
KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
_NAME = re.compile(r"^# EXERCISE (\w+)[ \t]*$", re.MULTILINE)
TABLES = "application/vnd.edp-lab.tables+json"
MAKE_TABLES = f"""from IPython.display import display
from edp_lab.course.kit.table import tables
display({{{TABLES!r}: tables()}}, raw=True)"""
FIGURE = f"{LiveFigure.__module__}.{LiveFigure.__name__}"  # key of its front end: see `write_shared`
COURSE, HOME = "edp_lab: a course on differential privacy", "[The course](index.html)"
ABOUT = (
    "*On this page, the sliders move and the exercises are solved. To edit code, use **Run** and solve the exercises "
    f"yourself, work in the notebook: `make lab` opens it.* {HOME}"
)

# ---- Notebooks and their parameters ----------------------------------------------------------------------------------


def course_notebooks(folder: Path, only: Sequence[str] = ()) -> list[Path]:
    """The notebooks of a folder in course order, or those named in `only`, such as "04_edp_sgd" or "04"."""
    paths = sorted(folder.glob("*.ipynb"))
    if not paths:
        raise UsageError(f"no notebooks in {folder}: run this in a clone of the project, or give --notebooks")
    named = {name: path for path in paths for name in (path.stem, path.name, path.stem.partition("_")[0])}
    for name in only:
        if name not in named:
            names = ", ".join(path.stem for path in paths)
            raise UsageError(f"there is no notebook {name!r} in {folder}: choose from {names}")
    return sorted({named[name] for name in only}) if only else paths


def share_out(paths: Sequence[Path], parameters: Mapping[str, Any]) -> dict[Path, dict[str, Any]]:
    """Select the parameters that each notebook declares.

    Unlike papermill, raises UsageError if no notebook declares a parameter or if a value has the wrong type.
    """
    known = {path: papermill.inspect_notebook(path) for path in paths}
    unwanted = {"mode"} - {name for names in known.values() for name in names}  # the user did not set it
    for name, value in parameters.items():
        if name in unwanted:
            continue
        defaults = [names[name]["default"] for names in known.values() if name in names]
        if not defaults:
            have = ", ".join(dict.fromkeys(name for names in known.values() for name in names)) or "none"
            raise UsageError(f"the chosen notebooks have no parameter {name!r}; they have: {have}")
        for default in defaults:
            kind = type(literal(default))
            fits = type(value) is kind or (kind is float and type(value) is int) or literal(default) in (default, None)
            if not fits or value in (math.inf, -math.inf):
                raise UsageError(f"parameter {name} is {value!r}: give {KINDS.get(kind, 'a value')}, such as {default}")
    return {path: {name: parameters[name] for name in parameters if name in names} for path, names in known.items()}


def literal(text: str) -> Any:
    """Evaluate a Python literal; return any other text unchanged."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


# ---- Solutions and copies --------------------------------------------------------------------------------------------


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook; UsageError if the file is not a notebook."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except FileNotFoundError:
        raise UsageError(f"there is no notebook {path}") from None
    except Exception as error:  # unexpected content can raise any error in nbformat
        raise UsageError(f"{path} is not a notebook: give a file such as 00_start.ipynb, or restore it") from error
    return notebook


def exercise_cells(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """The notebook's exercise cells by name, in order."""
    tagged = [cell for cell in notebook.cells if "exercise" in cell.metadata.get("tags", ())]
    return {match[1]: cell for cell in tagged if (match := _NAME.match(cell.source))}


def read_solutions(path: Path) -> dict[str, str]:
    """The solutions of the notebook at `path`, by exercise name, including the ``# EXERCISE`` lines."""
    file = path.parent / "solutions" / f"{path.name[:2]}.py"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    pieces = re.split(r"^(?=# EXERCISE )", text, flags=re.MULTILINE)
    return {match[1]: piece.strip() for piece in pieces if (match := _NAME.match(piece))}


def solved(notebook: NotebookNode, path: Path) -> NotebookNode:
    """A copy of the notebook at `path` in which each exercise's solution replaces its stub.

    Raises:
        UsageError: an exercise has no solution, or a solution has no exercise.
    """
    notebook, solutions = deepcopy(notebook), read_solutions(path)
    cells = exercise_cells(notebook)
    if unmatched := cells.keys() ^ solutions.keys():
        raise UsageError(f"{path.name} and its solutions differ in the exercise {sorted(unmatched)[0]!r}")
    for name, cell in cells.items():
        cell.source = solutions[name]
    return notebook


def title(notebook: NotebookNode, default: str) -> str:
    """The notebook's first heading, or `default`."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    heading = re.search(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return heading[1].replace("`", "") if heading else default


def write_solutions(folder: Path, out: Path) -> None:
    """Write the notebooks of a folder with their solutions in place of the stubs, and the pages and images they use."""
    for path, name in course_files(folder).items():
        if path.suffix == ".ipynb":
            content = nbformat.writes(solved(read_notebook(path), path)).encode()
        else:
            content = path.read_bytes()
        write_whole(out / name, content)


def own_copy(folder: Path, out: Path) -> None:
    """Copy the notebooks of a folder, and the pages and images they use; existing files are never overwritten."""
    for path, name in course_files(folder).items():
        if not (out / name).exists():
            write_whole(out / name, path.read_bytes())


def course_files(folder: Path) -> dict[Path, str]:
    """The notebooks of a folder, and the pages and images they use, with their paths relative to the folder."""
    patterns = ("*.ipynb", "glossary.md", "references.md", "images/*")
    paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return {path: path.relative_to(folder).as_posix() for path in paths}


# ---- Running ---------------------------------------------------------------------------------------------------------


def run_course(
    folder: Path, out: Path, parameters: Mapping[str, Any], only: Sequence[str] = (), jobs: int = 1, timeout: int = 600
) -> Iterator[dict[str, Any]]:
    """Execute the notebooks of a folder with their solutions; write executed copies, HTML pages and an index.

    Args:
        parameters: parameters of the notebooks; each notebook receives those that it declares.
        only: see `course_notebooks`.
        jobs: number of notebooks that run in parallel and share the processor's cores.
        timeout: maximum time per cell, in seconds.

    Yields:
        For each notebook, when it ends: ``notebook``, ``title``, ``status`` ("ok" or "failed"), ``seconds``, ``error``.
    """
    paths = course_notebooks(folder, only)
    whole = {path: solved(read_notebook(path), path) for path in paths}
    tasks = [
        delayed(_run)(path, whole[path], given, out, timeout) for path, given in share_out(paths, parameters).items()
    ]
    rows = []
    for row in Parallel(n_jobs=jobs, return_as="generator_unordered")(tasks):
        rows.append(row)
        yield row
    _write_index(sorted(rows, key=lambda row: str(row["notebook"])), folder, out)


def _run(path: Path, notebook: NotebookNode, parameters: Mapping[str, Any], out: Path, timeout: int) -> dict[str, Any]:
    started, name = time.perf_counter(), title(notebook, path.stem)
    notebook.cells.append(new_code_cell(MAKE_TABLES))
    executed, error = execute(notebook, parameters, timeout)
    seconds = round(time.perf_counter() - started, 1)
    page = page_of(NotebookNode(executed, cells=[new_markdown_cell(ABOUT), *executed.cells]), name, path.parent)
    write_whole(out / path.name, nbformat.writes(executed).encode())
    write_whole(out / f"{path.stem}.html", page.encode())
    status = "failed" if error else "ok"
    return {"notebook": path.stem, "title": name, "status": status, "seconds": seconds, "error": error}


def execute(
    notebook: NotebookNode, parameters: Mapping[str, Any], timeout: int = 600
) -> tuple[NotebookNode, str | None]:
    """Execute a notebook and apply `still` to it; return the notebook and its first error as one line, or None."""
    encrypted = Config({"KernelManager": {"transport_encryption": "auto"}})
    with tempfile.TemporaryDirectory() as folder:
        given, executed = Path(folder) / "given.ipynb", Path(folder) / "executed.ipynb"
        nbformat.write(notebook, given)
        how: Any = {"progress_bar": False, "execution_timeout": timeout, "config": encrypted}
        how["extra_arguments"] = ["--log-level=CRITICAL"]  # on shutdown, a kernel logs an interrupt as an error
        error = None
        try:
            papermill.execute_notebook(given, executed, dict(parameters), kernel_name="python3", **how)
        except PapermillExecutionError as problem:
            value = re.sub(r"\x1b\[[0-9;]*m", "", problem.evalue)
            error = " ".join(f"{problem.ename}: {value} (in {problem.source.splitlines()[0]!r})".split())
        except TimeoutError:
            error = f"a cell took longer than {timeout} s"
        except RuntimeError:  # nbclient's DeadKernelError
            error = "the kernel died (out of memory?)"
        done = nbformat.read(executed, as_version=4)
    done.metadata.pop("papermill", None)  # contains paths of this machine
    still(done)
    return done, error


def verdicts(path: Path, timeout: int = 600) -> dict[str, Any]:
    """Execute a student's notebook without changes, and return the verdicts of its checks.

    Errors in cells do not stop the execution. The notebook's code runs with the caller's permissions.

    Returns:
        ``notebook``; ``verdicts``, the ``status`` and ``message`` of each exercise; and ``error``, which is None if
        there are verdicts.
    """
    notebook = read_notebook(path)
    marks = "{name: mark._asdict() for name, mark in check.verdicts.items()}"
    notebook.cells.append(
        new_code_cell(f"from IPython.display import display\ndisplay({{{VERDICTS!r}: {marks}}}, raw=True)")
    )
    for cell in notebook.cells:
        cell.metadata["tags"] = [*cell.metadata.get("tags", ()), "raises-exception"]
    executed, error = execute(notebook, {}, timeout)
    for output in executed.cells[-1].get("outputs", ()):
        if VERDICTS in output.get("data", {}):
            return {"notebook": str(path), "verdicts": output.data[VERDICTS], "error": None}
    return {"notebook": str(path), "verdicts": {}, "error": error or "the notebook's last cell printed no verdicts"}


# ---- Pages -----------------------------------------------------------------------------------------------------------


def still(notebook: NotebookNode) -> None:
    """Replace each displayed widget and figure with HTML that ``page.js`` draws; remove the widgets' states."""
    models = notebook.metadata.pop("widgets", {}).get(STATE, {}).get("state", {})
    tables: dict[str, Any] = {}
    if notebook.cells and notebook.cells[-1].source == MAKE_TABLES:
        for output in notebook.cells.pop().outputs:
            tables |= output.get("data", {}).get(TABLES, {})
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        data = output.get("data", {})
        if WIDGET in data:
            drawn = page_state(data[WIDGET]["model_id"], models, tables)
        elif PLOTLY in data:
            height = data[PLOTLY]["layout"].get("height", 450)
            drawn = {"module": FIGURE, "state": {"drawn": data[PLOTLY]}, "style": {"height": f"{height}px"}}
        else:
            continue
        output.data = NotebookNode({"text/html": page_element(drawn)})


def page_element(drawn: Mapping[str, Any]) -> str:
    """The HTML of a widget or figure that ``page.js`` draws."""
    return f'<div class="edp-still">{_json(drawn)}</div>'


def page_state(key: str, models: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    """Description of a widget, with its table if it has one; otherwise the widget's controls are disabled."""
    table = tables.get(key)
    for control in table["controls"] if table else ():
        state = models[control["id"]]["state"]
        if state["kind"] not in OPTIONS:
            state["stops"] = control["stops"]
    return {**_drawn(key, models, still=table is None), "table": table}


def _drawn(key: str, models: Mapping[str, Any], still: bool) -> dict[str, Any]:
    """Description of a widget: its classes and style, and the state of its front end, its text or its children."""
    state = models.get(key, {}).get("state", {})
    layout = models.get(state.get("layout", "").removeprefix("IPY_MODEL_"), {}).get("state", {})
    style = {name.replace("_", "-"): value for name, value in layout.items() if value and name[0] != "_"}
    drawn: dict[str, Any] = {"classes": state.get("_dom_classes", []), "style": style}
    if "_esm" in state:
        shown = {name: value for name, value in state.items() if name[0] != "_" and name != "layout"}
        drawn |= {"id": key, "module": state["_anywidget_id"], "state": shown | ({"disabled": True} if still else {})}
    elif "children" in state:
        children = [_drawn(child.removeprefix("IPY_MODEL_"), models, still) for child in state["children"]]
        drawn |= {"children": children}
    elif state.get("_model_name") == "HTMLModel":
        drawn |= {"html": state["value"]}
    elif state.get("_model_name") == "ButtonModel":
        drawn |= {"button": state["description"]}
    return drawn


def _json(value: Any) -> str:
    """A script element that contains a value as JSON."""
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


class _MathML(IPythonRenderer):
    """nbconvert's Markdown renderer, with formulas as MathML; those that cannot be converted stay TeX."""

    def block_math(self, tex: str, display: str = "block") -> str:
        try:
            return converter.convert(tex, display=display)
        except Exception:  # the converter has no common base class for its errors
            return f"<code>{escape(tex)}</code>"

    def inline_math(self, body: str) -> str:
        return self.block_math(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")


class _Exporter(HTMLExporter):
    """nbconvert's HTML exporter, with formulas as MathML."""

    @jinja2.pass_context
    def markdown2html(self, context: jinja2.runtime.Context, source: str) -> str:
        return MarkdownWithMath(renderer=_MathML(escape=False)).render(source)


def page_of(notebook: NotebookNode, name: str, folder: Path) -> str:
    """HTML page of an executed notebook, with images from its `folder`; links to notebooks point to their pages."""
    setup = Config(TagRemovePreprocessor={"enabled": True, "remove_input_tags": {"setup"}})  # imports are not shown
    how: Any = {"template_file": "page.html.j2", "extra_template_paths": [str(HERE)], "embed_images": True}
    exporter = _Exporter(setup, exclude_input_prompt=True, exclude_output_prompt=True, **how)
    resources = {"metadata": {"name": name, "path": str(folder)}, "style": theme.STYLE}
    page, _ = exporter.from_notebook_node(notebook, resources)
    page = re.sub(r'<a href="\.\./[^"]*"[^>]*>(.*?)</a>', r"\1", page)  # pages of docs/ are not exported
    page = page.replace(' tabindex="0"', "")  # cells need no keyboard focus
    return re.sub(r'href="([\w-]+)\.(?:ipynb|md)(?=[#"])', r'href="\1.html', page)


def _write_index(rows: Sequence[Mapping[str, Any]], folder: Path, out: Path) -> None:
    """Write the files shared by a run's pages: ``index.html``, pages of Markdown files, plotly.js and ``panels.js``.

    The index shows the panel of the cell tagged ``landing``, if it was executed, and a card for each notebook.
    """
    card = '<a class="edp-card" href="{notebook}.html">{title}{failed}</a>'
    cards = [
        card.format(
            notebook=row["notebook"],
            title=escape(row["title"]),
            failed=f"<pre>failed: {escape(row['error'])}</pre>" if row["error"] else "",
        )
        for row in rows
    ]
    executed = (nbformat.read(out / f"{row['notebook']}.ipynb", as_version=4) for row in rows)
    shown = [cell for notebook in executed for cell in notebook.cells if "landing" in cell.metadata.get("tags", ())]
    for cell in shown:
        cell.metadata.tags.append("setup")  # its code is not shown
    about = (HERE / "landing.md").read_text(encoding="utf-8")
    texts = {path.stem: f"{HOME}\n\n{path.read_text(encoding='utf-8')}" for path in sorted(folder.glob("*.md"))}
    pages = {stem: new_notebook(cells=[new_markdown_cell(text)]) for stem, text in texts.items()}
    more = "\n".join(f"* [{title(page, stem)}]({stem}.md)" for stem, page in pages.items())
    below = new_markdown_cell(f'<div class="edp-cards">{"".join(cards)}</div>\n\n{more}')
    pages["index"] = new_notebook(cells=[new_markdown_cell(about), *shown, below])
    for stem, page in pages.items():
        name = COURSE if stem == "index" else title(page, stem)
        write_whole(out / f"{stem}.html", page_of(page, name, folder).encode())
    write_shared(out)


def write_shared(out: Path) -> None:
    """Write the scripts that all pages of a folder load: plotly.js, and ``page.js`` with the panels' front ends."""
    widgets: Sequence[Any] = (Control, Tiles, Fold, LiveFigure)
    modules = {f"{widget.__module__}.{widget.__name__}": str(widget._esm) for widget in widgets}
    shared = {"modules": modules, "how": {"template": theme.TEMPLATE.to_plotly_json(), "config": theme.CONFIG}}
    code = f"const edpLab = {json.dumps(shared)};\n" + (HERE / "page.js").read_text(encoding="utf-8")
    write_whole(out / "panels.js", code.encode())
    write_whole(out / "plotly.min.js", get_plotlyjs().encode())
