"""Links that `build` puts into notebooks, so that their authors write none: to the notebook before and after, to other
notebooks where the prose names them, to the glossary where a term occurs first, and to what to read next.

They come from two pages beside the notebooks. A row of ``glossary.md`` is ``| <a id="slot"></a>**slot, slots** | ...``,
where each of the bold terms leads to the row. A line of ``references.md`` is ``* Authors (year). ... [02, 07]``, where
the numbers are those of the notebooks that it is further reading for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

# The tag of a notebook's first and last cell: pages and slides have a navigation of their own.
NAVIGATION = "navigation"
PAGES = ("glossary.md", "references.md")
_ROW = re.compile(r'^\| <a id="(.+?)"></a>\*\*(.+?)\*\*', re.MULTILINE)
_REFERENCE = re.compile(r"^(\* .+) \[([\d, ]+)\]$", re.MULTILINE)
# Rows of a table, and prose.
_NOTEBOOKS = r"^\| \**\d\d\** \| \**[A-Za-z].*$|\bnotebooks?(?:(?:,|\s+and|\s+or)?\s+\d\d)+"
_LEFT_ALONE = "|".join(
    [
        r"^(?:```|~~~)[\s\S]*?^(?:```|~~~)",
        r"^(?:#|\|).*$",  # headings and tables
        r"\$\$[\s\S]*?\$\$",
        r"\$[^$]*\$",
        r"`[^`]*`",
        r"\[[^\]]*\]\([^)]*\)",
        r"<[^>]*>",
        r"(?<![^\s(])\*(?=[^\s*])[^*]{30,}\*",  # a title or a quotation in italics
    ]
)


def title(notebook: NotebookNode, default: str) -> str:
    """The notebook's first heading, or ``default``."""
    return heading("\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown"), default)


def heading(text: str, default: str) -> str:
    """The first heading of a Markdown text, or `default`."""
    found = re.search(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else default


class Links:
    """The links of the notebooks of one folder.

    Args:
        notebooks: by file name, in course order.
        folder: has the `PAGES`; one that is missing is not linked to.
    """

    def __init__(self, notebooks: Mapping[str, NotebookNode], folder: Path) -> None:
        self._titles = {name: title(notebook, name).partition(":")[0] for name, notebook in notebooks.items()}
        self._files = {name[:2]: name for name in notebooks}
        self._pages = {name: (folder / name).read_text(encoding="utf-8") for name in PAGES if (folder / name).exists()}
        self._references = _REFERENCE.findall(self._pages.get("references.md", ""))
        self._anchors = {
            form: anchor
            for anchor, terms in _ROW.findall(self._pages.get("glossary.md", ""))
            for term in terms.lower().split(", ")
            if not re.fullmatch("[a-z]", term)  # formulas are full of them
            for form in (term, f"{term}s", re.sub("y$", "ies", term))
        }
        longest = sorted(self._anchors, key=len, reverse=True)
        terms = "|".join(re.escape(form).replace(r"\ ", r"\s+") for form in longest) or "(?!)"
        places = rf"(?P<notebooks>{_NOTEBOOKS})|{_LEFT_ALONE}|(?<![\w^-])(?P<term>{terms})(?![\w-])"
        self._places = re.compile(places, re.MULTILINE | re.IGNORECASE)

    def put_into(self, notebook: NotebookNode, name: str, up: str = "") -> NotebookNode:
        """A copy of a notebook with its links.

        Args:
            name: of its file.
            up: leads from its folder to that of the `PAGES`, as ``../``.
        """
        linked, seen = deepcopy(notebook), set[str]()
        for cell in linked.cells:
            if cell.cell_type == "markdown":
                cell.source = self._places.sub(lambda found: self._link(found, name, up, seen), cell.source)
        if reading := self._further_reading(name, up):
            linked.cells.append(new_markdown_cell(reading, id="further-reading"))
        if line := self._navigation(name, up):
            tags = {"tags": [NAVIGATION]}
            first, last = (new_markdown_cell(line, id=place, metadata=tags) for place in ("before", "after"))
            linked.cells = [first, *linked.cells, last]
        return linked

    def _link(self, found: re.Match[str], name: str, up: str, seen: set[str]) -> str:
        """What stands for a piece of prose: a link, or the piece itself. `seen` has the anchors that are linked to."""
        if found["notebooks"]:
            return re.sub(r"\b\d\d\b", lambda number: self._to_notebook(number[0], name), found[0])
        anchor = self._anchors[" ".join(found["term"].lower().split())] if found["term"] else ""
        if not anchor or anchor in seen:
            return found[0]
        seen.add(anchor)
        return f"[{found[0]}]({up}glossary.md#{anchor})"

    def _to_notebook(self, number: str, name: str) -> str:
        file = self._files.get(number, name)
        return number if file == name else f"[{number}]({file})"

    def _navigation(self, name: str, up: str) -> str:
        """The line above and below a notebook."""
        names = list(self._titles)
        place = names.index(name)
        parts = [f"[← {self._titles[before]}]({before})" for before in names[:place][-1:]]
        parts += [f"[start]({names[0]})"] if place else []
        parts += [f"[{page.removesuffix('.md')}]({up}{page})" for page in self._pages]
        parts += [f"[{self._titles[after]} →]({after})" for after in names[place + 1 :][:1]]
        return " | ".join(parts)

    def _further_reading(self, name: str, up: str) -> str:
        """The last part of a notebook, empty where nothing is named for it."""
        chosen = [text for text, numbers in self._references if name[:2] in numbers.split(", ")]
        lines = ["## Further reading", "", *chosen, "", f"All [references]({up}references.md)."]
        return "\n".join(lines) if chosen else ""
