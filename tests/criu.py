"""CRIU for tests of process images: a reason to skip where none works, and a failure where one has to.

CI sets `MUST`: there a test that skips would hide what it is for.
"""

import os
from pathlib import Path

import pytest

from ebbtide.helper.criu.criu_program import Criu, NoCriu, find

MUST = "TESTS_MUST_HAVE_CRIU"
ROOT = Path(__file__).parents[1]


def criu_or_skip() -> Criu:
    """One that works here; the test is skipped where there is none, or fails if the environment says `MUST`."""
    found = find(os.environ, ROOT)
    if isinstance(found, Criu):
        return found
    assert isinstance(found, NoCriu)
    if os.environ.get(MUST):
        pytest.fail(f"{MUST} is set, and CRIU cannot run here: {found.why}")
    pytest.skip(f"CRIU cannot run here: {found.why}")
