"""A pytest plugin (``-p ci.deal``): how tests are dealt to the workers of xdist, the longest first.

The tests of a file go to one worker, one after the other: they share its imports and fixtures. A file that takes long
would keep one worker busy while the others have nothing left to do, so its tests are dealt singly, unless they share a
fixture of the whole module or what a function remembers. How long files take is on record (`ci.usual`); a new one
counts as short.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from ci import usual

ROOT = Path(__file__).parents[1]
LONG_S = 10.0  # on a quiet machine
SHARED = ('scope="module"', "@cache")


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc] # xdist comes without types
    """Files or single tests, in the order of what is left of ``files_s``, their durations on record."""

    def __init__(self, config: pytest.Config, log: Any, files_s: Mapping[str, float]) -> None:
        super().__init__(config, log)
        self._files_s = files_s
        self._singly = {name for name, seconds in files_s.items() if seconds > LONG_S and not _shares(ROOT / name)}

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in self._singly else file

    def _assign_work_unit(self, node: Any) -> None:
        """The next unit for a worker; before the first, they are put in order."""
        if not any(self.assigned_work.values()):
            longest = sorted(self.workqueue, key=lambda unit: -self._files_s.get(unit.partition("::")[0], 0.0))
            for unit in longest:
                self.workqueue.move_to_end(unit)
        super()._assign_work_unit(node)


def _shares(path: Path) -> bool:
    if not path.exists():
        return True
    text = path.read_text()
    return any(word in text for word in SHARED)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    """Asked by xdist, in the process that deals."""
    return LongestFirst(config, log, usual.load().files_s)
