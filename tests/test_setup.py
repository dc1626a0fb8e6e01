"""Installation: pyproject.toml (ranges), constraints.txt (pins), environment.yml and the README agree."""

import os
import re
import shutil
import subprocess
import time
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIRECT = [Requirement(text) for text in PYPROJECT["dependencies"] + PYPROJECT["optional-dependencies"]["test"]]
CUDA = re.compile(r"nvidia-|cuda-|triton")  # pinned exactly by torch's own metadata


def read_pins() -> dict[str, Version]:
    pins: dict[str, Version] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, pin = re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9A-Za-z.]+)", line).groups()  # type: ignore[union-attr]
            assert canonicalize_name(name) not in pins, f"{name} is pinned twice"
            pins[canonicalize_name(name)] = Version(pin)
    return pins


PINS = read_pins()


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_every_dependency_has_a_pin_within_its_range(requirement: Requirement) -> None:
    assert requirement.specifier, f"{requirement} has no range"
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier


def test_everything_that_pip_would_install_has_a_pin() -> None:
    todo = [("edp-lab", ""), ("edp-lab", "test")]
    seen = set(todo)
    while todo:
        name, extra = todo.pop()
        for requirement in map(Requirement, requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                dependency = canonicalize_name(requirement.name)
                new = {(dependency, wanted) for wanted in ("", *requirement.extras)} - seen
                seen |= new
                todo.extend(new)
    names = {name for name, _ in seen if not CUDA.match(name)}
    assert names - PINS.keys() == {"edp-lab"}


def test_what_is_installed_is_what_is_pinned() -> None:
    different = {}
    for name, pin in PINS.items():
        try:
            installed = Version(Version(version(name)).public)  # torch reports a build tag such as +cpu
        except PackageNotFoundError:
            assert name not in {canonicalize_name(requirement.name) for requirement in DIRECT}
            continue
        if installed != pin:
            different[name] = f"{installed}, pinned {pin}"
    assert not different


def test_conda_environment_is_the_same_install() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert pip == ["-c constraints.txt", "-e .[test]"]
    python, *others = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    assert SpecifierSet(python.removeprefix("python")) == SpecifierSet(PYPROJECT["requires-python"])
    assert others == ["pip"]  # no package comes from conda at another version
    assert "conda-forge" in environment["channels"]


def test_make_installs_by_the_constraints_and_every_target_is_one_command() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m pip install --no-compile -c constraints.txt\n" in makefile
    assert "\nunexport PYTHONDONTWRITEBYTECODE " in makefile  # otherwise every process would compile all packages
    for target, needed in (("course", "INSTALLED"), ("lab", "INSTALLED"), ("test", "TESTED")):
        recipe = re.search(rf"^{target}: \$\({needed}\).*\n((?:\t.+\n)+)", makefile, re.MULTILINE)
        assert recipe
        assert len(recipe[1].splitlines()) == 1
    for bound in re.findall(r"\d\.\d+", PYPROJECT["requires-python"]):
        assert f"({bound.replace('.', ', ')})" in makefile  # the check of the Python version


PIP = """#!/bin/sh
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi
case "$*" in *"pip index"*) sleep "${DELAY:-0}"; exit "${ANSWER:-0}";; *pip*) echo "$*" >>"$LOG";; esac
"""


@pytest.mark.parametrize(
    ("system", "given", "answer", "torch_from"),
    [
        ("Linux", ("NVIDIA=",), "0", "https://download.pytorch.org/whl/cpu --retries 0"),
        ("Linux", ("NVIDIA=",), "1", None),  # refused, or no DNS
        ("Linux", ("NVIDIA=",), "never", None),
        ("Linux", ("NVIDIA=/usr/bin/nvidia-smi",), "0", None),
        ("Darwin", ("NVIDIA=",), "0", None),  # PyPI's torch for macOS has no CUDA
        ("Linux", ("NVIDIA=", "TORCH_INDEX=https://pypi.org/simple"), "never", "https://pypi.org/simple"),
    ],
)
def test_make_takes_torch_without_cuda_if_there_is_no_driver_and_its_index_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, given: tuple[str, ...], answer: str, torch_from: str
) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for name, script in (("python", PIP), ("uname", f"#!/bin/sh\necho {system}\n")):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("DELAY" if answer == "never" else "ANSWER", "60" if answer == "never" else answer)
    started = time.monotonic()
    command = ["make", "--silent", "install", f"PYTHON={tmp_path}/python", "VENV=new", *given]
    subprocess.run(command, cwd=tmp_path, check=True, env={k: v for k, v in os.environ.items() if k != "TORCH_INDEX"})
    assert time.monotonic() - started < 20  # limit for an index that never answers
    *torch, everything = (tmp_path / "log").read_text().splitlines()
    common = "-m pip install --no-compile"
    assert torch == ([f"{common} --no-deps -c constraints.txt torch --index-url {torch_from}"] if torch_from else [])
    assert everything == f"{common} -c constraints.txt -e .[test]"  # with all pins, including torch's


def test_workflow_tests_every_python_by_actions_that_cannot_change() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    pythons = yaml.safe_load(text)["jobs"]["test"]["strategy"]["matrix"]["python"]
    known = SpecifierSet(PYPROJECT["requires-python"])
    assert pythons == [f"3.{minor}" for minor in range(30) if f"3.{minor}" in known]
    assert text.count("uses:") == len(re.findall(r"uses: [\w/-]+@[0-9a-f]{40}  # v\d", text))
