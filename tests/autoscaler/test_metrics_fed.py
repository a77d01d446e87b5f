"""No metric is only registered: each is fed by the loop itself, or by something that happens to a pool."""

import os
import threading
from dataclasses import replace

import pytest

from ebbtide.pool.events import CancelJob, JobHeld, NodeDraining
from ebbtide.pool.ids import NodeId
from ebbtide.pool.transitions import JobState, SeatState
from ebbtide.telemetry import handover, pool, training
from ebbtide.telemetry.catalogue import series_names
from ebbtide.telemetry.metric_family import Family
from tests.autoscaler.closed_loop import KNOBS, an_endpoint
from tests.builders.arbiter import SLOTS, Start, asked, start, ticks  # noqa: F401 - fixtures
from tests.builders.arbiter import until as soon
from tests.builders.closed_loop import until
from tests.builders.metrics import TRAIN, Metered, one_tide
from tests.platform.telemetry.scrapes import values


class Shown:
    """The largest value that each family has had in any scrape."""

    def __init__(self, loop: Metered) -> None:
        self.loop, self._most = loop, dict[str, float]()

    def look(self) -> None:
        for key, value in self.loop.scrape().items():
            self._most[key[0]] = max(value, self._most.get(key[0], 0.0))

    def never(self, families: tuple[Family, ...]) -> list[str]:
        return [one.name for one in families if not max(self._most.get(name, 0.0) for name in series_names(one))]


def test_a_working_day_moves_every_metric_of_pool_hand_overs_and_training() -> None:
    loop = one_tide()
    shown = Shown(loop)
    shown.look()
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.PARKED)
    shown.look()  # what is lent to parked workers
    until(loop, lambda: any(seat.state is SeatState.READY for seat in loop.state.seats.values()))
    for actors in loop.cluster.serve.actors.values():
        for actor in list(actors):
            loop.cluster.serve.kill_actor(actor)
    loop.run(60.0)
    loop.knobs = replace(KNOBS, policy=replace(KNOBS.policy, restart_cost_s=1.0))
    loop.gateways[0].steady = True
    loop.gateways[0].rates["chat"] = 0.5
    until(loop, lambda: any(seat.state is SeatState.READY for seat in loop.state.seats.values()), 300.0)
    loop.run(120.0)  # too long for a park: it goes on with fewer
    driver = loop.drivers["train"]
    assert driver.gang is not None, loop.story()
    while driver.step - driver.durable < 3:
        loop.run(0.2)
    assert driver.gang is not None, loop.story()
    loop.cluster.machines.kill(driver.gang.ranks[0].process)
    loop.run(40.0)
    shown.look()
    loop.gateways[0].steady = False
    loop.gateways[0].rates["chat"] = 0.0
    loop.run(200.0)  # the job grows
    loop.tell(NodeDraining(NodeId("n0"), "new disk"))
    loop.tell(JobHeld(TRAIN, "me", "r"))
    loop.run(2.0)
    shown.look()
    loop.tell(CancelJob(TRAIN, "by me"))
    loop.run(60.0)
    shown.look()
    shown.loop = Metered(2)
    shown.loop.run(3.0)
    shown.loop.cluster.serve.load_fails = True
    shown.loop.gateways[0].offer("chat")
    shown.loop.run(40.0)
    shown.look()
    shown.loop = Metered(3, endpoints=(an_endpoint(warm_replicas=1),))
    shown.loop.cluster.serve.park_bytes = 30
    for _ in range(2):  # it parks, and wakes
        shown.loop.run(3.0)
        shown.loop.gateways[0].offer("chat")
        shown.loop.run(30.0)
        shown.look()
    assert shown.never((*pool.FAMILIES, *handover.FAMILIES, *training.FAMILIES)) == []


def test_every_tick_and_every_write_of_the_loop_itself_is_measured(
    start: Start,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = start(*SLOTS)
    ticks(loop, 5)
    soon(lambda: values(loop.meter.metrics.text()[0])[("ebbtide_tick_seconds_count",)] >= 5)
    found = values(loop.meter.metrics.text()[0])
    assert found[("ebbtide_step_seconds_count",)] >= 5 and found[("ebbtide_step_seconds_sum",)] > 0
    assert found[("ebbtide_tick_seconds_sum",)] > found[("ebbtide_step_seconds_sum",)]
    assert found[("ebbtide_ledger_commit_seconds_count",)] >= 1 and found[("ebbtide_ledger_commit_seconds_sum",)] > 0
    assert found[("ebbtide_ledger_fsync_seconds_count",)] >= 1 and found[("ebbtide_ledger_fsync_seconds_sum",)] > 0
    newest = max((loop.ledger._shared_dir / "ledger").glob("epoch-*.log"))
    assert found[("ebbtide_ledger_written_bytes_total",)] >= newest.stat().st_size > 0
    assert found[("ebbtide_arbiter_epoch",)] == loop.ledger.epoch > 1
    assert found["ebbtide_mode", "manage"] == 1 and found[("ebbtide_tick_failures_total",)] == 0

    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(loop.meter, "committed", fails)
        soon(lambda: values(loop.meter.metrics.text()[0])[("ebbtide_tick_failures_total",)] >= 1)
        assert values(loop.meter.metrics.text()[0])["ebbtide_frozen", "promise"] == 1
    soon(lambda: values(loop.meter.metrics.text()[0])["ebbtide_frozen", "promise"] == 0)


def test_an_append_that_hangs_shows_as_pending_with_its_age(
    start: Start,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = start(*SLOTS)
    ticks(loop)
    through = threading.Event()
    fsync = os.fsync

    def hangs(fd: int) -> None:
        through.wait(20)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", hangs)
    loop.thread.run(loop.ledger.record({"type": "note"}))
    try:
        soon(lambda: values(loop.meter.metrics.text()[0])[("ebbtide_ledger_pending_appends",)] >= 1)
        soon(lambda: values(loop.meter.metrics.text()[0])[("ebbtide_ledger_oldest_pending_seconds",)] > 0.2)
    finally:
        through.set()
    soon(lambda: values(loop.meter.metrics.text()[0])[("ebbtide_ledger_pending_appends",)] == 0)
