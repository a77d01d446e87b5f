"""Pools that storms strike at, one for each seed: nodes, endpoints, teams, schedules, bounds of size, and what luck.

Three kinds of luck, by the seed. Harsh: all kinds of faults, faster than a pool can answer. Gentle: nothing that breaks
jobs or machines, but signals and arbiters. Busy: traffic and jobs come and go, starts are quick, and other faults are
rare, so that the policy has most to decide.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from ebbtide.pool.spec import EndpointSpec, Scheduled
from ebbtide_autoscaler.cluster.size import SizeConfig
from ebbtide_autoscaler.core.plan.fair_share import Team
from tests.autoscaler import referee_jobs, referee_seats, referee_teams
from tests.autoscaler.closed_loop import KNOBS, Loop, an_endpoint
from tests.autoscaler.referee import Referee

NODES: list[dict[str, int]] = [
    {"n0": 2},
    {"n0": 3},
    {"n0": 4},
    {"n0": 6},
    {"n0": 2, "n1": 2},
    {"n0": 4, "n1": 2},
    {"n0": 2, "n1": 2, "n2": 2},
]
STARTS_AT = 13 * 60 + 46  # minute of the day at which the virtual clock starts
EVERY_DAY = tuple(range(7))


@dataclass(frozen=True, slots=True)
class Luck:
    """How often what goes wrong.

    Attributes:
        gap_s: mean time between two faults, in a storm and in a lull; each of these lasts some seconds.
        weights: of the kinds of faults, by name; empty: of all kinds, as they are.
        weather: probabilities of a message to be lost, late and repeated, each one of these.
        jobs: at once; below the first another one comes at once, above the second none.
        quick: what starts is there within two seconds.
    """

    name: str
    gap_s: tuple[float, float]
    weights: Mapping[str, float]
    weather: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]] = ((0.0, 0.05, 0.3),) * 3
    jobs: tuple[int, int] = (2, 4)
    quick: bool = False


HARSH = Luck("harsh", (0.15, 1.0), {})
GENTLE = Luck(
    "gentle",
    (0.15, 1.0),
    {
        "flap": 4.0,
        "weather": 1.0,
        "silence": 2.0,
        "mute": 1.5,
        "skew": 0.7,
        "kill_arbiter": 0.3,
        "doom": 0.7,
        "disk_full": 0.4,
        "refuse": 1.0,
        "kill_gateway": 0.7,
        "kill_actor": 3.0,
    },
)
BUSY = Luck(
    "busy",
    (0.3, 1.5),
    {
        "flap": 9.0,
        "more_jobs": 3.0,
        "cancel": 0.7,
        "hold": 0.7,
        "release": 1.0,
        "drain": 0.4,
        "undrain": 1.0,
        "change": 0.3,
        "refuse": 0.5,
        "slow_checkpoints": 0.5,
        "no_space": 0.2,
        "corrupt": 0.5,
        "kill_rank": 0.7,
        "kill_actor": 0.4,
        "kill_engine": 0.4,
        "park_badly": 0.3,
        "silence": 0.2,
        "mute": 0.2,
        "weather": 0.5,
        "kill_arbiter": 0.05,
        "doom": 0.1,
        "lose_node": 0.1,
        "never_come": 0.3,
        "never_start": 0.1,
    },
    weather=((0.0, 0.0, 0.02), (0.0, 0.05, 0.1), (0.0, 0.1, 0.3)),
    jobs=(3, 6),
    quick=True,
)


def luck_of(seed: int) -> Luck:
    """Its kind."""
    return (HARSH, BUSY, GENTLE)[seed % 3]


def a_referee() -> Referee:
    """One that knows all rules."""
    return Referee(
        (*referee_jobs.OF_MOVES, *referee_seats.OF_MOVES, *referee_teams.OF_MOVES),
        (*referee_jobs.ALWAYS, *referee_seats.ALWAYS, *referee_teams.ALWAYS),
    )


def random_pool(seed: int) -> Loop:
    """A pool of one to three nodes with one or two endpoints."""
    random = Random(seed * 7919)
    nodes = random.choice(NODES)
    endpoints: tuple[EndpointSpec, ...] = (
        an_endpoint("chat", replicas_max=random.choice([1, 2, 3]), replicas_min=random.choice([0, 0, 1])),
    )
    if random.random() < 0.5:
        size = random.choice([1, 1, 2])
        endpoints += (an_endpoint("embed", priority=5, replicas_max=2 // size, slots_per_replica=size),)
    if random.random() < 0.3:
        endpoints = tuple(replace(spec, scheduled=_scheduled(random, spec)) for spec in endpoints)
    policy = replace(
        KNOBS.policy,
        reserve=random.choice([0, 0, 0, 1]),
        starve_after_s=random.choice([14_400.0, 14_400.0, 30.0]),
        teams=_teams(random, sum(nodes.values())) if random.random() < 0.4 else (),
    )
    host_bytes = random.choice([1000, 1000, 20, 0])
    bounds = None
    if random.random() < 0.25:
        bounds = SizeConfig(
            nodes_min=1,
            nodes_max=len(nodes) + random.choice([0, 1, 2]),
            node_slots=2,
            grow_after_s=random.choice([2.0, 6.0]),
            idle_after_s=random.choice([6.0, 20.0]),
            reserve=policy.reserve,
            teams=policy.teams,
        )
    return Loop(
        seed,
        nodes=nodes,
        endpoints=endpoints,
        knobs=replace(KNOBS, policy=policy),
        host_bytes=host_bytes,
        on_disk=True,
        referee=a_referee(),
        size=bounds,
    )


def _scheduled(random: Random, spec: EndpointSpec) -> tuple[Scheduled, ...]:
    """Some minutes of those that the storm lasts."""
    begins = [STARTS_AT + random.randrange(1, 8) for _ in range(random.choice([1, 2]))]
    return tuple(
        Scheduled(
            days=EVERY_DAY,
            from_minute=begin,
            minutes=random.choice([1, 1, 2]),
            replicas=random.randint(1, spec.replicas_max),
        )
        for begin in begins
    )


def _teams(random: Random, slots: int) -> tuple[Team, ...]:
    """Two of which either may have a guarantee and a quota; whoever is of neither is of the others."""
    red = random.randint(0, slots - 1)
    blue = random.randint(0, slots - red)

    def team(name: str, guarantee: int) -> Team:
        quota = random.choice([None, None, max(1, guarantee), guarantee + 1])
        return Team(name, guarantee, random.choice([1.0, 1.0, 2.0]), quota)

    return team("red", red), team("blue", blue)
