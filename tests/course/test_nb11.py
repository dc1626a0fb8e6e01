"""Notebook 11: each claim's cell is short, calls the library, and fails if its evidence changes."""

import ast
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from nbformat import NotebookNode

from edp_lab.course.run import read_notebook
from tests.course.conftest import path_of
from tests.course.examples import Wrong

NOTEBOOK = read_notebook(path_of("11"))
CLAIMS = {cell.id.upper(): cell for cell in NOTEBOOK.cells if "claim" in cell.metadata.get("tags", ())}
CONCLUSIONS = {"P12", "P13", "P17", "P18", "T24", "T25"}  # conclusions of the documents
VERDICTS = ("holds", "holds under conditions", "does not hold", "not testable here")
COUNTER: dict[str, dict[Any, Any]] = {  # by claim, numbers of its evidence, each of which reverses the verdict
    "P2": {"measured epsilon (at least)": 5.2, "claimed epsilon": 40.0},
    "P5": {"guaranteed, eight": 5.2, "guaranteed, one": 5.4},
    "P22": {8: 9.99, 32: 39.0, "claimed": 10.0},
    "P4": {"change of the scale (%)": 0.0},
    "P10": {"utterances published": 0.1, "chance of any": 0.1},
    "P11": {"smallest epsilon": 1.0, "smallest bound on the AUC": 0.9},
    "P26": {"explained": 35, "common numbers of epochs": (30,)},
    "P12": {"of four printed rows, with a better decay": 1, "of our 24 decays, with more error": 23},
    "P13": {"gains, tested together": 0, "gains, tested alone": 40},
    "P18": {"printed": 0.6, "printed (at most)": 0.4, "ours": 0.1},
    "P17": {"a loop (at least)": 1.5, "ghost clipping (at most)": 8.0},
    "T1": {"guaranteed": 2.4, "for one pixel": 2.4},
    "T6": {"reached": 0.07, "theorem": 2.4},
    "T7": {"longest, as printed": 1.0, "longest, section 2.4.8": 10.0},
    "T9": {"ten": 0.1},
    "T12": {"all labels (at least)": 0.2, "all labels, delta 1e-5 (at least)": 0.2},
    "T24": {"copy agrees (at least)": 0.1, "recognised (at least)": 0.1},
    "T25": {"epochs saved": 3.0, "half-width of its 95 % interval": 0.5},
}
IMPORTS = ("versions", "thesis-imports")
each_claim = pytest.mark.parametrize("name", CLAIMS)


@pytest.fixture(scope="module")
def prepared() -> dict[str, Any]:
    """The names defined by the notebook's imports, parameters and helper."""
    space: dict[str, Any] = {}
    for cell in NOTEBOOK.cells:
        if cell.id in (*IMPORTS, "parameters", "results"):
            exec(cell.source, space)
    return space


def parts(cell: NotebookNode) -> tuple[ast.Module, ast.Module]:
    """The code that computes a cell's evidence, and its assertions."""
    body = ast.parse(cell.source).body
    asserts = [node for node in body if isinstance(node, ast.Assert)]
    return ast.Module([node for node in body if node not in asserts], []), ast.Module(asserts, [])


@each_claim
def test_a_cell_passes_on_its_evidence_and_fails_on_each_counter_value(name: str, prepared: dict[str, Any]) -> None:
    computes, judges = (compile(part, name, "exec") for part in parts(CLAIMS[name]))
    space = dict(prepared)
    exec(computes, space)
    exec(judges, space)
    evidence = space["evidence"]
    assert COUNTER[name].keys() <= evidence.keys()
    for key, value in COUNTER[name].items():
        with pytest.raises(AssertionError):
            exec(judges, space | {"evidence": {**evidence, key: value}})


@each_claim
def test_a_claim_is_a_quote_a_short_cell_and_a_verdict(name: str) -> None:
    place = NOTEBOOK.cells.index(CLAIMS[name])
    quote, verdict = NOTEBOOK.cells[place - 1].source, NOTEBOOK.cells[place + 1].source
    assert re.search(rf"^#### {name}: .+\n\n> .+\n\n(Paper|Thesis), ", quote, re.MULTILINE)
    assert 3 <= len([line for line in CLAIMS[name].source.splitlines() if line.strip()]) <= 8
    found = re.match(r"\*\*(.+?)[.,]\*\*", verdict)
    assert found
    assert found[1].lower() in VERDICTS
    [row] = [row for row in summary().splitlines() if f" {name}," in row or f" {name} |" in row]
    assert row.startswith(f"| {found[1].lower()} |")


def summary() -> str:
    return next(cell.source for cell in NOTEBOOK.cells if cell.id == "summary")


def test_the_conclusions_are_among_the_claims_and_most_cells_call_the_library() -> None:
    assert CLAIMS.keys() == COUNTER.keys() >= CONCLUSIONS
    assert len(CLAIMS) == 18
    imports = "\n".join(cell.source for cell in NOTEBOOK.cells if cell.id in IMPORTS)
    library = {
        name.asname or name.name
        for node in ast.walk(ast.parse(imports))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("edp_lab")
        for name in node.names
    }

    def calls(cell: NotebookNode) -> bool:
        called = [node.func for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
        roots = {name.id for func in called for name in ast.walk(func) if isinstance(name, ast.Name)}
        return bool(roots & library)

    assert sum(map(calls, CLAIMS.values())) >= 10


def test_the_prediction_and_the_page_of_results_count_as_the_table_does() -> None:
    lines = [line for line in summary().splitlines() if line.startswith("| ")][1:]
    holds, conditional, fails, untestable = (len(re.findall("[PT][0-9]+", line)) for line in lines)
    questions = next(cell.source for cell in NOTEBOOK.cells if cell.id == "do")
    assert f"<summary>Answer</summary>{holds}. Four more" in questions
    assert conditional == 4  # "four more hold with one sentence added"
    page = (path_of("11").parents[1] / "docs" / "results.md").read_text(encoding="utf-8")
    counts = (
        f"{holds} holds, {conditional} hold under conditions, {fails} do not hold, and {untestable} are not testable"
    )
    assert counts in " ".join(page.split())


# ---- Exercises -------------------------------------------------------------------------------------------------------

Changes = list[tuple[float, float]]


def judged(falls: Callable[[float, float], bool], partly: bool = True) -> Callable[[Changes], str]:
    """A verdict that depends on whether a change with this mean and half-width `falls`."""

    def verdict(changes: Changes) -> str:
        hits = [falls(*change) for change in changes]
        return "holds" if all(hits) else "holds under conditions" if partly and any(hits) else "does not hold"

    return verdict


WRONG: dict[str, dict[str, Any]] = {
    "verdict": {
        "takes every fall for one beyond chance": Wrong(judged(lambda mean, half: mean < 0), "counts every fall"),
        "takes a rise beyond chance for a fall": Wrong(
            judged(lambda mean, half: abs(mean) > half), "counts a significant rise as a fall"
        ),
        "looks at the wrong end of the interval": Wrong(
            judged(lambda mean, half: mean - half < 0), "yours is 'holds', it should be 'holds under conditions'."
        ),
        "forgets that some may": judged(lambda mean, half: mean + half < 0, partly=False),
        "answers true or false": lambda changes: all(mean + half < 0 for mean, half in changes),
    },
    "noise": {
        "divides by N once more": lambda n, c, z: c * z / n**2,
        "forgets the mean": Wrong(lambda n, c, z: c * z / math.sqrt(n), "with N = "),
        "takes variances for deviations": lambda n, c, z: (c * z / n) ** 2 / n,
        "leaves out the clip norm": lambda n, c, z: z / n**1.5,
    },
}
