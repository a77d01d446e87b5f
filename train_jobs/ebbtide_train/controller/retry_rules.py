"""Whether a gang that failed is tried again. Pure.

Retries are for machines: what a machine does is tried again until it happens too often without progress
(``failure_limit``). A failure of the author's code ends the job at once where another try can only repeat it: of a
kind that never changes, before the first step that this submission finishes, or the same at the same step again.
"""

import re
from collections.abc import Mapping

from ebbtide_train.controller.failure_causes import CONTROLLER, ProcessDied, culprits, kind, told
from ebbtide_train.controller.failure_kinds import MACHINE, Kind
from ebbtide_train.controller.failure_limit import FailureLimit
from ebbtide_train.worker.rank_failure import RankFailed

# What differs between two failures that are the same: numbers, addresses, names of temporary files.
_VARIES = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+|/tmp/\S+", re.IGNORECASE)

Signature = tuple[str, str, str, int]  # type, words, place, step


class RetryRules:
    """Those of one submission of a job."""

    def __init__(self, max_failures: int, *, finished: int = 0, proven: bool = False) -> None:
        """``finished``: steps that gangs before this run have reached; ``proven``: this very code has trained then."""
        self._limit = FailureLimit(max_failures, finished=finished)
        self._before = finished
        self._trained = proven
        self._seen: set[Signature] = set()

    def give_up(self, found: Mapping[int, BaseException], finished: int) -> str:
        """Why the job is to end, now that a gang failed after ``finished`` steps of it; empty: it is tried again.

        Args:
            found: what went wrong, by rank.
            finished: steps of the job, over its whole life.
        """
        too_often = self._limit.failed(finished)
        blamed = {rank: found[rank] for rank in culprits(found)}
        failures = [told(cause) for cause in blamed.values() if not isinstance(cause, ProcessDied)]
        # guard: a job that has trained is told from one that never did
        self._trained = self._trained or finished > self._before or any(one.steps_here for one in failures)
        # What the controller itself meets is Ray Train's work, not the author's, unless it cannot import the function.
        kinds = {rank: kind(cause) for rank, cause in blamed.items()}
        mine = [told(blamed[rank]) for rank, of in kinds.items() if rank != CONTROLLER and of not in MACHINE]
        if Kind.NEVER in kinds.values():  # guard: what no machine can change ends the job at once
            return "another try can only end alike"
        if mine and not self._trained:  # guard: a failure before the first step ends the job at once
            return "it failed before its first step"
        now = {_signature(failure) for failure in mine}
        again = now & self._seen
        self._seen |= now
        if again:  # guard: the same failure at the same step again ends the job
            return f"it failed alike at step {next(iter(again))[-1]} before"
        return "it failed too often without progress (max_failures)" if too_often else ""


def _signature(failure: RankFailed) -> Signature:
    raised = failure.raised
    return raised.types[0], _VARIES.sub("#", raised.message), raised.place, failure.step
