"""The engine with a real child process: what it promises to those who test with it."""

import json
import os
import signal
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from ebbtide.agent.slot_locks.slot_lock import SlotLock, probe
from ebbtide.client.messages import Lease, SlotRef
from ebbtide_serve.engine.port import EngineSettings, JsonReply, Route, StreamReply
from ebbtide_serve.errors import EngineFailed
from ebbtide_serve.process.lease_env import LEASE_VARIABLE, EngineLease
from ebbtide_serve.testing.process_engine import PROCESS_ENGINE, ProcessEngine
from tests.serve_apps.replica_under_test import HEADERS, SLOT_INDEX, ReplicaUnderTest, gone, until

SLOTS = (SlotRef("n", 1), SlotRef("n", 2))


@pytest.fixture
def lock_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the locks of a lease of two slots are; the lease is in the environment."""
    lease = EngineLease(Lease("m/0", 7, SLOTS), tmp_path / "locks", None)
    monkeypatch.setenv(LEASE_VARIABLE, lease.to_json())
    return tmp_path / "locks"


def engine(**args: object) -> ProcessEngine:
    return ProcessEngine(EngineSettings("m", "", args))


def ask(tokens: int, *, stream: bool = False) -> bytes:
    options = {"stream": stream, "stream_options": {"include_usage": True}, "ignore_eos": True}
    return json.dumps({"model": "m", "prompt": "a b", "max_tokens": tokens} | options).encode()


async def test_it_holds_the_lock_of_every_slot_in_its_child_and_starts_within_a_second(lock_dir: Path) -> None:
    made = engine(allocate_mib=1)
    begun_s = time.monotonic()
    await made.start()
    took_s = time.monotonic() - begun_s
    try:
        holders = [probe(lock_dir, slot) for slot in SLOTS]
        assert all(holder is not None and holder.pid == made.child_pid != os.getpid() for holder in holders)
        assert took_s < 3, "it is meant to take well under a second; three allow for a busy machine"
    finally:
        await made.stop(5.0)
    assert [probe(lock_dir, slot) for slot in SLOTS] == [None, None]


async def test_it_does_not_start_on_a_slot_that_somebody_else_holds(lock_dir: Path) -> None:
    with SlotLock(lock_dir, SLOTS[1], workload="job", epoch=9):
        made = engine(lock_timeout_s=0.2)
        with pytest.raises(EngineFailed, match="job"):
            await made.start()
        assert probe(lock_dir, SLOTS[0]) is None, "the first lock is given back with the process"
        with pytest.raises(EngineFailed):
            await made.handle(Route.COMPLETIONS, ask(1))


async def test_without_a_lease_it_allocates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEASE_VARIABLE, raising=False)
    with pytest.raises(EngineFailed, match="no lease"):
        await engine().start()


async def test_its_answers_are_paced_by_the_child_and_break_when_it_is_killed(lock_dir: Path) -> None:
    made = engine(tokens_per_s=50)
    await made.start()
    try:
        begun_s = time.monotonic()
        whole = await made.handle(Route.COMPLETIONS, ask(10))
        assert isinstance(whole, JsonReply) and 0.15 < time.monotonic() - begun_s < 20
        assert json.loads(whole.body)["usage"]["total_tokens"] == 12
        stream = await made.handle(Route.COMPLETIONS, ask(1000, stream=True))
        assert isinstance(stream, StreamReply)
        assert b" t0" in await anext(stream.events)
        assert made.stats().running == 1
        os.kill(made.child_pid, signal.SIGKILL)
        with pytest.raises(EngineFailed):
            async for _ in stream.events:
                pass
        with pytest.raises(EngineFailed):
            await made.check_health()
        assert made.stats().running == 0
    finally:
        await made.stop(5.0)


async def test_a_stream_that_is_closed_leaves_the_batch(lock_dir: Path) -> None:
    made = engine(tokens_per_s=200, max_running=1)
    await made.start()
    try:
        first = await made.handle(Route.COMPLETIONS, ask(100000 // 10, stream=True))
        assert isinstance(first, StreamReply)
        await anext(first.events)
        await first.events.aclose()
        second = await made.handle(Route.COMPLETIONS, ask(3))  # there is room for one at a time
        assert isinstance(second, JsonReply) and second.status == 200
    finally:
        await made.stop(5.0)


async def test_a_whole_replica_of_it_answers_streams_and_dies_with_its_actor(tmp_path: Path) -> None:
    replica = ReplicaUnderTest(PROCESS_ENGINE, tmp_path, args={"tokens_per_s": 500})
    children: list[psutil.Process] = []
    try:
        await replica.until_ready(30.0)
        children = replica.children()
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": True}
        body |= {"stream_options": {"include_usage": True}}
        async with aiohttp.ClientSession() as http:
            url = replica.report["url"] + Route.CHAT.value
            async with http.post(url, json=body, headers=HEADERS) as response:
                text = await response.text()
        assert text.endswith("data: [DONE]\n\n") and '"completion_tokens": 5' in text and " t4" in text
        replica.kill()
        await until(lambda: gone(children), 2.0)
        assert probe(replica.lock_dir, SlotRef("n", SLOT_INDEX)) is None
    finally:
        replica.clean_up(children)
