"""Arbiters and their parts without a cluster: the loop, its cluster_watch, its ledger."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from ebbtide.client.seat_actuator import SeatPlan
from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.pool_section import PoolMode, PoolSection
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    EndpointDeclared,
    Event,
    NodeFound,
    Slot,
    SlotFound,
    SlotFreed,
)
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import JobName, NodeId, RecordId, SeatId, SlotId, slot_id
from ebbtide_autoscaler.actor.arbiter import Arbiter
from ebbtide_autoscaler.control import fence_placement_groups
from ebbtide_autoscaler.control import loop as loop_module
from ebbtide_autoscaler.control.inbox import Inbox
from ebbtide_autoscaler.control.loop import Loop
from ebbtide_autoscaler.control.published import Published
from ebbtide_autoscaler.journal.records import Journal, Recovered, fence_record

N = NodeId("n")


class AnsweringInbox(Inbox):
    """What is submitted is confirmed at once, or never while ``hangs``."""

    def __init__(self, published: Published) -> None:
        super().__init__(started_s=0.0)
        self.published = published
        self.hangs = False

    def submit(self, body: Body) -> None:
        published = self.published
        if self.hangs:
            published.halt.freeze("the ledger has not answered for 7 s (/shared)")
            self.submitted.append(body)
            return
        try:
            state = apply(published.state, Event(RecordId("1.1"), 5.0, None, body))
        except IllegalTransition:
            return
        published.world = replace(published.world, state=state)


class FakeLoop:
    """A loop whose ledger answers at once, or not at all."""

    def __init__(self) -> None:
        self.published = Published()
        self.inbox = AnsweringInbox(self.published)
        policy = SimpleNamespace(restart_cost_s=20.0)
        pool = PoolSection(name="p")
        self.file: Any = SimpleNamespace(
            mode=PoolMode.MANAGE, config=SimpleNamespace(pool=pool, policy=policy, teams=())
        )
        self.ledger: Any = SimpleNamespace(opened=True, wait_opened=lambda: True)
        self.keys: Any = None
        self.thread: Any = None
        self.forgotten: list[JobName] = []
        self.inbox.submit(NodeFound(N, 0))

    def forget_submission(self, job: JobName) -> None:
        self.forgotten.append(job)

    async def configure(self, config: PoolFile) -> dict[str, Any]:
        raise NotImplementedError


class RecordCount:
    """In place of the record of the status: how often it was written."""

    def __init__(self) -> None:
        self.written = 0

    def write(self) -> None:
        self.written += 1


def an_arbiter(loop: Any) -> Any:
    found: Any = Arbiter.__new__(Arbiter)
    found._loop = loop
    found._record = RecordCount()
    found._serve(loop)
    return found


NODE, TRAIN, SEAT = NodeId("n"), JobName("train"), SeatId("chat/0")


S0, S1 = slot_id(NODE, 0), slot_id(NODE, 1)


SLOTS: tuple[Body, ...] = (NodeFound(NODE, 0), *(SlotFound(Slot(s, NODE, i)) for i, s in enumerate((S0, S1))))


SOON_S = 60.0


Start = Callable[..., Loop]


def a_file(shared: Path, *, mode: str, endpoints: tuple[str, ...]) -> PoolFile:
    listed = tuple({"name": name, "model": "/m"} for name in endpoints)
    pool = {"name": "p", "shared_dir": shared, "mode": mode}
    file = {"pool": pool, "endpoints": listed, "metrics": {"enabled": False}}
    return PoolFile.model_validate(file, strict=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The slots for which a fence was asked."""
    found: list[str] = []

    def hold(_pool: str, _node: NodeId, missing: tuple[SlotId, ...], *, sole: bool) -> fence_placement_groups.Held:
        found.extend(missing)
        return fence_placement_groups.Held({}, tuple(missing))

    monkeypatch.setattr(fence_placement_groups, "hold", hold)
    return found


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a loop whose ledger says this."""
    monkeypatch.setattr(loop_module, "load_serve", Serve)
    monkeypatch.setattr(loop_module, "load_train", lambda _: NoJobs())
    monkeypatch.setattr(loop_module, "ClusterWatch", NoCluster)
    monkeypatch.setattr(loop_module, "FenceSync", NoCluster)
    monkeypatch.setattr(loop_module, "cluster_name", lambda: "")
    started: list[Loop] = []

    def begin(
        *bodies: Body,
        mode: str = "manage",
        endpoints: tuple[str, ...] = ("chat",),
        records: tuple[dict[str, Any], ...] = (),
    ) -> Loop:
        config = a_file(tmp_path, mode=mode, endpoints=endpoints)
        log = EpochLog.open(tmp_path / "ledger", writer="before")
        declared = [EndpointDeclared(one.spec()) for one in a_file(tmp_path, mode=mode, endpoints=("chat",)).endpoints]
        events = [Event(RecordId(f"1.{n}"), time.time() - 100.0, None, b) for n, b in enumerate([*declared, *bodies])]
        record: dict[str, Any] = {"type": "config", "at_s": 1.0, "config": config.model_dump_json(by_alias=True)}
        journal = Journal(log, Recovered())
        fenced = [fence_record(slot, f"fence of {slot}") for slot in (S0, S1) if SlotFreed(slot) in bodies]
        journal.write(events, extra=[record, *fenced, *records]).result(SOON_S)
        journal.close()
        started.append(Loop("p", tmp_path, lock_dir=str(tmp_path / "node" / "slots"), writer="w"))
        started[-1].start()
        return started[-1]

    yield begin
    for one in started:
        one._stopped = True


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.02)


def ticks(loop: Loop, number: int = 3) -> None:
    """Let it tick some times."""
    for _ in range(number):
        before = loop.published.seen
        until(lambda before=before: loop.published.seen is not before)  # type: ignore[misc]


class Serve:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fail: Exception | None = None

    async def _note(self, what: str, whom: str) -> None:
        self.calls.append((what, whom))
        if self.fail is not None:
            raise self.fail

    async def open_seat(self, seat: SeatPlan) -> None:
        await self._note("open", f"{seat.seat}@{seat.node}")

    async def close_seat(self, seat_id: SeatId) -> None:
        await self._note("close", seat_id)

    async def kill(self, actor_name: str) -> None:
        await self._note("kill", actor_name)

    async def start_gateway(self, settings_json: str) -> None: ...

    async def living(self) -> Mapping[SeatId, tuple[str, ...]]:
        return {}

    async def stop(self) -> None: ...


class NoCluster:
    """Nothing is to be seen, and there are no fences: for a cluster watch and a fence sync."""

    nodes = 0
    elastic: Mapping[NodeId, int] = MappingProxyType({})

    def __init__(self, *_: object) -> None:
        pass

    async def adopt(self) -> None:
        """No fences."""

    async def watch(self, *_: object) -> None:
        """For ever."""
        await asyncio.Event().wait()

    async def strangers(self, *_: object) -> dict[object, str]:
        """None."""
        return {}

    async def leave(self) -> None:
        """No fences."""


class NoJobs:
    """No job can be restored."""

    async def restore(self, job: str) -> str:
        """Never called."""
        raise AssertionError(job)
