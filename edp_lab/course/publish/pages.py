"""The executed course as web pages that need no kernel, no server and no network: a page for each notebook, a site
(`edp-lab course html`), and the package's reference (`edp-lab course api`).

A panel becomes what one sees at its telling settings, side by side (`panel_driver.stills`), any other widget what it
shows at the end. Formulas become MathML. Pages are dark where the reader's system is, and share `SHARED`, which lies
beside them.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import nbformat
import plotly
from latex2mathml import converter
from markupsafe import Markup
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_output
from traitlets.config import Config

import edp_lab
from edp_lab.course.kit.theme import CONFIG, STYLE, TEMPLATE
from edp_lab.course.solutions import title as heading
from edp_lab.errors import writing
from edp_lab.files import write_whole

if TYPE_CHECKING:
    from edp_lab.course.publish.runner import NotebookRun

HERE = Path(__file__).parent
WIDGET = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
PLOTLY = "application/vnd.plotly.v1+json"
TEMPLATES = jinja2.FileSystemLoader(HERE / "templates")
_templates = jinja2.Environment(loader=TEMPLATES, autoescape=True, trim_blocks=True, lstrip_blocks=True)
ABOUT = "Panels are still pictures on this page: “edp-lab course lab” opens live ones."
ANCHOR = re.compile(r'<a\b([^>]*?)href="([^"]*)"([^>]*)>(.*?)</a>', re.DOTALL)
HEADING = re.compile(r"(#+) ")
FENCE = re.compile(r"(```|~~~|\$\$)")


# ---- What all pages share --------------------------------------------------------------------------------------------


def _jupyter_css() -> str:
    """nbconvert's style sheets: the dark theme where a screen asks for it."""
    folders = [Path(folder) for folder in HTMLExporter().template_paths]
    base, light, dark = (
        next(path for folder in folders if (path := folder / "static" / name).exists()).read_text(encoding="utf-8")
        for name in ("index.css", "theme-light.css", "theme-dark.css")
    )
    return f"{base}\n{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _course_js() -> str:
    given = {"TEMPLATE": TEMPLATE.to_plotly_json(), "CONFIG": CONFIG}
    constants = [f"const {name} = {json.dumps(value)};\n" for name, value in given.items()]
    return "".join([*constants, (HERE / "scripts" / "pages.js").read_text(encoding="utf-8")])


SHARED = {  # files beside pages that ask for them
    "plotly.min.js": plotly.offline.get_plotlyjs,
    "jupyter.css": _jupyter_css,
    "course.css": lambda: f"{STYLE}\n{(HERE / 'pages.css').read_text(encoding='utf-8')}",
    "course.js": _course_js,
}


@cache
def _shared(name: str) -> bytes:
    return SHARED[name]().encode()


def store_page(text: str, path: Path) -> None:
    """Write a page, and beside it what it shares with others."""
    for name in SHARED:
        beside = path.parent / name
        if f'="{name}"' in text and not (beside.exists() and beside.read_bytes() == _shared(name)):
            write_whole(beside, _shared(name))
    write_whole(path, text.encode())


def filled(template: str, **values: Any) -> Markup:
    """A template of this folder with these values, which are escaped."""
    return Markup(_templates.get_template(template).render(values))  # noqa: S704


def markdown_to_html(text: str, attachments: dict[str, dict[str, str]] | None = None) -> Markup:
    """Markdown of the course's authors, with HTML in it, as the notebooks' pages show it: formulas as MathML."""
    made = MarkdownWithMath(renderer=_MathML(escape=False, attachments=dict(attachments or {}))).render(text)
    return Markup(made)  # noqa: S704


class _MathML(IPythonRenderer):
    """nbconvert's Markdown, with formulas as MathML; what the converter does not know stays TeX."""

    def block_math(self, tex: str, display: str = "block") -> str:
        try:
            return converter.convert(tex, display=display)
        except Exception:  # the converter has no common base class for its errors
            return str(Markup("<code>{}</code>").format(tex))

    def inline_math(self, body: str) -> str:
        return self.block_math(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")


class MathExporter(HTMLExporter):
    """nbconvert's pages, with formulas as MathML."""

    exclude_input_prompt = exclude_output_prompt = True

    @jinja2.pass_context
    def markdown2html(self, context: jinja2.runtime.Context, source: str) -> str:
        attachments = context.get("cell", {}).get("attachments", {})
        return markdown_to_html(source, attachments)


# ---- Widgets become what they show -----------------------------------------------------------------------------------


def freeze_widgets(notebook: NotebookNode) -> None:
    """Replace each displayed widget by what it shows, in place; drop the widget state (5 MB per figure)."""
    models = notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    states = {key: model["state"] for key, model in models.items()}
    stills = notebook.metadata.pop("stills", {})
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [frozen for output in cell.outputs for frozen in _frozen(output, states, stills)]


def _frozen(output: NotebookNode, states: Mapping[str, Any], stills: Mapping[str, Any]) -> list[NotebookNode]:
    """What stands for ``output``: what a widget shows; a figure without its HTML, which holds plotly.js."""
    data = output.get("data", {})
    if WIDGET in data:
        return list(_shown(data[WIDGET]["model_id"], states, stills))
    if PLOTLY in data:
        data.pop("text/html", None)
    return [output]


def _shown(key: str, states: Mapping[str, Any], stills: Mapping[str, Any]) -> Iterator[NotebookNode]:
    """What the widget ``key`` and its children show, from top to bottom."""
    state = states.get(key, {})
    if key in stills:
        yield from _still(key, stills[key])
    elif "children" in state:
        for child in state["children"]:
            yield from _shown(child.removeprefix("IPY_MODEL_"), states, stills)
    elif "outputs" in state:
        for output in state["outputs"]:
            yield from _frozen(NotebookNode(output), states, stills)
    elif state.get("_model_name") in ("HTMLModel", "HTMLMathModel") and state["value"]:
        yield new_output("display_data", {"text/html": str(state["value"])})


def _still(key: str, still: Mapping[str, Any]) -> Iterator[NotebookNode]:
    """What `panel_driver.stills` tells of a widget; of a panel its parts: heading (0), each view, what folds (-1)."""
    if "figure" in still:
        yield _figure(still["figure"])
    elif "questions" in still:
        yield as_output(filled("questions.html.j2", **still))
    else:
        yield as_output(Markup(still["heading"]), key, 0)  # noqa: S704
        for number, view in enumerate(still["views"], 1):
            yield as_output(filled("view.html.j2", **view), key, number)
            yield from (_figure(figure, key, number) for figure in view["figures"])
            if view["words"] or view["command"]:
                folded = {**view, "words": Markup(view["words"])}  # noqa: S704
                yield as_output(filled("folded.html.j2", **folded), key, number)
        yield from (_figure(figure, key, -1) for figure in still["more"])


def as_output(text: Markup, *place: Any) -> NotebookNode:
    return new_output("display_data", {"text/html": str(text)}, metadata={"edp-lab": list(place)})


def _figure(figure: Mapping[str, Any], *place: Any) -> NotebookNode:
    return new_output("display_data", {PLOTLY: {**figure, "config": CONFIG}}, metadata={"edp-lab": list(place)})


def place(output: NotebookNode) -> tuple[str, int]:
    """The panel that an output is a part of ("" for none), and which part."""
    found = output.get("metadata", {}).get("edp-lab")
    return (found[0], found[1]) if found else ("", 1)


def _whole(outputs: Sequence[NotebookNode]) -> Iterator[NotebookNode]:
    """Outputs with the parts of each panel in one piece of HTML, and figures as HTML."""
    for panel, together in groupby(outputs, lambda output: place(output)[0]):
        own = list(together)
        if not panel:
            yield from map(_drawn, own)
            continue
        names = [_name(one.data[PLOTLY]) for one in own if place(one)[1] == -1]
        texts = {part: "".join(text_of(_drawn(one)) for one in some) for (_, part), some in groupby(own, place)}
        parts = {part: Markup(text) for part, text in texts.items()}  # noqa: S704
        head, more = parts.pop(0, ""), parts.pop(-1, "")
        yield as_output(filled("panel.html.j2", head=head, views=parts.values(), more=more, names=names))


def text_of(output: NotebookNode) -> str:
    return str(output.get("data", {}).get("text/html", ""))


def _drawn(output: NotebookNode) -> NotebookNode:
    """A figure as HTML, which ``course.js`` draws; any other output as it is."""
    if PLOTLY not in output.get("data", {}):
        return output
    return NotebookNode(output, data=NotebookNode({**output.data, "text/html": str(_drawing(output.data[PLOTLY]))}))


def _name(figure: Mapping[str, Any]) -> str:
    return Markup(figure.get("layout", {}).get("title", {}).get("text") or "figure").striptags()  # noqa: S704


def _drawing(figure: Mapping[str, Any], kind: str = "") -> Markup:
    """The place of a figure. The course's template is in ``course.js``, once."""
    layout = {name: value for name, value in figure.get("layout", {}).items() if name != "template" or value != _OURS}
    code = json.dumps({"data": figure["data"], "layout": layout}, separators=(",", ":")).replace("<", "\\u003c")
    return filled("figure.html.j2", kind=kind, name=_name(figure), code=Markup(code), height=layout.get("height", 450))  # noqa: S704


_OURS = TEMPLATE.to_plotly_json()


# ---- A page of a notebook --------------------------------------------------------------------------------------------


def page_html(notebook: NotebookNode, name: str, navigation: str = "") -> str:
    """A page of ``notebook`` (its widgets frozen), with ``navigation`` in place of its own above and below."""
    note = new_markdown_cell(f"*{ABOUT}*" + ("" if navigation else " [All notebooks](index.html)"))
    cells = without_navigation(notebook) if navigation else notebook.cells
    page = NotebookNode(notebook, cells=[note, *cells])
    setup = Config(TagRemovePreprocessor={"enabled": True, "remove_input_tags": {"setup"}})  # imports are not shown
    exporter = MathExporter(setup, extra_loaders=[TEMPLATES], template_file="course.html.j2")
    return exported(exporter, page, {"metadata": {"name": name}, "navigation": navigation})


def without_navigation(notebook: NotebookNode) -> list[NotebookNode]:
    """Its cells, but for the lines above and below that lead to other notebooks."""
    return [cell for cell in notebook.cells if "navigation" not in cell.metadata.get("tags", ())]


def exported(exporter: HTMLExporter, notebook: NotebookNode, resources: dict[str, Any]) -> str:
    """The notebook through an exporter, panels and figures as HTML; ``resources.plotly`` says whether there are any."""
    cells = [
        NotebookNode(cell, outputs=list(_whole(cell.outputs))) if cell.cell_type == "code" else cell
        for cell in notebook.cells
    ]
    resources = {**resources, "plotly": any(map(_figures, notebook.cells))}
    return str(exporter.from_notebook_node(NotebookNode(notebook, cells=cells), resources)[0])


def _figures(cell: NotebookNode) -> list[NotebookNode]:
    return [output for output in cell.get("outputs", ()) if PLOTLY in output.get("data", {})]


# ---- A site --------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A page of the site and what it is made from."""

    title: str
    page: str
    source: Path


class Card(NamedTuple):
    """What an index says of a notebook; "" where nothing is known."""

    title: str
    page: str
    picture: str = ""
    goal: str = ""
    minutes: str = ""
    needs: str = ""


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
    for before, entry, after in zip([None, *entries], entries, [*entries[1:], None], strict=False):
        around = filled("navigation.html.j2", before=before, after=after)
        if entry in chapters:
            page = page_html(nbformat.read(entry.source, as_version=4), entry.title, around)
            store_page(fit_links(page, names), out / entry.page)
        else:
            write_document(entry, out, names, around)
    return write_contents("edp_lab: the course", [card(run, names) for run in runs], others, ABOUT, out)


def write_contents(
    heading: str, cards: Sequence[Card], others: Sequence[Entry], about: str, out: Path, runs: Sequence[Any] = ()
) -> Path:
    """Write ``index.html``: a card for each notebook, other pages, and how the `runs` went, folded if all is well."""
    body = filled("contents.html.j2", heading=heading, cards=cards, others=others, about=about, runs=runs)
    pictures = any(card.picture for card in cards)
    store_page(filled("document.html.j2", title=heading, body=body, plotly=pictures), out / "index.html")
    return out / "index.html"


MAP = re.compile(r"^\| (\d\d) \|[^|]+\| (\d+) \|([^|]*)\|", re.MULTILINE)  # a row of the guide: minutes, needs


def card(run: NotebookRun, names: Collection[str]) -> Card:
    """What an index says of a notebook: its first picture, its goal, and what the guide beside it tells."""
    cells = nbformat.read(run.executed, as_version=4).cells
    parts = [part for cell in cells if cell.cell_type == "markdown" for part in cut_at_headings(cell.source)]
    goal = next((part.partition("\n")[2] for part in parts if re.match("#+ Goal$", part.partition("\n")[0])), "")
    figure = next((output.data[PLOTLY] for cell in cells for output in _figures(cell)), None)
    minutes, needs = guide(run.path.parent).get(run.path.name[:2], ("", ""))
    picture = _drawing(_thumbnail(figure), "edp-picture") if figure else ""
    goal = Markup(fit_links(markdown_to_html(goal), names))  # noqa: S704
    return Card(run.title, run.html.name, picture, goal, minutes, needs.strip())


def guide(folder: Path) -> dict[str, tuple[str, str]]:
    """By number of a notebook, the minutes that it takes and what it needs, from the map in the folder's guide."""
    page = folder / "README.md"
    rows = MAP.findall(page.read_text(encoding="utf-8")) if page.exists() else []
    return {number: (minutes, needs) for number, minutes, needs in rows}


def _thumbnail(figure: Mapping[str, Any]) -> dict[str, Any]:
    """A figure that is small and has no words; ``pages.css`` hides its title."""
    margin = {"l": 8, "r": 8, "t": 8, "b": 8, "autoexpand": False}
    layout = {**figure["layout"], "height": 170, "margin": margin, "showlegend": False}
    for name in [name for name in layout if name[1:5] == "axis"]:
        layout[name] = {**layout[name], "title": {}, "showticklabels": False, "automargin": False}
    return {"data": figure["data"], "layout": layout}


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
    store_page(fit_links(made, names), out / entry.page)


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
    paths = (path.relative_to(root.parent).with_suffix("") for path in sorted(root.rglob("*.py")))
    names = (".".join(path.parts).removesuffix(".__init__") for path in paths)
    return [name for name in names if "._" not in name]


def write_api(out: Path) -> Path:
    """Write a page for each module, ``search.js`` and ``index.html`` into `out`; return the index.

    A module that cannot be imported, because what it needs is not installed, has no page.
    """
    import pdoc
    import pdoc.extract
    import pdoc.render

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
