"""What can be wrong between sections that are each right: names, references, sizes that contradict each other.

It works on parts, because the loader also runs it on what is left of a file whose other parts are broken: a user
sees every problem at once. A finding names the place by keys and indexes; the loader turns these into lines.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ebbtide.config.finding import Finding, Loc
from ebbtide.config.sections.endpoint_section import RESERVED_ENGINE_KEYS, EndpointSection
from ebbtide.config.sections.gateway_section import GatewaySection
from ebbtide.config.sections.job_section import JobSection
from ebbtide.config.sections.key_section import KeySection
from ebbtide.config.sections.pool_section import PoolSection
from ebbtide.config.sections.team_section import TeamSection
from ebbtide.config.suggestions import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The valid sections of a file, by their index in their list, and the names of all, valid or not."""

    LISTS: ClassVar = ("endpoints", "jobs", "keys", "teams")

    pool: PoolSection | None = None
    gateway: GatewaySection | None = None
    endpoints: Mapping[int, EndpointSection] = field(default_factory=dict)
    jobs: Mapping[int, JobSection] = field(default_factory=dict)
    keys: Mapping[int, KeySection] = field(default_factory=dict)
    teams: Mapping[int, TeamSection] = field(default_factory=dict)
    names: Mapping[str, Sequence[tuple[int, str]] | None]  # None: that list cannot be read at all
    has_keys: bool


def cross_check(parts: Parts) -> list[Finding]:
    """All contradictions between the parts of one file; none means that they fit together."""
    findings = [*_duplicate_names(parts), *_engine_arguments(parts), *_unknown_endpoints(parts)]
    # guard: an address that others reach needs keys
    if parts.gateway is not None and not parts.gateway.is_loopback and not parts.has_keys:
        findings.append(
            Finding(
                ("gateway", "host"),
                f"{parts.gateway.host!r} is open to other machines, and no keys are given: "
                "add one under `keys`, or listen on 127.0.0.1",
            )
        )
    findings += _over_quota(parts)
    if parts.pool is not None:
        findings += _pool_or_submission(parts, parts.pool)
        findings += _sizes(parts, parts.pool)
        findings += _nodes(parts, parts.pool)
    return findings


def _duplicate_names(parts: Parts) -> Iterator[Finding]:
    # Endpoints and jobs share one space of names: `ebbtide why NAME` must mean one workload.
    for group in (("endpoints", "jobs"), ("keys",), ("teams",)):
        seen: dict[str, str] = {}
        for kind in group:
            for index, name in parts.names.get(kind) or ():
                if name in seen:
                    yield Finding((kind, index, "name"), f"the name {name!r} is already taken by {seen[name]}")
                else:
                    seen[name] = f"{kind}[{index}]"


def _engine_arguments(parts: Parts) -> Iterator[Finding]:
    for index, endpoint in parts.endpoints.items():
        for key, value in endpoint.engine.items():
            loc: Loc = ("endpoints", index, "engine", key)
            plain = key.removeprefix("--").replace("-", "_")
            if plain in RESERVED_ENGINE_KEYS:
                yield Finding(loc, f"{key!r} is not yours to set: {RESERVED_ENGINE_KEYS[plain]}", at_key=True)
            elif plain == "trust_remote_code" and value is not False:
                yield Finding(loc, "code from a model directory is never run: only false is accepted")
            elif plain != key or not key.isidentifier():
                yield Finding(loc, f"{key!r} is no Python name", f"write {plain!r}", at_key=True)


def _unknown_endpoints(parts: Parts) -> Iterator[Finding]:
    named = parts.names.get("endpoints")
    if named is None:
        return
    known = [name for _, name in named]
    for index, key in parts.keys.items():
        for position, name in enumerate(() if key.endpoints == "all" else key.endpoints):
            if name not in known:
                loc = ("keys", index, "endpoints", position)
                yield Finding(loc, f"there is no endpoint {name!r}", did_you_mean(name, known))


def _over_quota(parts: Parts) -> Iterator[Finding]:
    quotas = {team.name: team.quota for team in parts.teams.values()}
    for index, job in parts.jobs.items():
        quota = quotas.get(job.team)
        if quota is not None and job.workers.min > quota:
            yield Finding(
                ("jobs", index, "workers", "min"),
                f"min is {job.workers.min}, and the quota of team {job.team} is {quota} slots: it would wait for ever",
            )


def _pool_or_submission(parts: Parts, pool: PoolSection) -> Iterator[Finding]:
    if pool.shared_dir is not None:
        return
    for kind in ("endpoints", "keys"):
        if parts.names.get(kind):
            yield Finding(
                ("pool",),
                f"shared_dir is required because the file has {kind} "
                "(only a file with nothing but jobs for a running pool may leave it out)",
                at_key=True,
            )
            return


def _sizes(parts: Parts, pool: PoolSection) -> Iterator[Finding]:
    if pool.shared_dir is not None:
        for index, job in parts.jobs.items():
            if job.in_place and job.host_memory_per_worker > pool.host_memory_per_node:
                yield Finding(
                    ("jobs", index, "host_memory_per_worker"),
                    f"one parked worker needs {job.host_memory_per_worker} bytes and a node lends "
                    f"{pool.host_memory_per_node}: raise pool.host_memory_per_node, or set in_place: false",
                )
    if pool.slots != "all":
        yield from over_capacity(parts, pool.slots, pool.reserve)
    elif pool.nodes_max is not None and pool.node_gpus is not None:
        yield from over_capacity(parts, pool.nodes_max * pool.node_gpus, pool.reserve)
    if pool.num_cpus is not None:
        yield from _over_cpus(parts, pool.num_cpus)


def over_capacity(parts: Parts, slots: int, reserve: int) -> Iterator[Finding]:
    """What is promised beyond what a pool of so many slots has, ``reserve`` of which jobs leave free."""
    if reserve >= slots:
        yield Finding(("pool", "reserve"), f"reserve is {reserve}, and the pool has {slots} slots: none is left")
    always = 0
    for index, endpoint in parts.endpoints.items():
        if endpoint.gpus_per_replica > slots:
            yield Finding(
                ("endpoints", index, "gpus_per_replica"),
                f"gpus_per_replica is {endpoint.gpus_per_replica}, and the pool has {slots} slots",
            )
            continue
        before, always = always, always + endpoint.replicas.min * endpoint.gpus_per_replica
        if before <= slots < always:
            yield Finding(
                ("endpoints", index, "replicas", "min"),
                f"replicas that always run need {always} slots up to here, and the pool has {slots}",
            )
    yield from _scheduled(parts, slots)
    left = slots - reserve - always
    for index, job in parts.jobs.items():
        if reserve < slots and job.workers.min > left >= 0:
            yield Finding(
                ("jobs", index, "workers", "min"),
                f"min is {job.workers.min}, and jobs can have at most {left} slots ({slots} less the reserve of "
                f"{reserve} and {always} of replicas that always run): it would wait for ever",
            )
    yield from _guarantees(parts, slots, reserve, always)


def _over_cpus(parts: Parts, cpus: int) -> Iterator[Finding]:
    """``cpus``: logical CPUs of the cluster that `up` starts. Ray places nothing for which they do not suffice."""
    always = sum(endpoint.replicas.min * endpoint.cpus_per_replica for endpoint in parts.endpoints.values())
    gangs = {job.name: job.workers.min * job.cpus_per_worker for job in parts.jobs.values()}
    largest = max(gangs, key=lambda name: gangs[name], default=None)
    asked = always + (gangs[largest] if largest is not None else 0)
    if asked > cpus:
        what = "replicas that always run" + (f" and the smallest gang of {largest}" if largest is not None else "")
        why = f"num_cpus is {cpus}, and {what} ask for {asked:g} CPUs: some would wait for ever"
        yield Finding(("pool", "num_cpus"), why, f"leave it out, or write {math.ceil(asked)} or more")


def _nodes(parts: Parts, pool: PoolSection) -> Iterator[Finding]:
    """What a pool needs whose size may change."""
    if pool.nodes_max is None:
        return
    if pool.ray_address is None:
        why = "only a cluster that is joined (ray_address) can have an autoscaler: what `up` starts has one node"
        yield Finding(("pool", "nodes_max"), why, at_key=True)
    if pool.nodes_min > pool.nodes_max:
        yield Finding(("pool", "nodes_min"), f"nodes_min is {pool.nodes_min}, and nodes_max is {pool.nodes_max}")
    if pool.node_gpus is None:
        why = "nodes_max needs node_gpus: the GPUs of a node that the autoscaler starts"
        yield Finding(("pool", "nodes_max"), why, at_key=True)
    if parts.gateway is not None and parts.gateway.per_node:
        why = "a gateway on every node keeps Ray from ever taking one away: leave nodes_max out, or per_node"
        yield Finding(("gateway", "per_node"), why)


def _scheduled(parts: Parts, slots: int) -> Iterator[Finding]:
    for index, endpoint in parts.endpoints.items():
        for position, one in enumerate(endpoint.scheduled):
            needed = one.replicas * endpoint.gpus_per_replica
            if endpoint.gpus_per_replica <= slots < needed:
                loc = ("endpoints", index, "scheduled", position, "replicas")
                yield Finding(loc, f"{one.replicas} replicas at {one.at} need {needed} slots, and the pool has {slots}")


def _guarantees(parts: Parts, slots: int, reserve: int, always: int) -> Iterator[Finding]:
    """``always``: slots of replicas that always run."""
    left, promised = slots - reserve - always, 0
    for index, team in parts.teams.items():
        before, promised = promised, promised + team.guarantee
        if before <= left < promised:
            yield Finding(
                ("teams", index, "guarantee"),
                f"teams are promised {promised} slots up to here, and {max(0, left)} can be promised: the pool has "
                f"{slots}, {always} are for replicas that always run, and the reserve is {reserve}",
            )
