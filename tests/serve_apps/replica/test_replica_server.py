"""A replica from lease to end, with fakes for the arbiter and the engine."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide.client.messages import Lease, RankLoad, ReplicaOrders, ReplicaPhase, SlotRef
from ebbtide.telemetry.handover import START_STAGES
from ebbtide_serve.engine.port import Engine, EngineSettings
from ebbtide_serve.engine.start_report import StartReport
from ebbtide_serve.errors import EngineFailed, NotGranted
from ebbtide_serve.process.lease_devices import in_device_order
from ebbtide_serve.process.lease_env import EngineLease
from ebbtide_serve.replica.replica_server import ReplicaIdentity, ReplicaServer
from ebbtide_serve.testing.fake_engine import FakeEngine
from tests.builders.replica import Arbiter, until

SLOT = SlotRef("n", 1)
HEADERS = {"x-ebbtide-token": "secret"}


@pytest.fixture
def arbiter() -> Arbiter:
    return Arbiter()


@pytest.fixture
def replica(arbiter: Arbiter) -> ReplicaServer:
    return ReplicaServer(ReplicaIdentity("m/0", "r1", "n", os.getpid()), arbiter, token="secret", host="127.0.0.1")


def lease(tmp_path: Path) -> EngineLease:
    return EngineLease(Lease("m/0", 7, (SLOT,)), tmp_path / "locks", None)


def made(**args: Any) -> Callable[[], Any]:
    async def make() -> Engine:
        return FakeEngine(EngineSettings("m", "", args))

    return make


class TellsOfItsStart(FakeEngine):
    """An engine that knows where its start's time went."""

    def start_report(self) -> StartReport:
        return StartReport({"process": 1.0, "weights": 2.5, "compile": 0.25, "warm-up": 0.5}, (LOAD,))

    async def settle(self, store: object) -> str:
        return ""


LOAD = RankLoad(0, "ebbtide_flat", {"posix direct": 7}, 0.1)


async def test_an_engine_that_tells_of_its_start_is_reported_in_its_own_stages(
    replica: ReplicaServer, arbiter: Arbiter, tmp_path: Path
) -> None:
    async def make() -> Engine:
        return TellsOfItsStart(EngineSettings("m", ""))

    async def prepare(done: Callable[[str], None]) -> None:
        done("model")
        done("caches")

    await replica.start(lease(tmp_path), make, prepare)
    stages = arbiter.last.stages_s
    assert list(stages) == ["lease", "model", "caches", "import", "process", "weights", "compile", "warm-up", "server"]
    assert set(stages) <= set(START_STAGES), "a metric would count it as other"
    assert (stages["weights"], stages["warm-up"]) == (2.5, 0.5)
    assert arbiter.last.loads == (LOAD,)
    await replica.stop(0.0)


class Odd(FakeEngine):
    """An engine of one's own whose start raises an exception of its own."""

    async def start(self) -> None:
        raise KeyError("hidden_size\nand more")


async def test_whatever_a_start_raises_is_told_in_one_line(
    replica: ReplicaServer, arbiter: Arbiter, tmp_path: Path
) -> None:
    async def make() -> Engine:
        return Odd(EngineSettings("m", ""))

    with pytest.raises(KeyError):
        await replica.start(lease(tmp_path), make)
    assert arbiter.last.error.startswith("KeyError: ") and len(arbiter.last.error.splitlines()) == 1
    await replica.stop(0.0)


async def test_a_preparation_that_fails_is_told_and_no_engine_is_made(
    replica: ReplicaServer, arbiter: Arbiter, tmp_path: Path
) -> None:
    async def prepare(done: Callable[[str], None]) -> None:
        raise EngineFailed("no such model")

    async def make() -> Engine:
        raise AssertionError("too late")

    with pytest.raises(EngineFailed):
        await replica.start(lease(tmp_path), make, prepare)
    assert (arbiter.last.error, arbiter.last.phase) == ("no such model", ReplicaPhase.STARTING)
    await replica.stop(0.0)


async def test_reports_its_start_stage_by_stage_and_then_where_it_listens(
    replica: ReplicaServer, arbiter: Arbiter, tmp_path: Path
) -> None:
    starting = asyncio.create_task(replica.start(lease(tmp_path), made(start_s=0.3)))
    await until(lambda: bool(arbiter.reports) and "import" in arbiter.last.stages_s)
    assert (arbiter.last.phase, arbiter.last.replica) == (ReplicaPhase.STARTING, "r1")
    assert (arbiter.last.url, arbiter.last.lease_epoch, arbiter.last.seat) == ("", 7, "m/0")
    await starting
    assert (arbiter.last.phase, arbiter.last.seat) == (ReplicaPhase.READY, "m/0")
    assert list(arbiter.last.stages_s) == ["lease", "import", "engine", "server"]
    assert arbiter.last.stages_s["engine"] >= 0.3
    async with aiohttp.ClientSession() as client, client.get(arbiter.last.url + "/health", headers=HEADERS) as answer:
        assert answer.status == 200
    await replica.stop(0.0)


async def test_an_engine_that_does_not_start_is_reported_with_its_reason(
    replica: ReplicaServer, arbiter: Arbiter, tmp_path: Path
) -> None:
    with pytest.raises(EngineFailed, match="no weights"):
        await replica.start(lease(tmp_path), made(fail_start="no weights"))
    assert (arbiter.last.phase, arbiter.last.error) == (ReplicaPhase.STARTING, "no weights")
    with pytest.raises(EngineFailed, match="no weights"):
        await replica.check_health()
    await replica.stop(0.0)


@pytest.mark.parametrize(("how", "permanent"), [("fail_start", False), ("refuse_start", True)])
async def test_an_engine_that_does_not_take_what_it_was_told_says_so(
    replica: ReplicaServer, arbiter: Arbiter, tmp_path: Path, how: str, permanent: bool
) -> None:
    with pytest.raises(EngineFailed, match="no such value"):
        await replica.start(lease(tmp_path), made(**{how: "no such value"}))
    assert (arbiter.last.error, arbiter.last.permanent) == ("no such value", permanent)
    await replica.stop(0.0)


async def test_what_an_engine_of_ones_own_raises_while_it_starts_is_not_known_to_be_permanent(
    replica: ReplicaServer, arbiter: Arbiter, tmp_path: Path
) -> None:
    class Raises(FakeEngine):
        async def start(self) -> None:
            raise ValueError("of its GPU, perhaps")

    async def make() -> Engine:
        return Raises(EngineSettings("m", ""))

    with pytest.raises(ValueError):
        await replica.start(lease(tmp_path), make)
    assert (arbiter.last.error, arbiter.last.permanent) == ("ValueError: of its GPU, perhaps", False)
    await replica.stop(0.0)


async def test_serves_on_when_the_arbiter_is_dead_and_obeys_it_when_it_is_back(
    replica: ReplicaServer, arbiter: Arbiter, tmp_path: Path
) -> None:
    await replica.start(lease(tmp_path), made())
    url = arbiter.last.url + "/v1/completions"
    body = {"model": "m", "prompt": "a", "max_tokens": 2}
    async with aiohttp.ClientSession() as client:
        arbiter.orders = None
        told = len(arbiter.reports)
        await until(lambda: len(arbiter.reports) >= told + 2)
        async with client.post(url, json=body, headers=HEADERS) as answer:
            assert answer.status == 200
        arbiter.orders = ReplicaOrders(draining=True)
        told = len(arbiter.reports)
        await until(lambda: len(arbiter.reports) >= told + 2)
        async with client.post(url, json=body, headers=HEADERS) as answer:
            assert answer.status == 503
    await replica.stop(0.0)


async def test_a_stop_waits_for_running_streams_and_then_sees_the_lock_gone(
    replica: ReplicaServer, arbiter: Arbiter, tmp_path: Path
) -> None:
    granted = lease(tmp_path)
    await replica.start(granted, made(tokens_per_s=50))
    lock = SlotLock(granted.lock_dir, SLOT, workload="m/0", epoch=7)
    lock.acquire(1.0)
    async with aiohttp.ClientSession() as client:
        body = {"model": "m", "prompt": "a", "max_tokens": 100, "stream": True}  # 2 s of work
        async with client.post(arbiter.last.url + "/v1/completions", json=body, headers=HEADERS) as answer:
            await answer.content.readany()
            stopping = asyncio.create_task(replica.stop(10.0))
            assert "[DONE]" in await answer.text()
    await asyncio.wait({stopping}, timeout=1.0)
    assert not stopping.done()
    assert (arbiter.last.phase, arbiter.last.inflight) == (ReplicaPhase.STOPPING, 0)
    lock.release()
    await stopping
    assert arbiter.last.error == ""
    await replica.stop(10.0)  # twice is once


async def test_a_stop_does_not_wait_longer_than_the_drain(
    replica: ReplicaServer, arbiter: Arbiter, tmp_path: Path
) -> None:
    await replica.start(lease(tmp_path), made(tokens_per_s=10))
    async with aiohttp.ClientSession() as client:
        body = {"model": "m", "prompt": "a", "max_tokens": 1000, "stream": True}
        async with client.post(arbiter.last.url + "/v1/completions", json=body, headers=HEADERS) as answer:
            await answer.content.readany()
            async with asyncio.timeout(5.0):
                await replica.stop(0.2)


def test_slots_are_ordered_as_the_process_sees_its_gpus(tmp_path: Path) -> None:
    slots = (SlotRef("n", 0), SlotRef("n", 2))
    granted = EngineLease(Lease("m/0", 7, slots), tmp_path, None)
    assert in_device_order(granted, "n", (2, 0)).lease.slots == (slots[1], slots[0])


@pytest.mark.parametrize(("node", "gpu_ids"), [("other", (0, 2)), ("n", (0, 1)), ("n", (0,)), ("n", (0, 1, 2))])
def test_a_process_on_other_gpus_than_granted_is_a_stranger(
    tmp_path: Path, node: str, gpu_ids: tuple[int, ...]
) -> None:
    granted = EngineLease(Lease("m/0", 7, (SlotRef("n", 0), SlotRef("n", 2))), tmp_path, None)
    with pytest.raises(NotGranted, match="sits on"):
        in_device_order(granted, node, gpu_ids)
