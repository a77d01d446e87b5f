"""How many nodes the pool should have between its bounds, and which of them may go. Pure.

More: when what is wanted has not fitted for ``grow_after_s``; below the least number at once. A node that was emptied
to go is taken back before one is started. Fewer: a node goes when nobody has been on it for ``idle_after_s``, all that
is wanted fits without it, and Ray's autoscaler can take it away; a node with an occupant never goes, and nobody is sent
away to empty one. Nodes that were asked for and are not there yet are asked for until they have not been needed for
``idle_after_s``.

So nothing swings: what makes a node go leaves nothing wanted that would call it back, and both ways wait.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ebbtide.pool.ids import EndpointName, NodeId
from ebbtide.pool.plural import many
from ebbtide.pool.rules.drain import occupants, unneeded_nodes
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.cluster.need import Need, need
from ebbtide_autoscaler.core.plan.fair_share import Team

NAMED = 3  # of those that lack slots, in a reason; the others are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeConfig:
    """The bounds, from the pool's file; the reasons of the defaults stand there."""

    nodes_min: int
    nodes_max: int
    node_slots: int  # of a node that is started
    grow_after_s: float = 30.0
    idle_after_s: float = 600.0
    reserve: int = 0
    teams: tuple[Team, ...] = ()


@dataclass(frozen=True, slots=True)
class SizeMemory:
    """What is carried from call to call. Times are seconds since 1970; None: it is not so now."""

    here: int = 0  # nodes that were there last
    asked: int = 0  # for so many beyond these
    over_since_s: float | None = None  # more are needed than are there and asked for
    under_since_s: float | None = None  # fewer are needed
    empty_since_s: Mapping[NodeId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DesiredSize:
    """What the pool should be. Whoever carries it out drains ``going`` and undrains ``back``."""

    nodes: int
    new: int  # of them are not there yet
    going: tuple[NodeId, ...]  # empty for long and needed by nobody
    back: tuple[NodeId, ...]  # were to go, and are needed again
    lacking: tuple[str, ...]  # workloads that wait for slots
    reason: str


def cluster_size(
    now_s: float,
    state: PoolState,
    aims: Mapping[EndpointName, int],
    removable: frozenset[NodeId],
    memory: SizeMemory,
    config: SizeConfig,
) -> tuple[DesiredSize, SizeMemory]:
    """How many nodes there should be now, and the memory for the next call.

    Args:
        now_s: seconds since 1970.
        state: the pool.
        aims: replicas that each endpoint should have, from the policy's memory.
        removable: nodes that Ray's autoscaler has started, and can take away.
        memory: what the last call returned.
        config: bounds and times.
    """
    unneeded = unneeded_nodes(state)
    staying = [node for node in state.nodes if node not in unneeded]
    usable = [node for node in staying if node not in state.draining]
    wanted = need(state, usable, aims, node_slots=config.node_slots, reserve=config.reserve, teams=config.teams)
    more = wanted.more_nodes(config.node_slots)
    room = max(0, config.nodes_max - len(staying))
    taken_back = min(max(more, config.nodes_min - len(staying), 0), room)
    back = tuple(node for node in state.nodes if node in unneeded)[:taken_back]
    here = len(staying) + len(back)
    # guard: no node is asked for beyond nodes_max
    lacking = min(max(more - len(back), config.nodes_min - here, 0), max(0, config.nodes_max - here))
    asked, over_s, under_s = _asked(now_s, here, lacking, memory, config)
    empty_since_s = _empty_since(now_s, state, usable, memory)
    long_empty = [node for node, since_s in empty_since_s.items() if now_s - since_s >= config.idle_after_s]
    may_go = sorted(removable.intersection(long_empty), key=lambda node: (empty_since_s[node], node))
    going = () if asked or back else _going(may_go, wanted, here, config)
    wish = DesiredSize(
        nodes=min(max(here + asked - len(going), config.nodes_min), config.nodes_max),
        new=asked,
        going=going,
        back=back,
        lacking=tuple(str(lack.who) for lack in wanted.lacks) if asked or back else (),
        reason=f"{many(here, 'node')} of {config.nodes_min}..{config.nodes_max}: "
        + (_why_going(going, config) if going else _why(wanted, here, len(back), asked, more - len(back), config)),
    )
    return wish, SizeMemory(here, asked, over_s, under_s, empty_since_s)


def _asked(
    now_s: float, here: int, lacking: int, memory: SizeMemory, config: SizeConfig
) -> tuple[int, float | None, float | None]:
    """How many nodes to ask for beyond those here, and since when more, or fewer, have been needed."""
    asked = max(0, memory.asked - max(0, here - memory.here))  # those that have come are asked for no more
    asked = min(max(asked, config.nodes_min - here), max(0, config.nodes_max - here))
    if lacking > asked:  # guard: the cluster grows for what is lacking
        since_s = now_s if memory.over_since_s is None else memory.over_since_s
        return (lacking, None, None) if now_s - since_s >= config.grow_after_s else (asked, since_s, None)
    if lacking < asked:
        since_s = now_s if memory.under_since_s is None else memory.under_since_s
        return (lacking, None, None) if now_s - since_s >= config.idle_after_s else (asked, None, since_s)
    return asked, None, None


def _empty_since(
    now_s: float, state: PoolState, usable: Sequence[NodeId], memory: SizeMemory
) -> Mapping[NodeId, float]:
    """Since when each of these nodes that has nobody now has had nobody."""
    empty = (node for node in usable if not occupants(state, node))  # guard: a node with an occupant never goes
    return {node: memory.empty_since_s.get(node, now_s) for node in empty}


def _going(may_go: Sequence[NodeId], wanted: Need, here: int, config: SizeConfig) -> tuple[NodeId, ...]:
    """Of these, all that can go together."""
    found: list[NodeId] = []
    for node in may_go:
        enough = here - len(found) > config.nodes_min
        if (
            enough  # guard: no node goes below nodes_min
            and wanted.more_nodes(config.node_slots, frozenset((*found, node))) == 0
        ):
            found.append(node)
    return tuple(found)


def _why_going(going: tuple[NodeId, ...], config: SizeConfig) -> str:
    names = ", ".join(node[:8] for node in going)
    return f"{names} had nobody for {config.idle_after_s:g} s, and all that is wanted fits without"


def _why(wanted: Need, here: int, back: int, asked: int, more: int, config: SizeConfig) -> str:
    """``more``: how many are needed beyond those that are there and those taken back, whatever the bounds."""
    told = [lack.words for lack in wanted.lacks[:NAMED]]
    told += [f"{len(wanted.lacks) - NAMED} others wait"] if len(wanted.lacks) > NAMED else []
    who = " and ".join(told) or f"jobs and the reserve need {many(wanted.spread, 'slot')} at least"
    numbers = f"{who}; {many(sum(wanted.room.values()), 'slot')} could be had"
    begun = f"{back} taken back, " if back else ""
    if more > config.nodes_max - here:
        return f"{begun}{asked} more asked for of {more} needed, nodes_max is {config.nodes_max}; {numbers}"
    if more > asked and asked == 0 and not back:
        return f"{more} more needed, asked for if that lasts {config.grow_after_s:g} s; {numbers}"
    if more > asked:
        return f"{begun}{asked} more asked for of {more} needed; {numbers}"
    if more > 0 or (back and not asked):
        return f"{begun}{asked} more asked for; {numbers}"
    if asked:
        return f"{begun}{asked} more asked for, by nodes_min or until not needed for {config.idle_after_s:g} s"
    return "all that is wanted fits"
