"""A replica that parks and wakes, with a real engine process that holds real slot locks, and requests in between."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from ebbtide.agent.slot_locks.slot_lock import SlotLock, probe
from ebbtide.client.messages import Lease, ReplicaOrders, ReplicaPhase, SlotRef
from ebbtide_serve.engine.port import Engine, EngineSettings
from ebbtide_serve.engine.sleep import can_sleep
from ebbtide_serve.errors import EngineFailed
from ebbtide_serve.process.lease_env import LEASE_VARIABLE, EngineLease
from ebbtide_serve.replica.replica_server import ReplicaIdentity, ReplicaServer
from ebbtide_serve.testing.fake_engine import FakeEngine
from ebbtide_serve.testing.process_engine import ProcessEngine
from tests.builders.replica import Arbiter, until

SLOT = SlotRef("n", 1)
HEADERS = {"x-ebbtide-token": "secret"}
PARK = ReplicaOrders(draining=True, park=True)


def wake(epoch: int, slot: SlotRef = SLOT) -> ReplicaOrders:
    return ReplicaOrders(wake=Lease("m/0", epoch, (slot,)))


class Parked:
    """A replica under test."""

    def __init__(self, tmp_path: Path) -> None:
        self.arbiter, self.locks = Arbiter(), tmp_path / "locks"
        self.server = ReplicaServer(
            ReplicaIdentity("m/0", "r1", "n", os.getpid()), self.arbiter, token="secret", host="127.0.0.1"
        )
        self.lease = EngineLease(Lease("m/0", 7, (SLOT,)), self.locks, None, "ledger")
        self.engine: Any = None

    async def start(self, **args: Any) -> None:
        os.environ[LEASE_VARIABLE] = self.lease.to_json()

        async def make() -> Engine:
            self.engine = ProcessEngine(EngineSettings("m", "", args))
            return self.engine  # type: ignore[no-any-return]

        await self.server.start(self.lease, make)

    async def told(self, orders: ReplicaOrders, phase: ReplicaPhase) -> None:
        self.arbiter.orders = orders
        await until(lambda: self.arbiter.last.phase is phase or bool(self.arbiter.last.error), 10.0)
        assert self.arbiter.last.phase is phase and not self.arbiter.last.error, self.arbiter.last

    async def ask(self, tokens: int = 2) -> tuple[int, str]:
        url = f"{self.server._port.url}/v1/completions"
        body = {"model": "m", "prompt": "a", "max_tokens": tokens}
        async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=HEADERS) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parked]:
    monkeypatch.setenv(LEASE_VARIABLE, "")
    found = Parked(tmp_path)
    yield found
    await found.server.stop(0.0)


async def test_parked_it_holds_nothing_and_woken_it_answers_under_its_new_lease(replica: Parked) -> None:
    await replica.start(allocate_mib=64)
    report = replica.arbiter.last
    assert (report.park_bytes, report.cannot_park) == (64 << 20, "")
    child = psutil.Process(replica.engine.child_pid)
    before_bytes = child.memory_info().rss
    for epoch in (8, 9):
        await replica.told(PARK, ReplicaPhase.PARKED)
        assert probe(replica.locks, SLOT) is None
        assert replica.arbiter.last.url == "" and before_bytes - child.memory_info().rss > 50 << 20
        with SlotLock(replica.locks, SLOT, workload="job", epoch=epoch, ledger="ledger"):
            assert (await replica.ask())[0] == 503
        await replica.told(wake(epoch), ReplicaPhase.READY)
        assert replica.arbiter.last.lease_epoch == epoch
        holder = probe(replica.locks, SLOT)
        assert holder is not None and (holder.epoch, holder.pid) == (epoch, child.pid), "the same process"
        assert (await replica.ask())[0] == 200


async def test_what_is_in_flight_ends_before_it_parks_and_what_comes_then_is_refused_unread(replica: Parked) -> None:
    await replica.start(tokens_per_s=20.0)
    running = asyncio.create_task(replica.ask(20))
    await until(lambda: replica.server.report().inflight == 1)
    replica.arbiter.orders = PARK
    await until(lambda: replica.server.report().phase is ReplicaPhase.PARKING)
    status, said = await replica.ask()
    assert status == 503 and "replica_draining" in said, "by this word the gateway sends it elsewhere"
    replica.arbiter.orders = ReplicaOrders()  # an arbiter that forgot: it goes on refusing all the same
    await until(lambda: replica.arbiter.last.phase is ReplicaPhase.PARKED)
    assert (await running)[0] == 200
    assert (await replica.ask())[0] == 503


async def test_requests_at_any_moment_are_answered_or_refused_and_never_lost(replica: Parked) -> None:
    await replica.start()
    said: set[str] = set()

    async def ask_on() -> None:
        while True:
            status, text = await replica.ask(1)
            said.add("answered" if status == 200 else text)

    asking = [asyncio.create_task(ask_on()) for _ in range(4)]
    for epoch in (8, 9, 10):
        await replica.told(PARK, ReplicaPhase.PARKED)
        await replica.told(wake(epoch), ReplicaPhase.READY)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    assert len(said) == 2 and "answered" in said, "the engine never saw one while it slept"
    assert any("replica_draining" in one for one in said)


@pytest.mark.parametrize("when", ["parking", "parked", "waking"])
async def test_its_process_killed_at_any_edge_is_told(replica: Parked, when: str) -> None:
    await replica.start(sleep_s=0.3, wake_s=0.3)
    child = psutil.Process(replica.engine.child_pid)
    replica.arbiter.orders = PARK
    await until(lambda: replica.server.report().phase is not ReplicaPhase.READY)
    if when != "parking":
        await replica.told(PARK, ReplicaPhase.PARKED)
    if when == "waking":
        replica.arbiter.orders = wake(8)
        await until(lambda: replica.server.report().phase is ReplicaPhase.WAKING)
    child.kill()
    if when == "parked":
        child.wait(5.0)
        with pytest.raises(EngineFailed):
            await replica.server.check_health()
    await until(lambda: bool(replica.arbiter.last.error))
    assert probe(replica.locks, SLOT) is None
    assert (await replica.ask())[0] == 503


@pytest.mark.parametrize(
    ("args", "orders", "why"),
    [
        ({"sleeps": False}, PARK, "told that it cannot"),
        ({"fail_sleep": "no room"}, PARK, "no room"),
        ({"fail_wake": "no driver"}, wake(8), "no driver"),
        ({}, wake(8, SlotRef("n", 2)), "sits on"),
    ],
)
async def test_a_failure_is_told_with_its_reason(
    replica: Parked, args: dict[str, Any], orders: ReplicaOrders, why: str
) -> None:
    await replica.start(**args)
    if not orders.park:
        await replica.told(PARK, ReplicaPhase.PARKED)
    replica.arbiter.orders = orders
    await until(lambda: bool(replica.arbiter.last.error))
    assert why in replica.arbiter.last.error
    assert (await replica.ask())[0] == 503


async def test_an_engine_that_says_it_sleeps_and_keeps_its_lock_is_not_parked(replica: Parked) -> None:
    await replica.start()

    async def says_so() -> None:
        """And does nothing, as vLLM's sleep on a CPU."""

    replica.engine.sleep = says_so
    replica.arbiter.orders = PARK
    await until(lambda: "still holds a slot lock" in replica.arbiter.last.error, 10.0)


async def test_a_slot_that_somebody_holds_is_never_taken(replica: Parked) -> None:
    await replica.start(lock_timeout_s=0.2)
    await replica.told(PARK, ReplicaPhase.PARKED)
    with SlotLock(replica.locks, SLOT, workload="job", epoch=9, ledger="ledger"):
        replica.arbiter.orders = wake(10)
        await until(lambda: "is held by job" in replica.arbiter.last.error)


async def test_a_stale_lease_wakes_nobody(replica: Parked) -> None:
    await replica.start(lock_timeout_s=0.2)
    await replica.told(PARK, ReplicaPhase.PARKED)
    with SlotLock(replica.locks, SLOT, workload="job", epoch=9, ledger="ledger"):
        pass
    replica.arbiter.orders = wake(8)
    await until(lambda: "leased under epoch 9 since" in replica.arbiter.last.error)


def test_an_engine_without_a_sleep_mode_says_so() -> None:
    assert "no sleep mode" in can_sleep(FakeEngine(EngineSettings("m", ""))).why_not


async def test_a_parked_replica_stops_at_once_though_others_hold_its_slot(replica: Parked) -> None:
    await replica.start()
    await replica.told(PARK, ReplicaPhase.PARKED)
    with SlotLock(replica.locks, SLOT, workload="job", epoch=9, ledger="ledger"):
        await asyncio.wait_for(replica.server.stop(5.0), 2.0)
    assert not replica.arbiter.last.error
    assert replica.arbiter.last.phase is ReplicaPhase.STOPPING
