"""What a file would change in a running pool, as a list of differences, each with what it restarts. Pure.

Some things cannot change while the pool runs: where it is, how it is reached, and what has been counted on since it
was brought up. Those are conflicts, and `up` refuses them with nothing changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ebbtide.config.sections.endpoint_section import STARTED_WITH
from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.plural import many

FIXED = ("pool.slots", "pool.shared_dir", "pool.ray_address", "pool.num_cpus", "gateway.host", "gateway.port")
NOTHING = "restarts nothing"
REPLACES_GATEWAY = ("gateway.per_node", "gateway.tls")
AT_NEXT_START = ("gateway.max_connections",)
NAMED = ("endpoints", "keys")  # lists of sections with a name; jobs are submitted, not brought up


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. ``what``: + added, - removed, ~ changed, ! changed and impossible."""

    what: Literal["+", "-", "~", "!"]
    path: str
    before: Any
    after: Any
    field: str = ""  # of its section: the first part of the path below it

    @property
    def effect(self) -> str:
        """What it restarts, in a person's words."""
        if self.what == "!":
            return "needs down"
        of_endpoint = self.path.startswith("endpoints.")
        if of_endpoint and self.what == "-":
            return "drains its replicas; new requests get 404 at once"
        if self.path.startswith(REPLACES_GATEWAY):
            return "replaces the gateway; running streams may end within 30 s"
        if self.path in AT_NEXT_START:
            return "counts from the gateway's next start"
        if self.path == "pool.mode" and self.after == PoolMode.OBSERVE:
            return "nothing is moved any more"
        if of_endpoint and self.field == "warm":
            return "counts from each replica's next start"
        if self.what in ("+", "-") or not of_endpoint or self.field not in STARTED_WITH:
            return NOTHING
        if self.field == "gpus_per_replica":
            return "replaces all replicas; requests are held meanwhile"
        return "rolls replicas, one at a time"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "what": self.what,
            "path": self.path,
            "before": self.before,
            "after": self.after,
            "effect": self.effect,
        }

    def __str__(self) -> str:
        if self.what == "+":
            return f"+ {self.path}"
        if self.what == "-":
            return f"- {self.path}"
        return f"{self.what} {self.path}: {self.before} -> {self.after}"


def changes(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> tuple[Change, ...]:
    """The differences between the file in force (None: no pool runs) and another one, both as JSON."""
    if before is None:
        return tuple(_everything(after))
    found: list[Change] = []
    for section in ("pool", "gateway", "policy", "metrics", "sessions"):
        found += _fields(section, before.get(section, {}), after.get(section, {}))
    for kind in NAMED:
        found += _named(kind, before.get(kind, ()), after.get(kind, ()))
    return tuple(found)


def _everything(after: Mapping[str, Any]) -> Iterator[Change]:
    pool = after["pool"]
    yield Change("+", f"pool {pool['name']} with {many(pool['slots'], 'slot')}", None, pool)
    yield Change("+", f"gateway on {after['gateway']['host']}:{after['gateway']['port']}", None, after["gateway"])
    for kind in NAMED:
        for item in after.get(kind, ()):
            yield Change("+", f"{kind}.{item['name']}", None, item)


def _fields(path: str, before: Mapping[str, Any], after: Mapping[str, Any], field: str = "") -> Iterator[Change]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        here = f"{path}.{name}"
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _fields(here, old, new, field or name)
        else:
            yield Change("!" if here in FIXED else "~", here, old, new, field or name)


def _named(kind: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Iterator[Change]:
    old = {item["name"]: item for item in before}
    new = {item["name"]: item for item in after}
    for name in sorted({*old, *new}):
        path = f"{kind}.{name}"
        if name not in old:
            yield Change("+", path, None, new[name])
        elif name not in new:
            yield Change("-", path, old[name], None)
        else:
            yield from _fields(path, old[name], new[name])


def conflicts(found: Sequence[Change]) -> tuple[Change, ...]:
    """Those that a running pool cannot take."""
    return tuple(change for change in found if change.what == "!")
