"""What the promises say about what was seen. Functions from logs to findings; no clock, no pool.

Only witnesses that do not depend on the arbiter's word are heard for promise 1 (the occupants' own logs, the slot
locks) and for promise 2 (the step logs of the ranks). An empty list means that nothing was broken; what cannot be
judged from the given evidence is not a finding.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from benchmarks.demo.exactness import lost_steps
from ebbtide.agent.slot_locks.allocation_log import Occupancy, double_occupancy_s
from ebbtide.pool.events import Event, Move
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.state import PoolState
from ebbtide_train.session.step_log import StepLine
from ebbtide_train.verification.step_log_comparison import repeat_difference
from tests.integration.kills.processes import Role
from tests.integration.kills.users import Answer, Saw

MOVES = get_args(Move)


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken promise, by its number in docs/promises.md, and what shows it."""

    promise: int
    what: str

    def __str__(self) -> str:
        return f"promise {self.promise}: {self.what}"


def occupancy(seen: Iterable[Occupancy], machine_of: Callable[[str], str]) -> list[Finding]:
    """Promise 1 by the occupants' own logs.

    Args:
        seen: of all processes that ever held a slot lock.
        machine_of: machine of a node id: a machine that came back with another node id has the same GPUs.
    """
    named = []
    for one in seen:
        node, _, index = one.slot.rpartition(":")
        named.append(replace(one, slot=f"{machine_of(node) or node}:{index}"))
    total_s = double_occupancy_s(named)
    if not total_s:
        return []
    pairs = [
        f"{first.slot}: {first.workload} pid {first.pid} until {first.end_s:.2f} and {then.workload} pid {then.pid} "
        f"from {then.begin_s:.2f}"
        for first in named
        for then in named
        if first.slot == then.slot and first is not then and first.begin_s <= then.begin_s < first.end_s
    ]
    return [Finding(1, f"two occupants for {total_s:.2f} s: {'; '.join(pairs[:3])}")]


def ledger(state: PoolState) -> list[Finding]:
    """Promise 1 and the pool's other rules, by the ledger's own state."""
    return [Finding(1, wrong) for wrong in violations(state)]


def reasons(events: Iterable[Event], silences: Iterable[str] = ()) -> list[Finding]:
    """Promise 4: every move has a reason, and whoever waited was told why."""
    found = [f"{event.body.kind} ({event.id}) has no reason" for event in events if _unreasoned(event)]
    return [Finding(4, what) for what in (*found, *silences)]


def _unreasoned(event: Event) -> bool:
    return isinstance(event.body, MOVES) and not event.body.reason.strip()


def steps(lines: Sequence[StepLine], crash_lost_steps: int) -> list[Finding]:
    """Promise 2: no finished step is missing, none was repeated beyond what a crash cost, repeats gave the same."""
    found = []
    lost = lost_steps(lines, crash_lost_steps)
    if lost:
        by_first_rank = [line.step for line in lines if line.rank == 0]
        missing = sorted(set(range(max(by_first_rank, default=-1) + 1)) - set(by_first_rank))
        repeated = len(by_first_rank) - len(set(by_first_rank))
        found.append(
            Finding(
                2,
                f"{lost} steps lost or repeated: missing {missing[:5]}, {repeated} repeated, "
                f"{crash_lost_steps} counted in crash_lost_steps",
            )
        )
    differs = repeat_difference(lines)
    if differs:
        found.append(Finding(2, differs))
    return found


GATEWAY_IS_GONE = frozenset({Saw.UNREACHABLE, Saw.CUT})
"""What a user sees when the very process dies that he is connected to; nobody is left to send an error event."""

KILLS_STREAMS = frozenset({Role.REPLICA, Role.ENGINE, Role.RAYLET, Role.GCS_MEMORY})
"""Whose death may end a stream that was begun. Nobody else's may."""


def users(
    answers: Iterable[Answer], roles: Iterable[Role], *, gateway_died: bool, retries_used_up: bool = False
) -> list[Finding]:
    """Promise 3, given who was killed while these requests were under way. Refusals with Retry-After are its bound.

    ``retries_used_up``: so many replicas died that one request may have met two of them.
    """
    killed = frozenset(roles)
    fair = {Saw.OK, Saw.HELD, Saw.REFUSED}
    if gateway_died:
        fair |= GATEWAY_IS_GONE
    if killed & KILLS_STREAMS:
        fair.add(Saw.ERROR_EVENT)
    if retries_used_up:
        fair.add(Saw.ERROR)
    by_kind: dict[Saw, list[Answer]] = {}
    for answer in answers:
        if answer.saw not in fair:
            by_kind.setdefault(answer.saw, []).append(answer)
    return [
        Finding(3, f"{len(those)} users saw: {saw.value} (after {those[0].took_s:.1f} s: {those[0].detail})")
        for saw, those in by_kind.items()
    ]


def orphans(locked: Mapping[str, tuple[str, int]], occupants: Mapping[str, tuple[str, int]]) -> list[Finding]:
    """Promise 1, the other way round: nobody sits on a slot that the ledger has given to another, or to nobody.

    Args:
        locked: by slot uuid, the workload and pid of who holds its lock.
        occupants: by slot uuid, who has it in the ledger (with any pid).
    """
    return [
        Finding(
            1,
            f"slot {uuid} is locked by {workload} (pid {pid}), the ledger has {occupants.get(uuid, ('nobody', 0))[0]}",
        )
        for uuid, (workload, pid) in locked.items()
        if occupants.get(uuid, ("", 0))[0] != workload
    ]
