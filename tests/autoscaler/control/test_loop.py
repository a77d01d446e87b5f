"""The loop around the pure step, on a real ledger: what it passes on, and what it keeps back."""

import time

import pytest

from ebbtide.client.messages import ReplicaPhase, ReplicaReport
from ebbtide.ledger import epoch_file
from ebbtide.pool.events import (
    Body,
    GrantSeat,
    JobSubmitted,
    NodeFound,
    SeatLanded,
    SeatReady,
    SlotFreed,
)
from ebbtide.pool.ids import EndpointName, NodeId
from ebbtide.pool.transitions import JobState, SeatState
from ebbtide_autoscaler.control import inbox as reports_module
from ebbtide_autoscaler.control import loop as loop_module
from ebbtide_autoscaler.core.demand.demand_watch import Closed
from ebbtide_autoscaler.core.forecast.demand_bins import BIN_S, Bin, bin_of
from ebbtide_autoscaler.core.observe.observation import Timestamped
from ebbtide_autoscaler.journal import records as journal_module
from ebbtide_autoscaler.journal.demand_records import demand_record
from ebbtide_autoscaler.process.steady_clock import SteadyClock
from tests.autoscaler.closed_loop import a_job
from tests.builders.arbiter import (  # noqa: F401 - fixtures
    S0,
    S1,
    SEAT,
    SLOTS,
    TRAIN,
    NoCluster,
    NoJobs,
    Serve,
    Start,
    asked,
    start,
    ticks,
    until,
)

SERVES: tuple[Body, ...] = (GrantSeat(SEAT, (S0,), "r"), SeatLanded(SEAT, "a"), SeatReady(SEAT, ()))


@pytest.mark.proves("the loop of an observing pool passes on no fence to be taken")
@pytest.mark.parametrize(("mode", "taken"), [("manage", True), ("observe", False)])
def test_an_observing_pool_asks_for_no_fence(start: Start, asked: list[str], mode: str, taken: bool) -> None:
    loop = start(*SLOTS, mode=mode)
    until(lambda: bool(asked)) if taken else ticks(loop, 5)
    assert set(asked) == ({S0, S1} if taken else set())


@pytest.mark.proves("an observing pool drains nothing for its file")
@pytest.mark.parametrize(("mode", "then"), [("manage", SeatState.DRAINING), ("observe", SeatState.READY)])
def test_an_observing_pool_drains_no_replica_for_its_file(
    start: Start, asked: list[str], mode: str, then: SeatState
) -> None:
    loop = start(*SLOTS, SlotFreed(S0), *SERVES, mode=mode, endpoints=())
    loop.inbox.replicas[SEAT] = Timestamped(
        time.time() + 3600.0, ReplicaReport(SEAT, "a", "n", 1, 1, ReplicaPhase.READY)
    )
    if mode == "manage":
        until(lambda: loop.published.state.seats[SEAT].state is then)
    ticks(loop, 5)
    assert loop.published.state.seats[SEAT].state is then
    assert next(iter(loop.published.state.endpoints.values())).spec.replicas_max == 0, "that it retires is no move"


@pytest.mark.proves("a new arbiter decides when every replica has reported")
def test_a_new_arbiter_decides_nothing_before_it_has_heard_every_replica(start: Start, asked: list[str]) -> None:
    started = [*SLOTS, SlotFreed(S0), SlotFreed(S1), *SERVES, JobSubmitted(a_job(workers_max=1), "i")]
    loop = start(*started)
    ticks(loop, 5)
    assert loop.published.settling_since_s and loop.published.state.jobs[TRAIN].state is JobState.WAITING
    loop.inbox.replicas[SEAT] = Timestamped(time.time(), ReplicaReport(SEAT, "a", "n", 1, 1, ReplicaPhase.READY))
    until(lambda: not loop.published.settling_since_s)
    until(lambda: loop.published.state.jobs[TRAIN].state is JobState.STARTING)


def test_a_new_arbiter_is_not_behind_the_demand_that_its_ledger_knows(
    start: Start, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the one before was ahead; behind its own bins no forecast could be made from them."""
    mine = SteadyClock()
    monkeypatch.setattr(loop_module, "clock", mine)  # of this test alone
    ahead = bin_of(time.time()) + 10
    start(*SLOTS, records=(demand_record(Closed(EndpointName("chat"), ahead, Bin(1.0, 2.0))),))
    until(lambda: mine.now_s() >= (ahead + 1) * BIN_S)


@pytest.mark.proves("the loop notices that it was away")
def test_a_loop_that_was_stopped_knows_that_it_was_away(
    start: Start, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped() -> None:
        time.sleep(0.8)

    monkeypatch.setattr(reports_module, "AWAY_S", 0.5)
    loop = start(*SLOTS)
    ticks(loop)
    loop.inbox.back_s = 0.0
    loop.thread.run(stopped())  # a stopped process does not run its loop either
    until(lambda: loop.inbox.back_s > 0.0)
    until(lambda: loop.published.seen is not None and loop.published.seen.back_s == loop.inbox.back_s)


@pytest.mark.proves("no room for a snapshot stops nothing")
def test_without_room_for_a_snapshot_the_pool_moves_on(
    start: Start, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SNAPSHOT_FILES", 0)
    monkeypatch.setattr(epoch_file, "free_bytes", lambda _: 0)
    loop = start(*SLOTS)
    epoch = loop.ledger.epoch
    for number in range(3):
        loop.inbox.submit(NodeFound(NodeId(f"m{number}"), 0))
        until(lambda number=number: NodeId(f"m{number}") in loop.published.state.nodes)  # type: ignore[misc]
        ticks(loop, 2)
    assert (loop.published.still.by, loop.ledger.epoch) == (None, epoch)
