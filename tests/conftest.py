"""Fixtures shared by all tests. Real corpora are optional: without EDP_LAB_DATA their tests are skipped by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real corpora (``EDP_LAB_DATA``); the test is skipped where there is none."""
    folder = os.environ.get("EDP_LAB_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the real corpora: set EDP_LAB_DATA to their folder")
    return Path(folder).resolve()
