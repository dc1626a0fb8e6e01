"""The shape of the package: imports point down, importing is cheap, files stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "edp_lab"
MODULES = sorted(PACKAGE.rglob("*.py"))
# From top to bottom; a layer may import itself, the layers after it, and edp_lab.errors.
LAYERS = ("cli", "course", "reproduce", "attacks", "three_phase", "training", "models", "corpora", "privacy")
LIMIT = 700  # lines of a Python file
IMPORT = """
import sys, time
start = time.perf_counter()
import {module}
print(time.perf_counter() - start, "torch" in sys.modules)
"""


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(source: str, package: tuple[str, ...]) -> set[str]:
    """The parts of edp_lab that a source imports, also within functions and by relative imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            base = [*above, *filter(None, [node.module])]
            names = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("edp_lab.")}
    return found


def test_layers_of_the_package_are_the_known_ones() -> None:
    assert {layer(path) for path in MODULES} <= {*LAYERS, "__init__", "errors", "__main__"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = layer(path)
    order = ("__main__", *LAYERS, "errors", "__init__")
    allowed = set(order[order.index(own) :])
    package = path.parent.relative_to(ROOT).parts
    above = imported(path.read_text(encoding="utf-8"), package) & set(LAYERS) - allowed
    assert not above, f"{own} imports {', '.join(sorted(above))}, which lies above it"


def test_reader_of_imports_sees_lazy_and_relative_ones() -> None:
    source = "import edp_lab.cli.course\nfrom ..models import crf\ndef f():\n  from edp_lab import training"
    assert imported(source, ("edp_lab", "privacy")) == {"cli", "training", "models"}


@pytest.mark.parametrize(("module", "seconds"), [("edp_lab", 0.3), ("edp_lab.corpora", 2.0)])
def test_import_is_cheap_and_brings_no_torch(module: str, seconds: float) -> None:
    times = []
    for _ in range(3):  # the best of three: other work on the machine only adds
        command = [sys.executable, "-c", IMPORT.format(module=module)]
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        assert answer[1] == "False", f"import {module} brings torch"
        times.append(float(answer[0]))
    assert min(times) < seconds


def test_python_files_stay_small() -> None:
    files = [*MODULES, *(ROOT / "tests").rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: count for name, count in lines.items() if count > LIMIT} == {}


def test_nothing_a_user_reads_names_a_folder_outside_the_project() -> None:
    outside = "../" + "shared"
    files = [ROOT / "README.md", *MODULES, *(ROOT / "notebooks").glob("*.ipynb")]
    assert [path.name for path in files if outside in path.read_text(encoding="utf-8")] == []
