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
from jinja2 import DictLoader
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

TEMPLATE = """
{%- extends 'index.html.j2' -%}
{%- block html_head_js -%}
{% if resources.plotly %}<script src="plotly.min.js"></script>{% endif %}
{%- endblock -%}
{%- block jupyter_widgets -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block html_head_css -%}
<style>
html { overflow-y: scroll; } /* a scroll bar that came while the page loads would narrow the place of a drawn figure */
main { max-width: 62rem; margin: auto; padding: 1rem; }
</style>
{%- endblock -%}
{%- block body_header -%}{{ super() }}{{ resources.navigation }}{%- endblock -%}
{%- block body_footer -%}{{ resources.navigation }}{{ super() }}{%- endblock -%}
"""

INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>edp_lab: the executed course</title>
<style>
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 52rem; margin: 3rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .5rem .75rem; border-bottom: 1px solid #8886; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.failed { font-weight: 600; color: #d55e00; }
small { opacity: .75; }
</style></head><body>
<h1>edp_lab: the executed course</h1>
<p>{{ about }}</p>
<table><tr><th>Notebook</th><th>Result</th><th>Time</th><th>Memory</th></tr>
{% for row in rows -%}
<tr><td><a href="{{ row.html.name | urlencode }}">{{ row.title }}</a><br>
<small><a href="{{ row.executed.name | urlencode }}">{{ row.executed.name }}</a></small></td>
<td>{% if row.error %}<span class="failed">failed</span><br><small>{{ row.error }}</small>
{%- else %}ok{% endif %}</td>
<td class="number">{{ "%.1f" | format(row.seconds) }} s</td>
<td class="number">{{ "%.0f" | format(row.memory_mb) }} MB</td></tr>
{% endfor -%}
</table></body></html>
"""


def title(notebook: NotebookNode, default: str) -> str:
    """The notebook's first heading, or ``default``."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    heading = re.search(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return heading[1].replace("`", "") if heading else default


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
    exporter = MathExporter(extra_loaders=[DictLoader({"course.html.j2": TEMPLATE})], template_file="course.html.j2")
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


def write_index(rows: Sequence[Any], path: Path, about: str) -> None:
    """Write the page that lists ``rows`` (anything with title, html, executed, error, seconds and memory_mb)."""
    template = jinja2.Environment(autoescape=True).from_string(INDEX)
    write_whole(path, template.render(rows=rows, about=about).encode())


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
            options = {
                "include_plotlyjs": False,
                "full_html": False,
                "validate": False,
                "default_height": 450,
            }
            code = plotly.io.to_html(parts, config=CONFIG, **options)
            output = NotebookNode(output, data=NotebookNode({**output.data, "text/html": code}))
        outputs.append(output)
    return NotebookNode(cell, outputs=outputs)
