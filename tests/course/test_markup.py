"""What comes from a corpus, a run, a label or a user is text: in read-outs, figures, pages, slides and the live Lab."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ipywidgets as widgets
import nbformat
import pytest
from markupsafe import Markup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from edp_lab.cli.compare import latex_of, page
from edp_lab.cli.output import Section, html_page, telling
from edp_lab.course.kit.figure import LiveFigure
from edp_lab.course.kit.panel import Fold
from edp_lab.course.kit.text import details, html_table
from edp_lab.course.nb05_models import compute as models
from edp_lab.course.nb05_models import panels as nb05
from edp_lab.course.nb06_tradeoff import panels as nb06
from edp_lab.course.nb06_tradeoff.compute import live_point
from edp_lab.course.nb07_membership.compute import measured
from edp_lab.course.nb07_membership.panels import defence_figure
from edp_lab.course.nb09_devices import compute as devices
from edp_lab.course.nb09_devices.panels import table2_table
from edp_lab.course.publish import browser as browsing
from edp_lab.course.publish import pages, slides
from edp_lab.course.publish.panel_driver import stills
from edp_lab.reproduce.compare import compare
from edp_lab.training import TrainConfig, train
from tests.course.conftest import ROOT, store
from tests.course.hostile import EVIL, NAME, RUN, SHORT, draw, show


class _Seen(HTMLParser):
    """Elements and attributes that only what is above can have brought."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = self.get_starttag_text() or ""
        values = {name: value or "" for name, value in attrs if name != "aria-label"}  # which is text
        if any(name.startswith("on") or "javascript:" in value or "a.org" in value for name, value in values.items()):
            self.found.append(told)

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and data.strip() == RUN:
            self.found.append(data)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for one in pair for text in strings(one))
    elif isinstance(value, list | tuple):
        yield from (text for one in value for text in strings(one))


def markup(shown: Any) -> list[str]:
    """What of the names above has become markup in HTML, a figure, or a widget with all that is in it."""
    if isinstance(shown, str):
        return _Seen(shown).found
    if isinstance(shown, LiveFigure):
        return markup(shown.figure)
    if isinstance(shown, widgets.Widget):
        texts = [shown.value] if isinstance(shown, widgets.HTML | Fold) and not getattr(shown, "code", False) else []
        assert not getattr(shown, "description_allow_html", False)
        return [one for part in (*texts, *getattr(shown, "children", ())) for one in markup(part)]
    figure = shown if isinstance(shown, dict) else json.loads(shown.to_json())
    return [one for text in strings(figure) for one in markup(text)]


# ---- The kit: nothing is markup that does not say so ---------------------------------------------------------------


def test_a_panel_shows_text_as_text_and_markup_that_says_so_as_markup():
    panel = show()
    panel.set(a=2.0)
    panel.errors.clear()
    assert markup(panel) == []
    assert any(RUN in text for text in strings(draw(None)))
    panel.words.value = Markup("<b>{}</b>").format("1 < 2")
    assert panel.words.value == "<b>1 &lt; 2</b>"
    with panel.guard():
        raise ValueError(EVIL)
    assert markup(panel.error_box) == []
    assert RUN in panel.error_box.value


@pytest.mark.parametrize(
    "template", sorted(ROOT.glob("edp_lab/**/*.j2")), ids=lambda path: path.parent.name + path.name
)
def test_in_templates_only_what_stands_there_is_safe(template: Path):
    found = re.findall(r'("[^"]*" )?\| *safe\b', template.read_text(encoding="utf-8"))
    assert all(found), "markup is passed as `Html`, not declared safe where it arrives"


# ---- What goes through the course ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A JSONL file with this text in its name, its words, intents and slots."""
    path = tmp_path_factory.mktemp("corpora") / f"{NAME}{SHORT}"
    labels = [EVIL, f"{SHORT}{NAME}", "plain"]
    turns = zip(range(60), cycle(labels), cycle(labels[:2]))
    rows = [
        {"tokens": [f"w{k}", EVIL.replace(" ", "/")], "tags": ["O", f"B-{slot}"], "intent": intent}
        for k, slot, intent in turns
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def tables(corpus: str) -> str:
    """Of notebook 05."""
    look = models.look_at(corpus, 0)
    one = look.corpus.utterances[0]
    wrong: Any = SimpleNamespace(intent=SHORT, tags=(f"B-{EVIL}",) * 2)
    said = [nb05.corpora_table([look]), nb05.predicted([one, one], [wrong, wrong])]
    return "".join([*said, nb05.scores_table({EVIL: look.majority}), details(EVIL, EVIL), html_table([[EVIL], [EVIL]])])


@cache
def trained(corpus: str) -> tuple[Path, dict[str, Any]]:
    """A run on this corpus in a folder of such a name, and its record."""
    folder = Path(corpus).parent / NAME
    return folder, train(TrainConfig(corpus, size="small", epochs=1, batch_size=30, z0=0.5, dropout=0.0), folder)


def explored(corpus: str) -> str:
    """What notebook 06 says of a run, whose record says why there is no guarantee."""
    point = live_point(TrainConfig(corpus, epochs=1, z0=0.5), trained(corpus)[1])
    for_no_reason = SimpleNamespace(epsilon=None, guarantee=SimpleNamespace(reason=EVIL))
    return nb06.words.live(point) + nb06.words.held(for_no_reason)


def compared(corpus: str) -> str:
    return page(compare([trained(corpus)[0]]))


def timed(_: str) -> str:
    return table2_table([{**row, "command": EVIL, "machine": EVIL} for row in devices.table2("clc")])


def site(corpus: str) -> str:
    entry = pages.Entry(EVIL, f"{NAME}.html", Path())
    row = SimpleNamespace(html=Path(NAME), executed=Path(NAME), title=EVIL, error=EVIL, seconds=1.0, memory_mb=1.0)
    picture = pages._drawing(pages._thumbnail(draw(None)))
    card = pages.Card(EVIL, f"{NAME}.html", picture, minutes=EVIL, needs=EVIL)
    listed = pages.write_contents(EVIL, [card], [entry], EVIL, Path(corpus).parent, [row]).read_text()
    return listed + str(pages.filled("navigation.html.j2", before=entry, after=entry))


SHOWN: dict[str, Callable[[str], Any]] = {
    "tables of notebook 05": tables,
    "error by epsilon": lambda corpus: nb06.pareto_figure(
        [{**one, "corpus": EVIL, "model": EVIL} for one in nb06.pareto_points()]
    ),
    "runs with noise": lambda corpus: defence_figure(
        [replace(run, config=replace(run.config, corpus=EVIL)) for run in measured().defended]
    ),
    "table 2": timed,
    "a run": explored,
    "runs side by side": compared,
    "reports": lambda corpus: html_page(EVIL, [Section(EVIL, [[EVIL], [EVIL]], [EVIL], [draw(None), draw(None)])]),
    "lists of pages": site,
}


@pytest.mark.parametrize("shown", SHOWN)
def test_names_from_outside_stay_text(shown: str, corpus: str):
    found = SHOWN[shown](corpus)
    assert markup(found) == []


def test_on_a_terminal_and_for_latex_names_are_names(corpus: str, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with telling("[/of] a name") as tell:
        tell("[red]another[/of]")
    assert "[red]another[/of]" in capsys.readouterr().err
    told = latex_of(compare([trained(corpus)[0]])._replace(notes=["seeds of a\n\\input{b}"]))
    assert [line[0] for line in told.splitlines() if "input" in line] == ["%"]


# ---- In a browser ----------------------------------------------------------------------------------------------------

CLICKED = """
const first = [{curveNumber: 0, pointNumber: 0}];
document.querySelectorAll('.js-plotly-plot').forEach(plot => window.Plotly?.Fx.hover(plot, first));
const links = [...document.querySelectorAll('svg a, .edp-panel a, .jp-OutputArea table a, [href^=javascript]')];
links.forEach(link => link.dispatchEvent(new MouseEvent('click', {bubbles: true})));
return [Boolean(window.pwned), links.map(link => link.outerHTML), document.body.textContent.includes('window.pwned')];
"""


@pytest.fixture(scope="module")
def executed(corpus: str) -> nbformat.NotebookNode:
    """A notebook as it is after its cells have run: it shows panels, tables, figures, text and an error."""
    panel = show()
    panel.set(a=2.0)
    frames = [panel]
    outputs = [new_output("display_data", {pages.WIDGET: {"model_id": frame.model_id}}) for frame in frames]
    outputs += [new_output("execute_result", {"text/html": tables(corpus), "text/plain": EVIL})]
    outputs += [new_output("display_data", {pages.PLOTLY: draw(None), "text/plain": EVIL})]
    outputs += [new_output("stream", name="stdout", text=EVIL), new_output("error", ename=EVIL, evalue=EVIL)]
    outputs[-1].traceback = [EVIL]
    cells = [new_markdown_cell("# A title"), new_code_cell(f"{EVIL!r}", outputs=outputs)]
    notebook = new_notebook(cells=cells)
    notebook.metadata["widgets"] = {pages.STATE: widgets.Widget.get_manager_state()}
    notebook.metadata["stills"] = stills()
    pages.freeze_widgets(notebook)
    return notebook


def test_no_script_runs_in_a_page(
    browser: browsing.Chrome, executed: nbformat.NotebookNode, corpus: str, tmp_path: Path
):
    browser.get(f"data:text/html,{SHORT}")
    assert browser.execute_script("return window.pwned") == 1  # it would
    made = {
        "page": pages.page_html(executed, EVIL),
        "slides": slides.slides_html(executed, EVIL),
        "compare": compared(corpus),
        "report": SHOWN["reports"](corpus),
        "index": site(corpus),
    }
    for name, html in made.items():
        pages.store_page(html, tmp_path / f"{name}.html")
        browser.get((tmp_path / f"{name}.html").as_uri())
        browser.execute_script("dispatchEvent(new Event('beforeprint'))")  # draws what is out of sight, too
        drawn = html.count("Plotly.newPlot(") + html.count("edp-drawn")
        browsing.until(lambda n=drawn: len(browser.find_elements("css selector", ".main-svg")) >= n, 20, "no figure")
        assert browser.execute_script(CLICKED) == [False, [], True], name


def test_no_script_runs_in_the_live_lab(browser: browsing.Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cells = [
        "from tests.course.hostile import *\nfrom edp_lab.course.kit.theme import activate\nactivate()",
        "panel = show()\npanel",
        "panel.set(a=2.0)\nprint(EVIL)\nfig.go.Figure(draw(None))",
        "html_table([[EVIL], [TEX]])",
        "EVIL",
        "raise ValueError(EVIL)",
    ]
    notebook = store(tmp_path / "00_hostile.ipynb", *map(new_code_cell, cells))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with browsing.jupyterlab([notebook]) as address:
        with browsing.open_notebook(browser, address, notebook.name):
            browsing.until(lambda: browser.find_elements("css selector", ".edp-panel .main-svg"), 60, "no figure")
            assert browser.execute_script(CLICKED) == [False, [], True]
        browser.get("about:blank")
