"""Every k-th of many cases, in a run that has no time for all: which ones follows from the day, so all have their turn.

``TESTS_TURN=n`` takes those of day ``n`` again; what failed says which that was. The hunts take all.
"""

import os
import time
from collections.abc import Collection, Sequence
from typing import TypeVar

import pytest

Case = TypeVar("Case")
DAY_S = 86_400

SHORT_AND_WHOLE = [pytest.param(3, id="every third"), pytest.param(1, id="all", marks=pytest.mark.hunt)]
"""For `parametrize`: the short form with every third case, and the whole one as a part of a hunt."""


def turn() -> int:
    """The number of today's turn."""
    return int(os.environ.get("TESTS_TURN") or time.time() // DAY_S)


def every(share: int, cases: Sequence[Case], *, always: Collection[Case] = ()) -> list[Case]:
    """Each ``share``-th of ``cases``, from today's on, and those that a test cannot do without."""
    return [case for number, case in enumerate(cases) if case in always or (number - turn()) % share == 0]


def said(share: int) -> str:
    """For a table: which cases are in it."""
    return "all" if share == 1 else f"every {share}th of them, TESTS_TURN={turn()}"
