"""One source, two notebooks: students get stubs, teachers solutions, what is stored is what the sources give, each link
leads somewhere, terms to the glossary, and every notebook names what to read next."""

import json
import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from edp_lab.course.publish.build import Links, build, edition, read_source
from edp_lab.course.publish.runner import course_notebooks
from edp_lab.errors import UsageError
from tests.course.conftest import invoked

ROOT = Path(__file__).parents[2]
EXERCISE = "# EXERCISE half\ndef half(x):\n    ...\n# SOLUTION\ndef half(x):\n    return x / 2"


def source(folder: Path, *code: str, name: str = "02_name.ipynb") -> Path:
    cells = [
        new_markdown_cell("# A title", id="title"),
        *(new_code_cell(text, id=f"c{i}") for i, text in enumerate(code)),
    ]
    (folder / "source").mkdir(exist_ok=True)
    path = folder / "source" / name
    nbformat.write(new_notebook(cells=cells), path)
    return path


def texts(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def test_the_stored_notebooks_are_what_their_sources_give() -> None:
    checked = invoked("course", "build", "--check")
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks/source").glob("*.ipynb")), ids=lambda path: path.stem)
def test_sources_are_stored_without_outputs(path: Path) -> None:
    code = [cell for cell in read_source(path).cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)


def test_students_get_the_stub_and_teachers_the_solution(tmp_path: Path) -> None:
    path = source(tmp_path, "import math", EXERCISE, "check('half', half)")
    build(tmp_path)
    shared = ["# A title", "import math", "check('half', half)"]
    assert texts(tmp_path / path.name) == [*shared[:2], "# EXERCISE half\ndef half(x):\n    ...", shared[2]]
    assert texts(tmp_path / "instructor" / path.name) == [
        *shared[:2], "# EXERCISE half\ndef half(x):\n    return x / 2", shared[2]
    ]  # fmt: skip
    assert course_notebooks(tmp_path) == [tmp_path / path.name]


def test_a_cell_tagged_instructor_is_for_the_teacher_only(tmp_path: Path) -> None:
    notebook = read_source(source(tmp_path, "1 + 1"))
    notebook.cells[0].metadata.tags = ["instructor"]
    for for_students, ids in ((True, ["c0"]), (False, ["title", "c0"])):
        assert [cell.id for cell in edition(notebook, for_students=for_students).cells] == ids
    assert len(notebook.cells) == 2


def test_outputs_counts_and_the_authors_machine_are_left_behind_and_ids_kept(tmp_path: Path) -> None:
    path = source(tmp_path, "1 + 1")
    stored = json.loads(path.read_text())
    stored["cells"][1].update(
        execution_count=7,
        outputs=[{"output_type": "stream", "name": "stdout", "text": "secret"}],
        metadata={"execution": {"iopub.execute_input": "2026"}, "tags": ["parameters"]},
    )
    stored["metadata"] = {"kernelspec": {"name": "my-venv", "display_name": "mine"}, "widgets": {"state": {}}}
    path.write_text(json.dumps(stored))
    build(tmp_path)
    made = nbformat.read(tmp_path / path.name, as_version=4)
    assert (made.cells[1].outputs, made.cells[1].execution_count) == ([], None)
    assert made.cells[1].metadata == {"tags": ["parameters"]}
    assert [cell.id for cell in made.cells] == ["title", "c0"]
    assert made.metadata.kernelspec.name == "python3"
    assert "widgets" not in made.metadata


def test_the_same_sources_give_the_same_bytes_and_only_changes_are_written(tmp_path: Path) -> None:
    source(tmp_path, EXERCISE)
    written = build(tmp_path)
    first = {path: path.read_bytes() for path in written}
    assert len(written) == 2
    assert build(tmp_path) == []
    for path in written:
        path.unlink()
    assert {path: path.read_bytes() for path in build(tmp_path)} == first


def test_check_names_what_drifted_and_what_has_no_source_and_writes_nothing(tmp_path: Path) -> None:
    path = source(tmp_path, EXERCISE)
    build(tmp_path)
    source(tmp_path, EXERCISE, "an_edit = 1")
    stray = tmp_path / "instructor" / "03_gone.ipynb"
    stray.write_text("{}")
    before = (tmp_path / path.name).read_bytes()
    result = invoked("course", "build", "--check", "--notebooks", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[:3] == [
        "02_name.ipynb differs from its source",
        "instructor/02_name.ipynb differs from its source",
        "instructor/03_gone.ipynb has no source",
    ]
    assert (tmp_path / path.name).read_bytes() == before


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (["# EXERCISE half\ndef half(x): ..."], "02_name.ipynb: exercise 'half' needs a stub, one line `# SOLUTION`"),
        (["# EXERCISE half\n# SOLUTION\nhalf = 2"], "exercise 'half' needs a stub"),
        (["# EXERCISE half\nhalf = None\n# SOLUTION\n"], "exercise 'half' needs a stub"),
        (["half = None\n# SOLUTION\nhalf = 2"], "a cell has a line `# SOLUTION`, but does not begin with"),
        ([EXERCISE, EXERCISE], "two cells are called `# EXERCISE half`"),
    ],
)
def test_half_an_exercise_is_refused_before_anything_is_written(tmp_path: Path, code: list[str], sentence: str) -> None:
    source(tmp_path, "1 + 1", name="01_good.ipynb")
    source(tmp_path, *code)
    with pytest.raises(UsageError, match=sentence):
        build(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_sources_without_ids_or_that_are_no_notebooks_are_refused(tmp_path: Path) -> None:
    path = source(tmp_path, "1 + 1")
    stored = json.loads(path.read_text())
    stored["cells"][1]["id"] = "title"
    path.write_text(json.dumps(stored))
    with pytest.raises(UsageError, match="cells without an id of their own"):
        build(tmp_path)
    path.write_text("not json")
    with pytest.raises(UsageError, match="is not a notebook"):
        build(tmp_path)
    with pytest.raises(UsageError, match="no notebooks in"):
        build(tmp_path / "elsewhere")


# ---- Links -----------------------------------------------------------------------------------------------------------

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
READ = [*NOTEBOOKS, *sorted((ROOT / "notebooks/instructor").glob("*.ipynb"))]
PAGES = (".", "notebooks", "docs", "docs/teaching", "data", "data/results")
READ += [path for place in PAGES for path in sorted((ROOT / place).glob("*.md"))]
CODE = re.compile(r"^(```|~~~)[\s\S]*?^\1|`[^`\n]*`", re.MULTILINE)
ELSEWHERE = re.compile(r"https://[a-z0-9.-]+\.[a-z]+(/\S*)?")
REFERENCE = re.compile(
    r"\* (?P<authors>[^(]+) \((?P<year>\d{4})\)\. \*(?P<title>.+?)[.?]\* "
    r"\[(?:arXiv (?P<arxiv>\d{4}\.\d{4,5}|cs/\d{7})|DOI (?P<doi>10\.\d{4,9}/[\w.]+))\]\((?P<link>\S+)\)\. "
    r"(?P<about>.+\.) \[(?P<numbers>\d\d(?:, \d\d)*)\]"
)
TABLE = """# Words
| | |
|---|---|
| <a id="noise"></a>**noise multiplier, z0** | how much |
| <a id="canary"></a>**canary** | a bird |
| <a id="n"></a>**N** | devices |
"""
PAPERS = (
    "# References\n\n* A (2000). *T.* [arXiv 2000.00001](u). [00]\n* B (2001). *U.* [arXiv 2001.00001](v). [00, 01]\n"
)


def prose(path: Path) -> str:
    """The Markdown of a page or of a notebook, code left out."""
    if path.suffix == ".md":
        return CODE.sub("", path.read_text(encoding="utf-8"))
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(CODE.sub("", cell.source) for cell in cells if cell.cell_type == "markdown")


def anchors(text: str) -> set[str]:
    """Where a link may lead to within a page: what has an id, and headings as GitHub names them."""
    headings = re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return {
        *re.findall(r'id="([^"]+)"', text),
        *(re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings),
    }


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    text = prose(path)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:href|src)="([^"]+)"', text)
    for link in links:
        file, _, anchor = link.partition("#")
        if ":" in link:
            assert ELSEWHERE.fullmatch(link), link
            continue
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(prose(target)), link


def test_every_reference_is_whole_and_its_link_has_its_number() -> None:
    lines = [line for line in prose(ROOT / "notebooks/references.md").splitlines() if line.startswith("* ")]
    seen = set()
    for line in lines:
        found = REFERENCE.fullmatch(line)
        assert found, line
        number = found["arxiv"] or found["doi"]
        assert found["link"] == (f"https://arxiv.org/abs/{number}" if found["arxiv"] else f"https://doi.org/{number}")
        assert number not in seen
        seen.add(number)
        month = int(number[2:4]) if found["arxiv"] and "/" not in number else 1
        assert 1 <= month <= 12, number
        if found["arxiv"] and "/" not in number:
            assert int(found["year"]) == 2000 + int(number[:2]), line  # of the first public version
    named = Counter(one for line in lines for one in REFERENCE.fullmatch(line)["numbers"].split(", "))  # type: ignore[index]
    assert named.keys() == {path.name[:2] for path in NOTEBOOKS}
    assert all(2 <= papers <= 9 for papers in named.values()), named


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_where_the_field_stands_is_said_of_papers_that_are_listed(path: Path) -> None:
    _, told, after = re.sub(r"\s+", " ", prose(path)).partition("**Where the field stands.** ")
    cited = re.findall(r"([A-Z][\w-]+)[^().;]*? (\d{4})[,)]", after.partition("## Further reading")[0])
    listed = [REFERENCE.fullmatch(line) for line in prose(ROOT / "notebooks/references.md").splitlines()]
    own = [(one["authors"], one["year"]) for one in listed if one and path.name[:2] in one["numbers"]]
    assert told
    assert cited
    assert all(any(name in authors and year == when for authors, when in own) for name, year in cited), (cited, own)


def linked(folder: Path, *cells: str, name: str = "00_a.ipynb", **up: str) -> list[str]:
    """The cells of a notebook, with links, in a course of two."""
    (folder / "glossary.md").write_text(TABLE, encoding="utf-8")
    (folder / "references.md").write_text(PAPERS, encoding="utf-8")
    notebook = new_notebook(cells=[new_markdown_cell(f"# {name}"), *map(new_markdown_cell, cells)])
    other = new_notebook(cells=[new_markdown_cell("# 01 Next: and more")])
    return [
        cell.source
        for cell in Links({name: notebook, "01_b.ipynb": other}, folder).put_into(notebook, name, **up).cells
    ]


def test_the_first_use_of_a_term_leads_to_the_glossary(tmp_path: Path) -> None:
    cells = linked(
        tmp_path, "Canaries sing, and a *canary*\nsings. The noise\nmultiplier N.", "A canary. z0, or Z0-like."
    )
    assert cells[2:4] == [
        "[Canaries](glossary.md#canary) sing, and a *canary*\nsings. The [noise\nmultiplier](glossary.md#noise) N.",
        "A canary. z0, or Z0-like.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "# A canary",
        "| canary | z0 |",
        "`canary`",
        "```\ncanary\n```",
        "$canary$",
        "$$\ncanary\n$$",
        "[a canary](x.md)",
        "*The Canary That Sang for all of us, a title*",
        "subcanary canary-like e^z0 N",
        '<img alt="canary">',
    ],
)
def test_headings_tables_code_formulas_links_and_titles_are_left_alone(tmp_path: Path, text: str) -> None:
    assert linked(tmp_path, text)[2] == text


def test_other_notebooks_are_led_to_where_they_are_named(tmp_path: Path) -> None:
    text = "Notebooks 00 and\n01, notebook 01. In 01? Notebook 07.\n\n| | |\n|---|---|\n| **01** | Next |\n| 01 | 22 |"
    assert linked(tmp_path, text)[2] == (
        "Notebooks 00 and\n[01](01_b.ipynb), notebook [01](01_b.ipynb). In 01? Notebook 07.\n\n"
        "| | |\n|---|---|\n| **[01](01_b.ipynb)** | Next |\n| 01 | 22 |"
    )


def test_without_a_glossary_and_alone_a_notebook_stays_as_it_is(tmp_path: Path) -> None:
    notebook = new_notebook(cells=[new_markdown_cell("# A\n\ncanary, notebook 00"), new_code_cell("x")])
    assert Links({"00_a.ipynb": notebook}, tmp_path).put_into(notebook, "00_a.ipynb") == notebook
