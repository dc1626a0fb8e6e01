"""One JupyterLab with all notebooks, and a Chromium for each module of browser tests, skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edp_lab.course import browser as browsing

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(scope="module")
def browser() -> Iterator[browsing.Chrome]:
    """A headless Chromium, for one module only: what a page says late must not be laid at another's door."""
    if problem := browsing.missing():
        pytest.skip(problem)
    with browsing.chromium() as driver:
        yield driver


@pytest.fixture(scope="session")
def lab() -> Iterator[str]:
    """The address of a JupyterLab on copies of all notebooks."""
    with browsing.jupyterlab(NOTEBOOKS) as address:
        yield address
