"""Promise 3 against replicas that misbehave at the level of bytes."""

import asyncio
import json

import httpx
import pytest

from ebbtide.client.messages import RoutingTable
from tests.builders.gateway import EVENT, HEAD, Say, chunk, hang, raw_replica, route
from tests.serve_apps.gateway.fakes import MODEL, chat, running_gateway, until


def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def hang_after_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    await asyncio.sleep(30)


async def close_at_once(writer: asyncio.StreamWriter) -> None:
    """Closes in order, without a byte."""


async def reset_at_once(writer: asyncio.StreamWriter) -> None:
    reset(writer)


async def garbage(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\x01\x02 this is no HTTP\r\n\r\n")


async def endless_header(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while not writer.is_closing():
        writer.write(b"x" * 4096)
        await writer.drain()


async def bad_chunk(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"zz\r\nnot a chunk\r\n")


async def half_an_event(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(EVENT[:20]))


async def no_framing(writer: asyncio.StreamWriter) -> None:
    """An answer that ends when the connection does, and the connection is cut before the answer is whole."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 5000\r\n\r\n" + EVENT[:30])


BEFORE: list[Say] = [
    hang,
    hang_after_headers,
    close_at_once,
    reset_at_once,
    garbage,
    endless_header,
    bad_chunk,
    half_an_event,
    no_framing,
]


async def mid_chunk(writer: asyncio.StreamWriter) -> None:
    """Ends in the middle of a chunk whose length was announced."""
    writer.write(HEAD + chunk(EVENT) + b"ff\r\ndata: {")
    await writer.drain()


async def mid_event(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(EVENT) + chunk(EVENT[:20]))


async def garbage_later(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(EVENT))
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.write(b"zz\r\n")


async def reset_later(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(EVENT))
    await writer.drain()
    await asyncio.sleep(0.05)
    reset(writer)


async def hang_later(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(EVENT))
    await asyncio.sleep(30)


async def end_without_done(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(EVENT) + b"0\r\n\r\n")


BEGUN: list[Say] = [mid_chunk, mid_event, garbage_later, reset_later, hang_later, end_without_done]


@pytest.mark.proves("a replica that is silent for too long is lost", "a replica's headers are bounded in size")
@pytest.mark.parametrize("say", BEFORE, ids=lambda say: say.__name__)
async def test_a_replica_that_breaks_before_its_first_event_costs_one_retry_elsewhere(say: Say) -> None:
    async with running_gateway(replica_silence_s=0.4) as scene, raw_replica(say) as (broken, asked):
        healthy = await scene.replica()
        await route(scene, broken, healthy)
        async with httpx.AsyncClient(base_url=scene.url, timeout=10, trust_env=False) as http:
            answers = [await http.post("/v1/chat/completions", json=chat(stream=True)) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
        assert len(asked) == 1 and len(healthy.bodies) == 2
        await until(lambda: (scene.traffic.completed, scene.traffic.inflight) == (2, 0))


@pytest.mark.parametrize("say", BEGUN, ids=lambda say: say.__name__)
async def test_a_begun_stream_always_ends_with_one_error_event_and_is_not_begun_again(say: Say) -> None:
    async with running_gateway(replica_silence_s=0.4) as scene, raw_replica(say) as (broken, asked):
        await route(scene, broken, None)
        async with httpx.AsyncClient(base_url=scene.url, timeout=10, trust_env=False) as http:
            answer = await http.post("/v1/chat/completions", json=chat(stream=True))
        events = [event for event in answer.text.split("\n\n") if event]
        assert events[0] + "\n\n" == EVENT.decode() and len(events) == 2
        error = json.loads(events[1].removeprefix("data: "))["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == "replica_lost"
        assert len(asked) == 1
        await until(lambda: (scene.traffic.failed, scene.traffic.inflight) == (1, 0))


@pytest.mark.proves("a replica that works on an answer in one piece may be silent")
async def test_an_answer_in_one_piece_may_take_longer_than_a_stream_may_be_silent() -> None:
    async with running_gateway(replica_silence_s=0.2) as scene:
        await scene.route(await scene.replica(tokens=1, token_every_s=0.7))
        async with httpx.AsyncClient(base_url=scene.url, timeout=10, trust_env=False) as http:
            assert (await http.post("/v1/chat/completions", json=chat())).status_code == 200


async def test_two_hung_replicas_end_a_request_and_do_not_hold_it_for_ever() -> None:
    async with (
        running_gateway(replica_silence_s=0.3) as scene,
        raw_replica(hang) as (one, _),
        raw_replica(hang) as (two, _),
    ):
        scene.arbiter.table = RoutingTable(1, {MODEL: (one, two)})
        await until(lambda: scene.arbiter.reports[-1].routes_seen == 1)
        async with httpx.AsyncClient(base_url=scene.url, timeout=10, trust_env=False) as http:
            answer = await http.post("/v1/chat/completions", json=chat(stream=True))
        assert answer.status_code == 502 and answer.json()["error"]["code"] == "replica_lost"
