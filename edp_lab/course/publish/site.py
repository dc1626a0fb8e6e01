"""The executed course as a web site that needs no server and no network: `edp-lab course html`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
import nbformat

import edp_lab
from edp_lab.course.publish import markdown_pages as documents
from edp_lab.course.publish import pages
from edp_lab.course.publish.runner import NotebookRun
from edp_lab.models.files import write_whole

NAVIGATION = """<nav style="display: flex; gap: 1rem; padding: .6rem 0; font: 1rem/1.5 system-ui, sans-serif">
<span style="flex: 1">
{%- if before %}<a rel="prev" href="{{ before.page }}">&larr; {{ before.title }}</a>{% endif %}</span>
<a href="index.html">contents</a>
<span style="flex: 1; text-align: right">
{%- if after %}<a rel="next" href="{{ after.page }}">{{ after.title }} &rarr;</a>{% endif %}</span></nav>
"""
CONTENTS = """# {{ heading }}

{% for entry in chapters %}* [{{ entry.title }}]({{ entry.page }})
{% endfor %}
{{ about }}

{% for entry in others %}* [{{ entry.title }}]({{ entry.page }})
{% endfor %}
"""
ABOUT = (
    f"Executed by edp_lab {edp_lab.__version__}: sliders stand where they ended. `edp-lab course lab` opens live pages."
)


class Entry(NamedTuple):
    """A page of the site and what it is made from."""

    title: str
    page: str
    source: Path


def write_site(runs: Sequence[NotebookRun], notebooks_dir: Path, out: Path) -> Path:
    """Write a page for each run and for each Markdown file in `notebooks_dir`, and ``index.html``; return that.

    Each page leads to the one before, the one after and the contents; all share one ``plotly.min.js``.

    Args:
        runs: in course order; their executed copies are read.
        out: created where missing; pages of the same name are replaced.
    """
    out.mkdir(parents=True, exist_ok=True)
    chapters = [Entry(run.title, run.html.name, run.executed) for run in runs]
    others = [_document(path) for path in sorted(notebooks_dir.glob("*.md"))]
    entries = [*chapters, *others]
    names = {"index.html", *(entry.page for entry in entries)}
    for number, entry in enumerate(entries):
        around = _navigation(entries[:number][-1:], entries[number + 1 :][:1])
        if entry in chapters:
            notebook = nbformat.read(entry.source, as_version=4)
            page = pages.page_html(notebook, entry.title, around)
            pages.store_page(documents.fit_links(page, names), out / entry.page)
        else:
            documents.write_document(entry.source, out / entry.page, around, names)
    return write_contents("edp_lab: the course", chapters, others, ABOUT, out)


def write_contents(heading: str, chapters: Sequence[Entry], others: Sequence[Entry], about: str, out: Path) -> Path:
    """Write ``index.html``: the chapters numbered, other pages below them."""
    text = jinja2.Template(CONTENTS).render(heading=heading, chapters=chapters, others=others, about=about)
    page = jinja2.Template(documents.PAGE).render(title=heading, body=pages.markdown_to_html(text), navigation="")
    write_whole(out / "index.html", page.encode())
    return out / "index.html"


def _document(path: Path) -> Entry:
    return Entry(documents.heading(path.read_text(encoding="utf-8"), path.stem), f"{path.stem}.html", path)


def _navigation(before: Sequence[Entry], after: Sequence[Entry]) -> str:
    template = jinja2.Environment(autoescape=True).from_string(NAVIGATION)
    return template.render(before=before[0] if before else None, after=after[0] if after else None)
