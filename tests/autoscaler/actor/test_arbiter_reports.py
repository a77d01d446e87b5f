"""What the arbiter believes of a report: not what was overtaken on its way, and nothing of an earlier lease or gang."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.client.messages import (
    AgentReport,
    ControllerPhase,
    ControllerReport,
    GatewayReport,
    LimitShare,
    LockHolder,
    RankPhase,
    RankReport,
    ReplicaPhase,
    ReplicaReport,
    RoutingTable,
)
from ebbtide.pool.events import (
    Body,
    DrainSeat,
    EndpointDeclared,
    GrantSeat,
    JobEnded,
    JobSubmitted,
    SeatGone,
    SeatLanded,
    SeatReady,
    SeatStopped,
    Slot,
    SlotFound,
    SlotFreed,
    SlotUnfenced,
)
from ebbtide.pool.ids import JobName, NodeId, SeatId, SlotId, slot_id
from ebbtide_autoscaler.actor.arbiter import Arbiter
from ebbtide_autoscaler.control.inbox import GATEWAY_PRESENT_S
from ebbtide_autoscaler.core.observe.observation import Observation, Timestamped
from ebbtide_autoscaler.process.steady_clock import clock
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.arbiter import FakeLoop, N, an_arbiter

TRAIN, SEAT = JobName("train"), SeatId("chat/0")
S0, S1 = slot_id(N, 0), slot_id(N, 1)
RANK = RankReport(
    job="train",
    incarnation="i1",
    rank=0,
    world=1,
    node="n",
    pid=7,
    lease_epoch=3,
    directive=2,
    phase=RankPhase.RUNNING,
    step=9,
    durable_step=0,
    seq=5,
)
REPLICA = ReplicaReport(SEAT, "a", "n", 7, 3, ReplicaPhase.READY, "http://x", seq=5)
AGENT = AgentReport("n", "boot", {0: LockHolder("train", 3, 7, 1)}, sent_boot_s=50.0)
GATEWAY = GatewayReport("g", "n", 1.0, "http://g", 4, {}, seq=5)


@pytest.fixture
def loop() -> FakeLoop:
    made = FakeLoop()
    for index, slot in enumerate((S0, S1)):
        made.inbox.submit(SlotFound(Slot(slot, N, index)))
        made.inbox.submit(SlotFreed(slot))
    made.inbox.submit(EndpointDeclared(an_endpoint()))
    made.inbox.submit(JobSubmitted(a_job(), "i1"))
    return made


@pytest.mark.proves("a rank's word of an earlier lease is dropped", "a rank's word that was overtaken is dropped")
@pytest.mark.parametrize(
    "late",
    [replace(RANK, seq=4, step=8), replace(RANK, seq=9, lease_epoch=2), replace(RANK, pid=8, seq=1, lease_epoch=2)],
    ids=["overtaken", "of a lease before", "another process, of a lease before"],
)
def test_an_older_word_of_a_rank_does_not_replace_a_newer_one(loop: FakeLoop, late: RankReport) -> None:
    arbiter = an_arbiter(loop)
    arbiter.report_rank(RANK)
    arbiter.report_rank(late)
    assert loop.inbox.ranks[TRAIN, 0].report is RANK
    newer = replace(RANK, pid=8, seq=1)
    arbiter.report_rank(newer)
    assert loop.inbox.ranks[TRAIN, 0].report is newer, "a new process counts from one"


@pytest.mark.parametrize(
    "late",
    [replace(REPLICA, seq=4), replace(REPLICA, seq=9, lease_epoch=2), replace(REPLICA, replica="b", lease_epoch=2)],
    ids=["overtaken", "of a lease before", "another process, of a lease before"],
)
@pytest.mark.proves("a replica's word of an earlier lease is dropped")
def test_an_older_word_of_a_replica_does_not_replace_a_newer_one(loop: FakeLoop, late: ReplicaReport) -> None:
    arbiter = an_arbiter(loop)
    arbiter.report_replica(REPLICA)
    arbiter.report_replica(late)
    assert loop.inbox.replicas[SEAT].report is REPLICA
    newer = replace(REPLICA, pid=8, seq=1)
    arbiter.report_replica(newer)
    assert loop.inbox.replicas[SEAT].report is newer, "a new process counts from one"


@pytest.mark.proves("an agent's word that was overtaken is dropped")
def test_an_overtaken_word_of_an_agent_frees_no_lock_that_was_taken_since(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    arbiter.report_agent(AGENT)
    arbiter.report_agent(replace(AGENT, holders={0: None}, sent_boot_s=49.0))
    assert loop.inbox.agents[N].report is AGENT
    booted = replace(AGENT, holders={0: None}, boot_id="another", sent_boot_s=1.0)
    arbiter.report_agent(booted)
    assert loop.inbox.agents[N].report is booted


@pytest.mark.proves("what an agent of other code reports is not taken in")
def test_what_an_agent_of_other_code_reports_is_not_taken_in(loop: FakeLoop) -> None:
    """It may have been told of slots by an earlier arbiter, and mean something else by what it says of them."""
    arbiter = an_arbiter(loop)
    arbiter.report_agent(replace(AGENT, code=loop.inbox.code))
    assert N in loop.inbox.agents
    arbiter.report_agent(replace(AGENT, code="0123456789ab", sent_boot_s=AGENT.sent_boot_s + 1.0))
    assert N not in loop.inbox.agents


def test_an_agent_is_asked_to_look_again_until_it_has_looked_after_the_last_change_of_a_slot(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    assert not arbiter.report_agent(AGENT).again, "its slots wait for nothing"
    loop.inbox.submit(SlotUnfenced(S0))
    first = arbiter.report_agent(replace(AGENT, sent_boot_s=51.0))
    assert first.again
    looked = replace(AGENT, after=first, sent_boot_s=52.0)
    assert not arbiter.report_agent(looked).again
    assert loop.inbox.agents[N].report.after == first
    of_before = replace(first, arbiter="another", at_s=first.at_s + 3600.0)  # its clock was ahead
    assert arbiter.report_agent(replace(AGENT, after=of_before, sent_boot_s=53.0)).again
    assert loop.inbox.agents[N].report.after is None


def test_a_look_for_which_a_slot_waits_is_news_although_nobody_else_is_there(loop: FakeLoop) -> None:
    loop.inbox.submit(SlotUnfenced(S0))
    woken: list[AgentReport] = []

    def news(report: AgentReport) -> bool:
        loop.inbox.wake = lambda: woken.append(report)
        loop.inbox.take_agent(report, loop.published.state)
        return woken[-1:] == [report]

    assert news(AGENT)
    assert not news(replace(AGENT, sent_boot_s=51.0))
    answer = loop.inbox.answer_agent(AGENT, loop.published.state)
    looked = replace(AGENT, after=answer, sent_boot_s=52.0)
    assert news(looked)
    assert not news(replace(looked, sent_boot_s=53.0))


@pytest.mark.proves(
    "a controller's word that was overtaken is dropped",
    "a gateway's word that was overtaken is dropped",
)
def test_an_overtaken_word_of_a_controller_or_a_gateway_is_dropped(loop: FakeLoop) -> None:
    arbiter = an_arbiter(with_gateways(loop))
    now = ControllerReport("train", "i1", ControllerPhase.GANG, 3, seq=5)
    arbiter.report_controller(now)
    arbiter.report_controller(replace(now, phase=ControllerPhase.NO_GANG, seq=4))
    assert loop.inbox.controllers[TRAIN].report is now
    arbiter.report_gateway(GATEWAY)
    arbiter.report_gateway(replace(GATEWAY, routes_seen=3, seq=4))
    assert loop.inbox.gateways["g"].report is GATEWAY


@pytest.mark.proves(
    "a controller of an earlier submission is not listened to",
    "an earlier driver's last word ends nothing",
)
def test_a_controller_of_an_earlier_submission_is_sent_away_and_not_listened_to(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    old = ControllerReport("train", "i0", ControllerPhase.NO_GANG, 3)
    assert arbiter.report_controller(old).cancelled
    assert loop.inbox.controllers == {}
    arbiter.job_ended("train", "i0", "failed", "of the past")
    assert not loop.published.state.jobs[TRAIN].outcome
    arbiter.job_ended("train", "i1", "finished", "")
    assert loop.published.state.jobs[TRAIN].outcome == "finished: "


@pytest.mark.proves("a job that can never run is refused", "one job of a name at a time")
def test_one_job_of_a_name_at_a_time_and_none_that_can_never_run(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    before = loop.published.state
    assert arbiter.register_job(a_job(), "i1", {}) is not None, "asking again changes nothing"
    with pytest.raises(ValueError, match="train is waiting already"):
        arbiter.register_job(a_job(), "i2", {})
    with pytest.raises(ValueError, match="needs 3 slots at least; the pool has 2"):
        arbiter.register_job(a_job("large", workers_min=3), "i1", {})
    assert loop.published.world.state == before
    loop.inbox.submit(JobEnded(TRAIN, "finished", ""))
    arbiter.register_job(a_job(), "i2", {})
    assert loop.published.state.jobs[TRAIN].incarnation == "i2"


# ---- a replica's lease

PLACING: tuple[Body, ...] = (GrantSeat(SEAT, (S0,), "r"),)
READY: tuple[Body, ...] = (*PLACING, SeatLanded(SEAT, "a"), SeatReady(SEAT, ()))
DRAINING: tuple[Body, ...] = (*READY, DrainSeat(SEAT, "r"))
STOPPING: tuple[Body, ...] = (*DRAINING, SeatStopped(SEAT, "drained"))
COLD: tuple[Body, ...] = (*STOPPING, SlotFreed(S0), SeatGone(SEAT))


def has_lease(arbiter: Any, gpu_ids: tuple[int, ...] = (0,), node: str = "n") -> bool:
    found = arbiter.seat_lease(SEAT, "a", node, gpu_ids)
    return found is not None and [slot.index for slot in found.slots] == [0]


@pytest.mark.parametrize(
    ("story", "given"),
    [((), False), (PLACING, True), (READY, True), (DRAINING, False), (STOPPING, False), (COLD, False)],
    ids=["never granted", "placing", "ready", "draining", "stopping", "cold"],
)
@pytest.mark.proves("a replica whose seat has no granted slots gets no lease")
def test_a_replica_has_a_lease_only_while_its_seat_is_granted_slots(
    loop: FakeLoop, story: tuple[Body, ...], given: bool
) -> None:
    for body in story:
        loop.inbox.submit(body)
    assert has_lease(an_arbiter(loop)) is given


@pytest.mark.parametrize(("gpu_ids", "node"), [((1,), "n"), ((0, 1), "n"), ((), "n"), ((0,), "m")])
@pytest.mark.proves("a replica on other GPUs than granted gets no lease")
def test_a_replica_on_other_gpus_than_granted_gets_no_lease_and_is_noted(
    loop: FakeLoop, gpu_ids: tuple[int, ...], node: str
) -> None:
    arbiter = an_arbiter(loop)
    loop.inbox.submit(PLACING[0])
    assert arbiter.seat_lease(SEAT, "a", node, gpu_ids) is None
    assert set(loop.inbox.misplaced[SEAT].report) == {SlotId(f"{node}:{index}") for index in gpu_ids}
    assert has_lease(arbiter)


# ---- gateways


def with_gateways(loop: FakeLoop) -> Any:
    """``loop``, with all that an answer to a gateway is made of."""
    made: Any = loop
    made.published.seen = Observation(started_s=time.time() - 60.0)
    made.published.routing_table = RoutingTable(7, {})
    made.keys = SimpleNamespace(
        orders=lambda seen, routes, share: SimpleNamespace(keys_seen=seen, routes=routes, share=share)
    )
    return made


def routes(arbiter: Arbiter) -> RoutingTable | None:
    return arbiter.report_gateway(GATEWAY).routes


@pytest.mark.proves("no gateway is told of routes before they are known")
def test_no_gateway_is_told_of_routes_before_they_are_known(loop: FakeLoop) -> None:
    """An empty table would hold every request although replicas serve: the last one stays in force."""
    made = with_gateways(loop)
    arbiter = an_arbiter(made)
    assert routes(arbiter) == made.published.routing_table
    config, made.file.config = made.file.config, None
    assert routes(arbiter) is None
    made.file.config, made.published.seen = config, None
    assert routes(arbiter) is None
    for body in READY:
        loop.inbox.submit(body)
    made.published.seen = Observation(started_s=time.time())
    assert routes(arbiter) is None, "a ready replica has not been heard by this arbiter yet"
    made.published.seen = Observation(started_s=time.time() - 60.0)
    assert routes(arbiter) == made.published.routing_table, "and it is not waited for for ever"


def test_gateways_are_told_their_parts_of_the_limits_in_the_order_of_their_nodes(loop: FakeLoop) -> None:
    arbiter = an_arbiter(with_gateways(loop))
    loop.inbox.started_s = clock.now_s() - 60.0

    def told(*gateways: GatewayReport) -> list[LimitShare | None]:
        for one in gateways:
            arbiter.report_gateway(one)
        return [arbiter.report_gateway(one).share for one in gateways]

    first, second = replace(GATEWAY, node="b"), replace(GATEWAY, gateway="h", node="a")
    assert told(first) == [LimitShare(0, 1)]
    assert told(first, second) == [LimitShare(1, 2), LimitShare(0, 2)]
    loop.inbox.gateways["g"] = Timestamped(clock.now_s() - GATEWAY_PRESENT_S - 1, first)
    again = replace(first, gateway="i", started_s=2.0)
    assert told(again, second) == [LimitShare(1, 2), LimitShare(0, 2)], "one that was restarted has the same place"


def test_a_gateway_whose_late_report_comes_after_a_long_silence_is_one_of_those_that_share(loop: FakeLoop) -> None:
    arbiter = an_arbiter(with_gateways(loop))
    loop.inbox.started_s = clock.now_s() - 60.0
    loop.inbox.gateways["g"] = Timestamped(clock.now_s() - GATEWAY_PRESENT_S - 1, replace(GATEWAY, seq=GATEWAY.seq + 1))
    assert arbiter.report_gateway(GATEWAY).share == LimitShare(0, 1)


@pytest.mark.proves("an arbiter that has not heard all gateways changes no part of the limits")
def test_an_arbiter_that_has_not_heard_all_gateways_leaves_them_the_parts_that_they_have(loop: FakeLoop) -> None:
    """It would tell each that comes first that it is the only one, and that the whole limit is its own."""
    arbiter = an_arbiter(with_gateways(loop))
    loop.inbox.started_s = clock.now_s()
    assert arbiter.report_gateway(GATEWAY).share is None, "it has just started"
    loop.inbox.started_s = clock.now_s() - GATEWAY_PRESENT_S - 1
    assert arbiter.report_gateway(GATEWAY).share == LimitShare(0, 1)
    loop.inbox.back_s = clock.now_s()
    assert arbiter.report_gateway(GATEWAY).share is None, "it was paused, and nobody was heard meanwhile"


@pytest.mark.proves(
    "no controller is answered before the ledger is open",
    "no job is taken in before the ledger is open",
    "nothing is told before the ledger is open",
)
def test_nothing_is_answered_before_the_ledger_was_read(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    loop.ledger.opened = False
    assert arbiter.hello() is None
    assert arbiter.register_job(a_job("other"), "i9", {}) is None
    assert arbiter.report_controller(ControllerReport("train", "i9", ControllerPhase.NO_GANG, 0)) is None
    assert JobName("other") not in loop.published.state.jobs and loop.inbox.controllers == {}
    assert NodeId("n") in loop.published.state.nodes
