"""Slides of the executed course (`edp-lab course slides`), which need no kernel, no server and no network.

A slide has one idea: a heading with the first sentence or the list below it, or a picture with its sentence. What else
the notebook says there is in the speaker's notes. Code is left out, but for cells tagged ``lesson``. reveal.js 6.0.2
(MIT licence) lies in ``reveal/`` as it is published, with a theme of our own.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import nbformat
from markupsafe import Markup
from nbconvert.exporters import SlidesExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from edp_lab.course.publish import pages
from edp_lab.errors import writing

if TYPE_CHECKING:
    from edp_lab.course.publish.runner import NotebookRun

ABOUT_SLIDES = (
    "Arrow keys move right and down, “s” shows the speaker's notes, “o” all slides, “f” fills the screen, “?” lists "
    "all keys."
)
REVEAL = Path(__file__).parent / "reveal"
ASKED = "edp-questions"  # the class of predictions
LIST = re.compile(r"^(\d+\.|[-*]) ")
SENTENCE = re.compile(r"(?:[^.?!`$]|`[^`]*`|\$[^$]*\$|[.?!](?![*”)]*\s))*(?:[.?!][*”)]*|$)")


class _Exporter(pages.MathExporter, SlidesExporter):
    """nbconvert's slides, with formulas as MathML."""


def write_slides(runs: Sequence[NotebookRun], out: Path) -> Path:
    """Write a page of slides for each run, from its executed copy, and ``index.html``; return that.

    reveal.js and plotly.js lie beside the pages; nothing is loaded from elsewhere.
    """
    out.mkdir(parents=True, exist_ok=True)
    with writing(out, "make room there, or choose another --out"):
        shutil.copytree(REVEAL, out / "reveal", dirs_exist_ok=True)
    names = {run.html.name for run in runs}
    cards = [pages.card(run, names) for run in runs]
    for run, told in zip(runs, cards, strict=True):
        notebook = nbformat.read(run.executed, as_version=4)
        pages.store_page(pages.fit_links(slides_html(notebook, run.title, told.minutes), names), out / run.html.name)
    return pages.write_contents("edp_lab: slides", cards, [], ABOUT_SLIDES, out)


class Slide(NamedTuple):
    """One idea: what is seen, Markdown or outputs, and what the speaker may say of it, Markdown."""

    seen: str | list[NotebookNode]
    notes: list[str]
    code: str = ""

    @property
    def is_first(self) -> bool:
        """Whether it begins a part of the notebook: the slides of a part are one below the other."""
        found = pages.HEADING.match(self.seen) if isinstance(self.seen, str) else None
        return bool(found and len(found[1]) <= 2)

    def cell(self, metadata: dict[str, Any]) -> NotebookNode:
        if isinstance(self.seen, str):
            return new_markdown_cell(self.seen, metadata=metadata)
        hidden = {"transient": {"remove_source": not self.code}}
        return new_code_cell(self.code, outputs=self.seen, metadata={**metadata, **hidden})


def slides_html(notebook: NotebookNode, name: str, minutes: str = "") -> str:
    """The slides of an executed notebook, which takes so many minutes."""
    slides: list[Slide] = []
    for slide in (one for cell in pages.without_navigation(notebook) for one in _slides(cell)):
        if slide.seen:
            slides.append(slide)
        elif slides:
            slides[-1].notes.extend(slide.notes)
    cells: list[NotebookNode] = []
    alone = False  # a heading, which the next slide joins
    for number, slide in enumerate(slides):
        kind = "slide" if slide.is_first else "-" if alone else "subslide"
        cells.append(slide.cell({"slideshow": {"slide_type": kind}}))
        alone = isinstance(slide.seen, str) and "\n" not in slide.seen and bool(pages.HEADING.match(slide.seen))
        passed = round(int(minutes or 0) * number / len(slides))
        told = [f"*After about {passed} of {minutes} minutes.*"] if minutes and kind != "-" else []
        if notes := [*told, *filter(None, slide.notes)]:
            cells.append(new_markdown_cell("\n\n".join(notes), metadata={"slideshow": {"slide_type": "notes"}}))
    reveal = {"reveal_url_prefix": "reveal", "reveal_theme": "course"}
    exporter = _Exporter(extra_loaders=[pages.TEMPLATES], template_file="slides.html.j2", **reveal)
    return pages.exported(exporter, NotebookNode(notebook, cells=cells), {"metadata": {"name": name}})


def _slides(cell: NotebookNode) -> Iterator[Slide]:
    """The slides of a cell. Text without a heading, and what a cell prints, belong to the slide before."""
    if cell.cell_type == "markdown":
        for part in pages.cut_at_headings(cell.source):
            yield Slide(lead(part), [part.partition("\n")[2] if pages.HEADING.match(part) else part])
        return
    if "lesson" in cell.metadata.get("tags", ()):
        yield Slide(cell.outputs, [], cell.source)
        return
    head: list[NotebookNode] = []
    notes: list[str] = []
    for (panel, number), some in groupby(cell.get("outputs", ()), pages.place):
        outputs = list(some)
        if panel and number == 0:
            heading, _, looking_at = pages.text_of(outputs[0]).partition("</h3>")
            head, notes = [pages.as_output(Markup(f"{heading}</h3>"), panel, 0)], [looking_at]  # noqa: S704
        elif number > 0 and any(pages.PLOTLY in one.get("data", {}) or ASKED in pages.text_of(one) for one in outputs):
            yield Slide([*(head if panel else ()), *outputs], notes)
            notes = []


def lead(part: str) -> str:
    """What a slide shows of a piece of Markdown: its heading, the first sentence or formula, and of a list each first
    sentence; "" where it has no heading of its own.
    """
    first, _, rest = part.partition("\n")
    if not pages.HEADING.match(part):
        if not part.startswith("**"):
            return ""
        first, rest = "", part
    blocks = [block.strip() for block in re.split(r"\n\s*\n", rest.strip()) if block.strip()]
    shown = []
    for block in blocks[:2]:
        if LIST.match(block):
            items = re.split(r"\n(?=\d+\. |[-*] )", block)
            shown.append("\n".join(_first_sentence(item) for item in items))
            break
        if not shown:
            shown.append(block if block.startswith(("$$", "|", "```")) else _first_sentence(block))
    return "\n\n".join([first, *shown]).strip()


def _first_sentence(text: str) -> str:
    """The sentence in bold, if there is one, else the first; what is only a name ("**Exercise 1.**") goes before it."""
    mark = LIST.match(text)
    start = mark.end() if mark else 0
    bold = None if mark else re.search(r"\*\*[^*]{30,}[.?!]\*\*", text)
    found = SENTENCE.match(text, start)
    if found and not mark and found[0].startswith("**") and found[0].endswith("**"):
        found = SENTENCE.match(text, found.end())
    return bold[0] if bold else text[: found.end()] if found else text
