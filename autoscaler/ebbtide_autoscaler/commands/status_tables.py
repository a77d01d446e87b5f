"""What ``ebbtide status`` shows: the status as tables. Pure but for the clock on the wall."""

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ebbtide_autoscaler.core.observe.alerts import FreezeCause

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


def render(found: dict[str, Any]) -> RenderableType:
    """The status as tables."""
    arbiter = found.get("arbiter", {})
    head = Text(
        f"pool {found['pool']}   gateway {found.get('gateway', '')}   arbiter epoch {arbiter.get('epoch', '?')}"
    )
    parts: list[RenderableType] = [head]
    if arbiter.get("frozen"):
        by = f" by {BY[arbiter['frozen_by']]}" if arbiter.get("frozen_by") in BY else ""
        parts.append(Text(f"frozen{by}{_since(arbiter.get('frozen_since_s'))}: {arbiter['frozen']}", style="bold red"))
    for notice in found.get("notices", []):
        parts.append(Text(f"{notice['about']}{_since(notice['since_s'])}: {notice['why']}", style="yellow"))
    if found.get("cluster"):
        parts.append(_cluster(found["cluster"]))
    parts += [_slots(found), _endpoints(found), _jobs(found), *_teams(found)]
    return Group(*parts)


def _cluster(cluster: dict[str, Any]) -> Text:
    """Only where the pool's size may change."""
    trouble = f"; Ray could not be told, it is tried again: {cluster['trouble']}" if cluster["trouble"] else ""
    return Text(f"cluster: {cluster['reason']}{trouble}", style="yellow" if trouble else "")


def _since(at_s: float | None) -> str:
    return f" since {time.strftime('%H:%M:%S', time.localtime(at_s))} ({_for(at_s)})" if at_s else ""


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=None, pad_edge=False, title_justify="left", header_style="bold", title_style="bold")
    for column in columns:
        table.add_column(column)
    return table


def _state(name: str) -> Text:
    return Text(name, style=COLOURS.get(name, "yellow"))


def _for(since_s: float) -> str:
    return f"{max(0.0, time.time() - since_s):.0f} s" if since_s else ""


def _slots(found: dict[str, Any]) -> Table:
    table = _table("\nslots", "slot", "state", "occupant", "parked here", "for")
    for slot in found.get("slots", []):
        name = f"{slot['node'][:8]}:{slot['index']}"
        occupant = slot["occupant"] or slot["foreign"] or ""
        parked = ", ".join([*slot["parked"], *slot.get("warm", ())])
        table.add_row(name, _state(slot["state"]), occupant, parked, _for(slot["since_s"]))
    return table


def _endpoints(found: dict[str, Any]) -> Table:
    table = _table(
        "\nendpoints", "endpoint", "replicas", "held", "running", "TTFT p90 (SLO)", "TPOT p90 (SLO)", "KV", "waits for"
    )
    for one in found.get("endpoints", []):
        seats = ", ".join(f"{s['seat'].rpartition('/')[2]}:{s['state']}" for s in one["seats"] if s["state"] != "cold")
        waits = [one["waits"], *(s["waits"] for s in one["seats"])]
        table.add_row(
            one["endpoint"],
            f"{seats or 'none'} (of {one['replicas_min']}..{one['replicas_max']})",
            str(one["held"]),
            str(one["inflight"]),
            f"{one['ttft_p90_s']:.2f} s ({one['ttft_slo_s']:g} s)",
            f"{1000 * one['tpot_p90_s']:.0f} ms ({1000 * one['tpot_slo_s']:g} ms)",
            f"{one['kv_usage']:.0%}",
            Text("; ".join(w for w in waits if w), style="yellow"),
        )
    return table


def _teams(found: dict[str, Any]) -> list[Table]:
    """None where the file names no teams."""
    if not found.get("teams"):
        return []
    table = _table("\nteams", "team", "slots", "guarantee", "weight", "quota", "jobs", "waits for slots")
    for one in found["teams"]:
        quota = "-" if one["quota"] is None else str(one["quota"])
        counts = (str(one[key]) for key in ("slots", "guarantee"))
        table.add_row(one["team"], *counts, f"{one['weight']:g}", quota, str(one["jobs"]), str(one["waiting_slots"]))
    return [table]


def _jobs(found: dict[str, Any]) -> Table:
    table = _table(
        "\njobs", "job", "state", "workers", "step (durable)", "parked/restarted/crashed", "for", "waits for"
    )
    for job in found.get("jobs", []):
        table.add_row(
            job["job"],
            _state(job["state"]),
            f"{len(job['slots'])} (of {job['workers_min']}..{job['workers_max']})",
            f"{job['step']} ({job['durable_step']})",
            f"{job['parks']}/{job['restarts']}/{job['crashes']}",
            _for(job["since_s"]),
            Text(job["waits"] or job["outcome"] or "", style="yellow"),
        )
    return table
