"""Requests that are nearly right, or come at a bad moment."""

import asyncio
import json
import resource
import socket
from typing import Any

import httpx
import pytest

from ebbtide.client.messages import GatewayOrders, GatewayReport
from ebbtide_serve.gateway import app
from ebbtide_serve.gateway.server import OTHER_DESCRIPTORS, GatewayServer
from tests.builders.gateway import (
    EVENT,
    HEAD,
    answer_to,
    bearer,
    chunk,
    connect,
    key,
    raw_replica,
    request,
    route,
    status_of,
)
from tests.serve_apps.gateway.fakes import FakeArbiter, Scene, chat, running_gateway, settings, until

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("given", ["two words", "x" * 65, "a/b", "h\xe9", '"', ""])
@pytest.mark.proves("a request id is a short plain word")
async def test_a_request_id_that_is_no_short_word_is_replaced(
    scene: Scene, http: httpx.AsyncClient, given: str
) -> None:
    replica = await scene.replica()
    await scene.route(replica)
    answer = await http.post(CHAT, json=chat(), headers={b"x-request-id": given.encode("latin-1")})
    assert answer.headers["x-request-id"].startswith("req-")
    assert replica.seen[0].headers["x-request-id"] == answer.headers["x-request-id"]


class SlowArbiter(FakeArbiter):
    """Answers when it may."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.may = asyncio.Event()

    async def report_gateway(self, report: GatewayReport) -> GatewayOrders | None:
        self.calls += 1
        await self.may.wait()
        return await super().report_gateway(report)


@pytest.mark.proves("the port opens when orders have come")
async def test_the_port_opens_when_the_keys_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """So nobody who asks at once is told that they are not."""
    monkeypatch.setattr(app, "FIRST_ORDERS_S", 20.0)
    arbiter = SlowArbiter(keys=(key("full"),))
    server = GatewayServer(settings(), arbiter)
    async with httpx.AsyncClient(trust_env=False) as http:
        starting = asyncio.create_task(server.start())
        await until(lambda: arbiter.calls > 0)
        await asyncio.sleep(0.3)
        assert not starting.done()
        arbiter.may.set()
        await asyncio.wait_for(starting, 10)
        url = f"{server.gateway.url}/v1/models"
        assert (await http.get(url, headers=bearer("full"))).status_code == 200
    await server.stop(0.0)


@pytest.mark.proves("a client's own words in an error are short")
async def test_an_error_says_little_of_what_a_client_said(scene: Scene, http: httpx.AsyncClient) -> None:
    long = "x" * 20_000
    answers = [
        await http.post(CHAT, json=chat(model=long)),
        await http.post(CHAT, json=chat() | {"messages": [], long: 1}),
        await http.get(f"/{long}"),
    ]
    assert [answer.status_code for answer in answers] == [404, 400, 404]
    assert max(len(answer.content) for answer in answers) < 1000


@pytest.mark.proves("a client that goes in the middle of its body asked for nothing")
async def test_a_client_that_goes_before_its_body_is_whole_asked_for_nothing(scene: Scene) -> None:
    """What it sent so far would even do as a request."""
    replica = await scene.replica()
    await scene.route(replica)
    body = json.dumps(chat()).encode()
    _, writer = await connect(scene)
    writer.write(request(body + b" " * 20)[:-20])
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.3)
    assert scene.traffic.arrivals == 0 and replica.bodies == []
    assert status_of(await answer_to(scene, request(body))) == 200


@pytest.mark.proves("a stopping gateway refuses what came while it began to stop")
async def test_a_body_that_comes_while_the_gateway_begins_to_stop_is_refused(scene: Scene) -> None:
    replica = await scene.replica(tokens=50, token_every_s=0.05)
    await scene.route(replica)
    runs, late = await connect(scene), await connect(scene)
    body = json.dumps(chat()).encode()
    runs[1].write(request(body))
    await until(lambda: replica.running == 1)
    late[1].write(request(body)[:-5])
    await asyncio.sleep(0.1)
    stopping = asyncio.create_task(scene.server.stop(10.0))
    await until(lambda: scene.server.gateway.stopping)
    late[1].write(request(body)[-5:])
    assert b" 503 " in await asyncio.wait_for(late[0].readuntil(b"\r\n"), 5)
    assert len(replica.bodies) == 1
    runs[1].close()
    late[1].close()
    await asyncio.wait_for(stopping, 15)


@pytest.mark.parametrize(
    "lengths",
    [
        ("content-length: {n}", "transfer-encoding: chunked"),
        ("transfer-encoding: chunked", "content-length: {n}"),
        ("content-length: {n}", "content-length: 1"),
        ("content-length: {n}, {n}",),
        ("transfer-encoding: identity, chunked, identity",),
        ("transfer-encoding : chunked",),
    ],
    ids=["length first", "chunks first", "two lengths", "a list of lengths", "odd coding", "space before the colon"],
)
@pytest.mark.proves("a request whose length is in doubt is a 400")
async def test_a_request_whose_length_is_in_doubt_is_refused_and_its_connection_closed(
    scene: Scene, lengths: tuple[str, ...]
) -> None:
    """Another proxy might see the end elsewhere: what one calls a body is a request of its own to the other."""
    replica = await scene.replica()
    await scene.route(replica)
    body = json.dumps(chat()).encode()
    lines = [f"POST {CHAT} HTTP/1.1", "host: x", "content-type: application/json"]
    head = "\r\n".join([*lines, *(one.format(n=len(body)) for one in lengths), "", ""])
    answer = await answer_to(scene, head.encode() + body + b"0\r\n\r\n")
    assert status_of(answer) == 400 and b"invalid_http" in answer and b"connection: close" in answer
    assert replica.bodies == []


@pytest.mark.proves("a stopping gateway takes nothing new")
async def test_while_the_gateway_stops_no_body_is_waited_for(scene: Scene) -> None:
    replica = await scene.replica(tokens=50, token_every_s=0.05)
    await scene.route(replica)
    runs, late = await connect(scene), await connect(scene)
    body = json.dumps(chat()).encode()
    runs[1].write(request(body))
    await until(lambda: replica.running == 1)
    stopping = asyncio.create_task(scene.server.stop(10.0))
    await until(lambda: scene.server.gateway.stopping)
    late[1].write(request(body)[:-5])
    assert b" 503 " in await asyncio.wait_for(late[0].readuntil(b"\r\n"), 2)
    runs[1].close()
    late[1].close()
    await asyncio.wait_for(stopping, 15)


@pytest.mark.proves("a client that goes while it pipelines is seen")
async def test_a_client_that_asks_again_before_its_answer_came_and_goes_frees_its_replica(scene: Scene) -> None:
    """The server stops reading at the second request: it must see all the same that the client has gone."""
    replica = await scene.replica(tokens=1000, token_every_s=0.05)
    await scene.route(replica)
    _, writer = await connect(scene)
    one = request(json.dumps(chat()).encode())
    writer.write(one)
    await until(lambda: replica.running == 1)
    writer.write(one)
    await asyncio.sleep(0.2)
    writer.transport.abort()
    await until(lambda: replica.running == 0, 3.0)
    await until(lambda: scene.traffic.inflight == 0)


async def four_megabytes(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    for _ in range(100):
        writer.write(chunk(EVENT * (40_000 // len(EVENT))))
        await writer.drain()
    writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


@pytest.mark.proves("a client that reads slowly is not cut off")
async def test_a_client_that_reads_slowly_is_not_cut_off_while_its_bytes_wait_in_the_gateway() -> None:
    """The replica is far ahead of it all the time, and its own socket takes little."""
    async with running_gateway(client_stall_s=1.5) as scene, raw_replica(four_megabytes) as (fast, _):
        await route(scene, fast, None)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        raw.connect(("127.0.0.1", scene.server.port))
        raw.sendall(request(json.dumps(chat(stream=True)).encode()))
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        last, received = b"", 0
        while not last.endswith(b"0\r\n\r\n"):
            part = await asyncio.wait_for(loop.sock_recv(raw, 1 << 20), 20)
            assert part, f"cut off after {received} bytes"
            last, received = (last + part)[-200:], received + len(part)
            await asyncio.sleep(max(0.0, begun_s + received / 1_200_000 - loop.time()))  # 1.2 MB/s
        assert b"data: [DONE]" in last
        raw.close()


@pytest.mark.proves("a target is bounded in length")
async def test_a_long_target_without_any_header_is_bounded_too() -> None:
    async with running_gateway(max_header_bytes=4096) as scene:
        answer = await answer_to(scene, b"GET /health?" + b"q" * 5000 + b" HTTP/1.1\r\n\r\n")
        assert status_of(answer) == 431
        assert status_of(await answer_to(scene, b"GET /health?" + b"q" * 3000 + b" HTTP/1.1\r\n\r\n")) == 200


@pytest.mark.proves("no more connections are taken than descriptors allow")
async def test_no_more_connections_are_taken_than_the_process_may_have_descriptors_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = 2 * 5 + OTHER_DESCRIPTORS
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: None)  # the tests after this one need theirs
    async with running_gateway(max_connections=1000) as scene:
        idle = [await connect(scene) for _ in range(5)]
        answer = await answer_to(scene, b"")
        assert status_of(answer) == 503 and b"too_many_connections" in answer
        for _, writer in idle:
            writer.close()
