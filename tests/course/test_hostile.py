"""Names of corpora, labels and runs are text, not markup: in a panel, on a page, and in the live Lab."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import Markup
from nbformat.v4 import new_code_cell

from edp_lab.course.run import run_course
from tests import browser as browsing
from tests.course.conftest import ROOT, store
from tests.course.hostile import RUN, SHORT, show

CELLS = [
    'mode = "quick"',
    "from tests.course.hostile import *\nfrom edp_lab.course.kit.theme import activate\nactivate()",
    "panel = show()\npanel",
    "panel.set(a=2.0)\nprint(EVIL)\nfig.go.Figure(draw(None))",
    "html_table([[EVIL], [TEX]])",
    "EVIL",
    "raise ValueError(EVIL)",
]
CLICKED = """
const first = [{curveNumber: 0, pointNumber: 0}];
document.querySelectorAll('.js-plotly-plot').forEach(plot => window.Plotly?.Fx.hover(plot, first));
const links = [...document.querySelectorAll('svg a, .edp-panel a, .jp-OutputArea table a, [href^=javascript]')];
links.forEach(link => link.dispatchEvent(new MouseEvent('click', {bubbles: true})));
return [Boolean(window.pwned), links.map(link => link.outerHTML), document.body.textContent.includes('window.pwned')];
"""


class Scripts(HTMLParser):
    """Elements that only text from outside can have brought."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script" or any(name.startswith("on") or "javascript:" in (value or "") for name, value in attrs):
            self.found.append(self.get_starttag_text() or "")


def test_a_panel_escapes_text_and_keeps_markup_that_says_so() -> None:
    panel = show()
    panel.set(a=2.0)  # an error, whose text is hostile, too
    boxes = [panel.error_box, panel.words, *panel.children[1:2]]
    assert RUN in panel.words.value
    assert [found for box in boxes for found in Scripts(box.value).found] == []
    panel.words.value = Markup("<b>{}</b>").format("1 < 2")
    assert panel.words.value == "<b>1 &lt; 2</b>"


@pytest.mark.parametrize("template", sorted(ROOT.glob("edp_lab/**/words.html.j2")), ids=lambda path: path.parent.name)
def test_in_read_outs_only_constants_are_safe(template: Path) -> None:
    found = re.findall(r'("[^"]*" )?\| *safe\b', template.read_text(encoding="utf-8"))
    assert all(found), "markup is passed as `Html`"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A notebook that shows hostile text in every place that there is."""
    folder = tmp_path_factory.mktemp("hostile")
    cells = [new_code_cell(cell) for cell in CELLS]
    cells[0].metadata["tags"] = ["parameters"]
    store(folder / "00_hostile.ipynb", *cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield folder


def test_no_script_runs_on_a_page(folder: Path, browser: browsing.Chrome) -> None:
    browser.get(f"data:text/html,{SHORT}")
    assert browser.execute_script("return window.pwned") == 1  # it would
    [row] = run_course(folder, folder / "out", {})
    assert RUN in row["error"]
    browser.get((folder / "out" / "00_hostile.html").as_uri())
    browsing.until(lambda: len(browser.find_elements("css selector", ".main-svg")) >= 2, 20, "no figures")
    assert browser.execute_script(CLICKED) == [False, [], True]
    browser.get((folder / "out" / "index.html").as_uri())
    assert browser.execute_script(CLICKED) == [False, [], True]


def test_no_script_runs_in_the_live_lab(folder: Path, browser: browsing.Chrome) -> None:
    with browsing.jupyterlab(folder) as address:
        with browsing.open_notebook(browser, address, "00_hostile.ipynb"):
            browsing.until(lambda: browser.find_elements("css selector", ".edp-panel .main-svg"), 60, "no figure")
            assert browser.execute_script(CLICKED) == [False, [], True]
        browser.get("about:blank")
