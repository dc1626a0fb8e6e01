"""Executed notebooks as slides by reveal.js that need no server and no network: `edp-lab course slides`.

nbconvert cuts slides where cells say so. Here each heading of level 1 or 2 begins a slide, to the right of the one
before; each deeper heading, each further piece of text with the code that follows it, and each figure goes below.
reveal.js 6.0.2 (MIT licence) lies in ``reveal/`` as it is published, with a theme of our own.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from jinja2 import DictLoader
from nbconvert.exporters import SlidesExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from edp_lab.course.publish import pages
from edp_lab.course.publish.markdown_pages import fit_links
from edp_lab.course.publish.runner import NotebookRun
from edp_lab.course.publish.site import Entry, write_contents

REVEAL = Path(__file__).parent / "reveal"
HEADING = re.compile(r"(#+) ")
FENCE = re.compile(r"(```|~~~|\$\$)")
ABOUT = "Arrow keys move right and down, `o` shows all slides, `f` fills the screen, `?` lists all keys."

TEMPLATE = """
{%- extends 'index.html.j2' -%}
{%- block html_head_js -%}
{% if resources.plotly %}<script src="plotly.min.js"></script>{% endif %}
<script src="reveal/dist/reveal.js"></script>
{%- endblock -%}
{%- block jupyter_widgets -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block footer_js -%}
<script>
const figures = slide => slide.querySelectorAll(".js-plotly-plot").forEach(figure => Plotly.Plots.resize(figure));
Reveal.on("ready", event => figures(event.currentSlide));
Reveal.on("slidechanged", event => figures(event.currentSlide));
Reveal.initialize({width: "100%", height: "100%", margin: 0, minScale: 1, maxScale: 1, center: false,
                   transition: "none", hash: true, slideNumber: "c/t"});
</script>
{%- endblock -%}
"""


class _Exporter(pages.MathExporter, SlidesExporter):
    """nbconvert's slides, with formulas as MathML."""


def write_slides(runs: Sequence[NotebookRun], out: Path) -> Path:
    """Write a page of slides for each run, from its executed copy, and ``index.html``; return that.

    reveal.js and plotly.js lie beside the pages; nothing is loaded from elsewhere.
    """
    out.mkdir(parents=True, exist_ok=True)
    shutil.copytree(REVEAL, out / "reveal", dirs_exist_ok=True)
    names = {run.html.name for run in runs}
    for run in runs:
        notebook = nbformat.read(run.executed, as_version=4)
        pages.store_page(fit_links(slides_html(notebook, run.title), names), out / run.html.name)
    chapters = [Entry(run.title, run.html.name, run.executed) for run in runs]
    return write_contents("edp_lab: slides", chapters, [], ABOUT, out)


def slides_html(notebook: NotebookNode, name: str) -> str:
    """The slides of an executed notebook."""
    loaders = [DictLoader({"slides.html.j2": TEMPLATE})]
    reveal = {"reveal_url_prefix": "reveal", "reveal_theme": "course"}
    exporter = _Exporter(extra_loaders=loaders, template_file="slides.html.j2", **reveal)
    slides = NotebookNode(notebook, cells=[cell for old in notebook.cells for cell in _marked(old)])
    return pages.exported(exporter, slides, {"metadata": {"name": name}})


def _marked(cell: NotebookNode) -> Iterator[NotebookNode]:
    """The cell, a Markdown cell cut at its headings; each says whether a slide begins with it."""
    if cell.cell_type != "markdown":
        figure = any(pages.PLOTLY in output.get("data", {}) for output in cell.get("outputs", ()))
        kind = "subslide" if figure else "-"
        yield NotebookNode(cell, metadata=NotebookNode(cell.metadata, slideshow={"slide_type": kind}))
        return
    for part in cut_at_headings(cell.source):
        heading = HEADING.match(part)
        kind = "slide" if heading and len(heading[1]) <= 2 else "subslide"
        yield new_markdown_cell(part, metadata={"slideshow": {"slide_type": kind}})


def cut_at_headings(text: str) -> list[str]:
    """The parts of a Markdown text, each of which begins with a heading, but for what stands before the first."""
    parts: list[list[str]] = [[]]
    inside = False  # a block of code or a formula
    for line in text.splitlines():
        if HEADING.match(line) and not inside and any(parts[-1]):
            parts.append([])
        inside ^= len(FENCE.findall(line)) % 2 == 1
        parts[-1].append(line)
    return ["\n".join(part).strip() for part in parts]
