"""Markdown files (glossary, teacher's guide) as pages beside those of the notebooks, and links that fit the pages."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path

import jinja2

from edp_lab.course.publish.pages import markdown_to_html
from edp_lab.models.files import write_whole

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 1rem/1.55 system-ui, sans-serif; max-width: 52rem; margin: 1rem auto 3rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; padding: .4rem .7rem; border-bottom: 1px solid #ccc; vertical-align: top; }
pre { background: #f6f6f6; padding: .7rem; overflow-x: auto; }
img { max-width: 100%; }
a { color: #0072B2; }
.anchor-link { display: none; }
</style></head><body>{{ navigation | safe }}{{ body | safe }}{{ navigation | safe }}</body></html>
"""
ANCHOR = re.compile(r'<a\b([^>]*?)href="([^"]*)"([^>]*)>(.*?)</a>', re.DOTALL)


def heading(text: str, default: str) -> str:
    """The first heading of a Markdown text, or `default`."""
    found = re.search(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else default


def write_document(source: Path, page: Path, navigation: str, pages: Collection[str]) -> None:
    """Write a Markdown file as a page, and copy the pictures it shows from beside it.

    Args:
        navigation: HTML above and below the text.
        pages: see `fit_links`.
    """
    text = source.read_text(encoding="utf-8")
    body = markdown_to_html(text)
    for picture in re.findall(r'<img[^>]*src="([^":]+)"', body):
        if (source.parent / picture).is_file():
            (page.parent / picture).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source.parent / picture, page.parent / picture)
    template = jinja2.Environment(autoescape=True).from_string(PAGE)
    made = template.render(title=heading(text, source.stem), navigation=navigation, body=fit_links(body, pages))
    write_whole(page, made.encode())


def fit_links(html: str, pages: Collection[str]) -> str:
    """Links to notebooks and Markdown files lead to their pages; one to a file that has no page becomes its text.

    Args:
        pages: names of the pages that lie beside this one.
    """

    def fitted(match: re.Match[str]) -> str:
        before, target, after, text = match.groups()
        file, hash_sign, part = target.partition("#")
        page = re.sub(r"\.(ipynb|md)$", ".html", file)
        if ":" in target or not file:
            return match[0]
        return f'<a{before}href="{page}{hash_sign}{part}"{after}>{text}</a>' if page in pages else text

    return ANCHOR.sub(fitted, html)
