"""One source, two notebooks: students get stubs, teachers solutions, and what is stored is what the sources give."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from typer.testing import CliRunner

from edp_lab.cli.course import course_app
from edp_lab.course.publish.build import build, edition, read_source
from edp_lab.course.publish.runner import course_notebooks
from edp_lab.errors import UsageError

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
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
    checked = CliRunner().invoke(course_app, ["build", "--check"])
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("path", sorted((NOTEBOOKS / "source").glob("*.ipynb")), ids=lambda path: path.stem)
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
    result = CliRunner().invoke(course_app, ["build", "--check", "--notebooks", str(tmp_path)])
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
