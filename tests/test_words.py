"""Wording of README, docs, notebooks, panels, docstrings and help: phrases to avoid, and what to write instead."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTEAD = {  # a pattern in a sentence, and what to write instead
    r"^(Who|who (?!is|was)) (?!.*\?)": "name the actor: 'An attacker who ...', 'If you ...'",
    r"\b[Ww]hoever\b": "name the actor: 'an attacker who ...'",
    r"(^|[,;:(] ?)([Ww]ere|[Hh]ad) (the|an?|all|its?|they|there|one|no|alpha|\w+ (public|secret|known))\b": "'if'",
    r"^Of (an?|the(?! \d| first)|all|each|any)\b": "begin with what it is or does",
    r"^Where (?!.*\?).*, ": "'If'",
    r"\banew\b": "'again', or 're-' as in 're-measured'",
    r"\b(as such|so to speak)\b": "nothing",
    r"\b[Mm]end(s|ed|ing)?\b": "'fix'",
    r"\berr(s|ed)?\b": "'has an error rate of ...'",
    r"\b([Gg]o|goes|going|went) on with\b": "'resume', 'continue'",
    r"\bnot kept\b": "'raw results are not archived'",
}
INTRODUCED = {  # a README term, and text that must occur in or before its first paragraph
    r"\b[Ee]psilon\b|ε": r"measure is \W*epsilon|([Ee]psilon|ε)\b[^.]* (bounds|limits|measures)\b",
    r"\bSER\b": r"semantic error rate",
    r"\bCLC\b": r"character CNN",
    r"\bLiRA\b": r"likelihood",
    r"\bAUC\b": r"guessing|ROC curve",
}
READ = "*.md data/*.md data/results/*.md docs/**/*.md notebooks/*.md notebooks/*.ipynb edp_lab/**/*.py edp_lab/**/*.j2"


def prose(markdown: str) -> str:
    """Text without code, tags and addresses; each cell, heading and list item is a paragraph."""
    text = re.sub(r"^```.*?^```|^    .*?$|<!--.*?-->|<[^>]*>", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\{\{.*?\}\}", "x", text)
    text = re.sub(r"\(\[[^]]*\]\([^)]*\)\)|(?<=\])\([^)]*\)", "", text)
    return re.sub(r"^\s*([-*]|\d+\.|#+) |\|", "\n\n", text, flags=re.MULTILINE)


def strings(source: str) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(source)))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def lines() -> Iterator[tuple[str, str]]:
    """Place and sentence of all text for readers."""
    for path in sorted(path for pattern in READ.split() for path in ROOT.glob(pattern)):
        place, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        for part in strings(text) if path.suffix == ".py" else [prose(text)]:
            yield from ((place, " ".join(line.split())) for line in re.split(r"(?<=[.!?:;])[*_)]*\s+|\n\s*\n", part))


LINES = list(lines())


@pytest.mark.parametrize("pattern", INSTEAD)
def test_no_phrase_reads_like_a_riddle(pattern: str) -> None:
    assert not (found := [line for line in LINES if re.search(pattern, line[1])]), f"{found}: write {INSTEAD[pattern]}"


def test_sentences_of_pages_have_one_bracket() -> None:
    found = [line for line in LINES if len(re.findall(r"(?<![\w\[(])\(", line[1])) > 1]
    assert [line for line in found if line[0].endswith(".md")] == []


@pytest.mark.parametrize("term", INTRODUCED)
def test_readme_introduces_its_terms(term: str) -> None:
    if first := re.search(term, text := prose((ROOT / "README.md").read_text(encoding="utf-8"))):
        assert re.search(INTRODUCED[term], text[: text.find("\n\n", first.end())]), f"define {term} first"
