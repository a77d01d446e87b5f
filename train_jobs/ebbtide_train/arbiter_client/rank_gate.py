"""A rank's gate to the arbiter: a thread that sends the rank's latest report and keeps the latest directive.

The train loop never waits for it. An arbiter that is away only means that nothing new is heard.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from ebbtide.client.messages import DesiredState, JobDirective, RankPhase, RankReport
from ebbtide_train.arbiter_client.link import Link
from ebbtide_train.arbiter_client.report_numbers import ReportNumbers

RANK_ZERO_EVERY_S = 0.1  # the gang follows rank 0's word: this bounds how long a directive takes to arrive
OTHERS_EVERY_S = 0.25

_logger = logging.getLogger(__name__)


class RankGate:
    """See ``session.gate.Gate``."""

    def __init__(
        self,
        link: Link,
        *,
        rank: int,
        where: Callable[[], str] = lambda: "",
        on_begin: Callable[[], object] = lambda: None,
    ) -> None:
        """``where``: in which line of the author's code this rank stands; asked until it begins, which is told."""
        self._on_begin = on_begin
        self._link = link
        self._where = where
        self._begun = False
        self._left: JobDirective | None = None  # by which it was told to leave before it began
        self._every_s = RANK_ZERO_EVERY_S if rank == 0 else OTHERS_EVERY_S
        self._changed = threading.Condition()
        self._urgent = False
        self._latest: RankReport | None = None
        self._version = 0  # of the latest report
        self._heard_version = 0  # of the last report that was answered
        self._directive: JobDirective | None = None
        self._epoch = 0  # highest lease epoch heard
        self._closed = False
        self._sequence = ReportNumbers()
        self._thread = threading.Thread(target=self._talk, name="rank-gate", daemon=True)
        self._thread.start()

    def directive(self) -> JobDirective | None:
        """The latest directive known."""
        return self._directive

    def report(self, report: RankReport) -> None:
        """Send this from now on; at once if the rank's phase or what it has carried out is new."""
        with self._changed:
            last, self._latest = self._latest, report
            self._version += 1
            if last is None or _stands(last) != _stands(report):
                self._urgent = True
                self._changed.notify_all()

    def begin(self) -> DesiredState:
        """This rank is about to run its first step; see `Gate.begin`.

        From here on it leaves at a safe point. Until here it may be ended at any moment, and no step is lost: so once
        it has said that it was told to leave, it must never begin.
        """
        with self._changed:
            if self._left is not None:  # guard: a rank that was told to leave before it began never begins
                return self._left.want
            self._begun = True
        self._on_begin()
        return DesiredState.RUN

    def close(self, *, flush_s: float) -> bool:
        """End; before that, wait at most ``flush_s`` until the last report was answered. Returns whether it was."""
        deadline_s = time.monotonic() + flush_s
        with self._changed:
            self._urgent = True
            self._changed.notify_all()
            # guard: a last report is answered before the rank ends
            while self._heard_version < self._version and (left_s := deadline_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            self._closed = True
            self._changed.notify_all()
            return self._heard_version == self._version  # guard: an answer counts for the report that it answers

    def _talk(self) -> None:
        while self._wait_turn():
            try:
                self._exchange()
            # The outermost loop of this thread: the report stays the latest and is sent again, the directive stays
            # the last one heard. Without this line one bad answer would cut the rank off for good.
            except Exception:
                _logger.exception("report to the arbiter failed; the next one follows")

    def _wait_turn(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._urgent or self._closed, timeout=self._every_s)
            self._urgent = False
            return not self._closed

    def _exchange(self) -> None:
        with self._changed:
            report, version = self._latest, self._version
            begun, left = self._begun, self._left
        if report is None:
            return
        if left is not None:
            report = replace(report, phase=RankPhase.STOPPED, directive=max(report.directive, left.number))
        elif not begun:
            report = replace(report, stands_at=self._where())
        answer: JobDirective | None = self._link.call("report_rank", replace(report, seq=self._sequence.next()))
        if answer is None:
            return
        with self._changed:
            self._heard_version = version
            self._changed.notify_all()
            self._take(answer)

    def _take(self, answer: JobDirective) -> None:
        epoch = answer.lease.epoch if answer.lease is not None else self._epoch
        if (
            epoch < self._epoch  # guard: a late answer of a replaced arbiter is dropped by its epoch
            # guard: a late answer of a replaced arbiter is dropped by its number
            or (self._directive is not None and answer.number < self._directive.number)
        ):
            return  # late, or from an arbiter that has been replaced
        self._epoch = epoch
        self._directive = answer
        # guard: a rank that has not begun is told to leave at once
        if not self._begun and self._left is None and answer.want in (DesiredState.STOP, DesiredState.CANCEL):
            self._left, self._urgent = answer, True


def _stands(report: RankReport) -> tuple[object, ...]:
    return report.phase, report.directive, report.lease_epoch, report.park_refused
