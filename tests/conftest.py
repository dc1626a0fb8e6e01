"""Fixtures shared by all tests. Tests that need the real corpora are skipped unless EDP_LAB_DATA is set."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; the other cores run other tests
os.environ["COLUMNS"] = "500"  # makes output independent of the terminal's width
settings.register_profile("patient", deadline=None, max_examples=40)  # other programs may be using the machine
settings.load_profile("patient")
LONGEST = (  # each takes at least a minute; they start first, so that no core waits for one at the end
    "course/test_browser.py",
    "test_notebooks.py",
    "training/test_faults.py",
    "cli/test_machine_faults.py",
    "course/test_run.py",
    "test_wheel.py",
    "training/test_launch.py",
    "training/test_two_machines.py",
    "attacks/test_membership.py",
    "training/test_processes.py",
    "course/test_contract.py",
    "reproduce/test_table2.py",
    "attacks/test_shadows.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by file, with the files of `LONGEST` first; remove tests marked "long" unless EDP_LAB_LONG is 1."""
    if os.environ.get("EDP_LAB_LONG") != "1":
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> None:
    """Handle Ctrl-C also if the suite runs in the background, where shells make jobs and their children ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Use one torch thread, for modules that need a fixed order of sums or measure times."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real corpora (``EDP_LAB_DATA``); the test is skipped if it is missing."""
    folder = os.environ.get("EDP_LAB_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the real corpora: set EDP_LAB_DATA to their folder")
    return Path(folder).resolve()


@pytest.fixture
def cli(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run ``edp-lab ARGS``; returns (exit status, stdout, stderr)."""

    from edp_lab.__main__ import main

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["edp-lab", *arguments])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def output_of(cli) -> Callable[..., tuple[str, str]]:
    """Run ``edp-lab ARGS``, which must exit with `status`; returns (stdout, stderr)."""

    def run(*arguments: str, status: int = 0) -> tuple[str, str]:
        ended, out, err = cli(*arguments)
        assert ended == status, err
        return out, err

    return run
