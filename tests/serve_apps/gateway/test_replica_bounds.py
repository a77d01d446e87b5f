"""What a replica may cost the gateway and its clients: time, memory, tries."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ebbtide.client.messages import RoutingTable, SeatRoute
from ebbtide_serve.gateway import proxy
from ebbtide_serve.gateway.admission.routing_table import Routes
from ebbtide_serve.gateway.clock import SystemClock
from tests.builders.gateway import EVENT, HEAD, Say, chunk, hang, raw_replica, request, route
from tests.serve_apps.gateway.fakes import MODEL, Scene, chat, running_gateway, until

CHAT = "/v1/chat/completions"
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


async def ask(scene: Scene, **changes: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=scene.url, timeout=20, trust_env=False) as http:
        return await http.post(CHAT, json=chat(**changes))


async def many_headers(writer: asyncio.StreamWriter) -> None:
    lines = b"".join(b"h%d: x\r\n" % number for number in range(200))
    writer.write(HEAD.replace(b"\r\n\r\n", b"\r\n" + lines + b"\r\n") + chunk(EVENT) + chunk(b"data: [DONE]\n\n"))


async def interim_first(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
    await asyncio.sleep(0.2)
    writer.write(WHOLE)


async def redirect(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n")


async def no_event(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"0\r\n\r\n")


@pytest.mark.proves("a replica's headers are bounded in number", "a stream without any event is lost and not empty")
@pytest.mark.parametrize("say", [many_headers, no_event], ids=lambda say: say.__name__)
async def test_an_answer_that_is_none_is_asked_for_elsewhere(say: Say) -> None:
    async with running_gateway() as scene, raw_replica(say) as (broken, asked):
        healthy = await scene.replica()
        await route(scene, broken, healthy)
        answers = [await ask(scene, stream=True) for _ in range(2)]
        assert [answer.text.endswith("data: [DONE]\n\n") and "t2" in answer.text for answer in answers] == [True, True]
        assert len(asked) == 1 and len(healthy.bodies) == 2


@pytest.mark.proves("an interim answer is not the answer")
async def test_an_interim_answer_is_not_the_answer() -> None:
    async with running_gateway() as scene, raw_replica(interim_first) as (hints, _):
        await route(scene, hints, None)
        answer = await ask(scene)
        assert (answer.status_code, answer.text) == (200, "{}")


async def garbage_and_no_end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\x01\x02 this is no HTTP\r\n\r\n")
    await asyncio.sleep(30)


@pytest.mark.proves("a replica that speaks no HTTP is lost")
async def test_what_is_no_http_is_not_waited_for() -> None:
    async with running_gateway() as scene, raw_replica(garbage_and_no_end) as (broken, _):
        await route(scene, broken, await scene.replica())
        async with asyncio.timeout(10):
            assert [(await ask(scene, stream=True)).status_code for _ in range(2)] == [200, 200]


@pytest.mark.proves("what a slow client does not read stays with the replica")
async def test_what_a_client_does_not_read_stays_with_the_replica() -> None:
    """It writes for ever; after what the buffers on the way hold, it has to wait."""
    written = [0]

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while not writer.is_closing():
            writer.write(chunk(EVENT * 500))
            await writer.drain()
            written[0] += 500 * len(EVENT)

    async with running_gateway() as scene, raw_replica(endless) as (busy, _):
        await route(scene, busy, None)
        _, writer = await asyncio.open_connection("127.0.0.1", scene.server.port, limit=1024)
        writer.write(request(json.dumps(chat(stream=True)).encode()))
        before = -1
        async with asyncio.timeout(20):
            while written[0] != before or not before:
                before = written[0]
                assert before < 64 << 20, "nobody stops it"
                await asyncio.sleep(0.5)
        writer.transport.abort()


@pytest.mark.proves("the redirects of a replica are not passed on")
async def test_a_replicas_redirect_goes_nowhere() -> None:
    async with running_gateway() as scene, raw_replica(redirect) as (lost, _):
        await route(scene, lost, None)
        answer = await ask(scene)
        assert answer.status_code == 502 and answer.json()["error"]["code"] == "replica_refused"
        assert "location" not in answer.headers


@pytest.mark.proves("an answer in one piece is bounded in size")
async def test_an_answer_in_one_piece_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "WHOLE_MAX_BYTES", 100_000)
    async with running_gateway() as scene:
        replica = await scene.replica(tokens=40_000)
        await scene.route(replica, await scene.replica(tokens=40_000))
        answer = await ask(scene)
        assert answer.status_code == 502 and answer.json()["error"]["code"] == "replica_lost"
        replica.tokens = 3
        await scene.route(replica)
        assert (await ask(scene)).status_code == 200


@pytest.mark.proves("a refusal of a replica uses up no retry")
async def test_a_refusal_is_no_loss_however_many_replicas_refuse() -> None:
    """Nothing was executed by them: the one retry of a request that may have been is still there."""
    async with running_gateway() as scene:
        refusing = [await scene.replica("refuse") for _ in range(4)]
        dying, healthy = await scene.replica("die_first"), await scene.replica()
        await scene.route(*refusing, dying, healthy)
        assert (await ask(scene)).status_code == 200
        assert [len(one.bodies) for one in refusing] == [1] * 4 and len(dying.bodies) == len(healthy.bodies) == 1


@contextlib.contextmanager
def never_accepts() -> Iterator[SeatRoute]:
    """A port whose queue is full: a connection to it is neither made nor refused."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        yield SeatRoute(f"{MODEL}/8", "full", f"http://127.0.0.1:{port}")


@pytest.mark.proves("connecting to a replica has a deadline")
async def test_a_replica_that_cannot_be_connected_to_is_passed_by_in_time() -> None:
    async with running_gateway(connect_timeout_s=0.3) as scene:
        with never_accepts() as full:
            healthy = await scene.replica()
            await route(scene, full, healthy)
            async with asyncio.timeout(10):
                assert [(await ask(scene)).status_code for _ in range(3)] == [200] * 3


@pytest.mark.proves("a vanished node is noticed")
async def test_a_replica_whose_node_vanishes_is_noticed_though_nothing_is_sent() -> None:
    """The kernel asks for signs of life on a connection that waits for its answer."""
    async with running_gateway() as scene, raw_replica(hang) as (silent, asked):
        await route(scene, silent, None)
        asking = asyncio.create_task(ask(scene))
        await until(lambda: len(asked) == 1)
        port = int(silent.url.rpartition(":")[2])
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (timer,) = [row[5] for row in rows if row[2] == f"0100007F:{port:04X}" and row[3] == "01"]
        assert timer.partition(":")[0] == "02", "the keepalive timer"
        asking.cancel()


@pytest.mark.proves("what is known of a replica goes when it has left the table")
def test_a_replica_that_left_the_table_and_is_back_is_not_shunned_any_more() -> None:
    routes = Routes(SystemClock(), 1)
    seat = SeatRoute("m/0", "r", "http://127.0.0.1:1")
    routes.adopt(RoutingTable(1, {"m": (seat,)}))
    routes.shun(seat, 60.0)
    assert routes.choose("m") is None
    routes.adopt(RoutingTable(2, {"m": (seat,), "other": ()}))
    assert routes.choose("m") is None, "it never left"
    routes.adopt(RoutingTable(3, {"m": ()}))
    routes.adopt(RoutingTable(4, {"m": (seat,)}))
    assert routes.choose("m") == seat
