"""Long tests in two parts: some of their cases in `make test`, the others in `make hunts`."""

from collections.abc import Iterable
from typing import Any

import pytest


def spread(cases: Iterable[Any], *, short: int = 1) -> list[Any]:
    """The first ``short`` of ``cases`` for every run, the others marked as part of a hunt; for `parametrize`."""
    return [case if number < short else pytest.param(case, marks=pytest.mark.hunt) for number, case in enumerate(cases)]
