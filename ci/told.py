"""A pytest plugin (``-p ci.told``) that writes down what is tested while it is tested.

Each line of the file named by ``CI_TOLD`` is a JSON object: ``{"ids": [...]}`` once, ``{"start": id}`` and
``{"end": id, "outcome": ..., "seconds": ...}`` for each test. A pytest that is killed has told what it did until then.
With xdist the process that distributes the tests writes, and the workers do not.
"""

import json
import os
from collections.abc import Sequence
from typing import Any, TextIO

import pytest

FILE = "CI_TOLD"


class Told:
    """Writes the file; registered in the process that prints."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._ids: set[str] = set()
        self._outcomes: dict[str, str] = {}
        self._seconds: dict[str, float] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """What this process itself is to test."""
        self._list([item.nodeid for item in session.items])

    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        """What a worker of xdist has found: each finds the same."""
        self._list(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._tell(start=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended: the worst of the three counts."""
        before = self._outcomes.get(report.nodeid, "passed")
        self._outcomes[report.nodeid] = before if before == "failed" or report.passed else report.outcome
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended."""
        outcome, seconds = self._outcomes.pop(nodeid, "failed"), self._seconds.pop(nodeid, 0.0)
        self._tell(end=nodeid, outcome=outcome, seconds=round(seconds, 3))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be collected is a failed test of its own."""
        if report.failed:
            self._tell(end=report.nodeid, outcome="failed", seconds=0.0)

    def _list(self, ids: Sequence[str]) -> None:
        if new := [name for name in ids if name not in self._ids]:
            self._ids.update(new)
            self._tell(ids=new)

    def _tell(self, **what: Any) -> None:
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()


def pytest_configure(config: pytest.Config) -> None:
    """Write in the process that prints; workers of xdist have an input from it."""
    if FILE in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Told(open(os.environ[FILE], "a")), "ci.told.file")  # noqa: SIM115 - until the end
