"""The referee's rules on replicas: `EndpointSpec`'s promises, placement, host memory, and requests that wait."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ebbtide.pool.backoff import BACKOFF_MAX_S, backoff_s
from ebbtide.pool.events import DrainSeat, GrantSeat, ParkJob, ParkSeat, WakeSeat
from ebbtide.pool.ids import EndpointName, NodeId, SlotId
from ebbtide.pool.state import PoolState, SeatRecord
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from tests.autoscaler.referee import Case
from tests.autoscaler.referee_jobs import owed

COMING = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.WAKING})
ALIVE = COMING | {SeatState.READY}
LONG_AGO_S = 600.0  # failures of then count no more


def seats(state: PoolState, endpoint: EndpointName) -> list[SeatRecord]:
    """The endpoint's seats."""
    return [seat for seat in state.seats.values() if seat.endpoint == endpoint]


def must_go(state: PoolState, seat: SeatRecord) -> bool:
    """Whether its node drains, or it runs another revision than the file's."""
    drains = any(state.slots[slot].slot.node in state.draining for slot in seat.slots)
    revision = state.endpoints[seat.endpoint].spec.revision
    return drains or bool(revision and seat.revision != revision)


def a_replica_is_on_one_node(case: Case) -> Iterator[str]:
    """All slots of a replica are on one node, as many as it needs, none of a draining one; one placement at a time."""
    state = case.state
    opening = {r.slot.node: str(r.occupant) for r in state.slots.values() if r.state is SlotState.OPENING}
    for move in case.moves:
        if not isinstance(move, GrantSeat):
            continue
        endpoint = EndpointName(move.seat.rpartition("/")[0])
        nodes = {state.slots[slot].slot.node for slot in move.slots}
        if len(nodes) != 1 or len(move.slots) != state.endpoints[endpoint].spec.slots_per_replica:
            yield f"{move.seat} gets {move.slots}"
        for node in nodes:
            if node in state.draining:
                yield f"{move.seat} gets slots of {node}, which drains"
            if node in opening:
                yield f"{move.seat} and {opening[node]} are placed on {node} at once"
            opening[node] = move.seat


def replicas_stay_within_their_range(case: Case) -> Iterator[str]:
    """Never more than replicas_max, but for one that takes an outdated one's place; never fewer than replicas_min."""
    gets = Counter(m.seat.rpartition("/")[0] for m in case.moves if isinstance(m, GrantSeat | WakeSeat))
    for name, count in gets.items():
        endpoint = EndpointName(name)
        spec, mine = case.state.endpoints[endpoint].spec, seats(case.state, endpoint)
        have = [seat for seat in mine if seat.state in ALIVE]
        outdated = sum(must_go(case.state, seat) for seat in have)
        if len(have) + count > spec.replicas_max + outdated:
            yield f"{name} gets {count} replicas beside {len(have)}, {spec.replicas_max} at most"
    for move in case.moves:
        if not isinstance(move, DrainSeat | ParkSeat):
            continue
        seat = case.state.seats[move.seat]
        if seat.state in ALIVE and not must_go(case.state, seat):
            yield from _may_not_go(case, seat, move.reason)


def _may_not_go(case: Case, seat: SeatRecord, reason: str) -> Iterator[str]:
    """What keeps a replica that is as it should be."""
    record, now_s = case.state.endpoints[seat.endpoint], case.now_s
    spec, mine = record.spec, seats(case.state, seat.endpoint)
    left = [one for one in mine if one.state is SeatState.READY and one is not seat]
    alive = [one for one in mine if one.state in ALIVE and one is not seat]
    if seat.state is not SeatState.READY:
        yield f"{seat.id} is {seat.state.value}, and drained for less demand"
    if len(alive) < spec.replicas_min:
        yield f"{seat.id} goes, and {len(alive)} of at least {spec.replicas_min} replicas are left"
    to = re.match(r"makes place for (\S+), which has (\d+) of (\d+) ", reason)
    if to:
        yield from _makes_place(case, seat, EndpointName(to[1]), len(left))
    elif len(left) < case.memory.endpoints[seat.endpoint].aim:
        yield f"{seat.id} goes, {len(left)} are ready, {case.memory.endpoints[seat.endpoint].aim} are aimed at"
    started_s = min(record.start_s, record.wake_s) if record.wake_s else record.start_s
    if now_s - seat.ready_since_s < spec.min_uptime_factor * started_s - 1e-6:
        yield f"{seat.id} goes after {now_s - seat.ready_since_s:.1f} s, it took {started_s:.1f} s to start"
    signals = case.traffic[seat.endpoint]
    if not signals.known and len(alive) < spec.replicas_max:
        yield f"{seat.id} goes while nobody knows of its traffic"
    elif not alive:
        if signals.held or signals.inflight:
            yield f"{seat.id}, the last, goes with {signals.held} + {signals.inflight} requests there"
        if now_s - signals.last_arrival_s < spec.idle_after_s:
            yield f"{seat.id}, the last, goes {now_s - signals.last_arrival_s:.1f} s after a request"


def _makes_place(case: Case, seat: SeatRecord, to: EndpointName, left: int) -> Iterator[str]:
    """What keeps a replica from making place for another endpoint's."""
    own, other = case.state.endpoints[seat.endpoint].spec, case.state.endpoints[to].spec
    if to == seat.endpoint or own.priority > other.priority:
        yield f"{seat.id}, of priority {own.priority}, makes place for {to}, of {other.priority}"
    if not left:
        yield f"{seat.id}, the last that is ready, makes place for {to}"
    alive = sum(one.state in ALIVE for one in seats(case.state, to))
    if alive >= min(other.replicas_max, case.memory.endpoints[to].aim):
        yield f"{seat.id} makes place for {to}, which has the {alive} that are aimed at"


def nothing_starts_on_hearsay(case: Case) -> Iterator[str]:
    """While its gateways are silent an endpoint gets no replica beyond its minimum, unless one must be replaced."""
    for move in case.moves:
        if not isinstance(move, GrantSeat | WakeSeat):
            continue
        endpoint = EndpointName(move.seat.rpartition("/")[0])
        mine = [seat for seat in seats(case.state, endpoint) if seat.state in ALIVE]
        if case.traffic[endpoint].known or any(must_go(case.state, seat) for seat in mine):
            continue
        if len(mine) >= case.state.endpoints[endpoint].spec.replicas_min:
            yield f"{move.seat} starts, and its gateways are silent"


def failed_starts_wait(case: Case) -> Iterator[str]:
    """A seat whose start failed is tried again only after its backoff, twice as long each time."""
    for move in case.moves:
        seat = case.state.seats.get(move.seat) if isinstance(move, GrantSeat) else None
        if seat is None or not seat.failures or case.now_s - seat.since_s >= LONG_AGO_S:
            continue
        spec = case.state.endpoints[seat.endpoint].spec
        if seat.revision == spec.revision and seat.ready_since_s <= seat.granted_s:
            waited_s, least_s = case.now_s - seat.since_s, backoff_s(seat.failures, BACKOFF_MAX_S)
            if waited_s < least_s - 1e-6:
                yield f"{seat.id} failed {seat.failures} times, and is tried after {waited_s:.1f} of {least_s:.1f} s"


def lacking(case: Case) -> list[EndpointName]:
    """Endpoints of one slot per replica that lack a slot, beyond doubt: they could place one now if they had it."""
    found = []
    for name, record in case.state.endpoints.items():
        mine = seats(case.state, name)
        on_the_way = sum(seat.state in ALIVE or seat.state is SeatState.PARKING for seat in mine)
        on_the_way += sum(m.seat.rpartition("/")[0] == name for m in case.moves if isinstance(m, GrantSeat | WakeSeat))
        busy = sum(seat.state is not SeatState.COLD for seat in mine)
        busy += sum(m.seat.rpartition("/")[0] == name for m in case.moves if isinstance(m, GrantSeat))
        if (
            record.spec.slots_per_replica == 1
            and case.traffic[name].known
            and case.memory.endpoints[name].aim > on_the_way
            and busy < record.spec.replicas_max
            and not any(seat.failures for seat in mine)
        ):
            found.append(name)
    return found


def replicas_that_lack_slots_go_first(case: Case) -> Iterator[str]:
    """Before jobs that wait or are parked, but for minima that are owed; and the most important endpoint first."""
    needy = lacking(case)
    if not needy:
        return
    named = {job.spec.name for job in owed(case.state)}
    gets = [name for name in case.granted if name not in named]
    if gets:
        yield f"{gets} get slots, which {needy} lack"
    for move in case.moves:
        if isinstance(move, GrantSeat):
            mine = case.state.endpoints[EndpointName(move.seat.rpartition("/")[0])].spec
            before = [n for n in needy if case.state.endpoints[n].spec.priority > mine.priority]
            if before and mine.slots_per_replica == 1 and "takes the place" not in move.reason:
                yield f"{move.seat} gets a slot, which {before} lack, of more priority"


def a_held_request_gets_a_replica(case: Case) -> Iterator[str]:
    """An endpoint without any replica, and with requests held, gets one as soon as a slot is free."""
    state = case.state
    for name, record in state.endpoints.items():
        signals, mine = case.traffic[name], seats(state, name)
        if not signals.known or not signals.held or record.spec.slots_per_replica > 1 or not record.spec.replicas_max:
            continue
        if any(seat.state is not SeatState.COLD or seat.failures for seat in mine):
            continue
        gets = any(m.seat.rpartition("/")[0] == name for m in case.moves if isinstance(m, GrantSeat | WakeSeat))
        taken = case.of_replicas.union(*case.granted.values())
        busy = {r.slot.node for r in state.slots.values() if r.state is SlotState.OPENING}
        busy |= {state.slots[s].slot.node for m in case.moves if isinstance(m, GrantSeat) for s in m.slots}
        free = [s for s in state.free_slots() if s not in taken and state.slots[s].slot.node not in busy]
        if not gets and len(free) > sum(job.spec.workers_min for job in owed(state)):
            yield f"{name} has {signals.held} requests held and no replica, and {free} are free"


def host_memory_is_there(case: Case) -> Iterator[str]:
    """A replica that parks leaves the host memory of its node to the jobs there."""
    state = case.state
    parks = [state.seats[m.seat] for m in case.moves if isinstance(m, ParkSeat)]
    for node, size in state.nodes.items() if parks else ():
        here = [seat for seat in parks if state.slots[seat.slots[0]].slot.node == node]
        if not here:
            continue
        used = sum(seat.park_bytes for seat in here)
        for seat in state.seats.values():
            if seat.slots and seat.parks and state.slots[seat.slots[0]].slot.node == node:
                used += seat.park_bytes
        for job in state.jobs.values():
            if job.state is not JobState.ENDED and job.spec.in_place:
                used += sum(state.slots[slot].slot.node == node for slot in job.gang) * job.spec.host_bytes_per_worker
        if used > size:
            yield f"{[seat.id for seat in here]} park on {node}: {used} of {size} bytes would be lent"


def parked_jobs_find_their_host_memory(case: Case) -> Iterator[str]:
    """A job is asked to park in place only where its node has the memory that all that is parked there has then."""
    asked = [case.state.jobs[m.job] for m in case.moves if isinstance(m, ParkJob)]
    aside = (JobState.PARKING, JobState.PARKED, JobState.RESUMING)
    lent = Counter[NodeId]()
    parked = [job for job in case.state.jobs.values() if job.state in aside]
    for job in (*asked, *parked) if asked else ():
        lent.update({n: c * job.spec.host_bytes_per_worker for n, c in _workers(case.state, job.gang).items()})
    for node in {node for job in asked for node in _workers(case.state, job.gang)}:
        if lent[node] > case.state.nodes.get(node, 0):
            names = [job.spec.name for job in asked]
            yield f"{names} park: {lent[node]} of {case.state.nodes.get(node, 0)} bytes of {node} would be lent"


def warm_replicas_give_way(case: Case) -> Iterator[str]:
    """None stays warm that is outdated or one too many, or whose memory a job may need."""
    state = case.state
    warm = [seat for seat in state.seats.values() if seat.state is SeatState.WARM and not case.moved(seat.id)]
    for seat in warm:
        if must_go(state, seat):
            yield f"{seat.id} stays warm, and is outdated"
    for name, count in Counter(seat.endpoint for seat in warm).items():
        if count > state.endpoints[name].spec.warm_replicas:
            yield f"{name} keeps {count} warm replicas of {state.endpoints[name].spec.warm_replicas}"
    for node in {state.slots[seat.slots[0]].slot.node for seat in warm}:
        here = [s for s in state.seats.values() if s.parks and s.slots and s.slots[0] in state.slots]
        here = [s for s in here if state.slots[s.slots[0]].slot.node == node and not case.moved(s.id)]
        used = sum(seat.park_bytes for seat in here if seat.state is not SeatState.STOPPING)
        for job in state.jobs.values():
            if job.state is not JobState.ENDED and job.spec.in_place:
                used += _workers(state, job.gang)[node] * job.spec.host_bytes_per_worker
        if used > state.nodes.get(node, 0):
            yield f"{used} of {state.nodes.get(node, 0)} bytes of {node} are lent, and warm replicas stay"


def _workers(state: PoolState, gang: Sequence[SlotId]) -> Counter[NodeId]:
    return Counter(state.slots[slot].slot.node for slot in gang)


OF_MOVES = (
    a_replica_is_on_one_node,
    replicas_stay_within_their_range,
    nothing_starts_on_hearsay,
    failed_starts_wait,
    replicas_that_lack_slots_go_first,
    host_memory_is_there,
    parked_jobs_find_their_host_memory,
)
ALWAYS = (a_held_request_gets_a_replica, warm_replicas_give_way)
