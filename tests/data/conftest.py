"""Fixtures of the data tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder of the real corpora, which are not part of the project; skip the test without it."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("PHMCTL_REAL_DATA", beside))
    if not folder.is_dir():
        pytest.skip("no real data")
    return folder
