"""CRIU for the tests of this folder, or why there is none."""

from pathlib import Path

import pytest

from ebbtide.helper.criu.criu_program import Criu
from tests.criu import criu_or_skip


@pytest.fixture(scope="session")
def criu() -> Criu:
    """One that works here; tests that need it are skipped, with the reason, where none does."""
    return criu_or_skip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that only we can write in, as images want it."""
    tmp_path.chmod(0o700)
    return tmp_path.resolve()
