"""The executed course as a site and as slides, and the reference pages: complete, linked, and without a network."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from edp_lab.course.publish import browser as browsing
from edp_lab.course.publish import pages as site
from edp_lab.course.publish import slides
from edp_lab.course.publish.pages import fit_links
from tests.course.conftest import asked_elsewhere, console_errors, invoked, store

FIGURE = """
from edp_lab.course.kit import theme
import plotly.graph_objects as go
theme.activate()
go.Figure(go.Scatter(x=[1, 2, 3], y=[1, 4, 9]))
"""
FIGURES_DRAWN = "return [...document.querySelectorAll('.js-plotly-plot .main-svg')].map(e => e.clientWidth)"


def write(path: Path, title: str, *cells: str) -> None:
    text = [new_markdown_cell(f"# {title}\n\nNoise of $\\sigma = z_0 C$. See [the next](01_next.ipynb).")]
    parameters = new_code_cell('mode = "quick"', metadata={"tags": ["parameters"]})
    code = [new_code_cell(cell, metadata={"tags": ["lesson"] if cell == "1 + 1" else []}) for cell in cells]
    store(path, *text, parameters, new_markdown_cell("## Do\n\nA figure. And more."), *code)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course of two notebooks and a glossary, its site and its site."""
    folder = tmp_path_factory.mktemp("course")
    write(folder / "00_first.ipynb", "00 First", FIGURE, "1 + 1")
    write(folder / "01_next.ipynb", "01 Next", FIGURE)
    glossary = "# Glossary\n\n| ε | $e^ε$ |\n|---|---|\n| loss | [first](00_first.ipynb#Do), [none](none.md) |\n"
    (folder / "glossary.md").write_text(glossary, encoding="utf-8")
    for command in ("html", "slides"):
        folders = "--notebooks", folder, "--executed", folder / "run", "--out", folder / command
        result = invoked("course", command, *folders)
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[-1] == str(folder.resolve() / command / "index.html")
    return folder


def links(page: Path) -> list[str]:
    found = re.findall(r'<(?:a|script|link|img)\b[^>]*?(?:href|src)="([^"#][^"]*)"', page.read_text(encoding="utf-8"))
    return [link for link in found if not link.startswith("data:")]


def test_every_link_of_site_and_slides_leads_to_a_file(folder: Path) -> None:
    pages = [*(folder / "html").glob("*.html"), *(folder / "slides").glob("*.html")]
    assert len(pages) == 4 + 3
    for page in pages:
        for link in links(page):
            assert not urlsplit(link).scheme, link
            assert (page.parent / urlsplit(link).path).is_file(), link


def test_pages_lead_to_the_page_before_the_page_after_and_the_contents(folder: Path) -> None:
    site = folder / "html"
    order = ["00_first.html", "01_next.html", "glossary.html"]
    assert [link for link in links(site / "index.html") if link in order] == order
    for place, name in enumerate(order):
        anchors = re.findall(r"<a\b[^>]*>", (site / name).read_text(encoding="utf-8"))
        for kind, around in (("prev", order[:place][-1:]), ("next", order[place + 1 :][:1])):
            led = [re.findall(r'href="([^"]+)"', anchor) for anchor in anchors if f'rel="{kind}"' in anchor]
            assert led == [around, around][: 2 * len(around)]  # above and below
        assert "index.html" in links(site / name)


def test_site_shows_formulas_figures_and_the_glossary_with_one_copy_of_plotly(folder: Path) -> None:
    site = folder / "html"
    assert "<math" in (site / "00_first.html").read_text(encoding="utf-8")
    assert "<math" in (site / "glossary.html").read_text(encoding="utf-8")
    assert 'href="00_first.html#Do"' in (site / "glossary.html").read_text(encoding="utf-8")
    assert "[none]" not in (site / "glossary.html").read_text(encoding="utf-8")
    large = [path.name for path in site.iterdir() if path.stat().st_size > 1_000_000]
    assert large == ["plotly.min.js"]


def test_second_command_takes_the_executed_notebooks_of_the_first(folder: Path) -> None:
    folders = "--notebooks", folder, "--executed", folder / "run", "--out", folder / "again"
    result = invoked("course", "slides", "--only", "01", *folders)
    assert "ok, as before" in result.stderr
    assert sorted(path.name for path in (folder / "again").glob("*.html")) == ["01_next.html", "index.html"]


def test_no_site_is_made_of_a_course_that_fails(tmp_path: Path) -> None:
    write(tmp_path / "00_bad.ipynb", "00 Bad", "1 / 0")
    folders = "--notebooks", tmp_path, "--executed", tmp_path / "run", "--out", tmp_path / "site"
    result = invoked("course", "html", *folders)
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr
    assert not (tmp_path / "site").exists()


def test_links_to_files_without_a_page_become_text() -> None:
    html = '<a href="a.md">A</a> <a href="../b.py">B</a> <a href="#c">C</a> <a class="x" href="https://d.org">D</a>'
    fitted = fit_links(html, {"a.html"})
    assert fitted == '<a href="a.html">A</a> B <a href="#c">C</a> <a class="x" href="https://d.org">D</a>'


def test_text_is_cut_at_headings_but_not_within_code_or_formulas() -> None:
    text = "before\n# One\n```\n# a comment\n```\n### Two\n$$\n# x\n$$\nend"
    assert site.cut_at_headings(text) == ["before", "# One\n```\n# a comment\n```", "### Two\n$$\n# x\n$$\nend"]
    assert site.cut_at_headings("#hash\n# A") == ["#hash", "# A"]


def test_slides_show_a_sentence_or_a_picture_and_code_only_of_a_lesson(folder: Path) -> None:
    text = (folder / "slides" / "00_first.html").read_text(encoding="utf-8")
    columns = re.split(r"<section\s*>\s*<section\s*>", text)[1:]
    assert len(columns) == 2
    seen, notes = (re.findall(pattern, text, re.DOTALL) for pattern in SEEN_AND_NOTES)
    assert "00 First" in columns[0]
    assert not any("See" in one for one in seen)
    assert "See" in notes[0]
    do, figure, lesson = seen[1:]
    assert "A figure." in do
    assert "And more" not in do
    assert "edp-drawn" in figure
    assert "go.Figure" not in figure
    assert ">1</span>" in lesson
    assert "theme.activate" not in text


SEEN_AND_NOTES = (r"<section\s*>\s*(?!<section)(.*?)(?:<aside|</section>)", r"<aside class=.notes.>(.*?)</aside>")


def test_minutes_are_those_of_the_guide_and_stand_in_the_speakers_notes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("| | | | |\n|---|---|---|---|\n| 00 | First | 40 | 07 | about it |\n")
    assert site.guide(tmp_path) == {"00": ("40", " 07 ")}
    told = slides.slides_html(nbformat.read(folder / "run" / "00_first.ipynb", as_version=4), "t", "40")
    assert re.findall(r"After about (\d+) of 40 minutes", told) == ["0", "10", "20", "30"]


def test_pages_are_dark_on_a_dark_screen_and_light_on_paper(folder: Path, browser: browsing.Chrome) -> None:
    for place in ("html/00_first.html", "html/index.html", "html/glossary.html", "slides/00_first.html"):
        browser.get((folder / place).resolve().as_uri())
        for media, dark in (("screen", "light"), ("screen", "dark"), ("print", "dark")):
            scheme = [{"name": "prefers-color-scheme", "value": dark}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": scheme})
            browser.execute_script(f"dispatchEvent(new Event('{'beforeprint' if media == 'print' else 'afterprint'}'))")
            paper, ink = (sum(map(float, re.findall(r"[\d.]+", one)[:3])) for one in browser.execute_script(COLOURS))
            assert (paper < ink) == (media == "screen" and dark == "dark"), (place, media, dark)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


COLOURS = """
const text = document.querySelector(".present h1, h1"), body = getComputedStyle(document.body).backgroundColor;
const paper = body == "rgba(0, 0, 0, 0)" ? "rgb(255, 255, 255)" : body;
return [paper, getComputedStyle(text).color];
"""


def test_site_and_slides_work_in_a_browser_without_a_network(folder: Path, browser: browsing.Chrome) -> None:
    browsing.resize(browser, 1280, 720)
    console_errors(browser)
    browser.get((folder / "html" / "index.html").resolve().as_uri())
    browser.find_element("link text", "00 First").click()
    browsing.until(lambda: browser.execute_script(FIGURES_DRAWN), 20, "no figure on the page")
    browser.find_element("css selector", "[rel=next]").click()
    browsing.until(lambda: "01 Next" in browser.title, 20, "the link to the next page leads elsewhere")

    browser.get((folder / "slides" / "00_first.html").resolve().as_uri() + "#/1/1")
    browsing.until(lambda: browser.execute_script("return Reveal.isReady()"), 20, "reveal.js did not start")
    place = "return [Reveal.getIndices().h, Reveal.getIndices().v]"
    assert browser.execute_script(place) == [1, 1]
    browsing.until(
        lambda: min(browser.execute_script(FIGURES_DRAWN), default=0) > 800, 20, "the figure does not fill the slide"
    )
    browser.find_element("css selector", "body").send_keys("\ue012")  # left
    browsing.until(lambda: browser.execute_script(place)[0] == 0, 20, "the arrow key does nothing")
    assert console_errors(browser) == []
    assert asked_elsewhere(browser) == []


def test_reveal_js_is_the_published_version_with_its_licence() -> None:
    script = (slides.REVEAL / "dist" / "reveal.js").read_text(encoding="utf-8")
    assert "MIT licensed" in script[:200]
    assert "Permission is hereby granted" in (slides.REVEAL / "LICENSE").read_text(encoding="utf-8")
    files = "".join(path.read_text(encoding="utf-8") for path in slides.REVEAL.rglob("*.*"))
    assert not re.search(r"@import|url\(\s*[\"']?https?:|cdn\.|unpkg", files)


def test_reference_names_every_public_module() -> None:
    names = site.module_names()
    assert {"edp_lab", "edp_lab.privacy.mechanism", "edp_lab.course.publish.runner"} <= set(names)
    assert not [name for name in names if "._" in name]
    assert len(names) == len(set(names))


def test_reference_has_pages_and_a_search_that_load_nothing_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "module_names", lambda: ["edp_lab.errors", "edp_lab.privacy.foundations", "edp_lab.gone"])
    index = site.write_api(tmp_path)
    page = tmp_path / "edp_lab" / "privacy" / "foundations.html"
    assert "response_epsilon" in page.read_text(encoding="utf-8")
    assert "response_epsilon" in (tmp_path / "search.js").read_text(encoding="utf-8")
    assert not list(tmp_path.rglob("gone*"))
    for path in tmp_path.rglob("*.html"):
        loads = re.findall(r'<(?:script|link|img)\b[^>]*?(?:href|src)="([^"]+)"', path.read_text(encoding="utf-8"))
        assert not [load for load in loads if urlsplit(load).scheme in ("http", "https")]
    assert index.is_file()
