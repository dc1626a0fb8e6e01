"""A wheel carries the course: built, installed where there is no checkout, and used as a reader uses it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("edp_lab", "data", "notebooks", "docs", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
BESIDE = (
    "CITATION.cff",
    "CONTRIBUTING.md",
    "Dockerfile",
    "Makefile",
    "constraints.txt",
    "environment.yml",
    "pylock.toml",
)
BUILD = "from setuptools import build_meta as b; b.build_wheel('dist'); print(b.build_sdist('dist'))"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
JUPYTER = Path(sys.prefix) / "share/jupyter"  # Lab's own files: in a real installation beside the wheel
OPTIONS = ["--no-browser", "--allow-root", "--IdentityProvider.token=t"]
COMMANDS = {  # and what each prints
    "python -c print(__import__('edp_lab').__file__)": "/environment0/lib/",
    "edp-lab data list": "smart-home",
    "edp-lab train --corpus smart-home --size small --epochs 1 --method sgd --out runs/plain": "runs/plain",
    "edp-lab compare runs/plain": "smart-home",
    "edp-lab account --z0 1 --epochs 3": "epsilon",
    "edp-lab reproduce table1 --models clc --corpora atis": "24 of 24 runs are done, 24 of them came with",
    "edp-lab course solutions": "edp-lab-solutions",
    "edp-lab course run 04": "runs/course/index.html",
}


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file; what Python and numba compile is theirs."""
    found = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel of the checkout, and the one of its source distribution."""
    source, again = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("again")
    subprocess.run(["cp", "-r", *(ROOT / part for part in PARTS + BESIDE), source], check=True)
    (source / "data/fetched").mkdir()
    (source / "data/fetched/seq.in").touch()  # what was fetched into a checkout is not ours to give away
    built = subprocess.run([sys.executable, "-c", BUILD], cwd=source, check=True, capture_output=True, text=True)
    packed = source / "dist" / built.stdout.split()[-1]
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", again, packed], check=True)
    return next(source.glob("dist/*.whl")), next(again.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; what that needs is found in this one, whose own edp_lab comes second."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    python = folder / "bin/python"
    subprocess.run([*PIP, "--python", python, "install", "--no-deps", wheels[0]], check=True)
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return site


@pytest.fixture(scope="module")
def variables(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A reader's, who has no checkout and no network."""
    home, nowhere = tmp_path_factory.mktemp("home"), "http://127.0.0.1:9"
    commands = f"{installed.parents[2] / 'bin'}{os.pathsep}{os.defpath}"
    own = {"PATH": commands, "HOME": str(home), "OMP_NUM_THREADS": "1", "http_proxy": nowhere, "https_proxy": nowhere}
    return own | {"JUPYTER_PATH": str(JUPYTER), "JUPYTERLAB_DIR": str(JUPYTER / "lab")}


def test_source_distribution_builds_the_same_wheel(wheels: tuple[Path, Path]) -> None:
    contents = [{entry.filename: entry.CRC for entry in ZipFile(wheel).infolist()} for wheel in wheels]
    names = [name for name in contents[0] if not name.endswith("RECORD")]
    assert {name: contents[1].get(name) for name in names} == {name: contents[0][name] for name in names}
    assert contents[0].keys() == contents[1].keys()
    ours = [path for path in (ROOT / "edp_lab").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {str(path.relative_to(ROOT)) for path in ours} <= contents[0].keys()
    assert not [name for name in names if "fetched" in name or "__pycache__" in name]


def test_links_of_the_readme_lead_somewhere_in_the_source_distribution(wheels: tuple[Path, Path]) -> None:
    with tarfile.open(next(wheels[0].parent.glob("*.tar.gz"))) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    links = re.findall(r"\]\((?!http)([^)#\s]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert {"docs/install.md", "docs/images/promise.svg", "CONTRIBUTING.md"} <= set(links) <= names
    assert names.issuperset(BESIDE)


def test_wheel_is_enough(installed: Path, variables: dict[str, str], tmp_path: Path) -> None:
    before = files(installed)
    for command, printed in COMMANDS.items():
        ended = subprocess.run(command.split(), cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert (ended.returncode, printed in ended.stdout + ended.stderr) == (0, True), (command, ended)
    assert files(installed) == before


def test_lab_opens_on_a_copy_of_the_readers_own(installed: Path, variables: dict[str, str], tmp_path: Path) -> None:
    before, work = files(installed), tmp_path / "edp-lab-course"
    work.mkdir()
    (work / "00_start.ipynb").write_text("my work")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["edp-lab", "course", "lab", *OPTIONS, f"--ServerApp.port={port}"]
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.DEVNULL) as lab:
        try:
            listed = wait_for(f"http://127.0.0.1:{port}/api/contents?token=t")
        finally:
            lab.send_signal(signal.SIGTERM)
    names = {item["name"] for item in listed["content"]}
    assert {"00_start.ipynb", "11_claims.ipynb", "glossary.md", "images"} <= names
    assert not {"solutions"} & names
    assert (work / "00_start.ipynb").read_text() == "my work"
    assert files(installed) == before


def wait_for(address: str) -> dict[str, Any]:
    for _ in range(600):
        with suppress(URLError), urlopen(address) as answer:
            return json.load(answer)
        time.sleep(0.1)
    raise TimeoutError(address)
