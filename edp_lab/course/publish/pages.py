"""The executed course as web pages that need no kernel, no server and no network: a page for each notebook, a site
(`edp-lab course html`), slides (`edp-lab course slides`), and the package's reference (`edp-lab course api`).

Widgets become what they show at the end (text, read-outs, figures), formulas become MathML, and all pages share one
copy of plotly.js that lies beside them.

nbconvert cuts slides where cells say so. Here each heading of level 1 or 2 begins a slide, to the right of the one
before; each deeper heading, each further piece of text with the code that follows it, and each figure goes below.
reveal.js 6.0.2 (MIT licence) lies in ``reveal/`` as it is published, with a theme of our own.
"""

from __future__ import annotations

import re
import shutil
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import nbformat
import plotly
from latex2mathml import converter
from markupsafe import Markup
from nbconvert.exporters import HTMLExporter, SlidesExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_output

import edp_lab
from edp_lab.course.kit.theme import CONFIG
from edp_lab.course.publish.links import NAVIGATION, heading
from edp_lab.errors import UsageError, writing
from edp_lab.files import write_whole

if TYPE_CHECKING:
    from edp_lab.course.publish.runner import NotebookRun

WIDGET = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
PLOTLY = "application/vnd.plotly.v1+json"
PLOTLY_JS = "plotly.min.js"
_ADDING = threading.Lock()
TEMPLATES = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
_templates = jinja2.Environment(loader=TEMPLATES, autoescape=True)
ABOUT = (
    f"Executed by edp_lab {edp_lab.__version__}: sliders stand where they ended. “edp-lab course lab” opens live pages."
)
ABOUT_SLIDES = "Arrow keys move right and down, “o” shows all slides, “f” fills the screen, “?” lists all keys."
ANCHOR = re.compile(r'<a\b([^>]*?)href="([^"]*)"([^>]*)>(.*?)</a>', re.DOTALL)
REVEAL = Path(__file__).parent / "reveal"
HEADING = re.compile(r"(#+) ")
FENCE = re.compile(r"(```|~~~|\$\$)")


# ---- A page of a notebook --------------------------------------------------------------------------------------------


def freeze_widgets(notebook: NotebookNode) -> None:
    """Replace each displayed widget by what it shows, in place; drop the widget state (5 MB per figure)."""
    models = notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    states = {key: model["state"] for key, model in models.items()}
    figures = notebook.metadata.pop("figures", {})
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [frozen for output in cell.outputs for frozen in _frozen(output, states, figures)]


def page_html(notebook: NotebookNode, name: str, navigation: str = "") -> str:
    """A page of ``notebook`` (its widgets frozen), with ``navigation`` in place of its own above and below."""
    note = new_markdown_cell("*An executed copy: sliders stand where they ended. `make lab` opens the live notebook.*")
    page = NotebookNode(notebook, cells=[note, *(_without_navigation(notebook) if navigation else notebook.cells)])
    exporter = MathExporter(extra_loaders=[TEMPLATES], template_file="course.html.j2")
    return exported(exporter, page, {"metadata": {"name": name}, "navigation": navigation})


def _without_navigation(notebook: NotebookNode) -> list[NotebookNode]:
    """Its cells, but for the lines above and below that lead to other notebooks."""
    return [cell for cell in notebook.cells if NAVIGATION not in cell.metadata.get("tags", ())]


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


def markdown_to_html(text: str, attachments: dict[str, dict[str, str]] | None = None) -> Markup:
    """Markdown of the course's authors, with HTML in it, as the notebooks' pages show it: formulas as MathML."""
    made = MarkdownWithMath(renderer=_MathML(escape=False, attachments=dict(attachments or {}))).render(text)
    return Markup(made)  # noqa: S704


def filled(template: str, **values: Any) -> Markup:
    """A template of this folder with these values, which are escaped."""
    return Markup(_templates.get_template(template).render(values))  # noqa: S704


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
            return str(Markup("<code>{}</code>").format(tex))


class MathExporter(HTMLExporter):
    """nbconvert's pages, with formulas as MathML."""

    @jinja2.pass_context
    def markdown2html(self, context: jinja2.runtime.Context, source: str) -> str:
        attachments = context.get("cell", {}).get("attachments", {})
        return markdown_to_html(source, attachments)


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
        return str(Markup("<pre>{}</pre>").format(value))
    if "_options_labels" in state and isinstance(state.get("index"), int):
        value = state["_options_labels"][state["index"]]
    name = state.get("description")
    if value is None or not name:  # a slider's number box repeats what the slider says
        return ""
    return str(Markup("<div>{} <b>{}</b></div>").format(name, value))


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
    others = documents(notebooks_dir)
    entries = [*chapters, *others]
    names = {"index.html", *(entry.page for entry in entries)}
    for number, entry in enumerate(entries):
        before, after = entries[number - 1] if number else None, next(iter(entries[number + 1 :]), None)
        around = filled("navigation.html.j2", before=before, after=after)
        if entry in chapters:
            notebook = nbformat.read(entry.source, as_version=4)
            page = page_html(notebook, entry.title, around)
            store_page(fit_links(page, names), out / entry.page)
        else:
            write_document(entry, out, names, around)
    return write_contents("edp_lab: the course", chapters, others, ABOUT, out)


def write_contents(heading: str, chapters: Sequence[Entry], others: Sequence[Entry], about: str, out: Path) -> Path:
    """Write ``index.html``: the chapters numbered, other pages below them."""
    body = filled("contents.html.j2", heading=heading, chapters=chapters, others=others, about=about)
    page = filled("document.html.j2", title=heading, body=body)
    write_whole(out / "index.html", page.encode())
    return out / "index.html"


def documents(folder: Path) -> list[Entry]:
    """The Markdown files of a folder."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    return [Entry(heading(text, path.stem), f"{path.stem}.html", path) for path, text in texts.items()]


def write_document(entry: Entry, out: Path, names: Collection[str], navigation: str) -> None:
    """Write a Markdown file as a page of the folder `out`, and copy there the pictures it shows from beside it.

    Args:
        names: see `fit_links`.
        navigation: above and below.
    """
    body = markdown_to_html(entry.source.read_text(encoding="utf-8"))
    for picture in re.findall(r'<img[^>]*src="([^":]+)"', body):
        if (entry.source.parent / picture).is_file():
            (out / picture).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(entry.source.parent / picture, out / picture)
    made = filled("document.html.j2", title=entry.title, navigation=navigation, body=body)
    write_whole(out / entry.page, fit_links(made, names).encode())


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


class _Exporter(MathExporter, SlidesExporter):
    """nbconvert's slides, with formulas as MathML."""


def write_slides(runs: Sequence[NotebookRun], out: Path) -> Path:
    """Write a page of slides for each run, from its executed copy, and ``index.html``; return that.

    reveal.js and plotly.js lie beside the pages; nothing is loaded from elsewhere.
    """
    out.mkdir(parents=True, exist_ok=True)
    with writing(out, "make room there, or choose another --out"):
        shutil.copytree(REVEAL, out / "reveal", dirs_exist_ok=True)
    names = {run.html.name for run in runs}
    for run in runs:
        notebook = nbformat.read(run.executed, as_version=4)
        store_page(fit_links(slides_html(notebook, run.title), names), out / run.html.name)
    chapters = [Entry(run.title, run.html.name, run.executed) for run in runs]
    return write_contents("edp_lab: slides", chapters, [], ABOUT_SLIDES, out)


def slides_html(notebook: NotebookNode, name: str) -> str:
    """The slides of an executed notebook."""
    reveal = {"reveal_url_prefix": "reveal", "reveal_theme": "course"}
    exporter = _Exporter(extra_loaders=[TEMPLATES], template_file="slides.html.j2", **reveal)
    slides = NotebookNode(notebook, cells=[cell for old in _without_navigation(notebook) for cell in _marked(old)])
    return exported(exporter, slides, {"metadata": {"name": name}})


def _marked(cell: NotebookNode) -> Iterator[NotebookNode]:
    """The cell, a Markdown cell cut at its headings; each says whether a slide begins with it."""
    if cell.cell_type != "markdown":
        figure = any(PLOTLY in output.get("data", {}) for output in cell.get("outputs", ()))
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
        import pdoc.extract
        import pdoc.render
    except ImportError:
        raise UsageError("the reference pages are made by pdoc: pip install -c constraints.txt pdoc") from None

    pdoc.render.configure(docformat="google", search=True, footer_text=f"edp_lab {edp_lab.__version__}")
    with writing(out, "make room there, or choose another --out"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of annotations that only a type checker can read
        found = []
        for name in module_names():
            with suppress(RuntimeError):  # whatever the import raised
                pdoc.extract.load_module(name)
                found.append(name)
        pdoc.pdoc(*found, output_directory=out)
    return out / "index.html"
