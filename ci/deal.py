"""A pytest plugin (``-p ci.deal``): in which order files of tests are dealt to the workers of xdist.

The tests of a file go to one worker: they share its imports and fixtures. Half of the workers begin with the files that
take longest, so that none of those comes last and keeps one worker busy alone. The others begin with the shortest: if
all had tests of gangs and engines at once, these would wait for each other longer than they allow. How long files take
is on record (`ci.usual`); a new one counts as short.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from ci import usual


class FromBothEnds(LoadScopeScheduling):  # type: ignore[misc] # xdist comes without types
    """Whole files, by ``files_s``, their durations on record."""

    def __init__(self, config: pytest.Config, log: Any, files_s: Mapping[str, float]) -> None:
        super().__init__(config, log)
        self._files_s = files_s

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        """The next file for a worker is the first in the queue: that is the longest or the shortest one here."""
        pick = max if self.nodes.index(node) % 2 == 0 else min
        file = pick(self.workqueue, key=lambda name: self._files_s.get(name, 0.0))
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FromBothEnds:
    """Asked by xdist, in the process that deals."""
    return FromBothEnds(config, log, usual.load().files_s)
