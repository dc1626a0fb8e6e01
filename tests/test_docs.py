"""The README and docs/: examples run, commands and links exist, and the README's numbers match the stored results."""

import ast
import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import edp_lab
from edp_lab.__main__ import app

ROOT = Path(edp_lab.__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "data/results/README.md")
}
README = PAGES["README.md"]
BLOCKS = re.findall(r"```python\n(.*?)```", "".join(PAGES.values()), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_run_and_give_what_their_comments_say(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    lines = block.strip().splitlines()
    shown = [(line, found[1]) for line in lines if (found := re.search(r"  # ([\d.]+)$", line))]
    exec(compile(block, "<example>", "exec"), namespace)
    for line, number in shown:
        assert f"{eval(line, namespace):.3g}" == f"{float(number):.3g}"


def code_of(text: str) -> list[str]:
    """The lines of code blocks (fenced or indented) and the inline code of a Markdown text."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```[^\n]*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks += re.findall(r"^    (.*\n)", rest, re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines() + re.findall(r"`([^`]+)`", rest)
    return [line.split(" #")[0].strip() for line in lines]


def test_pages_mention_only_make_targets_and_commands_that_exist() -> None:
    lines = [line for text in PAGES.values() for line in code_of(text)]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    made = {match[1] for line in lines if (match := re.search(r"(?<!data )\bmake (?:[A-Z_]+=\S+ )*([a-z]+)", line))}
    assert {"course", "test", "lab"} <= made <= targets
    for words in [shlex.split(line[line.index("edp-lab ") :])[1:] for line in lines if "edp-lab " in line]:
        check_command(get_command(app), words)


def check_command(command: Any, words: list[str]) -> None:
    """Fail if `words` contain a command or an option that does not exist."""
    trail = "edp-lab"
    while hasattr(command, "commands") and words and re.fullmatch(r"[a-z][a-z0-9-]*", words[0]):
        name, *words = words
        assert name in command.commands, f"docs: `{trail} {name}` does not exist"
        command, trail = command.commands[name], f"{trail} {name}"
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in options | {"--help"}, f"docs: `{trail}` has no option {word}"


def commands(command: Any, trail: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not hasattr(command, "commands"):
        return [trail]
    return [leaf for name, sub in command.commands.items() for leaf in commands(sub, (*trail, name))]


def test_there_are_24_commands_at_most_and_each_is_on_the_page_of_commands() -> None:
    leaves = commands(get_command(app))
    assert len(leaves) <= 24
    listed = [tuple(shlex.split(line)[1:]) for line in code_of(PAGES["docs/commands.md"]) if line[:8] == "edp-lab "]
    assert [leaf for leaf in leaves if not any(words[: len(leaf)] == leaf for words in listed)] == []


def test_page_of_commands_lists_every_file_of_the_library() -> None:
    for path in (ROOT / "edp_lab").rglob("*.py"):
        tree = ast.parse(path.read_bytes())
        head = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")
        names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name[0] != "_"]
        row = f"| `{path.relative_to(ROOT / 'edp_lab').as_posix()}` | {head} | {', '.join(names)} |"
        assert row in PAGES["docs/commands.md"]


def test_links_between_pages_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("[dn]*/**/*.md")):
        for link in re.findall(r"\]\((?!http|#|\.\./\.\./deployments)([^)#\s]+)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page} links to {link}"
    assert [page for page in PAGES if page.startswith("docs/") and f"({page})" not in README] == []


def rows(name: str, **wanted: Any) -> list[dict[str, Any]]:
    found = json.loads((ROOT / "data/results" / f"{name}.json").read_text(encoding="utf-8"))
    found = found["rows"] if isinstance(found, dict) else found
    return [row for row in found if all(row[key] == value for key, value in wanted.items())]


def test_readme_is_short_and_its_findings_are_those_of_the_records() -> None:
    assert len(README.split()) <= 600
    private = [row for row in rows("table1") if row["log10_claimed"] is not None]
    claimed = [10 ** (row["log10_claimed"] - 6) for row in private]
    attacks = [rows("bench_attacks", attack=name)[0] for name in ("shadow", "lira, 16 shadow models")]
    error = {
        goal: sum(row["ser"] for row in found) / len(found)
        for goal in (0.0, None, 8.0, 3.0)
        if (found := rows("recipe", corpus="atis", target=goal))
    }
    figures = [
        f"{min(claimed):.0f} million to {max(claimed):.0f} million",
        f"{sum(not row['within_tolerance'] for row in private)} of the {len(private)} ",
        *(f"{100 * attack['found']['auc']:.1f} %" for attack in attacks),
        *(f"{100 * value:.1f} %" for value in error.values()),
    ]
    text = " ".join(README.split())
    assert [figure for figure in figures if figure not in text] == []


def test_picture_is_drawn_from_the_epsilons_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = ROOT / "docs" / "images" / "promise.svg"
    monkeypatch.setattr(sys, "argv", ["promise.py", str(tmp_path / "promise.svg")])
    runpy.run_path(str(picture.with_suffix(".py")), run_name="__main__")
    drawn = (tmp_path / "promise.svg").read_text(encoding="utf-8")
    assert drawn == picture.read_text(encoding="utf-8"), "docs/images/promise.py draws another picture now"


def test_panel_and_accountant_of_the_contributors_page_work() -> None:
    from edp_lab.course.kit.panel import PANELS
    from edp_lab.privacy import Schedule, gdp_epsilon, zcdp_epsilon

    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "edp_lab.course.nb03_cost.panels"}
    try:
        for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(compile(text, "<CONTRIBUTING.md>", "exec", dont_inherit=True), namespace)
        panel = namespace["by_epochs"]()
        panel.set(z=0.5)
        assert panel.result["exact"][0] == gdp_epsilon(2.0, 1e-5)
        assert panel.words not in panel.shown(panel.result, panel.values)  # not on the page
        for delta in (1e-9, 1e-5, 0.5):
            epsilon = namespace["ConcentratedDP"](Schedule([0.5], [1])).epsilon(delta)
            assert epsilon == pytest.approx(zcdp_epsilon(2.0, delta), rel=1e-8)
            assert epsilon >= zcdp_epsilon(2.0, delta) * (1 - 1e-14) >= gdp_epsilon(2.0, delta)
    finally:
        PANELS.pop("03 by_epochs", None)
