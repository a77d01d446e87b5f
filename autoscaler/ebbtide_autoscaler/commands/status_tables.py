"""What ``ebbtide status`` shows: the status as tables, the cause of what went wrong in one line each."""

import time
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ebbtide.cli.terminal.causes import cause
from ebbtide.cli.terminal.durations import lasting, latency
from ebbtide.cli.terminal.tables import Listing
from ebbtide_autoscaler.core.observe.freeze_cause import FreezeCause

NAMED = 3  # seats in one state by name, of more their number
ALIKE_CHARS = 150  # of an error: reasons quote its beginning alone
ENDED_SHOWN_S = 600.0  # an ended job is news for so long, as a lost slot is
SERVES = frozenset({"ready", "draining"})
COLOURS = {
    "free": "dim",
    "leased": "green",
    "running": "green",
    "ready": "cyan",
    "parked": "yellow",
    "foreign": "red",
    "lost": "red",
    "ended": "dim",
}

BY = {
    FreezeCause.PERSON: "a person",
    FreezeCause.LEDGER: "the ledger",
    FreezeCause.PROMISE: "a promise",
    FreezeCause.START: "a start",
}


def render(found: dict[str, Any], *, everything: bool = False) -> RenderableType:
    """The status as tables; ``everything``: also jobs that ended long ago."""
    arbiter = found.get("arbiter", {})
    parts: list[RenderableType] = [_head(found)]
    if arbiter.get("frozen"):
        by = f" by {BY[arbiter['frozen_by']]}" if arbiter.get("frozen_by") in BY else ""
        since = _since(arbiter.get("frozen_since_at_s"))
        parts.append(Text(f"frozen{by}{since}: {cause(arbiter['frozen'])}", style="bold red"))
    for notice in found.get("notices", []):
        since = _since(notice["since_at_s"])
        parts.append(Text(f"{notice['about']}{since}: {cause(notice['why'])}", style="yellow"))
    if found.get("cluster"):
        parts.append(_cluster(found["cluster"]))
    for table in (_slots(found), _endpoints(found), *_jobs(found, everything), *_teams(found)):
        parts += [Text(""), table]
    return Group(*parts)


def _head(found: dict[str, Any]) -> Text:
    arbiter = found.get("arbiter", {})
    gateway = f"\ngateway {found['gateway']}" if found.get("gateway") else ""
    return Text(f"pool {found['pool']}   arbiter epoch {arbiter.get('epoch') or '?'}{gateway}")


def _cluster(cluster: dict[str, Any]) -> Text:
    """Only where the pool's size may change."""
    trouble = f"; Ray could not be told, it is tried again: {cause(cluster['trouble'])}" if cluster["trouble"] else ""
    return Text(f"cluster: {cluster['reason']}{trouble}", style="yellow" if trouble else "")


def _since(at_s: float | None) -> str:
    return f" since {time.strftime('%H:%M:%S', time.localtime(at_s))} ({_for(at_s)})" if at_s else ""


def _state(name: str) -> Text:
    return Text(name, style=COLOURS.get(name, "yellow"))


def _for(since_at_s: float) -> str:
    return lasting(time.time() - since_at_s) if since_at_s else ""


def _slots(found: dict[str, Any]) -> Listing:
    rows = [
        (
            f"{slot['node'][:8]}:{slot['index']}",
            _state(slot["state"]),
            slot["occupant"] or slot["foreign"] or "",
            ", ".join([*slot["parked"], *slot.get("warm", ())]),
            _for(slot["since_at_s"]),
        )
        for slot in found.get("slots", [])
    ]
    return Listing(
        "slots", ("slot", "state", "occupant", "parked here", "for"), rows, below=["parked here"], optional=["for"]
    )


def _endpoints(found: dict[str, Any]) -> Listing:
    rows = []
    for one in found.get("endpoints", []):
        serves = any(seat["state"] in SERVES for seat in one["seats"])
        rows.append(
            (
                one["endpoint"],
                f"{_seats(one['seats']) or 'none'} (of {one['replicas_min']}..{one['replicas_max']})",
                str(one["held"]),
                str(one["inflight"]),
                f"{latency(one['ttft_p90_s'])} ({latency(one['ttft_slo_s'])})",
                f"{latency(one['tpot_p90_s'])} ({latency(one['tpot_slo_s'])})",
                f"{one['kv_usage']:.0%}" if serves else "-",
                Text("; ".join(_endpoint_reasons(one)), style="yellow"),
            )
        )
    columns = ("endpoint", "replicas", "held", "running", "TTFT p90 (SLO)", "TPOT p90 (SLO)", "KV", "why")
    return Listing(
        "endpoints", columns, rows, below=["why"], optional=["KV", "TPOT p90 (SLO)", "TTFT p90 (SLO)", "running"]
    )


def _seats(seats: list[dict[str, Any]]) -> str:
    """Seats that have a replica, by their state: ``chat/0, chat/1 ready, chat/2 starting``."""
    by_state: dict[str, list[str]] = {}
    for seat in seats:
        if seat["state"] != "cold":
            by_state.setdefault(seat["state"], []).append(seat["seat"])
    return ", ".join(
        f"{', '.join(names) if len(names) <= NAMED else len(names)} {state}" for state, names in by_state.items()
    )


def _endpoint_reasons(one: dict[str, Any]) -> Iterator[str]:
    """Why its seats are not ready; after a failed start what the replica said last, and where more is."""
    told = {cause(waits) for waits in (one["waits"], *(seat["waits"] for seat in one["seats"])) if waits}
    yield from sorted(told)
    failed = {seat["seat"]: seat for seat in one["seats"] if seat.get("last_error") and seat["state"] != "ready"}
    alike: dict[str, list[str]] = {}
    for name, seat in failed.items():
        error = cause(seat["last_error"])
        if not any(error in words for words in told):
            alike.setdefault(error, []).append(f"{name} failed{_ago(seat)}")
    for error, who in alike.items():
        yield f"{', '.join(who)}: {error}"
    if failed:
        yield f"more: ebbtide logs {next(iter(failed))}"


def _ago(seat: dict[str, Any]) -> str:
    """For how long a seat has been empty since its replica failed; nothing while another one is there."""
    since_s = seat.get("since_at_s") if seat["state"] == "cold" else None
    return f" {_for(since_s)} ago" if since_s else ""


def _teams(found: dict[str, Any]) -> list[Listing]:
    """None where the file names no teams."""
    if not found.get("teams"):
        return []
    rows = []
    for one in found["teams"]:
        quota = "-" if one["quota"] is None else str(one["quota"])
        counts = (str(one[key]) for key in ("slots", "guarantee"))
        rows.append((one["team"], *counts, f"{one['weight']:g}", quota, str(one["jobs"]), str(one["waiting_slots"])))
    columns = ("team", "slots", "guarantee", "weight", "quota", "jobs", "waits for slots")
    return [Listing("teams", columns, rows, optional=["weight", "quota", "jobs"])]


def _jobs(found: dict[str, Any], everything: bool) -> Iterator[RenderableType]:
    jobs = found.get("jobs", [])
    shown = [job for job in jobs if everything or not _is_old(job)]
    rows = [
        (
            job["job"],
            _state(job["state"]),
            f"{len(job['slots'])} (of {job['workers_min']}..{job['workers_max']})",
            f"{job['step']} ({_saved(job)})",
            f"{job['parks']}/{job['restarts']}/{job['crashes']}",
            _for(job["since_at_s"]),
            Text("; ".join(_job_reasons(job)), style="yellow"),
        )
        for job in shown
    ]
    columns = ("job", "state", "workers", "step (saved)", "parked/restarted/crashed", "for", "why")
    yield Listing("jobs", columns, rows, below=["why"], optional=["parked/restarted/crashed", "for", "step (saved)"])
    if len(shown) < len(jobs):
        yield Text(f"{len(jobs) - len(shown)} more that ended over ten minutes ago: ebbtide status --all", style="dim")


def _saved(job: dict[str, Any]) -> str:
    """The step that a crash would take it back to."""
    if job["durable_step"] or not job["step"]:
        return str(job["durable_step"])
    return "not saved" if job["state"] == "ended" else "not saved yet"


def _is_old(job: dict[str, Any]) -> bool:
    return bool(job["state"] == "ended" and job["since_at_s"] and time.time() - job["since_at_s"] > ENDED_SHOWN_S)


def _job_reasons(job: dict[str, Any]) -> Iterator[str]:
    """Why it does not run, or how it ended; after a failure what it said last, and where more is."""
    said = job["waits"] or job["outcome"] or ""
    words = cause(said)
    if words:
        yield words
    error = cause(job.get("last_error") or "")
    failing = job.get("failing", job["state"] not in ("running", "ended"))  # an older arbiter does not say
    failed = error and (failing or words.startswith(("failed", "lost")))
    if failed and error[:ALIKE_CHARS] not in words:
        yield f"failed: {error}"
    if failed or "\n" in said.strip():
        yield f"more: ebbtide logs {job['job']}" if failed else f"more: ebbtide why {job['job']}"
