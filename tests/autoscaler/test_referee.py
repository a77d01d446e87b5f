"""What the referee of simulated decisions itself got wrong: it failed seeds in which no promise was broken."""

from collections.abc import Sequence
from dataclasses import replace

from ebbtide.pool.events import (
    DrainSeat,
    Event,
    GrantJob,
    GrantSeat,
    JobSubmitted,
    NodeDraining,
    StopJob,
    WakeSeat,
)
from ebbtide.pool.ids import EndpointName, JobName, NodeId, RecordId
from ebbtide.pool.spec import Scheduled
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.plan.fair_share import Team
from ebbtide_autoscaler.core.plan.inputs import EndpointMemory, Memory, PolicyConfig
from ebbtide_autoscaler.core.tick.tick import TickResult, World
from tests.autoscaler.closed_loop import Loop, a_job, an_endpoint
from tests.autoscaler.referee import Books
from tests.autoscaler.referee_jobs import (
    minima_are_left_to_those_who_come_back,
    the_least_important_goes_first,
    within_quota,
)
from tests.autoscaler.referee_seats import a_held_request_gets_a_replica
from tests.autoscaler.referee_teams import what_is_scheduled_is_aimed_at
from tests.builders.closed_loop import a_case
from tests.builders.policy import (
    CHAT,
    CONFIG,
    NOW,
    S0,
    S1,
    SEAT0,
    SEAT1,
    WARMS,
    a_pool,
    crashed,
    fold,
    signals,
    warm,
    with_job,
    with_ready,
)

EMBED = EndpointName("embed")


def test_a_slot_on_which_a_replica_wakes_is_not_free_for_another_one() -> None:
    state = warm(a_pool(nodes={"n0": 1}, endpoints=(WARMS, replace(an_endpoint(), name=EMBED))))
    traffic = {CHAT: signals(held=1), EMBED: signals(held=1)}
    assert not list(a_held_request_gets_a_replica(a_case(state, WakeSeat(SEAT0, "r"), traffic=traffic)))
    assert len(list(a_held_request_gets_a_replica(a_case(state, traffic=traffic)))) == 1


def test_a_preemption_counts_though_the_arbiter_died_as_it_wrote_it() -> None:
    state = with_job(a_pool(), a_job("low", max_preemptions_per_h=1), (S0,))
    state = with_job(state, replace(a_job("high"), priority=1), (S1,))
    asks, books = StopJob(JobName("high"), "r", preempts=True), Books()
    [wrong] = the_least_important_goes_first(a_case(state, asks, books=books))
    assert "low of less priority stays" in wrong
    before = StopJob(JobName("low"), "r", preempts=True)
    books.found(state, [Event(RecordId("1-1"), NOW - 60.0, None, before)])
    assert not list(the_least_important_goes_first(a_case(state, asks, books=books)))


class Listens:
    """Keeps what it is told of."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def judge(self, now_s: float, before: World, result: TickResult, seen: Observation, config: PolicyConfig) -> None:
        """All decisions are fine."""

    def found(self, state: PoolState, events: Sequence[Event]) -> None:
        """Keep them."""
        self.heard += events


def test_it_hears_of_what_only_the_ledger_knows() -> None:
    listens = Listens()
    loop = Loop(1, on_disk=True, referee=listens)
    try:
        loop.run(2.0)
        assert loop.ledger is not None
        assert not listens.heard
        written = Event(RecordId(f"{loop.ledger.epoch}.999"), loop.now_s, None, NodeDraining(NodeId("n0"), "test"))
        loop.ledger.write([written], None)
        loop.kill_arbiter(1.0)
        loop.run(3.0)
        assert listens.heard == [written]
    finally:
        loop.close()


def test_of_two_minima_of_a_team_only_those_within_its_quota_are_left_to_it() -> None:
    state = a_pool()
    for name in ("first", "second"):
        state = fold(state, JobSubmitted(replace(a_job(name), workers_min=1, team="blue"), "i"))
    waits, config = list(state.jobs.values()), replace(CONFIG, teams=(Team("blue", quota=1),))
    case = replace(a_case(state), config=config)
    assert [job.spec.name for job in within_quota(case, waits)] == ["first"]
    assert len(within_quota(replace(case, config=CONFIG), waits)) == 2


def test_a_minimum_is_not_missed_by_what_another_one_took_that_came_first() -> None:
    """Seed 5029: the first is at its team's quota once it has its slot, and was taken for one that waits for none."""
    state = crashed(crashed(a_pool(nodes={"n0": 2}), "first", 1, 1), "second", 2, 2)
    state = replace(
        state, jobs={name: replace(job, spec=replace(job.spec, team=name)) for name, job in state.jobs.items()}
    )
    config = replace(CONFIG, teams=(Team("first", quota=1),))
    grants = GrantJob(JobName("first"), (S0,), "r"), GrantSeat(SEAT0, (S1,), "r")
    assert not list(minima_are_left_to_those_who_come_back(replace(a_case(state, *grants), config=config)))
    alone = crashed(a_pool(nodes={"n0": 2}), "second", 2, 2)
    [wrong] = minima_are_left_to_those_who_come_back(a_case(alone, grants[1]))
    assert wrong.startswith("replicas get ['n0:1']")


def test_a_team_lends_nothing_of_what_it_was_promised_to_one_that_starves() -> None:
    state = with_job(a_pool(), replace(a_job("low"), team="red"), (S0,))
    state = with_job(state, replace(a_job("high"), team="blue", priority=1), (S1,))
    state = fold(state, JobSubmitted(replace(a_job("first"), team="blue"), "i"))
    asks = StopJob(JobName("high"), "first, which came before it and has waited for 1800 s", preempts=True)
    case = a_case(state, asks)
    promised, lends = (replace(CONFIG, teams=(Team("red", guarantee=given), Team("blue"))) for given in (1, 0))
    assert not list(the_least_important_goes_first(replace(case, config=promised)))
    assert len(list(the_least_important_goes_first(replace(case, config=lends)))) == 1
    replica = replace(case, config=promised, moves=(StopJob(JobName("high"), "1 slot for chat", preempts=True),))
    assert len(list(the_least_important_goes_first(replica))) == 1, "to a replica each lends"


def test_a_replica_that_sleeps_is_none_of_those_that_are_scheduled() -> None:
    launch = Scheduled(days=tuple(range(7)), from_minute=0, minutes=1440, replicas=1)
    state = a_pool(endpoints=(replace(WARMS, scheduled=(launch,)),))
    aims, traffic = Memory({CHAT: EndpointMemory(aim=1)}), {CHAT: signals()}
    both = with_ready(warm(state), SEAT1, (S1,))
    sleeper = replace(a_case(both, DrainSeat(SEAT0, "r"), traffic=traffic), memory=aims)
    assert not list(what_is_scheduled_is_aimed_at(sleeper))
    awake = replace(a_case(both, DrainSeat(SEAT1, "r"), traffic=traffic), memory=aims)
    assert len(list(what_is_scheduled_is_aimed_at(awake))) == 1
