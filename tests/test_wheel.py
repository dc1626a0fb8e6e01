"""The wheel contains the course: it is built, installed without a checkout, and used as by a reader."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
COMMANDS = {  # and the output of each
    "python -c print(__import__('edp_lab').__file__)": "/environment0/lib/",
    "edp-lab data list": "smart-home",
    "edp-lab train --corpus smart-home --size small --epochs 1 --method sgd --out runs/plain": "runs/plain",
    "edp-lab course run 04": "runs/course/index.html",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the files that git tracks."""
    source = tmp_path_factory.mktemp("source")
    subprocess.run(["git", "checkout-index", "-a", f"--prefix={source}/"], cwd=ROOT, check=True)
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", source / "dist", source], check=True)
    return next(source.glob("dist/*.whl"))


def test_wheel_carries_package_notebooks_and_data(wheel: Path) -> None:
    names = {entry.filename for entry in ZipFile(wheel).infolist()}
    carried = {name.removeprefix("edp_lab/_carried/") for name in names}
    for folder in ("edp_lab", "notebooks", "data"):
        listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, check=True, capture_output=True, text=True)
        assert {*listed.stdout.split("\n")[:-1]} <= (names if folder == "edp_lab" else carried)
    assert not [name for name in names if "seq.in" in name or "__pycache__" in name]


def test_wheel_is_enough(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, home = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("home")
    venv.create(folder)
    python = folder / "bin/python"
    subprocess.run([*PIP, "--python", python, "install", "--no-deps", wheel], check=True)
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # dependencies come from this environment
    jupyter, nowhere = Path(sys.prefix) / "share/jupyter", "http://127.0.0.1:9"
    variables = {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.defpath}",
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "JUPYTER_PATH": str(jupyter),
        "http_proxy": nowhere,
        "https_proxy": nowhere,
    }
    for command, printed in COMMANDS.items():
        ended = subprocess.run(command.split(), cwd=home, env=variables, capture_output=True, text=True)
        assert (ended.returncode, printed in ended.stdout + ended.stderr) == (0, True), (command, ended)
