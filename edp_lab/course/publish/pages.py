"""Executed notebooks as web pages that need no kernel and load nothing from elsewhere.

Widgets become what they show at the end (text, read-outs, figures), formulas become MathML, and all pages
share one copy of plotly.js that lies beside them.
"""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import plotly
from latex2mathml import converter
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_output

from edp_lab.course.kit.theme import CONFIG
from edp_lab.models.files import write_whole

WIDGET = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
PLOTLY = "application/vnd.plotly.v1+json"
PLOTLY_JS = "plotly.min.js"
_ADDING = threading.Lock()
TEMPLATES = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
_templates = jinja2.Environment(loader=TEMPLATES, autoescape=True)


def title(notebook: NotebookNode, default: str) -> str:
    """The notebook's first heading, or ``default``."""
    return heading("\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown"), default)


def heading(text: str, default: str) -> str:
    """The first heading of a Markdown text, or `default`."""
    found = re.search(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else default


def freeze_widgets(notebook: NotebookNode) -> None:
    """Replace each displayed widget by what it shows, in place; drop the widget state (5 MB per figure)."""
    states = {key: model["state"] for key, model in _widget_models(notebook).items()}
    figures = notebook.metadata.pop("figures", {})
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [frozen for output in cell.outputs for frozen in _frozen(output, states, figures)]


def write_page(notebook: NotebookNode, path: Path, name: str) -> None:
    """Write ``notebook`` (its widgets frozen) as an HTML page; one with figures gets plotly.js beside it."""
    store_page(page_html(notebook, name), path)


def page_html(notebook: NotebookNode, name: str, navigation: str = "") -> str:
    """A page of ``notebook`` (its widgets frozen), with ``navigation`` (HTML) above and below."""
    note = new_markdown_cell("*An executed copy: sliders stand where they ended. `make lab` opens the live notebook.*")
    page = NotebookNode(notebook, cells=[note, *notebook.cells])
    exporter = MathExporter(extra_loaders=[TEMPLATES], template_file="course.html.j2")
    return exported(exporter, page, {"metadata": {"name": name}, "navigation": navigation})


def exported(exporter: HTMLExporter, notebook: NotebookNode, resources: dict[str, Any]) -> str:
    """The notebook through an exporter, each figure as HTML; ``resources.plotly`` says whether there is any."""
    cells = [_with_plotly_html(cell) for cell in notebook.cells]
    has_figures = any(PLOTLY in output.get("data", {}) for cell in cells for output in cell.get("outputs", ()))
    text, _ = exporter.from_notebook_node(NotebookNode(notebook, cells=cells), {**resources, "plotly": has_figures})
    return text


def store_page(text: str, path: Path) -> None:
    """Write a page, and plotly.js beside it if the page asks for that; two threads may."""
    if f'src="{PLOTLY_JS}"' in text:
        with _ADDING:
            if not (path.parent / PLOTLY_JS).exists():
                write_whole(path.parent / PLOTLY_JS, plotly.offline.get_plotlyjs().encode())
    write_whole(path, text.encode())


def markdown_to_html(text: str, attachments: dict[str, dict[str, str]] | None = None) -> str:
    """Markdown as the notebooks' pages show it: formulas as MathML."""
    return MarkdownWithMath(renderer=_MathML(escape=False, attachments=dict(attachments or {}))).render(text)


def filled(template: str, **values: Any) -> str:
    """A template of this folder with these values, which are escaped."""
    return _templates.get_template(template).render(values)


def write_index(rows: Sequence[Any], path: Path, about: str) -> None:
    """Write the page that lists ``rows`` (anything with title, html, executed, error, seconds and memory_mb)."""
    write_whole(path, filled("runs.html.j2", rows=rows, about=about).encode())


class _MathML(IPythonRenderer):
    """nbconvert's Markdown, with formulas as MathML; what the converter does not know stays TeX."""

    def block_math(self, body: str) -> str:
        return self._math(body, "block")

    def inline_math(self, body: str) -> str:
        return self._math(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        return self._math(f"\\begin{{{name}}}{body}\\end{{{name}}}", "block")

    def _math(self, tex: str, display: str) -> str:
        try:
            return converter.convert(tex, display=display)
        except Exception:  # the converter has no common base class for its errors
            return f"<code>{html.escape(tex)}</code>"


class MathExporter(HTMLExporter):
    """nbconvert's pages, with formulas as MathML."""

    @jinja2.pass_context
    def markdown2html(self, context: jinja2.runtime.Context, source: str) -> str:
        attachments = context.get("cell", {}).get("attachments", {})
        return markdown_to_html(source, attachments)


def _widget_models(notebook: NotebookNode) -> Mapping[str, Any]:
    return notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})


def _frozen(output: NotebookNode, states: Mapping[str, Any], figures: Mapping[str, Any]) -> list[NotebookNode]:
    """What stands for ``output``: what a widget shows; a figure without its HTML, which holds plotly.js."""
    data = output.get("data", {})
    if WIDGET in data:
        return list(_shown(data[WIDGET]["model_id"], states, figures))
    if PLOTLY in data:
        data.pop("text/html", None)
    return [output]


def _shown(key: str, states: Mapping[str, Any], figures: Mapping[str, Any]) -> Iterator[NotebookNode]:
    """What the widget ``key`` and its children show, from top to bottom."""
    state = states.get(key, {})
    if key in figures:
        yield new_output("display_data", {PLOTLY: {**figures[key], "config": CONFIG}})
    elif "children" in state:
        for child in state["children"]:
            yield from _shown(child.removeprefix("IPY_MODEL_"), states, figures)
    elif "outputs" in state:
        for output in state["outputs"]:
            yield from _frozen(NotebookNode(output), states, figures)
    elif text := _text(state):
        yield new_output("display_data", {"text/html": text})


def _text(state: Mapping[str, Any]) -> str:
    """What a widget without children says: an HTML widget its value, a control its name and setting."""
    if state.get("_model_name") in ("HTMLModel", "HTMLMathModel"):
        return str(state["value"])
    value = state.get("value")
    if state.get("_model_name") == "TextareaModel":
        return f"<pre>{html.escape(str(value))}</pre>"
    if "_options_labels" in state and isinstance(state.get("index"), int):
        value = state["_options_labels"][state["index"]]
    name = state.get("description")
    if value is None or not name:  # a slider's number box repeats what the slider says
        return ""
    return f"<div>{html.escape(name)} <b>{html.escape(str(value))}</b></div>"


def _with_plotly_html(cell: NotebookNode) -> NotebookNode:
    """A copy of the cell in which each plotly figure is HTML that finds plotly.js in the page's head."""
    if cell.cell_type != "code":
        return cell
    outputs = []
    for output in cell.outputs:
        if figure := output.get("data", {}).get(PLOTLY):
            parts = {key: figure[key] for key in ("data", "layout") if key in figure}
            options = {"include_plotlyjs": False, "full_html": False, "validate": False, "default_height": 450}
            code = plotly.io.to_html(parts, config=CONFIG, **options)
            output = NotebookNode(output, data=NotebookNode({**output.data, "text/html": code}))
        outputs.append(output)
    return NotebookNode(cell, outputs=outputs)
