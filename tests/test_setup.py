"""One install: pyproject.toml (ranges), constraints.txt (pins), environment.yml and the README agree."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

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


def test_torch_is_pinned_to_the_version_asked_for_without_a_build_tag() -> None:
    assert str(PINS["torch"]) == "2.13.0"


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
    assert "-m pip install -c constraints.txt -e '.[test]'" in makefile
    for target in ("course", "test", "lab"):
        recipe = re.search(rf"^{target}: \$\(INSTALLED\).*\n((?:\t.+\n)+)", makefile, re.MULTILINE)
        assert recipe
        assert len(recipe[1].splitlines()) == 1
    for bound in re.findall(r"\d\.\d+", PYPROJECT["requires-python"]):
        assert f"({bound.replace('.', ', ')})" in makefile  # the check of the Python that make finds


def code_of(text: str) -> list[str]:
    """The lines of blocks, fenced or indented, and the inline code of a Markdown text."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```[^\n]*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks += re.findall(r"^    (.*\n)", rest, re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines() + re.findall(r"`([^`]+)`", rest)
    return [line.split(" #")[0].strip() for line in lines]


def test_readme_mentions_only_make_targets_and_commands_that_exist() -> None:
    from typer.main import get_command

    from edp_lab.cli import app

    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "data/results/README.md")]
    code = [line for text in texts for line in code_of(text)]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    made = {match[1] for line in code if (match := re.search(r"(?<!data )\bmake (?:[A-Z_]+=\S+ )*([a-z]+)", line))}
    assert {"course", "test", "lab"} <= made <= targets

    called = [shlex.split(line[line.index("edp-lab ") :])[1:] for line in code if "edp-lab " in line]
    assert ["course", "run"] in called
    for words in called:
        check_command(get_command(app), words)


def check_command(command: Any, words: list[str]) -> None:
    """Fail where ``words`` name a sub-command or an option that ``command`` does not have."""
    trail = "edp-lab"
    while hasattr(command, "commands") and words and re.fullmatch(r"[a-z][a-z0-9-]*", words[0]):
        name, *words = words
        assert name in command.commands, f"README: `{trail} {name}` does not exist"
        command, trail = command.commands[name], f"{trail} {name}"
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in options | {"--help"}, f"README: `{trail}` has no option {word}"


def test_readme_check_notices_what_does_not_exist() -> None:
    from typer.main import get_command

    from edp_lab.cli.course import course_app

    command = get_command(course_app)
    check_command(command, ["run", "00_start", "--mode", "full"])
    for words in (["walk"], ["run", "--speed", "2"]):
        with pytest.raises(AssertionError, match="README"):
            check_command(command, words)
