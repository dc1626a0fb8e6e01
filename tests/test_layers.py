"""The structure of the package: imports point down without cycles, notebooks are separate, and importing is fast."""

import ast
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "edp_lab"
MODULES = sorted(PACKAGE.rglob("*.py"))
# From top to bottom; a layer may import itself and later layers, and edp_lab.files and errors.
LAYERS = ("cli", "course", "reproduce", "attacks", "three_phase", "training", "models", "corpora", "privacy")
IMPORT = """
import sys, time
start = time.process_time()
import {module}
print(time.process_time() - start, "torch" in sys.modules)
"""


def dotted(path: Path) -> str:
    """A file's module name: ``edp_lab.privacy``, ``edp_lab.course.kit.panel``."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted(path) for path in MODULES}


def imported(source: str, package: tuple[str, ...], *, lazily: bool = True) -> set[str]:
    """The dotted names within edp_lab that a source imports, with relative names resolved.

    Args:
        package: the source's package, for relative imports.
        lazily: whether to include imports in functions and imports for type checkers.
    """
    tree = ast.parse(source)
    found = set()
    for node in ast.walk(tree) if lazily else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            base = ".".join([*above, *filter(None, [node.module])])
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in NAMES else base for alias in node.names}
    return {name for name in found if name.split(".")[0] == "edp_lab"}


def imports_of(path: Path, *, lazily: bool = True) -> set[str]:
    return imported(path.read_text(encoding="utf-8"), path.parent.relative_to(ROOT).parts, lazily=lazily)


def layer(name: str) -> str:
    return [*name.split("."), ""][1]


def room(name: str) -> str:
    """``nb04_edp_sgd`` for a module of that notebook; "" elsewhere."""
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["course"] and parts[2:] and parts[2].startswith("nb") else ""


each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def test_layers_are_the_known_ones_and_no_two_files_have_one_name() -> None:
    assert {layer(name) for name in NAMES} <= {*LAYERS, "", "jobs", "files", "compiled", "errors", "__main__"}
    # Except for the notebooks, which have the same files, and the command line's modules, named after commands.
    names = Counter(path.stem for path in MODULES if not room(dotted(path)) and path.stem[0] != "_")
    own = {path.stem for path in (PACKAGE / "cli").glob("*.py")}
    assert [name for name, count in names.items() if count > 1 and name not in own] == []


@each_module
def test_imports_point_down(path: Path) -> None:
    order = ("__main__", *LAYERS, "jobs", "files", "compiled", "errors", "")
    own = order.index(layer(dotted(path)))
    above = {name for name in imports_of(path) if order.index(layer(name)) < own}
    assert not above, f"{dotted(path)} imports {', '.join(sorted(above))}, which lies above it"


@each_module
def test_no_room_of_the_course_imports_another(path: Path) -> None:
    own = room(dotted(path))
    if own:
        rooms = {room(name) for name in imports_of(path)} - {own, ""}
        assert not rooms, f"{own} imports {', '.join(sorted(rooms))}: what two need belongs in kit"


def test_imports_make_no_circle() -> None:
    packages = {dotted(path) for path in MODULES if path.name == "__init__.py"}
    graph = {dotted(path): imports_of(path, lazily=False) & NAMES - {dotted(path)} for path in MODULES}
    for name in NAMES - packages:  # a package consists of its modules; they may be imported through it
        parent = name.rpartition(".")[0]
        graph[name] = graph[name] - {parent}
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize(("module", "seconds"), [("edp_lab", 0.3), ("edp_lab.corpora", 2.0), ("edp_lab.privacy", 4.0)])
def test_import_is_cheap_and_brings_no_torch(module: str, seconds: float) -> None:
    times = []
    for _ in range(3):  # the best of three, because other work only adds time
        command = [sys.executable, "-c", IMPORT.format(module=module)]
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        assert answer[1] == "False", f"import {module} brings torch"
        times.append(float(answer[0]))
    assert min(times) < seconds


WITHOUT_TORCH = """
import sys
class NotInstalled:
    def find_spec(name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)
sys.meta_path.insert(0, NotInstalled)
import edp_lab.cli.compare, edp_lab.training.run_files
from edp_lab.__main__ import app
from edp_lab.course.kit.panel import PANELS
from edp_lab.course.nb01_coins import panels
from edp_lab.course.nb03_cost import panels
from edp_lab.course.nb07_train.panels import BASE, load_grid, replace
from edp_lab.course.nb10_phases import panels
for command in ("account --z0 1 --epochs 3", "account --sampling-rate 0.01 --steps 10"):
    app(command.split(), standalone_mode=False)
base = replace(BASE, z0=0.1)
for name, arguments in {
    "01 coin": (1.1, 300, 0.3, 0),
    "01 composition": (0.1, 1000, 1e-5),
    "03 bill": (1.0, 30, 8.0, 1e-5),
    "03 loss": (0.5, 10, 1e-5),
    "03 sampling": (0.01, 1.0, 1000, 1e-5),
    "03 table1": (30,),
    "07 Explorer": (load_grid(), base),
    "10 pixels": (panels.Sketch(0), panels.ThreePhaseSettings()),
    "10 Pipeline": (panels.Sketch(0), panels.ThreePhaseSettings()),
}.items():
    PANELS[name](*arguments)  # draws, and tells
"""


def test_accounting_and_its_panels_need_no_torch() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_nothing_a_user_reads_names_a_folder_outside_the_project() -> None:
    outside = "../" + "shared"
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    files = [*pages, *MODULES, *(ROOT / "notebooks").glob("*.ipynb")]
    assert [path.name for path in files if outside in path.read_text(encoding="utf-8")] == []
