"""The report of ``ebbtide probe``: its shape is the schema that programs rely on (`docs/preemption.md` has an example).

Made from readings, purely. Fields are only ever added; ``version`` changes if one ever changes its meaning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ebbtide.diagnostics.probe.fact import Fact, Value, obstacles
from ebbtide.diagnostics.probe.node_reading import NodeReading
from ebbtide.diagnostics.probe.rehearsal import Act
from ebbtide.snapshot.tiers import Choice, Facts, Hindrance, Lane, Rates, Tier, Wish, choose, together
from ebbtide.snapshot.tiers.cost_model import REMAINDER_BYTES
from ebbtide.snapshot.tiers.formatting import IN_WORDS, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The workload that is probed.

    Attributes:
        kind: a job has safe points and a portable checkpoint, a session has neither.
        state: as `ebbtide status` shows it; "in a file" for a job that was never submitted.
        worker_bytes: tracked state of one worker, as declared.
        facts: about the workload itself, wherever it runs.
    """

    kind: Literal["job", "session"]
    name: str
    pool: str
    state: str
    worker_bytes: int
    grace_s: float
    kill_loses_s: float | None
    step_s: float = 0.0
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The workload on one node: its ranks' pids, how many workers it has there, and what is left of the budget.

    ``reading`` is a sentence where nobody could read the node.
    """

    node: str
    ranks: Mapping[int, int]
    workers: int
    budget_bytes: int | None
    reading: NodeReading | str


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WhyNot(_Line):
    """One thing in a tier's way, and what would mend it."""

    what: str
    remedy: str


class TierLine(_Line):
    """One tier on one node. Seconds and bytes are estimates, those of a tier that does not hold included.

    Attributes:
        durable_s: until the state survives its node; None: it never does.
        lost_s: of work, at most; None: all of it.
    """

    tier: Tier
    holds: bool
    way: str
    free_s: float
    resume_s: float
    durable_s: float | None
    ram_bytes: int
    disk_bytes: int
    lost_s: float | None
    why_not: tuple[WhyNot, ...]


class FactLine(_Line):
    """See `Fact`."""

    id: str
    what: str
    where: str
    value: Value
    hinders: tuple[str, ...]
    remedy: str


class RateLine(_Line):
    """A speed that was reckoned with."""

    lane: Lane
    bytes_per_s: float
    measured: bool
    origin: str


class NodeReport(_Line):
    """One node. ``unread`` says why nobody could read it; then the lists are empty, and choice is None."""

    node: str
    machine: str
    workers: int
    pids: dict[int, int]
    unread: str
    choice: Tier | None
    reason: str
    fallbacks: tuple[Tier, ...]
    tiers: tuple[TierLine, ...]
    rates: tuple[RateLine, ...]
    facts: tuple[FactLine, ...]


class ActLine(_Line):
    """One act of the rehearsal; ``failed``: bytes differed, or it could not be done."""

    name: str
    words: str
    failed: bool


class ProbeReport(_Line):
    """All of it. ``choice`` is what the whole workload would do; None: a node of it could not be read."""

    version: Literal[1] = 1
    kind: Literal["job", "session"]
    name: str
    pool: str
    state: str
    choice: Tier | None
    summary: str
    nodes: tuple[NodeReport, ...]
    rehearsal: tuple[ActLine, ...] = ()


def report(target: Target, places: Sequence[Place], acts: Sequence[Act] = ()) -> ProbeReport:
    """Verdicts for every node; at least one place."""
    wish = Wish(deadline_s=target.grace_s)
    choices: dict[str, Choice] = {}
    nodes = []
    for place in places:
        if isinstance(place.reading, str):
            nodes.append(_unread(place, place.reading))
            continue
        facts = (*target.facts, *place.reading.facts)
        found = choose(_facts(target, place, place.reading, facts), wish)
        choices[place.node] = found
        nodes.append(_node(place, place.reading, found, facts))
    unread = [node for node in nodes if node.unread]
    choice = None if unread else together(list(choices.values()))
    summary = unread[0].unread if unread else _summary(target, choice or Tier.KILL, choices)
    return ProbeReport(
        kind=target.kind,
        name=target.name,
        pool=target.pool,
        state=target.state,
        choice=choice,
        summary=summary,
        nodes=tuple(nodes),
        rehearsal=tuple(ActLine(name=act.name, words=act.words, failed=act.failed) for act in acts),
    )


def _facts(target: Target, place: Place, reading: NodeReading, facts: tuple[Fact, ...]) -> Facts:
    gpus = min(reading.gpus, place.workers)
    is_job = target.kind == "job"
    # What a session tracks nobody knows: its memory is all that there is to go by.
    tracked = target.worker_bytes * place.workers if is_job else 0
    return Facts(
        tracked_bytes=tracked,
        remainder_bytes=REMAINDER_BYTES * gpus,
        process_bytes=reading.process_bytes,
        host_free_bytes=reading.host_free_bytes,
        host_budget_bytes=place.budget_bytes,
        disk_free_bytes=reading.disk_free_bytes,
        gpus=gpus,
        cooperates=is_job,
        safe_point_s=target.step_s,
        kill_loses_s=target.kill_loses_s,
        rates=reading.rates,
        obstacles=obstacles(facts),
    )


def _node(place: Place, reading: NodeReading, choice: Choice, facts: tuple[Fact, ...]) -> NodeReport:
    return NodeReport(
        node=place.node,
        machine=reading.name,
        workers=place.workers,
        pids=dict(place.ranks),
        unread="",
        choice=choice.tier,
        reason=choice.reason,
        fallbacks=choice.fallbacks,
        tiers=tuple(_tier(choice, tier) for tier in Tier),
        rates=_rates(reading.rates, bool(reading.gpus)),
        facts=tuple(FactLine.model_validate(fact.as_json()) for fact in facts),
    )


def _tier(choice: Choice, tier: Tier) -> TierLine:
    one = choice.estimates[tier]
    against: tuple[Hindrance, ...] = choice.hindrances.get(tier, ())
    return TierLine(
        tier=tier,
        holds=not against,
        way=one.way,
        free_s=round(one.free_s, 3),
        resume_s=round(one.resume_s, 3),
        durable_s=None if one.durable_s is None else round(one.durable_s, 3),
        ram_bytes=one.ram_bytes,
        disk_bytes=one.disk_bytes,
        lost_s=one.lost_s,
        why_not=tuple(WhyNot(what=each.what, remedy=each.remedy) for each in against),
    )


def _rates(rates: Rates, has_gpu: bool) -> tuple[RateLine, ...]:
    of_gpus = (Lane.PCIE_OUT, Lane.PCIE_BACK, Lane.DRIVER_OUT, Lane.DRIVER_BACK)
    unused = (Lane.MEMCPY_OUT, Lane.MEMCPY_BACK) if has_gpu else of_gpus
    found = {lane: rates.of(lane) for lane in Lane if lane not in unused}
    return tuple(
        RateLine(lane=lane, bytes_per_s=one.bytes_per_s, measured=one.measured, origin=one.origin)
        for lane, one in found.items()
    )


def _unread(place: Place, why: str) -> NodeReport:
    return NodeReport(
        node=place.node,
        machine="",
        workers=place.workers,
        pids=dict(place.ranks),
        unread=why,
        choice=None,
        reason="",
        fallbacks=(),
        tiers=(),
        rates=(),
        facts=(),
    )


def _summary(target: Target, tier: Tier, choices: Mapping[str, Choice]) -> str:
    slowest = max(choices.values(), key=lambda one: one.estimates[tier].free_s)
    cost = slowest.estimates[tier]
    nodes = "" if len(choices) == 1 else f" on {len(choices)} nodes"
    words = f"{target.kind} {target.name}{nodes}: {IN_WORDS[tier]}"
    if tier is Tier.KILL:
        return f"{words}: {cost.way}"
    lost = "it loses nothing" if cost.lost_s == 0 else "it loses work"
    return f"{words}: slots free after {seconds(cost.free_s)}, back after {seconds(cost.resume_s)}, {lost}"
