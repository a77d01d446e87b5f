"""What comes in to the arbiter: the last report of each process, and facts that were submitted.

The actor's threads write here, and its loop reads; what is news wakes the loop. Every field is a plain dict whose
entries are replaced whole, so that a reader sees either the old or the new report.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from secrets import token_hex
from typing import Protocol, TypeVar

from ebbtide.client.messages import (
    AgentAnswer,
    AgentReport,
    ControllerReport,
    GatewayReport,
    LimitShare,
    RankReport,
    ReplicaPhase,
    ReplicaReport,
)
from ebbtide.pool.events import Body
from ebbtide.pool.ids import JobName, NodeId, SeatId, SlotId
from ebbtide.pool.state import PoolState
from ebbtide.system.code_digest import code_digest
from ebbtide_autoscaler.control.fence_table import FenceTable
from ebbtide_autoscaler.core.observe.observation import Observation, Timestamped
from ebbtide_autoscaler.core.observe.settling import looked_too_early
from ebbtide_autoscaler.process.steady_clock import clock

GATEWAY_PRESENT_S = 3.0  # a gateway reports ten times a second; silent for longer, it takes no share of limits
AWAY_S = 2.0  # without a tick; they come every 0.2 s, and a caller gives a call up after 2 s
UNKNOWN_FORGOTTEN_S = 60.0  # reports of jobs and seats that the ledger does not know (yet); who lives sends another
GATEWAY_FORGOTTEN_S = 60.0  # a gateway that was restarted has a new name; the old one's counts go after this

R = TypeVar("R")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Closing:
    """The word of a command that takes the pool down: good until a time, so that one that is killed holds up nothing.

    Attributes:
        why: who does so, for people.
        until_s: seconds since 1970, by the arbiter's clock.
    """

    why: str
    until_s: float


class Sequenced(Protocol):
    """A report that its sender numbers."""

    @property
    def seq(self) -> int: ...


def timestamped(report: R) -> Timestamped[R]:
    """The report, stamped with the time it came in."""
    return Timestamped(clock.now_s(), report)


def overtaken(last: Timestamped[R] | None, sender: tuple[str, ...], new: Sequenced) -> bool:
    """Whether a later report of the same process has come in before ``new`` (Ray may change their order).

    Args:
        last: the last report taken in.
        sender: names of the fields that together tell one process from another, such as a pid.
        new: a report that may be late; ``seq`` 0: its sender does not count, so nothing is known.
    """
    if last is None or any(getattr(last.report, name) != getattr(new, name) for name in sender):
        return False
    seq: int = getattr(last.report, "seq", 0)
    return 0 < new.seq < seq


def no_one_to_wake() -> None:
    """An inbox that no loop reads."""


@dataclass(slots=True)
class Inbox:
    """What came in.

    Attributes:
        wake: has the next tick come now.
    """

    started_s: float
    wake: Callable[[], None] = no_one_to_wake
    code: str = field(default_factory=code_digest)  # of this arbiter
    arbiter: str = field(default_factory=lambda: token_hex(8))  # a name that no other arbiter has or had
    back_s: float = -inf  # when the arbiter came back from a pause; see :meth:`attend`
    ranks: dict[tuple[JobName, int], Timestamped[RankReport]] = field(default_factory=dict)
    controllers: dict[JobName, Timestamped[ControllerReport]] = field(default_factory=dict)
    replicas: dict[SeatId, Timestamped[ReplicaReport]] = field(default_factory=dict)
    gateways: dict[str, Timestamped[GatewayReport]] = field(default_factory=dict)
    agents: dict[NodeId, Timestamped[AgentReport]] = field(default_factory=dict)
    living: dict[SeatId, tuple[str, ...]] = field(default_factory=dict)
    living_at_s: float = 0.0
    restorable: frozenset[JobName] = frozenset()
    misplaced: dict[SeatId, Timestamped[tuple[SlotId, ...]]] = field(default_factory=dict)
    refused: Mapping[NodeId, str] = field(default_factory=dict)  # nodes that run other code, with why
    gateway_last_s: float = 0.0  # when any gateway was heard last, those forgotten by now included
    submitted: deque[Body] = field(default_factory=deque)  # facts that the next tick takes in
    closing: Closing | None = None
    _attended_s: float = 0.0

    def close(self, why: str, for_s: float) -> bool:
        """Take in that the pool is being taken down, for ``for_s`` seconds; whether that is new."""
        new = not self.closes()
        self.closing = Closing(why, clock.now_s() + for_s)
        if new:
            self.wake()
        return new

    def reopen(self) -> bool:
        """Take in that it is not taken down after all; whether that is new."""
        was = bool(self.closes())
        self.closing = None
        self.wake()
        return was

    def closes(self) -> str:
        """Who takes the pool down; "": none does."""
        word = self.closing
        # guard: the word of a command that takes the pool down runs out
        return word.why if word is not None and clock.now_s() < word.until_s else ""

    def attend(self, now_s: float) -> None:
        """Note that the arbiter's loop runs. After a long pause it has just come back, and nobody else was silent.

        A process that is stopped (SIGSTOP, a machine that is moved or swaps) does not notice it. When it wakes, the
        reports that it has are as old as its pause, and those that came meanwhile are not taken in yet.
        """
        if self._attended_s and now_s - self._attended_s > AWAY_S:
            self.back_s = now_s
        self._attended_s = now_s

    def submit(self, body: Body) -> None:
        """Have a fact taken in at the next tick, which comes now."""
        self.submitted.append(body)
        self.wake()

    def withdraw(self, body: Body) -> bool:
        """Take back what was submitted; False: it is on its way into the ledger already."""
        with contextlib.suppress(ValueError, IndexError):  # not there any more, or changed while we looked
            self.submitted.remove(body)
            return True
        return False

    def take_submitted(self) -> tuple[Body, ...]:
        """All facts submitted so far, in their order; they are gone from here."""
        bodies: list[Body] = []
        while self.submitted:
            bodies.append(self.submitted.popleft())
        return tuple(bodies)

    def forget_job(self, job: JobName) -> None:
        """Forget what an earlier submission of the same name reported."""
        self.controllers.pop(job, None)
        for key in [key for key in self.ranks if key[0] == job]:
            self.ranks.pop(key, None)

    def take_rank(self, report: RankReport) -> None:
        """Take in a rank's word unless it was overtaken."""
        key = (JobName(report.job), report.rank)
        last = self.ranks.get(key)
        # guard: a rank's word that was overtaken is dropped
        if overtaken(last, ("incarnation", "node", "pid"), report):
            return
        if (
            last is None
            # guard: a rank's word of an earlier lease is dropped
            or last.report.lease_epoch <= report.lease_epoch
        ):
            self.ranks[key] = timestamped(report)
        if last is None or (last.report.phase, last.report.directive) != (report.phase, report.directive):
            self.wake()

    def take_controller(self, report: ControllerReport) -> None:
        """Take in a Train controller's word unless it was overtaken."""
        name = JobName(report.job)
        last = self.controllers.get(name)
        if overtaken(last, ("incarnation",), report):  # guard: a controller's word that was overtaken is dropped
            return
        self.controllers[name] = timestamped(report)
        if last is None or last.report.phase is not report.phase:
            self.wake()

    def take_replica(self, report: ReplicaReport) -> None:
        """Take in a replica's word unless it was overtaken."""
        seat = SeatId(report.seat)
        last = self.replicas.get(seat)
        late = overtaken(last, ("replica", "node", "pid"), report)
        if not late and (
            last is None
            or last.report.lease_epoch <= report.lease_epoch  # guard: a replica's word of an earlier lease is dropped
        ):
            self.replicas[seat] = timestamped(_with_failure(report, last))
        news = (report.phase, report.replica, report.error)
        if last is None or (last.report.phase, last.report.replica, last.report.error) != news:
            self.wake()

    def take_misplaced(self, seat: SeatId, slots: Iterable[SlotId]) -> None:
        """A replica came to other slots than it was granted."""
        self.misplaced[seat] = timestamped(tuple(sorted(slots)))
        self.wake()

    def take_gateway(self, report: GatewayReport) -> None:
        """Take in a gateway's word unless it was overtaken. That it holds requests and held none before is news."""
        last = self.gateways.get(report.gateway)
        if not overtaken(last, ("gateway",), report):  # guard: a gateway's word that was overtaken is dropped
            self.gateways[report.gateway] = timestamped(report)
            self.gateway_last_s = clock.now_s()
        held_before = sum(part.held for part in last.report.traffic.values()) if last else 0
        if sum(part.held for part in report.traffic.values()) > 0 and not held_before:
            self.wake()

    def take_agent(self, report: AgentReport, state: PoolState) -> None:
        """Take in a node agent's word unless it was overtaken. Who holds which slot is news."""
        node = NodeId(report.node)
        # guard: what an agent of other code reports is not taken in
        if report.code not in ("", self.code):
            self.agents.pop(node, None)
            return
        last = self.agents.get(node)
        # guard: an agent's word that was overtaken is dropped
        if last is not None and last.report.boot_id == report.boot_id and report.sent_boot_s < last.report.sent_boot_s:
            return  # a lock that it calls free may have been taken since
        report = self._by_own_clock(report)
        self.agents[node] = timestamped(report)
        if (
            last is None
            or last.report.holders != report.holders
            or (looked_too_early(state, last.report) and not looked_too_early(state, report))
        ):
            self.wake()

    def answer_agent(self, report: AgentReport, state: PoolState) -> AgentAnswer:
        """What the sender of ``report`` is to say that it has heard."""
        return AgentAnswer(self.arbiter, clock.now_s(), again=looked_too_early(state, self._by_own_clock(report)))

    def _by_own_clock(self, report: AgentReport) -> AgentReport:
        """``report`` without the answer of another arbiter, whose clock may have been ahead."""
        foreign = report.after is not None and report.after.arbiter != self.arbiter
        return replace(report, after=None) if foreign else report

    def share_of(self, asking: GatewayReport) -> LimitShare | None:
        """Which part of each key's limits is for the gateway that reports this; None: it is to keep what it has.

        An arbiter that has begun to listen a moment ago would take the first gateway that it hears for the only one.
        The order is by node, so that one that is restarted has the place of the one before.
        """
        now_s = clock.now_s()
        # guard: an arbiter that has not heard all gateways changes no part of the limits
        if now_s - max(self.started_s, self.back_s) <= GATEWAY_PRESENT_S:
            return None
        last = [gateway.report for gateway in list(self.gateways.values()) if now_s - gateway.at_s <= GATEWAY_PRESENT_S]
        present = sorted({_order(report) for report in (*last, asking)})
        return LimitShare(present.index(_order(asking)), len(present))

    def seen(self, state: PoolState, book: FenceTable, fencing: frozenset[NodeId], routes_version: int) -> Observation:
        """A frozen copy for one step."""
        now_s = clock.now_s()
        for name in [name for name, last in self.gateways.items() if now_s - last.at_s > GATEWAY_FORGOTTEN_S]:
            self.gateways.pop(name, None)
        self._forget_unknown(state, now_s)  # guard: reports of who is gone are forgotten
        return Observation(
            started_s=self.started_s,
            back_s=self.back_s,
            ranks=dict(self.ranks),
            controllers=dict(self.controllers),
            replicas=dict(self.replicas),
            gateways=dict(self.gateways),
            agents=dict(self.agents),
            fences=book.views(state.slots, now_s),
            fencing=fencing,
            living=dict(self.living),
            living_at_s=self.living_at_s,
            restorable=self.restorable,
            misplaced=dict(self.misplaced),
            strangers=dict(book.strangers),
            refused=self.refused,
            closing=self.closes(),
            routes_version=routes_version,
        )

    def _forget_unknown(self, state: PoolState, now_s: float) -> None:
        """What was said of jobs and seats that are gone goes a while later, for names come and go without end."""
        for rank in [key for key in list(self.ranks) if key[0] not in state.jobs]:
            _pop_old(self.ranks, rank, now_s)
        for job in [name for name in list(self.controllers) if name not in state.jobs]:
            _pop_old(self.controllers, job, now_s)
        for seat in [name for name in [*list(self.replicas), *list(self.misplaced)] if name not in state.seats]:
            _pop_old(self.replicas, seat, now_s)
            _pop_old(self.misplaced, seat, now_s)


def _with_failure(report: ReplicaReport, last: Timestamped[ReplicaReport] | None) -> ReplicaReport:
    """With why the replica before it under the same lease failed, if the loop may not have looked since: Serve starts
    another one within a second or two, whose first word would take the cause's place.
    """
    if last is None or report.error or report.phase is not ReplicaPhase.STARTING:
        return report
    same_lease = last.report.lease_epoch == report.lease_epoch
    return replace(report, error=last.report.error) if same_lease else report


def _order(gateway: GatewayReport) -> tuple[str, float, str]:
    return gateway.node, gateway.started_s, gateway.gateway


def _pop_old(reports: dict[K, Timestamped[R]], key: K, now_s: float) -> None:
    last = reports.get(key)
    # guard: reports of who has just come are kept
    if last is not None and now_s - last.at_s > UNKNOWN_FORGOTTEN_S:
        reports.pop(key, None)
