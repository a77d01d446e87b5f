"""What people ask for: done when it is journaled, refused with the reason while the ledger hangs.

Every method waits, but not for ever, and raises ValueError, which the command prints: it cannot be done, and nothing
was changed; or the ledger does not answer. Called from many threads.
"""

import time
from collections.abc import Callable
from typing import Any

from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.config.suggestions import did_you_mean
from ebbtide.pool.events import (
    Body,
    CancelJob,
    JobHeld,
    JobReleased,
    NodeDraining,
    NodeUndrained,
    PoolFrozen,
    PoolUnfrozen,
)
from ebbtide.pool.ids import EndpointName, JobName, NodeId, SeatId
from ebbtide.pool.rules.record_retention import may_come_back
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.control.config_in_force import ConfigInForce
from ebbtide_autoscaler.control.inbox import Inbox
from ebbtide_autoscaler.control.published import Published
from ebbtide_autoscaler.journal.ledger_session import LedgerSession
from ebbtide_autoscaler.service.pool_view import held

TAKE_S = 5.0  # what a person asks for is journaled within milliseconds, or the ledger hangs


def _is_over(state: PoolState, name: JobName) -> bool:
    return name not in state.jobs or state.jobs[name].state is JobState.ENDED


def _is_held(job: JobRecord, off_node: bool) -> bool:
    """As somebody wants it."""
    return job.held is not None and (job.held.off_node or not off_node)


def _not_a_job(state: PoolState, name: str) -> str:
    """What somebody has named who meant a job."""
    if EndpointName(name) in state.endpoints or SeatId(name) in state.seats:
        return (
            f"{name} is {'a replica' if '/' in name else 'an endpoint'}, no job: its replicas come and go with demand"
        )
    meant = did_you_mean(name, state.jobs)
    return f"the pool knows no job {name}{f'; {meant}' if meant else ''}"


def must_be_open(ledger: LedgerSession, published: Published) -> None:
    """Raise ValueError for a person if the ledger has not been read and is not within some seconds."""
    if not ledger.wait_opened():  # guard: a person is told that the ledger is not open
        raise ValueError(f"the arbiter has not read its ledger yet, nothing was changed: {published.frozen}")


class OperatorService:
    """For the people who operate one pool."""

    def __init__(
        self,
        published: Published,
        inbox: Inbox,
        file: ConfigInForce,
        ledger: LedgerSession,
        forget_submission: Callable[[JobName], None],
    ) -> None:
        """Args:
        forget_submission: has what was kept of a job's submission removed; returns at once.
        """
        self._published, self._inbox, self._file, self._ledger = published, inbox, file, ledger
        self._forget_submission = forget_submission

    def cancel(self, name: JobName, reason: str) -> dict[str, Any]:
        """End a job at its next safe point; one whose driver was lost is over at once, and is not submitted again.

        Returns:
            ``changed``: False, it is over, or being cancelled, already.

        Raises:
            ValueError: the pool knows no such job, or the ledger does not answer.
        """
        must_be_open(self._ledger, self._published)
        known = self._published.state.jobs.get(name)
        if known is None:
            raise ValueError(_not_a_job(self._published.state, name))
        lost = known.state is JobState.ENDED and known.outcome.startswith("lost:")
        if lost:
            if not known.cancelled:
                self._take(CancelJob(name, reason), lambda state: state.jobs[name].cancelled)
            self._forget_submission(name)
        elif known.state is not JobState.ENDED and not known.cancelled:
            self._inbox.submit(CancelJob(name, reason))
        return {"changed": not known.cancelled and (lost or known.state is not JobState.ENDED)}

    def cancel_submission(self, name: JobName, incarnation: str, reason: str) -> None:
        """End a job because its driver was told to stop.

        A driver that was silent for too long is stopped by the pool itself, which then submits the job again: what such
        a driver asks for is not its author's wish.

        Raises:
            ValueError: that submission is over, or was lost.
        """
        known = self._published.state.jobs.get(name)
        if (
            known is None
            or known.incarnation != incarnation
            or known.state is JobState.ENDED  # guard: a driver that was lost cancels nothing
        ):
            raise ValueError(f"this submission of job {name} is over already")
        self.cancel(name, reason)

    def hold(self, name: JobName, reason: str, by: str, *, off_node: bool = False) -> dict[str, Any]:
        """Have a job step aside at its next safe point and stay there until :meth:`release`; outlives the arbiter.

        Args:
            name: of the job.
            reason, by: shown to whoever wonders.
            off_node: nothing of it shall stay in memory; also of one that is held already.

        Returns:
            ``changed``: False, it was held already, and who did so stays; ``held``: who, why, since when.

        Raises:
            ValueError: no such job lives, it is being cancelled, the pool only observes, or the ledger does not answer.
        """
        must_be_open(self._ledger, self._published)
        if _is_held(self._living(name, "park"), off_node):
            return self._holder(name, changed=False)
        self._must_manage()
        self._take(
            JobHeld(name, by, reason, off_node),
            lambda state: _is_over(state, name) or _is_held(state.jobs[name], off_node),
        )
        # guard: a job that ends while it is asked for is told of at once
        self._living(name, "park")  # it may have ended at this very moment
        return self._holder(name, changed=True)

    def release(self, name: JobName, by: str) -> dict[str, Any]:
        """Let a held job have slots again, one that was lost and is to come back too. Same answer, same errors."""
        must_be_open(self._ledger, self._published)
        known = self._published.state.jobs.get(name)
        if known is None or known.held is None:
            self._living(name, "resume")
            return self._holder(name, changed=False)
        self._must_manage()

        def released(state: PoolState) -> bool:
            return name not in state.jobs or state.jobs[name].held is None

        self._take(JobReleased(name, by), released)
        return self._holder(name, changed=True)

    def _living(self, name: JobName, wish: str) -> JobRecord:
        state = self._published.state
        known = state.jobs.get(name)
        if known is None:
            raise ValueError(_not_a_job(state, name))
        if known.state is JobState.ENDED and may_come_back(known):
            raise ValueError(f"job {name} was {known.outcome}; if the pool brings it back, {wish} it then")
        if known.state is JobState.ENDED:  # guard: what is no living job is refused
            raise ValueError(f"job {name} is over ({known.outcome.splitlines()[0]}): there is nothing to {wish}")
        if known.cancelled:
            raise ValueError(f"job {name} is being cancelled: there is nothing to {wish}")
        return known

    def _must_manage(self) -> None:
        if self._file.mode is PoolMode.OBSERVE:  # guard: a pool that only observes takes no hold
            raise ValueError("the pool only observes and moves no job: write `mode: manage` and run `ebbtide up` first")

    def _holder(self, name: JobName, *, changed: bool) -> dict[str, Any]:
        known = self._published.state.jobs.get(name)
        return {"changed": changed, "held": held(known.held if known is not None else None)}

    def freeze(self, reason: str) -> dict[str, Any]:
        """Stop all decisions until :meth:`unfreeze`; outlives a restart of the arbiter.

        Returns:
            ``changed``: False, it was frozen already; ``frozen``: why, the first reason stays.

        Raises:
            ValueError: the ledger does not answer.
        """
        must_be_open(self._ledger, self._published)
        was = self._published.state.frozen
        if not was:
            self._take(PoolFrozen(reason), lambda state: bool(state.frozen))
        return {"changed": not was, "frozen": was or reason}

    def unfreeze(self) -> dict[str, Any]:
        """Decide again; ``changed``: False, no person had frozen the pool. Same errors."""
        must_be_open(self._ledger, self._published)
        was = self._published.state.frozen
        if was:
            self._take(PoolUnfrozen(), lambda state: not state.frozen)
        return {"changed": bool(was)}

    def close(self, by: str, for_s: float) -> dict[str, Any]:
        """Have every job publish its checkpoint and leave, and grant nothing: the pool is about to be taken down.

        It is in no ledger: it holds for ``for_s`` seconds unless it is said again, so that a pool whose `ebbtide down`
        was killed goes on by itself.

        Returns:
            ``changed``: False, it was so already.
        """
        return {"changed": self._inbox.close(f"the pool is being taken down by {by}", for_s)}

    def reopen(self) -> dict[str, Any]:
        """Grant again: the pool stays up; ``changed``: False, it was not being taken down."""
        return {"changed": self._inbox.reopen()}

    def drain(self, node: NodeId, reason: str) -> dict[str, Any]:
        """Have everything leave a node, in good order, and grant nothing there.

        Returns:
            ``changed``: False, it was draining already; a new ``reason`` counts all the same.

        Raises:
            ValueError: the pool has no such node, or the ledger does not answer.
        """
        must_be_open(self._ledger, self._published)
        state = self._published.state
        if node not in state.nodes:
            raise ValueError(f"node {node} is not in the pool")
        if state.draining.get(node) != reason:
            self._take(NodeDraining(node, reason), lambda state: state.draining.get(node) == reason)
        return {"changed": node not in state.draining}

    def undrain(self, node: NodeId) -> dict[str, Any]:
        """Use a node again; ``changed``: False, it was not draining. Same errors as `drain`."""
        must_be_open(self._ledger, self._published)
        state = self._published.state
        if node not in state.nodes and node not in state.draining:
            raise ValueError(f"node {node} is not in the pool")
        if node in state.draining:
            self._take(NodeUndrained(node), lambda state: node not in state.draining)
        return {"changed": node in state.draining}

    def _take(self, body: Body, holds: Callable[[PoolState], bool]) -> None:
        """Submit what a person asked for and wait, but not for ever, until the ledger has it."""
        self._inbox.submit(body)
        deadline_s = time.monotonic() + TAKE_S
        while not holds(self._published.state):
            if time.monotonic() > deadline_s:
                withdrawn = self._inbox.withdraw(body)
                why = self._published.frozen or "the arbiter is busy"
                left = "nothing was changed" if withdrawn else "it comes into force if the ledger takes it after all"
                raise ValueError(f"not journaled within {TAKE_S:g} s: {why}; {left}")
            time.sleep(0.02)
