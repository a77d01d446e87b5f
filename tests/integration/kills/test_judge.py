"""The judge must be able to condemn: forged logs and a forged gateway, each with one broken promise."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from ebbtide.agent.slot_locks.allocation_log import Occupancy
from ebbtide.pool.events import Event, NodeUndrained, ParkJob
from ebbtide.pool.ids import JobName, NodeId, RecordId
from ebbtide.pool.state import PoolState
from ebbtide_train.session.step_log import StepLine
from tests.integration.kills import judge
from tests.integration.kills.processes import Role
from tests.integration.kills.silence import Silences
from tests.integration.kills.users import Answer, Saw, ask, users

MACHINES = {"node1": "a", "node2": "b", "node3": "a"}


def occupant(slot: str, begin_s: float, end_s: float, workload: str = "long") -> Occupancy:
    return Occupancy(slot, workload, 1, 1, begin_s, end_s, True)


def line(step: int, *, rank: int = 0, loss: float = 0.5, at_s: float = 0.0) -> StepLine:
    return StepLine(step, rank, 2, loss.hex(), (), at_s or float(step), 0.1)


def answer(saw: Saw) -> Answer:
    return Answer(saw, 0.0, 0.1, 1.0, 200, 3, "detail")


def test_two_occupants_of_one_slot_at_once_are_found_and_named() -> None:
    seen = [occupant("node1:0", 0, 10), occupant("node1:0", 9.5, 12, "tiny/0"), occupant("node1:1", 0, 20)]
    (found,) = judge.occupancy(seen, MACHINES.__getitem__)
    assert found.promise == 1 and "0.50 s" in found.what and "tiny/0" in found.what


def test_two_occupants_under_two_node_ids_of_one_machine_are_found() -> None:
    seen = [occupant("node1:0", 0, 10), occupant("node3:0", 9, 12)]
    assert judge.occupancy(seen, MACHINES.__getitem__)
    assert not judge.occupancy([seen[0], replace(seen[1], slot="node2:0")], MACHINES.__getitem__)


def test_an_occupant_right_after_another_is_fine() -> None:
    assert not judge.occupancy([occupant("node1:0", 0, 10), occupant("node1:0", 10, 12)], MACHINES.__getitem__)


@pytest.mark.parametrize(
    ("steps", "charged", "broken"),
    [
        ([0, 1, 2, 3], 0, False),
        ([0, 1, 3], 0, True),  # 2 is lost
        ([0, 1, 2, 1, 2, 3], 0, True),  # repeated by a preemption
        ([0, 1, 2, 1, 2, 3], 2, False),  # repeated after a crash, and charged
        ([0, 1, 2, 1, 2, 3], 1, True),  # only one of two charged
    ],
)
def test_a_lost_or_repeated_step_is_found(steps: list[int], charged: int, broken: bool) -> None:
    lines = [line(step, at_s=float(number)) for number, step in enumerate(steps)]
    assert bool(judge.steps(lines, charged)) is broken


def test_a_repeated_step_with_another_loss_is_found() -> None:
    again = [line(0), line(1), line(1, loss=0.25, at_s=5)]
    (found,) = judge.steps(again, 1)
    assert found.promise == 2 and "step 1 rank 0" in found.what


@pytest.mark.parametrize("saw", [Saw.SILENT, Saw.HANG, Saw.WRONG, Saw.ERROR])
@pytest.mark.parametrize("role", list(Role))
def test_silence_a_hang_and_wrong_words_are_never_fair(saw: Saw, role: Role) -> None:
    (found,) = judge.users([answer(Saw.OK), answer(saw)], [role], gateway_died=True)
    assert found.promise == 3 and saw.value in found.what


def test_an_error_event_is_fair_only_if_somebody_died_who_carried_the_stream() -> None:
    assert judge.users([answer(Saw.ERROR_EVENT)], [Role.ARBITER], gateway_died=False)
    assert not judge.users([answer(Saw.ERROR_EVENT)], [Role.ENGINE], gateway_died=False)


def test_a_broken_connection_is_fair_only_if_the_gateway_died() -> None:
    for saw in (Saw.CUT, Saw.UNREACHABLE):
        assert judge.users([answer(saw)], [Role.REPLICA], gateway_died=False)
        assert not judge.users([answer(saw)], [Role.GATEWAY], gateway_died=True)


def test_a_lock_without_a_lease_is_found() -> None:
    occupants = {"a-0": ("long", 0), "a-1": ("tiny/0", 0)}
    assert not judge.orphans({"a-0": ("long", 7)}, occupants)
    assert judge.orphans({"a-0": ("tiny/0", 7)}, occupants)
    assert judge.orphans({"b-0": ("long", 7)}, occupants)


def test_a_move_without_a_reason_is_found() -> None:
    moves = [Event(RecordId("1.1"), 0.0, None, ParkJob(JobName("long"), reason)) for reason in ("tide", " ")]
    (found,) = judge.reasons([*moves, Event(RecordId("1.2"), 0.0, None, NodeUndrained(NodeId("n")))])
    assert found.promise == 4 and "park_job" in found.what


def test_a_job_that_waits_and_is_told_nothing_is_found_and_one_that_is_told_is_not() -> None:
    def status(waits: str, frozen: bool = False) -> dict[str, object]:
        return {"arbiter": {"frozen": frozen}, "jobs": [{"job": "long", "state": "parked", "waits": waits}]}

    silences = Silences()
    for at_s in range(20):
        silences.take(status("no slot is free"), at_s)
        silences.take(status("", frozen=True), at_s)
    assert not silences.take_told()
    for at_s in range(20, 27):
        silences.take(status(""), at_s)
    (told,) = silences.take_told()
    assert "long" in told and judge.reasons([], [told])[0].promise == 4
    assert not silences.take_told()


def test_an_empty_ledger_breaks_nothing() -> None:
    assert judge.ledger(PoolState()) == []


# ---- users, against a gateway that lies

HEAD = 'data: {"choices": [{"delta": {"content": "t0"}}]}\n\n'


async def _gateway(body: list[str], *, cut: bool = False, silent: bool = False) -> AsyncIterator[str]:
    async def stream(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for part in body:
            await reply.write(part.encode())
        if silent:
            await asyncio.sleep(5)
        if cut:
            assert request.transport is not None
            request.transport.close()
        return reply

    app = web.Application()
    app.router.add_post("/v1/chat/completions", stream)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


END = ' t1"}}], "usage": {"completion_tokens": 2}}\n\n'
SECOND = 'data: {"choices": [{"delta": {"content": "' + END


@pytest.mark.parametrize(
    ("body", "cut", "silent", "saw"),
    [
        ([HEAD, SECOND, "data: [DONE]\n\n"], False, False, Saw.OK),
        ([HEAD, SECOND], False, False, Saw.SILENT),
        ([HEAD, 'data: {"error": {"message": "x"}}\n\n'], False, False, Saw.ERROR_EVENT),
        ([HEAD, HEAD, "data: [DONE]\n\n"], False, False, Saw.WRONG),
        ([HEAD, "data: nonsense\n\n"], False, False, Saw.WRONG),
        ([HEAD, "data: [DONE]\n\n"], False, False, Saw.WRONG),  # a word is missing
        ([HEAD], True, False, Saw.CUT),
        ([HEAD], False, True, Saw.HANG),
    ],
)
async def test_users_tell_apart_how_a_stream_ends(body: list[str], cut: bool, silent: bool, saw: Saw) -> None:
    async for url in _gateway(body, cut=cut, silent=silent):
        timeout = aiohttp.ClientTimeout(sock_read=0.5)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            assert (await ask(http, url, 2)).saw is saw


def test_a_gateway_that_is_not_there_is_unreachable() -> None:
    with users("http://127.0.0.1:9") as asking:
        asking.ask(count=2)
        assert asking.settled(10)
        assert [one.saw for one in asking.answers] == [Saw.UNREACHABLE, Saw.UNREACHABLE]
