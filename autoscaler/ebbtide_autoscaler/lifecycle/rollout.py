"""How far the endpoints of a file that was put into force are: what is left, what fails, what waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.config.pool_file import PoolFile
from ebbtide.pool.plural import many

TRIES = 2  # a first start may fail by chance: an engine that runs into the memory of the one before, say
TRIES_PERMANENT = 1  # of what would end alike on every slot
COMING = frozenset({"placing", "starting", "waking"})
SERVES = frozenset({"ready", "draining"})

Status = Mapping[str, Any]
"""The arbiter's, as `service.pool_view` makes it."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One look.

    Attributes:
        left: a line for each endpoint that is not as the file has it yet.
        failed: a line for each that does not start so.
        waiting: whether all that is left waits for slots or for people, and nothing of it is on its way.
    """

    left: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    waiting: bool = False


def failures_before(config: PoolFile, status: Status) -> dict[str, int]:
    """Of each endpoint that the file does not change: how often its start had failed in a row before this `up`."""
    revisions = {endpoint.name: endpoint.revision() for endpoint in config.endpoints}
    return {
        one["endpoint"]: int(one["failures"])
        for one in status.get("endpoints", [])
        if revisions.get(one["endpoint"]) == one["revision"]
    }


def rollout(
    config: PoolFile,
    rolling: Mapping[str, Sequence[str]],
    status: Status,
    *,
    before: Mapping[str, int],
    watched: set[str],
) -> Rollout:
    """How far it is.

    Args:
        config: the file.
        rolling: seats that do not run what the file says yet, by endpoint.
        before: see `failures_before`.
        watched: endpoints of which replicas are being replaced; those that always have one are looked at anyway.
    """
    known = {one["endpoint"]: one for one in status.get("endpoints", [])}
    left: list[str] = []
    failed: list[str] = []
    moving = False
    revisions = {endpoint.name: endpoint.revision() for endpoint in config.endpoints}
    for name in revisions | dict.fromkeys(rolling):
        one = known.get(name)
        if one is not None and one["revision"] != revisions.get(name):
            one = {**one, "failures": 0}  # the status is still of the file before: its failures say nothing of this one
        seats = one["seats"] if one is not None else []
        comes = any(seat["state"] in COMING for seat in seats)
        wanted = name in watched or (one is not None and one["replicas_min"] > 0)
        if one is not None and wanted and one["failures"] >= _tries(one) and one["failures"] > before.get(name, 0):
            failed.append(_failure(name, one))
            continue
        if name in rolling:
            left.append(f"{name}: {_still_to_change(rolling[name], one)}")
            moving |= comes or not any(seat["waits"] for seat in seats)
        elif one is not None and wanted and not _is_there(one, needs_one=one["replicas_min"] > 0):
            left.append(f"{name}: {_first_replica(one, comes=comes)}")
            moving |= comes or bool(one["failures"]) or not one["waits"]
    return Rollout(tuple(left), tuple(failed), bool(left) and not moving)


def _tries(one: Mapping[str, Any]) -> int:
    """Failed starts after which no more are waited for."""
    return TRIES_PERMANENT if one.get("permanent") else TRIES


def _is_there(one: Mapping[str, Any], *, needs_one: bool) -> bool:
    """Whether a replica runs what the file says, or none has to and none is tried."""
    fresh = [seat for seat in one["seats"] if not seat["stale"]]
    if any(seat["state"] == "ready" for seat in fresh):
        return True
    return not (needs_one or one["failures"] or any(seat["state"] in COMING for seat in fresh))


def _still_to_change(seats: Sequence[str], one: Mapping[str, Any] | None) -> str:
    words = ", ".join(seats) or "being taken in"
    return words + (f"; {_tried(one)}" if one is not None and one["failures"] else "")


def _first_replica(one: Mapping[str, Any], *, comes: bool) -> str:
    why = _tried(one) if one["failures"] else "" if comes else one["waits"]
    return ("its first replica starts" if comes else "it has no replica yet") + (f"; {why}" if why else "")


def _tried(one: Mapping[str, Any]) -> str:
    return f"a start failed: {one['last_error']}"


def _failure(name: str, one: Mapping[str, Any]) -> str:
    """The cause first, then what serves, then where to read on."""
    serves = any(seat["state"] in SERVES for seat in one["seats"])
    rest = "the replicas that it had serve on" if serves else "it has no replica, and is tried again"
    more = f"; more: ebbtide logs {one['failed_seat']}" if one.get("failed_seat") else ""
    tries = many(one["failures"], "start")
    alike = "it would end alike on every slot" if one.get("permanent") else f"{tries} failed in a row"
    return f"{name}: {one['last_error']} ({alike}; {rest}{more})"
