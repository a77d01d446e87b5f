"""The pool's state as JSON for people and scripts: what ``ebbtide status`` prints. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ebbtide.client.messages import RankReport
from ebbtide.pool.ids import JobName, NodeId
from ebbtide.pool.rules.drain import is_drained, occupants
from ebbtide.pool.state import Hold, JobRecord, PoolState, SlotRecord
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from ebbtide.snapshot.tiers.step_aside import StepAside
from ebbtide_autoscaler.core.jobs.held_jobs import why_held
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.observe.traffic import GATEWAY_FRESH_S, traffic
from ebbtide_autoscaler.core.plan.fair_share import OTHERS, Shares, Team
from ebbtide_autoscaler.core.plan.outdated import is_stale
from ebbtide_autoscaler.core.replicas.start_backoff import start_attempts

NOT_AT_SESSION = "not at its session yet"
LOST_SHOWN_S = 600.0  # a lost slot is news for so long; those of a cluster of long ago are not


def view(
    state: PoolState,
    seen: Observation,
    waits: Mapping[str, str],
    now_s: float,
    asides: Mapping[JobName, StepAside] = MappingProxyType({}),
    teams: Sequence[Team] = (),
    left: frozenset[NodeId] = frozenset(),
) -> dict[str, Any]:
    """Slots, endpoints, seats and jobs, each with what it is waiting for, and jobs with how they would step aside.

    ``left``: nodes of a cluster that was taken down in good order: their lost slots are no news and not shown.
    """
    return {
        "slots": [_slot(state, record) for record in _shown(state, now_s, left)],
        "endpoints": _endpoints(state, seen, waits, now_s),
        "teams": list(_teams(state, teams)),
        "jobs": [_job(state, name, seen, waits, now_s) | _aside(asides.get(name)) for name in sorted(state.jobs)],
        "gateways": [
            {
                "url": heard.report.url,
                "heard_ago_s": round(now_s - heard.at_s, 2),
                "leaving": heard.report.leaving,
            }
            for heard in seen.gateways.values()
            if now_s - heard.at_s < 10 * GATEWAY_FRESH_S
        ],
        "nodes": [
            {
                "node": node,
                "host_bytes": size,
                "parked_bytes": state.parked_bytes(node),
                "warm_bytes": state.warm_bytes(node),
                "draining": state.draining.get(node),
                "drained": is_drained(state, node),
                "occupants": list(occupants(state, node)),
            }
            for node, size in state.nodes.items()
        ],
        "frozen": {"why": state.frozen, "since_at_s": state.frozen_since_s} if state.frozen else None,
    }


def _teams(state: PoolState, teams: Sequence[Team]) -> Iterator[dict[str, Any]]:
    """What each team has, is promised and waits for; nothing where the file names none."""
    if not teams:
        return
    shares = Shares(teams, state.jobs)
    for team in (*teams, OTHERS):
        mine = [job for job in state.jobs.values() if shares.of(job).name == team.name]
        waiting = [job for job in mine if job.state in (JobState.WAITING, JobState.PARKED) and job.held is None]
        if mine or team is not OTHERS:
            yield {
                "team": team.name,
                "slots": shares.of_team(team),
                "guarantee": team.guarantee,
                "weight": team.weight,
                "quota": team.quota,
                "jobs": sum(job.state is not JobState.ENDED for job in mine),
                "waiting_slots": sum(len(job.gang) or job.spec.workers_min for job in waiting),
            }


def _shown(state: PoolState, now_s: float, left: frozenset[NodeId]) -> list[SlotRecord]:
    records = sorted(state.slots.values(), key=lambda record: (record.slot.node, record.slot.index))
    return [
        r
        for r in records
        if r.state is not SlotState.LOST or (now_s - r.since_s < LOST_SHOWN_S and r.slot.node not in left)
    ]


def _slot(state: PoolState, record: Any) -> dict[str, Any]:
    return {
        "slot": record.slot.id,
        "node": record.slot.node,
        "index": record.slot.index,
        "state": record.state.value,
        "occupant": record.occupant,
        "epoch": record.epoch or None,
        "parked": list(state.claims_on(record.slot.id)),
        "warm": [n for n, one in state.seats.items() if one.state is SeatState.WARM and record.slot.id in one.slots],
        "since_at_s": record.since_s,
        "foreign": record.foreign or None,
    }


def _endpoints(state: PoolState, seen: Observation, waits: Mapping[str, str], now_s: float) -> list[dict[str, Any]]:
    signals = traffic(state, seen, now_s)
    found = []
    for name, record in sorted(state.endpoints.items()):
        spec, now = record.spec, signals[name]
        found.append(
            {
                "endpoint": name,
                "replicas_min": spec.replicas_min,
                "replicas_max": spec.replicas_max,
                "warm_replicas": spec.warm_replicas,
                "start_s": round(record.start_s, 2),
                "wake_s": round(record.wake_s, 2),
                "held": now.held,
                "inflight": now.inflight,
                "arrivals": now.arrivals,
                "ttft_p90_s": now.ttft_p90_s,
                "ttft_slo_s": spec.ttft_slo_s,
                "tpot_p90_s": now.tpot_p90_s,
                "tpot_slo_s": spec.tpot_slo_s,
                "waiting_in_replicas": now.waiting,
                "kv_usage": round(now.kv_usage, 3),
                "waits": waits.get(name),
                "revision": spec.revision or None,
                **_retries(now_s, state, name),
                "seats": [_seat(state, seat, seen, waits) for seat in state.seats.values() if seat.endpoint == name],
            }
        )
    return found


def _retries(now_s: float, state: PoolState, endpoint: Any) -> dict[str, Any]:
    """How often starts failed in a row, and when the next is tried."""
    found = start_attempts(now_s, state, endpoint, state.endpoints[endpoint].spec.replicas_max)
    return {
        "failures": found.failures,
        "permanent": found.permanent,
        "last_error": found.why or None,
        "failed_seat": found.last.id if found.last is not None else None,
        "failure": found.last.failure if found.last is not None else None,
        "next_try_s": round(found.wait_s, 1) if found.wait_s else None,
    }


def _seat(state: PoolState, seat: Any, seen: Observation, waits: Mapping[str, str]) -> dict[str, Any]:
    heard = seen.replicas.get(seat.id)
    # What failed of another revision is history: `why` has it.
    fails = seat.failures > 0 and seat.revision == state.endpoints[seat.endpoint].spec.revision
    return {
        "seat": seat.id,
        "state": seat.state.value,
        "slots": list(seat.slots),
        "replica": seat.replica or None,
        "pid": heard.report.pid if heard and seat.slots else None,
        "inflight": heard.report.inflight if heard and seat.slots else 0,
        "starts": seat.starts,
        "wakes": seat.wakes,
        "park_bytes": seat.park_bytes,
        "cannot_park": seat.cannot_park or None,
        "failures": seat.failures if fails else 0,
        "last_error": (seat.last_error or None) if fails else None,
        "revision": seat.revision or None,
        "stale": bool(seat.slots) and is_stale(state, seat),
        "since_at_s": seat.since_s,
        "waits": waits.get(seat.id),
    }


def _waits(job: JobRecord, waits: str | None) -> str | None:
    """Why nothing is done for it; who holds it is known of the ledger alone, also while nobody decides."""
    if job.held is not None and job.state is not JobState.ENDED:
        return waits if waits and "held by" in waits else why_held(job.spec.name, job.held)
    return waits if job.state is not JobState.RUNNING else None


def held(hold: Hold | None) -> dict[str, Any] | None:
    """Who holds a job aside, why, since when, and whether all of it is to be in files."""
    if hold is None:
        return None
    return {"by": hold.by, "reason": hold.reason, "since_at_s": hold.since_s, "off_node": hold.off_node}


def _aside(aside: StepAside | None) -> dict[str, Any]:
    """None: it has ended, or nobody decides who could tell."""
    return {"steps_aside": aside.as_json() if aside is not None else None}


def _job(state: PoolState, name: Any, seen: Observation, waits: Mapping[str, str], now_s: float) -> dict[str, Any]:
    job = state.jobs[name]
    ranks = [
        heard for (of, _), heard in seen.ranks.items() if of == name and heard.report.incarnation == job.incarnation
    ]
    # Not those of an earlier gang: its steps may have gone with it.
    here = [one for one in ranks if one.report.rank < len(job.gang) and one.report.lease_epoch >= job.gang_epoch]
    fresh = [heard.report for heard in here if now_s - heard.at_s < 5.0]
    return {
        "job": name,
        "owner": job.spec.owner,
        "team": job.spec.team,
        "class": job.spec.workload_class.value,
        "priority": job.spec.priority,
        "state": job.state.value,
        "slots": list(job.gang),
        "workers_min": job.spec.workers_min,
        "workers_max": job.spec.workers_max,
        "in_place": job.spec.in_place,
        "grace_s": job.spec.grace_s,
        "host_bytes_per_worker": job.spec.host_bytes_per_worker,
        "tracked_bytes": max((report.tracked_bytes for report in fresh), default=0),
        "in_place_hindered": next((report.in_place_hindered for report in fresh if report.in_place_hindered), None),
        "step": max([job.step, *(report.step for report in fresh)]),
        "durable_step": job.durable_step,
        "park_refused": next((report.park_refused for report in fresh if report.park_refused), None),
        "interactive": any(report.interactive for report in fresh),
        "restorable": name in seen.restorable,
        "commit_error": next((report.commit_error for report in fresh if report.commit_error), None),
        "step_s": max((report.step_s for report in fresh), default=0.0),
        "pids": {str(report.rank): report.pid for report in fresh},
        "parks": job.parks,
        "restarts": job.restarts,
        "crashes": job.crashes,
        "failures_in_a_row": job.failures_in_a_row,
        "last_error": job.last_error or None,
        "failing": 0.0 < job.crashed_s >= job.ran_since_s and job.state is not JobState.ENDED,
        "restores": job.restores,
        "crash_lost_steps": job.crash_lost_steps,
        "next_try_s": round(job.not_before_s - now_s, 1) if job.not_before_s > now_s else None,
        "outcome": job.outcome or None,
        "since_at_s": job.since_s,
        "ended_at_s": job.since_s if job.state is JobState.ENDED else None,
        "held": held(job.held),
        "loading": job.loading,
        "waits": _loads(job, fresh, now_s) if job.loading else _waits(job, waits.get(name)),
    }


def _loads(job: JobRecord, fresh: Sequence[RankReport], now_s: float) -> str:
    """How a job stands whose train function has not begun its steps."""
    at = "at its session, not at its steps yet" if fresh and all(one.at_session for one in fresh) else NOT_AT_SESSION
    where = next((one.stands_at for one in fresh if one.stands_at), "")
    alive = "process alive" if len(fresh) == len(job.gang) else f"{len(fresh)} of {len(job.gang)} processes heard"
    return f"starting: {at}, {now_s - job.since_s:.0f} s, {alive}{f', at {where}' if where else ''}"
