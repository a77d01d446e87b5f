"""The server on a real port: what raw sockets can do to it, how it starts and how it stops."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from ebbtide_serve.gateway.server import SEND_BUFFER_BYTES, GatewayServer
from tests.builders.gateway import CHAT, bearer, connect, key, request
from tests.serve_apps.gateway.fakes import FakeArbiter, Scene, chat, running_gateway, settings, until


async def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_headers(scene: Scene) -> None:
    """Who keeps a connection acknowledges late, 40 ms on Linux: without TCP_NODELAY each answer took that."""
    took_s = []
    async with httpx.AsyncClient(base_url=scene.url, trust_env=False) as http:
        for _ in range(10):
            begun_s = time.perf_counter()
            await http.get("/nowhere")
            took_s.append(time.perf_counter() - begun_s)
    assert min(took_s) < 0.03, took_s


@pytest.mark.parametrize("start", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
@pytest.mark.proves("headers have a deadline")
async def test_headers_that_never_end_close_the_connection(start: bytes) -> None:
    async with running_gateway(header_timeout_s=0.3) as scene:
        reader, writer = await connect(scene)
        begun_s = time.monotonic()
        writer.write(start)
        for _ in range(10):  # a byte now and then does not prolong it
            await asyncio.sleep(0.05)
            if start and not writer.is_closing():
                writer.write(b"a")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 30)
        assert time.monotonic() - begun_s < 15
        writer.close()


@pytest.mark.proves("headers of later requests have a deadline")
async def test_the_second_request_of_a_connection_has_a_header_deadline_too() -> None:
    async with running_gateway(header_timeout_s=0.3) as scene:
        reader, writer = await connect(scene)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"}")
        writer.write(b"GET /hea")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


@pytest.mark.proves("a body has a deadline")
async def test_a_body_that_comes_too_slowly_is_a_408_and_a_running_request_has_no_header_deadline() -> None:
    async with running_gateway(header_timeout_s=0.2, body_timeout_s=0.5) as scene:
        await scene.route(await scene.replica(token_every_s=0.3))
        reader, writer = await connect(scene)
        writer.write(request(b"x" * 100)[:-50])
        answer = await asyncio.wait_for(reader.read(), 5)
        assert b" 408 " in answer.split(b"\r\n")[0] and b"body_timeout" in answer
        writer.close()
        reader, writer = await connect(scene)
        writer.write(request(json.dumps(chat()).encode()))
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"usage"), 5)
        writer.close()


@pytest.mark.proves(
    "a body that is declared too large is a 413 before it is read",
    "the rest of a refused body has a deadline",
)
async def test_a_client_that_sends_on_after_its_refusal_is_cut_off() -> None:
    async with running_gateway(header_timeout_s=0.3, max_body_bytes=1000) as scene:
        reader, writer = await connect(scene)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: 999999999\r\n\r\n")
        assert b" 413 " in await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)
        begun_s = time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() - begun_s < 20:
                writer.write(b"x" * 100)
                await writer.drain()
                await asyncio.sleep(0.02)
        assert time.monotonic() - begun_s < 15
        writer.close()


async def test_a_stranger_is_refused_before_any_of_his_body_is_waited_for() -> None:
    async with running_gateway(keys=(key("full"),), body_timeout_s=30.0) as scene:
        reader, writer = await connect(scene)
        writer.write(request(b"x" * 100, f"authorization: {bearer('nobody')['authorization']}")[:-100])
        begun_s = time.monotonic()
        assert b" 401 " in await asyncio.wait_for(reader.readuntil(b"\r\n"), 30)
        assert time.monotonic() - begun_s < 20.0, "408 would come after 30 s"
        writer.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\nbig: " + b"a" * 40_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello, tls?\r\n\r\n",
        b"GET /health HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    ],
    ids=["large headers", "tls", "malformed header", "negative length"],
)
@pytest.mark.proves("what is no HTTP is answered with 400 and closed")
async def test_what_is_not_http_gets_an_openai_shaped_400(scene: Scene, raw: bytes) -> None:
    reader, writer = await connect(scene)
    writer.write(raw)
    answer = await asyncio.wait_for(reader.read(), 5)
    head, _, body = answer.partition(b"\r\n\r\n")
    status, code = (b" 431 ", "headers_too_large") if b"big: " in raw else (b" 400 ", "invalid_http")
    assert status in head.split(b"\r\n")[0]
    assert json.loads(body)["error"]["code"] == code
    writer.close()


async def test_a_half_closed_client_counts_as_gone(scene: Scene) -> None:
    _, writer = await connect(scene)
    writer.write(request(json.dumps(chat()).encode()))
    await until(lambda: scene.traffic.held == 1)
    writer.write_eof()
    await until(lambda: scene.traffic.held == 0, 1.0)
    assert scene.traffic.failed == 1
    writer.close()


@pytest.mark.proves("no error is written into a running answer")
async def test_garbage_behind_a_running_request_harms_only_its_own_connection(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    reader, writer = await connect(scene)
    writer.write(b"\x00\x01garbage\r\n\r\n")
    assert b" 400 " in await asyncio.wait_for(reader.read(), 5), "where no answer is under way it is told why"
    writer.close()
    reader, writer = await connect(scene)
    writer.write(request(json.dumps(chat()).encode()))
    await until(lambda: scene.traffic.held == 1)
    writer.write(b"\x00\x01garbage\r\n\r\n")
    assert await asyncio.wait_for(reader.read(), 5) == b""  # no second answer into the middle of the first
    await until(lambda: scene.traffic.held == 0, 1.0)
    writer.close()
    assert (await http.get("/health")).status_code == 200


async def test_a_slow_reader_slows_its_replica_and_not_the_gateways_memory(scene: Scene) -> None:
    replica = await scene.replica(tokens=200_000)  # about 40 MB of events
    await scene.route(replica)
    reader, writer = await connect(scene)
    writer.write(request(json.dumps(chat(stream=True)).encode()))
    await reader.readuntil(b"t0 ")
    await asyncio.sleep(0.5)
    assert replica.running == 1  # it could not write all of it to anyone
    writer.transport.abort()
    await until(lambda: replica.running == 0, 2.0)


@pytest.mark.proves("what a client does not read is bounded in the kernel")
async def test_what_a_client_does_not_read_is_bounded_in_the_kernel_too() -> None:
    """Left alone, the kernel makes room for megabytes on a connection this fast."""
    async with running_gateway() as scene:
        await scene.route(await scene.replica(tokens=30_000))  # 6 MB
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", scene.server.port))
            raw.sendall(request(json.dumps(chat(stream=True)).encode()))
            ports = [f"0100007F:{port:04X}" for port in (scene.server.port, raw.getsockname()[1])]

            def waiting() -> int:
                rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
                return next(int(row[4].partition(":")[0], 16) for row in rows if row[1:3] == ports)

            before = -1
            async with asyncio.timeout(20):
                while waiting() != before or not before:
                    before = waiting()
                    await asyncio.sleep(0.5)
            assert before <= 2 * SEND_BUFFER_BYTES, before


@pytest.mark.proves("a 503 says when to come back", "a stopping gateway lets running requests end")
async def test_a_stop_lets_running_streams_end_and_takes_nothing_new(scene: Scene, http: httpx.AsyncClient) -> None:
    replica = await scene.replica(tokens=20, token_every_s=0.02)
    await scene.route(replica)
    reader, writer = await connect(scene)  # a kept connection
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"200 OK" in await reader.readuntil(b"}")
    running = asyncio.create_task(http.post(CHAT, json=chat(stream=True)))
    await until(lambda: replica.running == 1)
    stopping = asyncio.create_task(scene.server.stop(60.0))
    await until(lambda: scene.server.gateway.stopping)
    assert not scene.server.alive
    assert scene.server.gateway.report().leaving, "while its stream ends the arbiter hears it, and nobody else does"
    writer.write(request(json.dumps(chat()).encode()))
    late = await asyncio.wait_for(reader.readuntil(b"}}"), 5)
    assert b" 503 " in late.split(b"\r\n")[0] and b"retry-after: 1" in late
    writer.close()
    response = await running
    assert response.status_code == 200 and response.text.endswith("data: [DONE]\n\n")
    await asyncio.wait_for(stopping, 60)
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient(base_url=scene.url) as other:
            await other.get("/health")


@pytest.mark.proves("a stopping gateway ends the rest with an error")
async def test_a_stop_that_may_not_wait_ends_streams_with_an_error_event_and_held_ones_with_503(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    replica = await scene.replica(tokens=1000, token_every_s=0.02)
    await scene.route(replica)
    running = asyncio.create_task(http.post(CHAT, json=chat(stream=True)))
    held = asyncio.create_task(http.post(CHAT, json=chat(model="other")))
    await until(lambda: replica.running == 1 and scene.traffic.recent_ttft_s != ())
    await until(lambda: scene.server.gateway.report().traffic["other"].held == 1)
    await asyncio.wait_for(scene.server.stop(0.1), 5)
    last = [event for event in (await running).text.split("\n\n") if event][-1]
    assert "the gateway stops" in last and '"error"' in last
    assert (await held).status_code == 503
    await until(lambda: replica.aborted == 1, 1.0)


async def taken_port() -> AsyncIterator[tuple[socket.socket, int]]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other, other.getsockname()[1]


@pytest.mark.proves(
    "a port that is taken is waited for and then named", "a second gateway on a port shows unless each node has one"
)
async def test_a_start_waits_for_the_port_of_a_dying_predecessor_and_no_longer() -> None:
    async for other, port in taken_port():
        server = GatewayServer(settings(port=port), FakeArbiter())
        with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
            await asyncio.wait_for(server.start(bind_patience_s=0.3), 10)
        starting = asyncio.create_task(server.start(bind_patience_s=5.0))
        await asyncio.sleep(0.3)
        assert not starting.done()
        other.close()
        await starting
        assert server.alive and server.port == port
        second = GatewayServer(settings(port=port), FakeArbiter())
        with pytest.raises(OSError, match="in use"):
            await second.start(bind_patience_s=0.2)
        await server.stop(0.0)
    sharing = [GatewayServer(settings(per_node=True), FakeArbiter())]
    await sharing[0].start()
    sharing.append(GatewayServer(settings(per_node=True, port=sharing[0].port), FakeArbiter()))
    await sharing[1].start(bind_patience_s=0.2)  # as on a node each
    for one in sharing:
        await one.stop(0.0)
