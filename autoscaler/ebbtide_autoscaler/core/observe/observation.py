"""What was observed, at one moment: the last report of everybody, each with the time it came in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Generic, TypeVar

from ebbtide.client.messages import (
    AgentReport,
    ControllerReport,
    GatewayReport,
    RankReport,
    ReplicaReport,
)
from ebbtide.pool.ids import JobName, NodeId, SeatId, SlotId

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Timestamped(Generic[R]):
    """A report and when it came in."""

    at_s: float
    report: R


class FenceView(Enum):
    """Whether our placement group holds a slot's logical GPU."""

    HELD = "held"
    ABSENT = "absent"
    REFUSED = "refused"  # asked for and not got: somebody else has the logical GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that is known besides the ledger."""

    started_s: float  # of this arbiter: nobody counts as silent before it has had time to report
    back_s: float = -inf  # when this arbiter came back after it had been away (see ``Inbox.attend``); -inf: never
    ranks: Mapping[tuple[JobName, int], Timestamped[RankReport]] = field(default_factory=dict)
    controllers: Mapping[JobName, Timestamped[ControllerReport]] = field(default_factory=dict)
    replicas: Mapping[SeatId, Timestamped[ReplicaReport]] = field(default_factory=dict)
    gateways: Mapping[str, Timestamped[GatewayReport]] = field(default_factory=dict)
    agents: Mapping[NodeId, Timestamped[AgentReport]] = field(default_factory=dict)
    fences: Mapping[SlotId, FenceView] = field(default_factory=dict)
    fencing: frozenset[NodeId] = frozenset()  # nodes on which a fence is being asked for right now
    living: Mapping[SeatId, tuple[str, ...]] = field(default_factory=dict)  # replica actors that exist
    living_at_s: float = 0.0  # when that was looked up; 0 = never
    routes_version: int = 0
    restorable: frozenset[JobName] = frozenset()  # jobs with an archived submission
    strangers: Mapping[SlotId, str] = field(default_factory=dict)  # who has the GPU of a slot whose fence is refused
    refused: Mapping[NodeId, str] = field(default_factory=dict)  # nodes that run other code than the arbiter, with why
    closing: str = ""  # who takes the pool down, as long as that command says so again; "": none does
    misplaced: Mapping[SeatId, Timestamped[tuple[SlotId, ...]]] = field(
        default_factory=dict
    )  # asked for a lease from there

    def silent_s(self, heard_s: float, now_s: float) -> float:
        """For how long somebody who was last heard at ``heard_s`` has said nothing that this arbiter could hear."""
        # guard: an arbiter that was away blames no process for its own silence
        return now_s - max(heard_s, self.started_s, self.back_s)

    def waited_s(self, since_s: float, now_s: float) -> float:
        """For how long something that was due from ``since_s`` on has not been reported, in seconds.

        Time before this arbiter started does not count: nobody could report. Just after a pause the reports are still
        on their way, and nothing counts as waited for. But a pause does not begin the wait anew: if pauses came again
        and again (a shared directory that hangs every minute), the wait would never end.
        """
        if now_s - self.back_s < STRAGGLER_S:  # guard: an arbiter that has just come back has waited for nothing
            return 0.0
        return now_s - max(since_s, self.started_s)  # guard: a new arbiter gives what it waits for its whole time


# For a replica to give up its GPUs, and to take them back: 80 GB at the 5 GB/s that a driver was seen to copy take
# 16 s, and what takes much longer is not worth it: a start would be as quick.
PARK_S = 60.0

STRAGGLER_S = 5.0  # a call to the arbiter is given up after 2 s; what comes in later than this was sent after, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long the arbiter waits for others, in seconds; the reasons stand in the pool's file."""

    placement_timeout_s: float = 30.0
    start_timeout_s: float = 300.0
    gang_timeout_s: float = 120.0  # of a gang that starts or resumes
    silence_s: float = 10.0


def lock_free(seen: Observation, node: NodeId, index: int, after_s: float) -> bool:
    """Whether the node's agent looked after ``after_s`` and nobody held the slot's lock.

    The time at which its report came in says little: the report may have been on its way for seconds while somebody
    took the lock. So the agent says which answer of this arbiter it had when it looked.
    """
    heard = seen.agents.get(node)
    if (
        heard is None
        or heard.report.after is None
        or heard.report.after.at_s <= after_s  # guard: a lock is free by a report newer than the order only
    ):
        return False
    return (
        index in heard.report.holders  # guard: a lock is free only if the report speaks of it
        and heard.report.holders[index] is None
    )


def lock_taken(seen: Observation, node: NodeId, index: int, after_s: float) -> bool:
    """Whether the node's agent said after ``after_s`` that somebody holds the slot's lock."""
    heard = seen.agents.get(node)
    if heard is None or heard.at_s <= after_s:
        return False
    return heard.report.holders.get(index) is not None
