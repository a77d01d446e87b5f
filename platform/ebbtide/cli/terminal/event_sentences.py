"""Records of the ledger as sentences for people. Works on their JSON form, so that old records can be told too."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.filesize import decimal

from ebbtide.cli.terminal.causes import cause
from ebbtide.pool.plural import many

Body = Mapping[str, Any]


def _slots(body: Body) -> str:
    return ", ".join(short(slot) for slot in body.get("slots", ()))


def short(slot: object) -> str:
    """A slot with the first 8 characters of its node, as `status` prints it."""
    node, _, index = str(slot).rpartition(":")
    return f"{node[:8]}:{index}"


def _stages(body: Body) -> str:
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in body.get("stages_s", ()))


def _start(body: Body) -> str:
    """Where a start's time went and how its weights came, as far as that is known."""
    weights = [f"weights {_loaded(one)}" for one in body.get("weights", ())]
    known = "; ".join(filter(None, [_stages(body), *weights]))
    return f" ({known})" if known else ""


def _loaded(one: Body) -> str:
    amount = f", {decimal(one['size_bytes'])}" if one["size_bytes"] else ""
    why = f" ({one['why']})" if one["why"] else ""
    return f"by {one['way']}{amount} in {one['seconds']:.2f} s{why}"


def _repeats(body: Body) -> str:
    return f", {body['lost_steps']} to run again after a crash" if body.get("lost_steps") else ""


def _off_node(body: Body) -> str:
    return ", and nothing of it may stay in memory" if body.get("off_node") else ""


def _revision(spec: Body) -> str:
    return f", revision {spec['revision']}" if spec.get("revision") else ""


_SENTENCES: Mapping[str, Callable[[Body], str]] = {
    "grant_job": lambda b: f"job {b['job']} is granted {_slots(b)}: {b['reason']}",
    "park_job": lambda b: f"job {b['job']} is asked to park: {b['reason']}",
    "resume_job": lambda b: f"job {b['job']} may resume in place: {b['reason']}",
    "stop_job": lambda b: f"job {b['job']} is asked to stop and restart: {b['reason']}",
    "cancel_job": lambda b: f"job {b['job']} is cancelled: {b['reason']}",
    "grant_seat": lambda b: f"seat {b['seat']} is granted {_slots(b)}: {b['reason']}",
    "drain_seat": lambda b: f"seat {b['seat']} is asked to drain: {b['reason']}",
    "park_seat": lambda b: f"the replica of {b['seat']} is asked to park: {b['reason']}",
    "wake_seat": lambda b: f"the replica of {b['seat']} is woken on its slots: {b['reason']}",
    "node_found": lambda b: f"node {b['node'][:8]} joins the pool",
    "node_lost": lambda b: f"node {b['node'][:8]} is lost",
    "node_forgotten": lambda b: f"node {b['node'][:8]}, lost a while ago, leaves the pool's books with its slots",
    "node_draining": lambda b: f"node {b['node'][:8]} is to be emptied: {b['reason']}",
    "node_undrained": lambda b: f"node {b['node'][:8]} may be used again",
    "pool_frozen": lambda b: f"a person stops all decisions: {b['reason']}",
    "pool_unfrozen": lambda b: "decisions are made again",
    "slot_found": lambda b: f"slot {short(b['slot']['id'])} joins the pool",
    "slot_freed": lambda b: f"slot {short(b['slot'])} is proven free",
    "slot_unfenced": lambda b: f"slot {short(b['slot'])} has no fence",
    "slot_foreign": lambda b: f"slot {short(b['slot'])} is foreign: {b['who']}",
    "endpoint_declared": lambda b: f"endpoint {b['spec']['name']} is declared{_revision(b['spec'])}",
    "endpoint_removed": lambda b: f"endpoint {b['endpoint']} is removed",
    "job_submitted": lambda b: f"job {b['spec']['name']} is submitted",
    "job_loading": lambda b: f"job {b['job']} is up and loads: its train function has not begun its steps",
    "job_running": lambda b: f"job {b['job']} trains, {many(b['step'], 'step')} done{_repeats(b)}",
    "job_parked": lambda b: f"job {b['job']} is parked after step {b['step']}",
    "job_durable": lambda b: f"job {b['job']} is durable up to step {b['step']}",
    "job_stopped": lambda b: f"job {b['job']} has stopped after step {b['step']}",
    "job_crashed": lambda b: f"job {b['job']} crashed, about {many(b['lost_steps'], 'step')} to repeat: {b['why']}",
    "job_recovered": lambda b: f"job {b['job']} can be granted slots again",
    "job_held": lambda b: f"job {b['job']} is held aside by {b['by']}{_off_node(b)}: {b['reason']}",
    "job_released": lambda b: f"job {b['job']} is released by {b['by']}: it may have slots again",
    "job_ended": lambda b: f"job {b['job']} is over, {b['outcome']}: {b['detail']}",
    "job_forgotten": lambda b: f"job {b['job']} is one of the oldest that are over, and leaves the list of jobs",
    "seat_landed": lambda b: f"the replica of {b['seat']} landed on its slots",
    "seat_ready": lambda b: f"seat {b['seat']} is ready{_start(b)}",
    "seat_drained": lambda b: f"no request is left at {b['seat']}: its replica gives up its GPUs",
    "seat_parked": lambda b: f"the replica of {b['seat']} is warm: it holds nothing on its slots",
    "seat_died": lambda b: f"the replica of {b['seat']} died: {b['why']}",
    "seat_stopped": lambda b: f"the replica of {b['seat']} is told to exit: {b['why']}",
    "seat_gone": lambda b: f"seat {b['seat']} is empty",
}


def sentence(body: Body) -> str:
    """What happened, in one line; a kind that is not known here is shown as it is."""
    body = {name: cause(value) if is_long(value) else value for name, value in body.items()}
    tell = _SENTENCES.get(str(body.get("kind")))
    try:
        return tell(body) if tell else str(dict(body))
    except (KeyError, TypeError, ValueError):
        return str(dict(body))


def is_long(value: object) -> bool:
    """Whether it is a text of several lines: a traceback, the end of a log."""
    return isinstance(value, str) and len(value.strip().splitlines()) > 1


def clock(at_s: float) -> str:
    """Local time with milliseconds."""
    return time.strftime("%H:%M:%S", time.localtime(at_s)) + f".{int(at_s % 1 * 1000):03d}"
