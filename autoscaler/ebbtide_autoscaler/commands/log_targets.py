"""Whose log files a name means: processes on nodes, from the arbiter's status, Ray's table of actors, and the
occupants' own logs on the shared directory (which also know the processes of the past).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebbtide.client.arbiter_link import ARBITER_NAME
from ebbtide.pool.ids import SeatId, endpoint_of
from ebbtide_autoscaler.cluster.node_names import Node, choose
from ebbtide_autoscaler.commands.log_reader import LogFile, Selector

OCCUPANTS_MAX = 200  # newest files of the occupancy folder that are looked at
# Ray copies what ranks print into their driver's log, within a second.
FORWARDED_S = 2.0
GATEWAY_APP = "ebbtide-gateway"  # Serve's name of it, as ebbtide_serve deploys it


@dataclass(slots=True)
class Targets:
    """Selectors by node id ("" = look on every node), and what is known to be missing."""

    by_node: dict[str, list[Selector]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, node: str, selector: Selector) -> None:
        """Look for this on that node."""
        known = self.by_node.setdefault(node, [])
        if selector not in known:
            known.append(selector)


@dataclass(frozen=True, slots=True)
class Actor:
    """An actor as Ray's GCS knows it; dead ones too, for a while."""

    name: str
    kind: str  # its class
    node: str
    pid: int
    alive: bool


def actors() -> list[Actor]:
    """All actors that the cluster remembers."""
    from ray._private.state import actors as ray_actors  # noqa: PLC0415 - Ray is half a second to import

    found = []
    for entry in ray_actors().values():
        address: Mapping[str, Any] = entry.get("Address") or {}
        alive = entry.get("State") == "ALIVE"
        kind = str(entry.get("ActorClassName") or "")
        node, pid = str(address.get("NodeID") or ""), int(entry.get("Pid") or 0)
        found.append(Actor(str(entry.get("Name") or ""), kind, node, pid, alive))
    return found


def targets(
    name: str, *, status: Mapping[str, Any], known: Iterable[Actor], nodes: Iterable[Node], shared_dir: Path
) -> Targets:
    """What to look for.

    Args:
        name: a job, endpoint, seat, node, "arbiter" or "gateway".
        status: the arbiter's; {} while it does not answer.

    Raises:
        ValueError: nothing has that name.
    """
    found, actors_known = Targets(), list(known)
    jobs = {job["job"]: job for job in status.get("jobs", [])}
    endpoints = {one["endpoint"]: one for one in status.get("endpoints", [])}
    if name == "arbiter":
        _actors(found, actors_known, lambda a: (a.name, a.kind) == (ARBITER_NAME, "Arbiter"), "arbiter")
    elif name == "gateway":
        _actors(found, actors_known, lambda a: f"::{GATEWAY_APP}" in a.name, "gateway")
        found.add("", Selector("gateway", pattern=rf"serve/replica_{re.escape(GATEWAY_APP)}.*\.log"))
    elif name in jobs:
        _job(found, jobs[name], shared_dir)
    elif name in endpoints:
        for seat in endpoints[name]["seats"]:
            _seat(found, seat["seat"], actors_known)
    elif re.fullmatch(r".+/\d+", name):
        _seat(found, name, actors_known)
        endpoint = endpoint_of(SeatId(name))
        if not found.by_node and endpoint not in endpoints:
            raise ValueError(f"there is no endpoint {endpoint!r}; see `ebbtide status`")
    else:
        _otherwise(found, name, status, actors_known, nodes, shared_dir)
    return found


def _otherwise(
    found: Targets,
    name: str,
    status: Mapping[str, Any],
    known: list[Actor],
    nodes: Iterable[Node],
    shared_dir: Path,
) -> None:
    from ebbtide.agent.node_agent import agent_name  # noqa: PLC0415 - Ray comes with it

    try:
        node = choose(name, list(nodes))
    except ValueError as error:
        if status:
            raise ValueError(
                f"no job, endpoint, seat or node is named {name!r} (and it is neither 'arbiter' nor 'gateway'): {error}"
            ) from None
        found.missing.append("the arbiter does not answer, so names are taken as they are")
        _job(found, {"job": name, "pids": {}, "slots": []}, shared_dir)
        _seat(found, f"{name}/0", known)
        return
    _actors(found, known, lambda a: (a.name, a.kind) == (agent_name(node.id), "NodeAgent"), "agent")
    found.add(node.id, Selector("raylet", pattern=r"raylet(?:\.\d+)?\.(?:out|err)"))


def _actors(found: Targets, known: Iterable[Actor], mine: Callable[[Actor], bool], label: str) -> None:
    chosen = [actor for actor in known if mine(actor) and actor.pid]
    for actor in chosen:
        found.add(actor.node, Selector(label, pid=actor.pid))
    if not chosen:
        found.missing.append(f"Ray knows no process of the {label}")


def _job(found: Targets, job: Mapping[str, Any], shared_dir: Path) -> None:
    """Its driver, if Ray started it, and its ranks, past ones too."""
    name = str(job["job"])
    # As `submit` and the pool itself name submissions; another job may have a name that begins alike.
    of_submission = r"(?:[0-9a-f]{8}|[0-9a-f]{12}-restore\d+)"
    found.add("", Selector("driver", pattern=rf"job-driver-{re.escape(name)}-{of_submission}\.log"))
    for rank, pid in job["pids"].items():
        slot = next(iter(job["slots"][int(rank) :]), "")
        found.add(str(slot).rpartition(":")[0], Selector(f"rank {rank}", pid=int(pid)))
    for node, pid in occupants(shared_dir, name):
        if all(pid != one.pid for one in found.by_node.get(node, [])):
            found.add(node, Selector(f"a rank (pid {pid})", pid=pid))


def _seat(found: Targets, seat: str, known: Iterable[Actor]) -> None:
    """Its replicas, by Serve's names of their actors; an engine prints into the file of its replica."""
    endpoint, _, number = seat.rpartition("/")
    app = f"seat-{endpoint}-{number}"
    chosen = [actor for actor in known if re.search(rf"::{re.escape(app)}#", actor.name) and actor.pid]
    for actor in chosen:
        found.add(actor.node, Selector(seat, pid=actor.pid))
    found.add("", Selector(seat, pattern=rf"serve/replica_{re.escape(app)}_.*\.log"))


def occupants(shared_dir: Path, workload: str) -> list[tuple[str, int]]:
    """(node, pid) of the processes that have had a slot for ``workload``, by their own logs; newest files only."""
    folder = shared_dir / "occupancy"
    try:
        files = sorted(folder.glob("*.jsonl"), key=_last_s)[-OCCUPANTS_MAX:]
    except OSError:
        return []
    found = []
    for file in files:
        try:
            with file.open() as lines:
                first = json.loads(lines.readline())
        except (OSError, ValueError):
            continue  # a line that is being written, or a file that was removed
        if isinstance(first, dict) and first.get("workload") == workload:
            found.append((str(first["slot"]).rpartition(":")[0], int(first["pid"])))
    return found


def _last_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # removed since it was listed


# ---- runs of a job -----------------------------------------------------------------------------------------------

_DRIVER_FILE = re.compile(r"(?:.*/)?job-driver-(?P<run>.+)\.log")
_RANK_FILE = re.compile(r"(?:.*/)?worker-[0-9a-f]+-(?P<ray_job>[0-9a-f]+)-\d+\.(?:out|err)")


def runs(files: Sequence[LogFile]) -> list[str]:
    """Which run of its job each file is of, by the id that `submit` printed; "" for files of no job.

    A driver's log has the id in its name. A rank's has the number that Ray gave to its driver, by which the ranks of a
    run are known; they are of the first driver that wrote after them, or still writes. A run without a driver's log,
    one that was started by hand, is named after that number.
    """
    drivers = sorted((one.changed_s, run) for one in files if (run := _part(_DRIVER_FILE, one)))
    last_s: dict[str, float] = {}
    for one in files:
        if ray_job := _ray_job(one):
            last_s[ray_job] = max(one.changed_s, last_s.get(ray_job, 0.0))
    run_of: dict[str, str] = {"": ""}
    for ray_job in sorted(last_s, key=lambda one: last_s[one]):
        left = [(at_s, run) for at_s, run in drivers if run not in run_of.values()]
        after = (run for at_s, run in left if at_s + FORWARDED_S >= last_s[ray_job])
        run_of[ray_job] = next(after, left[-1][1] if left else f"by hand, Ray job {ray_job}")
    return [_part(_DRIVER_FILE, one) or run_of[_ray_job(one)] for one in files]


def _ray_job(file: LogFile) -> str:
    """The number of its driver; a process that Ray kept ready for anybody has none, and stands for itself."""
    found = _part(_RANK_FILE, file)
    return f"of {file.path}" if found and set(found) == {"f"} else found


def _part(pattern: re.Pattern[str], file: LogFile) -> str:
    found = pattern.fullmatch(file.path)
    return found[1] if found is not None else ""
