"""The executor: one thing at a time per target, again after failures, and nothing remembered for ever."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ebbtide.client.seat_actuator import SeatPlan
from ebbtide.pool.ids import EndpointName, JobName, NodeId, SeatId, SlotId
from ebbtide_autoscaler.control import executor, fence_placement_groups
from ebbtide_autoscaler.control.executor import Executor, ExecutorPorts
from ebbtide_autoscaler.control.fence_table import FenceTable
from ebbtide_autoscaler.core.tick.instructions import CloseSeat, DropFence, HoldFence, KillReplica, OpenSeat, RestoreJob
from tests.builders.arbiter import Serve

A = NodeId("aaaaaaaa11")
A0, A1 = SlotId(f"{A}:0"), SlotId(f"{A}:1")
SEAT = SeatId("m/0")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.serve, self.clock, self.book = Serve(), Clock(), FenceTable()
        self.restored: list[JobName] = []
        self.recorded: list[tuple[SlotId, str]] = []
        self.dropped: list[str] = []
        self.living = {SEAT}
        self.hold: Callable[..., Any] = lambda *_a, **_k: fence_placement_groups.Held({A0: "f0"}, ())
        monkeypatch.setattr(executor, "time", self.clock)
        monkeypatch.setattr(fence_placement_groups, "hold", lambda *a, **k: self.hold(*a, **k))
        monkeypatch.setattr(fence_placement_groups, "drop", self.dropped.append)

        async def record(slot: SlotId, name: str) -> None:
            self.recorded.append((slot, name))

        async def restore(job: JobName) -> str:
            self.restored.append(job)
            return "id"

        async def strangers(slots: tuple[SlotId, ...]) -> Mapping[SlotId, str]:
            return {slot: "ray::stranger (pid 7)" for slot in slots}

        async def kill_holder(slot: SlotId, epoch: int) -> None: ...

        hands = ExecutorPorts(
            pool="p",
            serve=self.serve,
            plan=lambda seat: SeatPlan(
                seat=seat, endpoint=EndpointName("m"), model="", slots=1, node=str(A), token="", cache_dir=""
            ),
            node_slots=lambda node: (A0, A1),
            replica_slots=lambda: frozenset(),
            kill_holder=kill_holder,
            record_fence=record,
            lives=lambda seat: seat in self.living,
            strangers=strangers,
            restore_job=restore,
        )
        self.executor = Executor(hands, self.book)

    async def tick(self, *instructions: Any) -> None:
        self.executor.carry_out(instructions)
        for _ in range(200):
            if not self.executor._running:
                return
            await asyncio.sleep(0.005)
        raise AssertionError("it does not come to an end")


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


async def test_a_wish_is_sent_once_and_again_when_it_may_have_been_lost(scene: Scene) -> None:
    for _ in range(3):
        await scene.tick(OpenSeat(SEAT))
    assert scene.serve.calls == [("open", f"m/0@{A}")]
    await scene.tick(CloseSeat(SEAT))
    await scene.tick(OpenSeat(SEAT))
    assert len(scene.serve.calls) == 3
    scene.clock.now_s += executor.RESEND_S + 1
    await scene.tick(OpenSeat(SEAT))
    assert len(scene.serve.calls) == 4


@pytest.mark.proves(
    "a seat that has an actor is not opened again soon",
    "a seat without any actor is opened again soon",
)
async def test_a_seat_that_got_no_actor_at_all_is_opened_again_sooner(scene: Scene) -> None:
    scene.living.clear()
    await scene.tick(OpenSeat(SEAT))
    scene.clock.now_s += executor.REOPEN_S - 1
    await scene.tick(OpenSeat(SEAT))
    assert len(scene.serve.calls) == 1
    scene.clock.now_s += 2
    await scene.tick(OpenSeat(SEAT))
    assert len(scene.serve.calls) == 2
    scene.living.add(SEAT)
    scene.clock.now_s += executor.REOPEN_S + 1
    await scene.tick(OpenSeat(SEAT))
    assert len(scene.serve.calls) == 2


async def test_what_fails_is_tried_again_after_a_growing_pause_with_an_end(scene: Scene) -> None:
    scene.serve.fail = TimeoutError("no answer")
    tried_s = []
    for _ in range(800):
        before = len(scene.serve.calls)
        await scene.tick(OpenSeat(SEAT))
        if len(scene.serve.calls) > before:
            tried_s.append(scene.clock.now_s)
        scene.clock.now_s += 0.1
    pauses_s = [round(b - a) for a, b in itertools.pairwise(tried_s)]
    assert pauses_s[:4] == [1, 2, 4, 8] and set(pauses_s[4:]) == {round(executor.RETRY_MAX_S)}
    scene.serve.fail = None
    scene.clock.now_s += executor.RETRY_MAX_S
    await scene.tick(OpenSeat(SEAT))
    scene.serve.fail = TimeoutError("again")
    scene.clock.now_s += executor.RESEND_S + 1
    count = len(scene.serve.calls)
    await scene.tick(OpenSeat(SEAT))
    scene.clock.now_s += executor.RETRY_S + 0.1
    await scene.tick(OpenSeat(SEAT))
    assert len(scene.serve.calls) == count + 2, "a success forgets the failures before it"


async def test_a_killed_actor_that_is_still_there_is_killed_again(scene: Scene) -> None:
    for _ in range(3):
        await scene.tick(KillReplica(SEAT, "actor-1"))
    assert scene.serve.calls == [("kill", "actor-1")]
    scene.clock.now_s += executor.REKILL_S + 0.1
    await scene.tick(KillReplica(SEAT, "actor-1"))
    assert len(scene.serve.calls) == 2


async def test_what_is_remembered_is_bounded_by_what_happened_lately(scene: Scene) -> None:
    scene.serve.fail = TimeoutError("no answer")
    for number in range(300):
        scene.serve.fail = None if number % 2 else TimeoutError("no answer")
        await scene.tick(KillReplica(SEAT, f"actor-{number}"), CloseSeat(SeatId(f"m/{number}")))
        scene.clock.now_s += 1.0
    assert len(scene.executor._sent) <= 2 * (executor.RESEND_S + 2)
    assert len(scene.executor._failing) <= 2 * (executor.RETRY_MAX_S + executor.RETRY_S + 2)
    scene.clock.now_s += 100
    await scene.tick()
    assert not scene.executor._sent and not scene.executor._failing


@pytest.mark.proves("a job is restored once per start of a driver")
async def test_a_lost_job_is_restored_once_per_start_of_a_driver(scene: Scene) -> None:
    for _ in range(3):
        await scene.tick(RestoreJob(JobName("j")))
    assert scene.restored == ["j"]


async def test_a_fence_is_recorded_before_it_counts_and_struck_out_before_it_is_removed(scene: Scene) -> None:
    await scene.tick(HoldFence(A0))
    assert scene.recorded == [(A0, "f0")] and scene.book.names == {A0: "f0"}
    await scene.tick(DropFence(A0))
    assert scene.recorded[-1] == (A0, "") and scene.dropped == ["f0"] and scene.book.names == {}


async def test_an_arbiter_that_leaves_takes_no_fence_any_more(scene: Scene) -> None:
    await scene.executor.leave()
    await scene.tick(HoldFence(A0))
    assert scene.recorded == [] and scene.book.names == {}
    scene.book.held(A0, "f0")
    await scene.tick(DropFence(A0))
    assert scene.dropped == ["f0"]


async def test_who_has_the_gpu_of_a_slot_without_a_fence_is_found_out(scene: Scene) -> None:
    scene.hold = lambda *_a, **_k: fence_placement_groups.Held({}, (A0,))
    await scene.tick(HoldFence(A0))
    assert scene.book.strangers == {A0: "ray::stranger (pid 7)"}
    assert scene.book.refused_until_s == {A0: scene.clock.now_s + executor.REFUSED_S}


async def test_a_node_counts_as_fencing_until_its_call_has_come_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that nobody waits for any more may still make a fence: its node must not be taken for calm."""
    import threading

    gate = threading.Event()
    monkeypatch.setattr(executor, "HOLD_S", 0.05)

    def hang(*_a: object, **_k: object) -> fence_placement_groups.Held:
        gate.wait(30)
        return fence_placement_groups.Held({A0: "late"}, ())

    scene.hold = hang
    await scene.tick(HoldFence(A0))
    assert scene.executor.fencing() == {A} and scene.book.names == {}
    gate.set()
    for _ in range(200):
        if not scene.executor.fencing():
            break
        await asyncio.sleep(0.01)
    assert scene.executor.fencing() == frozenset()
    assert scene.book.names == {}, "nobody recorded it: it is a stray, and removed as one"


def test_the_hands_are_what_the_arbiter_gives() -> None:
    """Named, so that none can be mistaken for another."""
    with pytest.raises(TypeError):
        ExecutorPorts("p")  # type: ignore[call-arg]
