"""The executed course as web pages that need no server and no network: a site (`edp-lab course html`), slides
(`edp-lab course slides`), and the package's reference (`edp-lab course api`).

nbconvert cuts slides where cells say so. Here each heading of level 1 or 2 begins a slide, to the right of the one
before; each deeper heading, each further piece of text with the code that follows it, and each figure goes below.
reveal.js 6.0.2 (MIT licence) lies in ``reveal/`` as it is published, with a theme of our own.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbconvert.exporters import SlidesExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

import edp_lab
from edp_lab.course.publish import pages
from edp_lab.course.publish.pages import filled, markdown_to_html
from edp_lab.course.publish.runner import NotebookRun
from edp_lab.errors import UsageError
from edp_lab.models.files import write_whole

ABOUT = (
    f"Executed by edp_lab {edp_lab.__version__}: sliders stand where they ended. `edp-lab course lab` opens live pages."
)
ABOUT_SLIDES = "Arrow keys move right and down, `o` shows all slides, `f` fills the screen, `?` lists all keys."
ANCHOR = re.compile(r'<a\b([^>]*?)href="([^"]*)"([^>]*)>(.*?)</a>', re.DOTALL)
REVEAL = Path(__file__).parent / "reveal"
HEADING = re.compile(r"(#+) ")
FENCE = re.compile(r"(```|~~~|\$\$)")

# ---- A site --------------------------------------------------------------------------------------------------------


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
            pages.store_page(fit_links(page, names), out / entry.page)
        else:
            write_document(entry.source, out / entry.page, around, names)
    return write_contents("edp_lab: the course", chapters, others, ABOUT, out)


def write_contents(heading: str, chapters: Sequence[Entry], others: Sequence[Entry], about: str, out: Path) -> Path:
    """Write ``index.html``: the chapters numbered, other pages below them."""
    text = filled("contents.md.j2", heading=heading, chapters=chapters, others=others, about=about)
    page = filled("document.html.j2", title=heading, body=markdown_to_html(text), navigation="")
    write_whole(out / "index.html", page.encode())
    return out / "index.html"


def _document(path: Path) -> Entry:
    return Entry(pages.heading(path.read_text(encoding="utf-8"), path.stem), f"{path.stem}.html", path)


def _navigation(before: Sequence[Entry], after: Sequence[Entry]) -> str:
    return filled("navigation.html.j2", before=before[0] if before else None, after=after[0] if after else None)


def write_document(source: Path, page: Path, navigation: str, names: Collection[str]) -> None:
    """Write a Markdown file as a page, and copy the pictures it shows from beside it.

    Args:
        navigation: HTML above and below the text.
        names: see `fit_links`.
    """
    text = source.read_text(encoding="utf-8")
    body = markdown_to_html(text)
    for picture in re.findall(r'<img[^>]*src="([^":]+)"', body):
        if (source.parent / picture).is_file():
            (page.parent / picture).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source.parent / picture, page.parent / picture)
    title = pages.heading(text, source.stem)
    made = filled("document.html.j2", title=title, navigation=navigation, body=fit_links(body, names))
    write_whole(page, made.encode())


def fit_links(html: str, names: Collection[str]) -> str:
    """Links to notebooks and Markdown files lead to their pages; one to a file that has no page becomes its text.

    Args:
        names: of the pages that lie beside this one.
    """

    def fitted(match: re.Match[str]) -> str:
        before, target, after, text = match.groups()
        file, hash_sign, part = target.partition("#")
        page = re.sub(r"\.(ipynb|md)$", ".html", file)
        if ":" in target or not file:
            return match[0]
        return f'<a{before}href="{page}{hash_sign}{part}"{after}>{text}</a>' if page in names else text

    return ANCHOR.sub(fitted, html)


# ---- Slides --------------------------------------------------------------------------------------------------------


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
    return write_contents("edp_lab: slides", chapters, [], ABOUT_SLIDES, out)


def slides_html(notebook: NotebookNode, name: str) -> str:
    """The slides of an executed notebook."""
    reveal = {"reveal_url_prefix": "reveal", "reveal_theme": "course"}
    exporter = _Exporter(extra_loaders=[pages.TEMPLATES], template_file="slides.html.j2", **reveal)
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


# ---- The reference -------------------------------------------------------------------------------------------------


def module_names() -> list[str]:
    """Every module of the package, private ones and ``__main__`` left out, as ``edp_lab.privacy.mechanism``."""
    root = Path(edp_lab.__file__).parent
    parts = [path.relative_to(root.parent).with_suffix("").parts for path in sorted(root.rglob("*.py"))]
    named = [parts[:-1] if parts[-1] == "__init__" else parts for parts in parts]
    return [".".join(parts) for parts in named if not any(part.startswith("_") for part in parts)]


def write_api(out: Path) -> Path:
    """Write a page for each module, ``search.js`` and ``index.html`` into `out`; return the index.

    A module that cannot be imported, because what it needs is not installed, has no page.

    Raises:
        UsageError: pdoc is not installed.
    """
    try:
        import pdoc
        import pdoc.doc
        import pdoc.render
    except ImportError:
        raise UsageError("the reference pages are made by pdoc: pip install -c constraints.txt pdoc") from None

    pdoc.render.configure(docformat="google", search=True, footer_text=f"edp_lab {edp_lab.__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of annotations that only a type checker can read
        pdoc.pdoc(*_importable(module_names()), output_directory=out)
    return out / "index.html"


def _importable(names: list[str]) -> list[str]:
    import pdoc.extract

    found = []
    for name in names:
        try:
            pdoc.extract.load_module(name)
        except RuntimeError:  # whatever the import raised
            continue
        found.append(name)
    return found
